//! A name space that a partition composes for itself: trees of several channels, mounted and bound.
//!
//! In: clients of hosts, and paths. Out: files. A path is absolute. `.` and `..` in it are resolved lexically,
//! without a request. A mount point is a place, that is a host's tree and a path in it, as in a mux. So the mounted
//! files are seen on every path that leads to the place.
//!
//! Always holds:
//! - A walk visits each name of its path once and crosses at most one mount point at it, for any bindings.
//! - A place without a mount causes no request until the last name. In a union, each member is asked at each name
//!   that may be in several.
//!
//! Concurrency: one thread uses a space and its files. No file calls back while its channel is in use.

use alloc::rc::Rc;
use alloc::string::String;
use alloc::vec::Vec;
use core::cell::RefCell;
use core::ops::RangeBounds;
use core::time::Duration;

use nine_proto::{Errno, Error, OpenFlags, Qid, Result};

use crate::client::{Client, File, Metadata};
use crate::line::Line;
use crate::transfer::Buffer;

/// A client that several mounts and files share.
pub type Shared<L> = Rc<RefCell<Client<L>>>;

/// The name space of a partition.
pub struct Space<L: Line> {
    /// At most 256; then `ENOSPC`.
    heads: Vec<Mhead<L>>,
}

/// How a mount is combined with the files or mounts already at its place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// It hides them.
    #[default]
    Replace,
    /// It is searched first, and files are created there.
    Before,
    /// It is searched last.
    After,
}

/// An open file of a name space.
pub struct Opened<L: Line> {
    client: Shared<L>,
    file: File,
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// The qid; of a mount point, that of the mounted file.
    pub qid: Qid,
}

/// The root of a host's tree, shared by its mounts.
struct MountedTree<L: Line> {
    client: Shared<L>,
    root: File,
}

/// The place of a file, which need not exist. `None`: in the empty tree below which a name space starts.
pub(crate) struct FileLocation<L: Line> {
    tree: Option<Rc<MountedTree<L>>>,
    /// Names separated by slashes.
    path: String,
}

/// A mount point and its contents: one place, or a union of at most 16, then `ENOSPC`.
struct Mhead<L: Line> {
    from: FileLocation<L>,
    to: Vec<FileLocation<L>>,
    /// The qid of the first member at its mount.
    qid: Qid,
}

const MOUNTS_MAX: usize = 256;
const UNION_MEMBERS_MAX: usize = 16;
/// The maximum length of a path in bytes.
const PATH_LEN_MAX: usize = 4096;
/// The maximum number of entries returned for a directory, and of bytes of their names; then `E2BIG`.
const DIR_ENTRIES_MAX: usize = 1 << 16;
const DIR_NAMES_LEN_MAX: usize = 4 << 20;

impl<L: Line> Space<L> {
    /// Returns an empty name space. The first mount must be at `/`.
    pub fn new() -> Self {
        Self { heads: Vec::new() }
    }

    /// Mounts the tree `aname` of the client's host.
    pub fn mount(&mut self, client: &Shared<L>, aname: &str, at: &str, how: How) -> Result<()> {
        let root = client.borrow_mut().attach("", aname)?;
        let qid = root.qid();
        let tree = MountedTree { client: client.clone(), root };
        self.graft(alloc::vec![FileLocation { tree: Some(Rc::new(tree)), path: String::new() }], qid, at, how)
    }

    /// Makes the files at `new` visible at `old` too. If `new` is a union, all members are bound; else the file must
    /// exist. `EINVAL`: one of them is not a directory, and `how` is not `Replace`.
    pub fn bind(&mut self, new: &str, old: &str, how: How) -> Result<()> {
        let places = self.places(new)?;
        let qid = match (places[0].walk(), places.len()) {
            (Err(error), 1) => return Err(at(error, new)),
            (file, _) => file.map_or(SOME_DIR, |file| file.qid()),
        };
        self.graft(places, qid, old, how)
    }

    /// Removes all mounts and bindings at this place, and mounts inside trees that are not visible elsewhere.
    /// `EINVAL`: there are none.
    pub fn unmount(&mut self, at: &str) -> Result<()> {
        let from = self.uncrossed(&names(at)?)?;
        let before = self.heads.len();
        self.heads.retain(|head| head.from != from);
        if self.heads.len() == before {
            return Err(told(Errno::EINVAL, at, "nothing is mounted there"));
        }
        self.sweep();
        Ok(())
    }

    /// Sets the timeout for the hosts visible at this path; `None`: no timeout. See
    /// [`Options::patience`](crate::Options::patience).
    pub fn set_patience(&self, path: &str, patience: Option<Duration>) -> Result<()> {
        let trees = self.places(path)?.into_iter().filter_map(|place| place.tree);
        trees.for_each(|tree| tree.client.borrow_mut().set_patience(patience));
        Ok(())
    }

    /// Opens a file.
    pub fn open(&self, path: &str, flags: OpenFlags) -> Result<Opened<L>> {
        self.place(path)?.open(flags).map_err(|error| at(error, path))
    }

    /// Returns the place of a file, which later mounts do not affect.
    pub(crate) fn place(&self, path: &str) -> Result<FileLocation<L>> {
        Ok(self.places(path)?.swap_remove(0))
    }

    /// Creates a file and opens it: in the first member of a union, or in its directory. `permissions` are those of
    /// its mode. A file that is mounted there, or that any member has, exists already and is opened.
    pub fn create(&self, path: &str, flags: OpenFlags, permissions: u32) -> Result<Opened<L>> {
        let mut names = names(path)?;
        let name = names.pop().ok_or_else(|| told(Errno::EEXIST, path, "it is the root"))?;
        let made = self.walked(&names).and_then(|dirs| {
            let first = dirs[0].clone().join(name);
            let there = match dirs.len() {
                1 => self.head(&first).map(|_| first.clone()),
                _ => match self.member(dirs, name) {
                    Err(error) if error.errno == Errno::ENOENT => None,
                    place => Some(place?),
                },
            };
            match there {
                Some(_) if flags.has(OpenFlags::EXCL) => Err(Errno::EEXIST.into()),
                Some(place) => self.crossed(place)[0].open(flags),
                None => first.with(|client, root, path| client.create(root, path, flags, permissions)),
            }
        });
        made.map_err(|error| at(error, path))
    }

    /// Returns the attributes of a file.
    pub fn stat(&self, path: &str) -> Result<Metadata> {
        self.place(path)?.walk().and_then(|file| file.stat()).map_err(|error| at(error, path))
    }

    /// Removes a file. `EBUSY`: it is a mount point.
    pub fn remove(&self, path: &str) -> Result<()> {
        let place = self.uncrossed(&names(path)?)?;
        if self.head(&place).is_some() {
            return Err(told(Errno::EBUSY, path, "something is mounted there"));
        }
        let Opened { client, file } = place.walk().map_err(|error| at(error, path))?;
        client.borrow_mut().remove(file).map_err(|error| at(error, path))
    }

    /// Returns the entries of a directory and the mount points in it. Of a union, each name is listed once. A member
    /// that cannot be read is skipped if there is another one and its channel is alive. `E2BIG`: there are too many
    /// entries.
    pub fn read_dir(&self, path: &str) -> Result<Vec<Entry>> {
        let places = self.places(path)?;
        let mut entries: Vec<Entry> = Vec::new();
        let (mut room, mut failed, mut all_failed) = (DIR_NAMES_LEN_MAX, None, true);
        for place in &places {
            // The first entry of a name counts.
            let mounted = entries.len();
            for head in self.heads.iter().filter(|head| head.from.is_of(place)) {
                let (dir, name) = head.from.path.rsplit_once('/').unwrap_or(("", &head.from.path));
                if dir == place.path && !name.is_empty() {
                    add(&mut entries, &mut room, name, head.qid).map_err(|error| at(error, path))?;
                }
            }
            let hosts = entries.len();
            let mut full = Ok(());
            let read = place.open(OpenFlags::READ).and_then(|dir| {
                dir.client.borrow_mut().read_dir(&dir.file, |entry| {
                    let name = String::from_utf8_lossy(entry.name);
                    full = add(&mut entries, &mut room, &name, entry.qid);
                    full.is_ok()
                })
            });
            full.map_err(|error| at(error, path))?;
            match read {
                Ok(()) => all_failed = false,
                // A directory that only leads to mount points need not exist.
                Err(error) if error.errno == Errno::ENOENT && hosts > mounted => all_failed = false,
                Err(error) => {
                    place.is_alive().map_err(|error| at(error, path))?;
                    entries.truncate(hosts);
                    failed.get_or_insert(error);
                }
            }
        }
        if let (Some(error), true) = (failed, all_failed) {
            return Err(at(error, path));
        }
        let mut order = Vec::new();
        order.try_reserve_exact(entries.len()).map_err(|_| at(Errno::ENOMEM.into(), path))?;
        order.extend(0..entries.len());
        order.sort_unstable_by(|&a, &b| (&entries[a].name, a).cmp(&(&entries[b].name, b)));
        for pair in order.windows(2).rev() {
            if entries[pair[0]].name == entries[pair[1]].name {
                entries[pair[1]].name.clear();
            }
        }
        entries.retain(|entry| !entry.name.is_empty());
        Ok(entries)
    }

    /// Reads a whole file of at most `most` bytes. `EFBIG`: it is larger; `ENOMEM`: there is not enough memory.
    pub fn read(&self, path: &str, most: usize) -> Result<Vec<u8>> {
        let file = self.open(path, OpenFlags::READ)?;
        let mut bytes = Vec::new();
        loop {
            let done = bytes.len();
            let more = READ_CHUNK_LEN.min(most.saturating_add(1) - done);
            bytes.try_reserve(more).map_err(|_| at(Errno::ENOMEM.into(), path))?;
            bytes.resize(done + more, 0);
            let len = file.read(done as u64, &mut bytes[done..]).map_err(|error| at(error, path))?;
            bytes.truncate(done + len);
            match len {
                0 => return Ok(bytes),
                _ if bytes.len() > most => return Err(told(Errno::EFBIG, path, "it is too large")),
                _ => {}
            }
        }
    }

    /// Creates a file with these bytes, or replaces its contents.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(path, OpenFlags::WRITE | OpenFlags::TRUNC, 0o644)?;
        file.write_all(0, bytes).map_err(|error| at(error, path))?;
        file.close().map_err(|error| at(error, path))
    }

    /// Mounts places at a path. `qid` is that of the first one.
    fn graft(&mut self, places: Vec<FileLocation<L>>, qid: Qid, path: &str, how: How) -> Result<()> {
        let names = names(path)?;
        let from = match (self.uncrossed(&names), names.split_last()) {
            // If no member of a union has the name, the mount point is in the first member.
            (Err(_), Some((name, dir))) => self.walked(dir)?.swap_remove(0).join(name),
            (from, _) => from?,
        };
        let n = self.head(&from);
        let mut head = match n {
            _ if how == How::Replace => Mhead { from, to: Vec::new(), qid },
            Some(n) => self.heads[n].clone(),
            // The file at the mount point becomes a member, if it exists.
            None => match from.walk() {
                Ok(file) => Mhead { to: alloc::vec![from.clone()], from, qid: file.qid() },
                Err(_) => Mhead { from, to: Vec::new(), qid },
            },
        };
        if how != How::Replace && !(qid.is_dir() && head.qid.is_dir()) {
            return Err(told(Errno::EINVAL, path, "inconsistent mount: a union is of directories"));
        }
        if n.is_none() && self.heads.len() == MOUNTS_MAX || head.to.len() + places.len() > UNION_MEMBERS_MAX {
            return Err(told(Errno::ENOSPC, path, "as much is mounted as can be"));
        }
        match how {
            How::Replace | How::After => head.to.extend(places),
            How::Before => {
                head.to.splice(..0, places);
                head.qid = qid;
            }
        }
        match n {
            None => self.heads.push(head),
            Some(n) => self.heads[n] = head,
        }
        if how == How::Replace {
            self.sweep();
        }
        Ok(())
    }

    /// Removes mounts inside trees that are not visible any more.
    fn sweep(&mut self) {
        let is_lost = |heads: &[Mhead<L>], from: &FileLocation<L>| {
            let others = heads.iter().filter(|head| !head.from.is_of(from));
            from.tree.is_some() && !others.flat_map(|head| &head.to).any(|to| to.is_of(from))
        };
        while let Some(n) = self.heads.iter().position(|head| is_lost(&self.heads, &head.from)) {
            self.heads.remove(n);
        }
    }

    /// Returns the places visible at a path, at least one.
    fn places(&self, path: &str) -> Result<Vec<FileLocation<L>>> {
        self.walked(&names(path)?).map_err(|error| at(error, path))
    }

    fn walked(&self, names: &[&str]) -> Result<Vec<FileLocation<L>>> {
        let place = self.uncrossed(names)?;
        Ok(self.crossed(place))
    }

    /// Returns the place itself, without crossing a mount on it.
    fn uncrossed(&self, names: &[&str]) -> Result<FileLocation<L>> {
        let mut place = FileLocation { tree: None, path: String::new() };
        for &name in names {
            let mut members = self.crossed(place);
            place = match members.len() {
                1 => members.swap_remove(0).join(name),
                _ => self.member(members, name)?,
            };
        }
        Ok(place)
    }

    /// Returns the first member's file of this name that exists or is a mount point. Otherwise fails with the first
    /// member's error.
    fn member(&self, members: Vec<FileLocation<L>>, name: &str) -> Result<FileLocation<L>> {
        let mut failed = None;
        for place in members {
            let place = place.join(name);
            if self.head(&place).is_some() {
                return Ok(place);
            }
            match place.walk() {
                Ok(_) => return Ok(place),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or(Errno::ENOENT.into()))
    }

    fn crossed(&self, place: FileLocation<L>) -> Vec<FileLocation<L>> {
        match self.head(&place) {
            Some(n) => self.heads[n].to.clone(),
            None => alloc::vec![place],
        }
    }

    fn head(&self, place: &FileLocation<L>) -> Option<usize> {
        self.heads.iter().position(|head| head.from == *place)
    }
}

impl<L: Line> Default for Space<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Line> Opened<L> {
    /// Returns the qid.
    pub fn qid(&self) -> Qid {
        self.file.qid()
    }

    /// See [`Client::read`].
    pub fn read(&self, offset: u64, into: &mut [u8]) -> Result<usize> {
        self.client().read(&self.file, offset, into)
    }

    /// See [`Client::write`].
    pub fn write(&self, offset: u64, from: &[u8]) -> Result<usize> {
        self.client().write(&self.file, offset, from)
    }

    /// Writes all of it. `EIO`: the host accepts no more.
    pub fn write_all(&self, offset: u64, from: &[u8]) -> Result<()> {
        let mut done = 0;
        while done < from.len() {
            match self.write(offset + done as u64, &from[done..])? {
                0 => return Err(Error::new(Errno::EIO, "the host takes no more")),
                taken => done += taken,
            }
        }
        Ok(())
    }

    /// Returns room in the arena of the file's channel; see [`Client::buffer`].
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.client().buffer(len)
    }

    /// See [`Client::read_into`].
    ///
    /// # Panics
    /// If the buffer does not contain the part.
    pub fn read_into(
        &self,
        offset: u64,
        buffer: &mut Buffer,
        part: impl RangeBounds<usize>,
    ) -> Result<usize> {
        self.client().read_into(&self.file, offset, buffer, part)
    }

    /// See [`Client::write_from`].
    ///
    /// # Panics
    /// If the buffer does not contain the part.
    pub fn write_from(&self, offset: u64, buffer: &Buffer, part: impl RangeBounds<usize>) -> Result<usize> {
        self.client().write_from(&self.file, offset, buffer, part)
    }

    /// See [`Client::stat`].
    pub fn stat(&self) -> Result<Metadata> {
        self.client().stat(&self.file)
    }

    /// See [`Client::fsync`].
    pub fn fsync(&self) -> Result<()> {
        self.client().fsync(&self.file)
    }

    /// See [`Client::clunk`].
    pub fn close(self) -> Result<()> {
        self.client.borrow_mut().clunk(self.file)
    }

    /// Returns whether its channel is not in use now.
    pub(crate) fn is_idle(&self) -> bool {
        self.client.try_borrow_mut().is_ok()
    }

    fn client(&self) -> core::cell::RefMut<'_, Client<L>> {
        self.client.borrow_mut()
    }
}

/// Adds an entry, if there is room.
fn add(entries: &mut Vec<Entry>, room: &mut usize, name: &str, qid: Qid) -> Result<()> {
    *room = room.checked_sub(name.len()).filter(|_| entries.len() < DIR_ENTRIES_MAX).ok_or(Errno::E2BIG)?;
    let mut entry = Entry { name: String::new(), qid };
    entry.name.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
    entry.name.push_str(name);
    entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    entries.push(entry);
    Ok(())
}

impl<L: Line> FileLocation<L> {
    /// Returns the place of this name in it.
    fn join(mut self, name: &str) -> Self {
        if !self.path.is_empty() {
            self.path.push('/');
        }
        self.path.push_str(name);
        self
    }

    pub(crate) fn open(&self, flags: OpenFlags) -> Result<Opened<L>> {
        self.with(|client, root, path| client.open(root, path, flags))
    }

    /// Walks to the file, without opening it.
    fn walk(&self) -> Result<Opened<L>> {
        self.with(|client, root, path| client.walk(root, path))
    }

    fn with(&self, call: impl FnOnce(&mut Client<L>, &File, &str) -> Result<File>) -> Result<Opened<L>> {
        let tree = self.tree.as_ref().ok_or(Errno::ENOENT)?;
        let file = call(&mut tree.client.borrow_mut(), &tree.root, &self.path)?;
        Ok(Opened { client: tree.client.clone(), file })
    }

    /// Returns an error with the reason if its channel has ended.
    fn is_alive(&self) -> Result<()> {
        self.tree.as_ref().map_or(Ok(()), |tree| tree.client.borrow().is_alive())
    }

    fn is_of(&self, other: &Self) -> bool {
        match (&self.tree, &other.tree) {
            (Some(one), Some(other)) => Rc::ptr_eq(one, other),
            (one, other) => one.is_none() && other.is_none(),
        }
    }
}

impl<L: Line> Clone for FileLocation<L> {
    fn clone(&self) -> Self {
        Self { tree: self.tree.clone(), path: self.path.clone() }
    }
}

impl<L: Line> Clone for Mhead<L> {
    fn clone(&self) -> Self {
        Self { from: self.from.clone(), to: self.to.clone(), qid: self.qid }
    }
}

impl<L: Line> PartialEq for FileLocation<L> {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.is_of(other)
    }
}

/// Returns the names of a path without `.` and empty ones. `..` removes the name before it, if there is one.
fn names(path: &str) -> Result<Vec<&str>> {
    if path.len() > PATH_LEN_MAX {
        return Err(Errno::ENAMETOOLONG.into());
    }
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    Ok(names)
}

/// Adds the path to an error.
fn at(error: Error, path: &str) -> Error {
    Error::new(error.errno, alloc::format!("{path}: {error}"))
}

fn told(errno: Errno, path: &str, why: &str) -> Error {
    Error::new(errno, alloc::format!("{path}: {why}"))
}

/// The qid of a union whose first member cannot be reached.
const SOME_DIR: Qid = Qid { ty: Qid::DIR, vers: 0, path: 0 };
/// The number of bytes requested from a file at a time.
const READ_CHUNK_LEN: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cleaned_without_asking_anybody() {
        for (path, is) in [
            ("", &[][..]),
            ("/", &[]),
            ("//a/./b/", &["a", "b"]),
            ("a/../../b", &["b"]),
            ("/a/b/../c/..", &["a"]),
        ] {
            assert_eq!(names(path).unwrap(), is, "{path}");
        }
        assert_eq!(names(&"a".repeat(PATH_LEN_MAX + 1)).unwrap_err().errno, Errno::ENAMETOOLONG);
    }
}
