//! Background work of a mirror: returning members, copying regions, clearing marks.

use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::label::{HEAD_SECTORS, MARKS, MemberLabel, Place, beyond};
use super::open::{read_label, read_marks};
use super::state::FullResync;
use super::{Happening, Mirror, MirrorShared, passes};
use crate::bits::Bits;
use crate::call::Call;
use crate::device::SECTOR;
use crate::error::{Error, Kind, Result};
use crate::owner::SectorOwner;

/// Sectors that are copied or compared at once, and locked against writes meanwhile.
pub(super) const COPY_SECTORS: u64 = 1024;
/// Regions copied, or pieces compared, before marks are cleared. So a stop sets a resync back by at most this.
const PIECES_PER_CLEAR: u32 = 64;
/// Regions that one member gets before others get any, when it gets everything.
const MEMBER_BATCH_REGIONS: u64 = 64;

/// When the background work of a mirror pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// This number of sectors was copied or compared. The length of the pause determines the speed.
    Moved(u64),
    /// The same, with a limit that a command has set, in megabytes a second; 0: no limit.
    Paced(u64, u64),
    /// There is nothing to do. Marks that were not needed between two such pauses are cleared.
    Idle,
    /// All members are open except those that were set aside before. The pause is the additional time to wait for
    /// these.
    Late,
}

/// The function that pauses, chosen by the program.
pub type Rest = Arc<dyn Fn(Pause) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl Mirror {
    /// Does the background work: copies, compares and clears marks, without an end, with pauses. Only one such future
    /// works at a time; if it is dropped, the next one continues.
    pub async fn keep(self, rest: Rest) {
        let inner = &self.0;
        let _held = inner.driver.lock(0, 1).await;
        inner.state().members.iter_mut().for_each(|member| member.stop_copying());
        // Where to continue; and the number of pieces of work since marks were cleared.
        let (mut from, mut pieces) = ((0, 0), 0);
        loop {
            let next = {
                let state = inner.state();
                if state.waits_for_owner { None } else { state.next_copy(from) }
            };
            let mut idle = false;
            match next {
                Some((member, region)) => {
                    from = (member, region + 1);
                    inner.copy(member, region, &rest).await;
                }
                // A failed copy is retried after the next piece of other work.
                None => {
                    inner.tell_unjudged();
                    from = (0, 0);
                    idle = !(inner.finish_returns().await || inner.resync() || inner.scrub(&rest).await);
                }
            }
            pieces += 1;
            if idle || pieces >= PIECES_PER_CLEAR {
                pieces = 0;
                inner.clear().await;
            }
            if idle {
                rest(Pause::Idle).await;
            }
        }
    }

    /// Brings back a member that is out. It gets the writes that it has missed while [`Mirror::keep`] runs. Writes wait
    /// while its marks and labels are written. With `new` it gets everything, whatever is on it.
    pub async fn bring_back(&self, member: usize, new: bool) -> Result<()> {
        let gets = if new { ResyncData::New } else { ResyncData::Missed };
        self.0.bring_back(member, gets).await
    }

    /// Sets aside a member that has not failed.
    ///
    /// # Errors
    /// No other member is in.
    pub async fn set_aside(&self, member: usize) -> Result<()> {
        let result = self.0.settle(vec![(member, Error::new(Kind::Down, "as it was told to"))]).await;
        if let Err(error) = &result {
            self.0.tell(member, Happening::Stays(error.clone()));
        }
        result
    }

    /// Prevents copies between members until the first call of [`Device::owned_by`](crate::Device::owned_by).
    pub fn wait_for_owner(&self) {
        let mut state = self.0.state();
        state.waits_for_owner = state.owners.is_empty();
    }

    /// Starts to copy everything to a member; or to all but the first that is in, one after the other. They stay in.
    /// The first member that is in, if it is named, is set aside and returns.
    ///
    /// # Errors
    /// The member is out and cannot return, or is the only one; or such work is running.
    pub async fn resync_full(&self, member: Option<usize>) -> Result<()> {
        let inner = &self.0;
        inner.nothing_runs()?;
        let first = inner.state().inside()[0];
        if let Some(member) = member {
            if member == first {
                self.set_aside(member).await?;
            }
            if inner.state().place(member) == Place::Out {
                return inner.bring_back(member, ResyncData::Everything).await;
            }
        }
        let mut state = inner.state();
        let mut members = state.active();
        members.retain(|one| *one != first && member.is_none_or(|member| *one == member));
        state.resync = Some(FullResync { members, next: 0 });
        Ok(())
    }

    /// Closes the mirror after the last write. Clears the marks of regions that are equal on all members, so that the
    /// next start copies nothing. If a member fails here, its marks stay, and the next start copies these regions.
    pub async fn close(&self) {
        // The first pass forgets which regions were written, the second clears their marks.
        self.0.clear().await;
        self.0.clear().await;
        // The power may be cut right after this. A mark that is not cleared only causes a copy at the next start.
        let active = self.0.state().active();
        drop(self.0.flush_of(&active).await);
    }

    /// Runs one pass of clearing marks. [`Mirror::keep`] does it at each idle pause.
    pub async fn clear(&self) {
        self.0.clear().await;
    }
}

/// The data that a returning member gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ResyncData {
    /// The writes that it has missed.
    Missed,
    /// Everything.
    Everything,
    /// Everything, and it need not have been a member before.
    New,
}

impl MirrorShared {
    async fn bring_back(&self, number: usize, gets: ResyncData) -> Result<()> {
        let _one = self.returns.lock(number as u64, number as u64 + 1).await;
        let result = self.bring_back_one(number, gets).await;
        if let Err(error) = &result {
            self.tell(number, Happening::Refused(error.clone()));
        }
        result
    }

    async fn bring_back_one(&self, number: usize, gets: ResyncData) -> Result<()> {
        let device = &self.members[number];
        let refused = |text: String| Err(Error::new(Kind::Failed, text));
        if self.state().place(number) != Place::Out {
            return refused("it is not out".into());
        }
        // Look before any lock is taken, because the device may be slow.
        device.look().await?;
        let large = || {
            let (needs, has) = (HEAD_SECTORS + self.state().now.sectors, device.shape().sectors);
            if has < needs || device.shape().read_only {
                return refused(format!("it has {has} sectors, and {needs} are needed, to be written"));
            }
            Ok(())
        };
        large()?;
        let found = match read_label(&**device).await {
            Err(error) if gets == ResyncData::New && error.kind == Kind::Failed => None,
            found => {
                let (label, newer) = found?;
                label.filter(|label| label.set == self.set && label.member == number).zip(Some(newer))
            }
        };
        let regions = self.state().touched.len();
        let mut missed = Bits::new(regions);
        if gets == ResyncData::New {
            // The old content must never be taken for a label.
            device.write(0, vec![0; (MARKS * SECTOR) as usize].into()).await?;
            device.flush().await?;
        } else {
            let since = self.state().now.places[number].1;
            let alone = |(label, newer): &(MemberLabel, bool)| {
                label.own().0 == Place::In && label.now.event + u64::from(*newer) >= since
            };
            if found.is_none() {
                return refused("no label of this mirror is on it; `new` makes it a member".into());
            }
            if found.as_ref().is_some_and(alone) {
                return refused("it has gone on alone; `new` gives it everything that is here".into());
            }
            missed = read_marks(&**device, regions).await?.0;
        }
        let (event, newer) = found.map_or((0, false), |(label, newer)| (label.now.event, newer));
        let _ranges = self.ranges.lock(0, u64::MAX).await;
        let _marks = self.marks.lock(0, 1).await;
        large()?;
        {
            // The regions that it lacked then, and those marked since; or all, if marks were cleared since.
            let state = self.state();
            missed.resize(state.touched.len());
            match gets {
                ResyncData::Missed if event >= state.now.base => {
                    missed.add(&state.members[state.inside()[0]].want);
                }
                _ => missed.fill(),
            }
        }
        let bytes: Vec<Bytes> = (0..missed.sectors()).map(|sector| missed.sector(sector)).collect();
        device.write(MARKS, bytes.concat().into()).await?;
        device.flush().await?;
        {
            let member = &mut self.state().members[number];
            (member.want, member.disk, member.todo) = (missed.clone(), missed.clone(), missed);
            member.again.clear();
            member.lacking = false;
            member.new = gets == ResyncData::New;
        }
        let _labels = self.labels.lock(0, 1).await;
        {
            let mut state = self.state();
            state.now.event = beyond(state.now.event, event + u64::from(newer));
        }
        self.relabel(Vec::new(), |next| next.places[number].0 = Place::Returning).await?;
        match self.state().place(number) {
            Place::Out => refused("its label could not be written".into()),
            _ => Ok(()),
        }
    }

    /// Checks that no scrub or resync is running.
    pub(super) fn nothing_runs(&self) -> Result<()> {
        let state = self.state();
        let what = match (&state.scrub, &state.resync) {
            (Some(_), _) => "a scrub",
            (_, Some(_)) => "a full resync",
            _ => return Ok(()),
        };
        Err(Error::new(Kind::Unsupported, format!("{what} runs; `stop` stops it")).of(self.name()))
    }

    /// Schedules the next regions of a full resync. Returns whether there was anything to do.
    fn resync(&self) -> bool {
        let mut state = self.state();
        let (regions, first) = (state.touched.len(), state.inside()[0]);
        let Some(FullResync { members, next }) = &state.resync else { return false };
        let (next, Some(&number)) = (*next, members.first()) else {
            state.resync = None;
            return true;
        };
        let gone = state.place(number) == Place::Out || number == first;
        if !gone && state.members[number].left() > 0 {
            return false;
        }
        let end = (next + MEMBER_BATCH_REGIONS).min(regions);
        if !gone && next < end {
            let is_in = state.place(number) == Place::In;
            let member = &mut state.members[number];
            for region in next..end {
                member.todo.set(region);
                if is_in {
                    member.again.set(region);
                }
            }
        }
        let over = gone || next >= regions;
        if let Some(resync) = &mut state.resync {
            resync.next = if over { 0 } else { end };
            if over {
                resync.members.remove(0);
            }
        }
        drop(state);
        if gone {
            let why = Error::new(Kind::Failed, "the full resync ends: it is out, or decides what is right");
            self.tell(number, Happening::Stopped(why));
        } else if over {
            self.tell(number, Happening::Copied);
        }
        true
    }

    /// Pauses after `count` sectors.
    pub(super) async fn rest(&self, rest: &Rest, count: u64) {
        let speed = self.state().speed;
        rest(speed.map_or(Pause::Moved(count), |speed| Pause::Paced(count, speed))).await;
    }

    /// Copies a region to a member. An error is reported, and the region remains to be copied.
    async fn copy(&self, number: usize, region: u64, rest: &Rest) {
        let (mut at, end) = {
            let mut state = self.state();
            if state.place(number) == Place::Out || !state.members[number].todo.has(region) {
                return;
            }
            let member = &mut state.members[number];
            member.todo.unset(region);
            member.copying = Some(region);
            (region * state.region, ((region + 1) * state.region).min(state.now.sectors))
        };
        while at < end {
            let count = COPY_SECTORS.min(end - at);
            let whole = self.whole_blocks(at, count);
            let held = self.ranges.lock(whole.start, whole.end).await;
            // The member may be out by now, or have become the first.
            if self.state().members[number].copying != Some(region) {
                return;
            }
            let result = self.copy_piece(number, region, at, count).await;
            drop(held);
            if let Err((its_own, error)) = result {
                self.state().members[number].stop_copying();
                let passes = passes(&error);
                match its_own {
                    true => self.not_written(number, error).await,
                    false => self.tell(number, Happening::Unreadable(error)),
                }
                if passes {
                    // The next region would fail in the same way.
                    rest(Pause::Idle).await;
                }
                return;
            }
            at += count;
            self.rest(rest, count).await;
        }
        let member = &mut self.state().members[number];
        if member.copying == Some(region) {
            member.copying = None;
            if !member.todo.has(region) {
                member.again.unset(region);
            }
        }
    }

    /// Copies locked sectors that differ. Unreadable sectors are recorded and skipped. An error says whether it is the
    /// member's own.
    async fn copy_piece(
        &self,
        number: usize,
        region: u64,
        at: u64,
        count: u64,
    ) -> std::result::Result<(), (bool, Error)> {
        let mut source = self.read_right(at, count).await;
        let is_new = self.state().members[number].new;
        let has = if is_new { Ok(None) } else { self.read_of(number, at, count).await };
        let has = has.map_err(|error| (true, error))?;
        if source.as_ref().ok() != has.as_ref()
            && self.judge(number, at, count, source.as_ref().ok(), has.as_ref()).await?
        {
            source = self.read_right(at, count).await;
        }
        let error = match source {
            Ok(data) => {
                return self.put_unlike(number, at, &data, has.as_ref()).await.map_err(|error| (true, error));
            }
            Err(error) if error.kind == Kind::Failed => error,
            Err(error) => return Err((false, error)),
        };
        let sectors = self.read_parts(None, at, count).await.map_err(|error| (false, error))?;
        let (mut lacks, mut fits) = (false, true);
        for (at, sector) in (at..).zip(sectors) {
            match sector {
                Some(data) => self.put(number, at, data).await.map_err(|error| (true, error))?,
                None => {
                    let mut state = self.state();
                    lacks |= !state.members[number].lacks.contains(&at);
                    fits &= state.members[number].lack(at);
                }
            }
        }
        if !fits {
            return Err((false, error));
        }
        if lacks {
            self.tell(number, Happening::Unreadable(error));
            // For the next start.
            self.state().want(region..region + 1);
            self.mark(region..region + 1).await.map_err(|error| (false, error))?;
        }
        Ok(())
    }

    /// Reads from one member. `None`: the sectors cannot be read.
    async fn read_of(&self, number: usize, at: u64, count: u64) -> Result<Option<Bytes>> {
        match self.members[number].read(HEAD_SECTORS + at, count).await {
            Ok(data) => Ok(Some(data)),
            Err(error) if error.kind == Kind::Failed => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Extends a range of sectors to whole blocks of their owners.
    fn whole_blocks(&self, at: u64, count: u64) -> Range<u64> {
        let (owners, sectors) = {
            let state = self.state();
            (state.owners.clone(), state.now.sectors)
        };
        let block = |sector| owners.iter().find_map(|owner| owner.block(sector));
        let start = block(at).map_or(at, |block| block.start.min(at));
        let end = block(at + count - 1).map_or(at + count, |block| block.end.max(at + count));
        start..end.min(sectors)
    }

    /// Asks the owners about blocks that differ or cannot be read. If the first copy of a block is wrong and another is
    /// right, the right one is written to all members. Returns whether there was such a block.
    async fn judge(
        &self,
        number: usize,
        at: u64,
        count: u64,
        source: Option<&Bytes>,
        has: Option<&Bytes>,
    ) -> std::result::Result<bool, (bool, Error)> {
        let owners = self.state().owners.clone();
        let (mut healed, mut unjudged, mut next) = (false, 0, at);
        while next < at + count {
            let (owner, block) = match owners.iter().find_map(|owner| Some((owner, owner.block(next)?))) {
                Some((owner, block)) => (Some(owner), block),
                None => (None, next..next + 1),
            };
            let (from, to) = (block.start.max(at), block.end.min(at + count));
            let part =
                |data: &Bytes| data.slice(((from - at) * SECTOR) as usize..((to - at) * SECTOR) as usize);
            let (is, was) = (source.map(part), has.map(part));
            next = to;
            if is.is_some() && is == was {
                continue;
            }
            let right = match owner {
                Some(owner) => self.right_block(number, &**owner, &block).await?,
                None => None,
            };
            let Some((right, wrong)) = right else {
                unjudged += if is.is_some() && was.is_some() { to - from } else { 0 };
                continue;
            };
            for member in wrong {
                healed = true;
                self.state().written.copies(None, block.start, block.end);
                match self.members[member].write(HEAD_SECTORS + block.start, right.clone()).await {
                    Ok(_) => {
                        self.state().members[member].counts.mended += 1;
                        self.tell(member, Happening::Mended(block.start, block.end - block.start));
                    }
                    Err(error) if member == number => return Err((true, error)),
                    Err(error) => self.not_written(member, error).await,
                }
            }
        }
        let mut state = self.state();
        if state.place(number) == Place::In {
            // A returning member is expected to differ.
            let member = &mut state.members[number];
            member.counts.unjudged += unjudged;
            member.unjudged += unjudged;
        }
        Ok(healed)
    }

    /// Reads every copy of a block. Returns the data that the owner verifies, and the members with other data; no
    /// members if the first copy is right, because that one is copied anyway. `None`: no copy is right.
    ///
    /// A returning member may have an old version, which counts only if the owner knows it to be the latest.
    async fn right_block(
        &self,
        number: usize,
        owner: &dyn SectorOwner,
        block: &Range<u64>,
    ) -> std::result::Result<Option<(Bytes, Vec<usize>)>, (bool, Error)> {
        let (mut members, may_be_old) = {
            let state = self.state();
            (state.readable(block.start, block.end), state.place(number) == Place::Returning)
        };
        if !members.contains(&number) {
            members.push(number);
        }
        let (mut right, mut wrong) = (None::<Bytes>, Vec::new());
        for (n, member) in members.into_iter().enumerate() {
            let read = self.read_of(member, block.start, block.end - block.start).await;
            let holds = |data: &Bytes| match member == number && may_be_old {
                true => owner.holds_latest(block.clone(), data),
                false => owner.holds(block.clone(), data),
            };
            match read.map_err(|error| (member == number, error))?.filter(holds) {
                Some(data) if n == 0 => return Ok(Some((data, Vec::new()))),
                Some(data) => right = right.or(Some(data)),
                None => wrong.push(member),
            }
        }
        Ok(right.map(|right| (right, wrong)))
    }

    /// Writes the sectors of `data` that differ from `has`, the member's present data; all sectors if it is `None`.
    async fn put_unlike(&self, number: usize, at: u64, data: &Bytes, has: Option<&Bytes>) -> Result<()> {
        let Some(has) = has else { return self.put(number, at, data.clone()).await };
        let sector = |n: u64| (n * SECTOR) as usize..((n + 1) * SECTOR) as usize;
        let count = data.len() as u64 / SECTOR;
        let differs = |n: &u64| data[sector(*n)] != has[sector(*n)];
        let mut from = 0;
        while let Some(start) = (from..count).find(differs) {
            let end = (start..count).find(|n| !differs(n)).unwrap_or(count);
            self.put(number, at + start, data.slice((start * SECTOR) as usize..(end * SECTOR) as usize))
                .await?;
            from = end;
        }
        self.state().members[number].has(at, at + count);
        Ok(())
    }

    async fn put(&self, number: usize, at: u64, data: Bytes) -> Result<()> {
        let count = data.len() as u64 / SECTOR;
        self.members[number].write(HEAD_SECTORS + at, data).await?;
        let member = &mut self.state().members[number];
        member.counts.copied += count;
        member.has(at, at + count);
        Ok(())
    }

    /// Puts members in that have got all they had missed. Returns whether there was one.
    async fn finish_returns(&self) -> bool {
        let mut done = false;
        for number in 0..self.members.len() {
            let ready = || {
                let state = self.state();
                let member = &state.members[number];
                state.place(number) == Place::Returning && member.left() == 0 && member.lacks.is_empty()
            };
            if !ready() {
                self.lacking(number);
                continue;
            }
            // From here on its marks must cover the regions that members which are out lack.
            let _ranges = self.ranges.lock(0, u64::MAX).await;
            let _marks = self.marks.lock(0, 1).await;
            {
                let mut state = self.state();
                let marks = state.members[state.inside()[0]].want.clone();
                state.members[number].want.add(&marks);
            }
            if self.write_marks().await.is_err() {
                return false;
            }
            let failed = self.flush_of(&[number]).await;
            let good = failed.is_empty();
            if self.settle_marked(failed).await.is_err() || !good || !ready() {
                continue;
            }
            let _labels = self.labels.lock(0, 1).await;
            if ready() {
                done |= self.relabel(Vec::new(), |next| next.places[number].0 = Place::In).await.is_ok();
            }
        }
        done
    }

    /// Reports the unjudged sectors of members that have got everything.
    fn tell_unjudged(&self) {
        for number in 0..self.members.len() {
            let count = {
                let member = &mut self.state().members[number];
                if member.left() == 0 { std::mem::take(&mut member.unjudged) } else { 0 }
            };
            if count > 0 {
                self.tell(number, Happening::Unjudged(count));
            }
        }
    }

    /// Reports, once, that a member is not in only because of sectors that no member can read.
    fn lacking(&self, number: usize) {
        let mut state = self.state();
        let returning = state.place(number) == Place::Returning;
        let member = &mut state.members[number];
        let lacks = member.lacks.len() as u64;
        if returning && member.left() == 0 && lacks > 0 && !std::mem::replace(&mut member.lacking, true) {
            drop(state);
            self.tell(number, Happening::Lacking(lacks));
        }
    }

    /// Clears the marks of regions that were not written since the last pass.
    async fn clear(&self) {
        let _marks = self.marks.lock(0, 1).await;
        let active = self.state().active();
        let (cold, number): (Vec<_>, _) = {
            let mut state = self.state();
            let cold = active.iter().map(|member| (*member, state.cold(*member))).collect();
            state.touched.clear();
            (cold, state.written.flush_begins())
        };
        if cold.iter().all(|(_, bits)| bits.is_empty()) {
            return;
        }
        let failed = self.flush_of(&active).await;
        if !failed.is_empty() || self.state().unflushed() {
            // The marks are still needed.
            drop(self.settle_marked(failed).await);
            return;
        }
        // Cleared marks leave no trace, so this is a new event: an old image of a member, with older marks, is then
        // recognized by its label.
        if self.state().now.all_in() {
            let _labels = self.labels.lock(0, 1).await;
            if self.relabel(Vec::new(), |_| ()).await.is_err() {
                return;
            }
        }
        let mut calls: Vec<(usize, Call)> = Vec::new();
        {
            let mut state = self.state();
            if state.unflushed() {
                return;
            }
            state.written.flushed(number);
            for (number, bits) in &cold {
                // Regions that were written meanwhile are not flushed.
                let still = state.cold(*number);
                if state.place(*number) == Place::Out {
                    continue;
                }
                let member = &mut state.members[*number];
                bits.ones().filter(|region| still.has(*region)).for_each(|region| member.want.unset(region));
                for sector in member.disk.unlike(&member.want) {
                    if !member.want.more_than(&member.disk).contains(&sector) {
                        member.disk.copy(&member.want, sector);
                        let bytes = member.want.sector(sector);
                        calls.push((*number, self.members[*number].write(MARKS + sector, bytes)));
                    }
                }
            }
        }
        let mut failed = Vec::new();
        for (member, call) in calls {
            if let Err(error) = call.await {
                failed.push((member, error));
            }
        }
        self.failed(&failed);
        drop(self.settle_marked(failed).await);
    }
}
