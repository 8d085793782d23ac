//! The present state of a mux, for people and their tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nine_io::client::Error;

use crate::Mux;
use crate::core::MuxCore;
use crate::space::{MountPoint, show_path};
use crate::upstream::{Server, UpstreamConnection, UpstreamServer};

/// Mounts, connections and in-flight requests.
#[derive(Clone, Debug)]
pub struct Status {
    /// Sorted by name space, then by mount point, in search order of the members.
    pub mounts: Vec<MountStatus>,
    /// Sorted by number.
    pub upstreams: Vec<UpstreamStatus>,
    /// Number of requests passed on as one message, since the start.
    pub forwarded: u64,
    /// Number of requests that took several steps, since the start.
    pub jobs: u64,
    /// Number of such requests in progress.
    pub jobs_now: usize,
    /// Largest number of overdue Rflushes on one connection so far.
    pub forsaken: u64,
    /// Bytes reserved for read-ahead now, at most [`AHEAD_MAX`](crate::AHEAD_MAX).
    pub ahead: usize,
}

/// One member of a mount point.
#[derive(Clone, Debug)]
pub struct MountStatus {
    /// The name space.
    pub space: Box<str>,
    /// The mount point, as the call named it.
    pub old: Arc<str>,
    /// The mounted or bound file, as the call named it.
    pub what: Arc<str>,
    /// Identifies the mount point: equal only for its members.
    pub head: String,
    /// The name of its server.
    pub server: Arc<str>,
    /// The number that the call returned. 0 for the covered directory itself, in a union.
    pub id: u64,
    /// Whether new files may be created in it.
    pub create: bool,
    /// Whether it is one of several members.
    pub union: bool,
    /// Whether a name that several members have is listed for each of them.
    pub duplicates: bool,
    /// The server and the path on it.
    pub from: String,
}

/// One server.
#[derive(Clone, Debug)]
pub struct UpstreamStatus {
    /// Its number.
    pub id: u32,
    /// Its address.
    pub name: Arc<str>,
    /// The modules on its connections, the top one last.
    pub modules: Vec<String>,
    /// Number of dials.
    pub dials: u32,
    /// Bytes of served reads that were requested ahead.
    pub ahead_served: u64,
    /// Bytes that were requested ahead in vain.
    pub ahead_dropped: u64,
    /// Its present and former connections.
    pub connections: Vec<ConnectionStatus>,
}

/// One connection to a server.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// The dialect. `None` if the connection has ended.
    pub dialect: Option<&'static str>,
    /// Number of in-flight requests.
    pub calls: usize,
    /// Number of abandoned requests among them.
    pub orphans: usize,
    /// Number of fids that the server has for us.
    pub fids: u32,
    /// Duration of the latest attach, in microseconds; 0 if unknown.
    pub rtt_us: u64,
    /// Number of fids to restore after a reconnection.
    pub kept: usize,
    /// Number of requests that wait for a reconnection.
    pub waiting: usize,
    /// The reason why it is still away.
    pub away: Option<String>,
}

impl UpstreamStatus {
    /// Iterates over the live connections.
    pub fn live(&self) -> impl Iterator<Item = &ConnectionStatus> {
        self.connections.iter().filter(|connection| connection.dialect.is_some())
    }

    /// Returns the dialect of a live connection.
    pub fn dialect(&self) -> Option<&'static str> {
        self.live().find_map(|connection| connection.dialect)
    }

    /// Returns the longest duration of the connections' latest attaches, in microseconds; 0 if unknown.
    pub fn rtt_us(&self) -> u64 {
        self.live().map(|connection| connection.rtt_us).max().unwrap_or(0)
    }

    /// Returns the reason why a connection is still away.
    pub fn away(&self) -> Option<&str> {
        self.connections.iter().find_map(|connection| connection.away.as_deref())
    }
}

impl Mux {
    /// Returns the present state.
    pub fn status(&self) -> Status {
        let core = &self.0;
        let mut mounts = Vec::new();
        for named in core.all_named() {
            for head in named.space().heads() {
                mounts.extend(mounts_of(core, &named.name, head));
            }
        }
        Status {
            mounts,
            upstreams: core.upstreams().iter().map(|upstream| of_upstream(upstream)).collect(),
            forwarded: core.counts.forwarded.load(Ordering::Relaxed),
            jobs: core.counts.jobs.load(Ordering::Relaxed),
            jobs_now: core.jobs.len(),
            forsaken: core.counts.forsaken.load(Ordering::Relaxed),
            ahead: core.ahead.reserved(),
        }
    }

    /// Closes the connections to a server. Requests that wait for a reply fail with `reason`, and the next walk there
    /// dials again. Returns false if there is no such server.
    pub fn hangup(&self, server: &str, reason: &str) -> bool {
        let all = self.0.upstreams();
        let found = all.iter().find(|upstream| *upstream.server.name == *server);
        found.inspect(|upstream| upstream.abort(reason)).is_some()
    }

    /// Pushes `NAME ARGUMENTS` on all connections to a server, present and future. A module that needs both ends is
    /// pushed at both.
    ///
    /// # Errors
    /// It is not a module, or one of the present connections refuses it. Then nothing has changed.
    pub async fn push(&self, server: &Server, module: &str) -> Result<(), Error> {
        self.0.push(server, module).await
    }

    /// Pops the module that was pushed last on the connections to a server.
    ///
    /// # Errors
    /// There is no module, or an in-flight request does not end. Then nothing has changed.
    pub async fn pop(&self, server: &Arc<str>) -> Result<(), Error> {
        self.0.pop(server).await
    }

    /// Returns the servers with modules on their connections, mounted or not, and the modules, the top one last.
    pub fn pushed(&self) -> Vec<(Arc<str>, Vec<String>)> {
        self.0.pushed.all()
    }

    /// Returns the configuration of a mounted server.
    pub fn server(&self, name: &str) -> Option<Server> {
        let all = self.0.upstreams();
        all.iter().find(|upstream| *upstream.server.name == *name).map(|upstream| upstream.server.clone())
    }
}

fn mounts_of(core: &MuxCore, space: &str, head: &MountPoint) -> Vec<MountStatus> {
    let one = |member: &crate::space::MountMember| {
        let tree = core.tree_of(member.to.tree);
        let server = tree.as_ref().map_or("?".into(), |tree| tree.upstream.server.name.clone());
        MountStatus {
            space: space.into(),
            old: head.old.clone(),
            what: member.what.clone(),
            head: format!("{} {}", head.from.tree.0, show_path(&head.from.path)),
            server: server.clone(),
            id: member.id,
            create: member.create,
            union: head.members.len() > 1,
            duplicates: head.duplicates,
            from: format!("{server} {}", show_path(&member.to.path)),
        }
    };
    head.members.iter().map(one).collect()
}

fn of_upstream(upstream: &UpstreamServer) -> UpstreamStatus {
    UpstreamStatus {
        id: upstream.id,
        name: upstream.server.name.clone(),
        modules: upstream.pushed.try_lock().map_or_else(|| vec!["(changing)".into()], |words| words.clone()),
        dials: upstream.dials.load(Ordering::Relaxed),
        ahead_served: upstream.ahead.served.load(Ordering::Relaxed),
        ahead_dropped: upstream.ahead.dropped.load(Ordering::Relaxed),
        connections: upstream.lanes().iter().map(|lane| of_lane(lane)).collect(),
    }
}

fn of_lane(lane: &UpstreamConnection) -> ConnectionStatus {
    let client = lane.client();
    let (calls, orphans) = client.as_ref().map_or((0, 0), |client| client.under_way());
    let (kept, waiting, away) = lane.keeping.seen();
    ConnectionStatus {
        dialect: client.as_ref().map(|client| client.dialect().name()),
        calls,
        orphans,
        fids: client.as_ref().map_or(0, |client| client.fids()),
        rtt_us: lane.rtt_us.load(Ordering::Relaxed),
        kept,
        waiting,
        away,
    }
}
