//! Who shows the files, and how they are mounted: by processes in the foreground, in a name space of this program's
//! own.

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

/// Between two looks whether something is there.
const PAUSE: Duration = Duration::from_millis(5);
/// The file that is written over; it has as many bytes as [`files::LARGE`].
pub(super) const WRITTEN: &str = "written";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Who {
    /// Our mount, whose process is asked for everything.
    Ours,
    /// The same, but the kernel reads and writes open files by itself.
    Passed,
    /// Our mount of our server at a port of this machine.
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

/// From now on what is mounted by this thread and its children is seen by nobody else, and goes with the last of them,
/// whatever ends them.
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
    /// Keys, logs, places to mount on.
    pub run: Scratch,
    /// Our server, and sshd where there is one.
    ours: (Child, SocketAddr),
    sshd: Option<(Child, SocketAddr)>,
    /// Peers that are there, and work.
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

    /// Bytes of the large file.
    pub fn large(&self) -> io::Result<u64> {
        Ok(self.dir().join(files::LARGE).metadata()?.len())
    }

    /// Whether a peer is there; why not.
    pub fn attend(&self, peer: Who) -> io::Result<()> {
        self.mount(peer)?.dir().join(files::LARGE).metadata()?;
        self.attend.borrow_mut().push(peer);
        Ok(())
    }

    /// It fails: it takes no part any more.
    pub fn leave(&self, peer: Who) {
        self.attend.borrow_mut().retain(|who| *who != peer);
    }

    /// Whether it takes part.
    pub fn has(&self, who: Who) -> bool {
        !matches!(who, Who::Sshfs | Who::Rclone) || self.attend.borrow().contains(&who)
    }

    /// Mounts it.
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

/// What is mounted. Dropped, it is not any more, and its process has ended.
pub(super) struct Mounted {
    child: Option<Child>,
    dir: PathBuf,
    /// What it keeps itself.
    own: Option<PathBuf>,
}

impl Mounted {
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Bytes that its process has read so far, of whatever.
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
        // It may not have been mounted. Who does not end by himself is ended.
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

/// An address of this machine at which nobody listens.
fn free() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// A server, when it can be reached.
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
