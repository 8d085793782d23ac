//! Forwards the server's published changes (docs/changes.md) to the kernel, so that the kernel may cache for long.
//!
//! In: lines of `#changes`. Out: invalidations; and how long an answer is valid: not at all, if its subject changed
//! between the request and the answer.
//!
//! A write by this mount comes back as a change. It may hide another client's write, so it does invalidate the file's
//! pages, but only after [`SHORT`] or at the next open.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use nine_io::changes::{BLIND_MAX, Change, Line, NAME, Path, Watch, below, join};
use nine_io::client::{File, Result};
use nine_net::Clock;
use nine_proto::Errno;

use super::change_log::ChangeSubject;
use super::nodes::{DEEPEST, EntryKey, FileIoMode, KernelNode, NodeTable, ROOT};
use super::notifier::Notifier;
use super::{LONG, SHORT};

/// Periods of [`SHORT`] until a name is settled. A server must publish a change within this time after a reply shows
/// it.
const SETTLE_PERIODS: u32 = 5;
/// Unsettled names, and unsettled files, about 100 bytes each. With one more, every name and file is unsettled.
const UNSETTLED_MAX: usize = 16_384;
/// How long the kernel waits for a server to start publishing.
const BEGIN: Duration = Duration::from_secs(5);
/// Between two attempts to reopen the watch.
const WATCH_RETRY_DELAY: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct ChangeForwarder {
    /// Changes arrive.
    on: Cell<bool>,
    /// The kernel cannot use them; see [`ChangeForwarder::give_up`].
    deaf: Cell<bool>,
    /// Directories below which the server publishes nothing.
    blind: RefCell<Vec<Path>>,
    /// Names whose change a reply has shown, but which the server may not have published yet, each with the periods of
    /// [`SHORT`] that are left.
    unsettled_names: RefCell<HashMap<EntryKey, u32>>,
    /// The files that have these names, or had them.
    unsettled_files: RefCell<HashMap<u64, (Rc<KernelNode>, u32)>>,
    /// Directories among the files. A published path may be from before the change or from after it.
    unsettled_dirs: Cell<usize>,
    /// The periods of [`SHORT`] for which every name is unsettled; 0: only the names above are.
    all_unsettled: Cell<u32>,
    /// Files that were written by this mount and then reported as changed.
    stale: RefCell<Vec<Rc<KernelNode>>>,
    /// When `stale` is invalidated and names settle next.
    due: Cell<Duration>,
    /// The kernel holds written pages before it sends them ([`Options::write_back`](super::Options::write_back)).
    write_back: bool,
    notifier: Notifier,
}

impl ChangeForwarder {
    /// Subscribes to the tree's changes. `None`: the server publishes none, or does not start within [`BEGIN`]. No
    /// change after this call returns is missed.
    pub(super) async fn begin(
        root: &File,
        device: &OwnedFd,
        write_back: bool,
        clock: &Arc<dyn Clock>,
    ) -> std::io::Result<Option<(Self, Watch)>> {
        let watch = pin!(async {
            if !root.walk(NAME).await?.qid().is_event() {
                return Err(nine_proto::Error::from(Errno::ENOENT).into());
            }
            let mut watch = Watch::open(root, None).await?;
            let lines = watch.next().await?;
            Ok::<_, nine_io::client::Error>((watch, lines))
        });
        let (watch, lines) = match select(watch, clock.sleep_until(clock.now() + BEGIN)).await {
            Either::Left((Ok(begun), _)) => begun,
            Either::Left((Err(error), _)) if error.errno() == Errno::ENOENT => return Ok(None),
            Either::Left((Err(error), _)) => {
                tracing::warn!("changes of the server are not told: {error}");
                return Ok(None);
            }
            Either::Right(_) => {
                tracing::warn!("changes are not told: the server has not begun within {} s", BEGIN.as_secs());
                return Ok(None);
            }
        };
        if !matches!(lines.first(), Some(Line::Here(_))) {
            // An ordinary file of that name.
            return Ok(None);
        }
        let told = Self {
            on: Cell::new(true),
            deaf: Cell::new(false),
            unsettled_names: RefCell::default(),
            unsettled_files: RefCell::default(),
            unsettled_dirs: Cell::default(),
            all_unsettled: Cell::default(),
            blind: RefCell::default(),
            stale: RefCell::default(),
            due: Cell::default(),
            write_back,
            notifier: Notifier::new(device.try_clone()?)?,
        };
        for line in lines {
            if let Line::Change(_, Change::Blind(path)) = line {
                told.is_now_blind(path);
            }
        }
        Ok(Some((told, watch)))
    }

    /// Turns invalidation off: this kernel cannot expire the name of a file in use.
    pub(super) fn give_up(&self) {
        self.on.set(false);
        self.deaf.set(true);
    }

    /// Whether changes arrive.
    pub(super) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// How long the kernel may keep a name in this directory.
    pub(super) fn name(&self, nodes: &NodeTable, dir: u64) -> Duration {
        let is_unsure = self.unsettled_dirs.get() > 0 || self.all_unsettled.get() > 0;
        if !self.on.get() || is_unsure || self.is_blind(nodes, dir) { SHORT } else { LONG }
    }

    /// How long the kernel may keep a file's attributes.
    pub(super) fn file(&self, nodes: &NodeTable, id: u64) -> Duration {
        let has_names = nodes.get(id).is_some_and(|node| node.links.get() > 1 && node.is_plain());
        if has_names || self.unsettled_files.borrow().contains_key(&id) {
            SHORT
        } else {
            self.name(nodes, id)
        }
    }

    /// Marks a name that a reply has shown to have changed, and the files that have it or had it. The server publishes
    /// the change later. Until then a published path is ambiguous: it may mean the file from before the change. So the
    /// kernel caches these files only for [`SHORT`], and all names if one of the files is a directory.
    pub(super) fn mark_unsettled(&self, place: EntryKey, files: impl IntoIterator<Item = Rc<KernelNode>>) {
        let (mut places, mut known) = (self.unsettled_names.borrow_mut(), self.unsettled_files.borrow_mut());
        if places.len().max(known.len()) >= UNSETTLED_MAX {
            return self.all_unsettled.set(SETTLE_PERIODS);
        }
        places.insert(place, SETTLE_PERIODS);
        for node in files {
            if known.insert(node.id, (node.clone(), SETTLE_PERIODS)).is_none() && node.is_dir() {
                self.unsettled_dirs.set(self.unsettled_dirs.get() + 1);
            }
        }
    }

    fn is_unsettled(&self, dir: u64, name: &[u8]) -> bool {
        self.all_unsettled.get() > 0 || self.unsettled_names.borrow().contains_key(&(dir, Box::from(name)))
    }

    /// Settles the names whose time is over: the kernel drops what it cached before. Call it once per [`SHORT`].
    fn settle(&self, nodes: &NodeTable) {
        let is_over = |left: &mut u32| {
            *left -= 1;
            *left == 0
        };
        let places: Vec<_> = self.unsettled_names.borrow_mut().extract_if(|_, left| is_over(left)).collect();
        for ((dir, name), _) in places {
            self.unname(nodes, dir, &name);
        }
        let files: Vec<_> =
            self.unsettled_files.borrow_mut().extract_if(|_, (_, left)| is_over(left)).collect();
        for (_, (node, _)) in files {
            self.unsettled_dirs.set(self.unsettled_dirs.get() - usize::from(node.is_dir()));
            self.forget(nodes, &node);
        }
        match self.all_unsettled.get() {
            0 => {}
            1 => {
                self.all_unsettled.set(0);
                nodes.get(ROOT).iter().for_each(|root| self.forget(nodes, root));
            }
            left => self.all_unsettled.set(left - 1),
        }
    }

    /// Invalidates a file and everything below it, because changes may have been published by unknown paths.
    fn forget(&self, nodes: &NodeTable, node: &Rc<KernelNode>) {
        self.may_have_changed(nodes, node);
        if !node.is_dir() {
            return;
        }
        for ((dir, name), node) in nodes.descendants(node.id) {
            nodes.change_log.add(ChangeSubject::Name(dir, name.clone()));
            self.notifier.entry(dir, &name);
            self.may_have_changed(nodes, &node);
        }
    }

    fn may_have_changed(&self, nodes: &NodeTable, node: &KernelNode) {
        node.listed.set(Duration::ZERO);
        // The next open compares versions, if the server has any. A file that is open already has no such check.
        match *node.mode_of_io.borrow() {
            _ if node.is_dir() => {
                nodes.change_log.add(ChangeSubject::File(node.id));
                self.notifier.inode(node.id, true);
            }
            FileIoMode::Closed => self.attr(nodes, node),
            _ => self.data(nodes, node),
        }
        if node.attr_version.get() == 0 {
            node.stale.set(true);
        }
    }

    /// Whether the server publishes nothing about the contents of this directory.
    fn is_blind(&self, nodes: &NodeTable, id: u64) -> bool {
        match nodes.path(id) {
            Some(path) => self.blind.borrow().iter().any(|dir| below(&path, dir).is_some()),
            // No published path leads to a file without a verified name.
            None => true,
        }
    }

    /// Whether a file's bytes are certainly unchanged if no change was published. Not so for a file with several names:
    /// a change is published by only one of them.
    pub(super) fn keeps(&self, nodes: &NodeTable, node: &KernelNode) -> bool {
        node.links.get() < 2 && self.file(nodes, node.id) == LONG
    }

    /// Applies the server's changes, forever.
    pub(super) async fn listen(
        &self,
        root: Rc<File>,
        mut watch: Watch,
        nodes: &RefCell<NodeTable>,
        clock: &Arc<dyn Clock>,
    ) -> std::convert::Infallible {
        loop {
            let lines = match self.next(&mut watch, nodes, clock).await {
                Ok(lines) => lines,
                Err(error) => {
                    tracing::warn!("changes are not heard of: {error}");
                    self.on.set(false);
                    self.forget_all(&nodes.borrow());
                    clock.sleep_until(clock.now() + WATCH_RETRY_DELAY).await;
                    watch = self.again(&root, &watch, clock).await;
                    self.on.set(!self.deaf.get());
                    continue;
                }
            };
            for line in lines {
                self.take(line, &mut nodes.borrow_mut());
            }
            while self.notifier.is_full() {
                clock.sleep_until(clock.now() + WATCH_RETRY_DELAY / 100).await;
            }
        }
    }

    /// Returns the next lines. Meanwhile invalidates stale files on time, whether lines arrive or not. A read in flight
    /// is never dropped, because the server sends each line once.
    async fn next(
        &self,
        watch: &mut Watch,
        nodes: &RefCell<NodeTable>,
        clock: &Arc<dyn Clock>,
    ) -> Result<Vec<Line>> {
        let mut lines = pin!(watch.next());
        loop {
            let now = clock.now();
            if now >= self.due.get() {
                for node in self.stale.take() {
                    if node.stale.replace(false) {
                        self.notifier.inode(node.id, true);
                    }
                }
                self.settle(&nodes.borrow());
                self.due.set(now + SHORT);
            }
            match select(lines, clock.sleep_until(self.due.get())).await {
                Either::Left((lines, _)) => return lines,
                Either::Right((_, waiting)) => lines = waiting,
            }
        }
    }

    /// Reopens the watch after the last line received; retries until it succeeds.
    async fn again(&self, root: &File, before: &Watch, clock: &Arc<dyn Clock>) -> Watch {
        loop {
            match Watch::open(root, before.cursor()).await {
                Ok(watch) => return watch,
                Err(_) => clock.sleep_until(clock.now() + WATCH_RETRY_DELAY).await,
            }
        }
    }

    fn take(&self, line: Line, nodes: &mut NodeTable) {
        let change = match line {
            Line::Change(_, change) => change,
            // The server reports the blind directories again after this line.
            Line::Here(_) => {
                self.blind.borrow_mut().clear();
                return self.forget_all(nodes);
            }
        };
        match change {
            // The root is gone. Nothing below it is published until it is back.
            Change::Remove(path) if *path == *b"/" => self.take_blind(path, nodes),
            Change::Create(path) if *path == *b"/" => self.take_sees(&path, nodes),
            Change::Create(path) => {
                // A known name was created by this mount.
                if let Some((dir, name)) = nodes.place(&path) {
                    match nodes.at(dir, name) {
                        Some(_) if !self.is_unsettled(dir, name) => self.changed(nodes, dir, name),
                        _ => self.unname(nodes, dir, name),
                    }
                }
            }
            Change::Remove(path) => {
                if let Some((dir, name)) = nodes.place(&path) {
                    self.removed(nodes, dir, name);
                }
            }
            Change::Move(old, new) => {
                for dir in self.blind.borrow_mut().iter_mut() {
                    if let Some(rest) = below(dir, &old) {
                        *dir = join(&new, rest);
                    }
                }
                let from = nodes.place(&old).map(|(dir, name)| (dir, Box::<[u8]>::from(name)));
                let to = nodes.place(&new).map(|(dir, name)| (dir, Box::<[u8]>::from(name)));
                if from.iter().chain(&to).any(|(dir, name)| self.is_unsettled(*dir, name)) {
                    // The line may be late, and about the files from before our own rename.
                    for (dir, name) in from.iter().chain(&to) {
                        self.removed(nodes, *dir, name);
                    }
                    return;
                }
                let moved = from.as_ref().and_then(|(dir, name)| nodes.at(*dir, name));
                for (dir, name) in from.iter().chain(&to) {
                    self.unname(nodes, *dir, name);
                    nodes.binding_changed(*dir, name);
                    if let Some(node) = nodes.at(*dir, name) {
                        self.attr(nodes, &node);
                    }
                }
                // If this mount renamed the file, it is known by its new name already.
                let Some(moved) = moved else { return };
                if let Some((dir, name)) = &from {
                    nodes.unnamed(*dir, name);
                }
                nodes.moved(&moved);
                match &to {
                    Some((dir, name)) => {
                        nodes.named(*dir, name, &moved);
                    }
                    // Its new directory is not known, so its files can be anywhere.
                    None => self.forget_all(nodes),
                }
            }
            Change::Write(path) => {
                self.answers(nodes, &path);
                if let Some(node) = nodes.find(&path) {
                    if !node.written.replace(false) {
                        self.data(nodes, &node);
                        return;
                    }
                    self.attr(nodes, &node);
                    if !node.stale.replace(true) {
                        self.stale.borrow_mut().push(node);
                    }
                }
            }
            Change::Attr(path) => {
                self.answers(nodes, &path);
                if let Some(node) = nodes.find(&path) {
                    self.attr(nodes, &node);
                }
            }
            Change::Lost(_) => self.forget_all(nodes),
            Change::Blind(path) => self.take_blind(path, nodes),
            Change::Sees(path) => self.take_sees(&path, nodes),
        }
    }

    fn take_blind(&self, path: Path, nodes: &NodeTable) {
        self.is_now_blind(path);
        self.forget_all(nodes);
    }

    fn take_sees(&self, path: &[u8], nodes: &NodeTable) {
        self.blind.borrow_mut().retain(|blind| **blind != *path);
        self.forget_all(nodes);
    }

    /// Records a directory below which nothing is published. If there are too many, the whole tree counts as one.
    fn is_now_blind(&self, path: Path) {
        let mut blind = self.blind.borrow_mut();
        match blind.len() {
            _ if blind.contains(&path) => {}
            BLIND_MAX => *blind = vec![b"/"[..].into()],
            _ => blind.push(path),
        }
    }

    /// Handles a published removal of a name. The kernel looks the name up again, with everything below it. The binding
    /// stays, unverified, if the line may be older than the binding.
    fn removed(&self, nodes: &mut NodeTable, dir: u64, name: &[u8]) {
        self.unname(nodes, dir, name);
        nodes.binding_changed(dir, name);
        let Some(node) = nodes.at(dir, name) else { return };
        if self.is_unsettled(dir, name) {
            nodes.mark_unverified(dir, name)
        } else {
            nodes.unnamed(dir, name)
        }
        self.forget(nodes, &node);
    }

    /// Expires a name, which may lead to another file or to none, and invalidates its directory.
    fn unname(&self, nodes: &NodeTable, dir: u64, name: &[u8]) {
        self.notifier.entry(dir, name);
        self.changed(nodes, dir, name);
    }

    /// Invalidates a directory. Answers in flight about this name may be older than the change.
    fn changed(&self, nodes: &NodeTable, dir: u64, name: &[u8]) {
        nodes.change_log.add(ChangeSubject::Name(dir, name.into()));
        // The kernel caches a directory's names as its pages. An answer in flight may add old names after this. The
        // next open drops those.
        self.notifier.inode(dir, true);
        nodes.get(dir).inspect(|dir| dir.listed.set(Duration::ZERO));
    }

    /// Expires only the answers in flight.
    fn answers(&self, nodes: &NodeTable, path: &[u8]) {
        if let Some((dir, name)) = nodes.place(path) {
            nodes.change_log.add(ChangeSubject::Name(dir, name.into()));
        }
    }

    /// Invalidates a file's attributes.
    ///
    /// Sends nothing if the kernel holds none. The kernel ignores the length in an answer to GETATTR if an invalidation
    /// arrives between the request and the answer, and pads the next read up to the old length with zeros. An answer in
    /// flight is marked as expired instead ([`ChangeLog`](super::change_log::ChangeLog)).
    fn attr(&self, nodes: &NodeTable, node: &KernelNode) {
        nodes.change_log.add(ChangeSubject::File(node.id));
        if node.has_attr.replace(false) {
            self.notifier.inode(node.id, false);
        }
    }

    /// Invalidates a file's attributes and pages, by the same rule.
    fn data(&self, nodes: &NodeTable, node: &KernelNode) {
        nodes.change_log.add(ChangeSubject::File(node.id));
        if node.has_attr.replace(false) | node.has_pages.replace(false) || self.write_back {
            self.notifier.inode(node.id, true);
        }
    }

    /// Invalidates all that the kernel caches.
    fn forget_all(&self, nodes: &NodeTable) {
        nodes.change_log.add(ChangeSubject::All);
        // The messages below include all that wait.
        self.notifier.clear();
        for node in nodes.all() {
            node.listed.set(Duration::ZERO);
            self.notifier.inode(node.id, true);
            for (dir, name) in nodes.names(node) {
                self.notifier.entry(dir, &name);
            }
        }
    }
}

impl NodeTable {
    /// The directory of a path, and its last name. `None`: the directory is not known, or the path is the root.
    fn place<'p>(&self, path: &'p [u8]) -> Option<(u64, &'p [u8])> {
        let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).peekable();
        let mut dir = ROOT;
        loop {
            let name = names.next()?;
            if names.peek().is_none() {
                return Some((dir, name));
            }
            dir = self.at(dir, name)?.id;
        }
    }

    /// The file at a path.
    fn find(&self, path: &[u8]) -> Option<Rc<KernelNode>> {
        match path {
            b"/" => self.get(ROOT),
            _ => self.place(path).and_then(|(dir, name)| self.at(dir, name)),
        }
    }

    /// The nearest directory above a file that has a fid, and the path from there to the file.
    pub(super) fn path_from_held(&self, node: &KernelNode) -> Option<(Rc<File>, Vec<u8>)> {
        let mut path = Vec::new();
        let (mut dir, name) = self.names(node).into_iter().next()?;
        path.push(name);
        while path.len() <= DEEPEST {
            let above = self.get(dir)?;
            if let Some(file) = self.fid(&above) {
                path.reverse();
                return Some((file, path.join(&b'/')));
            }
            let (next, name) = self.names(&above).into_iter().next()?;
            path.push(name);
            dir = next;
        }
        None
    }

    /// One path of a file. `None`: a part of it has no verified name.
    pub(super) fn path(&self, mut id: u64) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        while id != ROOT {
            // A faulty server may move a directory into itself.
            if names.len() > DEEPEST {
                return None;
            }
            let place = self.names(&*self.get(id)?).into_iter().find(|place| !self.is_unverified(place))?;
            id = place.0;
            names.push(place.1);
        }
        if names.is_empty() {
            return Some(b"/".to_vec());
        }
        Some(names.iter().rev().flat_map(|name| b"/".iter().chain(name.iter()).copied()).collect())
    }
}
