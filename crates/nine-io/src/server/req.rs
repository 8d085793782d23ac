//! A request on its way through a file server: owned, answered exactly once.
//!
//! `serve` gets a [`Req`] and must return an [`Answer`]. There are two ways to make one. [`Req::now`] answers by return
//! value, so nothing recurses. [`Req::later`] gives a [`Later`], which any thread may use once. A dropped `Later`
//! answers EIO. If its connection or session has ended, the answer is ignored, and the node that a success made gets a
//! Tclunk.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::task::Waker;

use bytes::Bytes;
use nine_net::{Placed, Proof};
use nine_proto::session::server::{CallId, Request as SessionRequest};
use nine_proto::{Dialect, DirBuf, Errno, Error, Fid, Names, Op, OpenFlags, Result};

use super::gate::split_token;
use super::stream::{Fill, Passage, StreamRequest};
use crate::buf::{FramePool, MessageFrame};
use crate::changes::Tap;
use crate::direct::Direct;
use crate::payload::Payload;
use crate::sync::{AtomicBool, Mutex, lock};

/// A server's object behind a fid. Requests in flight share it, even if the fid gets another node meanwhile.
pub type Node = Arc<dyn Any + Send + Sync>;

/// A server's reply.
pub type Reply = nine_proto::Reply<Node, Payload>;

/// A file server.
///
/// Concurrency: the core that owns a connection calls `serve`, which must not block it. Calls for one connection never
/// run at the same time; calls for different connections may, on different cores. A server may answer the requests of
/// one connection in any order.
pub trait FileServer: Send + Sync + 'static {
    /// Answers a request at once, or returns the promise of a later answer.
    ///
    /// The session guarantees: the fids exist; a walk with names starts at a directory (in .L it may be open; a walk
    /// without names may start at any open file); reads and writes go to fids opened for them; names of new files are
    /// legal; a read-only client changes nothing.
    ///
    /// The server gets one `Clunk` (or `Remove`) for each node that it returned, once no other request uses the node.
    /// But a node that is replaced (by an open, a create, an xattrcreate, or a walk onto its own fid) is only dropped.
    /// A server that wraps another passes the `Req` on. A server that needs nodes of its own in front of another's has
    /// two choices: it mounts the other through a client, or it is a synthetic tree with the other one
    /// [below](crate::synth::Beyond) a directory.
    fn serve(&self, req: Req) -> Answer;

    /// Cancels the request with this id, which was answered `later`; `node` is behind its fid, if it has one. A server
    /// whose operations may wait forever finds the request and answers it (EINTR). Others finish soon and need do
    /// nothing. The client's Rflush waits for the answer.
    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        let _ = (id, node);
    }

    /// Returns a stream adapter that moves the bytes of an open file, in order, to or from a data connection. `None`:
    /// the framework reads or writes by offset, with [`FileServer::serve`].
    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        let _ = request;
        None
    }

    /// Returns an open file, opened with these flags, that can be called without messages: by a client in this process,
    /// or by a connection with no other request in flight. See [`Direct`].
    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let _ = (node, flags);
        None
    }

    /// Whether writes to this open file may leave their data where the client has placed it ([`Request::placed`]). The
    /// client may change it at any time. So the server must pass it to the kernel, or copy it before it looks at it.
    fn takes_placed(&self, node: &Node) -> bool {
        let _ = node;
        false
    }

    /// Whether [`FileServer::fill`] works for this open file.
    fn can_fill(&self, node: &Node) -> bool {
        let _ = node;
        false
    }

    /// Stores the content of a pipe. Called on a thread that may block.
    fn fill(&self, fill: Fill) {
        drop(fill);
    }

    /// Subscribes the walking client to changes of the tree whose root is behind this walk's fid
    /// ([`changes`](crate::changes)). `None`: this server publishes no changes, and serves the walk itself.
    fn changes(&self, walk: &Request) -> Option<Result<Tap>> {
        let _ = walk;
        None
    }

    /// Whether an open file may take a descriptor of this process. If so, open files are limited (RLIMIT_NOFILE).
    fn has_descriptors(&self) -> bool {
        false
    }

    /// Returns the names of its users, for dialects with textual user names.
    fn names(&self) -> Arc<dyn Names> {
        Arc::new(nine_proto::Numeric)
    }
}

/// The identity and the rights of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The name given at attach, or the number as text.
    pub name: Box<str>,
    /// The number given at attach or proven by the transport.
    pub uid: Option<u32>,
    /// The proof of its identity.
    pub proof: Proof,
    /// It may change nothing. The framework refuses changes before the server sees them.
    pub read_only: bool,
    /// It has only the permissions that file modes give to all others. The framework refuses the rest.
    pub as_other: bool,
    /// It is the server's own user or root, as the kernel reports, or has shown the token. Check this, never a name,
    /// for files that only the owner may use (control files).
    pub owner: bool,
    /// The core that serves its connection: 0 is the listening core, n the n-th of the [`Seat`](super::Seat)s.
    pub seat: u16,
    /// The prefix of its address, which distinguishes clients without proof: see
    /// [`address_prefix`](crate::limits::address_prefix).
    pub prefix: Arc<str>,
}

impl Who {
    /// A client without a name, which may change files and owns none.
    pub fn none(proof: Proof) -> Self {
        let (name, read_only, as_other) = ("none".into(), false, false);
        let prefix = Arc::default();
        Self { name, uid: None, proof, read_only, as_other, owner: false, seat: 0, prefix }
    }

    /// Whether its identity is proven, or it has shown the token.
    pub fn is_proven(&self) -> bool {
        self.owner || self.proof.is_identity()
    }

    /// Whether both are one user with the same proof; read-only access is not compared.
    pub(super) fn is_user(&self, other: &Self) -> bool {
        let of = |who: &Self| (who.uid, who.owner, who.as_other);
        of(self) == of(other) && self.name == other.name && self.proof == other.proof
    }
}

/// Identifies a request uniquely within the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReqId {
    /// The connection.
    pub conn: u64,
    /// The request within it.
    pub call: CallId,
}

/// A node and its client: the session's entry for a fid.
#[derive(Clone)]
pub(crate) struct FidEntry {
    pub(crate) node: Node,
    pub(crate) who: Arc<Who>,
    /// It is one of the connection control files, not a file of the file server.
    pub(crate) desk: bool,
    /// It is the root of a tree, as attached to.
    pub(crate) root: bool,
}

/// Whether the request makes a fid of a tree's root: an attach, or a walk to another fid for such a root.
pub(crate) fn makes_root(request: &SessionRequest<FidEntry, MessageFrame>) -> bool {
    match (request.number(), request.fid()) {
        (Some(TATTACH), _) => true,
        (Some(TWALK), Some(held)) if held.root => {
            // A name such as `#hops=1` leads a mux's root to itself.
            matches!(request.op(), Op::Walk { names } if names.iter().all(|name| name.starts_with(b"#")))
        }
        _ => false,
    }
}

/// Returns an id for a request that the framework itself makes.
pub(crate) fn own_call() -> CallId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    CallId::numbered(NEXT.fetch_add(1, Relaxed))
}

const TATTACH: u8 = 104;
const TWALK: u8 = 110;

/// A request: an operation, its nodes, its client. Owns its frame; [`Request::op`] decodes a view on demand.
pub struct Request {
    inner: SessionRequest<FidEntry, MessageFrame>,
    who: Arc<Who>,
    conn: u64,
    /// Bytes charged for it.
    cost: usize,
    /// It concerns the connection control files.
    desk: bool,
    /// Its new fid is the root of a tree.
    root: bool,
    called: bool,
    passed: Option<Box<RequestOverrides>>,
}

/// Replacements in a request that is passed on to another server.
struct RequestOverrides {
    nodes: [Option<Node>; 2],
    /// The number of leading names of its walk that were walked before.
    walked: usize,
    back: ReplyMapper,
}

type ReplyMapper = Box<dyn FnOnce(Result<Reply>) -> Result<Reply> + Send + Sync>;

impl Request {
    pub(crate) fn new(
        inner: SessionRequest<FidEntry, MessageFrame>,
        who: Arc<Who>,
        conn: u64,
        cost: usize,
    ) -> Self {
        Self { inner, who, conn, cost, desk: false, root: false, called: false, passed: None }
    }

    pub(crate) fn at_desk(self, desk: bool) -> Self {
        Self { desk, ..self }
    }

    pub(crate) fn at_root(self, root: bool) -> Self {
        Self { root, ..self }
    }

    pub(crate) fn called(self, called: bool) -> Self {
        Self { called, ..self }
    }

    /// Whether the file of [`FileServer::direct`] has just been called for this request and has returned no answer.
    pub fn was_called(&self) -> bool {
        self.called
    }

    pub(crate) fn number(&self) -> Option<u8> {
        self.inner.number()
    }

    pub(crate) fn fid_number(&self) -> Option<Fid> {
        self.inner.fid_number()
    }

    pub(crate) fn fids(&self) -> [Option<&FidEntry>; 2] {
        [self.inner.fid(), self.inner.fid2()]
    }

    /// Whether its fid is a directory.
    pub fn is_dir(&self) -> bool {
        self.inner.is_dir()
    }

    /// The operation. An aname comes without the token in front of it, which is only for the gate.
    pub fn op(&self) -> Op<'_> {
        match self.inner.op() {
            Op::Attach { uname, aname, uid } => Op::Attach { uname, aname: split_token(aname).1, uid },
            Op::Walk { names } => {
                Op::Walk { names: names.after(self.passed.as_ref().map_or(0, |passed| passed.walked)) }
            }
            op => op,
        }
    }

    /// Its id, unique within the process.
    pub fn id(&self) -> ReqId {
        ReqId { conn: self.conn, call: self.inner.id() }
    }

    /// The client, with its identity as of the attach that this fid descends from, or of this attach.
    pub fn who(&self) -> &Arc<Who> {
        &self.who
    }

    /// The client's dialect.
    pub fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    /// Whether it is a clunk that no client waits for.
    pub fn is_silent(&self) -> bool {
        self.inner.is_silent()
    }

    /// The maximum number of bytes that the answer to a read may have.
    pub fn count(&self) -> u32 {
        self.inner.count()
    }

    /// The data of a Twrite, where its client has placed it, if the server [takes](FileServer::takes_placed) it there.
    /// Then [`Request::op`] is a write of no bytes.
    pub fn placed(&self) -> Option<&Placed> {
        self.inner.frame()?.data()
    }

    /// The data of a Twrite, wherever it is.
    pub fn payload(&self) -> Option<Payload> {
        match self.placed() {
            Some(placed) => Some(Payload::Placed(placed.clone())),
            None => self.data().map(Payload::Bytes),
        }
    }

    /// The data of a Twrite, without a copy. After [`Req::later`] it pins at most twice its own size in memory.
    pub fn data(&self) -> Option<Bytes> {
        match self.inner.op() {
            Op::Write { data: [], .. } => Some(Bytes::new()),
            Op::Write { data, .. } => Some(self.inner.frame()?.share(data)),
            _ => None,
        }
    }

    /// The node behind the request's fid. `Auth` and `Attach` have none: EIO.
    pub fn node<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        downcast(self.nodes()[0])
    }

    /// The node behind the second fid: the afid, the target directory, or the file to link to.
    pub fn node2<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        downcast(self.nodes()[1])
    }

    /// Whether the node behind its fid is of this type.
    pub(crate) fn is_node<T: Any>(&self) -> bool {
        self.nodes()[0].is_some_and(|node| node.is::<T>())
    }

    /// Whether the node behind its second fid is of this type.
    pub(crate) fn is_node2<T: Any>(&self) -> bool {
        self.nodes()[1].is_some_and(|node| node.is::<T>())
    }

    /// Whether its fid is the root of a tree, as attached to.
    pub(crate) fn is_at_root(&self) -> bool {
        self.inner.fid().is_some_and(|held| held.root)
    }

    /// Whether there is a second fid.
    pub fn has_node2(&self) -> bool {
        self.nodes()[1].is_some()
    }

    fn nodes(&self) -> [Option<&Node>; 2] {
        match &self.passed {
            Some(passed) => passed.nodes.each_ref().map(Option::as_ref),
            None => self.fids().map(|held| held.map(|held| &held.node)),
        }
    }

    /// Returns a function that wraps the file server's immediate answer for the session, which waits for it already.
    pub(crate) fn answered(&self) -> impl Fn(Result<Reply>) -> FinishedRequest + use<> {
        let (call, cost, rclose) = (self.inner.id(), self.cost, self.inner.rclose());
        let (fids, who) = (self.fids().map(|held| held.cloned()), self.who.clone());
        let (desk, root) = (self.desk, self.root);
        move |result| {
            let who = who.clone();
            let result = result.map(|reply| reply.map_node(|node| FidEntry { node, who, desk, root }));
            FinishedRequest { call, cost, rclose, fids: fids.clone(), result }
        }
    }

    /// The buffer for the answer to a `Readdir`: return it in `Reply::Dir`.
    pub fn dir_buf(&self, names: Arc<dyn Names>) -> DirBuf {
        self.inner.dir_buf(names)
    }
}

fn downcast<T: Any + Send + Sync>(node: Option<&Node>) -> Result<Arc<T>> {
    let node = node.ok_or(Errno::EIO)?.clone();
    node.downcast().map_err(|_| Errno::EIO.into())
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} by {}", self.op(), self.who.name)
    }
}

/// A [`Request`] and the obligation to answer it.
pub struct Req {
    request: Request,
    answers: Arc<LateAnswers>,
}

impl Req {
    pub(crate) fn new(request: Request, answers: Arc<LateAnswers>) -> Self {
        Self { request, answers }
    }

    /// Copies the data of a Twrite from where its client has placed it, for servers that cannot take it there.
    /// Afterwards it is part of the message.
    pub fn gather(&mut self) {
        if let Some(frame) = self.request.inner.frame_mut() {
            frame.gather(&FramePool::here());
        }
    }

    /// Prepares the request for another server, which sees these nodes of its own and, of a walk, the names after the
    /// first `walked`. `back` turns that server's answer into the client's answer, on the thread that answers.
    pub(crate) fn passed(
        mut self,
        nodes: [Option<Node>; 2],
        walked: usize,
        back: impl FnOnce(Result<Reply>) -> Result<Reply> + Send + Sync + 'static,
    ) -> Self {
        let (before, walked, back): (_, _, ReplyMapper) = match self.request.passed.take() {
            None => (None, walked, Box::new(back)),
            Some(passed) => (Some(passed.back), passed.walked + walked, Box::new(back)),
        };
        let back = match before {
            None => back,
            Some(before) => Box::new(|result| before(back(result))),
        };
        self.request.passed = Some(Box::new(RequestOverrides { nodes, walked, back }));
        self
    }

    /// Answers at once.
    pub fn now(mut self, result: Result<Reply>) -> Answer {
        Answer(Some(match self.request.passed.take() {
            None => result,
            Some(passed) => (passed.back)(result),
        }))
    }

    /// Copies a small request out of its receive buffer, so that it does not pin the buffer.
    pub(crate) fn detach(&mut self) {
        if let Some(frame) = self.request.inner.frame_mut() {
            frame.detach();
        }
    }

    /// Announces an answer through [`Later::respond`]. A small request is copied out of the connection's buffer, so
    /// that it does not pin the buffer.
    pub fn later(mut self) -> (Answer, Later) {
        self.detach();
        let Self { request, answers } = self;
        (Answer(None), Later { kept: Some((request, answers)) })
    }
}

impl std::ops::Deref for Req {
    type Target = Request;
    fn deref(&self) -> &Request {
        &self.request
    }
}

/// Proof that a request was answered, or that its [`Later`] exists.
#[must_use]
pub struct Answer(pub(crate) Option<Result<Reply>>);

/// The right to answer one request, from any thread, once.
pub struct Later {
    kept: Option<(Request, Arc<LateAnswers>)>,
}

impl Later {
    /// Sends the answer. A batch of answers wakes the connection's core at most once.
    pub fn respond(mut self, result: Result<Reply>) {
        self.send(result);
    }

    fn send(&mut self, result: Result<Reply>) {
        if let Some((Request { inner, who, cost, desk, root, passed, .. }, answers)) = self.kept.take() {
            let result = match passed {
                None => result,
                Some(passed) => (passed.back)(result),
            };
            let (call, rclose) = (inner.id(), inner.rclose());
            let result = result.map(|reply| reply.map_node(|node| FidEntry { node, who, desk, root }));
            answers.push(FinishedRequest { call, cost, rclose, fids: inner.into_fids(), result });
        }
    }
}

impl std::ops::Deref for Later {
    type Target = Request;
    fn deref(&self) -> &Request {
        &self.kept.as_ref().expect("kept until respond, which takes self").0
    }
}

impl Drop for Later {
    fn drop(&mut self) {
        if let Some((request, _)) = &self.kept {
            tracing::error!(request = ?request, "a request was dropped without an answer");
            self.send(Err(Error::new(Errno::EIO, "the server lost this request")));
        }
    }
}

/// Late answers on their way to the connection's task. Bounded by the session's limit of outstanding requests: each of
/// them answers once.
pub(crate) struct LateAnswers {
    /// There may be answers; checked before the lock is taken.
    any: AtomicBool,
    state: Mutex<LateAnswerQueue>,
}

/// An answer in the session's form, and the resources of its request.
pub(crate) struct FinishedRequest {
    pub(crate) call: CallId,
    pub(crate) cost: usize,
    pub(crate) fids: [Option<FidEntry>; 2],
    pub(crate) rclose: bool,
    pub(crate) result: Result<nine_proto::Reply<FidEntry, Payload>>,
}

#[derive(Default)]
struct LateAnswerQueue {
    answers: Vec<FinishedRequest>,
    waker: Option<Waker>,
}

impl Default for LateAnswers {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), state: Mutex::new(LateAnswerQueue::default()) }
    }
}

impl LateAnswers {
    pub(crate) fn push(&self, answered: FinishedRequest) {
        let mut state = lock(&self.state);
        state.answers.push(answered);
        // Of several untaken answers only the first wakes the task.
        let first = !self.any.swap(true, Release);
        let waker = state.waker.clone().filter(|_| first);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Sets the waker. Call [`LateAnswers::take`] afterwards: earlier answers have woken nothing.
    pub(crate) fn wake(&self, waker: &Waker) {
        match &mut lock(&self.state).waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Moves the answers that have arrived to `into`, and returns whether there were any. The next answer wakes again.
    pub(crate) fn take(&self, into: &mut Vec<FinishedRequest>) -> bool {
        if !self.any.load(Acquire) {
            return false;
        }
        let mut state = lock(&self.state);
        self.any.store(false, Relaxed);
        into.append(&mut state.answers);
        true
    }
}

#[cfg(all(test, nine_loom))]
mod tests {
    use super::*;
    use loom::future::block_on;
    use std::future::poll_fn;
    use std::task::Poll;

    #[test]
    fn an_answer_from_another_thread_is_never_left_lying_in_any_order() {
        loom::model(|| {
            let answers = loom::sync::Arc::new(LateAnswers::default());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let answers = answers.clone();
                    let answered = FinishedRequest {
                        call: CallId::default(),
                        cost: 0,
                        fids: [None, None],
                        rclose: false,
                        result: Err(Errno::EIO.into()),
                    };
                    loom::thread::spawn(move || answers.push(answered))
                })
                .collect();
            let mut come = Vec::new();
            block_on(poll_fn(|cx| {
                answers.wake(cx.waker());
                answers.take(&mut come);
                if come.len() == 2 { Poll::Ready(()) } else { Poll::Pending }
            }));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}
