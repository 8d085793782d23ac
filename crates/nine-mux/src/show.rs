//! A mux as it is now, for people and their tools.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use nine_io::client::Error;

use crate::Mux;
use crate::core::Core;
use crate::space::{Head, show_path};
use crate::upstream::{Lane, Server, Upstream};

/// What is mounted where, who is connected to what, and what is under way.
#[derive(Clone, Debug)]
pub struct Status {
    /// By name space, then by mount point, in the order in which members are searched.
    pub mounts: Vec<MountStatus>,
    /// By number.
    pub upstreams: Vec<UpstreamStatus>,
    /// Requests passed on as they came, since the beginning.
    pub forwarded: u64,
    /// Requests that took several steps, since the beginning.
    pub jobs: u64,
    /// Such requests under way.
    pub jobs_now: usize,
    /// The most Rflushes that were overdue at one upstream.
    pub forsaken: u64,
    /// Bytes that may be asked for ahead now, at most [`AHEAD_MAX`](crate::AHEAD_MAX).
    pub ahead: usize,
}

/// One member of a mount point.
#[derive(Clone, Debug)]
pub struct MountStatus {
    /// The name space.
    pub space: Box<str>,
    /// The mount point, in the words of the call.
    pub old: Arc<str>,
    /// What is seen there, in the words of the call.
    pub what: Arc<str>,
    /// The same for the members of one mount point only.
    pub head: String,
    /// The server it is on.
    pub server: Arc<str>,
    /// What the call returned; 0: the directory itself, in a union.
    pub id: u64,
    /// New files may be made in it.
    pub create: bool,
    /// It is one of several.
    pub union: bool,
    /// A name that several members have is listed for each of them.
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
    /// What is pushed on its connections, the top one last.
    pub modules: Vec<String>,
    /// Connections that were tried.
    pub dials: u32,
    /// Bytes that answered reads and were asked for before them.
    pub ahead_served: u64,
    /// Bytes that were asked for ahead and in vain.
    pub ahead_dropped: u64,
    /// Connections that are there, or were.
    pub connections: Vec<ConnectionStatus>,
}

/// One connection to a server.
#[derive(Clone, Debug)]
pub struct ConnectionStatus {
    /// What is spoken; `None`: it is gone.
    pub dialect: Option<&'static str>,
    /// Requests under way.
    pub calls: usize,
    /// Among them such that nobody waits for.
    pub orphans: usize,
    /// Fids that the server has for us.
    pub fids: u32,
    /// How long the latest attach took, microseconds; 0: not known.
    pub rtt_us: u64,
    /// Fids that come back with it.
    pub kept: usize,
    /// Requests that wait until it is back.
    pub waiting: usize,
    /// Why it is not back yet.
    pub away: Option<String>,
}

impl UpstreamStatus {
    /// The connections that are there.
    pub fn live(&self) -> impl Iterator<Item = &ConnectionStatus> {
        self.connections.iter().filter(|connection| connection.dialect.is_some())
    }

    /// What is spoken.
    pub fn dialect(&self) -> Option<&'static str> {
        self.live().find_map(|connection| connection.dialect)
    }

    /// How long the latest attaches took, the longest; 0: not known.
    pub fn rtt_us(&self) -> u64 {
        self.live().map(|connection| connection.rtt_us).max().unwrap_or(0)
    }

    /// Why a connection is not back yet.
    pub fn away(&self) -> Option<&str> {
        self.connections.iter().find_map(|connection| connection.away.as_deref())
    }
}

impl Mux {
    /// As it is now.
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

    /// Ends the connections to a server: what waits for it learns `reason`, and the next walk there dials anew.
    /// `false`: there is no such server.
    pub fn hangup(&self, server: &str, reason: &str) -> bool {
        let all = self.0.upstreams();
        let found = all.iter().find(|upstream| *upstream.server.name == *server);
        found.inspect(|upstream| upstream.abort(reason)).is_some()
    }

    /// Pushes `NAME ARGUMENTS` on every connection to a server, now and later: at both ends, where one alone would not
    /// do.
    ///
    /// # Errors
    /// It is no module, or one of the connections that there are does not take it: then nothing has changed.
    pub async fn push(&self, server: &Server, module: &str) -> Result<(), Error> {
        self.0.push(server, module).await
    }

    /// Pops what was pushed last on the connections to a server.
    ///
    /// # Errors
    /// There is nothing, or something is under way that does not end: then nothing has changed.
    pub async fn pop(&self, server: &Arc<str>) -> Result<(), Error> {
        self.0.pop(server).await
    }

    /// Servers on whose connections something is pushed, mounted or not, and what, the top one last.
    pub fn pushed(&self) -> Vec<(Arc<str>, Vec<String>)> {
        self.0.pushed.all()
    }

    /// What is known of a server that is mounted.
    pub fn server(&self, name: &str) -> Option<Server> {
        let all = self.0.upstreams();
        all.iter().find(|upstream| *upstream.server.name == *name).map(|upstream| upstream.server.clone())
    }
}

fn mounts_of(core: &Core, space: &str, head: &Head) -> Vec<MountStatus> {
    let one = |member: &crate::space::Mount| {
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

fn of_upstream(upstream: &Upstream) -> UpstreamStatus {
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

fn of_lane(lane: &Lane) -> ConnectionStatus {
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
