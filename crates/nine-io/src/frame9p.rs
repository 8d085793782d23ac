//! `frame9p`: the module that cuts the bytes of a conversation into 9P messages. Upwards, to the reader, it passes on
//! one message in each block. Downwards the blocks are messages already.
//!
//! A [`Connection`](crate::server) does its own framing, straight from its transport's buffer, with the same [`split`].
//! This module is for streams with other readers, and for modules that need to see messages.
//!
//! Always holds: at most one partial message is buffered; an invalid size field ends the stream.

use nine_proto::frame::{MSIZE_MAX, Split, split};
use nine_stream::{Block, Chain, Fault, Halves, Module, Next, Pass};

/// Opens an instance. `arguments` must be empty.
pub fn open(arguments: &str) -> Result<Halves, Fault> {
    if !arguments.is_empty() {
        return Err(Fault::new("frame9p has no arguments"));
    }
    Ok(Halves { up: Box::new(FrameAssembler::default()), down: Box::new(Pass) })
}

/// The upward half, which finds messages.
#[derive(Default)]
struct FrameAssembler {
    /// The beginning of a message that is not complete.
    partial: Vec<u8>,
}

impl FrameAssembler {
    /// Moves the bytes of `block` that belong to the partial message. Returns whether the message is complete.
    fn complete(&mut self, block: &mut Block) -> Result<bool, Fault> {
        loop {
            let wanted = match split(&self.partial, MSIZE_MAX).map_err(said)? {
                Split::Whole(_) => return Ok(true),
                Split::Partial(size) => size,
            };
            let n = block.len().min(wanted - self.partial.len());
            if n == 0 {
                return Ok(false);
            }
            self.partial.extend_from_slice(&block.data()[..n]);
            block.advance(n);
        }
    }

    /// Appends the messages that end in `chain`, including those before an invalid one.
    fn messages(&mut self, chain: Chain, messages: &mut Chain) -> Result<(), Fault> {
        let mut push = |mut message: Block| {
            message.delim = true;
            messages.push(message);
        };
        for mut block in chain {
            if !self.partial.is_empty() && self.complete(&mut block)? {
                push(std::mem::take(&mut self.partial).into());
            }
            while self.partial.is_empty() && !block.is_empty() {
                match split(block.data(), MSIZE_MAX).map_err(said)? {
                    Split::Whole(size) => push(block.split_to(size)),
                    Split::Partial(_) => {
                        self.partial.extend_from_slice(block.data());
                        block.advance(block.len());
                    }
                }
            }
        }
        Ok(())
    }
}

impl Module for FrameAssembler {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let mut messages = Chain::default();
        let done = self.messages(chain, &mut messages);
        if !messages.is_empty() {
            next.put(messages);
        }
        done
    }

    fn is_mid(&self) -> bool {
        !self.partial.is_empty()
    }

    fn close(&mut self, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        if self.partial.is_empty() { Ok(()) } else { Err(Fault::new("it ends in the middle of a message")) }
    }
}

fn said(error: nine_proto::WireError) -> Fault {
    Fault::new(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_stream::{Make, Modules, Pool, Stream};
    use std::task::Poll;

    fn message(n: usize) -> Vec<u8> {
        let mut message = (n as u32).to_le_bytes().to_vec();
        message.extend((4..n).map(|at| at as u8));
        message
    }

    #[test]
    fn messages_come_whole_however_the_bytes_are_cut() {
        let all: Vec<Vec<u8>> = [7, 8, 100, 7, 5000, 64, 7].map(message).into();
        let bytes = all.concat();
        for cut in [1, 2, 3, 6, 7, 8, 11, 100, 4999, 5000, bytes.len()] {
            let make = Make { modules: Modules::default().with("frame9p", open), ..Make::new(Pool::new(0)) };
            let (stream, device) = Stream::new(&make);
            stream.control(b"push frame9p").unwrap();
            let mut seen = Vec::new();
            for part in bytes.chunks(cut) {
                device.try_put(Block::from(part.to_vec())).unwrap();
                while let Poll::Ready(block) = stream.try_read_block() {
                    let block = block.unwrap().unwrap();
                    assert!(block.delim);
                    seen.push(block.data().to_vec());
                }
            }
            assert!(seen == all, "cut by {cut}");
            device.finish();
            assert!(matches!(stream.try_read_block(), Poll::Ready(Ok(None))));
        }
    }

    #[test]
    fn what_is_no_message_ends_the_stream_and_so_does_half_a_message() {
        let make = Make { modules: Modules::default().with("frame9p", open), ..Make::new(Pool::new(0)) };
        for (bytes, said) in [
            (&[6, 0, 0, 0, 0, 0, 0][..], "frame9p: "),
            (&[255, 255, 255, 255, 0][..], "frame9p: "),
            (&[9, 0, 0, 0, 1][..], "frame9p: it ends in the middle of a message"),
        ] {
            let (stream, device) = Stream::new(&make);
            stream.push("frame9p").unwrap();
            let _ = device.try_put(Block::from(bytes.to_vec()));
            device.finish();
            let Poll::Ready(Err(fault)) = stream.try_read_block() else { panic!("{bytes:?} is taken") };
            assert!(fault.to_string().starts_with(said), "{fault}");
        }
        // Messages completed before the fault are delivered, wherever the bytes were cut.
        for cut in [1, 3, 7, 11, 20] {
            let (stream, device) = Stream::new(&make);
            stream.push("frame9p").unwrap();
            for part in [message(7), message(9), vec![1; 4]].concat().chunks(cut) {
                let _ = device.try_put(Block::from(part.to_vec()));
            }
            for n in [7, 9] {
                let Poll::Ready(Ok(Some(block))) = stream.try_read_block() else {
                    panic!("cut by {cut}: it is lost")
                };
                assert_eq!(block.data(), message(n));
            }
            assert!(matches!(stream.try_read_block(), Poll::Ready(Err(_))));
        }
        assert!(Stream::new(&make).0.push("frame9p 9").is_err());
    }
}
