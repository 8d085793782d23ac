//! Extended attributes. Their values are stored in pieces.

use nine_io::server::xattr::{XATTR_CREATE, XATTR_REPLACE};
use nine_proto::{Errno, Time};

use super::{ArchiveFs, FsResult, broken};
use crate::item::{DecodedKey, InodeAttributes, ItemKey, XATTR_PIECE_LEN, XATTR_PIECES_MAX};
use crate::ptr::BlockPtr;
use crate::tree;

/// Maximum bytes of a value, as in Linux.
const VALUE_MAX: usize = XATTR_PIECE_LEN * XATTR_PIECES_MAX as usize;
/// Maximum bytes of all names and values of a file, because one step may have to read them all.
const ALL_XATTRS_MAX: u64 = 256 << 10;

impl ArchiveFs {
    /// Returns the value of an attribute, if the file has it.
    pub(crate) fn xattr(&self, root: BlockPtr, ino: u64, name: &[u8]) -> FsResult<Option<Vec<u8>>> {
        let mut value: Option<Vec<u8>> = None;
        let mut next = 0;
        tree::range(&self.mem, root, &ItemKey::xattr(ino, name, 0), |key, piece| {
            let is_it = matches!(ItemKey::parse(key), Some(DecodedKey::Xattr(of, its, n))
                if of == ino && its == name && n == next);
            if is_it {
                value.get_or_insert_default().extend_from_slice(piece);
                next += 1;
            }
            is_it
        })?;
        Ok(value)
    }

    /// Returns the names of all attributes, each followed by a zero byte.
    pub(crate) fn xattrs(&self, root: BlockPtr, ino: u64) -> FsResult<Vec<u8>> {
        let mut names = Vec::new();
        tree::range(&self.mem, root, &ItemKey::start_of(ino, crate::item::ItemKind::Xattr), |key, _| {
            match ItemKey::parse(key) {
                Some(DecodedKey::Xattr(of, name, piece)) if of == ino => {
                    if piece == 0 {
                        names.extend_from_slice(name);
                        names.push(0);
                    }
                    true
                }
                _ => false,
            }
        })?;
        Ok(names)
    }

    /// Returns the bytes of all names and values.
    pub(super) fn xattr_bytes(&self, root: BlockPtr, ino: u64) -> FsResult<u64> {
        let mut bytes = 0;
        tree::range(&self.mem, root, &ItemKey::start_of(ino, crate::item::ItemKind::Xattr), |key, value| {
            let Some(DecodedKey::Xattr(of, name, piece)) = ItemKey::parse(key) else { return false };
            if of == ino {
                bytes += value.len() as u64 + if piece == 0 { name.len() as u64 } else { 0 };
            }
            of == ino
        })?;
        Ok(bytes)
    }

    /// Sets or replaces an attribute. An empty value with `XATTR_REPLACE` removes it: this is how Linux asks.
    pub(crate) fn set_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        now: Time,
    ) -> FsResult<()> {
        if value.len() > VALUE_MAX {
            return Err(Errno::E2BIG.into());
        }
        let old = self.xattr(self.mem.root, ino, name)?;
        match (&old, flags) {
            (None, XATTR_REPLACE) => return Err(Errno::ENODATA.into()),
            (Some(_), XATTR_CREATE) => return Err(Errno::EEXIST.into()),
            _ => {}
        }
        let is_removed = value.is_empty() && flags == XATTR_REPLACE;
        self.replace_xattr(ino, name, (!is_removed).then_some(value), now, |_| ())
    }

    /// Sets an attribute, or without a value removes it. `amend` changes the inode's attributes in the same step.
    pub(super) fn replace_xattr(
        &mut self,
        ino: u64,
        name: &[u8],
        value: Option<&[u8]>,
        now: Time,
        amend: impl FnOnce(&mut InodeAttributes),
    ) -> FsResult<()> {
        let mut it = self.own(ino)?;
        let old = self.xattr(self.mem.root, ino, name)?;
        let (before, after) =
            (old.as_ref().map_or(0, |old| pieces(old.len())), value.map_or(0, |v| pieces(v.len())));
        let cost = |value: usize| (name.len() + value) as u64;
        let before_cost = old.as_ref().map_or(0, |old| cost(old.len()));
        let after_cost = value.map_or(0, |value| cost(value.len()));
        let all = self.xattr_bytes(self.mem.root, ino)?;
        if value.is_some() && all - before_cost + after_cost > ALL_XATTRS_MAX {
            return Err(Errno::ENOSPC.into());
        }
        self.quota(it.uid, after_cost.saturating_sub(before_cost))?;
        for piece in 0..before.max(after) {
            self.touch(&[&ItemKey::xattr(ino, name, piece)])?;
        }
        match value {
            Some(_) => self.room(u64::from(after) + 8)?,
            None => self.room_to_remove()?,
        }
        value.into_iter().for_each(|value| self.put_pieces(ino, name, value));
        for piece in after..before {
            if !self.delete(&ItemKey::xattr(ino, name, piece)) {
                return Err(broken(ino, "a piece of an attribute is missing"));
            }
        }
        self.charge(it.uid, after_cost, before_cost);
        it.ctime = now;
        amend(&mut it);
        self.set(ino, &it);
        Ok(())
    }

    /// Ensures that the paths to all pieces of an attribute with this length are in memory.
    pub(super) fn touch_pieces(&self, ino: u64, name: &[u8], len: usize) -> FsResult<()> {
        (0..pieces(len)).try_for_each(|piece| self.touch(&[&ItemKey::xattr(ino, name, piece)]))
    }

    /// Writes a value. The caller has checked for room and loaded the paths.
    pub(super) fn put_pieces(&mut self, ino: u64, name: &[u8], value: &[u8]) {
        for piece in 0..pieces(value.len()) {
            let from = usize::from(piece) * XATTR_PIECE_LEN;
            self.put(
                &ItemKey::xattr(ino, name, piece),
                &value[from..value.len().min(from + XATTR_PIECE_LEN)],
            );
        }
    }
}

/// Returns the number of pieces of a value.
fn pieces(len: usize) -> u16 {
    len.div_ceil(XATTR_PIECE_LEN).max(1) as u16
}
