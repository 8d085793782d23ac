//! gunicorn's test requests, valid and invalid. Each is sent as a whole, byte by byte, and in pieces.
//!
//! A valid request is answered, with any status, and so are the requests after it on the connection. An invalid one is
//! refused or gets no answer, and the connection ends there. Exceptions are listed with their reasons.

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::{fetched, pip, said};

const VERSION: &str = "27.0.1";

/// Host names of the requests.
pub const HOSTS: [&str; 7] = ["localhost", "example.com", "a", "x", "whatever", "victim.com", "0.0.0.0"];

/// Exceptions: requests called invalid that we accept, and requests called valid that we refuse.
const OTHERWISE: &[(&str, &str)] = &[
    ("invalid/006", "a limit of gunicorn's, 4 KiB for a line: ours is 16 KiB for the head"),
    ("invalid/007", "the same"),
    ("invalid/008", "the same"),
    ("invalid/010", "a limit that gunicorn is told for this request"),
    ("invalid/011", "the same"),
    ("invalid/012", "the same"),
    ("invalid/017", "the same"),
    ("invalid/limit_header_default_01", "the same"),
    ("invalid/019", "X-Forwarded-Proto and the like mean nothing to us"),
    ("invalid/040", "headers do not become variables, where - and _ are one"),
    ("invalid/chunked_07", "the same"),
    ("invalid/041", "the type of a body that nobody wants"),
    (
        "invalid/rfc9110_trailer_forbidden_cl_01",
        "trailers are passed over unread, which is allowed (RFC 9110, 6.5.1)",
    ),
    ("invalid/rfc9110_trailer_forbidden_host_01", "the same"),
    ("invalid/rfc9110_trailer_forbidden_te_01", "the same"),
    ("invalid/rfc9112_bare_lf_01", "a line of a head may end with LF (RFC 9112, 2.2)"),
    (
        "invalid/rfc9112_leading_crlf_02",
        "at least one empty line is passed over: we take two (RFC 9112, 2.2)",
    ),
    ("invalid/rfc9112_target_non_ascii_02", "a path in UTF-8, as curl sends what it is given"),
    ("valid/024", "a path of more than 16 KiB"),
    ("valid/028", "a space before the colon must be refused (RFC 9112, 5.1); gunicorn is told not to"),
    ("valid/099", "ends before the body does, and gets no answer"),
    ("valid/compat_obs_fold", "folded lines must be refused (RFC 9112, 5.2); gunicorn is told not to"),
    ("valid/compat_obs_fold_huge", "the same"),
    ("valid/rfc9112_target_absolute_userinfo_01", "a user in a target is an error (RFC 9110, 4.2.4)"),
    ("valid/pp_01", "the PROXY protocol, which is not spoken here"),
    ("valid/pp_02", "the same"),
    ("valid/pp_04", "the same"),
    ("valid/pp_05", "the same"),
];

pub fn all(url: &str, wrong: &mut Vec<String>) -> Result<(), String> {
    let addr = url.trim_start_matches("http://").trim_end_matches('/');
    let dir = fetched(&format!("gunicorn-{VERSION}"), |dir| {
        said(
            pip()
                .args(["download", "--no-deps", "--no-binary", ":all:", "-d"])
                .arg(dir)
                .arg(format!("gunicorn=={VERSION}")),
        )?;
        let archive = dir.join(format!("gunicorn-{VERSION}.tar.gz"));
        said(Command::new("tar").arg("-xzf").arg(archive).arg("-C").arg(dir)).map(drop)
    })?;
    let dir = dir.join(format!("gunicorn-{VERSION}/tests/requests"));
    let mut count = 0;
    for kind in ["valid", "invalid"] {
        let entries = fs::read_dir(dir.join(kind)).map_err(|e| format!("{}: {e}", dir.display()))?;
        for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            if path.extension().is_none_or(|extension| extension != "http") {
                continue;
            }
            let name = format!("{kind}/{}", path.file_stem().unwrap_or_default().display());
            let meant = meant(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            let request = request(&path).map_err(|e| format!("{}: {e}", path.display()))?;
            for piece in [request.len(), 1, 7] {
                let statuses = answered(addr, &request, piece).map_err(|e| format!("{name}: {e}"))?;
                let is_right = match kind {
                    "valid" => statuses.len() == meant && !statuses.iter().any(|status| is_refusal(*status)),
                    _ => statuses.last().is_none_or(|status| is_refusal(*status) || *status == 501),
                };
                let why = OTHERWISE.iter().find(|(listed, _)| *listed == name);
                if is_right == why.is_some() {
                    let why = why.map_or("", |(_, why)| why);
                    wrong.push(format!("gunicorn's request {name}, {piece} at a time: {statuses:?} {why}"));
                    break;
                }
            }
            count += 1;
        }
    }
    if count < 100 {
        return Err(format!("only {count} requests of gunicorn's in {}", dir.display()));
    }
    Ok(())
}

/// Whether this status says that a request was not understood.
fn is_refusal(status: u16) -> bool {
    matches!(status, 400 | 414 | 431 | 505)
}

/// Reads a request file. One request line may span several lines of the file, and line ends are escaped. HTTP/1.1
/// requests without a Host field get one.
fn request(path: &Path) -> std::io::Result<Vec<u8>> {
    let text = fs::read(path)?;
    let mut bytes = Vec::with_capacity(text.len());
    let mut at = 0;
    while at < text.len() {
        let (byte, len) = match &text[at..] {
            [b'\\', b'r', ..] => (Some(b'\r'), 2),
            [b'\\', b'n', ..] => (Some(b'\n'), 2),
            [b'\\', b't', ..] => (Some(b'\t'), 2),
            [b'\\', b'0', ..] => (Some(0), 2),
            [b'\\', b'x', high, low, ..] => (hex(*high).zip(hex(*low)).map(|(high, low)| high << 4 | low), 4),
            [b'\n', ..] => (None, 1),
            [byte, ..] => (Some(*byte), 1),
            [] => break,
        };
        bytes.extend(byte);
        at += len;
    }
    let has_host = bytes.windows(5).any(|word| word.eq_ignore_ascii_case(b"host:"));
    if has_host {
        return Ok(bytes);
    }
    let mut whole = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        whole.extend_from_slice(line);
        if line.ends_with(b" HTTP/1.1\r\n") {
            whole.extend_from_slice(b"Host: localhost\r\n");
        }
    }
    Ok(whole)
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|digit| digit as u8)
}

/// Returns the number of requests in a file, according to gunicorn's own test.
fn meant(path: &Path) -> std::io::Result<usize> {
    Ok(fs::read_to_string(path.with_extension("py"))?.matches("\"method\"").count())
}

/// Returns the status of each answer until the connection ends.
fn answered(addr: &str, request: &[u8], piece: usize) -> std::io::Result<Vec<u16>> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    for piece in request.chunks(piece) {
        // The server may close the connection before it has read everything.
        if stream.write_all(piece).is_err() {
            break;
        }
    }
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Err(error) if error.kind() != std::io::ErrorKind::ConnectionReset => return Err(error),
        _ => {}
    }
    let answer = String::from_utf8_lossy(&answer);
    Ok(answer.split("HTTP/1.1 ").skip(1).filter_map(|rest| rest.get(..3)?.parse().ok()).collect())
}
