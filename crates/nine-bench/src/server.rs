//! A 9P server under measurement: its process, its socket and its tree.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nine_io::client::Options;
use nine_io::client::blocking::{Client, File};
use nine_mux::script::quote;
use nine_net::Addr;
use nine_proto::Dialect;
use rustix::process::{Pid, geteuid};

use crate::child::ChildProcess;
use crate::wire::LeanConnection;

/// A peer that is silent for this long has failed.
pub const SILENCE: Duration = Duration::from_secs(30);

pub struct MeasuredServer {
    pub child: ChildProcess,
    socket: PathBuf,
    aname: String,
    /// The largest message size it agrees to.
    msize: u32,
}

impl MeasuredServer {
    /// Starts our server on `dir`.
    pub fn ours(dir: &Path, sockets: &Path) -> io::Result<Self> {
        Self::role("serve", &[dir.as_os_str()], sockets.join("ours"))
    }

    /// Starts our server in a role; its socket is its last word.
    pub fn role(role: &str, words: &[&OsStr], socket: PathBuf) -> io::Result<Self> {
        let child = ChildProcess::role(&[&[OsStr::new(role)], words, &[socket.as_os_str()]].concat())?;
        Ok(Self { child, socket, aname: String::new(), msize: 1 << 20 })
    }

    /// Wraps a peer that was started already.
    pub fn peer(child: ChildProcess, socket: PathBuf, aname: String, msize: u32) -> Self {
        Self { child, socket, aname, msize }
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// Opens a lean connection with fid 0 at the root.
    pub fn dial(&self) -> io::Result<LeanConnection> {
        self.dial_to(&self.aname)
    }

    /// Opens a lean connection to the root of another tree.
    pub fn dial_to(&self, aname: &str) -> io::Result<LeanConnection> {
        LeanConnection::attach(&self.socket, self.msize, aname)
    }

    /// Opens more connections, from `from` up to `to`.
    pub fn dial_more(&self, from: u64, to: u64) -> io::Result<Vec<LeanConnection>> {
        (from..to).map(|_| self.dial()).collect()
    }

    /// Opens a connection without a session.
    pub fn bare(&self) -> io::Result<LeanConnection> {
        LeanConnection::bare(&self.socket)
    }

    /// Returns the name space line that mounts it on `/old`.
    pub fn mount_line(&self, old: &str) -> String {
        format!("mount unix!{} /{old} {}\n", self.socket.display(), quote(&self.aname))
    }

    /// Opens our client with the largest common message size, and attaches to the root.
    pub fn client(&self) -> io::Result<(Client, File)> {
        self.client_at(&self.socket)
    }

    /// Like [`MeasuredServer::client`], at another socket of the same process.
    pub fn client_at(&self, socket: &Path) -> io::Result<(Client, File)> {
        self.client_of(socket, &self.aname)
    }

    /// Like [`MeasuredServer::client`], for another tree.
    pub fn client_to(&self, aname: &str) -> io::Result<(Client, File)> {
        self.client_of(&self.socket, aname)
    }

    fn client_of(&self, socket: &Path, aname: &str) -> io::Result<(Client, File)> {
        let addr = Addr::Unix { path: socket.into() };
        let options = Options { dialects: vec![Dialect::L], msize: self.msize, ..Options::default() };
        let client = Client::dial(&addr, SILENCE, options)?;
        let root = client.attach("", geteuid().as_raw(), aname)?;
        Ok((client, root))
    }

    /// Measures the server's memory for each item that `add` adds, at each number in `sizes`. The server must be fresh.
    pub fn memory_for_each(
        &self,
        sizes: &[u64],
        add: impl Fn(&Self, u64, u64) -> io::Result<Vec<LeanConnection>>,
    ) -> io::Result<Vec<f64>> {
        // Leave out costs that occur only once, with the first item.
        let mut conns = add(self, 0, 1)?;
        let (before, mut had) = (self.memory()?, 1);
        let mut found = Vec::new();
        for &size in sizes {
            conns.extend(add(self, had, size)?);
            found.push(self.memory()?.saturating_sub(before) as f64 / (size - 1) as f64);
            had = size;
        }
        Ok(found)
    }

    /// Returns the memory of its process, bytes: private pages and its share of shared pages.
    pub fn memory(&self) -> io::Result<u64> {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = pss.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.ok_or_else(|| io::Error::other("the kernel does not say what memory it has"))? * 1024)
    }
}
