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
use nine_net::Proof;
use nine_net::modules::proof_in;
use nine_proto::{Errno, OpenFlags};

use super::files::Files;

/// Trees at once. With more, those that come are told that there is no room.
const TREES: usize = 1024;
/// Bytes of a `status` that are looked at.
const STATUS: u32 = 8 << 10;

/// Whose trees there are.
pub trait Trees: Send + Sync {
    /// The root of what is seen by who has proven this.
    fn root(&self, proof: Proof) -> Pin<Box<dyn Future<Output = Result<File>>>>;
}

/// Those that have been asked for.
#[derive(Default)]
pub(super) struct Proven(RefCell<Vec<(Proof, Rc<Files>)>>);

impl Proven {
    /// The files of the client of a conversation; `None`: it has proven nothing.
    pub(super) async fn files(
        &self,
        dir: &File,
        trees: &dyn Trees,
        new: impl FnOnce(File) -> Files,
    ) -> Result<Option<Rc<Files>>> {
        let status = dir.open("status", OpenFlags::READ).await?.read(0, STATUS).await?;
        let proof = proof_in(&String::from_utf8_lossy(&status));
        if !proof.is_identity() {
            return Ok(None);
        }
        if let Some(files) = self.known(&proof) {
            return Ok(Some(files));
        }
        let root = trees.root(proof.clone()).await?;
        // Perhaps another conversation of his was faster.
        if let Some(files) = self.known(&proof) {
            return Ok(Some(files));
        }
        if self.0.borrow().len() >= TREES {
            return Err(Error::Remote(Errno::EAGAIN.into()));
        }
        let files = Rc::new(new(root));
        self.0.borrow_mut().push((proof, files.clone()));
        Ok(Some(files))
    }

    fn known(&self, proof: &Proof) -> Option<Rc<Files>> {
        self.0.borrow().iter().find(|(of, _)| of == proof).map(|(_, files)| files.clone())
    }

    /// Closes what nobody has asked for in a while.
    pub(super) fn sweep(&self, now: Duration) {
        self.0.borrow_mut().retain(|(_, files)| {
            files.sweep(now);
            files.len() > 0 || Rc::strong_count(files) > 1
        });
    }
}
