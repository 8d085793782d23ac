//! The files that changed since the last run that passed.
//!
//! In: the working tree, as git sees it: committed, changed and new files, without ignored ones. Out: paths that
//! differ. The name of the last tree that passed, a git tree object, is in `target/xtask/green`.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Returns the name of a tree object for the present files; `None` outside a git repository.
pub fn tree() -> Option<String> {
    let index = crate::target().join("xtask/index");
    fs::create_dir_all(index.parent()?).ok()?;
    // With a copy of the index git hashes only files that have changed since.
    let _ = fs::copy(git(&["rev-parse", "--path-format=absolute", "--git-path", "index"], None)?, &index);
    git(&["add", "--all"], Some(&index))?;
    git(&["write-tree"], Some(&index))
}

/// Records a tree that passed, as [`tree`] returned it before the run.
pub fn record(tree: Option<String>) {
    if let Some(tree) = tree {
        let _ = fs::write(file(), tree);
    }
}

/// Returns the files that differ from the last tree that passed; `None` if there is no such tree.
pub fn changed() -> Option<Vec<String>> {
    let green = fs::read_to_string(file()).ok()?;
    let names = git(&["diff", "--name-only", green.trim(), &tree()?], None)?;
    Some(names.lines().map(String::from).collect())
}

/// Returns the crates with changed files, and those together with the crates that depend on them. Names are cargo's.
///
/// # Errors
/// cargo cannot read the workspace.
pub fn crates_of(files: &[String]) -> Result<(Vec<String>, Vec<String>), String> {
    let mut metadata = crate::steps::cargo(&["metadata", "--no-deps", "--format-version=1", "--offline"]);
    let output = metadata.stdin(Stdio::null()).output().map_err(|e| format!("cargo metadata: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let metadata: Value = serde_json::from_str(&text).map_err(|e| format!("cargo metadata: {e}"))?;
    Ok(dependents(&metadata, files))
}

fn dependents(metadata: &Value, files: &[String]) -> (Vec<String>, Vec<String>) {
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let packages = metadata["packages"].as_array().map_or(&[][..], Vec::as_slice);
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_string();
    let folder = |package: &Value| {
        let manifest = package["manifest_path"].as_str().unwrap_or_default();
        manifest.trim_start_matches(root).trim_start_matches('/').trim_end_matches("Cargo.toml").to_string()
    };
    let is_of_all = |file: &String| ["Cargo.toml", "Cargo.lock"].contains(&file.as_str());
    let changed: BTreeSet<String> = packages
        .iter()
        .filter(|package| files.iter().any(|file| is_of_all(file) || file.starts_with(&folder(package))))
        .map(name)
        .collect();
    let mut reached = changed.clone();
    loop {
        let before = reached.len();
        for package in packages {
            let needs = package["dependencies"].as_array().map_or(&[][..], Vec::as_slice);
            if needs.iter().any(|need| reached.contains(need["name"].as_str().unwrap_or_default())) {
                reached.insert(name(package));
            }
        }
        if reached.len() == before {
            return (changed.into_iter().collect(), reached.into_iter().collect());
        }
    }
}

fn file() -> PathBuf {
    crate::target().join("xtask/green")
}

fn git(words: &[&str], index: Option<&PathBuf>) -> Option<String> {
    let mut git = Command::new("git");
    git.arg("-C").arg(crate::root()).args(words).stdin(Stdio::null());
    git.envs(index.map(|index| ("GIT_INDEX_FILE", index)));
    let output = git.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim_end().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependents_are_found_through_any_number_of_crates() {
        let package = |name: &str, needs: &[&str]| {
            let needs: Vec<Value> = needs.iter().map(|need| serde_json::json!({ "name": need })).collect();
            serde_json::json!({
                "name": name, "manifest_path": format!("/r/crates/{name}/Cargo.toml"), "dependencies": needs
            })
        };
        let metadata = serde_json::json!({
            "workspace_root": "/r",
            "packages": [package("a", &[]), package("ab", &["a"]), package("c", &["ab", "serde"]), package("d", &[])]
        });
        let of = |file: &str| dependents(&metadata, &[file.to_string()]);
        let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
        assert_eq!(of("crates/a/src/lib.rs"), (names(&["a"]), names(&["a", "ab", "c"])));
        assert_eq!(of("crates/ab/src/lib.rs"), (names(&["ab"]), names(&["ab", "c"])));
        assert_eq!(of("docs/testing.md"), (names(&[]), names(&[])));
        assert_eq!(of("Cargo.lock").0.len(), 4);
    }
}
