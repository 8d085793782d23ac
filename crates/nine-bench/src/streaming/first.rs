//! Round trips from the request for a file to its first byte, on an open connection. HTTP needs one.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use nine_io::client::Options;
use nine_proto::{Dialect, OpenFlags};
use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::StreamingContest;
use crate::report::{BenchReport, ReportRow};
use crate::stats::median;

/// Long enough that processor time hardly counts.
const RTT: Duration = Duration::from_millis(100);
/// Files that are not empty.
const FILES: [&str; 2] = ["10", "1"];

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    contest.link(RTT);
    let file = FILES.into_iter().find(|name| contest.served.path().join(name).exists());
    let file = file.ok_or_else(|| io::Error::other("there is no file to read"))?;
    let rounds = contest.pace.of(5, 3, 1);
    let of = |dialect| contest.far.run(Side::Here, || of_ours(contest, dialect, file, rounds));
    let (ours, compat) = (of(Dialect::LS)??, of(Dialect::L)??);
    let peer = match &contest.nginx {
        Some(nginx) => contest.far.run(Side::Here, || of_http(contest.address(nginx)?, file, rounds))??,
        None => Vec::new(),
    };
    report.key("open_first_byte_rtts", median(&ours));
    for (how, ours) in [(Dialect::LS, ours), (Dialect::L, compat)] {
        let what = format!("open to first byte, warm, 100 ms: {} / HTTP", how.name());
        report.push(ReportRow { what, unit: "rtts", ours, peer: peer.clone(), limit: Vec::new() });
    }
    Ok(())
}

fn of_ours(contest: &StreamingContest, dialect: Dialect, file: &str, rounds: usize) -> io::Result<Vec<f64>> {
    let options = Options { dialects: vec![dialect], ..Options::default() };
    let client = contest.client(contest.address(&contest.ours)?, options)?;
    let root = client.attach("", geteuid().as_raw(), "")?;
    trips(rounds, || {
        let (_file, first) = client.wait(root.file().open_read(file, OpenFlags::READ, 1))?;
        if first.is_empty() { Err(io::ErrorKind::UnexpectedEof.into()) } else { Ok(()) }
    })
}

fn of_http(server: SocketAddr, file: &str, rounds: usize) -> io::Result<Vec<f64>> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    trips(rounds, || {
        // Few bytes, so that the next round begins with an empty connection.
        let request = format!("GET /{file} HTTP/1.1\r\nHost: far\r\nRange: bytes=0-0\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let (mut came, mut piece) = (Vec::new(), [0; 1024]);
        let head = b"\r\n\r\n";
        loop {
            let len = stream.read(&mut piece)?;
            came.extend_from_slice(&piece[..len]);
            let end = came.windows(head.len()).position(|four| four == head);
            match end {
                Some(end) if came.len() > end + head.len() => return Ok(()),
                _ if len == 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                _ => {}
            }
        }
    })
}

/// Measures how many round trips each call of `once` takes.
fn trips(rounds: usize, mut once: impl FnMut() -> io::Result<()>) -> io::Result<Vec<f64>> {
    let mut found = Vec::new();
    for _ in 0..rounds {
        let begun = Instant::now();
        once()?;
        found.push(begun.elapsed().as_secs_f64() / RTT.as_secs_f64());
    }
    Ok(found)
}
