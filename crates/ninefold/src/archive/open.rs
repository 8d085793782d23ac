//! Opens the devices of an archive, and the archive on them.
//!
//! A single file has a partition table in its sector 1, as prep(8) of Plan 9 writes it. Both devices are partitions:
//! `cache` and `worm`. The file is opened once for both.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures_util::future::select;
use nine_block::{Ahead, Device, Growing, Guard, Kind, Part, Right, Start};
use nine_fs::{Archive, Copied, Depth, Driver, Recover, Recovered, Repaired, Settings};
use nine_net::{Env, rt};
use nine_proto::Time;

use super::{Options, Place, Spec, grow, is_path};
use crate::blocks::Over;
use crate::disks::{Both, Ends, Events, Open, Parts, is_blank};
use crate::fail;

/// Default limit of silence of disks on an Ethernet.
const PATIENCE: Duration = Duration::from_secs(30);
/// Number of attempts to open devices that are in use, and the pause between them.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(20);
/// Limit of changed bytes in memory; beyond it clients wait.
const DIRTY: u64 = 64 << 20;

/// An open archive, with its driver.
pub struct Opened {
    pub archive: Archive,
    pub driver: Driver,
    pub name: String,
    /// Background tasks of its devices.
    pub ends: Ends,
}

impl Opened {
    /// Starts the schedules of dumps and scrubs.
    pub fn schedule(&self, spec: &Spec) -> Result<()> {
        let (dumps, scrubs) = (spec.options.schedule(), spec.scrub());
        self.archive.schedule(dumps).map_err(|why| anyhow!("schedule={dumps}: {why}"))?;
        self.archive.schedule_scrub(scrubs).map_err(|why| anyhow!("scrub={scrubs}: {why}"))
    }
}

/// Returns the archive's settings for these options.
pub fn settings(options: &Options, env: rt::Real) -> Settings {
    let clock = env.clock();
    let wall = move || {
        let wall = clock.wall();
        Time { sec: wall.as_secs() as i64, nsec: wall.subsec_nanos() }
    };
    Settings {
        memory: options.memory(),
        dirty: DIRTY.min(options.memory()),
        ahead: Ahead::Grow,
        zone: options.zone.clone(),
        wall: Arc::new(wall),
        epoch: 0,
    }
}

/// Returns the settings for its disks on an Ethernet.
pub fn over(options: &Options, env: rt::Real) -> Over {
    Over { env, interfaces: options.over.clone(), patience: options.patience.unwrap_or(PATIENCE) }
}

/// Opens the archive in the state of its last commit. Background tasks of its devices run in this runtime.
pub async fn open(spec: &Spec, env: rt::Real) -> Result<Opened> {
    if let Place::Follow(worm) = &spec.place {
        return follow(worm, &spec.options, env).await;
    }
    open_by(spec, None, env).await
}

/// Like [`open`], but with `right` nothing is written without this lease.
pub async fn open_by(spec: &Spec, right: Option<&Arc<Right>>, env: rt::Real) -> Result<Opened> {
    let both = devices(spec, Open::Write, right, env).await?;
    let (name, ..) = Archive::label(&*both.worm).await.map_err(|error| {
        anyhow!("{error}\n  `ninefold fs ream` makes an archive there; what is there now is lost then.")
    })?;
    let growing = Arc::new(Growing::new(both.worm));
    let (c, w) = (guarded(both.cache, right), guarded(growing.clone(), right));
    let settings = Settings { epoch: right.map_or(0, |right| right.epoch()), ..settings(&spec.options, env) };
    let (archive, driver) = Archive::open(c, w, &settings).await?;
    both.events.to(archive.log());
    let from = match both.whole {
        Some((path, whole)) => grow::From::File(path, whole),
        None => grow::From::Devices,
    };
    archive.grows_by(grow::by(from, growing, over(&spec.options, env)));
    Ok(Opened { archive, driver, name, ends: both.ends })
}

/// Opens the archive read-only.
pub async fn look(spec: &Spec, env: rt::Real) -> Result<Opened> {
    let both = devices(spec, Open::Read, None, env).await?;
    let (name, ..) = Archive::label(&*both.worm).await?;
    let (archive, driver) = Archive::look(both.cache, both.worm, &settings(&spec.options, env)).await?;
    Ok(Opened { archive, driver, name, ends: both.ends })
}

/// Returns the lease epoch in which the archive's cache was last opened. `None` if there is no intact cache.
pub async fn cache_epoch(spec: &Spec, env: rt::Real) -> Result<Option<u64>> {
    let both = devices(spec, Open::Read, None, env).await?;
    let epoch = Archive::cache_epoch(&*both.cache, &*both.worm).await;
    both.ends.end();
    Ok(epoch?)
}

/// Repairs the archive as far as possible. With `right`, writes only under this lease. With `dry`, only reports the
/// repairs.
pub async fn repair(
    spec: &Spec,
    (depth, dry): (Depth, bool),
    right: Option<&Arc<Right>>,
    env: rt::Real,
    told: impl FnMut(&str),
) -> Result<Repaired> {
    let both = devices(spec, if dry { Open::Read } else { Open::Write }, right, env).await?;
    let (c, w) = (guarded(both.cache, right), guarded(both.worm, right));
    let settings = settings(&spec.options, env);
    let repaired = Archive::repair(c, w, &settings, (depth, dry), told).await;
    both.ends.close(&env).await;
    Ok(repaired?)
}

fn guarded(device: Arc<dyn Device>, right: Option<&Arc<Right>>) -> Arc<dyn Device> {
    match right {
        Some(right) => Arc::new(Guard::new(device, right.clone())),
        None => device,
    }
}

fn is_reserved(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<nine_block::Error>() {
        Some(error) => error.kind == Kind::Reserved,
        None => false,
    })
}

/// Opens the dumps of another server's archive, from its worm.
pub async fn follow(word: &str, options: &Options, env: rt::Real) -> Result<Opened> {
    let worm = watch(word, &over(options, env)).await?;
    let (name, ..) = Archive::label(&*worm).await?;
    let (archive, driver) = Archive::follow(worm, &settings(options, env)).await?;
    Ok(Opened { archive, driver, name, ends: Ends::default() })
}

/// Opens the worm of an archive that another server may have open: an expression, or the path of a file of both
/// devices.
async fn watch(word: &str, over: &Over) -> Result<Arc<dyn Device>> {
    let device = Parts::open(OsStr::new(word), Open::Watch, over)?.build(over.env, None).await?.device;
    match Part::named(device.clone(), "worm").await {
        Ok(part) if is_path(word) => Ok(Arc::new(part)),
        _ => Ok(device),
    }
}

/// Copies the new blocks of a worm to another device.
pub async fn copy_worm(from: &str, to: &str, over: &Over, told: impl FnMut(u64, u64)) -> Result<Copied> {
    let env = over.env;
    let from = watch(from, over).await.context(from.to_owned())?;
    let parts = Parts::open(OsStr::new(to), Open::Write, over)?;
    ensure!(!parts.has_ram(), "what is in memory is gone with this program");
    let mut set = [0; 16];
    env.entropy(&mut set);
    // Missing mirrors are created, but only on blank disks.
    let is_new = parts.has_made() && parts.are_blank().await.is_ok();
    let to = parts.build(env, is_new.then_some(set)).await?.device;
    let is_ours = Archive::label(&*to).await.is_ok();
    ensure!(
        is_ours || is_blank(&*to).await?,
        "{}: something is on it that is no copy of a worm; make it begin with zeros first",
        to.name()
    );
    Ok(Archive::copy_worm(&from, &to, told).await?)
}

/// Gives the archive a new cache, recovered from a dump. With `right`, writes only under this lease.
pub async fn recover(
    spec: &Spec,
    how: &Recover,
    right: Option<&Arc<Right>>,
    env: rt::Real,
) -> Result<Recovered> {
    let both = devices(spec, Open::Write, right, env).await?;
    let (c, w) = (guarded(both.cache, right), guarded(both.worm, right));
    let settings = Settings { epoch: right.map_or(0, |right| right.epoch()), ..settings(&spec.options, env) };
    let recovered = Archive::recover(c, w, &settings, how).await;
    // The next one to open the archive opens the mirrors anew.
    both.ends.close(&env).await;
    Ok(recovered?)
}

async fn devices(spec: &Spec, how: Open, right: Option<&Arc<Right>>, env: rt::Real) -> Result<Both> {
    // The previous owner may be about to close the devices.
    for _ in 0..TRIES {
        match devices_now(spec, how, right, env).await {
            Err(error) if is_reserved(&error) => env.sleep_until(env.now() + BETWEEN).await,
            other => return other,
        }
    }
    devices_now(spec, how, right, env).await
}

async fn devices_now(spec: &Spec, how: Open, right: Option<&Arc<Right>>, env: rt::Real) -> Result<Both> {
    let over = over(&spec.options, env);
    match &spec.place {
        Place::Own => file(&Place::own()?, how, env, &over).await,
        Place::File(path) => file(path, how, env, &over).await,
        Place::Devices(text) => {
            let start = if spec.options.anyway { Start::Anyway } else { Start::Careful };
            let parts = Parts::open(OsStr::new(text), how, &over)?.starting(start).by(right);
            if parts.has_ram() {
                fail::note("what is in memory is gone with this program");
            }
            parts.build_both(env, None, false).await
        }
        Place::Follow(worm) => bail!("follow {worm}: it is another server's, and nothing is written there"),
    }
}

async fn file(path: &Path, how: Open, env: rt::Real, over: &Over) -> Result<Both> {
    if matches!(path.try_exists(), Ok(false)) {
        bail!(no_archive(path));
    }
    let whole = Parts::open(path.as_os_str(), how, over)?.build(env, None).await?.device;
    cut(path, &whole).await
}

fn no_archive(path: &Path) -> String {
    format!("there is no archive in {}; `ninefold fs ream` makes one", path.display())
}

/// Opens both partitions of a single file.
pub async fn cut(path: &Path, whole: &Arc<dyn Device>) -> Result<Both> {
    let part = async |name: &str| -> Result<Arc<dyn Device>> {
        let part = Part::named(whole.clone(), name).await;
        let part = part.with_context(|| no_archive(path))?;
        Ok(Arc::new(part) as Arc<dyn Device>)
    };
    let whole = Some((path.into(), whole.clone()));
    Ok(Both {
        cache: part("cache").await?,
        worm: part("worm").await?,
        whole,
        events: Events::default(),
        ends: Ends::default(),
    })
}

/// Runs the archive's background work until it is closed.
pub async fn work(archive: Archive, driver: Driver, env: rt::Real) {
    let ticks = std::pin::pin!(async {
        loop {
            archive.tick(env.now());
            archive.rest(env.sleep_until(env.now() + archive.pause())).await;
        }
    });
    let _: futures_util::future::Either<((), _), (std::convert::Infallible, _)> = select(driver, ticks).await;
}
