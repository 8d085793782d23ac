//! Received frames: configs, identify blocks, answers to pieces.

use std::time::Duration;

use nine_block::{Error, Io, Kind, Op, SECTOR};
use nine_net::ether::Mac;

use super::jobs::{Job, Piece, Work};
use super::{Event, FRAMES, Initiator, PATHS, Sent, State, What, other};
use crate::frame::{ATA, Ata, Config, Header, ata, command, error, sectors_of};
use crate::identify::Identify;
use crate::path::{Path, STANDARD};

/// A frame is considered lost when this many later frames are answered.
const OVERTAKEN: u8 = 3;
/// Minimum interval between two accepted announcements of a start.
const STARTED: Duration = Duration::from_secs(1);

impl Initiator {
    /// Processes a received frame.
    pub fn receive(&mut self, now: Duration, port: usize, from: Mac, packet: &[u8]) {
        let Some((header, body)) = Header::parse(packet) else { return self.counts.malformed += 1 };
        if !header.response || header.address != self.setup.target {
            return;
        }
        let is_ours = header.tag >> 31 == 1;
        if header.command == command::CONFIG && self.queries.contains(&header.tag) {
            return self.found(now, port, from, body);
        }
        if header.command == command::CONFIG && header.tag == 0 {
            return self.started(now);
        }
        if !is_ours {
            // It belongs to another initiator on this machine.
            return;
        }
        if !self.paths.iter().any(|path| path.mac == from) {
            return self.counts.foreign += 1;
        }
        let Some(sent) = self.tags.get(&header.tag) else { return self.counts.unexpected += 1 };
        if !self.is_answer(&sent.what, &header, body) {
            return self.counts.foreign += 1;
        }
        let sent = self.tags.remove(&header.tag).expect("it was there");
        self.answered(now, sent, header, body);
    }

    /// Processes an answer to a broadcast: adds the sender as a path, or updates it.
    fn found(&mut self, now: Duration, port: usize, from: Mac, body: &[u8]) {
        let Some(config) = Config::parse(body) else { return self.counts.malformed += 1 };
        // The announced values take effect only after the target has identified itself.
        let says = (config.buffers.clamp(1, FRAMES), if config.sectors == 0 { 2 } else { config.sectors });
        let most = sectors_of(self.ports[port].mtu).min(says.1);
        let known = self.paths.iter().position(|path| path.port == port && path.mac == from);
        match known {
            Some(at) => {
                let path = &mut self.paths[at];
                let is_news = std::mem::replace(&mut path.says, says) != says;
                if path.live && is_news {
                    self.probe(now, at, false);
                } else if !path.live && path.probe_at.is_some() {
                    path.probe_at = Some(now);
                }
            }
            None if most > 0 && (self.paths.len() < PATHS || self.forgets_a_path()) => {
                let mut path = Path::new(now, port, from, most);
                path.says = says;
                self.paths.push(path);
                // Round-robin over interfaces: first the first address of each.
                let rank = |at: usize| {
                    let path = &self.paths[at];
                    (self.paths[..at].iter().filter(|other| other.port == path.port).count(), path.port)
                };
                self.turns = (0..self.paths.len()).collect();
                self.turns.sort_by_key(|at| rank(*at));
            }
            None => {}
        }
    }

    /// Removes the oldest path that never led to the target and is not in use. Returns whether there was one.
    fn forgets_a_path(&mut self) -> bool {
        let is_used = |at| self.tags.values().any(|sent| sent.path == at);
        let Some(at) = (0..self.paths.len()).find(|at| !self.paths[*at].was_live && !is_used(*at)) else {
            return false;
        };
        self.paths.remove(at);
        self.tags.values_mut().filter(|sent| sent.path > at).for_each(|sent| sent.path -= 1);
        true
    }

    /// Processes an announcement that the target has started. It is not authenticated, so the target must identify
    /// itself again before other frames are sent to it.
    fn started(&mut self, now: Duration) {
        if self.started_at.is_some_and(|at| now < at + STARTED) {
            return;
        }
        self.started_at = Some(now);
        self.happens(Event::Started);
        self.query_at = now;
        for path in self.paths.iter_mut().filter(|path| path.live) {
            path.eject(now);
        }
    }

    /// Whether this frame can be the answer to `what`.
    fn is_answer(&self, what: &What, header: &Header, body: &[u8]) -> bool {
        let piece = match what {
            What::Piece(piece) => piece,
            What::Probe | What::LargeProbe => return header.command == command::ATA,
            What::Copy(..) => return true,
        };
        // When a job ends, its in-flight frames become copies.
        let Some(Job { work, .. }) = self.jobs.get(&piece.job) else { return false };
        match work {
            Work::List { command, .. } => header.command == *command,
            Work::Io(_) if header.command != command::ATA => false,
            Work::Io(_) if header.error.is_some() => true,
            Work::Io(io) => {
                let Some((ata, data)) = Ata::parse(body) else { return false };
                is_of(io, piece, &ata, data.len())
            }
        }
    }

    fn answered(&mut self, now: Duration, sent: Sent, header: Header, body: &[u8]) {
        let (tag, sectors) = (header.tag, self.carried(&sent.what));
        self.leaves(tag, &sent);
        // A probe counts as a sign of life only if it identifies our disk: see `identified`.
        if !matches!(sent.what, What::Probe | What::LargeProbe) {
            self.heard = now;
        }
        let buffers = self.buffers;
        let path = &mut self.paths[sent.path];
        match sent.what {
            What::Copy(_, count, flush) => {
                self.counts.late += 1;
                self.copies.retain(|(_, other)| *other != tag);
                match flush {
                    None => {
                        let large =
                            Path::is_large(count as u8) || body.len() > ATA + usize::from(STANDARD) * 512;
                        path.late(now, sent.at, sent.order, large);
                    }
                    Some(id) => {
                        self.flushes.measured(now.saturating_sub(sent.at));
                        // A disk may sync for longer than the timeout. The late answer still counts.
                        self.flushed_late(now, id, &header, body);
                    }
                }
                if count > 0 {
                    self.release();
                }
            }
            What::Probe => {
                path.answered(now, sent.at, 0);
                let disk = Ata::parse(body).filter(|(ata, _)| ata.command & ata::BAD == 0);
                match (header.error, disk.and_then(|(_, data)| Identify::parse(data))) {
                    (None, Some(disk)) => self.identified(now, Some(sent.path), disk),
                    (error, _) => {
                        self.counts.malformed += u64::from(error.is_none());
                        self.refused = error.map(refusal);
                        self.paths[sent.path].probe_lost(now);
                    }
                }
            }
            What::LargeProbe => {
                path.answered(now, sent.at, 0);
                let most = path.most();
                let large = Ata::parse(body).is_some_and(|(_, data)| data.len() >= usize::from(most) * 512);
                if large { path.takes_large() } else { path.probe_lost(now) }
            }
            What::Piece(piece) => {
                self.counts.answered += 1;
                let is_flush = self.jobs.get(&piece.job).is_some_and(Job::is_syncing);
                if is_flush {
                    self.flushes.measured(now.saturating_sub(sent.at));
                } else {
                    path.answered(now, sent.at, sectors);
                    let under_way = path.out.len() + 1;
                    path.window.answered(buffers, under_way);
                    self.overtakes(sent.path, sent.order, now);
                }
                self.takes(now, sent, piece, &header, body);
            }
        }
    }

    fn flushed_late(&mut self, now: Duration, id: u64, header: &Header, body: &[u8]) {
        let well =
            header.error.is_none() && Ata::parse(body).is_some_and(|(ata, _)| ata.command & ata::BAD == 0);
        if well && self.jobs.get(&id).is_some_and(Job::is_syncing) {
            // The retransmitted frame of this flush, if in flight, becomes a copy.
            let of = |what: &What| matches!(what, What::Piece(piece) if piece.job == id);
            let tag = self.tags.iter().find(|(_, sent)| of(&sent.what)).map(|(tag, _)| *tag);
            tag.into_iter().for_each(|tag| self.forget(now, tag, (0, 0)));
            self.again.retain(|piece| piece.job != id);
            self.synced(now, id);
        }
    }

    /// Counts, for each frame of this path sent before frame `order`, that it was overtaken.
    fn overtakes(&mut self, at: usize, order: u64, now: Duration) {
        let path = &self.paths[at];
        let patience = path.rtt.overtaken();
        for (_, tag) in path.out.iter().take_while(|(earlier, _)| *earlier < order) {
            let sent = self.tags.get_mut(tag).expect("what is on a path has a tag");
            sent.overtaken = sent.overtaken.saturating_add(1);
            let soon = (sent.at + patience).max(now);
            if sent.overtaken == OVERTAKEN && soon < sent.deadline {
                self.timers.remove(&(sent.deadline, *tag));
                sent.deadline = soon;
                self.timers.insert((soon, *tag));
            }
        }
    }

    /// Processes the answer to a piece.
    fn takes(&mut self, now: Duration, sent: Sent, piece: Piece, header: &Header, body: &[u8]) {
        let Some(job) = self.jobs.get(&piece.job) else { return };
        let io = match &job.work {
            Work::List { .. } => return self.listed(piece.job, header.error, body),
            Work::Io(io) => io,
        };
        if let Some(code) = header.error {
            return self.fail(now, piece.job, refusal(code));
        }
        let Some((ata, data)) = Ata::parse(body) else { return };
        if ata.command & ata::BAD != 0 {
            let error = failure(&ata, io.op);
            if error.kind == Kind::Range {
                // The disk has become smaller.
                self.probe(now, sent.path, false);
            }
            return self.fail(now, piece.job, error);
        }
        match io.op {
            Op::Read => {
                let len = usize::from(piece.count) * SECTOR as usize;
                match data.get(..len) {
                    Some(data) => self.done(now, piece, data),
                    None => {
                        self.counts.runts += 1;
                        self.again.push_back(Piece { tries: piece.tries + 1, ..piece });
                    }
                }
            }
            Op::Flush if job.is_syncing() => self.synced(now, piece.job),
            Op::Look | Op::Flush => match Identify::parse(data) {
                Some(disk) if io.op == Op::Flush => {
                    self.identified(now, None, disk);
                    self.synced(now, piece.job);
                }
                Some(disk) => {
                    self.identified(now, None, disk);
                    self.done(now, piece, &[]);
                }
                None => self.fail(now, piece.job, Error::new(Kind::Failed, "it does not say what it is")),
            },
            Op::Write | Op::Discard => self.done(now, piece, &[]),
        }
    }

    /// Processes identify data. `at` is the path if the answer is to a probe.
    fn identified(&mut self, now: Duration, at: Option<usize>, disk: Identify) {
        let known = self.known.as_ref();
        if known.is_some_and(|known| known.serial != disk.serial) {
            at.into_iter().for_each(|at| self.paths[at].probe_lost(now));
            // If another path still reaches our disk, two targets share this shelf and slot. Otherwise our disk was
            // replaced.
            let is_alone = !self.paths.iter().enumerate().any(|(n, path)| path.live && Some(n) != at);
            if is_alone || at.is_none() {
                self.paths.iter_mut().filter(|path| path.live).for_each(|path| path.eject(now));
                if self.state != State::Other(disk.serial.clone()) {
                    self.state = State::Other(disk.serial.clone());
                    self.happens(Event::Other(disk.serial.clone()));
                }
                self.fail_all(now, &other(&disk.serial));
            }
            return self.counts.foreign += 1;
        }
        if let Some(before) = known.map(|known| known.sectors).filter(|before| *before != disk.sectors) {
            self.happens(Event::Resized(before, disk.sectors));
        }
        self.heard = now;
        self.refused = None;
        self.syncing_since(now);
        let boots = self.known.as_ref().map_or(0, |known| known.boot);
        if boots != 0 && boots != disk.boot {
            self.booted(now);
        }
        self.known = Some(disk.clone());
        if let Some(at) = at {
            let (buffers, takes) = self.paths[at].says;
            (self.buffers, self.takes) = (usize::from(buffers), takes);
            for path in &mut self.paths {
                path.fits(sectors_of(self.ports[path.port].mtu).min(takes));
            }
        }
        if let Some(at) = at
            && self.paths[at].returns(now)
        {
            let (mac, port) = (self.paths[at].mac, self.paths[at].port);
            self.happens(Event::PathUp(mac, port));
        }
        if self.state != State::Up {
            self.state = State::Up;
            self.happens(Event::Up(disk));
            if self.jobs.is_empty() {
                self.waits = None;
            }
        }
    }
}

/// Whether an answer with these registers and this many bytes of data can belong to the piece.
fn is_of(io: &Io, piece: &Piece, ata: &Ata, len: usize) -> bool {
    let writes = ata.flags & ata::WRITES != 0;
    if writes != (io.op == Op::Write) {
        return false;
    }
    if ata.command & ata::BAD != 0 || !matches!(io.op, Op::Read | Op::Write) {
        return true;
    }
    // The registers are those of the request, or those that a disk leaves: after the last sector.
    let at = io.at + piece.skip;
    let is_there = [at, at + u64::from(piece.count)].contains(&ata.sector());
    is_there && (writes || len <= usize::from(piece.count) * SECTOR as usize || len < 46)
}

/// Translates the error code of a header.
fn refusal(code: u8) -> Error {
    let (kind, text) = match code {
        error::RESERVED => (Kind::Reserved, "another has reserved it"),
        error::UNAVAILABLE => (Kind::Down, "the target has no device now"),
        error::COMMAND | error::VERSION => (Kind::Unsupported, "the target does not know this"),
        _ => (Kind::Failed, "the target takes no such frame"),
    };
    Error::new(kind, format!("{text} (AoE error {code})"))
}

/// Translates an ATA status.
fn failure(ata: &Ata, op: Op) -> Error {
    let (kind, text) = match ata.feature {
        bits if bits & ata::NO_SECTOR != 0 => (Kind::Range, "it has no such sector"),
        bits if bits & ata::UNCORRECTABLE != 0 => (Kind::Failed, "what is there cannot be read"),
        _ if op == Op::Flush => (Kind::Poisoned, "what was written may be lost: the target cannot flush"),
        _ => (Kind::Failed, "the target has given it up"),
    };
    Error::new(kind, format!("{text} (ATA status {:02x}, error {:02x})", ata.command, ata.feature))
}
