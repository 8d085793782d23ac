//! An archive served to clients of every dialect. Each test attaches as several users.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use nine_block::{Ahead, Device, Ram};
use nine_io::client::{Client, File, Options, Result};
use nine_io::server::{Anonymous, Core, Gate, Service};
use nine_net::rt::Real;
use nine_net::{Env, Peer, Proof};
use nine_proto::{Dialect, Errno, GetMask, NOGID, NOUID, OpenFlags, SetAttr, Time, TimeSet};

use crate::archive::{Archive, Settings};

const DIALECTS: [Dialect; 3] = [Dialect::L, Dialect::U, Dialect::P2000];

/// An archive served by a task of this thread.
pub(super) struct Served {
    env: Real,
    service: Service,
    pub(super) archive: Archive,
}

impl Served {
    /// Runs `main` with a new archive; `users` is added to its table.
    pub(super) fn run(users: &str, main: impl AsyncFnOnce(Self)) {
        let disk = |sectors| -> Arc<dyn Device> { Arc::new(Ram::new(sectors)) };
        let (c, w) = (disk(1 << 15), disk(1 << 18));
        let clock = AtomicI64::new(1_795_000_000);
        let settings = Settings {
            memory: 4 << 20,
            dirty: 4 << 20,
            ahead: Ahead::Grow,
            zone: Some("UTC".into()),
            wall: Arc::new(move || Time { sec: clock.fetch_add(1, Ordering::Relaxed), nsec: 0 }),
            epoch: 0,
        };
        nine_net::rt::block_on(async |env| {
            Archive::ream(c.clone(), w.clone(), &super::ream(8192, true), &settings).await.unwrap();
            let (archive, driver) = Archive::open(c, w, &settings).await.unwrap();
            env.spawn(Box::pin(driver));
            let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
            let service = Service::new(Arc::new(archive.clone()), gate, Core::default());
            let table = archive.state().users.to_string() + users;
            archive.state().users = Arc::new(crate::users::UserTable::parse(&table).unwrap());
            let served = Self { env, service, archive };
            let root = served.attach(Dialect::L, "root", 0).await.unwrap();
            root.mkdir("pub", 0o777, NOGID).await.unwrap();
            root.walk("pub").await.unwrap().setattr(&chmod(0o777)).await.unwrap();
            main(served).await;
        })
        .unwrap();
    }

    /// Attaches as this user.
    pub(super) async fn attach(&self, dialect: Dialect, name: &str, uid: u32) -> Result<File> {
        let peer = Peer { addr: "test".into(), proof: Proof::None };
        let options = Options { dialects: vec![dialect], ..Options::default() };
        let client = Client::within(&self.env, &self.service, peer, options).await?;
        client.attach(name, uid, "").await
    }
}

pub(super) fn chmod(mode: u32) -> SetAttr<'static> {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

#[track_caller]
pub(super) fn errno<T>(result: Result<T>) -> Errno {
    match result {
        Ok(_) => panic!("it should have failed"),
        Err(error) => error.errno(),
    }
}

#[test]
fn a_creator_owns_what_he_creates() {
    Served::run("10007:doc::4711\n4712:smith:smith:", async |served| {
        for dialect in DIALECTS {
            // 65534 is Linux' nobody, 10000 the number of a group, 9999 that of `noworld`.
            for uid in [0, 1, 4711, 4712, 10_000, 65_534, 4_294_967_292] {
                let name = if uid == 4712 { "smith".into() } else { uid.to_string() };
                let claimed = if dialect == Dialect::P2000 { NOUID } else { uid };
                let root = served.attach(dialect, &name, claimed).await.unwrap();
                let dir = root.walk("pub").await.unwrap();
                let own = format!("{uid}");
                dir.mkdir(&own, 0o755, NOGID).await.unwrap_or_else(|why| panic!("{dialect:?} {uid}: {why}"));
                let own = dir.walk(&own).await.unwrap();
                own.create("f", OpenFlags::RDWR, 0o600, NOGID).await.unwrap();
                let file = own.walk("f").await.unwrap();
                let at = TimeSet::To(Time { sec: 1_000_000_000, nsec: 0 });
                for set in [
                    chmod(0o640),
                    SetAttr { mtime: Some(at), ..SetAttr::default() },
                    SetAttr { size: Some(10), ..SetAttr::default() },
                ] {
                    let done = file.setattr(&set).await;
                    done.unwrap_or_else(|why| panic!("{dialect:?} {uid} {set:?}: {why}"));
                }
                if dialect != Dialect::P2000 {
                    assert_eq!(file.getattr(GetMask::BASIC).await.unwrap().uid, uid, "{dialect:?}");
                }
                drop((file, own));
                dir.walk(&format!("{uid}/f")).await.unwrap().remove().await.unwrap();
                dir.walk(&uid.to_string()).await.unwrap().remove().await.unwrap();
            }
        }
    });
}

#[test]
fn none_creates_nothing_and_has_no_rights_of_nobody() {
    Served::run("", async |served| {
        let nobody = served.attach(Dialect::L, "", 65_534).await.unwrap().walk("pub").await.unwrap();
        nobody.create("secret", OpenFlags::RDWR, 0o600, NOGID).await.unwrap();
        let root = served.attach(Dialect::L, "root", 0).await.unwrap().walk("pub").await.unwrap();
        root.create("all", OpenFlags::RDWR, 0o666, NOGID).await.unwrap();
        root.walk("all").await.unwrap().setattr(&chmod(0o666)).await.unwrap();
        for dialect in DIALECTS {
            // By name; by an unknown name; by the number of `none` itself.
            for (name, uid) in [("none", NOUID), ("stranger", NOUID), ("", NOUID), ("x", NOUID - 2)] {
                let dir = served.attach(dialect, name, uid).await.unwrap().walk("pub").await.unwrap();
                assert_eq!(
                    errno(dir.create("f", OpenFlags::RDWR, 0o666, NOGID).await),
                    Errno::EPERM,
                    "{name}"
                );
                assert_eq!(errno(dir.mkdir("d", 0o777, NOGID).await), Errno::EPERM);
                if dialect == Dialect::L {
                    assert_eq!(errno(dir.symlink("s", "x", NOGID).await), Errno::EPERM);
                    assert_eq!(errno(dir.mknod("p", 0o010_666, (0, 0), NOGID).await), Errno::EPERM);
                }
                let secret = dir.walk("secret").await.unwrap();
                assert_eq!(errno(secret.open("", OpenFlags::READ).await), Errno::EACCES);
                assert_eq!(errno(secret.setattr(&chmod(0o666)).await), Errno::EPERM);
                // It has the permissions of all others.
                dir.open("all", OpenFlags::RDWR).await.unwrap();
            }
        }
    });
}

#[test]
fn an_old_table_keeps_its_archive_and_frees_the_number_of_nobody() {
    Served::run("", async |served| {
        let old = "-1:adm:adm:\n65534:none::\n0:root:root:\n10000:sys::\n9999:noworld::\n";
        let archive = &served.archive;
        let now = archive.time();
        archive.attempt(|state| state.fs.put_users(old, now)).await.unwrap();
        archive.load_users().await.unwrap();
        assert!(archive.state().users.to_string().contains("-2:none::\n"));
        let nobody = served.attach(Dialect::L, "nobody", 65_534).await.unwrap().walk("pub").await.unwrap();
        nobody.create("f", OpenFlags::RDWR, 0o600, NOGID).await.unwrap();
        nobody.walk("f").await.unwrap().setattr(&chmod(0o644)).await.unwrap();
        let none = served.attach(Dialect::L, "none", NOUID).await.unwrap().walk("pub").await.unwrap();
        assert_eq!(errno(none.create("g", OpenFlags::RDWR, 0o600, NOGID).await), Errno::EPERM);
    });
}

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";

/// `u::OWNER,u:1235:rw,g::GROUP,m::MASK,o::OTHER`, and more named entries.
fn list(owner: u16, more: &[(u16, u16, u32)], group: u16, mask: u16, other: u16) -> Vec<u8> {
    let mut entries =
        vec![(1, owner, u32::MAX), (4, group, u32::MAX), (16, mask, u32::MAX), (32, other, u32::MAX)];
    entries.push((2, 6, 1235));
    entries.extend(more);
    entries.sort_unstable_by_key(|entry| entry.0);
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
        value.extend(id.to_le_bytes());
    }
    value
}

async fn mode_of(file: &File) -> u32 {
    file.getattr(GetMask::BASIC).await.unwrap().mode & 0o7777
}

#[test]
fn an_access_control_list_decides_who_may() {
    Served::run("10050:doc::1236,1235,1237\n10051:out::1237", async |served| {
        let own = served.attach(Dialect::L, "", 1234).await.unwrap().walk("pub").await.unwrap();
        own.create("f", OpenFlags::RDWR, 0o600, 10_050).await.unwrap();
        let f = own.walk("f").await.unwrap();
        f.set_xattr(ACCESS, &list(6, &[(2, 0, 1238), (8, 4, 10_051)], 0, 6, 4), 0).await.unwrap();
        assert_eq!(mode_of(&f).await, 0o664);
        let opens = async |uid, flags| {
            let root = served.attach(Dialect::L, if uid == NOUID { "none" } else { "" }, uid).await.unwrap();
            root.open("pub/f", flags).await.map(drop).map_err(|error| error.errno())
        };
        let (read, write) = (OpenFlags::READ, OpenFlags::WRITE);
        for (uid, reads, writes) in [
            // The owner; a user that the list names; a user that it denies.
            (1234, true, true),
            (1235, true, true),
            (1238, false, false),
            // A member of the owning group, which has no permission, although all others may read.
            (1236, false, false),
            // A member of a group that may read.
            (1237, true, false),
            // All others, and users without a number.
            (5000, true, false),
            (NOUID, true, false),
            (0, true, true),
        ] {
            let allowed = |yes| if yes { Ok(()) } else { Err(Errno::EACCES) };
            assert_eq!(opens(uid, read).await, allowed(reads), "{uid}");
            assert_eq!(opens(uid, write).await, allowed(writes), "{uid}");
        }
        // chmod(2) changes the mask, and so removes write permission from everybody but the owner.
        f.setattr(&chmod(0o640)).await.unwrap();
        assert_eq!((opens(1235, read).await, opens(1235, write).await), (Ok(()), Err(Errno::EACCES)));
        // A directory's list controls searching it and creating files in it.
        own.mkdir("d", 0o700, NOGID).await.unwrap();
        let d = own.walk("d").await.unwrap();
        d.create("f", OpenFlags::RDWR, 0o666, NOGID).await.unwrap();
        d.set_xattr(ACCESS, &list(7, &[(2, 7, 1236), (2, 1, 1237)], 0, 7, 0), 0).await.unwrap();
        for (uid, searched, created) in [
            (1236, Ok(()), Ok(())),
            (1237, Ok(()), Err(Errno::EACCES)),
            (5000, Err(Errno::EACCES), Err(Errno::EACCES)),
        ] {
            let dir = served.attach(Dialect::L, "", uid).await.unwrap().walk("pub/d").await.unwrap();
            assert_eq!(dir.walk("f").await.map(drop).map_err(|error| error.errno()), searched, "{uid}");
            let name = uid.to_string();
            let made = dir.create(&name, OpenFlags::RDWR, 0o600, NOGID).await;
            assert_eq!(made.map(drop).map_err(|error| error.errno()), created, "{uid}");
        }
        // Only the owner may set a list. A user without any permission on the file may read it.
        let other = served.attach(Dialect::L, "", 1238).await.unwrap().walk("pub/f").await.unwrap();
        let all = list(7, &[], 7, 7, 7);
        assert_eq!(errno(other.set_xattr(ACCESS, &all, 0).await), Errno::EPERM);
        assert_eq!(errno(other.remove_xattr(ACCESS).await), Errno::EPERM);
        assert_eq!(other.xattr(ACCESS).await.unwrap(), f.xattr(ACCESS).await.unwrap());
        // The set-group-ID bit is cleared if the user is not a member of the group.
        f.setattr(&chmod(0o2750)).await.unwrap();
        f.set_xattr(ACCESS, &all, 0).await.unwrap();
        assert_eq!(mode_of(&f).await, 0o777);
    });
}

#[test]
fn lists_are_inherited_and_follow_the_mode() {
    Served::run("", async |served| {
        let own = served.attach(Dialect::L, "", 1234).await.unwrap().walk("pub").await.unwrap();
        own.mkdir("d", 0o755, NOGID).await.unwrap();
        let d = own.walk("d").await.unwrap();
        d.set_xattr(DEFAULT, &list(7, &[], 5, 7, 1), 0).await.unwrap();
        assert_eq!(mode_of(&d).await, 0o755);
        d.create("f", OpenFlags::RDWR, 0o666, NOGID).await.unwrap();
        d.mkdir("d", 0o777, NOGID).await.unwrap();
        d.symlink("s", "f", NOGID).await.unwrap();
        let (f, below) = (d.walk("f").await.unwrap(), d.walk("d").await.unwrap());
        assert_eq!((mode_of(&f).await, f.xattr(ACCESS).await.unwrap()), (0o660, list(6, &[], 5, 6, 0)));
        assert_eq!(
            (mode_of(&below).await, below.xattr(ACCESS).await.unwrap()),
            (0o771, list(7, &[], 5, 7, 1))
        );
        assert_eq!(below.xattr(DEFAULT).await.unwrap(), list(7, &[], 5, 7, 1));
        assert_eq!(errno(f.xattr(DEFAULT).await), Errno::ENODATA);
        assert_eq!(errno(f.set_xattr(DEFAULT, &list(7, &[], 5, 7, 1), 0).await), Errno::EACCES);
        let link = d.walk("s").await.unwrap();
        assert_eq!(errno(link.set_xattr(ACCESS, &list(7, &[], 5, 7, 1), 0).await), Errno::EOPNOTSUPP);
        // 9P2000 has no umask: the list replaces the directory's permissions.
        let plain = served.attach(Dialect::P2000, "1234", NOUID).await.unwrap().walk("pub/d").await.unwrap();
        plain.create("g", OpenFlags::RDWR, 0o666, NOGID).await.unwrap();
        assert_eq!(d.walk("g").await.unwrap().xattr(ACCESS).await.unwrap(), list(6, &[], 5, 6, 0));
        // The mode and the list follow each other; a list equivalent to a mode is stored as the mode.
        f.setattr(&chmod(0o4751)).await.unwrap();
        assert_eq!(f.xattr(ACCESS).await.unwrap(), list(7, &[], 5, 5, 1));
        let minimal = [&list(0, &[], 0, 0, 0)[..4], &list(6, &[], 4, 0, 0)[4..12]].concat();
        let minimal = [&minimal[..], &list(6, &[], 4, 0, 0)[20..28], &list(6, &[], 4, 0, 0)[36..]].concat();
        f.set_xattr(ACCESS, &minimal, 0).await.unwrap();
        assert_eq!((mode_of(&f).await & 0o777, errno(f.xattr(ACCESS).await)), (0o640, Errno::ENODATA));
        f.set_xattr(ACCESS, &list(6, &[], 0, 6, 0), 0).await.unwrap();
        assert_eq!(errno(f.set_xattr(ACCESS, &list(6, &[], 0, 6, 0), 1).await), Errno::EEXIST);
        f.remove_xattr(ACCESS).await.unwrap();
        f.remove_xattr(ACCESS).await.unwrap();
        assert_eq!((mode_of(&f).await & 0o777, f.xattrs().await.unwrap().len()), (0o660, 0));
        for bad in [&b"x"[..], &list(6, &[], 0, 6, 0)[..20], &list(8, &[], 0, 6, 0)] {
            assert_eq!(errno(f.set_xattr(ACCESS, bad, 0).await), Errno::EINVAL);
        }
        let many: Vec<_> = (0..600).map(|id| (2, 7, 10_000 + id)).collect();
        assert_eq!(errno(f.set_xattr(ACCESS, &list(6, &many, 0, 6, 0), 0).await), Errno::E2BIG);
        assert_eq!(errno(f.set_xattr("system.other", b"x", 0).await), Errno::EOPNOTSUPP);
        // A long list in several pieces, and chmod of it.
        f.set_xattr(ACCESS, &list(6, &many[..500], 0, 6, 0), 0).await.unwrap();
        f.setattr(&chmod(0o604)).await.unwrap();
        assert_eq!(f.xattr(ACCESS).await.unwrap(), list(6, &many[..500], 0, 0, 4));

        // A dump has the lists, and they apply there.
        let dumped = served.archive.dump().await.unwrap();
        f.remove_xattr(ACCESS).await.unwrap();
        let peer = Peer { addr: "test".into(), proof: Proof::None };
        let client = Client::within(&served.env, &served.service, peer, Options::default()).await.unwrap();
        let path = format!("{}/pub/d/f", dumped.name);
        let old = client.attach("", 1234, "dump").await.unwrap().walk(&path).await.unwrap();
        assert_eq!(old.xattr(ACCESS).await.unwrap(), list(6, &many[..500], 0, 0, 4));
        let named = client.attach("", 10_001, "dump").await.unwrap();
        assert_eq!(errno(named.open(&path, OpenFlags::READ).await), Errno::EACCES);
        client.attach("", 5000, "dump").await.unwrap().open(&path, OpenFlags::READ).await.unwrap();
        let checked = served.archive.check(crate::Depth::Dumps).await.unwrap();
        assert!(checked.faults.is_empty(), "{:#?}", checked.faults);
    });
}
