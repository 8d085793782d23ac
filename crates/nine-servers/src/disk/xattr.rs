//! Extended attributes: the walk reads a value into memory, the clunk writes one.
//!
//! In: an attribute name, or none for the list of names. Out: nodes that are read or written like files. A value has
//! at most 64 KiB, Linux' own limit, so a fid holds no more. The total over all fids is limited by [`XattrLimit`].

use std::os::fd::AsFd;
use std::sync::Arc;

#[cfg(doc)]
use nine_io::server::xattr::XattrLimit;
use nine_io::server::xattr::{XATTR_REPLACE, XATTR_SIZE_MAX, XattrInput, XattrValue};
use nine_io::server::{Reply, Request};
use nine_proto::NOGID;

use super::dent::HostDentry;
use super::host::{self, HostFs};
use super::{DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationResult};

/// An attribute value being written.
pub(super) struct XattrWriter {
    dent: Arc<HostDentry>,
    pub(super) input: XattrInput,
}

impl<H: HostFs> DiskShared<H> {
    pub(super) fn xattr_walk(
        &self,
        node: &DiskFidState,
        req: &Request,
        name: &[u8],
    ) -> OperationResult<Reply> {
        let fd = self.any_fd(node, ExecutionMode::Pool)?;
        let _client = self.become_client(&node.view, NOGID)?;
        let mut value = vec![0; XATTR_SIZE_MAX];
        let n = match name {
            b"" => self.host.listxattr(fd.as_fd(), &mut value)?,
            name => self.host.getxattr(fd.as_fd(), name, &mut value)?,
        };
        value.truncate(n);
        value.shrink_to_fit();
        let xattr = XattrValue::new(value.into(), req, &self.xattr_limit)?;
        Ok(Reply::Xattr { size: n as u64, node: node.with(DiskFidKind::Xattr(Box::new(xattr))) })
    }

    pub(super) fn xattr_create(
        &self,
        node: &DiskFidState,
        req: &Request,
        name: &[u8],
        size: u64,
        flags: u32,
    ) -> OperationResult<Reply> {
        let input = XattrInput::new(name, size, flags, req, &self.xattr_limit)?;
        let dent = node.dent()?.clone();
        let new = XattrWriter { dent, input };
        Ok(Reply::Moved(node.with(DiskFidKind::NewXattr(Box::new(new)))))
    }

    /// Stores the value at the clunk. An incomplete value changes nothing.
    pub(super) fn store_xattr(&self, node: &DiskFidState, new: &XattrWriter) -> OperationResult<()> {
        let value = new.input.value()?;
        let fd = self.tree.handle(&self.host, ExecutionMode::Pool, &new.dent)?;
        let _client = self.become_client(&node.view, NOGID)?;
        // A Linux client sends removexattr(2) as an empty value with XATTR_REPLACE.
        let result = match (value.len(), new.input.flags()) {
            (0, XATTR_REPLACE) => self.host.removexattr(fd.as_fd(), new.input.name()),
            (_, flags) => self.host.setxattr(fd.as_fd(), new.input.name(), &value, flags),
        };
        Ok(result
            .map_err(|error| if error == host::Errno::NOSYS { host::Errno::OPNOTSUPP } else { error })?)
    }
}
