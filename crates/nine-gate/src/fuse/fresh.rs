//! Compares the kernel's caches with the server where programs rely on it: at opens, at locks, at access(2).
//!
//! In: requests. Out: invalidations, sent before the answers.

use nine_io::client::File;
use nine_proto::{OpenFlags, Qid};

use super::abi::{self, access, fopen};
use super::nodes::WANTED;
use super::ops::errno;
use super::*;

impl MountState {
    /// Makes the kernel ask for a file's attributes again. The kernel reads this before the answer that follows.
    pub(super) fn forget_attr(&self, node: &KernelNode) {
        node.has_attr.set(false);
        // A notification has no request number.
        self.send(0, abi::INVAL_INODE, &notifier::inode(node.id, false).0);
    }

    /// Handles a granted lock. The new holder must see the writes of the last one, as with NFS, because programs that
    /// lock rely on this.
    pub(super) async fn locked(&self, node: &KernelNode, file: &File) -> Result<(), Errno> {
        let attr = file.getattr(WANTED).await.map_err(errno)?;
        node.seen(&attr);
        if self.options.cache == Cache::Never {
            return Ok(());
        }
        match node.has_pages_of(attr.qid.vers, self.clock.now(), self.clock.wall()) {
            true => self.forget_attr(node),
            false => self.drop_pages(node).await?,
        }
        Ok(())
    }

    /// Makes the kernel write back a file's dirty pages and drop all of them.
    async fn drop_pages(&self, node: &KernelNode) -> Result<(), Errno> {
        self.notifier()?.inode_now(node.id).await;
        Ok(())
    }

    /// The notifier for all but the server's changes.
    ///
    /// # Errors
    /// ENOLCK: it cannot be created.
    pub(super) fn notifier(&self) -> Result<&Notifier, Errno> {
        if self.lock_notifier.get().is_none() {
            let device = self.device.try_clone().map_err(|_| Errno::ENOLCK)?;
            let notifier = Notifier::new(device).map_err(|_| Errno::ENOLCK)?;
            let _ = self.lock_notifier.set(notifier);
        }
        self.lock_notifier.get().ok_or(Errno::ENOLCK)
    }

    /// Handles the end of a lock. Writes made under it must reach the server first.
    pub(super) async fn unlocks(&self, node: &KernelNode) -> Result<(), Errno> {
        if self.options.write_back { self.drop_pages(node).await } else { Ok(()) }
    }

    /// Answers ACCESS (access(2), chdir(2)), which the kernel sends if it does not check permissions itself. The answer
    /// is the server's answer to an open(2), as far as an open can be tried.
    pub(super) async fn access(&self, id: u64, asks: u32) -> FuseResult {
        let node = self.node(id)?;
        if !node.is_plain() {
            return Ok(FuseReply::default());
        }
        if asks & access::EXECUTE != 0 {
            let attr = self.file_of(&node).await?.getattr(WANTED).await.map_err(errno)?;
            node.seen(&attr);
            if attr.mode & 0o111 == 0 {
                return Err(Errno::EACCES);
            }
        }
        let how = match (asks & access::READ != 0, asks & access::WRITE != 0) {
            (true, true) => OpenFlags::RDWR,
            (true, false) => OpenFlags::READ,
            (false, true) => OpenFlags::WRITE,
            (false, false) => return Ok(FuseReply::default()),
        };
        // A file that can be open only once may be open already.
        let file = self.file_of(&node).await?;
        if file.qid().ty & (Qid::EXCL | Qid::TMP) == 0 && !file.qid().is_event() {
            file.open("", how).await.map_err(errno)?;
        }
        Ok(FuseReply::default())
    }

    /// Opens a directory. The kernel may cache its names as long as its attributes are valid.
    pub(super) async fn open_dir(&self, id: u64) -> FuseResult {
        let node = self.node(id)?;
        let asked = self.asks();
        let dir = self.file_of(&node).await?.open("", OpenFlags::READ).await.map_err(errno)?;
        let now = self.clock.now();
        let good = self.good_attr(asked, id);
        let flags = match (good.is_zero(), now < node.listed.get()) {
            (true, _) => 0,
            (false, true) => fopen::CACHE_DIR | fopen::KEEP_CACHE,
            (false, false) => {
                node.listed.set(now + good);
                fopen::CACHE_DIR
            }
        };
        self.opened(OpenHandle::Dir(DirHandle::new(dir)), AnswerBuffer::default(), flags, 0)
    }
}
