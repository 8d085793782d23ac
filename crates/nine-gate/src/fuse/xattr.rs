//! Extended attributes, and the effect of access control lists on modes and umasks.
//!
//! In: requests of the kernel. Out: their answers; the umask that counts in a directory.

use nine_io::client::File;
use nine_io::server::acl::{self, AclKind};
use nine_proto::SetAttr;

use super::nodes::{CAPABILITY, WANTED};
use super::ops::{done, errno};
use super::*;

impl Gate {
    /// Answers GETXATTR, or LISTXATTR where there is no name. `room`: bytes that the caller takes; 0 if it asks how
    /// many there are.
    pub(super) async fn xattr(&self, id: u64, name: Option<&[u8]>, room: usize) -> Outcome {
        let node = self.node(id)?;
        let is_capability = name == Some(CAPABILITY);
        if is_capability && self.clock.now() < node.incapable.get() {
            return Err(Errno::ENODATA);
        }
        let file = self.file_of(&node).await?;
        let bytes = match name {
            Some(name) => match file.xattr(name).await {
                Err(error) if is_capability && error.errno() == Errno::ENODATA => {
                    self.seen_without_capability(&node);
                    return Err(Errno::ENODATA);
                }
                // The kernel would refuse every access for want of a list.
                Err(error)
                    if self.checks_lists.get()
                        && error.errno() == Errno::EOPNOTSUPP
                        && AclKind::of(name).is_some() =>
                {
                    return Err(Errno::ENODATA);
                }
                value => value.map_err(errno)?,
            },
            None => {
                let names = file.xattrs().await.map_err(errno)?;
                names.iter().flat_map(|name| name.iter().copied().chain([0])).collect()
            }
        };
        match room {
            0 => done(Out::default().u32(bytes.len() as u32).u32(0)),
            room if room < bytes.len() => Err(Errno::ERANGE),
            _ => done(Out(bytes)),
        }
    }

    pub(super) async fn set_xattr(
        &self,
        id: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        kills_set_gid: bool,
    ) -> Outcome {
        let node = self.node(id)?;
        node.incapable.take();
        let file = self.file_of(&node).await?;
        file.set_xattr(name, value, flags).await.map_err(errno)?;
        self.list_changed(&node, &file, name, kills_set_gid).await?;
        Ok(Reply::default())
    }

    pub(super) async fn remove_xattr(&self, id: u64, name: &[u8]) -> Outcome {
        let node = self.node(id)?;
        let file = self.file_of(&node).await?;
        file.remove_xattr(name).await.map_err(errno)?;
        self.list_changed(&node, &file, name, false).await?;
        Ok(Reply::default())
    }

    /// It has no [`CAPABILITY`], which is believed as long as other attributes, a second at most.
    pub(super) fn seen_without_capability(&self, node: &Node) {
        node.incapable.set(self.clock.now() + self.good_without());
    }

    /// The umask bits that apply to a new file in a directory: none if the directory has a default access control
    /// list, which replaces the umask (acl(5)). The absence of a list is cached as long as other attributes, a second
    /// at most.
    pub(super) async fn umask(&self, dir: u64, umask: u32) -> Result<u32, Errno> {
        let node = self.node(dir)?;
        if umask & 0o777 == 0 || self.clock.now() < node.no_default_acl.get() {
            return Ok(umask & 0o777);
        }
        match self.file_of(&node).await?.xattr(acl::DEFAULT).await {
            Ok(list) if !list.is_empty() => return Ok(0),
            Err(error) if error.is_disconnect() => return Err(error.errno()),
            // Also where the server does not say: then the umask is the safe side.
            _ => node.no_default_acl.set(self.clock.now() + self.good_without()),
        }
        Ok(umask & 0o777)
    }

    /// How long it is believed that a file has no attribute of a name.
    fn good_without(&self) -> Duration {
        match self.options.cache {
            Cache::Never => Duration::ZERO,
            Cache::For(time) => time.min(SHORT),
            Cache::Told => SHORT,
        }
    }

    /// Updates the mode after a change of an access control list. The kernel's copy is invalidated, unless the kernel
    /// handles lists itself.
    async fn list_changed(
        &self,
        node: &Node,
        file: &File,
        name: &[u8],
        kills_set_gid: bool,
    ) -> Result<(), Errno> {
        match AclKind::of(name) {
            None => return Ok(()),
            Some(AclKind::Default) => {
                node.no_default_acl.take();
                return Ok(());
            }
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
            // A notification has no request number. A negative offset invalidates attributes only, no pages.
            let told = Out::default().u64(node.id).u64(u64::MAX).u64(0);
            self.send(0, abi::INVAL_INODE, &told.0);
        }
        Ok(())
    }
}
