//! The name space as a value: which places are mount points, and what is to be seen there.
//!
//! In: places, given by whoever walked to them. Out: a new value; readers keep the old one. Nothing here holds a fid or
//! talks to anybody.
//!
//! A [`Place`] is a file by its upstream's tree and its path there. A mount point is a place, not a name: whoever comes
//! to it by another way (a bind) sees the same (Mhead of Plan 9, whose key is a qid; a path is known before the walk).

use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use nine_proto::{Errno, Error, Result, show};

/// Numbers the trees of a mux: one for each upstream and aname. Never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TreeId(pub u32);

/// A file of a tree, by its path from the root there: names with '/' between; the root is empty.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Which tree.
    pub tree: TreeId,
    /// Where in it.
    pub path: Box<[u8]>,
}

impl Place {
    /// The root of a tree.
    pub fn root(tree: TreeId) -> Self {
        Self { tree, path: Box::default() }
    }

    /// The file `name` in this directory.
    pub fn child(&self, name: &[u8]) -> Self {
        let mut path = Vec::with_capacity(self.path.len() + 1 + name.len());
        path.extend_from_slice(&self.path);
        push(&mut path, name);
        Self { tree: self.tree, path: path.into() }
    }

    /// The names from the root.
    pub fn names(&self) -> Vec<&[u8]> {
        self.path.split(|&b| b == b'/').filter(|name| !name.is_empty()).collect()
    }

    /// The last of the names; empty for a root.
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

    /// Where it is when `old` has become `new`.
    pub(crate) fn moved(&self, old: &Self, new: &Self) -> Self {
        if !self.is_within(old) {
            return self.clone();
        }
        self.names()[old.names().len()..].iter().fold(new.clone(), |place, name| place.child(name))
    }

    /// The directory that it is in; a root is in itself.
    pub fn parent(&self) -> Self {
        let end = self.path.iter().rposition(|&b| b == b'/').unwrap_or(0);
        Self { tree: self.tree, path: self.path[..end].into() }
    }

    /// Whether it is `name` directly in `dir`.
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

/// Where the new files go among those that are there (bind(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// They hide what was there (MREPL).
    Replace,
    /// They are looked at first (MBEFORE).
    Before,
    /// They are looked at last (MAFTER).
    After,
}

/// How something is mounted or bound (bind(2)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flags {
    /// In which order.
    pub order: Order,
    /// New files may be made in it (MCREATE).
    pub create: bool,
    /// A name that several members have is listed for each of them.
    pub duplicates: bool,
}

impl Flags {
    /// MREPL: without MCREATE, which only unions ask for.
    pub const REPLACE: Self = Self { order: Order::Replace, create: false, duplicates: false };
    /// MBEFORE.
    pub const BEFORE: Self = Self { order: Order::Before, ..Self::REPLACE };
    /// MAFTER.
    pub const AFTER: Self = Self { order: Order::After, ..Self::REPLACE };

    /// With MCREATE.
    pub const fn with_create(self) -> Self {
        Self { create: true, ..self }
    }
}

/// One member of what is seen at a mount point.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its file.
    pub to: Place,
    /// Whether new files may be made in it.
    pub create: bool,
    /// What the call that made it returned; 0: it was there before.
    pub id: u64,
    /// What was mounted or bound, in the words of the call.
    pub what: Arc<str>,
    /// Its tree, for fids of a union that has changed since.
    pub kept: Kept,
}

/// Lets something live, and is otherwise nothing.
#[derive(Clone, Default)]
pub struct Kept(Option<Arc<dyn Any + Send + Sync>>);

impl PartialEq for Kept {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Kept {}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Kept")
    }
}

/// A mount point: what is covered, and what is seen there instead. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The place that is covered.
    pub from: Place,
    /// Its name in the words of the call that made it.
    pub old: Arc<str>,
    /// In the order in which they are searched.
    pub members: Vec<Mount>,
    /// A name that several members have is listed for each of them.
    pub duplicates: bool,
}

impl Head {
    /// Where new files go.
    pub fn creates(&self) -> Option<usize> {
        // Nothing was joined: it is what it is.
        if let [only] = &*self.members
            && only.id != 0
        {
            return Some(0);
        }
        self.members.iter().position(|member| member.create)
    }
}

/// What is mounted where. A value: clone it, change it, swap it in.
#[derive(Clone, Debug)]
pub struct Space {
    root: Place,
    /// What the trees are, for whoever walks by this value while another one has taken its place.
    kept: HashMap<TreeId, Arc<dyn Any + Send + Sync>>,
    heads: HashMap<TreeId, HashMap<Box<[u8]>, Arc<Head>>>,
    next: u64,
}

impl Space {
    /// Nothing is mounted on the tree whose root this is.
    pub fn new(root: Place) -> Self {
        Self { root, kept: HashMap::new(), heads: HashMap::new(), next: 1 }
    }

    /// The same without anything mounted, for a value that takes the place of this one: the numbers of its mounts are
    /// those of no mount that may still be made here.
    pub fn emptied(&self) -> Self {
        Self { next: self.next + (1 << 32), ..Self::new(self.root.clone()) }
    }

    /// Becomes an earlier value of the same name space again; numbers of calls are not used twice.
    pub fn restore(&mut self, earlier: &Self) {
        let next = self.next;
        *self = Self { next, ..earlier.clone() };
    }

    /// Where everybody begins, if nothing is mounted there.
    pub fn root(&self) -> &Place {
        &self.root
    }

    /// Lets a tree live as long as this value shows it.
    pub fn keep(&mut self, id: TreeId, tree: Arc<dyn Any + Send + Sync>) {
        self.kept.insert(id, tree);
    }

    /// Has each member keep its tree, and lets go of what it does not show.
    pub fn let_go(&mut self) {
        for head in self.heads.values_mut().flat_map(HashMap::values_mut) {
            let missing = |member: &Mount| member.kept.0.is_none() && self.kept.contains_key(&member.to.tree);
            if head.members.iter().any(missing) {
                for member in &mut Arc::make_mut(head).members {
                    member.kept.0 = self.kept.get(&member.to.tree).cloned();
                }
            }
        }
        let shown = self.trees();
        self.kept.retain(|id, _| shown.contains(id));
    }

    /// What is mounted at a place.
    pub fn head(&self, place: &Place) -> Option<&Arc<Head>> {
        self.head_at(place.tree, &place.path)
    }

    /// What is mounted on files of a tree.
    pub fn heads_in(&self, tree: TreeId) -> impl Iterator<Item = &Arc<Head>> {
        self.heads.get(&tree).into_iter().flat_map(HashMap::values)
    }

    /// What is mounted at a path of a tree.
    pub fn head_at(&self, tree: TreeId, path: &[u8]) -> Option<&Arc<Head>> {
        self.heads.get(&tree)?.get(path)
    }

    /// Whether anything is mounted in a tree.
    pub fn is_covered(&self, tree: TreeId) -> bool {
        self.heads.contains_key(&tree)
    }

    /// Every mount point, sorted by its name.
    pub fn heads(&self) -> Vec<&Arc<Head>> {
        let mut heads: Vec<_> = self.heads.values().flat_map(HashMap::values).collect();
        heads.sort_by(|a, b| (&a.old, a.from.tree, &a.from.path).cmp(&(&b.old, b.from.tree, &b.from.path)));
        heads
    }

    /// The mount points that were called so when they were made.
    pub fn called(&self, old: &str) -> Vec<Place> {
        let is = |head: &&Arc<Head>| names_of(&head.old) == names_of(old);
        let heads = self.heads.values().flat_map(HashMap::values).filter(is);
        heads.map(|head| head.from.clone()).collect()
    }

    /// The names in this directory that are mount points.
    pub fn covered_names(&self, dir: &Place) -> impl Iterator<Item = (&[u8], &Arc<Head>)> {
        let heads = self.heads.get(&dir.tree).into_iter().flat_map(HashMap::values);
        heads
            .filter(|head| head.from.is_child(dir))
            .filter_map(|head| Some((*head.from.names().last()?, head)))
    }

    /// A mount point that is this place or below it.
    pub fn within(&self, place: &Place) -> Option<&Arc<Head>> {
        self.heads.get(&place.tree)?.values().find(|head| head.from.is_within(place))
    }

    /// Puts `to` over `from`, or beside what is there. What comes out numbers the mount (bind(2)).
    ///
    /// A first union keeps the directory itself as a member, without MCREATE. Several members of a union are bound with
    /// all of them in their order, only the first with MCREATE, which a real union may not have.
    pub fn mount(&mut self, to: Vec<Place>, what: &str, from: Place, old: &str, flags: Flags) -> Result<u64> {
        if flags.create && to.len() > 1 {
            return Err(Error::new(Errno::EINVAL, "inconsistent mount: a union takes no -c of another one"));
        }
        let (id, what) = (self.next, Arc::<str>::from(what));
        let mut create = flags.create;
        let new = to.into_iter().map(|to| {
            let create = std::mem::take(&mut create);
            Mount { to, create, id, what: what.clone(), kept: Kept::default() }
        });
        let before = self.head(&from);
        let mut members: Vec<Mount> = match (flags.order, before) {
            (Order::Replace, _) => Vec::new(),
            (_, Some(head)) => head.members.clone(),
            (_, None) => vec![Mount {
                to: from.clone(),
                create: false,
                id: 0,
                what: old.into(),
                kept: Kept::default(),
            }],
        };
        let at = if flags.order == Order::Before { 0 } else { members.len() };
        members.splice(at..at, new);
        if members.len() > MEMBERS_MAX {
            return Err(Error::new(Errno::ENOSPC, "a union has at most 4096 members"));
        }
        let duplicates = flags.duplicates || before.is_some_and(|head| head.duplicates);
        let old = before.map_or_else(|| old.into(), |head| head.old.clone());
        self.insert(Head { from, old, members, duplicates });
        self.next += 1;
        Ok(id)
    }

    /// Takes away everything that is mounted at `from`.
    pub fn unmount(&mut self, from: &Place) -> Result<()> {
        self.head(from).ok_or_else(|| Error::new(Errno::EINVAL, "nothing is mounted there"))?;
        self.remove(from);
        Ok(())
    }

    /// Removes the members that one call added.
    pub fn unmount_call(&mut self, id: u64) -> Result<()> {
        let of = |head: &&Arc<Head>| head.members.iter().any(|member| member.id == id);
        let head = self.heads.values().flat_map(HashMap::values).find(of);
        let head = head.ok_or_else(|| Error::new(Errno::EINVAL, "that is not mounted there"))?;
        let mut head = Head::clone(head);
        head.members.retain(|member| member.id != id);
        self.replace(head);
        Ok(())
    }

    /// A file and all below it have another name: mounts follow them. Whether there were any.
    pub fn moved(&mut self, old: &Place, new: &Place) -> bool {
        let concerns = |head: &&Arc<Head>| {
            head.from.is_within(old) || head.members.iter().any(|member| member.to.is_within(old))
        };
        let concerned: Vec<Arc<Head>> =
            self.heads.values().flat_map(HashMap::values).filter(concerns).cloned().collect();
        for head in &concerned {
            self.remove(&head.from);
        }
        for head in &concerned {
            let mut head = Head::clone(head);
            head.from = head.from.moved(old, new);
            head.members.iter_mut().for_each(|member| member.to = member.to.moved(old, new));
            self.insert(head);
        }
        !concerned.is_empty()
    }

    /// The trees that are to be seen, or are mounted on.
    pub fn trees(&self) -> std::collections::HashSet<TreeId> {
        let members = self.heads.values().flat_map(HashMap::values).flat_map(|head| &head.members);
        members
            .map(|member| member.to.tree)
            .chain(self.heads.keys().copied())
            .chain([self.root.tree])
            .collect()
    }

    /// A head whose members have become fewer.
    fn replace(&mut self, head: Head) {
        if head.members.iter().any(|member| member.id != 0) {
            return self.insert(head);
        }
        self.remove(&head.from);
    }

    fn remove(&mut self, from: &Place) {
        if let Some(of_tree) = self.heads.get_mut(&from.tree) {
            of_tree.remove(&from.path);
            if of_tree.is_empty() {
                self.heads.remove(&from.tree);
            }
        }
    }

    fn insert(&mut self, head: Head) {
        self.heads.entry(head.from.tree).or_default().insert(head.from.path.clone(), Arc::new(head));
    }
}

/// The names of a path, without those that lead nowhere.
pub(crate) fn names_of(path: &str) -> Vec<&[u8]> {
    path.as_bytes().split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b".")).collect()
}

/// What a member is called in messages.
pub(crate) fn show_path(path: &[u8]) -> String {
    format!("/{}", show(path))
}

/// Members of one union: one more is refused.
pub const MEMBERS_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    fn place(tree: u32, path: &str) -> Place {
        Place { tree: TreeId(tree), path: path.as_bytes().into() }
    }

    fn space() -> Space {
        Space::new(place(0, ""))
    }

    fn members(space: &Space, at: &Place) -> Vec<(Place, bool)> {
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
