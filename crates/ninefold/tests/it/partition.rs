//! `partition run`: programs that inherit a channel, among them those of `crates/nine-guest`.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use rustix::termios::{LocalModes, tcgetattr};

use crate::common::terminal::Terminal;
use crate::common::{Server, ended_within, guest, ninefold, not_covered};

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the same program in C, if there is a compiler.
fn guest_in_c(name: &str) -> Option<PathBuf> {
    let there = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nine-guest");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("partition-{name}"));
    let source = there.join("examples").join(format!("{name}.c"));
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-std=gnu11", "-I"]).arg(there.join("include")).arg("-o").args([&program, &source]);
    match cc.output() {
        Ok(made) => {
            assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
            Some(program)
        }
        Err(_) => {
            not_covered("programs in C: there is no cc here");
            None
        }
    }
}

/// A directory for `partition run`.
struct World(tempfile::TempDir);

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        std::fs::write(dir.path().join("dev.ns"), "mount cons: /dev\nmount disk:files /files\n").unwrap();
        Self(dir)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("files").join(name)
    }

    /// Returns the command: words before the program, then the program's words.
    fn command(&self, words: &[&str], program: &[impl AsRef<OsStr>]) -> Command {
        let mut command = ninefold(self.0.path());
        command.args(["partition", "run"]).args(words).arg("--").args(program);
        command
    }

    fn run(&self, words: &[&str], program: &[impl AsRef<OsStr>]) -> Output {
        self.command(words, program).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a program that must succeed without error output. Returns its output.
    #[track_caller]
    fn says(&self, words: &[&str], program: &[impl AsRef<OsStr>]) -> String {
        let output = self.run(words, program);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Starts a shell and waits for its first line, which is returned. Its input stays open.
    fn shell(&self, words: &[&str], text: &str) -> (Child, BufReader<std::process::ChildStdout>, String) {
        let mut command = self.command(words, &["sh", "-c", text]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        (child, out, line.trim().into())
    }
}

fn status(output: &Output) -> (Option<i32>, String) {
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn kill(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid as i32).unwrap(), signal).unwrap();
}

#[test]
fn a_program_sees_the_default_server() {
    let server = Server::start();
    std::fs::create_dir(server.files().join("sub")).unwrap();
    let text = b"what is in the file\n".repeat(10_000);
    std::fs::write(server.files().join("sub/data"), &text).unwrap();
    for cat in [Some(guest("cat")), guest_in_c("cat")].into_iter().flatten() {
        let cat = cat.to_str().unwrap();
        let output = server.run(["partition", "run", "--", cat, "sub/data"]);
        assert!(output.stdout == text, "{:?}", status(&output));
        assert_eq!(status(&output), (Some(0), String::new()));
        // The program reads its own standard input.
        server.fed(&["partition", "run", "--", cat, "-w", "sub/new"], &text);
        assert!(std::fs::read(server.files().join("sub/new")).unwrap() == text);
        let output = server.run(["partition", "run", "--", cat, "nothing"]);
        assert!(status(&output).0 == Some(1) && status(&output).1.starts_with("cat: "), "{output:?}");
        // Only a part of the server.
        let part = format!("unix:{}/sub", server.socket().display());
        let output = server.run(["partition", "run", "--server", &part, "--", cat, "data"]);
        assert!(output.stdout == text, "{:?}", status(&output));
        let output = server.run(["partition", "run", "--read-only", "--", cat, "-w", "sub/no"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(!server.files().join("sub/no").exists());
    }
    let there = format!("unix!{}/none", server.dir.path().display());
    let output = server.run(["partition", "run", "--server", &there, "--", "echo", "it was started"]);
    assert!(output.stdout.is_empty() && output.status.code() == Some(1));
    assert!(status(&output).1.contains("Is a server running there?"), "{output:?}");
}

#[test]
fn a_verb_of_the_command_sees_the_name_space_it_was_started_in() {
    let world = World::new();
    std::fs::write(world.file("motd"), "welcome\n").unwrap();
    let program = env!("CARGO_BIN_EXE_ninefold");
    assert_eq!(world.says(&["files"], &[program, "cat", "/motd"]), "welcome\n");
    assert_eq!(world.says(&["files"], &[program, "ls", ":/"]), "motd\n");
    assert_eq!(world.says(&["dev.ns"], &[program, "cat", "files/motd"]), "welcome\n");
    // A named server has precedence.
    let none = format!("unix!{}", world.file("none").display());
    let output = world.run(&["files"], &[program, "ls", "--server", &none]);
    assert!(status(&output).1.contains("No such file or directory"), "{output:?}");
}

#[test]
fn a_program_sees_what_the_command_serves() {
    let world = World::new();
    std::fs::write(world.file("motd"), "welcome\n").unwrap();
    let (cat, null) = (guest("cat"), guest("null"));
    let (cat, null) = (cat.to_str().unwrap(), null.to_str().unwrap());
    assert_eq!(world.says(&["files"], &[cat, "motd"]), "welcome\n");
    assert_eq!(world.says(&["dev.ns"], &[cat, "files/motd"]), "welcome\n");
    let mut nulls = vec![null.to_owned()];
    nulls.extend(guest_in_c("null").map(|null| null.to_str().unwrap().into()));
    for null in &nulls {
        for wait in ["poll", "interrupt", "adaptive"] {
            for size in ["0", "300", "70000"] {
                let said = world.says(&["dev.ns", "--wait", wait], &[null, "dev/null", size, "50"]);
                assert!(said.starts_with(&format!("{size} ")) && said.ends_with(" us\n"), "{said}");
            }
        }
    }
    let wrong = world.run(&["files", "--wait", "nicely"], &["true"]);
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = world.run(&["absent"], &["echo", "it was started"]);
    assert!(wrong.stdout.is_empty() && status(&wrong).1.contains("absent"), "{wrong:?}");
}

#[test]
fn a_guest_that_knows_the_document_alone_reads_files() {
    if Command::new("python3").arg("--version").output().is_err() {
        return not_covered("a guest in Python: there is no python3 here");
    }
    let world = World::new();
    let text: String = (0..40_000).map(|n| format!("{n}\n")).collect();
    std::fs::write(world.file("data"), &text).unwrap();
    std::fs::write(world.file("empty"), "").unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../nine-guest/tests/guest.py");
    let python = |name| ["python3", script.to_str().unwrap(), name];
    for wait in ["poll", "interrupt", "adaptive"] {
        assert!(world.says(&["dev.ns", "--wait", wait], &python("files/data")) == text);
    }
    assert_eq!(world.says(&["files"], &python("empty")), "");
    let none = world.run(&["files"], &python("none"));
    assert_eq!(status(&none), (Some(1), "No such file or directory\n".into()));
}

#[test]
fn programs_have_the_channel_one_after_the_other() {
    let world = World::new();
    let cat = guest("cat");
    let text = format!("for n in 1 2 3 4 5; do echo $n | {0} -w note && {0} note; done", cat.display());
    assert_eq!(world.says(&["ram:"], &["sh", "-c", &text]), "1\n2\n3\n4\n5\n");
    // A program that is killed while it uses the channel leaves it usable for the next one.
    let text =
        format!("echo x | {0} -w note; {0} -w note & kill -9 $!; wait; {0} note; echo $?", cat.display());
    let (_, _, line) = world.shell(&["ram:"], &text);
    assert!(matches!(&*line, "x" | "0"), "{line}");
}

#[test]
fn its_status_is_the_programs() {
    let world = World::new();
    let shell = |text: &str| status(&world.run(&["files"], &["sh", "-c", text]));
    // These programs ignore their channel.
    assert_eq!(shell("exit 0"), (Some(0), String::new()));
    assert_eq!(shell("exit 7"), (Some(7), String::new()));
    assert_eq!(shell("kill -9 $$"), (Some(137), String::new()));
    assert_eq!(shell("kill -15 $$"), (Some(143), String::new()));
    let absent = world.run(&["files"], &["ninefold-is-no-such-program"]);
    let said = "ninefold: partition: ninefold-is-no-such-program: there is no such program\n";
    assert_eq!(status(&absent), (Some(127), said.into()));
    for (name, mode) in [("plain", 0o644), ("odd", 0o755)] {
        let path = world.file(name);
        std::fs::write(&path, [0x7f, b'E', b'L', b'F', 0]).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let (code, said) = status(&world.run(&["files"], &[&path]));
        assert!(code == Some(126) && said.contains(name), "{code:?}: {said}");
    }
    assert_eq!(world.run(&["files"], &[] as &[&str]).status.code(), Some(2));
}

#[test]
fn it_has_its_standard_files_and_the_channel() {
    let world = World::new();
    let mut echo = world.command(&["files"], &["cat"]);
    let mut echo = echo.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    echo.stdin.take().unwrap().write_all(b"to and fro").unwrap();
    let mut said = String::new();
    echo.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(echo.wait().unwrap().success() && said == "to and fro");
    // Also if the command itself was started with more descriptors.
    let inside = "ls /proc/$$/fd; echo $NINEFOLD_CHANNEL; umask";
    let text = format!("exec 7</dev/null 8>/dev/null; exec \"$0\" partition run files -- sh -c '{inside}'");
    let shell = ninefold(world.0.path()).get_program().to_owned();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("umask 027; {text}")]).arg(shell).current_dir(world.0.path());
    let output = command.env("HOME", world.0.path()).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines.pop(), Some("0027"), "{output:?}");
    let mut channel: Vec<&str> = lines.pop().unwrap().split(':').collect();
    channel.extend(["0", "1", "2"]);
    channel.sort_unstable_by_key(|number| number.parse::<u32>().unwrap());
    lines.sort_unstable_by_key(|number| number.parse::<u32>().unwrap());
    assert_eq!(lines, channel);
}

#[test]
fn signals_are_passed_on() {
    let world = World::new();
    for (signal, name) in [(Signal::TERM, "TERM"), (Signal::INT, "INT"), (Signal::HUP, "HUP")] {
        let text = format!("trap 'echo got {name}; exit 3' {name}; echo ready; read -r x");
        let (mut child, mut out, line) = world.shell(&["files"], &text);
        assert_eq!(line, "ready");
        kill(child.id(), signal);
        let mut said = String::new();
        out.read_to_string(&mut said).unwrap();
        assert_eq!((child.wait().unwrap().code(), &*said), (Some(3), &*format!("got {name}\n")));
    }
    // A program that ignores the signal is waited for.
    let (mut child, _out, line) = world.shell(&["files"], "trap '' TERM; echo $$; read -r x");
    kill(child.id(), Signal::TERM);
    kill(line.parse().unwrap(), Signal::KILL);
    assert_eq!(child.wait().unwrap().code(), Some(137));
}

#[test]
fn a_program_sees_that_its_host_is_killed_and_the_host_that_it_is() {
    let world = World::new();
    // A read of the log never ends.
    let text = format!("echo $$; exec {} dev/kprint", guest("cat").display());
    for of_host in [true, false] {
        let (mut child, mut out, line) = world.shell(&["dev.ns"], &text);
        let program: u32 = line.parse().unwrap();
        kill(if of_host { child.id() } else { program }, Signal::KILL);
        let ended = ended_within(&mut child, Duration::from_secs(60)).expect("it ends");
        assert_eq!(ended.code(), (!of_host).then_some(137));
        // EOF when the program has ended.
        let (mut rest, mut said) = (String::new(), String::new());
        out.read_to_string(&mut rest).unwrap();
        child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(rest.is_empty() && (said.starts_with("cat: ") || !of_host && said.is_empty()), "{said}");
    }
}

#[test]
fn what_a_program_leaves_behind_holds_up_nobody() {
    let world = World::new();
    let text = format!("{} dev/kprint >/dev/null 2>&1 & echo $!", guest("cat").display());
    let (mut child, _, line) = world.shell(&["dev.ns"], &text);
    assert!(ended_within(&mut child, Duration::from_secs(60)).is_some_and(|status| status.success()));
    // The program notices that its host is gone, and ends. Then no process, or another one, has its
    // pid.
    let there = PathBuf::from(format!("/proc/{line}/cmdline"));
    while std::fs::read_to_string(&there).is_ok_and(|line| line.contains("dev/kprint")) {
        std::thread::yield_now();
    }
}

/// Starts a shell as a session leader, with this terminal as its controlling terminal.
fn shell(terminal: &Terminal, world: &World, text: &str) -> Child {
    let plain = world.command(&[], &["true"]);
    let mut shell = Command::new("setsid");
    shell.args(["-c", "sh", "-c", text]).arg(plain.get_program());
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    terminal.gives(shell.current_dir(world.0.path())).spawn().unwrap()
}

/// The terminal sends ^C to all three: the shell, the command and its program.
#[test]
fn a_ctrl_c_ends_the_program_and_the_terminal_is_the_shells_again() {
    let world = World::new();
    let mut terminal = Terminal::new();
    let before = tcgetattr(&terminal.user).unwrap();
    assert!(before.local_modes.contains(LocalModes::ISIG | LocalModes::ICANON));
    // A shell that continues, as an interactive one does.
    let text = r#"trap : INT
        "$0" partition run dev.ns -- sh -c 'echo program is $$; read -r x'; echo status $?
        "$0" partition run dev.ns -- sh -c '
            n=0; trap "n=\$((n + 1)); echo got \$n" INT; echo counting
            while :; do read -r x && break; done; echo in all $n $x; exit 3'; echo status $?
        read -r x; echo shell has $x"#;
    let mut shell = shell(&terminal, &world, text);
    terminal.shows("program is ");
    let program = terminal.shows("\r\n");
    terminal.types("\x03");
    terminal.shows("status 130\r\n");
    assert!(!Path::new("/proc").join(program.trim()).exists(), "it has ended, too");
    // A program that handles the signal gets it once: the command does not pass on a ^C that the
    // terminal sent to both.
    terminal.shows("counting\r\n");
    terminal.types("\x03");
    terminal.shows("got 1\r\n");
    terminal.types("done\n");
    terminal.shows("in all 1 done\r\n");
    terminal.shows("status 3\r\n");
    let after = tcgetattr(&terminal.user).unwrap();
    assert_eq!((before.local_modes, before.input_modes), (after.local_modes, after.input_modes));
    terminal.types("the line\n");
    terminal.shows("shell has the line\r\n");
    assert!(ended_within(&mut shell, Duration::from_secs(60)).is_some_and(|status| status.success()));
}

#[test]
fn a_program_reads_on_from_the_next_server_when_one_is_killed() {
    let world = World::new();
    std::fs::write(world.file("motd"), "welcome\n").unwrap();
    let files = world.0.path().join("files");
    let serve = |name: &str| {
        let listen = format!("unix!{}", world.0.path().join(name).display());
        let line = ["serve", files.to_str().unwrap(), "--listen", &listen];
        Server::in_dir(tempfile::tempdir().unwrap(), &line)
    };
    let (mut one, _two) = (serve("one"), serve("two"));
    let at = |name: &str| format!("unix!{}", world.0.path().join(name).display());
    let lines = format!("mount -r {},{} /n\n", at("one"), at("two"));
    std::fs::write(world.0.path().join("both.ns"), lines).unwrap();
    let mut command = world.command(&["both.ns"], &[guest("again").to_str().unwrap(), "n/motd"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut asks, mut says) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
    let mut again = || {
        asks.write_all(b"\n").unwrap();
        let mut line = String::new();
        says.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(again(), "welcome\n");
    one.signal(Signal::KILL);
    one.child.wait().unwrap();
    // The next server answers for the same open file.
    assert_eq!((again(), again()), ("welcome\n".into(), "welcome\n".into()));
    drop(asks);
    assert!(ended_within(&mut child, LIMIT).is_some_and(|status| status.success()));
}
