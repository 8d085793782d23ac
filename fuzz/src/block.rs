//! Disks: expressions, and the labels of mirrors and fake worms.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nine_block::{Device, FakeWorm, Mirror, Ram, SECTOR, Start, parse};

const WORDS: [&str; 2] = ["ram", "store"];

/// Arbitrary text, and text made of the tokens of expressions. It either parses, and its printed form means the same,
/// or the error has a valid position.
pub fn expr(data: &[u8]) {
    check(&String::from_utf8_lossy(data));
    check(&data.iter().map(|&byte| PIECES[usize::from(byte) % PIECES.len()]).collect::<String>());
}

fn check(text: &str) {
    match parse(text, &WORDS) {
        Ok(tree) => {
            let shown = tree.to_string();
            match parse(&shown, &WORDS) {
                Ok(again) => assert_eq!((&again, again.to_string()), (&tree, shown), "{text:?}"),
                // The printed form may be longer: blanks, parentheses of partitions, and expanded iterators.
                Err(wrong) => assert!(
                    wrong.text.contains("at most") || wrong.text.starts_with("more than"),
                    "{text:?} {wrong}"
                ),
            }
        }
        Err(wrong) => {
            assert!(text.is_char_boundary(wrong.at), "{text:?} {wrong:?}");
            assert!((1..=text.chars().count() + 1).contains(&wrong.column()), "{text:?} {wrong:?}");
            assert_eq!(wrong.to_string().lines().count(), 3, "{wrong}");
        }
    }
}

const PIECES: &[&str] = &[
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "p",
    "f",
    "x",
    "c",
    "j",
    "o",
    "n",
    "w",
    "e",
    "ro",
    "ram",
    "bare",
    "store",
    "buffer ",
    "64M",
    "<",
    ">",
    "-",
    ".",
    "\"",
    "/",
    " ",
    "0",
    "7",
    "99999999999999999999",
    "<0-3>",
    "<9-2>",
    "\u{e9}",
    "\n",
    "\u{0}",
    "w\"a\"",
    "e1.2",
    "{w0w1}",
    "p(w0)0.50",
];

/// Sectors of a disk: those before a mirror's data, and a few more.
const SECTORS: u64 = 400;
/// Maximum number of edits. With more, nothing is left of a label.
const EDITS: usize = 5;

/// Edits the labels of a mirror or a fake worm, with valid checksums. It must open or be refused. If it opens, it can
/// be read and written.
pub fn labels(data: &[u8]) {
    let Some((&how, edits)) = data.split_first() else { return };
    let disks: Vec<Arc<dyn Device>> =
        (0..1 + usize::from(how & 1)).map(|_| Arc::new(Ram::new(SECTORS)) as _).collect();
    let start = [Start::Careful, Start::Anyway, Start::From(0), Start::From(1)][usize::from(how >> 1 & 3)];
    if how & 8 == 0 {
        now(Mirror::make_with(&disks, [7; 16], 8)).expect("they are large enough");
        edit(&disks, edits);
        let Ok(mirror) = now(Mirror::open(disks, start, Arc::new(|_| ()))) else { return };
        uses(Arc::new(mirror));
    } else {
        now(FakeWorm::make(disks[0].clone(), 1 + u32::from(how >> 4))).expect("it is large enough");
        edit(&disks[..1], edits);
        let Ok(worm) = now(FakeWorm::open(disks[0].clone())) else { return };
        uses(Arc::new(worm));
    }
}

/// Each edit has four bytes: the disk, the position in a label, and the new byte.
fn edit(disks: &[Arc<dyn Device>], edits: &[u8]) {
    for &[which, at, high, byte] in edits.as_chunks::<4>().0.iter().take(EDITS) {
        let disk = &disks[usize::from(which) % disks.len()];
        // The labels of mirrors and worms, and the first of a mirror's marks.
        let sector = [0, 8, 1, 8, 0, 8, 1, 64][usize::from(which >> 5)];
        let mut bytes = now(disk.read(sector, 1)).expect("it is there").to_vec();
        // Most edits concern the first fields.
        let most = if high < 192 { 88 } else { 504 };
        bytes[(usize::from(high & 1) << 8 | usize::from(at)) % most] = byte;
        let sum = bytes[..504].iter().fold(0xcbf2_9ce4_8422_2325u64, |sum, byte| {
            (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
        });
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        now(disk.write(sector, bytes.into())).expect("it is there");
    }
}

fn uses(device: Arc<dyn Device>) {
    let sectors = device.shape().sectors;
    assert!(sectors <= SECTORS, "{}", device.status());
    for at in [0, sectors / 2, sectors.saturating_sub(1)] {
        let _ = now(device.write(at, vec![1; SECTOR as usize].into()));
        let _ = now(device.read(at, 1));
    }
    let _ = now(device.flush());
    assert!(!device.status().is_empty());
}

/// Polls a future that never waits, because a disk in memory completes at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let mut cx = Context::from_waker(Waker::noop());
    for _ in 0..100 {
        if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
            return value;
        }
    }
    panic!("it waits for nothing");
}
