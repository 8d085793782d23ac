//! Mirrors that make their members equal after a crash ask the owner of the sectors which of them is right.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use nine_block::{How, SectorOwner};

use crate::common::*;
use crate::expr::{build, disks, how};

/// Knows each block of two sectors.
struct Knows;

impl SectorOwner for Knows {
    fn block(&self, sector: u64) -> Option<Range<u64>> {
        Some(sector / 2 * 2..sector / 2 * 2 + 2)
    }

    fn holds(&self, block: Range<u64>, bytes: &[u8]) -> bool {
        bytes == tagged(1, block.start, block.end - block.start)
    }
}

/// What a mirror is in, and what its members are: those of the first are spoilt.
const AROUND: [&str; 7] = ["_", "(_w3)", "(w3_)", "[_w3]", "p(_)10.50", "f_", "(buffer 64K _)"];
const FIRST: [&str; 5] = ["w0", "(w0w1)", "[w0w1]", "p(w0)10.90", "(buffer 64K w0)"];
const SECOND: [&str; 3] = ["w2", "p(w2)5.90", "(buffer 64K w2)"];

/// Writes all of it, spoils some of the first member, and opens it again after a crash. What is wrong then.
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
        // Nothing is copied before it is known who owns it.
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
