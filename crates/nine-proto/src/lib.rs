//! 9P without I/O: the codec and the session state machines.
//!
//! In: whole frames that the caller received. Out: typed operations for a file server, and encoded bytes for the caller
//! to send. Two state machines hold the session state: [`session::server`] (fids, tags, the order of flushes) and
//! [`session::client`] (tags, fid numbers, the cleanup after late successes). Every input is an argument. There is no
//! clock, socket or task here, so a test is a plain loop.
//!
//! ```text
//! bytes -> frame -> msg::Tmsg -> session::server -> Op -> (a file server) -> Reply -> bytes
//! Op -> msg::Tmsg -> bytes -> (a peer) -> bytes -> msg::Rmsg -> session::client -> the caller
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
