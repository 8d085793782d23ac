//! The task that owns a client's transport: writes what calls have put out, reads answers and hands them over.
//!
//! In: [`State::out`](super::state::State) and the transport. Out: vectored writes, one for all messages of a batch,
//! and frames.
//!
//! Always holds: reading never waits for writing; an idle connection owns no buffer, for what one read takes lies in a
//! buffer of the thread; a frame too large for that is read into memory of its own, which the caller of the Tread gets
//! without another copy; a turn ends after [`TURN`] reads, so that other tasks run.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use nine_net::Transport;
use nine_proto::frame::{Split, split};

use super::error::Error;
use super::out::{Out, PIECES};
use super::state::Shared;

/// Reads in one turn.
const TURN: usize = 16;
/// What one read can take, bytes.
const READ: usize = 64 * 1024;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Moves the bytes of one [`Client`](super::Client). Spawn it, or poll it yourself: without it no call proceeds.
///
/// It ends with `Ok` when no handle of the client is left and everything has been answered, and with an error when the
/// connection breaks or the server does not keep to 9P; every call learns the same. Dropped before that, it cuts the
/// connection.
#[must_use = "a client does nothing without its driver"]
pub struct Driver {
    transport: Box<dyn Transport>,
    shared: Arc<Shared>,
    out: Out,
    /// The transport may hold back bytes that it has taken.
    unflushed: bool,
    /// The beginning of a frame; room for all of it, if it is larger than [`READ`].
    partial: Vec<u8>,
    /// Bytes of `partial` that are there.
    filled: usize,
}

impl Driver {
    pub(crate) fn new(transport: Box<dyn Transport>, shared: Arc<Shared>) -> Self {
        Self { transport, shared, out: Out::default(), unflushed: false, partial: Vec::new(), filled: 0 }
    }
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut scratch = SCRATCH.take();
        if scratch.is_empty() {
            scratch = vec![0; READ];
        }
        let turn = this.turn(cx, &mut scratch);
        SCRATCH.set(scratch);
        turn.map_err(|error| {
            this.shared.with(|state| {
                state.die(error);
                // The first reason counts: this one may only be what it led to.
                state.dead().cloned().expect("just died").into()
            })
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let error =
            io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed on this side");
        let error = self.transport_error(error);
        self.shared.with(|state| state.die(error));
    }
}

impl Driver {
    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), Error>> {
        loop {
            self.write(cx)?;
            if self.read(cx, scratch)?.is_ready() {
                // The turn is over and there is more.
                self.write(cx)?;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let idle = self.out.is_empty();
            let parked = self.shared.with(|state| {
                if let Some(dead) = state.dead() {
                    return Err(dead.clone());
                }
                if idle && state.is_finished() {
                    return Ok(Parked::Finished);
                }
                if idle && !state.out.is_empty() {
                    return Ok(Parked::No);
                }
                state.driver = Some(cx.waker().clone());
                state.blocked = !idle;
                Ok(Parked::Yes)
            })?;
            match parked {
                Parked::No => {}
                Parked::Yes => return Poll::Pending,
                Parked::Finished => {
                    // A peer that is gone already has nothing left to be told.
                    return self.transport.poll_close(cx).map(|_| Ok(()));
                }
            }
        }
    }

    /// Writes all there is, until the transport takes no more.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.out.is_empty() {
                self.shared.with(|state| {
                    state.driver = None;
                    std::mem::swap(&mut self.out, &mut state.out);
                });
            }
            if self.out.is_empty() {
                break;
            }
            let mut pieces = [IoSlice::new(&[]); PIECES];
            let count = self.out.pieces(&mut pieces);
            match self.transport.poll_write(cx, &pieces[..count]) {
                Poll::Ready(Ok(0)) => return Err(self.transport_error(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => self.out.advance(n),
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => break,
            }
            self.unflushed = true;
        }
        if self.unflushed {
            match self.transport.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Reads until there is no more (`Pending`) or the turn is over (`Ready`).
    fn read(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Result<Poll<()>, Error> {
        for _ in 0..TURN {
            let large = self.partial.len() > READ;
            let buf = if large {
                &mut self.partial[self.filled..]
            } else {
                scratch[..self.filled].copy_from_slice(&self.partial[..self.filled]);
                &mut scratch[self.filled..]
            };
            let n = match self.transport.poll_read(cx, buf) {
                Poll::Ready(Ok(0)) => {
                    let text = "the server closed the connection";
                    return Err(self.transport_error(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
                }
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => return Ok(Poll::Pending),
            };
            self.filled += n;
            if !large {
                self.frames(&scratch[..self.filled])?;
            } else if self.filled == self.partial.len() {
                self.filled = 0;
                let frame = Bytes::from(std::mem::take(&mut self.partial));
                let received = self.shared.with(|state| state.receive(&frame, Some(&frame)));
                received.map_err(|error| self.wire_error(error))?;
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Hands over the whole frames at the front of `bytes` and keeps the rest.
    fn frames(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut at = 0;
        let need = self.shared.with(|state| {
            loop {
                match split(&bytes[at..], state.session.msize())? {
                    Split::Partial(need) => return Ok(need),
                    Split::Whole(size) => {
                        state.receive(&bytes[at..at + size], None)?;
                        at += size;
                    }
                }
            }
        });
        let need = need.map_err(|error| self.wire_error(error))?;
        let rest = &bytes[at..];
        self.filled = rest.len();
        self.partial = if need > READ {
            let mut partial = vec![0; need];
            partial[..rest.len()].copy_from_slice(rest);
            partial
        } else {
            rest.to_vec()
        };
        Ok(())
    }

    fn transport_error(&self, error: io::Error) -> Error {
        Error::Transport { peer: self.shared.peer.clone(), error: Arc::new(error) }
    }

    fn wire_error(&self, error: nine_proto::WireError) -> Error {
        Error::Protocol { peer: self.shared.peer.clone(), error }
    }
}

enum Parked {
    Yes,
    /// There is something new to write.
    No,
    Finished,
}
