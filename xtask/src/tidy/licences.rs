//! Licences of all dependencies: each package must have one that deny.toml allows, and must not be on its list of
//! banned crates.
//!
//! In: deny.toml, and cargo's list of the packages built for this host. The same file serves `cargo deny`, which checks
//! more but takes minutes to install.

use super::{Finding, Tree, lines};
use crate::steps::cargo;

/// Checks every package of the workspace and its dependencies.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let list = cargo(&["tree", "--workspace", "--all-features", "--prefix", "none", "--format", "{p}\t{l}"])
        .output();
    match list {
        Ok(output) if output.status.success() => {
            check_packages(tree.get("deny.toml"), &String::from_utf8_lossy(&output.stdout))
        }
        Ok(output) => {
            let why = String::from_utf8_lossy(&output.stderr);
            vec![Finding::new("Cargo.toml", 1, format!("cargo tree failed, so no licence is known: {why}"))]
        }
        Err(e) => vec![Finding::new("Cargo.toml", 1, format!("cargo tree does not start: {e}"))],
    }
}

fn check_packages(deny: &str, packages: &str) -> Vec<Finding> {
    let (at, allowed) = array(deny, "allow");
    let (bans_at, banned) = array(deny, "deny");
    let mut packages: Vec<&str> = packages.lines().map(|line| line.trim_end_matches(" (*)")).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut found = Vec::new();
    for (package, licence) in packages.iter().filter_map(|line| line.split_once('\t')) {
        if !permits(licence, &allowed) {
            let what =
                format!("{package} is under '{licence}', which is not allowed: do without it, or allow it");
            found.push(Finding::new("deny.toml", at, what));
        }
        if banned.contains(&package.split(' ').next().unwrap_or(package)) {
            found.push(Finding::new("deny.toml", bans_at, format!("{package} is banned: do without it")));
        }
    }
    found
}

/// Returns the strings of `key = [ ... ]`, and its line.
fn array<'a>(toml: &'a str, key: &str) -> (usize, Vec<&'a str>) {
    let starts = |line: &str| line.strip_prefix(key).is_some_and(|rest| rest.trim_start().starts_with('='));
    let Some((at, _)) = lines(toml).find(|(_, line)| starts(line)) else { return (1, Vec::new()) };
    let mut strings = Vec::new();
    for (_, line) in lines(toml).skip(at - 1) {
        let line = line.split('#').next().unwrap_or(line);
        strings.extend(line.split('"').skip(1).step_by(2));
        if line.trim_end().ends_with(']') {
            break;
        }
    }
    (at, strings)
}

/// Whether allowed licences satisfy an SPDX expression. `/` is the OR of old manifests.
fn permits(expression: &str, allowed: &[&str]) -> bool {
    let spaced =
        expression.replace('(', " ( ").replace(')', " ) ").replace('/', " OR ").replace(" WITH ", "+WITH+");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    let met = either(&mut rest, allowed);
    met && rest.is_empty()
}

fn either(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = both(words, allowed);
    while let ["OR", rest @ ..] = words {
        *words = rest;
        met |= both(words, allowed);
    }
    met
}

fn both(words: &mut &[&str], allowed: &[&str]) -> bool {
    let mut met = licence(words, allowed);
    while let ["AND", rest @ ..] = words {
        *words = rest;
        met &= licence(words, allowed);
    }
    met
}

fn licence(words: &mut &[&str], allowed: &[&str]) -> bool {
    match *words {
        ["(", rest @ ..] => {
            *words = rest;
            let met = either(words, allowed);
            let closed = words.first() == Some(&")");
            *words = words.get(1..).unwrap_or(&[]);
            met && closed
        }
        [name, rest @ ..] => {
            *words = rest;
            allowed.contains(&name.replace("+WITH+", " WITH ").as_str())
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWED: &[&str] = &["MIT", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"];

    #[test]
    fn an_expression_is_met_as_spdx_means_it() {
        for good in ["MIT", "MIT/GPL-3.0", "GPL-3.0 OR MIT", "(MIT OR GPL-3.0) AND Unicode-3.0"] {
            assert!(permits(good, ALLOWED), "{good}");
        }
        assert!(permits("Apache-2.0 WITH LLVM-exception OR GPL-2.0", ALLOWED));
        for bad in ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT", "MIT MIT", "MIT AND"] {
            assert!(!permits(bad, ALLOWED), "{bad}");
        }
        assert!(!permits("(MIT OR GPL-3.0) AND GPL-3.0", ALLOWED));
    }

    #[test]
    fn a_package_under_another_licence_or_banned_is_found_once() {
        let deny = "[licenses]\nallow = [\n    \"MIT\", # ours\n]\n[bans]\ndeny = [{ crate = \"bad\" }]\n";
        let packages = "a v1\tMIT\nb v2\tGPL-3.0\n\nb v2\tGPL-3.0 (*)\nbad v3\tMIT\n";
        let found = check_packages(deny, packages);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].what.starts_with("b v2") && found[0].line == 2);
        assert!(found[1].what.starts_with("bad v3") && found[1].line == 6);
    }
}
