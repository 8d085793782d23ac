//! diod's client programs against our server. Their exact output is known.

use std::fs;
use std::process::Command;

use crate::guest::scratch;
use crate::packages;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if packages::program("diodls").is_none() {
        return Ok(()); // reported when the packages were looked up
    }
    steps.call("diod's programs", "cargo xtask diod", || match all(program) {
        Ok(()) => true,
        Err(why) => {
            eprintln!("{why}");
            false
        }
    })
}

fn all(program: &Program) -> Result<(), String> {
    let place = scratch("diod")?;
    let dir = place.0.join("disk");
    let put = |name: &str, bytes: &[u8]| {
        let path = dir.join(name);
        let made = fs::create_dir_all(path.parent().unwrap_or(&dir));
        made.and_then(|()| fs::write(&path, bytes)).map_err(|e| format!("{}: {e}", path.display()))
    };
    put("hello", b"hello, world\n")?;
    let large: Vec<u8> = (0..300_000_u32).map(|n| (n % 251) as u8).collect();
    put("large", &large)?;
    for n in 0..500 {
        put(&format!("many/{n:03}"), b"")?;
    }
    // The contents that diod's own synthetic files would have. Its programs read them by these names.
    put("ctl/date", b"1000000000.0 0.0\n")?;
    put("ctl/connections", b"one 0 0\ntwo 0 0\n")?;
    put("ctl/zero", &[0; 1 << 20])?;
    put("ctl/null", b"")?;

    for what in [format!("disk:{}", dir.display()), "ram:".to_string()] {
        let mut served = Served::start(program, &what, &[])?;
        if what == "ram:" {
            fill(program, &served, &dir)?;
        }
        work(&served, &large).map_err(|why| format!("{what}: {why}\n{}", served.log()))?;
    }
    Ok(())
}

/// Copies the same files into a tree in memory.
fn fill(program: &Program, served: &Served, dir: &std::path::Path) -> Result<(), String> {
    let server = format!("tcp!127.0.0.1!{}", served.port);
    for name in ["hello", "large", "many", "ctl"] {
        let mut put = Command::new(&program.0);
        put.args(["--config", "/dev/null", "put", "-r", "--server", &server]).arg(dir.join(name)).arg(":/");
        let status = put.status().map_err(|e| e.to_string())?;
        if !status.success() {
            return Err(format!("ninefold put {name}: {status}"));
        }
    }
    Ok(())
}

fn work(served: &Served, large: &[u8]) -> Result<(), String> {
    let said = |line: &str, status: i32, out: &[u8], err: &str| said(served, line, status, out, err);
    let sorted = |line: &str| {
        let mut names: Vec<String> = answer(served, line)?.1.lines().map(String::from).collect();
        names.sort();
        Ok::<_, String>(names.join(" "))
    };
    let same = |is: String, should: &str| {
        if is == should { Ok(()) } else { Err(format!("listed {is:?} instead of {should:?}")) }
    };
    let many: Vec<String> = (0..500).map(|n| format!("{n:03}")).collect();
    same(sorted("diodls -a /")?, "ctl hello large many")?;
    same(sorted("diodls -a / many")?, &many.join(" "))?;
    same(sorted("diodls -m 512 -a /many")?, &many.join(" "))?;
    same(sorted("diodls -a / none")?, "")?;
    said("diodls -a / none", 1, b"", "diodls: none: No such file or directory\n")?;
    said("diodcat -a / hello", 0, b"hello, world\n", "")?;
    said("diodcat -a / large", 0, large, "")?;
    said("diodcat -m 4096 -a / large", 0, large, "")?;
    said("diodcat -a / many/000", 0, b"", "")?;
    said("diodcat -a / hello none", 1, b"hello, world\n", "diodcat: open none: No such file or directory\n")?;
    said(
        "diodcat -a /none x",
        1,
        b"",
        "diodcat: error attaching to aname='/none': No such file or directory\n",
    )?;
    said("dioddate", 0, b"Sun Sep  9 01:46:40 2001\n", "")?;
    said("diodshowmount -l", 0, b"one\ntwo\n", "")?;
    let (status, out, err) = answer(served, "diodls -l -a / hello")?;
    let parts = ["-rw-r--r--", " 13 ", " hello\n"];
    if (status, err.as_str()) != (0, "") || !parts.iter().all(|part| out.contains(part)) {
        return Err(format!("diodls -l: status {status}: {out}{err}"));
    }
    // Reads of ctl/zero and writes of ctl/null, then attributes, from four threads for a second each.
    for (line, zero) in [("diodload -r 1 -n 4", " 0 rMB/s"), ("diodload -r 1 -n 4 -g", ": 0 ops/s")] {
        let (status, _, err) = answer(served, line)?;
        if status != 0 || !err.contains(" ops/s, ") || err.contains(zero) || err.lines().count() != 1 {
            return Err(format!("{line}: status {status}: {err}"));
        }
    }
    Ok(())
}

/// Fails unless a program has this exit status and this output.
fn said(served: &Served, line: &str, status: i32, out: &[u8], err: &str) -> Result<(), String> {
    let is = answer(served, line)?;
    let out = String::from_utf8_lossy(out);
    if is == (status, out.to_string(), err.to_string()) {
        return Ok(());
    }
    let is_out: String = is.1.chars().take(200).collect();
    Err(format!("{line}: status {}, {} bytes: {is_out}{}", is.0, is.1.len(), is.2))
}

/// Returns the exit status of a program and its stdout and stderr.
fn answer(served: &Served, line: &str) -> Result<(i32, String, String), String> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    let program = packages::program(name).ok_or_else(|| format!("{name} is not there"))?;
    let mut command = Command::new(program);
    command
        .args(["-s", &format!("127.0.0.1:{}", served.port)])
        .args(words)
        .env("LC_ALL", "C")
        .env("TZ", "UTC");
    if name != "diodload" {
        command.args(["-t", "60"]);
    }
    let output = command.output().map_err(|e| format!("{name}: {e}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr)))
}
