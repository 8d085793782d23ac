//! What the server tells of changes (docs/changes.md), told on to the kernel: so what it keeps may be kept for long.
//!
//! In: lines of `#changes`. Out: invalidations; and how long an answer is valid: not at all, if a change of its subject
//! came between the question and the answer.
//!
//! What is written from here comes back as a change. It ends what is kept of the file's bytes only after [`SHORT`], and
//! at its next open, since it may have been somebody else's.

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
use super::nodes::{DEEPEST, EntryKey, Io, Node, Nodes, ROOT};
use super::notifier::Notifier;
use super::{LONG, SHORT};

/// Periods of [`SHORT`] until a name is settled. A server must publish a change within this time after a reply shows
/// it.
const SETTLE_PERIODS: u32 = 5;
/// Unsettled names, and unsettled files, about 100 bytes each. With one more, every name and file is unsettled.
const UNSETTLED_MAX: usize = 16_384;
/// For a server to begin with its changes: the kernel waits meanwhile.
const BEGIN: Duration = Duration::from_secs(5);
/// Between two tries to hear of changes again.
const AGAIN: Duration = Duration::from_secs(1);

/// See the module.
pub(super) struct Told {
    /// Changes are heard of.
    on: Cell<bool>,
    /// They are of no use.
    deaf: Cell<bool>,
    /// Directories below which nothing is told.
    blind: RefCell<Vec<Path>>,
    /// Names with a change that a reply has shown, and that the server may not have published, each with the periods of
    /// [`SHORT`] that are left.
    unsettled_names: RefCell<HashMap<EntryKey, u32>>,
    /// The files that have these names, or had them.
    unsettled_files: RefCell<HashMap<u64, (Rc<Node>, u32)>>,
    /// Directories among the files. A published path may be from before the change or from after it.
    unsettled_dirs: Cell<usize>,
    /// Every name is unsettled for so many periods of [`SHORT`]; 0: only those above.
    all_unsettled: Cell<u32>,
    /// Files that were written from here and have changed.
    stale: RefCell<Vec<Rc<Node>>>,
    /// When they are forgotten.
    due: Cell<Duration>,
    /// The kernel holds written pages before it sends them ([`Options::write_back`](super::Options::write_back)).
    write_back: bool,
    notifier: Notifier,
}

impl Told {
    /// Listens to the tree's changes, if its server tells any, and soon: from the answer on none is missed.
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
            // A file that is only called so.
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

    /// This kernel does not ask again for a name of a file that is in use: changes cannot be told to it.
    pub(super) fn give_up(&self) {
        self.on.set(false);
        self.deaf.set(true);
    }

    /// Whether changes are heard of.
    pub(super) fn is_on(&self) -> bool {
        self.on.get()
    }

    /// How long the kernel may keep a name in this directory.
    pub(super) fn name(&self, nodes: &Nodes, dir: u64) -> Duration {
        let is_unsure = self.unsettled_dirs.get() > 0 || self.all_unsettled.get() > 0;
        if !self.on.get() || is_unsure || self.is_blind(nodes, dir) { SHORT } else { LONG }
    }

    /// How long the kernel may keep a file's attributes.
    pub(super) fn file(&self, nodes: &Nodes, id: u64) -> Duration {
        let has_names = nodes.get(id).is_some_and(|node| node.links.get() > 1 && node.is_plain());
        if has_names || self.unsettled_files.borrow().contains_key(&id) {
            SHORT
        } else {
            self.name(nodes, id)
        }
    }

    /// A reply has shown that a name changed: these files have it, or had it. The server publishes the change later.
    /// Until then a published path is ambiguous: it may mean the file from before the change. So the kernel keeps these
    /// files only for [`SHORT`], and all names if one of the files is a directory.
    pub(super) fn mark_unsettled(&self, place: EntryKey, files: impl IntoIterator<Item = Rc<Node>>) {
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

    /// Call it once per [`SHORT`]. Settles the names whose time is over: the kernel drops what it kept from before.
    fn settle(&self, nodes: &Nodes) {
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
    fn forget(&self, nodes: &Nodes, node: &Rc<Node>) {
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

    fn may_have_changed(&self, nodes: &Nodes, node: &Node) {
        node.listed.set(Duration::ZERO);
        // The next open compares versions, if the server has any. An open file gets no such chance.
        match *node.mode_of_io.borrow() {
            _ if node.is_dir() => {
                nodes.change_log.add(ChangeSubject::File(node.id));
                self.notifier.inode(node.id, true);
            }
            Io::Closed => self.attr(nodes, node),
            _ => self.data(nodes, node),
        }
        if node.attr_version.get() == 0 {
            node.stale.set(true);
        }
    }

    /// Whether nothing is told of what is in this directory.
    fn is_blind(&self, nodes: &Nodes, id: u64) -> bool {
        match nodes.path(id) {
            Some(path) => self.blind.borrow().iter().any(|dir| below(&path, dir).is_some()),
            // No published path leads to a file without a verified name.
            None => true,
        }
    }

    /// Whether the bytes of a file are as they were when nothing was told. Of several names one is told.
    pub(super) fn keeps(&self, nodes: &Nodes, node: &Node) -> bool {
        node.links.get() < 2 && self.file(nodes, node.id) == LONG
    }

    /// Tells on what the server tells, for ever.
    pub(super) async fn listen(
        &self,
        root: Rc<File>,
        mut watch: Watch,
        nodes: &RefCell<Nodes>,
        clock: &Arc<dyn Clock>,
    ) -> std::convert::Infallible {
        loop {
            let lines = match self.next(&mut watch, nodes, clock).await {
                Ok(lines) => lines,
                Err(error) => {
                    tracing::warn!("changes are not heard of: {error}");
                    self.on.set(false);
                    self.forget_all(&nodes.borrow());
                    clock.sleep_until(clock.now() + AGAIN).await;
                    watch = self.again(&root, &watch, clock).await;
                    self.on.set(!self.deaf.get());
                    continue;
                }
            };
            for line in lines {
                self.take(line, &mut nodes.borrow_mut());
            }
            while self.notifier.is_full() {
                clock.sleep_until(clock.now() + AGAIN / 100).await;
            }
        }
    }

    /// The next lines; what has become stale is forgotten in time, whether there are any or many. A read that is under
    /// way is never given up: what it brings is told once.
    async fn next(
        &self,
        watch: &mut Watch,
        nodes: &RefCell<Nodes>,
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

    /// Listens again from where it was.
    async fn again(&self, root: &File, before: &Watch, clock: &Arc<dyn Clock>) -> Watch {
        loop {
            match Watch::open(root, before.cursor()).await {
                Ok(watch) => return watch,
                Err(_) => clock.sleep_until(clock.now() + AGAIN).await,
            }
        }
    }

    fn take(&self, line: Line, nodes: &mut Nodes) {
        let change = match line {
            Line::Change(_, change) => change,
            // What is blind now is said behind it.
            Line::Here(_) => {
                self.blind.borrow_mut().clear();
                return self.forget_all(nodes);
            }
        };
        match change {
            // The root has gone, and nothing below it is told until it is there again.
            Change::Remove(path) if *path == *b"/" => self.take_blind(path, nodes),
            Change::Create(path) if *path == *b"/" => self.take_sees(&path, nodes),
            Change::Create(path) => {
                // A name that is known has been made from here.
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
                // What was moved from here is known by its new name already.
                let Some(moved) = moved else { return };
                if let Some((dir, name)) = &from {
                    nodes.unnamed(*dir, name);
                }
                nodes.moved(&moved);
                match &to {
                    Some((dir, name)) => {
                        nodes.named(*dir, name, &moved);
                    }
                    // It is somewhere, with all below it.
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

    fn take_blind(&self, path: Path, nodes: &Nodes) {
        self.is_now_blind(path);
        self.forget_all(nodes);
    }

    fn take_sees(&self, path: &[u8], nodes: &Nodes) {
        self.blind.borrow_mut().retain(|blind| **blind != *path);
        self.forget_all(nodes);
    }

    /// Nothing is told of what is below this directory; of too many, nothing at all is believed to be.
    fn is_now_blind(&self, path: Path) {
        let mut blind = self.blind.borrow_mut();
        match blind.len() {
            _ if blind.contains(&path) => {}
            BLIND_MAX => *blind = vec![b"/"[..].into()],
            _ => blind.push(path),
        }
    }

    /// The server published that a name has lost its file. The kernel looks it up again, with everything below it. The
    /// binding stays, unverified, if the line may be older than the binding.
    fn removed(&self, nodes: &mut Nodes, dir: u64, name: &[u8]) {
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

    /// A name may be another file's, or nobody's, and its directory has changed.
    fn unname(&self, nodes: &Nodes, dir: u64, name: &[u8]) {
        self.notifier.entry(dir, name);
        self.changed(nodes, dir, name);
    }

    /// A directory has changed, and answers about this name that are under way may say what was before.
    fn changed(&self, nodes: &Nodes, dir: u64, name: &[u8]) {
        nodes.change_log.add(ChangeSubject::Name(dir, name.into()));
        // The names that the kernel keeps of a directory are its pages. An answer in flight may bring old ones yet: the
        // next open drops those.
        self.notifier.inode(dir, true);
        nodes.get(dir).inspect(|dir| dir.listed.set(Duration::ZERO));
    }

    /// The same of the answers alone.
    fn answers(&self, nodes: &Nodes, path: &[u8]) {
        if let Some((dir, name)) = nodes.place(path) {
            nodes.change_log.add(ChangeSubject::Name(dir, name.into()));
        }
    }

    /// Invalidates a file's attributes.
    ///
    /// Sends nothing if the kernel holds none. The kernel ignores the length in an answer to GETATTR if an invalidation
    /// arrives between the request and the answer, and pads the next read up to the old length with zeros. An answer in
    /// flight is marked as expired instead ([`ChangeLog`](super::change_log::ChangeLog)).
    fn attr(&self, nodes: &Nodes, node: &Node) {
        nodes.change_log.add(ChangeSubject::File(node.id));
        if node.has_attr.replace(false) {
            self.notifier.inode(node.id, false);
        }
    }

    /// Invalidates a file's attributes and pages, by the same rule.
    fn data(&self, nodes: &Nodes, node: &Node) {
        nodes.change_log.add(ChangeSubject::File(node.id));
        if node.has_attr.replace(false) | node.has_pages.replace(false) || self.write_back {
            self.notifier.inode(node.id, true);
        }
    }

    /// Nothing that is kept is believed any more.
    fn forget_all(&self, nodes: &Nodes) {
        nodes.change_log.add(ChangeSubject::All);
        // It says all that waits.
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

impl Nodes {
    /// The directory of a path, and the last name; `None`: it is not known here, or the path is the root's.
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
    fn find(&self, path: &[u8]) -> Option<Rc<Node>> {
        match path {
            b"/" => self.get(ROOT),
            _ => self.place(path).and_then(|(dir, name)| self.at(dir, name)),
        }
    }

    /// The nearest directory above a file that has a fid, and the path from there.
    pub(super) fn path_from_held(&self, node: &Node) -> Option<(Rc<File>, Vec<u8>)> {
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

    /// One path of a file. `None`: it has no verified name.
    pub(super) fn path(&self, mut id: u64) -> Option<Vec<u8>> {
        let mut names = Vec::new();
        while id != ROOT {
            // A directory moved into itself by a server that lies.
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
