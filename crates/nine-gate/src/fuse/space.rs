//! A private name space: a program that sees a mount of its own, and nobody else does (mount_namespaces(7),
//! user_namespaces(7)).
//!
//! In: at the server, the places that the mount is to have, and the program. Out: the process that becomes it, which
//! hands the device over as soon as it has the mount, to be served there. One more process of the same program does
//! this, with one thread: [`launch`].
//!
//! ```text
//! PROGRAM ns-launch PARENT PLACE... -- COMMAND [ARG]...
//! ```
//! Its standard input is a socket, over which it is sent the command's, and sends the device.
//!
//! It goes into new name spaces, of mounts and, unless it may mount already, of users, where its user is who it was.
//! There it makes a new root beside the old one: the host's, with our tree's directory over each place; or one in
//! memory that has all of the host's directories and those that it lacks; or, for the place `/`, our tree itself, with
//! the host's /proc, /dev and /sys where it has such directories. Then it becomes the command.
//!
//! Always holds: nothing is changed that others see, and nothing is left of it when its last process has ended; the
//! launcher ends with its parent, whichever way, and so does the command unless it is a set-user-ID program.

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

/// The word by which a program that has this room in it becomes the launcher ([`launch`]).
pub const VERB: &str = "ns-launch";

/// What cannot be made ends with this; what cannot be run with 126, what is not there with 127.
const FAILED: u8 = 125;

/// Starts a command with these places in a name space of its own, and as the calling thread's own: it is killed when
/// that ends. `None` beside it: it has said why not, and ends with its status.
///
/// # Errors
/// No process can be started.
pub fn start(places: &[PathBuf], command: &[OsString]) -> io::Result<(Child, Option<OwnedFd>)> {
    let (ours, theirs) = UnixStream::pair()?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher.arg(VERB).arg(std::process::id().to_string()).args(places).arg("--").args(command);
    let child = launcher.stdin(OwnedFd::from(theirs)).spawn()?;
    // Its end of the socket is here as long as that is.
    drop(launcher);
    send(&ours, io::stdin().as_fd())?;
    Ok((child, receive(&ours)?))
}

/// Becomes the command of [`start`]; returns if that is not possible, once it has been said.
pub fn launch() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(2).collect();
    let Err(Failed { status, why }) = enter(&words);
    eprintln!("ninefold: ns: {why}");
    ExitCode::from(status)
}

struct Failed {
    status: u8,
    why: String,
}

/// What failed, and why.
fn of<E: Into<io::Error>>(what: impl AsRef<OsStr>) -> impl FnOnce(E) -> Failed {
    move |error| {
        let (what, error) = (Path::new(what.as_ref()).display(), error.into().to_string());
        let error = error.rsplit_once(" (os error ").map_or(&*error, |(said, _)| said);
        Failed { status: FAILED, why: format!("{what}: {error}") }
    }
}

fn enter(words: &[OsString]) -> Result<Infallible, Failed> {
    let wrong = || Failed { status: FAILED, why: "it is started by `ninefold ns`".into() };
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
    let device = device().map_err(|error| Failed { status: FAILED, why: error.to_string() })?;
    let plan = Plan::of(places)?;
    let [scratch, host, ours] = outside(&device)?;
    send(&socket, device.as_fd()).map_err(of("the server"))?;
    drop((socket, device));
    plan.build(&scratch, &host, &ours)?;
    if rustix::process::chdir(&dir).is_err() {
        rustix::process::chdir("/").map_err(of("/"))?;
    }
    become_it(command)
}

/// The socket that was in its place, and that the command does not inherit.
fn standard_input() -> io::Result<UnixStream> {
    let socket = UnixStream::from(rustix::io::fcntl_dupfd_cloexec(io::stdin(), 3)?);
    let sent = receive(&socket)?.ok_or(io::ErrorKind::UnexpectedEof)?;
    rustix::stdio::dup2_stdin(sent)?;
    Ok(socket)
}

/// New name spaces.
fn unshare() -> Result<(), Failed> {
    let may = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let wanted = if may { UnshareFlags::NEWNS } else { UnshareFlags::NEWUSER | UnshareFlags::NEWNS };
    #[expect(
        deprecated,
        reason = "what is unsafe about it are shared tables of descriptors, which stay as they are"
    )]
    let made = rustix::thread::unshare(wanted);
    made.map_err(|error| Failed { status: FAILED, why: forbidden(error) })?;
    if !may {
        let put = |file: &str, text: String| {
            fs::write(format!("/proc/self/{file}"), text).map_err(|error| Failed {
                status: FAILED,
                why: forbidden(Errno::from_io_error(&error).unwrap_or(Errno::PERM)),
            })
        };
        put("setgroups", "deny".into())?;
        put("uid_map", format!("{uid} {uid} 1"))?;
        put("gid_map", format!("{gid} {gid} 1"))?;
    }
    // What is mounted at the host later is seen here, too; nothing goes the other way.
    let flags = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    rustix::mount::mount_change("/", flags).map_err(|error| Failed { status: FAILED, why: forbidden(error) })
}

/// Which setting may be why a user has no name spaces.
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

/// Files, what stands there when they forbid it, and what to say then.
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

/// What the new root is made of.
#[derive(Debug, PartialEq)]
enum Plan {
    /// Our tree alone.
    Ours,
    /// The host's, with these places of ours, which are there.
    Host(Vec<PathBuf>),
    /// The host's directories beside these of ours, which are not there, and places below them that are.
    Mixed { new: Vec<PathBuf>, there: Vec<PathBuf> },
}

impl Plan {
    /// Looked at on the host.
    fn of(places: &[OsString]) -> Result<Self, Failed> {
        let mut places: Vec<&Path> = places.iter().map(Path::new).collect();
        places.sort_unstable();
        let mut kept: Vec<PathBuf> = Vec::new();
        for place in places {
            // What is below one of them is seen there.
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
                return Err(Failed { status: FAILED, why: format!("{}: {why}", place.display()) });
            }
            if !new.contains(&first) {
                new.push(first);
            }
        }
        Ok(if new.is_empty() { Self::Host(there) } else { Self::Mixed { new, there } })
    }

    /// Makes the new root and goes there; what was outside of it is let go of.
    fn build(&self, scratch: &OwnedFd, host: &OwnedFd, ours: &OwnedFd) -> Result<(), Failed> {
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
        // From here on names, and absolute links, begin at the new root.
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

/// A root outside of everything, with the host's at `/host` and our tree at `/ours`; descriptors of the three.
fn outside(device: &OwnedFd) -> Result<[OwnedFd; 3], Failed> {
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
    // A root's command may become others, for whom the modes of files are to count.
    let options = MountOptions { others: is_root, ..MountOptions::default() };
    attach(device, Path::new("/ours"), &options)
        .map_err(|e| Failed { status: FAILED, why: e.to_string() })?;
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = ["/", "/host", "/ours"].map(|dir| open(dir, flags, Mode::empty()).map_err(of(dir)));
    let [scratch, host, ours] = opened;
    Ok([scratch?, host?, ours?])
}

/// The host's directories in a root of memory, and new ones.
fn mixed(new: &[PathBuf]) -> Result<(), Failed> {
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
    // As on the host, nobody makes anything there.
    rustix::mount::mount_remount(ROOT, MountFlags::BIND | MountFlags::RDONLY, c"").map_err(of("the new root"))
}

fn memory(dir: &str) -> Result<(), Failed> {
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

fn become_it(command: &[OsString]) -> Result<Infallible, Failed> {
    let Some((program, words)) = command.split_first() else { return Err(of("the command")(Errno::INVAL)) };
    let error = Command::new(program).args(words).exec();
    // A directory of PATH that is not for this user has nothing to do with it.
    let is_there = || {
        let is_name = !program.as_bytes().contains(&b'/');
        let path = std::env::var_os("PATH").filter(|_| is_name).unwrap_or_default();
        !is_name || std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    Err(match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied if !is_there() => missing(program),
        io::ErrorKind::NotFound if !Path::new(program).exists() => missing(program),
        _ => Failed { status: 126, ..of(program)(error) },
    })
}

fn missing(program: &OsStr) -> Failed {
    Failed { status: 127, why: format!("{}: there is no such program", Path::new(program).display()) }
}

const ROOT: &str = "/root";

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(places: &[&str]) -> Result<Plan, String> {
        let places: Vec<OsString> = places.iter().map(|place| (*place).into()).collect();
        Plan::of(&places).map_err(|failed| failed.why)
    }

    #[test]
    fn the_root_is_made_of_what_the_host_lacks() {
        let paths = |all: &[&str]| all.iter().map(PathBuf::from).collect::<Vec<_>>();
        assert_eq!(plan(&["/usr", "/"]), Ok(Plan::Ours));
        assert_eq!(plan(&["/usr/bin", "/usr", "/etc"]), Ok(Plan::Host(paths(&["/etc", "/usr"]))));
        let mixed = Plan::Mixed { new: paths(&["/none of ours"]), there: paths(&["/etc"]) };
        assert_eq!(plan(&["/none of ours/a", "/none of ours/b/c", "/etc"]), Ok(mixed));
        assert!(
            plan(&["/usr/none of ours"]).unwrap_err().starts_with("/usr/none of ours: this machine has no")
        );
    }

    #[test]
    fn a_place_that_begins_like_another_is_one_of_its_own() {
        let all = plan(&["/usr", "/usr/../etc"]);
        assert_eq!(all, Ok(Plan::Host(vec!["/usr".into()])));
    }
}
