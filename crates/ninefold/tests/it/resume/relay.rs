//! A relay between a client and a server that parses messages. It counts them, stops after a number of bytes, cuts the
//! connection, or holds answers back until there are enough requests.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Message types of the manual.
pub const TLOPEN: u8 = 12;
pub const TWRITE: u8 = 118;
pub const TREAD: u8 = 116;
pub const RREAD: u8 = 117;
pub const RWRITE: u8 = 119;
pub const RGETATTR: u8 = 25;
pub const RSETATTR: u8 = 27;
pub const TSTREAM: u8 = 128;
pub const TSCLOSE: u8 = 130;
pub const RSCLOSE: u8 = 131;

/// From client to server, or from server to client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Up,
    Down,
}

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A running relay.
pub struct Relay {
    address: String,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// Number of messages by type.
    counts: Vec<usize>,
    /// Bytes in each direction.
    bytes: [u64; 2],
    /// Nothing more passes in this direction after this many bytes.
    stop: Option<(Way, u64)>,
    stopped: bool,
    /// Messages of the first type wait until this many of the second have passed.
    hold: Option<(u8, u8, usize)>,
    /// Every n-th answer of this type is replaced by the error EMFILE, although the request was executed.
    refuse: Option<(u8, usize)>,
    cut: bool,
}

impl Relay {
    /// Starts a relay for the server at the socket `server`, on a socket beside it.
    pub fn start(server: &Path, name: &str) -> Relay {
        let path = server.with_file_name(name);
        let listener = UnixListener::bind(&path).unwrap();
        let server = server.to_path_buf();
        let accept = move || (listener.accept().unwrap().0, UnixStream::connect(&server).unwrap());
        Relay::between(format!("unix:{}", path.display()), accept, |end| end.try_clone().unwrap())
    }

    /// Starts a relay for the server at this port of this machine, for clients with this token.
    pub fn tcp(port: u16, token: &str) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("9p://{token}@{}", listener.local_addr().unwrap());
        let accept = move || (listener.accept().unwrap().0, TcpStream::connect(("127.0.0.1", port)).unwrap());
        Relay::between(address, accept, |end| end.try_clone().unwrap())
    }

    fn between<S: End>(
        address: String,
        accept: impl Fn() -> (S, S) + Send + 'static,
        copy: fn(&S) -> S,
    ) -> Relay {
        let shared = Arc::new(Shared::default());
        shared.state.lock().unwrap().counts = vec![0; 256];
        let all = shared.clone();
        std::thread::spawn(move || {
            loop {
                let (client, server) = accept();
                for (way, from, to) in [(Way::Up, &client, &server), (Way::Down, &server, &client)] {
                    let (from, to, shared) = (copy(from), copy(to), all.clone());
                    std::thread::spawn(move || shared.pass(way, from, to));
                }
            }
        });
        Relay { address, shared }
    }

    /// Returns its address for the command line.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Stops this direction after this many bytes.
    pub fn stop_after(&self, way: Way, bytes: u64) {
        self.shared.state.lock().unwrap().stop = Some((way, bytes));
    }

    /// Waits until it is stopped.
    pub fn is_stopped(&self) {
        let state = self.shared.state.lock().unwrap();
        let (state, _) =
            self.shared.changed.wait_timeout_while(state, LIMIT, |state| !state.stopped).unwrap();
        assert!(state.stopped, "only {:?} bytes have passed", state.bytes);
    }

    /// Holds messages of the type `held` until `count` of the type `asked` have passed.
    pub fn hold(&self, held: u8, asked: u8, count: usize) {
        self.shared.state.lock().unwrap().hold = Some((held, asked, count));
    }

    /// Replaces every `n`th answer of the type `ty` by EMFILE.
    pub fn refuse(&self, ty: u8, n: usize) {
        self.shared.state.lock().unwrap().refuse = Some((ty, n));
    }

    /// Lets everything pass from now on.
    pub fn go_on(&self) {
        let mut state = self.shared.state.lock().unwrap();
        (state.stop, state.stopped, state.hold) = (None, false, None);
        self.shared.changed.notify_all();
    }

    /// Cuts the connections.
    pub fn cut(&self) {
        self.shared.state.lock().unwrap().cut = true;
        self.shared.changed.notify_all();
    }

    /// Returns the number of messages of this type that have passed.
    pub fn count(&self, ty: u8) -> usize {
        self.shared.state.lock().unwrap().counts[usize::from(ty)]
    }

    /// Returns the number of requests that have passed.
    pub fn requests(&self) -> usize {
        self.shared.state.lock().unwrap().counts.iter().step_by(2).sum()
    }

    /// Returns the bytes that have passed in this direction.
    pub fn bytes(&self, way: Way) -> u64 {
        self.shared.state.lock().unwrap().bytes[way as usize]
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cut();
    }
}

impl Shared {
    fn pass<S: End>(&self, way: Way, mut from: S, mut to: S) {
        while let Some(mut message) = message(&mut from) {
            let ty = message[4];
            let mut state = self.state.lock().unwrap();
            state.counts[usize::from(ty)] += 1;
            let count = state.counts[usize::from(ty)];
            self.changed.notify_all();
            loop {
                let bytes = state.bytes[way as usize];
                let stop = state.stop.is_some_and(|(stop, most)| stop == way && bytes >= most);
                let hold = state.hold.is_some_and(|(held, asked, count)| {
                    held == ty && state.counts[usize::from(asked)] < count
                });
                if state.cut || !(stop || hold) {
                    break;
                }
                state.stopped |= stop;
                self.changed.notify_all();
                state = self.changed.wait(state).unwrap();
            }
            state.bytes[way as usize] += message.len() as u64;
            let cut = state.cut;
            if state.refuse.is_some_and(|(refused, n)| refused == ty && count.is_multiple_of(n)) {
                // size[4] Rlerror tag[2] ecode[4]
                message = [&[11, 0, 0, 0, 7], &message[5..7], &24u32.to_le_bytes()[..]].concat();
            }
            drop(state);
            if cut || to.write_all(&message).is_err() {
                break;
            }
        }
        from.end();
        to.end();
    }
}

/// An end of a connection.
trait End: Read + Write + Send + 'static {
    fn end(&self);
}

impl End for UnixStream {
    fn end(&self) {
        // The other direction may have shut it down already.
        let _ = self.shutdown(Shutdown::Both);
    }
}

impl End for TcpStream {
    fn end(&self) {
        let _ = self.shutdown(Shutdown::Both);
    }
}

fn message(from: &mut impl Read) -> Option<Vec<u8>> {
    let mut size = [0; 4];
    match from.read_exact(&mut size) {
        Err(e) if e.kind() != ErrorKind::Interrupted => return None,
        read => read.unwrap(),
    }
    let mut message = vec![0; u32::from_le_bytes(size) as usize];
    message[..4].copy_from_slice(&size);
    from.read_exact(&mut message[4..]).ok()?;
    Some(message)
}
