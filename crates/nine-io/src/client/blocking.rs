//! The same client for programs without a runtime: every call blocks the calling thread.
//!
//! In: an address. Out: a [`Client`] and its [`File`]s, for any number of threads. It runs the async client's code. A
//! [`Reactor`] drives the connection on the waiting threads, so no call pays for a switch to another thread.
//!
//! Always holds: nothing moves while no thread waits. The clunk of a dropped [`File`] is sent with the next call;
//! without one, the fid ends with the connection.
//!
//! ```no_run
//! use std::time::Duration;
//! use nine_io::client::{Options, blocking::Client};
//! use nine_proto::{NOUID, OpenFlags};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let addr = nine_net::Addr::Tcp { host: "fs.lab".into(), port: 564 };
//! let client = Client::dial(&addr, Duration::from_secs(10), Options::default())?;
//! let root = client.attach("glenda", NOUID, "")?;
//! for entry in root.read_dir()? {
//!     println!("{}", String::from_utf8_lossy(&entry?.name));
//! }
//! let motd = root.open("etc/motd", OpenFlags::READ)?.read(0, 4096)?;
//! # Ok(())
//! # }
//! ```

use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nine_net::{Addr, ClientTls, Reactor, Transport};
use nine_proto::{Attr, GetMask, LockRequest, LockStatus, OpenFlags, Qid, SetAttr, Statfs};

use super::{Dial, Dialing, Direction, Entry, Error, Getlock, Options, Result, offered};

/// A session with a server: see [`client::Client`](super::Client).
///
/// Concurrency: clones and their files may be used by any number of threads at once.
#[derive(Clone)]
pub struct Client {
    client: super::Client,
    reactor: Reactor,
}

impl Client {
    /// Dials `addr`, for at most `limit`, and agrees on a version with the server. A `tls!` address is refused: for
    /// TLS, dial the socket with a [`Reactor`], wrap it, and call [`Client::connect`].
    pub fn dial(addr: &Addr, limit: Duration, options: Options) -> Result<Self> {
        let failed = |error| Error::Transport { peer: addr.to_string().into(), error: Arc::new(error) };
        if let Addr::Tls { .. } = addr {
            return Err(failed(io::Error::new(
                io::ErrorKind::Unsupported,
                "TLS is to be pushed on the socket first",
            )));
        }
        let reactor = Reactor::new().map_err(failed)?;
        let socket = reactor.connect(addr, limit).map_err(failed)?;
        Self::connect(reactor, socket, options)
    }

    /// [`Client::dial`] with all features: TLS if the address demands it, streams over TCP and TLS, and windows adapted
    /// to the round trips. All of it, including the version, must complete within `limit`.
    ///
    /// # Errors
    /// Those of [`Client::dial`]; and a `tls!` address without `tls`.
    pub fn dial_streaming(
        addr: &Addr,
        tls: Option<ClientTls>,
        limit: Duration,
        options: Options,
    ) -> Result<Self> {
        let failed = |error| Error::Transport { peer: addr.to_string().into(), error: Arc::new(error) };
        let late = || {
            let text = format!("does not answer within {} s", limit.as_secs_f64());
            failed(io::Error::new(io::ErrorKind::TimedOut, text))
        };
        let begun = Instant::now();
        let left = || limit.saturating_sub(begun.elapsed());
        let reactor = Reactor::new().map_err(failed)?;
        let socket = reactor.connect(addr, limit).map_err(failed)?;
        let options = Options { clock: options.clock.or(Some(reactor.clock())), ..options };
        let beside = |tls| Arc::new(BlockingDialer { reactor: reactor.clone(), tls });
        let connected = match (addr, tls) {
            (Addr::Tls { .. }, None) => {
                let why = "nothing says how the server is known";
                return Err(failed(io::Error::new(io::ErrorKind::InvalidInput, why)));
            }
            (Addr::Tls { host, .. }, Some(tls)) => {
                let shaken = tls.connect(socket, host, reactor.sleep(left()));
                let shaken = reactor.block_on(shaken).map_err(failed)?;
                let options = options.with_streams(beside(Some((tls, host.clone()))));
                reactor.block_on_for(left(), super::Client::connect(shaken, options))
            }
            (Addr::Tcp { .. }, _) => {
                let options = options.with_streams(beside(None));
                reactor.block_on_for(left(), super::Client::connect(socket, options))
            }
            _ => reactor.block_on_for(left(), super::Client::connect(socket, options)),
        };
        let (client, driver) = connected.ok_or_else(late)??;
        Ok(Self::driving(reactor, client, driver))
    }

    /// Agrees on a version with the server at the other end of `transport`, which must wait by means of `reactor`.
    pub fn connect(reactor: Reactor, transport: impl Transport, options: Options) -> Result<Self> {
        let (client, driver) = reactor.block_on(super::Client::connect(transport, options))?;
        Ok(Self::driving(reactor, client, driver))
    }

    /// Wraps a connected client and its driver.
    pub fn driving(reactor: Reactor, client: super::Client, driver: super::Driver) -> Self {
        // The calls get the driver's error.
        reactor.spawn(async { drop(driver.await) });
        Self { client, reactor }
    }

    /// Returns a fid for the root of the tree `aname`: see [`client::Client::attach`](super::Client::attach).
    pub fn attach(&self, uname: &str, uid: u32, aname: &str) -> Result<File> {
        let file = self.wait(self.client.attach(uname, uid, aname))?;
        Ok(File { file, reactor: self.reactor.clone() })
    }

    /// The async client behind it.
    pub fn client(&self) -> &super::Client {
        &self.client
    }

    /// The reactor with which waiting threads drive it.
    pub fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    /// Blocks this thread until a future of the async client or its files completes.
    pub fn wait<F: Future>(&self, future: F) -> F::Output {
        self.reactor.block_on(future)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.client.fmt(f)
    }
}

/// Dials data connections of streams, on the threads that wait for them.
struct BlockingDialer {
    reactor: Reactor,
    /// The TLS client and the server's name. `None`: without TLS.
    tls: Option<(ClientTls, String)>,
}

impl Dial for BlockingDialer {
    fn dial(&self, peer: &str, addr: &str) -> Dialing {
        let (reactor, tls, at) = (self.reactor.clone(), self.tls.clone(), offered(peer, addr));
        Box::pin(async move {
            let socket = reactor.connecting(&at?, BESIDE).await?;
            let Some((tls, host)) = tls else { return Ok(Box::new(socket) as Box<dyn Transport>) };
            let tls = tls.connect(socket, &host, reactor.sleep(BESIDE)).await?;
            Ok(Box::new(tls) as Box<dyn Transport>)
        })
    }
}

/// Timeout of a data connection, and of its TLS handshake. After it, files go over the 9P connection.
const BESIDE: Duration = Duration::from_secs(1);

/// A file of the server: see [`client::File`](super::File), which has the same operations.
pub struct File {
    file: super::File,
    reactor: Reactor,
}

macro_rules! waits {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        #[doc = concat!("Waits for [`client::File::", stringify!($name), "`](super::File::", stringify!($name), ").")]
        pub fn $name(&self, $($arg: $ty),*) -> Result<$ret> {
            self.reactor.block_on(self.file.$name($($arg),*))
        }
    )*};
}

macro_rules! waits_for_a_file {
    ($($name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        #[doc = concat!("Waits for [`client::File::", stringify!($name), "`](super::File::", stringify!($name), ").")]
        pub fn $name(&self, $($arg: $ty),*) -> Result<Self> {
            let file = self.reactor.block_on(self.file.$name($($arg),*))?;
            Ok(Self { file, reactor: self.reactor.clone() })
        }
    )*};
}

impl File {
    waits_for_a_file! {
        walk(path: impl AsRef<[u8]>);
        open(path: impl AsRef<[u8]>, flags: OpenFlags);
        create(name: impl AsRef<[u8]>, flags: OpenFlags, perm: u32, gid: u32);
        open_or_create(name: impl AsRef<[u8]>, flags: OpenFlags, perm: u32);
    }

    waits! {
        mkdir(name: impl AsRef<[u8]>, perm: u32, gid: u32) -> Qid;
        symlink(name: impl AsRef<[u8]>, target: impl AsRef<[u8]>, gid: u32) -> Qid;
        mknod(name: impl AsRef<[u8]>, st_mode: u32, numbers: (u32, u32), gid: u32) -> Qid;
        readlink() -> Box<[u8]>;
        unlink(name: impl AsRef<[u8]>, dir: bool) -> ();
        getattr(mask: GetMask) -> Attr;
        setattr(set: &SetAttr<'_>) -> ();
        fsync(datasync: bool) -> ();
        statfs() -> Statfs;
        lock(lock: &LockRequest<'_>) -> LockStatus;
        getlock(lock: &LockRequest<'_>) -> Getlock;
        xattr(name: impl AsRef<[u8]>) -> Vec<u8>;
        xattrs() -> Vec<Vec<u8>>;
        set_xattr(name: impl AsRef<[u8]>, value: &[u8], flags: u32) -> ();
        remove_xattr(name: impl AsRef<[u8]>) -> ();
        read(offset: u64, count: u32) -> Bytes;
        read_at(offset: u64, buf: &mut [u8]) -> usize;
        write(offset: u64, data: &[u8]) -> u32;
        write_at(offset: u64, data: &[u8]) -> usize;
        write_all_at(offset: u64, data: &[u8]) -> ();
        read_dir_block(cookie: u64, count: u32) -> Option<(Vec<Entry>, u64)>;
    }

    /// Waits for [`client::File::link`](super::File::link).
    pub fn link(&self, name: impl AsRef<[u8]>, target: &Self) -> Result<()> {
        self.reactor.block_on(self.file.link(name, &target.file))
    }

    /// Waits for [`client::File::rename`](super::File::rename).
    pub fn rename(&self, old: impl AsRef<[u8]>, to: &Self, new: impl AsRef<[u8]>) -> Result<()> {
        self.reactor.block_on(self.file.rename(old, &to.file, new))
    }

    /// Waits for [`client::File::open_here`](super::File::open_here).
    pub fn open_here(self, flags: OpenFlags) -> Result<Self> {
        let file = self.reactor.block_on(self.file.open_here(flags))?;
        Ok(Self { file, reactor: self.reactor })
    }

    /// Waits for [`client::File::close`](super::File::close).
    pub fn close(self) -> Result<()> {
        self.reactor.block_on(self.file.close())
    }

    /// Waits for [`client::File::remove`](super::File::remove).
    pub fn remove(self) -> Result<()> {
        self.reactor.block_on(self.file.remove())
    }

    /// Iterates over the entries of this directory.
    pub fn read_dir(&self) -> Result<ReadDir<'_>> {
        let dir = self.reactor.block_on(self.file.read_dir())?;
        Ok(ReadDir { dir, reactor: &self.reactor })
    }

    /// Reads from `offset` to the end, ahead of the caller below `size`: see [`client::Reader`](super::Reader).
    pub fn reader(&self, offset: u64, size: u64) -> Reader<'_> {
        Reader { reader: super::Reader::new(&self.file, offset, size), reactor: &self.reactor }
    }

    /// Writes from `offset` on without waiting for each answer: see [`client::Writer`](super::Writer).
    pub fn writer(&self, offset: u64) -> Writer<'_> {
        Writer { writer: super::Writer::new(&self.file, offset), reactor: &self.reactor }
    }

    /// Reads or writes the file in order from `offset` on: see [`client::Stream`](super::Stream).
    pub fn stream(&self, offset: u64, direction: Direction) -> Result<Stream<'_>> {
        let stream = self.reactor.block_on(self.file.stream(offset, direction))?;
        Ok(Stream { stream, reactor: &self.reactor })
    }

    /// The async file behind it.
    pub fn file(&self) -> &super::File {
        &self.file
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.fmt(f)
    }
}

/// Entries of a directory: see [`client::ReadDir`](super::ReadDir).
pub struct ReadDir<'f> {
    dir: super::ReadDir<'f>,
    reactor: &'f Reactor,
}

impl ReadDir<'_> {
    /// Returns a block of entries with their attributes.
    pub fn next_with_attrs(&mut self, mask: GetMask) -> Option<Result<Vec<Entry>>> {
        self.reactor.block_on(self.dir.next_with_attrs(mask))
    }
}

impl Iterator for ReadDir<'_> {
    type Item = Result<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reactor.block_on(self.dir.next())
    }
}

/// Reads a file in order: see [`client::Reader`](super::Reader).
pub struct Reader<'f> {
    reader: super::Reader<&'f super::File>,
    reactor: &'f Reactor,
}

impl Iterator for Reader<'_> {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reactor.block_on(self.reader.next())
    }
}

/// Writes a file in order: see [`client::Writer`](super::Writer).
pub struct Writer<'f> {
    writer: super::Writer<&'f super::File>,
    reactor: &'f Reactor,
}

impl Writer<'_> {
    /// Writes `data` next; waits while the window is full.
    pub fn push(&mut self, data: Bytes) -> Result<()> {
        self.reactor.block_on(self.writer.push(data))
    }

    /// Waits until all writes are answered.
    pub fn finish(&mut self) -> Result<()> {
        self.reactor.block_on(self.writer.finish())
    }

    /// Bytes that the server has taken, without a gap.
    pub fn written(&self) -> u64 {
        self.writer.written()
    }
}

/// A file in order, over a data connection if there is one: see [`client::Stream`](super::Stream).
pub struct Stream<'f> {
    stream: super::Stream<&'f super::File>,
    reactor: &'f Reactor,
}

impl Stream<'_> {
    /// Reads bytes into `buf`, and returns their number: 0 at the end of the file.
    pub fn sread(&mut self, buf: &mut [u8]) -> Result<usize> {
        self.reactor.block_on(self.stream.sread(buf))
    }

    /// Writes bytes of `buf`, and returns the number taken, which is all of them.
    pub fn swrite(&mut self, buf: &[u8]) -> Result<usize> {
        self.reactor.block_on(self.stream.swrite(buf))
    }

    /// Ends the stream, and returns the number of bytes moved: see
    /// [`client::Stream::sclose`](super::Stream::sclose).
    pub fn sclose(self) -> Result<u64> {
        self.reactor.block_on(self.stream.sclose())
    }

    /// Whether a data connection carries bytes now.
    pub fn has_connection(&self) -> bool {
        self.stream.has_connection()
    }
}

impl Iterator for Stream<'_> {
    type Item = Result<Bytes>;

    fn next(&mut self) -> Option<Self::Item> {
        self.reactor.block_on(self.stream.next())
    }
}
