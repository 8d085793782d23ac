//! Dumps: taking the snapshot, copying it to w, and the sweep that follows (docs/disk.md, "Addresses, generations,
//! dumps").
//!
//! In: a command or the schedule. Out: trees that never change again, by date; segments on w.
//!
//! Always holds: taking the snapshot costs as much as a small change of the tree, whatever its size. One dump is copied
//! at a time, the oldest first. While clients are active a copy may read [`SHARE`] bytes per tick, otherwise as much as
//! it can.

use std::collections::BTreeMap;
use std::time::Duration;

use nine_block::{Error as Wrong, Kind};
use nine_proto::{Errno, Error, Result, Time};

use crate::archive::{Archive, ArchiveState as Whole, errno};
use crate::cw::{self, DumpName, DumpSuperblock, NewestSuperblock, SegmentWriter, WAITING_MAX, WaitingDump};
use crate::date::{CalendarDay, DumpSchedule, DumpScheduler};
use crate::fs::{FsResult, OperationStop};
use crate::item::{DecodedKey, DumpRecord, FileExtent, ItemKey};
use crate::jobs::yield_now;
use crate::ptr::{BlockPtr, NEW};
use crate::tree::node::{NodeMut, NodeRef};
use crate::tree::{NodeMiss, NodeStore};
use std::future::poll_fn;
use std::task::Poll;

/// Bytes that are copied per tick while clients are active.
const SHARE: i64 = 512 << 10;
/// Clients are active if a request has come within this time.
const CLIENT_IDLE_MIN: Duration = Duration::from_millis(100);
/// Delay before a failed copy is retried.
const COPY_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Bytes of blocks that are copied between two commits.
const COPY_BATCH_LEN: usize = 64 << 20;
/// Bytes of an extent that are read at a time.
const READ: usize = 1 << 20;
/// Maximum generation: no archive has more dumps.
const DUMPS_MAX: u32 = 1 << 19;

/// A dump in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadedDump {
    pub(crate) record: DumpRecord,
}

/// A dump, for listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dumped {
    /// The path of its directory, such as `2026/1121`.
    pub name: String,
    /// When it was taken.
    pub time: Time,
    /// Its generation, which is unique among the dumps.
    pub generation: u32,
    /// Whether it is completely on w.
    pub copied: bool,
    /// Blocks on w; 0 until it is there.
    pub blocks: u64,
}

/// The state of copies and sweeps.
#[derive(Default)]
pub(crate) struct CopyState {
    busy: bool,
    stop: bool,
    /// Why the last copy has failed, and when it is retried.
    trouble: Option<(String, Duration)>,
    /// Blocks of w that were skipped after the last failed write; the next failure skips twice as many.
    skip: u64,
    credit: i64,
    /// When the last request of a client came.
    pub(crate) active: Duration,
    /// A sweep is needed.
    dirty: bool,
    /// Scheduled dumps are off. A full cache is dumped all the same.
    pub(crate) is_off: bool,
    /// An automatic dump is being taken.
    marking: bool,
    due: Option<DumpScheduler>,
}

impl CopyState {
    pub(crate) fn is_busy(&self) -> bool {
        self.busy
    }

    /// Returns whether no client is active.
    pub(crate) fn is_idle(&self, now: Duration) -> bool {
        now.saturating_sub(self.active) > CLIENT_IDLE_MIN
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.stop
    }

    /// Returns why the last copy has failed.
    pub(crate) fn why_not(&self) -> Option<&str> {
        self.trouble.as_ref().map(|(why, _)| &**why)
    }

    /// Requests a sweep.
    #[cfg(test)]
    pub(crate) fn dirty_now(&mut self) {
        self.dirty = true;
    }

    /// Lets a failed copy be retried at once.
    pub(crate) fn try_again(&mut self) {
        self.trouble = None;
    }

    /// Returns when the next scheduled dump is taken, in seconds since 1970.
    pub(crate) fn next_due(&self, now: i64) -> Option<i64> {
        self.due.as_ref()?.next(now)
    }

    /// Returns whether no failed copy waits for its retry.
    pub(crate) fn can_copy(&self) -> bool {
        self.trouble.is_none()
    }
}

impl Whole {
    /// Takes the snapshot of a dump.
    fn mark(&mut self, time: Time, day: CalendarDay) -> FsResult<WaitingDump> {
        if self.waiting.len() >= WAITING_MAX {
            let text = format!("{WAITING_MAX} dumps wait to be copied: no more until one is on the worm");
            return Err(Error::new(Errno::EBUSY, text).into());
        }
        let generation = self.fs.mem.generation;
        if generation >= DUMPS_MAX {
            return Err(Error::new(Errno::ENOSPC, format!("there are {DUMPS_MAX} dumps: no more")).into());
        }
        let key = ItemKey::dump(generation);
        self.fs.settle()?;
        self.fs.touch(&[&key])?;
        // A dump frees slots later, so it may use the reserve, and does not wait for a dump.
        self.fs.room_behind(8, 0).map_err(|stop| match stop {
            OperationStop::Full => {
                OperationStop::Error(Error::new(Errno::ENOSPC, "there is no room for a dump"))
            }
            stop => stop,
        })?;
        let same = self.dumps.values().filter(|dump| dump.record.day == day);
        let number = same.map(|dump| dump.record.number.saturating_add(1)).max().unwrap_or(0);
        let root = self.fs.mem.root;
        let record = DumpRecord { root, time, day, number, segment: 0, blocks: 0 };
        // From here on each changed block becomes a new one.
        self.fs.mem.generation += 1;
        self.fs.put(&key, &record.encode());
        self.tell_dump(&format!("{}/{}", day.year_name(), day.dump_name(number)));
        self.dumps.insert(generation, LoadedDump { record });
        let CalendarDay { year, month, day } = day;
        let (date, next_inode) = (DumpName { year, month, day, number }, self.fs.next_inode);
        let waiting = WaitingDump { generation, root, time, date, segment: 0, next_inode };
        self.waiting.push(waiting);
        self.dumper.dirty = true;
        Ok(waiting)
    }

    /// Returns whether there is room for a sweep. It may take a slot for each node on its path, and frees none before
    /// the next commit. Without room the sweep is done later.
    fn can_sweep(&self) -> bool {
        self.fs.mem.cw.room().0 >= self.fs.mem.promised() + 64
    }

    /// Replaces pointers to forwarded rows on the path to the leaf of this key, and in the leaf. Returns the first key
    /// after the leaf; `None` if it was the last.
    fn sweep(&mut self, from: &[u8]) -> FsResult<Option<Vec<u8>>> {
        let worm = |cw: &cw::Cw, at: BlockPtr| match at.row() {
            None => Ok(None),
            Some(row) => match cw.worm_of_now(row) {
                Some(found) => Ok(found.map(|worm| BlockPtr { at: worm, ..at })),
                None => Err(OperationStop::Page(row)),
            },
        };
        let most = self.fs.most();
        let mem = &mut self.fs.mem;
        let cw = mem.cw.clone();
        if mem.changed().0 >= most {
            return Err(OperationStop::Wait);
        }
        if let Some(root) = worm(&cw, mem.root)? {
            mem.root = root;
        }
        let (mut at, mut end): (BlockPtr, Option<Vec<u8>>) = (mem.root, None);
        // The level of the next node.
        let mut below = None;
        loop {
            if at.row().is_none() {
                // Nodes on w point only to w.
                return Ok(end);
            }
            let block = mem.node(at)?;
            let node = NodeRef(&block);
            if let Some(level) = below.filter(|level| *level != node.level()) {
                return Err(NodeMiss(at, Some(level)).into());
            }
            below = node.level().checked_sub(1);
            let mut changes: Vec<(usize, Vec<u8>)> = Vec::new();
            let is_leaf = node.level() == 0;
            for i in 0..node.len() {
                let (key, value) = node.cell(i);
                let old = match (is_leaf, ItemKey::parse(key)) {
                    (false, _) => node.child(i),
                    (true, Some(DecodedKey::Extent(..))) => match FileExtent::decode(value) {
                        Some(extent) => extent.at,
                        None => continue,
                    },
                    (true, Some(DecodedKey::Dump(_))) => match DumpRecord::decode(value) {
                        Some(record) => record.root,
                        None => continue,
                    },
                    _ => continue,
                };
                let Some(new) = worm(&cw, old)? else { continue };
                let value = match is_leaf {
                    false => crate::tree::node::pointer(new).to_vec(),
                    true => match FileExtent::decode(value) {
                        Some(extent) => FileExtent { at: new, ..extent }.encode().to_vec(),
                        // The record in memory is newer than the one in the tree.
                        None => match (ItemKey::parse(key), DumpRecord::decode(value)) {
                            (Some(DecodedKey::Dump(generation)), Some(record)) => {
                                let known = self.dumps.get(&generation).map_or(record, |dump| dump.record);
                                DumpRecord { root: new, ..known }.encode().to_vec()
                            }
                            _ => continue,
                        },
                    },
                };
                changes.push((i, value));
            }
            // The child for the key, and the first key after that child.
            let next = (!is_leaf).then(|| {
                let i = node.search(from).unwrap_or_else(|after| after.saturating_sub(1));
                (i, (i + 1 < node.len()).then(|| node.key(i + 1).to_vec()))
            });
            drop(block);
            if !changes.is_empty() {
                // No dump waits, so each node that is not on w is of this generation, and can be changed in place.
                // Anything else means that a device has returned an old row.
                if !mem.is_current(at) {
                    let text = format!("node {:#x} is in no dump, and not of this generation", at.at);
                    return Err(Error::new(Errno::EIO, text).into());
                }
                let (_, content) = mem.node_mut(at)?;
                changes.into_iter().for_each(|(i, value)| NodeMut(&mut *content).overwrite(i, &value));
            }
            let Some((i, key)) = next else { return Ok(end) };
            end = key.or(end);
            at = NodeRef(&mem.get(at)?).child(i);
        }
    }
}

impl Archive {
    /// Takes a dump of the present state. If this succeeds, the dump is durable; it is copied to w in the background.
    ///
    /// # Errors
    /// EBUSY if 64 dumps wait to be copied; the error if it could not be made durable.
    pub async fn dump(&self) -> Result<Dumped> {
        let time = self.time();
        let day = self.0.zone.day_of(time.sec);
        let waiting = self.attempt(|state| state.mark(time, day)).await?;
        self.sync().await?;
        self.begin_copies();
        self.state().waiters.wake();
        let found = self.dumps().into_iter().find(|dump| dump.generation == waiting.generation);
        let dump = found.ok_or(Errno::EIO)?;
        self.info(format_args!("dump {}", dump.name));
        Ok(dump)
    }

    /// Returns all dumps, oldest first.
    pub fn dumps(&self) -> Vec<Dumped> {
        let state = &*self.state();
        let waits = |generation| state.waiting.iter().any(|waiting| waiting.generation == generation);
        let dumps = state.dumps.iter().map(|(generation, LoadedDump { record })| Dumped {
            name: format!("{}/{}", record.day.year_name(), record.day.dump_name(record.number)),
            time: record.time,
            generation: *generation,
            copied: !waits(*generation),
            blocks: record.blocks,
        });
        dumps.collect()
    }

    /// Sets the schedule of automatic dumps: "05:00", "05:00,17:30", "every 2h", "off".
    ///
    /// # Errors
    /// A description of the syntax error.
    pub fn schedule(&self, words: &str) -> std::result::Result<(), String> {
        let schedule = DumpSchedule::parse(words)?;
        let now = self.time().sec;
        let last = self.state().dumps.values().next_back().map(|dump| dump.record.time.sec);
        // A dump with a time in the future must not delay the next one.
        let last = last.unwrap_or(self.0.label.made.sec).min(now);
        let due = DumpScheduler::new(schedule, self.0.zone.clone(), now, Some(last));
        self.state().dumper.due = Some(due);
        Ok(())
    }

    /// Waits until all present dumps are on w.
    ///
    /// # Errors
    /// The reason if they cannot be copied.
    pub async fn copied(&self) -> Result<()> {
        let up_to = self.state().waiting.last().map(|waiting| waiting.generation);
        poll_fn(|cx| {
            let state = &mut *self.state();
            if state.waiting.first().is_none_or(|first| Some(first.generation) > up_to) {
                return Poll::Ready(Ok(()));
            }
            if let Some(error) = &state.stopped {
                return Poll::Ready(Err(errno(error)));
            }
            if let Some((why, _)) = &state.dumper.trouble {
                return Poll::Ready(Err(Error::new(Errno::EIO, why.clone())));
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await
    }

    pub(crate) fn tick_dumps(&self, now: Duration) {
        let wall = self.time().sec;
        let (slots, used) = self.0.cw.slots();
        let due = {
            let state = &mut *self.state();
            let dumper = &mut state.dumper;
            // A negative credit, from a large read, is made up over several ticks.
            dumper.credit = (dumper.credit + SHARE).min(SHARE);
            if dumper.trouble.as_ref().is_some_and(|(_, at)| now >= *at) {
                dumper.trouble = None;
            }
            let is_due = dumper.due.as_mut().is_some_and(|due| due.tick(wall)) && !dumper.is_off;
            // Dump a cache that is filling up, so that clients need not wait later.
            let is_full = used * 4 > slots * 3 && state.waiting.is_empty() && !dumper.busy;
            let is_full = is_full && self.0.cw.dump_makes_room();
            state.scrubber.tick();
            state.waiters.wake();
            let due = (is_due || is_full) && !state.ends() && !state.dumper.marking;
            state.dumper.marking |= due;
            due
        };
        if due {
            let archive = self.clone();
            self.begin(async move {
                if let Err(error) = archive.dump().await {
                    archive.error(format_args!("the dump that was due has failed: {error}"));
                }
                archive.state().dumper.marking = false;
            });
        }
        self.begin_copies();
    }

    /// Waits until the cache device may have free slots.
    pub(crate) async fn find_room(&self) -> Result<()> {
        let (changes, hope) = {
            let state = &*self.state();
            if state.ends() {
                return Err(Error::new(Errno::EROFS, "nothing is changed any more"));
            }
            if let Some(error) = &state.fs.full {
                return Err(errno(error));
            }
            let copying =
                !state.waiting.is_empty() || state.dumper.busy || state.dumper.dirty && state.can_sweep();
            // A commit in progress frees the slots that its blocks leave.
            let hope = state.is_committing() || copying && state.dumper.trouble.is_none();
            (state.has_changes(), hope)
        };
        if changes {
            // The commit frees slots. Other tasks may also have freed some meanwhile.
            return self.sync().await;
        }
        if hope {
            self.next_tick().await;
            return Ok(());
        }
        if self.0.cw.in_place() {
            // w may have grown.
            let _ = self.0.cw.look_at_worm().await;
            if self.has_grown().await? {
                return Ok(());
            }
        }
        let (slots, used) = self.0.cw.slots();
        let (trouble, room_on_worm) = {
            let state = &*self.state();
            let cw = &self.0.cw;
            // In place a dump needs blocks only for its nodes: the reserve suffices.
            let is_room = cw.in_place() || cw.worm_blocks().saturating_sub(state.next_worm) > used;
            (state.dumper.trouble.clone(), is_room && cw.dump_makes_room())
        };
        if trouble.is_none() && room_on_worm && used * 8 > slots {
            self.info(format_args!("the cache is full: it is dumped"));
            return self.dump().await.map(drop);
        }
        let why = trouble.map_or_else(|| "and so is the worm".into(), |(why, _)| why);
        let text = match self.0.cw.in_place() {
            true => "the archive is full: make its device larger".into(),
            false => format!("the cache device is full: {why}"),
        };
        Err(Error::new(Errno::ENOSPC, text))
    }

    /// Starts a job that copies waiting dumps and then sweeps, unless one is running.
    pub(crate) fn begin_copies(&self) {
        let state = &mut *self.state();
        let has_work = !state.waiting.is_empty() || state.dumper.dirty && state.can_sweep();
        let dumper = &mut state.dumper;
        if dumper.busy || dumper.stop || dumper.trouble.is_some() || !has_work || state.stopped.is_some() {
            return;
        }
        dumper.busy = true;
        // A small dump need not wait for a tick.
        dumper.credit = dumper.credit.max(SHARE);
        let archive = self.clone();
        self.begin(async move {
            let result = archive.copies().await;
            let state = &mut *archive.state();
            state.dumper.busy = false;
            if let Err(error) = result {
                archive.error(format_args!(
                    "{error}: the dump waits on the cache device, and is copied again later"
                ));
                state.dumper.trouble = Some((error.text.to_string(), state.now + COPY_RETRY_DELAY));
            }
            state.waiters.wake();
        });
    }

    pub(crate) fn stop_copies(&self) {
        let state = &mut *self.state();
        state.dumper.stop = true;
        state.waiters.wake();
    }

    async fn copies(&self) -> nine_block::Result<()> {
        loop {
            let first = {
                let state = &*self.state();
                if state.dumper.stop {
                    return Ok(());
                }
                state.waiting.first().copied()
            };
            match first {
                Some(waiting) => self.copy(waiting).await?,
                None => return self.sweep().await,
            }
        }
    }

    /// Copies the oldest dump to w.
    async fn copy(&self, waiting: WaitingDump) -> nine_block::Result<()> {
        let cw = &self.0.cw;
        if cw.in_place() {
            // w may have grown since there was no room.
            let _ = cw.look_at_worm().await;
            self.has_grown().await.map_err(|error| Wrong::new(Kind::Failed, error))?;
        }
        // Its blocks must be on c before they are read from there.
        self.sync().await.map_err(|error| Wrong::new(Kind::Failed, error))?;
        let (first, next, before) = {
            let state = &mut *self.state();
            if state.waiting[0].segment == 0 {
                let next = cw.segment_behind(state.next_worm);
                let full = || Wrong::new(Kind::Range, "w is full: make it larger");
                state.waiting[0].segment = std::mem::replace(&mut state.next_worm, next.ok_or_else(full)?);
                // A reader of this superblock looks for the next one at that address, so it must be durable first.
                state.noted |= cw.in_place();
            }
            (state.waiting[0].segment, state.next_worm, (state.newest.at, state.newest.blocks))
        };
        let there = cw.superblock(first).await.ok();
        let it = match there.filter(|it| waiting.became(it)) {
            Some(it) => {
                // Power was cut between the superblock and the next commit. The superblock may not be durable yet.
                cw.flush_worm().await?;
                it
            }
            None => {
                let mut segment = SegmentWriter::new(cw, first, next);
                match self.copy_segment(waiting, before, &mut segment).await {
                    Ok(Some(it)) => it,
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        self.copy_failed(segment);
                        return Err(error);
                    }
                }
            }
        };
        {
            let state = &mut *self.state();
            state.waiting.remove(0);
            state.newest =
                NewestSuperblock { at: first, generation: it.generation, blocks: it.blocks as u32 };
            state.newest_epoch = it.epoch;
            if !cw.in_place() {
                state.next_worm = state.next_worm.max(it.next);
            }
            state.dumper.skip = 0;
            if let Some(dump) = state.dumps.get_mut(&it.generation) {
                dump.record = DumpRecord { root: it.root, segment: first, blocks: it.blocks, ..dump.record };
            }
            state.noted = true;
        }
        self.sync().await.map_err(|error| Wrong::new(Kind::Failed, error))?;
        self.info(format_args!("dump {} is on the worm", crate::recover::name(it.date)));
        Ok(())
    }

    /// Copies a whole dump and writes its superblock. `None`: it was told to stop.
    async fn copy_segment(
        &self,
        waiting: WaitingDump,
        before: (u64, u32),
        segment: &mut SegmentWriter,
    ) -> nine_block::Result<Option<DumpSuperblock>> {
        let Some(root) = self.copy_tree(waiting.root, segment).await? else { return Ok(None) };
        self.forward(segment).await?;
        let WaitingDump { generation, time, date, next_inode, .. } = waiting;
        let epoch = self.0.epoch;
        let it = DumpSuperblock {
            generation,
            root,
            time,
            date,
            before,
            next: 0,
            next_inode,
            blocks: 0,
            behind: 0,
            epoch,
        };
        segment.seal(it).await.map(Some)
    }

    fn copy_failed(&self, segment: SegmentWriter) {
        let (is_place_bad, next) = (segment.is_place_bad(), segment.next());
        self.0.cw.copying_failed(segment.give_up().into_iter());
        let most = self.0.cw.worm_blocks();
        let state = &mut *self.state();
        // In place the next try takes other blocks.
        if !is_place_bad || self.0.cw.in_place() {
            return;
        }
        // Do not write there again, neither blocks nor a superblock.
        state.dumper.skip = (state.dumper.skip * 2).clamp(1, 1 << 12);
        state.next_worm = (state.next_worm.max(next) + state.dumper.skip).min(most);
        state.waiting[0].segment = 0;
        state.noted = true;
    }

    /// Records copied blocks as forwarded, in a durable commit.
    async fn forward(&self, segment: &mut SegmentWriter) -> nine_block::Result<()> {
        let come = segment.durable().await?;
        {
            let state = &mut *self.state();
            state.forward.extend(come);
            if !self.0.cw.in_place() {
                state.next_worm = state.next_worm.max(segment.next());
            }
        }
        loop {
            self.sync().await.map_err(|error| Wrong::new(Kind::Failed, error))?;
            if self.state().forward.is_empty() {
                return Ok(());
            }
        }
    }

    /// Updates dump records from the rows and the superblocks. The records in the tree were written when each dump was
    /// taken.
    pub(crate) async fn known_dumps(
        &self,
        mut dumps: BTreeMap<u32, LoadedDump>,
    ) -> nine_block::Result<BTreeMap<u32, LoadedDump>> {
        let (waiting, mut at, mut blocks) = {
            let state = &*self.state();
            let waiting: Vec<u32> = state.waiting.iter().map(|waiting| waiting.generation).collect();
            (waiting, state.newest.at, state.newest.blocks)
        };
        for dump in dumps.values_mut() {
            if let Some(root) = self.on_worm(dump.record.root).await? {
                dump.record.root = root;
            }
        }
        let is_new = |(generation, dump): (&u32, &LoadedDump)| {
            dump.record.segment == 0 && !waiting.contains(generation)
        };
        let mut last = u32::MAX;
        while at != 0 && dumps.iter().any(is_new) {
            let it = match self.0.cw.superblock_of(at, blocks).await {
                Ok(it) => it,
                Err(error) => {
                    self.warn(format_args!("{error}: how large some dumps are is not known"));
                    break;
                }
            };
            if let Some(dump) = dumps.get_mut(&it.generation) {
                (dump.record.segment, dump.record.blocks) = (at, it.blocks);
            }
            if it.generation >= last {
                self.warn(format_args!("superblock {at} is not older than the one behind it"));
                break;
            }
            last = it.generation;
            (at, blocks) = it.before;
        }
        Ok(dumps)
    }

    /// Returns the address of a block on w, if it is there.
    pub(crate) async fn on_worm(&self, at: BlockPtr) -> nine_block::Result<Option<BlockPtr>> {
        match at.row() {
            None => Ok(Some(at)),
            Some(row) => Ok(self.0.cw.worm_of(row).await?.map(|worm| BlockPtr { at: worm, ..at })),
        }
    }

    /// Copies the new blocks of a tree, children before parents. Returns the root's address on w; `None`: it was told
    /// to stop.
    async fn copy_tree(
        &self,
        root: BlockPtr,
        segment: &mut SegmentWriter,
    ) -> nine_block::Result<Option<BlockPtr>> {
        if let Some(root) = self.on_worm(root).await? {
            return Ok(Some(root));
        }
        let mut stack = vec![self.frame(root, None).await?];
        loop {
            if self.state().dumper.stop {
                self.forward(segment).await?;
                return Ok(None);
            }
            let top = stack.last_mut().expect("it is not empty before the root is done");
            if top.next == NodeRef(&top.content).len() {
                let NodeCopy { at, content, owner, .. } = stack.pop().expect("there is a top");
                let level = NodeRef(&content).level();
                let kind = if level == 0 { cw::BlockKind::Leaf } else { cw::BlockKind::Branch };
                if segment.come() >= COPY_BATCH_LEN / self.0.cw.block() {
                    self.forward(segment).await?;
                }
                let worm = segment.put(kind, (at.at, at.made), (owner, level.into()), &content).await?;
                let come = BlockPtr { at: worm, ..at };
                let Some(parent) = stack.last_mut() else { return Ok(Some(come)) };
                let i = parent.next - 1;
                NodeMut(&mut parent.content).set_ptr(i, come);
                continue;
            }
            let i = top.next;
            top.next += 1;
            let (key, value) = NodeRef(&top.content).cell(i);
            if NodeRef(&top.content).level() > 0 {
                let child = NodeRef(&top.content).child(i);
                match self.on_worm(child).await? {
                    Some(there) => NodeMut(&mut top.content).set_ptr(i, there),
                    None => {
                        let level = NodeRef(&top.content).level() - 1;
                        let frame = self.frame(child, Some(level)).await?;
                        stack.push(frame);
                    }
                }
                continue;
            }
            match ItemKey::parse(key) {
                Some(DecodedKey::Extent(ino, block)) => {
                    let Some(extent) = FileExtent::decode(value).filter(|extent| extent.at.row().is_some())
                    else {
                        continue;
                    };
                    let at = self.copy_extent(ino, block, extent, segment).await?;
                    NodeMut(&mut top.content).overwrite(i, &FileExtent { at, ..extent }.encode());
                }
                Some(DecodedKey::Dump(generation)) => {
                    let Some(record) = DumpRecord::decode(value) else { continue };
                    // Older dumps were copied before this one, so their records in memory are newer.
                    let known = self.state().dumps.get(&generation).map(|dump| dump.record);
                    let root = self.on_worm(record.root).await?.unwrap_or(record.root);
                    let record = DumpRecord { root, ..known.unwrap_or(record) };
                    NodeMut(&mut top.content).overwrite(i, &record.encode());
                }
                _ => {}
            }
        }
    }

    /// Reads a node as it is on the device.
    pub(crate) async fn frame(&self, at: BlockPtr, level: Option<u8>) -> nine_block::Result<NodeCopy> {
        let block = self.0.cached.get(at.at).await?;
        let is_it = cw::BlockTag::made(&block) == at.made && cw::BlockTag::is_node(&block);
        if !is_it || level.is_some_and(|level| NodeRef(&block).level() != level) {
            let text = format!("block {:#x} is no node of its generation and level", at.at);
            return Err(Wrong::new(Kind::Failed, text));
        }
        let content = block[..block.len() - cw::TAG].to_vec();
        let owner = crate::memory::owner(&content);
        Ok(NodeCopy { at, content, owner, next: 0 })
    }

    async fn copy_extent(
        &self,
        ino: u64,
        block: u64,
        extent: FileExtent,
        segment: &mut SegmentWriter,
    ) -> nine_block::Result<BlockPtr> {
        let cw = &self.0.cw;
        let last = extent.split(extent.count - 1, 1).at;
        if let (Some(first), Some(end)) = (self.on_worm(extent.at).await?, self.on_worm(last).await?)
            && end.at - first.at == u64::from(extent.count) - 1
        {
            return Ok(first);
        }
        if segment.come() + extent.count as usize > COPY_BATCH_LEN / cw.block() {
            self.forward(segment).await?;
        }
        if let Some(place) = cw.stays(extent.at.at, extent.count.into()).await? {
            // From now on only its tag identifies the block, and the tag of an older block at this address could be the
            // same.
            self.pace(i64::from(extent.count) * cw.block() as i64).await;
            cw.stands(extent.at.at, extent.count.into()).await?;
            segment.stay(extent.at.at - NEW, place, extent.count.into());
            return Ok(BlockPtr { at: place, ..extent.at });
        }
        segment.keep_together(extent.count.into())?;
        let (mut done, mut first) = (0, None);
        while done < extent.count {
            let count = (extent.count - done).min((READ / cw.block()) as u32);
            self.pace(i64::from(count) * cw.block() as i64).await;
            let bytes = cw.blocks(extent.at.at + u64::from(done), count.into()).await?;
            for (n, content) in (done..).zip(bytes.chunks_exact(cw.block())) {
                let at = extent.split(n, 1).at;
                let content = &content[..content.len() - cw::TAG];
                let whose = (ino, block + u64::from(n));
                let worm = segment.put(cw::BlockKind::File, (at.at, at.made), whose, content).await?;
                first.get_or_insert(worm);
            }
            done += count;
        }
        let at = first.expect("an extent has a block");
        Ok(BlockPtr { at, ..extent.at })
    }

    /// Waits until `bytes` more may be copied.
    async fn pace(&self, bytes: i64) {
        poll_fn(|cx| {
            let state = &mut *self.state();
            let idle = state.dumper.is_idle(state.now);
            // Hurry if the cache is nearly full.
            let (slots, used) = self.0.cw.slots();
            // No later copy makes up for this one.
            if idle || state.dumper.stop || used * 8 > slots * 7 {
                return Poll::Ready(());
            }
            if state.dumper.credit > 0 {
                state.dumper.credit -= bytes;
                return Poll::Ready(());
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await;
    }

    /// Removes all pointers to forwarded rows, and then frees these rows. Gives up if another dump is taken meanwhile.
    async fn sweep(&self) -> nine_block::Result<()> {
        let failed = |error| Wrong::new(Kind::Failed, format!("the sweep behind a dump: {error}"));
        let rows = self.0.cw.forwarded();
        let mut from: Option<Vec<u8>> = Some(Vec::new());
        while let Some(key) = from {
            let step = |state: &mut Whole| {
                if !state.waiting.is_empty() || state.dumper.stop || !state.can_sweep() {
                    return Ok(None);
                }
                // The path of the key is looked up in the present tree.
                state.sweep(&key).map(Some)
            };
            match self.attempt(step).await.map_err(failed)? {
                None => return Ok(()),
                Some(next) => from = next,
            }
            yield_now().await;
        }
        {
            let state = &mut *self.state();
            if !state.waiting.is_empty() {
                return Ok(());
            }
            for row in &rows {
                state.fs.mem.give_up(NEW + row);
            }
            state.dumper.dirty = false;
            state.swept.extend(rows);
        }
        while !self.state().swept.is_empty() {
            self.sync().await.map_err(failed)?;
        }
        Ok(())
    }
}

/// A node on its way to w.
pub(crate) struct NodeCopy {
    at: BlockPtr,
    pub(crate) content: Vec<u8>,
    owner: u64,
    next: usize,
}
