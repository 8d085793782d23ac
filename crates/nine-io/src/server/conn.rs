//! One connection: a task that turns a client's bytes into requests and answers into bytes.
//!
//! In: a [`Transport`], a [`FileServer`]. Out: nothing; the future ends when the client has gone and everything it
//! left behind is settled. A poll reads what has come, serves all of it, and sends all replies in one vectored write.
//!
//! Always holds:
//! - A connection can harm only itself. A request is charged what it may cost (its data, or its largest answer) until
//!   its answer has left. Every connection may hold [`FLOOR`] bytes; what is more is borrowed from the core's budget,
//!   up to [`CEILING`]. Without credit the client's socket is not read; when the budget is used up, answers shrink to
//!   the floor and a client that fills a large message meanwhile is cut off.
//! - A turn ends after [`TURN_MESSAGES`] messages or [`TURN_BYTES`] bytes; the rest waits for the next one.
//! - When the client goes, its outstanding requests are cancelled, its fids are clunked, and what late answers made
//!   is undone. Nobody waits for that but this task.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use nine_net::{Peer, Transport};
use nine_proto::session::server::{CallId, Request as SessionRequest, Session, Step};
use nine_proto::{Errno, Names, Op, Reply as ProtoReply, Result, WireError, frame, msg};

use super::gate::{self, Gate};
use super::req::{Answer, Answered, Answers, FileServer, Held, Req, ReqId, Request, Who};
use super::rx::Rx;
use super::tx::Tx;
use super::{Core, Service};
use crate::buf::Frame;
use crate::payload::Payload;

/// Requests of one client that are not answered yet; at the limit its socket is not read.
pub const OUTSTANDING: usize = 1024;
/// Bytes that every connection may hold, whatever the others do.
pub const FLOOR: usize = 64 * 1024;
/// Bytes that one connection may hold; at the limit its socket is not read.
pub const CEILING: usize = 8 * 1024 * 1024;
/// Messages of one turn.
pub const TURN_MESSAGES: usize = 64;
/// Bytes of one turn, received or queued.
pub const TURN_BYTES: usize = 256 * 1024;

/// Why a connection ended.
#[derive(Debug)]
enum End {
    /// The client closed it.
    Closed,
    /// The server drains, and this client's answers have left.
    Drained,
    /// The transport failed.
    Io(io::Error),
    /// The client sent what is not 9P.
    Malformed(WireError),
    /// A large message was coming in while the core had no memory left.
    Memory,
}

/// See the module. Poll it on the core that made it.
pub struct Connection {
    id: u64,
    /// `None`: the client has gone.
    transport: Option<Box<dyn Transport>>,
    peer: Peer,
    session: Session<Held, Frame>,
    server: Arc<dyn FileServer>,
    names: Arc<dyn Names>,
    gate: Arc<Gate>,
    core: Core,
    rx: Rx,
    tx: Tx,
    answers: Arc<Answers>,
    arrived: Vec<Answered>,
    /// Requests that will be answered later.
    later: usize,
    /// What outstanding requests cost, bytes.
    charged: usize,
    /// What of that is borrowed from the core.
    borrowed: usize,
    registered: bool,
}

impl Connection {
    pub(super) fn new(service: &Service, transport: Box<dyn Transport>) -> Self {
        let names = service.server.names();
        Self {
            id: service.core.next_id(),
            peer: transport.peer().clone(),
            transport: Some(transport),
            session: Session::new(service.dialects, service.limits, names.clone()),
            server: service.server.clone(),
            names,
            gate: service.gate.clone(),
            core: service.core.clone(),
            rx: Rx::default(),
            tx: Tx::default(),
            answers: Arc::default(),
            arrived: Vec::new(),
            later: 0,
            charged: 0,
            borrowed: 0,
            registered: false,
        }
    }

    /// Reads, serves and sends until there is nothing to do or the turn is over.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let (mut messages, mut bytes) = (0, 0);
        let draining = self.core.draining();
        loop {
            self.take_answers(cx.waker());
            let mut starved = false;
            while messages < TURN_MESSAGES && bytes + self.tx.queued() < TURN_BYTES && !draining {
                starved = !self.has_credit();
                if starved {
                    break;
                }
                match self.rx.frame(self.session.msize()) {
                    Ok(Some(frame)) => {
                        messages += 1;
                        bytes += frame.as_ref().len();
                        if let Err(error) = self.receive(frame) {
                            return Poll::Ready(End::Malformed(error));
                        }
                    }
                    Ok(None) => break,
                    Err(error) => return Poll::Ready(End::Malformed(error)),
                }
            }
            let over = messages >= TURN_MESSAGES || bytes + self.tx.queued() >= TURN_BYTES;
            let queued = self.tx.queued();
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            let flushed = match self.tx.poll_flush(cx, &mut **transport) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return Poll::Ready(End::Io(error)),
                Poll::Pending => false,
            };
            let progress = self.tx.queued() < queued;
            self.settle();
            if draining {
                return self.drain(cx, flushed);
            }
            if over {
                // With a turn's worth of answers waiting, only the socket's writability changes anything.
                if flushed || self.tx.queued() < TURN_BYTES {
                    cx.waker().wake_by_ref();
                }
                return Poll::Pending;
            }
            if starved {
                // Answers or the socket's writability will wake us.
                if progress && self.has_credit() {
                    continue;
                }
                return Poll::Pending;
            }
            if self.rx.partial() > FLOOR && self.core.exhausted() {
                return Poll::Ready(End::Memory);
            }
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            match self.rx.poll_fill(cx, &mut **transport, &self.core.pool) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Closed),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(End::Io(error)),
                Poll::Pending => {
                    if self.session.outstanding() == 0 {
                        self.tx.shrink();
                        self.session.shrink();
                        self.arrived = Vec::new();
                    }
                    self.settle();
                    return Poll::Pending;
                }
            }
        }
    }

    /// Nothing more is read: ends when the last answer has left.
    fn drain(&mut self, cx: &mut Context<'_>, flushed: bool) -> Poll<End> {
        if self.later > 0 || !flushed {
            return Poll::Pending;
        }
        match self.transport.as_mut().map(|transport| transport.poll_close(cx)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Err(error))) => Poll::Ready(End::Io(error)),
            _ => Poll::Ready(End::Drained),
        }
    }

    fn receive(&mut self, frame: Frame) -> Result<(), WireError> {
        if tracing::enabled!(tracing::Level::TRACE) {
            let dialect = self.session.dialect().unwrap_or(nine_proto::Dialect::P2000);
            if let Ok((tag, message)) = msg::Tmsg::decode(frame.as_ref(), dialect) {
                tracing::trace!(conn = self.id, "<- {}", message.with_tag(tag));
            }
        }
        if frame::type_of(frame.as_ref()) == TVERSION {
            self.cancel_all();
            self.charged = 0;
        }
        match self.session.receive(frame, &mut self.tx)? {
            Step::Answered | Step::Waits => {}
            Step::Serve(request) => self.serve(request),
            Step::Cancel(call) => self.server.cancel(ReqId { conn: self.id, call }),
            Step::Reset(clunks) => clunks.into_iter().for_each(|clunk| self.serve(clunk)),
        }
        Ok(())
    }

    /// Has a request served, and whatever becomes possible by its answer.
    fn serve(&mut self, request: SessionRequest<Held, Frame>) {
        let mut next = Some(request);
        while let Some(mut request) = next {
            let id = request.id();
            self.charged += self.session.cost(id).unwrap_or(0);
            if self.load() > FLOOR && self.core.exhausted() {
                request.limit(FLOOR as u32);
            }
            match self.ask(request) {
                Some(result) => self.respond(id, result),
                None => self.later += 1,
            }
            next = self.session.next_ready();
        }
    }

    /// Asks the gate or the file server. `None`: the answer comes later.
    fn ask(&mut self, request: SessionRequest<Held, Frame>) -> Option<Result<ProtoReply<Held, Payload>>> {
        let (changes, silent) = (request.changes(), request.is_silent());
        let held = request.fid();
        let auth = held.is_some_and(|held| gate::is_afid(&*held.node));
        let who = match held {
            Some(held) => held.who.clone(),
            None => match self.introduce(&request) {
                Ok(who) => who,
                Err(error) => return Some(Err(error)),
            },
        };
        let knows_no_fid = held.is_none();
        let request = Request::new(request, who.clone(), self.id);
        let by_gate = if auth || knows_no_fid { self.gate.serve(&request) } else { None };
        let answer = match by_gate {
            Some(result) => Some(result),
            None if changes && who.read_only && !silent => Some(Err(Errno::EROFS.into())),
            None => {
                let Answer(result) = self.server.serve(Req::new(request, self.answers.clone()));
                result
            }
        };
        answer.map(|result| result.map(|reply| reply.map_node(|node| Held { node, who })))
    }

    /// Who sends a Tattach or a Tauth.
    fn introduce(&self, request: &SessionRequest<Held, Frame>) -> Result<Arc<Who>> {
        let proof = &self.peer.proof;
        match request.op() {
            Op::Attach { uname, aname, uid } => {
                let afid = request.fid2().map(|held| &held.node);
                let admitted = self.gate.admit(proof, uname, uid, aname, afid, &*self.names);
                match &admitted {
                    Ok(who) => tracing::info!(
                        conn = self.id, peer = %self.peer.addr, user = %who.name, read_only = who.read_only, "attached"
                    ),
                    Err(error) => tracing::warn!(
                        conn = self.id, peer = %self.peer.addr, "attach as {} refused: {error}",
                        nine_proto::show(uname)
                    ),
                }
                admitted.map(Arc::new)
            }
            _ => Ok(Arc::new(Who { name: "none".into(), uid: None, proof: proof.clone(), read_only: true })),
        }
    }

    fn respond(&mut self, id: CallId, result: Result<ProtoReply<Held, Payload>>) {
        self.charged -= self.session.cost(id).unwrap_or(0).min(self.charged);
        let before = self.tx.tail_len();
        if let Some(held) = self.session.respond(id, result, &mut self.tx) {
            // Its session is gone; the clunk of a node makes no node.
            self.serve(SessionRequest::silent(held, false));
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            self.tx.trace(before, self.id, self.session.dialect());
        }
    }

    fn take_answers(&mut self, waker: &Waker) {
        let mut arrived = std::mem::take(&mut self.arrived);
        self.answers.take(&mut arrived, waker);
        self.later -= arrived.len();
        for (id, result) in arrived.drain(..) {
            self.respond(id, result);
            if let Some(request) = self.session.next_ready() {
                self.serve(request);
            }
        }
        self.arrived = arrived;
    }

    /// Bytes this connection holds.
    fn load(&self) -> usize {
        self.charged + self.tx.queued() + self.rx.partial()
    }

    fn has_credit(&self) -> bool {
        let load = self.charged + self.tx.queued();
        self.session.outstanding() < OUTSTANDING
            && (load < FLOOR || (load < CEILING && !self.core.exhausted()))
            && self.later < 2 * OUTSTANDING
    }

    /// Borrows from the core, or gives back, what is above the floor now.
    fn settle(&mut self) {
        let borrow = self.load().saturating_sub(FLOOR);
        self.core.borrow(self.borrowed, borrow);
        self.borrowed = borrow;
    }

    fn cancel_all(&mut self) {
        for call in self.session.served() {
            self.server.cancel(ReqId { conn: self.id, call });
        }
    }

    /// The client has gone: lets go of everything but what is being served.
    fn finish(&mut self, end: &End) {
        let (conn, peer) = (self.id, &*self.peer.addr);
        match end {
            End::Closed => tracing::info!(conn, %peer, "closed by the client"),
            End::Drained => tracing::info!(conn, %peer, "drained"),
            End::Io(error) => tracing::info!(conn, %peer, "lost: {error}"),
            End::Malformed(error) => tracing::warn!(conn, %peer, "cut off: {error}"),
            End::Memory => {
                tracing::warn!(conn, %peer, "cut off: a large message was coming in and no buffers were left");
            }
        }
        self.transport = None;
        self.cancel_all();
        self.answers.close();
        let clunks = self.session.close();
        self.rx = Rx::default();
        self.tx = Tx::default();
        self.charged = 0;
        clunks.into_iter().for_each(|clunk| self.serve(clunk));
        self.settle();
        self.core.leave(self.id);
        self.registered = false;
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.transport.is_some() {
            if !this.registered {
                this.core.enter(this.id, cx.waker());
                this.registered = true;
            }
            match this.turn(cx) {
                Poll::Ready(end) => this.finish(&end),
                Poll::Pending => return Poll::Pending,
            }
        }
        this.take_answers(cx.waker());
        if this.later == 0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.transport.is_some() {
            self.finish(&End::Closed);
        }
    }
}

const TVERSION: u8 = 100;
