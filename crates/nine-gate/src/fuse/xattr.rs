//! Extended attributes, and the effect of access control lists on modes and umasks.
//!
//! In: requests of the kernel. Out: their answers; the umask that applies in a directory.

use nine_io::client::File;
use nine_io::server::acl::{self, AclKind};
use nine_proto::{SetAttr, mode};

use super::nodes::WANTED;
use super::ops::{done, errno};
use super::*;

impl MountState {
    /// Answers GETXATTR, or LISTXATTR if there is no name. `room`: bytes of the caller's buffer; 0 asks for the length.
    pub(super) async fn xattr(&self, id: u64, name: Option<&[u8]>, room: usize) -> FuseResult {
        let node = self.node(id)?;
        let bytes = match name {
            Some(name) => self.named_xattr(&node, name).await?,
            None => {
                let names = self.file_of(&node).await?.xattrs().await.map_err(errno)?;
                names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
            }
        };
        match room {
            0 => done(AnswerBuffer::default().u32(bytes.len() as u32).u32(0)),
            room if room < bytes.len() => Err(Errno::ERANGE),
            _ => done(AnswerBuffer(bytes)),
        }
    }

    /// Returns the value of an attribute. Its absence is cached for this file. If the server stores no attributes of
    /// the class, that is cached for all files in the directory.
    async fn named_xattr(&self, node: &KernelNode, name: &[u8]) -> Result<Vec<u8>, Errno> {
        // With EOPNOTSUPP for a list, the kernel would refuse every access.
        let refusal = match self.checks_lists.get() && AclKind::of(name).is_some() {
            true => Errno::ENODATA,
            false => Errno::EOPNOTSUPP,
        };
        let now = self.clock.now();
        if node.lacks(name, now) {
            return Err(Errno::ENODATA);
        }
        // A directory may be the root of another server, with other attributes than its parent.
        let is_dir = node.mode.get() & mode::S_IFMT == mode::S_IFDIR;
        let dir = if is_dir { None } else { self.dir_of(node) };
        if dir.as_ref().is_some_and(|dir| dir.lacks_class(name, now)) {
            return Err(refusal);
        }
        match self.file_of(node).await?.xattr(name).await {
            Ok(value) => Ok(value),
            Err(error) if error.errno() == Errno::ENODATA => {
                self.seen_without(node, name);
                Err(Errno::ENODATA)
            }
            Err(error) if matches!(error.errno(), Errno::EOPNOTSUPP | Errno::ENOSYS) => {
                dir.inspect(|dir| dir.seen_without_class(name, now + self.good_without()));
                Err(refusal)
            }
            Err(error) => Err(error.errno()),
        }
    }

    /// A directory in which the file was found.
    fn dir_of(&self, node: &KernelNode) -> Option<Rc<KernelNode>> {
        let nodes = self.nodes.borrow();
        nodes.names(node).first().and_then(|(dir, _)| nodes.get(*dir))
    }

    pub(super) async fn set_xattr(
        &self,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kills_set_gid: bool,
    ) -> FuseResult {
        let node = self.node(id)?;
        let file = self.file_of(&node).await?;
        let set = file.set_xattr(name, value, flags).await.map_err(errno);
        node.may_have_any();
        set?;
        self.list_changed(&node, &file, name, kills_set_gid).await?;
        Ok(FuseReply::default())
    }

    pub(super) async fn remove_xattr(&self, id: u64, name: &[u8]) -> FuseResult {
        let node = self.node(id)?;
        let file = self.file_of(&node).await?;
        file.remove_xattr(name).await.map_err(errno)?;
        self.list_changed(&node, &file, name, false).await?;
        Ok(FuseReply::default())
    }

    /// Caches the absence of an attribute.
    pub(super) fn seen_without(&self, node: &KernelNode, name: &[u8]) {
        node.seen_without(name, self.clock.now() + self.good_without());
    }

    /// The umask bits that apply to a new file in a directory: none if the directory has a default access control
    /// list, which replaces the umask (acl(5)). The absence of a list is cached as long as other attributes.
    pub(super) async fn umask(&self, dir: u64, umask: u32) -> Result<u32, Errno> {
        let node = self.node(dir)?;
        if umask & 0o777 == 0 || node.lacks(acl::DEFAULT, self.clock.now()) {
            return Ok(umask & 0o777);
        }
        match self.file_of(&node).await?.xattr(acl::DEFAULT).await {
            Ok(list) if !list.is_empty() => return Ok(0),
            Err(error) if error.is_disconnect() => return Err(error.errno()),
            // Also if the server does not support lists: then the umask is the safe choice.
            _ => self.seen_without(&node, acl::DEFAULT),
        }
        Ok(umask & 0o777)
    }

    /// How long the absence of an attribute is cached. The server's published changes do not invalidate it, so it is
    /// short with them, too.
    fn good_without(&self) -> Duration {
        match self.options.cache {
            Cache::Never => Duration::ZERO,
            Cache::For(time) => time,
            Cache::Told => SHORT,
        }
    }

    /// Updates the mode after a change of an access control list. The kernel's copy is invalidated, unless the kernel
    /// handles lists itself.
    async fn list_changed(
        &self,
        node: &KernelNode,
        file: &File,
        name: &[u8],
        kills_set_gid: bool,
    ) -> Result<(), Errno> {
        match AclKind::of(name) {
            None => return Ok(()),
            Some(AclKind::Default) => return Ok(()),
            Some(AclKind::Access) => {}
        }
        let mut attr = file.getattr(WANTED).await.map_err(errno)?;
        if kills_set_gid && attr.mode & 0o2000 != 0 {
            let set = SetAttr { mode: Some(attr.mode & 0o7777 & !0o2000), ..SetAttr::default() };
            file.setattr(&set).await.map_err(errno)?;
            attr = file.getattr(WANTED).await.map_err(errno)?;
        }
        node.seen(&attr);
        if !self.checks_lists.get() {
            self.forget_attr(node);
        }
        Ok(())
    }
}
