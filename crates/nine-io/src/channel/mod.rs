//! 9P through a shared-memory channel (docs/channels.md): two transports that can tell the data of a message from the
//! rest.
//!
//! In: the bytes of messages, as for any transport. Out: the same bytes, but data goes through the arena. Data of reads
//! and writes is copied once, by its owner; data of a host file not even once.
//!
//! Always holds: an arena range serves only the request that names it, and only until its answer. A peer that breaks
//! this rule corrupts only its own data.

mod asking;
mod heads;
mod lent;
mod serving;
#[cfg(all(test, not(nine_loom)))]
mod tests;

use std::io::{self, IoSlice};
use std::task::{Context, Poll};

pub use asking::Asking;
pub use lent::serve_all;
pub use serving::{ROOMS, Serving};

/// Data of fewer bytes stays in its message.
pub const SMALL: usize = 512;

const RVERSION: u8 = 101;
const TFLUSH: u8 = 108;
const TREAD: u8 = 116;
const RREAD: u8 = 117;
const TWRITE: u8 = 118;
const TREADDIR: u8 = 40;
const RREADDIR: u8 = 41;
/// `size[4] type[1] tag[2] count[4]`: the part of an answer before its data.
const READ_HEAD: usize = 11;
/// `size[4] type[1] tag[2] fid[4] offset[8] count[4]`: the part of a write before its data, and a whole read.
const WRITE_HEAD: usize = 23;

/// The sending side of an end, which separates the data of messages from the rest.
trait ArenaSender {
    /// Sends the staged bytes, and then the message with its data in the arena.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Takes some of `bytes`, which must not be empty. Must not be called when the end is full.
    fn write(&mut self, bytes: &[u8]) -> usize;

    /// Whether `poll_push` is needed before it takes more bytes.
    fn is_full(&self) -> bool;
}

/// Sends as many bytes as the end takes.
fn send(end: &mut impl ArenaSender, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
    let mut taken = 0;
    for buf in bufs {
        let mut bytes = &buf[..];
        while !bytes.is_empty() {
            if end.is_full() && end.poll_push(cx)?.is_pending() {
                return if taken > 0 { Poll::Ready(Ok(taken)) } else { Poll::Pending };
            }
            let n = end.write(bytes);
            (taken, bytes) = (taken + n, &bytes[n..]);
        }
    }
    Poll::Ready(Ok(taken))
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
