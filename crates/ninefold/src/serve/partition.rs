//! `partition run`: a program that inherits a channel (docs/channels.md), and what it is served there.
//!
//! In: what it shall see, the program and its arguments. Out: how the program has ended, as [`Program`].
//!
//! Always holds: what may fail has been opened before the program starts; it has the channel and its standard files,
//! and nothing else of ours; it is killed by nobody here but by signals that are passed on.

use std::ffi::OsString;
use std::fs::File;
use std::future::pending;
use std::io;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::pin::pin;
use std::process::{Child, Command, ExitStatus};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use futures_util::future::{Either, abortable, select};
use nine_io::channel::serve_all;
use nine_io::server::{Core, Gate, Service};
use nine_mux::{As, Flags, MAIN, Mux, Owner};
use nine_net::shm::{Channel, Inherited, Kind, LINES, Layout, PAGES};
use nine_net::{Env, Peer, Proof, rt};
use nine_proto::{GetMask, NOUID};
use rustix::process::{Pid, PidfdFlags, Signal, getegid, geteuid, getpgrp, pidfd_open, pidfd_send_signal};
use rustix::termios;

use super::kinds::{Reached, Servers};
use super::{Opened, Served, console};
use crate::archive::Archives;
use crate::cli;
use crate::config::{Config, Remote, Serving};
use crate::dial::{self, Sessions, within};
use crate::fail::{self, Program};
use crate::operand::Place;

/// For the last requests of a program that has ended; what it has started may not keep the channel for longer.
const PATIENCE: Duration = Duration::from_secs(1);

/// Runs the program to its end; an error, if that is not status 0.
pub fn run(args: cli::PartitionRun, config: &Config) -> Result<()> {
    let mut serving = config.serving(&Serving::default())?;
    serving.read_only = Some(args.read_only || serving.read_only.unwrap_or(false));
    let remote = config.remote(&args.remote)?;
    let served =
        args.export.clone().map(|export| Served::prepare(export, config, &mut serving)).transpose()?;
    let ended = rt::block_on(async |env| {
        let (core, archives) = (Core::default(), Arc::<Archives>::default());
        let opened = match &served {
            Some(served) => served.open(env, &serving, &core, &[], &archives).await,
            None => default_server(env, &serving, remote, &archives).await,
        };
        let ended = match &opened {
            Ok(opened) => host(env, &args, &serving, opened, core).await.map(Some),
            Err(_) => Ok(None),
        };
        let closed = archives.close(&env).await;
        opened?;
        let ended = ended?;
        closed.map(|()| ended.expect("it was opened"))
    });
    console::end();
    let status: ExitStatus = ended??;
    let status = status.code().or(status.signal().map(|signal| 128 + signal));
    match status.expect("it has ended one way or the other") {
        0 => Ok(()),
        status => Err(Program { status: status as u8, error: None }.into()),
    }
}

/// The tree of the default server, below a mux: which attaches there as often as the program does here.
async fn default_server(
    env: rt::Real,
    serving: &Serving,
    remote: Remote,
    archives: &Arc<Archives>,
) -> Result<Opened> {
    let place = Place::parse("/".as_ref(), &remote)?;
    let sessions = Sessions::new(remote.clone(), env);
    // What is wrong with it is said now, and as everywhere.
    sessions.find(&place, true, GetMask::BASIC).await.context(place.clone())?;
    let reached = Reached { addr: place.addr.clone(), token: sessions.token(&place)? };
    let servers = Servers::new(serving, remote.clone(), env, 1, archives.clone());
    let mux = Mux::new(servers.root("the root"), nine_servers::disk::names());
    env.spawn(Box::pin(mux.run(env, &[])));
    let (name, uid) = dial::user(&remote);
    let (name, uid): (Box<str>, _) = (name.into(), (uid != NOUID).then_some(uid));
    let space = mux.space(MAIN, Owner { name: name.clone(), uid });
    let aname = remote.aname.as_deref().unwrap_or_default();
    space.mount(servers.reach(&[reached]), aname, &As::User { name, uid }, "/", Flags::REPLACE).await?;
    let path = String::from_utf8(place.path).map_err(|_| anyhow!("the server's path is no text"))?;
    if !path.trim_matches('/').is_empty() {
        space.bind(&path, "/", Flags::REPLACE).await?;
    }
    Ok(Opened { server: Arc::new(mux.clone()), mux: Some(mux), live: None })
}

/// Starts the program and serves it until it ends.
async fn host(
    env: rt::Real,
    args: &cli::PartitionRun,
    serving: &Serving,
    opened: &Opened,
    core: Core,
) -> Result<ExitStatus> {
    let [program, words @ ..] = &args.program[..] else { unreachable!("clap wants one") };
    let mut signals = rt::signals()?;
    let layout = Layout::new(Kind::GuestAsks, LINES, PAGES, "");
    let (ours, theirs) = UnixStream::pair()?;
    // Who inherits it is who runs this: nobody else was given the memory.
    let proof = Proof::Unix { uid: geteuid().as_raw(), gid: getegid().as_raw() };
    let peer = Peer { addr: format!("partition!{}", program.display()), proof };
    let (channel, given) = Channel::open(layout, args.wait.into(), ours.into(), peer)?;
    let mut child = start(program, words, given.for_child(theirs.into())?)?;
    let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
    // These are ours, not the program's.
    rustix::process::umask(rustix::fs::Mode::empty());
    if let Err(error) = rt::raise_nofile() {
        tracing::warn!("the limit of open files stays as it is: {error}");
    }
    let gate = Gate { read_only: serving.read_only.unwrap_or(false), ..Gate::default() };
    let service = Service::new(opened.server.clone(), gate, core);
    let mut served = pin!(serve_all(&service, channel));
    let (mut ended, end) = abortable(pending::<()>());
    let waiter = thread::Builder::new().name("program".into()).spawn(move || {
        let status = child.wait();
        end.abort();
        status
    })?;
    let mut is_served = true;
    loop {
        let signal = pin!(signals.next());
        let program = select(&mut ended, signal);
        let came = match is_served {
            true => match select(&mut served, program).await {
                // It has closed what it inherited, and may go on without.
                Either::Left(_) => {
                    is_served = false;
                    continue;
                }
                Either::Right((came, _)) => came,
            },
            false => program.await,
        };
        let Either::Right((signal, _)) = came else { break };
        // One that has just ended needs none.
        if let Some(signal) = passed_on(signal) {
            let _ = pidfd_send_signal(&pid, signal);
        }
    }
    if is_served {
        within(&env, PATIENCE, served).await;
    }
    Ok(waiter.join().expect("it only waits")?)
}

fn start(program: &OsString, words: &[OsString], channel: Inherited) -> Result<Child> {
    let (name, value) = channel.variable();
    Command::new(program).args(words).env(name, value).spawn().map_err(|error| {
        let (status, why) = match error.kind() {
            io::ErrorKind::NotFound => (127, "there is no such program".into()),
            _ => (126, fail::plain(&error.to_string()).to_owned()),
        };
        Program { status, error: Some(format!("{}: {why}", program.display())) }.into()
    })
}

/// What the program is sent when we are. A terminal sends its ^C to both.
fn passed_on(signal: rt::Signal) -> Option<Signal> {
    let is_shown_here = || {
        let terminal = File::open(TERMINAL).ok();
        terminal.and_then(|terminal| termios::tcgetpgrp(terminal).ok()) == Some(getpgrp())
    };
    match signal {
        rt::Signal::Interrupt if is_shown_here() => None,
        rt::Signal::Interrupt => Some(Signal::INT),
        rt::Signal::Terminate => Some(Signal::TERM),
        rt::Signal::Hangup => Some(Signal::HUP),
    }
}

/// The one that controls us, if one does.
const TERMINAL: &str = "/dev/tty";
