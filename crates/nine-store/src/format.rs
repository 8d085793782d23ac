//! Names of objects, and the content of those without sectors (docs/store.md, "Objects").
//!
//! In: names and bytes of the store. Out: their decoded form, or an error if they are invalid.

/// The object that describes the store.
pub(crate) const STORE: &str = "store";
/// Prefix of claims, by epoch.
pub(crate) const CLAIM: &str = "claim/";
/// Prefix of objects with sectors, by epoch and number.
pub(crate) const DATA: &str = "data/";
/// The compare-and-swap object of a `Slate`.
pub(crate) const LEASE: &str = "lease";

/// Bytes of a claim's description of its writer.
pub(crate) const WHO: usize = 64;

const MAGIC: &[u8; 8] = b"9foldO\0\0";
const CLAIMED: &[u8; 8] = b"9foldK\0\0";
const SLATE: &[u8; 8] = b"9foldS\0\0";
const VERSION: u32 = 1;
/// Bytes of a sector.
const SECTOR_LEN: usize = nine_block::SECTOR as usize;

/// The identity of an object with sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ObjectId {
    pub epoch: u32,
    pub number: u32,
}

/// An object with sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SectorObject {
    pub id: ObjectId,
    /// The first sector; less than 2^48.
    pub first: u64,
    /// The number of sectors; not 0.
    pub count: u16,
}

/// The content of the object `store`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreHeader {
    pub identity: [u8; 16],
    pub sectors: u64,
}

impl ObjectId {
    /// Returns a name less than that of this object, and greater than those of all objects before it.
    pub fn before(self) -> String {
        format!("{DATA}{:08x}-{:08x}", self.epoch, self.number)
    }
}

impl SectorObject {
    pub fn name(&self) -> String {
        format!("{}-{:012x}-{:04x}", self.id.before(), self.first, self.count)
    }

    /// Parses a name. `None`: it is not one of ours.
    pub fn parse(name: &str) -> Option<Self> {
        let mut parts = name.strip_prefix(DATA)?.split('-');
        let mut part = |len: usize| {
            let part = parts.next().filter(|part| part.len() == len)?;
            let is_ours = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
            u64::from_str_radix(part, 16).ok().filter(|_| is_ours)
        };
        let (epoch, number, first, count) = (part(8)?, part(8)?, part(12)?, part(4)?);
        let id = ObjectId { epoch: epoch as u32, number: number as u32 };
        (parts.next().is_none() && count > 0 && epoch > 0).then_some(Self { id, first, count: count as u16 })
    }

    /// Returns the sector after the last.
    pub fn end(&self) -> u64 {
        self.first + u64::from(self.count)
    }
}

impl StoreHeader {
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend([0; 8]);
        bytes.extend(512u32.to_le_bytes());
        bytes.extend(self.identity);
        bytes.extend(self.sectors.to_le_bytes());
        summed(bytes)
    }

    /// Decodes the content.
    ///
    /// # Errors
    /// The reason why it is invalid, for people.
    pub fn decode(bytes: &[u8]) -> Result<Self, String> {
        let magic = bytes.get(..8).filter(|magic| magic == MAGIC);
        magic.ok_or("its object `store` is not ours: something else lies below this prefix")?;
        let number =
            |at: usize| bytes.get(at..at + 4).map(|four| u32::from_le_bytes(four.try_into().expect("four")));
        if number(8).is_some_and(|version| version > VERSION)
            || number(12).is_some_and(|features| features != 0)
        {
            return Err("a newer program has made it, and is needed to read it".into());
        }
        if bytes.len() != 56 || !is_summed(bytes) || number(20) != Some(512) {
            return Err("its object `store` is broken".into());
        }
        let identity = bytes[24..40].try_into().expect("sixteen bytes");
        let sectors = u64::from_le_bytes(bytes[40..48].try_into().expect("eight bytes"));
        if sectors > 1 << 48 {
            return Err(format!("its object `store` says {sectors} sectors, which cannot be"));
        }
        Ok(Self { identity, sectors })
    }

    /// Returns whether a program that knows no features may write.
    pub fn may_write(bytes: &[u8]) -> bool {
        bytes.get(16..20) == Some(&[0; 4])
    }
}

pub(crate) fn claim_name(epoch: u32) -> String {
    format!("{CLAIM}{epoch:08x}")
}

/// Parses the name of a claim. `None`: it is not one.
pub(crate) fn claim_epoch(name: &str) -> Option<u32> {
    let epoch = name.strip_prefix(CLAIM).and_then(|epoch| u32::from_str_radix(epoch, 16).ok())?;
    (claim_name(epoch) == name).then_some(epoch)
}

pub(crate) fn claim(epoch: u32, random: u128, who: &str) -> Vec<u8> {
    let mut bytes = CLAIMED.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend(random.to_le_bytes());
    let mut len = who.len().min(WHO);
    while !who.is_char_boundary(len) {
        len -= 1;
    }
    bytes.extend(&who.as_bytes()[..len]);
    bytes.resize(32 + WHO, 0);
    summed(bytes)
}

/// Returns the description of the writer from a claim, for people.
pub(crate) fn claimant(bytes: &[u8]) -> String {
    let who = bytes.get(32..32 + WHO).filter(|_| bytes.starts_with(CLAIMED) && is_summed(bytes));
    let who =
        who.map(|who| String::from_utf8_lossy(who).trim_end_matches('\0').replace(char::is_control, "?"));
    who.filter(|who| !who.is_empty()).unwrap_or_else(|| "somebody".into())
}

/// Encodes the sectors of a `Slate` as an object.
pub(crate) fn slate(sectors: &[u8], random: u128) -> Vec<u8> {
    let there = || sectors.chunks(SECTOR_LEN).zip(0u64..).filter(|(sector, _)| **sector != [0; SECTOR_LEN]);
    let mut bytes = SLATE.to_vec();
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((there().count() as u32).to_le_bytes());
    bytes.extend(random.to_le_bytes());
    for (sector, at) in there() {
        bytes.extend(at.to_le_bytes());
        bytes.extend(sector);
    }
    summed(bytes)
}

/// Decodes the object of a `Slate` with `count` sectors.
///
/// # Errors
/// The reason why it is invalid, for people.
pub(crate) fn sectors(bytes: &[u8], count: usize) -> Result<Vec<u8>, &'static str> {
    let broken = "the object `lease` is broken";
    if !bytes.starts_with(SLATE) {
        return Err("the object `lease` is not ours: something else lies below this prefix");
    }
    if bytes.get(8..12).is_some_and(|version| version != VERSION.to_le_bytes()) {
        return Err("a newer program has made the object `lease`, and is needed to read it");
    }
    let body = bytes.get(32..bytes.len().saturating_sub(8)).filter(|_| is_summed(bytes)).ok_or(broken)?;
    let parts = body.chunks(8 + SECTOR_LEN);
    if bytes[12..16] != (parts.len() as u32).to_le_bytes() {
        return Err(broken);
    }
    let (mut all, mut least) = (vec![0; count * SECTOR_LEN], 0);
    for part in parts {
        let (at, sector) =
            part.split_first_chunk().filter(|(_, sector)| sector.len() == SECTOR_LEN).ok_or(broken)?;
        let at = usize::try_from(u64::from_le_bytes(*at)).ok().filter(|at| (least..count).contains(at));
        let at = at.ok_or(broken)?;
        all[at * SECTOR_LEN..][..SECTOR_LEN].copy_from_slice(sector);
        least = at + 1;
    }
    Ok(all)
}

fn summed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = sum(&bytes);
    bytes.extend(sum.to_le_bytes());
    bytes
}

fn is_summed(bytes: &[u8]) -> bool {
    bytes.split_last_chunk::<8>().is_some_and(|(bytes, last)| sum(bytes).to_le_bytes() == *last)
}

/// Returns the FNV-1a sum with 64 bits.
fn sum(bytes: &[u8]) -> u64 {
    let step = |sum: u64, byte: &u8| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_objects_do() {
        let object =
            |epoch, number, first, count| SectorObject { id: ObjectId { epoch, number }, first, count };
        let all = [
            object(1, 0, 5, 1),
            object(1, 1, 0, 0xffff),
            object(0x10, 0, 3, 2),
            object(0x10, 9, 1 << 40, 16),
        ];
        assert_eq!(all[0].name(), "data/00000001-00000000-000000000005-0001");
        let names: Vec<String> = all.iter().map(SectorObject::name).collect();
        assert!(names.is_sorted());
        for (object, name) in all.iter().zip(&names) {
            assert_eq!(SectorObject::parse(name), Some(*object));
            assert!(object.id.before() < *name);
        }
        assert!(names[0] < all[1].id.before());
    }

    #[test]
    fn names_of_others_are_none() {
        for name in [
            "data/",
            "store",
            "data/00000001-00000000-000000000005-0000",
            "data/00000000-00000000-000000000005-0001",
            "data/00000001-00000000-000000000005-00010",
            "data/00000001-00000000-00000000005-0001",
            "data/00000001-00000000-000000000005-0001-",
            "data/+0000001-00000000-000000000005-0001",
            "data/0000000A-00000000-000000000005-0001",
        ] {
            assert_eq!(SectorObject::parse(name), None, "{name}");
        }
        assert_eq!(
            (claim_epoch("claim/0000000f"), claim_epoch("claim/f"), claim_epoch("x")),
            (Some(15), None, None)
        );
    }

    #[test]
    fn a_store_says_what_it_is() {
        let about = StoreHeader { identity: [7; 16], sectors: 1 << 37 };
        let bytes = about.encode();
        assert_eq!(StoreHeader::decode(&bytes), Ok(about));
        for (at, said) in [(0, "not ours"), (8, "newer"), (13, "newer"), (30, "broken"), (55, "broken")] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x40;
            assert!(StoreHeader::decode(&wrong).unwrap_err().contains(said), "{at}");
        }
        assert!(StoreHeader::decode(&bytes[..55]).is_err() && StoreHeader::decode(&[]).is_err());
        assert_eq!(claimant(&claim(3, 9, "glenda on gnot")), "glenda on gnot");
        assert_eq!(claimant(b"x"), "somebody");
    }

    #[test]
    fn a_slate_is_what_was_put_there_or_nothing() {
        let mut all = vec![0; 32 * SECTOR_LEN];
        assert_eq!(sectors(&slate(&all, 7), 32).unwrap(), all);
        all[5 * SECTOR_LEN..6 * SECTOR_LEN].fill(5);
        all[31 * SECTOR_LEN + 511] = 31;
        let bytes = slate(&all, 7);
        assert_eq!(bytes.len(), 32 + 2 * 520 + 8);
        assert_eq!(sectors(&bytes, 32).unwrap(), all);
        assert_eq!(sectors(&bytes, 31), Err("the object `lease` is broken"));
        for at in 0..bytes.len() {
            let mut wrong = bytes.clone();
            wrong[at] ^= 0x10;
            assert!(sectors(&wrong, 32).is_err() && sectors(&bytes[..at], 32).is_err(), "{at}");
        }
        // The sum is right, but the content is invalid.
        let with = |at: usize, byte: u8| {
            let mut wrong = bytes[..bytes.len() - 8].to_vec();
            wrong[at] = byte;
            sectors(&summed(wrong), 32)
        };
        assert!(with(16, 9).is_ok());
        for (at, byte) in [(8, 2), (12, 1), (12, 3), (32 + 520, 5), (32 + 520, 32), (39, 1)] {
            assert!(with(at, byte).is_err(), "{at}");
        }
    }
}
