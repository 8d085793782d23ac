//! Programs in the same process as clients and servers of a mux: muxattach, muxsend and muxrecv of the seed, and file
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
    /// A connection of this process (muxattach), to send and receive messages without ever being blocked.
    pub fn attach(&self, core: &Core) -> Con {
        let pipe = serve(self, core, &self.0.outside.place(0));
        Con {
            pipe,
            dialect: Dialect::P2000,
            msize: FIRST,
            asked: false,
            unsent: Vec::new(),
            came: Vec::new(),
        }
    }

    /// A client of this process, and the driver to be spawned.
    pub async fn client(&self, core: &Core, options: Options) -> Result<(Client, Driver), Error> {
        Client::connect(serve(self, core, &self.0.outside.place(0)), options).await
    }
}

/// A file server of this process, as something to be mounted.
pub struct Local {
    server: Box<Opening>,
    core: Core,
    kind: Kind,
}

/// The server, when it is open: asked for each connection.
type Opening = dyn Fn() -> Boxed<io::Result<Arc<dyn FileServer>>> + Send + Sync;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Plain,
    Scratch,
    Told,
}

impl Local {
    /// What to mount it by; `name` is what messages call it. Its clients are the user that runs this process.
    pub fn server(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, Kind::Plain)
    }

    /// The same for a tree in memory: mount points that are missing there are made.
    pub fn scratch(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, Kind::Scratch)
    }

    /// The same for a server that must know what stands behind a client's name, and who the owner is: the aname says it
    /// ([`told`](crate::told)) where it is mounted as [`As::Client`](crate::As).
    pub fn told(name: &str, server: Arc<dyn FileServer>, core: Core) -> Server {
        Self::of_kind(name, server, core, Kind::Told)
    }

    /// The same for a server that another thread may be opening still: nobody but who mounts it waits for that.
    pub fn soon(
        name: &str,
        server: impl Fn() -> Boxed<io::Result<Arc<dyn FileServer>>> + Send + Sync + 'static,
        core: Core,
    ) -> Server {
        Self { server: Box::new(server), core, kind: Kind::Plain }.named(name)
    }

    fn of_kind(name: &str, server: Arc<dyn FileServer>, core: Core, kind: Kind) -> Server {
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
            // Where it fails, who dials is told.
            if let Ok(server) = server.await {
                let service = Service::new(server, Gate::default(), core);
                Service { own: true, ..service }.connect(Box::new(far)).await;
            }
        }));
        Box::pin(async move { open.await.map(|_| Box::new(near) as Box<dyn Transport>) })
    }

    fn is_scratch(&self) -> bool {
        self.kind == Kind::Scratch
    }

    fn is_told(&self) -> bool {
        self.kind == Kind::Told
    }
}

/// A connection to a mux of this process. Dropping it clunks its fids.
pub struct Con {
    pipe: Pipe,
    dialect: Dialect,
    msize: u32,
    /// A Tversion is under way.
    asked: bool,
    unsent: Vec<u8>,
    /// Bytes of answers, from the beginning of one.
    came: Vec<u8>,
}

/// An R-message.
pub struct Received {
    frame: Vec<u8>,
    dialect: Dialect,
}

impl Received {
    /// What it says, and the tag of the request it answers.
    pub fn message(&self) -> Result<(Tag, Rmsg<'_>), WireError> {
        Rmsg::decode(&self.frame, self.dialect)
    }

    /// The message as it lies on the wire, `size[4]` first.
    pub fn bytes(&self) -> &[u8] {
        &self.frame
    }
}

impl Con {
    /// Sends a T-message (muxsend): it is taken at once, and on its way when [`Con::receive`] or
    /// [`Con::try_receive`] is asked next. The caller chooses tags and fids, as on any 9P connection.
    ///
    /// # Errors
    /// `WouldBlock`: [`UNSENT_MAX`] bytes wait already; receive first.
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

    /// [`Con::send`] of a message as it lies on the wire.
    ///
    /// # Errors
    /// Those of [`Con::send`]; `InvalidInput`: these bytes are not one whole T-message of the dialect that is spoken.
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

    /// The next R-message (muxrecv).
    pub async fn receive(&mut self) -> io::Result<Received> {
        poll_fn(|cx| self.poll_receive(cx)).await
    }

    /// The next R-message, if it is there.
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
                    (self.dialect, self.msize, self.asked) = (dialect, msize.max(FIRST), false);
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

/// Both ends are this process' own user.
fn ends() -> (Pipe, Pipe) {
    let (uid, gid) = nine_net::own_ids();
    let peer = |addr: &str| Peer { addr: addr.into(), proof: Proof::Unix { uid, gid } };
    pipe(peer("server in this process"), peer("client in this process"))
}

fn bad_answer(error: WireError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Bytes that may wait to be taken.
pub const UNSENT_MAX: usize = 1 << 20;
/// Answers before the version is agreed are no longer.
const FIRST: u32 = 8192;
const READ: usize = 16 * 1024;
