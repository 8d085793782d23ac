//! Rules for source text: white space, width, length, file heads, leftover markers, and the files that may contain
//! unsafe code.
//!
//! Strings and comments are not code: `code` removes them, and preserves the line numbers.

use super::{Finding, Tree, lines, mentions};

/// Checks every Rust file.
pub fn check(tree: &Tree) -> Vec<Finding> {
    let mut found = Vec::new();
    for (path, text) in tree.rust() {
        found.extend(check_lines(path, text));
        found.extend(check_file(path, text));
    }
    for name in tree.crates() {
        found.extend(check_root(tree, name));
    }
    for (path, text) in tree.rust().filter(|(path, _)| may_be_unsafe(path)) {
        if !mentions(&code(text), "unsafe") {
            found.push(Finding::new(path, 1, "no unsafe code is left here: take the file off xtask's list"));
        }
    }
    found
}

fn check_lines(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    let tests_from = if is_test(path) { 0 } else { tests_from(text) };
    for ((n, line), code) in lines(text).zip(code(text).split('\n')) {
        let mut broken = |what: &str| found.push(Finding::new(path, n, what));
        if line.contains('\t') {
            broken("a tab: indent with spaces, write \\t in a string");
        }
        if line.trim_end() != line {
            broken("white space at the end of the line: remove it");
        }
        if line.chars().count() > WIDTH {
            broken("wider than 120 columns: break the line");
        }
        for word in LEFTOVERS.iter().filter(|word| mentions(line, word)) {
            broken(&format!("{word} is left over: do it, or drop it"));
        }
        if n > tests_from && (code.contains("thread::sleep") || code.contains("time::sleep")) {
            broken("a test sleeps: wait for the event, or step a virtual clock");
        }
        if mentions(code, "unsafe") && !may_be_unsafe(path) {
            broken("unsafe code here: use a safe wrapper, or name this file with its reason in xtask's list");
        }
    }
    found
}

fn check_file(path: &str, text: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    if path.contains("/src/") && !text.starts_with("//!") {
        found.push(Finding::new(
            path,
            1,
            "no heading: say in //! lines what this is, what comes in and what goes out",
        ));
    }
    let length = text.lines().count().min(tests_from(text));
    if length > LENGTH && !is_test(path) {
        let what =
            format!("{length} lines before the tests, more than {LENGTH}: one file, one noun; split it");
        found.push(Finding::new(path, LENGTH + 1, what));
    }
    found
}

/// Checks the declarations in the root file of each crate.
fn check_root(tree: &Tree, name: &str) -> Vec<Finding> {
    let mut found = Vec::new();
    for root in ["lib.rs", "main.rs"].map(|file| format!("crates/{name}/src/{file}")) {
        let Some(text) = tree.0.get(&root) else { continue };
        if !["forbid", "deny"].iter().any(|lint| text.contains(&format!("#![{lint}(unsafe_code)]"))) {
            found.push(Finding::new(&root, 1, "unsafe code is not refused: write #![forbid(unsafe_code)]"));
        }
        let no_std = text.contains("#![no_std]") || text.contains("#![cfg_attr(not(test), no_std)]");
        if NO_STD.contains(&name) && !no_std {
            found.push(Finding::new(&root, 1, format!("{name} lives without std: write #![no_std]")));
        }
    }
    found
}

/// Returns a file without comments and strings. Lines keep their numbers.
pub fn code(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skip = match c {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '"' => string(rest),
            'r' if !out.ends_with(|c: char| c.is_alphanumeric() || c == '_') => raw_string(rest),
            '\'' => character(rest),
            _ => 0,
        };
        if skip == 0 {
            out.push(c);
            rest = &rest[c.len_utf8()..];
        } else {
            out.extend(rest[..skip].chars().filter(|c| *c == '\n'));
            rest = &rest[skip..];
        }
    }
    out
}

/// Returns the length of the string that starts here.
fn string(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => drop(chars.next()),
            '"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of the raw string that starts here; 0 if it is a name.
fn raw_string(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|b| *b == b'#').count();
    let open = hashes + 2;
    if text.as_bytes().get(open - 1) != Some(&b'"') {
        return 0;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    text[open..].find(&close).map_or(text.len(), |at| open + at + close.len())
}

/// Returns the length of the character literal that starts here; 0 if it is a lifetime.
fn character(text: &str) -> usize {
    let mut chars = text.char_indices().skip(1);
    let escaped = chars.next().is_some_and(|(_, c)| c == '\\');
    if escaped {
        return chars.skip(1).find(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1);
    }
    chars.next().filter(|(_, c)| *c == '\'').map_or(0, |(at, _)| at + 1)
}

/// Whether a file contains only tests. The simulation counts as such.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.starts_with("crates/nine-sim/")
}

fn may_be_unsafe(path: &str) -> bool {
    UNSAFE_FILES.iter().any(|(listed, _)| *listed == path)
}

/// Returns the number of lines before the file's test module.
fn tests_from(text: &str) -> usize {
    let mut attribute = false;
    for (n, line) in lines(text) {
        if attribute && line.starts_with("mod ") && line.ends_with('{') {
            return n - 2;
        }
        attribute = line == "#[cfg(test)]" || line.starts_with("#[cfg(all(test, ");
    }
    usize::MAX
}

const WIDTH: usize = 120;
const LENGTH: usize = 900;

/// Split in two, so that this file does not violate its own rule.
const LEFTOVERS: &[&str] =
    &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X"), concat!("db", "g!")];

const NO_STD: &[&str] = &["nine-proto", "nine-stream", "nine-ring", "nine-guest"];

/// The files that may contain unsafe code, each with its reason.
const UNSAFE_FILES: &[(&str, &str)] = &[
    ("capi/src/sys.rs", "pointers of programs in C, and the names by which they find us"),
    ("crates/nine-bench/src/sys.rs", "the processor time of children, which rustix does not ask for"),
    ("crates/nine-gate/src/fuse/sys.rs", "two calls of /dev/fuse that nothing wraps"),
    ("crates/nine-guest/src/machine/sys.rs", "what a processor must be told where there is no system"),
    ("crates/nine-guest/src/sys.rs", "taking a variable of the environment away"),
    ("crates/nine-net/src/sys.rs", "registering a descriptor with the runtime"),
    ("crates/nine-ring/src/sys.rs", "memory that another program writes, too"),
    ("crates/nine-servers/src/disk/sys.rs", "system calls that rustix does not wrap"),
    ("crates/nine-sim/src/delay/sys.rs", "name spaces, network devices, and programs that start in them"),
    ("images/src/sys.rs", "a device of virtio, which a measurement needs as a peer"),
    ("python/src/sys.rs", "memory of a caller's that is written while the interpreter runs others"),
    ("xtask/nostd-probe/src/main.rs", "a program without std brings its own start, allocator and end"),
];

#[cfg(test)]
mod tests {
    use super::super::planted;
    use super::*;

    const PATH: &str = "crates/nine-net/src/x.rs";

    fn one(text: &str) -> usize {
        let found = check_lines(PATH, text);
        assert_eq!(found.len(), 1, "{text:?}: {found:?}");
        found[0].line
    }

    #[test]
    fn each_planted_violation_of_a_line_is_found() {
        assert_eq!(one("let a;\n\tlet b;"), 2);
        assert_eq!(one("let a; "), 1);
        assert_eq!(one(&"x".repeat(WIDTH + 1)), 1);
        assert_eq!(one("ok\n    unsafe { f() }"), 2);
        assert_eq!(one("unsafe impl Send for X {}"), 1);
        for word in LEFTOVERS {
            assert_eq!(one(&format!("// {word}: later")), 1);
        }
    }

    #[test]
    fn a_clean_line_is_left_alone() {
        for text in [
            &"x".repeat(WIDTH),
            "#![forbid(unsafe_code)]",
            "// unsafe in words",
            "say(\"unsafe\")",
            "todo.push(1)",
        ] {
            assert_eq!(check_lines(PATH, text), [], "{text}");
        }
    }

    #[test]
    fn a_sleep_is_found_in_tests_alone() {
        let sleep = "std::thread::sleep(d);";
        assert_eq!(one(&format!("{sleep}\n\n#[cfg(test)]\nmod tests {{\n{sleep}\n}}")), 5);
        assert_eq!(check_lines("crates/nine-net/tests/a.rs", "tokio::time::sleep(d).await;").len(), 1);
        assert_eq!(check_lines("crates/nine-sim/src/lib.rs", sleep).len(), 1);
    }

    #[test]
    fn strings_and_comments_are_not_code() {
        assert_eq!(code("a(\"b // \\\" c\") // d\nb"), "a() \nb");
        assert_eq!(code("a(\"b\nc\")\nd"), "a(\n)\nd");
        assert_eq!(code("for x in r#\"a \" b\"# {} r#in"), "for x in  {} r#in");
        assert_eq!(code("c == '\"' || c == '\\'' || '\\\\' { e }"), "c ==  || c ==  ||  { e }");
        assert_eq!(code("fn f<'a>(x: &'a str)"), "fn f<'a>(x: &'a str)");
    }

    #[test]
    fn a_file_without_heading_or_too_long_is_found() {
        assert_eq!(check_file(PATH, "use x;").len(), 1);
        assert_eq!(check_file(PATH, "//! A room.\n"), []);
        let body = "x\n".repeat(LENGTH - 1);
        for attribute in ["#[cfg(test)]", "#[cfg(all(test, not(nine_loom)))]"] {
            let tests = format!("{attribute}\nmod tests {{\n}}\n");
            assert_eq!(check_file(PATH, &format!("//! A room.\n{body}{tests}")), []);
            assert_eq!(check_file(PATH, &format!("//! A room.\n{body}x\n{tests}")).len(), 1);
        }
    }

    #[test]
    fn a_crate_that_allows_unsafe_or_std_is_found() {
        let tree = planted(&[
            ("crates/nine-proto/Cargo.toml", ""),
            ("crates/nine-proto/src/lib.rs", "//! 9P.\n#![forbid(unsafe_code)]"),
            ("crates/nine-io/Cargo.toml", ""),
            ("crates/nine-io/src/lib.rs", "//! Live 9P."),
        ]);
        assert_eq!(check_root(&tree, "nine-proto").len(), 1);
        assert_eq!(check_root(&tree, "nine-io").len(), 1);
    }

    #[test]
    fn a_file_that_lost_its_unsafe_code_leaves_the_list() {
        let of = |text| check(&planted(&[(UNSAFE_FILES[0].0, text)])).len();
        assert_eq!(of("//! System calls.\nfn f() {}"), 1);
        assert_eq!(of("//! System calls.\nunsafe fn f() {}"), 0);
    }
}
