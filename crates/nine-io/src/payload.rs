//! File data to be sent: a description that becomes bytes only where bytes are needed.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use nine_net::Placed;

/// The data of an Rread.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Consecutive pieces of memory, none of them empty. They are sent without being joined.
    Pieces(VecDeque<Bytes>),
    /// Bytes in memory that a client may change at any time. Only for code that passes them on.
    Placed(Placed),
    /// A range of a host file that was in the page cache when the answer was made. A socket sends it without a copy in
    /// user space. If the file has become shorter meanwhile, an Rread carries the remaining bytes. If the length was
    /// already sent (HTTP), the connection is cut. Nothing is padded.
    File {
        /// The open file.
        file: Arc<OwnedFd>,
        /// Offset of the first byte.
        offset: u64,
        /// Length in bytes.
        len: u32,
        /// Checks residency again if the client was slow to take the data.
        resident: Resident,
    },
}

/// Whether a range of a file (offset and length in bytes) can be read now without waiting for the disk.
pub type Resident = fn(BorrowedFd<'_>, u64, u64) -> bool;

impl Payload {
    /// No bytes, which means end of file.
    pub const EMPTY: Self = Self::Bytes(Bytes::new());

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
            Self::Placed(placed) => placed.len(),
            Self::File { len, .. } => *len as usize,
        }
    }

    /// Drops everything after the first `most` bytes.
    pub(crate) fn truncate(&mut self, most: u64) {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        match self {
            Self::Bytes(bytes) => bytes.truncate(most),
            Self::Pieces(pieces) => {
                let mut left = most;
                for piece in pieces.iter_mut() {
                    piece.truncate(left);
                    left -= piece.len();
                }
                pieces.retain(|piece| !piece.is_empty());
            }
            Self::Placed(placed) => placed.truncate(most),
            Self::File { len, .. } => *len = (*len as usize).min(most) as u32,
        }
    }

    /// Drops the first `n` bytes.
    ///
    /// # Panics
    /// If there are fewer than `n` bytes.
    pub fn advance(&mut self, n: usize) {
        assert!(n <= self.len(), "no more than there are");
        match self {
            Self::Bytes(bytes) => drop(bytes.split_to(n)),
            Self::Pieces(pieces) => {
                let mut left = n;
                while let Some(first) = pieces.front_mut().filter(|_| left > 0) {
                    if left < first.len() {
                        drop(first.split_to(left));
                        return;
                    }
                    left -= first.len();
                    pieces.pop_front();
                }
            }
            Self::Placed(placed) => placed.advance(n),
            Self::File { offset, len, .. } => {
                *offset += n as u64;
                *len -= n as u32;
            }
        }
    }

    /// Returns the first bytes, at most `most`, in memory. Of a file range it reads them.
    ///
    /// # Errors
    /// Those of the file read; `UnexpectedEof` if the file has become shorter than announced.
    pub fn read(&self, most: usize) -> io::Result<Bytes> {
        match self {
            Self::Bytes(bytes) => Ok(bytes.slice(..bytes.len().min(most))),
            Self::Pieces(pieces) => {
                let mut bytes = Vec::with_capacity(most.min(self.len()));
                for piece in pieces {
                    bytes.extend_from_slice(&piece[..piece.len().min(most - bytes.len())]);
                }
                Ok(bytes.into())
            }
            Self::Placed(placed) => Ok(placed.to_vec(most).into()),
            Self::File { file, offset, len, .. } => {
                let mut bytes = vec![0; most.min(*len as usize)];
                read_exact(file, *offset, &mut bytes)?;
                Ok(bytes.into())
            }
        }
    }

    /// Copies all bytes into `into`, which has exactly this length. Errors as for [`Payload::read`].
    ///
    /// # Panics
    /// If the length of bytes in memory differs from that of `into`.
    pub fn copy_to(&self, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File { file, offset, .. } => return read_exact(file, *offset, into),
            Self::Bytes(bytes) => into.copy_from_slice(bytes),
            other => into.copy_from_slice(&other.read(usize::MAX)?),
        }
        Ok(())
    }

    /// Returns the pieces that it owns in memory, in order; `None` for client memory and file ranges.
    pub fn pieces(&self) -> Option<impl Iterator<Item = &Bytes>> {
        let (one, many) = match self {
            Self::Bytes(bytes) => (Some(bytes), None),
            Self::Pieces(pieces) => (None, Some(pieces)),
            Self::Placed(_) | Self::File { .. } => return None,
        };
        Some(one.into_iter().chain(many.into_iter().flatten()))
    }

    /// Whether its length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Fills `into` from the file, or fails. It never substitutes other bytes.
pub(crate) fn read_exact(file: &OwnedFd, mut offset: u64, mut into: &mut [u8]) -> io::Result<()> {
    while !into.is_empty() {
        match rustix::io::pread(file, &mut *into, offset) {
            Ok(0) => return Err(shrunk()),
            Ok(n) => {
                into = &mut into[n..];
                offset += n as u64;
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads until `into` is full or the file ends, and returns the number of bytes. After the first byte, an error ends
/// the read without being reported.
pub(crate) fn read_until_eof(file: &OwnedFd, offset: u64, into: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < into.len() {
        match rustix::io::pread(file, &mut into[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(rustix::io::Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(done)
}

/// The error for a file that became shorter than announced.
pub fn shrunk() -> io::Error {
    let text = "a file became shorter while it was being sent: its length had been announced";
    io::Error::new(io::ErrorKind::UnexpectedEof, text)
}

impl nine_proto::session::server::Data for Payload {
    fn len(&self) -> usize {
        self.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_as_one() {
        let whole: Bytes = (0..100u8).collect();
        let all = || Payload::Pieces([0..7, 7..8, 8..60, 60..100].map(|range| whole.slice(range)).into());
        for n in 0..=100 {
            let (mut pieces, mut one) = (all(), Payload::Bytes(whole.clone()));
            assert_eq!(pieces.read(n).unwrap(), one.read(n).unwrap());
            pieces.truncate(n as u64 + 3);
            one.truncate(n as u64 + 3);
            pieces.advance(n);
            one.advance(n);
            assert_eq!((pieces.len(), pieces.is_empty()), (one.len(), one.is_empty()));
            assert_eq!(pieces.read(usize::MAX).unwrap(), one.read(usize::MAX).unwrap());
            assert!(
                matches!(pieces, Payload::Pieces(pieces) if pieces.iter().all(|piece| !piece.is_empty()))
            );
        }
    }
}
