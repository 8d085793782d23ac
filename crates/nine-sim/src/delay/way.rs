//! One direction of a link, without a clock: it decides when packets arrive, and which are dropped.
//!
//! In: packets with their send times, in order. Out: the packets that have arrived by a given time. Always holds: bits
//! leave at most at [`Way::rate`]; a packet arrives [`Way::delay`] or more after its last bit has left; each packet
//! either arrives or is counted as dropped.

use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use crate::rng::Rng;

/// Properties of one direction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Time from the departure of a packet's last bit to its arrival.
    pub delay: Duration,
    /// Rate in bits per second, IP headers included. `None`: no limit.
    pub rate: Option<u64>,
    /// Queue length in packets. A packet that finds the queue full is dropped.
    pub queue: usize,
    /// Share of packets lost at random.
    pub loss: f64,
    /// Share of packets that are delayed further, so that others overtake them.
    pub reorder: f64,
    /// Additional delay of those packets.
    pub late: Duration,
}

/// A direction without delay or limit, with the queue length of Linux interfaces.
impl Default for Way {
    fn default() -> Self {
        Self { delay: Duration::ZERO, rate: None, queue: 1000, loss: 0.0, reorder: 0.0, late: Duration::ZERO }
    }
}

/// Packet counters of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Packets accepted by the link.
    pub packets: u64,
    /// Their bytes, IP headers included.
    pub bytes: u64,
    /// Packets lost at random.
    pub lost: u64,
    /// Packets dropped because the queue was full.
    pub full: u64,
}

/// Maximum number of packets in flight, for any shape: 10 Gbit/s for 150 ms. Further packets are dropped.
const ON_THE_WAY: usize = 1 << 17;

/// Decides when packets arrive.
pub(super) struct Line {
    pub(super) way: Way,
    pub(super) counts: Counts,
    rng: Rng,
    /// When the link is free for the next packet.
    free: Duration,
    /// Departure times of the queued packets.
    leaving: VecDeque<Duration>,
}

impl Line {
    pub(super) fn new(way: Way, rng: Rng) -> Self {
        Self { way, rng, counts: Counts::default(), free: Duration::ZERO, leaving: VecDeque::new() }
    }

    /// Takes the shape and random stream of `other`. Packets that are already accepted are not affected.
    pub(super) fn reshape(&mut self, other: Self) {
        (self.way, self.rng) = (other.way, other.rng);
    }

    /// Accepts a packet and returns its arrival time, or `None` if it is dropped.
    pub(super) fn admit(&mut self, now: Duration, bytes: usize) -> Option<Duration> {
        if self.happens(self.way.loss) {
            self.counts.lost += 1;
            return None;
        }
        while self.leaving.front().is_some_and(|left| *left <= now) {
            self.leaving.pop_front();
        }
        if self.leaving.len() >= self.way.queue {
            self.counts.full += 1;
            return None;
        }
        if let Some(rate) = self.way.rate {
            self.free = self.free.max(now) + time_of(bytes, rate);
            self.leaving.push_back(self.free);
        }
        self.counts.packets += 1;
        self.counts.bytes += bytes as u64;
        let late = if self.happens(self.way.reorder) { self.way.late } else { Duration::ZERO };
        Some(self.free.max(now) + self.way.delay + late)
    }

    /// Returns how long a packet that arrives now waits until the link is free.
    pub(super) fn wait(&self, now: Duration) -> Duration {
        self.free.saturating_sub(now)
    }

    fn happens(&mut self, share: f64) -> bool {
        // The number of values that a float in 0..1 distinguishes.
        const STEPS: u64 = 1 << 53;
        share > 0.0 && (((self.rng.bits() % STEPS) as f64) < share * STEPS as f64)
    }
}

/// Returns the time that this many bytes take at a rate, rounded up.
fn time_of(bytes: usize, rate: u64) -> Duration {
    let nanos = (bytes as u128 * 8 * 1_000_000_000).div_ceil(u128::from(rate.max(1)));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// One direction, with its packets in flight.
pub(super) struct Pipe {
    pub(super) line: Line,
    on_the_way: BinaryHeap<Packet>,
    next: u64,
}

struct Packet {
    arrives: Duration,
    /// Breaks ties, so that packets with the same arrival time stay in order.
    number: u64,
    bytes: Vec<u8>,
}

impl Pipe {
    pub(super) fn new(line: Line) -> Self {
        Self { line, on_the_way: BinaryHeap::new(), next: 0 }
    }

    pub(super) fn put(&mut self, now: Duration, bytes: &[u8]) {
        if self.on_the_way.len() >= ON_THE_WAY {
            self.line.counts.full += 1;
            return;
        }
        let Some(arrives) = self.line.admit(now, bytes.len()) else { return };
        self.on_the_way.push(Packet { arrives, number: self.next, bytes: bytes.to_vec() });
        self.next += 1;
    }

    /// Returns the next packet that has arrived by now.
    pub(super) fn take(&mut self, now: Duration) -> Option<Vec<u8>> {
        let arrived = self.on_the_way.peek()?.arrives <= now;
        if arrived { self.on_the_way.pop().map(|packet| packet.bytes) } else { None }
    }

    /// Returns the arrival time of the next packet.
    pub(super) fn next(&self) -> Option<Duration> {
        self.on_the_way.peek().map(|packet| packet.arrives)
    }
}

/// The greatest packet is the one that arrives first.
impl Ord for Packet {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.arrives, other.number).cmp(&(self.arrives, self.number))
    }
}

impl PartialOrd for Packet {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Packet {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Packet {}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn pipe(way: Way) -> Pipe {
        Pipe::new(Line::new(way, Rng::new(1)))
    }

    /// Returns all packets in order of arrival: first byte, and time in microseconds.
    fn arrivals(pipe: &mut Pipe) -> Vec<(u8, u128)> {
        let next = |pipe: &mut Pipe| {
            let now = pipe.next()?;
            let early = now.checked_sub(Duration::from_nanos(1)).and_then(|before| pipe.take(before));
            assert_eq!(early, None, "before it has arrived");
            pipe.take(now).map(|packet| (packet[0], now.as_micros()))
        };
        std::iter::from_fn(|| next(pipe)).collect()
    }

    #[test]
    fn a_packet_arrives_when_the_delay_has_passed() {
        let mut pipe = pipe(Way { delay: 25 * MS, ..Way::default() });
        pipe.put(Duration::ZERO, &[1; 1500]);
        pipe.put(3 * MS, &[2; 1500]);
        pipe.put(3 * MS, &[3; 40]);
        assert_eq!(arrivals(&mut pipe), [(1, 25_000), (2, 28_000), (3, 28_000)]);
        assert_eq!(pipe.next(), None);
    }

    #[test]
    fn bits_leave_one_after_the_other_at_the_rate() {
        // 1,250 bytes are 10,000 bits: a tenth of a millisecond.
        let mut pipe = pipe(Way { delay: MS, rate: Some(100_000_000), ..Way::default() });
        for n in 0..3 {
            pipe.put(Duration::ZERO, &[n; 1250]);
        }
        // The link is idle when this packet comes.
        pipe.put(5 * MS, &[3; 1250]);
        assert_eq!(arrivals(&mut pipe), [(0, 1_100), (1, 1_200), (2, 1_300), (3, 6_100)]);
        // One byte at 24 bit/s takes a third of a second, rounded up to nanoseconds.
        assert_eq!(time_of(1, 24), Duration::from_nanos(333_333_334));
        assert_eq!(time_of(usize::MAX, 0), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn what_finds_the_queue_full_is_dropped_until_something_has_left() {
        let mut pipe = pipe(Way { delay: 100 * MS, rate: Some(100_000_000), queue: 2, ..Way::default() });
        for n in 0..4 {
            pipe.put(Duration::ZERO, &[n; 1250]);
        }
        // The first packet has left: it is in flight, but no longer in the queue.
        pipe.put(MS / 10, &[4; 1250]);
        pipe.put(MS / 10, &[5; 1250]);
        let counts = Counts { packets: 3, bytes: 3 * 1250, lost: 0, full: 3 };
        assert_eq!(pipe.line.counts, counts);
        assert_eq!(arrivals(&mut pipe), [(0, 100_100), (1, 100_200), (4, 100_300)]);
    }

    #[test]
    fn chance_loses_its_share_and_the_same_packets_each_time() {
        let run = |loss| {
            let mut pipe = pipe(Way { loss, ..Way::default() });
            for n in 0..10_000u32 {
                pipe.put(MS * n, &[n as u8; 100]);
            }
            (pipe.line.counts.lost, arrivals(&mut pipe))
        };
        let (lost, came) = run(0.25);
        assert!((2_300..2_700).contains(&lost), "{lost}");
        assert_eq!((lost, came.clone()), run(0.25));
        assert_eq!(came.len() as u64 + lost, 10_000);
        assert_eq!(run(0.0).0, 0);
        assert_eq!(run(1.0), (10_000, Vec::new()));
    }

    #[test]
    fn a_late_packet_is_overtaken_and_none_is_lost() {
        let mut pipe = pipe(Way { delay: MS, reorder: 0.1, late: 5 * MS, ..Way::default() });
        for n in 0..100u8 {
            pipe.put(MS * u32::from(n), &[n]);
        }
        let came: Vec<u8> = arrivals(&mut pipe).into_iter().map(|(n, _)| n).collect();
        let overtaken = came.windows(2).filter(|pair| pair[0] > pair[1]).count();
        assert!((1..30).contains(&overtaken), "{came:?}");
        let mut sorted = came.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..100).collect::<Vec<u8>>());
    }

    #[test]
    fn a_link_without_a_rate_holds_so_many_packets_and_no_more() {
        let mut pipe = pipe(Way { delay: MS, ..Way::default() });
        for _ in 0..ON_THE_WAY + 5 {
            pipe.put(Duration::ZERO, &[0; 1]);
        }
        assert_eq!((pipe.line.counts.packets, pipe.line.counts.full), (ON_THE_WAY as u64, 5));
    }
}
