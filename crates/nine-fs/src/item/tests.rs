//! Agreed encodings, and decoding of valid, invalid and random bytes.

use nine_proto::Time;

use super::*;
use crate::date::Day;
use crate::ptr::{NEW, Ptr};

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

    fn ptr(&mut self) -> Ptr {
        let at = if self.below(2) == 0 { 0 } else { NEW } + self.below(1 << 46);
        Ptr { at, made: self.u32().max(1) }
    }

    fn kind(&mut self) -> u8 {
        [1, 2, 4, 6, 8, 10, 12][self.below(7) as usize]
    }

    /// A name without zero bytes.
    fn name(&mut self) -> Vec<u8> {
        (0..=self.below(255)).map(|_| 1 + self.below(255) as u8).collect()
    }

    fn attributes(&mut self) -> Attributes {
        Attributes {
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
            day: Day { year: self.below(10_000) as u16, month, day },
            number: self.u32(),
            segment: self.u64(),
            blocks: self.u64(),
        }
    }
}

#[test]
fn keys_are_the_bytes_that_were_agreed() {
    assert_eq!(*Key::attributes(0x0102), *b"\0\0\0\0\0\0\x01\x02\x01");
    assert_eq!(*Key::inline(5), *b"\0\0\0\0\0\0\0\x05\x02");
    assert_eq!(*Key::name(1, b"adm"), *b"\0\0\0\0\0\0\0\x01\x03adm");
    assert_eq!(*Key::cookie(1, 0x0304), *b"\0\0\0\0\0\0\0\x01\x04\0\0\0\0\0\0\x03\x04");
    assert_eq!(*Key::xattr(7, b"user.a", 3), *b"\0\0\0\0\0\0\0\x07\x05user.a\0\0\x03");
    assert_eq!(*Key::extent(9, 256), *b"\0\0\0\0\0\0\0\x09\x06\0\0\0\0\0\0\x01\0");
    assert_eq!(*Key::orphan(9), *b"\0\0\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\x09");
    assert_eq!(*Key::dump(0x0102_0304), *b"\0\0\0\0\0\0\0\0\x11\x01\x02\x03\x04");
    assert_eq!(*Key::usage(1000), *b"\0\0\0\0\0\0\0\0\x12\0\0\x03\xe8");
    assert_eq!(*Key::end(5), *b"\0\0\0\0\0\0\0\x05\xff");
    assert_eq!(*Key::end_of(5, Kind::Xattr), *b"\0\0\0\0\0\0\0\x05\x06");
}

#[test]
fn values_are_the_bytes_that_were_agreed() {
    let time = |sec| Time { sec, nsec: 0x0102_0304 };
    let attributes = Attributes {
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
    assert_eq!(Attributes::decode(bytes), Some(attributes));

    let extent = Extent { at: Ptr { at: NEW + 0x0201, made: 7 }, count: 300 };
    assert_eq!(extent.encode(), *b"\x01\x02\0\0\0\x80\0\0\x2c\x01\0\0\x07\0\0\0");

    let entry = Entry { ino: 2, cookie: 3, kind: 4 };
    assert_eq!(entry.encode(), *b"\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04");

    let named = Named { ino: 2, kind: 8, name: b"users" };
    assert_eq!(named.encode(), *b"\x02\0\0\0\0\0\0\0\x08users");

    let root = Ptr { at: 0x1122, made: 9 };
    let day = Day { year: 2026, month: 11, day: 21 };
    let dump = DumpRecord { root, time: time(1), day, number: 1, segment: 2, blocks: 3 };
    let bytes = b"\x22\x11\0\0\0\0\0\0\x09\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x04\x03\x02\x01\
        \xea\x07\x0b\x15\x01\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0";
    assert_eq!(dump.encode(), *bytes);

    let usage = Usage { bytes: 0x0100, most: 2 };
    assert_eq!(usage.encode(), *b"\0\x01\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
}

#[test]
fn what_was_written_is_read() {
    let dice = &mut Dice(1);
    for _ in 0..2000 {
        let name = dice.name();
        let ino = dice.u64().max(1);
        for what in [
            What::Attributes(ino),
            What::Inline(ino),
            What::Name(ino, &name),
            What::Cookie(ino, dice.u64()),
            What::Xattr(ino, &name, dice.below(64) as u16),
            What::Extent(ino, dice.below(1 << 52)),
            What::Orphan(ino),
            What::Dump(dice.u32().max(1)),
            What::Usage(dice.u32()),
        ] {
            assert_eq!(Key::parse(&what.key()), Some(what));
        }
        let attributes = dice.attributes();
        assert_eq!(Attributes::decode(&attributes.encode()), Some(attributes));
        let extent = Extent { at: dice.ptr(), count: 1 + dice.below(4096) as u32 };
        assert_eq!(Extent::decode(&extent.encode()), Some(extent));
        let entry = Entry { ino, cookie: dice.u64(), kind: dice.kind() };
        assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        let named = Named { ino, kind: dice.kind(), name: &name };
        assert_eq!(Named::decode(&named.encode()), Some(named));
        let dump = dice.dump();
        assert_eq!(DumpRecord::decode(&dump.encode()), Some(dump));
        let usage = Usage { bytes: dice.u64() >> 1, most: dice.u64() };
        assert_eq!(Usage::decode(&usage.encode()), Some(usage));
    }
}

#[test]
fn what_could_not_be_counted_further_is_none() {
    let right = Dice(1).attributes();
    for wrong in [
        Attributes { links: u32::MAX, ..right },
        Attributes { version: u64::MAX, ..right },
        Attributes { cookies: u64::MAX, ..right },
        Attributes { blocks: NEW, ..right },
    ] {
        assert_eq!(Attributes::decode(&wrong.encode()), None, "{wrong:?}");
    }
    assert_eq!(Usage::decode(&Usage { bytes: u64::MAX, most: 0 }.encode()), None);
    assert_eq!(Key::parse(&Key::extent(5, u64::MAX)), None);
}

#[test]
fn keys_lie_in_the_order_of_their_numbers() {
    let rising = [
        Key::start_of(0, Kind::Orphan),
        Key::orphan(1),
        Key::orphan(256),
        Key::end_of(0, Kind::Orphan),
        Key::dump(1),
        Key::dump(0x0100),
        Key::usage(0),
        Key::usage(u32::MAX),
        Key::end(0),
        Key::start(5),
        Key::attributes(5),
        Key::inline(5),
        Key::name(5, b"a"),
        Key::name(5, b"a\0"),
        Key::name(5, b"ab"),
        Key::name(5, &[255; 255]),
        Key::end_of(5, Kind::Name),
        Key::cookie(5, 0),
        Key::cookie(5, u64::MAX),
        Key::start_of(5, Kind::Xattr),
        Key::xattr(5, b"a", 0),
        Key::xattr(5, b"a", 63),
        Key::xattr(5, b"a\x01", 0),
        Key::xattr(5, b"b", 0),
        Key::end_of(5, Kind::Xattr),
        Key::extent(5, 0),
        Key::extent(5, 255),
        Key::extent(5, 256),
        Key::extent(5, u64::MAX),
        Key::end_of(5, Kind::Extent),
        Key::end(5),
        Key::start(6),
        Key::attributes(6),
        Key::attributes(256),
        Key::start(u64::MAX),
        Key::extent(u64::MAX, u64::MAX),
        Key::end(u64::MAX),
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
            (Kind::Attributes, Key::attributes(ino)),
            (Kind::Inline, Key::inline(ino)),
            (Kind::Name, Key::name(ino, &name)),
            (Kind::Cookie, Key::cookie(ino, dice.u64())),
            (Kind::Xattr, Key::xattr(ino, &name, dice.below(64) as u16)),
            (Kind::Extent, Key::extent(ino, dice.u64())),
        ];
        for (kind, key) in keys {
            assert!(*Key::start_of(ino, kind) <= *key && *key < *Key::end_of(ino, kind), "{key:?}");
            assert!(*Key::start(ino) < *key && *key < *Key::end(ino), "{key:?}");
            assert!(*Key::end(ino - 1) < *key && *key < *Key::start(ino + 1), "{key:?}");
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
        assert_eq!(Key::parse(key), None, "{key:02x?}");
    }
    let mut long = Key::start_of(1, Kind::Name).to_vec();
    long.resize(long.len() + 256, b'a');
    assert_eq!(Key::parse(&long), None);

    let dice = &mut Dice(3);
    let attributes = dice.attributes();
    let bad = |change: fn(&mut Attributes)| {
        let mut other = attributes;
        change(&mut other);
        assert_eq!(Attributes::decode(&other.encode()), None, "{other:?}");
    };
    bad(|a| a.mode = 0o644);
    bad(|a| a.mode = 0o030_644);
    bad(|a| a.mode |= 1 << 16);
    bad(|a| a.flags = 64);
    bad(|a| a.size = 1 << 63);
    bad(|a| a.btime.nsec = 1_000_000_000);
    assert_eq!(Attributes::decode(&attributes.encode()[..119]), None);
    assert_eq!(Attributes::decode(&[&attributes.encode()[..], b"\0"].concat()), None);

    let extent = |at, count, made| Extent::decode(&Extent { at: Ptr { at, made }, count }.encode());
    assert_eq!(extent(5, 0, 1), None);
    assert_eq!(extent(5, 4097, 1), None);
    assert_eq!(extent(5, 1, 0), None);
    assert_eq!(extent(NEW - 1, 2, 1), None);
    assert_eq!(extent(u64::MAX, 1, 1), None);
    assert!(extent(NEW - 1, 1, 1).is_some() && extent(NEW, 4096, 1).is_some());

    assert_eq!(Entry::decode(&Entry { ino: 0, cookie: 1, kind: 8 }.encode()), None);
    assert_eq!(Entry::decode(&Entry { ino: 1, cookie: 1, kind: 3 }.encode()), None);
    assert_eq!(Named::decode(&Named { ino: 1, kind: 0, name: b"a" }.encode()), None);
    assert_eq!(Named::decode(&Named { ino: 1, kind: 8, name: b"" }.encode()), None);
    assert_eq!(Named::decode(&Named { ino: 1, kind: 8, name: &[b'a'; 256] }.encode()), None);

    let dump = dice.dump();
    for (byte, value) in [(12, 1), (30, 0), (30, 13), (31, 0), (31, 32)] {
        let mut bytes = dump.encode();
        bytes[byte] = value;
        assert_eq!(DumpRecord::decode(&bytes), None, "{value} at {byte}");
    }
    assert_eq!(Usage::decode(&[0; 15]), None);
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
        if let Some(what) = Key::parse(&bytes) {
            assert_eq!(*what.key(), *bytes);
        }
        let same = [
            Attributes::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            Extent::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            Entry::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            Named::decode(&bytes).is_none_or(|value| value.encode() == bytes),
            DumpRecord::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
            Usage::decode(&bytes).is_none_or(|value| value.encode()[..] == bytes),
        ];
        assert_eq!(same, [true; 6], "{bytes:02x?}");
    }
}

#[test]
fn an_extent_is_cut() {
    let extent = Extent { at: Ptr { at: NEW + 10, made: 3 }, count: 8 };
    assert_eq!(extent.split(0, 8), extent);
    assert_eq!(extent.split(7, 1), Extent { at: Ptr { at: NEW + 17, made: 3 }, count: 1 });
}
