//! A relay between a client and a server: it carries connections to another address, distinguishes data connections
//! from 9P connections, counts bytes, and stops or cuts connections. And a wall, which never answers.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use nine_proto::stream::MAGIC;
use rustix::net::{Shutdown, shutdown};

use crate::far::site::LIMIT;

/// Socket buffer for a client, bytes. It is small, so that the server cannot send a whole file while the gate is
/// stopped.
const BUFFER: usize = 256 << 10;

/// The kind of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Session,
    Data,
}

/// The address that a gate leads to.
#[derive(Clone)]
pub enum To {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// A running gate. Dropping it closes its connections.
pub struct Gate {
    listener: TcpListener,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    connections: Vec<(Kind, [Arc<File>; 2])>,
    /// Number of active data connections.
    data: usize,
    /// Bytes in both directions, by kind.
    carried: [u64; 2],
    /// Data connections carry about this many bytes at most.
    stop: Option<u64>,
    stopped: bool,
}

impl Gate {
    /// Opens a gate at `at`, with both sides in the calling thread's network name space.
    pub fn new(at: SocketAddr, to: To) -> Gate {
        let listener = TcpListener::bind(at).unwrap();
        let shared = Arc::new(Shared::default());
        let (door, all) = (listener.try_clone().unwrap(), shared.clone());
        thread::spawn(move || {
            while let Ok((near, _)) = door.accept() {
                let (shared, to) = (all.clone(), to.clone());
                thread::spawn(move || shared.connection(near, &to));
            }
        });
        Gate { listener, shared }
    }

    pub fn address(&self) -> SocketAddr {
        self.listener.local_addr().unwrap()
    }

    /// Returns the bytes that connections of this kind have carried in both directions.
    pub fn carried(&self, kind: Kind) -> u64 {
        self.shared.state().carried[kind as usize]
    }

    /// Waits until there are no data connections. Later ones stop after this many bytes.
    pub fn stop_after(&self, bytes: u64) {
        let mut state = self.shared.wait("there are data connections", |state| state.data == 0);
        state.stop = Some(state.carried[Kind::Data as usize] + bytes);
    }

    /// Waits until a data connection is stopped.
    pub fn is_stopped(&self) {
        drop(self.shared.wait("too little has been carried", |state| state.stopped));
    }

    /// Lets everything pass from now on.
    pub fn go_on(&self) {
        let mut state = self.shared.state();
        (state.stop, state.stopped) = (None, false);
        self.shared.changed.notify_all();
    }

    /// Closes connections of this kind on both sides, as if no more data were to come; others continue.
    pub fn cut(&self, kind: Kind) {
        let mut state = self.shared.state();
        let all = std::mem::take(&mut state.connections);
        let (cut, others): (Vec<_>, _) = all.into_iter().partition(|(of, _)| *of == kind);
        state.connections = others;
        drop(state);
        assert!(!cut.is_empty(), "there is no {kind:?} to be cut");
        cut.iter().for_each(|(_, ends)| end(ends));
        self.go_on();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // Either may have ended already.
        let _ = shutdown(&self.listener, Shutdown::Both);
        self.shared.state().connections.drain(..).for_each(|(_, ends)| end(&ends));
        self.go_on();
    }
}

impl To {
    fn dial(&self) -> std::io::Result<File> {
        let fd = match self {
            To::Tcp(at) => {
                let socket = TcpStream::connect(at)?;
                socket.set_nodelay(true)?;
                rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER)?;
                OwnedFd::from(socket)
            }
            To::Unix(path) => UnixStream::connect(path)?.into(),
        };
        Ok(fd.into())
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a condition; panics with `not` after the limit.
    fn wait(&self, not: &str, is: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.state(), LIMIT, |state| !is(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(is(&state), "{not}: {:?} bytes", state.carried);
        state
    }

    fn connection(&self, near: TcpStream, to: &To) {
        near.set_nodelay(true).unwrap();
        let (mut near, mut first) = (File::from(OwnedFd::from(near)), [0; 4]);
        // A connection without data is ignored.
        let Ok(()) = near.read_exact(&mut first) else { return };
        let Ok(mut far) = to.dial() else { return };
        let Ok(()) = far.write_all(&first) else { return };
        let kind = if first == MAGIC { Kind::Data } else { Kind::Session };
        let ends = [Arc::new(near), Arc::new(far)];
        let mut state = self.state();
        state.connections.push((kind, ends.clone()));
        state.data += usize::from(kind == Kind::Data);
        drop(state);
        let [near, far] = &ends;
        thread::scope(|scope| {
            scope.spawn(|| self.pass(kind, far, near));
            self.pass(kind, near, far);
        });
        let mut state = self.state();
        state.connections.retain(|(_, [other, _])| !Arc::ptr_eq(other, near));
        state.data -= usize::from(kind == Kind::Data);
        self.changed.notify_all();
    }

    fn pass(&self, kind: Kind, mut from: &File, mut to: &File) {
        let mut piece = vec![0; BUFFER / 4];
        while let Ok(n) = from.read(&mut piece) {
            if n == 0 {
                // Both directions may have ended already.
                let _ = shutdown(to, Shutdown::Write);
                return;
            }
            self.admit(kind, n);
            if to.write_all(&piece[..n]).is_err() {
                break;
            }
        }
        end(&[from, to]);
    }

    /// Counts bytes; blocks while this kind is stopped.
    fn admit(&self, kind: Kind, bytes: usize) {
        let mut state = self.state();
        while kind == Kind::Data && state.stop.is_some_and(|most| state.carried[kind as usize] >= most) {
            state.stopped = true;
            self.changed.notify_all();
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.carried[kind as usize] += bytes as u64;
    }
}

fn end(ends: &[impl std::os::fd::AsFd]) {
    for end in ends {
        // This fails if the peer is gone.
        let _ = shutdown(end, Shutdown::Both);
    }
}

/// A port without any answers, as behind a firewall that drops packets: its accept queue is full, so the kernel drops
/// further SYNs.
pub struct Wall {
    _listener: TcpListener,
    _clients: [TcpStream; 2],
}

impl Wall {
    pub fn new(at: SocketAddr) -> Wall {
        let listener = TcpListener::bind(at).unwrap();
        // A queue of length one holds two connections.
        rustix::net::listen(&listener, 1).unwrap();
        let clients = [(); 2].map(|()| TcpStream::connect(at).unwrap());
        Wall { _listener: listener, _clients: clients }
    }
}
