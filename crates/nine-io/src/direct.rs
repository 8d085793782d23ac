//! Open files that clients in this process call without messages. Plan 9's kernel does the same: it calls its own
//! servers and sends messages to all others (intro(5)).
//!
//! In: the open files of a server. Out: the same files, readable and writable at once. They are for a client at the
//! other end of a pipe in this process, and for the connection of any other client (`server/conn/call.rs`). All other
//! operations, and calls that would have to wait for a disk, go by message. A file without calls behaves as before.
//!
//! Always holds: a call is one 9P read or write of a file that a Topen has opened, with the permissions and flags of
//! that open. Calls and messages on one file are ordered only by their answers, as messages are among themselves.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::task::Context;

use nine_net::{Beside, Transport};
use nine_proto::{Fid, Result};

use crate::payload::Payload;
use crate::sync::{Mutex, lock};

/// The result of a call.
#[derive(Debug)]
pub enum Called<T> {
    /// The answer.
    Done(Result<T>),
    /// There is no answer yet. The caller's waker is woken when another call may succeed.
    Waits,
    /// The call cannot serve this; the caller must send a message.
    Message,
}

/// An open file that can be called.
///
/// Concurrency: callable from any thread. For each kind of call only the latest caller's waker is woken.
pub trait Direct: Send + Sync + 'static {
    /// Reads at most `count` bytes from `offset`; no bytes mean end of file. Without `cx` it never waits and disturbs
    /// no waiting caller.
    fn read(&self, cx: Option<&mut Context<'_>>, offset: u64, count: u32) -> Called<Payload> {
        let _ = (cx, offset, count);
        Called::Message
    }

    /// Writes `data` in order from `offset` on, and returns the number of bytes taken, perhaps not all. A file range in
    /// `data` must be resident (see [`Payload::File`]).
    fn write(&self, cx: &mut Context<'_>, offset: u64, data: &[Payload]) -> Called<usize> {
        let _ = (cx, offset, data);
        Called::Message
    }

    /// Writes `data` if it need not wait, and disturbs no waiting caller.
    fn write_now(&self, offset: u64, data: &Payload) -> Called<usize> {
        let _ = (offset, data);
        Called::Message
    }

    /// Returns the host file behind this one, if reading and writing that file directly has the same effect.
    fn backing(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// The opened files of one connection within this process that its client has not claimed yet, by fid.
#[derive(Default)]
pub(crate) struct DirectFiles(Mutex<HashMap<Fid, Arc<dyn Direct>>>);

impl DirectFiles {
    /// Returns the table of a pipe; both ends share it. `None` if the transport is no pipe of this process.
    pub(crate) fn of(transport: &dyn Transport) -> Option<Arc<Self>> {
        let place: &OnceLock<Beside> = transport.beside()?;
        place.get_or_init(|| Arc::<Self>::default()).clone().downcast().ok()
    }

    /// Registers an opened file, before the answer to the open is sent.
    pub(crate) fn put(&self, fid: Fid, direct: Arc<dyn Direct>) {
        lock(&self.0).insert(fid, direct);
    }

    /// Removes a file: after the client has received that answer, and at the clunk in case it was never claimed.
    pub(crate) fn take(&self, fid: Fid) -> Option<Arc<dyn Direct>> {
        lock(&self.0).remove(&fid)
    }
}
