//! File data on its way out: a description, made into bytes only at the edge that needs them.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use bytes::Bytes;

/// What an Rread carries.
#[derive(Clone, Debug)]
pub enum Payload {
    /// Bytes in memory.
    Bytes(Bytes),
    /// A range of a file of the host, found resident in the page cache just now. A socket sends it without a copy
    /// in user space. The reply announces `len` first: if the file has become shorter by then, the connection is
    /// cut, never padded.
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
            Self::File { len, .. } => *len as usize,
        }
    }

    /// Lets go of what is behind the first `most` bytes.
    pub(crate) fn truncate(&mut self, most: u64) {
        match self {
            Self::Bytes(bytes) => bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX)),
            Self::File { len, .. } => *len = u64::from(*len).min(most) as u32,
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
            Self::File { file, offset, len, .. } => {
                let mut bytes = vec![0; most.min(*len as usize)];
                read_exact(file, *offset, &mut bytes)?;
                Ok(bytes.into())
            }
        }
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
