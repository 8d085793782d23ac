//! Creates a file system on two devices, or opens the one that is there, in the state of its last commit.
//!
//! In: devices. Out: a [`Cw`], or an error message with the reason and a remedy.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use nine_block::{Bits, Device, Error, Kind as Wrong, Proof, SECTOR, Tasks};
use nine_proto::Time;

use super::chain::{DumpChain, LabeledWorm};
use super::commit::WriteWindow;
use super::copies::{ReadCopy, ReadCopyTable};
use super::layout::{
    CacheHeader, CacheLayout, CommitFields, DumpSuperblock, HEADER, JournalRecord, LABELS, NewestSuperblock,
    ROWS, RowLocation, TableRow, WAITING_MAX, WormLabel, is_sector,
};
use super::room::FreeNumbers;
use super::rows::{self, RowPages};
use super::tag::{BlockKind, BlockTag, FsIdentity};
use super::{Cw, CwShared, CwState, JournalPosition, Result, TrackedBitmap, in_place, read_all};
use crate::hash::{FixedMap, FixedSet};

/// Possible block sizes in bytes.
const BLOCKS: [u32; 4] = [8 << 10, 16 << 10, 32 << 10, 64 << 10];

/// The options with which a file system is created.
#[derive(Clone, Debug)]
pub(crate) struct CreateOptions {
    /// Bytes of a block.
    pub(crate) block: u32,
    pub(crate) fastworm: bool,
    pub(crate) row_order: bool,
    pub(crate) identity: FsIdentity,
    pub(crate) time: Time,
    pub(crate) name: String,
}

/// The options with which a new cache is created for a worm.
#[derive(Clone, Debug)]
pub(crate) struct RecoverOptions {
    /// The dump to start from; `None`: the newest.
    pub(crate) date: Option<DumpName>,
    /// `None`: as before.
    pub(crate) fastworm: Option<bool>,
    /// Must be random: old records may remain in the journal of the same device, and must not count.
    pub(crate) incarnation: u64,
}

/// Returns the layout of c.
fn layout_of(c: &dyn Device, block: u32) -> Result<CacheLayout> {
    let sectors = c.shape().sectors;
    CacheLayout::of(sectors, block).ok_or_else(|| {
        let text =
            format!("{sectors} sectors are too few for a cache: {} at least", CacheLayout::least(block));
        Error::new(Wrong::Unsupported, text).of(c.name())
    })
}

fn bad(text: impl std::fmt::Display) -> Error {
    Error::new(Wrong::Failed, text)
}

impl Cw {
    fn new(c: Arc<dyn Device>, w: Arc<dyn Device>, header: CacheHeader, first: u64) -> Self {
        let layout = header.layout.clone();
        let marks = |len| TrackedBitmap { bits: Bits::new(len), count: 0, changed: Default::default() };
        let journal =
            JournalPosition { at: header.replay.0, number: header.replay.1, used: 0, doubtful: false };
        let state = CwState {
            used_slots: marks(layout.slots.1),
            used_rows: marks(layout.rows.1),
            forwarded: marks(layout.rows.1),
            slots: FreeNumbers::new(0, std::iter::empty()),
            free_rows: FreeNumbers::new(0, std::iter::empty()),
            rows: RowPages::default(),
            copies: ReadCopyTable::default(),
            keeping: 0,
            failed: FixedSet::default(),
            journal,
            committing: false,
            shrunk: 0,
            stopped: None,
            hold: None,
            holds: 0,
            header: header.clone(),
        };
        let cw = Self(Arc::new(CwShared {
            c,
            w,
            layout,
            identity: header.identity,
            first,
            fastworm: header.fastworm,
            row_order: header.row_order,
            state: Mutex::new(state),
            tasks: Tasks::default(),
            promised: AtomicU64::new(0),
        }));
        cw.owns_devices();
        cw
    }

    /// Creates an empty file system, which overwrites both devices. The tree has no root until the first commit. If c
    /// has no sectors, the file system has no cache device.
    ///
    /// # Errors
    /// [`Wrong::Unsupported`] if a device is too small; errors of the devices.
    pub(crate) async fn ream(c: Arc<dyn Device>, w: Arc<dyn Device>, making: CreateOptions) -> Result<Self> {
        let (c, layout) = match c.shape().sectors {
            0 => in_place::make(&w, making.block).await?,
            _ => (c.clone(), layout_of(&*c, making.block)?),
        };
        let per = layout.per_block();
        if w.shape().sectors < 64 * per {
            let text = format!("{} sectors are too few for a worm: {} at least", w.shape().sectors, 64 * per);
            return Err(Error::new(Wrong::Unsupported, text).of(w.name()));
        }
        let identity = making.identity;
        for at in [0, 1] {
            let in_place = if layout.in_place { (layout.front(), layout.slots.1) } else { (0, 0) };
            let (block, made, name) = (making.block, making.time, making.name.clone());
            let label = WormLabel { block, identity, made, name, in_place };
            let mut block = vec![0; making.block as usize];
            label.encode(&mut block);
            BlockTag { kind: BlockKind::Label, made: 0, at, owner: 0, index: 0 }.seal(&mut block, &identity);
            w.write(at * per, block.into()).await?;
        }
        w.flush().await?;
        let first = if layout.in_place { layout.front() } else { LABELS };
        let fields =
            CommitFields { generation: 1, next_inode: 1, next_worm: first, ..CommitFields::default() };
        let header = CacheHeader {
            layout: layout.clone(),
            identity,
            number: 1,
            incarnation: 1,
            replay: (0, 1),
            fastworm: making.fastworm || layout.in_place,
            row_order: making.row_order && !layout.in_place,
            is_unfinished: false,
            epoch: 0,
            fields,
        };
        Self::begin(c, w, header, first, 0).await
    }

    /// Creates a new cache for a worm from the worm alone, which overwrites c. Returns the dump that it starts from. It
    /// cannot be opened again until [`finish`](Self::finish). In place all blocks that any dump may have are allocated.
    ///
    /// # Errors
    /// [`Wrong::Unwritten`] if there is no dump yet; [`Wrong::Unsupported`] if there is no such dump, or c is too
    /// small; errors of the devices.
    pub(crate) async fn recover(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        how: &RecoverOptions,
    ) -> Result<(Self, DumpSuperblock, DumpChain)> {
        let label = Self::label(&*w).await?;
        let is_in_place = c.shape().sectors == 0;
        let c = in_place::cache(c, &w, &label)?;
        let worm = LabeledWorm::new(&*w, &label);
        let layout = match is_in_place {
            false => layout_of(&*c, label.block)?,
            true => {
                let layout = CacheLayout::in_place(label.in_place.1, label.block);
                let layout = layout.filter(|layout| layout.front() == label.first());
                let layout = layout.ok_or_else(|| bad("its label says what cannot be").of(w.name()))?;
                let places = (w.shape().sectors / worm.per).min(layout.slots_most());
                CacheLayout { slots: (0, places), ..layout }
            }
        };
        let chain = worm.chain(worm.first, 0).await.map_err(|error| error.of(w.name()))?;
        let Some((at, newest)) = chain.dumps.last().copied() else {
            return Err(Error::new(Wrong::Unwritten, "it has no dump").of(w.name()));
        };
        let found = chain.dumps.iter().map(|(_, it)| it);
        let it = match how.date {
            None => Some(&newest),
            Some(date) => found.clone().find(|it| it.date == date),
        };
        let it = it.ok_or_else(|| Error::new(Wrong::Unsupported, "it has no such dump").of(w.name()))?;
        let was = best_header(&*c, &label).await.ok();
        let known = was.as_ref().map_or(0, |was| was.fields.generation).max(chain.generation);
        let fields = CommitFields {
            // An interrupted copy may have left blocks of newer generations on w; in place so may all commits since.
            generation: if is_in_place { known + 2 + WAITING_MAX as u32 } else { chain.generation + 1 },
            root: it.root,
            next_inode: found.map(|it| it.next_inode).max().unwrap_or_default(),
            next_worm: chain.behind,
            newest: NewestSuperblock { at, generation: newest.generation, blocks: newest.blocks as u32 },
            ..CommitFields::default()
        };
        let fastworm = match how.fastworm {
            Some(fastworm) => fastworm,
            None => was.is_none_or(|was| was.fastworm),
        };
        let header = CacheHeader {
            layout,
            identity: label.identity,
            number: 1,
            incarnation: how.incarnation,
            replay: (0, 1),
            fastworm: fastworm || is_in_place,
            row_order: false,
            is_unfinished: true,
            epoch: 0,
            fields,
        };
        let it = *it;
        let taken = chain.dumps.iter().map(|(_, it)| it.behind).max().unwrap_or_default();
        let places = header.layout.slots.1;
        if is_in_place && (taken > places || chain.behind + 2 > places) {
            let text = "dumps have places behind its end: what has been put behind it is missing";
            return Err(bad(text).of(w.name()));
        }
        Ok((Self::begin(c, w, header, label.first(), taken).await?, it, chain))
    }

    /// Ends a recovery: the cache can be opened from now on.
    ///
    /// # Errors
    /// As for a commit.
    pub(crate) async fn finish(&self) -> Result<()> {
        self.state().header.is_unfinished = false;
        self.checkpoint(None).await
    }

    /// Records in the header that the archive was opened under the lease of this epoch.
    ///
    /// # Errors
    /// [`Wrong::Reserved`]: it was opened under a later lease. Otherwise as for a commit.
    pub(crate) async fn opened_by(&self, epoch: u64) -> Result<()> {
        {
            let header = &mut self.state().header;
            if header.epoch > epoch {
                return Err(later("it was changed last", header.epoch, epoch));
            }
            header.epoch = epoch;
        }
        self.checkpoint(None).await
    }

    /// Returns the epoch of the lease under which the cache on c was opened last. `None`: c has no complete cache of
    /// this worm.
    ///
    /// # Errors
    /// Errors of the devices.
    pub(crate) async fn epoch_of(c: &dyn Device, w: &dyn Device) -> Result<Option<u64>> {
        match best_header(c, &Self::label(w).await?).await {
            Ok(header) => Ok((!header.is_unfinished).then_some(header.epoch)),
            Err(error) if error.kind == Wrong::Failed => Ok(None),
            Err(error) => Err(error.of(c.name())),
        }
    }

    /// Writes an empty cache with this header. In place the blocks of w below `taken` are marked as used.
    async fn begin(
        c: Arc<dyn Device>,
        w: Arc<dyn Device>,
        header: CacheHeader,
        first: u64,
        taken: u64,
    ) -> Result<Self> {
        let layout = header.layout.clone();
        let per = layout.per_block();
        let cw = Self::new(c, w, header.clone(), first);
        // From here on, until the headers are written, c is not a cache.
        for at in [0, HEADER, cw.last_block(), cw.last_block() + HEADER] {
            cw.0.c.write(at, vec![0; (HEADER * SECTOR) as usize].into()).await?;
        }
        cw.0.c.flush().await?;
        let maps = [
            (layout.used_slots, layout.slots.1),
            (layout.used_rows, layout.rows.1),
            (layout.forwarded, layout.rows.1),
        ];
        let mut writes = WriteWindow::default();
        for (block, len) in maps {
            let mut bits = Bits::new(len);
            if layout.in_place && block == layout.used_slots {
                (0..taken.min(len)).for_each(|place| bits.set(place));
            }
            let mut from = 0;
            while from < bits.sectors() {
                let to = bits.sectors().min(from + 2048);
                let bytes: Vec<u8> = (from..to).flat_map(|n| bits.sector(n)).collect();
                writes.begin(&*cw.0.c, block * per + from, bytes.into()).await;
                from = to;
            }
        }
        writes.end().await?;
        cw.0.c.flush().await?;
        // Write both headers: an older header could have a larger number.
        for number in [1, 2] {
            let bytes = Bytes::from(CacheHeader { number, ..header.clone() }.encode());
            for at in [number % 2 * HEADER, cw.last_block() + number % 2 * HEADER] {
                cw.0.c.write(at, bytes.clone()).await?;
            }
        }
        cw.0.c.flush().await?;
        let (c, w) = (cw.0.c.clone(), cw.0.w.clone());
        let label = Self::label(&*w).await?;
        Self::open_with(c, w, &label).await
    }

    /// Opens the file system on the devices.
    ///
    /// # Errors
    /// A message for people: the mismatch, and a remedy.
    pub(crate) async fn open(c: Arc<dyn Device>, w: Arc<dyn Device>) -> Result<Self> {
        let cw = Self::look(c, w).await?;
        let incarnation = cw.state().header.incarnation + 1;
        cw.checkpoint(Some(incarnation)).await?;
        Ok(cw)
    }

    /// The same without writing: the journal is replayed in memory only. The caller must not commit.
    pub(crate) async fn look(c: Arc<dyn Device>, w: Arc<dyn Device>) -> Result<Self> {
        let label = Self::label(&*w).await?;
        let c = in_place::cache(c, &w, &label)?;
        let cw = Self::open_with(c, w, &label).await?;
        if cw.state().header.is_unfinished {
            let text = "it is being made anew from the dumps, and that did not come to its end: \
                        `ninefold fs recover`, once more";
            return Err(bad(text).of(cw.0.c.name()));
        }
        Ok(cw)
    }

    /// The same, with c already resolved.
    async fn open_with(c: Arc<dyn Device>, w: Arc<dyn Device>, label: &WormLabel) -> Result<Self> {
        let header = best_header(&*c, label).await.map_err(|error| error.of(c.name()))?;
        let layout = &header.layout;
        let blocks = c.shape().sectors / layout.per_block();
        let is_sane = layout.is_sane() && header.replay.0 <= layout.journal_sectors();
        let is_its = !layout.in_place || layout.front() == label.first();
        if !is_sane || !is_its {
            return Err(bad("its header says what cannot be").of(c.name()));
        }
        if !layout.in_place && layout.slots.0 + layout.slots.1 >= blocks {
            let text = format!("the cache device has become smaller: it has {blocks} blocks now");
            return Err(bad(text).of(c.name()));
        }
        let cw = Self::new(c, w, header, label.first());
        let (has, had) = (cw.worm_blocks(), cw.0.layout.slots.1);
        if cw.in_place() && (had > has || had > cw.0.layout.slots_most()) {
            let text = format!(
                "w has {has} blocks, and had {had}: what has been put behind it is missing, or w is another"
            );
            return Err(bad(text).of(cw.0.w.name()));
        }
        if !cw.are_in_order(&cw.fields()) {
            return Err(bad("its header says what cannot be").of(cw.0.c.name()));
        }
        cw.read_marks().await?;
        cw.replay().await?;
        {
            let state = &mut *cw.state();
            if cw.in_place() {
                let fields = state.header.fields.clone();
                state.claim(&fields);
                (0..label.first()).for_each(|place| state.used_slots.mark(place, true));
                state.stretch(has);
            }
            state.slots = FreeNumbers::new(state.used_slots.bits.len(), state.used_slots.bits.ones());
            state.free_rows = FreeNumbers::new(cw.0.layout.rows.1, state.used_rows.bits.ones());
        }
        cw.fits().await?;
        Ok(cw)
    }

    /// Reads the label of w.
    pub(crate) async fn label(w: &dyn Device) -> Result<WormLabel> {
        let mut first = None;
        // The first copy gives the block size. If it is invalid, try the second copy at its address for each size.
        for at in std::iter::once(0).chain(BLOCKS.map(|block| u64::from(block) / SECTOR)) {
            let label = label_at(w, at).await;
            match label {
                Ok(label) => return Ok(label),
                Err(error) => drop(first.get_or_insert(error)),
            }
        }
        Err(first.expect("there was one").of(w.name()))
    }

    async fn read_marks(&self) -> Result<()> {
        let layout = &self.0.layout;
        for (block, which) in [(layout.used_slots, 0), (layout.used_rows, 1), (layout.forwarded, 2)] {
            let sectors = {
                let state = &mut *self.state();
                state.marks(which).bits.sectors()
            };
            let proof = Proof::new(1, Bits::is_right);
            let bytes = read_all(&*self.0.c, block * layout.per_block(), sectors, Some(proof)).await?;
            let state = &mut *self.state();
            for (n, sector) in bytes.chunks_exact(512).enumerate() {
                if !state.marks(which).bits.take(n as u64, sector) {
                    let text = format!(
                        "sector {n} of the bits in block {block} is wrong: `ninefold fs recover` makes it anew \
                         from the dumps"
                    );
                    return Err(bad(text).of(self.0.c.name()));
                }
            }
            let marks = state.marks(which);
            marks.count = marks.bits.count();
        }
        Ok(())
    }

    /// Replays the journal from the last checkpoint.
    async fn replay(&self) -> Result<()> {
        let mut known: FixedMap<u64, TableRow> = FixedMap::default();
        let mut held: Option<(JournalRecord, u64, u64)> = None;
        loop {
            let (at, next) = match &held {
                None => self.state().header.replay,
                Some((record, end, _)) => (*end, record.number + 1),
            };
            let found = match self.record(at, next).await? {
                None => self.record(0, next).await?.map(|(record, end)| (record, end, at)),
                Some((record, end)) => Some((record, end, end)),
            };
            // Each record was flushed before the next one was written. The last one's flush may not have completed.
            let Some((record, end, _)) = found else { break };
            if let Some((before, ..)) = held.take() {
                self.take_over(before, &mut known);
            }
            held = Some((record, end, 0));
        }
        if let Some((last, end, _)) = held {
            let are_there = self.are_there(&last).await?;
            self.state().journal =
                JournalPosition { at: end, number: last.number + 1, used: 0, doubtful: false };
            if are_there {
                self.take_over(last, &mut known);
            } else {
                tracing::warn!(
                    "{}: the last commit is not whole, and is not taken: the power was cut before it was answered",
                    self.0.c.name()
                );
            }
        }
        let mut pages: Vec<u64> = known.keys().map(|row| rows::page_of(*row)).collect();
        pages.sort_unstable();
        pages.dedup();
        for page in pages {
            self.load_with(page, &known).await?;
        }
        Ok(())
    }

    /// Returns the record with this number at this sector of the journal, if it is there, and its end.
    async fn record(&self, at: u64, number: u64) -> Result<Option<(JournalRecord, u64)>> {
        let layout = &self.0.layout;
        if at >= layout.journal_sectors() {
            return Ok(None);
        }
        let first = layout.journal.0 * layout.per_block();
        let incarnation = self.state().header.incarnation;
        let sector = self.0.c.read(first + at, 1).await?;
        let Some(length) = JournalRecord::length(&sector, &self.0.identity, incarnation, number) else {
            return Ok(None);
        };
        let end = at + length / SECTOR;
        if end > layout.journal_sectors() {
            return Ok(None);
        }
        let bytes = read_all(&*self.0.c, first + at, end - at, None).await?;
        let can_be = |record: &JournalRecord| {
            record.entries.iter().all(|entry| {
                let place = match entry.row.place {
                    RowLocation::OnWorm(place) => Some(place).filter(|_| layout.in_place),
                    place => place.slot(),
                };
                let slots = [entry.left, place];
                entry.number < layout.rows.1 && slots.iter().flatten().all(|slot| *slot < layout.slots.1)
            }) && self.are_in_order(&record.fields)
        };
        Ok(JournalRecord::decode(&bytes).filter(can_be).map(|record| (record, end)))
    }

    fn take_over(&self, record: JournalRecord, known: &mut FixedMap<u64, TableRow>) {
        let state = &mut *self.state();
        for entry in &record.entries {
            known.insert(entry.number, entry.row);
            if let Some(slot) = entry.left {
                state.used_slots.mark(slot, false);
            }
            state.mark_place(entry.row);
            state.used_rows.mark(entry.number, entry.row.place != RowLocation::Free);
            state.forwarded.mark(entry.number, matches!(entry.row.place, RowLocation::OnWorm(_)));
        }
        state.claim(&record.fields);
        state.header.fields = record.fields;
    }

    /// Verifies that c and w belong together, and that neither is older than the other.
    async fn fits(&self) -> Result<()> {
        let fields = self.fields();
        let has = self.worm_blocks();
        // The next superblock may be due just after the end of w. In place this was checked before.
        if fields.next_worm > has + 1 && !self.in_place() {
            let text = format!(
                "w has {has} blocks, where {} were written: what has been put behind it is missing, or w is another",
                fields.next_worm
            );
            return Err(bad(text).of(self.0.w.name()));
        }
        let NewestSuperblock { at, generation, blocks } = fields.newest;
        let next = match at {
            0 => self.0.first,
            at => match self.superblock_of(at, blocks).await {
                Ok(it) if it.generation == generation => it.next,
                Ok(it) => {
                    let text = format!(
                        "w has the dump of generation {} where the cache knows {generation}: they are not of one \
                         archive",
                        it.generation
                    );
                    return Err(bad(text));
                }
                // The device may answer later.
                Err(error) if !matches!(error.kind, Wrong::Failed | Wrong::Unwritten | Wrong::Range) => {
                    return Err(error);
                }
                Err(error) => {
                    let text = format!(
                        "{error}: w lacks the newest dump that the cache knows (superblock {at}); if it is the \
                         right w, `ninefold fs recover` makes the cache anew from its dumps"
                    );
                    return Err(bad(text));
                }
            },
        };
        if let Ok(it) = self.superblock(next).await
            && it.generation > generation
            && fields.waiting.first().is_none_or(|waiting| !waiting.became(&it))
        {
            let DumpName { year, month, day, .. } = it.date;
            let text = format!(
                "w has a dump of {year:04}-{month:02}-{day:02} that the cache does not know: another server has gone \
                 on from here, or the cache is an old copy; `ninefold fs recover --force` makes it anew from the \
                 dumps, and what only the cache has is lost then"
            );
            return Err(bad(text));
        }
        Ok(())
    }

    /// Reads the superblock of a segment with this number of blocks: the first copy, or else the last.
    pub(crate) async fn superblock_of(&self, first: u64, blocks: u32) -> Result<DumpSuperblock> {
        match self.superblock(first).await {
            Ok(it) => Ok(it),
            Err(error) => {
                let last = self.second(first, blocks.into());
                self.superblock(last).await.map_err(|_| error)
            }
        }
    }

    /// Reads the superblock at this w-address.
    pub(crate) async fn superblock(&self, at: u64) -> Result<DumpSuperblock> {
        self.worm().superblock(at).await
    }

    /// Returns w as a chain of superblocks.
    pub(crate) fn worm(&self) -> LabeledWorm<'_> {
        let CwShared { w, identity, layout, first, .. } = &*self.0;
        LabeledWorm { w: &**w, identity: *identity, per: layout.per_block(), first: *first }
    }

    /// Loads the table of read copies, in the background.
    pub(crate) async fn find_copies(&self) -> Result<()> {
        let layout = &self.0.layout;
        if self.0.fastworm {
            return Ok(());
        }
        let sectors = layout.slots.1.div_ceil(ROWS);
        let mut from = 0;
        while from < sectors {
            let count = (sectors - from).min(2048);
            let bytes = self.0.c.read(layout.copies * layout.per_block() + from, count).await?;
            let state = &mut *self.state();
            for (n, sector) in (from..).zip(bytes.chunks_exact(512)) {
                if !is_sector(sector, n) {
                    continue;
                }
                for (slot, bytes) in (n * ROWS..).zip(sector[16..].chunks_exact(16)) {
                    let worm = super::get64(bytes, 0);
                    if worm == 0 || slot >= layout.slots.1 || !state.slots.take_at(slot) {
                        continue;
                    }
                    if !state.copies.add(worm, ReadCopy { slot, sum: super::get32(bytes, 8) }) {
                        state.slots.give(slot);
                    }
                }
            }
            from += count;
        }
        Ok(())
    }
}

use super::DumpName;

impl CwState {
    pub(super) fn marks(&mut self, which: usize) -> &mut TrackedBitmap {
        match which {
            0 => &mut self.used_slots,
            1 => &mut self.used_rows,
            _ => &mut self.forwarded,
        }
    }
}

async fn label_at(w: &dyn Device, at: u64) -> Result<WormLabel> {
    let sector = w.read(at, 1).await?;
    let label = WormLabel::decode(&sector).map_err(bad)?;
    let block = w.read(at, u64::from(label.block) / SECTOR).await?;
    let tag = BlockTag::open(&block, &label.identity).map_err(|text| bad(format!("its label: {text}")))?;
    match tag.kind {
        BlockKind::Label if tag.at * u64::from(label.block) / SECTOR == at => Ok(label),
        _ => Err(bad("its label is another block")),
    }
}

/// Returns the error for a superblock or header written under a later lease than ours.
pub(crate) fn later(what: &str, its: u64, ours: u64) -> Error {
    let text = format!(
        "{what} by the right of epoch {its}, and ours is {ours}: the arbiter is another than it was, or was made anew; \
         `ninefold fs arbiter --again` says how"
    );
    Error::new(Wrong::Reserved, text)
}

/// Returns the valid header of c with the largest number.
async fn best_header(c: &dyn Device, label: &WormLabel) -> Result<CacheHeader> {
    let per = u64::from(label.block) / SECTOR;
    let end = (c.shape().sectors / per).saturating_sub(1) * per;
    let (mut best, mut first): (Option<CacheHeader>, Option<Error>) = (None, None);
    for at in [0, HEADER, end, end + HEADER] {
        let header = match c.read(at, HEADER).await {
            Ok(bytes) => CacheHeader::decode(&bytes).map_err(bad),
            Err(error) => Err(error),
        };
        match header {
            Ok(header) if best.as_ref().is_none_or(|best| best.number < header.number) => best = Some(header),
            Ok(_) => {}
            Err(error) => drop(first.get_or_insert(error)),
        }
    }
    let Some(header) = best else { return Err(first.expect("none was right")) };
    if header.identity != label.identity || header.layout.block != label.block {
        let text = format!(
            "the cache is not of this worm, which is \"{}\": name the devices that belong together, or \
            `ninefold fs recover` makes a new one from the dumps",
            label.name
        );
        return Err(bad(text));
    }
    Ok(header)
}
