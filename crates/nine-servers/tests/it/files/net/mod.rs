//! The network, as clients see it: real sockets on the loopback, and a network controlled by the test for cases that
//! real ones do not produce on demand.

mod calls;
mod datagrams;
mod limits;
mod names;
mod rules;

use std::future::{Future, pending, poll_fn, ready};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::client::{self, Cancel, Client, File, Result};
use nine_io::server::FileServer;
use nine_net::rt::Real;
use nine_net::{Clock, Env, Peer, Pipe, Proof, Timer, Transport, pipe};
use nine_proto::{Dialect, Errno, OpenFlags};
use nine_servers::Net;
use nine_servers::net::{
    Announced, Asks, Call, Datagrams, End, Later, Network, Place, Policy, Setting, Tcp, Unix, Wire,
};

use crate::files::world::{ALL, connect, errno, list};

const RDWR: OpenFlags = OpenFlags::RDWR;
const READ: OpenFlags = OpenFlags::READ;

struct NetFixture {
    env: Real,
    server: Arc<Net>,
    held: Arc<PipeNetwork>,
}

fn world(main: impl AsyncFnOnce(&NetFixture)) {
    limited(1000, Policy::loopback(), main);
}

fn limited(most: usize, policy: Policy, main: impl AsyncFnOnce(&NetFixture)) {
    timed(most, policy, None, main);
}

fn timed(
    most: usize,
    policy: Policy,
    clock: Option<Arc<SteppedClockState>>,
    main: impl AsyncFnOnce(&NetFixture),
) {
    nine_net::rt::block_on(async |env| {
        let held = Arc::<PipeNetwork>::default();
        let networks: Vec<Arc<dyn Network>> = vec![
            Arc::new(Tcp),
            Arc::new(Datagrams::udp(env.clock())),
            Arc::new(Datagrams::il(env.clock())),
            Arc::new(Unix),
            held.clone(),
        ];
        let clock = clock.map_or_else(|| env.clock(), |ahead| Arc::new(SteppedClock(ahead)));
        let (server, driver) = Net::new(networks, policy, nine_net::modules::modules(), clock, most);
        let ended = Arc::new(AtomicUsize::new(0));
        let counted = ended.clone();
        env.spawn(Box::pin(async move {
            driver.await;
            counted.fetch_add(1, Ordering::Relaxed);
        }));
        let world = NetFixture { env, server: Arc::new(server), held };
        main(&world).await;
        let root = world.root().await;
        for network in ["tcp", "udp", "il", "unix", "held"] {
            until_gone(&root, network).await;
        }
        drop(root);
        drop(world);
        // The driver ends with the server.
        until(|| ended.load(Ordering::Relaxed) == 1).await;
    })
    .expect("a runtime");
}

impl NetFixture {
    async fn root(&self) -> File {
        self.root_in(Dialect::L).await
    }

    async fn root_in(&self, dialect: Dialect) -> File {
        self.client(dialect).await.attach("", 0, "").await.expect("attached")
    }

    async fn client(&self, dialect: Dialect) -> Client {
        let server: Arc<dyn FileServer> = self.server.clone();
        connect(&self.env, server, dialect).await
    }
}

/// A clock that stands still unless the test advances it.
struct SteppedClockState(Mutex<(Duration, Vec<Waker>)>);

impl SteppedClockState {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new((Duration::from_secs(1000), Vec::new()))))
    }

    fn jump(&self, by: Duration) {
        let mut time = self.0.lock().unwrap();
        time.0 += by;
        let wakers = std::mem::take(&mut time.1);
        drop(time);
        wakers.into_iter().for_each(Waker::wake);
    }
}

/// The clock for sleepers.
struct SteppedClock(Arc<SteppedClockState>);

impl Clock for SteppedClock {
    fn now(&self) -> Duration {
        self.0.0.lock().unwrap().0
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let clock = self.0.clone();
        Box::pin(poll_fn(move |cx| {
            let mut time = clock.0.lock().unwrap();
            if time.0 >= deadline {
                return Poll::Ready(());
            }
            time.1.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn entropy(&self, buf: &mut [u8]) {
        buf.fill(7);
    }
}

/// A network with calls controlled by the test. A call is the end of a pipe, named by its number.
#[derive(Default)]
struct PipeNetwork {
    dialled: AtomicUsize,
    announced: AtomicUsize,
    dropped: Arc<AtomicUsize>,
    /// The other ends of outgoing calls.
    others: Arc<Mutex<Vec<Pipe>>>,
    /// Calls to be accepted.
    calls: Arc<Mutex<Vec<Pipe>>>,
}

impl Network for PipeNetwork {
    fn name(&self) -> &'static str {
        "held"
    }

    fn resolve(&self, text: &str, _: &Asks) -> Later<io::Result<Vec<Place>>> {
        let places = match text.parse::<SocketAddr>() {
            Ok(at) => Ok(vec![Place::Ip(at)]),
            Err(_) if text == "many" => {
                Ok([9, 1].map(|port| Place::Ip(([127, 0, 0, 1], port).into())).into())
            }
            Err(_) if text == "silent" => {
                Ok([2, 2, 1].map(|port| Place::Ip(([127, 0, 0, 1], port).into())).into())
            }
            Err(_) => Err(io::Error::new(io::ErrorKind::NotFound, "can't translate address")),
        };
        Box::pin(ready(places))
    }

    /// Port 1 answers, 2 never does, 9 refuses, 23 and 24 fail with the kernel's errors of these numbers.
    fn dial(&self, to: Place, _: Option<Place>) -> Later<io::Result<Call>> {
        self.dialled.fetch_add(1, Ordering::Relaxed);
        let (others, going) = (self.others.clone(), DropCounter(self.dropped.clone()));
        Box::pin(async move {
            let _going = going;
            match to {
                Place::Ip(at) if at.port() == 1 => {
                    let (near, far) = two();
                    others.lock().unwrap().push(far);
                    Ok(call(near))
                }
                Place::Ip(at) if at.port() == 2 => pending().await,
                Place::Ip(at) if SHORT.contains(&at.port()) => Err(short(at)),
                _ => Err(io::ErrorKind::ConnectionRefused.into()),
            }
        })
    }

    fn announce(&self, at: Place) -> Later<io::Result<Box<dyn Announced>>> {
        if let Place::Ip(at) = at
            && SHORT.contains(&at.port())
        {
            return Box::pin(ready(Err(short(at))));
        }
        // The ports chosen for port 0 start at 1001.
        let local = match at {
            Place::Ip(at) if at.port() == 0 => {
                format!("{}!{}", at.ip(), 1001 + self.announced.fetch_add(1, Ordering::Relaxed))
            }
            _ => "here!7".into(),
        };
        Box::pin(ready(Ok(Box::new(PipeListener { calls: self.calls.clone(), local }) as _)))
    }
}

const SHORT: [u16; 2] = [23, 24];

fn short(at: SocketAddr) -> io::Error {
    io::Error::from_raw_os_error(at.port().into())
}

struct DropCounter(Arc<AtomicUsize>);

impl Drop for DropCounter {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

struct PipeListener {
    calls: Arc<Mutex<Vec<Pipe>>>,
    local: String,
}

impl Announced for PipeListener {
    fn local(&self) -> String {
        self.local.clone()
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Call>> {
        match self.calls.lock().unwrap().pop() {
            Some(near) => Poll::Ready(Ok(call(near))),
            None => {
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

/// An end of a pipe as a call.
struct PipeCall(Pipe);

impl Transport for PipeCall {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.0.poll_read(cx, buf)
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.0.poll_write(cx, bufs)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close(cx)
    }

    fn peer(&self) -> &Peer {
        self.0.peer()
    }
}

impl Wire for PipeCall {
    fn set(&mut self, _: Setting) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

fn two() -> (Pipe, Pipe) {
    let peer = || Peer { addr: "held".into(), proof: Proof::None };
    pipe(peer(), peer())
}

fn call(near: Pipe) -> Call {
    Call { end: End::Bytes(Box::new(PipeCall(near))), local: "here!1".into(), remote: "there!2".into() }
}

async fn until(mut is_so: impl FnMut() -> bool) {
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if is_so() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn until_gone(root: &File, network: &str) {
    loop {
        let names = list(&root.walk(network).await.unwrap()).await;
        if names == ["clone", "stats"] {
            return;
        }
    }
}

async fn text(file: &File) -> String {
    String::from_utf8(file.read(0, 8000).await.unwrap().to_vec()).unwrap()
}

async fn shown(dir: &File, name: &str) -> String {
    text(&dir.open(name, READ).await.unwrap()).await
}

/// Creates a conversation. Returns its ctl and its directory.
async fn made(root: &File, network: &str) -> (File, File) {
    let ctl = root.open(format!("{network}/clone").as_str(), RDWR).await.unwrap();
    let dir = root.walk(format!("{network}/{}", text(&ctl).await).as_str()).await.unwrap();
    (ctl, dir)
}

async fn say(ctl: &File, words: &str) -> Result<()> {
    ctl.write(0, words.as_bytes()).await.map(|n| assert_eq!(n as usize, words.len()))
}

/// Announces an address of the loopback. Returns the ctl, the directory, and `connect` with the port.
async fn announced(root: &File) -> (File, File, String) {
    let (ctl, dir) = made(root, "tcp").await;
    say(&ctl, "announce 127.0.0.1!0").await.unwrap();
    let local = shown(&dir, "local").await;
    let port: u16 = local.trim_end().strip_prefix("127.0.0.1!").expect("an address").parse().expect("a port");
    (ctl, dir, format!("connect 127.0.0.1!{port}"))
}

/// An accepted call: the ctl and the directory of both conversations.
struct AcceptedCall {
    ctl: File,
    dir: File,
    taken: File,
    other: File,
}

/// Calls an [`announced`] address by TCP.
async fn called(root: &File, serving: &File, connect: &str) -> AcceptedCall {
    called_by(root, serving, "tcp", connect).await
}

async fn called_by(root: &File, serving: &File, network: &str, connect: &str) -> AcceptedCall {
    let (ctl, dir) = made(root, network).await;
    say(&ctl, connect).await.unwrap();
    let taken = serving.open("listen", RDWR).await.unwrap();
    let other = root.walk(format!("{network}/{}", text(&taken).await).as_str()).await.unwrap();
    AcceptedCall { ctl, dir, taken, other }
}

impl AcceptedCall {
    /// Opens `data` of both ends.
    async fn data(&self) -> (File, File) {
        (self.dir.open("data", RDWR).await.unwrap(), self.other.open("data", RDWR).await.unwrap())
    }
}

/// Polls a request until it has arrived, and flushes it.
async fn flushed<T>(
    world: &NetFixture,
    arrived: impl Fn() -> bool,
    request: impl Future<Output = Result<T>>,
) -> Errno {
    let cancel = Cancel::default();
    let mut request = pin!(cancel.clone().scope(Box::pin(request)));
    let first = poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if arrived() {
            cancel.cancel();
        }
        request.as_mut().poll(cx)
    });
    let _ = world;
    errno(first.await)
}

async fn sent(to: &mut impl Transport, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        let n = poll_fn(|cx| to.poll_write(cx, &[io::IoSlice::new(bytes)])).await.unwrap();
        bytes = &bytes[n..];
    }
}

async fn received(from: &mut impl Transport, n: usize) -> Vec<u8> {
    let mut buf = vec![0; n];
    let mut had = 0;
    while had < n {
        match poll_fn(|cx| from.poll_read(cx, &mut buf[had..])).await.unwrap() {
            0 => break,
            more => had += more,
        }
    }
    buf.truncate(had);
    buf
}
