//! Removal of files: with their last name, or, if they are large or in use, later and in parts.

use nine_proto::Time;

use super::{ArchiveFs, FsResult, OWN};
use crate::item::{DecodedKey, FileExtent, InodeAttributes, ItemKey};
use crate::tree;

/// Maximum number of items of a file that one step removes.
const ITEMS: usize = 64;
/// Maximum number of its blocks that one step removes.
const BLOCKS: usize = 8192;

/// How a file that has lost a name is removed.
pub(super) enum RemovalMode {
    /// Not at all: it has other names.
    Stays,
    /// At once: these are all its items.
    Now(Vec<RemovedItem>),
    /// Later: it is in use, too large for one step, or already recorded.
    Later,
}

/// A key of the file, its extent if it is one, and its charged bytes.
pub(super) type RemovedItem = (Vec<u8>, Option<FileExtent>, u64);

/// A file that is removed at once.
pub(super) type RemovedFile = (u64, InodeAttributes, Vec<RemovedItem>);

impl ArchiveFs {
    /// Returns the items of a file without its attributes, as many as one step removes; and whether these are all.
    fn items(&self, ino: u64) -> FsResult<(Vec<RemovedItem>, bool)> {
        let (mut items, mut blocks, mut all) = (Vec::new(), 0, true);
        tree::range(&self.mem, self.mem.root, &ItemKey::inline(ino), |key, value| {
            if key >= &ItemKey::end(ino)[..] {
                return false;
            }
            if items.len() >= ITEMS || blocks >= BLOCKS {
                all = false;
                return false;
            }
            let (extent, bytes) = match ItemKey::parse(key) {
                Some(DecodedKey::Extent(..)) => (FileExtent::decode(value), 0),
                Some(DecodedKey::Xattr(_, name, 0)) => (None, (name.len() + value.len()) as u64),
                Some(DecodedKey::Xattr(..)) => (None, value.len() as u64),
                _ => (None, 0),
            };
            blocks += extent.map_or(0, |extent| extent.count as usize);
            items.push((key.to_vec(), extent, bytes));
            true
        })?;
        Ok((items, all))
    }

    /// Decides how a file that loses a name is removed. Afterwards all that this needs is in memory.
    pub(super) fn before_drop(&self, ino: u64, it: &InodeAttributes, live: bool) -> FsResult<RemovalMode> {
        self.touch(&[&ItemKey::attributes(ino), &ItemKey::orphan(ino)])?;
        if !it.is_dir() && it.links > 1 {
            return Ok(RemovalMode::Stays);
        }
        if live || self.is_sheared(ino) {
            return Ok(RemovalMode::Later);
        }
        let (items, all) = self.items(ino)?;
        Ok(if all { RemovalMode::Now(items) } else { RemovalMode::Later })
    }

    /// Takes a link from a file. Returns the file if [`finish`](Self::finish) must remove it.
    pub(super) fn lose_link(
        &mut self,
        ino: u64,
        mut it: InodeAttributes,
        how: RemovalMode,
        now: Time,
    ) -> Option<RemovedFile> {
        it.links = if it.is_dir() { 0 } else { it.links.saturating_sub(1) };
        it.ctime = now;
        match how {
            RemovalMode::Now(items) => return Some((ino, it, items)),
            RemovalMode::Stays => {}
            RemovalMode::Later => self.put(&ItemKey::orphan(ino), &[]),
        }
        self.set(ino, &it);
        None
    }

    /// Removes the file that `lose_link` has returned.
    pub(super) fn finish(&mut self, going: Option<RemovedFile>) {
        if let Some((ino, mut it, items)) = going {
            self.remove(ino, &mut it, &items, true);
        }
    }

    fn remove(&mut self, ino: u64, it: &mut InodeAttributes, items: &[RemovedItem], all: bool) {
        let (mut blocks, mut bytes) = (0, 0);
        for (key, extent, charged) in items {
            self.delete(key);
            bytes += charged;
            if let Some(extent) = extent {
                blocks += self.free(*extent);
            }
        }
        it.blocks = it.blocks.saturating_sub(blocks);
        self.charge(it.uid, 0, blocks * self.block() + bytes);
        if all {
            self.delete(&ItemKey::attributes(ino));
            self.charge(it.uid, 0, OWN);
        } else {
            self.set(ino, it);
        }
    }

    /// Frees the blocks of an extent. Returns their number.
    pub(super) fn free(&mut self, extent: FileExtent) -> u64 {
        if self.mem.is_current(extent.at) {
            (0..extent.count).for_each(|n| self.mem.free(extent.split(n, 1).at));
        }
        self.blocks = self.blocks.saturating_sub(extent.count.into());
        extent.count.into()
    }

    /// Removes a part of a file without a name, or of the blocks beyond its size. Returns whether that is complete.
    pub(crate) fn reap(&mut self, ino: u64) -> FsResult<bool> {
        let mut it = match self.own(ino) {
            Err(super::OperationStop::Error(_)) => {
                self.touch(&[&ItemKey::orphan(ino)])?;
                self.room_to_remove()?;
                self.delete(&ItemKey::orphan(ino));
                return Ok(true);
            }
            it => it?,
        };
        if self.is_sheared(ino) {
            return Ok(self.shear(ino)? && it.links > 0);
        }
        if it.links > 0 {
            return Ok(true);
        }
        let (items, all) = self.items(ino)?;
        self.touch(&[&ItemKey::orphan(ino), &ItemKey::attributes(ino)])?;
        self.room_to_remove()?;
        self.remove(ino, &mut it, &items, all);
        if all {
            self.delete(&ItemKey::orphan(ino));
        }
        Ok(all)
    }

    /// Returns the recorded files: those without a name, and those with blocks beyond their size.
    pub(crate) fn orphans(&mut self) -> FsResult<Vec<u64>> {
        let mut found = Vec::new();
        tree::range(&self.mem, self.mem.root, &ItemKey::orphan(0), |key, _| {
            let Some(DecodedKey::Orphan(ino)) = ItemKey::parse(key) else { return false };
            found.push(ino);
            true
        })?;
        self.sheared.extend(&found);
        Ok(found)
    }
}
