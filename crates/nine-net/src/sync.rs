//! The primitives of the reactor's waits and wake-ups: std's and the kernel's, or loom's when a test explores all
//! interleavings.
//!
//! Under loom a thread does not wait in poll(2), but for the model. The readiness of real sockets still comes from
//! poll(2), called without waiting.

use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use socket2::Socket;

#[cfg(not(nine_loom))]
pub(crate) use real::{AtomicBool, AtomicU32, Bell, Parker, ThreadId};

#[cfg(nine_loom)]
pub(crate) use model::{AtomicBool, AtomicU32, Bell, Parker, ThreadId};

pub(crate) use crate::lock::{Mutex, MutexGuard, lock};

/// A socket by its number, and the events to report.
pub(crate) type WatchedSocket = (u64, Arc<Socket>, PollFlags);

/// Waits in poll(2). A signal ends it early, which does no harm. A limit that does not fit means no limit.
fn poll(fds: &mut [PollFd<'_>], limit: Option<Duration>) {
    let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
    let _ = rustix::event::poll(fds, limit.as_ref());
}

#[cfg(not(nine_loom))]
mod real {
    use super::*;
    use rustix::event::EventfdFlags;
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32};
    pub(crate) use std::thread::ThreadId;
    use std::{io, os::fd::OwnedFd, thread};

    /// A handle by which other threads wake a parked one.
    pub(crate) struct Parker(thread::Thread);

    impl Parker {
        /// A handle of this thread.
        pub(crate) fn here() -> Self {
            Self(thread::current())
        }

        pub(crate) fn id(&self) -> ThreadId {
            self.0.id()
        }

        /// Parks the calling thread, which must be this one, until `unpark` was called since the last park, or for
        /// `limit`. May return earlier without a reason.
        pub(crate) fn park(&self, limit: Option<Duration>) {
            match limit {
                Some(limit) => thread::park_timeout(limit),
                None => thread::park(),
            }
        }

        pub(crate) fn unpark(&self) {
            self.0.unpark();
        }
    }

    /// A doorbell (eventfd), which ends a thread's wait for sockets.
    pub(crate) struct Bell(OwnedFd);

    impl Bell {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
        }

        pub(crate) fn ring(&self) {
            // If the counter is full, the bell has been rung.
            let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
        }

        pub(crate) fn silence(&self) {
            let _ = rustix::io::read(&self.0, &mut [0; 8]);
        }

        /// Waits until it rings, a socket has an event, or `limit` has passed. Returns the events of the bell, then of
        /// each socket.
        pub(crate) fn wait<'a>(
            &'a self,
            watched: &'a [WatchedSocket],
            limit: Option<Duration>,
        ) -> impl Iterator<Item = PollFlags> + 'a {
            let mut fds = vec![PollFd::new(&self.0, PollFlags::IN)];
            fds.extend(watched.iter().map(|(_, raw, wanted)| PollFd::new(raw, *wanted)));
            poll(&mut fds, limit);
            fds.into_iter().map(|fd| fd.revents())
        }
    }
}

#[cfg(nine_loom)]
mod model {
    use super::*;
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::sync::{Condvar, Notify};
    pub(crate) use loom::thread::ThreadId;
    use std::{io, sync::PoisonError};

    pub(crate) struct Parker(ThreadId, Notify);

    impl Parker {
        pub(crate) fn here() -> Self {
            Self(loom::thread::current().id(), Notify::new())
        }

        pub(crate) fn id(&self) -> ThreadId {
            self.0
        }

        /// May return without a reason, as the real one may. No test here sets a limit.
        pub(crate) fn park(&self, _: Option<Duration>) {
            self.1.wait();
        }

        pub(crate) fn unpark(&self) {
            self.1.notify();
        }
    }

    #[derive(Default)]
    pub(crate) struct Bell {
        rung: Mutex<bool>,
        changed: Condvar,
    }

    impl Bell {
        pub(crate) fn new() -> io::Result<Self> {
            Ok(Self::default())
        }

        pub(crate) fn ring(&self) {
            *lock(&self.rung) = true;
            self.changed.notify_one();
        }

        pub(crate) fn silence(&self) {
            *lock(&self.rung) = false;
        }

        /// Acts as the other end of a socket, and ends the simulated poll(2).
        #[cfg(test)]
        pub(crate) fn peer<R>(&self, act: impl FnOnce() -> R) -> R {
            let rung = lock(&self.rung);
            let done = act();
            drop(rung);
            self.changed.notify_one();
            done
        }

        pub(crate) fn wait(
            &self,
            watched: &[WatchedSocket],
            limit: Option<Duration>,
        ) -> impl Iterator<Item = PollFlags> {
            let mut rung = lock(&self.rung);
            loop {
                let mut fds: Vec<_> =
                    watched.iter().map(|(_, raw, wanted)| PollFd::new(raw, *wanted)).collect();
                poll(&mut fds, Some(Duration::ZERO));
                let bell = if *rung { PollFlags::IN } else { PollFlags::empty() };
                let came: Vec<_> = [bell].into_iter().chain(fds.iter().map(PollFd::revents)).collect();
                if limit == Some(Duration::ZERO) || came.iter().any(|came| !came.is_empty()) {
                    return came.into_iter();
                }
                rung = self.changed.wait(rung).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }
}
