//! Drivers: they connect the state machines to links, a clock, and callers on other threads.
//!
//! In: links, and a target's address or a device. Out: a [`Disk`], which is a device, with its [`DiskDriver`], a future
//! that the caller polls; an [`Export`] with its [`ExportDriver`]; the targets that [`discover()`] finds.
//!
//! Always holds: completion callbacks and wakers run without the state machine's lock; a dropped [`DiskDriver`] fails
//! all pending operations.

mod discover;
mod export;

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_block::{Device, Error, Io, Kind, Result, Shape};
use nine_net::lock::{Mutex, lock};
use nine_net::nonet::Link;
use nine_net::{Clock, Timer};

use crate::carrier::{Carrier, all_gone};
use crate::frame::Address;
use crate::identify::Identify;
use crate::initiator::{Answer, Counts, Ended, Event, Initiator, Setup, State};

pub use discover::{Found, discover};
pub use export::{Export, ExportDriver, export};

/// Iterations of a driver's loop before it yields to other tasks of its core.
const TURNS: usize = 8;
/// Interval between checks whether the links are gone or have another MTU.
const CHECKS: Duration = Duration::from_secs(2);
/// A driver polled this long after its deadline was not scheduled in time. It first processes the received frames,
/// before it considers any frame lost.
const LATE: Duration = Duration::from_millis(100);

/// A target's disk. Dropping it ends its driver and fails its in-flight operations.
pub struct Disk {
    shared: Arc<Shared>,
    target: Address,
}

struct Shared {
    machine: Mutex<Initiator>,
    /// Wakers of the driver, and of the task that waits for events.
    waker: Mutex<Option<Waker>>,
    told: Mutex<Vec<Waker>>,
    closed: Mutex<bool>,
    clock: Arc<dyn Clock>,
}

impl Shared {
    fn wake(&self) {
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }

    /// Calls the initiator, completes ended operations without its lock, and wakes the driver.
    fn with<T>(&self, work: impl FnOnce(&mut Initiator, Duration) -> T) -> T {
        let now = self.clock.now();
        let mut machine = lock(&self.machine);
        let done = work(&mut machine, now);
        let ended: Vec<Ended> = std::iter::from_fn(|| machine.ended()).collect();
        drop(machine);
        ended.into_iter().for_each(Ended::tell);
        self.wake();
        done
    }
}

/// Connects to a target on these links. Operations wait until it answers, for at most `patience`.
pub fn disk<L: Link>(
    links: Vec<L>,
    target: Address,
    patience: Duration,
    clock: Arc<dyn Clock>,
) -> (Disk, DiskDriver<L>) {
    let mut seed = [0; 8];
    clock.entropy(&mut seed);
    let carriers: Vec<_> = links.into_iter().map(Carrier::new).collect();
    let setup = Setup { target, patience, seed: u64::from_ne_bytes(seed) };
    let ports = carriers.iter().map(Carrier::interface).collect();
    let machine = Mutex::new(Initiator::new(clock.now(), setup, ports));
    let shared =
        Shared { machine, waker: Mutex::default(), told: Mutex::default(), closed: Mutex::default(), clock };
    let shared = Arc::new(shared);
    (
        Disk { shared: shared.clone(), target },
        DiskDriver { shared, carriers, sleep: None, check_at: Duration::ZERO },
    )
}

impl Disk {
    /// Returns the state of the target.
    pub fn state(&self) -> State {
        lock(&self.shared.machine).state().clone()
    }

    /// Returns the target's identify data, or `None` before it has answered.
    pub fn identify(&self) -> Option<Identify> {
        lock(&self.shared.machine).identify().cloned()
    }

    /// Returns the frame counters.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.machine).counts()
    }

    /// Waits for the next event. Only one task may wait at a time; a second one replaces it.
    pub async fn event(&self) -> Event {
        std::future::poll_fn(|cx| {
            let mut machine = lock(&self.shared.machine);
            match machine.event() {
                Some(event) => Poll::Ready(event),
                None => {
                    *lock(&self.shared.told) = vec![cx.waker().clone()];
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Sends a mask, reserve or config request to the target: see [`Initiator::ask`].
    pub async fn ask(&self, command: u8, body: Vec<u8>) -> Result<Answer> {
        let answer = Arc::new(Mutex::new((None, None::<Waker>)));
        let told = answer.clone();
        self.shared.with(|machine, now| {
            let told = Box::new(move |result| {
                let waker = {
                    let mut answer = lock(&told);
                    answer.0 = Some(result);
                    answer.1.take()
                };
                waker.into_iter().for_each(Waker::wake);
            });
            machine.ask(now, command, body, told);
        });
        std::future::poll_fn(|cx| {
            let mut answer = lock(&answer);
            answer.1 = Some(cx.waker().clone());
            answer.0.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Device for Disk {
    fn shape(&self) -> Shape {
        lock(&self.shared.machine).shape()
    }

    fn submit(&self, io: Io) {
        if *lock(&self.shared.closed) {
            return io.end(Err(Error::new(Kind::Down, "its driver has ended").of(self.name())));
        }
        self.shared.with(|machine, now| machine.submit(now, io));
    }

    fn name(&self) -> String {
        format!("e{}", self.target)
    }

    fn status(&self) -> String {
        lock(&self.shared.machine).status()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        *lock(&self.shared.closed) = true;
        self.shared.wake();
    }
}

/// Runs a [`Disk`]: receives, sends, sleeps. It ends when the disk is dropped, or with an error when all links are
/// gone.
#[must_use = "nothing happens unless it is run"]
pub struct DiskDriver<L> {
    shared: Arc<Shared>,
    carriers: Vec<Carrier<L>>,
    sleep: Option<(Duration, Timer)>,
    check_at: Duration,
}

impl<L: Link> Future for DiskDriver<L> {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { shared, carriers, sleep, check_at } = self.get_mut();
        *lock(&shared.waker) = Some(cx.waker().clone());
        for turn in 1..=TURNS {
            if *lock(&shared.closed) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = all_gone(carriers) {
                return Poll::Ready(Err(error));
            }
            let now = shared.clock.now();
            let mut more = false;
            let mut machine = lock(&shared.machine);
            let mut happened = false;
            if *check_at <= now {
                *check_at = now + CHECKS;
                for (port, carrier) in carriers.iter_mut().enumerate() {
                    carrier.check().into_iter().for_each(|interface| machine.is_now(port, interface));
                    more |= carrier.gone.is_some();
                }
            }
            for (port, carrier) in carriers.iter_mut().enumerate() {
                more |= carrier.receive(cx, |from, packet| machine.receive(now, port, from, packet));
            }
            if more && turn < TURNS && machine.deadline() + LATE < now {
                continue;
            }
            while let Some(out) = machine.transmit(now) {
                carriers[out.port].put(out);
            }
            let deadline = machine.deadline();
            let ended: Vec<Ended> = std::iter::from_fn(|| machine.ended()).collect();
            happened |= machine.has_events();
            drop(machine);
            for carrier in carriers.iter_mut() {
                more |= carrier.send(cx);
            }
            more |= !ended.is_empty();
            ended.into_iter().for_each(Ended::tell);
            if happened {
                let told = std::mem::take(&mut *lock(&shared.told));
                told.into_iter().for_each(Waker::wake);
            }
            if more {
                continue;
            }
            // If a timer fires too early, the loop only runs once more.
            if sleep.as_ref().is_none_or(|(until, _)| *until > deadline || *until <= now) {
                *sleep = Some((deadline, shared.clock.sleep_until(deadline)));
            }
            match sleep.as_mut().map(|(_, timer)| timer.as_mut().poll(cx)) {
                Some(Poll::Ready(())) => *sleep = None,
                _ => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<L> Drop for DiskDriver<L> {
    fn drop(&mut self) {
        *lock(&self.shared.closed) = true;
        self.shared.with(|machine, now| machine.close(now, "its driver has ended"));
    }
}
