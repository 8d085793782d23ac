//! Scrubs: comparing members sector by sector, and writing the content of the majority to the others.

use bytes::Bytes;

use super::keep::{COPY_SECTORS, Rest};
use super::label::HEAD_SECTORS;
use super::state::{MirrorScrub, ScrubHeal};
use super::{Happening, MirrorShared, passes, stops};
use crate::call::Call;
use crate::device::SECTOR;
use crate::error::{Error, Kind, Result};

/// The fault of a sector of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SectorFault {
    Differs,
    Unread,
}

/// Consecutive sectors of a member with the same fault, and their right content, if it is known.
struct FaultRun {
    member: usize,
    at: u64,
    wrong: SectorFault,
    right: Option<Vec<u8>>,
    count: u64,
}

impl MirrorShared {
    /// Begins a scrub.
    pub(super) fn begin_scrub(&self, heal: ScrubHeal) -> Result<()> {
        self.nothing_runs()?;
        self.state().scrub = Some(MirrorScrub { heal, at: 0, differ: 0 });
        Ok(())
    }

    /// Compares a piece, if a scrub is running. Returns whether there was one.
    pub(super) async fn scrub(&self, rest: &Rest) -> bool {
        let (heal, at, count) = {
            let mut state = self.state();
            let sectors = state.now.sectors;
            let Some(scrub) = &mut state.scrub else { return false };
            if scrub.at >= sectors {
                let differ = scrub.differ;
                state.scrub = None;
                drop(state);
                self.tell_of_all(Happening::Compared(differ));
                return true;
            }
            (scrub.heal, scrub.at, COPY_SECTORS.min(sectors - scrub.at))
        };
        let held = self.ranges.lock(at, at + count).await;
        let readable = self.state().readable(at, at + count);
        let mut failed = Vec::new();
        let read = match self.read_all(&readable, at, count, &mut failed).await {
            Ok(read) => read,
            Err(error) if error.kind == Kind::Busy => return false,
            Err(error) => {
                self.state().scrub = None;
                self.tell_of_all(Happening::Stopped(error));
                return true;
            }
        };
        let (runs, differ) = compare(at, count, &read, heal == ScrubHeal::First);
        if !runs.is_empty() {
            let mut state = self.state();
            if state.readable(at, at + count) != readable {
                // A member was set aside, so its data may not count any more.
                return true;
            }
            state.written.copies(None, at, at + count);
        }
        for run in runs {
            if failed.iter().any(|(failed, _)| *failed == run.member) {
                continue;
            }
            // Unreadable sectors are written again in any case.
            let shall = heal != ScrubHeal::No || run.wrong == SectorFault::Unread;
            let mut written = false;
            if let Some(right) = run.right.filter(|_| shall) {
                match self.members[run.member].write(HEAD_SECTORS + run.at, right.into()).await {
                    Ok(_) => written = true,
                    Err(error) => failed.push((run.member, error)),
                }
            }
            let FaultRun { member, at, count, .. } = run;
            match (run.wrong, written) {
                (SectorFault::Differs, healed) => self.tell(member, Happening::Differs(at, count, healed)),
                (SectorFault::Unread, true) => {
                    self.state().members[member].counts.mended += 1;
                    self.tell(member, Happening::Mended(at, count));
                }
                (SectorFault::Unread, false) => {
                    let text = format!("sectors {at}+{count}: others do not agree on them");
                    self.tell(member, Happening::Unreadable(Error::new(Kind::Failed, text)));
                }
            }
        }
        drop(held);
        if let Err(error) = self.settle(failed).await
            && error.kind != Kind::Busy
        {
            self.state().scrub = None;
            self.tell_of_all(Happening::Stopped(error));
            return true;
        }
        // The scrub may have been stopped, and started again.
        if let Some(scrub) = self.state().scrub.as_mut().filter(|scrub| scrub.at == at) {
            scrub.at += count;
            scrub.differ += differ;
        }
        self.rest(rest, count).await;
        true
    }

    /// Reads from all readable members. A member that does not answer counts as failed; unreadable ranges are read
    /// sector by sector.
    async fn read_all(
        &self,
        readable: &[usize],
        at: u64,
        count: u64,
        failed: &mut Vec<(usize, Error)>,
    ) -> Result<Vec<(usize, Vec<Option<Bytes>>)>> {
        let calls: Vec<(usize, Call)> = readable
            .iter()
            .map(|member| (*member, self.members[*member].read(HEAD_SECTORS + at, count)))
            .collect();
        let mut read = Vec::new();
        for (member, call) in calls {
            let result = match call.await {
                Ok(data) => {
                    Ok(data.chunks_exact(SECTOR as usize).map(|bytes| Some(data.slice_ref(bytes))).collect())
                }
                Err(error) if error.kind == Kind::Failed => {
                    self.state().members[member].counts.errors += 1;
                    self.read_parts(Some(member), at, count).await
                }
                Err(error) => Err(error),
            };
            match result {
                Ok(sectors) => read.push((member, sectors)),
                Err(error) if stops(&error) || passes(&error) => return Err(error),
                Err(error) => failed.push((member, error)),
            }
        }
        Ok(read)
    }
}

/// Returns the faults, and the number of sectors that differ.
fn compare(at: u64, count: u64, read: &[(usize, Vec<Option<Bytes>>)], first: bool) -> (Vec<FaultRun>, u64) {
    let mut runs: Vec<FaultRun> = Vec::new();
    // The last run of each member.
    let mut last: Vec<Option<usize>> = vec![None; read.len()];
    let mut differ = 0;
    for sector in 0..count as usize {
        let values: Vec<Option<&Bytes>> = read.iter().map(|(_, sectors)| sectors[sector].as_ref()).collect();
        if values.iter().all(|value| value.is_some() && *value == values[0]) {
            continue;
        }
        differ += 1;
        let right = right(&values, first);
        // If the right content is unknown, report the members that differ from the first.
        let other = right.or_else(|| values.iter().flatten().next().copied());
        let at = at + sector as u64;
        for (((member, _), value), last) in read.iter().zip(&values).zip(&mut last) {
            let wrong = match value {
                None => SectorFault::Unread,
                value if *value == other => continue,
                _ => SectorFault::Differs,
            };
            let same = |run: &&mut FaultRun| {
                (run.at + run.count, run.wrong, run.right.is_some()) == (at, wrong, right.is_some())
            };
            if let Some(run) = last.and_then(|last| runs.get_mut(last)).filter(same) {
                run.count += 1;
                run.right.iter_mut().zip(right).for_each(|(to, more)| to.extend_from_slice(more));
                continue;
            }
            *last = Some(runs.len());
            runs.push(FaultRun {
                member: *member,
                at,
                wrong,
                right: right.map(|right| right.to_vec()),
                count: 1,
            });
        }
    }
    (runs, differ)
}

/// Returns the content that more than half of the readable members have; or else that of the first member, if `first`
/// is set.
fn right<'a>(values: &[Option<&'a Bytes>], first: bool) -> Option<&'a Bytes> {
    let known: Vec<&Bytes> = values.iter().flatten().copied().collect();
    let most =
        known.iter().find(|value| 2 * known.iter().filter(|other| other == value).count() > known.len());
    most.or(known.first().filter(|_| first)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_half_are_right() {
        let (a, b, c) = (Bytes::from("a"), Bytes::from("b"), Bytes::from("c"));
        let (x, y, z) = (Some(&a), Some(&b), Some(&c));
        assert_eq!(right(&[x, y, y], false), y);
        assert_eq!(right(&[x, y, y, x], false), None);
        assert_eq!(right(&[x, y, z], false), None);
        assert_eq!(right(&[None, y, z], true), y);
        assert_eq!(right(&[None, y, None], false), y, "nobody says otherwise");
        assert_eq!(right(&[None, None], true), None);
    }
}
