//! The shared state of a mux, and the calls that change it.

use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Poll, Waker};
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::client::{Client, Error, File, FlushLimits, heed};
use nine_net::Env;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Names, OpenFlags};

use crate::Space;
use crate::ahead::RunRegistry;
use crate::cfid::{AttachContext, PathStep, UnreachedTrees};
use crate::jobs::JobTable;
use crate::keep::{RenameLog, Wait, WaitDeadline};
use crate::named::NamedSpace;
use crate::outside::OutsideTasks;
use crate::pushed::PushedModules;
use crate::qid::QidAllocator;
use crate::space::{Flags, NamespaceSnapshot, TreeId, TreePath, names_of};
use crate::upstream::{
    As, GREETING, Server, TreeRoot, UpstreamServer, UpstreamTree, UserIdentity, UserStanding,
};
use crate::walk::{LastNameRule, WalkPosition};

/// The shared state of a mux.
pub(crate) struct MuxCore {
    pub(crate) me: Weak<MuxCore>,
    pub(crate) jobs: Arc<JobTable>,
    pub(crate) qids: Arc<QidAllocator>,
    named: Mutex<HashMap<Box<str>, Arc<NamedSpace>>>,
    /// Name spaces in preparation, which will replace those of the same names.
    drafts: Mutex<Vec<Weak<NamedSpace>>>,
    upstreams: Mutex<HashMap<Arc<str>, Weak<UpstreamServer>>>,
    /// Modules pushed on its connections.
    pub(crate) pushed: PushedModules,
    /// Trees that are mounted or still have fids. `mounted` keeps the mounted ones alive.
    trees: Mutex<HashMap<TreeId, Weak<UpstreamTree>>>,
    mounted: Mutex<HashMap<TreeId, Arc<UpstreamTree>>>,
    idents: Mutex<HashMap<UserKey, Weak<UserIdentity>>>,
    next_upstream: AtomicU32,
    next_tree: AtomicU32,
    pub(crate) outside: Arc<OutsideTasks>,
    /// Whether any request waits for an Rflush.
    flushing: Mutex<FlushState>,
    pub(crate) counts: MuxCounters,
    /// Number of change publishers in use.
    pub(crate) listening: AtomicUsize,
    /// Files that are read ahead.
    pub(crate) ahead: Arc<RunRegistry>,
    /// The tree that forms the base of every name space.
    backbone: OnceLock<TreeId>,
    /// Names of users and groups, for dialects with text.
    pub(crate) names: Arc<dyn Names>,
}

/// A user: its name, number and standing, and whether it is read-only.
type UserKey = (Box<str>, Option<u32>, UserStanding, bool);

/// Counters since the start.
#[derive(Default)]
pub(crate) struct MuxCounters {
    /// Number of requests passed on to one upstream.
    pub(crate) forwarded: AtomicU64,
    /// Number of requests that took several steps.
    pub(crate) jobs: AtomicU64,
    /// Largest number of overdue Rflushes on one connection so far.
    pub(crate) forsaken: AtomicU64,
}

#[derive(Default)]
struct FlushState {
    any: bool,
    waker: Option<Waker>,
}

impl MuxCore {
    pub(crate) fn new(names: Arc<dyn Names>) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            jobs: Arc::default(),
            qids: Arc::new(QidAllocator::new()),
            named: Mutex::default(),
            drafts: Mutex::default(),
            upstreams: Mutex::default(),
            trees: Mutex::default(),
            pushed: PushedModules::default(),
            mounted: Mutex::default(),
            idents: Mutex::default(),
            next_upstream: AtomicU32::new(1),
            next_tree: AtomicU32::new(1),
            outside: Arc::default(),
            flushing: Mutex::default(),
            counts: MuxCounters::default(),
            listening: AtomicUsize::new(0),
            ahead: Arc::default(),
            backbone: OnceLock::new(),
            names,
        })
    }

    /// Runs the jobs, spawns tasks, and enforces the flush timeouts. Never returns.
    pub(crate) async fn run(&self, env: impl Env) {
        let mut tick: Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>> = None;
        poll_fn(|cx| {
            self.jobs.poll(cx);
            self.outside.visit(&env, cx);
            let flushing = {
                let mut flushing = lock(&self.flushing);
                flushing.waker = Some(cx.waker().clone());
                flushing.any
            };
            if flushing {
                let timer = tick.get_or_insert_with(|| env.sleep_until(env.now() + TICK));
                if timer.as_mut().poll(cx).is_ready() {
                    tick = None;
                    lock(&self.flushing).any = false;
                    let any = self.tick();
                    lock(&self.flushing).any |= any;
                    // Start a new timer if a request still waits for an Rflush.
                    cx.waker().wake_by_ref();
                }
            }
            Poll::<()>::Pending
        })
        .await;
    }

    /// Notes that a request now waits for an Rflush, and starts the timer.
    pub(crate) fn flushed(&self) {
        let waker = {
            let mut flushing = lock(&self.flushing);
            if std::mem::replace(&mut flushing.any, true) {
                return;
            }
            flushing.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    /// Whether any request still waits for an Rflush.
    fn tick(&self) -> bool {
        let mut any = false;
        for upstream in self.upstreams() {
            for client in upstream.lanes().iter().filter_map(|lane| lane.client()) {
                let (overdue, waiting) = client.tick(FLUSH_LIMITS);
                self.counts.forsaken.fetch_max(overdue as u64, Ordering::Relaxed);
                if overdue > QUARANTINE {
                    tracing::warn!(upstream = %upstream.server.name, "it answers no Tflush: given up");
                    let text = "the server answers no Tflush";
                    client.abort(std::io::Error::new(std::io::ErrorKind::TimedOut, text));
                }
                any |= overdue + waiting > 0;
            }
        }
        any
    }

    /// Returns the upstream with this server's name, or creates it.
    pub(crate) fn upstream(&self, mut server: Server) -> Arc<UpstreamServer> {
        server.options.names = self.names.clone();
        let mut upstreams = lock(&self.upstreams);
        if let Some(known) = upstreams.get(&server.name).and_then(Weak::upgrade) {
            known.most.fetch_max(server.lanes, Ordering::Relaxed);
            return known;
        }
        upstreams.retain(|_, upstream| upstream.strong_count() > 0);
        let name = server.name.clone();
        let id = self.next_upstream.fetch_add(1, Ordering::Relaxed);
        let pushed = self.pushed.of(&name);
        if let Some(mut words) = pushed.try_lock().filter(|words| words.is_empty()) {
            words.clone_from(&server.pushed);
        }
        let upstream = Arc::new(UpstreamServer::new(id, server, pushed, self.qids.clone(), self.me.clone()));
        upstreams.insert(name, Arc::downgrade(&upstream));
        upstream
    }

    /// Returns all upstreams that are mounted or still have fids, sorted by number.
    pub(crate) fn upstreams(&self) -> Vec<Arc<UpstreamServer>> {
        let mut all: Vec<_> = lock(&self.upstreams).values().filter_map(Weak::upgrade).collect();
        all.sort_by_key(|upstream| upstream.id);
        all
    }

    /// Returns the tree for an aname and a user, or creates it. Equal arguments yield the same tree.
    pub(crate) fn tree(
        &self,
        upstream: &Arc<UpstreamServer>,
        aname: &str,
        user: &As,
        wait: Option<Wait>,
        ahead: bool,
    ) -> Arc<UpstreamTree> {
        let user = match user {
            As::Client => None,
            As::User { name, uid } => Some((name, *uid)),
        };
        let is = |tree: &Arc<UpstreamTree>| {
            let of = tree.user.as_ref().map(|ident| (&ident.name, ident.uid));
            let how = (of, tree.wait, tree.ahead);
            Arc::ptr_eq(&tree.upstream, upstream) && *tree.aname == *aname && how == (user, wait, ahead)
        };
        let mut trees = lock(&self.trees);
        if let Some(tree) = trees.values().filter_map(Weak::upgrade).find(is) {
            return tree;
        }
        trees.retain(|_, tree| tree.strong_count() > 0);
        let id = TreeId(self.next_tree.fetch_add(1, Ordering::Relaxed));
        let user = user.map(|(name, uid)| Arc::new(UserIdentity::new(name, uid)));
        let unmounted = AtomicBool::new(false);
        let tree = Arc::new(UpstreamTree {
            id,
            upstream: upstream.clone(),
            aname: aname.into(),
            user,
            core: self.me.clone(),
            wait,
            ahead,
            moves: RenameLog::default(),
            unmounted,
        });
        trees.insert(id, Arc::downgrade(&tree));
        tree
    }

    pub(crate) fn tree_of(&self, id: TreeId) -> Option<Arc<UpstreamTree>> {
        lock(&self.trees).get(&id).and_then(Weak::upgrade)
    }

    /// Returns the user with this name and number, together with the roots it already has.
    pub(crate) fn ident(
        &self,
        name: &str,
        uid: Option<u32>,
        standing: UserStanding,
        read_only: bool,
    ) -> Arc<UserIdentity> {
        let mut idents = lock(&self.idents);
        let key = (Box::from(name), uid, standing, read_only);
        if let Some(ident) = idents.get(&key).and_then(Weak::upgrade) {
            return ident;
        }
        idents.retain(|_, ident| ident.strong_count() > 0);
        let mut ident = UserIdentity::new(name, uid);
        (ident.standing, ident.read_only) = (standing, read_only);
        let ident = Arc::new(ident);
        idents.insert(key, Arc::downgrade(&ident));
        ident
    }

    /// Returns the root of a tree for a walker. With `patience` it waits for a lost server as the mount requests.
    pub(crate) async fn root(
        &self,
        by: &AttachContext,
        tree: TreeId,
        patience: Option<&mut WaitDeadline>,
    ) -> Result<Arc<TreeRoot>, Error> {
        if let Some(error) = by.unreached.as_ref().and_then(|unreached| unreached.get(&tree)) {
            return Err(error.clone());
        }
        let tree = self.tree_of(tree).ok_or(Error::Remote(Errno::ENOENT.into()))?;
        let (Some(patience), Some(wait)) = (patience, tree.wait) else {
            return self.root_now(by, &tree).await;
        };
        loop {
            self.wait_for(&tree, &tree.upstream.lane(by.hops, by.client), wait, patience).await?;
            match self.root_now(by, &tree).await {
                Err(error) if is_unreachable(&error) => {}
                root => return root,
            }
        }
    }

    async fn root_now(&self, by: &AttachContext, tree: &Arc<UpstreamTree>) -> Result<Arc<TreeRoot>, Error> {
        let ident = tree.user.as_ref().unwrap_or(&by.ident);
        if self.pretends(ident) && !tree.upstream.server.local {
            let text = "that is whoever runs this mux: show the token, or come over the unix socket";
            return Err(refused(Errno::EACCES, text));
        }
        heed(ident.root(tree, by.hops, by.client, &self.outside)).await?
    }

    /// Whether a user claims to be our own user or root without proof. A server that trusts us would believe the claim.
    fn pretends(&self, ident: &UserIdentity) -> bool {
        let uid = ident.uid.or_else(|| self.names.uid(ident.name.as_bytes()));
        ident.standing == UserStanding::Claimed && [Some(0), Some(nine_net::own_ids().0)].contains(&uid)
    }

    /// Returns the client of a tree's server. Dials the server if needed.
    pub(crate) async fn connect(
        &self,
        by: &AttachContext,
        tree: &UpstreamTree,
    ) -> Result<(Arc<Client>, u16), Error> {
        let lane = tree.upstream.lane(by.hops, by.client);
        heed(lane.connect(&tree.upstream, &self.outside)).await?
    }

    /// Returns all name spaces, sorted by name.
    pub(crate) fn all_named(&self) -> Vec<Arc<NamedSpace>> {
        let mut all: Vec<_> = lock(&self.named).values().cloned().collect();
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Returns the name space of this name, or creates it. The backbone must be set before. Panics otherwise.
    pub(crate) fn named_or_new(&self, name: &str) -> Arc<NamedSpace> {
        let backbone = *self.backbone.get().expect("a mux is made with its backbone");
        let mut named = lock(&self.named);
        let new = || Arc::new(NamedSpace::new(name, NamespaceSnapshot::new(TreePath::root(backbone))));
        named.entry(name.into()).or_insert_with(new).clone()
    }

    /// Creates a name space without mounts that no client can attach to. Fill it, then let it replace the one of this
    /// name.
    pub(crate) fn draft(&self, name: &str) -> Arc<NamedSpace> {
        let backbone = *self.backbone.get().expect("a mux is made with its backbone");
        let now = lock(&self.named).get(name).map(|named| named.space());
        let value = now.map_or_else(|| NamespaceSnapshot::new(TreePath::root(backbone)), |now| now.emptied());
        let draft = Arc::new(NamedSpace::new(name, value));
        let mut drafts = lock(&self.drafts);
        drafts.retain(|draft| draft.strong_count() > 0);
        drafts.push(Arc::downgrade(&draft));
        draft
    }

    /// Puts the drafts into effect and removes the names `gone`. Clients of a removed name space continue in it. If a
    /// draft has other users than the name space of its name, present clients of that keep the old value.
    pub(crate) fn replace(&self, drafts: &[Arc<NamedSpace>], gone: &[Arc<str>]) {
        for draft in drafts {
            let known = lock(&self.named).get(&*draft.name).cloned();
            let Some(named) = known.clone().filter(|known| *lock(&known.users) == *lock(&draft.users)) else {
                let for_owner = known.is_some_and(|known| known.for_owner.load(Ordering::Relaxed));
                draft.for_owner.store(for_owner, Ordering::Relaxed);
                lock(&self.named).insert((&*draft.name).into(), draft.clone());
                continue;
            };
            let value = NamespaceSnapshot::clone(&draft.space());
            let Ok(()) = named.change(|space| {
                *space = value;
                Ok::<_, std::convert::Infallible>(())
            });
            named.heralds.changed();
        }
        lock(&self.named).retain(|name, _| gone.iter().all(|gone| **gone != **name));
        self.prune();
    }

    /// Returns all name spaces and drafts. The trees that they show must stay alive.
    fn all_shown(&self) -> Vec<Arc<NamedSpace>> {
        let drafts: Vec<_> = lock(&self.drafts).iter().filter_map(Weak::upgrade).collect();
        self.all_named().into_iter().chain(drafts).collect()
    }

    pub(crate) fn set_backbone(&self, tree: Arc<UpstreamTree>) {
        let id = tree.id;
        lock(&self.mounted).insert(id, tree);
        self.backbone.get_or_init(|| id);
    }

    /// Mounts the root of a tree on `old` (mount(2)). Returns the number of the call and, if the server does not answer
    /// now, the error.
    pub(crate) async fn mount(
        &self,
        on: &Space,
        tree: Arc<UpstreamTree>,
        what: &str,
        old: &str,
        flags: Flags,
    ) -> Result<(u64, Option<Error>), Error> {
        let point = self.mount_point(&on.by, &tree, what, old, on.limit).await;
        let (from, away) = match point {
            Ok((from, away)) => (Ok(from), away),
            Err(error) => (Err(error), None),
        };
        // Also if this fails: `change` is the only place that drops the tree's root.
        let to = vec![TreePath::root(tree.id)];
        let mount = |space: &mut NamespaceSnapshot| {
            let from = from?;
            on.check_wanted()?;
            space.mount(to, what, from, old, flags).map_err(Error::Refused)
        };
        Ok((self.change(&on.by, &[tree.id], mount)?, away))
    }

    /// Returns the root of a tree, or the error if its server does not answer within `limit`.
    async fn root_within(
        &self,
        by: &AttachContext,
        tree: &UpstreamTree,
        limit: Duration,
    ) -> Result<Arc<TreeRoot>, Error> {
        let root = self.within(limit, self.root(by, tree.id, None)).await;
        root.unwrap_or_else(|| {
            let error = std::io::Error::new(std::io::ErrorKind::TimedOut, "it answers no Tattach");
            Err(Error::Transport { peer: tree.upstream.server.name.clone(), error: Arc::new(error) })
        })
    }

    /// Contacts the servers of several trees at once, for at most `limit`. Returns those that are away.
    pub(crate) async fn contact(
        &self,
        by: &AttachContext,
        trees: &[Arc<UpstreamTree>],
        limit: Duration,
    ) -> UnreachedTrees {
        let contacts = trees.iter().map(|tree| async move {
            let error = self.root_within(by, tree, limit).await.err();
            error.filter(is_away).map(|error| (tree.id, error))
        });
        join_all(contacts).await.into_iter().flatten().collect()
    }

    /// Releases trees that were contacted, unless a name space shows them.
    pub(crate) fn release(&self, trees: Vec<Arc<UpstreamTree>>) {
        lock(&self.mounted).extend(trees.into_iter().map(|tree| (tree.id, tree)));
        self.prune();
    }

    /// Returns the place to mount a tree on, and the error if its server does not answer.
    async fn mount_point(
        &self,
        by: &AttachContext,
        tree: &UpstreamTree,
        what: &str,
        old: &str,
        limit: Duration,
    ) -> Result<(TreePath, Option<Error>), Error> {
        // A remote server that is away is mounted all the same; a walk tries it again. A refusal is an error, and so is
        // a server of this process that does not open.
        let limit = if tree.upstream.server.local { 2 * GREETING } else { limit };
        let (is_dir, away) = match self.root_within(by, tree, limit).await {
            Ok(root) => (Some(root.qid().is_dir()), None),
            Err(error) if is_away(&error) && !tree.upstream.server.local => {
                tracing::warn!("{what} is mounted, but away: {error}");
                (None, Some(error))
            }
            Err(error) => return Err(error),
        };
        Ok((self.soon(limit, self.covered(by, old, is_dir, true)).await?, away))
    }

    /// Awaits a future for at most `limit`. Replies to messages that it has sent may never come after that.
    pub(crate) async fn within<T>(&self, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
        let value = self.outside.within(limit, future).await;
        if value.is_none() {
            self.flushed();
        }
        value
    }

    /// Runs a walk of the mux itself for at most `limit`: no client would flush it.
    async fn soon<T>(
        &self,
        limit: Duration,
        walk: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        let late = || {
            let text = format!("a server on the way has not answered within {} s", limit.as_secs());
            Err(refused(Errno::ETIMEDOUT, &text))
        };
        self.within(limit, walk).await.unwrap_or_else(late)
    }

    /// Changes a name space to show `trees`, and releases the trees that are not shown any more.
    fn change<T>(
        &self,
        by: &AttachContext,
        trees: &[TreeId],
        f: impl FnOnce(&mut NamespaceSnapshot) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let changed = {
            // Hold the lock over both steps, so that `prune` sees them as one.
            let mut mounted = lock(&self.mounted);
            by.named.change(|space| {
                for id in trees {
                    // The tree may have been unmounted during the walk to it.
                    let tree = self.tree_of(*id).ok_or(Error::Remote(Errno::ENOENT.into()))?;
                    tree.unmounted.store(false, Ordering::Relaxed);
                    space.keep(*id, tree.clone());
                    mounted.insert(*id, tree);
                }
                f(space)
            })
        };
        self.prune();
        by.named.heralds.changed();
        changed
    }

    /// Binds the file that is at `new` now on `old` (bind(2)), whatever happens to the name `new` later.
    /// Returns the number of the call, and whether the file is a directory.
    pub(crate) async fn bind(
        &self,
        on: &Space,
        new: &str,
        old: &str,
        flags: Flags,
    ) -> Result<(u64, bool), Error> {
        let pos = self.soon(on.limit, self.resolve(&on.by, new)).await?;
        let from = self.soon(on.limit, self.covered(&on.by, old, Some(pos.raw.is_dir()), true)).await?;
        let to: Vec<TreePath> = match &pos.crossed {
            Some((head, _)) => head.members.iter().map(|member| member.to.clone()).collect(),
            None => vec![pos.place().clone()],
        };
        if !pos.raw.is_dir() && flags != Flags::REPLACE {
            return Err(refused(
                Errno::EINVAL,
                "inconsistent mount: files are bound on files, without -a, -b, -c",
            ));
        }
        let trees: Vec<TreeId> = to.iter().map(|place| place.tree).collect();
        let id = self.change(&on.by, &trees, |space| {
            on.check_wanted()?;
            space.mount(to, new, from, old, flags).map_err(Error::Refused)
        })?;
        Ok((id, pos.raw.is_dir()))
    }

    /// Restores an earlier value of a name space. The caller has kept that value, and so its trees.
    pub(crate) fn restore(&self, by: &AttachContext, earlier: &NamespaceSnapshot) -> Result<(), Error> {
        let trees: Vec<TreeId> = earlier.trees().into_iter().collect();
        self.change(by, &trees, |space| {
            space.restore(earlier);
            Ok(())
        })
    }

    /// Removes the members that call `id` added.
    pub(crate) fn unmount_call(&self, by: &AttachContext, id: u64) -> Result<(), Error> {
        self.change(by, &[], |space| space.unmount_call(id).map_err(Error::Refused))
    }

    /// Removes from `old` the latest mount or bind of `new`, or everything if `new` is `None` (bind(2)). Calls are also
    /// found by their arguments as text: their servers may be away, and another mount may hide `old` by now.
    pub(crate) async fn unmount(
        &self,
        by: &AttachContext,
        new: Option<&str>,
        old: &str,
    ) -> Result<(), Error> {
        let covered = self.soon(2 * GREETING, self.covered(by, old, None, false)).await;
        let places = match new {
            None => Vec::new(),
            Some(new) => match self.soon(2 * GREETING, self.resolve(by, new)).await {
                Ok(pos) => vec![pos.step.covered.clone(), pos.place().clone()],
                Err(_) => Vec::new(),
            },
        };
        let missing = covered.as_ref().err().cloned();
        self.change(by, &[], |space| {
            let from = match covered.ok().filter(|place| space.head(place).is_some()) {
                Some(from) => vec![from],
                None => space.called(old),
            };
            if from.is_empty() {
                return Err(missing.unwrap_or_else(|| refused(Errno::EINVAL, "nothing is mounted there")));
            }
            let Some(new) = new else {
                return from.iter().try_for_each(|from| space.unmount(from).map_err(Error::Refused));
            };
            let members = from.iter().filter_map(|from| space.head(from)).flat_map(|head| &head.members);
            let named = members.filter(|m| &*m.what == new || places.contains(&m.to));
            match named.map(|member| member.id).max() {
                Some(id) if id > 0 => space.unmount_call(id).map_err(Error::Refused),
                _ => Err(refused(Errno::EINVAL, "that is not mounted there")),
            }
        })
    }

    /// Walks to a path and crosses the mount point there.
    pub(crate) async fn resolve(&self, by: &AttachContext, path: &str) -> Result<WalkPosition, Error> {
        let space = by.named.space();
        let names = names_of(path);
        let root = self.begin(&space, by).await?;
        self.walk_pos(&space, by, root, &names, LastNameRule::Crossed, |_| {})
            .await
            .map_err(|error| at_path(path, error))
    }

    /// Returns the root of a name space.
    pub(crate) async fn begin(
        &self,
        space: &NamespaceSnapshot,
        by: &AttachContext,
    ) -> Result<WalkPosition, Error> {
        let step = PathStep::root(space.root().clone());
        if let Some(head) = space.head(space.root()) {
            return self.cross(by, step, head.clone(), &mut WaitDeadline::default()).await;
        }
        let (root, file, raw) = self.enter_place(by, space.root()).await?;
        Ok(WalkPosition { step, crossed: None, away: None, root, file, raw })
    }

    /// Returns the place that a mount on `old` covers: the last name is not crossed if it is a mount point. With
    /// `make`, missing names are created, but only in the backbone and in other trees in memory.
    async fn covered(
        &self,
        by: &AttachContext,
        old: &str,
        is_dir: Option<bool>,
        make: bool,
    ) -> Result<TreePath, Error> {
        let space = by.named.space();
        let names = names_of(old);
        let Some((last, up)) = names.split_last() else {
            return match is_dir {
                Some(false) => Err(inconsistent()),
                _ => Ok(space.root().clone()),
            };
        };
        if names.contains(&&b".."[..]) {
            return Err(refused(Errno::EINVAL, "a mount point is named without \"..\""));
        }
        let mut pos = self.begin(&space, by).await?;
        for name in up {
            let next = self.step(&space, by, pos, name, LastNameRule::Crossed, make.then_some(true)).await;
            pos = next.map_err(|error| at_path(old, error))?;
        }
        let next = self
            .step(&space, by, pos, last, LastNameRule::Covered, make.then_some(is_dir != Some(false)))
            .await;
        let next = next.map_err(|error| at_path(old, error))?;
        if is_dir.is_some_and(|is_dir| is_dir != next.raw.is_dir()) {
            return Err(inconsistent());
        }
        Ok(next.step.covered.clone())
    }

    /// Walks one name of the path of a mount point. Creates a missing name in the backbone and in other trees in
    /// memory: a directory if `make` is `Some(true)`, a file if it is `Some(false)`.
    async fn step(
        &self,
        space: &NamespaceSnapshot,
        by: &AttachContext,
        pos: WalkPosition,
        name: &[u8],
        last: LastNameRule,
        make: Option<bool>,
    ) -> Result<WalkPosition, Error> {
        match self.walk_pos(space, by, pos.clone(), &[name], last, |_| {}).await {
            Err(error) if error.errno() == Errno::ENOENT && make.is_some() => {
                // The name may be there, and only the file that is bound on it be gone.
                let there =
                    self.walk_pos(space, by, pos.clone(), &[name], LastNameRule::Covered, |_| {}).await;
                if there.is_ok() {
                    return Err(error);
                }
                let dir = self.scratch(space, by, &pos).await?;
                let made = match make {
                    Some(false) => {
                        let flags = OpenFlags::READ | OpenFlags::EXCL;
                        dir.create(name, flags, 0o644, nine_proto::NOGID).await.map(drop)
                    }
                    _ => dir.mkdir(name, 0o755, nine_proto::NOGID).await.map(drop),
                };
                match made {
                    Err(error) if error.errno() != Errno::EEXIST => return Err(error),
                    _ => {}
                }
                self.walk_pos(space, by, pos, &[name], last, |_| {}).await
            }
            other => other,
        }
    }

    /// Returns the directory of a place in which missing mount points may be created.
    async fn scratch(
        &self,
        space: &NamespaceSnapshot,
        by: &AttachContext,
        pos: &WalkPosition,
    ) -> Result<Arc<File>, Error> {
        let server = |place: &TreePath| self.tree_of(place.tree).map(|tree| tree.upstream.server.clone());
        let is_scratch = |place: &TreePath| {
            place.tree == space.root().tree || server(place).is_some_and(|server| server.dial.is_scratch())
        };
        let places = pos.places();
        let Some(place) = places.iter().find(|place| is_scratch(place)) else {
            let name = server(pos.place()).map_or("?".into(), |server| server.name);
            let text = format!("it is not in {name}: make it there, or mount where a ram: is");
            return Err(Error::Remote(nine_proto::Error::new(Errno::ENOENT, text)));
        };
        if place == pos.place() {
            return Ok(pos.file.clone());
        }
        self.enter_place(by, place).await.map(|(_, file, _)| file)
    }

    /// Releases the trees that no name space shows any more.
    pub(crate) fn prune(&self) {
        let gone: Vec<_> = {
            let mut mounted = lock(&self.mounted);
            let shown: std::collections::HashSet<TreeId> =
                self.all_shown().iter().flat_map(|named| named.space().trees()).collect();
            let gone = mounted.keys().copied().filter(|id| !shown.contains(id)).collect::<Vec<_>>();
            gone.into_iter()
                .filter_map(|id| mounted.remove(&id))
                .inspect(|tree| tree.unmounted.store(true, Ordering::SeqCst))
                .collect()
        };
        for tree in gone {
            // The roots of the tree's own user refer to the tree. Only this breaks the cycle.
            let idents: Vec<_> = lock(&self.idents).values().filter_map(Weak::upgrade).collect();
            idents.iter().chain(&tree.user).for_each(|ident| ident.forget(tree.id));
            // Requests that wait for the server would wait in vain.
            tree.upstream.lanes().iter().for_each(|lane| lane.keeping.wake());
        }
    }

    /// Follows a rename of a file of an upstream: mounts in the file and binds of it move to the new name. Binds of a
    /// file that the rename replaced stay, and show the renamed file.
    pub(crate) fn moved(&self, old: &TreePath, new: &TreePath) {
        if old != new {
            self.follow(&[(old, new)]);
        }
    }

    /// Follows an exchange of two files of an upstream.
    pub(crate) fn exchanged(&self, this: &TreePath, that: &TreePath) {
        // A file name cannot contain NUL, so no file has this name.
        let aside = &this.parent().child(b"\0");
        self.follow(&[(that, aside), (this, that), (aside, this)]);
    }

    /// Follows several renames of one tree. No reader sees a part of them.
    fn follow(&self, renames: &[(&TreePath, &TreePath)]) {
        let number = renames[0].0.tree;
        if let Some(tree) = self.tree_of(number).filter(|tree| tree.wait.is_some()) {
            tree.moves.push(renames);
        }
        for named in self.all_shown() {
            if named.space().trees().contains(&number) {
                let moved = named.change(|space| {
                    let moved = renames.iter().filter(|(old, new)| space.moved(old, new)).count();
                    if moved > 0 { Ok(()) } else { Err(()) }
                });
                moved.iter().for_each(|()| named.heralds.changed());
            }
        }
    }
}

/// Whether a server is unreachable or does not answer.
pub(crate) fn is_away(error: &Error) -> bool {
    is_unreachable(error) || matches!(error, Error::Refused(error) if ABSENT.contains(&error.errno))
}

/// Whether a message could not be sent to a server, or the connection failed before the answer came.
fn is_unreachable(error: &Error) -> bool {
    matches!(error, Error::Transport { .. } | Error::Unsent { .. })
}

fn inconsistent() -> Error {
    refused(Errno::EINVAL, "inconsistent mount: both must be directories, or both files")
}

pub(crate) fn refused(errno: Errno, text: &str) -> Error {
    Error::Refused(nine_proto::Error::new(errno, text))
}

fn at_path(path: &str, error: Error) -> Error {
    match error {
        Error::Remote(error) => Error::Walk { path: path.into(), error },
        other => other,
    }
}

/// The numbers with which a request fails that has waited in vain for a server.
pub(crate) const ABSENT: [Errno; 7] = [
    Errno::ETIMEDOUT,
    Errno::ECONNREFUSED,
    Errno::ECONNRESET,
    Errno::ECONNABORTED,
    Errno::EHOSTUNREACH,
    Errno::ENETUNREACH,
    Errno::EPIPE,
];
/// Timeouts for Rflushes, in ticks.
const FLUSH_LIMITS: FlushLimits = FlushLimits { reads: 1, changes: 3, overdue: 10 };
/// Length of a tick.
const TICK: Duration = Duration::from_secs(1);
/// Maximum number of overdue Rflushes of an upstream connection. If there are more, it is aborted.
const QUARANTINE: usize = 64;

impl Drop for MuxCore {
    /// Breaks the cycle of roots and trees: a root refers to its tree, and a tree to the roots of its own user.
    fn drop(&mut self) {
        for tree in lock(&self.mounted).values() {
            tree.user.iter().for_each(|ident| ident.forget(tree.id));
        }
    }
}
