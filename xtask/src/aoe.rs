//! ATA over Ethernet with others: our initiator against vblade's target, and wireshark's judgement of all frames, on
//! an Ethernet of the kernel's between two network name spaces.
//!
//! Not here: aoetools. All but aoeping need the kernel's driver; and aoeping takes no answers of vblade's on such an
//! Ethernet either.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::child::{Child, last_lines};
use crate::guest::scratch;
use crate::packages;
use crate::served::Program;
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if packages::program("vblade").is_none() {
        return Ok(()); // said when the packages were looked for
    }
    let cable = |mtu| Cable::new(mtu).map_err(|why| format!("AoE with vblade: {why}"));
    let cables = match [9000, 1500].map(cable) {
        [Ok(jumbo), Ok(standard)] => [jumbo, standard],
        [Err(why), _] | [_, Err(why)] => {
            steps.not_covered(why);
            return Ok(());
        }
    };
    steps.call("AoE with vblade", "cargo xtask aoe", || {
        for mut cable in cables {
            if let Err(why) = cable.work(program) {
                eprintln!("mtu {}: {why}", cable.mtu);
                return false;
            }
        }
        true
    })
}

/// Two network name spaces, and an Ethernet `v0` between them.
struct Cable {
    mtu: u32,
    /// What waits in them, and its ids.
    _held: [Child; 2],
    there: String,
    here: String,
}

impl Cable {
    fn new(mtu: u32) -> Result<Self, String> {
        let hold = || {
            let words = ["--net", "sh", "-c", "echo $$; exec sleep 3600"].map(String::from);
            let mut child = Child::start("unshare", &words, false)?;
            let said = child.wait_for("\n", SOON);
            let id = child.output().trim().to_string();
            said.map(|()| (child, id)).map_err(|_| "no network name space can be made here".to_string())
        };
        let ((one, there), (two, here)) = (hold()?, hold()?);
        let cable = Self { mtu, _held: [one, two], there, here };
        let peer = format!("peer name v0 mtu {mtu} netns {}", cable.here);
        for (side, words) in [
            (&cable.there, format!("ip link add v0 mtu {mtu} type veth {peer}")),
            (&cable.there, "ip link set v0 up".to_string()),
            (&cable.here, "ip link set v0 up".to_string()),
        ] {
            let words: Vec<&str> = words.split(' ').collect();
            said(Command::new("nsenter").args(within(side, &words)))?;
        }
        Ok(cable)
    }

    /// A program in one of them, beside us.
    fn start(&self, side: &str, words: &[&str]) -> Result<Child, String> {
        Child::start("nsenter", &within(side, words), false)
    }

    fn work(&mut self, program: &Program) -> Result<(), String> {
        let place = scratch("aoe")?;
        let file = |name: &str| place.0.join(name).display().to_string();
        let (disk, input, captured) = (file("disk"), file("in"), file("captured"));
        let data: Vec<u8> = (0..DATA).map(|n| (n ^ (n >> 9)) as u8).collect();
        let size = fs::write(&input, &data).and_then(|()| fs::File::create(&disk)?.set_len(DISK));
        size.map_err(|error| format!("{disk}: {error}"))?;

        let mut shark = None;
        if packages::program("tshark").is_some() {
            let mut child = self.start(&self.here, &["tshark", "-i", "v0", "-B", "64", "-w", &captured])?;
            child.wait_for("Capturing on", Duration::from_secs(60))?;
            shark = Some(child);
        }
        let ninefold = program.0.display().to_string();
        let ours = |words: &str, input: Option<&str>| {
            let all: Vec<&str> = [ninefold.as_str(), "--config", "/dev/null", "aoe"]
                .into_iter()
                .chain(words.split(' '))
                .collect();
            let mut command = Command::new("nsenter");
            command.args(within(&self.here, &all));
            command.stdin(match input {
                Some(input) => fs::File::open(input).map_err(|error| format!("{input}: {error}"))?.into(),
                None => Stdio::null(),
            });
            said(&mut command)
        };

        let mut vblade = self.start(&self.there, &["vblade", "-b", "16", "1", "0", "v0", &disk])?;
        let work = || {
            has(&ours("identify 1.0 v0", None)?, "Coraid EtherDrive vblade")?;
            has(&ours("discover v0", None)?, "16 buffers")?;
            ours("write 1.0 v0 --offset 64K", Some(&input))?;
            same(&fs::read(&disk).map_err(|error| error.to_string())?[64 << 10..][..DATA], &data)?;
            same(&ours(&format!("read 1.0 v0 --offset 64K --length {DATA}"), None)?, &data)?;
            has(&ours("stat 1.0 v0", None)?, "no durable flush")
        };
        let done = work();
        vblade.catch_up();
        done.map_err(|why| format!("vblade: {why}\n{}", last_lines(&vblade.output(), 5)))?;
        drop(vblade);

        // What wireshark has not seen of our own target.
        let words = ["--config", "/dev/null", "aoe", "target", "2.1", &disk, "v0", "--string", "lab"];
        let words: Vec<&str> = [ninefold.as_str()].into_iter().chain(words).collect();
        let mut target = self.start(&self.there, &words)?;
        target.wait_for("ready\n", SOON)?;
        ours("write 2.1 v0", Some(&input))?;
        same(&ours(&format!("read 2.1 v0 --length {DATA}"), None)?, &data)?;
        ours("stat 2.1 v0", None)?;
        has(&ours("discover --string la", None)?, "lab")?;
        drop(target);
        shark.map_or(Ok(()), |shark| judged(shark, Path::new(&captured)))
    }
}

/// Wireshark has nothing against any frame, and has read what we did.
fn judged(mut shark: Child, captured: &Path) -> Result<(), String> {
    shark.signal("INT")?;
    shark.wait(Duration::from_secs(60))?;
    let tshark = |words: &[&str]| said(Command::new("tshark").arg("-r").arg(captured).args(words));
    let against = tshark(&["-Y", "eth.type == 0x88a2 && (_ws.malformed || _ws.expert || !aoe)"])?;
    if !against.is_empty() {
        return Err(format!("wireshark:\n{}", last_lines(&String::from_utf8_lossy(&against), 20)));
    }
    let seen = tshark(&["-Y", "aoe", "-T", "fields", "-e", "aoe.cmd"])?;
    let seen = seen.split(|byte| *byte == b'\n').count();
    // To and from two targets, questions and answers, in the largest frames.
    let least = 2 * 2 * 2 * DATA / (17 * 512);
    if seen < least { Err(format!("wireshark saw {seen} frames of AoE, not {least}")) } else { Ok(()) }
}

/// The words for nsenter(1).
fn within(side: &str, words: &[&str]) -> Vec<String> {
    let net = format!("--net=/proc/{side}/ns/net");
    [net].into_iter().chain(words.iter().map(ToString::to_string)).collect()
}

/// What a program says, if it succeeds.
fn said(command: &mut Command) -> Result<Vec<u8>, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    Err(format!("{command:?}: {}: {}", output.status, String::from_utf8_lossy(&output.stderr)))
}

fn has(said: &[u8], word: &str) -> Result<(), String> {
    let said = String::from_utf8_lossy(said);
    if said.contains(word) { Ok(()) } else { Err(format!("{word:?} is not in: {said}")) }
}

fn same(is: &[u8], due: &[u8]) -> Result<(), String> {
    if is == due { Ok(()) } else { Err(format!("{} bytes are not the {} that are due", is.len(), due.len())) }
}

/// Bytes that are written and read; of the disk.
const DATA: usize = (4 << 20) + 777;
const DISK: u64 = 8 << 20;
/// For what takes no time.
const SOON: Duration = Duration::from_secs(20);
