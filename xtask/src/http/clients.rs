//! Typical uses of curl, wget, wrk and ab.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{disk, said, url};
use crate::served::{Program, Served};

pub fn all(url: &str, dir: &Path, place: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
    let file = |name: &str| fs::read(dir.join(name)).map_err(|e| format!("{name}: {e}"));
    let (text, large) = (file("text.txt")?, file("large.bin")?);
    let at = |path: &str| format!("{url}{path}");
    let mut same = |what: &str, is: &[u8], should: &[u8]| {
        if is != should {
            let is = String::from_utf8_lossy(&is[..is.len().min(200)]).into_owned();
            wrong.push(format!("{what}: {is:?} instead of {} bytes", should.len()));
        }
    };
    same("curl", &curl(&[&at("text.txt")])?, &text);
    same("curl of a part", &curl(&["-r", "100-199", &at("text.txt")])?, &text[100..200]);
    same("curl of the end", &curl(&["-r", "-50", &at("text.txt")])?, &text[text.len() - 50..]);
    same("curl --compressed", &curl(&["--compressed", &at("text.txt")])?, &text);
    for coding in ["gzip", "zstd"] {
        let word = format!("Accept-Encoding: {coding}");
        let packed = curl(&["-H", &word, &at("text.txt")])?;
        same(&format!("whether {coding} is shorter"), &[u8::from(packed.len() < text.len())], &[1]);
    }
    let part = place.join("part").display().to_string();
    fs::write(&part, &large[..5_000_000]).map_err(|e| format!("{part}: {e}"))?;
    curl(&["-C", "-", "-o", &part, &at("large.bin")])?;
    same("curl -C -", &fs::read(&part).map_err(|e| format!("{part}: {e}"))?, &large);
    let said = |words: &[&str], form: &str| curl(&[&["-o", "/dev/null", "-w", form], words].concat());
    same("curl of too far", &said(&["-r", "9999999-", &at("text.txt")], "%{http_code}")?, b"416");
    same("curl --head", &said(&["--head", &at("large.bin")], "%{http_code} %{size_download}")?, b"200 0");
    same(
        "curl -z",
        &said(&["-z", &dir.join("text.txt").display().to_string(), &at("text.txt")], "%{http_code}")?,
        b"304",
    );
    // An unwanted body is not sent (100-continue). If the client sends it anyway, it is skipped.
    let upload =
        ["-T", &dir.join("large.bin").display().to_string(), "-H", "Expect: 100-continue", &at("up")];
    same("curl -T", &said(&upload, "%{http_code} %{size_upload}")?, b"405 0");
    let upload = ["-T", &dir.join("text.txt").display().to_string(), "-H", "Expect:", &at("up")];
    same("curl -T without asking", &said(&upload, "%{http_code}")?, b"405");
    let again = [&at("text.txt"), "-o", "/dev/null", &at("empty.txt"), "-o", "/dev/null", &at("none")];
    same("curl of three", &said(&again, "%{num_connects} ")?, b"1 0 0 ");

    let mirror = place.join("mirror");
    let mut wget = Command::new("wget");
    wget.args(["-q", "-m", "-np", "-nH", "--restrict-file-names=nocontrol", "-P"])
        .arg(&mirror)
        .arg(at("tree/"));
    super::said(wget.env("LC_ALL", "C.UTF-8"))?;
    compare(&dir.join("tree"), &mirror.join("tree"), wrong);

    // Speed does not matter here.
    let out = super::said(Command::new("wrk").args(["-t1", "-c64", "-d1s", "--latency", &at("text.txt")]))?;
    let out = String::from_utf8_lossy(&out);
    if !out.contains("Requests/sec") || out.contains("Socket errors") || out.contains("Non-2xx") {
        wrong.push(format!("wrk: {out}"));
    }
    // ab speaks HTTP/1.0 with keep-alive.
    let out = super::said(Command::new("ab").args(["-q", "-k", "-n", "2000", "-c", "16", &at("bytes.bin")]))?;
    let out = String::from_utf8_lossy(&out);
    let count = |name: &str| out.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    if count("Failed requests:") != Some("0") || count("Keep-Alive requests:") != Some("2000") {
        wrong.push(format!("ab: {out}"));
    }
    Ok(())
}

/// Serves with a self-signed certificate, which curl trusts.
pub fn over_tls(program: &Program, dir: &Path, place: &Path, wrong: &mut Vec<String>) -> Result<(), String> {
    let [cert, key] = ["cert.pem", "key.pem"].map(|name| place.join(name).display().to_string());
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]);
    openssl.args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]);
    said(openssl.args(["-keyout", &key, "-out", &cert]))?;
    let served =
        Served::start(program, &disk(dir), &["--http=https!localhost!0", "--cert", &cert, "--key", &key])?;
    let url = url(&served)?;
    for name in ["large.bin", "text.txt"] {
        let whole = curl(&["--cacert", &cert, &format!("{url}{name}")])?;
        if fs::read(dir.join(name)).ok() != Some(whole) {
            wrong.push(format!("curl of /{name} over TLS: something else"));
        }
    }
    Ok(())
}

fn curl(words: &[&str]) -> Result<Vec<u8>, String> {
    said(Command::new("curl").args(["-s", "-S", "--max-time", "60"]).args(words))
}

/// Checks that a mirror contains all files, and otherwise only pages of directories.
fn compare(there: &Path, here: &Path, wrong: &mut Vec<String>) {
    let names = |dir: &Path| {
        let entries = fs::read_dir(dir).into_iter().flatten();
        let mut names: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.file_name())).collect();
        names.retain(|name| name != "index.html");
        names.sort();
        names
    };
    if names(there) != names(here) {
        wrong.push(format!("wget: {:?} instead of {:?}", names(here), names(there)));
    }
    for name in names(there) {
        let (there, here) = (there.join(&name), here.join(&name));
        if there.is_dir() {
            compare(&there, &here, wrong);
        } else if fs::read(&there).ok() != fs::read(&here).ok() {
            wrong.push(format!("wget: {} is something else", here.display()));
        }
    }
}
