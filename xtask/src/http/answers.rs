//! Answers, checked by redbot and httplint. Each finding of level bad or warning is an error unless it is listed here.
//! For each file, certain positive findings are required.

use std::io::Write;
use std::process::{Command, Stdio};

use super::{fetched, pip, said};

/// redbot with all its dependencies, since it does not pin versions itself.
const PACKAGES: &[&str] = &[
    "redbot==2.7.1",
    "httplint==2026.10.4",
    "babel==2.18.0",
    "brotli==1.2.1",
    "certifi==2026.10.18",
    "cffi==2.1.1",
    "chardet==7.7.0",
    "cryptography==50.0.2",
    "dnspython==2.9.2",
    "http-sf==1.5.0",
    "idna==3.20",
    "Jinja2==3.1.6",
    "Markdown==3.11.3",
    "MarkupSafe==3.0.4",
    "netaddr==1.3.0",
    "pycparser==3.12",
    "sniffpy==1.0.0",
    "thor==0.17.0",
    "typing_extensions==4.16.0",
];

const LENGTH: &str = "CL_CORRECT";
const FILE: &[&str] = &[LENGTH, "RANGE_CORRECT", "INM_304", "IMS_304"];
const TEXT: &[&str] = &[LENGTH, "RANGE_CORRECT", "INM_304", "IMS_304", "CONNEG_GZIP_GOOD"];

/// Requested files, with the positive findings that redbot must report.
const FILES: &[(&str, &[&str])] = &[
    ("text.txt", TEXT),
    ("tree/dr%C3%BCben.txt", TEXT),
    ("page.html", TEXT),
    ("site/", TEXT),
    ("bytes.bin", FILE),
    ("large.bin", FILE),
    ("empty.txt", &[LENGTH, "INM_304", "IMS_304"]),
    ("tree/", &[LENGTH]),
    ("tree", &[LENGTH]),
    ("none", &[LENGTH]),
    ("metrics", &[LENGTH]),
];

/// Other requests, by curl's arguments and the expected status, for httplint.
const ANSWERS: &[(&[&str], u16)] = &[
    (&["-r", "0-9", "text.txt"], 206),
    (&["-r", "0-4,10-14", "text.txt"], 206),
    (&["-r", "99999999-", "text.txt"], 416),
    (&["-H", "If-Modified-Since: Fri, 01 Jan 2100 00:00:00 GMT", "text.txt"], 304),
    (&["-H", "If-None-Match: *", "text.txt"], 304),
    (&["-H", "If-Match: \"x\"", "text.txt"], 412),
    (&["-X", "DELETE", "text.txt"], 405),
    (&["-X", "OPTIONS", "text.txt"], 204),
    (&["-H", "Host: another.example", "text.txt"], 421),
    (&["-H", "Host: no host", "text.txt"], 400),
    (&["-H", "Expect: more", "text.txt"], 417),
    (&["-H", "Accept: application/json", "tree/"], 200),
];

/// Findings of redbot (by name) and httplint (by text) that are not errors, each with the reason.
const FINE: &[(&str, &str)] = &[
    ("FRESHNESS_HEURISTIC", "how long a file stays as it is nobody knows"),
    ("This response allows caches to assign their own freshness lifetimes to it.", "the same"),
    ("FRESHNESS_NO_CACHE_NO_VALIDATOR", "a list of what is there now, or counts"),
    (
        "This response cannot be served from cache without validation, and doesn't have a validator.",
        "the same",
    ),
    (
        "This response is partial, but doesn't have a Content-Range header.",
        "several parts must not (RFC 9110, 15.3.7.2)",
    ),
    ("The server didn't understand the request.", "as it says: 400"),
    ("CSP_UNSAFE_INLINE", "inline are styles; no script runs"),
    ("Inline scripts are allowed.", "the same"),
];

pub fn all(url: &str, wrong: &mut Vec<String>) -> Result<(), String> {
    let modules = fetched(&PACKAGES[0].replace("==", "-"), |dir| {
        said(pip().args(["install", "--no-deps", "--target"]).arg(dir).args(PACKAGES)).map(drop)
    })?;
    let python = |program: &str| {
        let mut python = Command::new("python3");
        python.env("PYTHONPATH", &modules).args(["-c", program]);
        python
    };
    for (path, wanted) in FILES {
        let mut redbot = python("from redbot.cli import main; main()");
        let notes = said(redbot.args(["-o", "har"]).arg(format!("{url}{path}")))?;
        let notes = notes_of(&String::from_utf8_lossy(&notes));
        for (name, level, words) in &notes {
            if matches!(level.as_str(), "BAD" | "WARN") && !is_fine(name) {
                wrong.push(format!("redbot of /{path}: {level} {name}: {words}"));
            }
        }
        for wanted in *wanted {
            if !notes.iter().any(|(name, level, _)| name == wanted && level == "GOOD") {
                wrong.push(format!("redbot of /{path} does not say {wanted}"));
            }
        }
    }
    for (words, status) in ANSWERS {
        let Some((path, words)) = words.split_last() else { continue };
        let answer =
            said(Command::new("curl").args(["-s", "-i", "--raw"]).args(words).arg(format!("{url}{path}")))?;
        if !answer.starts_with(format!("HTTP/1.1 {status} ").as_bytes()) {
            let line = answer.split(|byte| *byte == b'\r').next().unwrap_or_default();
            wrong.push(format!(
                "curl {words:?} /{path}: {} instead of {status}",
                String::from_utf8_lossy(line)
            ));
            continue;
        }
        let mut httplint = python("from httplint.cli import main; main()");
        let mut child = httplint
            .arg("-n")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| e.to_string())?;
        child
            .stdin
            .take()
            .map(|mut input| input.write_all(&answer))
            .transpose()
            .map_err(|e| e.to_string())?;
        let output = child.wait_with_output().map_err(|e| e.to_string())?;
        let lines = String::from_utf8_lossy(&output.stdout).into_owned();
        if !lines.contains("[GOOD]") {
            wrong.push(format!("httplint of curl {words:?} /{path} says nothing"));
        }
        for line in lines.lines().map(|line| line.trim_start_matches([' ', '*'])) {
            let Some((level, note)) = line.split_once(' ') else { continue };
            if matches!(level, "[BAD]" | "[WARN]") && !is_fine(note) {
                wrong.push(format!("httplint of curl {words:?} /{path}: {line}"));
            }
        }
    }
    Ok(())
}

fn is_fine(note: &str) -> bool {
    FINE.iter().any(|(fine, _)| *fine == note)
}

/// Returns the name, level and text of each note.
fn notes_of(har: &str) -> Vec<(String, String, String)> {
    let value = |note: &str, key: &str| {
        let rest = note.split_once(&format!("\"{key}\": \""))?.1;
        rest.split_once('"').map(|(value, _)| value.to_string())
    };
    let notes = har.split("\"note_id\"").skip(1).map(|rest| format!("\"note_id\"{rest}"));
    notes.filter_map(|n| Some((value(&n, "note_id")?, value(&n, "level")?, value(&n, "summary")?))).collect()
}
