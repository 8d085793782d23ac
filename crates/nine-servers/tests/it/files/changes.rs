//! Changes, as a reader of `#changes` gets them (docs/changes.md).

use std::sync::Arc;

use futures_util::FutureExt;
use nine_io::changes::{Change, Cursor, Line, READERS_MAX, Watch};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_proto::{Dialect, Errno, NOGID, OpenFlags, RenameMode, SetAttr, Time, TimeSet};
use nine_servers::{Disk, DiskOptions, Ram};

use crate::files::world::{ALL, connect, errno, list, owner, serve};

fn path(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

/// A reader, and its unread lines.
struct ChangeReader {
    watch: Watch,
    lines: std::collections::VecDeque<Line>,
}

impl ChangeReader {
    async fn open(root: &File, from: Option<&Cursor>) -> Self {
        let mut told = Self { watch: Watch::open(root, from).await.unwrap(), lines: Default::default() };
        assert!(matches!(told.next().await, Line::Here(_)));
        told
    }

    async fn next(&mut self) -> Line {
        while self.lines.is_empty() {
            self.lines.extend(self.watch.next().await.unwrap());
        }
        self.lines.pop_front().unwrap()
    }

    /// Reads until this change.
    async fn until(&mut self, change: Change) {
        while self.change().await != change {}
    }

    async fn change(&mut self) -> Change {
        match self.next().await {
            Line::Change(_, change) => change,
            line => panic!("{line:?} is no change"),
        }
    }
}

async fn put(dir: &File, name: &str) -> File {
    dir.create(name, OpenFlags::RDWR, 0o644, NOGID).await.unwrap()
}

#[test]
fn a_tree_in_memory_tells_what_each_request_changes() {
    for dialect in ALL {
        serve(Ram::new(64 << 20), dialect, async |root| {
            let mut told = ChangeReader::open(&root, None).await;
            root.mkdir("a", 0o755, NOGID).await.unwrap();
            let a = root.walk("a").await.unwrap();
            let file = put(&a, "it's new").await;
            file.write(0, b"x").await.unwrap();
            file.write(1, b"x").await.unwrap();
            let set = SetAttr { mtime: Some(TimeSet::To(Time { sec: 1, nsec: 0 })), ..SetAttr::default() };
            a.walk("it's new").await.unwrap().setattr(&set).await.unwrap();
            a.rename("it's new", &a, "old").await.unwrap();
            a.walk("old").await.unwrap().remove().await.unwrap();
            a.remove().await.unwrap();
            for change in [
                Change::Create(path("/a")),
                Change::Create(path("/a/it's new")),
                Change::Write(path("/a/it's new")),
                Change::Attr(path("/a/it's new")),
                Change::Move(path("/a/it's new"), path("/a/old")),
                Change::Remove(path("/a/old")),
                Change::Remove(path("/a")),
            ] {
                assert_eq!(told.change().await, change, "{dialect:?}");
            }
        });
    }
}

#[test]
fn an_exchange_is_told_as_two_names_that_lead_to_other_files() {
    serve(Ram::new(64 << 20), Dialect::L, async |root| {
        for name in ["a", "b"] {
            put(&root, name).await.write_all_at(0, name.as_bytes()).await.unwrap();
        }
        assert!(root.has_renameat2().await);
        let mut told = ChangeReader::open(&root, None).await;
        root.rename_with("a", &root, "b", RenameMode::Exchange).await.unwrap();
        for name in ["/a", "/b"] {
            told.until(Change::Remove(path(name))).await;
            told.until(Change::Create(path(name))).await;
        }
        let refused = root.rename_with("a", &root, "b", RenameMode::NoReplace).await;
        assert_eq!(errno(refused), Errno::EEXIST);
        root.mkdir("last", 0o755, NOGID).await.unwrap();
        assert_eq!(told.change().await, Change::Create(path("/last")));
    });
}

#[test]
fn the_file_is_of_the_root_alone_and_listed_nowhere() {
    for dialect in ALL {
        serve(Ram::new(64 << 20), dialect, async |root| {
            root.mkdir("a", 0o755, NOGID).await.unwrap();
            let dir = root.walk("a").await.unwrap();
            for dir in [&dir, &dir.walk("..").await.unwrap()] {
                assert_eq!(errno(Watch::open(dir, None).await.map(drop)), Errno::ENOENT);
            }
            let again = root.walk("").await.unwrap();
            let file = again.open("#changes", OpenFlags::READ).await.unwrap();
            assert!(file.qid().is_event());
            assert_eq!(list(&root).await, ["a"]);
            let attr =
                again.walk("#changes").await.unwrap().getattr(nine_proto::GetMask::BASIC).await.unwrap();
            assert_eq!((attr.mode & 0o7777, attr.size), (0o444, 0));
            for name in ["#changes=", "#changes=x.1", "#changes=ab", "#changes=ab.-1", "#changes=ab.1.1"] {
                assert!(root.walk(name).await.is_err(), "{name}");
            }
            assert_eq!(errno(root.walk("#changed").await.map(drop)), Errno::ENOENT);
            assert_eq!(errno(root.open("#changes", OpenFlags::RDWR).await.map(drop)), Errno::EACCES);
            assert_eq!(errno(root.walk("#changes").await.unwrap().remove().await), Errno::EPERM);
            // No room for a line.
            assert!(file.read(0, 5).await.is_err());
            assert_eq!(file.read(1 << 40, 0).await.unwrap(), &b""[..]);
            assert!(file.read(1 << 40, 100).await.unwrap().starts_with(b"here "));
        });
    }
}

#[test]
fn a_read_that_is_flushed_has_taken_nothing() {
    serve(Ram::new(64 << 20), Dialect::L, async |root| {
        let mut told = ChangeReader::open(&root, None).await;
        let file = root.open("#changes", OpenFlags::READ).await.unwrap();
        assert!(file.read(0, 1000).await.unwrap().starts_with(b"here "));
        // Sent, then cancelled.
        let mut read = Box::pin(file.read(0, 1000));
        assert!(read.as_mut().now_or_never().is_none());
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        drop(read);
        let mut read = Box::pin(file.read(0, 1000));
        assert!(read.as_mut().now_or_never().is_none());
        root.mkdir("b", 0o755, NOGID).await.unwrap();
        assert!(read.await.unwrap().ends_with(b" create /b\n"));
        assert_eq!(told.change().await, Change::Create(path("/a")));
    });
}

#[test]
fn who_was_cut_off_goes_on_where_he_was() {
    let server: Arc<dyn FileServer> = Arc::new(Ram::new(64 << 20));
    nine_net::rt::block_on(async |env| {
        let client = connect(&env, server.clone(), Dialect::L).await;
        let root = client.attach("", 0, "").await.unwrap();
        let other = connect(&env, server.clone(), Dialect::L).await;
        let mut told = ChangeReader::open(&other.attach("", 0, "").await.unwrap(), None).await;
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        assert_eq!(told.change().await, Change::Create(path("/a")));
        let cursor = told.watch.cursor().unwrap().clone();
        other.abort(std::io::ErrorKind::ConnectionReset.into());
        assert!(told.watch.next().await.is_err());
        root.mkdir("b", 0o755, NOGID).await.unwrap();
        // Through a part of the tree too.
        let mut told = ChangeReader::open(&client.attach("", 0, "/b").await.unwrap(), Some(&cursor)).await;
        assert_eq!(told.change().await, Change::Create(path("/")));
        let mut told = ChangeReader::open(&root, Some(&cursor)).await;
        assert_eq!(told.change().await, Change::Create(path("/b")));
        // A cursor of another server run.
        let stranger = Cursor { epoch: "0".into(), next: u64::MAX };
        let mut told = ChangeReader::open(&root, Some(&stranger)).await;
        assert_eq!(told.change().await, Change::Lost(0));
        let early = Cursor { next: cursor.next + 2, ..cursor };
        assert_eq!(errno(Watch::open(&root, Some(&early)).await.map(drop)), Errno::EINVAL);
    })
    .unwrap();
}

#[test]
fn who_may_change_nothing_may_read_and_there_are_not_too_many() {
    let server: Arc<dyn FileServer> = Arc::new(Ram::new(64 << 20));
    nine_net::rt::block_on(async |env| {
        let gate = Gate { anonymous: Anonymous::ReadOnly, ..Gate::default() };
        let service = Service::new(server.clone(), gate, Core::default());
        let peer = nine_net::Peer { addr: "guest".into(), proof: nine_net::Proof::None };
        let guest = Client::within(&env, &service, peer, Options::default()).await.unwrap();
        let guest = guest.attach("", 7, "").await.unwrap();
        assert_eq!(errno(guest.mkdir("a", 0o755, NOGID).await), Errno::EROFS);
        let mut told = ChangeReader::open(&guest, None).await;
        let root = owner(&env, &service).await;
        let mut all = Vec::new();
        // An unauthenticated client has its share, and the owner the rest.
        let refused = loop {
            match Watch::open(&guest, None).await {
                Ok(watch) => all.push(watch),
                Err(error) => break error,
            }
        };
        assert_eq!(refused.errno(), Errno::ENFILE);
        for _ in 1 + all.len()..READERS_MAX {
            all.push(Watch::open(&root, None).await.unwrap());
        }
        assert_eq!(errno(Watch::open(&root, None).await.map(drop)), Errno::ENFILE);
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        assert_eq!(told.change().await, Change::Create(path("/a")));
    })
    .unwrap();
}

/// Serves a directory of the host, with a reader of its changes.
fn disk(main: impl AsyncFnOnce(&std::path::Path, File, ChangeReader)) {
    let scratch = tempfile::tempdir().unwrap();
    let top = scratch.path().join("top");
    std::fs::create_dir_all(top.join("old/deep")).unwrap();
    std::fs::write(top.join("old/file"), "x").unwrap();
    let disk = Disk::open(&top, DiskOptions::default()).unwrap();
    serve(disk, Dialect::L, async |root| {
        let told = ChangeReader::open(&root, None).await;
        main(&top, root, told).await;
    });
}

#[test]
fn a_disk_tells_what_it_changes_and_what_others_change() {
    disk(async |top, root, mut told| {
        let file = root.open("old/file", OpenFlags::RDWR).await.unwrap();
        file.write(0, b"y").await.unwrap();
        assert_eq!(told.change().await, Change::Write(path("/old/file")));
        std::fs::write(top.join("old/deep/new"), "z").unwrap();
        told.until(Change::Create(path("/old/deep/new"))).await;
        told.until(Change::Write(path("/old/deep/new"))).await;
        std::fs::set_permissions(top.join("old"), std::os::unix::fs::PermissionsExt::from_mode(0o700))
            .unwrap();
        told.until(Change::Attr(path("/old"))).await;
        std::fs::remove_file(top.join("old/file")).unwrap();
        told.until(Change::Remove(path("/old/file"))).await;
        root.walk("old/deep/new").await.unwrap().remove().await.unwrap();
        told.until(Change::Remove(path("/old/deep/new"))).await;
    });
}

#[test]
fn what_is_below_a_directory_that_was_moved_has_its_new_path() {
    disk(async |top, root, mut told| {
        let move_to = |old: &str, new: &str| std::fs::rename(top.join(old), top.join(new)).unwrap();
        move_to("old", "new");
        told.until(Change::Move(path("/old"), path("/new"))).await;
        std::fs::write(top.join("new/deep/a"), "").unwrap();
        told.until(Change::Create(path("/new/deep/a"))).await;
        // Out of the tree, changed there, and back.
        move_to("new", "../away");
        told.until(Change::Remove(path("/new"))).await;
        std::fs::write(top.join("../away/deep/b"), "").unwrap();
        std::fs::create_dir(top.join("../away/dir")).unwrap();
        move_to("../away", "back");
        told.until(Change::Create(path("/back"))).await;
        let mut news = Vec::new();
        for _ in 0..5 {
            news.push(told.change().await);
        }
        for name in ["/back/file", "/back/deep", "/back/dir", "/back/deep/a", "/back/deep/b"] {
            assert!(news.contains(&Change::Create(path(name))), "{news:?}");
        }
        std::fs::write(top.join("back/dir/c"), "").unwrap();
        told.until(Change::Create(path("/back/dir/c"))).await;
        // Onto an empty directory.
        root.mkdir("empty", 0o755, NOGID).await.unwrap();
        move_to("back", "empty");
        told.until(Change::Move(path("/back"), path("/empty"))).await;
        std::fs::remove_file(top.join("empty/dir/c")).unwrap();
        told.until(Change::Remove(path("/empty/dir/c"))).await;
    });
}

#[test]
fn what_is_made_in_directories_as_they_are_made_is_told() {
    disk(async |top, _, mut told| {
        let made = top.to_owned();
        let maker = std::thread::spawn(move || {
            for n in 0..500 {
                let dir = made.join(format!("{}/{n}/b/c", n % 7));
                std::fs::create_dir_all(&dir).unwrap();
                std::fs::write(dir.join("file"), "x").unwrap();
            }
        });
        let mut missing: std::collections::HashSet<_> = (0..500)
            .map(|n| Change::Create(path(&format!("/{}/{n}/b/c/file", n % 7))))
            .map(|c| format!("{c:?}"))
            .collect();
        while !missing.is_empty() {
            missing.remove(&format!("{:?}", told.change().await));
        }
        maker.join().unwrap();
    });
}

#[test]
fn a_storm_of_renames_ends_where_the_tree_ends() {
    disk(async |top, _, mut told| {
        for n in 0..1000 {
            std::fs::rename(
                top.join(if n == 0 { "old".into() } else { (n - 1).to_string() }),
                top.join(n.to_string()),
            )
            .unwrap();
        }
        std::fs::write(top.join("999/deep/end"), "x").unwrap();
        told.until(Change::Create(path("/999/deep/end"))).await;
    });
}

#[test]
fn no_link_is_followed_and_a_root_that_goes_takes_all_with_it() {
    disk(async |top, _, mut told| {
        let outside = top.parent().unwrap().join("outside");
        std::fs::create_dir(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, top.join("link")).unwrap();
        told.until(Change::Create(path("/link"))).await;
        std::fs::write(outside.join("secret"), "").unwrap();
        std::fs::write(top.join("end"), "").unwrap();
        loop {
            match told.change().await {
                Change::Create(at) if *at == *b"/end" => break,
                change => assert!(!format!("{change:?}").contains("secret"), "{change:?}"),
            }
        }
        std::fs::remove_dir_all(top).unwrap();
        let mut left = vec![Change::Remove(path("/end")), Change::Remove(path("/old"))];
        while !left.is_empty() {
            let change = told.change().await;
            left.retain(|other| *other != change);
        }
    });
}

#[test]
fn a_reader_of_a_directory_of_the_disk_has_paths_from_there() {
    disk(async |top, root, _| {
        let part = root.client().attach("", 0, "old").await.unwrap();
        let mut told = ChangeReader::open(&part, None).await;
        std::fs::write(top.join("beside"), "").unwrap();
        std::fs::write(top.join("old/deep/in"), "").unwrap();
        assert_eq!(told.change().await, Change::Create(path("/deep/in")));
        std::fs::rename(top.join("old/deep/in"), top.join("out")).unwrap();
        told.until(Change::Remove(path("/deep/in"))).await;
    });
}
