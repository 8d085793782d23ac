//! The results of an experiment: rows of a table, and the keys of its result line.

use std::fmt::Write as _;
use std::io;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::plot::PlotFigure;
use crate::stats::{median, spread, varied};

/// The figures of one row, in the order of the rounds. A missing contestant has none.
#[derive(Clone, Debug, Default)]
pub struct ReportRow {
    pub what: String,
    pub unit: &'static str,
    pub ours: Vec<f64>,
    pub peer: Vec<f64>,
    pub limit: Vec<f64>,
}

#[derive(Debug, Default)]
pub struct BenchReport {
    /// Conditions of the measurements: peers, placements, sizes.
    pub notes: Vec<String>,
    pub rows: Vec<ReportRow>,
    /// Keys of the result line, in order.
    pub keys: Vec<(&'static str, String)>,
    pub noisy: bool,
    pub figures: Vec<PlotFigure>,
}

/// A turn of a contestant, which returns one figure.
pub type BenchTurn<'a> = Box<dyn FnMut() -> io::Result<f64> + 'a>;

/// A future row: its contestants are ours, the peer and the limit.
pub struct BenchRace<'a> {
    pub what: String,
    pub unit: &'static str,
    pub turns: [Option<BenchTurn<'a>>; 3],
}

/// Runs the contestants of one race in turns, for all rounds. The first turn of each is a warm-up.
pub fn alternate(
    what: impl Into<String>,
    unit: &'static str,
    rounds: usize,
    turns: [Option<BenchTurn<'_>>; 3],
) -> io::Result<ReportRow> {
    let race = BenchRace { what: what.into(), unit, turns };
    Ok(interleave(rounds, Duration::MAX, vec![race])?.remove(0))
}

/// Like [`alternate`], with the turns of all races in every round. So a temporary slowdown of the machine affects all
/// races alike. After `patience` no new round begins, but at least one counts.
pub fn interleave(
    rounds: usize,
    patience: Duration,
    mut races: Vec<BenchRace<'_>>,
) -> io::Result<Vec<ReportRow>> {
    let begun = Instant::now();
    let row =
        |race: &BenchRace<'_>| ReportRow { what: race.what.clone(), unit: race.unit, ..ReportRow::default() };
    let mut rows: Vec<ReportRow> = races.iter().map(row).collect();
    for round in 0..=rounds {
        if round > 1 && begun.elapsed() > patience {
            eprintln!("  {} rounds of {rounds}: more take too long", round - 1);
            break;
        }
        for (row, race) in rows.iter_mut().zip(&mut races) {
            let figures = [&mut row.ours, &mut row.peer, &mut row.limit];
            for (turn, figures) in race.turns.iter_mut().zip(figures) {
                let Some(turn) = turn else { continue };
                let figure = turn().map_err(|error| io::Error::other(format!("{}: {error}", race.what)))?;
                if round > 0 {
                    figures.push(figure);
                }
            }
        }
    }
    rows.iter().for_each(|row| eprintln!("  {}", row.line()));
    Ok(rows)
}

impl ReportRow {
    /// Creates a row with one counted figure.
    pub fn counted(what: impl Into<String>, unit: &'static str, ours: f64, peer: Option<f64>) -> Self {
        let peer = peer.into_iter().collect();
        let row = Self { what: what.into(), unit, ours: vec![ours], peer, ..Self::default() };
        eprintln!("  {}", row.line());
        row
    }

    /// Returns the ratio of ours to the peer.
    pub fn vs_peer(&self) -> Option<f64> {
        ratio(&self.ours, &self.peer)
    }

    /// Returns the ratio of ours to the limit.
    pub fn vs_limit(&self) -> Option<f64> {
        ratio(&self.ours, &self.limit)
    }

    /// Returns whether the peer or the limit varied between rounds.
    pub fn noisy(&self) -> bool {
        varied(&self.peer) || varied(&self.limit)
    }

    fn line(&self) -> String {
        let cells = [&self.ours, &self.peer, &self.limit].map(|figures| match median(figures) {
            Some(middle) => format!("{} ±{:.0}%", figure(middle), spread(figures) * 50.0),
            None => "-".into(),
        });
        let ratios = [self.vs_peer(), self.vs_limit()].map(|r| r.map_or("-".into(), figure));
        format!(
            "{:44} {:6} {:>14} {:>14} {:>14} {:>8} {:>8}",
            self.what, self.unit, cells[0], cells[1], cells[2], ratios[0], ratios[1]
        )
    }
}

impl BenchReport {
    pub fn push(&mut self, row: ReportRow) -> &ReportRow {
        self.noisy |= row.noisy();
        self.rows.push(row);
        &self.rows[self.rows.len() - 1]
    }

    pub fn extend(&mut self, rows: Vec<ReportRow>) {
        for row in rows {
            self.push(row);
        }
    }

    /// Adds a key of the result line; `None` is `na`.
    pub fn key(&mut self, name: &'static str, value: Option<f64>) {
        self.keys.push((name, value.map_or("na".into(), figure)));
    }

    /// Selects exactly these keys, in this order; missing ones are `na`.
    pub fn order(&mut self, names: &[&'static str]) {
        let mut keys = std::mem::take(&mut self.keys);
        for name in names {
            let found = keys.iter().position(|(key, _)| key == name);
            let value = found.map_or("na".into(), |found| keys.swap_remove(found).1);
            self.keys.push((name, value));
        }
    }

    /// Formats the notes and the table.
    pub fn table(&self) -> String {
        let mut text = String::new();
        for note in &self.notes {
            let _ = writeln!(text, "# {note}");
        }
        let _ = writeln!(
            text,
            "{:44} {:6} {:>14} {:>14} {:>14} {:>8} {:>8}",
            "", "", "ours", "peer", "limit", "/peer", "/limit"
        );
        for row in &self.rows {
            let _ = writeln!(text, "{}", row.line());
        }
        text
    }

    /// Formats the line `result NAME key=value ...`.
    pub fn result(&self, name: &str) -> String {
        let keys: String = self.keys.iter().map(|(key, value)| format!(" {key}={value}")).collect();
        format!("result {name}{keys} noisy={}", u8::from(self.noisy))
    }

    /// Formats everything as JSON, with the figures of all rounds.
    pub fn json(&self, name: &str) -> String {
        let row = |row: &ReportRow| {
            json!({
                "what": row.what, "unit": row.unit, "ours": row.ours, "peer": row.peer, "limit": row.limit,
                "vs_peer": row.vs_peer(), "vs_limit": row.vs_limit(),
            })
        };
        let rows: Vec<Value> = self.rows.iter().map(row).collect();
        let keys: serde_json::Map<_, _> =
            self.keys.iter().map(|(key, value)| (key.to_string(), value.clone().into())).collect();
        let all = json!({
            "name": name, "notes": self.notes, "rows": rows, "keys": keys, "noisy": self.noisy,
        });
        format!("{all:#}\n")
    }
}

/// Returns the median of the ratios of each round: turns of one round ran under the same conditions.
fn ratio(ours: &[f64], theirs: &[f64]) -> Option<f64> {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    median(&ratios)
}

/// Formats a value with three significant digits.
fn figure(value: f64) -> String {
    let digits = 2 - value.abs().max(0.01).log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 3) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(ours: &[f64], peer: &[f64], limit: &[f64]) -> ReportRow {
        ReportRow { what: "x".into(), unit: "us", ours: ours.into(), peer: peer.into(), limit: limit.into() }
    }

    #[test]
    fn the_result_line_holds_every_key_and_na_for_what_is_missing() {
        let mut report = BenchReport::default();
        let (with, without) = (row(&[6.0], &[2.0], &[]), row(&[6.0], &[], &[4.0]));
        report.key("a_vs_peer", with.vs_peer());
        report.key("b_vs_peer", without.vs_peer());
        report.key("b_vs_limit", without.vs_limit());
        report.keys.push(("peer", "1.0".into()));
        assert_eq!(
            report.result("rpc"),
            "result rpc a_vs_peer=3.00 b_vs_peer=na b_vs_limit=1.50 peer=1.0 noisy=0"
        );
    }

    #[test]
    fn noise_of_ours_is_ours_and_noise_of_the_others_is_the_machines() {
        let mut report = BenchReport::default();
        report.push(row(&[1.0, 9.0], &[2.0, 2.0], &[3.0, 3.0]));
        assert!(report.result("x").ends_with("noisy=0"));
        report.push(row(&[1.0, 1.0], &[2.0, 2.0], &[3.0, 9.0]));
        assert!(report.result("x").ends_with("noisy=1"));
    }

    #[test]
    fn contestants_take_turns_and_the_first_round_does_not_count() {
        let log = std::cell::RefCell::new(Vec::new());
        let turn = |who: f64| -> Option<BenchTurn<'_>> {
            let log = &log;
            Some(Box::new(move || {
                log.borrow_mut().push(who);
                Ok(who + log.borrow().len() as f64)
            }))
        };
        let row = alternate("x", "us", 2, [turn(0.0), None, turn(100.0)]).unwrap();
        assert_eq!(log.borrow()[..], [0.0, 100.0, 0.0, 100.0, 0.0, 100.0]);
        assert_eq!((row.ours, row.peer, row.limit), (vec![3.0, 5.0], vec![], vec![104.0, 106.0]));
    }

    #[test]
    fn a_machine_that_slows_down_for_all_changes_no_ratio() {
        let row = row(&[30.0, 15.0, 3.0], &[10.0, 5.0, 1.0], &[60.0, 30.0, 6.0]);
        assert_eq!((row.vs_peer(), row.vs_limit()), (Some(3.0), Some(0.5)));
        assert!(row.noisy());
    }

    #[test]
    fn figures_have_three_digits_that_count() {
        let shown = [0.0, 0.1234, 1.234, 12.34, 123.4, 12_345.6].map(figure);
        assert_eq!(shown, ["0.000", "0.123", "1.23", "12.3", "123", "12346"]);
    }

    #[test]
    fn the_json_says_every_round() {
        let mut report = BenchReport::default();
        report.push(row(&[1.0, 2.0], &[], &[]));
        let value: Value = serde_json::from_str(&report.json("rpc")).unwrap();
        assert_eq!(value["rows"][0]["ours"], json!([1.0, 2.0]));
        assert_eq!(value["rows"][0]["vs_peer"], Value::Null);
    }
}
