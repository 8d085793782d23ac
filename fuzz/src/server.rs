//! The server's session under any order of requests, answers, flushes and new sessions.
//!
//! In: bytes, read as a list of actions: a generated request, a raw frame, an answer. The checks take the client's
//! view, according to flush(5) and version(5): every tag is answered once, by its own kind or an error; nothing follows
//! the Rflush; every node is clunked once. If the dialect is streaming, a deferred request also keeps its position: no
//! later request with one of its fids begins before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use nine_proto::frame::{self, MSIZE_MAX, Split};
use nine_proto::msg::{Names, OnlyIds, OnlyUStr, Rmsg, Tmsg};
use nine_proto::session::server::{Limits, Out, Request, Session, Step};
use nine_proto::{
    Attr, Dialect, Dirent, Errno, Fid, LockStatus, LockType, NOFID, NOTAG, Numeric, Op, Qid, Reply, Stat,
    Statfs, Tag, Walked,
};

/// Runs the actions, then answers the remaining requests and closes.
pub fn server(data: &[u8]) {
    let Some((first, mut moves)) = data.split_first() else { return };
    let mut world = World::new(OFFERED[usize::from(*first) % 6]);
    while let Some((&[kind, a, b, c], rest)) = moves.split_first_chunk::<4>() {
        moves = rest;
        match kind % 8 {
            0 => {
                let Ok(Split::Whole(n)) = frame::split(rest, MSIZE) else { continue };
                world.send(rest[..n].to_vec());
                moves = &rest[n..];
            }
            1..=3 => world.answer(a, b),
            _ => world.ask(kind / 8, a, b, c),
        }
        if world.closed {
            break;
        }
    }
    world.end();
}

struct World {
    session: Session<Node, Vec<u8>>,
    wire: Wire,
    dialect: Dialect,
    /// Requests in progress at the file server, with their session.
    serving: Vec<(Request<Node, Vec<u8>>, u32)>,
    /// Requests that the client waits for: the type of the T-message, and for a Tflush its old tag.
    waiting: BTreeMap<u16, (u8, Option<u16>)>,
    /// In order of arrival.
    deferred: Vec<Deferred>,
    live: BTreeSet<Node>,
    nodes: Node,
    sessions: u32,
    closed: bool,
}

struct Deferred {
    tag: u16,
    fids: Vec<Fid>,
    len: usize,
    /// The session may let it wait until its fid is free, which the client cannot see.
    parks: bool,
}

/// Even numbers are directories.
type Node = u32;

#[derive(Default)]
struct Wire(Vec<u8>);

impl Out<Vec<u8>> for Wire {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.0
    }
    fn payload(&mut self, payload: Vec<u8>) {
        self.0.extend(payload);
    }
}

impl World {
    fn new(dialect: Dialect) -> Self {
        let session = Session::new(&OFFERED, Limits { msize: MSIZE, fids: 6 }, Arc::new(Numeric));
        let mut world = World {
            session,
            wire: Wire::default(),
            dialect,
            serving: Vec::new(),
            waiting: BTreeMap::new(),
            deferred: Vec::new(),
            live: BTreeSet::new(),
            nodes: 0,
            sessions: 0,
            closed: false,
        };
        world.tell(Tmsg::Version { msize: MSIZE, version: dialect.name().as_bytes() });
        world
    }

    fn ask(&mut self, kind: u8, a: u8, b: u8, c: u8) {
        let (fid, other) = (Fid(u32::from(a % 8)), Fid(u32::from(b % 8)));
        let names: &[&[u8]] = &[&b"a"[..], b"..", b"b"][..usize::from(c % 4)];
        let count = u32::from(c) * 16;
        let name = b"n";
        let l = self.dialect.is_l();
        let message = match kind % 20 {
            0 => Tmsg::Attach { fid, afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(0) },
            1 | 2 => Tmsg::Walk { fid, newfid: other, names: Names::Slice(names) },
            3 if l => Tmsg::Lopen { fid, flags: u32::from(c) },
            3 => Tmsg::Open { fid, mode: c },
            4 => Tmsg::Read { fid, offset: u64::from(b) * 8, count },
            5 if l => Tmsg::Readdir { fid, offset: u64::from(b), count },
            5 => Tmsg::Write { fid, offset: 0, data: nine_proto::msg::Data::Bytes(b"data") },
            6 => Tmsg::Clunk { fid },
            7 => Tmsg::Remove { fid },
            8 | 9 => Tmsg::Flush { oldtag: Tag(u16::from(c) % TAGS) },
            10 if l => Tmsg::Lcreate { fid, name, flags: 2, mode: 0o644, gid: 0 },
            10 => Tmsg::Create { fid, name, perm: u32::from(c) << 24, mode: b, extension: OnlyUStr(b"1") },
            11 if l => Tmsg::Xattrwalk { fid, newfid: other, name },
            11 => Tmsg::Wstat { fid, stat: Stat { name, ..Stat::DONT_TOUCH } },
            12 if l => Tmsg::Xattrcreate { fid, name, size: 4, flags: 0 },
            12 => Tmsg::Stat { fid },
            13 if l && c < 64 => {
                let flags = u32::from(c % 4);
                Tmsg::Renameat2 { olddirfid: fid, oldname: name, newdirfid: other, newname: b"m", flags }
            }
            13 if l => Tmsg::Renameat { olddirfid: fid, oldname: name, newdirfid: other, newname: b"m" },
            13 => Tmsg::Auth { afid: fid, uname: b"u", aname: b"", n_uname: OnlyIds(0) },
            15 | 16 => Tmsg::Stream { fid, isread: b % 2, offset: 0 },
            17 => Tmsg::Sclose { fid, count: u64::MAX },
            14 => Tmsg::Attach { fid, afid: other, uname: b"u", aname: b"", n_uname: OnlyIds(0) },
            _ if c < 16 => Tmsg::Version { msize: MSIZE, version: self.dialect.name().as_bytes() },
            _ => Tmsg::Clunk { fid },
        };
        self.tell(message);
    }

    fn tell(&mut self, message: Tmsg<'_>) {
        let mut frame = Vec::new();
        message.encode(NOTAG, self.dialect, &mut frame);
        self.send(frame);
    }

    /// Sends a frame with a free tag, as an honest client would. The rest of it is arbitrary.
    fn send(&mut self, mut frame: Vec<u8>) {
        let version = frame[4] == VERSION;
        let mut tags = if version { NOTAG.0..=NOTAG.0 } else { 0..=TAGS };
        let Some(tag) = tags.find(|tag| version || !self.waiting.contains_key(tag)) else { return };
        frame[5..7].copy_from_slice(&tag.to_le_bytes());
        let old = match frame.get(7..9) {
            Some(old) if frame[4] == FLUSH => Some(u16::from_le_bytes([old[0], old[1]])),
            _ => None,
        };
        if version {
            self.waiting.clear();
            self.deferred.clear();
            self.sessions += 1;
        }
        self.waiting.insert(tag, (frame[4], old));
        let (len, before) = (frame.len(), self.session.deferred_bytes());
        let (fids, parks) = named(&frame, self.dialect);
        let mut served = Vec::new();
        match self.session.receive(frame, &mut self.wire) {
            Ok(Step::Serve(request)) => {
                served.push(tag);
                self.serve(request);
            }
            Ok(Step::Reset(clunks)) => clunks.into_iter().for_each(|clunk| self.clunked(&clunk)),
            Ok(Step::Waits) if self.session.deferred_bytes() > before => {
                assert!(self.dialect.streaming, "deferred in {}", self.dialect.name());
                self.deferred.push(Deferred { tag, fids, len, parks });
                return self.check_bytes();
            }
            Ok(Step::Answered | Step::Waits | Step::Cancel(_)) => {}
            Err(_) => self.closed = true,
        }
        self.dialect = self.session.dialect().unwrap_or(Dialect::P2000);
        // Treat it as deferred until now: it has overtaken no request.
        self.deferred.push(Deferred { tag, fids, len: 0, parks });
        self.settle(served);
        self.deferred.retain(|late| late.len > 0);
    }

    /// Serves ready requests and reads replies. Checks that no request has overtaken another.
    fn settle(&mut self, mut served: Vec<u16>) {
        while let Some(request) = self.session.next_ready() {
            let frame = request.frame().expect("somebody asked for what is ready");
            served.push(frame::tag_of(frame).0);
            self.serve(request);
        }
        let sent = self.read_replies();
        for (i, late) in self.deferred.iter().enumerate() {
            let nth = served.iter().position(|&tag| tag == late.tag);
            if nth.is_none() && !sent.contains(&late.tag) {
                continue;
            }
            for earlier in self.deferred[..i]
                .iter()
                .filter(|earlier| earlier.fids.iter().any(|fid| late.fids.contains(fid)))
            {
                let before = match nth {
                    Some(nth) => served[..nth].contains(&earlier.tag),
                    // Behind one that waits for its fid it may be refused.
                    None => served.contains(&earlier.tag) || earlier.parks,
                };
                assert!(before || sent.contains(&earlier.tag), "tag {} passes {}", late.tag, earlier.tag);
            }
        }
        self.deferred.retain(|late| !served.contains(&late.tag) && !sent.contains(&late.tag));
        self.check_bytes();
    }

    fn check_bytes(&self) {
        let sum = |parks: bool| -> usize {
            self.deferred.iter().filter(|late| parks || !late.parks).map(|late| late.len).sum()
        };
        let bytes = self.session.deferred_bytes();
        assert!(self.closed || (sum(false)..=sum(true)).contains(&bytes), "{bytes} bytes deferred");
    }

    fn serve(&mut self, request: Request<Node, Vec<u8>>) {
        if matches!(request.op(), Op::Clunk | Op::Remove) {
            self.clunked(&request);
        }
        self.serving.push((request, self.sessions));
    }

    fn clunked(&mut self, request: &Request<Node, Vec<u8>>) {
        let node = request.fid().expect("a clunk has a node");
        assert!(self.live.remove(node), "node {node} is clunked twice");
    }

    fn answer(&mut self, which: u8, how: u8) {
        if self.serving.is_empty() {
            return;
        }
        let (mut request, session) = self.serving.remove(usize::from(which) % self.serving.len());
        let stale = self.closed || session != self.sessions;
        let (reply, made) =
            if how & 4 != 0 { (Err(Errno::EIO.into()), None) } else { self.reply(&mut request, how) };
        let back = self.session.respond(request.id(), reply, &mut self.wire);
        if stale {
            let made_before = back.filter(|node| Some(*node) != made);
            assert!(back.is_some() || made.is_none(), "a stale node is lost");
            assert!(
                made_before.is_none() || request.fid() == made_before.as_ref(),
                "a strange node comes back"
            );
        } else {
            assert_eq!(back, None, "the node of a live session is handed back");
            self.live.extend(made);
        }
        self.settle(Vec::new());
    }

    /// Returns a valid reply to the request, and the node that it creates.
    fn reply(
        &mut self,
        request: &mut Request<Node, Vec<u8>>,
        how: u8,
    ) -> (nine_proto::Result<Reply<Node, Vec<u8>>>, Option<Node>) {
        let onto_itself = walks_onto_itself(request);
        let here = request.fid().copied().unwrap_or(0);
        let new = self.nodes + if how & 2 == 0 { 2 - self.nodes % 2 } else { 1 + self.nodes % 2 };
        let mut made = None;
        let reply = match request.op() {
            Op::Auth { .. } => {
                made = Some(new);
                Reply::Auth { qid: Qid { ty: Qid::AUTH, vers: 0, path: 0 }, node: new }
            }
            Op::Attach { .. } => {
                made = Some(new);
                Reply::Attach { qid: qid(new), node: new }
            }
            Op::Walk { names } => {
                let part = how & 1 != 0 && !names.is_empty();
                let mut qids = Walked::new();
                (0..names.len() - usize::from(part)).for_each(|_| qids.push(qid(new)));
                made = (!part && !onto_itself).then_some(new);
                Reply::Walk { qids, node: (!part).then_some(if onto_itself { here } else { new }) }
            }
            Op::Open { .. } | Op::Create { .. } => Reply::Open { qid: qid(here), iounit: 0, node: here },
            Op::Make { .. } => Reply::Made(qid(new)),
            Op::XattrCreate { .. } => Reply::Moved(here),
            Op::Readlink => Reply::Target(vec![b'x'; usize::from(how) * 16].into()),
            Op::Getattr { .. } => Reply::Attr(Box::default()),
            Op::Readdir { cookie } => {
                let mut dir = request.dir_buf(Arc::new(Numeric));
                for cookie in cookie.saturating_add(1)..cookie.saturating_add(u64::from(how)) {
                    if !dir
                        .push(&Dirent { qid: qid(1), cookie, ty: 8, name: b"entry" }, Some(&Attr::default()))
                    {
                        break;
                    }
                }
                Reply::Dir(dir)
            }
            Op::Read { count, .. } => Reply::Read(vec![0; (usize::from(how) * 32).min(count as usize)]),
            Op::Write { data, .. } => Reply::Wrote(data.len() as u32),
            Op::Lock(_) => Reply::Lock(LockStatus::Success),
            Op::Getlock(_) => {
                Reply::Getlock { ty: LockType::Unlock, start: 0, length: 0, proc_id: 0, client_id: [].into() }
            }
            Op::XattrWalk { .. } => {
                made = Some(new);
                Reply::Xattr { size: 4, node: new }
            }
            Op::Statfs => Reply::Statfs(Statfs::default()),
            Op::Stream { .. } => Reply::Stream(vec![b'x'; usize::from(how) * 8]),
            Op::Sclose { count } => {
                Reply::Sclosed { count, errno: how.into(), ename: "é".repeat(how.into()).into() }
            }
            _ => Reply::Done,
        };
        self.nodes = made.unwrap_or(self.nodes);
        (Ok(reply), made)
    }

    /// Reads the replies. Returns their tags.
    fn read_replies(&mut self) -> Vec<u16> {
        let mut answered = Vec::new();
        let bytes = std::mem::take(&mut self.wire.0);
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let Ok(Split::Whole(n)) = frame::split(rest, MSIZE_MAX) else { panic!("half a reply: {rest:?}") };
            assert!(n <= self.session.msize() as usize, "a reply above msize");
            let (tag, reply) = Rmsg::decode(&rest[..n], self.dialect).expect("a reply can be decoded");
            let Some((number, old)) = self.waiting.remove(&tag.0) else { panic!("nobody waits: {reply:?}") };
            let error = matches!(reply, Rmsg::Error { .. } | Rmsg::Lerror { .. });
            assert!(reply.number() == number + 1 || error, "{reply:?} to T-message {number}");
            answered.push(tag.0);
            // After the Rflush the client may reuse the old tag, so no answer for it may follow.
            if let (false, Some(old)) = (error, old) {
                self.waiting.remove(&old);
                self.deferred.retain(|late| late.tag != old);
            }
            rest = &rest[n..];
        }
        answered
    }

    fn end(mut self) {
        while !self.closed && !self.serving.is_empty() {
            self.answer(0, 0);
        }
        if !self.closed {
            assert!(self.waiting.is_empty(), "never answered: {:?}", self.waiting);
            assert_eq!((self.session.outstanding(), self.session.deferred_bytes()), (0, 0));
            assert_eq!(self.session.fid_count(), self.live.len(), "a fid without a node, or the reverse");
        }
        self.closed = true;
        for clunk in self.session.close() {
            self.clunked(&clunk);
        }
        while !self.serving.is_empty() {
            self.answer(0, 0);
        }
        assert!(self.live.is_empty(), "never clunked: {:?}", self.live);
    }
}

fn walks_onto_itself(request: &mut Request<Node, Vec<u8>>) -> bool {
    let Some(frame) = request.frame_mut() else { return false };
    // Twalk has the same format in every dialect.
    matches!(Tmsg::decode(frame, Dialect::P2000), Ok((_, Tmsg::Walk { fid, newfid, .. })) if fid == newfid)
}

/// Returns the fids of a request, including new ones, and whether it may need exclusive use of its fid.
fn named(frame: &[u8], dialect: Dialect) -> (Vec<Fid>, bool) {
    let Ok((_, message)) = Tmsg::decode(frame, dialect) else { return (Vec::new(), false) };
    let (number, l) = (message.number(), dialect.is_l());
    if number < 100 && !l || matches!(number, 112 | 114 | 124 | 126) && l {
        // Not a message of this dialect: it is refused, whatever fids it has.
        return (Vec::new(), false);
    }
    let parks = match message {
        Tmsg::Walk { fid, newfid, .. } => fid == newfid,
        _ => matches!(message, Tmsg::Clunk { .. } | Tmsg::Remove { .. }),
    };
    // The fid follows the header, except in these messages.
    let at = |at: usize| frame.get(at..at + 4).map(|b| Fid(u32::from_le_bytes([b[0], b[1], b[2], b[3]])));
    let (first, second) = match message {
        Tmsg::Version { .. } | Tmsg::Flush { .. } => (None, None),
        Tmsg::Renameat { newdirfid, .. } | Tmsg::Renameat2 { newdirfid, .. } => (at(7), Some(newdirfid)),
        Tmsg::Attach { .. }
        | Tmsg::Walk { .. }
        | Tmsg::Xattrwalk { .. }
        | Tmsg::Link { .. }
        | Tmsg::Rename { .. } => (at(7), at(11)),
        _ => (at(7), None),
    };
    ([first, second].into_iter().flatten().filter(|&fid| fid != NOFID).collect(), parks)
}

fn qid(node: Node) -> Qid {
    Qid { ty: if node.is_multiple_of(2) { Qid::DIR } else { 0 }, vers: 0, path: node.into() }
}

const OFFERED: [Dialect; 6] =
    [Dialect::P2000, Dialect::U, Dialect::L, Dialect::P2000S, Dialect::US, Dialect::LS];
const MSIZE: u32 = 1024;
const TAGS: u16 = 12;
const VERSION: u8 = 100;
const FLUSH: u8 = 108;
