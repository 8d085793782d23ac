//! Disks over Ethernets of the kernel's: two network name spaces, joined by cables, a target in one and the command in
//! the other.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};
use std::time::{Duration, Instant};

use common::{ended_within, ninefold, not_covered};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// A network name space, which lasts as long as a program that waits in it.
struct Space(Child);

impl Space {
    fn new() -> Result<Self, String> {
        let mut unshare = Command::new("unshare");
        unshare.args(["--net", "sh", "-c", "echo in; exec cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = unshare.stderr(Stdio::null()).spawn().map_err(|error| format!("unshare: {error}"))?;
        let mut said = [0; 3];
        let read = child.stdout.as_mut().expect("piped").read_exact(&mut said);
        let space = Self(child);
        read.map(|()| space).map_err(|_| "this user may make no network name spaces".into())
    }

    /// A command of this kind, in here.
    fn within(&self, command: &Command) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg(format!("--net=/proc/{}/ns/net", self.0.id())).arg(command.get_program());
        nsenter.args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => nsenter.env(name, value),
                None => nsenter.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            nsenter.current_dir(dir);
        }
        nsenter
    }

    fn ip(&self, words: &str) -> Result<(), String> {
        let mut ip = Command::new("ip");
        let output = self.within(ip.args(words.split(' '))).output().map_err(|error| error.to_string())?;
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() { Ok(()) } else { Err(format!("ip {words}: {said}")) }
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Two of them, with cables `v0`, `v1` and so on between, and a directory.
struct Site {
    home: TempDir,
    there: Space,
    here: Space,
}

impl Site {
    /// `None`, and said: it cannot be made.
    fn new(mtus: &[u32]) -> Option<Self> {
        let made = || {
            let (there, here) = (Space::new()?, Space::new()?);
            for (n, mtu) in mtus.iter().enumerate() {
                let peer = format!("peer name v{n} mtu {mtu} netns {}", here.0.id());
                there.ip(&format!("link add v{n} mtu {mtu} type veth {peer}"))?;
                there.ip(&format!("link set v{n} up"))?;
                here.ip(&format!("link set v{n} up"))?;
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

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// A command of ours on this side.
    fn command(&self, words: &str) -> Command {
        let mut command = ninefold(self.home.path());
        command.args(words.split(' '));
        self.here.within(&command)
    }

    fn run(&self, words: &str) -> Output {
        self.command(words).stdin(Stdio::null()).output().unwrap()
    }

    /// It succeeds. What it says.
    fn ok(&self, words: &str) -> Vec<u8> {
        let output = self.run(words);
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    fn says(&self, words: &str) -> String {
        String::from_utf8(self.ok(words)).unwrap()
    }

    /// It fails with status 1. What it says against it.
    fn fails(&self, words: &str) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(1), "{words}");
        String::from_utf8(output.stderr).unwrap()
    }

    /// It succeeds, and reads this file.
    fn fed(&self, words: &str, file: &Path) {
        let input = fs::File::open(file).unwrap();
        let output = self.command(words).stdin(input).output().unwrap();
        assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// A target on the other side, of this line.
    fn target(&self, words: &str) -> Target {
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

struct Target {
    child: Child,
    log: BufReader<ChildStderr>,
    said: String,
}

impl Target {
    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The next line of its log that has this.
    fn logs(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.log.read_line(&mut line).unwrap() > 0, "it ended before it said {word}");
        }
        line
    }

    fn stops(mut self) {
        self.signal(Signal::TERM);
        assert_eq!(ended_within(&mut self.child, LIMIT).expect("it ends").code(), Some(0));
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Bytes of which no two places look alike.
fn bytes(size: usize) -> Vec<u8> {
    let words = (1_u64..).map(|n| (n.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (n << 17)).to_ne_bytes());
    words.take(size.div_ceil(8)).flatten().take(size).collect()
}

fn disk(site: &Site, size: u64) -> PathBuf {
    let path = site.path("disk");
    fs::File::create(&path).unwrap().set_len(size).unwrap();
    path
}

const MB: usize = 1 << 20;

#[test]
fn a_disk_is_found_written_and_read_in_jumbo_and_standard_frames() {
    for (mtu, sectors) in [(9000, 17), (1500, 2)] {
        let Some(site) = Site::new(&[mtu]) else { return };
        let disk = disk(&site, 32 * MB as u64);
        let mut target = site.target("1.0 disk v0 --string lab");
        assert!(target.said.contains("65536 sectors") && target.said.contains(&format!("mtu {mtu}")));
        let found = site.says("aoe discover");
        assert!(
            found.starts_with("1.0 ") && found.contains(&format!(" {sectors} sectors  lab\n")),
            "{found}"
        );
        let json = site.says("aoe discover v0 --string la --json");
        assert!(json.contains("\"address\":\"1.0\"") && json.contains("\"config\":\"lab\""), "{json}");
        assert_eq!(site.says("aoe discover v0 --string x"), "");
        let said = site.says("aoe identify 1.0 v0");
        assert!(said.contains("65536 sectors") && said.contains("makes durable"), "{said}");

        let data = bytes(20 * MB + 1001);
        fs::write(site.path("in"), &data).unwrap();
        site.fed("aoe write 1.0 v0 --offset 1M", &site.path("in"));
        assert!(fs::read(&disk).unwrap()[MB..][..data.len()] == data);
        assert!(site.ok(&format!("aoe read 1.0 v0 --offset 1M --length {}", data.len())) == data);
        assert!(site.ok("aoe read 1.0 v0 --offset 1048777 --length 10001") == data[201..][..10001]);
        assert!(site.ok("aoe read 1.0 v0") == fs::read(&disk).unwrap());
        site.ok("aoe flush 1.0 v0");
        let said = site.says("aoe stat 1.0 v0");
        assert!(said.contains("config    lab\n") && said.contains("reserved  by nobody\n"), "{said}");

        // It has grown: whoever looks sees it, and so does who is told to look.
        fs::File::options().write(true).open(&disk).unwrap().set_len(40 * MB as u64).unwrap();
        assert!(site.says("aoe identify 1.0 v0").contains("81920 sectors"));
        target.signal(Signal::HUP);
        target.logs("81920 sectors");
        target.stops();
    }
}

#[test]
fn of_two_cables_one_is_cut_and_mended_under_way() {
    const ALL: usize = 48 * MB;
    let Some(site) = Site::new(&[9000, 1500]) else { return };
    let disk = disk(&site, ALL as u64);
    let mut target = site.target("1.0 disk v0 v1");
    let data = bytes(ALL);
    let toggle = |n: usize| {
        let to = if n.is_multiple_of(2) { "down" } else { "up" };
        site.here.ip(&format!("link set v{} {to}", n / 2 % 2)).unwrap();
    };
    let mut write = site.command("aoe write 1.0 v0 v1").stdin(Stdio::piped()).spawn().unwrap();
    let mut input = write.stdin.take().unwrap();
    for (n, part) in data.chunks(ALL / 8).enumerate() {
        input.write_all(part).unwrap();
        toggle(n);
    }
    drop(input);
    assert!(write.wait().unwrap().success());
    assert!(fs::read(&disk).unwrap() == data);

    let mut read = site.command("aoe read 1.0 v0 v1").stdout(Stdio::piped()).spawn().unwrap();
    let mut output = read.stdout.take().unwrap();
    for (n, part) in data.chunks(ALL / 8).enumerate() {
        let mut is = vec![0; part.len()];
        output.read_exact(&mut is).unwrap();
        assert!(is == part);
        toggle(n);
    }
    assert!(read.wait().unwrap().success());
    // The other end's cable may go, too.
    site.there.ip("link set v0 down").unwrap();
    assert!(site.ok("aoe read 1.0 v0 v1") == data);
    // Whoever has no interface left ends.
    for n in 0..2 {
        site.there.ip(&format!("link del v{n}")).unwrap();
    }
    let ended = ended_within(&mut target.child, LIMIT).expect("it ends");
    assert_eq!(ended.code(), Some(1));
    target.logs("no interface is left");
}

#[test]
fn a_target_has_no_rights_left_and_keeps_to_its_mask_and_its_word() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, MB as u64);
    let target = site.target("1.0 disk v0 --read-only --serial s1");
    let status = fs::read_to_string(format!("/proc/{}/status", target.child.id())).unwrap();
    for line in ["CapEff:\t0000000000000000", "CapPrm:\t0000000000000000", "NoNewPrivs:\t1"] {
        assert!(status.contains(line), "{status}");
    }
    assert!(site.says("aoe identify 1.0 v0").contains("serial    s1\n"));
    let mut write = site.command("aoe write 1.0 v0");
    assert_eq!(write.stdin(fs::File::open(&path).unwrap()).output().unwrap().status.code(), Some(1));
    assert!(target.said.contains("read only"));
    target.stops();

    let target = site.target("1.0 disk v0 --mask 020000000001");
    assert_eq!(site.says("aoe discover v0"), "");
    target.stops();

    // Of parts, the second of which is another target's, and gone with it.
    let below = site.target("1.1 ram2048 v0");
    fs::write(site.path("in"), bytes(2 * MB)).unwrap();
    site.ok("aoe identify 1.1 v0");
    below.stops();
    let target = site.target("1.2 (w\"disk\"ram2048) v0 --buffers 4");
    site.fed("aoe write 1.2 v0", &site.path("in"));
    assert!(site.ok("aoe read 1.2 v0") == bytes(2 * MB));
    assert!(fs::read(&path).unwrap() == bytes(2 * MB)[..MB]);
    target.stops();
}

#[test]
fn what_cannot_be_says_what_to_do() {
    let Some(site) = Site::new(&[1500]) else { return };
    let path = disk(&site, MB as u64);
    let said = site.fails("aoe identify 1.0 nope");
    assert!(said.contains("ether nope: no interface has this name; there are: lo, v0"), "{said}");
    let said = site.fails("aoe identify 1.0 lo");
    assert!(said.contains("no Ethernet"), "{said}");
    let said = site.fails("aoe identify 7.0 v0 --patience 1");
    assert!(said.contains("e7.0: the target does not answer"), "{said}");
    assert!(said.contains("ninefold aoe discover v0"), "{said}");
    let said = site.fails("aoe target 1.0 q5 v0");
    assert!(said.contains("no device `q` is known here; these are: e, n, ram, w"), "{said}");
    let mut bare = Command::new("setpriv");
    let ninefold = ninefold(site.home.path());
    bare.args(["--bounding-set=-all", "--inh-caps=-all"])
        .arg(ninefold.get_program())
        .args(["aoe", "discover"]);
    let said = site.here.within(&bare).output().unwrap();
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("needs CAP_NET_RAW (root, or setcap cap_net_raw+ep)"), "{said}");

    let target = site.target("1.0 disk v0");
    let said = site.fails("aoe read 1.0 v0 --offset 2M");
    assert!(said.contains("it has 1048576 bytes"), "{said}");
    fs::write(site.path("in"), bytes(MB + 1)).unwrap();
    let mut write = site.command("aoe write 1.0 v0");
    let output = write.stdin(fs::File::open(site.path("in")).unwrap()).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("the disk ends at byte 1048576"));
    assert!(fs::read(&path).unwrap().len() == MB);
    target.stops();
}

#[test]
fn disks_are_files_of_a_name_space() {
    let Some(site) = Site::new(&[9000]) else { return };
    let path = disk(&site, 4 * MB as u64);
    let data = bytes(4 * MB);
    fs::write(&path, &data).unwrap();
    let target = site.target("1.0 disk v0 --string lab");
    fs::write(site.path("x.ns"), "mount aoe:v0 /dev/aoe\n").unwrap();
    let socket = format!("unix!{}", site.path("s").display());
    let mut serve = site.command(&format!("serve x.ns --listen {socket}"));
    let mut serve = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    let mut stdout = BufReader::new(serve.stdout.take().unwrap());
    while !said.ends_with("ready\n") {
        assert!(stdout.read_line(&mut said).unwrap() > 0, "{said}");
    }
    let begun = Instant::now();
    while site.says(&format!("ls --server {socket} :/dev/aoe")) != "1.0\n" {
        assert!(begun.elapsed() < LIMIT, "it is not found");
    }
    let cat = |name: &str| site.ok(&format!("cat --server {socket} :/dev/aoe/1.0/{name}"));
    assert!(cat("data") == data);
    assert_eq!(cat("config"), b"lab\n");
    assert!(String::from_utf8(cat("ident")).unwrap().contains("sectors 8192\n"));
    assert!(String::from_utf8(cat("ctl")).unwrap().starts_with("e1.0 Up 8192 sectors"));
    kill_process(Pid::from_child(&serve), Signal::TERM).unwrap();
    assert!(serve.wait().unwrap().success());
    target.stops();
}
