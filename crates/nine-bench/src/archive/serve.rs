//! The archive under measurement, in a process of its own: its cache and worm are two sparse files of a directory. One
//! socket serves its files, a second one its console. The time to open it is stored in a file beside them.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use nine_block::{Ahead, Device, Mirror, Nothing, Pause, SECTOR, Start};
use nine_fs::{Archive, Ream, Settings};
use nine_io::server::Core;
use nine_io::synth::Tree;
use nine_net::{Env, rt};
use nine_proto::Time;
use nine_servers::HostDisk;
use nine_store::{Patience, Place, S3, Store};
use rustix::process::{getegid, geteuid};

use super::few::LimitedDevice;
use crate::ours::{doors, on_cores};

/// Names of the two files.
pub(super) const DEVICES: [&str; 2] = ["c", "w"];
/// The worm's other member, if it is a mirror.
const OTHER: &str = "w2";
/// Resync rate of a member, megabytes a second, as in the command.
const RESYNC: u64 = 100;
/// The file with the name of an object store, if the worm is there.
pub(super) const STORE: &str = "store";
/// The file with the time to open, in milliseconds.
pub(super) const OPENED: &str = "opened";

/// The parameters of an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ArchiveShape {
    /// Sizes of the cache and of the worm, MiB; 0 means no cache.
    pub devices: [u64; 2],
    pub ahead: Ahead,
    pub fastworm: bool,
    pub row_order: bool,
    /// Size of a block, KiB.
    pub block: u32,
    /// Size of the block cache in memory, MiB.
    pub memory: u64,
    /// Limit of device reads in flight; 0 means no limit.
    pub readers: u64,
    /// The worm is a mirror of two files.
    pub mirror: bool,
}

impl ArchiveShape {
    /// Returns the defaults of a machine with 24 GiB, with devices of these sizes in MiB.
    pub fn of(c: u64, w: u64) -> Self {
        let (block, memory) = (16, 3072);
        Self {
            devices: [c, w],
            ahead: Ahead::Grow,
            fastworm: false,
            row_order: false,
            block,
            memory,
            readers: 0,
            mirror: false,
        }
    }

    /// Formats it as one word for the command line of a child.
    pub fn word(&self) -> String {
        let Self { devices: [c, w], ahead, fastworm, row_order, block, memory, readers, mirror } = self;
        let ahead = match ahead {
            Ahead::Never => 0,
            Ahead::Seed => 1,
            Ahead::Grow => 2,
        };
        let [fastworm, row_order, mirror] = [fastworm, row_order, mirror].map(|is| u8::from(*is));
        format!("{c},{w},{ahead},{fastworm},{row_order},{block},{memory},{readers},{mirror}")
    }
}

impl FromStr for ArchiveShape {
    type Err = io::Error;

    fn from_str(word: &str) -> io::Result<Self> {
        let bad = || io::Error::from(io::ErrorKind::InvalidInput);
        let numbers: Result<Vec<u64>, _> = word.split(',').map(str::parse).collect();
        let numbers = numbers.map_err(|_| bad())?;
        let [c, w, ahead, fastworm, row_order, block, memory, readers, mirror] = numbers[..] else {
            return Err(bad());
        };
        let ahead = *[Ahead::Never, Ahead::Seed, Ahead::Grow].get(ahead as usize).ok_or_else(bad)?;
        let (fastworm, row_order, mirror) = (fastworm == 1, row_order == 1, mirror == 1);
        let block = block as u32;
        Ok(Self { devices: [c, w], ahead, fastworm, row_order, block, memory, readers, mirror })
    }
}

/// Returns the console's socket for the server at this socket.
pub(super) fn console(socket: &Path) -> PathBuf {
    socket.with_extension("console")
}

/// Serves the archive of a directory; creates it if it does not exist.
pub fn serve(dir: &Path, shape: &OsStr, socket: &Path) -> io::Result<()> {
    let shape: ArchiveShape = shape.to_str().ok_or(io::ErrorKind::InvalidInput)?.parse()?;
    let archive = open(dir, shape)?;
    let ticks = archive.clone();
    std::thread::spawn(move || {
        let begun = Instant::now();
        loop {
            ticks.tick(begun.elapsed());
            // As often as `rest` would wake up; there is no runtime here.
            std::thread::sleep(ticks.pause().min(Duration::from_millis(20)));
        }
    });
    let console_socket = console(socket);
    on_cores(async |env, seats| {
        let console = Tree::new(archive.console(), env.wall());
        let servers = vec![
            (socket, Arc::new(archive.clone()) as Arc<dyn nine_io::server::FileServer>),
            (&console_socket, Arc::new(console)),
        ];
        doors(env, seats, Core::default(), false, servers).await
    })
}

fn open(dir: &Path, shape: ArchiveShape) -> io::Result<Archive> {
    let is_new = !dir.join(DEVICES[0]).exists();
    let settings = Settings {
        memory: shape.memory << 20,
        dirty: shape.memory << 18,
        ahead: shape.ahead,
        zone: Some("UTC".into()),
        wall: Arc::new(wall),
        epoch: 0,
    };
    if is_new {
        for (name, size) in DEVICES.iter().zip(shape.devices) {
            File::create(dir.join(name))?.set_len(size << 20)?;
        }
        let ream = Ream {
            name: "bench".into(),
            block: shape.block << 10,
            fastworm: shape.fastworm,
            row_order: shape.row_order,
            identity: *b"nine-bench's own",
            owner: (geteuid().as_raw(), getegid().as_raw()),
        };
        let [c, w] = devices(dir, shape, true)?;
        rt::block_on(async |_| Archive::ream(c, w, &ream, &settings).await)?.map_err(io::Error::other)?;
    }
    let begun = Instant::now();
    let [c, w] = devices(dir, shape, false)?;
    let opened = rt::block_on(async |_| Archive::open(c, w, &settings).await)?;
    let (archive, driver) = opened.map_err(io::Error::other)?;
    std::fs::write(dir.join(OPENED), (begun.elapsed().as_secs_f64() * 1e3).to_string())?;
    std::thread::spawn(move || rt::block_on(async |_| driver.await));
    Ok(archive)
}

fn devices(dir: &Path, shape: ArchiveShape, make: bool) -> io::Result<[Arc<dyn Device>; 2]> {
    let readers = shape.readers;
    let open = |name: &str| -> io::Result<Arc<dyn Device>> {
        let disk = Arc::new(HostDisk::open(&dir.join(name), false)?);
        Ok(if readers > 0 { Arc::new(LimitedDevice::new(disk, readers)) } else { disk })
    };
    let w = match std::fs::read_to_string(dir.join(STORE)) {
        Ok(name) => in_store(&name)?,
        Err(_) if shape.mirror => {
            let other = dir.join(OTHER);
            if make {
                File::create(&other)?.set_len(shape.devices[1] << 20)?;
            }
            mirror(vec![open(DEVICES[1])?, open(OTHER)?], make)?
        }
        Err(_) => open(DEVICES[1])?,
    };
    // An empty file means no cache.
    let c: Arc<dyn Device> = match std::fs::metadata(dir.join(DEVICES[0]))?.len() {
        0 => Arc::new(Nothing),
        _ => open(DEVICES[0])?,
    };
    Ok([c, w])
}

/// Opens or creates a mirror, as the command does.
fn mirror(members: Vec<Arc<dyn Device>>, make: bool) -> io::Result<Arc<dyn Device>> {
    let opened = rt::block_on(async |_| {
        if make {
            Mirror::make(&members, *b"nine-bench's own").await?;
        }
        Mirror::open(members, Start::Careful, Arc::new(|_| ())).await
    })?;
    let mirror = opened.map_err(io::Error::other)?;
    if !make {
        let kept = mirror.clone();
        std::thread::spawn(move || {
            rt::block_on(async |env| {
                let pause = move |pause| env.sleep_until(env.now() + pause_of(pause));
                kept.keep(Arc::new(pause)).await;
            })
        });
    }
    Ok(Arc::new(mirror))
}

fn pause_of(pause: Pause) -> Duration {
    match pause {
        Pause::Moved(sectors) => Duration::from_nanos(sectors * SECTOR * 1000 / RESYNC),
        Pause::Paced(sectors, megabytes) => {
            pause_of(Pause::Moved(sectors)) * RESYNC as u32 / megabytes.max(1) as u32
        }
        Pause::Idle | Pause::Late => Duration::from_secs(5),
    }
}

fn in_store(name: &str) -> io::Result<Arc<dyn Device>> {
    let place: Place = name.parse().map_err(io::Error::other)?;
    let objects = Arc::new(S3::new(&place).map_err(io::Error::other)?);
    let options = nine_store::Options {
        name: name.into(),
        sectors: place.sectors,
        read_only: false,
        patience: Patience::default(),
        who: "nine-bench".into(),
    };
    let store = rt::block_on(async |_| Store::open(objects, options).await)?;
    Ok(Arc::new(store.map_err(io::Error::other)?))
}

fn wall() -> Time {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Time { sec: since.as_secs() as i64, nsec: since.subsec_nanos() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_comes_through_a_command_line_as_it_was() {
        let shape = ArchiveShape {
            ahead: Ahead::Seed,
            fastworm: true,
            row_order: true,
            readers: 20,
            mirror: true,
            ..ArchiveShape::of(64, 128)
        };
        assert_eq!(shape.word().parse::<ArchiveShape>().unwrap(), shape);
        assert!(
            "1,2".parse::<ArchiveShape>().is_err() && "1,2,9,0,0,16,64,0,0".parse::<ArchiveShape>().is_err()
        );
    }
}
