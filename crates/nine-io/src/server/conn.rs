//! One connection: a task that turns a client's bytes into requests and answers into bytes.
//!
//! In: a [`Transport`], a [`FileServer`]. Out: nothing; the future ends when the client has gone and everything it
//! left behind is settled. A poll reads what has come, serves all of it, and sends all replies in one vectored write.
//!
//! Always holds:
//! - A connection can harm only itself. A request is charged what it may cost (its data, or its largest answer) until
//!   its answer has left, also when its session is gone by then. Every connection may hold [`FLOOR`] bytes; what is
//!   more is borrowed from the core's budget: at most [`CEILING`], and at most a quarter of what is left, so that no
//!   number of clients takes all of it. Without credit the client's socket is not read, but a Tflush, Tclunk or
//!   Tversion at the front is let through, and a hang-up is noticed.
//! - A turn ends after [`TURN_MESSAGES`] messages or [`TURN_BYTES`] bytes; the rest waits for the next one.
//! - When the client goes, its outstanding requests are cancelled, its fids are clunked once nothing uses them any
//!   more, and what late answers made is undone. Nobody waits for that but this task.

mod attach;
mod call;
mod end;
mod fids;
mod other;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::{Fault, Peer, Placed, Transport};
use nine_proto::session::server::{CALL_COST, CallId, Request as SessionRequest, Session, Step};
use nine_proto::stream::MAGIC;
use nine_proto::{Errno, Error, Fid, Names, Op, Reply as ProtoReply, Result, WireError, frame, msg, show};

use super::desk::Desk;
use super::gate::{self, Gate};
use super::req::{self, Answer, Answered, Answers, FileServer, Held, Reply, Req, ReqId, Request, Who};
use super::rx::Rx;
use super::seen::Seen;
use super::stream::{self, Stream, Streams, Way};
use super::trees::Trees;
use super::tx::Tx;
use super::unattached::UnattachedConnection;
use super::{Core, Service};
use crate::buf::{Frame, Pool};
use crate::changes;
use crate::direct::Directs;
use crate::limits::{ClientPrincipal, FairShare, address_prefix};
use crate::payload::Payload;
use attach::asks_for_desk;
use end::{End, note};
pub use fids::{FIDS_ALL, FIDS_FLOOR};
use other::OtherCheck;

/// Requests of one client that are not answered yet; at the limit its socket is not read.
pub const OUTSTANDING: usize = 1024;
/// The same of a connection from within this process: those of many clients come by it.
pub const OUTSTANDING_OWN: usize = 16 << 10;
/// Bytes that every connection may hold, whatever the others do: a message of the msize that Linux asks for, and some.
pub const FLOOR: usize = 192 * 1024;
/// Bytes that one connection may hold; at the limit its socket is not read. Above half of it reads are shortened to
/// [`SHORT`], so that reads which wait for ever leave room for what would end them.
pub const CEILING: usize = 16 * 1024 * 1024;
/// Bytes that a shortened read may bring.
pub const SHORT: u32 = 4096;
/// Open files that every connection may have. It may have more, up to half of what is left of the core's, which is
/// half of the descriptors of the process.
pub const OPENS_FLOOR: usize = 16;
/// Messages of one turn.
pub const TURN_MESSAGES: usize = 64;
/// Bytes of one turn, received or queued.
pub const TURN_BYTES: usize = 256 * 1024;

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
    /// What it has of what the gate's policy gives.
    trees: Trees,
    known: Option<Arc<Who>>,
    own: bool,
    seat: u16,
    core: Core,
    rx: Rx,
    tx: Tx,
    answers: Arc<Answers>,
    arrived: Vec<Answered>,
    /// Clunks to be served for fids that are gone: a turn serves [`TURN_MESSAGES`] of them.
    clunks: VecDeque<SessionRequest<Held, Frame>>,
    /// Such clunks that wait until so many requests on their node have been answered.
    limbo: Vec<(SessionRequest<Held, Frame>, u32)>,
    /// Requests that wait until it is known whether all others may do that.
    checks: Vec<OtherCheck>,
    /// Requests that will be answered later, these among them.
    later: usize,
    /// What outstanding requests cost, bytes.
    charged: usize,
    /// What of all this is borrowed from the core.
    borrowed: usize,
    /// Open files, as the core knows.
    opens: usize,
    /// Fids that it may have above its floor.
    fids: FairShare,
    /// The prefix of the client's address.
    prefix: Arc<str>,
    /// Until it has attached.
    unattached: Option<Arc<UnattachedConnection>>,
    /// Who attached last, as the log says it.
    user: Box<str>,
    /// What others may see of it.
    seen: Arc<Seen>,
    /// Messages received.
    received: u64,
    /// The waker that the core has.
    entered: Option<Waker>,
    drained: bool,
    streams: Ours,
    /// The transport, when it has shown that it carries a stream, and what has come of it.
    data: Option<(Box<dyn Transport>, Vec<u8>)>,
    /// The conversation's own files, where modules can be pushed.
    desk: Option<Box<Desk>>,
    /// A control text that has been accepted: it takes effect when its answer has left.
    border: Option<(String, usize)>,
    /// What each module that the client has pushed may hold, bytes.
    modules: Vec<usize>,
    /// Where a client of this process finds its open files.
    directs: Option<Arc<Directs>>,
    /// The file of the request at hand was called, in vain.
    called: bool,
}

/// The streams of one client.
#[derive(Default)]
struct Ours {
    how: Option<Streams>,
    by_fid: HashMap<Fid, Arc<Stream>>,
    /// Offers that perhaps nobody has taken, by the time they are void.
    offered: VecDeque<Arc<Stream>>,
    /// Those whose fid is gone and that still use its node, with the clunk or remove that waits for that. Without one:
    /// those of a session before, for which all of its clunks wait.
    ending: Vec<(Arc<Stream>, Option<Clunk>)>,
}

type Clunk = SessionRequest<Held, Frame>;

impl Ours {
    /// Streams of a session before still use their nodes.
    fn are_ending(&self) -> bool {
        self.ending.iter().any(|(_, clunk)| clunk.is_none())
    }
}

impl Connection {
    pub(super) fn new(service: &Service, transport: Box<dyn Transport>) -> Self {
        let names = service.server.names();
        let id = service.core.next_id();
        note!(service.own, conn = id, peer = %transport.peer().addr, "connected");
        let directs = Directs::of(&*transport);
        let (transport, desk) = match &service.pushed {
            Some(pushed) => {
                let (transport, desk) = Desk::new(pushed, &service.begins, transport);
                (transport, Some(Box::new(desk)))
            }
            None => (transport, None),
        };
        let prefix = address_prefix(&transport.peer().addr);
        let principal = ClientPrincipal::of_peer(&transport.peer().proof, &prefix);
        let mut session = Session::new(service.dialects, service.limits, names.clone());
        if !service.own {
            session.limit_fids(FIDS_FLOOR);
        }
        Self {
            id,
            peer: transport.peer().clone(),
            session,
            server: service.server.clone(),
            names,
            gate: service.gate.clone(),
            trees: Trees::default(),
            known: service.known.clone(),
            own: service.own,
            seat: service.seat,
            core: service.core.clone(),
            rx: Rx::default(),
            tx: Tx::default(),
            answers: Arc::default(),
            arrived: Vec::new(),
            clunks: VecDeque::new(),
            limbo: Vec::new(),
            checks: Vec::new(),
            later: 0,
            charged: 0,
            borrowed: 0,
            opens: 0,
            fids: service.core.fids().charge(&principal, 0),
            prefix,
            unattached: None,
            user: Box::default(),
            seen: service.core.introduce(id, &transport.peer().addr),
            received: 0,
            transport: Some(transport),
            entered: None,
            drained: false,
            streams: Ours { how: service.streams.clone(), ..Ours::default() },
            data: None,
            desk,
            border: None,
            modules: Vec::new(),
            directs,
            called: false,
        }
    }

    /// Reads, serves and sends until there is nothing to do or the turn is over.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        let (mut messages, mut bytes) = (0, 0);
        if let Some(transport) = &self.transport
            && let Err(error) = self.trees.judge_again(&self.gate, &self.core, &**transport)
        {
            return Poll::Ready(End::Judged(error));
        }
        let draining = self.core.draining();
        if draining && !std::mem::replace(&mut self.drained, true) {
            // What may wait for ever shall not hold us up.
            self.cancel_all();
            self.end_streams();
        }
        if self.server.has_descriptors() {
            self.session.limit_opens(OPENS_FLOOR.max((self.core.free_opens() + self.opens) / 2));
        }
        loop {
            self.settle_checks(cx.waker());
            self.take_answers();
            self.settle_streams(cx.waker());
            self.serve_clunks(cx.waker());
            let mut starved = false;
            while messages < TURN_MESSAGES
                && bytes + self.tx.queued() < TURN_BYTES
                && !draining
                && self.border.is_none()
            {
                starved = self.starved();
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
                    Err(_) if self.is_data() => return Poll::Ready(End::Data),
                    Err(error) => return Poll::Ready(End::Malformed(error)),
                }
            }
            if self.desk.as_ref().is_some_and(|desk| desk.used) {
                self.look_at_desk();
            }
            let over = messages >= TURN_MESSAGES || bytes + self.tx.queued() >= TURN_BYTES;
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            let flushed = match self.tx.poll_flush(cx, &mut **transport) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return Poll::Ready(End::Io(error)),
                Poll::Pending => false,
            };
            self.settle();
            if draining {
                return self.drain(cx, flushed);
            }
            if let Some((text, cost)) = self.border.take_if(|_| flushed && self.later == 0) {
                if let Err(fault) = self.change(&text, cost) {
                    return Poll::Ready(End::Io(io::Error::other(fault)));
                }
                continue;
            }
            if self.border.is_some() {
                return self.hung_up(cx);
            }
            if over {
                // With a turn's worth of answers waiting, only the socket's writability changes anything.
                if flushed || self.tx.queued() < TURN_BYTES {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return self.hung_up(cx);
            }
            if starved {
                // Woken by answers, by the socket's writability, or by memory that another connection gives back.
                self.core.memory().wait(self.id, cx.waker());
                if !self.starved() {
                    continue;
                }
                return self.hung_up(cx);
            }
            if self.rx.held() > self.ceiling() {
                return Poll::Ready(End::Memory);
            }
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            match self.rx.poll_fill(cx, &mut **transport, Pool::here) {
                Poll::Ready(Ok(0)) => return Poll::Ready(End::Closed),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(End::Io(error)),
                Poll::Pending => {
                    self.tx.shrink();
                    self.session.shrink();
                    self.settle();
                    if !self.clunks.is_empty() && !self.streams.are_ending() {
                        // Of fids that the last message has freed: nobody else will wake us for them.
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Decides about a text that was written to the conversation's ctl.
    fn look_at_desk(&mut self) {
        let Some((text, ask)) = self.desk.as_ref().and_then(|desk| desk.asked()) else { return };
        let alone = self.session.outstanding() == 1
            && self.rx.rest().is_empty()
            && self.streams.by_fid.values().all(|stream| stream.is_over())
            && self.streams.ending.is_empty();
        let checked = match &self.transport {
            Some(transport) if alone => {
                transport.check(&text).map_err(|fault| Error::new(Errno::EINVAL, fault.to_string()))
            }
            _ => Err(Error::new(Errno::EBUSY, "other requests are under way")),
        };
        let checked = match checked {
            Ok(0) if self.modules.is_empty() => {
                Err(Error::new(Errno::EPERM, "what a listener begins with stays"))
            }
            Ok(cost) if cost > 0 && self.modules.iter().sum::<usize>() + cost > self.share() => {
                Err(Error::new(Errno::ENOMEM, "this server has no memory left for such a module"))
            }
            other => other,
        };
        if let Ok(cost) = checked {
            self.border = Some((text, cost));
        }
        ask.done(checked.map(drop));
        self.take_answers();
    }

    /// The border: what follows is said in another form.
    fn change(&mut self, text: &str, cost: usize) -> std::result::Result<(), Fault> {
        let Some(transport) = &mut self.transport else { return Ok(()) };
        transport.control(text)?;
        match cost {
            0 => drop(self.modules.pop()),
            cost => self.modules.push(cost),
        }
        let status = transport.status();
        let modules: Vec<_> = status.lines().filter_map(|line| line.split(' ').next()).collect();
        let modules = modules.join(", ");
        note!(self.own, conn = self.id, peer = %self.peer.addr, modules, "{}", show(text.as_bytes()));
        Ok(())
    }

    /// The socket is not read: notices all the same when the client goes.
    fn hung_up(&mut self, cx: &mut Context<'_>) -> Poll<End> {
        match &mut self.transport {
            Some(transport) => transport.poll_hangup(cx).map(|()| End::Closed),
            None => Poll::Pending,
        }
    }

    /// Nothing more is read: ends when the last answer has left.
    fn drain(&mut self, cx: &mut Context<'_>, flushed: bool) -> Poll<End> {
        if self.later > 0 || !self.streams.ending.is_empty() || !flushed {
            return self.hung_up(cx);
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
        self.received += 1;
        self.called = match self.call(&frame) {
            Some(true) => return Ok(()),
            called => called.is_some(),
        };
        let (tag, number) = (frame::tag_of(frame.as_ref()), frame::type_of(frame.as_ref()));
        self.take_fids(number);
        if number == TVERSION {
            self.cancel_all();
            self.end_streams();
        }
        // `size[4] type[1] tag[2] fid[4]`
        let ends = frame.as_ref().get(7..11).filter(|_| matches!(number, TCLUNK | TREMOVE));
        let ends = ends.map(|fid| Fid(u32::from_le_bytes(fid.try_into().expect("four bytes"))));
        if let (Some(directs), Some(fid)) = (&self.directs, ends) {
            directs.take(fid);
        }
        match self.session.receive(frame, &mut self.tx)? {
            Step::Answered => {
                // A flush may have been all that others waited behind.
                if let Some(request) = self.session.next_ready() {
                    self.serve(request);
                }
            }
            Step::Waits => {
                if let Some(frame) = self.session.parked_frame(tag) {
                    frame.detach();
                }
                // What it waits for may be a Tsclose, which waits for the end of the stream.
                if let Some(stream) = ends.and_then(|fid| self.streams.by_fid.get(&fid)) {
                    stream.end();
                }
            }
            Step::Serve(request) => self.serve(request),
            Step::Cancel(call) => self.cancel(call),
            Step::Reset(clunks) => self.retire(clunks),
        }
        Ok(())
    }

    /// Has a request served, and whatever becomes possible by its answer.
    fn serve(&mut self, request: SessionRequest<Held, Frame>) {
        let mut next = Some(request);
        while let Some(mut request) = next {
            if !self.streams.by_fid.is_empty()
                && let Some(stream) = self.ends_stream(&request)
            {
                self.streams.ending.push((stream, Some(request)));
                next = self.session.next_ready();
                continue;
            }
            let id = request.id();
            let (load, ceiling) = (self.load(), self.ceiling());
            let room = if 2 * load > ceiling { 0 } else { ceiling - load };
            self.session.limit(&mut request, u32::try_from(room).unwrap_or(u32::MAX).max(SHORT));
            // Of a client of this process its own client has been charged, and reads may wait for ever.
            let cost = self.session.cost(id).filter(|_| !self.own).unwrap_or(CALL_COST);
            // Data that lies with the client is copied in, but where nobody looks at it.
            let placed = request.frame().and_then(Frame::data).map_or(0, Placed::len);
            if placed > 0
                && !request.fid().is_some_and(|held| !held.desk && self.server.takes_placed(&held.node))
            {
                request.frame_mut().expect("just seen").gather(&Pool::here());
            }
            if placed > 0 {
                self.session.set_outside(&request, placed as u32);
            }
            let cost = cost + placed;
            match self.ask(request, cost) {
                Some(result) => self.respond(id, result),
                None => {
                    self.later += 1;
                    self.charged += cost;
                }
            }
            next = self.session.next_ready();
        }
    }

    /// Fids are gone: their clunks are due, at once or when nothing uses their nodes any more.
    fn retire(&mut self, clunks: Vec<SessionRequest<Held, Frame>>) {
        for clunk in clunks {
            match clunk.users() {
                0 => self.clunks.push_back(clunk),
                users => self.limbo.push((clunk, users)),
            }
        }
    }

    fn serve_clunks(&mut self, waker: &Waker) {
        if self.streams.are_ending() {
            return;
        }
        for _ in 0..TURN_MESSAGES {
            let Some(clunk) = self.clunks.pop_front() else { return };
            self.serve(clunk);
        }
        waker.wake_by_ref();
    }

    /// Asks the gate or the file server. `None`: the answer comes later.
    fn ask(
        &mut self,
        request: SessionRequest<Held, Frame>,
        cost: usize,
    ) -> Option<Result<ProtoReply<Held, Payload>>> {
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
        let other = request.fid2().filter(|_| changes).map(|held| &held.who);
        let read_only = who.read_only || other.is_some_and(|other| other.read_only);
        let of_another = other.is_some_and(|other| !other.is_user(&who));
        let knows_no_fid = held.is_none();
        let root = held.is_some_and(|held| held.root);
        let root_again = req::makes_root(&request);
        let desk = match held {
            Some(held) => held.desk,
            None => self.desk.is_some() && asks_for_desk(&request),
        };
        let request = Request::new(request, who.clone(), self.id, cost);
        let request = request.at_desk(desk).at_root(root_again).called(std::mem::take(&mut self.called));
        let by_gate = if auth || knows_no_fid { self.gate.serve(&request) } else { None };
        let answer = match by_gate {
            Some(result) => Some(result),
            None if changes && read_only && !silent && !desk => {
                if let (Op::Remove, [Some(held), _]) = (request.op(), request.fids()) {
                    // The fid goes all the same, and its server must know.
                    let clunk = self.session.silent(held.clone(), false);
                    self.clunks.push_back(clunk);
                }
                Some(Err(Errno::EROFS.into()))
            }
            None if changes
                && !silent
                && let Some(error) = self.gate.forbids(&request) =>
            {
                Some(Err(error))
            }
            None if of_another => {
                Some(Err(Error::new(Errno::EXDEV, "the two files are held by two users; attach as one")))
            }
            None => {
                let about_stream = matches!(request.number(), Some(TSTREAM | TSCLOSE));
                let req = Req::new(request, self.answers.clone());
                let Answer(result) = match &mut self.desk {
                    Some(files) if desk => files.serve(req, self.transport.as_deref()),
                    _ => match changes::Asked::of(&*self.server, &req, root) {
                        Some(asked) => asked.serve(req),
                        None if about_stream => self.stream(req),
                        None if who.as_other => self.serve_as_other(req),
                        None => self.server.serve(req),
                    },
                };
                result
            }
        };
        answer.map(|result| {
            result.map(|reply| reply.map_node(|node| Held { node, who, desk, root: root_again }))
        })
    }

    /// Whether these are the first bytes of a data connection.
    fn is_data(&self) -> bool {
        self.session.dialect().is_none() && self.streams.how.is_some() && self.rx.rest().starts_with(&MAGIC)
    }

    /// A Tstream or a Tsclose.
    fn stream(&mut self, req: Req) -> Answer {
        let fid = req.fid_number().expect("the session asks for a fid");
        match req.op() {
            Op::Stream { read, offset } => {
                // A data connection would go past what is pushed on the conversation.
                let piped = self.transport.as_ref().is_some_and(|transport| !transport.status().is_empty());
                let how = self.streams.how.clone().filter(|_| !piped);
                let offered = how.ok_or_else(|| Errno::EOPNOTSUPP.into());
                let offered = offered.and_then(|how| self.offer(&req, how, fid, read, offset));
                req.now(offered.map(Reply::Stream))
            }
            Op::Sclose { count } => match self.streams.by_fid.get(&fid) {
                Some(stream) => stream.close(req, count),
                None => req.now(Err(stream::none())),
            },
            _ => unreachable!("only these two come here"),
        }
    }

    fn offer(&mut self, req: &Req, how: Streams, fid: Fid, read: bool, offset: u64) -> Result<Vec<u8>> {
        let ours = &mut self.streams;
        if ours.by_fid.get(&fid).is_some_and(|stream| !stream.is_over()) {
            return Err(Error::new(Errno::EBUSY, "this fid has a stream"));
        }
        ours.offered.retain(|stream| stream.is_offered());
        let [held, _] = req.fids();
        let held = held.expect("a stream has a fid");
        let serial = self.session.is_serial(fid);
        let (by, way) = ((self.id, ours.offered.len()), Way { read, offset, serial });
        let (stream, offer) = Stream::offer(&how, &self.server, &self.core, held, &self.peer, by, way)?;
        ours.by_fid.insert(fid, stream.clone());
        ours.offered.push_back(stream);
        Ok(offer)
    }

    /// When the next offer is void that nobody has taken.
    pub(super) fn offer_due(&mut self) -> Option<Duration> {
        let ours = &mut self.streams;
        while ours.offered.front().is_some_and(|stream| !stream.is_offered()) {
            ours.offered.pop_front();
        }
        ours.offered.front().map(|stream| stream.due)
    }

    /// Lets go of the offers that are void by now.
    pub(super) fn expire_offers(&mut self, now: Duration) {
        let ours = &mut self.streams;
        while ours.offered.front().is_some_and(|stream| stream.due <= now) {
            ours.offered.pop_front().into_iter().for_each(|stream| stream.expire());
        }
    }

    /// The stream that this request makes an end of, if it still uses the fid's node.
    fn ends_stream(&mut self, request: &SessionRequest<Held, Frame>) -> Option<Arc<Stream>> {
        let fid = request.fid_number().filter(|_| matches!(request.number(), Some(TCLUNK | TREMOVE)))?;
        let stream = self.streams.by_fid.remove(&fid)?;
        stream.end();
        let waker = self.entered.as_ref().unwrap_or(Waker::noop());
        (!stream.settled(waker)).then_some(stream)
    }

    /// All streams end: a new session begins, or none is left.
    fn end_streams(&mut self) {
        let ours = &mut self.streams;
        ours.offered.clear();
        for (_, stream) in ours.by_fid.drain() {
            stream.end();
            ours.ending.push((stream, None));
        }
    }

    /// Serves the clunks of fids whose streams use them no more.
    fn settle_streams(&mut self, waker: &Waker) {
        let mut i = 0;
        while let Some((stream, _)) = self.streams.ending.get(i) {
            if stream.settled(waker) {
                let (_, clunk) = self.streams.ending.swap_remove(i);
                clunk.into_iter().for_each(|clunk| self.serve(clunk));
            } else {
                i += 1;
            }
        }
    }

    fn respond(&mut self, id: CallId, result: Result<ProtoReply<Held, Payload>>) {
        let before = self.tx.tail_len();
        self.tx.dialect = self.session.dialect();
        let opens = self.directs.is_some() && matches!(result, Ok(ProtoReply::Open { .. }));
        let fid = self.session.fid_of(id).filter(|_| opens);
        if let Some(held) = self.session.respond(id, result, &mut self.tx) {
            let clunk = self.session.silent(held, false);
            self.clunks.push_back(clunk);
        }
        if let (Some(directs), Some(fid)) = (&self.directs, fid)
            && let Some((held, flags)) = self.session.opened(fid)
            && !held.desk
            && let Some(direct) = self.server.direct(&held.node, flags)
        {
            directs.put(fid, direct);
        }
        if tracing::enabled!(tracing::Level::TRACE) {
            self.tx.trace(before, self.id, self.session.dialect());
        }
    }

    fn take_answers(&mut self) {
        if !self.answers.take(&mut self.arrived) {
            return;
        }
        let mut arrived = std::mem::take(&mut self.arrived);
        for answered in arrived.drain(..) {
            self.later -= 1;
            self.charged -= answered.cost;
            if self.session.cost(answered.call).is_some() {
                self.respond(answered.call, answered.result);
                if let Some(request) = self.session.next_ready() {
                    self.serve(request);
                }
            } else {
                self.stale(answered);
            }
        }
        if arrived.capacity() <= TURN_MESSAGES {
            self.arrived = arrived;
        }
    }

    /// An answer whose session is gone: undoes what it made, and lets go of the nodes it used.
    fn stale(&mut self, answered: Answered) {
        let Answered { call, fids, rclose, result, .. } = answered;
        let is = |held: &Held, other: &SessionRequest<Held, Frame>| {
            other.fid().is_some_and(|fid| Arc::ptr_eq(&fid.node, &held.node))
        };
        if let Some(made) = self.session.respond(call, result, &mut self.tx) {
            let clunk = self.session.silent(made.clone(), rclose);
            // A node that an old fid had too is clunked once, by that fid.
            match self.limbo.iter_mut().find(|(other, _)| is(&made, other)) {
                Some((other, _)) if rclose => *other = clunk,
                Some(_) => {}
                None if fids.iter().flatten().any(|held| Arc::ptr_eq(&held.node, &made.node)) => {}
                None => self.clunks.push_back(clunk),
            }
        }
        for held in fids.iter().flatten() {
            let Some(i) = self.limbo.iter().position(|(other, _)| is(held, other)) else { continue };
            self.limbo[i].1 -= 1;
            if self.limbo[i].1 == 0 {
                let (clunk, _) = self.limbo.swap_remove(i);
                self.clunks.push_back(clunk);
            }
        }
    }

    /// Bytes that requests and answers hold now.
    fn load(&self) -> usize {
        self.charged + self.session.deferred_bytes() + self.tx.held()
    }

    fn has_credit(&self) -> bool {
        self.session.outstanding() < self.most()
            && self.later < 2 * self.most()
            && self.load() < self.ceiling()
    }

    /// Requests under way at once.
    fn most(&self) -> usize {
        if self.own { OUTSTANDING_OWN } else { OUTSTANDING }
    }

    /// Whether a message waits that may not be served now. What may end what is in the way is served in any case.
    fn starved(&self) -> bool {
        if self.has_credit() {
            return false;
        }
        match self.rx.front_type(self.session.msize()) {
            None => false,
            Some(TFLUSH | TCLUNK | TVERSION) => self.session.outstanding() >= 2 * self.most(),
            Some(_) => true,
        }
    }

    /// What this connection may hold now.
    fn ceiling(&self) -> usize {
        CEILING.min(FLOOR + self.share())
    }

    fn share(&self) -> usize {
        (self.core.memory().free() + self.borrowed) / 4
    }

    /// Borrows from the core, or gives back, what is above the floor now.
    fn settle(&mut self) {
        let modules: usize = self.modules.iter().sum();
        let all = self.load() + self.rx.held() + modules;
        let borrow = all.saturating_sub(FLOOR);
        self.core.memory().borrow(self.borrowed, borrow);
        self.borrowed = borrow;
        self.seen.moved(self.received, self.session.fid_count(), self.session.outstanding());
        self.seen.carried(self.rx.total, self.tx.total);
        let opens = if self.server.has_descriptors() { self.session.open_count() } else { 0 };
        self.core.opened(self.opens, opens);
        self.opens = opens;
        self.give_back_fids();
    }

    /// When the client came, and its entry among those that have not attached, if it may have to go for another.
    pub(super) fn began(&mut self, wall: Duration, unattached: Option<Arc<UnattachedConnection>>) {
        self.seen.began(wall);
        self.unattached = unattached;
    }

    /// What it was if it was no client: the data connection of a stream, and what has come of it.
    pub(super) fn take_data(&mut self) -> Option<(Box<dyn Transport>, Vec<u8>)> {
        self.data.take()
    }

    /// Whether the client has sent a Tversion that we understand.
    pub(super) fn has_greeted(&self) -> bool {
        self.session.dialect().is_some() || self.transport.is_none()
    }

    /// Ends a connection that has not attached, if another one needs its place.
    pub(super) fn make_room(&mut self, cx: &mut Context<'_>) {
        if self.unattached.as_ref().is_some_and(|entry| entry.poll_evicted(cx).is_ready()) {
            self.unattached = None;
            self.finish(&End::Evicted);
        }
    }

    /// Ends a connection whose client has said nothing in time.
    pub(super) fn expire(&mut self) {
        self.finish(&End::Silent);
    }

    fn cancel_all(&mut self) {
        for call in self.session.served() {
            self.cancel(call);
        }
    }

    fn cancel(&self, call: CallId) {
        let id = ReqId { conn: self.id, call };
        if let Some(stream) = self.session.fid_of(call).and_then(|fid| self.streams.by_fid.get(&fid)) {
            stream.flush(id);
        }
        match (self.session.node(call), &self.desk) {
            _ if self.cancel_check(call) => {}
            (Some(held), Some(desk)) if held.desk => desk.cancel(id),
            (Some(held), _) if changes::cancel(&held.node, id) => {}
            (held, _) => self.server.cancel(id, held.map(|held| &held.node)),
        }
    }

    /// The client has gone: lets go of everything but what is being served.
    fn finish(&mut self, end: &End) {
        end.tell(self.own, self.id, &self.peer.addr, &self.user);
        let transport = self.transport.take();
        self.data = transport.filter(|_| matches!(end, End::Data)).map(|t| (t, self.rx.rest().to_vec()));
        self.cancel_all();
        self.end_streams();
        let clunks = self.session.close();
        self.retire(clunks);
        self.rx = Rx::default();
        self.tx = Tx::default();
        self.settle();
    }
}

impl Future for Connection {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if !this.entered.as_ref().is_some_and(|waker| waker.will_wake(cx.waker())) {
            this.core.enter(this.id, cx.waker());
            this.answers.wake(cx.waker());
            this.entered = Some(cx.waker().clone());
        }
        if this.transport.is_some() {
            match this.turn(cx) {
                Poll::Ready(end) => this.finish(&end),
                Poll::Pending => return Poll::Pending,
            }
        }
        this.settle_checks(cx.waker());
        this.take_answers();
        this.settle_streams(cx.waker());
        this.serve_clunks(cx.waker());
        this.settle();
        let done = this.later == 0 && this.clunks.is_empty() && this.streams.ending.is_empty();
        if done { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Drop for Connection {
    /// What a server still holds of a connection that is dropped early is answered into the void; its clunks are
    /// served.
    fn drop(&mut self) {
        if self.transport.is_some() && !std::thread::panicking() {
            self.finish(&End::Closed);
            let ending = std::mem::take(&mut self.streams.ending).into_iter().filter_map(|(_, clunk)| clunk);
            let clunks = std::mem::take(&mut self.clunks).into_iter().chain(ending);
            clunks.for_each(|clunk| self.serve(clunk));
        }
        self.core.memory().borrow(self.borrowed, 0);
        self.core.opened(self.opens, 0);
        self.core.leave(self.id);
    }
}

const TXATTRWALK: u8 = 30;
const TVERSION: u8 = 100;
const TAUTH: u8 = 102;
const TATTACH: u8 = 104;
const TFLUSH: u8 = 108;
const TWALK: u8 = 110;
const TCLUNK: u8 = 120;
const TREMOVE: u8 = 122;
const TSTREAM: u8 = 128;
const TSCLOSE: u8 = 130;
