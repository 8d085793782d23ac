//! Tflush through the mux, in every order (flush(5)), and clients that disconnect with requests in flight.

use std::time::Duration;

use nine_mux::Flags;
use nine_net::Env;
use nine_proto::msg::{Names, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, Tag};
use nine_sim::{Shape, World};

use crate::common::Raw;
use crate::mux::puppet::{Act, Puppet, reply};
use crate::mux::upstreams::{between, deed};
use crate::mux::world::{Muxed, cat, ls, owner, ram, within};

/// Returns a client of a bad server, which holds back the messages selected by `holds`, and flushes them after their
/// answers if `late`.
async fn client(m: &Muxed, late: bool, holds: fn(&Tmsg<'_>) -> bool) -> (Puppet, Raw) {
    let puppet = Puppet::new(m, |_, _| Act::Honest);
    between(m, &puppet).await;
    let mut raw = m.raw().await;
    walk(&mut raw, 2, &[b"bad", b"f"]).await;
    walk(&mut raw, 3, &[b"bad", b"dir"]).await;
    assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
    puppet.does(move |message, _| match message {
        message if holds(message) => Act::Hold,
        Tmsg::Flush { .. } if late => Act::Late,
        _ => Act::Honest,
    });
    (puppet, raw)
}

async fn walk(raw: &mut Raw, newfid: u32, names: &[&[u8]]) {
    let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(newfid), names: Names::Slice(names) };
    let walked = raw.call(1, walk).await;
    assert!(walked.starts_with("Rwalk"), "{walked}");
}

fn read(offset: u64) -> Tmsg<'static> {
    Tmsg::Read { fid: Fid(2), offset, count: 100 }
}

fn flush(oldtag: u16) -> Tmsg<'static> {
    Tmsg::Flush { oldtag: Tag(oldtag) }
}

/// Requests, which create fid 9 if they create one, and their answers.
const ASKED: &[(Tmsg<'static>, &str)] = &[
    (Tmsg::Read { fid: Fid(2), offset: 0, count: 100 }, "Rread"),
    (Tmsg::Walk { fid: Fid(3), newfid: Fid(9), names: Names::Slice(&[b"x"]) }, "Rwalk"),
    (Tmsg::Walk { fid: Fid(3), newfid: Fid(9), names: Names::Slice(&[b"..", b"f"]) }, "Rwalk"),
    (Tmsg::Walk { fid: Fid(1), newfid: Fid(9), names: Names::Slice(&[b"bad", b"f"]) }, "Rwalk"),
    (Tmsg::Lcreate { fid: Fid(3), name: b"new", flags: 2, mode: 0o644, gid: 0 }, "Rlcreate"),
    (Tmsg::Mkdir { dfid: Fid(3), name: b"new", mode: 0o755, gid: 0 }, "Rmkdir"),
    (Tmsg::Getattr { fid: Fid(2), mask: 0x7ff }, "Rgetattr"),
];

/// The messages that the tests hold back.
fn asks(message: &Tmsg<'_>) -> bool {
    matches!(
        message,
        Tmsg::Read { .. }
            | Tmsg::Walk { .. }
            | Tmsg::Lcreate { .. }
            | Tmsg::Mkdir { .. }
            | Tmsg::Getattr { .. }
    )
}

#[test]
fn what_is_flushed_has_not_happened_if_the_server_says_so() {
    for (seed, (message, _)) in ASKED.iter().enumerate() {
        let world = World::new(seed as u64);
        let m = Muxed::new(&world);
        world.run(async move {
            let (puppet, mut raw) = client(&m, false, asks).await;
            raw.send(5, clone(message)).await.unwrap();
            puppet.until(&m.env, |books| !books.held.is_empty()).await;
            assert_eq!(raw.call(6, flush(5)).await, "Rflush tag 6");
            assert_eq!(puppet.count("Tflush"), 1);
            puppet.does(|_, _| Act::Honest);
            // The tag is free, and so is the fid that would have been created.
            assert!(raw.call(5, read(0)).await.starts_with("Rread tag 5"));
            let walk = Tmsg::Walk { fid: Fid(3), newfid: Fid(9), names: Names::Slice(&[b"x"]) };
            assert!(raw.call(5, walk).await.starts_with("Rwalk"));
            m.all_settled().await;
            assert_eq!(puppet.books().fids.len(), 4, "the root, fids 2, 3 and 9");
        });
    }
}

#[test]
fn what_happened_before_its_flush_is_answered_before_its_flush() {
    for (seed, (message, label)) in ASKED.iter().enumerate() {
        let world = World::new(seed as u64);
        let m = Muxed::new(&world);
        world.run(async move {
            let (puppet, mut raw) = client(&m, true, asks).await;
            raw.send(5, clone(message)).await.unwrap();
            puppet.until(&m.env, |books| !books.held.is_empty()).await;
            let first = raw.call(6, flush(5)).await;
            puppet.does(|_, _| Act::Honest);
            let is_made = first.starts_with(label);
            if is_made {
                assert_eq!(raw.reply().await, "Rflush tag 6");
            } else {
                // Several steps: the completed ones are undone.
                assert_eq!(first, "Rflush tag 6");
                assert!(seed == 2 || seed == 3, "{label} is one step");
            }
            m.all_settled().await;
            let made = usize::from(is_made && *label == "Rwalk");
            assert_eq!(puppet.books().fids.len(), 3 + made, "{:#?}", puppet.books().log);
        });
    }
}

fn clone(message: &Tmsg<'static>) -> Tmsg<'static> {
    message.clone()
}

#[test]
fn every_flush_is_answered_in_its_order() {
    for seed in 0..20 {
        let world = World::new(seed);
        let m = Muxed::new(&world);
        world.run(async move {
            let (puppet, mut raw) = client(&m, false, asks).await;
            raw.send(5, read(0)).await.unwrap();
            puppet.until(&m.env, |books| !books.held.is_empty()).await;
            raw.send(6, flush(5)).await.unwrap();
            raw.send(7, flush(5)).await.unwrap();
            raw.send(8, flush(6)).await.unwrap();
            raw.send(9, flush(4444)).await.unwrap();
            let mut came = Vec::new();
            for _ in 0..4 {
                came.push(raw.reply().await);
            }
            let at = |tag| came.iter().position(|reply| *reply == format!("Rflush tag {tag}")).unwrap();
            assert!(at(6) < at(7) && at(6) < at(8), "{came:?}");
            at(9);
            assert_eq!(puppet.count("Tflush"), 1, "one is enough for the server");
        });
    }
}

#[test]
fn an_answer_after_its_rflush_ends_that_server_only() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let (puppet, mut raw) = client(&m, false, asks).await;
        walk(&mut raw, 4, &[b"good", b"f"]).await;
        raw.send(5, read(0)).await.unwrap();
        puppet.until(&m.env, |books| !books.held.is_empty()).await;
        let tag = puppet.books().held[0].tag;
        assert_eq!(raw.call(6, flush(5)).await, "Rflush tag 6");
        puppet.say(&reply(tag, &Rmsg::Read { data: nine_proto::msg::Data::Bytes(b"late") }));
        m.env.sleep_until(m.env.now() + Duration::from_millis(10)).await;
        assert!(raw.call(5, Tmsg::Getattr { fid: Fid(2), mask: 1 }).await.starts_with("Rlerror"));
        assert!(raw.call(5, Tmsg::Getattr { fid: Fid(4), mask: 1 }).await.starts_with("Rgetattr"));
        puppet.does(|_, _| Act::Honest);
        m.env.sleep_until(m.env.now() + nine_mux::RETRY * 2).await;
        walk(&mut raw, 7, &[b"bad", b"f"]).await;
    });
}

/// The server answers nothing: the client gets its Rflush after the timeout, also for a Tclunk.
#[test]
fn a_flush_that_the_server_never_answers_is_answered_all_the_same() {
    for clunk in [false, true] {
        let world = World::new(0);
        let m = Muxed::new(&world);
        world.run(async move {
            let (puppet, mut raw) = client(&m, false, |_| true).await;
            let message = if clunk { Tmsg::Clunk { fid: Fid(2) } } else { read(0) };
            raw.send(5, message).await.unwrap();
            puppet.until(&m.env, |books| !books.held.is_empty()).await;
            raw.send(6, flush(5)).await.unwrap();
            let answers = async {
                if clunk {
                    assert!(raw.reply().await.starts_with("Rlerror tag 5"));
                }
                assert_eq!(raw.reply().await, "Rflush tag 6");
                assert!(raw.call(5, Tmsg::Getattr { fid: Fid(1), mask: 1 }).await.starts_with("Rgetattr"));
            };
            within(&m.env, Duration::from_secs(30), answers).await;
            // Late answers do no harm.
            puppet.does(|_, _| Act::Honest);
            puppet.answer();
            m.all_settled().await;
        });
    }
}

#[test]
fn what_waits_for_room_at_its_server_is_taken_back_at_once() {
    let world = World::new(0);
    let m = Muxed::new(&world);
    world.run(async move {
        let puppet = Puppet::new(&m, |message, _| match message {
            Tmsg::Read { .. } => Act::Hold,
            _ => Act::Honest,
        });
        let mut server = puppet.server(&m, "bad");
        server.options.calls = 4;
        m.space.mount(server, "", &owner(), "/bad", Flags::REPLACE).await.unwrap();
        let mut raw = m.raw().await;
        walk(&mut raw, 2, &[b"bad", b"f"]).await;
        assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 2 }).await.starts_with("Rlopen"));
        for tag in 10..30 {
            raw.send(tag, read(u64::from(tag))).await.unwrap();
        }
        puppet.until(&m.env, |books| !books.held.is_empty()).await;
        m.env.sleep_until(m.env.now() + Duration::from_millis(50)).await;
        let held = puppet.books().held.len();
        assert!(held <= 4, "{held}");
        // The last ones are in the queue.
        for tag in 20..30 {
            assert_eq!(raw.call(tag + 100, flush(tag)).await, format!("Rflush tag {}", tag + 100));
        }
        assert_eq!((puppet.count("Tread"), puppet.count("Tflush")), (held, 0));
        puppet.does(|_, _| Act::Honest);
        puppet.answer();
        for _ in 10..20 {
            assert!(raw.reply().await.starts_with("Rread"));
        }
        assert_eq!(puppet.count("Tread"), 10);
    });
}

/// After a hang-up or a new session of a client, the mux sends a Tflush for each request and a Tclunk for each fid.
#[test]
fn who_leaves_takes_back_all_that_is_under_way() {
    for (seed, version) in [false, true, false, true].into_iter().enumerate() {
        let world = World::new(seed as u64);
        let m = Muxed::new(&world);
        let core = m.core.clone();
        world.run(async move {
            let (puppet, mut raw) =
                client(&m, seed > 1, |m| matches!(m, Tmsg::Read { .. } | Tmsg::Walk { .. })).await;
            for tag in 10..15 {
                raw.send(tag, read(0)).await.unwrap();
            }
            let far = Tmsg::Walk { fid: Fid(1), newfid: Fid(9), names: Names::Slice(&[b"bad", b"f"]) };
            raw.send(20, far).await.unwrap();
            let near = Tmsg::Walk { fid: Fid(3), newfid: Fid(10), names: Names::Slice(&[b"x"]) };
            raw.send(21, near).await.unwrap();
            puppet.until(&m.env, |books| books.held.len() == 7).await;
            if version {
                let hello = Tmsg::Version { msize: 8192, version: b"9P2000.L" };
                let said = within(&m.env, Duration::from_millis(50), raw.call(0xffff, hello)).await;
                assert!(said.starts_with("Rversion"), "{said}");
            } else {
                raw.hang_up();
            }
            puppet.until(&m.env, |books| books.fids.len() == 1).await;
            assert_eq!(puppet.count("Tflush"), 7);
            m.all_settled().await;
            let log = puppet.books().log.clone();
            let last_flush = log.iter().rposition(|line| line.starts_with("Tflush"));
            let clunk_of_file = log.iter().rposition(|line| line.starts_with("Tclunk"));
            assert!(last_flush < clunk_of_file, "{log:#?}");
        });
        world.settle();
        assert!(core.connected() <= 2);
    }
}

/// A client disconnects at each message of a walk, an open, a read, a listing and a create through the mux. The server
/// obeys the Tflush, or has answered before.
#[test]
fn who_leaves_at_any_moment_leaves_no_fid() {
    for late in [false, true] {
        for nth in 0..24 {
            let world = World::new(nth);
            let m = Muxed::new(&world);
            let done = world.run(async move {
                let puppet = Puppet::new(&m, |_, _| Act::Honest);
                between(&m, &puppet).await;
                let (client, root) = m.client([Dialect::L, Dialect::P2000][nth as usize % 2]).await;
                puppet.hang_up();
                m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
                let mut left = nth;
                puppet.does(move |message, _| match message {
                    Tmsg::Flush { .. } if late => Act::Late,
                    Tmsg::Flush { .. } | Tmsg::Clunk { .. } => Act::Honest,
                    _ if left == 0 => Act::Hold,
                    _ => {
                        left -= 1;
                        Act::Honest
                    }
                });
                let done = m.soon(Duration::from_secs(1), deed(&root)).await.is_some();
                puppet.does(move |message, _| match message {
                    Tmsg::Flush { .. } if late => Act::Late,
                    _ => Act::Honest,
                });
                crate::mux::upstreams::leave(&m, client, root).await;
                m.env.sleep_until(m.env.now() + Duration::from_secs(2)).await;
                assert!(puppet.books().fids.len() <= 1, "at message {nth}: {:#?}", puppet.books().log);
                let (_client, root) = m.client(Dialect::L).await;
                assert_eq!(cat(&root, "bad/f").await, Ok("hello".into()));
                done
            });
            assert!(!done || nth > 8, "only {nth} messages");
        }
    }
}

#[test]
fn a_flushed_read_of_a_union_loses_no_entry() {
    for seed in 0..10 {
        let world = World::new(seed);
        let m = Muxed::new(&world);
        world.run(async move {
            let puppet = Puppet::new(&m, |_, _| Act::Honest);
            let other = ram(&[("one", "1"), ("two", "2"), ("f1", "mine")]).await;
            m.space
                .mount(m.far("other", other, Shape::default()), "", &owner(), "/u", Flags::REPLACE)
                .await
                .unwrap();
            m.space.mount(puppet.server(&m, "bad"), "", &owner(), "/u", Flags::AFTER).await.unwrap();
            // The mounted file over an entry must be asked for its attributes, too.
            m.space.bind("/u/dir", "/u/two", Flags::REPLACE).await.unwrap_err();
            m.space.bind("/u/f2", "/u/two", Flags::REPLACE).await.unwrap();
            let mut raw = m.raw().await;
            walk(&mut raw, 2, &[b"u"]).await;
            assert!(raw.call(1, Tmsg::Lopen { fid: Fid(2), flags: 0 }).await.starts_with("Rlopen"));
            let readdir = || Tmsg::Readdir { fid: Fid(2), offset: 0, count: 8000 };
            let listed = raw.call(7, readdir()).await;
            for holds in [
                (|message| matches!(message, Tmsg::Readdir { .. })) as fn(&Tmsg<'_>) -> bool,
                |message| matches!(message, Tmsg::Walk { .. }),
                |message| matches!(message, Tmsg::Lopen { .. }),
            ] {
                puppet.does(move |message, _| if holds(message) { Act::Hold } else { Act::Honest });
                raw.send(5, readdir()).await.unwrap();
                let _ = m
                    .soon(Duration::from_millis(50), puppet.until(&m.env, |books| !books.held.is_empty()))
                    .await;
                let mut answer = raw.call(6, flush(5)).await;
                while !answer.starts_with("Rflush tag 6") {
                    answer = raw.reply().await;
                }
                puppet.does(|_, _| Act::Honest);
                let (_client, root) = m.client(Dialect::P2000).await;
                let mut names = ls(&root, "u").await.unwrap();
                names.sort();
                assert_eq!(names, ["f1", "f2", "one", "two"]);
                assert_eq!(raw.call(7, readdir()).await, listed);
            }
        });
    }
}
