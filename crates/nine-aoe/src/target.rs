//! A target: a device as others on the Ethernet see it (`docs/aoe.md`).
//!
//! In: frames, with the interface that they came on and who has sent them; operations of the device that have ended.
//! Out: frames, and operations that are submitted to the device. No clock, no link.
//!
//! Always holds: a frame is answered once or, where the protocol says so, not at all; a write is answered when the
//! device has ended it; no more frames are in hand than the target says that it queues.

mod lists;

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::BuildHasher;
use std::sync::Arc;
use std::task::Waker;

use bytes::{Bytes, BytesMut};
use hashbrown::DefaultHashBuilder;
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
/// written since: those of 0.3 s at 1.5 GB/s, in 5 MB. The oldest is forgotten beyond it.
const REMEMBERED: usize = 1 << 16;

/// Sectors that are read or written at once, of questions that come one behind the other.
const RUN: u64 = 256;

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

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { asked, answered, dropped, repeated, masked, refused, malformed, read, written } = self;
        write!(
            f,
            "asked {asked} answered {answered} dropped {dropped} repeated {repeated} masked {masked} "
        )?;
        write!(f, "refused {refused} malformed {malformed} sectors read {read} written {written}")
    }
}

/// See the module.
pub struct Target {
    setup: Setup,
    ports: Vec<Interface>,
    device: Arc<dyn Device>,
    lists: Lists,
    /// What comes in a row is gathered, and asked of the device at once.
    run: Option<Run>,
    gathered: BytesMut,
    /// Writes over sectors of others that are in hand, in the order in which they came; flushes behind the one that is
    /// under way, which will be one.
    waits: VecDeque<Run>,
    /// What the device does; by a number of our own.
    busy: HashMap<u64, Run>,
    next: u64,
    /// Questions in `run`, `waits` and `busy`.
    in_hand: usize,
    ends: Arc<Ends>,
    /// With what their data hash to.
    written: HashMap<(Mac, u32), (Ata, u64), DefaultHashBuilder>,
    written_order: VecDeque<(Mac, u32)>,
    /// Answers; with what is in hand never more than the target queues.
    out: VecDeque<Out>,
    counts: Counts,
}

/// A question in hand.
struct Asked {
    port: usize,
    from: Mac,
    header: Header,
    ata: Ata,
}

/// Questions that are one operation of the device: of reads or writes many, whose sectors lie one behind the other.
struct Run {
    op: Op,
    at: u64,
    count: u64,
    /// What is written; while it is gathered it stands in the target's `gathered`.
    data: Bytes,
    asked: Vec<Asked>,
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
            lists: Lists::new(&setup, ports.iter().map(|port| port.mtu).min().unwrap_or(0)),
            ports,
            device,
            run: None,
            gathered: BytesMut::new(),
            waits: VecDeque::new(),
            busy: HashMap::new(),
            next: 0,
            in_hand: 0,
            ends: Arc::default(),
            written: HashMap::default(),
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

    /// An interface is another by now.
    pub fn is_now(&mut self, port: usize, interface: Interface) {
        self.ports[port] = interface;
    }

    /// For people: the device, who has reserved it, what has happened.
    pub fn status(&self) -> String {
        let Setup { address, frames, .. } = &self.setup;
        let in_hand = self.in_hand;
        let (device, lists) = (self.device.status(), self.lists.status());
        format!("e{address} {in_hand} of {frames} frames\n{lists}{}\n{device}", self.counts)
    }

    /// Who is woken when the device has ended something.
    pub fn wakes(&self, waker: &Waker) {
        lock(&self.ends.0).1 = Some(waker.clone());
    }

    /// The next frame that leaves.
    pub fn transmit(&mut self) -> Option<Out> {
        self.begin();
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
        if self.in_hand + self.out.len() >= usize::from(self.setup.frames.max(1)) {
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
                // What others have in hand may still be written: who asks again is told when it is not.
                Ok(_) if self.asked().any(|asked| !self.lists.may(asked.from)) => {}
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
        let (count, bytes) = (u64::from(ata.count), bytes_of(&ata));
        let fits = (1..=sectors_of(self.ports[port].mtu)).contains(&ata.count);
        let (op, data) = match ata.command {
            ata::READ | ata::READ_EXT if fits => (Op::Read, &[][..]),
            ata::WRITE | ata::WRITE_EXT if fits && data.len() >= bytes => (Op::Write, &data[..bytes]),
            ata::READ | ata::READ_EXT | ata::WRITE | ata::WRITE_EXT => {
                return self.refuse(port, from, header, error::ARGUMENT, body);
            }
            // How large it is by now.
            ata::IDENTIFY => (Op::Look, &[][..]),
            ata::FLUSH | ata::FLUSH_EXT => (Op::Flush, &[][..]),
            ata::CHECK_POWER => {
                let answer = Ata { feature: 0, count: 0xff, command: ata::READY, ..ata };
                return self.reply(port, from, header, None, answer.bytes().to_vec());
            }
            _ => {
                let answer = Ata { feature: ata::ABORTED, command: ata::READY | ata::ERR, ..ata };
                return self.reply(port, from, header, None, answer.bytes().to_vec());
            }
        };
        let asked = Asked { port, from, header, ata };
        if op == Op::Write && self.setup.read_only {
            return self.answer(asked, Err(Error::new(Kind::ReadOnly, "it is not written")));
        }
        let is_same = |other: &Asked| (other.from, other.header.tag, other.ata) == (from, header.tag, ata);
        if self.asked().any(is_same) {
            return self.counts.repeated += 1;
        }
        // A peer may use a tag again, for other data.
        let done = self.written.get(&(from, header.tag)).filter(|(same, _)| op == Op::Write && *same == ata);
        if done.is_some_and(|(_, of)| *of == self.hash(data)) {
            self.counts.repeated += 1;
            return self.answer(asked, Ok(Bytes::new()));
        }
        self.in_hand += 1;
        let joins = |run: &Run| {
            let is_behind = run.op == op && run.at + run.count == ata.sector();
            is_behind && matches!(op, Op::Read | Op::Write) && run.count + count <= RUN
        };
        if !self.run.as_ref().is_some_and(joins) {
            self.begin();
            self.run = Some(Run { op, at: ata.sector(), count: 0, data: Bytes::new(), asked: Vec::new() });
        }
        let run = self.run.as_mut().expect("it is there by now");
        run.count += count;
        run.asked.push(asked);
        if self.gathered.capacity() < self.gathered.len() + data.len() {
            self.gathered.reserve((RUN * SECTOR) as usize);
        }
        self.gathered.extend_from_slice(data);
    }

    /// What is in hand.
    fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.busy.values().chain(&self.waits).chain(&self.run).flat_map(|run| &run.asked)
    }

    /// Has the device begin what has been gathered.
    fn begin(&mut self) {
        let Some(mut run) = self.run.take() else { return };
        run.data = self.gathered.split().freeze();
        if run.op == Op::Write {
            let mut rest = run.data.clone();
            for Asked { from, header, ata, .. } in &run.asked {
                let hash = self.hash(&rest.split_to(bytes_of(ata)));
                self.remember((*from, header.tag), *ata, hash);
            }
        }
        if !self.is_held(&run, self.waits.len()) {
            return self.submit(run);
        }
        match self.waits.iter_mut().find(|other| (run.op, other.op) == (Op::Flush, Op::Flush)) {
            Some(flush) => flush.asked.extend(run.asked),
            None => self.waits.push_back(run),
        }
    }

    /// Whether it has to wait for what the device does, or for the first `n` that wait. What has come first is written
    /// first: a copy of a write may be among them, behind which its sender writes anew.
    fn is_held(&self, run: &Run, n: usize) -> bool {
        let holds = |other: &Run| match run.op {
            Op::Write => {
                other.op == Op::Write && run.at < other.at + other.count && other.at < run.at + run.count
            }
            op => op == Op::Flush && other.op == Op::Flush,
        };
        self.busy.values().chain(self.waits.iter().take(n)).any(holds)
    }

    fn submit(&mut self, run: Run) {
        let (number, ends) = (self.next, self.ends.clone());
        self.next += 1;
        let done = move |result| {
            let mut ends = lock(&ends.0);
            ends.0.push((number, result));
            let waker = ends.1.clone();
            drop(ends);
            waker.iter().for_each(Waker::wake_by_ref);
        };
        let io = match run.op {
            Op::Read => Io::read(run.at, run.count, done),
            Op::Write => Io::write(run.at, run.data.clone(), done),
            op => Io::other(op, 0, 0, done),
        };
        self.busy.insert(number, run);
        self.device.submit(io);
    }

    /// From now on this write has been seen.
    fn remember(&mut self, key: (Mac, u32), ata: Ata, hash: u64) {
        if self.written.insert(key, (ata, hash)).is_none() {
            self.written_order.push_back(key);
            if self.written_order.len() > REMEMBERED
                && let Some(oldest) = self.written_order.pop_front()
            {
                self.written.remove(&oldest);
            }
        }
    }

    /// Answers what the device has ended.
    fn finish(&mut self) {
        let ended = std::mem::take(&mut lock(&self.ends.0).0);
        for (number, result) in ended {
            let run = self.busy.remove(&number).expect("it was submitted, and ends once");
            let (is_one, op) = (run.asked.len() == 1, run.op);
            if result.as_ref().is_err_and(|error| error.kind == Kind::Busy) {
                // Who asks again may find room.
                self.in_hand -= run.asked.len();
                self.counts.dropped += run.asked.len() as u64;
                run.asked.iter().for_each(|asked| self.forget(asked.from, asked.header.tag));
                continue;
            }
            let (mut read, mut wrote) = (result.clone().unwrap_or_default(), run.data);
            for asked in run.asked {
                let bytes = bytes_of(&asked.ata);
                let data = if op == Op::Write { wrote.split_to(bytes) } else { Bytes::new() };
                if result.is_err() && !is_one && op != Op::Flush {
                    // Something is wrong with many together: each is told of itself.
                    let (at, count) = (asked.ata.sector(), u64::from(asked.ata.count));
                    self.submit(Run { op, at, count, data, asked: vec![asked] });
                    continue;
                }
                self.in_hand -= 1;
                let read = if op == Op::Read && result.is_ok() { read.split_to(bytes) } else { Bytes::new() };
                self.answer(asked, result.clone().map(|_| read));
            }
        }
        let mut at = 0;
        while let Some(run) = self.waits.get(at) {
            match self.is_held(run, at) {
                true => at += 1,
                false => {
                    let run = self.waits.remove(at).expect("it is there");
                    self.submit(run);
                }
            }
        }
    }

    fn answer(&mut self, asked: Asked, result: Result<Bytes>) {
        let Asked { port, from: to, header, ata } = asked;
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
            // AoE has no error for a full disk; on this one initiators retry.
            Err(Error { kind: Kind::Down | Kind::Full, .. }) => {
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
            self.forget(to, header.tag);
        }
        let head = header.answer(self.setup.address, None).with(&answer.bytes());
        self.send(Out { port, to, head, data });
    }

    /// A write has not been done. Where it stood in the order there is nothing now, or what has its tag later.
    fn forget(&mut self, from: Mac, tag: u32) {
        self.written.remove(&(from, tag));
    }

    fn hash(&self, data: &[u8]) -> u64 {
        self.written.hasher().hash_one(data)
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

/// Bytes of the sectors that are read or written.
fn bytes_of(ata: &Ata) -> usize {
    usize::from(ata.count) * SECTOR as usize
}

#[cfg(test)]
mod tests;
