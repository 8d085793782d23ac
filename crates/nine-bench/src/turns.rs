//! Turns used by several experiments: one request at a time, and a file from end to end.

use std::io;
use std::time::{Duration, Instant};

use bytes::Bytes;
use nine_io::client::{Reader, Writer};
use nine_proto::OpenFlags;

use crate::report::BenchTurn;
use crate::server::MeasuredServer;
use crate::wire::LeanConnection;

/// Operations between two reads of the clock, which costs time, too.
const BETWEEN_LOOKS: u32 = 32;
/// Size of the pieces for our writer, bytes.
const WRITE_LEN: usize = 256 * 1024;

/// Repeats an operation; microseconds of one.
pub fn each(turn: Duration, mut op: impl FnMut() -> io::Result<()> + 'static) -> BenchTurn<'static> {
    Box::new(move || {
        let (begun, mut done) = (Instant::now(), 0);
        while begun.elapsed() < turn {
            for _ in 0..BETWEEN_LOOKS {
                op()?;
            }
            done += BETWEEN_LOOKS;
        }
        Ok(begun.elapsed().as_secs_f64() * 1e6 / f64::from(done))
    })
}

/// Repeats a request with an answer of known length; microseconds of one.
pub fn exchange(
    turn: Duration,
    mut conn: LeanConnection,
    request: Vec<u8>,
    answer: usize,
) -> BenchTurn<'static> {
    let mut answer = vec![0; answer];
    each(turn, move || conn.exchange(&request, &mut answer))
}

/// Reads a file of `size` bytes with our client, in the largest common messages; GB/s.
pub fn read_whole(server: &MeasuredServer, path: &str, size: u64) -> io::Result<BenchTurn<'static>> {
    let (client, root) = server.client()?;
    let file = root.open(path, OpenFlags::READ)?;
    Ok(Box::new(move || {
        let begun = Instant::now();
        let read = client.wait(async {
            let mut reader = Reader::new(file.file(), 0, size);
            let mut read = 0;
            while let Some(data) = reader.next().await {
                read += data?.len() as u64;
            }
            Ok::<_, io::Error>(read)
        })?;
        rate(begun, read, size)
    }))
}

/// Overwrites a file; GB/s.
pub fn write_whole(server: &MeasuredServer, path: &str, size: u64) -> io::Result<BenchTurn<'static>> {
    let (client, root) = server.client()?;
    let (file, piece) = (root.open(path, OpenFlags::WRITE)?, Bytes::from(vec![0x5a; WRITE_LEN]));
    Ok(Box::new(move || {
        let begun = Instant::now();
        let written = client.wait(async {
            let mut writer = Writer::new(file.file(), 0);
            for _ in 0..size / WRITE_LEN as u64 {
                writer.push(piece.clone()).await?;
            }
            writer.finish().await?;
            Ok::<_, io::Error>(writer.written())
        })?;
        rate(begun, written, size)
    }))
}

/// Returns the rate in GB/s, if all bytes were moved.
pub fn rate(begun: Instant, moved: u64, wanted: u64) -> io::Result<f64> {
    if moved != wanted {
        return Err(io::Error::other(format!("{moved} bytes of {wanted} came")));
    }
    Ok(moved as f64 / begun.elapsed().as_secs_f64() / 1e9)
}
