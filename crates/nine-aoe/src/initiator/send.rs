//! Sent frames: broadcasts, probes, pieces; and the handling of unanswered frames.

use std::time::Duration;

use bytes::Bytes;
use nine_block::{Error, Kind, Op, SECTOR};

use super::jobs::{Job, Piece, Work};
use super::{
    ASK_ALL, ASK_FIRST, ASK_MOST, ASK_SOME, COPIES, Event, FLUSH_LEAST, FLUSH_LOOK, Initiator, LINGER_LEAST,
    LINGER_MOST, QUERIES, Sent, State, What,
};
use crate::frame::{Ata, Config, EVERYBODY, Header, Out, ata, command, config};
use crate::path::Verdict;

impl Initiator {
    /// Returns the next frame to send. Handles expired timers first.
    pub fn transmit(&mut self, now: Duration) -> Option<Out> {
        if self.deadline() <= now {
            self.expire(now);
        }
        self.out.pop_front().or_else(|| self.next_piece(now))
    }

    fn expire(&mut self, now: Duration) {
        while let Some(&(_, tag)) = self.timers.first().filter(|(at, _)| *at <= now) {
            self.lost(now, tag);
        }
        while let Some(&(_, tag)) = self.copies.front().filter(|(at, _)| *at <= now) {
            self.copies.pop_front();
            // The copy may still be in flight as long as no later frame on this path is answered.
            let may_come = |sent: &Sent| {
                let path = &self.paths[sent.path];
                path.heard <= sent.at + path.rtt.timeout() && now < sent.at + LINGER_MOST
            };
            if self.tags.get(&tag).is_some_and(may_come) {
                self.copies.push_back((now + LINGER_LEAST / 10, tag));
                continue;
            }
            if matches!(self.tags.remove(&tag), Some(Sent { what: What::Copy(_, 1.., _), .. })) {
                self.release();
            }
        }
        if self.gives_up_at().is_some_and(|at| at <= now) {
            self.state = State::Down;
            self.waits = None;
            self.happens(Event::Down);
            self.query_pause = ASK_FIRST;
            self.query_at = self.query_at.min(now + ASK_FIRST);
            // The target must identify itself before it is considered up again.
            self.paths.iter_mut().filter(|path| path.live).for_each(|path| path.eject(now));
            let down = Error::new(Kind::Down, "the target does not answer");
            self.fail_all(now, &self.refused.clone().unwrap_or(down));
        }
        self.audit(now);
        if self.query_at <= now {
            self.query(now);
        }
        for path in 0..self.paths.len() {
            if self.paths[path].probe_at.is_some_and(|at| at <= now) {
                let place = &mut self.paths[path];
                place.probe_at = None;
                let large = place.live && place.is_reduced();
                self.probe(now, path, large);
            }
        }
    }

    /// Broadcasts a config request for the target on every interface.
    fn query(&mut self, now: Duration) {
        let tag = self.tag();
        self.queries.push_back(tag);
        if self.queries.len() > QUERIES {
            self.queries.pop_front();
        }
        let asked = Header::ask(self.setup.target, command::CONFIG, tag);
        let head = asked.with(&Config::ask(config::READ, b"").bytes());
        for port in 0..self.ports.len() {
            self.out.push_back(Out { port, to: EVERYBODY, head: head.clone(), data: Bytes::new() });
        }
        let has_way = |port| self.paths.iter().any(|path| path.port == port && path.live);
        self.query_at = now
            + match self.state {
                State::Up if (0..self.ports.len()).all(has_way) => ASK_ALL,
                State::Up => ASK_SOME,
                _ => self.query_pause,
            };
        self.query_pause = (2 * self.query_pause).min(ASK_MOST);
    }

    /// Sends an identify request on this path, or a large read to test whether it takes large frames.
    pub(super) fn probe(&mut self, now: Duration, at: usize, large: bool) {
        let path = &self.paths[at];
        let most = path.most();
        // The time of a disk's flush must not lengthen this timeout.
        let deadline = path.deadline(now, 0).min(now + ASK_MOST);
        let ext = self.known.as_ref().is_some_and(|disk| disk.long);
        let asked = match large {
            true => Ata::new(if ext { ata::READ_EXT } else { ata::READ }, 0, most, ext, false),
            false => Ata::new(ata::IDENTIFY, 0, 1, false, false),
        };
        let what = if large { What::LargeProbe } else { What::Probe };
        self.send(now, at, what, deadline, command::ATA, &asked.bytes(), Bytes::new(), false);
    }

    /// Queues a frame in `out`.
    #[allow(clippy::too_many_arguments)]
    fn send(
        &mut self,
        now: Duration,
        at: usize,
        what: What,
        deadline: Duration,
        code: u8,
        body: &[u8],
        data: Bytes,
        carries: bool,
    ) {
        let tag = self.tag();
        let path = &mut self.paths[at];
        let order = path.order;
        if carries {
            path.order += 1;
            path.out.push_back((order, tag));
            path.syncing += usize::from(matches!(&what, What::Piece(piece) if piece.syncs));
            self.under_way += 1;
        }
        let head = Header::ask(self.setup.target, code, tag).with(body);
        self.out.push_back(Out { port: path.port, to: path.mac, head, data });
        self.timers.insert((deadline, tag));
        self.tags.insert(tag, Sent { what, path: at, at: now, order, deadline, overtaken: 0 });
        self.counts.sent += 1;
    }

    fn next_piece(&mut self, now: Duration) -> Option<Out> {
        if self.state != State::Up || self.under_way >= self.buffers {
            return None;
        }
        let turns = self.turns.len();
        // Choose the path with the fewest frames in flight; round-robin order breaks ties. Round-robin alone would not
        // even out the load.
        let places = (0..turns).map(|n| (self.turn + n) % turns);
        let path = |place: &usize| &self.paths[self.turns[*place]];
        let place =
            places.filter(|place| path(place).has_room()).min_by_key(|place| path(place).out.len())?;
        let at = self.turns[place];
        let piece = self.cut(now, self.paths[at].sectors)?;
        self.turn = place + 1;
        let (code, body, data) = self.asks(&piece);
        let deadline = self.paths[at].deadline(now, piece.tries);
        self.counts.resent += u64::from(piece.tries > 0);
        self.send(now, at, What::Piece(piece), deadline, code, &body, data, true);
        self.out.pop_front()
    }

    /// Returns the command, arguments and data of a piece.
    fn asks(&self, piece: &Piece) -> (u8, Vec<u8>, Bytes) {
        let disk = self.known.as_ref().expect("it is up, so it is known");
        let job = self.jobs.get(&piece.job).expect("a piece is cut of a job that is there");
        let io = match &job.work {
            Work::List { command, body, .. } => return (*command, body.clone(), Bytes::new()),
            Work::Io(io) => io,
        };
        let (at, count, ext) = (io.at + piece.skip, piece.count, disk.long);
        let ata = |short, long, writes| Ata::new(if ext { long } else { short }, at, count, ext, writes);
        let asked = match io.op {
            Op::Read => ata(ata::READ, ata::READ_EXT, false),
            Op::Write => ata(ata::WRITE, ata::WRITE_EXT, true),
            Op::Flush if job.flushed => Ata::new(ata::IDENTIFY, 0, 1, false, false),
            Op::Flush if disk.flush_ext => Ata::new(ata::FLUSH_EXT, 0, 0, true, false),
            Op::Flush => Ata::new(ata::FLUSH, 0, 0, false, false),
            Op::Look | Op::Discard => Ata::new(ata::IDENTIFY, 0, 1, false, false),
        };
        let (from, len) = ((piece.skip * SECTOR) as usize, usize::from(count) * SECTOR as usize);
        let data = if io.op == Op::Write { io.data.slice(from..from + len) } else { Bytes::new() };
        (command::ATA, asked.bytes().to_vec(), data)
    }

    /// Returns the number of sectors that a frame with this piece carries, in either direction.
    pub(super) fn carried(&self, what: &What) -> u8 {
        match what {
            What::Piece(piece) => piece.count,
            _ => 0,
        }
    }

    /// Removes a frame's timer and, if it carries a piece, its entry on the path.
    pub(super) fn leaves(&mut self, tag: u32, sent: &Sent) {
        self.timers.remove(&(sent.deadline, tag));
        if let What::Piece(piece) = &sent.what {
            self.under_way -= 1;
            let path = &mut self.paths[sent.path];
            path.syncing -= usize::from(piece.syncs);
            let place = path.out.iter().position(|(order, _)| *order == sent.order);
            path.out.remove(place.expect("what is under way is on its path"));
        }
    }

    /// Handles a frame that was not answered in time.
    fn lost(&mut self, now: Duration, tag: u32) {
        if self.may_sync(now, tag) {
            return;
        }
        let sent = self.tags.remove(&tag).expect("a timer has a tag");
        self.leaves(tag, &sent);
        let path = &mut self.paths[sent.path];
        let (at, mac, port) = (sent.path, path.mac, path.port);
        let verdict = match sent.what {
            What::Piece(piece) => {
                // A late answer to a list request or a flush says nothing about the path.
                let is_slow = |job: &Job| job.is_list() || job.is_syncing();
                let verdict = match self.jobs.get(&piece.job).is_none_or(is_slow) {
                    true => Verdict::GoesOn,
                    false => path.lost(now, sent.at, sent.order, piece.count),
                };
                self.again(now, tag, sent, piece);
                verdict
            }
            What::Probe if path.live => {
                let verdict = path.lost(now, sent.at, sent.order, 0);
                self.copied(now, tag, sent, What::Copy(0, 0, None));
                verdict
            }
            What::Probe | What::LargeProbe => {
                path.probe_lost(now);
                return self.copied(now, tag, sent, What::Copy(0, 0, None));
            }
            What::Copy(..) => unreachable!("copies have no timer"),
        };
        match verdict {
            Verdict::GoesOn => {}
            Verdict::Small => self.happens(Event::PathSmall(mac, port)),
            Verdict::Ejected => {
                self.happens(Event::PathDown(mac, port));
                self.empties(now, at);
                self.query_at = self.query_at.min(now + ASK_SOME);
            }
        }
    }

    /// Whether this is a flush that has time left. If so, its path is probed instead, at growing intervals.
    fn may_sync(&mut self, now: Duration, tag: u32) -> bool {
        let sent = self.tags.get_mut(&tag).expect("a timer has a tag");
        let What::Piece(piece) = &sent.what else { return false };
        let ends = sent.at + self.flushes.timeout().max(FLUSH_LEAST * (1 << piece.tries.min(5)));
        if now >= ends || !self.jobs.get(&piece.job).is_some_and(Job::is_syncing) {
            return false;
        }
        self.timers.remove(&(sent.deadline, tag));
        let often = ends.min(now + self.setup.patience / 4).max(now + FLUSH_LOOK);
        sent.deadline = (now + (now - sent.at)).clamp(now + FLUSH_LOOK, often);
        self.timers.insert((sent.deadline, tag));
        let path = sent.path;
        self.probe(now, path, false);
        true
    }

    /// Sends the in-flight frames of this path again, on any path.
    fn empties(&mut self, now: Duration, at: usize) {
        for (_, tag) in self.paths[at].out.clone() {
            self.sends_again(now, tag);
        }
    }

    /// Sends the piece with this tag again.
    pub(super) fn sends_again(&mut self, now: Duration, tag: u32) {
        let sent = self.tags.remove(&tag).expect("it is under way");
        self.leaves(tag, &sent);
        if let What::Piece(piece) = sent.what {
            self.again(now, tag, sent, piece);
        }
    }

    /// Queues the piece to be sent again with another tag. The old frame becomes a copy that may still arrive.
    fn again(&mut self, now: Duration, tag: u32, sent: Sent, piece: Piece) {
        let job = self.jobs.get(&piece.job).map(|job| (job.is_syncing(), job.writes().map(|(at, _)| at)));
        let Some((is_flush, writes)) = job else {
            return self.copied(now, tag, sent, What::Copy(0, 0, None));
        };
        self.again.push_back(Piece { tries: piece.tries + 1, ..piece });
        let sectors = writes.map(|at| (at + piece.skip, u64::from(piece.count)));
        let (at, count) = sectors.unwrap_or((0, 0));
        let what = What::Copy(at, count, is_flush.then_some(piece.job));
        self.copied(now, tag, sent, what);
    }

    /// Gives up an in-flight frame. It may still arrive and write these sectors.
    pub(super) fn forget(&mut self, now: Duration, tag: u32, (at, count): (u64, u64)) {
        let Some(sent) = self.tags.remove(&tag) else { return };
        self.leaves(tag, &sent);
        self.copied(now, tag, sent, What::Copy(at, count, None));
    }

    /// Remembers a copy, to recognize its answer and to know the sectors that it may write.
    fn copied(&mut self, now: Duration, tag: u32, sent: Sent, what: What) {
        let linger = (8 * self.paths[sent.path].rtt.timeout()).clamp(LINGER_LEAST, LINGER_MOST);
        self.tags.insert(tag, Sent { what, ..sent });
        self.copies.push_back((now + linger, tag));
        if self.copies.len() > COPIES
            && let Some((_, oldest)) = self.copies.pop_front()
            && matches!(self.tags.remove(&oldest), Some(Sent { what: What::Copy(_, 1.., _), .. }))
        {
            self.release();
        }
    }
}
