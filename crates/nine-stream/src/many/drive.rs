//! The driver: one task that carries data between the lower stream and the conversations.
//!
//! In: blocks of the lower stream; wake-ups. Out: batches of frames of the conversations, each as one chain.
//!
//! Always holds: reading never waits for sending, nor the reverse. Neither waits for the stream of a conversation.

use alloc::sync::Arc;
use core::future::{pending, poll_fn};
use core::pin::pin;
use core::task::Poll;

use super::frame::{ConversationFrame, FrameReader, FrameWriter};
use super::table::SharedConversations;
use crate::block::Block;
use crate::module::Fault;
use crate::stream::Stream;

/// Number of blocks to read, or batches to send, before the task yields to others.
const DRIVE_ROUNDS: usize = 32;

/// The driver's task. Run it for as long as there are conversations. Dropping it ends them with an error.
pub struct Driver {
    shared: DriverGuard,
    lower: Stream,
    listener: FrameReader,
    /// Data that came after the hello.
    rest: Block,
}

impl Driver {
    pub(super) fn new(
        shared: Arc<SharedConversations>,
        lower: Stream,
        listener: FrameReader,
        rest: Block,
    ) -> Self {
        Self { shared: DriverGuard(shared), lower, listener, rest }
    }

    /// Carries data until the lower stream has ended and its data has been taken. Also ends when there are no
    /// conversations, and no handle can open or accept more; it then ends the lower stream. The error is the reason why
    /// the lower stream, or a conversation on it, did not end in good order.
    pub async fn drive(self) -> Result<(), Fault> {
        let Self { shared: driven, lower, listener, rest } = self;
        let shared = &*driven.0;
        let mut read = pin!(read(&driven.0, &lower, listener, rest));
        let mut send = pin!(send(shared, &lower));
        let ended = poll_fn(|cx| {
            shared.watch(cx.waker());
            shared.move_on();
            match read.as_mut().poll(cx) {
                Poll::Ready(ended) => Poll::Ready(ended),
                Poll::Pending => send.as_mut().poll(cx).map(Ok),
            }
        })
        .await;
        let ended = match ended {
            Ok(()) if !shared.is_empty() => Err(Fault::new("the lower stream has ended")),
            ended => ended,
        };
        if let Err(why) = &ended {
            tell(&lower, why);
        }
        lower.hangup();
        shared.end(&ended.clone().err());
        poll_fn(|cx| {
            shared.watch(cx.waker());
            shared.move_on();
            if shared.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        ended
    }
}

/// Sends the reason of a failure. If there is no room, the other side only sees the end.
pub(super) fn tell(lower: &Stream, why: &Fault) {
    let mut speech = FrameWriter::default();
    speech.say(0, ConversationFrame::End(Some(why.clone())));
    let _ = lower.try_put(speech.chain());
}

/// Handles all received frames, until the lower stream ends.
async fn read(
    shared: &Arc<SharedConversations>,
    lower: &Stream,
    mut listener: FrameReader,
    mut block: Block,
) -> Result<(), Fault> {
    loop {
        for _ in 0..DRIVE_ROUNDS {
            while let Some((number, frame)) = listener.hear(&mut block)? {
                shared.hear(number, frame)?;
            }
            match lower.read_block().await? {
                Some(next) => block = next,
                None if listener.is_mid() => {
                    return Err(Fault::new("the lower stream has ended in the middle of a frame"));
                }
                None => return Ok(()),
            }
        }
        pause().await;
    }
}

/// Sends batches, until no conversation will send any more.
async fn send(shared: &SharedConversations, lower: &Stream) {
    loop {
        for _ in 0..DRIVE_ROUNDS {
            let next = poll_fn(|_| match shared.turn() {
                Some(chain) => Poll::Ready(Some(chain)),
                None if shared.is_done() => Poll::Ready(None),
                None => Poll::Pending,
            });
            let Some(chain) = next.await else { return };
            if lower.put(chain).await.is_err() {
                // Received data must still be read. It then shows the reason.
                pending::<()>().await;
            }
        }
        pause().await;
    }
}

/// Yields to other tasks once.
async fn pause() {
    let mut paused = false;
    poll_fn(|cx| {
        if core::mem::replace(&mut paused, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Ends all conversations when the driver's task is dropped.
struct DriverGuard(Arc<SharedConversations>);

impl Drop for DriverGuard {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
