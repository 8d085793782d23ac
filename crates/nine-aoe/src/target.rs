//! A target: a device as others on the Ethernet see it (`docs/aoe.md`).
//!
//! In: frames, with the interface that they came on and who has sent them; operations of the device that have ended.
//! Out: frames, and operations that are submitted to the device. No clock, no link.
//!
//! Always holds: a frame is answered once or, where the protocol says so, not at all; a write is answered when the
//! device has ended it; no more frames are in hand than the target says that it queues.

mod lists;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::task::Waker;

use bytes::Bytes;
use nine_block::{Device, Error, Io, Kind, Op, Result, SECTOR};
use nine_net::ether::Mac;
use nine_net::lock::{Mutex, lock};

use crate::frame::{
    Address, Ata, Config, EVERYBODY, Header, Interface, Out, ata, command, config, error, sectors_of,
};
use crate::identify::Identify;
use lists::{Lists, Verdict};

/// What a target says its version is.
const FIRMWARE: u16 = 0x9001;
/// Writes that are remembered, so that a frame which the network has repeated is not written again over what was
/// written since. The oldest is forgotten beyond it.
const REMEMBERED: usize = 256;

/// What a target is.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Where it is.
    pub address: Address,
    /// Frames that are in hand at most; what comes then is dropped, and sent again by who wants it. At least 1.
    pub frames: u16,
    /// At most 20 bytes: what tells the disk from any other.
    pub serial: String,
    /// The config string, at most [`CONFIG_MAX`](crate::frame::CONFIG_MAX) bytes.
    pub config: Vec<u8>,
    /// Who is heard; empty: everybody.
    pub mask: Vec<Mac>,
    /// It is not written.
    pub read_only: bool,
    /// See [`Identify::boot`]: of the machine, not of this program, where what it wrote outlives it.
    pub boot: u64,
}

impl Setup {
    /// Of this address and serial, for everybody.
    pub fn new(address: Address, serial: impl Into<String>) -> Self {
        let serial = serial.into();
        Self { address, frames: 64, serial, config: Vec::new(), mask: Vec::new(), read_only: false, boot: 0 }
    }
}

/// What has happened, in frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub asked: u64,
    pub answered: u64,
    /// More than are queued.
    pub dropped: u64,
    /// The same again, while it is in hand or shortly after.
    pub repeated: u64,
    /// Of those that the mask does not have.
    pub masked: u64,
    pub refused: u64,
    pub malformed: u64,
    /// Sectors.
    pub read: u64,
    pub written: u64,
}

/// See the module.
pub struct Target {
    setup: Setup,
    ports: Vec<Interface>,
    device: Arc<dyn Device>,
    lists: Lists,
    /// What the device does; by a number of our own.
    busy: HashMap<u64, Busy>,
    next: u64,
    ends: Arc<Ends>,
    written: HashMap<(Mac, u32), (Ata, Bytes)>,
    written_order: VecDeque<(Mac, u32)>,
    /// Answers; with `busy` never more than the target queues.
    out: VecDeque<Out>,
    counts: Counts,
}

/// A question that the device works on.
struct Busy {
    port: usize,
    from: Mac,
    header: Header,
    ata: Ata,
}

/// Operations that have ended, from any thread.
#[derive(Default)]
struct Ends(Mutex<(Vec<Over>, Option<Waker>)>);

/// One of them, by its number.
type Over = (u64, Result<Bytes>);

impl Target {
    /// Of a device, on these interfaces. The first frames that leave say to everybody that it is there.
    pub fn new(setup: Setup, device: Arc<dyn Device>, ports: Vec<Interface>) -> Self {
        let mut target = Self {
            lists: Lists::new(&setup),
            ports,
            device,
            busy: HashMap::new(),
            next: 0,
            ends: Arc::default(),
            written: HashMap::new(),
            written_order: VecDeque::new(),
            out: VecDeque::new(),
            counts: Counts::default(),
            setup,
        };
        let hello = Header::ask(target.setup.address, command::CONFIG, 0).answer(target.setup.address, None);
        for port in 0..target.ports.len() {
            let head = hello.with(&target.config(port, config::READ));
            target.out.push_back(Out { port, to: EVERYBODY, head, data: Bytes::new() });
        }
        target
    }

    /// What has happened.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// For people: the device, who has reserved it, what has happened.
    pub fn status(&self) -> String {
        let Setup { address, frames, .. } = &self.setup;
        let in_hand = self.busy.len();
        let (device, lists) = (self.device.status(), self.lists.status());
        format!("e{address} {in_hand} of {frames} frames\n{lists}{:?}\n{device}", self.counts)
    }

    /// Who is woken when the device has ended something.
    pub fn wakes(&self, waker: &Waker) {
        lock(&self.ends.0).1 = Some(waker.clone());
    }

    /// The next frame that leaves.
    pub fn transmit(&mut self) -> Option<Out> {
        self.finish();
        self.out.pop_front()
    }

    /// A frame has come.
    pub fn receive(&mut self, port: usize, from: Mac, packet: &[u8]) {
        self.finish();
        let Some((header, body)) = Header::parse(packet) else { return self.counts.malformed += 1 };
        if header.response || !header.address.means(self.setup.address) {
            return;
        }
        if !self.lists.hears(from) {
            return self.counts.masked += 1;
        }
        self.counts.asked += 1;
        if self.busy.len() + self.out.len() >= usize::from(self.setup.frames.max(1)) {
            return self.counts.dropped += 1;
        }
        if header.version != 1 {
            return self.refuse(port, from, header, error::VERSION, body);
        }
        match header.command {
            command::ATA => self.ata(port, from, header, body),
            command::CONFIG => match Config::parse(body).map(|asked| self.lists.configure(&asked)) {
                Some(Verdict::Silence) => {}
                Some(Verdict::Fine) => {
                    let what = Config::parse(body).map_or(0, |asked| asked.what);
                    self.reply(port, from, header, None, self.config(port, what));
                }
                Some(Verdict::Error(code)) => {
                    self.reply(port, from, header, Some(code), self.config(port, config::READ));
                }
                None => self.refuse(port, from, header, error::ARGUMENT, body),
            },
            command::MASK => match self.lists.mask(body) {
                Ok(answer) => self.reply(port, from, header, None, answer),
                Err(code) => self.refuse(port, from, header, code, body),
            },
            command::RESERVE => match self.lists.reserve(from, body) {
                Ok(answer) => self.reply(port, from, header, None, answer),
                Err(code) => self.refuse(port, from, header, code, body),
            },
            _ => self.refuse(port, from, header, error::COMMAND, body),
        }
    }

    /// Says no: with the arguments as they came, and no data.
    fn refuse(&mut self, port: usize, from: Mac, header: Header, code: u8, body: &[u8]) {
        self.counts.refused += 1;
        self.reply(port, from, header, Some(code), body[..body.len().min(36)].to_vec());
    }

    fn reply(&mut self, port: usize, to: Mac, header: Header, error: Option<u8>, body: Vec<u8>) {
        let head = header.answer(self.setup.address, error).with(&body);
        self.send(Out { port, to, head, data: Bytes::new() });
    }

    fn send(&mut self, out: Out) {
        self.counts.answered += 1;
        self.out.push_back(out);
    }

    fn config(&self, port: usize, what: u8) -> Vec<u8> {
        let sectors = sectors_of(self.ports[port].mtu);
        let string = self.lists.config();
        Config { buffers: self.setup.frames.max(1), firmware: FIRMWARE, sectors, what, string }.bytes()
    }

    fn ata(&mut self, port: usize, from: Mac, header: Header, body: &[u8]) {
        let Some((ata, data)) = Ata::parse(body) else {
            return self.refuse(port, from, header, error::ARGUMENT, body);
        };
        if ata.command != ata::IDENTIFY && !self.lists.may(from) {
            return self.refuse(port, from, header, error::RESERVED, body);
        }
        let (count, bytes) = (u64::from(ata.count), usize::from(ata.count) * SECTOR as usize);
        let fits = (1..=sectors_of(self.ports[port].mtu)).contains(&ata.count);
        let (op, data) = match ata.command {
            ata::READ | ata::READ_EXT if fits => (Op::Read, Bytes::new()),
            ata::WRITE | ata::WRITE_EXT if fits && data.len() >= bytes => {
                (Op::Write, Bytes::copy_from_slice(&data[..bytes]))
            }
            ata::READ | ata::READ_EXT | ata::WRITE | ata::WRITE_EXT => {
                return self.refuse(port, from, header, error::ARGUMENT, body);
            }
            // How large it is by now.
            ata::IDENTIFY => (Op::Look, Bytes::new()),
            ata::FLUSH | ata::FLUSH_EXT => (Op::Flush, Bytes::new()),
            ata::CHECK_POWER => {
                let answer = Ata { feature: 0, count: 0xff, command: ata::READY, ..ata };
                return self.reply(port, from, header, None, answer.bytes().to_vec());
            }
            _ => {
                let answer = Ata { feature: ata::ABORTED, command: ata::READY | ata::ERR, ..ata };
                return self.reply(port, from, header, None, answer.bytes().to_vec());
            }
        };
        let asked = Busy { port, from, header, ata };
        if op == Op::Write && self.setup.read_only {
            return self.answer(asked, Err(Error::new(Kind::ReadOnly, "it is not written")));
        }
        let is_same = |busy: &Busy| busy.from == from && busy.header.tag == header.tag && busy.ata == ata;
        if self.busy.values().any(is_same)
            || (op == Op::Write && !self.remember(from, header.tag, ata, &data))
        {
            return self.counts.repeated += 1;
        }
        let number = self.next;
        self.next += 1;
        self.busy.insert(number, asked);
        let ends = self.ends.clone();
        let done = move |result| {
            let mut ends = lock(&ends.0);
            ends.0.push((number, result));
            let waker = ends.1.clone();
            drop(ends);
            waker.iter().for_each(Waker::wake_by_ref);
        };
        self.device.submit(match op {
            Op::Read => Io::read(ata.sector(), count, done),
            Op::Write => Io::write(ata.sector(), data, done),
            _ => Io::other(op, 0, 0, done),
        });
        self.finish();
    }

    /// Whether this write has not been seen; from now on it has. A peer may use a tag again, for other data.
    fn remember(&mut self, from: Mac, tag: u32, ata: Ata, data: &Bytes) -> bool {
        match self.written.insert((from, tag), (ata, data.clone())) {
            Some((same, of)) => same != ata || of != data,
            None => {
                self.written_order.push_back((from, tag));
                if self.written_order.len() > REMEMBERED
                    && let Some(oldest) = self.written_order.pop_front()
                {
                    self.written.remove(&oldest);
                }
                true
            }
        }
    }

    /// Answers what the device has ended.
    fn finish(&mut self) {
        let ended = std::mem::take(&mut lock(&self.ends.0).0);
        for (number, result) in ended {
            let asked = self.busy.remove(&number).expect("it was submitted, and ends once");
            self.answer(asked, result);
        }
    }

    fn answer(&mut self, asked: Busy, result: Result<Bytes>) {
        let Busy { port, from: to, header, ata } = asked;
        let failed = result.is_err();
        let (answer, data) = match result {
            Ok(data) => {
                let data = match ata.command {
                    ata::IDENTIFY => Bytes::copy_from_slice(&self.identify().bytes()),
                    _ => data,
                };
                match ata.command {
                    ata::READ | ata::READ_EXT => self.counts.read += u64::from(ata.count),
                    ata::WRITE | ata::WRITE_EXT => self.counts.written += u64::from(ata.count),
                    _ => {}
                }
                (Ata { feature: 0, count: 0, command: ata::READY, ..ata }, data)
            }
            Err(Error { kind: Kind::Down, .. }) => {
                return self.refuse(port, to, header, error::UNAVAILABLE, &ata.bytes());
            }
            Err(Error { kind: Kind::Reserved, .. }) => {
                return self.refuse(port, to, header, error::RESERVED, &ata.bytes());
            }
            Err(Error { kind, .. }) => {
                let feature = match kind {
                    Kind::Range => ata::NO_SECTOR,
                    Kind::Failed | Kind::Unwritten if ata.flags & ata::WRITES == 0 => ata::UNCORRECTABLE,
                    _ => ata::ABORTED,
                };
                (Ata { feature, command: ata::READY | ata::ERR, ..ata }, Bytes::new())
            }
        };
        // Who failed to write may write the same again.
        if failed {
            self.written.remove(&(to, header.tag));
            self.written_order.retain(|key| *key != (to, header.tag));
        }
        let head = header.answer(self.setup.address, None).with(&answer.bytes());
        self.send(Out { port, to, head, data });
    }

    fn identify(&self) -> Identify {
        let shape = self.device.shape();
        Identify {
            serial: self.setup.serial.clone(),
            firmware: format!("{:x}", FIRMWARE),
            model: format!("Ninefold {}", self.device.name()),
            sectors: shape.sectors,
            long: true,
            flush: true,
            flush_ext: shape.durable,
            boot: self.setup.boot,
        }
    }
}

#[cfg(test)]
mod tests;
