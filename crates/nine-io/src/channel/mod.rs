//! 9P through a channel (docs/channels.md): the two transports that know which bytes of a message are data.
//!
//! In: bytes of messages, as to any transport. Out: the same, but that data goes through the arena: what a client
//! writes and what it reads is copied once, by whoever has it, and a file of the host not even that.
//!
//! Always holds: a place is used for the one request that brought it, and only until its answer; a peer that says
//! anything else loses its own data.

mod asking;
mod heads;
mod serving;
#[cfg(all(test, not(nine_loom)))]
mod tests;

pub use asking::Asking;
pub use serving::Serving;

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

fn word(bytes: &[u8]) -> u32 {
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
