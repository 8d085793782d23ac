//! A disk in memory.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};

use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::sync::{Mutex, lock};

/// Sectors that are allocated at once.
const ALLOCATION_SECTORS: u64 = 128;

/// A disk in memory. Sectors read as zeros until they are written, and take memory only then.
pub struct Ram {
    shape: Shape,
    pieces: Mutex<HashMap<u64, Box<[u8]>>>,
}

impl Ram {
    /// Creates a disk of `sectors` sectors.
    pub fn new(sectors: u64) -> Self {
        let shape = Shape { sectors, atom: 1, most: 2048, read_only: false, durable: false };
        Self { shape, pieces: Mutex::default() }
    }

    fn read(&self, at: u64, count: u64) -> Bytes {
        let pieces = lock(&self.pieces);
        let mut data = BytesMut::with_capacity((count * SECTOR) as usize);
        for (piece, from, to) in parts(at, count) {
            match pieces.get(&piece) {
                Some(bytes) => data.extend_from_slice(&bytes[from..to]),
                None => data.resize(data.len() + to - from, 0),
            }
        }
        data.freeze()
    }

    fn write(&self, at: u64, count: u64, mut data: &[u8]) {
        let mut pieces = lock(&self.pieces);
        for (piece, from, to) in parts(at, count) {
            let (now, rest) = data.split_at(to - from);
            let bytes =
                pieces.entry(piece).or_insert_with(|| vec![0; (ALLOCATION_SECTORS * SECTOR) as usize].into());
            bytes[from..to].copy_from_slice(now);
            data = rest;
        }
    }
}

/// Returns the pieces that contain these sectors, with the byte range in each.
fn parts(at: u64, count: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let end = at + count;
    let mut next = at;
    std::iter::from_fn(move || {
        let (piece, from) = (next / ALLOCATION_SECTORS, next % ALLOCATION_SECTORS);
        let to = (end - piece * ALLOCATION_SECTORS).min(ALLOCATION_SECTORS);
        (next < end).then(|| {
            next = piece * ALLOCATION_SECTORS + to;
            (piece, (from * SECTOR) as usize, (to * SECTOR) as usize)
        })
    })
}

impl Device for Ram {
    fn shape(&self) -> Shape {
        self.shape
    }

    fn name(&self) -> String {
        format!("ram{}", self.shape.sectors)
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape) {
            return io.end(Err(error));
        }
        let result = match io.op {
            Op::Read => Ok(self.read(io.at, io.count)),
            Op::Write => {
                self.write(io.at, io.count, &io.data);
                Ok(Bytes::new())
            }
            // Whole pieces are freed, and read as zeros.
            Op::Discard => {
                let mut pieces = lock(&self.pieces);
                for (piece, from, to) in parts(io.at, io.count) {
                    if to - from == (ALLOCATION_SECTORS * SECTOR) as usize {
                        pieces.remove(&piece);
                    }
                }
                Ok(Bytes::new())
            }
            Op::Flush | Op::Look => Ok(Bytes::new()),
        };
        io.end(result);
    }
}
