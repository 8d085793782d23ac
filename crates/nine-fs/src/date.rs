//! Dates, and the schedule of dumps.
//!
//! In: times in seconds since 1970, and a time zone. Out: dates in the zone, names of dumps, and whether a dump is due.
//! Nothing here reads a clock, and only the creation of a [`LocalZone`] reads files.

use std::collections::VecDeque;
use std::fmt;

use jiff::civil::{Date, Time};
use jiff::tz::{AmbiguousOffset, TimeZone};
use jiff::{Timestamp, ToSpan};

const MINUTES_OF_DAY: u16 = 24 * 60;
const SECONDS_OF_DAY: i64 = 24 * 60 * 60;

/// The start of the year 1. Earlier times count as this one.
const EARLIEST: i64 = -62_135_596_800;

/// A time zone.
#[derive(Clone, Debug)]
pub(crate) struct LocalZone(TimeZone);

impl LocalZone {
    /// Looks up a zone by its IANA name, in the system's database or in the one built into this program.
    pub(crate) fn new(name: &str) -> Result<Self, String> {
        let unknown = format!("no zone `{name}`: it is named as IANA does, for example Europe/Berlin or UTC");
        TimeZone::get(name).map(Self).map_err(|_| unknown)
    }

    /// Returns the zone of this machine: from `TZ`, or else from /etc/localtime, or else UTC.
    pub(crate) fn local() -> Self {
        Self(TimeZone::try_system().unwrap_or(TimeZone::UTC))
    }

    /// Returns the date of a time. Times before the year 1 or after 9999 count as the ends of that range.
    pub(crate) fn day_of(&self, secs: i64) -> CalendarDay {
        let date = self.date(secs);
        CalendarDay {
            year: date.year().unsigned_abs(),
            month: date.month().unsigned_abs(),
            day: date.day().unsigned_abs(),
        }
    }

    pub(crate) fn date(&self, secs: i64) -> Date {
        self.0.to_datetime(in_range(secs)).date()
    }

    /// Formats a time for people, with the offset from UTC: `2026-11-28 05:00:00 +0100`.
    pub(crate) fn time(&self, secs: i64) -> String {
        in_range(secs).to_zoned(self.0.clone()).strftime("%F %T %z").to_string()
    }

    /// Returns the first time at which clocks show `minutes` after midnight of this date, or later.
    pub(crate) fn first(&self, date: Date, minutes: u16) -> Option<i64> {
        let (hour, minute) = (minutes / 60, minutes % 60);
        let wall =
            self.0.to_ambiguous_timestamp(date.to_datetime(Time::new(hour as i8, minute as i8, 0, 0).ok()?));
        let early = wall.earlier().ok()?;
        let at = match wall.offset() {
            // `early` is before the gap, and the gap is where the offset changes.
            AmbiguousOffset::Gap { before, .. } => {
                self.0.following(early).find(|change| change.offset() != before)?.timestamp()
            }
            _ => early,
        };
        Some(at.as_second())
    }

    /// Returns the first time of a date; `None` for a date that the zone skips.
    fn midnight(&self, date: Date) -> Option<i64> {
        self.first(date, 0).filter(|at| self.date(*at) == date)
    }
}

fn in_range(secs: i64) -> Timestamp {
    let secs = secs.clamp(EARLIEST, Timestamp::MAX.as_second());
    Timestamp::from_second(secs).expect("it is in range")
}

impl fmt::Display for LocalZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.iana_name().unwrap_or("local"))
    }
}

/// A date.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CalendarDay {
    /// 0 to 9999.
    pub(crate) year: u16,
    /// 1 to 12.
    pub(crate) month: u8,
    /// 1 to 31.
    pub(crate) day: u8,
}

impl CalendarDay {
    /// Returns the date, if it exists.
    pub(crate) fn new(year: u16, month: u8, day: u8) -> Option<Self> {
        let number = |byte: u8| i8::try_from(byte).ok();
        Date::new(i16::try_from(year).ok()?, number(month)?, number(day)?).ok()?;
        Some(Self { year, month, day })
    }

    /// Returns the directory name of the year: `2026`.
    pub(crate) fn year_name(self) -> String {
        format!("{:04}", self.year)
    }

    /// Returns the directory name of a dump of this date: `1121` for number 0, `11211` for 1.
    pub(crate) fn dump_name(self, number: u32) -> String {
        let number = if number == 0 { String::new() } else { number.to_string() };
        format!("{:02}{:02}{number}", self.month, self.day)
    }
}

/// Parses a name in exactly the form that [`CalendarDay::dump_name`] writes. Returns month, day and number.
pub(crate) fn parse_dump_name(name: &str) -> Option<(u8, u8, u32)> {
    let right = name.bytes().all(|byte| byte.is_ascii_digit()) && name.as_bytes().get(4) != Some(&b'0');
    let (date, number) = right.then_some(name)?.split_at_checked(4)?;
    let (month, day) = (date[..2].parse().ok()?, date[2..].parse().ok()?);
    let number = if number.is_empty() { 0 } else { number.parse().ok()? };
    // 2000 has 29 February.
    CalendarDay::new(2000, month, day).map(|day| (day.month, day.day, number))
}

/// The times at which dumps are taken.
///
/// A time of day is the first time of that date at which clocks show it or later. If the clocks skip it, that is the
/// end of the gap; if they show it twice, the first of both. A skipped date has no dumps.
///
/// `every` with minutes or hours counts elapsed time from the start of each date, and begins again with the next date.
/// So two dumps are never farther apart than that, and on some days closer. With days it is the start of each date that
/// is a multiple of that number of days after 1 January 1970.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DumpSchedule {
    /// Never.
    Off,
    /// At these times of each day: minutes after midnight, in rising order.
    At(Vec<u16>),
    /// Every `count` minutes, hours or days.
    Every {
        /// The number of units.
        count: u16,
        /// The unit.
        unit: ScheduleUnit,
    },
}

/// The unit of an interval between dumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ScheduleUnit {
    Minutes,
    Hours,
    Days,
}

impl ScheduleUnit {
    const ALL: [(char, Self, u16); 3] =
        [('m', Self::Minutes, MINUTES_OF_DAY), ('h', Self::Hours, 24), ('d', Self::Days, DAYS_MAX)];

    fn letter(self) -> char {
        Self::ALL.iter().find(|(_, unit, _)| *unit == self).map_or('?', |(letter, ..)| *letter)
    }
}

/// The longest interval in days.
const DAYS_MAX: u16 = 366;

impl DumpSchedule {
    /// Parses `05:00`, `05:00,17:30`, `every 15m`, `every 2h`, `every 7d` or `off`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || {
            let known = "`05:00`, `05:00,17:30`, `every 15m`, `every 2h`, `every 7d` or `off`";
            format!("`{text}` is no schedule: write {known}")
        };
        let text = text.trim();
        if text == "off" {
            return Ok(Self::Off);
        }
        let Some(every) = text.strip_prefix("every ") else {
            let mut times = text.split(',').map(time_of_day).collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
            times.sort_unstable();
            times.dedup();
            return Ok(Self::At(times));
        };
        let every = every.trim();
        let found = ScheduleUnit::ALL.iter().find_map(|(letter, unit, most)| {
            Some((every.strip_suffix(*letter).and_then(number)?, *unit, *most))
        });
        let (count, unit, most) = found.ok_or_else(wrong)?;
        if !(1..=most).contains(&count) {
            return Err(format!(
                "`{text}`: from `every 1m` to `every 24h`, or `every 1d` to `every {DAYS_MAX}d`"
            ));
        }
        Ok(Self::Every { count, unit })
    }

    /// Returns the first scheduled time after `after`.
    pub(crate) fn next(&self, after: i64, zone: &LocalZone) -> Option<i64> {
        // Times of earlier dates are not later than `after`.
        self.around(after, 0, 3 + self.days_apart(), zone).find(|at| *at > after)
    }

    /// Returns the last scheduled time up to `now`.
    fn latest(&self, now: i64, zone: &LocalZone) -> Option<i64> {
        // A time of the next date may be earlier, if the clocks were set back over midnight.
        self.around(now, -2 - self.days_apart(), 1, zone).take_while(|at| *at <= now).last()
    }

    /// Returns the number of days in an interval of days, otherwise 0.
    fn days_apart(&self) -> i32 {
        match self {
            Self::Every { count, unit: ScheduleUnit::Days } => i32::from(*count),
            _ => 0,
        }
    }

    /// Returns the scheduled times of the dates from `from` to `to` days after the date of `secs`, in order.
    fn around(&self, secs: i64, from: i32, to: i32, zone: &LocalZone) -> impl Iterator<Item = i64> {
        let date = zone.date(secs);
        (from..=to)
            .filter_map(move |days| date.checked_add(days.days()).ok())
            .flat_map(move |date| self.of(date, zone))
    }

    fn of(&self, date: Date, zone: &LocalZone) -> Vec<i64> {
        let Some(midnight) = zone.midnight(date) else { return Vec::new() };
        match self {
            Self::Off => Vec::new(),
            Self::At(times) => times.iter().filter_map(|time| zone.first(date, *time)).collect(),
            Self::Every { count, unit: ScheduleUnit::Days } => {
                let day = date.duration_since(Date::constant(1970, 1, 1)).as_hours().div_euclid(24);
                if day.rem_euclid(i64::from(*count)) == 0 { vec![midnight] } else { Vec::new() }
            }
            Self::Every { count, unit } => {
                let tomorrow = date.series(1.day()).skip(1).take(3).find_map(|date| zone.midnight(date));
                let step = usize::from(*count) * if *unit == ScheduleUnit::Hours { 3600 } else { 60 };
                (midnight..tomorrow.unwrap_or(midnight)).step_by(step).collect()
            }
        }
    }
}

impl fmt::Display for DumpSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(times) => {
                let times = times.iter().map(|time| format!("{:02}:{:02}", time / 60, time % 60));
                f.write_str(&times.collect::<Vec<_>>().join(","))
            }
            Self::Every { count, unit } => write!(f, "every {count}{}", unit.letter()),
        }
    }
}

/// Parses `hh:mm` into minutes after midnight.
fn time_of_day(text: &str) -> Option<u16> {
    let (hour, minute) = text.trim().split_once(':')?;
    let right = (1..=2).contains(&hour.len()) && minute.len() == 2;
    let (hour, minute) = (number(right.then_some(hour)?)?, number(minute)?);
    (hour < 24 && minute < 60).then_some(hour * 60 + minute)
}

/// Parses a number that has only digits.
fn number(text: &str) -> Option<u16> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Maximum number of past due times that are remembered: a day of `every 1m`.
const REMEMBERED: usize = MINUTES_OF_DAY as usize;

/// Decides when a scheduled dump is due, by a clock that may be wrong.
///
/// - Each scheduled time is due once, when it comes.
/// - If several have come since the last tick (the machine was off or asleep, or the clock stepped forward), one dump
///   is due, for the last of them.
/// - If the clock steps back, scheduled times come again. Those for which a dump was due are skipped, up to a day ahead
///   of the clock. Those farther ahead are forgotten, because the clock was wrong. So after any step the next dump is
///   due at most a day later than without these rules; with a daily schedule, at the first or second time that comes.
/// - At the start a dump is due at once if the last scheduled time is later than the last dump, whoever asked for that.
///   A last dump in the future prevents that, but suppresses only its own scheduled time.
#[derive(Debug)]
pub(crate) struct DumpScheduler {
    schedule: DumpSchedule,
    zone: LocalZone,
    /// The next scheduled time.
    next: Option<i64>,
    /// The clock at the last tick.
    seen: i64,
    /// Times for which a dump was due, in the order in which they were due.
    fired: VecDeque<i64>,
}

impl DumpScheduler {
    /// Creates it. `last_dump` is the time of the last dump, or else of the creation of the file system; without it no
    /// dump counts as missed.
    pub(crate) fn new(schedule: DumpSchedule, zone: LocalZone, now: i64, last_dump: Option<i64>) -> Self {
        let missed =
            schedule.latest(now, &zone).filter(|missed| last_dump.is_some_and(|last| last < *missed));
        let fired = last_dump.and_then(|last| schedule.latest(last, &zone)).into_iter().collect();
        let mut due = Self { schedule, zone, next: None, seen: now, fired };
        due.plan(now);
        due.next = missed.or(due.next);
        due
    }

    /// Returns whether a dump is due, once for each. The caller then takes the dump.
    pub(crate) fn tick(&mut self, now: i64) -> bool {
        let come = |next: Option<i64>| next.is_some_and(|next| next <= now);
        if now < self.seen && !come(self.next) {
            self.plan(now);
        }
        self.seen = now;
        if !come(self.next) {
            return false;
        }
        let moment = self.schedule.latest(now, &self.zone);
        let fresh = moment.filter(|moment| !self.fired.contains(moment));
        self.fired.extend(fresh);
        if self.fired.len() > REMEMBERED {
            self.fired.pop_front();
        }
        self.plan(now);
        fresh.is_some()
    }

    /// Returns the time of the next dump; `now` if one is due.
    pub(crate) fn next(&self, now: i64) -> Option<i64> {
        self.next.map(|next| next.max(now))
    }

    /// Sets the next scheduled time: the first after `now` for which no dump was due yet.
    fn plan(&mut self, now: i64) {
        self.fired.retain(|moment| *moment <= now.saturating_add(SECONDS_OF_DAY));
        self.next = self.schedule.next(now, &self.zone);
        while let Some(next) = self.next.filter(|next| self.fired.contains(next)) {
            self.next = self.schedule.next(next, &self.zone);
        }
    }
}

#[cfg(test)]
mod tests {
    use jiff::civil::DateTime;

    use super::*;

    const HOUR: i64 = 3600;

    fn zone(name: &str) -> LocalZone {
        LocalZone::new(name).unwrap()
    }

    /// Returns the time at which clocks show this, the first if there are two.
    fn at(wall: &str, zone: &LocalZone) -> i64 {
        let wall: DateTime = wall.parse().unwrap();
        let found = zone.0.to_ambiguous_timestamp(wall);
        assert!(!matches!(found.offset(), AmbiguousOffset::Gap { .. }), "{wall} is in a gap");
        found.earlier().unwrap().as_second()
    }

    fn utc(text: &str) -> i64 {
        text.parse::<Timestamp>().unwrap().as_second()
    }

    fn schedule(text: &str) -> DumpSchedule {
        DumpSchedule::parse(text).unwrap()
    }

    /// Returns the scheduled times after `from`, up to `to`.
    fn moments(text: &str, zone: &LocalZone, from: i64, to: i64) -> Vec<String> {
        let schedule = schedule(text);
        let next = |at: &i64| schedule.next(*at, zone);
        let found = std::iter::successors(next(&from), next).take_while(|at| *at <= to);
        found.map(|at| Timestamp::from_second(at).unwrap().to_string()).collect()
    }

    #[test]
    fn a_date_has_names() {
        let berlin = zone("Europe/Berlin");
        assert_eq!(berlin.to_string(), "Europe/Berlin");
        let day = berlin.day_of(utc("2026-11-20T23:00:00Z"));
        assert_eq!(day, CalendarDay { year: 2026, month: 11, day: 21 });
        assert_eq!(zone("UTC").day_of(utc("2026-11-20T23:00:00Z")).day, 20);
        assert_eq!((day.year_name().as_str(), day.dump_name(0).as_str()), ("2026", "1121"));
        assert_eq!((day.dump_name(1).as_str(), day.dump_name(12).as_str()), ("11211", "112112"));
        assert_eq!(CalendarDay { year: 7, month: 1, day: 2 }.year_name(), "0007");
        assert_eq!(zone("Asia/Kathmandu").day_of(utc("2026-01-01T18:15:00Z")).day, 2);
        assert_eq!(zone("Asia/Kathmandu").day_of(utc("2026-01-01T18:14:59Z")).day, 1);
        assert_eq!(zone("UTC").day_of(-1), CalendarDay { year: 1969, month: 12, day: 31 });
        for secs in [i64::MIN, i64::MAX] {
            for name in ["UTC", "Pacific/Kiritimati", "Pacific/Pago_Pago"] {
                let day = zone(name).day_of(secs);
                assert_eq!(CalendarDay::new(day.year, day.month, day.day), Some(day));
            }
        }
    }

    #[test]
    fn an_unknown_zone_is_said_to_be() {
        let error = LocalZone::new("Europe/Berlinn").unwrap_err();
        assert_eq!(
            error,
            "no zone `Europe/Berlinn`: it is named as IANA does, for example Europe/Berlin or UTC"
        );
        assert!(LocalZone::new("").is_err());
        LocalZone::local();
    }

    #[test]
    fn names_of_dumps_are_read_as_written() {
        let day = CalendarDay { year: 2026, month: 2, day: 29 };
        for number in [0, 1, 9, 10, 123, u32::MAX] {
            assert_eq!(parse_dump_name(&day.dump_name(number)), Some((2, 29, number)));
        }
        let wrong = ["", "112", "11210", "112101", "1301", "0021", "0230", "0431", "112a", "1121 ", "1121+1"];
        for name in wrong.into_iter().chain(["11211a", "11214294967296", "-121", "ä211", "112ä", "１１２１"])
        {
            assert_eq!(parse_dump_name(name), None, "{name}");
        }
        for number in 0..100_000 {
            let name = format!("{number:04}");
            if let Some((month, day, number)) = parse_dump_name(&name) {
                assert_eq!(CalendarDay { year: 2000, month, day }.dump_name(number), name);
            }
        }
    }

    #[test]
    fn schedules_are_read_and_written() {
        for text in [
            "off",
            "05:00",
            "05:00,17:30",
            "00:00,23:59",
            "every 15m",
            "every 2h",
            "every 24h",
            "every 1440m",
            "every 1d",
            "every 366d",
        ] {
            assert_eq!(schedule(text).to_string(), text);
        }
        assert_eq!(schedule(" 17:30, 5:00,05:00 ").to_string(), "05:00,17:30");
        let wrong = [
            "", "on", "24:00", "05:60", "5", "05:0", "005:00", "05:00,", "05:00:00", "+5:00", "every",
            "every m",
        ];
        for text in wrong.into_iter().chain([
            "every 0m",
            "every 25h",
            "every 1441m",
            "every 0d",
            "every 367d",
            "every 5",
            "every 5s",
            "every 70000m",
        ]) {
            let error = DumpSchedule::parse(text).unwrap_err();
            assert!(error.contains(&format!("`{text}`")) && error.contains("every"), "{error}");
        }
    }

    #[test]
    fn in_spring_what_does_not_exist_is_after_the_gap() {
        let berlin = zone("Europe/Berlin");
        let (from, to) = (at("2026-03-28T12:00", &berlin), at("2026-03-30T12:00", &berlin));
        assert_eq!(moments("05:00", &berlin, from, to), ["2026-03-29T03:00:00Z", "2026-03-30T03:00:00Z"]);
        assert_eq!(moments("02:30", &berlin, from, to), ["2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"]);
        // Three times of a day fall into one gap.
        let all =
            ["2026-03-29T01:00:00Z", "2026-03-30T00:00:00Z", "2026-03-30T00:30:00Z", "2026-03-30T01:00:00Z"];
        assert_eq!(moments("02:00,02:30,03:00", &berlin, from, to), all);
        let new_york = zone("America/New_York");
        let from = at("2026-03-08T00:00", &new_york);
        assert_eq!(moments("02:30", &new_york, from, from + 20 * HOUR), ["2026-03-08T07:00:00Z"]);
    }

    #[test]
    fn in_autumn_what_exists_twice_is_the_first() {
        let berlin = zone("Europe/Berlin");
        let (from, to) = (at("2026-10-24T12:00", &berlin), at("2026-10-26T12:00", &berlin));
        assert_eq!(moments("02:30", &berlin, from, to), ["2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"]);
        assert_eq!(moments("05:00", &berlin, from, to), ["2026-10-25T04:00:00Z", "2026-10-26T04:00:00Z"]);
        let new_york = zone("America/New_York");
        let from = at("2026-11-01T00:00", &new_york);
        assert_eq!(moments("01:30", &new_york, from, from + 20 * HOUR), ["2026-11-01T05:30:00Z"]);
    }

    #[test]
    fn other_clocks_change_in_other_ways() {
        // A change of half an hour.
        let howe = zone("Australia/Lord_Howe");
        let (from, to) = (utc("2026-10-03T00:00:00Z"), utc("2026-10-04T12:00:00Z"));
        assert_eq!(moments("02:15", &howe, from, to), ["2026-10-03T15:30:00Z"]);
        let (from, to) = (utc("2026-04-04T00:00:00Z"), utc("2026-04-05T12:00:00Z"));
        assert_eq!(moments("01:45", &howe, from, to), ["2026-04-04T14:45:00Z"]);
        // 30 December 2011 was skipped.
        let apia = zone("Pacific/Apia");
        let (from, to) = (utc("2011-12-29T00:00:00Z"), utc("2011-12-31T14:00:00Z"));
        assert_eq!(moments("05:00", &apia, from, to), ["2011-12-29T15:00:00Z", "2011-12-30T15:00:00Z"]);
        assert_eq!(
            moments("every 24h", &apia, from, to),
            ["2011-12-29T10:00:00Z", "2011-12-30T10:00:00Z", "2011-12-31T10:00:00Z"]
        );
        let kathmandu = zone("Asia/Kathmandu");
        let from = utc("2026-01-01T00:00:00Z");
        assert_eq!(moments("05:00", &kathmandu, from, from + 24 * HOUR), ["2026-01-01T23:15:00Z"]);
        // One minute after midnight the clocks went back to the day before.
        let johns = zone("America/St_Johns");
        let (from, to) = (utc("2010-11-06T12:00:00Z"), utc("2010-11-07T12:00:00Z"));
        assert_eq!(moments("00:00", &johns, from, to), ["2010-11-07T02:30:00Z"]);
        assert_eq!(moments("23:30", &johns, from, to), ["2010-11-07T02:00:00Z"]);
        assert_eq!(moments("every 12h", &johns, from, to).len(), 2);
    }

    #[test]
    fn every_so_many_days_is_the_first_moment_of_a_date() {
        let berlin = zone("Europe/Berlin");
        let (from, to) = (at("2026-03-26T12:00", &berlin), at("2026-04-04T12:00", &berlin));
        // 28 March 2026 is day 20,540; the clocks go forward on the 29th.
        assert_eq!(moments("every 4d", &berlin, from, to), ["2026-03-27T23:00:00Z", "2026-03-31T22:00:00Z"]);
        assert_eq!(moments("every 1d", &berlin, from, to), moments("every 24h", &berlin, from, to));
        let year = schedule("every 366d");
        let next = year.next(from, &berlin).unwrap();
        assert_eq!(year.latest(next + 365 * 24 * HOUR, &berlin), Some(next));
        let after = year.next(next, &berlin).unwrap();
        assert!((after - next - 366 * 24 * HOUR).abs() <= HOUR, "{next} {after}");
    }

    #[test]
    fn every_so_often_counts_from_midnight() {
        let berlin = zone("Europe/Berlin");
        let (from, to) = (at("2026-07-01T00:00", &berlin) - 1, at("2026-07-02T00:00", &berlin));
        assert_eq!(moments("every 2h", &berlin, from, to).len(), 13);
        assert_eq!(moments("every 15m", &berlin, from, to).len(), 97);
        let five =
            ["2026-06-30T22:00:00Z", "2026-07-01T07:00:00Z", "2026-07-01T16:00:00Z", "2026-07-01T22:00:00Z"];
        assert_eq!(moments("every 9h", &berlin, from, to), five);
        // A day of 23 hours, and one of 25.
        for (day, hours) in [("2026-03-29T00:00", 23), ("2026-10-25T00:00", 25)] {
            let from = at(day, &berlin);
            assert_eq!(moments("every 15m", &berlin, from, from + hours * HOUR).len() as i64, 4 * hours);
            assert_eq!(moments("every 2h", &berlin, from, from + hours * HOUR).len() as i64, (hours + 1) / 2);
        }
        assert_eq!(moments("off", &berlin, from, to), [""; 0]);
    }

    /// Compares the documented rule of a time of day with the implementation, around all changes of the clocks.
    #[test]
    fn a_time_of_day_is_when_clocks_first_show_it_or_later() {
        let names =
            ["Europe/Berlin", "America/New_York", "America/St_Johns", "America/Sao_Paulo", "America/Nuuk"];
        let more =
            ["Australia/Lord_Howe", "Africa/Casablanca", "Asia/Gaza", "Antarctica/Troll", "America/Havana"];
        for name in names.into_iter().chain(more) {
            let zone = zone(name);
            let from = Timestamp::from_second(0).unwrap();
            let changes =
                zone.0.following(from).take_while(|change| change.timestamp().as_second() < 2_145_000_000);
            for change in changes {
                let change = change.timestamp().as_second();
                let wall = |secs: i64| zone.0.to_datetime(Timestamp::from_second(secs).unwrap());
                let moments = (change - 4 * HOUR..change + 4 * HOUR).step_by(60);
                let walls: Vec<(i64, DateTime)> = moments.map(|secs| (secs, wall(secs))).collect();
                let (start, end) = (walls[0].1, walls[walls.len() - 1].1);
                for date in [start.date(), end.date()] {
                    for minutes in (0..MINUTES_OF_DAY).step_by(5) {
                        let time = date.at((minutes / 60) as i8, (minutes % 60) as i8, 0, 0);
                        if time <= start || time > end {
                            continue;
                        }
                        let first = walls.iter().find(|(_, wall)| *wall >= time).unwrap().0;
                        assert_eq!(zone.first(date, minutes), Some(first), "{time} in {name}");
                    }
                }
            }
        }
    }

    /// Ticks at these times, and returns those at which a dump was due.
    fn run(due: &mut DumpScheduler, looks: impl IntoIterator<Item = i64>) -> Vec<i64> {
        looks.into_iter().filter(|now| due.tick(*now)).collect()
    }

    fn minutes(from: i64, to: i64) -> impl Iterator<Item = i64> {
        (from..to).step_by(60)
    }

    #[test]
    fn each_day_has_one_dump() {
        for name in [
            "Europe/Berlin",
            "America/New_York",
            "Asia/Kathmandu",
            "Pacific/Apia",
            "Australia/Lord_Howe",
            "UTC",
        ] {
            for text in ["05:00", "02:30"] {
                let zone = zone(name);
                let (from, to) = (at("2010-01-01T00:00", &zone), at("2022-01-01T00:00", &zone));
                let mut due = DumpScheduler::new(schedule(text), zone.clone(), from, Some(from));
                let fired = run(&mut due, (from..to).step_by(3600));
                let days: Vec<Date> = fired.iter().map(|at| zone.date(*at)).collect();
                let skipped = "2011-12-30".parse().unwrap();
                let all = zone.date(from).series(1.day()).take(4383);
                let all: Vec<Date> = all.filter(|day| name != "Pacific/Apia" || *day != skipped).collect();
                assert_eq!(days, all, "{text} in {name}");
            }
        }
    }

    #[test]
    fn what_was_missed_is_made_up_for_once() {
        let zone = zone("Europe/Berlin");
        let at = |wall| at(wall, &zone);
        let new = |last| DumpScheduler::new(schedule("05:00"), zone.clone(), at("2026-07-10T09:00"), last);
        let day = || minutes(at("2026-07-10T09:00"), at("2026-07-11T09:00"));
        let tomorrow = at("2026-07-11T05:00");
        // Down for four days.
        let mut due = new(Some(at("2026-07-06T05:00")));
        assert_eq!(due.next(at("2026-07-10T09:00")), Some(at("2026-07-10T09:00")));
        assert_eq!(run(&mut due, day()), [at("2026-07-10T09:00"), tomorrow]);
        // Down for an hour.
        assert_eq!(run(&mut new(Some(at("2026-07-10T05:00"))), day()), [tomorrow]);
        assert_eq!(run(&mut new(Some(at("2026-07-10T08:00"))), day()), [tomorrow]);
        // Never a dump.
        assert_eq!(run(&mut new(None), day()), [tomorrow]);
        // A dump with a wrong date.
        assert_eq!(run(&mut new(Some(at("2099-01-01T00:00"))), day()), [tomorrow]);
        assert_eq!(new(None).next(at("2026-07-10T09:00")), Some(tomorrow));
        // Asleep for four days.
        let mut due = new(Some(at("2026-07-10T05:00")));
        let looks = [at("2026-07-10T10:00"), at("2026-07-14T10:00"), at("2026-07-14T10:01")];
        assert_eq!(run(&mut due, looks), [at("2026-07-14T10:00")]);
        assert_eq!(due.next(at("2026-07-14T10:01")), Some(at("2026-07-15T05:00")));
        // The clock goes back slightly before the first tick.
        let mut due = new(Some(at("2026-07-06T05:00")));
        assert!(due.tick(at("2026-07-10T09:00") - 1));
    }

    #[test]
    fn a_moment_that_comes_again_is_not_due_again() {
        let zone = zone("Europe/Berlin");
        let at = |wall| at(wall, &zone);
        for back in [10, 60, 3 * HOUR, SECONDS_OF_DAY] {
            for (text, step) in
                [("05:00", 24 * HOUR), ("every 15m", HOUR / 4), ("every 1m", 60), ("05:00,17:30", 0)]
            {
                let (from, turn) = (at("2026-07-09T04:00"), at("2026-07-10T05:00") + 30);
                let mut due = DumpScheduler::new(schedule(text), zone.clone(), from, Some(from));
                let before = run(&mut due, (from..=turn).step_by(30));
                assert_eq!(before.last(), Some(&(turn - 30)));
                let after = run(&mut due, (turn - back..turn + 26 * HOUR).step_by(10));
                assert!(after[0] > turn, "{text}, {back} back: again");
                assert!(step == 0 || after[0] == turn - 30 + step, "{text}, {back} back: missed");
                assert!(step == 0 || after.windows(2).all(|two| two[1] - two[0] == step));
            }
        }
    }

    #[test]
    fn a_date_that_comes_again_after_a_restart_is_not_due_again() {
        let zone = zone("Europe/Berlin");
        let at = |wall| at(wall, &zone);
        let (now, last) = (at("2026-07-09T09:00"), at("2026-07-10T05:00") + 7);
        let mut due = DumpScheduler::new(schedule("05:00"), zone.clone(), now, Some(last));
        assert_eq!(run(&mut due, minutes(now, now + 2 * SECONDS_OF_DAY)), [at("2026-07-11T05:00")]);
    }

    #[test]
    fn a_clock_that_was_far_ahead_stops_nothing() {
        let zone = zone("Europe/Berlin");
        let at = |wall| at(wall, &zone);
        for text in ["05:00", "every 15m"] {
            let now = at("2026-07-10T05:00") + 30;
            let mut due = DumpScheduler::new(schedule(text), zone.clone(), now - 60, Some(now - 60));
            let far = at("2099-03-04T12:34");
            assert_eq!(run(&mut due, [now, far, far + 30, far + 60]), [now, far]);
            // Back, and a little farther: today's dump is not due again, and the next one is.
            let next = schedule(text).next(now, &zone).unwrap();
            assert_eq!(run(&mut due, (now - 60..next + 60).step_by(30)), [next]);
            // Forward and back again: the dump there was due already.
            assert_eq!(run(&mut due, [far, next + 120]).len(), 1);
        }
        // Five days ahead and back: the dumps that were due then are due again.
        let from = at("2026-07-10T12:00");
        let mut due = DumpScheduler::new(schedule("05:00"), zone.clone(), from, Some(from));
        assert_eq!(run(&mut due, minutes(from, from + 5 * SECONDS_OF_DAY)).len(), 5);
        let back = run(&mut due, minutes(from, from + 5 * SECONDS_OF_DAY));
        assert!(back[0] <= at("2026-07-12T05:00") && back.len() >= 4, "{back:?}");
    }

    #[test]
    fn hours_ahead_and_back_miss_no_more_than_one() {
        let zone = zone("UTC");
        let now = utc("2026-07-10T10:00:00Z");
        for ahead in (1..200).step_by(3) {
            for text in ["05:00", "every 2h", "every 15m"] {
                let mut due = DumpScheduler::new(schedule(text), zone.clone(), now, Some(now));
                run(&mut due, [now + 60, now + ahead * HOUR, now + ahead * HOUR + 60]);
                let first = run(&mut due, minutes(now + 120, now + 3 * SECONDS_OF_DAY))[0];
                let schedule = schedule(text);
                let one = schedule.next(now + 120, &zone).unwrap();
                assert!(first <= schedule.next(one, &zone).unwrap(), "{text}, {ahead} hours");
            }
        }
    }

    #[test]
    fn a_clock_that_steps_forward_makes_one_due() {
        let zone = zone("Europe/Berlin");
        let now = at("2026-07-10T10:00", &zone);
        for step in [60, HOUR, SECONDS_OF_DAY, 40 * SECONDS_OF_DAY, 70 * 365 * SECONDS_OF_DAY] {
            let mut due = DumpScheduler::new(schedule("every 15m"), zone.clone(), now, Some(now));
            assert_eq!(run(&mut due, [now, now + step, now + step + 1]).len(), usize::from(step > 60));
        }
        let mut due = DumpScheduler::new(DumpSchedule::Off, zone, now, Some(0));
        assert_eq!(run(&mut due, [now, now + SECONDS_OF_DAY]), [0; 0]);
        assert_eq!(due.next(now), None);
    }

    #[test]
    fn no_clock_is_too_wrong() {
        for name in ["Europe/Berlin", "Pacific/Apia", "UTC"] {
            for text in ["05:00", "every 1m", "off"] {
                for now in [i64::MIN, EARLIEST, 0, Timestamp::MAX.as_second(), i64::MAX] {
                    let mut due = DumpScheduler::new(schedule(text), zone(name), now, Some(0));
                    run(
                        &mut due,
                        [i64::MAX, 0, i64::MIN, i64::MAX, utc("9999-12-30T21:59:59Z"), 1, EARLIEST],
                    );
                }
            }
        }
    }
}
