//! The files that the kernel knows: each has a number, and a fid at the server.
//!
//! In: results of walks; lookup counts (each reply that names a file adds one, FORGET subtracts). Out: one number per
//! file, whatever its name, for as long as the kernel knows it.
//!
//! The kernel remembers more files than a server allows fids. Above [`HELD`] fids, the least recently used ones are
//! clunked; their files are walked to again when needed. Files that are not used for some seconds lose their fids too,
//! because a server keeps a removed file while a client has a fid for it.
//!
//! Always holds: a number is never reused, so a late request of the kernel cannot hit another file.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::convert::Infallible;
use std::future::poll_fn;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_io::client::File;
use nine_net::Clock;
use nine_proto::{Attr, GetMask, Time, mode};

use super::change_log::{ChangeLog, ChangeSubject};
use super::write_behind::{WriteRun, WriteTail};

/// Maximum number of fids of files that are not open. A server in this process allows 262,144 per connection.
const HELD: usize = 1 << 16;

/// How long a fid is kept, at least, if the kernel does not ask for its file.
const FID_IDLE_MIN: Duration = Duration::from_secs(5);

/// The extended attribute that the kernel reads before it writes to a file. Programs may have it; files that are
/// written hardly ever do (capabilities(7)).
pub(super) const CAPABILITY: &[u8] = b"security.capability";

/// Maximum number of directories in a path (PATH_MAX of Linux is 4,096 bytes).
pub(super) const DEEPEST: usize = 2048;

/// The root's number.
pub(super) const ROOT: u64 = 1;

/// A file that the kernel knows.
pub(super) struct KernelNode {
    pub id: u64,
    /// An unopened fid, walked to by the name found last. `None`: walked to when needed.
    file: RefCell<Option<Rc<File>>>,
    /// The fid was used since the last check for unused fids.
    used: Cell<bool>,
    key: FileIdentity,
    /// The lookup count: replies to the kernel that named the file, less those it has forgotten.
    lookups: Cell<u64>,
    /// Type and permissions, as last reported.
    pub mode: Cell<u32>,
    /// Length, as last reported.
    pub size: Cell<u64>,
    /// Number of links, as last reported.
    pub links: Cell<u64>,
    /// The version of these attributes; 0 if the server has no versions.
    pub attr_version: Cell<u32>,
    /// The last change (the later of mtime and ctime), as last reported: seconds since 1970 by the server's clock.
    changed: Cell<i64>,
    /// The version of the kernel's pages.
    pages: Cell<PagesVersion>,
    /// It was opened: the kernel may have pages of it.
    pub was_open: Cell<bool>,
    /// The kernel's pages may differ from the file.
    pub stale: Cell<bool>,
    /// The kernel may hold valid attributes, and pages, from after the last invalidation.
    pub has_attr: Cell<bool>,
    pub has_pages: Cell<bool>,
    /// Extended attributes cached as absent, and until when; at most [`ABSENT`].
    absent: AbsentNames,
    /// For a directory: classes of attributes (`user`, `system`) that its files are cached not to have, and until when.
    no_classes: AbsentNames,
    /// For a directory: until when the kernel may cache its names.
    pub listed: Cell<Duration>,
    /// The value of [`NodeTable::moves`] when its fid was walked to, and when one of its names last changed.
    walked: Cell<u64>,
    moved: Cell<u64>,
    /// Written by this mount since the server last published a change of it.
    pub written: Cell<bool>,
    /// Its writes in flight that were answered early.
    pub run: RefCell<Option<Rc<WriteRun>>>,
    /// The end of the file by such writes.
    pub tail: Cell<WriteTail>,
    /// How the kernel has it open.
    pub mode_of_io: RefCell<FileIoMode>,
    /// Lock owners that have or had record locks, by owner and kind (`true`: flock(2)), and their processes.
    pub locks: RefCell<HashMap<(u64, bool), u32>>,
    /// The directories and names under which it was found.
    names: RefCell<Vec<EntryKey>>,
}

/// A directory's number, and a name in it.
pub(super) type EntryKey = (u64, Box<[u8]>);

/// The point in time of a request, as counts of changes and renames. The reply may be older than later changes.
#[derive(Clone, Copy)]
pub(super) struct RequestEpoch {
    changes: u64,
    moves: u64,
    /// Runs of early answered writes that had ended.
    pub runs: u64,
}

impl RequestEpoch {
    /// Whether files were renamed between the two.
    pub(super) fn has_moves_since(self, now: Self) -> bool {
        self.moves != now.moves
    }
}

/// How the kernel has a file open: all handles of a file use one mode (`fuse_file_io_open` of Linux).
#[derive(Default)]
pub(super) enum FileIoMode {
    /// Not open.
    #[default]
    Closed,
    /// This many handles, served by requests.
    Asked(u32),
    /// This many handles, passed through to a file of the host.
    Passed(u32, super::sys::BackingFile),
}

impl KernelNode {
    fn held(&self) -> Option<Rc<File>> {
        self.used.set(true);
        self.file.borrow().clone()
    }

    /// Stores reported attributes.
    pub(super) fn seen(&self, attr: &Attr) {
        self.mode.set(attr.mode);
        self.size.set(attr.size);
        self.links.set(attr.nlink);
        self.attr_version.set(attr.qid.vers);
        self.changed.set(attr.ctime.sec.max(attr.mtime.sec));
    }

    /// Whether the kernel's pages are of this version of the file, which the server has just reported. If not, the
    /// caller must have them dropped; from now on they count as this version.
    ///
    /// A version may come from a time of the server's disk, which misses a second change within one tick. So pages are
    /// valid only if they were read some time after the version was first seen, or if the last change was long before
    /// that, by the `wall` clock.
    pub(super) fn has_pages_of(&self, version: u32, now: Duration, wall: Duration) -> bool {
        let pages = self.pages.get();
        if version == 0 || pages.version != version {
            let is_old = wall.as_secs() as i64 > self.changed.get().saturating_add(OLD);
            let first = if is_old { now.saturating_sub(FILE_CLOCK_TICK) } else { now };
            self.pages.set(PagesVersion { version, first, read: now });
            return false;
        }
        let is_settled = pages.read >= pages.first + FILE_CLOCK_TICK;
        if !is_settled {
            self.pages.set(PagesVersion { read: now, ..pages });
        }
        is_settled
    }

    /// Whether an extended attribute of this name is cached as absent.
    pub(super) fn lacks(&self, name: &[u8], now: Duration) -> bool {
        is_listed(&self.absent, name, now)
    }

    /// Caches until `until` that the attribute is absent.
    pub(super) fn seen_without(&self, name: &[u8], until: Duration) {
        list(&self.absent, name, until);
    }

    /// Forgets the absent attributes, because one may have been set.
    pub(super) fn may_have_any(&self) {
        self.absent.take();
    }

    /// Whether files in this directory are cached not to have attributes of this class.
    pub(super) fn lacks_class(&self, name: &[u8], now: Duration) -> bool {
        is_listed(&self.no_classes, class_of(name), now)
    }

    /// Caches that the server stores no attributes of this class for files in this directory.
    pub(super) fn seen_without_class(&self, name: &[u8], until: Duration) {
        list(&self.no_classes, class_of(name), until);
    }

    /// The directories in which it was found.
    pub(super) fn dirs(&self) -> Vec<u64> {
        self.names.borrow().iter().map(|(dir, _)| *dir).collect()
    }

    /// Whether it is a regular file.
    pub(super) fn is_plain(&self) -> bool {
        self.mode.get() & mode::S_IFMT == mode::S_IFREG
    }

    pub(super) fn is_dir(&self) -> bool {
        // Uses the key, which never changes: a server may report another type later.
        self.key.1 == mode::S_IFDIR
    }

    /// Whether these attributes are of the same file.
    pub(super) fn is(&self, attr: &Attr) -> bool {
        self.key == key(attr)
    }
}

/// Maximum number of extended attributes cached as absent per file; then the oldest is dropped.
const ABSENT: usize = 8;

/// Names, or classes of names, and until when they are cached as absent.
type AbsentNames = RefCell<Vec<(Box<[u8]>, Duration)>>;

fn is_listed(names: &AbsentNames, name: &[u8], now: Duration) -> bool {
    names.borrow().iter().any(|(known, until)| **known == *name && now < *until)
}

fn list(names: &AbsentNames, name: &[u8], until: Duration) {
    let mut names = names.borrow_mut();
    names.retain(|(known, _)| **known != *name);
    if names.len() == ABSENT {
        names.remove(0);
    }
    names.push((name.into(), until));
}

/// The class of an attribute: `user` of `user.mime_type` (xattr(7)).
fn class_of(name: &[u8]) -> &[u8] {
    name.split(|&byte| byte == b'.').next().unwrap_or_default()
}

/// Two changes of a file within this time may have the same timestamp: ticks of Linux' file clock are 1 to 10 ms.
const FILE_CLOCK_TICK: Duration = Duration::from_millis(100);
/// Seconds. A change this long ago cannot be followed by another within the same tick.
const OLD: i64 = 2;

/// The version of a file's pages in the kernel.
#[derive(Clone, Copy, Default)]
struct PagesVersion {
    /// The file's version when it was last opened or locked; 0: unknown.
    version: u32,
    /// When this version was first seen.
    first: Duration,
    /// None of the pages was read before this time.
    read: Duration,
}

/// The identity of a file: its number at the server and its type. File systems reuse numbers, so also its creation time
/// and generation, as far as the server reports them.
type FileIdentity = (u64, u32, Time, u64);

fn key(attr: &Attr) -> FileIdentity {
    (attr.qid.path, attr.mode & mode::S_IFMT, attr.btime, attr.generation)
}

/// The attributes requested for a file that a reply will name.
pub(super) const WANTED: GetMask = GetMask(GetMask::BASIC.0 | GetMask::BTIME.0 | GetMask::GEN.0);

/// See the module.
pub(super) struct NodeTable {
    by_id: HashMap<u64, Rc<KernelNode>, foldhash::fast::FixedState>,
    by_key: HashMap<FileIdentity, u64>,
    /// The file of each name in a directory.
    by_name: BTreeMap<EntryKey, u64>,
    /// Names in `by_name` that may lead to another file at the server. The next lookup verifies them.
    unverified: HashSet<EntryKey>,
    /// Files with fids, the oldest first. Files forgotten meanwhile may be among them.
    held: VecDeque<u64>,
    /// Woken when a file other than a directory gets a fid.
    sweeper: Option<Waker>,
    next: u64,
    /// Counts changes of files' names.
    moves: u64,
    /// The number of ended runs of early answered writes.
    pub runs: u64,
    /// Renames in flight, and tasks that wait for one to end.
    renaming: usize,
    waiting: Vec<Waker>,
    pub change_log: ChangeLog,
}

impl NodeTable {
    /// Starts with the root alone.
    pub(super) fn new(root: Rc<File>, attr: &Attr) -> Self {
        let mut nodes = Self {
            by_id: HashMap::default(),
            by_key: HashMap::new(),
            by_name: BTreeMap::new(),
            unverified: HashSet::new(),
            held: VecDeque::new(),
            sweeper: None,
            next: ROOT,
            moves: 0,
            runs: 0,
            renaming: 0,
            waiting: Vec::new(),
            change_log: ChangeLog::default(),
        };
        nodes.told(nodes.asks(), root, attr);
        nodes
    }

    pub(super) fn get(&self, id: u64) -> Option<Rc<KernelNode>> {
        self.by_id.get(&id).cloned()
    }

    /// The file with these attributes, if the kernel knows it.
    pub(super) fn known(&self, attr: &Attr) -> Option<&Rc<KernelNode>> {
        self.by_key.get(&key(attr)).and_then(|id| self.by_id.get(id))
    }

    /// The epoch of a request that is about to be sent.
    pub(super) fn asks(&self) -> RequestEpoch {
        RequestEpoch { changes: self.change_log.count(), moves: self.moves, runs: self.runs }
    }

    /// Whether a reply about a name may be older than a change of it.
    pub(super) fn has_name_changed(&self, asked: RequestEpoch, dir: u64, name: &[u8]) -> bool {
        self.change_log.has_name_changed(asked.changes, dir, name)
    }

    /// The same for a file's attributes.
    pub(super) fn has_file_changed(&self, asked: RequestEpoch, node: u64) -> bool {
        self.change_log.has_file_changed(asked.changes, node)
    }

    /// Counts a reply to the kernel that names this file. `asked`: when the walk to it was sent.
    pub(super) fn told(&mut self, asked: RequestEpoch, file: Rc<File>, attr: &Attr) -> Rc<KernelNode> {
        let key = key(attr);
        if let Some(node) = self.known(attr) {
            node.lookups.set(node.lookups.get() + 1);
            node.seen(attr);
            // The root keeps the attached fid.
            let node = node.clone();
            if node.id != ROOT {
                self.hold(asked, &node, file);
            }
            return node;
        }
        let id = self.next;
        self.next += 1;
        let node = Rc::new(KernelNode {
            id,
            file: RefCell::default(),
            used: Cell::new(false),
            key,
            lookups: Cell::new(1),
            mode: Cell::new(attr.mode),
            size: Cell::new(attr.size),
            links: Cell::new(attr.nlink),
            attr_version: Cell::new(attr.qid.vers),
            changed: Cell::new(attr.ctime.sec.max(attr.mtime.sec)),
            pages: Cell::default(),
            was_open: Cell::new(false),
            stale: Cell::new(false),
            has_attr: Cell::new(true),
            has_pages: Cell::new(true),
            absent: RefCell::default(),
            no_classes: RefCell::default(),
            listed: Cell::default(),
            walked: Cell::new(asked.moves),
            moved: Cell::new(0),
            written: Cell::new(false),
            run: RefCell::default(),
            tail: Cell::default(),
            mode_of_io: RefCell::default(),
            locks: RefCell::default(),
            names: RefCell::default(),
        });
        self.by_id.insert(id, node.clone());
        self.by_key.insert(key, id);
        self.hold(asked, &node, file);
        node
    }

    /// Stores a fid for a file. `asked`: when the walk was sent.
    pub(super) fn hold(&mut self, asked: RequestEpoch, node: &KernelNode, file: Rc<File>) {
        node.walked.set(asked.moves);
        if node.file.replace(Some(file)).is_some() {
            return;
        }
        self.held.push_back(node.id);
        self.sweeper.take().into_iter().for_each(Waker::wake);
        // Each is checked at most twice: a fid that was used gets another round.
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

    /// Records that a file was renamed or lost a name. At a server whose fids are paths (diod, unpfs) its fid may now
    /// lead nowhere, or to another file. The same is true of all files below a directory.
    pub(super) fn moved(&mut self, node: &KernelNode) {
        self.moves += 1;
        node.moved.set(self.moves);
        self.change_log.add(ChangeSubject::File(node.id));
    }

    /// A rename is about to be sent. The caller must call [`NodeTable::end_rename`] once, also when the rename fails.
    pub(super) fn begin_rename(&mut self) {
        self.renaming += 1;
    }

    /// A rename has ended, or was abandoned.
    pub(super) fn end_rename(&mut self) {
        self.renaming -= 1;
        // The server may have handled requests in flight before the rename, or after it.
        self.moves += 1;
        self.waiting.drain(..).for_each(Waker::wake);
    }

    /// Ready with `true` when a name has changed since `asked`, with `false` when no rename is in flight.
    pub(super) fn poll_rename_end(&mut self, asked: RequestEpoch, cx: &Context<'_>) -> Poll<bool> {
        match (self.moves != asked.moves, self.renaming) {
            (true, _) => Poll::Ready(true),
            (false, 0) => Poll::Ready(false),
            (false, _) => {
                self.waiting.push(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The fid of a file, unless it was walked to before the file, or a directory above it, has moved.
    pub(super) fn fid(&self, node: &KernelNode) -> Option<Rc<File>> {
        let file = node.held()?;
        if node.id == ROOT || node.walked.get() == self.moves {
            return Some(file);
        }
        let (mut moved, mut at) = (node.moved.get(), node.names.borrow().first().map(|(dir, _)| *dir));
        for _ in 0..DEEPEST {
            let Some(above) = at.filter(|&dir| dir != ROOT).and_then(|dir| self.by_id.get(&dir)) else {
                break;
            };
            moved = moved.max(above.moved.get());
            at = above.names.borrow().first().map(|(dir, _)| *dir);
        }
        if moved > node.walked.get() && !node.names.borrow().is_empty() {
            return None;
        }
        node.walked.set(self.moves);
        Some(file)
    }

    /// Clunks the fids of files that were not used since the last call, so that a server does not keep removed files
    /// for us. Directories keep theirs, because a program may work in a renamed one. So do open files without a name,
    /// and special files without a name, for which the kernel sends no open: no walk leads to them.
    fn sweep(&mut self) {
        let by_id = &self.by_id;
        self.held.retain(|id| {
            let Some(node) = by_id.get(id) else { return false };
            let may_be_open = Rc::strong_count(node) > 1 || !node.is_plain();
            let is_needed = may_be_open && node.names.borrow().is_empty();
            let stays = node.is_dir() || node.used.replace(false) || is_needed;
            if !stays {
                node.file.replace(None);
            }
            stays && node.file.borrow().is_some()
        });
    }

    /// Ready when a file other than a directory has a fid.
    fn poll_held(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let is_file = |id: &u64| match self.by_id.get(id) {
            Some(node) => !node.is_dir(),
            None => false,
        };
        if self.held.iter().any(is_file) {
            return Poll::Ready(());
        }
        self.sweeper = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Binds a name in a directory to a file. Returns the file that the name led to before, if that is another one.
    pub(super) fn named(&mut self, dir: u64, name: &[u8], node: &KernelNode) -> Option<Rc<KernelNode>> {
        let place = (dir, Box::from(name));
        self.unverified.remove(&place);
        let before = self.by_name.insert(place.clone(), node.id);
        if before == Some(node.id) {
            return None;
        }
        let other = before.and_then(|id| self.by_id.get(&id)).cloned();
        if let Some(other) = &other {
            other.names.borrow_mut().retain(|known| *known != place);
        }
        node.names.borrow_mut().push(place);
        other
    }

    /// The same for a reply to a request sent at `asked`. A reply that is older than a change of the name binds
    /// nothing.
    pub(super) fn named_by_reply(
        &mut self,
        asked: RequestEpoch,
        dir: u64,
        name: &[u8],
        node: &KernelNode,
    ) -> Option<Rc<KernelNode>> {
        // Exception: a file without any name gets this one if it is free, because a walk to the file needs a name.
        let is_needed = node.names.borrow().is_empty() && self.at(dir, name).is_none();
        if self.change_log.has_moved(asked.changes, dir, name) && !is_needed {
            return None;
        }
        self.named(dir, name, node)
    }

    /// Records that a name got or lost a file. Replies in flight may be older.
    pub(super) fn binding_changed(&mut self, dir: u64, name: &[u8]) {
        self.change_log.add(ChangeSubject::Moved(dir, name.into()));
    }

    /// All known names below a directory, and their files.
    pub(super) fn descendants(&self, dir: u64) -> Vec<(EntryKey, Rc<KernelNode>)> {
        let (mut found, mut dirs, mut seen) = (Vec::new(), vec![dir], HashSet::from([dir]));
        while let Some(dir) = dirs.pop() {
            let names = self.by_name.range((dir, Box::default())..(dir + 1, Box::default()));
            for (place, id) in names {
                let Some(node) = self.by_id.get(id) else { continue };
                // A faulty server may report a directory inside itself.
                if node.is_dir() && seen.insert(node.id) {
                    dirs.push(node.id);
                }
                found.push((place.clone(), node.clone()));
            }
        }
        found
    }

    /// Removes the binding of a name.
    pub(super) fn unnamed(&mut self, dir: u64, name: &[u8]) {
        let place = (dir, Box::from(name));
        self.unverified.remove(&place);
        if let Some(node) = self.by_name.remove(&place).and_then(|id| self.by_id.get(&id)) {
            node.names.borrow_mut().retain(|known| *known != place);
        }
    }

    /// The name may lead to another file at the server. It is not trusted until the next lookup.
    pub(super) fn mark_unverified(&mut self, dir: u64, name: &[u8]) {
        self.unverified.insert((dir, name.into()));
    }

    pub(super) fn is_unverified(&self, place: &EntryKey) -> bool {
        self.unverified.contains(place)
    }

    /// The file bound to this name.
    pub(super) fn at(&self, dir: u64, name: &[u8]) -> Option<Rc<KernelNode>> {
        let id = self.by_name.get(&(dir, Box::from(name)))?;
        self.get(*id)
    }

    /// All names bound to a file.
    pub(super) fn names(&self, node: &KernelNode) -> Vec<(u64, Box<[u8]>)> {
        node.names.borrow().clone()
    }

    /// All files.
    pub(super) fn all(&self) -> impl Iterator<Item = &Rc<KernelNode>> {
        self.by_id.values()
    }

    /// Subtracts `times` from the lookup count. At 0 the file is removed.
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
                self.unverified.remove(&place);
            }
        }
    }
}

/// Clunks unused fids, forever. A fid that is not used ends after one to two [`FID_IDLE_MIN`] periods.
pub(super) async fn sweep(nodes: &RefCell<NodeTable>, clock: &Arc<dyn Clock>) -> Infallible {
    loop {
        poll_fn(|cx| nodes.borrow_mut().poll_held(cx)).await;
        clock.sleep_until(clock.now() + FID_IDLE_MIN).await;
        nodes.borrow_mut().sweep();
    }
}

#[cfg(test)]
mod tests {
    use nine_io::client::{Client, Options};
    use nine_io::server::{Anonymous, Core, Gate, Service};
    use nine_net::{Peer, Proof, rt};
    use nine_proto::{NOUID, Qid};

    use super::*;

    /// A file of a server that is gone.
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

    fn tell(nodes: &mut NodeTable, file: &Rc<File>, path: u64, mode: u32) -> Rc<KernelNode> {
        nodes.told(nodes.asks(), file.clone(), &attr(path, mode))
    }

    #[test]
    fn a_file_is_known_until_it_was_forgotten_as_often_as_it_was_told() {
        let file = file();
        let mut nodes = NodeTable::new(file.clone(), &attr(1, mode::S_IFDIR));
        let one = attr(2, mode::S_IFREG);
        let ids: Vec<_> = (0..3).map(|_| nodes.told(nodes.asks(), file.clone(), &one).id).collect();
        assert_eq!(ids, [2, 2, 2]);
        nodes.named(ROOT, b"a", &nodes.get(2).unwrap());
        nodes.forget(2, 2);
        assert!(nodes.at(ROOT, b"a").is_some());
        // More than the lookup count, and repeatedly.
        nodes.forget(2, u64::MAX);
        nodes.forget(2, 1);
        nodes.forget(77, 1);
        assert!(nodes.get(2).is_none() && nodes.at(ROOT, b"a").is_none());
        assert_eq!(nodes.told(nodes.asks(), file.clone(), &one).id, 3);
        nodes.forget(ROOT, u64::MAX);
        assert!(nodes.get(ROOT).is_some());
    }

    #[test]
    fn what_has_the_same_number_is_told_apart() {
        let file = file();
        let mut nodes = NodeTable::new(file.clone(), &attr(1, mode::S_IFDIR));
        let dir = attr(2, mode::S_IFDIR);
        let later = Attr { btime: Time { sec: 1, nsec: 0 }, ..dir.clone() };
        let again = Attr { generation: 1, ..dir.clone() };
        let all = [attr(2, mode::S_IFREG), dir, later, again]
            .map(|attr| nodes.told(nodes.asks(), file.clone(), &attr).id);
        assert_eq!(all, [2, 3, 4, 5]);
    }

    #[test]
    fn a_file_that_is_not_needed_gives_its_fid_back_and_a_directory_keeps_it() {
        let root = file();
        let mut nodes = NodeTable::new(root.clone(), &attr(1, mode::S_IFDIR));
        let [plain, dir, unnamed] = [(2, mode::S_IFREG), (3, mode::S_IFDIR), (4, mode::S_IFREG)]
            .map(|(path, mode)| tell(&mut nodes, &root, path, mode));
        nodes.named(ROOT, b"plain", &plain);
        nodes.named(ROOT, b"dir", &dir);
        let has_fid = |node: &KernelNode| node.file.borrow().is_some();
        plain.held();
        nodes.sweep();
        assert!(has_fid(&plain), "it was needed");
        nodes.sweep();
        assert!(!has_fid(&plain) && has_fid(&dir));
        assert!(has_fid(&unnamed), "it could not be found again");
        let id = unnamed.id;
        drop(unnamed);
        nodes.sweep();
        assert!(!has_fid(&nodes.by_id[&id]), "the server keeps a removed file for it");
        let fifo = tell(&mut nodes, &root, 5, mode::S_IFIFO).id;
        nodes.sweep();
        nodes.sweep();
        assert!(has_fid(&nodes.by_id[&fifo]), "the kernel sends no open of a pipe");
        assert!(has_fid(&nodes.get(ROOT).unwrap()));
        // It gets a fid again.
        nodes.hold(nodes.asks(), &plain, root);
        assert!(has_fid(&plain));
    }

    #[test]
    fn fids_from_before_a_move_count_no_more_also_below_a_directory() {
        let root = file();
        let mut nodes = NodeTable::new(root.clone(), &attr(1, mode::S_IFDIR));
        let [dir, below, beside] = [(2, mode::S_IFDIR), (3, mode::S_IFREG), (4, mode::S_IFREG)]
            .map(|(path, mode)| tell(&mut nodes, &root, path, mode));
        nodes.named(ROOT, b"dir", &dir);
        nodes.named(dir.id, b"below", &below);
        nodes.named(ROOT, b"beside", &beside);
        let has = |nodes: &NodeTable| [&dir, &below, &beside].map(|node| nodes.fid(node).is_some());
        assert_eq!(has(&nodes), [true, true, true]);
        nodes.moved(&dir);
        assert_eq!(has(&nodes), [false, false, true]);
        nodes.hold(nodes.asks(), &below, root.clone());
        assert_eq!(has(&nodes), [false, true, true]);
        nodes.moved(&beside);
        assert_eq!(has(&nodes), [false, true, false]);
        // A file without names cannot be found again.
        nodes.unnamed(ROOT, b"beside");
        assert_eq!(has(&nodes), [false, true, true]);
        assert!(nodes.fid(&nodes.get(ROOT).unwrap()).is_some());
    }

    #[test]
    fn an_answer_from_before_a_rename_brings_no_name_back() {
        let root = file();
        let mut nodes = NodeTable::new(root.clone(), &attr(1, mode::S_IFDIR));
        let [one, two] = [2, 3].map(|path| tell(&mut nodes, &root, path, mode::S_IFREG));
        nodes.named(ROOT, b"a", &one);
        let asked = nodes.asks();
        nodes.begin_rename();
        // The steps at the end of a rename from `a` to `b`.
        nodes.unnamed(ROOT, b"a");
        nodes.named(ROOT, b"b", &one);
        nodes.moved(&one);
        nodes.binding_changed(ROOT, b"a");
        nodes.binding_changed(ROOT, b"b");
        nodes.end_rename();
        assert!(
            nodes.named_by_reply(asked, ROOT, b"a", &one).is_none()
                && nodes.named_by_reply(asked, ROOT, b"b", &two).is_none()
        );
        assert_eq!(nodes.names(&one), [(ROOT, Box::from(&b"b"[..]))]);
        assert!(nodes.has_name_changed(asked, ROOT, b"a") && nodes.has_file_changed(asked, one.id));
        // A walk that was sent before the rename may have used the old name.
        nodes.hold(asked, &one, root.clone());
        assert!(nodes.fid(&one).is_none());
        nodes.hold(nodes.asks(), &one, root);
        assert!(nodes.fid(&one).is_some());
        // A later reply shows another client's rename.
        let before = nodes.named_by_reply(nodes.asks(), ROOT, b"b", &two).map(|node| node.id);
        assert_eq!(before, Some(one.id));
    }

    #[test]
    fn all_below_a_directory_is_found_also_if_it_is_in_itself() {
        let root = file();
        let mut nodes = NodeTable::new(root.clone(), &attr(1, mode::S_IFDIR));
        let [dir, below, beside] = [(2, mode::S_IFDIR), (3, mode::S_IFREG), (4, mode::S_IFREG)]
            .map(|(path, mode)| tell(&mut nodes, &root, path, mode));
        nodes.named(ROOT, b"dir", &dir);
        nodes.named(dir.id, b"below", &below);
        nodes.named(dir.id, b"dir", &dir);
        nodes.named(ROOT, b"beside", &beside);
        let found = |of| nodes.descendants(of).into_iter().map(|(_, node)| node.id).collect::<Vec<_>>();
        assert_eq!(found(dir.id), [below.id, dir.id]);
        assert_eq!(found(ROOT).len(), 4);
        assert!(found(below.id).is_empty());
    }

    #[test]
    fn pages_count_if_they_were_read_a_while_after_their_version_was_seen() {
        let file = file();
        let mut nodes = NodeTable::new(file.clone(), &attr(1, mode::S_IFDIR));
        let new = Attr { ctime: Time { sec: 1000, nsec: 0 }, ..attr(2, mode::S_IFREG) };
        let node = nodes.told(nodes.asks(), file, &new);
        let (ms, just, later) = (Duration::from_millis, Duration::from_secs(1001), Duration::from_secs(1003));
        // A server without versions.
        assert!(!node.has_pages_of(0, ms(1000), later) && !node.has_pages_of(0, ms(9000), later));
        // Changed just before: a second change may have the same version.
        assert!(!node.has_pages_of(7, ms(10_000), just));
        assert!(!node.has_pages_of(7, ms(10_050), just));
        assert!(!node.has_pages_of(7, ms(10_101), just), "pages of 10.05 s may be older");
        assert!(node.has_pages_of(7, ms(10_102), just));
        // Changed long before.
        assert!(!node.has_pages_of(8, ms(11_000), later));
        assert!(node.has_pages_of(8, ms(11_001), later));
    }

    #[test]
    fn absent_attributes_are_remembered_for_a_time_and_some_of_them() {
        let file = file();
        let nodes = NodeTable::new(file, &attr(1, mode::S_IFDIR));
        let (node, s) = (nodes.get(ROOT).unwrap(), Duration::from_secs);
        node.seen_without(b"user.a", s(5));
        assert!(node.lacks(b"user.a", s(4)) && !node.lacks(b"user.a", s(5)) && !node.lacks(b"user.b", s(4)));
        for n in 0..ABSENT {
            node.seen_without(format!("user.{n}").as_bytes(), s(9));
        }
        assert!(!node.lacks(b"user.a", s(4)) && node.lacks(b"user.0", s(4)));
        node.may_have_any();
        assert!(!node.lacks(b"user.0", s(4)));
        node.seen_without_class(b"user.a", s(5));
        assert!(node.lacks_class(b"user.b", s(4)) && !node.lacks_class(b"system.b", s(4)));
    }

    #[test]
    fn a_name_that_is_now_one_file_and_now_another_is_kept_once() {
        let file = file();
        let mut nodes = NodeTable::new(file.clone(), &attr(1, mode::S_IFDIR));
        let [a, b] = [2, 3].map(|path| tell(&mut nodes, &file, path, mode::S_IFREG));
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
