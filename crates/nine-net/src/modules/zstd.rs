//! `zstd LEVEL`: compression (RFC 8878), both ways.
//!
//! Always holds: what is put comes out at the other end without waiting for more, so every put ends a block of zstd; a
//! window is at most [`WINDOW_LOG`], so a peer makes us hold no more than that; of a block that grows without measure
//! only as much is made as there is room for.

use std::collections::VecDeque;

use nine_stream::{Block, Chain, Fault, Halves, Module, ModuleKind, Next};
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, Operation, OutBuffer};

/// Logarithm of the bytes that either end looks back.
const WINDOW_LOG: u32 = 20;
/// Bytes that are passed on at once.
const PIECE: usize = 64 << 10;
/// A quick level: links are rarely slower than that.
const LEVEL: i32 = 3;
/// Above that one end holds more than 16 MiB (at level 19 it is 84), which is too much for a peer to ask for.
const LEVEL_MAX: i32 = 9;

/// The kind.
pub(super) struct Zstd;

impl ModuleKind for Zstd {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        open(level(arguments)?)
    }

    fn cost(&self, arguments: &str) -> usize {
        // 1.5 MiB to read, and by ZSTD_sizeof_CCtx 1.8 MiB at level 1, 2.5 at 3, 6.8 at 7, 11.8 at 9.
        match level(arguments) {
            Ok(..=3) => 4 << 20,
            Ok(..=7) => 9 << 20,
            _ => 14 << 20,
        }
    }
}

fn level(arguments: &str) -> Result<i32, Fault> {
    if arguments.is_empty() {
        return Ok(LEVEL);
    }
    let level = arguments.parse().ok().filter(|level| (1..=LEVEL_MAX).contains(level));
    level.ok_or_else(|| Fault::new(format!("{arguments:?} is no level: 1 to {LEVEL_MAX}")))
}

fn open(level: i32) -> Result<Halves, Fault> {
    let mut encoder = Encoder::new(level).map_err(said)?;
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG)).map_err(said)?;
    let mut decoder = Decoder::new().map_err(said)?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(said)?;
    let (up, down) = (
        Up { decoder, waits: VecDeque::new(), mid: false, more: false },
        Down { encoder, plain: 0, packed: 0 },
    );
    Ok(Halves { up: Box::new(up), down: Box::new(down) })
}

struct Down {
    encoder: Encoder<'static>,
    plain: u64,
    packed: u64,
}

impl Down {
    /// Lets `step` write until it has nothing more to write.
    fn write(
        &mut self,
        next: &mut Next<'_, '_>,
        mut step: impl FnMut(&mut Encoder<'static>, &mut OutBuffer<'_, Vec<u8>>) -> std::io::Result<bool>,
    ) -> Result<(), Fault> {
        loop {
            let mut piece = Vec::with_capacity(PIECE);
            let more = step(&mut self.encoder, &mut OutBuffer::around(&mut piece)).map_err(said)?;
            self.packed += piece.len() as u64;
            let mut block = kept(piece);
            block.delim = !more;
            if !block.is_empty() || block.delim {
                next.put(block);
            }
            if !more {
                return Ok(());
            }
        }
    }
}

impl Module for Down {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut blocks: VecDeque<Block> = chain.collect();
        self.plain += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        self.write(next, |encoder, out| {
            while let Some(block) = blocks.front_mut() {
                let mut input = zstd::stream::raw::InBuffer::around(block.data());
                encoder.run(&mut input, out)?;
                let n = input.pos();
                block.advance(n);
                if !block.is_empty() {
                    return Ok(true);
                }
                blocks.pop_front();
            }
            Ok(encoder.flush(out)? > 0)
        })
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.write(next, |encoder, out| Ok(encoder.finish(out, true)? > 0))
    }

    fn status(&self) -> String {
        format!("{} bytes became {}", self.plain, self.packed)
    }
}

struct Up {
    decoder: Decoder<'static>,
    /// What has come and is not unpacked yet.
    waits: VecDeque<Block>,
    /// A frame has begun and not ended.
    mid: bool,
    /// There may be more to come without more input.
    more: bool,
}

impl Module for Up {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.waits.extend(chain);
        self.resume(next)
    }

    fn is_full(&self) -> bool {
        self.holds()
    }

    fn holds(&self) -> bool {
        !self.waits.is_empty()
    }

    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        while !next.is_full()
            && let Some(block) = self.waits.front_mut()
        {
            if block.is_empty() && !self.more {
                self.waits.pop_front();
                continue;
            }
            let mut piece = Vec::with_capacity(PIECE);
            let (mut input, mut out) =
                (zstd::stream::raw::InBuffer::around(block.data()), OutBuffer::around(&mut piece));
            let hint = self.decoder.run(&mut input, &mut out).map_err(said)?;
            let taken = input.pos();
            block.advance(taken);
            let was_full = piece.len() == PIECE;
            if taken > 0 || !piece.is_empty() {
                self.mid = hint != 0;
            }
            // A piece that is full may be followed by more of the same.
            self.more = was_full;
            let delim = block.is_empty() && !was_full;
            if !piece.is_empty() {
                let mut unpacked = kept(piece);
                unpacked.delim = delim;
                next.put(unpacked);
            }
        }
        Ok(())
    }

    fn close(&mut self, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        if self.mid { Err(Fault::new("it ends in the middle: something is missing")) } else { Ok(()) }
    }
}

/// A block of these bytes, which holds no more memory than it needs, or twice that.
fn kept(piece: Vec<u8>) -> Block {
    if piece.len() < PIECE / 2 { piece.into_boxed_slice().into_vec().into() } else { piece.into() }
}

fn said(error: impl std::fmt::Display) -> Fault {
    Fault::new(error.to_string())
}
