//! Orders dependent requests of streaming dialects: a request waits for earlier ones that create or move its fids.
//!
//! In: requests with fids that still change. Out: the same requests, planned as soon as no earlier request blocks
//! them. The requests of one fid come out in the order of their arrival.
//!
//! Always holds: a deferred request is in the queue of each fid that it names or creates. The oldest request is first
//! in each of its queues and waits only for a reply, so there is no deadlock. No queue is empty.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use hashbrown::HashMap;

use super::number::*;
use super::plan::linked;
use super::{CallWait, Out, ServerCall, Session, SessionFidState, Step};
use crate::dialect::Dialect;
use crate::ids::{Fid, NOFID, Tag};
use crate::msg::Tmsg;
use crate::session::client::used;
use crate::stat::mode::DMLINK;

/// Requests that wait for earlier ones. Their number is bounded by the limit of outstanding requests.
#[derive(Default)]
pub(super) struct DeferredRequests {
    /// The tags that wait for each fid, in the order of their arrival.
    queues: HashMap<Fid, VecDeque<Tag>>,
    /// Total size of the frames.
    pub(super) bytes: usize,
}

impl<N: Clone, F: AsRef<[u8]>> Session<N, F> {
    /// Whether this request must wait for an earlier one. It does not wait for a fid that is going.
    pub(super) fn must_wait(&self, tag: Tag, number: u8, [fid, fid2, newfid]: [Fid; 3]) -> bool {
        let queues = &self.deferred.queues;
        let behind = |fid| queues.get(&fid).is_some_and(|queue| queue.front() != Some(&tag));
        // Not for a clunk or remove: `CallWait::Alone` makes those wait for the end of an open.
        let ends = matches!(number, CLUNK | REMOVE);
        let unsettled = |fid| {
            self.fids.get(&fid).is_some_and(|entry| match entry.state {
                SessionFidState::Coming | SessionFidState::Alone => true,
                SessionFidState::Here => entry.moving && !ends,
                SessionFidState::Going => false,
            })
        };
        unsettled(fid) || unsettled(fid2) || !queues.is_empty() && [fid, fid2, newfid].into_iter().any(behind)
    }

    /// Stores the request until it need not wait any more.
    pub(super) fn defer(&mut self, tag: Tag, number: u8, fids: [Fid; 3], frame: F) -> Step<N, F> {
        let [fid, fid2, newfid] = fids;
        let generation = self.next_generation();
        for fid in fids.into_iter().filter(|&fid| fid != NOFID) {
            self.deferred.queues.entry(fid).or_default().push_back(tag);
        }
        self.deferred.bytes += frame.as_ref().len();
        let wait = CallWait::Turn(frame);
        self.calls.insert(tag, ServerCall { fid, fid2, newfid, wait, ..ServerCall::new(generation, number) });
        Step::Waits
    }

    /// Removes a deferred request from its queues.
    pub(super) fn leave(&mut self, tag: Tag, fids: [Fid; 3], frame: &F) {
        self.deferred.bytes -= frame.as_ref().len();
        for fid in fids.into_iter().filter(|&fid| fid != NOFID) {
            let queue = self.deferred.queues.get_mut(&fid).expect("a deferred request is in its queues");
            let place = queue.iter().position(|&other| other == tag);
            queue.remove(place.expect("a deferred request is in its queues"));
            if queue.is_empty() {
                self.deferred.queues.remove(&fid);
            }
        }
    }

    /// Examines the queues of these fids after a change. A request that need not wait any more is refused, becomes
    /// ready, or waits for exclusive use of its fid.
    pub(super) fn advance<P>(&mut self, fids: [Fid; 3], dialect: Dialect, out: &mut impl Out<P>) {
        if self.deferred.queues.is_empty() {
            return;
        }
        let mut fids = Vec::from(fids);
        while let Some(fid) = fids.pop() {
            let Some(&tag) = self.deferred.queues.get(&fid).and_then(VecDeque::front) else { continue };
            let call = &self.calls[&tag];
            if self.must_wait(tag, call.number, call.fids()) {
                continue;
            }
            let call = self.calls.remove(&tag).expect("looked up just now");
            let (number, others) = (call.number, call.fids());
            let CallWait::Turn(frame) = call.wait else { unreachable!("who is in a queue is deferred") };
            self.leave(tag, others, &frame);
            let (_, message) = Tmsg::decode(frame.as_ref(), dialect).expect("it was decoded when it came");
            let plan = self.prepare(&message, dialect);
            if let Step::Serve(request) = self.admit(tag, number, plan, dialect, frame, out) {
                self.ready.push_back(request);
            }
            fids.extend(others);
        }
    }
}

impl<N, F> ServerCall<N, F> {
    pub(super) fn fids(&self) -> [Fid; 3] {
        [self.fid, self.fid2, self.newfid]
    }
}

/// Returns the two fids that a message uses and the one that it creates, or NOFID for each that is absent.
pub(super) fn fids_of(message: &Tmsg<'_>, dialect: Dialect) -> [Fid; 3] {
    let fid = used(message).unwrap_or(NOFID);
    match *message {
        Tmsg::Auth { afid, .. } => [NOFID, NOFID, afid],
        Tmsg::Attach { fid: newfid, .. } | Tmsg::Walk { newfid, .. } | Tmsg::Xattrwalk { newfid, .. } => {
            [fid, NOFID, newfid]
        }
        Tmsg::Link { fid: other, .. }
        | Tmsg::Rename { dfid: other, .. }
        | Tmsg::Renameat { newdirfid: other, .. }
        | Tmsg::Renameat2 { newdirfid: other, .. } => [fid, other, NOFID],
        Tmsg::Create { perm, extension, .. } if dialect.is_u() && perm & DMLINK != 0 => {
            [fid, linked(extension.0).unwrap_or(NOFID), NOFID]
        }
        _ => [fid, NOFID, NOFID],
    }
}
