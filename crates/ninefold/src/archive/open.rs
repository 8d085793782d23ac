//! An archive's devices, opened; and the archive on them.
//!
//! A single file has, behind a table of partitions in its sector 1 (as prep(8) of Plan 9 writes it), both devices as
//! the partitions `cache` and `worm`. It is opened once, and cut.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use futures_util::future::select;
use nine_block::{Ahead, Device, Kind, Part};
use nine_fs::{Archive, Driver, Settings};
use nine_net::{Env, rt};
use nine_proto::Time;

use super::{Options, Place, Spec};
use crate::blocks::Over;
use crate::disks::{Both, Parts};
use crate::fail;

/// For disks on an Ethernet.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often devices are tried that another has, and so long is between.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(20);
/// Bytes of changes in memory before clients wait.
const DIRTY: u64 = 64 << 20;

/// An archive, and what does its work.
pub struct Opened {
    pub archive: Archive,
    pub driver: Driver,
    pub name: String,
}

/// How an archive works.
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
    }
}

/// How its disks on an Ethernet are reached.
pub fn over(options: &Options, env: rt::Real) -> Over {
    Over { env, interfaces: options.over.clone(), patience: PATIENCE }
}

/// Opens the archive of this place, as it was at its last commit. What works beside its devices runs in this runtime.
pub async fn open(spec: &Spec, env: rt::Real) -> Result<Opened> {
    // Who had them may be about to let go.
    let mut tries = 0;
    let both = loop {
        match devices(spec, env).await {
            Err(error) if tries < TRIES && is_reserved(&error) => tries += 1,
            other => break other?,
        }
        env.sleep_until(env.now() + BETWEEN).await;
    };
    let (name, ..) = Archive::label(&*both.worm).await.map_err(|error| {
        anyhow!("{error}\n  `ninefold fs ream` makes an archive there; what is there now is lost then.")
    })?;
    let (archive, driver) = Archive::open(both.cache, both.worm, &settings(&spec.options, env)).await?;
    Ok(Opened { archive, driver, name })
}

fn is_reserved(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| match cause.downcast_ref::<nine_block::Error>() {
        Some(error) => error.kind == Kind::Reserved,
        None => false,
    })
}

async fn devices(spec: &Spec, env: rt::Real) -> Result<Both> {
    let over = over(&spec.options, env);
    match &spec.place {
        Place::Own => file(&Place::own()?, env, &over).await,
        Place::File(path) => file(path, env, &over).await,
        Place::Devices(text) => {
            let parts = Parts::open(OsStr::new(text), false, &over)?;
            if parts.has_ram() {
                fail::note("what is in memory is gone with this program");
            }
            parts.build_both(env, None, false).await
        }
    }
}

async fn file(path: &Path, env: rt::Real, over: &Over) -> Result<Both> {
    let whole = Parts::open(path.as_os_str(), false, over)?.build(env, None).await?.device;
    cut(path, &whole).await
}

/// Both devices of a single file.
pub async fn cut(path: &Path, whole: &Arc<dyn Device>) -> Result<Both> {
    let part = async |name: &str| -> Result<Arc<dyn Device>> {
        let part = Part::named(whole.clone(), name).await;
        let part = part.with_context(|| {
            format!("there is no archive in {}; `ninefold fs ream` makes one", path.display())
        })?;
        Ok(Arc::new(part) as Arc<dyn Device>)
    };
    Ok(Both { cache: part("cache").await?, worm: part("worm").await? })
}

/// Does the work of an archive, until it is closed.
pub async fn work(archive: Archive, driver: Driver, env: rt::Real) {
    let ticks = std::pin::pin!(async {
        loop {
            archive.tick(env.now());
            archive.rest(env.sleep_until(env.now() + archive.pause())).await;
        }
    });
    let _: futures_util::future::Either<((), _), (std::convert::Infallible, _)> = select(driver, ticks).await;
}
