//! Walks the name space: the walk handler (section 4.1.2) and bindmount (section 4.1.3) of the seed.
//!
//! A walk proceeds in runs. A run is a sequence of names on one upstream that ends at the first mount point. At a
//! union, each member in order is asked for the first name of the run. The first one that has it serves the rest,
//! without backtracking (walk(5), and the walk of the kernel). ".." leads back lexically.
//!
//! Always holds: a partial walk leaves no fid. A walk reads the mount points once, when it starts.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nine_io::client::{Answer, Error, File};
use nine_io::limits::FairShare;
use nine_io::server::Later;
use nine_proto::msg::{MAXWELEM, Names, Tmsg};
use nine_proto::{Errno, GetMask, Op, Qid, Walked};

use crate::cfid::{AttachContext, AwayMount, ClientFid, MappedQid, PathStep, UpstreamFid};
use crate::core::{MuxCore, is_away};
use crate::fids::refusal;
use crate::keep::{ReconnectableFid, WaitDeadline, is_passing};
use crate::space::{MountPoint, NamespaceSnapshot, TreePath, push};
use crate::upstream::{GREETING, RETRY, TreeRoot, UpstreamServer};

/// Time that a walk which ends at a mount point, or a listing that contains one, waits for the server. After that the
/// covered file is shown.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// The treatment of the last name of a walk if it is a mount point.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum LastNameRule {
    /// Cross to the mounted file.
    Crossed,
    /// Cross, but do not wait for a server that is away: see [`WalkPosition::away`].
    Soon,
    /// Stop at the covered file.
    Covered,
}

/// The position of a walk.
#[derive(Clone)]
pub(crate) struct WalkPosition {
    pub(crate) step: Arc<PathStep>,
    pub(crate) crossed: Option<(Arc<MountPoint>, usize)>,
    /// The mount point, if its server is away. The position is then the covered file.
    pub(crate) away: Option<Arc<MountPoint>>,
    pub(crate) root: Arc<TreeRoot>,
    pub(crate) file: Arc<File>,
    /// The upstream's qid.
    pub(crate) raw: Qid,
}

/// The error that stopped a walk, and the qids of the names before it.
pub(crate) struct WalkError {
    walked: Vec<Qid>,
    pub(crate) error: Error,
}

impl WalkPosition {
    pub(crate) fn of(cfid: &ClientFid) -> Self {
        let UpstreamFid { root, file, raw } = UpstreamFid::clone(&cfid.live());
        let away = cfid.away().map(|away| away.head.clone());
        Self { step: cfid.step(), crossed: cfid.crossed(), away, root, file, raw }
    }

    /// Returns the place of the file in its upstream's tree.
    pub(crate) fn place(&self) -> &TreePath {
        match &self.crossed {
            Some((head, member)) => &head.members[*member].to,
            None => &self.step.covered,
        }
    }

    /// Returns the places of all members.
    pub(crate) fn places(&self) -> Vec<TreePath> {
        self.members().into_iter().map(|(place, _)| place).collect()
    }

    fn qid(&self, core: &MuxCore) -> Qid {
        core.qids.map(self.root.map(), self.raw)
    }

    /// Returns the places to walk from, and for each the index of its member.
    fn members(&self) -> Vec<(TreePath, Option<usize>)> {
        match &self.crossed {
            None => vec![(self.step.covered.clone(), None)],
            Some((head, _)) => {
                head.members.iter().enumerate().map(|(i, m)| (m.to.clone(), Some(i))).collect()
            }
        }
    }
}

impl MuxCore {
    /// Walks on from a fid. The result has no fid if only a part of the names was walked.
    pub(crate) async fn walk(
        &self,
        from: &ClientFid,
        names: &[&[u8]],
    ) -> Result<(Walked, Option<ClientFid>), Error> {
        let space = from.by.named.space();
        let mut walked = Walked::new();
        match self
            .walk_pos(&space, &from.by, WalkPosition::of(from), names, LastNameRule::Soon, |qid| {
                walked.push(qid)
            })
            .await
        {
            Ok(pos) => {
                // The new fid must not share the file of the walked fid or of the root.
                let is_own =
                    ![&from.live().file, &pos.root.file].iter().any(|file| Arc::ptr_eq(file, &pos.file));
                let pos = if is_own { pos } else { self.clone_pos(pos).await? };
                let made = self.cfid(&from.by, pos);
                match refusal(&made.share) {
                    None => Ok((walked, Some(made))),
                    Some(error) => Err(Error::Remote(error)),
                }
            }
            Err(error) if !walked.is_empty() && is_of_the_name(&error) => Ok((walked, None)),
            Err(error) => Err(error),
        }
    }

    /// Creates a client's fid for the end of a walk.
    pub(crate) fn cfid(&self, by: &Arc<AttachContext>, pos: WalkPosition) -> ClientFid {
        let share = pos.root.lane.fids.charge(&by.principal, 1);
        self.cfid_with(by, pos, share)
    }

    /// Creates a client's fid with an existing charge.
    pub(crate) fn cfid_with(
        &self,
        by: &Arc<AttachContext>,
        pos: WalkPosition,
        share: FairShare,
    ) -> ClientFid {
        let place = pos.place().clone();
        let WalkPosition { step, crossed, away, root, file, raw } = pos;
        let qid = MappedQid::new(&self.qids, &root, raw);
        let away = away.map(AwayMount::new);
        // The mounted file is on another server than the covered file.
        let kept = if away.is_none() { ReconnectableFid::of(&root, place) } else { None };
        let first = UpstreamFid { root, file, raw };
        let (open, ahead, direct) = (None, None, None);
        ClientFid { by: by.clone(), step, crossed, first, away, qid, open, kept, ahead, direct, share }
    }

    /// Walks. Calls `seen` with the qid, as clients see it, of each name walked.
    pub(crate) async fn walk_pos(
        &self,
        space: &NamespaceSnapshot,
        by: &AttachContext,
        mut pos: WalkPosition,
        names: &[&[u8]],
        last: LastNameRule,
        mut seen: impl FnMut(Qid),
    ) -> Result<WalkPosition, Error> {
        let (mut at, mut patience) = (0, WaitDeadline::default());
        while at < names.len() {
            if names[at] == b".." {
                pos = self.up(space, by, pos, &mut patience).await?;
                seen(pos.qid(self));
                at += 1;
                continue;
            }
            let run = &names[at..];
            let end = run.iter().position(|name| *name == b"..").unwrap_or(run.len());
            let last = if end == run.len() { last } else { LastNameRule::Crossed };
            let (next, n) = self.down((space, by), pos, &run[..end], last, &mut patience, &mut seen).await?;
            (pos, at) = (next, at + n);
        }
        Ok(pos)
    }

    /// Walks one run of names from the first member that has the first name. Returns the number of names. `last`
    /// applies if the last name is a mount point.
    async fn down(
        &self,
        (space, by): (&NamespaceSnapshot, &AttachContext),
        pos: WalkPosition,
        names: &[&[u8]],
        last: LastNameRule,
        patience: &mut WaitDeadline,
        seen: &mut impl FnMut(Qid),
    ) -> Result<(WalkPosition, usize), Error> {
        let mut failed: Option<Error> = None;
        for (place, member) in pos.members() {
            let here = match (&pos.crossed, member) {
                (Some((_, held)), Some(member)) if *held != member => {
                    match self.enter_patiently(by, &place, patience).await {
                        Ok((root, file, _)) => (root, file),
                        Err(error) => {
                            failed = Some(worse(failed, error));
                            continue;
                        }
                    }
                }
                _ => (pos.root.clone(), pos.file.clone()),
            };
            let (run, head) = run_of(space, &place, names);
            let last = if run == names.len() { last } else { LastNameRule::Crossed };
            let head = head.filter(|_| last != LastNameRule::Covered);
            match steps(&here.1, &names[..run]).await {
                Ok((file, qids)) => {
                    let raw = *qids.last().expect("a run has names");
                    let before = if head.is_some() { run - 1 } else { run };
                    for qid in &qids[..before] {
                        seen(self.qids.map(here.0.map(), *qid));
                    }
                    let mut step = pos.step.clone();
                    let mut covered = place;
                    for name in &names[..run] {
                        covered = covered.child(name);
                        step = PathStep::child(&step, covered.clone());
                    }
                    let file = Arc::new(file);
                    let mut next = WalkPosition { step, crossed: None, away: None, root: here.0, file, raw };
                    if let Some(head) = head {
                        next = match last {
                            LastNameRule::Soon => match Box::pin(self.look(by, &next.step, &head)).await? {
                                Some(pos) => pos,
                                None => WalkPosition { away: Some(head), ..next },
                            },
                            _ => self.cross(by, next.step, head, patience).await?,
                        };
                        seen(next.qid(self));
                    }
                    return Ok((next, run));
                }
                Err(WalkError { walked, error }) if walked.is_empty() => failed = Some(worse(failed, error)),
                Err(WalkError { walked, error }) => {
                    for qid in walked {
                        seen(self.qids.map(here.0.map(), qid));
                    }
                    return Err(error);
                }
            }
        }
        Err(failed.unwrap_or_else(not_found))
    }

    /// Walks to the directory from which this one was reached.
    async fn up(
        &self,
        space: &NamespaceSnapshot,
        by: &AttachContext,
        pos: WalkPosition,
        patience: &mut WaitDeadline,
    ) -> Result<WalkPosition, Error> {
        if !pos.raw.is_dir() {
            return Err(Error::Remote(Errno::ENOTDIR.into()));
        }
        let Some(parent) = pos.step.parent.clone() else {
            // The root is its own parent.
            return Ok(pos);
        };
        // No walk leads out of the directory that was attached to, even if it has been moved.
        let is_plain = pos.crossed.is_none()
            && parent.parent.is_some()
            && pos.step.covered == parent.covered.child(pos.step.name());
        match space.head(&parent.covered) {
            None if is_plain => {
                // The upstream knows the present parent, even if another client has renamed it.
                let (file, qids) = steps(&pos.file, &[b".."]).await.map_err(|stop| stop.error)?;
                let raw = qids.last().copied().unwrap_or_default();
                Ok(WalkPosition {
                    step: parent,
                    crossed: None,
                    away: None,
                    root: pos.root,
                    file: Arc::new(file),
                    raw,
                })
            }
            None => {
                let (root, file, raw) = self.enter_patiently(by, &parent.covered, patience).await?;
                Ok(WalkPosition { step: parent, crossed: None, away: None, root, file, raw })
            }
            Some(head) => self.cross(by, parent, head.clone(), patience).await,
        }
    }

    /// Crosses to the first reachable member of a mount point.
    pub(crate) async fn cross(
        &self,
        by: &AttachContext,
        step: Arc<PathStep>,
        head: Arc<MountPoint>,
        patience: &mut WaitDeadline,
    ) -> Result<WalkPosition, Error> {
        let mut failed = None;
        for (index, member) in head.members.iter().enumerate() {
            match self.enter_patiently(by, &member.to, patience).await {
                Ok((root, file, raw)) => {
                    return Ok(WalkPosition {
                        step,
                        crossed: Some((head, index)),
                        away: None,
                        root,
                        file,
                        raw,
                    });
                }
                Err(error) => failed = Some(worse(failed, error)),
            }
        }
        Err(failed.unwrap_or_else(not_found))
    }

    /// Crosses with a fid of its own, if the server answers within [`LOOK`]. `None` if it is away: then no other
    /// request waits for it here until it has answered again.
    pub(crate) async fn look(
        &self,
        by: &AttachContext,
        step: &Arc<PathStep>,
        head: &Arc<MountPoint>,
    ) -> Result<Option<WalkPosition>, Error> {
        let far = self.far(head);
        if let Some(upstream) = far.first().filter(|upstream| upstream.is_silent()) {
            self.look_again(upstream, by, step, head);
            return Ok(None);
        }
        let pos = match &*far {
            [] => Some(self.cross_over(by, step, head).await),
            _ => self.within(LOOK, self.cross_over(by, step, head)).await,
        };
        match pos {
            Some(Err(error)) if !is_away(&error) => Err(error),
            Some(Ok(pos)) => Ok(Some(pos)),
            None | Some(Err(_)) => {
                self.has_been_silent(head);
                Ok(None)
            }
        }
    }

    /// Marks the first remote server of a mount point as silent: it did not answer in time.
    pub(crate) fn has_been_silent(&self, head: &MountPoint) {
        self.far(head).first().inspect(|upstream| upstream.set_silent(true));
    }

    /// Returns the remote servers among those that are mounted at a place.
    fn far(&self, head: &MountPoint) -> Vec<Arc<UpstreamServer>> {
        let trees = head.members.iter().filter_map(|member| self.tree_of(member.to.tree));
        trees.map(|tree| tree.upstream.clone()).filter(|upstream| !upstream.server.local).collect()
    }

    async fn cross_over(
        &self,
        by: &AttachContext,
        step: &Arc<PathStep>,
        head: &Arc<MountPoint>,
    ) -> Result<WalkPosition, Error> {
        let pos = self.cross(by, step.clone(), head.clone(), &mut WaitDeadline::default()).await?;
        self.clone_pos(pos).await
    }

    /// Checks in the background whether a silent server answers again.
    pub(crate) fn look_again(
        &self,
        upstream: &Arc<UpstreamServer>,
        by: &AttachContext,
        step: &Arc<PathStep>,
        head: &Arc<MountPoint>,
    ) {
        if upstream.is_looked_at.swap(true, Ordering::Relaxed) {
            return;
        }
        let (core, outside, upstream) = (self.me.clone(), self.outside.clone(), Arc::downgrade(upstream));
        let (by, step, head) = (by.clone(), step.clone(), head.clone());
        self.jobs.begin(
            None,
            Box::pin(async move {
                let Some(core) = core.upgrade() else { return };
                let answers = async {
                    let pos = core.cross_over(&by, &step, &head).await?;
                    pos.file.getattr(GetMask::BASIC).await
                };
                let answers = matches!(core.within(2 * GREETING, answers).await, Some(Ok(_)));
                drop(core);
                if !answers {
                    outside.within(RETRY, pending::<()>()).await;
                }
                if let Some(upstream) = upstream.upgrade() {
                    if answers {
                        upstream.set_silent(false);
                    }
                    upstream.is_looked_at.store(false, Ordering::Relaxed);
                }
            }),
        );
    }

    /// Moves a fid to the mounted file if its server was away. Waits for the server as the mount requests.
    pub(crate) async fn arrive(&self, cfid: &ClientFid) -> Result<(), Error> {
        let Some(away) = cfid.away() else { return Ok(()) };
        let pos = self.cross_over(&cfid.by, &cfid.step, &away.head).await?;
        self.arrived(away, pos);
        Ok(())
    }

    /// Waits for the servers of a request's files, if they were away.
    pub(crate) async fn arrive_for(&self, req: &Later, cfid: &ClientFid) -> Result<(), Error> {
        match req.op() {
            // Another fid for the same file needs no server.
            Op::Walk { names } if names.iter().next().is_none() => return Ok(()),
            _ if cfid.away().is_some() => Box::pin(self.arrive(cfid)).await?,
            _ => {}
        }
        match req.node2::<ClientFid>() {
            Ok(other) if other.away().is_some() => Box::pin(self.arrive(&other)).await,
            _ => Ok(()),
        }
    }

    pub(crate) fn arrived(&self, away: &AwayMount, pos: WalkPosition) {
        let member = pos.crossed.map_or(0, |(_, member)| member);
        away.arrive(UpstreamFid { root: pos.root, file: pos.file, raw: pos.raw }, member);
    }

    /// Walks to a place from the root of its tree.
    pub(crate) async fn enter_place(
        &self,
        by: &AttachContext,
        place: &TreePath,
    ) -> Result<(Arc<TreeRoot>, Arc<File>, Qid), Error> {
        self.enter_patiently(by, place, &mut WaitDeadline::default()).await
    }

    /// Walks to a place with the deadline of earlier waits.
    pub(crate) async fn enter_patiently(
        &self,
        by: &AttachContext,
        place: &TreePath,
        patience: &mut WaitDeadline,
    ) -> Result<(Arc<TreeRoot>, Arc<File>, Qid), Error> {
        let root = self.root(by, place.tree, Some(patience)).await?;
        let (file, raw) = self.enter(&root, place).await?;
        Ok((root, file, raw))
    }

    /// Walks to a place from this root of its tree. The root itself yields the root's own file.
    pub(crate) async fn enter(&self, root: &TreeRoot, place: &TreePath) -> Result<(Arc<File>, Qid), Error> {
        let names = place.names();
        if names.is_empty() {
            return Ok((root.file.clone(), root.qid()));
        }
        let (first, rest) = names.split_at(names.len().min(MAXWELEM));
        let (mut file, mut qids) = steps(&root.file, first).await.map_err(|stop| stop.error)?;
        for run in rest.chunks(MAXWELEM) {
            (file, qids) = steps(&file, run).await.map_err(|stop| stop.error)?;
        }
        let raw = qids.last().copied().unwrap_or_default();
        Ok((Arc::new(file), raw))
    }

    /// Creates another fid for the same file: a root's own fid must not be opened or clunked.
    pub(crate) async fn clone_pos(&self, pos: WalkPosition) -> Result<WalkPosition, Error> {
        let (file, _) = steps(&pos.file, &[]).await.map_err(|stop| stop.error)?;
        Ok(WalkPosition { file: Arc::new(file), ..pos })
    }
}

/// Returns the number of names that lead to one upstream, and the mount point at which they end.
pub(crate) fn run_of(
    space: &NamespaceSnapshot,
    from: &TreePath,
    names: &[&[u8]],
) -> (usize, Option<Arc<MountPoint>>) {
    let most = names.len().min(MAXWELEM);
    if !space.is_covered(from.tree) {
        return (most, None);
    }
    let mut path = from.path.to_vec();
    for (i, name) in names[..most].iter().enumerate() {
        push(&mut path, name);
        if let Some(head) = space.head_at(from.tree, &path) {
            return (i + 1, Some(head.clone()));
        }
    }
    (most, None)
}

/// Sends one Twalk. A partial walk is an error.
pub(crate) async fn steps(from: &File, names: &[&[u8]]) -> Result<(File, Vec<Qid>), WalkError> {
    let stop = |error| WalkError { walked: Vec::new(), error };
    let client = from.client();
    let newfid = client.new_fid().map_err(stop)?;
    let walk = Tmsg::Walk { fid: from.fid(), newfid, names: Names::Slice(names) };
    match client.ask(walk).await.map_err(stop)? {
        Answer::Walk(qids) if qids.len() == names.len() => {
            let qid = qids.last().copied().unwrap_or(from.qid());
            Ok((client.adopt(newfid, qid), qids))
        }
        Answer::Walk(walked) => {
            let past_a_file = walked.last().is_some_and(|qid| !qid.is_dir());
            let error = match past_a_file {
                true => Error::Remote(Errno::ENOTDIR.into()),
                false => reason(from, names, walked.len()).await,
            };
            Err(WalkError { walked, error })
        }
        _ => Err(stop(Error::Remote(Errno::EPROTO.into()))),
    }
}

/// Returns the error at which a walk stopped after `walked` names. A short Rwalk has no error (walk(5)), so
/// [`File::walk`] asks again.
async fn reason(from: &File, names: &[&[u8]], walked: usize) -> Error {
    match from.walk(names[..names.len().min(walked + 1)].join(&b'/')).await {
        Err(Error::Walk { error, .. }) => Error::Remote(error),
        Err(error) => error,
        // The file exists now, but did not when the walk reached it.
        Ok(_) => not_found(),
    }
}

/// Whether a stopped walk may return only the names it walked: the client takes that to mean that the next name does
/// not exist. That would be false if the server is gone or has no fid left, or if the walk was flushed.
fn is_of_the_name(error: &Error) -> bool {
    let (Error::Remote(error) | Error::Walk { error, .. }) = error else { return false };
    error.errno != Errno::ELOOP && !is_passing(error.errno)
}

/// Selects the error of several members for a client: "does not exist" only if all of them report it.
fn worse(before: Option<Error>, error: Error) -> Error {
    match before {
        Some(before) if before.errno() != Errno::ENOENT || error.errno() == Errno::ENOENT => before,
        _ => error,
    }
}

fn not_found() -> Error {
    Error::Remote(Errno::ENOENT.into())
}
