//! The lease: which of two or more machines is the main one of an archive, agreed on one small disk that all of them
//! reach (docs/lease.md).
//!
//! In: the disk, a clock, wishes. Out: a [`Right`] to write, which [`Guard`](nine_block::Guard)s ask; it ends by itself
//! when the disk does not answer, and for ever when another machine has it.
//!
//! Always holds: of all rights that the lives of all machines have from one arbiter, one at most is valid.

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

use crate::jobs::Waiters;
pub use arbiter::{Arbiter, format, reset, shown};
use machine::{Machine, Next, Wish};

/// The period that is right for most: a dead main one has a successor after about five seconds.
pub const PERIOD: Duration = Duration::from_secs(4);

/// The time, and chance.
pub trait Clock: Send + Sync + 'static {
    /// Since any moment. It goes on while the machine sleeps (`CLOCK_BOOTTIME`), never goes back, and its pace is right
    /// to a tenth.
    fn now(&self) -> Duration;

    /// Ends when it is so late, or somewhat later.
    fn sleep_until(&self, at: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>>;

    /// Unpredictable bytes.
    fn entropy(&self, bytes: &mut [u8]);
}

/// What is known of the lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// It is not ours.
    Watching {
        /// Who was the main one last and has not released it, if somebody has.
        main: Option<Main>,
    },
    /// It is to be.
    Claiming {
        /// The epoch that it will be.
        epoch: u64,
    },
    /// It is ours, or was until then and comes again if nobody else takes it.
    Ours {
        /// Larger than all before.
        epoch: u64,
        /// By our clock.
        until: Duration,
    },
    /// It was ours, or was to be, and never will be again in this life.
    Lost {
        /// For people.
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
    /// How long nothing new was heard of it.
    pub silent: Duration,
    /// That was a period or more: it is not the main one any more.
    pub is_gone: bool,
}

/// A life of a machine at an arbiter. Cheap to clone.
#[derive(Clone)]
pub struct Lease(Arc<Inner>);

struct Inner {
    device: Arc<dyn Device>,
    clock: Arc<dyn Clock>,
    machines: u8,
    shared: Mutex<Shared>,
}

struct Shared {
    machine: Machine,
    /// Of the epoch that is ours.
    right: Option<Arc<Right>>,
    /// To be forced at the first look.
    force: bool,
    ends: bool,
    /// Somebody has wished something.
    poked: bool,
    waiters: Waiters,
}

impl Lease {
    /// Begins a life of the machine of this name. What it does is done by [`run`](Self::run).
    ///
    /// # Errors
    /// [`Kind::Unsupported`]: there is no arbiter, or no machine of this name. What the device says.
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
        let shared = Shared {
            machine: Machine::new(header, me, instance, seed),
            right: None,
            force: false,
            ends: false,
            poked: false,
            waiters: Waiters::default(),
        };
        Ok(Self(Arc::new(Inner { device, clock, machines, shared: Mutex::new(shared) })))
    }

    /// Does all the work, until the lease is lost or [`end`](Self::end) was called. To be polled all the time,
    /// on whatever runtime; one operation of a look for each machine is under way at a time, or one write. Dropped,
    /// nothing is renewed.
    pub async fn run(self) {
        loop {
            let next = {
                let mut shared = self.shared();
                shared.poked = false;
                match shared.ends {
                    true => Next::Over,
                    false => shared.machine.next(self.0.clock.now()),
                }
            };
            match next {
                Next::Look => self.look().await,
                Next::Write(at, bytes) => self.write(at, bytes).await,
                Next::Wait(until) => self.wait(until).await,
                Next::Over => return,
            }
        }
    }

    /// What is known now.
    pub fn state(&self) -> State {
        self.shared().machine.state(self.0.clock.now())
    }

    /// What hinders it, for people.
    pub fn trouble(&self) -> Option<String> {
        self.shared().machine.trouble().map(str::to_owned)
    }

    /// Whether all machines' records have been read, and nothing hinders that now.
    pub fn knows(&self) -> bool {
        let shared = self.shared();
        shared.machine.has_looked() && shared.machine.trouble().is_none()
    }

    /// Who has been the main one with the largest epoch, alive or not: its name, and the epoch.
    pub fn last(&self) -> Option<(String, u64)> {
        self.shared().machine.last()
    }

    /// The largest epoch with which the machine of this name has been the main one; 0: none that is known.
    pub fn held_by(&self, name: &str) -> u64 {
        self.shared().machine.helds().find(|(of, _)| of == name).map_or(0, |(_, held)| held)
    }

    /// The same as [`last`](Self::last), of all machines but this one.
    pub fn last_but(&self, name: &str) -> Option<(String, u64)> {
        self.shared()
            .machine
            .helds()
            .filter(|(of, held)| of != name && *held > 0)
            .max_by_key(|(_, held)| *held)
    }

    /// An epoch of this machine, larger than all that are known and than this one; nobody else ever has it.
    pub fn next_epoch(&self, floor: u64) -> u64 {
        self.shared().machine.next_epoch(floor)
    }

    /// Becomes the main one as soon as nobody else is, however long that may be; dropped, it does not any more, unless
    /// it is. The epoch is larger than `floor`, which is the largest that the archive's worm knows.
    ///
    /// # Errors
    /// [`Kind::Reserved`]: it has been lost for ever, and why.
    pub async fn claim(&self, floor: u64) -> Result<Arc<Right>> {
        self.claims(floor, false).await
    }

    /// The same at once, though another was the main one a moment ago: whoever calls this answers for its being dead.
    /// If it is not, both may write until it looks again, up to a quarter of a period.
    ///
    /// # Errors
    /// The same.
    pub async fn force(&self, floor: u64) -> Result<Arc<Right>> {
        self.claims(floor, true).await
    }

    /// Gives the lease back, or stops claiming; ends when it is known that others may have it. Before that all guards
    /// have [given up](nine_block::Guard::give_up) the right.
    pub async fn release(&self) {
        {
            let mut shared = self.shared();
            shared.end_right("the lease has been given back");
            shared.machine.wish(self.0.clock.now(), Wish::Watch);
            shared.force = false;
            shared.poke();
        }
        self.until(|shared, _| shared.machine.is_idle().then_some(())).await;
    }

    /// The same for who could not begin, and has written nothing with the right: what others have is as new as it was.
    pub async fn forgo(&self) {
        self.shared().machine.forgo();
        self.release().await;
    }

    /// The end of [`run`](Self::run), when what is under way has ended. What is ours is not given back, and runs out.
    pub fn end(&self) {
        let mut shared = self.shared();
        shared.ends = true;
        shared.poke();
    }

    async fn claims(&self, floor: u64, force: bool) -> Result<Arc<Right>> {
        let wish = Wishes(self);
        {
            let mut shared = self.shared();
            shared.machine.wish(self.0.clock.now(), Wish::Main(floor));
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
            // What a cut of the arbiter's power takes back was never said.
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

    fn tell(&self, what: impl FnOnce(&mut Machine, Duration)) {
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

    async fn until<T>(&self, mut ended: impl FnMut(&mut Shared, Duration) -> Option<T>) -> T {
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

    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.0.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody waits to become the main one; dropped, nobody does.
struct Wishes<'a>(&'a Lease);

impl Drop for Wishes<'_> {
    fn drop(&mut self) {
        let mut shared = self.0.shared();
        shared.machine.wish(self.0.0.clock.now(), Wish::Watch);
        shared.end_right("nobody has waited for the lease");
        shared.poke();
    }
}

impl Shared {
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
