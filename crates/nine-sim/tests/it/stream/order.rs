//! A stream and other operations on its fid. The server asserts that no read or write of a node starts or ends after
//! the node's clunk.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use nine_io::server::OFFER_TIME;
use nine_net::{Env, Task};
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Errno, Fid, Tag};
use nine_sim::{Shape, SimEnv, seeds};

use crate::stream::book::Plan;
use crate::stream::talk::Data;
use crate::stream::world::{Splices, at_rest, near, pattern, stage};

const SIZE: usize = 3 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Clunk,
    Remove,
    Version,
    Attach,
    Drain,
    Gone,
}

/// The file server's behaviour meanwhile.
#[derive(Clone, Copy, Debug)]
enum Server {
    Quick,
    Late,
    Stuck,
    Deaf,
}

/// Whether the other end of the data connection moves data.
#[derive(Clone, Copy, Debug)]
enum Peer {
    Busy,
    Idle,
    Gone,
}

#[test]
fn a_fid_that_goes_ends_its_stream_and_the_node_is_let_go_of_afterwards() {
    const ENDS: [End; 6] = [End::Clunk, End::Remove, End::Version, End::Attach, End::Drain, End::Gone];
    const SERVERS: [Server; 4] = [Server::Quick, Server::Late, Server::Stuck, Server::Deaf];
    const PEERS: [Peer; 3] = [Peer::Busy, Peer::Idle, Peer::Gone];
    let only: Option<u64> = std::env::var("NINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut case = 0;
    for end in ENDS {
        for server in SERVERS {
            for peer in PEERS {
                for (read, waits) in [(true, false), (true, true), (false, false), (false, true)] {
                    case += 1;
                    if only.is_none_or(|only| only == case) {
                        one(case, end, server, peer, read, waits);
                    }
                }
            }
        }
    }
}

fn one(seed: u64, end: End, server: Server, peer: Peer, read: bool, waits: bool) {
    let what = format!("{end:?} {server:?} {peer:?} read {read} waits {waits}");
    let (world, book, site) = stage(seed);
    let mut rng = world.rng();
    let s = site.clone();
    let b = book.clone();
    world.run(async move {
        b.put("f", &pattern(SIZE));
        b.put("g", b"another");
        let late = Some(Duration::from_millis(2));
        b.plan(match server {
            Server::Quick => Plan::default(),
            Server::Late => Plan { late, ..Plan::default() },
            Server::Stuck => Plan { stuck: true, ..Plan::default() },
            Server::Deaf => Plan { stuck: true, deaf: true, ..Plan::default() },
        });
        let mut talk = s.talk().await;
        talk.open(2, "f", 2).await;
        talk.open(3, "g", 2).await;
        let token = talk.stream(2, read, 0).await.unwrap();
        let window = [5_000, 256 * 1024][rng.below(2)];
        let (shape, splices) = (Shape { window, ..near() }, rng.one_in(2));
        let io = if splices { s.ways.connect_to(shape, Splices::end) } else { s.ways.connect(shape) };
        let mut data = Data::shown(io, &token).await;
        let wait = if waits {
            Some(talk.begin_close(2, if read { u64::MAX } else { SIZE as u64 }).await)
        } else {
            None
        };
        let bytes = pattern(SIZE);
        let some = s.within(Duration::from_millis(5), async {
            if read {
                data.read(1000).await.unwrap();
            } else {
                data.write(&bytes[..500_000]).await.unwrap();
            }
        });
        some.await;
        s.sleep(Duration::from_micros(rng.below(3_000) as u64)).await;
        let env = s.env.clone();
        let (alive, over) = (Rc::new(Cell::new(true)), Rc::new(Cell::new(false)));
        let told = over.clone();
        match peer {
            Peer::Gone => drop(data),
            Peer::Idle => env.spawn(hold(data, alive.clone(), env.clone())),
            Peer::Busy => {
                env.spawn(Box::pin(async move {
                    if read {
                        drop(data.rest().await);
                    } else {
                        for piece in bytes[500_000..].chunks(10_000) {
                            if data.write(piece).await.is_err() {
                                break;
                            }
                        }
                        data.close().await;
                    }
                    over.set(true);
                }));
            }
        }
        s.sleep(Duration::from_micros(rng.below(300) as u64)).await;
        // A transfer through a pipe cannot be cancelled.
        let deaf = matches!(server, Server::Deaf) || matches!(server, Server::Stuck) && splices && !read;
        let tag = match end {
            End::Clunk => Some(talk.begin(Tmsg::Clunk { fid: Fid(2) }).await),
            End::Remove => Some(talk.begin(Tmsg::Remove { fid: Fid(2) }).await),
            End::Version | End::Attach => {
                assert_eq!(talk.version("9P2000.L.s").await, "9P2000.L.s", "{what}");
                if end == End::Attach {
                    // The fid numbers are free at once, even if the old fids are in use.
                    talk.attach(1).await.unwrap();
                    talk.open(2, "g", 2).await;
                    assert!(talk.stream(2, read, 0).await.is_ok(), "{what}");
                }
                None
            }
            End::Drain => {
                s.service.core.drain();
                None
            }
            End::Gone => None,
        };
        if end == End::Gone {
            drop(talk);
            if deaf {
                s.sleep(Duration::from_secs(1)).await;
                b.plan(Plan::default());
            }
        } else if let Some(tag) = tag {
            let limit = Duration::from_millis(700);
            if deaf {
                s.sleep(limit).await;
                // The file is in use, and this cannot be ended.
                assert!(b.under_way() == 0 || !talk.has_answer(tag).await, "{what}: the file is in use");
                // Others are not delayed.
                s.within(limit, talk.clunk(3)).await.expect(&what).unwrap();
                b.plan(Plan::default());
            }
            let answer = s.within(limit, talk.answer_to(tag)).await;
            assert!(answer.is_some(), "{what}: the {end:?} is not answered, {} under way", b.under_way());
            if let Some(wait) = wait {
                let verdict = s.within(limit, talk.verdict(wait)).await.expect(&what);
                assert!(verdict == Err(Errno::EBADF.0) || verdict.is_ok(), "{what}: {verdict:?}");
            }
            assert_eq!(talk.close(2, 0).await, Err(Errno::EBADF.0));
            assert_eq!(b.has("f"), end != End::Remove);
        } else {
            s.sleep(Duration::from_secs(1)).await;
            b.plan(Plan::default());
        }
        s.sleep(Duration::from_secs(1)).await;
        assert_eq!(b.under_way(), 0, "{what}");
        assert!(told.get() || !matches!(peer, Peer::Busy), "{what}: the data connection is still there");
        alive.set(false);
        s.sleep(Duration::from_secs(1)).await;
    });
    if end == End::Drain {
        // A core that has drained accepts no connections.
        world.settle();
        let core = &site.service.core;
        assert_eq!((world.tasks(), core.connected(), core.borrowed()), (2, 0, 0));
    } else {
        at_rest(&world, &site, 2);
    }
    book.assert_clean(0);
}

/// Keeps a connection open without using it.
fn hold(data: Data, alive: Rc<Cell<bool>>, env: SimEnv) -> Task {
    Box::pin(async move {
        while alive.get() {
            env.sleep_until(env.now() + Duration::from_millis(100)).await;
        }
        drop(data);
    })
}

#[test]
fn a_flush_takes_back_what_waits_and_leaves_the_stream() {
    for seed in seeds(30) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            let read = rng.one_in(2);
            b.put("f", if read { &bytes } else { b"" });
            let mut talk = s.talk().await;
            talk.open(2, "f", 2).await;
            // A Tstream's flush: the Tstream is answered first.
            let stream = talk.begin(Tmsg::Stream { fid: Fid(2), isread: read.into(), offset: 0 }).await;
            let flush = talk.begin(Tmsg::Flush { oldtag: Tag(stream) }).await;
            let offer = talk.answer_to(stream).await.unwrap();
            talk.answer_to(flush).await.unwrap();
            let token = std::str::from_utf8(&offer[offer.len() - 32..]).unwrap().to_owned();
            // A Tsclose's flush, before there is a connection and after.
            let tag = talk.begin_close(2, u64::MAX).await;
            talk.flush(tag).await;
            assert!(!talk.has_answer(tag).await);
            b.plan(Plan { stuck: true, ..Plan::default() });
            let mut data = s.data(&token).await;
            let mut sent = 0;
            if !read {
                sent = 100_000;
                data.write(&bytes[..sent]).await.unwrap();
            }
            s.sleep(Duration::from_millis(1)).await;
            // Its count is cancelled, too.
            let all = talk.begin_close(2, SIZE as u64).await;
            let some = talk.begin_close(2, 1 + rng.below(200_000) as u64).await;
            let few = talk.begin_close(2, 1 + rng.below(200) as u64).await;
            talk.flush(few).await;
            talk.flush(some).await;
            if rng.one_in(2) {
                talk.flush(all).await;
                assert!(!talk.has_answer(all).await);
            }
            assert!(!talk.has_answer(few).await && !talk.has_answer(some).await);
            b.plan(Plan { late: Some(Duration::from_millis(1)), ..Plan::default() });
            if read {
                let (come, _) = data.rest().await;
                assert!(come == bytes, "{} of {SIZE} bytes have come", come.len());
            } else {
                data.write(&bytes[sent..]).await.expect("the stream goes on");
                data.close().await;
            }
            let last = talk.close(2, SIZE as u64).await;
            if talk.has_answer(all).await {
                assert_eq!(talk.verdict(all).await, Ok((SIZE as u64, 0, String::new())));
                // The verdict was delivered before.
                assert!(last == Err(Errno::EINVAL.0) || last == Ok((SIZE as u64, 0, String::new())));
            } else {
                assert_eq!(last, Ok((SIZE as u64, 0, String::new())));
            }
            assert!(b.get("f") == bytes);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// A Tsclose stops a stream before its in-flight data, and is cancelled before that takes effect.
#[test]
fn what_a_flushed_tsclose_has_said_stops_nothing() {
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", &bytes);
            let late = [None, Some(Duration::from_millis(1))][rng.below(2)];
            b.plan(Plan { late, short: [0, 300_000][rng.below(2)], ..Plan::default() });
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::shown(s.ways.connect(Shape { window: 10_000, ..near() }), &token).await;
            let mut come = data.read(1000).await.unwrap();
            s.sleep(Duration::from_micros(rng.below(5_000) as u64)).await;
            for _ in 0..3 {
                let some = 100_000 + rng.below(SIZE) as u64;
                let tag = talk.begin_close(2, some).await;
                s.sleep(Duration::from_micros(rng.below(2_000) as u64)).await;
                come.extend_from_slice(&data.read(1000).await.unwrap());
                talk.flush(tag).await;
                assert!(!talk.has_answer(tag).await, "nobody has taken so much");
            }
            let tag = talk.begin_close(2, u64::MAX).await;
            come.extend_from_slice(&data.rest().await.0);
            assert!(come == bytes, "{} of {SIZE} bytes have come", come.len());
            assert_eq!(talk.verdict(tag).await, Ok((SIZE as u64, 0, String::new())));
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn a_walk_onto_the_fid_itself_leaves_its_stream_to_its_end() {
    for seed in seeds(20) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", &bytes);
            b.plan(Plan { late: [None, Some(Duration::from_millis(1))][rng.below(2)], ..Plan::default() });
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = s.data(&token).await;
            data.read(100).await.unwrap();
            let onto = Tmsg::Walk { fid: Fid(2), newfid: Fid(2), names: Names::Slice(&[]) };
            talk.done(onto).await.unwrap();
            // It is not open any more, so no other stream can begin. A clunk ends the present one.
            assert!(talk.stream(2, true, 0).await.is_err());
            if rng.one_in(2) {
                let (rest, _) = data.rest().await;
                assert!(rest.len() + 100 >= SIZE - 100_000);
                assert_eq!(talk.close(2, u64::MAX).await, Ok((SIZE as u64, 0, String::new())));
            }
            s.within(Duration::from_secs(1), talk.clunk(2)).await.expect("it is answered").unwrap();
        });
        at_rest(&world, &site, 2);
        book.assert_clean(1);
    }
}

/// Random order of a client's operations on a few fids, and of the server's behaviour.
#[test]
fn nothing_a_client_does_with_its_streams_leaves_anything_behind() {
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            b.put("f", &pattern(500_000));
            b.put("g", b"");
            let mut talk = s.talk().await;
            let mut tokens: Vec<String> = Vec::new();
            let mut data: Vec<Data> = Vec::new();
            let mut tags = Vec::new();
            for _ in 0..150 {
                let fid = 2 + rng.below(4) as u32;
                match rng.below(16) {
                    0 | 1 => {
                        let name: &[&[u8]] = &[[&b"f"[..], b"g"][rng.below(2)]];
                        let (newfid, names) = (Fid(fid), Names::Slice(name));
                        tags.push(talk.begin(Tmsg::Walk { fid: Fid(1), newfid, names }).await);
                        tags.push(talk.begin(Tmsg::Lopen { fid: newfid, flags: 2 }).await);
                    }
                    2..=4 => {
                        if let Ok(token) = talk.stream(fid, rng.one_in(2), rng.below(600_000) as u64).await {
                            tokens.push(token);
                        }
                    }
                    5 | 6 if !tokens.is_empty() => {
                        let token = tokens.swap_remove(rng.below(tokens.len()));
                        let window = [1_000, 256 * 1024][rng.below(2)];
                        let (shape, ways) = (Shape { window, ..near() }, &s.ways);
                        let splices = rng.one_in(2);
                        let io =
                            if splices { ways.connect_to(shape, Splices::end) } else { ways.connect(shape) };
                        data.push(Data::shown(io, &token).await);
                    }
                    7 | 8 if !data.is_empty() => {
                        let at = rng.below(data.len());
                        let some = vec![1; rng.below(100_000)];
                        let (us, io) = (Duration::from_micros(rng.below(2000) as u64), &mut data[at]);
                        if rng.one_in(2) {
                            s.within(us, async { drop(io.write(&some).await) }).await;
                        } else {
                            s.within(us, async { drop(io.read(100_000).await) }).await;
                        }
                    }
                    9 if !data.is_empty() => drop(data.swap_remove(rng.below(data.len()))),
                    10 => {
                        let count = [0, 1, 1000, 300_000, u64::MAX][rng.below(5)];
                        tags.push(talk.begin_close(fid, count).await);
                    }
                    11 if !tags.is_empty() => {
                        let old = tags[rng.below(tags.len())];
                        tags.push(talk.begin(Tmsg::Flush { oldtag: Tag(old) }).await);
                    }
                    12 => tags.push(talk.begin(Tmsg::Clunk { fid: Fid(fid) }).await),
                    13 => {
                        let late = [None, Some(Duration::from_millis(2))][rng.below(2)];
                        b.plan(Plan { late, stuck: rng.one_in(3), ..Plan::default() });
                    }
                    14 if rng.one_in(10) => {
                        assert_eq!(talk.version("9P2000.L.s").await, "9P2000.L.s");
                        talk.attach(1).await.unwrap();
                    }
                    _ => s.sleep(Duration::from_micros(rng.below(1000) as u64)).await,
                }
            }
            // Everything is answered once nothing is stuck. A stream that waits for its peer ends with its fid.
            b.plan(Plan::default());
            for fid in 2..6 {
                let answer = s.within(OFFER_TIME + Duration::from_secs(1), talk.clunk(fid)).await;
                assert!(answer.is_some(), "the clunk of {fid} is not answered");
            }
            // A waiting Tsclose is answered after those that were refused because of it. If it was sent before the
            // offer was made, it may be answered only when the offer expires.
            s.sleep(OFFER_TIME).await;
            assert_eq!(b.under_way(), 0);
            assert_eq!(s.service.core.clients().iter().map(|client| client.fids).max(), Some(1));
        });
        at_rest(&world, &site, 2);
        // Walks onto other fids are refused. Only opens replace nodes.
        book.assert_clean(0);
    }
}
