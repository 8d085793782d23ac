//! Makes marks and labels durable before other operations may continue.

use super::label::{HEAD_SECTORS, LabelEvent, MARKS, MemberLabel, Place};
use super::state::MirrorState;
use super::{Happening, MirrorShared, passes};
use crate::call::Call;
use crate::device::{Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

impl MirrorShared {
    /// Ensures that labels have the present state, after an event has failed that may be on some members.
    pub(super) async fn sure(&self) -> Result<()> {
        if !self.state().unsure {
            return Ok(());
        }
        let _marks = self.marks.lock(0, 1).await;
        let _labels = self.labels.lock(0, 1).await;
        let unsure = self.state().unsure;
        if unsure { self.relabel(Vec::new(), |_| ()).await } else { Ok(()) }
    }

    /// Makes the marks of these regions durable, together with all that were requested.
    pub(super) async fn mark(&self, regions: std::ops::Range<u64>) -> Result<()> {
        while !self.state().marked(regions.clone()) {
            let held = self.marks.lock(0, 1).await;
            let result = self.write_marks().await;
            drop(held);
            result?;
        }
        Ok(())
    }

    /// Writes the requested marks that are not on disk. The caller must hold `marks`.
    pub(super) async fn write_marks(&self) -> Result<()> {
        let active = self.state().active();
        let failed = self.put_marks(&active).await;
        self.settle_marked(failed).await
    }

    /// The same, on these members. Returns those that have failed.
    async fn put_marks(&self, of: &[usize]) -> Vec<(usize, Error)> {
        let mut calls = Vec::new();
        {
            let state = self.state();
            for &number in of {
                let (member, device) = (&state.members[number], &self.members[number]);
                for sector in member.want.more_than(&member.disk) {
                    // Nothing is cleared here, because other members rely on the marks.
                    let mut bits = member.want.clone();
                    bits.add(&member.disk);
                    let call = device.write(MARKS + sector, bits.sector(sector));
                    calls.push((number, sector, bits, call));
                }
            }
        }
        let (mut failed, mut done): (Vec<(usize, Error)>, Vec<_>) = Default::default();
        for (member, sector, bits, call) in calls {
            match call.await {
                Ok(_) => done.push((member, sector, bits)),
                Err(error) => failed.push((member, error)),
            }
        }
        self.failed(&failed);
        let mut written: Vec<usize> = done.iter().map(|(member, ..)| *member).collect();
        written.dedup();
        failed.extend(self.flush_of(&written).await);
        let mut state = self.state();
        for (member, sector, bits) in done.iter().filter(|done| failed.iter().all(|bad| bad.0 != done.0)) {
            state.members[*member].disk.copy(bits, *sector);
        }
        failed
    }

    /// Counts failed writes.
    pub(super) fn failed(&self, failed: &[(usize, Error)]) {
        let mut state = self.state();
        failed.iter().for_each(|(member, _)| state.members[*member].counts.writes_failed += 1);
    }

    /// Flushes members. Returns those that have failed; their failure is recorded until they are out, or the loss is
    /// known.
    pub(super) async fn flush_of(&self, of: &[usize]) -> Vec<(usize, Error)> {
        let flush = |number: usize| {
            let (done, call) = Call::pair();
            let state = self.state.clone();
            // Record the failure before any later flush can end, because that one does not cover earlier losses.
            let ends = move |result| {
                if let Err(error) = &result {
                    lock(&state).flush_failed(number, error);
                }
                done(result);
            };
            self.members[number].submit(Io::other(Op::Flush, 0, 0, ends));
            (number, call)
        };
        let calls: Vec<(usize, Call)> = of.iter().copied().map(flush).collect();
        let mut failed = Vec::new();
        for (member, call) in calls {
            if let Err(error) = call.await {
                failed.push((member, error));
            }
        }
        failed
    }

    /// Handles failures of active members: sets them aside, if one remains.
    pub(super) async fn settle(&self, failed: Vec<(usize, Error)>) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        let _held = self.marks.lock(0, 1).await;
        self.settle_marked(failed).await
    }

    /// The same for a caller that holds `marks`. Includes members that failed a flush before and could not be set aside
    /// then. If none of the members that are in has done its flushes, the loss is recorded.
    pub(super) async fn settle_marked(&self, failed: Vec<(usize, Error)>) -> Result<()> {
        if failed.is_empty() && !self.state().unflushed() {
            return Ok(());
        }
        let (passing, mut failed): (Vec<_>, Vec<_>) =
            failed.into_iter().partition(|(_, error)| passes(error));
        let _held = self.labels.lock(0, 1).await;
        {
            let state = self.state();
            failed.retain(|(member, _)| state.place(*member) != Place::Out);
            for member in state.active() {
                let unflushed = state.members[member].unflushed.clone();
                failed.extend(unflushed.map(|error| (member, error)));
            }
        }
        let result = if failed.is_empty() { Ok(()) } else { self.relabel(failed, |_| ()).await };
        if result.is_err() {
            let lost = self.state().lose();
            for (member, why) in lost {
                self.tell(member, Happening::Unflushed(why));
            }
        }
        passing.into_iter().next().map_or(result, |(_, error)| Err(error))
    }

    /// Makes a new event durable: failed members are out, and `change` is applied. If no member would be in, the event
    /// also puts returning members in that lack only sectors that no member can read. The caller must hold `marks` and
    /// `labels`.
    ///
    /// # Errors
    /// The first failure, if no member would remain in, or if one is reserved or busy. Then nothing has changed.
    pub(super) async fn relabel(
        &self,
        mut failed: Vec<(usize, Error)>,
        change: impl Fn(&mut LabelEvent),
    ) -> Result<()> {
        loop {
            let (next, region, hands) = {
                let mut state = self.state();
                let mut next = state.now.clone();
                let before = next.clone();
                change(&mut next);
                failed.iter().for_each(|(member, _)| next.places[*member].0 = Place::Out);
                next.event += 1;
                if next.all_in() {
                    next.base = before.event;
                } else if next.none_in() {
                    for (number, member) in state.members.iter().enumerate() {
                        let was = before.places[number].0 == Place::Returning;
                        if was && next.places[number].0 == Place::Returning && member.left() == 0 {
                            // Its marks do not cover the regions that others lack.
                            (next.places[number].0, next.base) = (Place::In, next.event);
                        }
                    }
                }
                let both = next.places.iter_mut().zip(&before.places);
                both.filter(|(new, old)| new.0 != old.0).for_each(|(new, _)| new.1 = next.event);
                if next.none_in() {
                    let text = || Error::new(Kind::Failed, "no member is in");
                    return Err(failed.first().map_or_else(text, |(_, error)| error.clone()));
                }
                // The number of an unfinished event is not used again.
                state.now.event = next.event;
                state.unsure = true;
                let hands = state.hand_over(&next);
                (next, state.region as u32, hands)
            };
            let places = next.places.iter().enumerate();
            let stay: Vec<usize> =
                places.filter(|(_, (place, _))| *place != Place::Out).map(|(at, _)| at).collect();
            let mut worse = if hands { self.put_marks(&stay).await } else { Vec::new() };
            if let Some((_, error)) = worse.iter().find(|(_, error)| passes(error)) {
                return Err(error.clone());
            }
            if !worse.is_empty() {
                failed.extend(worse);
                continue;
            }
            let calls: Vec<(usize, Call)> = stay
                .iter()
                .map(|member| {
                    let label = MemberLabel { set: self.set, member: *member, region, now: next.clone() };
                    (*member, self.members[*member].write(label.sector(), label.encode()))
                })
                .collect();
            for (member, call) in calls {
                if let Err(error) = call.await {
                    worse.push((member, error));
                }
            }
            self.failed(&worse);
            worse.extend(self.flush_of(&stay).await);
            if let Some((_, error)) = worse.iter().find(|(_, error)| passes(error)) {
                return Err(error.clone());
            }
            if worse.is_empty() {
                self.now(next, &failed);
                return Ok(());
            }
            failed.extend(worse);
        }
    }

    /// Applies an event after its labels are written.
    fn now(&self, next: LabelEvent, failed: &[(usize, Error)]) {
        let mut state = self.state();
        let before = state.now.places.clone();
        let lacks = state.apply(next);
        // All members have this event, so an older label is recognized as older.
        if state.now.all_in() {
            state.now.base = state.now.event;
        }
        state.unsure = false;
        let mut news = Vec::new();
        for (member, (old, new)) in before.iter().zip(state.now.places.clone()).enumerate() {
            let why = failed.iter().find(|(failed, _)| *failed == member).map(|(_, error)| error.clone());
            match new.0 {
                place if place == old.0 => {}
                Place::In => news.push((member, Happening::Back)),
                Place::Returning => news.push((member, Happening::Returning)),
                Place::Out => {
                    let why = why.unwrap_or_else(|| Error::new(Kind::Failed, "as it was told to"));
                    state.members[member].why = Some(why.clone());
                    news.push((member, Happening::Aside(why)));
                }
            }
        }
        if lacks > 0 {
            let text = format!("{lacks} sectors that no other could read are what was on it before");
            news.push((state.inside()[0], Happening::Unreadable(Error::new(Kind::Failed, text))));
        }
        let shape = self.shape_of(&state);
        state.shape = shape;
        drop(state);
        news.into_iter().for_each(|(member, what)| self.tell(member, what));
    }

    pub(super) fn shape_of(&self, state: &MirrorState) -> Shape {
        let shapes: Vec<Shape> = state.active().iter().map(|member| self.members[*member].shape()).collect();
        Shape {
            sectors: state.now.sectors,
            atom: shapes.iter().map(|shape| shape.atom).min().unwrap_or(1).min(HEAD_SECTORS as u32),
            most: shapes.iter().map(|shape| shape.most).min().unwrap_or(1),
            read_only: false,
            durable: shapes.iter().all(|shape| shape.durable),
        }
    }
}
