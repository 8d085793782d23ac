//! Interrupted and resumed copies, verified files, and trees over links with slow answers.

mod relay;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::LazyLock;
use std::time::Duration;

use relay::{
    RGETATTR, RREAD, RSCLOSE, RSETATTR, RWRITE, Relay, TLOPEN, TREAD, TSCLOSE, TSTREAM, TWRITE, Way,
};
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, assert_same, chmod, ended_within, ninefold, set_mtime, tree};

/// Size of the interrupted file, and the position of the interruption, bytes. The window that a server may have with
/// gaps (16 MiB) is smaller than the received part.
const SIZE: usize = 40 << 20;
const CUT: u64 = 32 << 20;
/// Limit of a copy's traffic beside the data, bytes.
const TALK: u64 = 64 << 10;
const WINDOW: u64 = 16 << 20;

/// Returns bytes without repetition.
fn bytes(size: usize) -> Vec<u8> {
    ALL[..size].to_vec()
}

static ALL: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut all = vec![0; SIZE];
    for (n, word) in (1_u64..).zip(all.chunks_exact_mut(8)) {
        word.copy_from_slice(&(n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17)).to_ne_bytes());
    }
    all
});

/// A copy of one file in one direction.
struct Copy {
    line: &'static [&'static str],
    from: PathBuf,
    to: PathBuf,
    /// The direction of its data.
    way: Way,
}

/// Returns `get` and `put` of an existing file.
fn both(server: &Server) -> [Copy; 2] {
    let (here, there) = (server.dir.path().to_owned(), server.files());
    let data = bytes(SIZE);
    for from in [there.join("big"), here.join("big")] {
        fs::write(from, &data).unwrap();
    }
    [
        Copy { line: &["get", "/big", "got"], from: there.join("big"), to: here.join("got"), way: Way::Down },
        Copy { line: &["put", "big", "/put"], from: here.join("big"), to: there.join("put"), way: Way::Up },
    ]
}

impl Copy {
    fn command(&self, server: &Server, relay: &Relay, words: &[&str]) -> Command {
        let mut command = server.client();
        command.env("NINEFOLD_SERVER", relay.address()).args(self.line).args(words).stderr(Stdio::piped());
        command
    }

    /// Starts the copy. Returns when at least [`CUT`] less a window has arrived and nothing more will.
    fn half(&self, server: &Server, relay: &Relay, words: &[&str]) -> Child {
        relay.stop_after(self.way, CUT);
        let mut child = self.command(server, relay, words).spawn().unwrap();
        relay.is_stopped();
        while self.parts().iter().all(|part| part.metadata().map_or(0, |meta| meta.len()) < CUT - WINDOW / 2)
        {
            assert!(child.try_wait().unwrap().is_none(), "{:?}", self.line);
            std::thread::yield_now();
        }
        child
    }

    /// Returns the parts of the copy.
    fn parts(&self) -> Vec<PathBuf> {
        parts(self.to.parent().unwrap())
    }

    fn assert_whole(&self) {
        assert!(fs::read(&self.from).unwrap() == fs::read(&self.to).unwrap(), "{:?}", self.line);
        let mtime = |path: &Path| path.metadata().unwrap().modified().unwrap();
        assert_eq!(mtime(&self.from), mtime(&self.to));
        assert_eq!(self.parts(), [] as [PathBuf; 0]);
    }
}

/// Returns the incomplete files in a directory.
fn parts(dir: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    names.filter(|path| path.file_name().unwrap().as_bytes().windows(9).any(|w| w == b".ninefold")).collect()
}

/// Waits for the command to end by itself.
fn end(mut child: Child) -> Output {
    if ended_within(&mut child, Duration::from_secs(60)).is_none() {
        child.kill().unwrap();
        panic!("it hangs: {:?}", child.wait_with_output());
    }
    child.wait_with_output().unwrap()
}

/// Like [`end`], and checks the status and the error text.
fn ended(child: Child, status: Option<i32>, said: &str) -> String {
    let output = end(child);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.code() == status && stderr.contains(said), "{:?}: {stderr}", output.status);
    stderr
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

#[test]
fn an_interrupted_copy_goes_on_where_it_stopped() {
    let server = Server::start();
    for copy in both(&server) {
        for (i, how) in [Signal::INT, Signal::KILL].into_iter().enumerate() {
            let relay = Relay::start(&server.socket(), &format!("{:?}{i}", copy.way));
            let child = copy.half(&server, &relay, &["--resume"]);
            signal(&child, how);
            match how {
                Signal::INT => drop(ended(child, Some(130), "interrupted")),
                _ => drop(end(child)),
            }
            relay.cut();
            assert!(!copy.to.exists());
            let half = copy.parts()[0].metadata().unwrap().len();
            let relay = Relay::start(&server.socket(), &format!("{:?}{i}again", copy.way));
            let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
            ended(child, Some(0), "1 files are copied, 1 of them resumed, 0 were there");
            copy.assert_whole();
            let again = if copy.way == Way::Up { WINDOW } else { 0 };
            let most = SIZE as u64 - half + again + TALK;
            assert!(relay.bytes(copy.way) <= most, "{} of {most}, {half}", relay.bytes(copy.way));
            // A repeated copy has nothing to do.
            let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
            ended(child, Some(0), "0 files are copied, 0 of them resumed, 1 were there");
            fs::remove_file(&copy.to).unwrap();
        }
    }
}

#[test]
fn an_interrupted_copy_with_holes_goes_on_and_keeps_them() {
    let server = Server::start();
    for copy in both(&server) {
        let file = fs::File::create(&copy.from).unwrap();
        file.write_all_at(&bytes(28 << 20), 0).unwrap();
        file.write_all_at(&bytes(8 << 20), 100 << 20).unwrap();
        file.set_len(120 << 20).unwrap();
        let relay = Relay::start(&server.socket(), &format!("{:?}", copy.way));
        let child = copy.half(&server, &relay, &["--resume"]);
        signal(&child, Signal::KILL);
        end(child);
        relay.cut();
        assert!(!copy.to.exists());
        let relay = Relay::start(&server.socket(), &format!("{:?}again", copy.way));
        let child = copy.command(&server, &relay, &["--resume", "--verify"]).spawn().unwrap();
        ended(child, Some(0), "1 files are copied, 1 of them resumed, 0 were there");
        copy.assert_whole();
        let blocks = copy.to.metadata().unwrap().blocks();
        assert!(blocks * 512 < 40 << 20, "{:?}: {blocks} blocks", copy.way);
    }
}

#[test]
fn a_server_that_sets_no_length_gets_the_last_zero() {
    let server = Server::start();
    fs::write(server.dir.path().join("empty"), "").unwrap();
    fs::File::create(server.dir.path().join("f")).unwrap().set_len(1 << 20).unwrap();
    let relay = Relay::start(&server.socket(), "relay");
    // The first setattr sets the mode of the empty file, the second one the length of the other.
    relay.refuse(RSETATTR, 2);
    for name in ["empty", "f"] {
        let mut put = server.client();
        put.env("NINEFOLD_SERVER", relay.address()).args(["put", name, "/"]).stderr(Stdio::piped());
        ended(put.spawn().unwrap(), Some(0), "");
    }
    assert_eq!(fs::read(server.files().join("f")).unwrap(), vec![0; 1 << 20]);
    assert_eq!((relay.count(TWRITE), relay.count(RSETATTR)), (1, 3));
}

#[test]
fn a_copy_whose_server_goes_goes_on_when_it_is_back() {
    let mut server = Server::start();
    for copy in both(&server) {
        for (i, cut) in [true, false].into_iter().enumerate() {
            let relay = Relay::start(&server.socket(), &format!("{:?}{i}", copy.way));
            let child = copy.half(&server, &relay, &["--resume"]);
            if cut {
                relay.cut();
            } else {
                server.signal(Signal::KILL);
                server.child.wait().unwrap();
                relay.go_on();
            }
            ended(child, Some(1), "what has come is kept; the same line goes on from there");
            assert!(!copy.to.exists() && copy.parts().len() == 1);
            if !cut {
                let dir = std::mem::replace(&mut server.dir, tempfile::tempdir().unwrap());
                let socket = format!("unix!{}", dir.path().join("s").display());
                server = Server::in_dir(dir, &["serve", "files", "--listen", &socket]);
            }
            let relay = Relay::start(&server.socket(), &format!("{:?}{i}again", copy.way));
            let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
            ended(child, Some(0), "1 of them resumed");
            copy.assert_whole();
            fs::remove_file(&copy.to).unwrap();
            // Without --resume nothing stays.
            let relay = Relay::start(&server.socket(), &format!("{:?}{i}without", copy.way));
            let child = copy.half(&server, &relay, &[]);
            signal(&child, Signal::INT);
            relay.go_on();
            ended(child, Some(130), "interrupted");
            assert!(copy.parts().is_empty() && !copy.to.exists());
        }
    }
}

#[test]
fn a_copy_by_a_stream_goes_on_as_well() {
    let server = Server::start();
    let port = server.addr("tcp!").rsplit_once('!').unwrap().1.parse().unwrap();
    for copy in both(&server) {
        let relay = Relay::tcp(port, &server.token());
        // Data connections do not pass through this relay; but the answers to Tsclose do.
        relay.hold(RSCLOSE, TSCLOSE, usize::MAX);
        let mut child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
        while copy.parts().iter().all(|part| part.metadata().map_or(0, |meta| meta.len()) < SIZE as u64) {
            assert!(child.try_wait().unwrap().is_none(), "{:?}", copy.line);
            std::thread::yield_now();
        }
        assert!(relay.count(TSTREAM) > 0 && !copy.to.exists());
        signal(&child, Signal::KILL);
        end(child);
        let relay = Relay::tcp(port, &server.token());
        let child = copy.command(&server, &relay, &["--resume", "--verify"]).spawn().unwrap();
        ended(child, Some(0), "1 files are copied, 1 of them resumed, 0 were there");
        copy.assert_whole();
    }
}

#[test]
fn what_was_begun_with_another_source_is_removed() {
    let server = Server::start();
    for copy in both(&server) {
        let relay = Relay::start(&server.socket(), &format!("{:?}", copy.way));
        let child = copy.half(&server, &relay, &["--resume"]);
        relay.cut();
        end(child);
        assert_eq!(copy.parts().len(), 1);
        // A part of another file, and a file that only looks like a part.
        for other in [".other.ninefold-0123456789abcdef", ".ninefold-x"] {
            fs::write(copy.to.with_file_name(other), "x").unwrap();
        }
        let mut data = bytes(SIZE);
        data.rotate_left(5);
        fs::write(&copy.from, &data).unwrap();
        let relay = Relay::start(&server.socket(), &format!("{:?}again", copy.way));
        let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
        ended(child, Some(0), "1 files are copied, 0 of them resumed, 0 were there");
        for other in [".other.ninefold-0123456789abcdef", ".ninefold-x"] {
            fs::remove_file(copy.to.with_file_name(other)).unwrap();
        }
        copy.assert_whole();
    }
}

#[test]
fn a_part_that_was_damaged_is_found_out_by_comparing() {
    let server = Server::start();
    for copy in both(&server) {
        let relay = Relay::start(&server.socket(), &format!("{:?}", copy.way));
        let child = copy.half(&server, &relay, &["--resume"]);
        relay.cut();
        end(child);
        fs::write(&copy.to, "old").unwrap();
        let part = fs::File::options().write(true).read(true).open(&copy.parts()[0]).unwrap();
        let mut byte = [0];
        part.read_exact_at(&mut byte, 1000).unwrap();
        part.write_all_at(&[!byte[0]], 1000).unwrap();
        let words = ["--resume", "--verify"];
        let relay = Relay::start(&server.socket(), &format!("{:?}again", copy.way));
        let child = copy.command(&server, &relay, &words).spawn().unwrap();
        ended(child, Some(1), &format!("{}: what has arrived differs from its source", copy.line[1]));
        assert!(fs::read(&copy.to).unwrap() == b"old" && copy.parts().is_empty());
        let child = copy.command(&server, &relay, &words).spawn().unwrap();
        ended(child, Some(0), "1 files are copied, 0 of them resumed");
        copy.assert_whole();
        // A file with the source's attributes but other content is copied again.
        let modified = copy.from.metadata().unwrap().modified().unwrap();
        let there = fs::File::options().write(true).open(&copy.to).unwrap();
        there.write_all_at(b"other", 1000).unwrap();
        there.set_modified(modified).unwrap();
        let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
        ended(child, Some(0), "1 were there");
        let child = copy.command(&server, &relay, &words).spawn().unwrap();
        ended(child, Some(0), "1 files are copied, 0 of them resumed");
        copy.assert_whole();
    }
}

/// Creates a tree with all kinds of files.
fn forest(top: &Path, files: usize) {
    for i in 0..files {
        let dir = top.join(format!("{}/{}", i % 7, i % 50));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{i}"));
        fs::write(&path, bytes(i * 37 % 9000)).unwrap();
        chmod(&path, [0o644, 0o400, 0o755][i % 3]);
        set_mtime(&path, 1_000_000_000 + i as i64, 1 + i as i64 % 1000);
    }
    fs::create_dir(top.join("empty")).unwrap();
    fs::write(top.join("nothing"), "").unwrap();
    fs::write(top.join("large"), bytes(3 << 20)).unwrap();
    fs::write(top.join("x".repeat(255)), "long").unwrap();
    fs::write(top.join(OsStr::from_bytes(&[0xff; 255])), "long, not UTF-8").unwrap();
    fs::write(top.join(format!("{}a", "\u{e4}".repeat(127))), "a").unwrap();
    fs::write(top.join(format!("{}b", "\u{e4}".repeat(127))), "b").unwrap();
    // The source itself has a file with the name of a part.
    fs::write(top.join(".large.ninefold-0123456789abcdef"), "a file like others").unwrap();
    symlink("nothing", top.join("link")).unwrap();
    symlink("no such file", top.join("dangling")).unwrap();
}

#[test]
fn a_tree_of_small_files_is_the_same_at_both_ends() {
    let server = Server::start();
    let at = server.dir.path();
    forest(&at.join("src"), 3000);
    for words in [&[][..], &["--resume", "--verify"]] {
        for line in [["put", "-r", "src", "/there"], ["get", "-r", "/there", "back"]] {
            let output = server.run(line.iter().chain(words));
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{said}");
        }
        assert_same(&at.join("src"), &server.files().join("there"));
        assert_same(&at.join("src"), &at.join("back"));
        fs::remove_dir_all(at.join("back")).unwrap();
        fs::remove_dir_all(server.files().join("there")).unwrap();
        assert!(parts(at).is_empty() && parts(&server.files()).is_empty());
    }
}

#[test]
fn an_interrupted_tree_goes_on_with_what_is_missing() {
    let server = Server::start();
    let at = server.dir.path();
    forest(&at.join("src"), 1500);
    let all = tree(&at.join("src")).values().filter(|what| !what.contains("directory")).count();
    // As many bytes as the large file and some of the other files.
    let half = 7 << 20;
    server.ok(["put", "-q", "-r", "src", "/there"]);
    for (i, (line, way, to)) in [
        (["get", "-r", "/there", "back"], Way::Down, at.join("back")),
        (["put", "-r", "src", "/again"], Way::Up, server.files().join("again")),
        (["cp", "-r", ":/there", ":/copy"], Way::Down, server.files().join("copy")),
    ]
    .into_iter()
    .enumerate()
    {
        let command = |relay: &Relay, line: [&str; 4]| {
            let mut command = server.client();
            command.env("NINEFOLD_SERVER", relay.address()).args(line).arg("--resume").stderr(Stdio::piped());
            command.spawn().unwrap()
        };
        let relay = Relay::start(&server.socket(), &format!("relay{i}"));
        relay.stop_after(way, half);
        let child = command(&relay, line);
        relay.is_stopped();
        signal(&child, Signal::KILL);
        end(child);
        relay.cut();
        let relay = Relay::start(&server.socket(), &format!("relay{i}again"));
        let said = ended(command(&relay, line), Some(0), " were there");
        let number = |after: &str| {
            let words: Vec<_> = said.split([' ', ':']).collect();
            let at = words.iter().position(|word| *word == after).unwrap();
            words[at - 1].parse::<usize>().unwrap()
        };
        assert!(number("were") > 100, "{said}");
        assert_eq!(number("files") + number("were"), all, "{said}");
        assert_same(&at.join("src"), &to);
        assert!(parts(to.parent().unwrap()).is_empty(), "the directory's mark is gone");
        // Copy the content of one directory into the other.
        let inside = format!("{}/.", line[2]);
        let said = ended(command(&relay, [line[0], line[1], &inside, line[3]]), Some(0), " were there");
        let nothing = format!("0 files are copied, 0 of them resumed, {all} were there");
        assert!(said.contains(&nothing), "{said}");
        assert_same(&at.join("src"), &to);
    }
}

#[test]
fn names_of_any_length_are_continued() {
    let server = Server::start();
    let (a, b) = (format!("{}a", "\u{e4}".repeat(127)), format!("{}b", "\u{e4}".repeat(127)));
    let data = bytes(SIZE);
    for name in [&a, &b] {
        fs::write(server.files().join(name), &data).unwrap();
        fs::write(server.dir.path().join(name), &data).unwrap();
    }
    for (i, verb) in ["get", "put"].into_iter().enumerate() {
        let to = if verb == "get" { server.dir.path().join("to") } else { server.files().join("to") };
        fs::create_dir(&to).unwrap();
        for (j, name) in [&a, &b].into_iter().enumerate() {
            let way = if verb == "get" { Way::Down } else { Way::Up };
            let line = if verb == "get" { [name, "to"] } else { [name, "/to"] };
            let relay = Relay::start(&server.socket(), &format!("relay{i}{j}"));
            relay.stop_after(way, CUT);
            let mut command = server.client();
            command.env("NINEFOLD_SERVER", relay.address()).arg(verb).args(line).arg("--resume");
            let child = command.stderr(Stdio::piped()).spawn().unwrap();
            relay.is_stopped();
            while parts(&to).len() <= j
                || parts(&to).iter().any(|part| part.metadata().unwrap().len() <= WINDOW + WINDOW / 2)
            {
                std::thread::yield_now();
            }
            relay.cut();
            end(child);
        }
        assert_eq!(parts(&to).len(), 2, "one does not remove the other's");
        for name in [&a, &b] {
            let line = if verb == "get" { [name, "to"] } else { [name, "/to"] };
            let output = server.run([verb, line[0], line[1], "--resume"]);
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success() && said.contains("1 of them resumed"), "{said}");
            assert!(fs::read(to.join(name)).unwrap() == data);
        }
        assert_eq!(parts(&to).len(), 0);
    }
}

#[test]
fn a_full_server_is_told_and_keeps_what_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let socket = format!("unix!{}", dir.path().join("s").display());
    let server = Server::in_dir(dir, &["serve", "ram:16M", "--listen", &socket]);
    fs::write(server.dir.path().join("big"), bytes(SIZE)).unwrap();
    let said = server.fails(["put", "big", "/"]);
    assert!(said.contains("big: No space left on device"), "{said}");
    assert_eq!(server.ok(["ls", "-a", "/"]), "");
    let said = server.fails(["put", "big", "/", "--resume"]);
    assert!(said.contains("big: No space left on device"), "{said}");
    let names = server.ok(["ls", "-a", "/"]);
    assert!(names.starts_with(".big.ninefold-") && names.lines().count() == 1, "{names}");
}

#[test]
fn what_does_not_fit_here_is_told_and_goes_on_when_it_does() {
    let server = Server::start();
    fs::write(server.files().join("big"), bytes(SIZE)).unwrap();
    let at = server.dir.path();
    let limited = |words: &[&str]| {
        let mut line = Command::new("sh");
        line.current_dir(at).env("NINEFOLD_SERVER", format!("unix:{}", server.socket().display()));
        // ulimit counts blocks of 512 bytes.
        line.args(["-c", "trap '' XFSZ; ulimit -f 32768; exec \"$@\"", "sh"])
            .arg(env!("CARGO_BIN_EXE_ninefold"));
        line.args(["get", "/big"]).args(words).stderr(Stdio::piped());
        ended(line.spawn().unwrap(), Some(1), "/big: File too large")
    };
    limited(&[]);
    assert!(!at.join("big").exists() && parts(at).is_empty());
    limited(&["--resume"]);
    assert!(!at.join("big").exists());
    assert_eq!(parts(at)[0].metadata().unwrap().len(), 16 << 20);
    let output = server.run(["get", "/big", "--resume"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("1 of them resumed"), "{said}");
    assert!(fs::read(at.join("big")).unwrap() == bytes(SIZE));
}

#[test]
fn a_file_that_changes_meanwhile_arrives_as_it_ended_or_not_at_all() {
    let server = Server::start();
    let (from, to) = (server.files().join("big"), server.dir.path().join("big"));
    let at_once = SIZE as u64 - (4 << 20);
    for (i, change) in [SIZE as u64 + 5000, at_once].into_iter().enumerate() {
        for (j, (words, said)) in [
            (&[][..], None),
            (&["--resume"], None),
            (&["--verify"], Some("/big: it has changed while it was copied")),
        ]
        .into_iter()
        .enumerate()
        {
            fs::write(&from, bytes(SIZE)).unwrap();
            let relay = Relay::start(&server.socket(), &format!("relay{i}{j}"));
            relay.stop_after(Way::Down, 4 << 20);
            let mut command = server.client();
            command.env("NINEFOLD_SERVER", relay.address()).args(["get", "/big"]).args(words);
            let child = command.stderr(Stdio::piped()).spawn().unwrap();
            relay.is_stopped();
            fs::OpenOptions::new().write(true).open(&from).unwrap().set_len(change).unwrap();
            relay.go_on();
            match said {
                None => {
                    ended(child, Some(0), "");
                    assert!(fs::read(&from).unwrap() == fs::read(&to).unwrap(), "{change} {words:?}");
                    fs::remove_file(&to).unwrap();
                }
                Some(said) => {
                    ended(child, Some(1), said);
                    assert!(!to.exists());
                }
            }
            assert!(parts(server.dir.path()).is_empty());
        }
    }
}

#[test]
fn a_continued_file_that_changes_meanwhile_does_not_arrive() {
    let server = Server::start();
    for copy in both(&server) {
        let relay = Relay::start(&server.socket(), &format!("{:?}", copy.way));
        let child = copy.half(&server, &relay, &["--resume"]);
        relay.cut();
        end(child);
        let relay = Relay::start(&server.socket(), &format!("{:?}again", copy.way));
        relay.stop_after(copy.way, 4 << 20);
        let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
        relay.is_stopped();
        set_mtime(&copy.from, 1_500_000_000, 5);
        relay.go_on();
        ended(child, Some(1), "it has changed while it was copied");
        assert!(!copy.to.exists() && copy.parts().is_empty());
        let child = copy.command(&server, &relay, &["--resume"]).spawn().unwrap();
        ended(child, Some(0), "0 of them resumed");
        copy.assert_whole();
    }
}

#[test]
fn two_copies_to_one_place_do_not_disturb_each_other() {
    let server = Server::start();
    for copy in both(&server) {
        let (slow, fast) = (format!("{:?}slow", copy.way), format!("{:?}fast", copy.way));
        let (slow, fast) = (Relay::start(&server.socket(), &slow), Relay::start(&server.socket(), &fast));
        let first = copy.half(&server, &slow, &["--resume"]);
        let second = copy.command(&server, &fast, &["--resume"]).spawn().unwrap();
        ended(second, Some(0), "1 of them resumed");
        copy.assert_whole();
        slow.go_on();
        ended(first, Some(0), "1 files are copied");
        copy.assert_whole();
        fs::remove_file(&copy.to).unwrap();
        // A stalled copy that is a part, and a separate copy without --resume.
        let slow = Relay::start(&server.socket(), &format!("{:?}third", copy.way));
        let first = copy.half(&server, &slow, &["--resume"]);
        let second = copy.command(&server, &fast, &[]).spawn().unwrap();
        ended(second, Some(0), "");
        signal(&first, Signal::KILL);
        end(first);
        let third = copy.command(&server, &fast, &["--resume"]).spawn().unwrap();
        ended(third, Some(0), "1 were there");
        fs::remove_file(&copy.parts()[0]).unwrap();
        copy.assert_whole();
        fs::remove_file(&copy.to).unwrap();
    }
}

#[test]
fn older_dialects_go_on_as_well() {
    let server = Server::start();
    for dialect in ["u", "9P2000"] {
        for copy in both(&server) {
            set_mtime(&copy.from, 1_300_000_000, 0);
            fs::write(&copy.to, "old").unwrap();
            let relay = Relay::start(&server.socket(), &format!("{:?}{dialect}", copy.way));
            let child = copy.half(&server, &relay, &["--resume", "--dialect", dialect]);
            relay.cut();
            ended(child, Some(1), "what has come is kept");
            assert_eq!(fs::read(&copy.to).unwrap(), b"old");
            let relay = Relay::start(&server.socket(), &format!("{:?}{dialect}again", copy.way));
            let words = ["--resume", "--verify", "--dialect", dialect];
            let child = copy.command(&server, &relay, &words).spawn().unwrap();
            ended(child, Some(0), "1 files are copied, 1 of them resumed");
            copy.assert_whole();
            let child = copy.command(&server, &relay, &words).spawn().unwrap();
            ended(child, Some(0), "1 were there");
            fs::remove_file(&copy.to).unwrap();
        }
        server.ok(["put", "big", "/put", "--verify", "--quiet", "--dialect", dialect]);
        server.ok(["put", "big", "/put", "--verify", "--quiet", "--dialect", dialect]);
        assert!(fs::read(server.files().join("put")).unwrap() == bytes(SIZE));
        fs::remove_file(server.files().join("put")).unwrap();
        assert_eq!(parts(&server.files()), [] as [PathBuf; 0]);
    }
}

#[test]
fn many_small_files_are_under_way_at_once() {
    const FILES: usize = 400;
    let server = Server::start();
    for dir in [server.files(), server.dir.path().to_owned()] {
        fs::create_dir(dir.join("d")).unwrap();
        for i in 0..FILES {
            fs::write(dir.join(format!("d/{i}")), bytes(i)).unwrap();
        }
    }
    for (line, answer, question, a_file) in [
        // Messages for a file: walk, getattr, clunk; walk, lopen, read, clunk
        (["get", "-r", "/d", "back"], RREAD, TREAD, 7),
        // Messages for a file: walk, lcreate, write, setattr, renameat, clunk
        (["put", "-r", "d", "/back"], RWRITE, TWRITE, 6),
    ] {
        let relay = Relay::start(&server.socket(), line[0]);
        // Hold all answers until there are 300 such requests: a client with fewer in flight would wait forever.
        relay.hold(answer, question, 300);
        let mut command = server.client();
        command.env("NINEFOLD_SERVER", relay.address()).args(line).stderr(Stdio::piped());
        ended(command.spawn().unwrap(), Some(0), "");
        assert!(relay.requests() <= a_file * FILES + 50, "{} requests", relay.requests());
        assert!(relay.count(question) <= FILES, "{}", relay.count(question));
    }
    assert_same(&server.files().join("d"), &server.dir.path().join("back"));
    assert_same(&server.dir.path().join("d"), &server.files().join("back"));
}

#[test]
fn a_server_that_may_open_few_files_is_asked_for_less() {
    let dir = tempfile::tempdir().unwrap();
    forest(&dir.path().join("files"), 600);
    let socket = dir.path().join("s");
    let mut child = Command::new("sh")
        .current_dir(dir.path())
        .args(["-c", "ulimit -n 80; exec \"$@\"", "sh"])
        .arg(env!("CARGO_BIN_EXE_ninefold"))
        .args(["serve", "files", "--listen", &format!("unix!{}", socket.display())])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap() == "ready"));
    // Ignore lines about progress.
    let client = |line: [&str; 5]| {
        let mut command = ninefold(dir.path());
        command.env("NINEFOLD_SERVER", format!("unix:{}", socket.display())).args(line);
        command.stderr(Stdio::piped()).spawn().unwrap()
    };
    let got = end(client(["get", "-q", "-r", "/", "back"]));
    let put = end(client(["put", "-q", "-r", "back", "/put"]));
    child.kill().unwrap();
    child.wait().unwrap();
    for output in [got, put] {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() && said.is_empty(), "{said}");
    }
    assert_same(&dir.path().join("back"), &dir.path().join("files/put"));
}

#[test]
fn whatever_is_refused_because_too_much_is_open_is_asked_again() {
    let server = Server::start();
    forest(&server.files().join("d"), 100);
    let relay = Relay::start(&server.socket(), "relay");
    for (line, refused) in
        [(["get", "-q", "-r", "/d", "back"], RGETATTR), (["put", "-q", "-r", "back", "/again"], RSETATTR)]
    {
        relay.refuse(refused, 3);
        let mut command = server.client();
        command.env("NINEFOLD_SERVER", relay.address()).args(line).stderr(Stdio::piped());
        ended(command.spawn().unwrap(), Some(0), "");
    }
    assert_same(&server.files().join("d"), &server.dir.path().join("back"));
    assert_same(&server.dir.path().join("back"), &server.files().join("again"));
}

#[test]
fn files_are_opened_while_others_are_printed() {
    let server = Server::start();
    for name in ["a", "b", "c"] {
        fs::write(server.files().join(name), name.repeat(100)).unwrap();
    }
    let relay = Relay::start(&server.socket(), "relay");
    // Hold the data until all three files are being opened.
    relay.hold(RREAD, TLOPEN, 3);
    let mut command = server.client();
    command.env("NINEFOLD_SERVER", relay.address()).args(["cat", "/a", "/none", "/b", "/c"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let output = end(child);
    let (out, said) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(out, ["a", "b", "c"].map(|name| name.repeat(100)).concat());
    assert!(said.contains("/none: No such file") && output.status.code() == Some(1), "{said}");
}
