//! Private name spaces: a program sees a mount that no other program sees (mount_namespaces(7), user_namespaces(7)).
//!
//! In: from the server, the mount points, and the command. Out: the process that becomes the command. It sends the
//! device to the server as soon as it is mounted, to be served there. A second process of this program does this, with
//! one thread: [`launch`].
//!
//! ```text
//! PROGRAM ns-launch PARENT PLACE... -- COMMAND [ARG]...
//! ```
//! Its standard input is a socket. Over it the launcher receives the command's standard input and sends the device.
//!
//! The launcher enters a new mount name space. If it has no CAP_SYS_ADMIN, it also enters a new user name space, where
//! its user keeps its id. There it builds a new root beside the old one. The root is one of: the host's root, with a
//! directory of our tree over each mount point; a tmpfs with all of the host's directories and the missing ones; for
//! the mount point `/`, our tree, with the host's /proc, /dev and /sys where it has such directories. Then it executes
//! the command.
//!
//! Always holds: other processes see no change, and nothing is left when the last process has ended. The launcher is
//! killed when its parent ends, and so is the command unless it is a set-user-ID program.

use std::convert::Infallible;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, IoSlice};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Component, Path, PathBuf};
use std::process::{Child, Command, ExitCode};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{MountFlags, MountPropagationFlags, UnmountFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use rustix::process::{Signal, fchdir, getegid, geteuid, pivot_root};
use rustix::thread::{CapabilitySet, UnshareFlags};

use super::mount::{MountOptions, attach, device, receive};

/// The subcommand by which a program that links this module becomes the launcher ([`launch`]).
pub const VERB: &str = "ns-launch";

/// Exit status if the name space cannot be built. A command that cannot be run gives 126, a missing one 127.
const FAILED: u8 = 125;

/// Starts a command in a name space of its own with these mount points. The command is killed when the calling thread
/// ends. If no device comes back, the child has printed the reason and ends with its status.
///
/// # Errors
/// The process cannot be started.
pub fn start(places: &[PathBuf], command: &[OsString]) -> io::Result<(Child, Option<OwnedFd>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg(VERB).arg(std::process::id().to_string()).args(places).arg("--").args(command);
    let child = launcher.stdin(OwnedFd::from(theirs)).spawn()?;
    // The launcher's end of the socket stays open in this process until this drop.
    drop(launcher);
    send(&ours, io::stdin().as_fd())?;
    Ok((child, receive(&ours)?))
}

/// Becomes the command of [`start`]. Returns only on failure, after printing the reason.
pub fn launch() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    let Err(LaunchFailure { status, why }) = enter(&words);
    eprintln!("ninefold: ns: {why}");
    ExitCode::from(status)
}

struct LaunchFailure {
    status: u8,
    why: String,
}

/// Converts an error to a failure of `what`.
fn of<E: Into<io::Error>>(what: impl AsRef<OsStr>) -> impl FnOnce(E) -> LaunchFailure {
    move |error| {
        let (what, error) = (Path::new(what.as_ref()).display(), error.into().to_string());
        let error = error.rsplit_once(" (os error ").map_or(&*error, |(said, _)| said);
        LaunchFailure { status: FAILED, why: format!("{what}: {error}") }
    }
}

fn enter(words: &[OsString]) -> Result<Infallible, LaunchFailure> {
    let wrong = || LaunchFailure { status: FAILED, why: "it is started by `ninefold ns`".into() };
    let parent = words.first().and_then(|word| word.to_str()?.parse::<u32>().ok()).ok_or_else(wrong)?;
    let at = words.iter().position(|word| word == "--").ok_or_else(wrong)?;
    let (places, command) = (&words[1..at], &words[at + 1..]);
    let socket = standard_input().map_err(of("the server"))?;
    let dir = std::env::current_dir().unwrap_or_else(|_| "/".into());

    unshare()?;
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(of("its end"))?;
    if rustix::process::getppid().map(|pid| pid.as_raw_nonzero().get() as u32) != Some(parent) {
        return Err(of("the server")(Errno::SRCH));
    }
    let device = device().map_err(|error| LaunchFailure { status: FAILED, why: error.to_string() })?;
    let plan = RootPlan::of(places)?;
    let [scratch, host, ours] = outside(&device)?;
    send(&socket, device.as_fd()).map_err(of("the server"))?;
    drop((socket, device));
    plan.build(&scratch, &host, &ours)?;
    if rustix::process::chdir(&dir).is_err() {
        rustix::process::chdir("/").map_err(of("/"))?;
    }
    become_it(command)
}

/// Takes over the socket, and puts the command's own standard input in its place. The command does not inherit the
/// socket.
fn standard_input() -> io::Result<UnixStream> {
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let sent = receive(&socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    rustix::stdio::dup2_stdin(sent)?;
    Ok(socket)
}

/// Enters new name spaces.
fn unshare() -> Result<(), LaunchFailure> {
    let may = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let wanted = if may { UnshareFlags::NEWNS } else { UnshareFlags::NEWUSER | UnshareFlags::NEWNS };
    #[expect(
        deprecated,
        reason = "what is unsafe about it are shared tables of descriptors, which stay as they are"
    )]
    let made = rustix::thread::unshare(wanted);
    made.map_err(|error| LaunchFailure { status: FAILED, why: forbidden(error) })?;
    if !may {
        let put = |file: &str, text: String| {
            fs::write(format!("/proc/self/{file}"), text).map_err(|error| LaunchFailure {
                status: FAILED,
                why: forbidden(Errno::from_io_error(&error).unwrap_or(Errno::PERM)),
            })
        };
        put("setgroups", "deny".into())?;
        put("uid_map", format!("{uid} {uid} 1"))?;
        put("gid_map", format!("{gid} {gid} 1"))?;
    }
    // Later mounts of the host appear here too; none of ours appear at the host.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags)
        .map_err(|error| LaunchFailure { status: FAILED, why: forbidden(error) })
}

/// Names the setting that may forbid name spaces to a user.
fn forbidden(error: Errno) -> String {
    let set = |(file, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(file).is_ok_and(|text| text.trim() == *value)
    };
    match SETTINGS.iter().find(set) {
        Some((_, _, why)) => format!("the kernel gives no name spaces to this user: {why}"),
        None => {
            let error = io::Error::from(error).to_string();
            let error = error.rsplit_once(" (os error ").map_or(&*error, |(said, _)| said);
            format!(
                "the kernel gives no name spaces to this user: {error}; a container's rules may forbid it"
            )
        }
    }
}

/// Files, the value that forbids name spaces, and the message for it.
const SETTINGS: &[(&str, &str, &str)] = &[
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl user.max_user_namespaces is 0"),
    ("/proc/sys/user/max_mnt_namespaces", "0", "sysctl user.max_mnt_namespaces is 0"),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl kernel.unprivileged_userns_clone is 0"),
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl kernel.apparmor_restrict_unprivileged_userns is 1, and no profile of AppArmor lets this program",
    ),
];

/// The parts of the new root.
#[derive(Debug, PartialEq)]
enum RootPlan {
    /// Our tree alone.
    Ours,
    /// The host's root, with our tree over these mount points, which exist.
    Host(Vec<PathBuf>),
    /// The host's directories, these directories of ours that the host lacks, and mount points below it that exist.
    Mixed { new: Vec<PathBuf>, there: Vec<PathBuf> },
}

impl RootPlan {
    /// Chooses a plan from the files of the host.
    fn of(places: &[OsString]) -> Result<Self, LaunchFailure> {
        let mut places: Vec<&Path> = places.iter().map(Path::new).collect();
        places.sort_unstable();
        let mut kept: Vec<PathBuf> = Vec::new();
        for place in places {
            // A mount point below another one is visible in that.
            if !kept.iter().any(|above| place.starts_with(above)) {
                kept.push(place.into());
            }
        }
        if kept.iter().any(|place| place == Path::new("/")) {
            return Ok(Self::Ours);
        }
        let (there, missing): (Vec<_>, Vec<_>) = kept.into_iter().partition(|place| place.exists());
        let mut new = Vec::new();
        for place in missing {
            let mut names = place.components();
            let first = names.by_ref().take(2).collect::<PathBuf>();
            if first.exists() {
                let why = "this machine has no such directory, and does not get one: it has the one above";
                return Err(LaunchFailure { status: FAILED, why: format!("{}: {why}", place.display()) });
            }
            if !new.contains(&first) {
                new.push(first);
            }
        }
        Ok(if new.is_empty() { Self::Host(there) } else { Self::Mixed { new, there } })
    }

    /// Builds the new root, enters it, and detaches the old one.
    fn build(&self, scratch: &OwnedFd, host: &OwnedFd, ours: &OwnedFd) -> Result<(), LaunchFailure> {
        let places = match self {
            Self::Ours => {
                rustix::mount::mount_bind("/ours", ROOT).map_err(of("the new root"))?;
                &[][..]
            }
            Self::Host(there) => {
                rustix::mount::mount_bind_recursive("/host", ROOT).map_err(of("the new root"))?;
                there
            }
            Self::Mixed { new, there } => {
                mixed(new)?;
                &[&new[..], there].concat()
            }
        };
        rustix::process::chdir(ROOT).map_err(of("the new root"))?;
        pivot_root(".", ".").map_err(of("the new root"))?;
        // From here on paths and absolute links start at the new root.
        if *self == Self::Ours {
            fchdir(host).map_err(of("the host's root"))?;
            for name in ["proc", "dev", "sys"] {
                let target = Path::new("/").join(name);
                if target.is_dir() {
                    rustix::mount::mount_bind_recursive(name, &target).map_err(of(&target))?;
                }
            }
        }
        fchdir(ours).map_err(of("the tree"))?;
        for place in places {
            let source: PathBuf = place.components().filter(|part| *part != Component::RootDir).collect();
            rustix::mount::mount_bind(&source, place).map_err(of(place))?;
        }
        fchdir(scratch).map_err(of("the old root"))?;
        rustix::mount::unmount(".", UnmountFlags::DETACH).map_err(of("the old root"))
    }
}

/// Creates a root outside of both trees, with the host's at `/host` and ours at `/ours`. Returns descriptors of the
/// three.
fn outside(device: &OwnedFd) -> Result<[OwnedFd; 3], LaunchFailure> {
    let base = ["/tmp", "/mnt", "/run", "/proc"].into_iter().find(|dir| Path::new(dir).is_dir());
    let base = base.ok_or_else(|| of("/tmp")(Errno::NOENT))?;
    memory(base)?;
    rustix::process::chdir(base).map_err(of(base))?;
    for dir in ["host", "ours", "root"] {
        fs::create_dir(dir).map_err(of(dir))?;
    }
    pivot_root(".", "host").map_err(of("the host's root"))?;
    rustix::process::chdir("/").map_err(of("/"))?;
    let is_root = geteuid().is_root();
    // Root's command may switch to other users, to whom the modes of files must apply.
    let options = MountOptions { others: is_root, ..MountOptions::default() };
    attach(device, Path::new("/ours"), &options)
        .map_err(|e| LaunchFailure { status: FAILED, why: e.to_string() })?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = ["/", "/host", "/ours"].map(|dir| open(dir, flags, Mode::empty()).map_err(of(dir)));
    let [scratch, host, ours] = opened;
    Ok([scratch?, host?, ours?])
}

/// Creates a root in memory from the host's directories and new ones.
fn mixed(new: &[PathBuf]) -> Result<(), LaunchFailure> {
    memory(ROOT)?;
    for entry in fs::read_dir("/host").map_err(of("the host's root"))? {
        let entry = entry.map_err(of("the host's root"))?;
        let (from, to) = (entry.path(), Path::new(ROOT).join(entry.file_name()));
        let kind = entry.file_type().map_err(of(&to))?;
        if kind.is_symlink() {
            fs::read_link(&from).and_then(|target| symlink(target, &to)).map_err(of(&to))?;
            continue;
        }
        match kind.is_dir() {
            true => fs::create_dir(&to).map_err(of(&to))?,
            false => drop(File::create(&to).map_err(of(&to))?),
        }
        rustix::mount::mount_bind_recursive(&from, &to).map_err(of(&to))?;
    }
    for dir in new {
        let to = Path::new(ROOT).join(dir.strip_prefix("/").unwrap_or(dir));
        fs::create_dir(&to).map_err(of(dir))?;
    }
    // As on the host, ordinary users create nothing in the root.
    rustix::mount::mount_remount(ROOT, MountFlags::BIND | MountFlags::RDONLY, c"").map_err(of("the new root"))
}

fn memory(dir: &str) -> Result<(), LaunchFailure> {
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("ninefold", dir, "tmpfs", flags, c"mode=755").map_err(of(dir))
}

fn send(socket: &UnixStream, fd: BorrowedFd<'_>) -> io::Result<()> {
    let fds = [fd];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut beside = SendAncillaryBuffer::new(&mut space);
    beside.push(SendAncillaryMessage::ScmRights(&fds));
    sendmsg(socket, &[IoSlice::new(b"f")], &mut beside, SendFlags::NOSIGNAL)?;
    Ok(())
}

fn become_it(command: &[OsString]) -> Result<Infallible, LaunchFailure> {
    let Some((program, words)) = command.split_first() else { return Err(of("the command")(Errno::INVAL)) };
    let error = Command::new(program).args(words).exec();
    // A directory of PATH that this user may not enter is not the reason.
    let is_there = || {
        let is_name = !program.as_bytes().contains(&b'/');
        let path = std::env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
        !is_name || std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    Err(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if !is_there() => missing(program),
        io::ErrorKind::NotFound if !Path::new(program).exists() => missing(program),
        _ => LaunchFailure { status: 126, ..of(program)(error) },
    })
}

fn missing(program: &OsStr) -> LaunchFailure {
    LaunchFailure { status: 127, why: format!("{}: there is no such program", Path::new(program).display()) }
}

const ROOT: &str = "/root";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(places: &[&str]) -> Result<RootPlan, String> {
        let places: Vec<OsString> = places.iter().map(|place| (*place).into()).collect();
        RootPlan::of(&places).map_err(|failed| failed.why)
    }

    #[test]
    fn the_root_is_made_of_what_the_host_lacks() {
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(plan(&["/usr", "/"]), Ok(RootPlan::Ours));
        assert_eq!(plan(&["/usr/bin", "/usr", "/etc"]), Ok(RootPlan::Host(paths(&["/etc", "/usr"]))));
        let mixed = RootPlan::Mixed { new: paths(&["/none of ours"]), there: paths(&["/etc"]) };
        assert_eq!(plan(&["/none of ours/a", "/none of ours/b/c", "/etc"]), Ok(mixed));
        assert!(
            plan(&["/usr/none of ours"]).unwrap_err().starts_with("/usr/none of ours: this machine has no")
        );
    }

    #[test]
    fn a_place_that_begins_like_another_is_one_of_its_own() {
        let all = plan(&["/usr", "/usr/../etc"]);
        assert_eq!(all, Ok(RootPlan::Host(vec!["/usr".into()])));
    }
}
