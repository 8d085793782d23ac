//! Checksums of whole files: SHA-256, on request.

use anyhow::Result;
use ring::digest::{Context, Digest, SHA256};

use super::end::Reading;

/// A running checksum.
#[derive(Clone)]
pub struct Sum(Context);

impl Sum {
    pub fn new() -> Sum {
        Sum(Context::new(&SHA256))
    }

    pub fn add(&mut self, data: &[u8]) {
        self.0.update(data);
    }

    /// Adds all remaining bytes of a reader; `progress` is called with the length of each piece.
    pub async fn read(&mut self, mut reading: Reading<'_>, mut progress: impl FnMut(usize)) -> Result<()> {
        while let Some(data) = reading.next().await? {
            self.add(&data);
            progress(data.len());
        }
        Ok(())
    }

    /// Returns whether both checksums are equal.
    pub fn is(self, other: Sum) -> bool {
        let (a, b): (Digest, Digest) = (self.0.finish(), other.0.finish());
        a.as_ref() == b.as_ref()
    }
}
