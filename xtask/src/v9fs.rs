//! The Linux kernel's 9P client on our servers, in a guest.
//!
//! The checks are in `guest/v9fs.sh` and, over a mux, `guest/mux.sh`. This file prepares the files and the servers, and
//! finally examines the host's folders.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::guest::{self, Guest, Trouble, folder, lacking, quoted, scratch};
use crate::mux::Mux;
use crate::packages;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps, cargo};

/// Runs checks of some seconds, or all of them with `all`. `only` selects those whose names contain it.
pub fn run(steps: &mut Steps, program: &Program, all: bool, only: &str) -> Result<(), Failed> {
    if let Some(what) = lacking() {
        steps.not_covered(format!("the Linux kernel as a client: {what}"));
        return Ok(());
    }
    if all {
        tools(steps)?;
        if !packages::is_root() {
            let what = "the rights of each user of the Linux kernel's client, and pjdfstest (must be root)";
            steps.not_covered(what.to_string());
        }
    }
    let step = if all { (ALL, "cargo xtask v9fs --all") } else { (QUICK, "cargo xtask v9fs") };
    guest::call(steps, step, "the Linux kernel as a client", all, || work(program, all, only))
}

fn work(program: &Program, all: bool, only: &str) -> Result<(), Trouble> {
    let place = scratch("v9fs").map_err(Trouble::NotEnded)?;
    let (share, disk) = (place.0.join("share"), place.0.join("disk"));
    prepare(&place.0).map_err(Trouble::NotEnded)?;
    let start =
        |what: &str, options: &[&str]| Served::start(program, what, options).map_err(Trouble::NotEnded);
    let what = format!("disk:{}", disk.display());
    let mut served = vec![start(&what, &[])?, start("ram:1G", &[])?];
    if packages::is_root() && all {
        served.push(start(&what, &["--as", "client"])?);
    }
    let as_client = served.get(2).map_or(0, |served| served.port);
    if all {
        lend(&share).map_err(Trouble::NotEnded)?;
    }
    let mut mux = Mux::start(program, &share.join("mux")).map_err(Trouble::NotEnded)?;
    let [over, asked] = mux.as_ref().map_or([0, 0], Mux::ports);
    let (space, policy) = (place.0.join("net.ns"), place.0.join("net.policy"));
    // The server does not know the guest as a user.
    fs::write(&policy, "allow any *!loopback!*\n")
        .and_then(|()| fs::write(&space, format!("mount 'net:{}' /net\n", policy.display())))
        .map_err(|e| Trouble::NotEnded(format!("{}: {e}", space.display())))?;
    served.push(start(&space.display().to_string(), &[])?);
    let net = served.last().map_or(0, |served| served.port);
    let archive = place.0.join("archive").display().to_string();
    make(program, &archive).map_err(Trouble::NotEnded)?;
    let token = share.join("token").display().to_string();
    // The server creates the token. A client that presents it may write the console.
    let trusts = ["--listen", "tcp!127.0.0.1!0", "--token-file", &token];
    served.push(start(&format!("fs:{archive}"), &trusts)?);
    let archive = served.last().map_or(0, |served| served.port);
    let how = if all { "all" } else { "quick" };
    let ports =
        [served[0].port, as_client, served[1].port, over, asked, net, archive].map(|port| port.to_string());
    let mut guest = Guest::new(&["bash", "/share/v9fs.sh", how]);
    guest.command.extend(ports);
    guest.command.push(only.to_string());
    guest.share = Some(share.clone());
    guest.limit = Duration::from_secs(if all { 3600 } else { 720 });
    let ended = match &mut mux {
        Some(mux) => mux.beside(|| guest.run()),
        None => guest.run(),
    };
    let found = match &ended {
        Ok(ended) if ended.status != 0 => Some(format!("{} checks failed in the guest", ended.status)),
        Ok(ended) if !ended.output.contains("\nok ") && !ended.output.starts_with("ok ") => {
            Some("not one check has run in the guest".to_string())
        }
        Ok(_) => {
            let beneath = ["mux/diod/trees", "mux/ours/trees"].map(|dir| share.join(dir));
            let beneath = mux.iter().flat_map(|_| beneath.each_ref());
            let source = place.0.join("source");
            std::iter::once(&disk).chain(beneath).find_map(|dir| compare(&source, dir, only.is_empty()))
        }
        Err(_) => None,
    };
    let mut logs = || {
        let logs: String = served.iter_mut().map(Served::log).collect();
        logs + &mux.as_mut().map(Mux::log).unwrap_or_default()
    };
    match (ended, found) {
        (Ok(_), None) => Ok(()),
        (Ok(_), Some(what)) => Err(Trouble::NotEnded(format!("{what}\n{}", logs()))),
        (Err(Trouble::NotEnded(why)), _) => Err(Trouble::NotEnded(format!("{why}{}", logs()))),
        (Err(never), _) => Err(never),
    }
}

/// Creates an archive in one file.
fn make(program: &Program, path: &str) -> Result<(), String> {
    let mut ream = Command::new(&program.0);
    ream.args(["--config", "/dev/null", "fs", "ream", path, "--size", "2G"]);
    match ream.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ninefold fs ream: {}", String::from_utf8_lossy(&output.stderr))),
        Err(e) => Err(format!("{}: {e}", program.0.display())),
    }
}

/// Prepares the files to copy: each tree as an archive, with its checksums and a listing.
fn prepare(place: &Path) -> Result<(), String> {
    for dir in ["share", "disk"] {
        fs::create_dir(place.join(dir)).map_err(|e| format!("{dir}: {e}"))?;
    }
    for (name, text) in [
        ("checks.sh", CHECKS),
        ("v9fs.sh", SCRIPT),
        ("mux.sh", MUX),
        ("fsx.toml", FSX),
        ("fsx-mmap.toml", FSX_MMAP),
        ("pjdfstest.known", KNOWN),
        ("pjdfstest.toml", PJDFSTEST),
    ] {
        fs::write(place.join("share").join(name), text).map_err(|e| format!("{name}: {e}"))?;
    }
    tree(&place.join("source/part"), "docs crates/nine-proto/src", 100, 1 << 20)?;
    tree(&place.join("source/whole"), "", 2000, 20 << 20)?;
    let script = "for tree in part whole; do
            cd source/$tree
            find . -type f | sort | tr '\\n' '\\0' | xargs -0 sha256sum >../../share/$tree.sums
            find . -mindepth 1 ! -type d -printf '%P %y %m %l %s %Ts\\n' | sort >../../share/$tree.listing
            tar --sort=name -cf ../../share/$tree.tar *
            cd ../..
        done
        for server in diod ours; do
            mkdir -p share/mux/$server/trees share/mux/$server/union
            echo $server | tee share/mux/$server/where share/mux/$server/union/$server >share/mux/$server/union/both
        done
        cp -a source/* share/mux/diod/";
    shell(script, place)
}

/// Creates a tree with this repository's files below some paths, and with difficult cases for file systems.
fn tree(place: &Path, paths: &str, small: usize, large: u32) -> Result<(), String> {
    for dir in ["repo", "links/deep/er", "many", "hard"] {
        fs::create_dir_all(place.join(dir)).map_err(|e| format!("{dir}: {e}"))?;
    }
    let put = |name: &str, bytes: &[u8]| {
        fs::write(place.join(name), bytes).map_err(|e| format!("{}: {e}", place.join(name).display()))
    };
    put("hard/empty", b"")?;
    put("hard/one byte", b"1")?;
    put(&format!("hard/{}", "long".repeat(63)), b"a name of 252 bytes")?;
    put("hard/\u{e9} \"quoted\" 'and' $spaced\\", b"odd")?;
    put("hard/-dash", b"dash")?;
    let numbers = (0..large / 4).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    put("hard/large", &numbers.collect::<Vec<u8>>())?;
    for n in 0..small {
        put(&format!("many/{n}"), "small\n".repeat(n % 100).as_bytes())?;
    }
    for (mode, name) in [(0o400, "hard/read"), (0o755, "hard/run"), (0o640, "hard/group")] {
        put(name, name.as_bytes())?;
        let mode = fs::Permissions::from_mode(mode);
        fs::set_permissions(place.join(name), mode).map_err(|e| format!("{name}: {e}"))?;
    }
    let long = "t/".repeat(500);
    let links =
        [("../hard/empty", "up"), ("nowhere", "dangling"), ("/etc/passwd", "out"), (&long, "deep/er/long")];
    for (target, name) in links {
        std::os::unix::fs::symlink(target, place.join("links").join(name))
            .map_err(|e| format!("{name}: {e}"))?;
    }
    let root = quoted(&crate::root().display().to_string());
    shell(&format!("git -C {root} -c safe.directory='*' archive HEAD {paths} | tar -x -C repo"), place)
}

fn shell(script: &str, place: &Path) -> Result<(), String> {
    let mut shell = Command::new("bash");
    shell.args(["-euo", "pipefail", "-c", script]).current_dir(place).env("LC_ALL", "C");
    match shell.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{status}: {script}")),
        Err(e) => Err(format!("bash: {e}")),
    }
}

/// Returns the differences between the copied files and those on the host's disk. With `some` there must be some files.
fn compare(source: &Path, disk: &Path, some: bool) -> Option<String> {
    let trees: Vec<_> = match fs::read_dir(disk) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(e) => return Some(format!("{}: {e}", disk.display())),
    };
    if some && trees.is_empty() {
        return Some("nothing has come to lie on the host's disk".to_string());
    }
    trees.iter().find_map(|tree| {
        let name = tree.file_name().unwrap_or_default().display().to_string();
        let (source, plain) =
            (source.join(name.split('-').next().unwrap_or_default()), name.contains("-9p2000-"));
        let mut diff = Command::new("diff");
        diff.args(["-r", "--no-dereference"]).args(plain.then_some("--exclude=links")).arg(source).arg(tree);
        match diff.output() {
            Ok(output) if output.status.success() => None,
            Ok(output) => Some(format!("on the host's disk: {}", String::from_utf8_lossy(&output.stdout))),
            Err(e) => Some(format!("diff: {e}")),
        }
    })
}

/// Copies the programs of [`tools`] into the share, because the guest does not see the host's /tmp.
pub fn lend(share: &Path) -> Result<(), String> {
    for program in ["fsx", "pjdfstest"] {
        let from = folder()?.join("tools/bin").join(program);
        fs::copy(&from, share.join(program)).map_err(|e| format!("{}: {e}", from.display()))?;
    }
    Ok(())
}

/// Builds fsx and pjdfstest, which never change, once for all checkouts of this user. They are cached by version, and
/// copied into `target/guest/tools`.
pub fn tools(steps: &mut Steps) -> Result<(), Failed> {
    let Ok(tools) = folder().map(|dir| dir.join("tools/bin")) else { return Ok(()) };
    for (name, version) in [("fsx", "0.3.2"), ("pjdfstest", "0.2.2")] {
        if tools.join(name).exists() {
            continue;
        }
        let kept = packages::cache().join(format!("{name}-{version}"));
        if !kept.join("bin").join(name).exists() {
            let words = ["install", "--quiet", "--locked", "--debug", "--version", version, name, "--root"];
            let mut install = cargo(&words);
            steps.run(name, install.arg(&kept).env_remove("CARGO_TARGET_DIR"))?;
        }
        steps.call(&format!("{name} in target"), "cargo xtask tools", || {
            let copied = fs::create_dir_all(&tools)
                .and_then(|()| fs::copy(kept.join("bin").join(name), tools.join(name)));
            copied.inspect_err(|e| eprintln!("{}: {e}", tools.display())).is_ok()
        })?;
    }
    Ok(())
}

const QUICK: &str = "Linux 9P client, quick";
const ALL: &str = "Linux 9P client";
/// Common functions of the scripts in a guest.
pub const CHECKS: &str = include_str!("../guest/checks.sh");
const SCRIPT: &str = include_str!("../guest/v9fs.sh");
const MUX: &str = include_str!("../guest/mux.sh");
pub const FSX: &str = include_str!("../guest/fsx.toml");
pub const FSX_MMAP: &str = include_str!("../guest/fsx-mmap.toml");
pub const PJDFSTEST: &str = include_str!("../guest/pjdfstest.toml");
/// Known failures of pjdfstest, with their reasons in docs/testing.md.
const KNOWN: &str = include_str!("../guest/pjdfstest.known");
