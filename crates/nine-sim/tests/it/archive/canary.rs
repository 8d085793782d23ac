//! Canaries: devices that violate their contract. If no world detects them, the worlds prove nothing.
//!
//! In: a violation, under c or under w. Out: the number of worlds that detected it. None is a failure.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use nine_block::{Device, Io, Op, Shape};

use crate::archive::cuts::goes;
use crate::archive::world::Wrap;

/// Number of worlds per violation.
const WORLDS: u64 = 12;
/// One write in so many is not executed.
const LOST: u64 = 50;

/// The operation that is reported as done but is not.
#[derive(Clone, Copy)]
enum Lie {
    Flush,
    Write,
}

struct Liar {
    of: Arc<dyn Device>,
    lie: Lie,
    writes: AtomicU64,
}

impl Device for Liar {
    fn shape(&self) -> Shape {
        self.of.shape()
    }

    fn name(&self) -> String {
        self.of.name()
    }

    fn submit(&self, io: Io) {
        let is_lie = match (self.lie, io.op) {
            (Lie::Flush, Op::Flush) => true,
            (Lie::Write, Op::Write) => self.writes.fetch_add(1, Ordering::Relaxed) % LOST == LOST - 1,
            _ => false,
        };
        if is_lie { io.end(Ok(Bytes::new())) } else { self.of.submit(io) }
    }
}

fn is_noticed(lie: Lie, under_c: bool) {
    let wrap: Wrap = Rc::new(move |of, is_c| match is_c == under_c {
        true => Arc::new(Liar { of, lie, writes: AtomicU64::new(0) }),
        false => of,
    });
    let world = |seed: &u64| {
        let goes = || {
            let wrap = wrap.clone();
            goes(*seed, Rc::new(RefCell::default()), move |site, _| site.wrap = wrap);
        };
        catch_unwind(AssertUnwindSafe(goes)).is_err()
    };
    let noticed = (0..WORLDS).filter(world).count();
    println!("{noticed} of {WORLDS} worlds have noticed");
    assert!(noticed > 0, "no world has noticed");
}

#[test]
fn a_canary_that_does_not_flush_c_is_noticed() {
    is_noticed(Lie::Flush, true);
}

#[test]
fn a_canary_that_does_not_flush_w_is_noticed() {
    is_noticed(Lie::Flush, false);
}

#[test]
fn a_canary_that_loses_writes_of_c_is_noticed() {
    is_noticed(Lie::Write, true);
}

#[test]
fn a_canary_that_loses_writes_of_w_is_noticed() {
    is_noticed(Lie::Write, false);
}
