//! `cargo xtask tidy`: the rules of the project that the compiler does not check.
//!
//! In: the text of the repository. Out: one line per violation, `path:line: what is wrong, what to do`. The rules are
//! plain functions of a `Tree`, so that each has a test that plants a violation and expects a finding.

mod arrows;
mod licences;
mod text;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use crate::language;

/// Checks the repository. Returns true if there are no findings.
pub fn run(root: &Path) -> bool {
    let tree = match Tree::read(root) {
        Ok(tree) => tree,
        Err(e) => {
            eprintln!("tidy: cannot read the repository: {e}");
            return false;
        }
    };
    let mut found = arrows::check(&tree);
    found.extend(text::check(&tree));
    found.extend(licences::check(&tree));
    found.extend(language::check(root, &tree));
    for finding in &found {
        eprintln!("{finding}");
    }
    found.is_empty()
}

/// One violation.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl Finding {
    /// A broken rule at a line of a file, counted from one, and what to do about it.
    pub fn new(path: &str, line: usize, what: impl Into<String>) -> Self {
        Finding { path: path.to_string(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// The files that tidy reads, by path from the root of the repository.
#[derive(Default)]
pub struct Tree(BTreeMap<String, String>);

impl Tree {
    /// Reads sources, manifests and documents.
    ///
    /// # Errors
    /// A file or a folder cannot be read, or a file is not UTF-8.
    pub fn read(root: &Path) -> std::io::Result<Self> {
        let mut tree = Tree::default();
        for name in [
            "Cargo.toml",
            "deny.toml",
            "README.md",
            "ARCHITECTURE.md",
            "CONTRIBUTING.md",
            "xtask/language.toml",
        ] {
            if let Ok(text) = std::fs::read_to_string(root.join(name)) {
                tree.0.insert(name.to_string(), text);
            }
        }
        for dir in ["crates", "xtask", "fuzz", "images", "capi", "python", "docs"] {
            tree.add(root, dir)?;
        }
        Ok(tree)
    }

    fn add(&mut self, root: &Path, dir: &str) -> std::io::Result<()> {
        for entry in std::fs::read_dir(root.join(dir))? {
            let entry = entry?;
            let name = entry.file_name().display().to_string();
            let path = format!("{dir}/{name}");
            if entry.file_type()?.is_dir() {
                if name != "target" {
                    self.add(root, &path)?;
                }
            } else if name.ends_with(".rs")
                || name == "Cargo.toml"
                || dir.starts_with("docs") && name.ends_with(".md")
            {
                self.0.insert(path.clone(), std::fs::read_to_string(root.join(&path))?);
            }
        }
        Ok(())
    }

    /// Returns the text of a file; empty if there is none.
    pub fn get(&self, path: &str) -> &str {
        self.0.get(path).map_or("", String::as_str)
    }

    /// Returns the Rust files, with their text.
    pub fn rust(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(|(path, _)| path.ends_with(".rs"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the Markdown documents, with their text.
    pub fn documents(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0
            .iter()
            .filter(|(path, _)| path.ends_with(".md"))
            .map(|(path, text)| (path.as_str(), text.as_str()))
    }

    /// Returns the names of the crates. A folder has the name of its crate.
    pub fn crates(&self) -> impl Iterator<Item = &str> {
        self.0.keys().filter_map(|path| path.strip_prefix("crates/")?.strip_suffix("/Cargo.toml"))
    }
}

/// Whether `text` contains `word` as a whole word.
fn mentions(text: &str, word: &str) -> bool {
    let name = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
    text.match_indices(word).any(|(at, _)| {
        !text[..at].chars().next_back().is_some_and(name)
            && !text[at + word.len()..].chars().next().is_some_and(name)
    })
}

/// Returns the lines with their numbers, counted from one.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    text.split('\n').enumerate().map(|(i, line)| (i + 1, line))
}

/// A repository with these files.
#[cfg(test)]
pub fn planted(files: &[(&str, &str)]) -> Tree {
    Tree(files.iter().map(|(path, text)| (path.to_string(), text.to_string())).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_finding_is_shown_so_that_an_editor_can_jump_to_it() {
        assert_eq!(Finding::new("a.rs", 3, "what").to_string(), "a.rs:3: what");
    }

    #[test]
    fn a_word_is_not_found_inside_a_longer_name() {
        assert!(mentions("see `clap`.", "clap"));
        assert!(!mentions("clap_complete, nine-net-x", "clap"));
        assert!(!mentions("nine-network", "nine-net"));
    }
}
