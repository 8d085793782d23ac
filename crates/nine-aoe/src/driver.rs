//! What runs the machines: links, a clock, whoever calls from other threads.
//!
//! In: links, a target's address or a device. Out: a [`Disk`], which is a device, with the [`DiskDriver`] that somebody
//! runs; an [`Export`] with its [`ExportDriver`]; targets that were [`found`](discover).
//!
//! Always holds: nobody is told while a lock is held; a driver that is dropped ends what waits.

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

/// Turns of a driver's loop before others on its core have theirs.
const TURNS: usize = 8;
/// Between two looks at the links, whether they have gone or take longer or shorter frames by now.
const CHECKS: Duration = Duration::from_secs(2);
/// A driver that comes so much later than its deadline was not run: what has come meanwhile is heard before anything is
/// taken for lost.
const LATE: Duration = Duration::from_millis(100);

/// A target's disk. When it is dropped, its driver ends, and with it what is under way.
pub struct Disk {
    shared: Arc<Shared>,
    target: Address,
}

struct Shared {
    machine: Mutex<Initiator>,
    /// The driver's, and those of whoever waits for events.
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

    /// Does something with the machine, tells who is to be told, and wakes the driver.
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

/// Looks for a target on these links. Operations wait until it answers, for as long as patience lasts.
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
    /// Where it is.
    pub fn state(&self) -> State {
        lock(&self.shared.machine).state().clone()
    }

    /// What the target says of itself, once it has.
    pub fn identify(&self) -> Option<Identify> {
        lock(&self.shared.machine).identify().cloned()
    }

    /// What has happened, in frames.
    pub fn counts(&self) -> Counts {
        lock(&self.shared.machine).counts()
    }

    /// The next thing that has happened. One task at a time waits for it.
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

    /// Asks about the lists of the target: see [`Initiator::ask`].
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

/// Runs a [`Disk`]: receives, sends, waits. It ends when the disk has been dropped, or with the error of the last link.
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
            // One that ends too early is only looked at again.
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
