//! ATA's identify block: a disk's description of itself (`docs/aoe.md`, Identify).

/// Length of the block in bytes.
pub const IDENTIFY: usize = 512;
/// Maximum number of sectors with 28-bit addresses.
const SHORT_MAX: u64 = 0x0fff_ffff;
/// Maximum number of sectors with 48-bit addresses.
const LONG_MAX: u64 = 1 << 48;
/// Bits of words 83 and 86.
const LONG: u16 = 1 << 10;
const FLUSH: u16 = 1 << 12;
const FLUSH_EXT: u16 = 1 << 13;
/// The vendor-specific words begin with this if Ninefold wrote them.
const MAGIC: [u8; 4] = *b"9aoe";

/// Properties of a disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identify {
    /// At most 20 bytes.
    pub serial: String,
    /// At most 8 bytes.
    pub firmware: String,
    /// At most 40 bytes.
    pub model: String,
    /// Number of sectors.
    pub sectors: u64,
    /// It supports 48-bit addresses.
    pub long: bool,
    /// It supports FLUSH CACHE.
    pub flush: bool,
    /// It supports FLUSH CACHE EXT.
    pub flush_ext: bool,
    /// Identifies the boot of the machine that serves the disk. After a change, unflushed writes may be lost. 0 if
    /// unknown.
    pub boot: u64,
}

impl Identify {
    /// Returns `None` if the data is too short.
    pub fn parse(data: &[u8]) -> Option<Self> {
        let block = data.first_chunk::<IDENTIFY>()?;
        let word = |at: usize| u16::from_le_bytes([block[at * 2], block[at * 2 + 1]]);
        let number = |at: usize, words: usize| {
            (at..at + words).rev().fold(0u64, |high, at| high << 16 | u64::from(word(at)))
        };
        // A feature counts if it is supported (word 83) and enabled (word 86).
        let bits = word(83) & word(86);
        let long = bits & LONG != 0;
        Some(Self {
            serial: text(&block[20..40]),
            firmware: text(&block[46..54]),
            model: text(&block[54..94]),
            // A frame cannot address more sectors.
            sectors: if long { number(100, 4).min(LONG_MAX) } else { number(60, 2).min(SHORT_MAX) },
            long,
            flush: bits & FLUSH != 0,
            flush_ext: bits & FLUSH_EXT != 0,
            boot: if block[258..262] == MAGIC { number(131, 4) } else { 0 },
        })
    }

    /// Encodes the block. Texts are truncated to their fields.
    pub fn bytes(&self) -> [u8; IDENTIFY] {
        let mut block = [0; IDENTIFY];
        put_text(&mut block[20..40], &self.serial);
        put_text(&mut block[46..54], &self.firmware);
        put_text(&mut block[54..94], &self.model);
        let mut put = |at: usize, word: u16| block[at * 2..at * 2 + 2].copy_from_slice(&word.to_le_bytes());
        let bit = |is: bool, bit: u16| if is { bit } else { 0 };
        let bits = bit(self.long, LONG) | bit(self.flush, FLUSH) | bit(self.flush_ext, FLUSH_EXT);
        for (at, word) in [(47, 0x8000), (49, 0x0200), (83, 0x4000 | bits), (84, 0x4000), (86, bits)] {
            put(at, word);
        }
        put(87, 0x4000);
        put(93, 0x400b);
        let short = self.sectors.min(SHORT_MAX);
        (0..2).for_each(|n| put(60 + n, (short >> (16 * n)) as u16));
        let sectors = self.sectors.min(LONG_MAX);
        (0..4).for_each(|n| put(100 + n, bit(self.long, (sectors >> (16 * n)) as u16)));
        if self.boot != 0 {
            (0..4).for_each(|n| put(131 + n, (self.boot >> (16 * n)) as u16));
            block[258..262].copy_from_slice(&MAGIC);
        }
        block
    }
}

/// Decodes a text field: swaps each pair of bytes and trims blanks. Other bytes than printable ASCII become `?`.
fn text(field: &[u8]) -> String {
    let pairs = field.as_chunks::<2>().0.iter().flat_map(|[a, b]| [*b, *a]);
    let shown = |byte: u8| if (b' '..=b'~').contains(&byte) { char::from(byte) } else { '?' };
    let whole: String = pairs.take_while(|byte| *byte != 0).map(shown).collect();
    whole.trim().to_string()
}

fn put_text(field: &mut [u8], text: &str) {
    let mut bytes =
        text.bytes().map(|byte| if byte.is_ascii() { byte } else { b'?' }).chain(std::iter::repeat(b' '));
    for pair in field.as_chunks_mut::<2>().0 {
        let mut next = || bytes.next().unwrap_or(b' ');
        let (first, second) = (next(), next());
        *pair = [second, first];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Identify {
        Identify {
            serial: "1.0:host".into(),
            firmware: "V23".into(),
            model: "Ninefold e1.0".into(),
            sectors: 0x0123_4567_89ab,
            long: true,
            flush: true,
            flush_ext: true,
            boot: 0x0102_0304_0506_0708,
        }
    }

    #[test]
    fn numbers_and_exchanged_text_are_where_ata_has_them() {
        let block = disk().bytes();
        assert_eq!(block[20..30], *b".1:0ohts  ");
        assert_eq!(block[46..54], *b"2V 3    ");
        assert_eq!(block[54..62], *b"iNenofdl");
        assert_eq!((&block[94..96], &block[98..100]), (&[0, 0x80][..], &[0, 2][..]));
        assert_eq!(block[120..124], [0xff, 0xff, 0xff, 0x0f]);
        assert_eq!((&block[166..168], &block[172..174]), (&[0, 0x74][..], &[0, 0x34][..]));
        assert_eq!(block[200..208], [0xab, 0x89, 0x67, 0x45, 0x23, 1, 0, 0]);
        assert_eq!(block[258..270], [b'9', b'a', b'o', b'e', 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(Identify::parse(&block), Some(disk()));
        assert_eq!(Identify::parse(&block[..511]), None);
    }

    #[test]
    fn a_disk_of_short_addresses_and_vblades_bits_are_understood() {
        let short = Identify { long: false, sectors: 5000, flush_ext: false, ..disk() };
        assert_eq!(Identify::parse(&short.bytes()), Some(short));
        let vblade = Identify { flush_ext: false, boot: 0, ..disk() };
        let block = vblade.bytes();
        assert_eq!((&block[166..168], &block[172..174]), (&[0, 0x54][..], &[0, 0x14][..]));
        assert_eq!((&block[258..512], Identify::parse(&block)), (&[0; 254][..], Some(vblade)));
    }

    #[test]
    fn text_that_is_too_long_is_cut_and_what_is_no_text_is_shown_as_such() {
        let long = Identify { serial: "x".repeat(50), model: "é".into(), ..disk() };
        let read = Identify::parse(&long.bytes()).expect("long enough");
        assert_eq!((read.serial, read.model.as_str()), ("x".repeat(20), "??"));
        assert_eq!(text(&[0xff; 20]), "?".repeat(20));
        assert_eq!(text(&[0; 20]), "");
    }
}
