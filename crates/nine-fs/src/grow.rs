//! Devices that become larger while an archive works on them, and words for them.

use std::pin::Pin;
use std::sync::Arc;

use nine_proto::{Errno, Error, Result};

use crate::archive::{Archive, errno};

/// Puts more behind the worm, as words say; no words: what has come there by itself.
pub type Grow =
    Arc<dyn Fn(&str) -> Pin<Box<dyn Future<Output = std::result::Result<(), String>> + Send>> + Send + Sync>;

impl Archive {
    /// From now on its worm grows so.
    pub fn grows_by(&self, grow: Grow) {
        self.state().grow = Some(grow);
    }

    /// What the worm has more by now is used.
    pub(crate) async fn grow(&self, words: &str) -> Result<()> {
        let before = self.0.cw.worm_blocks();
        let grow = self.state().grow.clone();
        match grow {
            Some(grow) => grow(words).await.map_err(|why| Error::new(Errno::EINVAL, why))?,
            None if words.is_empty() => {}
            None => return Err(Error::new(Errno::EOPNOTSUPP, "nothing can be put behind this worm")),
        }
        self.0.cw.look_at_worm().await.map_err(|error| errno(&error))?;
        self.has_grown().await?;
        let after = self.0.cw.worm_blocks();
        self.info(format_args!("the worm has {after} blocks, and had {before}"));
        // A dump that had no room need not wait any longer.
        self.state().dumper.try_again();
        self.begin_copies();
        Ok(())
    }

    /// Without a cache device what is new is had behind a commit. Whether there was something.
    pub(crate) async fn has_grown(&self) -> Result<bool> {
        let is_new = self.0.cw.has_grown() && self.state().follows.is_none();
        if is_new {
            self.state().noted = true;
            self.sync().await?;
        }
        Ok(is_new)
    }

    /// Tells the cache device or the worm something: "scrub", "return 1", what they know.
    pub(crate) fn tell_device(&self, which: &str, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (c, w) = self.0.cw.devices();
        let device = if which == "cache" { c } else { w };
        device.control(&words).map_err(|error| Error::new(Errno::EINVAL, error.to_string()))
    }
}
