//! Packets of il, as bytes (`docs/il.md`, Packets).
//!
//! In: a received block. Out: a header and its payload; and the reverse.

use nine_stream::{Block, Chain};

/// Bytes of a header.
pub const HEADER: usize = 18;
/// The spec of a close that answers a packet of an unknown connection. It is not answered.
pub const REJECT: u8 = 1;
/// Starts the payload of a sync from a peer that supports the extensions.
const MAGIC: [u8; 4] = *b"9il\x01";
/// Bytes of a [`SyncPayload`].
const HELLO: usize = 12;
/// Bytes of an [`AckPayload`] without ranges.
const REPORT: usize = 14;
/// Maximum number of ranges of one report.
pub(super) const RANGES: usize = 32;

/// The type of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Sync,
    Data,
    DataQuery,
    Ack,
    Query,
    State,
    Close,
}

const KINDS: [Kind; 7] =
    [Kind::Sync, Kind::Data, Kind::DataQuery, Kind::Ack, Kind::Query, Kind::State, Kind::Close];

/// `sum[2] len[2] type[1] spec[1] src[2] dst[2] id[4] ack[4]`, most significant byte first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The type.
    pub kind: Kind,
    /// In a query and its state: its number. In data: how often it was sent before.
    pub spec: u8,
    /// The sender's port.
    pub src: u16,
    /// The receiver's port.
    pub dst: u16,
    /// In data: its id. Otherwise: the id of the next data.
    pub id: u32,
    /// The last id received in order.
    pub ack: u32,
}

impl Header {
    /// Parses a header, and returns the payload's length too. `None`: it is not an il packet, or its sum is wrong.
    pub fn parse(packet: &[u8]) -> Option<(Self, usize)> {
        let header = packet.first_chunk::<HEADER>()?;
        let two = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let four =
            |at: usize| u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let len = usize::from(two(2));
        if len < HEADER || len > packet.len() || (two(0) != 0 && fold(sum(&packet[..len])) != 0xffff) {
            return None;
        }
        let kind = *KINDS.get(usize::from(header[4]))?;
        let parsed = Self { kind, spec: header[5], src: two(6), dst: two(8), id: four(10), ack: four(14) };
        Some((parsed, len - HEADER))
    }

    /// The answer to a packet of an unknown connection.
    pub fn reject(&self) -> Self {
        let Self { src, dst, id, ack, .. } = *self;
        Self { kind: Kind::Close, spec: REJECT, src: dst, dst: src, id: ack, ack: id }
    }

    /// Writes the packet: this header and `data`, with a sum if `sums`.
    pub fn packet(&self, data: Option<Block>, sums: bool) -> Chain {
        let bytes = data.as_ref().map_or(&[][..], Block::data);
        let len = (HEADER + bytes.len()) as u16;
        let mut header = Vec::with_capacity(HEADER);
        header.extend([0; 2]);
        header.extend(len.to_be_bytes());
        header.extend([self.kind as u8, self.spec]);
        header.extend(self.src.to_be_bytes());
        header.extend(self.dst.to_be_bytes());
        header.extend(self.id.to_be_bytes());
        header.extend(self.ack.to_be_bytes());
        if sums {
            // 0 would mean that there is no sum. All ones are the same number.
            let sum = Some(!fold(sum(&header) + sum(bytes))).filter(|sum| *sum > 0).unwrap_or(0xffff);
            header[..2].copy_from_slice(&sum.to_be_bytes());
        }
        let mut chain = Chain::from(Block::from(header));
        chain.extend(data);
        chain.end_message();
        chain
    }
}

/// Sums 16-bit words, in this machine's byte order. `bytes` must start at an even offset.
fn sum(bytes: &[u8]) -> u64 {
    let mut words = bytes.chunks_exact(4);
    let all: u64 =
        words.by_ref().map(|word| u64::from(u32::from_ne_bytes([word[0], word[1], word[2], word[3]]))).sum();
    let mut rest = [0; 4];
    rest[..words.remainder().len()].copy_from_slice(words.remainder());
    all + u64::from(u32::from_ne_bytes(rest))
}

/// Folds a sum to 16 bits with ones' complement, most significant byte first.
fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    u16::from_be(sum as u16)
}

/// The payload of a sync: `magic[4] window[4] largest[4]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyncPayload {
    /// Bytes that may be in flight to its sender.
    pub(super) window: u32,
    /// The largest message that it accepts, in bytes.
    pub(super) largest: u32,
}

impl SyncPayload {
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<HELLO>()?;
        (bytes[..4] == MAGIC).then(|| Self { window: four(bytes, 4), largest: four(bytes, 8) })
    }

    pub(super) fn block(self) -> Block {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.largest.to_be_bytes());
        Block::from(bytes)
    }
}

/// The payload of an ack or a state between new peers: `window[4] newest[4] times[1] ranges[1] delay[4]
/// ranges*(first[4] last[4])`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AckPayload {
    /// Bytes that may be sent after the ack of its header.
    pub(super) window: u32,
    /// The data received last, and its spec.
    pub(super) newest: u32,
    pub(super) times: u8,
    /// The time since then, in microseconds.
    pub(super) delay: u32,
    /// Data received out of order, ascending.
    pub(super) ranges: Vec<(u32, u32)>,
}

impl AckPayload {
    pub(super) fn parse(payload: &[u8]) -> Option<Self> {
        let bytes = payload.first_chunk::<REPORT>()?;
        let count = usize::from(bytes[9]);
        let ranges = payload.get(REPORT..REPORT + count * 8).filter(|_| count <= RANGES)?;
        Some(Self {
            window: four(bytes, 0),
            newest: four(bytes, 4),
            times: bytes[8],
            delay: four(bytes, 10),
            ranges: ranges.chunks_exact(8).map(|range| (four(range, 0), four(range, 4))).collect(),
        })
    }

    pub(super) fn block(&self) -> Block {
        let mut bytes = Vec::with_capacity(REPORT + self.ranges.len() * 8);
        bytes.extend(self.window.to_be_bytes());
        bytes.extend(self.newest.to_be_bytes());
        bytes.extend([self.times, self.ranges.len() as u8]);
        bytes.extend(self.delay.to_be_bytes());
        for (first, last) in &self.ranges {
            bytes.extend(first.to_be_bytes());
            bytes.extend(last.to_be_bytes());
        }
        Block::from(bytes)
    }
}

fn four(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}
