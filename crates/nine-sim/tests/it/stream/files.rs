//! Files that change, end, fail, or are not files; and the answers to Tsclose.

use std::time::Duration;

use nine_io::client::{Direction, Stream};
use nine_net::Proof;
use nine_proto::msg::{OnlyIds, Tmsg};
use nine_proto::{Dialect, Errno, Fid, NOUID, OpenFlags};
use nine_sim::{Shape, seeds};

use crate::stream::book::Plan;
use crate::stream::talk::{Data, Talk};
use crate::stream::world::{Holds, Splices, at_rest, near, pattern, stage};

const SIZE: usize = 400_000;

fn well(count: usize) -> Result<(u64, u32, String), u32> {
    Ok((count as u64, 0, String::new()))
}

fn late() -> Plan {
    Plan { late: Some(Duration::from_millis(2)), ..Plan::default() }
}

#[test]
fn what_can_have_no_stream_is_refused_with_its_reason() {
    let (world, book, site) = stage(0);
    let s = site.clone();
    let b = book.clone();
    world.run(async move {
        b.put("f", &pattern(SIZE));
        let mut talk = s.talk().await;
        let n_uname = OnlyIds(NOUID);
        talk.done(Tmsg::Auth { afid: Fid(50), uname: b"u", aname: b"", n_uname }).await.unwrap();
        talk.open(2, "f", 0).await;
        talk.open(3, "f", 1).await;
        talk.walk(4, "f").await;
        talk.open(5, "", 0).await;
        talk.open(6, "f", 2).await;
        talk.done(Tmsg::Xattrwalk { fid: Fid(4), newfid: Fid(7), name: b"x" }).await.unwrap();
        talk.walk(8, "f").await;
        let create = Tmsg::Xattrcreate { fid: Fid(8), name: b"x", size: 5, flags: 0 };
        talk.done(create).await.unwrap();
        for (fid, read, errno) in [
            (5, true, Errno::EISDIR),
            (5, false, Errno::EISDIR),
            (1, true, Errno::EISDIR),
            (4, true, Errno::EBADF),
            (4, false, Errno::EBADF),
            (2, false, Errno::EBADF),
            (3, true, Errno::EBADF),
            (50, true, Errno::EBADF),
            (50, false, Errno::EBADF),
            (7, true, Errno::EBADF),
            (8, false, Errno::EBADF),
            (99, true, Errno::EBADF),
            (u32::MAX, true, Errno::EBADF),
        ] {
            assert_eq!(talk.stream(fid, read, 0).await, Err(errno.0), "fid {fid} read {read}");
            let none = talk.close(fid, u64::MAX).await.unwrap_err();
            assert!(none == Errno::EINVAL.0 || none == Errno::EBADF.0);
        }
        for isread in [2, 3, 255] {
            let asked = talk.done(Tmsg::Stream { fid: Fid(6), isread, offset: 0 }).await;
            assert_eq!(asked, Err(Errno::EINVAL.0));
        }
        // One at a time, in either direction.
        let token = talk.stream(6, true, 0).await.unwrap();
        assert_eq!(talk.stream(6, true, 0).await, Err(Errno::EBUSY.0));
        assert_eq!(talk.stream(6, false, 0).await, Err(Errno::EBUSY.0));
        let mut data = s.data(&token).await;
        assert_eq!(talk.stream(6, false, 0).await, Err(Errno::EBUSY.0));
        let (all, _) = data.rest().await;
        assert_eq!((all.len(), talk.close(6, u64::MAX).await), (SIZE, well(SIZE)));
        assert_eq!(talk.close(6, u64::MAX).await, Err(Errno::EINVAL.0));
        // The verdict is available until another stream begins.
        let token = talk.stream(6, true, 0).await.unwrap();
        drop(s.data(&token).await.rest().await);
        s.sleep(Duration::from_secs(60)).await;
        assert_eq!(talk.close(6, 0).await, well(SIZE));
        let token = talk.stream(6, true, 0).await.unwrap();
        drop(s.data(&token).await.rest().await);
        let token = talk.stream(6, false, 0).await.unwrap();
        assert_eq!(talk.close(6, 0).await, well(0));
        assert!(s.data(&token).await.is_closed().await);
    });
    at_rest(&world, &site, 2);
    book.assert_clean(0);
}

#[test]
fn who_may_only_read_has_streams_to_read() {
    let world = nine_sim::World::new(0);
    let book = crate::stream::book::Book::new(&world);
    let gate = nine_io::server::Gate { read_only: true, ..Default::default() };
    let service = nine_io::server::Service::new(book.clone(), gate, nine_io::server::Core::default());
    let site = crate::stream::world::Site::offering(&world, service, "tcp!*!564");
    world.run(async move {
        book.put("f", &pattern(SIZE));
        let mut talk = site.talk().await;
        talk.walk(3, "f").await;
        assert_eq!(talk.done(Tmsg::Lopen { fid: Fid(3), flags: 2 }).await, Err(Errno::EROFS.0));
        talk.open(2, "f", 0).await;
        assert!(matches!(talk.stream(2, false, 0).await, Err(errno) if errno == Errno::EBADF.0));
        let token = talk.stream(2, true, 0).await.unwrap();
        let (all, _) = site.data(&token).await.rest().await;
        assert_eq!(all.len(), SIZE);
    });
}

#[test]
fn a_dialect_without_streams_has_none() {
    for dialect in [Dialect::L, Dialect::LS] {
        let (world, book, site) = stage(0);
        let s = site.clone();
        world.run(async move {
            book.put("f", &pattern(SIZE));
            let mut talk = Talk::speaking(s.ways.connect(near()), dialect).await;
            talk.open(2, "f", 0).await;
            let asked = talk.stream(2, true, 0).await;
            let closed = talk.close(2, u64::MAX).await;
            if dialect.streaming {
                assert!(asked.is_ok());
                // It is offered and not dialled. After ten seconds the verdict is a timeout.
                assert_eq!(closed.unwrap().1, Errno::ETIMEDOUT.0);
            } else {
                assert_eq!((asked, closed), (Err(Errno::EOPNOTSUPP.0), Err(Errno::EOPNOTSUPP.0)));
            }
            // A token before the version is not a version, and vice versa.
            let mut data = Data::new(s.ways.connect(Shape { proof: Proof::None, ..near() }));
            data.write(b"9PS1").await.unwrap();
            let version = Tmsg::Version { msize: 8192, version: b"9P2000.L.s" };
            let mut bytes = Vec::new();
            version.encode(nine_proto::NOTAG, Dialect::L, &mut bytes);
            bytes.resize(40, 0);
            data.write(&bytes).await.unwrap();
            assert!(data.is_closed().await);
        });
        at_rest(&world, &site, 2);
    }
}

/// The count of a reader's Tsclose, and when it is sent.
#[test]
fn a_reader_that_stops_early_is_told_exactly_what_was_sent() {
    for seed in seeds(120) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let size = [5_000, SIZE, 5 << 20][rng.below(3)];
            let bytes = pattern(size);
            b.put("f", &bytes);
            b.plan([Plan::default(), late(), Plan { short: 50_000, ..late() }][rng.below(3)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let shape = Shape { window: [2_000, 256 * 1024][rng.below(2)], ..near() };
            let holds = rng.one_in(3);
            let end = if holds { s.ways.connect_to(shape, Holds::end) } else { s.ways.connect(shape) };
            let mut data = Data::shown(end, &token).await;
            let mut come = Vec::new();
            for _ in 0..rng.below(4) {
                come.extend_from_slice(&data.read(1 + rng.below(100_000)).await.unwrap());
            }
            s.sleep(Duration::from_micros(rng.below(4000) as u64)).await;
            let stop = [0, 1, come.len(), rng.below(size), size, 10 * size][rng.below(6)] as u64;
            let tag = talk.begin_close(2, stop).await;
            let reads = rng.one_in(3);
            if !reads && stop <= come.len() as u64 {
                // So many are sent, even if they are not read.
                s.within(Duration::from_secs(1), async {
                    while !talk.has_answer(tag).await {
                        s.sleep(Duration::from_millis(1)).await;
                    }
                })
                .await
                .expect("so many were sent");
            }
            let (rest, ended) = data.rest().await;
            assert!(ended.is_ok());
            come.extend_from_slice(&rest);
            let (count, errno, _) = talk.verdict(tag).await.unwrap();
            assert!(errno == 0 && count >= stop.min(size as u64) && bytes.starts_with(&come));
            // If the connection buffers bytes, those after a stop may be lost. The file is never short.
            let lost = holds && stop < count;
            assert!(come.len() as u64 == count || lost, "{} of {count} for {stop} of {size}", come.len());
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// A Tsclose for the whole file is not answered early because another one asked for less.
#[test]
fn each_of_two_tscloses_gets_the_answer_to_what_it_asked() {
    for seed in seeds(20) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", &bytes);
            b.plan([Plan::default(), late()][rng.below(2)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::shown(s.ways.connect(Shape { window: 2_000, ..near() }), &token).await;
            let stop = 5_000 + rng.below(100_000) as u64;
            let all = talk.begin_close(2, u64::MAX).await;
            let some = talk.begin_close(2, stop).await;
            let more = talk.begin_close(2, 2 * stop).await;
            let (come, _) = data.rest().await;
            let (count, errno, _) = talk.verdict(some).await.unwrap();
            assert!((count, errno) == (come.len() as u64, 0) && count >= stop);
            let told = (Errno::ECANCELED.0, come.len() as u64);
            for (tag, wanted) in [(all, u64::MAX), (more, 2 * stop)] {
                let (count, errno, _) = talk.verdict(tag).await.unwrap();
                assert_eq!((errno, count), if count < wanted { told } else { (0, told.1) });
            }
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn a_writer_that_counts_wrong_is_told_what_is_stored() {
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", b"");
            b.plan([Plan::default(), late(), Plan { short: 50_000, ..late() }][rng.below(3)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 1).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let end =
                if rng.one_in(2) { s.ways.connect(near()) } else { s.ways.connect_to(near(), Splices::end) };
            let mut data = Data::shown(end, &token).await;
            let sent = [0, 1, 100, 100_000, SIZE][rng.below(5)];
            let said = [0, sent as u64 / 2, sent as u64, sent as u64 + 1, u64::MAX][rng.below(5)];
            let early = rng.one_in(2);
            let mut tag = None;
            if early {
                tag = Some(talk.begin_close(2, said).await);
            }
            // A client that stops before everything has arrived closes the connection.
            let taken = data.write(&bytes[..sent]).await.is_ok();
            if rng.one_in(2) || said > sent as u64 || !taken {
                data.close().await;
            }
            let tag = match tag {
                Some(tag) => tag,
                None => talk.begin_close(2, said).await,
            };
            let (count, errno, _) =
                s.within(Duration::from_secs(2), talk.verdict(tag)).await.expect("a verdict").unwrap();
            let stored = count as usize;
            assert!(stored <= sent && b.get("f")[..stored] == bytes[..stored]);
            match errno {
                0 => assert!(count >= said),
                _ => assert!(errno == Errno::EPIPE.0 && stored == sent && said > count),
            }
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn what_comes_in_drops_is_stored_soon() {
    for seed in seeds(10) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            b.put("f", b"");
            b.plan([Plan::default(), late()][rng.below(2)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 1).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let end =
                if rng.one_in(2) { s.ways.connect(near()) } else { s.ways.connect_to(near(), Splices::end) };
            let mut data = Data::shown(end, &token).await;
            let bytes = pattern(200_000);
            let mut sent = 0;
            for _ in 0..10 {
                let n = 1 + rng.below(20_000);
                data.write(&bytes[sent..sent + n]).await.unwrap();
                sent += n;
                s.sleep(Duration::from_millis(450)).await;
                assert!(b.get("f") == bytes[..sent], "it has lain here for 450 ms");
            }
            // Idle time does not count.
            data.close().await;
            assert_eq!(talk.close(2, sent as u64).await, well(sent));
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn a_file_that_changes_under_its_stream_is_read_as_it_is_and_the_count_is_right() {
    for seed in seeds(40) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(2 * SIZE);
            b.put("f", &bytes[..SIZE]);
            b.plan([Plan::default(), late(), Plan { short: 10_000, ..late() }][rng.below(3)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let window = [2_000, 256 * 1024][rng.below(2)];
            let mut data = Data::shown(s.ways.connect(Shape { window, ..near() }), &token).await;
            let mut come = data.read(10_000).await.unwrap();
            let to = [0, 1, SIZE / 2, SIZE - 1, SIZE + 1, 2 * SIZE][rng.below(6)];
            if rng.one_in(4) {
                // It is removed, but remains for clients that have it open.
                talk.open(3, "f", 0).await;
                talk.done(Tmsg::Remove { fid: Fid(3) }).await.unwrap();
            } else {
                b.change("f", |content| *content = bytes[..to].to_vec());
            }
            let (rest, ended) = data.rest().await;
            come.extend_from_slice(&rest);
            assert!(ended.is_ok() && bytes.starts_with(&come));
            assert_eq!(talk.close(2, u64::MAX).await, well(come.len()));
            assert!(come.len() <= SIZE.max(to));
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn a_file_that_is_cut_or_grows_while_it_is_written_has_what_was_written_since() {
    for seed in seeds(20) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", &vec![7; 1000]);
            b.plan([Plan::default(), late()][rng.below(2)].clone());
            let mut talk = s.talk().await;
            talk.open(2, "f", 1).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let mut data = s.data(&token).await;
            data.write(&bytes[..SIZE / 2]).await.unwrap();
            let to = [0, 10, 2 * SIZE][rng.below(3)];
            s.sleep(Duration::from_secs(1)).await;
            b.change("f", |content| content.resize(to, 9));
            data.write(&bytes[SIZE / 2..]).await.unwrap();
            data.close().await;
            assert_eq!(talk.close(2, SIZE as u64).await, well(SIZE));
            let now = b.get("f");
            assert!(now.len() == SIZE.max(to) && now[SIZE / 2..SIZE] == bytes[SIZE / 2..]);
        });
        at_rest(&world, &site, 2);
    }
}

#[test]
fn a_disk_that_fills_up_or_breaks_gives_its_errno_and_the_count() {
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            let at = [0, 1, 4096, 100_000, SIZE - 1][rng.below(5)];
            let plan = [Plan::default(), late(), Plan { short: 30_000, ..late() }][rng.below(3)].clone();
            let mut talk = s.talk().await;
            let early = rng.one_in(2);
            if rng.one_in(2) {
                b.put("f", &bytes);
                b.plan(Plan { bad_from: Some(at as u64), ..plan });
                talk.open(2, "f", 0).await;
                let token = talk.stream(2, true, 0).await.unwrap();
                let mut data = s.data(&token).await;
                let mut tag = 0;
                if early {
                    tag = talk.begin_close(2, u64::MAX).await;
                }
                let (come, _) = data.rest().await;
                if !early {
                    tag = talk.begin_close(2, u64::MAX).await;
                }
                let (count, errno, text) = talk.verdict(tag).await.unwrap();
                assert!(come == bytes[..at], "{} of {at} bytes", come.len());
                assert_eq!((count, errno, &*text), (at as u64, Errno::EIO.0, "Input/output error"));
            } else {
                b.put("f", b"");
                b.plan(Plan { room: Some(at as u64), ..plan });
                talk.open(2, "f", 1).await;
                let token = talk.stream(2, false, 0).await.unwrap();
                let shape = Shape { window: [2_000, 1 << 20][rng.below(2)], ..near() };
                let splices = rng.one_in(2);
                let end =
                    if splices { s.ways.connect_to(shape, Splices::end) } else { s.ways.connect(shape) };
                let mut data = Data::shown(end, &token).await;
                let mut tag = 0;
                if early {
                    tag = talk.begin_close(2, SIZE as u64).await;
                }
                // The server may stop accepting.
                let work = async {
                    for piece in bytes.chunks(10_000) {
                        if data.write(piece).await.is_err() {
                            return;
                        }
                    }
                    data.close().await;
                };
                s.within(Duration::from_secs(1), work).await.expect("nobody waits for ever");
                if !early {
                    tag = talk.begin_close(2, SIZE as u64).await;
                }
                let (count, errno, text) = talk.verdict(tag).await.unwrap();
                assert!(b.get("f")[..at] == bytes[..at]);
                assert_eq!((count, errno, &*text), (at as u64, Errno::ENOSPC.0, "No space left on device"));
            }
            // With room again, the same fid can have another stream.
            b.plan(Plan::default());
            assert!(talk.stream(2, true, 0).await.is_ok() || talk.stream(2, false, 0).await.is_ok());
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn no_offset_is_too_far_for_the_server() {
    let (world, book, site) = stage(0);
    let s = site.clone();
    let b = book.clone();
    world.run(async move {
        b.put("f", &pattern(1000));
        b.plan(Plan { room: Some(2000), ..Plan::default() });
        let mut talk = s.talk().await;
        for offset in [999, 1000, 1001, 1 << 40, u64::MAX - 300_000, u64::MAX - 1, u64::MAX] {
            for read in [true, false] {
                talk.open(2, "f", 2).await;
                let token = match talk.stream(2, read, offset).await {
                    Ok(token) => token,
                    Err(errno) => {
                        assert!(errno == Errno::EFBIG.0 && offset > i64::MAX as u64);
                        talk.clunk(2).await.unwrap();
                        continue;
                    }
                };
                let mut data = s.data(&token).await;
                if read {
                    let (come, _) = data.rest().await;
                    assert_eq!(come.len(), usize::from(offset == 999));
                    let (count, errno, _) = talk.close(2, u64::MAX).await.unwrap();
                    assert_eq!(count, come.len() as u64);
                    assert_eq!(errno, 0);
                } else {
                    // More than there is room for.
                    let _ = data.write(&pattern(600_000)).await;
                    data.close().await;
                    let (count, errno, _) = talk.close(2, 600_000).await.unwrap();
                    let room = 2000u64.saturating_sub(offset);
                    assert!(count == room && errno != 0, "{offset}: {count} {errno}");
                    b.change("f", |content| content.truncate(1000));
                }
                talk.clunk(2).await.unwrap();
            }
        }
        // A server that accepts everything: the offset still has a maximum.
        b.plan(Plan { void: true, ..Plan::default() });
        for room in [0, 1, 100_000, 262_144, 300_000, 600_000] {
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, false, i64::MAX as u64 - room).await.unwrap();
            let mut data = s.data(&token).await;
            let _ = data.write(&pattern(1_000_000)).await;
            data.close().await;
            let (count, errno, _) = talk.close(2, 1_000_000).await.unwrap();
            assert!(errno == 0 || count <= room && errno == Errno::EFBIG.0, "{count} of {room}, {errno}");
            talk.clunk(2).await.unwrap();
        }
    });
    at_rest(&world, &site, 2);
    book.assert_clean(0);
}

#[test]
fn an_append_only_file_is_written_in_order() {
    for seed in seeds(10) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("log", b"before ");
            b.plan(Plan { appends: true, short: [0, 10_000][rng.below(2)], ..late() });
            let mut talk = s.talk().await;
            talk.open(2, "log", 1).await;
            b.most();
            let token = talk.stream(2, false, 0).await.unwrap();
            let mut data = s.data(&token).await;
            for piece in bytes.chunks(1 + rng.below(100_000)) {
                data.write(piece).await.unwrap();
            }
            data.close().await;
            assert_eq!(talk.close(2, SIZE as u64).await, well(SIZE));
            assert!(b.get("log") == [b"before ", &bytes[..]].concat());
            assert!(b.most() <= 256 * 1024, "one write at a time");
        });
        at_rest(&world, &site, 2);
    }
}

/// Opened for appending, with a server that obeys it; and by a client, which does not use a stream for it.
#[test]
fn what_is_opened_to_be_appended_to_is_written_in_order() {
    for seed in seeds(4) {
        let world = nine_sim::World::new(seed);
        let ram = std::sync::Arc::new(nine_servers::Ram::new(64 << 20));
        let site = crate::stream::world::Site::new(&world, ram);
        let s = site.clone();
        world.run(async move {
            let bytes = pattern(9 << 20);
            let (_client, root) = s.client(near(), s.options()).await;
            let file = root.create("log", OpenFlags::WRITE, 0o644, nine_proto::NOGID).await.unwrap();
            file.write_all_at(0, b"before ").await.unwrap();
            let mut talk = s.talk().await;
            talk.open(2, "log", 1 | OpenFlags::APPEND.0).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let mut data = s.data(&token).await;
            data.write(&bytes[..SIZE]).await.unwrap();
            data.close().await;
            assert_eq!(talk.close(2, SIZE as u64).await, well(SIZE));
            let file = root.open("log", OpenFlags(1 | OpenFlags::APPEND.0)).await.unwrap();
            let mut stream = Stream::begin(&file, 0, bytes.len() as u64, Direction::Write);
            for piece in bytes.chunks(70_000) {
                stream.push(piece.to_vec().into()).await.unwrap();
            }
            assert_eq!(stream.sclose().await.unwrap(), bytes.len() as u64);
            assert!(s.offers().is_empty(), "its pieces must not be cut");
            let file = root.open("log", OpenFlags::READ).await.unwrap();
            let mut all = vec![0; 20 << 20];
            let n = file.read_at(0, &mut all).await.unwrap();
            assert!(all[..n] == [b"before ", &bytes[..SIZE], &bytes[..]].concat());
        });
    }
}

#[test]
fn a_slow_reader_costs_what_the_budget_has_and_holds_up_nobody() {
    let (world, book) = {
        let world = nine_sim::World::new(0);
        let book = crate::stream::book::Book::new(&world);
        (world, book)
    };
    const BUDGET: usize = 1 << 20;
    let core = nine_io::server::Core::with_budget(BUDGET);
    let site = crate::stream::world::Site::with_core(&world, book.clone(), core.clone());
    let s = site.clone();
    let b = book.clone();
    world.run(async move {
        b.put("f", &pattern(8 << 20));
        b.plan(late());
        let mut talk = s.talk().await;
        let mut slow = Vec::new();
        for fid in 2..12 {
            talk.open(fid, "f", 2).await;
            let token = talk.stream(fid, true, 0).await.unwrap();
            let mut data = s.data(&token).await;
            data.read(1000).await.unwrap();
            slow.push(data);
        }
        let mut writers = Vec::new();
        for fid in 12..16 {
            talk.open(fid, "f", 2).await;
            let token = talk.stream(fid, false, 0).await.unwrap();
            writers.push(s.data(&token).await);
        }
        b.most();
        for _ in 0..20 {
            s.sleep(Duration::from_millis(50)).await;
            assert!(core.borrowed() <= 2 * BUDGET, "{} bytes are borrowed", core.borrowed());
            assert!(b.most() <= 14 * 192 * 1024 + BUDGET);
            // Others are served meanwhile, by reads and by a stream.
            let begun = nine_net::Env::now(&s.env);
            let mut other = s.talk().await;
            other.open(2, "f", 0).await;
            assert_eq!(other.read(2, 0, 10_000).await.unwrap().len(), 10_000);
            let token = other.stream(2, true, 7 << 20).await.unwrap();
            let mut data = s.data(&token).await;
            let mut come = 0;
            while come < 200_000 {
                come += data.read(100_000).await.unwrap().len();
            }
            assert!(nine_net::Env::now(&s.env) - begun < Duration::from_secs(1));
        }
    });
    book.plan(Plan::default());
    at_rest(&world, &site, 2);
    book.assert_clean(0);
}
