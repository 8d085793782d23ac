//! What a mux keeps behind a client's fid: where it is in the name space, and the fid of an upstream that stands for it
//! (CFid and Fid of the seed, section 3.4.2).

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures_util::lock::Mutex as AsyncMutex;
use nine_io::client::{Client, File};
use nine_proto::{Fid, Qid};

use crate::named::Named;
use crate::qid::Qids;
use crate::space::{Head, Place};
use crate::union::Listing;
use crate::upstream::{Ident, Root};

/// One step of the way from the root of the name space, so that ".." leads back over mount points: lexically, as in
/// Pike's *Lexical File Names in Plan 9*.
pub(crate) struct Step {
    /// `None`: the root.
    pub(crate) parent: Option<Arc<Step>>,
    pub(crate) name: Box<[u8]>,
    /// What a Twstat has called it since.
    pub(crate) renamed: ArcSwapOption<Box<[u8]>>,
    /// Where the name leads if nothing is mounted there.
    pub(crate) covered: Place,
}

/// See the module. Never changes: an open makes a new one.
pub(crate) struct CFid {
    /// Who walks on from here: the name space, the user, the client.
    pub(crate) by: Arc<Walker>,
    pub(crate) step: Arc<Step>,
    /// The mount point it is, and which member of it `file` is.
    pub(crate) crossed: Option<(Arc<Head>, usize)>,
    pub(crate) root: Arc<Root>,
    pub(crate) file: Arc<File>,
    /// As the upstream says.
    pub(crate) raw: Qid,
    /// As clients see it.
    pub(crate) qid: Held,
    pub(crate) open: Option<Open>,
}

/// What all fids of one attach share.
pub(crate) struct Walker {
    pub(crate) named: Arc<Named>,
    pub(crate) ident: Arc<Ident>,
    /// Muxes that its requests have come over.
    pub(crate) hops: u8,
    /// The client's number: it chooses the lanes.
    pub(crate) client: u64,
}

/// How a fid is open.
pub(crate) enum Open {
    /// At the upstream.
    There,
    /// It is a directory that is read by us and not passed on: a union, or one with mount points in it.
    Here(AsyncMutex<Listing>),
}

/// The mapped qid of a file with a fid: unique while it lives.
pub(crate) struct Held {
    pub(crate) qid: Qid,
    qids: Arc<Qids>,
}

impl Held {
    pub(crate) fn new(qids: &Arc<Qids>, root: &Root, raw: Qid) -> Self {
        Self { qid: qids.hold(&root.tree.upstream.map, raw), qids: qids.clone() }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.qids.release(self.qid);
    }
}

impl Step {
    pub(crate) fn root(covered: Place) -> Arc<Self> {
        Arc::new(Self { parent: None, name: Box::default(), renamed: ArcSwapOption::empty(), covered })
    }

    pub(crate) fn child(parent: &Arc<Self>, name: &[u8], covered: Place) -> Arc<Self> {
        let (parent, renamed) = (Some(parent.clone()), ArcSwapOption::empty());
        Arc::new(Self { parent, name: name.into(), renamed, covered })
    }

    /// Its name now.
    pub(crate) fn called(&self) -> Box<[u8]> {
        self.renamed.load().as_ref().map_or_else(|| self.name.clone(), |name| Box::clone(name))
    }

    /// The way from the root, for messages.
    pub(crate) fn path(&self) -> String {
        let mut names = Vec::new();
        let mut step = self;
        while let Some(parent) = &step.parent {
            names.push(nine_proto::show(&step.name).to_string());
            step = parent;
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}

impl CFid {
    /// Where it really is.
    pub(crate) fn place(&self) -> &Place {
        match &self.crossed {
            Some((head, member)) => &head.members[*member].to,
            None => &self.step.covered,
        }
    }

    /// Whether it stands for several directories.
    pub(crate) fn is_union(&self) -> bool {
        self.crossed.as_ref().is_some_and(|(head, _)| head.members.len() > 1)
    }

    pub(crate) fn client(&self) -> &Arc<Client> {
        &self.root.client
    }

    pub(crate) fn fid(&self) -> Fid {
        self.file.fid()
    }

    /// A qid of the same upstream as clients see it.
    pub(crate) fn map(&self, raw: Qid) -> Qid {
        if raw.path == self.raw.path {
            return Qid { path: self.qid.qid.path, ..raw };
        }
        self.qid.qids.map(&self.root.tree.upstream.map, raw)
    }
}
