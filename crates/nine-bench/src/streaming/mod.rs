//! `streaming`: whole files over long links. Our streams, our compatibility mode and plain 9P, beside the tools that
//! people use instead: HTTP, SFTP, rsync. All use the same link: 100 Mbit/s, with a given round trip.
//!
//! In: one delay box, a server of each kind at its far side, and cold clients: a new process and a new connection for
//! each transfer. Out: rows, keys and figures, each from the file that measures it.

mod copies;
mod cpu;
mod fair;
mod first;
mod kernel;
mod plain;
mod tree;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nine_io::client::Options;
use nine_io::client::blocking::Client;
use nine_sim::delay::Side;

use self::copies::{CopyDirection, CopyTool};
use crate::args::BenchPace;
use crate::far::RemoteLink;
use crate::parts::{ExperimentPart, chosen};
use crate::peers::{self, PeerServer, diod, nginx, rsync, sftp};
use crate::report::BenchReport;
use crate::scratch::ScratchDir;
use crate::server::SILENCE;
use crate::{BenchExperiment, command, place};

pub const EXPERIMENT: BenchExperiment = BenchExperiment {
    name: "streaming",
    what: "files over links of 0.5 to 200 ms and 100 Mbit/s: streams, compatibility mode, plain 9P, HTTP, SFTP, rsync",
    run,
};

/// Rate of every link in each direction, bits per second.
const RATE: u64 = 100_000_000;
/// The round trip of most comparisons.
const MIDDLE: Duration = Duration::from_millis(50);
/// Unit of the sizes in file names, bytes.
const MB: u64 = 1_000_000;

/// The contestants, and the served files.
struct StreamingContest {
    pace: BenchPace,
    far: RemoteLink,
    /// After this time, no measurement begins that no key needs.
    enough: Instant,
    /// The command `ninefold`.
    program: PathBuf,
    /// Its server, over `served`.
    ours: PeerServer,
    nginx: Option<PeerServer>,
    sshd: Option<PeerServer>,
    rsync: Option<PeerServer>,
    diod: Option<PeerServer>,
    /// Files named by their sizes in MB, and the directory `in` for uploads.
    served: ScratchDir,
    /// The clients' directory.
    local: ScratchDir,
    /// Keys, configurations, logs.
    run: ScratchDir,
}

fn run(pace: BenchPace, only: Option<&str>) -> io::Result<BenchReport> {
    let parts = chosen(&PARTS, only)?;
    let mut report = BenchReport::default();
    let mut contest = StreamingContest::new(pace)?;
    // sshd may not accept this user, or may require root.
    if let Err(why) = contest.copy(CopyTool::Sftp, CopyDirection::Read, 0) {
        report.notes.push(format!("OpenSSH does not work here: {why}"));
        contest.sshd = None;
    }
    contest.introduce(&mut report);
    contest.prove(&mut report)?;
    for (name, measure) in parts {
        let begun = Instant::now();
        measure(&contest, &mut report)?;
        eprintln!("  {name}: {:.0} s", begun.elapsed().as_secs_f64());
    }
    report.order(&KEYS);
    for (key, program, package) in PEERS {
        report.keys.push((key, peers::version(program, package).unwrap_or("na".into())));
    }
    Ok(report)
}

const PARTS: [ExperimentPart<StreamingContest>; 6] = [
    ("copies", copies::measure),
    ("first", first::measure),
    ("fair", fair::measure),
    ("tree", tree::measure),
    ("cpu", cpu::measure),
    ("kernel", kernel::measure),
];

const KEYS: [&str; 17] = [
    "read50_vs_http",
    "write50_vs_http",
    "read05_vs_http",
    "compat50_vs_http",
    "plain50_vs_http",
    "kernel_mux50_vs_http",
    "open_first_byte_rtts",
    "tree50_sftp_speedup",
    "cpu_vs_nginx",
    "fair8_worst",
    "read15_vs_http",
    "read100_vs_http",
    "read200_vs_http",
    "write05_vs_http",
    "write15_vs_http",
    "write100_vs_http",
    "write200_vs_http",
];

/// Keys, programs and packages of the peers with versions to report.
const PEERS: [(&str, &str, &str); 5] = [
    ("nginx", "nginx", "nginx"),
    ("curl", "curl", "curl"),
    ("openssh", "sshd", "openssh-server"),
    ("rsync", "rsync", "rsync"),
    ("diod", "diod", "diod"),
];

impl StreamingContest {
    fn new(pace: BenchPace) -> io::Result<Self> {
        // Leave enough time for the measurements that keys need.
        let enough = Instant::now() + Duration::from_secs(pace.of(34 * 60, 4 * 60, 3600));
        let program = command::program()?;
        let (served, local, run) = (ScratchDir::new()?, ScratchDir::new()?, ScratchDir::for_sockets()?);
        std::fs::create_dir(served.path().join("in"))?;
        let far = RemoteLink::new()?;
        let ours = serve(&far, &program, served.path(), run.path())?;
        let [dir, own] = [served.path(), run.path()];
        let nginx = nginx::start(&far, dir, own)?.filter(|_| peers::find("curl").is_some());
        let (sshd, rsync) = (sftp::start(&far, own)?, rsync::start(&far, dir, own)?);
        let diod = diod::start_far(&far, dir, own)?;
        eprintln!("  the servers run; makes files");
        for size in copies::sizes(pace) {
            fill(&served.path().join(size.to_string()), size * MB)?;
        }
        Ok(Self { pace, far, enough, program, ours, nginx, sshd, rsync, diod, served, local, run })
    }

    /// Notes the conditions of the measurements.
    fn introduce(&self, report: &mut BenchReport) {
        let mut note = |text: String| report.notes.push(text);
        note(format!(
            "{} processors, free; every client is a new process with a new connection",
            place::count()
        ));
        note(self.far.note().into());
        let control =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
        note(format!("TCP of this kernel: {}; queue of the link: 1000 packets", control.trim()));
        let missing = [
            (
                self.nginx.is_none(),
                "nginx and curl (Debian packages nginx-light, curl): keys _vs_http, cpu_vs_nginx",
            ),
            (
                self.sshd.is_none(),
                "OpenSSH (Debian packages openssh-server, openssh-client): key tree50_sftp_speedup",
            ),
            (self.rsync.is_none(), "rsync (Debian package rsync): no key"),
            (self.diod.is_none(), "diod (Debian package diod): key compat50_vs_http"),
        ];
        for (_, what) in missing.into_iter().filter(|(is_missing, _)| *is_missing) {
            note(format!("MISSING, and na what needs it: {what}"));
        }
    }

    /// Measures the real properties of the link, at every round trip that is used.
    fn prove(&self, report: &mut BenchReport) -> io::Result<()> {
        for rtt in copies::RTTS {
            let asked = self.link(rtt).as_secs_f64() * 1e3;
            let measured = self.far.measure(self.pace.of(20, 2, 1) * MB as usize)?;
            report.notes.push(format!(
                "box: asked {asked} ms, {} Mbit/s; measured {measured}, one connection from its beginning",
                RATE / 1_000_000
            ));
            eprintln!("  {}", report.notes[report.notes.len() - 1]);
        }
        Ok(())
    }

    /// Sets the round trip of the link and returns it. In a tiny run it is shorter.
    fn link(&self, rtt: Duration) -> Duration {
        let rtt = rtt / self.pace.of(1, 1, 20);
        self.far.set(rtt, Some(RATE));
        rtt
    }

    fn address(&self, peer: &PeerServer) -> io::Result<SocketAddr> {
        self.far.reach(peer.port)
    }

    /// Runs a client on a side and returns the time from its start to its end. Fails after `limit`.
    fn time(&self, side: Side, words: &[OsString], limit: Duration) -> io::Result<Duration> {
        let log = self.run.path().join("client.log");
        let begun = Instant::now();
        let mut child = self.far.start(side, words, &log)?;
        let status = child.wait(limit)?;
        let took = begun.elapsed();
        if status.success() {
            return Ok(took);
        }
        let (what, said) = (words.join(OsStr::new(" ")), std::fs::read_to_string(&log).unwrap_or_default());
        Err(io::Error::other(format!("{}: {status}: {}", what.display(), said.trim())))
    }

    /// Returns the words of our command, without user configuration.
    fn ours(&self, verb: &str, words: Vec<OsString>) -> Vec<OsString> {
        let mut all: Vec<OsString> = vec![self.program.clone().into(), verb.into()];
        all.extend(["--config", "/dev/null", "--quiet"].map(OsString::from));
        all.extend(words);
        all
    }

    /// Returns the operand of a 9P server's file for our command.
    fn remote(&self, server: &PeerServer, name: &str) -> io::Result<OsString> {
        let address = self.address(server)?;
        Ok(format!("tcp!{}!{}/{name}", address.ip(), address.port()).into())
    }

    /// Opens our client on this thread, which runs on the near side ([`RemoteLink::run`]).
    fn client(&self, address: SocketAddr, options: Options) -> io::Result<Client> {
        let addr = nine_net::Addr::Tcp { host: address.ip().to_string(), port: address.port() };
        Ok(Client::dial(&addr, SILENCE, options)?)
    }

    /// Returns whether there is time for measurements that no key needs.
    fn has_time(&self) -> bool {
        Instant::now() < self.enough
    }
}

/// Starts our server over `dir`.
fn serve(far: &RemoteLink, program: &Path, dir: &Path, run: &Path) -> io::Result<PeerServer> {
    let (port, log) = (far.free_port(Side::There)?, run.join("ninefold.log"));
    let listen = format!("tcp!{}!{port}", far.server());
    let mut what = OsString::from("disk:");
    what.push(dir);
    let mut words: Vec<OsString> = vec![program.into(), "serve".into(), what];
    words.extend(["--insecure", "--config", "/dev/null", "--listen", &listen].map(OsString::from));
    let mut child = far.start(Side::There, &words, &log)?;
    far.wait_for(&mut child, Side::There, port, &log)?;
    Ok(PeerServer { child, port })
}

/// Creates a file of `size` bytes in which no two blocks are equal.
fn fill(path: &Path, size: u64) -> io::Result<()> {
    let mut file = File::create(path)?;
    let (mut left, mut block) = (size, vec![0u8; 1 << 16]);
    while left > 0 {
        for (n, bytes) in block.chunks_exact_mut(8).enumerate() {
            let number = (left + n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            bytes.copy_from_slice(&number.to_le_bytes());
        }
        let len = left.min(block.len() as u64) as usize;
        file.write_all(&block[..len])?;
        left -= len as u64;
    }
    // Otherwise the kernel would write the file to disk during a measurement.
    file.sync_all()
}
