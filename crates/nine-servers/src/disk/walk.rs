//! Attach and walk: from names to dents.
//!
//! In: an aname or names. Out: nodes and qids. A walk that fails after its first name makes no node (walk(5)).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use nine_io::server::{Reply, Who};
use nine_proto::msg::Names as WalkNames;
use nine_proto::{Attr, Errno, Error, NOGID, NOUID, Qid, Walked};

use super::dent::HostDentry;
use super::host::{self, HostFs};
use super::sys::{self, CredentialGuard, UserCredentials};
use super::{
    As, AttachView, DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationFailure, OperationResult,
};

/// uid and gid of users that have none (`nobody`, `nogroup`). It is the group of a uid that the user database lacks.
/// It is both uid and gid of Plan 9's `none`, an unauthenticated client.
const NOBODY: u32 = 65534;

impl<H: HostFs> DiskShared<H> {
    /// `aname`: empty or "/" is the root, else a path below it. ".." does not go above that directory.
    pub(super) fn attach(&self, who: &Who, aname: &[u8]) -> OperationResult<Reply> {
        self.users.refresh();
        let ident = match self.identity {
            As::Server => None,
            As::Client => Some(ident_of(who)?),
        };
        let mut view = AttachView { root: self.tree.root.clone(), ident };
        let _still = self.tree.still(ExecutionMode::Pool)?;
        let fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, &view.root)?;
        let mut qid = self.qid(&self.host.stat(fd.as_fd(), b"")?);
        for name in aname.split(|&b| b == b'/').filter(|&name| !matches!(name, b"" | b".")) {
            nine_proto::check_name(name)?;
            let (dent, next) = self.walk_one(ExecutionMode::Pool, &view, &view.root, name, &mut None)?;
            (view.root, qid) = (dent, next);
        }
        let dent = view.root.clone();
        Ok(Reply::Attach {
            qid,
            node: Arc::new(DiskFidState { view: Arc::new(view), kind: DiskFidKind::Path(dent) }),
        })
    }

    /// Returns the directory at these names below the root, with the rights of `ident`, for servers that pass
    /// requests on.
    pub(super) fn below(
        &self,
        names: &[&str],
        ident: Option<UserCredentials>,
    ) -> OperationResult<(nine_io::server::Node, Attr)> {
        let mut view = AttachView { root: self.tree.root.clone(), ident: None };
        let still = self.tree.still(ExecutionMode::Pool)?;
        for name in names {
            nine_proto::check_name(name.as_bytes())?;
            view.root = self.walk_one(ExecutionMode::Pool, &view, &view.root, name.as_bytes(), &mut None)?.0;
        }
        let fd = self.tree.handle_still(&self.host, ExecutionMode::Pool, &view.root)?;
        drop(still);
        let (attr, dent) = (self.attr(&self.host.stat(fd.as_fd(), b"")?), view.root.clone());
        view.ident = ident;
        Ok((Arc::new(DiskFidState { view: Arc::new(view), kind: DiskFidKind::Path(dent) }), attr))
    }

    pub(super) fn walk(
        &self,
        node: &DiskFidState,
        names: WalkNames<'_>,
        how: ExecutionMode,
    ) -> OperationResult<Reply> {
        let mut dent = node.dent()?.clone();
        let mut qids = Walked::new();
        let still = if names.is_empty() { None } else { Some(self.tree.still(how)?) };
        let mut client = None;
        for name in names.iter() {
            match self.walk_one(how, &node.view, &dent, name, &mut client) {
                Ok((next, qid)) => {
                    qids.push(qid);
                    dent = next;
                }
                Err(OperationFailure(error)) if qids.is_empty() || error.errno == Errno::EAGAIN => {
                    return Err(OperationFailure(error));
                }
                Err(_) => return Ok(Reply::Walk { qids, node: None }),
            }
        }
        drop((client, still));
        Ok(Reply::Walk { qids, node: Some(node.with(DiskFidKind::Path(dent))) })
    }

    /// Walks one name, with `still` held. `client` is reused from name to name, since changing the identity costs
    /// more than a lookup. Only descriptors that must be opened again are opened with the server's own rights.
    fn walk_one<'a>(
        &'a self,
        how: ExecutionMode,
        view: &AttachView,
        from: &Arc<HostDentry>,
        name: &[u8],
        client: &mut Option<CredentialGuard<'a>>,
    ) -> OperationResult<(Arc<HostDentry>, Qid)> {
        if !from.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        if name == b".." {
            let up = self.parent_in(view, from);
            if how == ExecutionMode::Inline && !self.is_local(&up, how) {
                return Err(Errno::EAGAIN.into());
            }
            let fd = self.handle_as_server(how, &up, client)?;
            return Ok((up, self.qid(&self.host.stat(fd.as_fd(), b"")?)));
        }
        let dir_fd = self.handle_as_server(how, from, client)?;
        if client.is_none() {
            *client = self.become_client(view, NOGID)?;
        }
        let (dent, st) = self.tree.step(&self.host, how, from, &dir_fd, name)?;
        Ok((dent, self.qid(&st)))
    }

    fn handle_as_server(
        &self,
        how: ExecutionMode,
        dent: &Arc<HostDentry>,
        client: &mut Option<CredentialGuard<'_>>,
    ) -> OperationResult<Arc<OwnedFd>> {
        if let Some(fd) = dent.cached() {
            return Ok(fd);
        }
        *client = None;
        Ok(self.tree.handle_still(&self.host, how, dent)?)
    }

    /// Returns the parent for "..". It never leaves the view, even if the directory was moved out of it.
    pub(super) fn parent_in(&self, view: &AttachView, dent: &Arc<HostDentry>) -> Arc<HostDentry> {
        let confined = Arc::ptr_eq(&view.root, &self.tree.root) || dent.is_below(&view.root);
        let parent = dent.parent().filter(|_| confined && !Arc::ptr_eq(dent, &view.root));
        parent.unwrap_or_else(|| dent.clone())
    }

    pub(super) fn readlink(&self, node: &DiskFidState, how: ExecutionMode) -> OperationResult<Reply> {
        let fd = self.any_fd(node, how)?;
        let target = self.host.readlink(fd.as_fd(), b"").map_err(|error| match error {
            // readlinkat returns ENOENT for a descriptor that is not a symbolic link.
            host::Errno::NOENT => host::Errno::INVAL,
            error => error,
        })?;
        Ok(Reply::Target(target.into()))
    }
}

/// Returns a client's identity, from this host's user databases. Slow.
fn ident_of(who: &Who) -> OperationResult<UserCredentials> {
    let uid = who.uid.filter(|&uid| uid != NOUID);
    match (sys::lookup(uid, who.name.as_bytes())?, uid) {
        // Authentication has checked root by its number. An alias of root must not bypass that.
        (Some((_, 0, _)), None) => Err(Error::new(Errno::EPERM, "this name is another one of root's").into()),
        (Some((name, uid, gid)), _) => Ok(UserCredentials { uid, gid, groups: sys::groups_of(&name, gid) }),
        (None, Some(uid)) => Ok(UserCredentials { uid, gid: NOBODY, groups: Vec::new() }),
        (None, None) if &*who.name == "none" => {
            Ok(UserCredentials { uid: NOBODY, gid: NOBODY, groups: Vec::new() })
        }
        (None, None) => Err(Error::new(Errno::EPERM, "no such user").into()),
    }
}
