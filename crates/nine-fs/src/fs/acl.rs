//! Access control lists: extended attributes that mode bits follow, and that new files inherit.

use nine_io::server::acl::{AclKind, PosixAcl};
use nine_proto::{Errno, Time};

use super::{ArchiveFs, FsResult, broken};
use crate::item::{ACCESS_ACL, DEFAULT_ACL, InodeAttributes};
use crate::ptr::BlockPtr;

/// The access control lists of a new file.
#[derive(Default)]
pub(crate) struct NewAcls(pub(super) Vec<(AclKind, Vec<u8>)>);

/// Returns the flag of an inode with a list of this kind.
pub(crate) fn flag(kind: AclKind) -> u32 {
    match kind {
        AclKind::Access => ACCESS_ACL,
        AclKind::Default => DEFAULT_ACL,
    }
}

impl NewAcls {
    /// Returns the lists and the mode of a new file or directory that inherits a directory's default list.
    pub(crate) fn inherit(list: &PosixAcl, mode: u32, is_dir: bool) -> (Self, u32) {
        let (own, mode) = list.inherit(mode);
        let own = own.is_extended().then(|| (AclKind::Access, own.encode()));
        let default = is_dir.then(|| (AclKind::Default, list.encode()));
        (Self(own.into_iter().chain(default).collect()), mode)
    }
}

impl ArchiveFs {
    /// Returns a list of an inode, in the tree with this root.
    pub(crate) fn acl(
        &self,
        root: BlockPtr,
        ino: u64,
        it: &InodeAttributes,
        kind: AclKind,
    ) -> FsResult<Option<PosixAcl>> {
        if it.flags & flag(kind) == 0 {
            return Ok(None);
        }
        match self.xattr(root, ino, kind.name())?.map(|value| PosixAcl::parse(&value)) {
            Some(Ok(Some(list))) => Ok(Some(list)),
            _ => Err(broken(ino, "its access control list makes no sense")),
        }
    }

    /// Sets or removes a list, and the mode bits that follow from an access list. A list that is equivalent to its mode
    /// bits is not stored. Without `keeps_set_gid` an access list clears the set-group-ID bit.
    pub(crate) fn set_acl(
        &mut self,
        ino: u64,
        kind: AclKind,
        list: Option<&PosixAcl>,
        keeps_set_gid: bool,
        now: Time,
    ) -> FsResult<()> {
        let it = self.own(ino)?;
        if kind == AclKind::Default && !it.is_dir() {
            return if list.is_some() { Err(Errno::EACCES.into()) } else { Ok(()) };
        }
        let bits = list.filter(|_| kind == AclKind::Access).map(PosixAcl::mode_bits);
        let stored = list.filter(|list| kind == AclKind::Default || list.is_extended()).map(PosixAcl::encode);
        self.replace_xattr(ino, kind.name(), stored.as_deref(), now, |it| {
            it.flags = it.flags & !flag(kind) | if stored.is_some() { flag(kind) } else { 0 };
            if let Some(bits) = bits {
                it.mode = it.mode & !0o777 | bits;
                it.mode &= !if keeps_set_gid { 0 } else { 0o2000 };
            }
        })
    }

    /// Returns the access list with a new mode, if there is a list and the mode changes it.
    pub(super) fn acl_with_mode(
        &self,
        ino: u64,
        it: &InodeAttributes,
        mode: u32,
    ) -> FsResult<Option<Vec<u8>>> {
        let Some(mut list) = self.acl(self.mem.root, ino, it, AclKind::Access)? else { return Ok(None) };
        if list.mode_bits() == mode & 0o777 {
            return Ok(None);
        }
        list.set_mode(mode);
        Ok(Some(list.encode()))
    }
}
