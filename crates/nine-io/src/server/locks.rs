//! Record locks on one file: the ranges and their owners.
//!
//! In: a range and an owner, which is a process of a client on one connection, through any fid. Out: whether another
//! owner's lock conflicts. No clock, no host calls, nothing waits.
//!
//! Always holds: ranges of two owners overlap only if both are read locks. Ranges of one owner never overlap. The
//! number of ranges is shared fairly ([`limits`]), on each file and on all files of a server together.

use std::collections::BTreeMap;
use std::sync::Arc;

use nine_proto::{Errno, LockRequest, LockType, Result};

use super::req::{Reply, Request};
use crate::limits::{self, ClientPrincipal, FairLimit, FairShare, UnitsHeld};

/// Maximum number of ranges on one file; one more is refused with ENOLCK.
pub const FILE_LOCKS_MAX: usize = 4096;
/// Maximum number of ranges on all files of a server; one more is refused with ENOLCK.
pub const LOCKS_MAX: usize = 1 << 17;

/// Longest client name, in bytes; every range stores one. Linux's own have at most 64. A longer name is refused with
/// EINVAL.
const CLIENT_ID: usize = 255;

/// The owner of a lock: a process of a client on one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    conn: u64,
    /// The process, as the client numbers it.
    pub proc_id: u32,
    /// The client, as it names itself.
    pub client_id: Box<[u8]>,
}

/// A lock that an owner holds.
#[derive(Clone, Debug)]
pub struct Held {
    /// Its owner.
    pub owner: Owner,
    /// The open file through which it was set; closing that file releases it.
    file: u64,
    /// Never `Unlock`.
    pub ty: LockType,
    /// The first byte.
    pub start: u64,
    /// The last byte; `u64::MAX`: to the end of the file, however it grows.
    last: u64,
    /// One unit of the server's limit.
    share: Arc<FairShare>,
}

impl Held {
    /// Its length as in a Tlock: 0 means to the end.
    pub fn length(&self) -> u64 {
        length(self.start, self.last)
    }
}

/// A lock request of an owner.
#[derive(Clone, Debug)]
pub struct Wanted {
    owner: Owner,
    file: u64,
    /// `None`: release the range.
    ty: Option<LockType>,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub last: u64,
    /// The principal that its range is charged to.
    principal: ClientPrincipal,
}

impl Wanted {
    /// Reads it from a request through the open file with this number.
    ///
    /// # Errors
    /// EOVERFLOW if the range ends beyond 64 bits. EINVAL if it starts beyond 63 bits, or if the client's name is too
    /// long.
    pub fn of(request: &Request, file: u64, asked: &LockRequest<'_>) -> Result<Self> {
        Self::new(request.id().conn, ClientPrincipal::of(request.who()), file, asked)
    }

    /// Reads it from a request of this principal on this connection.
    ///
    /// # Errors
    /// As [`Wanted::of`].
    pub fn new(conn: u64, principal: ClientPrincipal, file: u64, asked: &LockRequest<'_>) -> Result<Self> {
        let last = match asked.length {
            0 => u64::MAX,
            n => asked.start.checked_add(n - 1).ok_or(Errno::EOVERFLOW)?,
        };
        if i64::try_from(asked.start).is_err() || asked.client_id.len() > CLIENT_ID {
            return Err(Errno::EINVAL.into());
        }
        let owner = Owner { conn, proc_id: asked.proc_id, client_id: asked.client_id.into() };
        let ty = (asked.ty != LockType::Unlock).then_some(asked.ty);
        Ok(Self { owner, file, ty, start: asked.start, last, principal })
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Ranges(Vec<Held>);

impl Ranges {
    /// The number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The answer to a Tgetlock.
    pub fn getlock(&self, asked: &LockRequest<'_>, want: &Wanted) -> Reply {
        match self.conflict(want) {
            Some(held) => Reply::Getlock {
                ty: held.ty,
                start: held.start,
                length: held.length(),
                proc_id: held.owner.proc_id,
                client_id: held.owner.client_id.clone(),
            },
            None => Reply::Getlock {
                ty: LockType::Unlock,
                start: asked.start,
                length: asked.length,
                proc_id: asked.proc_id,
                client_id: asked.client_id.into(),
            },
        }
    }

    /// Returns a conflicting lock of another owner, if any.
    pub fn conflict(&self, want: &Wanted) -> Option<&Held> {
        want.ty?;
        self.0.iter().find(|held| {
            held.owner != want.owner
                && held.start <= want.last
                && want.start <= held.last
                && (held.ty == LockType::Write || want.ty == Some(LockType::Write))
        })
    }

    /// Gives the owner the wanted range, or releases it, and cuts the owner's earlier ranges. `all` is the server's
    /// limit. The caller has checked for conflicts.
    ///
    /// # Errors
    /// ENOLCK if the principal has used up its share of the ranges of this file, or of all files. Then nothing has
    /// changed.
    pub fn replace(&mut self, want: Wanted, all: &Arc<FairLimit>) -> Result<()> {
        let is_cut =
            |held: &Held| held.owner == want.owner && held.start <= want.last && want.start <= held.last;
        let pieces = |held: &Held| usize::from(held.start < want.start) + usize::from(held.last > want.last);
        let (mut gone, mut new) = (0, usize::from(want.ty.is_some()));
        for held in self.0.iter().filter(|held| is_cut(held)) {
            gone += 1;
            new += pieces(held);
        }
        let more = new.saturating_sub(gone);
        if more > self.allowance(&want.principal) {
            return Err(Errno::ENOLCK.into());
        }
        let shares = (0..more).map(|_| all.take(&want.principal, 1).map(Arc::new));
        let mut shares = shares.collect::<Option<Vec<_>>>().ok_or(Errno::ENOLCK)?;
        let mut next = Vec::with_capacity(self.0.len() + more);
        // Removed ranges leave their units to the new ones.
        for held in self.0.extract_if(.., |held| is_cut(held)) {
            shares.push(held.share.clone());
            next.push(held);
        }
        let mut share = || shares.pop().expect("a unit was counted for each new range");
        for held in next {
            if held.start < want.start {
                self.0.push(Held { last: want.start - 1, share: share(), ..held.clone() });
            }
            if held.last > want.last {
                self.0.push(Held { start: want.last + 1, share: share(), ..held });
            }
        }
        let Wanted { owner, file, ty, start, last, .. } = want;
        if let Some(ty) = ty {
            self.0.push(Held { owner, file, ty, start, last, share: share() });
        }
        Ok(())
    }

    /// Ranges of this file that a principal may still take.
    fn allowance(&self, principal: &ClientPrincipal) -> usize {
        let mut held = UnitsHeld::default();
        for of in self.0.iter().map(|held| held.share.principal()) {
            held.by_class[of.class() as usize] += 1;
            held.by_principal += usize::from(of == principal);
        }
        limits::allowance(FILE_LOCKS_MAX, principal.class(), held)
    }

    /// Releases the locks set through an open file, and returns their ranges (first and last byte).
    pub fn release(&mut self, file: u64) -> Vec<(u64, u64)> {
        let gone = self.0.extract_if(.., |held| held.file == file);
        gone.map(|held| (held.start, held.last)).collect()
    }

    /// Splits a range into pieces (first byte, last byte), each with the strongest lock that any owner holds on it.
    pub fn strongest(&self, start: u64, last: u64) -> Vec<(u64, u64, LockType)> {
        // The positions where the numbers of readers and writers change.
        let mut edges = BTreeMap::from([(start, [0, 0])]);
        for held in self.0.iter().filter(|held| held.start <= last && start <= held.last) {
            let kind = usize::from(held.ty == LockType::Write);
            edges.entry(held.start.max(start)).or_default()[kind] += 1;
            if held.last < last {
                edges.entry(held.last + 1).or_default()[kind] -= 1;
            }
        }
        let (mut over, mut pieces) = ([0, 0], Vec::<(u64, u64, LockType)>::new());
        for (from, [readers, writers]) in edges {
            over = [over[0] + readers, over[1] + writers];
            let ty = match over {
                [_, (1..)] => LockType::Write,
                [(1..), _] => LockType::Read,
                _ => LockType::Unlock,
            };
            match pieces.last_mut() {
                Some(piece) if piece.2 == ty => continue,
                Some(piece) => piece.1 = from - 1,
                None => {}
            }
            pieces.push((from, last, ty));
        }
        pieces
    }
}

/// The length of a range; 0 means to the end.
pub fn length(start: u64, last: u64) -> u64 {
    if last == u64::MAX { 0 } else { last - start + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LockType::{Read, Unlock, Write};

    fn want(who: u32, ty: LockType, start: u64, last: u64) -> Wanted {
        let length = length(start, last);
        let asked = LockRequest { ty, flags: 0, start, length, proc_id: who, client_id: b"here" };
        Wanted::new(1, ClientPrincipal::Owner, who.into(), &asked).unwrap()
    }

    fn set(ranges: &mut Ranges, who: u32, ty: LockType, start: u64, last: u64) -> bool {
        let want = want(who, ty, start, last);
        let free = ranges.conflict(&want).is_none();
        if free {
            ranges.replace(want, &FairLimit::new(LOCKS_MAX)).unwrap();
        }
        free
    }

    #[test]
    fn writers_exclude_all_and_readers_only_writers() {
        let mut ranges = Ranges::default();
        assert!(set(&mut ranges, 1, Read, 0, 9));
        assert!(set(&mut ranges, 2, Read, 5, 14));
        assert!(!set(&mut ranges, 3, Write, 9, 9));
        assert!(set(&mut ranges, 3, Write, 15, u64::MAX));
        assert!(!set(&mut ranges, 1, Read, 20, 20));
    }

    #[test]
    fn an_owner_is_never_in_its_own_way() {
        let mut ranges = Ranges::default();
        assert!(set(&mut ranges, 1, Write, 0, 99));
        assert!(set(&mut ranges, 1, Read, 10, 19));
        assert_eq!(ranges.strongest(0, 99), [(0, 9, Write), (10, 19, Read), (20, 99, Write)]);
    }

    #[test]
    fn what_one_reader_releases_another_still_holds() {
        let mut ranges = Ranges::default();
        set(&mut ranges, 1, Read, 0, u64::MAX);
        set(&mut ranges, 2, Read, 10, 19);
        set(&mut ranges, 1, Unlock, 5, u64::MAX);
        let pieces = [(0, 4, Read), (5, 9, Unlock), (10, 19, Read), (20, u64::MAX, Unlock)];
        assert_eq!(ranges.strongest(0, u64::MAX), pieces);
        set(&mut ranges, 3, Read, 30, u64::MAX);
        assert_eq!(ranges.strongest(25, u64::MAX), [(25, 29, Unlock), (30, u64::MAX, Read)]);
        assert_eq!(ranges.release(3), [(30, u64::MAX)]);
        assert_eq!(ranges.release(2), [(10, 19)]);
        assert_eq!(ranges.strongest(5, 30), [(5, 30, Unlock)]);
    }

    #[test]
    fn a_file_has_a_limited_number_of_locks() {
        let (mut ranges, all) = (Ranges::default(), FairLimit::new(LOCKS_MAX));
        let mut held = 0;
        while ranges.replace(want(1, Read, held * 2, held * 2), &all).is_ok() {
            held += 1;
        }
        assert_eq!((held, all.held()), (FILE_LOCKS_MAX as u64, FILE_LOCKS_MAX));
        // Changes that need no further range succeed: another kind of lock, or a release.
        ranges.replace(want(1, Write, 0, 0), &all).unwrap();
        ranges.replace(want(1, Unlock, 2, 9), &all).unwrap();
        assert_eq!(ranges.release(1).len() as u64, held - 4);
        assert_eq!(all.held(), 0);
    }

    #[test]
    fn read_locks_of_a_client_leave_the_owner_locks_on_the_same_file() {
        let (mut ranges, all) = (Ranges::default(), FairLimit::new(LOCKS_MAX));
        let of = |principal: &ClientPrincipal, start| Wanted {
            principal: principal.clone(),
            ..want(1, Read, start, start)
        };
        let guest = ClientPrincipal::Address("192.0.2.1".into());
        let mut held = 0;
        while ranges.replace(of(&guest, held * 2), &all).is_ok() {
            held += 1;
        }
        assert_eq!(held, 1536);
        ranges.replace(want(2, Write, 1, 1), &all).unwrap();
        ranges.replace(of(&ClientPrincipal::User(7), 9999), &all).unwrap();
    }

    #[test]
    fn a_refused_range_leaves_the_others_as_they_were() {
        let (mut ranges, all) = (Ranges::default(), FairLimit::new(1));
        ranges.replace(want(1, Write, 0, 99), &all).unwrap();
        assert!(ranges.replace(want(1, Unlock, 40, 49), &all).is_err());
        assert_eq!(ranges.strongest(0, 99), [(0, 99, Write)]);
        assert_eq!((ranges.len(), all.held()), (1, 1));
    }

    #[test]
    fn as_many_ranges_as_may_be_are_laid_over_each_other_in_time_that_grows_with_them() {
        let (mut ranges, all) = (Ranges::default(), FairLimit::new(LOCKS_MAX));
        for i in 0..FILE_LOCKS_MAX as u64 - 2 {
            ranges.replace(want(1 + (i % 7) as u32, Read, i * 3, i * 3 + 1), &all).unwrap();
        }
        let pieces = ranges.strongest(0, u64::MAX);
        assert_eq!(pieces.len(), 2 * (FILE_LOCKS_MAX - 2));
        assert!(pieces.windows(2).all(|pair| pair[0].1 + 1 == pair[1].0 && pair[0].2 != pair[1].2));
        ranges.replace(want(1, Read, 0, u64::MAX), &all).unwrap();
        assert_eq!(ranges.strongest(5, u64::MAX), [(5, u64::MAX, Read)]);
    }

    #[test]
    fn ranges_beyond_all_numbers_are_refused() {
        let asked =
            |start, length| LockRequest { ty: Read, flags: 0, start, length, proc_id: 1, client_id: b"" };
        let wanted = |start, length| Wanted::new(1, ClientPrincipal::Owner, 1, &asked(start, length));
        assert!(wanted(u64::MAX, 1).is_err());
        assert!(wanted(2, u64::MAX).is_err());
        assert!(wanted(i64::MAX as u64, 0).is_ok());
    }
}
