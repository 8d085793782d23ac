//! Checks docs/disk.md byte by byte: reads the devices by the document alone, with its numbers and none of the code.
//! Also checks that the bytes on w never change between versions.

use std::collections::BTreeMap;
use std::sync::Arc;

use nine_block::Device;
use nine_proto::mode;

use super::{Bench, noise, ready};
use crate::fs::ROOT;

/// Bytes of a block here.
const B: usize = 8192;
/// Bytes of its content.
const P: usize = B - 64;
/// The first new address.
const NEW: u64 = 1 << 47;
/// CRC-32C of the segment of the first dump below: other bytes mean another format.
const SEGMENT: u32 = 0x176f_5012;

fn u16(bytes: &[u8], at: usize) -> usize {
    u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap()).into()
}

fn u32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

fn u64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Computes CRC-32C bit by bit.
fn crc(parts: &[&[u8]]) -> u32 {
    !parts.iter().flat_map(|part| part.iter()).fold(!0, |sum, byte| {
        (0..8).fold(sum ^ u32::from(*byte), |sum, _| (sum >> 1) ^ (0x82f6_3b78 & (sum & 1).wrapping_neg()))
    })
}

fn key(ino: u64, kind: u8, rest: &[u8]) -> Vec<u8> {
    [&ino.to_be_bytes()[..], &[kind], rest].concat()
}

/// The bytes of both devices.
struct Image {
    c: Vec<u8>,
    w: Vec<u8>,
}

/// The valid header of c with the largest number.
struct Header<'a>(&'a [u8]);

impl Image {
    fn of(bench: &Bench) -> Self {
        let all = |device: &Arc<dyn Device>| ready(device.read(0, device.shape().sectors)).unwrap().to_vec();
        Self { c: all(&bench.c), w: all(&bench.w) }
    }

    fn header(&self) -> Header<'_> {
        let last = self.c.len() / B * B - B;
        let copies = [0, 8 * 512, last, last + 8 * 512].map(|at| &self.c[at..at + 4096]);
        let right = copies
            .into_iter()
            .filter(|copy| copy.starts_with(b"9foldC\0\0") && u32(copy, 4092) == crc(&[&copy[..4092]]));
        Header(right.max_by_key(|copy| u64(copy, 40)).expect("a header is right"))
    }

    /// Returns the block at an address, after checking its generation and kind.
    fn block(&self, at: u64, generation: u32, kinds: &[u8]) -> &[u8] {
        let (block, sum) = match at.checked_sub(NEW) {
            None => (&self.w[at as usize * B..][..B], None),
            Some(row) => {
                let header = self.header().0;
                let (rows, slots) = (u64(header, 72) as usize * B, u64(header, 120) as usize * B);
                let (sector, n) = ((row / 31) as usize, (row % 31) as usize);
                let bytes = &self.c[rows + sector * 512..][..512];
                assert_eq!(u32(bytes, 0), crc(&[&(sector as u64).to_le_bytes(), &bytes[12..]]));
                let row = &bytes[16 + 16 * n..][..16];
                let (slot, what) = (u64(row, 0) & ((1 << 56) - 1), row[7]);
                assert_eq!((what, u32(row, 8)), (1, generation), "it is on c, in a slot");
                (&self.c[slots + slot as usize * B..][..B], Some(u32(row, 12)))
            }
        };
        let tag = &block[P..];
        assert_eq!(u32(tag, 60), crc(&[&block[..B - 4]]));
        assert!(sum.is_none_or(|sum| sum == u32(tag, 60)));
        assert!(kinds.contains(&tag[0]), "a block of kind {}", tag[0]);
        assert_eq!((tag[1], u16(tag, 2), u32(tag, 4), u64(tag, 8)), (1, 0, generation, at));
        assert_eq!(tag[32..48], [7; 16]);
        assert_eq!(tag[48..60], [0; 12]);
        &block[..P]
    }

    /// Collects all keys of a tree and their values.
    fn tree(&self, root: u64, generation: u32, into: &mut BTreeMap<Vec<u8>, Vec<u8>>) {
        let node = self.block(root, generation, &[2, 3]);
        assert_eq!(node[7..16], [0; 9]);
        for n in 0..u16(node, 0) {
            let cell = &node[u16(node, 16 + 2 * n)..];
            let (key, value) = cell[4..].split_at(u16(cell, 0));
            let value = &value[..u16(cell, 2)];
            match node[6] {
                0 => assert!(into.insert(key.to_vec(), value.to_vec()).is_none()),
                _ => self.tree(u64(value, 0), u32(value, 8), into),
            }
        }
    }

    /// Returns the content of a file in the root.
    fn file(&self, tree: &BTreeMap<Vec<u8>, Vec<u8>>, name: &str) -> Vec<u8> {
        let entry = &tree[&key(1, 3, name.as_bytes())];
        let (ino, cookie) = (u64(entry, 0), u64(entry, 8));
        let named = &tree[&key(1, 4, &cookie.to_be_bytes())];
        assert_eq!((u64(named, 0), named[8], &named[9..]), (ino, entry[16], name.as_bytes()));
        let attributes = &tree[&key(ino, 1, &[])];
        assert_eq!(u32(attributes, 0) >> 12, u32::from(entry[16]));
        assert_eq!(u64(attributes, 40), 1, "it was entered in the root");
        let size = u64(attributes, 24) as usize;
        let mut content = tree.get(&key(ino, 2, &[])).cloned().unwrap_or_default();
        content.resize(size, 0);
        let mut blocks = 0;
        for (key, extent) in tree.range(key(ino, 6, &[])..key(ino, 7, &[])) {
            let first = u64::from_be_bytes(key[9..].try_into().unwrap());
            for n in 0..u64::from(u32(extent, 8)) {
                let block = self.block(u64(extent, 0) + n, u32(extent, 12), &[1]);
                let (from, to) = ((first + n) as usize * P, ((first + n) as usize * P + P).min(size));
                content[from..to].copy_from_slice(&block[..to - from]);
                blocks += 1;
            }
        }
        assert_eq!(u64(attributes, 112), blocks);
        content
    }
}

#[test]
fn what_lies_on_the_devices_is_what_the_document_says() {
    let mut bench = Bench::new(1 << 15, B as u32, true);
    let short = bench.make(ROOT, "short", mode::S_IFREG);
    bench.write(short, 0, b"inline");
    let long = bench.make(ROOT, "long", mode::S_IFREG);
    bench.write(long, 0, &noise(3, 100_000));
    bench.write(long, 300_000, b"behind a hole");
    let mut expected = noise(3, 100_000);
    expected.resize(300_000, 0);
    expected.extend_from_slice(b"behind a hole");
    let link = bench.make(ROOT, "directory", mode::S_IFDIR);
    bench.make(link, "below", mode::S_IFIFO);
    let first = bench.dump();
    bench.copied();
    bench.settle();
    bench.write(short, 0, b"other.");
    bench.dump();
    bench.copied();
    bench.settle();
    bench.write(long, 0, b"Since then");
    let archive = bench.archive.clone();
    bench.run(archive.close()).unwrap();
    let image = Image::of(&bench);

    // w: its label, twice.
    for at in [0, 1] {
        let label = image.block(at, 0, &[5]);
        assert_eq!(label[..8], *b"9foldW\0\0");
        assert_eq!([8, 12, 16, 20].map(|at| u32(label, at)), [1, 0, 0, B as u32]);
        assert_eq!((&label[24..40], u64(label, 40)), (&[7; 16][..], 1_795_000_000));
        assert_eq!(label[52..60], *b"test\0\0\0\0");
    }

    // The first dump, from w alone.
    let one = image.block(2, first.generation, &[4]);
    assert_eq!(one[..8], *b"9foldS\0\0");
    assert_eq!((u32(one, 8), u32(one, 12), u64(one, 56), u32(one, 52)), (1, first.generation, 0, 0));
    assert_eq!((u64(one, 32), u16(one, 44), one[46], one[47]), (first.time.sec as u64, 2026, 11, 18));
    let (next, blocks) = (u64(one, 64), u64(one, 80));
    assert_eq!(next, 2 + blocks);
    assert_eq!(image.block(next - 1, first.generation, &[4]), one);
    let mut tree = BTreeMap::new();
    image.tree(u64(one, 16), u32(one, 24), &mut tree);
    assert_eq!(image.file(&tree, "short"), b"inline");
    assert!(image.file(&tree, "long") == expected);
    assert_eq!(tree[&key(1, 3, b"directory")][16], 4);

    // The second dump points back to it.
    let two = image.block(next, first.generation + 1, &[4]);
    assert_eq!((u64(two, 56), u64::from(u32(two, 52))), (2, blocks));
    let mut tree = BTreeMap::new();
    image.tree(u64(two, 16), u32(two, 24), &mut tree);
    assert_eq!(image.file(&tree, "short"), b"other.");
    let record = &tree[&key(0, 17, &first.generation.to_be_bytes())];
    assert_eq!([0, 36, 44].map(|at| u64(record, at)), [u64(one, 16), 2, blocks]);

    // The present state, from c and w.
    let header = image.header().0;
    assert_eq!([8, 12, 16, 20].map(|at| u32(header, at)), [1, 0, 0, B as u32]);
    let fields = &header[160..160 + u32(header, 156) as usize];
    assert_eq!((u32(fields, 0), u32(fields, 4)), (first.generation + 2, 0));
    assert_eq!([32, 40].map(|at| u64(fields, at)), [u64(two, 64), next]);
    assert_eq!((u32(fields, 48), u64::from(u32(fields, 52))), (first.generation + 1, u64(two, 80)));
    let mut tree = BTreeMap::new();
    image.tree(u64(fields, 8), u32(fields, 16), &mut tree);
    expected[..10].copy_from_slice(b"Since then");
    assert!(image.file(&tree, "long") == expected);
    assert_eq!(image.file(&tree, "short"), b"other.");

    let segment = crc(&[&image.w[2 * B..next as usize * B]]);
    assert_eq!(
        segment, SEGMENT,
        "what is on disks that were made before would be read otherwise: {segment:#x}"
    );
}
