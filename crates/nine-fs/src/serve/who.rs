//! Permission checks for the user of a request.

use std::sync::Arc;

use nine_io::server::Request;
use nine_io::server::acl::AclKind;
use nine_proto::Errno;

use super::node::TreeFile;
use crate::archive::{Archive, ArchiveState};
use crate::fs::{ArchiveFs, FsResult};
use crate::item::InodeAttributes;
use crate::ptr::BlockPtr;
use crate::users::{self, ADM, FileMode, NONE, UserTable};

/// The user of a request.
pub(super) struct RequestUser {
    id: Option<u32>,
    /// May do everything: root, or the user that runs the server.
    power: bool,
    users: Arc<UserTable>,
}

impl Archive {
    pub(super) fn person(&self, req: &Request, state: &ArchiveState) -> RequestUser {
        let who = req.who();
        let id = who.uid.or_else(|| state.users.id(&who.name));
        let id = id.filter(|id| !state.users.is_none(*id));
        RequestUser { id, power: who.owner || id == Some(0), users: state.users.clone() }
    }

    /// Checks that the user has these permissions on the file.
    pub(super) fn may(&self, req: &Request, state: &ArchiveState, file: &TreeFile, want: u8) -> FsResult<()> {
        let root = state.root(file.view)?;
        let it = state.fs.attributes(root, file.ino)?;
        self.person(req, state).may(&state.fs, (root, file.ino), &it, want)
    }
}

impl RequestUser {
    /// Checks that the user may attach.
    pub(super) fn attach(&self) -> FsResult<()> {
        if self.id == Some(ADM) { Err(Errno::EPERM.into()) } else { Ok(()) }
    }

    /// Returns the user ID for files that the user creates or changes.
    pub(super) fn number(&self) -> u32 {
        self.id.or_else(|| self.users.id("none")).unwrap_or(NONE)
    }

    /// Refuses new files to `none`, because their owner could not even change their times.
    pub(super) fn may_create(&self) -> FsResult<()> {
        if self.id.is_some() || self.power { Ok(()) } else { Err(Errno::EPERM.into()) }
    }

    pub(super) fn has_power(&self) -> bool {
        self.power
    }

    pub(super) fn owns(&self, it: &InodeAttributes) -> bool {
        self.power || self.id == Some(it.uid)
    }

    /// Returns whether the user is the owner or a leader of the file's group, as in Plan 9.
    pub(super) fn leads(&self, it: &InodeAttributes) -> bool {
        self.owns(it) || self.id.is_some_and(|id| self.users.leads(id, it.gid))
    }

    pub(super) fn is_member(&self, gid: u32) -> bool {
        self.power || self.id.is_some_and(|id| self.users.is_member(id, gid))
    }

    /// Checks permissions. `at` is the root of the tree, and the inode of these attributes.
    pub(super) fn may(
        &self,
        fs: &ArchiveFs,
        at: (BlockPtr, u64),
        it: &InodeAttributes,
        want: u8,
    ) -> FsResult<()> {
        let mode = FileMode { mode: it.mode, uid: it.uid, gid: it.gid };
        let acl = if self.power { None } else { fs.acl(at.0, at.1, it, AclKind::Access)? };
        let person = users::PermissionUser { id: self.id, users: &self.users, power: self.power };
        if users::may(&mode, acl.as_ref(), person, want) { Ok(()) } else { Err(Errno::EACCES.into()) }
    }
}
