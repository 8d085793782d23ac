//! Obstacles between client and server: NAT, firewalls, servers without streams, and a link that loses packets.

use std::fs;

use futures_util::future::join4;
use nine_io::client::{Direction, File, HEAD, Stream, WORTH};
use nine_proto::{Errno, NOGID, OpenFlags};
use nine_sim::delay::{Shape, Side, Way};

use crate::far::gate::Kind;
use crate::far::site::{Door, Net, SIZE, Site, bytes, ended, shape};
use crate::far::talk::Talk;

/// Creates a file on each side, to be copied to the other.
fn files(site: &Site) {
    site.put("f", bytes(SIZE));
    fs::write(site.home.path().join("up"), bytes(SIZE)).unwrap();
}

fn assert_copied(site: &Site) {
    assert!(fs::read(site.home.path().join("got")).unwrap() == bytes(SIZE));
    assert!(fs::read(site.file("up")).unwrap() == bytes(SIZE));
}

const GET: &[&str] = &["get", "-q", "/f", "got"];
const PUT: &[&str] = &["put", "-q", "up", "/up"];

#[test]
fn a_stream_goes_where_the_9p_connection_went_whoever_is_between() {
    let site = Site::new(Door::Gate);
    files(&site);
    // Neither side sees the other's address.
    let near = site.near_gate();
    for words in [GET, PUT] {
        assert_eq!(ended(site.spawn_to(near.address(), words)), (Some(0), String::new()));
    }
    assert_copied(&site);
    for gate in [&near, site.gate()] {
        let (data, session) = (gate.carried(Kind::Data), gate.carried(Kind::Session));
        assert!(data >= 2 * (SIZE as u64 - HEAD) && session < SIZE as u64 / 4, "{data} {session}");
    }
}

#[test]
fn where_the_port_leads_nowhere_files_go_over_the_9p_connection_and_that_is_said_once() {
    // The server's port has another number outside, and nothing listens at the original one.
    let site = Site::new(Door::Moved);
    fs::create_dir(site.file("d")).unwrap();
    files(&site);
    fs::rename(site.file("f"), site.file("d/f")).unwrap();
    fs::write(site.file("d/g"), bytes(SIZE - 1)).unwrap();
    for words in [&["get", "-q", "-r", "/d", "back"][..], PUT] {
        let (status, said) = site.run(words);
        assert!(status == Some(0) && said.matches("no data connection").count() == 1, "{status:?} {said}");
        assert!(said.contains("Connection refused"), "{said}");
    }
    assert!(fs::read(site.home.path().join("back/f")).unwrap() == bytes(SIZE));
    assert!(fs::read(site.home.path().join("back/g")).unwrap() == bytes(SIZE - 1));
    assert!(fs::read(site.file("up")).unwrap() == bytes(SIZE));
    assert_eq!(site.gate().carried(Kind::Data), 0);
}

#[test]
fn a_firewall_that_drops_what_dials_costs_a_second_and_that_is_said_once() {
    let site = Site::new(Door::Wall);
    files(&site);
    // Run both at once, because each waits for a second.
    for child in [GET, PUT].map(|words| site.spawn(words)) {
        let (status, said) = ended(child);
        assert!(status == Some(0) && said.matches("no data connection").count() == 1, "{status:?} {said}");
        assert!(said.contains("no connection within 1s"), "{said}");
    }
    assert_copied(&site);
    assert_eq!(site.gate().carried(Kind::Data), 0);
}

#[test]
fn a_server_without_streams_has_the_same_bytes_and_nothing_is_said() {
    let site = Site::new(Door::Plain);
    files(&site);
    let mut talk = Talk::new(site.connect(), "9P2000.L");
    talk.open(2, "f", 0);
    assert_eq!(talk.stream(2, true), Err(Errno::EOPNOTSUPP.0));
    for words in [GET, PUT] {
        assert_eq!(site.run(words), (Some(0), String::new()));
    }
    assert_copied(&site);
    assert_eq!(site.gate().carried(Kind::Data), 0);
}

/// Reads until there is a data connection, or to the end.
async fn read(stream: &mut Stream<&File>, come: &mut Vec<u8>, all: bool) {
    while all || !stream.has_connection() {
        match stream.next().await {
            Some(data) => come.extend_from_slice(&data.expect("bytes")),
            None => return,
        }
    }
}

/// Writes until there is a data connection, or to the end.
async fn write(stream: &mut Stream<&File>, rest: &mut &[u8], all: bool) {
    while !rest.is_empty() && (all || !stream.has_connection()) {
        let (piece, behind) = rest.split_at(rest.len().min(64 << 10));
        stream.push(piece.to_vec().into()).await.expect("taken");
        *rest = behind;
    }
    if all {
        stream.finish().await.expect("stored");
    }
}

#[test]
fn four_streams_over_a_link_that_loses_and_reorders_bring_every_byte() {
    const SOME: usize = 2 << 20;
    let way = Way { loss: 0.01, reorder: 0.02, late: shape().there.delay / 4, ..shape().there };
    let bad = Shape { there: way, back: way, seed: 9 };
    let site = Site::new(Door::Open);
    // Each file has different content.
    let [a, b, c, d] = [0, 1, 2, 3].map(|n| &bytes(SIZE)[n * SOME..(n + 1) * SOME]);
    site.put("a", a);
    site.put("b", b);
    site.client(async |root| {
        let open = async |name| root.open(name, OpenFlags::READ).await.unwrap();
        let create = async |name| root.create(name, OpenFlags::WRITE, 0o644, NOGID).await.unwrap();
        let files = (open("a").await, open("b").await, create("c").await, create("d").await);
        // Announce a size that is worth a stream.
        let mut reads = [&files.0, &files.1].map(|file| Stream::begin(file, 0, WORTH, Direction::Read));
        let mut writes = [&files.2, &files.3].map(|file| Stream::begin(file, 0, WORTH, Direction::Write));
        let (mut come, mut left) = ([Vec::new(), Vec::new()], [c, d]);
        for all in [false, true] {
            let ([r, s], [w, v]) = (&mut reads, &mut writes);
            let ([x, y], [p, q]) = (&mut come, &mut left);
            join4(read(r, x, all), read(s, y, all), write(w, p, all), write(v, q, all)).await;
            if let (Net::Far(link), false) = (&site.net, all) {
                assert!(reads.iter().chain(&writes).all(Stream::has_connection));
                link.set(bad);
            }
        }
        assert!(come == [a, b]);
    });
    assert!(fs::read(site.file("c")).unwrap() == c && fs::read(site.file("d")).unwrap() == d);
    if let Net::Far(link) = &site.net {
        let lost = [Side::Here, Side::There].map(|side| link.counts(side).lost);
        assert!(lost.iter().all(|lost| *lost > 0), "{lost:?}");
    }
}
