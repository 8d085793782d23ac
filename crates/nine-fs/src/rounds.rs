//! The schedule of automatic scrubs: `every 30d`, at 02:00.
//!
//! In: an expression, the time. Out: whether a scrub is due. Days are counted from 1970, so the start of the server
//! does not matter. A scrub that fell due while no server ran is not made up for.

use std::fmt;

use jiff::ToSpan;
use jiff::civil::Date;

use crate::archive::Archive;
use crate::date::LocalZone;

/// Minutes after midnight: before the default time of dumps.
const AT: u16 = 2 * 60;
/// Maximum number of days between two scrubs.
const PERIOD_DAYS_MAX: u16 = 366;
/// The day from which days are counted.
const FIRST_DAY: Date = Date::constant(1970, 1, 1);

/// A period in days.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScrubPeriod(u16);

/// A period, and the time of the next scrub in seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DueRound {
    rounds: ScrubPeriod,
    pub(crate) next: i64,
}

impl ScrubPeriod {
    /// Parses `every 30d`, or `off`, which returns `None`.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        let text = text.trim();
        if text == "off" {
            return Ok(None);
        }
        let days = text.strip_prefix("every ").and_then(|every| every.trim().strip_suffix('d'));
        let days = days.filter(|days| days.bytes().all(|byte| byte.is_ascii_digit()));
        match days.and_then(|days| days.parse().ok()) {
            Some(days) if (1..=PERIOD_DAYS_MAX).contains(&days) => Ok(Some(Self(days))),
            _ => Err(format!("`{text}` says not when to scrub: write `off`, or `every 1d` to `every 366d`")),
        }
    }

    /// Returns the first due time after `after`; `None` at the end of the calendar.
    pub(crate) fn next(self, after: i64, zone: &LocalZone) -> Option<i64> {
        let date = zone.date(after);
        let days = i64::from(date.since(FIRST_DAY).ok()?.get_days());
        let step = i64::from(self.0);
        let first = days - days.rem_euclid(step);
        // A time zone may skip a date.
        (0..3).find_map(|n| {
            let date = FIRST_DAY.checked_add((first + n * step).days()).ok()?;
            zone.first(date, AT).filter(|at| *at > after)
        })
    }
}

impl fmt::Display for ScrubPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "every {}d", self.0)
    }
}

impl DueRound {
    /// Returns whether a scrub is due, once for each. If the clock is set back, the next scrub comes earlier.
    pub(crate) fn tick(&mut self, now: i64, zone: &LocalZone) -> bool {
        let is_due = self.next <= now;
        if let Some(next) = self.rounds.next(now, zone) {
            self.next = if is_due { next } else { self.next.min(next) };
        }
        is_due
    }
}

impl Archive {
    /// Sets the schedule of automatic scrubs: "every 30d", "off".
    ///
    /// # Errors
    /// A description of the syntax error.
    pub fn schedule_scrub(&self, words: &str) -> Result<(), String> {
        let rounds = ScrubPeriod::parse(words)?;
        let next = rounds.and_then(|rounds| Some((rounds, rounds.next(self.time().sec, &self.0.zone)?)));
        self.state().scrubber.due = next.map(|(rounds, next)| DueRound { rounds, next });
        Ok(())
    }

    /// Starts a scrub that is due, unless one is running.
    pub(crate) fn tick_scrub(&self) {
        let wall = self.time().sec;
        let due = {
            let state = &mut *self.state();
            let due = state.scrubber.due.as_mut().is_some_and(|due| due.tick(wall, &self.0.zone));
            due && !state.dumper.is_stopped() && !state.scrubber.is_busy()
        };
        if due {
            let archive = self.clone();
            // Its result is in the log and in `status`.
            self.begin(async move { drop(archive.scrub().await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400;

    #[test]
    fn words_are_days_or_off() {
        assert_eq!(ScrubPeriod::parse("off"), Ok(None));
        assert_eq!(
            ScrubPeriod::parse(" every 30d").map(|it| it.map(|it| it.to_string())),
            Ok(Some("every 30d".into()))
        );
        for words in ["", "every", "every d", "every 0d", "every 367d", "every +7d", "every 7h", "7d"] {
            assert!(ScrubPeriod::parse(words).is_err(), "{words}");
        }
    }

    #[test]
    fn rounds_are_so_many_days_apart_whenever_it_is_asked() {
        let zone = LocalZone::new("UTC").unwrap();
        let rounds = ScrubPeriod(7);
        let first = rounds.next(1_795_000_000, &zone).unwrap();
        assert_eq!((first % DAY, first / DAY % 7), (2 * 3600, 0));
        for at in [first - 7 * DAY, first - 1, first - DAY] {
            assert_eq!(rounds.next(at, &zone), Some(first), "{at}");
        }
        assert_eq!(rounds.next(first, &zone), Some(first + 7 * DAY));
        assert_eq!(rounds.next(-5 * DAY, &zone), Some(2 * 3600));
    }

    #[test]
    fn a_round_is_due_once_and_a_clock_that_was_wrong_does_not_put_it_off() {
        let zone = LocalZone::new("UTC").unwrap();
        let (rounds, now) = (ScrubPeriod(30), 1_795_000_000);
        let next = rounds.next(now, &zone).unwrap();
        let mut due = DueRound { rounds, next };
        assert!(!due.tick(next - 1, &zone) && due.tick(next, &zone) && !due.tick(next + 1, &zone));
        assert!(due.tick(next + 400 * DAY, &zone) && !due.tick(next + 400 * DAY, &zone));
        assert!(!due.tick(now, &zone));
        assert_eq!(due.next, next);
    }
}
