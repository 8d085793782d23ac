//! The device against objects in memory: faults one by one, and random worlds with an oracle.

mod slate;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Device, Kind, Op, Result, SECTOR};

use crate::memory::{Fate, Memory, Request};
use crate::{Etag, Fault, Objects, Options, Patience, Store, Swapped, swap};

/// Returns the result of a future, if it is ready.
fn by_now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(it) => Some(it),
        Poll::Pending => None,
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    by_now(future).expect("nothing is slow")
}

fn options(who: &str) -> Options {
    let patience = Patience(Duration::from_secs(2));
    let name = "s3\"attic\"".to_string();
    Options { name, sectors: Some(1 << 20), read_only: false, patience, who: who.into() }
}

fn try_open(memory: &Memory, options: Options) -> Result<Arc<dyn Device>> {
    let store = now(Store::open(Arc::new(memory.clone()), options))?;
    Ok(Arc::new(store))
}

fn open(memory: &Memory, who: &str) -> Arc<dyn Device> {
    try_open(memory, options(who)).unwrap()
}

fn follow(memory: &Memory) -> Arc<dyn Device> {
    try_open(memory, Options { read_only: true, ..options("") }).unwrap()
}

/// Returns sectors with this content.
fn of(content: u8, count: u64) -> Bytes {
    vec![content; (count * SECTOR) as usize].into()
}

fn kind<T>(result: Result<T>) -> Kind {
    result.map(drop).unwrap_err().kind
}

#[test]
fn a_worm_in_objects_keeps_the_rules_of_a_device() {
    let memory = Memory::default();
    assert_eq!(now(nine_block::conform::check(&*open(&memory, "one"), 8)), Ok(()));
    assert_eq!(now(nine_block::conform::check(&*follow(&memory), 8)), Ok(()));
}

#[test]
fn what_was_flushed_is_there_for_everybody() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    assert_eq!(kind(now(one.read(0, 1))), Kind::Unwritten);
    now(one.flush()).unwrap();
    assert_eq!(memory.names(), Vec::<String>::new());
    now(one.write(8, of(1, 4))).unwrap();
    now(one.write(12, of(2, 2))).unwrap();
    assert_eq!(now(one.read(10, 3)).unwrap(), [of(1, 2), of(2, 1)].concat());
    let other = follow(&memory);
    assert_eq!(kind(now(other.read(8, 1))), Kind::Unwritten);
    now(one.flush()).unwrap();
    let names = ["claim/00000001", "data/00000001-00000000-000000000008-0006", "store"];
    assert_eq!(memory.names(), names);
    assert_eq!(kind(now(other.read(8, 1))), Kind::Unwritten);
    // The first copy of a superblock is written last.
    now(one.write(7, of(3, 1))).unwrap();
    now(one.flush()).unwrap();
    now(other.look()).unwrap();
    assert_eq!(now(other.read(7, 7)).unwrap(), [of(3, 1), of(1, 4), of(2, 2)].concat());
    assert_eq!(kind(now(other.write(20, of(1, 1)))), Kind::ReadOnly);
    assert_eq!(kind(now(other.read(6, 2))), Kind::Unwritten);
    assert_eq!(kind(now(other.read((1 << 20) - 1, 2))), Kind::Range);
    drop(one);
    assert_eq!(now(open(&memory, "two").read(7, 1)).unwrap(), of(3, 1));
    // A read-only user claims nothing.
    assert_eq!(memory.names().len(), 4);
}

#[test]
fn a_listing_goes_on_where_it_was() {
    let memory = Memory::default();
    let (one, other) = (open(&memory, "one"), follow(&memory));
    for round in 0..20 {
        now(one.write(100 - round, of(round as u8, 1))).unwrap();
        now(one.flush()).unwrap();
        now(other.look()).unwrap();
        assert_eq!(now(other.read(100 - round, 1)).unwrap(), of(round as u8, 1));
    }
    let before = memory.asked("list");
    now(other.look()).unwrap();
    assert_eq!(memory.asked("list") - before, 2, "an empty page of claims, one of objects");
}

#[test]
fn the_same_is_as_good_and_other_content_is_refused() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(8, of(1, 4))).unwrap();
    // Gathered in memory, and then in an object.
    for _ in 0..2 {
        now(one.write(8, of(1, 4))).unwrap();
        assert_eq!(kind(now(one.write(11, of(2, 2)))), Kind::ReadOnly);
        assert_eq!(kind(now(one.read(12, 1))), Kind::Unwritten, "nothing of a write that was refused stays");
        now(one.flush()).unwrap();
    }
    now(one.write(6, of(1, 9))).unwrap();
    now(one.flush()).unwrap();
    assert_eq!(now(follow(&memory).read(6, 9)).unwrap(), of(1, 9));
    assert_eq!(kind(now(one.discard(8, 1))), Kind::ReadOnly);
    assert!(memory.names().iter().any(|name| name.ends_with("000000000006-0002")));
}

#[test]
fn an_answer_that_was_lost_is_our_own_put() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    let mut unheard = true;
    memory.decided_by(move |request| {
        unheard = matches!(request, Request::Put(_)) && !unheard;
        if unheard { Fate::Unheard } else { Fate::Good }
    });
    now(one.write(0, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    assert_eq!(memory.names().len(), 3);
    // A copy of this machine, with our claim, has put other content there.
    memory.heal();
    memory.change("data/00000001-00000001-000000000009-0001", of(9, 1));
    now(one.write(9, of(1, 1))).unwrap();
    let error = now(one.flush()).unwrap_err();
    assert_eq!(error.kind, Kind::Reserved);
    assert!(error.text.contains("a copy of this machine"), "{error}");
}

#[test]
fn who_claims_later_has_all_that_was_flushed_and_the_other_is_told() {
    let memory = Memory::default();
    let one = open(&memory, "glenda on gnot");
    now(one.write(0, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    let two = open(&memory, "two");
    now(one.write(3, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    now(two.write(10, of(2, 1))).unwrap();
    assert_eq!(now(two.read(0, 6)).unwrap(), of(1, 6));
    now(one.write(6, of(1, 1))).unwrap();
    let error = now(one.flush()).unwrap_err();
    assert_eq!(error.kind, Kind::Reserved);
    assert!(error.text.contains("two writes here now (claim 2)"), "{error}");
    assert_eq!(kind(now(one.write(7, of(1, 1)))), Kind::Reserved);
    assert!(one.status().contains("NOT WRITTEN ANY MORE"));
    // It has put its object all the same. The write was never acknowledged, so the object does not count.
    now(two.write(6, of(2, 1))).unwrap();
    now(two.flush()).unwrap();
    assert_eq!(now(follow(&memory).read(6, 1)).unwrap(), of(2, 1));
}

#[test]
fn a_put_that_comes_late_hides_nothing() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(0, of(1, 1))).unwrap();
    now(one.flush()).unwrap();
    memory.decided_by(|request| match request {
        Request::Put(name) if name.starts_with("data") => Fate::Late,
        _ => Fate::Good,
    });
    now(one.write(1, of(1, 9))).unwrap();
    assert_eq!(kind(now(one.flush())), Kind::Down);
    drop(one);
    memory.heal();
    let two = open(&memory, "two");
    now(two.write(4, of(2, 2))).unwrap();
    now(two.flush()).unwrap();
    memory.go();
    let three = open(&memory, "three");
    assert_eq!(now(three.read(0, 10)).unwrap(), [of(1, 4), of(2, 2), of(1, 4)].concat());
    assert_eq!(now(two.read(4, 2)).unwrap(), of(2, 2));
    assert_eq!(kind(now(three.write(1, of(3, 1)))), Kind::ReadOnly);
}

#[test]
fn what_could_not_be_put_is_kept_and_put_later() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(0, of(1, 3))).unwrap();
    memory.decided_by(|_| Fate::Busy);
    let error = now(one.flush()).unwrap_err();
    assert_eq!(error.kind, Kind::Down);
    assert!(error.text.contains("SlowDown") && error.text.contains("asked"), "{error}");
    assert!(one.status().contains("1536 bytes are not durable"), "{}", one.status());
    assert_eq!(now(one.read(0, 3)).unwrap(), of(1, 3));
    memory.decided_by(|_| Fate::Denied);
    assert_eq!(kind(now(one.flush())), Kind::Down);
    memory.heal();
    now(one.flush()).unwrap();
    assert_eq!(now(follow(&memory).read(0, 3)).unwrap(), of(1, 3));
    assert_eq!(memory.names().len(), 3);
}

#[test]
fn who_writes_more_than_can_be_gathered_waits() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(0, of(0, 1))).unwrap();
    memory.decided_by(|request| if matches!(request, Request::Put(_)) { Fate::Slow } else { Fate::Good });
    let megabyte = |n: u64| 2048 * n + 1;
    for n in 0..63 {
        assert!(by_now(one.write(megabyte(n), of(n as u8, 2048))).is_some(), "{n}");
    }
    let mut last = Box::pin(one.write(megabyte(63), of(63, 2048)));
    assert!(by_now(last.as_mut()).is_none());
    // At most eight were in flight; flushes wait for all.
    let mut flush = Box::pin(one.flush());
    assert_eq!(memory.asked("put"), 3 + 8);
    memory.go();
    now(last).unwrap();
    let mut turns = 0;
    while by_now(flush.as_mut()).is_none() && turns < 9 {
        memory.go();
        turns += 1;
    }
    assert!(turns < 9);
    for n in 0..64 {
        assert_eq!(now(one.read(megabyte(n), 2048)).unwrap(), of(n as u8, 2048));
    }
    assert!(memory.names().iter().any(|name| name.ends_with("000000004000-4000")), "{:?}", memory.names());
}

#[test]
fn what_is_gone_or_changed_is_an_error() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(0, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    let mut first = true;
    memory.decided_by(move |request| match request {
        Request::Put(_) if std::mem::take(&mut first) => Fate::Gone,
        _ => Fate::Good,
    });
    now(one.write(3, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    now(one.write(6, of(1, 3))).unwrap();
    now(one.flush()).unwrap();
    let error = now(one.read(3, 1)).unwrap_err();
    assert!(error.kind == Kind::Failed && error.text.contains("is gone"), "{error}");
    let two = follow(&memory);
    assert_eq!(kind(now(two.read(3, 1))), Kind::Unwritten);
    assert!(two.status().contains("1 objects are not there, though later ones are"), "{}", two.status());
    let two_more = open(&memory, "two");
    memory.change("data/00000001-00000000-000000000000-0003", of(1, 2));
    for at in [0, 2] {
        assert!(now(two.read(at, 1)).is_err());
    }
    memory.remove("store");
    // A store with another identity is not created in its place.
    let error = now(two_more.write(9, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Failed && error.text.contains("`store` is gone"), "{error}");
    let error = try_open(&memory, options("x")).err().unwrap();
    assert!(error.text.contains("`store`"), "{error}");
    memory.change("store", Bytes::from_static(b"a letter"));
    assert!(try_open(&memory, options("x")).err().unwrap().text.contains("something else"));
}

#[test]
fn a_store_that_does_not_look_at_conditions_is_refused() {
    let memory = Memory::default();
    memory.decided_by(|_| Fate::Careless);
    let one = open(&memory, "one");
    let error = now(one.write(0, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Unsupported && error.text.contains("If-None-Match"), "{error}");
    assert_eq!(memory.names(), ["store"]);
}

#[test]
fn who_has_no_more_numbers_writes_no_more() {
    let memory = Memory::default();
    let one = now(Store::open(Arc::new(memory.clone()), options("one"))).unwrap();
    let device: Arc<dyn Device> = Arc::new(one.clone());
    now(device.write(0, of(1, 1))).unwrap();
    now(device.flush()).unwrap();
    one.number(u32::MAX - 1);
    now(device.write(1, of(1, 1))).unwrap();
    now(device.flush()).unwrap();
    now(device.write(2, of(1, 1))).unwrap();
    let error = now(device.flush()).unwrap_err();
    assert!(error.kind == Kind::Reserved && error.text.contains("no more numbers"), "{error}");
    assert_eq!(kind(now(device.write(3, of(1, 1)))), Kind::Reserved);
    assert_eq!(now(follow(&memory).read(0, 2)).unwrap(), of(1, 2));
    // A name that a user has created: data flushed after it would never be found.
    memory.change("claim/ffffffff", Bytes::new());
    let error = now(open(&memory, "two").write(3, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Unsupported && error.text.contains("all claims are made"), "{error}");
}

#[test]
fn a_store_grows() {
    let memory = Memory::default();
    let one = open(&memory, "one");
    now(one.write(0, of(1, 1))).unwrap();
    let larger = Options { sectors: Some(1 << 21), ..options("two") };
    let two = try_open(&memory, larger).unwrap();
    assert_eq!(two.shape().sectors, 1 << 20);
    now(two.write(1, of(1, 1))).unwrap();
    assert_eq!(two.shape().sectors, 1 << 21);
    now(one.look()).unwrap();
    assert_eq!(one.shape().sectors, 1 << 21);
    // A store never shrinks.
    now(open(&memory, "three").write(1 << 20, of(1, 1))).unwrap();
}

#[test]
fn a_store_that_refuses_for_ever_is_waited_for_as_long_as_was_said() {
    let memory = Memory::default();
    let larger = || try_open(&memory, Options { sectors: Some(1 << 21), ..options("two") }).unwrap();
    memory.decided_by(|_| Fate::Stubborn);
    let error = now(open(&memory, "one").write(0, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Down && error.text.contains("store is refused, and is not there"), "{error}");
    memory.heal();
    now(open(&memory, "one").write(0, of(1, 1))).unwrap();
    // The object `store` is not replaced by a larger one.
    memory.decided_by(|_| Fate::Stubborn);
    let error = now(larger().write(1, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Down && error.text.contains("`If-Match`"), "{error}");
    memory.decided_by(|_| Fate::Nameless);
    let error = now(larger().write(1, of(1, 1))).unwrap_err();
    assert!(error.kind == Kind::Unsupported && error.text.contains("ETag"), "{error}");
    memory.decided_by(|_| Fate::Stubborn);
    let objects: Arc<dyn Objects> = Arc::new(memory.clone());
    let swapped = now(swap(&objects, Patience::default(), "lease", None, Bytes::from_static(b"a 1")));
    assert!(matches!(swapped, Err(Fault::Later(_))), "{swapped:?}");
    memory.heal();
    now(larger().write(1, of(1, 1))).unwrap();
    assert_eq!(larger().shape().sectors, 1 << 21);
}

#[test]
fn a_swap_is_done_once() {
    let memory = Memory::default();
    let objects: Arc<dyn Objects> = Arc::new(memory.clone());
    let patience = Patience::default();
    let swap = |expected: Option<Etag>, bytes: &'static str| {
        now(swap(&objects, patience, "lease", expected, Bytes::from_static(bytes.as_bytes())))
    };
    let done = |swapped| match swapped {
        Ok(Swapped::Done(etag)) => etag.unwrap(),
        other => panic!("{other:?}"),
    };
    let first = done(swap(None, "a 1"));
    match swap(None, "b 1") {
        Ok(Swapped::Other(Some(got))) => {
            assert_eq!((&got.bytes[..], got.etag), (&b"a 1"[..], Some(first.clone())))
        }
        other => panic!("{other:?}"),
    }
    let mut unheard = true;
    memory.decided_by(move |_| if std::mem::take(&mut unheard) { Fate::Unheard } else { Fate::Good });
    let second = done(swap(Some(first.clone()), "a 2"));
    assert_ne!(first, second);
    assert!(matches!(swap(Some(first), "b 2"), Ok(Swapped::Other(Some(_)))));
    memory.remove("lease");
    assert!(matches!(swap(Some(second), "a 3"), Ok(Swapped::Other(None))));
    memory.decided_by(|_| Fate::Busy);
    assert!(matches!(swap(None, "a 4"), Err(Fault::Later(_))));
}

/// Writers die and the store fails. All later readers must see flushed data, and no sector may have data that was never
/// written there.
#[test]
fn seeds() {
    all_are_well(300, world);
}

/// Runs a world for each seed, and names the first that fails.
fn all_are_well(seeds: u64, world: fn(u64)) {
    for seed in 0..seeds {
        let fails = std::panic::catch_unwind(|| world(seed));
        assert!(fails.is_ok(), "seed {seed}");
    }
}

/// Returns a generator of numbers below its argument, from a seed.
fn chance(seed: u64) -> impl FnMut(u64) -> u64 + Send {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    }
}

fn world(seed: u64) {
    let (mut random, mut fates) = (chance(seed), chance(!seed));
    let memory = Memory::default();
    let bad = random(30);
    memory.decided_by(move |request| {
        let chance = fates(100);
        let is_put = matches!(request, Request::Put(_));
        match chance {
            _ if chance >= bad => Fate::Good,
            _ if chance.is_multiple_of(4) => Fate::Unheard,
            _ if chance % 4 == 1 && is_put => Fate::Late,
            _ if chance % 4 == 2 => Fate::Short,
            _ => Fate::Busy,
        }
    });
    // The content that each sector must have, and the contents that it may have.
    let mut flushed: BTreeMap<u64, u8> = BTreeMap::new();
    let mut may: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
    let opened = |who: u64| loop {
        if let Ok(store) = try_open(&memory, options(&who.to_string())) {
            return store;
        }
    };
    let (mut life, mut content) = (0, 0u8);
    let mut store = opened(life);
    let mut old: Option<Arc<dyn Device>> = None;
    let mut pending: Vec<(u64, u8)> = Vec::new();
    for _ in 0..120 {
        let (at, count) = (random(60), 1 + random(12));
        match random(12) {
            0..5 => {
                content = content.wrapping_add(1);
                let result = now(store.write(at, of(content, count)));
                if result.is_ok() {
                    pending.extend((at..at + count).map(|at| (at, content)));
                    (at..at + count).for_each(|at| may.entry(at).or_default().push(content));
                }
            }
            5..8 => {
                if now(store.flush()).is_ok() {
                    pending.drain(..).for_each(|(at, content)| _ = flushed.insert(at, content));
                }
            }
            8 => {
                // The old writer may continue for a while, and does not know that it was replaced.
                old = Some(store).filter(|_| random(2) == 0);
                pending.clear();
                life += 1;
                store = opened(life);
            }
            9 => memory.go(),
            10 => {
                if let Some(old) = &old {
                    let wrote = now(old.write(at, of(255, count))).is_ok();
                    (at..at + count).filter(|_| wrote).for_each(|at| may.entry(at).or_default().push(255));
                    if now(old.flush()).is_ok() && wrote {
                        // The claim was still the old writer's. The new one lists its objects when it claims.
                        (at..at + count).for_each(|at| _ = flushed.insert(at, 255));
                    }
                }
            }
            _ => drop(now(store.look())),
        }
        let read = now(store.read(at, 1));
        judge(at, read, None, &may);
    }
    drop((store, old));
    memory.heal();
    memory.go();
    let last = follow(&memory);
    for at in 0..72 {
        judge(at, now(last.read(at, 1)), flushed.get(&at).copied(), &may);
    }
}

fn judge(at: u64, read: Result<Bytes>, must: Option<u8>, may: &BTreeMap<u64, Vec<u8>>) {
    match read {
        Ok(data) => {
            assert!(data.iter().all(|byte| *byte == data[0]), "sector {at} is torn");
            assert!(must.is_none_or(|must| must == data[0]), "sector {at}: {} and not {must:?}", data[0]);
            assert!(may.get(&at).is_some_and(|may| may.contains(&data[0])), "sector {at}: {}", data[0]);
        }
        Err(error) => {
            assert!(must.is_none(), "sector {at}: {error}");
            assert!(
                matches!(error.kind, Kind::Unwritten | Kind::Down | Kind::Failed),
                "sector {at}: {error}"
            );
        }
    }
}

#[test]
fn a_look_is_no_operation_on_sectors() {
    let store = open(&Memory::default(), "one");
    assert_eq!(format!("{:?}", Op::Look), "Look");
    now(store.look()).unwrap();
    assert!(
        store.status().starts_with("s3\"attic\" 1048576 sectors\n  0 objects, 0 claims"),
        "{}",
        store.status()
    );
    let words = store.control(&["scrub"]).unwrap_err();
    assert_eq!(words.kind, Kind::Unsupported);
}
