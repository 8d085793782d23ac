//! `partition run IMAGE`: machines without an operating system, in QEMU without KVM, with files from us.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::common::{self, image, ninefold, not_covered};

/// A directory for `partition run`, with a tree, the network and a console.
struct World(tempfile::TempDir);

impl World {
    /// Returns `None` if QEMU is missing.
    fn new() -> Option<Self> {
        if Command::new("qemu-system-x86_64").arg("--version").output().is_err() {
            not_covered("machines: there is no qemu-system-x86_64");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("files")).unwrap();
        let lines = "mount disk:files /files\nmount net: /net\nmount cons: /dev\n";
        fs::write(dir.path().join("all.ns"), lines).unwrap();
        Some(Self(dir))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join("files").join(name)
    }

    fn command(&self, words: &[&str], image: &Path, args: &[&str]) -> Command {
        let mut command = ninefold(self.0.path());
        command.args(["partition", "run"]).args(words);
        if !words.contains(&"--accel") {
            command.args(["--accel", "tcg"]);
        }
        command.arg("all.ns").arg("--");
        command.arg(image).args(args).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str], image: &Path, args: &[&str]) -> Output {
        self.command(words, image, args).output().unwrap()
    }

    /// Runs an image that must succeed without error output. Returns its output.
    #[track_caller]
    fn says(&self, words: &[&str], name: &str, args: &[&str]) -> String {
        let output = self.run(words, &image(name), args);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{}: {said}", output.status);
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs an image that must end with this status. Returns its error text.
    #[track_caller]
    fn fails(&self, status: i32, words: &[&str], image: &Path, args: &[&str]) -> String {
        let output = self.run(words, image, args);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(status), "{said}");
        said
    }
}

/// Creates an image with only this code, at its entry: 32 bits, no paging.
fn bare(world: &World, name: &str, code: &[u8]) -> PathBuf {
    const AT: u64 = 1 << 20;
    let notes: Vec<u8> =
        [4, 4, 18, u32::from_le_bytes(*b"Xen\0"), AT as u32].iter().flat_map(|w| w.to_le_bytes()).collect();
    let mut bytes = Vec::from(*b"\x7fELF\x02\x01\x01");
    bytes.resize(16, 0);
    bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    [AT, 64, 0].iter().for_each(|long| bytes.extend(long.to_le_bytes()));
    bytes.extend([0, 0, 0, 0]);
    [64u16, 56, 2, 0, 0, 0].iter().for_each(|half| bytes.extend(half.to_le_bytes()));
    let head = 64 + 2 * 56;
    for (kind, flags, at, to, len) in [(4, 4, head, 0, 20), (1, 7, head + 20, AT, code.len() as u64)] {
        [kind, flags].iter().for_each(|word: &u32| bytes.extend(word.to_le_bytes()));
        [at, to, to, len, len, 4].iter().for_each(|long: &u64| bytes.extend(long.to_le_bytes()));
    }
    bytes.extend(notes);
    bytes.extend(code);
    let path = world.0.path().join(name);
    fs::write(&path, bytes).unwrap();
    path
}

/// Returns the QEMU process of a `partition run`.
fn qemu_of(child: &Child) -> Option<Pid> {
    let pid = child.id();
    let children = fs::read_dir(format!("/proc/{pid}/task"))
        .ok()?
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("children")).ok());
    let all = children.collect::<Vec<_>>().join(" ");
    let mut pids = all.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.find_map(|pid: i32| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
        name.starts_with("qemu").then(|| Pid::from_raw(pid)).flatten()
    })
}

#[test]
fn an_image_says_hello_with_the_words_it_was_started_with() {
    let Some(world) = World::new() else { return };
    let said = world.says(&[], "hello", &["a", "b c", "it's", ""]);
    assert!(said.starts_with("hello") && said.ends_with("a b c it's \n"), "{said}");
    // Without a named server it sees the default one. An image needs no `--`.
    let server = common::Server::start();
    fs::write(server.files().join("motd"), "of the default server\n").unwrap();
    let cat = image("cat");
    let said = server.ok([
        "partition".as_ref(),
        "run".as_ref(),
        "--accel".as_ref(),
        "tcg".as_ref(),
        cat.as_os_str(),
        "motd".as_ref(),
    ]);
    assert_eq!(said, "of the default server\n");
}

#[test]
fn it_reads_files_and_its_input_however_it_waits() {
    let Some(world) = World::new() else { return };
    let text: String = (0..40_000).map(|n| format!("line {n}\n")).collect();
    fs::write(world.file("long"), &text).unwrap();
    fs::write(world.file("short"), "and this\n").unwrap();
    for wait in ["poll", "interrupt", "adaptive"] {
        let said = world.says(&["--wait", wait], "cat", &["files/long", "files/short"]);
        assert!(said == format!("{text}and this\n"), "{wait}: {} bytes", said.len());
    }
    let mut cat = world.command(&[], &image("cat"), &[]);
    let mut cat = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let (mut input, mut output) = (cat.stdin.take().unwrap(), BufReader::new(cat.stdout.take().unwrap()));
    for line in ["to and fro\n", "again\n"] {
        input.write_all(line.as_bytes()).unwrap();
        let mut came = String::new();
        output.read_line(&mut came).unwrap();
        assert_eq!(came, line);
    }
    drop(input);
    let clock = world.says(&[], "cat", &["self/clock"]);
    assert!(clock.lines().count() == 1 && clock.split_whitespace().count() == 2, "{clock}");
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert!(cat.wait().unwrap().success() && rest.is_empty());
    let said = world.fails(1, &[], &image("cat"), &["files/none"]);
    assert!(said.contains("files/none") && said.contains("No such file"), "{said}");
}

#[test]
fn it_fetches_a_page_by_the_network_of_its_host() {
    let Some(world) = World::new() else { return };
    fs::write(world.file("motd"), "first line\nsecond\n").unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/page", listener.local_addr().unwrap());
    let web = std::thread::spawn(move || {
        (0..2)
            .map(|_| {
                let (mut call, _) = listener.accept().unwrap();
                let mut asked = String::new();
                let mut lines = BufReader::new(call.try_clone().unwrap());
                while !asked.ends_with("\r\n\r\n") {
                    assert!(lines.read_line(&mut asked).unwrap() > 0, "{asked}");
                }
                call.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nthe page\nand more").unwrap();
                asked
            })
            .collect::<Vec<_>>()
    });
    assert_eq!(world.says(&[], "fetch", &[&url]), "the page\n");
    let said = world.says(&[], "tour", &["files/motd", &url]);
    assert!(said.contains("hello") && said.contains("first line") && said.ends_with("the page\n"), "{said}");
    assert!(web.join().unwrap().iter().all(|asked| asked.starts_with("GET /page HTTP/1.")));
    let said = world.fails(1, &[], &image("fetch"), &["http://127.0.0.1:1/"]);
    assert!(said.contains("refused"), "{said}");
}

#[test]
fn it_computes_from_files_to_files_and_a_reader_changes_nothing() {
    let Some(world) = World::new() else { return };
    fs::write(world.file("in"), "1 2\n3 4\n\n5 6\n7 8\n").unwrap();
    world.says(&[], "sum", &["files/in", "files/out"]);
    assert_eq!(fs::read_to_string(world.file("out")).unwrap(), "19 22\n43 50\n");
    let said = world.fails(1, &["--read-only"], &image("sum"), &["files/in", "files/new"]);
    assert!(said.contains("ead-only") || said.contains("ermission"), "{said}");
    assert!(!world.file("new").exists());
    // As much as fits in memory, then more than that.
    let column = |rows| "1\n".repeat(rows);
    fs::write(world.file("in"), column(65_000) + "\n7\n").unwrap();
    world.says(&[], "sum", &["files/in", "files/out"]);
    assert_eq!(fs::read_to_string(world.file("out")).unwrap(), "7\n".repeat(65_000));
    for text in [column(2_000_000), column(30_000) + "\n" + &"1 ".repeat(30_000)] {
        fs::write(world.file("in"), text).unwrap();
        let said = world.fails(1, &[], &image("sum"), &["files/in", "files/out"]);
        assert!(said.contains("too large"), "{said}");
    }
}

#[test]
fn several_channels_show_several_servers() {
    let Some(world) = World::new() else { return };
    for name in ["one", "two"] {
        fs::create_dir(world.0.path().join(name)).unwrap();
        fs::write(world.0.path().join(name).join("file"), format!("of {name}\n")).unwrap();
    }
    let words = ["--channel", "first=disk:one", "--channel", "second=disk:two"];
    let mischief = image("mischief");
    let said = world.says(&words, "mischief", &["channels", "first", "second"]);
    assert_eq!(said, "of one\nof two\n");
    let said = world.says(&words, "mischief", &["channels", "first", "first"]);
    assert_eq!(said, "of one\nof one\n");
    let said = world.fails(1, &words, &mischief, &["channels", "third"]);
    assert!(said.contains("third"), "{said}");
    for (word, why) in [("root=ram:", "already"), ("a/b=ram:", "no name"), ("x", "NAME=SERVER")] {
        let said = world.fails(2, &["--channel", word], &image("hello"), &[]);
        assert!(said.contains(why), "{word}: {said}");
    }
}

#[test]
fn who_has_no_patience_is_told_so_however_it_waits() {
    let Some(world) = World::new() else { return };
    for wait in ["poll", "interrupt", "adaptive"] {
        let mut reads = world.command(&["--wait", wait], &image("mischief"), &["patience", "self/stdin"]);
        let mut reads = reads.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // No input is written, and there is no EOF.
        let _input = reads.stdin.take().unwrap();
        let mut said = String::new();
        reads.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert_eq!(reads.wait().unwrap().code(), Some(1));
        assert!(said.contains("was given up"), "{wait}: {said}");
    }
}

#[test]
fn how_it_ends_is_how_the_command_ends() {
    let Some(world) = World::new() else { return };
    let mischief = image("mischief");
    assert_eq!(world.run(&[], &mischief, &["exit", "7"]).status.code(), Some(7));
    for (word, says) in [
        ("panic", "as it was told to"),
        ("twice", "while it panics"),
        ("exhaust", "memory allocation of 100 bytes failed"),
    ] {
        let said = world.fails(101, &[], &mischief, &[word]);
        assert!(said.contains(says), "{word}: {said}");
    }
    // Also before its main function: there is no memory for its arguments.
    let many = ["word"; 100_000];
    let said = world.fails(101, &["--memory", "8M"], &image("hello"), &many);
    assert!(said.contains("memory allocation"), "{said}");
    let said = world.fails(125, &[], &mischief, &["fault"]);
    assert!(said.contains("exception 14") && said.contains("the stack is full"), "{said}");
    assert!(said.contains("without a status"), "{said}");
    // It has reported its status, and continues to run.
    assert_eq!(world.run(&[], &mischief, &["linger", "9"]).status.code(), Some(9));
}

#[test]
fn what_is_no_image_is_refused_and_what_does_not_run_is_told() {
    let Some(world) = World::new() else { return };
    let triple = bare(&world, "triple", b"\x0f\x0b");
    let said = world.fails(125, &[], &triple, &[]);
    assert!(said.contains("triple fault"), "{said}");
    let whole = fs::read(&triple).unwrap();
    let cut = world.0.path().join("cut");
    fs::write(&cut, &whole[..whole.len() - 1]).unwrap();
    assert!(world.fails(126, &[], &cut, &[]).contains("not whole"));
    let large = world.0.path().join("large");
    fs::write(&large, &whole).unwrap();
    fs::File::options().write(true).open(&large).unwrap().set_len((64 << 20) + 1).unwrap();
    assert!(world.fails(126, &[], &large, &[]).contains("64 MiB"));
    // Its memory extends from 1 MiB to beyond 41 MiB.
    let mut wide = whole.clone();
    wide[64 + 56 + 40..][..4].copy_from_slice(&(40u32 << 20).to_le_bytes());
    let hungry = world.0.path().join("hungry");
    fs::write(&hungry, &wide).unwrap();
    assert!(world.fails(126, &[], &hungry, &[]).contains("needs 42 MiB: --memory"));
    let run = |words: &[&str]| {
        let output = ninefold(world.0.path()).args(["partition", "run"]).args(words).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (status, said) = run(&["all.ns"]);
    assert!(status == Some(2) && said.contains("no image"), "{said}");
    let (status, said) = run(&["absent"]);
    assert!(status == Some(127) && said.contains("absent"), "{said}");
    let (status, said) = run(&["--qemu", "/no/qemu", triple.to_str().unwrap()]);
    assert!(status == Some(126) && said.contains("needs QEMU") && said.contains("Debian"), "{said}");
    // Programs do not need QEMU.
    let (status, said) = run(&["--qemu", "/no/qemu", "all.ns", "--", "true"]);
    assert!(status == Some(0) && said.is_empty(), "{said}");
}

#[test]
fn where_the_first_way_does_not_get_it_to_its_channel_the_next_one_does() {
    let Some(world) = World::new() else { return };
    let hang = bare(&world, "hang", b"\xf4\xeb\xfd");
    // A QEMU with a KVM that starts and hangs, as some do.
    let qemu = world.0.path().join("qemu");
    let script = "#!/bin/sh\n\
                  case \" $* \" in *' kvm '*) echo 'KVM internal error. Suberror: 1' >&2; exec sleep 600;; esac\n\
                  exec qemu-system-x86_64 \"$@\"\n";
    fs::write(&qemu, script).unwrap();
    fs::set_permissions(&qemu, fs::Permissions::from_mode(0o755)).unwrap();
    let qemu = qemu.to_str().unwrap();
    let said = world.run(&["--accel", "auto", "--qemu", qemu], &image("hello"), &[]);
    let why = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success() && said.stdout.starts_with(b"hello"), "{why}");
    assert!(why.lines().count() == 1 && why.contains("not with KVM"), "{why}");
    let said = world.fails(125, &["--accel", "kvm", "--qemu", qemu], &hang, &[]);
    assert!(said.contains("KVM internal error"), "{said}");
}

#[test]
fn a_machine_that_hangs_ends_with_who_runs_it() {
    let Some(world) = World::new() else { return };
    let hang = bare(&world, "hang", b"\xf4\xeb\xfd");
    for (signal, status) in [(Signal::TERM, Some(143)), (Signal::INT, Some(130)), (Signal::KILL, None)] {
        let mut child = world.command(&[], &hang, &[]).spawn().unwrap();
        let qemu = loop {
            match qemu_of(&child) {
                Some(pid) => break pid,
                None => assert!(child.try_wait().unwrap().is_none()),
            }
        };
        let machine = pidfd_open(qemu, PidfdFlags::empty()).unwrap();
        kill_process(Pid::from_child(&child), signal).unwrap();
        assert_eq!(child.wait().unwrap().code(), status);
        let limit = Timespec { tv_sec: 20, tv_nsec: 0 };
        let mut gone = [PollFd::new(&machine, PollFlags::IN)];
        assert_eq!(poll(&mut gone, Some(&limit)).unwrap(), 1, "{signal:?}: QEMU goes on");
    }
}

#[test]
fn who_writes_garbage_into_its_channels_harms_itself() {
    let Some(world) = World::new() else { return };
    for seed in 0..6 {
        let mut child =
            world.command(&[], &image("mischief"), &["garbage", &seed.to_string()]).spawn().unwrap();
        // It ends by itself with a status, or hangs without a channel.
        let status = child.wait().unwrap();
        assert!(matches!(status.code(), Some(0 | 1 | 101 | 125)), "{seed}: {status}");
    }
}
