//! Two Ethernets that lose, duplicate and delay frames, are cut and return; and the cards on them.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nine_aoe::frame::{EVERYBODY, Interface, Out};
use nine_aoe::initiator::Initiator;
use nine_aoe::target::{Setup, Target};
use nine_block::{Device, Io, Op, SECTOR, Shape};
use nine_net::ether::Mac;
use nine_sim::Rng;

pub const US: Duration = Duration::from_micros(1);
pub const SECOND: Duration = Duration::from_secs(1);

/// Faults: one in so many frames; 0: never.
#[derive(Clone, Copy, Default)]
pub struct Faults {
    pub lost: usize,
    pub twice: usize,
    /// Up to `late_by` late.
    pub late: usize,
    pub late_by: Duration,
    /// An answer arrives again, much later, or with another sector, or from an unknown address.
    pub forged: usize,
    /// By network: all frames are lost; frames larger than standard are lost.
    pub cut: [bool; 2],
    pub small: [bool; 2],
}

/// How often each fault occurred.
#[derive(Clone, Copy, Debug, Default)]
pub struct Happened {
    pub lost: u64,
    pub twice: u64,
    pub late: u64,
    pub forged: u64,
    pub cut: u64,
    pub small: u64,
}

/// A disk that writes sectors atomically, caches them until a flush, and randomly loses unflushed ones when the machine
/// reboots.
pub struct Disk {
    state: Mutex<DiskState>,
}

pub struct DiskState {
    pub sectors: u64,
    pub now: HashMap<u64, Bytes>,
    pub stable: HashMap<u64, Bytes>,
    pub waiting: Vec<Io>,
    pub durable: bool,
}

impl Disk {
    pub fn new(sectors: u64) -> Arc<Self> {
        let state = DiskState {
            sectors,
            now: HashMap::new(),
            stable: HashMap::new(),
            waiting: Vec::new(),
            durable: true,
        };
        Arc::new(Self { state: Mutex::new(state) })
    }

    pub fn state(&self) -> MutexGuard<'_, DiskState> {
        self.state.lock().expect("no panic while it is held")
    }

    /// Executes one pending operation.
    pub fn step(&self, rng: &mut Rng) {
        let mut state = self.state();
        if state.waiting.is_empty() {
            return;
        }
        let at = rng.below(state.waiting.len());
        let io = state.waiting.swap_remove(at);
        let result = state.does(&io);
        drop(state);
        io.end(result);
    }

    /// Reboots the machine: pending operations are executed or not, unflushed writes survive or not.
    pub fn crash(&self, rng: &mut Rng) {
        self.stop(rng);
        let mut state = self.state();
        let DiskState { now, stable, .. } = &mut *state;
        let mut changed: Vec<u64> = now.keys().copied().filter(|at| now.get(at) != stable.get(at)).collect();
        changed.sort_unstable();
        for at in changed {
            match (rng.one_in(2), stable.get(&at)) {
                (true, _) => drop(stable.insert(at, now[&at].clone())),
                (false, Some(old)) => drop(now.insert(at, old.clone())),
                (false, None) => drop(now.remove(&at)),
            }
        }
    }

    /// Restarts the program: pending operations are executed or not.
    pub fn stop(&self, rng: &mut Rng) {
        let mut state = self.state();
        for io in std::mem::take(&mut state.waiting) {
            if rng.one_in(2) {
                let _ = state.does(&io);
            }
        }
    }
}

impl DiskState {
    fn does(&mut self, io: &Io) -> nine_block::Result<Bytes> {
        io.judge(&self.shape())?;
        match io.op {
            Op::Read => {
                let mut all = BytesMut::new();
                for at in io.at..io.end_at() {
                    match self.now.get(&at) {
                        Some(data) => all.extend_from_slice(data),
                        None => all.resize(all.len() + SECTOR as usize, 0),
                    }
                }
                return Ok(all.freeze());
            }
            Op::Write => {
                for (at, data) in (io.at..).zip(io.data.chunks(SECTOR as usize)) {
                    self.now.insert(at, io.data.slice_ref(data));
                }
            }
            Op::Flush => self.stable = self.now.clone(),
            Op::Look | Op::Discard => {}
        }
        Ok(Bytes::new())
    }

    fn shape(&self) -> Shape {
        Shape { sectors: self.sectors, atom: 1, most: 64, read_only: false, durable: self.durable }
    }
}

impl Device for Disk {
    fn shape(&self) -> Shape {
        self.state().shape()
    }

    fn submit(&self, io: Io) {
        self.state().waiting.push(io);
    }

    fn name(&self) -> String {
        "sim".into()
    }
}

/// The networks and everything on them. Interface `n` of each card set is on network `n`.
pub struct Wire {
    pub now: Duration,
    pub rng: Rng,
    pub faults: Faults,
    pub happened: Happened,
    pub target: Option<Target>,
    pub setup: Setup,
    pub ports: Vec<Interface>,
    pub disk: Arc<Disk>,
    pub initiators: Vec<Initiator>,
    pub cards: Vec<Vec<Interface>>,
    coming: BTreeMap<(Duration, u64), Frame>,
    next: u64,
    disk_at: Duration,
}

struct Frame {
    net: usize,
    from: Mac,
    to: Mac,
    bytes: Vec<u8>,
}

pub fn mac(node: u8, net: usize) -> Mac {
    Mac([2, 0, 0, 0, node, net as u8])
}

impl Wire {
    pub fn new(rng: Rng, setup: Setup, mtus: [usize; 2], sectors: u64) -> Self {
        let ports = interfaces(0, mtus);
        let disk = Disk::new(sectors);
        let target = Some(Target::new(setup.clone(), disk.clone(), ports.clone()));
        Self {
            now: Duration::ZERO,
            rng,
            faults: Faults::default(),
            happened: Happened::default(),
            target,
            setup,
            ports,
            disk,
            initiators: Vec::new(),
            cards: Vec::new(),
            coming: BTreeMap::new(),
            next: 0,
            disk_at: Duration::ZERO,
        }
    }

    /// Adds an initiator with a card on each network. Returns its number.
    pub fn plug(&mut self, patience: Duration, mtus: [usize; 2]) -> usize {
        let cards = interfaces(self.initiators.len() as u8 + 1, mtus);
        let seed = self.rng.bits();
        let setup = nine_aoe::initiator::Setup { target: self.setup.address, patience, seed };
        self.initiators.push(Initiator::new(self.now, setup, cards.clone()));
        self.cards.push(cards);
        self.initiators.len() - 1
    }

    /// Restarts the target; `crashes`: with a reboot of its machine. A restart takes longer than frames may be late,
    /// because a target that has forgotten its writes must not receive copies of them.
    pub fn restart(&mut self, crashes: bool) {
        self.coming.retain(|_, frame| self.ports.iter().all(|card| card.mac != frame.to));
        if crashes {
            self.disk.crash(&mut self.rng);
            self.setup.boot += 1;
        } else {
            self.disk.stop(&mut self.rng);
        }
        self.target = Some(Target::new(self.setup.clone(), self.disk.clone(), self.ports.clone()));
    }

    fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.rng.one_in(n)
    }

    fn carry(&mut self, net: usize, from: Mac, to: Mac, bytes: Vec<u8>) {
        if self.faults.cut[net] {
            return self.happened.cut += 1;
        }
        if self.faults.small[net] && bytes.len() > 1500 {
            return self.happened.small += 1;
        }
        if self.one_in(self.faults.lost) {
            return self.happened.lost += 1;
        }
        let copies = 1 + usize::from(self.one_in(self.faults.twice));
        self.happened.twice += copies as u64 - 1;
        if bytes[0] & 8 != 0 && bytes.len() > 22 && self.one_in(self.faults.forged) {
            self.happened.forged += 1;
            let (mut forged, mut from, mut late) = (bytes.clone(), from, 0);
            match self.rng.below(4) {
                // It arrives again, very late.
                0 => late = 5_000_000,
                // With another sector.
                1 => forged[14] ^= 0x10,
                // From an unknown address, with other data.
                2 => (from, forged[22]) = (Mac([6; 6]), forged[22] ^ 1),
                // With a guessed tag.
                _ => (forged[9], forged[22]) = (forged[9] ^ 1, forged[22] ^ 1),
            }
            self.arrives(net, from, to, forged, late);
        }
        for _ in 0..copies {
            let is_late = self.one_in(self.faults.late);
            self.happened.late += u64::from(is_late);
            let late = if is_late { self.rng.below(self.faults.late_by.as_micros() as usize + 1) } else { 0 };
            self.arrives(net, from, to, bytes.clone(), late as u64);
        }
    }

    fn arrives(&mut self, net: usize, from: Mac, to: Mac, bytes: Vec<u8>, late_us: u64) {
        let at = self.now + 50 * US + Duration::from_micros(late_us + self.rng.below(20) as u64);
        self.coming.insert((at, self.next), Frame { net, from, to, bytes });
        self.next += 1;
    }

    fn leave(&mut self, cards: &[Interface], out: Out) {
        let Out { port, to, head, data } = out;
        assert!(head.len() + data.len() <= cards[port].mtu, "{} bytes on {port}", head.len() + data.len());
        self.carry(port, cards[port].mac, to, [&head[..], &data].concat());
    }

    /// Processes everything that is due, then advances to the next event, at most to `until`.
    pub fn step(&mut self, until: Duration) {
        while let Some(out) = self.target.as_mut().and_then(Target::transmit) {
            self.leave(&self.ports.clone(), out);
        }
        let mut next = until;
        for n in 0..self.initiators.len() {
            while let Some(out) = self.initiators[n].transmit(self.now) {
                self.leave(&self.cards[n].clone(), out);
            }
            while let Some(over) = self.initiators[n].ended() {
                over.tell();
                next = self.now;
            }
            let deadline = self.initiators[n].deadline();
            assert!(deadline > self.now, "a deadline that has passed, and nothing was done");
            next = next.min(deadline);
        }
        if !self.disk.state().waiting.is_empty() {
            if self.disk_at <= self.now {
                self.disk_at = self.now + Duration::from_micros(1 + self.rng.below(60) as u64);
            }
            next = next.min(self.disk_at);
        }
        if let Some(((at, _), _)) = self.coming.first_key_value() {
            next = next.min((*at).max(self.now));
        }
        self.now = self.now.max(next);
        if self.disk_at <= self.now {
            let (disk, rng) = (self.disk.clone(), &mut self.rng);
            disk.step(rng);
        }
        while let Some(first) = self.coming.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let frame = first.remove();
            self.deliver(&frame);
        }
    }

    fn deliver(&mut self, Frame { net, from, to, bytes }: &Frame) {
        let mine = |card: &Interface| card.mac == *to || *to == EVERYBODY && card.mac != *from;
        if mine(&self.ports[*net])
            && let Some(target) = &mut self.target
        {
            target.receive(*net, *from, bytes);
        }
        for (initiator, cards) in self.initiators.iter_mut().zip(&self.cards) {
            if mine(&cards[*net]) {
                initiator.receive(self.now, *net, *from, bytes);
            }
        }
    }

    /// Continues until the condition holds or the time has passed. Returns whether it holds.
    pub fn until(&mut self, within: Duration, mut is: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + within;
        loop {
            if is(self) {
                return true;
            }
            if self.now >= end {
                return false;
            }
            self.step(end);
        }
    }
}

fn interfaces(node: u8, mtus: [usize; 2]) -> Vec<Interface> {
    (0..2).map(|net| Interface { mac: mac(node, net), mtu: mtus[net] }).collect()
}
