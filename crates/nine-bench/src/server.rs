//! A 9P server under measurement: its process, how it is reached, what it is called.

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

use crate::child::Child;
use crate::wire::Conn;

/// A peer that says nothing for so long is broken.
pub const SILENCE: Duration = Duration::from_secs(30);

pub struct Server {
    pub child: Child,
    socket: PathBuf,
    aname: String,
    /// The largest message it agrees to.
    msize: u32,
}

impl Server {
    /// Ours, serving `dir`.
    pub fn ours(dir: &Path, sockets: &Path) -> io::Result<Self> {
        Self::role("serve", &[dir.as_os_str()], sockets.join("ours"))
    }

    /// Ours, in a role whose words end with its socket.
    pub fn role(role: &str, words: &[&OsStr], socket: PathBuf) -> io::Result<Self> {
        let child = Child::role(&[&[OsStr::new(role)], words, &[socket.as_os_str()]].concat())?;
        Ok(Self { child, socket, aname: String::new(), msize: 1 << 20 })
    }

    /// A peer that has been started.
    pub fn peer(child: Child, socket: PathBuf, aname: String, msize: u32) -> Self {
        Self { child, socket, aname, msize }
    }

    pub fn pid(&self) -> Pid {
        self.child.pid()
    }

    /// A lean connection, with fid 0 for the root.
    pub fn dial(&self) -> io::Result<Conn> {
        self.dial_to(&self.aname)
    }

    /// The same for the root of another tree.
    pub fn dial_to(&self, aname: &str) -> io::Result<Conn> {
        Conn::attach(&self.socket, self.msize, aname)
    }

    /// As many of them as are missing to `to`.
    pub fn dial_more(&self, from: u64, to: u64) -> io::Result<Vec<Conn>> {
        (from..to).map(|_| self.dial()).collect()
    }

    /// A connection on which nothing has been said.
    pub fn bare(&self) -> io::Result<Conn> {
        Conn::bare(&self.socket)
    }

    /// The line of a name space file that mounts it on `/old`.
    pub fn mount_line(&self, old: &str) -> String {
        format!("mount unix!{} /{old} {}\n", self.socket.display(), quote(&self.aname))
    }

    /// Our client, with the largest messages that both agree to, and the root.
    pub fn client(&self) -> io::Result<(Client, File)> {
        self.client_at(&self.socket)
    }

    /// The same at another socket of the same process.
    pub fn client_at(&self, socket: &Path) -> io::Result<(Client, File)> {
        self.client_of(socket, &self.aname)
    }

    /// The same of another tree.
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

    /// Memory of its process for each of the things that `add` adds, at each of these numbers of them. It has had
    /// nothing else to do.
    pub fn memory_for_each(
        &self,
        sizes: &[u64],
        add: impl Fn(&Self, u64, u64) -> io::Result<Vec<Conn>>,
    ) -> io::Result<Vec<f64>> {
        // What the first one brings about once is no cost of the next ones.
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

    /// Memory of its process, bytes: pages of its own, and its share of others.
    pub fn memory(&self) -> io::Result<u64> {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.pid()))?;
        let pss = rollup.lines().find_map(|line| line.strip_prefix("Pss:"));
        let kib = pss.and_then(|text| text.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        Ok(kib.ok_or_else(|| io::Error::other("the kernel does not say what memory it has"))? * 1024)
    }
}
