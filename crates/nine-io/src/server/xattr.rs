//! Extended attributes behind fids, read or being written: the same limits and errors in every server.
//!
//! In: a Txattrwalk; or a Txattrcreate, then Twrites in order. Out: a copy to read; or, at the Tclunk, the whole value
//! for the server to store. Always holds: an incomplete value is never stored. All values behind fids of a server are
//! shared fairly ([`limits`](crate::limits)).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nine_proto::{Errno, Error, Result};

use super::req::Request;
use crate::limits::{ClientPrincipal, FairLimit, FairShare};

/// Largest value, and longest list of names, in bytes: Linux's `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` (xattr(7)).
pub const XATTR_SIZE_MAX: usize = 64 * 1024;
/// Longest name in bytes: Linux's `XATTR_NAME_MAX`.
pub const XATTR_NAME_MAX: usize = 255;
/// Maximum number of bytes that all attribute fids of a server hold together; more are refused with ENOMEM.
pub const XATTR_BYTES_MAX: usize = 64 << 20;
/// A flag of setxattr(2): the attribute must be new.
pub const XATTR_CREATE: u32 = 1;
/// A flag of setxattr(2): the attribute must exist.
pub const XATTR_REPLACE: u32 = 2;

/// The limit of the bytes that all attribute fids of a server hold together.
#[derive(Clone, Debug)]
pub struct XattrLimit(Arc<FairLimit>);

impl Default for XattrLimit {
    fn default() -> Self {
        Self(FairLimit::new(XATTR_BYTES_MAX))
    }
}

impl XattrLimit {
    fn take(&self, request: &Request, bytes: usize) -> Result<FairShare> {
        let share = self.0.take(&ClientPrincipal::of(request.who()), bytes);
        Ok(share.ok_or(Errno::ENOMEM)?)
    }
}

/// The value of an attribute, or the list of names, as of the Txattrwalk.
pub struct XattrValue {
    /// All of its bytes.
    pub bytes: Bytes,
    _share: FairShare,
}

impl XattrValue {
    /// Creates the value that this request's fid will hold.
    ///
    /// # Errors
    /// ENOMEM if the client has used up its share of [`XATTR_BYTES_MAX`].
    pub fn new(bytes: Bytes, request: &Request, limit: &XattrLimit) -> Result<Self> {
        let share = limit.take(request, bytes.len())?;
        Ok(Self { bytes, _share: share })
    }
}

/// An attribute that a client is writing.
pub struct XattrInput {
    name: Box<[u8]>,
    size: usize,
    flags: u32,
    value: Mutex<Vec<u8>>,
    /// `None` in tests.
    _share: Option<FairShare>,
}

impl XattrInput {
    /// Starts a value of `size` bytes, which this request's fid will hold.
    ///
    /// # Errors
    /// E2BIG if `size` is above [`XATTR_SIZE_MAX`]. ERANGE if the name is empty, contains a zero byte, or is longer
    /// than [`XATTR_NAME_MAX`]. EINVAL if `flags` is not 0, [`XATTR_CREATE`] or [`XATTR_REPLACE`]. ENOMEM if the client
    /// has used up its share of [`XATTR_BYTES_MAX`].
    pub fn new(name: &[u8], size: u64, flags: u32, request: &Request, limit: &XattrLimit) -> Result<Self> {
        let input = Self::unlimited(name, size, flags)?;
        Ok(Self { _share: Some(limit.take(request, input.size)?), ..input })
    }

    fn unlimited(name: &[u8], size: u64, flags: u32) -> Result<Self> {
        let size = usize::try_from(size).ok().filter(|&size| size <= XATTR_SIZE_MAX).ok_or(Errno::E2BIG)?;
        if name.is_empty() || name.len() > XATTR_NAME_MAX || name.contains(&0) {
            return Err(Errno::ERANGE.into());
        }
        if ![0, XATTR_CREATE, XATTR_REPLACE].contains(&flags) {
            return Err(Errno::EINVAL.into());
        }
        Ok(Self { name: name.into(), size, flags, value: Mutex::default(), _share: None })
    }

    /// The attribute's name.
    pub fn name(&self) -> &[u8] {
        &self.name
    }

    /// The announced size in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// 0, [`XATTR_CREATE`] or [`XATTR_REPLACE`].
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// Appends the data of a Twrite: all of it, or none with an error.
    ///
    /// # Errors
    /// EINVAL if it does not continue at the end of the data so far. ENOSPC if it exceeds the announced size.
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

    /// Returns the whole value.
    ///
    /// # Errors
    /// EINVAL if bytes are missing.
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
            assert_eq!(errno(XattrInput::unlimited(name, size, flags).map(drop)), is);
        }
        let input = XattrInput::unlimited(b"user.a", 3, XATTR_CREATE).unwrap();
        assert_eq!(input.write(0, b"ab"), Ok(2));
        assert_eq!(errno(input.write(0, b"a").map(drop)), Errno::EINVAL);
        assert_eq!(errno(input.write(2, b"cd").map(drop)), Errno::ENOSPC);
        assert_eq!(errno(input.value().map(drop)), Errno::EINVAL);
        assert_eq!(input.write(2, b"c"), Ok(1));
        assert_eq!(input.value().unwrap(), b"abc");
    }
}
