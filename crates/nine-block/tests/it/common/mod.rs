//! Simulated worlds of faulty disks, stepped by a seed, and an oracle that knows all promises.

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use nine_block::{Device, Event, Io, Kind, Op, Pause, Rest, SECTOR, Shape, Told};

/// SplitMix64.
#[derive(Clone)]
pub struct Rng(pub u64);

impl Rng {
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.bits() % n
    }

    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

type Sector = [u8; SECTOR as usize];

/// A disk that acts only when it is stepped, and that can be told to fail.
pub struct Disk(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    name: String,
    sectors: u64,
    /// The content for reads.
    now: HashMap<u64, Sector>,
    /// The content after a cut.
    durable: HashMap<u64, Sector>,
    /// Writes since, in order.
    cached: Vec<(u64, Sector)>,
    /// Operations, each with the number of `cached` writes that were complete when it was submitted.
    queue: Vec<(usize, Io)>,
    /// The number of writes flushed so far; `cached` begins after them.
    flushed: usize,
    fail: Vec<(Op, Kind)>,
    always: Option<Kind>,
    loses: bool,
    cut: bool,
    pub reads: u64,
}

impl Disk {
    pub fn new(name: &str, sectors: u64) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner { name: name.into(), sectors, ..Inner::default() })))
    }

    fn inner(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.0.lock().unwrap()
    }

    /// Makes the next operation of this kind fail.
    pub fn fail(&self, op: Op, kind: Kind) {
        self.inner().fail.push((op, kind));
    }

    /// Makes all operations fail, or none.
    pub fn always(&self, kind: Option<Kind>) {
        let mut inner = self.inner();
        inner.always = kind;
        inner.fail.clear();
    }

    /// Makes the next flush fail, and lose all unflushed data.
    pub fn lose(&self) {
        self.inner().loses = true;
    }

    pub fn resize(&self, sectors: u64) {
        self.inner().sectors = sectors;
    }

    pub fn reads(&self) -> u64 {
        self.inner().reads
    }

    pub fn waiting(&self) -> usize {
        self.inner().queue.len()
    }

    /// Returns the content of a sector, without an operation.
    pub fn peek(&self, at: u64) -> Sector {
        self.inner().now.get(&at).copied().unwrap_or([0; SECTOR as usize])
    }

    /// Changes a sector silently.
    pub fn lie(&self, at: u64, byte: u8) {
        let mut inner = self.inner();
        inner.now.insert(at, [byte; SECTOR as usize]);
        inner.durable.insert(at, [byte; SECTOR as usize]);
    }

    /// Performs one of the waiting operations.
    pub fn step(&self, which: usize, rng: &mut Rng) {
        let mut inner = self.inner();
        let (complete, io) = inner.queue.remove(which);
        let failure = inner.always.or_else(|| {
            let at = inner.fail.iter().position(|(op, _)| *op == io.op)?;
            Some(inner.fail.remove(at).1)
        });
        if inner.cut {
            drop(inner);
            return io.fail(Kind::Failed, "the power is gone");
        }
        if io.op == Op::Flush && std::mem::take(&mut inner.loses) {
            inner.flushed += inner.cached.len();
            inner.cached.clear();
            inner.now = inner.durable.clone();
            drop(inner);
            return io.fail(Kind::Poisoned, "it has lost what was not flushed");
        }
        if let Some(kind) = failure {
            // It fails in the middle.
            if io.op == Op::Write && kind != Kind::Reserved {
                for (at, sector) in sectors(&io) {
                    if rng.one_in(2) {
                        inner.put(at, sector);
                    }
                }
            }
            drop(inner);
            return io.fail(kind, format!("{kind:?} as the test says"));
        }
        if let Err(error) = io.judge(&inner.shape()) {
            drop(inner);
            return io.end(Err(error));
        }
        let mut data = Vec::new();
        match io.op {
            Op::Read => {
                inner.reads += 1;
                let zeros = [0; SECTOR as usize];
                (io.at..io.end_at()).for_each(|at| data.extend(inner.now.get(&at).unwrap_or(&zeros)));
            }
            Op::Write => sectors(&io).into_iter().for_each(|(at, sector)| inner.put(at, sector)),
            Op::Flush => {
                let count = complete.saturating_sub(inner.flushed);
                let done: Vec<_> = inner.cached.drain(..count).collect();
                inner.flushed += count;
                inner.durable.extend(done);
            }
            _ => {}
        }
        drop(inner);
        io.end(Ok(data.into()));
    }

    /// Cuts the power. Returns the disk as it is found afterwards; which unflushed sectors it has depends on `keep`.
    pub fn cut(&self, keep: Keep, rng: &mut Rng) -> Arc<Self> {
        let mut inner = self.inner();
        inner.cut = true;
        let mut durable = inner.durable.clone();
        let waiting: Vec<_> =
            inner.queue.iter().filter(|(_, io)| io.op == Op::Write).flat_map(|(_, io)| sectors(io)).collect();
        for (at, sector) in inner.cached.iter().copied().chain(waiting) {
            let kept = match keep {
                Keep::Nothing => false,
                Keep::All => true,
                Keep::Some => rng.one_in(2),
            };
            if kept {
                durable.insert(at, sector);
            }
        }
        let (name, sectors) = (inner.name.clone(), inner.sectors);
        Arc::new(Self(Mutex::new(Inner { name, sectors, now: durable.clone(), durable, ..Inner::default() })))
    }
}

/// The unflushed data that a disk keeps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Keep {
    Nothing,
    All,
    Some,
}

fn sectors(io: &Io) -> Vec<(u64, Sector)> {
    let sectors = io.data.chunks_exact(SECTOR as usize).map(|sector| sector.try_into().unwrap());
    (io.at..).zip(sectors).collect()
}

impl Inner {
    fn put(&mut self, at: u64, sector: Sector) {
        self.now.insert(at, sector);
        self.cached.push((at, sector));
    }

    fn shape(&self) -> Shape {
        Shape { sectors: self.sectors, atom: 1, most: 2048, read_only: false, durable: true }
    }
}

impl Device for Disk {
    fn shape(&self) -> Shape {
        self.inner().shape()
    }

    fn submit(&self, io: Io) {
        let mut inner = self.inner();
        let complete = inner.flushed + inner.cached.len();
        inner.queue.push((complete, io));
    }

    fn name(&self) -> String {
        self.inner().name.clone()
    }
}

/// Disks, and background tasks.
pub struct World {
    pub disks: Vec<Arc<Disk>>,
    pub rng: Rng,
    /// A disk performs its operations in any order.
    pub reorder: bool,
    /// Steps left until the power is cut.
    pub left: u64,
    pub now: u64,
    pub beside: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    pub told: Arc<Mutex<Vec<String>>>,
}

/// Maximum number of steps without any end of an operation.
const PATIENCE: u64 = 200_000;

impl World {
    pub fn new(seed: u64, disks: Vec<Arc<Disk>>) -> Self {
        let (beside, told) = (Vec::new(), Arc::default());
        Self { disks, rng: Rng(seed), reorder: true, left: u64::MAX, now: 0, beside, told }
    }

    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.disks.iter().map(|disk| disk.clone() as Arc<dyn Device>).collect()
    }

    pub fn told(&self) -> Told {
        let told = self.told.clone();
        Arc::new(move |event: &Event| told.lock().unwrap().push(event.to_string()))
    }

    /// Performs one waiting operation, and runs the background tasks. Returns false if the power is cut.
    pub fn turn(&mut self) -> bool {
        self.now += 1;
        let waiting: Vec<_> = self.disks.iter().filter(|disk| disk.waiting() > 0).cloned().collect();
        if !waiting.is_empty() {
            if self.left == 0 {
                return false;
            }
            self.left -= 1;
            let disk = &waiting[self.rng.below(waiting.len() as u64) as usize];
            let which = if self.reorder { self.rng.below(disk.waiting() as u64) as usize } else { 0 };
            disk.step(which, &mut self.rng);
        }
        let mut cx = Context::from_waker(Waker::noop());
        self.beside.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
        true
    }

    /// Runs a future. `None`: the power was cut before it ended.
    pub fn run<T>(&mut self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..PATIENCE {
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                return Some(value);
            }
            if !self.turn() {
                return None;
            }
        }
        panic!("it does not end");
    }

    /// Replaces the disks with those found after a cut.
    pub fn cut(&mut self, keep: Keep) {
        self.disks = self.disks.iter().map(|disk| disk.cut(keep, &mut self.rng)).collect();
        self.beside.clear();
        self.left = u64::MAX;
    }
}

/// Returns pauses of one step.
pub fn rest() -> Rest {
    Arc::new(|_: Pause| Box::pin(Yield(false)))
}

struct Yield(bool);

impl Future for Yield {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<()> {
        if std::mem::replace(&mut self.0, true) { Poll::Ready(()) } else { Poll::Pending }
    }
}

/// Returns sectors that contain the tag of their write.
pub fn tagged(tag: u64, at: u64, count: u64) -> Bytes {
    (at..at + count).flat_map(|at| sector(tag, at)).collect()
}

/// Returns the tag of a sector; 0 if it was never written.
pub fn tag(bytes: &[u8], at: u64) -> u64 {
    let tag = u64::from_le_bytes(bytes[..8].try_into().unwrap());
    if tag > 0 {
        assert_eq!(bytes, sector(tag, at), "sector {at} is of no write");
    }
    tag
}

fn sector(tag: u64, at: u64) -> Sector {
    let mut sector = [0; SECTOR as usize];
    sector[..8].copy_from_slice(&tag.to_le_bytes());
    sector[8..16].copy_from_slice(&at.to_le_bytes());
    sector[511] = tag as u8;
    sector
}

/// The oracle: it knows each write, and when it was acknowledged and flushed.
#[derive(Default)]
pub struct Oracle(BTreeMap<u64, Written>);

struct Written {
    at: u64,
    end: u64,
    begun: u64,
    ended: Option<u64>,
    acked: Option<u64>,
    flushed: bool,
}

impl Oracle {
    /// Begins a write. Returns its tag.
    pub fn begin(&mut self, at: u64, count: u64, now: u64) -> u64 {
        let tag = self.0.len() as u64 + 1;
        self.0.insert(
            tag,
            Written { at, end: at + count, begun: now, ended: None, acked: None, flushed: false },
        );
        tag
    }

    pub fn acked(&mut self, tag: u64, now: u64) {
        let write = self.0.get_mut(&tag).unwrap();
        (write.ended, write.acked) = (Some(now), Some(now));
    }

    /// Records the completion of a flush that was submitted at this time.
    pub fn flushed(&mut self, submitted: u64) {
        for write in self.0.values_mut().filter(|write| write.acked.is_some_and(|acked| acked < submitted)) {
            write.flushed = true;
        }
    }

    /// Checks that a sector may be of this write: no write that must be seen has begun after this one ended.
    pub fn judge(&self, at: u64, tag: u64, must: impl Fn(u64, bool) -> bool) -> Result<(), String> {
        let ended = match self.0.get(&tag) {
            None if tag == 0 => 0,
            None => return Err(format!("sector {at} is of an unknown write {tag}")),
            Some(write) if at < write.at || at >= write.end => {
                return Err(format!("sector {at} is of write {tag}"));
            }
            Some(write) => write.ended.unwrap_or(u64::MAX),
        };
        let mut here = self.0.iter().filter(|(_, write)| (write.at..write.end).contains(&at));
        let later = here.find(|(_, write)| {
            write.begun > ended && write.acked.is_some_and(|acked| must(acked, write.flushed))
        });
        match later {
            Some((later, _)) => Err(format!("sector {at} is of write {tag}, and {later} is lost")),
            None => Ok(()),
        }
    }

    /// Checks a sector after a cut.
    pub fn survives(&self, at: u64, tag: u64) -> Result<(), String> {
        self.judge(at, tag, |_, flushed| flushed)
    }

    /// Checks a sector of a read that was submitted at this time.
    pub fn read(&self, at: u64, tag: u64, submitted: u64) -> Result<(), String> {
        self.judge(at, tag, |acked, _| acked < submitted)
    }

    /// A cut: unflushed writes may be there or not, but no longer change.
    pub fn restart(&mut self, now: u64) {
        for write in self.0.values_mut().filter(|write| !write.flushed) {
            write.ended = write.ended.or(Some(now));
            write.acked = None;
        }
    }
}
