//! Extended attributes behind fids, read or being written: the same limits and errors in every server.
//!
//! In: a Txattrwalk; or a Txattrcreate, then Twrites in order. Out: a copy to read; or, with the Tclunk, the whole
//! value for the server to store. Always holds: a value that is not whole is never stored; all values behind fids of a
//! server are shared fairly ([`limits`](crate::limits)).

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nine_proto::{Errno, Error, Result};

use super::req::Request;
use crate::limits::{ClientPrincipal, FairLimit, FairShare};

/// Largest value, and longest list of names, bytes: `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of Linux (xattr(7)).
pub const XATTR_SIZE_MAX: usize = 64 * 1024;
/// Longest name, bytes: `XATTR_NAME_MAX` of Linux.
pub const XATTR_NAME_MAX: usize = 255;
/// Bytes that all fids on attributes of a server hold; more are refused with ENOMEM.
pub const XATTR_BYTES_MAX: usize = 64 << 20;
/// A flag of setxattr(2): the attribute must be new.
pub const XATTR_CREATE: u32 = 1;
/// A flag of setxattr(2): the attribute must exist.
pub const XATTR_REPLACE: u32 = 2;

/// The limit of the bytes that all fids on attributes of a server hold.
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

/// The value of an attribute, or the list of names, as it was at the Txattrwalk.
pub struct XattrValue {
    /// All of its bytes.
    pub bytes: Bytes,
    _share: FairShare,
}

impl XattrValue {
    /// A value that the fid of this request will hold.
    ///
    /// # Errors
    /// ENOMEM: its client has its share of [`XATTR_BYTES_MAX`].
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
    /// `None`: of a test.
    _share: Option<FairShare>,
}

impl XattrInput {
    /// Begins to take a value of `size` bytes, which the fid of this request will hold.
    ///
    /// # Errors
    /// E2BIG: `size` is above [`XATTR_SIZE_MAX`]. ERANGE: the name is empty, has a zero byte, or is longer than
    /// [`XATTR_NAME_MAX`]. EINVAL: `flags` has others than one of [`XATTR_CREATE`] and [`XATTR_REPLACE`]. ENOMEM: its
    /// client has its share of [`XATTR_BYTES_MAX`].
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
