//! Sockets on the runtime: one stream type for TCP, unix and vsock, and the listener that accepts them.
//!
//! In: an [`Addr`] and a time limit, or a listener's next connection. Out: a [`Socket`], which is a [`Transport`].
//!
//! Always holds: a socket lives on the runtime of the thread that created it ([`Socket::into_parts`] moves it
//! elsewhere). A unix socket's name appears, with mode 0600, only after the listener listens; the listener removes it
//! only if it is still its own. A shortage of descriptors or memory never makes the accept loop spin.
//!
//! Only this module and `rt` use tokio.

use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags};
use rustix::net::SocketFlags;
use socket2::{SockAddr, Socket as Raw};
pub(crate) use tokio::io::Interest;
pub(crate) use tokio::io::unix::AsyncFd;
pub(crate) use tokio::time::timeout;
use tokio::time::{Instant, sleep};

use crate::dial::{Addr, UNIX_PATH_MAX};
use crate::end::{self, UnresolvedAddr};
use crate::env::Env;
use crate::inherited;
use crate::loopback::loopback_user;
use crate::sys;
use crate::transport::{Peer, Proof, Transport};

/// A connected stream socket. One task drives it, on the thread that made it.
#[derive(Debug)]
pub struct Socket {
    fd: AsyncFd<Raw>,
    peer: Peer,
    /// `poll_hangup` has consumed an edge that may have reported bytes: the next read must try the socket first.
    edge_taken: bool,
}

impl Socket {
    /// Dials `addr`. A name is resolved each time, off the event loop; its addresses are tried in order and share the
    /// remaining time. For [`Addr::Tls`] this is the TCP connection below.
    ///
    /// Fails with the last address's error, or `TimedOut` after `limit`; the text names the dial string.
    ///
    /// # Panics
    /// Outside a runtime, like every function here that creates a socket.
    pub async fn connect(addr: &Addr, limit: Duration) -> io::Result<Socket> {
        match timeout(limit, dial(addr, end::after(limit).into())).await {
            Ok(Err(e)) if e.kind() != io::ErrorKind::TimedOut => Err(end::tried(addr, e)),
            Ok(Ok(socket)) => Ok(socket),
            _ => Err(end::tried(addr, end::too_late(limit))),
        }
    }

    /// Removes the socket from this thread's runtime. [`Socket::from_parts`] puts it on another one.
    pub fn into_parts(self) -> (OwnedFd, Peer) {
        (self.fd.into_inner().into(), self.peer)
    }

    /// Completes when there is something to read, including the peer's end.
    pub(crate) fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fd.poll_read_ready(cx).map_ok(drop)
    }

    /// Puts a connected, non-blocking stream socket on this thread's runtime.
    pub fn from_parts(fd: OwnedFd, peer: Peer) -> io::Result<Socket> {
        Ok(Socket { fd: sys::register(fd.into())?, peer, edge_taken: false })
    }
}

impl Transport for Socket {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        if self.edge_taken {
            match end::recv(self.fd.get_ref(), buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.edge_taken = false,
                done => return Poll::Ready(done),
            }
        }
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            match end::recv(guard.get_inner(), buf) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                Ok(n) => {
                    // A short read has emptied the socket. The next edge reports more, so no further read is needed.
                    if 0 < n && n < buf.len() {
                        guard.clear_ready();
                    }
                    return Poll::Ready(Ok(n));
                }
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match end::send(guard.get_inner(), bufs) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_write_more(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match end::send_more(guard.get_inner(), bufs) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(end::close(self.fd.get_ref()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            let Ok(mut guard) = ready!(self.fd.poll_read_ready(cx)) else { return Poll::Ready(()) };
            if guard.ready().is_read_closed() {
                return Poll::Ready(());
            }
            self.edge_taken = true;
            guard.clear_ready();
        }
    }

    fn can_sendfile(&self) -> bool {
        true
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match end::sendfile(guard.get_inner(), file, offset, len) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }

    fn cork(&mut self, more: bool) {
        // Only TCP has segments; other sockets hold nothing back.
        let _ = rustix::net::sockopt::set_tcp_cork(&self.fd, more);
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
        loop {
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let splice = || end::splice(guard.get_inner().as_fd(), pipe, len);
            let full = || io::Error::from(io::ErrorKind::StorageFull);
            match splice() {
                // Either the socket is empty or the pipe is full. If the socket has bytes now that do not move, the
                // pipe is full.
                Err(e) if is_later(&e) && end::is_empty(guard.get_inner()) => guard.clear_ready(),
                Err(e) if is_later(&e) => {
                    let again = splice().map_err(|e| if is_later(&e) { full() } else { e });
                    return Poll::Ready(again);
                }
                done => return Poll::Ready(done),
            }
        }
    }

    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.fd.poll_write_ready(cx))?;
            match end::splice(pipe, guard.get_inner().as_fd(), len) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => guard.clear_ready(),
                done => return Poll::Ready(done),
            }
        }
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

/// The descriptor, for calls that neither read, write nor close it (`splice` probes, socket options).
impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.get_ref().as_fd()
    }
}

fn is_later(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock
}

async fn dial(addr: &Addr, deadline: Instant) -> io::Result<Socket> {
    let places = match end::place(addr)? {
        UnresolvedAddr::Known(at) => vec![at],
        UnresolvedAddr::Named(host, port) => {
            let found = tokio::net::lookup_host((host, port)).await;
            found.map_err(end::unknown)?.map(SockAddr::from).collect()
        }
    };
    let mut last = io::Error::other("the name has no address");
    for (n, at) in places.iter().enumerate() {
        let share = deadline.saturating_duration_since(Instant::now()) / (places.len() - n) as u32;
        match timeout(share, dial_one(at)).await {
            Ok(Ok(socket)) => return Ok(socket),
            Ok(Err(e)) => last = e,
            Err(_) => last = io::ErrorKind::TimedOut.into(),
        }
    }
    Err(last)
}

async fn dial_one(at: &SockAddr) -> io::Result<Socket> {
    let raw = loop {
        match end::connect(at) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => sleep(end::BACKLOG_PAUSE).await,
            begun => break begun?,
        }
    };
    let fd = sys::register(raw)?;
    let peer = loop {
        let mut guard = fd.writable().await?;
        match end::connected(fd.get_ref(), at) {
            Err(e) if e.kind() == io::ErrorKind::NotConnected => guard.clear_ready(),
            done => break done?,
        }
    };
    Ok(Socket { fd, peer, edge_taken: false })
}

/// A listening socket. One task drives it.
#[derive(Debug)]
pub struct Listener {
    fd: AsyncFd<Raw>,
    addr: Addr,
    local_only: bool,
    /// The name of a unix socket, which is removed with the listener.
    _name: Option<BoundName>,
    faults: AcceptShortage,
    pause: ShortagePause,
}

impl Listener {
    /// Listens on `addr` (for [`Addr::Tls`]: on the TCP port below). Resolving a host name may block the thread. `*`
    /// means every address.
    ///
    /// A unix socket's name gets mode 0600. A name whose server is gone is replaced; if a server answers there, this
    /// fails with `AddrInUse`. A socket [`inherited`](crate::inherited()) for the address is used as it is.
    pub fn bind(addr: &Addr) -> io::Result<Listener> {
        Listener::bind_plain(addr).map_err(|e| end::tried(format_args!("listen on {addr}"), e))
    }

    /// The actual address: a port 0 is replaced by the chosen port.
    pub fn addr(&self) -> &Addr {
        &self.addr
    }

    /// Whether only this machine can reach it: loopback TCP, a unix socket, the local vsock.
    pub fn local_only(&self) -> bool {
        self.local_only
    }

    /// Accepts the next connection. Skips connections that their peers have already closed. While descriptors or memory
    /// are short, it waits 100 ms to 1 s on `env`'s timer between attempts, and logs that once per shortage. An error
    /// is final.
    pub fn poll_accept(&mut self, cx: &mut Context<'_>, env: &dyn Env) -> Poll<io::Result<Socket>> {
        loop {
            if let Some(pause) = &mut self.pause.0 {
                ready!(pause.as_mut().poll(cx));
                self.pause.0 = None;
            }
            let mut guard = ready!(self.fd.poll_read_ready(cx))?;
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let fault = match rustix::net::accept_with(guard.get_inner(), flags) {
                Ok(fd) => match arrived(fd.into(), &self.addr, self.local_only) {
                    Ok(socket) => {
                        if self.faults.over() {
                            tracing::info!("{}: connections are accepted again", self.addr);
                        }
                        return Poll::Ready(Ok(socket));
                    }
                    // Either the peer is gone, or the socket could not be registered. It is closed here.
                    Err(e) => e,
                },
                Err(e) => e.into(),
            };
            match verdict(&fault) {
                AcceptVerdict::Empty => guard.clear_ready(),
                AcceptVerdict::Skip => {}
                AcceptVerdict::Short => {
                    let (delay, first) = self.faults.next();
                    if first {
                        tracing::warn!("{}: new connections wait: {fault}", self.addr);
                    }
                    self.pause.0 = Some(env.sleep_until(env.now() + delay));
                }
                AcceptVerdict::Broken => return Poll::Ready(Err(end::tried(&self.addr, fault))),
            }
        }
    }

    /// [`Listener::poll_accept`] as a future. Dropping it loses no connection.
    pub async fn accept(&mut self, env: &dyn Env) -> io::Result<Socket> {
        poll_fn(|cx| self.poll_accept(cx, env)).await
    }

    fn bind_plain(addr: &Addr) -> io::Result<Listener> {
        let (raw, name) = match addr {
            Addr::Unix { path } | Addr::Shm { path } => match inherited::bound(&SockAddr::unix(path)?) {
                Some(raw) => (raw, None),
                None => BoundName::take(path).map(|(raw, name)| (raw, Some(name)))?,
            },
            _ => {
                let at = end::listen_place(addr)?;
                (inherited::bound(&at).map_or_else(|| bind_port(at), Ok)?, None)
            }
        };
        let at = raw.local_addr()?;
        let local_only = match (at.as_socket(), at.as_vsock_address()) {
            (Some(ip), _) => ip.ip().to_canonical().is_loopback(),
            (_, Some((cid, _))) => cid == 1,
            _ => true,
        };
        let mut addr = addr.clone();
        match &mut addr {
            Addr::Tcp { port, .. } | Addr::Tls { port, .. } => {
                *port = at.as_socket().map_or(*port, |ip| ip.port())
            }
            Addr::Vsock { port, .. } => *port = at.as_vsock_address().map_or(*port, |(_, port)| port),
            Addr::Unix { .. } | Addr::Shm { .. } | Addr::Il { .. } => {}
        }
        let fd = sys::register(raw)?;
        Ok(Listener {
            fd,
            addr,
            local_only,
            _name: name,
            faults: AcceptShortage::default(),
            pause: ShortagePause(None),
        })
    }
}

/// Binds and listens on an address outside the file system.
fn bind_port(at: SockAddr) -> io::Result<Raw> {
    let bind = |at: &SockAddr| -> io::Result<Raw> {
        let raw = end::open(at)?;
        if at.as_socket().is_some() {
            raw.set_reuse_address(true)?;
        }
        if at.as_socket_ipv6().is_some_and(|ip| ip.ip().is_unspecified()) {
            raw.set_only_v6(false)?;
        }
        raw.bind(at)?;
        raw.listen(BACKLOG)?;
        Ok(raw)
    };
    match (bind(&at), at.as_socket_ipv6()) {
        // Without IPv6, `*` means every IPv4 address.
        (Err(e), Some(ip)) if ip.ip().is_unspecified() && e.raw_os_error() == Some(libc::EAFNOSUPPORT) => {
            bind(&std::net::SocketAddr::from(([0; 4], ip.port())).into())
        }
        (done, _) => done,
    }
}

/// Makes a transport of an accepted socket. `local_only`: its peer is on this machine.
fn arrived(raw: Raw, listener: &Addr, local_only: bool) -> io::Result<Socket> {
    let at = raw.peer_addr()?;
    let mut peer = end::dress(&raw, &at)?;
    if local_only && let Some(remote) = at.as_socket() {
        let local = raw.local_addr()?.as_socket();
        let uid = local.and_then(|local| loopback_user(local, remote));
        peer.proof = uid.map_or(Proof::None, |uid| Proof::Loopback { uid });
    }
    if let Addr::Unix { .. } | Addr::Shm { .. } = listener {
        peer.addr = listener.to_string();
    }
    Ok(Socket { fd: sys::register(raw)?, peer, edge_taken: false })
}

/// The meaning of an accept(2) error for the listener.
#[derive(Debug, PartialEq, Eq)]
enum AcceptVerdict {
    /// No connection is pending.
    Empty,
    /// That connection is lost; the next may succeed.
    Skip,
    /// A temporary shortage of the machine.
    Short,
    /// The listener itself is broken.
    Broken,
}

fn verdict(e: &io::Error) -> AcceptVerdict {
    match e.raw_os_error() {
        Some(libc::EAGAIN) => AcceptVerdict::Empty,
        Some(libc::EBADF | libc::ENOTSOCK | libc::EFAULT) => AcceptVerdict::Broken,
        // accept(2) reports pending errors of the new connection. A peer may also close before we ask for its address.
        Some(
            libc::EINTR
            | libc::ECONNABORTED
            | libc::ECONNRESET
            | libc::ENOTCONN
            | libc::EPROTO
            | libc::ENETDOWN
            | libc::ENOPROTOOPT
            | libc::EHOSTDOWN
            | libc::ENONET
            | libc::EHOSTUNREACH
            | libc::EOPNOTSUPP
            | libc::ENETUNREACH,
        ) => AcceptVerdict::Skip,
        // EMFILE, ENFILE, ENOBUFS, ENOMEM; and unknown errors, so that none can make us spin.
        _ => AcceptVerdict::Short,
    }
}

/// Consecutive shortages: the last delay; `None` if there is no shortage.
#[derive(Debug, Default)]
struct AcceptShortage {
    last: Option<Duration>,
}

impl AcceptShortage {
    /// The next wait, and whether this is the first of its episode.
    fn next(&mut self) -> (Duration, bool) {
        let delay = self.last.map_or(PAUSE_MIN, |last| (last * 2).min(PAUSE_MAX));
        (delay, self.last.replace(delay).is_none())
    }

    /// Ends the episode. Returns whether there was one.
    fn over(&mut self) -> bool {
        self.last.take().is_some()
    }
}

/// The timer of a listener during a shortage.
struct ShortagePause(Option<Pin<Box<dyn Future<Output = ()> + Send>>>);

impl std::fmt::Debug for ShortagePause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "waiting" } else { "ready" })
    }
}

/// The name of our socket in the file system, and the file's identity when it was created.
#[derive(Debug)]
struct BoundName {
    path: PathBuf,
    file: (u64, u64),
}

impl BoundName {
    /// Creates a listening socket and gives it the name `path`.
    ///
    /// It first binds and listens under a temporary name. So a socket under `path` that refuses connections belongs to
    /// a server that is gone, not to one about to listen. An old name is replaced under a lock on the directory, so
    /// that two starting servers do not replace each other.
    fn take(path: &Path) -> io::Result<(Raw, BoundName)> {
        let dir = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let (raw, mut name) = BoundName::first(dir)?;
        match rustix::fs::linkat(CWD, &name.path, CWD, path, AtFlags::empty()) {
            Ok(()) => {
                let ours = BoundName { path: path.into(), file: name.file };
                drop(std::mem::replace(&mut name, ours));
            }
            Err(rustix::io::Errno::EXIST) => {
                let lock = rustix::fs::open(
                    dir,
                    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
                    Mode::empty(),
                )?;
                if rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
                    return Err(in_use("another server is starting here; try again"));
                }
                left_behind(path)?;
                std::fs::rename(&name.path, path)?;
                name.path = path.into();
            }
            Err(e) => return Err(e.into()),
        }
        Ok((raw, name))
    }

    /// Creates a socket that listens in `dir` under a temporary name.
    fn first(dir: &Path) -> io::Result<(Raw, BoundName)> {
        let mut random = [0; 4];
        getrandom::fill(&mut random)?;
        let path = dir.join(format!(".9p{:08x}", u32::from_ne_bytes(random)));
        if path.as_os_str().len() > UNIX_PATH_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "the directory's path is too long for a socket",
            ));
        }
        let at = SockAddr::unix(&path)?;
        let raw = end::open(&at)?;
        // The name of a bound socket gets the socket's own mode (less the umask), so no other user can ever connect.
        rustix::fs::fchmod(&raw, Mode::RUSR | Mode::WUSR)?;
        raw.bind(&at)?;
        let file = file_id(&path)?;
        let name = BoundName { path, file };
        raw.listen(BACKLOG)?;
        Ok((raw, name))
    }
}

impl Drop for BoundName {
    /// Removes the name, unless another file has taken it.
    fn drop(&mut self) {
        if file_id(&self.path).is_ok_and(|file| file == self.file) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Returns `Ok` if `path` is a socket whose server is gone, or does not exist.
fn left_behind(path: &Path) -> io::Result<()> {
    match end::connect(&SockAddr::unix(path)?) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused && crate::dial::is_socket(path) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is no socket has this name"))
        }
        // Connected, or its queue is full: a server is there.
        Ok(_) => Err(in_use("a server answers here already; stop it, or choose another path")),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Err(in_use("a server is here already, and busy")),
        Err(e) => Err(e),
    }
}

fn in_use(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::AddrInUse, why)
}

fn file_id(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|m| (m.dev(), m.ino()))
}

/// Maximum number of connections that wait in the kernel to be accepted. Beyond it (or the system's own limit) a unix
/// client gets EAGAIN and a TCP client retransmits.
const BACKLOG: i32 = 1024;

const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rt::block_on;
    use crate::transport::testing::{close, read, write};
    use std::os::unix::fs::PermissionsExt;

    const LIMIT: Duration = Duration::from_secs(10);

    fn tcp(text: &str) -> Addr {
        text.parse().expect("a valid address")
    }

    fn unix(dir: &tempfile::TempDir) -> Addr {
        Addr::Unix { path: dir.path().join("s") }
    }

    async fn pair(listener: &mut Listener) -> (Socket, Socket) {
        let client = Socket::connect(&listener.addr().clone(), LIMIT).await.expect("connects");
        let server = listener.accept(&crate::rt::Real).await.expect("accepts");
        (client, server)
    }

    fn run<R>(test: impl AsyncFnOnce() -> R) -> R {
        block_on(async |_| test().await).expect("a runtime")
    }

    #[test]
    fn a_hang_up_shows_before_what_was_sent_is_read_and_nothing_is_lost() {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("a pair");
        ours.set_nonblocking(true).expect("non-blocking");
        crate::rt::block_on(async |_| {
            let peer = Peer { addr: "pair".into(), proof: crate::Proof::None };
            let mut socket = Socket::from_parts(ours.into(), peer).expect("registered");
            std::io::Write::write_all(&mut &theirs, b"last words").expect("room for ten bytes");
            let waits = poll_fn(|cx| Poll::Ready(socket.poll_hangup(cx).is_pending())).await;
            assert!(waits);
            let mut buf = [0; 4];
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut buf)).await.expect("bytes"), 4);
            drop(theirs);
            poll_fn(|cx| socket.poll_hangup(cx)).await;
            let mut rest = [0; 100];
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut rest)).await.expect("bytes"), 6);
            assert_eq!(poll_fn(|cx| socket.poll_read(cx, &mut rest)).await.expect("the end"), 0);
        })
        .expect("a runtime");
    }

    #[test]
    fn bytes_go_both_ways_and_end() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            for addr in [tcp("tcp!127.0.0.1!0"), tcp("tcp!localhost!0"), unix(&dir)] {
                let mut listener = Listener::bind(&addr).expect("binds");
                let (mut client, mut server) = pair(&mut listener).await;
                write(&mut client, b"there").await.expect("written");
                assert_eq!(read(&mut server).await.expect("read"), b"there");
                write(&mut server, b"back").await.expect("written");
                close(&mut server).await.expect("closed");
                assert_eq!(read(&mut client).await.expect("read"), b"back");
                assert_eq!(read(&mut client).await.expect("end"), b"");
            }
        });
    }

    #[test]
    fn a_full_socket_takes_a_part_and_is_woken_when_there_is_room() {
        run(async || {
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (mut client, mut server) = pair(&mut listener).await;
            let sender = tokio::task::spawn_local(async move {
                let piece = vec![7; 4096];
                let many: Vec<_> = (0..2 * end::IOV_MAX).map(|_| IoSlice::new(&piece)).collect();
                let mut sent = 0;
                while sent < 8 << 20 {
                    sent += poll_fn(|cx| client.poll_write(cx, &many)).await.expect("written");
                }
                sent
            });
            let (mut got, mut buf) = (0, vec![0; 100_000]);
            loop {
                match poll_fn(|cx| server.poll_read(cx, &mut buf)).await.expect("read") {
                    0 => break,
                    n => got += n,
                }
            }
            let sent = sender.await.expect("no panic");
            assert_eq!(sent, got);
        });
    }

    #[test]
    fn sendfile_carries_a_file_and_says_where_it_ends() {
        run(async || {
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (mut client, mut server) = pair(&mut listener).await;
            let file = tempfile::tempfile().expect("a file");
            std::os::unix::fs::FileExt::write_all_at(&file, b"0123456789", 0).expect("written");
            let n = poll_fn(|cx| client.poll_sendfile(cx, file.as_fd(), 4, 100)).await.expect("sent");
            assert_eq!((n, read(&mut server).await.expect("read")), (6, b"456789".to_vec()));
            assert_eq!(poll_fn(|cx| client.poll_sendfile(cx, file.as_fd(), 10, 1)).await.expect("end"), 0);
        });
    }

    #[test]
    fn bytes_go_from_socket_to_socket_through_a_pipe_and_the_end_shows() {
        run(async || {
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (mut client, mut server) = pair(&mut listener).await;
            let (out, into) = rustix::pipe::pipe().expect("a pipe");
            write(&mut client, b"0123456789").await.expect("written");
            let n = poll_fn(|cx| server.poll_splice_in(cx, into.as_fd(), 4)).await.expect("taken");
            let m = poll_fn(|cx| server.poll_splice_out(cx, out.as_fd(), n)).await.expect("sent");
            assert_eq!((n, m, read(&mut client).await.expect("read")), (4, 4, b"0123".to_vec()));
            close(&mut client).await.expect("closed");
            let mut rest = 0;
            loop {
                match poll_fn(|cx| server.poll_splice_in(cx, into.as_fd(), 100)).await.expect("taken") {
                    0 => break,
                    n => rest += n,
                }
            }
            assert_eq!(rest, 6);
        });
    }

    #[test]
    fn a_full_pipe_is_told_from_an_empty_socket() {
        run(async || {
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (mut client, mut server) = pair(&mut listener).await;
            let (_out, into) = rustix::pipe::pipe().expect("a pipe");
            rustix::pipe::fcntl_setpipe_size(&into, 4096).expect("made small");
            write(&mut client, &[1; 20_000]).await.expect("written");
            let full = poll_fn(|cx| match server.poll_splice_in(cx, into.as_fd(), 100_000) {
                Poll::Ready(Ok(_)) => {
                    cx.waker().wake_by_ref();
                    Poll::Pending
                }
                other => other,
            });
            assert_eq!(full.await.expect_err("no more room").kind(), io::ErrorKind::StorageFull);
        });
    }

    #[test]
    fn a_socket_moves_to_another_runtime() {
        let mut parts = run(async || {
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (client, server) = pair(&mut listener).await;
            vec![client.into_parts(), server.into_parts()]
        });
        run(async || {
            let mut next = || parts.pop().map(|(fd, peer)| Socket::from_parts(fd, peer).expect("registered"));
            let (mut server, mut client) = (next().expect("two"), next().expect("one"));
            write(&mut server, b"moved").await.expect("written");
            assert_eq!(read(&mut client).await.expect("read"), b"moved");
        });
    }

    #[test]
    fn unix_peers_are_named_by_the_kernel_and_the_name_is_private() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            let addr = unix(&dir);
            let mut listener = Listener::bind(&addr).expect("binds");
            let (client, server) = pair(&mut listener).await;
            let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            for socket in [client, server] {
                assert_eq!(*socket.peer(), Peer { addr: addr.to_string(), proof: Proof::Unix { uid, gid } });
            }
            let mode = dir.path().join("s").metadata().expect("there").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            assert_eq!(dir.path().read_dir().expect("readable").count(), 1, "no other name is left");
            drop(listener);
            assert_eq!(dir.path().read_dir().expect("readable").count(), 0);
        });
    }

    #[test]
    fn a_client_of_the_loopback_comes_with_its_user() {
        run(async || {
            let uid = rustix::process::geteuid().as_raw();
            let mut listener = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds");
            let (client, server) = pair(&mut listener).await;
            assert_eq!(server.peer().proof, Proof::Loopback { uid });
            assert_eq!(client.peer().proof, Proof::None, "a server proves nothing by it");
            let mut listener = Listener::bind(&tcp("tcp!*!0")).expect("binds");
            let Addr::Tcp { port, .. } = listener.addr().clone() else { unreachable!("it is a port") };
            let dialled = Socket::connect(&tcp(&format!("tcp!127.0.0.1!{port}")), LIMIT).await;
            let server = listener.accept(&crate::rt::Real).await.expect("accepts");
            assert_eq!((server.peer().proof.clone(), dialled.is_ok()), (Proof::None, true));
        });
    }

    #[test]
    fn stale_socket_is_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        drop(std::os::unix::net::UnixListener::bind(dir.path().join("s")).expect("binds"));
        run(async || {
            let mut listener = Listener::bind(&unix(&dir)).expect("replaces");
            pair(&mut listener).await;
        });
    }

    #[test]
    fn second_server_on_same_socket_is_refused() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            let mut first = Listener::bind(&unix(&dir)).expect("binds");
            let e = Listener::bind(&unix(&dir)).expect_err("taken");
            assert_eq!(e.kind(), io::ErrorKind::AddrInUse);
            assert!(e.to_string().contains("answers here already"), "{e}");
            assert_eq!(dir.path().read_dir().expect("readable").count(), 1);
            pair(&mut first).await;
        });
    }

    #[test]
    fn a_file_that_is_no_socket_is_not_replaced() {
        let dir = tempfile::tempdir().expect("a directory");
        std::fs::write(dir.path().join("s"), "precious").expect("written");
        run(async || {
            let e = Listener::bind(&unix(&dir)).expect_err("refused");
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists, "{e}");
        });
        assert_eq!(std::fs::read(dir.path().join("s")).expect("still there"), b"precious");
    }

    #[test]
    fn a_name_that_another_has_taken_is_left_alone() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            let listener = Listener::bind(&unix(&dir)).expect("binds");
            std::fs::write(dir.path().join("other"), "").expect("written");
            std::fs::rename(dir.path().join("other"), dir.path().join("s")).expect("renamed");
            drop(listener);
        });
        assert!(dir.path().join("s").exists());
    }

    #[test]
    fn listeners_say_who_can_reach_them() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            let local = |addr: &Addr| Listener::bind(addr).expect("binds").local_only();
            assert!(local(&tcp("tcp!127.0.0.1!0")) && local(&tcp("tls!localhost!0")) && local(&unix(&dir)));
            assert!(!local(&tcp("tcp!*!0")));
        });
    }

    #[test]
    fn a_failed_dial_names_the_address() {
        let dir = tempfile::tempdir().expect("a directory");
        run(async || {
            let port = Listener::bind(&tcp("tcp!127.0.0.1!0")).expect("binds").addr().clone();
            let e = Socket::connect(&port, LIMIT).await.expect_err("nobody listens");
            assert_eq!(e.kind(), io::ErrorKind::ConnectionRefused);
            assert!(e.to_string().starts_with(&port.to_string()), "{e}");

            let _full = end::open(&SockAddr::unix("x").expect("short")).and_then(|raw| {
                raw.bind(&SockAddr::unix(dir.path().join("s"))?)?;
                raw.listen(0)?;
                Ok(raw)
            });
            let addr = unix(&dir);
            let _queued = Socket::connect(&addr, LIMIT).await.expect("the queue takes one");
            let e = Socket::connect(&addr, Duration::from_millis(30)).await.expect_err("full");
            assert_eq!(e.kind(), io::ErrorKind::TimedOut);
            assert!(e.to_string().contains("no connection within 30ms"), "{e}");
        });
    }

    #[test]
    fn a_shortage_is_told_once_and_waited_out_ever_longer() {
        let mut faults = AcceptShortage::default();
        let told: Vec<_> = (0..5).map(|_| faults.next()).map(|(d, first)| (d.as_millis(), first)).collect();
        assert_eq!(told, [(100, true), (200, false), (400, false), (800, false), (1000, false)]);
        assert!(faults.over() && !faults.over());
        assert_eq!(faults.next(), (PAUSE_MIN, true));
    }

    #[test]
    fn a_connection_that_its_peer_gave_up_is_passed_over() {
        let verdict = |errno| verdict(&io::Error::from_raw_os_error(errno));
        assert_eq!(verdict(libc::ECONNABORTED), AcceptVerdict::Skip);
        assert_eq!(verdict(libc::EAGAIN), AcceptVerdict::Empty);
        assert_eq!(verdict(libc::ENFILE), AcceptVerdict::Short);
        assert_eq!(verdict(libc::EBADF), AcceptVerdict::Broken);
    }
}
