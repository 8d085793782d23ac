//! `fs`: archives and their dumps. Served archives are shown and controlled through the server's /fs. Others are
//! created and checked on their devices while they are not being served.
//!
//! In: words of the command line, /fs/NAME/{ctl,status,dumps}. Out: text, or a JSON object for each dump.

mod arbiter;
mod con;
mod date;
mod diff;
mod history;
mod past;
mod restore;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures_util::future::{Either, select};
use nine_block::Kind;
use nine_fs::{Archive, Copied, Depth, Recover, Recovered, Repaired};
use nine_io::client::{Error, File};
use nine_net::{Env, rt};
use nine_proto::{Errno, OpenFlags, Time};
use serde_json::json;

use super::{sorted, text};
use crate::archive::{
    self, Making, Opened, Options, Spec, by_turn, look, open, ream, recover as recover_at, repair, work,
};
use crate::cli::{
    self, FsCheck, FsCopyworm, FsCtl, FsDump, FsDumps, FsGrow, FsOf, FsReam, FsRecover, FsStatus, FsTakeover,
    FsVerb,
};
use crate::config::Config;
use crate::copy::Steps;
use crate::dial::{self, Sessions};
use crate::disks::size;
use crate::fail::{self, Program, Tally};
use crate::operand;
use crate::output::{Output, date, table};

/// Interval of checks whether a dump is on the worm; without `--wait`, also the total time of the checks.
const SECOND: Duration = Duration::from_secs(1);
/// Exit status of `fs dump` if the dump must wait on the cache device.
const WAITS: u8 = 3;

pub fn run(args: cli::Fs, config: &Config) -> Result<Tally> {
    match args.verb {
        FsVerb::Ream(args) => make(args),
        FsVerb::Check(args) => rt::block_on(async |env| check(args, env).await)?,
        FsVerb::Recover(args) => rt::block_on(async |env| recover(args, env).await)?,
        FsVerb::Dump(FsDump { wait, of }) => {
            with(of, config, async |sessions, dir| dump(sessions, dir, wait).await)
        }
        FsVerb::Con(of) => {
            let mut tally = Tally::default();
            with(of, config, async |_, dir| {
                tally = con::run(dir).await?;
                Ok(())
            })?;
            Ok(tally)
        }
        FsVerb::Sync(of) => with(of, config, async |_, dir| tell(dir, "sync").await),
        FsVerb::Status(FsStatus { check, of }) => {
            let mut tally = Tally::default();
            with(of, config, async |_, dir| {
                let status = text(dir, "status").await?;
                let trouble: Vec<&str> = troubles(&status).collect();
                if !check {
                    // The devices in the form in which the name space mounts them.
                    let devices = text(dir, "server").await.unwrap_or_default();
                    let (faults, rest): (Vec<&str>, Vec<&str>) =
                        status.lines().partition(|line| line.starts_with(TROUBLE));
                    let devices = devices.lines().map(|line| format!("devices {line}\n"));
                    let line = |line: &str| format!("{line}\n");
                    let faults = faults.into_iter().map(line);
                    return show(
                        &faults.chain(devices).chain(rest.into_iter().map(line)).collect::<String>(),
                    );
                }
                tally.add(trouble.len());
                show(&trouble.iter().map(|line| format!("{line}\n")).collect::<String>())
            })?;
            Ok(tally)
        }
        FsVerb::Dumps(FsDumps { json, of }) => with(of, config, async |_, dir| dumps(dir, json).await),
        FsVerb::Copyworm(args) => rt::block_on(async |env| copy_worm(args, env).await)?,
        FsVerb::Grow(FsGrow { device, name, remote }) => {
            let of = FsOf { addr: None, name, remote };
            with(of, config, async |_, dir| grow(dir, device.as_deref()).await)
        }
        FsVerb::Arbiter(args) => rt::block_on(async |env| arbiter::run(args, env).await)?,
        FsVerb::Takeover(FsTakeover { main_is_dead, of }) => {
            let words = if main_is_dead { "takeover main-is-dead" } else { "takeover" };
            with(of, config, async |_, dir| turn(dir, words).await)
        }
        FsVerb::Handover(of) => with(of, config, async |_, dir| turn(dir, "handover").await),
        FsVerb::Yesterday(args) => restore::yesterday(args, config),
        FsVerb::History(args) => history::run(args, config),
        FsVerb::Diff(args) => diff::run(args, config),
        FsVerb::Restore(args) => restore::run(args, config),
        FsVerb::Ctl(FsCtl { name, remote, words }) => {
            let of = FsOf { addr: None, name, remote };
            with(of, config, async |_, dir| match &*words {
                [] => show(&text(dir, "ctl").await?),
                words => tell(dir, &words.join(" ")).await,
            })
        }
    }
}

fn show(said: &str) -> Result<()> {
    let mut out = Output::new();
    out.lines(said)?;
    out.flush()
}

fn make(args: FsReam) -> Result<Tally> {
    let FsReam { archive: place, name, block, size: bytes, reserve, no_fastworm, zone, force, over } = args;
    ensure!(
        [8, 16, 32, 64].iter().any(|k| k << 10 == block),
        "--block: 8K, 16K, 32K or 64K, not {block} bytes"
    );
    let options = Options { zone, over, ..Options::default() };
    let spec = Spec { place: place.within(".".as_ref())?, options };
    let making = Making { name, block: block as u32, size: bytes, fastworm: !no_fastworm, reserve, force };
    let (cache, worm) = rt::block_on(async |env| ream(&spec, &making, env).await)??;
    let mut said = format!("archive {}, blocks of {} KiB\n", making.name, block >> 10);
    said += &match cache {
        0 => format!("    no cache\n    disk   {}\n", size(worm)),
        _ => format!("    cache  {}\n    worm   {}\n", size(cache), size(worm)),
    };
    // Open it once now, so that an error shows before the first use.
    rt::block_on(async |env| {
        let Opened { archive, driver, .. } = open(&spec, env).await?;
        beside(&archive, driver, env, archive.close()).await
    })?
    .context("it is made, and cannot be opened")?;
    let word = format!("fs:{spec}");
    let quoted = nine_mux::script::quote(&word);
    said += &format!("\nin a name space file:\n    mount {quoted} /archive\n    mount {quoted} /dump dump\n");
    said +=
        &format!("    mount fsctl: /fs\n\nor all of these at once:\n    ninefold serve {}\n", shell(&word));
    show(&said)?;
    Ok(Tally::default())
}

/// Quotes a word for a shell if necessary.
fn shell(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-:,=+@%".contains(c);
    if word.chars().all(is_plain) { word.into() } else { format!("'{}'", word.replace('\'', r"'\''")) }
}

/// Awaits a future while the archive's driver runs.
async fn beside<T>(
    archive: &Archive,
    driver: nine_fs::Driver,
    env: rt::Real,
    what: impl Future<Output = nine_proto::Result<T>>,
) -> Result<T> {
    let work = std::pin::pin!(work(archive.clone(), driver, env));
    match select(std::pin::pin!(what), work).await {
        Either::Left((done, _)) => Ok(done?),
        Either::Right(((), what)) => Ok(what.await?),
    }
}

async fn check(args: FsCheck, env: rt::Real) -> Result<Tally> {
    let FsCheck { at, quick, blocks, dumps, repair: mend, dry_run } = args;
    let depth = match (quick, blocks, dumps) {
        (_, _, true) => Depth::Dumps,
        (_, true, _) => Depth::Blocks,
        (true, ..) => Depth::Quick,
        _ => Depth::Names,
    };
    let (spec, is_dead) = at.spec();
    let served = "an archive is checked so while nobody serves it; `ninefold fs ctl check` asks its server";
    let mut out = Output::new();
    let checked = if mend {
        let mut shown = Ok(());
        let tell = |text: &str| {
            let line = if dry_run { format!("would mend: {text}\n") } else { format!("mend: {text}\n") };
            if shown.is_ok() {
                shown = out.print(line).and_then(|()| out.flush());
            }
        };
        let repaired = match dry_run {
            true => repair(&spec, (depth, true), None, env, tell).await,
            // A repair does not make this machine's data the newest.
            false => {
                let mends = async |right: Option<&_>| repair(&spec, (depth, false), right, env, tell).await;
                by_turn(&spec, is_dead, false, env, mends).await
            }
        };
        let Repaired { mended, left } = repaired.context(served)?;
        shown?;
        out.print(format_args!("{mended} {}\n", if dry_run { "to be mended" } else { "mended" }))?;
        left
    } else {
        let Opened { archive, driver, .. } = look(&spec, env).await.context(served)?;
        let looked = beside(&archive, driver, env, async {
            let checked = archive.check(depth).await;
            archive.close().await.and(checked)
        });
        looked.await?
    };
    for fault in &checked.faults {
        out.print(format_args!("{fault}\n"))?;
    }
    out.print(format_args!("{}\n", checked.said()))?;
    out.flush()?;
    let mut tally = Tally::default();
    tally.add(checked.faults.len());
    Ok(tally)
}

async fn recover(args: FsRecover, env: rt::Real) -> Result<Tally> {
    let FsRecover { at, dump, no_fastworm, force } = args;
    let (spec, is_dead) = at.spec();
    let mut random = [0; 8];
    env.entropy(&mut random);
    let how = Recover { dump, fastworm: Some(!no_fastworm), random: u64::from_ne_bytes(random) };
    let recovered = by_turn(&spec, is_dead, true, env, async |right| {
        may_recover(&spec, force, env).await?;
        recover_at(&spec, &how, right, env).await
    });
    let Recovered { dump, time, dumps } = recovered.await?;
    show(&format!("it goes on from dump {dump}, of {}; {dumps} dumps are there\n", date(time)))?;
    Ok(Tally::default())
}

/// Checks that the cache is lost, or that the user wants to lose it.
async fn may_recover(spec: &Spec, force: bool, env: rt::Real) -> Result<()> {
    match look(spec, env).await {
        Ok(Opened { archive, driver, .. }) => {
            beside(&archive, driver, env, archive.close()).await?;
            let what = match spec.place.has_cache() {
                true => "its cache is whole",
                false => "it has no cache that could be lost, and is whole",
            };
            ensure!(force, "{what}: what was changed since the dump would be lost for nothing; --force");
        }
        Err(error) => {
            let kinds = error.chain().filter_map(|cause| cause.downcast_ref::<nine_block::Error>());
            let mut kinds = kinds.map(|error| error.kind);
            if kinds.any(|kind| matches!(kind, Kind::Reserved | Kind::Busy | Kind::Down)) {
                return Err(error);
            }
            fail::note(format_args!("its cache: {error:#}"));
        }
    }
    Ok(())
}

/// Calls a function with the directory of an archive's console.
fn with(of: FsOf, config: &Config, does: impl AsyncFnOnce(&Sessions, &File) -> Result<()>) -> Result<Tally> {
    let remote = config.remote(&of.remote)?.with_error_texts();
    let addr = of.addr.as_deref().unwrap_or(OsStr::new("/"));
    let place = operand::Place::parse(addr, &remote)?.below(b"fs");
    dial::run(remote, async |sessions| {
        let all = match sessions.walk(&place, true).await {
            Err(error) if error.downcast_ref().is_some_and(|e: &Error| e.errno() == Errno::ENOENT) => {
                bail!("there is no {place}: its name space needs a line `mount fsctl: /fs`")
            }
            other => other?,
        };
        let names = sorted(&all, None).await?;
        let names: Vec<String> =
            names.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
        let name = match (&of.name, &*names) {
            (Some(name), names) if names.contains(name) => name,
            (None, [name]) => name,
            (_, []) => bail!("it has no archive open; its name space needs a line like `mount fs: /archive`"),
            (Some(name), names) => bail!("it has no archive `{name}`; there are: {}", names.join(", ")),
            (None, names) => bail!("which archive? --name: {}", names.join(", ")),
        };
        does(&sessions, &all.walk(name.as_str()).await?).await?;
        Ok(Tally::default())
    })
}

/// Writes a line to the console's ctl file.
async fn tell(dir: &File, line: &str) -> Result<()> {
    let ctl = dir.open("ctl", OpenFlags::WRITE).await.map_err(|error| match error.errno() {
        Errno::EACCES | Errno::EROFS | Errno::EPERM => anyhow!(
            "only its owner tells an archive what to do: over the unix socket as the user who serves, or with the token"
        ),
        _ => error.into(),
    })?;
    ctl.write(0, line.as_bytes()).await?;
    Ok(ctl.close().await?)
}

/// Changes which machine is the primary, and prints the result.
async fn turn(dir: &File, words: &str) -> Result<()> {
    tell(dir, words).await?;
    let status = text(dir, "status").await?;
    let line = status.lines().find(|line| line.starts_with("machine "));
    show(&format!("{}\n", line.unwrap_or_default()))
}

async fn copy_worm(args: FsCopyworm, env: rt::Real) -> Result<Tally> {
    let FsCopyworm { from, to, quiet, over } = args;
    let over = archive::over(&Options { over, ..Options::default() }, env);
    let steps = Steps::new(quiet, "blocks", Some(0));
    let copied = archive::copy_worm(&from, &to, &over, |done, of| steps.at(done, of)).await;
    steps.end();
    let Copied { before, new, blocks, wrong } = copied?;
    show(&format!("{new} dumps copied, of {blocks} blocks; {} are there\n", before + new))?;
    let mut tally = Tally::default();
    if wrong > 0 {
        fail::note(format_args!(
            "{wrong} blocks could not be read, and are missing in the copy: verify the dumps"
        ));
        tally.add(wrong as usize);
    }
    Ok(tally)
}

async fn grow(dir: &File, device: Option<&str>) -> Result<()> {
    let sectors = async || {
        let said = text(dir, "worm").await?;
        let line = said.lines().next().unwrap_or_default().to_owned();
        let words: Vec<&str> = line.split(' ').collect();
        let at = words.iter().position(|word| word.starts_with("sectors")).unwrap_or_default();
        let sectors: u64 =
            words.get(at.wrapping_sub(1)).and_then(|word| word.parse().ok()).unwrap_or_default();
        anyhow::Ok((sectors, words[..at.saturating_sub(1)].join(" ")))
    };
    let (before, _) = sectors().await?;
    tell(dir, &format!("grow {}", device.unwrap_or_default())).await?;
    let (after, name) = sectors().await?;
    let mut said = match after.checked_sub(before) {
        None | Some(0) => format!("it is as large as it was: {}\n", size(after)),
        Some(more) => format!("{} more: the worm has {}\n", size(more), size(after)),
    };
    if device.is_some() {
        said += &format!("where the archive is mounted, write for the worm from now on:\n    {name}\n");
    }
    show(&said)
}

/// A line of the `dumps` file.
struct Dumped {
    name: String,
    time: i64,
    /// `None` while the dump is being copied to the worm.
    blocks: Option<u64>,
}

async fn read_dumps(dir: &File) -> Result<Vec<Dumped>> {
    let said = text(dir, "dumps").await?;
    let parse = |line: &str| {
        let mut words = line.split(' ');
        let (name, time) = (words.next()?.into(), words.next()?.parse().ok()?);
        Some(Dumped { name, time, blocks: words.next()?.parse().ok() })
    };
    let all = said.lines().map(|line| parse(line).with_context(|| format!("`{line}` is no dump")));
    all.collect()
}

async fn dump(sessions: &Sessions, dir: &File, wait: bool) -> Result<()> {
    let before: BTreeSet<String> = read_dumps(dir).await?.into_iter().map(|dump| dump.name).collect();
    tell(dir, "dump").await?;
    let of = |dumps: Vec<Dumped>| dumps.into_iter().find(|dump| !before.contains(&dump.name));
    let made = of(read_dumps(dir).await?).context("it says that it was made, and it is not there")?;
    show(&format!("{}\n", made.name))?;
    let (env, mut said) = (sessions.env(), String::new());
    let begun = env.now();
    loop {
        let now = of(read_dumps(dir).await?).context("it has gone")?;
        if now.blocks.is_some() || !wait && env.now() >= begun + SECOND {
            return Ok(());
        }
        let status = text(dir, "status").await?;
        if let Some(why) = troubles(&status).find(|line| line.starts_with("stopped")) {
            bail!("it does not come to the worm: {why}");
        }
        if let Some(why) = troubles(&status).find(|line| line.starts_with("a dump waits")) {
            if !wait {
                return Err(Program { status: WAITS, error: Some(why.into()) }.into());
            }
            if why != said {
                fail::note(why);
                said = why.into();
            }
        }
        env.sleep_until(env.now() + if wait { SECOND } else { SECOND / 10 }).await;
    }
}

/// Prefix of a fault in a status.
const TROUBLE: &str = "trouble: ";

/// Returns the faults in a status.
fn troubles(status: &str) -> impl Iterator<Item = &str> {
    status.lines().filter_map(|line| line.strip_prefix(TROUBLE))
}

async fn dumps(dir: &File, json: bool) -> Result<()> {
    let all = read_dumps(dir).await?;
    let mut out = Output::new();
    if json {
        for Dumped { name, time, blocks } in &all {
            out.json(&json!({ "name": name, "time": time, "blocks": blocks, "copied": blocks.is_some() }))?;
        }
        return out.flush();
    }
    let mut rows = vec![["NAME", "TIME", "BLOCKS"].map(String::from).to_vec()];
    let mut newest = i64::MIN;
    rows.extend(all.into_iter().map(|Dumped { name, time, blocks }| {
        let blocks = blocks.map_or("on its way".into(), |blocks| blocks.to_string());
        // Dumps are listed in the order of creation, so an earlier one may have a later date.
        let order = if time < newest { " (out of order: the clock was ahead before)" } else { "" };
        newest = newest.max(time);
        vec![name, date(Time { sec: time, nsec: 0 }) + order, blocks]
    }));
    out.print(table(&rows))?;
    out.flush()
}
