//! An archive served to clients of every dialect: each test attaches as several users.

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

/// An archive that is served, by a task of this thread.
pub(super) struct Served {
    env: Real,
    service: Service,
    pub(super) archive: Archive,
}

impl Served {
    /// Runs `main` with a new archive, of which `users` is added to the table.
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
            archive.state().users = Arc::new(crate::users::Users::parse(&table).unwrap());
            let served = Self { env, service, archive };
            let root = served.attach(Dialect::L, "root", 0).await.unwrap();
            root.mkdir("pub", 0o777, NOGID).await.unwrap();
            root.walk("pub").await.unwrap().setattr(&chmod(0o777)).await.unwrap();
            main(served).await;
        })
        .unwrap();
    }

    /// The root, as this user.
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
            // By name; by a name that nobody has; by the number of `none` itself.
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
                // It keeps the rights that everybody has.
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
