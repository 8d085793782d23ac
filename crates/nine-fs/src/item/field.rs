//! What keys and values are made of: numbers, times, dates, names, one behind the other.
//!
//! In: bytes, or fields. Out: the other. Nothing is read behind the end; what is written fills its place
//! exactly. Numbers have their least significant byte first; keys, where it is the other way, take theirs as bytes.

use nine_proto::Time;

use crate::date::Day;

/// Bytes of the longest name: of a file, or of an extended attribute.
pub(crate) const NAME_MOST: usize = 255;

/// Bytes that are read from the front.
pub(super) struct In<'a>(pub(super) &'a [u8]);

impl<'a> In<'a> {
    /// The next N bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// The next four.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// The next eight.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Seconds and nanoseconds.
    pub(super) fn time(&mut self) -> Option<Time> {
        let (sec, nsec) = (i64::from_le_bytes(self.take()?), self.u32()?);
        (nsec < 1_000_000_000).then_some(Time { sec, nsec })
    }

    /// Year, month, day.
    pub(super) fn day(&mut self) -> Option<Day> {
        let (year, [month, day]) = (u16::from_le_bytes(self.take()?), self.take()?);
        Day::new(year, month, day)
    }

    /// All that is left, if it may be a name.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        Some(std::mem::take(&mut self.0)).filter(|name| is_name(name))
    }

    /// The value, if nothing is left.
    pub(super) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// So many bytes, written from the front.
pub(super) struct Out<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Out<N> {
    /// Nothing yet.
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Bytes as they are.
    pub(super) fn put<const M: usize>(mut self, more: [u8; M]) -> Self {
        self.bytes[self.len..self.len + M].copy_from_slice(&more);
        self.len += M;
        self
    }

    /// Four bytes.
    pub(super) fn u32(self, number: u32) -> Self {
        self.put(number.to_le_bytes())
    }

    /// Eight bytes.
    pub(super) fn u64(self, number: u64) -> Self {
        self.put(number.to_le_bytes())
    }

    /// Seconds and nanoseconds.
    pub(super) fn time(self, time: Time) -> Self {
        self.put(time.sec.to_le_bytes()).u32(time.nsec)
    }

    /// Year, month, day.
    pub(super) fn day(self, day: Day) -> Self {
        self.put(day.year.to_le_bytes()).put([day.month, day.day])
    }

    /// When all of them are written.
    pub(super) fn done(self) -> [u8; N] {
        assert!(self.len == N, "{} of {N} bytes", self.len);
        self.bytes
    }
}

/// Whether a name has as many bytes as one may.
pub(super) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MOST).contains(&name.len())
}

/// Generations begin with 1.
pub(super) fn made(generation: u32) -> Option<u32> {
    (generation > 0).then_some(generation)
}
