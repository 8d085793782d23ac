//! Agreed encodings, and decoding of valid, invalid and random bytes.

use nine_proto::Time;

use super::*;
use crate::date::CalendarDay;
use crate::ptr::{BlockPtr, NEW};

/// Deterministic pseudorandom numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    fn below(&mut self, end: u64) -> u64 {
        self.u64() % end
    }

    fn time(&mut self) -> Time {
        Time { sec: self.u64() as i64, nsec: self.below(1_000_000_000) as u32 }
    }

    fn ptr(&mut self) -> BlockPtr {
        let at = if self.below(2) == 0 { 0 } else { NEW } + self.below(1 << 46);
        BlockPtr { at, made: self.u32().max(1) }
    }

    fn kind(&mut self) -> u8 {
        [1, 2, 4, 6, 8, 10, 12][self.below(7) as usize]
    }

    /// A name without zero bytes.
    fn name(&mut self) -> Vec<u8> {
        (0..=self.below(255)).map(|_| 1 + self.below(255) as u8).collect()
    }

    fn attributes(&mut self) -> InodeAttributes {
        InodeAttributes {
            mode: u32::from(self.kind()) << 12 | self.below(1 << 12) as u32,
            uid: self.u32(),
            gid: self.u32(),
            muid: self.u32(),
            links: self.u32() >> 2,
            flags: self.below(64) as u32,
            size: self.u64() >> 1,
            version: self.u64() >> 1,
            parent: self.u64(),
            major: self.u32(),
            minor: self.u32(),
            cookies: self.u64() >> 1,
            atime: self.time(),
            mtime: self.time(),
            ctime: self.time(),
            btime: self.time(),
            blocks: self.below(NEW),
        }
    }

    fn dump(&mut self) -> DumpRecord {
        let (month, day) = (1 + self.below(12) as u8, 1 + self.below(28) as u8);
        DumpRecord {
            root: self.ptr(),
            time: self.time(),
            day: CalendarDay { year: self.below(10_000) as u16, month, day },
            number: self.u32(),
            segment: self.u64(),
            blocks: self.u64(),
        }
    }
}

#[test]
fn keys_are_the_bytes_that_were_agreed() {
    assert_eq!(*ItemKey::attributes(0x0102), *b"\0\0\0\0\0\0\x01\x02\x01");
    assert_eq!(*ItemKey::inline(5), *b"\0\0\0\0\0\0\0\x05\x02");
    assert_eq!(*ItemKey::name(1, b"adm"), *b"\0\0\0\0\0\0\0\x01\x03adm");
    assert_eq!(*ItemKey::cookie(1, 0x0304), *b"\0\0\0\0\0\0\0\x01\x04\0\0\0\0\0\0\x03\x04");
    assert_eq!(*ItemKey::xattr(7, b"user.a", 3), *b"\0\0\0\0\0\0\0\x07\x05user.a\0\0\x03");
    assert_eq!(*ItemKey::extent(9, 256), *b"\0\0\0\0\0\0\0\x09\x06\0\0\0\0\0\0\x01\0");
    assert_eq!(*ItemKey::orphan(9), *b"\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x09");
    assert_eq!(*ItemKey::dump(0x0102_0304), *b"\0\0\0\0\0\0\0\0\x11\x01\x02\x03\x04");
    assert_eq!(*ItemKey::usage(1000), *b"\0\0\0\0\0\0\0\0\x12\0\0\x03\xe8");
    assert_eq!(*ItemKey::end(5), *b"\0\0\0\0\0\0\0\x05\xff");
    assert_eq!(*ItemKey::end_of(5, ItemKind::Xattr), *b"\0\0\0\0\0\0\0\x05\x06");
}

#[test]
fn values_are_the_bytes_that_were_agreed() {
    let time = |sec| Time { sec, nsec: 0x0102_0304 };
    let attributes = InodeAttributes {
        mode: 0o100_644,
        uid: 1000,
        gid: 10_001,
        muid: 1,
        links: 2,
        flags: 1,
        size: 0x1234,
        version: 3,
        parent: 4,
        major: 5,
        minor: 6,
        cookies: 7,
        atime: time(8),
        mtime: time(9),
        ctime: time(10),
        btime: time(-1),
        blocks: 11,
    };
    let bytes = b"\xa4\x81\0\0\xe8\x03\0\0\x11\x27\0\0\x01\0\0\0\x02\0\0\0\x01\0\0\0\
        \x34\x12\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x05\0\0\0\x06\0\0\0\x07\0\0\0\0\0\0\0\
        \x08\0\0\0\0\0\0\0\x04\x03\x02\x01\x09\0\0\0\0\0\0\0\x04\x03\x02\x01\
        \x0a\0\0\0\0\0\0\0\x04\x03\x02\x01\xff\xff\xff\xff\xff\xff\xff\xff\x04\x03\x02\x01\
        \x0b\0\0\0\0\0\0\0";
    assert_eq!(attributes.encode(), *bytes);
    assert_eq!(InodeAttributes::decode(bytes), Some(attributes));

    let extent = FileExtent { at: BlockPtr { at: NEW + 0x0201, made: 7 }, count: 300 };
    assert_eq!(extent.encode(), *b"\x01\x02\0\0\0\x80\0\0\x2c\x01\0\0\x07\0\0\0");

    let entry = NameEntry { ino: 2, cookie: 3, kind: 4 };
    assert_eq!(entry.encode(), *b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04");

    let named = CookieEntry { ino: 2, kind: 8, name: b"users" };
    assert_eq!(named.encode(), *b"\x02\0\0\0\0\0\0\0\x08users");

    let root = BlockPtr { at: 0x1122, made: 9 };
    let day = CalendarDay { year: 2026, month: 11, day: 21 };
    let dump = DumpRecord { root, time: time(1), day, number: 1, segment: 2, blocks: 3 };
    let bytes = b"\x22\x11\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x04\x03\x02\x01\
        \xea\x07\x0b\x15\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
    assert_eq!(dump.encode(), *bytes);

    let usage = UserUsage { bytes: 0x0100, most: 2 };
    assert_eq!(usage.encode(), *b"\0\x01\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
}

#[test]
fn what_was_written_is_read() {
    let dice = &mut Dice(1);
    for _ in 0..2000 {
        let name = dice.name();
        let ino = dice.u64().max(1);
        for what in [
            DecodedKey::Attributes(ino),
            DecodedKey::Inline(ino),
            DecodedKey::Name(ino, &name),
            DecodedKey::Cookie(ino, dice.u64()),
            DecodedKey::Xattr(ino, &name, dice.below(64) as u16),
            DecodedKey::Extent(ino, dice.below(1 << 52)),
            DecodedKey::Orphan(ino),
            DecodedKey::Dump(dice.u32().max(1)),
            DecodedKey::Usage(dice.u32()),
        ] {
            assert_eq!(ItemKey::parse(&what.key()), Some(what));
        }
        let attributes = dice.attributes();
        assert_eq!(InodeAttributes::decode(&attributes.encode()), Some(attributes));
        let extent = FileExtent { at: dice.ptr(), count: 1 + dice.below(4096) as u32 };
        assert_eq!(FileExtent::decode(&extent.encode()), Some(extent));
        let entry = NameEntry { ino, cookie: dice.u64(), kind: dice.kind() };
        assert_eq!(NameEntry::decode(&entry.encode()), Some(entry));
        let named = CookieEntry { ino, kind: dice.kind(), name: &name };
        assert_eq!(CookieEntry::decode(&named.encode()), Some(named));
        let dump = dice.dump();
        assert_eq!(DumpRecord::decode(&dump.encode()), Some(dump));
        let usage = UserUsage { bytes: dice.u64() >> 1, most: dice.u64() };
        assert_eq!(UserUsage::decode(&usage.encode()), Some(usage));
    }
}

#[test]
fn what_could_not_be_counted_further_is_none() {
    let right = Dice(1).attributes();
    for wrong in [
        InodeAttributes { links: u32::MAX, ..right },
        InodeAttributes { version: u64::MAX, ..right },
        InodeAttributes { cookies: u64::MAX, ..right },
        InodeAttributes { blocks: NEW, ..right },
    ] {
        assert_eq!(InodeAttributes::decode(&wrong.encode()), None, "{wrong:?}");
    }
    assert_eq!(UserUsage::decode(&UserUsage { bytes: u64::MAX, most: 0 }.encode()), None);
    assert_eq!(ItemKey::parse(&ItemKey::extent(5, u64::MAX)), None);
}

#[test]
fn keys_lie_in_the_order_of_their_numbers() {
    let rising = [
        ItemKey::start_of(0, ItemKind::Orphan),
        ItemKey::orphan(1),
        ItemKey::orphan(256),
        ItemKey::end_of(0, ItemKind::Orphan),
        ItemKey::dump(1),
        ItemKey::dump(0x0100),
        ItemKey::usage(0),
        ItemKey::usage(u32::MAX),
        ItemKey::end(0),
        ItemKey::start(5),
        ItemKey::attributes(5),
        ItemKey::inline(5),
        ItemKey::name(5, b"a"),
        ItemKey::name(5, b"a\0"),
        ItemKey::name(5, b"ab"),
        ItemKey::name(5, &[255; 255]),
        ItemKey::end_of(5, ItemKind::Name),
        ItemKey::cookie(5, 0),
        ItemKey::cookie(5, u64::MAX),
        ItemKey::start_of(5, ItemKind::Xattr),
        ItemKey::xattr(5, b"a", 0),
        ItemKey::xattr(5, b"a", 63),
        ItemKey::xattr(5, b"a\x01", 0),
        ItemKey::xattr(5, b"b", 0),
        ItemKey::end_of(5, ItemKind::Xattr),
        ItemKey::extent(5, 0),
        ItemKey::extent(5, 255),
        ItemKey::extent(5, 256),
        ItemKey::extent(5, u64::MAX),
        ItemKey::end_of(5, ItemKind::Extent),
        ItemKey::end(5),
        ItemKey::start(6),
        ItemKey::attributes(6),
        ItemKey::attributes(256),
        ItemKey::start(u64::MAX),
        ItemKey::extent(u64::MAX, u64::MAX),
        ItemKey::end(u64::MAX),
    ];
    for (i, two) in rising.windows(2).enumerate() {
        // The end of a kind may equal the start of the next.
        assert!(*two[0] <= *two[1], "{i}: {:?} and {:?}", two[0], two[1]);
    }
}

#[test]
fn by_chance_too_an_inode_lies_between_its_ends() {
    let dice = &mut Dice(2);
    for _ in 0..2000 {
        let (ino, name) = (1 + dice.below(1 << 44), dice.name());
        let keys = [
            (ItemKind::Attributes, ItemKey::attributes(ino)),
            (ItemKind::Inline, ItemKey::inline(ino)),
            (ItemKind::Name, ItemKey::name(ino, &name)),
            (ItemKind::Cookie, ItemKey::cookie(ino, dice.u64())),
            (ItemKind::Xattr, ItemKey::xattr(ino, &name, dice.below(64) as u16)),
            (ItemKind::Extent, ItemKey::extent(ino, dice.u64())),
        ];
        for (kind, key) in keys {
            assert!(*ItemKey::start_of(ino, kind) <= *key && *key < *ItemKey::end_of(ino, kind), "{key:?}");
            assert!(*ItemKey::start(ino) < *key && *key < *ItemKey::end(ino), "{key:?}");
            assert!(*ItemKey::end(ino - 1) < *key && *key < *ItemKey::start(ino + 1), "{key:?}");
        }
    }
}

#[test]
fn what_was_never_written_is_nothing() {
    let bad_keys: [&[u8]; 16] = [
        b"",
        b"\0\0\0\0\0\0\0\x01",
        b"\0\0\0\0\0\0\0\0\x01",
        b"\0\0\0\0\0\0\0\x01\0",
        b"\0\0\0\0\0\0\0\x01\x07",
        b"\0\0\0\0\0\0\0\x01\x10\0\0\0\0\0\0\0\x01",
        b"\0\0\0\0\0\0\0\x01\x01\0",
        b"\0\0\0\0\0\0\0\x01\x03",
        b"\0\0\0\0\0\0\0\x01\x04\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\x01\x05\0\0\0",
        b"\0\0\0\0\0\0\0\x01\x05a\0\0",
        b"\0\0\0\0\0\0\0\x01\x05a\0b\0\0\0",
        b"\0\0\0\0\0\0\0\x01\x05a\0\0\x40",
        b"\0\0\0\0\0\0\0\x01\x06\0\0\0\0\0\0\0\0\0",
        b"\0\0\0\0\0\0\0\0\x11\0\0\0\0",
        b"\0\0\0\0\0\0\0\0\x12\0\0\0",
    ];
    for key in bad_keys {
        assert_eq!(ItemKey::parse(key), None, "{key:02x?}");
    }
    let mut long = ItemKey::start_of(1, ItemKind::Name).to_vec();
    long.resize(long.len() + 256, b'a');
    assert_eq!(ItemKey::parse(&long), None);

    let dice = &mut Dice(3);
    let attributes = dice.attributes();
    let bad = |change: fn(&mut InodeAttributes)| {
        let mut other = attributes;
        change(&mut other);
        assert_eq!(InodeAttributes::decode(&other.encode()), None, "{other:?}");
    };
    bad(|a| a.mode = 0o644);
    bad(|a| a.mode = 0o030_644);
    bad(|a| a.mode |= 1 << 16);
    bad(|a| a.flags = 64);
    bad(|a| a.size = 1 << 63);
    bad(|a| a.btime.nsec = 1_000_000_000);
    assert_eq!(InodeAttributes::decode(&attributes.encode()[..119]), None);
    assert_eq!(InodeAttributes::decode(&[&attributes.encode()[..], b"\0"].concat()), None);

    let extent =
        |at, count, made| FileExtent::decode(&FileExtent { at: BlockPtr { at, made }, count }.encode());
    assert_eq!(extent(5, 0, 1), None);
    assert_eq!(extent(5, 4097, 1), None);
    assert_eq!(extent(5, 1, 0), None);
    assert_eq!(extent(NEW - 1, 2, 1), None);
    assert_eq!(extent(u64::MAX, 1, 1), None);
    assert!(extent(NEW - 1, 1, 1).is_some() && extent(NEW, 4096, 1).is_some());

    assert_eq!(NameEntry::decode(&NameEntry { ino: 0, cookie: 1, kind: 8 }.encode()), None);
    assert_eq!(NameEntry::decode(&NameEntry { ino: 1, cookie: 1, kind: 3 }.encode()), None);
    assert_eq!(CookieEntry::decode(&CookieEntry { ino: 1, kind: 0, name: b"a" }.encode()), None);
    assert_eq!(CookieEntry::decode(&CookieEntry { ino: 1, kind: 8, name: b"" }.encode()), None);
    assert_eq!(CookieEntry::decode(&CookieEntry { ino: 1, kind: 8, name: &[b'a'; 256] }.encode()), None);

    let dump = dice.dump();
    for (byte, value) in [(12, 1), (30, 0), (30, 13), (31, 0), (31, 32)] {
        let mut bytes = dump.encode();
        bytes[byte] = value;
        assert_eq!(DumpRecord::decode(&bytes), None, "{value} at {byte}");
    }
    assert_eq!(UserUsage::decode(&[0; 15]), None);
}

#[test]
fn any_bytes_are_something_or_nothing() {
    let dice = &mut Dice(4);
    for round in 0..200_000 {
        let len = [9, 12, 16, 17, 52, 120, dice.below(320)][round % 7];
        let mut bytes: Vec<u8> = (0..len).map(|_| dice.u32() as u8).collect();
        if bytes.len() > 8 && round % 2 == 0 {
            bytes[..8].fill((round % 3 % 2) as u8);
            bytes[8] %= 20;
        }
        if let Some(what) = ItemKey::parse(&bytes) {
            assert_eq!(*what.key(), *bytes);
        }
        let same = [
            InodeAttributes::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            FileExtent::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            NameEntry::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            CookieEntry::decode(&bytes).is_none_or(|value| value.encode() == bytes),
            DumpRecord::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            UserUsage::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
        ];
        assert_eq!(same, [true; 6], "{bytes:02x?}");
    }
}

#[test]
fn an_extent_is_cut() {
    let extent = FileExtent { at: BlockPtr { at: NEW + 10, made: 3 }, count: 8 };
    assert_eq!(extent.split(0, 8), extent);
    assert_eq!(extent.split(7, 1), FileExtent { at: BlockPtr { at: NEW + 17, made: 3 }, count: 1 });
}
