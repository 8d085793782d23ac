//! Two network name spaces with cables between them, and our programs on both sides.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::common::space::Space;
use crate::common::{ended_within, ninefold, not_covered};

/// Longer than anything here takes, unless it hangs.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Two network name spaces, the cables `v0`, `v1` and so on between them, and a directory.
pub struct Site {
    pub home: TempDir,
    pub there: Space,
    pub here: Space,
}

impl Site {
    /// Returns `None`, and reports that, if they cannot be created.
    pub fn new(mtus: &[u32]) -> Option<Self> {
        let made = || {
            let (there, here) = (Space::new()?, Space::new()?);
            for (n, mtu) in mtus.iter().enumerate() {
                cable(&there, &here, n, *mtu)?;
            }
            Ok((there, here))
        };
        match made() {
            Ok((there, here)) => Some(Self { home: tempfile::tempdir().unwrap(), there, here }),
            Err(why) => {
                let why: String = why;
                not_covered(&format!("disks over an Ethernet of the kernel's: {why}"));
                None
            }
        }
    }

    /// Adds a cable with this number.
    pub fn cable(&self, n: usize, mtu: u32) -> Result<(), String> {
        cable(&self.there, &self.here, n, mtu)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Returns a command of ours on this side.
    pub fn command(&self, words: &str) -> Command {
        let mut command = ninefold(self.home.path());
        command.args(words.split(' '));
        self.here.within(&command)
    }

    pub fn run(&self, words: &str) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    /// Runs a command that must succeed. Returns its output.
    pub fn ok(&self, words: &str) -> Vec<u8> {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    pub fn says(&self, words: &str) -> String {
        String::from_utf8(self.ok(words)).unwrap()
    }

    /// Runs a command that must fail with status 1. Returns its error text.
    pub fn fails(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// Returns the MAC address of `v0` on this side.
    pub fn mine(&self) -> String {
        let mut ip = Command::new("ip");
        let said = self.here.within(ip.args(["-o", "link", "show", "v0"])).output().unwrap().stdout;
        let said = String::from_utf8(said).unwrap();
        let mac = said.split_whitespace().skip_while(|word| *word != "link/ether").nth(1);
        mac.expect("it has one").replace(':', "")
    }

    /// Runs a command on the other side that must succeed. Returns its output.
    pub fn there_ok(&self, words: &str, input: &[u8]) -> String {
        fs::write(self.path("input"), input).unwrap();
        let output = self.on_the_other_side(words, fs::File::open(self.path("input")).unwrap().into());
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs a command on the other side that must fail. Returns its error text.
    pub fn there_fails(&self, words: &str) -> String {
        let output = self.on_the_other_side(words, Stdio::null());
        assert_eq!(output.status.code(), Some(1), "{words}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn on_the_other_side(&self, words: &str, input: Stdio) -> Output {
        let mut command = ninefold(self.home.path());
        command.args(words.split(' '));
        self.there.within(&command).stdin(input).output().unwrap()
    }

    /// Runs a command that must succeed, with this file as input.
    pub fn fed(&self, words: &str, file: &Path) {
        let input = fs::File::open(file).unwrap();
        let output = self.command(words).stdin(input).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Starts a target on the other side with these words.
    pub fn target(&self, words: &str) -> Target {
        let mut command = ninefold(self.home.path());
        command.args(["aoe", "target"]).args(words.split(' '));
        let mut command = self.there.within(&command);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut log = BufReader::new(child.stderr.take().unwrap());
        let mut said = String::new();
        while !said.ends_with("ready\n") {
            if stdout.read_line(&mut said).unwrap() == 0 {
                log.read_to_string(&mut said).unwrap();
                panic!("it ended: {said}");
            }
        }
        Target { child, log, said }
    }
}

fn cable(there: &Space, here: &Space, n: usize, mtu: u32) -> Result<(), String> {
    let peer = format!("peer name v{n} mtu {mtu} netns {}", here.0.id());
    there.ip(&format!("link add v{n} mtu {mtu} type veth {peer}"))?;
    there.ip(&format!("link set v{n} up"))?;
    here.ip(&format!("link set v{n} up"))
}

pub struct Target {
    pub child: Child,
    pub log: BufReader<ChildStderr>,
    pub said: String,
}

impl Target {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns the next line of its log that contains this text.
    pub fn logs(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended before it said {word}");
        }
        line
    }

    pub fn stops(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(ended_within(&mut self.child, LIMIT).expect("it ends").code(), Some(0));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program that is killed at the end of the test.
pub struct Ends(pub Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // This fails if the process has ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns bytes without repetition.
pub fn bytes(size: usize) -> Vec<u8> {
    let words = (1_u64..).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17)).to_ne_bytes());
    words.take(size.div_ceil(8)).flatten().take(size).collect()
}

pub fn disk(site: &Site, size: u64) -> PathBuf {
    let path = site.path("disk");
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

pub const MB: usize = 1 << 20;
