//! Trees of authenticated clients. A client authenticates by a certificate, which the module `tls` of its connection
//! has verified and reports in `status`.
//!
//! Always holds: a tree exists while a connection uses it or files of it are open; at most [`TREES`] trees exist.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use nine_io::client::{Error, File, Result};
use nine_net::Proof;
use nine_net::modules::proof_in;
use nine_proto::{Errno, OpenFlags};

use super::files::OpenFiles;

/// Maximum number of trees at once. Further clients get EAGAIN.
const TREES: usize = 1024;
/// Maximum number of bytes in a `status` that are parsed.
const STATUS: u32 = 8 << 10;

/// The source of the trees.
pub trait Trees: Send + Sync {
    /// Returns the root that the client with this proof sees.
    fn root(&self, proof: Proof) -> Pin<Box<dyn Future<Output = Result<File>>>>;
}

/// The trees in use.
#[derive(Default)]
pub(super) struct ProvenTrees(RefCell<Vec<(Proof, Rc<OpenFiles>)>>);

impl ProvenTrees {
    /// Returns the files of a connection's client. `None`: it has not authenticated.
    pub(super) async fn files(
        &self,
        dir: &File,
        trees: &dyn Trees,
        new: impl FnOnce(File) -> OpenFiles,
    ) -> Result<Option<Rc<OpenFiles>>> {
        let status = dir.open("status", OpenFlags::READ).await?.read(0, STATUS).await?;
        let proof = proof_in(&String::from_utf8_lossy(&status));
        if !proof.is_identity() {
            return Ok(None);
        }
        if let Some(files) = self.known(&proof) {
            return Ok(Some(files));
        }
        let root = trees.root(proof.clone()).await?;
        // Another connection of the client may have been faster.
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

    fn known(&self, proof: &Proof) -> Option<Rc<OpenFiles>> {
        self.0.borrow().iter().find(|(of, _)| of == proof).map(|(_, files)| files.clone())
    }

    /// Closes unused files, and drops trees without files and connections.
    pub(super) fn sweep(&self, now: Duration) {
        self.0.borrow_mut().retain(|(_, files)| {
            files.sweep(now);
            files.len() > 0 || Rc::strong_count(files) > 1
        });
    }
}
