//! The record of a name space's statements: the mount or bind call of each one, and a script that recreates the name
//! space.
//!
//! In: executed statements, with their name space and call number; the present name space. Out: the call that a
//! statement names; a script.
//!
//! Always holds: of several calls with the same words the latest is found. The script recreates the tree that is
//! visible now, also after a rename, and if a bound file is no longer mounted elsewhere. A call that no statement can
//! recreate becomes a comment.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use crate::script::{Mount, Statement};
use crate::space::{Flags, MountPoint, NamespaceSnapshot, Order, TreeId, TreePath, names_of};
use crate::views::SpaceViews;

/// A statement in effect. It has the displayed SERVER word.
pub(crate) struct StatementCall {
    pub(crate) statement: Statement,
    /// The SERVER word as it was written.
    pub(crate) word: String,
    /// The server, if the statement is a mount.
    pub(crate) server: Option<Arc<str>>,
    /// Whether the mounted or bound file is a directory.
    pub(crate) is_dir: bool,
}

/// The executed statements of all name spaces.
#[derive(Default)]
pub(crate) struct CallRecord {
    spaces: BTreeMap<Box<str>, BTreeMap<u64, StatementCall>>,
    /// The mounts of all trees that are still visible.
    trees: BTreeMap<TreeId, Mount>,
}

impl CallRecord {
    pub(crate) fn insert(&mut self, space: &str, value: &NamespaceSnapshot, id: u64, made: StatementCall) {
        if let Statement::Mount(mount) = &made.statement
            && let Some(member) = value.heads().iter().flat_map(|head| &head.members).find(|m| m.id == id)
        {
            self.trees.insert(member.to.tree, mount.clone());
        }
        self.spaces.entry(space.into()).or_default().insert(id, made);
    }

    /// Removes calls that have no members any more.
    pub(crate) fn prune(&mut self, space: &str, value: &NamespaceSnapshot) {
        let ids: HashSet<u64> = value.heads().iter().flat_map(|head| &head.members).map(|m| m.id).collect();
        self.spaces.entry(space.into()).or_default().retain(|id, _| ids.contains(id));
    }

    /// Removes name spaces, calls and trees that do not exist any more.
    pub(crate) fn prune_all<'s>(&mut self, spaces: impl Iterator<Item = (&'s str, Arc<NamespaceSnapshot>)>) {
        let spaces: Vec<_> = spaces.collect();
        self.spaces.retain(|name, _| spaces.iter().any(|(of, _)| **of == **name));
        let mut trees = HashSet::new();
        for (name, value) in spaces {
            self.prune(name, &value);
            trees.extend(value.trees());
        }
        self.trees.retain(|tree, _| trees.contains(tree));
    }

    pub(crate) fn calls(&self, space: &str) -> impl Iterator<Item = (u64, &StatementCall)> {
        self.spaces.get(space).into_iter().flatten().map(|(&id, made)| (id, made))
    }

    /// Returns the latest call that mounted or bound `new` on `old`, as written in the statement.
    pub(crate) fn call(&self, space: &str, new: &str, old: &str) -> Option<u64> {
        let is = |(_, made): &(u64, &StatementCall)| match &made.statement {
            Statement::Mount(m) => (m.server == new || made.word == new) && is_same_path(&m.old, old),
            Statement::Bind { new: of, old: at, .. } => is_same_path(of, new) && is_same_path(at, old),
            _ => false,
        };
        self.calls(space).filter(is).last().map(|(id, _)| id)
    }

    /// Returns the server of the latest mount with this word.
    pub(crate) fn server(&self, space: &str, word: &str) -> Option<Arc<str>> {
        let is = |made: &StatementCall| match &made.statement {
            Statement::Mount(mount) => mount.server == word || made.word == word,
            _ => false,
        };
        self.calls(space).filter(|(_, made)| is(made)).last().and_then(|(_, made)| made.server.clone())
    }

    /// Returns the earliest mount with the same line that is not in `claimed`: each line claims one mount.
    pub(crate) fn claim(
        &self,
        space: &str,
        line: &Mount,
        claimed: &BTreeSet<u64>,
    ) -> Option<(u64, &StatementCall)> {
        let is = |(id, made): &(u64, &StatementCall)| match &made.statement {
            Statement::Mount(before) => {
                made.word == line.word
                    && before.aname == line.aname
                    && is_same_path(&before.old, &line.old)
                    && !claimed.contains(id)
            }
            _ => false,
        };
        self.calls(space).find(is)
    }

    /// Returns lines that recreate a name space. A call that no line can recreate becomes a comment.
    pub(crate) fn lines(&self, space: &str, value: &NamespaceSnapshot) -> Vec<String> {
        let mut again = ScriptBuilder {
            record: self,
            made: NamespaceSnapshot::new(value.root().clone()),
            lines: Vec::new(),
        };
        let heads = value.heads();
        let calls = heads.iter().flat_map(|head| head.members.iter().map(move |member| (member.id, *head)));
        let calls: BTreeMap<u64, &Arc<MountPoint>> = calls.filter(|(id, _)| *id > 0).collect();
        for (id, head) in calls {
            match self.spaces.get(space).and_then(|calls| calls.get(&id)) {
                Some(made) => again.call(head, id, made),
                // It exists before all lines, like the name space's own root.
                None => again.done(head, id, flags(head, id)),
            }
        }
        again.lines
    }
}

/// A script under construction, and the name space that its lines create so far.
struct ScriptBuilder<'r> {
    record: &'r CallRecord,
    made: NamespaceSnapshot,
    lines: Vec<String>,
}

impl ScriptBuilder<'_> {
    /// Writes the lines that recreate the members of call `id` at their present position.
    fn call(&mut self, head: &MountPoint, id: u64, made: &StatementCall) {
        let (old, new) = match &made.statement {
            Statement::Mount(mount) => (&mount.old, None),
            Statement::Bind { new, old, .. } => (old, Some(new)),
            _ => return,
        };
        let places = places(head, id);
        let flags = flags(head, id);
        let Some(old) = self.path_of(&head.from, Some(old)) else {
            self.lines
                .push(format!("# not made again, its mount point is not to be seen: {}", made.statement));
            return;
        };
        match (&made.statement, new) {
            (Statement::Mount(mount), _) => {
                let mount = Mount { flags, old: old.clone(), ..mount.clone() };
                self.lines.push(Statement::Mount(mount).to_string());
            }
            (_, Some(new)) if may_lead(&self.made, new, &places) => self.bind(new, &old, flags),
            _ => {
                // Bind the members one by one. Members before the others start with the last one.
                let mut order: Vec<_> = places.iter().collect();
                if flags.order == Order::Before {
                    order.reverse();
                }
                for (n, place) in order.into_iter().enumerate() {
                    let order = match flags.order {
                        Order::Replace if n > 0 => Order::After,
                        order => order,
                    };
                    let flags = Flags { order, ..flags };
                    self.place(place, head, &old, flags, made);
                    let _ = self.made.mount(vec![place.clone()], "", head.from.clone(), &old, flags);
                }
                return;
            }
        }
        self.done(head, id, flags);
    }

    /// Applies a call to the name space under construction.
    fn done(&mut self, head: &MountPoint, id: u64, flags: Flags) {
        // It succeeded once, so it succeeds again.
        let _ = self.made.mount(places(head, id), "", head.from.clone(), &head.old, flags);
    }

    /// Writes the lines that bind one place.
    fn place(&mut self, place: &TreePath, head: &MountPoint, old: &str, flags: Flags, made: &StatementCall) {
        if let Some(path) = self.path_of(place, None) {
            return self.bind(&path, old, flags);
        }
        let Some(mount) = self.record.trees.get(&place.tree) else {
            return self
                .lines
                .push(format!("# not made again, its server is not mounted by a line: {}", made.statement));
        };
        let Ok(below) = std::str::from_utf8(&place.path) else {
            return self.lines.push(format!("# not made again, its name is no text: {}", made.statement));
        };
        let mount = |flags| Mount { flags, old: old.into(), ..mount.clone() };
        if below.is_empty() {
            return self.lines.push(Statement::Mount(mount(flags)).to_string());
        }
        // Mount its server there temporarily.
        let first = if flags.order == Order::Replace { Flags::REPLACE } else { Flags::BEFORE };
        let new = format!("{}/{below}", old.trim_end_matches('/'));
        let mut then = self.made.clone();
        let root = vec![TreePath::root(place.tree)];
        let there = made.is_dir && then.mount(root, "", head.from.clone(), old, first).is_ok();
        if !there || leads(&then, &new) != [place.clone()] {
            let why = "no path leads to what it shows";
            return self.lines.push(format!("# not made again, {why}: {}", made.statement));
        }
        let first = mount(first);
        let (server, at) = (first.server.clone(), old.to_string());
        self.lines.push(Statement::Mount(first).to_string());
        self.bind(&new, old, flags);
        if flags.order != Order::Replace {
            self.lines.push(Statement::Unmount { new: Some(server), old: at }.to_string());
        }
    }

    fn bind(&mut self, new: &str, old: &str, flags: Flags) {
        self.lines.push(Statement::Bind { flags, new: new.into(), old: old.into() }.to_string());
    }

    /// Returns a path to a file. With `first` it is the path of a mount point: it prefers `first` and ignores mounts on
    /// the last name. Without `first`, mounts on the last name count.
    fn path_of(&self, place: &TreePath, first: Option<&str>) -> Option<String> {
        let is_it = |path: &str| match first {
            Some(_) => self.covers(path).as_ref() == Some(place),
            None => leads(&self.made, path) == [place.clone()],
        };
        if let Some(path) = first.filter(|path| is_it(path)) {
            return Some(path.into());
        }
        let views = SpaceViews::of(&self.made);
        let mut paths: Vec<String> = views
            .of_tree(place.tree)
            .filter(|view| place.is_within(&view.place))
            .filter_map(|view| {
                let below = &place.names()[view.place.names().len()..];
                let names = view
                    .at
                    .split(|&b| b == b'/')
                    .filter(|name| !name.is_empty())
                    .chain(below.iter().copied());
                let names: Option<Vec<&str>> = names.map(|name| std::str::from_utf8(name).ok()).collect();
                Some(format!("/{}", names?.join("/")))
            })
            .filter(|path| is_it(path))
            .collect();
        paths.sort_by_key(|path| (path.len(), path.clone()));
        paths.into_iter().next()
    }

    /// Returns the place that a mount on a path covers, if each union on the path has the next name in its first
    /// member.
    fn covers(&self, path: &str) -> Option<TreePath> {
        let names = names_of(path);
        let Some((last, up)) = names.split_last() else { return Some(self.made.root().clone()) };
        Some(walk(&self.made, up).first()?.child(last))
    }
}

/// Returns the places to which a path leads, if each union on the path has the next name in its first member.
fn leads(space: &NamespaceSnapshot, path: &str) -> Vec<TreePath> {
    walk(space, &names_of(path))
}

fn walk(space: &NamespaceSnapshot, names: &[&[u8]]) -> Vec<TreePath> {
    let mut at = shown(space, space.root().clone());
    for name in names {
        let Some(first) = at.first() else { return at };
        at = shown(space, first.child(name));
    }
    at
}

/// Whether a path may lead to these places, as it did once, if any member of a union may have the next name.
fn may_lead(space: &NamespaceSnapshot, path: &str, places: &[TreePath]) -> bool {
    let mut all = vec![shown(space, space.root().clone())];
    for name in names_of(path) {
        let next = all.iter().flatten().map(|place| shown(space, place.child(name)));
        all = next.take(WAYS_MAX).collect();
    }
    all.iter().any(|at| at == places)
}

fn shown(space: &NamespaceSnapshot, place: TreePath) -> Vec<TreePath> {
    match space.head(&place) {
        Some(head) => head.members.iter().map(|member| member.to.clone()).collect(),
        None => vec![place],
    }
}

/// Maximum number of paths through unions that are checked.
const WAYS_MAX: usize = 4096;

/// Returns the files that call `id` mounted or bound on a mount point.
fn places(head: &MountPoint, id: u64) -> Vec<TreePath> {
    head.members.iter().filter(|member| member.id == id).map(|member| member.to.clone()).collect()
}

/// Returns the flags with which to repeat call `id`, so that its members get their position among those of earlier
/// calls.
fn flags(head: &MountPoint, id: u64) -> Flags {
    let at = head.members.iter().position(|m| m.id == id).unwrap_or(0);
    let older = |m: &crate::space::MountMember| m.id < id;
    let order = match (head.members[..at].iter().any(older), head.members[at..].iter().any(older)) {
        (true, _) => Order::After,
        (_, true) => Order::Before,
        _ => Order::Replace,
    };
    let create = head.members.iter().any(|m| m.id == id && m.create);
    Flags { order, create, duplicates: head.duplicates }
}

fn is_same_path(a: &str, b: &str) -> bool {
    names_of(a) == names_of(b)
}
