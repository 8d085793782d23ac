//! Detects servers that stop answering: reports them repeatedly, and aborts the session if the user set a limit.
//!
//! In: the sessions, and the bytes that move on their connections. Out: lines on the standard error; an aborted
//! session.
//!
//! Always holds: a server is reported only if it owes an answer and sends nothing. A request for an event may wait for
//! a long time, so the server first gets another request as a probe.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nine_net::{Env, Peer, Transport, rt};
use nine_proto::GetMask;

use super::Session;
use crate::fail;

/// Seconds of silence before the first report. Each next report comes after twice the time.
const FIRST: u32 = 10;
/// Seconds of silence before the server gets a probe request.
const ASK: u32 = 5;
/// Smaller writes do not count as movement: they may be our probe, which proves nothing about the server. Bytes.
const SMALL: usize = 4096;
const SECOND: Duration = Duration::from_secs(1);

/// Checks all sessions once a second, forever.
pub async fn watch(sessions: Rc<RefCell<Vec<Session>>>, env: rt::Real, quiet: bool, patience: Option<u32>) {
    let mut silences: Vec<Silence> = Vec::new();
    loop {
        env.sleep_until(env.now() + SECOND).await;
        let sessions = sessions.borrow();
        silences.resize_with(sessions.len(), Silence::default);
        for (session, silence) in sessions.iter().zip(&mut silences) {
            let client = session.root.client();
            let (owed, _) = client.under_way();
            match silence.second(session.moved.bytes(), owed > 0, patience) {
                Now::Nothing => {}
                Now::Ask => {
                    let root = session.root.clone();
                    env.spawn(Box::pin(async move { drop(root.getattr(GetMask::BASIC).await) }));
                }
                Now::Say if quiet => {}
                Now::Say => fail::note(format_args!("waiting for {}, {} s", session.addr, silence.seconds)),
                Now::GiveUp => {
                    let text =
                        format!("no answer for {} s; --patience says how long to wait", silence.seconds);
                    client.abort(io::Error::new(io::ErrorKind::TimedOut, text));
                }
            }
        }
    }
}

/// Time since the last movement. A second in which this process was delayed counts as one.
#[derive(Default)]
struct Silence {
    moved: u64,
    seconds: u32,
    said: u32,
}

#[derive(Debug, PartialEq, Eq)]
enum Now {
    Nothing,
    Ask,
    Say,
    GiveUp,
}

impl Silence {
    /// Counts one more second and decides the action; `moved` is the total of bytes so far.
    fn second(&mut self, moved: u64, owed: bool, patience: Option<u32>) -> Now {
        if !owed || moved != self.moved {
            *self = Silence { moved, ..Silence::default() };
            return Now::Nothing;
        }
        self.seconds += 1;
        if patience.is_some_and(|most| self.seconds > most) {
            return Now::GiveUp;
        }
        if self.seconds == patience.map_or(ASK, |most| ASK.min(most.div_ceil(2))) {
            return Now::Ask;
        }
        if self.seconds >= FIRST.max(2 * self.said) {
            self.said = self.seconds;
            return Now::Say;
        }
        Now::Nothing
    }
}

/// Counter of the bytes moved on a connection.
#[derive(Clone, Default)]
pub struct Moved(Arc<AtomicU64>);

impl Moved {
    fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn add(&self, n: usize) {
        self.0.fetch_add(n as u64, Ordering::Relaxed);
    }
}

/// A transport that counts its bytes.
pub struct Watched<T>(pub T, pub Moved);

impl<T: Transport> Transport for Watched<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.note(|io| io.poll_read(cx, buf))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = self.0.poll_write(cx, bufs);
        if let Poll::Ready(Ok(n)) = written
            && n >= SMALL
        {
            self.1.add(n);
        }
        written
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.0.poll_hangup(cx)
    }

    fn can_sendfile(&self) -> bool {
        self.0.can_sendfile()
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.note(|io| io.poll_sendfile(cx, file, offset, len))
    }

    fn cork(&mut self, more: bool) {
        self.0.cork(more);
    }

    fn can_splice(&self) -> bool {
        self.0.can_splice()
    }

    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.note(|io| io.poll_splice_in(cx, pipe, len))
    }

    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.note(|io| io.poll_splice_out(cx, pipe, len))
    }

    fn peer(&self) -> &Peer {
        self.0.peer()
    }
}

impl<T> Watched<T> {
    /// Calls the transport and counts the bytes that it moved.
    fn note(&mut self, call: impl FnOnce(&mut T) -> Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        let done = call(&mut self.0);
        if let Poll::Ready(Ok(n)) = done {
            self.1.add(n);
        }
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silence_is_said_at_growing_intervals_and_given_up_if_that_is_wanted() {
        let course = |patience, seconds: u32| {
            let mut silence = Silence::default();
            let all = (1..=seconds).map(|s| (s, silence.second(0, true, patience)));
            all.filter(|(_, now)| *now != Now::Nothing).collect::<Vec<_>>()
        };
        let said = [(5, Now::Ask), (10, Now::Say), (20, Now::Say), (40, Now::Say)];
        assert_eq!(course(None, 79), said);
        assert_eq!(course(Some(12), 13), [(5, Now::Ask), (10, Now::Say), (13, Now::GiveUp)]);
        assert_eq!(course(Some(1), 2), [(1, Now::Ask), (2, Now::GiveUp)]);
    }

    #[test]
    fn who_answers_or_owes_nothing_is_not_waited_for() {
        let mut silence = Silence::default();
        for second in 0..100 {
            assert_ne!(silence.second(second / 4, true, Some(4)), Now::GiveUp);
        }
        let mut idle = Silence::default();
        assert!((0..100).all(|_| idle.second(7, false, Some(4)) == Now::Nothing));
    }
}
