//! Plain 9P: a client that requests the next piece after the previous one, as the first clients did and many still do.

use std::io;
use std::time::{Duration, Instant};

use nine_io::client::Options;
use nine_io::client::blocking::File;
use nine_proto::{Dialect, NOGID, OpenFlags};
use nine_sim::delay::Side;
use rustix::process::geteuid;

use super::copies::CopyDirection;
use super::{MB, StreamingContest};
use crate::args::BenchPace;

/// Size of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PlainReadSize {
    /// 8 KiB, as in Floren's measurements.
    Seed,
    /// The largest that fits in our messages.
    Msize,
}

impl PlainReadSize {
    /// Copies a file of `size` MB, or as much as the time allows, and extrapolates the rest. Returns the seconds, with
    /// the connection.
    pub(super) fn copy(
        self,
        contest: &StreamingContest,
        direction: CopyDirection,
        size: u64,
    ) -> io::Result<f64> {
        let address = contest.address(&contest.ours)?;
        let patience = patience(contest.pace);
        contest.far.run(Side::Here, || {
            let begun = Instant::now();
            let options = Options { dialects: vec![Dialect::L], ..Options::default() };
            let client = contest.client(address, options)?;
            let root = client.attach("", geteuid().as_raw(), "")?;
            let most = client.client().iounit_max();
            let piece = match self {
                Self::Seed => most.min(8 << 10),
                Self::Msize => most,
            };
            let file = match direction {
                CopyDirection::Read => root.open(size.to_string(), OpenFlags::READ)?,
                CopyDirection::Write => root.walk("in")?.create("copy", OpenFlags::WRITE, 0o644, NOGID)?,
            };
            let set_up = begun.elapsed();
            let copied = move_bytes(&file, direction, piece, size * MB, patience)?;
            let data = begun.elapsed() - set_up;
            if direction == CopyDirection::Write {
                std::fs::remove_file(contest.served.path().join("in/copy"))?;
            }
            let share = if copied == 0 { 1.0 } else { (size * MB) as f64 / copied as f64 };
            Ok(set_up.as_secs_f64() + data.as_secs_f64() * share)
        })?
    }

    pub(super) fn note(pace: BenchPace) -> String {
        let patience = patience(pace).as_secs();
        format!(
            "plain 9P copies for {patience} s at most; what it has not copied then is SCALED from what it has"
        )
    }
}

/// Longest time of a copy.
fn patience(pace: BenchPace) -> Duration {
    Duration::from_secs(pace.of(4, 2, 1))
}

/// Moves bytes until all are moved or the time is over; returns their number.
fn move_bytes(
    file: &File,
    direction: CopyDirection,
    piece: u32,
    size: u64,
    patience: Duration,
) -> io::Result<u64> {
    let (begun, data, mut at) = (Instant::now(), vec![0x5a; piece as usize], 0);
    while at < size && begun.elapsed() < patience {
        let len = (size - at).min(u64::from(piece));
        let moved = match direction {
            CopyDirection::Read => file.read(at, len as u32)?.len() as u64,
            CopyDirection::Write => u64::from(file.write(at, &data[..len as usize])?),
        };
        if moved == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += moved;
    }
    Ok(at)
}
