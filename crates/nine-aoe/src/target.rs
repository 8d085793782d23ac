//! A target: exports a device to other machines on the Ethernet (`docs/aoe.md`).
//!
//! In: frames with their interface and sender; completed operations of the device. Out: frames, and operations for the
//! device. No clock, no link.
//!
//! Always holds: a request has at most one answer; a write is answered only after the device has completed it; the
//! pending requests and unsent answers together do not exceed the announced queue length.

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

/// The announced firmware version.
const FIRMWARE: u16 = 0x9001;
/// Number of remembered writes. If the network repeats a frame, it must not overwrite later writes. This covers 0.3 s
/// at 1.5 GB/s, in 5 MB. Beyond it the oldest is forgotten.
const REMEMBERED: usize = 1 << 16;

/// Maximum number of sectors in one device operation that joins consecutive requests.
const RUN: u64 = 256;

/// Parameters of a target.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The target's address.
    pub address: Address,
    /// Queue length in frames, at least 1. Requests beyond it are dropped, and clients send them again.
    pub frames: u16,
    /// The disk's identity, at most 20 bytes. It must be unique.
    pub serial: String,
    /// The config string, at most [`CONFIG_MAX`](crate::frame::CONFIG_MAX) bytes.
    pub config: Vec<u8>,
    /// Clients whose requests are accepted; empty: all.
    pub mask: Vec<Mac>,
    /// Writes are refused.
    pub read_only: bool,
    /// See [`Identify::boot`]. If written data outlives this process, it is the boot of the machine, not of the
    /// process.
    pub boot: u64,
}

impl Setup {
    /// Creates parameters for a writable target without a mask, with a queue of 64 frames.
    pub fn new(address: Address, serial: impl Into<String>) -> Self {
        let serial = serial.into();
        Self { address, frames: 64, serial, config: Vec::new(), mask: Vec::new(), read_only: false, boot: 0 }
    }
}

/// Counters, in frames except where noted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Counts {
    pub asked: u64,
    pub answered: u64,
    /// Beyond the queue length.
    pub dropped: u64,
    /// Repetitions of a request that is pending or recently completed.
    pub repeated: u64,
    /// From clients outside the mask.
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

/// A target. Its owner passes frames in with `receive`, and sends the frames of `transmit`.
pub struct Target {
    setup: Setup,
    ports: Vec<Interface>,
    device: Arc<dyn Device>,
    lists: Lists,
    /// Consecutive requests are gathered here, and become one operation of the device.
    run: Option<Run>,
    gathered: BytesMut,
    /// Writes that overlap pending ones, in order of arrival; and flushes that arrived during a flush, merged into one.
    waits: VecDeque<Run>,
    /// Operations in progress at the device, by number.
    busy: HashMap<u64, Run>,
    next: u64,
    /// Number of requests in `run`, `waits` and `busy`.
    in_hand: usize,
    ends: Arc<Ends>,
    /// Recent writes, by client and tag: their registers and a hash of their data.
    written: HashMap<(Mac, u32), (Ata, u64), DefaultHashBuilder>,
    written_order: VecDeque<(Mac, u32)>,
    /// Unsent answers.
    out: VecDeque<Out>,
    counts: Counts,
}

/// A pending request.
struct Asked {
    port: usize,
    from: Mac,
    header: Header,
    ata: Ata,
}

/// Requests that form one operation of the device. Reads and writes may have several, with consecutive sectors.
struct Run {
    op: Op,
    at: u64,
    count: u64,
    /// Data of a write. While requests are gathered, it is in the target's `gathered`.
    data: Bytes,
    asked: Vec<Asked>,
}

/// Completed operations, reported from any thread.
#[derive(Default)]
struct Ends(Mutex<(Vec<Over>, Option<Waker>)>);

/// A completed operation: number and result.
type Over = (u64, Result<Bytes>);

impl Target {
    /// Exports a device on these interfaces. The first frames announce the target by broadcast.
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

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Updates the address and MTU of an interface.
    pub fn is_now(&mut self, port: usize, interface: Interface) {
        self.ports[port] = interface;
    }

    /// Returns text for people: the queue, the lists, the counters, the device.
    pub fn status(&self) -> String {
        let Setup { address, frames, .. } = &self.setup;
        let in_hand = self.in_hand;
        let (device, lists) = (self.device.status(), self.lists.status());
        format!("e{address} {in_hand} of {frames} frames\n{lists}{}\n{device}", self.counts)
    }

    /// Sets the waker that is called when the device completes an operation.
    pub fn wakes(&self, waker: &Waker) {
        lock(&self.ends.0).1 = Some(waker.clone());
    }

    /// Returns the next frame to send. Starts gathered requests and handles completed ones first.
    pub fn transmit(&mut self) -> Option<Out> {
        self.begin();
        self.finish();
        self.out.pop_front()
    }

    /// Processes a received frame.
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
                // Pending requests of excluded clients may still change the disk. Stay silent: the client repeats its
                // request, and is answered when they are done.
                Ok(_) if self.asked().any(|asked| !self.lists.may(asked.from)) => {}
                Ok(answer) => self.reply(port, from, header, None, answer),
                Err(code) => self.refuse(port, from, header, code, body),
            },
            _ => self.refuse(port, from, header, error::COMMAND, body),
        }
    }

    /// Refuses a request: the answer repeats its arguments, without data.
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
            // Identify asks the device for its present size first.
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
        // A client may reuse a tag with other data.
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

    /// All pending requests.
    fn asked(&self) -> impl Iterator<Item = &Asked> {
        self.busy.values().chain(&self.waits).chain(&self.run).flat_map(|run| &run.asked)
    }

    /// Submits the gathered run to the device, or queues it.
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

    /// Whether a run must wait for the operations in progress or for the first `n` queued ones. Overlapping writes run
    /// in order of arrival: one may be a repeated copy, which must not overwrite a later write of its sender.
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

    /// Remembers a write.
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

    /// Answers the requests whose operations the device has completed.
    fn finish(&mut self) {
        let ended = std::mem::take(&mut lock(&self.ends.0).0);
        for (number, result) in ended {
            let run = self.busy.remove(&number).expect("it was submitted, and ends once");
            let (is_one, op) = (run.asked.len() == 1, run.op);
            if result.as_ref().is_err_and(|error| error.kind == Kind::Busy) {
                // Not answered: the client repeats its request, and there may be room then.
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
                    // A joined operation failed. Each request is submitted alone, so that each has its own result.
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
            // AoE has no error code for a full disk. Initiators retry on this one.
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
        // After a failure the client may send the same write again.
        if failed {
            self.forget(to, header.tag);
        }
        let head = header.answer(self.setup.address, None).with(&answer.bytes());
        self.send(Out { port, to, head, data });
    }

    /// Forgets a write that was not executed. Its key stays in `written_order`, where it may name no write or a later
    /// one of the same tag.
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

/// Returns the length in bytes of a request's sectors.
fn bytes_of(ata: &Ata) -> usize {
    usize::from(ata.count) * SECTOR as usize
}

#[cfg(test)]
mod tests;
