//! The mux's state of a client's fid: its position in the name space, and the upstream's fid that represents it (CFid
//! and Fid of the seed, section 3.4.2).

use std::collections::HashMap;
use std::ops::Deref;
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use futures_util::lock::Mutex as AsyncMutex;
use nine_io::Direct;
use nine_io::changes::Path;
use nine_io::client::{Error, File};
use nine_io::limits::{ClientPrincipal, FairShare};
use nine_proto::{Errno, OpenFlags, Qid};

use crate::ahead::FidReadAhead;
use crate::core::refused;
use crate::keep::ReconnectableFid;
use crate::named::NamedSpace;
use crate::qid::QidAllocator;
use crate::space::{MountPoint, TreeId, TreePath};
use crate::union::UnionListing;
use crate::upstream::{HOPS, HOPS_MAX, TreeRoot, UserIdentity};

/// One step of the path from the root of the name space, so that ".." leads back over mount points. Names are lexical,
/// as in Pike's *Lexical File Names in Plan 9*.
pub(crate) struct PathStep {
    /// `None` for the root.
    pub(crate) parent: Option<Arc<PathStep>>,
    /// The new name, if a Twstat has renamed it since.
    pub(crate) renamed: ArcSwapOption<Box<[u8]>>,
    /// The place of the name if nothing is mounted there. Its last name is the one that was walked.
    pub(crate) covered: TreePath,
}

/// A client's fid. Immutable except for the replacement of `first` after a reconnection. An open creates a new one.
pub(crate) struct ClientFid {
    /// The name space, the user and the client for further walks.
    pub(crate) by: Arc<AttachContext>,
    pub(crate) step: Arc<PathStep>,
    /// The mount point of the fid, and the index of the member that has its file.
    pub(crate) crossed: Option<(Arc<MountPoint>, usize)>,
    /// The upstream's fid until its connection ends.
    pub(crate) first: UpstreamFid,
    /// Set if the server of this mount point was away during the walk: `first` is then the covered file.
    pub(crate) away: Option<Box<AwayMount>>,
    /// The qid that clients see.
    pub(crate) qid: MappedQid,
    pub(crate) open: Option<OpenFidKind>,
    /// State for reconnection, if the mount reconnects.
    pub(crate) kept: Option<Box<ReconnectableFid>>,
    /// State for reading ahead, if the mount reads ahead.
    pub(crate) ahead: Option<Arc<FidReadAhead>>,
    /// The open file itself, if its server is in this process.
    pub(crate) direct: Option<Arc<dyn Direct>>,
    /// The charge for its upstream fid.
    pub(crate) share: FairShare,
}

/// A mount point whose server was away during the walk to it. Until the server answers, the fid has the attributes of
/// the covered file. All other requests go to the server, and wait or fail as the mount requests.
pub(crate) struct AwayMount {
    pub(crate) head: Arc<MountPoint>,
    arrived: ArcSwapOption<ArrivedMount>,
}

/// The mounted file, and the index of its member.
struct ArrivedMount {
    live: Arc<UpstreamFid>,
    member: usize,
}

impl AwayMount {
    pub(crate) fn new(head: Arc<MountPoint>) -> Box<Self> {
        Box::new(Self { head, arrived: ArcSwapOption::empty() })
    }

    /// Stores the mounted file after the server has answered. If there are several callers, the first one wins.
    pub(crate) fn arrive(&self, live: UpstreamFid, member: usize) {
        let new = Arc::new(ArrivedMount { live: Arc::new(live), member });
        self.arrived.rcu(|now| Some(now.as_ref().filter(|now| !self.is_lost(now)).unwrap_or(&new).clone()));
    }

    fn arrived(&self) -> Option<Arc<ArrivedMount>> {
        self.arrived.load_full().filter(|now| !self.is_lost(now))
    }

    /// Whether the connection has ended, so that the server is away again. Never for a union, which keeps its member:
    /// requests read the member and the file one after the other.
    fn is_lost(&self, now: &ArrivedMount) -> bool {
        self.head.members.len() == 1 && now.live.root.client.dead().is_some()
    }
}

/// A fid of an upstream.
#[derive(Clone)]
pub(crate) struct UpstreamFid {
    pub(crate) root: Arc<TreeRoot>,
    pub(crate) file: Arc<File>,
    /// The upstream's qid.
    pub(crate) raw: Qid,
}

/// The upstream's fid that represents a client's fid now.
pub(crate) enum CurrentFid<'c> {
    First(&'c UpstreamFid),
    Later(Arc<UpstreamFid>),
}

impl CurrentFid<'_> {
    /// Returns the later fid, for a caller that must not look it up again.
    pub(crate) fn later(self) -> Option<Arc<UpstreamFid>> {
        match self {
            Self::First(_) => None,
            Self::Later(live) => Some(live),
        }
    }
}

impl Deref for CurrentFid<'_> {
    type Target = UpstreamFid;

    fn deref(&self) -> &UpstreamFid {
        match self {
            Self::First(live) => live,
            Self::Later(live) => live,
        }
    }
}

/// The context that all fids of one attach share.
#[derive(Clone)]
pub(crate) struct AttachContext {
    pub(crate) named: Arc<NamedSpace>,
    pub(crate) ident: Arc<UserIdentity>,
    /// Number of muxes that its requests have passed.
    pub(crate) hops: u8,
    /// The client's number, which selects the upstream connection.
    pub(crate) client: u64,
    /// The party that its fids are charged to.
    pub(crate) principal: ClientPrincipal,
    /// The path that the client attached to.
    pub(crate) base: Path,
    /// The trees that a draft does not wait for.
    pub(crate) unreached: Option<Arc<UnreachedTrees>>,
}

/// Trees whose servers did not answer a first contact, each with the error.
pub(crate) type UnreachedTrees = HashMap<TreeId, Error>;

/// The kind of an open fid.
pub(crate) enum OpenFidKind {
    /// Opened at the upstream with these flags.
    There(OpenFlags),
    /// An extended attribute of a file, for reading or writing.
    Attribute,
    /// A directory that the mux lists itself: a union, or a directory with mount points. Boxed because most fids are
    /// files.
    Here(Box<AsyncMutex<UnionListing>>),
}

/// The mapped qid of a file with a fid, unique among the live fids.
pub(crate) struct MappedQid {
    pub(crate) qid: Qid,
    qids: Arc<QidAllocator>,
}

impl MappedQid {
    pub(crate) fn new(qids: &Arc<QidAllocator>, root: &TreeRoot, raw: Qid) -> Self {
        root.tree.upstream.ahead.seen(root, raw, None);
        Self { qid: qids.hold(root.map(), raw), qids: qids.clone() }
    }
}

impl Drop for MappedQid {
    fn drop(&mut self) {
        self.qids.release(self.qid);
    }
}

impl PathStep {
    pub(crate) fn root(covered: TreePath) -> Arc<Self> {
        Arc::new(Self { parent: None, renamed: ArcSwapOption::empty(), covered })
    }

    pub(crate) fn child(parent: &Arc<Self>, covered: TreePath) -> Arc<Self> {
        Arc::new(Self { parent: Some(parent.clone()), renamed: ArcSwapOption::empty(), covered })
    }

    /// Returns the step for the place to which it has moved, from the same mount point.
    fn moved(&self, covered: TreePath) -> Arc<Self> {
        let mut top = self;
        while let Some(parent) = top.parent.as_deref()
            && top.covered == parent.covered.child(top.name())
        {
            top = parent;
        }
        let (mut step, mut place) = match &top.parent {
            Some(mount) => (mount.clone(), top.covered.parent()),
            None => (Self::root(top.covered.clone()), top.covered.clone()),
        };
        if !covered.is_within(&place) {
            let (parent, renamed) = (self.parent.clone(), ArcSwapOption::empty());
            return Arc::new(Self { parent, renamed, covered });
        }
        for name in &covered.names()[place.names().len()..] {
            place = place.child(name);
            step = Self::child(&step, place.clone());
        }
        step
    }

    /// Returns the name that was walked.
    pub(crate) fn name(&self) -> &[u8] {
        self.covered.name()
    }

    /// Returns its present name.
    pub(crate) fn called(&self) -> Box<[u8]> {
        self.renamed.load().as_ref().map_or_else(|| self.name().into(), |name| Box::clone(name))
    }

    /// Formats the path from the root, for messages.
    pub(crate) fn path(&self) -> String {
        let mut names = Vec::new();
        let mut step = self;
        while let Some(parent) = &step.parent {
            names.push(nine_proto::show(step.name()).to_string());
            step = parent;
        }
        names.reverse();
        format!("/{}", names.join("/"))
    }
}

impl ClientFid {
    /// Decodes the walk of another mux that sends its number of hops: see [`HOPS`].
    pub(crate) fn hops(&self, names: &[&[u8]]) -> Option<Result<u8, Error>> {
        let [name] = names else { return None };
        let hops = std::str::from_utf8(name).ok()?.strip_prefix(HOPS)?.parse().ok()?;
        if self.step.parent.is_some() {
            return None;
        }
        Some(if hops > HOPS_MAX {
            Err(refused(Errno::ELOOP, "the mounts lead round in a loop"))
        } else {
            Ok(hops)
        })
    }

    /// Returns its present place. Follows moves after the walk if its tree records them.
    pub(crate) fn place(&self) -> TreePath {
        match (&self.kept, self.crossed_first()) {
            (Some(kept), _) => kept.place(&self.first.root.tree),
            (None, Some((head, member))) => head.members[member].to.clone(),
            (None, None) => self.step.covered.clone(),
        }
    }

    /// Returns its step, corrected for moves in the same way.
    pub(crate) fn step(&self) -> Arc<PathStep> {
        let place = self.kept.as_ref().filter(|_| self.crossed.is_none()).map(|_| self.place());
        match place {
            Some(covered) if covered != self.step.covered => self.step.moved(covered),
            _ => self.step.clone(),
        }
    }

    /// Returns its mount point, with the present places of the members.
    pub(crate) fn crossed(&self) -> Option<(Arc<MountPoint>, usize)> {
        let (head, held) = self.crossed_first()?;
        let Some(kept) = &self.kept else { return Some((head, held)) };
        let mut now = MountPoint::clone(&head);
        let many = now.members.len() > 1;
        for member in &mut now.members {
            member.to = if many { kept.moved(&self.first.root.tree, &member.to) } else { self.place() };
        }
        Some((if now == *head { head } else { Arc::new(now) }, held))
    }

    /// Returns its mount point, with the places that the members had during the walk.
    fn crossed_first(&self) -> Option<(Arc<MountPoint>, usize)> {
        match &self.away {
            Some(away) => away.arrived().map(|now| (away.head.clone(), now.member)),
            None => self.crossed.clone(),
        }
    }

    /// Returns the mount point if its server is away.
    pub(crate) fn away(&self) -> Option<&AwayMount> {
        self.away.as_deref().filter(|away| away.arrived().is_none())
    }

    /// Whether it is a mount point. It is the mounted file, or the covered file while the server is away.
    pub(crate) fn is_mount(&self) -> bool {
        self.away.is_some() || self.crossed.is_some()
    }

    /// Whether it represents several directories.
    pub(crate) fn is_union(&self) -> bool {
        self.crossed_first().is_some_and(|(head, _)| head.members.len() > 1)
    }

    /// Returns the upstream's fid that represents it now.
    pub(crate) fn live(&self) -> CurrentFid<'_> {
        let arrived = || self.away.as_ref()?.arrived().map(|now| now.live.clone());
        match self.kept.as_ref().and_then(|kept| kept.now()).or_else(arrived) {
            Some(live) => CurrentFid::Later(live),
            None => CurrentFid::First(&self.first),
        }
    }

    pub(crate) fn is_dir(&self) -> bool {
        self.first.raw.is_dir()
    }

    /// Converts an upstream's qid to the qid that clients see.
    pub(crate) fn map(&self, live: &UpstreamFid, raw: Qid) -> Qid {
        if raw.path == live.raw.path {
            return Qid { path: self.qid.qid.path, ..raw };
        }
        self.qid.qids.map(live.root.map(), raw)
    }
}
