//! The rights of a client.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};

use nine_io::client::{File, Result};
use nine_proto::{Dialect, Errno, GetMask, NOGID, OpenFlags, SetAttr};
use nine_servers::disk::{As, Disk, DiskOptions};
use tempfile::TempDir;

use crate::files::world::{errno, is_root, not_covered, serve_as};

const NOBODY: u32 = 65534;
const RDWR: OpenFlags = OpenFlags::RDWR;

fn as_client(dir: &TempDir, uid: u32, main: impl AsyncFnOnce(Result<File>)) {
    let options = DiskOptions { identity: As::Client, ..DiskOptions::default() };
    serve_as(Disk::open(dir.path(), options).unwrap(), Dialect::L, uid, main);
}

fn open_dir() -> TempDir {
    let dir = TempDir::new().unwrap();
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

#[test]
fn a_client_makes_files_of_its_own_and_reads_what_it_may() {
    if !is_root() {
        return;
    }
    let dir = open_dir();
    let secret = dir.path().join("secret");
    fs::write(&secret, "x").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    fs::create_dir(dir.path().join("closed")).unwrap();
    fs::write(dir.path().join("closed/f"), "x").unwrap();
    fs::set_permissions(dir.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
    as_client(&dir, NOBODY, async |root| {
        let root = root.unwrap();
        root.create("mine", RDWR, 0o644, NOGID).await.unwrap();
        root.mkdir("dir", 0o755, NOGID).await.unwrap();
        root.symlink("link", "mine", NOGID).await.unwrap();
        for name in ["mine", "dir", "link"] {
            assert_eq!(fs::symlink_metadata(dir.path().join(name)).unwrap().uid(), NOBODY);
        }
        let secret = root.walk("secret").await.unwrap();
        assert_eq!(secret.getattr(GetMask::BASIC).await.unwrap().size, 1);
        assert_eq!(errno(root.open("secret", OpenFlags::READ).await), Errno::EACCES);
        assert_eq!(errno(root.walk("closed").await.unwrap().walk("f").await), Errno::EACCES);
        let chmod = SetAttr { mode: Some(0o666), ..SetAttr::default() };
        assert_eq!(errno(secret.setattr(&chmod).await), Errno::EPERM);
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        assert_eq!(errno(secret.setattr(&cut).await), Errno::EACCES);
        let mine = root.walk("mine").await.unwrap();
        mine.setattr(&chmod).await.unwrap();
        let give = SetAttr { uid: Some(0), ..SetAttr::default() };
        assert_eq!(errno(mine.setattr(&give).await), Errno::EPERM);
    });
    // This thread has its own identity again.
    fs::write(dir.path().join("after"), "").unwrap();
    assert_eq!(fs::metadata(dir.path().join("after")).unwrap().uid(), 0);
}

#[test]
fn root_is_root_and_a_number_without_a_name_is_nobodys_friend() {
    if !is_root() {
        return;
    }
    let dir = open_dir();
    as_client(&dir, 0, async |root| {
        root.unwrap().create("roots", RDWR, 0o600, NOGID).await.unwrap();
    });
    as_client(&dir, 54_321, async |root| {
        let root = root.unwrap();
        root.create("stranger", RDWR, 0o600, NOGID).await.unwrap();
        assert_eq!(errno(root.open("roots", OpenFlags::READ).await), Errno::EACCES);
        // A group that the client is not in is ignored.
        root.create("grouped", RDWR, 0o600, 0).await.unwrap();
    });
    for (name, owner) in [("roots", (0, 0)), ("stranger", (54_321, NOBODY)), ("grouped", (54_321, NOBODY))] {
        let meta = fs::metadata(dir.path().join(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), owner);
    }
}

#[test]
fn writing_to_anothers_set_id_file_takes_the_bit_off() {
    if !is_root() {
        return;
    }
    let dir = open_dir();
    let path = dir.path().join("f");
    fs::write(&path, "x").unwrap();
    chown(&path, Some(0), Some(0)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o4777)).unwrap();
    as_client(&dir, NOBODY, async |root| {
        let file = root.unwrap().open("f", RDWR).await.unwrap();
        file.write_all_at(0, b"y").await.unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o777);
    });
}

#[test]
fn who_is_not_root_cannot_serve_others_as_themselves() {
    if rustix::process::geteuid().is_root() {
        not_covered("this test must not be root");
        return;
    }
    let options = DiskOptions { identity: As::Client, ..DiskOptions::default() };
    assert!(Disk::open("/tmp", options).is_err());
}

/// Returns this thread's rights as the kernel shows them.
fn credentials() -> Vec<String> {
    let status = fs::read_to_string("/proc/thread-self/status").unwrap();
    let ours = |line: &&str| ["Uid:", "Gid:", "Groups:", "Cap"].iter().any(|name| line.starts_with(name));
    status.lines().filter(ours).map(String::from).collect()
}

#[test]
fn no_right_of_root_is_left_to_a_client() {
    if !is_root() {
        return;
    }
    let before = credentials();
    let dir = open_dir();
    fs::write(dir.path().join("roots"), "x").unwrap();
    as_client(&dir, NOBODY, async |root| {
        let root = root.unwrap();
        root.create("mine", RDWR, 0o777, NOGID).await.unwrap();
        // cap_setuid, effective: a user running the file would become root.
        let cap_setuid = [1, 0, 0, 2, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for name in ["mine", "roots"] {
            let file = root.walk(name).await.unwrap();
            for (attr, value) in
                [("security.capability", &cap_setuid[..]), ("trusted.x", b"x"), ("security.x", b"x")]
            {
                assert_eq!(errno(file.set_xattr(attr, value, 0).await), Errno::EPERM, "{attr} of {name}");
            }
        }
        assert_eq!(
            errno(root.mknod("disk", nine_proto::mode::S_IFBLK | 0o666, (8, 0), NOGID).await),
            Errno::EPERM
        );
        let root_again = root.client().attach("", 0, "").await.unwrap();
        root_again.walk("roots").await.unwrap().set_xattr("trusted.x", b"x", 0).await.unwrap();
        assert_eq!(errno(root.walk("roots").await.unwrap().xattr("trusted.x").await), Errno::ENODATA);
    });
    assert_eq!(credentials(), before);
}

#[test]
fn a_clients_own_groups_count_and_the_servers_do_not() {
    if !is_root() {
        return;
    }
    // The first user with a group besides its own.
    let groups = fs::read_to_string("/etc/group").unwrap();
    let member = groups.lines().find_map(|line| {
        let fields: Vec<_> = line.split(':').collect();
        let user = fields.get(3)?.split(',').next().filter(|user| !user.is_empty())?;
        Some((user.to_owned(), fields[2].parse::<u32>().ok()?))
    });
    let dir = open_dir();
    let file = |name: &str, gid| {
        fs::write(dir.path().join(name), "x").unwrap();
        chown(dir.path().join(name), Some(0), Some(gid)).unwrap();
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o040)).unwrap();
    };
    file("roots", 0);
    as_client(&dir, NOBODY, async |root| {
        assert_eq!(errno(root.unwrap().open("roots", OpenFlags::READ).await), Errno::EACCES);
    });
    let Some((user, gid)) = member else {
        not_covered("no user here is in a second group");
        return;
    };
    file("groups", gid);
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let entry = passwd.lines().find(|line| line.starts_with(&format!("{user}:"))).unwrap();
    let uid = entry.split(':').nth(2).unwrap().parse().unwrap();
    as_client(&dir, uid, async |root| {
        let root = root.unwrap();
        root.open("groups", OpenFlags::READ).await.unwrap();
        root.create("made", RDWR, 0o640, gid).await.unwrap();
        assert_eq!(fs::metadata(dir.path().join("made")).unwrap().gid(), gid);
    });
}

#[test]
fn two_users_of_one_connection_keep_their_own_rights() {
    if !is_root() {
        return;
    }
    let dir = open_dir();
    as_client(&dir, 54_321, async |one| {
        let one = one.unwrap();
        let two = one.client().attach("", 54_322, "").await.unwrap();
        one.create("one", RDWR, 0o600, NOGID).await.unwrap();
        two.create("two", RDWR, 0o600, NOGID).await.unwrap();
        for i in 0..50 {
            let (me, mine, other) = if i % 2 == 0 { (&one, "one", "two") } else { (&two, "two", "one") };
            me.open(mine, RDWR).await.unwrap().write_all_at(0, b"x").await.unwrap();
            assert_eq!(errno(me.open(other, OpenFlags::READ).await), Errno::EACCES);
            let f = me.walk(other).await.unwrap();
            assert_eq!(
                errno(f.setattr(&SetAttr { mode: Some(0o666), ..SetAttr::default() }).await),
                Errno::EPERM
            );
            assert_eq!(errno(f.set_xattr("user.x", b"x", 0).await), Errno::EACCES);
            assert_eq!(errno(me.create(other, RDWR | OpenFlags::TRUNC, 0o600, NOGID).await), Errno::EACCES);
        }
    });
}
