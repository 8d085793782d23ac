//! What goes wrong with disks, in kinds that whoever is above acts on.

use std::fmt;
use std::sync::Arc;

/// Of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. Cheap to clone: a mirror tells it to several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is to be done about it.
    pub kind: Kind,
    /// For people: which device, what it said.
    pub text: Arc<str>,
}

/// What is to be done about an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The medium or its driver failed: another member may have it.
    Failed,
    /// It has not answered for as long as it may take; it may come again.
    Down,
    /// Too much waits for it: nothing was done, and the same may be asked again. Never a reason to set a member aside.
    Busy,
    /// No storage is left for the write, for example on a full disk of the host. Each sector has its old or its new
    /// bytes. The write may be retried; it succeeds when there is room.
    Full,
    /// Another has it to himself (AoE error 6). Never a reason to set a member aside: whoever writes here is not the
    /// one who may.
    Reserved,
    /// These sectors are not on it. A mistake of whoever asks, or it has become smaller.
    Range,
    /// It is not written, or what is written here is written once.
    ReadOnly,
    /// It has never been written.
    Unwritten,
    /// A write may be lost: a flush failed, and nothing can be promised until what was not flushed is written again.
    Poisoned,
    /// It cannot do that.
    Unsupported,
}

impl Error {
    /// Of this kind, in these words.
    pub fn new(kind: Kind, text: impl fmt::Display) -> Self {
        Self { kind, text: text.to_string().into() }
    }

    /// The same, of a device of this name.
    #[must_use]
    pub fn of(self, device: impl fmt::Display) -> Self {
        Self { text: format!("{device}: {}", self.text).into(), ..self }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for Error {}
