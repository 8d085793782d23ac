//! One file from end to end, in the largest messages that server and client agree to, from the page cache. The limit is
//! a raw sender of as many bytes to a plain reader: by write or sendfile, whichever is faster here.

use std::io;
use std::time::Instant;

use super::RpcContest;
use crate::files::LARGE;
use crate::limit::BulkRequest;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, ReportRow, alternate};
use crate::server::MeasuredServer;
use crate::turns::{rate, read_whole, write_whole};
use crate::wire::LeanConnection;

/// Size of one read of a plain reader.
const READ_LEN: usize = 256 * 1024;

pub(super) fn measure(contest: &RpcContest, report: &mut BenchReport) -> io::Result<()> {
    CpuPlacement::Cross.arrange(&contest.servers())?;
    let senders = [BulkRequest::Sendfile, BulkRequest::Write].map(|how| raw(contest, how));
    let [sendfile, write] = senders;
    let (sendfile, write) = (one(sendfile?)?, one(write?)?);
    let best = if sendfile > write { BulkRequest::Sendfile } else { BulkRequest::Write };
    report.notes.push(format!(
        "limit of sequential reads: {best:?}, the better of sendfile ({sendfile:.2} GB/s) and write ({write:.2} GB/s)"
    ));
    let read = |contest: &RpcContest, server: &MeasuredServer| read_whole(server, LARGE, contest.large);
    let reading = row(contest, "sequential read", read, best)?;
    report.key("seqread_vs_limit", reading.vs_limit());
    report.key("seqread_vs_diod", reading.vs_peer());
    report.push(reading);
    // Overwrite existing data, so that no disk blocks are allocated.
    let write = |contest: &RpcContest, server: &MeasuredServer| write_whole(server, LARGE, contest.large);
    let writing = row(contest, "sequential write", write, BulkRequest::Receive)?;
    report.key("seqwrite_vs_diod", writing.vs_peer());
    report.push(writing);
    Ok(())
}

fn row(
    contest: &RpcContest,
    what: &str,
    transfer: impl Fn(&RpcContest, &MeasuredServer) -> io::Result<BenchTurn<'static>>,
    limit: BulkRequest,
) -> io::Result<ReportRow> {
    let peer = contest.diod.as_ref().map(|diod| transfer(contest, diod)).transpose()?;
    alternate(
        format!("{what}, {} MiB, {}", contest.large >> 20, CpuPlacement::Cross.label()),
        "GB/s",
        contest.pace.rounds(),
        [Some(transfer(contest, &contest.ours)?), peer, Some(raw(contest, limit)?)],
    )
}

fn raw(contest: &RpcContest, how: BulkRequest) -> io::Result<BenchTurn<'static>> {
    let mut conn = LeanConnection::bare(&contest.bulk.socket)?;
    let (large, mut buf) = (contest.large, vec![0; READ_LEN]);
    Ok(Box::new(move || {
        let begun = Instant::now();
        how.move_bytes(conn.stream(), large, &mut buf)?;
        rate(begun, large, large)
    }))
}

/// Runs some turns before the contest, to choose the faster sender.
fn one(mut turn: BenchTurn<'static>) -> io::Result<f64> {
    let figures = [turn()?, turn()?, turn()?];
    Ok(figures.into_iter().fold(0.0, f64::max))
}
