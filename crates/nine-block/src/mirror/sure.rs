//! What has to be durable before anything else is done: marks, and labels that say who is in.

use super::label::{HEAD, Label, MARKS, Now, Place};
use super::state::State;
use super::{Happening, Inner};
use crate::call::Call;
use crate::device::Shape;
use crate::error::{Error, Kind, Result};

impl Inner {
    /// Sees to it that labels say what is so: an event that was begun and has failed may be on some.
    pub(super) async fn sure(&self) -> Result<()> {
        if !self.state().unsure {
            return Ok(());
        }
        let _held = self.labels.lock(0, 1).await;
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
        let mut calls = Vec::new();
        {
            let state = self.state();
            for number in state.active() {
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
        let mut written: Vec<usize> = done.iter().map(|(member, ..)| *member).collect();
        written.dedup();
        failed.extend(self.each(&written, |member| member.flush()).await);
        {
            let mut state = self.state();
            for (member, sector, bits) in done.iter().filter(|done| failed.iter().all(|bad| bad.0 != done.0))
            {
                state.members[*member].disk.copy(bits, *sector);
            }
        }
        self.settle(failed).await
    }

    /// What is done about failures of members that are written: they are set aside, if one remains.
    pub(super) async fn settle(&self, failed: Vec<(usize, Error)>) -> Result<()> {
        if failed.is_empty() {
            return Ok(());
        }
        if let Some((_, error)) = failed.iter().find(|(_, error)| error.kind == Kind::Reserved) {
            return Err(error.clone());
        }
        let _held = self.labels.lock(0, 1).await;
        let is_out = |member: usize| self.state().place(member) == Place::Out;
        if failed.iter().all(|(member, _)| is_out(*member)) {
            return Ok(());
        }
        self.relabel(failed, |_| ()).await
    }

    /// Makes a new event durable: members that failed are out, and what `change` says. Whoever calls it holds `labels`.
    ///
    /// # Errors
    /// The first, if none that is in would remain, or one is reserved: then nothing has changed.
    pub(super) async fn relabel(
        &self,
        mut failed: Vec<(usize, Error)>,
        change: impl Fn(&mut Now),
    ) -> Result<()> {
        loop {
            let (next, region) = {
                let mut state = self.state();
                let mut next = state.now.clone();
                let before = next.clone();
                change(&mut next);
                failed.iter().for_each(|(member, _)| next.places[*member].0 = Place::Out);
                next.event += 1;
                if next.all_in() {
                    next.base = before.event;
                }
                let both = next.places.iter_mut().zip(&before.places);
                both.filter(|(new, old)| new.0 != old.0).for_each(|(new, _)| new.1 = next.event);
                if next.places.iter().all(|(place, _)| *place != Place::In) {
                    let text = || Error::new(Kind::Failed, "no member is in");
                    return Err(failed.first().map_or_else(text, |(_, error)| error.clone()));
                }
                // One that is not finished is not used again.
                state.now.event = next.event;
                state.unsure = true;
                (next, state.region as u32)
            };
            let places = next.places.iter().enumerate();
            let stay: Vec<usize> =
                places.filter(|(_, (place, _))| *place != Place::Out).map(|(at, _)| at).collect();
            let mut worse = Vec::new();
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
            worse.extend(self.each(&stay, |member| member.flush()).await);
            if let Some((_, error)) = worse.iter().find(|(_, error)| error.kind == Kind::Reserved) {
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
        state.apply(next);
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
