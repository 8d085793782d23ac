//! The Linux kernel's AoE driver and aoetools in a guest, against our targets.
//!
//! The checks are in `guest/aoe.sh`. This file creates the Ethernets (t0 and t1 with jumbo frames, t2 without) and
//! their targets, changes the targets at the guest's request, and finally examines a disk.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::shark::Shark;
use crate::child::{Child, last_lines};
use crate::guest::{self, Guest, Scratch, Trouble, lacking, scratch};
use crate::netns::{Netns, said};
use crate::packages;
use crate::served::Program;
use crate::steps::{Failed, Steps};

pub fn run(steps: &mut Steps, program: &Program, all: bool) -> Result<(), Failed> {
    if let Some(what) = lacking() {
        steps.not_covered(format!("{WHAT}: {what}"));
        return Ok(());
    }
    let space = match space() {
        Ok(space) => space,
        Err(why) => {
            steps.not_covered(format!("{WHAT}: {why}"));
            return Ok(());
        }
    };
    let again = if all { "cargo xtask aoe --all" } else { "cargo xtask aoe" };
    guest::call(steps, ("AoE with Linux", again), WHAT, all, || work(program, space, all))
}

/// Creates the Ethernets that lead to QEMU.
fn space() -> Result<Netns, String> {
    let space = Netns::new()?;
    for (name, mtu) in [("t0", 9000), ("t1", 9000), ("t2", 1500)] {
        space.ip(&format!("tuntap add {name} mode tap"))?;
        space.ip(&format!("link set {name} mtu {mtu} up"))?;
    }
    Ok(space)
}

fn work(program: &Program, space: Netns, all: bool) -> Result<(), Trouble> {
    let place = scratch("aoe").map_err(Trouble::NotEnded)?;
    let mut lab = Lab::new(program, space, place).map_err(Trouble::NotEnded)?;
    let share = lab.place.0.join("share");
    let mut guest = Guest::new(&["bash", "/share/aoe.sh", if all { "all" } else { "quick" }]);
    guest.share = Some(share.clone());
    guest.limit = Duration::from_secs(if all { 900 } else { 240 });
    guest.modules = ["e1000", "crc32c_generic", "ext4", "aoe"].to_vec();
    guest.before = lab.space.enter();
    // In the guest these are eth1 to eth3.
    for (n, card) in
        ["virtio-net-pci,host_mtu=9000", "virtio-net-pci,host_mtu=9000", "e1000"].into_iter().enumerate()
    {
        let (tap, card) = (
            format!("tap,id=t{n},ifname=t{n},script=no,downscript=no"),
            format!("{card},netdev=t{n},romfile="),
        );
        guest.qemu.extend(["-netdev", &tap, "-device", &card].map(String::from));
    }
    let shark = Shark::start(&lab.space, "t2", ONE_SHELF, &lab.place.0.join("captured"));
    let shark = shark.map_err(Trouble::NotEnded)?;
    let ended = beside(&share, || guest.run(), |words| lab.answer(words));
    let found = match &ended {
        Ok(ended) if ended.status != 0 => Err(format!("{} checks failed in the guest", ended.status)),
        Ok(_) => lab.end().and_then(|()| {
            println!("the disk's file system is sound on the host, too, and the files are the same");
            let seen = shark.map(|shark| shark.judge(LEAST, false)).transpose()?;
            seen.iter().for_each(|seen| println!("wireshark has nothing against {seen} frames"));
            Ok(())
        }),
        Err(_) => Ok(()),
    };
    match (ended, found) {
        (Ok(_), Ok(())) => Ok(()),
        (Ok(_), Err(what)) => Err(Trouble::NotEnded(format!("{what}\n{}", lab.log()))),
        (Err(Trouble::NotEnded(why)), _) => Err(Trouble::NotEnded(format!("{why}{}", lab.log()))),
        (Err(never), _) => Err(never),
    }
}

/// Our targets, vblade's target, and their disks.
struct Lab {
    program: PathBuf,
    targets: Vec<(&'static str, Child)>,
    space: Netns,
    place: Scratch,
}

impl Lab {
    fn new(program: &Program, space: Netns, place: Scratch) -> Result<Self, String> {
        let mut lab = Self { program: program.0.clone(), targets: Vec::new(), space, place };
        let share = lab.place.0.join("share");
        let tree = share.join("tree");
        fs::create_dir_all(&tree).map_err(|error| format!("{}: {error}", tree.display()))?;
        for (name, text) in [("checks.sh", crate::v9fs::CHECKS), ("aoe.sh", SCRIPT)] {
            fs::write(share.join(name), text).map_err(|error| format!("{name}: {error}"))?;
        }
        for (name, megabytes) in [("1.0", SIZE), ("1.1", 32), ("1.2", 32), ("9.0", 8)] {
            let disk = fs::File::create(lab.disk(name)).and_then(|file| file.set_len(megabytes << 20));
            disk.map_err(|error| format!("{name}: {error}"))?;
        }
        // Random bytes, so that all blocks differ, and the small files of `docs`.
        let script = "cp -r docs \"$0\" && head -c 4321098 /dev/urandom >\"$0/large\" && cd \"$0\" \
                      && find . -type f -print0 | xargs -0 sha256sum >../sums";
        said(Command::new("sh").args(["-ec", script]).arg(&tree).current_dir(crate::root()))?;
        for (name, ..) in TARGETS {
            lab.start(name)?;
        }
        if let Some(vblade) = packages::program("vblade") {
            let (vblade, disk) = (vblade.display().to_string(), lab.disk("9.0").display().to_string());
            let child = lab.space.start(&[&vblade, "-b", "16", "9", "0", "t2", &disk])?;
            lab.targets.push(("9.0", child));
            fs::write(share.join("vblade"), "").map_err(|error| error.to_string())?;
        }
        Ok(lab)
    }

    fn disk(&self, name: &str) -> PathBuf {
        self.place.0.join(name)
    }

    fn start(&mut self, name: &'static str) -> Result<(), String> {
        let (program, disk) = (self.program.display().to_string(), self.disk(name).display().to_string());
        let mut words = vec![&program, "--config", "/dev/null", "aoe", "target", name, &disk];
        words.extend(TARGETS.iter().filter(|(of, _)| *of == name).flat_map(|(_, on)| *on));
        let mut child = self.space.start(&words)?;
        let ready = child.wait_for("ready\n", SOON);
        ready.map_err(|why| format!("{why}\n{}", last_lines(&child.output(), 20)))?;
        self.targets.push((name, child));
        Ok(())
    }

    /// Executes a request of the guest.
    fn answer(&mut self, words: &str) -> Result<(), String> {
        match words.split_whitespace().collect::<Vec<_>>()[..] {
            ["grow"] => {
                let disk = fs::OpenOptions::new().write(true).open(self.disk("1.0"));
                disk.and_then(|disk| disk.set_len((2 * SIZE) << 20)).map_err(|error| error.to_string())?;
                self.targets
                    .iter()
                    .filter(|(name, _)| *name == "1.0")
                    .try_for_each(|(_, it)| it.signal("HUP"))
            }
            ["kill", name] => {
                self.targets.retain(|(of, _)| *of != name);
                Ok(())
            }
            ["start", name] => {
                let known = TARGETS.iter().find(|(of, _)| *of == name);
                known.map_or(Err(format!("no target {name}")), |(name, _)| self.start(name))
            }
            ["link", name, state] => self.space.ip(&format!("link set {name} {state}")),
            _ => Err(format!("not understood: {words}")),
        }
    }

    /// Stops the targets, which must exit without error, and checks the file system and the files on the disk.
    fn end(&mut self) -> Result<(), String> {
        for (name, mut target) in self.targets.drain(..).filter(|(name, _)| *name != "9.0") {
            target.signal("TERM")?;
            let status = target.wait(SOON)?;
            if !status.success() {
                return Err(format!("{name}: {status}\n{}", last_lines(&target.output(), 20)));
            }
        }
        let (disk, back) = (self.disk("1.0"), self.place.0.join("back"));
        fs::create_dir(&back).map_err(|error| format!("{}: {error}", back.display()))?;
        said(program("e2fsck").args(["-f", "-n"]).arg(&disk))?;
        said(program("debugfs").args(["-R", &format!("rdump tree {}", back.display())]).arg(&disk))?;
        said(Command::new("diff").arg("-r").arg(self.place.0.join("share/tree")).arg(back.join("tree")))
            .map(|_| ())
    }

    fn log(&mut self) -> String {
        let said = |(name, child): &mut (&'static str, Child)| {
            child.catch_up();
            format!("target {name}, the last of its log:\n{}", last_lines(&child.output(), 20))
        };
        self.targets.iter_mut().map(said).collect()
    }
}

/// While `f` runs, answers the requests that the guest writes to `asked` in its share, with the file `answered`. Child
/// processes started by `answer` live on, because the thread does.
fn beside<T: Send>(
    share: &Path,
    f: impl FnOnce() -> T + Send,
    mut answer: impl FnMut(&str) -> Result<(), String>,
) -> T {
    let (asked, answered, new) = (share.join("asked"), share.join("answered"), share.join("answered.new"));
    std::thread::scope(|scope| {
        let done = scope.spawn(f);
        while !done.is_finished() {
            let Ok(words) = fs::read_to_string(&asked) else {
                std::thread::sleep(Duration::from_millis(10));
                continue;
            };
            let said = answer(&words).err().unwrap_or_else(|| "ok".to_string());
            // The guest notices a failure here: it gets no answer in time.
            let _ = fs::remove_file(&asked).and_then(|()| fs::write(&new, said));
            let _ = fs::rename(&new, &answered);
        }
        done.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn program(name: &str) -> Command {
    Command::new(packages::program(name).unwrap_or_else(|| name.into()))
}

const WHAT: &str = "our AoE target under the Linux kernel's driver, and under aoetools";
const SCRIPT: &str = include_str!("../../guest/aoe.sh");
/// Targets with their interfaces.
const TARGETS: &[(&str, &[&str])] = &[("1.0", &["t0"]), ("1.1", &["t2"]), ("1.2", &["t0", "t1"])];
/// Size in megabytes of the disk that is grown to twice that size.
const SIZE: u64 = 16;
/// Capture filter for the Ethernet with small frames. Linux may use one tag for two disks, and wireshark would take the
/// answer of one for that of the other.
const ONE_SHELF: &str = " and ether[16:2] != 9";
/// Minimum number of such frames.
const LEAST: usize = 10_000;
const SOON: Duration = Duration::from_secs(20);
