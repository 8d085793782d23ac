//! The tables of `cargo xtask language`, as text.
//!
//! In: a [`LanguageReport`]. Out: lines for a terminal. Counts stand beside the share or the rate that their goal is
//! about.

use std::fmt::Write;

use super::goals::{CRATE_MEASURES, DOCUMENT_MEASURES, LanguageMeasure, MeasureUnit};
use super::report::{LanguageReport, MeasuredRow, MeasuredValue};

/// Both tables, each with its goals, and the meaning of each column.
pub fn all(report: &LanguageReport) -> String {
    let mut text = String::new();
    write_table(&mut text, CRATE_MEASURES, &report.crates, &report.crate_total);
    text.push('\n');
    write_table(&mut text, DOCUMENT_MEASURES, &report.documents, &report.document_total);
    text.push('\n');
    text.push_str("crates: layout is followed by the numbers of modules x/mod.rs and x.rs with a folder.\n");
    text.push_str(
        "documents: the goal of `you` holds for README.md, CONTRIBUTING.md, docs/start and docs/how-to.\n",
    );
    for (group, measures) in [("crates", CRATE_MEASURES), ("documents", DOCUMENT_MEASURES)] {
        for measure in measures {
            let _ = writeln!(text, "{group:<9} {:<10}  {}", measure.name, measure.meaning);
        }
    }
    text
}

/// The places behind the numbers of one crate or document; none if there is none of that name.
pub fn places(report: &LanguageReport, name: &str) -> Option<String> {
    let row = report.crates.iter().chain(&report.documents).find(|row| row.name == name)?;
    let mut text = String::new();
    for value in &row.values {
        for place in &value.places {
            let _ = writeln!(text, "{}:{}: {}: {}", place.path, place.line, value.measure.name, place.text);
        }
    }
    for value in &row.values {
        let (measure, cell) = (value.measure, cell(row, value));
        let _ = writeln!(
            text,
            "{name}: {}: {cell}, goal {}: {}",
            measure.name,
            measure.goal_text(),
            measure.meaning
        );
    }
    Some(text)
}

fn write_table(text: &mut String, measures: &[LanguageMeasure], rows: &[MeasuredRow], total: &MeasuredRow) {
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut heads = vec![String::new()];
    heads.extend(measures.iter().map(|measure| measure.name.to_string()));
    let mut goals = vec!["goal".to_string()];
    goals.extend(measures.iter().map(LanguageMeasure::goal_text));
    lines.extend([heads, goals]);
    for row in rows.iter().chain([total]) {
        let mut cells = vec![row.name.clone()];
        cells.extend(row.values.iter().map(|value| cell(row, value)));
        lines.push(cells);
    }
    let widths: Vec<usize> = (0..=measures.len())
        .map(|column| lines.iter().map(|cells| cells[column].len()).max().unwrap_or(0))
        .collect();
    for cells in &lines {
        let _ = write!(text, "{:<width$}", cells[0], width = widths[0]);
        for (cell, width) in cells.iter().zip(&widths).skip(1) {
            let _ = write!(text, "  {cell:>width$}");
        }
        text.push('\n');
    }
}

fn cell(row: &MeasuredRow, value: &MeasuredValue) -> String {
    let MeasuredValue { measure, number, ratio, .. } = value;
    match measure.unit {
        MeasureUnit::Count if measure.name == "layout" => {
            format!("{number} {}/{}", row.layouts.0, row.layouts.1)
        }
        MeasureUnit::Count => number.to_string(),
        MeasureUnit::CountOfShare => format!("{number} {:>3}%", ratio.round()),
        MeasureUnit::CountOfRate => format!("{number} {ratio:>4.1}"),
        MeasureUnit::Ratio { .. } => format!("{ratio:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::report::measure;
    use super::*;
    use crate::tidy::planted;

    #[test]
    fn counts_stand_beside_the_share_that_the_goal_is_about() {
        let tree = planted(&[
            ("crates/nine-x/src/lib.rs", "// The mender.\nstruct A;\npub struct BigThing;\n"),
            ("README.md", "You see what it is."),
        ]);
        let report = measure(&tree);
        let text = all(&report);
        let row = text.lines().find(|line| line.starts_with("nine-x")).unwrap();
        let cells: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(cells[..6], ["nine-x", "1", "50%", "0", "0%", "0"]);
        assert!(text.lines().any(|line| line.starts_with("README.md") && line.contains("200.0")), "{text}");
        let places = places(&report, "nine-x").unwrap();
        assert!(
            places.contains("crates/nine-x/src/lib.rs:1: coinages: `mender`: write reconnect task"),
            "{places}"
        );
        assert!(super::places(&report, "nine-y").is_none());
    }
}
