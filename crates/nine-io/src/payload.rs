//! File data on its way out: a description, made into bytes only at the edge that needs them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;
use nine_net::Placed;

/// What an Rread carries.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes in memory.
    Bytes(Bytes),
    /// Bytes in memory in pieces, one behind the other, none of them empty: they are sent as they are.
    Pieces(VecDeque<Bytes>),
    /// Bytes that lie with a client, who may change them at any time: for whoever only hands them on.
    Placed(Placed),
    /// A range of a file of the host, found resident in the page cache just now. A socket sends it without a copy
    /// in user space. If the file has become shorter by then, an Rread carries the bytes that are left. Where the
    /// length is out already (HTTP), the connection is cut. Nothing is padded.
    File {
        /// The open file.
        file: Arc<OwnedFd>,
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u32,
        /// Asks again, when the client has been slow to take it.
        resident: Resident,
    },
}

/// Whether a range of a file (first byte, bytes) can be read now without waiting for the disk.
pub type Resident = fn(BorrowedFd<'_>, u64, u64) -> bool;

impl Payload {
    /// No bytes: the end of the file.
    pub const EMPTY: Self = Self::Bytes(Bytes::new());

    /// Bytes it stands for.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::Pieces(pieces) => pieces.iter().map(Bytes::len).sum(),
            Self::Placed(placed) => placed.len(),
            Self::File { len, .. } => *len as usize,
        }
    }

    /// Lets go of what is behind the first `most` bytes.
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

    /// Lets go of the first `n` bytes.
    ///
    /// # Panics
    /// There are fewer.
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

    /// The first bytes, at most `most`, in memory: of a file they are read. An error of the kind `UnexpectedEof`: it
    /// has become shorter than was announced.
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

    /// All of it into memory that has just as many bytes. Errors as those of [`Payload::read`].
    ///
    /// # Panics
    /// There are more or fewer.
    pub fn copy_to(&self, into: &mut [u8]) -> io::Result<()> {
        match self {
            Self::File { file, offset, .. } => return read_exact(file, *offset, into),
            Self::Bytes(bytes) => into.copy_from_slice(bytes),
            other => into.copy_from_slice(&other.read(usize::MAX)?),
        }
        Ok(())
    }

    /// What it has in memory of its own, in order.
    pub fn pieces(&self) -> Option<impl Iterator<Item = &Bytes>> {
        let (one, many) = match self {
            Self::Bytes(bytes) => (Some(bytes), None),
            Self::Pieces(pieces) => (None, Some(pieces)),
            Self::Placed(_) | Self::File { .. } => return None,
        };
        Some(one.into_iter().chain(many.into_iter().flatten()))
    }

    /// Whether it stands for no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Bytes(bytes.into())
    }
}

/// Reads what has been announced: all of it or an error, and never anything in its place.
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

/// Reads until `into` is full or the file ends: how many bytes. An error counts only before the first byte.
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

/// The file has become shorter than what was announced.
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
