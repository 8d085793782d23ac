//! Devices made of several: concatenated or interleaved.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::owner::{SectorOwner, ShiftedOwner, StripedOwner};
use crate::plain::{above, control_one};
use crate::whole::{in_order, split};

/// A concatenation of devices. It grows at the last one. If another one grows, its new sectors are not used.
pub struct Concat {
    of: Vec<Arc<dyn Device>>,
    /// The first sector of each.
    starts: Vec<u64>,
}

impl Concat {
    /// Concatenates devices. Panics if there are none.
    pub fn new(of: Vec<Arc<dyn Device>>) -> Result<Self> {
        assert!(!of.is_empty(), "a concatenation of nothing");
        let mut starts = Vec::with_capacity(of.len());
        let mut end = 0u64;
        for device in &of {
            starts.push(end);
            let sum = end.checked_add(device.shape().sectors);
            end = sum.ok_or_else(|| Error::new(Kind::Range, "more sectors than can be counted"))?;
        }
        Ok(Self { of, starts })
    }
}

impl Device for Concat {
    fn shape(&self) -> Shape {
        // An aligned run is aligned on each device if all of them begin aligned.
        let zeros = self.starts.iter().map(|start| start.trailing_zeros()).min().unwrap_or(0);
        let last = self.of.len() - 1;
        let sectors = self.starts[last].saturating_add(self.of[last].shape().sectors);
        Shape { sectors, ..shape_of(&self.of, zeros) }
    }

    fn unbacked(&self) -> u64 {
        self.of.iter().map(|device| device.unbacked()).sum()
    }

    fn submit(&self, mut io: Io) {
        // Read it once, because the last device may change its size at any time.
        let shape = self.shape();
        if let Err(error) = io.judge(&shape) {
            return io.end(Err(error.of(self.name())));
        }
        if matches!(io.op, Op::Flush | Op::Look) {
            return to_all(&self.of, io);
        }
        let (from, to) = (io.at, io.end_at());
        let end_of = |index: usize| self.starts.get(index + 1).map_or(shape.sectors, |next| *next);
        let touches = |index: &usize| self.starts[*index] < to && from < end_of(*index);
        let touched: Vec<usize> = (0..self.of.len()).filter(touches).collect();
        match touched.as_slice() {
            [] => io.end(Ok(Bytes::new())),
            [one] => {
                io.at -= self.starts[*one];
                self.of[*one].submit(io);
            }
            several => {
                let part = |io: &Io, part: usize, done| {
                    let start = self.starts[several[part]];
                    let begin = from.max(start);
                    let end = several.get(part + 1).map_or(to, |next| self.starts[*next]);
                    io.part(begin - from, end - begin, begin - start, done)
                };
                let parts = split(io, several.len(), part, in_order);
                several.iter().zip(parts).for_each(|(index, part)| self.of[*index].submit(part));
            }
        }
    }

    fn name(&self) -> String {
        format!("({})", names(&self.of))
    }

    fn status(&self) -> String {
        above(self, &self.of.iter().collect::<Vec<_>>())
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        // The last device may grow.
        let ends = self.starts.iter().skip(1).copied().chain([u64::MAX]);
        for ((device, here), end) in self.of.iter().zip(self.starts.iter().copied()).zip(ends) {
            device.owned_by(Arc::new(ShiftedOwner { owner: owner.clone(), below: 0..end - here, here }));
        }
    }

    fn trouble(&self) -> Vec<String> {
        self.of.iter().flat_map(|device| device.trouble()).collect()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        control_one(self, &self.of, words)
    }
}

/// An interleave of devices: block b is block b/n of device b%n. Its size follows from the smallest device.
pub struct Interleave {
    of: Vec<Arc<dyn Device>>,
    block: u64,
}

impl Interleave {
    /// Interleaves devices, in blocks of `block` sectors. Panics if there are no devices or `block` is 0.
    pub fn new(of: Vec<Arc<dyn Device>>, block: u32) -> Result<Self> {
        assert!(!of.is_empty() && block > 0, "an interleave of nothing");
        let new = Self { of, block: block.into() };
        match new.blocks().checked_mul(new.of.len() as u64 * new.block) {
            Some(_) => Ok(new),
            None => Err(Error::new(Kind::Range, "more sectors than can be counted")),
        }
    }

    /// Returns the number of blocks of each device.
    fn blocks(&self) -> u64 {
        self.of.iter().map(|device| device.shape().sectors).min().unwrap_or(0) / self.block
    }

    /// Returns the sector of member `index` that corresponds to the first of its sectors at or after `at`.
    fn place(&self, at: u64, index: u64) -> u64 {
        let n = self.of.len() as u64;
        let (block, within) = (at / self.block, at % self.block);
        match (block % n).cmp(&index) {
            std::cmp::Ordering::Less => block / n * self.block,
            std::cmp::Ordering::Equal => block / n * self.block + within,
            std::cmp::Ordering::Greater => (block / n + 1) * self.block,
        }
    }
}

impl Device for Interleave {
    fn shape(&self) -> Shape {
        let sectors = self.blocks().saturating_mul(self.of.len() as u64 * self.block);
        Shape { sectors, ..shape_of(&self.of, self.block.trailing_zeros()) }
    }

    fn unbacked(&self) -> u64 {
        self.of.iter().map(|device| device.unbacked()).sum()
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        if matches!(io.op, Op::Flush | Op::Look) {
            return to_all(&self.of, io);
        }
        if io.count == 0 {
            return io.end(Ok(Bytes::new()));
        }
        let (from, to, block, n) = (io.at, io.end_at(), self.block, self.of.len() as u64);
        // The sectors of one member are consecutive there, so there is at most one part for each member.
        let range = |index: u64| (self.place(from, index), self.place(to, index));
        let touched: Vec<u64> = (0..n).filter(|index| range(*index).0 < range(*index).1).collect();
        let part = |io: &Io, part: usize, done| {
            let index = touched[part];
            let (begin, end) = range(index);
            if touched.len() == 1 {
                return io.part(0, io.count, begin, done);
            }
            match io.op {
                Op::Write => Io::write(begin, gather(io, index, block, n), done),
                Op::Read => Io::read(begin, end - begin, done),
                op => Io::other(op, begin, end - begin, done),
            }
        };
        let join = move |io: &Io, parts: Vec<Bytes>| match <[Bytes; 1]>::try_from(parts) {
            Ok([one]) => one,
            Err(parts) => scatter(io, &parts, block, n),
        };
        let parts = split(io, touched.len(), part, join);
        touched.iter().zip(parts).for_each(|(index, part)| self.of[*index as usize].submit(part));
    }

    fn name(&self) -> String {
        format!("[{}]", names(&self.of))
    }

    fn status(&self) -> String {
        above(self, &self.of.iter().collect::<Vec<_>>())
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let members = self.of.len() as u64;
        for (device, index) in self.of.iter().zip(0..) {
            let owner = owner.clone();
            device.owned_by(Arc::new(StripedOwner { owner, index, members, stripe: self.block }));
        }
    }

    fn trouble(&self) -> Vec<String> {
        self.of.iter().flat_map(|device| device.trouble()).collect()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        control_one(self, &self.of, words)
    }
}

/// Returns the pieces of an operation in order: member, and bytes.
fn pieces(io: &Io, block: u64, n: u64) -> impl Iterator<Item = (u64, usize)> {
    let (mut at, end) = (io.at, io.end_at());
    std::iter::from_fn(move || {
        let len = (block - at % block).min(end - at);
        let index = at / block % n;
        at += len;
        (len > 0).then_some((index, (len * SECTOR) as usize))
    })
}

/// Returns the data of a write for one member.
fn gather(io: &Io, wanted: u64, block: u64, n: u64) -> Bytes {
    let mut data = BytesMut::new();
    let mut rest = io.data.as_ref();
    for (index, len) in pieces(io, block, n) {
        let (piece, more) = rest.split_at(len);
        if index == wanted {
            data.extend_from_slice(piece);
        }
        rest = more;
    }
    data.freeze()
}

/// Assembles the data of a read from all members. Empty for other operations.
fn scatter(io: &Io, parts: &[Bytes], block: u64, n: u64) -> Bytes {
    if io.op != Op::Read {
        return Bytes::new();
    }
    // Members without a piece have no part.
    let mut asked: Vec<u64> = pieces(io, block, n).take(n as usize + 1).map(|(index, _)| index).collect();
    asked.sort_unstable();
    asked.dedup();
    let mut rest: Vec<&[u8]> = parts.iter().map(|part| &part[..]).collect();
    let mut data = BytesMut::with_capacity(io.bytes());
    for (index, len) in pieces(io, block, n) {
        let part = asked.binary_search(&index).expect("it was asked");
        // A short part was already an error of its member.
        let (piece, more) = rest[part].split_at(len);
        data.extend_from_slice(piece);
        rest[part] = more;
    }
    data.freeze()
}

/// Passes an operation without sectors to all devices.
fn to_all(of: &[Arc<dyn Device>], io: Io) {
    let op = io.op;
    let parts = split(io, of.len(), |_, _, done| Io::other(op, 0, 0, done), |_, _| Bytes::new());
    of.iter().zip(parts).for_each(|(device, part)| device.submit(part));
}

/// Returns the common properties of all devices, with an atom of at most `1 << zeros` sectors.
fn shape_of(of: &[Arc<dyn Device>], zeros: u32) -> Shape {
    let aligned = 1u32.checked_shl(zeros).unwrap_or(u32::MAX);
    let first = of[0].shape();
    of.iter().map(|device| device.shape()).fold(Shape { atom: first.atom.min(aligned), ..first }, |a, b| {
        Shape {
            sectors: 0,
            atom: a.atom.min(b.atom),
            most: a.most.min(b.most),
            read_only: a.read_only || b.read_only,
            durable: a.durable && b.durable,
        }
    })
}

fn names(of: &[Arc<dyn Device>]) -> String {
    of.iter().map(|device| device.name()).collect()
}

/// Returns the expressions and the common properties of devices. Mirrors use it too.
pub(crate) fn common(of: &[Arc<dyn Device>]) -> (String, Shape) {
    (names(of), shape_of(of, u32::BITS))
}
