//! Repairs of the tree, one for each finding of a check.
//!
//! In: a repair, for a tree that nothing else changes. Out: one ordinary change of the tree.

use nine_proto::{Errno, Error, Time, mode};

use super::{ArchiveFs, FsResult, OperationStop, ROOT, TARGET_MAX};
use crate::check::TreeRepair;
use crate::item::{
    ACCESS_ACL, CookieEntry, DEFAULT_ACL, DecodedKey, InodeAttributes, ItemKey, ItemKind, LONG_TARGET,
    NameEntry, UserUsage,
};
use crate::tree;

/// The directory for files that have lost their name.
const FOUND: &[u8] = b"lost+found";

impl ArchiveFs {
    /// Performs a repair.
    pub(crate) fn mend(&mut self, mend: &TreeRepair, now: Time) -> FsResult<()> {
        match *mend {
            // Rows are not part of the tree.
            TreeRepair::Row(_) => Ok(()),
            TreeRepair::Links(ino, links) => self.amend(ino, |it| it.links = links),
            TreeRepair::Entries(ino, entries) => self.amend(ino, |it| it.size = entries),
            TreeRepair::Cookies(ino, last) => self.amend(ino, |it| it.cookies = last),
            TreeRepair::Parent(ino, parent) => self.amend(ino, |it| it.parent = parent),
            TreeRepair::Acls(ino, flags) => {
                self.amend(ino, |it| it.flags = it.flags & !(ACCESS_ACL | DEFAULT_ACL) | flags)
            }
            TreeRepair::Blocks(ino, blocks) => self.amend(ino, |it| it.blocks = blocks),
            TreeRepair::Noted(ino, is_noted) => {
                let key = ItemKey::orphan(ino);
                self.before(&[&key])?;
                match is_noted {
                    true => self.put(&key, &[]),
                    false => drop(self.delete(&key)),
                }
                Ok(())
            }
            TreeRepair::Cell(ref key) => {
                self.before(&[key])?;
                self.delete(key);
                Ok(())
            }
            TreeRepair::Pair(dir, cookie) => self.pair(dir, cookie),
            TreeRepair::Name(dir, cookie) => {
                let Some((name, _)) = self.name_of(dir, cookie)? else { return Ok(()) };
                let (name, cookie) = (ItemKey::name(dir, &name), ItemKey::cookie(dir, cookie));
                self.before(&[&name, &cookie])?;
                self.delete(&name);
                self.delete(&cookie);
                Ok(())
            }
            TreeRepair::Attributes { ino, kind, size, cookies, parent } => {
                self.before(&[&ItemKey::attributes(ino)])?;
                let mode = u32::from(kind) << 12 | 0o600;
                let is_long = mode & mode::S_IFMT == mode::S_IFLNK && size > self.inline_most();
                let (size, flags) =
                    if is_long { (size.min(TARGET_MAX as u64), LONG_TARGET) } else { (size, 0) };
                let parent = if parent == 0 { ROOT } else { parent };
                let times = InodeAttributes {
                    atime: now,
                    mtime: now,
                    ctime: now,
                    btime: now,
                    ..InodeAttributes::default()
                };
                // Later repairs correct the counts.
                self.set(
                    ino,
                    &InodeAttributes { mode, size, flags, cookies, parent, links: 1, version: 1, ..times },
                );
                Ok(())
            }
            TreeRepair::Found(ino) => self.found(ino, now),
            TreeRepair::Usage(uid, bytes) => {
                self.room_to_remove()?;
                self.usage.entry(uid).or_insert(UserUsage { bytes: 0, most: 0 }).bytes = bytes;
                self.used.insert(uid);
                Ok(())
            }
            TreeRepair::All(blocks) => {
                self.blocks = blocks;
                Ok(())
            }
            TreeRepair::Next(ino) => {
                self.next_inode = self.next_inode.max(ino);
                Ok(())
            }
        }
    }

    /// Ensures that these keys may be changed.
    fn before(&self, keys: &[&[u8]]) -> FsResult<()> {
        self.touch(keys)?;
        self.room_to_remove()
    }

    fn amend(&mut self, ino: u64, change: impl FnOnce(&mut InodeAttributes)) -> FsResult<()> {
        let mut it = self.own(ino)?;
        self.before(&[&ItemKey::attributes(ino)])?;
        change(&mut it);
        self.set(ino, &it);
        Ok(())
    }

    /// Finds the name in a directory that has this cookie.
    fn name_of(&self, dir: u64, cookie: u64) -> FsResult<Option<(Vec<u8>, NameEntry)>> {
        let mut found = None;
        tree::range(&self.mem, self.mem.root, &ItemKey::start_of(dir, ItemKind::Name), |key, value| {
            let Some(DecodedKey::Name(of, name)) = ItemKey::parse(key).filter(|_| found.is_none()) else {
                return false;
            };
            if of != dir {
                return false;
            }
            let entry = NameEntry::decode(value).filter(|entry| entry.cookie == cookie);
            found = entry.map(|entry| (name.to_vec(), entry));
            true
        })?;
        Ok(found)
    }

    /// Makes the name and the cookie of an entry agree. A missing one is restored from the other; where they differ the
    /// name wins.
    fn pair(&mut self, dir: u64, cookie: u64) -> FsResult<()> {
        let own = ItemKey::cookie(dir, cookie);
        if let Some((name, NameEntry { ino, kind, .. })) = self.name_of(dir, cookie)? {
            self.before(&[&own])?;
            self.put(&own, &CookieEntry { ino, kind, name: &name }.encode());
            return Ok(());
        }
        let named = tree::get(&self.mem, self.mem.root, &own, <[u8]>::to_vec)?;
        let lost = named.as_deref().and_then(CookieEntry::decode);
        let Some(CookieEntry { ino, kind, name }) = lost else {
            self.before(&[&own])?;
            self.delete(&own);
            return Ok(());
        };
        let key = ItemKey::name(dir, name);
        let is_taken = tree::get(&self.mem, self.mem.root, &key, |_| ())?.is_some();
        self.before(&[&own, &key])?;
        match is_taken {
            true => drop(self.delete(&own)),
            false => self.put(&key, &NameEntry { ino, cookie, kind }.encode()),
        }
        Ok(())
    }

    /// Gives a file without a name one in `lost+found`.
    fn found(&mut self, ino: u64, now: Time) -> FsResult<()> {
        let mut it = self.own(ino)?;
        let Some(NameEntry { ino: dir, .. }) = self.lookup(self.mem.root, ROOT, FOUND)? else {
            let InodeAttributes { uid, gid, .. } = self.own(ROOT)?;
            let times = InodeAttributes {
                atime: now,
                mtime: now,
                ctime: now,
                btime: now,
                ..InodeAttributes::default()
            };
            self.make(ROOT, FOUND, InodeAttributes { mode: mode::S_IFDIR | 0o700, uid, gid, ..times }, b"")?;
            return Err(OperationStop::Again);
        };
        let mut parent = self.directory(dir).map_err(|stop| match stop {
            OperationStop::Error(_) => {
                let text = "/lost+found is no directory: call it otherwise, and repair again";
                OperationStop::Error(Error::new(Errno::ENOTDIR, text))
            }
            stop => stop,
        })?;
        let name = ino.to_string();
        let key = ItemKey::name(dir, name.as_bytes());
        self.before(&[&ItemKey::attributes(ino), &key, &ItemKey::cookie(dir, parent.cookies + 1)])?;
        if self.lookup(self.mem.root, dir, name.as_bytes())?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        it.parent = dir;
        it.links = if it.is_dir() { it.links.max(2) } else { 1 };
        self.set(ino, &it);
        self.enter(dir, &mut parent, name.as_bytes(), ino, it.kind(), now);
        Ok(())
    }
}
