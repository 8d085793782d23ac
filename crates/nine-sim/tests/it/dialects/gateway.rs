//! Cases that the suite does not cover: the later use of a fid, unions of dialects, unexpected answers.

use std::sync::Arc;

use futures_util::future::join_all;
use nine_io::client::{Client, File, Options};
use nine_io::server::FileServer;
use nine_mux::{Flags, Order, Server};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{
    Dialect, Errno, GetMask, LockRequest, LockType, NOGID, OpenFlags, SetAttr, Time, TimeSet, mode,
};
use nine_servers::Ram;
use nine_sim::{Shape, World};

use crate::dialects::check::ALL;
use crate::mux::puppet::{Act, Puppet, reply};
use crate::mux::world::{Muxed, cat, ls, owner, put};

/// Block device 259, 65537 in Linux's encoding.
const RDEV: u64 = 0x1001_0301;
const NO_L: [Dialect; 2] = [Dialect::P2000, Dialect::U];

/// Returns a mountable server that is addressed in this dialect, with messages of this size.
fn spoken(m: &Muxed, name: &str, server: Arc<dyn FileServer>, dialect: Dialect, msize: u32) -> Server {
    let options = Options { dialects: vec![dialect], msize, ..Options::default() };
    Server { options, ..m.far(name, server, Shape::default()) }
}

/// Returns a client over an upstream, at its root.
async fn over(m: &Muxed, client: Dialect, upstream: Dialect, msize: u32) -> (Client, File) {
    let name = upstream.name();
    if m.mux.status().mounts.iter().all(|mount| *mount.old != *format!("/{name}")) {
        let server = spoken(m, name, Arc::new(Ram::new(16 << 20)), upstream, msize);
        m.space.mount(server, "", &owner(), &format!("/{name}"), Flags::REPLACE).await.unwrap();
    }
    let (client, root) = m.client(client).await;
    let dir = root.walk(name).await.unwrap();
    (client, dir)
}

/// Runs the test for each pair of these dialects, in separate directories.
fn pairs(
    clients: &[Dialect],
    upstreams: &[Dialect],
    msize: u32,
    deed: impl AsyncFn(&Muxed, &File, &str) + 'static,
) {
    let (world, clients, upstreams) = (World::new(0), clients.to_vec(), upstreams.to_vec());
    let m = Muxed::new(&world);
    world.run(async move {
        for &client in &clients {
            for &upstream in &upstreams {
                let (_client, root) = over(&m, client, upstream, msize).await;
                root.mkdir(client.name(), 0o750, NOGID).await.unwrap();
                let dir = root.walk(client.name()).await.unwrap();
                deed(&m, &dir, &format!("{} over {}", client.name(), upstream.name())).await;
            }
        }
    });
}

async fn bits(file: &File) -> u32 {
    file.getattr(GetMask::BASIC).await.unwrap().mode & 0o7777
}

fn set(change: impl FnOnce(&mut SetAttr<'_>)) -> SetAttr<'static> {
    let mut set = SetAttr::default();
    change(&mut set);
    set
}

#[test]
fn a_fid_that_has_made_a_file_is_that_file_for_everything() {
    pairs(&ALL, &ALL, 64 << 10, async |_, dir, which| {
        let file = dir.create("f", OpenFlags::RDWR | OpenFlags::EXCL, 0o600, NOGID).await.unwrap();
        file.write_all_at(0, b"0123456789").await.unwrap();
        file.setattr(&set(|set| set.mode = Some(0o640))).await.unwrap();
        file.setattr(&set(|set| set.size = Some(4))).await.unwrap();
        file.fsync(false).await.unwrap();
        let again = file.walk("").await.unwrap();
        again.setattr(&set(|set| set.mode = Some(0o604))).await.unwrap();
        let attr = file.getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.mode & 0o777, attr.size), (0o604, 4), "{which}");
        assert_eq!(dir.walk("f").await.unwrap().qid().path, attr.qid.path, "{which}");
    });
}

#[test]
fn the_fid_of_a_new_directory_lists_what_is_made_in_it_later() {
    pairs(&NO_L, &ALL, 64 << 10, async |_, dir, which| {
        // Tcreate leaves its fid open on the directory. The library's own mkdir does not show that.
        let fid = dir.client().new_fid().unwrap();
        let names = nine_proto::msg::Names::Slice(&[]);
        dir.client().ask(Tmsg::Walk { fid: dir.fid(), newfid: fid, names }).await.unwrap();
        let extension = nine_proto::msg::OnlyUStr(b"");
        let create = Tmsg::Create { fid, name: b"d", perm: mode::DMDIR | 0o755, mode: 0, extension };
        dir.client().ask(create).await.unwrap();
        let made = dir.client().adopt(fid, nine_proto::Qid::default());
        assert!(made.read_dir_block(0, 4096).await.unwrap().is_none(), "{which}");
        put(dir, "d/later", "x").await;
        let (entries, _) = made.read_dir_block(0, 4096).await.unwrap().expect(which);
        assert_eq!(&*entries[0].name, b"later", "{which}");
        assert!(entries[0].attr.is_some(), "{which}");
    });
}

#[test]
fn appends_of_many_fids_overwrite_nothing() {
    pairs(&[Dialect::L], &ALL, 64 << 10, async |m, dir, which| {
        put(dir, "log", "begin.").await;
        let (_other, far) = over(m, Dialect::L, dir_dialect(which), 0).await;
        let mut files = Vec::new();
        for from in [dir, &far.walk(dir.client().dialect().name()).await.unwrap()] {
            for _ in 0..4 {
                files.push(from.open("log", OpenFlags::WRITE | OpenFlags::APPEND).await.unwrap());
            }
        }
        let all = files.iter().enumerate().flat_map(|(i, file)| (0..16).map(move |_| (i, file)));
        let wrote = join_all(all.map(async |(i, file)| file.write(0, &[b'a' + i as u8; 7]).await)).await;
        assert!(wrote.iter().all(|wrote| wrote.as_ref().is_ok_and(|n| *n == 7)), "{which}: {wrote:?}");
        let text = cat(dir, "log").await.unwrap();
        assert_eq!(text.len(), 6 + 8 * 16 * 7, "{which}");
        for of in b'a'..b'i' {
            assert_eq!(text.bytes().skip(6).filter(|b| *b == of).count(), 16 * 7, "{which}: {text}");
        }
    });
}

fn dir_dialect(which: &str) -> Dialect {
    let name = which.rsplit(' ').next().unwrap();
    *ALL.iter().find(|dialect| dialect.name() == name).unwrap()
}

#[test]
fn without_excl_what_is_there_is_opened_and_stays_as_it_is() {
    pairs(&[Dialect::L], &ALL, 64 << 10, async |_, dir, which| {
        put(dir, "f", "kept").await;
        dir.walk("f").await.unwrap().setattr(&set(|set| set.mode = Some(0o400))).await.unwrap();
        let file = dir.create("f", OpenFlags::READ, 0o666, NOGID).await.unwrap();
        assert_eq!((cat(dir, "f").await.unwrap().as_str(), bits(&file).await), ("kept", 0o400), "{which}");
        let excl = dir.create("f", OpenFlags::READ | OpenFlags::EXCL, 0o666, NOGID).await;
        assert_eq!(excl.unwrap_err().errno(), Errno::EEXIST, "{which}");
        put(dir, "g", "to be cut").await;
        dir.create("g", OpenFlags::WRITE | OpenFlags::TRUNC, 0o666, NOGID).await.unwrap();
        assert_eq!(cat(dir, "g").await.unwrap(), "", "{which}");
    });
}

#[test]
fn the_client_of_a_unix_says_the_permissions_and_that_of_plan_9_does_not() {
    // The directory has 0750.
    pairs(&ALL, &ALL, 64 << 10, async |_, dir, which| {
        let file = dir.create("f", OpenFlags::READ | OpenFlags::EXCL, 0o666, NOGID).await.unwrap();
        dir.mkdir("d", 0o777, NOGID).await.unwrap();
        let got = (bits(&file).await, bits(&dir.walk("d").await.unwrap()).await);
        let asked = if which.starts_with("9P2000 ") { (0o640, 0o750) } else { (0o666, 0o777) };
        assert_eq!(got, asked, "{which}: {:o} and {:o}", got.0, got.1);
    });
}

#[test]
fn times_are_the_nearest_that_can_be_said_and_now_is_now() {
    pairs(&[Dialect::L], &NO_L, 64 << 10, async |m, dir, which| {
        put(dir, "f", "text").await;
        let file = dir.walk("f").await.unwrap();
        for (sec, said) in [(1 << 33, i64::from(u32::MAX) - 1), (-5, 0), (77, 77)] {
            let to = Some(TimeSet::To(Time { sec, nsec: 999 }));
            file.setattr(&set(|set| set.mtime = to)).await.unwrap();
            let mtime = file.getattr(GetMask::BASIC).await.unwrap().mtime;
            assert_eq!(mtime, Time { sec: said, nsec: 0 }, "{which}");
        }
        let wall = nine_net::Env::wall(&m.env).as_secs() as i64;
        let now = Some(TimeSet::Now);
        file.setattr(&set(|set| (set.atime, set.mtime) = (now, now))).await.unwrap();
        let attr = file.getattr(GetMask::BASIC).await.unwrap();
        assert!((wall..wall + 5).contains(&attr.mtime.sec) && attr.mtime == attr.atime, "{which}: {attr:?}");
        // O_TRUNC of the Linux kernel's client.
        file.setattr(&set(|set| (set.size, set.mtime) = (Some(0), now))).await.unwrap();
        assert_eq!(cat(dir, "f").await.unwrap(), "", "{which}");
    });
}

#[test]
fn what_cannot_be_said_has_the_error_that_clients_know() {
    pairs(&[Dialect::L], &NO_L, 64 << 10, async |_, dir, which| {
        put(dir, "f", "text").await;
        put(dir, "g", "other").await;
        dir.mkdir("d", 0o755, NOGID).await.unwrap();
        let (file, sub) = (dir.open("f", OpenFlags::RDWR).await.unwrap(), dir.walk("d").await.unwrap());
        // Only for this error number the kernel's client makes up a statfs.
        assert_eq!(file.statfs().await.unwrap_err().errno(), Errno::ENOSYS, "{which}");
        let lock =
            LockRequest { ty: LockType::Write, flags: 0, start: 0, length: 0, proc_id: 1, client_id: b"" };
        assert_eq!(file.lock(&lock).await.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        assert_eq!(file.getlock(&lock).await.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        assert_eq!(file.xattr("user.x").await.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        assert_eq!(file.xattrs().await.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        let stored = file.set_xattr("user.x", b"1", 0).await;
        assert_eq!(stored.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        assert_eq!(file.readlink().await.unwrap_err().errno(), Errno::EINVAL, "{which}");
        assert_eq!(dir.rename("f", &sub, "f").await.unwrap_err().errno(), Errno::EXDEV, "{which}");
        assert_eq!(dir.rename("f", dir, "g").await.unwrap_err().errno(), Errno::EOPNOTSUPP, "{which}");
        let opened = dir.open("f", OpenFlags::DIRECTORY).await;
        assert_eq!(opened.unwrap_err().errno(), Errno::ENOTDIR, "{which}");
        assert_eq!(sub.setattr(&set(|set| set.size = Some(0))).await.unwrap_err().errno(), Errno::EISDIR);
        if which.ends_with("9P2000") {
            assert_eq!(dir.symlink("l", "f", NOGID).await.unwrap_err().errno(), Errno::EOPNOTSUPP);
            assert_eq!(dir.link("l", &file).await.unwrap_err().errno(), Errno::EOPNOTSUPP);
            let pipe = dir.mknod("l", mode::S_IFIFO | 0o600, (0, 0), NOGID).await;
            assert_eq!(pipe.unwrap_err().errno(), Errno::EOPNOTSUPP);
            let owner = file.setattr(&set(|set| set.uid = Some(5))).await;
            assert_eq!(owner.unwrap_err().errno(), Errno::EPERM);
            let sticky = sub.setattr(&set(|set| set.mode = Some(0o1777))).await;
            assert_eq!(sticky.unwrap_err().errno(), Errno::EOPNOTSUPP);
            assert_eq!(bits(&sub).await, 0o755, "nothing of it is done");
        }
        // Nothing has changed.
        assert_eq!(cat(dir, "f").await.unwrap(), "text", "{which}");
        assert_eq!(cat(dir, "g").await.unwrap(), "other", "{which}");
        let mut names = ls(dir, "").await.unwrap();
        names.sort();
        assert_eq!(names, ["d", "f", "g"], "{which}");
    });
}

#[test]
fn links_lead_where_they_lead_in_every_dialect_that_has_them() {
    let unix = [Dialect::U, Dialect::L];
    pairs(&unix, &unix, 64 << 10, async |_, dir, which| {
        dir.symlink("l", "to/\u{fc}ber", NOGID).await.unwrap();
        assert_eq!(&*dir.walk("l").await.unwrap().readlink().await.unwrap(), "to/\u{fc}ber".as_bytes());
        let mut entries = dir.read_dir().await.unwrap();
        let entry = entries.next().await.unwrap().unwrap();
        assert_eq!(entry.ty, 10, "{which}");
        if let Some(texts) = entry.attr.and_then(|attr| attr.texts) {
            assert_eq!(&*texts.target, "to/\u{fc}ber".as_bytes(), "{which}: its stat record in the listing");
        }
        let (ty, numbers) = (mode::S_IFBLK | 0o640, (259, 65537));
        dir.mknod("b", ty, numbers, NOGID).await.unwrap();
        let attr = dir.walk("b").await.unwrap().getattr(GetMask::BASIC).await.unwrap();
        assert_eq!((attr.mode, attr.rdev), (ty, RDEV), "{which}");
    });
}

#[test]
fn listings_are_whole_however_they_are_read() {
    pairs(&ALL, &ALL, 4096, async |_, dir, which| {
        let name = |i: usize| match i % 4 {
            0 => format!("{i} with blanks\n"),
            1 => format!("{i}{}", "\u{1F600}".repeat(40)),
            2 => format!("-{i}"),
            _ => format!("{i}\\'\"\u{1}"),
        };
        let mut expected: Vec<String> = (0..90).map(name).collect();
        for name in &expected {
            dir.create(name, OpenFlags::READ | OpenFlags::EXCL, 0o600, NOGID).await.unwrap();
        }
        expected.sort();
        let open = dir.open("", OpenFlags::READ).await.unwrap();
        let (mut names, mut cookie, mut cookies) = (Vec::new(), 0, Vec::new());
        while let Some((entries, next)) = open.read_dir_block(cookie, 700).await.unwrap() {
            cookies.push((cookie, names.len()));
            names.extend(entries.into_iter().map(|entry| String::from_utf8(entry.name.into()).unwrap()));
            cookie = next;
        }
        let listed = names.clone();
        names.sort();
        assert_eq!(names, expected, "{which}");
        if open.client().dialect().is_l() {
            // A cookie can be used a second time.
            for (cookie, begin) in cookies.into_iter().rev().step_by(7) {
                let (entries, _) = open.read_dir_block(cookie, 700).await.unwrap().unwrap();
                let again: Vec<_> =
                    entries.iter().map(|entry| String::from_utf8_lossy(&entry.name)).collect();
                assert_eq!(again, listed[begin..][..again.len()], "{which} from {cookie}");
            }
        }
    });
}

#[test]
fn short_messages_upstream_shorten_and_lose_nothing() {
    pairs(&ALL, &ALL, 1024, async |_, dir, which| {
        let data: Vec<u8> = (0..50_000u32).map(|i| (i / 3) as u8).collect();
        let file = dir.create("f", OpenFlags::RDWR | OpenFlags::EXCL, 0o600, NOGID).await.unwrap();
        assert!(file.iounit() < 1024, "{which}");
        file.write_all_at(0, &data).await.unwrap();
        let mut back = vec![0; 60_000];
        assert_eq!(file.read_at(0, &mut back).await.unwrap(), data.len(), "{which}");
        assert_eq!(back[..data.len()], data, "{which}");
        if !which.contains("9P2000 ") && !which.ends_with("9P2000") {
            // A request that fits into the client's messages but not into the upstream's is refused, and the session
            // continues.
            let long = "x".repeat(2000);
            assert!(dir.symlink("l", &long, NOGID).await.is_err(), "{which}");
        }
        assert_eq!(ls(dir, "").await.unwrap(), ["f"], "{which}");
    });
}

#[test]
fn a_union_of_three_dialects_is_one_directory() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        for (i, dialect) in ALL.into_iter().enumerate() {
            let ram = Arc::new(Ram::new(1 << 20));
            crate::mux::world::fill(&(ram.clone() as _), &[(dialect.name(), "own"), ("all", dialect.name())])
                .await;
            let order = if i == 0 { Order::Replace } else { Order::After };
            let flags = Flags { order, create: dialect == Dialect::P2000, ..Flags::REPLACE };
            let server = spoken(&m, dialect.name(), ram, dialect, 64 << 10);
            m.space.mount(server, "", &owner(), "/u", flags).await.unwrap();
        }
        for client in ALL {
            let (_client, root) = m.client(client).await;
            let union = root.walk("u").await.unwrap();
            let mut names = ls(&root, "u").await.unwrap();
            names.sort();
            assert_eq!(names, ["9P2000", "9P2000.L", "9P2000.u", "all"]);
            assert_eq!(cat(&root, "u/all").await.unwrap(), ALL[0].name());
            for of in ALL {
                assert_eq!(cat(&union, of.name()).await.unwrap(), "own");
            }
            // New files are created in the 9P2000 member.
            let file = union.open_or_create("new", OpenFlags::RDWR, 0o666).await.unwrap();
            file.write_all_at(0, b"text").await.unwrap();
            drop(file);
            union.rename("new", &union, "newer").await.unwrap();
            assert_eq!(cat(&union, "newer").await.unwrap(), "text");
            if client != Dialect::P2000 {
                assert_eq!(union.symlink("l", "x", NOGID).await.unwrap_err().errno(), Errno::EOPNOTSUPP);
                let other = root.walk("u/9P2000.L").await.unwrap();
                assert_eq!(union.link("l", &other).await.unwrap_err().errno(), Errno::EXDEV);
            }
            union.unlink("newer", false).await.unwrap();
        }
    });
}

#[test]
fn a_server_that_says_no_without_a_number_is_not_taken_for_one_that_says_yes() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |message, tag| match message {
            Tmsg::Lopen { .. } => Act::Say(reply(tag, &Rmsg::Lerror { ecode: 0 })),
            Tmsg::Getattr { .. } => Act::Say(reply(tag, &Rmsg::Lerror { ecode: u32::MAX })),
            _ => Act::Honest,
        });
        m.space.mount(puppet.server(&m, "s"), "", &owner(), "/s", Flags::REPLACE).await.unwrap();
        for client in ALL {
            let (_client, root) = m.client(client).await;
            let file = root.walk("s/f").await.unwrap();
            assert_eq!(file.getattr(GetMask::BASIC).await.unwrap_err().errno(), Errno::EIO);
            assert_eq!(file.open_here(OpenFlags::READ).await.unwrap_err().errno(), Errno::EIO);
        }
    });
}

#[test]
fn a_sync_by_a_fid_that_is_not_open_is_asked_for_by_one_that_is() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let mut open = std::collections::HashSet::new();
        let puppet = Puppet::new(&m, move |message, tag| match message {
            Tmsg::Lopen { fid, .. } => {
                open.insert(fid.0);
                Act::Honest
            }
            Tmsg::Fsync { fid, .. } if open.contains(&fid.0) => Act::Say(reply(tag, &Rmsg::Fsync {})),
            Tmsg::Fsync { .. } => Act::Say(reply(tag, &Rmsg::Lerror { ecode: Errno::EBADF.0 })),
            _ => Act::Honest,
        });
        m.space.mount(puppet.server(&m, "s"), "", &owner(), "/s", Flags::REPLACE).await.unwrap();
        for client in NO_L {
            let (_client, root) = m.client(client).await;
            root.walk("s/f").await.unwrap().fsync(false).await.unwrap();
        }
        let (_client, root) = m.client(Dialect::L).await;
        let file = root.walk("s/f").await.unwrap();
        assert_eq!(file.fsync(false).await.unwrap_err().errno(), Errno::EBADF, "fsync(2)");
    });
}
