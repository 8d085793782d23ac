//! The server's processor time for sending a gigabyte, over the loopback of its side, where nothing waits.
//!
//! Both servers get the same client, which reads and discards. Over the loopback the kernel does a part of the sender's
//! work in the receiver's calls, and vice versa, so another client would measure something else. The time of both ends
//! together is reported, too.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nine_proto::frame::MSIZE_MAX;
use nine_proto::msg::{Names, OnlyIds, Rmsg, Tmsg};
use nine_proto::{Dialect, Fid, NOFID, NOTAG, Tag};
use nine_sim::delay::Side;
use rustix::process::geteuid;
use rustix::time::{ClockId, clock_gettime};

use super::{MB, StreamingContest};
use crate::peers::PeerServer;
use crate::report::{BenchReport, ReportRow};
use crate::server::SILENCE;
use crate::wire::receive;

/// Large files, in order of preference.
const FILES: [u64; 2] = [200, 1];
/// Size of one read, bytes.
const READ: usize = 256 * 1024;

/// A function that downloads the file of this name and size.
type FetchFn = fn(SocketAddr, &str, u64) -> io::Result<()>;

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    let served = |size: &u64| contest.served.path().join(size.to_string()).exists();
    let size = FILES.into_iter().find(served).ok_or_else(|| io::Error::other("there is no file to send"))?;
    contest.far.set(Duration::ZERO, None);
    let (rounds, turns) = contest.pace.of((10, 10), (6, 5), (1, 1));
    let (mut mine, mut theirs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        let http = contest.nginx.as_ref().map(|nginx| (nginx, by_http as FetchFn, &mut theirs));
        for (server, fetch, figures) in
            [Some((&contest.ours, by_stream as FetchFn, &mut mine)), http].into_iter().flatten()
        {
            let (alone, both) = seconds(contest, server, fetch, size, turns)?;
            figures[0].push(alone);
            figures[1].push(both);
        }
    }
    let ([mine, mine_both], [theirs, theirs_both]) = (mine, theirs);
    let row = |what: &str, ours, peer| ReportRow {
        what: format!("{what} CPU, loopback, {size} MB files: streams / nginx"),
        unit: "s/GB",
        ours,
        peer,
        limit: Vec::new(),
    };
    let alone = row("server's", mine, theirs);
    report.key("cpu_vs_nginx", alone.vs_peer());
    report.push(alone);
    report.push(row("server's and client's", mine_both, theirs_both));
    Ok(())
}

/// Returns the processor time for each GB over `turns` downloads: of the server, and of server and client together.
fn seconds(
    contest: &StreamingContest,
    server: &PeerServer,
    fetch: FetchFn,
    size: u64,
    turns: u32,
) -> io::Result<(f64, f64)> {
    let at = contest.address(server)?;
    let before = server.child.cpu()?;
    let client = contest.far.run(Side::There, || -> io::Result<Duration> {
        let before = cpu_of_thread();
        (0..turns).try_for_each(|_| fetch(at, &size.to_string(), size * MB))?;
        Ok(cpu_of_thread().saturating_sub(before))
    })??;
    let server = server.child.cpu()?.saturating_sub(before);
    let per_gb = |spent: Duration| spent.as_secs_f64() / (f64::from(turns) * (size * MB) as f64 / 1e9);
    Ok((per_gb(server), per_gb(server + client)))
}

fn cpu_of_thread() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn by_http(at: SocketAddr, name: &str, size: u64) -> io::Result<()> {
    let mut conn = dial(at)?;
    conn.write_all(format!("GET /{name} HTTP/1.1\r\nHost: {}\r\n\r\n", at.ip()).as_bytes())?;
    let mut head = [0; 4096];
    let mut have = 0;
    let body = loop {
        match conn.read(&mut head[have..])? {
            0 => return Err(io::Error::other("no head of an answer")),
            n => have += n,
        }
        if let Some(end) = head[..have].windows(4).position(|four| four == b"\r\n\r\n") {
            break have - end - 4;
        }
    };
    if !head.starts_with(b"HTTP/1.1 200 ") {
        return Err(io::Error::other(String::from_utf8_lossy(&head[..have]).into_owned()));
    }
    drain(&mut conn, size - body as u64)
}

fn by_stream(at: SocketAddr, name: &str, size: u64) -> io::Result<()> {
    let mut conn = dial(at)?;
    let (file, mut frame) = (Fid(1), Vec::new());
    send(&mut conn, &Tmsg::Version { msize: MSIZE_MAX, version: Dialect::LS.name().as_bytes() }, NOTAG)?;
    receive(&mut conn, MSIZE_MAX, &mut frame)?;
    let n_uname = OnlyIds(geteuid().as_raw());
    let all = [
        Tmsg::Attach { fid: Fid(0), afid: NOFID, uname: b"", aname: b"", n_uname },
        Tmsg::Walk { fid: Fid(0), newfid: file, names: Names::Slice(&[name.as_bytes()]) },
        Tmsg::Lopen { fid: file, flags: 0 },
        Tmsg::Stream { fid: file, isread: 1, offset: 0 },
    ];
    for message in &all {
        send(&mut conn, message, Tag(0))?;
        receive(&mut conn, MSIZE_MAX, &mut frame)?;
    }
    let (_, answer) = Rmsg::decode(&frame, Dialect::LS).map_err(io::Error::other)?;
    let Rmsg::Stream { data } = answer else {
        return Err(io::Error::other(answer.with_tag(Tag(0)).to_string()));
    };
    let begin = nine_proto::stream::accept(data.bytes()).map(|(_, begin)| begin);
    let mut data = dial(at)?;
    data.write_all(&begin.ok_or_else(|| io::Error::other("no offer of a stream"))?)?;
    send(&mut conn, &Tmsg::Sclose { fid: file, count: u64::MAX }, Tag(0))?;
    drain(&mut data, size)?;
    receive(&mut conn, MSIZE_MAX, &mut frame)?;
    match Rmsg::decode(&frame, Dialect::LS).map_err(io::Error::other)? {
        (_, Rmsg::Sclose { count, errno: 0, .. }) if count == size => Ok(()),
        (_, answer) => Err(io::Error::other(answer.with_tag(Tag(0)).to_string())),
    }
}

fn dial(at: SocketAddr) -> io::Result<TcpStream> {
    let conn = TcpStream::connect(at)?;
    conn.set_read_timeout(Some(SILENCE))?;
    Ok(conn)
}

fn send(conn: &mut TcpStream, message: &Tmsg<'_>, tag: Tag) -> io::Result<()> {
    let mut frame = Vec::new();
    message.encode(tag, Dialect::LS, &mut frame);
    conn.write_all(&frame)
}

/// Reads and discards this many bytes.
fn drain(conn: &mut TcpStream, mut left: u64) -> io::Result<()> {
    let mut bytes = vec![0; READ];
    while left > 0 {
        match conn.read(&mut bytes)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => left = left.saturating_sub(n as u64),
        }
    }
    Ok(())
}
