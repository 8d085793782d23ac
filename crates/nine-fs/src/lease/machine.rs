//! The state machine of one machine: it claims, renews and loses the lease. It uses neither a clock nor a disk.
//!
//! In: the time, the contents of the slots, the results of writes. Out: the next action, one at a time; and how long
//! the right to write is valid.
//!
//! ```text
//! Begins -> Settles -> Watches -> Claims -> Holds -> Lost
//!                         ^---------'---------'
//! ```
//! Always holds: a right begins, and is renewed, by a look after a write; it ends by the time alone. docs/lease.md
//! proves that two machines never have one at the same time. The rules here have the names used there.

use std::time::Duration;

use bytes::Bytes;
use nine_block::Result;

use super::State;
use super::arbiter::{
    ArbiterHeader, EPOCHS, MachineRecord, MachineStatus, RecordSlot, SlotCopy, epoch_behind,
};

/// The results of reading both copies of a machine's slot; for machine 0, of the header.
pub(crate) type SlotRead = [Result<Bytes>; 2];

/// The next action.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Read everything: [`LeaseMachine::looked`].
    Look,
    /// Write this at this sector, and flush: [`LeaseMachine::wrote`].
    Write(u64, Bytes),
    /// Wait until this time, or until the wish changes.
    Wait(Duration),
    /// Nothing any more.
    Over,
}

/// The wish of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseWish {
    /// Not to be the primary.
    Watch,
    /// To be the primary as soon as no other machine is, with an epoch larger than this.
    Main(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum LeasePhase {
    /// It checks whether another instance with its name is running.
    Begins,
    /// It has announced itself; the time is when that was acknowledged.
    Settles(Option<Duration>),
    /// It may claim from this time on.
    Watches(Duration),
    Claims,
    /// Its right is valid until then.
    Holds(Duration),
    /// It will release its right after the record in flight was written and looked at.
    Leaves,
    Lost(String),
}

/// A slot as it was seen.
#[derive(Clone, Copy, Debug)]
struct SeenSlot {
    slot: RecordSlot,
    /// When it was first known.
    since: Duration,
    /// It was still the same a period later.
    quiet: bool,
}

/// A primary that the administrator has declared dead, with its slot in the first look since then. If the slot changes,
/// the primary is alive.
#[derive(Clone, Copy, Debug)]
struct DeadPrimary {
    instance: [u8; 16],
    epoch: u64,
    slot: Option<RecordSlot>,
}

/// A record to be written.
#[derive(Clone, Copy, Debug)]
struct PendingRecord {
    record: MachineRecord,
    /// Not to be written before this time.
    from: Duration,
    /// When it was first submitted.
    first: Option<Duration>,
}

/// A written record: when it was first submitted, and when it was acknowledged.
#[derive(Clone, Copy, Debug)]
struct WrittenRecord {
    first: Duration,
    at: Duration,
}

/// The state of one machine.
pub(crate) struct LeaseMachine {
    header: ArbiterHeader,
    /// Its number.
    me: u8,
    instance: [u8; 16],
    random: u64,
    wish: LeaseWish,
    phase: LeasePhase,
    /// The slots by machine, from 1 on.
    seen: Vec<Option<SeenSlot>>,
    /// Primaries that the administrator has declared dead.
    dead: Vec<DeadPrimary>,
    /// The records in our own slot, including those of earlier instances.
    own: [Option<MachineRecord>; 2],
    epoch: u64,
    held: u64,
    /// The value of `held` before the last successful claim.
    before: u64,
    serial: u64,
    put: Option<PendingRecord>,
    done: Option<WrittenRecord>,
    /// Nothing new is written to a copy of our slot before these times, because a failed write may still arrive.
    free: [Duration; 2],
    look_at: Duration,
    /// When the present look began, and when the last successful one did.
    looks: Option<Duration>,
    looked: Option<Duration>,
    trouble: Option<String>,
    /// A right is shorter than a period by this.
    margin: Duration,
    /// Whether it looks again after a write. Only tests set this to false, to show the consequences.
    again: bool,
}

impl LeaseMachine {
    /// Creates an instance of a machine of an arbiter. `instance` and `random` must be random.
    pub(crate) fn new(header: ArbiterHeader, me: u8, instance: [u8; 16], random: u64) -> Self {
        let (machines, margin) = (header.names.len(), header.period / 4);
        Self {
            header,
            me,
            instance,
            random,
            wish: LeaseWish::Watch,
            phase: LeasePhase::Begins,
            seen: vec![None; machines],
            dead: Vec::new(),
            own: [None; 2],
            epoch: 0,
            held: 0,
            before: 0,
            serial: 0,
            put: None,
            done: None,
            free: [Duration::ZERO; 2],
            look_at: Duration::ZERO,
            looks: None,
            looked: None,
            trouble: None,
            margin,
            again: true,
        }
    }

    /// Removes the margin, or the looks after writes.
    #[cfg(test)]
    pub(crate) fn spoil(&mut self, margin: bool, again: bool) {
        self.margin = if margin { self.margin } else { Duration::ZERO };
        self.again = again;
    }

    pub(crate) fn wish(&mut self, now: Duration, wish: LeaseWish) {
        self.wish = wish;
        self.look_at = self.look_at.min(now);
        if wish == LeaseWish::Watch {
            self.dead.clear();
            // The last written record was looked at if the next one was not submitted yet.
            let is_known = self.put.is_some_and(|put| put.first.is_none());
            match (&self.phase, is_known) {
                (LeasePhase::Holds(_), true) => self.release(now),
                (LeasePhase::Holds(_), false) => self.phase = LeasePhase::Leaves,
                _ => {}
            }
        }
    }

    /// Declares that nothing was written with the present right: this machine does not count as the last primary.
    pub(crate) fn forgo(&mut self) {
        if let LeasePhase::Holds(_) = self.phase {
            self.held = self.before;
        }
    }

    /// Declares all other present primaries dead, on the responsibility of the caller.
    pub(crate) fn force(&mut self) {
        let me = self.me;
        let seen = (1..).zip(&self.seen).filter(|(machine, _)| *machine != me);
        let newest = seen.filter_map(|(_, seen)| seen.as_ref()?.slot.newest());
        let held = newest.filter(|it| it.is == MachineStatus::Held);
        self.dead =
            held.map(|it| DeadPrimary { instance: it.instance, epoch: it.epoch, slot: None }).collect();
    }

    /// Returns whether a look has succeeded.
    pub(crate) fn has_looked(&self) -> bool {
        self.looked.is_some()
    }

    /// Returns the present problem, for people.
    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// Returns the name and the epoch of the machine with the largest epoch held.
    pub(crate) fn last(&self) -> Option<(String, u64)> {
        self.helds().max_by_key(|(_, held)| *held).filter(|(_, held)| *held > 0)
    }

    /// Returns for each machine the largest epoch with which it may have been the primary.
    pub(crate) fn helds(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let seen = (1..).zip(&self.seen);
        seen.filter_map(|(machine, seen)| {
            Some((self.header.name(machine).to_owned(), seen.as_ref()?.slot.held()))
        })
    }

    pub(crate) fn next_epoch(&self, floor: u64) -> u64 {
        let seen = self.seen.iter().flatten().map(|seen| seen.slot.epoch());
        epoch_behind(seen.fold(floor.max(self.header.floor), u64::max), self.me)
    }

    pub(crate) fn state(&self, now: Duration) -> State {
        match &self.phase {
            LeasePhase::Lost(why) => State::Lost { why: why.clone() },
            LeasePhase::Claims => State::Claiming { epoch: self.epoch },
            LeasePhase::Holds(until) if until.is_zero() => State::Claiming { epoch: self.epoch },
            LeasePhase::Holds(until) => State::Ours { epoch: self.epoch, until: *until },
            _ => {
                let others = self.others().filter_map(|(machine, seen)| {
                    Some((machine, seen?))
                        .filter(|(_, seen)| seen.slot.newest().is_some_and(|it| it.is == MachineStatus::Held))
                });
                let main = others.max_by_key(|(_, seen)| seen.slot.held());
                State::Watching {
                    main: main.map(|(machine, seen)| super::Main {
                        name: self.header.name(machine).into(),
                        epoch: seen.slot.held(),
                        silent: now.saturating_sub(seen.since),
                        is_gone: seen.quiet,
                    }),
                }
            }
        }
    }

    /// Returns whether no record of ours blocks another machine, and this is known from the arbiter.
    pub(crate) fn is_idle(&self) -> bool {
        match self.phase {
            LeasePhase::Begins | LeasePhase::Settles(_) | LeasePhase::Lost(_) => true,
            LeasePhase::Watches(_) => self.put.is_none(),
            LeasePhase::Claims | LeasePhase::Holds(_) | LeasePhase::Leaves => false,
        }
    }

    /// Returns the next action. The caller must report its result before it asks again.
    pub(crate) fn next(&mut self, now: Duration) -> LeaseAction {
        if matches!(self.phase, LeasePhase::Lost(_)) {
            return LeaseAction::Over;
        }
        let due = self.put.filter(|put| put.from <= now);
        // After a sleep it looks before it writes anything, because another machine may be using its name.
        let slept = self.looked.is_none_or(|looked| looked + self.header.period / 2 < now);
        if let Some(put) = due.filter(|_| !slept) {
            let first = put.first.unwrap_or(now);
            self.put = Some(PendingRecord { first: Some(first), ..put });
            return LeaseAction::Write(put.record.at(), put.record.encode(&self.header.identity));
        }
        if self.look_at <= now {
            self.looks = Some(now);
            return LeaseAction::Look;
        }
        let waits = self.put.filter(|_| due.is_none()).map(|put| put.from);
        LeaseAction::Wait(waits.map_or(self.look_at, |from| from.min(self.look_at)))
    }

    /// Takes the result of a write.
    pub(crate) fn wrote(&mut self, now: Duration, result: Result<()>) {
        let Some(put) = self.put else { return };
        let copy = put.record.copy();
        if let Err(error) = result {
            // The write may have succeeded or may still arrive. Writing the same record is safe; nothing else is, for a
            // period.
            self.trouble = Some(format!("the arbiter cannot be written: {error}"));
            self.free[copy] = now + self.header.period;
            self.put = Some(PendingRecord { from: now + self.header.period / 4, ..put });
            return;
        }
        self.put = None;
        self.own[copy] = Some(put.record);
        self.done = Some(WrittenRecord { first: put.first.unwrap_or(now), at: now });
        match &mut self.phase {
            LeasePhase::Settles(since) => *since = Some(now),
            LeasePhase::Claims | LeasePhase::Holds(_) | LeasePhase::Leaves => self.look_at = now,
            _ => {}
        }
        if !self.again {
            self.believe(now);
        }
    }

    /// Takes the results of a look, from machine 0 to the last.
    pub(crate) fn looked(&mut self, now: Duration, reads: Vec<SlotRead>) {
        let Some(begun) = self.looks.take() else { return };
        let (quarter, identity) = (self.header.period / 4, self.header.identity);
        self.look_at = (begun + quarter).max(now);
        let mut reads = reads.into_iter();
        let headers = reads.next().into_iter().flatten().flatten();
        let mut headers = headers.filter_map(|bytes| ArbiterHeader::decode(&bytes).ok());
        let is_ours = headers.clone().any(|header| header.identity == identity);
        if headers.any(|header| header.identity != identity) {
            return self.lose("the arbiter has been made anew: start again");
        }
        let slot = |(machine, [one, two]): (u8, SlotRead)| -> Result<RecordSlot> {
            Ok(RecordSlot([
                SlotCopy::of(one, machine, 0, &identity)?,
                SlotCopy::of(two, machine, 1, &identity)?,
            ]))
        };
        let slots: Vec<RecordSlot> = match (1..).zip(reads).map(slot).collect() {
            Ok(slots) => slots,
            Err(error) => {
                self.trouble = Some(format!("the arbiter cannot be read: {error}"));
                self.look_at = now + quarter;
                return;
            }
        };
        if slots.len() != self.seen.len() {
            return;
        }
        self.looked = Some(begun);
        for (seen, slot) in self.seen.iter_mut().zip(slots) {
            *seen = match *seen {
                Some(SeenSlot { slot: was, since, quiet }) if was == slot => {
                    Some(SeenSlot { slot, since, quiet: quiet || begun >= since + self.header.period })
                }
                _ => Some(SeenSlot { slot, since: now, quiet: false }),
            };
        }
        self.dead.retain_mut(|dead| {
            let is_it = |slot: &RecordSlot| {
                slot.newest().is_some_and(|it| (it.instance, it.epoch) == (dead.instance, dead.epoch))
            };
            let slot = self.seen.iter().flatten().map(|seen| seen.slot).find(is_it);
            slot.is_some_and(|slot| *dead.slot.get_or_insert(slot) == slot)
        });
        let unreadable =
            |(_, seen): &(u8, Option<&SeenSlot>)| seen.is_some_and(|seen| seen.slot.newest().is_none());
        let trouble = self.others().find(unreadable).map(|(machine, _)| self.unreadable(machine));
        self.trouble = trouble;
        if !matches!(self.phase, LeasePhase::Begins)
            && let Some(why) = self.is_another()
        {
            return self.lose(why);
        }
        self.decide(begun, now, is_ours);
        self.wake(begun, now);
    }

    fn decide(&mut self, begun: Duration, now: Duration, may_heal: bool) {
        let Some(own) = self.seen[usize::from(self.me) - 1] else { return };
        // Only a look that began after our last write shows its effect.
        let settled = self.put.is_none() && self.done.is_none_or(|done| begun >= done.at);
        match self.phase {
            LeasePhase::Begins => match own.slot.newest() {
                None => self.trouble = Some(self.unreadable(self.me)),
                Some(newest) if own.quiet || own.slot.is_free() => self.begin(now, &own.slot, newest),
                Some(_) => {}
            },
            // Before it announces itself it looks again, because the records that it builds on may have changed.
            LeasePhase::Settles(None) if self.put.is_some_and(|put| put.first.is_none()) => {
                match own.slot.newest() {
                    Some(newest) if own.quiet || own.slot.is_free() => self.begin(now, &own.slot, newest),
                    _ => (self.phase, self.put) = (LeasePhase::Begins, None),
                }
            }
            LeasePhase::Settles(Some(since)) if begun >= since + self.header.period => {
                self.phase = LeasePhase::Watches(now);
                self.watch(now, &own.slot, may_heal);
            }
            LeasePhase::Watches(_) if settled => self.watch(now, &own.slot, may_heal),
            LeasePhase::Claims if settled => self.claim(now),
            LeasePhase::Holds(until) => self.hold(now, until, settled),
            LeasePhase::Leaves if settled => self.release(now),
            _ => {}
        }
    }

    /// Announces this instance, continuing from the records of earlier ones.
    fn begin(&mut self, now: Duration, slot: &RecordSlot, newest: MachineRecord) {
        self.own = slot.0.map(|copy| match copy {
            SlotCopy::Right(record) => Some(record),
            SlotCopy::Wrong(_) => None,
        });
        (self.epoch, self.held, self.serial) = (slot.epoch(), slot.held(), newest.serial);
        self.put(now, MachineStatus::Here);
        self.phase = LeasePhase::Settles(None);
    }

    fn watch(&mut self, now: Duration, own: &RecordSlot, may_heal: bool) {
        let LeasePhase::Watches(from) = self.phase else { return };
        match self.wish {
            LeaseWish::Main(floor) if now >= from && self.in_the_way().next().is_none() => {
                self.put_claim(now, floor)
            }
            // Invalid copies of our own slot are written again, one after the other.
            _ if own.is_hurt() && may_heal => self.put(now, MachineStatus::Nothing),
            _ => {}
        }
    }

    fn put_claim(&mut self, now: Duration, floor: u64) {
        let seen = self.seen.iter().flatten().map(|seen| seen.slot.epoch()).max();
        let behind = floor.max(self.header.floor).max(seen.unwrap_or(0)).max(self.epoch);
        match behind < 1 << 61 {
            true => {
                self.epoch = epoch_behind(behind, self.me);
                self.phase = LeasePhase::Claims;
                self.put(now, MachineStatus::Claiming);
            }
            false => {
                self.trouble = Some("there are no epochs left: make an arbiter and an archive anew".into())
            }
        }
    }

    /// Decides after its claim was written and looked at.
    fn claim(&mut self, now: Duration) {
        let LeaseWish::Main(floor) = self.wish else { return self.back_off(now) };
        let (me, mut yields, mut waits) = (self.me, false, false);
        for (machine, seen) in self.in_the_way() {
            let claims = seen.slot.newest().is_some_and(|it| it.is == MachineStatus::Claiming);
            // Of two claims, the machine with the smaller number waits until the other one has backed off.
            match claims && machine > me {
                true => waits = true,
                false => yields = true,
            }
        }
        let larger = self.others().any(|(_, seen)| seen.is_some_and(|seen| seen.slot.epoch() >= self.epoch));
        match (yields, waits, larger) {
            (true, ..) => self.back_off(now),
            (_, true, _) => self.look_at = now + self.header.period / 4,
            (.., true) => self.put_claim(now, floor),
            _ => {
                (self.before, self.held) = (self.held, self.epoch);
                self.phase = LeasePhase::Holds(Duration::ZERO);
                self.put(now, MachineStatus::Held);
            }
        }
    }

    fn hold(&mut self, now: Duration, until: Duration, settled: bool) {
        let after = self.others().find(|(_, seen)| seen.is_some_and(|seen| seen.slot.held() > self.epoch));
        if let Some((machine, Some(seen))) = after {
            let (name, epoch) = (self.header.name(machine), seen.slot.held());
            let why = format!("{name} is the main one now (epoch {epoch}; this was epoch {})", self.epoch);
            return self.lose(why);
        }
        let (Some(done), true) = (self.done, settled) else { return };
        if now < until || self.in_the_way().next().is_none() {
            let until = until.max(done.first + self.header.period.saturating_sub(self.margin));
            self.dead.clear();
            self.phase = LeasePhase::Holds(until);
        }
        self.renew(done);
    }

    fn renew(&mut self, done: WrittenRecord) {
        let period = self.header.period;
        self.put(done.first + period / 4, MachineStatus::Held);
        let Some(put) = &mut self.put else { return };
        // The record after this one must wait until the other copy is free. Write this one half a period before that,
        // so that the right lasts.
        let other = self.free[1 - put.record.copy()];
        if other > put.from {
            put.from = put.from.max(other.saturating_sub(period / 2));
        }
    }

    fn release(&mut self, now: Duration) {
        if let Some(put) = self.put.take() {
            self.serial = put.record.serial - 1;
        }
        self.phase = LeasePhase::Watches(now);
        self.put(now, MachineStatus::Nothing);
    }

    fn back_off(&mut self, now: Duration) {
        let quarter = self.header.period / 4;
        let chance = quarter * 3 * (self.chance() % 1024) as u32 / 1024;
        self.phase = LeasePhase::Watches(now + quarter + chance);
        self.put(now, MachineStatus::Nothing);
    }

    fn put(&mut self, from: Duration, is: MachineStatus) {
        self.serial += 1;
        let (machine, epoch, held) = (self.me, self.epoch, self.held);
        let record = MachineRecord { machine, is, epoch, held, serial: self.serial, instance: self.instance };
        self.put = Some(PendingRecord { record, from: from.max(self.free[record.copy()]), first: None });
    }

    fn lose(&mut self, why: impl Into<String>) {
        self.phase = LeasePhase::Lost(why.into());
        self.put = None;
    }

    /// Skips the look after a write, for the canary test.
    fn believe(&mut self, now: Duration) {
        match (&self.phase, self.done) {
            (LeasePhase::Claims, _) => {
                self.held = self.epoch;
                self.phase = LeasePhase::Holds(Duration::ZERO);
                self.put(now, MachineStatus::Held);
            }
            (LeasePhase::Holds(until), Some(done)) => {
                self.phase = LeasePhase::Holds((*until).max(done.first + self.header.period - self.margin));
                self.renew(done);
            }
            _ => {}
        }
    }

    /// Returns an error if our own slot has a record that no instance we know of has written.
    fn is_another(&self) -> Option<String> {
        let own = self.seen[usize::from(self.me) - 1]?;
        let strange = own.slot.0.into_iter().zip(self.own).find_map(|(copy, own)| match copy {
            SlotCopy::Right(record) if own != Some(record) => {
                Some(record).filter(|record| self.put.is_none_or(|put| put.record != *record))
            }
            _ => None,
        })?;
        let name = self.header.name(self.me);
        Some(match strange.instance == self.instance {
            true => {
                format!("the arbiter has forgotten what it acknowledged of {name}: it is no disk for this")
            }
            false => {
                format!("another machine goes by the name {name}, or this one was started twice: end one")
            }
        })
    }

    /// Sets the next look to when another machine may become quiet. If that time came during this look, it looks at
    /// once.
    fn wake(&mut self, begun: Duration, now: Duration) {
        if matches!(
            self.phase,
            LeasePhase::Claims | LeasePhase::Holds(_) | LeasePhase::Leaves | LeasePhase::Lost(_)
        ) {
            return;
        }
        let period = self.header.period;
        let waited = self.seen.iter().flatten().filter(|seen| !seen.quiet).map(|seen| seen.since + period);
        let from = match self.phase {
            LeasePhase::Watches(from) => Some(from),
            LeasePhase::Settles(since) => since.map(|since| since + period),
            _ => None,
        };
        let soonest = waited.chain(from).filter(|at| *at > begun).min();
        self.look_at = soonest.map_or(self.look_at, |at| at.max(now).min(self.look_at));
    }

    fn others(&self) -> impl Iterator<Item = (u8, Option<&SeenSlot>)> {
        let all = (1..).zip(self.seen.iter().map(Option::as_ref));
        all.filter(move |(machine, _)| *machine != self.me)
    }

    /// Returns the other machines that may have the right, or may get it.
    fn in_the_way(&self) -> impl Iterator<Item = (u8, &SeenSlot)> {
        self.others().filter_map(|(machine, seen)| Some((machine, seen?))).filter(|(_, seen)| {
            match seen.slot.newest() {
                None => true,
                Some(_) if seen.slot.is_free() => false,
                Some(_) => !seen.quiet && !self.dead.iter().any(|dead| dead.slot == Some(seen.slot)),
            }
        })
    }

    fn unreadable(&self, machine: u8) -> String {
        format!(
            "what {} has said cannot be read: nobody becomes the main one. End all of them, then make the arbiter \
            anew: fs arbiter --again",
            self.header.name(machine)
        )
    }

    /// Returns the next pseudorandom number (SplitMix64).
    fn chance(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

const _: () = assert!(EPOCHS > 15);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lease::arbiter::PER;

    const PLACE: usize = 4096;
    const MS: Duration = Duration::from_millis(1);

    /// An arbiter of two machines, in memory.
    struct Arbiter {
        header: ArbiterHeader,
        /// By index of the copies.
        places: Vec<Bytes>,
    }

    impl Arbiter {
        fn new() -> Self {
            let names = vec!["mars".to_owned(), "venus".to_owned()];
            let header = ArbiterHeader { identity: [7; 16], period: Duration::from_secs(4), floor: 0, names };
            let mut places = vec![Bytes::from(vec![0; PLACE]); 32];
            for copy in 0..2 {
                places[copy * 16] = header.encode();
                for machine in 1..=2 {
                    let record = MachineRecord::fresh(machine, copy);
                    places[(record.at() / PER) as usize] = record.encode(&header.identity);
                }
            }
            Self { header, places }
        }

        fn machine(&self, me: u8) -> LeaseMachine {
            LeaseMachine::new(self.header.clone(), me, [me; 16], 5)
        }

        /// Performs an action at once.
        fn does(&mut self, machine: &mut LeaseMachine, next: LeaseAction, now: Duration) {
            match next {
                LeaseAction::Look => {
                    let read = |place: usize| Ok(self.places[place].clone());
                    let reads = (0..=2).map(|machine| [read(machine), read(16 + machine)]).collect();
                    machine.looked(now, reads);
                }
                LeaseAction::Write(at, bytes) => {
                    self.places[(at / PER) as usize] = bytes;
                    machine.wrote(now, Ok(()));
                }
                LeaseAction::Wait(until) => assert!(until > now),
                LeaseAction::Over => panic!("{:?}", machine.state(now)),
            }
        }

        /// Continues until this condition holds. Returns when that is.
        fn until(
            &mut self,
            machine: &mut LeaseMachine,
            mut now: Duration,
            is_so: impl Fn(&LeaseMachine, &LeaseAction) -> bool,
        ) -> (Duration, LeaseAction) {
            for _ in 0..100_000 {
                let next = machine.next(now);
                if is_so(machine, &next) {
                    return (now, next);
                }
                self.does(machine, next, now);
                now += MS;
            }
            panic!("it is never so: {:?}", machine.state(now));
        }

        /// Makes it the primary, up to the point where it will submit its next record.
        fn main(&mut self, machine: &mut LeaseMachine, now: Duration) -> (Duration, LeaseAction) {
            machine.wish(now, LeaseWish::Main(0));
            self.until(machine, now, |machine, next| {
                matches!(machine.phase, LeasePhase::Holds(until) if !until.is_zero())
                    && matches!(next, LeaseAction::Write(..))
            })
        }
    }

    #[test]
    fn who_has_written_nothing_was_never_the_main_one() {
        let mut arbiter = Arbiter::new();
        let (mut mars, mut venus) = (arbiter.machine(1), arbiter.machine(2));
        let last = |machine: &LeaseMachine| machine.last().map(|(name, held)| format!("{name} {held}"));
        let (mut now, _) = arbiter.main(&mut mars, Duration::ZERO);
        mars.wish(now, LeaseWish::Watch);
        (now, _) = arbiter.until(&mut mars, now, |mars, _| mars.is_idle());
        for (is_on_its_way, held) in [(false, "venus 2"), (true, "venus 18")] {
            let mut write;
            (now, write) = arbiter.main(&mut venus, now);
            assert_eq!(last(&venus).as_deref(), Some(held));
            if !is_on_its_way {
                arbiter.does(&mut venus, write, now);
                write = LeaseAction::Wait(Duration::MAX);
            }
            venus.forgo();
            venus.wish(now, LeaseWish::Watch);
            arbiter.does(&mut venus, write, now);
            (now, _) = arbiter.until(&mut venus, now, |venus, _| venus.is_idle());
            (now, _) = arbiter.until(&mut venus, now, |venus, _| last(venus).as_deref() == Some("mars 1"));
        }
        // No epoch is used twice.
        arbiter.main(&mut mars, now);
        assert_eq!(last(&mars).as_deref(), Some("mars 33"));
    }

    #[test]
    fn who_leaves_behind_a_record_that_was_not_looked_behind_looks_first() {
        let mut arbiter = Arbiter::new();
        let mut mars = arbiter.machine(1);
        let (now, write) = arbiter.main(&mut mars, Duration::ZERO);
        arbiter.does(&mut mars, write, now);
        mars.wish(now, LeaseWish::Watch);
        let next = mars.next(now);
        assert!(matches!(next, LeaseAction::Look) && !mars.is_idle(), "{next:?}");
        arbiter.does(&mut mars, next, now);
        assert!(matches!(mars.next(now), LeaseAction::Write(..)));
        let (now, _) = arbiter.until(&mut mars, now, |mars, _| mars.is_idle());
        // Another machine may have the lease at once.
        let mut venus = arbiter.machine(2);
        let (then, _) = arbiter.main(&mut venus, now);
        assert!(then - now < Duration::from_secs(6), "{:?}", then - now);
    }
}
