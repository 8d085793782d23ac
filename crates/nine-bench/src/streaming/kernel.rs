//! The Linux kernel's own client, which requests one piece at a time, over a local mux that reads ahead (`mount -P`).
//! This is how a remote machine is mounted today.
//!
//! The kernel is Debian's, unmodified, in the guest of `cargo xtask guest`. The guest is emulated, so it copies slowly.
//! The mux runs beside it, on the loopback of its side.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nine_sim::delay::Side;

use super::copies::{CopyDirection, CopyTool};
use super::{MIDDLE, StreamingContest};
use crate::args::BenchPace;
use crate::child::ChildProcess;
use crate::report::{BenchReport, ReportRow};

/// The guest's script: mounts the mux, reads the file once, and prints the time of both.
const SCRIPT: &str = "set -eu
modprobe 9p
modprobe 9pnet_fd
mkdir -p /mnt/mux
from=$(date +%s%N)
mount -t 9p -o trans=tcp,port=$1,version=9p2000.L,msize=1048576,access=any,uname=root 10.0.2.2 /mnt/mux
bytes=$(cat /mnt/mux/far/$2 | wc -c)
to=$(date +%s%N)
umount /mnt/mux
echo \"took $((to - from)) $bytes\"
";
/// Limit for start, read and end.
const LIMIT: Duration = Duration::from_secs(400);

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    if contest.pace == BenchPace::Tiny {
        report.notes.push("kernel_mux50_vs_http is na: a tiny run starts no guest".into());
        return Ok(());
    }
    let size = contest.pace.of(200, 25, 25);
    contest.link(MIDDLE);
    let guest = match KernelGuest::ready(contest) {
        Ok(guest) => guest,
        Err(why) => {
            report.notes.push(format!("kernel_mux50_vs_http is na: there is no guest: {why}"));
            return Ok(());
        }
    };
    let ours = guest.read(contest, size)?;
    let peer = contest.copy(CopyTool::Http, CopyDirection::Read, size)?;
    let rate = |took: f64| size as f64 / took;
    let row = ReportRow {
        what: format!("read {size} MB, 50 ms: Linux 9P over mux -P / HTTP"),
        unit: "MB/s",
        ours: vec![rate(ours)],
        peer: peer.map(rate).into_iter().collect(),
        limit: Vec::new(),
    };
    report.key("kernel_mux50_vs_http", row.vs_peer());
    report.push(row);
    Ok(())
}

/// A mux, and the directory shared with a guest.
struct KernelGuest {
    port: u16,
    share: PathBuf,
    _mux: ChildProcess,
}

impl KernelGuest {
    /// Starts the mux, and checks that a guest can run.
    fn ready(contest: &StreamingContest) -> io::Result<Self> {
        // On this side the package archive is reachable, in case the kernel must be downloaded.
        let log = contest.run.path().join("guest.log");
        let words = guest(&[], &["true"]);
        let words: Vec<_> = words.iter().map(OsString::as_os_str).collect();
        let status = ChildProcess::program(&words, &log)?.wait(LIMIT)?;
        if !status.success() {
            return Err(io::Error::other(last_line(&log)));
        }
        let share = contest.local.path().join("share");
        std::fs::create_dir_all(&share)?;
        std::fs::write(share.join("read.sh"), SCRIPT)?;
        let (space, log) = (contest.run.path().join("far.ns"), contest.run.path().join("mux.log"));
        let far = contest.address(&contest.ours)?;
        std::fs::write(&space, format!("mount -P tcp!{}!{} /far\n", far.ip(), far.port()))?;
        let port = contest.far.free_port(Side::Here)?;
        let listen = format!("tcp!127.0.0.1!{port}");
        let mut words: Vec<OsString> = vec![contest.program.clone().into(), "serve".into(), space.into()];
        words.extend(["--insecure", "--config", "/dev/null", "--listen", &listen].map(OsString::from));
        let mut mux = contest.far.start(Side::Here, &words, &log)?;
        contest.far.wait_for(&mut mux, Side::Here, port, &log)?;
        Ok(Self { port, share, _mux: mux })
    }

    /// Reads a file of `size` MB in a guest; seconds.
    fn read(&self, contest: &StreamingContest, size: u64) -> io::Result<f64> {
        let log = contest.run.path().join("guest.log");
        let share = self.share.display().to_string();
        let (port, name) = (self.port.to_string(), size.to_string());
        let words = guest(&["--share", &share], &["bash", "/share/read.sh", &port, &name]);
        let status = contest.far.start(Side::Here, &words, &log)?.wait(LIMIT)?;
        let said = std::fs::read_to_string(&log)?;
        let took = said.lines().find_map(|line| line.strip_prefix("took ")).and_then(|rest| {
            let (nanos, bytes) = rest.split_once(' ')?;
            (bytes.trim().parse() == Ok(size * super::MB)).then_some(nanos.parse::<u64>().ok()?)
        });
        match took {
            Some(nanos) if status.success() => Ok(nanos as f64 / 1e9),
            _ => Err(io::Error::other(format!("the guest: {status}: {}", said.trim()))),
        }
    }
}

/// Returns the words that run a command in a guest.
fn guest(options: &[&str], command: &[&str]) -> Vec<OsString> {
    let cargo = std::env::var_os("CARGO").unwrap_or("cargo".into());
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    let limit = LIMIT.as_secs().to_string();
    let xtask = ["run", "--quiet", "--manifest-path", root, "--package", "xtask", "--", "guest"];
    let words = [&xtask[..], &["--timeout", &limit], options, &["--"], command].concat();
    std::iter::once(cargo).chain(words.into_iter().map(OsString::from)).collect()
}

fn last_line(log: &Path) -> String {
    let said = std::fs::read_to_string(log).unwrap_or_default();
    said.trim().lines().last().unwrap_or("it has said nothing").into()
}
