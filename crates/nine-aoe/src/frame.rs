//! Frames of AoE, as bytes (`docs/aoe.md`, Frames).
//!
//! In: the payload of a received Ethernet frame. Out: a header and a body borrowed from it; and the reverse, bytes to
//! send. Always holds: parsing never reads past the end of a frame, and no frame of a peer causes a panic.

use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use nine_net::ether::Mac;

/// The EtherType of AoE.
pub const ETHER_TYPE: u16 = 0x88a2;
/// Length of the AoE header in bytes. The arguments of a command follow it.
pub const HEADER: usize = 10;
/// Length of the ATA arguments in bytes. Data follows them.
pub const ATA: usize = 12;
const CONFIG: usize = 8;
/// Maximum length of a config string in bytes.
pub const CONFIG_MAX: usize = 1024;
/// The Ethernet broadcast address.
pub const EVERYBODY: Mac = Mac([0xff; 6]);

const RESPONSE: u8 = 8;
const ERROR: u8 = 4;

/// A frame to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Out {
    /// Index of the interface.
    pub port: usize,
    /// Destination.
    pub to: Mac,
    /// First part of the Ethernet payload: AoE header and arguments.
    pub head: Vec<u8>,
    /// Second part of the payload: the data of a read or write.
    pub data: Bytes,
}

/// A local Ethernet interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interface {
    /// Its Ethernet address.
    pub mac: Mac,
    /// Maximum length of an Ethernet payload in bytes.
    pub mtu: usize,
}

/// Returns the number of sectors that fit in one frame at this MTU.
pub fn sectors_of(mtu: usize) -> u8 {
    (mtu.saturating_sub(36) / 512).min(255) as u8
}

/// The shelf and slot of a target. Written `shelf.slot`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address {
    /// Major number.
    pub shelf: u16,
    /// Minor number.
    pub slot: u8,
}

impl Address {
    /// The broadcast address: all targets.
    pub const ALL: Self = Self { shelf: 0xffff, slot: 0xff };

    /// Returns (offset, allowed values) for each address byte of a frame to or from this target. The offset counts from
    /// the start of the Ethernet payload. A frame matches if each byte has one of its two values; 0xff is broadcast.
    pub fn bytes(self) -> [(u8, [u8; 2]); 3] {
        let [high, low] = self.shelf.to_be_bytes();
        [(2, [high, 0xff]), (3, [low, 0xff]), (4, [self.slot, 0xff])]
    }

    /// Whether a frame addressed to `self` is for the target `of`. Broadcast shelf and slot match.
    pub fn means(self, of: Self) -> bool {
        (self.shelf == of.shelf || self.shelf == Self::ALL.shelf)
            && (self.slot == of.slot || self.slot == Self::ALL.slot)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.shelf, self.slot)
    }
}

/// Error of parsing text that is not a target address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoAddress(String);

impl fmt::Display for NoAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is no target: SHELF.SLOT, as 1.0, up to 65534.254", self.0)
    }
}

impl std::error::Error for NoAddress {}

impl FromStr for Address {
    type Err = NoAddress;

    fn from_str(text: &str) -> Result<Self, NoAddress> {
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        let parts = text.split_once('.').filter(|(shelf, slot)| is_number(shelf) && is_number(slot));
        let numbers = parts.and_then(|(shelf, slot)| Some((shelf.parse().ok()?, slot.parse().ok()?)));
        match numbers {
            Some((shelf, slot)) if shelf != Self::ALL.shelf && slot != Self::ALL.slot => {
                Ok(Self { shelf, slot })
            }
            _ => Err(NoAddress(text.into())),
        }
    }
}

/// `verflags[1] error[1] shelf[2] slot[1] command[1] tag[4]`, most significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// 1. Some targets answer with 0.
    pub version: u8,
    /// Whether the frame is an answer.
    pub response: bool,
    /// Error code of an answer, or `None`; see [`error`].
    pub error: Option<u8>,
    /// The target.
    pub address: Address,
    /// See [`command`].
    pub command: u8,
    /// Chosen by the client. The answer repeats it.
    pub tag: u32,
}

/// Commands of a header.
#[allow(missing_docs)]
pub mod command {
    pub const ATA: u8 = 0;
    pub const CONFIG: u8 = 1;
    pub const MASK: u8 = 2;
    pub const RESERVE: u8 = 3;
}

/// Errors of a header.
#[allow(missing_docs)]
pub mod error {
    pub const COMMAND: u8 = 1;
    pub const ARGUMENT: u8 = 2;
    pub const UNAVAILABLE: u8 = 3;
    pub const PRESENT: u8 = 4;
    pub const VERSION: u8 = 5;
    pub const RESERVED: u8 = 6;
}

impl Header {
    /// Creates the header of a request.
    pub fn ask(address: Address, command: u8, tag: u32) -> Self {
        Self { version: 1, response: false, error: None, address, command, tag }
    }

    /// Returns the header of the answer that target `of` gives to this request.
    #[must_use]
    pub fn answer(self, of: Address, error: Option<u8>) -> Self {
        Self { version: 1, response: true, error, address: of, ..self }
    }

    /// Splits a packet into its header and body. Returns `None` if it is too short.
    pub fn parse(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (head, body) = packet.split_first_chunk::<HEADER>()?;
        let header = Self {
            version: head[0] >> 4,
            response: head[0] & RESPONSE != 0,
            error: (head[0] & ERROR != 0).then_some(head[1]),
            address: Address { shelf: be(head[2], head[3]), slot: head[4] },
            command: head[5],
            tag: u32::from_be_bytes([head[6], head[7], head[8], head[9]]),
        };
        Some((header, body))
    }

    /// Encodes the header.
    pub fn bytes(&self) -> [u8; HEADER] {
        let (response, error) = (self.response as u8 * RESPONSE, self.error.is_some() as u8 * ERROR);
        let [s, h] = self.address.shelf.to_be_bytes();
        let [a, b, c, d] = self.tag.to_be_bytes();
        let first = self.version << 4 | response | error;
        [first, self.error.unwrap_or(0), s, h, self.address.slot, self.command, a, b, c, d]
    }

    /// Encodes the header, followed by `body`.
    pub fn with(&self, body: &[u8]) -> Vec<u8> {
        [&self.bytes(), body].concat()
    }
}

fn be(high: u8, low: u8) -> u16 {
    u16::from_be_bytes([high, low])
}

/// Flags, commands, status and error bits of [`Ata`].
#[allow(missing_docs)]
pub mod ata {
    pub const EXT: u8 = 0x40;
    pub const WRITES: u8 = 0x01;
    pub const READ: u8 = 0x20;
    pub const READ_EXT: u8 = 0x24;
    pub const WRITE: u8 = 0x30;
    pub const WRITE_EXT: u8 = 0x34;
    pub const IDENTIFY: u8 = 0xec;
    pub const FLUSH: u8 = 0xe7;
    pub const FLUSH_EXT: u8 = 0xea;
    pub const CHECK_POWER: u8 = 0xe5;
    pub const READY: u8 = 0x40;
    pub const ERR: u8 = 0x01;
    /// Status bits of which any means failure.
    pub const BAD: u8 = 0xa9;
    pub const UNCORRECTABLE: u8 = 0x40;
    pub const NO_SECTOR: u8 = 0x10;
    pub const ABORTED: u8 = 0x04;
}

/// `aflags[1] feature[1] count[1] command[1] lba[6] 0[2]`, lba least significant byte first. In an answer `feature` is
/// the error register and `command` the status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Ata {
    pub flags: u8,
    pub feature: u8,
    pub count: u8,
    pub command: u8,
    /// Raw value from the frame; see [`Ata::sector`].
    pub lba: u64,
}

impl Ata {
    /// `command` for `count` sectors, starting at `sector`. `ext`: the command has 48-bit addresses.
    pub fn new(command: u8, sector: u64, count: u8, ext: bool, writes: bool) -> Self {
        let flags = if ext { ata::EXT } else { 0 } | if writes { ata::WRITES } else { 0 };
        let lba = if ext { sector & 0xffff_ffff_ffff } else { sector & 0xfff_ffff | 0xe000_0000 };
        Self { flags, feature: 0, count, command, lba }
    }

    /// Splits a body into registers and data. Returns `None` if it is too short.
    pub fn parse(body: &[u8]) -> Option<(Self, &[u8])> {
        let (args, data) = body.split_first_chunk::<ATA>()?;
        let [flags, feature, count, command, a, b, c, d, e, f, _, _] = *args;
        let lba = u64::from_le_bytes([a, b, c, d, e, f, 0, 0]);
        Some((Self { flags, feature, count, command, lba }, data))
    }

    /// Encodes the registers.
    pub fn bytes(&self) -> [u8; ATA] {
        let [a, b, c, d, e, f, ..] = self.lba.to_le_bytes();
        [self.flags, self.feature, self.count, self.command, a, b, c, d, e, f, 0, 0]
    }

    /// The first sector, masked to 28 bits unless `flags` has [`ata::EXT`].
    pub fn sector(&self) -> u64 {
        if self.flags & ata::EXT != 0 { self.lba } else { self.lba & 0xfff_ffff }
    }
}

/// `buffers[2] firmware[2] sectors[1] version,do[1] length[2] string`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<'a> {
    /// Length of the target's queue in frames.
    pub buffers: u16,
    /// Firmware version of the target.
    pub firmware: u16,
    /// Maximum number of sectors in one frame.
    pub sectors: u8,
    /// Command code; see [`config`].
    pub what: u8,
    /// The config string.
    pub string: &'a [u8],
}

/// Codes of config commands.
#[allow(missing_docs)]
pub mod config {
    pub const READ: u8 = 0;
    pub const IS: u8 = 1;
    pub const BEGINS: u8 = 2;
    pub const SET_EMPTY: u8 = 3;
    pub const SET: u8 = 4;
}

impl<'a> Config<'a> {
    /// Creates the arguments of a request.
    pub fn ask(what: u8, string: &'a [u8]) -> Self {
        Self { buffers: 0, firmware: 0, sectors: 0, what, string }
    }

    /// Returns `None` if the body is too short or the string too long.
    pub fn parse(body: &'a [u8]) -> Option<Self> {
        let (args, rest) = body.split_first_chunk::<CONFIG>()?;
        let length = usize::from(be(args[6], args[7]));
        let string = rest.get(..length).filter(|_| length <= CONFIG_MAX)?;
        let (buffers, firmware) = (be(args[0], args[1]), be(args[2], args[3]));
        Some(Self { buffers, firmware, sectors: args[4], what: args[5] & 15, string })
    }

    /// Encodes the arguments.
    pub fn bytes(&self) -> Vec<u8> {
        let ([a, b], [c, d]) = (self.buffers.to_be_bytes(), self.firmware.to_be_bytes());
        let [e, f] = (self.string.len() as u16).to_be_bytes();
        [&[a, b, c, d, self.sectors, 0x10 | self.what, e, f], self.string].concat()
    }
}

/// One directive of a mask request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Edit {
    Nothing,
    Add(Mac),
    Delete(Mac),
    /// An unknown directive.
    Bad,
}

/// `0[1] do[1] error[1] n[1] n*(0[1] do[1] address[6])`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mask {
    /// 0 reads the mask, 1 edits it.
    pub what: u8,
    /// Error code of an answer: 0 none, 1 unspecified, 2 bad directive, 3 list full.
    pub error: u8,
    /// In a request, the directives. In an answer, the addresses of the mask, each as [`Edit::Add`].
    pub edits: Vec<Edit>,
}

impl Mask {
    /// Returns `None` if the body is too short.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (args, rest) = body.split_first_chunk::<4>()?;
        let edits = rest.as_chunks::<8>().0.get(..usize::from(args[3]))?;
        let edit = |[_, what, a, b, c, d, e, f]: &[u8; 8]| match (what, Mac([*a, *b, *c, *d, *e, *f])) {
            (0, _) => Edit::Nothing,
            (1, mac) => Edit::Add(mac),
            (2, mac) => Edit::Delete(mac),
            _ => Edit::Bad,
        };
        Some(Self { what: args[1], error: args[2], edits: edits.iter().map(edit).collect() })
    }

    /// Encodes the arguments. `edits` must have at most 255 entries.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0, self.what, self.error, self.edits.len() as u8];
        for edit in &self.edits {
            let (what, mac) = match edit {
                Edit::Nothing => (0, Mac([0; 6])),
                Edit::Add(mac) => (1, *mac),
                Edit::Delete(mac) => (2, *mac),
                Edit::Bad => (0xff, Mac([0; 6])),
            };
            bytes.extend([0, what]);
            bytes.extend(mac.0);
        }
        bytes
    }
}

/// `do[1] n[1] n*address[6]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// 0 reads, 1 sets, 2 sets by force.
    pub what: u8,
    /// Addresses of the clients that may use the target.
    pub macs: Vec<Mac>,
}

impl Reserve {
    /// Returns `None` if the body is too short.
    pub fn parse(body: &[u8]) -> Option<Self> {
        let (args, rest) = body.split_first_chunk::<2>()?;
        let macs = rest.as_chunks::<6>().0.get(..usize::from(args[1]))?;
        Some(Self { what: args[0], macs: macs.iter().map(|mac| Mac(*mac)).collect() })
    }

    /// Encodes the arguments. `macs` must have at most 255 entries.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![self.what, self.macs.len() as u8];
        self.macs.iter().for_each(|mac| bytes.extend(mac.0));
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DISK: Address = Address { shelf: 0x0102, slot: 3 };

    #[test]
    fn a_header_is_ten_bytes_in_the_order_of_the_network() {
        let ask = Header::ask(DISK, command::CONFIG, 0x8123_4567);
        assert_eq!(ask.bytes(), [0x10, 0, 1, 2, 3, 1, 0x81, 0x23, 0x45, 0x67]);
        let refused = ask.answer(DISK, Some(error::RESERVED));
        assert_eq!(refused.bytes()[..2], [0x1c, 6]);
        for header in [ask, refused, ask.answer(DISK, None)] {
            assert_eq!(Header::parse(&header.with(b"x")), Some((header, &b"x"[..])));
        }
        assert!((0..HEADER).all(|n| Header::parse(&ask.bytes()[..n]).is_none()));
        assert!(Address::ALL.means(DISK) && DISK.means(DISK) && !DISK.means(Address { slot: 4, ..DISK }));
        assert!(
            Address { shelf: 0xffff, slot: 3 }.means(DISK) && !Address { shelf: 0xffff, slot: 4 }.means(DISK)
        );
    }

    #[test]
    fn an_lba_is_least_significant_byte_first_in_28_or_48_bits() {
        let long = Ata::new(ata::READ_EXT, 0x0605_0403_0201, 16, true, false);
        assert_eq!(long.bytes(), [0x40, 0, 16, 0x24, 1, 2, 3, 4, 5, 6, 0, 0]);
        let short = Ata::new(ata::WRITE, 0x0a03_0201, 2, false, true);
        assert_eq!(short.bytes(), [1, 0, 2, 0x30, 1, 2, 3, 0xea, 0, 0, 0, 0]);
        assert_eq!((long.sector(), short.sector()), (0x0605_0403_0201, 0x0a03_0201));
        for ata in [long, short] {
            let bytes = [&ata.bytes()[..], b"data"].concat();
            assert_eq!(Ata::parse(&bytes), Some((ata, &b"data"[..])));
            assert!((0..ATA).all(|n| Ata::parse(&bytes[..n]).is_none()));
        }
    }

    #[test]
    fn a_config_string_ends_where_it_says_and_padding_is_not_looked_at() {
        let config =
            Config { buffers: 16, firmware: 0x400e, sectors: 2, what: config::BEGINS, string: b"lun" };
        let bytes = config.bytes();
        assert_eq!(bytes, [0, 16, 0x40, 0x0e, 2, 0x12, 0, 3, b'l', b'u', b'n']);
        assert_eq!(Config::parse(&[&bytes[..], &[0; 25]].concat()), Some(config));
        assert!((0..bytes.len()).all(|n| Config::parse(&bytes[..n]).is_none()));
        let long = vec![b'x'; CONFIG_MAX + 1];
        assert_eq!(Config::parse(&Config::ask(config::SET, &long).bytes()), None);
        assert!(Config::parse(&Config::ask(config::SET, &long[1..]).bytes()).is_some());
    }

    #[test]
    fn masks_and_reservations_have_as_many_addresses_as_they_say() {
        let (a, b) = (Mac([1, 2, 3, 4, 5, 6]), Mac([7; 6]));
        let mask = Mask { what: 1, error: 0, edits: vec![Edit::Add(a), Edit::Delete(b), Edit::Nothing] };
        let bytes = mask.bytes();
        assert_eq!(bytes[..12], [0, 1, 0, 3, 0, 1, 1, 2, 3, 4, 5, 6]);
        assert_eq!((bytes.len(), &bytes[12..20]), (28, &[0, 2, 7, 7, 7, 7, 7, 7][..]));
        assert_eq!(Mask::parse(&[&bytes[..], &[9; 40]].concat()), Some(mask));
        assert!((0..bytes.len()).all(|n| Mask::parse(&bytes[..n]).is_none()));
        let reserve = Reserve { what: 2, macs: vec![a, b] };
        let bytes = reserve.bytes();
        assert_eq!(bytes, [2, 2, 1, 2, 3, 4, 5, 6, 7, 7, 7, 7, 7, 7]);
        assert_eq!(Reserve::parse(&[&bytes[..], &[9; 40]].concat()), Some(reserve));
        assert!((0..bytes.len()).all(|n| Reserve::parse(&bytes[..n]).is_none()));
    }

    #[test]
    fn frames_have_the_sectors_that_fit() {
        for (mtu, sectors) in [(0, 0), (547, 0), (548, 1), (1500, 2), (9000, 17), (1 << 20, 255)] {
            assert_eq!(sectors_of(mtu), sectors, "{mtu}");
        }
    }

    #[test]
    fn targets_are_written_with_a_dot() {
        assert_eq!("258.3".parse(), Ok(DISK));
        assert_eq!(DISK.to_string(), "258.3");
        for text in ["", "1", "1.", ".1", "65535.0", "1.255", "1.0.0", "+1.0", "-1.0", "1. 0"] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }
}
