//! Behaviour common to all file servers: the RAM tree and a host directory, in every dialect.

use std::sync::Arc;

use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_net::{Peer, Proof};
use nine_proto::msg::Tmsg;
use nine_proto::{
    Dialect, Errno, GetMask, LockRequest, LockStatus, LockType, NOGID, OpenFlags, Qid, RenameMode, SetAttr,
    Statfs, Time, TimeSet, mode,
};
use nine_servers::{Disk, DiskOptions, Ram};

use crate::files::world::{ALL, content, errno, list, not_covered, owner, raw, serve};

const RDWR: OpenFlags = OpenFlags::RDWR;

/// Runs `main` against both servers, in these dialects.
fn each(dialects: &[Dialect], main: impl AsyncFn(&File)) {
    for &dialect in dialects {
        serve(Ram::new(64 << 20), dialect, async |root| main(&root).await);
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
        serve(disk, dialect, async |root| main(&root).await);
    }
}

async fn put(dir: &File, name: &str, data: &[u8]) {
    let file = dir.create(name, RDWR | OpenFlags::EXCL, 0o644, NOGID).await.unwrap();
    file.write_all_at(0, data).await.unwrap();
    file.close().await.unwrap();
}

async fn get(dir: &File, path: &str) -> Vec<u8> {
    content(&dir.open(path, OpenFlags::READ).await.unwrap()).await
}

#[test]
fn a_name_that_gets_another_file_while_the_directory_is_read_is_listed_once() {
    serve(Ram::new(64 << 20), Dialect::L, async |root| {
        let root = &root;
        for name in ["a", "b", "c", "d"] {
            put(root, name, name.as_bytes()).await;
        }
        let dir = root.open("", OpenFlags::READ).await.unwrap();
        let (mut names, mut cookie) = (Vec::new(), 0);
        // A count with room for one entry.
        while let Some((entries, next)) = dir.read_dir_block(cookie, 30).await.unwrap() {
            cookie = next;
            // Blocks of "." and ".." come back empty.
            let [entry] = &entries[..] else { continue };
            names.push(String::from_utf8(entry.name.to_vec()).unwrap());
            assert!(names.len() < 5, "{names:?}");
            match names.last().unwrap().as_str() {
                "a" => root.rename_with("a", root, "b", RenameMode::Exchange).await.unwrap(),
                "b" => root.rename("d", root, "a").await.unwrap(),
                _ => {}
            }
        }
        assert_eq!(names, ["a", "b", "c"]);
    });
}

#[test]
fn what_is_written_is_read_and_listed() {
    each(&ALL, async |root| {
        let big: Vec<u8> = (0..3_000_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        put(root, "small", b"hello").await;
        put(root, "big", &big).await;
        root.mkdir("dir", 0o755, NOGID).await.unwrap();
        let dir = root.walk("dir").await.unwrap();
        put(&dir, "below", b"").await;
        assert_eq!(list(root).await, ["big", "dir", "small"]);
        assert_eq!(list(&dir).await, ["below"]);
        assert_eq!(get(root, "small").await, b"hello");
        assert!(get(root, "big").await == big);
        assert_eq!(get(root, "dir/below").await, b"");
        let file = root.open("small", OpenFlags::READ).await.unwrap();
        assert_eq!(file.read(3, 100).await.unwrap(), &b"lo"[..]);
        assert_eq!(file.read(5, 100).await.unwrap(), &b""[..]);
        assert_eq!(file.read(1 << 40, 100).await.unwrap(), &b""[..]);
    });
}

#[test]
fn a_write_of_no_bytes_changes_nothing_wherever_it_is() {
    each(&ALL, async |root| {
        put(root, "f", b"hello").await;
        let file = root.open("f", RDWR).await.unwrap();
        for offset in [0, 5, 1 << 40, u64::MAX >> 1] {
            assert_eq!(file.write(offset, b"").await.unwrap(), 0);
        }
        assert_eq!(get(root, "f").await, b"hello");
    });
}

#[test]
fn a_walk_goes_down_and_up_and_never_out() {
    each(&ALL, async |root| {
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        root.walk("a").await.unwrap().mkdir("b", 0o755, NOGID).await.unwrap();
        let b = root.walk("a/b").await.unwrap();
        assert_eq!(b.walk("..").await.unwrap().qid().path, root.walk("a").await.unwrap().qid().path);
        assert_eq!(b.walk("../../../../..").await.unwrap().qid().path, root.qid().path);
        assert_eq!(b.walk("../../a/../a/b").await.unwrap().qid().path, b.qid().path);
        assert_eq!(errno(root.walk("a/none/b").await), Errno::ENOENT);
        assert_eq!(errno(root.walk("none").await), Errno::ENOENT);
    });
}

#[test]
fn an_attach_with_a_path_begins_there() {
    each(&ALL, async |root| {
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        let a = root.walk("a").await.unwrap();
        put(&a, "f", b"below").await;
        for aname in ["a", "/a/", "/./a"] {
            let view = root.client().attach("0", 0, aname).await.unwrap();
            assert_eq!(view.qid().path, a.qid().path);
            assert_eq!(get(&view, "f").await, b"below");
        }
        assert_eq!(errno(root.client().attach("0", 0, "/none").await), Errno::ENOENT);
        assert!(root.client().attach("0", 0, "/a/..").await.is_err());
    });
}

#[test]
fn a_new_name_must_be_new() {
    each(&ALL, async |root| {
        put(root, "x", b"").await;
        assert_eq!(errno(root.create("x", RDWR | OpenFlags::EXCL, 0o644, NOGID).await), Errno::EEXIST);
        assert_eq!(errno(root.mkdir("x", 0o755, NOGID).await), Errno::EEXIST);
        root.open_or_create("x", RDWR, 0o644).await.unwrap();
    });
}

#[test]
fn a_file_without_a_name_lives_as_long_as_its_fid() {
    each(&ALL, async |root| {
        put(root, "doomed", b"last words").await;
        let open = root.open("doomed", RDWR).await.unwrap();
        root.unlink("doomed", false).await.unwrap();
        assert_eq!(errno(root.walk("doomed").await), Errno::ENOENT);
        assert_eq!(open.read(0, 100).await.unwrap(), &b"last words"[..]);
        open.write_all_at(0, b"more words").await.unwrap();
        assert_eq!(open.getattr(GetMask::BASIC).await.unwrap().size, 10);
        open.setattr(&SetAttr { size: Some(4), ..SetAttr::default() }).await.unwrap();
        assert_eq!(open.read(0, 100).await.unwrap(), &b"more"[..]);
    });
}

#[test]
fn a_removed_file_makes_room_for_another_of_its_name() {
    each(&ALL, async |root| {
        put(root, "x", b"old").await;
        let old = root.walk("x").await.unwrap();
        root.unlink("x", false).await.unwrap();
        put(root, "x", b"newer").await;
        let new = root.walk("x").await.unwrap();
        assert_eq!(old.getattr(GetMask::BASIC).await.unwrap().size, 3);
        assert_eq!(new.getattr(GetMask::BASIC).await.unwrap().size, 5);
        assert_eq!(get(root, "x").await, b"newer");
    });
}

#[test]
fn directories_are_removed_when_empty() {
    each(&ALL, async |root| {
        root.mkdir("d", 0o755, NOGID).await.unwrap();
        let d = root.walk("d").await.unwrap();
        put(&d, "f", b"").await;
        assert_eq!(errno(root.unlink("d", true).await), Errno::ENOTEMPTY);
        assert_eq!(errno(root.unlink("d", false).await), Errno::EISDIR);
        assert_eq!(errno(d.unlink("f", true).await), Errno::ENOTDIR);
        d.unlink("f", false).await.unwrap();
        root.unlink("d", true).await.unwrap();
        assert_eq!(errno(d.mkdir("late", 0o755, NOGID).await), Errno::ENOENT);
    });
}

#[test]
fn setattr_changes_what_it_names_and_nothing_else() {
    each(&[Dialect::L, Dialect::U], async |root| {
        put(root, "f", b"0123456789").await;
        let f = root.walk("f").await.unwrap();
        let before = f.getattr(GetMask::BASIC).await.unwrap();
        let time = Time { sec: 1_000_000, nsec: 0 };
        let set = SetAttr {
            mode: Some(0o640),
            size: Some(4),
            mtime: Some(TimeSet::To(time)),
            ..SetAttr::default()
        };
        f.setattr(&set).await.unwrap();
        let after = f.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((after.mode, after.size, after.mtime), (mode::S_IFREG | 0o640, 4, time));
        assert_eq!((after.uid, after.gid, after.qid.path), (before.uid, before.gid, before.qid.path));
        assert_ne!(after.qid.vers, before.qid.vers);
        let dir = root.setattr(&SetAttr { size: Some(4), ..SetAttr::default() }).await;
        assert_eq!(errno(dir), Errno::EISDIR);
    });
}

#[test]
fn a_wstat_is_all_or_nothing() {
    each(&[Dialect::U, Dialect::P2000], async |root| {
        put(root, "a", b"aaaa").await;
        put(root, "b", b"b").await;
        let a = root.walk("a").await.unwrap();
        let set = SetAttr { name: Some(b"b"), size: Some(1), mode: Some(0o600), ..SetAttr::default() };
        assert_eq!(errno(a.setattr(&set).await), Errno::EEXIST);
        let attr = a.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.size, attr.mode & 0o777), (4, 0o644));
        a.setattr(&SetAttr { name: Some(b"c"), ..set }).await.unwrap();
        assert_eq!(list(root).await, ["b", "c"]);
        let attr = a.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.size, attr.mode & 0o777), (1, 0o600));
        assert_eq!(&*attr.texts.unwrap().name, b"c");
        // The fid is gone with its file.
        a.remove().await.unwrap();
        assert_eq!(list(root).await, ["b"]);
    });
}

#[test]
fn a_rename_takes_every_fid_below_along() {
    each(&[Dialect::L], async |root| {
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        root.mkdir("z", 0o755, NOGID).await.unwrap();
        let a = root.walk("a").await.unwrap();
        a.mkdir("b", 0o755, NOGID).await.unwrap();
        let b = root.walk("a/b").await.unwrap();
        put(&b, "f", b"data").await;
        let (f, z) = (root.walk("a/b/f").await.unwrap(), root.walk("z").await.unwrap());
        root.rename("a", &z, "moved").await.unwrap();
        assert_eq!(get(&b, "f").await, b"data");
        assert_eq!(content(&f.open("", OpenFlags::READ).await.unwrap()).await, b"data");
        let up = b.walk("../..").await.unwrap();
        assert_eq!(up.qid().path, z.qid().path);
        assert_eq!(get(root, "z/moved/b/f").await, b"data");
        // Not into itself.
        assert_eq!(errno(z.rename("moved", &b, "loop").await), Errno::EINVAL);
        // Onto an existing file.
        put(root, "f", b"other").await;
        b.rename("f", root, "f").await.unwrap();
        assert_eq!(get(root, "f").await, b"data");
        f.remove().await.unwrap();
        assert_eq!(errno(root.walk("f").await), Errno::ENOENT);
    });
}

#[test]
fn links_of_both_kinds() {
    each(&[Dialect::L, Dialect::U], async |root| {
        put(root, "f", b"data").await;
        let f = root.walk("f").await.unwrap();
        root.link("g", &f).await.unwrap();
        let g = root.walk("g").await.unwrap();
        assert_eq!(g.qid(), root.walk("f").await.unwrap().qid());
        assert_eq!(g.getattr(GetMask::BASIC).await.unwrap().mode & mode::S_IFMT, mode::S_IFREG);
        root.symlink("s", "../../etc/passwd", NOGID).await.unwrap();
        let s = root.walk("s").await.unwrap();
        assert!(s.qid().is_symlink());
        assert_eq!(s.getattr(GetMask::BASIC).await.unwrap().mode, mode::S_IFLNK | 0o777);
        assert_eq!(&*s.readlink().await.unwrap(), b"../../etc/passwd");
        assert_eq!(errno(root.open("s", OpenFlags::READ).await), Errno::ELOOP);
        assert_eq!(errno(root.walk("s/x").await), Errno::ENOTDIR);
    });
}

#[test]
fn a_fifo_is_made_and_never_waited_for() {
    each(&[Dialect::L, Dialect::U], async |root| {
        root.mknod("pipe", mode::S_IFIFO | 0o644, (0, 0), NOGID).await.unwrap();
        let pipe = root.walk("pipe").await.unwrap();
        assert_eq!(pipe.getattr(GetMask::BASIC).await.unwrap().mode & mode::S_IFMT, mode::S_IFIFO);
        assert_eq!(errno(pipe.open_here(OpenFlags::READ).await), Errno::ENXIO);
    });
}

#[test]
fn attributes_are_stored_by_the_clunk_and_only_whole() {
    each(&[Dialect::L], async |root| {
        put(root, "f", b"").await;
        let f = root.walk("f").await.unwrap();
        assert_eq!(errno(f.xattr("user.a").await), Errno::ENODATA);
        f.set_xattr("user.a", b"value", 0).await.unwrap();
        f.set_xattr("user.empty", b"", 0).await.unwrap();
        assert_eq!(f.xattr("user.a").await.unwrap(), b"value");
        assert_eq!(f.xattr("user.empty").await.unwrap(), b"");
        let mut names = f.xattrs().await.unwrap();
        names.retain(|name| name.starts_with(b"user."));
        names.sort_unstable();
        assert_eq!(names, [&b"user.a"[..], b"user.empty"]);
        assert_eq!(errno(f.set_xattr("user.a", b"x", 1).await), Errno::EEXIST);
        assert_eq!(errno(f.set_xattr("user.b", b"x", 2).await), Errno::ENODATA);
        f.remove_xattr("user.a").await.unwrap();
        assert_eq!(errno(f.xattr("user.a").await), Errno::ENODATA);
        let large = vec![0; 64 * 1024 + 1];
        assert_eq!(errno(f.set_xattr("user.large", &large, 0).await), Errno::E2BIG);
    });
}

/// The value of an access control list: tag, permissions, number.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

/// `u::PERM,u:1235:rw,g::PERM,m::PERM,o::PERM`
fn list_for_1235(owner: u16, group: u16, mask: u16, other: u16) -> Vec<u8> {
    let nobody = u32::MAX;
    acl(&[(1, owner, nobody), (2, 6, 1235), (4, group, nobody), (16, mask, nobody), (32, other, nobody)])
}

/// The host's file system is the oracle of the tree in memory here.
#[test]
fn access_control_lists_and_modes_follow_each_other() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let chmod = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    each(&[Dialect::L], async |root| {
        let mode_of = async |name: &str| {
            root.walk(name).await.unwrap().getattr(GetMask::BASIC).await.unwrap().mode & 0o7777
        };
        put(root, "f", b"").await;
        let f = root.walk("f").await.unwrap();
        f.setattr(&chmod(0o644)).await.unwrap();
        match f.set_xattr(ACCESS, &list_for_1235(6, 0, 6, 0), 0).await {
            Err(error) if error.errno() == Errno::EOPNOTSUPP => {
                return not_covered("access control lists: the temporary directory's file system has none");
            }
            done => done.unwrap(),
        }
        // The mode shows the mask as the group's bits, and chmod(2) changes it.
        assert_eq!(mode_of("f").await, 0o660);
        assert!(f.xattrs().await.unwrap().iter().any(|name| name == ACCESS.as_bytes()));
        f.setattr(&chmod(0o4751)).await.unwrap();
        assert_eq!(f.xattr(ACCESS).await.unwrap(), list_for_1235(7, 0, 5, 1));
        // A list equivalent to a mode becomes one.
        let nobody = u32::MAX;
        f.set_xattr(ACCESS, &acl(&[(1, 6, nobody), (4, 4, nobody), (32, 0, nobody)]), 0).await.unwrap();
        assert_eq!((mode_of("f").await & 0o777, errno(f.xattr(ACCESS).await)), (0o640, Errno::ENODATA));
        f.set_xattr(ACCESS, &list_for_1235(6, 0, 6, 0), 0).await.unwrap();
        f.remove_xattr(ACCESS).await.unwrap();
        assert_eq!((mode_of("f").await & 0o777, errno(f.xattr(ACCESS).await)), (0o660, Errno::ENODATA));
        f.remove_xattr(ACCESS).await.unwrap();
        for bad in [&b"x"[..], &list_for_1235(6, 0, 6, 0)[..20], &list_for_1235(8, 0, 6, 0)] {
            assert_eq!(errno(f.set_xattr(ACCESS, bad, 0).await), Errno::EINVAL);
        }
        assert_eq!(errno(f.set_xattr(DEFAULT, &list_for_1235(6, 0, 6, 0), 0).await), Errno::EACCES);

        // A new file inherits the default list of its directory, limited by the requested mode.
        root.mkdir("d", 0o755, NOGID).await.unwrap();
        let d = root.walk("d").await.unwrap();
        let before = mode_of("d").await;
        d.set_xattr(DEFAULT, &list_for_1235(7, 5, 7, 1), 0).await.unwrap();
        assert_eq!(mode_of("d").await, before);
        d.create("f", RDWR, 0o666, NOGID).await.unwrap();
        d.mkdir("d", 0o777, NOGID).await.unwrap();
        d.symlink("s", "f", NOGID).await.unwrap();
        d.mknod("p", mode::S_IFIFO | 0o622, (0, 0), NOGID).await.unwrap();
        for (name, mode, own) in [
            ("d/f", 0o660, list_for_1235(6, 5, 6, 0)),
            ("d/d", 0o771, list_for_1235(7, 5, 7, 1)),
            ("d/p", 0o620, list_for_1235(6, 5, 2, 0)),
        ] {
            let made = root.walk(name).await.unwrap();
            assert_eq!((mode_of(name).await, made.xattr(ACCESS).await.unwrap()), (mode, own), "{name}");
        }
        let below = root.walk("d/d").await.unwrap();
        assert_eq!(below.xattr(DEFAULT).await.unwrap(), list_for_1235(7, 5, 7, 1));
        assert_eq!(errno(root.walk("d/f").await.unwrap().xattr(DEFAULT).await), Errno::ENODATA);
        let link = root.walk("d/s").await.unwrap();
        assert_eq!(errno(link.set_xattr(ACCESS, &list_for_1235(7, 5, 7, 1), 0).await), Errno::EOPNOTSUPP);
        d.remove_xattr(DEFAULT).await.unwrap();
        d.create("plain", RDWR, 0o640, NOGID).await.unwrap();
        assert_eq!(errno(root.walk("d/plain").await.unwrap().xattr(ACCESS).await), Errno::ENODATA);
    });
}

#[test]
fn locks_are_between_owners_and_end_with_their_fid() {
    each(&[Dialect::L], async |root| {
        put(root, "f", b"0123456789").await;
        let [one, two] = [root.open("f", RDWR).await.unwrap(), root.open("f", RDWR).await.unwrap()];
        let lock = |proc_id, ty, start, length| LockRequest {
            ty,
            flags: 0,
            start,
            length,
            proc_id,
            client_id: b"host",
        };
        assert_eq!(one.lock(&lock(1, LockType::Write, 0, 5)).await.unwrap(), LockStatus::Success);
        // The same owner through another fid.
        assert_eq!(two.lock(&lock(1, LockType::Write, 0, 1)).await.unwrap(), LockStatus::Success);
        assert_eq!(two.lock(&lock(2, LockType::Read, 4, 0)).await.unwrap(), LockStatus::Blocked);
        let found = two.getlock(&lock(2, LockType::Read, 4, 0)).await.unwrap();
        assert_eq!((found.ty, found.start, found.proc_id), (LockType::Write, 1, 1));
        let free = two.getlock(&lock(2, LockType::Read, 5, 0)).await.unwrap();
        assert_eq!(free.ty, LockType::Unlock);
        one.close().await.unwrap();
        assert_eq!(two.lock(&lock(2, LockType::Write, 1, 0)).await.unwrap(), LockStatus::Success);
        assert_eq!(two.lock(&lock(2, LockType::Unlock, 0, 0)).await.unwrap(), LockStatus::Success);
    });
}

/// A file of each server for a client without proof and for the owner.
fn guest_and_owner(main: impl AsyncFn(File, File)) {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
    let servers: [Arc<dyn FileServer>; 2] = [Arc::new(Ram::new(64 << 20)), Arc::new(disk)];
    for server in servers {
        nine_net::rt::block_on(async |env| {
            let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
            let service = Service::new(server, gate, Core::default());
            let root = owner(&env, &service).await;
            put(&root, "f", b"text").await;
            let peer = Peer { addr: "guest".into(), proof: Proof::None };
            let guest = Client::within(&env, &service, peer, Options::default()).await.unwrap();
            let guest = guest.attach("", 7, "").await.unwrap();
            main(guest, root).await;
        })
        .unwrap();
    }
}

#[test]
fn attributes_that_a_client_without_proof_writes_leave_the_owner_room_for_his() {
    guest_and_owner(async |guest, root| {
        let create = async |root: &File| {
            let file = root.walk("f").await?;
            let (name, size) = (b"user.a", 64 << 10);
            root.client().ask(Tmsg::Xattrcreate { fid: file.fid(), name, size, flags: 0 }).await?;
            Ok::<_, nine_io::client::Error>(file)
        };
        let mut held = Vec::new();
        let refused = loop {
            match create(&guest).await {
                Ok(file) => held.push(file),
                Err(error) => break error,
            }
        };
        // Three eighths of 64 MiB.
        assert_eq!((held.len(), refused.errno()), (384, Errno::ENOMEM));
        create(&root).await.unwrap();
        // Its clunk is refused, since the value is incomplete, but releases its bytes.
        assert!(held.pop().unwrap().close().await.is_err());
        create(&guest).await.unwrap();
    });
}

#[test]
fn read_locks_of_a_client_without_proof_leave_the_owner_locks_on_the_same_file() {
    guest_and_owner(async |guest, root| {
        let guest = guest.open("f", OpenFlags::READ).await.unwrap();
        let lock = |ty, start| LockRequest { ty, flags: 0, start, length: 1, proc_id: 1, client_id: b"here" };
        let mut held = 0;
        let refused = loop {
            match guest.lock(&lock(LockType::Read, 1000 + 2 * held)).await {
                Ok(LockStatus::Success) => held += 1,
                other => break other.unwrap_err(),
            }
        };
        assert_eq!((held, refused.errno()), (1536, Errno::ENOLCK));
        let file = root.open("f", RDWR).await.unwrap();
        assert_eq!(file.lock(&lock(LockType::Write, 1)).await.unwrap(), LockStatus::Success);
        // The guest's ranges are released with its fid, so others can have them.
        guest.close().await.unwrap();
        assert_eq!(file.lock(&lock(LockType::Write, 1000)).await.unwrap(), LockStatus::Success);
    });
}

#[test]
fn a_directory_is_listed_once_whole_while_it_shrinks() {
    each(&ALL, async |root| {
        root.mkdir("d", 0o755, NOGID).await.unwrap();
        let d = root.walk("d").await.unwrap();
        for i in 0..500 {
            drop(d.create(format!("file{i:03}"), RDWR | OpenFlags::EXCL, 0o644, NOGID).await.unwrap());
        }
        let open = d.open("", OpenFlags::READ).await.unwrap();
        let (mut cookie, mut seen) = (0, Vec::new());
        while let Some((entries, next)) = open.read_dir_block(cookie, 2000).await.unwrap() {
            for entry in entries {
                d.unlink(&entry.name, false).await.unwrap();
                seen.push(entry.name);
            }
            cookie = next;
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 500);
        assert_eq!(list(&d).await, [""; 0]);
    });
}

#[test]
fn statfs_and_fsync_answer() {
    each(&[Dialect::L], async |root| {
        put(root, "f", b"x").await;
        let statfs = root.statfs().await.unwrap();
        assert_eq!(statfs.ty, Statfs::V9FS);
        assert!(statfs.blocks > 0 && statfs.bsize > 0 && statfs.namelen == 255);
        root.open("f", RDWR).await.unwrap().fsync(true).await.unwrap();
        root.fsync(false).await.unwrap();
    });
}

#[test]
fn appended_bytes_go_to_the_end_whatever_their_offset() {
    each(&[Dialect::L], async |root| {
        put(root, "f", b"one").await;
        let file = root.open("f", OpenFlags::WRITE | OpenFlags::APPEND).await.unwrap();
        file.write(0, b"two").await.unwrap();
        assert_eq!(get(root, "f").await, b"onetwo");
        root.open("f", OpenFlags::WRITE | OpenFlags::TRUNC).await.unwrap();
        assert_eq!(get(root, "f").await, b"");
    });
}

#[test]
fn names_need_not_be_utf8() {
    each(&ALL, async |root| {
        let name = &b"caf\xe9 \x01"[..];
        root.create(name, RDWR | OpenFlags::EXCL, 0o644, NOGID).await.unwrap();
        root.walk(name).await.unwrap();
        let entry = root.read_dir().await.unwrap().next().await.unwrap().unwrap();
        assert_eq!(&*entry.name, name);
    });
}

#[test]
fn a_ram_tree_is_full_at_its_limit_and_empties_again() {
    serve(Ram::new(1 << 20), Dialect::L, async |root| {
        let file = root.create("f", RDWR, 0o644, NOGID).await.unwrap();
        file.write_all_at(0, &vec![7; 900_000]).await.unwrap();
        assert_eq!(errno(file.write_all_at(900_000, &vec![7; 200_000]).await), Errno::ENOSPC);
        assert_eq!(errno(file.write_all_at(1 << 60, b"x").await), Errno::ENOSPC);
        root.unlink("f", false).await.unwrap();
        let before = root.statfs().await.unwrap().bfree;
        file.close().await.unwrap();
        assert!(root.statfs().await.unwrap().bfree > before + 200);
        let mut made = 0;
        while root.mkdir(made.to_string(), 0o755, NOGID).await.is_ok() {
            made += 1;
        }
        assert!((900..1100).contains(&made), "{made} directories in a mebibyte");
    });
}

/// diod's programs only accept ENOENT as "no authentication needed".
#[test]
fn who_asks_for_authentication_is_told_that_there_is_none() {
    let dir = tempfile::tempdir().unwrap();
    let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
    let servers: [Arc<dyn FileServer>; 2] = [Arc::new(disk), Arc::new(Ram::new(1 << 20))];
    for server in servers {
        let version = b"\x15\0\0\0\x64\xff\xff\0\x20\0\0\x08\09P2000.L";
        let auth = b"\x13\0\0\0\x66\0\0\x01\0\0\0\0\0\0\0\0\0\0\0";
        let answers = raw(server, [&version[..], auth].concat(), version.len() + 11);
        assert_eq!(answers[version.len()..], *b"\x0b\0\0\0\x07\0\0\x02\0\0\0");
    }
}

#[test]
fn what_is_made_append_only_only_grows_or_is_refused() {
    for dialect in ALL {
        let bits = 0o644 | u32::from(Qid::APPEND) << 24;
        serve(Ram::new(64 << 20), dialect, async |root| {
            let log = root.create("log", RDWR | OpenFlags::EXCL, bits, NOGID).await.unwrap();
            assert!(log.qid().ty & Qid::APPEND != 0);
            for text in ["one ", "two"] {
                log.write(0, text.as_bytes()).await.unwrap();
            }
            log.close().await.unwrap();
            let cut = root.open("log", RDWR | OpenFlags::TRUNC).await.unwrap();
            assert_eq!(content(&cut).await, b"one two");
            let shorter = SetAttr { size: Some(1), ..SetAttr::default() };
            assert!(cut.setattr(&shorter).await.is_err());
            let exclusive = 0o644 | u32::from(Qid::EXCL) << 24;
            let lock = root.create("lock", RDWR | OpenFlags::EXCL, exclusive, NOGID).await.unwrap();
            assert!(root.open("lock", OpenFlags::READ).await.is_err());
            lock.close().await.unwrap();
            root.open("lock", OpenFlags::READ).await.unwrap();
        });
        let dir = tempfile::tempdir().unwrap();
        let disk = Disk::open(dir.path(), DiskOptions::default()).unwrap();
        serve(disk, dialect, async |root| {
            assert!(root.create("log", RDWR | OpenFlags::EXCL, bits, NOGID).await.is_err());
            assert!(list(&root).await.is_empty());
            put(&root, "plain", b"").await;
            let append = SetAttr { special: Some(Qid::APPEND), mode: Some(0o644), ..SetAttr::default() };
            assert!(root.walk("plain").await.unwrap().setattr(&append).await.is_err());
        });
    }
}
