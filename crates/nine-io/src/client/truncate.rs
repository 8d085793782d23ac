//! Detects servers that ignore O_TRUNC.
//!
//! Some servers of 9P2000.L do not truncate a file that is opened with O_TRUNC. It was never noticed, because Linux's
//! own client also sends a Tsetattr. A short text written over a long one would leave the old end. So the first such
//! open of a nonempty file is checked, and the result holds for the connection. Servers in this process are trusted.

use std::sync::atomic::{AtomicU8, Ordering};

use nine_proto::{GetMask, OpenFlags, Qid, SetAttr};

use super::Client;
use super::error::Result;
use super::file::File;

/// See the module.
#[derive(Default)]
pub(crate) struct TruncationCheck(AtomicU8);

const UNKNOWN: u8 = 0;
const HEEDED: u8 = 1;
const IGNORED: u8 = 2;

impl Client {
    /// Whether the server is known to truncate a file that is opened with O_TRUNC.
    pub fn heeds_truncation(&self) -> bool {
        self.0.shared.directs.is_some() || self.0.shared.truncation.0.load(Ordering::Relaxed) == HEEDED
    }
}

impl File {
    /// Call before the file at `path` is opened. Returns its length if [`File::truncated`] must check the truncation.
    pub async fn before_truncation(&self, path: &[u8], flags: OpenFlags) -> Option<u64> {
        if !flags.has(OpenFlags::TRUNC) || self.client().heeds_truncation() {
            return None;
        }
        if self.client().0.shared.truncation.0.load(Ordering::Relaxed) == IGNORED {
            return Some(u64::MAX);
        }
        // If there is no such file, the open reports it.
        let (_, attr) = self.walk_attr(path, GetMask::SIZE).await.ok()?;
        Some(attr.size).filter(|&size| size > 0)
    }

    /// Call after the open, with the result of [`File::before_truncation`]: truncates the file if the server has not.
    /// If another client has changed its length meanwhile, the result is unknown and nothing is cut. An append-only
    /// file keeps its content (open(5) of Plan 9).
    pub async fn truncated(&self, before: Option<u64>) -> Result<()> {
        let Some(before) = before.filter(|_| self.qid().ty & Qid::APPEND == 0) else { return Ok(()) };
        let known = &self.client().0.shared.truncation.0;
        if known.load(Ordering::Relaxed) == UNKNOWN {
            match self.getattr(GetMask::SIZE).await?.size {
                0 => known.store(HEEDED, Ordering::Relaxed),
                size if size == before => known.store(IGNORED, Ordering::Relaxed),
                _ => {}
            }
        }
        if known.load(Ordering::Relaxed) != IGNORED {
            return Ok(());
        }
        self.setattr(&SetAttr { size: Some(0), ..SetAttr::default() }).await
    }
}
