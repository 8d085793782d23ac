//! 9P through a channel (docs/channels.md): the two transports that know which bytes of a message are data.
//!
//! In: bytes of messages, as to any transport. Out: the same, but that data goes through the arena: what a client
//! writes and what it reads is copied once, by whoever has it, and a file of the host not even that.
//!
//! Always holds: a place is used for the one request that brought it, and only until its answer; a peer that says
//! anything else loses its own data.

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

/// Data of fewer bytes goes with its message.
pub const SMALL: usize = 512;

const RVERSION: u8 = 101;
const TFLUSH: u8 = 108;
const TREAD: u8 = 116;
const RREAD: u8 = 117;
const TWRITE: u8 = 118;
const TREADDIR: u8 = 40;
const RREADDIR: u8 = 41;
/// `size[4] type[1] tag[2] count[4]`: what comes before the data of an answer.
const READ_HEAD: usize = 11;
/// `size[4] type[1] tag[2] fid[4] offset[8] count[4]`: what comes before the data of a write, and all of a read.
const WRITE_HEAD: usize = 23;

/// How messages leave by an end that tells their data from the rest.
trait Sends {
    /// Puts what is staged, and the message whose data is in the arena.
    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>>;

    /// Takes some of the bytes, of which there are some; not when it is full.
    fn write(&mut self, bytes: &[u8]) -> usize;

    /// Whether something has to be put before more is taken.
    fn is_full(&self) -> bool;
}

/// Takes as much as can be.
fn send(end: &mut impl Sends, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
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
