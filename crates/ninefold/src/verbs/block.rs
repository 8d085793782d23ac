//! `block`: creates and inspects the devices of an expression while they are not being served.

use std::time::Duration;

use anyhow::{Result, ensure};
use nine_net::{Env, rt};

use crate::blocks::Over;
use crate::cli::{Block, BlockDevice, BlockMake, BlockVerb};
use crate::disks::{Open, Parts};
use crate::fail;
use crate::output::Output;

pub fn run(args: Block) -> Result<()> {
    rt::block_on(async |env| match args.verb {
        BlockVerb::Make(args) => make(args, env).await,
        BlockVerb::Status(args) => status(args, env).await,
    })?
}

fn over(of: &BlockDevice, env: rt::Real) -> Over {
    Over { env, interfaces: of.over.clone(), patience: PATIENCE }
}

async fn make(args: BlockMake, env: rt::Real) -> Result<()> {
    let parts = Parts::open(&args.device.device, Open::Write, &over(&args.device, env))?;
    ensure!(parts.has_made(), "there is no mirror and no fake worm in it: nothing has to be made");
    if !args.force {
        parts.are_blank().await?;
    }
    let mut set = [0; 16];
    env.entropy(&mut set);
    let device = parts.build(env, Some(set)).await?.device;
    show(&device.status())
}

async fn status(args: BlockDevice, env: rt::Real) -> Result<()> {
    let parts = Parts::open(&args.device, Open::Write, &over(&args, env))?;
    let whole = parts.build(env, None).await?;
    if !whole.stays {
        fail::note("what is in memory is gone with this program");
    }
    show(&whole.device.status())
}

fn show(status: &str) -> Result<()> {
    let mut out = Output::new();
    out.print(status)?;
    out.flush()
}

/// Limit of silence of disks on an Ethernet.
const PATIENCE: Duration = Duration::from_secs(10);
