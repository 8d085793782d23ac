//! The mux as a file server: routes each request (seed: section 4.1.2).
//!
//! There are three routes. A request is answered at once. Or it is passed on as one message, and the reply comes back
//! through [`Forward`], without a task or a future. Or it takes several steps, as a job.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::lock::Mutex as AsyncMutex;
use nine_io::changes::{Path, Tap};
use nine_io::client::{Answer as Got, Error as Failed, File, Forward, heed};
use nine_io::limits::ClientPrincipal;
use nine_io::server::{Answer, FileServer, Later, Node, Passage, Reply, Req, ReqId, Request, StreamRequest};
use nine_io::{Called, Direct, Payload};
use nine_net::lock::lock;
use nine_proto::{
    Attr, Dialect, DirBuf, Dirent, Entries, Errno, Error, Fid, GetMask, LockStatus, Make, NOFID, Names, Op,
    OpenFlags, Qid, RenameMode, Result, SetAttr, Texts, Walked,
};

use crate::Mux;
use crate::ahead::FidReadAhead;
use crate::auth::ClientAfid;
use crate::cfid::{AttachContext, ClientFid, MappedQid, OpenFidKind, PathStep, UpstreamFid};
use crate::core::{MuxCore, is_away, refused};
use crate::fids::refusal;
use crate::keep::{LISTED, ReconnectableFid, SHORT, WaitDeadline};
use crate::message::{data, message, newfid};
use crate::named::NamedSpace;
use crate::space::TreePath;
use crate::stream;
use crate::translate::follows;
use crate::union::UnionListing;
use crate::upstream::{TreeRoot, UserStanding};
use crate::walk::{LOOK, WalkPosition, run_of};

/// The route of a request.
pub(crate) enum RequestRoute {
    Done,
    Refused(Error),
    Forward(ForwardedMessage),
    Job,
    /// A job that starts when both of its files have a connection again.
    Later,
}

/// A request that is passed on as one message.
pub(crate) struct ForwardedMessage {
    pub(crate) cfid: Arc<ClientFid>,
    /// The upstream's fid that represents it now, unless it is the first one.
    later: Option<Arc<UpstreamFid>>,
    /// The second fid.
    other: Option<Fid>,
}

impl ForwardedMessage {
    pub(crate) fn live(&self) -> &UpstreamFid {
        self.later.as_deref().unwrap_or(&self.cfid.first)
    }
}

impl FileServer for Mux {
    fn serve(&self, mut req: Req) -> Answer {
        let way = self.0.way(&req);
        if !matches!(&way, RequestRoute::Forward(passed) if passed.cfid.direct.is_some() && passed.cfid.ahead.is_none())
        {
            req.gather();
        }
        match way {
            RequestRoute::Done => req.now(Ok(Reply::Done)),
            RequestRoute::Refused(error) => req.now(Err(error)),
            RequestRoute::Forward(passed) if passed.cfid.ahead.is_some() => self.0.forward_ahead(req, passed),
            RequestRoute::Forward(passed) if passed.cfid.direct.is_some() => self.0.call(req, &passed),
            RequestRoute::Forward(passed) => self.0.forward(req, &passed),
            RequestRoute::Job | RequestRoute::Later => self.0.job(req),
        }
    }

    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        self.0.flushed();
        if self.0.jobs.cancel(id) {
            return;
        }
        if let Some(cfid) = node.and_then(|node| node.downcast_ref::<ClientFid>())
            && !cfid.live().root.client.flush_forwarded(id)
            && cfid.kept.is_some()
        {
            self.0.cancel_soon(id);
        }
    }

    fn names(&self) -> Arc<dyn Names> {
        self.0.names.clone()
    }

    fn changes(&self, walk: &Request) -> Option<Result<Tap>> {
        Some(self.0.tap(&*walk.node::<ClientFid>().ok()?))
    }

    /// A file that is neither read ahead, reconnectable nor in append mode can be called directly.
    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let cfid = node.downcast_ref::<ClientFid>()?;
        let is_plain = cfid.ahead.is_none() && cfid.kept.is_none() && !flags.has(OpenFlags::APPEND);
        cfid.direct.clone().filter(|_| is_plain)
    }

    fn takes_placed(&self, node: &Node) -> bool {
        // Placed data that is not written at once is gathered then: jobs and upstreams see only the gathered copy.
        node.downcast_ref::<ClientFid>().is_some_and(|cfid| cfid.direct.is_some() && cfid.ahead.is_none())
    }

    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        stream::passage(&request)
    }
}

impl MuxCore {
    pub(crate) fn way(&self, req: &Request) -> RequestRoute {
        let op = req.op();
        match op {
            Op::Auth { .. } | Op::Attach { .. } => return RequestRoute::Job,
            _ => {}
        }
        // All other nodes are afids.
        let Ok(cfid) = req.node::<ClientFid>() else { return RequestRoute::Job };
        if let Some(error) = self.forbids(&op, &cfid, req) {
            return RequestRoute::Refused(error);
        }
        if let Op::Clunk = op
            && req.is_silent()
        {
            // No client waits for the reply: dropping the file clunks it.
            return RequestRoute::Done;
        }
        let target = req.node2::<ClientFid>();
        let is_away = cfid.away().is_some() || target.as_ref().is_ok_and(|target| target.away().is_some());
        if is_away && !matches!(op, Op::Clunk) {
            return RequestRoute::Job;
        }
        let takes_target = target.as_ref().is_ok_and(|target| {
            let (Op::Rename { name } | Op::RenameAt { new: name, .. }) = op else { return target.is_union() };
            target.is_union() || self.is_bound(&cfid, &target.place().child(name))
        });
        let live = cfid.live();
        let other = match target.as_ref().map(|other| other.live()) {
            Ok(other) if Arc::ptr_eq(&other.root.client, &live.root.client) => Some(other.file.fid()),
            Ok(other) if cfid.kept.is_some() && Arc::ptr_eq(&other.root.lane, &live.root.lane) => {
                return RequestRoute::Later;
            }
            // The destination may be in another member, on another server.
            Ok(_) if takes_target => None,
            Ok(_) => {
                return RequestRoute::Refused(Error::new(Errno::EXDEV, "the files are on different servers"));
            }
            Err(_) => None,
        };
        // Every dialect has a message for these.
        let everywhere = matches!(
            op,
            Op::Walk { .. }
                | Op::Read { .. }
                | Op::Write { .. }
                | Op::Getattr { .. }
                | Op::Remove
                | Op::Clunk
        );
        let has_message = || everywhere || message(req, &live, other, NOFID).is_some();
        if self.is_simple(&op, &cfid, &live, req.dialect()) && !takes_target && has_message() {
            let later = live.later();
            return RequestRoute::Forward(ForwardedMessage { cfid, later, other });
        }
        match op {
            // Only the fid ends, and dropping the file clunks it.
            Op::Clunk => RequestRoute::Done,
            _ => RequestRoute::Job,
        }
    }

    /// Returns the error for a request that would harm a mount point, that exceeds the client's fids, or that not every
    /// upstream checks.
    fn forbids(&self, op: &Op<'_>, cfid: &ClientFid, req: &Request) -> Option<Error> {
        let busy = |place: &TreePath| {
            let space = cfid.by.named.space();
            let head = space.within(place)?;
            let what = if head.from == *place { "is a mount point" } else { "has a mount point below it" };
            Some(Error::new(Errno::EBUSY, what))
        };
        // A rename may replace a file on which a file is bound: see `target`.
        let busy_target = |place: &TreePath| busy(place).filter(|_| !self.is_bound(cfid, place));
        match op {
            Op::Open { flags } if flags.has(OpenFlags::DIRECTORY) && !cfid.is_dir() => {
                Some(Errno::ENOTDIR.into())
            }
            Op::Walk { .. } | Op::XattrWalk { .. } => refusal(&cfid.share),
            Op::Remove => busy(&cfid.step().covered),
            Op::Rename { name } => {
                let to = req.node2::<ClientFid>().ok()?;
                busy(&cfid.step().covered).or_else(|| busy_target(&to.place().child(name)))
            }
            Op::Setattr { set: SetAttr { name: Some(name), .. } } => {
                let here = &cfid.step().covered;
                busy(here).or_else(|| busy(&here.parent().child(name)))
            }
            // In a union only the walk shows which member has the name: see `unlink`.
            Op::Unlink { name, .. } if !cfid.is_union() => busy(&cfid.place().child(name)),
            // The same here: see `rename_at`.
            Op::RenameAt { old, new, how } if !cfid.is_union() => {
                let to = req.node2::<ClientFid>().ok()?;
                let target = || busy_target(&to.place().child(new)).filter(|_| *how == RenameMode::Replace);
                busy(&cfid.place().child(old)).or_else(target)
            }
            _ => None,
        }
    }

    /// Whether exactly one file is mounted or bound there.
    fn is_bound(&self, cfid: &ClientFid, place: &TreePath) -> bool {
        cfid.by.named.space().head(place).is_some_and(|head| head.members.len() == 1)
    }

    /// Whether one message to one upstream serves the request.
    fn is_simple(&self, op: &Op<'_>, cfid: &ClientFid, live: &UpstreamFid, spoken: Dialect) -> bool {
        let dialect = live.root.client.dialect();
        match op {
            Op::Walk { names } => {
                let space = cfid.by.named.space();
                let list: Vec<&[u8]> = names.iter().collect();
                !cfid.is_union()
                    && !list.iter().any(|name| matches!(*name, b"..") || name.starts_with(b"#"))
                    && run_of(&space, &cfid.place(), &list).1.is_none()
            }
            Op::Open { .. } if cfid.is_dir() => {
                let is_l = spoken.is_l() && dialect.is_l();
                let covered = cfid.by.named.space().covered_names(&cfid.place()).next().is_some();
                is_l && !cfid.is_union() && !covered
            }
            Op::Open { flags } if flags.has(OpenFlags::TRUNC) && !live.root.client.heeds_truncation() => {
                false
            }
            // With equal servers, the attributes at the open must be recorded.
            Op::Open { .. } => cfid.kept.is_none() || live.root.tree.upstream.server.others.is_empty(),
            // A possible loss of written data must be reported once.
            Op::Fsync { .. } => cfid.kept.is_none() && (spoken.is_l() || cfid.open.is_some()),
            Op::Write { .. } => !follows(cfid, live),
            // The new name must not exist in another member.
            Op::Setattr { set } if set.name.is_some() => self.union_above(cfid).is_none(),
            Op::Readdir { .. } => matches!(cfid.open, Some(OpenFidKind::There(_))),
            // A job checks whether the server has a message for the other modes.
            Op::RenameAt { how, .. } => !cfid.is_union() && *how == RenameMode::Replace,
            Op::Create { .. } | Op::Make { .. } | Op::Unlink { .. } => !cfid.is_union(),
            // The clunk stores an extended attribute, and may report a failed write.
            Op::Clunk => cfid.open.is_some(),
            // A client that lists a directory with a mount point must not wait for its server: see `mount_attr`,
            // `shown_attr`.
            Op::Getattr { .. } if cfid.is_union() => false,
            Op::Getattr { .. } if cfid.is_mount() && !live.root.tree.upstream.server.local => false,
            Op::Getattr { mask } => {
                let wants_target = mask.has(GetMask::TEXTS) && dialect.is_l();
                !(wants_target && live.raw.is_symlink())
            }
            _ => true,
        }
    }

    /// Serves a read or write of an open file of this process at once, if it need not wait.
    fn call(&self, mut req: Req, passed: &ForwardedMessage) -> Answer {
        let direct = passed.cfid.direct.as_ref().expect("who calls has looked");
        let done = match req.op() {
            _ if req.was_called() => None,
            Op::Read { offset, .. } => match direct.read(None, offset, req.count()) {
                Called::Done(read) => Some(read.map(Reply::Read)),
                _ => None,
            },
            Op::Write { offset, .. } => match req.payload().map(|data| direct.write_now(offset, &data)) {
                Some(Called::Done(wrote)) => Some(wrote.map(|n| Reply::Wrote(n as u32))),
                _ => None,
            },
            _ => None,
        };
        if let Some(done) = done {
            self.counts.forwarded.fetch_add(1, Ordering::Relaxed);
            return req.now(done);
        }
        req.gather();
        self.forward(req, passed)
    }

    pub(crate) fn forward(&self, req: Req, passed: &ForwardedMessage) -> Answer {
        let live = passed.live();
        let client = &live.root.client;
        let op = req.op();
        let newfid = match newfid(&op, client) {
            Ok(newfid) => newfid,
            Err(error) => return req.now(Err(error.into_reply())),
        };
        if matches!(op, Op::Remove | Op::Clunk) {
            live.file.leave();
        }
        self.counts.forwarded.fetch_add(1, Ordering::Relaxed);
        let (answer, later) = req.later();
        client.forward(later, live.root.clone(), |request| {
            message(request, live, passed.other, newfid).expect("the same request had a message before")
        });
        answer
    }

    /// Cancels a request that another core is about to make a job of.
    fn cancel_soon(&self, id: ReqId) {
        if self.outside.seats().is_empty() {
            return;
        }
        let (jobs, outside) = (Arc::downgrade(&self.jobs), self.outside.clone());
        let wish = async move {
            for _ in 0..CANCEL_TRIES_MAX {
                if jobs.upgrade().is_none_or(|jobs| jobs.cancel(id)) {
                    return;
                }
                outside.within(SHORT, pending::<()>()).await;
            }
        };
        self.jobs.begin(None, Box::pin(wish));
    }

    fn job(&self, req: Req) -> Answer {
        self.counts.jobs.fetch_add(1, Ordering::Relaxed);
        let (id, core) = (req.id(), self.arc());
        let (answer, later) = req.later();
        let job = async move {
            let result = match later.node::<ClientFid>() {
                Ok(cfid) if cfid.is_mount() && matches!(later.op(), Op::Getattr { .. }) => {
                    // Boxed, here and below: otherwise every job would be as large as the largest.
                    Box::pin(core.shown_attr(&later, &cfid)).await
                }
                Ok(cfid) => match core.arrive_for(&later, &cfid).await {
                    Ok(()) => core.patiently(&later).await,
                    Err(error) => Err(error),
                },
                _ => core.patiently(&later).await,
            };
            core.changed(&later, result.as_ref().ok());
            later.respond(result.map_err(Failed::into_reply));
        };
        self.jobs.begin(Some(id), Box::pin(job));
        answer
    }

    /// Serves a request of several steps, and repeats it after a reconnection.
    async fn patiently(&self, req: &Later) -> Result<Reply, Failed> {
        if req.node::<ClientFid>().is_ok_and(|cfid| cfid.kept.is_some()) {
            return self.persist(req, None).await;
        }
        let way = match self.way(req) {
            RequestRoute::Forward(passed) => RequestRoute::Forward(passed),
            _ => RequestRoute::Job,
        };
        match self.once(req, way).await {
            Err(error) if self.keeps(&error) => self.persist(req, Some(error)).await,
            result => result,
        }
    }

    /// Returns the attributes of a mount point: after [`LOOK`] those of the covered file, without links.
    pub(crate) async fn mount_attr(&self, req: &Later, cfid: &Arc<ClientFid>) -> Result<Reply, Failed> {
        let Op::Getattr { mask } = req.op() else { return Err(Failed::Remote(Errno::EIO.into())) };
        if let Some(away) = cfid.away()
            && let Some(pos) = self.look(&cfid.by, &cfid.step, &away.head).await?
        {
            self.arrived(away, pos);
        }
        if cfid.away().is_none() {
            let upstream = cfid.live().root.tree.upstream.clone();
            if !upstream.is_silent() {
                match self.within(LOOK, Box::pin(self.attr_there(cfid, mask))).await {
                    Some(Err(error)) if is_away(&error) || error.is_disconnect() => {}
                    Some(attr) => return Ok(Reply::Attr(attr?)),
                    None => {}
                }
                upstream.set_silent(!upstream.server.local);
            }
            if let Some((head, _)) = cfid.crossed() {
                self.look_again(&upstream, &cfid.by, &cfid.step, &head);
            }
        }
        let covered = async {
            let (_, file, _) = self.enter_place(&cfid.by, &cfid.step.covered).await?;
            file.getattr(mask).await
        };
        let late = || Err(refused(Errno::ETIMEDOUT, "its server does not answer"));
        let attr = self.within(LOOK, covered).await.unwrap_or_else(late)?;
        let qid = cfid.qid.qid;
        let mut attr = self.attr(cfid, Box::new(attr), mask);
        (attr.qid, attr.nlink) = (qid, 0);
        Ok(Reply::Attr(attr))
    }

    /// Returns the attributes of the file mounted at a mount point. Reconnects if the mount does (`-r`).
    async fn attr_there(&self, cfid: &Arc<ClientFid>, mask: GetMask) -> Result<Box<Attr>, Failed> {
        let mut patience = WaitDeadline::default();
        loop {
            self.revive(cfid, Some(&mut patience)).await?;
            let live = UpstreamFid::clone(&cfid.live());
            match live.file.getattr(mask).await {
                Err(error) if error.is_disconnect() && cfid.kept.is_some() => {}
                attr => return Ok(self.attr(cfid, Box::new(attr?), mask)),
            }
        }
    }

    /// Serves a request as a job after its connection has ended. `lost` is the error if the request was sent.
    fn later(self: Arc<Self>, later: Later, lost: Option<Failed>) {
        let core = self.clone();
        let id = later.id();
        let job = async move {
            let result = core.persist(&later, lost).await;
            core.changed(&later, result.as_ref().ok());
            later.respond(result.map_err(Failed::into_reply));
        };
        self.jobs.begin(Some(id), Box::pin(job));
    }

    /// Serves a request once, on the present connections of its fids.
    pub(crate) async fn once(&self, req: &Later, way: RequestRoute) -> Result<Reply, Failed> {
        match way {
            RequestRoute::Done => Ok(Reply::Done),
            RequestRoute::Refused(error) => Err(Failed::Remote(error)),
            RequestRoute::Forward(passed) => {
                let reply = self.asked(req, &passed).await?;
                self.learn_birth(&reply);
                self.record_change(req, &passed.cfid, &passed.live().root, &reply);
                Ok(reply)
            }
            RequestRoute::Job | RequestRoute::Later => self.recorded_steps(req).await,
        }
    }

    /// Serves a request of several steps and records its changes.
    async fn recorded_steps(&self, req: &Later) -> Result<Reply, Failed> {
        let begun = req.node::<ClientFid>().ok().map(|cfid| (cfid.live().root.clone(), cfid));
        // Report an unsent message as sent: earlier steps of the request may have been sent.
        let reply = self.steps(req).await.map_err(Failed::sent)?;
        self.learn_birth(&reply);
        begun.iter().for_each(|(root, cfid)| self.record_change(req, cfid, root, &reply));
        Ok(reply)
    }

    /// Sends the request as one message and waits for the reply.
    pub(crate) async fn asked(&self, req: &Later, passed: &ForwardedMessage) -> Result<Reply, Failed> {
        let live = passed.live();
        let client = &live.root.client;
        let newfid = newfid(&req.op(), client)?;
        let (message, payload) =
            message(req, live, passed.other, newfid).expect("the same request had a message before");
        if matches!(req.op(), Op::Remove | Op::Clunk) {
            live.file.leave();
        }
        let got = client.ask_with(message, payload).await?;
        let is_whole = match (req.op(), &got) {
            (Op::Walk { names }, Got::Walk(qids)) => qids.len() == names.iter().count(),
            _ => true,
        };
        let made = Some(newfid).filter(|newfid| *newfid != NOFID && is_whole);
        self.reply(req, &passed.cfid, &live.root, got, made).map_err(Failed::Remote)
    }

    pub(crate) fn arc(&self) -> Arc<Self> {
        self.me.upgrade().expect("whoever calls it holds one")
    }

    /// Serves a request of several steps.
    async fn steps(&self, req: &Later) -> Result<Reply, Failed> {
        let op = req.op();
        match op {
            Op::Auth { .. } => return self.auth(req).await,
            Op::Attach { aname, .. } => return self.attach(req, aname).await,
            _ => {}
        }
        if let Ok(afid) = req.node::<ClientAfid>() {
            return self.prove(&afid, req).await;
        }
        let cfid = req.node::<ClientFid>().map_err(Failed::Remote)?;
        match op {
            Op::Walk { names } => {
                let names: Vec<&[u8]> = names.iter().collect();
                if let Some(hops) = cfid.hops(&names) {
                    return self.hop(&cfid, hops?).await;
                }
                let (qids, made) = self.walk(&cfid, &names).await?;
                Ok(Reply::Walk { qids, node: made.map(|made| node(made) as Node) })
            }
            Op::Open { flags }
                if cfid.is_dir() && !self.is_simple(&op, &cfid, &cfid.live(), req.dialect()) =>
            {
                self.open_dir(&cfid, flags).await
            }
            Op::Open { flags } => self.open_seen(req, &cfid, flags).await,
            Op::Readdir { cookie } => {
                let mut buf = req.dir_buf(self.names.clone());
                let Some(OpenFidKind::Here(listing)) = &cfid.open else {
                    return Err(Failed::Remote(Errno::EBADF.into()));
                };
                heed(listing.lock()).await?.read(self, &cfid, cookie, &mut buf).await?;
                Ok(Reply::Dir(buf))
            }
            Op::Create { name, make, flags, perm, gid } => {
                let made = self.create(&cfid, name, make, flags, perm, gid, req).await?;
                let iounit = made.first.file.iounit();
                Ok(Reply::Open { qid: made.qid.qid, iounit, node: node(made) })
            }
            Op::Make { name, make, perm, gid } => {
                if self.in_union(&cfid, name).await?.is_some() {
                    return Err(Failed::Remote(Errno::EEXIST.into()));
                }
                let dir = self.creating(&cfid).await?;
                Ok(Reply::Made(self.make(&dir, name, make, perm, gid, req).await?))
            }
            Op::Unlink { name, dir } => self.unlink(&cfid, name, dir).await,
            other => self.translate(&cfid, other, req).await,
        }
    }

    /// Attaches a client to the root of the name space that its aname or user name selects.
    async fn attach(&self, req: &Later, aname: &[u8]) -> Result<Reply, Failed> {
        let who = req.who();
        let (named, path) = self.aname(aname, &who.name, who.owner)?;
        let ident = match req.node2::<ClientAfid>() {
            Ok(afid) => self.proven(req, &afid).await?,
            Err(_) => self.ident(&who.name, who.uid, UserStanding::of(who), who.read_only),
        };
        let (client, base) = (self.outside.number(req.id().conn, who), base_of(path));
        let principal = ClientPrincipal::of(who);
        let unreached = None;
        let by = Arc::new(AttachContext { named, ident, hops: 0, client, principal, base, unreached });
        let pos = self.clone_pos(self.resolve(&by, path).await?).await?;
        // The attached directory is the root: no path leads out of it.
        let step = PathStep::root(pos.step.covered.clone());
        let cfid = self.cfid(&by, WalkPosition { step, ..pos });
        Ok(Reply::Attach { qid: cfid.qid.qid, node: node(cfid) })
    }

    /// Returns the same root, for requests that have passed `hops` muxes.
    async fn hop(&self, from: &ClientFid, hops: u8) -> Result<Reply, Failed> {
        let by = Arc::new(AttachContext { hops, ..AttachContext::clone(&from.by) });
        let (space, step) = (by.named.space(), from.step.clone());
        let pos = match space.head(&step.covered) {
            Some(head) => self.cross(&by, step, head.clone(), &mut WaitDeadline::default()).await?,
            None => {
                let (root, file, raw) = self.enter_place(&by, &step.covered).await?;
                WalkPosition { step, crossed: None, away: None, root, file, raw }
            }
        };
        let cfid = self.cfid(&by, self.clone_pos(pos).await?);
        let mut qids = Walked::new();
        qids.push(cfid.qid.qid);
        Ok(Reply::Walk { qids, node: Some(node(cfid)) })
    }

    /// Opens a directory that the mux lists itself.
    async fn open_dir(&self, cfid: &Arc<ClientFid>, flags: OpenFlags) -> Result<Reply, Failed> {
        if flags.changes() {
            return Err(refused(Errno::EISDIR, "is a directory"));
        }
        let listing = Box::new(AsyncMutex::new(UnionListing::open(self, cfid).await?));
        let open = self.opened(cfid, cfid.live().raw, OpenFidKind::Here(listing));
        Ok(Reply::Open { qid: open.qid.qid, iounit: 0, node: node(open) })
    }

    /// Returns the fid after its open, possibly for another file (a clone file).
    fn opened(&self, cfid: &ClientFid, raw: Qid, open: OpenFidKind) -> ClientFid {
        let UpstreamFid { root, file, raw: before } = UpstreamFid::clone(&cfid.live());
        let kept = ReconnectableFid::of(&root, cfid.place());
        if let (Some(new), Some(old), true) = (&kept, &cfid.kept, raw.path == before.path) {
            new.same_birth(old);
        }
        ClientFid {
            by: cfid.by.clone(),
            step: cfid.step(),
            crossed: cfid.crossed(),
            qid: MappedQid::new(&self.qids, &root, raw),
            share: cfid.share.charge_another(),
            kept,
            away: None,
            first: UpstreamFid { root, file, raw },
            open: Some(open),
            ahead: None,
            direct: None,
        }
    }

    /// Opens a file whose server may ignore O_TRUNC, or which may be reopened on an equal server.
    async fn open_seen(&self, req: &Later, cfid: &Arc<ClientFid>, flags: OpenFlags) -> Result<Reply, Failed> {
        let file = cfid.live().file.clone();
        let before = file.before_truncation(b"", flags).await;
        let passed = ForwardedMessage { cfid: cfid.clone(), later: cfid.live().later(), other: None };
        let reply = self.asked(req, &passed).await?;
        let Reply::Open { node, .. } = &reply else { return Ok(reply) };
        let Some(open) = node.downcast_ref::<ClientFid>() else { return Ok(reply) };
        let live = UpstreamFid::clone(&open.live());
        live.file.truncated(before).await?;
        if let Some(kept) = open.kept.as_ref().filter(|_| !live.root.tree.upstream.server.others.is_empty()) {
            // The file is open even if this fails. Without the attributes it cannot be reopened on an equal server.
            if let Ok(attr) = live.file.getattr(GetMask::BASIC).await {
                kept.see(&attr);
            }
        }
        Ok(reply)
    }

    /// Returns the directory in which new files are created: the fid's own, or the member of a union that permits it.
    pub(crate) async fn creating(&self, cfid: &ClientFid) -> Result<WalkPosition, Failed> {
        let Some((head, held)) = cfid.crossed().filter(|_| cfid.is_union()) else {
            return Ok(WalkPosition::of(cfid));
        };
        let Some(index) = head.creates() else {
            return Err(refused(Errno::EPERM, "mounted directory forbids creation"));
        };
        if index == held {
            return Ok(WalkPosition::of(cfid));
        }
        let (root, file, raw) = self.enter_place(&cfid.by, &head.members[index].to).await?;
        let crossed = Some((head.clone(), index));
        Ok(WalkPosition { step: cfid.step(), crossed, away: None, root, file, raw })
    }

    /// Removes a name from the first member that has it.
    async fn unlink(&self, cfid: &Arc<ClientFid>, name: &[u8], dir: bool) -> Result<Reply, Failed> {
        let space = cfid.by.named.space();
        let last = crate::walk::LastNameRule::Covered;
        let pos = self.walk_pos(&space, &cfid.by, WalkPosition::of(cfid), &[name], last, |_| {}).await?;
        if space.within(&pos.step.covered).is_some() {
            return Err(refused(Errno::EBUSY, "is a mount point, or has one below it"));
        }
        match (pos.raw.is_dir(), dir) {
            (true, false) => return Err(refused(Errno::EISDIR, "is a directory")),
            (false, true) => return Err(refused(Errno::ENOTDIR, "not a directory")),
            _ => {}
        }
        match Arc::try_unwrap(pos.file) {
            Ok(file) => file.remove().await?,
            Err(_) => return Err(Failed::Remote(Errno::EIO.into())),
        }
        Ok(Reply::Done)
    }

    /// Returns the name space that an aname selects and the path in it: `NAME`, `NAME/PATH` or `/PATH`.
    pub(crate) fn aname<'a>(
        &self,
        aname: &'a [u8],
        user: &str,
        is_owner: bool,
    ) -> Result<(Arc<NamedSpace>, &'a str), Failed> {
        let aname = std::str::from_utf8(aname).map_err(|_| Failed::Remote(Errno::ENOENT.into()))?;
        let (name, path) = match aname.trim_start_matches('/') {
            whole if aname.starts_with('/') => ("", whole),
            whole => whole.split_once('/').unwrap_or((whole, "")),
        };
        Ok((self.choose(name, user, is_owner)?, path))
    }

    /// Returns the name space of this name, or the user's default if the name is empty.
    fn choose(&self, name: &str, user: &str, is_owner: bool) -> Result<Arc<NamedSpace>, Failed> {
        let all = self.all_named();
        let is_for = |named: &&Arc<NamedSpace>| lock(&named.users).iter().any(|of| **of == *user);
        let found = match name {
            "" => all.iter().find(is_for).or_else(|| all.iter().find(|named| &*named.name == crate::MAIN)),
            name => all.iter().find(|named| *named.name == *name),
        };
        let found = found.ok_or_else(|| refused(Errno::ENOENT, "no such name space"))?;
        let for_owner = found.for_owner.load(Ordering::Relaxed);
        if !lock(&found.users).is_empty() && !is_for(&found) || for_owner && !is_owner {
            return Err(refused(Errno::EACCES, "that name space is not yours"));
        }
        Ok(found.clone())
    }

    /// Converts the attributes that an upstream reports to those that a client sees.
    pub(crate) fn attr(&self, cfid: &ClientFid, mut attr: Box<Attr>, mask: GetMask) -> Box<Attr> {
        let live = cfid.live();
        live.root.tree.upstream.ahead.seen(&live.root, attr.qid, Some(&attr));
        cfid.kept.iter().filter(|_| attr.qid.path == live.raw.path).for_each(|kept| kept.see_birth(&attr));
        attr.qid = cfid.map(&live, attr.qid);
        if mask.has(GetMask::TEXTS) {
            let texts = attr.texts.get_or_insert_with(Box::<Texts>::default);
            // The upstream calls its root "/". In the name space it has another name.
            if cfid.step.parent.is_none() {
                texts.name = b"/"[..].into();
            } else if cfid.is_mount() || texts.name.is_empty() {
                texts.name = cfid.step.called();
            }
        }
        attr
    }

    /// Converts an upstream's reply to the reply for a client.
    fn reply(
        &self,
        req: &Request,
        cfid: &Arc<ClientFid>,
        root: &Arc<TreeRoot>,
        got: Got,
        made: Option<Fid>,
    ) -> Result<Reply> {
        let live = cfid.live();
        let open = |raw, open| {
            let open = self.opened(cfid, raw, open);
            (open.qid.qid, node(open))
        };
        Ok(match (req.op(), got) {
            (Op::Walk { names }, Got::Walk(raw)) => {
                let mut qids = Walked::new();
                raw.iter().for_each(|&raw| qids.push(cfid.map(&live, raw)));
                let node = made.map(|fid| {
                    let raw = raw.last().copied().unwrap_or(live.raw);
                    let file = Arc::new(root.client.adopt(fid, raw));
                    let mut step = cfid.step();
                    let mut place = cfid.place();
                    for name in names.iter() {
                        place = place.child(name);
                        step = PathStep::child(&step, place.clone());
                    }
                    let crossed = if names.is_empty() { cfid.crossed() } else { None };
                    let root = root.clone();
                    let pos = WalkPosition { step, crossed, away: None, root, file, raw };
                    let made = self.cfid_with(&cfid.by, pos, cfid.share.charge_another());
                    if let (Some(new), Some(old), true) = (&made.kept, &cfid.kept, names.is_empty()) {
                        new.same_birth(old);
                    }
                    node(made) as Node
                });
                Reply::Walk { qids, node }
            }
            (Op::Read { offset, count }, got) => {
                let data = data(got).unwrap_or_default();
                if let Some(ahead) = &cfid.ahead {
                    ahead.answered(offset, count.min(root.client.iounit_max()), data.len());
                }
                Reply::Read(Payload::Bytes(data))
            }
            (Op::Write { .. }, Got::Wrote(n)) => Reply::Wrote(n),
            (Op::Getattr { mask }, Got::Attr(attr)) => Reply::Attr(self.attr(cfid, attr, mask)),
            (Op::Readdir { .. }, Got::Data(data)) => {
                cfid.kept.iter().for_each(|kept| kept.mark(LISTED));
                let mut buf = req.dir_buf(self.names.clone());
                self.entries(cfid, &live, &data, &mut buf)?;
                Reply::Dir(buf)
            }
            (Op::Open { flags }, Got::Open { qid, iounit }) => {
                let iounit = root.iounit(iounit);
                let ahead = FidReadAhead::of(root, qid, flags, iounit);
                let direct = root.client.direct(live.file.fid());
                let open = ClientFid { ahead, direct, ..self.opened(cfid, qid, OpenFidKind::There(flags)) };
                Reply::Open { qid: open.qid.qid, iounit, node: node(open) }
            }
            (Op::Create { name, flags, .. }, Got::Open { qid, iounit }) => {
                let step = PathStep::child(&cfid.step(), cfid.place().child(name));
                let (file, own) = (live.file.clone(), live.root.clone());
                let pos = WalkPosition { step, crossed: None, away: None, root: own, file, raw: qid };
                let made = self.cfid(&cfid.by, pos);
                let made = ClientFid { open: Some(OpenFidKind::There(flags)), ..made };
                Reply::Open { qid: made.qid.qid, iounit: root.iounit(iounit), node: node(made) }
            }
            (Op::Make { make: Make::Link, .. }, _) => Reply::Done,
            (Op::Make { .. }, Got::Qid(qid)) => Reply::Made(cfid.map(&live, qid)),
            (Op::Readlink, Got::Text(target)) => Reply::Target(target),
            (Op::Lock(lock), Got::Lock(status)) => {
                let status = match status {
                    0 => LockStatus::Success,
                    1 => LockStatus::Blocked,
                    3 => LockStatus::Grace,
                    _ => LockStatus::Error,
                };
                cfid.kept.iter().for_each(|kept| kept.locked(&lock, status));
                Reply::Lock(status)
            }
            (Op::Getlock(_), Got::Getlock(lock)) => Reply::Getlock {
                ty: lock.ty,
                start: lock.start,
                length: lock.length,
                proc_id: lock.proc_id,
                client_id: lock.client_id,
            },
            (Op::XattrWalk { .. }, Got::Size(size)) => {
                let fid = made.ok_or(Errno::EIO)?;
                let file = Arc::new(root.client.adopt(fid, Qid::default()));
                let pos =
                    WalkPosition { file, raw: Qid::default(), root: root.clone(), ..WalkPosition::of(cfid) };
                let made = ClientFid { open: Some(OpenFidKind::Attribute), ..self.cfid(&cfid.by, pos) };
                Reply::Xattr { size, node: node(made) }
            }
            (Op::XattrCreate { .. }, _) => Reply::Moved(open(live.raw, OpenFidKind::Attribute).1),
            (Op::Statfs, Got::Statfs(statfs)) => Reply::Statfs(statfs),
            (Op::Rename { name }, _) => {
                if let Ok(to) = req.node2::<ClientFid>() {
                    self.moved(&cfid.step().covered, &to.place().child(name));
                }
                Reply::Done
            }
            (Op::RenameAt { old, new, .. }, _) => {
                if let Ok(to) = req.node2::<ClientFid>() {
                    self.moved(&cfid.place().child(old), &to.place().child(new));
                }
                Reply::Done
            }
            _ => Reply::Done,
        })
    }

    /// Converts an upstream's directory data to entries with the qids that clients see.
    fn entries(&self, cfid: &ClientFid, live: &UpstreamFid, data: &[u8], buf: &mut DirBuf) -> Result<()> {
        for entry in Entries::new(data, live.root.client.dialect()) {
            let malformed = || Error::new(Errno::EPROTO, "the server sends malformed directory data");
            let (entry, _) = entry.map_err(|_| malformed())?;
            // A client that gets cookie 0 would list from the start again, for ever.
            let is_name = !entry.name.is_empty() && !entry.name.iter().any(|b| matches!(b, b'/' | 0));
            if entry.cookie == 0 || !is_name {
                return Err(malformed());
            }
            if !buf.push(&Dirent { qid: cfid.map(live, entry.qid), ..entry }, None) {
                break;
            }
        }
        Ok(())
    }
}

/// The root of the fid with which the request was passed on.
impl Forward for TreeRoot {
    fn answered(self: Arc<Self>, later: Later, answer: Result<Got, Failed>, made: Option<Fid>) {
        let Some(core) = self.tree.core.upgrade() else { return };
        let result = match (answer, later.node::<ClientFid>()) {
            (Ok(got), Ok(cfid)) => core
                .reply(&later, &cfid, &self, got, made)
                .inspect(|reply| core.record_change(&later, &cfid, &self, reply))
                .inspect(|reply| core.learn_birth(reply)),
            (Err(error), Ok(cfid)) if error.is_disconnect() && cfid.kept.is_some() => {
                return core.later(later, Some(error));
            }
            (Err(error), _) => Err(error.into_reply()),
            (_, Err(error)) => Err(error),
        };
        core.changed(&later, result.as_ref().ok());
        later.respond(result);
    }

    fn takes(&self, later: &Later) -> bool {
        later.node::<ClientFid>().is_ok_and(|cfid| cfid.first.raw.is_event())
    }

    fn refused(self: Arc<Self>, later: Later, error: Failed) {
        let is_kept = later.node::<ClientFid>().is_ok_and(|cfid| cfid.kept.is_some());
        match self.tree.core.upgrade() {
            Some(core) if is_kept && error.is_disconnect() => core.later(later, None),
            _ => later.respond(Err(error.into_reply())),
        }
    }
}

impl TreeRoot {
    /// Returns the iounit: the upstream's value, limited to the data of one message, or that limit if the value is 0.
    pub(crate) fn iounit(&self, said: u32) -> u32 {
        let most = self.client.iounit_max();
        if said == 0 { most } else { said.min(most) }
    }
}

/// Returns the path from the root of the name space that an attach selects.
fn base_of(path: &str) -> Path {
    let mut names = Vec::new();
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    format!("/{}", names.join("/")).into_bytes().into()
}

/// Returns the node for the session, and registers it for restoration if its mount reconnects.
pub(crate) fn node(cfid: ClientFid) -> Arc<ClientFid> {
    let cfid = Arc::new(cfid);
    cfid.kept.iter().for_each(|kept| kept.register(&cfid));
    cfid
}

/// Returns the second file of a request, the target of a rename or link.
pub(crate) fn second(req: &Request) -> Result<Arc<File>, Failed> {
    req.node2::<ClientFid>().map(|cfid| cfid.live().file.clone()).map_err(Failed::Remote)
}

/// Number of times that a job to be cancelled is looked up, [`SHORT`] apart.
const CANCEL_TRIES_MAX: u32 = 100;
