//! The console on a kernel Ethernet: an archive's server in one network name space, `ninefold cec` in another.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use crate::aoe::site::{Ends, LIMIT, Site};
use crate::common::{chmod, ended_within, ninefold};

const SPACE: &str = "\
mount fs:./archive /archive
mount fsctl: /fs
listen unix!s
listen cec!v0 -password secret -shelf 3 -name mars
";

/// Creates a site with an archive, and a file with its console's password.
fn site() -> Option<Site> {
    let site = Site::new(&[1500])?;
    let ream =
        ninefold(site.home.path()).args(["fs", "ream", "./archive", "--size", "64M"]).output().unwrap();
    assert!(ream.status.success(), "{}", String::from_utf8_lossy(&ream.stderr));
    for (name, text) in [("secret", "open sesame\n"), ("guess", "open barley\n"), ("fs.ns", SPACE)] {
        fs::write(site.path(name), text).unwrap();
        chmod(&site.path(name), 0o600);
    }
    Some(site)
}

/// Serves the name space on the other side, until the value is dropped.
fn serve(site: &Site) -> Ends {
    let mut command = ninefold(site.home.path());
    command.args(["serve", "fs.ns"]);
    let log = File::create(site.path("log")).unwrap();
    let mut command = site.there.within(&command);
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(log).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    while !said.ends_with("ready\n") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}{}", log_of(site));
    }
    assert!(said.contains("cec!v0\n    mars, shelf 3, "), "{said}");
    Ends(child)
}

fn log_of(site: &Site) -> String {
    fs::read_to_string(site.path("log")).unwrap()
}

/// Runs the client on this side with these lines as input.
fn asks(site: &Site, words: &str, lines: &str) -> Output {
    let mut child = piped(site.command(&format!("cec v0 {words}")));
    child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
    child.wait_with_output().unwrap()
}

fn piped(mut command: Command) -> Child {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn an_archive_is_asked_by_lines() {
    let Some(site) = site() else { return };
    let mut server = serve(&site);
    let listed = site.says("cec");
    assert!(listed.starts_with("    3  ") && listed.ends_with("  v0        mars\n"), "{listed}");
    let json = site.says("cec v0 --json");
    assert!(json.contains("\"name\":\"mars\"") && json.contains("\"shelf\":3"), "{json}");
    let mac = listed.split_whitespace().nth(1).unwrap();

    for whom in ["--shelf 3", "--shelf mars", &format!("--ea {mac}")] {
        let lines = "status\nhelp\ndump wait\n\ndumps\nno such thing\nuse other\nexit\n";
        let (status, out, err) = said(&asks(&site, &format!("{whom} --password-file secret"), lines));
        assert_eq!(status, Some(0), "{out}{err}{}", log_of(&site));
        assert!(out.starts_with("password: ###########\nmars> status\n"), "{out}");
        for part in [
            "block 16.0 KiB\n",
            "quota USER BYTES",
            "dump wait\nok\nmars> \nmars> dumps\n20",
            " is no command",
            "there is no archive `other`",
            "mars> exit\n",
        ] {
            assert!(out.contains(part), "{part}: {out}");
        }
    }
    // After EOF of the input the conversation ends when the console is silent.
    let (status, out, _) = said(&asks(&site, "-s 3 --password-file secret --linger 1", "quotas\n"));
    assert!(status == Some(0) && out.contains("mars> quotas\n"), "{out}");
    assert!(log_of(&site).contains(": dump wait") && log_of(&site).contains("has logged in"));

    // A waiting client is notified when the server ends.
    let mut waits = piped(site.command("cec v0 -s 3 --password-file secret"));
    let mut heard = BufReader::new(waits.stdout.take().unwrap());
    waits.stdin.as_mut().unwrap().write_all(b"status\n").unwrap();
    let mut line = String::new();
    while !line.contains("next dump") {
        line.clear();
        assert!(heard.read_line(&mut line).unwrap() > 0);
    }
    kill_process(Pid::from_child(&server.0), Signal::TERM).unwrap();
    assert_eq!(ended_within(&mut server.0, LIMIT).expect("it ends").code(), Some(0), "{}", log_of(&site));
    assert_eq!(ended_within(&mut waits, LIMIT).expect("it is told").code(), Some(1));
}

#[test]
fn a_wrong_password_opens_nothing_and_three_shut_out() {
    let Some(site) = site() else { return };
    let _server = serve(&site);
    for n in 0..3 {
        let (status, out, err) = said(&asks(&site, "-s 3 --password-file guess", "dump\n"));
        assert!(status == Some(1) && err.contains("the password is wrong"), "{n}: {out}{err}");
        assert!(!out.contains("mars>"), "{out}");
    }
    let (status, _, err) = said(&asks(&site, "-s 3 --password-file secret", "dump\n"));
    assert!(status == Some(1) && err.contains("refuses"), "{err}");
    assert!(log_of(&site).contains("a wrong password"));
}

#[test]
fn what_cannot_be_is_said() {
    let Some(site) = site() else { return };
    let (status, _, err) = said(&asks(&site, "-s 9", ""));
    assert!(status == Some(1) && err.contains("nobody like that answers"), "{err}");
    chmod(&site.path("secret"), 0o644);
    let mut command = ninefold(site.home.path());
    command.args(["serve", "fs.ns"]);
    let (status, _, err) = said(&site.there.within(&command).stdin(Stdio::null()).output().unwrap());
    assert!(status == Some(1) && err.contains("others can read the password; try: chmod 600"), "{err}");
    command = ninefold(site.home.path());
    command.args(["serve", "--cec", "cec!v0"]);
    let (status, _, err) = said(&site.there.within(&command).stdin(Stdio::null()).output().unwrap());
    assert!(status == Some(2) && err.contains("-password FILE"), "{err}");
    chmod(&site.path("secret"), 0o600);
    fs::write(site.path("secret"), "short\n").unwrap();
    command = ninefold(site.home.path());
    command.args(["serve", "fs.ns"]);
    let (status, _, err) = said(&site.there.within(&command).stdin(Stdio::null()).output().unwrap());
    assert!(status == Some(1) && err.contains("8 to 31 bytes"), "{err}");
}

#[test]
fn at_a_terminal_keys_go_as_they_are_and_the_escape_is_ours() {
    let Some(site) = site() else { return };
    let _server = serve(&site);
    let mut user: File = {
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        user.into()
    };
    let name = ptsname(&user, Vec::new()).unwrap();
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let screen = rustix::fs::open(name, flags, Mode::empty()).unwrap();
    let mut command = site.command("cec v0 -s mars");
    command.stdin(screen.try_clone().unwrap()).stdout(screen.try_clone().unwrap());
    let before = rustix::termios::tcgetattr(&screen).unwrap();
    let mut client = command.stderr(Stdio::null()).spawn().unwrap();
    let shows = |user: &mut File, words: &str| {
        let mut seen = String::new();
        while !seen.contains(words) {
            let mut due = [PollFd::new(&*user, PollFlags::IN)];
            let limit = rustix::time::Timespec::try_from(LIMIT).unwrap();
            assert_eq!(poll(&mut due, Some(&limit)).unwrap(), 1, "{words:?} after {seen}");
            let mut bytes = [0; 1000];
            let n = user.read(&mut bytes).unwrap();
            seen += std::str::from_utf8(&bytes[..n]).unwrap();
        }
    };
    for (typed, shown) in [
        ("", "password: "),
        ("open sesame\r", "###########\r\nmars> "),
        ("archivez\x7fs\r", "* main\r\nmars> "),
        ("\x1c", ">>> "),
        ("x", "(q)uit"),
        (".", ".\r\n"),
        ("\r", "mars> "),
        ("\x1cq", "q\r\n"),
    ] {
        user.write_all(typed.as_bytes()).unwrap();
        shows(&mut user, shown);
    }
    assert_eq!(ended_within(&mut client, LIMIT).expect("it ends").code(), Some(0));
    let after = rustix::termios::tcgetattr(&screen).unwrap();
    assert_eq!(after.local_modes, before.local_modes);
}
