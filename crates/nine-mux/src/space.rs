//! The name space as a value: its mount points, and the files that are mounted there.
//!
//! In: places that the caller has resolved by walks. Out: a new value; readers keep the old one. This module holds no
//! fids and sends no messages.
//!
//! A [`TreePath`] identifies a file by the tree of an upstream and the path in that tree. A mount point is a place, not
//! a name: every path to it, also through a bind, shows the same files. Plan 9's Mhead is keyed by a qid instead. A
//! path is known before the walk.

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use nine_proto::{Errno, Error, Result, show};

/// Identifies a tree of a mux: a pair of upstream and aname. Never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeId(pub u32);

/// A file of a tree, by its path from the tree's root: names separated by '/'. The path of the root is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TreePath {
    /// The tree.
    pub tree: TreeId,
    /// The path in it.
    pub path: Box<[u8]>,
}

impl TreePath {
    /// Returns the root of a tree.
    pub fn root(tree: TreeId) -> Self {
        Self { tree, path: Box::default() }
    }

    /// Returns the file `name` in this directory.
    pub fn child(&self, name: &[u8]) -> Self {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        push(&mut path, name);
        Self { tree: self.tree, path: path.into() }
    }

    /// Returns the names of the path from the root.
    pub fn names(&self) -> Vec<&[u8]> {
        self.path.split(|&b| b == b'/').filter(|name| !name.is_empty()).collect()
    }

    /// Returns the last name of the path; empty for a root.
    pub fn name(&self) -> &[u8] {
        self.path.rsplit(|&b| b == b'/').next().unwrap_or_default()
    }

    /// Whether it is `other` or below it.
    pub fn is_within(&self, other: &Self) -> bool {
        let below = || match self.path.strip_prefix(&*other.path) {
            Some(rest) => rest.is_empty() || other.path.is_empty() || rest[0] == b'/',
            None => false,
        };
        self.tree == other.tree && below()
    }

    /// Returns the place after `old` was renamed to `new`.
    pub(crate) fn moved(&self, old: &Self, new: &Self) -> Self {
        if !self.is_within(old) {
            return self.clone();
        }
        self.names()[old.names().len()..].iter().fold(new.clone(), |place, name| place.child(name))
    }

    /// Returns the parent directory. A root is its own parent.
    pub fn parent(&self) -> Self {
        let end = self.path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        Self { tree: self.tree, path: self.path[..end].into() }
    }

    /// Whether it is a direct child of `dir`.
    pub fn is_child(&self, dir: &Self) -> bool {
        self.is_within(dir) && self.names().len() == dir.names().len() + 1
    }
}

/// Appends a name to a path.
pub(crate) fn push(path: &mut Vec<u8>, name: &[u8]) {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(name);
}

/// The position of the new files in a union (bind(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They replace the existing files (MREPL).
    Replace,
    /// They are searched before the existing files (MBEFORE).
    Before,
    /// They are searched after the existing files (MAFTER).
    After,
}

/// Flags of a mount or bind (bind(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// The position of the new files.
    pub order: Order,
    /// Whether new files may be created there (MCREATE).
    pub create: bool,
    /// Whether a listing shows a name once for each member that has it.
    pub duplicates: bool,
}

impl Flags {
    /// MREPL without MCREATE, which only unions need.
    pub const REPLACE: Self = Self { order: Order::Replace, create: false, duplicates: false };
    /// MBEFORE.
    pub const BEFORE: Self = Self { order: Order::Before, ..Self::REPLACE };
    /// MAFTER.
    pub const AFTER: Self = Self { order: Order::After, ..Self::REPLACE };

    /// Adds MCREATE.
    pub const fn with_create(self) -> Self {
        Self { create: true, ..self }
    }
}

/// A member of a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountMember {
    /// The mounted file.
    pub to: TreePath,
    /// Whether new files may be created in it.
    pub create: bool,
    /// The number that the mount or bind call returned. 0 for the covered directory itself.
    pub id: u64,
    /// The argument of the call that names the mounted or bound file.
    pub what: Arc<str>,
    /// Keeps the tree alive for fids that still use an old value of this union.
    pub kept: KeepAlive,
}

/// Keeps a value alive and has no other function.
#[derive(Clone, Default)]
pub struct KeepAlive(Option<Arc<dyn Any + Send + Sync>>);

impl PartialEq for KeepAlive {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for KeepAlive {}

impl fmt::Debug for KeepAlive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeepAlive")
    }
}

/// A mount point: the covered file and its members. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// The covered place.
    pub from: TreePath,
    /// The argument of the call that names the mount point.
    pub old: Arc<str>,
    /// The members in search order.
    pub members: Vec<MountMember>,
    /// Whether a listing shows a name once for each member that has it.
    pub duplicates: bool,
}

impl MountPoint {
    /// Returns the index of the member in which new files are created.
    pub fn creates(&self) -> Option<usize> {
        // A single mounted file is no union: files are created in it directly.
        if let [only] = &*self.members
            && only.id != 0
        {
            return Some(0);
        }
        self.members.iter().position(|member| member.create)
    }
}

/// The mounts of a name space. To change them, clone the value, change the clone and swap it in.
#[derive(Clone, Debug)]
pub struct NamespaceSnapshot {
    root: TreePath,
    /// Keeps the trees alive for walks that use this value after it was replaced.
    kept: HashMap<TreeId, Arc<dyn Any + Send + Sync>>,
    heads: HashMap<TreeId, HashMap<Box<[u8]>, Arc<MountPoint>>>,
    next: u64,
}

impl NamespaceSnapshot {
    /// Creates a name space with this root and without mounts.
    pub fn new(root: TreePath) -> Self {
        Self { root, kept: HashMap::new(), heads: HashMap::new(), next: 1 }
    }

    /// Returns a value without mounts that is to replace this one. Its mount numbers do not collide with those that
    /// this value may still assign.
    pub fn emptied(&self) -> Self {
        Self { next: self.next + (1 << 32), ..Self::new(self.root.clone()) }
    }

    /// Restores an earlier value of the same name space. Call numbers are not reused.
    pub fn restore(&mut self, earlier: &Self) {
        let next = self.next;
        *self = Self { next, ..earlier.clone() };
    }

    /// Returns the root of the name space. Every walk starts there, unless something is mounted on it.
    pub fn root(&self) -> &TreePath {
        &self.root
    }

    /// Keeps a tree alive for as long as this value shows it.
    pub fn keep(&mut self, id: TreeId, tree: Arc<dyn Any + Send + Sync>) {
        self.kept.insert(id, tree);
    }

    /// Makes each member keep its tree alive, and drops the trees that this value does not show.
    pub fn let_go(&mut self) {
        for head in self.heads.values_mut().flat_map(HashMap::values_mut) {
            let missing =
                |member: &MountMember| member.kept.0.is_none() && self.kept.contains_key(&member.to.tree);
            if head.members.iter().any(missing) {
                for member in &mut Arc::make_mut(head).members {
                    member.kept.0 = self.kept.get(&member.to.tree).cloned();
                }
            }
        }
        let shown = self.trees();
        self.kept.retain(|id, _| shown.contains(id));
    }

    /// Returns the mount point at a place.
    pub fn head(&self, place: &TreePath) -> Option<&Arc<MountPoint>> {
        self.head_at(place.tree, &place.path)
    }

    /// Iterates over the mount points in a tree.
    pub fn heads_in(&self, tree: TreeId) -> impl Iterator<Item = &Arc<MountPoint>> {
        self.heads.get(&tree).into_iter().flat_map(HashMap::values)
    }

    /// Returns the mount point at a path of a tree.
    pub fn head_at(&self, tree: TreeId, path: &[u8]) -> Option<&Arc<MountPoint>> {
        self.heads.get(&tree)?.get(path)
    }

    /// Whether a tree has mount points.
    pub fn is_covered(&self, tree: TreeId) -> bool {
        self.heads.contains_key(&tree)
    }

    /// Returns all mount points, sorted by their names.
    pub fn heads(&self) -> Vec<&Arc<MountPoint>> {
        let mut heads: Vec<_> = self.heads.values().flat_map(HashMap::values).collect();
        heads.sort_by(|a, b| (&a.old, a.from.tree, &a.from.path).cmp(&(&b.old, b.from.tree, &b.from.path)));
        heads
    }

    /// Returns the mount points that were created under this name.
    pub fn called(&self, old: &str) -> Vec<TreePath> {
        let is = |head: &&Arc<MountPoint>| names_of(&head.old) == names_of(old);
        let heads = self.heads.values().flat_map(HashMap::values).filter(is);
        heads.map(|head| head.from.clone()).collect()
    }

    /// Iterates over the names in this directory that are mount points.
    pub fn covered_names(&self, dir: &TreePath) -> impl Iterator<Item = (&[u8], &Arc<MountPoint>)> {
        let heads = self.heads.get(&dir.tree).into_iter().flat_map(HashMap::values);
        heads
            .filter(|head| head.from.is_child(dir))
            .filter_map(|head| Some((*head.from.names().last()?, head)))
    }

    /// Returns a mount point at this place or below it, if there is one.
    pub fn within(&self, place: &TreePath) -> Option<&Arc<MountPoint>> {
        self.heads.get(&place.tree)?.values().find(|head| head.from.is_within(place))
    }

    /// Mounts the files `to` on `from`, or adds them to the union there. Returns the number of the call (bind(2)).
    ///
    /// The first call that creates a union makes the covered directory a member, without MCREATE. If `to` has several
    /// members of another union, all of them are bound in their order. MCREATE is then refused.
    pub fn mount(
        &mut self,
        to: Vec<TreePath>,
        what: &str,
        from: TreePath,
        old: &str,
        flags: Flags,
    ) -> Result<u64> {
        if flags.create && to.len() > 1 {
            return Err(Error::new(Errno::EINVAL, "inconsistent mount: a union takes no -c of another one"));
        }
        let (id, what) = (self.next, Arc::<str>::from(what));
        let mut create = flags.create;
        let new = to.into_iter().map(|to| {
            let create = std::mem::take(&mut create);
            MountMember { to, create, id, what: what.clone(), kept: KeepAlive::default() }
        });
        let before = self.head(&from);
        let mut members: Vec<MountMember> = match (flags.order, before) {
            (Order::Replace, _) => Vec::new(),
            (_, Some(head)) => head.members.clone(),
            (_, None) => vec![MountMember {
                to: from.clone(),
                create: false,
                id: 0,
                what: old.into(),
                kept: KeepAlive::default(),
            }],
        };
        let at = if flags.order == Order::Before { 0 } else { members.len() };
        members.splice(at..at, new);
        if members.len() > MEMBERS_MAX {
            return Err(Error::new(Errno::ENOSPC, "a union has at most 4096 members"));
        }
        let duplicates = flags.duplicates || before.is_some_and(|head| head.duplicates);
        let old = before.map_or_else(|| old.into(), |head| head.old.clone());
        self.insert(MountPoint { from, old, members, duplicates });
        self.next += 1;
        Ok(id)
    }

    /// Removes everything that is mounted at `from`.
    pub fn unmount(&mut self, from: &TreePath) -> Result<()> {
        self.head(from).ok_or_else(|| Error::new(Errno::EINVAL, "nothing is mounted there"))?;
        self.remove(from);
        Ok(())
    }

    /// Removes the members that one call added.
    pub fn unmount_call(&mut self, id: u64) -> Result<()> {
        let of = |head: &&Arc<MountPoint>| head.members.iter().any(|member| member.id == id);
        let head = self.heads.values().flat_map(HashMap::values).find(of);
        let head = head.ok_or_else(|| Error::new(Errno::EINVAL, "that is not mounted there"))?;
        let mut head = MountPoint::clone(head);
        head.members.retain(|member| member.id != id);
        self.replace(head);
        Ok(())
    }

    /// Makes the mounts follow a file, and all files below it, to its new name. Returns whether there were any.
    pub fn moved(&mut self, old: &TreePath, new: &TreePath) -> bool {
        let concerns = |head: &&Arc<MountPoint>| {
            head.from.is_within(old) || head.members.iter().any(|member| member.to.is_within(old))
        };
        let concerned: Vec<Arc<MountPoint>> =
            self.heads.values().flat_map(HashMap::values).filter(concerns).cloned().collect();
        for head in &concerned {
            self.remove(&head.from);
        }
        for head in &concerned {
            let mut head = MountPoint::clone(head);
            head.from = head.from.moved(old, new);
            head.members.iter_mut().for_each(|member| member.to = member.to.moved(old, new));
            self.insert(head);
        }
        !concerned.is_empty()
    }

    /// Returns the trees that are visible or have mount points.
    pub fn trees(&self) -> std::collections::HashSet<TreeId> {
        let members = self.heads.values().flat_map(HashMap::values).flat_map(|head| &head.members);
        members
            .map(|member| member.to.tree)
            .chain(self.heads.keys().copied())
            .chain([self.root.tree])
            .collect()
    }

    /// Stores a head with fewer members, or removes it if none of them was mounted.
    fn replace(&mut self, head: MountPoint) {
        if head.members.iter().any(|member| member.id != 0) {
            return self.insert(head);
        }
        self.remove(&head.from);
    }

    fn remove(&mut self, from: &TreePath) {
        if let Some(of_tree) = self.heads.get_mut(&from.tree) {
            of_tree.remove(&from.path);
            if of_tree.is_empty() {
                self.heads.remove(&from.tree);
            }
        }
    }

    fn insert(&mut self, head: MountPoint) {
        self.heads.entry(head.from.tree).or_default().insert(head.from.path.clone(), Arc::new(head));
    }
}

/// Splits a path into names, without empty ones and ".".
pub(crate) fn names_of(path: &str) -> Vec<&[u8]> {
    path.as_bytes().split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()
}

/// Formats a member's path for messages.
pub(crate) fn show_path(path: &[u8]) -> String {
    format!("/{}", show(path))
}

/// Maximum number of members of a union.
pub const MEMBERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tree: u32, path: &str) -> TreePath {
        TreePath { tree: TreeId(tree), path: path.as_bytes().into() }
    }

    fn space() -> NamespaceSnapshot {
        NamespaceSnapshot::new(place(0, ""))
    }

    fn members(space: &NamespaceSnapshot, at: &TreePath) -> Vec<(TreePath, bool)> {
        let head = space.head(at).expect("a mount point");
        head.members.iter().map(|member| (member.to.clone(), member.create)).collect()
    }

    #[test]
    fn a_first_union_keeps_the_directory_without_create() {
        let mut space = space();
        let from = place(0, "bin");
        let flags = Flags::BEFORE.with_create();
        space.mount(vec![place(1, "")], "a", from.clone(), "/bin", flags).unwrap();
        space.mount(vec![place(2, "")], "b", from.clone(), "/bin", Flags::AFTER).unwrap();
        let expected = [(place(1, ""), true), (from.clone(), false), (place(2, ""), false)];
        assert_eq!(members(&space, &from), expected);
        assert_eq!(space.head(&from).unwrap().creates(), Some(0));
    }

    #[test]
    fn replace_frees_the_list_and_unmount_brings_the_covered_back() {
        let mut space = space();
        let from = place(0, "n");
        space.mount(vec![place(1, "")], "a", from.clone(), "/n", Flags::AFTER).unwrap();
        space.mount(vec![place(2, "x")], "b", from.clone(), "/n", Flags::REPLACE).unwrap();
        assert_eq!(members(&space, &from), [(place(2, "x"), false)]);
        assert!(space.unmount_call(1).is_err());
        space.unmount_call(2).unwrap();
        assert!(space.head(&from).is_none() && !space.is_covered(TreeId(0)));
        assert!(space.unmount(&from).is_err());
    }

    #[test]
    fn a_bound_union_comes_with_all_its_members_and_takes_no_create() {
        let mut space = space();
        let from = place(0, "to");
        let union = vec![place(1, ""), place(2, "")];
        let create = Flags::AFTER.with_create();
        assert!(space.mount(union.clone(), "u", from.clone(), "/to", create).is_err());
        space.mount(union, "u", from.clone(), "/to", Flags::REPLACE).unwrap();
        assert_eq!(members(&space, &from), [(place(1, ""), false), (place(2, ""), false)]);
        assert_eq!(space.head(&from).unwrap().creates(), None);
    }

    #[test]
    fn mounts_follow_a_file_to_its_new_name() {
        let mut space = space();
        let (from, old, new) = (place(0, "m"), place(1, "a"), place(1, "x/b"));
        space.mount(vec![place(1, "a/f")], "f", from.clone(), "/m", Flags::REPLACE).unwrap();
        space.mount(vec![place(2, "")], "g", place(1, "a/d"), "/g", Flags::AFTER).unwrap();
        assert!(space.moved(&old, &new) && !space.moved(&old, &new));
        assert_eq!(members(&space, &from), [(place(1, "x/b/f"), false)]);
        let at = place(1, "x/b/d");
        assert_eq!(members(&space, &at), [(at.clone(), false), (place(2, ""), false)]);
        assert!(space.head(&place(1, "a/d")).is_none());
    }

    #[test]
    fn places_know_what_is_below_them() {
        assert!(place(0, "a/b").is_within(&place(0, "a")));
        assert!(place(0, "a/b").is_child(&place(0, "a")));
        assert!(!place(0, "a/b/c").is_child(&place(0, "a")));
        assert!(!place(0, "ab").is_within(&place(0, "a")));
        assert!(place(0, "ab").is_child(&place(0, "")));
        assert!(!place(1, "a").is_within(&place(0, "")));
        assert_eq!(place(0, "").child(b"a").child(b"b"), place(0, "a/b"));
    }
}
