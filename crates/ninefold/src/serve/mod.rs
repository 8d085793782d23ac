//! `serve`: serves one file server, or the mux of a name space file, on all configured listeners until a signal.
//!
//! In: [`Export`], [`Serving`]. Out: on the standard output a description of the service, then `ready`. On SIGTERM or
//! SIGINT the server accepts no new clients, gives busy clients a moment ([`Core::retire`]), answers outstanding
//! requests, and exits with status 0. A second signal, or [`PATIENCE`], ends the wait. On SIGHUP it reads the
//! configuration again for the log level, and the name space file. The new tree replaces the served one. The server
//! also reopens the access log. Certificates are reloaded without a signal. A service manager is notified of all this
//! ([`notify`]).
//!
//! Always holds: signals are caught before the first socket exists, so no socket file is left behind.

mod access;
pub mod aoe;
mod banner;
pub mod cec;
mod console;
mod export;
mod exports;
mod figures;
mod kinds;
mod listen;
mod local;
pub mod mount;
mod notify;
pub mod ns;
pub mod part;
pub mod partition;
mod space;
pub mod token;
mod web;

use std::fmt;
use std::future::poll_fn;
use std::io::{self, Write};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::{Either, Fuse, FusedFuture, FutureExt, join_all, join3, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::server::{Core, FileServer, Seat, Service, Streams, listen as serve_door};
use nine_io::synth::HiddenTree;
use nine_mux::{As, Flags, HIDDEN_FILES, Live, MAIN, Mux, Owner, Server, files_of_one};
use nine_net::{Env, rt};
use nine_proto::NOUID;
use nine_proto::session::server::Limits;

use crate::archive::Archives;
use crate::cli;
use crate::config::{Config, General, Level, Remote, Serving};
use crate::dial::{self, within};
use crate::log;

use access::Access;
use exports::Exports;

pub use banner::url_host;
pub use cec::Console;
pub use export::Export;
pub use exports::check as check_exports;
use kinds::Servers;
pub use kinds::{Kind, has_host, join_host};
pub use listen::{Listen, certificate, default_socket};
use notify::Manager;
pub use space::Space;
pub use web::Web;

/// Longest wait at shutdown for outstanding answers.
const PATIENCE: Duration = Duration::from_secs(10);

/// Serves until a signal.
pub fn run(args: cli::Serve, config: &Config, general: &General) -> Result<()> {
    let export = match <[Export; 1]>::try_from(args.exports) {
        Ok([export]) => export,
        Err(none) if none.is_empty() => Export::here()?,
        Err(_) => bail!(
            "several servers in one tree: write them into a name space file, with a line like `mount disk:/srv /srv` \
             for each, and serve that"
        ),
    };
    let mut serving = config.serving(&args.serving)?;
    let served = Served::prepare(export, config, &mut serving)?;
    listen::inherit(&mut serving)?;
    // Files must get exactly the modes that clients ask for.
    rustix::process::umask(rustix::fs::Mode::empty());
    if let Err(e) = rt::raise_nofile() {
        tracing::warn!("the limit of open files stays as it is: {e}");
    }
    let cores = serving.cores.map_or_else(rt::default_cores, |n| n as usize).max(1);
    let seats: Vec<Arc<Seat>> = (1..cores).map(|_| Arc::default()).collect();
    let archives = Arc::<Archives>::default();
    let ended = rt::run(cores, async |core: rt::Core, env: rt::Real| match core.index {
        0 => {
            let served = serve(env, &served, &serving, general, &seats, &archives).await;
            let served = served.and(archives.close(&env).await);
            seats.iter().for_each(|seat| seat.close());
            served
        }
        n => {
            seats[n - 1].serve(env).await;
            Ok(())
        }
    });
    console::end();
    let ended = ended?;
    log::end();
    ended.into_iter().collect()
}

/// The tree to serve, before anything is opened.
enum Served {
    One(Export),
    Space(Space, Box<Remote>),
}

impl Served {
    /// Returns whether the owner's socket is opened in addition to the listeners in the file.
    fn has_socket(&self) -> bool {
        matches!(self, Self::Space(space, _) if !space.listen.is_empty() && !space.no_socket)
    }
}

impl Served {
    /// Reads a name space file. Its lines may add listeners.
    fn prepare(export: Export, config: &Config, serving: &mut Serving) -> Result<Self> {
        let remote = config.remote_of_server()?;
        let space = match &export {
            Export::Disk(_) | Export::Ram(_) => return Ok(Self::One(export)),
            Export::Archive(spec) => Space::of_archive(spec, &remote)?,
            Export::Space(path) => Space::read(path, &remote)?,
        };
        let is_new = |listen: &&Listen| serving.listen.iter().all(|other| other.addr != listen.addr);
        let also = space.listen.iter().filter(is_new);
        let also: Vec<Listen> = also.cloned().collect();
        serving.listen.extend(also);
        for web in &space.webs {
            if !serving.http.contains(web) {
                serving.http.push(web.clone());
            }
        }
        for console in &space.consoles {
            if !serving.cec.contains(console) {
                serving.cec.push(console.clone());
            }
        }
        Ok(Self::Space(space, Box::new(remote)))
    }

    async fn open(
        &self,
        env: rt::Real,
        serving: &Serving,
        core: &Core,
        seats: &[Arc<Seat>],
        archives: &Arc<Archives>,
    ) -> Result<Opened> {
        let server: Arc<dyn FileServer> = match self {
            Self::One(Export::Disk(path)) => export::disk(path, serving)?,
            Self::One(Export::Ram(limit)) => export::ram(*limit),
            Self::One(Export::Archive(_) | Export::Space(_)) => unreachable!("it has been read"),
            Self::Space(space, remote) => {
                let (server, mux, live) =
                    space.open(env, serving, remote, core.clone(), seats, archives).await?;
                return Ok(Opened { server, mux: Some(mux), live: Some(live) });
            }
        };
        let mux = match serving.serves_browsers() {
            true => Some(web::mux(env, server.clone(), &Core::default()).await?),
            false => None,
        };
        // A mux would cost each request a hop. So the owner only sees its files, beside those of the server.
        let files = files_of_one(&self.name(), core, env.wall());
        let server: Arc<dyn FileServer> = Arc::new(HiddenTree::new(server, HIDDEN_FILES, files));
        Ok(Opened { server, mux, live: None })
    }
}

/// The open file server, the mux that browsers see it through, and state that must live as long.
struct Opened {
    server: Arc<dyn FileServer>,
    mux: Option<Mux>,
    live: Option<Live>,
}

impl Opened {
    /// Mounts a path of a remote server below a mux, which attaches there as our user.
    async fn elsewhere(
        env: rt::Real,
        servers: &Servers,
        server: Server,
        remote: &Remote,
        path: &str,
    ) -> Result<Self> {
        let mux = Mux::new(servers.root("the root"), nine_servers::disk::names());
        env.spawn(Box::pin(mux.run(env, &[])));
        let (name, uid) = dial::user(remote);
        let (name, uid): (Box<str>, _) = (name.into(), (uid != NOUID).then_some(uid));
        let space = mux.space(MAIN, Owner { name: name.clone(), uid });
        let aname = remote.aname.as_deref().unwrap_or_default();
        space.mount(server, aname, &As::User { name, uid }, "/", Flags::REPLACE).await?;
        if !path.trim_matches('/').is_empty() {
            space.bind(path, "/", Flags::REPLACE).await?;
        }
        Ok(Self { server: Arc::new(mux.clone()), mux: Some(mux), live: None })
    }
}

impl Served {
    /// Returns the directories of this host that are served.
    fn disks(&self) -> Vec<PathBuf> {
        match self {
            Self::One(Export::Disk(path)) => vec![path.clone()],
            Self::One(_) => Vec::new(),
            Self::Space(space, _) => space.disks(),
        }
    }

    /// Returns its name, one line.
    fn name(&self) -> String {
        match self {
            Self::One(export) => export.to_string(),
            Self::Space(space, _) => space.name().into(),
        }
    }
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(export) => export.fmt(f),
            Self::Space(space, _) => space.fmt(f),
        }
    }
}

async fn serve(
    env: rt::Real,
    served: &Served,
    serving: &Serving,
    general: &General,
    seats: &[Arc<Seat>],
    archives: &Arc<Archives>,
) -> Result<()> {
    let mut signals = rt::signals()?;
    let core = Core::default();
    // A signal during the start ends the program: a server may let the start wait.
    let mut opening = pin!(served.open(env, serving, &core, seats, archives));
    let opened = loop {
        match select(&mut opening, pin!(signals.next())).await {
            Either::Left((opened, _)) => break opened?,
            Either::Right((rt::Signal::Hangup, _)) => {}
            Either::Right(_) => return Ok(()),
        }
    };
    let exports = Exports::of(&env, serving)?;
    let audit = serving.audit.as_deref().map(Access::audit).transpose()?;
    let mut open = listen::open(&env, serving, served.has_socket())?;
    let strict = serving.strict.unwrap_or(false);
    if let Some(exports) = &exports {
        exports.judges(core.clone());
        open.iter_mut().for_each(|open| open.gate.policy = Some(exports.clone()));
        env.spawn(Box::pin(exports.clone().follow(env)));
    }
    let pushed = listen::pushed(&env, serving)?;
    let access = serving.access_log.as_deref().map(Access::open).transpose()?;
    let webs = match &opened.mux {
        Some(mux) if serving.serves_browsers() => {
            let (live, log) = (opened.live.as_ref(), access.as_ref().map(Access::log));
            let figures = figures::of(core.clone(), archives.clone());
            let exports = exports.as_ref();
            let shown = web::Shown { mux, live, serving, pushed: &pushed, log, figures, exports };
            web::open(env, &shown).await?
        }
        _ => Vec::new(),
    };
    let is_local = |open: &listen::Open| local::readers(&open.gate).is_some();
    if open.iter().any(is_local) || webs.iter().any(web::Open::is_local) {
        served.disks().iter().for_each(|dir| local::warn(dir, serving));
    }
    let consoles = cec::open(env, &serving.cec, archives).await?;
    let banner = banner::text(served, serving, &open, &webs, &consoles);
    let mut doors = FuturesUnordered::new();
    for listen::Open { door, gate, streams, data, begins, .. } in open {
        let service = Service::new(opened.server.clone(), gate, core.clone());
        let mut service = Service { begins, ..service.with_modules(pushed.clone()) };
        if let Some(dial) = streams {
            service = service.with_streams(Streams::new(&dial, env.clock()));
        }
        let default = Limits::default();
        service.limits = Limits {
            msize: serving.msize.unwrap_or(default.msize),
            fids: serving.max_fids.map_or(default.fids, |n| n as usize),
        };
        let only = Service { only_streams: true, ..service.clone() };
        doors.extend(data.map(|door| serve_door(env, door, only, seats)));
        doors.push(serve_door(env, door, service, seats));
    }
    let (stop, stopped) = futures_util::future::abortable(std::future::pending::<()>());
    let stop = stop.map(drop).shared();
    let webs: Vec<_> = webs
        .into_iter()
        .map(|web| {
            let stop = stop.clone();
            let ended = async move { web.server.run(&env, stop, PATIENCE).await }.boxed_local().shared();
            env.spawn(Box::pin(ended.clone()));
            ended
        })
        .collect();
    // A terminal that is gone is no reason not to serve.
    let _ = io::stdout().write_all(banner.as_bytes()).and_then(|()| io::stdout().flush());
    let (manager, status) = (Manager::get(), format!("serves {}", served.name()));
    manager.ready(&status);
    env.spawn(Box::pin(manager.clone().live(env)));
    {
        let reread = || async {
            let done = reread(env, general, served, opened.live.as_ref(), archives, strict).await;
            exports.iter().for_each(|exports| exports.look(&env));
            access.iter().chain(&audit).for_each(|file| file.reopen());
            done
        };
        let (mut rereading, mut again) = (pin!(Fuse::terminated()), false);
        loop {
            let mut signal = pin!(signals.next());
            let next = poll_fn(|cx| {
                let reread = rereading.as_mut().poll(cx).map(Next::Reread);
                let next = reread.is_pending().then(|| doors.poll_next_unpin(cx).map(Next::Door));
                let next = next.unwrap_or(reread);
                if next.is_pending() { signal.as_mut().poll(cx).map(Next::Signal) } else { next }
            });
            match next.await {
                Next::Door(Some(Err(e))) => return Err(e.into()),
                Next::Door(Some(Ok(()))) => {}
                Next::Door(None) => break,
                Next::Signal(rt::Signal::Hangup) => again = true,
                Next::Signal(signal) => {
                    let clients = core.connected();
                    tracing::info!(?signal, clients, "no new clients; the answers owed are sent");
                    break;
                }
                Next::Reread(Ok(())) => manager.ready(&status),
                Next::Reread(Err(why)) => manager.ready(&format!("{status}, as before: {why:#}")),
            }
            // If SIGHUP arrived during the reload, the files may have changed since: reload once more.
            if rereading.is_terminated() && std::mem::take(&mut again) {
                manager.reloading();
                rereading.set(reread().fuse());
            }
        }
    }
    manager.stopping("no new clients; the answers owed are sent");
    stopped.abort();
    // Requests of browsers go through the mux. Its connections inside this process are not drained.
    let drained = async {
        let clients = async {
            core.retire(&env).await;
            core.drain();
        };
        let closed = async { while doors.next().await.is_some() {} };
        let others = async {
            join_all(consoles.iter().map(cec::Open::close)).await;
            join_all(webs).await;
        };
        join3(clients, closed, others).await;
        core.drained().await;
    };
    let drained = within(&env, PATIENCE, drained);
    match select(pin!(drained), pin!(signals.next())).await {
        Either::Left((Some(()), _)) => tracing::info!("all clients have their answers"),
        _ => tracing::warn!(clients = core.connected(), "ending with answers owed"),
    }
    drop((access, audit));
    Ok(())
}

/// The next event of a running server.
enum Next {
    /// A listener has closed; `None`: all have.
    Door(Option<io::Result<()>>),
    Signal(rt::Signal),
    /// The files were reloaded.
    Reread(Result<()>),
}

/// Reloads the settings that may change while serving: the log level and the name spaces. An invalid file is logged and
/// leaves its part unchanged.
async fn reread(
    env: rt::Real,
    general: &General,
    served: &Served,
    live: Option<&Live>,
    archives: &Arc<Archives>,
    strict: bool,
) -> Result<()> {
    let config = Config::load(general).inspect_err(|e| {
        tracing::error!("the old configuration stays: {e:#}");
    });
    if let Ok(config) = &config {
        let level = general.log.or(config.log).unwrap_or(Level::Info);
        log::set_level(level);
        tracing::info!(?level, "the configuration is read again; addresses and limits need a new start");
    }
    if let (Served::Space(space, remote), Some(live)) = (served, live) {
        space.again(live, env, remote, archives, strict).await.inspect_err(|e| {
            tracing::error!("the old name space stays: {e:#}");
        })?;
    }
    config.map(drop)
}
