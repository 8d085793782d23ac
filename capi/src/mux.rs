//! A mux in this process, and connections to it: `muxalloc`, `muxmount`, `muxbind`, `muxattach`, `muxsend` and
//! `muxrecv` of Hickey's thesis.
//!
//! A mux and its servers' connections live in one thread; callers wait on their own threads.

use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use futures_util::future::select;
use nine_io::client::{self, Options, blocking};
use nine_io::server::Core;
use nine_mux::{As, Boxed, Dial, Flags, Local, MAIN, Order, Owner, Received, Server, Space, Spawn};
use nine_net::{Addr, Env, Peer, Proof, Reactor, Socket, Task, Transport, rt};
use nine_proto::{Errno, Numeric};
use nine_servers::Ram;
use rustix::net;

use crate::client::{Client, target};
use crate::fail::Fail;
use crate::sys::{NINE_MAFTER, NINE_MBEFORE, NINE_MCREATE, NINE_MREPL};

/// Size of the in-memory tree at the root of a new name space, bytes: enough for mount points.
const BACKBONE: u64 = 1 << 20;
/// Limit for the dial of a server.
const CONNECT: Duration = Duration::from_secs(20);
/// An errno of Linux that 9P does not use.
const EMSGSIZE: Errno = Errno(90);
/// Another one.
const EPROTOTYPE: Errno = Errno(91);

/// A mux, its name space, and its thread.
pub struct Mux {
    mux: nine_mux::Mux,
    core: Core,
    space: Space,
    errands: Arc<Errands>,
}

/// Work for the thread of a mux, where dials find their runtime. Each caller waits for its own result. The thread ends
/// when [`Errands::end`] is called.
#[derive(Default)]
struct Errands(Mutex<Left>);

#[derive(Default)]
struct Left {
    errands: Vec<Errand>,
    over: bool,
    thread: Option<Waker>,
}

type Errand = Box<dyn FnOnce() -> Task + Send>;

impl Errands {
    /// Adds work, which is dropped if the thread has ended.
    fn leave(&self, errand: Errand) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if !left.over {
            left.errands.push(errand);
            left.thread.take().into_iter().for_each(Waker::wake);
        }
    }

    fn end(&self) {
        let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        left.over = true;
        left.errands.clear();
        left.thread.take().into_iter().for_each(Waker::wake);
    }

    /// Runs the work until the end.
    fn run(&self, env: rt::Real) -> impl Future<Output = ()> {
        poll_fn(move |cx| {
            let mut left = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            if left.over {
                return Poll::Ready(());
            }
            left.thread = Some(cx.waker().clone());
            let errands = std::mem::take(&mut left.errands);
            drop(left);
            errands.into_iter().for_each(|errand| env.spawn(errand()));
            Poll::Pending
        })
    }
}

impl Mux {
    pub fn alloc() -> Result<Self, Fail> {
        let core = Core::default();
        let backbone = Local::scratch("ram:", Arc::new(Ram::new(BACKBONE)), core.clone());
        let mux = nine_mux::Mux::new(backbone, Arc::new(Numeric));
        let space = mux.space(MAIN, Owner { name: Box::default(), uid: Some(nine_net::own_ids().0) });
        let errands = Arc::<Errands>::default();
        let (started, lives) = mpsc::sync_channel(1);
        let (theirs, left) = (mux.clone(), errands.clone());
        thread::Builder::new().name("mux".into()).spawn(move || {
            let failed = started.clone();
            let ran = rt::block_on(async |env| {
                let _ = started.send(Ok(()));
                select(pin!(theirs.run(env, &[])), pin!(left.run(env))).await;
            });
            if let Err(error) = ran {
                let _ = failed.send(Err(error));
            }
        })?;
        lives.recv().unwrap_or_else(|_| Err(io::Error::other("the thread of the mux has ended")))?;
        Ok(Self { mux, core, space, errands })
    }

    /// Mounts the server at the other end of a socket. The mux keeps a duplicate of the socket, which becomes
    /// non-blocking.
    pub fn mount(&self, socket: BorrowedFd<'_>, old: &str, flag: i32) -> Result<u64, Fail> {
        let flags = flags(flag)?;
        let failed = |e: rustix::io::Errno| Fail::from(io::Error::from(e));
        if net::sockopt::socket_type(socket).map_err(failed)? != net::SocketType::STREAM {
            return Err(Fail::new(EPROTOTYPE, "9P needs a stream socket"));
        }
        net::getpeername(socket).map_err(failed)?;
        let socket = rustix::io::fcntl_dupfd_cloexec(socket, 0).map_err(failed)?;
        let dial = Once(Mutex::new(Some(socket)));
        self.mount_server(Server::new("a connection of this program", Arc::new(dial)), old, flags)
    }

    /// Mounts the server at an address. The mux redials after a lost connection.
    pub fn mount_at(&self, address: &str, old: &str, flag: i32) -> Result<u64, Fail> {
        let target = target(address)?;
        if let Addr::Tls { .. } | Addr::Shm { .. } | Addr::Il { .. } = target.addr {
            let text = "tcp, unix and vsock are dialled here; mount others by a socket";
            let text = format!("{}: {text}", target.addr);
            return Err(Fail::new(Errno::EOPNOTSUPP, text));
        }
        let name = target.addr.to_string();
        let options = Options { token: target.token, ..Server::options() };
        let server = Server { options, ..Server::new(&name, Arc::new(Reach(target.addr))) };
        self.mount_server(server, old, flags(flag)?)
    }

    fn mount_server(&self, server: Server, old: &str, flags: Flags) -> Result<u64, Fail> {
        let user = As::User { name: Box::default(), uid: Some(nine_net::own_ids().0) };
        let at = old.to_owned();
        self.change(old, async move |space| space.mount(server, "", &user, &at, flags).await)
    }

    pub fn bind(&self, new: &str, old: &str, flag: i32) -> Result<u64, Fail> {
        let (flags, new, at) = (flags(flag)?, new.to_owned(), old.to_owned());
        self.change(old, async move |space| space.bind(&new, &at, flags).await)
    }

    pub fn unmount(&self, new: Option<&str>, old: &str) -> Result<(), Fail> {
        let (new, at) = (new.map(str::to_owned), old.to_owned());
        self.change(old, async move |space| space.unmount(new.as_deref(), &at).await)
    }

    /// Changes the name space at `old` in the mux's thread, and waits for the result.
    fn change<T: Send + 'static>(
        &self,
        old: &str,
        change: impl AsyncFnOnce(Space) -> Result<T, client::Error> + Send + 'static,
    ) -> Result<T, Fail> {
        let (send, receive) = mpsc::sync_channel(1);
        let space = self.space.clone();
        self.errands.leave(Box::new(move || {
            Box::pin(async move {
                // The send fails only if the caller has given up.
                let _ = send.send(change(space).await);
            })
        }));
        let done = receive.recv().map_err(|_| Fail::new(Errno::EBADF, "the mux was closed"))?;
        done.map_err(|error| Fail::from(error).on(old.as_bytes()))
    }

    pub fn attach(&self) -> Result<Con, Fail> {
        let con = self.mux.attach(&self.core);
        let state = Mutex::new(State { con, held: None, waiter: None, closed: false });
        Ok(Con { reactor: Reactor::new()?, turn: Mutex::default(), state })
    }

    /// Opens a session with the mux's name space.
    pub fn client(&self) -> Result<Client, Fail> {
        let reactor = Reactor::new()?;
        let (client, driver) = reactor.block_on(self.mux.client(&self.core, Options::default()))?;
        let client = blocking::Client::driving(reactor, client, driver);
        Client::attach(client, "", nine_net::own_ids().0, "", CONNECT, Instant::now())
    }

    /// Ends the mux: connections to it and to its servers are cut.
    pub fn close(&self) {
        self.errands.end();
    }
}

impl Drop for Mux {
    fn drop(&mut self) {
        self.close();
    }
}

fn flags(flag: i32) -> Result<Flags, Fail> {
    let order = match flag & !NINE_MCREATE {
        NINE_MREPL => Order::Replace,
        NINE_MBEFORE => Order::Before,
        NINE_MAFTER => Order::After,
        _ => {
            let text =
                format!("{flag} is no flag: NINE_MREPL, NINE_MBEFORE or NINE_MAFTER, and NINE_MCREATE");
            return Err(Fail::new(Errno::EINVAL, text));
        }
    };
    Ok(Flags { order, create: flag & NINE_MCREATE != 0, duplicates: false })
}

/// Returns the program's own connection, once; it cannot be dialled again.
struct Once(Mutex<Option<OwnedFd>>);

impl Dial for Once {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Box::pin(async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the connection is gone");
            let socket = socket.ok_or_else(gone)?;
            rustix::io::ioctl_fionbio(socket.as_fd(), true)?;
            let peer = Peer { addr: "a connection of this program".into(), proof: Proof::None };
            Ok(Box::new(Socket::from_parts(socket, peer)?) as Box<dyn Transport>)
        })
    }
}

struct Reach(Addr);

impl Dial for Reach {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let addr = self.0.clone();
        Box::pin(async move { Ok(Box::new(Socket::connect(&addr, CONNECT).await?) as Box<dyn Transport>) })
    }
}

/// A connection for messages to a mux of this process. One thread may send while another one receives.
pub struct Con {
    reactor: Reactor,
    /// Serializes the receiving threads.
    turn: Mutex<()>,
    state: Mutex<State>,
}

struct State {
    con: nine_mux::Con,
    /// A received message that the buffer was too small for.
    held: Option<Received>,
    /// The thread that waits for a message.
    waiter: Option<Waker>,
    closed: bool,
}

impl Con {
    pub fn send(&self, message: &[u8]) -> Result<(), Fail> {
        let mut state = self.open()?;
        let sent = state.con.send_bytes(message);
        // A receiving thread sends the rest of the message.
        state.call();
        Ok(sent?)
    }

    /// Receives the next message into `buf` and returns its length. If it does not fit, returns EMSGSIZE and keeps the
    /// message.
    pub fn receive(&self, buf: &mut [u8]) -> Result<usize, Fail> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            self.reactor.block_on(poll_fn(|cx| self.poll_held(cx)))?;
            // A concurrent `try_receive` may have taken the message.
            if let Some(len) = self.take(buf)? {
                return Ok(len);
            }
        }
    }

    fn poll_held(&self, cx: &mut Context<'_>) -> Poll<Result<(), Fail>> {
        let mut state = self.open()?;
        if state.held.is_none() {
            let Poll::Ready(received) = pin!(state.con.receive()).poll(cx) else {
                state.waiter = Some(cx.waker().clone());
                return Poll::Pending;
            };
            state.held = Some(received?);
        }
        Poll::Ready(Ok(()))
    }

    /// Like [`Con::receive`], but returns `None` instead of waiting.
    pub fn try_receive(&self, buf: &mut [u8]) -> Result<Option<usize>, Fail> {
        {
            let mut state = self.open()?;
            if state.held.is_none() {
                let received = state.con.try_receive();
                // This replaced the waiting thread's waker, so that thread must poll again.
                state.call();
                state.held = received?;
            }
        }
        self.take(buf)
    }

    fn take(&self, buf: &mut [u8]) -> Result<Option<usize>, Fail> {
        let mut state = self.open()?;
        let Some(received) = &state.held else { return Ok(None) };
        let len = received.bytes().len();
        let Some(room) = buf.get_mut(..len) else {
            return Err(Fail::new(EMSGSIZE, format!("the message has {len} bytes")));
        };
        room.copy_from_slice(received.bytes());
        state.held = None;
        Ok(Some(len))
    }

    fn open(&self) -> Result<MutexGuard<'_, State>, Fail> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return Err(Fail::new(Errno::EBADF, "the connection was closed"));
        }
        Ok(state)
    }

    /// Closes the connection and wakes a waiting thread.
    pub fn close(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.closed = true;
        state.call();
    }
}

impl State {
    /// Wakes a waiting thread to look again. A reactor's waker takes none of our locks.
    fn call(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            waiter.wake();
        }
    }
}
