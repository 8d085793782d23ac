//! `part:` in a name space, and `partition run --on`: programs in sessions of files.

use std::io::{BufRead, BufReader, Read};
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use nine_io::client::{Options, blocking};
use nine_net::Addr;
use nine_proto::{Dialect, Errno, GetMask, NOGID, NOUID, OpenFlags};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{self, Server, chmod, ended_within, guest, image, not_covered};

const LIMIT: Duration = Duration::from_secs(60);

/// A server with partitions, and the directory of its files.
struct Node {
    server: Server,
    world: tempfile::TempDir,
}

impl Deref for Node {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

impl Node {
    fn kill(&mut self) {
        self.server.signal(Signal::KILL);
        self.server.child.wait().unwrap();
    }
}

/// Starts a server with these lines of a policy.
fn serve(policy: &str) -> Node {
    serve_in(world(policy), &[])
}

fn serve_in(world: tempfile::TempDir, words: &[&str]) -> Node {
    let listen = format!("unix!{}", world.path().join("s").display());
    let script = world.path().join("home.ns");
    let line = [&["serve", script.to_str().unwrap(), "--listen", &listen][..], words].concat();
    let server = Server::in_dir(tempfile::tempdir().unwrap(), &line);
    // The test helpers expect the socket in the server's directory.
    std::os::unix::fs::symlink(world.path().join("s"), server.socket()).unwrap();
    Node { server, world }
}

/// Creates a directory that the programs' user can enter, with a name space file.
fn world(policy: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    chmod(at, 0o711);
    for name in ["fs", "files"] {
        std::fs::create_dir(at.join(name)).unwrap();
        chmod(&at.join(name), 0o755);
    }
    let user = if is_root() { "user nobody\n" } else { "" };
    std::fs::write(at.join("policy"), format!("{user}fs {}\n{policy}", at.join("fs").display())).unwrap();
    std::fs::write(at.join("home.ns"), "mount part:policy /part\nmount disk:files /files\n").unwrap();
    dir
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn client(server: &Server) -> blocking::Client {
    let addr: Addr = format!("unix!{}", server.socket().display()).parse().unwrap();
    // This dialect has texts for errors.
    let options = Options { dialects: vec![Dialect::U], ..Options::default() };
    blocking::Client::dial(&addr, LIMIT, options).unwrap()
}

/// Returns the directory of partitions, for a client that stays connected.
fn part(server: &Server) -> blocking::File {
    client(server).attach("", NOUID, "").unwrap().walk("part").unwrap()
}

/// A session.
struct Session {
    number: String,
    ctl: blocking::File,
    dir: blocking::File,
}

impl Session {
    fn new(part: &blocking::File) -> Self {
        let ctl = part.open("clone", OpenFlags::RDWR).unwrap();
        let number = String::from_utf8(ctl.read(0, 100).unwrap().to_vec()).unwrap().trim().to_owned();
        let dir = part.walk(&number).unwrap();
        Self { number, ctl, dir }
    }

    /// Creates a session that runs a shell.
    fn shell(part: &blocking::File, text: &str) -> Self {
        let session = Self::new(part);
        session.begin(text);
        session
    }

    fn begin(&self, text: &str) {
        self.put("argv", &format!("sh -c '{}'", text.replace('\'', "''")));
        self.tell("exec /bin/sh");
    }

    #[track_caller]
    fn tell(&self, text: &str) {
        self.ctl.write(0, text.as_bytes()).unwrap();
    }

    /// Sends a command that must be refused. Returns the error text.
    #[track_caller]
    fn refuses(&self, text: &str) -> String {
        self.ctl.write(0, text.as_bytes()).unwrap_err().to_string()
    }

    fn open(&self, name: &str, flags: OpenFlags) -> blocking::File {
        self.dir.open(name, flags).unwrap()
    }

    fn put(&self, name: &str, text: &str) {
        self.open(name, OpenFlags::WRITE).write_all_at(0, text.as_bytes()).unwrap();
    }

    /// Reads an output to its end.
    fn all(&self, name: &str) -> String {
        let file = self.open(name, OpenFlags::READ);
        let mut all = Vec::new();
        loop {
            match &*file.read(0, 8192).unwrap() {
                [] => return String::from_utf8(all).unwrap(),
                bytes => all.extend_from_slice(bytes),
            }
        }
    }

    /// Reads the first line of the output.
    fn line(&self) -> String {
        let file = self.open("stdout", OpenFlags::READ);
        let mut line = Vec::new();
        while line.last() != Some(&b'\n') {
            let came = file.read(0, 8192).unwrap();
            assert!(!came.is_empty(), "{}", self.status());
            line.extend_from_slice(&came);
        }
        String::from_utf8(line).unwrap().trim().into()
    }

    fn wait(&self) -> String {
        let end = self.open("wait", OpenFlags::READ).read(0, 1000).unwrap();
        String::from_utf8(end.to_vec()).unwrap()
    }

    fn status(&self) -> String {
        let status = self.open("status", OpenFlags::READ).read(0, 4000).unwrap();
        String::from_utf8(status.to_vec()).unwrap()
    }
}

/// Waits until a process is gone.
fn gone(pid: &str) {
    let stat = PathBuf::from(format!("/proc/{pid}/stat"));
    while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
        std::thread::yield_now();
    }
}

/// Returns whether a session has this kind of confinement; else reports that it is missing.
fn has(session: &Session, what: &str) -> bool {
    let status = session.status();
    let there =
        status.split(' ').skip_while(|word| *word != "confined").nth(1).unwrap_or_default().to_owned();
    let has = there.split(',').any(|of| of == what);
    if !has {
        not_covered(&format!("partitions are not confined by {what} here"));
    }
    has
}

#[test]
fn a_program_runs_and_its_output_and_end_come() {
    let server = serve("");
    let part = part(&server);
    let session = Session::new(&part);
    assert!(session.status().starts_with("Initializing "), "{}", session.status());
    session.put("argv", "sh -c 'echo out $0 $A; echo err >&2; pwd; exit 7' name");
    session.put("env", "A='b  c'\nX=y");
    session.tell("exec sh");
    let out = session.all("stdout");
    assert!(out.starts_with("out name b c\n/"), "{out}");
    assert_eq!(session.all("stderr"), "err\n");
    let end = session.wait();
    assert!(end.starts_with("exit 7 user ") && end.ends_with('\n') && !end.contains("limit"), "{end}");
    let status = session.status();
    assert!(status.starts_with("Finished exit 7 ") && status.contains(" program sh "), "{status}");
    assert!(session.refuses("exec sh").contains("one program, once"));
    // Its directory existed while it ran, and is removed with the session.
    let dir = PathBuf::from(out.lines().nth(1).unwrap());
    assert!(dir.is_dir());
    drop(session);
    while part.walk("0").is_ok() || dir.exists() {
        std::thread::yield_now();
    }
    let log = server.log();
    assert!(
        log.contains("started") && log.contains("ended: exit 7") && log.contains("proof=the owner"),
        "{log}"
    );
}

#[test]
fn what_is_written_is_read_to_its_end() {
    let server = serve("");
    let part = part(&server);
    let session = Session::new(&part);
    let input = session.open("stdin", OpenFlags::WRITE);
    session.tell("exec cat");
    let bytes: Vec<u8> = (0..300_000u32).map(|n| b'a' + (n % 26) as u8).collect();
    let text = std::thread::scope(|scope| {
        // More than any pipe holds: it continues as the output is read.
        scope.spawn(|| {
            input.write_all_at(0, &bytes).unwrap();
            drop(input);
            // A clunk is sent with the next call.
            session.status();
        });
        session.all("stdout")
    });
    assert!(text.into_bytes() == bytes);
    assert!(session.wait().starts_with("exit 0 "));
    let late = session.dir.open("stdin", OpenFlags::WRITE);
    assert_eq!(late.map(drop).unwrap_err().errno(), Errno::EPIPE);
    // Or by a command.
    let session = Session::shell(&part, "cat; echo over");
    session.tell("close");
    assert_eq!(session.all("stdout"), "over\n");
}

#[test]
fn a_program_that_is_written_runs_and_what_is_none_is_told() {
    let server = serve("");
    let part = part(&server);
    let run = |bytes: &[u8]| {
        let session = Session::new(&part);
        let exec = session.open("exec", OpenFlags::WRITE);
        exec.write_all_at(0, bytes).unwrap();
        assert!(session.refuses("exec").contains("exec is open still"));
        exec.close().unwrap();
        let again = session.dir.open("exec", OpenFlags::WRITE).map(drop);
        assert_eq!(again.unwrap_err().errno(), Errno::EEXIST);
        session.put("argv", "job 'a b'");
        session
    };
    let session = run(b"#!/bin/sh\necho \"$1\"\n");
    session.tell("exec");
    assert_eq!(session.all("stdout"), "a b\n");
    let elf = std::fs::read("/bin/echo").unwrap();
    let session = run(&elf);
    session.tell("exec");
    assert_eq!(session.all("stdout"), "a b\n");
    for (bytes, says) in [
        (&b"just words\n"[..], "job: this is no program"),
        (b"#!/no/such/shell\n", "what it is interpreted by is not there"),
        (b"\x7fELF\0\0\0\0", "job: this is no program"),
    ] {
        let session = run(bytes);
        let said = session.ctl.write(0, b"exec").map_err(|error| error.to_string());
        let said = said.expect_err(&format!("{bytes:?}: {}", session.status()));
        assert!(said.contains(says), "{bytes:?}: {said}");
        assert!(session.status().contains(" failed "), "{}", session.status());
    }
    let session = Session::new(&part);
    assert!(session.refuses("exec").contains("no program was written"));
    assert!(session.refuses("exec /no/such").contains("/no/such: there is no such program"));
    assert!(session.refuses("exec no-such").contains("no-such: there is no such program"));
    // After a failure the session can be used again.
    session.tell("exec /bin/true");
    assert!(session.wait().starts_with("exit 0 "));
}

#[test]
fn a_program_that_has_not_all_come_does_not_run() {
    let server = serve("");
    let part = part(&server);
    let session = Session::new(&part);
    let text = b"#!/bin/sh\necho all\n";
    session.tell(&format!("length {}", text.len()));
    let write = |bytes: &[u8]| {
        let exec = session.dir.open("exec", OpenFlags::WRITE)?;
        let written = exec.write_all_at(0, bytes);
        exec.close()?;
        written
    };
    // A half-written program cannot be run, and may be written anew.
    write(&text[..10]).unwrap();
    assert!(session.refuses("exec").contains("not all of it"));
    // Also not a program of which only the last bytes were written.
    let exec = session.open("exec", OpenFlags::WRITE);
    assert!(session.refuses("length 5").contains("is being written"));
    exec.write(text.len() as u64 - 1, b"\n").unwrap();
    exec.close().unwrap();
    assert!(session.refuses("exec").contains("not all of it"));
    assert!(write(&[&text[..], b"more"].concat()).unwrap_err().to_string().contains("it was to have"));
    assert!(session.refuses("exec").contains("not all of it"));
    write(text).unwrap();
    assert_eq!(write(text).unwrap_err().errno(), Errno::EEXIST);
    session.tell("exec");
    assert_eq!(session.all("stdout"), "all\n");
    // A writer that disconnects in the middle leaves no program.
    let session = Session::new(&part);
    session.tell("length 1000");
    let other = client(&server).attach("", NOUID, "").unwrap();
    let exec = other.open(format!("part/{}/exec", session.number), OpenFlags::WRITE).unwrap();
    exec.write_all_at(0, text).unwrap();
    drop((exec, other));
    while !session.refuses("exec").contains("not all of it") {}
}

#[test]
fn a_program_makes_nothing_deeper_than_its_end_reaches() {
    let server = serve("");
    let part = part(&server);
    let deep =
        "n=0; while [ $n -lt 400 ]; do mkdir -m 300 d && cd -P ./d || exit 1; n=$((n+1)); done; echo $n";
    let session = Session::shell(&part, deep);
    let said = session.all("stdout");
    assert_eq!(said, "400\n", "{}", session.all("stderr"));
    let status = session.status();
    let dir = status.split(' ').skip_while(|word| *word != "dir").nth(1).unwrap().trim().to_owned();
    drop(session);
    let _ = part.walk("clone");
    while Path::new(&dir).exists() {
        std::thread::yield_now();
    }
}

#[test]
fn a_channel_gives_nobody_the_owners_rights() {
    let guest = guest("cat");
    let policy = "allow 4711\nprograms /usr /bin /lib /lib64 /etc/ld.so.cache ";
    let server = serve(&format!("{policy}{}\n", guest.display()));
    let bytes = std::fs::read(&guest).unwrap();
    // Returns the output of a program that opens this path.
    let reads = |part: &blocking::File, path: &str| {
        let session = Session::new(part);
        session.tell("channel on");
        session.tell(&format!("length {}", bytes.len()));
        let exec = session.open("exec", OpenFlags::WRITE);
        exec.write_all_at(0, &bytes).unwrap();
        exec.close().unwrap();
        session.put("argv", &format!("cat {path}"));
        session.tell("exec");
        (session.all("stdout"), session.all("stderr"))
    };
    let owner = part(&server);
    let ours = Session::new(&owner);
    let at = format!("part/{}/argv", ours.number);
    ours.put("argv", "it is ours");
    let (out, err) = reads(&owner, &at);
    assert!(out.is_empty() && !err.is_empty(), "{out}{err}");
    if is_root() {
        let named = client(&server).attach("4711", NOUID, "").unwrap().walk("part").unwrap();
        let (out, err) = reads(&named, &at);
        assert!(out.is_empty() && !err.is_empty(), "{out}{err}");
        // A program acts as its own user there.
        let his = Session::new(&named);
        his.put("argv", "it is his");
        let (out, err) = reads(&named, &format!("part/{}/argv", his.number));
        assert_eq!(out, "it is his", "{err}");
    }
}

#[test]
fn a_guard_that_is_killed_has_another_one_after_it() {
    let mut server = serve("");
    let part = part(&server);
    let guard = |not: &str| loop {
        let at = format!("/proc/{}/task", server.child.id());
        let tasks = std::fs::read_dir(at).unwrap().flatten();
        let all: String =
            tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok()).collect();
        let is = |pid: &&str| {
            std::fs::read(format!("/proc/{pid}/cmdline"))
                .is_ok_and(|line| line.ends_with(b"partition-launch\0"))
        };
        if let Some(pid) = all.split_whitespace().filter(|pid| *pid != not).find(is) {
            return pid.to_owned();
        }
    };
    let first = guard("");
    kill_process(Pid::from_raw(first.parse().unwrap()).unwrap(), Signal::KILL).unwrap();
    guard(&first);
    assert!(server.log().contains("another one is started"), "{}", server.log());
    let session = Session::shell(&part, "echo begun; read -r x");
    assert_eq!(session.line(), "begun");
    server.kill();
    while std::fs::read_dir(server.world.path().join("fs")).unwrap().count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn limits_end_a_program_and_say_so() {
    let server = serve("memory 48M\ncpu 5\n");
    let part = part(&server);
    let eats = "x=aaaaaaaaaaaaaaaa; while :; do x=$x$x; done";
    let session = Session::shell(&part, eats);
    let end = session.wait();
    if has(&session, "memory") {
        assert!(end.starts_with("signal KILL ") && end.contains(" limit memory"), "{end}");
    } else {
        assert!(!end.starts_with("exit 0 "), "{end}");
    }
    let session = Session::new(&part);
    assert!(session.refuses("memory 1G").contains("may only be lowered"));
    assert!(session.refuses("cpu 6").contains("may only be lowered"));
    session.tell("memory 32M");
    session.tell("cpu 1");
    session.begin("while :; do :; done");
    assert!(session.refuses("memory 16M").contains("before the program runs"));
    let end = session.wait();
    assert!(end.contains(" limit cpu"), "{end}");
    // Absurd limits are refused, and a limit that is too small is reported.
    let session = Session::new(&part);
    assert!(session.refuses("cpu 18446744073709551615").contains("it is at most"));
    assert!(session.refuses("processes 99999999").contains("it is at most"));
    session.tell("memory 4K");
    match session.ctl.write(0, b"exec /bin/true") {
        Err(error) => assert!(error.to_string().contains("no program begins with so little"), "{error}"),
        Ok(_) => assert!(!session.wait().starts_with("exit 0 "), "{}", session.status()),
    }
    // Without a control group the limit would apply to all sessions of the user.
    if has(&session, "pids") {
        let session = Session::new(&part);
        session.tell("processes 9");
        session.begin("for n in 0 1 2 3 4 5 6 7 8 9; do sleep 100 & done; echo all");
        let (out, err) = (session.all("stdout"), session.all("stderr"));
        assert!(out.is_empty() && err.contains("fork"), "{out}{err}");
    }
}

#[test]
fn there_are_so_many_sessions_and_no_more() {
    let server = serve("number 2\n");
    let part = part(&server);
    let first = Session::new(&part);
    let second = Session::new(&part);
    let error = part.open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(error.errno() == Errno::ENFILE && error.to_string().contains("there are 2 sessions"), "{error}");
    assert_eq!((&*first.number, &*second.number), ("0", "1"));
    drop(first);
    while part.walk("0").is_ok() {}
    assert_eq!(Session::new(&part).number, "2");
}

#[test]
fn somebody_else_may_not_and_who_is_named_may() {
    if !is_root() {
        return not_covered("partitions of several users: that takes root");
    }
    let server = serve("allow 4711\n");
    let client = client(&server);
    let as_user = |uid: &str| client.attach(uid, NOUID, "").unwrap().walk("part").unwrap();
    let (named, other, owner) = (as_user("4711"), as_user("4712"), part(&server));
    let error = other.open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(error.to_string().contains("does not allow 4712 to run programs"), "{error}");
    let his = Session::shell(&named, "echo his; sleep 100");
    assert_eq!(his.line(), "his");
    let path = format!("{}/ctl", his.number);
    assert_eq!(other.open(&path, OpenFlags::RDWR).map(drop).unwrap_err().errno(), Errno::EACCES);
    let ours = Session::new(&owner);
    let error = named.open(format!("{}/stdout", ours.number), OpenFlags::READ).map(drop).unwrap_err();
    assert!(error.to_string().contains("is of"), "{error}");
    // The owner may end any session, and all users may read its status.
    let status =
        other.open(format!("{}/status", his.number), OpenFlags::READ).unwrap().read(0, 1000).unwrap();
    assert!(status.starts_with(b"Running user 4711 "));
    owner.open(&path, OpenFlags::WRITE).unwrap().write(0, b"kill").unwrap();
    assert!(his.wait().starts_with("signal KILL "));
}

#[test]
fn one_user_has_not_all_of_the_sessions() {
    if !is_root() {
        return not_covered("partitions of several users: that takes root");
    }
    let server = serve("allow 4711 4712\nnumber 4\n");
    let client = client(&server);
    let as_user = |uid: &str| client.attach(uid, NOUID, "").unwrap().walk("part").unwrap();
    let (one, two) = (as_user("4711"), as_user("4712"));
    let _his = [Session::new(&one), Session::new(&one)];
    let error = one.open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(error.errno() == Errno::ENFILE && error.to_string().contains("2 sessions are yours"), "{error}");
    let _other = Session::new(&two);
    // The owner may use all sessions that are left.
    let _ours = Session::new(&part(&server));
    let error = two.open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(error.to_string().contains("there are 4 sessions"), "{error}");
}

#[test]
fn a_policy_that_changes_is_followed_by_new_sessions() {
    let server = serve("memory 64M\nnumber 2\n");
    let part = part(&server);
    let before = Session::new(&part);
    let file = server.world.path().join("policy");
    let text = std::fs::read_to_string(&file).unwrap();
    let put = |text: String| {
        std::fs::write(server.world.path().join("new"), text).unwrap();
        std::fs::rename(server.world.path().join("new"), &file).unwrap();
    };
    put(text.replace("64M", "32M").replace("number 2", "number 3"));
    let after = [Session::new(&part), Session::new(&part)];
    assert!(after[0].status().contains(&format!(" most {} ", 32 << 20)), "{}", after[0].status());
    assert!(before.status().contains(&format!(" most {} ", 64 << 20)), "{}", before.status());
    // An invalid policy is ignored, and the log gives the reason.
    put(text + "dance\n");
    let error = part.open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(error.to_string().contains("there are 3 sessions"), "{error}");
    let log = server.log();
    assert!(
        log.contains("is followed") && log.contains("stays as it was") && log.contains("`dance`"),
        "{log}"
    );
}

#[test]
fn a_sessions_directory_is_files() {
    let server = serve("allow 4711\n");
    let part = part(&server);
    let session = Session::new(&part);
    let fs = session.dir.walk("fs").unwrap();
    assert_eq!(fs.getattr(GetMask::BASIC).unwrap().mode, 0o040_700);
    // The program can read the files stored there, and its files can be read.
    let put = fs.create("in", OpenFlags::WRITE, 0o600, NOGID).unwrap();
    put.write_all_at(0, b"put before\n").unwrap();
    put.close().unwrap();
    fs.mkdir("d", 0o755, NOGID).unwrap();
    session.begin("cat in; echo made >d/out; ln -s /etc/passwd way; echo ready; read -r x");
    let mut said = session.line();
    while !said.ends_with("ready") {
        said += &session.line();
    }
    assert!(said.starts_with("put before"), "{said}");
    let read = |path: &str| fs.open(path, OpenFlags::READ).and_then(|file| Ok(file.read(0, 100)?.to_vec()));
    assert_eq!(read("d/out").unwrap(), b"made\n");
    // Neither links of the program, nor our own, nor names lead out of the directory.
    assert!(read("way").is_err() && read("way/x").is_err());
    let _ = fs.symlink("ours", "/etc", NOGID);
    assert!(read("ours/passwd").is_err());
    assert!(read("../../../../etc/passwd").is_err());
    let up = fs.walk("d/../../status").unwrap();
    assert!(up.open("", OpenFlags::READ).unwrap().read(0, 7).unwrap().starts_with(b"Running"));
    // The files belong to the programs' user.
    if is_root() {
        let dir = server.world.path().join("fs");
        let base = std::fs::read_dir(&dir).unwrap().next().unwrap().unwrap().path();
        let owner = std::fs::metadata(base.join(&session.number).join("fs/in")).unwrap().uid();
        assert_ne!(owner, 0);
        // Another user has no access, although he has sessions.
        let client = client(&server);
        for uid in ["4711", "4712"] {
            let other = client.attach(uid, NOUID, "").unwrap().walk("part").unwrap();
            let error = other.walk(&session.number).unwrap().walk("fs").map(drop).unwrap_err();
            assert_eq!(error.errno(), Errno::EACCES, "{error}");
        }
    }
    // A file cannot be moved to another session.
    let second = Session::new(&part);
    let there = second.dir.walk("fs").unwrap();
    assert!(fs.rename("in", &there, "in").is_err() && read("in").is_ok());
    drop(second);
    session.tell("wipe");
    assert_eq!(read("in").unwrap_err().errno(), Errno::EPIPE);
    assert_eq!(session.dir.walk("fs").map(drop).unwrap_err().errno(), Errno::EPIPE);
    drop(session);
    while part.walk("0").is_ok() {}
    assert!(fs.open("in", OpenFlags::READ).is_err());
}

#[test]
fn who_may_change_nothing_runs_nothing() {
    let server = serve_in(world(""), &["--read-only"]);
    let error = part(&server).open("clone", OpenFlags::RDWR).map(drop).unwrap_err();
    assert!(matches!(error.errno(), Errno::EROFS | Errno::EACCES), "{error}");
}

#[test]
fn nobody_is_left_of_a_session_that_is_over() {
    let server = serve("");
    let part = part(&server);
    // A process that leaves its process group, and one with a dead parent.
    let text = "setsid sleep 1000 & a=$!; (sleep 1001 & echo $a $$ $!); exec sleep 1002";
    for how in ["closed", "wiped", "killed", "by itself"] {
        let text = if how == "by itself" { text.replace("exec sleep 1002", "exit 3") } else { text.into() };
        let session = Session::shell(&part, &text);
        let pids = session.line();
        match how {
            "closed" => drop(session),
            "wiped" => {
                session.tell("wipe");
                assert!(session.status().starts_with("Wiped "));
                assert_eq!(session.ctl.write(0, b"exec sh").unwrap_err().errno(), Errno::EPIPE);
                assert_eq!(session.all("stdout"), "");
            }
            "killed" => {
                session.tell("kill");
                assert!(session.wait().starts_with("signal KILL "));
            }
            _ => assert!(session.wait().starts_with("exit 3 ")),
        }
        // A clunk is sent with the next call.
        let _ = part.walk("clone");
        let session = Session::shell(&part, "true");
        session.wait();
        for pid in pids.split(' ').skip(if has(&session, "kill") { 0 } else { 1 }) {
            gone(pid);
        }
    }
}

#[test]
fn a_session_stays_if_it_is_to_until_it_is_wiped() {
    let server = serve("");
    let part = part(&server);
    let session = Session::new(&part);
    session.tell("type persistent");
    session.begin("read -r x; echo got $x");
    let Session { number, ctl, dir } = session;
    ctl.close().unwrap();
    let session = Session { ctl: dir.open("ctl", OpenFlags::RDWR).unwrap(), number, dir };
    session.put("stdin", "it\n");
    assert_eq!(session.all("stdout"), "got it\n");
    assert!(session.status().contains(" type persistent "));
    session.tell("wipe");
    drop(session);
    while part.walk("0").is_ok() {}
}

#[test]
fn signals_reach_the_program() {
    let server = serve("");
    let part = part(&server);
    for (name, says) in [("TERM", "TERM"), ("10", "USR1"), ("INT", "INT")] {
        let text = format!("trap 'echo got {says}; exit 4' {says}; echo ready; while :; do sleep 0.01; done");
        let session = Session::shell(&part, &text);
        assert_eq!(session.line(), "ready");
        session.tell(&format!("signal {name}"));
        assert_eq!(session.all("stdout"), format!("got {says}\n"));
        assert!(session.wait().starts_with("exit 4 "));
        assert!(session.refuses("signal TERM").contains("no program runs"));
    }
    let session = Session::new(&part);
    assert!(session.refuses("signal NOW").contains("write TERM"));
}

#[test]
fn a_wait_is_flushed_and_others_wait_on() {
    let server = serve("");
    let part = part(&server);
    let session = Session::shell(&part, "read -r x");
    let path = format!(":/part/{}/wait", session.number);
    let waits = |kill: bool| {
        let mut cat = server.client();
        let mut cat = cat.args(["cat", &path]).stdout(Stdio::piped()).spawn().unwrap();
        if kill {
            // Kill it at any stage of its read.
            cat.kill().unwrap();
        }
        cat
    };
    waits(true).wait().unwrap();
    let mut cat = waits(false);
    let file = session.open("wait", OpenFlags::READ);
    std::thread::scope(|scope| {
        scope.spawn(|| file.read(0, 100).unwrap());
        session.tell("close");
    });
    let mut said = String::new();
    cat.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(ended_within(&mut cat, LIMIT).is_some_and(|status| status.success()));
    assert!(said.starts_with("exit 1 "), "{said}");
}

#[test]
fn nonsense_is_refused_and_changes_nothing() {
    let server = serve("");
    let part = part(&server);
    let session = Session::new(&part);
    for (text, says) in [
        ("dance", "`dance`: write exec"),
        ("exec 'x", "quote"),
        ("type odd", "write exec"),
        ("memory lots", "invalid size `lots`"),
        ("memory 0", "no memory at all"),
        ("cpu -1", "no number above 0"),
        ("cpus 4000", "no list of processors"),
        ("cpus 1000", "none of those"),
        ("wait nicely", "poll, interrupt or adaptive"),
        ("kill\nkill", "one control request"),
        (&"x".repeat(40_000), "at most 32768 bytes"),
        ("key short", "write exec"),
        ("clone 1 unix:/tmp/s/part/0.0123456789abcdef", "no session of a server that `nodes`"),
    ] {
        let said = session.refuses(text);
        assert!(said.contains(says), "{text}: {said}");
    }
    let odd = session.ctl.write(0, &[0xff, 0xfe]).unwrap_err();
    assert_eq!(odd.errno(), Errno::EINVAL);
    let argv = session.open("argv", OpenFlags::WRITE);
    assert_eq!(argv.write(5, b"x").unwrap_err().errno(), Errno::EINVAL);
    assert_eq!(argv.write_all_at(0, &vec![b'x'; 200 << 10]).unwrap_err().errno(), Errno::E2BIG);
    argv.write(0, &[0xff]).unwrap();
    assert!(session.refuses("exec sh").contains("argv: this is no text"));
    argv.write(0, "x ".repeat(5000).as_bytes()).unwrap();
    assert_eq!(session.ctl.write(0, b"exec sh").unwrap_err().errno(), Errno::E2BIG);
    argv.write(0, b"sh -c 'echo fine'").unwrap();
    session.put("env", "no-variable");
    assert!(session.refuses("exec sh").contains("write NAME=VALUE"));
    session.put("env", "A=b");
    session.tell("exec sh");
    assert_eq!(session.all("stdout"), "fine\n");
    assert_eq!(argv.write(0, b"x").unwrap_err().errno(), Errno::EBUSY);
    for (name, flags) in [("stdout", OpenFlags::WRITE), ("stdin", OpenFlags::READ), ("exec", OpenFlags::READ)]
    {
        assert_eq!(session.dir.open(name, flags).map(drop).unwrap_err().errno(), Errno::EACCES, "{name}");
    }
}

#[test]
fn a_program_is_confined() {
    let server = serve("");
    let part = part(&server);
    let secret = server.dir.path().join("secret");
    std::fs::write(&secret, "it is secret").unwrap();
    chmod(&secret, 0o666);
    chmod(server.dir.path(), 0o777);
    let tries = format!(
        "id -u; echo x >own && echo own; cat {0}; echo x >>{0}; echo x >/tmp/part-$$; kill -0 {1}; \
         cat /proc/{1}/environ; unshare -U true && echo unshared; mount -t tmpfs x /mnt && echo mounted; \
         sh -c 'exec 3<>/dev/tty' && echo terminal; ipcmk -M 4096 && echo shared; ipcmk -S 1 && echo waits; \
         ulimit -c; echo end",
        secret.display(),
        server.child.id(),
    );
    let session = Session::shell(&part, &tries);
    let (out, err) = (session.all("stdout"), session.all("stderr"));
    let lines: Vec<&str> = out.lines().collect();
    assert_ne!(lines[0], "0", "it is not root");
    if has(&session, "landlock") {
        assert_eq!(lines[1..], ["own", "0", "end"], "{out}{err}");
        assert_eq!(std::fs::read_to_string(&secret).unwrap(), "it is secret");
    }
    if has(&session, "seccomp") {
        let none = ["unshared", "mounted", "shared", "waits"];
        assert!(none.iter().all(|word| !out.contains(word)), "{out}");
    }
    // Check the kernel's view.
    let session = Session::shell(&part, "echo $$; read -r x");
    let status = std::fs::read_to_string(format!("/proc/{}/status", session.line())).unwrap();
    let of = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(":\t"));
        line.unwrap_or_default().to_owned()
    };
    assert_eq!(
        (&*of("NoNewPrivs"), &*of("CapEff"), &*of("CapPrm")),
        ("1", "0000000000000000", "0000000000000000")
    );
    assert_eq!(of("Seccomp"), if has(&session, "seccomp") { "2" } else { "0" });
    if is_root() {
        assert!(of("Uid").split('\t').all(|uid| uid != "0") && of("Gid").split('\t').all(|gid| gid != "0"));
        assert_eq!(of("Groups").trim(), "");
    }
}

#[test]
fn a_program_finds_the_name_space_in_its_channel() {
    let guest = guest("cat");
    let dir = world(&format!("programs /usr /bin /lib /lib64 /etc/ld.so.cache {}\n", guest.display()));
    std::fs::write(dir.path().join("files/motd"), "welcome\n").unwrap();
    let server = serve_in(dir, &[]);
    let part = part(&server);
    let session = Session::new(&part);
    session.tell("channel on");
    let exec = session.open("exec", OpenFlags::WRITE);
    exec.write_all_at(0, &std::fs::read(&guest).unwrap()).unwrap();
    exec.close().unwrap();
    session.put("argv", "cat files/motd");
    session.tell("exec");
    assert_eq!(session.all("stdout"), "welcome\n", "{}", session.all("stderr"));
    assert!(session.wait().starts_with("exit 0 "));
    // It inherits no other open file.
    let session = Session::new(&part);
    session.tell("channel on");
    let text = "for n in 0 1 2 3 4 5 6 7 8 9; do { true >&$n; } 2>/dev/null && echo $n; done; echo $NINEFOLD_CHANNEL";
    session.begin(text);
    let out = session.all("stdout");
    let mut lines: Vec<&str> = out.lines().collect();
    let mut channel: Vec<&str> = lines.pop().unwrap().split(':').collect();
    channel.extend(["1", "2"]);
    channel.sort_unstable();
    lines.retain(|line| *line != "0");
    lines.sort_unstable();
    assert_eq!(lines, channel);
}

#[test]
fn a_server_that_is_killed_takes_its_programs_with_it() {
    let mut server = serve("");
    let part = part(&server);
    let session = Session::shell(&part, "setsid sleep 1000 & echo $$ $!; read -r x");
    let pids = session.line();
    let kills = has(&session, "kill");
    server.kill();
    for pid in pids.split(' ').take(if kills { 2 } else { 1 }) {
        gone(pid);
    }
    // Its directories are removed, too.
    while std::fs::read_dir(server.world.path().join("fs")).unwrap().count() > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn processors_are_one_sessions_alone() {
    let server = serve("");
    let part = part(&server);
    let mine = rustix::thread::sched_getaffinity(None).unwrap();
    let all: Vec<usize> = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| mine.is_set(cpu)).collect();
    let last = all.last().unwrap();
    let (session, before) = (Session::new(&part), Session::new(&part));
    before.begin("nproc; read -r x; nproc");
    assert_eq!(before.line(), all.len().to_string());
    if !has(&before, "cpuset") {
        assert_eq!(session.ctl.write(0, b"cpus 0").unwrap_err().errno(), Errno::EOPNOTSUPP);
        return;
    }
    // One processor is reserved for sessions without processors of their own.
    let list = all.iter().map(usize::to_string).collect::<Vec<_>>().join(",");
    assert!(session.refuses(&format!("cpus {list}")).contains("the last processor"));
    if all.len() == 1 {
        return not_covered("processors of sessions: there is one");
    }
    session.tell(&format!("cpus {last}"));
    let other = Session::new(&part);
    assert!(other.refuses(&format!("cpus {last}")).contains("is session 0's"));
    let count = |session: &Session| {
        session.tell("exec nproc");
        session.all("stdout").trim().parse::<usize>().unwrap()
    };
    assert_eq!(count(&session), 1);
    assert_eq!(count(&other), all.len() - 1);
    // A program that is running already was moved away from there.
    before.tell("close");
    assert_eq!(before.line(), (all.len() - 1).to_string());
    drop((session, other));
    let _ = part.walk("clone");
    let session = Session::new(&part);
    while session.ctl.write(0, format!("cpus {last}").as_bytes()).is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn a_policy_that_is_wrong_is_told_at_the_start() {
    for (policy, says) in [
        ("dance\n", "line 3: `dance`: write allow USER"),
        ("user no-such-user\n", "there is no such user"),
        ("cpus 1000\n", "processor 1000 is not there"),
        ("fs /no/such/place\n", "/no/such/place"),
    ] {
        let world = world(policy);
        let dir = world.path();
        let policy = std::fs::read_to_string(dir.join("policy")).unwrap();
        let policy = if is_root() { policy } else { format!("\n{policy}") };
        std::fs::write(dir.join("policy"), policy).unwrap();
        let output = common::ninefold(dir).args(["serve", "home.ns", "--listen", "unix!s"]).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && said.contains(says), "{said}");
    }
    if is_root() {
        for (policy, says) in [("", "as whom programs run"), ("user root\n", "do not run as root")] {
            let world = world("");
            let dir = world.path();
            std::fs::write(dir.join("policy"), policy).unwrap();
            let output =
                common::ninefold(dir).args(["serve", "home.ns", "--listen", "unix!s"]).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && said.contains(says), "{said}");
        }
    }
}

fn on(servers: &[&Node], words: &[&str], program: &[&str]) -> Command {
    let all: Vec<String> = servers.iter().map(|of| format!("unix:{}", of.socket().display())).collect();
    let mut command = servers[0].client();
    command.args(["partition", "run", "--on", &all.join(",")]).args(words).arg("--").args(program);
    command
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

#[test]
fn one_command_runs_a_program_on_several_servers() {
    let (one, two) = (serve(""), serve(""));
    let run = |words: &[&str], program: &[&str]| said(&on(&[&one, &two], words, program).output().unwrap());
    let (status, out, err) = run(&["--there", "-e", "A=b c"], &["sh", "-c", "echo \"$A\"; exit 3"]);
    let name = |server: &Node| format!("unix:{}/part: ", server.socket().display());
    assert!(status == Some(3) && err.is_empty(), "{err}");
    let mut lines: Vec<&str> = out.lines().collect();
    lines.sort_unstable();
    let mut due = [format!("{}b c", name(&one)), format!("{}b c", name(&two))];
    due.sort_unstable();
    assert_eq!(lines, due);
    // A local program is sent to the servers.
    let job = one.dir.path().join("job");
    std::fs::write(&job, "#!/bin/sh\necho $1; echo err >&2\n").unwrap();
    std::fs::set_permissions(&job, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (status, out, err) = said(&on(&[&two], &[], &[job.to_str().unwrap(), "x"]).output().unwrap());
    assert_eq!((status, &*out, &*err), (Some(0), "x\n", "err\n"));
    let (status, _, err) = run(&["--there"], &["no-such-program"]);
    assert!(status == Some(127) && err.matches("there is no such program").count() == 2, "{err}");
    let (status, _, err) = run(&[], &["/etc/passwd"]);
    assert!(status == Some(126) && err.contains("passwd: this is no program"), "{err}");
    let (status, _, err) = run(&["--there", "--ctl", "memory 900G"], &["true"]);
    assert!(status == Some(255) && err.contains("may only be lowered"), "{err}");
    let listed = one.ok(["partition", "ls"]);
    assert_eq!(listed, "");
    // Our standard input goes to all programs.
    let mut command = on(&[&one, &two], &["--there", "--input"], &["cat"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"to all\n").unwrap();
    let (status, out, _) = said(&child.wait_with_output().unwrap());
    assert!(status == Some(0) && out.matches(": to all\n").count() == 2, "{out}");
}

#[test]
fn one_server_is_killed_and_the_others_go_on() {
    let (mut one, two, three) = (serve(""), serve(""), serve(""));
    let text = "echo begun; read -r x; echo got $x";
    let mut command = on(&[&two, &one, &three], &["--there", "--input"], &["sh", "-c", text]);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    for _ in 0..3 {
        out.read_line(&mut line).unwrap();
    }
    assert_eq!(line.matches(": begun\n").count(), 3, "{line}");
    one.kill();
    let mut err = BufReader::new(child.stderr.take().unwrap());
    let mut why = String::new();
    err.read_line(&mut why).unwrap();
    assert!(why.contains(&format!("{}", one.socket().display())), "{why}");
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"on\n").unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.matches(": got on\n").count(), 2, "{rest}");
    assert_eq!(ended_within(&mut child, LIMIT).and_then(|status| status.code()), Some(255));
}

#[test]
fn who_shows_the_token_runs_programs_over_tcp_and_nobody_else() {
    let server = serve_in(world(""), &["--listen", "tcp!127.0.0.1!0"]);
    let addr = server.addr("tcp!");
    let [_, host, port] = addr.split(['!', ' ']).collect::<Vec<_>>()[..3] else { unreachable!() };
    let run = |at: String| {
        let mut command = server.client();
        command.args(["partition", "run", "--on", &at, "--there", "--", "echo", "it ran"]);
        said(&command.output().unwrap())
    };
    let (status, out, err) = run(format!("9p://{}@{host}:{port}", server.token()));
    assert_eq!((status, &*out, &*err), (Some(0), "it ran\n", ""));
    let (status, out, err) = run(format!("9p://{host}:{port}"));
    assert!(status == Some(255) && out.is_empty() && !err.is_empty(), "{err}");
}

#[test]
fn a_program_goes_from_server_to_server() {
    // Each server knows the addresses of the others.
    let worlds: Vec<_> = (0..4).map(|_| world("")).collect();
    let at = |world: &tempfile::TempDir| format!("unix:{}/part", world.path().join("s").display());
    let nodes: Vec<String> = worlds.iter().map(at).collect();
    let mut servers: Vec<Node> = worlds
        .into_iter()
        .map(|world| {
            let policy = world.path().join("policy");
            let before = std::fs::read_to_string(&policy).unwrap();
            std::fs::write(&policy, format!("{before}nodes {}\n", nodes.join(" "))).unwrap();
            serve_in(world, &[])
        })
        .collect();
    let job = servers[0].world.path().join("job");
    std::fs::write(&job, "#!/bin/sh\necho ran $1\n").unwrap();
    chmod(&job, 0o755);
    let run = |servers: &[Node], most: &str, job: &Path| {
        let mut command = servers[0].client();
        let words =
            ["partition", "run", "--tree", most, "--on", &nodes.join(","), "--", job.to_str().unwrap(), "x"];
        said(&command.args(words).output().unwrap())
    };
    for most in ["1", "2", "9"] {
        let (status, out, err) = run(&servers, most, &job);
        assert!(status == Some(0) && err.is_empty() && out.matches(": ran x\n").count() == 4, "{out}{err}");
    }
    // The first server passes the program on to the second one, not to all.
    let log = servers[1].log();
    assert!(log.contains("its program is given to others"), "{log}");
    // One in the middle is gone.
    servers[1].kill();
    let (status, out, err) = run(&servers, "1", &job);
    assert!(status == Some(255) && out.matches(": ran x\n").count() == 3, "{out}{err}");
    // A key opens only its own session.
    let part = part(&servers[0]);
    let session = Session::new(&part);
    session.tell("key 0123456789abcdef");
    for name in ["0123456789abcdee", "", "0123456789abcdef0"] {
        assert!(part.walk(format!("{}.{name}", session.number)).is_err(), "{name}");
    }
    let keyed = part.walk(format!("{}.0123456789abcdef", session.number)).unwrap();
    assert!(keyed.walk("stdout").is_err());
    let ctl = keyed.open("ctl", OpenFlags::WRITE).unwrap();
    for text in ["exec /bin/true", "kill", "type persistent", "memory 1M"] {
        assert_eq!(ctl.write(0, text.as_bytes()).unwrap_err().errno(), Errno::EACCES, "{text}");
    }
    ctl.write(0, b"length 22").unwrap();
    let exec = keyed.open("exec", OpenFlags::WRITE).unwrap();
    exec.write_all_at(0, b"#!/bin/sh\necho by key\n").unwrap();
    exec.close().unwrap();
    session.tell("exec");
    assert_eq!(session.all("stdout"), "by key\n");
}

#[test]
fn a_signal_is_passed_on_and_a_second_one_ends_it() {
    let server = serve("");
    let text = "trap 'echo got' INT; echo begun; while :; do sleep 0.01; done";
    let mut command = on(&[&server], &["--there"], &["sh", "-c", text]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    for due in ["begun\n", "got\n"] {
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        assert_eq!(line, due);
        kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    }
    assert_eq!(ended_within(&mut child, LIMIT).and_then(|status| status.code()), Some(130));
    // No session is left.
    while !server.ok(["partition", "ls"]).is_empty() {}
    // A session is ended from elsewhere.
    let mut command = on(&[&server], &["--there"], &["sh", "-c", "echo begun; sleep 1000"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let listed = server.ok(["partition", "ls"]);
    let number = listed.split_whitespace().next().unwrap().to_owned();
    assert!(listed.contains("sh") && listed.contains("Running"), "{listed}");
    let at = format!("unix:{}", server.socket().display());
    server.ok(["partition", "kill", &at, &number]);
    assert_eq!(ended_within(&mut child, LIMIT).and_then(|status| status.code()), Some(137));
    assert!(server.fails(["partition", "kill", &at, "9999"]).contains("there is no session 9999"));
}

#[test]
fn a_signal_ends_what_has_not_begun() {
    let dir = tempfile::tempdir().unwrap();
    let _silent = std::os::unix::net::UnixListener::bind(dir.path().join("s")).unwrap();
    let server = serve("");
    let all = format!("unix:{},unix:{}", server.socket().display(), dir.path().join("s").display());
    let mut command = server.client();
    let text = "trap 'echo got; exit 0' INT; echo begun; while :; do sleep 0.01; done";
    command.args(["partition", "run", "--timeout", "1000", "--there", "--on", &all, "--", "sh", "-c", text]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert!(line.ends_with(": begun\n"), "{line}");
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(ended_within(&mut child, LIMIT).and_then(|status| status.code()), Some(130));
    let (mut rest, mut err) = (String::new(), String::new());
    out.read_to_string(&mut rest).unwrap();
    child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
    assert!(rest.ends_with(": got\n") && err.contains("it had not begun"), "{rest}{err}");
}

#[test]
fn an_image_runs_as_a_program_does() {
    if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
        return not_covered("images in sessions: there is no qemu-system-x86_64");
    }
    let image = |name: &str| image(name).display().to_string();
    // The command itself runs images.
    let own = format!("programs /usr /bin /lib /lib64 /etc/ld.so.cache {}\n", env!("CARGO_BIN_EXE_ninefold"));
    let dir = world(&own);
    std::fs::write(dir.path().join("files/motd"), "welcome\n").unwrap();
    let server = serve_in(dir, &[]);
    let run = |words: &[&str], program: &[&str]| said(&on(&[&server], words, program).output().unwrap());
    // The standard error says whether KVM works.
    let (status, out, err) = run(&["--ctl", "channel on"], &[&image("cat"), "files/motd"]);
    assert_eq!((status, &*out), (Some(0), "welcome\n"), "{err}");
    // The environment is for the image, not for the command that runs it.
    let elsewhere =
        run(&["-e", "PATH=/nowhere", "-e", "NINEFOLD_QEMU=/nowhere"], &[&image("mischief"), "exit", "8"]);
    assert_eq!(elsewhere.0, Some(8), "{}", elsewhere.2);
    let (status, out, err) = run(&["-e", "A=b c"], &[&image("cat"), "/self/argv", "/self/env"]);
    assert_eq!(status, Some(0), "{err}");
    assert!(out.starts_with("cat /self/argv /self/env\n") && out.ends_with("'A=b c'\n"), "{out}");
    let mut command = on(&[&server], &["--input"], &[&image("cat")]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), b"to and fro\n").unwrap();
    let (status, out, _) = said(&child.wait_with_output().unwrap());
    assert_eq!((status, &*out), (Some(0), "to and fro\n"));
    assert_eq!(run(&[], &[&image("mischief"), "exit", "9"]).0, Some(9));
    let (status, _, err) = run(&[], &[&image("mischief"), "panic"]);
    assert!(status == Some(101) && err.contains("as it was told to"), "{err}");
    let (status, _, err) = run(&["--ctl", "memory 4M"], &[&image("hello")]);
    assert!(status.is_some_and(|status| status != 0), "{err}");
    assert_eq!(server.ok(["partition", "ls"]), "");
}
