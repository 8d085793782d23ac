//! The cache against a plain map, stepped by hand, over devices that end operations in any order and fail some.
#![cfg(not(nine_loom))]

mod ahead;
mod device;
mod hold;
mod model;
mod poison;

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_block::Result;

/// Returns the result of a call, if it has ended.
fn poll(call: &mut (impl Future<Output = Result<Bytes>> + Unpin)) -> Option<Result<Bytes>> {
    match Pin::new(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => Some(result),
        Poll::Pending => None,
    }
}

/// Returns the result of a call that must have ended.
#[track_caller]
fn now(mut call: impl Future<Output = Result<Bytes>> + Unpin) -> Result<Bytes> {
    poll(&mut call).expect("it has ended")
}

/// Pseudorandom numbers from a seed (xorshift).
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    fn percent(&mut self, of: u64) -> bool {
        self.below(100) < of
    }
}
