//! Cut connections: a part is never taken for the whole, and no report exceeds the facts.

use std::io;
use std::time::Duration;

use nine_io::client::{Direction, Error, HEAD, Options, Stream};
use nine_net::Env;
use nine_proto::{Errno, NOGID, OpenFlags};
use nine_sim::{Rng, Shape, seeds, tries_all};

use crate::stream::book::Plan;
use crate::stream::talk::Data;
use crate::stream::world::{Fate, Splices, at_rest, far, near, pattern, stage};

/// Returns a random byte position: in the first 36 bytes of a data connection, in its data, or at its end.
fn moment(rng: &mut Rng, size: usize) -> u64 {
    let moments = [0, 3, 4, 20, 35, 36, 37, 36 + size - 1, 36 + size];
    match rng.below(2) {
        0 => moments[rng.below(moments.len())] as u64,
        _ => rng.below(36 + size) as u64,
    }
}

fn plan(rng: &mut Rng) -> Plan {
    let late = [None, Some(Duration::ZERO), Some(Duration::from_millis(3))][rng.below(3)];
    let short = [0, 0, 1000, 70_000][rng.below(4)];
    Plan { late, short, ..Plan::default() }
}

fn cut_link(rng: &mut Rng, size: usize) -> Shape {
    let piece = [100, 5_000, 64 * 1024][rng.below(3)];
    let window = [10_000, 256 * 1024][rng.below(2)];
    Shape { breaks_after: Some(moment(rng, size)), piece, window, ..near() }
}

#[test]
fn a_reader_whose_connection_is_cut_never_takes_a_part_for_the_whole() {
    let (mut cut, mut finished) = (0, 0);
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        let whole = world.run(async move {
            let size = [1, 1000, 100_000, 400_000][rng.below(4)];
            let bytes = pattern(size);
            b.put("f", &bytes);
            b.plan(plan(&mut rng));
            let mut talk = s.talk().await;
            talk.open(2, "f", 0).await;
            let token = talk.stream(2, true, 0).await.unwrap();
            let mut data = Data::new(s.ways.connect(cut_link(&mut rng, size)));
            let shown = data.write(format!("9PS1{token}").as_bytes()).await;
            let early = rng.one_in(2);
            let mut tag = 0;
            if early {
                tag = talk.begin_close(2, u64::MAX).await;
            }
            let (come, ended) = data.rest().await;
            if !early {
                tag = talk.begin_close(2, u64::MAX).await;
            }
            let told = s.within(Duration::from_secs(11), talk.verdict(tag)).await;
            let (count, errno, text) = told.expect("there is a verdict in time").unwrap();
            assert_eq!(errno == 0, text.is_empty());
            assert!(bytes.starts_with(&come) && come.len() as u64 <= count && count <= size as u64);
            let whole = shown.is_ok() && ended.is_ok() && (come.len() as u64, errno) == (count, 0);
            assert!(!whole || come == bytes, "{} of {size} bytes look whole", come.len());
            // The rest arrives by another stream.
            let token = talk.stream(2, true, come.len() as u64).await.unwrap();
            let (rest, _) = s.data(&token).await.rest().await;
            assert!(rest == bytes[come.len()..]);
            assert_eq!(talk.close(2, u64::MAX).await, Ok((rest.len() as u64, 0, String::new())));
            talk.clunk(2).await.unwrap();
            whole
        });
        if whole {
            finished += 1
        } else {
            cut += 1
        }
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
    assert!(cut > 5 * finished.min(1) && (cut > 20 || !tries_all(60)));
}

#[test]
fn a_writer_whose_connection_is_cut_is_told_what_is_stored_and_no_more() {
    for seed in seeds(60) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let size = [1, 1000, 100_000, 700_000][rng.below(4)];
            let bytes = pattern(size);
            b.put("f", b"");
            b.plan(plan(&mut rng));
            let mut talk = s.talk().await;
            talk.open(2, "f", 1).await;
            let token = talk.stream(2, false, 0).await.unwrap();
            let shape = cut_link(&mut rng, size);
            let splices = rng.one_in(2);
            let end = if splices { s.ways.connect_to(shape, Splices::end) } else { s.ways.connect(shape) };
            let mut data = Data::new(end);
            let mut sent = 0;
            let piece = 1 + rng.below(100_000);
            if data.write(format!("9PS1{token}").as_bytes()).await.is_ok() {
                for piece in bytes.chunks(piece) {
                    if data.write(piece).await.is_err() {
                        break;
                    }
                    sent += piece.len();
                }
            }
            // It may end well for us and not for the server.
            data.close().await;
            let told = s.within(Duration::from_secs(11), talk.close(2, sent as u64)).await;
            let (count, errno, _) = told.expect("there is a verdict in time").unwrap();
            let count = count as usize;
            // A part of the failed piece may have been stored.
            assert!(
                count <= sent + piece && (errno != 0 || count >= sent),
                "{count} of {sent}, errno {errno}"
            );
            assert!(b.get("f")[..count] == bytes[..count], "{count} bytes are not stored");
            let token = talk.stream(2, false, count as u64).await.unwrap();
            let mut data = s.data(&token).await;
            data.write(&bytes[count..]).await.unwrap();
            data.close().await;
            let rest = (size - count) as u64;
            assert_eq!(talk.close(2, rest).await, Ok((rest, 0, String::new())));
            assert!(b.get("f") == bytes);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

const SIZE: usize = 9 << 20;

/// Bytes on a data connection of a client that reads or writes [`SIZE`].
const CARRIED: usize = SIZE - HEAD as usize;

#[test]
fn a_client_whose_data_connection_is_cut_goes_on_where_it_was() {
    for seed in seeds(8) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            let writes = seed % 2 == 1;
            b.put("f", if writes { b"" } else { &bytes });
            let (client, root) = s.client(far(5), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let (piece, window) = (256 * 1024, 1 << 20);
            let breaks_after = Some(moment(&mut rng, CARRIED));
            let shape = Shape { breaks_after, piece, window, ..far(5) };
            s.fate(if rng.one_in(3) { Fate::Held(shape) } else { Fate::Come(shape) });
            let mut at = 0;
            if !writes {
                let mut stream = file.stream(0, Direction::Read).await.unwrap();
                let (mut buf, straight) = (vec![0; 300_000], rng.one_in(2));
                loop {
                    let came = if straight {
                        stream.sread(&mut buf).await.map(|n| buf[..n].to_vec())
                    } else {
                        stream.next().await.transpose().map(|data| data.unwrap_or_default().to_vec())
                    };
                    let data = came.expect("the session is well, so the read continues");
                    if data.is_empty() {
                        break;
                    }
                    assert!(data == bytes[at..at + data.len()]);
                    at += data.len();
                }
                assert_eq!(at, SIZE, "a part looks whole");
                assert_eq!(stream.moved() as usize, at);
            } else {
                let mut stream = file.stream(0, Direction::Write).await.unwrap();
                let mut ended = Ok(());
                for piece in bytes.chunks(100_000) {
                    ended = stream.push(piece.to_vec().into()).await;
                    if ended.is_err() {
                        break;
                    }
                }
                if ended.is_ok() {
                    ended = stream.finish().await;
                }
                at = stream.moved() as usize;
                assert!(ended.is_err() || at == SIZE, "{at} bytes look whole");
                assert!(at == 0 || at >= HEAD as usize && b.get("f")[..at] == bytes[..at]);
            }
            // The rest goes by another stream, or without one.
            s.fate(Fate::Come(Shape { piece, window, ..far(5) }));
            if writes {
                let mut stream = file.stream(at as u64, Direction::Write).await.unwrap();
                stream.push(bytes[at..].to_vec().into()).await.unwrap();
                assert_eq!(stream.sclose().await.unwrap() as usize, SIZE - at);
                assert!(b.get("f") == bytes);
            } else {
                let mut stream = file.stream(at as u64, Direction::Read).await.unwrap();
                while let Some(data) = stream.next().await {
                    let data = data.unwrap();
                    assert!(data == bytes[at..at + data.len()]);
                    at += data.len();
                }
                assert_eq!(at, SIZE);
            }
            file.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// Data connections that break before they carry anything are not tried again and again.
#[test]
fn a_write_over_connections_that_break_at_once_ends_by_twrites() {
    for seed in seeds(4) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", b"");
            let (client, root) = s.client(far(5), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let breaks_after = Some(36 + 1000 * seed);
            s.fate(Fate::Come(Shape { breaks_after, piece: 256 * 1024, window: 1 << 20, ..far(5) }));
            let mut at = 0;
            loop {
                let mut stream = Stream::straight(&file, at as u64, SIZE as u64, Direction::Write);
                let written = match stream.push(bytes[at..].to_vec().into()).await {
                    Ok(()) => stream.finish().await,
                    failed => failed,
                };
                at += stream.moved() as usize;
                match written {
                    Ok(()) => break,
                    Err(error) => assert!(matches!(error, Error::Stream { .. }), "{error}"),
                }
                assert!(s.offers().len() < 3, "{} data connections", s.offers().len());
            }
            assert!(at == SIZE && b.get("f") == bytes);
            file.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// All bytes are on their way for longer than the time limit after the last one was sent.
#[test]
fn a_write_over_a_link_that_is_only_slow_is_not_cut() {
    for seed in seeds(4) {
        let (world, book, site) = stage(seed);
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", b"");
            let options = Options { data_timeout: Duration::from_secs(5), ..s.options() };
            let (client, root) = s.client(far(5), options).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let delay = Duration::from_secs(9);
            s.fate(Fate::Come(Shape { delay, piece: 256 * 1024, window: 2 * SIZE, ..far(5) }));
            let mut stream = Stream::straight(&file, 0, SIZE as u64, Direction::Write);
            stream.push(bytes.clone().into()).await.expect("the link takes all bytes");
            stream.finish().await.expect("the bytes arrive");
            assert!(s.offers().len() == 1 && b.get("f") == bytes);
            file.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// Data connections of writers and of a copy break, or become silent, after some megabytes.
#[test]
fn what_is_written_whole_continues_behind_the_bytes_that_are_stored() {
    const LONG: usize = 24 << 20;
    for seed in seeds(6) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(LONG);
            b.put("f", b"");
            b.put("copy", b"");
            let (client, root) = s.client(far(5), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let mut shape = Shape { piece: 256 * 1024, window: 1 << 20, ..far(5) };
            let after = Some((2 << 20) + rng.below(6 << 20) as u64);
            *(if seed % 2 == 1 { &mut shape.stalls_after } else { &mut shape.breaks_after }) = after;
            s.fate(Fate::Come(shape));
            file.write_streamed(0, bytes.clone().into()).await.expect("the session is well");
            assert!(b.get("f") == bytes);
            let copy = root.open("copy", OpenFlags::RDWR).await.unwrap();
            let copied = file.copy_streamed(&copy, LONG as u64).await.expect("the session is well");
            assert!(copied as usize == LONG && b.get("copy") == bytes);
            assert!(s.offers().len() >= 8, "{} data connections", s.offers().len());
            file.close().await.unwrap();
            copy.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

/// Every data connection breaks, or becomes silent, after some megabytes.
#[test]
fn a_read_continues_over_new_data_connections_until_the_file_ends() {
    const LONG: usize = 40 << 20;
    for seed in seeds(6) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        let env = world.env();
        world.run(async move {
            let bytes = pattern(LONG);
            b.put("f", &bytes);
            let (client, root) = s.client(far(5), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            let silent = seed % 2 == 1;
            let mut shape = Shape { piece: 256 * 1024, window: 1 << 20, ..far(5) };
            let after = Some((2 << 20) + rng.below(6 << 20) as u64);
            *(if silent { &mut shape.stalls_after } else { &mut shape.breaks_after }) = after;
            s.fate(Fate::Come(shape));
            let begun = env.now();
            let mut stream = file.stream(0, Direction::Read).await.unwrap();
            let mut at = 0;
            while let Some(data) = stream.next().await {
                let data = data.expect("the session is well");
                assert!(data == bytes[at..at + data.len()]);
                at += data.len();
            }
            assert_eq!(at, LONG, "a part looks whole");
            let connections = s.offers().len();
            assert!(connections >= 4, "{connections} data connections for {LONG} bytes, each with {after:?}");
            let took = (env.now() - begun).as_secs();
            assert!(took <= 12 * connections as u64, "{took} s for {connections} data connections");
            drop(stream);
            file.close().await.unwrap();
            assert_eq!(client.fids(), 1);
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn when_the_session_goes_both_sides_end_soon() {
    for seed in seeds(40) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            b.put("f", &pattern(600_000));
            let read = rng.one_in(2);
            let stuck = rng.one_in(4);
            b.plan(Plan { stuck, ..plan(&mut rng) });
            let mut talk = s.talk().await;
            talk.open(2, "f", 2).await;
            let token = talk.stream(2, read, 0).await.unwrap();
            let window = [10_000, 256 * 1024][rng.below(2)];
            let shape = Shape { window, ..near() };
            let splices = rng.one_in(2);
            let end = if splices { s.ways.connect_to(shape, Splices::end) } else { s.ways.connect(shape) };
            let mut data = Data::shown(end, &token).await;
            let waits = rng.one_in(2);
            if waits {
                talk.begin_close(2, if read { u64::MAX } else { 500_000 }).await;
            }
            if !read {
                let _ = s.within(Duration::from_millis(20), data.write(&pattern(300_000))).await;
            } else if !stuck && rng.one_in(2) {
                data.read(1000).await.unwrap();
            }
            s.sleep(Duration::from_micros(rng.below(3000) as u64)).await;
            drop(talk);
            let end = async {
                if read {
                    drop(data.rest().await);
                } else {
                    while data.write(&[0; 10_000]).await.is_ok() {}
                }
            };
            s.within(Duration::from_secs(1), end).await.expect("the stream goes with its session");
        });
        book.plan(Plan::default());
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn a_client_whose_session_is_cut_is_told_in_both_directions() {
    for seed in seeds(8) {
        let (world, book, site) = stage(seed);
        let mut rng = world.rng();
        let s = site.clone();
        let b = book.clone();
        world.run(async move {
            let bytes = pattern(SIZE);
            b.put("f", &bytes);
            b.plan(plan(&mut rng));
            let (client, root) = s.client(far(5), s.options()).await;
            let file = root.open("f", OpenFlags::RDWR).await.unwrap();
            s.fate(Fate::Come(far(5)));
            let time = Duration::from_micros(rng.below(60_000) as u64);
            let (c, env) = (client.clone(), s.env.clone());
            s.env.spawn(Box::pin(async move {
                env.sleep_until(env.now() + time).await;
                c.abort(io::ErrorKind::ConnectionReset.into());
            }));
            let work = async {
                if seed % 2 == 0 {
                    let mut stream = file.stream(0, Direction::Read).await?;
                    let mut at = 0;
                    while let Some(data) = stream.next().await {
                        let data = data?;
                        assert!(data == bytes[at..at + data.len()]);
                        at += data.len();
                    }
                    assert_eq!(at, SIZE, "it looks whole");
                } else {
                    let mut stream = file.stream(0, Direction::Write).await?;
                    for piece in bytes.chunks(100_000) {
                        stream.push(piece.to_vec().into()).await?;
                    }
                    assert_eq!(stream.sclose().await?, SIZE as u64, "it looks whole");
                }
                Ok::<_, nine_io::client::Error>(())
            };
            let done = s.within(Duration::from_secs(5), work).await.expect("nobody waits for ever");
            assert!(done.is_err() == client.dead().is_some() || done.is_ok());
        });
        at_rest(&world, &site, 2);
        book.assert_clean(0);
    }
}

#[test]
fn a_file_that_fails_while_it_is_created_and_streamed_leaves_its_name_and_no_fid() {
    let (world, book, site) = stage(3);
    let s = site.clone();
    let b = book.clone();
    world.run(async move {
        let (client, root) = s.client(far(5), s.options()).await;
        s.fate(Fate::Come(far(5)));
        b.plan(Plan { room: Some(HEAD + 1_000_000), ..Plan::default() });
        let file = root.create("g", OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
        let bytes = pattern(SIZE);
        let mut stream = file.stream(0, Direction::Write).await.unwrap();
        let mut ended = Ok(());
        for piece in bytes.chunks(300_000) {
            ended = stream.push(piece.to_vec().into()).await;
            if ended.is_err() {
                break;
            }
        }
        let ended = match ended {
            Ok(()) => stream.finish().await,
            failed => failed,
        };
        assert_eq!(ended.map_err(|error| error.errno()), Err(Errno::ENOSPC));
        assert_eq!(stream.moved(), HEAD + 1_000_000);
        assert!(b.get("g") == bytes[..HEAD as usize + 1_000_000]);
        drop(stream);
        file.close().await.unwrap();
        assert_eq!(client.fids(), 1);
    });
    at_rest(&world, &site, 2);
    book.assert_clean(0);
}
