//! The `Slate` against objects in memory.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use nine_block::{Device, Kind};

use super::{all_are_well, by_now, chance, kind, now, of};
use crate::memory::{Fate, Memory, Request};
use crate::{Patience, Slate};

fn slate(memory: &Memory) -> Arc<dyn Device> {
    Arc::new(Slate::new(Arc::new(memory.clone()), "s3\"attic\"".into(), Patience(Duration::from_secs(2))))
}

#[test]
fn what_one_writes_the_other_reads() {
    let memory = Memory::default();
    let (one, two) = (slate(&memory), slate(&memory));
    assert_eq!(now(two.read(0, 256)).unwrap(), of(0, 256));
    assert_eq!(memory.names(), Vec::<String>::new(), "who reads makes nothing");
    now(one.write(8, of(1, 2))).unwrap();
    now(two.write(9, of(2, 1))).unwrap();
    now(one.write(255, of(3, 1))).unwrap();
    for slate in [&one, &two] {
        assert_eq!(now(slate.read(7, 4)).unwrap(), [of(0, 1), of(1, 1), of(2, 1), of(0, 1)].concat());
        assert_eq!(now(slate.read(255, 1)).unwrap(), of(3, 1));
    }
    assert_eq!(kind(now(one.read(255, 2))), Kind::Range);
    assert_eq!(kind(now(one.discard(0, 1))), Kind::Unsupported);
    now(one.flush()).unwrap();
    assert_eq!(memory.names(), ["lease"]);
}

#[test]
fn reads_that_wait_together_are_one_get() {
    let memory = Memory::default();
    let slate = slate(&memory);
    now(slate.write(5, of(5, 1))).unwrap();
    memory.decided_by(|_| Fate::Slow);
    let asked = memory.asked("get");
    let mut reads: Vec<_> = (0..8).map(|at| slate.read(at, 1)).collect();
    assert!(reads.iter_mut().all(|read| by_now(read).is_none()));
    memory.heal();
    memory.go();
    for (read, at) in reads.into_iter().zip(0..) {
        assert_eq!(now(read).unwrap(), of(if at == 5 { 5 } else { 0 }, 1));
    }
    assert_eq!(memory.asked("get") - asked, 2, "the first one, and one for all that came meanwhile");
}

#[test]
fn a_write_that_comes_late_never_undoes_one_that_was_answered() {
    let memory = Memory::default();
    let (one, two) = (slate(&memory), slate(&memory));
    now(one.write(0, of(1, 1))).unwrap();
    memory.decided_by(|request| if matches!(request, Request::Put(_)) { Fate::Late } else { Fate::Good });
    assert_eq!(kind(now(one.write(0, of(2, 1)))), Kind::Down);
    memory.heal();
    now(two.write(1, of(9, 1))).unwrap();
    memory.go();
    assert_eq!(now(one.read(0, 2)).unwrap(), [of(1, 1), of(9, 1)].concat());
}

#[test]
fn a_store_that_keeps_no_conditions_is_found_out() {
    let memory = Memory::default();
    memory.decided_by(|_| Fate::Careless);
    let errors = [now(slate(&memory).write(0, of(1, 1))), {
        memory.decided_by(|_| Fate::Nameless);
        now(slate(&memory).write(0, of(1, 1)))
    }];
    for error in errors.map(Result::unwrap_err) {
        let said = error.to_string();
        assert!(
            error.kind == Kind::Unsupported && said.contains("no arbiter can be in this store"),
            "{said}"
        );
    }
}

#[test]
fn nor_is_it_believed_because_it_was_asked_before() {
    let memory = Memory::default();
    // The check is made, but its result is not known in the end.
    let mut puts = 0;
    memory.decided_by(move |request| {
        puts += u32::from(matches!(request, Request::Put(_)));
        if puts > 2 { Fate::Busy } else { Fate::Good }
    });
    let one = slate(&memory);
    assert_eq!(kind(now(one.write(0, of(1, 1)))), Kind::Down);
    memory.decided_by(|_| Fate::Careless);
    for slate in [one, slate(&memory), slate(&memory)] {
        for _ in 0..2 {
            let said = now(slate.write(0, of(1, 1))).unwrap_err().to_string();
            assert!(said.contains("no arbiter can be in this store"), "{said}");
        }
    }
    memory.heal();
    now(slate(&memory).write(0, of(2, 1))).unwrap();
}

#[test]
fn what_is_gone_or_not_ours_is_an_error() {
    let memory = Memory::default();
    let one = slate(&memory);
    now(one.write(0, of(1, 1))).unwrap();
    memory.remove("lease");
    for error in [now(one.read(0, 1)).unwrap_err(), now(one.write(0, of(2, 1))).unwrap_err()] {
        assert!(error.to_string().contains("s3\"attic\": the object `lease` is gone"), "{error}");
    }
    memory.change("lease", "a list of lessees".into());
    for error in [now(one.read(0, 1)).unwrap_err(), now(slate(&memory).write(0, of(2, 1))).unwrap_err()] {
        assert!(error.to_string().contains("not ours"), "{error}");
    }
    memory.decided_by(|_| Fate::Denied);
    assert_eq!(kind(now(one.read(0, 1))), Kind::Down);
}

#[test]
fn seeds() {
    all_are_well(400, world);
}

/// Three machines, and the values that each sector may have now.
fn world(seed: u64) {
    let (mut random, mut fates) = (chance(seed), chance(!seed));
    let memory = Memory::default();
    let bad = random(60);
    memory.decided_by(move |request| {
        let chance = fates(100);
        match chance % 5 {
            _ if chance >= bad => Fate::Good,
            0 => Fate::Unheard,
            1 if matches!(request, Request::Put(_)) => Fate::Late,
            2 => Fate::Short,
            3 if matches!(request, Request::Put(_)) => Fate::Stubborn,
            _ => Fate::Busy,
        }
    });
    let mut slates = [slate(&memory), slate(&memory), slate(&memory)];
    let mut may: BTreeMap<u64, Vec<u8>> = (0..8).map(|at| (at, vec![0])).collect();
    // No abandoned write can still arrive.
    let (mut is_settled, mut content) = (true, 0u8);
    for _ in 0..200 {
        let (who, at) = (random(3) as usize, random(8));
        match random(10) {
            0..4 => {
                content = content.wrapping_add(1).max(1);
                let may = may.get_mut(&at).expect("all have one");
                is_settled = now(slates[who].write(at, of(content, 1))).is_ok();
                if is_settled {
                    may.clear();
                }
                may.push(content);
            }
            4 => memory.go(),
            5 => slates[who] = slate(&memory),
            _ => {
                let Ok(read) = now(slates[who].read(at, 1)) else { continue };
                let may = may.get_mut(&at).expect("all have one");
                assert!(
                    read == of(read[0], 1) && may.contains(&read[0]),
                    "sector {at}: {} of {may:?}",
                    read[0]
                );
                if is_settled {
                    *may = vec![read[0]];
                }
            }
        }
    }
}
