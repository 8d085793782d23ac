//! A scratch directory, a server in it, and the command as a user would run it.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod space;
pub mod terminal;
mod watch;

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// Returns the program under test in an isolated environment: no configuration and no environment of ours.
pub fn ninefold(home: &Path) -> Command {
    watch::watch(home);
    let mut command = Command::new(env!("CARGO_BIN_EXE_ninefold"));
    for (name, _) in std::env::vars_os() {
        if name.as_bytes().starts_with(b"NINEFOLD_") || name.as_bytes().starts_with(b"AWS_") {
            command.env_remove(name);
        }
    }
    command.current_dir(home).env("HOME", home).env("XDG_RUNTIME_DIR", home).env_remove("XDG_CONFIG_HOME");
    command.env("XDG_STATE_HOME", home.join("state"));
    command
}

/// A server of the directory `files` in a scratch directory.
pub struct Server {
    pub dir: tempfile::TempDir,
    pub child: Child,
    stdout: BufReader<ChildStdout>,
    /// Its output before it was ready.
    pub banner: String,
}

impl Server {
    /// Starts it on a unix socket and loopback TCP.
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// Starts it with more words on its command line.
    pub fn with(words: &[&str]) -> Server {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("files")).unwrap();
        let socket = format!("unix!{}", dir.path().join("s").display());
        let mut line = vec!["serve", "files", "--listen", &socket, "--listen", "tcp!127.0.0.1!0"];
        line.extend(words);
        Server::in_dir(dir, &line)
    }

    /// Starts it with any command line.
    pub fn in_dir(dir: tempfile::TempDir, line: &[&str]) -> Server {
        let mut command = ninefold(dir.path());
        command.args(line);
        Server::by(dir, command)
    }

    /// Starts it with a command of [`ninefold`] in this directory.
    pub fn by(dir: tempfile::TempDir, mut command: Command) -> Server {
        let stderr = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(stderr).stdin(Stdio::null()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut banner = String::new();
        while !banner.ends_with("\nready\n") {
            let n = stdout.read_line(&mut banner).unwrap();
            assert!(n > 0, "it ended: {banner}{}", std::fs::read_to_string(dir.path().join("log")).unwrap());
        }
        Server { dir, child, stdout, banner }
    }

    pub fn files(&self) -> PathBuf {
        self.dir.path().join("files")
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap()
    }

    /// Returns the first address in its banner with this prefix.
    pub fn addr(&self, net: &str) -> String {
        self.banner.lines().find(|line| line.starts_with(net)).expect(net).to_string()
    }

    /// Returns the token in its banner.
    pub fn token(&self) -> String {
        let at = self.banner.split("9p://").find_map(|rest| rest.split_once('@')).expect("a token");
        at.0.to_string()
    }

    /// Returns a client command in the scratch directory; this server is its default.
    pub fn client(&self) -> Command {
        let mut command = ninefold(self.dir.path());
        command.env("NINEFOLD_SERVER", format!("unix:{}", self.socket().display()));
        command
    }

    /// Runs a client command to its end.
    pub fn run<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> Output {
        self.client().args(words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a client command that must succeed. Its error output may only contain progress, on slow machines.
    pub fn ok<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> String {
        let words: Vec<OsString> = words.into_iter().map(|word| word.as_ref().into()).collect();
        let output = self.run(&words);
        let stderr = String::from_utf8_lossy(&output.stderr);
        let is_quiet = stderr.lines().all(|line| line.is_empty() || line.contains(" so far"));
        assert!(output.status.success() && is_quiet, "{words:?}: {:?}: {stderr}", output.status);
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Runs a client command that must fail with status 1. Returns its error text.
    pub fn fails<S: AsRef<OsStr>>(&self, words: impl IntoIterator<Item = S>) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// Runs a client command that must succeed, with this input.
    pub fn fed(&self, words: &[&str], input: &[u8]) {
        let mut child = self.client().args(words).stdin(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input).unwrap();
        assert!(child.wait().unwrap().success(), "{words:?}");
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Ends it with SIGTERM. Returns its status and its remaining output.
    pub fn stop(&mut self) -> (Option<i32>, String) {
        self.signal(Signal::TERM);
        let status = self.child.wait().unwrap().code();
        let mut rest = String::new();
        self.stdout.read_to_string(&mut rest).unwrap();
        (status, rest)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns all properties of a tree that a copy must preserve.
pub fn tree(top: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![top.to_path_buf()];
    while let Some(path) = todo.pop() {
        let meta = path.symlink_metadata().unwrap();
        let content = if meta.is_dir() {
            todo.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            "directory".into()
        } else if meta.is_symlink() {
            format!("link {:?}", std::fs::read_link(&path).unwrap())
        } else {
            let bytes = std::fs::read(&path).unwrap();
            format!("{} bytes {:x}", bytes.len(), sum(&bytes))
        };
        let (sec, nsec) = (meta.mtime(), meta.mtime_nsec());
        let mode = meta.mode();
        found.insert(path.strip_prefix(top).unwrap().into(), format!("{content} {mode:o} {sec}.{nsec}"));
    }
    found
}

/// Returns an FNV-1a hash. Collisions are too rare to matter in tests.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &b| (sum ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// Fails at the first difference between two trees.
pub fn assert_same(a: &Path, b: &Path) {
    let (left, right) = (tree(a), tree(b));
    for (path, what) in &left {
        assert_eq!(Some(what), right.get(path), "{}", path.display());
    }
    assert_eq!(left.len(), right.len());
}

/// Sets the modification time.
pub fn set_mtime(path: &Path, sec: i64, nsec: i64) {
    let time = rustix::fs::Timespec { tv_sec: sec, tv_nsec: nsec };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(rustix::fs::CWD, path, &times, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

pub fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Copies a program to be run there. Another process writes it. If this process did, a program started at the same
/// moment by another thread would have the copy open for writing, and it could not be run (ETXTBSY).
pub fn copy_program(from: impl AsRef<Path>, to: impl AsRef<Path>) {
    let status = Command::new("cp").arg("--").args([from.as_ref(), to.as_ref()]).status().unwrap();
    assert!(status.success());
}

/// Writes a key so that no other user can read it.
pub fn secret(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap();
    chmod(path, 0o600);
}

/// Returns an example of nine-guest, freshly built.
pub fn guest(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let here = std::env::current_exe().unwrap();
        let profile = here.ancestors().nth(2).unwrap();
        let mut cargo = Command::new(env!("CARGO"));
        cargo.args(["build", "-q", "-p", "nine-guest", "--examples", "--target-dir"]);
        cargo.arg(profile.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if profile.ends_with("release") {
            cargo.arg("--release");
        }
        assert!(cargo.status().unwrap().success());
        profile.join("examples")
    });
    dir.join(name)
}

/// Returns an image of `images/`, freshly built.
pub fn image(name: &str) -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let dir = BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let made = Command::new(env!("CARGO")).args(["xtask", "images"]).current_dir(&root).output().unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        root.join("target/images")
    });
    dir.join(name)
}

/// Waits for the end of a process, for at most `limit`.
pub fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let pid = Pid::from_child(child);
    let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
    let mut end = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
    let limit = rustix::time::Timespec::try_from(limit).unwrap();
    match rustix::event::poll(&mut end, Some(&limit)).unwrap() {
        0 => None,
        _ => Some(child.wait().unwrap()),
    }
}

/// Polls a condition, which must become true within a minute.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < Duration::from_mins(1), "it never happens that {what}");
        std::thread::yield_now();
    }
}

/// Sets a flag on drop, so that concurrent work also ends if the test fails.
pub struct Stop<'a>(pub &'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Reports that something is not covered, bypassing the test runner, which hides the output of passing tests.
pub fn not_covered(what: &str) {
    std::io::Write::write_all(&mut std::io::stderr(), format!("NOT COVERED: {what}\n").as_bytes()).unwrap();
}
