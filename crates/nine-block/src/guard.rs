//! A device that may be written only while a lease is valid.
//!
//! In: operations; a [`Right`], which the holder of the lease extends and ends. Out: all reads; changes only while the
//! right is valid.
//!
//! Always holds: no change is submitted to the device without the right. A change that is not acknowledged within the
//! right is not reported as done. A lost right never becomes valid again.
//!
//! One guard stands above mirrors. Others stand below them, for writes of the mirror itself: marks, labels, repairs of
//! members. These fail with [`Kind::Busy`] when the right has expired, for which no member is set aside.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use crate::device::{Device, Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;
use crate::sync::{Mutex, lock};

/// A clock: the time since an arbitrary start. It must advance while the machine sleeps, and never go back.
pub type Now = Arc<dyn Fn() -> Duration + Send + Sync>;

/// The right to write in one epoch, shared by the holder of the lease and all guards.
pub struct Right {
    epoch: u64,
    now: Now,
    state: Mutex<GuardState>,
}

#[derive(Default)]
struct GuardState {
    /// The right expires at this time.
    until: Duration,
    lost: Option<Error>,
    /// The right is being given up: no new change begins, and those in flight may complete.
    ends: bool,
    /// Number of changes in flight; bounded by the users of the guards.
    under: usize,
    /// Tasks that wait for their end.
    waits: Vec<Waker>,
}

impl Right {
    /// Creates a right for this epoch, which is not valid yet.
    pub fn new(epoch: u64, now: Now) -> Self {
        Self { epoch, now, state: Mutex::new(GuardState::default()) }
    }

    /// Returns the epoch, which is larger than those of all earlier rights.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Extends the right until `until`, by its own clock. It never becomes shorter.
    pub fn extend(&self, until: Duration) {
        let mut state = lock(&self.state);
        state.until = state.until.max(until);
    }

    /// Ends the right for ever, for a reason. Changes in flight continue. Later reasons are ignored.
    pub fn lose(&self, why: impl fmt::Display) {
        let mut state = lock(&self.state);
        state.lost.get_or_insert_with(|| Error::new(Kind::Reserved, why));
    }

    /// Returns why the right is lost, if it is.
    pub fn lost(&self) -> Option<Error> {
        lock(&self.state).lost.clone()
    }

    /// Returns when the right expires or has expired, unless it is lost.
    pub fn until(&self) -> Option<Duration> {
        let state = lock(&self.state);
        state.lost.is_none().then_some(state.until)
    }

    /// Checks that changes may be made now.
    ///
    /// # Errors
    /// [`Kind::Down`]: the right has expired, but may be extended. [`Kind::Reserved`]: it is lost.
    pub fn check(&self) -> Result<()> {
        let now = (self.now)();
        self.judge(&lock(&self.state), now)
    }

    /// Gives up the right: no new change begins. Returns when none is in flight; then the right is lost.
    pub async fn give_up(&self) {
        lock(&self.state).ends = true;
        self.quiet().await;
        self.lose(GIVEN_UP);
    }

    /// Returns when no change is in flight.
    pub async fn quiet(&self) {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            if state.under == 0 {
                return Poll::Ready(());
            }
            if !state.waits.iter().any(|waits| waits.will_wake(cx.waker())) {
                state.waits.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    fn judge(&self, state: &GuardState, now: Duration) -> Result<()> {
        match &state.lost {
            Some(lost) => Err(lost.clone()),
            None if now < state.until => Ok(()),
            None => {
                let since = now - state.until;
                let text = format!(
                    "the right to write (epoch {}) has run out {since:?} ago: is the arbiter there, and who has it?",
                    self.epoch
                );
                Err(Error::new(Kind::Down, text))
            }
        }
    }

    /// Counts a change. With `below` it may belong to a change that began at another guard. So it is allowed while the
    /// right is being given up, as long as other changes are in flight.
    fn begin(self: &Arc<Self>, below: bool) -> Result<GuardedChange> {
        let now = (self.now)();
        let mut state = lock(&self.state);
        self.judge(&state, now)?;
        if state.ends && !(below && state.under > 0) {
            return Err(Error::new(Kind::Reserved, GIVEN_UP));
        }
        state.under += 1;
        Ok(GuardedChange(self.clone()))
    }
}

const GIVEN_UP: &str = "the right to write has been given up here: another may have it";

/// A change in flight.
struct GuardedChange(Arc<Right>);

impl Drop for GuardedChange {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.under -= 1;
        let waits = if state.under == 0 { std::mem::take(&mut state.waits) } else { Vec::new() };
        drop(state);
        waits.into_iter().for_each(Waker::wake);
    }
}

/// A guard before a device.
pub struct Guard {
    of: Arc<dyn Device>,
    right: Arc<Right>,
    /// Whether the device is a member of a mirror.
    below: bool,
}

impl Guard {
    /// Creates a guard that allows changes while this right is valid.
    pub fn new(of: Arc<dyn Device>, right: Arc<Right>) -> Self {
        Self { of, right, below: false }
    }

    /// The same for a member of a mirror. It may be written while the right is valid; the guard above checks that
    /// changes are acknowledged in time. Flushes always pass, because they change nothing.
    pub fn below(of: Arc<dyn Device>, right: Arc<Right>) -> Self {
        Self { of, right, below: true }
    }

    /// Gives up the right for all its guards: no new change begins, those in flight end, and this device is flushed. If
    /// several devices share the right, call this on each; then the lease may be released.
    ///
    /// # Errors
    /// The error of the flush. The right is given up all the same.
    pub async fn give_up(&self) -> Result<()> {
        self.right.give_up().await;
        self.of.flush().await.map(drop)
    }
}

impl Device for Guard {
    fn shape(&self) -> Shape {
        self.of.shape()
    }

    fn unbacked(&self) -> u64 {
        self.of.unbacked()
    }

    fn submit(&self, io: Io) {
        let under = match io.op {
            Op::Read | Op::Look => return self.of.submit(io),
            Op::Flush if self.below => return self.of.submit(io),
            Op::Write | Op::Flush | Op::Discard => self.right.begin(self.below),
        };
        let under = match under {
            Ok(under) => under,
            Err(error) => {
                let kind = if self.below && error.kind == Kind::Down { Kind::Busy } else { error.kind };
                return io.end(Err(Error { kind, ..error }.of(self.name())));
            }
        };
        let below = self.below;
        let (op, at, count, data, name) = (io.op, io.at, io.count, io.data.clone(), self.name());
        let done = move |result: Result<_>| {
            // The write may have arrived after another machine's, or may have been overwritten: that is unknown.
            let within = if below { Ok(()) } else { under.0.check() };
            let within = within.map_err(|error: Error| {
                let text = format!("not acknowledged in time, so it may be there or not: {error}");
                Error { text: text.into(), ..error }.of(name)
            });
            io.end(result.and_then(|data| within.map(|()| data)));
            drop(under);
        };
        self.of.submit(match op {
            Op::Write => Io::write(at, data, done),
            op => Io::other(op, at, count, done),
        });
    }

    fn name(&self) -> String {
        self.of.name()
    }

    fn status(&self) -> String {
        self.of.status()
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.of.owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.of.trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.of.control(words)
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Context;

    use bytes::Bytes;

    use super::*;
    use crate::Ram;

    /// A disk that ends its operations on request.
    #[derive(Default)]
    struct Slow(Mutex<Vec<Io>>);

    impl Slow {
        fn end(&self) -> usize {
            let waiting = std::mem::take(&mut *lock(&self.0));
            let count = waiting.len();
            waiting.into_iter().for_each(|io| {
                let data = if io.op == Op::Read { io.bytes() } else { 0 };
                io.end(Ok(vec![0; data].into()));
            });
            count
        }
    }

    impl Device for Slow {
        fn shape(&self) -> Shape {
            Ram::new(64).shape()
        }

        fn submit(&self, io: Io) {
            lock(&self.0).push(io);
        }

        fn name(&self) -> String {
            "slow".into()
        }
    }

    /// A guarded disk, its right, and its clock in seconds.
    struct Bench {
        slow: Arc<Slow>,
        device: Arc<dyn Device>,
        guard: Arc<Guard>,
        right: Arc<Right>,
        clock: Arc<AtomicU64>,
    }

    fn guarded() -> Bench {
        let (slow, clock) = (Arc::new(Slow::default()), Arc::new(AtomicU64::new(100)));
        let time = clock.clone();
        let now: Now = Arc::new(move || Duration::from_secs(time.load(Ordering::Relaxed)));
        let right = Arc::new(Right::new(17, now));
        let guard = Arc::new(Guard::new(slow.clone(), right.clone()));
        Bench { slow, device: guard.clone(), guard, right, clock }
    }

    fn poll<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(value) => Some(value),
            Poll::Pending => None,
        }
    }

    /// Returns the error of an operation, after the device has ended it.
    fn kind(slow: &Slow, call: crate::Call) -> Option<Kind> {
        slow.end();
        poll(call).expect("it has ended").err().map(|error| error.kind)
    }

    fn sector() -> Bytes {
        vec![1; 512].into()
    }

    #[test]
    fn what_changes_passes_while_the_right_is_valid_and_reads_pass_always() {
        let Bench { slow, device, right, clock, .. } = guarded();
        let changes = |device: &dyn Device, slow: &Slow| {
            [
                kind(slow, device.write(0, sector())),
                kind(slow, device.flush()),
                kind(slow, device.discard(0, 1)),
            ]
        };
        assert_eq!(changes(&*device, &slow), [Some(Kind::Down); 3]);
        right.extend(Duration::from_secs(103));
        right.extend(Duration::from_secs(101));
        assert_eq!(changes(&*device, &slow), [None; 3]);
        clock.store(103, Ordering::Relaxed);
        assert_eq!(changes(&*device, &slow), [Some(Kind::Down); 3]);
        // The right can be extended again, unless it is lost.
        right.extend(Duration::from_secs(106));
        assert_eq!(changes(&*device, &slow), [None; 3]);
        right.lose("venus has it");
        right.lose("mars has it");
        right.extend(Duration::from_secs(200));
        assert_eq!(changes(&*device, &slow), [Some(Kind::Reserved); 3]);
        assert_eq!(&*right.check().unwrap_err().text, "venus has it");
        assert_eq!((kind(&slow, device.read(0, 1)), kind(&slow, device.look())), (None, None));
    }

    #[test]
    fn what_is_acknowledged_too_late_is_not_answered_as_done() {
        let Bench { slow, device, right, clock, .. } = guarded();
        right.extend(Duration::from_secs(103));
        let (write, read) = (device.write(0, sector()), device.read(0, 1));
        clock.store(104, Ordering::Relaxed);
        assert_eq!(kind(&slow, write), Some(Kind::Down));
        assert_eq!(kind(&slow, read), None);
        right.extend(Duration::from_secs(110));
        let flush = device.flush();
        right.lose("venus has it");
        assert_eq!(kind(&slow, flush), Some(Kind::Reserved));
    }

    #[test]
    fn below_a_mirror_it_refuses_so_that_no_member_is_set_aside_and_what_has_begun_above_ends_well() {
        let Bench { slow, device, right, clock, .. } = guarded();
        let below: Arc<dyn Device> = Arc::new(Guard::below(slow.clone(), right.clone()));
        assert_eq!(kind(&slow, below.write(0, sector())), Some(Kind::Busy));
        assert_eq!((kind(&slow, below.flush()), kind(&slow, below.read(0, 1))), (None, None));
        right.extend(Duration::from_secs(103));
        // The guard above checks for lateness.
        let (write, above) = (below.write(0, sector()), device.write(1, sector()));
        clock.store(104, Ordering::Relaxed);
        assert_eq!((kind(&slow, write), poll(above).map(|it| it.is_err())), (None, Some(true)));
        right.extend(Duration::from_secs(110));
        let above = device.write(1, sector());
        let mut given = pin!(right.give_up());
        assert!(poll(given.as_mut()).is_none());
        assert_eq!(poll(device.write(2, sector())).unwrap().unwrap_err().kind, Kind::Reserved);
        assert_eq!(kind(&slow, below.write(0, sector())), None);
        assert_eq!((poll(above), poll(given.as_mut())), (Some(Ok(Bytes::new())), Some(())));
        assert_eq!(kind(&slow, below.write(0, sector())), Some(Kind::Reserved));
    }

    #[test]
    fn who_gives_up_waits_for_what_is_under_way_and_flushes() {
        let Bench { slow, device, guard, right, .. } = guarded();
        right.extend(Duration::from_secs(103));
        let write = device.write(0, sector());
        {
            let mut given = pin!(guard.give_up());
            assert!(poll(given.as_mut()).is_none());
            assert_eq!(
                poll(device.flush()).unwrap().unwrap_err().kind,
                Kind::Reserved,
                "nothing new is begun"
            );
            assert_eq!(slow.end(), 1);
            assert_eq!(poll(write), Some(Ok(Bytes::new())), "what was begun before ends well");
            assert!(poll(given.as_mut()).is_none(), "the flush is under way");
            assert_eq!(slow.end(), 1);
            assert_eq!(poll(given.as_mut()), Some(Ok(())));
        }
        assert_eq!(right.until(), None);
    }
}

#[cfg(all(test, nine_loom))]
mod any_order {
    use loom::thread::spawn;

    use super::*;
    use crate::sync::check;
    use crate::task::Tasks;

    #[test]
    fn who_waits_for_quiet_is_woken_in_any_order() {
        check(|| {
            let right = Arc::new(Right::new(1, Arc::new(|| Duration::ZERO)));
            right.extend(Duration::from_secs(1));
            let ended = Arc::new(Mutex::new(false));
            let others = [0; 2].map(|_| {
                let under = right.begin(false).unwrap();
                spawn(move || drop(under))
            });
            let (tasks, told) = (Tasks::default(), ended.clone());
            tasks.spawn(async move {
                right.quiet().await;
                *lock(&told) = true;
            });
            others.into_iter().for_each(|other| other.join().expect("it has not failed"));
            assert!(*lock(&ended));
        });
    }
}
