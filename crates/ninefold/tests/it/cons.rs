//! The console of a running server, with and without a terminal.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nine_io::client::{Options, blocking};
use nine_net::Addr;
use nine_proto::{NOUID, OpenFlags};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OutputModes, tcgetattr};

use crate::common::{Server, ended_within, ninefold};

const LIMIT: Duration = Duration::from_secs(60);
const SPACE: &str = "mount cons: /cons\nmount cons: /dev\n";

/// Returns the root of the server at a socket, for a client that stays connected.
fn root(socket: &Path) -> blocking::File {
    let addr: Addr = format!("unix!{}", socket.display()).parse().unwrap();
    let client = blocking::Client::dial(&addr, LIMIT, Options::default()).unwrap();
    client.attach("", NOUID, "").unwrap()
}

#[test]
fn a_console_without_a_terminal_shows_and_tells() {
    for cores in ["1", "3"] {
        let dir = tempfile::tempdir().unwrap();
        let listen = format!("unix!{}", dir.path().join("s").display());
        let space = format!("{SPACE}listen tcp!127.0.0.1!0 -insecure\n");
        std::fs::write(dir.path().join("home.ns"), space).unwrap();
        let mut server = Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen, "--cores", cores]);
        // There is no keyboard.
        assert_eq!(server.ok(["cat", "/cons/cons"]), "");
        assert_eq!(server.ok(["cat", "/cons/pid"]), format!("{:>11} ", server.child.id()));
        assert_eq!(server.ok(["cat", "/cons/ppid"]), format!("{:>11} ", std::process::id()));
        let host = rustix::system::uname();
        assert_eq!(server.ok(["cat", "/cons/sysname"]), host.nodename().to_str().unwrap());
        assert_eq!(server.ok(["cat", "/cons/user"]), server.ok(["cat", "/cons/hostowner"]));
        assert_eq!(server.ok(["cat", "--user", "rob", "/cons/user"]), "rob");
        let numbers = |file: &str| -> Vec<u64> {
            server.ok(["cat", file]).split_whitespace().map(|n| n.parse().unwrap()).collect()
        };
        let (first, then) = (numbers("/cons/time"), numbers("/dev/time"));
        assert!(
            first[0] > 1_700_000_000 && first[1] / 1_000_000_000 == first[0] && first[3] == 1_000_000_000
        );
        assert!(then[1] > first[1] && then[2] > first[2], "{first:?} {then:?}");
        assert_eq!(numbers("/cons/cputime").len(), 6);

        // The log, before the first read and afterwards.
        let root = root(&server.socket());
        let kprint = root.open("cons/kprint", OpenFlags::READ).unwrap();
        server.ok(["mux", "mount", "ram:", "/scratch"]);
        let mut seen = String::new();
        while !seen.contains("ctl: mount ram: /scratch") {
            seen += std::str::from_utf8(&kprint.read(0, 8000).unwrap()).unwrap();
        }
        let kmesg = server.ok(["cat", "/dev/kmesg"]);
        assert!(kmesg.contains(&seen) && server.log().contains(&seen), "{kmesg}");

        // A client without a proof may read only harmless files.
        let far = server.addr("tcp!");
        assert_eq!(server.ok(["cat", &format!("{far}/cons/sysname")]), host.nodename().to_str().unwrap());
        for file in ["cons", "kmesg", "kprint"] {
            let said = server.fails(["cat", &format!("{far}/cons/{file}")]);
            assert!(said.contains("Permission denied"), "{file}: {said}");
        }
        for file in ["cons", "consctl", "time"] {
            let said = server.fails(["write", &format!("{far}/cons/{file}")]);
            assert!(said.contains("Permission denied"), "{file}: {said}");
        }

        // A mount selects the user of its clients: their own, one user for all, or the owner for
        // all.
        for (line, mine, theirs) in [
            ("cons: /of", true, false),
            ("-u nobody cons: /of", false, false),
            ("-u . cons: /of owner", true, true),
        ] {
            let words: Vec<&str> = ["mux", "mount"].into_iter().chain(line.split(' ')).collect();
            server.ok(words);
            for (place, may) in [(String::new(), mine), (far.clone(), theirs)] {
                let read = server.run(["cat".into(), format!("{place}/of/cons")]);
                assert_eq!(read.status.success(), may, "{line}: {place}");
            }
        }

        // All written text appears, in order, before the end.
        for n in 0..20 {
            server.fed(&["write", "/cons/cons"], format!("{n}\n").as_bytes());
        }
        let (status, rest) = server.stop();
        assert_eq!((status, rest), (Some(0), (0..20).map(|n| format!("{n}\n")).collect()));
    }
}

/// A server with a terminal that the test controls.
struct Terminal {
    dir: tempfile::TempDir,
    child: Child,
    user: File,
    /// Kept open, because its mode is read after the server's end.
    _screen: OwnedFd,
    seen: String,
}

impl Terminal {
    fn start(cores: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("home.ns"), SPACE).unwrap();
        let user = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&user).unwrap();
        unlockpt(&user).unwrap();
        let name = ptsname(&user, Vec::new()).unwrap();
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let screen = rustix::fs::open(name, flags, Mode::empty()).unwrap();
        let child = ninefold(dir.path())
            .args(["serve", "home.ns", "--cores", cores, "--listen"])
            .arg(format!("unix!{}", dir.path().join("s").display()))
            .stdin(screen.try_clone().unwrap())
            .stdout(screen.try_clone().unwrap())
            .stderr(File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let mut terminal = Self { dir, child, user: user.into(), _screen: screen, seen: String::new() };
        terminal.shows("ready\r\n");
        terminal
    }

    /// Waits until the text is on the screen.
    fn shows(&mut self, words: &str) {
        while !self.seen.contains(words) {
            let mut due = [PollFd::new(&self.user, PollFlags::IN)];
            let limit = rustix::time::Timespec::try_from(LIMIT).unwrap();
            assert_eq!(poll(&mut due, Some(&limit)).unwrap(), 1, "{words:?} after {}", self.seen);
            let mut bytes = [0; 1000];
            let n = self.user.read(&mut bytes).unwrap();
            self.seen += std::str::from_utf8(&bytes[..n]).unwrap();
        }
        self.seen.clear();
    }

    fn types(&mut self, keys: &str) {
        self.user.write_all(keys.as_bytes()).unwrap();
    }

    fn client(&self) -> Command {
        let mut command = ninefold(self.dir.path());
        command.env("NINEFOLD_SERVER", format!("unix:{}", self.dir.path().join("s").display()));
        command
    }

    /// Returns whether the terminal is raw: without lines, echo and ^C. Output is processed in both
    /// modes.
    fn is_raw(&self) -> bool {
        let mode = tcgetattr(&self.user).unwrap();
        let lines = LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG;
        assert!(mode.output_modes.contains(OutputModes::OPOST));
        assert!(!mode.local_modes.intersects(lines) || mode.local_modes.contains(lines));
        !mode.local_modes.intersects(lines)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn a_terminal_is_typed_at_and_shown_from_afar() {
    for (cores, signal) in [("1", Signal::TERM), ("3", Signal::INT)] {
        let mut terminal = Terminal::start(cores);
        // A later reader gets earlier input; ^D is EOF.
        terminal.types("wrong\x15early\n");
        terminal.shows("early\r\n");
        let mut cat = terminal.client().args(["cat", "/cons/cons"]).stdout(Stdio::piped()).spawn().unwrap();
        terminal.types("late\n\x04");
        terminal.shows("late\r\n");
        let mut typed = String::new();
        cat.stdout.take().unwrap().read_to_string(&mut typed).unwrap();
        assert_eq!((&*typed, ended_within(&mut cat, LIMIT).unwrap().success()), ("early\nlate\n", true));

        let root = root(&terminal.dir.path().join("s"));
        let cons = root.open("dev/cons", OpenFlags::RDWR).unwrap();
        cons.write(0, b"shown\n").unwrap();
        terminal.shows("shown\r\n");
        let consctl = root.open("cons/consctl", OpenFlags::WRITE).unwrap();
        assert!(!terminal.is_raw());
        consctl.write(0, b"rawon").unwrap();
        assert!(terminal.is_raw());
        terminal.types("\x04\x03\x15");
        let mut keys = Vec::new();
        while keys.len() < 3 {
            keys.extend_from_slice(&cons.read(0, 100).unwrap());
        }
        assert_eq!(keys, b"\x04\x03\x15");
        consctl.write(0, b"rawoff").unwrap();
        assert!(!terminal.is_raw());
        consctl.write(0, b"rawon").unwrap();
        consctl.close().unwrap();
        while terminal.is_raw() {
            std::thread::yield_now();
        }
        // The server ends although a read of the keyboard is blocked, and restores the terminal.
        let consctl = root.open("cons/consctl", OpenFlags::WRITE).unwrap();
        consctl.write(0, b"rawon").unwrap();
        assert!(terminal.is_raw());
        cons.write(0, b"last words\n").unwrap();
        kill_process(Pid::from_child(&terminal.child), signal).unwrap();
        let status = ended_within(&mut terminal.child, LIMIT).expect("it ends");
        assert!(status.success() && !terminal.is_raw());
        terminal.shows("last words\r\n");
    }
}
