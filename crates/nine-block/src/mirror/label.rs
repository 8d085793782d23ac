//! The head of each member: docs/block.md, "Mirror".

use bytes::Bytes;

use crate::bits::{PER_SECTOR, sum};
use crate::device::SECTOR;

/// Maximum number of members of a mirror.
pub const MEMBERS_MOST: usize = 16;
/// Sectors of a member before the mirrored ones.
pub(super) const HEAD_SECTORS: u64 = 128;
/// Sectors of the labels, which are in different physical sectors on any disk.
pub(super) const SLOTS: [u64; 2] = [0, 8];
/// The first sector of the bitmap of regions.
pub(super) const MARKS: u64 = 64;
/// Maximum number of regions: the capacity of the bitmap.
pub(super) const REGIONS_MAX: u64 = (HEAD_SECTORS - MARKS) * PER_SECTOR;

const MAGIC: &[u8; 8] = b"9mirror\x01";

/// The state of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Written and read.
    In,
    /// Written, and being brought up to date.
    Returning,
    /// Set aside.
    Out,
}

/// A member's label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MemberLabel {
    pub set: [u8; 16],
    pub member: usize,
    pub region: u32,
    pub now: LabelEvent,
}

/// The part of a label that an event changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct LabelEvent {
    pub event: u64,
    pub base: u64,
    pub sectors: u64,
    /// The state of each member, and the event since which it has it.
    pub places: Vec<(Place, u64)>,
}

impl LabelEvent {
    pub fn all_in(&self) -> bool {
        self.places.iter().all(|(place, _)| *place == Place::In)
    }

    pub fn none_in(&self) -> bool {
        self.places.iter().all(|(place, _)| *place != Place::In)
    }
}

impl MemberLabel {
    /// Returns the sector of this label.
    pub fn sector(&self) -> u64 {
        SLOTS[(self.now.event % 2) as usize]
    }

    pub fn encode(&self) -> Bytes {
        let mut bytes = vec![0; SECTOR as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..24].copy_from_slice(&self.set);
        bytes[24..32].copy_from_slice(&self.now.event.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.now.base.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.now.sectors.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.region.to_le_bytes());
        bytes[52] = self.member as u8;
        bytes[53] = self.now.places.len() as u8;
        for (at, (place, since)) in self.now.places.iter().enumerate() {
            bytes[56 + 16 * at] = *place as u8;
            bytes[64 + 16 * at..72 + 16 * at].copy_from_slice(&since.to_le_bytes());
        }
        let sum = sum(&bytes[..504], None);
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        bytes.into()
    }

    /// Decodes a sector. `None`: it is not a label.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        if !bytes.starts_with(MAGIC) || sum(&bytes[..504], None) != number(504) {
            return None;
        }
        let region = u32::from_le_bytes(bytes[48..52].try_into().expect("four bytes"));
        let (member, members) = (usize::from(bytes[52]), usize::from(bytes[53]));
        let place = |at: usize| match bytes[56 + 16 * at] {
            0 => Some((Place::In, number(64 + 16 * at))),
            1 => Some((Place::Returning, number(64 + 16 * at))),
            2 => Some((Place::Out, number(64 + 16 * at))),
            _ => None,
        };
        let sectors = number(40);
        let sane = (1..=MEMBERS_MOST).contains(&members)
            && number(24) < u64::MAX / 2
            && member < members
            && region.is_power_of_two()
            && sectors.div_ceil(region.into()) <= REGIONS_MAX;
        if !sane {
            return None;
        }
        let places = (0..members).map(place).collect::<Option<_>>()?;
        let now = LabelEvent { event: number(24), base: number(32), sectors, places };
        let set = bytes[8..24].try_into().expect("sixteen bytes");
        Some(Self { set, member, region, now })
    }

    /// Returns the state of the member by its own label.
    pub fn own(&self) -> (Place, u64) {
        self.now.places[self.member]
    }

    /// Returns whether this member is in by its own label, but out by the other's since an event that this label
    /// includes.
    pub fn alone(&self, other: &Self) -> bool {
        let (place, since) = other.now.places[self.member];
        self.own().0 == Place::In && place == Place::Out && self.now.event >= since
    }

    /// Returns whether this label does not show the other member as out.
    pub fn missed(&self, other: &Self) -> bool {
        self.now.places[other.member].0 != Place::Out
    }
}

/// Returns the event to continue from, if a label has the event `other`: not less than either, and of a parity such
/// that the next label does not overwrite the one with the event `now`.
pub(super) fn beyond(now: u64, other: u64) -> u64 {
    match other > now {
        true => other + (other - now) % 2,
        false => now,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_is_read_as_it_was_written_or_not_at_all() {
        let places = vec![(Place::In, 3), (Place::Returning, 9), (Place::Out, 1 << 60)];
        let now = LabelEvent { event: 9, base: 7, sectors: 1 << 40, places };
        let label = MemberLabel { set: *b"0123456789abcdef", member: 2, region: 1 << 23, now };
        let bytes = label.encode();
        assert_eq!(MemberLabel::decode(&bytes), Some(label.clone()));
        for at in 0..bytes.len() {
            let mut wrong = bytes.to_vec();
            wrong[at] ^= 4;
            assert_eq!(MemberLabel::decode(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn a_label_is_never_written_over_the_one_that_counts() {
        for (now, other) in [(5, 3), (5, 5), (5, 6), (5, 7), (8, 9)] {
            let event = beyond(now, other);
            assert!(event >= now.max(other) && event % 2 == now % 2);
        }
    }
}
