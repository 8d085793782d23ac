//! Maps the qids of many upstreams to qids that are unique for a client (seed: section 3.4.3; here also beyond 65,536
//! upper halves).
//!
//! A qid path of an upstream is mapped by its upper 16 bits: each pair of (upstream, upper bits) gets one of 32,768
//! slots. So the paths of one directory stay as dense as they were. If an upstream uses more than [`SLOTS_EACH`] upper
//! halves, or no slots are left, its further paths become the top bit and a keyed hash of 63 bits. The hash needs no
//! state: it is the same on every core and after a reconnect.
//!
//! Always holds: two files that have fids at the same time never share a path. For hashed paths this is checked among
//! the live fids, and the second file gets another path. Names that are only listed may collide: for a million files,
//! the chance that two share a path is 1 in 18 million.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{BuildHasher, RandomState};
use std::sync::RwLock;

use nine_proto::Qid;

use nine_net::lock::{Mutex, lock};

/// Maximum number of slots of one upstream.
pub const SLOTS_EACH: usize = 1024;
/// Number of slots. The top bit marks hashes.
const SLOTS: u16 = 0x8000;
const TOP: u64 = 1 << 63;

/// The state that all upstreams of a mux share.
pub(crate) struct QidAllocator {
    free: Mutex<(u16, Vec<u16>)>,
    hash: QidHash,
    /// Hashed paths with fids: the upstream, its path and the number of fids.
    live: Mutex<HashMap<u64, (u32, u64, u32)>>,
}

type QidHash = Box<dyn Fn(u32, u64) -> u64 + Send + Sync>;

/// The qid map of one upstream.
pub(crate) struct QidMap {
    upstream: u32,
    /// Maps upper bits to slots.
    slots: RwLock<HashMap<u16, u16>>,
}

impl QidAllocator {
    pub(crate) fn new() -> Self {
        let key = RandomState::new();
        Self::with_hash(Box::new(move |upstream, path| key.hash_one((upstream, path))))
    }

    fn with_hash(hash: QidHash) -> Self {
        Self { free: Mutex::new((0, Vec::new())), hash, live: Mutex::default() }
    }

    pub(crate) fn map(&self, map: &QidMap, qid: Qid) -> Qid {
        Qid { path: self.path(map, qid.path), ..qid }
    }

    /// Returns the path for a new fid of a file. The caller must release it with [`QidAllocator::release`].
    pub(crate) fn hold(&self, map: &QidMap, qid: Qid) -> Qid {
        let mut path = self.path(map, qid.path);
        if path & TOP != 0 {
            let mut live = lock(&self.live);
            loop {
                match live.entry(path) {
                    Entry::Vacant(entry) => {
                        entry.insert((map.upstream, qid.path, 1));
                        break;
                    }
                    Entry::Occupied(mut entry) => {
                        let (upstream, of, fids) = entry.get_mut();
                        if (*upstream, *of) == (map.upstream, qid.path) {
                            *fids += 1;
                            break;
                        }
                    }
                }
                path = TOP | path.wrapping_add(1);
            }
        }
        Qid { path, ..qid }
    }

    pub(crate) fn release(&self, held: Qid) {
        if held.path & TOP == 0 {
            return;
        }
        if let Entry::Occupied(mut entry) = lock(&self.live).entry(held.path) {
            entry.get_mut().2 -= 1;
            if entry.get().2 == 0 {
                entry.remove();
            }
        }
    }

    /// Frees the slots of an upstream that has ended. There must be no fids on it any more.
    pub(crate) fn give_back(&self, map: &QidMap) {
        let mut slots = map.slots.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        lock(&self.free).1.extend(slots.drain().map(|(_, slot)| slot));
    }

    fn path(&self, map: &QidMap, path: u64) -> u64 {
        let upper = (path >> 48) as u16;
        let lower = path & (u64::MAX >> 16);
        let known = || {
            let slots = map.slots.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            slots.get(&upper).copied().map_or_else(|| Err(slots.len()), Ok)
        };
        let slot = match known() {
            Ok(slot) => Some(slot),
            Err(used) if used >= SLOTS_EACH => None,
            Err(_) => self.take(map, upper),
        };
        slot.map_or_else(|| TOP | (self.hash)(map.upstream, path), |slot| u64::from(slot) << 48 | lower)
    }

    /// Assigns a slot to new upper bits. Returns the present slot if another thread has just assigned one.
    fn take(&self, map: &QidMap, upper: u16) -> Option<u16> {
        let mut slots = map.slots.write().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(&slot) = slots.get(&upper) {
            return Some(slot);
        }
        let mut free = lock(&self.free);
        let slot = free.1.pop().or_else(|| {
            let next = free.0;
            (next < SLOTS).then(|| {
                free.0 += 1;
                next
            })
        })?;
        slots.insert(upper, slot);
        Some(slot)
    }
}

impl QidMap {
    pub(crate) fn new(upstream: u32) -> Self {
        Self { upstream, slots: RwLock::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn qid(path: u64) -> Qid {
        Qid { ty: 0x80, vers: 7, path }
    }

    #[test]
    fn equal_paths_of_two_upstreams_differ_and_stay_as_they_were() {
        let qids = QidAllocator::new();
        let (a, b) = (QidMap::new(1), QidMap::new(2));
        let (first, second) = (qids.map(&a, qid(5)), qids.map(&b, qid(5)));
        assert_ne!(first.path, second.path);
        assert_eq!((first.ty, first.vers, first.path & 0xffff_ffff_ffff), (0x80, 7, 5));
        assert_eq!(qids.map(&a, qid(5)), first);
        assert_ne!(qids.map(&a, qid(5 | 1 << 60)), first);
    }

    #[test]
    fn past_all_slots_paths_are_hashed_and_still_unique() {
        let qids = QidAllocator::new();
        let maps: Vec<QidMap> = (0..70).map(QidMap::new).collect();
        let mut seen = std::collections::HashSet::new();
        for map in &maps {
            for upper in 0..1000u64 {
                assert!(seen.insert(qids.map(map, qid(upper << 48 | 9)).path));
            }
        }
        assert_eq!(seen.len(), 70_000);
        assert!(seen.iter().any(|path| path & TOP != 0));
        for map in &maps {
            for upper in 0..1000u64 {
                assert!(seen.contains(&qids.map(map, qid(upper << 48 | 9)).path), "the same every time");
            }
        }
    }

    #[test]
    fn one_upstream_does_not_take_all_slots() {
        let qids = QidAllocator::new();
        let (greedy, other) = (QidMap::new(1), QidMap::new(2));
        for upper in 0..0x10000u64 {
            qids.map(&greedy, qid(upper << 48));
        }
        assert_eq!(qids.map(&other, qid(3)).path & TOP, 0);
    }

    #[test]
    fn fids_of_two_files_whose_hashes_meet_have_two_paths() {
        let mut qids = QidAllocator::with_hash(Box::new(|_, path| path & 1));
        qids.free = Mutex::new((SLOTS, Vec::new()));
        let map = QidMap::new(1);
        let (two, four) = (qids.hold(&map, qid(2)), qids.hold(&map, qid(4)));
        assert_ne!(two.path, four.path);
        assert_eq!(qids.hold(&map, qid(2)), two);
        qids.release(two);
        qids.release(two);
        qids.release(four);
        assert!(lock(&qids.live).is_empty());
    }

    #[test]
    fn slots_of_an_upstream_that_has_gone_are_used_again() {
        let qids = QidAllocator::new();
        let map = QidMap::new(1);
        let slot = qids.map(&map, qid(0)).path >> 48;
        qids.give_back(&map);
        assert_eq!(qids.map(&QidMap::new(2), qid(0)).path >> 48, slot);
    }
}
