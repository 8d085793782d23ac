//! Sessions with servers, open files and directories.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nine_io::client::{self, Direction, Entry, Options, blocking};
use nine_net::{Addr, ClientTls, Target, Trust, fingerprint, is_socket};
use nine_proto::{Attr, Errno, GetMask, NOGID, NOUID, OpenFlags, SetAttr};

use crate::fail::Fail;
use crate::stream::Stream;

/// Default limit for the dial, its handshakes and the attach together.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Size of one directory read, bytes.
const BLOCK: u32 = 64 * 1024;

/// A session with a server, and the root of its tree.
pub struct Client {
    pub client: blocking::Client,
    root: client::File,
    closed: AtomicBool,
}

/// Our identity, and how to verify the server. Empty texts mean that an option is not set.
#[derive(Default)]
pub struct How<'a> {
    pub token: &'a str,
    pub user: &'a str,
    pub aname: &'a str,
    pub ca: &'a str,
    pub pin: &'a str,
    pub cert: &'a str,
    pub key: &'a str,
    pub timeout_ms: u32,
}

/// Parses an address that has no path behind it.
pub fn target(text: &str) -> Result<Target, Fail> {
    let wrong = |text: String| Fail::new(Errno::EINVAL, text);
    let target = Target::parse(text, is_socket).map_err(|error| wrong(error.to_string()))?;
    match &*target.path {
        "/" => Ok(target),
        _ => Err(wrong(format!("{}: only an address may stand here, and no path behind it", target.addr))),
    }
}

impl Client {
    /// Dials a server and attaches to its tree. Fails with EINVAL if the options do not fit the
    /// address.
    pub fn connect(server: &str, how: &How<'_>) -> Result<Self, Fail> {
        let wrong = |text: String| Fail::new(Errno::EINVAL, text);
        let target = target(server)?;
        let addr = &target.addr;
        if how.cert.is_empty() != how.key.is_empty() {
            return Err(wrong(format!("{addr}: of cert and key options say one, and none is good alone")));
        }
        let tls = match (addr, how.pin, how.ca) {
            (Addr::Tls { .. }, "", "") => {
                return Err(wrong(format!("{addr}: options must say how the server is known: ca or pin")));
            }
            (Addr::Tls { .. }, pin, ca) if !pin.is_empty() && !ca.is_empty() => {
                return Err(wrong(format!("{addr}: options say ca and pin, of which one is enough")));
            }
            (Addr::Tls { .. }, pin, ca) => {
                let trust =
                    match pin {
                        "" => Trust::Ca(ca.into()),
                        pin => Trust::Pin(fingerprint(pin).ok_or_else(|| {
                            wrong(format!("{pin}: a pin is a SHA-256, 64 hexadecimal digits"))
                        })?),
                    };
                let identity = (!how.cert.is_empty()).then(|| (Path::new(how.cert), Path::new(how.key)));
                Some(ClientTls::new(&trust, identity)?)
            }
            (_, "", "") if how.cert.is_empty() => None,
            _ => return Err(wrong(format!("{addr}: ca, pin, cert and key are for TLS: 9p+tls://HOST"))),
        };
        let token = target.token.or_else(|| (!how.token.is_empty()).then(|| how.token.to_owned()));
        let limit = match how.timeout_ms {
            0 => TIMEOUT,
            ms => Duration::from_millis(ms.into()),
        };
        let options = Options { token, ..Options::default() };
        let begun = Instant::now();
        let client = blocking::Client::dial_streaming(&target.addr, tls, limit, options)?;
        let uid = match how.user {
            "" if how.cert.is_empty() => nine_net::own_ids().0,
            user => user.parse().unwrap_or(NOUID),
        };
        Self::attach(client, how.user, uid, how.aname, limit, begun)
    }

    /// Attaches a connected client to a tree of its server. Fails when `limit` has passed since `begun`.
    pub fn attach(
        client: blocking::Client,
        user: &str,
        uid: u32,
        aname: &str,
        limit: Duration,
        begun: Instant,
    ) -> Result<Self, Fail> {
        let attach = client.client().attach(user, uid, aname);
        let Some(root) = client.reactor().block_on_for(limit.saturating_sub(begun.elapsed()), attach) else {
            let text = format!("{} does not answer within {} s", client.client().peer(), limit.as_secs_f64());
            return Err(Fail::new(Errno::ETIMEDOUT, text));
        };
        Ok(Self { root: root?, client, closed: AtomicBool::new(false) })
    }

    /// Returns the root, unless the session was closed.
    fn root(&self) -> Result<&client::File, Fail> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(Fail::new(Errno::EBADF, "the session was closed"));
        }
        Ok(&self.root)
    }

    /// Ends the session: waiting calls and its files fail.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let reason = io::Error::new(io::ErrorKind::NotConnected, "the session was closed");
        self.client.client().abort(reason);
    }

    pub fn open(self: &Arc<Self>, path: &[u8], flags: i32, mode: u32) -> Result<File, Fail> {
        let flags = OpenFlags(flags.cast_unsigned() & OpenFlags::WIRE.0);
        let (file, attr) = self.client.wait(self.root()?.open_at(path, flags, mode)).map_err(on(path))?;
        Ok(File { session: self.clone(), file: Arc::new(file), size: attr.size })
    }

    pub fn stat(&self, path: &[u8], follow: bool) -> Result<Attr, Fail> {
        let found = self.client.wait(self.root()?.find(path, follow, GetMask::BASIC));
        Ok(found.map_err(on(path))?.1)
    }

    pub fn mkdir(&self, path: &[u8], mode: u32) -> Result<(), Fail> {
        let root = self.root()?;
        let made = self.client.wait(async {
            let (dir, name) = root.parent(path).await?;
            dir.mkdir(name, mode, NOGID).await
        });
        made.map(drop).map_err(on(path))
    }

    pub fn unlink(&self, path: &[u8], dir: bool) -> Result<(), Fail> {
        let root = self.root()?;
        let removed = self.client.wait(async {
            let (parent, name) = root.parent(path).await?;
            parent.unlink(name, dir).await
        });
        removed.map_err(on(path))
    }

    pub fn rename(&self, old: &[u8], new: &[u8]) -> Result<(), Fail> {
        let root = self.root()?;
        let renamed = self.client.wait(async {
            let ((dir, old), (to, new)) = (root.parent(old).await?, root.parent(new).await?);
            dir.rename(old, &to, new).await
        });
        renamed.map_err(on(old))
    }

    pub fn symlink(&self, target: &[u8], path: &[u8]) -> Result<(), Fail> {
        let root = self.root()?;
        let made = self.client.wait(async {
            let (dir, name) = root.parent(path).await?;
            dir.symlink(name, target, NOGID).await
        });
        made.map(drop).map_err(on(path))
    }

    pub fn readlink(&self, path: &[u8]) -> Result<Box<[u8]>, Fail> {
        let root = self.root()?;
        let read = self.client.wait(async { root.resolve(path, false).await?.0.readlink().await });
        read.map_err(on(path))
    }

    pub fn setattr(&self, path: &[u8], set: &SetAttr<'_>) -> Result<(), Fail> {
        let root = self.root()?;
        let done = self.client.wait(async { root.resolve(path, true).await?.0.setattr(set).await });
        done.map_err(on(path))
    }

    pub fn opendir(self: &Arc<Self>, path: &[u8]) -> Result<Dir, Fail> {
        let root = self.root()?;
        let opened = self.client.wait(async {
            let (dir, _) = root.resolve(path, true).await?;
            if !dir.qid().is_dir() {
                return Err(nine_proto::Error::from(Errno::ENOTDIR).into());
            }
            dir.open("", OpenFlags::READ).await
        });
        let open = opened.map_err(on(path))?;
        let read = Reading { cookie: 0, entries: Vec::new().into_iter(), ended: false };
        Ok(Dir { session: self.clone(), open, read: Mutex::new(read) })
    }
}

fn on(path: &[u8]) -> impl Fn(client::Error) -> Fail {
    move |error| Fail::from(error).on(path)
}

/// An open file.
pub struct File {
    session: Arc<Client>,
    file: Arc<client::File>,
    /// Its length when it was opened, bytes.
    size: u64,
}

impl File {
    pub fn read(&self, offset: u64, buf: &mut [u8]) -> Result<usize, Fail> {
        Ok(self.session.client.wait(self.file.read_at(offset, buf))?)
    }

    pub fn write(&self, offset: u64, data: &[u8]) -> Result<usize, Fail> {
        Ok(self.session.client.wait(self.file.write_at(offset, data))?)
    }

    pub fn fsync(&self, datasync: bool) -> Result<(), Fail> {
        Ok(self.session.client.wait(self.file.fsync(datasync))?)
    }

    pub fn stat(&self) -> Result<Attr, Fail> {
        Ok(self.session.client.wait(self.file.getattr(GetMask::BASIC))?)
    }

    pub fn stream(&self, offset: u64, direction: Direction) -> Stream {
        let end = match direction {
            Direction::Read => self.size,
            Direction::Write => u64::MAX,
        };
        let stream = client::Stream::begin(self.file.clone(), offset, end, direction);
        Stream::new(self.session.client.clone(), stream)
    }

    /// Closes the file. An error may mean that written data was lost.
    pub fn close(self: Arc<Self>) -> Result<(), Fail> {
        let Ok(File { session, file, .. }) = Arc::try_unwrap(self) else { return Ok(()) };
        // Another thread still uses the file, and its last use closes it.
        let Ok(file) = Arc::try_unwrap(file) else { return Ok(()) };
        Ok(session.client.wait(file.close())?)
    }
}

/// An open directory with a read position.
pub struct Dir {
    session: Arc<Client>,
    open: client::File,
    read: Mutex<Reading>,
}

struct Reading {
    cookie: u64,
    entries: std::vec::IntoIter<Entry>,
    ended: bool,
}

impl Dir {
    /// Returns the next entry, or `None` at the end.
    pub fn next(&self) -> Result<Option<Entry>, Fail> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(entry) = read.entries.next() {
                return Ok(Some(entry));
            }
            if read.ended {
                return Ok(None);
            }
            match self.session.client.wait(self.open.read_dir_block(read.cookie, BLOCK))? {
                Some((entries, next)) => (read.entries, read.cookie) = (entries.into_iter(), next),
                None => read.ended = true,
            }
        }
    }
}
