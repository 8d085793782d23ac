//! A link with a rate and loss between two Ethernets: the delay box for frames of any kind.
//!
//! In: two interfaces in a name space of their own, each with the MAC address of the card at the other one's far end;
//! the properties of the link. Out: frames, carried in both directions. A thread is the link.
//!
//! Always holds: no bits leave faster than the rate, and frames arrive at most once and in order.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nine_net::ether::{Ether, Mac, Packet, Room};
use nine_net::nonet::Link;
use nine_net::rt;
use nine_sim::Rng;
use nine_sim::delay::{Side, Way};

use crate::far::RemoteLink;
use crate::place::CpuPlacement;

/// Types of frames that are carried: AoE, IP and ARP.
const KINDS: [u16; 3] = [nine_aoe::frame::ETHER_TYPE, 0x0800, 0x0806];
/// Size of the Ethernet header, bytes.
const HEADER: usize = 14;
/// Frames in one receive or send call.
const FRAMES_PER_CALL_MAX: usize = 32;
/// Longest sleep of the thread between checks for the end.
const LOOK: Duration = Duration::from_millis(100);
/// Minimum time between two wake-ups for delivery. Frames that are due in between are delivered together, like with a
/// card's interrupts.
const APART: Duration = Duration::from_micros(50);

/// A running link; dropping it cuts the link.
pub struct EmulatedLink {
    shared: Arc<EmulatedLinkShared>,
    pump: Option<JoinHandle<()>>,
    bell: Option<JoinHandle<()>>,
}

struct EmulatedLinkShared {
    way: Mutex<(Way, u64)>,
    /// New properties have been set.
    turned: AtomicBool,
    over: AtomicBool,
    /// When to wake the pump, and its waker.
    alarm: Mutex<Option<(Instant, Waker)>>,
    set: Condvar,
}

impl EmulatedLink {
    /// Joins two interfaces of the near side of `far`; `macs` are the addresses of their far ends.
    pub fn new(far: Arc<RemoteLink>, ends: [String; 2], macs: [Mac; 2]) -> io::Result<Self> {
        let shared = Arc::new(EmulatedLinkShared {
            way: Mutex::new((Way::default(), 0)),
            turned: AtomicBool::new(true),
            over: AtomicBool::new(false),
            alarm: Mutex::new(None),
            set: Condvar::new(),
        });
        let (ours, (tell, told)) = (shared.clone(), std::sync::mpsc::channel());
        let pump = std::thread::Builder::new().name("lane".into()).spawn(move || {
            let carry = || {
                CpuPlacement::Free.arrange(&[])?;
                run_first();
                rt::block_on(async |_| {
                    let lines = FrameForwarder::open(&ends, macs);
                    // The send fails only if the creator is gone.
                    let _ = tell.send(lines.as_ref().map(drop).map_err(|error| error.to_string()));
                    if let Ok(mut lines) = lines {
                        poll_fn(|cx| lines.turn(cx, &ours)).await;
                    }
                })
            };
            if let Err(error) = far.run(Side::Here, carry).and_then(|ended| ended) {
                eprintln!("  a lane has ended: {error}");
            }
        })?;
        let ours = shared.clone();
        let bell = std::thread::Builder::new().name("bell".into()).spawn(move || ours.ring())?;
        let lane = Self { shared, pump: Some(pump), bell: Some(bell) };
        told.recv().map_err(io::Error::other)?.map_err(io::Error::other)?;
        Ok(lane)
    }

    /// Sets the properties of both directions and restarts the random losses from the seed.
    pub fn set(&self, way: Way, seed: u64) {
        *locked(&self.shared.way) = (way, seed);
        self.shared.turned.store(true, Ordering::Release);
    }
}

impl Drop for EmulatedLink {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Release);
        // The threads check regularly, and panic only for broken invariants.
        for thread in [&mut self.pump, &mut self.bell] {
            thread.take().map(JoinHandle::join);
        }
    }
}

impl EmulatedLinkShared {
    /// Wakes the pump in time. The runtime's own timers have a resolution of milliseconds.
    fn ring(&self) {
        // If this fails, the link is as punctual as the machine allows.
        let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        let _ = CpuPlacement::Free.arrange(&[]);
        run_first();
        let (mut alarm, mut rung) = (locked(&self.alarm), Instant::now());
        loop {
            let now = Instant::now();
            let at = alarm.as_ref().map_or(now + LOOK, |(at, _)| (*at).max(rung + APART));
            let left = at.saturating_duration_since(now);
            let over = self.over.load(Ordering::Acquire);
            if (over || left.is_zero())
                && let Some((_, waker)) = alarm.take()
            {
                drop(alarm);
                rung = now;
                waker.wake();
                alarm = locked(&self.alarm);
            } else if over {
                return;
            } else {
                let waited = self.set.wait_timeout(alarm, left.min(LOOK));
                alarm = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
        }
    }
}

/// Both directions, each with its outgoing interface.
struct FrameForwarder {
    lines: [LinkDirection; 2],
    rooms: Vec<Vec<u8>>,
    /// Sockets by interface, then by type of frame.
    ends: [Vec<Ether>; 2],
    macs: [Mac; 2],
}

impl FrameForwarder {
    fn open(ends: &[String; 2], macs: [Mac; 2]) -> io::Result<Self> {
        let open = |end: &String| -> io::Result<Vec<Ether>> {
            KINDS.iter().map(|kind| Ok(Ether::open(end, *kind)?.hearing_all())).collect()
        };
        let ends = [open(&ends[0])?, open(&ends[1])?];
        let rooms = vec![vec![0; ends[0][0].mtu()]; FRAMES_PER_CALL_MAX];
        Ok(Self { lines: [LinkDirection::new(), LinkDirection::new()], rooms, ends, macs })
    }

    /// Carries all pending frames. Ready when the link has ended.
    fn turn(&mut self, cx: &mut Context<'_>, shared: &EmulatedLinkShared) -> Poll<()> {
        if shared.over.load(Ordering::Acquire) {
            return Poll::Ready(());
        }
        if shared.turned.swap(false, Ordering::Acquire) {
            let (way, seed) = *locked(&shared.way);
            let mut rng = Rng::new(seed);
            self.lines.iter_mut().for_each(|line| (line.way, line.rng) = (way, rng.fork()));
        }
        loop {
            let mut more = false;
            for from in [0, 1] {
                for kind in 0..KINDS.len() {
                    more |= self.collect(cx, from, kind);
                }
                more |= self.deliver(cx, from);
            }
            if !more {
                break;
            }
        }
        let next = self.lines.iter().filter_map(LinkDirection::next).min();
        // Wake up at least this often, to check for the end.
        let at = next.unwrap_or_else(|| Instant::now() + LOOK);
        let mut alarm = locked(&shared.alarm);
        let is_sooner = alarm.as_ref().is_none_or(|(other, _)| at < *other);
        *alarm = Some((at, cx.waker().clone()));
        drop(alarm);
        if is_sooner {
            shared.set.notify_one();
        }
        Poll::Pending
    }

    fn collect(&mut self, cx: &mut Context<'_>, from: usize, kind: usize) -> bool {
        let mut rooms: Vec<Room<'_>> = self.rooms.iter_mut().map(|room| Room::new(room)).collect();
        let Poll::Ready(Ok(n)) = self.ends[from][kind].poll_recv_many(cx, &mut rooms) else { return false };
        let now = Instant::now();
        for room in &rooms[..n] {
            if let Some((len, _)) = room.came {
                self.lines[from].put(now, kind, &room.bytes[..len]);
            }
        }
        true
    }

    fn deliver(&mut self, cx: &mut Context<'_>, from: usize) -> bool {
        let (line, to) = (&mut self.lines[from], 1 - from);
        let now = Instant::now();
        // Send frames of one type in one call.
        let Some(kind) = line.on_the_way.front().map(|frame| frame.kind) else { return false };
        let due = line
            .on_the_way
            .iter()
            .take(FRAMES_PER_CALL_MAX)
            .take_while(|f| f.at <= now && f.kind == kind)
            .count();
        if due == 0 {
            return false;
        }
        let frames = line.on_the_way.iter().take(due);
        let packets: Vec<Packet<'_>> =
            frames.map(|frame| Packet { to: self.macs[to], parts: [&frame.bytes, &[]] }).collect();
        let sent = match self.ends[to][kind].poll_send_many(cx, &packets) {
            Poll::Ready(Ok(sent)) => sent.clamp(1, due),
            // A frame that the interface refuses is lost, as on any link.
            Poll::Ready(Err(_)) => 1,
            Poll::Pending => return false,
        };
        line.on_the_way.drain(..sent);
        true
    }
}

/// One direction.
struct LinkDirection {
    way: Way,
    rng: Rng,
    /// Time at which the last bit of all admitted frames has left.
    free: Instant,
    on_the_way: VecDeque<DelayedFrame>,
}

struct DelayedFrame {
    /// Time of arrival.
    at: Instant,
    kind: usize,
    bytes: Vec<u8>,
}

impl LinkDirection {
    fn new() -> Self {
        Self { way: Way::default(), rng: Rng::new(0), free: Instant::now(), on_the_way: VecDeque::new() }
    }

    /// Accepts a frame: it is lost, or will arrive.
    fn put(&mut self, now: Instant, kind: usize, bytes: &[u8]) {
        // The resolution of a float.
        const FLOAT_STEPS: u64 = 1 << 53;
        let lost = ((self.rng.bits() % FLOAT_STEPS) as f64) < self.way.loss * FLOAT_STEPS as f64;
        if lost || self.on_the_way.len() >= self.way.queue {
            return;
        }
        let bits = (8 * (bytes.len() + HEADER)) as u64;
        let takes = self.way.rate.map_or(0, |rate| (bits * 1_000_000_000).div_ceil(rate.max(1)));
        self.free = self.free.max(now) + Duration::from_nanos(takes);
        // A shorter delay must not reorder frames.
        let last = self.on_the_way.back().map_or(now, |frame| frame.at);
        let at = (self.free + self.way.delay).max(last);
        self.on_the_way.push_back(DelayedFrame { at, kind, bytes: bytes.to_vec() });
    }

    fn next(&self) -> Option<Instant> {
        Some(self.on_the_way.front()?.at)
    }
}

/// Raises the priority of the calling thread, if allowed; else the link's timing is less precise.
fn run_first() {
    let _ = rustix::process::setpriority_process(Some(rustix::thread::gettid()), -20);
}

fn locked<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Returns the arrival times of `frames` frames with 1250 bytes including the header, in microseconds.
    fn arrivals(way: Way, frames: usize) -> Vec<u128> {
        let (mut line, now) = (LinkDirection { way, ..LinkDirection::new() }, Instant::now());
        line.free = now;
        (0..frames).for_each(|_| line.put(now, 0, &[0; 1250 - HEADER]));
        line.on_the_way.iter().map(|frame| (frame.at - now).as_micros()).collect()
    }

    #[test]
    fn bits_leave_one_after_the_other_at_the_rate() {
        let way = Way { delay: MS, rate: Some(100_000_000), ..Way::default() };
        assert_eq!(arrivals(way, 3), [1_100, 1_200, 1_300]);
        assert_eq!(arrivals(Way { queue: 2, ..way }, 3), [1_100, 1_200]);
        assert_eq!(arrivals(Way { rate: None, ..way }, 2), [1_000, 1_000]);
    }

    #[test]
    fn chance_loses_its_share_and_the_same_frames_each_time() {
        let way = Way { loss: 0.25, queue: usize::MAX, rate: Some(1_000_000_000), ..Way::default() };
        let came = arrivals(way, 10_000);
        assert!((7_200..7_800).contains(&came.len()), "{}", came.len());
        assert_eq!(came, arrivals(way, 10_000));
        assert!(arrivals(Way { loss: 1.0, ..way }, 100).is_empty());
    }
}
