//! Writes and flushes that fail.

use std::sync::Arc;

use nine_block::{Ahead, Cache, Cached, Device, Kind, Options};

use crate::cache::device::{Slow, data};
use crate::cache::{Random, now, poll};

fn over_slow() -> (Arc<Slow>, Cached) {
    let slow = Arc::new(Slow::new(8000));
    let options = Options { block: 4096, memory: 0, ahead: Ahead::Never, ..Options::default() };
    (slow.clone(), Cache::new(options).over(slow).unwrap())
}

fn put(cached: &Cached, block: u64, number: u64) {
    now(cached.put(block, data(block * 8, 8, number))).unwrap();
}

fn fail(slow: &Slow, kind: Kind) {
    assert!(slow.end(0, Some(kind), &mut Random::new(0)));
}

/// Returns the result of a flush while the device works.
fn flush(slow: &Slow, cached: &Cached) -> Result<(), Kind> {
    let flush = cached.flush();
    slow.end_all();
    now(flush).map(drop).map_err(|error| error.kind)
}

#[test]
fn a_write_that_failed_is_told_once_and_poisons_until_it_is_written_again() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    put(&cached, 5, 1);
    let first = cached.flush();
    fail(&slow, Kind::Down);
    slow.end_all();
    assert_eq!(now(first).unwrap_err().kind, Kind::Down);
    assert_eq!(flush(&slow, &cached), Err(Kind::Poisoned));
    assert_eq!(flush(&slow, &cached), Err(Kind::Poisoned));
    assert_eq!(cached.lost(), Some(vec![1]));
    assert!(cached.hit(1).is_some(), "it is still here");
    assert!(cached.status().starts_with("slow cached, 1 blocks dirty, poisoned\n"));
    assert_eq!(slow.inner().counts, [0, 2, 0], "nothing is tried again, nor flushed");
    put(&cached, 1, 2);
    assert_eq!(flush(&slow, &cached), Ok(()));
    assert_eq!(slow.inner().content[8], 2);
}

#[test]
fn a_flush_that_failed_is_not_tried_as_if_it_worked() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    assert_eq!(flush(&slow, &cached), Ok(()));
    put(&cached, 2, 1);
    put(&cached, 3, 1);
    let second = cached.flush();
    assert!(slow.end(0, None, &mut Random::new(0)));
    fail(&slow, Kind::Failed);
    assert_eq!(now(second).unwrap_err().kind, Kind::Failed);
    assert_eq!(flush(&slow, &cached), Err(Kind::Poisoned));
    assert_eq!(cached.lost(), Some(vec![2, 3]));
    put(&cached, 2, 2);
    assert_eq!(flush(&slow, &cached), Err(Kind::Poisoned));
    put(&cached, 3, 2);
    assert_eq!(flush(&slow, &cached), Ok(()));
}

#[test]
fn what_is_written_while_a_flush_fails_may_be_lost_too() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    let first = cached.flush();
    assert!(slow.end(0, None, &mut Random::new(0)));
    put(&cached, 1, 2);
    put(&cached, 2, 2);
    let second = cached.flush();
    // Both are written now, after the device's flush began.
    assert!(slow.end(1, None, &mut Random::new(0)));
    fail(&slow, Kind::Failed);
    assert_eq!(now(first).unwrap_err().kind, Kind::Failed);
    assert_eq!(cached.lost(), Some(vec![1, 2]));
    slow.end_all();
    assert_eq!(now(second).unwrap_err().kind, Kind::Poisoned);
    (1..3).for_each(|block| put(&cached, block, 3));
    assert_eq!(flush(&slow, &cached), Ok(()));
}

#[test]
fn a_flush_of_a_reserved_device_loses_nothing() {
    for kind in [Kind::Reserved, Kind::Busy] {
        let (slow, cached) = over_slow();
        put(&cached, 1, 1);
        let first = cached.flush();
        assert!(slow.end(0, None, &mut Random::new(0)));
        fail(&slow, kind);
        assert_eq!(now(first).unwrap_err().kind, kind);
        if kind == Kind::Reserved {
            assert_eq!(flush(&slow, &cached), Err(kind));
            cached.resume();
        }
        assert_eq!(cached.lost(), Some(Vec::new()));
        assert_eq!(flush(&slow, &cached), Ok(()));
        assert_eq!(slow.inner().counts, [0, 1, 2]);
    }
}

#[test]
fn who_asks_a_busy_device_again_is_not_held_to_what_it_said() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    let first = cached.flush();
    fail(&slow, Kind::Busy);
    assert_eq!(now(first).unwrap_err().kind, Kind::Busy);
    assert_eq!(slow.inner().counts, [0, 1, 0], "it is not tried at once");
    put(&cached, 2, 1);
    assert_eq!(flush(&slow, &cached), Ok(()));
    assert_eq!(slow.inner().content[8], 1);
}

#[test]
fn what_is_not_wanted_any_more_is_not_lost() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    let first = cached.flush();
    fail(&slow, Kind::Failed);
    assert!(now(first).is_err());
    now((&cached as &dyn Device).discard(0, 32)).unwrap();
    assert_eq!(flush(&slow, &cached), Ok(()));
}

#[test]
fn nobody_waits_for_room_that_cannot_come() {
    let (slow, cached) = over_slow();
    let mut calls: Vec<_> = (0..50).map(|block| cached.put(block * 2, data(block * 16, 8, 1))).collect();
    assert!(poll(calls.last_mut().unwrap()).is_none());
    while slow.end(0, Some(Kind::Failed), &mut Random::new(0)) {}
    let ended: Vec<_> = calls.into_iter().skip(24).map(|call| now(call).unwrap_err().kind).collect();
    assert_eq!(ended, [Kind::Poisoned; 26]);
    // There is room for rewrites of failed blocks.
    assert_eq!(flush(&slow, &cached), Err(Kind::Failed));
    (0..24).for_each(|block| put(&cached, block * 2, 2));
    assert_eq!(flush(&slow, &cached), Ok(()));
}

#[test]
fn a_reserved_device_is_not_written_until_it_is_ours_again() {
    let (slow, cached) = over_slow();
    let mut calls: Vec<_> = (0..30).map(|block| cached.put(block * 2, data(block * 16, 8, 1))).collect();
    let first = cached.flush();
    while slow.end(0, Some(Kind::Reserved), &mut Random::new(0)) {}
    assert_eq!(now(first).unwrap_err().kind, Kind::Reserved);
    assert_eq!(now(calls.pop().unwrap()).unwrap_err().kind, Kind::Reserved);
    assert_eq!(now(cached.put(0, data(0, 8, 2))).unwrap_err().kind, Kind::Reserved);
    assert_eq!(flush(&slow, &cached), Err(Kind::Reserved));
    assert_eq!(cached.lost(), Some(vec![]), "nothing was forgotten");
    let writes = slow.inner().counts[1];
    assert_eq!(writes, 4, "those that were under way");
    cached.resume();
    assert_eq!(flush(&slow, &cached), Ok(()));
    assert_eq!(slow.inner().content[0], 1);
}

#[test]
fn nothing_passes_a_barrier_that_a_failure_holds_up() {
    let (slow, cached) = over_slow();
    put(&cached, 1, 1);
    cached.barrier();
    put(&cached, 2, 2);
    let first = cached.flush();
    fail(&slow, Kind::Failed);
    assert!(now(first).is_err());
    slow.end_all();
    assert_eq!(slow.inner().counts, [0, 1, 0]);
    put(&cached, 1, 3);
    assert_eq!(flush(&slow, &cached), Ok(()));
    let numbers: Vec<u64> =
        slow.inner().submitted.iter().filter_map(|(_, _, numbers)| numbers.first().copied()).collect();
    assert_eq!(numbers, [1, 1, 2, 3], "what failed again first, then what is behind it");
}
