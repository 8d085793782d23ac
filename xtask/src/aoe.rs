//! ATA over Ethernet with third-party programs, on virtual Ethernets in network name spaces: our initiator against
//! vblade, our target under the Linux kernel's driver and aoetools, and wireshark's check of all frames.

mod linux;
mod shark;

use std::fs;
use std::process::Stdio;
use std::time::Duration;

use crate::child::last_lines;
use crate::guest::scratch;
use crate::netns::{Netns, said};
use crate::packages;
use crate::served::Program;
use crate::steps::{Failed, Steps};
use shark::Shark;

/// Runs checks that take some seconds. `all` adds more checks with the Linux kernel.
pub fn run(steps: &mut Steps, program: &Program, all: bool) -> Result<(), Failed> {
    vblade(steps, program)?;
    linux::run(steps, program, all)
}

fn vblade(steps: &mut Steps, program: &Program) -> Result<(), Failed> {
    if packages::program("vblade").is_none() {
        return Ok(()); // reported when the packages were looked up
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
        std::thread::scope(|scope| {
            let both = cables.map(|cable| {
                scope.spawn(move || {
                    let ended = cable.work(program);
                    ended.map_err(|why| eprintln!("mtu {}: {why}", cable.mtu))
                })
            });
            let ended = both.map(|one| one.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            ended.iter().all(Result::is_ok)
        })
    })
}

/// Two network name spaces joined by an Ethernet, `v0` on both sides.
struct Cable {
    mtu: u32,
    there: Netns,
    here: Netns,
}

impl Cable {
    fn new(mtu: u32) -> Result<Self, String> {
        let (there, here) = (Netns::new()?, Netns::new()?);
        let ends = format!("mtu {mtu} type veth peer name v0 mtu {mtu} netns {}", here.id);
        there.ip(&format!("link add v0 {ends}"))?;
        for side in [&there, &here] {
            side.ip("link set v0 up")?;
        }
        Ok(Self { mtu, there, here })
    }

    fn work(&self, program: &Program) -> Result<(), String> {
        let place = scratch("aoe")?;
        let file = |name: &str| place.0.join(name).display().to_string();
        let (disk, input, captured) = (file("disk"), file("in"), file("captured"));
        let data: Vec<u8> = (0..DATA).map(|n| (n ^ (n >> 9)) as u8).collect();
        let size = fs::write(&input, &data).and_then(|()| fs::File::create(&disk)?.set_len(DISK));
        size.map_err(|error| format!("{disk}: {error}"))?;

        let shark = Shark::start(&self.here, "v0", "", captured.as_ref())?;
        let ninefold = program.0.display().to_string();
        let ours = |words: &str, input: Option<&str>| {
            let mut command = self.here.command();
            command.args([&ninefold, "--config", "/dev/null", "aoe"]).args(words.split(' '));
            command.stdin(match input {
                Some(input) => fs::File::open(input).map_err(|error| format!("{input}: {error}"))?.into(),
                None => Stdio::null(),
            });
            said(&mut command)
        };

        let mut vblade = self.there.start(&["vblade", "-b", "16", "1", "0", "v0", &disk])?;
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
        println!("mtu {}: vblade is identified, written, read", self.mtu);

        // Our own target. Wireshark's capture continues.
        let words = ["--config", "/dev/null", "aoe", "target", "2.1", &disk, "v0", "--string", "lab"];
        let words: Vec<&str> = [ninefold.as_str()].into_iter().chain(words).collect();
        let mut target = self.there.start(&words)?;
        target.wait_for("ready\n", SOON)?;
        ours("write 2.1 v0", Some(&input))?;
        same(&ours(&format!("read 2.1 v0 --length {DATA}"), None)?, &data)?;
        ours("stat 2.1 v0", None)?;
        has(&ours("discover --prefix la", None)?, "lab")?;
        println!("mtu {}: our own target, too", self.mtu);
        if let Some(shark) = shark {
            // To and from two targets, requests and answers, in the largest frames.
            let seen = shark.judge(2 * 2 * 2 * DATA / (17 * 512), true)?;
            println!("mtu {}: wireshark has nothing against {seen} frames", self.mtu);
        }
        if packages::program("aoe-sancheck").is_some() {
            let bytes = if self.mtu == 1500 { 1024 } else { 8704 };
            let seen = said(self.here.command().arg("aoe-sancheck"))?;
            has(&seen, &format!("e1.0\t   1\t{bytes}\tv0"))?;
            has(&seen, &format!("e2.1\t   1\t{bytes}\tv0"))?;
            println!("mtu {}: aoe-sancheck finds both, with {bytes} bytes in a frame", self.mtu);
            // They skip unpadded frames.
            let seen = said(self.here.command().args(["aoeping", "-v", "-s", "5", "2", "1", "v0"]))?;
            has(&seen, "found e2.1 with mac")?;
            has(&said(self.here.command().args(["aoecfg", "-t", "1", "2", "1", "v0"]))?, "lab")?;
            println!("mtu {}: aoeping and aoecfg are answered", self.mtu);
        }
        Ok(())
    }
}

fn has(said: &[u8], word: &str) -> Result<(), String> {
    let said = String::from_utf8_lossy(said);
    if said.contains(word) { Ok(()) } else { Err(format!("{word:?} is not in: {said}")) }
}

fn same(is: &[u8], due: &[u8]) -> Result<(), String> {
    if is == due { Ok(()) } else { Err(format!("{} bytes are not the {} that are due", is.len(), due.len())) }
}

/// Number of bytes written and read, and size of the disk in bytes.
const DATA: usize = (4 << 20) + 777;
const DISK: u64 = 8 << 20;
/// Timeout for actions that complete at once.
const SOON: Duration = Duration::from_secs(20);
