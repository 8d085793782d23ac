//! Remote disks on the Ethernets of this machine, and the pace of background work on devices.
//!
//! In: names of interfaces, the address of a disk. Out: the disk, with its driver running; sockets.

use std::time::Duration;

use anyhow::Result;
use nine_aoe::driver::{Disk, disk};
use nine_aoe::frame::{Address, ETHER_TYPE};
use nine_block::{Pause, SECTOR};
use nine_net::ether::Ether;
use nine_net::{Env, rt};

/// Settings for access to remote disks.
#[derive(Clone)]
pub struct Over {
    pub env: rt::Real,
    pub interfaces: Vec<String>,
    /// A disk without an answer for this long counts as gone.
    pub patience: Duration,
}

impl Over {
    /// Opens a disk on these Ethernets. Its driver runs until the disk is dropped.
    pub fn disk(&self, address: Address) -> Result<Disk> {
        let (disk, driver) =
            disk(ethers_of(&self.interfaces, address)?, address, self.patience, self.env.clock());
        self.env.spawn(Box::pin(async move {
            if let Err(error) = driver.await {
                tracing::error!("e{address}: {error}");
            }
        }));
        Ok(disk)
    }
}

/// Returns how long a device's background work must pause.
pub fn time_of(pause: Pause) -> Duration {
    match pause {
        Pause::Moved(sectors) => time_of(Pause::Paced(sectors, RESYNC)),
        Pause::Paced(_, 0) => Duration::ZERO,
        Pause::Paced(sectors, megabytes) => {
            Duration::from_nanos((sectors * SECTOR).saturating_mul(1000) / megabytes)
        }
        Pause::Idle => IDLE,
        Pause::Late => LATE,
    }
}

/// Opens sockets for AoE frames on these interfaces.
pub fn ethers(interfaces: &[String]) -> Result<Vec<Ether>> {
    Ok(ethers_of_type(interfaces, ETHER_TYPE)?.into_iter().map(Ether::hearing_all).collect())
}

/// Opens sockets for frames of another type, which receive only frames to their own cards.
pub fn ethers_of_type(interfaces: &[String], kind: u16) -> Result<Vec<Ether>> {
    let open = |name: &String| {
        Ether::open(name, kind).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => anyhow::anyhow!("{error}; there are: {}", names().join(", ")),
            _ => error.into(),
        })
    };
    interfaces.iter().map(open).collect()
}

/// Like [`ethers`], for frames of one target: the kernel drops those of others.
pub fn ethers_of(interfaces: &[String], address: Address) -> Result<Vec<Ether>> {
    let all = ethers(interfaces)?.into_iter();
    Ok(all.map(|ether| ether.only(&address.bytes())).collect::<Result<_, _>>()?)
}

/// Returns all interfaces that are Ethernets.
pub fn all_ethers() -> Result<Vec<String>> {
    let mut all = names();
    let mut first = None;
    all.retain(|name| match Ether::open(name, ETHER_TYPE) {
        Ok(_) => true,
        Err(error) => {
            // InvalidInput is the error of a loopback interface, which is not an Ethernet.
            first = first.take().or((error.kind() != std::io::ErrorKind::InvalidInput).then_some(error));
            false
        }
    });
    match first {
        Some(error) if all.is_empty() => Err(error.into()),
        _ => Ok(all),
    }
}

/// Returns the interfaces of our network name space.
fn names() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/self/net/dev").unwrap_or_default();
    text.lines().filter_map(|line| Some(line.split_once(':')?.0.trim().to_string())).collect()
}

/// Default rate at which a mirror copies to a returning member, megabytes a second.
const RESYNC: u64 = 100;
/// Time between two checks of an idle mirror for work.
const IDLE: Duration = Duration::from_secs(5);
/// Time that a mirror still waits for members that were set aside before, after it has opened all
/// others. Normally they answer in milliseconds.
const LATE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_as_long_as_makes_the_pace() {
        assert_eq!(time_of(Pause::Moved(2000)), Duration::from_micros(10_240));
        assert_eq!(time_of(Pause::Paced(2000, 10)), Duration::from_micros(102_400));
        assert_eq!(time_of(Pause::Paced(2000, 0)), Duration::ZERO);
    }
}
