//! Many conversations on one stream: the multiplexing module of the paper (`docs/streams.md`, Many conversations on
//! one).
//!
//! In: frames from the lower stream, chains from the streams above. Out: chains to those, frames to the lower stream.
//! One task, the [`Driver`], carries data between them.
//!
//! Always holds: for each conversation, at most a window of received data and at most a queue's limit of data to send
//! is stored here. No conversation waits for the reader of another. The limits bound the number of conversations. A
//! peer that violates the format causes the end of the lower stream.

mod drive;
mod frame;
#[cfg(all(test, nine_loom))]
mod orders;
mod table;

use alloc::sync::Arc;
use core::future::poll_fn;
use core::task::Poll;

pub use drive::Driver;
use frame::{ConversationFrame, FrameReader, FrameWriter, HelloFrame};
use table::SharedConversations;

use crate::block::Block;
use crate::module::Fault;
use crate::stream::{Make, Stream};
use crate::wait::{QueueTicket, wake};

/// The side that has dialled the lower stream, or the other one. The sides use different conversation numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Opens 1, 3, 5 and so on.
    Dialer,
    /// Opens 2, 4, 6 and so on.
    Listener,
}

/// The limits that this side sets for the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Window of a conversation: the maximum cost of its data in flight, in bytes. Values below [`Limits::SMALLEST`]
    /// are raised to it.
    pub window: u32,
    /// Maximum number of open conversations of the other side, and also of this one. Another one is refused.
    pub conversations: u16,
}

impl Limits {
    /// The smallest window, in bytes.
    pub const SMALLEST: u32 = 4 << 10;
}

impl Default for Limits {
    fn default() -> Self {
        Self { window: 256 << 10, conversations: 256 }
    }
}

/// The conversations on one stream. Clones share them. After the last clone is dropped, conversations that the other
/// side opens are refused, and the lower stream ends with the last conversation.
///
/// Concurrency: any number of tasks may open and accept.
#[derive(Clone)]
pub struct Many(Arc<ConversationHandle>);

struct ConversationHandle(Arc<SharedConversations>);

/// Starts many conversations on `lower`: sends a hello and waits for that of the other side. Each conversation gets the
/// modules, the clock and the limit of `make`, and a pool of its own. The caller must run the [`Driver`].
pub async fn many(lower: Stream, side: Side, limits: Limits, make: &Make) -> Result<(Many, Driver), Fault> {
    let window = limits.window.max(Limits::SMALLEST);
    let here = HelloFrame { side, window, conversations: limits.conversations };
    let mut speech = FrameWriter::default();
    speech.say(0, ConversationFrame::Hello(here));
    lower.put(speech.chain()).await?;
    let mut listener = FrameReader::default();
    match hello(&lower, &mut listener, side).await {
        Ok((there, rest)) => {
            let shared = Arc::new(SharedConversations::new(here, there, make.clone()));
            let driver = Driver::new(shared.clone(), lower, listener, rest);
            Ok((Many(Arc::new(ConversationHandle(shared))), driver))
        }
        Err(why) => {
            drive::tell(&lower, &why);
            Err(why)
        }
    }
}

/// Receives the other side's hello. Also returns the data after it.
async fn hello(lower: &Stream, listener: &mut FrameReader, side: Side) -> Result<(HelloFrame, Block), Fault> {
    loop {
        let Some(mut rest) = lower.read_block().await? else {
            return Err(Fault::new("the lower stream has ended before a hello"));
        };
        return match listener.hear(&mut rest)? {
            None => continue,
            Some((0, ConversationFrame::Hello(there))) if there.side == side => {
                Err(Fault::new("both ends have dialled, or neither has"))
            }
            Some((0, ConversationFrame::Hello(there))) if there.window < Limits::SMALLEST => {
                Err(Fault::new("the window of the other end is too small"))
            }
            Some((0, ConversationFrame::Hello(there))) => Ok((there, rest)),
            Some((0, ConversationFrame::End(Some(why)))) => Err(table::given_up(&why)),
            Some(_) => Err(Fault::new("the first frame is no hello")),
        };
    }
}

impl Many {
    /// Opens a conversation and returns its number. Fails if a limit of either side is reached or the lower stream has
    /// ended.
    pub fn open(&self) -> Result<(u32, Stream), Fault> {
        self.0.0.open()
    }

    /// Accepts the next conversation that the other side has opened. `None` if the lower stream has ended in good
    /// order.
    pub async fn accept(&self) -> Result<Option<(u32, Stream)>, Fault> {
        let mut accepting = AcceptWait { shared: &self.0.0, ticket: None };
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

    /// Ends a conversation with an error, on both sides. Unsent data is dropped. Does nothing if both ends are closed.
    pub fn reset(&self, number: u32, why: Fault) {
        self.0.0.reset(number, why);
    }
}

impl Drop for ConversationHandle {
    fn drop(&mut self) {
        self.0.leave();
    }
}

/// A task that waits to accept. Leaves the queue when dropped.
struct AcceptWait<'m> {
    shared: &'m SharedConversations,
    ticket: QueueTicket,
}

impl Drop for AcceptWait<'_> {
    fn drop(&mut self) {
        let mut table = self.shared.lock();
        let next = if table.acceptors.leave(&mut self.ticket) { table.acceptors.first() } else { None };
        drop(table);
        wake(next);
    }
}
