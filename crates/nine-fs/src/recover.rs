//! An archive whose cache is lost, or another's: it goes on from a dump that is on its worm.
//!
//! In: a worm, a device for a new cache. Out: an archive as it was at the moment of a dump, with all dumps.

use std::sync::Arc;

use nine_block::{Bits, Device, Error as Wrong, Kind};
use nine_proto::{Result, Time};

use crate::archive::{Archive, Settings, State};
use crate::cw::{Chain, Copied, Cw, Date, Label, Recovering, Super, copy_worm};
use crate::date::{Day, parse_dump_name};
use crate::dump::{Dump, Frame};
use crate::fs::Op;
use crate::item::{Attributes, DumpRecord, Extent, Key, What};
use crate::jobs::Driver;
use crate::ptr::Ptr;
use crate::tree::{self, node::Node};

/// Cells that are counted at a time.
const CELLS: usize = 4096;

/// How a cache is made anew.
#[derive(Clone, Debug)]
pub struct Recover {
    /// The dump from which all goes on, as its directory is called ("2026/1121"); none: the newest.
    pub dump: Option<String>,
    /// As when it was [made](crate::Ream::fastworm); none: as the cache was that is there, and so where none can be
    /// read.
    pub fastworm: Option<bool>,
    /// Random: what an older life has left on the same device does not count.
    pub random: u64,
}

/// What has been recovered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The dump from which all goes on.
    pub dump: String,
    /// When that was: what was changed later is lost.
    pub time: Time,
    /// Dumps that there are.
    pub dumps: usize,
}

impl Archive {
    /// Makes a new cache on `c` for the archive on `w`, whatever was on `c`; all goes on from a dump. It may be
    /// interrupted, and is then to be done again.
    ///
    /// # Errors
    /// That there is no dump, or not this one; what the devices say.
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
        let how = Recovering { date: from, fastworm: how.fastworm, incarnation: how.random >> 1 };
        let (label, (cw, it, chain)) = (Cw::label(&*w).await?, Cw::recover(c, w, &how).await?);
        // What is to be removed stays until all is counted.
        let (archive, driver) = Self::still(cw, label, settings).await?;
        driver.beside(archive.go_on_from(&chain)).await?;
        archive.0.cw.finish().await?;
        Ok(Recovered { dump: name(it.date), time: it.time, dumps: chain.dumps.len() })
    }

    /// The one that is on these devices, in which nothing changes by itself: no file goes, and no dump is copied.
    ///
    /// # Errors
    /// In words for people.
    pub(crate) async fn open_still(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        settings: &Settings,
    ) -> nine_block::Result<(Self, Driver)> {
        let label = Cw::label(&*w).await?;
        Self::still(Cw::open(c, w).await?, label, settings).await
    }

    async fn still(cw: Cw, label: Label, settings: &Settings) -> nine_block::Result<(Self, Driver)> {
        let why = Wrong::new(Kind::ReadOnly, "it is being opened");
        let (archive, driver) = Self::on(cw, label, settings, Some(why)).await?;
        archive.stop_copies();
        archive.state().stopped = None;
        Ok((archive, driver))
    }

    /// Copies the dumps of a worm, at which a server may be at work, to another device: what is new since the last
    /// time, dump by dump. `told` hears of blocks done, and of how many there are.
    ///
    /// # Errors
    /// That something else is on the device, or that it is too small; what the devices say.
    pub async fn copy_worm(
        from: &Arc<dyn Device>,
        to: &Arc<dyn Device>,
        told: impl FnMut(u64, u64),
    ) -> nine_block::Result<Copied> {
        copy_worm(from, to, told).await
    }

    /// The tree learns of all dumps, and what is counted is counted.
    async fn go_on_from(&self, chain: &Chain) -> nine_block::Result<()> {
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

    /// The places that dumps have: their superblocks, and all that their trees point to.
    async fn had_by(&self, chain: &Chain) -> nine_block::Result<Bits> {
        let mut had = Bits::new(self.0.cw.places_of_all());
        let mut has = |at: Ptr, count: u64| {
            let end = at.at.checked_add(count).filter(|end| *end <= had.len());
            let text = || format!("block {:#x} of a dump is not on w", at.at);
            let end = end.ok_or_else(|| Wrong::new(Kind::Failed, text()))?;
            let known = count == 1 && had.has(at.at);
            (at.at..end).for_each(|place| had.set(place));
            Ok(!known)
        };
        // Of what two dumps have the tree is one, and is walked once.
        for (at, it) in &chain.dumps {
            has(Ptr { at: *at, made: 0 }, 2)?;
            let mut left = vec![(it.root, None)];
            while let Some((at, level)) = left.pop() {
                if !has(at, 1)? {
                    continue;
                }
                let Frame { content, .. } = self.frame(at, level).await?;
                let node = Node(&content);
                let below = node.level().checked_sub(1);
                // They are read as they lie.
                for i in (0..node.len()).rev() {
                    let (key, value) = node.cell(i);
                    match (below, Key::parse(key)) {
                        (Some(_), _) => left.push((node.child(i), below)),
                        (None, Some(What::Extent(..))) => {
                            if let Some(extent) = Extent::decode(value) {
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

    async fn counts(&self, chain: &Chain) -> Result<()> {
        let (mut from, mut blocks) = (Some(Vec::new()), 0);
        while let Some(key) = from {
            let (next, more) = self.attempt(|state| state.count(&key)).await?;
            (from, blocks) = (next, blocks + more);
        }
        for (at, it) in &chain.dumps {
            let record = record_of(*at, it);
            let key = Key::dump(it.generation);
            self.attempt(|state| {
                state.fs.touch(&[&key])?;
                state.fs.put(&key, &record.encode());
                Ok(())
            })
            .await?;
            self.state().dumps.insert(it.generation, Dump { record });
        }
        {
            let state = &mut *self.state();
            state.fs.blocks = blocks;
            state.noted = true;
        }
        self.close().await
    }
}

impl State {
    /// Blocks of the files from this key on, of some; and where the next ones begin.
    fn count(&self, from: &[u8]) -> Op<(Option<Vec<u8>>, u64)> {
        let (mut cells, mut blocks, mut next) = (0, 0, None);
        tree::range(&self.fs.mem, self.fs.mem.root, from, |key, value| {
            if cells == CELLS {
                next = Some(key.to_vec());
                return false;
            }
            cells += 1;
            if let (Some(What::Attributes(_)), Some(it)) = (Key::parse(key), Attributes::decode(value)) {
                blocks += it.blocks;
            }
            true
        })?;
        Ok((next, blocks))
    }
}

/// What the tree says of a dump, by its superblock.
pub(crate) fn record_of(at: u64, it: &Super) -> DumpRecord {
    let Date { year, month, day, number } = it.date;
    DumpRecord {
        root: it.root,
        time: it.time,
        day: Day { year, month, day },
        number,
        segment: at,
        blocks: it.blocks,
    }
}

fn date(name: &str) -> Option<Date> {
    let (year, name) = name.split_once('/')?;
    let (month, day, number) = parse_dump_name(name)?;
    Some(Date { year: year.parse().ok()?, month, day, number })
}

pub(crate) fn name(Date { year, month, day, number }: Date) -> String {
    let day = Day { year, month, day };
    format!("{}/{}", day.year_name(), day.dump_name(number))
}
