//! Hosts that close, end and start again.

use std::os::fd::OwnedFd;

use nine_guest::{Client, Errno, OpenFlags, Options, Process, Wait};
use nine_ring::{End, Kind, Layout};

use crate::guest::host::{MILD, TestChannel, TestHost};

const WAYS: [Wait; 3] = [Wait::Poll, Wait::Interrupt, Wait::Adaptive];

/// Returns an attached guest, and its host, which does nothing more.
fn attached(wait: Wait) -> (Client<Process>, nine_guest::File, TestHost, TestChannel) {
    let channel = TestChannel::new(64, 4);
    let (passed, life) = channel.pass();
    let mut host = channel.host(MILD, life);
    let served = std::thread::spawn(move || {
        host.serve_until(|host| host.session.fids.len() == 1);
        host
    });
    let mut client =
        Process::new(passed).unwrap().client_with(Options { wait, ..Options::default() }).unwrap();
    let root = client.attach("glenda", "").unwrap();
    (client, root, served.join().unwrap(), channel)
}

/// Returns the error of a walk without an answer, while `f` runs.
fn walk_and(
    client: &mut Client<Process>,
    root: &nine_guest::File,
    f: impl FnOnce() + Send,
) -> nine_guest::Error {
    std::thread::scope(|scope| {
        scope.spawn(f);
        client.walk(root, "sub").unwrap_err()
    })
}

#[test]
fn a_host_that_closes_is_the_end_after_what_it_has_said() {
    for wait in WAYS {
        let (mut client, root, mut host, _channel) = attached(wait);
        // One more answer is in the ring.
        let asked = std::thread::scope(|scope| {
            scope.spawn(|| {
                host.serve_until(|host| host.session.fids.len() == 2);
                host.end.end();
                host.rouse();
            });
            client.walk(&root, "sub").unwrap()
        });
        let error = client.walk(&asked, "leaf").unwrap_err();
        assert_eq!((error.errno, error.ename()), (Errno::EPIPE, "the host has closed the channel"));
        // The error stays.
        assert_eq!(client.write(&asked, 0, b"x").unwrap_err().errno, Errno::EPIPE);
        assert_eq!(client.is_alive().unwrap_err().errno, Errno::EPIPE);
    }
}

#[test]
fn a_host_that_dies_is_noticed_while_one_looks_and_while_one_sleeps() {
    for wait in WAYS {
        let (mut client, root, host, _channel) = attached(wait);
        let error = walk_and(&mut client, &root, || drop(host));
        assert_eq!((error.errno, error.ename()), (Errno::ECONNRESET, "the host of the channel has gone"));
        let error = client.reconnect().unwrap_err();
        assert_eq!((error.errno, client.is_alive().is_err()), (Errno::ECONNRESET, true));
    }
}

#[test]
fn a_host_that_begins_anew_fails_what_is_under_way_and_is_joined_again() {
    for wait in WAYS {
        let (mut client, root, mut host, channel) = attached(wait);
        let mut buffer = client.buffer(100).unwrap();
        let error = walk_and(&mut client, &root, || {
            host.end = End::open(channel.memory.clone(), channel.layout);
            // A guest that does not notice the change without its doorbell would notice it later.
            channel.bells[1].ring();
        });
        assert_eq!(error.errno, Errno::ECONNRESET);
        assert_eq!(client.stat(&root).unwrap_err().errno, Errno::ECONNRESET);
        let thread = std::thread::spawn(move || {
            host.serve();
            host
        });
        client.reconnect().unwrap();
        assert_eq!(client.stat(&root).unwrap_err().errno, Errno::ESTALE);
        drop(root);
        let root = client.attach("glenda", "").unwrap();
        let file = client.open(&root, "data", OpenFlags::RDWR).unwrap();
        buffer.write(0, &[3; 100]);
        assert_eq!(client.write_from(&file, 0, &buffer, ..).unwrap(), 100);
        assert_eq!(client.read_into(&file, 50, &mut buffer, ..).unwrap(), 50);
        drop(client);
        assert_eq!(thread.join().unwrap().session.fids.len(), 2);
    }
}

#[test]
fn what_a_new_host_lays_out_anew_is_learned_by_joining() {
    let big = Layout::new(Kind::GuestAsks, 64, 8, "big");
    let channel = TestChannel::of(big);
    let (passed, life) = channel.pass();
    let mut host = channel.host(MILD, life);
    let thread = std::thread::spawn(move || {
        host.serve_until(|host| host.session.fids.len() == 1);
        host
    });
    let mut client = Process::new(passed).unwrap().client().unwrap();
    let root = client.attach("", "").unwrap();
    let buffer = client.buffer(30_000).unwrap();
    let mut host = thread.join().unwrap();
    host.end = End::open(channel.memory.clone(), Layout::new(Kind::GuestAsks, 128, 2, "small"));
    assert_eq!(client.walk(&root, "").unwrap_err().errno, Errno::ECONNRESET);
    let thread = std::thread::spawn(move || host.serve());
    client.reconnect().unwrap();
    let root = client.attach("", "").unwrap();
    let file = client.open(&root, "data", OpenFlags::RDWR).unwrap();
    assert_eq!(client.write_from(&file, 0, &buffer, ..10).unwrap_err().errno, Errno::ESTALE);
    drop(buffer);
    assert_eq!(client.write(&file, 0, &[1; 30_000]).unwrap(), 30_000);
    assert!(client.buffer(8192).is_ok());
    drop(client);
    thread.join().unwrap();
}

#[test]
fn a_second_guest_takes_the_place_of_the_first() {
    let (mut first, root, mut host, channel) = attached(Wait::Adaptive);
    let thread = std::thread::spawn(move || host.serve());
    let (passed, _life): (_, OwnedFd) = channel.pass();
    let mut second = Process::new(passed).unwrap().client().unwrap();
    assert_eq!(first.walk(&root, "sub").unwrap_err().errno, Errno::ECONNRESET);
    let root = second.attach("", "").unwrap();
    second.walk(&root, "sub").unwrap();
    drop((first, second));
    thread.join().unwrap();
}

#[test]
fn a_guest_joins_channels_of_files_only() {
    for kind in [Kind::Bytes, Kind::HostAsks] {
        let channel = TestChannel::of(Layout::new(kind, 64, 1, ""));
        let (passed, life) = channel.pass();
        let mut host = channel.host(MILD, life);
        let thread = std::thread::spawn(move || host.serve());
        let error = Process::new(passed).unwrap().client().map(|_| ()).unwrap_err();
        assert_eq!(error.errno, Errno::EINVAL, "{error}");
        thread.join().unwrap();
    }
    // No host has opened it.
    let channel = TestChannel::new(64, 1);
    let error = Process::new(channel.pass().0).unwrap().client().map(|_| ()).unwrap_err();
    assert_eq!((error.errno, error.ename()), (Errno::ENOTCONN, "there is no channel in this memory"));
}
