//! Extended attributes (.L). Txattrwalk yields a fid for reading, Txattrcreate one for writing; its clunk stores the
//! value.

use nine_proto::msg::Tmsg;
use nine_proto::{Errno, Qid};

use super::answer::Answer;
use super::error::{Error, Result};
use super::file::File;
use super::text;

/// Largest value, and longest list of names, in Linux (xattr(7)), in bytes. Larger announcements of a server are
/// refused.
const VALUE_MAX: u64 = 64 * 1024;

impl File {
    /// Returns the value of an extended attribute.
    pub async fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let name = text(name.as_ref())?;
        if name.is_empty() {
            return Err(Error::refused(Errno::EINVAL, "an extended attribute has a name"));
        }
        self.xattr_read(name).await
    }

    /// Returns the names of all extended attributes.
    pub async fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let list = self.xattr_read(b"").await?;
        Ok(list.split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Sets an extended attribute. `flags`: 1 (`XATTR_CREATE`), it must be new; 2 (`XATTR_REPLACE`), it must exist.
    pub async fn set_xattr(&self, name: impl AsRef<[u8]>, value: &[u8], flags: u32) -> Result<()> {
        let file = self.xattr_create(name.as_ref(), value.len() as u64, flags).await?;
        file.write_all_at(0, value).await?;
        file.close().await
    }

    /// Removes an extended attribute.
    pub async fn remove_xattr(&self, name: impl AsRef<[u8]>) -> Result<()> {
        const XATTR_REPLACE: u32 = 2;
        self.xattr_create(name.as_ref(), 0, XATTR_REPLACE).await?.close().await
    }

    async fn xattr_read(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.only_l()?;
        let newfid = self.client().fid()?;
        let size = match self.call(Tmsg::Xattrwalk { fid: self.fid(), newfid, name }).await? {
            Answer::Size(size) => size,
            other => other.never(),
        };
        let file = File::new(self.client(), newfid, Qid::default());
        if size > VALUE_MAX {
            return Err(Error::refused(
                Errno::E2BIG,
                "the server announces an extended attribute above 64 KiB",
            ));
        }
        let mut value = vec![0; size as usize];
        let n = file.read_at(0, &mut value).await?;
        value.truncate(n);
        Ok(value)
    }

    async fn xattr_create(&self, name: &[u8], size: u64, flags: u32) -> Result<File> {
        self.only_l()?;
        let name = text(name)?;
        let mut file = self.walk("").await?;
        self.call(Tmsg::Xattrcreate { fid: file.fid(), name, size, flags }).await?;
        file.becomes_writable();
        Ok(file)
    }
}
