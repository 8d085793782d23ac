//! The lines that are new since the ratchet was written, so that a finding names the offence and not all old ones.
//!
//! In: the repository, as git sees it. Out: ranges of lines by file. A file that git does not know is new as a whole.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};

/// New lines by the path of their file.
#[derive(Debug, Default, PartialEq)]
pub struct NewLines {
    ranges: BTreeMap<String, Vec<Range<usize>>>,
    new_files: BTreeSet<String>,
}

impl NewLines {
    /// The lines that are new since the last commit that changed `file`; none outside of a git repository.
    pub fn since_last_change(root: &Path, file: &str) -> Option<NewLines> {
        let last = git(root, &["log", "-1", "--format=%H", "--", file])?;
        let base = if last.trim().is_empty() { "HEAD" } else { last.trim() };
        let options = ["--unified=0", "--no-color", "--no-ext-diff", "--no-prefix"];
        let diff = git(root, &[&["diff"], options.as_slice(), &[base, "--", "*.rs", "*.md"]].concat())?;
        let mut lines = NewLines::parse(&diff);
        let untracked = git(root, &["ls-files", "--others", "--exclude-standard"])?;
        lines.new_files.extend(untracked.lines().map(String::from));
        Some(lines)
    }

    /// Reads a diff without context.
    fn parse(diff: &str) -> NewLines {
        let mut lines = NewLines::default();
        let mut path = "";
        for line in diff.lines() {
            if let Some(name) = line.strip_prefix("+++ ") {
                path = name;
            } else if let Some(range) = line.strip_prefix("@@ ").and_then(added_range) {
                lines.ranges.entry(path.to_string()).or_default().push(range);
            }
        }
        lines
    }

    /// Whether a line is new.
    pub fn contains(&self, path: &str, line: usize) -> bool {
        let is_in_range = |ranges: &Vec<Range<usize>>| ranges.iter().any(|range| range.contains(&line));
        self.new_files.contains(path) || self.ranges.get(path).is_some_and(is_in_range)
    }
}

/// The added lines of `-a,b +c,d @@ ..`.
fn added_range(header: &str) -> Option<Range<usize>> {
    let added = header.split(' ').nth(1)?.strip_prefix('+')?;
    let (start, count) = added.split_once(',').unwrap_or((added, "1"));
    let start: usize = start.parse().ok()?;
    Some(start..start + count.parse::<usize>().ok()?)
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(words).stdin(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_lines_are_new_and_lines_beside_them_are_not() {
        let diff = "diff --git a.rs a.rs\n--- a.rs\n+++ a.rs\n@@ -3 +3,2 @@ fn f() {\n\
                    -old\n+new\n+new\n@@ -9,2 +9,0 @@\n\
                    @@ -20 +18 @@\n--- b.md\n+++ b.md\n@@ -0,0 +1,3 @@\n";
        let lines = NewLines::parse(diff);
        let new: Vec<usize> = (1..25).filter(|line| lines.contains("a.rs", *line)).collect();
        assert_eq!(new, [3, 4, 18]);
        assert!(lines.contains("b.md", 1) && !lines.contains("b.md", 4) && !lines.contains("c.rs", 1));
    }
}
