//! The pace of background work beside clients: not more than its share, and never none.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use super::*;

const MIB: u64 = 1 << 20;

/// Returns an archive with a file of `mib` MiB, and a counter of the bytes written to its worm.
fn with_a_file(mib: u64) -> (Bench, Arc<AtomicU64>) {
    let mut bench = Bench::new(1 << 19, 8192, true);
    let count = Arc::new(AtomicU64::new(0));
    let counts = count.clone();
    let write = move |io: Io| {
        counts.fetch_add(io.data.len() as u64, Ordering::Relaxed);
        Some(io)
    };
    bench.w = Arc::new(Watched(bench.w.clone(), write));
    bench.make_again();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let data = noise(1, MIB as usize);
    for n in 0..mib {
        bench.write(file, n * MIB, &data);
    }
    bench.sync();
    (bench, count)
}

/// Runs ticks with an active client, and a function at each.
fn beside_clients(bench: &mut Bench, ticks: u32, mut does: impl FnMut(&mut Bench)) {
    for _ in 0..ticks {
        let now = bench.archive.state().now + Duration::from_millis(20);
        bench.archive.tick(now);
        bench.archive.state().dumper.active = now;
        does(bench);
    }
}

/// Lets a long time pass without any client.
fn idle(bench: &mut Bench) {
    let now = bench.archive.state().now + Duration::from_secs(100);
    bench.archive.tick(now);
}

#[test]
fn what_was_read_while_nobody_was_at_work_is_no_debt_of_a_scrub() {
    let (mut bench, _) = with_a_file(40);
    bench.dump();
    bench.copied();
    bench.settle();
    let archive = bench.archive.clone();
    bench.run(archive.scrub()).unwrap();
    let read = || archive.state().scrubber.blocks() * 8192;
    let all = read();
    let mut scrub = Box::pin(archive.scrub());
    let mut cx = Context::from_waker(Waker::noop());
    let mut go_on = |_: &mut Bench| assert!(scrub.as_mut().poll(&mut cx).is_pending());
    go_on(&mut bench);
    idle(&mut bench);
    while read() < all / 2 {
        go_on(&mut bench);
    }
    let before = read();
    beside_clients(&mut bench, 40, go_on);
    // A quarter of a MiB per tick.
    let mib = (read() - before) / MIB;
    assert!((8..=12).contains(&mib), "{mib} MiB in 40 ticks");
}

#[test]
fn nor_of_a_copier() {
    let (mut bench, written) = with_a_file(120);
    let written = || written.load(Ordering::Relaxed);
    let archive = bench.archive.clone();
    bench.run(archive.dump()).unwrap();
    idle(&mut bench);
    let before = written();
    while written() - before < 30 * MIB {
        bench.turn();
    }
    assert!(!archive.dumps()[0].copied);
    let before = written();
    beside_clients(&mut bench, 40, Bench::turn);
    // Half a MiB per tick.
    let mib = (written() - before) / MIB;
    assert!((16..=24).contains(&mib), "{mib} MiB in 40 ticks");
}
