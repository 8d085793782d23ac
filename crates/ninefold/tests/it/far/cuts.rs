//! Connections that are cut in the middle: no client takes a part for the whole, no client gets a wrong success, and
//! none waits forever.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use nine_io::client::{Direction, Error, File, HEAD, Stream};
use nine_proto::{NOGID, OpenFlags};

use crate::far::gate::Kind;
use crate::far::site::{Door, LIMIT, SIZE, Site, bytes};
use crate::far::talk::Data;

/// Bytes of the data connection before the cut: while the sender has more to send, and when its kernel has everything.
const EARLY: u64 = 2 << 20;
const LATE: u64 = SIZE as u64 - (1 << 20);
/// Limit of the bytes that the server may be storing at that time: one pipe.
const STORING: u64 = 1 << 20;

/// Reads all data. Returns it with the result; `arrived` is updated with the number of bytes.
async fn read_all(stream: &mut Stream<&File>, arrived: &AtomicU64) -> (Vec<u8>, Result<(), Error>) {
    let mut come = Vec::new();
    while let Some(data) = stream.next().await {
        match data {
            Ok(data) => come.extend_from_slice(&data),
            Err(error) => return (come, Err(error)),
        }
        arrived.store(come.len() as u64, Ordering::Relaxed);
    }
    (come, Ok(()))
}

async fn write_all(stream: &mut Stream<&File>, bytes: &[u8]) -> Result<(), Error> {
    for piece in bytes.chunks(200_000) {
        stream.push(piece.to_vec().into()).await?;
    }
    stream.finish().await
}

/// Runs `main`, and cuts connections of this kind meanwhile: when the data connection has carried `after` bytes, and so
/// much of the file has arrived that it must have come that way.
fn cut<T>(
    site: &Site,
    kind: Kind,
    after: u64,
    arrived: impl Fn() -> u64 + Send,
    main: impl FnOnce() -> T,
) -> T {
    site.gate().stop_after(after);
    thread::scope(|scope| {
        scope.spawn(move || {
            site.gate().is_stopped();
            let begun = Instant::now();
            while arrived() <= HEAD {
                assert!(begun.elapsed() < LIMIT, "only {} bytes have arrived", arrived());
                thread::yield_now();
            }
            site.gate().cut(kind);
        });
        main()
    })
}

/// Returns the length of the longest file in a directory.
fn longest(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().metadata());
    // A file may just have been renamed.
    files.map(|meta| meta.map_or(0, |meta| meta.len())).max().unwrap_or(0)
}

/// Returns the file names on the client's side.
fn names(site: &Site) -> Vec<String> {
    let names = fs::read_dir(site.home.path()).unwrap().map(|entry| entry.unwrap().file_name());
    names.map(|name| name.into_string().unwrap()).collect()
}

#[test]
fn a_reader_whose_data_connection_is_cut_continues_at_the_first_missing_byte() {
    let site = Site::new(Door::Gate);
    site.put("f", bytes(SIZE));
    for (after, words) in
        [(EARLY, &["get", "-q", "/f", "got"][..]), (LATE, &["get", "-q", "--resume", "/f", "got"])]
    {
        let (status, said) = cut(&site, Kind::Data, after, || longest(site.home.path()), || site.run(words));
        assert!(status == Some(0) && said.contains("data connection"), "{status:?} {said}");
        assert!(fs::read(site.home.path().join("got")).unwrap() == bytes(SIZE));
        assert_eq!(names(&site), ["got"]);
        fs::remove_file(site.home.path().join("got")).unwrap();
    }
    for after in [EARLY, LATE] {
        let arrived = AtomicU64::new(0);
        let read = async |root: File| {
            let file = root.open("f", OpenFlags::READ).await.unwrap();
            let mut stream = file.stream(0, Direction::Read).await.unwrap();
            let (come, ended) = read_all(&mut stream, &arrived).await;
            ended.expect("the session is well");
            assert!(come == bytes(SIZE) && stream.moved() == SIZE as u64);
        };
        cut(&site, Kind::Data, after, || arrived.load(Ordering::Relaxed), || site.client(read));
    }
}

#[test]
fn a_data_connection_that_falls_silent_is_given_up_and_the_copy_continues() {
    let site = Site::new(Door::Gate);
    site.put("f", bytes(SIZE));
    fs::write(site.home.path().join("up"), bytes(SIZE)).unwrap();
    for words in [
        &["get", "-q", "--patience", "1", "/f", "got"][..],
        &["put", "-q", "--patience", "1", "up", "/put"],
        &["cp", "-q", "--patience", "1", "--verify", ":/f", ":/copy"],
    ] {
        site.gate().stop_after(EARLY);
        let (status, said) = site.run(words);
        assert!(status == Some(0) && said.contains("data connection"), "{words:?}: {status:?} {said}");
        site.gate().go_on();
    }
    for name in [site.home.path().join("got"), site.file("put"), site.file("copy")] {
        assert!(fs::read(&name).unwrap() == bytes(SIZE), "{name:?}");
    }
}

#[test]
fn a_writer_whose_data_connection_is_cut_learns_how_much_is_safe() {
    let site = Site::new(Door::Gate);
    fs::write(site.home.path().join("up"), bytes(SIZE)).unwrap();
    let files = site.server.files();
    for words in [&["put", "-q", "up", "/up"][..], &["put", "-q", "--verify", "up", "/up"]] {
        let (status, said) = cut(&site, Kind::Data, EARLY, || longest(&files), || site.run(words));
        assert!(status == Some(0) && said.contains("data connection broke"), "{status:?} {said}");
        assert!(fs::read(site.file("up")).unwrap() == bytes(SIZE));
        assert_eq!(fs::read_dir(&files).unwrap().count(), 1);
        fs::remove_file(site.file("up")).unwrap();
    }
    for after in [EARLY, LATE] {
        let write = async |root: File| {
            let file = root.create("f", OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
            let mut stream = Stream::begin(&file, 0, SIZE as u64, Direction::Write);
            write_all(&mut stream, bytes(SIZE)).await.expect_err("it was cut");
            let safe = stream.moved() as usize;
            assert!((after - STORING..SIZE as u64).contains(&(safe as u64)), "{safe}");
            let there = fs::read(site.file("f")).unwrap();
            assert!(there[..safe] == bytes(SIZE)[..safe], "{safe} bytes are not there");
            drop(stream);
            let mut stream = Stream::begin(&file, safe as u64, SIZE as u64, Direction::Write);
            write_all(&mut stream, &bytes(SIZE)[safe..]).await.expect("nothing is cut any more");
            assert!(fs::read(site.file("f")).unwrap() == bytes(SIZE));
        };
        // Received data is being stored at that time.
        let stored = || longest(&files).saturating_sub(after - HEAD);
        cut(&site, Kind::Data, after, stored, || site.client(write));
        fs::remove_file(site.file("f")).unwrap();
    }
}

#[test]
fn a_copy_whose_9p_connection_is_cut_under_its_stream_fails_and_leaves_nothing_here() {
    let site = Site::new(Door::Gate);
    site.put("f", bytes(SIZE));
    let here = || longest(site.home.path());
    let get = || site.run(&["get", "-q", "/f", "got"]);
    let (status, said) = cut(&site, Kind::Session, EARLY, here, get);
    assert!(status == Some(1) && !said.is_empty(), "{status:?} {said}");
    assert_eq!(names(&site), [""; 0]);
    let arrived = AtomicU64::new(0);
    let read = async |root: File| {
        let file = root.open("f", OpenFlags::READ).await.unwrap();
        let mut stream = file.stream(0, Direction::Read).await.unwrap();
        let (come, ended) = read_all(&mut stream, &arrived).await;
        assert!(bytes(SIZE).starts_with(&come));
        assert!(ended.expect_err("it was cut").is_disconnect());
    };
    cut(&site, Kind::Session, EARLY, || arrived.load(Ordering::Relaxed), || site.client(read));
    let write = async |root: File| {
        let file = root.create("g", OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
        let mut stream = Stream::begin(&file, 0, SIZE as u64, Direction::Write);
        let error = write_all(&mut stream, bytes(SIZE)).await.expect_err("it was cut");
        assert!(error.is_disconnect(), "{error}");
        let safe = stream.moved() as usize;
        assert!(fs::read(site.file("g")).unwrap()[..safe] == bytes(SIZE)[..safe]);
    };
    let there = || site.file("g").metadata().map_or(0, |meta| meta.len());
    cut(&site, Kind::Session, EARLY, there, || site.client(write));
    // The next client is served.
    assert_eq!(get(), (Some(0), String::new()));
    assert!(fs::read(site.home.path().join("got")).unwrap() == bytes(SIZE));
}

#[test]
fn the_server_ends_the_streams_of_a_session_that_goes() {
    let site = Site::new(Door::Open);
    // More than all buffers on the path hold.
    const MUCH: u64 = 1 << 30;
    fs::File::create(site.file("f")).unwrap().set_len(MUCH).unwrap();
    site.put("g", b"");
    let mut talk = site.talk();
    talk.open(2, "f", 0);
    talk.open(3, "g", 1);
    let out = talk.stream(2, true).unwrap();
    let into = talk.stream(3, false).unwrap();
    let mut out = Data::shown(site.connect(), &out);
    let mut into = Data::shown(site.connect(), &into);
    out.read(1000);
    into.write(bytes(1000)).unwrap();
    drop(talk);
    assert!(1000 + (out.rest().len() as u64) < MUCH);
    let ended = loop {
        if let Err(error) = into.write(bytes(64 << 10)) {
            break error;
        }
    };
    assert!(matches!(ended.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{ended}");
    let mut other = site.talk();
    other.open(2, "g", 0);
    assert!(bytes(SIZE).starts_with(&other.read(2, 0, 1000).unwrap()));
}
