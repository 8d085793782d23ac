//! The contestants and their mounts: processes in the foreground, in a mount name space of this program.

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountPropagationFlags, UnmountFlags, mount_change, unmount};
use rustix::thread::UnshareFlags;

use crate::args::Pace;
use crate::child::Child;
use crate::peers::{rclone, sftp, sshfs};
use crate::scratch::Scratch;
use crate::server::SILENCE;
use crate::{command, files};

/// Interval of checks whether a mount or server is ready.
const PAUSE: Duration = Duration::from_millis(5);
/// The file to overwrite; as long as [`files::LARGE`].
pub(super) const WRITTEN: &str = "written";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Our mount; the kernel asks our process for everything.
    Ours,
    /// Our mount with passthrough: the kernel reads and writes open files itself.
    Passed,
    /// Our mount of our server, at a TCP port of this machine.
    Served,
    Sshfs,
    Rclone,
    /// The directory itself.
    Direct,
}

impl Who {
    pub fn label(self) -> &'static str {
        match self {
            Self::Ours => "ours",
            Self::Passed => "ours, passthrough",
            Self::Served => "ours, by TCP",
            Self::Sshfs => "sshfs (Debian package sshfs, with openssh-server)",
            Self::Rclone => "rclone (Debian package rclone, with openssh-server and fuse3)",
            Self::Direct => "the directory",
        }
    }
}

/// Moves this thread and its children to a mount name space of their own. Its mounts are invisible to other processes
/// and vanish with the last process in it.
pub(super) fn apart() -> io::Result<()> {
    #[expect(
        deprecated,
        reason = "what is unsafe about it are shared tables of descriptors, which stay as they are"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    std::fs::metadata("/dev/fuse").map(drop)
}

pub(super) struct Stand {
    program: PathBuf,
    /// The files.
    served: Scratch,
    /// Keys, logs, mount points.
    pub run: Scratch,
    /// Our server, and sshd if it is installed.
    ours: (Child, SocketAddr),
    sshd: Option<(Child, SocketAddr)>,
    /// Peers that are installed and work.
    attend: RefCell<Vec<Who>>,
}

impl Stand {
    pub fn new(pace: Pace) -> io::Result<Self> {
        let (program, served, run) = (command::program()?, Scratch::new()?, Scratch::for_sockets()?);
        files::fill(served.path(), pace.of(1024, 128, 8) << 20, 0)?;
        std::fs::copy(served.path().join(files::LARGE), served.path().join(WRITTEN))?;
        let at = free()?;
        let listen = format!("tcp!{}!{}", at.ip(), at.port());
        let words = ["serve", "--insecure", "--config", "/dev/null", "--listen", &listen].map(OsString::from);
        let words = [&[program.clone().into()], &words[..], &[disk(served.path())]].concat();
        let ours = (listening(&words, at, &run.path().join("ninefold.log"))?, at);
        let at = free()?;
        let sshd = match sftp::words(at, run.path())? {
            Some(words) => Some((listening(&words, at, &run.path().join("sshd.log"))?, at)),
            None => None,
        };
        Ok(Self { program, served, run, ours, sshd, attend: RefCell::default() })
    }

    pub fn dir(&self) -> &Path {
        self.served.path()
    }

    /// Returns the size of the large file, bytes.
    pub fn large(&self) -> io::Result<u64> {
        Ok(self.dir().join(files::LARGE).metadata()?.len())
    }

    /// Tries a peer and adds it, or returns why it does not work.
    pub fn attend(&self, peer: Who) -> io::Result<()> {
        self.mount(peer)?.dir().join(files::LARGE).metadata()?;
        self.attend.borrow_mut().push(peer);
        Ok(())
    }

    /// Drops a peer that has failed.
    pub fn leave(&self, peer: Who) {
        self.attend.borrow_mut().retain(|who| *who != peer);
    }

    /// Returns whether a contestant takes part.
    pub fn has(&self, who: Who) -> bool {
        !matches!(who, Who::Sshfs | Who::Rclone) || self.attend.borrow().contains(&who)
    }

    /// Mounts the directory.
    pub fn mount(&self, who: Who) -> io::Result<Mounted> {
        let (run, dir) = (self.run.path(), self.run.path().join("mounted"));
        if who == Who::Direct {
            return Ok(Mounted { child: None, dir: self.dir().into(), own: None });
        }
        std::fs::create_dir(&dir).or_else(there)?;
        let own = run.join("own");
        let sshd = || {
            let sshd = self.sshd.as_ref().map(|(_, at)| *at);
            sshd.ok_or_else(|| io::Error::other("sshd is not installed"))
        };
        let words = match who {
            Who::Ours => self.ours(disk(self.dir()), "never", &dir),
            Who::Passed => self.ours(disk(self.dir()), "auto", &dir),
            Who::Served => {
                let at = self.ours.1;
                self.ours(format!("tcp!{}!{}", at.ip(), at.port()).into(), "never", &dir)
            }
            Who::Sshfs => sshfs::words(sshd()?, &sftp::key(run), self.dir(), &dir)?,
            Who::Rclone => rclone::words(sshd()?, &sftp::key(run), self.dir(), &dir, &own)?,
            Who::Direct => unreachable!("it is not mounted"),
        };
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let log = run.join("mount.log");
        let outside = run.metadata()?.dev();
        let mut mounted = Mounted { child: Some(Child::program(&words, &log)?), dir, own: Some(own) };
        let begun = Instant::now();
        while mounted.dir.metadata().map_or(true, |meta| meta.dev() == outside) {
            let child = mounted.child.as_mut().expect("it was started");
            if child.has_ended()? || begun.elapsed() > SILENCE {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!("it does not mount: {}", said.trim())));
            }
            std::thread::sleep(PAUSE);
        }
        Ok(mounted)
    }

    fn ours(&self, what: OsString, passthrough: &str, dir: &Path) -> Vec<OsString> {
        let mut words: Vec<OsString> = vec![self.program.clone().into()];
        words.extend(
            ["mount", "-f", "--config", "/dev/null", "--passthrough", passthrough].map(OsString::from),
        );
        words.extend([what, dir.into()]);
        words
    }
}

/// A mount. Dropping it unmounts it and ends its process.
pub(super) struct Mounted {
    child: Option<Child>,
    dir: PathBuf,
    /// The contestant's own cache directory.
    own: Option<PathBuf>,
}

impl Mounted {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the bytes that its process has read so far, from any file.
    pub fn has_read(&self) -> io::Result<u64> {
        let pid = self.child.as_ref().ok_or(io::ErrorKind::NotFound)?.pid();
        let io = std::fs::read_to_string(format!("/proc/{pid}/io"))?;
        let read = io.lines().find_map(|line| line.strip_prefix("rchar: ")?.parse().ok());
        read.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        // It may not have been mounted. A process that does not end by itself is killed.
        let _ = unmount(&self.dir, UnmountFlags::DETACH);
        let _ = child.wait(SILENCE);
        if let Some(own) = &self.own {
            let _ = std::fs::remove_dir_all(own);
        }
    }
}

fn disk(dir: &Path) -> OsString {
    let mut what = OsString::from("disk:");
    what.push(dir);
    what
}

/// Returns a free address of this machine.
fn free() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Starts a server, and waits until it accepts connections.
fn listening(words: &[OsString], at: SocketAddr, log: &Path) -> io::Result<Child> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let (mut child, begun) = (Child::program(&words, log)?, Instant::now());
    while TcpStream::connect(at).is_err() {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("{} did not start: {}", words[0].display(), said.trim())));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(child)
}

fn there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}
