//! Connections that have not attached yet. If there is no room for a new connection, the oldest of them is evicted.
//!
//! In: connects, attaches and closes. Out: the connection to evict. No clock, and no limit of its own.
//!
//! Always holds: a connection that has attached is never evicted. One that the transport proves is evicted only for
//! another proven one, and only if there is no unproven one.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

use crate::sync::{AtomicBool, Mutex, lock};

/// The connections of a core that have not attached, by age.
#[derive(Default)]
pub(super) struct UnattachedQueue(Mutex<QueueState>);

#[derive(Default)]
struct QueueState {
    next: u64,
    waiting: BTreeMap<u64, Arc<UnattachedConnection>>,
}

/// A connection, from its accept on.
pub(super) struct UnattachedConnection {
    number: u64,
    is_proven: bool,
    /// Checked before the lock is taken, because the connection's task checks at every wake-up.
    has_attached: AtomicBool,
    progress: Mutex<AttachProgress>,
}

#[derive(Default)]
enum AttachProgress {
    #[default]
    New,
    /// To be woken at its eviction.
    Waiting(Waker),
    Evicted,
}

impl UnattachedQueue {
    /// Adds a new connection. `is_proven`: the transport proves its client.
    pub(super) fn enter(&self, is_proven: bool) -> Arc<UnattachedConnection> {
        let mut state = lock(&self.0);
        let number = state.next;
        state.next += 1;
        let (has_attached, progress) = (AtomicBool::new(false), Mutex::default());
        let entry = Arc::new(UnattachedConnection { number, is_proven, has_attached, progress });
        state.waiting.insert(number, entry.clone());
        entry
    }

    /// Removes a connection that has attached.
    pub(super) fn attached(&self, entry: &UnattachedConnection) {
        // An evicted connection has left the queue already, and ends.
        if self.leave(entry) {
            entry.has_attached.store(true, Ordering::Relaxed);
        }
    }

    /// Removes a connection that is gone or will be. Returns whether it was in the queue.
    pub(super) fn leave(&self, entry: &UnattachedConnection) -> bool {
        lock(&self.0).waiting.remove(&entry.number).is_some()
    }

    /// Evicts a connection for a new one. Returns whether there was one to evict.
    pub(super) fn evict(&self, for_proven: bool) -> bool {
        let mut state = lock(&self.0);
        let oldest = |proven| state.waiting.values().find(|entry| entry.is_proven == proven).cloned();
        let Some(entry) = oldest(false).or_else(|| oldest(true).filter(|_| for_proven)) else { return false };
        state.waiting.remove(&entry.number);
        drop(state);
        let before = std::mem::replace(&mut *lock(&entry.progress), AttachProgress::Evicted);
        if let AttachProgress::Waiting(waker) = before {
            waker.wake();
        }
        true
    }
}

impl UnattachedConnection {
    /// Ready when the connection is evicted.
    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.has_attached.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let mut progress = lock(&self.progress);
        match &mut *progress {
            AttachProgress::Evicted => Poll::Ready(()),
            AttachProgress::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            AttachProgress::New => {
                *progress = AttachProgress::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn is_evicted(entry: &UnattachedConnection) -> bool {
        entry.poll_evicted(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_without_an_attach_goes_first_and_no_attached_one() {
        let queue = UnattachedQueue::default();
        let all: Vec<_> = (0..4).map(|_| queue.enter(false)).collect();
        queue.attached(&all[0]);
        queue.leave(&all[1]);
        assert!(queue.evict(false) && is_evicted(&all[2]) && !is_evicted(&all[3]));
        assert!(queue.evict(true) && is_evicted(&all[3]));
        assert!(!queue.evict(true) && !is_evicted(&all[0]));
    }

    #[test]
    fn a_proven_connection_goes_last_and_only_for_a_proven_one() {
        let queue = UnattachedQueue::default();
        let proven = queue.enter(true);
        assert!(!queue.evict(false));
        let other = queue.enter(false);
        assert!(queue.evict(true) && is_evicted(&other) && !is_evicted(&proven));
        assert!(queue.evict(true) && is_evicted(&proven));
        // A late attach changes nothing.
        queue.attached(&proven);
        assert!(is_evicted(&proven));
    }
}
