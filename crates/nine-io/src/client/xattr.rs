//! Extended attributes (.L): Txattrwalk gives a fid to read, Txattrcreate one to write, stored by its clunk.

use nine_proto::msg::Tmsg;
use nine_proto::{Errno, Qid};

use super::answer::Answer;
use super::error::{Error, Result};
use super::file::File;
use super::text;

/// The largest value that Linux lets anybody have, and the longest list of names (xattr(7)), bytes. A server that
/// announces more is refused.
const VALUE_MAX: u64 = 64 * 1024;

impl File {
    /// The value of an extended attribute.
    pub async fn xattr(&self, name: impl AsRef<[u8]>) -> Result<Vec<u8>> {
        let name = text(name.as_ref())?;
        if name.is_empty() {
            return Err(Error::refused(Errno::EINVAL, "an extended attribute has a name"));
        }
        self.xattr_read(name).await
    }

    /// The names of all extended attributes.
    pub async fn xattrs(&self) -> Result<Vec<Vec<u8>>> {
        let list = self.xattr_read(b"").await?;
        Ok(list.split(|&b| b == 0).filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect())
    }

    /// Sets an extended attribute. `flags`: 1 it must be new (`XATTR_CREATE`), 2 it must exist (`XATTR_REPLACE`).
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
