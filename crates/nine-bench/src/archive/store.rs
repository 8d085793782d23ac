//! A file of a dump in an object store, read by a process with an empty cache. Beside it, the same objects from the
//! same server, each read by one request: one after the other, and eight at a time.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use nine_sim::s3;

use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::{ArchiveContest, work};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, interleave};
use crate::turns::{rate, read_whole};

const FILE: &str = "large";
/// Connections of the limit.
const LIMIT_CONNECTIONS: usize = 8;

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let size = contest.large() / 2;
    let mib = size >> 20;
    let server = s3::Server::start();
    let name = format!("attic/bench?endpoint=http://127.0.0.1:{}&unsigned&size=1T", server.port);
    let ours = ArchiveTestbed::on_store(
        ArchiveShape { fastworm: true, ..ArchiveShape::of(mib * 2 + 256, 0) },
        &name,
    )?;
    work::write(&ours.server(), FILE, 0, size, 1)?;
    ours.tell("dump wait")?;
    work::settled(&ours)?;
    let objects: Vec<String> = server.names().into_iter().filter(|name| name.contains("/data/")).collect();
    let bytes =
        |name: &String| u64::from_str_radix(&name[name.len() - 4..], 16).map_or(0, |count| count * 512);
    let whole: u64 = objects.iter().map(bytes).sum();
    CpuPlacement::Free.arrange(&[ours.server().pid()])?;
    let race = BenchRace {
        what: format!("sequential read, {mib} MiB, from an object store on the loopback, uncached"),
        unit: "GB/s",
        turns: [
            Some(Box::new(|| {
                ours.cool(FILE)?;
                read_whole(&ours.server(), FILE, size)?()
            }) as BenchTurn<'_>),
            Some(Box::new(|| download(server.port, &objects, 1, whole))),
            Some(Box::new(|| download(server.port, &objects, LIMIT_CONNECTIONS, whole))),
        ],
    };
    let rows = interleave(contest.rounds(), contest.pace.patience(), vec![race])?;
    report.key("store_cold_read_vs_download", rows[0].vs_peer());
    report.extend(rows);
    Ok(())
}

/// Downloads all these objects over `connections` connections.
fn download(port: u16, objects: &[String], connections: usize, whole: u64) -> io::Result<f64> {
    let (begun, next) = (Instant::now(), AtomicUsize::new(0));
    let one = || -> io::Result<u64> {
        let mut to = TcpStream::connect(("127.0.0.1", port))?;
        to.set_nodelay(true)?;
        let (mut from, mut read) = (BufReader::with_capacity(1 << 20, to.try_clone()?), 0);
        let mut body = Vec::new();
        while let Some(name) = objects.get(next.fetch_add(1, Ordering::Relaxed)) {
            let range = format!("Range: bytes=0-{}\r\n", u32::MAX);
            to.write_all(format!("GET /attic/{name} HTTP/1.1\r\nHost: x\r\n{range}\r\n").as_bytes())?;
            let mut length = 0;
            loop {
                let mut line = String::new();
                from.read_line(&mut line)?;
                let Some((name, value)) = line.trim_end().split_once(": ") else {
                    if line.trim_end().is_empty() {
                        break;
                    }
                    continue;
                };
                if name == "Content-Length" {
                    length = value.parse().map_err(io::Error::other)?;
                }
            }
            body.resize(length, 0);
            from.read_exact(&mut body)?;
            read += length as u64;
        }
        Ok(read)
    };
    let read: io::Result<u64> = std::thread::scope(|scope| {
        let all: Vec<_> = (0..connections).map(|_| scope.spawn(one)).collect();
        all.into_iter().map(|one| one.join().expect("it does not panic")).sum()
    });
    rate(begun, read?, whole)
}
