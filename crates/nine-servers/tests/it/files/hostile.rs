//! Attacks by a client, or by another program that may write in the served tree.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use nine_io::client::File;
use nine_proto::{
    Dialect, Errno, GetMask, LockRequest, LockStatus, LockType, NOGID, OpenFlags, SetAttr, Time, TimeSet,
    mode,
};
use nine_servers::Ram;
use nine_servers::disk::{Disk, DiskOptions};
use tempfile::TempDir;

use crate::files::world::{ALL, connect, content, errno, list, serve};

const READ: OpenFlags = OpenFlags::READ;
const RDWR: OpenFlags = OpenFlags::RDWR;

fn world(main: impl AsyncFnOnce(&Path, File)) {
    with(DiskOptions::default(), Dialect::L, main);
}

/// Serves a directory `root`. Beside it are the file `secret` and the directory `outside` with a file `f`.
fn with(options: DiskOptions, dialect: Dialect, main: impl AsyncFnOnce(&Path, File)) {
    let tmp = TempDir::new().unwrap();
    let root = tmp.path().join("root");
    fs::create_dir_all(&root).unwrap();
    fs::create_dir(tmp.path().join("outside")).unwrap();
    for path in ["secret", "outside/f"] {
        fs::write(tmp.path().join(path), "secret").unwrap();
    }
    let before = fingerprint(tmp.path());
    serve(Disk::open(&root, options).unwrap(), dialect, async |file| main(&root, file).await);
    assert_eq!(fingerprint(tmp.path()), before, "something outside has changed");
}

/// Returns all properties of the outside files that a client could have changed.
fn fingerprint(tmp: &Path) -> Vec<(u32, u64, i64, i64, u64)> {
    let of = |path: &str| {
        let meta = fs::symlink_metadata(tmp.join(path)).unwrap();
        assert!(path == "outside" || fs::read(tmp.join(path)).unwrap() == b"secret");
        (meta.mode(), meta.len(), meta.mtime(), meta.mtime_nsec(), meta.nlink())
    };
    ["secret", "outside", "outside/f"].map(of).to_vec()
}

fn set() -> SetAttr<'static> {
    SetAttr::default()
}

/// Swaps two names in a directory this many times, on a thread of its own.
fn swap(dir: &Path, a: &str, b: &str, times: usize) -> std::thread::JoinHandle<()> {
    let (a, b) = (dir.join(a), dir.join(b));
    std::thread::spawn(move || {
        for _ in 0..times {
            let flags = rustix::fs::RenameFlags::EXCHANGE;
            rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &b, flags).unwrap();
        }
    })
}

#[test]
fn changes_of_a_link_never_reach_its_target() {
    world(async |host, root| {
        symlink("../secret", host.join("s")).unwrap();
        let s = root.walk("s").await.unwrap();
        assert_eq!(errno(s.setattr(&SetAttr { mode: Some(0o777), ..set() }).await), Errno::EOPNOTSUPP);
        let old = Some(TimeSet::To(Time { sec: 77, nsec: 5 }));
        s.setattr(&SetAttr { atime: old, mtime: old, ..set() }).await.unwrap();
        assert_eq!(fs::symlink_metadata(host.join("s")).unwrap().mtime(), 77);
        s.set_xattr("user.x", b"x", 0).await.unwrap_err();
        if rustix::process::geteuid().is_root() {
            s.setattr(&SetAttr { uid: Some(7), gid: Some(8), ..set() }).await.unwrap();
            let meta = fs::symlink_metadata(host.join("s")).unwrap();
            assert_eq!((meta.uid(), meta.gid()), (7, 8));
        }
        // A hard link to a link is another name of the link.
        root.link("t", &s).await.unwrap();
        assert_eq!(fs::read_link(host.join("t")).unwrap(), Path::new("../secret"));
        assert_eq!(&*root.walk("t").await.unwrap().readlink().await.unwrap(), b"../secret");
        assert_eq!(errno(root.unlink("t", true).await), Errno::ENOTDIR);
        s.remove().await.unwrap();
    });
}

#[test]
fn no_change_through_a_name_that_is_swapped_for_a_link_gets_out() {
    world(async |host, root| {
        fs::write(host.join("f"), "fine").unwrap();
        fs::create_dir(host.join("d")).unwrap();
        symlink("../secret", host.join("s")).unwrap();
        symlink("../outside", host.join("o")).unwrap();
        let swappers = [swap(host, "f", "s", 5000), swap(host, "d", "o", 5000)];
        let mut n = 0;
        while !swappers.iter().all(|thread| thread.is_finished()) {
            n += 1;
            if let Ok(f) = root.walk("f").await {
                let now = Some(TimeSet::To(Time { sec: n, nsec: 0 }));
                let _ = f.setattr(&SetAttr { mode: Some(0o611), ..set() }).await;
                let _ = f.setattr(&SetAttr { atime: now, mtime: now, size: Some(2), ..set() }).await;
                let _ = f.set_xattr("user.x", b"x", 0).await;
            }
            let _ = root.open("f", RDWR | OpenFlags::TRUNC).await;
            let _ = root.create("f", RDWR | OpenFlags::TRUNC, 0o600, NOGID).await;
            if let Ok(d) = root.walk("d").await {
                let _ = d.create("f", RDWR | OpenFlags::TRUNC, 0o600, NOGID).await;
                let _ = d.mkdir("sub", 0o700, NOGID).await;
                let _ = d.rename("f", &root, "g").await;
                let _ = d.unlink("f", false).await;
                let _ = d.unlink("sub", true).await;
            }
        }
        swappers.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_directory_moved_out_is_still_only_itself() {
    world(async |host, root| {
        fs::create_dir_all(host.join("a/b")).unwrap();
        let b = root.walk("a/b").await.unwrap();
        fs::rename(host.join("a/b"), host.join("../moved")).unwrap();
        assert_eq!(errno(root.walk("a/b").await), Errno::ENOENT);
        assert_eq!(errno(b.walk("../../secret").await), Errno::ENOENT);
        assert_eq!(errno(b.walk("../../../outside").await), Errno::ENOENT);
        // The fid still refers to its directory, and creates files there.
        b.mkdir("new", 0o755, NOGID).await.unwrap();
        assert!(host.join("../moved/new").is_dir());
        assert_eq!(errno(b.remove().await), Errno::ENOENT);
        let moved = host.join("../moved");
        fs::rename(&moved, host.join("back")).unwrap();
        assert_eq!(list(&root.walk("back").await.unwrap()).await, ["new"]);
    });
}

#[test]
fn a_removed_directory_takes_no_new_names() {
    for disk in [false, true] {
        let main = async |root: File| {
            root.mkdir("d", 0o755, NOGID).await.unwrap();
            root.create("f", RDWR, 0o644, NOGID).await.unwrap();
            let (d, f) = (root.walk("d").await.unwrap(), root.walk("f").await.unwrap());
            root.unlink("d", true).await.unwrap();
            assert_eq!(errno(d.create("x", RDWR, 0o644, NOGID).await), Errno::ENOENT);
            assert_eq!(errno(d.mkdir("x", 0o755, NOGID).await), Errno::ENOENT);
            assert_eq!(errno(d.symlink("x", "y", NOGID).await), Errno::ENOENT);
            assert_eq!(errno(d.link("x", &f).await), Errno::ENOENT);
            assert_eq!(errno(root.rename("f", &d, "f").await), Errno::ENOENT);
            assert_eq!(errno(d.walk("x").await), Errno::ENOENT);
            assert_eq!(d.walk("..").await.unwrap().qid().path, root.qid().path);
            assert_eq!(errno(d.remove().await), Errno::ENOENT);
            assert_eq!(list(&root).await, ["f"]);
        };
        if disk {
            world(async |_, root| main(root).await)
        } else {
            serve(Ram::new(1 << 20), Dialect::L, main)
        }
    }
}

/// Runs `main` with both servers, both empty.
fn both(main: impl AsyncFn(&File)) {
    world(async |_, root| main(&root).await);
    serve(Ram::new(1 << 20), Dialect::L, async |root| main(&root).await);
}

#[test]
fn renames_that_cannot_be_say_why() {
    both(async |root| {
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        let a = root.walk("a").await.unwrap();
        a.mkdir("b", 0o755, NOGID).await.unwrap();
        let b = a.walk("b").await.unwrap();
        root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        for (to, name) in [(&a, "c"), (&b, "c")] {
            assert_eq!(errno(root.rename("a", to, name).await), Errno::EINVAL);
        }
        assert_eq!(errno(b.rename("none", root, "x").await), Errno::ENOENT);
        assert_eq!(errno(root.rename("f", root, "a").await), Errno::EISDIR);
        assert_eq!(errno(root.rename("a", root, "f").await), Errno::ENOTDIR);
        root.mkdir("e", 0o755, NOGID).await.unwrap();
        assert_eq!(errno(root.rename("e", root, "a").await), Errno::ENOTEMPTY);
        root.rename("e", &a, "b").await.unwrap();
        // The directory of `b` was replaced.
        assert_eq!(errno(b.mkdir("x", 0o755, NOGID).await), Errno::ENOENT);
        root.rename("f", root, "f").await.unwrap();
        assert_eq!(list(root).await, ["a", "f"]);
    });
}

#[test]
fn a_rename_between_two_attaches_moves_their_fids() {
    world(async |host, root| {
        fs::create_dir_all(host.join("a/x")).unwrap();
        fs::create_dir(host.join("b")).unwrap();
        let [a, b] = ["a", "b"].map(|aname| root.client().attach("", 0, aname));
        let (a, b) = (a.await.unwrap(), b.await.unwrap());
        let x = a.walk("x").await.unwrap();
        a.rename("x", &b, "y").await.unwrap();
        assert!(host.join("b/y").is_dir());
        // It was moved out of its attach, so ".." leads nowhere.
        assert_eq!(x.walk("../..").await.unwrap().qid().path, x.qid().path);
        assert_eq!(b.walk("y/../..").await.unwrap().qid().path, b.qid().path);
        // The root of an attach can be moved into another directory, and ".." still ends there.
        root.rename("a", &x, "a").await.unwrap();
        assert_eq!(a.walk("..").await.unwrap().qid().path, a.qid().path);
        assert_eq!(errno(a.walk("").await.unwrap().remove().await), Errno::EBUSY);
    });
}

#[test]
fn offsets_beyond_all_files_are_refused_and_change_nothing() {
    const PAST: [u64; 4] = [1 << 63, (1 << 63) + 5, u64::MAX - 1, u64::MAX];
    both(async |root| {
        let file = root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        file.write_all_at(0, b"0123456789").await.unwrap();
        for offset in PAST {
            for len in [1, 100_000] {
                let error = errno(file.write(offset, &vec![b'x'; len]).await);
                assert!(matches!(error, Errno::EINVAL | Errno::EFBIG | Errno::ENOSPC), "{error} at {offset}");
                // There is no data, or the offset is impossible.
                match file.read(offset, len as u32).await {
                    Ok(data) => assert!(data.is_empty()),
                    Err(error) => assert_eq!(error.errno(), Errno::EINVAL),
                }
            }
            assert_eq!(file.write(offset, b"").await.unwrap_or(0), 0);
            file.setattr(&SetAttr { size: Some(offset), ..set() }).await.unwrap_err();
        }
        // The last representable byte, and more than fits after it.
        file.write(i64::MAX as u64, b"xy").await.unwrap_err();
        assert_eq!(content(&file).await, b"0123456789");
        assert_eq!(file.read(3, 0).await.unwrap().len(), 0);
        assert_eq!(file.write(3, b"").await.unwrap(), 0);
        assert_eq!(file.getattr(GetMask::BASIC).await.unwrap().size, 10);
    });
}

#[test]
fn a_sparse_file_is_read_and_written_above_four_gigabytes() {
    world(async |host, root| {
        let file = root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        let far = (5 << 30) + 3;
        file.write_all_at(far, b"far").await.unwrap();
        assert_eq!(&file.read(far - 2, 100).await.unwrap()[..], b"\0\0far");
        assert_eq!(&file.read(far + 1, 64 * 1024).await.unwrap()[..], b"ar");
        let hole = file.read(3 << 30, 64 * 1024).await.unwrap();
        assert!(!hole.is_empty() && hole.iter().all(|&b| b == 0));
        assert!(fs::metadata(host.join("f")).unwrap().blocks() < 1000);
        file.setattr(&SetAttr { size: Some(6 << 30), ..set() }).await.unwrap();
        assert_eq!(fs::metadata(host.join("f")).unwrap().len(), 6 << 30);
    });
}

#[test]
fn a_file_whose_length_is_not_known_is_read_whatever_the_count() {
    // Such files are regular, of length 0, and have content: /proc is made of them.
    serve(Disk::open("/proc/sys/kernel", DiskOptions::default()).unwrap(), Dialect::L, async |root| {
        let want = fs::read("/proc/sys/kernel/ostype").unwrap();
        for count in [100, 16 * 1024, 100_000] {
            let file = root.open("ostype", READ).await.unwrap();
            assert_eq!(&file.read(0, count).await.unwrap()[..], want, "{count}");
        }
    });
}

#[test]
fn a_fid_opens_its_file_whatever_a_stranger_does_to_the_name() {
    let changes: [fn(&Path); 5] = [
        |f| fs::rename(f, f.with_extension("away")).unwrap(),
        |f| fs::remove_file(f).unwrap(),
        |f| {
            fs::remove_file(f).unwrap();
            symlink("../secret", f).unwrap();
        },
        |f| {
            fs::remove_file(f).unwrap();
            fs::create_dir(f).unwrap();
        },
        |f| {
            fs::write(f.with_extension("new"), "new").unwrap();
            fs::rename(f.with_extension("new"), f).unwrap();
        },
    ];
    for (i, change) in changes.into_iter().enumerate() {
        world(async |host, root| {
            let path = host.join("f");
            fs::write(&path, "mine").unwrap();
            let f = root.walk("f").await.unwrap();
            change(&path);
            // Makes the kernel cache the present entry.
            let _ = fs::symlink_metadata(&path);
            assert_eq!(content(&f.open("", READ).await.unwrap()).await, b"mine", "after change {i}");
            let file = f.open("", RDWR | OpenFlags::TRUNC).await.unwrap();
            file.write_all_at(0, b"more").await.unwrap();
            f.setattr(&SetAttr { mode: Some(0o600), size: Some(2), ..set() }).await.unwrap();
            assert_eq!(content(&file).await, b"mo");
        });
    }
}

#[test]
fn flags_mean_what_open2_says() {
    world(async |host, root| {
        fs::write(host.join("f"), "0123456789").unwrap();
        fs::create_dir(host.join("d")).unwrap();
        symlink("f", host.join("s")).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            host.join("p"),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::from_raw_mode(0o666),
            0,
        )
        .unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(host.join("k")).unwrap();
        assert_eq!(errno(root.open("f", OpenFlags::DIRECTORY).await), Errno::ENOTDIR);
        root.open("d", OpenFlags::DIRECTORY).await.unwrap();
        for flags in [OpenFlags::WRITE, RDWR, OpenFlags::TRUNC] {
            assert_eq!(errno(root.open("d", flags).await), Errno::EISDIR);
        }
        assert_eq!(errno(root.open("s", OpenFlags::NOFOLLOW).await), Errno::ELOOP);
        for name in ["p", "k"] {
            for flags in [READ, OpenFlags::WRITE, RDWR | OpenFlags::NONBLOCK] {
                assert_eq!(errno(root.open(name, flags).await), Errno::ENXIO, "{name}");
                assert_eq!(errno(root.create(name, flags, 0o644, NOGID).await), Errno::ENXIO, "{name}");
            }
        }
        // Unaligned, which O_DIRECT would refuse.
        let direct = root.open("f", RDWR | OpenFlags::DIRECT).await.unwrap();
        direct.write_all_at(1, b"x").await.unwrap();
        assert_eq!(&direct.read(1, 3).await.unwrap()[..], b"x23");
        let append =
            root.open("f", OpenFlags::WRITE | OpenFlags::APPEND | OpenFlags::NOFOLLOW).await.unwrap();
        append.write_all_at(2, b"end").await.unwrap();
        let sync = root.open("f", RDWR | OpenFlags::SYNC).await.unwrap();
        sync.write_all_at(0, b"y").await.unwrap();
        assert_eq!(fs::read(host.join("f")).unwrap(), b"yx23456789end");
        root.open("f", READ | OpenFlags::TRUNC).await.unwrap();
        assert_eq!(fs::read(host.join("f")).unwrap(), b"");
        assert_eq!(errno(root.create("f", RDWR | OpenFlags::EXCL, 0o644, NOGID).await), Errno::EEXIST);
        assert_eq!(errno(root.create("d", RDWR, 0o644, NOGID).await), Errno::EISDIR);
        let none = root.create("s2", RDWR | OpenFlags::DIRECTORY, 0o644, NOGID).await;
        assert!(none.is_err() && !host.join("s2").exists());
    });
}

#[test]
fn pipes_of_a_server_with_devices_never_hold_up_anybody() {
    with(DiskOptions { devices: true, threads: 1, ..DiskOptions::default() }, Dialect::L, async |_, root| {
        root.mknod("p", mode::S_IFIFO | 0o666, (0, 0), NOGID).await.unwrap();
        assert_eq!(errno(root.open("p", OpenFlags::WRITE).await), Errno::ENXIO);
        let p = root.open("p", READ).await.unwrap();
        p.read(0, 10).await.unwrap_err();
        assert_eq!(list(&root).await, ["p"]);
    });
}

#[test]
fn names_are_any_255_bytes() {
    both(async |root| {
        let longest = [0xff; 255];
        root.create(longest, RDWR, 0o644, NOGID).await.unwrap();
        root.mkdir(b"\x80\n\"'\x7f", 0o755, NOGID).await.unwrap();
        assert_eq!(root.walk(longest).await.unwrap().getattr(GetMask::BASIC).await.unwrap().size, 0);
        assert_eq!(errno(root.walk([b'x'; 256]).await), Errno::ENAMETOOLONG);
        for (name, error) in [
            (&[b'x'; 256][..], Errno::ENAMETOOLONG),
            (b"a/b", Errno::EINVAL),
            (b"a\0b", Errno::EINVAL),
            (b"", Errno::EINVAL),
            (b"..", Errno::EINVAL),
        ] {
            assert_eq!(errno(root.mkdir(name, 0o755, NOGID).await), error);
        }
        for target in [&b""[..], &[b'x'; 5000]] {
            assert!(root.symlink("s", target, NOGID).await.is_err());
        }
        root.rename(longest, root, "short").await.unwrap();
        let mut entries = root.read_dir().await.unwrap();
        let mut names = HashSet::new();
        while let Some(entry) = entries.next().await {
            names.insert(entry.unwrap().name);
        }
        let want = [&b"short"[..], b"\x80\n\"'\x7f"].map(Box::from);
        assert_eq!(names, HashSet::from(want));
    });
}

#[test]
fn a_file_opened_to_be_removed_is_removed_and_no_other() {
    for dialect in [Dialect::P2000, Dialect::U] {
        with(DiskOptions::default(), dialect, async |host, root| {
            fs::write(host.join("f"), "x").unwrap();
            fs::create_dir(host.join("d")).unwrap();
            let f = root.open("f", READ | OpenFlags::RCLOSE).await.unwrap();
            assert_eq!(content(&f).await, b"x");
            f.close().await.unwrap();
            assert!(!host.join("f").exists());
            let made = root.create("tmp", RDWR | OpenFlags::RCLOSE, 0o644, NOGID).await.unwrap();
            made.write_all_at(0, b"data").await.unwrap();
            // Another file takes its name meanwhile.
            fs::write(host.join("new"), "a stranger's").unwrap();
            fs::rename(host.join("new"), host.join("tmp")).unwrap();
            let _ = made.close().await;
            assert_eq!(fs::read(host.join("tmp")).unwrap(), b"a stranger's");
            assert_eq!(errno(root.open("d", READ | OpenFlags::RCLOSE).await), Errno::EISDIR);
        });
    }
}

#[test]
fn a_file_without_a_name_is_a_file() {
    both(async |root| {
        let file = root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        let fid = root.walk("f").await.unwrap();
        root.unlink("f", false).await.unwrap();
        file.write_all_at(0, b"0123456789").await.unwrap();
        assert_eq!(content(&file).await, b"0123456789");
        file.setattr(&SetAttr { mode: Some(0o600), size: Some(4), ..set() }).await.unwrap();
        let attr = file.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.size, attr.nlink, attr.mode & 0o777), (4, 0, 0o600));
        file.fsync(false).await.unwrap();
        assert_eq!(content(&fid.open("", READ).await.unwrap()).await, b"0123");
        assert_eq!(errno(root.link("g", &fid).await), Errno::ENOENT);
        assert_eq!(list(root).await, Vec::<String>::new());
    });
}

#[test]
fn a_reader_of_a_file_that_is_cut_and_grows_gets_its_bytes_and_never_others() {
    world(async |host, root| {
        let path = host.join("f");
        fs::write(&path, vec![1; 1 << 20]).unwrap();
        let cutter = std::thread::spawn(move || {
            let file = fs::OpenOptions::new().write(true).open(path).unwrap();
            for i in 0..300 {
                file.set_len(if i % 2 == 0 { 100 } else { 0 }).unwrap();
                file.write_all_at(&[1; 200_000], 0).unwrap();
            }
        });
        let mut root = root;
        while !cutter.is_finished() {
            let read = async {
                let file = root.open("f", READ).await?;
                let mut at = 0;
                loop {
                    let data = file.read(at, 1 << 20).await?;
                    assert!(data.iter().all(|&b| b <= 1));
                    if data.is_empty() {
                        return Ok::<_, nine_io::client::Error>(());
                    }
                    at += data.len() as u64;
                }
            };
            // If announced data is gone, the connection ends. Data is never made up.
            if let Err(error) = read.await {
                assert!(error.is_disconnect(), "{error}");
                return;
            }
            root = root.walk("").await.unwrap();
        }
        cutter.join().unwrap();
    });
}

#[test]
fn cookies_out_of_the_blue_are_refused_or_lead_on_and_never_twice_to_something_else() {
    const COOKIES: [u64; 7] = [1, 2, 12345, 1 << 31, 1 << 62, 1 << 63, u64::MAX];
    let main = async |root: File| {
        for i in 0..50 {
            root.create(format!("{i}"), RDWR, 0o644, NOGID).await.unwrap();
        }
        let dir = root.open("", READ).await.unwrap();
        let names = async |cookie| {
            let block = dir.read_dir_block(cookie, 600).await.map_err(|error| error.errno())?;
            Ok::<_, Errno>(
                block.map(|(entries, _)| entries.into_iter().map(|entry| entry.name).collect::<Vec<_>>()),
            )
        };
        let first = names(0).await;
        for cookie in COOKIES {
            let once = names(cookie).await;
            assert_eq!(names(cookie).await, once, "cookie {cookie}");
            names(0).await.unwrap();
            assert_eq!(names(cookie).await, once, "cookie {cookie}");
        }
        assert_eq!(names(0).await, first);
        assert_eq!(list(&root).await.len(), 50);
    };
    world(async |_, root| main(root).await);
    serve(Ram::new(1 << 20), Dialect::L, main);
}

#[test]
fn what_stays_in_a_directory_is_listed_once_while_others_come_and_go() {
    for dialect in ALL {
        let main = async |root: File| {
            for i in 0..500 {
                root.create(format!("stay{i:04}"), RDWR, 0o644, NOGID).await.unwrap();
            }
            for i in 0..100 {
                root.create(format!("go{i:04}"), RDWR, 0o644, NOGID).await.unwrap();
            }
            let dir = root.open("", READ).await.unwrap();
            let (mut cookie, mut seen, mut n) = (0, HashSet::new(), 0);
            while let Some((entries, next)) = dir.read_dir_block(cookie, 2048).await.unwrap() {
                for entry in entries {
                    if entry.name.starts_with(b"stay") {
                        assert!(seen.insert(entry.name), "listed twice");
                    }
                }
                if n < 100 {
                    root.unlink(format!("go{n:04}"), false).await.unwrap();
                    root.mkdir(format!("come{n:04}"), 0o755, NOGID).await.unwrap();
                    n += 1;
                }
                cookie = next;
            }
            assert_eq!(seen.len(), 500);
        };
        with(DiskOptions::default(), dialect, async |_, root| main(root).await);
        serve(Ram::new(8 << 20), dialect, main);
    }
}

#[test]
fn locks_beyond_all_numbers_are_refused() {
    both(async |root| {
        let file = root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        let ask = |start, length| LockRequest {
            ty: LockType::Write,
            flags: 0,
            start,
            length,
            proc_id: 1,
            client_id: b"c",
        };
        for (start, length) in
            [(u64::MAX, 0), (u64::MAX, 1), (1 << 63, 0), (2, u64::MAX), (i64::MAX as u64, u64::MAX)]
        {
            let refused = |error| matches!(error, Errno::EINVAL | Errno::EOVERFLOW);
            assert!(refused(errno(file.lock(&ask(start, length)).await)), "{start} {length}");
            assert!(refused(errno(file.getlock(&ask(start, length)).await)), "{start} {length}");
        }
        for (start, length) in
            [(i64::MAX as u64, 0), (i64::MAX as u64, 1), (0, i64::MAX as u64), (0, u64::MAX)]
        {
            assert_eq!(
                file.lock(&ask(start, length)).await.unwrap(),
                LockStatus::Success,
                "{start} {length}"
            );
        }
        let long = [b'x'; 60_000];
        let ask = LockRequest { client_id: &long, ..ask(0, 1) };
        assert!(file.lock(&ask).await.is_err(), "a name of 60,000 bytes is kept for each lock");
    });
}

#[test]
fn attributes_are_stored_whole_or_not_at_all() {
    both(async |root| {
        root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        let f = root.walk("f").await.unwrap();
        f.set_xattr("user.empty", b"", 0).await.unwrap();
        assert_eq!(f.xattr("user.empty").await.unwrap(), b"");
        assert_eq!(errno(f.set_xattr("user.empty", b"x", 1).await), Errno::EEXIST);
        assert_eq!(errno(f.set_xattr("user.none", b"x", 2).await), Errno::ENODATA);
        assert_eq!(errno(f.set_xattr("user.none", b"x", 8).await), Errno::EINVAL);
        assert_eq!(errno(f.set_xattr("user.big", &[0; 65537], 0).await), Errno::E2BIG);
        let long = format!("user.{}", "x".repeat(251));
        assert_eq!(errno(f.set_xattr(&long, b"x", 0).await), Errno::ERANGE);
        assert_eq!(errno(f.set_xattr("", b"x", 0).await), Errno::ERANGE);
        assert_eq!(errno(f.xattr("user.none").await), Errno::ENODATA);
        assert_eq!(errno(f.remove_xattr("user.none").await), Errno::ENODATA);
        f.remove_xattr("user.empty").await.unwrap();
        for name in ["user.a", "user.b"] {
            f.set_xattr(name, &[7; 1000], 0).await.unwrap();
        }
        let mut names = f.xattrs().await.unwrap();
        names.sort();
        assert_eq!(names, [b"user.a", b"user.b"]);
    });
}

#[test]
fn two_clients_at_the_same_names_find_only_what_one_of_them_made() {
    let tmp = TempDir::new().unwrap();
    let server: Arc<Disk> =
        Arc::new(Disk::open(tmp.path(), DiskOptions { handles: 4, ..DiskOptions::default() }).unwrap());
    let run = |seed: u64| {
        let server = server.clone();
        std::thread::spawn(move || {
            nine_net::rt::block_on(async |env| {
                let client = connect(&env, server, Dialect::L).await;
                let root = client.attach("", 0, "").await.unwrap();
                let mut state = seed;
                let mut next = |n: u64| {
                    state =
                        state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 33) % n
                };
                let mut fids = Vec::new();
                for _ in 0..3000 {
                    let (a, b) = (format!("n{}", next(6)), format!("n{}", next(6)));
                    let dir = if next(2) == 0 { root.walk("").await } else { root.walk(&b).await };
                    let Ok(dir) = dir else { continue };
                    match next(9) {
                        0 | 1 => drop(dir.mkdir(&a, 0o755, NOGID).await),
                        2 => {
                            if let Ok(file) = dir.create(&a, RDWR | OpenFlags::EXCL, 0o644, NOGID).await {
                                let path = file.getattr(GetMask::BASIC).await.unwrap().qid.path;
                                file.write_all_at(0, &path.to_le_bytes()).await.unwrap();
                            }
                        }
                        3 => drop(dir.rename(&a, &root, &b).await),
                        4 => drop(root.rename(&a, &dir, &b).await),
                        5 => drop(dir.unlink(&a, next(2) == 0).await),
                        6 => {
                            if let Ok(fid) = dir.walk(&a).await {
                                let _ = fid.remove().await;
                            }
                        }
                        7 => fids.extend(dir.walk(&a).await),
                        _ => drop(dir.walk("..").await),
                    }
                    if fids.len() > 20 {
                        let fid: File = fids.swap_remove(next(20) as usize);
                        let was = fid.qid();
                        // It is the same file, or stale.
                        if let Ok(attr) = fid.getattr(GetMask::BASIC).await {
                            assert_eq!((attr.qid.path, attr.qid.ty), (was.path, was.ty));
                        }
                        if let Ok(open) = fid.open("", READ).await
                            && !was.is_dir()
                        {
                            let data = content(&open).await;
                            assert!(data.is_empty() || data == was.path.to_le_bytes());
                        }
                    }
                }
            })
            .unwrap();
        })
    };
    for thread in [run(1), run(2), run(3)] {
        thread.join().unwrap();
    }
}

#[test]
fn fids_that_are_gone_leave_no_descriptor_behind() {
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    world(async |host, root| {
        for i in 0..500 {
            fs::write(host.join(format!("{i}")), "").unwrap();
        }
        let before = count();
        for i in 0..500 {
            let f = root.walk(format!("{i}")).await.unwrap();
            f.open("", RDWR).await.unwrap().close().await.unwrap();
            f.close().await.unwrap();
        }
        // Other tests of this process have open descriptors too.
        assert!(count() < before + 250, "{before} before, {} now", count());
    });
}

#[test]
fn a_read_only_server_refuses_whatever_would_change_something() {
    for dialect in ALL {
        let options = DiskOptions { read_only: true, ..DiskOptions::default() };
        with(options, dialect, async |host, root| {
            fs::write(host.join("f"), "x").unwrap();
            fs::create_dir(host.join("d")).unwrap();
            let f = root.walk("f").await.unwrap();
            let changes = [
                errno(f.setattr(&SetAttr { size: Some(0), ..set() }).await),
                errno(
                    f.setattr(&SetAttr { mtime: Some(TimeSet::To(Time { sec: 5, nsec: 0 })), ..set() }).await,
                ),
                errno(root.create("f", READ, 0o644, NOGID).await),
                errno(root.open("f", OpenFlags::WRITE).await),
                errno(root.open("f", READ | OpenFlags::TRUNC).await),
                errno(root.mkdir("new", 0o755, NOGID).await),
                errno(root.unlink("f", false).await),
                errno(root.unlink("d", true).await),
                errno(root.rename("f", &root, "g").await),
                errno(root.walk("d").await.unwrap().remove().await),
            ];
            assert_eq!(changes, [Errno::EROFS; 10], "{dialect:?}");
            if dialect.is_l() {
                let more = [
                    errno(root.symlink("s", "t", NOGID).await),
                    errno(root.link("h", &f).await),
                    errno(root.mknod("p", mode::S_IFIFO | 0o600, (0, 0), NOGID).await),
                    errno(f.remove_xattr("user.x").await),
                    errno(root.create("new", READ, 0o644, NOGID).await),
                ];
                assert_eq!(more, [Errno::EROFS; 5]);
            } else {
                assert_eq!(errno(root.open("f", READ | OpenFlags::RCLOSE).await), Errno::EROFS);
            }
            assert_eq!(list(&root).await, ["d", "f"]);
            assert_eq!(fs::metadata(host.join("f")).unwrap().permissions().mode() & 0o777, 0o644);
            assert_eq!(root.statfs().await.map(|st| st.namelen).unwrap_or(255), 255);
        });
    }
}

#[test]
fn of_two_names_the_one_that_was_walked_to_is_meant() {
    both(async |root| {
        root.create("a", RDWR, 0o644, NOGID).await.unwrap();
        let a = root.walk("a").await.unwrap();
        root.link("b", &a).await.unwrap();
        let [first, second, open] = ["a", "b", "b"].map(|name| root.walk(name));
        let (first, second, open) = (first.await.unwrap(), second.await.unwrap(), open.await.unwrap());
        let open = open.open_here(READ).await.unwrap();
        first.remove().await.unwrap();
        assert_eq!(list(root).await, ["b"]);
        root.link("c", &second).await.unwrap();
        open.remove().await.unwrap();
        assert_eq!(list(root).await, ["c"]);
        // A rename moves the fid too.
        let c = root.walk("c").await.unwrap();
        root.rename("c", root, "d").await.unwrap();
        c.remove().await.unwrap();
        assert_eq!(list(root).await, Vec::<String>::new());
    });
}

#[test]
fn a_directory_that_was_walked_up_to_is_removed_by_its_name() {
    both(async |root| {
        root.mkdir("d", 0o755, NOGID).await.unwrap();
        root.walk("d").await.unwrap().mkdir("e", 0o755, NOGID).await.unwrap();
        let d = root.walk("d/e/..").await.unwrap();
        assert_eq!(errno(d.walk("").await.unwrap().remove().await), Errno::ENOTEMPTY);
        d.unlink("e", true).await.unwrap();
        d.remove().await.unwrap();
        assert_eq!(list(root).await, Vec::<String>::new());
        assert_eq!(errno(root.walk("..").await.unwrap().remove().await), Errno::EBUSY);
    });
}
