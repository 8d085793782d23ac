//! Mirrors ask the owner of the sectors which copy is right before they make members equal.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use nine_block::{Device, How, Io, Kind, SectorOwner, Shape, Table};

use crate::common::*;
use crate::expr::{build, disks, how};

/// Verifies blocks of two sectors, with two versions.
struct Knows;

impl SectorOwner for Knows {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        Some(sector / 2 * 2..sector / 2 * 2 + 2)
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        (1..3).any(|version| bytes == tagged(version, block.start, 2))
    }

    fn holds_latest(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        let version = if REWRITTEN.contains(&block.start) { 2 } else { 1 };
        bytes == tagged(version, block.start, 2)
    }
}

/// Sectors of blocks that have a second version in some tests.
const REWRITTEN: Range<u64> = 0..8;

/// Expressions around a mirror, for its first member (which is damaged), and for its second.
const AROUND: [&str; 7] = ["_", "(_w3)", "(w3_)", "[_w3]", "p(_)10.50", "f_", "(buffer 64K _)"];
const FIRST: [&str; 5] = ["w0", "(w0w1)", "[w0w1]", "p(w0)10.90", "(buffer 64K w0)"];
const SECOND: [&str; 3] = ["w2", "p(w2)5.90", "(buffer 64K w2)"];

/// Writes all sectors, damages some of the first member, and opens the device again after a crash. The error names a
/// wrong sector.
fn crash(seed: u64, text: &str, is_owned: bool) -> Result<(), String> {
    let (mut rng, mut world) = (Rng(seed), disks());
    let built = build(&mut world, text, &how(true)).map_err(|wrong| wrong.to_string())?;
    world.beside.extend(built.drivers);
    (0..10_000).for_each(|_| assert!(world.turn()));
    // From here on marks stay.
    world.beside.clear();
    let count = built.device.shape().sectors / 2 * 2;
    let all = tagged(1, 0, count);
    world.run(built.device.write(0, all.clone())).unwrap().unwrap();
    world.run(built.device.flush()).unwrap().unwrap();
    drop(built.device);
    world.cut(Keep::All);

    let known: HashMap<&[u8], u64> = all.chunks(512).zip(0..).collect();
    let mut spoilt = Vec::new();
    for disk in [0, 1] {
        for at in 0..400 {
            let is = world.disks[disk].peek(at);
            if known.contains_key(&is[..]) && rng.one_in(10) {
                world.disks[disk].lie(at, 9);
                spoilt.push((disk, at, is));
            }
        }
    }
    let how = How { owned: is_owned, ..how(false) };
    let built = build(&mut world, text, &how).map_err(|wrong| wrong.to_string())?;
    world.beside.extend(built.drivers);
    if is_owned {
        // Nothing is copied without an owner.
        (0..1_000).for_each(|_| assert!(world.turn()));
        built.device.owned_by(Arc::new(Knows));
    }
    (0..20_000).for_each(|_| assert!(world.turn()));
    let read = world.run(built.device.read(0, count)).unwrap().map_err(|error| error.to_string())?;
    if let Some(at) = (0..count as usize).find(|at| read[at * 512..][..512] != all[at * 512..][..512]) {
        return Err(format!("sector {at} of {} is what was rotten", spoilt.len()));
    }
    let is_left = |(disk, at, was): &&(usize, u64, [u8; 512])| world.disks[*disk].peek(*at) != *was;
    match spoilt.iter().find(is_left) {
        Some((disk, at, _)) => Err(format!("sector {at} of w{disk} is rotten still")),
        None if spoilt.is_empty() => Err("nothing was spoilt".into()),
        None => Ok(()),
    }
}

#[test]
fn the_right_copy_is_taken_and_not_the_first() {
    let (mut without, mut all) = (0, 0);
    for (seed, around) in (0..).zip(AROUND) {
        for first in FIRST {
            for second in SECOND {
                let text = around.replace('_', &format!("{{{first}{second}}}"));
                crash(seed, &text, true).unwrap_or_else(|wrong| panic!("{text}: {wrong}"));
                without += u64::from(crash(seed, &text, false).is_err());
                all += 1;
            }
        }
    }
    assert_eq!(without, all, "without an owner what the first has is right");
}

/// A member that was out has old versions. They replace a rotten block of the others only if they are the latest.
#[test]
fn an_old_version_of_a_member_that_returns_heals_nothing() {
    let mut world = disks();
    let built = build(&mut world, "{w0w1}", &how(true)).unwrap_or_else(|wrong| panic!("{wrong}"));
    world.beside.extend(built.drivers);
    let device = built.device;
    device.owned_by(Arc::new(Knows));
    (0..10_000).for_each(|_| assert!(world.turn()));
    world.run(device.write(0, tagged(1, 0, 16))).unwrap().unwrap();
    world.run(device.flush()).unwrap().unwrap();
    device.control(&["aside", "1"]).unwrap();
    (0..1_000).for_each(|_| assert!(world.turn()));
    // The second write marks the region of both.
    world.run(device.write(0, tagged(2, 0, 8))).unwrap().unwrap();
    world.run(device.flush()).unwrap().unwrap();
    let at = |sector| 128 + sector;
    for sector in [2, 10] {
        world.disks[0].lie(at(sector), 9);
    }
    device.control(&["return", "1"]).unwrap();
    (0..20_000).for_each(|_| assert!(world.turn()));
    assert!(device.trouble().is_empty(), "{:?}", device.trouble());
    let first = |sector: u64| world.disks[0].peek(at(sector));
    assert_eq!(first(2), [9; 512], "an old version is not taken for the block");
    assert_eq!(first(10)[..], tagged(1, 10, 1)[..], "the latest version heals");
    assert!((0..16).all(|sector| world.disks[1].peek(at(sector)) == first(sector)), "they are equal");
}

/// A device that reports the calls that it gets, for expressions around it.
struct Leaf(AtomicUsize);

impl Device for Leaf {
    fn shape(&self) -> Shape {
        Shape { sectors: 400, atom: 1, most: 8, read_only: false, durable: true }
    }

    fn submit(&self, io: Io) {
        io.fail(Kind::Failed, "it is not used");
    }

    fn name(&self) -> String {
        "o".into()
    }

    fn unbacked(&self) -> u64 {
        512
    }

    fn trouble(&self) -> Vec<String> {
        vec!["leaf".into()]
    }

    fn owned_by(&self, _: Arc<dyn SectorOwner>) {
        self.0.fetch_add(1, Relaxed);
    }
}

#[test]
fn expressions_pass_owners_on_and_report_what_their_devices_report() {
    for (text, leaves) in [
        ("o", 1),
        ("(oo)", 2),
        ("[oo]", 2),
        ("p(o)5.50", 1),
        ("p(o)5.120", 1),
        ("bare{oo}", 2),
        ("roo", 1),
        ("(buffer 64K o)", 1),
        ("([p(o)5.50o]bare{o(buffer 64K o)})", 4),
    ] {
        let made: Arc<Mutex<Vec<Arc<Leaf>>>> = Arc::default();
        let mut table = Table::default();
        let all = made.clone();
        table.letter("o", move |_| {
            let leaf = Arc::new(Leaf(AtomicUsize::new(0)));
            all.lock().unwrap().push(leaf.clone());
            Box::pin(async move { Ok(leaf as Arc<dyn Device>) })
        });
        let built = disks().run(table.build(text, &how(false))).expect("the power is there");
        let device = built.unwrap_or_else(|wrong| panic!("{wrong}")).device;
        device.owned_by(Arc::new(Knows));
        let made = made.lock().unwrap();
        assert_eq!(made.len(), leaves, "{text}");
        assert!(made.iter().all(|leaf| leaf.0.load(Relaxed) == 1), "{text}: an owner is not passed on");
        assert_eq!(device.trouble(), vec!["leaf"; leaves], "{text}");
        assert_eq!(device.unbacked() > 0, !text.starts_with("ro"), "{text}");
    }
}
