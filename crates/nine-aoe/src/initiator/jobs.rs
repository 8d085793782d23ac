//! Operations, and the pieces into which they are cut.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use nine_block::{Error, Io, Kind, Op, Result, SECTOR};

use super::{Ended, FLUSH_MOST, Initiator, LIST_PATIENCE, Sent, State, Told, What};

/// A request of a caller.
pub(super) enum Work {
    Io(Io),
    List { command: u8, body: Vec<u8>, told: Told },
}

/// A pending operation.
pub(super) struct Job {
    pub(super) work: Work,
    /// Sectors cut into pieces so far, and sectors completed. An operation that is not cut counts as one.
    cut: u64,
    done: u64,
    /// Completed pieces of a write with several pieces.
    written: Vec<Piece>,
    /// Received data of a read with several pieces.
    data: BytesMut,
    /// Of a flush: whether it is answered, so that only the check of the target's boot remains; the number of writes
    /// that it covers; the number of reported losses when it was submitted.
    pub(super) flushed: bool,
    covers: u64,
    told: u64,
    /// Whether the operation has waited for copies.
    held: bool,
    /// Time of the last progress or of the start. `None` while it waits to start.
    progress: Option<Duration>,
    begun: Duration,
}

/// A part of an operation that fits into one frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Piece {
    pub(super) job: u64,
    /// Offset in sectors from the start of the operation.
    pub(super) skip: u64,
    /// Number of sectors; 0 if the operation is not a read or write.
    pub(super) count: u8,
    /// It is a flush, which waits for the disk.
    pub(super) syncs: bool,
    pub(super) tries: u32,
}

impl Job {
    fn is_cut(&self) -> bool {
        matches!(&self.work, Work::Io(Io { op: Op::Read | Op::Write, .. }))
    }

    /// Size of the operation, in sectors; 1 if it is not cut.
    fn whole(&self) -> u64 {
        match &self.work {
            Work::Io(io) if self.is_cut() => io.count,
            _ => 1,
        }
    }

    /// Returns the sectors that it writes: start, count.
    pub(super) fn writes(&self) -> Option<(u64, u64)> {
        match &self.work {
            Work::Io(io) if io.op == Op::Write => Some((io.at, io.count)),
            _ => None,
        }
    }

    pub(super) fn is_flush(&self) -> bool {
        matches!(&self.work, Work::Io(Io { op: Op::Flush, .. }))
    }

    /// It is a flush that is not answered yet.
    pub(super) fn is_syncing(&self) -> bool {
        self.is_flush() && !self.flushed
    }

    pub(super) fn is_list(&self) -> bool {
        matches!(self.work, Work::List { .. })
    }
}

impl Initiator {
    pub(super) fn enter(&mut self, now: Duration, work: Work) {
        let id = self.next_job;
        self.next_job += 1;
        if self.jobs.is_empty() {
            self.audit_at = now + self.audits_every();
            self.waits.get_or_insert(now);
        }
        let (covers, told, data) = (self.writes, self.told, BytesMut::new());
        let written = Vec::new();
        let job = Job {
            work,
            cut: 0,
            done: 0,
            written,
            data,
            flushed: false,
            covers,
            told,
            held: false,
            progress: None,
            begun: now,
        };
        self.jobs.insert(id, job);
        self.fresh.push_back(id);
    }

    fn audits_every(&self) -> Duration {
        (self.setup.patience.min(LIST_PATIENCE) / 4).max(Duration::from_millis(1))
    }

    /// Returns the next unsent piece, of at most `most` sectors.
    pub(super) fn cut(&mut self, now: Duration, most: u8) -> Option<Piece> {
        while let Some(mut piece) = self.again.pop_front() {
            if !self.jobs.contains_key(&piece.job) {
                continue;
            }
            if piece.count > most {
                let (skip, count) = (piece.skip + u64::from(most), piece.count - most);
                self.again.push_front(Piece { skip, count, ..piece });
                piece.count = most;
            }
            return Some(piece);
        }
        let shape = self.shape();
        while let Some(&id) = self.fresh.front() {
            let Some(job) = self.jobs.get(&id) else {
                self.fresh.pop_front();
                continue;
            };
            if job.progress.is_none() {
                let judged = match &job.work {
                    Work::Io(io) => io.judge(&shape),
                    Work::List { .. } => Ok(()),
                };
                if let Err(error) = judged {
                    self.fail(now, id, error);
                    continue;
                }
                let is_nothing = job.is_flush() && !self.flushes_somehow();
                let is_held = job.writes().is_some_and(|sectors| self.has_copies(sectors));
                if is_nothing {
                    self.finish(now, id, Ok(Bytes::new()));
                    continue;
                }
                if is_held {
                    self.fresh.pop_front();
                    self.held.push(id);
                    let job = self.jobs.get_mut(&id)?;
                    self.counts.held += u64::from(!std::mem::replace(&mut job.held, true));
                    continue;
                }
            }
            let job = self.jobs.get_mut(&id)?;
            job.progress.get_or_insert(now);
            let syncs = job.is_syncing();
            let (skip, whole) = (job.cut, job.whole());
            let count = (whole - skip).min(u64::from(most.max(1)));
            job.cut += count;
            if job.cut == whole {
                self.fresh.pop_front();
            }
            return Some(Piece {
                job: id,
                skip,
                count: if job.is_cut() { count as u8 } else { 0 },
                syncs,
                tries: 0,
            });
        }
        None
    }

    fn flushes_somehow(&self) -> bool {
        self.known.as_ref().is_some_and(|disk| disk.flush || disk.flush_ext)
    }

    /// Whether a copy of an earlier write may still change some of these sectors.
    fn has_copies(&self, (at, count): (u64, u64)) -> bool {
        self.copies.iter().any(|(_, tag)| match self.tags.get(tag).map(|sent| &sent.what) {
            Some(What::Copy(from, n, _)) => *n > 0 && *from < at + count && at < from + n,
            _ => false,
        })
    }

    /// Queues the writes that wait for copies again. They are checked anew.
    pub(super) fn release(&mut self) {
        while let Some(id) = self.held.pop() {
            self.fresh.push_front(id);
        }
    }

    /// Records a piece as completed. `data` is the data of a read.
    pub(super) fn done(&mut self, now: Duration, piece: Piece, data: &[u8]) {
        let Some(job) = self.jobs.get_mut(&piece.job) else { return };
        let (whole, count) = (job.whole(), u64::from(piece.count.max(1)));
        job.progress = Some(now);
        job.done += count;
        let mut all = Bytes::new();
        if let Work::Io(Io { op: Op::Read, .. }) = job.work {
            if count == whole {
                all = Bytes::copy_from_slice(data);
            } else {
                if job.data.is_empty() {
                    job.data.reserve((whole * SECTOR) as usize);
                }
                // Data that arrives in order is appended, without filling the buffer with zeros first.
                let from = (piece.skip * SECTOR) as usize;
                if from >= job.data.len() {
                    job.data.resize(from, 0);
                    job.data.extend_from_slice(data);
                } else {
                    job.data[from..from + data.len()].copy_from_slice(data);
                }
            }
        }
        if job.writes().is_some() {
            self.writes += 1;
            if job.done < whole {
                job.written.push(piece);
            }
        }
        assert!(job.done <= whole, "each sector is done once");
        if job.done == whole {
            if count != whole {
                all = std::mem::take(&mut job.data).freeze();
            }
            self.finish(now, piece.job, Ok(all));
        }
    }

    /// Handles a reboot of the target's machine. Pieces of pending writes are sent again. Completed but unflushed
    /// writes may be lost.
    pub(super) fn booted(&mut self, now: Duration) {
        if self.writes > self.flushed {
            (self.losses, self.flushed) = (self.losses + 1, self.writes);
        }
        let mut ids: Vec<u64> = self.jobs.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            let Some(job) = self.jobs.get_mut(&id) else { continue };
            for piece in std::mem::take(&mut job.written) {
                job.done -= u64::from(piece.count);
                self.again.push_back(piece);
            }
        }
        let is_write = |sent: &Sent| match sent.what {
            What::Piece(piece) => self.jobs.get(&piece.job).is_some_and(|job| job.writes().is_some()),
            _ => false,
        };
        let mut tags: Vec<u32> =
            self.tags.iter().filter(|(_, sent)| is_write(sent)).map(|(tag, _)| *tag).collect();
        tags.sort_unstable();
        tags.into_iter().for_each(|tag| self.sends_again(now, tag));
    }

    /// Continues a flush after its answer. If the target reports its boot, an identify request follows, and this
    /// function is called again with its answer.
    pub(super) fn synced(&mut self, now: Duration, id: u64) {
        let asks = self.known.as_ref().is_some_and(|disk| disk.boot != 0);
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.progress = Some(now);
        if asks && !std::mem::replace(&mut job.flushed, true) {
            return self.again.push_back(Piece { job: id, skip: 0, count: 0, syncs: false, tries: 0 });
        }
        if self.losses > job.told {
            self.says = self.losses;
            let text = "the target's machine has started anew: what was not flushed may be lost";
            return self.fail(now, id, Error::new(Kind::Poisoned, text));
        }
        self.flushed = self.flushed.max(job.covers);
        self.finish(now, id, Ok(Bytes::new()));
    }

    /// Completes a mask, reserve or config request.
    pub(super) fn listed(&mut self, id: u64, error: Option<u8>, body: &[u8]) {
        let Some(Job { work: Work::List { told, .. }, .. }) = self.jobs.remove(&id) else { return };
        self.ended.push_back(Ended::List(told, Ok((error, body.to_vec()))));
        self.rests();
    }

    pub(super) fn fail(&mut self, now: Duration, id: u64, error: Error) {
        let error = error.of(self.name());
        self.finish(now, id, Err(error));
    }

    pub(super) fn finish(&mut self, now: Duration, id: u64, result: Result<Bytes>) {
        let Some(job) = self.jobs.remove(&id) else { return };
        if result.is_err() {
            // In-flight frames of a failed write may still be executed.
            let sectors = |what: &What| match what {
                What::Piece(piece) if piece.job == id => {
                    Some(job.writes().map_or((0, 0), |(at, _)| (at + piece.skip, u64::from(piece.count))))
                }
                _ => None,
            };
            let mut tags: Vec<_> =
                self.tags.iter().filter_map(|(tag, sent)| Some((*tag, sectors(&sent.what)?))).collect();
            tags.sort_unstable();
            tags.into_iter().for_each(|(tag, sectors)| self.forget(now, tag, sectors));
        }
        match job.work {
            Work::Io(io) => self.ended.push_back(Ended::Io(io, result)),
            Work::List { told, .. } => {
                let result = result.map(|_| (None, Vec::new()));
                self.ended.push_back(Ended::List(told, result));
            }
        }
        self.rests();
    }

    /// Notes that no operation is pending, if so.
    fn rests(&mut self) {
        if self.jobs.is_empty() && self.state != State::Opening {
            self.waits = None;
        }
    }

    pub(super) fn fail_all(&mut self, now: Duration, error: &Error) {
        let mut ids: Vec<u64> = self.jobs.keys().copied().collect();
        ids.sort_unstable();
        ids.into_iter().for_each(|id| self.fail(now, id, error.clone()));
        self.fresh.clear();
        self.again.clear();
        self.held.clear();
    }

    /// Notes that the target is responsive, so that flushes may continue.
    pub(super) fn syncing_since(&mut self, now: Duration) {
        for job in self.jobs.values_mut().filter(|job| job.is_syncing() && job.progress.is_some()) {
            if now < job.begun + FLUSH_MOST {
                job.progress = Some(now);
            }
        }
    }

    /// Fails operations that have made no progress for too long.
    pub(super) fn audit(&mut self, now: Duration) {
        if now < self.audit_at {
            return;
        }
        self.audit_at = now + self.audits_every();
        let patience = self.setup.patience;
        let late = |job: &Job| {
            let may = if job.is_list() { patience.min(LIST_PATIENCE) } else { patience };
            job.progress.is_some_and(|at| at.saturating_add(may) <= now)
        };
        let mut ids: Vec<u64> = self.jobs.iter().filter(|(_, job)| late(job)).map(|(id, _)| *id).collect();
        ids.sort_unstable();
        for id in ids {
            self.fail(now, id, Error::new(Kind::Down, "the target has not answered in time"));
        }
    }
}
