//! What is done beside operations: members return, regions are copied and compared, marks are cleared.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;

use super::label::{HEAD, Label, MARKS, Place};
use super::open::read_marks;
use super::state::Scrub;
use super::{Happening, Inner, Mirror};
use crate::bits::Bits;
use crate::call::Call;
use crate::error::{Error, Kind, Result};

/// Sectors that are copied, or compared, at once: they are held against writes as long as it takes.
const PIECE: u64 = 1024;
/// Regions that are copied before marks are cleared, which is how far a resync is set back by a stop.
const COPIES: u32 = 64;

/// When the work of a mirror pauses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// So many sectors were copied or compared. How long it pauses is how fast it is.
    Moved(u64),
    /// There is nothing to do. Marks that were not needed from one such pause to the next are cleared.
    Idle,
}

/// Pauses: for the program to choose.
pub type Rest = Arc<dyn Fn(Pause) -> Pin<Box<dyn Future<Output = ()> + Send>> + Send + Sync>;

impl Mirror {
    /// Copies what has to be copied, compares what shall be compared, clears marks; without an end, with pauses. One at
    /// a time does it; dropped, it is gone on with by the next.
    pub async fn keep(self, rest: Rest) {
        let inner = &self.0;
        let _held = inner.driver.lock(0, 1).await;
        inner.state().members.iter_mut().for_each(|member| member.stop_copying());
        // Where to go on; and how many copies there were since marks were cleared.
        let (mut from, mut copies) = ((0, 0), 0);
        loop {
            let next = inner.state().next_copy(from);
            if let Some((member, region)) = next {
                from = (member, region + 1);
                inner.copy(member, region, &rest).await;
                copies += 1;
                if copies < COPIES {
                    continue;
                }
            } else if inner.finish_returns().await || inner.scrub(&rest).await {
                continue;
            } else {
                from = (0, 0);
            }
            copies = 0;
            inner.clear().await;
            if next.is_none() {
                rest(Pause::Idle).await;
            }
        }
    }

    /// A member that is out comes back, and gets what it missed while [`Mirror::keep`] runs. Writes wait until its
    /// label is written. `new`: whatever is on it, it gets everything.
    pub async fn bring_back(&self, member: usize, new: bool) -> Result<()> {
        let inner = &self.0;
        let _ranges = inner.ranges.lock(0, u64::MAX).await;
        let _marks = inner.marks.lock(0, 1).await;
        let result = inner.bring_back(member, new).await;
        if let Err(error) = &result {
            inner.tell(member, Happening::Refused(error.clone()));
        }
        result
    }

    /// Sets a member aside that has not failed.
    ///
    /// # Errors
    /// If no other is in.
    pub async fn set_aside(&self, member: usize) -> Result<()> {
        self.0.settle(vec![(member, Error::new(Kind::Down, "as it was told to"))]).await
    }

    /// Everything is copied to a member again; or to all but the first that is in. It is out for a moment.
    pub async fn resync_full(&self, member: Option<usize>) -> Result<()> {
        let mut of = {
            let state = self.0.state();
            let first = state.inside()[0];
            state.active().into_iter().filter(|one| *one != first).collect()
        };
        if let Some(member) = member {
            of = vec![member];
        }
        for member in of {
            self.set_aside(member).await?;
            self.bring_back(member, true).await?;
        }
        Ok(())
    }

    /// One pass of clearing marks. [`Mirror::keep`] does it at each idle pause.
    pub async fn clear(&self) {
        self.0.clear().await;
    }
}

impl Inner {
    async fn bring_back(&self, number: usize, new: bool) -> Result<()> {
        let device = &self.members[number];
        let refused = |text: String| Err(Error::new(Kind::Failed, text));
        if self.state().place(number) != Place::Out {
            return refused("it is not out".into());
        }
        device.look().await?;
        let (needs, has) = (HEAD + self.state().now.sectors, device.shape().sectors);
        if has < needs || device.shape().read_only {
            return refused(format!("it has {has} sectors, and {needs} are needed, to be written"));
        }
        let label = Label::newest(&device.read(0, 2).await?);
        let label = label.filter(|label| label.set == self.set && label.member == number);
        let (base, since, regions) = {
            let state = self.state();
            let (member, now) = (&state.members[number], &state.now);
            (now.base, now.places[number].1, member.todo.len())
        };
        let mut missed = Bits::new(regions);
        let alone =
            label.as_ref().is_some_and(|label| label.own().0 == Place::In && label.now.event >= since);
        match label.map(|label| label.now.event) {
            _ if new => missed.fill(),
            None => return refused("no label of this mirror is on it; `new` makes it a member".into()),
            Some(_) if alone => {
                return refused("it has gone on alone; `new` gives it everything that is here".into());
            }
            // What it lacked then, and what is marked since.
            Some(event) if event >= base => {
                missed = read_marks(&**device, regions).await?.0;
                let state = self.state();
                missed.add(&state.members[state.inside()[0]].want);
            }
            Some(_) => missed.fill(),
        }
        let bytes: Vec<Bytes> = (0..missed.sectors()).map(|sector| missed.sector(sector)).collect();
        device.write(MARKS, bytes.concat().into()).await?;
        device.flush().await?;
        {
            let member = &mut self.state().members[number];
            (member.want, member.disk, member.todo) = (missed.clone(), missed.clone(), missed);
        }
        let _labels = self.labels.lock(0, 1).await;
        self.relabel(Vec::new(), |next| next.places[number].0 = Place::Returning).await
    }

    /// Copies a region to a member. What goes wrong is told, and it stays to be copied.
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
            let count = PIECE.min(end - at);
            let held = self.ranges.lock(at, at + count).await;
            // It may be out by now, or the one that decides.
            if self.state().members[number].copying != Some(region) {
                return;
            }
            let result = match self.read_right(at, count).await {
                Ok(data) => self.members[number].write(HEAD + at, data).await.map_err(|error| (true, error)),
                Err(error) => Err((false, error)),
            };
            if let Err((its_own, error)) = result {
                drop(held);
                self.state().members[number].stop_copying();
                if its_own {
                    // If it is reserved, it is told, and tried again.
                    if let Err(error) = self.settle(vec![(number, error)]).await {
                        self.tell(number, Happening::Unreadable(error));
                    }
                } else {
                    self.tell(number, Happening::Unreadable(error));
                }
                return;
            }
            drop(held);
            at += count;
            rest(Pause::Moved(count)).await;
        }
        let member = &mut self.state().members[number];
        if member.copying == Some(region) {
            member.copying = None;
        }
    }

    /// Members that have got all they missed are in. Whether there was one.
    async fn finish_returns(&self) -> bool {
        let mut done = false;
        for number in 0..self.members.len() {
            let ready = || {
                let state = self.state();
                let member = &state.members[number];
                state.place(number) == Place::Returning && member.todo.is_empty() && member.copying.is_none()
            };
            if !ready() {
                continue;
            }
            // From here on its marks have to say what others that are out lack.
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
            let failed: Vec<_> = self.each(&[number], |member| member.flush()).await;
            let good = failed.is_empty();
            if self.settle(failed).await.is_err() || !good || !ready() {
                continue;
            }
            let _labels = self.labels.lock(0, 1).await;
            if ready() {
                done |= self.relabel(Vec::new(), |next| next.places[number].0 = Place::In).await.is_ok();
            }
        }
        done
    }

    /// Clears the marks of regions that were not written since the last pass.
    async fn clear(&self) {
        let _marks = self.marks.lock(0, 1).await;
        let active = self.state().active();
        let cold: Vec<_> = {
            let mut state = self.state();
            let cold = active.iter().map(|member| (*member, state.cold(*member))).collect();
            state.touched.clear();
            cold
        };
        if cold.iter().all(|(_, bits)| bits.is_empty()) {
            return;
        }
        let failed = self.each(&active, |member| member.flush()).await;
        if !failed.is_empty() {
            drop(self.settle(failed).await);
            return;
        }
        let mut calls: Vec<(usize, Call)> = Vec::new();
        {
            let mut state = self.state();
            for (number, bits) in &cold {
                // Those that were written meanwhile are not flushed.
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
        drop(self.settle(failed).await);
    }

    /// Compares a piece, if it shall. Whether there was one.
    async fn scrub(&self, rest: &Rest) -> bool {
        let (heal, at, count) = {
            let mut state = self.state();
            let sectors = state.now.sectors;
            let Some(scrub) = &mut state.scrub else { return false };
            if scrub.at >= sectors {
                state.scrub = None;
                return false;
            }
            let (heal, at) = (scrub.heal, scrub.at);
            let count = PIECE.min(sectors - at);
            scrub.at += count;
            (heal, at, count)
        };
        let held = self.ranges.lock(at, at + count).await;
        let readable = self.state().readable(at, at + count);
        let calls: Vec<Call> =
            readable.iter().map(|member| self.members[*member].read(HEAD + at, count)).collect();
        let mut read: Vec<(usize, Option<Bytes>)> = Vec::new();
        for (member, call) in readable.iter().zip(calls) {
            read.push((*member, call.await.ok()));
        }
        // What most have; of several, what the first has.
        let votes = |data: &Bytes| read.iter().filter(|(_, other)| other.as_ref() == Some(data)).count();
        let right =
            read.iter().filter_map(|(_, data)| data.as_ref()).rev().max_by_key(|data| votes(data)).cloned();
        let mut failed = Vec::new();
        if let Some(right) = right {
            for (member, data) in read.into_iter().filter(|(_, data)| data.as_ref() != Some(&right)) {
                let mut healed = false;
                // What cannot be read is written again in any case.
                if heal || data.is_none() {
                    match self.members[member].write(HEAD + at, right.clone()).await {
                        Ok(_) => healed = true,
                        Err(error) => failed.push((member, error)),
                    }
                }
                if let Some(Scrub { differ, .. }) = &mut self.state().scrub {
                    *differ += 1;
                }
                self.tell(member, Happening::Differs(at, count, healed));
            }
        }
        drop(held);
        drop(self.settle(failed).await);
        rest(Pause::Moved(count)).await;
        true
    }
}
