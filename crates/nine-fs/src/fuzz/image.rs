//! Archives on disks with changed bytes and valid sums. Such an archive is opened or refused; if it is opened, it is
//! used.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_block::{Ahead, Device, Ram};
use nine_proto::{SetAttr, Time, mode};

use crate::archive::{Archive, ArchiveState, Ream, Settings};
use crate::cw::fuzz::{DiskUnit, units};
use crate::fs::{FsResult, ROOT};
use crate::item::InodeAttributes;
use crate::jobs::Driver;
use crate::ptr::BlockPtr;
use crate::{Depth, Dumped};

/// Sectors of c: little more than the minimum.
const CACHE: u64 = 5400;
/// Sectors of w.
const WORM: u64 = 2400;
/// Sectors that are copied together, if any is not zero.
const COPIED_SECTORS: usize = 16;
/// Maximum number of edits; with more, nothing of an archive would remain.
const EDITS: usize = 6;
/// Number of polls after which a run counts as endless.
const TURNS: u64 = 20_000;
/// Maximum number of files that are used.
const FILES: usize = 24;
/// Bytes of an edit.
const EDIT: usize = 10;

/// Edge cases of numbers.
const EDGES: [u64; 12] =
    [0, 1, 2, 1 << 15, 0xffff, 1 << 31, 0xffff_ffff, 1 << 44, 1 << 47, (1 << 56) + 1, 1 << 63, u64::MAX];

/// The content of both disks.
struct DiskImage {
    c: Vec<u8>,
    w: Vec<u8>,
    units: Vec<DiskUnit>,
    /// The offsets of the bytes of each unit that are not zero.
    hot: Vec<Vec<u16>>,
}

/// After a clean shutdown; after a cut, with a journal; after a cut, with a waiting dump.
static IMAGES: LazyLock<[DiskImage; 3]> = LazyLock::new(|| [0, 1, 2].map(DiskImage::new));

/// The first byte selects the image, and each ten bytes after it are an edit.
pub fn image(data: &[u8]) {
    let Some((&how, edits)) = data.split_first() else { return };
    let image = &IMAGES[usize::from(how) % IMAGES.len()];
    let mut units: Vec<Option<DiskUnit>> = vec![None; image.units.len()];
    for edit in edits.as_chunks::<EDIT>().0.iter().take(EDITS) {
        image.edit(&mut units, edit);
    }
    let disks = [disk(&image.c, CACHE), disk(&image.w, WORM)];
    for unit in units.into_iter().flatten() {
        for at in unit.at {
            now(disks[usize::from(unit.on_worm)].write(at, unit.bytes.clone().into())).expect("it is there");
        }
    }
    let [c, w] = disks;
    let Some(opened) = run(None, Archive::open(c, w, &settings())) else { return };
    let Ok((archive, driver)) = opened else { return };
    let used = archive.clone();
    run(Some((&archive, driver)), async move { uses(&used, usize::from(how)).await });
}

impl DiskImage {
    fn new(which: u8) -> Self {
        let [c, w] = [CACHE, WORM].map(|sectors| disk(&[], sectors));
        let ream = Ream {
            name: "fuzz".into(),
            block: 8192,
            fastworm: which == 1,
            row_order: false,
            identity: [7; 16],
            owner: (1000, 1000),
        };
        now(Archive::ream(c.clone(), w.clone(), &ream, &settings())).expect("there is room");
        let (archive, driver) = now(Archive::open(c.clone(), w.clone(), &settings())).expect("it is new");
        let made = archive.clone();
        run(Some((&archive, driver)), async move {
            make(&made).await.expect("there is room");
            match which {
                0 => made.close().await.expect("disks of memory are well"),
                1 => {}
                // From here on nothing is copied to w.
                _ => {
                    made.stop_copies();
                    made.dump().await.expect("there is room");
                }
            }
        });
        let [c, w] = [c, w].map(|disk| {
            let all =
                (0..disk.shape().sectors).step_by(8).map(|at| now(disk.read(at, 8)).expect("it is there"));
            all.flatten().collect::<Vec<u8>>()
        });
        let units = units(&c, &w);
        let is_hot = |unit: &DiskUnit| {
            let hot = unit.bytes.iter().enumerate().filter(|(_, byte)| **byte != 0);
            hot.map(|(at, _)| at as u16).collect()
        };
        let hot = units.iter().map(is_hot).collect();
        Self { c, w, units, hot }
    }

    /// An edit has two bytes each for the unit, the offset, the method, the value, and the source offset.
    fn edit(&self, now: &mut [Option<DiskUnit>], edit: &[u8; EDIT]) {
        let word = |n: usize| usize::from(edit[2 * n]) | usize::from(edit[2 * n + 1]) << 8;
        let n = word(0) % self.units.len();
        let (how, value) = (word(2), word(3));
        let from = &self.units[value % self.units.len()].bytes;
        let unit = now[n].get_or_insert_with(|| self.units[n].clone());
        // Mostly at a byte that is not zero.
        let at = match how & 7 {
            7 => word(1) % unit.bytes.len(),
            _ => usize::from(self.hot[n][word(1) % self.hot[n].len()]) & !(how >> 3 & 7),
        };
        let width = [1, 2, 4, 8][how >> 6 & 3].min(unit.bytes.len() - at);
        let place = &mut unit.bytes[at..at + width];
        match how >> 8 & 7 {
            0 | 1 => place.copy_from_slice(&(value as u64).to_le_bytes()[..width]),
            2 | 3 => place.copy_from_slice(&EDGES[value % EDGES.len()].to_le_bytes()[..width]),
            4 => place[0] = place[0].wrapping_add(value as u8),
            5 => place[0] ^= 1 << (value & 7),
            // A copy of other bytes, a few or many.
            how => {
                let from = &from[(word(4) % from.len()) & !7..];
                let len = if how == 6 { width } else { 16 << (how >> 3 & 7) };
                let len = len.min(from.len()).min(unit.bytes.len() - at);
                unit.bytes[at..at + len].copy_from_slice(&from[..len]);
            }
        }
        if how >> 12 == 15 {
            return;
        }
        let sum = unit.seal();
        for (noting, at) in unit.noted.clone() {
            let unit = now[noting].get_or_insert_with(|| self.units[noting].clone());
            unit.bytes[at..at + 4].copy_from_slice(&sum.unwrap_or_default().to_le_bytes());
            unit.seal();
        }
    }
}

fn settings() -> Settings {
    Settings {
        memory: 1 << 20,
        dirty: 1 << 20,
        ahead: Ahead::Grow,
        zone: Some("UTC".into()),
        wall: Arc::new(|| Time { sec: 1_795_000_000, nsec: 0 }),
        epoch: 0,
    }
}

fn disk(bytes: &[u8], sectors: u64) -> Arc<dyn Device> {
    let ram: Arc<dyn Device> = Arc::new(Ram::new(sectors));
    for (n, piece) in bytes.chunks(COPIED_SECTORS * 512).enumerate() {
        if piece.iter().any(|byte| *byte != 0) {
            now(ram.write((n * COPIED_SECTORS) as u64, piece.to_vec().into())).expect("it is there");
        }
    }
    ram
}

/// Returns the result of a future that never waits, because disks in memory answer at once.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => panic!("disks of memory end at once"),
    }
}

/// Runs a future together with the work of an archive. `None`: it never ends.
fn run<T>(archive: Option<(&Archive, Driver)>, future: impl Future<Output = T>) -> Option<T> {
    let (mut future, mut archive) = (pin!(future), archive);
    let mut cx = Context::from_waker(Waker::noop());
    for turn in 0..TURNS {
        if let Poll::Ready(result) = future.as_mut().poll(&mut cx) {
            return Some(result);
        }
        if let Some((archive, driver)) = &mut archive {
            let _ = Pin::new(driver).poll(&mut cx);
            archive.tick(Duration::from_millis(20 * turn));
        }
    }
    panic!("it never ends");
}

/// Waits for this number of polls.
async fn turns(count: usize) {
    let mut left = count;
    poll_fn(|_| {
        left = left.saturating_sub(1);
        if left == 0 { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

fn of(ty: u32) -> InodeAttributes {
    InodeAttributes { mode: ty | 0o755, uid: 7, ..InodeAttributes::default() }
}

const NOW: Time = Time { sec: 1_795_000_000, nsec: 0 };

/// Creates files of each kind, names for several leaves, a dump on w, and later changes.
async fn make(archive: &Archive) -> nine_proto::Result<()> {
    let dir = archive.attempt(|state| state.fs.make(ROOT, b"dir", of(mode::S_IFDIR), b"")).await?;
    for n in 0..60u8 {
        let name = [&[b'a' + n / 26, b'a' + n % 26][..], &[b'x'; 90]].concat();
        archive.attempt(|state| state.fs.make(dir, &name, of(mode::S_IFREG), b"")).await?;
    }
    let link = of(mode::S_IFLNK);
    archive.attempt(|state| state.fs.make(ROOT, b"link", link, b"dir")).await?;
    let small = archive.attempt(|state| state.fs.make(ROOT, b"small", of(mode::S_IFREG), b"")).await?;
    let large = archive.attempt(|state| state.fs.make(ROOT, b"large", of(mode::S_IFREG), b"")).await?;
    archive.attempt(|state| state.fs.write(small, Some(0), b"hello", 7, NOW)).await?;
    archive.attempt(|state| state.fs.write(large, Some(0), &[1; 20_000], 7, NOW)).await?;
    archive.attempt(|state| state.fs.write(large, Some(50_000), &[2; 9_000], 7, NOW)).await?;
    archive.attempt(|state| state.fs.set_xattr(small, b"user.x", &[3; 1500], 0, NOW)).await?;
    archive.dump().await?;
    archive.copied().await?;
    turns(100).await;
    archive.attempt(|state| state.fs.write(large, Some(9_000), &[4; 10], 7, NOW)).await?;
    archive.attempt(|state| state.fs.make(dir, b"new", of(mode::S_IFREG), b"")).await?;
    // A file that is removed at the next open.
    let gone = archive.attempt(|state| state.fs.make(ROOT, b"gone", of(mode::S_IFREG), b"")).await?;
    archive.attempt(|state| state.fs.write(gone, Some(0), &[5; 9_000], 7, NOW)).await?;
    archive.attempt(|state| state.fs.unlink(ROOT, b"gone", None, |_| true, NOW)).await?;
    archive.sync().await
}

/// Reads everything and changes much; any operation may fail.
async fn uses(archive: &Archive, how: usize) {
    let generations: Vec<u32> = archive.dumps().iter().map(|dump| dump.generation).take(4).collect();
    let files = looks(archive, None).await;
    for generation in generations {
        looks(archive, Some(generation)).await;
    }
    if how & 4 != 0 {
        let _ = archive.check(Depth::Dumps).await;
    }
    let dirs: Vec<u64> =
        [ROOT].into_iter().chain(files.iter().filter(|file| file.3).map(|file| file.2)).collect();
    for (n, &(dir, ref name, ino, _)) in files.iter().enumerate() {
        let _ = archive.attempt(|state| state.fs.write(ino, Some(5000 * n as u64), &[6; 5000], 7, NOW)).await;
        let _ = archive.attempt(|state| state.fs.write(ino, None, &[7; 9], 8, NOW)).await;
        let _ = archive.attempt(|state| state.fs.set_xattr(ino, b"user.x", &[8; 1200], 0, NOW)).await;
        let size = Some([3, 10_000, 60_000][n % 3]);
        let set = SetAttr { size, uid: Some(8), ..SetAttr::default() };
        let _ = archive.attempt(|state| state.fs.set_attributes(ino, &set, 7, NOW)).await;
        let other = dirs[n % dirs.len()];
        let _ = match n % 4 {
            0 => {
                archive.attempt(|state| state.fs.unlink(dir, name, None, |_| n % 8 == 0, NOW)).await.map(drop)
            }
            1 => archive.attempt(|state| state.fs.link(other, b"other", ino, NOW)).await,
            2 => {
                let (from, to) = ((dir, &name[..]), (other, &b"moved"[..]));
                archive.attempt(|state| state.fs.rename(from, to, |_| false, NOW, |_| Ok(()))).await.map(drop)
            }
            _ => Ok(()),
        };
    }
    for dir in dirs {
        let it = of(mode::S_IFREG);
        if let Ok(ino) = archive.attempt(|state| state.fs.make(dir, b"made", it, b"")).await {
            let _ = archive.attempt(|state| state.fs.write(ino, Some(0), &[9; 30_000], 7, NOW)).await;
        }
    }
    let _ = archive.sync().await;
    let _: Result<Dumped, _> = archive.dump().await;
    let _ = archive.copied().await;
    turns(60).await;
    let _ = archive.check(Depth::Dumps).await;
    let _ = archive.close().await;
}

/// Directory, name, inode, and whether it is a directory.
type FoundEntry = (u64, Vec<u8>, u64, bool);

/// Returns the files of a tree, from its root directory on.
async fn looks(archive: &Archive, dump: Option<u32>) -> Vec<FoundEntry> {
    let root = |state: &ArchiveState| -> FsResult<BlockPtr> {
        match dump {
            None => Ok(state.fs.mem.root),
            Some(dump) => Ok(state.dumps.get(&dump).ok_or(nine_proto::Errno::ENOENT)?.record.root),
        }
    };
    let (mut found, mut dirs) = (Vec::<FoundEntry>::new(), vec![ROOT]);
    while let Some(dir) = dirs.pop() {
        let list = |state: &mut ArchiveState| {
            let mut names = Vec::new();
            state.fs.entries(root(state)?, dir, 0, |_, named| {
                names.push((dir, named.name.to_vec(), named.ino, named.kind == 4));
                names.len() < FILES / 2
            })?;
            Ok(names)
        };
        let Ok(names) = archive.attempt(list).await else { continue };
        for file in names {
            let (_, name, ino, is_dir) = &file;
            let _ = archive.attempt(|state| state.fs.lookup(root(state)?, dir, name)).await;
            let _ = archive.attempt(|state| state.fs.path(root(state)?, *ino)).await;
            let _ = archive.attempt(|state| state.fs.xattrs(root(state)?, *ino)).await;
            let _ = archive.attempt(|state| state.fs.xattr(root(state)?, *ino, b"user.x")).await;
            let _ = archive.attempt(|state| state.fs.read(root(state)?, *ino, 0, 100_000)).await;
            let it = archive.attempt(|state| state.fs.attributes(root(state)?, *ino)).await;
            let end = it.map_or(0, |it| it.size.saturating_sub(5));
            let _ = archive.attempt(|state| state.fs.read(root(state)?, *ino, end, 10)).await;
            if found.len() < FILES {
                if *is_dir {
                    dirs.push(*ino);
                }
                found.push(file);
            }
        }
    }
    found
}
