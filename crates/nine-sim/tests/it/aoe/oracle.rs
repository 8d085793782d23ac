//! The oracle: the allowed answers of a disk. It knows each write, and which of them were acknowledged and flushed.
//!
//! A sector contains its own number and that of its write, 32 times. In-flight writes never overlap, so the writes of a
//! sector have an order. A read may find the last acknowledged write, or one that began later and has not succeeded.
//! After a crash it may find any write since the last flushed one. A successful flush covers the writes acknowledged
//! before it began, even across a crash. A flush that fails as poisoned reports all losses.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nine_block::{Io, Kind, Op, Result, SECTOR};

use crate::aoe::wire::Wire;

type Floors = BTreeMap<u64, u64>;
type Over = (u64, Result<Bytes>);

/// See the file head.
pub struct Oracle {
    pub seed: u64,
    who: usize,
    sectors: u64,
    next: u64,
    /// By sector: older writes than `floor` are overwritten; writes up to `flushed` are durable.
    floor: Floors,
    flushed: Floors,
    /// Writes that a flush must make durable.
    acked: Floors,
    under_way: BTreeMap<u64, Op_>,
    over: Arc<Mutex<Vec<Over>>>,
    pub kinds: Vec<Kind>,
    pub done: u64,
    pub flushes: u64,
    /// Longest duration of an operation.
    pub longest: Duration,
}

#[allow(non_camel_case_types)]
struct Op_ {
    op: Op,
    at: Range<u64>,
    begun: Duration,
    /// The oldest write that a read may find; the writes that a flush covers.
    floor: Floors,
    /// The machine has rebooted since the start of the operation.
    crashed: bool,
}

impl Oracle {
    pub fn new(seed: u64, who: usize, sectors: u64) -> Self {
        Self {
            seed,
            who,
            sectors,
            next: 1,
            floor: Floors::new(),
            flushed: Floors::new(),
            acked: Floors::new(),
            under_way: BTreeMap::new(),
            over: Arc::default(),
            kinds: Vec::new(),
            done: 0,
            flushes: 0,
            longest: Duration::ZERO,
        }
    }

    pub fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Submits a random operation.
    pub fn begin(&mut self, wire: &mut Wire) {
        let count = if wire.rng.one_in(4) { 1 + wire.rng.below(60) } else { 1 + wire.rng.below(8) } as u64;
        let at = wire.rng.below((self.sectors - count) as usize) as u64;
        match wire.rng.below(20) {
            0 => self.submit(wire, Op::Flush, 0..0),
            1 => self.submit(wire, Op::Look, 0..0),
            2..=10 => self.submit(wire, Op::Read, at..at + count),
            _ => {
                let overlaps =
                    |other: &Op_| other.op == Op::Write && other.at.start < at + count && at < other.at.end;
                if !self.under_way.values().any(overlaps) {
                    self.submit(wire, Op::Write, at..at + count);
                }
            }
        }
    }

    pub fn submit(&mut self, wire: &mut Wire, op: Op, at: Range<u64>) {
        let (id, over) = (self.next, self.over.clone());
        self.next += 1;
        let done = move |result| over.lock().expect("no panic while it is held").push((id, result));
        let io = match op {
            Op::Read => Io::read(at.start, at.end - at.start, done),
            Op::Write => {
                let mut data = BytesMut::new();
                for sector in at.clone() {
                    (0..SECTOR / 16).for_each(|_| {
                        data.extend_from_slice(&sector.to_le_bytes());
                        data.extend_from_slice(&id.to_le_bytes());
                    });
                }
                Io::write(at.start, data.freeze(), done)
            }
            _ => Io::other(op, 0, 0, done),
        };
        let floor = match op {
            Op::Read => self.floor.range(at.clone()).map(|(at, id)| (*at, *id)).collect(),
            Op::Flush => self.acked.clone(),
            _ => Floors::new(),
        };
        self.under_way.insert(id, Op_ { op, at, begun: wire.now, floor, crashed: false });
        wire.initiators[self.who].submit(wire.now, io);
    }

    /// Records a crash: unflushed writes may be lost.
    pub fn crash(&mut self) {
        self.floor = self.flushed.clone();
        self.under_way.values_mut().for_each(|other| other.crashed = true);
        for read in self.under_way.values_mut().filter(|other| other.op == Op::Read) {
            for (at, id) in &mut read.floor {
                *id = (*id).min(self.flushed.get(at).copied().unwrap_or(0));
            }
        }
    }

    /// Checks the completed operations.
    pub fn judge(&mut self, wire: &Wire) {
        let over = std::mem::take(&mut *self.over.lock().expect("no panic while it is held"));
        for (id, result) in over {
            let Op_ { op, at, begun, floor, crashed } = self.under_way.remove(&id).expect("it ends once");
            self.longest = self.longest.max(wire.now - begun);
            let data = match result {
                Ok(data) => data,
                Err(error) => {
                    self.kinds.push(error.kind);
                    if error.kind == Kind::Poisoned {
                        self.acked = self.flushed.clone();
                    }
                    continue;
                }
            };
            self.done += 1;
            match op {
                Op::Write => {
                    self.acked.extend(at.clone().map(|sector| (sector, id)));
                    if !crashed {
                        self.floor.extend(at.map(|sector| (sector, id)));
                    }
                }
                Op::Flush => {
                    self.flushes += 1;
                    for (sector, id) in floor {
                        for known in [&mut self.flushed, &mut self.floor] {
                            let known = known.entry(sector).or_default();
                            *known = id.max(*known);
                        }
                    }
                }
                Op::Read => self.judge_read(at, &floor, &data),
                Op::Look | Op::Discard => {}
            }
        }
    }

    fn judge_read(&self, at: Range<u64>, floor: &Floors, data: &[u8]) {
        let seed = self.seed;
        for (sector, bytes) in at.zip(data.chunks(SECTOR as usize)) {
            let least = floor.get(&sector).copied().unwrap_or(0);
            let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
            let (is, id) = (number(0), number(8));
            assert!(
                bytes.chunks(16).all(|part| part == &bytes[..16]),
                "seed {seed}: sector {sector} is torn"
            );
            assert!(id == 0 || is == sector, "seed {seed}: sector {sector} has what is of {is}");
            assert!(
                least <= id && id < self.next,
                "seed {seed}: sector {sector} has write {id}, not {least}"
            );
        }
    }
}
