//! The frames between two multiplexors: `size[2] kind[1] number[4] body[size]`, little-endian.
//!
//! In: blocks of the lower stream, split anywhere. Out: whole frames; and the reverse.
//!
//! Always holds: a frame with an invalid size for its kind is not buffered. So at most one body of [`FRAME`] bytes is
//! stored.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::mem;

use super::Side;
use crate::block::{Block, Chain};
use crate::module::Fault;
use crate::way::StreamHangup;

/// Maximum data in a frame, in bytes.
pub(super) const FRAME: usize = 16 << 10;
/// Maximum length of an error text, in bytes. Longer texts are cut.
const REASON: usize = 256;
const HEADER: usize = 7;
const VERSION: u8 = 1;

const HELLO: u8 = 1;
const OPEN: u8 = 2;
const PART: u8 = 3;
const LAST: u8 = 4;
const CREDIT: u8 = 5;
const END: u8 = 6;
const CLOSE: u8 = 7;

pub(super) enum ConversationFrame {
    Hello(HelloFrame),
    Open,
    /// A part of a message. The block's delimiter marks the last one.
    Data(Block),
    Credit(u32),
    /// The end of the data, or a reset.
    End(StreamHangup),
    Close,
}

/// The parameters of one side.
#[derive(Clone, Copy)]
pub(super) struct HelloFrame {
    pub(super) side: Side,
    pub(super) window: u32,
    pub(super) conversations: u16,
}

/// Encoded frames to send, in order.
#[derive(Default)]
pub(super) struct FrameWriter {
    chain: Chain,
    bytes: Vec<u8>,
}

impl FrameWriter {
    pub(super) fn say(&mut self, number: u32, frame: ConversationFrame) {
        match frame {
            ConversationFrame::Hello(hello) => {
                let side = u8::from(hello.side == Side::Dialer);
                let [window, conversations] =
                    [&hello.window.to_le_bytes()[..], &hello.conversations.to_le_bytes()];
                self.frame(number, HELLO, &[&[VERSION, side], window, conversations].concat());
            }
            ConversationFrame::Open => self.frame(number, OPEN, &[]),
            ConversationFrame::Data(mut block) => {
                self.header(number, if block.delim { LAST } else { PART }, block.len());
                block.delim = false;
                self.chain.push(mem::take(&mut self.bytes).into());
                self.chain.push(block);
            }
            ConversationFrame::Credit(more) => self.frame(number, CREDIT, &more.to_le_bytes()),
            ConversationFrame::End(None) => self.frame(number, END, &[]),
            ConversationFrame::End(Some(why)) => {
                let text = if why.0.is_empty() { "no reason was given" } else { &why.0 };
                self.frame(number, END, &text.as_bytes()[..text.floor_char_boundary(REASON)]);
            }
            ConversationFrame::Close => self.frame(number, CLOSE, &[]),
        }
    }

    /// Returns all frames as one message.
    pub(super) fn chain(mut self) -> Chain {
        if !self.bytes.is_empty() {
            self.chain.push(self.bytes.into());
        }
        self.chain.end_message();
        self.chain
    }

    fn frame(&mut self, number: u32, kind: u8, body: &[u8]) {
        self.header(number, kind, body.len());
        self.bytes.extend_from_slice(body);
    }

    fn header(&mut self, number: u32, kind: u8, size: usize) {
        self.bytes.extend_from_slice(&(size as u16).to_le_bytes());
        self.bytes.push(kind);
        self.bytes.extend_from_slice(&number.to_le_bytes());
    }
}

/// Decodes frames from received blocks.
#[derive(Default)]
pub(super) struct FrameReader {
    header: [u8; HEADER],
    /// Number of header bytes that have been received.
    filled: usize,
    body: Vec<u8>,
}

impl FrameReader {
    /// Decodes the next frame from the front of `block`. Returns it with its conversation number. `None` if the block
    /// is used up.
    pub(super) fn hear(&mut self, block: &mut Block) -> Result<Option<(u32, ConversationFrame)>, Fault> {
        let started = self.filled == HEADER;
        let n = (HEADER - self.filled).min(block.len());
        self.header[self.filled..self.filled + n].copy_from_slice(&block.data()[..n]);
        block.advance(n);
        self.filled += n;
        if self.filled < HEADER {
            return Ok(None);
        }
        let [size, more, kind, number @ ..] = self.header;
        let size = usize::from(u16::from_le_bytes([size, more]));
        if !started {
            let fits = match kind {
                HELLO => size == 8,
                OPEN | CLOSE => size == 0,
                PART => (1..=FRAME).contains(&size),
                LAST => size <= FRAME,
                CREDIT => size == 4,
                END => size <= REASON,
                _ => return Err(Fault::new(format!("no frame is of kind {kind}"))),
            };
            if !fits {
                return Err(Fault::new(format!("a frame of kind {kind} has no {size} bytes")));
            }
            self.body = Vec::with_capacity(size);
        }
        let n = (size - self.body.len()).min(block.len());
        self.body.extend_from_slice(&block.data()[..n]);
        block.advance(n);
        if self.body.len() < size {
            return Ok(None);
        }
        self.filled = 0;
        let frame = decode(kind, mem::take(&mut self.body))?;
        Ok(Some((u32::from_le_bytes(number), frame)))
    }

    /// Whether a frame is incomplete.
    pub(super) fn is_mid(&self) -> bool {
        self.filled > 0
    }
}

/// Decodes a frame. Its size is valid for its kind.
fn decode(kind: u8, body: Vec<u8>) -> Result<ConversationFrame, Fault> {
    Ok(match (kind, &body[..]) {
        (HELLO, &[VERSION, side @ (0 | 1), w0, w1, w2, w3, c0, c1]) => ConversationFrame::Hello(HelloFrame {
            side: if side == 1 { Side::Dialer } else { Side::Listener },
            window: u32::from_le_bytes([w0, w1, w2, w3]),
            conversations: u16::from_le_bytes([c0, c1]),
        }),
        (HELLO, _) => return Err(Fault::new("a hello of another version, or of no side")),
        (OPEN, _) => ConversationFrame::Open,
        (CREDIT, &[a, b, c, d]) => ConversationFrame::Credit(u32::from_le_bytes([a, b, c, d])),
        (END, []) => ConversationFrame::End(None),
        (END, why) => ConversationFrame::End(Some(Fault::new(String::from_utf8_lossy(why)))),
        (CLOSE, _) => ConversationFrame::Close,
        _ => {
            let mut block = Block::from(body);
            block.delim = kind == LAST;
            ConversationFrame::Data(block)
        }
    })
}
