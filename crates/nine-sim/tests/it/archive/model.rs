//! Trees of files, as expected and as read.
//!
//! In: operations. Out: the tree after each, which is cheap to store; differences of two trees.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

/// Type of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Dir,
    File,
    Link,
}

/// A file.
#[derive(Clone, Debug)]
pub struct Node {
    pub kind: Kind,
    pub mode: u32,
    /// Number of links; 0 if unknown.
    pub links: u32,
    /// Content, or target of a link.
    pub data: Rc<Vec<u8>>,
    pub xattrs: BTreeMap<String, Rc<Vec<u8>>>,
    /// Seconds, if a client has set it.
    pub mtime: Option<i64>,
}

/// Files by path. "" is the root. Clones share equal parts.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    pub names: BTreeMap<String, u64>,
    pub nodes: BTreeMap<u64, Rc<Node>>,
    /// Of a tree that was read: paths that could not be read, with everything below them.
    pub holes: BTreeSet<String>,
    next: u64,
}

impl Node {
    pub fn new(kind: Kind, mode: u32, data: Vec<u8>) -> Self {
        let links = u32::from(kind != Kind::Dir);
        Self { kind, mode, links, data: Rc::new(data), xattrs: BTreeMap::new(), mtime: None }
    }

    /// Returns how a file that was read differs.
    fn differs(&self, read: &Self) -> Option<String> {
        let what = match () {
            () if self.kind != read.kind => format!("is {:?} and not {:?}", read.kind, self.kind),
            () if self.mode != read.mode => format!("has mode {:o} and not {:o}", read.mode, self.mode),
            () if self.links != read.links => format!("has {} links and not {}", read.links, self.links),
            () if self.mtime.is_some() && self.mtime != read.mtime => {
                format!("is of {:?} and not {:?}", read.mtime, self.mtime)
            }
            () if self.data != read.data => bytes(&self.data, &read.data),
            () if self.xattrs != read.xattrs => {
                let names = |node: &Self| {
                    node.xattrs
                        .iter()
                        .map(|(name, value)| format!("{name}+{}", value.len()))
                        .collect::<Vec<_>>()
                };
                format!("has {:?} and not {:?}, or other values", names(read), names(self))
            }
            () => return None,
        };
        Some(what)
    }
}

/// Describes how bytes differ.
pub fn bytes(right: &[u8], read: &[u8]) -> String {
    let same = right.iter().zip(read).take_while(|(a, b)| a == b).count();
    let wrong: Vec<_> = read.iter().skip(same).take(8).collect();
    format!("has {} bytes and not {}, from {same} on {wrong:02x?}", read.len(), right.len())
}

impl Tree {
    pub fn get(&self, path: &str) -> Option<&Node> {
        self.names.get(path).map(|id| &*self.nodes[id])
    }

    /// Returns a node to change it.
    pub fn node(&mut self, id: u64) -> &mut Node {
        Rc::make_mut(self.nodes.get_mut(&id).expect("it is there"))
    }

    pub fn make(&mut self, path: &str, node: Node) -> u64 {
        self.next = self.next.max(self.nodes.keys().next_back().map_or(0, |last| last + 1)) + 1;
        self.nodes.insert(self.next, Rc::new(node));
        self.names.insert(path.into(), self.next);
        self.next
    }

    pub fn link(&mut self, path: &str, id: u64) {
        self.names.insert(path.into(), id);
        self.node(id).links += 1;
    }

    pub fn unlink(&mut self, path: &str) {
        let id = self.names.remove(path).expect("it is there");
        let node = self.node(id);
        node.links = node.links.saturating_sub(1);
    }

    /// Renames a file with everything below it.
    pub fn rename(&mut self, from: &str, to: &str) {
        if self.names.get(from) == self.names.get(to) {
            return;
        }
        if self.names.contains_key(to) {
            self.unlink(to);
        }
        let below = format!("{from}/");
        let moved: Vec<String> =
            self.names.keys().filter(|path| *path == from || path.starts_with(&below)).cloned().collect();
        for path in moved {
            let id = self.names.remove(&path).expect("it was there");
            self.names.insert(format!("{to}{}", &path[from.len()..]), id);
        }
    }

    pub fn has_below(&self, dir: &str) -> bool {
        let below = format!("{dir}/");
        self.names.range(below.clone()..).next().is_some_and(|(path, _)| path.starts_with(&below))
    }

    pub fn write(&mut self, id: u64, at: usize, data: &[u8]) {
        let node = self.node(id);
        let content = Rc::make_mut(&mut node.data);
        content.resize(content.len().max(at + data.len()), 0);
        content[at..at + data.len()].copy_from_slice(data);
        node.mtime = None;
    }

    /// Returns how a tree that was read differs.
    pub fn differs(&self, read: &Self) -> Option<String> {
        let is_hole = |path: &str| {
            let below = |hole: &String| path.strip_prefix(&**hole).is_some_and(|rest| rest.starts_with('/'));
            let all = read.holes.first().is_some_and(String::is_empty);
            all || read.holes.contains(path) || read.holes.iter().any(below)
        };
        let missing = |path: &&String| !read.names.contains_key(*path) && !is_hole(path);
        if let Some(path) = self.names.keys().find(missing) {
            return Some(format!("{path:?} is missing"));
        }
        let mut ids: BTreeMap<u64, u64> = BTreeMap::new();
        for (path, id) in &read.names {
            if is_hole(path) {
                continue;
            }
            let Some(own) = self.names.get(path) else { return Some(format!("{path:?} is there")) };
            if ids.insert(*own, *id).is_some_and(|other| other != *id) {
                return Some(format!("{path:?} is another file than its links"));
            }
            if let Some(what) = self.nodes[own].differs(&read.nodes[id]) {
                return Some(format!("{path:?} {what}"));
            }
        }
        None
    }

    /// Returns the tree below this directory, if it exists.
    pub fn below(&self, dir: &str) -> Self {
        let start = format!("{dir}/");
        let inside = |path: &String| {
            if path == dir { Some(String::new()) } else { path.strip_prefix(&start).map(Into::into) }
        };
        let names: BTreeMap<String, u64> =
            self.names.iter().filter_map(|(path, id)| Some((inside(path)?, *id))).collect();
        let nodes = names.values().map(|id| (*id, self.nodes[id].clone())).collect();
        let mut holes: BTreeSet<String> = self.holes.iter().filter_map(inside).collect();
        if self.holes.contains("") {
            holes.insert(String::new());
        }
        Self { names, nodes, holes, next: self.next }
    }
}
