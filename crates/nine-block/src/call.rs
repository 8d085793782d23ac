//! Operations as futures.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;

use crate::device::{Device, Done, Io, Op, Proof};
use crate::error::Result;
use crate::sync::{Mutex, lock};

/// The future of an operation. If it is dropped, the operation continues, and its result is lost.
pub struct Call(Arc<Mutex<CallState>>);

#[derive(Default)]
struct CallState {
    result: Option<Result<Bytes>>,
    waker: Option<Waker>,
}

impl Call {
    fn begin(device: &dyn Device, io: impl FnOnce(Done) -> Io) -> Self {
        let (done, call) = Self::pair();
        device.submit(io(done));
        call
    }

    /// Returns a future, and the callback that completes it.
    pub(crate) fn pair() -> (Done, Self) {
        let state = Arc::<Mutex<CallState>>::default();
        let told = state.clone();
        let done = move |result| {
            let mut state = lock(&told);
            state.result = Some(result);
            let waker = state.waker.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        };
        (Box::new(done), Self(state))
    }
}

impl Future for Call {
    type Output = Result<Bytes>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<Bytes>> {
        let mut state = lock(&self.0);
        match state.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                state.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl dyn Device {
    /// Reads `count` sectors.
    pub fn read(&self, at: u64, count: u64) -> Call {
        Call::begin(self, |done| Io::read(at, count, done))
    }

    /// Reads `count` sectors, with a proof if there is one.
    pub fn read_proven(&self, at: u64, count: u64, proof: Option<Proof>) -> Call {
        Call::begin(self, |done| Io::read(at, count, done).with(proof))
    }

    /// Writes whole sectors.
    pub fn write(&self, at: u64, data: Bytes) -> Call {
        Call::begin(self, |done| Io::write(at, data, done))
    }

    /// Makes complete writes durable.
    pub fn flush(&self) -> Call {
        Call::begin(self, |done| Io::other(Op::Flush, 0, 0, done))
    }

    /// Discards sectors.
    pub fn discard(&self, at: u64, count: u64) -> Call {
        Call::begin(self, |done| Io::other(Op::Discard, at, count, done))
    }

    /// Refreshes the size of the device.
    pub fn look(&self) -> Call {
        Call::begin(self, |done| Io::other(Op::Look, 0, 0, done))
    }
}
