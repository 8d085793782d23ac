//! Directories. Their entries are found by name, and by cookie in the order in which they were entered.

use nine_proto::{Errno, Time, mode};

use super::{ArchiveFs, FsResult, NewAcls, OWN, OperationStop, acl, broken};
use crate::item::{CookieEntry, DecodedKey, InodeAttributes, ItemKey, LONG_TARGET, NameEntry};
use crate::ptr::BlockPtr;
use crate::tree;

/// Maximum number of links of a file. Linux' file systems without another limit have the same.
const LINKS_MAX: u32 = 1 << 24;

/// Maximum depth of a directory into which another one is moved.
const DEEP: usize = 1 << 16;

impl ArchiveFs {
    /// Looks up a name in a directory. Does not handle `..`.
    pub(crate) fn lookup(&self, root: BlockPtr, dir: u64, name: &[u8]) -> FsResult<Option<NameEntry>> {
        match tree::get(&self.mem, root, &ItemKey::name(dir, name), NameEntry::decode)? {
            None => Ok(None),
            Some(Some(entry)) => Ok(Some(entry)),
            Some(None) => Err(broken(dir, "an entry makes no sense")),
        }
    }

    pub(super) fn directory(&self, ino: u64) -> FsResult<InodeAttributes> {
        let it = self.own(ino)?;
        match (it.is_dir(), it.links) {
            (false, _) => Err(Errno::ENOTDIR.into()),
            (true, 0) => Err(Errno::ENOENT.into()),
            _ => Ok(it),
        }
    }

    /// Calls `each` for the entries after `cookie`, in order, until it returns false. Its arguments are the entry's
    /// cookie and content.
    pub(crate) fn entries(
        &self,
        root: BlockPtr,
        dir: u64,
        cookie: u64,
        mut each: impl FnMut(u64, CookieEntry<'_>) -> bool,
    ) -> FsResult<()> {
        let Some(from) = cookie.checked_add(1) else { return Ok(()) };
        let mut wrong = false;
        tree::range(&self.mem, root, &ItemKey::cookie(dir, from), |key, value| {
            let Some(DecodedKey::Cookie(of, cookie)) = ItemKey::parse(key) else { return false };
            if of != dir {
                return false;
            }
            let Some(named) = CookieEntry::decode(value) else {
                wrong = true;
                return false;
            };
            each(cookie, named)
        })?;
        if wrong { Err(broken(dir, "an entry makes no sense")) } else { Ok(()) }
    }

    /// Creates a file and enters its name. Returns its inode. `content` is the target of a symbolic link.
    pub(crate) fn make(
        &mut self,
        dir: u64,
        name: &[u8],
        it: InodeAttributes,
        content: &[u8],
    ) -> FsResult<u64> {
        self.make_with(dir, name, it, content, &NewAcls::default())
    }

    /// The same with access control lists.
    pub(crate) fn make_with(
        &mut self,
        dir: u64,
        name: &[u8],
        it: InodeAttributes,
        content: &[u8],
        acls: &NewAcls,
    ) -> FsResult<u64> {
        let mut parent = self.directory(dir)?;
        if self.lookup(self.mem.root, dir, name)?.is_some() {
            return Err(Errno::EEXIST.into());
        }
        if it.is_dir() && parent.links >= LINKS_MAX {
            return Err(Errno::EMLINK.into());
        }
        // A long link target: see `LONG_TARGET`.
        let blocks = match content.len() as u64 > self.inline_most() {
            true => content.len().div_ceil(self.mem.content()) as u64,
            false => 0,
        };
        let lists: usize = acls.0.iter().map(|(kind, list)| kind.name().len() + list.len()).sum();
        self.quota(it.uid, OWN + lists as u64 + blocks * self.block())?;
        let ino = self.next_inode;
        if ino >= super::INODES {
            return Err(Errno::ENOSPC.into());
        }
        let (own, inline) = (ItemKey::attributes(ino), ItemKey::inline(ino));
        let extent = ItemKey::extent(ino, 0);
        self.touch(&[
            &own,
            &inline,
            &extent,
            &ItemKey::name(dir, name),
            &ItemKey::cookie(dir, parent.cookies + 1),
        ])?;
        for (kind, list) in &acls.0 {
            self.touch_pieces(ino, kind.name(), list.len())?;
        }
        self.room(8 + 2 * blocks + 8 * acls.0.len() as u64)?;

        self.next_inode += 1;
        let (links, cookies) = if it.is_dir() { (2, 2) } else { (1, 0) };
        let mut it =
            InodeAttributes { links, cookies, parent: dir, size: content.len() as u64, version: 1, ..it };
        if blocks > 0 {
            it.flags |= LONG_TARGET;
            self.fill(ino, &mut it, content);
        }
        for (kind, list) in &acls.0 {
            it.flags |= acl::flag(*kind);
            self.put_pieces(ino, kind.name(), list);
        }
        self.set(ino, &it);
        if !content.is_empty() && blocks == 0 {
            self.put(&inline, content);
        }
        self.charge(it.uid, OWN + lists as u64, 0);
        self.enter(dir, &mut parent, name, ino, it.kind(), it.btime);
        Ok(ino)
    }

    /// Enters a name. The caller has checked for room and loaded the paths.
    pub(super) fn enter(
        &mut self,
        dir: u64,
        parent: &mut InodeAttributes,
        name: &[u8],
        ino: u64,
        kind: u8,
        now: Time,
    ) {
        parent.cookies += 1;
        parent.size += 1;
        parent.links += u32::from(u32::from(kind) << 12 == mode::S_IFDIR);
        let cookie = parent.cookies;
        self.put(&ItemKey::name(dir, name), &NameEntry { ino, cookie, kind }.encode());
        self.put(&ItemKey::cookie(dir, cookie), &CookieEntry { ino, kind, name }.encode());
        self.touched(dir, parent, now);
    }

    fn leave(&mut self, dir: u64, parent: &mut InodeAttributes, name: &[u8], entry: NameEntry, now: Time) {
        parent.size = parent.size.saturating_sub(1);
        let is_dir = u32::from(entry.kind) << 12 == mode::S_IFDIR;
        parent.links = parent.links.saturating_sub(is_dir.into());
        self.delete(&ItemKey::name(dir, name));
        self.delete(&ItemKey::cookie(dir, entry.cookie));
        self.touched(dir, parent, now);
    }

    /// Updates a directory's times and version after a change of its entries.
    fn touched(&mut self, dir: u64, parent: &mut InodeAttributes, now: Time) {
        (parent.mtime, parent.ctime) = (now, now);
        parent.version += 1;
        self.set(dir, parent);
    }

    /// Enters another name of a file.
    pub(crate) fn link(&mut self, dir: u64, name: &[u8], ino: u64, now: Time) -> FsResult<()> {
        let mut parent = self.directory(dir)?;
        let mut it = self.own(ino)?;
        match () {
            () if it.is_dir() => return Err(Errno::EPERM.into()),
            () if it.links == 0 => return Err(Errno::ENOENT.into()),
            () if it.links >= LINKS_MAX => return Err(Errno::EMLINK.into()),
            () if self.lookup(self.mem.root, dir, name)?.is_some() => return Err(Errno::EEXIST.into()),
            () => {}
        }
        self.touch(&[&ItemKey::name(dir, name), &ItemKey::cookie(dir, parent.cookies + 1)])?;
        self.room(8)?;
        it.links += 1;
        (it.parent, it.ctime) = (dir, now);
        self.set(ino, &it);
        self.enter(dir, &mut parent, name, ino, it.kind(), now);
        Ok(())
    }

    /// Removes a name, and returns the inode. With `dir_only` it must be, or must not be, a directory. `live` tells
    /// whether a file is in use.
    pub(crate) fn unlink(
        &mut self,
        dir: u64,
        name: &[u8],
        dir_only: Option<bool>,
        live: impl Fn(u64) -> bool,
        now: Time,
    ) -> FsResult<u64> {
        let mut parent = self.directory(dir)?;
        let entry = self.lookup(self.mem.root, dir, name)?.ok_or(Errno::ENOENT)?;
        let it = self.own(entry.ino)?;
        match (it.is_dir(), dir_only) {
            (true, Some(false)) => return Err(Errno::EISDIR.into()),
            (false, Some(true)) => return Err(Errno::ENOTDIR.into()),
            (true, _) if it.size > 0 => return Err(Errno::ENOTEMPTY.into()),
            _ => {}
        }
        self.touch(&[&ItemKey::cookie(dir, entry.cookie)])?;
        let gone = self.before_drop(entry.ino, &it, live(entry.ino))?;
        self.room_to_remove()?;
        // New keys come first (see `store`).
        let gone = self.lose_link(entry.ino, it, gone, now);
        self.leave(dir, &mut parent, name, entry, now);
        self.finish(gone);
        Ok(entry.ino)
    }

    /// Renames a file, replacing any file with the new name. Returns the inode that was moved, and the one replaced.
    /// `also` runs in the same change, when no error can follow.
    pub(crate) fn rename(
        &mut self,
        (from, old): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        live: impl Fn(u64) -> bool,
        now: Time,
        also: impl FnOnce(&mut Self) -> FsResult<()>,
    ) -> FsResult<(u64, Option<u64>)> {
        let mut source = self.directory(from)?;
        let mut target = self.directory(to)?;
        let entry = self.lookup(self.mem.root, from, old)?.ok_or(Errno::ENOENT)?;
        let it = self.own(entry.ino)?;
        if it.is_dir() {
            self.not_below(entry.ino, to)?;
        }
        let there = self.lookup(self.mem.root, to, new)?;
        let mut gone = None;
        if let Some(there) = there {
            if there.ino == entry.ino {
                also(self)?;
                return Ok((entry.ino, None));
            }
            let other = self.own(there.ino)?;
            match (other.is_dir(), it.is_dir()) {
                (true, false) => return Err(Errno::EISDIR.into()),
                (false, true) => return Err(Errno::ENOTDIR.into()),
                (true, true) if other.size > 0 => return Err(Errno::ENOTEMPTY.into()),
                _ => {}
            }
            self.touch(&[&ItemKey::cookie(to, there.cookie)])?;
            gone = Some((there, other, self.before_drop(there.ino, &other, live(there.ino))?));
        }
        self.touch(&[
            &ItemKey::cookie(from, entry.cookie),
            &ItemKey::name(to, new),
            &ItemKey::cookie(to, target.cookies + 1),
        ])?;
        self.room(16)?;
        also(self)?;
        let mut it = self.own(entry.ino).expect("it is in memory, above");

        let went = there.map(|there| there.ino);
        // New keys come first (see `store`): the new name replaces the old entry.
        let is_dir = u32::from(it.is_dir());
        let gone = gone.map(|(there, other, how)| (there, self.lose_link(there.ino, other, how, now)));
        target.cookies += 1;
        let cookie = target.cookies;
        let (ino, kind) = (entry.ino, entry.kind);
        self.put(&ItemKey::cookie(to, cookie), &CookieEntry { ino, kind, name: new }.encode());
        self.put(&ItemKey::name(to, new), &NameEntry { ino, cookie, kind }.encode());
        if went.is_some() {
            // Either both files are directories, or neither is.
            target.links = target.links.saturating_sub(is_dir);
            target.size = target.size.saturating_sub(1);
        }
        target.links += is_dir;
        target.size += 1;
        self.touched(to, &mut target, now);
        if from == to {
            source = target;
        }
        self.leave(from, &mut source, old, entry, now);
        (it.parent, it.ctime) = (to, now);
        self.set(entry.ino, &it);
        if let Some((there, gone)) = gone {
            self.delete(&ItemKey::cookie(to, there.cookie));
            self.finish(gone);
        }
        Ok((entry.ino, went))
    }

    /// Exchanges the files of two names. Returns the inodes that had the first and the second name.
    pub(crate) fn exchange(
        &mut self,
        (from, old): (u64, &[u8]),
        (to, new): (u64, &[u8]),
        now: Time,
    ) -> FsResult<(u64, u64)> {
        let mut source = self.directory(from)?;
        let mut target = self.directory(to)?;
        let this = self.lookup(self.mem.root, from, old)?.ok_or(Errno::ENOENT)?;
        let that = self.lookup(self.mem.root, to, new)?.ok_or(Errno::ENOENT)?;
        let (mut a, mut b) = (self.own(this.ino)?, self.own(that.ino)?);
        if this.ino == that.ino {
            return Ok((this.ino, that.ino));
        }
        if a.is_dir() {
            self.not_below(this.ino, to)?;
        }
        if b.is_dir() {
            self.not_below(that.ino, from)?;
        }
        self.touch(&[&ItemKey::cookie(from, this.cookie), &ItemKey::cookie(to, that.cookie)])?;
        self.room(16)?;

        for (dir, name, cookie, NameEntry { ino, kind, .. }) in
            [(to, new, that.cookie, this), (from, old, this.cookie, that)]
        {
            self.put(&ItemKey::cookie(dir, cookie), &CookieEntry { ino, kind, name }.encode());
            self.put(&ItemKey::name(dir, name), &NameEntry { ino, cookie, kind }.encode());
        }
        if from == to {
            self.touched(to, &mut target, now);
        } else {
            // A directory has one link for each directory in it.
            target.links = (target.links + u32::from(a.is_dir())).saturating_sub(b.is_dir().into());
            source.links = (source.links + u32::from(b.is_dir())).saturating_sub(a.is_dir().into());
            self.touched(to, &mut target, now);
            self.touched(from, &mut source, now);
        }
        // Neither file is one of the two parents: `not_below` has refused that.
        (a.parent, a.ctime) = (to, now);
        (b.parent, b.ctime) = (from, now);
        self.set(this.ino, &a);
        self.set(that.ino, &b);
        Ok((this.ino, that.ino))
    }

    /// Refuses to move a directory into itself or below itself.
    fn not_below(&self, moved: u64, to: u64) -> FsResult<()> {
        let mut at = to;
        for _ in 0..DEEP {
            if at == moved {
                return Err(Errno::EINVAL.into());
            }
            if at == super::ROOT {
                return Ok(());
            }
            at = self.own(at)?.parent;
        }
        Err(OperationStop::Error(Errno::ELOOP.into()))
    }

    /// Returns the path of an inode, for messages. Components that cannot be found are shown as `#` and the inode.
    pub(crate) fn path(&self, root: BlockPtr, ino: u64) -> FsResult<String> {
        let (mut path, mut at) = (String::new(), ino);
        while at != super::ROOT && path.len() < 4096 {
            let parent = self.attributes(root, at)?.parent;
            let mut name = format!("#{at}");
            self.entries(root, parent, 0, |_, named| {
                let is_it = named.ino == at;
                if is_it {
                    name = String::from_utf8_lossy(named.name).into();
                }
                !is_it
            })?;
            path = format!("/{name}{path}");
            at = parent;
        }
        Ok(if path.is_empty() { "/".into() } else { path })
    }
}
