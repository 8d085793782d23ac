//! The ratchet: `xtask/language.toml` holds a row of numbers for each crate and document, and none may get worse.
//!
//! In: a [`LanguageReport`] and the text of the file. Out: the numbers that are worse, those that are better, and the
//! text with the better numbers. Always holds: no number in the new text is worse than the same number in the old one,
//! so that slack does not add up, and a goal that is met is not a target to creep up to.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::goals::{LanguageMeasure, MeasureUnit};
use super::report::{LanguageReport, MeasuredRow, MeasuredValue};

/// The content of `xtask/language.toml`.
#[derive(Debug, Default, PartialEq)]
pub struct LanguageRatchet {
    crates: RatchetTable,
    documents: RatchetTable,
    /// Lines that cannot be read, such as the marks of a merge conflict.
    pub unread: Vec<usize>,
}

/// Rows by name.
type RatchetTable = BTreeMap<String, RatchetRow>;

/// Numbers by measure, and the line of the row.
#[derive(Debug, Default, PartialEq)]
struct RatchetRow {
    line: usize,
    numbers: BTreeMap<String, f64>,
}

/// A number that is worse than the file allows.
pub struct WorseNumber<'a, 'b> {
    pub row: &'b str,
    pub value: &'b MeasuredValue<'a>,
    /// The number in the file; none for a row that is not there.
    pub allowed: Option<f64>,
    pub line: usize,
}

/// How the measures compare with the file.
#[derive(Default)]
pub struct RatchetComparison<'a, 'b> {
    pub worse: Vec<WorseNumber<'a, 'b>>,
    /// Rows with a number that is better than the file says, or that is not there.
    pub better: Vec<&'b str>,
    /// Rows of crates and documents that are gone.
    pub gone: Vec<String>,
}

impl LanguageRatchet {
    /// Reads the file. Of two rows of one name, as a merge may leave them, the better numbers count.
    pub fn parse(text: &str) -> LanguageRatchet {
        let mut ratchet = LanguageRatchet::default();
        let mut section = None;
        let mut columns: Vec<String> = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            match line {
                "" => continue,
                _ if line.starts_with('#') => continue,
                "[crates]" | "[documents]" => {
                    section = Some(line == "[crates]");
                    columns.clear();
                    continue;
                }
                _ => {}
            }
            let row = split_row(line).zip(section);
            match row {
                Some(((name, values), _)) if name == "columns" => columns = values,
                Some(((name, values), is_crates)) if values.len() == columns.len() => {
                    let table = if is_crates { &mut ratchet.crates } else { &mut ratchet.documents };
                    let measures = measures(is_crates);
                    let row = table
                        .entry(name)
                        .or_insert_with(|| RatchetRow { line: index + 1, ..RatchetRow::default() });
                    for (column, value) in columns.iter().zip(values) {
                        let measure = measures.iter().find(|measure| measure.name == column);
                        if let Some((measure, number)) = measure.zip(value.parse::<f64>().ok()) {
                            row.lower(measure, number);
                        }
                    }
                }
                _ => ratchet.unread.push(index + 1),
            }
        }
        ratchet
    }

    /// Compares the measures with the file.
    pub fn compare<'a, 'b>(&self, report: &'b LanguageReport<'a>) -> RatchetComparison<'a, 'b> {
        let mut comparison = RatchetComparison::default();
        for (table, rows) in [(&self.crates, &report.crates), (&self.documents, &report.documents)] {
            compare_rows(table, rows, &mut comparison);
            let is_there = |name: &String| rows.iter().any(|row| row.name == *name);
            comparison.gone.extend(table.keys().filter(|name| !is_there(name)).cloned());
        }
        comparison
    }

    /// The text of the file with the numbers that are better now, with new rows, and without rows that are gone.
    pub fn blessed(&self, report: &LanguageReport) -> String {
        let mut text = String::from(HEAD);
        write_table(&mut text, "crates", &self.crates, &report.crates);
        write_table(&mut text, "documents", &self.documents, &report.documents);
        text
    }
}

impl RatchetRow {
    /// Takes a number over unless the row has a better one.
    fn lower(&mut self, measure: &LanguageMeasure, number: f64) {
        let old = self.numbers.entry(measure.name.to_string()).or_insert(number);
        if measure.goal.is_better(number, *old) {
            *old = number;
        }
    }
}

fn measures(is_crates: bool) -> &'static [LanguageMeasure] {
    if is_crates { super::goals::CRATE_MEASURES } else { super::goals::DOCUMENT_MEASURES }
}

/// Splits `name = [a, b]` or `"name" = ["a", "b"]`.
fn split_row(line: &str) -> Option<(String, Vec<String>)> {
    let (name, list) = line.split_once('=')?;
    let values = list.trim().strip_prefix('[')?.strip_suffix(']')?;
    let bare = |text: &str| text.trim().trim_matches('"').to_string();
    Some((bare(name), values.split(',').map(bare).collect()))
}

fn compare_rows<'a, 'b>(
    table: &RatchetTable,
    rows: &'b [MeasuredRow<'a>],
    comparison: &mut RatchetComparison<'a, 'b>,
) {
    for row in rows {
        let known = table.get(&row.name);
        let mut is_better = known.is_none();
        for value in &row.values {
            let allowed = known.and_then(|known| known.numbers.get(value.measure.name)).copied();
            if is_worse(value, allowed) {
                let line = known.map_or(1, |known| known.line);
                comparison.worse.push(WorseNumber { row: &row.name, value, allowed, line });
            }
            is_better |= allowed.is_none_or(|allowed| value.measure.goal.is_better(value.number, allowed));
        }
        if is_better {
            comparison.better.push(&row.name);
        }
    }
}

/// Whether a value is worse than the file allows. A value that meets its goal never is.
fn is_worse(value: &MeasuredValue, allowed: Option<f64>) -> bool {
    let measure = value.measure;
    if measure.goal.distance(value.ratio) == 0.0 {
        return false;
    }
    let Some(allowed) = allowed else { return value.number != 0.0 };
    let slack = if let MeasureUnit::Ratio { slack } = measure.unit { slack } else { 0.0 };
    let is_count_of_part = matches!(measure.unit, MeasureUnit::CountOfShare | MeasureUnit::CountOfRate);
    let distance = |number: f64| if is_count_of_part { number } else { measure.goal.distance(number) };
    distance(value.number) > distance(allowed) + slack + ROUNDING
}

fn write_table(text: &mut String, section: &str, table: &RatchetTable, rows: &[MeasuredRow]) {
    let measures = measures(section == "crates");
    let is_quoted = rows.iter().any(|row| row.name.contains('.'));
    let spelled = |name: &str| if is_quoted { format!("\"{name}\"") } else { name.to_string() };
    let names: Vec<String> = rows.iter().map(|row| spelled(&row.name)).collect();
    let width = names.iter().map(String::len).max().unwrap_or(0).max("columns".len());
    let columns: Vec<String> = measures.iter().map(|measure| format!("\"{}\"", measure.name)).collect();
    let _ = writeln!(text, "\n[{section}]\n{:width$} = [{}]", "columns", columns.join(", "));
    for (row, name) in rows.iter().zip(names) {
        let mut blessed = RatchetRow::default();
        for value in &row.values {
            let known = table.get(&row.name).and_then(|known| known.numbers.get(value.measure.name));
            blessed.lower(value.measure, known.copied().unwrap_or(value.number));
            blessed.lower(value.measure, value.number);
        }
        let numbers = measures.iter().zip(&columns).map(|(measure, column)| {
            let number = blessed.numbers[measure.name];
            let decimals = usize::from(matches!(measure.unit, MeasureUnit::Ratio { .. }));
            format!("{number:>width$.decimals$}", width = column.len())
        });
        let _ = writeln!(text, "{name:width$} = [{}]", numbers.collect::<Vec<String>>().join(", "));
    }
}

/// Half of the last decimal of the file.
const ROUNDING: f64 = 0.05;

const HEAD: &str = "\
# The language of each crate and document: `cargo xtask tidy` fails when a number gets worse and misses its goal.
#
# `cargo xtask language` shows the numbers beside the goals, `cargo xtask language NAME` shows the places behind them,
# and `cargo xtask language --bless` writes the numbers that have become better. To raise a number, edit it here and
# give the reason in the commit. `--bless` also adds rows that are missing, removes those that are gone, and resolves a
# merge conflict in this file: of two rows of one name the better numbers stay.
#
# Crates: numbers of places, but what-who is per 1,000 words of comments, what-first a percentage of sentences, and
# comments a number of lines on 100 code lines. Documents: mean and p90 are words in a sentence, what-who and you are
# per 1,000 words, coinages is a number of places. A ratio may be worse by 0.3; p90 and comments by 1. `you = 0` stands
# where a document does not speak to its reader.
";

#[cfg(test)]
mod tests {
    use super::super::goals::{CRATE_MEASURES, DOCUMENT_MEASURES};
    use super::super::report::measure;
    use super::*;
    use crate::tidy::{Tree, planted};

    fn tree(comments: &str, types: &str, document: &str) -> Tree {
        let source = format!("{comments}\n{types}\n");
        planted(&[("crates/nine-x/src/lib.rs", source.as_str()), ("docs/x.md", document)])
    }

    fn blessed(tree: &Tree, old: &str) -> String {
        LanguageRatchet::parse(old).blessed(&measure(tree))
    }

    fn worse(tree: &Tree, text: &str) -> Vec<String> {
        let report = measure(tree);
        let found = LanguageRatchet::parse(text).compare(&report);
        found.worse.iter().map(|worse| format!("{} {}", worse.row, worse.value.measure.name)).collect()
    }

    #[test]
    fn every_measure_is_written_and_read_back() {
        let text = blessed(&tree("// What it is.", "struct State;", "What it is."), "");
        let ratchet = LanguageRatchet::parse(&text);
        assert!(ratchet.unread.is_empty());
        assert_eq!(ratchet.crates["nine-x"].numbers.len(), CRATE_MEASURES.len());
        assert_eq!(ratchet.documents["docs/x.md"].numbers.len(), DOCUMENT_MEASURES.len());
        assert_eq!(ratchet.crates["nine-x"].numbers["forbidden"], 1.0);
        assert_eq!(ratchet.crates["nine-x"].numbers["what-who"], 333.3);
    }

    #[test]
    fn a_worse_number_fails_and_an_equal_one_does_not() {
        let before = tree("// What it is now.", "struct A;", "A document.");
        let text = blessed(&before, "");
        assert_eq!(worse(&before, &text), [""; 0]);
        let after =
            tree("// What who is now.", "struct A; struct State; pub struct BigThing;", "A document.");
        let expected = ["one-word", "forbidden", "what-who", "no-docs"].map(|name| format!("nine-x {name}"));
        // Fewer comment lines on code lines do not fail: the file has one line of both.
        assert_eq!(worse(&after, &text), expected);
    }

    #[test]
    fn a_number_that_meets_its_goal_may_get_worse() {
        let words = "word ".repeat(400);
        let before = blessed(&tree(&format!("// {words}"), "", ""), "");
        assert_eq!(worse(&tree(&format!("// {words} what"), "", ""), &before), [""; 0]);
        assert_eq!(worse(&tree(&format!("// {words} what who"), "", ""), &before), ["nine-x what-who"]);
    }

    #[test]
    fn a_ratio_has_slack_that_does_not_add_up() {
        let value = |number| MeasuredValue {
            measure: CRATE_MEASURES.iter().find(|measure| measure.name == "what-who").unwrap(),
            number,
            ratio: number,
            places: Vec::new(),
        };
        assert!(!is_worse(&value(10.3), Some(10.0)));
        assert!(is_worse(&value(10.4), Some(10.0)));
        let old = blessed(&tree("// What a day it is.", "", ""), "");
        let more = tree("// What a day.", "", "");
        assert_eq!(blessed(&more, &old), old);
    }

    #[test]
    fn only_better_numbers_are_blessed_and_rows_come_and_go() {
        let old = "[crates]\ncolumns = [\"one-word\", \"forbidden\"]\nnine-gone = [1, 1]\nnine-x = [1, 3]\n";
        let tree = tree("", "struct State; struct Other;", "");
        let text = blessed(&tree, old);
        let numbers = &LanguageRatchet::parse(&text).crates;
        assert_eq!(numbers.keys().collect::<Vec<_>>(), ["nine-x"]);
        assert_eq!(
            (numbers["nine-x"].numbers["one-word"], numbers["nine-x"].numbers["forbidden"]),
            (1.0, 2.0)
        );
        let report = measure(&tree);
        let ratchet = LanguageRatchet::parse(old);
        let comparison = ratchet.compare(&report);
        assert_eq!(
            (comparison.better, comparison.gone),
            (vec!["nine-x", "docs/x.md"], vec!["nine-gone".to_string()])
        );
    }

    #[test]
    fn a_new_row_must_meet_the_goals() {
        assert_eq!(
            worse(&tree("", "struct State;", "Good."), ""),
            ["one-word", "forbidden"].map(|name| { format!("nine-x {name}") })
        );
    }

    #[test]
    fn of_both_sides_of_a_conflict_the_better_number_counts() {
        let text = "[documents]\ncolumns = [\"mean\", \"you\"]\n<<<<<<< ours\n\"a.md\" = [20.1, 1.0]\n=======\n\
                    \"a.md\" = [19.5, 0.5]\n>>>>>>> theirs\n";
        let ratchet = LanguageRatchet::parse(text);
        assert_eq!(ratchet.unread, [3, 5, 7]);
        let numbers = &ratchet.documents["a.md"].numbers;
        assert_eq!((numbers["mean"], numbers["you"]), (19.5, 1.0));
    }
}
