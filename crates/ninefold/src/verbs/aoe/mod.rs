//! `aoe`: disks on the same Ethernet.

mod lists;
mod target;

use std::collections::VecDeque;
use std::io::{IsTerminal, Read, stdin};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use bytes::Bytes;
use futures_util::stream::{StreamExt, iter};
use nine_aoe::driver::{Disk, Found, discover};
use nine_aoe::frame::{Address, config};
use nine_aoe::identify::Identify;
use nine_block::{Call, Device, SECTOR};
use nine_net::{Env, rt};
use rustix::fs::{FileType, fstat};
use serde_json::{Map, json};

use crate::blocks::{Over, all_ethers, ethers};
use crate::cli::{Aoe, AoeDiscover, AoeDisk, AoeRead, AoeVerb, AoeWrite};
use crate::copy::Progress;
use crate::disks::size;
use crate::fail;
use crate::output::{Output, put_text};
use crate::serve::aoe::tell;

pub fn run(args: Aoe) -> Result<()> {
    rt::block_on(async |env| match args.verb {
        AoeVerb::Target(args) => target::serve(args, env).await,
        AoeVerb::Discover(args) => find(args, env).await,
        AoeVerb::Identify(args) => identify(&args, env).await,
        AoeVerb::Stat(args) => stat(&args, env).await,
        AoeVerb::Config(args) => lists::config(args, env).await,
        AoeVerb::Mask(args) => lists::mask(args, env).await,
        AoeVerb::Reserve(args) => lists::reserve(args, env).await,
        AoeVerb::Read(args) => read(args, env).await,
        AoeVerb::Write(args) => write(args, env).await,
        AoeVerb::Flush(args) => {
            let disk: Arc<dyn Device> = open(&args, env).await?;
            flush(&*disk).await
        }
    })?
}

async fn find(args: AoeDiscover, env: rt::Real) -> Result<()> {
    let names = if args.interfaces.is_empty() { all_ethers()? } else { args.interfaces };
    let test = match (&args.string, &args.prefix) {
        (Some(text), _) => (config::IS, text.as_bytes()),
        (_, Some(text)) => (config::BEGINS, text.as_bytes()),
        _ => (config::READ, &[][..]),
    };
    let patience = Duration::from_secs(args.patience);
    let found = discover(ethers(&names)?, Address::ALL, test, patience, env.clock()).await?;
    let mut out = Output::new();
    for Found { address, port, mac, buffers, firmware, sectors, config } in found {
        let name = &names[port];
        if args.json {
            let mut object = Map::new();
            for (key, value) in [
                ("address", json!(address.to_string())),
                ("interface", json!(name)),
                ("mac", json!(mac.to_string())),
                ("buffers", json!(buffers)),
                ("firmware", json!(firmware)),
                ("sectors", json!(sectors)),
            ] {
                object.insert(key.into(), value);
            }
            put_text(&mut object, "config", &config);
            out.json(&object.into())?;
        } else {
            let config = nine_text::show_name(&config).to_string();
            let address = address.to_string();
            out.print(format_args!(
                "{address:<10} {name:<12} {mac} {buffers:>5} buffers {sectors:>3} sectors  {config}\n"
            ))?;
        }
    }
    out.flush()
}

/// Opens the disk and waits until it has answered.
async fn open(args: &AoeDisk, env: rt::Real) -> Result<Arc<Disk>> {
    let patience = Duration::from_secs(args.patience);
    let over = Over { env, interfaces: args.interfaces.clone(), patience };
    let disk = Arc::new(over.disk(args.address)?);
    env.spawn(Box::pin(tell(disk.clone(), args.interfaces.clone())));
    let device: Arc<dyn Device> = disk.clone();
    device.look().await.map_err(|error| {
        let on = args.interfaces.join(" ");
        anyhow!("{error}\n  `ninefold aoe discover {on}` shows who answers there.")
    })?;
    Ok(disk)
}

async fn identify(args: &AoeDisk, env: rt::Real) -> Result<()> {
    let disk = open(args, env).await?;
    let Identify { serial, firmware, model, sectors, flush, flush_ext, .. } =
        disk.identify().context("it has not said what it is")?;
    let durable = match (flush_ext, flush) {
        (true, _) => "makes durable",
        (false, true) => "is taken, and promises nothing",
        (false, false) => "is not known",
    };
    let mut out = Output::new();
    out.print(format_args!(
        "model     {model}\nserial    {serial}\nfirmware  {firmware}\nsize      {}\nflush     {durable}\n",
        size(sectors)
    ))?;
    out.flush()
}

async fn stat(args: &AoeDisk, env: rt::Real) -> Result<()> {
    let disk = open(args, env).await?;
    let mut out = Output::new();
    lists::show(&disk, &mut out).await?;
    out.print(disk.status())?;
    out.flush()
}

async fn read(args: AoeRead, env: rt::Real) -> Result<()> {
    let disk: Arc<dyn Device> = open(&args.disk, env).await?;
    let whole = disk.shape().sectors * SECTOR;
    let end = match args.length {
        Some(length) => args.offset.checked_add(length).filter(|end| *end <= whole),
        None => Some(whole),
    };
    let end = end.filter(|end| args.offset <= *end);
    let end = end.with_context(|| format!("it has {whole} bytes, and that is not among them"))?;
    let (first, behind) = (args.offset / SECTOR, end.div_ceil(SECTOR));
    let progress = Progress::new(args.quiet || std::io::stdout().is_terminal(), Some(end - args.offset));
    let mut out = Output::new();
    let piece = |at: u64| {
        let call = disk.read(at, PIECE.min(behind - at));
        async move { (at, call.await) }
    };
    let mut pieces = iter((first..behind).step_by(PIECE as usize)).map(piece).buffered(AHEAD);
    while let Some((at, data)) = pieces.next().await {
        let data = data?;
        // The first and the last sector may be cut.
        let (from, to) =
            (args.offset.saturating_sub(at * SECTOR), (end - at * SECTOR).min(data.len() as u64));
        out.bytes(&data[from as usize..to as usize])?;
        progress.bytes((to - from) as usize);
    }
    progress.end();
    out.flush()
}

async fn write(args: AoeWrite, env: rt::Real) -> Result<()> {
    ensure!(args.offset.is_multiple_of(SECTOR), "--offset: whole sectors of {SECTOR} bytes");
    let disk: Arc<dyn Device> = open(&args.disk, env).await?;
    let room = disk.shape().sectors;
    let mut input = stdin().lock();
    let file = fstat(&input).ok().filter(|st| FileType::from_raw_mode(st.st_mode).is_file());
    // While we block on a pipe, nothing else runs, so no write should be in flight then.
    let ahead = if file.is_some() { AHEAD } else { 1 };
    let progress = Progress::new(args.quiet, file.map(|st| st.st_size as u64));
    let mut under_way: VecDeque<(usize, Call)> = VecDeque::new();
    let mut at = args.offset / SECTOR;
    loop {
        let mut piece = Vec::new();
        let n = input.by_ref().take(PIECE * SECTOR).read_to_end(&mut piece).context("standard input")?;
        if n == 0 {
            break;
        }
        let count = (n as u64).div_ceil(SECTOR);
        ensure!(at + count <= room, "the disk ends at byte {}, and there is more to write", room * SECTOR);
        if !(n as u64).is_multiple_of(SECTOR) {
            // Preserve the data behind the end.
            let last = disk.read(at + count - 1, 1).await?;
            piece.extend(&last[n % SECTOR as usize..]);
        }
        under_way.push_back((n, disk.write(at, Bytes::from(piece))));
        at += count;
        while under_way.len() >= ahead
            && let Some((n, call)) = under_way.pop_front()
        {
            call.await?;
            progress.bytes(n);
        }
    }
    for (n, call) in under_way {
        call.await?;
        progress.bytes(n);
    }
    progress.end();
    flush(&*disk).await
}

async fn flush(disk: &dyn Device) -> Result<()> {
    if !disk.shape().durable {
        fail::note(format_args!("{}: it promises no durable flush", disk.name()));
    }
    match disk.flush().await {
        Err(error) if error.kind == nine_block::Kind::Unsupported => Ok(()),
        other => Ok(other.map(drop)?),
    }
}

/// Sectors in one request: one megabyte.
const PIECE: u64 = 2048;
/// Limit of requests in flight.
const AHEAD: usize = 4;
