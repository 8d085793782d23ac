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
use std::time::Duration;

use nine_io::client::File;
use nine_proto::{Attr, GetMask, Time, mode};

/// Fids of files that are not open. A server of this process gives 262,144 to a connection.
const HELD: usize = 1 << 16;

/// The extended attribute for which the kernel looks before it writes to a file: programs have it, and what is written
/// hardly ever does (capabilities(7)).
pub(super) const CAPABILITY: &[u8] = b"security.capability";

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
    /// Its names, as told last.
    pub links: Cell<u64>,
    /// The version that the kernel's pages were read from, where the server counts.
    pub version: Cell<Option<u32>>,
    /// It was open: the kernel may have pages of it.
    pub was_open: Cell<bool>,
    /// Its pages may not be what the file has.
    pub stale: Cell<bool>,
    /// Until when it is believed to have no [`CAPABILITY`].
    pub incapable: Cell<Duration>,
    /// Until when it is believed to be a directory without a default access control list.
    pub no_default_acl: Cell<Duration>,
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
        self.links.set(attr.nlink);
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
    by_key: HashMap<Key, u64>,
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
            by_key: HashMap::new(),
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
            links: Cell::new(attr.nlink),
            version: Cell::new(None),
            was_open: Cell::new(false),
            stale: Cell::new(false),
            incapable: Cell::default(),
            no_default_acl: Cell::default(),
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
        let before = self.by_name.insert(place.clone(), node.id);
        if before == Some(node.id) {
            return;
        }
        if let Some(other) = before.and_then(|id| self.by_id.get(&id)) {
            other.names.borrow_mut().retain(|known| *known != place);
        }
        node.names.borrow_mut().push(place);
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nine_io::client::{Client, Options};
    use nine_io::server::{Anonymous, Core, Gate, Service};
    use nine_net::{Peer, Proof, rt};
    use nine_proto::{NOUID, Qid};

    use super::*;

    /// A file of a server that has gone.
    fn file() -> Rc<File> {
        let attach = async |env| {
            let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
            let service = Service::new(Arc::new(nine_servers::Ram::new(1 << 20)), gate, Core::default());
            let peer = Peer { addr: "test".into(), proof: Proof::None };
            let client = Client::within(&env, &service, peer, Options::default()).await.unwrap();
            client.attach("u", NOUID, "").await.unwrap()
        };
        Rc::new(rt::block_on(attach).unwrap())
    }

    fn attr(path: u64, mode: u32) -> Attr {
        Attr { qid: Qid { ty: 0, vers: 0, path }, mode, ..Attr::default() }
    }

    #[test]
    fn a_file_is_known_until_it_was_forgotten_as_often_as_it_was_told() {
        let file = file();
        let mut nodes = Nodes::new(file.clone(), &attr(1, mode::S_IFDIR));
        let one = attr(2, mode::S_IFREG);
        let ids: Vec<_> = (0..3).map(|_| nodes.told(file.clone(), &one).id).collect();
        assert_eq!(ids, [2, 2, 2]);
        nodes.named(ROOT, b"a", &nodes.get(2).unwrap());
        nodes.forget(2, 2);
        assert!(nodes.at(ROOT, b"a").is_some());
        // More often than it was told of, and again.
        nodes.forget(2, u64::MAX);
        nodes.forget(2, 1);
        nodes.forget(77, 1);
        assert!(nodes.get(2).is_none() && nodes.at(ROOT, b"a").is_none());
        assert_eq!(nodes.told(file.clone(), &one).id, 3);
        nodes.forget(ROOT, u64::MAX);
        assert!(nodes.get(ROOT).is_some());
    }

    #[test]
    fn what_has_the_same_number_is_told_apart() {
        let file = file();
        let mut nodes = Nodes::new(file.clone(), &attr(1, mode::S_IFDIR));
        let dir = attr(2, mode::S_IFDIR);
        let later = Attr { btime: Time { sec: 1, nsec: 0 }, ..dir.clone() };
        let again = Attr { generation: 1, ..dir.clone() };
        let all = [attr(2, mode::S_IFREG), dir, later, again].map(|attr| nodes.told(file.clone(), &attr).id);
        assert_eq!(all, [2, 3, 4, 5]);
    }

    #[test]
    fn a_name_that_is_now_one_file_and_now_another_is_kept_once() {
        let file = file();
        let mut nodes = Nodes::new(file.clone(), &attr(1, mode::S_IFDIR));
        let [a, b] = [2, 3].map(|path| nodes.told(file.clone(), &attr(path, mode::S_IFREG)));
        for _ in 0..1000 {
            nodes.named(ROOT, b"x", &a);
            nodes.named(ROOT, b"x", &b);
        }
        assert_eq!(nodes.at(ROOT, b"x").unwrap().id, b.id);
        assert!(nodes.names(&a).len() <= 1 && nodes.names(&b).len() == 1, "{}", nodes.names(&a).len());
        nodes.forget(a.id, 1);
        assert!(nodes.at(ROOT, b"x").is_some());
    }
}
