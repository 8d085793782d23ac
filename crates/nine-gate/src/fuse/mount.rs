//! Mounts and unmounts a FUSE device on a directory of this machine (fuse(4), mount(2)).
//!
//! In: a directory and [`MountOptions`]. Out: a [`Mount`], and the device, which delivers requests once it is mounted.
//! A process with CAP_SYS_ADMIN calls mount(2). Others run `fusermount3`, which is set-user-ID and sends the device
//! over a socket.
//!
//! Always holds: [`Mount`] removes only its own mount, and [`unmount`] only mounts of this kind. To find a mount,
//! neither asks its file system, whose server may be dead.

use std::ffi::{CString, OsString};
use std::fmt::Write as _;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::process::{getgid, getuid};
use rustix::thread::CapabilitySet;

/// How a directory is mounted on. The defaults are those of `fusermount3`: nosuid and nodev.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// The source that mount(8) and df(1) show to every user.
    pub source: String,
    /// Users other than the mounter have access, as far as the modes of the files allow.
    pub others: bool,
    /// The kernel checks the modes of files before it sends a request; with `others` always.
    pub checked: bool,
    /// The directory may have contents, which the mount hides.
    pub nonempty: bool,
    /// The largest read that the kernel requests, in bytes. `None`: the kernel's own limit.
    pub max_read: Option<u32>,
    pub(super) flags: MountFlags,
}

impl Default for MountOptions {
    fn default() -> Self {
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        let (others, checked, nonempty) = (false, false, false);
        Self { source: "ninefold".into(), others, checked, nonempty, max_read: None, flags }
    }
}

impl MountOptions {
    /// Sets a generic option of mount(8). Returns `false` if the option is unknown.
    pub fn set(&mut self, word: &str) -> bool {
        let known = WORDS.iter().find(|(on, off, _)| word == *on || word == *off);
        if let Some((on, _, flag)) = known {
            self.flags.set(*flag, word == *on);
        }
        known.is_some() || IDLE.contains(&word)
    }

    /// Whether the mount is read-only.
    pub fn is_read_only(&self) -> bool {
        self.flags.contains(MountFlags::RDONLY)
    }

    /// Whether each write must reach the server before write(2) returns.
    pub fn is_sync(&self) -> bool {
        self.flags.contains(MountFlags::SYNCHRONOUS)
    }

    /// The options that have the same form for mount(2) and `fusermount3`.
    fn common(&self) -> String {
        let mut text = String::new();
        let is_checked = self.others || self.checked;
        text += if is_checked { ",default_permissions" } else { "" };
        text += if self.others { ",allow_other" } else { "" };
        if let Some(max) = self.max_read {
            let _ = write!(text, ",max_read={max}");
        }
        text
    }

    /// The options for `fusermount3`.
    fn words(&self) -> String {
        let mut text = String::from("subtype=ninefold,fsname=");
        for c in self.source.chars() {
            text.extend(matches!(c, ',' | '\\').then_some('\\'));
            text.push(c);
        }
        for (on, off, flag) in WORDS {
            let word = if self.flags.contains(*flag) { on } else { off };
            // Not every version of `fusermount3` knows these, and the kernel does not ask FUSE for access times.
            if !word.ends_with("atime") && !matches!(*word, "symfollow" | "nodirsync") {
                let _ = write!(text, ",{word}");
            }
        }
        text + &self.common()
    }
}

/// Options of mount(8): the one that sets a flag and the one that clears it.
const WORDS: &[(&str, &str, MountFlags)] = &[
    ("ro", "rw", MountFlags::RDONLY),
    ("nosuid", "suid", MountFlags::NOSUID),
    ("nodev", "dev", MountFlags::NODEV),
    ("noexec", "exec", MountFlags::NOEXEC),
    ("sync", "async", MountFlags::SYNCHRONOUS),
    ("dirsync", "nodirsync", MountFlags::DIRSYNC),
    ("noatime", "atime", MountFlags::NOATIME),
    ("nodiratime", "diratime", MountFlags::NODIRATIME),
    ("relatime", "norelatime", MountFlags::RELATIME),
    ("strictatime", "nostrictatime", MountFlags::STRICTATIME),
    ("nosymfollow", "symfollow", MountFlags::NOSYMFOLLOW),
];
/// Options of mount(8) about who may mount and when. They are accepted and ignored.
const IDLE: &[&str] =
    &["defaults", "auto", "noauto", "user", "nouser", "users", "owner", "group", "_netdev", "nofail"];

/// A directory that is mounted on. Dropping it unmounts lazily. Close its device before, or serve it on another thread.
#[derive(Debug)]
pub struct Mount {
    dir: PathBuf,
    /// The kernel's number for this mount, if it reports one.
    id: Option<u64>,
    is_there: bool,
}

impl Mount {
    /// Mounts on a directory. Also returns the device, which is non-blocking.
    ///
    /// # Errors
    /// Fails if the directory is missing, is a file, is not empty (unless that is allowed), or still has the mount of a
    /// server that died. Fails if /dev/fuse is missing or not open to this user, and if `fusermount3` is needed and
    /// missing, or refuses.
    pub fn new(dir: &Path, options: &MountOptions) -> io::Result<(Self, OwnedFd)> {
        let dir = usable(dir, options.nonempty)?;
        let may = rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        let device = match may {
            true => {
                let device = device()?;
                attach(&device, &dir, options)?;
                device
            }
            false => program(&dir, options)?,
        };
        let id = id(&dir);
        Ok((Self { dir, id, is_there: true }, device))
    }

    /// The absolute path of the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Forgets the mount, which someone else has removed.
    pub fn gone(mut self) {
        self.is_there = false;
    }

    /// Unmounts. If the mount is in use, it leaves the tree at once and ends with its last open file. Returns `false`
    /// in that case, else `true`.
    ///
    /// Blocks until the kernel has written its dirty data, so another thread must serve the device meanwhile.
    pub fn unmount(mut self) -> io::Result<bool> {
        self.end(false)
    }

    fn end(&mut self, lazy: bool) -> io::Result<bool> {
        if !std::mem::take(&mut self.is_there) || id(&self.dir) != self.id {
            return Ok(true);
        }
        match lazy {
            false if take(&self.dir, false).is_ok() => Ok(true),
            _ => take(&self.dir, true).map(|()| false),
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Err(error) = self.end(true) {
            tracing::warn!("{error}");
        }
    }
}

/// Unmounts a file system of this program from a directory; with `lazy` even if it is in use.
///
/// # Errors
/// Nothing is mounted there, another kind of file system is, it is in use, or it belongs to another user.
pub fn unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let text = std::fs::read("/proc/self/mountinfo")?;
    let whole = whole(dir, |path| kind(&text, path).is_some())?;
    match kind(&text, &whole) {
        None => {
            let there = std::fs::symlink_metadata(&whole).map_err(|error| why(dir, &error));
            there.and(Err(said(Errno::INVAL, dir, "nothing is mounted there")))
        }
        Some(kind) if kind != KIND.as_bytes() => {
            let kind = String::from_utf8_lossy(kind);
            let why = format!("what is mounted there is {kind}, and not ours: see umount(8)");
            Err(said(Errno::INVAL, dir, &why))
        }
        Some(_) => take(&whole, lazy),
    }
}

/// A file system of this program that is mounted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedServer {
    /// Its directory, absolute.
    pub dir: PathBuf,
    /// The server, as [`MountOptions::source`].
    pub source: String,
    /// Its options, with commas between, as the kernel reports them.
    pub options: String,
    /// The user who has mounted it.
    pub uid: u32,
}

/// Lists the file systems of this program that this process can see, in the order in which they were mounted. Asks
/// no server.
///
/// # Errors
/// Fails if /proc is not mounted.
pub fn mounted() -> io::Result<Vec<MountedServer>> {
    Ok(servers(&std::fs::read("/proc/self/mountinfo")?))
}

fn servers(mountinfo: &[u8]) -> Vec<MountedServer> {
    let ours = entries(mountinfo).filter(|entry| entry.kind == KIND.as_bytes());
    let server = |entry: MountEntry| {
        let rest = String::from_utf8_lossy(entry.rest);
        let uid = rest.split(',').find_map(|word| word.strip_prefix("user_id=")?.parse().ok())?;
        let is_shown = |word: &&str| !matches!(*word, "ro" | "rw") && !word.contains("_id=");
        let own = String::from_utf8_lossy(entry.options);
        let options: Vec<&str> = own.split(',').chain(rest.split(',').filter(is_shown)).collect();
        Some(MountedServer {
            dir: entry.dir,
            source: String::from_utf8_lossy(&unescaped(entry.source)).into_owned(),
            options: options.join(","),
            uid,
        })
    };
    ours.filter_map(server).collect()
}

/// The type of the file system mounted on this directory, if any. The last mount hides the others.
fn kind<'a>(mountinfo: &'a [u8], dir: &Path) -> Option<&'a [u8]> {
    entries(mountinfo).filter(|entry| entry.dir == dir).last().map(|entry| entry.kind)
}

/// A line of proc_pid_mountinfo(5).
struct MountEntry<'a> {
    dir: PathBuf,
    /// Options of the mount.
    options: &'a [u8],
    kind: &'a [u8],
    /// With escapes.
    source: &'a [u8],
    /// Options of the file system.
    rest: &'a [u8],
}

/// Parses proc_pid_mountinfo(5): fields 5 and 6 are the mount point and its options; type, source and options of the
/// file system follow ` - `.
fn entries(mountinfo: &[u8]) -> impl Iterator<Item = MountEntry<'_>> {
    mountinfo.split(|&b| b == b'\n').filter_map(|line| {
        let mut fields = line.split(|&b| b == b' ').skip(4);
        let at = line.windows(3).position(|w| w == b" - ")? + 3;
        let mut last = line[at..].split(|&b| b == b' ');
        Some(MountEntry {
            dir: OsString::from_vec(unescaped(fields.next()?)).into(),
            options: fields.next()?,
            kind: last.next()?,
            source: last.next()?,
            rest: last.next().unwrap_or_default(),
        })
    })
}

/// Decodes the octal escapes for blanks and similar characters.
fn unescaped(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((&first, rest)) = text.split_first() {
        let number =
            rest.get(..3).filter(|digits| first == b'\\' && digits.iter().all(|d| (b'0'..=b'7').contains(d)));
        out.push(number.map_or(first, |digits| digits.iter().fold(0, |n, d| n << 3 | (d - b'0'))));
        text = if number.is_some() { &rest[3..] } else { rest };
    }
    out
}

/// Returns the absolute path of a directory, through links. Does not look at a mount point, whose server may not
/// answer.
fn whole(dir: &Path, is_mounted: impl Fn(&Path) -> bool) -> io::Result<PathBuf> {
    let mut path = dir.to_owned();
    for _ in 0..LINKS_MAX {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return path.canonicalize().map_err(|error| why(dir, &error));
        };
        let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
        let parent = parent.canonicalize().map_err(|error| why(dir, &error))?;
        let named = parent.join(name);
        if is_mounted(&named) {
            return Ok(named);
        }
        match named.read_link() {
            Ok(target) => path = parent.join(target),
            Err(_) => return Ok(named),
        }
    }
    Err(why(dir, &Errno::LOOP.into()))
}

/// Returns the absolute path of a directory that may be mounted on.
fn usable(dir: &Path, nonempty: bool) -> io::Result<PathBuf> {
    let found = std::fs::metadata(dir).and_then(|meta| Ok((meta.is_dir(), dir.canonicalize()?)));
    let (is_dir, whole) = found.map_err(|error| why(dir, &error))?;
    if !is_dir {
        return Err(said(Errno::NOTDIR, dir, "it is no directory: make one to mount on"));
    }
    if !nonempty && std::fs::read_dir(dir).is_ok_and(|mut names| names.next().is_some()) {
        return Err(said(
            Errno::NOTEMPTY,
            dir,
            "the directory is not empty: -o nonempty hides what is in it",
        ));
    }
    Ok(whole)
}

/// Mounts by mount(2).
pub(super) fn attach(device: &OwnedFd, dir: &Path, options: &MountOptions) -> io::Result<()> {
    let (fd, uid, gid) = (device.as_raw_fd(), getuid().as_raw(), getgid().as_raw());
    let more = options.common();
    let data = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}{more}");
    let data = CString::new(data).expect("numbers and known words");
    rustix::mount::mount(&*options.source, dir, KIND, options.flags, &*data).map_err(|error| match error {
        Errno::NODEV => said(error, dir, NO_MODULE),
        Errno::PERM => said(error, dir, "the kernel does not let this user mount here"),
        _ => why(dir, &error.into()),
    })
}

/// Opens /dev/fuse.
pub(super) fn device() -> io::Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
    rustix::fs::open(DEVICE, flags, Mode::empty()).map_err(|error| match error {
        Errno::NOENT | Errno::NODEV | Errno::NXIO => said(error, Path::new(DEVICE), NO_MODULE),
        Errno::ACCESS | Errno::PERM => said(error, Path::new(DEVICE), FOR_ALL),
        _ => why(Path::new(DEVICE), &error.into()),
    })
}

/// Mounts by `fusermount3`, which sends the device over the socket that _FUSE_COMMFD names.
fn program(dir: &Path, options: &MountOptions) -> io::Result<OwnedFd> {
    let (ours, theirs) = UnixStream::pair()?;
    // Not every version accepts the numbers of the standard files here.
    let theirs = rustix::io::fcntl_dupfd_cloexec(theirs, 3)?;
    rustix::io::fcntl_setfd(&theirs, rustix::io::FdFlags::empty())?;
    let mut command = Command::new(PROGRAM);
    command.args(["-o", &options.words(), "--"]).arg(dir).env("_FUSE_COMMFD", theirs.as_raw_fd().to_string());
    let mut child = start(&mut command)?;
    drop(theirs);
    let Some(device) = receive(&ours)? else { return Err(refused(dir, child)) };
    rustix::fs::fcntl_setfl(&device, OFlags::RDWR | OFlags::NONBLOCK)?;
    child.wait()?;
    Ok(device)
}

fn start(command: &mut Command) -> io::Result<Child> {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => {
            let why = "there is no fusermount3, which mounts for users (Debian, Fedora, Arch: package fuse3); root \
                       does without";
            io::Error::new(error.kind(), why)
        }
        _ => why(Path::new(PROGRAM), &error),
    })
}

/// Receives a descriptor over a socket. `None`: the socket was closed without one.
pub(super) fn receive(socket: &UnixStream) -> io::Result<Option<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut into = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| recvmsg(socket, &mut into, &mut beside, RecvFlags::CMSG_CLOEXEC))?;
    Ok(beside.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
        _ => None,
    }))
}

/// The error for a failed `fusermount3`, with advice.
fn refused(dir: &Path, mut child: Child) -> io::Error {
    let mut text = String::new();
    if let Some(mut stderr) = child.stderr.take() {
        let _ = stderr.read_to_string(&mut text);
    }
    let _ = child.wait();
    let text = text.trim().strip_prefix("fusermount3: ").unwrap_or(text.trim());
    let kind = match text {
        _ if text.contains("user_allow_other") => {
            let why = "allow_other is for root, unless /etc/fuse.conf has the line user_allow_other";
            return said(Errno::PERM, dir, why);
        }
        _ if text.contains("failed to open /dev/fuse") => {
            let why = if text.contains("denied") { FOR_ALL } else { NO_MODULE };
            return said(Errno::ACCESS, Path::new(DEVICE), why);
        }
        _ if text.contains("Device or resource busy") => return said(Errno::BUSY, dir, BUSY),
        _ if text.contains("not found in") => {
            return said(Errno::INVAL, dir, "nothing of this user is mounted there");
        }
        "" => return said(Errno::IO, dir, "fusermount3 has failed and does not say why"),
        _ => io::ErrorKind::PermissionDenied,
    };
    io::Error::new(kind, format!("{}: fusermount3: {text}", dir.display()))
}

/// Unmounts, by umount(2) or `fusermount3`.
fn take(dir: &Path, lazy: bool) -> io::Result<()> {
    let how = if lazy { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(dir, how | UnmountFlags::NOFOLLOW) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error @ Errno::BUSY) => return Err(said(error, dir, BUSY)),
        Err(error @ Errno::INVAL) => return Err(said(error, dir, "nothing is mounted there")),
        Err(error) => return Err(why(dir, &error.into())),
    }
    let mut command = Command::new(PROGRAM);
    command.args(["-u"]).args(lazy.then_some("-z")).arg("--").arg(dir);
    let mut child = start(&mut command)?;
    if child.wait()?.success() { Ok(()) } else { Err(refused(dir, child)) }
}

/// The number of the mount at a path, if the kernel reports one (Linux 5.8). Does not ask the mount's server.
fn id(dir: &Path) -> Option<u64> {
    let found =
        statx(CWD, dir, AtFlags::STATX_DONT_SYNC | AtFlags::SYMLINK_NOFOLLOW, StatxFlags::MNT_ID).ok()?;
    (found.stx_mask & StatxFlags::MNT_ID.bits() != 0).then_some(found.stx_mnt_id)
}

/// Describes a system error in terms of a mount.
fn why(path: &Path, error: &io::Error) -> io::Error {
    match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(errno @ Errno::NOENT) => said(errno, path, "there is no such directory"),
        Some(errno @ Errno::NOTCONN) => {
            let dir = path.display();
            let why =
                format!("its server has gone without unmounting it: `ninefold unmount {dir}` takes it away");
            said(errno, path, &why)
        }
        _ => {
            let text = error.to_string();
            let text = text.rsplit_once(" (os error ").map_or(&*text, |(said, _)| said);
            io::Error::new(error.kind(), format!("{}: {text}", path.display()))
        }
    }
}

fn said(errno: Errno, path: &Path, why: &str) -> io::Error {
    io::Error::new(io::Error::from(errno).kind(), format!("{}: {why}", path.display()))
}

const DEVICE: &str = "/dev/fuse";
const KIND: &str = "fuse.ninefold";
/// Maximum number of links followed, as in path_resolution(7).
const LINKS_MAX: usize = 40;
const PROGRAM: &str = "fusermount3";
const NO_MODULE: &str =
    "the kernel's fuse is not there: `modprobe fuse`, or let the container have /dev/fuse";
const FOR_ALL: &str = "this user may not open it; it is there for all where its mode is 0666, as is usual";
const BUSY: &str =
    "it is in use: `fuser -m` shows by whom; `ninefold unmount --lazy` takes it away all the same";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_words_become_flags_and_come_out_again() {
        let mut options = MountOptions { source: "tcp!h!1,tcp!\\".into(), ..MountOptions::default() };
        for word in ["defaults", "ro", "dev", "noexec", "noatime", "_netdev", "nofail"] {
            assert!(options.set(word), "{word}");
        }
        assert!(!options.set("cache=4") && !options.set("nosense"));
        assert!(options.is_read_only());
        options.others = true;
        assert_eq!(
            options.words(),
            "subtype=ninefold,fsname=tcp!h!1\\,tcp!\\\\,ro,nosuid,dev,noexec,async,default_permissions,allow_other"
        );
    }

    #[test]
    fn a_mount_point_is_found_in_what_the_kernel_says() {
        let text = b"22 1 0:20 / /a\\040b rw,nosuid shared:1 - ext4 /dev/x rw\n\
                     23 1 0:21 / /m rw - tmpfs none rw\n24 23 0:22 / /m rw master:2 - fuse.ninefold tcp!h!1 rw\n";
        assert_eq!(kind(text, Path::new("/a b")), Some(&b"ext4"[..]));
        assert_eq!(kind(text, Path::new("/m")), Some(&b"fuse.ninefold"[..]));
        assert_eq!(kind(text, Path::new("/m/x")), None);
        assert_eq!(servers(text), []);
        let text = b"24 23 0:22 / /n\\040m ro,nosuid master:2 - fuse.ninefold tcp!h!1/a\\040b \
                     ro,user_id=7,group_id=8,allow_other\n";
        let (source, options) = ("tcp!h!1/a b".into(), "ro,nosuid,allow_other".into());
        assert_eq!(servers(text), [MountedServer { dir: "/n m".into(), source, options, uid: 7 }]);
    }

    #[test]
    fn links_lead_to_mount_points_and_end() {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, base.join(name)).unwrap();
        link("two", "one");
        link("point", "two");
        link("round", "round");
        // `point` is a mount point: `whole` does not read it, even if it is a dangling link.
        link("nowhere", "point");
        let found = whole(&base.join("one"), |path| path == base.join("point"));
        assert_eq!(found.unwrap(), base.join("point"));
        assert!(whole(&base.join("round"), |_| false).is_err());
        assert_eq!(whole(&base.join("none"), |_| false).unwrap(), base.join("none"));
    }

    #[test]
    fn what_cannot_be_mounted_on_is_said() {
        let dir = tempfile::tempdir().unwrap();
        let said = |path: &Path| usable(path, false).unwrap_err().to_string();
        assert!(said(&dir.path().join("none")).ends_with(": there is no such directory"));
        std::fs::write(dir.path().join("file"), "").unwrap();
        assert!(said(&dir.path().join("file")).contains("no directory"));
        assert!(said(dir.path()).contains("nonempty"));
        assert!(usable(dir.path(), true).is_ok());
        assert!(unmount(dir.path(), false).unwrap_err().to_string().ends_with("nothing is mounted there"));
    }
}
