//! Unsynced changes: durability errors of files and directories on servers that are mounted with `-r`.
//!
//! In: changes that an upstream has acknowledged, with the connection that acknowledged them; new connections; Tfsyncs.
//! Out: whether a Tfsync must fail with EIO, because a connection was lost while changes were unsynced.
//!
//! The errors follow `errseq_t` of Linux. A loss is reported once to each fid that was open before the first report. A
//! fid opened later sees it only if no other fid has seen it.
//!
//! Always holds: a Tfsync clears the record of its own file or directory and of nothing else. A change made while a
//! Tfsync is in flight stays recorded. Memory is bounded: changes beyond [`UNSYNCED_MAX`] files share one record.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use nine_io::server::{Reply, Request};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Op, OpenFlags, Qid};

use crate::cfid::{ClientFid, OpenFidKind};
use crate::core::MuxCore;
use crate::upstream::TreeRoot;

/// Maximum number of files and directories of one server with separate records of unsynced changes. Further ones share
/// one record for the whole server.
pub const UNSYNCED_MAX: usize = 65_536;

/// Identifies a file or directory: the index of its equal server and its qid path.
pub(crate) type FileKey = (u16, u64);

/// The unsynced changes of one upstream.
pub(crate) struct UnsyncedChanges {
    /// Number of losses reported so far. Each fid stores the number at its open or at its latest report.
    reported: AtomicU64,
    max: usize,
    state: Mutex<UnsyncedState>,
}

#[derive(Default)]
struct UnsyncedState {
    /// Reconnections so far.
    generation: u64,
    /// Changes so far.
    changes: u64,
    changed: HashMap<FileKey, ChangeRecord>,
    /// Changes that have no record of their own.
    others_changed: Option<ChangeRecord>,
    /// Reported losses, for fids that were open before the report.
    seen: HashMap<FileKey, u64>,
    others_seen: u64,
}

#[derive(Clone, Copy)]
struct ChangeRecord {
    /// The generations of its earliest and its latest change; `None`: its connection was already lost.
    earliest: Option<u64>,
    latest: Option<u64>,
    /// The number of its latest change.
    number: u64,
    /// Attributes changed, too: fdatasync(2) does not store them.
    has_attributes: bool,
}

impl ChangeRecord {
    fn add(slot: &mut Option<Self>, other: Self) {
        *slot = Some(match *slot {
            None => other,
            Some(old) => Self {
                earliest: old.earliest.min(other.earliest),
                latest: old.latest.max(other.latest),
                number: other.number,
                has_attributes: old.has_attributes || other.has_attributes,
            },
        });
    }

    fn is_lost(&self, generation: u64) -> bool {
        self.earliest < Some(generation)
    }

    /// Returns the changes since the loss. A report clears the earlier changes of the shared record, because no sync
    /// ever does.
    fn after_loss(self, generation: u64) -> Option<Self> {
        let latest = self.latest.filter(|latest| *latest == generation)?;
        Some(Self { earliest: Some(latest), ..self })
    }
}

impl Default for UnsyncedChanges {
    fn default() -> Self {
        Self::new(UNSYNCED_MAX)
    }
}

impl UnsyncedChanges {
    fn new(max: usize) -> Self {
        Self { reported: AtomicU64::new(0), max, state: Mutex::default() }
    }

    /// Returns the number of losses reported so far, the value for a new fid.
    pub(crate) fn reported(&self) -> u64 {
        self.reported.load(Ordering::Acquire)
    }

    /// Handles the new connection that replaces a lost one: the server may have lost all unsynced changes. After a
    /// switch to an equal server, the keys of the earlier one are meaningless.
    pub(crate) fn reconnected(&self, is_switch: bool) {
        let state = &mut *lock(&self.state);
        state.generation += 1;
        if is_switch {
            state
                .changed
                .drain()
                .for_each(|(_, changed)| ChangeRecord::add(&mut state.others_changed, changed));
        }
    }

    /// Records an acknowledged change; without a key, a change of an unknown file. `is_lost` is called under the lock:
    /// if a connection ends later, [`UnsyncedChanges::reconnected`] follows.
    fn record(&self, key: Option<FileKey>, has_attributes: bool, is_lost: impl FnOnce() -> bool) {
        let mut state = lock(&self.state);
        state.changes += 1;
        let generation = Some(state.generation).filter(|_| !is_lost());
        let new =
            ChangeRecord { earliest: generation, latest: generation, number: state.changes, has_attributes };
        let has_room = state.changed.len() < self.max;
        match key.filter(|key| has_room || state.changed.contains_key(key)) {
            Some(key) => {
                let mut slot = state.changed.get(&key).copied();
                ChangeRecord::add(&mut slot, new);
                slot.into_iter().for_each(|changed| _ = state.changed.insert(key, changed));
            }
            None => ChangeRecord::add(&mut state.others_changed, new),
        }
    }

    /// Starts a sync by a fid that has seen the first `seen` reports. Returns the number for
    /// [`UnsyncedChanges::finish_sync`]. `None` if changes may be lost; this is then reported to the fid.
    pub(crate) fn begin_sync(&self, key: FileKey, seen: &AtomicU64) -> Option<u64> {
        let state = &mut *lock(&self.state);
        let generation = state.generation;
        let next = self.reported() + 1;
        let (mut is_new, before) = (false, seen.load(Ordering::Relaxed));
        if let Some(changed) = state.changed.get(&key).copied().filter(|of| of.is_lost(generation)) {
            // A server that lost only the connection still has them unsynced.
            let again = ChangeRecord { earliest: Some(generation), latest: Some(generation), ..changed };
            state.changed.insert(key, again);
            if state.seen.len() >= self.max {
                // Open fids may then see one report more.
                state.seen.clear();
                state.others_seen = next;
            }
            state.seen.insert(key, next);
            is_new = true;
        }
        if let Some(changed) = state.others_changed.filter(|of| of.is_lost(generation)) {
            state.others_changed = changed.after_loss(generation);
            state.others_seen = next;
            is_new = true;
        }
        if is_new {
            self.reported.store(next, Ordering::Release);
        }
        let is_old = before < state.others_seen || state.seen.get(&key).is_some_and(|seen| before < *seen);
        if is_new || is_old {
            seen.store(self.reported(), Ordering::Relaxed);
            return None;
        }
        Some(state.changes)
    }

    /// Handles a successful sync of the file: changes up to `number` are safe.
    pub(crate) fn finish_sync(&self, key: FileKey, number: u64, data_only: bool) {
        let mut state = lock(&self.state);
        let is_safe = |of: &ChangeRecord| of.number <= number && !(data_only && of.has_attributes);
        if state.changed.get(&key).is_some_and(is_safe) {
            state.changed.remove(&key);
        }
    }
}

impl MuxCore {
    /// Records the changes of a request that succeeded over the connection of `root`.
    pub(crate) fn record_change(&self, req: &Request, cfid: &ClientFid, root: &TreeRoot, reply: &Reply) {
        let op = req.op();
        let is_named = matches!(
            op,
            Op::Create { .. }
                | Op::Make { .. }
                | Op::Unlink { .. }
                | Op::RenameAt { .. }
                | Op::Rename { .. }
                | Op::Remove
        );
        let target = req.node2::<ClientFid>().ok();
        if is_named {
            // The member that changed is not known here.
            for (head, _) in
                [Some(cfid), target.as_deref()].into_iter().flatten().filter_map(ClientFid::crossed)
            {
                let trees = head.members.iter().filter_map(|member| self.tree_of(member.to.tree));
                for tree in trees.filter(|tree| head.members.len() > 1 && tree.wait.is_some()) {
                    tree.upstream.unsynced.record(None, false, || false);
                }
            }
        }
        if cfid.kept.is_none() {
            return;
        }
        let record = |raw: Option<Qid>, has_attributes| {
            let key = raw.map(|raw| (root.member, raw.path));
            let is_lost = || root.client.dead().is_some();
            root.tree.upstream.unsynced.record(key, has_attributes, is_lost);
        };
        let raw = Some(cfid.live().raw);
        match op {
            // The write was on stable storage before its reply.
            Op::Write { .. } if matches!(cfid.open, Some(OpenFidKind::There(flags)) if flags.has(OpenFlags::DSYNC)) =>
                {}
            Op::Write { .. } => record(raw, false),
            Op::Open { flags } if flags.has(OpenFlags::TRUNC) => record(raw, false),
            Op::Create { flags, .. } => {
                record(raw, false);
                if let Reply::Open { node, .. } = reply
                    && flags.has(OpenFlags::TRUNC)
                    && let Some(made) = node.downcast_ref::<ClientFid>()
                {
                    record(Some(made.first.raw), false);
                }
            }
            Op::Make { .. } | Op::Unlink { .. } => record(raw, false),
            Op::RenameAt { .. } => {
                record(raw, false);
                target.iter().for_each(|target| record(Some(target.live().raw), false));
            }
            Op::Setattr { set } => {
                record(raw, set.size.is_none());
                if set.name.is_some() {
                    record(None, false);
                }
            }
            // The qid of the directory is not known.
            Op::Remove | Op::Rename { .. } => record(None, false),
            Op::XattrCreate { .. } => record(raw, true),
            // An attribute fid from a walk is only for reading.
            Op::Clunk if matches!(cfid.open, Some(OpenFidKind::Attribute)) && raw != Some(Qid::default()) => {
                record(raw, true);
            }
            _ => {}
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use super::*;

    const A: FileKey = (0, 1);
    const B: FileKey = (0, 2);

    fn sync(of: &UnsyncedChanges, key: FileKey, seen: &AtomicU64) -> bool {
        let number = of.begin_sync(key, seen);
        number.iter().for_each(|&number| of.finish_sync(key, number, false));
        number.is_some()
    }

    fn opened(of: &UnsyncedChanges) -> AtomicU64 {
        AtomicU64::new(of.reported())
    }

    #[test]
    fn each_fid_open_at_the_loss_sees_it_once_and_later_ones_do_not() {
        let of = UnsyncedChanges::default();
        let (one, two) = (opened(&of), opened(&of));
        of.record(Some(A), false, || false);
        of.reconnected(false);
        let between = opened(&of);
        assert!(sync(&of, B, &opened(&of)), "another file has lost nothing");
        assert!(!sync(&of, A, &one));
        let later = opened(&of);
        assert_eq!([&one, &two, &between, &later].map(|fid| sync(&of, A, fid)), [true, false, false, true]);
        assert_eq!([&one, &two, &between, &later].map(|fid| sync(&of, A, fid)), [true; 4]);
    }

    #[test]
    fn a_sync_clears_its_own_file_and_only_changes_before_it() {
        let of = UnsyncedChanges::default();
        let fid = opened(&of);
        of.record(Some(A), false, || false);
        of.record(Some(B), false, || false);
        assert!(sync(&of, A, &fid));
        of.reconnected(false);
        assert!(sync(&of, A, &fid) && !sync(&of, B, &fid));
        of.record(Some(A), false, || false);
        let number = of.begin_sync(A, &fid).unwrap();
        of.record(Some(A), false, || false);
        of.finish_sync(A, number, false);
        of.reconnected(false);
        assert!(!sync(&of, A, &fid));
    }

    #[test]
    fn a_late_answer_and_a_new_change_do_not_hide_a_loss() {
        let of = UnsyncedChanges::default();
        let fid = opened(&of);
        of.reconnected(false);
        of.record(Some(A), false, || true);
        of.record(Some(A), false, || false);
        assert!(!sync(&of, A, &fid));
        of.reconnected(false);
        assert!(!sync(&of, A, &fid), "the new change was lost, too");
        assert!(sync(&of, A, &fid));
    }

    #[test]
    fn fdatasync_leaves_attributes_unsynced() {
        let of = UnsyncedChanges::default();
        let fid = opened(&of);
        of.record(Some(A), true, || false);
        let number = of.begin_sync(A, &fid).unwrap();
        of.finish_sync(A, number, true);
        of.reconnected(false);
        assert!(!sync(&of, A, &fid));
    }

    #[test]
    fn beyond_the_limit_any_file_reports_the_loss_once() {
        let of = UnsyncedChanges::new(2);
        let (one, two) = (opened(&of), opened(&of));
        for path in 0..1000 {
            of.record(Some((0, path)), false, || false);
        }
        assert_eq!(lock(&of.state).changed.len(), 2);
        of.reconnected(false);
        assert!(!sync(&of, (0, 500), &one) && sync(&of, (0, 500), &one));
        assert!(!sync(&of, (0, 501), &two) && sync(&of, (0, 501), &two));
        for path in 0..1000 {
            of.record(Some((0, path)), false, || false);
            of.reconnected(false);
            assert!(!sync(&of, (0, path), &one));
        }
        assert!(lock(&of.state).seen.len() <= 2);
    }
}
