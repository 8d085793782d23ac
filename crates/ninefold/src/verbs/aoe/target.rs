//! `aoe target`: serves a device on the Ethernet until a signal.
//!
//! Always holds: sockets and disks are opened first, then all capabilities are dropped. Acknowledged writes are flushed
//! before the program ends.

use std::io::{ErrorKind, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures_util::future::{Either, select};
use nine_aoe::driver::{Found, discover, export};
use nine_aoe::frame::{Address, CONFIG_MAX, config};
use nine_aoe::target::Setup;
use nine_block::{Device, SECTOR};
use nine_io::server::{Anonymous, Core, Door, Entrance, Gate, Service, listen};
use nine_net::ether::Ether;
use nine_net::nonet::Link;
use nine_net::{Addr, Env, rt};
use nine_servers::Blocks;
use rustix::thread::{CapabilitySet, CapabilitySets, set_capabilities, set_no_new_privs};

use crate::blocks::{Over, ethers_of};
use crate::cli::AoeTarget;
use crate::dial::within;
use crate::disks::{File, Files, Open, Parts, Whole, size};

/// Serves the device.
pub async fn serve(args: AoeTarget, env: rt::Real) -> Result<()> {
    if let Some(serial) = &args.serial {
        ensure!((1..=20).contains(&serial.len()), "--serial: 1 to 20 bytes");
    }
    ensure!(args.string.len() <= CONFIG_MAX, "--string: at most {CONFIG_MAX} bytes");
    let mut signals = rt::signals()?;
    let _taken = take(args.address, &args.interfaces)?;
    let opens = || ethers_of(&args.interfaces, args.address);
    let (links, asks) = (opens()?, opens()?);
    let over = Over { env, interfaces: args.interfaces.clone(), patience: PATIENCE };
    let how = if args.read_only { Open::Read } else { Open::Write };
    let parts = Parts::open(&args.device, how, &over)?;
    give_up_rights().context("capabilities cannot be given up")?;
    let mut opening = pin!(async {
        is_free(args.address, asks, &over).await?;
        parts.build(env, None).await
    });
    let Whole { device, stays, files, serial, ends } = loop {
        match select(&mut opening, pin!(signals.next())).await {
            Either::Left((opened, _)) => break opened?,
            Either::Right((rt::Signal::Hangup, _)) => {}
            Either::Right(_) => return Ok(()),
        }
    };
    let is_named = args.serial.is_some();
    let shape = device.shape();
    let setup = Setup {
        address: args.address,
        frames: args.buffers,
        serial: args.serial.unwrap_or(serial),
        config: args.string.into_bytes(),
        mask: args.mask,
        read_only: args.read_only || shape.read_only,
        boot: if stays { boot_of_machine() } else { boot_of_program(env) },
    };
    let keep = if is_named {
        String::new()
    } else {
        format!("; from now on start it with --serial {}", setup.serial)
    };
    let mut said = format!("e{} {}, {}", args.address, device.name(), size(shape.sectors));
    said += if setup.read_only { ", read only\n" } else { "\n" };
    for (name, link) in args.interfaces.iter().zip(&links) {
        said += &format!("    {name} {} mtu {}\n", link.address(), link.mtu());
    }
    for file in files.all() {
        // A disk consists of whole sectors.
        let rest =
            file.path().metadata().map_or(0, |meta| if meta.is_file() { meta.len() % SECTOR } else { 0 });
        if rest > 0 {
            let path = file.path().display();
            tracing::warn!(
                "{path}: its length is no multiple of {SECTOR}: the last {rest} bytes are not served"
            );
        }
    }
    let (export, mut driver) = export(links, setup, device.clone());
    if let Some(path) = args.ctl {
        let export = export.clone();
        control(path, &args.address.to_string(), device.clone(), move || export.status(), env)?;
    }
    // A terminal that is gone is no reason not to serve.
    let _ =
        std::io::stdout().write_all((said + "ready\n").as_bytes()).and_then(|()| std::io::stdout().flush());
    let ended = loop {
        let signal = pin!(signals.next());
        match within(&env, CHECK, select(&mut driver, signal)).await {
            None => driver.check(),
            Some(Either::Left((ended, _))) => break ended,
            Some(Either::Right((rt::Signal::Hangup, _))) => {
                let (device, others) = (device.clone(), others(&files));
                env.spawn(Box::pin(look(device, others, keep.clone(), env)));
            }
            Some(Either::Right(_)) => break Ok(()),
        }
    };
    drop(driver);
    tracing::info!("ends: {}", export.counts());
    let flushed = within(&env, PATIENCE, device.flush()).await.context("it does not answer");
    flushed.and_then(|flushed| Ok(flushed?)).context("what was written last may not be on the disk")?;
    ends.close(&env).await;
    if let Some(file) = files.all().iter().find(|file| file.moves()) {
        let path = file.path().display();
        bail!("{path} has not got all yet: put the file that was there before into its place again");
    }
    ended.context("no interface is left")
}

/// Reserves the address on this machine: targets of one machine do not receive each other's frames.
fn take(address: Address, interfaces: &[String]) -> Result<Vec<UnixDatagram>> {
    let take = |interface: &String| {
        // Abstract names belong to a network name space, as interfaces do, and vanish with the program.
        let name = SocketAddr::from_abstract_name(format!("ninefold aoe {address} {interface}"))?;
        UnixDatagram::bind_addr(&name).map_err(|error| match error.kind() {
            ErrorKind::AddrInUse => {
                anyhow!("{address} is taken: another target of this machine serves it on {interface}")
            }
            _ => error.into(),
        })
    };
    interfaces.iter().map(take).collect()
}

/// Fails if another target answers at this address.
async fn is_free(address: Address, links: Vec<Ether>, over: &Over) -> Result<()> {
    let found = discover(links, address, (config::READ, b""), LISTEN, over.env.clock()).await?;
    match found.first() {
        None => Ok(()),
        Some(Found { port, mac, config, .. }) => bail!(
            "{address} is taken: {mac} answers on {}, its config string is \"{}\"",
            over.interfaces[*port],
            nine_text::show_name(config)
        ),
    }
}

/// Serves the device's files on a socket for its owner.
fn control(
    path: PathBuf,
    name: &str,
    device: Arc<dyn Device>,
    status: impl Fn() -> String + Send + Sync + 'static,
    env: rt::Real,
) -> Result<()> {
    let blocks = Blocks::new(env.wall());
    blocks.add(name, device, vec![("stat".into(), Box::new(status))]);
    let listener = Entrance::bind(&Addr::Unix { path }, &env)?;
    let gate = Gate { anonymous: Anonymous::Refused, ..Gate::default() };
    let service = Service::new(Arc::new(blocks), gate, Core::default());
    let door = Door { listener, tls: None, clients: CLIENTS };
    env.spawn(Box::pin(async move {
        if let Err(error) = listen(env, door, service, &[]).await {
            tracing::error!("--ctl: {error}");
        }
    }));
    Ok(())
}

/// Returns the files that no longer have their path because another file has it.
fn others(files: &Files) -> Vec<Arc<File>> {
    files.all().into_iter().filter(|file| !file.moves() && file.is_another()).collect()
}

/// Moves to the new files, then updates the length.
async fn look(device: Arc<dyn Device>, others: Vec<Arc<File>>, keep: String, env: rt::Real) {
    for file in others {
        if file.follow(env).await {
            tracing::info!(
                "{}: the file that was there before is not used any more{keep}",
                file.path().display()
            );
        }
    }
    match device.look().await {
        Ok(_) => tracing::info!("{}: {}", device.name(), size(device.shape().sectors)),
        Err(error) => tracing::error!("{error}"),
    }
}

/// Drops all capabilities, also for programs that this one starts. Must run before any other thread exists, because a
/// thread keeps its own capabilities.
fn give_up_rights() -> std::io::Result<()> {
    let none = CapabilitySet::empty();
    set_no_new_privs(true)?;
    Ok(set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?)
}

/// Returns a number that changes with each boot of the machine; 0 if unknown.
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

/// Interval of checks for lost interfaces.
const CHECK: Duration = Duration::from_secs(1);
/// Limit of silence of the disks below, and of the final flush.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time that another disk with the same address has to answer.
const LISTEN: Duration = Duration::from_millis(600);
/// Limit of programs that use the control socket at once.
const CLIENTS: usize = 16;
