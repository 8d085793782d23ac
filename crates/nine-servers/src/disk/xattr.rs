//! Extended attributes: read whole into memory by the walk, written whole by the clunk.
//!
//! In: a name, or none for the list of names. Out: nodes that are read or written like files. At most 64 KiB, Linux'
//! own limit, so a fid of this kind holds no more; and all of them together at most [`ALL_MAX`].

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use nine_io::server::Reply;
use nine_proto::{Errno, Error, NOGID};

use super::dent::Dent;
use super::host::{self, HostFs};
use super::{Done, How, Inner, Kind, Node, locked};

/// `XATTR_SIZE_MAX` and `XATTR_LIST_MAX` of Linux, bytes; more is refused with E2BIG.
const SIZE_MAX: usize = 64 * 1024;

/// Bytes that all fids on attributes hold together; what is more is refused with ENOMEM.
const ALL_MAX: usize = 64 << 20;

/// Nothing that must replace something: a Linux client's removexattr(2). An empty value comes with other flags.
const XATTR_REPLACE: u32 = 2;

/// The value of an attribute, or the list of names, as it was at the walk.
pub(super) struct Xattr {
    pub(super) value: Bytes,
    _charge: Charge,
}

/// An attribute on its way in.
pub(super) struct NewXattr {
    dent: Arc<Dent>,
    name: Box<[u8]>,
    size: usize,
    flags: u32,
    value: Mutex<Vec<u8>>,
    _charge: Charge,
}

/// A share of [`ALL_MAX`], given back when it is dropped.
pub(super) struct Charge {
    all: Arc<AtomicUsize>,
    bytes: usize,
}

impl Charge {
    fn new(all: &Arc<AtomicUsize>, bytes: usize) -> Done<Self> {
        let add = |held: usize| held.checked_add(bytes).filter(|&held| held <= ALL_MAX);
        all.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add).map_err(|_| Errno::ENOMEM)?;
        Ok(Self { all: all.clone(), bytes })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl NewXattr {
    /// Takes the next bytes; in order, and no more than announced.
    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Done<Reply> {
        let mut value = locked(&self.value);
        if offset != value.len() as u64 {
            return Err(Error::new(Errno::EINVAL, "an attribute is written in order").into());
        }
        if data.len() > self.size - value.len() {
            return Err(Errno::ENOSPC.into());
        }
        value.extend_from_slice(data);
        Ok(Reply::Wrote(data.len() as u32))
    }
}

impl<H: HostFs> Inner<H> {
    pub(super) fn xattr_walk(&self, node: &Node, name: &[u8]) -> Done<Reply> {
        let fd = self.any_fd(node, How::Pool)?;
        let _client = self.become_client(&node.view, NOGID)?;
        let mut value = vec![0; SIZE_MAX];
        let n = match name {
            b"" => self.host.listxattr(fd.as_fd(), &mut value)?,
            name => self.host.getxattr(fd.as_fd(), name, &mut value)?,
        };
        value.truncate(n);
        value.shrink_to_fit();
        let charge = Charge::new(&self.xattr_bytes, n)?;
        let xattr = Xattr { value: value.into(), _charge: charge };
        Ok(Reply::Xattr { size: n as u64, node: node.with(Kind::Xattr(Box::new(xattr))) })
    }

    pub(super) fn xattr_create(&self, node: &Node, name: &[u8], size: u64, flags: u32) -> Done<Reply> {
        let size = usize::try_from(size).ok().filter(|&size| size <= SIZE_MAX).ok_or(Errno::E2BIG)?;
        if name.is_empty() || name.len() > 255 {
            return Err(Errno::ERANGE.into());
        }
        let (dent, value) = (node.dent()?.clone(), Mutex::default());
        let charge = Charge::new(&self.xattr_bytes, size)?;
        let new = NewXattr { dent, name: name.into(), size, flags, value, _charge: charge };
        Ok(Reply::Moved(node.with(Kind::NewXattr(Box::new(new)))))
    }

    /// What the clunk does: a value that is not whole changes nothing.
    pub(super) fn store_xattr(&self, node: &Node, new: &NewXattr) -> Done<()> {
        let value = std::mem::take(&mut *locked(&new.value));
        if value.len() != new.size {
            return Err(Error::new(Errno::EINVAL, "the attribute was not written whole").into());
        }
        let fd = self.tree.handle(&self.host, How::Pool, &new.dent)?;
        let _client = self.become_client(&node.view, NOGID)?;
        let result = match (new.size, new.flags) {
            (0, XATTR_REPLACE) => self.host.removexattr(fd.as_fd(), &new.name),
            _ => self.host.setxattr(fd.as_fd(), &new.name, &value, new.flags),
        };
        Ok(result
            .map_err(|error| if error == host::Errno::NOSYS { host::Errno::OPNOTSUPP } else { error })?)
    }
}
