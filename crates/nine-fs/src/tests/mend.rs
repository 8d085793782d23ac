//! Checks beside clients and of archives that are not served; and repairs.

use std::sync::Mutex;

use super::recover::Odd;
use super::*;
use crate::check::TreeRepair;
use crate::cw::{Cw, RowLocation, RowRepair, TableRow};
use crate::item::{CookieEntry, ItemKey, NameEntry};
use crate::{Checked, Depth, Repaired};

/// Files by path, none of which may be lost.
type Files = Vec<(String, Vec<u8>)>;

/// Creates a variety of data: short and long files, links, a dump on w, later changes.
fn made() -> (Bench, Files) {
    let mut bench = Bench::new(1 << 15, 8192, true);
    let dir = bench.make(ROOT, "d", mode::S_IFDIR);
    let below = bench.make(dir, "e", mode::S_IFDIR);
    let mut files = Files::new();
    for n in 0..6 {
        let file = bench.make(dir, &format!("f{n}"), mode::S_IFREG);
        files.push((format!("d/f{n}"), noise(n, 15_000 * n as usize + 40)));
        bench.write(file, 0, &files[n as usize].1);
    }
    let (archive, now) = (bench.archive.clone(), bench.archive.time());
    let first = bench.lookup(None, dir, "f5").unwrap();
    bench.run(archive.attempt(|state| state.fs.link(below, b"l", first, now))).unwrap();
    files.push(("d/e/l".into(), files[5].1.clone()));
    bench.dump();
    bench.copied();
    bench.settle();
    let second = bench.lookup(None, dir, "f2").unwrap();
    bench.write(second, 9_000, &noise(77, 9_000));
    files[2].1[9_000..18_000].copy_from_slice(&noise(77, 9_000));
    let new = bench.make(below, "new", mode::S_IFREG);
    bench.write(new, 0, &noise(8, 30_000));
    files.push(("d/e/new".into(), noise(8, 30_000)));
    bench.sync();
    (bench, files)
}

fn find(bench: &mut Bench, path: &str) -> Option<u64> {
    path.split('/').try_fold(ROOT, |at, name| bench.lookup(None, at, name))
}

fn close(bench: &mut Bench) {
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
}

fn look(bench: &mut Bench, depth: Depth) -> Checked {
    let odd = |disk: &Arc<dyn Device>| -> Arc<dyn Device> { Arc::new(Odd(disk.clone())) };
    let (c, w, settings) = (odd(&bench.c), odd(&bench.w), bench.settings.clone());
    let (archive, driver) = ready(Archive::look(c, w, &settings)).unwrap();
    let checked = driver.beside(archive.check(depth));
    bench.run(checked).unwrap()
}

fn repair(bench: &mut Bench, dry: bool) -> (nine_block::Result<Repaired>, Vec<String>) {
    let (c, w, settings) = (bench.c.clone(), bench.w.clone(), bench.settings.clone());
    let told = Mutex::new(Vec::new());
    let tell = |text: &str| told.lock().unwrap().push(text.to_owned());
    let repaired = bench.run(Archive::repair(c, w, &settings, (Depth::Blocks, dry), tell));
    (repaired, told.into_inner().unwrap())
}

/// Checks that the archive is sound, and has these files.
fn is_whole(bench: &mut Bench, files: &Files) {
    let checked = look(bench, Depth::Dumps);
    assert!(checked.faults.is_empty(), "{:#?}", checked.faults);
    bench.again();
    for (path, content) in files {
        let ino = find(bench, path).unwrap_or_else(|| panic!("{path} is lost"));
        assert!(bench.read(None, ino) == *content, "{path}");
    }
}

/// Damages the tree by applying a repair with a wrong value.
fn hurt(bench: &mut Bench, mend: &TreeRepair) {
    let (archive, now) = (bench.archive.clone(), bench.archive.time());
    bench.run(archive.attempt(|state| state.fs.mend(mend, now))).unwrap();
    archive.state().noted = true;
    bench.sync();
}

fn put(bench: &mut Bench, key: &[u8], value: &[u8]) {
    let archive = bench.archive.clone();
    let put = |state: &mut crate::archive::ArchiveState| {
        state.fs.touch(&[key])?;
        state.fs.put(key, value);
        Ok(())
    };
    bench.run(archive.attempt(put)).unwrap();
    bench.sync();
}

fn cookie(bench: &mut Bench, dir: u64, name: &str) -> u64 {
    let archive = bench.archive.clone();
    let found = archive.attempt(|state| state.fs.lookup(state.fs.mem.root, dir, name.as_bytes()));
    bench.run(found).unwrap().unwrap().cookie
}

/// Damages rows and bits while the archive is closed.
fn hurt_rows(bench: &mut Bench, hurts: impl FnOnce(&Cw, Vec<(u64, TableRow)>) -> Vec<Hurt>) {
    close(bench);
    ready(async {
        let cw = Cw::open(bench.c.clone(), bench.w.clone()).await.unwrap();
        // Rows with a slot, and their values.
        let (held, mut rows) = (cw.hold(), Vec::new());
        for row in cw.used_rows() {
            let it = held.row(row).await.unwrap();
            rows.extend(it.place.slot().map(|_| (row, it)));
        }
        drop(held);
        for hurt in hurts(&cw, rows) {
            match hurt {
                Hurt::Bit(which, bit, to) => cw.set_bit(which, bit, to).await.unwrap(),
                Hurt::Row(row, to) => {
                    cw.mend(&[RowRepair { row: Some(row), to, left: None }]).await.unwrap();
                }
            }
        }
    });
}

/// A kind of damage to rows.
enum Hurt {
    /// A bit of used slots (0), used rows (1) or forwarded rows (2).
    Bit(usize, u64, bool),
    Row(u64, TableRow),
}

/// Checks that this fault is found and repaired. A dry run must report the same, and do nothing.
fn mends(bench: &mut Bench, files: &Files, fault: &str, mended: &str) {
    let checked = look(bench, Depth::Names);
    assert!(checked.faults.iter().any(|text| text.contains(fault)), "{fault}: {:#?}", checked.faults);
    let (dry, told) = repair(bench, true);
    assert!(told.iter().any(|text| text.contains(mended)), "{mended}: {told:#?}");
    assert_eq!(dry.unwrap().left.faults, look(bench, Depth::Blocks).faults);
    let (repaired, told) = repair(bench, false);
    let repaired = repaired.unwrap();
    assert!(repaired.left.faults.is_empty(), "{told:#?} {:#?}", repaired.left.faults);
    assert!(told.iter().any(|text| text.contains(mended)), "{mended}: {told:#?}");
    assert_eq!(repaired.mended, told.len());
    is_whole(bench, files);
    // The archive can be used further.
    let again = bench.make(ROOT, "again", mode::S_IFREG);
    bench.write(again, 0, &noise(3, 50_000));
    bench.dump();
    bench.copied();
    bench.settle();
    bench.check();
}

#[test]
fn looking_writes_nothing_and_leaves_what_is_not_finished() {
    let (mut bench, files) = made();
    let archive = bench.archive.clone();
    // A file to be removed at the next start, a waiting dump, a journal.
    let (gone, now) = (bench.make(ROOT, "gone", mode::S_IFREG), archive.time());
    bench.write(gone, 0, &noise(1, 100_000));
    archive.stop_copies();
    bench.dump();
    bench.run(archive.attempt(|state| state.fs.unlink(ROOT, b"gone", None, |_| true, now))).unwrap();
    bench.sync();
    for depth in [Depth::Quick, Depth::Names, Depth::Blocks, Depth::Dumps] {
        let checked = look(&mut bench, depth);
        assert!(checked.faults.is_empty() && checked.files > 8, "{checked:?}");
    }
    let (repaired, told) = repair(&mut bench, false);
    assert_eq!((repaired.unwrap().mended, told.len()), (0, 0));
    is_whole(&mut bench, &files);
}

#[test]
fn a_check_sees_one_moment_while_all_is_changed() {
    for fastworm in [true, false] {
        let mut bench = Bench::new(1 << 17, 8192, fastworm);
        let files: Vec<u64> = (0..40)
            .map(|n| {
                let file = bench.make(ROOT, &format!("file{n}"), mode::S_IFREG);
                bench.write(file, 0, &noise(n, 60_000));
                file
            })
            .collect();
        bench.sync();
        let archive = bench.archive.clone();
        let mut check = Box::pin(archive.check(Depth::Dumps));
        let mut turns = 0;
        let checked = loop {
            if let Poll::Ready(checked) = check.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                break checked.unwrap();
            }
            let n = turns % 40;
            bench.write(files[n], 5_000, &noise(turns as u64, 40_000));
            let more = bench.make(ROOT, &format!("more{turns}"), mode::S_IFREG);
            bench.write(more, 0, &noise(4, 30_000));
            if turns % 5 == 4 {
                bench.unlink(ROOT, &format!("more{}", turns - 2));
                bench.dump();
                bench.copied();
                bench.settle();
            }
            bench.sync();
            turns += 1;
        };
        assert!(turns > 10, "nothing has changed meanwhile: this shows nothing");
        assert!(checked.faults.is_empty(), "{:#?}", checked.faults);
        // The root, /adm, /adm/users.
        assert_eq!(checked.files, 43);
        assert!(archive.status().contains("last check: 43 files, "), "{}", archive.status());
        bench.check();
    }
}

#[test]
fn a_moment_that_cannot_be_held_is_given_up_before_anybody_waits() {
    let mut bench = Bench::new(1 << 14, 8192, true);
    let file = bench.make(ROOT, "file", mode::S_IFREG);
    bench.write(file, 0, &noise(1, 3_000_000));
    bench.sync();
    let archive = bench.archive.clone();
    let mut check = Box::pin(archive.check(Depth::Blocks));
    assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    for n in 0..3 {
        bench.write(file, 0, &noise(n, 3_000_000));
        bench.sync();
    }
    let said = bench.run(check).unwrap_err();
    assert!(said.to_string().contains("could not be held"), "{said}");
    bench.check();
}

#[test]
fn the_console_checks_beside_all_else() {
    let (mut bench, _) = made();
    let archive = bench.archive.clone();
    for word in ["check wait", "check quick wait", "check wait blocks", "check dumps wait"] {
        bench.run(archive.command(word)).unwrap();
        assert!(archive.status().contains(" is whole\n"), "{}", archive.status());
    }
    assert!(bench.run(archive.command("check all")).is_err());
    let mut check = Box::pin(archive.check(Depth::Blocks));
    assert!(check.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(archive.status().contains("check: "), "{}", archive.status());
    bench.run(archive.command("check stop")).unwrap();
    assert!(bench.run(check).unwrap_err().to_string().contains("stopped"));
    let file = find(&mut bench, "d/f4").unwrap();
    hurt(&mut bench, &TreeRepair::Links(file, 4));
    assert!(bench.run(archive.command("check wait")).unwrap_err().to_string().contains("1 faults"));
    assert!(archive.status().contains("1 faults\n"), "{}", archive.status());
}

#[test]
fn counts_of_an_inode_are_set_right() {
    let ino = |bench: &mut Bench, path| find(bench, path).unwrap();
    type Makes = fn(u64) -> TreeRepair;
    let all: [(&str, Makes, &str, &str); 9] = [
        ("d/f5", |ino| TreeRepair::Links(ino, 7), "7 links, where there are 2", "/d/e/l: inode"),
        ("d", |ino| TreeRepair::Links(ino, 2), "2 links, where there are 3", "/d: inode"),
        ("d", |ino| TreeRepair::Entries(ino, 1), "7 entries, 7 cookies, 1 said", "has 7 entries"),
        ("d", |ino| TreeRepair::Cookies(ino, 3), "3 said", "the last cookie of inode"),
        ("d/e", |ino| TreeRepair::Parent(ino, ROOT), "1 said", "is in inode"),
        ("d/f4", |ino| TreeRepair::Blocks(ino, 2), "8 blocks, 2 said", "has 8 blocks"),
        ("d/f4", |ino| TreeRepair::Acls(ino, 16), "control lists, 16 said", "has no access control lists"),
        ("d/f4", |ino| TreeRepair::Noted(ino, true), "it would be cut, and is", "nothing of it is to go"),
        ("d", |ino| TreeRepair::Noted(ino, true), "it would be cut, and is", "nothing of it is to go"),
    ];
    for (path, makes, fault, mended) in all {
        let (mut bench, files) = made();
        let mend = makes(ino(&mut bench, path));
        hurt(&mut bench, &mend);
        mends(&mut bench, &files, fault, mended);
    }
}

#[test]
fn what_is_counted_of_all_is_set_right() {
    let all = [
        (TreeRepair::All(5), "blocks of files, 5 said", "all files have"),
        (TreeRepair::Usage(0, 5), "user 0: ", "user 0 has"),
        (TreeRepair::Usage(99, 5), "user 99: 0 bytes, 5 said", "user 99 has 0 bytes"),
    ];
    for (mend, fault, mended) in all {
        let (mut bench, files) = made();
        hurt(&mut bench, &mend);
        mends(&mut bench, &files, fault, mended);
    }
    let (mut bench, files) = made();
    bench.archive.state().fs.next_inode = 4;
    bench.archive.state().noted = true;
    bench.sync();
    mends(&mut bench, &files, "would be given", "the next inode is");
}

#[test]
fn a_directory_that_has_lost_its_name_is_found_with_all_it_has() {
    let (mut bench, mut files) = made();
    let (dir, below) = (find(&mut bench, "d").unwrap(), find(&mut bench, "d/e").unwrap());
    let cookie = cookie(&mut bench, dir, "e");
    hurt(&mut bench, &TreeRepair::Name(dir, cookie));
    for (path, _) in &mut files {
        *path = path.replace("d/e/", &format!("lost+found/{below}/"));
    }
    mends(&mut bench, &files, "it has no name", &format!("is now /lost+found/{below}"));
    // The second file finds the directory there.
    let archive = bench.archive.clone();
    let file = find(&mut bench, "d/f3").unwrap();
    let cookie = self::cookie(&mut bench, dir, "f3");
    hurt(&mut bench, &TreeRepair::Name(dir, cookie));
    bench.run(archive.close()).unwrap();
    files[3].0 = format!("lost+found/{file}");
    mends_once(&mut bench, &files);
}

/// Repairs everything.
fn mends_once(bench: &mut Bench, files: &Files) {
    let (repaired, told) = repair(bench, false);
    assert!(repaired.unwrap().left.faults.is_empty() && !told.is_empty(), "{told:#?}");
    is_whole(bench, files);
}

#[test]
fn names_and_cookies_know_what_the_other_has_lost() {
    for which in 0..4 {
        let (mut bench, files) = made();
        let dir = find(&mut bench, "d").unwrap();
        let cookie = cookie(&mut bench, dir, "f3");
        match which {
            0 => hurt(&mut bench, &TreeRepair::Cell(ItemKey::cookie(dir, cookie).to_vec())),
            1 => hurt(&mut bench, &TreeRepair::Cell(ItemKey::name(dir, b"f3").to_vec())),
            2 => put(&mut bench, &ItemKey::name(dir, b"f3"), b"nonsense"),
            _ => put(&mut bench, &ItemKey::cookie(dir, cookie), b"nonsense"),
        }
        mends_once(&mut bench, &files);
    }
}

#[test]
fn a_name_that_leads_nowhere_goes_and_one_of_something_stays() {
    let (mut bench, files) = made();
    let dir = find(&mut bench, "d").unwrap();
    let (ino, kind, name) = (9_999, 8, &b"ghost"[..]);
    put(&mut bench, &ItemKey::name(dir, name), &NameEntry { ino, cookie: 70, kind }.encode());
    put(&mut bench, &ItemKey::cookie(dir, 70), &CookieEntry { ino, kind, name }.encode());
    mends(&mut bench, &files, "a name leads to inode 9999", "its name with cookie 70 goes");
    assert_eq!(find(&mut bench, "d/ghost"), None);
    // The attributes are lost, but not the content.
    for path in ["d/f4", "d/e", "d/f0"] {
        let (mut bench, mut files) = made();
        let ino = find(&mut bench, path).unwrap();
        hurt(&mut bench, &TreeRepair::Cell(ItemKey::attributes(ino).to_vec()));
        // With them the end of the last block is lost.
        if path == "d/f4" {
            let end = files[4].1.len().next_multiple_of(8192 - 64);
            files[4].1.resize(end, 0);
        }
        mends(&mut bench, &files, "but no attributes", "gets attributes");
    }
}

#[test]
fn a_link_with_a_long_target_that_lost_its_attributes_leads_there_again() {
    for len in [1920, 1921, 4095] {
        let (mut bench, files) = made();
        let link = bench.symlink(ROOT, "link", &long_target(len));
        bench.sync();
        hurt(&mut bench, &TreeRepair::Cell(ItemKey::attributes(link).to_vec()));
        mends(&mut bench, &files, "but no attributes", "gets attributes");
        assert!(bench.target(None, link) == long_target(len), "{len}");
    }
}

#[test]
fn what_is_behind_a_size_and_not_noted_goes() {
    let (mut bench, mut files) = made();
    let ino = find(&mut bench, "d/f4").unwrap();
    hurt(&mut bench, &TreeRepair::Entries(ino, 10_000));
    files[4].1.truncate(10_000);
    mends(&mut bench, &files, "blocks behind its size", "what is behind its size goes");
}

#[test]
fn rows_and_slots_are_freed_and_used_as_trees_point_to_them() {
    let all = [
        ("has a block, and is free", "is used, and slot"),
        ("is used, and no row has it", " is free"),
        ("which is free; its block is there", "is used, and slot"),
        ("is used, and free", " is free"),
        ("is said twice", "is used, and slot"),
        ("nothing points to row", " is free"),
    ];
    for (which, (fault, mended)) in all.into_iter().enumerate() {
        let (mut bench, files) = made();
        hurt_rows(&mut bench, |cw, rows| {
            let (row, it) = rows[rows.len() / 2];
            let slot = it.place.slot().unwrap();
            let free = (row..).find(|row| !cw.used_rows().contains(row)).unwrap();
            let unused =
                (0..).find(|slot| rows.iter().all(|(_, it)| it.place != RowLocation::Here(*slot))).unwrap();
            vec![match which {
                0 => Hurt::Bit(0, slot, false),
                1 => Hurt::Bit(0, unused, true),
                2 => Hurt::Bit(1, row, false),
                3 => Hurt::Bit(1, free, true),
                4 => Hurt::Bit(2, row, true),
                _ => Hurt::Row(free, TableRow { place: RowLocation::Here(unused), made: 1, sum: 5 }),
            }]
        });
        mends(&mut bench, &files, fault, mended);
    }
}

#[test]
fn whose_slot_another_row_names_keeps_it() {
    let (mut bench, files) = made();
    hurt_rows(&mut bench, |cw, rows| {
        let free = (rows[0].0..).find(|row| !cw.used_rows().contains(row)).unwrap();
        vec![Hurt::Row(free, rows[1].1)]
    });
    mends(&mut bench, &files, "is used twice", " is free");
}

#[test]
fn what_is_lost_is_told_with_its_path_and_who_has_it_and_stays_as_it_is() {
    let (mut bench, files) = made();
    let dump = bench.archive.dumps()[0].name.clone();
    let (file, new) = (find(&mut bench, "d/f2").unwrap(), find(&mut bench, "d/e/new").unwrap());
    let archive = bench.archive.clone();
    let mut slots = Vec::new();
    for (ino, block) in [(file, 1), (new, 2)] {
        let at = bench.run(archive.attempt(|state| state.fs.block_at(state.fs.mem.root, ino, block)));
        slots.push(bench.run(archive.0.cw.sector_of_row(at.unwrap().unwrap().row().unwrap())));
    }
    close(&mut bench);
    for sector in slots {
        let mut bytes = ready(bench.c.read(sector, 1)).unwrap().to_vec();
        bytes[7] ^= 1;
        ready(bench.c.write(sector, bytes.into())).unwrap();
    }
    let (repaired, told) = repair(&mut bench, false);
    let left = repaired.unwrap().left.faults;
    assert!(told.is_empty() && left.len() == 2, "{told:#?} {left:#?}");
    let has = |texts: [&str; 3]| left.iter().any(|fault| texts.iter().all(|text| fault.contains(text)));
    assert!(has(["/d/f2: block 1 ", "is lost", &format!("dump {dump} has an older one")]), "{left:#?}");
    assert!(has(["/d/e/new: block 2 ", "is lost", "no dump has an older one"]), "{left:#?}");
    bench.again();
    let archive = bench.archive.clone();
    let it = bench.run(archive.attempt(|state| state.fs.attributes(state.fs.mem.root, file))).unwrap();
    assert_eq!(it.size, files[2].1.len() as u64);
    assert!(bench.run(archive.attempt(|state| state.fs.read(state.fs.mem.root, file, 8_200, 10))).is_err());
}

#[test]
fn where_a_node_is_lost_nothing_is_taken_for_free() {
    let mut bench = Bench::new(1 << 16, 8192, true);
    for n in 0..400 {
        let file = bench.make(ROOT, &format!("a file with a long name, number {n}"), mode::S_IFREG);
        bench.write(file, 0, &noise(n, 9000));
    }
    bench.sync();
    let file = bench.lookup(None, ROOT, "a file with a long name, number 200").unwrap();
    hurt(&mut bench, &TreeRepair::Links(file, 9));
    let archive = bench.archive.clone();
    let mut leaves = Vec::new();
    for row in archive.0.cw.used_rows() {
        let sector = bench.run(archive.0.cw.sector_of_row(row));
        if ready(bench.c.read(sector + 15, 1)).unwrap()[512 - 64] == 2 {
            leaves.push(sector);
        }
    }
    close(&mut bench);
    let sector = leaves[leaves.len() / 3];
    let right = ready(bench.c.read(sector, 1)).unwrap();
    ready(bench.c.write(sector, vec![0; 512].into())).unwrap();
    let (repaired, told) = repair(&mut bench, false);
    let left = repaired.unwrap().left.faults;
    assert!(
        told.is_empty() && left.iter().any(|fault| fault.contains("what is of inodes ")),
        "{told:?} {left:?}"
    );
    // The sector becomes readable again.
    ready(bench.c.write(sector, right)).unwrap();
    let (repaired, told) = repair(&mut bench, false);
    assert!(repaired.unwrap().left.faults.is_empty() && told.len() == 1, "{told:?}");
}

#[test]
fn a_repair_that_is_cut_is_gone_on_with() {
    let mut cuts = 0;
    for writes in 0.. {
        let (mut bench, files) = made();
        let (dir, below) = (find(&mut bench, "d").unwrap(), find(&mut bench, "d/e").unwrap());
        hurt(&mut bench, &TreeRepair::Links(below, 9));
        hurt(&mut bench, &TreeRepair::Cell(ItemKey::cookie(dir, 4).to_vec()));
        hurt_rows(&mut bench, |_, rows| {
            rows.iter().take(3).map(|(row, _)| Hurt::Bit(1, *row, false)).collect()
        });
        let whole = bench.c.clone();
        bench.c = cut_after(&whole, writes);
        let (repaired, _) = repair(&mut bench, false);
        bench.c = whole;
        if let Ok(repaired) = repaired {
            assert!(repaired.left.faults.is_empty());
            is_whole(&mut bench, &files);
            break;
        }
        cuts += 1;
        mends_once_or_never(&mut bench, &files);
    }
    assert!(cuts > 20, "{cuts}");
}

/// Repairs everything, if any fault is left.
fn mends_once_or_never(bench: &mut Bench, files: &Files) {
    let (repaired, _) = repair(bench, false);
    assert!(repaired.unwrap().left.faults.is_empty());
    is_whole(bench, files);
}

#[test]
fn whatever_counts_and_bits_say_a_repair_makes_them_right() {
    for seed in 0..40 {
        let mut x = noise(seed, 4096).into_iter();
        let mut random = move |most: u64| {
            let bytes: [u8; 8] = std::array::from_fn(|_| x.next().unwrap());
            u64::from_le_bytes(bytes) % most
        };
        let (mut bench, files) = made();
        let inodes = bench.archive.state().fs.next_inode;
        for _ in 0..random(8) {
            let (ino, number) = (1 + random(inodes - 1), random(20));
            let mend = match random(8) {
                0 => TreeRepair::Links(ino, number as u32),
                1 if find(&mut bench, "d") == Some(ino) => TreeRepair::Entries(ino, number),
                2 => TreeRepair::Cookies(ino, number),
                3 => TreeRepair::Parent(ino, number),
                4 => TreeRepair::Blocks(ino, number),
                5 => TreeRepair::All(number),
                6 => TreeRepair::Usage(number as u32, number * 1000),
                _ => TreeRepair::Next(inodes + number),
            };
            hurt(&mut bench, &mend);
        }
        let mut hurts: Vec<Hurt> = Vec::new();
        hurt_rows(&mut bench, |cw, rows| {
            let (slots, _) = cw.slots();
            for _ in 0..random(8) {
                let (row, it) = rows[random(rows.len() as u64) as usize];
                hurts.push(match random(4) {
                    0 => Hurt::Bit(0, it.place.slot().unwrap(), false),
                    1 => Hurt::Bit(0, random(slots), true),
                    2 => Hurt::Bit(1, row, false),
                    _ => Hurt::Bit(2, row, true),
                });
            }
            hurts
        });
        let (repaired, told) = repair(&mut bench, false);
        let left = repaired.unwrap().left.faults;
        assert!(left.is_empty(), "seed {seed}: {told:#?} {left:#?}");
        is_whole(&mut bench, &files);
    }
}
