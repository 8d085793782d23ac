//! `ns`: runs a command in a mount name space of its own with the tree of a name space file (docs/mount.md).
//!
//! In: the file, the command. Out: the command's exit status, as [`Program`].
//!
//! Always holds: the tree is open before the command starts. We pass signals on to the command, and kill it only when
//! we are killed ourselves. Processes that it leaves behind do not keep the tree alive.

use std::sync::Arc;

use anyhow::{Result, bail};
use nine_gate::fuse::{self, space};
use nine_io::server::Core;
use nine_net::rt;
use rustix::process::{getegid, geteuid};

use super::{Served, Space, console, mount, partition};
use crate::archive::Archives;
use crate::cli;
use crate::config::{Config, Serving};
use crate::fail::Program;

/// Runs the command to its end. Returns an error if the status is not 0.
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
        checked: false,
        owner: (!geteuid().is_root()).then(|| (geteuid().as_raw(), getegid().as_raw())),
        passthrough: true,
        patience: mount::PATIENCE,
        write_behind: true,
    };
    let ended = rt::block_on(async |env| {
        let mut signals = rt::signals()?;
        let (core, archives) = (Core::default(), Arc::<Archives>::default());
        let ended = async {
            let opened = served.open(env, &serving, &core, &[], &archives).await?;
            let root = mount::root(env, &opened, &serving, core.clone(), "").await?;
            let (mut child, device) = space::start(&places, &args.command)?;
            let Some(device) = device else { return Ok(partition::status(child.wait()?)) };
            let served = fuse::serve(env, device, root, options);
            partition::attend(env, child, &mut signals, served).await
        };
        let ended = ended.await;
        let closed = archives.close(&env).await;
        let status = ended?;
        closed.map(|()| status)
    });
    console::end();
    match ended?? {
        0 => Ok(()),
        status => Err(Program { status, error: None }.into()),
    }
}
