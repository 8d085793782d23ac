//! `ninefold top` on a name space with another server, as used by people and by scripts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::tcgetattr;
use serde_json::Value;

use crate::common::terminal::Terminal;
use crate::common::{Server, ended_within};

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Starts another server, and one that mounts it on /far.
fn servers() -> (Server, Server) {
    let far = Server::start();
    fs::write(far.files().join("news"), "far away\n").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (here, there) = (dir.path().join("s"), far.socket());
    let lines = format!("mount -r unix!{} /far\nlisten unix!{}\n", there.display(), here.display());
    fs::write(dir.path().join("home.ns"), lines).unwrap();
    (far, Server::in_dir(dir, &["serve", "home.ns"]))
}

/// Reads JSON objects, one per line, until one matches.
fn until(lines: &mut impl Iterator<Item = std::io::Result<String>>, mut is: impl FnMut(&Value) -> bool) {
    let begun = Instant::now();
    loop {
        let line = lines.next().expect("it goes on").unwrap();
        if is(&serde_json::from_str(&line).unwrap()) {
            return;
        }
        assert!(begun.elapsed() < LIMIT, "{line}");
    }
}

fn ends(mut child: Child) {
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    ended_within(&mut child, LIMIT).expect("it ends");
}

#[test]
fn a_script_sees_what_is_asked_how_long_it_takes_and_who_is_away() {
    let (mut far, near) = servers();
    assert_eq!(near.ok(["cat", "/far/news"]), "far away\n");
    let mut top = near.client().args(["top", "--json", "-d", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let name = format!("unix!{}", far.socket().display());
    let server = |seen: &Value| {
        seen["servers"].as_array().unwrap().iter().find(|server| server["name"] == *name).cloned()
    };
    until(&mut lines, |seen| {
        near.ok(["cat", "/far/news"]);
        let server = server(seen).unwrap();
        let asks = server["requests"].as_f64().unwrap() > 0.0 && server["received"].as_f64().unwrap() > 0.0;
        let us = |key: &str| server[key].as_u64();
        assert!(us("p50-us") <= us("p99-us") && server["away"].is_null(), "{server}");
        asks && us("p50-us").is_some_and(|us| us > 0)
    });
    until(&mut lines, |seen| {
        // `top` itself is a client, too.
        let clients = seen["clients"].as_array().unwrap();
        clients
            .iter()
            .any(|client| client["requests"].as_f64() > Some(0.0) && client["sent"].as_f64() > Some(0.0))
    });
    far.child.kill().unwrap();
    far.child.wait().unwrap();
    until(&mut lines, |seen| server(seen).is_some_and(|server| server["dialect"] == "-"));
    ends(top);
}

#[test]
fn once_is_a_table_of_a_name_space_and_of_one_directory() {
    let (_far, near) = servers();
    let plain = Server::start();
    for server in [&near, &plain] {
        let text = server.ok(["top", "--once", "-d", "0.1"]);
        let heads: Vec<_> = text.lines().filter(|line| line.contains("REQ/s")).collect();
        assert!(
            heads.len() == 2 && heads[0].starts_with("SERVER") && heads[1].starts_with("CLIENT"),
            "{text}"
        );
    }
    // `top` itself is a client.
    let seen: Value = plain.ok(["top", "--once", "--json", "-d", "0.1"]).parse().unwrap();
    assert!(seen["servers"][0]["requests"].as_f64() > Some(0.0), "{seen}");
    let said = plain.run(["top", "-d", "0"]);
    assert_eq!(said.status.code(), Some(2));
}

#[test]
fn a_terminal_is_as_it_was_afterwards_whatever_size_it_had() {
    let (_far, mut near) = servers();
    let mut terminal = Terminal::new();
    terminal.resize(100, 30);
    let before = tcgetattr(&terminal.user).unwrap();
    for quit in ["q", "\x03", "TERM"] {
        let mut top = terminal.gives(&mut near.client()).arg("top").args(["-d", "0.1"]).spawn().unwrap();
        terminal.shows("\x1b[?1049h");
        terminal.shows("requests/s");
        terminal.shows("quit");
        for (columns, lines) in [(3, 2), (200, 50)] {
            terminal.resize(columns, lines);
            // The whole screen is redrawn.
            terminal.shows("\x1b[2J");
        }
        terminal.types(" ");
        // Only changed letters are written, and these are new.
        terminal.shows("PAUSED");
        terminal.types(" ");
        match quit {
            "TERM" => kill_process(Pid::from_child(&top), Signal::TERM).unwrap(),
            key => terminal.types(key),
        }
        terminal.shows("\x1b[?1049l");
        ended_within(&mut top, LIMIT).expect("it ends");
        let after = tcgetattr(&terminal.user).unwrap();
        assert_eq!((after.local_modes, after.input_modes), (before.local_modes, before.input_modes));
    }
    // A silent server does not prevent the user from quitting.
    let mut top = terminal.gives(&mut near.client()).arg("top").args(["-d", "0.1"]).spawn().unwrap();
    terminal.shows("requests/s");
    kill_process(Pid::from_child(&near.child), Signal::STOP).unwrap();
    terminal.types("q");
    ended_within(&mut top, LIMIT).expect("it ends");
    kill_process(Pid::from_child(&near.child), Signal::CONT).unwrap();
    // When the server disconnects, the screen shows that.
    let mut top = terminal.gives(&mut near.client()).arg("top").args(["-d", "0.1"]).spawn().unwrap();
    terminal.shows("requests/s");
    near.child.kill().unwrap();
    near.child.wait().unwrap();
    terminal.shows("away, tried again");
    terminal.types("q");
    ended_within(&mut top, LIMIT).expect("it ends");
}

#[test]
fn who_looks_ends_when_his_terminal_goes() {
    let (_far, near) = servers();
    let mut terminal = Terminal::new();
    terminal.resize(100, 30);
    let mut top = terminal.gives(&mut near.client()).arg("top").spawn().unwrap();
    terminal.shows("requests/s");
    terminal.types(" ");
    drop(terminal);
    ended_within(&mut top, LIMIT).expect("it ends");
}
