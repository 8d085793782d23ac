//! Requests of clients with the permissions of all others ([`Who::as_other`]).
//!
//! In: a request. Out: the same request for the file server, or EACCES. The modes that the file server reports decide:
//! opening a file needs `o+r`, opening a directory `o+rx`, and a step from a directory `o+x`. A walk of several names
//! becomes one walk per name. An attach below a root first attaches to the directories above. So the rules are the same
//! for every file server, and for everything that a multiplexer shows.
//!
//! Always holds: each request has at most one message in flight at the file server. The file server gets a Tclunk for
//! each node that it created for such a message. A cancelled request ends with EINTR.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nine_proto::msg::{Names as WalkNames, OnlyIds, Tmsg};
use nine_proto::session::server::{CallId, Request as SessionRequest};
use nine_proto::{Attr, Dialect, Errno, GetMask, NOFID, Op, OpenFlags, Result, Tag, Walked, mode};

use super::super::req::{
    self, Answer, FidEntry, FileServer, LateAnswers, Node, Reply, Req, ReqId, Request, Who,
};
use super::Connection;
use crate::buf::MessageFrame;
use crate::sync::{Mutex, lock};

/// Mode bits for all others.
const READ: u32 = 0o4;
const EXECUTE: u32 = 0o1;

/// A request with a check that waits for the file server.
pub(super) struct OtherCheck {
    call: CallId,
    req: Req,
    asker: Arc<ModeAsker>,
    verdict: CheckFuture,
}

type CheckFuture = Pin<Box<dyn Future<Output = CheckVerdict> + Send>>;

enum CheckVerdict {
    /// The file server gets the request.
    Granted,
    /// The request is answered with this.
    Done(Result<Reply>),
}

impl From<Result<()>> for CheckVerdict {
    fn from(checked: Result<()>) -> Self {
        checked.map_or_else(|error| Self::Done(Err(error)), |()| Self::Granted)
    }
}

impl Connection {
    /// Serves a request if the file modes allow it to all others.
    pub(super) fn serve_as_other(&mut self, mut req: Req) -> Answer {
        let asker = Arc::new(ModeAsker::new(&self.server, req.who(), self.id));
        let Some(mut verdict) = check(&req, &asker) else { return self.server.serve(req) };
        let waker = self.entered.clone().unwrap_or(Waker::noop().clone());
        match verdict.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(CheckVerdict::Granted) => self.server.serve(req),
            Poll::Ready(CheckVerdict::Done(result)) => req.now(result),
            Poll::Pending => {
                req.detach();
                self.checks.push(OtherCheck { call: req.id().call, req, asker, verdict });
                Answer(None)
            }
        }
    }

    /// Continues the waiting checks. Each result becomes an answer, or the file server answers.
    pub(super) fn settle_checks(&mut self, waker: &Waker) {
        let mut i = 0;
        while let Some(check) = self.checks.get_mut(i) {
            let Poll::Ready(verdict) = check.verdict.as_mut().poll(&mut Context::from_waker(waker)) else {
                i += 1;
                continue;
            };
            let OtherCheck { req, .. } = self.checks.swap_remove(i);
            let answered = req.answered();
            let result = match verdict {
                CheckVerdict::Granted => self.server.serve(req).0,
                CheckVerdict::Done(result) => Some(result),
            };
            result.into_iter().for_each(|result| self.answers.push(answered(result)));
        }
    }

    /// Cancels the check of a request. Returns whether there was one.
    pub(super) fn cancel_check(&self, call: CallId) -> bool {
        let check = self.checks.iter().find(|check| check.call == call);
        check.inspect(|check| check.asker.cancel()).is_some()
    }
}

/// Returns the check that must precede the request at the file server; `None`: no check.
fn check(req: &Request, asker: &Arc<ModeAsker>) -> Option<CheckFuture> {
    let asker = asker.clone();
    let node = req.fids()[0].map(|held| held.node.clone());
    match req.op() {
        Op::Attach { uname, aname, uid } => {
            let above: Vec<Box<[u8]>> = above(aname).map(Into::into).collect();
            let uname: Box<[u8]> = uname.into();
            if above.is_empty() {
                return None;
            }
            Some(Box::pin(async move {
                for aname in above {
                    if let Err(error) = asker.attach(&uname, &aname, uid).await {
                        return CheckVerdict::Done(Err(error));
                    }
                }
                CheckVerdict::Granted
            }))
        }
        Op::Walk { names } if !names.is_empty() => {
            let names: Vec<Box<[u8]>> = names.iter().map(Into::into).collect();
            let node = node?;
            Some(Box::pin(async move { CheckVerdict::Done(asker.walk(node, &names).await) }))
        }
        Op::Open { flags } => {
            let want = if flags.has(OpenFlags::EXEC) { READ | EXECUTE } else { READ };
            let node = node?;
            Some(Box::pin(async move { asker.check(&node, want).await.into() }))
        }
        Op::XattrWalk { .. } => {
            let node = node?;
            Some(Box::pin(async move { asker.check(&node, READ).await.into() }))
        }
        // The path to a fid was checked by walks, and reads by the open. Changes are refused earlier.
        _ => None,
    }
}

/// The anames of the directories above an attach's directory, from the root down.
fn above(aname: &[u8]) -> impl Iterator<Item = &[u8]> {
    let is_name = |name: &&[u8]| !matches!(*name, b"" | b".");
    let names = aname.split(|&byte| byte == b'/').filter(is_name);
    names.map(|name| {
        let above = &aname[..name.as_ptr() as usize - aname.as_ptr() as usize];
        // The root's own slash remains.
        let len = above.iter().rposition(|&byte| byte != b'/').map_or(above.len().min(1), |last| last + 1);
        &above[..len]
    })
}

/// Asks the file server in the client's name for the attributes that a check needs.
struct ModeAsker {
    server: Arc<dyn FileServer>,
    who: Arc<Who>,
    /// The client's connection.
    conn: u64,
    answers: Arc<LateAnswers>,
    state: Mutex<AskerState>,
}

#[derive(Default)]
struct AskerState {
    /// The id of the message at the file server, and its node.
    under_way: Option<(CallId, Node)>,
    cancelled: bool,
}

impl ModeAsker {
    fn new(server: &Arc<dyn FileServer>, who: &Arc<Who>, conn: u64) -> Self {
        let (server, who) = (server.clone(), who.clone());
        Self { server, who, conn, answers: Arc::default(), state: Mutex::default() }
    }

    /// Checks that all others have these permissions for a file, and, if it is a directory, may search it too.
    async fn check(&self, node: &Node, want: u32) -> Result<()> {
        let attr = self.attr(node).await?;
        let is_dir = attr.mode & mode::S_IFMT == mode::S_IFDIR;
        let want = if is_dir { want | EXECUTE } else { want };
        if want & !attr.mode == 0 { Ok(()) } else { Err(Errno::EACCES.into()) }
    }

    /// Attaches to a directory only to check that all others may search it.
    async fn attach(&self, uname: &[u8], aname: &[u8], uid: u32) -> Result<()> {
        let attach = Tmsg::Attach { fid: NOFID, afid: NOFID, uname, aname, n_uname: OnlyIds(uid) };
        let nothing: Node = Arc::new(());
        let Reply::Attach { node, .. } = self.ask(&nothing, frame(&attach)).await? else { return wrong() };
        let checked = self.check(&node, EXECUTE).await;
        self.clunk(&node).await;
        checked
    }

    /// Walks name by name.
    async fn walk(&self, from: Node, names: &[Box<[u8]>]) -> Result<Reply> {
        let (mut qids, mut here) = (Walked::new(), from.clone());
        let mut failed = None;
        for name in names {
            let next = self.step(&here, name).await;
            let is_next = next.as_ref().is_ok_and(|(_, node)| Arc::ptr_eq(node, &here));
            if !is_next && !Arc::ptr_eq(&here, &from) {
                self.clunk(&here).await;
            }
            match next {
                Ok((qid, node)) => {
                    qids.push(qid);
                    here = node;
                }
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        match failed {
            Some(error) if qids.is_empty() || error.errno == Errno::EINTR => Err(error),
            Some(_) => Ok(Reply::Walk { qids, node: None }),
            None => Ok(Reply::Walk { qids, node: Some(here) }),
        }
    }

    async fn step(&self, from: &Node, name: &[u8]) -> Result<(nine_proto::Qid, Node)> {
        self.check(from, EXECUTE).await?;
        let walk = Tmsg::Walk { fid: NOFID, newfid: NOFID, names: WalkNames::Slice(&[name]) };
        match self.ask(from, frame(&walk)).await? {
            Reply::Walk { qids, node: Some(node) } => match qids.iter().next() {
                Some(&qid) => Ok((qid, node)),
                None => wrong(),
            },
            Reply::Walk { node: None, .. } => Err(Errno::ENOENT.into()),
            _ => wrong(),
        }
    }

    async fn attr(&self, node: &Node) -> Result<Attr> {
        let getattr = Tmsg::Getattr { fid: NOFID, mask: GetMask::BASIC.0 };
        match self.ask(node, frame(&getattr)).await? {
            Reply::Attr(attr) if attr.valid.has(GetMask::MODE) => Ok(*attr),
            Reply::Attr(_) => Err(Errno::EACCES.into()),
            _ => wrong(),
        }
    }

    /// Clunks a node that was created for a check, even if the request is cancelled.
    async fn clunk(&self, node: &Node) {
        let _ = self.send(node, frame(&Tmsg::Clunk { fid: NOFID }), true).await;
    }

    async fn ask(&self, node: &Node, frame: MessageFrame) -> Result<Reply> {
        self.send(node, frame, false).await
    }

    async fn send(&self, node: &Node, frame: MessageFrame, is_clunk: bool) -> Result<Reply> {
        let call = req::own_call();
        {
            let mut state = lock(&self.state);
            if state.cancelled && !is_clunk {
                return Err(Errno::EINTR.into());
            }
            state.under_way = Some((call, node.clone()));
        }
        let held = FidEntry { node: node.clone(), who: self.who.clone(), desk: false, root: false };
        let inner = SessionRequest::own(call, frame, Dialect::L, held, 0);
        let request = Request::new(inner, self.who.clone(), self.conn, 0);
        let Answer(now) = self.server.serve(Req::new(request, self.answers.clone()));
        let result = match now {
            Some(result) => result,
            None => self.answer().await,
        };
        lock(&self.state).under_way = None;
        result
    }

    async fn answer(&self) -> Result<Reply> {
        let mut arrived = Vec::new();
        poll_fn(|cx| {
            self.answers.wake(cx.waker());
            self.answers.take(&mut arrived);
            match arrived.pop() {
                Some(answered) => Poll::Ready(answered.result.map(|reply| reply.map_node(|held| held.node))),
                None => Poll::Pending,
            }
        })
        .await
    }

    fn cancel(&self) {
        let under_way = {
            let mut state = lock(&self.state);
            state.cancelled = true;
            state.under_way.clone()
        };
        if let Some((call, node)) = under_way {
            self.server.cancel(ReqId { conn: self.conn, call }, Some(&node));
        }
    }
}

fn frame(message: &Tmsg<'_>) -> MessageFrame {
    let mut bytes = Vec::new();
    message.encode(Tag(0), Dialect::L, &mut bytes);
    MessageFrame::of(bytes)
}

/// The file server has sent a reply of the wrong kind.
fn wrong<T>() -> Result<T> {
    Err(Errno::EIO.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directories_above_an_attach_begin_at_the_root() {
        let of = |aname: &'static str| -> Vec<&str> {
            above(aname.as_bytes()).map(|above| std::str::from_utf8(above).unwrap()).collect()
        };
        assert!(of("").is_empty() && of("/").is_empty() && of("/.").is_empty());
        assert_eq!(of("lab"), [""]);
        assert_eq!(of("/a/b"), ["/", "/a"]);
        assert_eq!(of("lab//a/./b/"), ["", "lab", "lab//a/."]);
    }
}
