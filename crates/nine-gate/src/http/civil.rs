//! Times as HTTP and people write them, in UTC.
//!
//! In: seconds since 1970, negative before. Out: fields and texts, and back. Pure.
//!
//! Always holds: a text gives exactly the second it was made from. A time outside the years 0 to 9999 has no text.

/// A second of the calendar.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CivilTime {
    /// 0 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    pub hour: u8,
    pub minute: u8,
    pub second: u8,
    /// From Monday, 0.
    weekday: u8,
}

const DAY: i64 = 86_400;
const WEEK: [&str; 7] = ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"];
const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// Days from 0000-03-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_468;
/// Days of 400 years.
const ERA_DAYS: i64 = 146_097;

impl CivilTime {
    /// `None`: outside the years 0 to 9999.
    pub(super) fn of(seconds: i64) -> Option<Self> {
        let (days, second) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        // With years that start in March the leap day is at the end (Hinnant, "chrono-Compatible Low-Level Date
        // Algorithms").
        let days = days + EPOCH_DAYS;
        let (era, of_era) = (days.div_euclid(ERA_DAYS), days.rem_euclid(ERA_DAYS));
        let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / (ERA_DAYS - 1)) / 365;
        let of_year = of_era - (365 * year + year / 4 - year / 100);
        let month = (5 * of_year + 2) / 153;
        let day = of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year =
            u16::try_from(year + era * 400 + i64::from(month <= 2)).ok().filter(|year| *year <= 9999)?;
        // 0000-03-01 was a Wednesday.
        let weekday = (days + 2).rem_euclid(7) as u8;
        let (hour, minute) = (second / 3600, second / 60 % 60);
        let [month, day, hour, minute, second] = [month, day, hour, minute, second % 60].map(|n| n as u8);
        Some(Self { year, month, day, hour, minute, second, weekday })
    }

    /// `Sun, 06 Nov 1994 08:49:37 GMT` (RFC 9110, 5.6.7).
    pub(super) fn http(&self) -> String {
        let Self { year, day, hour, minute, second, .. } = self;
        let (weekday, month) = (WEEK[usize::from(self.weekday)], self.month_name());
        format!("{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }

    /// `Nov`.
    pub(super) fn month_name(&self) -> &'static str {
        MONTHS[usize::from(self.month) - 1]
    }
}

/// Parses a time in any of HTTP's three forms. Times before 1970 are accepted only in the current form.
pub(super) fn parse_http(text: &str) -> Option<i64> {
    if let Some(seconds) = parse_fixed(text)
        && CivilTime::of(seconds).is_some_and(|time| time.http() == text)
    {
        return Some(seconds);
    }
    let time = httpdate::parse_http_date(text).ok()?;
    i64::try_from(time.duration_since(std::time::SystemTime::UNIX_EPOCH).ok()?.as_secs()).ok()
}

/// The seconds of the fields of `Sun, 06 Nov 1994 08:49:37 GMT`, also for a day that does not exist.
fn parse_fixed(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<u16>().ok().map(i64::from);
    let month = text.get(8..11)?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let (day, year) = (number(5, 7)?, number(12, 16)?);
    let (hour, minute, second) = (number(17, 19)?, number(20, 22)?, number(23, 25)?);
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * ERA_DAYS + of_era * 365 + of_era / 4 - of_era / 100 + of_year - EPOCH_DAYS;
    Some(days * DAY + hour * 3600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_second_of_ten_thousand_years_has_its_name_and_no_other_has_one() {
        let first = -62_167_219_200;
        for (seconds, said) in [
            (first, Some("Sat, 01 Jan 0000 00:00:00 GMT")),
            (first - 1, None),
            (-2_000_000_000, Some("Thu, 16 Aug 1906 20:26:40 GMT")),
            (-86_400, Some("Wed, 31 Dec 1969 00:00:00 GMT")),
            (-1, Some("Wed, 31 Dec 1969 23:59:59 GMT")),
            (0, Some("Thu, 01 Jan 1970 00:00:00 GMT")),
            (784_111_777, Some("Sun, 06 Nov 1994 08:49:37 GMT")),
            (951_782_400, Some("Tue, 29 Feb 2000 00:00:00 GMT")),
            (253_402_300_799, Some("Fri, 31 Dec 9999 23:59:59 GMT")),
            (253_402_300_800, None),
            (i64::MIN, None),
            (i64::MAX, None),
        ] {
            let text = CivilTime::of(seconds).map(|time| time.http());
            assert_eq!(text.as_deref(), said, "{seconds}");
            assert_eq!(said.and_then(parse_http), said.map(|_| seconds), "{seconds}");
        }
        for seconds in (first..253_402_300_800).step_by(86_399 * 17) {
            let text = CivilTime::of(seconds).expect("a year of four digits").http();
            assert_eq!(parse_http(&text), Some(seconds), "{text}");
        }
    }

    #[test]
    fn what_names_no_second_is_no_time() {
        for text in [
            "",
            "yesterday",
            "Mon, 06 Nov 1994 08:49:37 GMT",
            "Tue, 31 Feb 1906 20:26:40 GMT",
            "Thu, 16 Aug 1906 24:00:00 GMT",
            "Thu, 16 Aug 1906 20:26:40 UTC",
            "Thu, 16 Aug 1906 20:26:40",
            "T\u{e4}e, 16 Aug 1906 20:26:40 GMT",
        ] {
            assert_eq!(parse_http(text), None, "{text}");
        }
        for old in ["Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"] {
            assert_eq!(parse_http(old), Some(784_111_777), "{old}");
        }
    }
}
