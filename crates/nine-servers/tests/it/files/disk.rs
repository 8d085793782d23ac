//! A host directory: other programs change it meanwhile, and no path may lead out of it.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use nine_io::client::File;
use nine_proto::{
    Dialect, Errno, GetMask, LockRequest, LockStatus, LockType, NOGID, OpenFlags, SetAttr, mode,
};
use nine_servers::disk::{Disk, DiskOptions};
use tempfile::TempDir;

use crate::files::world::{ALL, content, errno, list, serve};

const READ: OpenFlags = OpenFlags::READ;
const RDWR: OpenFlags = OpenFlags::RDWR;

fn disk(path: &Path, options: DiskOptions) -> Disk {
    Disk::open(path, options).unwrap()
}

/// A directory `root` to serve, beside a file `secret` that must never be reached.
fn world(main: impl AsyncFnOnce(&Path, File)) {
    with(DiskOptions::default(), Dialect::L, main);
}

fn with(options: DiskOptions, dialect: Dialect, main: impl AsyncFnOnce(&Path, File)) {
    let tmp = TempDir::new().unwrap();
    let root = tmp.path().join("root");
    fs::create_dir(&root).unwrap();
    fs::write(tmp.path().join("secret"), "secret").unwrap();
    serve(disk(&root, options), dialect, async |file| main(&root, file).await);
}

#[test]
fn no_symbolic_link_leads_out() {
    world(async |host, root| {
        fs::create_dir(host.join("d")).unwrap();
        symlink("..", host.join("up")).unwrap();
        symlink("../secret", host.join("s")).unwrap();
        symlink("/etc", host.join("d/etc")).unwrap();
        assert_eq!(errno(root.walk("up/secret").await), Errno::ENOTDIR);
        assert_eq!(errno(root.walk("d/etc/passwd").await), Errno::ENOTDIR);
        assert_eq!(errno(root.open("s", READ).await), Errno::ELOOP);
        assert_eq!(errno(root.create("s", RDWR | OpenFlags::TRUNC, 0o644, NOGID).await), Errno::ELOOP);
        assert_eq!(fs::read(host.join("../secret")).unwrap(), b"secret");
        // The fid of a link refers to the link itself.
        let s = root.walk("s").await.unwrap();
        assert_eq!(errno(s.setattr(&SetAttr { size: Some(0), ..SetAttr::default() }).await), Errno::EINVAL);
        assert_eq!(s.getattr(GetMask::BASIC).await.unwrap().mode & mode::S_IFMT, mode::S_IFLNK);
    });
}

#[test]
fn a_directory_swapped_for_a_link_leads_nowhere() {
    world(async |host, root| {
        fs::create_dir_all(host.join("a/b")).unwrap();
        fs::create_dir_all(host.join("../outside/b")).unwrap();
        let a = root.walk("a").await.unwrap();
        fs::rename(host.join("a"), host.join("was")).unwrap();
        symlink("../outside", host.join("a")).unwrap();
        // The fid still refers to its directory; the name is a link now.
        assert_eq!(a.walk("b").await.unwrap().qid().path, fs::metadata(host.join("was/b")).unwrap().ino());
        assert_eq!(errno(root.walk("a/b").await), Errno::ENOTDIR);
        assert!(root.walk("a").await.unwrap().qid().is_symlink());
    });
}

#[test]
fn a_race_for_a_link_is_never_won() {
    world(async |host, root| {
        fs::create_dir(host.join("a")).unwrap();
        fs::create_dir(host.join("../outside")).unwrap();
        fs::write(host.join("../outside/f"), "secret").unwrap();
        fs::write(host.join("a/f"), "fine").unwrap();
        symlink("../outside", host.join("link")).unwrap();
        let (a, link) = (host.join("a"), host.join("link"));
        let swapper = std::thread::spawn(move || {
            for _ in 0..20_000 {
                let flags = rustix::fs::RenameFlags::EXCHANGE;
                rustix::fs::renameat_with(rustix::fs::CWD, &a, rustix::fs::CWD, &link, flags).unwrap();
            }
        });
        while !swapper.is_finished() {
            match root.open("a/f", READ).await {
                Ok(file) => assert_eq!(content(&file).await, b"fine"),
                Err(error) => assert!(
                    matches!(error.errno(), Errno::ENOTDIR | Errno::ESTALE | Errno::ENOENT | Errno::ELOOP),
                    "{error}"
                ),
            }
        }
        swapper.join().unwrap();
    });
}

#[test]
fn a_moved_root_is_still_the_root() {
    world(async |host, root| {
        fs::create_dir(host.join("d")).unwrap();
        let d = root.walk("d").await.unwrap();
        let moved = host.parent().unwrap().join("elsewhere");
        fs::rename(host, &moved).unwrap();
        fs::write(moved.join("f"), "x").unwrap();
        assert_eq!(content(&root.open("f", READ).await.unwrap()).await, b"x");
        assert_eq!(d.walk("../../..").await.unwrap().qid().path, fs::metadata(&moved).unwrap().ino());
    });
}

#[test]
fn a_directory_moved_out_by_a_stranger_does_not_lead_out() {
    world(async |host, root| {
        fs::create_dir_all(host.join("a/b")).unwrap();
        let b = root.walk("a/b").await.unwrap();
        fs::rename(host.join("a/b"), host.join("../b")).unwrap();
        // ".." follows the walked path, not the directory's present place.
        assert_eq!(b.walk("..").await.unwrap().qid().path, fs::metadata(host.join("a")).unwrap().ino());
        assert_eq!(list(&b.walk("../..").await.unwrap()).await, ["a"]);
    });
}

#[test]
fn an_attach_below_the_root_ends_there() {
    world(async |host, root| {
        fs::create_dir_all(host.join("a/b")).unwrap();
        let view = root.client().attach("", 0, "a").await.unwrap();
        assert_eq!(view.walk("../..").await.unwrap().qid().path, view.qid().path);
        assert_eq!(view.walk("b/../..").await.unwrap().qid().path, view.qid().path);
        // Also when its directory has been moved out of it.
        let b = view.walk("b").await.unwrap();
        root.rename("a", &root, "c").await.unwrap();
        root.walk("c").await.unwrap().rename("b", &root, "b").await.unwrap();
        assert_eq!(b.walk("..").await.unwrap().qid().path, b.qid().path);
        for aname in ["..", "a/../..", "none"] {
            assert!(root.client().attach("", 0, aname).await.is_err());
        }
    });
}

#[test]
fn a_thousand_fids_need_sixteen_descriptors() {
    let options = DiskOptions { handles: 16, ..DiskOptions::default() };
    with(options, Dialect::L, async |host, root| {
        let before = fs::read_dir("/proc/self/fd").unwrap().count();
        let mut fids = Vec::new();
        for i in 0..1000 {
            fs::create_dir_all(host.join(format!("d{}", i % 10))).unwrap();
            let path = format!("d{}/f{i}", i % 10);
            fs::write(host.join(&path), path.as_bytes()).unwrap();
            fids.push((root.walk(&path).await.unwrap(), path));
        }
        let now = fs::read_dir("/proc/self/fd").unwrap().count();
        assert!(now < before + 150, "{before} descriptors before, {now} now");
        for (fid, path) in &fids {
            assert_eq!(fid.getattr(GetMask::BASIC).await.unwrap().size, path.len() as u64);
            assert_eq!(content(&fid.open("", READ).await.unwrap()).await, path.as_bytes());
        }
        // A fid whose file was replaced is stale, and never refers to the new file.
        for (_, path) in &fids {
            let path = host.join(path);
            fs::write(path.with_extension("new"), "an impostor").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        }
        let mut stale = 0;
        for (fid, path) in &fids {
            match fid.getattr(GetMask::BASIC).await {
                Ok(attr) => assert_eq!(attr.size, path.len() as u64),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ESTALE);
                    stale += 1;
                }
            }
        }
        assert!(stale > 900);
    });
}

#[test]
fn a_rename_moves_fids_whose_descriptors_were_given_up() {
    let options = DiskOptions { handles: 2, ..DiskOptions::default() };
    with(options, Dialect::L, async |host, root| {
        fs::create_dir_all(host.join("a/b/c")).unwrap();
        fs::write(host.join("a/b/c/f"), "deep").unwrap();
        let f = root.walk("a/b/c/f").await.unwrap();
        root.rename("a", &root, "z").await.unwrap();
        let filler: Vec<_> = (0..20).map(|i| host.join(i.to_string())).collect();
        for path in &filler {
            fs::write(path, "").unwrap();
            root.walk(path.file_name().unwrap().as_encoded_bytes()).await.unwrap();
        }
        assert_eq!(content(&f.open("", READ).await.unwrap()).await, b"deep");
        f.remove().await.unwrap();
        assert!(!host.join("z/b/c/f").exists());
    });
}

#[test]
fn an_unlinked_file_keeps_its_unopened_fids() {
    let options = DiskOptions { handles: 8, ..DiskOptions::default() };
    with(options, Dialect::L, async |host, root| {
        fs::write(host.join("f"), "four").unwrap();
        let f = root.walk("f").await.unwrap();
        root.unlink("f", false).await.unwrap();
        for i in 0..20 {
            fs::write(host.join(i.to_string()), "").unwrap();
            root.walk(i.to_string()).await.unwrap();
        }
        let attr = f.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.size, attr.nlink), (4, 0));
        assert_eq!(content(&f.open("", READ).await.unwrap()).await, b"four");
        assert_eq!(errno(f.remove().await), Errno::ENOENT);
    });
}

#[test]
fn a_remove_never_takes_a_strangers_file() {
    for dialect in ALL {
        with(DiskOptions::default(), dialect, async |host, root| {
            fs::write(host.join("f"), "mine").unwrap();
            let f = root.walk("f").await.unwrap();
            fs::write(host.join("new"), "a stranger's").unwrap();
            fs::rename(host.join("new"), host.join("f")).unwrap();
            assert_eq!(errno(f.remove().await), Errno::ENOENT);
            assert_eq!(fs::read(host.join("f")).unwrap(), b"a stranger's");
        });
    }
}

#[test]
fn forty_thousand_entries_are_listed_once_each_while_some_go() {
    const N: usize = 40_000;
    world(async |host, root| {
        fs::create_dir(host.join("d")).unwrap();
        for i in 0..N {
            fs::write(host.join(format!("d/{i:05}")), "").unwrap();
        }
        let open = root.open("d", READ).await.unwrap();
        let (mut cookie, mut blocks, mut seen) = (0, 0, HashSet::new());
        let mut cookies = Vec::new();
        while let Some((entries, next)) = open.read_dir_block(cookie, 64 * 1024).await.unwrap() {
            // Listed files are removed while the directory is read.
            for entry in entries.iter().step_by(3) {
                let name = std::str::from_utf8(&entry.name).unwrap();
                fs::remove_file(host.join("d").join(name)).unwrap();
            }
            cookies.extend(entries.iter().map(|entry| (entry.cookie, entry.name.clone())));
            for entry in entries {
                assert!(seen.insert(entry.name), "listed twice");
            }
            cookie = next;
            blocks += 1;
        }
        assert_eq!(seen.len(), N);
        assert!(blocks < 200, "{blocks} blocks");
        // Every cookie continues after its entry.
        let (cookie, name) = &cookies[N / 2];
        let (entries, _) = open.read_dir_block(*cookie, 64 * 1024).await.unwrap().unwrap();
        assert!(entries.iter().all(|entry| entry.name != *name));
        let rest: HashSet<_> = cookies[N / 2 + 1..].iter().map(|(_, name)| name).collect();
        assert!(entries.iter().all(|entry| rest.contains(&entry.name)));
    });
}

#[test]
fn the_dot_entries_are_the_directory_and_its_parent() {
    world(async |host, root| {
        fs::create_dir(host.join("d")).unwrap();
        let d = root.walk("d").await.unwrap();
        // The client leaves out the dots; an empty directory does not end at once.
        let open = d.open("", READ).await.unwrap();
        let (entries, next) = open.read_dir_block(0, 4096).await.unwrap().unwrap();
        assert!(entries.is_empty() && next != 0);
        assert!(open.read_dir_block(next, 4096).await.unwrap().is_none());
    });
}

#[test]
fn stat_records_carry_link_targets_and_owners() {
    with(DiskOptions::default(), Dialect::U, async |host, root| {
        symlink("some/where", host.join("s")).unwrap();
        let entry = root.read_dir().await.unwrap().next().await.unwrap().unwrap();
        let texts = entry.attr.unwrap().texts.unwrap();
        assert_eq!((&*texts.target, &*texts.name), (&b"some/where"[..], &b"s"[..]));
        if rustix::process::geteuid().is_root() {
            assert_eq!(&*texts.owners.unwrap()[0], b"root");
        }
    });
}

#[test]
fn a_read_only_server_changes_nothing() {
    let options = DiskOptions { read_only: true, ..DiskOptions::default() };
    with(options, Dialect::L, async |host, root| {
        fs::write(host.join("f"), "x").unwrap();
        let f = root.walk("f").await.unwrap();
        assert_eq!(errno(root.open("f", RDWR).await), Errno::EROFS);
        assert_eq!(errno(root.open("f", OpenFlags::TRUNC).await), Errno::EROFS);
        assert_eq!(errno(root.create("g", RDWR, 0o644, NOGID).await), Errno::EROFS);
        assert_eq!(errno(root.mkdir("g", 0o755, NOGID).await), Errno::EROFS);
        assert_eq!(errno(root.unlink("f", false).await), Errno::EROFS);
        assert_eq!(errno(root.rename("f", &root, "g").await), Errno::EROFS);
        assert_eq!(errno(f.setattr(&SetAttr { mode: Some(0), ..SetAttr::default() }).await), Errno::EROFS);
        assert_eq!(errno(f.set_xattr("user.x", b"x", 0).await), Errno::EROFS);
        assert_eq!(errno(f.remove().await), Errno::EROFS);
        assert_eq!(content(&root.open("f", READ).await.unwrap()).await, b"x");
    });
}

#[test]
fn hosts_locks_and_ours_exclude_each_other() {
    world(async |host, root| {
        fs::write(host.join("f"), "0123456789").unwrap();
        let file = root.open("f", RDWR).await.unwrap();
        let other = fs::OpenOptions::new().read(true).write(true).open(host.join("f")).unwrap();
        let lock = |ty| LockRequest { ty, flags: 0, start: 0, length: 0, proc_id: 1, client_id: b"host" };
        let free = || {
            nine_servers::disk::HostFs::lock(
                &nine_servers::disk::Linux,
                std::os::fd::AsFd::as_fd(&other),
                nine_servers::disk::host::HostLock { ty: LockType::Write, start: 0, length: 0 },
            )
        };
        assert_eq!(file.lock(&lock(LockType::Read)).await.unwrap(), LockStatus::Success);
        assert!(free().is_err());
        file.lock(&lock(LockType::Unlock)).await.unwrap();
        free().unwrap();
        assert_eq!(file.lock(&lock(LockType::Read)).await.unwrap(), LockStatus::Blocked);
        assert_eq!(file.getlock(&lock(LockType::Read)).await.unwrap().ty, LockType::Write);
    });
}

#[test]
fn modes_are_what_was_asked_for_whatever_the_umask() {
    world(async |host, root| {
        let mode = |name: &str| fs::metadata(host.join(name)).unwrap().permissions().mode() & 0o7777;
        root.create("f", RDWR, 0o666, NOGID).await.unwrap();
        root.mkdir("d", 0o2777, NOGID).await.unwrap();
        root.mknod("p", mode::S_IFIFO | 0o622, (0, 0), NOGID).await.unwrap();
        assert_eq!((mode("f"), mode("d"), mode("p")), (0o666, 0o2777, 0o622));
        // A directory in a set-group-id directory inherits the bit.
        let d = root.walk("d").await.unwrap();
        d.mkdir("e", 0o777, NOGID).await.unwrap();
        assert_eq!(mode("d/e"), 0o2777);
    });
}

#[test]
fn what_open5_says_of_a_new_files_mode() {
    with(DiskOptions::default(), Dialect::P2000, async |host, root| {
        fs::set_permissions(host, fs::Permissions::from_mode(0o750)).unwrap();
        root.create("f", RDWR, 0o777, NOGID).await.unwrap();
        let mode = fs::metadata(host.join("f")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o751);
    });
}

#[test]
fn qids_change_when_files_do_and_links_share_them() {
    world(async |host, root| {
        fs::write(host.join("a"), "1").unwrap();
        fs::hard_link(host.join("a"), host.join("b")).unwrap();
        let [a, b] = [root.walk("a").await.unwrap().qid(), root.walk("b").await.unwrap().qid()];
        assert_eq!(a, b);
        assert_eq!(a.path, fs::metadata(host.join("a")).unwrap().ino());
        fs::write(host.join("a"), "12").unwrap();
        let changed = root.walk("b").await.unwrap().qid();
        assert_eq!(changed.path, a.path);
        assert_ne!(changed.vers, a.vers);
        // A rename of one name onto another of the same file keeps both, as on the host.
        root.rename("a", &root, "b").await.unwrap();
        assert_eq!(list(&root).await, ["a", "b"]);
    });
}

#[test]
fn a_file_that_shrinks_ends_earlier() {
    world(async |host, root| {
        fs::write(host.join("f"), vec![1; 1 << 20]).unwrap();
        let file = root.open("f", READ).await.unwrap();
        assert_eq!(file.read(0, 1 << 20).await.unwrap().len(), file.iounit() as usize);
        fs::File::options().write(true).open(host.join("f")).unwrap().set_len(20_000).unwrap();
        assert_eq!(file.read(0, 1 << 20).await.unwrap().len(), 20_000);
        assert_eq!(file.read(19_000, 1 << 20).await.unwrap().len(), 1000);
        assert_eq!(file.read(20_000, 1 << 20).await.unwrap().len(), 0);
    });
}

#[test]
fn what_is_not_in_the_page_cache_is_read_all_the_same() {
    world(async |host, root| {
        let data: Vec<u8> = (0..1 << 20).map(|n: u32| (n >> 8) as u8).collect();
        fs::write(host.join("f"), &data).unwrap();
        let evict = || {
            let file = fs::File::open(host.join("f")).unwrap();
            file.sync_all().unwrap();
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        };
        let file = root.open("f", READ).await.unwrap();
        for step in [1000, 5000, 70_000, 300_000] {
            evict();
            for offset in (0..data.len()).step_by(step).rev() {
                let read = file.read(offset as u64, step as u32).await.unwrap();
                let end = data.len().min(offset + step);
                assert!(read[..] == data[offset..end], "{} bytes at {offset}", read.len());
            }
        }
    });
}
