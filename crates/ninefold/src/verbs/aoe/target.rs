//! `aoe target`: a device for others on the Ethernet, until a signal ends it.
//!
//! Always holds: sockets and disks are opened first, then all capabilities are given up; what was acknowledged is
//! flushed before it ends.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use futures_util::future::{Either, select};
use nine_aoe::driver::export;
use nine_aoe::frame::CONFIG_MAX;
use nine_aoe::target::Setup;
use nine_block::{Device, SECTOR};
use nine_net::nonet::Link;
use nine_net::{Env, rt};
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::blocks::{Opened, Over, ethers};
use crate::cli::AoeTarget;
use crate::dial::within;

/// See the module.
pub async fn serve(args: AoeTarget, env: rt::Real) -> Result<()> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let serial = args.serial.unwrap_or_else(|| format!("{}:{host}", args.address).chars().take(20).collect());
    ensure!(serial.len() <= 20 && !serial.is_empty(), "--serial: 1 to 20 bytes");
    ensure!(args.string.len() <= CONFIG_MAX, "--string: at most {CONFIG_MAX} bytes");
    let mut signals = rt::signals()?;
    let links = ethers(&args.interfaces)?;
    let over = Over { env, interfaces: args.interfaces.clone(), patience: PATIENCE };
    let mut opening = std::pin::pin!(over.open(&args.device, args.read_only));
    let Opened { device, stays } = loop {
        match select(&mut opening, std::pin::pin!(signals.next())).await {
            Either::Left((opened, _)) => break opened?,
            Either::Right((rt::Signal::Hangup, _)) => {}
            Either::Right(_) => return Ok(()),
        }
    };
    give_up_rights().context("capabilities cannot be given up")?;
    let shape = device.shape();
    let setup = Setup {
        address: args.address,
        frames: args.buffers,
        serial,
        config: args.string.into_bytes(),
        mask: args.mask,
        read_only: args.read_only || shape.read_only,
        boot: if stays { boot_of_machine() } else { boot_of_program(env) },
    };
    let mut said = format!("e{} {}, {}", args.address, device.name(), size(shape.sectors));
    said += if setup.read_only { ", read only\n" } else { "\n" };
    for (name, link) in args.interfaces.iter().zip(&links) {
        said += &format!("    {name} {} mtu {}\n", link.address(), link.mtu());
    }
    let (export, mut driver) = export(links, setup, device.clone());
    // A terminal that has gone is no reason not to serve.
    let _ =
        std::io::stdout().write_all((said + "ready\n").as_bytes()).and_then(|()| std::io::stdout().flush());
    let ended = loop {
        let signal = std::pin::pin!(signals.next());
        match within(&env, CHECK, select(&mut driver, signal)).await {
            None => driver.check(),
            Some(Either::Left((ended, _))) => break ended,
            Some(Either::Right((rt::Signal::Hangup, _))) => env.spawn(Box::pin(look(device.clone()))),
            Some(Either::Right(_)) => break Ok(()),
        }
    };
    drop(driver);
    tracing::info!("ends: {:?}", export.counts());
    let flushed = within(&env, PATIENCE, device.flush()).await.context("it does not answer");
    flushed.and_then(|flushed| Ok(flushed?)).context("what was written last may not be on the disk")?;
    ended.context("no interface is left")
}

/// How large it is by now.
async fn look(device: Arc<dyn Device>) {
    match device.look().await {
        Ok(_) => tracing::info!("{}: {}", device.name(), size(device.shape().sectors)),
        Err(error) => tracing::error!("{error}"),
    }
}

/// Nothing that this program starts or becomes has rights that it has not. Threads that were begun while disks were
/// opened keep theirs.
fn give_up_rights() -> std::io::Result<()> {
    let none = CapabilitySet::empty();
    set_no_new_privs(true)?;
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Another number when the machine has started anew; 0 where it does not say.
fn boot_of_machine() -> u64 {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: String = id.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_or(0, |id| (id >> 64) as u64 ^ id as u64)
}

fn boot_of_program(env: rt::Real) -> u64 {
    let mut chance = [0; 8];
    env.entropy(&mut chance);
    u64::from_ne_bytes(chance)
}

/// For people.
pub fn size(sectors: u64) -> String {
    format!("{sectors} sectors ({})", indicatif::HumanBytes(sectors * SECTOR))
}

/// Between two looks whether interfaces have gone.
const CHECK: Duration = Duration::from_secs(1);
/// For disks below this one.
const PATIENCE: Duration = Duration::from_secs(30);
