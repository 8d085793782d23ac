//! Publishes the changes of a name space (docs/changes.md). It translates the changes that servers report to the paths
//! where the name space shows their files. For a server without reports, it publishes the changes that clients make
//! through this mux. It also publishes mounts.
//!
//! In: lines of the upstreams' change files, answered requests, new values of the name space. Out: changes for the
//! readers. All readers of a name space share one publisher. If a tree is mounted as each client is, each user has its
//! own, because it receives changes with that user's rights.
//!
//! Always holds: a reader waits for no upstream, and no upstream for another. Each upstream has its own job, and its
//! files are reported as blind until its changes arrive. No upstream is asked before a client reads.

use std::collections::{BTreeSet, HashMap};
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use nine_io::changes::{self, Change, Changes, Cursor, Line, Path, Places, READERS_MAX, Tap, Watch, below};
use nine_io::client::Error;
use nine_io::server::Request;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Result};

use crate::cfid::{AttachContext, ClientFid};
use crate::core::MuxCore;
use crate::space::TreeId;
use crate::upstream::{GREETING, UpstreamTree, UserIdentity};
use crate::views::{SpaceViews, path};

/// Time that a publisher stays active without readers: between one and two times this. It is also the interval at which
/// a server without change reports is asked again.
const LINGER: Duration = Duration::from_secs(60);
/// Pause between two attempts to reach an upstream.
const UPSTREAM_RETRY_DELAY: Duration = Duration::from_secs(5);

/// The publishers of one name space: one for each combination of rights and number of muxes passed.
#[derive(Default)]
pub(crate) struct ChangePublishers(Mutex<Vec<Weak<ChangePublisher>>>);

pub(crate) struct ChangePublisher {
    core: Weak<MuxCore>,
    /// The user with whose rights the trees are watched.
    by: Arc<AttachContext>,
    /// Whether trees that each client has as itself are watched, too, as this user.
    own: bool,
    changes: Weak<Changes>,
    /// Number of times that the first reader came. Jobs of an earlier number end.
    life: AtomicU64,
    state: Mutex<PublisherState>,
}

#[derive(Default)]
struct PublisherState {
    views: SpaceViews,
    heard: HashMap<TreeId, ReportState>,
}

/// The state of a tree's change reports.
#[derive(Default)]
struct ReportState {
    /// Whether the server reports changes.
    sees: bool,
    /// Paths of the tree for which it reports none.
    blind: BTreeSet<Path>,
}

/// The reason why watching a tree has ended.
enum WatchEnd {
    /// The connection was lost, or there was none.
    Lost,
    /// The server refuses.
    Refused,
    /// No reader is left, or the tree is not shown.
    Over,
}

impl MuxCore {
    /// Subscribes to the changes of a name space, for a client with this fid of its root.
    pub(crate) fn tap(&self, cfid: &ClientFid) -> Result<Tap> {
        let by = &cfid.by;
        let is_own = |tree: &TreeId| {
            self.tree_of(*tree)
                .is_some_and(|tree| tree.user.is_none() && !tree.upstream.server.dial.is_told())
        };
        let own = by.named.space().trees().iter().any(is_own);
        let mut all = lock(&by.named.heralds.0);
        let is = |herald: &Arc<ChangePublisher>| {
            let ident = !own || Arc::ptr_eq(&herald.by.ident, &by.ident);
            herald.own == own && herald.by.hops == by.hops && ident
        };
        let known = all.iter().filter_map(Weak::upgrade).find(is).and_then(|herald| herald.changes.upgrade());
        let changes = match known {
            Some(changes) => changes,
            None => {
                all.retain(|herald| herald.strong_count() > 0);
                if all.len() >= READERS_MAX {
                    return Err(Errno::ENFILE.into());
                }
                let (changes, herald) = ChangePublisher::new(self.me.clone(), by.clone(), own);
                all.push(herald);
                changes
            }
        };
        Ok(Tap { changes, base: by.base.clone() })
    }

    /// Publishes the change of a successful request, if its server does not report it.
    pub(crate) fn tell(&self, req: &Request) {
        if self.listening.load(Ordering::Relaxed) == 0 {
            return;
        }
        let Ok(cfid) = req.node::<ClientFid>() else { return };
        let changes = changes::of(&req.op(), &RequestPaths { req, cfid: &cfid });
        if changes.is_empty() {
            return;
        }
        for herald in self.all_named().iter().flat_map(|named| named.heralds.all()) {
            changes.iter().for_each(|change| herald.told_here(&cfid, change));
        }
    }
}

impl ChangePublishers {
    fn all(&self) -> Vec<Arc<ChangePublisher>> {
        lock(&self.0).iter().filter_map(Weak::upgrade).collect()
    }

    /// Handles a new value of the name space.
    pub(crate) fn changed(&self) {
        self.all().iter().for_each(|herald| herald.look());
    }
}

/// Counts the active publishers.
struct PublisherCount(Weak<MuxCore>);

impl PublisherCount {
    fn new(core: &Weak<MuxCore>) -> Self {
        core.upgrade().iter().for_each(|core| _ = core.listening.fetch_add(1, Ordering::Relaxed));
        Self(core.clone())
    }
}

impl Drop for PublisherCount {
    fn drop(&mut self) {
        self.0.upgrade().iter().for_each(|core| _ = core.listening.fetch_sub(1, Ordering::Relaxed));
    }
}

impl ChangePublisher {
    fn new(core: Weak<MuxCore>, by: Arc<AttachContext>, own: bool) -> (Arc<Changes>, Weak<Self>) {
        let mut made = Weak::new();
        let changes = Arc::new_cyclic(|changes: &Weak<Changes>| {
            let (life, state) = (AtomicU64::new(0), Mutex::default());
            let herald = Arc::new(Self { core, by, own, changes: changes.clone(), life, state });
            made = Arc::downgrade(&herald);
            Changes::made(move |_| herald.begin())
        });
        (changes, made)
    }

    /// Starts publishing for the first reader.
    fn begin(self: &Arc<Self>) {
        let life = self.life.fetch_add(1, Ordering::SeqCst) + 1;
        let Some(changes) = self.changes.upgrade() else { return };
        *lock(&self.state) = PublisherState::default();
        self.look();
        changes.ready();
        let (this, listens) = (self.clone(), PublisherCount::new(&self.core));
        self.job(async move {
            let mut idle = false;
            while this.is_on(life) {
                let Some(core) = this.core.upgrade() else { return };
                let outside = core.outside.clone();
                drop(core);
                outside.within(LINGER, pending::<()>()).await;
                let was_idle = std::mem::replace(&mut idle, changes.readers() == 0);
                if idle && was_idle && changes.end() {
                    break;
                }
            }
            drop(listens);
        });
    }

    fn is_on(&self, life: u64) -> bool {
        let is_on = self.changes.upgrade().is_some_and(|changes| changes.is_on());
        is_on && self.life.load(Ordering::SeqCst) == life
    }

    fn job(&self, job: impl Future<Output = ()> + Send + 'static) {
        if let Some(core) = self.core.upgrade() {
            core.jobs.begin(None, Box::pin(job));
        }
    }

    /// Compares the name space with its last value: publishes the differences and watches the new trees.
    fn look(self: &Arc<Self>) {
        let Some(changes) = self.changes.upgrade().filter(|changes| changes.is_on()) else { return };
        let life = self.life.load(Ordering::SeqCst);
        let mut new = Vec::new();
        {
            let mut state = lock(&self.state);
            let views = SpaceViews::of(&self.by.named.space());
            let is_first = state.views.all.is_empty();
            let old = std::mem::replace(&mut state.views, views);
            let mut told = Vec::new();
            for at in if is_first { Vec::new() } else { state.views.changed(&old) } {
                told.extend([Change::Remove(at.clone()), Change::Create(at)]);
            }
            told.extend(state.views.cut.iter().cloned().map(Change::Blind));
            let shown: BTreeSet<TreeId> = state.views.all.iter().map(|view| view.place.tree).collect();
            state.heard.retain(|tree, _| shown.contains(tree));
            for tree in shown {
                let PublisherState { heard, views } = &mut *state;
                let heard = heard.entry(tree).or_insert_with(|| {
                    new.push(tree);
                    ReportState::default()
                });
                match heard.sees {
                    false => told.extend(views.of_tree(tree).map(|view| Change::Blind(view.at.clone()))),
                    true => {
                        let blind = heard.blind.iter().map(|path| Change::Blind(path.clone()));
                        blind.for_each(|blind| told.extend(views.told(tree, &blind)));
                    }
                }
            }
            changes.tell_all(told);
        }
        for tree in new {
            let this = self.clone();
            self.job(async move { this.hear(tree, life).await });
        }
    }

    /// Watches a tree as long as it is shown and has readers.
    async fn hear(self: Arc<Self>, tree: TreeId, life: u64) {
        let (mut from, mut quick) = (None, false);
        loop {
            let ends = self.listen(tree, life, &mut from).await;
            let Some(outside) = self.core.upgrade().map(|core| core.outside.clone()) else { return };
            let was_heard = lock(&self.state).heard.get(&tree).map(|heard| heard.sees);
            match (ends, was_heard) {
                (WatchEnd::Over, _) | (_, None) => return,
                // If a new connection is available at once, no change is missed.
                (WatchEnd::Lost, Some(true)) if !quick => {
                    quick = true;
                    continue;
                }
                (WatchEnd::Lost, _) => {
                    self.blind(tree);
                    outside.within(UPSTREAM_RETRY_DELAY, pending::<()>()).await;
                }
                (WatchEnd::Refused, _) => {
                    self.blind(tree);
                    outside.within(LINGER, pending::<()>()).await;
                }
            }
            quick = false;
            if !self.hears(tree, life) {
                return;
            }
        }
    }

    /// Whether a tree must still be watched.
    fn hears(&self, tree: TreeId, life: u64) -> bool {
        self.is_on(life) && lock(&self.state).heard.contains_key(&tree)
    }

    async fn listen(&self, id: TreeId, life: u64, from: &mut Option<Cursor>) -> WatchEnd {
        let Some(core) = self.core.upgrade() else { return WatchEnd::Over };
        let Some(tree) = core.tree_of(id).filter(|tree| self.may_hear(tree)) else {
            return WatchEnd::Refused;
        };
        let outside = core.outside.clone();
        let opened = outside.within(2 * GREETING, async {
            let root = core.root(&self.by, id, None).await?;
            match Watch::open(&root.file, from.as_ref()).await {
                // The server does not know this position: it counts less than that in an epoch of the same name.
                Err(error) if error.errno() == Errno::EINVAL && from.is_some() => {
                    *from = None;
                    Watch::open(&root.file, None).await
                }
                watch => watch,
            }
        });
        let opened = opened.await;
        drop((core, tree));
        let mut watch = match opened {
            None => return WatchEnd::Lost,
            Some(Err(error)) => return ends(&error),
            Some(Ok(watch)) => watch,
        };
        loop {
            let lines = {
                let mut next = pin!(watch.next());
                loop {
                    match outside.within(LINGER, next.as_mut()).await {
                        Some(lines) => break lines,
                        None if self.hears(id, life) => {}
                        None => return WatchEnd::Over,
                    }
                }
            };
            match lines {
                Ok(lines) if self.hears(id, life) => {
                    lines.iter().for_each(|line| self.heard(id, line, from));
                    *from = watch.cursor().cloned();
                }
                Ok(_) => return WatchEnd::Over,
                Err(error) => return ends(&error),
            }
        }
    }

    /// Whether all readers have the rights with which a tree is watched.
    fn may_hear(&self, tree: &UpstreamTree) -> bool {
        tree.user.is_some() || self.own
    }

    /// Handles a line of an upstream's change file.
    fn heard(&self, tree: TreeId, line: &Line, from: &Option<Cursor>) {
        let mut state = lock(&self.state);
        let PublisherState { views, heard } = &mut *state;
        let (Some(heard), Some(changes)) = (heard.get_mut(&tree), self.changes.upgrade()) else { return };
        let root = |change: fn(Path) -> Change| change(b"/"[..].into());
        let mut told = Vec::new();
        match line {
            Line::Here(here) => {
                let again = std::mem::take(&mut heard.blind);
                again.into_iter().for_each(|path| told.extend(views.told(tree, &Change::Sees(path))));
                let was_missed = from.as_ref().is_some_and(|from| from.epoch != here.epoch);
                if !std::mem::replace(&mut heard.sees, true) {
                    told.extend(views.told(tree, &root(Change::Sees)));
                } else if was_missed {
                    told.extend(lost(views, tree));
                }
            }
            Line::Change(_, Change::Lost(_)) => told = lost(views, tree),
            Line::Change(_, change) => {
                match change {
                    Change::Blind(path) => drop(heard.blind.insert(path.clone())),
                    Change::Sees(path) => drop(heard.blind.remove(path)),
                    _ => {}
                }
                told = views.told(tree, change);
            }
        }
        changes.tell_all(told);
    }

    /// Notes and publishes that no changes of a tree are reported from now on.
    fn blind(&self, tree: TreeId) {
        let mut state = lock(&self.state);
        let PublisherState { views, heard } = &mut *state;
        let (Some(heard), Some(changes)) = (heard.get_mut(&tree), self.changes.upgrade()) else { return };
        heard.sees = false;
        changes.tell_all(views.of_tree(tree).map(|view| Change::Blind(view.at.clone())));
    }

    /// Publishes a change that was made through this mux.
    fn told_here(&self, cfid: &ClientFid, change: &Change) {
        let tree = &cfid.first.root.tree;
        let is_ours =
            tree.user.is_some() || self.own && Arc::<UserIdentity>::ptr_eq(&self.by.ident, &cfid.by.ident);
        let state = lock(&self.state);
        let (Some(heard), Some(changes)) = (state.heard.get(&tree.id), self.changes.upgrade()) else {
            return;
        };
        let is_blind = |path: &Path| heard.blind.iter().any(|blind| below(path, blind).is_some());
        let told_there =
            heard.sees && change.map(|path| (!is_blind(&path.into())).then(|| path.into())).is_some();
        if is_ours && !told_there {
            changes.tell_all(state.views.told(tree.id, change));
        }
    }
}

/// Returns the changes to publish if everything in a tree may have changed.
fn lost(views: &SpaceViews, tree: TreeId) -> Vec<Change> {
    let at = views.of_tree(tree).map(|view| &view.at);
    at.flat_map(|at| [Change::Blind(at.clone()), Change::Sees(at.clone())]).collect()
}

fn ends(error: &Error) -> WatchEnd {
    match error {
        Error::Transport { .. } | Error::Unsent { .. } | Error::Protocol { .. } | Error::Version { .. } => {
            WatchEnd::Lost
        }
        // Another server now serves the file.
        error if error.errno() == Errno::ESTALE => WatchEnd::Lost,
        _ => WatchEnd::Refused,
    }
}

/// Converts the files of a request to paths in their tree.
struct RequestPaths<'r> {
    req: &'r Request,
    cfid: &'r ClientFid,
}

impl Places for RequestPaths<'_> {
    fn own(&self) -> Option<Path> {
        Some(path(&self.cfid.place()))
    }

    fn within(&self, name: &[u8]) -> Option<Path> {
        Some(path(&self.cfid.place().child(name)))
    }

    fn beside(&self, name: &[u8]) -> Option<Path> {
        Some(path(&self.cfid.place().parent().child(name)))
    }

    fn other(&self, name: &[u8]) -> Option<Path> {
        Some(path(&self.req.node2::<ClientFid>().ok()?.place().child(name)))
    }
}
