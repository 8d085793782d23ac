//! Read-ahead: predicts which blocks will be read next.
//!
//! In: reads that missed the cache, or that hit a block that was read ahead; other hits need no prediction. Out: blocks
//! to read now. Several streams can go through a device at the same time, each in the direction of rising addresses.
//!
//! Always holds: no block after the device's end is returned, and none twice for a stream, unless the stream went back.

use std::ops::Range;

/// Maximum number of streams of a device; the least recently used one is dropped.
const STREAMS: usize = 16;
/// Blocks by which reads of a stream may be out of order, because clients read in parallel.
const SLACK: u64 = 8;
/// Blocks of the first window.
const FIRST_WINDOW_BLOCKS: u64 = 4;

/// The read-ahead policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Ahead {
    /// No read-ahead.
    Never,
    /// As in Plan 9's file server: the second block of a stream starts reads of the next 300 KiB, one for each block,
    /// and then each read starts one more; at most 20 are in flight.
    Seed,
    /// A window that doubles, up to 8 MiB, each time its second half is reached. It is halved if blocks were evicted
    /// before they were used.
    #[default]
    Grow,
}

impl Ahead {
    /// Returns the maximum number of read-aheads in flight on a device.
    pub(super) fn at_once(self) -> usize {
        match self {
            Self::Never => 0,
            Self::Seed => 20,
            Self::Grow => 8,
        }
    }
}

/// The streams of a device.
pub(super) struct DeviceStreams {
    rule: Ahead,
    /// Blocks of the largest window.
    window: u64,
    streams: Vec<ReadStream>,
    clock: u64,
}

struct ReadStream {
    /// The next block to be read by the stream.
    next: u64,
    /// The end of the blocks that were read ahead.
    to: u64,
    window: u64,
    used: u64,
}

impl DeviceStreams {
    /// Creates an empty set; blocks have `block` bytes.
    pub(super) fn new(rule: Ahead, block: u64) -> Self {
        let window = match rule {
            Ahead::Never => 0,
            Ahead::Seed => (300 << 10) / block,
            Ahead::Grow => (8 << 20) / block,
        };
        Self { rule, window: window.max(1), streams: Vec::new(), clock: 0 }
    }

    /// Reports a read of `blocks`, some of which were `missing`. Returns the blocks to read ahead: before `end`, the
    /// end of the device, and at most `room`.
    pub(super) fn wanted(&mut self, blocks: Range<u64>, missing: bool, end: u64, room: u64) -> Range<u64> {
        if self.rule == Ahead::Never {
            return 0..0;
        }
        self.clock += 1;
        let is_near = |stream: &&mut ReadStream| stream.next.abs_diff(blocks.start) <= SLACK;
        let Some(stream) =
            self.streams.iter_mut().filter(is_near).min_by_key(|s| s.next.abs_diff(blocks.start))
        else {
            self.begin(blocks.end);
            return 0..0;
        };
        stream.used = self.clock;
        if blocks.end <= stream.next {
            return 0..0;
        }
        if missing && blocks.start < stream.to {
            stream.window = FIRST_WINDOW_BLOCKS.max(stream.window / 2);
        }
        stream.next = blocks.end;
        stream.to = stream.to.max(stream.next);
        let left = stream.to - stream.next;
        let window = match self.rule {
            Ahead::Grow if left > stream.window / 2 => return 0..0,
            Ahead::Grow => {
                let grown = (stream.window * 2).max(2 * (blocks.end - blocks.start));
                // If there is less room, wait until half a window is free, instead of reading single blocks.
                let window =
                    grown.clamp(FIRST_WINDOW_BLOCKS, FIRST_WINDOW_BLOCKS.max(self.window)).min(left + room);
                if left > window / 2 {
                    return 0..0;
                }
                window
            }
            _ => self.window,
        };
        let from = stream.to;
        let to = (stream.next + window).min(end).min(from + room);
        if to <= from {
            return 0..0;
        }
        (stream.window, stream.to) = (window, to);
        from..to
    }

    fn begin(&mut self, next: u64) {
        let stream = ReadStream { next, to: next, window: 0, used: self.clock };
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
        } else if let Some(oldest) = self.streams.iter_mut().min_by_key(|stream| stream.used) {
            *oldest = stream;
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    const BLOCK: u64 = 8 << 10;

    /// Returns the read-aheads when these blocks are read one after the other.
    fn read(streams: &mut DeviceStreams, blocks: impl IntoIterator<Item = u64>) -> Vec<Range<u64>> {
        let each = blocks.into_iter().map(|block| streams.wanted(block..block + 1, false, 1000, 1000));
        each.filter(|ahead| !ahead.is_empty()).collect()
    }

    #[test]
    fn the_window_grows_and_ends_with_the_device() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        let asked = read(&mut streams, 0..1000);
        assert_eq!(asked[..4], [2..6, 6..12, 12..24, 24..48]);
        assert!(asked.iter().all(|ahead| ahead.end - ahead.start <= 1024));
        assert!(asked.windows(2).all(|two| two[0].end == two[1].start), "each block once");
        assert_eq!(asked.last().unwrap().end, 1000);
    }

    #[test]
    fn the_seeds_rule() {
        let mut streams = DeviceStreams::new(Ahead::Seed, BLOCK);
        assert_eq!(read(&mut streams, [0]), []);
        assert_eq!(read(&mut streams, [1, 2, 3]), [2..39, 39..40, 40..41]);
    }

    #[test]
    fn reads_here_and_there_are_no_stream() {
        for rule in [Ahead::Never, Ahead::Seed, Ahead::Grow] {
            let mut streams = DeviceStreams::new(rule, BLOCK);
            assert_eq!(read(&mut streams, (0..1000).map(|n| n * 617 % 1000)), []);
        }
    }

    #[test]
    fn several_streams_are_told_apart() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        let asked = read(&mut streams, (0..40).flat_map(|n| [n, 300 + n, 600 + n]));
        for from in [0, 300, 600] {
            let mut of = asked.iter().filter(|ahead| (from..from + 300).contains(&ahead.start));
            assert_eq!(of.next(), Some(&(from + 2..from + 6)));
            assert!(of.next_back().unwrap().end > from + 40);
        }
    }

    #[test]
    fn reads_that_pass_each_other_are_one_stream() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        let asked = read(&mut streams, [0, 2, 1, 4, 3, 6, 5]);
        assert!(asked.last().unwrap().end > 6);
        assert_eq!(streams.streams.len(), 1);
    }

    #[test]
    fn no_room_asks_for_nothing_and_later_for_the_same() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        assert_eq!(streams.wanted(0..1, true, 100, 0), 0..0);
        assert_eq!(streams.wanted(1..2, true, 100, 0), 0..0);
        assert_eq!(streams.wanted(2..3, true, 100, 2), 3..5);
    }

    #[test]
    fn little_room_is_taken_by_halves() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        let (mut held, mut asked) = (0, Vec::new());
        for block in 0..1000 {
            // A block that was read ahead frees its room when it is read.
            held -= u64::from(held > 0);
            let ahead = streams.wanted(block..block + 1, false, 1000, 100 - held);
            held += ahead.end - ahead.start;
            asked.extend(Some(ahead).filter(|ahead| !ahead.is_empty()));
        }
        assert!(asked.len() < 30, "{asked:?}");
    }

    #[test]
    fn what_was_evicted_before_its_use_makes_the_window_smaller() {
        let mut streams = DeviceStreams::new(Ahead::Grow, BLOCK);
        read(&mut streams, 0..100);
        let before = streams.streams[0].window;
        streams.wanted(100..101, true, 1000, 1000);
        assert!(streams.streams[0].window < before);
    }
}
