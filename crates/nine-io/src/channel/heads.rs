//! Where messages begin in a stream of bytes, however it is cut.

use nine_proto::frame::HEADER;

use super::word;

/// Follows a direction of a connection.
#[derive(Debug, Default)]
pub(super) struct Heads {
    /// The first bytes of the message that is coming.
    head: [u8; HEADER],
    have: usize,
    /// Bytes of it that come behind those.
    left: usize,
}

impl Heads {
    /// These bytes come next: the type and the tag of each message whose header is complete by them.
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
                // One that is too short is no message: whoever decodes it ends the connection.
                self.left = (word(&self.head) as usize).saturating_sub(HEADER);
                self.have = 0;
                seen(self.head[4], u16::from_le_bytes([self.head[5], self.head[6]]));
            }
        }
    }

    /// So many bytes come next, which are none of a header: data that lies elsewhere.
    pub(super) fn skip(&mut self, n: usize) {
        self.left = self.left.saturating_sub(n);
    }
}
