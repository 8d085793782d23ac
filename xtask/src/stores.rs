//! An archive on third-party object stores: versitygw (Go), which checks signatures, and moto (Python). A dump must be
//! readable after a restart.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::{Child, last_lines};
use crate::guest::scratch;
use crate::packages;
use crate::served::{Program, Served};
use crate::steps::{Failed, Steps};

/// Versions of the stores, which are fetched once.
const VERSITY: &str = "v1.8.0";
const MOTO: &str = "5.2.5";
/// Our access key and secret.
const KEY: (&str, &str) = ("glenda", "glendas-secret");
/// Timeout for the start of a store.
const LONG: Duration = Duration::from_secs(120);

/// Starts a store in a directory, on a port.
type Start = fn(&Path, u16) -> Result<Child, String>;

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    for (name, needs, start) in [("versitygw", "go", versity as Start), ("moto", "python3", moto as Start)] {
        if packages::program(needs).is_none() {
            steps.not_covered(format!("an archive on {name} ({needs} is not installed)"));
            continue;
        }
        // A store that cannot be fetched is not covered. A store that can be fetched must work.
        if let Err(why) = fetch(name) {
            steps.not_covered(format!("an archive on {name} ({why})"));
            continue;
        }
        steps.call(&format!("archive on {name}"), "cargo xtask stores", || {
            match all(program, name, start) {
                Ok(()) => true,
                Err(why) => {
                    eprintln!("{name}: {why}");
                    false
                }
            }
        })?;
    }
    Ok(())
}

/// The directory of a fetched store.
fn place(name: &str) -> PathBuf {
    let version = if name == "moto" { MOTO } else { VERSITY };
    crate::target().join("stores").join(format!("{name}-{version}"))
}

fn fetch(name: &str) -> Result<(), String> {
    let dir = place(name);
    if dir.exists() {
        return Ok(());
    }
    let part = dir.with_extension("part");
    let _ = fs::remove_dir_all(&part);
    fs::create_dir_all(&part).map_err(|e| format!("{}: {e}", part.display()))?;
    let mut command = if name == "moto" {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--target"]);
        pip.arg(&part).arg(format!("moto[server]=={MOTO}"));
        pip
    } else {
        let mut go = Command::new("go");
        go.args(["install", &format!("github.com/versity/versitygw/cmd/versitygw@{VERSITY}")]);
        go.env("GOBIN", &part).env("GOFLAGS", "-modcacherw").env("GOPATH", part.join("go"));
        go
    };
    println!("==> {name}: it is fetched");
    let output = command.stdin(Stdio::null()).output().map_err(|e| e.to_string())?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        return Err(format!("it cannot be fetched: {}", last_lines(&said, 1).trim()));
    }
    let _ = fs::remove_dir_all(part.join("go"));
    fs::rename(&part, &dir).map_err(|e| format!("{}: {e}", dir.display()))
}

/// Starts versitygw, whose buckets are directories.
fn versity(dir: &Path, port: u16) -> Result<Child, String> {
    fs::create_dir_all(dir.join("objects/attic")).map_err(|e| e.to_string())?;
    let words = [
        format!("ROOT_ACCESS_KEY={}", KEY.0),
        format!("ROOT_SECRET_KEY={}", KEY.1),
        place("versitygw").join("versitygw").display().to_string(),
        "--port".into(),
        format!("127.0.0.1:{port}"),
        "posix".into(),
        // The file system of a scratch directory may lack extended attributes.
        "--sidecar".into(),
        dir.join("attributes").display().to_string(),
        dir.join("objects").display().to_string(),
    ];
    fs::create_dir_all(dir.join("attributes")).map_err(|e| e.to_string())?;
    Child::start("env", &words, false)
}

fn moto(_: &Path, port: u16) -> Result<Child, String> {
    let words = [
        format!("PYTHONPATH={}", place("moto").display()),
        "python3".into(),
        "-c".into(),
        "from moto.server import main; main()".into(),
        "-H".into(),
        "127.0.0.1".into(),
        "-p".into(),
        port.to_string(),
    ];
    let mut child = Child::start("env", &words, false)?;
    child
        .wait_for("Running on", LONG)
        .map_err(|why| format!("{why}\n{}", last_lines(&child.output(), 20)))?;
    said(Command::new("python3").args([
        "-c",
        &format!(
            "import urllib.request as u; u.urlopen(u.Request('http://127.0.0.1:{port}/attic', method='PUT')).read()"
        ),
    ]))?;
    Ok(child)
}

/// Makes a dump and reads it. Restarts the server with a larger store size, reads the dump again, and makes another
/// one.
fn all(program: &Program, name: &str, start: Start) -> Result<(), String> {
    let scratch = scratch("stores")?;
    let dir = &scratch.0;
    let failed = |e: std::io::Error| format!("{}: {e}", dir.display());
    let port = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).map_err(failed)?.port();
    let mut store = start(dir, port)?;
    until_it_answers(port, &mut store)?;
    // Steps start programs with the present environment. A script sets the keys.
    let keyed = dir.join("ninefold");
    let text = format!(
        "#!/bin/sh\nexport AWS_ACCESS_KEY_ID={} AWS_SECRET_ACCESS_KEY={}\nexec {} \"$@\"\n",
        KEY.0,
        KEY.1,
        program.0.display()
    );
    fs::write(&keyed, text).map_err(failed)?;
    fs::set_permissions(&keyed, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    let cache = dir.join("cache");
    fs::File::create(&cache).and_then(|file| file.set_len(200 << 20)).map_err(failed)?;
    let tree = dir.join("tree");
    fs::create_dir(&tree).map_err(failed)?;
    for n in 0..60_usize {
        let bytes: Vec<u8> = (0..n * n * 2000).map(|i| (i * (n + 1) % 251) as u8).collect();
        fs::write(tree.join(n.to_string()), bytes).map_err(failed)?;
    }
    let of = |words: &str| {
        format!("c w\"{}\" s3\"attic/{name}?endpoint=http://127.0.0.1:{port}{words}\"", cache.display())
    };
    let (expr, larger) = (of(""), of("&size=100T"));
    let run = |words: &[&str]| said(Command::new(&keyed).args(["--config", "/dev/null"]).args(words));
    run(&["fs", "ream", &expr, "--no-fastworm"])?;
    let socket = format!("unix!{}", dir.join("s").display());
    let listen = ["--listen", "tcp!127.0.0.1!0 -insecure", "--listen", &socket];
    let keyed = Program(keyed.clone());
    for (life, expr) in [&expr, &larger].into_iter().enumerate() {
        let mut served = Served::start(&keyed, &format!("fs:{expr}"), &listen)?;
        let lives = || -> Result<(), String> {
            let ask = |words: &[&str]| run(&[words, &["--server", &socket]].concat());
            let back = dir.join(format!("back{life}"));
            if life == 0 {
                ask(&["put", "-q", "-r", &tree.display().to_string(), ":/archive/tree"])?;
                ask(&["fs", "dump", "--wait"])?;
                ask(&["rm", "-r", ":/archive/tree"])?;
            }
            let dumps = ask(&["fs", "dumps", "--json"])?;
            let day = dumps.split("\"name\":\"").nth(1).and_then(|rest| rest.split('"').next());
            let from = format!(":/dump/{}/tree", day.ok_or("there is no dump")?);
            ask(&["get", "-q", "-r", &from, &back.display().to_string()])?;
            said(Command::new("diff").arg("-r").arg(&tree).arg(&back))?;
            if life == 1 {
                ask(&["put", "-q", "-r", &tree.display().to_string(), ":/archive/again"])?;
                ask(&["fs", "dump", "--wait"])?;
            }
            Ok(())
        };
        lives().map_err(|why| format!("{why}\n{}", served.log()))?;
    }
    let whole = run(&["fs", "check", &expr, "--dumps"])?;
    if !whole.ends_with("it is whole\n") {
        return Err(whole);
    }
    let (_, word) = expr.split_once(" s3").unwrap_or_default();
    let status = run(&["block", "status", &format!("ro s3{word}")])?;
    if !status.contains(" 214748364800 sectors") || status.contains("are not there") {
        return Err(status);
    }
    // An arbiter beside the worm: created, then replaced conditionally.
    let arbiter = format!("s3{word}");
    run(&["fs", "arbiter", &arbiter, "mars", "venus"])?;
    run(&["fs", "arbiter", &arbiter, "--again"])?;
    let turns = run(&["fs", "arbiter", &arbiter])?;
    if turns.contains("mars: ") && turns.contains("venus: ") { Ok(()) } else { Err(turns) }
}

/// Waits until the port accepts connections.
fn until_it_answers(port: u16, store: &mut Child) -> Result<(), String> {
    let begun = std::time::Instant::now();
    while std::net::TcpStream::connect(("127.0.0.1", port)).is_err() {
        store.catch_up();
        if begun.elapsed() > LONG {
            return Err(format!("it does not listen\n{}", last_lines(&store.output(), 20)));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(())
}

/// Returns the output of a program, which must succeed.
fn said(command: &mut Command) -> Result<String, String> {
    let name = command.get_program().display().to_string();
    let output = command.stdin(Stdio::null()).output().map_err(|e| format!("{name}: {e}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words: Vec<_> = command.get_args().map(|word| word.display().to_string()).collect();
    Err(format!("{name} {}: {}: {}", words.join(" "), output.status, String::from_utf8_lossy(&output.stderr)))
}
