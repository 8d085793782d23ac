//! The physical limits: the round trip of a cache line, and one copy of the payload, on the processor that filled it
//! and on another.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::guest::fill;
use crate::place::CpuPlacement;

/// A word on a cache line of its own, with its neighbour line unused.
#[repr(align(128))]
struct CacheLineWord(AtomicU32);

static THERE: CacheLineWord = CacheLineWord(AtomicU32::new(0));
static BACK: CacheLineWord = CacheLineWord(AtomicU32::new(0));

/// Runs `near` on this thread and `far` on a thread of another processor, alternately. Both poll. Returns the
/// microseconds of one turn of both.
fn in_turns(
    turns: u32,
    mut near: impl FnMut(u32),
    mut far: impl FnMut(u32) + Send + 'static,
) -> io::Result<f64> {
    THERE.0.store(0, Ordering::Relaxed);
    BACK.0.store(0, Ordering::Relaxed);
    let other = std::thread::spawn(move || -> io::Result<()> {
        CpuPlacement::Cross.stand_far()?;
        for n in 1..=turns {
            while THERE.0.load(Ordering::Acquire) != n {
                spin_loop();
            }
            far(n);
            BACK.0.store(n, Ordering::Release);
        }
        Ok(())
    });
    CpuPlacement::Cross.stand_near()?;
    let mut begun = Instant::now();
    for n in 1..=turns {
        near(n);
        THERE.0.store(n, Ordering::Release);
        while BACK.0.load(Ordering::Acquire) != n {
            spin_loop();
        }
        if n == 1 {
            // The other thread has started.
            begun = Instant::now();
        }
    }
    let took = begun.elapsed();
    other.join().map_err(|_| io::Error::other("the other thread has failed"))??;
    Ok(took.as_secs_f64() * 1e6 / f64::from(turns.max(2) - 1))
}

/// Measures the round trip of a cache line to another processor with both polling, microseconds.
pub(super) fn ping_pong(trips: u32) -> io::Result<f64> {
    in_turns(trips, |_| (), |_| ())
}

/// Measures filling a payload on one processor and copying it on another, microseconds: a copy out of the writer's
/// caches.
pub(super) fn carried(size: usize, times: u32) -> io::Result<f64> {
    let payload = Arc::new(Mutex::new(vec![0; size]));
    let (theirs, mut to) = (payload.clone(), vec![0; size]);
    let write = move |n| fill(&mut payload.lock().expect("nobody panics"), n);
    let copy = move |_| {
        to.copy_from_slice(&theirs.lock().expect("nobody panics"));
        black_box(&to);
    };
    in_turns(times, write, copy)
}

/// Measures filling a payload and copying it once, on one processor, microseconds.
pub(super) fn copied(size: usize, times: u32) -> f64 {
    let (mut from, mut to) = (vec![0; size], vec![0; size]);
    let begun = Instant::now();
    for n in 0..times {
        fill(&mut from, n);
        to.copy_from_slice(black_box(&from));
        black_box(&to);
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(times.max(1))
}

/// Measures filling a payload, microseconds. Every contestant does this before each write.
pub(super) fn filled(size: usize, times: u32) -> f64 {
    let mut payload = vec![0; size];
    let begun = Instant::now();
    for n in 0..times {
        fill(black_box(&mut payload), n);
        black_box(&payload);
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(times.max(1))
}
