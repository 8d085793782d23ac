//! Allowed dependencies between the crates, and the files that may use tokio.
//!
//! In: the manifests as text (one dependency per line). Dev-dependencies may include any of our crates as a peer of a
//! test. Published code may not.

use super::text::code;
use super::{Finding, Tree, lines, mentions};

/// Checks every manifest of the workspace, that ARCHITECTURE.md has every crate, and that every dependency
/// has its reason.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for name in tree.crates() {
        found.extend(check_crate(tree, name));
    }
    for (name, may) in OUTSIDE {
        found.extend(check_outside(tree, name, may));
    }
    found.extend(check_xtask(tree));
    found.extend(check_tokio(tree));
    found.extend(check_architecture(tree));
    found
}

fn check_crate(tree: &Tree, name: &str) -> Vec<Finding> {
    let path = format!("crates/{name}/Cargo.toml");
    let Some((_, may)) = ARROWS.iter().find(|(room, _)| *room == name) else {
        return vec![Finding::new(
            &path,
            1,
            format!("{name} has no arrows: give it a line in xtask's table"),
        )];
    };
    let mut found = Vec::new();
    for Dep { line, name: dep, dev } in deps(tree.get(&path)) {
        let ships = !DEV_ONLY.contains(&name);
        let forbidden =
            *may != ANY && !may.contains(&dep.as_str()) || ships && DEV_ONLY.contains(&dep.as_str());
        if is_ours(&dep) && !dev && forbidden {
            let what =
                format!("{name} may not import {dep}: move the code to a room that may, or hand it in");
            found.push(Finding::new(&path, line, what));
        }
        if dep == "tokio" && !TOKIO_CRATES.contains(&name) {
            let what = format!("{name} may not import tokio: use the runtime of nine-net through its traits");
            found.push(Finding::new(&path, line, what));
        }
    }
    found
}

/// Language bindings are outside the workspace's crates, and import no more than necessary.
fn check_outside(tree: &Tree, name: &str, may: &[&str]) -> Vec<Finding> {
    let path = format!("{name}/Cargo.toml");
    let ours = deps(tree.get(&path)).into_iter().filter(|dep| is_ours(&dep.name));
    let forbidden = ours.filter(|dep| !may.contains(&dep.name.as_str()));
    forbidden
        .map(|dep| {
            let what = format!("{name} may not import {}: hand it in, or say in xtask's table why", dep.name);
            Finding::new(&path, dep.line, what)
        })
        .collect()
}

/// xtask is independent of our crates: it must build before they do.
fn check_xtask(tree: &Tree) -> Vec<Finding> {
    let path = "xtask/Cargo.toml";
    let ours = deps(tree.get(path)).into_iter().filter(|dep| is_ours(&dep.name));
    ours.map(|dep| {
        Finding::new(path, dep.line, format!("xtask may not import {}: run it with cargo", dep.name))
    })
    .collect()
}

fn check_tokio(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.rust().filter(|(path, _)| path.starts_with("crates/")) {
        if TOKIO_FILES.iter().any(|place| path.starts_with(place)) {
            continue;
        }
        for (n, line) in lines(&code(text)) {
            if mentions(line, "tokio") {
                found.push(Finding::new(
                    path,
                    n,
                    "tokio stands here: only wakers may, use nine-net's runtime",
                ));
            }
        }
    }
    found
}

fn check_architecture(tree: &Tree) -> Vec<Finding> {
    let page = tree.get("ARCHITECTURE.md");
    let mut found = Vec::new();
    for name in tree.crates().filter(|name| !mentions(page, name)) {
        found.push(Finding::new(
            "ARCHITECTURE.md",
            1,
            format!("{name} is not there: say in a line what it is"),
        ));
    }
    let reasons = tree.get(DEPENDENCIES);
    for Dep { line, name, .. } in deps(tree.get("Cargo.toml")) {
        if !is_ours(&name) && !mentions(reasons, &name) {
            let what = format!("{name} is not in {DEPENDENCIES}: say there in a line why we need it");
            found.push(Finding::new("Cargo.toml", line, what));
        }
    }
    found
}

/// A dependency in a manifest.
struct Dep {
    line: usize,
    name: String,
    dev: bool,
}

/// Returns the dependencies of a manifest: `name.workspace = true`, `name = ...` and `[dependencies.name]`. A renamed
/// package is listed by its real name.
fn deps(manifest: &str) -> Vec<Dep> {
    let mut found: Vec<Dep> = Vec::new();
    let mut section = "";
    for (n, line) in lines(manifest) {
        let line = line.trim();
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']');
            if let Some((table, name)) = section.rsplit_once("dependencies.") {
                found.push(Dep { line: n, name: name.to_string(), dev: table.ends_with("dev-") });
            }
            continue;
        }
        let Some((key, value)) = line.split_once('=') else { continue };
        let renamed = value.split_once("package = \"").and_then(|(_, rest)| rest.split('"').next());
        if section.ends_with("dependencies") && !line.starts_with('#') {
            let name = renamed.unwrap_or(key.split('.').next().unwrap_or(key).trim()).to_string();
            found.push(Dep { line: n, name, dev: section.ends_with("dev-dependencies") });
        } else if let (true, Some(dep)) =
            (section.contains("dependencies.") && key.trim() == "package", found.last_mut())
        {
            dep.name = value.trim().trim_matches('"').to_string();
        }
    }
    found
}

fn is_ours(name: &str) -> bool {
    name == "ninefold" || name.starts_with("nine-")
}

/// Allowed dependencies of each crate on our crates. A crate without a line here is an error.
const ARROWS: &[(&str, &[&str])] = &[
    ("nine-proto", &[]),
    ("nine-stream", &[]),
    ("nine-ring", &[]),
    ("nine-text", &[]),
    ("nine-block", &["nine-text"]),
    ("nine-store", &["nine-block", "nine-text"]),
    ("nine-net", &["nine-stream", "nine-ring", "nine-text"]),
    ("nine-io", &["nine-proto", "nine-stream", "nine-net"]),
    ("nine-mux", &["nine-proto", "nine-io", "nine-net"]),
    (
        "nine-servers",
        &["nine-proto", "nine-io", "nine-stream", "nine-net", "nine-ring", "nine-block", "nine-text"],
    ),
    ("nine-aoe", &["nine-stream", "nine-net", "nine-block"]),
    ("nine-fs", &["nine-proto", "nine-io", "nine-block", "nine-text"]),
    ("nine-gate", &["nine-proto", "nine-io", "nine-net"]),
    ("nine-check", &["nine-proto", "nine-io", "nine-net"]),
    ("nine-guest", &["nine-proto", "nine-ring"]),
    ("ninefold", ANY),
    ("nine-bench", ANY),
    ("nine-sim", ANY),
];

/// Allowed dependencies of code outside the crates. `python` has only the client. `capi` also has the mux, and a tree
/// in memory as the root of its name spaces.
const OUTSIDE: &[(&str, &[&str])] = &[
    ("capi", &["nine-proto", "nine-io", "nine-net", "nine-mux", "nine-servers"]),
    ("python", &["nine-proto", "nine-io", "nine-net"]),
];

/// Any of our crates.
const ANY: &[&str] = &["*"];

/// Internal crates. Published crates may not import them.
const DEV_ONLY: &[&str] = &["nine-bench", "nine-sim"];

/// The page with the reason for each external crate.
const DEPENDENCIES: &str = "docs/internals/dependencies.md";

/// Crates that may have tokio among their dependencies.
const TOKIO_CRATES: &[&str] =
    &["nine-net", "nine-servers", "nine-gate", "nine-bench", "nine-store", "ninefold"];

/// Where in them it may stand: futures elsewhere depend on wakers only, so that the simulation can drive
/// them.
const TOKIO_FILES: &[&str] = &[
    "crates/nine-net/src/rt.rs",
    "crates/nine-net/src/socket.rs",
    "crates/nine-servers/src/disk/",
    "crates/nine-store/src/s3.rs",
    "crates/nine-gate/",
    "crates/nine-bench/",
    "crates/ninefold/",
];

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    #[test]
    fn an_arrow_the_wrong_way_is_found_with_its_line() {
        let tree = planted(&[(
            "crates/nine-net/Cargo.toml",
            "[dependencies]\nbytes = \"1\"\nnine-proto.workspace = true\n",
        )]);
        let found = check_crate(&tree, "nine-net");
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].line, 3);
    }

    #[test]
    fn an_arrow_may_not_hide_behind_another_name() {
        for manifest in [
            "[dependencies]\np = { path = \"x\", package = \"nine-proto\" }",
            "[dependencies.nine-proto]\nworkspace = true",
            "[dependencies.p]\npackage = \"nine-proto\"",
            "[build-dependencies]\nnine-proto = { path = \"x\" }",
            "[target.'cfg(unix)'.dependencies]\nnine-proto.workspace = true",
        ] {
            let tree = planted(&[("crates/nine-net/Cargo.toml", manifest)]);
            assert_eq!(check_crate(&tree, "nine-net").len(), 1, "{manifest}");
        }
    }

    #[test]
    fn a_test_may_bring_peers_that_the_product_may_not() {
        let tree = planted(&[("crates/nine-io/Cargo.toml", "[dev-dependencies]\nnine-sim.workspace = true")]);
        assert!(check_crate(&tree, "nine-io").is_empty());
        for room in ["nine-io", "ninefold"] {
            let path = format!("crates/{room}/Cargo.toml");
            let tree = planted(&[(path.as_str(), "[dependencies]\nnine-sim.workspace = true")]);
            assert_eq!(check_crate(&tree, room).len(), 1, "{room}");
        }
    }

    #[test]
    fn a_room_without_arrows_is_refused() {
        let tree = planted(&[("crates/nine-misc/Cargo.toml", "")]);
        assert_eq!(check_crate(&tree, "nine-misc").len(), 1);
    }

    #[test]
    fn tokio_outside_its_places_is_found() {
        let text = "//! Not tokio.\nuse tokio::net::TcpStream;";
        let tree = planted(&[("crates/nine-io/src/lib.rs", text), ("crates/nine-net/src/rt.rs", text)]);
        let found = check_tokio(&tree);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/nine-io/src/lib.rs", 2));
        let tree = planted(&[("crates/nine-io/Cargo.toml", "[dependencies]\ntokio.workspace = true")]);
        assert_eq!(check_crate(&tree, "nine-io").len(), 1);
    }

    #[test]
    fn a_crate_or_dependency_without_a_reason_is_found() {
        let tree = planted(&[
            ("ARCHITECTURE.md", "nine-proto: 9P. clap: in vain."),
            (DEPENDENCIES, "bytes: buffers."),
            ("Cargo.toml", "[workspace.dependencies]\nbytes = \"1\"\nclap = { version = \"4\" }"),
            ("crates/nine-proto/Cargo.toml", ""),
            ("crates/nine-net/Cargo.toml", ""),
        ]);
        let found = check_architecture(&tree);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].what.starts_with("nine-net") && found[1].what.starts_with("clap"));
    }

    #[test]
    fn what_stands_outside_imports_only_what_its_line_says() {
        for (manifest, broken) in [("nine-io = { path = \"x\" }", 0), ("nine-mux = { path = \"x\" }", 1)] {
            let text = format!("[dependencies]\n{manifest}");
            let tree = planted(&[("python/Cargo.toml", text.as_str())]);
            assert_eq!(check(&tree).len(), broken, "{manifest}");
        }
    }

    #[test]
    fn xtask_imports_nothing_of_ours() {
        let tree = planted(&[("xtask/Cargo.toml", "[dependencies]\nnine-proto.workspace = true")]);
        assert_eq!(check_xtask(&tree).len(), 1);
    }
}
