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
use alloc::string::{String, ToString};
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
    /// Which file it is, and of what kind, where a host has it; a mount point that no host knows is a directory.
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
}

const HEADS: usize = 256;
const MEMBERS: usize = 16;
/// Bytes of a path.
const PATH: usize = 4096;
/// Entries of a directory that are told; then `E2BIG`.
const ENTRIES: usize = 1 << 16;

impl<L: Line> Space<L> {
    /// Nothing is there: first something is mounted at `/`.
    pub fn new() -> Self {
        Self { heads: Vec::new() }
    }

    /// Mounts the tree of this name that the client's host has.
    pub fn mount(&mut self, client: &Shared<L>, aname: &str, at: &str, how: How) -> Result<()> {
        let root = client.borrow_mut().attach("", aname)?;
        let tree = Tree { client: client.clone(), root };
        self.graft(alloc::vec![Place { tree: Some(Rc::new(tree)), path: String::new() }], at, how)
    }

    /// What is seen at `new` is seen at `old`, too: of a union all members, and else the file, which must be there.
    pub fn bind(&mut self, new: &str, old: &str, how: How) -> Result<()> {
        let places = self.places(new)?;
        if let [place] = &places[..] {
            place.walk()?;
        }
        self.graft(places, old, how)
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
    /// mode. What is mounted there is there already: it is opened.
    pub fn create(&self, path: &str, flags: OpenFlags, permissions: u32) -> Result<Opened<L>> {
        let mut names = names(path)?;
        let name = names.pop().ok_or_else(|| told(Errno::EEXIST, path, "it is the root"))?;
        let made = self.walked(&names).and_then(|mut dirs| {
            let place = dirs.swap_remove(0).join(name);
            match self.head(&place) {
                Some(_) if flags.has(OpenFlags::EXCL) => Err(Errno::EEXIST.into()),
                Some(n) => self.heads[n].to[0].open(flags),
                None => place.with(|client, root, path| client.create(root, path, flags, permissions)),
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

    /// The names in a directory: of a union those of each member, once, and then what is mounted in it.
    pub fn read_dir(&self, path: &str) -> Result<Vec<Entry>> {
        let places = self.places(path)?;
        let mut entries: Vec<Entry> = Vec::new();
        let mut is_full = false;
        let mut add = |name: &str, qid: Qid| {
            is_full |= entries.len() == ENTRIES;
            if !is_full {
                entries.push(Entry { name: name.to_string(), qid });
            }
            !is_full
        };
        let mut failed = None;
        for place in &places {
            let read = place.open(OpenFlags::READ).and_then(|dir| {
                dir.client
                    .borrow_mut()
                    .read_dir(&dir.file, |entry| add(&String::from_utf8_lossy(entry.name), entry.qid))
            });
            if let Err(error) = read {
                failed.get_or_insert(error);
            }
        }
        for place in &places {
            let below = |from: &Place<L>| {
                let (dir, name) = from.path.rsplit_once('/').unwrap_or(("", &from.path));
                (from.is_of(place) && dir == place.path && !name.is_empty()).then(|| name.to_string())
            };
            self.heads.iter().filter_map(|head| below(&head.from)).for_each(|name| {
                add(&name, Qid { ty: Qid::DIR, vers: 0, path: 0 });
            });
        }
        match failed {
            // A member that is not there hides no other one.
            Some(error) if entries.is_empty() => return Err(at(error, path)),
            _ if is_full => return Err(told(Errno::E2BIG, path, "too many names")),
            _ => {}
        }
        // The first one of a name stays, where it was.
        let mut order: Vec<usize> = (0..entries.len()).collect();
        order.sort_by(|&a, &b| entries[a].name.cmp(&entries[b].name));
        let mut is_first = alloc::vec![true; entries.len()];
        order.windows(2).for_each(|pair| is_first[pair[1]] = entries[pair[0]].name != entries[pair[1]].name);
        let mut n = 0..;
        entries.retain(|_| n.next().is_some_and(|n| is_first[n]));
        Ok(entries)
    }

    /// All of a file that has at most so many bytes. `EFBIG`: it has more.
    pub fn read(&self, path: &str, most: usize) -> Result<Vec<u8>> {
        let file = self.open(path, OpenFlags::READ)?;
        let mut bytes = Vec::new();
        loop {
            let done = bytes.len();
            bytes.resize((done + CHUNK).min(most + 1), 0);
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

    fn graft(&mut self, places: Vec<Place<L>>, path: &str, how: How) -> Result<()> {
        let names = names(path)?;
        let from = match (self.uncrossed(&names), names.split_last()) {
            // Of a union whose members do not have it, it is in the first one.
            (Err(_), Some((name, dir))) => self.walked(dir)?.swap_remove(0).join(name),
            (from, _) => from?,
        };
        let full = || told(Errno::ENOSPC, path, "as much is mounted as can be");
        let Some(n) = self.head(&from) else {
            let members = places.len() + usize::from(how != How::Replace && from.tree.is_some());
            if self.heads.len() == HEADS || members > MEMBERS {
                return Err(full());
            }
            let mut to = places;
            match how {
                // What is below is a member, if it is a host's.
                How::Before if from.tree.is_some() => to.push(from.clone()),
                How::After if from.tree.is_some() => to.insert(0, from.clone()),
                _ => {}
            }
            self.heads.push(Mhead { from, to });
            return Ok(());
        };
        let to = &mut self.heads[n].to;
        if how != How::Replace && to.len() + places.len() > MEMBERS {
            return Err(full());
        }
        match how {
            How::Replace => {
                *to = places;
                self.sweep();
            }
            How::Before => drop(to.splice(..0, places)),
            How::After => to.extend(places),
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
