//! Loop detection for tree walks. A directory may contain itself, for instance by a bind of `/` below `/`.
//!
//! In: the directories of a walk, each with its number from the server or from this machine. Out: an error for a
//! directory that is among its own ancestors. Names are not compared: they grow with each round of the loop.

use std::fmt;
use std::rc::Rc;

use nine_proto::Qid;

/// Identity of a directory, unique on its side of a walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryId {
    /// Device number of a local directory; 0 for a directory of a server.
    pub device: u64,
    /// Inode number, or the qid's path.
    pub number: u64,
}

impl From<Qid> for DirectoryId {
    fn from(qid: Qid) -> Self {
        Self { device: 0, number: qid.path }
    }
}

/// The chain of directories from the top of a walk down to one of them.
#[derive(Clone, Default)]
pub struct Ancestors(Option<Rc<AncestorLink>>);

struct AncestorLink {
    id: DirectoryId,
    above: Ancestors,
}

impl Ancestors {
    /// Returns the chain with one more directory at its end.
    ///
    /// # Errors
    /// The directory is in the chain already.
    pub fn with(&self, id: impl Into<DirectoryId>) -> Result<Self, LoopError> {
        let id = id.into();
        let mut link = self.0.as_deref();
        while let Some(AncestorLink { id: known, above }) = link {
            if *known == id {
                return Err(LoopError);
            }
            link = above.0.as_deref();
        }
        Ok(Self(Some(Rc::new(AncestorLink { id, above: self.clone() }))))
    }
}

/// A directory is its own ancestor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopError;

impl fmt::Display for LoopError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("file system loop: it is one of the directories above it, and is left out")
    }
}

impl std::error::Error for LoopError {}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(device: u64, number: u64) -> DirectoryId {
        DirectoryId { device, number }
    }

    #[test]
    fn a_directory_among_its_ancestors_is_a_loop() {
        let top = Ancestors::default().with(id(0, 1)).unwrap();
        let below = top.with(id(0, 2)).unwrap();
        assert_eq!(below.with(id(0, 1)).err(), Some(LoopError));
        assert_eq!(below.with(id(0, 2)).err(), Some(LoopError));
    }

    #[test]
    fn siblings_and_other_devices_are_no_loop() {
        let top = Ancestors::default().with(id(1, 1)).unwrap();
        // The same directory twice, as siblings: by two binds of one tree.
        assert!(top.with(id(1, 2)).is_ok() && top.with(id(1, 2)).is_ok());
        // The root directories of file systems have the same inode number.
        assert!(top.with(id(2, 1)).is_ok());
    }
}
