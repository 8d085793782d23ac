//! Initiators and a target on two faulty Ethernets: frames are lost, duplicated, late and forged, paths are cut and
//! return, and the target restarts with or without a reboot of its machine. Every acknowledged write must be there.

mod oracle;
mod wire;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nine_aoe::frame::{Address, Reserve, command, error};
use nine_aoe::initiator::{Event, State};
use nine_aoe::target::Setup;
use nine_block::{Kind, Op};
use nine_sim::{Rng, seeds, tries_all};
use oracle::Oracle;
use wire::{Faults, SECOND, US, Wire};

const DISK: Address = Address { shelf: 7, slot: 1 };
const SECTORS: u64 = 600;

fn setup() -> Setup {
    Setup { boot: 1, ..Setup::new(DISK, "the disk") }
}

fn weather(rng: &mut Rng) -> Faults {
    let mut one_in = |from: usize| if rng.one_in(3) { 0 } else { from + rng.below(60) };
    let (lost, twice, late, forged) = (one_in(5), one_in(5), one_in(5), one_in(10));
    let late_by = (1 + rng.below(40_000) as u32) * US;
    Faults { lost, twice, late, late_by, forged, ..Faults::default() }
}

fn has_ended(wire: &mut Wire, oracle: &mut Oracle) -> bool {
    oracle.judge(wire);
    oracle.under_way() == 0
}

/// Removes all faults: pending operations end, and all sectors have allowed contents.
fn ends_well(wire: &mut Wire, oracle: &mut Oracle) {
    let seed = oracle.seed;
    wire.faults = Faults::default();
    assert!(
        wire.until(20 * SECOND, |wire| has_ended(wire, oracle)),
        "seed {seed}: it goes on without an end"
    );
    let kinds = oracle.kinds.len();
    (0..SECTORS).step_by(50).for_each(|at| oracle.submit(wire, Op::Read, at..at + 50));
    oracle.submit(wire, Op::Flush, 0..0);
    assert!(wire.until(5 * SECOND, |wire| has_ended(wire, oracle)), "seed {seed}: the last reads do not end");
    let poisoned = oracle.kinds[kinds..].iter().filter(|kind| **kind != Kind::Poisoned).count();
    assert_eq!(poisoned, 0, "seed {seed}: {:?}", oracle.kinds);
    // Copies expire; then nothing is left.
    wire.until(3 * SECOND, |_| false);
    assert!(wire.disk.state().waiting.is_empty(), "seed {seed}");
}

#[test]
fn every_acknowledged_write_is_there_whatever_the_networks_do() {
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(40) {
        let mut rng = Rng::new(seed);
        let mtus = [[9000, 9000], [9000, 1500], [1500, 1500]][rng.below(3)];
        let setup = Setup { frames: [4, 16, 64, 300][rng.below(4)], ..setup() };
        let mut wire = Wire::new(rng.fork(), setup, mtus, SECTORS);
        wire.plug(30 * SECOND, mtus);
        let mut oracle = Oracle::new(seed, 0, SECTORS);
        let depth = 1 + rng.below(30);
        wire.faults = weather(&mut rng);
        for _ in 0..200 {
            while oracle.under_way() < depth {
                oracle.begin(&mut wire);
                oracle.judge(&wire);
            }
            match rng.below(60) {
                0 => {
                    let cut = [rng.one_in(2), rng.one_in(2)];
                    wire.faults = Faults { cut, ..weather(&mut rng) };
                }
                1 => wire.faults.small = [rng.one_in(2), rng.one_in(2)],
                2 => {
                    wire.restart(false);
                    *seen.entry("restarted").or_default() += 1;
                }
                3 => {
                    wire.restart(true);
                    oracle.crash();
                    *seen.entry("crashed").or_default() += 1;
                }
                4 => {
                    wire.disk.state().sectors += 8;
                    *seen.entry("grown").or_default() += 1;
                }
                5..10 => wire.faults.cut = [false; 2],
                _ => {}
            }
            let while_ = (1 + rng.below(20_000) as u32) * US;
            wire.until(while_, |wire| {
                oracle.judge(wire);
                oracle.under_way() < depth / 2
            });
        }
        ends_well(&mut wire, &mut oracle);
        assert!(oracle.kinds.iter().all(|kind| *kind == Kind::Poisoned), "seed {seed}: {:?}", oracle.kinds);
        let counts = wire.initiators[0].counts();
        let mut saw = |what, n| *seen.entry(what).or_default() += n;
        let happened = wire.happened;
        saw("lost", happened.lost);
        saw("twice", happened.twice);
        saw("late", happened.late);
        saw("forged", happened.forged);
        saw("cut", happened.cut);
        saw("small", happened.small);
        saw("done", oracle.done);
        saw("flushes", oracle.flushes);
        saw("poisoned", oracle.kinds.len() as u64);
        saw("resent", counts.resent);
        saw("late answers", counts.late);
        saw("unexpected answers", counts.unexpected);
        saw("foreign answers", counts.foreign);
        saw("held writes", counts.held);
        let target = wire.target.as_ref().expect("it runs").counts();
        saw("dropped by a full target", target.dropped);
        saw("repeated to the target", target.repeated);
        while let Some(event) = wire.initiators[0].event() {
            saw(
                match event {
                    Event::Up(_) => "up",
                    Event::Down => "down",
                    Event::Other(_) => "other",
                    Event::Resized(..) => "resized",
                    Event::Started => "started",
                    Event::PathUp(..) => "path up",
                    Event::PathDown(..) => "path down",
                    Event::PathSmall(..) => "path small",
                },
                1,
            );
        }
    }
    assert!(!seen.contains_key("down") && !seen.contains_key("other"), "{seen:?}");
    if tries_all(40) {
        for what in EVERYTHING {
            assert!(seen.get(what).is_some_and(|n| *n > 0), "no world had `{what}`: {seen:?}");
        }
    }
}

/// Each of these must have happened in some world.
const EVERYTHING: [&str; 25] = [
    "lost",
    "twice",
    "late",
    "forged",
    "cut",
    "small",
    "restarted",
    "crashed",
    "grown",
    "done",
    "flushes",
    "poisoned",
    "resent",
    "late answers",
    "unexpected answers",
    "foreign answers",
    "held writes",
    "dropped by a full target",
    "repeated to the target",
    "up",
    "resized",
    "started",
    "path up",
    "path down",
    "path small",
];

/// Returns a wire without faults, whose initiator has found the target.
fn found(seed: u64, patience: Duration, setup: Setup) -> (Wire, Oracle) {
    let mut wire = Wire::new(Rng::new(seed), setup, [9000, 9000], SECTORS);
    wire.plug(patience, [9000, 9000]);
    assert!(wire.until(SECOND, |wire| *wire.initiators[0].state() == State::Up), "it is found");
    (wire, Oracle::new(seed, 0, SECTORS))
}

/// Runs one operation, and returns its result.
fn one(wire: &mut Wire, oracle: &mut Oracle, op: Op, at: u64) -> Result<(), Kind> {
    let failed = oracle.kinds.len();
    let count = if matches!(op, Op::Flush | Op::Look) { 0 } else { 40 };
    oracle.submit(wire, op, at..at + count);
    assert!(wire.until(60 * SECOND, |wire| has_ended(wire, oracle)), "it ends");
    oracle.kinds.get(failed).map_or(Ok(()), |kind| Err(*kind))
}

/// Works for this long, with this many operations in flight.
fn works(wire: &mut Wire, oracle: &mut Oracle, depth: usize, how_long: Duration) -> u64 {
    let (done, end) = (oracle.done, wire.now + how_long);
    while wire.now < end {
        while oracle.under_way() < depth {
            oracle.begin(wire);
        }
        wire.until(end - wire.now, |wire| {
            oracle.judge(wire);
            oracle.under_way() < depth
        });
    }
    oracle.done - done
}

fn happened(wire: &mut Wire) -> Vec<Event> {
    std::iter::from_fn(|| wire.initiators[0].event()).collect()
}

#[test]
fn a_path_that_is_cut_is_no_error_and_carries_its_part_two_seconds_after_its_return() {
    for seed in seeds(20) {
        let (mut wire, mut oracle) = found(seed, 30 * SECOND, setup());
        let before = works(&mut wire, &mut oracle, 8, SECOND / 20);
        happened(&mut wire);
        wire.faults.cut = [true, false];
        // If copies of writes may still arrive, all operations may be held, and nothing is sent for a while.
        let mut events = Vec::new();
        for _ in 0..10 {
            works(&mut wire, &mut oracle, 8, SECOND / 2);
            events.extend(happened(&mut wire));
            if !events.is_empty() {
                break;
            }
        }
        assert!(
            matches!(events[..], [Event::PathDown(_, 0)]),
            "seed {seed}: {events:?} {}",
            wire.initiators[0].status()
        );
        wire.faults.cut = [false, false];
        let is_back =
            |wire: &mut Wire| happened(wire).iter().any(|event| matches!(event, Event::PathUp(_, 0)));
        assert!(wire.until(2 * SECOND, is_back), "seed {seed}");
        works(&mut wire, &mut oracle, 8, SECOND / 20);
        let after = works(&mut wire, &mut oracle, 8, SECOND / 20);
        assert!(after > before / 2, "seed {seed}: {after} after {before}");
        assert_eq!(oracle.kinds, [], "seed {seed}");
        ends_well(&mut wire, &mut oracle);
    }
}

#[test]
fn what_vanishes_is_down_when_patience_ends_and_is_up_again_when_it_comes_back() {
    let (mut wire, mut oracle) = found(1, 5 * SECOND, setup());
    assert_eq!(one(&mut wire, &mut oracle, Op::Write, 0), Ok(()));
    happened(&mut wire);
    wire.faults.cut = [true; 2];
    for (op, at) in [(Op::Write, 100), (Op::Read, 200), (Op::Flush, 0), (Op::Look, 0)] {
        let n = if at == 0 { 0 } else { 100 };
        oracle.submit(&mut wire, op, at..at + n);
    }
    let begun = wire.now;
    assert!(wire.until(60 * SECOND, |wire| has_ended(wire, &mut oracle)));
    let took = wire.now - begun;
    assert!(4 * SECOND < took && took < 7 * SECOND, "{took:?}");
    assert_eq!(oracle.kinds, [Kind::Down; 4]);
    assert!(happened(&mut wire).contains(&Event::Down));
    let begun = wire.now;
    assert_eq!(one(&mut wire, &mut oracle, Op::Read, 0), Err(Kind::Down));
    assert!(wire.now - begun < SECOND / 10, "at once");
    wire.faults.cut = [false; 2];
    assert!(wire.until(2 * SECOND, |wire| *wire.initiators[0].state() == State::Up));
    assert_eq!(one(&mut wire, &mut oracle, Op::Read, 0), Ok(()));
    // A target that was never seen is down, too, and operations that wait for it fail.
    let mut wire = Wire::new(Rng::new(1), setup(), [1500; 2], SECTORS);
    wire.faults.cut = [true; 2];
    wire.plug(5 * SECOND, [1500; 2]);
    let mut oracle = Oracle::new(1, 0, SECTORS);
    assert_eq!(one(&mut wire, &mut oracle, Op::Read, 0), Err(Kind::Down));
    assert!(wire.now < 6 * SECOND, "{:?}", wire.now);
}

/// Sends a reserve request with the initiator's addresses. Returns the target's error code.
fn reserve(wire: &mut Wire, who: usize, what: u8) -> Option<u8> {
    let macs = wire.cards[who].iter().map(|card| card.mac).collect();
    let (told, answer) = (Arc::new(Mutex::new(None)), Arc::new(Mutex::new(None)));
    let into = told.clone();
    let told_ = Box::new(move |result| *into.lock().expect("no panic") = Some(result));
    let body = Reserve { what, macs }.bytes();
    wire.initiators[who].ask(wire.now, command::RESERVE, body, told_);
    wire.until(5 * SECOND, |_| {
        let done = told.lock().expect("no panic").take();
        done.is_some_and(|done| answer.lock().expect("no panic").replace(done).is_none())
    });
    let answer = answer.lock().expect("no panic").take();
    answer.expect("it is answered").expect("by the target").0
}

#[test]
fn who_has_not_reserved_it_is_told_so_and_nothing_of_his_is_written() {
    for seed in seeds(10) {
        let (mut wire, mut mine) = found(seed, 30 * SECOND, setup());
        wire.plug(30 * SECOND, [1500; 2]);
        assert!(wire.until(SECOND, |wire| *wire.initiators[1].state() == State::Up));
        let mut other = Oracle::new(seed, 1, SECTORS);
        wire.faults = Faults { lost: 10, twice: 10, ..Faults::default() };
        assert_eq!(reserve(&mut wire, 0, 1), None);
        assert_eq!(reserve(&mut wire, 1, 1), Some(error::RESERVED));
        assert_eq!(one(&mut wire, &mut mine, Op::Write, 10), Ok(()));
        assert_eq!(one(&mut wire, &mut other, Op::Write, 10), Err(Kind::Reserved));
        assert_eq!(one(&mut wire, &mut other, Op::Read, 10), Err(Kind::Reserved));
        assert_eq!(one(&mut wire, &mut other, Op::Flush, 0), Err(Kind::Reserved));
        assert_eq!(one(&mut wire, &mut other, Op::Look, 0), Ok(()));
        works(&mut wire, &mut mine, 4, SECOND / 10);
        // Operations in flight when another initiator reserves by force are done or fail.
        works(&mut wire, &mut mine, 4, SECOND / 100);
        assert_eq!(reserve(&mut wire, 1, 2), None);
        wire.until(30 * SECOND, |wire| has_ended(wire, &mut mine));
        assert!(mine.kinds.iter().all(|kind| *kind == Kind::Reserved), "seed {seed}: {:?}", mine.kinds);
        mine.kinds.clear();
        assert_eq!(one(&mut wire, &mut mine, Op::Write, 10), Err(Kind::Reserved));
    }
}

#[test]
fn a_smaller_disk_is_noticed_and_another_one_is_refused_until_the_first_is_back() {
    let (mut wire, mut oracle) = found(3, 30 * SECOND, setup());
    assert_eq!(one(&mut wire, &mut oracle, Op::Write, 550), Ok(()));
    happened(&mut wire);
    wire.disk.state().sectors = 500;
    assert_eq!(one(&mut wire, &mut oracle, Op::Read, 550), Err(Kind::Range));
    wire.until(SECOND, |_| false);
    assert!(happened(&mut wire).contains(&Event::Resized(600, 500)));
    assert_eq!(wire.initiators[0].shape().sectors, 500);
    assert_eq!(one(&mut wire, &mut oracle, Op::Read, 0), Ok(()));
    wire.disk.state().sectors = 700;
    assert_eq!(one(&mut wire, &mut oracle, Op::Look, 0), Ok(()));
    assert_eq!(wire.initiators[0].shape().sectors, 700);
    // After its start the target must identify itself before other frames are sent. The pending operation fails, and
    // nothing is written.
    wire.setup.serial = "another".into();
    wire.restart(false);
    wire.until(SECOND / 10, |_| false);
    assert_eq!(one(&mut wire, &mut oracle, Op::Write, 100), Err(Kind::Failed));
    assert_eq!(*wire.initiators[0].state(), State::Other("another".into()));
    assert_eq!(wire.target.as_ref().expect("it runs").counts().written, 0);
    wire.setup.serial = "the disk".into();
    wire.restart(false);
    assert!(wire.until(2 * SECOND, |wire| *wire.initiators[0].state() == State::Up));
    assert_eq!(one(&mut wire, &mut oracle, Op::Write, 100), Ok(()));
}

#[test]
fn another_disk_behind_a_silence_is_noticed_before_it_is_written() {
    let (mut wire, mut oracle) = found(4, 30 * SECOND, setup());
    wire.faults.cut = [true; 2];
    oracle.submit(&mut wire, Op::Write, 0..40);
    wire.until(SECOND, |_| false);
    wire.setup.serial = "another".into();
    wire.restart(false);
    // The announcement of its start is lost.
    while wire.target.as_mut().expect("it runs").transmit().is_some() {}
    wire.faults.cut = [false; 2];
    assert!(wire.until(5 * SECOND, |wire| has_ended(wire, &mut oracle)));
    assert_eq!(oracle.kinds, [Kind::Failed]);
    assert_eq!(wire.target.as_ref().expect("it runs").counts().written, 0);
}

#[test]
fn where_large_frames_do_not_come_through_small_ones_do_until_large_ones_do() {
    let (mut wire, mut oracle) = found(5, 30 * SECOND, setup());
    assert_eq!(one(&mut wire, &mut oracle, Op::Write, 0), Ok(()));
    wire.faults.small = [true; 2];
    works(&mut wire, &mut oracle, 8, SECOND / 2);
    assert!(happened(&mut wire).iter().filter(|event| matches!(event, Event::PathSmall(..))).count() >= 2);
    let small = works(&mut wire, &mut oracle, 8, SECOND / 20);
    assert!(small > 100, "{small}");
    wire.faults.small = [false; 2];
    wire.until(3 * SECOND, |_| false);
    works(&mut wire, &mut oracle, 8, SECOND / 20);
    let status = wire.initiators[0].status();
    assert_eq!(status.matches("sectors 17").count(), 2, "{status}");
    assert_eq!(oracle.kinds, []);
}
