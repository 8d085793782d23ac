//! The time until a standby serves the data of a killed primary. Runs the command twice, as users do, with one cache
//! and one worm, and an arbiter with the default period.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::{ArchiveContest, CLIENT_IO_LEN, pattern};
use crate::child::ChildProcess;
use crate::command;
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;

/// The arbiter's default period, milliseconds.
const PERIOD: u64 = 4000;
/// Longer than anything here takes, unless it hangs.
const LIMIT: Duration = Duration::from_secs(120);

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let period = contest.pace.of(PERIOD, PERIOD, 500) as f64 / 1e3;
    let site = TakeoverSite::new(period)?;
    let mib = contest.pace.of(256, 64, 1);
    let mut row = ReportRow {
        what: format!("taken over, {mib} MiB in the journal"),
        unit: "s",
        ..ReportRow::default()
    };
    let mut main = site.machine("mars", "")?;
    for round in 0..contest.pace.of(5, 3, 1) {
        let (name, other) = if round % 2 == 0 { ("mars", "venus") } else { ("venus", "mars") };
        let next = site.machine(other, ",begin=standby")?;
        // A new machine waits until its own previous lease has expired, and checks that no other machine has its name.
        std::thread::sleep(Duration::from_secs_f64(3.0 * period));
        // This data is synced, but in no dump.
        let bytes = pattern(CLIENT_IO_LEN, round as u64 + 1).repeat((mib << 20) as usize / CLIENT_IO_LEN);
        let (file, back) = (format!("file{round}"), format!("back{round}"));
        let there = format!(":/archive/{file}");
        fs::write(site.path(&file), &bytes)?;
        site.tell(&["put", "-q", &site.word(&file), &there, "--server", &site.socket(name)])?;
        site.tell(&["fs", "sync", "--server", &site.socket(name)])?;
        drop(main);
        let begun = Instant::now();
        site.tell(&["fs", "takeover", "--server", &site.socket(other)])?;
        row.ours.push(begun.elapsed().as_secs_f64());
        // The lease runs from the primary's last sign of life, up to a quarter of a period before its end. No faster
        // detection is possible.
        row.limit.push(period);
        site.tell(&["get", "-q", &there, &site.word(&back), "--server", &site.socket(other)])?;
        if fs::read(site.path(&back))? != bytes {
            return Err(io::Error::other("what was synced is not there after a takeover"));
        }
        main = next;
    }
    report.key("takeover_s", row.ours.iter().copied().reduce(f64::max));
    report.push(row);
    Ok(())
}

struct TakeoverSite {
    program: PathBuf,
    /// Two disks and the arbiter.
    disks: ScratchDir,
    run: ScratchDir,
}

impl TakeoverSite {
    fn new(period: f64) -> io::Result<Self> {
        let site =
            Self { program: command::program()?, disks: ScratchDir::new()?, run: ScratchDir::for_sockets()? };
        for (name, mib) in [("c", 2048_u64), ("w", 4096), ("a", 1)] {
            File::create(site.path(name))?.set_len(mib << 20)?;
        }
        site.tell(&["fs", "ream", &site.expr()])?;
        let period = period.to_string();
        site.tell(&["fs", "arbiter", &site.disk("a"), "mars", "venus", "--period", &period])?;
        // A standby follows dumps, so there must be one.
        let mars = site.machine("mars", "")?;
        site.tell(&["fs", "dump", "--wait", "--server", &site.socket("mars")])?;
        drop(mars);
        Ok(site)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.disks.path().join(name)
    }

    fn word(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    fn disk(&self, name: &str) -> String {
        format!("w\"{}\"", self.word(name))
    }

    fn expr(&self) -> String {
        format!("c {} {}", self.disk("c"), self.disk("w"))
    }

    fn socket(&self, machine: &str) -> String {
        format!("unix!{}", self.run.path().join(machine).display())
    }

    /// Starts a machine that serves or stands by.
    fn machine(&self, name: &str, words: &str) -> io::Result<ChildProcess> {
        let what = format!(
            "fs:{},arbiter={},machine={name},cache=shared,schedule=off{words}",
            self.expr(),
            self.disk("a")
        );
        // Remove the socket of a killed machine.
        let _ = fs::remove_file(self.run.path().join(name));
        let socket = self.socket(name);
        let words = ["--config", "/dev/null", "serve", &what, "--listen", &socket].map(OsStr::new);
        let log = self.run.path().join(format!("{name}.log"));
        let mut child = ChildProcess::program(&[&[self.program.as_os_str()], &words[..]].concat(), &log)?;
        let (begun, wanted) = (Instant::now(), format!("machine {name}, "));
        loop {
            let said = self.tell(&["fs", "status", "--server", &socket]);
            if said.as_ref().is_ok_and(|said| said.contains(&wanted)) {
                return Ok(child);
            }
            if child.has_ended()? || begun.elapsed() > LIMIT {
                let log = fs::read_to_string(&log).unwrap_or_default();
                return Err(io::Error::other(format!("{name} does not serve: {said:?}: {log}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn tell(&self, words: &[&str]) -> io::Result<String> {
        let mut command = Command::new(&self.program);
        let out = command.args(["--config", "/dev/null"]).args(words).stdin(Stdio::null()).output()?;
        match out.status.success() {
            true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
            false => Err(io::Error::other(format!("{words:?}: {}", String::from_utf8_lossy(&out.stderr)))),
        }
    }
}
