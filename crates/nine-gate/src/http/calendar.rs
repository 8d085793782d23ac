//! A calendar of dumps, for people.
//!
//! In: names of dumps: `1121` in a year, and `11211` for the second one of that day. Out: a table for each month, in
//! plain HTML. Pure.

use std::collections::BTreeMap;
use std::fmt::{self, Write};

/// Dumps of a day that get a link each. With more, one link leads to a list.
const LINKS: usize = 3;

/// A dump: its day, and its number within the day, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Dump {
    /// 0 to 9999.
    pub year: u16,
    /// 1 to 12.
    pub month: u8,
    /// 1 to 31.
    pub day: u8,
    /// From 0.
    pub number: u32,
}

impl Dump {
    /// Parses a dump from the names of its year and of itself.
    pub fn parse(year: &[u8], name: &[u8]) -> Option<Self> {
        let year = year_of(year)?;
        let digits = |text: &[u8]| text.iter().all(u8::is_ascii_digit);
        if name.len() < 4 || !digits(name) || name.get(4) == Some(&b'0') {
            return None;
        }
        let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u32>().ok();
        let (month, day) = (number(&name[..2])? as u8, number(&name[2..4])? as u8);
        let number = if name.len() == 4 { 0 } else { number(&name[4..])? };
        let is_day = (1..=12).contains(&month) && (1..=days(year, month)).contains(&day);
        is_day.then_some(Self { year, month, day, number })
    }

    /// Parses both names, separated by `/`.
    pub fn named(name: &str) -> Option<Self> {
        let (year, name) = name.split_once('/')?;
        Self::parse(year.as_bytes(), name.as_bytes())
    }

    /// The name within its year: `1121`.
    pub(super) fn name(&self) -> String {
        let Self { month, day, number, .. } = self;
        let number = if *number == 0 { String::new() } else { number.to_string() };
        format!("{month:02}{day:02}{number}")
    }
}

impl fmt::Display for Dump {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04}/{}", self.year, self.name())
    }
}

/// The year of a directory of dumps, by its name.
pub fn year_of(name: &[u8]) -> Option<u16> {
    let is_year = name.len() == 4 && name.iter().all(u8::is_ascii_digit);
    is_year.then(|| std::str::from_utf8(name).ok()?.parse().ok())?
}

/// Writes the months of a year that have dumps. `to`: the path to the year's directory, with a `/` at its end.
pub fn html(year: u16, dumps: &[Dump], to: &str) -> String {
    let mut months: BTreeMap<u8, BTreeMap<u8, Vec<Dump>>> = BTreeMap::new();
    for dump in dumps {
        months.entry(dump.month).or_default().entry(dump.day).or_default().push(*dump);
    }
    let mut page = String::from("<div class=\"months\">\n");
    for (month, by_day) in months.iter_mut().rev() {
        let name = MONTHS[usize::from(*month) - 1];
        // Writing to a string does not fail.
        let _ = write!(page, "<table><caption>{name} {year:04}</caption><thead><tr>");
        for day in WEEK {
            let _ = write!(page, "<th scope=\"col\">{day}</th>");
        }
        page.push_str("</tr></thead><tbody><tr>");
        let first = weekday(year, *month, 1);
        page.push_str(&"<td></td>".repeat(first));
        for day in 1..=days(year, *month) {
            let column = (first + usize::from(day) - 1) % 7;
            if column == 0 && day > 1 {
                page.push_str("</tr><tr>");
            }
            match by_day.get_mut(&day) {
                Some(dumps) => cell(&mut page, dumps, to),
                None => drop(write!(page, "<td>{day}</td>")),
            }
        }
        page.push_str("</tr></tbody></table>\n");
    }
    page + "</div>\n"
}

/// Writes a day with dumps: the first one, and the others.
fn cell(page: &mut String, dumps: &mut [Dump], to: &str) {
    dumps.sort_unstable();
    let Some((first, more)) = dumps.split_first() else { return };
    let _ = write!(page, "<td><a href=\"{to}{}/\">{}</a>", first.name(), first.day);
    if more.len() < LINKS {
        for dump in more {
            let nth = dump.number + 1;
            let label = format!("number {nth} of {:02}-{:02}", dump.month, dump.day);
            let _ = write!(
                page,
                " <a class=\"soft\" aria-label=\"{label}\" href=\"{to}{}/\">{nth}</a>",
                dump.name()
            );
        }
    } else {
        let label = format!("all {} of {:02}-{:02}", dumps.len(), first.month, first.day);
        let (all, more, day) = (first.month, dumps.len() - 1, first.day);
        let _ = write!(
            page,
            " <a class=\"soft\" aria-label=\"{label}\" href=\"{to}?day={all:02}{day:02}\">+{more}</a>"
        );
    }
    page.push_str("</td>");
}

/// The days of a month in the Gregorian calendar.
fn days(year: u16, month: u8) -> u8 {
    match month {
        2 => {
            let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
            28 + u8::from(is_leap)
        }
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// The weekday, Monday is 0 (Sakamoto's algorithm).
fn weekday(year: u16, month: u8, day: u8) -> usize {
    const SHIFTS: [usize; 12] = [0, 3, 2, 5, 0, 3, 5, 1, 4, 6, 2, 4];
    // Every 400 years are whole weeks; adding them avoids a negative year.
    let year = usize::from(year) + 400 - usize::from(month < 3);
    (year + year / 4 - year / 100 + year / 400 + SHIFTS[usize::from(month) - 1] + usize::from(day) + 6) % 7
}

const WEEK: [&str; 7] = ["Mo", "Tu", "We", "Th", "Fr", "Sa", "Su"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_dumps_are_days() {
        let named = |name| Dump::named(name).map(|dump| dump.to_string());
        for name in ["2026/1121", "2026/11211", "0007/0229999", "2024/0229"] {
            let is_there = !name.starts_with("0007");
            assert_eq!(named(name).as_deref(), is_there.then_some(name), "{name}");
        }
        for name in
            ["2026/0229", "2026/1301", "2026/0001", "2026/112", "2026/11210", "26/1121", "2026/11x1", "2026"]
        {
            assert_eq!(named(name), None, "{name}");
        }
        assert_eq!(named("2026/112199999999999"), None);
    }

    #[test]
    fn days_have_their_names() {
        for (year, month, day, name) in [
            (2026, 11, 23, "Mo"),
            (2000, 2, 29, "Tu"),
            (1970, 1, 1, "Th"),
            (2024, 12, 31, "Tu"),
            (0, 1, 1, "Sa"),
        ] {
            assert_eq!(WEEK[weekday(year, month, day)], name, "{year}-{month}-{day}");
        }
    }

    #[test]
    fn each_day_leads_to_its_dumps() {
        let all = ["2026/1121", "2026/1101", "2026/11011", "2026/11012", "2026/0201"];
        let mut all: Vec<Dump> = all.iter().filter_map(|name| Dump::named(name)).collect();
        all.extend((0..96).map(|number| Dump { year: 2026, month: 2, day: 3, number }));
        let page = html(2026, &all, "./2026/");
        for part in [
            "<caption>November 2026</caption>",
            "<a href=\"./2026/1121/\">21</a></td>",
            ">1</a> <a class=\"soft\" aria-label=\"number 2 of 11-01\" href=\"./2026/11011/\">2<",
            "href=\"./2026/?day=0203\">+95</a></td>",
            // The first of November is a Sunday.
            "<tbody><tr><td></td><td></td><td></td><td></td><td></td><td></td><td><a href=\"./2026/1101/\">",
            "<td>30</td></tr></tbody>",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
        assert!(page.find("November") < page.find("February") && !page.contains("March"));
        assert_eq!(html(2026, &[], ""), "<div class=\"months\">\n</div>\n");
    }
}
