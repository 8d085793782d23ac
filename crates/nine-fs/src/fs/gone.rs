//! Removal of files: with their last name, or, if they are large or in use, later and in parts.

use nine_proto::Time;

use super::{Fs, OWN, Op};
use crate::item::{Attributes, Extent, Key, What};
use crate::tree;

/// Maximum number of items of a file that one step removes.
const ITEMS: usize = 64;
/// Maximum number of its blocks that one step removes.
const BLOCKS: usize = 8192;

/// How a file that has lost a name is removed.
pub(super) enum How {
    /// Not at all: it has other names.
    Stays,
    /// At once: these are all its items.
    Now(Vec<Item>),
    /// Later: it is in use, too large for one step, or already recorded.
    Later,
}

/// A key of the file, its extent if it is one, and its charged bytes.
pub(super) type Item = (Vec<u8>, Option<Extent>, u64);

/// A file that is removed at once.
pub(super) type Going = (u64, Attributes, Vec<Item>);

impl Fs {
    /// Returns the items of a file without its attributes, as many as one step removes; and whether these are all.
    fn items(&self, ino: u64) -> Op<(Vec<Item>, bool)> {
        let (mut items, mut blocks, mut all) = (Vec::new(), 0, true);
        tree::range(&self.mem, self.mem.root, &Key::inline(ino), |key, value| {
            if key >= &Key::end(ino)[..] {
                return false;
            }
            if items.len() >= ITEMS || blocks >= BLOCKS {
                all = false;
                return false;
            }
            let (extent, bytes) = match Key::parse(key) {
                Some(What::Extent(..)) => (Extent::decode(value), 0),
                Some(What::Xattr(_, name, 0)) => (None, (name.len() + value.len()) as u64),
                Some(What::Xattr(..)) => (None, value.len() as u64),
                _ => (None, 0),
            };
            blocks += extent.map_or(0, |extent| extent.count as usize);
            items.push((key.to_vec(), extent, bytes));
            true
        })?;
        Ok((items, all))
    }

    /// Decides how a file that loses a name is removed. Afterwards all that this needs is in memory.
    pub(super) fn before_drop(&self, ino: u64, it: &Attributes, live: bool) -> Op<How> {
        self.touch(&[&Key::attributes(ino), &Key::orphan(ino)])?;
        if !it.is_dir() && it.links > 1 {
            return Ok(How::Stays);
        }
        if live || self.is_sheared(ino) {
            return Ok(How::Later);
        }
        let (items, all) = self.items(ino)?;
        Ok(if all { How::Now(items) } else { How::Later })
    }

    /// Takes a link from a file. Returns the file if [`finish`](Self::finish) must remove it.
    pub(super) fn lose_link(&mut self, ino: u64, mut it: Attributes, how: How, now: Time) -> Option<Going> {
        it.links = if it.is_dir() { 0 } else { it.links.saturating_sub(1) };
        it.ctime = now;
        match how {
            How::Now(items) => return Some((ino, it, items)),
            How::Stays => {}
            How::Later => self.put(&Key::orphan(ino), &[]),
        }
        self.set(ino, &it);
        None
    }

    /// Removes the file that `lose_link` has returned.
    pub(super) fn finish(&mut self, going: Option<Going>) {
        if let Some((ino, mut it, items)) = going {
            self.remove(ino, &mut it, &items, true);
        }
    }

    fn remove(&mut self, ino: u64, it: &mut Attributes, items: &[Item], all: bool) {
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
            self.delete(&Key::attributes(ino));
            self.charge(it.uid, 0, OWN);
        } else {
            self.set(ino, it);
        }
    }

    /// Frees the blocks of an extent. Returns their number.
    pub(super) fn free(&mut self, extent: Extent) -> u64 {
        if self.mem.is_current(extent.at) {
            (0..extent.count).for_each(|n| self.mem.free(extent.split(n, 1).at));
        }
        self.blocks = self.blocks.saturating_sub(extent.count.into());
        extent.count.into()
    }

    /// Removes a part of a file without a name, or of the blocks beyond its size. Returns whether that is complete.
    pub(crate) fn reap(&mut self, ino: u64) -> Op<bool> {
        let mut it = match self.own(ino) {
            Err(super::Stop::Error(_)) => {
                self.touch(&[&Key::orphan(ino)])?;
                self.room_to_remove()?;
                self.delete(&Key::orphan(ino));
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
        self.touch(&[&Key::orphan(ino), &Key::attributes(ino)])?;
        self.room_to_remove()?;
        self.remove(ino, &mut it, &items, all);
        if all {
            self.delete(&Key::orphan(ino));
        }
        Ok(all)
    }

    /// Returns the recorded files: those without a name, and those with blocks beyond their size.
    pub(crate) fn orphans(&mut self) -> Op<Vec<u64>> {
        let mut found = Vec::new();
        tree::range(&self.mem, self.mem.root, &Key::orphan(0), |key, _| {
            let Some(What::Orphan(ino)) = Key::parse(key) else { return false };
            found.push(ino);
            true
        })?;
        self.sheared.extend(&found);
        Ok(found)
    }
}
