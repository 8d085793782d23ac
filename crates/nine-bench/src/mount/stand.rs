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

use crate::args::BenchPace;
use crate::child::ChildProcess;
use crate::peers::{rclone, sftp, sshfs};
use crate::scratch::ScratchDir;
use crate::server::SILENCE;
use crate::{command, files};

/// Interval of checks whether a mount or server is ready.
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// The file to overwrite; as long as [`files::LARGE`].
pub(super) const WRITTEN: &str = "written";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MountContestant {
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

impl MountContestant {
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

pub(super) struct MountTestbed {
    program: PathBuf,
    /// The files.
    served: ScratchDir,
    /// Keys, logs, mount points.
    pub run: ScratchDir,
    /// Our server, and sshd if it is installed.
    ours: (ChildProcess, SocketAddr),
    sshd: Option<(ChildProcess, SocketAddr)>,
    /// Peers that are installed and work.
    attend: RefCell<Vec<MountContestant>>,
}

impl MountTestbed {
    pub fn new(pace: BenchPace) -> io::Result<Self> {
        let (program, served, run) = (command::program()?, ScratchDir::new()?, ScratchDir::for_sockets()?);
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
    pub fn attend(&self, peer: MountContestant) -> io::Result<()> {
        self.mount(peer)?.dir().join(files::LARGE).metadata()?;
        self.attend.borrow_mut().push(peer);
        Ok(())
    }

    /// Drops a peer that has failed.
    pub fn leave(&self, peer: MountContestant) {
        self.attend.borrow_mut().retain(|who| *who != peer);
    }

    /// Returns whether a contestant takes part.
    pub fn has(&self, who: MountContestant) -> bool {
        !matches!(who, MountContestant::Sshfs | MountContestant::Rclone)
            || self.attend.borrow().contains(&who)
    }

    /// Mounts the directory.
    pub fn mount(&self, who: MountContestant) -> io::Result<BenchMount> {
        let (run, dir) = (self.run.path(), self.run.path().join("mounted"));
        if who == MountContestant::Direct {
            return Ok(BenchMount { child: None, dir: self.dir().into(), own: None });
        }
        std::fs::create_dir(&dir).or_else(there)?;
        let own = run.join("own");
        let sshd = || {
            let sshd = self.sshd.as_ref().map(|(_, at)| *at);
            sshd.ok_or_else(|| io::Error::other("sshd is not installed"))
        };
        let words = match who {
            MountContestant::Ours => self.ours(disk(self.dir()), "never", &dir),
            MountContestant::Passed => self.ours(disk(self.dir()), "auto", &dir),
            MountContestant::Served => {
                let at = self.ours.1;
                self.ours(format!("tcp!{}!{}", at.ip(), at.port()).into(), "never", &dir)
            }
            MountContestant::Sshfs => sshfs::words(sshd()?, &sftp::key(run), self.dir(), &dir)?,
            MountContestant::Rclone => rclone::words(sshd()?, &sftp::key(run), self.dir(), &dir, &own)?,
            MountContestant::Direct => unreachable!("it is not mounted"),
        };
        let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
        let log = run.join("mount.log");
        let outside = run.metadata()?.dev();
        let mut mounted =
            BenchMount { child: Some(ChildProcess::program(&words, &log)?), dir, own: Some(own) };
        let begun = Instant::now();
        while mounted.dir.metadata().map_or(true, |meta| meta.dev() == outside) {
            let child = mounted.child.as_mut().expect("it was started");
            if child.has_ended()? || begun.elapsed() > SILENCE {
                let said = std::fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!("it does not mount: {}", said.trim())));
            }
            std::thread::sleep(READY_CHECK_INTERVAL);
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
pub(super) struct BenchMount {
    child: Option<ChildProcess>,
    dir: PathBuf,
    /// The contestant's own cache directory.
    own: Option<PathBuf>,
}

impl BenchMount {
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

impl Drop for BenchMount {
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
fn listening(words: &[OsString], at: SocketAddr, log: &Path) -> io::Result<ChildProcess> {
    let words: Vec<&OsStr> = words.iter().map(OsString::as_os_str).collect();
    let (mut child, begun) = (ChildProcess::program(&words, log)?, Instant::now());
    while TcpStream::connect(at).is_err() {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            let said = std::fs::read_to_string(log).unwrap_or_default();
            return Err(io::Error::other(format!("{} did not start: {}", words[0].display(), said.trim())));
        }
        std::thread::sleep(READY_CHECK_INTERVAL);
    }
    Ok(child)
}

fn there(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::AlreadyExists { Ok(()) } else { Err(error) }
}
