//! Tokens: accepted only if right, once, in time, and from the client that received it.

use std::time::Duration;

use nine_net::{Env, Proof};
use nine_proto::Errno;
use nine_proto::msg::Tmsg;
use nine_sim::{Shape, seeds};

use crate::stream::talk::{Data, Talk};
use crate::stream::world::{Site, at_rest, pattern, stage};

const SIZE: usize = 300_000;

fn from(n: u8) -> Shape {
    let proof = Proof::Certificate { name: "u".into(), fingerprint: [n; 32] };
    Shape { proof, ..Shape::default() }
}

/// Checks that the stream of fid 2 delivers the whole file and reports that.
async fn whole(site: &Site, talk: &mut Talk, token: &str, shape: Shape) {
    let mut data = Data::shown(site.ways.connect(shape), token).await;
    let tag = talk.begin_close(2, u64::MAX).await;
    let (all, ended) = data.rest().await;
    assert!(ended.is_ok() && all == pattern(SIZE));
    assert_eq!(talk.verdict(tag).await, Ok((SIZE as u64, 0, String::new())));
}

#[test]
fn one_that_is_not_good_ends_the_connection_without_a_word_and_harms_no_stream() {
    for seed in seeds(8) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        world.run(async move {
            book.put("f", &pattern(SIZE));
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let flipped = |at: usize| {
                let mut wrong = token.clone().into_bytes();
                wrong[at] = if wrong[at] == b'0' { b'1' } else { b'0' };
                String::from_utf8(wrong).unwrap()
            };
            let wrong = [
                flipped(0),
                flipped(31),
                token.to_uppercase(),
                "0".repeat(32),
                "f".repeat(32),
                "g".repeat(32),
                " ".repeat(32),
                "\0".repeat(32),
                format!("{}é", &token[..30]),
                format!("+{}", &token[1..]),
            ];
            for wrong in wrong.iter().filter(|wrong| **wrong != token) {
                assert!(s.data(wrong).await.is_closed().await, "{wrong}");
            }
            for begin in ["9PS1", "9PS1a", &format!("9PS1{}", &token[..31])] {
                let mut data = Data::new(s.ways.connect(Shape::default()));
                data.write(begin.as_bytes()).await.unwrap();
                data.close().await;
                assert!(data.is_closed().await, "{begin}");
            }
            for magic in ["9PS2", "9ps1", "\0PS1", "GET ", "1SP9"] {
                let mut data = Data::new(s.ways.connect(Shape::default()));
                data.write(format!("{magic}{token}").as_bytes()).await.unwrap();
                assert!(data.is_closed().await, "{magic}");
            }
            let mut stranger = Data::shown(s.ways.connect(from(7)), &token).await;
            assert!(stranger.is_closed().await);
            whole(&s, &mut talk, &token, Shape::default()).await;
            assert!(s.data(&token).await.is_closed().await, "it is good once");
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn it_is_good_for_the_certificate_that_the_session_has_shown() {
    let (world, book, site) = stage(0);
    let s = site.clone();
    world.run(async move {
        book.put("f", &pattern(SIZE));
        let mut talk = Talk::new(s.ways.connect(from(1))).await;
        talk.open(2, "f", 0).await;
        let token = talk.stream(2, true, 0).await.unwrap();
        for shape in [from(2), Shape::default(), Shape { proof: Proof::None, ..Shape::default() }] {
            assert!(Data::shown(s.ways.connect(shape), &token).await.is_closed().await);
        }
        whole(&s, &mut talk, &token, from(1)).await;
    });
    at_rest(&world, &site, 2);
}

#[test]
fn it_may_come_byte_by_byte_and_with_data_right_behind() {
    for seed in seeds(8) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        world.run(async move {
            let bytes = pattern(200_000);
            book.put("f", b"");
            let mut talk = s.talk().await;
            talk.open(2, "f", 2).await;
            // The link delivers a few bytes at a time, or everything.
            for piece in [1, 3, 64 * 1024] {
                let token = talk.stream(2, false, 0).await.unwrap();
                let shape = Shape { piece, ..Shape::default() };
                let mut data = Data::new(s.ways.connect(shape));
                let glued = match piece {
                    1 => 500,
                    3 => 5_000,
                    _ => rng.below(bytes.len()),
                };
                let first = [format!("9PS1{token}").as_bytes(), &bytes[..glued]].concat();
                data.write(&first).await.unwrap();
                let all = if piece < 10 { glued } else { bytes.len() };
                data.write(&bytes[glued..all]).await.unwrap();
                data.close().await;
                assert_eq!(talk.close(2, all as u64).await, Ok((all as u64, 0, String::new())));
                assert!(book.get("f")[..all] == bytes[..all]);
            }
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn it_is_void_after_ten_seconds_and_who_shows_none_is_closed() {
    for seed in seeds(4) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        world.run(async move {
            book.put("f", &pattern(SIZE));
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            talk.open(3, "f", 0).await;
            let (old, early) = (talk.stream(2, true, 0).await.unwrap(), s.env.now());
            let waits = talk.begin_close(2, u64::MAX).await;
            s.sleep(Duration::from_millis(9_900)).await;
            assert!(!talk.has_answer(waits).await);
            let young = talk.stream(3, true, 0).await.unwrap();
            s.sleep(Duration::from_millis(200)).await;
            assert!(s.data(&old).await.is_closed().await);
            let (count, errno, _) = talk.verdict(waits).await.unwrap();
            assert_eq!((count, errno), (0, Errno::ETIMEDOUT.0));
            assert!(s.env.now() - early < Duration::from_millis(10_500));
            // The other token is still valid, and the first fid may have another one.
            let mut data = s.data(&young).await;
            let (all, _) = data.rest().await;
            assert_eq!((all.len(), talk.close(3, u64::MAX).await.unwrap().0), (SIZE, SIZE as u64));
            let token = talk.stream(2, true, 0).await.unwrap();
            whole(&s, &mut talk, &token, Shape::default()).await;
            // Nothing at all, the prefix, all but the last byte.
            for (begin, seconds) in
                [("", 30), ("9P", 30), ("9PS1", 10), (&*format!("9PS1{}", &old[..31]), 10)]
            {
                let begun = s.env.now();
                let mut data = Data::new(s.ways.connect(Shape::default()));
                data.write(begin.as_bytes()).await.unwrap();
                assert!(data.is_closed().await);
                let took = s.env.now() - begun;
                assert!(took.as_secs() == seconds, "{begin} took {took:?}");
            }
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn a_door_for_streams_lets_nothing_else_in() {
    let (world, book, site) = stage(0);
    let side = site.for_streams(&world);
    let s = site.clone();
    world.run(async move {
        book.put("f", &pattern(SIZE));
        let mut talk = s.talk().await;
        talk.open(2, "f", 0).await;
        let token = talk.stream(2, true, 0).await.unwrap();
        let mut version = Vec::new();
        let message = Tmsg::Version { msize: 8192, version: b"9P2000.L.s" };
        message.encode(nine_proto::NOTAG, nine_proto::Dialect::L, &mut version);
        version.resize(100, 0);
        for begin in [&version[..], &[0; 36], b"9PS1 but no token, and yet as many bytes"] {
            let mut data = Data::new(side.ways.connect(Shape::default()));
            data.write(begin).await.unwrap();
            assert!(data.is_closed().await);
        }
        for begin in ["", "9PS1", &format!("9PS1{}", &token[..31])] {
            let begun = s.env.now();
            let mut data = Data::new(side.ways.connect(Shape::default()));
            data.write(begin.as_bytes()).await.unwrap();
            assert!(data.is_closed().await);
            assert_eq!((s.env.now() - begun).as_secs(), 10);
        }
        let token = talk.stream(2, true, 0).await.unwrap();
        let mut data = side.data(&token).await;
        let (all, _) = data.rest().await;
        assert_eq!((all.len(), talk.close(2, u64::MAX).await.unwrap().0), (SIZE, SIZE as u64));
    });
    at_rest(&world, &site, 3);
}

#[test]
fn who_asks_for_ten_thousand_streams_and_dials_none_is_told_to_wait_and_others_are_served() {
    const MANY: u32 = 40;
    let (world, book, site) = stage(1);
    let s = site.clone();
    world.run(async move {
        book.put("f", &pattern(SIZE));
        let mut talk = s.talk().await;
        for fid in 0..100 {
            talk.open(100 + fid, "f", 0).await;
        }
        let mut had = 0;
        for n in 0..10_000u32 {
            match talk.stream(100 + n % 100, true, 0).await {
                Ok(_) => had += 1,
                Err(errno) => assert!(
                    errno == Errno::EAGAIN.0 && had == 64 || errno == Errno::EBUSY.0 && n % 100 < 64,
                    "{errno} after {had}"
                ),
            }
        }
        assert_eq!(had, 64);
        // A cancelled offer makes room for another.
        assert_eq!(talk.close(100, 0).await, Ok((0, 0, String::new())));
        assert!(talk.stream(199, true, 0).await.is_ok());
        assert_eq!(talk.stream(198, true, 0).await, Err(Errno::EAGAIN.0));
        // So does a clunked fid.
        talk.clunk(101).await.unwrap();
        assert!(talk.stream(198, true, 0).await.is_ok());
        // Other clients get theirs, as long as there are any.
        let mut others = Vec::new();
        for _ in 1..MANY {
            let mut other = s.talk().await;
            for fid in 0..64 {
                other.open(100 + fid, "f", 0).await;
                other.stream(100 + fid, true, 0).await.expect("they are not all taken");
            }
            others.push(other);
        }
        let mut last = s.talk().await;
        last.open(2, "f", 0).await;
        let token = last.stream(2, true, 0).await.unwrap();
        whole(&s, &mut last, &token, Shape::default()).await;
        // After ten seconds there is room again.
        s.sleep(Duration::from_secs(11)).await;
        for fid in 0..60 {
            talk.stream(110 + fid, true, 0).await.expect("the old ones are void");
        }
        drop(others);
    });
    at_rest(&world, &site, 2);
}

#[test]
fn four_thousand_offers_are_all_there_are() {
    let (world, _, site) = stage(2);
    let s = site.clone();
    world.run(async move {
        let (mut all, mut offers) = (Vec::new(), 0);
        loop {
            let mut talk = s.talk().await;
            talk.open(2, "spare", 0).await;
            let mut had = 0;
            for fid in 0..65 {
                talk.open(100 + fid, "spare", 0).await;
                match talk.stream(100 + fid, true, 0).await {
                    Ok(_) => had += 1,
                    Err(errno) => {
                        assert_eq!(errno, Errno::EAGAIN.0);
                        break;
                    }
                }
            }
            assert!(had <= 64);
            offers += had;
            all.push((talk, had));
            if had == 0 {
                break;
            }
        }
        // Each new client gets some as long as there are any, so more than 64 clients have had offers.
        assert!(offers == 4096 && all.len() > 65, "{offers} of {} clients", all.len());
        let (late, _) = all.last_mut().unwrap();
        assert_eq!(late.stream(2, true, 0).await, Err(Errno::EAGAIN.0));
        // Reads still work.
        assert_eq!(late.read(2, 0, 10).await, Ok(Vec::new()));
        // A disconnected client leaves room.
        drop(all.swap_remove(0));
        s.sleep(Duration::from_millis(1)).await;
        let (mut late, _) = all.swap_remove(0);
        assert!(late.stream(2, true, 0).await.is_ok());
        // Otherwise offers expire.
        s.sleep(Duration::from_secs(11)).await;
        assert!(late.stream(2, true, 0).await.is_ok());
    });
    at_rest(&world, &site, 2);
}
