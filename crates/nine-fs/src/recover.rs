//! Recovery of an archive with a lost or foreign cache: it continues from a dump on its worm.
//!
//! In: a worm, a device for a new cache. Out: the archive as it was when a dump was taken, with all dumps.

use std::sync::Arc;

use nine_block::{Bits, Device, Error as Wrong, Kind};
use nine_proto::{Result, Time};

use crate::archive::{Archive, ArchiveState, Settings};
use crate::cw::{Copied, Cw, DumpChain, DumpName, DumpSuperblock, RecoverOptions, WormLabel, copy_worm};
use crate::date::{CalendarDay, parse_dump_name};
use crate::dump::{LoadedDump, NodeCopy};
use crate::fs::FsResult;
use crate::item::{DecodedKey, DumpRecord, FileExtent, InodeAttributes, ItemKey};
use crate::jobs::Driver;
use crate::ptr::BlockPtr;
use crate::tree::{self, node::NodeRef};

/// Cells that are counted in one step.
const CELLS: usize = 4096;

/// The options of a recovery.
#[derive(Clone, Debug)]
pub struct Recover {
    /// The dump to continue from, by the name of its directory ("2026/1121"); `None`: the newest.
    pub dump: Option<String>,
    /// As in [`Ream`](crate::Ream::fastworm). `None`: as in the old cache, and true if that cannot be read.
    pub fastworm: Option<bool>,
    /// Must be random: old records on the same device must not count.
    pub random: u64,
}

/// The result of a recovery.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The dump from which the archive continues.
    pub dump: String,
    /// When that dump was taken: later changes are lost.
    pub time: Time,
    /// The number of dumps.
    pub dumps: usize,
}

impl Archive {
    /// Creates a new cache on `c` for the archive on `w`, and continues from a dump. Everything on `c` is overwritten.
    /// An interrupted recovery must be repeated.
    ///
    /// # Errors
    /// There is no dump, or not this one; errors of the devices.
    pub async fn recover(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
        how: &Recover,
    ) -> nine_block::Result<Recovered> {
        let bad = |name: &String| Wrong::new(Kind::Unsupported, format!("`{name}` is no name of a dump"));
        let from = match &how.dump {
            None => None,
            Some(name) => Some(date(name).ok_or_else(|| bad(name))?),
        };
        let how = RecoverOptions { date: from, fastworm: how.fastworm, incarnation: how.random >> 1 };
        let (label, (cw, it, chain)) = (Cw::label(&*w).await?, Cw::recover(c, w, &how).await?);
        // No file is removed until everything is counted.
        let (archive, driver) = Self::still(cw, label, settings).await?;
        driver.beside(archive.go_on_from(&chain)).await?;
        archive.0.cw.finish().await?;
        Ok(Recovered { dump: name(it.date), time: it.time, dumps: chain.dumps.len() })
    }

    /// Opens the archive on these devices without background work: no file is removed, and no dump is copied.
    ///
    /// # Errors
    /// A message for people.
    pub(crate) async fn open_still(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
    ) -> nine_block::Result<(Self, Driver)> {
        let label = Cw::label(&*w).await?;
        Self::still(Cw::open(c, w).await?, label, settings).await
    }

    async fn still(cw: Cw, label: WormLabel, settings: &Settings) -> nine_block::Result<(Self, Driver)> {
        let why = Wrong::new(Kind::ReadOnly, "it is being opened");
        let (archive, driver) = Self::on(cw, label, settings, Some(why)).await?;
        archive.stop_copies();
        archive.state().stopped = None;
        Ok((archive, driver))
    }

    /// Copies the dumps of a worm to another device: those that are new since the last copy, one by one. A server may
    /// be using the worm. Calls `told` with the blocks done and their total.
    ///
    /// # Errors
    /// The device has other data, or is too small; errors of the devices.
    pub async fn copy_worm(
        from: &Arc<dyn Device>,
        to: &Arc<dyn Device>,
        told: impl FnMut(u64, u64),
    ) -> nine_block::Result<Copied> {
        copy_worm(from, to, told).await
    }

    /// Adds all dumps to the tree, and recomputes the counts.
    async fn go_on_from(&self, chain: &DumpChain) -> nine_block::Result<()> {
        let cw = &self.0.cw;
        if cw.in_place() {
            let had = self.had_by(chain).await.map_err(|error| {
                self.warn(format_args!(
                    "{error}: what else dumps have is not known, and places that were free among them stay theirs"
                ));
            });
            cw.has_only(had.ok())?;
        }
        self.counts(chain).await.map_err(|error| Wrong::new(Kind::Failed, error))
    }

    /// Returns the blocks of w that belong to dumps: their superblocks, and all blocks that their trees point to.
    async fn had_by(&self, chain: &DumpChain) -> nine_block::Result<Bits> {
        let mut had = Bits::new(self.0.cw.places_of_all());
        let mut has = |at: BlockPtr, count: u64| {
            let end = at.at.checked_add(count).filter(|end| *end <= had.len());
            let text = || format!("block {:#x} of a dump is not on w", at.at);
            let end = end.ok_or_else(|| Wrong::new(Kind::Failed, text()))?;
            let known = count == 1 && had.has(at.at);
            (at.at..end).for_each(|place| had.set(place));
            Ok(!known)
        };
        // Subtrees that two dumps share are walked once.
        for (at, it) in &chain.dumps {
            has(BlockPtr { at: *at, made: 0 }, 2)?;
            let mut left = vec![(it.root, None)];
            while let Some((at, level)) = left.pop() {
                if !has(at, 1)? {
                    continue;
                }
                let NodeCopy { content, .. } = self.frame(at, level).await?;
                let node = NodeRef(&content);
                let below = node.level().checked_sub(1);
                // In the order in which they are on w.
                for i in (0..node.len()).rev() {
                    let (key, value) = node.cell(i);
                    match (below, ItemKey::parse(key)) {
                        (Some(_), _) => left.push((node.child(i), below)),
                        (None, Some(DecodedKey::Extent(..))) => {
                            if let Some(extent) = FileExtent::decode(value) {
                                has(extent.at, extent.count.into())?;
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(had)
    }

    async fn counts(&self, chain: &DumpChain) -> Result<()> {
        let (mut from, mut blocks) = (Some(Vec::new()), 0);
        while let Some(key) = from {
            let (next, more) = self.attempt(|state| state.count(&key)).await?;
            (from, blocks) = (next, blocks + more);
        }
        for (at, it) in &chain.dumps {
            let record = record_of(*at, it);
            let key = ItemKey::dump(it.generation);
            self.attempt(|state| {
                state.fs.touch(&[&key])?;
                state.fs.put(&key, &record.encode());
                Ok(())
            })
            .await?;
            self.state().dumps.insert(it.generation, LoadedDump { record });
        }
        {
            let state = &mut *self.state();
            state.fs.blocks = blocks;
            state.noted = true;
        }
        self.close().await
    }
}

impl ArchiveState {
    /// Counts the blocks of a number of files from this key on. Returns the key to continue at, and the count.
    fn count(&self, from: &[u8]) -> FsResult<(Option<Vec<u8>>, u64)> {
        let (mut cells, mut blocks, mut next) = (0, 0, None);
        tree::range(&self.fs.mem, self.fs.mem.root, from, |key, value| {
            if cells == CELLS {
                next = Some(key.to_vec());
                return false;
            }
            cells += 1;
            if let (Some(DecodedKey::Attributes(_)), Some(it)) =
                (ItemKey::parse(key), InodeAttributes::decode(value))
            {
                blocks += it.blocks;
            }
            true
        })?;
        Ok((next, blocks))
    }
}

/// Returns the tree's record of a dump, from its superblock.
pub(crate) fn record_of(at: u64, it: &DumpSuperblock) -> DumpRecord {
    let DumpName { year, month, day, number } = it.date;
    DumpRecord {
        root: it.root,
        time: it.time,
        day: CalendarDay { year, month, day },
        number,
        segment: at,
        blocks: it.blocks,
    }
}

fn date(name: &str) -> Option<DumpName> {
    let (year, name) = name.split_once('/')?;
    let (month, day, number) = parse_dump_name(name)?;
    Some(DumpName { year: year.parse().ok()?, month, day, number })
}

pub(crate) fn name(DumpName { year, month, day, number }: DumpName) -> String {
    let day = CalendarDay { year, month, day };
    format!("{}/{}", day.year_name(), day.dump_name(number))
}
