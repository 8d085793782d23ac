//! `zstd LEVEL`: compression (RFC 8878), in both directions.
//!
//! Always holds: each put can be decoded without further input, because each put and each message ends a zstd block.
//! Message boundaries are preserved if the transport preserves them. A window has at most [`WINDOW_LOG`] bits, which
//! limits the memory that a peer can make us use. Highly compressed input is unpacked only while there is room, and at
//! most [`RUN`] bytes before other tasks run, because a module above may swallow all of it.

use std::collections::VecDeque;
use std::time::Duration;

use nine_stream::{Block, Chain, Fault, Halves, Module, ModuleKind, Next};
use zstd::stream::raw::{CParameter, DParameter, Decoder, Encoder, Operation, OutBuffer};

/// Logarithm of the window, in bytes.
const WINDOW_LOG: u32 = 20;
/// Bytes passed on at once.
const ZSTD_PIECE_LEN: usize = 64 << 10;
/// Bytes unpacked at once.
const RUN: usize = 1 << 20;
/// A fast level: links are rarely slower than that.
const LEVEL: i32 = 3;
/// Above this level one end needs more than 16 MiB (84 at level 19), which is too much for a peer to request.
const LEVEL_MAX: i32 = 9;

/// The kind of module.
pub(super) struct ZstdModule;

impl ModuleKind for ZstdModule {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        open(level(arguments)?)
    }

    fn is_single(&self) -> bool {
        true
    }

    fn cost(&self, arguments: &str) -> usize {
        // 1.5 MiB for the decoder. For the encoder, by ZSTD_sizeof_CCtx, 1.8 MiB at level 1, 2.5 at 3, 6.8 at 7, 11.8
        // at 9.
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

/// Whether it is a level above the default.
pub(super) fn is_costly(arguments: &str) -> bool {
    level(arguments).is_ok_and(|level| level > LEVEL)
}

fn open(level: i32) -> Result<Halves, Fault> {
    let mut encoder = Encoder::new(level).map_err(said)?;
    encoder.set_parameter(CParameter::WindowLog(WINDOW_LOG)).map_err(said)?;
    let mut decoder = Decoder::new().map_err(said)?;
    decoder.set_parameter(DParameter::WindowLogMax(WINDOW_LOG)).map_err(said)?;
    let (up, down) = (
        ZstdReceiver {
            decoder,
            waits: VecDeque::new(),
            mid: false,
            more: false,
            last: None,
            begun: false,
            paused: None,
        },
        ZstdSender { encoder, plain: 0, packed: 0 },
    );
    Ok(Halves { up: Box::new(up), down: Box::new(down) })
}

struct ZstdSender {
    encoder: Encoder<'static>,
    plain: u64,
    packed: u64,
}

impl ZstdSender {
    /// Runs `step` until it has no more output. With `delim` the last output ends a message.
    fn write(
        &mut self,
        next: &mut Next<'_, '_>,
        delim: bool,
        mut step: impl FnMut(&mut Encoder<'static>, &mut OutBuffer<'_, Vec<u8>>) -> std::io::Result<bool>,
    ) -> Result<(), Fault> {
        let mut last: Option<Block> = None;
        loop {
            let mut piece = Vec::with_capacity(ZSTD_PIECE_LEN);
            let more = step(&mut self.encoder, &mut OutBuffer::around(&mut piece)).map_err(said)?;
            self.packed += piece.len() as u64;
            if !piece.is_empty() {
                last.replace(kept(piece)).into_iter().for_each(|block| next.put(block));
            }
            if !more {
                break;
            }
        }
        let mut last = last.unwrap_or_else(|| Vec::new().into());
        last.delim = delim;
        if !last.is_empty() || delim {
            next.put(last);
        }
        Ok(())
    }
}

impl Module for ZstdSender {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut blocks: VecDeque<Block> = chain.collect();
        self.plain += blocks.iter().map(|block| block.len() as u64).sum::<u64>();
        while !blocks.is_empty() {
            let delim = blocks.iter().any(|block| block.delim);
            self.write(next, delim, |encoder, out| {
                while let Some(block) = blocks.front_mut() {
                    let mut input = zstd::stream::raw::InBuffer::around(block.data());
                    encoder.run(&mut input, out)?;
                    let n = input.pos();
                    block.advance(n);
                    if !block.is_empty() {
                        return Ok(true);
                    }
                    if block.delim {
                        break;
                    }
                    blocks.pop_front();
                }
                Ok(encoder.flush(out)? > 0)
            })?;
            // The block that ended the message.
            blocks.pop_front();
        }
        Ok(())
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.write(next, true, |encoder, out| Ok(encoder.finish(out, true)? > 0))
    }

    fn status(&self) -> String {
        format!("{} bytes became {}", self.plain, self.packed)
    }
}

struct ZstdReceiver {
    decoder: Decoder<'static>,
    /// Input that is not unpacked yet.
    waits: VecDeque<Block>,
    /// In the middle of a frame.
    mid: bool,
    /// There may be more output without more input.
    more: bool,
    /// Output held back until it is known whether it ends a message.
    last: Option<Block>,
    /// A part of the first waiting block has been unpacked.
    begun: bool,
    /// Paused although there is room, after [`RUN`] bytes; since when.
    paused: Option<Duration>,
}

impl Module for ZstdReceiver {
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
        self.paused = None;
        let mut made = 0;
        while !next.is_full()
            && let Some(block) = self.waits.front_mut()
        {
            if made >= RUN {
                self.paused = Some(next.now());
                break;
            }
            if block.is_empty() && !self.more {
                let delim = block.delim;
                // An empty message is passed on as such. Blocks cut at arbitrary places have no boundaries to preserve.
                let empty = !std::mem::take(&mut self.begun) && delim;
                self.waits.pop_front();
                if let Some(mut last) = self.last.take().or_else(|| empty.then(|| Vec::new().into())) {
                    last.delim = delim;
                    next.put(last);
                }
                continue;
            }
            self.begun = true;
            let mut piece = Vec::with_capacity(ZSTD_PIECE_LEN);
            let (mut input, mut out) =
                (zstd::stream::raw::InBuffer::around(block.data()), OutBuffer::around(&mut piece));
            let hint = self.decoder.run(&mut input, &mut out).map_err(said)?;
            let taken = input.pos();
            block.advance(taken);
            // A full piece may be followed by more output.
            self.more = piece.len() == ZSTD_PIECE_LEN;
            if taken > 0 || !piece.is_empty() {
                self.mid = hint != 0;
            }
            made += piece.len();
            if !piece.is_empty() {
                self.last.replace(kept(piece)).into_iter().for_each(|block| next.put(block));
            }
        }
        Ok(())
    }

    fn deadline(&self) -> Option<Duration> {
        self.paused
    }

    fn close(&mut self, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        if self.mid { Err(Fault::new("it ends in the middle: something is missing")) } else { Ok(()) }
    }
}

/// A block of these bytes that holds at most twice the memory it needs.
fn kept(piece: Vec<u8>) -> Block {
    if piece.len() < ZSTD_PIECE_LEN / 2 { piece.into_boxed_slice().into_vec().into() } else { piece.into() }
}

fn said(error: impl std::fmt::Display) -> Fault {
    Fault::new(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_stream::{Make, Modules, Pool, Stream, pipe};
    use std::io::Read;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Poll;

    /// Takes everything, and counts it.
    struct Swallow(Arc<AtomicUsize>);

    impl Module for Swallow {
        fn put(&mut self, chain: Chain, _: &mut Next<'_, '_>) -> Result<(), Fault> {
            self.0.fetch_add(chain.len(), Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn what_grows_without_measure_leaves_others_their_turns_also_where_it_is_swallowed() {
        let eaten = Arc::<AtomicUsize>::default();
        let eats = eaten.clone();
        let swallow = move |_: &str| {
            let half = || Box::new(Swallow(eats.clone()));
            Ok::<_, Fault>(Halves { up: half(), down: half() })
        };
        let modules = Modules::default().with("zstd", ZstdModule).with("swallow", swallow);
        let (stream, device) = Stream::new(&Make { modules, ..Make::new(Pool::new(0)) });
        stream.push("zstd").unwrap();
        stream.push("swallow").unwrap();
        let size = 64 << 20;
        let bomb = zstd::encode_all(std::io::repeat(0).take(size), 1).unwrap();
        device.try_put(Block::from(bomb)).unwrap();
        let mut turns = 0;
        loop {
            let now = eaten.load(Ordering::Relaxed);
            if device.deadline().is_none() {
                assert_eq!(now as u64, size);
                break;
            }
            assert!(device.try_put(Block::from(vec![0])).is_err(), "it takes more than it can unpack");
            device.tick();
            let made = eaten.load(Ordering::Relaxed) - now;
            assert!(made <= RUN + ZSTD_PIECE_LEN, "{made} bytes at once");
            turns += 1;
        }
        assert!(turns >= 60, "{turns}");
    }

    #[test]
    fn messages_end_where_they_did() {
        let make = Make { modules: Modules::default().with("zstd", ZstdModule), ..Make::new(Pool::new(0)) };
        let mut noise = 1u64;
        let mut noisy = |n: usize| -> Vec<u8> {
            let bytes = std::iter::repeat_with(|| {
                noise = noise.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                (noise >> 33) as u8
            });
            bytes.take(n).collect()
        };
        let sizes = [
            0,
            1,
            ZSTD_PIECE_LEN - 1,
            ZSTD_PIECE_LEN,
            ZSTD_PIECE_LEN + 1,
            2 * ZSTD_PIECE_LEN,
            200_000,
            0,
            0,
            7,
        ];
        let messages: Vec<Vec<u8>> = sizes.into_iter().flat_map(|n| [noisy(n), vec![7; n]]).collect();
        for at_once in [1, 2, 3, messages.len()] {
            let (a, b) = pipe(&make);
            a.push("zstd").unwrap();
            b.push("zstd").unwrap();
            let (mut seen, mut message) = (Vec::new(), Vec::new());
            for some in messages.chunks(at_once) {
                let mut chain = Chain::default();
                for message in some {
                    // In two blocks.
                    let (one, two) = message.split_at(message.len() / 3);
                    chain.push(one.to_vec().into());
                    let mut two = Block::from(two.to_vec());
                    two.delim = true;
                    chain.push(two);
                }
                if at_once == 1 {
                    // The end arrives alone, after the whole message.
                    let whole = Chain::from(Block::from(some[0].clone()));
                    a.try_put(whole).unwrap_or_else(|_| panic!("it is refused"));
                    chain = Chain::from(Block::from(Vec::new()));
                    chain.end_message();
                }
                a.try_put(chain).unwrap_or_else(|_| panic!("it is refused"));
                while let Poll::Ready(block) = b.try_read_block() {
                    let block = block.unwrap().unwrap();
                    message.extend_from_slice(block.data());
                    if block.delim {
                        seen.push(std::mem::take(&mut message));
                    }
                }
            }
            assert!(
                seen == messages,
                "{at_once} at once: {:?}",
                seen.iter().map(Vec::len).collect::<Vec<_>>()
            );
        }
    }
}
