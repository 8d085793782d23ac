//! A device that ends operations when the test says so, and that knows the possible states after a power cut.

use std::sync::Mutex;

use bytes::Bytes;
use nine_block::{Device, Error, Io, Kind, Op, SECTOR, Shape};

use crate::cache::Random;

/// A slow device. Each sector holds a number and its own address, so that a misplaced sector is detected.
pub struct Slow(Mutex<Inner>);

pub struct Inner {
    pub shape: Shape,
    /// Operations that have not ended.
    pub under_way: Vec<Pending>,
    /// The content for reads.
    pub content: Vec<u64>,
    /// The content that is certain after a power cut.
    durable: Vec<u64>,
    /// Complete writes that a cut may lose: sectors and numbers.
    loose: Vec<(u64, Vec<u64>)>,
    /// By sector the number that a write has certainly stored.
    pub complete: Vec<u64>,
    /// Operations submitted since the test last looked.
    pub submitted: Vec<(Op, u64, Vec<u64>)>,
    /// The number of submitted reads, writes and flushes.
    pub counts: [u64; 3],
}

pub struct Pending {
    pub io: Io,
    /// The number of `loose` writes that were complete when it was submitted.
    before: usize,
    /// The content of its sectors at that time.
    found: Vec<u64>,
}

impl Slow {
    pub fn new(sectors: u64) -> Self {
        let zeros = vec![0; sectors as usize];
        Self(Mutex::new(Inner {
            shape: Shape { sectors, atom: 1, most: 64, read_only: false, durable: true },
            under_way: Vec::new(),
            content: zeros.clone(),
            durable: zeros.clone(),
            loose: Vec::new(),
            complete: zeros,
            submitted: Vec::new(),
            counts: [0; 3],
        }))
    }

    pub fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Ends all operations successfully, and those that follow from them.
    pub fn end_all(&self) {
        while self.end(0, None, &mut Random::new(0)) {}
    }

    /// Ends one operation. A failed one may have been done in part. Returns false if there is none.
    pub fn end(&self, which: usize, fail: Option<Kind>, random: &mut Random) -> bool {
        let mut inner = self.inner();
        if which >= inner.under_way.len() {
            return false;
        }
        let pending = inner.under_way.remove(which);
        let result = inner.end(&pending, fail, random);
        drop(inner);
        pending.io.end(result.map_err(|kind| Error::new(kind, "the test says so")));
        true
    }
}

impl Inner {
    fn end(&mut self, pending: &Pending, fail: Option<Kind>, random: &mut Random) -> Result<Bytes, Kind> {
        let Pending { io, before, found } = pending;
        let before = *before;
        let sectors = io.at as usize..io.end_at() as usize;
        match (io.op, fail) {
            // The read may have taken effect at once, or just now.
            (Op::Read, None) => {
                let found = if random.percent(50) { found } else { &self.content[sectors] };
                return Ok((io.at..).zip(found).flat_map(|(at, number)| sector(at, *number)).collect());
            }
            (Op::Write, None) => {
                let numbers = numbers(io.at, &io.data);
                self.content[sectors.clone()].copy_from_slice(&numbers);
                self.complete[sectors].copy_from_slice(&numbers);
                self.loose.push((io.at, numbers));
            }
            (Op::Write, Some(_)) => {
                for (at, number) in (io.at..).zip(numbers(io.at, &io.data)) {
                    if random.percent(50) {
                        self.content[at as usize] = number;
                        self.loose.push((at, vec![number]));
                    }
                }
            }
            (Op::Flush, None) => {
                for (at, numbers) in self.loose.drain(..before) {
                    self.durable[at as usize..][..numbers.len()].copy_from_slice(&numbers);
                }
                self.under_way
                    .iter_mut()
                    .for_each(|other| other.before = other.before.saturating_sub(before));
            }
            // A reserved device is not flushed.
            (Op::Flush, Some(Kind::Reserved)) => {}
            // As in Linux: data that could not be written counts as clean, and is lost at the next cut. So is data
            // written during the flush.
            (Op::Flush, Some(_)) => {
                let lost = self.loose.len() - self.loose.len() / 3;
                self.loose.drain(..lost);
                self.under_way.iter_mut().for_each(|other| other.before = other.before.saturating_sub(lost));
            }
            (Op::Discard, None) => {
                for at in sectors.filter(|_| random.percent(50)) {
                    self.content[at] = 0;
                    self.loose.push((at as u64, vec![0]));
                }
            }
            _ => {}
        }
        fail.map_or(Ok(Bytes::new()), Err)
    }

    /// Returns the content after a power cut at this moment.
    pub fn cut(&self, random: &mut Random) -> Vec<u64> {
        let mut left = self.durable.clone();
        let under_way = self.under_way.iter().map(|pending| &pending.io).filter(|io| io.op == Op::Write);
        let under_way = under_way.map(|io| (io.at, numbers(io.at, &io.data)));
        for (at, numbers) in self.loose.iter().cloned().chain(under_way) {
            for (at, number) in (at..).zip(numbers) {
                if random.percent(50) {
                    left[at as usize] = number;
                }
            }
        }
        left
    }
}

impl Device for Slow {
    fn shape(&self) -> Shape {
        self.inner().shape
    }

    fn name(&self) -> String {
        "slow".into()
    }

    fn submit(&self, io: Io) {
        let mut inner = self.inner();
        if let Err(error) = io.judge(&inner.shape) {
            drop(inner);
            return io.end(Err(error));
        }
        for (n, op) in [Op::Read, Op::Write, Op::Flush].iter().enumerate() {
            inner.counts[n] += u64::from(*op == io.op);
        }
        let what = match io.op {
            Op::Write => numbers(io.at, &io.data),
            _ => vec![0; io.count as usize],
        };
        inner.submitted.push((io.op, io.at, what));
        let found = match io.op {
            Op::Read => inner.content[io.at as usize..io.end_at() as usize].to_vec(),
            _ => Vec::new(),
        };
        let before = inner.loose.len();
        inner.under_way.push(Pending { io, before, found });
    }
}

/// Returns a sector with this number.
pub fn sector(at: u64, number: u64) -> [u8; SECTOR as usize] {
    let mut bytes = [0; SECTOR as usize];
    if number != 0 {
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[504..].copy_from_slice(&at.to_le_bytes());
    }
    bytes
}

/// Returns the numbers of the sectors from this one on.
pub fn numbers(at: u64, data: &[u8]) -> Vec<u64> {
    let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap());
    let each = (at..).zip(data.chunks_exact(SECTOR as usize));
    let each = each.map(|(at, bytes)| {
        let number = word(&bytes[..8]);
        assert!(number == 0 || word(&bytes[504..]) == at, "sector {at} has what belongs elsewhere");
        number
    });
    each.collect()
}

/// Returns sectors with this number.
pub fn data(at: u64, count: u64, number: u64) -> Bytes {
    (at..at + count).flat_map(|at| sector(at, number)).collect()
}
