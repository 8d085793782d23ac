//! Hickey's Figure 15, counted: the number of copies of a byte between page cache and socket.
//!
//! Copies into and out of the programs: the sizes of their reads and writes, from strace(1). Copies within them: the
//! sizes passed to memcpy and related functions, counted by a preloaded library (`copied.c`); inlined copies are not
//! seen. Requests and heads are included. All figures are per byte of file content sent. The servers are the `ninefold`
//! built beside this program, because it has the messages and TLS.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use super::{HttpContest, free};
use crate::child::{ChildProcess, ROLE};
use crate::peers::{find, nginx};
use crate::report::{BenchReport, ReportRow};
use crate::scratch::ScratchDir;

/// Sizes of the files, bytes: one sent with its head, and one sent by sendfile.
const SIZES: [usize; 2] = [4 << 10, 256 << 10];

/// A route to the socket: its programs, and the address of the last one.
struct SocketRoute {
    name: &'static str,
    programs: Vec<ChildProcess>,
    url: String,
}

/// Copies of each byte sent.
struct CopyCounts {
    into: f64,
    within: f64,
    out: f64,
    /// Bytes sent by sendfile(2), without a copy.
    beside: f64,
    /// System calls of a request.
    calls: f64,
}

pub fn measure(contest: &HttpContest, report: &mut BenchReport) -> io::Result<()> {
    let tools = ["strace", "cc", "curl", "env"];
    let missing: Vec<_> = tools.into_iter().filter(|tool| find(tool).is_none()).collect();
    let program = std::env::current_exe()?.with_file_name("ninefold");
    if !missing.is_empty() || !program.exists() {
        return na(report, &format!("{missing:?} or {} is not there", program.display()));
    }
    let bench = CopyBench::new(program)?;
    let requests = contest.pace.of(200, 100, 4);
    for way in bench.ways()? {
        for size in SIZES {
            let Some(copies) = bench.count(&way, size, requests)? else {
                return na(report, "strace may not look at other programs");
            };
            let all = copies.into + copies.within + copies.out;
            match (way.name, size) {
                ("ours", 4_096) => report.key("copies_4k", Some(all)),
                ("ours", _) => report.key("copies_256k", Some(all)),
                _ => {}
            }
            let mut row = |what, unit, figure| {
                report.push(ReportRow::counted(format!("{}, {size}: {what}", way.name), unit, figure, None));
            };
            row("into the program", "copies", copies.into);
            row("within it", "copies", copies.within);
            row("out of it", "copies", copies.out);
            row("by sendfile", "of 1", copies.beside);
            row("system calls", "each", copies.calls);
        }
    }
    Ok(())
}

fn na(report: &mut BenchReport, why: &str) -> io::Result<()> {
    report.notes.push(format!("copies_4k is na, copies_256k is na: {why}"));
    Ok(())
}

/// The files of the measurement.
struct CopyBench {
    program: PathBuf,
    files: ScratchDir,
    run: ScratchDir,
}

impl CopyBench {
    fn new(program: PathBuf) -> io::Result<Self> {
        let (files, run) = (ScratchDir::new()?, ScratchDir::for_sockets()?);
        for size in SIZES {
            std::fs::write(files.path().join(size.to_string()), vec![7; size])?;
        }
        std::fs::write(run.path().join("copied.c"), include_str!("copied.c"))?;
        std::fs::write(run.path().join("copied"), [0; 8])?;
        let mut cc = Command::new("cc");
        cc.args(["-O1", "-fno-builtin", "-shared", "-fPIC", "-o", "copied.so", "copied.c"]);
        ended_well(cc.current_dir(run.path()))?;
        Ok(Self { program, files, run })
    }

    /// Starts a program with counted copies, and waits until it listens at its address.
    fn start(&self, name: &str, words: &[&OsStr], addr: Option<SocketAddr>) -> io::Result<ChildProcess> {
        let at = |name: &str, file: &str| {
            let mut word = OsString::from(name);
            word.push(self.run.path().join(file));
            word
        };
        let (library, copied) = (at("LD_PRELOAD=", "copied.so"), at("NINE_COPIED=", "copied"));
        let log = self.run.path().join(name).with_extension("log");
        let mut child =
            ChildProcess::program(&[&[OsStr::new("env"), &library, &copied], words].concat(), &log)?;
        let is_up = || match addr {
            Some(addr) => TcpStream::connect(addr).is_ok(),
            None => self.run.path().join(name).exists(),
        };
        while !is_up() {
            if child.has_ended()? {
                return Err(io::Error::other(format!("{name}: {}", std::fs::read_to_string(&log)?)));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(child)
    }

    fn ways(&self) -> io::Result<Vec<SocketRoute>> {
        let (files, run) = (self.files.path(), self.run.path());
        let path = |name: &str| run.join(name).display().to_string();
        let serve = |name: &str, words: &[&str], addr| {
            let words =
                [&["serve", "--config", "/dev/null", "--listen", &format!("unix!{}", path(name))], words];
            let words = words.concat();
            let words: Vec<&OsStr> =
                [self.program.as_os_str()].into_iter().chain(words.into_iter().map(OsStr::new)).collect();
            self.start(name, &words, addr)
        };
        let dir = format!("disk:{}", files.display());
        let listen = |scheme, addr: SocketAddr| format!("--http={scheme}!{}!{}", addr.ip(), addr.port());
        let way =
            |name, programs, scheme, addr| SocketRoute { name, programs, url: format!("{scheme}://{addr}") };

        let addr = free()?;
        let ours =
            way("ours", vec![serve("ours", &[&dir, &listen("http", addr)], Some(addr))?], "http", addr);

        let (addr, space) = (free()?, path("far.ns"));
        std::fs::write(&space, format!("mount unix!{} /\n", path("far")))?;
        let far = serve("far", &[&dir], None)?;
        let near = serve("near", &[&space, &listen("http", addr)], Some(addr))?;
        let messages = way("messages", vec![near, far], "http", addr);

        let addr = free()?;
        let twin = std::env::current_exe()?;
        let (parent, at) = (std::process::id().to_string(), addr.to_string());
        let words = [twin.as_os_str(), OsStr::new(ROLE), OsStr::new(&parent), OsStr::new("web-threads")];
        let words = [&words[..], &[files.as_os_str(), OsStr::new(&at)]].concat();
        let threads = way("threads", vec![self.start("threads", &words, Some(addr))?], "http", addr);
        let mut ways = vec![ours, messages, threads];

        if find("openssl").is_some() {
            let (addr, cert, key) = (free()?, path("cert.pem"), path("key.pem"));
            let mut openssl = Command::new("openssl");
            openssl.args("req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -keyout".split(' '));
            ended_well(openssl.args([&key, "-out", &cert]))?;
            let words = [&dir, &listen("https", addr), "--cert", &cert, "--key", &key];
            ways.push(way("TLS", vec![serve("tls", &words, Some(addr))?], "https", addr));
        }
        if let Some(program) = find("nginx") {
            let addr = free()?;
            // This only writes the configuration.
            drop(nginx::local(files, run, addr)?);
            let conf = path("web.conf");
            let words = ["-p", &path(""), "-c", &conf, "-e", "stderr"].map(OsString::from);
            let words: Vec<&OsStr> =
                [program.as_os_str()].into_iter().chain(words.iter().map(OsString::as_os_str)).collect();
            ways.push(way("nginx", vec![self.start("nginx", &words, Some(addr))?], "http", addr));
        }
        Ok(ways)
    }

    /// Counts the copies of `requests` requests for a file, one after the other on a connection. `None` if strace is
    /// not permitted.
    fn count(&self, way: &SocketRoute, size: usize, requests: usize) -> io::Result<Option<CopyCounts>> {
        let ask = |count: usize| {
            let url = format!("{}/{size}?[1-{count}]", way.url);
            ended_well(Command::new("curl").args(["-s", "-f", "-k", "-o", "/dev/null", &url]))
        };
        let copied = || {
            let bytes = std::fs::read(self.run.path().join("copied"))?;
            Ok::<_, io::Error>(bytes.try_into().map_or(0, u64::from_ne_bytes))
        };
        // Leave out the open of the file.
        ask(1)?;
        let before = copied()?;
        ask(requests)?;
        let within = copied()? - before;

        let (trace, log) = (self.run.path().join("trace"), self.run.path().join("strace.log"));
        let pids: Vec<_> = way.programs.iter().map(|child| child.pid().to_string()).collect();
        let mut words = ["strace", "-f", "-s", "0", "-e", "signal=none", "-o"].map(OsStr::new).to_vec();
        words.push(trace.as_os_str());
        words.extend(pids.iter().flat_map(|pid| [OsStr::new("-p"), OsStr::new(pid)]));
        let mut strace = ChildProcess::program(&words, &log)?;
        while std::fs::read_to_string(&log)?.matches(" attached").count() < pids.len() {
            if strace.has_ended()? {
                return Ok(None);
            }
            sleep(Duration::from_millis(5));
        }
        ask(requests)?;
        kill_process(strace.pid(), Signal::TERM)?;
        strace.wait(Duration::from_secs(10))?;
        let [into, out, beside, calls] = crossings(&std::fs::read_to_string(trace)?);
        let each = |bytes: u64| bytes as f64 / (requests * size) as f64;
        Ok(Some(CopyCounts {
            into: each(into),
            within: each(within),
            out: each(out),
            beside: each(beside),
            calls: calls as f64 / requests as f64,
        }))
    }
}

/// Returns the bytes read, written, and sent without copies; and the number of calls.
fn crossings(trace: &str) -> [u64; 4] {
    let mut sums = [0; 4];
    for line in trace.lines() {
        // A pid, then `name(arguments) = result` or, later, `<... name resumed>arguments) = result`.
        let Some((call, result)) = line.split_once(' ').and_then(|(_, call)| call.rsplit_once(" = ")) else {
            continue;
        };
        let call = call.trim_start();
        let name = call.strip_prefix("<... ").unwrap_or(call).split(['(', ' ']).next().unwrap_or_default();
        // A failed call returns a negative number, which counts as 0 bytes.
        let bytes = result.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0);
        sums[3] += 1;
        match name {
            "read" | "readv" | "pread64" | "preadv" | "preadv2" | "recvfrom" | "recvmsg" => sums[0] += bytes,
            "write" | "writev" | "pwrite64" | "sendto" | "sendmsg" => sums[1] += bytes,
            "sendfile" | "splice" => sums[2] += bytes,
            _ => {}
        }
    }
    sums
}

fn ended_well(command: &mut Command) -> io::Result<()> {
    let output = command.stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(io::Error::other(format!("{}: {} {said}", Path::new(command.get_program()).display(), output.status)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_summed_by_where_bytes_went() {
        let trace = "7 recvfrom(3, \"\"..., 16384, 0, NULL, NULL) = 38\n\
                     8 preadv2(4, [{iov_base=\"\"..., iov_len=9}], 1, 0, RWF_NOWAIT) = 9\n\
                     7 sendmsg(3, {msg_name=NULL}, MSG_NOSIGNAL <unfinished ...>\n\
                     8 recvfrom(3, 0x55, 16384, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)\n\
                     7 <... sendmsg resumed>) = 293\n\
                     7 sendfile(3, 4, [0] => [262144], 262144) = 262144\n\
                     7 epoll_wait(5,  <detached ...>\n";
        assert_eq!(crossings(trace), [47, 293, 262_144, 5]);
    }
}
