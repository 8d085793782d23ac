//! What the machine allows: a cache line to and fro, and a payload copied once.

use std::hint::{black_box, spin_loop};
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use super::guest::fill;
use crate::place::Place;

/// A word on a cache line of its own, and its neighbour's.
#[repr(align(128))]
struct Line(AtomicU32);

static THERE: Line = Line(AtomicU32::new(0));
static BACK: Line = Line(AtomicU32::new(0));

/// Microseconds of a line to another processor and back, both looking.
pub(super) fn ping_pong(trips: u32) -> io::Result<f64> {
    THERE.0.store(0, Ordering::Relaxed);
    BACK.0.store(0, Ordering::Relaxed);
    let far = std::thread::spawn(move || -> io::Result<()> {
        Place::Cross.stand_far()?;
        for n in 1..=trips {
            while THERE.0.load(Ordering::Acquire) != n {
                spin_loop();
            }
            BACK.0.store(n, Ordering::Release);
        }
        Ok(())
    });
    Place::Cross.stand_near()?;
    let mut begun = Instant::now();
    for n in 1..=trips {
        THERE.0.store(n, Ordering::Release);
        while BACK.0.load(Ordering::Acquire) != n {
            spin_loop();
        }
        if n == 1 {
            // The other thread is there.
            begun = Instant::now();
        }
    }
    let took = begun.elapsed();
    far.join().map_err(|_| io::Error::other("the other thread has failed"))??;
    Ok(took.as_secs_f64() * 1e6 / f64::from(trips.max(2) - 1))
}

/// Microseconds of writing a payload and copying it once, on one processor.
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

/// Microseconds of writing a payload alone, which every writer does anew before each write.
pub(super) fn filled(size: usize, times: u32) -> f64 {
    let mut payload = vec![0; size];
    let begun = Instant::now();
    for n in 0..times {
        fill(black_box(&mut payload), n);
        black_box(&payload);
    }
    begun.elapsed().as_secs_f64() * 1e6 / f64::from(times.max(1))
}
