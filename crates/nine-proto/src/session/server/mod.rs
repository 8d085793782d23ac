//! The server's side of a session: fids, tags, and the order of replies.
//!
//! In: whole frames ([`Session::receive`]) and the file server's replies ([`Session::respond`]). Out: requests to
//! serve, and encoded replies in an [`Out`]. `N` is the file server's node for a fid. `F` is an owned frame.
//!
//! Always holds:
//! - A fid is *coming* (its attach or walk is not answered), *here*, or *going*. While it is coming or going, other
//!   uses are refused. A clunk, a remove and a walk onto the same fid need the fid alone. They wait until the requests
//!   before them are answered; requests that come after them are refused.
//! - If the dialect is streaming, a request waits for earlier requests that create or move its fids (`defer.rs`).
//!   Requests on one fid then start in the order of their arrival.
//! - A partial result changes nothing: a partial walk creates no fid.
//! - A request is answered once. After an Rflush, no reply to the flushed request is sent (flush(5)). After a Tversion,
//!   replies of the old session are dropped, and their new nodes are returned to the caller for cleanup.

mod defer;
mod number;
mod plan;
mod reply;
mod request;
#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::format;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::attr::Names;
use crate::dialect::Dialect;
use crate::error::{Errno, Error, Result};
use crate::frame::{self, MSIZE_MAX, MSIZE_MIN};
use crate::ids::{Fid, NOFID, NOTAG, Qid, Tag};
use crate::msg::{Rmsg, Tmsg};
use crate::op::{OpenFlags, Reply};
use crate::wire::WireError;

use defer::{DeferredRequests, fids_of};
use number::*;
use plan::{FidUse, RequestPlan};
use reply::wrong;
pub use request::Request;

/// File data of a reply, which the caller sends without encoding it here.
pub trait Data {
    /// Returns the length in bytes.
    fn len(&self) -> usize;
    /// Whether the length is 0.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Data for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }
}

/// The destination of replies, in order.
pub trait Out<P> {
    /// Returns the buffer to which encoded messages are appended.
    fn bytes(&mut self) -> &mut Vec<u8>;
    /// Takes the data that ends the last message in `bytes`.
    fn payload(&mut self, payload: P);
    /// Reports a reply that the file server's trait forbids, for a log. `why` is the reason. The client gets EIO.
    fn wrong_reply(&mut self, message: &'static str, why: &'static str) {
        let _ = (message, why);
    }
}

/// Identifies a request in a session: a tag and the use count of tags.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CallId {
    /// The tag.
    pub tag: Tag,
    generation: u32,
}

impl CallId {
    /// Creates the id of a request that comes from no client. Only the low 31 bits of `number` count.
    pub fn numbered(number: u32) -> Self {
        Self { tag: NOTAG, generation: number | OWN }
    }

    /// Returns the number of such a request.
    pub fn number(self) -> u32 {
        self.generation & !OWN
    }
}

/// Marks ids of [`CallId::numbered`], to tell them from the session's silent clunks.
const OWN: u32 = 1 << 31;

/// Limits for one client.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum message size, bytes; between `MSIZE_MIN` and `MSIZE_MAX`.
    pub msize: u32,
    /// Maximum number of fids. Another one is refused with ENFILE.
    pub fids: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { msize: MSIZE_MAX, fids: 1 << 18 }
    }
}

/// The result of receiving a frame.
pub enum Step<N, F> {
    /// The frame was answered. The reply is in the [`Out`].
    Answered,
    /// Serve this request and pass the result to [`Session::respond`].
    Serve(Request<N, F>),
    /// The request waits for its fid or for earlier requests. [`Session::next_ready`] will return it, unless the
    /// session refuses it then.
    Waits,
    /// The client has flushed this request. Cancel it if possible; the Rflush follows its reply.
    Cancel(CallId),
    /// A Tversion was answered and has ended the old session. Serve these clunks; no client waits for their replies.
    Reset(Vec<Request<N, F>>),
}

/// The server's state of a session. See the module documentation.
pub struct Session<N, F> {
    offered: &'static [Dialect],
    limits: Limits,
    fids_max: usize,
    opens_max: usize,
    /// Number of open files.
    opens: usize,
    names: Arc<dyn Names>,
    dialect: Option<Dialect>,
    msize: u32,
    /// Boxed, so that the slots of the table are small: it has up to twice as many slots as fids.
    fids: HashMap<Fid, Box<SessionFid<N>>>,
    calls: HashMap<Tag, ServerCall<N, F>>,
    generation: u32,
    ready: VecDeque<Request<N, F>>,
    deferred: DeferredRequests,
}

struct SessionFid<N> {
    node: Option<N>,
    qid: Qid,
    state: SessionFidState,
    kind: SessionFidKind,
    open: Option<OpenFlags>,
    /// Number of requests in service that use the fid.
    users: u32,
    /// Whether an open, create or xattrcreate is in service. Another one is refused.
    moving: bool,
    /// The request that waits for exclusive use of the fid.
    waiting: Option<Tag>,
    /// Position of the last directory read of 9P2000. Boxed because few fids have one.
    dir: Option<Box<ListingEnd>>,
}

/// The end of a directory read, and the number of bytes it asked for.
struct ListingEnd {
    end: u64,
    cookie: u64,
    count: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionFidState {
    Coming,
    Here,
    /// A walk onto the same fid waits or is in service.
    Alone,
    Going,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SessionFidKind {
    File,
    Auth,
    Xattr,
}

struct ServerCall<N, F> {
    generation: u32,
    /// The type number of the T-message.
    number: u8,
    fid: Fid,
    fid2: Fid,
    newfid: Fid,
    flags: OpenFlags,
    offset: u64,
    /// Requested bytes (read, write) or number of names (walk).
    count: u32,
    /// Tflushes to answer after this request.
    flushes: Vec<Tag>,
    wait: CallWait<N, F>,
}

/// The reason why a request is not in service.
enum CallWait<N, F> {
    /// The request is in service.
    Nothing,
    /// It waits for exclusive use of its fid.
    Alone(Request<N, F>),
    /// It waits for earlier requests that create or move its fids. It is not planned yet.
    Turn(F),
}

impl<N: Clone, F: AsRef<[u8]>> Session<N, F> {
    /// Creates a session that waits for its Tversion. `names` supplies the user and group names of 9P2000.
    pub fn new(offered: &'static [Dialect], limits: Limits, names: Arc<dyn Names>) -> Self {
        Self {
            offered,
            limits: Limits { msize: limits.msize.clamp(MSIZE_MIN, MSIZE_MAX), ..limits },
            fids_max: usize::MAX,
            opens_max: usize::MAX,
            opens: 0,
            names,
            dialect: None,
            msize: MSIZE_MIN,
            fids: HashMap::new(),
            calls: HashMap::new(),
            generation: 0,
            ready: VecDeque::new(),
            deferred: DeferredRequests::default(),
        }
    }

    /// Returns the maximum message size, in bytes. A larger frame ends the connection. Before Tversion this is
    /// [`MSIZE_MIN`], so that the first bytes expose a client of another protocol.
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// Returns the agreed dialect, or `None` before a successful Tversion.
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Returns the number of requests that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.calls.len()
    }

    /// Returns the frame bytes of the requests that wait for earlier ones.
    pub fn deferred_bytes(&self) -> usize {
        self.deferred.bytes
    }

    /// Returns the memory charge of an outstanding request, in bytes: its data or its largest possible reply.
    pub fn cost(&self, id: CallId) -> Option<usize> {
        let call = self.calls.get(&id.tag).filter(|call| call.generation == id.generation)?;
        Some(CALL_COST + call.count as usize)
    }

    /// Iterates over the requests in service, to cancel them when the connection ends.
    pub fn served(&self) -> impl Iterator<Item = CallId> {
        let served = |call: &ServerCall<N, F>| call.number != FLUSH && matches!(call.wait, CallWait::Nothing);
        let served = self.calls.iter().filter(move |(_, call)| served(call));
        served.map(|(&tag, call)| CallId { tag, generation: call.generation })
    }

    /// Returns the fid of an outstanding request.
    pub fn fid_of(&self, id: CallId) -> Option<Fid> {
        let call = self.calls.get(&id.tag).filter(|call| call.generation == id.generation)?;
        Some(call.fid)
    }

    /// Returns the node of an outstanding request's fid.
    pub fn node(&self, id: CallId) -> Option<&N> {
        let call = self.calls.get(&id.tag).filter(|call| call.generation == id.generation)?;
        self.fids.get(&call.fid)?.node.as_ref()
    }

    /// Shrinks the tables. Call it when the connection is idle.
    pub fn shrink(&mut self) {
        if self.calls.is_empty() && self.calls.capacity() > 16 {
            self.calls = HashMap::new();
        }
        if self.fids.capacity() > 64 && self.fids.len() < self.fids.capacity() / 8 {
            self.fids.shrink_to(2 * self.fids.len());
        }
    }

    /// Returns the number of fids in use.
    pub fn fid_count(&self) -> usize {
        self.fids.len()
    }

    /// Whether writes to this fid must stay in order because their position does not come from their offset. True for
    /// append-only and exclusive-use files, append-mode opens and unknown fids.
    pub fn is_serial(&self, fid: Fid) -> bool {
        self.fids.get(&fid).is_none_or(|entry| {
            entry.qid.ty & (Qid::APPEND | Qid::EXCL) != 0
                || entry.open.is_some_and(|flags| flags.has(OpenFlags::APPEND))
        })
    }

    /// Handles a whole frame. A request with a malformed body is answered with an error.
    ///
    /// `Err` means that the caller must close the connection: a client never sends such a message, or the first message
    /// is malformed.
    pub fn receive<P: Data>(&mut self, frame: F, out: &mut impl Out<P>) -> Result<Step<N, F>, WireError> {
        let dialect = self.dialect.unwrap_or(Dialect::P2000);
        let tag = frame::tag_of(frame.as_ref());
        let message = match Tmsg::decode(frame.as_ref(), dialect) {
            Ok((_, message)) => message,
            // A well-framed message with an unknown even number: a client probes for a later extension.
            Err(WireError::Type(ty)) if ty % 2 == 0 && !matches!(ty, 6 | 106) && self.dialect.is_some() => {
                self.refuse(tag, &Error::new(Errno::EOPNOTSUPP, "unknown message"), out);
                return Ok(Step::Answered);
            }
            Err(WireError::Type(ty)) => return Err(WireError::Type(ty)),
            Err(error) if self.dialect.is_some() => {
                self.refuse(tag, &Error::new(Errno::EINVAL, format!("malformed message: {error}")), out);
                return Ok(Step::Answered);
            }
            Err(error) => return Err(error),
        };
        match message {
            Tmsg::Version { msize, version } => return Ok(self.version(tag, msize, version, out)),
            Tmsg::Flush { oldtag } if self.dialect.is_some() => return Ok(self.flush(tag, oldtag, out)),
            _ => {}
        }
        let number = message.number();
        let checked = self.check(tag, &message, dialect);
        if dialect.streaming && checked.is_ok() {
            let fids = fids_of(&message, dialect);
            if self.must_wait(tag, number, fids) {
                return Ok(self.defer(tag, number, fids, frame));
            }
        }
        let plan = checked.and_then(|()| self.prepare(&message, dialect));
        Ok(self.admit(tag, number, plan, dialect, frame, out))
    }

    /// Returns the next request that need not wait any more. Call it until `None` after every `respond`, and after
    /// every `receive` (of a Tflush).
    pub fn next_ready(&mut self) -> Option<Request<N, F>> {
        self.ready.pop_front()
    }

    /// Ends the session because the connection is closed. Returns the clunks to serve. `respond` returns the nodes of
    /// replies that come later. A clunk must wait until as many earlier requests are answered as [`Request::users`]
    /// says.
    pub fn close(&mut self) -> Vec<Request<N, F>> {
        self.dialect = None;
        self.calls.clear();
        self.ready.clear();
        self.deferred = DeferredRequests::default();
        // Skip a fid whose clunk is in service. A fid whose clunk still waits needs one.
        self.opens = 0;
        let entries = core::mem::take(&mut self.fids).into_values();
        let entries = entries.filter(|e| e.state != SessionFidState::Going || e.waiting.is_some());
        let clunk = |e: Box<SessionFid<N>>| {
            let clunk = self.silent(e.node?, e.open.is_some_and(rclose));
            Some(Request { users: e.users, ..clunk })
        };
        entries.filter_map(clunk).collect()
    }

    /// Creates a clunk for a node that no fid refers to any more. The clunk has its own id and its reply is dropped.
    pub fn silent(&mut self, node: N, remove: bool) -> Request<N, F> {
        Request::silent(CallId { tag: NOTAG, generation: self.next_generation() }, node, remove)
    }

    /// Lowers the limit of fids below [`Limits::fids`] while memory is short.
    pub fn limit_fids(&mut self, fids: usize) {
        self.fids_max = fids;
    }

    /// Limits the number of open fids. Another open is refused with ENFILE.
    pub fn limit_opens(&mut self, opens: usize) {
        self.opens_max = opens;
    }

    /// Returns the node of an open fid, and the flags of its open.
    pub fn opened(&self, fid: Fid) -> Option<(&N, OpenFlags)> {
        let entry = self.fids.get(&fid)?;
        Some((entry.node.as_ref()?, entry.open?))
    }

    /// Like [`Session::opened`], only for files. Reads and writes of a file do not change the session.
    pub fn opened_file(&self, fid: Fid) -> Option<(&N, OpenFlags)> {
        let entry =
            self.fids.get(&fid).filter(|entry| entry.kind == SessionFidKind::File && !entry.qid.is_dir())?;
        Some((entry.node.as_ref()?, entry.open?))
    }

    /// Returns the number of open fids.
    pub fn open_count(&self) -> usize {
        self.opens
    }

    /// Lowers the byte count of a read that is about to be served, and so its memory charge.
    pub fn limit(&mut self, request: &mut Request<N, F>, bytes: u32) {
        request.count = request.count.min(bytes);
        if let Some(call) = self.calls.get_mut(&request.id.tag)
            && call.generation == request.id.generation
            && matches!(call.number, READ | READDIR)
        {
            call.count = request.count;
        }
    }

    /// Sets the number of data bytes that a Twrite, about to be served, has outside its frame.
    pub fn set_outside(&mut self, request: &Request<N, F>, bytes: u32) {
        if let Some(call) = self.calls.get_mut(&request.id.tag)
            && call.generation == request.id.generation
            && call.number == WRITE
        {
            call.count = bytes;
        }
    }

    /// Returns the frame of a waiting request, so that the caller can move it to smaller memory.
    pub fn parked_frame(&mut self, tag: Tag) -> Option<&mut F> {
        match &mut self.calls.get_mut(&tag)?.wait {
            CallWait::Nothing => None,
            CallWait::Alone(request) => request.frame.as_mut(),
            CallWait::Turn(frame) => Some(frame),
        }
    }

    fn version<P>(&mut self, tag: Tag, msize: u32, version: &[u8], out: &mut impl Out<P>) -> Step<N, F> {
        let clunks = self.close();
        if msize < MSIZE_MIN {
            self.msize = MSIZE_MIN;
            self.refuse(tag, &Error::new(Errno::EINVAL, "msize is too small: 512 at least"), out);
            return Step::Reset(clunks);
        }
        self.dialect = Dialect::negotiate(version, self.offered);
        let msize = msize.min(self.limits.msize);
        self.msize = if self.dialect.is_some() { msize } else { MSIZE_MIN };
        let version = self.dialect.map_or("unknown", Dialect::name).as_bytes();
        Rmsg::Version { msize, version }.encode(tag, Dialect::P2000, out.bytes());
        Step::Reset(clunks)
    }

    fn flush<P>(&mut self, tag: Tag, oldtag: Tag, out: &mut impl Out<P>) -> Step<N, F> {
        if self.calls.contains_key(&tag) || tag == NOTAG {
            self.refuse(tag, &duplicate_tag(), out);
            return Step::Answered;
        }
        let dialect = self.dialect.expect("checked by the caller");
        let Some(old) = self.calls.get_mut(&oldtag) else {
            Rmsg::Flush {}.encode(tag, dialect, out.bytes());
            return Step::Answered;
        };
        if !matches!(old.wait, CallWait::Nothing) {
            let old = self.calls.remove(&oldtag).expect("looked up just now");
            let fids = old.fids();
            match old.wait {
                CallWait::Turn(frame) => self.leave(oldtag, fids, &frame),
                _ => {
                    if let Some(entry) = self.fids.get_mut(&old.fid) {
                        entry.waiting = None;
                        entry.state = SessionFidState::Here;
                    }
                }
            }
            self.answer_flushes(old.flushes, dialect, out);
            Rmsg::Flush {}.encode(tag, dialect, out.bytes());
            self.advance(fids, dialect, out);
            return Step::Answered;
        }
        let first = old.flushes.is_empty();
        old.flushes.push(tag);
        let (number, id) = (old.number, CallId { tag: oldtag, generation: old.generation });
        let generation = self.next_generation();
        self.calls.insert(tag, ServerCall::new(generation, FLUSH));
        if first && number != FLUSH { Step::Cancel(id) } else { Step::Waits }
    }

    /// Plans a request and creates its new fid.
    fn prepare(&mut self, message: &Tmsg<'_>, dialect: Dialect) -> Result<RequestPlan> {
        let plan = self.plan(message, dialect)?;
        self.take_fids(&plan)?;
        Ok(plan)
    }

    /// Creates the new fid. This is the last step that can refuse the request; the other checks come before.
    fn take_fids(&mut self, plan: &RequestPlan) -> Result<()> {
        for fid in [plan.fid, plan.fid2] {
            if fid != NOFID {
                self.here(fid)?;
            }
        }
        if matches!(plan.usage, FidUse::Moves | FidUse::Alone) && self.here(plan.fid)?.moving {
            return Err(Error::new(Errno::EBUSY, "fid is being opened"));
        }
        if plan.newfid == NOFID {
            return Ok(());
        }
        if self.fids.len() >= self.fids_max.min(self.limits.fids) {
            return Err(Error::new(Errno::ENFILE, "too many fids"));
        }
        if self.fids.contains_key(&plan.newfid) {
            return Err(Error::new(Errno::EBUSY, "fid in use"));
        }
        self.fids.insert(plan.newfid, Box::new(SessionFid::coming()));
        Ok(())
    }

    /// Records the call. Its request is served, waits for others, or is refused.
    fn admit<P>(
        &mut self,
        tag: Tag,
        number: u8,
        plan: Result<RequestPlan>,
        dialect: Dialect,
        frame: F,
        out: &mut impl Out<P>,
    ) -> Step<N, F> {
        let plan = match plan {
            Ok(plan) => plan,
            Err(error) => {
                self.refuse(tag, &error, out);
                return Step::Answered;
            }
        };
        let generation = self.next_generation();
        let node = |fids: &HashMap<Fid, Box<SessionFid<N>>>, fid| fids.get(&fid).and_then(|e| e.node.clone());
        let ends_open = self.fids.get(&plan.fid).and_then(|e| e.open).filter(|_| plan.usage == FidUse::Ends);
        let is_dir =
            self.fids.get(&plan.fid).is_some_and(|e| e.qid.is_dir() && e.kind == SessionFidKind::File);
        let request = Request {
            id: CallId { tag, generation },
            frame: Some(frame),
            dialect,
            number: plan.fid,
            fid: node(&self.fids, plan.fid),
            fid2: node(&self.fids, plan.fid2),
            extra: plan.extra,
            count: plan.count,
            is_dir,
            changes: !plan.is_sync && changes(number, plan.flags),
            rclose: rclose(plan.flags),
            users: 0,
            remove: ends_open.is_some_and(rclose),
        };
        let mut call = ServerCall {
            fid: plan.fid,
            fid2: plan.fid2,
            newfid: plan.newfid,
            flags: plan.flags,
            offset: plan.offset,
            count: plan.count,
            ..ServerCall::new(generation, number)
        };
        if let Some(entry) = self.fids.get_mut(&plan.fid) {
            match plan.usage {
                FidUse::Shared => {}
                FidUse::Moves => entry.moving = true,
                FidUse::Alone => entry.state = SessionFidState::Alone,
                FidUse::Ends => entry.state = SessionFidState::Going,
            }
            if matches!(plan.usage, FidUse::Alone | FidUse::Ends) && entry.users > 0 {
                entry.waiting = Some(tag);
                call.wait = CallWait::Alone(request);
                self.calls.insert(tag, call);
                return Step::Waits;
            }
            entry.users += 1;
        }
        if let Some(entry) = self.fids.get_mut(&plan.fid2) {
            entry.users += 1;
        }
        self.calls.insert(tag, call);
        Step::Serve(request)
    }

    /// Handles the file server's reply to a request. If it returns a node, no client can clunk that node, because its
    /// session has ended or the reply was invalid. The caller must clunk it ([`Session::silent`]).
    ///
    /// If a request does not allow its reply, the client gets EIO and [`Out::wrong_reply`] is called. Such replies have
    /// a wrong kind, more bytes than requested or supplied, or qids that do not fit the names.
    ///
    /// An open, a create, an xattrcreate and a walk onto the same fid replace the fid's node. The old node is dropped
    /// without a clunk.
    #[must_use = "a node that is returned must be clunked"]
    pub fn respond<P: Data>(
        &mut self,
        id: CallId,
        result: Result<Reply<N, P>>,
        out: &mut impl Out<P>,
    ) -> Option<N> {
        let live = self.calls.get(&id.tag).is_some_and(|call| call.generation == id.generation);
        let Some(dialect) = self.dialect.filter(|_| live) else {
            return result.ok().and_then(|reply| reply.into_node());
        };
        let call = self.calls.remove(&id.tag).expect("looked up just now");
        let fids = call.fids();
        let ends = matches!(call.number, CLUNK | REMOVE);
        let mut unused = None;
        let result = match result {
            Ok(reply) => match wrong(&call, &reply) {
                None => self.apply(&call, reply, dialect),
                Some(why) => {
                    out.wrong_reply(Tmsg::label_of(call.number).unwrap_or("a message"), why);
                    unused = reply.into_node();
                    Err(Error::new(Errno::EIO, format!("fault of the file server: {why}")))
                }
            },
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.fids.remove(&call.newfid);
        }
        if let Some(entry) = self.fids.get_mut(&call.fid) {
            match call.number {
                _ if ends => {
                    self.opens -= usize::from(entry.is_open_file());
                    self.fids.remove(&call.fid);
                }
                OPEN | LOPEN | CREATE | LCREATE | XATTRCREATE => entry.moving = false,
                WALK if call.newfid == NOFID => entry.state = SessionFidState::Here,
                _ => {}
            }
        }
        // Release the fids only now, so that waiting requests see the state after this reply.
        self.release(call.fid2);
        self.release(call.fid);
        match result {
            Ok(reply) => self.encode(id.tag, &call, reply, dialect, out),
            // A flushed request that failed gets no reply. A clunk has freed its fid, so it needs its reply.
            Err(_) if !call.flushes.is_empty() && !ends => {}
            Err(error) => self.refuse(id.tag, &error, out),
        }
        self.answer_flushes(call.flushes, dialect, out);
        self.advance(fids, dialect, out);
        unused
    }

    /// Applies a success to the tables.
    fn apply<P>(
        &mut self,
        call: &ServerCall<N, F>,
        reply: Reply<N, P>,
        dialect: Dialect,
    ) -> Result<Reply<N, P>> {
        let from = self.fids.get(&call.fid).map(|entry| entry.qid);
        let mut install = |fid: Fid, node: &N, qid: Qid, kind: SessionFidKind, open: Option<OpenFlags>| {
            let entry = self.fids.get_mut(&fid).expect("a fid stays while a request holds it");
            let was = entry.is_open_file();
            entry.node = Some(node.clone());
            entry.qid = qid;
            entry.kind = kind;
            entry.open = open;
            self.opens = self.opens + usize::from(entry.is_open_file()) - usize::from(was);
            if entry.state == SessionFidState::Coming {
                entry.state = SessionFidState::Here;
            }
        };
        match &reply {
            Reply::Auth { qid, node } => {
                install(call.newfid, node, *qid, SessionFidKind::Auth, Some(OpenFlags::RDWR))
            }
            Reply::Attach { qid, node } => install(call.newfid, node, *qid, SessionFidKind::File, None),
            Reply::Walk { qids, node } => {
                let to = if call.newfid == NOFID { call.fid } else { call.newfid };
                match (node, qids.last().copied().or(from)) {
                    (Some(node), Some(qid)) => install(to, node, qid, SessionFidKind::File, None),
                    _ => {
                        if qids.is_empty() {
                            return Err(Errno::ENOENT.into());
                        }
                        self.fids.remove(&call.newfid);
                    }
                }
            }
            Reply::Open { qid, node, .. } => {
                install(call.fid, node, *qid, SessionFidKind::File, Some(call.flags))
            }
            Reply::Moved(node) => {
                let qid = from.unwrap_or_default();
                install(call.fid, node, qid, SessionFidKind::Xattr, Some(OpenFlags::WRITE));
            }
            Reply::Xattr { node, .. } => {
                install(call.newfid, node, Qid::default(), SessionFidKind::Xattr, Some(OpenFlags::READ));
            }
            Reply::Dir(dir) if dir.too_small() => {
                // Linux fills its buffer with several reads. It takes an empty reply for the end of its buffer, and an
                // error for a failure.
                let listed = self.fids.get(&call.fid).and_then(|entry| entry.dir.as_deref());
                if listed.is_some_and(|last| call.offset == last.end && call.count < last.count)
                    && !dialect.is_l()
                {
                    return Ok(reply);
                }
                return Err(Error::new(Errno::EINVAL, "i/o count too small for a directory entry"));
            }
            Reply::Dir(dir) if !dialect.is_l() && !dir.bytes().is_empty() => {
                let entry = self.fids.get_mut(&call.fid).expect("a fid stays while a request holds it");
                let (end, cookie) = (call.offset + dir.bytes().len() as u64, dir.last());
                entry.dir = Some(Box::new(ListingEnd { end, cookie, count: call.count }));
            }
            _ => {}
        }
        Ok(reply)
    }

    /// Ends one use of this fid. If that was the last, a request that waits for exclusive use becomes ready.
    fn release(&mut self, fid: Fid) {
        let Some(entry) = self.fids.get_mut(&fid) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let Some(tag) = entry.waiting.take() else { return };
        entry.users = 1;
        let call = self.calls.get_mut(&tag).expect("a waiting request is outstanding");
        let CallWait::Alone(mut request) = core::mem::replace(&mut call.wait, CallWait::Nothing) else {
            unreachable!("a waiting request is kept")
        };
        request.fid.clone_from(&entry.node);
        request.remove = matches!(call.number, CLUNK) && entry.open.is_some_and(rclose);
        self.ready.push_back(request);
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        self.generation
    }
}

impl<N> SessionFid<N> {
    /// Whether it is an open file. Servers limit their number.
    fn is_open_file(&self) -> bool {
        self.kind == SessionFidKind::File && self.open.is_some()
    }

    fn coming() -> Self {
        Self {
            node: None,
            qid: Qid::default(),
            state: SessionFidState::Coming,
            kind: SessionFidKind::File,
            open: None,
            users: 0,
            moving: false,
            waiting: None,
            dir: None,
        }
    }
}

impl<N, F> ServerCall<N, F> {
    fn new(generation: u32, number: u8) -> Self {
        Self {
            generation,
            number,
            fid: NOFID,
            fid2: NOFID,
            newfid: NOFID,
            flags: OpenFlags(0),
            offset: 0,
            count: 0,
            flushes: Vec::new(),
            wait: CallWait::Nothing,
        }
    }
}

/// Whether a request of this kind changes a file, or permits changes.
fn changes(number: u8, flags: OpenFlags) -> bool {
    match number {
        OPEN | LOPEN | STREAM => flags.changes(),
        LCREATE | SYMLINK | MKNOD | RENAME | SETATTR | XATTRCREATE | LINK | MKDIR | RENAMEAT | RENAMEAT2
        | UNLINKAT | CREATE | WRITE | REMOVE | WSTAT => true,
        _ => false,
    }
}

fn rclose(flags: OpenFlags) -> bool {
    flags.has(OpenFlags::RCLOSE)
}

fn unknown_fid() -> Error {
    Error::new(Errno::EBADF, "unknown fid")
}

fn already_open() -> Error {
    Error::new(Errno::EBUSY, "fid is already open")
}

fn duplicate_tag() -> Error {
    Error::new(Errno::EINVAL, "duplicate tag")
}

/// The charge for an outstanding request besides its data, in bytes: its table entries and a small frame.
pub const CALL_COST: usize = 512;
