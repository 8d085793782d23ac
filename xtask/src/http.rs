//! The web server under third-party tools: gunicorn's collection of requests, which must be understood or refused;
//! redbot and httplint, which check answers; and the clients curl, wget, wrk and ab.

mod answers;
mod clients;
mod requests;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guest::scratch;
use crate::packages;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if ["curl", "wget", "wrk", "ab", "openssl", "pip3"].iter().any(|name| packages::program(name).is_none()) {
        return Ok(()); // reported when the packages were looked up
    }
    steps.call("web server", "cargo xtask http", || match all(program) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn all(program: &Program) -> Result<(), String> {
    let place = scratch("http")?;
    let dir = place.0.join("files");
    fill(&dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let mut wrong = Vec::new();
    let mut served = Served::start(program, &disk(&dir), &["--http=http!127.0.0.1!0"])?;
    let url = url(&served)?;
    answers::all(&url, &mut wrong)?;
    clients::all(&url, &dir, &place.0, &mut wrong)?;
    // The server accepts all host names of these requests.
    let names =
        format!("--http=http!127.0.0.1!0{}", requests::HOSTS.map(|host| format!(" -host {host}")).concat());
    let named = Served::start(program, &disk(&dir), &[&names])?;
    requests::all(&self::url(&named)?, &mut wrong)?;
    clients::over_tls(program, &dir, &place.0, &mut wrong)?;
    if wrong.is_empty() {
        return Ok(());
    }
    wrong.push(served.log());
    Err(wrong.join("\n"))
}

fn url(served: &Served) -> Result<String, String> {
    served.url().ok_or("it does not say where browsers find it".to_string())
}

fn disk(dir: &Path) -> String {
    format!("disk:{}", dir.display())
}

/// Creates files: text, pages, binary data, an empty file, a large one, and a tree.
fn fill(dir: &Path) -> std::io::Result<()> {
    let numbers = |to: u32| (1..=to).map(|n| format!("{n}\n")).collect::<String>();
    let bytes =
        |count: u32| (0..count).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect::<Vec<u8>>();
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>t</title></head>{}</html>\n",
        "<p>".repeat(99)
    );
    fs::create_dir_all(dir.join("tree/deep"))?;
    fs::create_dir_all(dir.join("site"))?;
    fs::write(dir.join("text.txt"), numbers(2000))?;
    fs::write(dir.join("page.html"), &page)?;
    fs::write(dir.join("site/index.html"), page)?;
    fs::write(dir.join("bytes.bin"), bytes(300_000))?;
    fs::write(dir.join("large.bin"), bytes(20_000_000))?;
    fs::write(dir.join("empty.txt"), "")?;
    fs::write(dir.join("tree/one"), bytes(100_000))?;
    fs::write(dir.join("tree/t w o.txt"), numbers(10))?;
    fs::write(dir.join("tree/dr\u{fc}ben.txt"), numbers(5000))?;
    fs::write(dir.join("tree/deep/&amp;#?.css"), "a {}\n")
}

/// Returns the directory of a package from PyPI, by name and version. `fetch` downloads it once.
fn fetched(what: &str, fetch: impl FnOnce(&Path) -> Result<(), String>) -> Result<PathBuf, String> {
    let dir = crate::target().join("http").join(what);
    if !dir.exists() {
        let part = dir.with_extension("part");
        let _ = fs::remove_dir_all(&part);
        fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
        fetch(&part).map_err(|why| format!("{what} cannot be had from PyPI: {why}"))?;
        fs::rename(&part, &dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    }
    Ok(dir)
}

/// Returns the output of a program, which must succeed.
fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let name = command.get_program().display().to_string();
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let words: Vec<_> = command.get_args().map(|word| word.display().to_string()).collect();
    Err(format!("{name} {}: {}: {}", words.join(" "), output.status, String::from_utf8_lossy(&output.stderr)))
}

fn pip() -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--quiet", "--disable-pip-version-check"]);
    pip
}
