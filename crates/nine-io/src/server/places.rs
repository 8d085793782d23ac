//! Places of connections: when there is none for a new one, the oldest goes that has not attached, or whose principal
//! has more than its share of the places.
//!
//! In: connections as they come, attach and go. Out: whether one has to go. No clock.
//!
//! Always holds: a connection that has attached within its principal's share is never chosen. One that the transport
//! proves is chosen only for another one that it proves, and only if there is no other.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use crate::limits::{ClientPrincipal, FairLimit, FairShare};
use crate::sync::{AtomicBool, Mutex, lock};

/// The places of a core.
#[derive(Default)]
pub(super) struct Places {
    queue: Mutex<QueueState>,
    /// Those that have attached.
    shares: OnceLock<Arc<FairLimit>>,
}

/// The connections that may have to go, by age.
#[derive(Default)]
struct QueueState {
    next: u64,
    waiting: BTreeMap<u64, Arc<PlacedConnection>>,
}

/// A connection from its accept on.
pub(super) struct PlacedConnection {
    number: u64,
    is_proven: bool,
    /// It has a share. Looked at before a lock is taken: whoever serves it asks whenever it is woken.
    stays: AtomicBool,
    place: Mutex<Place>,
    progress: Mutex<Progress>,
}

/// Whose place it is.
#[derive(Default)]
enum Place {
    /// Nobody's: it has not attached.
    #[default]
    Unattached,
    /// This principal's, above its share.
    AboveShare(ClientPrincipal),
    WithinShare(FairShare),
}

#[derive(Default)]
enum Progress {
    #[default]
    New,
    /// It is woken when it has to go.
    Waiting(Waker),
    Evicted,
}

impl Places {
    /// There are so many. The first call counts.
    pub(super) fn limit(&self, connections: usize) {
        self.shares.get_or_init(|| FairLimit::new(connections));
    }

    /// A share for a principal, if there is one.
    ///
    /// # Panics
    ///
    /// If there is no limit yet: connections come from listeners, which have one.
    fn share(&self, principal: &ClientPrincipal) -> Option<FairShare> {
        self.shares.get().expect("a listener has told how many places there are").take(principal, 1)
    }

    /// A connection has come; the transport proves its client or not.
    pub(super) fn enter(&self, is_proven: bool) -> Arc<PlacedConnection> {
        let mut state = lock(&self.queue);
        let number = state.next;
        state.next += 1;
        let (stays, place, progress) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        let entry = Arc::new(PlacedConnection { number, is_proven, stays, place, progress });
        state.waiting.insert(number, entry.clone());
        entry
    }

    /// It has attached. Its best proof so far counts.
    pub(super) fn attached(&self, entry: &PlacedConnection, principal: &ClientPrincipal) {
        let mut place = lock(&entry.place);
        match &mut *place {
            Place::WithinShare(share) => {
                if principal.class() > share.principal().class() {
                    share.move_to(principal);
                }
                return;
            }
            Place::AboveShare(before) if before.class() >= principal.class() => return,
            Place::Unattached | Place::AboveShare(_) => {}
        }
        match self.share(principal) {
            Some(share) => *place = Place::WithinShare(share),
            None => {
                *place = Place::AboveShare(principal.clone());
                return;
            }
        }
        drop(place);
        // A chosen connection has left the queue, and goes.
        if self.leave(entry) {
            entry.stays.store(true, Ordering::Relaxed);
        }
    }

    /// It is gone, or will be. Whether it was in the queue.
    pub(super) fn leave(&self, entry: &PlacedConnection) -> bool {
        lock(&self.queue).waiting.remove(&entry.number).is_some()
    }

    /// Chooses the connection that makes room for a new one. Whether there is one.
    pub(super) fn evict(&self, for_proven: bool) -> bool {
        loop {
            let mut state = lock(&self.queue);
            let oldest = |proven| state.waiting.values().find(|entry| entry.is_proven == proven).cloned();
            let chosen = oldest(false).or_else(|| oldest(true).filter(|_| for_proven));
            let Some(entry) = chosen else { return false };
            state.waiting.remove(&entry.number);
            drop(state);
            let mut place = lock(&entry.place);
            // Others of its principal may have gone since.
            if let Place::AboveShare(principal) = &*place
                && let Some(share) = self.share(principal)
            {
                *place = Place::WithinShare(share);
                entry.stays.store(true, Ordering::Relaxed);
                continue;
            }
            drop(place);
            let before = std::mem::replace(&mut *lock(&entry.progress), Progress::Evicted);
            if let Progress::Waiting(waker) = before {
                waker.wake();
            }
            return true;
        }
    }
}

impl PlacedConnection {
    /// Ready when it has to go.
    pub(super) fn poll_evicted(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.stays.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        let mut progress = lock(&self.progress);
        match &mut *progress {
            Progress::Evicted => Poll::Ready(()),
            Progress::Waiting(waker) => {
                waker.clone_from(cx.waker());
                Poll::Pending
            }
            Progress::New => {
                *progress = Progress::Waiting(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    fn is_evicted(entry: &PlacedConnection) -> bool {
        entry.poll_evicted(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    fn places(connections: usize) -> Places {
        let places = Places::default();
        places.limit(connections);
        places
    }

    fn stranger() -> ClientPrincipal {
        ClientPrincipal::Address("10.0.0.1".into())
    }

    #[test]
    fn the_oldest_without_an_attach_goes_first_and_no_attached_one() {
        let places = places(8);
        let all: Vec<_> = (0..4).map(|_| places.enter(false)).collect();
        places.attached(&all[0], &stranger());
        places.leave(&all[1]);
        assert!(places.evict(false) && is_evicted(&all[2]) && !is_evicted(&all[3]));
        assert!(places.evict(true) && is_evicted(&all[3]));
        assert!(!places.evict(true) && !is_evicted(&all[0]));
    }

    #[test]
    fn a_proven_connection_goes_last_and_only_for_a_proven_one() {
        let places = places(8);
        let proven = places.enter(true);
        assert!(!places.evict(false));
        let other = places.enter(false);
        assert!(places.evict(true) && is_evicted(&other) && !is_evicted(&proven));
        assert!(places.evict(true) && is_evicted(&proven));
        // An attach that comes too late changes nothing.
        places.attached(&proven, &ClientPrincipal::Owner);
        assert!(is_evicted(&proven));
    }

    #[test]
    fn who_has_more_than_his_share_makes_room_and_the_owner_never() {
        let places = places(8);
        let all: Vec<_> = (0..7).map(|_| places.enter(false)).collect();
        all.iter().for_each(|entry| places.attached(entry, &stranger()));
        let owner = places.enter(false);
        places.attached(&owner, &ClientPrincipal::Owner);
        // Three eighths are one stranger's.
        let gone: Vec<_> = (0..7).map(|_| places.evict(false)).collect();
        assert_eq!(gone, [true, true, true, true, false, false, false]);
        let gone: Vec<_> = all.iter().map(|entry| is_evicted(entry)).collect();
        assert_eq!(gone, [false, false, false, true, true, true, true]);
        assert!(!is_evicted(&owner));
    }

    #[test]
    fn a_place_above_the_share_is_within_it_when_others_have_gone_or_a_better_proof_comes() {
        let places = places(8);
        let mut all: Vec<_> = (0..5).map(|_| places.enter(false)).collect();
        all.iter().for_each(|entry| places.attached(entry, &stranger()));
        places.attached(&all[4], &ClientPrincipal::Owner);
        all.remove(0);
        assert!(!places.evict(false), "one place more is the stranger's, and one is the owner's");
        // The owner's does not count as the stranger's.
        let more = places.enter(false);
        places.attached(&more, &stranger());
        assert!(places.evict(false) && is_evicted(&more));
    }
}
