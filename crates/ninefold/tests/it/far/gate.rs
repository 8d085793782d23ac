//! What stands between a client and a server: carries connections to another address, tells those of streams from those
//! of 9P, counts, stops and cuts them. And a wall, which answers nothing.

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

/// Bytes that wait here for a client: so the server does not send all of a file while it is stopped.
const BUFFER: usize = 256 << 10;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Session,
    Data,
}

/// Where a gate leads.
#[derive(Clone)]
pub enum To {
    Tcp(SocketAddr),
    Unix(PathBuf),
}

/// See the module. Its connections end with it.
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
    /// Data connections that something may still be carried on.
    data: usize,
    /// Bytes of both ways, by kind.
    carried: [u64; 2],
    /// Data connections carry no more than about so many bytes.
    stop: Option<u64>,
    stopped: bool,
}

impl Gate {
    /// Opens at `at`; both sides of it are where the calling thread lives.
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

    /// Bytes that connections of this kind have carried, both ways.
    pub fn carried(&self, kind: Kind) -> u64 {
        self.shared.state().carried[kind as usize]
    }

    /// Waits for the end of data connections that there are. Those that come then stop when they have carried so many
    /// bytes.
    pub fn stop_after(&self, bytes: u64) {
        let mut state = self.shared.wait("there are data connections", |state| state.data == 0);
        state.stop = Some(state.carried[Kind::Data as usize] + bytes);
    }

    /// Waits until one has been stopped.
    pub fn is_stopped(&self) {
        drop(self.shared.wait("too little has been carried", |state| state.stopped));
    }

    /// Everything is carried from now on.
    pub fn go_on(&self) {
        let mut state = self.shared.state();
        (state.stop, state.stopped) = (None, false);
        self.shared.changed.notify_all();
    }

    /// The connections of this kind end at both sides, as if nothing more were to come; all else goes on.
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
        // Either may have ended by itself.
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

    /// Waits until it is so, and panics with `not` if it does not come about.
    fn wait(&self, not: &str, is: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let waited = self.changed.wait_timeout_while(self.state(), LIMIT, |state| !is(state));
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        assert!(is(&state), "{not}: {:?} bytes", state.carried);
        state
    }

    fn connection(&self, near: TcpStream, to: &To) {
        near.set_nodelay(true).unwrap();
        let (mut near, mut first) = (File::from(OwnedFd::from(near)), [0; 4]);
        // Who has said nothing is nobody.
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
                // It may have ended both ways.
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

    /// Waits where this kind is stopped, and counts.
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
        // Who has gone already is not there to be told.
        let _ = shutdown(end, Shutdown::Both);
    }
}

/// A port of which nothing is heard, as behind a firewall that drops packets: its queue of clients is full, so the
/// kernel drops what would open one more.
pub struct Wall {
    _listener: TcpListener,
    _clients: [TcpStream; 2],
}

impl Wall {
    pub fn new(at: SocketAddr) -> Wall {
        let listener = TcpListener::bind(at).unwrap();
        // A queue of one has room for two.
        rustix::net::listen(&listener, 1).unwrap();
        let clients = [(); 2].map(|()| TcpStream::connect(at).unwrap());
        Wall { _listener: listener, _clients: clients }
    }
}
