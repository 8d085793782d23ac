//! A name space that a partition composes for itself: trees of several channels, mounted and bound.
//!
//! In: clients of hosts, and paths. Out: files, wherever they are. A path is absolute; `.` and `..` in it are names'
//! own affair and ask nobody (lexical names). A mount point is a place, a host's tree and a path in it, as in a mux: so
//! what is mounted on it is seen by whatever way one comes there.
//!
//! Always holds:
//! - A walk goes over each name of its path once and crosses at most one mount point at it, whatever is bound where.
//! - A place that nothing is mounted on is not asked for until the last name; of a union each member is, at each name
//!   that may be in several.
//!
//! Concurrency: one thread has a space and its files. No file calls back while its channel is in use.

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

/// A client that several have: its own files, and whoever holds one.
pub type Shared<L> = Rc<RefCell<Client<L>>>;

/// The names that a partition sees.
pub struct Space<L: Line> {
    /// 256 at most; then `ENOSPC`.
    heads: Vec<Mhead<L>>,
}

/// Where something that is mounted goes, on a place where something is mounted already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum How {
    /// It hides what was there.
    #[default]
    Replace,
    /// It is looked at first, and what is made is made there.
    Before,
    /// It is looked at last.
    After,
}

/// A file of a space that is open.
pub struct Opened<L: Line> {
    client: Shared<L>,
    file: File,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: String,
    /// Which file it is, and of what kind; of a mount point what is mounted there.
    pub qid: Qid,
}

/// The root of a host's tree, which its mounts have.
struct Tree<L: Line> {
    client: Shared<L>,
    root: File,
}

/// A file that may be there. `None`: of the tree that no host has, below which a space begins.
pub(crate) struct Place<L: Line> {
    tree: Option<Rc<Tree<L>>>,
    /// Names between slashes.
    path: String,
}

/// A mount point and what is seen there: one place or a union of 16 at most, then `ENOSPC`.
struct Mhead<L: Line> {
    from: Place<L>,
    to: Vec<Place<L>>,
    /// Of the first one, when it was mounted.
    qid: Qid,
}

const HEADS: usize = 256;
const MEMBERS: usize = 16;
/// Bytes of a path.
const PATH: usize = 4096;
/// Entries of a directory that are told, and bytes of their names; then `E2BIG`.
const ENTRIES: usize = 1 << 16;
const NAMES: usize = 4 << 20;

impl<L: Line> Space<L> {
    /// Nothing is there: first something is mounted at `/`.
    pub fn new() -> Self {
        Self { heads: Vec::new() }
    }

    /// Mounts the tree of this name that the client's host has.
    pub fn mount(&mut self, client: &Shared<L>, aname: &str, at: &str, how: How) -> Result<()> {
        let root = client.borrow_mut().attach("", aname)?;
        let qid = root.qid();
        let tree = Tree { client: client.clone(), root };
        self.graft(alloc::vec![Place { tree: Some(Rc::new(tree)), path: String::new() }], qid, at, how)
    }

    /// What is seen at `new` is seen at `old`, too: of a union all members, and else the file, which must be there.
    /// `EINVAL`: not both are directories, and one does not replace the other.
    pub fn bind(&mut self, new: &str, old: &str, how: How) -> Result<()> {
        let places = self.places(new)?;
        let qid = match (places[0].walk(), places.len()) {
            (Err(error), 1) => return Err(at(error, new)),
            (file, _) => file.map_or(SOME_DIR, |file| file.qid()),
        };
        self.graft(places, qid, old, how)
    }

    /// Takes away whatever was mounted and bound there, and what was below in trees that are seen nowhere else.
    /// `EINVAL`: nothing was.
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

    /// From now on waits so long, at most, for the hosts that are seen there; `None`: for ever. See
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

    /// Where a file is: what is mounted later does not matter.
    pub(crate) fn place(&self, path: &str) -> Result<Place<L>> {
        Ok(self.places(path)?.swap_remove(0))
    }

    /// Makes a file and opens it: in the first member of a union, or where its directory is. `permissions`: of its
    /// mode. What is mounted there, or any member has, is there already: it is opened.
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

    /// What is known about a file.
    pub fn stat(&self, path: &str) -> Result<Metadata> {
        self.place(path)?.walk().and_then(|file| file.stat()).map_err(|error| at(error, path))
    }

    /// Removes a file. `EBUSY`: something is mounted there.
    pub fn remove(&self, path: &str) -> Result<()> {
        let place = self.uncrossed(&names(path)?)?;
        if self.head(&place).is_some() {
            return Err(told(Errno::EBUSY, path, "something is mounted there"));
        }
        let Opened { client, file } = place.walk().map_err(|error| at(error, path))?;
        client.borrow_mut().remove(file).map_err(|error| at(error, path))
    }

    /// The names in a directory, and what is mounted in it: of a union those of each member, once. A member whose names
    /// cannot be told is passed over, if there is another one and its channel goes on. `E2BIG`: there are too many.
    pub fn read_dir(&self, path: &str) -> Result<Vec<Entry>> {
        let places = self.places(path)?;
        let mut entries: Vec<Entry> = Vec::new();
        let (mut room, mut failed, mut all_failed) = (NAMES, None, true);
        for place in &places {
            // The first one of a name counts.
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
                // It need not be there for that.
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

    /// All of a file that has at most so many bytes. `EFBIG`: it has more; `ENOMEM`: than there is memory for.
    pub fn read(&self, path: &str, most: usize) -> Result<Vec<u8>> {
        let file = self.open(path, OpenFlags::READ)?;
        let mut bytes = Vec::new();
        loop {
            let done = bytes.len();
            let more = CHUNK.min(most.saturating_add(1) - done);
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

    /// Makes a file of these bytes, or replaces what is in it.
    pub fn write(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(path, OpenFlags::WRITE | OpenFlags::TRUNC, 0o644)?;
        file.write_all(0, bytes).map_err(|error| at(error, path))?;
        file.close().map_err(|error| at(error, path))
    }

    /// `qid`: of the first one.
    fn graft(&mut self, places: Vec<Place<L>>, qid: Qid, path: &str, how: How) -> Result<()> {
        let names = names(path)?;
        let from = match (self.uncrossed(&names), names.split_last()) {
            // Of a union whose members do not have it, it is in the first one.
            (Err(_), Some((name, dir))) => self.walked(dir)?.swap_remove(0).join(name),
            (from, _) => from?,
        };
        let n = self.head(&from);
        let mut head = match n {
            _ if how == How::Replace => Mhead { from, to: Vec::new(), qid },
            Some(n) => self.heads[n].clone(),
            // What is below is a member, if it is there.
            None => match from.walk() {
                Ok(file) => Mhead { to: alloc::vec![from.clone()], from, qid: file.qid() },
                Err(_) => Mhead { from, to: Vec::new(), qid },
            },
        };
        if how != How::Replace && !(qid.is_dir() && head.qid.is_dir()) {
            return Err(told(Errno::EINVAL, path, "inconsistent mount: a union is of directories"));
        }
        if n.is_none() && self.heads.len() == HEADS || head.to.len() + places.len() > MEMBERS {
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

    /// Forgets what is mounted in trees that are seen nowhere any more.
    fn sweep(&mut self) {
        let is_lost = |heads: &[Mhead<L>], from: &Place<L>| {
            let others = heads.iter().filter(|head| !head.from.is_of(from));
            from.tree.is_some() && !others.flat_map(|head| &head.to).any(|to| to.is_of(from))
        };
        while let Some(n) = self.heads.iter().position(|head| is_lost(&self.heads, &head.from)) {
            self.heads.remove(n);
        }
    }

    /// What is seen at the path, mount point or not: one place at least.
    fn places(&self, path: &str) -> Result<Vec<Place<L>>> {
        self.walked(&names(path)?).map_err(|error| at(error, path))
    }

    fn walked(&self, names: &[&str]) -> Result<Vec<Place<L>>> {
        let place = self.uncrossed(names)?;
        Ok(self.crossed(place))
    }

    /// The place itself, whatever is mounted on it.
    fn uncrossed(&self, names: &[&str]) -> Result<Place<L>> {
        let mut place = Place { tree: None, path: String::new() };
        for &name in names {
            let mut members = self.crossed(place);
            place = match members.len() {
                1 => members.swap_remove(0).join(name),
                _ => self.member(members, name)?,
            };
        }
        Ok(place)
    }

    /// That of the members' files of this name which is there, or on which something is mounted; else what the first
    /// one says.
    fn member(&self, members: Vec<Place<L>>, name: &str) -> Result<Place<L>> {
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

    fn crossed(&self, place: Place<L>) -> Vec<Place<L>> {
        match self.head(&place) {
            Some(n) => self.heads[n].to.clone(),
            None => alloc::vec![place],
        }
    }

    fn head(&self, place: &Place<L>) -> Option<usize> {
        self.heads.iter().position(|head| head.from == *place)
    }
}

impl<L: Line> Default for Space<L> {
    fn default() -> Self {
        Self::new()
    }
}

impl<L: Line> Opened<L> {
    /// Which file it is, and of what kind.
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

    /// Writes all of it. `EIO`: the host takes no more.
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

    /// Room in the arena of the file's channel; see [`Client::buffer`].
    pub fn buffer(&self, len: usize) -> Result<Buffer> {
        self.client().buffer(len)
    }

    /// See [`Client::read_into`].
    ///
    /// # Panics
    /// The buffer does not have the part.
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
    /// The buffer does not have the part.
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

    /// Whether its channel waits for no answer now.
    pub(crate) fn is_idle(&self) -> bool {
        self.client.try_borrow_mut().is_ok()
    }

    fn client(&self) -> core::cell::RefMut<'_, Client<L>> {
        self.client.borrow_mut()
    }
}

/// Adds a name that there is room for.
fn add(entries: &mut Vec<Entry>, room: &mut usize, name: &str, qid: Qid) -> Result<()> {
    *room = room.checked_sub(name.len()).filter(|_| entries.len() < ENTRIES).ok_or(Errno::E2BIG)?;
    let mut entry = Entry { name: String::new(), qid };
    entry.name.try_reserve_exact(name.len()).map_err(|_| Errno::ENOMEM)?;
    entry.name.push_str(name);
    entries.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    entries.push(entry);
    Ok(())
}

impl<L: Line> Place<L> {
    /// The file of this name in it.
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

    /// The file itself, not open.
    fn walk(&self) -> Result<Opened<L>> {
        self.with(|client, root, path| client.walk(root, path))
    }

    fn with(&self, call: impl FnOnce(&mut Client<L>, &File, &str) -> Result<File>) -> Result<Opened<L>> {
        let tree = self.tree.as_ref().ok_or(Errno::ENOENT)?;
        let file = call(&mut tree.client.borrow_mut(), &tree.root, &self.path)?;
        Ok(Opened { client: tree.client.clone(), file })
    }

    /// Whether its channel can be used; else why not.
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

impl<L: Line> Clone for Place<L> {
    fn clone(&self) -> Self {
        Self { tree: self.tree.clone(), path: self.path.clone() }
    }
}

impl<L: Line> Clone for Mhead<L> {
    fn clone(&self) -> Self {
        Self { from: self.from.clone(), to: self.to.clone(), qid: self.qid }
    }
}

impl<L: Line> PartialEq for Place<L> {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path && self.is_of(other)
    }
}

/// The names of a path, without those that lead nowhere: `..` takes the one before it, and is nothing at the root.
fn names(path: &str) -> Result<Vec<&str>> {
    if path.len() > PATH {
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

/// Says of which path it is.
fn at(error: Error, path: &str) -> Error {
    Error::new(error.errno, alloc::format!("{path}: {error}"))
}

fn told(errno: Errno, path: &str, why: &str) -> Error {
    Error::new(errno, alloc::format!("{path}: {why}"))
}

/// Of a union whose first member has gone.
const SOME_DIR: Qid = Qid { ty: Qid::DIR, vers: 0, path: 0 };
/// Bytes of a file that are asked for at once.
const CHUNK: usize = 64 << 10;

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
        assert_eq!(names(&"a".repeat(PATH + 1)).unwrap_err().errno, Errno::ENAMETOOLONG);
    }
}
