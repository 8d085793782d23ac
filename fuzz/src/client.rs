//! The client's session against a server that sends arbitrary answers.
//!
//! In: bytes, read as a list of actions: a call, a cancelled call, a frame from the server. Checks: there are no more
//! calls than the limit; every fid is freed once (otherwise the session's own arithmetic overflows); nothing is left
//! after an orderly end.

use std::collections::BTreeMap;

use nine_proto::msg::{Names, OnlyIds, Qids, Rmsg, Tmsg};
use nine_proto::session::client::{ClientSession, Event};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Qid, Tag};

use crate::DIALECTS;

/// Runs the actions, then answers all remaining calls correctly.
pub fn client(data: &[u8]) {
    let Some((first, mut moves)) = data.split_first() else { return };
    let mut world = World::new(DIALECTS[usize::from(*first) % 3]);
    while let Some((&[kind, a, b, c], rest)) = moves.split_first_chunk::<4>() {
        moves = rest;
        let alive = match kind % 8 {
            0 => world.raw(rest, a),
            1 | 2 => world.answer(a, b, c),
            3 => world.cancel(a),
            _ => world.call(kind / 8, a, b),
        };
        if !alive {
            return;
        }
    }
    world.end();
}

struct World {
    session: ClientSession,
    dialect: Dialect,
    /// Requests that the server must answer, by tag: the type of the T-message, and its old tag or number of names.
    asked: BTreeMap<u16, (u8, u16)>,
    /// Calls that can be cancelled.
    calls: Vec<Tag>,
    fids: Vec<Fid>,
}

impl World {
    fn new(dialect: Dialect) -> Self {
        let mut session = ClientSession::new(LIMIT);
        session.version(8192, &[dialect]);
        let mut frame = Vec::new();
        Rmsg::Version { msize: 8192, version: dialect.name().as_bytes() }.encode(NOTAG, dialect, &mut frame);
        assert_eq!(session.receive(&frame), Ok(Event::Agreed));
        World { session, dialect, asked: BTreeMap::new(), calls: Vec::new(), fids: Vec::new() }
    }

    fn call(&mut self, kind: u8, a: u8, b: u8) -> bool {
        let at = usize::from(a).checked_rem(self.fids.len());
        let names = &[&b"a"[..], b"b"][..usize::from(b % 3)];
        let mut ended = None;
        let message = match (kind % 4, at) {
            (0, Some(at)) => {
                ended = Some(at);
                Tmsg::Clunk { fid: self.fids[at] }
            }
            (1, Some(at)) => Tmsg::Read { fid: self.fids[at], offset: 0, count: 8 },
            (2, Some(at)) => {
                let Some(newfid) = self.session.fid() else { return true };
                Tmsg::Walk { fid: self.fids[at], newfid, names: Names::Slice(names) }
            }
            _ => {
                let Some(fid) = self.session.fid() else { return true };
                Tmsg::Attach { fid, afid: NOFID, uname: b"u", aname: b"", n_uname: OnlyIds(0) }
            }
        };
        match self.session.call(&message) {
            Some(tag) => {
                if let Some(at) = ended {
                    self.fids.swap_remove(at);
                }
                let names = if matches!(message, Tmsg::Walk { .. }) { names.len() as u16 } else { 0 };
                self.asked(tag, message.number(), names);
                self.calls.push(tag);
            }
            None => {
                assert_eq!(self.session.calls(), LIMIT);
                assert_eq!(self.session.unsent(&message).is_some(), ended.is_some());
            }
        }
        true
    }

    fn cancel(&mut self, which: u8) -> bool {
        if !self.calls.is_empty() {
            let tag = self.calls.swap_remove(usize::from(which) % self.calls.len());
            if let Some(flush) = self.session.cancel(tag) {
                self.asked(flush, FLUSH, tag.0);
            }
        }
        true
    }

    fn asked(&mut self, tag: Tag, number: u8, about: u16) {
        assert!(tag != NOTAG && self.asked.insert(tag.0, (number, about)).is_none(), "a tag is used twice");
    }

    /// Sends an answer of the right kind, or an error. A Tflush ends the request that it flushes.
    fn answer(&mut self, which: u8, how: u8, part: u8) -> bool {
        if self.asked.is_empty() {
            return true;
        }
        let at = usize::from(which) % self.asked.len();
        let Some((&tag, &(number, about))) = self.asked.iter().nth(at) else { return true };
        self.asked.remove(&tag);
        let qids = [Qid::default(); 2];
        let reply = match number {
            FLUSH => Rmsg::Flush {},
            _ if how.is_multiple_of(4) && self.dialect.is_l() => Rmsg::Lerror { ecode: 5 },
            _ if how.is_multiple_of(4) => Rmsg::Error { ename: b"no", errno: nine_proto::msg::OnlyU(5) },
            104 => Rmsg::Attach { qid: qids[0] },
            110 => {
                Rmsg::Walk { qids: Qids::Slice(&qids[..usize::from(about - u16::from(part) % (about + 1))]) }
            }
            116 => Rmsg::Read { data: nine_proto::msg::Data::Bytes(b"data") },
            _ => Rmsg::Clunk {},
        };
        if number == FLUSH {
            self.asked.remove(&about);
        }
        let mut frame = Vec::new();
        reply.encode(Tag(tag), self.dialect, &mut frame);
        let ok = self.receive(&frame);
        assert!(ok, "an honest answer is refused: {reply:?}");
        ok
    }

    /// Sends a frame of the input for one of the tags. Returns false if it ended the connection.
    fn raw(&mut self, bytes: &[u8], which: u8) -> bool {
        use nine_proto::frame::{Split, split};
        let Ok(Split::Whole(n)) = split(bytes, self.session.msize()) else { return true };
        let mut frame = bytes[..n].to_vec();
        let at = usize::from(which).checked_rem(self.asked.len());
        let Some((&tag, &(number, about))) = at.and_then(|at| self.asked.iter().nth(at)) else { return true };
        frame[5..7].copy_from_slice(&tag.to_le_bytes());
        self.asked.remove(&tag);
        if (number, frame[4]) == (FLUSH, FLUSH + 1) {
            self.asked.remove(&about);
        }
        self.receive(&frame)
    }

    fn receive(&mut self, frame: &[u8]) -> bool {
        match self.session.receive(frame) {
            Ok(Event::Answer { tag, made, .. }) => {
                self.calls.retain(|call| *call != tag);
                self.fids.extend(made);
            }
            Ok(Event::Flushed { tag, clunk, .. }) => {
                assert!(!self.calls.contains(&tag));
                self.fids.extend(clunk);
            }
            Ok(Event::Nothing) => {}
            Ok(event) => panic!("not in the middle of a session: {event:?}"),
            Err(_) => return false,
        }
        assert!(self.session.calls() <= LIMIT && self.session.orphans() <= self.session.calls());
        true
    }

    fn end(mut self) {
        while !self.asked.is_empty() {
            if !self.answer(0, 1, 0) {
                return;
            }
        }
        assert_eq!((self.session.calls(), self.session.orphans()), (0, 0));
        assert_eq!(self.session.fids() as usize, self.fids.len(), "fids are lost or found");
    }
}

const LIMIT: usize = 8;
const FLUSH: u8 = 108;
