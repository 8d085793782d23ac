//! The content of files: inline if it is short, otherwise in blocks.
//!
//! A file without blocks, and of a size that fits, has its content in one item. Bytes beyond the item are zeros, and so
//! are all blocks without an extent.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use nine_proto::{Errno, Time};

use super::{ArchiveFs, FsResult, OperationStop, broken};
use crate::cw::BlockKind;
use crate::item::{APPEND, DecodedKey, EXTENT_MAX, FileExtent, InodeAttributes, ItemKey};
use crate::memory::BlockContent;
use crate::ptr::BlockPtr;
use crate::tree;

/// Maximum size of a file in bytes.
pub(crate) const SIZE_MAX: u64 = (1 << 63) - 1;
/// Maximum length of a symbolic link's target in bytes, as in Linux.
pub(crate) const TARGET_MAX: usize = 4095;
/// Maximum number of extents, and of their blocks, that one step of a truncation removes: see `shear`.
const SHEAR_STEP_MAX: (usize, u64) = (64, 8192);

/// The content of a hole, for any block size.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

/// The first block number of an extent in its file, and the extent.
type NumberedExtent = (u64, FileExtent);

impl ArchiveFs {
    /// Returns the maximum bytes of inline content.
    pub(crate) fn inline_most(&self) -> u64 {
        self.block() / 4 - 128
    }

    fn is_inline(&self, it: &InodeAttributes) -> bool {
        it.blocks == 0 && it.size <= self.inline_most()
    }

    /// Returns the target of a symbolic link. A link whose attributes were repaired may have zeros behind it.
    pub(crate) fn target(&self, root: BlockPtr, ino: u64) -> FsResult<Box<[u8]>> {
        let mut target = match self.attributes(root, ino)?.blocks {
            0 => self.inline(root, ino)?,
            _ => self.read(root, ino, 0, TARGET_MAX as u32)?.into_iter().flatten().collect(),
        };
        if let Some(end) = target.iter().position(|byte| *byte == 0) {
            target.truncate(end);
        }
        Ok(target.into())
    }

    /// Writes the content of a new file into blocks. The caller has checked for room.
    pub(super) fn fill(&mut self, ino: u64, it: &mut InodeAttributes, content: &[u8]) {
        let mut map = ExtentChange::new(&[]);
        for (number, part) in (0..).zip(content.chunks(self.mem.content())) {
            let (at, block) = self.mem.grow(map.before(number), BlockKind::File, ino, number);
            block[..part.len()].copy_from_slice(part);
            map.put(number, at);
            self.more(it, 1);
        }
        self.store(ino, map);
    }

    /// Returns the inline content of a file or link.
    fn inline(&self, root: BlockPtr, ino: u64) -> FsResult<Vec<u8>> {
        Ok(tree::get(&self.mem, root, &ItemKey::inline(ino), <[u8]>::to_vec)?.unwrap_or_default())
    }

    /// Returns the extents that have blocks in `from..to`.
    fn extents(&self, root: BlockPtr, ino: u64, from: u64, to: u64) -> FsResult<Vec<NumberedExtent>> {
        let mut found = Vec::new();
        let mut wrong = false;
        let mut see = |key: &[u8], value: &[u8]| {
            let Some(DecodedKey::Extent(of, block)) = ItemKey::parse(key) else { return false };
            let Some(extent) = FileExtent::decode(value) else {
                wrong = true;
                return false;
            };
            let is_it = of == ino && block < to;
            if is_it && block + u64::from(extent.count) > from {
                found.push((block, extent));
            }
            is_it
        };
        let first =
            tree::floor(&self.mem, root, &ItemKey::extent(ino, from), |key, _| match ItemKey::parse(key) {
                Some(DecodedKey::Extent(of, block)) if of == ino => block,
                _ => from,
            })?;
        tree::range(&self.mem, root, &ItemKey::extent(ino, first.unwrap_or(from)), &mut see)?;
        if wrong { Err(broken(ino, "an extent makes no sense")) } else { Ok(found) }
    }

    /// Returns the address of a block of a file; `None` for a hole.
    pub(crate) fn block_at(&self, root: BlockPtr, ino: u64, block: u64) -> FsResult<Option<BlockPtr>> {
        Ok(find(&self.extents(root, ino, block, block + 1)?, block))
    }

    /// Reads bytes of a file, as slices of blocks in memory. Returns fewer at the end of the file.
    pub(crate) fn read(
        &self,
        root: BlockPtr,
        ino: u64,
        offset: u64,
        count: u32,
    ) -> FsResult<VecDeque<Bytes>> {
        let it = self.attributes(root, ino)?;
        let end = it.size.min(offset.saturating_add(count.into()));
        if offset >= end {
            return Ok(VecDeque::new());
        }
        if self.is_inline(&it) {
            let mut content = self.inline(root, ino)?;
            content.resize(it.size as usize, 0);
            return Ok([Bytes::from(content).slice(offset as usize..end as usize)].into());
        }
        let content = self.mem.content() as u64;
        let (first, last) = (offset / content, (end - 1) / content);
        let extents = self.extents(root, ino, first, last + 1)?;
        let mut missing = Vec::new();
        let mut blocks: Vec<Option<BlockContent>> = Vec::with_capacity((last - first + 1) as usize);
        for block in first..=last {
            match find(&extents, block).map(|at| self.mem.glance(at)) {
                None => blocks.push(None),
                Some(Ok(block)) => blocks.push(Some(block)),
                Some(Err(tree::NodeMiss(at, _))) => missing.push(at),
            }
        }
        if !missing.is_empty() {
            return Err(OperationStop::Miss(missing));
        }
        let mut pieces = VecDeque::with_capacity(blocks.len());
        for (number, block) in (first..).zip(&blocks) {
            let start = number * content;
            let (from, to) = ((offset.max(start) - start) as usize, (end - start).min(content) as usize);
            match block {
                Some(block) => pieces.push_back(block.slice(from, to)),
                None => pieces.push_back(Bytes::from_static(&ZEROS[from..to])),
            }
        }
        Ok(pieces)
    }

    /// Writes bytes, and returns their offset. They go to the end if there is no offset or the file is append-only.
    pub(crate) fn write(
        &mut self,
        ino: u64,
        offset: Option<u64>,
        data: &[u8],
        muid: u32,
        now: Time,
    ) -> FsResult<u64> {
        let mut it = self.own(ino)?;
        let offset = offset.filter(|_| it.flags & APPEND == 0).unwrap_or(it.size);
        if data.is_empty() {
            return Ok(offset);
        }
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= SIZE_MAX).ok_or(Errno::EFBIG)?;
        self.before_growth(ino, &it, end)?;
        if self.is_inline(&it) && end <= self.inline_most() {
            let mut content = self.inline(self.mem.root, ino)?;
            self.touch(&[&ItemKey::inline(ino)])?;
            self.room(2)?;
            content.resize(content.len().max(end as usize), 0);
            content[offset as usize..end as usize].copy_from_slice(data);
            self.put(&ItemKey::inline(ino), &content);
        } else {
            self.write_blocks(ino, &mut it, offset, data)?;
        }
        it.size = it.size.max(end);
        it.version += 1;
        (it.mtime, it.ctime, it.muid) = (now, now, muid);
        self.set(ino, &it);
        Ok(offset)
    }

    /// Writes bytes into blocks. Inline content moves into a block first.
    fn write_blocks(&mut self, ino: u64, it: &mut InodeAttributes, offset: u64, data: &[u8]) -> FsResult<()> {
        let content = self.mem.content() as u64;
        let end = offset + data.len() as u64;
        let (first, last) = (offset / content, (end - 1) / content);
        let inline = if it.blocks == 0 { self.inline(self.mem.root, ino)? } else { Vec::new() };
        let around = self.extents(self.mem.root, ino, first.saturating_sub(1), last + 1)?;
        let mut missing = Vec::new();
        let mut old: Vec<Option<(BlockPtr, Option<BlockContent>)>> =
            Vec::with_capacity((last - first + 1) as usize);
        for number in first..=last {
            let at = find(&around, number);
            let whole = offset <= number * content && end >= (number + 1) * content;
            old.push(match at {
                None => None,
                Some(at) if whole => Some((at, None)),
                Some(at) => match self.mem.get(at) {
                    Ok(block) => Some((at, (!self.mem.may_change(at)).then_some(block))),
                    Err(tree::NodeMiss(at, _)) => {
                        missing.push(at);
                        None
                    }
                },
            });
        }
        if !missing.is_empty() {
            return Err(OperationStop::Miss(missing));
        }
        for key in [
            ItemKey::inline(ino),
            ItemKey::extent(ino, 0),
            ItemKey::extent(ino, first),
            ItemKey::extent(ino, last + 1),
        ] {
            self.touch(&[&key])?;
        }
        let new = old.iter().filter(|old| old.is_none()).count() as u64 + u64::from(!inline.is_empty());
        self.quota(it.uid, new * self.block())?;
        self.room(2 * (last - first + 1) + 8)?;

        let mut map = ExtentChange::new(&around);
        if !inline.is_empty() && first > 0 {
            let (at, block) = self.mem.grow(None, BlockKind::File, ino, 0);
            block[..inline.len()].copy_from_slice(&inline);
            map.put(0, at);
            self.more(it, 1);
        }
        for (number, old) in (first..).zip(old) {
            let start = number * content;
            let from = offset.max(start) - start;
            let to = end.min(start + content) - start;
            let part = &data[(start + from - offset) as usize..(start + to - offset) as usize];
            let (from, to) = (from as usize, to as usize);
            match old {
                Some((at, old)) if self.mem.may_change(at) => {
                    let whole = to - from == content as usize;
                    let block =
                        self.mem.change(at, (BlockKind::File, ino, number), whole).expect("it is in memory");
                    block[from..to].copy_from_slice(part);
                    drop(old);
                }
                old => {
                    let (at, block) = self.mem.grow(map.before(number), BlockKind::File, ino, number);
                    match &old {
                        Some((_, Some(old))) => block.copy_from_slice(old),
                        _ if number == 0 => block[..inline.len()].copy_from_slice(&inline),
                        _ => {}
                    }
                    block[from..to].copy_from_slice(part);
                    match old {
                        Some((old, _)) => self.mem.free(old),
                        None => self.more(it, 1),
                    }
                    map.put(number, at);
                }
            }
        }
        self.store(ino, map);
        if !inline.is_empty() {
            self.delete(&ItemKey::inline(ino));
        }
        Ok(())
    }

    /// Stores the changed extents of a map. New keys come first: deleting the last key of a leaf frees the leaf, and a
    /// later insertion would need its neighbour, which may not be in memory.
    fn store(&mut self, ino: u64, map: ExtentChange) {
        let ExtentChange { now, was } = map;
        for (first, extent) in &now {
            if was.get(first) != Some(extent) {
                self.put(&ItemKey::extent(ino, *first), &extent.encode());
            }
        }
        for first in was.keys().filter(|first| !now.contains_key(first)) {
            self.delete(&ItemKey::extent(ino, *first));
        }
    }

    fn more(&mut self, it: &mut InodeAttributes, blocks: u64) {
        it.blocks += blocks;
        self.blocks += blocks;
        self.charge(it.uid, blocks * self.block(), 0);
    }

    /// Changes the size of a file; the caller stores the attributes. Blocks beyond the new size are removed now or
    /// later: see [`shear`](Self::shear).
    pub(super) fn resize(&mut self, ino: u64, it: &mut InodeAttributes, size: u64) -> FsResult<()> {
        self.before_growth(ino, it, size)?;
        let inline = if it.blocks == 0 { self.inline(self.mem.root, ino)? } else { Vec::new() };
        self.touch(&[&ItemKey::inline(ino)])?;
        if !inline.is_empty() && size > self.inline_most() {
            // A hole follows the old content, which must therefore be in a block.
            self.touch(&[&ItemKey::extent(ino, 0)])?;
            self.quota(it.uid, self.block())?;
            self.room(8)?;
            let (at, block) = self.mem.grow(None, BlockKind::File, ino, 0);
            block[..inline.len()].copy_from_slice(&inline);
            self.put(&ItemKey::extent(ino, 0), &FileExtent { at, count: 1 }.encode());
            self.delete(&ItemKey::inline(ino));
            self.more(it, 1);
        } else if !inline.is_empty() && (inline.len() as u64) > size {
            self.room_to_remove()?;
            match size {
                0 => drop(self.delete(&ItemKey::inline(ino))),
                _ => self.put(&ItemKey::inline(ino), &inline[..size as usize]),
            }
        } else if it.blocks > 0 && size < it.size {
            self.shorten(ino, it, size)?;
        } else {
            self.room_to_remove()?;
        }
        it.size = size;
        it.version += 1;
        Ok(())
    }

    /// Returns whether blocks beyond the size of a file may still have to be removed.
    pub(crate) fn is_sheared(&self, ino: u64) -> bool {
        self.sheared.contains(&ino)
    }

    /// Before a file grows, removes one step of the blocks beyond its size, and lets the operation try again.
    fn before_growth(&mut self, ino: u64, it: &InodeAttributes, size: u64) -> FsResult<()> {
        if size > it.size && self.is_sheared(ino) {
            self.shear(ino)?;
            return Err(OperationStop::Again);
        }
        Ok(())
    }

    /// Removes some of the blocks beyond the size of a file. Returns whether none are left.
    pub(crate) fn shear(&mut self, ino: u64) -> FsResult<bool> {
        let mut it = self.own(ino)?;
        let size = it.size;
        let all = self.shorten(ino, &mut it, size)?;
        self.set(ino, &it);
        Ok(all)
    }

    /// Removes blocks beyond a size, last ones first, as many as one step may. Clears the rest of the last remaining
    /// block. Returns whether none are left; otherwise the file is recorded, like files without a name.
    fn shorten(&mut self, ino: u64, it: &mut InodeAttributes, size: u64) -> FsResult<bool> {
        let content = self.mem.content() as u64;
        let keep = size.div_ceil(content);
        let (mut gone, mut blocks, mut all) = (Vec::new(), 0, true);
        tree::back(&self.mem, self.mem.root, &ItemKey::extent(ino, u64::MAX), |key, value| {
            let (Some(DecodedKey::Extent(of, block)), Some(extent)) =
                (ItemKey::parse(key), FileExtent::decode(value))
            else {
                return false;
            };
            if of != ino || block + u64::from(extent.count) <= keep {
                return false;
            }
            if gone.len() >= SHEAR_STEP_MAX.0 || blocks >= SHEAR_STEP_MAX.1 {
                all = false;
                return false;
            }
            blocks += u64::from(extent.count);
            gone.push((block, extent));
            true
        })?;
        let tail = size % content;
        let around = self.extents(self.mem.root, ino, keep.saturating_sub(1), keep.saturating_add(1))?;
        let last = match find(&around, keep.wrapping_sub(1)).filter(|_| tail > 0 && size < it.size) {
            Some(at) => Some((at, self.mem.get(at).map_err(|_| OperationStop::Miss(vec![at]))?)),
            None => None,
        };
        let (first, orphan) = (ItemKey::extent(ino, keep.saturating_sub(1)), ItemKey::orphan(ino));
        self.touch(&[&first, &ItemKey::extent(ino, keep), &orphan])?;
        self.room_to_remove()?;
        if !all && self.sheared.insert(ino) {
            self.put(&orphan, &[]);
        }
        let mut map = ExtentChange::new(&around);
        for (block, extent) in gone {
            let stay = keep.saturating_sub(block).min(extent.count.into()) as u32;
            map.cut(block, extent, stay);
            let freed = self.free(extent.split(stay, extent.count - stay));
            it.blocks = it.blocks.saturating_sub(freed);
            self.charge(it.uid, 0, freed * self.block());
        }
        if let Some((at, old)) = last {
            let (number, tail) = (keep - 1, tail as usize);
            if self.mem.may_change(at) {
                drop(old);
                let block =
                    self.mem.change(at, (BlockKind::File, ino, number), false).expect("it is in memory");
                block[tail..].fill(0);
            } else {
                let (new, block) = self.mem.grow(None, BlockKind::File, ino, number);
                block[..tail].copy_from_slice(&old[..tail]);
                map.put(number, new);
                self.mem.free(at);
            }
        }
        self.store(ino, map);
        if all && self.sheared.remove(&ino) && it.links > 0 {
            self.delete(&orphan);
        }
        Ok(all)
    }
}

/// Returns the address of a block from a list of extents.
fn find(extents: &[NumberedExtent], block: u64) -> Option<BlockPtr> {
    let after = extents.partition_point(|(first, _)| *first <= block);
    let (first, extent) = extents.get(after.checked_sub(1)?)?;
    let skip = block - first;
    (skip < u64::from(extent.count)).then(|| extent.split(skip as u32, 1).at)
}

/// The extents of a file around a change, before and after it.
struct ExtentChange {
    now: BTreeMap<u64, FileExtent>,
    was: BTreeMap<u64, FileExtent>,
}

impl ExtentChange {
    fn new(around: &[NumberedExtent]) -> Self {
        let was: BTreeMap<u64, FileExtent> = around.iter().copied().collect();
        Self { now: was.clone(), was }
    }

    /// Returns the extent that contains a block.
    fn of(&self, block: u64) -> Option<NumberedExtent> {
        let (first, extent) = self.now.range(..=block).next_back()?;
        (block - first < u64::from(extent.count)).then_some((*first, *extent))
    }

    /// Returns the address of the block before this one.
    fn before(&self, block: u64) -> Option<u64> {
        let (first, extent) = self.of(block.checked_sub(1)?)?;
        Some(extent.at.at + (block - 1 - first))
    }

    /// Sets the address of a block. The block leaves its old extent, and joins the extent before it if their addresses
    /// are consecutive.
    fn put(&mut self, block: u64, at: BlockPtr) {
        if let Some((first, extent)) = self.of(block) {
            let skip = (block - first) as u32;
            self.now.remove(&first);
            if skip > 0 {
                self.now.insert(first, extent.split(0, skip));
            }
            if skip + 1 < extent.count {
                self.now.insert(block + 1, extent.split(skip + 1, extent.count - skip - 1));
            }
        }
        let goes_on = block.checked_sub(1).and_then(|before| self.of(before)).filter(|(_, extent)| {
            extent.at.at + u64::from(extent.count) == at.at
                && extent.at.made == at.made
                && extent.count < EXTENT_MAX
        });
        match goes_on {
            Some((first, extent)) if first + u64::from(extent.count) == block => {
                self.now.insert(first, FileExtent { count: extent.count + 1, ..extent });
            }
            _ => {
                self.now.insert(block, FileExtent { at, count: 1 });
            }
        }
    }

    /// Shortens an extent to its first `stay` blocks.
    fn cut(&mut self, first: u64, extent: FileExtent, stay: u32) {
        self.was.insert(first, extent);
        match stay {
            0 => drop(self.now.remove(&first)),
            stay => drop(self.now.insert(first, extent.split(0, stay))),
        }
    }
}
