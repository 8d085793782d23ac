//! Splits a byte stream into whole messages.
//!
//! In: received bytes. Out: the size of the first message, or the number of bytes it needs. Always holds: a message
//! that [`split`] reports as whole has `7 <= size <= msize`, and all its bytes are there. Later code need not check for
//! short messages.

use crate::ids::Tag;
use crate::wire::WireError;

/// Bytes of `size[4] type[1] tag[2]`, the shortest message.
pub const HEADER: usize = 7;
/// Bytes to reserve for the header of a message beside its read or write data (fcall(2)).
pub const IOHDRSZ: u32 = 24;
/// The smallest msize that we accept, in bytes. A full Rwalk (217 bytes) and a useful Rstat must fit.
pub const MSIZE_MIN: u32 = 512;
/// The largest msize that we accept, in bytes.
pub const MSIZE_MAX: u32 = 1 << 20;

/// The message at the front of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Split {
    /// A whole message of this many bytes.
    Whole(usize),
    /// A part of a message. The number is its size if the first four bytes are there, else [`HEADER`].
    Partial(usize),
}

/// Examines the front of `bytes`. The caller must close the connection on an error: the stream cannot be
/// resynchronised.
pub fn split(bytes: &[u8], msize: u32) -> Result<Split, WireError> {
    let Some(head) = bytes.first_chunk::<4>() else {
        return Ok(Split::Partial(HEADER));
    };
    let size = u32::from_le_bytes(*head);
    if size < HEADER as u32 || size > msize {
        return Err(WireError::Size(size));
    }
    let size = size as usize;
    Ok(if bytes.len() < size { Split::Partial(size) } else { Split::Whole(size) })
}

/// Returns the type of a whole message. It may panic if the frame is shorter than [`HEADER`].
pub fn type_of(frame: &[u8]) -> u8 {
    frame[4]
}

/// Returns the tag of a whole message. It panics if the frame is shorter than [`HEADER`].
pub fn tag_of(frame: &[u8]) -> Tag {
    Tag(u16::from_le_bytes([frame[5], frame[6]]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_outside_the_agreement_are_refused_on_four_bytes() {
        assert_eq!(split(&[6, 0, 0, 0], 512), Err(WireError::Size(6)));
        assert_eq!(split(&[1, 2, 0, 0], 512), Err(WireError::Size(513)));
        assert_eq!(split(b"9PS1", MSIZE_MAX), Err(WireError::Size(u32::from_le_bytes(*b"9PS1"))));
    }

    #[test]
    fn a_partial_message_says_how_much_it_needs() {
        assert_eq!(split(&[9, 0, 0], 512), Ok(Split::Partial(HEADER)));
        assert_eq!(split(&[9, 0, 0, 0, 100], 512), Ok(Split::Partial(9)));
        assert_eq!(split(&[7, 0, 0, 0, 100, 1, 0, 9], 512), Ok(Split::Whole(7)));
    }
}
