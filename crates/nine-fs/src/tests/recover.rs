//! A lost cache: the archive continues from a dump on w.

use nine_block::FakeWorm;
use nine_proto::Names;

use super::*;
use crate::{Recover, Recovered};

fn recover(bench: &mut Bench, dump: Option<&str>) -> nine_block::Result<Recovered> {
    let how = Recover { dump: dump.map(String::from), fastworm: Some(true), random: 0x1234_5678_9abc };
    let (c, w, settings) = (bench.c.clone(), bench.w.clone(), bench.settings.clone());
    let recovered = bench.run(Archive::recover(c, w, &settings, &how));
    if recovered.is_ok() {
        bench.again();
    }
    recovered
}

/// Creates files, with more of them in each of three dumps.
fn three() -> (Bench, Vec<crate::Dumped>) {
    three_on(Bench::new(1 << 18, 8192, true))
}

fn three_on(mut bench: Bench) -> (Bench, Vec<crate::Dumped>) {
    let mut dumps = Vec::new();
    for n in 0..3 {
        let file = bench.make(ROOT, &format!("file{n}"), mode::S_IFREG);
        bench.write(file, 0, &noise(n, 300_000));
        dumps.push(bench.dump());
        bench.copied();
        bench.settle();
    }
    bench.sync();
    (bench, dumps)
}

fn has(bench: &mut Bench, dump: Option<u32>, files: u64) {
    for n in 0..3 {
        let file = bench.lookup(dump, ROOT, &format!("file{n}"));
        assert_eq!(file.is_some(), n < files, "file{n} of {dump:?}");
        if let Some(file) = file {
            assert!(bench.read(dump, file) == noise(n, 300_000));
        }
    }
}

/// Checks that all files are there, and that the archive can be used further.
fn goes_on(bench: &mut Bench, dumps: &[crate::Dumped], files: u64) {
    has(bench, None, files);
    bench.check();
    let again = bench.make(ROOT, "again", mode::S_IFREG);
    bench.write(again, 0, &noise(9, 300_000));
    let new = bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    bench.again();
    for (dump, files) in dumps.iter().zip(1..) {
        has(bench, Some(dump.generation), files);
    }
    assert!(bench.read(Some(new.generation), again) == noise(9, 300_000));
    let known: Vec<String> = bench.archive.dumps().into_iter().map(|dump| dump.name).collect();
    let all: Vec<String> = dumps.iter().chain([&new]).map(|dump| dump.name.clone()).collect();
    assert_eq!(known, all);
    bench.check();
}

#[test]
fn a_new_cache_has_what_the_newest_dump_has() {
    let (mut bench, dumps) = three();
    let lost = bench.make(ROOT, "lost", mode::S_IFREG);
    bench.write(lost, 0, &noise(5, 100_000));
    bench.sync();
    bench.c = Arc::new(Ram::new(1 << 18));
    let recovered = recover(&mut bench, None).unwrap();
    assert_eq!((recovered.dump, recovered.dumps), (dumps[2].name.clone(), 3));
    assert_eq!(bench.lookup(None, ROOT, "lost"), None);
    goes_on(&mut bench, &dumps, 3);
    // And again, from a w that was written further.
    let names = bench.archive.dumps();
    bench.c = Arc::new(Ram::new(1 << 17));
    recover(&mut bench, None).unwrap();
    assert_eq!(bench.archive.dumps(), names);
    bench.check();
}

#[test]
fn a_new_cache_has_links_with_long_targets() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    for len in TARGETS {
        bench.symlink(ROOT, &format!("link{len}"), &long_target(len));
    }
    bench.dump();
    bench.copied();
    bench.settle();
    bench.sync();
    bench.c = Arc::new(Ram::new(1 << 18));
    recover(&mut bench, None).unwrap();
    assert_targets(&mut bench, None);
    bench.check();
}

#[test]
fn an_older_dump_may_be_gone_on_from_and_the_newer_ones_stay() {
    let (mut bench, dumps) = three();
    let said = recover(&mut bench, Some("2026/0101")).unwrap_err();
    assert!(said.to_string().contains("no such dump"), "{said}");
    assert!(recover(&mut bench, Some("yesterday")).is_err());
    let recovered = recover(&mut bench, Some(&dumps[0].name)).unwrap();
    assert_eq!(recovered.dump, dumps[0].name);
    goes_on(&mut bench, &dumps, 1);
}

#[test]
fn the_same_device_may_be_the_new_cache_and_nothing_of_its_journal_comes_back() {
    let (mut bench, dumps) = three();
    for n in 0..40 {
        let file = bench.make(ROOT, &format!("later{n}"), mode::S_IFREG);
        bench.write(file, 0, &noise(n, 10_000));
        bench.sync();
    }
    recover(&mut bench, None).unwrap();
    bench.again();
    assert_eq!(bench.lookup(None, ROOT, "later1"), None);
    goes_on(&mut bench, &dumps, 3);
}

#[test]
fn what_was_on_its_way_to_w_is_passed_over() {
    let (mut bench, dumps) = three();
    let file = bench.make(ROOT, "unfinished", mode::S_IFREG);
    bench.write(file, 0, &noise(7, 2_000_000));
    let archive = bench.archive.clone();
    // Its blocks are on w; its superblock is not.
    let place = archive.state().next_worm;
    bench.dump();
    bench.copied();
    let end = archive.state().next_worm;
    for at in [place, end - 1] {
        ready(bench.w.write(at * 16, vec![0; 8192].into())).unwrap();
    }
    bench.c = Arc::new(Ram::new(1 << 18));
    recover(&mut bench, None).unwrap();
    assert_eq!(bench.lookup(None, ROOT, "unfinished"), None);
    assert!(bench.archive.state().next_worm >= end - 1);
    goes_on(&mut bench, &dumps, 3);
    bench.c = Arc::new(Ram::new(1 << 18));
    assert_eq!(recover(&mut bench, None).unwrap().dumps, 4);
    bench.check();
}

#[test]
fn one_copy_of_each_superblock_is_enough() {
    let (mut bench, dumps) = three();
    let mut rotten = bench.archive.state().newest.at;
    let blocks = u64::from(bench.archive.state().newest.blocks);
    ready(bench.w.write((rotten + blocks - 1) * 16, vec![1; 8192].into())).unwrap();
    for (_, dump) in bench.archive.state().dumps.iter().take(2) {
        rotten = dump.record.segment;
        ready(bench.w.write(rotten * 16, vec![1; 8192].into())).unwrap();
    }
    bench.c = Arc::new(Ram::new(1 << 18));
    assert_eq!(recover(&mut bench, None).unwrap().dumps, 3);
    goes_on(&mut bench, &dumps, 3);
}

#[test]
fn a_worm_that_is_written_once_is_recovered_too() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let of = Arc::new(Ram::new(1 << 20));
    bench.w = Arc::new(ready(FakeWorm::make(of, 16)).unwrap());
    bench.make_again();
    let file = bench.make(ROOT, "file0", mode::S_IFREG);
    bench.write(file, 0, &noise(0, 300_000));
    let first = bench.dump();
    bench.copied();
    bench.c = Arc::new(Ram::new(1 << 18));
    recover(&mut bench, None).unwrap();
    goes_on(&mut bench, &[first], 1);
}

#[test]
fn without_a_dump_there_is_nothing_to_recover() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let said = recover(&mut bench, None).unwrap_err();
    assert!(said.to_string().contains("no dump"), "{said}");
    // The attempt has lost nothing.
    bench.again();
    bench.check();
}

#[test]
fn a_recovery_that_was_interrupted_is_no_archive_and_is_done_again() {
    let (mut bench, dumps) = three();
    let c: Arc<dyn Device> = Arc::new(Ram::new(1 << 18));
    let size = c.shape().sectors;
    for from in [0, 64, 4096] {
        // A device on which some writes are missing.
        bench.c = c.clone();
        recover(&mut bench, None).unwrap();
        for at in [0, 8, size - 16, size - 8] {
            ready(c.write(at, vec![0; 4096].into())).unwrap();
        }
        ready(c.write(16 + from, vec![0; 64 << 9].into())).unwrap();
        assert!(ready(Archive::open(c.clone(), bench.w.clone(), &bench.settings)).is_err());
    }
    recover(&mut bench, None).unwrap();
    goes_on(&mut bench, &dumps, 3);
}

#[test]
fn who_follows_a_worm_has_its_dumps_as_they_come_and_changes_nothing() {
    let (mut main, dumps) = three();
    let mut other = Bench::new(1 << 18, 8192, true);
    let w: Arc<dyn Device> = Arc::new(Odd(main.w.clone()));
    (other.archive, other.driver) = ready(Archive::follow(w, &main.settings)).unwrap();
    for (dump, files) in dumps.iter().zip(1..) {
        has(&mut other, Some(dump.generation), files);
    }
    has(&mut other, None, 3);
    let archive = other.archive.clone();
    for n in 5..8 {
        let file = main.make(ROOT, &format!("file{n}"), mode::S_IFREG);
        main.write(file, 0, &noise(n, 200_000));
        let user = format!("user{n}");
        main.run(main.archive.clone().command(&format!("newuser {user}"))).unwrap();
        let dump = main.dump();
        main.settle();
        if n == 6 {
            // As after a failed write to w: the next segment begins farther on.
            main.archive.state().next_worm += 100;
        }
        // Half a minute.
        for turn in 0..40_000 {
            archive.tick(std::time::Duration::from_millis(20 * (turn + 100_000 * n)));
            other.turn();
        }
        assert_eq!(archive.dumps().last().unwrap().name, dump.name, "{n}");
        let read = other.lookup(None, ROOT, &format!("file{n}")).unwrap();
        assert!(other.read(Some(dump.generation), read) == noise(n, 200_000));
        assert!(archive.state().users.uid(user.as_bytes()).is_some(), "{user}");
    }
    other.run(archive.command("check dumps wait")).unwrap();
    assert_eq!(archive.dumps(), main.archive.dumps());
    other.run(archive.scrub()).unwrap();
    for word in ["dump", "newuser glenda", "sync"] {
        let said = other.run(archive.command(word)).unwrap_err();
        assert!(said.to_string().contains("follows"), "{said}");
    }
    assert!(archive.status().contains("follows"), "{}", archive.status());
    other.run(archive.close()).unwrap();
}

/// A device that is never written.
pub(super) struct Odd(pub(super) Arc<dyn Device>);

impl Device for Odd {
    fn shape(&self) -> nine_block::Shape {
        self.0.shape()
    }

    fn name(&self) -> String {
        self.0.name()
    }

    fn submit(&self, io: nine_block::Io) {
        assert!(!matches!(io.op, nine_block::Op::Write | nine_block::Op::Discard));
        self.0.submit(io);
    }
}

#[test]
fn a_worm_is_copied_dump_by_dump_and_the_copy_is_as_good() {
    let (mut bench, mut dumps) = three();
    let other: Arc<dyn Device> = Arc::new(Ram::new(1 << 18));
    let copy = |bench: &Bench, to: &Arc<dyn Device>| ready(Archive::copy_worm(&bench.w, to, |_, _| ()));
    let copied = copy(&bench, &other).unwrap();
    assert_eq!((copied.before, copied.new, copied.wrong), (0, 3, 0));
    let file = bench.make(ROOT, "later", mode::S_IFREG);
    bench.write(file, 0, &noise(5, 300_000));
    dumps.push(bench.dump());
    bench.copied();
    bench.settle();
    // The cut came when some blocks were there, but no superblock.
    let place = bench.archive.state().newest.at;
    let some = ready(bench.w.read((place + 1) * 16, 16 * 5)).unwrap();
    ready(other.write((place + 1) * 16, some)).unwrap();
    let copied = copy(&bench, &other).unwrap();
    assert_eq!((copied.before, copied.new, copied.wrong), (3, 1, 0));
    assert_eq!(copy(&bench, &other).unwrap().blocks, 0);
    // It can be continued there with the old cache, and with a new one.
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    bench.w = other.clone();
    bench.again();
    bench.check();
    assert!(bench.read(None, file) == noise(5, 300_000));
    bench.c = Arc::new(Ram::new(1 << 18));
    assert_eq!(recover(&mut bench, None).unwrap().dumps, 4);
    goes_on(&mut bench, &dumps, 3);

    let small: Arc<dyn Device> = Arc::new(Ram::new(500));
    assert!(copy(&bench, &small).unwrap_err().to_string().contains("are needed"));
}

#[test]
fn what_is_rotten_in_a_worm_is_missing_in_the_copy_and_counted() {
    let (bench, _) = three();
    ready(bench.w.write(5 * 16, vec![3; 512].into())).unwrap();
    let other: Arc<dyn Device> = Arc::new(Ram::new(1 << 18));
    let copied = ready(Archive::copy_worm(&bench.w, &other, |_, _| ())).unwrap();
    assert_eq!((copied.new, copied.wrong), (3, 1));
    assert!(ready(other.read(5 * 16, 16)).unwrap().iter().all(|byte| *byte == 0));
    // A device with other dumps is not an older copy.
    let (newer, _) = three();
    let said = ready(Archive::copy_worm(&bench.w, &newer.w, |_, _| ()));
    assert!(said.is_ok_and(|copied| copied.new == 0), "they are the same, made twice");
    let mut fewer = Bench::new(1 << 18, 8192, true);
    let file = fewer.make(ROOT, "another", mode::S_IFREG);
    fewer.write(file, 0, &noise(9, 10_000));
    fewer.dump();
    fewer.copied();
    let said = ready(Archive::copy_worm(&fewer.w, &other, |_, _| ())).unwrap_err();
    assert!(said.to_string().contains("dumps that the other has not"), "{said}");
}

#[test]
fn files_without_a_name_that_a_dump_has_are_counted_and_then_removed() {
    let mut bench = Bench::new(1 << 18, 8192, true);
    let (archive, now) = (bench.archive.clone(), bench.archive.time());
    for n in 0..20 {
        let name = format!("file{n}");
        let file = bench.make(ROOT, &name, mode::S_IFREG);
        bench.write(file, 0, &noise(n, 300_000));
        // It is open.
        let unlinked =
            archive.attempt(|state| state.fs.unlink(ROOT, name.as_bytes(), None, |_| true, now).map(drop));
        bench.run(unlinked).unwrap();
    }
    assert!(archive.state().fs.blocks > 700);
    bench.dump();
    bench.copied();
    bench.settle();
    bench.c = Arc::new(Ram::new(1 << 18));
    recover(&mut bench, None).unwrap();
    bench.check();
    bench.settle();
    bench.sync();
    bench.check();
    assert_eq!(bench.archive.state().fs.blocks, 0, "nobody has them");
}

/// Returns a copy of a disk.
fn image(of: &Arc<dyn Device>) -> Arc<dyn Device> {
    let sectors = of.shape().sectors;
    let copy: Arc<dyn Device> = Arc::new(Ram::new(sectors));
    ready(copy.write(0, ready(of.read(0, sectors)).unwrap())).unwrap();
    copy
}

#[test]
fn a_cache_that_does_not_know_what_its_worm_has_is_refused() {
    let mut bench = three().0;
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    let (old, forked) = (image(&bench.c), (image(&bench.c), image(&bench.w)));
    let makes = |bench: &mut Bench| {
        bench.again();
        let file = bench.make(ROOT, "later", mode::S_IFREG);
        bench.write(file, 0, &noise(5, 300_000));
    };
    makes(&mut bench);
    bench.dump();
    bench.copied();
    bench.settle();
    let refused = |c: &Arc<dyn Device>, bench: &Bench| {
        let opened = ready(Archive::open(c.clone(), bench.w.clone(), &bench.settings));
        let said = opened.map(drop).unwrap_err().to_string();
        assert!(said.contains("fs recover --force"), "{said}");
    };
    refused(&old, &bench);
    // This one has taken its own dump of the same generation, which is not on its worm.
    let mut other = Bench::new(1 << 18, 8192, true);
    (other.c, other.w) = forked;
    other.clock.fetch_add(60, Ordering::Relaxed);
    makes(&mut other);
    other.archive.stop_copies();
    other.dump();
    other.sync();
    assert_eq!(other.archive.state().waiting[0].generation, bench.archive.state().newest.generation);
    refused(&other.c, &bench);
    bench.again();
    bench.check();
}

#[test]
fn a_recovery_that_is_cut_is_done_again_before_anything_else() {
    for in_place in [false, true] {
        let (mut cuts, mut unfinished) = (0, 0);
        for writes in 0.. {
            let alone = || super::in_place::bench(Arc::new(Ram::new(1 << 16)));
            let (mut bench, dumps) =
                three_on(if in_place { alone() } else { Bench::new(1 << 16, 8192, true) });
            let archive = bench.archive.clone();
            bench.run(archive.close()).unwrap();
            let (c, w) = (bench.c.clone(), bench.w.clone());
            let cut =
                |disk: &Arc<dyn Device>, is_its| if is_its { cut_after(disk, writes) } else { disk.clone() };
            let how = Recover { dump: Some(dumps[1].name.clone()), fastworm: Some(true), random: 77 };
            let settings = bench.settings.clone();
            let all = Archive::recover(cut(&c, !in_place), cut(&w, in_place), &settings, &how);
            let is_done = bench.run(all).is_ok();
            cuts += u32::from(!is_done);
            match ready(Archive::open(c, w, &settings)) {
                Ok(opened) => {
                    // The state before, or the complete new one.
                    (bench.archive, bench.driver) = opened;
                    has(&mut bench, None, if writes < 4 { 3 } else { 2 });
                    assert_eq!(bench.archive.dumps().len(), 3);
                    bench.check();
                }
                Err(error) => {
                    assert!(!is_done, "{error}");
                    unfinished += u32::from(error.to_string().contains("once more"));
                }
            }
            recover(&mut bench, None).unwrap();
            goes_on(&mut bench, &dumps, 3);
            if is_done {
                break;
            }
        }
        assert!(cuts > 10 && unfinished > 3, "{cuts} cuts, of which {unfinished} are found");
    }
}

/// Returns whether blocks read from w are copied to c, by the cache's header.
fn is_fastworm(bench: &Bench) -> bool {
    ready(bench.c.read(0, 1)).unwrap()[152] & 1 != 0
}

#[test]
fn a_cache_that_is_made_anew_is_as_it_was_unless_it_is_said() {
    for was in [true, false] {
        let mut bench = Bench::new(1 << 18, 8192, was);
        bench.dump();
        bench.copied();
        let mut anew = |fastworm| {
            let how = Recover { dump: None, fastworm, random: 5 };
            let (c, w, settings) = (bench.c.clone(), bench.w.clone(), bench.settings.clone());
            bench.run(Archive::recover(c, w, &settings, &how)).unwrap();
            bench.again();
            is_fastworm(&bench)
        };
        assert_eq!((anew(None), anew(Some(!was)), anew(None)), (was, !was, !was));
        // c is empty.
        bench.c = Arc::new(Ram::new(1 << 18));
        let how = Recover { dump: None, fastworm: None, random: 6 };
        let (c, w, settings) = (bench.c.clone(), bench.w.clone(), bench.settings.clone());
        bench.run(Archive::recover(c, w, &settings, &how)).unwrap();
        assert!(is_fastworm(&bench));
    }
}

#[test]
fn where_no_dump_is_yet_that_is_what_a_follower_says() {
    let bench = Bench::new(1 << 18, 8192, true);
    let said = ready(Archive::follow(bench.w.clone(), &bench.settings)).err().expect("there is none");
    assert_eq!(said.kind, nine_block::Kind::Unwritten, "{said}");
}
