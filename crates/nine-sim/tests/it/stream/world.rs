//! A server with streams, a distant client, and data connections whose behaviour a test chooses.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use nine_io::client::{Client, Dial, Dialing, File, Options};
use nine_io::server::{Core, FileServer, Gate, Service, Streams};
use nine_net::{Env, Peer, Transport};
use nine_proto::{Dialect, NOUID};
use nine_sim::{End, Links, Shape, SimEnv, World};

use crate::stream::book::Book;
use crate::stream::talk::{Data, Talk};

/// The outcome of data connections.
#[derive(Clone)]
pub enum Fate {
    /// They have this shape.
    Come(Shape),
    /// They have this shape, and the dialler's end buffers bytes.
    Held(Shape),
    /// Dials are refused.
    Refused,
    /// Dials fail after a second.
    Silent,
    /// A middlebox accepts them and all their bytes, and forwards nothing.
    Swallowed(Shape),
}

/// A server and the addresses that lead to it. Clones share it.
#[derive(Clone)]
pub struct Site {
    pub env: SimEnv,
    pub service: Service,
    pub ways: Arc<Ways>,
}

/// Connects to a site. It dials data connections from any thread.
pub struct Ways {
    links: Links,
    door: Arc<Door>,
    pub fate: Mutex<Fate>,
    /// The far ends of swallowed connections.
    nowhere: Mutex<Vec<End>>,
    /// Addresses that servers have offered, in order.
    pub offers: Mutex<Vec<String>>,
}

/// Incoming connections.
#[derive(Default)]
struct Door(Mutex<(VecDeque<Come>, Option<Waker>)>);

enum Come {
    Connection(Box<dyn Transport>),
    /// A second begins, for a dialler.
    Second(Arc<Mutex<(bool, Option<Waker>)>>),
}

impl Door {
    fn give(&self, come: Come) {
        let mut state = self.0.lock().unwrap();
        state.0.push_back(come);
        state.1.take().into_iter().for_each(Waker::wake);
    }
}

/// Creates a world, a recording server, and its site.
pub fn stage(seed: u64) -> (World, Arc<Book>, Site) {
    let world = World::new(seed);
    let book = Book::new(&world);
    let site = Site::new(&world, book.clone());
    (world, book, site)
}

/// Asserts that everything at this site has ended and nothing is left: only `tasks` tasks, no byte, no connection, no
/// offer.
pub fn at_rest(world: &World, site: &Site, tasks: usize) {
    world.settle();
    let nothing = |when: &str| {
        let core = &site.service.core;
        assert_eq!((world.tasks(), core.connected(), core.borrowed()), (tasks, 0, 0), "{when}");
    };
    nothing("a task, a connection, bytes are left");
    let again = site.clone();
    world.run(async move {
        let mut talk = again.talk().await;
        for fid in 0..64 {
            talk.open(10 + fid, "spare", 2).await;
            talk.stream(10 + fid, fid % 2 == 0, 0).await.expect("there is no offer left of before");
        }
        talk.open(9, "spare", 0).await;
        assert_eq!(talk.stream(9, true, 0).await, Err(nine_proto::Errno::EAGAIN.0));
    });
    world.settle();
    nothing("of offers that are not taken");
}

impl Site {
    pub fn new(world: &World, server: Arc<dyn FileServer>) -> Self {
        Self::with_core(world, server, Core::default())
    }

    pub fn with_core(world: &World, server: Arc<dyn FileServer>, core: Core) -> Self {
        Self::offering(world, Service::new(server, Gate::default(), core), "tcp!*!564")
    }

    /// Creates a server whose streams are dialled at this address.
    pub fn offering(world: &World, service: Service, addr: &str) -> Self {
        Self::of(world, service.with_streams(Streams::new(addr, world.env().clock())))
    }

    /// Returns another address of the same server, for streams only.
    pub fn for_streams(&self, world: &World) -> Self {
        Self::of(world, Service { only_streams: true, ..self.service.clone() })
    }

    /// Creates a server without streams.
    pub fn plain(world: &World, server: Arc<dyn FileServer>) -> Self {
        Self::of(world, Service::new(server, Gate::default(), Core::default()))
    }

    fn of(world: &World, service: Service) -> Self {
        let env = world.env();
        let ways = Arc::new(Ways {
            links: Links::new(world),
            door: Arc::default(),
            fate: Mutex::new(Fate::Come(Shape::default())),
            nowhere: Mutex::default(),
            offers: Mutex::default(),
        });
        let site = Self { env: env.clone(), service, ways };
        let (door, service) = (site.ways.door.clone(), site.service.clone());
        env.clone().spawn(Box::pin(async move {
            loop {
                let come = poll_fn(|cx| {
                    let mut state = door.0.lock().unwrap();
                    state.1 = Some(cx.waker().clone());
                    state.0.pop_front().map_or(Poll::Pending, Poll::Ready)
                });
                let (service, inner) = (service.clone(), env.clone());
                match come.await {
                    Come::Connection(end) => env.spawn(Box::pin(async move {
                        service.welcome(inner, end).await;
                    })),
                    Come::Second(told) => env.spawn(Box::pin(async move {
                        inner.sleep_until(inner.now() + Duration::from_secs(1)).await;
                        let mut told = told.lock().unwrap();
                        told.0 = true;
                        told.1.take().into_iter().for_each(Waker::wake);
                    })),
                }
            }
        }));
        site
    }

    /// Returns a nearby client that sends single messages.
    pub async fn talk(&self) -> Talk {
        Talk::new(self.ways.connect(near())).await
    }

    /// Returns a data connection that has presented this token.
    pub async fn data(&self, token: &str) -> Data {
        Data::shown(self.ways.connect(Shape::default()), token).await
    }

    pub async fn sleep(&self, time: Duration) {
        self.env.sleep_until(self.env.now() + time).await;
    }

    /// Runs work for at most this time. After that it is dropped.
    pub async fn within<T>(&self, time: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut timer = self.env.sleep_until(self.env.now() + time);
        let mut work = std::pin::pin!(work);
        poll_fn(|cx| match work.as_mut().poll(cx) {
            Poll::Ready(value) => Poll::Ready(Some(value)),
            Poll::Pending => timer.as_mut().poll(cx).map(|()| None),
        })
        .await
    }

    pub fn fate(&self, fate: Fate) {
        *self.ways.fate.lock().unwrap() = fate;
    }

    pub fn offers(&self) -> Vec<String> {
        self.ways.offers.lock().unwrap().clone()
    }

    pub fn options(&self) -> Options {
        let options =
            Options { dialects: vec![Dialect::L], clock: Some(self.env.clock()), ..Options::default() };
        options.with_streams(self.ways.clone())
    }

    /// Returns a client at the root.
    pub async fn client(&self, shape: Shape, options: Options) -> (Client, File) {
        self.client_of("sim", shape, options).await
    }

    /// Returns a client of a server with this dial string.
    pub async fn client_of(&self, addr: &str, shape: Shape, options: Options) -> (Client, File) {
        let io = self.ways.connect(shape);
        let peer = Peer { addr: addr.into(), ..io.peer().clone() };
        let (client, driver) =
            Client::connect(Named { io, peer }, options).await.expect("the server answers");
        self.env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("u", NOUID, "").await.expect("the server lets in");
        (client, root)
    }
}

impl Ways {
    /// Returns a new connection to the site.
    pub fn connect(&self, shape: Shape) -> End {
        let (near, far) = self.links.link(shape);
        self.door.give(Come::Connection(Box::new(far)));
        near
    }

    /// The same; `end` wraps the server's side.
    pub fn connect_to(&self, shape: Shape, end: impl FnOnce(End) -> Box<dyn Transport>) -> End {
        let (near, far) = self.links.link(shape);
        self.door.give(Come::Connection(end(far)));
        near
    }
}

/// A link to a peer with another name.
struct Named {
    io: End,
    peer: Peer,
}

impl Transport for Named {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.io.poll_write(cx, bufs)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// Number of bytes that [`Holds`] buffers.
const HELD: usize = 64 * 1024;

/// A transport that buffers bytes, as TLS does.
pub struct Holds {
    io: End,
    out: Vec<u8>,
}

/// A transport whose received bytes can be spliced into a pipe, as from a socket.
pub struct Splices {
    io: End,
    /// Bytes that did not fit into the pipe.
    come: Vec<u8>,
}

impl Splices {
    pub fn end(io: End) -> Box<dyn Transport> {
        Box::new(Self { io, come: Vec::new() })
    }
}

impl Transport for Splices {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.come.is_empty() {
            return self.io.poll_read(cx, buf);
        }
        let n = buf.len().min(self.come.len());
        buf[..n].copy_from_slice(&self.come[..n]);
        self.come.drain(..n);
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.io.poll_write(cx, bufs)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.io.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_hangup(cx)
    }

    fn can_splice(&self) -> bool {
        true
    }

    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        if self.come.is_empty() {
            let mut buf = vec![0; len.min(64 * 1024)];
            let n = ready!(self.io.poll_read(cx, &mut buf))?;
            if n == 0 {
                return Poll::Ready(Ok(0));
            }
            self.come = buf[..n].to_vec();
        }
        rustix::fs::fcntl_setfl(pipe, rustix::fs::OFlags::NONBLOCK)?;
        Poll::Ready(match rustix::io::write(pipe, &self.come) {
            Ok(n) => {
                self.come.drain(..n);
                Ok(n)
            }
            Err(rustix::io::Errno::AGAIN) => Err(io::ErrorKind::StorageFull.into()),
            Err(error) => Err(error.into()),
        })
    }

    fn peer(&self) -> &Peer {
        self.io.peer()
    }
}

impl Holds {
    pub fn end(io: End) -> Box<dyn Transport> {
        Box::new(Self { io, out: Vec::new() })
    }

    fn poll_push(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while !self.out.is_empty() {
            let n = ready!(self.io.poll_write(cx, &[IoSlice::new(&self.out)]))?;
            self.out.drain(..n);
        }
        Poll::Ready(Ok(()))
    }
}

impl Transport for Holds {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.io.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if self.out.len() >= HELD {
            ready!(self.poll_push(cx))?;
        }
        let before = self.out.len();
        self.out.extend(bufs.iter().flat_map(|buf| buf.iter().copied()).take(HELD - before));
        let taken = self.out.len() - before;
        let _ = self.poll_push(cx)?;
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_push(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_push(cx))?;
        self.io.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.io.poll_hangup(cx)
    }

    fn peer(&self) -> &Peer {
        self.io.peer()
    }
}

impl Dial for Ways {
    fn dial(&self, _: &str, addr: &str) -> Dialing {
        self.offers.lock().unwrap().push(addr.to_owned());
        let fate = self.fate.lock().unwrap().clone();
        match fate {
            Fate::Come(shape) => {
                let near = self.connect(shape);
                Box::pin(async { Ok(Box::new(near) as Box<dyn Transport>) })
            }
            Fate::Held(shape) => {
                let near = Holds::end(self.connect(shape));
                Box::pin(async { Ok(near) })
            }
            Fate::Swallowed(shape) => {
                let (near, nowhere) = self.links.link(shape);
                self.nowhere.lock().unwrap().push(nowhere);
                Box::pin(async { Ok(Box::new(near) as Box<dyn Transport>) })
            }
            Fate::Refused => Box::pin(async { Err(io::ErrorKind::ConnectionRefused.into()) }),
            Fate::Silent => {
                let told = Arc::new(Mutex::new((false, None)));
                self.door.give(Come::Second(told.clone()));
                Box::pin(poll_fn(move |cx| {
                    let mut told = told.lock().unwrap();
                    told.1 = Some(cx.waker().clone());
                    if told.0 { Poll::Ready(Err(io::ErrorKind::TimedOut.into())) } else { Poll::Pending }
                }))
            }
        }
    }
}

/// Returns bytes that depend on their position.
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (i ^ (i >> 8) ^ (i >> 16) ^ (i >> 24)) as u8).collect()
}

/// A link to a nearby machine.
pub fn near() -> Shape {
    Shape { delay: Duration::from_micros(10), ..Shape::default() }
}

/// A link to a distant machine.
pub fn far(ms: u64) -> Shape {
    Shape { delay: Duration::from_millis(ms / 2), window: 4 << 20, ..Shape::default() }
}
