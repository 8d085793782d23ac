//! Ethernets between two network name spaces: direct cables, and cables carried by a lane.
//!
//! In: the MTU, and whether the kernel may merge segments. Out: cables, each an interface of the same name on both
//! sides, with an IP address.
//!
//! Always holds: all offloads are off on cables of a lane, because there is no card to do the work. Name spaces and
//! cables end with the program.

use std::ffi::OsString;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nine_net::ether::Mac;
use nine_sim::delay::Side;

use super::lane::EmulatedLink;
use crate::child::ChildProcess;
use crate::far::RemoteLink;
use crate::peers;
use crate::server::SILENCE;

/// The two network name spaces, and one more for lanes.
pub struct EtherTestbed {
    pub far: RemoteLink,
    between: Arc<RemoteLink>,
    /// Processes that stay in the far name space and in the one between, so that these can be addressed.
    stays: [ChildProcess; 2],
    log: PathBuf,
    ethtool: Option<PathBuf>,
}

/// An Ethernet between both sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtherCable {
    pub name: String,
    pub mtu: u32,
    number: u8,
}

/// Segmentation offloads that the kernel may leave to a card or do itself.
const SEGMENTS: &str = "tso off gso off gro off";
/// Segmentation and checksum offloads.
const ALL: &str = "tso off gso off gro off tx off rx off";

impl EtherTestbed {
    /// Creates the name spaces. An error of the kind Unsupported means that the system does not allow that.
    pub fn new(run: &Path) -> io::Result<Self> {
        let (far, between) = (RemoteLink::new()?, RemoteLink::new()?);
        if !far.is_box() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "network name spaces and packet sockets (CAP_SYS_ADMIN, CAP_NET_ADMIN, CAP_NET_RAW)",
            ));
        }
        let log = run.join("ip.log");
        let stays = |far: &RemoteLink, side| {
            far.start(side, &["sleep".into(), "7200".into()], &run.join("sleep.log"))
        };
        let stays = [stays(&far, Side::There)?, stays(&between, Side::Here)?];
        Ok(Self { far, between: Arc::new(between), stays, log, ethtool: peers::find("ethtool") })
    }

    /// Returns whether segmentation can be turned off. Without that, there is no comparison with TCP.
    pub fn has_ethtool(&self) -> bool {
        self.ethtool.is_some()
    }

    /// Creates a cable without a rate limit.
    pub fn direct(&self, number: u8, mtu: u32, whole_segments: bool) -> io::Result<EtherCable> {
        let cable = EtherCable { name: format!("nfb{number}"), mtu, number };
        let (name, there) = (&cable.name, self.stays[0].pid());
        let peer = format!("peer name {name} mtu {mtu} address {} netns {there}", mac(number, Side::There));
        let own = mac(number, Side::Here);
        self.ip(&self.far, Side::Here, &format!("link add {name} mtu {mtu} address {own} type veth {peer}"))?;
        self.begin(&cable, if whole_segments { None } else { Some(SEGMENTS) })?;
        Ok(cable)
    }

    /// Creates a cable carried by a lane.
    pub fn lane(&self, number: u8, mtu: u32) -> io::Result<(EtherCable, EmulatedLink)> {
        let cable = EtherCable { name: format!("nfb{number}"), mtu, number };
        let between = self.stays[1].pid();
        let mut ends = [Side::Here, Side::There].map(|side| (side, String::new()));
        for (side, end) in &mut ends {
            let (own, other) = match side {
                Side::Here => (mac(number, Side::Here), mac(number, Side::There)),
                Side::There => (mac(number, Side::There), mac(number, Side::Here)),
            };
            *end = format!("{}{}", if *side == Side::Here { "h" } else { "t" }, cable.name);
            // Each of the lane's interfaces has the address of the other side's card.
            let peer = format!("peer name {end} mtu {mtu} address {other} netns {between}");
            let name = &cable.name;
            self.ip(&self.far, *side, &format!("link add {name} mtu {mtu} address {own} type veth {peer}"))?;
            self.ip(&self.between, Side::Here, &format!("link set {end} up"))?;
            self.ethtool(&self.between, Side::Here, end, ALL)?;
        }
        self.begin(&cable, Some(ALL))?;
        let macs = [mac(number, Side::Here), mac(number, Side::There)].map(|mac| mac.parse::<Mac>());
        let [Ok(here), Ok(there)] = macs else { return Err(io::ErrorKind::InvalidData.into()) };
        let lane = EmulatedLink::new(self.between.clone(), ends.map(|(_, end)| end), [here, there])?;
        Ok((cable, lane))
    }

    /// Brings up both ends of a cable.
    fn begin(&self, cable: &EtherCable, off: Option<&str>) -> io::Result<()> {
        for side in [Side::Here, Side::There] {
            let name = &cable.name;
            self.ip(&self.far, side, &format!("addr add {}/24 dev {name}", cable.address(side)))?;
            self.ip(&self.far, side, &format!("link set {name} up"))?;
            if let Some(off) = off {
                self.ethtool(&self.far, side, name, off)?;
            }
        }
        Ok(())
    }

    fn ip(&self, far: &RemoteLink, side: Side, words: &str) -> io::Result<()> {
        let no_ip = || io::Error::new(io::ErrorKind::Unsupported, "the program ip (Debian package iproute2)");
        self.program(far, side, &peers::find("ip").ok_or_else(no_ip)?, words)
    }

    fn ethtool(&self, far: &RemoteLink, side: Side, name: &str, off: &str) -> io::Result<()> {
        let Some(program) = &self.ethtool else { return Ok(()) };
        self.program(far, side, program, &format!("-K {name} {off}"))
    }

    fn program(&self, far: &RemoteLink, side: Side, program: &Path, words: &str) -> io::Result<()> {
        let words = words.split(' ').map(OsString::from);
        let words: Vec<OsString> = [program.into()].into_iter().chain(words).collect();
        if far.start(side, &words, &self.log)?.wait(SILENCE)?.success() {
            return Ok(());
        }
        let said = std::fs::read_to_string(&self.log)?;
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("a veth: {}", said.trim())))
    }
}

impl EtherCable {
    pub fn address(&self, side: Side) -> Ipv4Addr {
        Ipv4Addr::new(10, 90, self.number, 1 + side as u8)
    }

    /// Returns the MAC address of a side.
    pub fn mac(&self, side: Side) -> io::Result<Mac> {
        mac(self.number, side).parse().map_err(io::Error::other)
    }
}

fn mac(number: u8, side: Side) -> String {
    format!("0a:00:00:00:{number:02x}:{:02x}", 1 + side as u8)
}
