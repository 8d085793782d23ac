//! Trees of those who have proven who they are: by a certificate, which the module `tls` of their conversation has
//! verified and tells of in `status`.
//!
//! Always holds: a tree is kept while somebody has a conversation, or files of it are; [`TREES`] at most.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use nine_io::client::{Error, File, Result};
use nine_proto::{Errno, OpenFlags};

use super::files::Files;

/// Trees at once. With more, those that come are told that there is no room.
const TREES: usize = 1024;
/// Bytes of a `status` that are looked at.
const STATUS: u32 = 8 << 10;

/// Whose trees there are.
pub trait Trees: Send + Sync {
    /// The root of what the holder of a certificate sees.
    fn root(&self, holder: Holder) -> Pin<Box<dyn Future<Output = Result<File>>>>;
}

/// Of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The name in it.
    pub name: String,
    /// Its SHA-256.
    pub fingerprint: [u8; 32],
}

/// Those that have been asked for.
#[derive(Default)]
pub(super) struct Proven(RefCell<Vec<(Holder, Rc<Files>)>>);

impl Proven {
    /// The files of the client of a conversation; `None`: it has proven nothing.
    pub(super) async fn files(
        &self,
        dir: &File,
        trees: &dyn Trees,
        new: impl FnOnce(File) -> Files,
    ) -> Result<Option<Rc<Files>>> {
        let status = dir.open("status", OpenFlags::READ).await?.read(0, STATUS).await?;
        let Some(holder) = holder(&String::from_utf8_lossy(&status)) else { return Ok(None) };
        if let Some(files) = self.known(&holder) {
            return Ok(Some(files));
        }
        if self.0.borrow().len() >= TREES {
            return Err(Error::Remote(Errno::EAGAIN.into()));
        }
        let root = trees.root(holder.clone()).await?;
        // Perhaps another conversation of his was faster.
        let files = self.known(&holder).unwrap_or_else(|| {
            let files = Rc::new(new(root));
            self.0.borrow_mut().push((holder, files.clone()));
            files
        });
        Ok(Some(files))
    }

    fn known(&self, holder: &Holder) -> Option<Rc<Files>> {
        self.0.borrow().iter().find(|(of, _)| of == holder).map(|(_, files)| files.clone())
    }

    /// Closes what nobody has asked for in a while.
    pub(super) fn sweep(&self, now: Duration) {
        self.0.borrow_mut().retain(|(_, files)| {
            files.sweep(now);
            files.len() > 0 || Rc::strong_count(files) > 1
        });
    }

    /// How many files are kept.
    pub(super) fn len(&self) -> usize {
        self.0.borrow().iter().map(|(_, files)| files.len()).sum()
    }
}

/// `tls VERSION FINGERPRINT NAME`, in a line of a `status`.
fn holder(status: &str) -> Option<Holder> {
    let shown = status.lines().find_map(|line| line.strip_prefix("tls "))?;
    let mut words = shown.splitn(3, ' ').skip(1);
    let (hex, name) = (words.next()?, words.next()?);
    let mut fingerprint = [0; 32];
    if hex.len() != 64 || !hex.is_ascii() {
        return None;
    }
    for (byte, digits) in fingerprint.iter_mut().zip(hex.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(Holder { name: name.into(), fingerprint })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_found_in_a_status() {
        let hex = "0a".repeat(32);
        let status = |line: &str| format!("Established qin 0 qout 0 listen 0 in 1 out 2\n{line}\ntrace\n");
        let found = holder(&status(&format!("tls TLSv1.3 {hex} Alice of the lab")));
        assert_eq!(found, Some(Holder { name: "Alice of the lab".into(), fingerprint: [10; 32] }));
        for line in
            ["tls handshake", "tls TLSv1.3", "zstd 1", &format!("tls TLSv1.3 {hex}"), "tls TLSv1.3 zz x"]
        {
            assert_eq!(holder(&status(line)), None, "{line}");
        }
    }
}
