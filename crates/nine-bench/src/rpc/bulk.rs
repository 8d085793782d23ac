//! One file from end to end, in the largest messages that server and client agree to, from the page cache. The limit is
//! a raw sender of as many bytes to a plain reader: by write or sendfile, whichever is faster here.

use std::io;
use std::time::Instant;

use super::Contest;
use crate::files::LARGE;
use crate::limit::Bulk;
use crate::place::Place;
use crate::report::{Report, Row, Turn, alternate};
use crate::server::Server;
use crate::turns::{rate, read_whole, write_whole};
use crate::wire::Conn;

/// Size of one read of a plain reader.
const PIECE: usize = 256 * 1024;

pub(super) fn measure(contest: &Contest, report: &mut Report) -> io::Result<()> {
    Place::Cross.arrange(&contest.servers())?;
    let senders = [Bulk::Sendfile, Bulk::Write].map(|how| raw(contest, how));
    let [sendfile, write] = senders;
    let (sendfile, write) = (one(sendfile?)?, one(write?)?);
    let best = if sendfile > write { Bulk::Sendfile } else { Bulk::Write };
    report.notes.push(format!(
        "limit of sequential reads: {best:?}, the better of sendfile ({sendfile:.2} GB/s) and write ({write:.2} GB/s)"
    ));
    let read = |contest: &Contest, server: &Server| read_whole(server, LARGE, contest.large);
    let reading = row(contest, "sequential read", read, best)?;
    report.key("seqread_vs_limit", reading.vs_limit());
    report.key("seqread_vs_diod", reading.vs_peer());
    report.push(reading);
    // Overwrite existing data, so that no disk blocks are allocated.
    let write = |contest: &Contest, server: &Server| write_whole(server, LARGE, contest.large);
    let writing = row(contest, "sequential write", write, Bulk::Receive)?;
    report.key("seqwrite_vs_diod", writing.vs_peer());
    report.push(writing);
    Ok(())
}

fn row(
    contest: &Contest,
    what: &str,
    transfer: impl Fn(&Contest, &Server) -> io::Result<Turn<'static>>,
    limit: Bulk,
) -> io::Result<Row> {
    let peer = contest.diod.as_ref().map(|diod| transfer(contest, diod)).transpose()?;
    alternate(
        format!("{what}, {} MiB, {}", contest.large >> 20, Place::Cross.label()),
        "GB/s",
        contest.pace.rounds(),
        [Some(transfer(contest, &contest.ours)?), peer, Some(raw(contest, limit)?)],
    )
}

fn raw(contest: &Contest, how: Bulk) -> io::Result<Turn<'static>> {
    let mut conn = Conn::bare(&contest.bulk.socket)?;
    let (large, mut buf) = (contest.large, vec![0; PIECE]);
    Ok(Box::new(move || {
        let begun = Instant::now();
        how.move_bytes(conn.stream(), large, &mut buf)?;
        rate(begun, large, large)
    }))
}

/// Runs some turns before the contest, to choose the faster sender.
fn one(mut turn: Turn<'static>) -> io::Result<f64> {
    let figures = [turn()?, turn()?, turn()?];
    Ok(figures.into_iter().fold(0.0, f64::max))
}
