//! Rotten blocks: they are detected, repaired if there is another copy, and reported with the damaged path.

use std::sync::atomic::AtomicBool;

use nine_block::{Error as Wrong, Io, Kind, Mirror, Op, Shape, Start};

use super::*;
use crate::jobs::yield_now;

/// Changes a byte of a disk.
fn rot(disk: &Arc<dyn Device>, sector: u64) {
    let mut bytes = ready(disk.read(sector, 1)).unwrap().to_vec();
    bytes[100] ^= 1;
    ready(disk.write(sector, bytes.into())).unwrap();
}

/// Opens a mirror of equal members.
fn mirror(disks: &[Arc<dyn Device>]) -> Arc<dyn Device> {
    let mirror = ready(Mirror::open(disks.to_vec(), Start::Careful, Arc::new(|_| ()))).unwrap();
    let mut keeping = pin!(mirror.clone().keep(Arc::new(|_| Box::pin(yield_now()))));
    for _ in 0..100_000 {
        assert!(keeping.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    Arc::new(mirror)
}

/// Creates an archive on mirrors. Returns also their members.
fn mirrored() -> (Bench, [Vec<Arc<dyn Device>>; 2]) {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let members = [1 << 18, 8 << 18].map(|sectors: u64| {
        let disks: Vec<Arc<dyn Device>> =
            (0..2).map(|_| -> Arc<dyn Device> { Arc::new(Ram::new(sectors + 128)) }).collect();
        ready(Mirror::make(&disks, [3; 16])).unwrap();
        disks
    });
    (bench.c, bench.w) = (mirror(&members[0]), mirror(&members[1]));
    bench.make_again();
    (bench, members)
}

fn said(bench: &Bench, what: &str) -> String {
    match what {
        "hurt" => bench.archive.hurt_text(),
        _ => bench.archive.status(),
    }
}

/// The first sector of a member of w with blocks of segments: after its own label, the labels of w, and the first
/// superblock.
const FIRST: u64 = 128 + 3 * 16;

#[test]
fn what_is_rotten_in_one_member_is_healed_by_the_other() {
    let (mut bench, [c, w]) = mirrored();
    let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
    let file = bench.make(dir, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 300_000));
    bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    let end = 128 + bench.archive.state().next_worm * 16;
    // Each block of one member or the other, including nodes.
    for (n, sector) in (FIRST..end).step_by(16).enumerate() {
        rot(&w[n % 2], sector + 5);
    }
    let archive = bench.archive.clone();
    bench.run(archive.scrub()).unwrap();
    assert!(said(&bench, "").contains("all right"), "{}", said(&bench, ""));
    bench.settle();
    for sector in FIRST..end {
        let [one, other] = [0, 1].map(|member: usize| ready(w[member].read(sector, 1)).unwrap());
        assert!(one == other, "sector {sector}");
    }
    // Later changes are on c: rows, nodes, blocks.
    bench.write(file, 8128, &noise(2, 100_000));
    bench.sync();
    bench.run(archive.close()).unwrap();
    for sector in 256..(1 << 18) - 300 {
        if ready(c[0].read(sector, 1)).unwrap().iter().any(|byte| *byte != 0) {
            rot(&c[(sector / 16 % 2) as usize], sector);
        }
    }
    bench.again();
    bench.check();
    let all = bench.read(None, file);
    assert!(all[8128..108_128] == noise(2, 100_000) && all[..8128] == noise(1, 300_000)[..8128]);
}

#[test]
fn what_nothing_can_heal_is_told_with_the_path_that_it_hurts() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let dir = bench.make(ROOT, "dir", mode::S_IFDIR);
    for name in ["a\n", "b", "c"] {
        let file = bench.make(dir, name, mode::S_IFREG);
        bench.write(file, 0, &noise(1, 100_000));
    }
    let dump = bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    let archive = bench.archive.clone();
    bench.run(archive.verify(&dump.name)).unwrap();
    // A block of the first file; those of all others follow.
    rot(&bench.w, FIRST - 128 + 16);
    bench.again();
    let archive = bench.archive.clone();
    let wrong = bench.run(archive.verify(&dump.name)).unwrap_err();
    assert!(wrong.to_string().contains("1 of "), "{wrong}");
    let hurt = said(&bench, "hurt");
    assert!(hurt.contains(&format!(" /dir/a\\n of {}: ", dump.name)) && hurt.lines().count() == 1, "{hurt}");
    assert!(bench.run(archive.scrub()).is_err());
    assert_eq!(said(&bench, "hurt").lines().count(), 1);
    assert!(said(&bench, "").contains("trouble: 1 files cannot be read whole"));
    assert!(bench.run(archive.verify("2026/1")).unwrap_err().to_string().contains("no dump"));
}

#[test]
fn a_node_that_is_rotten_hurts_what_is_below_it_and_all_else_is_read() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    for n in 0..400 {
        let file = bench.make(ROOT, &format!("a file with a long name, number {n}"), mode::S_IFREG);
        bench.write(file, 0, &noise(n, 9000));
    }
    let dump = bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    let (archive, end) = (bench.archive.clone(), bench.archive.state().next_worm);
    let is_leaf = |at: &u64| {
        let block = ready(bench.w.read(at * 16, 16)).unwrap();
        block[8192 - 64] == 2
    };
    let leaves: Vec<u64> = (3..end - 1).filter(is_leaf).collect();
    assert!(leaves.len() > 4);
    rot(&bench.w, leaves[leaves.len() / 2] * 16);
    assert!(bench.run(archive.verify(&dump.name)).is_err());
    let hurt = said(&bench, "hurt");
    assert!(hurt.lines().count() == 1 && hurt.contains("inodes "), "{hurt}");
}

#[test]
fn one_reads_at_a_time_and_ends_when_it_is_told_to() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 3_000_000));
    bench.dump();
    bench.copied();
    let archive = bench.archive.clone();
    let mut first = Box::pin(archive.scrub());
    assert!(first.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    let second = bench.run(archive.scrub()).unwrap_err();
    assert!(second.to_string().contains("under way"), "{second}");
    bench.run(archive.command("scrub stop")).unwrap();
    assert!(bench.run(first).unwrap_err().to_string().contains("stopped"));
    bench.run(archive.scrub()).unwrap();
}

/// A disk that does not answer for a while.
struct Away(Arc<dyn Device>, AtomicBool);

impl Device for Away {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn submit(&self, io: Io) {
        match io.op == Op::Read && self.1.load(Ordering::Relaxed) {
            true => io.end(Err(Wrong::new(Kind::Down, "it does not answer"))),
            false => self.0.submit(io),
        }
    }
}

#[test]
fn a_disk_that_does_not_answer_hurts_no_file() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let away = Arc::new(Away(bench.w.clone(), AtomicBool::new(false)));
    bench.w = away.clone();
    bench.again();
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 100_000));
    let dump = bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    bench.again();
    away.1.store(true, Ordering::Relaxed);
    let archive = bench.archive.clone();
    for word in ["scrub wait".into(), format!("verify {}", dump.name)] {
        let said = bench.run(archive.command(&word)).unwrap_err();
        assert!(said.to_string().contains("does not answer"), "{said}");
    }
    let read = bench.run(archive.attempt(|state| state.fs.read(state.fs.mem.root, file, 0, 10)));
    assert_eq!(read.unwrap_err().errno, nine_proto::Errno::ETIMEDOUT);
    assert_eq!(said(&bench, "hurt"), "");
    away.1.store(false, Ordering::Relaxed);
    bench.run(archive.scrub()).unwrap();
}

#[test]
fn labels_superblocks_and_headers_are_healed_too() {
    let (mut bench, [c, w]) = mirrored();
    bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    let superblock = bench.archive.state().newest.at * 16;
    let places = [(&w, 128), (&w, 128 + 16), (&w, 128 + superblock), (&c, 128), (&c, 128 + 8)];
    for (n, (disks, sector)) in places.iter().enumerate() {
        rot(&disks[n % 2], *sector);
    }
    let archive = bench.archive.clone();
    bench.run(archive.scrub()).unwrap();
    bench.settle();
    for (disks, sector) in places {
        let [one, other] = [0, 1].map(|member: usize| ready(disks[member].read(sector, 1)).unwrap());
        assert!(one == other, "sector {sector}");
    }
}

#[test]
fn a_scrub_comes_by_itself_and_one_that_was_stopped_is_gone_on_with() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    let mut dumps = Vec::new();
    for n in 0..4 {
        // Several times as much as one read.
        bench.write(file, 0, &noise(n, 4_000_000));
        dumps.push(bench.dump());
        bench.copied();
    }
    bench.settle();
    bench.sync();
    let archive = bench.archive.clone();
    assert!(bench.run(archive.command("scrub schedule now")).is_err());
    bench.run(archive.command("scrub schedule every 30d")).unwrap();
    let next = archive.state().scrubber.due.unwrap().next;
    let due = archive.0.zone.time(next);
    assert!(archive.status().contains(&format!("next scrub at {due}\n")), "{}", archive.status());
    bench.clock.store(next - 60, Ordering::Relaxed);
    bench.settle();
    assert!(!archive.status().contains("last scrub"), "{}", archive.status());
    bench.clock.store(next, Ordering::Relaxed);
    bench.settle();
    assert!(archive.status().contains("last scrub: ") && archive.status().contains("all right"));
    let all = archive.state().scrubber.blocks();
    // The scrub is stopped in the third of four dumps.
    let mut scrub = Box::pin(archive.scrub());
    let mut cx = Context::from_waker(Waker::noop());
    let (half, mut now) = (all * 5 / 8, 0);
    assert!(scrub.as_mut().poll(&mut cx).is_pending() && archive.state().scrubber.blocks() < half);
    while archive.state().scrubber.blocks() < half {
        assert!(scrub.as_mut().poll(&mut cx).is_pending());
        now += 20;
        archive.tick(std::time::Duration::from_millis(now));
    }
    bench.run(archive.command("scrub stop")).unwrap();
    assert!(bench.run(scrub).unwrap_err().to_string().contains("stopped"));
    bench.run(archive.scrub()).unwrap();
    let rest = archive.state().scrubber.blocks();
    assert!(rest < all * 5 / 8 && rest > all * 3 / 8, "{rest} of {all}");
    bench.run(archive.scrub()).unwrap();
    assert_eq!(archive.state().scrubber.blocks(), all);
    bench.run(archive.command("scrub schedule off")).unwrap();
    assert!(archive.state().scrubber.due.is_none());
}
