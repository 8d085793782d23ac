//! A fake worm: write-once blocks on a rewritable disk (format: docs/block.md).

use std::sync::Arc;

use bytes::BytesMut;

use crate::bits::{Bits, PER_SECTOR, sum};
use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::locks::RangeLocks;
use crate::owner::{SectorOwner, ShiftedOwner};
use crate::part::Part;
use crate::plain::above;
use crate::sync::{Mutex, lock};
use crate::task::Tasks;

/// Maximum number of blocks of a worm, with a map of 128 MiB.
pub const BLOCKS_MOST: u64 = 1 << 30;

const MAGIC: &[u8; 8] = b"9fakewm\x01";

/// Sectors of the map that are read at once.
const MAP_READ_SECTORS: u64 = 128;

/// A fake worm.
pub struct FakeWorm(Arc<FakeWormDevice>);

struct FakeWormDevice {
    of: Arc<dyn Device>,
    block: u64,
    blocks: u64,
    map: u64,
    written: Mutex<Bits>,
    /// Sectors of the map that are being written.
    writing: RangeLocks,
    tasks: Tasks,
}

impl FakeWorm {
    /// Makes a disk an empty worm, with blocks of `block` sectors. A disk that is a worm already is refused.
    pub async fn make(of: Arc<dyn Device>, block: u32) -> Result<Self> {
        let failed = |text: String| Error::new(Kind::Failed, text).of(format!("f{}", of.name()));
        if label(&of).await?.is_some() {
            return Err(failed("it is a fake worm already".into()));
        }
        let (block, whole) = (u64::from(block), of.shape().sectors);
        assert!(block > 0, "blocks of no sectors");
        let head = block.max(2).next_multiple_of(block);
        let mut blocks = (whole.saturating_sub(head) / block).min(BLOCKS_MOST);
        while blocks > 0 && head + blocks * block + Bits::new(blocks).sectors() > whole {
            blocks -= 1;
        }
        if blocks == 0 {
            return Err(failed(format!("{whole} sectors are too few")));
        }
        let written = Bits::new(blocks);
        let map = whole - written.sectors();
        for sector in 0..written.sectors() {
            of.write(map + sector, written.sector(sector)).await?;
        }
        of.flush().await?;
        let mut bytes = vec![0; SECTOR as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&blocks.to_le_bytes());
        bytes[16..24].copy_from_slice(&map.to_le_bytes());
        bytes[24..28].copy_from_slice(&(block as u32).to_le_bytes());
        let sum = sum(&bytes[..504], None);
        bytes[504..].copy_from_slice(&sum.to_le_bytes());
        of.write(0, bytes.repeat(2).into()).await?;
        of.flush().await?;
        Ok(Self::of(of, block, map, written))
    }

    /// Opens an existing worm.
    pub async fn open(of: Arc<dyn Device>) -> Result<Self> {
        let failed = |text: String| Error::new(Kind::Failed, text).of(format!("f{}", of.name()));
        let Some((blocks, map, block)) = label(&of).await? else {
            return Err(failed("no label of a fake worm: it has to be made".into()));
        };
        let whole = of.shape().sectors;
        if map + blocks.div_ceil(PER_SECTOR) > whole {
            return Err(failed(format!("it has {whole} sectors, and its map lies at {map}")));
        }
        let mut written = Bits::new(blocks);
        let mut at = 0;
        while at < written.sectors() {
            let count = MAP_READ_SECTORS.min(written.sectors() - at);
            let bytes = of.read(map + at, count).await?;
            for (sector, bytes) in (at..).zip(bytes.chunks_exact(SECTOR as usize)) {
                written.take(sector, bytes);
            }
            at += count;
        }
        Ok(Self::of(of, block, map, written))
    }

    /// Returns the data of a worm that another program may be writing. Unwritten blocks read as anything.
    pub async fn watch(of: Arc<dyn Device>) -> Result<Part> {
        let name = format!("f{}", of.name());
        let Some((blocks, _, block)) = label(&of).await? else {
            return Err(Error::new(Kind::Failed, "no label of a fake worm: it has to be made").of(name));
        };
        Part::new(of, name, head(block), blocks * block)
    }

    fn of(of: Arc<dyn Device>, block: u64, map: u64, written: Bits) -> Self {
        let blocks = written.len();
        let (written, writing, tasks) = (Mutex::new(written), RangeLocks::default(), Tasks::default());
        Self(Arc::new(FakeWormDevice { of, block, blocks, map, written, writing, tasks }))
    }
}

/// Returns the sectors before the data.
fn head(block: u64) -> u64 {
    block.max(2).next_multiple_of(block)
}

/// Reads the label of a worm as `(blocks, map, block)`. `None`: the disk is not a worm.
async fn label(of: &Arc<dyn Device>) -> Result<Option<(u64, u64, u64)>> {
    if of.shape().sectors < 2 {
        return Ok(None);
    }
    for copy in 0..2 {
        let Ok(bytes) = of.read(copy, 1).await else { continue };
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let (blocks, map, block) = (number(8), number(16), number(24) & 0xffff_ffff);
        let right = bytes.starts_with(MAGIC) && sum(&bytes[..504], None) == number(504);
        let head = block.max(2).next_multiple_of(block.max(1));
        let data = blocks.checked_mul(block).and_then(|data| data.checked_add(head));
        if right && block > 0 && blocks <= BLOCKS_MOST && data.is_some_and(|end| end <= map && map < 1 << 62)
        {
            return Ok(Some((blocks, map, block)));
        }
    }
    // An unreadable label is not the same as none.
    of.read(0, 2).await.map(|_| None)
}

impl FakeWormDevice {
    fn head(&self) -> u64 {
        head(self.block)
    }

    /// Checks an operation. A write reserves its blocks here.
    fn admit(&self, io: &Io) -> Result<()> {
        let (first, last) = (io.at / self.block, io.end_at().div_ceil(self.block));
        let mut written = lock(&self.written);
        match io.op {
            Op::Read => match (first..last).find(|block| !written.has(*block)) {
                Some(block) => Err(Error::new(Kind::Unwritten, format!("block {block} was never written"))),
                None => Ok(()),
            },
            _ if !io.at.is_multiple_of(self.block) || !io.count.is_multiple_of(self.block) => {
                let text = format!("sectors {}+{} are no whole blocks of {}", io.at, io.count, self.block);
                Err(Error::new(Kind::Unsupported, text))
            }
            Op::Write => match (first..last).find(|block| written.has(*block)) {
                Some(block) => Err(Error::new(Kind::ReadOnly, format!("block {block} is written already"))),
                None => {
                    (first..last).for_each(|block| written.set(block));
                    Ok(())
                }
            },
            _ => Err(Error::new(Kind::ReadOnly, "what is written stays")),
        }
    }

    async fn write(self: Arc<Self>, mut io: Io) {
        let first = io.at / self.block / PER_SECTOR;
        let last = (io.end_at() / self.block).div_ceil(PER_SECTOR);
        let held = self.writing.lock(first, last).await;
        let mut map = BytesMut::new();
        {
            let written = lock(&self.written);
            (first..last).for_each(|sector| map.extend_from_slice(&written.sector(sector)));
        }
        let result = self.of.write(self.map + first, map.freeze()).await;
        drop(held);
        match result {
            Ok(_) => {
                io.at += self.head();
                self.of.submit(io);
            }
            Err(error) => io.end(Err(error)),
        }
    }
}

impl Device for FakeWorm {
    fn shape(&self) -> Shape {
        let worm = &self.0;
        let aligned = 1u32.checked_shl(worm.head().trailing_zeros()).unwrap_or(u32::MAX);
        let shape = worm.of.shape();
        Shape { sectors: worm.blocks * worm.block, atom: shape.atom.min(aligned), ..shape }
    }

    fn unbacked(&self) -> u64 {
        self.0.of.unbacked()
    }

    fn submit(&self, mut io: Io) {
        let worm = &self.0;
        if matches!(io.op, Op::Flush | Op::Look) {
            return worm.of.submit(io);
        }
        let judged = io.judge(&self.shape());
        if let Err(error) = judged.and_then(|()| worm.admit(&io)) {
            return io.end(Err(error.of(self.name())));
        }
        match io.op {
            Op::Write if io.count > 0 => worm.tasks.spawn(worm.clone().write(io)),
            _ => {
                io.at += worm.head();
                worm.of.submit(io);
            }
        }
    }

    fn name(&self) -> String {
        format!("f{}", self.0.of.name())
    }

    fn status(&self) -> String {
        let written = lock(&self.0.written).count();
        format!("{}  {written} blocks of {} are written\n", above(self, &[&self.0.of]), self.0.blocks)
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        let (head, sectors) = (self.0.head(), self.shape().sectors);
        self.0.of.owned_by(Arc::new(ShiftedOwner { owner, below: head..head + sectors, here: 0 }));
    }

    fn trouble(&self) -> Vec<String> {
        self.0.of.trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.0.of.control(words)
    }
}
