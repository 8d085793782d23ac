//! A request on its way through a file server: owned, answered exactly once.
//!
//! `serve` gets a [`Req`] and must return an [`Answer`], and there are two ways to make one: [`Req::now`] is a return
//! value, so nothing recurses; [`Req::later`] keeps a [`Later`], which any thread may use once. A `Later` that is
//! dropped answers EIO. One whose connection or session has gone is ignored, but what a late success made is undone.

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
use crate::buf::{Frame, Pool};
use crate::changes::Tap;
use crate::direct::Direct;
use crate::payload::Payload;
use crate::sync::{AtomicBool, Mutex, lock};

/// What a server keeps behind a fid. Shared with requests that are still under way when the fid moves on.
pub type Node = Arc<dyn Any + Send + Sync>;

/// What a server answers.
pub type Reply = nine_proto::Reply<Node, Payload>;

/// Something that serves files.
///
/// Concurrency: `serve` is called from the core that owns the connection and must not block it; calls for different
/// connections may run at the same time on different cores, calls for one connection never do. Requests of one
/// connection may be answered in any order.
pub trait FileServer: Send + Sync + 'static {
    /// Answers a request, or promises to.
    ///
    /// The session has checked before: the fids exist, a walk with names starts at a directory (which may be open: in
    /// .L, and everywhere without names), reads and writes go to fids opened for them, names of new files are legal, a
    /// read-only client changes nothing.
    ///
    /// Whoever makes a node gets a `Clunk` (or `Remove`) for it, once, when no other request uses it; but a node that
    /// is replaced (by an open, a create, an xattrcreate, a walk onto its own fid) is only dropped. A server that
    /// wraps another passes the `Req` on; one that needs nodes of its own in front of another's mounts it through a
    /// client, or is a synthetic tree with that one [below](crate::synth::Beyond) a directory.
    fn serve(&self, req: Req) -> Answer;

    /// The client wants no answer any more to the request that was answered `later` with this id; `node` is behind its
    /// fid, if it has one. A server whose operations may wait for ever finds it and answers it (EINTR); others finish
    /// soon and need do nothing. Until the answer, the client's Rflush waits.
    fn cancel(&self, id: ReqId, node: Option<&Node>) {
        let _ = (id, node);
    }

    /// A way of its own for the bytes of an open file, in order, to or from a data connection. `None`: they are read or
    /// written by offset, with [`FileServer::serve`].
    fn stream(&self, request: StreamRequest<'_>) -> Option<Box<dyn Passage>> {
        let _ = request;
        None
    }

    /// An open file that may be called, by a client in this process or by a connection with nothing else to do, opened
    /// with these flags: see [`Direct`].
    fn direct(&self, node: &Node, flags: OpenFlags) -> Option<Arc<dyn Direct>> {
        let _ = (node, flags);
        None
    }

    /// Whether writes to this open file may have their bytes where the client has put them ([`Request::placed`]), who
    /// may change them at any time: for who hands them to the kernel, or copies them before he looks.
    fn takes_placed(&self, node: &Node) -> bool {
        let _ = node;
        false
    }

    /// Whether [`FileServer::fill`] works for this open file.
    fn can_fill(&self, node: &Node) -> bool {
        let _ = node;
        false
    }

    /// Stores what is in a pipe, on a thread that may wait.
    fn fill(&self, fill: Fill) {
        drop(fill);
    }

    /// The changes of the tree whose root is behind this walk's fid, for whoever walks ([`changes`](crate::changes)).
    /// `None`: this server knows of none, and serves the walk.
    fn changes(&self, walk: &Request) -> Option<Result<Tap>> {
        let _ = walk;
        None
    }

    /// Whether each open file may take a descriptor of this process: then their number is limited (RLIMIT_NOFILE).
    fn has_descriptors(&self) -> bool {
        false
    }

    /// The names of its users, for dialects that want text.
    fn names(&self) -> Arc<dyn Names> {
        Arc::new(nine_proto::Numeric)
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Who {
    /// The name given at attach, or the number as text.
    pub name: Box<str>,
    /// The number given at attach or proven by the transport.
    pub uid: Option<u32>,
    /// What proves it.
    pub proof: Proof,
    /// Whether it may change nothing; the framework refuses before the server sees it.
    pub read_only: bool,
    /// Its rights are those that the modes of files give to all others; the framework refuses what they do not.
    pub as_other: bool,
    /// It is the user that runs this server, or root, by the kernel's word, or has shown the token. What is for nobody
    /// else (control files) asks for this, never for a name.
    pub owner: bool,
    /// On which core its connection is served: 0 is the one that listens, n the n-th of the [`Seat`](super::Seat)s.
    pub seat: u16,
    /// The prefix of its address, which clients without proof are told apart by: see
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

    /// Whether something proves who it is, or it has shown the token.
    pub fn is_proven(&self) -> bool {
        self.owner || self.proof.is_identity()
    }

    /// Whether both are one user, known by one proof, whatever each may do.
    pub(super) fn is_user(&self, other: &Self) -> bool {
        let of = |who: &Self| (who.uid, who.owner, who.as_other);
        of(self) == of(other) && self.name == other.name && self.proof == other.proof
    }
}

/// Names one request among all of a process' life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReqId {
    /// The connection.
    pub conn: u64,
    /// The request within it.
    pub call: CallId,
}

/// A node and whose it is: what the session keeps behind a fid.
#[derive(Clone)]
pub(crate) struct Held {
    pub(crate) node: Node,
    pub(crate) who: Arc<Who>,
    /// A file of the conversation's own, not of the file server.
    pub(crate) desk: bool,
    /// The root of a tree, as it was attached to.
    pub(crate) root: bool,
}

/// Whether what it makes a fid of is the root of a tree: an attach, or another fid for such a root.
pub(crate) fn makes_root(request: &SessionRequest<Held, Frame>) -> bool {
    match (request.number(), request.fid()) {
        (Some(TATTACH), _) => true,
        (Some(TWALK), Some(held)) if held.root => {
            // A name such as `#hops=1` leads a mux's root to itself.
            matches!(request.op(), Op::Walk { names } if names.iter().all(|name| name.starts_with(b"#")))
        }
        _ => false,
    }
}

/// A name for a request that the framework itself makes.
pub(crate) fn own_call() -> CallId {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    CallId::numbered(NEXT.fetch_add(1, Relaxed))
}

const TATTACH: u8 = 104;
const TWALK: u8 = 110;

/// The question: what is asked, of which nodes, by whom. Owns its frame; [`Request::op`] is a view made on demand.
pub struct Request {
    inner: SessionRequest<Held, Frame>,
    who: Arc<Who>,
    conn: u64,
    /// What it is charged, bytes.
    cost: usize,
    /// It is about the conversation itself.
    desk: bool,
    /// What it makes a fid of is the root of a tree.
    root: bool,
    called: bool,
    passed: Option<Box<Passed>>,
}

/// What is other about a request for the server to which it is passed on.
struct Passed {
    nodes: [Option<Node>; 2],
    /// Names of its walk that were walked before.
    walked: usize,
    back: Back,
}

type Back = Box<dyn FnOnce(Result<Reply>) -> Result<Reply> + Send + Sync>;

impl Request {
    pub(crate) fn new(inner: SessionRequest<Held, Frame>, who: Arc<Who>, conn: u64, cost: usize) -> Self {
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

    /// Whether the file that [`FileServer::direct`] gives has just been called for this, and has left it to a message.
    pub fn was_called(&self) -> bool {
        self.called
    }

    pub(crate) fn number(&self) -> Option<u8> {
        self.inner.number()
    }

    pub(crate) fn fid_number(&self) -> Option<Fid> {
        self.inner.fid_number()
    }

    pub(crate) fn fids(&self) -> [Option<&Held>; 2] {
        [self.inner.fid(), self.inner.fid2()]
    }

    /// Whether its fid is a directory.
    pub fn is_dir(&self) -> bool {
        self.inner.is_dir()
    }

    /// The operation. The token in front of an aname is for the gate and not seen here.
    pub fn op(&self) -> Op<'_> {
        match self.inner.op() {
            Op::Attach { uname, aname, uid } => Op::Attach { uname, aname: split_token(aname).1, uid },
            Op::Walk { names } => {
                Op::Walk { names: names.after(self.passed.as_ref().map_or(0, |passed| passed.walked)) }
            }
            op => op,
        }
    }

    /// Its name for the rest of the process' life.
    pub fn id(&self) -> ReqId {
        ReqId { conn: self.conn, call: self.inner.id() }
    }

    /// Who asks: as of the attach this fid descends from, or of this attach.
    pub fn who(&self) -> &Arc<Who> {
        &self.who
    }

    /// What the client speaks.
    pub fn dialect(&self) -> Dialect {
        self.inner.dialect()
    }

    /// Whether it is a clunk that no client waits for.
    pub fn is_silent(&self) -> bool {
        self.inner.is_silent()
    }

    /// Of a read: the bytes that the answer may have.
    pub fn count(&self) -> u32 {
        self.inner.count()
    }

    /// What a Twrite carries where its client has put it, for servers that [say](FileServer::takes_placed) that they
    /// take it so: then [`Request::op`] is a write of no bytes.
    pub fn placed(&self) -> Option<&Placed> {
        self.inner.frame()?.data()
    }

    /// What a Twrite carries, wherever it is.
    pub fn payload(&self) -> Option<Payload> {
        match self.placed() {
            Some(placed) => Some(Payload::Placed(placed.clone())),
            None => self.data().map(Payload::Bytes),
        }
    }

    /// What a Twrite carries, without a copy. Of a request that is kept ([`Req::later`]) it pins nothing larger than
    /// twice itself.
    pub fn data(&self) -> Option<Bytes> {
        match self.inner.op() {
            Op::Write { data: [], .. } => Some(Bytes::new()),
            Op::Write { data, .. } => Some(self.inner.frame()?.share(data)),
            _ => None,
        }
    }

    /// The node behind the request's fid (for `Auth` and `Attach`: EIO, there is none).
    pub fn node<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        downcast(self.nodes()[0])
    }

    /// The node behind its second fid: the afid, the target directory, the file to link to.
    pub fn node2<T: Any + Send + Sync>(&self) -> Result<Arc<T>> {
        downcast(self.nodes()[1])
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

    /// Makes an answer for the session of one that the file server has given at once, when the session waits already.
    pub(crate) fn answered(&self) -> impl Fn(Result<Reply>) -> Answered + use<> {
        let (call, cost, rclose) = (self.inner.id(), self.cost, self.inner.rclose());
        let (fids, who) = (self.fids().map(|held| held.cloned()), self.who.clone());
        let (desk, root) = (self.desk, self.root);
        move |result| {
            let who = who.clone();
            let result = result.map(|reply| reply.map_node(|node| Held { node, who, desk, root }));
            Answered { call, cost, rclose, fids: fids.clone(), result }
        }
    }

    /// Where the answer to a `Readdir` goes: hand it back in `Reply::Dir`.
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

/// A [`Request`] and the duty to answer it.
pub struct Req {
    request: Request,
    answers: Arc<Answers>,
}

impl Req {
    pub(crate) fn new(request: Request, answers: Arc<Answers>) -> Self {
        Self { request, answers }
    }

    /// Copies what a Twrite carries out of its client's place, for whoever cannot take it so: from now on it is part of
    /// the message.
    pub fn gather(&mut self) {
        if let Some(frame) = self.request.inner.frame_mut() {
            frame.gather(&Pool::here());
        }
    }

    /// The same for another server, which sees these nodes of its own, and of a walk what is behind the first `walked`
    /// names. `back` makes the client's answer of its answer: on the thread that answers.
    pub(crate) fn passed(
        mut self,
        nodes: [Option<Node>; 2],
        walked: usize,
        back: impl FnOnce(Result<Reply>) -> Result<Reply> + Send + Sync + 'static,
    ) -> Self {
        let (before, walked, back): (_, _, Back) = match self.request.passed.take() {
            None => (None, walked, Box::new(back)),
            Some(passed) => (Some(passed.back), passed.walked + walked, Box::new(back)),
        };
        let back = match before {
            None => back,
            Some(before) => Box::new(|result| before(back(result))),
        };
        self.request.passed = Some(Box::new(Passed { nodes, walked, back }));
        self
    }

    /// The answer, at once.
    pub fn now(mut self, result: Result<Reply>) -> Answer {
        Answer(Some(match self.request.passed.take() {
            None => result,
            Some(passed) => (passed.back)(result),
        }))
    }

    /// What is kept of a small request pins nothing larger than itself.
    pub(crate) fn detach(&mut self) {
        if let Some(frame) = self.request.inner.frame_mut() {
            frame.detach();
        }
    }

    /// The answer will come through [`Later::respond`]. What is kept of a small request is copied out of the
    /// connection's buffer, so that it pins nothing larger than itself.
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

/// Proof that a request was answered, or that somebody holds its [`Later`].
#[must_use]
pub struct Answer(pub(crate) Option<Result<Reply>>);

/// The right to answer one request, from any thread, once.
pub struct Later {
    kept: Option<(Request, Arc<Answers>)>,
}

impl Later {
    /// Answers. Wakes the connection's core at most once per batch of answers.
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
            let result = result.map(|reply| reply.map_node(|node| Held { node, who, desk, root }));
            answers.push(Answered { call, cost, rclose, fids: inner.into_fids(), result });
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

/// The answers that come later, on their way to the connection's task. Bounded by the session's limit of outstanding
/// requests: each of them answers once.
pub(crate) struct Answers {
    /// There may be some: looked at before the lock is taken.
    any: AtomicBool,
    state: Mutex<Arrived>,
}

/// An answer as the session takes it, and what its request held.
pub(crate) struct Answered {
    pub(crate) call: CallId,
    pub(crate) cost: usize,
    pub(crate) fids: [Option<Held>; 2],
    pub(crate) rclose: bool,
    pub(crate) result: Result<nine_proto::Reply<Held, Payload>>,
}

#[derive(Default)]
struct Arrived {
    answers: Vec<Answered>,
    waker: Option<Waker>,
}

impl Default for Answers {
    fn default() -> Self {
        Self { any: AtomicBool::new(false), state: Mutex::new(Arrived::default()) }
    }
}

impl Answers {
    pub(crate) fn push(&self, answered: Answered) {
        let mut state = lock(&self.state);
        state.answers.push(answered);
        // Of several that nobody has taken yet, the first has woken.
        let first = !self.any.swap(true, Release);
        let waker = state.waker.clone().filter(|_| first);
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Who is woken from now on. Then [`Answers::take`]: what came before has woken nobody.
    pub(crate) fn wake(&self, waker: &Waker) {
        match &mut lock(&self.state).waker {
            Some(old) => old.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// Takes what has come into `into`, if there is any; the next one that comes wakes.
    pub(crate) fn take(&self, into: &mut Vec<Answered>) -> bool {
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
            let answers = loom::sync::Arc::new(Answers::default());
            let threads: Vec<_> = (0..2)
                .map(|_| {
                    let answers = answers.clone();
                    let answered = Answered {
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
