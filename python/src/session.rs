//! A session with a server, and its operations on paths.
//!
//! Always holds: links are followed by the client, as every 9P client must, and no link leads out of the tree.

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use nine_io::client::blocking::Client;
use nine_io::client::{Direction, Error, File, Options, Result, Stream};
use nine_net::{Addr, ClientTls, Target, Trust, fingerprint, is_socket};
use nine_proto::{Attr, Errno, GetMask, NOGID, NOUID, OpenFlags, SetAttr, Time, TimeSet};
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::args::{self, Stat};
use crate::error;
use crate::file::Handle;
use crate::wait::{Waits, beside};

/// A value of one process. After a fork, the child's copy is refused and never dropped.
pub struct Ours<T> {
    value: Option<T>,
    maker: u32,
}

impl<T> Ours<T> {
    pub fn new(value: T) -> Self {
        Self { value: Some(value), maker: std::process::id() }
    }

    pub fn get(&self) -> PyResult<&T> {
        match &self.value {
            Some(value) if std::process::id() == self.maker => Ok(value),
            _ => Err(error::forked(self.maker)),
        }
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        if std::process::id() != self.maker {
            // Its locks may be held by threads that do not exist here, and its sockets belong to the parent process.
            std::mem::forget(self.value.take());
        }
    }
}

/// The connection, shared by the session and its files.
pub struct Link {
    pub client: Client,
    pub root: Arc<File>,
    pub waits: Waits,
    closed: AtomicBool,
}

impl Link {
    /// Fails if the session was closed.
    pub fn check(&self) -> PyResult<()> {
        if self.closed.load(Ordering::Relaxed) { Err(error::closed("session")) } else { Ok(()) }
    }
}

/// A session with a server. Any thread may use it.
#[pyclass(frozen, module = "ninefold._native")]
pub struct Session {
    link: Ours<Arc<Link>>,
    /// The path after the address.
    base: String,
}

/// Dials `server`, authenticates, and attaches to the tree `aname`; `timeout` in seconds limits all of it together.
#[pyfunction]
#[pyo3(signature = (server, *, user, uid=None, aname="", token=None, ca=None, pin=None, cert=None, key=None,
    timeout=30.0, asynchronous=false))]
#[expect(clippy::too_many_arguments, reason = "they are named at the caller's side")]
pub fn connect(
    py: Python<'_>,
    server: &str,
    user: &str,
    uid: Option<u32>,
    aname: &str,
    token: Option<String>,
    ca: Option<PathBuf>,
    pin: Option<&str>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    timeout: f64,
    asynchronous: bool,
) -> PyResult<Session> {
    let wrong = |text: String| PyValueError::new_err(text);
    let target = Target::parse(server, is_socket).map_err(|error| wrong(error.to_string()))?;
    let limit =
        Duration::try_from_secs_f64(timeout).map_err(|_| wrong(format!("a timeout of {timeout} s")))?;
    let addr = target.addr;
    let trust = match (pin, ca) {
        (Some(_), Some(_)) => {
            return Err(wrong("ca or pin: one of them says how the server is known".into()));
        }
        (Some(pin), None) => Some(Trust::Pin(
            fingerprint(pin)
                .ok_or_else(|| wrong(format!("{pin}: a pin is a SHA-256, 64 hexadecimal digits")))?,
        )),
        (None, ca) => ca.map(Trust::Ca),
    };
    if cert.is_some() != key.is_some() {
        return Err(wrong(
            "cert and key: a certificate of ours needs its key, and a key its certificate".into(),
        ));
    }
    let identity = cert.as_deref().zip(key.as_deref());
    let tls = match (&addr, trust) {
        (Addr::Tls { .. }, None) => {
            return Err(wrong(format!(
                "{addr}: how shall the server be known? ca=FILE names the authority of its certificate, \
                 pin=FINGERPRINT the certificate itself"
            )));
        }
        (Addr::Tls { .. }, Some(trust)) => Some(ClientTls::new(&trust, identity).map_err(|error| {
            PyOSError::new_err((error.raw_os_error().unwrap_or(Errno::EINVAL.0 as i32), error.to_string()))
        })?),
        (_, None) if identity.is_none() => None,
        _ => {
            return Err(wrong(format!("{addr}: ca, pin, cert and key are for TLS: 9p+tls://HOST, tls!HOST")));
        }
    };
    let options = Options { token: target.token.or(token), ..Options::default() };
    let (user, uid, aname) = (user.to_owned(), uid.unwrap_or(NOUID), aname.to_owned());
    let (client, root) = beside(py, move || {
        let begun = Instant::now();
        let client = Client::dial_streaming(&addr, tls, limit, options)?;
        let late = || Error::Transport {
            peer: client.client().peer().clone(),
            error: Arc::new(std::io::Error::new(
                std::io::ErrorKind::TimedOut,
                format!("does not answer within {} s", limit.as_secs_f64()),
            )),
        };
        let attach = client.client().attach(&user, uid, &aname);
        let root = client
            .reactor()
            .block_on_for(limit.saturating_sub(begun.elapsed()), attach)
            .ok_or_else(late)??;
        Ok((client, root))
    })?;
    let waits = Waits::new(py, &client, asynchronous)?;
    let link = Link { client, root: Arc::new(root), waits, closed: AtomicBool::new(false) };
    Ok(Session { link: Ours::new(Arc::new(link)), base: target.path })
}

impl Session {
    /// Runs `call` with the root and the path.
    fn call<'py, T, F>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        call: impl FnOnce(Arc<File>, Vec<u8>) -> F,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'p> IntoPyObject<'p> + Send + 'static,
        F: Future<Output = Result<T>> + Send + 'static,
    {
        let link = self.link.get()?;
        link.check()?;
        link.waits.call(py, &path, call(link.root.clone(), path.clone()))
    }
}

#[pymethods]
impl Session {
    /// The path that followed the address: `/`, or the start of the session's paths.
    #[getter]
    fn base(&self) -> &str {
        &self.base
    }

    /// The server's address.
    #[getter]
    fn peer(&self) -> PyResult<String> {
        Ok(self.link.get()?.client.client().peer().to_string())
    }

    /// The negotiated dialect, such as `9P2000.L.s`.
    #[getter]
    fn dialect(&self) -> PyResult<String> {
        Ok(self.link.get()?.client.client().dialect().name().to_string())
    }

    /// Whether the connection is alive; false also in a forked process.
    #[getter]
    fn alive(&self) -> bool {
        self.link.get().is_ok_and(|link| link.client.client().dead().is_none())
    }

    /// Ends the connection: in-flight requests fail. A second close does nothing.
    fn close(&self) -> PyResult<()> {
        let link = self.link.get()?;
        link.closed.store(true, Ordering::Relaxed);
        let reason = std::io::Error::new(std::io::ErrorKind::NotConnected, "the session was closed");
        link.client.client().abort(reason);
        Ok(())
    }

    fn stat<'py>(&self, py: Python<'py>, path: Vec<u8>, follow: bool) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (_, attr) = root.find(&path, follow, GetMask::BASIC).await?;
            Ok(args::stat(&attr))
        })
    }

    fn listdir<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (dir, _) = root.resolve(&path, true).await?;
            let (mut entries, mut names) = (dir.read_dir().await?, Vec::new());
            while let Some(entry) = entries.next().await {
                names.push(OsString::from_vec(entry?.name.into()));
            }
            Ok(names)
        })
    }

    /// Lists names with their attributes; `None` for attributes that the server does not provide.
    fn scandir<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (dir, _) = root.resolve(&path, true).await?;
            let (mut entries, mut found) = (dir.read_dir().await?, Vec::new());
            while let Some(block) = entries.next_with_attrs(GetMask::BASIC).await {
                let known = |attr: Option<Attr>| attr.as_ref().map(args::stat);
                let named = |name: Box<[u8]>| OsString::from_vec(name.into());
                found.extend(block?.into_iter().map(|entry| (named(entry.name), known(entry.attr))));
            }
            Ok::<Vec<(OsString, Option<Stat>)>, _>(found)
        })
    }

    fn mkdir<'py>(&self, py: Python<'py>, path: Vec<u8>, mode: u32) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (dir, name) = root.parent(&path).await?;
            dir.mkdir(name, mode, NOGID).await.map(drop)
        })
    }

    /// Removes a name; `dir` selects whether it must be a directory or must not be one.
    fn unlink<'py>(&self, py: Python<'py>, path: Vec<u8>, dir: bool) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (parent, name) = root.parent(&path).await?;
            parent.unlink(name, dir).await
        })
    }

    fn rename<'py>(&self, py: Python<'py>, path: Vec<u8>, new: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let ((dir, old), (to, new)) = (root.parent(&path).await?, root.parent(&new).await?);
            dir.rename(old, &to, new).await
        })
    }

    fn symlink<'py>(&self, py: Python<'py>, path: Vec<u8>, target: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (dir, name) = root.parent(&path).await?;
            dir.symlink(name, target, NOGID).await.map(drop)
        })
    }

    fn readlink<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, _) = root.resolve(&path, false).await?;
            Ok(OsString::from_vec(file.readlink().await?.into()))
        })
    }

    /// Creates a hard link `new` to the file at `path`.
    fn link<'py>(&self, py: Python<'py>, path: Vec<u8>, new: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, _) = root.resolve(&path, false).await?;
            let (dir, name) = root.parent(&new).await?;
            dir.link(name, &file).await
        })
    }

    /// Changes the given attributes. Times are nanoseconds since 1970; a negative one means the server's current time.
    #[pyo3(signature = (path, *, mode=None, uid=None, gid=None, size=None, atime=None, mtime=None))]
    #[expect(clippy::too_many_arguments, reason = "they are named at the caller's side")]
    fn setattr<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<i64>,
        mtime: Option<i64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, _) = root.resolve(&path, true).await?;
            let (atime, mtime) = (atime.map(time), mtime.map(time));
            file.setattr(&SetAttr { mode, uid, gid, size, atime, mtime, ..SetAttr::default() }).await
        })
    }

    /// Returns bsize, blocks, bfree, bavail, files, ffree, namelen.
    fn statfs<'py>(&self, py: Python<'py>, path: Vec<u8>) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, _) = root.resolve(&path, true).await?;
            let fs = file.statfs().await?;
            Ok((fs.bsize, fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree, fs.namelen))
        })
    }

    /// Opens a file. Returns it with its attributes. `flags` are those of open(2); `mode` is that of a new file.
    fn open<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        flags: u32,
        mode: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let link = self.link.get()?.clone();
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, attr) = root.open_at(&path, OpenFlags(flags), mode).await?;
            Ok((Handle::new(link, file, path), args::stat(&attr)))
        })
    }

    /// Reads a file from `start` to `end`, or to its end.
    #[pyo3(signature = (path, start=0, end=None))]
    fn read_file<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        start: u64,
        end: Option<u64>,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (file, attr) = root.open_at(&path, OpenFlags::READ, 0).await?;
            let end = end.unwrap_or(u64::MAX);
            let mut stream = Stream::begin(&file, start, attr.size.min(end), Direction::Read);
            let (mut pieces, mut at) = (Vec::new(), start);
            while at < end
                && let Some(piece) = stream.next().await.transpose()?
            {
                let take = piece.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
                at += take as u64;
                pieces.push(piece.slice(..take));
            }
            Ok(Pieces(pieces))
        })
    }

    /// Writes a whole file, which is created or, without `O_EXCL` in `flags`, replaced.
    fn write_file<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        data: &Bound<'py, PyAny>,
        flags: u32,
        mode: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let data = args::data(data)?;
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let flags = OpenFlags(flags) | OpenFlags::WRITE | OpenFlags::CREAT | OpenFlags::TRUNC;
            let (file, _) = root.open_at(&path, flags, mode).await?;
            file.write_streamed(0, data).await?;
            file.close().await
        })
    }

    /// Copies the content of a file and returns the number of bytes.
    fn copy_file<'py>(
        &self,
        py: Python<'py>,
        path: Vec<u8>,
        new: Vec<u8>,
        mode: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        self.call(py, path, async move |root: Arc<File>, path: Vec<u8>| {
            let (from, attr) = root.open_at(&path, OpenFlags::READ, 0).await?;
            let flags = OpenFlags::WRITE | OpenFlags::CREAT;
            let (to, there) = root.open_at(&new, flags, mode).await?;
            if there.qid.path == attr.qid.path {
                let text = "a file is not copied onto itself";
                return Err(Error::Refused(nine_proto::Error::new(Errno::EINVAL, text)));
            }
            to.setattr(&SetAttr { size: Some(0), ..SetAttr::default() }).await?;
            let copied = from.copy_streamed(&to, attr.size).await?;
            to.close().await?;
            Ok(copied)
        })
    }
}

/// Pieces of a file, joined into one `bytes` object with one copy.
pub struct Pieces(pub Vec<Bytes>);

impl<'py> IntoPyObject<'py> for Pieces {
    type Target = PyBytes;
    type Output = Bound<'py, PyBytes>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let len = self.0.iter().map(Bytes::len).sum();
        PyBytes::new_with(py, len, |mut all| {
            for piece in &self.0 {
                let (here, rest) = all.split_at_mut(piece.len());
                here.copy_from_slice(piece);
                all = rest;
            }
            Ok(())
        })
    }
}

fn time(ns: i64) -> TimeSet {
    if ns < 0 {
        return TimeSet::Now;
    }
    TimeSet::To(Time { sec: ns / 1_000_000_000, nsec: (ns % 1_000_000_000) as u32 })
}
