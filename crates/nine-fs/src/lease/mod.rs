//! The lease: two or more machines agree on the primary of an archive, by one small disk that all of them reach
//! (docs/lease.md).
//!
//! In: the disk, a clock, requests to claim or release. Out: a [`Right`] to write, which a [`Guard`](nine_block::Guard)
//! checks. The right expires by itself if the disk does not answer, and is lost for ever if another machine gets it.
//!
//! Always holds: of all rights that the instances of all machines get from one arbiter, at most one is valid.

mod arbiter;
#[cfg(any(test, feature = "fuzz"))]
pub(crate) mod fuzz;
mod machine;
#[cfg(test)]
mod worlds;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Device, Error, Kind, Result, Right};

use crate::jobs::WaiterList;
pub use arbiter::{Arbiter, format, reset, shown};
use machine::{LeaseAction, LeaseMachine, LeaseWish};

/// A period for most uses: a dead primary is replaced after about five seconds.
pub const PERIOD: Duration = Duration::from_secs(4);

/// The clock and the source of randomness.
pub trait Clock: Send + Sync + 'static {
    /// Returns the time since an arbitrary start. It must advance while the machine sleeps (`CLOCK_BOOTTIME`), and
    /// never go back. Its rate must be right within a tenth.
    fn now(&self) -> Duration;

    /// Waits until this time, or somewhat longer.
    fn sleep_until(&self, at: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Fills `bytes` with unpredictable values.
    fn entropy(&self, bytes: &mut [u8]);
}

/// The state of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// This machine does not have it.
    Watching {
        /// The last primary, if there was one that has not released the lease.
        main: Option<Main>,
    },
    /// This machine claims it.
    Claiming {
        /// The epoch that it would get.
        epoch: u64,
    },
    /// This machine has the lease until then. After that the lease is renewed if no other machine has taken it.
    Ours {
        /// Larger than all earlier epochs.
        epoch: u64,
        /// By this machine's clock.
        until: Duration,
    },
    /// This instance has lost the lease or its claim, for ever.
    Lost {
        /// The reason, for people.
        why: String,
    },
}

/// Another machine that has the lease, or had it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Main {
    /// Its name.
    pub name: String,
    /// Its epoch.
    pub epoch: u64,
    /// How long its record has not changed.
    pub silent: Duration,
    /// That was at least a period, so it is no longer the primary.
    pub is_gone: bool,
}

/// An instance of a machine at an arbiter: one run of its program. Cheap to clone.
#[derive(Clone)]
pub struct Lease(Arc<LeaseShared>);

struct LeaseShared {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    machines: u8,
    shared: Mutex<LeaseState>,
}

struct LeaseState {
    machine: LeaseMachine,
    /// The right with our present epoch.
    right: Option<Arc<Right>>,
    /// The claim will be forced after the first look.
    force: bool,
    ends: bool,
    /// A request has changed.
    poked: bool,
    waiters: WaiterList,
}

impl Lease {
    /// Creates an instance of the machine with this name. The work is done by [`run`](Self::run).
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: there is no arbiter, or no machine with this name. Errors of the device.
    pub async fn open(device: Arc<dyn Device>, name: &str, clock: Arc<dyn Clock>) -> Result<Self> {
        let header = arbiter::header(&*device).await?;
        let Some(me) = header.machines().find(|machine| header.name(*machine) == name) else {
            let text = format!("no machine of it is called {name}: they are {}", header.names.join(", "));
            return Err(Error::new(Kind::Unsupported, text).of(device.name()));
        };
        let mut random = [0; 24];
        clock.entropy(&mut random);
        let (instance, seed) = random.split_at(16);
        let instance = instance.try_into().expect("16 bytes");
        let seed = u64::from_le_bytes(seed.try_into().expect("8 bytes"));
        let machines = header.names.len() as u8;
        let shared = LeaseState {
            machine: LeaseMachine::new(header, me, instance, seed),
            right: None,
            force: false,
            ends: false,
            poked: false,
            waiters: WaiterList::default(),
        };
        Ok(Self(Arc::new(LeaseShared { device, clock, machines, shared: Mutex::new(shared) })))
    }

    /// Does the work, until the lease is lost or [`end`](Self::end) was called. The caller must poll it continually, on
    /// any runtime. It has the reads of one look in flight (both copies of the header and of each slot), or one write.
    /// If it is dropped, the lease is not renewed.
    pub async fn run(self) {
        loop {
            let next = {
                let mut shared = self.shared();
                shared.poked = false;
                match shared.ends {
                    true => LeaseAction::Over,
                    false => shared.machine.next(self.0.clock.now()),
                }
            };
            match next {
                LeaseAction::Look => self.look().await,
                LeaseAction::Write(at, bytes) => self.write(at, bytes).await,
                LeaseAction::Wait(until) => self.wait(until).await,
                LeaseAction::Over => return,
            }
        }
    }

    /// Returns the present state.
    pub fn state(&self) -> State {
        self.shared().machine.state(self.0.clock.now())
    }

    /// Returns the present problem, for people.
    pub fn trouble(&self) -> Option<String> {
        self.shared().machine.trouble().map(str::to_owned)
    }

    /// Returns whether the records of all machines have been read, and there is no problem now.
    pub fn knows(&self) -> bool {
        let shared = self.shared();
        shared.machine.has_looked() && shared.machine.trouble().is_none()
    }

    /// Returns the name and the epoch of the primary with the largest epoch, alive or not.
    pub fn last(&self) -> Option<(String, u64)> {
        self.shared().machine.last()
    }

    /// Returns the largest epoch with which this machine was the primary; 0: none is known.
    pub fn held_by(&self, name: &str) -> u64 {
        self.shared().machine.helds().find(|(of, _)| of == name).map_or(0, |(_, held)| held)
    }

    /// The same as [`last`](Self::last), for all machines but this one.
    pub fn last_but(&self, name: &str) -> Option<(String, u64)> {
        self.shared()
            .machine
            .helds()
            .filter(|(of, held)| of != name && *held > 0)
            .max_by_key(|(_, held)| *held)
    }

    /// Returns an epoch of this machine, larger than `floor` and all known ones. No other machine ever gets it.
    pub fn next_epoch(&self, floor: u64) -> u64 {
        self.shared().machine.next_epoch(floor)
    }

    /// Claims the lease, and waits without limit until no other machine has it. The epoch is larger than `floor`, which
    /// must be the largest epoch on the archive's worm. Dropping the future before it is ready stops the claim.
    ///
    /// # Errors
    /// [`Kind::Reserved`]: the lease was lost for ever, with the reason.
    pub async fn claim(&self, floor: u64) -> Result<Arc<Right>> {
        self.claims(floor, false).await
    }

    /// The same, without waiting for the present primary to expire: the caller guarantees that it is dead. If it is
    /// alive, both may write until its next look, up to a quarter of a period.
    ///
    /// # Errors
    /// The same.
    pub async fn force(&self, floor: u64) -> Result<Arc<Right>> {
        self.claims(floor, true).await
    }

    /// Releases the lease, or stops claiming. Returns when the arbiter shows that others may have it. Before that all
    /// guards must have [given up](nine_block::Guard::give_up) the right.
    pub async fn release(&self) {
        {
            let mut shared = self.shared();
            shared.end_right("the lease has been given back");
            shared.machine.wish(self.0.clock.now(), LeaseWish::Watch);
            shared.force = false;
            shared.poke();
        }
        self.until(|shared, _| shared.machine.is_idle().then_some(())).await;
    }

    /// The same for a machine that has written nothing with the right: the machine before it still counts as the last
    /// primary.
    pub async fn forgo(&self) {
        self.shared().machine.forgo();
        self.release().await;
    }

    /// Ends [`run`](Self::run) after the present operation. The lease is not released, but expires.
    pub fn end(&self) {
        let mut shared = self.shared();
        shared.ends = true;
        shared.poke();
    }

    async fn claims(&self, floor: u64, force: bool) -> Result<Arc<Right>> {
        let wish = ClaimGuard(self);
        {
            let mut shared = self.shared();
            shared.machine.wish(self.0.clock.now(), LeaseWish::Main(floor));
            match force && shared.machine.has_looked() {
                true => shared.machine.force(),
                false => shared.force = force,
            }
            shared.poke();
        }
        let result = self.until(|shared, now| match (shared.machine.state(now), &shared.right) {
            (State::Lost { why }, _) => Some(Err(Error::new(Kind::Reserved, why))),
            (State::Ours { .. }, Some(right)) => Some(Ok(right.clone())),
            _ => None,
        });
        let result = result.await;
        if result.is_ok() {
            std::mem::forget(wish);
        }
        result
    }

    async fn look(&self) {
        let device = &self.0.device;
        let calls: Vec<_> = (0..=self.0.machines)
            .map(|machine| [0, 1].map(|copy| device.read(arbiter::at(machine, copy), arbiter::PER)))
            .collect();
        let mut reads = Vec::with_capacity(calls.len());
        for [one, two] in calls {
            reads.push([one.await, two.await]);
        }
        self.tell(|machine, now| machine.looked(now, reads));
    }

    async fn write(&self, at: u64, bytes: Bytes) {
        let device = &self.0.device;
        let written = match device.write(at, bytes).await {
            // A write that a power cut of the arbiter can undo was never acknowledged.
            Ok(_) => device.flush().await.map(drop),
            Err(error) => Err(error),
        };
        self.tell(|machine, now| machine.wrote(now, written));
    }

    async fn wait(&self, until: Duration) {
        let mut sleep = self.0.clock.sleep_until(until);
        poll_fn(|cx| {
            let mut shared = self.shared();
            if shared.poked || sleep.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            shared.waiters.add(cx.waker());
            Poll::Pending
        })
        .await;
    }

    fn tell(&self, what: impl FnOnce(&mut LeaseMachine, Duration)) {
        let (now, clock) = (self.0.clock.now(), self.0.clock.clone());
        let mut shared = self.shared();
        let shared = &mut *shared;
        what(&mut shared.machine, now);
        if shared.force && shared.machine.has_looked() {
            shared.machine.force();
            shared.force = false;
        }
        match shared.machine.state(now) {
            State::Ours { epoch, until } => {
                let new = || Arc::new(Right::new(epoch, Arc::new(move || clock.now())));
                shared.right.get_or_insert_with(new).extend(until);
            }
            State::Lost { why } => shared.end_right(&why),
            _ => {}
        }
        shared.waiters.wake();
    }

    async fn until<T>(&self, mut ended: impl FnMut(&mut LeaseState, Duration) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut shared = self.shared();
            match ended(&mut shared, self.0.clock.now()) {
                Some(result) => Poll::Ready(result),
                None => {
                    shared.waiters.add(cx.waker());
                    Poll::Pending
                }
            }
        })
        .await
    }

    fn shared(&self) -> MutexGuard<'_, LeaseState> {
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A claim that is waited for. Dropping it stops the claim.
struct ClaimGuard<'a>(&'a Lease);

impl Drop for ClaimGuard<'_> {
    fn drop(&mut self) {
        let mut shared = self.0.shared();
        shared.machine.wish(self.0.0.clock.now(), LeaseWish::Watch);
        shared.end_right("nobody has waited for the lease");
        shared.poke();
    }
}

impl LeaseState {
    fn end_right(&mut self, why: &str) {
        if let Some(right) = self.right.take() {
            right.lose(why);
        }
    }

    fn poke(&mut self) {
        self.poked = true;
        self.waiters.wake();
    }
}
