//! An extended attribute that a client is writing (9P2000.L Txattrcreate): the same limits and errors in every server.
//!
//! In: the Txattrcreate, then Twrites in order. Out, with the Tclunk: the whole value, for the server to store.
//! Always holds: a value that is not whole is never stored.

use std::sync::{Mutex, MutexGuard, PoisonError};

use nine_proto::{Errno, Error, Result};

/// Largest value, and longest list of names, bytes: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of Linux (xattr(7)).
pub const XATTR_SIZE_MAX: usize = 64 * 1024;
/// Longest name, bytes: `XATTR_NAME_MAX` of Linux.
pub const XATTR_NAME_MAX: usize = 255;
/// A flag of setxattr(2): the attribute must be new.
pub const XATTR_CREATE: u32 = 1;
/// A flag of setxattr(2): the attribute must exist.
pub const XATTR_REPLACE: u32 = 2;

/// See the module.
pub struct XattrInput {
    name: Box<[u8]>,
    size: usize,
    flags: u32,
    value: Mutex<Vec<u8>>,
}

impl XattrInput {
    /// Begins to take a value of `size` bytes.
    ///
    /// # Errors
    /// E2BIG: `size` is above [`XATTR_SIZE_MAX`]. ERANGE: the name is empty, has a zero byte, or is longer than
    /// [`XATTR_NAME_MAX`]. EINVAL: `flags` has others than one of [`XATTR_CREATE`] and [`XATTR_REPLACE`].
    pub fn new(name: &[u8], size: u64, flags: u32) -> Result<Self> {
        let size = usize::try_from(size).ok().filter(|&size| size <= XATTR_SIZE_MAX).ok_or(Errno::E2BIG)?;
        if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
            return Err(Errno::ERANGE.into());
        }
        if ![0, XATTR_CREATE, XATTR_REPLACE].contains(&flags) {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self { name: name.into(), size, flags, value: Mutex::default() })
    }

    /// Name of the attribute.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// Bytes that were announced.
    pub fn size(&self) -> usize {
        self.size
    }

    /// 0, [`XATTR_CREATE`] or [`XATTR_REPLACE`].
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Takes a Twrite: all of its bytes, or an error.
    ///
    /// # Errors
    /// EINVAL: it does not continue where the last one ended. ENOSPC: there are more bytes than were announced.
    pub fn write(&self, offset: u64, data: &[u8]) -> Result<u32> {
        let mut value = self.lock();
        if offset != value.len() as u64 {
            return Err(Error::new(Errno::EINVAL, "an attribute is written in order"));
        }
        if data.len() > self.size - value.len() {
            return Err(Error::new(Errno::ENOSPC, "more bytes than the attribute was announced with"));
        }
        value.extend_from_slice(data);
        Ok(data.len() as u32)
    }

    /// The whole value.
    ///
    /// # Errors
    /// EINVAL: bytes are missing.
    pub fn value(&self) -> Result<Vec<u8>> {
        let value = self.lock();
        if value.len() != self.size {
            return Err(Error::new(Errno::EINVAL, "the attribute was not written whole"));
        }
        Ok(value.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_whole_and_in_order_or_not_at_all() {
        let errno = |result: Result<_>| result.map(drop).unwrap_err().errno;
        for (name, size, flags, is) in [
            (&b"user.a"[..], 65_537, 0, Errno::E2BIG),
            (b"user.a", u64::MAX, 0, Errno::E2BIG),
            (b"", 3, 0, Errno::ERANGE),
            (b"user.\0", 3, 0, Errno::ERANGE),
            (&[b'n'; 256], 3, 0, Errno::ERANGE),
            (b"user.a", 3, 3, Errno::EINVAL),
            (b"user.a", 3, 4, Errno::EINVAL),
        ] {
            assert_eq!(errno(XattrInput::new(name, size, flags).map(drop)), is);
        }
        let input = XattrInput::new(b"user.a", 3, XATTR_CREATE).unwrap();
        assert_eq!(input.write(0, b"ab"), Ok(2));
        assert_eq!(errno(input.write(0, b"a").map(drop)), Errno::EINVAL);
        assert_eq!(errno(input.write(2, b"cd").map(drop)), Errno::ENOSPC);
        assert_eq!(errno(input.value().map(drop)), Errno::EINVAL);
        assert_eq!(input.write(2, b"c"), Ok(1));
        assert_eq!(input.value().unwrap(), b"abc");
    }
}
