//! 9P without I/O: what the bytes mean, and what a conversation may do next.
//!
//! In: frames that somebody else received. Out: typed operations for a file server, and bytes for somebody else to
//! send. Two state machines hold what a session knows: [`session::server`] (fids, tags, the order of flushes) and
//! [`session::client`] (tags, the undo of late successes). Everything is told them as arguments; there is no clock,
//! no socket and no task here, so a test is a loop.
//!
//! ```text
//! bytes -> frame -> msg::Tmsg -> session::server -> Op -> (a file server) -> Reply -> bytes
//! Op -> msg::Tmsg -> bytes -> (a peer) -> bytes -> msg::Rmsg -> session::client -> whoever asked
//! ```
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod attr;
mod dialect;
mod dir;
mod error;
pub mod frame;
mod ids;
pub mod msg;
mod op;
pub mod session;
mod stat;
pub mod stream;
mod wire;

pub use attr::{
    Attr, GetMask, LockRequest, LockStatus, LockType, Names, Numeric, SetAttr, SetMask, Statfs, Texts, Time,
    TimeSet,
};
pub use dialect::{Base, Dialect};
pub use dir::{DirBuf, Dirent, DirentAttr, Entries};
pub use error::{Errno, Error, Result};
pub use ids::{Fid, NOFID, NOGID, NOTAG, NOUID, Qid, Tag};
pub use op::{Make, Op, OpenFlags, Perm, RenameMode, Reply, Walked, check_name};
pub use stat::{Stat, StatIds, mode};
pub use wire::{Reader, Str, WireError, Writer, show};
