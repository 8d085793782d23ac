//! Errors of devices, in kinds that callers act on.

use std::fmt;
use std::sync::Arc;

/// The result of an operation on a device.
pub type Result<T> = std::result::Result<T, Error>;

/// An error. Cheap to clone, because a mirror passes it to several callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// How a caller should react.
    pub kind: Kind,
    /// A message for people: the device, and its own message.
    pub text: Arc<str>,
}

/// How a caller should react to an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The medium or its driver has failed. Another member of a mirror may have the data.
    Failed,
    /// The device does not answer within its timeout. It may return.
    Down,
    /// The device does nothing now: its queue is full, or the right to the members has expired. Nothing was done, and
    /// the operation may be retried. Never a reason to set a member aside.
    Busy,
    /// No storage is left for the write, for example on a full disk of the host. Each sector has its old or its new
    /// bytes. The write may be retried; it succeeds when there is room.
    Full,
    /// Another owner has reserved the device (AoE error 6). Never a reason to set a member aside, because this program
    /// is not the one that may write.
    Reserved,
    /// The sectors are out of range: a bug of the caller, or the device has shrunk.
    Range,
    /// The device is read-only, or the sectors are written already on a write-once device.
    ReadOnly,
    /// The sectors were never written.
    Unwritten,
    /// A write may be lost, because a flush failed. Nothing can be promised until all unflushed data is written again.
    Poisoned,
    /// The device cannot do that.
    Unsupported,
}

impl Error {
    /// Creates an error.
    pub fn new(kind: Kind, text: impl fmt::Display) -> Self {
        Self { kind, text: text.to_string().into() }
    }

    /// Prefixes the message with the name of a device.
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
