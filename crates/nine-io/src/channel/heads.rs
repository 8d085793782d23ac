//! Finds the headers of messages in a stream of bytes, however it is cut.

use nine_proto::frame::HEADER;

use super::word;

/// Follows one direction of a connection.
#[derive(Debug, Default)]
pub(super) struct HeadTracker {
    /// The first bytes of the current message.
    head: [u8; HEADER],
    have: usize,
    /// Bytes of the current message that follow its header.
    left: usize,
}

impl HeadTracker {
    /// Passes over the next bytes, and calls `seen` with the type and the tag of each header that they complete.
    pub(super) fn pass(&mut self, mut bytes: &[u8], mut seen: impl FnMut(u8, u16)) {
        while !bytes.is_empty() {
            if self.left > 0 {
                let n = self.left.min(bytes.len());
                (self.left, bytes) = (self.left - n, &bytes[n..]);
                continue;
            }
            let n = (HEADER - self.have).min(bytes.len());
            self.head[self.have..self.have + n].copy_from_slice(&bytes[..n]);
            (self.have, bytes) = (self.have + n, &bytes[n..]);
            if self.have == HEADER {
                // A size below the header's is invalid; the decoder of the message ends the connection.
                self.left = (word(&self.head) as usize).saturating_sub(HEADER);
                self.have = 0;
                seen(self.head[4], u16::from_le_bytes([self.head[5], self.head[6]]));
            }
        }
    }

    /// Passes over `n` bytes of data that lie elsewhere.
    pub(super) fn skip(&mut self, n: usize) {
        self.left = self.left.saturating_sub(n);
    }
}
