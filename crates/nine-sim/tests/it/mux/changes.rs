//! Changes of a name space, as reported to readers of its `#changes`.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use nine_io::changes::{Change, Cursor, Line, Watch};
use nine_io::client::File;
use nine_io::server::{Answer, FileServer, Req};
use nine_mux::{As, Flags, Wait};
use nine_net::Env;
use nine_proto::{Dialect, NOUID};
use nine_servers::Ram;
use nine_sim::{Shape, World};

use crate::mux::reconnect::{Fate, Place};
use crate::mux::world::{Muxed, fill, owner, put, ram};

/// A server that reports no changes.
struct Dumb(Arc<Ram>);

impl FileServer for Dumb {
    fn serve(&self, req: Req) -> Answer {
        self.0.serve(req)
    }
}

/// A reader, and its unread lines.
struct Told {
    watch: Watch,
    lines: VecDeque<Line>,
}

impl Told {
    async fn open(root: &File, from: Option<&Cursor>) -> Self {
        Self { watch: Watch::open(root, from).await.unwrap(), lines: VecDeque::new() }
    }

    async fn next(&mut self) -> Line {
        while self.lines.is_empty() {
            self.lines.extend(self.watch.next().await.unwrap());
        }
        self.lines.pop_front().unwrap()
    }

    /// Reads until this change is reported. Returns the changes before it.
    async fn until(&mut self, wanted: Change) -> Vec<Change> {
        let mut before = Vec::new();
        loop {
            match self.next().await {
                Line::Change(_, change) if change == wanted => return before,
                Line::Change(_, change) => before.push(change),
                Line::Here(_) => {}
            }
        }
    }
}

fn create(path: &str) -> Change {
    Change::Create(path.as_bytes().into())
}

fn sees(path: &str) -> Change {
    Change::Sees(path.as_bytes().into())
}

fn blind(path: &str) -> Change {
    Change::Blind(path.as_bytes().into())
}

async fn mount(m: &Muxed, name: &str, server: Arc<dyn FileServer>, at: &str) {
    m.space.mount(m.far(name, server, Shape::default()), "", &owner(), at, Flags::REPLACE).await.unwrap();
}

#[test]
fn a_name_space_tells_what_its_servers_tell_wherever_it_shows_them() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let a = ram(&[("x/f", "f")]).await;
        let (b, hidden) = (ram(&[]).await, ram(&[]).await);
        mount(&m, "a", a.clone(), "/n/a").await;
        mount(&m, "b", Arc::new(Dumb(b.clone())), "/n/b").await;
        m.space.bind("/n/a/x", "/bound", Flags::REPLACE).await.unwrap();
        let (_client, root) = m.client(Dialect::L).await;
        let mut told = Told::open(&root, None).await;
        told.until(sees("/n/a")).await;
        let a: Arc<dyn FileServer> = a;
        // A change without the mux.
        fill(&a, &[("x/new", "")]).await;
        let before = told.until(create("/n/a/x/new")).await;
        assert!(before.contains(&create("/bound/new")), "{before:?}");
        // Changes through the mux: of a server that reports changes only its own report is passed on; for other servers
        // the mux reports them.
        put(&root, "n/a/own", "").await;
        put(&root, "n/b/dumb", "text").await;
        put(&root, "top", "").await;
        let before = told.until(create("/top")).await;
        let count = |change: Change| before.iter().filter(|other| **other == change).count();
        assert_eq!((count(create("/n/a/own")), count(create("/n/b/dumb"))), (1, 1), "{before:?}");
        // A part of the name space.
        let part = root.client().attach("u", NOUID, "/n").await.unwrap();
        let mut told_there = Told::open(&part, None).await;
        assert!(matches!(told_there.next().await, Line::Here(_)));
        assert!(matches!(told_there.next().await, Line::Change(_, change) if change == blind("/b")));
        // Mounts.
        mount(&m, "hidden", hidden, "/n/a/x").await;
        let before = told.until(create("/n/a/x")).await;
        assert!(before.contains(&Change::Remove(b"/n/a/x"[..].into())), "{before:?}");
        told.until(sees("/n/a/x")).await;
        fill(&a, &[("x/under", ""), ("after", "")]).await;
        let before = told.until(create("/n/a/after")).await;
        assert!(
            before.contains(&create("/bound/under")) && !before.contains(&create("/n/a/x/under")),
            "{before:?}"
        );
        m.space.unmount(None, "/n/a/x").await.unwrap();
        told.until(create("/n/a/x")).await;
        told_there.until(create("/a/x")).await;
    });
}

#[test]
fn who_has_lost_a_server_misses_nothing_or_is_told() {
    let world = World::new(1);
    let m = Muxed::new(&world);
    world.run(async move {
        let (a, other) = (ram(&[]).await, ram(&[]).await);
        let place = Place::new(&m, &a, Shape::default());
        let server = place.server("a", Wait::Ever);
        m.space.mount(server, "", &owner(), "/a", Flags::REPLACE).await.unwrap();
        mount(&m, "other", other.clone(), "/other").await;
        let (_client, root) = m.client(Dialect::L).await;
        let mut told = Told::open(&root, None).await;
        told.until(sees("/a")).await;
        let (a_files, other_files): (Arc<dyn FileServer>, Arc<dyn FileServer>) = (a.clone(), other.clone());
        // Cut, and reachable again.
        place.down();
        fill(&a_files, &[("meanwhile", "")]).await;
        told.until(blind("/a")).await;
        place.up(&a);
        told.until(create("/a/meanwhile")).await;
        // Silent: changes of the other servers are reported.
        place.become_of(Fate::Silent);
        fill(&other_files, &[("there", "")]).await;
        told.until(create("/other/there")).await;
        place.cut();
        told.until(sees("/a")).await;
        // A restarted server, whose changes in between are unknown.
        let new = ram(&[]).await;
        place.down();
        told.until(blind("/a")).await;
        place.up(&new);
        told.until(sees("/a")).await;
    });
}

#[test]
fn nobody_is_asked_before_somebody_reads_and_a_while_after() {
    let world = World::new(2);
    let m = Muxed::new(&world);
    world.run(async move {
        let a = ram(&[]).await;
        mount(&m, "a", a.clone(), "/a").await;
        let (client, root) = m.client(Dialect::L).await;
        assert_eq!(m.mux.status().jobs_now, 0);
        let mut told = Told::open(&root, None).await;
        told.until(sees("/a")).await;
        assert!(m.mux.status().jobs_now > 0);
        let cursor = told.watch.cursor().unwrap().clone();
        drop(told);
        m.quiet(&client).await;
        put(&root, "a/meanwhile", "").await;
        let mut told = Told::open(&root, Some(&cursor)).await;
        assert_eq!(told.until(create("/a/meanwhile")).await, []);
        drop(told);
        m.env.sleep_until(m.env.now() + Duration::from_secs(300)).await;
        assert_eq!(m.mux.status().jobs_now, 0);
        let mut told = Told::open(&root, Some(&cursor)).await;
        assert!(matches!(told.next().await, Line::Here(_)));
        told.until(sees("/a")).await;
    });
}

#[test]
fn what_each_client_has_as_itself_is_told_to_it_alone() {
    let world = World::new(3);
    let m = Muxed::new(&world);
    world.run(async move {
        let a = ram(&[]).await;
        let server = m.far("a", Arc::new(Dumb(a)), Shape::default());
        m.space.mount(server, "", &As::Client, "/a", Flags::REPLACE).await.unwrap();
        let (client, root) = m.client(Dialect::L).await;
        let other = client.attach("other", NOUID, "").await.unwrap();
        let (mut told, mut told_other) = (Told::open(&root, None).await, Told::open(&other, None).await);
        told.until(sees("/")).await;
        told_other.until(sees("/")).await;
        put(&other, "a/theirs", "").await;
        put(&root, "a/ours", "").await;
        put(&root, "top", "").await;
        let before = told.until(create("/top")).await;
        assert!(before.contains(&create("/a/ours")) && !before.contains(&create("/a/theirs")), "{before:?}");
        assert!(told_other.until(create("/a/theirs")).await.is_empty());
    });
}

#[test]
fn muxes_that_are_mounted_on_each_other_tell_no_change_for_ever() {
    let world = World::new(4);
    let (a, b) = (Muxed::new(&world), Muxed::new(&world));
    world.run(async move {
        a.space.mount(b.as_server("b"), "", &owner(), "/other", Flags::REPLACE).await.unwrap();
        b.space.mount(a.as_server("a"), "", &owner(), "/other", Flags::REPLACE).await.unwrap();
        let (_client, root) = a.client(Dialect::L).await;
        let mut told = Told::open(&root, None).await;
        told.until(sees("/other")).await;
        put(&root, "here", "").await;
        told.until(create("/here")).await;
        let (_client, there) = b.client(Dialect::L).await;
        put(&there, "there", "").await;
        told.until(create("/other/there")).await;
        let quiet = a.soon(Duration::from_secs(100), async {
            loop {
                if let Line::Change(_, Change::Create(path)) = told.next().await {
                    assert!(path.len() < 100, "{}", path.escape_ascii());
                }
            }
        });
        assert_eq!(quiet.await, None::<()>);
        // The change file of the other one.
        let mut told = Told::open(&root.walk("other").await.unwrap(), None).await;
        assert!(matches!(told.next().await, Line::Here(_)));
        put(&there, "own", "").await;
        told.until(create("/own")).await;
    });
}
