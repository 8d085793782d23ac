//! The fields of keys and values: numbers, times, dates, names.
//!
//! In: bytes, or fields. Out: the other. Reading never passes the end, and writing must fill the buffer exactly.
//! Numbers have their least significant byte first. Keys have the opposite order, and read theirs as bytes.

use nine_proto::Time;

use crate::date::CalendarDay;

/// Maximum bytes of a name of a file or of an extended attribute.
pub(crate) const NAME_MAX: usize = 255;

/// A reader of bytes.
pub(super) struct FieldReader<'a>(pub(super) &'a [u8]);

impl<'a> FieldReader<'a> {
    /// Reads N bytes.
    pub(super) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    /// Reads four bytes.
    pub(super) fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    /// Reads eight bytes.
    pub(super) fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// Reads seconds and nanoseconds.
    pub(super) fn time(&mut self) -> Option<Time> {
        let (sec, nsec) = (i64::from_le_bytes(self.take()?), self.u32()?);
        (nsec < 1_000_000_000).then_some(Time { sec, nsec })
    }

    /// Reads year, month and day.
    pub(super) fn day(&mut self) -> Option<CalendarDay> {
        let (year, [month, day]) = (u16::from_le_bytes(self.take()?), self.take()?);
        CalendarDay::new(year, month, day)
    }

    /// Takes the rest, if it is a valid name.
    pub(super) fn name(&mut self) -> Option<&'a [u8]> {
        Some(std::mem::take(&mut self.0)).filter(|name| is_name(name))
    }

    /// Returns `value`, if nothing is left.
    pub(super) fn end<T>(self, value: T) -> Option<T> {
        self.0.is_empty().then_some(value)
    }
}

/// A writer of N bytes.
pub(super) struct FieldWriter<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> FieldWriter<N> {
    /// Creates an empty one.
    pub(super) fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    /// Writes bytes.
    pub(super) fn put<const M: usize>(mut self, more: [u8; M]) -> Self {
        self.bytes[self.len..self.len + M].copy_from_slice(&more);
        self.len += M;
        self
    }

    /// Writes four bytes.
    pub(super) fn u32(self, number: u32) -> Self {
        self.put(number.to_le_bytes())
    }

    /// Writes eight bytes.
    pub(super) fn u64(self, number: u64) -> Self {
        self.put(number.to_le_bytes())
    }

    /// Writes seconds and nanoseconds.
    pub(super) fn time(self, time: Time) -> Self {
        self.put(time.sec.to_le_bytes()).u32(time.nsec)
    }

    /// Writes year, month and day.
    pub(super) fn day(self, day: CalendarDay) -> Self {
        self.put(day.year.to_le_bytes()).put([day.month, day.day])
    }

    /// Returns the bytes. Panics unless all N are written.
    pub(super) fn done(self) -> [u8; N] {
        assert!(self.len == N, "{} of {N} bytes", self.len);
        self.bytes
    }
}

/// Returns whether a name has a valid length.
pub(super) fn is_name(name: &[u8]) -> bool {
    (1..=NAME_MAX).contains(&name.len())
}

/// Returns the generation, if it is valid: generations begin with 1.
pub(super) fn made(generation: u32) -> Option<u32> {
    (generation > 0).then_some(generation)
}
