//! Open files of this process, called instead of sent messages: as Plan 9's own kernel calls the servers within it and
//! sends messages to all others (intro(5)).
//!
//! In: the open files of a server. Out: the same files for a client at the other end of a pipe in this process, and for
//! the connection of one that is not (`server/conn/call.rs`), to be read and written at once. Everything else about
//! them, and what has to wait for a disk, goes by message; a file that nobody calls notices nothing.
//!
//! Always holds: a call is one read or write of 9P on a file that a Topen has opened, with its permissions and with
//! what was asked for there; calls and messages on one file are in no order but that of their answers, as messages are
//! among themselves.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};
use std::task::Context;

use nine_net::{Beside, Transport};
use nine_proto::{Fid, Result};

use crate::payload::Payload;
use crate::sync::{Mutex, lock};

/// What a call comes to.
#[derive(Debug)]
pub enum Called<T> {
    /// The answer.
    Done(Result<T>),
    /// There is none yet: whoever has called is woken when it is worth calling again.
    Waits,
    /// It is to be asked by message.
    Message,
}

/// An open file that may be called.
///
/// Concurrency: from any thread; the waker of the latest call of a kind is the one that is woken.
pub trait Direct: Send + Sync + 'static {
    /// Bytes from `offset`, at most `count`; none: the end. Without `cx` it never waits, and disturbs nobody who does.
    fn read(&self, cx: Option<&mut Context<'_>>, offset: u64, count: u32) -> Called<Payload> {
        let _ = (cx, offset, count);
        Called::Message
    }

    /// Writes these, in their order, from `offset` on: how many bytes it has taken, perhaps not all. A range of a file
    /// is resident (see [`Payload::File`]) when this is called.
    fn write(&self, cx: &mut Context<'_>, offset: u64, data: &[Payload]) -> Called<usize> {
        let _ = (cx, offset, data);
        Called::Message
    }

    /// Writes these, if nothing has to be waited for, and disturbs nobody who waits.
    fn write_now(&self, offset: u64, data: &Payload) -> Called<usize> {
        let _ = (offset, data);
        Called::Message
    }

    /// The file of the host behind it, if that is all there is to it: whoever reads and writes that has done the same.
    fn backing(&self) -> Option<Arc<OwnedFd>> {
        None
    }
}

/// Those that have been opened and not been taken yet, by their fids: of one connection within this process.
#[derive(Default)]
pub(crate) struct Directs(Mutex<HashMap<Fid, Arc<dyn Direct>>>);

impl Directs {
    /// Of the end of a pipe: the same ones for both.
    pub(crate) fn of(transport: &dyn Transport) -> Option<Arc<Self>> {
        let place: &OnceLock<Beside> = transport.beside()?;
        place.get_or_init(|| Arc::<Self>::default()).clone().downcast().ok()
    }

    /// Before the answer to the open leaves.
    pub(crate) fn put(&self, fid: Fid, direct: Arc<dyn Direct>) {
        lock(&self.0).insert(fid, direct);
    }

    /// After that answer has come; and when the fid goes, for nobody may have taken it.
    pub(crate) fn take(&self, fid: Fid) -> Option<Arc<dyn Direct>> {
        lock(&self.0).remove(&fid)
    }
}
