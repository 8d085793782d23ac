//! What changes, as who reads `#changes` is told (docs/changes.md).

use std::sync::Arc;

use futures_util::FutureExt;
use nine_io::changes::{Change, Cursor, Line, READERS_MAX, Watch};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_proto::{Dialect, Errno, NOGID, NOUID, OpenFlags, SetAttr, Time, TimeSet};
use nine_servers::Ram;

use crate::world::{ALL, connect, errno, list, serve};

fn path(text: &str) -> Box<[u8]> {
    text.as_bytes().into()
}

/// A reader, and the lines that nobody has looked at.
struct Told {
    watch: Watch,
    lines: std::collections::VecDeque<Line>,
}

impl Told {
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
            let mut told = Told::open(&root, None).await;
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
        let mut told = Told::open(&root, None).await;
        let file = root.open("#changes", OpenFlags::READ).await.unwrap();
        assert!(file.read(0, 1000).await.unwrap().starts_with(b"here "));
        // Sent, and then not wanted any more.
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
        let mut told = Told::open(&other.attach("", 0, "").await.unwrap(), None).await;
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        assert_eq!(told.change().await, Change::Create(path("/a")));
        let cursor = told.watch.cursor().unwrap().clone();
        other.abort(std::io::ErrorKind::ConnectionReset.into());
        assert!(told.watch.next().await.is_err());
        root.mkdir("b", 0o755, NOGID).await.unwrap();
        // By a part of the tree, too.
        let mut told = Told::open(&client.attach("", 0, "/b").await.unwrap(), Some(&cursor)).await;
        assert_eq!(told.change().await, Change::Create(path("/")));
        let mut told = Told::open(&root, Some(&cursor)).await;
        assert_eq!(told.change().await, Change::Create(path("/b")));
        // Another life.
        let stranger = Cursor { epoch: "0".into(), next: u64::MAX };
        let mut told = Told::open(&root, Some(&stranger)).await;
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
        let mut told = Told::open(&guest, None).await;
        let client = connect(&env, server, Dialect::L).await;
        let root = client.attach("", NOUID, "").await.unwrap();
        let mut all = Vec::new();
        for _ in 1..READERS_MAX {
            all.push(Watch::open(&root, None).await.unwrap());
        }
        assert_eq!(errno(Watch::open(&root, None).await.map(drop)), Errno::ENFILE);
        root.mkdir("a", 0o755, NOGID).await.unwrap();
        assert_eq!(told.change().await, Change::Create(path("/a")));
    })
    .unwrap();
}
