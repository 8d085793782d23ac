//! `ns`: a command in a name space of its own, where the tree of a name space file is seen (docs/mount.md).
//!
//! In: the file, the command. Out: how that has ended, as [`Program`].
//!
//! Always holds: the tree is open before the command starts; the command is killed by nobody but by signals that are
//! passed on, and when we are killed; nothing that it leaves behind keeps the tree.

use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::{Either, abortable, select};
use nine_gate::fuse::{self, space};
use nine_io::server::Core;
use nine_net::rt;
use rustix::process::{Pid, PidfdFlags, getegid, geteuid, pidfd_open, pidfd_send_signal};

use super::{Served, Space, console, mount, partition};
use crate::archive::Archives;
use crate::cli;
use crate::config::{Config, Serving};
use crate::dial::within;
use crate::fail::Program;

/// For the last requests of a command that has ended.
const LAST: Duration = Duration::from_secs(1);

/// Runs it to its end; an error, if that is not status 0.
pub fn run(args: cli::Ns, config: &Config) -> Result<()> {
    let mut serving = config.serving(&Serving::default())?;
    serving.read_only = Some(args.read_only || serving.read_only.unwrap_or(false));
    let remote = config.remote_of_server()?;
    let space = Space::read(&args.file, &remote)?;
    let places = space.points();
    if places.is_empty() {
        bail!("{}: it mounts and binds nothing", args.file.display());
    }
    let served = Served::Space(space, Box::new(remote));
    let options = fuse::Options {
        cache: args.cache,
        write_back: false,
        all_users: geteuid().is_root(),
        owner: (!geteuid().is_root()).then(|| (geteuid().as_raw(), getegid().as_raw())),
        passthrough: true,
        patience: mount::PATIENCE,
    };
    let ended = rt::block_on(async |env| {
        let mut signals = rt::signals()?;
        let (core, archives) = (Core::default(), Arc::<Archives>::default());
        let ended = async {
            let opened = served.open(env, &serving, &core, &[], &archives).await?;
            let root = mount::root(env, &opened, &serving, core.clone(), "").await?;
            let (mut child, device) = space::start(&places, &args.command)?;
            let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
            let Some(device) = device else { return Ok(child.wait()?) };
            partition::settle();
            let mut served = Box::pin(fuse::serve(env, device, root, options));
            let (mut ended, end) = abortable(std::future::pending::<()>());
            let waiter = thread::Builder::new().name("command".into()).spawn(move || {
                let status = child.wait();
                end.abort();
                status
            })?;
            let mut is_served = true;
            loop {
                let signal = pin!(signals.next());
                let command = select(&mut ended, signal);
                let came = match is_served {
                    true => match select(&mut served, command).await {
                        Either::Left((gone, _)) => {
                            gone?;
                            is_served = false;
                            continue;
                        }
                        Either::Right((came, _)) => came,
                    },
                    false => command.await,
                };
                let Either::Right((signal, _)) = came else { break };
                // One that has just ended needs none.
                if let Some(signal) = partition::passed_on(signal) {
                    let _ = pidfd_send_signal(&pid, signal);
                }
            }
            if is_served {
                within(&env, LAST, served).await;
            }
            anyhow::Ok(waiter.join().expect("it only waits")?)
        };
        let ended = ended.await;
        let closed = archives.close(&env).await;
        let status = ended?;
        closed.map(|()| partition::status(status))
    });
    console::end();
    match ended?? {
        0 => Ok(()),
        status => Err(Program { status, error: None }.into()),
    }
}
