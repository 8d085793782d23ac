//! `mount`: the files of a server as a file system of this machine (docs/mount.md).
//!
//! In: an address, several equal ones, or a server that this command runs itself; a directory. Out: one line on the
//! standard output when it is mounted, then answers to the kernel, until it is unmounted or a signal ends it. In the
//! background another process of this program does this; the first process waits for that line.
//!
//! Always holds: errors of the server or the directory are reported before the command goes to the background. After a
//! signal, in-flight requests are answered first. The mount ends with the process, unless the process is killed.

use std::ffi::OsStr;
use std::fmt;
use std::future::pending;
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::pin::pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use futures_util::future::{Either, abortable, select};
use nine_gate::fuse::{self, Mount, MountOptions};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Service};
use nine_mux::Wait;
use nine_net::{Addr, Env, Peer, Proof, rt};
use nine_proto::{Dialect, GetMask};
use rustix::fs::{Mode, OFlags};
use rustix::process::{getegid, geteuid};

use super::kinds::{Kind, Reached, Servers};
use super::notify::Manager;
use super::{Export, Opened, Served, console, partition};
use crate::archive::Archives;
use crate::cli::{self, Passthrough};
use crate::config::{Config, Remote, Serving};
use crate::dial::{self, Sessions, within};
use crate::fail::{self, Interrupted, Program};
use crate::operand::{Operand, Place};
use crate::output::{Output, table};

/// The source of the mount.
enum What {
    /// A path of a remote server, or the roots of several equal servers.
    There(Vec<Place>),
    /// A server that this command runs.
    Here(Export),
}

impl What {
    fn parse(word: &OsStr, remote: &Remote) -> Result<Self> {
        let text = word.to_str();
        if let Some(Ok(Kind::Remote(all))) = text.filter(|text| text.contains(',')).map(str::parse)
            && all.len() > 1
        {
            let place = |one: Reached| {
                let mut place = Place::parse(one.addr.to_string().as_ref(), remote)?;
                place.token = one.token;
                anyhow::Ok(place)
            };
            return Ok(Self::There(all.into_iter().map(place).collect::<Result<_>>()?));
        }
        match Operand::parse(word, remote)? {
            Operand::Remote(place) => Ok(Self::There(vec![place])),
            Operand::Local(path) if path.metadata().is_ok_and(|meta| meta.file_type().is_socket()) => {
                let addr = Addr::Unix { path: std::path::absolute(path)? };
                Ok(Self::There(vec![Place::parse(addr.to_string().as_ref(), remote)?]))
            }
            Operand::Local(_) => {
                let word = text.ok_or_else(|| anyhow!("{}: is no text", word.display()))?;
                Ok(Self::Here(word.parse().map_err(|why: String| anyhow!("{word}: {why}"))?))
            }
        }
    }
}

impl fmt::Display for What {
    /// Writes the source without secrets, because all users can see it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Here(export) => export.fmt(f),
            Self::There(places) => places.iter().enumerate().try_for_each(|(n, place)| {
                let path = String::from_utf8_lossy(&place.path);
                let comma = if n == 0 { "" } else { "," };
                write!(f, "{comma}{}{}", place.addr, path.trim_end_matches('/'))
            }),
        }
    }
}

/// Mounts, and serves until it is unmounted. In the background, returns once it is mounted.
pub fn run(mut args: cli::Mount, config: &Config) -> Result<()> {
    let (Some(what), Some(dir)) = (args.what.take(), args.dir.take()) else { return list() };
    let mut to = MountOptions::default();
    args.take_options(&mut to).map_err(|why| anyhow!(why))?;
    let mut remote = config.remote(&args.remote)?;
    remote.absolute()?;
    let what = What::parse(&what, &remote)?;
    to.source = what.to_string();
    if args.fake {
        return Ok(());
    }
    let is_behind = std::env::var_os(BEHIND).is_some();
    if !args.foreground && !is_behind {
        return behind();
    }
    let mut serving = config.serving(&Serving::default())?;
    serving.read_only = Some(args.read_only || serving.read_only.unwrap_or(false));
    let here = match &what {
        What::Here(export) => Some(Served::prepare(export.clone(), config, &mut serving)?),
        What::There(_) => None,
    };
    let options = fuse::Options {
        cache: args.cache,
        write_back: args.write_back,
        all_users: to.others,
        checked: to.checked,
        owner: None,
        passthrough: args.passthrough == Passthrough::Auto,
        patience: remote.patience.map_or(PATIENCE, |seconds| Duration::from_secs(seconds.into())),
        write_behind: !to.is_sync(),
    };
    partition::settle();
    let ended = rt::block_on(async |env| {
        let mut signals = rt::signals()?;
        let (core, archives) = (Core::default(), Arc::<Archives>::default());
        let begin = async {
            let opened = match (&here, &what) {
                (Some(served), _) => served.open(env, &serving, &core, &[], &archives).await?,
                (None, What::There(places)) => {
                    there(env, &args, places, &serving, &remote, &archives).await?
                }
                (None, What::Here(_)) => unreachable!("it has been prepared"),
            };
            let aname = here.as_ref().and(remote.aname.as_deref()).unwrap_or_default();
            let root = root(env, &opened, &serving, core.clone(), aname).await?;
            let (mount, device) = Mount::new(&dir, &to).map_err(|error| refused(&dir, error))?;
            anyhow::Ok((opened, root, mount, device))
        };
        let begun = match select(pin!(begin), pin!(signals.next())).await {
            Either::Left((begun, _)) => begun,
            // Nothing is mounted yet.
            Either::Right((signal, _)) => Err(Interrupted(signal).into()),
        };
        let ended = match begun {
            Ok((_opened, root, mount, device)) => match tell(&mount, is_behind) {
                Ok(()) => serve(env, (mount, device), root, options, &mut signals).await,
                Err(error) => Err(error.into()),
            },
            Err(error) => Err(error),
        };
        ended.and(archives.close(&env).await)
    });
    console::end();
    ended?
}

/// Prints the mounts of this user.
fn list() -> Result<()> {
    let uid = geteuid().as_raw();
    let own: Vec<_> = fuse::mounted()?.into_iter().filter(|mount| mount.uid == uid).collect();
    if own.is_empty() {
        fail::note("you have no mounts; `ninefold mount SERVER DIR` makes one");
        return Ok(());
    }
    let mut rows = vec![["DIR", "SERVER", "OPTIONS"].map(String::from).to_vec()];
    rows.extend(
        own.into_iter().map(|mount| vec![mount.dir.display().to_string(), mount.source, mount.options]),
    );
    let mut out = Output::new();
    out.print(table(&rows))?;
    out.flush()
}

/// Explains why nothing can be mounted: the files in the directory may be those of another mount.
fn refused(dir: &Path, error: io::Error) -> io::Error {
    let is_mount = || {
        let dir = dir.canonicalize().ok()?;
        Some(dir.metadata().ok()?.dev() != dir.parent()?.metadata().ok()?.dev())
    };
    if error.kind() != io::ErrorKind::DirectoryNotEmpty || is_mount() != Some(true) {
        return error;
    }
    let why = format!("{}: something is already mounted there: -o nonempty hides it", dir.display());
    io::Error::new(io::ErrorKind::ResourceBusy, why)
}

/// Opens the tree of a remote server, and reports its errors now, in the usual form.
async fn there(
    env: rt::Real,
    args: &cli::Mount,
    places: &[Place],
    serving: &Serving,
    remote: &Remote,
    archives: &Arc<Archives>,
) -> Result<Opened> {
    let sessions = Sessions::new(remote.clone(), env);
    let mut found = None;
    for place in places {
        let sought = sessions.find(place, true, GetMask::BASIC).await.context(place.clone());
        match (sought, &mut found) {
            (Ok(one), _) => {
                found = Some(Ok(one));
                break;
            }
            (error, None) => found = Some(error),
            (Err(_), Some(_)) => {}
        }
    }
    let found = found.expect("there is a place")?;
    if !found.file.qid().is_dir() {
        bail!("{}: is no directory", places[0]);
    }
    let path = String::from_utf8(found.names.join(&b'/')).map_err(|_| anyhow!("the path is no text"))?;
    let servers = Servers::new(serving, remote.clone(), env, 1, archives.clone());
    let mut server = servers.of(places, &sessions)?;
    server.wait = Some(args.wait.map_or(Wait::Ever, |most| Wait::AtMost(Duration::from_secs(most.into()))));
    server.ahead = !args.no_read_ahead;
    server.options.budget = BUDGET;
    Opened::elsewhere(env, &servers, server, remote, &path).await
}

/// Attaches to our own server and returns its root.
pub(super) async fn root(
    env: rt::Real,
    opened: &Opened,
    serving: &Serving,
    core: Core,
    aname: &str,
) -> Result<File> {
    let service = Service::new(opened.server.clone(), partition::gate(serving), core);
    let service = Service { own: true, ..service };
    let proof = Proof::Unix { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    let options = Options {
        dialects: vec![Dialect::LS, Dialect::L],
        calls: CALLS,
        clock: Some(env.clock()),
        names: nine_servers::disk::names(),
        ..Options::default()
    };
    let client = Client::within(&env, &service, Peer { addr: "fuse".into(), proof }, options).await?;
    let (name, uid) = dial::user(&Remote::default());
    Ok(client.attach(&name, uid, aname).await?)
}

/// Serves until it is unmounted. A signal unmounts; a second signal or a timeout ends the wait for in-flight requests.
async fn serve(
    env: rt::Real,
    (mount, device): (Mount, OwnedFd),
    root: File,
    options: fuse::Options,
    signals: &mut rt::Signals,
) -> Result<()> {
    let mut served = Box::pin(fuse::serve(env, device, root, options));
    match select(&mut served, pin!(signals.next())).await {
        Either::Left((Ok(()), _)) => {
            mount.gone();
            return Ok(());
        }
        Either::Left((Err(error), _)) => {
            // Close the device first: the kernel would wait for answers.
            drop(served);
            return Err(error.into());
        }
        Either::Right(_) => {}
    }
    let (mut done, end) = abortable(pending::<()>());
    let unmounting = thread::Builder::new().name("unmount".into()).spawn(move || {
        let unmounted = mount.unmount();
        end.abort();
        unmounted
    })?;
    let orderly = async {
        if let Either::Right(_) = select(&mut served, &mut done).await {
            // The mount is in use and stays mounted: wait for in-flight requests only.
            within(&env, LAST, &mut served).await;
        }
    };
    let orderly = within(&env, UNMOUNT, orderly);
    if !matches!(select(pin!(orderly), pin!(signals.next())).await, Either::Left((Some(()), _))) {
        tracing::warn!("ending with answers owed");
    }
    drop(served);
    if !unmounting.join().expect("it only unmounts")? {
        tracing::warn!("it was in use: what is still open there has lost its server");
    }
    Ok(())
}

/// Starts this command again as a background process, which reports its own errors.
fn behind() -> Result<()> {
    let mut words = std::env::args_os();
    let mut command = Command::new("/proc/self/exe");
    command.arg0(words.next().unwrap_or_default()).args(words);
    // Its later log does not go to a terminal.
    command.env(BEHIND, "1").env("NO_COLOR", "1").stdin(Stdio::null()).stdout(Stdio::piped());
    nine_ring::linux::close_all_on_exec()?;
    let mut child = command.spawn()?;
    let mut said = String::new();
    BufReader::new(child.stdout.take().expect("piped")).read_line(&mut said)?;
    if said.ends_with('\n') {
        return Ok(());
    }
    Err(Program { status: partition::status(child.wait()?), error: None }.into())
}

/// Reports that it is mounted, to the caller and a service manager. In the background, also detaches from the caller.
fn tell(mount: &Mount, is_behind: bool) -> io::Result<()> {
    if is_behind {
        leave()?;
    }
    let line = format!("mounted on {}\n", mount.dir().display());
    Manager::get().ready(line.trim_end());
    let _ = io::stdout().write_all(line.as_bytes()).and_then(|()| io::stdout().flush());
    if is_behind {
        rustix::stdio::dup2_stdout(null()?)?;
    }
    Ok(())
}

/// Detaches from the caller's session, directory and standard error. Until this point ^C reaches this process.
fn leave() -> io::Result<()> {
    rustix::process::setsid()?;
    rustix::process::chdir("/")?;
    match journal() {
        Ok(journal) => rustix::stdio::dup2_stderr(journal)?,
        Err(_) => rustix::stdio::dup2_stderr(null()?)?,
    }
    Ok(())
}

fn null() -> io::Result<OwnedFd> {
    Ok(rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?)
}

/// Opens a stream into the systemd journal (sd_journal_stream_fd(3)): the name, no unit, warning level, no options.
fn journal() -> io::Result<OwnedFd> {
    let mut stream = UnixStream::connect("/run/systemd/journal/stdout")?;
    stream.write_all(b"ninefold\n\n4\n0\n0\n0\n0\n")?;
    Ok(stream.into())
}

/// Environment variable that marks the background process.
const BEHIND: &str = "NINEFOLD_BEHIND";
/// Limit of in-flight requests.
const CALLS: usize = 4096;
/// Bytes of requests in flight to the server. It has one client, so this may be more than in a mux of many: a file may
/// be read ahead by an eighth of it.
const BUDGET: usize = 64 << 20;
/// Default time that an interrupted request has to end.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait at the end for the unmount and in-flight requests.
const UNMOUNT: Duration = Duration::from_secs(10);
/// Longest wait at the end for in-flight requests if the mount is in use.
const LAST: Duration = Duration::from_secs(2);
