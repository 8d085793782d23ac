//! Creation of archives.
//!
//! In: the location, and the parameters. Out: an archive. A new file gets its name only when the archive in it is
//! complete.
//!
//! Always holds: data on a device is overwritten only with `force`.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use bytes::Bytes;
use nine_block::{Device, Kind, SECTOR};
use nine_fs::{Archive, Ream};
use nine_net::{Env, rt};
use nine_proto::Time;

use super::open::{cut, over, settings};
use super::{Options, Place, Spec};
use crate::disks::{Both, Open, Parts, is_blank};
use crate::output::date;

/// Parameters of a new archive.
pub struct Making {
    pub name: String,
    pub block: u32,
    /// Size of a new file, bytes.
    pub size: Option<u64>,
    pub fastworm: bool,
    /// Allocate all blocks of the file at once.
    pub reserve: bool,
    /// Overwrite existing data.
    pub force: bool,
}

impl Making {
    /// Returns the default parameters.
    pub fn usual() -> Self {
        Self {
            name: "main".into(),
            block: 16 << 10,
            size: None,
            fastworm: true,
            reserve: false,
            force: false,
        }
    }
}

/// Creates an archive. Returns the sectors of its cache and of its worm.
///
/// # Errors
/// There is data on its devices and `force` is not set; or a device fails.
pub async fn ream(spec: &Spec, making: &Making, env: rt::Real) -> Result<(u64, u64)> {
    nine_proto::check_name(making.name.as_bytes())
        .map_err(|_| anyhow!("`{}`: a name is that of a directory", making.name))?;
    ensure!(making.name.len() <= NAME, "`{}`: a name has {NAME} bytes at most", making.name);
    match &spec.place {
        Place::Own => ream_file(&Place::own()?, spec, making, env).await,
        Place::File(path) => ream_file(path, spec, making, env).await,
        Place::Follow(_) => bail!("`follow` is for the archive of another server, which makes it"),
        Place::Devices(text) => {
            ensure!(making.size.is_none(), "--size is for a single file");
            ensure!(!making.reserve, "--reserve is for a single file");
            let parts = Parts::open(OsStr::new(text), Open::Write, &over(&spec.options, env))?;
            ensure!(
                !parts.has_ram(),
                "what is in memory is gone with this program: no archive is made there"
            );
            let mut sets = [[0; 16]; 2];
            sets.iter_mut().for_each(|set| env.entropy(set));
            let both = parts.build_both(env, Some(sets), making.force).await?;
            if !making.force {
                refuse(&*both.cache, &*both.worm).await?;
            }
            ream_both(&both, &spec.options, making, env).await
        }
    }
}

/// Creates an archive with both devices in one file.
async fn ream_file(path: &Path, spec: &Spec, making: &Making, env: rt::Real) -> Result<(u64, u64)> {
    let over = over(&spec.options, env);
    if path.exists() {
        let whole = Parts::open(path.as_os_str(), Open::Write, &over)?.build(env, None).await?.device;
        if !making.force {
            refuse_file(path, &whole).await?;
        }
        let has = whole.shape().sectors * SECTOR;
        if making.reserve {
            let file = fs::File::options().write(true).open(path);
            file.and_then(|file| reserve(&file, has)).with_context(|| path.display().to_string())?;
        }
        ensure!(
            making.size.is_none_or(|size| size <= has),
            "{}: it has {has} bytes, and is not made larger; --size is for a new file",
            path.display()
        );
        write_table(path, &*whole, making.size.unwrap_or(has)).await?;
        return ream_both(&cut(path, &whole).await?, &spec.options, making, env).await;
    }
    let dir = path.parent().filter(|dir| *dir != Path::new("")).unwrap_or(Path::new("."));
    let size = match making.size {
        Some(size) => size / SECTOR * SECTOR,
        None => usual_size(dir)?,
    };
    let new = beside(path);
    let named = || new.display().to_string();
    let file = fs::File::options().create(true).truncate(false).write(true).mode(0o600).open(&new);
    let file = file.with_context(named)?;
    // Once locked, the file is ours; data of an earlier attempt is discarded.
    let whole =
        Parts::open(new.as_os_str(), Open::Write, &over).context("it is being made by another program")?;
    file.set_len(0).and_then(|()| file.set_len(size)).with_context(named)?;
    let made = async {
        if making.reserve {
            reserve(&file, size).with_context(named)?;
        }
        let whole = whole.build(env, None).await?.device;
        whole.look().await?;
        write_table(path, &*whole, size).await?;
        ream_both(&cut(&new, &whole).await?, &spec.options, making, env).await
    };
    let made = made.await.inspect_err(|_| {
        let _ = fs::remove_file(&new);
    })?;
    let moved = fs::rename(&new, path).and_then(|()| fs::File::open(dir)?.sync_all());
    moved.with_context(|| path.display().to_string())?;
    Ok(made)
}

/// Allocates space for the whole file.
fn reserve(file: &fs::File, size: u64) -> std::io::Result<()> {
    Ok(rustix::fs::fallocate(file, rustix::fs::FallocateFlags::empty(), 0, size)?)
}

/// Returns the temporary name of a file until it is complete.
fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Returns the default size: the smaller of 64 GiB and half of the free space.
fn usual_size(dir: &Path) -> Result<u64> {
    let system = rustix::fs::statvfs(dir).with_context(|| dir.display().to_string())?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    Ok((free / 2).min(USUAL) >> 20 << 20)
}

/// Writes the partition table to sector 1: a quarter for the cache, the rest for the worm.
async fn write_table(path: &Path, whole: &dyn Device, size: u64) -> Result<()> {
    let sectors = (whole.shape().sectors).min(size / SECTOR) / UNIT * UNIT;
    let cache = (sectors / 4).min(CACHE_MOST) / UNIT * UNIT;
    ensure!(cache > 2 * UNIT, "{}: {} bytes are too few for an archive", path.display(), sectors * SECTOR);
    let between = UNIT + cache;
    let mut text = b"ninefold archive: the partitions `cache` and `worm` in the table of sector 1\n".to_vec();
    text.resize(SECTOR as usize, 0);
    text.extend(format!("part cache {UNIT} {between}\npart worm {between} {sectors}\n").bytes());
    text.resize(2 * SECTOR as usize, 0);
    whole.write(0, Bytes::from(text)).await?;
    Ok(whole.flush().await.map(drop)?)
}

/// Fails if the file seems to contain data.
async fn refuse_file(path: &Path, whole: &Arc<dyn Device>) -> Result<()> {
    let named = |name: &'static str| nine_block::Part::named(whole.clone(), name);
    if let (Ok(cache), Ok(worm)) = (named("cache").await, named("worm").await) {
        refuse(&cache, &worm).await?;
    }
    ensure!(is_blank(&**whole).await?, "{}: something is on it, and would be lost; --force", path.display());
    Ok(())
}

/// Fails if one of the devices seems to contain data.
async fn refuse(cache: &dyn Device, worm: &dyn Device) -> Result<()> {
    if let Ok((name, _, Time { sec, nsec })) = Archive::label(worm).await {
        let made = date(Time { sec, nsec });
        bail!(
            "{}: the archive `{name}` is there, made {made}: with all its dumps it would be lost; --force",
            worm.name()
        );
    }
    // An archive without a cache has a device without sectors.
    for device in [cache, worm].into_iter().filter(|device| device.shape().sectors > 0) {
        ensure!(is_blank(device).await?, "{}: something is on it, and would be lost; --force", device.name());
    }
    Ok(())
}

async fn ream_both(both: &Both, options: &Options, making: &Making, env: rt::Real) -> Result<(u64, u64)> {
    let Both { cache, worm, .. } = both;
    let mut identity = [0; 16];
    env.entropy(&mut identity);
    let ream = Ream {
        name: making.name.clone(),
        block: making.block,
        fastworm: making.fastworm,
        row_order: false,
        identity,
        owner: nine_net::own_ids(),
    };
    let reamed = Archive::ream(cache.clone(), worm.clone(), &ream, &settings(options, env)).await;
    reamed.map_err(|error| match error.kind {
        Kind::ReadOnly => {
            anyhow!("{error}; where is written once no other archive is made, also with --force")
        }
        _ => error.into(),
    })?;
    Ok((cache.shape().sectors, worm.shape().sectors))
}

/// Unit of partition sizes, sectors: one megabyte.
const UNIT: u64 = 2048;
/// Maximum size of the cache in a file, sectors: 16 GiB.
const CACHE_MOST: u64 = 16 << 21;
/// Maximum default size of a file, bytes.
const USUAL: u64 = 64 << 30;
/// Longest name, bytes.
const NAME: usize = 64;
