//! AoE: arbitrary frames for the decoders, a target and an initiator.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_aoe::frame::{Address, Ata, Config, EVERYBODY, Header, Interface, Mask, Out, Reserve};
use nine_aoe::identify::Identify;
use nine_aoe::{initiator, target};
use nine_block::{Device, Io, Op, Ram, Shape};
use nine_net::ether::Mac;

const DISK: Address = Address { shelf: 1, slot: 0 };
const HERE: Mac = Mac([2, 0, 0, 0, 0, 1]);
const THERE: Mac = Mac([2, 0, 0, 0, 0, 2]);
const MTU: usize = 1500;
const SECTORS: u64 = 1000;

/// A decoded frame, encoded again, decodes to the same value.
pub fn aoe_frame(data: &[u8]) {
    let Some((header, body)) = Header::parse(data) else { return };
    assert_eq!(Header::parse(&header.with(body)), Some((header, body)));
    if let Some((ata, rest)) = Ata::parse(body) {
        assert_eq!(Ata::parse(&[&ata.bytes()[..], rest].concat()), Some((ata, rest)));
        assert!(ata.sector() < 1 << 48);
    }
    if let Some(config) = Config::parse(body) {
        assert_eq!(Config::parse(&config.bytes()), Some(config));
    }
    if let Some(mask) = Mask::parse(body) {
        assert_eq!(Mask::parse(&mask.bytes()), Some(mask));
    }
    if let Some(reserve) = Reserve::parse(body) {
        assert_eq!(Reserve::parse(&reserve.bytes()), Some(reserve));
    }
    if let Some(identify) = Identify::parse(body) {
        assert_eq!(Identify::parse(&identify.bytes()), Some(identify));
    }
}

/// A disk in memory that completes operations only on demand.
struct Held {
    ram: Ram,
    held: Mutex<VecDeque<Io>>,
}

impl Held {
    fn new() -> Arc<Self> {
        Arc::new(Self { ram: Ram::new(SECTORS), held: Mutex::default() })
    }

    /// Completes one pending operation. Returns false if there is none.
    fn end(&self, which: u8) -> bool {
        let mut held = self.held.lock().expect("no panic");
        let at = usize::from(which) % held.len().max(1);
        let Some(io) = held.remove(at) else { return false };
        drop(held);
        self.ram.submit(io);
        true
    }

    fn len(&self) -> usize {
        self.held.lock().expect("no panic").len()
    }
}

impl Device for Held {
    fn shape(&self) -> Shape {
        self.ram.shape()
    }

    fn submit(&self, io: Io) {
        self.held.lock().expect("no panic").push_back(io);
    }

    fn name(&self) -> String {
        "held".into()
    }
}

fn port() -> Interface {
    Interface { mac: HERE, mtu: MTU }
}

fn bytes(out: &Out) -> Vec<u8> {
    [&out.head[..], &out.data].concat()
}

/// Input: actions of five bytes each; a frame takes its body from the bytes that follow. A target never has more
/// pending requests and unsent answers than its queue length, and answers no frame twice.
pub fn aoe_target(data: &[u8]) {
    let Some((&how, mut rest)) = data.split_first() else { return };
    let disk = Held::new();
    let frames = u16::from(how % 8) + 1;
    let setup = target::Setup { frames, read_only: how & 64 != 0, ..target::Setup::new(DISK, "fuzz") };
    let mut target = target::Target::new(setup, disk.clone(), vec![port()]);
    let hello = target.transmit().expect("it says that it is there");
    assert_eq!((hello.to, target.transmit()), (EVERYBODY, None));
    let (mut came, mut answered) = (0u64, 0u64);
    let mut leaves = |target: &mut target::Target, most: u64| {
        for _ in 0..most {
            let Some(out) = target.transmit() else { break };
            let frame = bytes(&out);
            let (header, _) = Header::parse(&frame).expect("ours");
            assert!(header.response && header.address == DISK && frame.len() <= MTU);
            answered += 1;
        }
        answered
    };
    while let Some((&[act, a, b, c, len], more)) = rest.split_first_chunk::<5>() {
        rest = more;
        match act {
            0..64 => drop(disk.end(a)),
            64..96 => drop(leaves(&mut target, u64::from(a % 4))),
            _ => {
                let body;
                (body, rest) = rest.split_at(rest.len().min(usize::from(len) * 8));
                let frame = if act < 128 { body.to_vec() } else { frame(act, [a, b, c], body) };
                came += 1;
                target.receive(0, if a & 128 == 0 { THERE } else { HERE }, &frame);
            }
        }
        assert!(disk.len() <= usize::from(frames), "{} operations of {frames} frames", disk.len());
        assert!(leaves(&mut target, 0) <= came);
    }
    // Complete all pending operations.
    loop {
        leaves(&mut target, u64::MAX);
        if !disk.end(0) {
            break;
        }
    }
    let (answers, counts) = (leaves(&mut target, u64::MAX), target.counts());
    assert!(answers <= came && counts.asked <= came && counts.answered <= counts.asked, "{counts:?}");
    assert!(target.status().contains(" 0 of "), "{}", target.status());
}

/// Returns a request with a valid header and mostly valid arguments.
fn frame(act: u8, [a, b, c]: [u8; 3], body: &[u8]) -> Vec<u8> {
    let header = Header::ask(DISK, if act < 240 { 0 } else { act % 5 }, u32::from(b % 64));
    if header.command != 0 {
        return header.with(body);
    }
    let command = [0x20, 0x24, 0x30, 0x34, 0xec, 0xe7, 0xea, 0xe5, act][usize::from(a % 9)];
    let is_write = command & 0xf0 == 0x30;
    let ata = Ata::new(command, u64::from(c) * 4, 1 + b / 128, command & 4 != 0, is_write);
    let mut data = body.to_vec();
    data.resize(if is_write { usize::from(ata.count) * 512 } else { 0 }, act);
    [&header.with(&ata.bytes())[..], &data].concat()
}

/// Input: actions of five bytes each: operations, time, and frames of a target, some with changed bytes. Each operation
/// completes once, and the initiator only sends without end if time passes.
pub fn aoe_initiator(data: &[u8]) {
    let Some((&how, mut rest)) = data.split_first() else { return };
    let patience = Duration::from_secs(30);
    let setup = initiator::Setup { patience, ..initiator::Setup::new(DISK, u64::from(how)) };
    let mut now = Duration::ZERO;
    let mut initiator = initiator::Initiator::new(now, setup, vec![port()]);
    let there = Interface { mac: THERE, mtu: MTU };
    let ram: Arc<dyn Device> = Arc::new(Ram::new(SECTORS));
    let mut target = target::Target::new(target::Setup::new(DISK, "fuzz"), ram, vec![there]);
    // The target's answers, the newest last.
    let mut answers: Vec<Vec<u8>> = Vec::new();
    let (mut begun, ended) = (0, Arc::new(AtomicU64::new(0)));
    while let Some((&[act, a, b, c, d], more)) = rest.split_first_chunk::<5>() {
        rest = more;
        match act {
            0..48 => {
                begun += 1;
                let ended = ended.clone();
                let done = move |_| {
                    ended.fetch_add(1, Ordering::Relaxed);
                };
                let (at, count) = (u64::from(a) * 4, u64::from(b % 8));
                initiator.submit(
                    now,
                    match c % 5 {
                        0 | 1 => Io::read(at, count, done),
                        2 => Io::write(at, vec![d; count as usize * 512].into(), done),
                        3 => Io::other(Op::Flush, 0, 0, done),
                        _ => Io::other(Op::Look, 0, 0, done),
                    },
                );
            }
            48..56 => {
                begun += 1;
                let ended = ended.clone();
                let told = Box::new(move |_| {
                    ended.fetch_add(1, Ordering::Relaxed);
                });
                initiator.ask(now, a % 4, rest[..rest.len().min(usize::from(b))].to_vec(), told);
            }
            56..80 => now += Duration::from_micros(1 << (a % 25)),
            80..96 => {
                let frame;
                (frame, rest) = rest.split_at(rest.len().min(usize::from(a)));
                initiator.receive(now, 0, THERE, frame);
            }
            _ if answers.is_empty() => {}
            _ => {
                let at = answers.len() - 1 - usize::from(a) % answers.len();
                let mut frame = answers[at].clone();
                // Half of them are unchanged.
                if act % 2 == 1 {
                    let byte = usize::from(b) % frame.len();
                    frame[byte] = c;
                    frame.truncate(frame.len() - usize::from(d) % 32 % frame.len());
                }
                initiator.receive(now, 0, THERE, &frame);
            }
        }
        step(&mut initiator, now, |frame| {
            target.receive(0, HERE, frame);
            answers.extend(std::iter::from_fn(|| target.transmit()).map(|out| bytes(&out)));
        });
        let over = answers.len().saturating_sub(64);
        answers.drain(..over);
    }
    // From here on there are no answers.
    for _ in 0..2000 {
        if ended.load(Ordering::Relaxed) == begun {
            let _ = initiator.status();
            return;
        }
        now = initiator.deadline().max(now + Duration::from_millis(50));
        step(&mut initiator, now, |_| ());
    }
    panic!("{} of {begun} operations have ended", ended.load(Ordering::Relaxed));
}

/// Sends all frames that are due at this time.
fn step(initiator: &mut initiator::Initiator, now: Duration, mut sent: impl FnMut(&[u8])) {
    let mut left = 0;
    while let Some(out) = initiator.transmit(now) {
        left += 1;
        assert!(left < 10_000, "it says more and more");
        let frame = bytes(&out);
        assert!(frame.len() <= MTU && Header::parse(&frame).is_some_and(|(header, _)| !header.response));
        sent(&frame);
    }
    while let Some(ended) = initiator.ended() {
        ended.tell();
    }
    while initiator.event().is_some() {}
}
