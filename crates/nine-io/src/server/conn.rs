//! One connection: a task that turns a client's bytes into requests and their answers into bytes.
//!
//! In: a [`Transport`], a [`FileServer`]. Out: nothing; the future completes when the client is gone and all its
//! requests and fids are settled. A poll reads the available input, serves all of it, and sends all replies in one
//! vectored write.
//!
//! Always holds:
//! - A connection can harm only itself. A request is charged its possible cost (its data, or its largest answer) until
//!   its answer is sent, even if its session has ended. Every connection may hold [`FLOOR`] bytes. The rest is borrowed
//!   from the core's budget: at most [`CEILING`], and at most a quarter of the free budget, so that no number of
//!   clients takes all of it. Without credit the client's socket is not read. But a Tflush, Tclunk or Tversion at the
//!   front of the input is served, and a hang-up is noticed.
//! - A turn ends after [`TURN_MESSAGES`] messages or [`TURN_BYTES`] bytes; the next poll continues.
//! - When the client is gone, its outstanding requests are cancelled. Its fids are clunked once nothing uses them, and
//!   so are the nodes that late answers made. Only this task waits for that.

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

use super::desk::ControlFiles;
use super::gate::{self, Gate};
use super::req::{self, Answer, FidEntry, FileServer, FinishedRequest, LateAnswers};
use super::req::{Reply, Req, ReqId, Request, Who};
use super::rx::FrameReceiver;
use super::seen::PublishedStatus;
use super::stream::{self, ServerStream, StreamStart, Streams};
use super::trees::AttachedTrees;
use super::tx::ReplyQueue;
use super::unattached::UnattachedConnection;
use super::{Core, Service};
use crate::buf::{FramePool, MessageFrame};
use crate::changes;
use crate::direct::DirectFiles;
use crate::limits::{ClientPrincipal, FairShare, address_prefix};
use crate::payload::Payload;
use attach::asks_for_desk;
use end::{ConnectionEnd, note};
pub use fids::{FIDS_ALL, FIDS_FLOOR};
use other::OtherCheck;

/// Unanswered requests of one client; at the limit its socket is not read.
pub const OUTSTANDING: usize = 1024;
/// The same for a connection within this process, which carries the requests of many clients.
pub const OUTSTANDING_OWN: usize = 16 << 10;
/// Bytes that every connection may hold, whatever the others do: a message of Linux's default msize, and some more.
pub const FLOOR: usize = 192 * 1024;
/// Bytes that one connection may hold; at the limit its socket is not read. Above half of it, reads are shortened to
/// [`SHORT`]. So reads that wait forever leave room for the requests that would end them.
pub const CEILING: usize = 16 * 1024 * 1024;
/// Bytes that a shortened read may return.
pub const SHORT: u32 = 4096;
/// Open files that every connection may have. It may have more: up to half of the core's free open files. The core's
/// limit is half of the process's descriptors.
pub const OPENS_FLOOR: usize = 16;
/// Messages of one turn (time slice).
pub const TURN_MESSAGES: usize = 64;
/// Bytes of one turn, received or queued.
pub const TURN_BYTES: usize = 256 * 1024;

/// See the module. Poll it on the core that created it.
pub struct Connection {
    id: u64,
    /// `None`: the client is gone.
    transport: Option<Box<dyn Transport>>,
    peer: Peer,
    session: Session<FidEntry, MessageFrame>,
    server: Arc<dyn FileServer>,
    names: Arc<dyn Names>,
    gate: Arc<Gate>,
    /// The trees that it has attached to, for the gate's policy.
    trees: AttachedTrees,
    known: Option<Arc<Who>>,
    own: bool,
    seat: u16,
    core: Core,
    rx: FrameReceiver,
    tx: ReplyQueue,
    answers: Arc<LateAnswers>,
    arrived: Vec<FinishedRequest>,
    /// Clunks to serve for fids that are gone; a turn serves [`TURN_MESSAGES`] of them.
    clunks: VecDeque<SessionRequest<FidEntry, MessageFrame>>,
    /// Deferred clunks, each with the number of unanswered requests on its node.
    limbo: Vec<(SessionRequest<FidEntry, MessageFrame>, u32)>,
    /// Requests that wait for a check of file modes ([`Who::as_other`]).
    checks: Vec<OtherCheck>,
    /// Requests that will be answered later, including those in `checks`.
    later: usize,
    /// Bytes that outstanding requests are charged.
    charged: usize,
    /// Bytes of all this that are borrowed from the core.
    borrowed: usize,
    /// Open files, as last reported to the core.
    opens: usize,
    /// Fids that it may have above its floor.
    fids: FairShare,
    /// Its place among the attached clients.
    place: Option<FairShare>,
    /// The prefix of the client's address.
    prefix: Arc<str>,
    /// Its queue entry, until it has attached.
    unattached: Option<Arc<UnattachedConnection>>,
    /// The user of the latest attach, as the log shows it.
    user: Box<str>,
    /// Its published status.
    seen: Arc<PublishedStatus>,
    /// Messages received.
    received: u64,
    /// The waker registered with the core.
    entered: Option<Waker>,
    drained: bool,
    streams: ClientStreams,
    /// The transport and the bytes read from it, if it turned out to carry a stream.
    data: Option<(Box<dyn Transport>, Vec<u8>)>,
    /// The connection control files, if modules can be pushed.
    desk: Option<Box<ControlFiles>>,
    /// An accepted text for `ctl` and its cost in bytes. It takes effect when its answer has been sent.
    border: Option<(String, usize)>,
    /// The memory of each module that the client has pushed, in bytes.
    modules: Vec<usize>,
    /// The table through which a client in this process finds its open files.
    directs: Option<Arc<DirectFiles>>,
    /// Whether the file of the current request was called without a result.
    called: bool,
}

/// The streams of one client.
#[derive(Default)]
struct ClientStreams {
    how: Option<Streams>,
    by_fid: HashMap<Fid, Arc<ServerStream>>,
    /// Offers that may be open still, ordered by expiry.
    offered: VecDeque<Arc<ServerStream>>,
    /// Streams that still use the node of a fid that is gone, with the clunk or remove that waits for them. `None`: a
    /// stream of an earlier session, for which all clunks of that session wait.
    ending: Vec<(Arc<ServerStream>, Option<ClunkRequest>)>,
}

type ClunkRequest = SessionRequest<FidEntry, MessageFrame>;

impl ClientStreams {
    /// Whether streams of an earlier session still use their nodes.
    fn are_ending(&self) -> bool {
        self.ending.iter().any(|(_, clunk)| clunk.is_none())
    }
}

impl Connection {
    pub(super) fn new(service: &Service, transport: Box<dyn Transport>) -> Self {
        let names = service.server.names();
        let id = service.core.next_id();
        note!(service.own, conn = id, peer = %transport.peer().addr, "connected");
        let directs = DirectFiles::of(&*transport);
        let (transport, desk) = match &service.pushed {
            Some(pushed) => {
                let (transport, desk) = ControlFiles::new(pushed, &service.begins, transport);
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
            trees: AttachedTrees::default(),
            known: service.known.clone(),
            own: service.own,
            seat: service.seat,
            core: service.core.clone(),
            rx: FrameReceiver::default(),
            tx: ReplyQueue::default(),
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
            place: None,
            prefix,
            unattached: None,
            user: Box::default(),
            seen: service.core.introduce(id, &transport.peer().addr),
            received: 0,
            transport: Some(transport),
            entered: None,
            drained: false,
            streams: ClientStreams { how: service.streams.clone(), ..ClientStreams::default() },
            data: None,
            desk,
            border: None,
            modules: Vec::new(),
            directs,
            called: false,
        }
    }

    /// Reads, serves and sends until no work is left or the turn is over.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        let (mut messages, mut bytes) = (0, 0);
        if let Some(transport) = &self.transport
            && let Err(error) = self.trees.judge_again(&self.gate, &self.core, &**transport)
        {
            return Poll::Ready(ConnectionEnd::Judged(error));
        }
        let draining = self.core.draining();
        if draining && !std::mem::replace(&mut self.drained, true) {
            // Requests that may wait forever must not delay the drain.
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
                            return Poll::Ready(ConnectionEnd::Malformed(error));
                        }
                    }
                    Ok(None) => break,
                    Err(_) if self.is_data() => return Poll::Ready(ConnectionEnd::Data),
                    Err(error) => return Poll::Ready(ConnectionEnd::Malformed(error)),
                }
            }
            if self.desk.as_ref().is_some_and(|desk| desk.used) {
                self.look_at_desk();
            }
            let over = messages >= TURN_MESSAGES || bytes + self.tx.queued() >= TURN_BYTES;
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            let flushed = match self.tx.poll_flush(cx, &mut **transport) {
                Poll::Ready(Ok(())) => true,
                Poll::Ready(Err(error)) => return Poll::Ready(ConnectionEnd::Io(error)),
                Poll::Pending => false,
            };
            self.settle();
            if draining {
                return self.drain(cx, flushed);
            }
            if let Some((text, cost)) = self.border.take_if(|_| flushed && self.later == 0) {
                if let Err(fault) = self.change(&text, cost) {
                    return Poll::Ready(ConnectionEnd::Io(io::Error::other(fault)));
                }
                continue;
            }
            if self.border.is_some() {
                return self.hung_up(cx);
            }
            if over {
                // If a full turn of answers waits to be sent, only the socket's writability changes anything.
                if flushed || self.tx.queued() < TURN_BYTES {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                return self.hung_up(cx);
            }
            if starved {
                // Woken by answers, by the socket's writability, or when another connection returns memory.
                self.core.memory().wait(self.id, cx.waker());
                if !self.starved() {
                    continue;
                }
                return self.hung_up(cx);
            }
            if self.rx.held() > self.ceiling() {
                return Poll::Ready(ConnectionEnd::Memory);
            }
            let Some(transport) = &mut self.transport else { return Poll::Pending };
            match self.rx.poll_fill(cx, &mut **transport, FramePool::here) {
                Poll::Ready(Ok(0)) => return Poll::Ready(ConnectionEnd::Closed),
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(ConnectionEnd::Io(error)),
                Poll::Pending => {
                    self.tx.shrink();
                    self.session.shrink();
                    self.settle();
                    if !self.clunks.is_empty() && !self.streams.are_ending() {
                        // The last message has freed these fids: no other event will wake this task for them.
                        cx.waker().wake_by_ref();
                    }
                    return Poll::Pending;
                }
            }
        }
    }

    /// Accepts or refuses a text that was written to the connection's `ctl`.
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

    /// Switches the modules: all later bytes, in both directions, have the new form.
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

    /// Notices that the client hangs up while the socket is not read.
    fn hung_up(&mut self, cx: &mut Context<'_>) -> Poll<ConnectionEnd> {
        match &mut self.transport {
            Some(transport) => transport.poll_hangup(cx).map(|()| ConnectionEnd::Closed),
            None => Poll::Pending,
        }
    }

    /// Reads no more, and ends when the last answer has been sent.
    fn drain(&mut self, cx: &mut Context<'_>, flushed: bool) -> Poll<ConnectionEnd> {
        if self.later > 0 || !self.streams.ending.is_empty() || !flushed {
            return self.hung_up(cx);
        }
        match self.transport.as_mut().map(|transport| transport.poll_close(cx)) {
            Some(Poll::Pending) => Poll::Pending,
            Some(Poll::Ready(Err(error))) => Poll::Ready(ConnectionEnd::Io(error)),
            _ => Poll::Ready(ConnectionEnd::Drained),
        }
    }

    fn receive(&mut self, frame: MessageFrame) -> Result<(), WireError> {
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
                // Other requests may have waited only for a flush.
                if let Some(request) = self.session.next_ready() {
                    self.serve(request);
                }
            }
            Step::Waits => {
                if let Some(frame) = self.session.parked_frame(tag) {
                    frame.detach();
                }
                // It may wait for a Tsclose, which waits for the end of the stream.
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

    /// Serves a request, and the requests that its answer makes ready.
    fn serve(&mut self, request: SessionRequest<FidEntry, MessageFrame>) {
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
            // A connection within this process is charged only for the calls, not for their data: its clients have
            // been charged for that, and its reads may wait forever.
            let cost = self.session.cost(id).filter(|_| !self.own).unwrap_or(CALL_COST);
            // Data that the client has placed is copied in, unless the server takes it where it is.
            let placed = request.frame().and_then(MessageFrame::data).map_or(0, Placed::len);
            if placed > 0
                && !request.fid().is_some_and(|held| !held.desk && self.server.takes_placed(&held.node))
            {
                request.frame_mut().expect("just seen").gather(&FramePool::here());
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

    /// Queues the clunks of fids that are gone: now, or when nothing uses their nodes.
    fn retire(&mut self, clunks: Vec<SessionRequest<FidEntry, MessageFrame>>) {
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

    /// Passes a request to the gate or the file server. `None`: the answer comes later.
    fn ask(
        &mut self,
        request: SessionRequest<FidEntry, MessageFrame>,
        cost: usize,
    ) -> Option<Result<ProtoReply<FidEntry, Payload>>> {
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
                    // A Tremove clunks its fid even if it is refused, so the server gets a clunk.
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
                    _ => match changes::ChangeFileRequest::of(&*self.server, &req, root) {
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
            result.map(|reply| reply.map_node(|node| FidEntry { node, who, desk, root: root_again }))
        })
    }

    /// Whether the input starts like a data connection.
    fn is_data(&self) -> bool {
        self.session.dialect().is_none() && self.streams.how.is_some() && self.rx.rest().starts_with(&MAGIC)
    }

    /// Serves a Tstream or a Tsclose.
    fn stream(&mut self, req: Req) -> Answer {
        let fid = req.fid_number().expect("the session asks for a fid");
        match req.op() {
            Op::Stream { read, offset } => {
                // A data connection would bypass the modules pushed on this connection.
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
        let (by, way) = ((self.id, ours.offered.len()), StreamStart { read, offset, serial });
        let place = self.core.take_data_place(self.fids.principal())?;
        let (stream, offer) =
            ServerStream::offer(&how, &self.server, &self.core, held, &self.peer, by, (way, place))?;
        ours.by_fid.insert(fid, stream.clone());
        ours.offered.push_back(stream);
        Ok(offer)
    }

    /// The expiry time of the next untaken offer.
    pub(super) fn offer_due(&mut self) -> Option<Duration> {
        let ours = &mut self.streams;
        while ours.offered.front().is_some_and(|stream| !stream.is_offered()) {
            ours.offered.pop_front();
        }
        ours.offered.front().map(|stream| stream.due)
    }

    /// Withdraws the offers that have expired.
    pub(super) fn expire_offers(&mut self, now: Duration) {
        let ours = &mut self.streams;
        while ours.offered.front().is_some_and(|stream| stream.due <= now) {
            ours.offered.pop_front().into_iter().for_each(|stream| stream.expire());
        }
    }

    /// Ends the stream of the fid that this request clunks. Returns it if it still uses the fid's node.
    fn ends_stream(&mut self, request: &SessionRequest<FidEntry, MessageFrame>) -> Option<Arc<ServerStream>> {
        let fid = request.fid_number().filter(|_| matches!(request.number(), Some(TCLUNK | TREMOVE)))?;
        let stream = self.streams.by_fid.remove(&fid)?;
        stream.end();
        let waker = self.entered.as_ref().unwrap_or(Waker::noop());
        (!stream.settled(waker)).then_some(stream)
    }

    /// Ends all streams, because a new session begins or the connection ends.
    fn end_streams(&mut self) {
        let ours = &mut self.streams;
        ours.offered.clear();
        for (_, stream) in ours.by_fid.drain() {
            stream.end();
            ours.ending.push((stream, None));
        }
    }

    /// Serves the clunks of fids whose streams no longer use their nodes.
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

    fn respond(&mut self, id: CallId, result: Result<ProtoReply<FidEntry, Payload>>) {
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

    /// Handles an answer after its session has ended: clunks the node that it made, and releases the nodes that its
    /// request used.
    fn stale(&mut self, answered: FinishedRequest) {
        let FinishedRequest { call, fids, rclose, result, .. } = answered;
        let is = |held: &FidEntry, other: &SessionRequest<FidEntry, MessageFrame>| {
            other.fid().is_some_and(|fid| Arc::ptr_eq(&fid.node, &held.node))
        };
        if let Some(made) = self.session.respond(call, result, &mut self.tx) {
            let clunk = self.session.silent(made.clone(), rclose);
            // If an old fid had the same node, only that fid's clunk is served.
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

    /// The limit of unanswered requests.
    fn most(&self) -> usize {
        if self.own { OUTSTANDING_OWN } else { OUTSTANDING }
    }

    /// Whether a message waits that may not be served now. One that may free credit is served, up to twice the limit.
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

    /// The bytes that this connection may hold now.
    fn ceiling(&self) -> usize {
        CEILING.min(FLOOR + self.share())
    }

    fn share(&self) -> usize {
        (self.core.memory().free() + self.borrowed) / 4
    }

    /// Borrows the bytes above the floor from the core or returns them, and publishes the status.
    fn settle(&mut self) {
        let modules: usize = self.modules.iter().sum();
        let all = self.load() + self.rx.held() + modules;
        let borrow = all.saturating_sub(FLOOR);
        self.core.memory().borrow(self.borrowed, borrow);
        self.borrowed = borrow;
        self.seen.moved(self.received, self.session.fid_count(), self.session.outstanding());
        self.transport.is_some().then(|| self.seen.carried(self.rx.total, self.tx.total));
        let opens = if self.server.has_descriptors() { self.session.open_count() } else { 0 };
        self.core.opened(self.opens, opens);
        self.opens = opens;
        self.give_back_fids();
    }

    /// Sets the time of the connect, and the queue entry by which the connection may be evicted before it attaches.
    pub(super) fn began(&mut self, wall: Duration, unattached: Option<Arc<UnattachedConnection>>) {
        self.seen.began(wall);
        self.unattached = unattached;
    }

    /// Returns the transport and the bytes read from it, if it is the data connection of a stream.
    pub(super) fn take_data(&mut self) -> Option<(Box<dyn Transport>, Vec<u8>)> {
        self.data.take()
    }

    /// Whether the client has sent a Tversion with a supported version, or is gone.
    pub(super) fn has_greeted(&self) -> bool {
        self.session.dialect().is_some() || self.transport.is_none()
    }

    /// Ends a connection that has not attached, if it is evicted for another one.
    pub(super) fn make_room(&mut self, cx: &mut Context<'_>) {
        if self.unattached.as_ref().is_some_and(|entry| entry.poll_evicted(cx).is_ready()) {
            self.unattached = None;
            self.finish(&ConnectionEnd::Evicted);
        }
    }

    /// Ends a connection, because its client has sent no Tversion in time.
    pub(super) fn expire(&mut self) {
        self.finish(&ConnectionEnd::Silent);
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

    /// The client is gone: releases everything except the requests in flight.
    fn finish(&mut self, end: &ConnectionEnd) {
        end.tell(self.own, self.id, &self.peer.addr, &self.user);
        self.seen.carried(self.rx.total, self.tx.total);
        let transport = self.transport.take();
        self.data =
            transport.filter(|_| matches!(end, ConnectionEnd::Data)).map(|t| (t, self.rx.rest().to_vec()));
        self.cancel_all();
        self.end_streams();
        let clunks = self.session.close();
        self.retire(clunks);
        self.rx = FrameReceiver::default();
        self.tx = ReplyQueue::default();
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
    /// Closes a connection that is dropped early. Late answers are ignored; clunks that wait for no request are served.
    fn drop(&mut self) {
        if self.transport.is_some() && !std::thread::panicking() {
            self.finish(&ConnectionEnd::Closed);
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
