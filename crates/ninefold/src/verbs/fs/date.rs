//! Parses dates and selects dumps by them.
//!
//! In: words like `yesterday` or `2026-11-21 17:30`, the current time and time zone, and the existing dumps. Out: a
//! dump, or an error. Nothing here reads a clock.
//!
//! Always holds: the name of a dump selects exactly that dump. A date or a time selects the newest dump up to it. Of
//! two dumps the newer one is the one created later, whatever the clock showed: dates are only names.

use std::fmt;

use jiff::civil::{self, DateTime};
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp, ToSpan};

/// Name of a dump: its date, and its number among the dumps of that day, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Day {
    pub date: civil::Date,
    pub number: u32,
}

/// An existing dump.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dump {
    pub day: Day,
    /// Seconds since 1970; `None` if unknown.
    pub time: Option<i64>,
}

impl Day {
    /// Parses `2026/1121` or `2026/11211`.
    pub fn parse(name: &str) -> Option<Self> {
        let (year, rest) = name.trim_end_matches('/').split_once('/')?;
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        let (day, number) = rest.split_at_checked(4)?;
        if year.len() != 4 || !digits(year) || !digits(rest) || number.starts_with('0') {
            return None;
        }
        let date = civil::Date::new(year.parse().ok()?, day[..2].parse().ok()?, day[2..].parse().ok()?);
        let number = if number.is_empty() { 0 } else { number.parse().ok()? };
        Some(Self { date: date.ok()?, number })
    }
}

impl fmt::Display for Day {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { date, number } = self;
        write!(f, "{:04}/{:02}{:02}", date.year(), date.month(), date.day())?;
        if *number > 0 { write!(f, "{number}") } else { Ok(()) }
    }
}

/// A parsed date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The dump with this name.
    Named(Day),
    /// The newest dump up to the end of this date.
    Until(civil::Date),
    /// The newest dump up to this time, seconds since 1970.
    At(i64),
    /// The newest dump.
    Latest,
}

/// The accepted forms of a date.
pub const FORMS: &str = "2026/1121 or 2026/11211 (a dump), 2026-11-21, '2026-11-21 17:30', 17:30, today, \
                         yesterday, '3 days ago', '2 hours ago', latest";

impl When {
    /// Parses a date relative to `now` in `zone`.
    ///
    /// # Errors
    /// The words are not a date; the text lists the accepted forms.
    pub fn parse(words: &str, now: Timestamp, zone: &TimeZone) -> Result<Self, String> {
        let text = words.trim();
        let today = zone.to_datetime(now).date();
        let named = |day: &str| match day {
            "today" => Some(today),
            "yesterday" => Some(today.saturating_sub(1.day())),
            day => date(day),
        };
        if let Some(day) = Day::parse(text) {
            return Ok(Self::Named(day));
        }
        let until = |date| Ok(Self::Until(date));
        if text == "latest" {
            return Ok(Self::Latest);
        }
        let wrong = || format!("`{words}` is no date: write {FORMS}");
        if let Some(ago) = text.strip_suffix("ago") {
            return Self::ago(ago, now, today).ok_or_else(wrong);
        }
        if let Ok(time) = text.parse::<Timestamp>() {
            return Ok(Self::At(time.as_second()));
        }
        if let Some(date) = named(text) {
            return until(date);
        }
        let (day, time) = match text.split_once([' ', 'T']) {
            Some((day, time)) => (named(day).ok_or_else(wrong)?, time.trim()),
            None => (today, text),
        };
        Self::clock(day, time, zone).ok_or_else(wrong)
    }

    /// Parses `3 days` or `an hour`.
    fn ago(text: &str, now: Timestamp, today: civil::Date) -> Option<Self> {
        let (count, unit) = text.trim().split_once(char::is_whitespace)?;
        let count: i64 = match count {
            "a" | "an" | "one" => 1,
            count => count.parse::<u32>().ok()?.into(),
        };
        let days = |span: Result<Span, jiff::Error>| {
            Some(Self::Until(today.checked_sub(span.ok()?).unwrap_or(civil::Date::MIN)))
        };
        let seconds = |each: i64| Some(Self::At(now.as_second().saturating_sub(count * each)));
        match unit.trim().trim_end_matches('s') {
            "minute" | "min" => seconds(60),
            "hour" => seconds(3600),
            "day" => days(Span::new().try_days(count)),
            "week" => days(Span::new().try_weeks(count)),
            "month" => days(Span::new().try_months(count)),
            "year" => days(Span::new().try_years(count)),
            _ => None,
        }
    }

    /// Parses a time of day. `17:30` stands for the end of that minute. If clocks show a time twice, it is the later
    /// one.
    fn clock(date: civil::Date, text: &str, zone: &TimeZone) -> Option<Self> {
        let parts: Vec<&str> = text.split(':').collect();
        let number = |text: &str| match text.len() {
            1 | 2 => text.parse::<u8>().ok().and_then(|n| i8::try_from(n).ok()),
            _ => None,
        };
        let (hour, minute, second) = match *parts {
            [hour, minute] => (number(hour)?, number(minute)?, 59),
            [hour, minute, second] => (number(hour)?, number(minute)?, number(second)?),
            _ => return None,
        };
        let wall = DateTime::from_parts(date, civil::Time::new(hour, minute, second, 0).ok()?);
        Some(Self::At(zone.to_ambiguous_timestamp(wall).later().ok()?.as_second()))
    }

    /// Selects a dump from `all`, which is in the order of creation.
    ///
    /// # Errors
    /// There is no such dump; the text names the nearest ones.
    pub fn of(self, all: &[Dump]) -> Result<Dump, String> {
        let (Some(first), Some(last)) = (all.first(), all.last()) else {
            return Err("there is no dump yet: `ninefold fs dump` makes one".into());
        };
        let found = match self {
            Self::Latest => Some(last),
            Self::Until(date) => all.iter().rfind(|dump| dump.day.date <= date),
            Self::Named(day) => all.iter().find(|dump| dump.day == day),
            Self::At(time) => {
                if all.iter().any(|dump| dump.time.is_none()) {
                    let why = "nothing says at which time of a day dumps were made";
                    return Err(format!("{why}: its console would; name a day, or the dump"));
                }
                all.iter().rfind(|dump| dump.time.is_some_and(|at| at <= time))
            }
        };
        found.copied().ok_or_else(|| match self {
            Self::Named(day) => {
                let before = all.iter().map(|dump| dump.day).filter(|other| *other < day).max();
                let after = all.iter().map(|dump| dump.day).filter(|other| *other > day).min();
                let near: Vec<String> = before.into_iter().chain(after).map(|day| day.to_string()).collect();
                format!("there is no dump {day}; the nearest: {}", near.join(", "))
            }
            _ => format!("there is no dump that old; the first one is {}", first.day),
        })
    }
}

/// Returns whether words look like a date, valid or not, rather than a file.
pub fn is_date(words: &str) -> bool {
    let digits = |text: &str, n| text.len() >= n && text.bytes().take(n).all(|byte| byte.is_ascii_digit());
    let begins =
        digits(words, 4) && matches!(words.as_bytes().get(4), Some(b'-' | b'/')) && digits(&words[5..], 2);
    begins
        || words.trim_end().ends_with(" ago")
        || When::parse(words, Timestamp::UNIX_EPOCH, &TimeZone::UTC).is_ok()
}

/// Parses `2026-11-21`, or `20261121` as in yesterday(1) of Plan 9.
fn date(text: &str) -> Option<civil::Date> {
    let is_plain = text.len() == 8 && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_dashed = text.len() == 10 && text.as_bytes()[4] == b'-';
    (is_plain || is_dashed).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zone(name: &str) -> TimeZone {
        TimeZone::get(name).unwrap()
    }

    fn now() -> Timestamp {
        "2026-11-23T05:30:00Z".parse().unwrap()
    }

    fn in_berlin(words: &str) -> Result<When, String> {
        When::parse(words, now(), &zone("Europe/Berlin"))
    }

    fn until(text: &str) -> When {
        When::Until(text.parse().unwrap())
    }

    fn at(text: &str) -> When {
        When::At(text.parse::<Timestamp>().unwrap().as_second())
    }

    fn dumps(names: &[&str]) -> Vec<Dump> {
        let of = |name: &&str| Dump { day: Day::parse(name).unwrap(), time: None };
        names.iter().map(of).collect()
    }

    #[test]
    fn dates_are_what_people_write() {
        for (words, when) in [
            ("latest", When::Latest),
            ("2026-11-21", until("2026-11-21")),
            ("20261121", until("2026-11-21")),
            ("today", until("2026-11-23")),
            (" yesterday ", until("2026-11-22")),
            ("3 days ago", until("2026-11-20")),
            ("a week ago", until("2026-11-16")),
            ("1 month ago", until("2026-10-23")),
            ("9 months ago", until("2026-02-23")),
            ("2 years ago", until("2024-11-23")),
            ("2 hours ago", at("2026-11-23T03:30:00Z")),
            ("90 min ago", at("2026-11-23T04:00:00Z")),
            ("2026-11-21 17:30", at("2026-11-21T16:30:59Z")),
            ("2026-11-21T17:30:05", at("2026-11-21T16:30:05Z")),
            ("2026-11-21T17:30:05Z", at("2026-11-21T17:30:05Z")),
            ("yesterday 17:30", at("2026-11-22T16:30:59Z")),
            ("5:00", at("2026-11-23T04:00:59Z")),
            // Clocks show the first time twice, and the later one counts. They never show the second one: it is after
            // the gap.
            ("2026-10-25 02:30", at("2026-10-25T01:30:59Z")),
            ("2026-03-29 02:30", at("2026-03-29T01:30:59Z")),
        ] {
            assert_eq!(in_berlin(words), Ok(when), "{words}");
            assert!(is_date(words), "{words}");
        }
        let named = Day { date: "2026-11-21".parse().unwrap(), number: 12 };
        assert_eq!(in_berlin("2026/112112"), Ok(When::Named(named)));
        for wrong in [
            "",
            "ago",
            "days ago",
            "3 fish ago",
            "-3 days ago",
            "2026-13-01",
            "2026-11-21 25:00",
            "17:3x",
            "1:2:3:4",
            "2026/1121x",
            "2026/11210",
            "2026/0230",
            "26/1121",
            "/archive/a",
            "99999999999 days ago",
            "2026-11-2é",
            "２０２６-11-21",
            "5:60",
        ] {
            let error = in_berlin(wrong).unwrap_err();
            assert!(error.contains("is no date: write 2026/1121"), "{error}");
        }
        for file in ["/archive/a", "a.txt", "yesterdays", "2026", "notes/2026-11-21", "ago"] {
            assert!(!is_date(file), "{file}");
        }
        // A date with a mistake does not count as a file.
        assert!(is_date("2026-13-01") && is_date("2026/1321") && is_date("3 fish ago"));
    }

    #[test]
    fn nothing_is_too_long_ago() {
        let all = dumps(&["2026/1121"]);
        for words in ["2026 years ago", "9000 years ago"] {
            assert_eq!(in_berlin(words).unwrap().of(&all).unwrap_err(), OLD, "{words}");
        }
        for words in ["4294967295 years ago", "20000 years ago"] {
            assert!(in_berlin(words).unwrap_err().contains("is no date"), "{words}");
        }
        assert_eq!(in_berlin("4294967295 minutes ago"), Ok(When::At(now().as_second() - 4_294_967_295 * 60)));
        assert_eq!(in_berlin("9998-12-31").unwrap().of(&all).unwrap(), all[0]);
    }

    const OLD: &str = "there is no dump that old; the first one is 2026/1121";

    #[test]
    fn the_zone_says_which_day_it_is() {
        let late: Timestamp = "2026-11-22T23:30:00Z".parse().unwrap();
        let today = |name| When::parse("today", late, &zone(name));
        assert_eq!(today("UTC"), Ok(until("2026-11-22")));
        assert_eq!(today("Europe/Berlin"), Ok(until("2026-11-23")));
        assert_eq!(today("America/New_York"), Ok(until("2026-11-22")));
    }

    #[test]
    fn a_date_is_the_newest_dump_up_to_it() {
        let all = dumps(&["2025/1231", "2026/1119", "2026/1121", "2026/11211", "2026/11212", "2026/1122"]);
        let of = |words: &str| in_berlin(words).unwrap().of(&all).map(|dump| dump.day.to_string());
        for (words, name) in [
            ("2026-11-21", "2026/11212"),
            ("2026/1121", "2026/1121"),
            ("2026/11211/", "2026/11211"),
            ("3 days ago", "2026/1119"),
            ("a month ago", "2025/1231"),
            ("latest", "2026/1122"),
            ("today", "2026/1122"),
        ] {
            assert_eq!(of(words).as_deref(), Ok(name), "{words}");
        }
        let said = of("2026/1120").unwrap_err();
        assert_eq!(said, "there is no dump 2026/1120; the nearest: 2026/1119, 2026/1121");
        assert_eq!(of("2020/0101").unwrap_err(), "there is no dump 2020/0101; the nearest: 2025/1231");
        assert_eq!(
            of("2026/11213").unwrap_err(),
            "there is no dump 2026/11213; the nearest: 2026/11212, 2026/1122"
        );
        assert!(of("2025-12-30").unwrap_err().ends_with("the first one is 2025/1231"));
        assert!(of("17:30").unwrap_err().contains("nothing says at which time"));
        assert!(When::Latest.of(&[]).unwrap_err().contains("no dump yet"));
    }

    #[test]
    fn the_order_of_dumps_is_the_one_in_which_they_were_made() {
        let all = dumps(&["2026/1120", "2028/1121", "2026/1121", "2026/1122"]);
        let of = |words: &str| in_berlin(words).unwrap().of(&all).map(|dump| dump.day.to_string());
        for (words, name) in [
            ("latest", "2026/1122"),
            ("yesterday", "2026/1122"),
            ("2026-11-20", "2026/1120"),
            ("2028/1121", "2028/1121"),
            ("2028-11-21", "2026/1122"),
        ] {
            assert_eq!(of(words).as_deref(), Ok(name), "{words}");
        }
        let said = of("2027/0101").unwrap_err();
        assert_eq!(said, "there is no dump 2027/0101; the nearest: 2026/1122, 2028/1121");
        // One dump was made with the clock set back: it is the newest, with an old name.
        let all = dumps(&["2026/1121", "2026/1122", "2019/0101"]);
        let of = |words: &str| in_berlin(words).unwrap().of(&all).map(|dump| dump.day.to_string());
        assert_eq!(of("latest").as_deref(), Ok("2019/0101"));
        assert_eq!(of("2026/1122").as_deref(), Ok("2026/1122"));
    }

    #[test]
    fn a_moment_goes_by_the_times_of_dumps() {
        let mut all = dumps(&["2026/1121", "2026/11211", "2026/1122"]);
        let times = ["2026-11-21T04:00:00Z", "2026-11-21T16:30:02Z", "2026-11-22T04:00:00Z"];
        for (dump, time) in all.iter_mut().zip(times) {
            dump.time = Some(time.parse::<Timestamp>().unwrap().as_second());
        }
        let of = |words: &str| in_berlin(words).unwrap().of(&all).map(|dump| dump.day.to_string());
        assert_eq!(of("2026-11-21 17:30").as_deref(), Ok("2026/11211"));
        assert_eq!(of("2026-11-21 17:30:01").as_deref(), Ok("2026/1121"));
        assert_eq!(of("2026-11-22 04:59").as_deref(), Ok("2026/11211"));
        assert!(of("2026-11-21 04:30").is_err());
    }
}
