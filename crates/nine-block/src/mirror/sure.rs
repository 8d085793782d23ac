//! What has to be durable before anything else is done: marks, and labels that say who is in.

use super::label::{HEAD, Label, MARKS, Now, Place};
use super::state::State;
use super::{Happening, Inner, passes};
use crate::call::Call;
use crate::device::{Io, Op, Shape};
use crate::error::{Error, Kind, Result};
use crate::sync::lock;

impl Inner {
    /// Sees to it that labels say what is so: an event that was begun and has failed may be on some.
    pub(super) async fn sure(&self) -> Result<()> {
        if !self.state().unsure {
            return Ok(());
        }
        let _marks = self.marks.lock(0, 1).await;
        let _labels = self.labels.lock(0, 1).await;
        let unsure = self.state().unsure;
        if unsure { self.relabel(Vec::new(), |_| ()).await } else { Ok(()) }
    }

    /// Makes the marks of these regions durable, and with them all that others have asked for.
    pub(super) async fn mark(&self, regions: std::ops::Range<u64>) -> Result<()> {
        while !self.state().marked(regions.clone()) {
            let held = self.marks.lock(0, 1).await;
            let result = self.write_marks().await;
            drop(held);
            result?;
        }
        Ok(())
    }

    /// Writes the marks that are wanted and not there. Whoever calls it holds `marks`.
    pub(super) async fn write_marks(&self) -> Result<()> {
        let active = self.state().active();
        let failed = self.put_marks(&active).await;
        self.settle_marked(failed).await
    }

    /// The same, on these members; who failed.
    async fn put_marks(&self, of: &[usize]) -> Vec<(usize, Error)> {
        let mut calls = Vec::new();
        {
            let state = self.state();
            for &number in of {
                let (member, device) = (&state.members[number], &self.members[number]);
                for sector in member.want.more_than(&member.disk) {
                    // Nothing is cleared here: others rely on what is there.
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

    /// Counts writes that failed.
    pub(super) fn failed(&self, failed: &[(usize, Error)]) {
        let mut state = self.state();
        failed.iter().for_each(|(member, _)| state.members[*member].counts.writes_failed += 1);
    }

    /// Flushes members; who failed. That these may not have what was not flushed is remembered until they are out, or
    /// it is known what is lost.
    pub(super) async fn flush_of(&self, of: &[usize]) -> Vec<(usize, Error)> {
        let flush = |number: usize| {
            let (done, call) = Call::pair();
            let state = self.state.clone();
            // Known before any flush that comes later can end: that one says nothing of what was lost before.
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

    /// What is done about failures of members that are written: they are set aside, if one remains.
    pub(super) async fn settle(&self, failed: Vec<(usize, Error)>) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        let _held = self.marks.lock(0, 1).await;
        self.settle_marked(failed).await
    }

    /// The same, of whoever holds `marks`. With those of which a flush has failed before, and who could not be set
    /// aside then; where none has done its flushes, it is known from here on what is lost.
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

    /// Makes a new event durable: members that failed are out, and what `change` says. Where none that is in would
    /// remain, those that lack nothing but what nobody can read are in. Whoever calls it holds `marks` and `labels`.
    ///
    /// # Errors
    /// The first, if none that is in would remain, or one is reserved or busy: then nothing has changed.
    pub(super) async fn relabel(
        &self,
        mut failed: Vec<(usize, Error)>,
        change: impl Fn(&mut Now),
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
                            // Its marks do not say what others lack.
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
                // One that is not finished is not used again.
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
                    let label = Label { set: self.set, member: *member, region, now: next.clone() };
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

    /// Labels are written: so it is.
    fn now(&self, next: Now, failed: &[(usize, Error)]) {
        let mut state = self.state();
        let before = state.now.places.clone();
        let lacks = state.apply(next);
        // All have it: who comes with an older one is older than it looks.
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

    pub(super) fn shape_of(&self, state: &State) -> Shape {
        let shapes: Vec<Shape> = state.active().iter().map(|member| self.members[*member].shape()).collect();
        Shape {
            sectors: state.now.sectors,
            atom: shapes.iter().map(|shape| shape.atom).min().unwrap_or(1).min(HEAD as u32),
            most: shapes.iter().map(|shape| shape.most).min().unwrap_or(1),
            read_only: false,
            durable: shapes.iter().all(|shape| shape.durable),
        }
    }
}
