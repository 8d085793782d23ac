//! Many conversations on one stream: the multiplexing module of the paper (`docs/streams.md`, Many conversations on
//! one).
//!
//! In: frames from the lower stream, chains from the streams above. Out: chains to these, frames to that. One task, the
//! [`Driver`]'s, carries between them.
//!
//! Always holds: of what has come at most a window waits here for each conversation, of what goes at most a queue's
//! limit; no conversation waits for the reader of another; as many conversations exist as the limits say; what a peer
//! says that is not in the format ends the lower stream.

mod drive;
mod frame;
#[cfg(all(test, nine_loom))]
mod orders;
mod table;

use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::Poll;

pub use drive::Driver;
use frame::{Frame, Hello, Listener, Speech};
use table::Shared;

use crate::block::Block;
use crate::module::Fault;
use crate::stream::{Make, Stream};
use crate::wait::{Ticket, wake};

/// Who has dialled the lower stream: the sides number their conversations apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Opens 1, 3, 5 and so on.
    Dialer,
    /// Opens 2, 4, 6 and so on.
    Listener,
}

/// How much the other side may have of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// What may be on its way to one conversation, bytes: at least [`Limits::SMALLEST`], and taken for that if it is
    /// less.
    pub window: u32,
    /// Conversations that the other side may have opened at a time, and that this one may have: one more is refused.
    pub conversations: u16,
}

impl Limits {
    /// The smallest window, bytes.
    pub const SMALLEST: u32 = 4 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 256 << 10, conversations: 256 }
    }
}

/// The conversations on one stream. Clones are the same; when the last one has gone what the other side opens is
/// refused, and the lower stream ends with the last conversation.
///
/// Concurrency: any number of tasks open and accept.
#[derive(Clone)]
pub struct Many(Arc<Handle>);

struct Handle(Arc<Shared>);

/// Makes many conversations of `lower`: says hello, and waits for the other side's. Each has the modules, the clock and
/// the limit of `make`, and a pool of its own. Somebody has to run the [`Driver`].
pub async fn many(lower: Stream, side: Side, limits: Limits, make: &Make) -> Result<(Many, Driver), Fault> {
    let window = limits.window.max(Limits::SMALLEST);
    let here = Hello { side, window, conversations: limits.conversations };
    let mut speech = Speech::default();
    speech.say(0, Frame::Hello(here));
    lower.put(speech.chain()).await?;
    let mut listener = Listener::default();
    match hello(&lower, &mut listener, side).await {
        Ok((there, rest)) => {
            let shared = Arc::new(Shared::new(here, there, make.clone()));
            let driver = Driver::new(shared.clone(), lower, listener, rest);
            Ok((Many(Arc::new(Handle(shared))), driver))
        }
        Err(why) => {
            drive::tell(&lower, &why);
            Err(why)
        }
    }
}

/// The other side's hello, and what has come behind it.
async fn hello(lower: &Stream, listener: &mut Listener, side: Side) -> Result<(Hello, Block), Fault> {
    loop {
        let Some(mut rest) = lower.read_block().await? else {
            return Err(Fault::new("the lower stream has ended before a hello"));
        };
        return match listener.hear(&mut rest)? {
            None => continue,
            Some((0, Frame::Hello(there))) if there.side == side => {
                Err(Fault::new("both ends have dialled, or neither has"))
            }
            Some((0, Frame::Hello(there))) if there.window < Limits::SMALLEST => {
                Err(Fault::new("the window of the other end is too small"))
            }
            Some((0, Frame::Hello(there))) => Ok((there, rest)),
            Some((0, Frame::End(Some(why)))) => Err(table::given_up(&why)),
            Some(_) => Err(Fault::new("the first frame is no hello")),
        };
    }
}

impl Many {
    /// Begins a conversation, and says its number. Refused: there are as many as either side takes, or the lower stream
    /// has ended.
    pub fn open(&self) -> Result<(u32, Stream), Fault> {
        self.0.0.open()
    }

    /// The next conversation that the other side has opened. `None`: the lower stream has ended in good order.
    pub async fn accept(&self) -> Result<Option<(u32, Stream)>, Fault> {
        let mut accepting = Accepting { shared: &self.0.0, ticket: None };
        poll_fn(|cx| {
            let mut table = accepting.shared.lock();
            if table.acceptors.is_turn(&accepting.ticket) {
                if let Some(opened) = table.opened.pop_front() {
                    return Poll::Ready(Ok(Some(opened)));
                }
                if let Some(over) = &table.over {
                    return Poll::Ready(over.clone().map_or(Ok(None), Err));
                }
            }
            table.acceptors.wait(&mut accepting.ticket, cx.waker());
            Poll::Pending
        })
        .await
    }

    /// Ends a conversation for an error, on both sides: what waits to be sent is thrown away. Nothing is done where
    /// both ends have been closed.
    pub fn reset(&self, number: u32, why: Fault) {
        self.0.0.reset(number, why);
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// Who waits for a conversation; leaves when it goes.
struct Accepting<'m> {
    shared: &'m Shared,
    ticket: Ticket,
}

impl Drop for Accepting<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        let next = if table.acceptors.leave(&mut self.ticket) { table.acceptors.first() } else { None };
        drop(table);
        wake(next);
    }
}
