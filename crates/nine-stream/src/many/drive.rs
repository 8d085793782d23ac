//! Who carries between the lower stream and the conversations: one task.
//!
//! In: blocks of the lower stream; wake-ups. Out: turns of the conversations, each as one chain.
//!
//! Always holds: reading never waits for sending, nor the other way round, and neither waits for the stream of a
//! conversation.

use alloc::sync::Arc;
use core::future::{pending, poll_fn};
use core::pin::pin;
use core::task::Poll;

use super::frame::{Frame, Listener, Speech};
use super::table::Shared;
use crate::block::Block;
use crate::module::Fault;
use crate::stream::Stream;

/// Blocks that are read, or turns that are sent, before others than this task have their turn.
const ROUNDS: usize = 32;

/// What carries: its task is to be run for as long as there are conversations. Dropped, it ends them for an error.
pub struct Driver {
    shared: Driven,
    lower: Stream,
    listener: Listener,
    /// What has come behind the hello.
    rest: Block,
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, lower: Stream, listener: Listener, rest: Block) -> Self {
        Self { shared: Driven(shared), lower, listener, rest }
    }

    /// Carries until the lower stream has ended and what had come has been taken; or until nobody opens or accepts and
    /// no conversation is left: then it ends the lower stream. An error: why it, or a conversation on it, has not
    /// ended in good order.
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

/// Says why nothing more comes. Where there is no room, the other end sees no more than that it has ended.
pub(super) fn tell(lower: &Stream, why: &Fault) {
    let mut speech = Speech::default();
    speech.say(0, Frame::End(Some(why.clone())));
    let _ = lower.try_put(speech.chain());
}

/// Hears all that comes, until the lower stream ends.
async fn read(
    shared: &Arc<Shared>,
    lower: &Stream,
    mut listener: Listener,
    mut block: Block,
) -> Result<(), Fault> {
    loop {
        for _ in 0..ROUNDS {
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

/// Sends turn after turn, until nobody will say anything any more.
async fn send(shared: &Shared, lower: &Stream) {
    loop {
        for _ in 0..ROUNDS {
            let next = poll_fn(|_| match shared.turn() {
                Some(chain) => Poll::Ready(Some(chain)),
                None if shared.is_done() => Poll::Ready(None),
                None => Poll::Pending,
            });
            let Some(chain) = next.await else { return };
            if lower.put(chain).await.is_err() {
                // What has come before is still to be read, and then says why.
                pending::<()>().await;
            }
        }
        pause().await;
    }
}

/// Lets others have their turn.
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

/// Whose task has gone carries nothing.
struct Driven(Arc<Shared>);

impl Drop for Driven {
    fn drop(&mut self) {
        self.0.give_up();
    }
}
