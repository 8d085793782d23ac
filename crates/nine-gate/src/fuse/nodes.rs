//! The files that the kernel knows: a number for each, a fid of the server behind it.
//!
//! In: what walks have found; how often the kernel has been told of a file, and has forgotten it. Out: the same number
//! for the same file, whatever its name, for as long as the kernel knows it.
//!
//! The kernel keeps more files in mind than a server gives fids: above [`HELD`], those that were not needed for the
//! longest time let go of theirs, and are walked to again by their names.
//!
//! Always holds: a number is never used again, so that what the kernel says late hits nobody else.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;

use nine_io::client::File;
use nine_proto::{Attr, GetMask, Time, mode};

/// Fids of files that are not open. A server of this process gives 262,144 to a connection.
const HELD: usize = 1 << 16;

/// The root's number.
pub(super) const ROOT: u64 = 1;

/// A file that the kernel knows.
pub(super) struct Node {
    pub id: u64,
    /// A fid for it, not open: by the name under which it was found last. `None`: it is walked to when it is needed.
    file: RefCell<Option<Rc<File>>>,
    /// That fid was needed since somebody looked whether it is.
    used: Cell<bool>,
    key: Key,
    /// How often the kernel has been told of it and has not forgotten it.
    lookups: Cell<u64>,
    /// Its type and permissions, as told last.
    pub mode: Cell<u32>,
    /// Its length, as told last.
    pub size: Cell<u64>,
    /// The version that the kernel's pages were read from, where the server counts.
    pub version: Cell<Option<u32>>,
    /// It was open: the kernel may have pages of it.
    pub was_open: Cell<bool>,
    /// Its pages may not be what the file has.
    pub stale: Cell<bool>,
    /// Written from here since the server told of a change of it.
    pub written: Cell<bool>,
    /// How the kernel has it open.
    pub mode_of_io: RefCell<Io>,
    /// Owners who have or had record locks, of flock(2) or of fcntl(2), and their processes.
    pub locks: RefCell<HashMap<(u64, bool), u32>>,
    /// Directories and names under which it was found.
    names: RefCell<Vec<(u64, Box<[u8]>)>>,
}

/// How the kernel has a file open: all of its handles go one way (fuse_file_io_open of Linux).
#[derive(Default)]
pub(super) enum Io {
    /// Not at all.
    #[default]
    Closed,
    /// So many handles, by requests.
    Asked(u32),
    /// So many handles, to a file of the host, which has this number in the kernel.
    Passed(u32, super::sys::Backing),
}

impl Node {
    /// Its fid, if it has one.
    pub(super) fn held(&self) -> Option<Rc<File>> {
        self.used.set(true);
        self.file.borrow().clone()
    }

    /// What is known of it now.
    pub(super) fn seen(&self, attr: &Attr) {
        self.mode.set(attr.mode);
        self.size.set(attr.size);
    }

    /// Whether it is a file with bytes.
    pub(super) fn is_plain(&self) -> bool {
        self.mode.get() & mode::S_IFMT == mode::S_IFREG
    }

    /// Whether this is the same file.
    pub(super) fn is(&self, attr: &Attr) -> bool {
        self.key == key(attr)
    }
}

/// What makes a file the same one: its number at the server and its kind; and, since file systems use numbers again,
/// when it was made, as far as the server knows.
type Key = (u64, u32, Time, u64);

fn key(attr: &Attr) -> Key {
    (attr.qid.path, attr.mode & mode::S_IFMT, attr.btime, attr.generation)
}

/// What is asked for of a file that the kernel is to be told of.
pub(super) const WANTED: GetMask = GetMask(GetMask::BASIC.0 | GetMask::BTIME.0 | GetMask::GEN.0);

/// See the module.
pub(super) struct Nodes {
    by_id: HashMap<u64, Rc<Node>, foldhash::fast::FixedState>,
    by_key: HashMap<Key, u64, foldhash::fast::FixedState>,
    /// Which file has which name in which directory.
    by_name: HashMap<(u64, Box<[u8]>), u64>,
    /// Those that have fids, and some that were forgotten meanwhile: the oldest first.
    held: VecDeque<u64>,
    next: u64,
}

impl Nodes {
    /// With the root alone.
    pub(super) fn new(root: Rc<File>, attr: &Attr) -> Self {
        let mut nodes = Self {
            by_id: HashMap::default(),
            by_key: HashMap::default(),
            by_name: HashMap::new(),
            held: VecDeque::new(),
            next: ROOT,
        };
        nodes.told(root, attr);
        nodes
    }

    pub(super) fn get(&self, id: u64) -> Option<Rc<Node>> {
        self.by_id.get(&id).cloned()
    }

    /// The kernel is about to be told of this file.
    pub(super) fn told(&mut self, file: Rc<File>, attr: &Attr) -> Rc<Node> {
        let key = key(attr);
        if let Some(node) = self.by_key.get(&key).and_then(|id| self.by_id.get(id)) {
            node.lookups.set(node.lookups.get() + 1);
            node.seen(attr);
            // The root stays what was attached.
            let node = node.clone();
            if node.id != ROOT {
                self.hold(&node, file);
            }
            return node;
        }
        let id = self.next;
        self.next += 1;
        let node = Rc::new(Node {
            id,
            file: RefCell::default(),
            used: Cell::new(false),
            key,
            lookups: Cell::new(1),
            mode: Cell::new(attr.mode),
            size: Cell::new(attr.size),
            version: Cell::new(None),
            was_open: Cell::new(false),
            stale: Cell::new(false),
            written: Cell::new(false),
            mode_of_io: RefCell::default(),
            locks: RefCell::default(),
            names: RefCell::default(),
        });
        self.by_id.insert(id, node.clone());
        self.by_key.insert(key, id);
        self.hold(&node, file);
        node
    }

    /// This is a fid for it.
    pub(super) fn hold(&mut self, node: &Node, file: Rc<File>) {
        if node.file.replace(Some(file)).is_some() {
            return;
        }
        self.held.push_back(node.id);
        // Each is looked at twice at most: what was needed has another round.
        for _ in 0..2 * self.held.len() {
            if self.held.len() <= HELD {
                return;
            }
            let Some(id) = self.held.pop_front() else { return };
            let Some(node) = self.by_id.get(&id) else { continue };
            if id == ROOT || node.used.replace(false) || node.names.borrow().is_empty() {
                self.held.push_back(id);
            } else {
                node.file.replace(None);
            }
        }
    }

    /// It was found in this directory under this name.
    pub(super) fn named(&mut self, dir: u64, name: &[u8], node: &Node) {
        let place = (dir, Box::from(name));
        if self.by_name.insert(place.clone(), node.id) != Some(node.id) {
            node.names.borrow_mut().push(place);
        }
    }

    /// Nothing is known any more of this name.
    pub(super) fn unnamed(&mut self, dir: u64, name: &[u8]) {
        let place = (dir, Box::from(name));
        if let Some(node) = self.by_name.remove(&place).and_then(|id| self.by_id.get(&id)) {
            node.names.borrow_mut().retain(|known| *known != place);
        }
    }

    /// What is known under this name.
    pub(super) fn at(&self, dir: u64, name: &[u8]) -> Option<Rc<Node>> {
        let id = self.by_name.get(&(dir, Box::from(name)))?;
        self.get(*id)
    }

    /// Under which names it is known.
    pub(super) fn names(&self, node: &Node) -> Vec<(u64, Box<[u8]>)> {
        node.names.borrow().clone()
    }

    /// All of them.
    pub(super) fn all(&self) -> impl Iterator<Item = &Rc<Node>> {
        self.by_id.values()
    }

    /// The kernel has forgotten so many of the times that it was told.
    pub(super) fn forget(&mut self, id: u64, times: u64) {
        let Some(node) = self.by_id.get(&id).filter(|_| id != ROOT) else { return };
        let left = node.lookups.get().saturating_sub(times);
        node.lookups.set(left);
        if left > 0 {
            return;
        }
        let node = self.by_id.remove(&id).expect("it was there");
        self.by_key.remove(&node.key);
        for place in node.names.take() {
            if self.by_name.get(&place) == Some(&id) {
                self.by_name.remove(&place);
            }
        }
    }
}
