//! The oracle for paths of a name space, written from bind(2), mount(2) and walk(5) alone.
//!
//! Servers are trees of maps. A mount point and its members are files: the path of the name space that led to them does
//! not matter afterwards. A file is a number, which is the same after a rename. A file that replaces another one, or is
//! created at the name of a removed one, takes over its binds, so a bind survives an atomic replacement. This code
//! shares nothing with the mux.

use std::collections::BTreeMap;

use nine_mux::{Flags, Order};
use nine_proto::{Errno, RenameMode};

/// A file, independent of its name.
pub type Id = u32;

/// All servers and mounts. Server 0 is the backbone.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    files: BTreeMap<Id, Entry>,
    pub roots: Vec<Id>,
    names: Vec<String>,
    mounts: BTreeMap<Id, Vec<Member>>,
    /// The path of each mount point, as in the call that created it.
    called: BTreeMap<Id, String>,
    /// Number of mount and bind calls so far.
    calls: usize,
    /// Set by the canary: unions are searched in the wrong order.
    pub backwards: bool,
}

#[derive(Clone, Debug, PartialEq)]
struct Entry {
    server: usize,
    parent: Id,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq)]
enum Kind {
    File(Vec<u8>),
    Dir(BTreeMap<String, Id>),
    /// A removed file, with its name in the parent. It remains while something is mounted from it or from below it.
    Gone(String),
}

#[derive(Clone, Debug, PartialEq)]
struct Member {
    to: Id,
    create: bool,
    /// The source path of the call; `None` for the covered directory itself.
    by: Option<String>,
    /// The number of the call.
    call: usize,
}

/// An operation. Paths are names separated by '/'.
#[derive(Clone, Debug)]
pub enum Op {
    Read(String),
    List(String),
    /// Writes eight bytes over the content, without truncation: one step of one server.
    Write(String, [u8; 8]),
    Create(String, String),
    Mkdir(String, String),
    Remove(String),
    /// Renames a file, possibly into another directory.
    Rename([String; 2], [String; 2], RenameMode),
    Mount(usize, String, Flags),
    Bind(String, String, Flags),
    Unmount(Option<String>, String),
}

/// The result of an operation.
#[derive(Clone, Debug, PartialEq)]
pub enum Saw {
    Done,
    Bytes(Vec<u8>),
    /// Names, sorted, and whether they are directories.
    Names(Vec<(String, bool)>),
    Failed(Errno),
}

/// The result of a walk: the files on its path, as they are without mounts, and the visible ones.
#[derive(Clone)]
struct Place {
    way: Vec<Id>,
    /// The visible files; several in a union.
    at: Vec<Id>,
}

pub type Answer<T> = Result<T, Errno>;

impl Op {
    pub fn changes_space(&self) -> bool {
        matches!(self, Self::Mount(..) | Self::Bind(..) | Self::Unmount(..))
    }

    pub fn changes_tree(&self) -> bool {
        !self.changes_space() && !matches!(self, Self::Read(_) | Self::List(_))
    }
}

impl Model {
    pub fn new(names: &[&str]) -> Self {
        let dir = |server| Entry { server, parent: server as Id, kind: Kind::Dir(BTreeMap::new()) };
        Self {
            files: (0..names.len()).map(|server| (server as Id, dir(server))).collect(),
            roots: (0..names.len() as Id).collect(),
            names: names.iter().map(|name| (*name).into()).collect(),
            mounts: BTreeMap::new(),
            called: BTreeMap::new(),
            calls: 0,
            backwards: false,
        }
    }

    /// Adds a file, or a directory, to a directory of a server.
    pub fn plant(&mut self, dir: Id, name: &str, content: Option<&[u8]>) -> Id {
        let kind = match content {
            Some(bytes) => Kind::File(bytes.into()),
            None => Kind::Dir(BTreeMap::new()),
        };
        let gone = self.gone(dir, name);
        let id = gone.unwrap_or_else(|| self.next());
        let server = self.files[&dir].server;
        self.files.insert(id, Entry { server, parent: dir, kind });
        self.dir_mut(dir).expect("a directory").insert(name.into(), id);
        id
    }

    /// Returns the result of an operation, and the states that the world passes through, including the last one.
    pub fn apply(&self, op: &Op) -> (Saw, Vec<Self>) {
        let mut states = Vec::new();
        let mut world = self.clone();
        let saw = match world.run(op, &mut states) {
            Ok(saw) => saw,
            Err(errno) => Saw::Failed(errno),
        };
        if states.last() != Some(&world) {
            states.push(world);
        }
        (saw, states)
    }

    /// Whether an operation may be refused with this error and without effect, although the model executes it. Not
    /// every dialect has renames that replace a file or change the directory.
    pub fn may_refuse(&self, op: &Op, errno: Errno) -> bool {
        let Op::Rename([dir, _], [to, new], how) = op else { return false };
        // Only .L has the other modes.
        if *how != RenameMode::Replace && errno == Errno::EINVAL {
            return true;
        }
        let is_there = self.walk(to).is_ok_and(|place| self.first(&place, new).is_ok());
        let replaces = [Errno::EEXIST, Errno::EXDEV, Errno::EISDIR, Errno::ENOTDIR, Errno::ENOTEMPTY];
        is_there && replaces.contains(&errno) || dir != to && [Errno::EXDEV, Errno::EINVAL].contains(&errno)
    }

    /// Returns the result of a read or list whose walk was in this state, and whose access was in a later one.
    pub fn look(&self, op: &Op, later: &Self) -> Answer<Saw> {
        let (Op::Read(path) | Op::List(path)) = op else { unreachable!("the others are no looks") };
        let mut place = self.walk(path)?;
        place.at.retain(|&file| later.is_there(file));
        let first = place.at.first().ok_or(Errno::ENOENT)?;
        match (op, &later.files[first].kind) {
            (Op::List(_), _) => later.list(&place).map(Saw::Names),
            (_, Kind::File(bytes)) => Ok(Saw::Bytes(bytes.clone())),
            (_, Kind::Dir(_)) => Err(Errno::EISDIR),
            (_, Kind::Gone(_)) => unreachable!("it is there"),
        }
    }

    /// The same for a path with "..", if it exists in this state: ".." is resolved lexically, and the walk is in the
    /// later state.
    pub fn look_back(&self, op: &Op, later: &Self) -> Option<Answer<Saw>> {
        let (Op::Read(path) | Op::List(path)) = op else { return None };
        let mut lexical = Vec::new();
        for name in names(path) {
            match name {
                ".." => lexical.truncate(lexical.len().saturating_sub(1)),
                name => lexical.push(name),
            }
        }
        let is_back = path.contains("..") && self.walk(path).is_ok();
        let lexical = lexical.join("/");
        let op = if let Op::Read(_) = op { Op::Read(lexical) } else { Op::List(lexical) };
        is_back.then(|| later.look(&op, later))
    }

    /// Returns the visible names in a directory; none if it is not a directory.
    pub fn seen(&self, path: &str) -> Vec<(String, bool)> {
        self.walk(path).and_then(|place| self.list(&place)).unwrap_or_default()
    }

    fn run(&mut self, op: &Op, states: &mut Vec<Self>) -> Answer<Saw> {
        match op {
            Op::Read(_) | Op::List(_) => self.look(op, self),
            Op::Write(path, new) => {
                let place = self.walk(path)?;
                match &mut self.files.get_mut(&place.at[0]).expect("it was walked to").kind {
                    Kind::File(bytes) => {
                        bytes.resize(bytes.len().max(8), 0);
                        bytes[..8].copy_from_slice(new);
                        Ok(Saw::Done)
                    }
                    Kind::Dir(_) => Err(Errno::EISDIR),
                    Kind::Gone(_) => unreachable!("it was walked to"),
                }
            }
            Op::Create(dir, name) | Op::Mkdir(dir, name) => {
                let place = self.walk(dir)?;
                self.dir(place.at[0])?;
                match self.step(&place, name) {
                    Ok(_) => return Err(Errno::EEXIST),
                    Err(Errno::ENOENT) => {}
                    Err(errno) => return Err(errno),
                }
                let into = self.creates(&place).ok_or(Errno::EPERM)?;
                // The file that is bound on the name may be gone, but the name exists.
                if self.dir(into)?.contains_key(name) {
                    return Err(Errno::EEXIST);
                }
                self.plant(into, name, matches!(op, Op::Create(..)).then_some(b""));
                Ok(Saw::Done)
            }
            Op::Remove(path) => self.remove(path),
            Op::Rename(from, to, how) => self.rename(from, to, *how, states),
            Op::Mount(server, old, flags) => {
                let from = self.covered(old, Some(true), true, states)?;
                let by = self.names[*server].clone();
                self.join(&[self.roots[*server]], from, (&by, old), *flags)
            }
            Op::Bind(new, old, flags) => {
                let place = self.walk(new)?;
                let is_dir = self.is_dir(place.at[0]);
                let from = self.covered(old, Some(is_dir), true, states)?;
                if !is_dir && *flags != Flags::REPLACE {
                    return Err(Errno::EINVAL);
                }
                self.join(&place.at, from, (new, old), *flags)
            }
            Op::Unmount(new, old) => self.unmount(new.as_deref(), old, states),
        }
    }

    fn unmount(&mut self, new: Option<&str>, old: &str, states: &mut Vec<Self>) -> Answer<Saw> {
        let covered = self.covered(old, None, false, states);
        let is: Vec<Id> = match new.map(|new| self.walk(new)) {
            Some(Ok(place)) => {
                vec![place.way.last().copied().unwrap_or(self.roots[0]), place.at[0]]
            }
            _ => Vec::new(),
        };
        let from: Vec<Id> = match covered {
            Ok(from) if self.mounts.contains_key(&from) => vec![from],
            // It is hidden or unreachable. The path of the call is sufficient.
            _ => {
                let is = |called: &str| names(called).eq(names(old));
                self.called.iter().filter(|(_, called)| is(called)).map(|(&from, _)| from).collect()
            }
        };
        // One call: the latest of those that match.
        let is_named = |member: &&Member| match (&member.by, new) {
            (Some(by), Some(new)) => by == new || is.contains(&member.to),
            (by, _) => by.is_some(),
        };
        let latest = from.iter().flat_map(|from| &self.mounts[from]).filter(is_named).map(|m| m.call).max();
        if latest.is_none() && !from.is_empty() {
            return Err(Errno::EINVAL);
        }
        for from in &from {
            let members = self.mounts.get_mut(from).expect("it is a mount point");
            members.retain(|m| m.by.is_none() || new.is_some() && Some(m.call) != latest);
        }
        self.tidy();
        if from.is_empty() { Err(covered.err().unwrap_or(Errno::EINVAL)) } else { Ok(Saw::Done) }
    }

    fn remove(&mut self, path: &str) -> Answer<Saw> {
        let place = self.walk(path)?;
        let Some(&file) = place.way.last() else { return Err(Errno::EBUSY) };
        if self.is_busy(file) {
            return Err(Errno::EBUSY);
        }
        if self.dir(file).is_ok_and(|names| !names.is_empty()) {
            return Err(Errno::ENOTEMPTY);
        }
        let parent = self.files[&file].parent;
        let name = self.name(file);
        self.dir_mut(parent)?.remove(&name);
        self.files.get_mut(&file).expect("it was walked to").kind = Kind::Gone(name);
        self.bury();
        Ok(Saw::Done)
    }

    fn rename(
        &mut self,
        [dir, old]: &[String; 2],
        [to, new]: &[String; 2],
        how: RenameMode,
        states: &mut Vec<Self>,
    ) -> Answer<Saw> {
        let (place, to) = (self.walk(dir)?, self.walk(to)?);
        let (file, in_dir) = self.first(&place, old)?;
        let there = match self.first(&to, new) {
            Ok(there) => Some(there),
            Err(Errno::ENOENT) => None,
            Err(errno) => return Err(errno),
        };
        if self.is_busy(file) {
            return Err(Errno::EBUSY);
        }
        match (how, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            (RenameMode::Exchange, Some(there)) => {
                return self.exchange((file, in_dir, old), (there.0, there.1, new), states);
            }
            _ => {}
        }
        // A name on which a file is bound stands for that file.
        let there = match there {
            Some((there, _)) if self.is_busy(there) => match self.mounts.get(&there).map(Vec::as_slice) {
                Some([bound]) if !self.is_there(bound.to) => return Err(Errno::ENOENT),
                Some([bound]) if !self.is_dir(bound.to) => Some((bound.to, self.files[&bound.to].parent)),
                _ => return Err(Errno::EBUSY),
            },
            there => there,
        };
        // A name that exists in a member stays in that member. Otherwise the file stays in its present member.
        let into = match there {
            Some((_, dir)) => dir,
            None if to.at.contains(&in_dir) => in_dir,
            None => self.creates(&to).ok_or(Errno::EPERM)?,
        };
        if self.files[&into].server != self.files[&file].server {
            return Err(Errno::EXDEV);
        }
        if self.is_within(into, file) {
            return Err(Errno::EINVAL);
        }
        if let Some((there, _)) = there {
            match (self.is_dir(file), self.dir(there)) {
                _ if there == file => return Ok(Saw::Done),
                (true, Err(_)) => return Err(Errno::ENOTDIR),
                (false, Ok(_)) => return Err(Errno::EISDIR),
                (true, Ok(names)) if !names.is_empty() => return Err(Errno::ENOTEMPTY),
                _ => {}
            }
        }
        let name = there.map_or(new.clone(), |(there, _)| self.name(there));
        let replaced = there.map(|(there, _)| there).or_else(|| self.gone(into, new));
        self.dir_mut(in_dir)?.remove(old);
        self.dir_mut(into)?.insert(name, file);
        self.files.get_mut(&file).expect("it was walked to").parent = into;
        let members = |model: &mut Self, f: &dyn Fn(&mut Id)| {
            model.mounts.values_mut().flatten().filter(|m| m.by.is_some()).for_each(|m| f(&mut m.to));
        };
        if let Some(replaced) = replaced {
            members(self, &|to| *to = if *to == replaced { file } else { *to });
            let below: Vec<Id> =
                self.files.keys().copied().filter(|&id| self.files[&id].parent == replaced).collect();
            below.iter().for_each(|id| self.files.get_mut(id).expect("it was found").parent = file);
            self.files.remove(&replaced);
        }
        // Until the mux learns of the rename, binds of the file, or of files below it, find nothing.
        let mut unknown = self.clone();
        let moved: Vec<Id> = self.files.keys().copied().filter(|&id| self.is_within(id, file)).collect();
        let limbo = self.next();
        let entry = Entry { server: 0, parent: 0, kind: Kind::Gone("?".into()) };
        unknown.files.insert(limbo, entry);
        let was = |to: Id| moved.contains(&to) && replaced.is_none_or(|_| to != file);
        members(&mut unknown, &|to| *to = if was(*to) { limbo } else { *to });
        states.push(unknown);
        self.bury();
        Ok(Saw::Done)
    }

    fn exchange(
        &mut self,
        (a, in_a, old): (Id, Id, &str),
        (b, in_b, new): (Id, Id, &str),
        states: &mut Vec<Self>,
    ) -> Answer<Saw> {
        if self.is_busy(b) {
            return Err(Errno::EBUSY);
        }
        if self.files[&a].server != self.files[&b].server {
            return Err(Errno::EXDEV);
        }
        if self.is_within(in_b, a) || self.is_within(in_a, b) {
            return Err(Errno::EINVAL);
        }
        if a == b {
            return Ok(Saw::Done);
        }
        for (dir, name, file) in [(in_a, old, b), (in_b, new, a)] {
            self.dir_mut(dir)?.insert(name.into(), file);
            self.files.get_mut(&file).expect("it was walked to").parent = dir;
        }
        // Until the mux learns of the exchange, binds of one file show the other. Binds of files below find the files
        // with the same names there.
        let mut unknown = self.clone();
        let limbo = self.next();
        let entry = Entry { server: 0, parent: 0, kind: Kind::Gone("?".into()) };
        unknown.files.insert(limbo, entry);
        for member in unknown.mounts.values_mut().flatten().filter(|member| member.by.is_some()) {
            let other = if self.is_within(member.to, a) { Some((a, b)) } else { None };
            let other = other.or_else(|| self.is_within(member.to, b).then_some((b, a)));
            if let Some((is, was)) = other {
                member.to = self.same_below(member.to, is, was).unwrap_or(limbo);
            }
        }
        states.push(unknown);
        Ok(Saw::Done)
    }

    /// Returns the file below `other` with the same relative path as `file` below `dir`.
    fn same_below(&self, file: Id, dir: Id, other: Id) -> Option<Id> {
        if file == dir {
            return Some(other);
        }
        let above = self.same_below(self.files[&file].parent, dir, other)?;
        self.dir(above).ok()?.get(&self.name(file)).copied()
    }

    /// Returns the removed file of this name, if it is still bound somewhere.
    fn gone(&self, dir: Id, name: &str) -> Option<Id> {
        let is = |entry: &Entry| entry.parent == dir && matches!(&entry.kind, Kind::Gone(of) if of == name);
        self.files.iter().find(|(_, entry)| is(entry)).map(|(&id, _)| id)
    }

    fn next(&self) -> Id {
        self.files.keys().max().expect("there is a root") + 1
    }

    fn name(&self, file: Id) -> String {
        let Ok(names) = self.dir(self.files[&file].parent) else { return String::new() };
        names.iter().find(|(_, id)| **id == file).map_or(String::new(), |(name, _)| name.clone())
    }

    /// Forgets removed files from which nothing is mounted.
    fn bury(&mut self) {
        let mounted: Vec<Id> = self.mounts.values().flatten().map(|member| member.to).collect();
        let needed: Vec<Id> = self
            .files
            .keys()
            .copied()
            .filter(|&id| mounted.iter().any(|&to| self.is_within(to, id)))
            .collect();
        self.files.retain(|id, entry| !matches!(entry.kind, Kind::Gone(_)) || needed.contains(id));
    }

    /// Whether `at` is `dir`, or below it.
    fn is_within(&self, mut at: Id, dir: Id) -> bool {
        while at != dir && self.files[&at].parent != at {
            at = self.files[&at].parent;
        }
        at == dir
    }

    fn is_there(&self, file: Id) -> bool {
        self.files.get(&file).is_some_and(|entry| !matches!(entry.kind, Kind::Gone(_)))
    }

    /// bind(2): resolved at the time of the call, with all members of the source.
    fn join(&mut self, new: &[Id], from: Id, (by, old): (&str, &str), flags: Flags) -> Answer<Saw> {
        if new.len() > 1 && flags.create {
            return Err(Errno::EINVAL);
        }
        self.calls += 1;
        let call = self.calls;
        let new = new.iter().map(|&to| Member { to, create: flags.create, by: Some(by.into()), call });
        let mut new: Vec<_> = new.collect();
        let itself = || vec![Member { to: from, create: false, by: None, call: 0 }];
        let mut members = self.mounts.remove(&from).unwrap_or_else(itself);
        match flags.order {
            Order::Replace => members = new,
            Order::Before => {
                new.append(&mut members);
                members = new;
            }
            Order::After => members.append(&mut new),
        }
        self.mounts.insert(from, members);
        self.called.entry(from).or_insert_with(|| old.into());
        Ok(Saw::Done)
    }

    /// Returns the file that a mount on `old` covers. Mounts on its last name are not followed. With `make`, missing
    /// names in the backbone are created.
    fn covered(&mut self, old: &str, is_dir: Option<bool>, make: bool, states: &mut Vec<Self>) -> Answer<Id> {
        let names: Vec<&str> = names(old).collect();
        let mut place = self.root()?;
        for (i, name) in names.iter().enumerate() {
            let is_last = i + 1 == names.len();
            match self.first(&place, name) {
                Err(Errno::ENOENT) if make => {
                    let here = place.at.iter().find(|member| self.files[member].server == 0);
                    let is_file = is_last && is_dir == Some(false);
                    self.plant(*here.ok_or(Errno::ENOENT)?, name, is_file.then_some(b""));
                    states.push(self.clone());
                }
                _ => {}
            }
            place = if is_last {
                let (file, _) = self.first(&place, name)?;
                Place { way: vec![file], at: vec![file] }
            } else {
                self.step(&place, name)?
            };
        }
        let from = place.way.last().copied().unwrap_or(self.roots[0]);
        match is_dir.is_some_and(|is_dir| is_dir != self.is_dir(from)) {
            true => Err(Errno::EINVAL),
            false => Ok(from),
        }
    }

    fn root(&self) -> Answer<Place> {
        let at = self.shown(self.roots[0]);
        if at.is_empty() { Err(Errno::ENOENT) } else { Ok(Place { way: Vec::new(), at }) }
    }

    fn walk(&self, path: &str) -> Answer<Place> {
        let mut place = self.root()?;
        for name in names(path) {
            place = if name == ".." { self.up(&place)? } else { self.step(&place, name)? };
        }
        Ok(place)
    }

    /// "..": lexically, to the file from which the last name was walked.
    fn up(&self, place: &Place) -> Answer<Place> {
        self.dir(place.at[0])?;
        let mut way = place.way.clone();
        way.pop();
        let covered = way.last().copied().unwrap_or(self.roots[0]);
        let at = self.shown(covered);
        if at.is_empty() { Err(Errno::ENOENT) } else { Ok(Place { way, at }) }
    }

    /// Walks one name, into the file that is mounted there.
    fn step(&self, place: &Place, name: &str) -> Answer<Place> {
        let (file, _) = self.first(place, name)?;
        let way = place.way.iter().copied().chain([file]).collect();
        let at = self.shown(file);
        if at.is_empty() { Err(Errno::ENOENT) } else { Ok(Place { way, at }) }
    }

    /// Returns the file of this name in the first member of a union that has it, and that member.
    fn first(&self, place: &Place, name: &str) -> Answer<(Id, Id)> {
        self.dir(place.at[0])?;
        let mut members = place.at.clone();
        if self.backwards {
            members.reverse();
        }
        members
            .into_iter()
            .find_map(|dir| self.dir(dir).ok()?.get(name).map(|&file| (file, dir)))
            .ok_or(Errno::ENOENT)
    }

    /// Returns the visible files at a file.
    fn shown(&self, file: Id) -> Vec<Id> {
        match self.mounts.get(&file) {
            Some(members) => members.iter().map(|member| member.to).filter(|&to| self.is_there(to)).collect(),
            None => vec![file],
        }
    }

    /// Returns the directory in which new files are created.
    fn creates(&self, place: &Place) -> Option<Id> {
        let covered = place.way.last().copied().unwrap_or(self.roots[0]);
        match self.mounts.get(&covered) {
            Some(members) if members.len() > 1 => {
                members.iter().find(|member| member.create).map(|member| member.to)
            }
            _ => place.at.first().copied(),
        }
    }

    /// Returns each name once, with the type of the file that a walk reaches.
    fn list(&self, place: &Place) -> Answer<Vec<(String, bool)>> {
        self.dir(place.at[0])?;
        let mut all = BTreeMap::new();
        for &member in &place.at {
            for (name, &file) in self.dir(member)? {
                let shown = self.shown(file).first().copied().unwrap_or(file);
                all.entry(name.clone()).or_insert_with(|| self.is_dir(shown));
            }
        }
        Ok(all.into_iter().collect())
    }

    /// Whether it is a mount point, or one is below it.
    fn is_busy(&self, file: Id) -> bool {
        self.mounts.keys().any(|&from| self.is_within(from, file))
    }

    /// Removes mount points at which nothing is mounted.
    fn tidy(&mut self) {
        self.mounts.retain(|_, members| members.iter().any(|member| member.by.is_some()));
        self.called.retain(|from, _| self.mounts.contains_key(from));
        self.bury();
    }

    fn is_dir(&self, file: Id) -> bool {
        matches!(self.files[&file].kind, Kind::Dir(_))
    }

    fn dir(&self, file: Id) -> Answer<&BTreeMap<String, Id>> {
        match &self.files[&file].kind {
            Kind::Dir(names) => Ok(names),
            Kind::File(_) => Err(Errno::ENOTDIR),
            Kind::Gone(_) => Err(Errno::ENOENT),
        }
    }

    fn dir_mut(&mut self, file: Id) -> Answer<&mut BTreeMap<String, Id>> {
        match &mut self.files.get_mut(&file).ok_or(Errno::ENOENT)?.kind {
            Kind::Dir(names) => Ok(names),
            Kind::File(_) => Err(Errno::ENOTDIR),
            Kind::Gone(_) => Err(Errno::ENOENT),
        }
    }
}

/// One line for each file and each mount point, with their numbers.
impl std::fmt::Display for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (id, Entry { server, kind, .. }) in &self.files {
            match kind {
                Kind::Dir(names) => write!(f, "\n{id} on {server}: {names:?}")?,
                Kind::Gone(name) => write!(f, "\n{id} on {server}: {name} is gone")?,
                Kind::File(bytes) => write!(f, "\n{id} on {server}: {:?}", String::from_utf8_lossy(bytes))?,
            }
        }
        for (from, members) in &self.mounts {
            write!(f, "\nat {from}: {members:?}")?;
        }
        Ok(())
    }
}

fn names(path: &str) -> impl Iterator<Item = &str> {
    path.split('/').filter(|name| !name.is_empty())
}
