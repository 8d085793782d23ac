//! Tests of the delay box: real packets of the real kernel are never earlier or faster than its shape, and exactly the
//! counted packets are missing. Lateness is not checked here, because it depends on the machine; nine-bench measures
//! it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use nine_sim::delay::{Counts, DelayBox, Relay, Shape, Side, Way};

const MS: Duration = Duration::from_millis(1);
/// Length of the IP and UDP headers.
const HEADERS: u64 = 28;

/// Creates a box. If this host cannot create one, reports that and returns `None`.
fn boxed(shape: Shape) -> Option<DelayBox> {
    match DelayBox::new(shape) {
        Ok(made) => Some(made),
        Err(error) => {
            use std::io::ErrorKind::{PermissionDenied, Unsupported};
            assert!(matches!(error.kind(), PermissionDenied | Unsupported), "{error}");
            let said = format!("NOT COVERED: long links on the real kernel: {error}\n");
            std::io::stderr().write_all(said.as_bytes()).expect("a standard error");
            None
        }
    }
}

/// Returns a socket on each side, connected to each other.
fn pair(link: &DelayBox) -> [UdpSocket; 2] {
    let sockets = [Side::Here, Side::There].map(|side| {
        link.run(side, || UdpSocket::bind((link.address(side), 0))).expect("inside").expect("a socket")
    });
    for (ours, theirs) in [(0, 1), (1, 0)] {
        let theirs = sockets[theirs].local_addr().expect("an address");
        sockets[ours].connect(theirs).expect("a way");
    }
    sockets
}

/// Returns both ends of a connection from here to there.
fn connection(link: &DelayBox) -> (TcpStream, TcpStream) {
    let there = link.address(Side::There);
    let listener = link.run(Side::There, || TcpListener::bind((there, 0))).expect("inside").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    let near = link.run(Side::Here, || TcpStream::connect((there, port))).expect("inside").expect("a way");
    (near, listener.accept().expect("a client").0)
}

/// Returns bytes with a pattern.
fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 251 + n) as u8).collect()
}

#[test]
fn no_round_trip_is_shorter_than_the_delay_of_both_ways() {
    let mut shape = Shape::symmetric(Duration::ZERO, None);
    (shape.there.delay, shape.back.delay) = (7 * MS, 4 * MS);
    let Some(link) = boxed(shape) else { return };
    let [here, there] = pair(&link);
    let mut came = [0; 8];
    for _ in 0..10 {
        let begun = Instant::now();
        here.send(b"ping").expect("sent");
        assert_eq!(there.recv(&mut came).expect("received"), 4);
        assert!(begun.elapsed() >= 7 * MS, "{:?}", begun.elapsed());
        there.send(b"pong").expect("sent");
        assert_eq!(here.recv(&mut came).expect("received"), 4);
        assert!(begun.elapsed() >= 11 * MS, "{:?}", begun.elapsed());
    }
}

#[test]
fn bytes_arrive_no_faster_than_the_rate_and_all_of_them() {
    // 1 MiB at 80 Mbit/s takes a tenth of a second, without headers.
    let Some(link) = boxed(Shape::symmetric(2 * MS, 80_000_000)) else { return };
    let (here, there) = connection(&link);
    let data = bytes(1 << 20);
    for (mut from, mut to, side) in [(&here, &there, Side::Here), (&there, &here, Side::There)] {
        let (begun, before) = (Instant::now(), link.counts(side));
        let came = std::thread::scope(|scope| {
            scope.spawn(|| from.write_all(&data).expect("written"));
            let mut came = vec![0; data.len()];
            to.read_exact(&mut came).expect("read");
            came
        });
        let took = begun.elapsed();
        assert_eq!(came, data);
        let sent = link.counts(side).bytes - before.bytes;
        assert!(sent > data.len() as u64, "headers, too: {sent}");
        assert!(took.as_secs_f64() >= data.len() as f64 * 8.0 / 80e6, "{took:?}");
    }
}

#[test]
fn what_does_not_arrive_is_what_was_counted_as_dropped() {
    let lossy = Way { loss: 0.2, ..Way::default() };
    let narrow = Way { rate: Some(1_000_000), queue: 5, ..Way::default() };
    for (there, by_chance) in [(lossy, true), (narrow, false)] {
        let Some(link) = boxed(Shape { there, ..Shape::default() }) else { return };
        let [here, far] = pair(&link);
        // Few enough for the buffer of the receiver's socket.
        let sent = 120;
        let arrived = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let (mut datagram, mut arrived) = ([0; 100], 0);
                while far.recv(&mut datagram).expect("received") > 1 {
                    arrived += 1;
                }
                arrived
            });
            for _ in 0..sent {
                here.send(&[0; 100]).expect("sent");
            }
            while all(link.counts(Side::Here)) < sent {
                std::thread::yield_now();
            }
            // The last packet must arrive, so remove the faults first. It arrives after all others.
            link.set(Shape { there: Way { queue: usize::MAX, loss: 0.0, ..there }, ..Shape::default() });
            here.send(b".").expect("sent");
            receiver.join().expect("no panic")
        });
        let counts = link.counts(Side::Here);
        assert_eq!((counts.packets, counts.bytes), (arrived + 1, arrived * (100 + HEADERS) + 1 + HEADERS));
        let (dropped, other) =
            if by_chance { (counts.lost, counts.full) } else { (counts.full, counts.lost) };
        assert_eq!((dropped + arrived, other), (sent, 0));
        assert!(dropped > 0 && arrived > 0, "{counts:?}");
    }
}

/// Returns the number of packets that reached the link.
fn all(counts: Counts) -> u64 {
    counts.packets + counts.lost + counts.full
}

#[test]
fn a_bad_link_loses_and_reorders_and_tcp_still_brings_everything() {
    let way =
        Way { delay: MS, rate: Some(200_000_000), loss: 0.01, reorder: 0.05, late: 3 * MS, ..Way::default() };
    let Some(link) = boxed(Shape { there: way, back: way, seed: 7 }) else { return };
    let (mut here, mut there) = connection(&link);
    let data = bytes(2 << 20);
    std::thread::scope(|scope| {
        scope.spawn(|| here.write_all(&data).expect("written"));
        let mut came = vec![0; data.len()];
        there.read_exact(&mut came).expect("read");
        assert!(came == data);
    });
    assert!(link.counts(Side::Here).lost > 0, "{:?}", link.counts(Side::Here));
}

#[test]
fn a_link_that_is_cut_carries_nothing_until_it_is_mended() {
    let Some(link) = boxed(Shape::symmetric(2 * MS, None)) else { return };
    let [here, there] = pair(&link);
    let cut = Way { loss: 1.0, ..Way::default() };
    link.set(Shape { there: cut, back: cut, seed: 0 });
    here.send(b"lost").expect("sent");
    while all(link.counts(Side::Here)) == 0 {
        std::thread::yield_now();
    }
    assert_eq!(link.counts(Side::Here), Counts { lost: 1, ..Counts::default() });
    link.set(Shape::symmetric(2 * MS, None));
    here.send(b"kept").expect("sent");
    let mut came = [0; 8];
    let len = there.recv(&mut came).expect("received");
    assert_eq!(&came[..len], b"kept");
}

#[test]
fn each_side_is_a_network_of_its_own_and_goes_with_the_box() {
    let Some(link) = boxed(Shape::default()) else { return };
    let name = || std::fs::read_link("/proc/thread-self/ns/net").expect("a name space");
    let inside = [Side::Here, Side::There].map(|side| link.run(side, name).expect("inside"));
    assert!(inside[0] != inside[1] && !inside.contains(&name()));
    // A program sees the same as the thread: its loopback and its end of the link.
    let mut command = Command::new("readlink");
    link.command(Side::There, command.arg("/proc/self/ns/net")).expect("a name space");
    let said = String::from_utf8(command.output().expect("it runs").stdout).expect("text");
    assert_eq!(Some(said.trim()), inside[1].to_str());
    let devices = || std::fs::read_to_string("/proc/thread-self/net/dev").expect("devices");
    let devices = link.run(Side::Here, devices).expect("inside");
    let names: Vec<_> = devices.lines().filter_map(|line| line.split_once(':')).map(|x| x.0.trim()).collect();
    assert_eq!(names, ["lo", "far"]);
    let local =
        || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|to| TcpStream::connect(to.local_addr()?));
    link.run(Side::Here, local).expect("inside").expect("a loopback that is up");
    drop((link, command));
    let open = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let left = open.flatten().filter_map(|fd| std::fs::read_link(fd.path()).ok());
    assert_eq!(left.filter(|to| inside.contains(to)).count(), 0);
}

#[test]
fn a_relay_is_as_slow_as_it_says_and_carries_both_ends() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
    let at = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let to = server.local_addr().expect("an address");
    let relay = Relay::new(at, to, Shape::symmetric(20 * MS, 80_000_000)).expect("a relay");
    let data = bytes(1 << 20);
    std::thread::scope(|scope| {
        // An echo that answers when the client has closed its direction.
        scope.spawn(|| {
            let mut all = Vec::new();
            let mut client = server.accept().expect("a client").0;
            client.read_to_end(&mut all).expect("read");
            client.write_all(&all).expect("written");
        });
        let mut client = TcpStream::connect(relay.address()).expect("a way");
        let begun = Instant::now();
        client.write_all(&data).expect("written");
        client.shutdown(std::net::Shutdown::Write).expect("an end");
        let mut came = Vec::new();
        client.read_to_end(&mut came).expect("read");
        assert!(came == data, "{} bytes of {}", came.len(), data.len());
        // Twice 1 MiB at this rate, one after the other, and one round trip.
        let least = 20e-3 + 2.0 * data.len() as f64 * 8.0 / 80e6;
        assert!(begun.elapsed().as_secs_f64() >= least, "{:?}", begun.elapsed());
    });
    let client = TcpStream::connect(relay.address()).expect("a way");
    let mut far = server.accept().expect("a client").0;
    drop(relay);
    // Its connections end with it.
    assert!(matches!(far.read(&mut [0; 1]), Ok(0) | Err(_)));
    drop(client);
}
