//! Attaches programs of the same process to a mux, as clients (muxattach, muxsend and muxrecv of the seed) and as file
//! servers without a socket.

use std::future::{poll_fn, ready};
use std::io::{self, IoSlice};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nine_io::client::{Client, Driver, Error, Options};
use nine_io::server::{Core, FileServer, Gate, Service};
use nine_net::{Peer, Pipe, Proof, Transport, pipe};
use nine_proto::frame::{Split, split};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, NOTAG, Tag, WireError};

use crate::Mux;
use crate::upstream::{Boxed, Dial, Server, Spawn};

impl Mux {
    /// Creates a connection of this process (muxattach), to send and receive messages without blocking.
    pub fn attach(&self, core: &Core) -> Con {
        let pipe = serve(self, core, &self.0.outside.place(0));
        Con {
            pipe,
            dialect: Dialect::P2000,
            msize: FIRST_REPLY_MAX,
            asked: false,
            unsent: Vec::new(),
            came: Vec::new(),
        }
    }

    /// Creates a client of this process, and its driver. The caller must spawn the driver.
    pub async fn client(&self, core: &Core, options: Options) -> Result<(Client, Driver), Error> {
        Client::connect(serve(self, core, &self.0.outside.place(0)), options).await
    }
}

/// A file server of this process, ready to be mounted.
pub struct Local {
    server: Box<ServerOpener>,
    core: Core,
    kind: LocalServerKind,
}

/// Returns the server once it is open. Called for each connection.
type ServerOpener = dyn Fn() -> Boxed<io::Result<Arc<dyn FileServer>>> + Send + Sync;

#[derive(Clone, Copy, PartialEq, Eq)]
enum LocalServerKind {
    Plain,
    Scratch,
    Told,
}

impl Local {
    /// Creates the configuration to mount a server. `name` is its name in messages. Its clients appear as the user of
    /// this process.
    pub fn server(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, LocalServerKind::Plain)
    }

    /// Like [`Local::server`], for a tree in memory, in which missing mount points are created.
    pub fn scratch(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, LocalServerKind::Scratch)
    }

    /// Like [`Local::server`], for a server that must know the standing of a client and whether it is the owner. If it
    /// is mounted as [`As::Client`](crate::As), the aname has that information ([`told`](crate::told)).
    pub fn told(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, LocalServerKind::Told)
    }

    /// Like [`Local::server`], for a server that another thread may still be opening. Only the mount waits for it.
    pub fn soon(
        name: &str,
        server: impl Fn() -> Boxed<io::Result<Arc<dyn FileServer>>> + Send + Sync + 'static,
        core: Core,
    ) -> Server {
        Self { server: Box::new(server), core, kind: LocalServerKind::Plain }.named(name)
    }

    fn of_kind(name: &str, server: Arc<dyn FileServer>, core: Core, kind: LocalServerKind) -> Server {
        let server = Box::new(move || Box::pin(ready(Ok(server.clone()))) as Boxed<_>);
        Self { server, core, kind }.named(name)
    }

    fn named(self, name: &str) -> Server {
        Server { local: true, ..Server::new(name, Arc::new(self)) }
    }
}

impl Dial for Local {
    fn dial(&self, spawn: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let (near, far) = ends();
        let (server, open, core) = ((self.server)(), (self.server)(), self.core.clone());
        spawn.spawn(Box::pin(async move {
            // If it fails, the dial reports the error.
            if let Ok(server) = server.await {
                let service = Service::new(server, Gate::default(), core);
                Service { own: true, ..service }.connect(Box::new(far)).await;
            }
        }));
        Box::pin(async move { open.await.map(|_| Box::new(near) as Box<dyn Transport>) })
    }

    fn is_scratch(&self) -> bool {
        self.kind == LocalServerKind::Scratch
    }

    fn is_told(&self) -> bool {
        self.kind == LocalServerKind::Told
    }
}

/// A connection to a mux of this process. Dropping it clunks its fids.
pub struct Con {
    pipe: Pipe,
    dialect: Dialect,
    msize: u32,
    /// Whether a Tversion is in flight.
    asked: bool,
    unsent: Vec<u8>,
    /// Received bytes that start with a reply.
    came: Vec<u8>,
}

/// An R-message.
pub struct Received {
    frame: Vec<u8>,
    dialect: Dialect,
}

impl Received {
    /// Decodes the message and the tag of the request that it answers.
    pub fn message(&self) -> Result<(Tag, Rmsg<'_>), WireError> {
        Rmsg::decode(&self.frame, self.dialect)
    }

    /// Returns the encoded message, starting with `size[4]`.
    pub fn bytes(&self) -> &[u8] {
        &self.frame
    }
}

impl Con {
    /// Queues a T-message (muxsend). The next call of [`Con::receive`] or [`Con::try_receive`] sends it. The caller
    /// chooses tags and fids, as on any 9P connection.
    ///
    /// # Errors
    /// `WouldBlock` if [`UNSENT_MAX`] bytes are queued. Receive first.
    pub fn send(&mut self, tag: Tag, message: &Tmsg<'_>) -> io::Result<()> {
        self.push()?;
        if self.unsent.len() >= UNSENT_MAX {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if let Tmsg::Version { .. } = message {
            (self.dialect, self.asked) = (Dialect::P2000, true);
        }
        message.encode(tag, self.dialect, &mut self.unsent);
        self.push()
    }

    /// Queues an encoded T-message like [`Con::send`].
    ///
    /// # Errors
    /// Those of [`Con::send`], and `InvalidInput` if the bytes are not exactly one T-message of the current dialect.
    pub fn send_bytes(&mut self, message: &[u8]) -> io::Result<()> {
        let wrong = |error: &dyn std::fmt::Display| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("no whole T-message: {error}"))
        };
        match split(message, self.msize).map_err(|error| wrong(&error))? {
            Split::Whole(size) if size == message.len() => {}
            _ => return Err(wrong(&"its size is another than its length")),
        }
        let (tag, decoded) = Tmsg::decode(message, self.dialect).map_err(|error| wrong(&error))?;
        self.send(tag, &decoded)
    }

    /// Waits for the next R-message (muxrecv).
    pub async fn receive(&mut self) -> io::Result<Received> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// Returns the next R-message, if it is available.
    pub fn try_receive(&mut self) -> io::Result<Option<Received>> {
        match self.poll_receive(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(received) => received.map(Some),
            Poll::Pending => Ok(None),
        }
    }

    fn push(&mut self) -> io::Result<()> {
        match self.poll_push(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Err(error)) => Err(error),
            _ => Ok(()),
        }
    }

    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.unsent.is_empty() {
            match self.pipe.poll_write(cx, &[IoSlice::new(&self.unsent)]) {
                Poll::Ready(Ok(n)) => drop(self.unsent.drain(..n)),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_receive(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Received>> {
        loop {
            if let Poll::Ready(Err(error)) = self.poll_push(cx) {
                return Poll::Ready(Err(error));
            }
            let whole = split(&self.came, self.msize).map_err(bad_answer)?;
            if let Split::Whole(size) = whole {
                let frame: Vec<u8> = self.came.drain(..size).collect();
                let received = Received { frame, dialect: self.dialect };
                let agreed = match received.message() {
                    Ok((NOTAG, Rmsg::Version { msize, version })) if self.asked => {
                        Dialect::parse(version).map(|dialect| (dialect, msize))
                    }
                    _ => None,
                };
                if let Some((dialect, msize)) = agreed {
                    (self.dialect, self.msize, self.asked) = (dialect, msize.max(FIRST_REPLY_MAX), false);
                }
                return Poll::Ready(Ok(received));
            }
            let before = self.came.len();
            self.came.resize(before + READ, 0);
            let read = self.pipe.poll_read(cx, &mut self.came[before..]);
            let n = if let Poll::Ready(Ok(n)) = &read { *n } else { 0 };
            self.came.truncate(before + n);
            match read {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => return Poll::Pending,
            }
        }
    }
}

fn serve(mux: &Mux, core: &Core, spawn: &dyn Spawn) -> Pipe {
    let (near, far) = ends();
    let service = Service::new(Arc::new(mux.clone()), Gate::default(), core.clone());
    let service = Service { own: true, ..service };
    spawn.spawn(Box::pin(service.connect(Box::new(far))));
    near
}

/// Creates a pipe. Both ends have this process's user.
fn ends() -> (Pipe, Pipe) {
    let (uid, gid) = nine_net::own_ids();
    let peer = |addr: &str| Peer { addr: addr.into(), proof: Proof::Unix { uid, gid } };
    pipe(peer("server in this process"), peer("client in this process"))
}

fn bad_answer(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Number of queued bytes at which a send is refused.
pub const UNSENT_MAX: usize = 1 << 20;
/// Maximum size of replies before the version is agreed, in bytes.
const FIRST_REPLY_MAX: u32 = 8192;
const READ: usize = 16 * 1024;
