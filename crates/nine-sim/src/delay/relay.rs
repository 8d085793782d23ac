//! A TCP relay, which replaces a delay box where name spaces are not available: a port that leads to a server, with
//! delay and a limited rate.
//!
//! In: the address of a server. Out: an address that leads to it. Bytes are delayed, and all connections of a relay
//! share its rate in each direction. A [`DelayBox`](super::DelayBox) can also lose and reorder packets, count them, and
//! delay the opening of a connection, which a relay accepts at once.
//!
//! Always holds: no byte arrives earlier or faster than the shape allows; one direction of a connection holds at most
//! [`HELD`] bytes, give or take one piece, and further bytes wait in the sender's socket.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd};

use super::way::Line;
use super::{Shape, lines, wait};

/// Maximum number of bytes in flight in one direction of a connection.
const HELD: usize = 64 << 20;
/// Maximum number of bytes in one piece.
const PIECE: usize = 16 << 10;
/// A connection reads no more if the accepted bytes need longer than this to leave. So the connections share the rate.
const AHEAD: Duration = Duration::from_millis(10);

/// A relay. Dropping it closes its connections.
pub struct Relay {
    address: SocketAddr,
    link: Arc<Link>,
    acceptor: Option<JoinHandle<()>>,
}

struct Link {
    begun: Instant,
    /// To the server, and back.
    lines: Mutex<[Line; 2]>,
    /// Eventfd that becomes readable at shutdown.
    over: OwnedFd,
}

impl Relay {
    /// Listens at `at` and relays connections to `to`.
    pub fn new(at: SocketAddr, to: SocketAddr, shape: Shape) -> io::Result<Self> {
        let listener = TcpListener::bind(at)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let over = eventfd(0, EventfdFlags::CLOEXEC)?;
        let link = Arc::new(Link { begun: Instant::now(), lines: Mutex::new(lines(shape)), over });
        let theirs = link.clone();
        let acceptor = thread::Builder::new().name("relay".into());
        let acceptor = acceptor.spawn(move || theirs.accept(&listener, to))?;
        Ok(Self { address, link, acceptor: Some(acceptor) })
    }

    /// Returns the address at which it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Changes the shape for bytes received from now on.
    pub fn set(&self, shape: Shape) {
        self.link.lines().iter_mut().zip(lines(shape)).for_each(|(line, other)| line.reshape(other));
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        let woken = rustix::io::write(&self.link.over, &1u64.to_ne_bytes());
        assert!(woken.is_ok(), "a counter of one writer is never full: {woken:?}");
        if let Some(acceptor) = self.acceptor.take() {
            // The thread panics only on broken invariants, and has printed the panic then.
            let _ = acceptor.join();
        }
    }
}

impl Link {
    fn lines(&self) -> MutexGuard<'_, [Line; 2]> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(&self, listener: &TcpListener, to: SocketAddr) {
        thread::scope(|scope| {
            while self.wait(Some(PollFd::new(listener, PollFlags::IN)), None) {
                let Ok((client, _)) = listener.accept() else { continue };
                // If the server is unreachable, the client sees its connection closed.
                let Ok(server) = TcpStream::connect(to) else { continue };
                let ends = Arc::new([client, server]);
                for way in [0, 1] {
                    let ends = ends.clone();
                    scope.spawn(move || {
                        if self.carry(way, &ends[way], &ends[1 - way]).is_err() {
                            // Shutdown of a broken socket fails. Ignore that.
                            ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
                        }
                    });
                }
            }
        });
    }

    /// Relays one direction until end of file has been delivered. Fails if a socket breaks, and at shutdown.
    fn carry(&self, way: usize, mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
        from.set_nonblocking(true)?;
        to.set_nodelay(true)?;
        let (mut held, mut piece) = (Held::default(), vec![0; PIECE]);
        loop {
            let now = self.begun.elapsed();
            let goes_on = match held.deliver(now, &mut to) {
                Ok(true) => return to.shutdown(Shutdown::Write),
                Ok(false) => {
                    let next = held.next().map(|next| next.saturating_sub(now));
                    let backlog = self.lines()[way].wait(now).saturating_sub(AHEAD);
                    if held.ended || held.bytes >= HELD {
                        self.wait(None, next)
                    } else if !backlog.is_zero() {
                        self.wait(None, Some(next.map_or(backlog, |next| next.min(backlog))))
                    } else {
                        match from.read(&mut piece) {
                            Ok(len) => {
                                let arrives = self.lines()[way].admit(self.begun.elapsed(), len);
                                held.put(arrives.unwrap_or(now), &piece[..len]);
                                true
                            }
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                                self.wait(Some(PollFd::new(from, PollFlags::IN)), next)
                            }
                            Err(error) => return Err(error),
                        }
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.wait(Some(PollFd::new(to, PollFlags::OUT)), None)
                }
                Err(error) => return Err(error),
            };
            if !goes_on {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
        }
    }

    /// Waits until `fd` is ready or the time `left` has passed. Returns false at shutdown.
    fn wait(&self, fd: Option<PollFd<'_>>, left: Option<Duration>) -> bool {
        let mut fds: Vec<_> = std::iter::once(PollFd::new(&self.over, PollFlags::IN)).chain(fd).collect();
        wait(&mut fds, left);
        fds[0].revents().is_empty()
    }
}

/// Bytes in flight in one direction of a connection.
#[derive(Default)]
struct Held {
    /// Pieces with their arrival times. An empty piece is end of file.
    pieces: VecDeque<(Duration, Vec<u8>)>,
    bytes: usize,
    ended: bool,
}

impl Held {
    fn put(&mut self, arrives: Duration, piece: &[u8]) {
        self.pieces.push_back((arrives, piece.to_vec()));
        self.bytes += piece.len();
        self.ended = piece.is_empty();
    }

    fn next(&self) -> Option<Duration> {
        self.pieces.front().map(|(arrives, _)| *arrives)
    }

    /// Writes the pieces that have arrived. Returns true after end of file.
    fn deliver(&mut self, now: Duration, to: &mut impl Write) -> io::Result<bool> {
        while let Some((arrives, piece)) = self.pieces.front_mut() {
            if *arrives > now {
                return Ok(false);
            }
            let len = to.write(piece)?;
            piece.drain(..len);
            self.bytes -= len;
            if piece.is_empty() {
                self.pieces.pop_front();
            }
        }
        Ok(self.ended)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_held_until_it_arrives_and_the_end_comes_last() {
        let (mut held, mut out) = (Held::default(), Vec::new());
        let at = Duration::from_millis;
        held.put(at(5), b"one");
        held.put(at(7), b"two");
        held.put(at(9), b"");
        assert!(!held.deliver(at(4), &mut out).unwrap() && out.is_empty());
        assert!(!held.deliver(at(5), &mut out).unwrap());
        assert_eq!((&out[..], held.next(), held.bytes), (&b"one"[..], Some(at(7)), 3));
        assert!(!held.deliver(at(8), &mut out).unwrap());
        assert!(held.deliver(at(9), &mut out).unwrap() && held.bytes == 0);
        assert_eq!(out, b"onetwo");
    }

    #[test]
    fn what_the_receiver_does_not_take_is_kept() {
        let (mut held, mut room) = (Held::default(), [0; 4]);
        held.put(Duration::ZERO, b"sixsix");
        assert!(held.deliver(Duration::ZERO, &mut Taking(&mut room[..])).is_err());
        assert_eq!((&room, held.bytes), (b"sixs", 2));
    }

    /// A socket whose buffer has this much space.
    struct Taking<'a>(&'a mut [u8]);

    impl Write for Taking<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = self.0.write(bytes)?;
            if len == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(len) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
}
