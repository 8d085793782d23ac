//! `cargo xtask language`: measures of names, comments and documents, and the ratchet that keeps them.
//!
//! In: the text of the repository and `xtask/language.toml`. Out: findings for `cargo xtask tidy`, a table on the
//! terminal, or the file with better numbers. The measures are syntax alone, so that all of it takes about a second.

mod changes;
mod goals;
mod lexer;
mod prose;
mod ratchet;
mod report;
mod source;
mod table;
mod words;

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use changes::NewLines;
use ratchet::{LanguageRatchet, WorseNumber};

use crate::tidy::{Finding, Tree};

/// Compares the repository with the ratchet. Returns a finding for each number that is worse, and for each place that
/// counts in it and is new.
pub fn check(root: &Path, tree: &Tree) -> Vec<Finding> {
    let report = report::measure(tree);
    let ratchet = LanguageRatchet::parse(tree.get(FILE));
    let unread = "this line is no row of numbers: repair it, or run `cargo xtask language --bless`";
    let mut found: Vec<Finding> =
        ratchet.unread.iter().map(|line| Finding::new(FILE, *line, unread)).collect();
    let comparison = ratchet.compare(&report);
    let changes = if comparison.worse.is_empty() { None } else { NewLines::since_last_change(root, FILE) };
    for worse in &comparison.worse {
        let new = changes.as_ref().map_or_else(Vec::new, |changes| new_places(worse, changes));
        found.push(Finding::new(FILE, worse.line, worse_text(worse, new.len())));
        found.extend(new.into_iter().take(SHOWN_PLACES_MAX));
    }
    let gone = comparison.gone.iter().map(String::as_str);
    let stale: Vec<&str> = comparison.better.iter().copied().chain(gone).collect();
    if !stale.is_empty() {
        println!("better than {FILE}: {}\nwrite it: cargo xtask language --bless", stale.join(", "));
    }
    found
}

/// Prints the table of all crates and documents, or the places behind the numbers of those that are named.
pub fn show(root: &Path, names: &[&str]) -> ExitCode {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(e) => return failed(&format!("cannot read the repository: {e}")),
    };
    let report = report::measure(&tree);
    if names.is_empty() {
        print!("{}", table::all(&report));
    }
    for name in names {
        match table::places(&report, name) {
            Some(places) => print!("{places}"),
            None => return failed(&format!("no crate or document is named {name}")),
        }
    }
    ExitCode::SUCCESS
}

/// Writes the numbers that are better, new rows, and no rows that are gone.
pub fn bless(root: &Path) -> ExitCode {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(e) => return failed(&format!("cannot read the repository: {e}")),
    };
    let report = report::measure(&tree);
    let ratchet = LanguageRatchet::parse(tree.get(FILE));
    if let Err(e) = fs::write(root.join(FILE), ratchet.blessed(&report)) {
        return failed(&format!("cannot write {FILE}: {e}"));
    }
    let comparison = ratchet.compare(&report);
    println!(
        "{FILE}: {} rows are better or new, {} are gone",
        comparison.better.len(),
        comparison.gone.len()
    );
    for worse in comparison.worse.iter().filter(|worse| worse.allowed.is_some()) {
        println!("still worse: {}", worse_text(worse, 0));
    }
    ExitCode::SUCCESS
}

fn worse_text(worse: &WorseNumber, new_places: usize) -> String {
    let WorseNumber { row, value, allowed, .. } = worse;
    let measure = value.measure;
    let allowed =
        allowed.map_or("a new row must meet the goal".to_string(), |allowed| format!("it was {allowed}"));
    let shown = if new_places > SHOWN_PLACES_MAX {
        format!("; {SHOWN_PLACES_MAX} of {new_places} new places follow")
    } else {
        String::new()
    };
    format!(
        "{row}: {} is {}, {allowed} ({}, goal {}): `cargo xtask language {row}` shows the places{shown}",
        measure.name,
        value.number,
        measure.meaning,
        measure.goal_text(),
    )
}

/// The places that count in a number and stand on new lines.
fn new_places(worse: &WorseNumber, changes: &NewLines) -> Vec<Finding> {
    let new = worse.value.places.iter().filter(|place| changes.contains(place.path, place.line));
    new.map(|place| Finding::new(place.path, place.line, place.text.as_str())).collect()
}

fn failed(why: &str) -> ExitCode {
    eprintln!("language: {why}");
    ExitCode::FAILURE
}

/// The ratchet, by its path from the root of the repository.
const FILE: &str = "xtask/language.toml";

/// The number of new places that are shown with a number.
const SHOWN_PLACES_MAX: usize = 10;
