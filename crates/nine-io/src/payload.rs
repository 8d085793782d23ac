//! File data on its way out: a description, made into bytes only at the edge that needs them.

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

impl nine_proto::session::server::Data for Payload {
    fn len(&self) -> usize {
        self.len()
    }
}
