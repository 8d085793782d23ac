//! Disks, as a person names them: the letters of device expressions that this program knows (`docs/block.md`), and the
//! Ethernets of this machine.
//!
//! In: a word, the names of interfaces. Out: devices, with all that runs beside them; sockets.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use nine_aoe::driver::{Disk, disk};
use nine_aoe::frame::{Address, ETHER_TYPE};
use nine_block::{Arg, Device, Error, How, Kind, Pause, SECTOR, Start, Table, Tree, What};
use nine_net::ether::Ether;
use nine_net::{Env, rt};
use nine_servers::HostDisk;

/// How disks of others are reached.
#[derive(Clone)]
pub struct Over {
    pub env: rt::Real,
    pub interfaces: Vec<String>,
    /// How long a disk may be silent before it counts as gone.
    pub patience: Duration,
}

/// A device that was opened.
pub struct Opened {
    pub device: Arc<dyn Device>,
    /// What was written to it is there when this program has ended.
    pub stays: bool,
}

impl Over {
    /// A disk on these Ethernets. Its driver runs until it is dropped.
    pub fn disk(&self, address: Address) -> Result<Disk> {
        let (disk, driver) = disk(ethers(&self.interfaces)?, address, self.patience, self.env.clock());
        self.env.spawn(Box::pin(async move {
            if let Err(error) = driver.await {
                tracing::error!("e{address}: {error}");
            }
        }));
        Ok(disk)
    }

    /// The device of a word: a file or block device that is there, or an expression.
    pub async fn open(&self, word: &OsStr, read_only: bool) -> Result<Opened> {
        let path = Path::new(word);
        if path.exists() || word.as_bytes().starts_with(b"/") || word.as_bytes().starts_with(b".") {
            return Ok(Opened { device: Arc::new(HostDisk::open(path, read_only)?), stays: true });
        }
        let text = word.to_str().context("a device expression is UTF-8")?;
        let (env, table) = (self.env, self.table(read_only));
        let how = How {
            block: BLOCK,
            start: Start::Careful,
            make: None,
            told: Arc::new(|event| tracing::warn!("{event}")),
            rest: Arc::new(move |pause| env.sleep_until(env.now() + time_of(pause))),
        };
        let built = table
            .build(text, &how)
            .await
            .with_context(|| format!("there is no file {text}, and as a device expression it is wrong"))?;
        let stays = table.parse(text).is_ok_and(|tree| !is_lost(&tree));
        built.drivers.into_iter().for_each(|driver| env.spawn(driver));
        Ok(Opened { device: built.device, stays })
    }

    /// What letters stand for here.
    fn table(&self, read_only: bool) -> Table {
        let mut table = Table::default();
        table.letter("w", move |arg| {
            let opened = match arg {
                Arg::Text(path) => HostDisk::open(Path::new(path), read_only)
                    .map(|disk| Arc::new(disk) as Arc<dyn Device>)
                    .map_err(|error| cannot(&error)),
                _ => Err(Error::new(Kind::Unsupported, "the path of a file is expected: w\"/srv/disk\"")),
            };
            Box::pin(async { opened })
        });
        let over = self.clone();
        table.letter("e", move |arg| {
            let address = match arg {
                Arg::Numbers(of) if of.len() == 2 => format!("{}.{}", of[0], of[1]).parse().ok(),
                _ => None,
            };
            let over = over.clone();
            Box::pin(async move {
                let text = "the place of a disk on the Ethernet is expected: e1.0";
                let address = address.ok_or_else(|| Error::new(Kind::Unsupported, text))?;
                let disk =
                    over.disk(address).map_err(|error| Error::new(Kind::Failed, format!("{error:#}")))?;
                let disk: Arc<dyn Device> = Arc::new(disk);
                disk.look().await?;
                Ok(disk)
            })
        });
        table
    }
}

/// How long a device pauses from work of its own.
pub fn time_of(pause: Pause) -> Duration {
    match pause {
        Pause::Moved(sectors) => time_of(Pause::Paced(sectors, RESYNC)),
        Pause::Paced(_, 0) => Duration::ZERO,
        Pause::Paced(sectors, megabytes) => {
            Duration::from_nanos((sectors * SECTOR).saturating_mul(1000) / megabytes)
        }
        Pause::Idle => IDLE,
    }
}

/// What another has is not missing: he writes to it.
fn cannot(error: &std::io::Error) -> Error {
    let kind = if error.kind() == std::io::ErrorKind::ResourceBusy { Kind::Reserved } else { Kind::Failed };
    Error::new(kind, error)
}

/// Whether something that was written to it may be gone with this program.
fn is_lost(tree: &Tree) -> bool {
    match &tree.what {
        What::Leaf(name, _) => name == "ram",
        What::Buffer(..) => true,
        What::Of(_, of) => of.iter().any(is_lost),
        What::Part(of, ..) | What::Named(of, _) => is_lost(of),
    }
}

/// Opens interfaces for frames of AoE.
pub fn ethers(interfaces: &[String]) -> Result<Vec<Ether>> {
    let open = |name: &String| {
        Ether::open(name, ETHER_TYPE).map(Ether::hearing_all).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => anyhow::anyhow!("{error}; there are: {}", names().join(", ")),
            _ => error.into(),
        })
    };
    interfaces.iter().map(open).collect()
}

/// All interfaces that are Ethernets.
pub fn all_ethers() -> Result<Vec<String>> {
    let mut all = names();
    let mut first = None;
    all.retain(|name| match Ether::open(name, ETHER_TYPE) {
        Ok(_) => true,
        Err(error) => {
            // A loopback is none.
            first = first.take().or((error.kind() != std::io::ErrorKind::InvalidInput).then_some(error));
            false
        }
    });
    match first {
        Some(error) if all.is_empty() => Err(error.into()),
        _ => Ok(all),
    }
}

/// The interfaces of our network name space.
fn names() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_string())).collect()
}

/// Sectors of a block, for partitions and joins.
const BLOCK: u32 = 16;
/// Megabytes a second that a mirror copies to a member that returns, where nobody says otherwise.
const RESYNC: u64 = 100;
/// Between two looks of a mirror for something to do.
const IDLE: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_another_has_is_reserved_and_one_that_is_not_there_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk");
        std::fs::write(&path, [0; 512]).unwrap();
        let first = HostDisk::open(&path, false).unwrap();
        let kind = || HostDisk::open(&path, false).err().map(|error| cannot(&error).kind);
        assert_eq!(kind(), Some(Kind::Reserved));
        drop(first);
        assert_eq!(kind(), None);
        std::fs::remove_file(&path).unwrap();
        assert_eq!(kind(), Some(Kind::Failed));
    }

    #[test]
    fn a_pause_is_as_long_as_makes_the_pace() {
        assert_eq!(time_of(Pause::Moved(2000)), Duration::from_micros(10_240));
        assert_eq!(time_of(Pause::Paced(2000, 10)), Duration::from_micros(102_400));
        assert_eq!(time_of(Pause::Paced(2000, 0)), Duration::ZERO);
    }

    #[test]
    fn what_is_in_memory_alone_may_be_lost() {
        for (text, lost) in [("{w1w2}", false), ("{w1p(ram9)0.50}", true), ("(w1 buffer 1M w2)", true)] {
            assert_eq!(is_lost(&Table::default().parse(text).unwrap()), lost, "{text}");
        }
    }
}
