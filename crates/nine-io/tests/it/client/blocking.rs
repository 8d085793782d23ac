//! The blocking client over a real socket, shared by threads.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;

use nine_io::client::Options;
use nine_io::client::blocking::Client;
use nine_net::{Peer, Proof, Reactor, Transport};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, GetMask, NOTAG, NOUID};

use crate::client::world::{Server, pair};

/// Answers on a socket as [`Server::answer`] does, until the client hangs up. Returns the number of fids left.
fn serve(mut socket: UnixStream) -> usize {
    let (mut bridge, theirs) = pair();
    let mut server = Server::new(theirs, Dialect::L);
    let mut cx = Context::from_waker(Waker::noop());
    let mut chunk = [0; 65536];
    while let Ok(n @ 1..) = socket.read(&mut chunk) {
        let written = Pin::new(&mut bridge).poll_write(&mut cx, &[std::io::IoSlice::new(&chunk[..n])]);
        assert!(matches!(written, Poll::Ready(Ok(m)) if m == n));
        for got in server.got() {
            if let Tmsg::Version { msize, .. } = got.message() {
                server.reply(NOTAG, Rmsg::Version { msize, version: b"9P2000.L" });
            } else {
                server.answer(&got);
            }
        }
        while let Poll::Ready(Ok(n @ 1..)) = bridge.poll_read(&mut cx, &mut chunk) {
            socket.write_all(&chunk[..n]).unwrap();
        }
    }
    server.fids.len()
}

#[test]
fn threads_share_a_connection_without_one_of_its_own() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = thread::spawn(|| serve(theirs));
    let reactor = Reactor::new().unwrap();
    let peer = Peer { addr: "unix!pair".into(), proof: Proof::None };
    let socket = reactor.from_parts(ours.into(), peer).unwrap();
    let client = Client::connect(reactor, socket, Options::default()).unwrap();
    let root = client.attach("glenda", NOUID, "").unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..100 {
                    let dir = root.walk("d/d").unwrap();
                    assert!(dir.getattr(GetMask::BASIC).unwrap().qid.is_dir());
                    dir.close().unwrap();
                }
            });
        }
    });
    assert_eq!(client.client().fids(), 1);
    root.close().unwrap();
    drop(client);
    assert_eq!(server.join().unwrap(), 0);
}

#[test]
fn a_server_that_hangs_up_is_an_error_at_once() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let reactor = Reactor::new().unwrap();
    let peer = Peer { addr: "unix!pair".into(), proof: Proof::None };
    let socket = reactor.from_parts(ours.into(), peer).unwrap();
    drop(theirs);
    let error = Client::connect(reactor, socket, Options::default()).unwrap_err();
    assert!(error.is_disconnect(), "{error}");
}
