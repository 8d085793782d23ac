//! Growth of a worm while an archive uses it.

use std::pin::Pin;
use std::sync::Arc;

use nine_proto::{Errno, Error, Result};

use crate::archive::{Archive, errno};

/// Extends the worm as an expression says. With an empty one, takes over the growth of the present devices.
pub type Grow =
    Arc<dyn Fn(&str) -> Pin<Box<dyn Future<Output = std::result::Result<(), String>> + Send>> + Send + Sync>;

impl Archive {
    /// Sets the function that extends the worm.
    pub fn grows_by(&self, grow: Grow) {
        self.state().grow = Some(grow);
    }

    /// Extends the worm, and uses its new blocks.
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
        // A dump for which there was no room is retried at once.
        self.state().dumper.try_again();
        self.begin_copies();
        Ok(())
    }

    /// In place, takes new blocks of w into use, in a durable commit. Returns whether there were any.
    pub(crate) async fn has_grown(&self) -> Result<bool> {
        let is_new = self.0.cw.has_grown() && self.state().follows.is_none();
        if is_new {
            self.state().noted = true;
            self.sync().await?;
        }
        Ok(is_new)
    }

    /// Passes a command to the cache device or to the worm: "scrub", "return 1" or another one of theirs.
    pub(crate) fn tell_device(&self, which: &str, words: &str) -> Result<()> {
        let words: Vec<&str> = words.split_whitespace().collect();
        let (c, w) = self.0.cw.devices();
        let device = if which == "cache" { c } else { w };
        device.control(&words).map_err(|error| Error::new(Errno::EINVAL, error.to_string()))
    }
}
