//! A mux that is controlled by statements and presented as files: name space files, and `/mux`.
//!
//! ```text
//! /mux/ctl               read: what may be written; written by the owner: lines of a script
//! /mux/mounts            lines of a script that restores the name space
//! /mux/pending           lines that wait for a server, and why
//! /mux/clients           the clients: a line of column names, then a line for each, separated by tabs
//! /mux/metrics           figures of the servers, for Prometheus
//! /mux/servers/N/status  a server: its address, connections, pending calls
//! /mux/servers/N/trace   the messages recorded by its module `trace`, only for the owner
//! ```
//!
//! In: [`Statement`]s, and [`Kinds`], which interprets SERVER words. Out: a changed name space; the files.
//!
//! Always holds: only the owner can write, and only the owner sees other name spaces and other users' connections.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use nine_io::audit;
use nine_io::client::Error;
use nine_io::server::{ClientStatus, Core as Clients};
use nine_io::synth::{Ask, Dir, File, Node, Tree, Visitor};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Dialect, Errno, show};

use crate::cfid::{AttachContext, UnreachedTrees};
use crate::core::{is_away, refused};
use crate::made::{CallRecord, StatementCall};
use crate::named::NamedSpace;
use crate::pending::{PathAliases, PendingStatement, forget, undo};
use crate::script::{self, Alone, Mount, Statement, User, quote};
use crate::show::{MountStatus, UpstreamStatus};
use crate::space::{Flags, Order, names_of};
use crate::upstream::{As, RETRY, Server, UpstreamTree, is_owner};
use crate::{Local, MAIN, Mux, Owner, Space, metrics};

/// The interpretation of a script's words by the program that runs the mux.
pub trait Kinds: Send + Sync + 'static {
    /// Returns the server of a word, and the word as it is displayed: complete, but without secrets. `Err` is a message
    /// for the user.
    fn server(&self, word: &str) -> Result<(Server, String), String>;

    /// Returns the user to attach with if the line names none.
    fn user(&self) -> As;

    /// Creates a tree in memory as the base of a name space other than [`MAIN`].
    fn backbone(&self, space: &str) -> Server;
}

/// The running mux and its statements. Clones share their state.
#[derive(Clone)]
pub struct Live(Arc<LiveState>);

/// New values of all name spaces, prepared beside the present ones until [`Draft::replace`]. Dropping the draft before
/// that changes nothing.
pub struct Draft {
    live: Live,
    named: BTreeMap<Arc<str>, Arc<NamedSpace>>,
    spaces: BTreeMap<Arc<str>, Vec<String>>,
    record: CallRecord,
    /// The running mounts that lines of the draft have claimed, by name space. The draft mounts their servers again.
    claimed: BTreeMap<Box<str>, BTreeSet<u64>>,
    pending: Vec<PendingStatement>,
    contacts: DraftContacts,
    /// Number of modules that its lines have named, by server.
    pushed: HashMap<Arc<str>, usize>,
}

/// The first contacts of a draft.
#[derive(Default)]
struct DraftContacts {
    /// The mounts that were contacted and are not executed yet: their lines and servers.
    servers: Vec<(Box<str>, Mount, (Server, String))>,
    /// Their trees.
    trees: Vec<Arc<UpstreamTree>>,
    /// The trees whose servers did not answer.
    unreached: Arc<UnreachedTrees>,
    /// The server of the latest mount that failed.
    failed: Option<(Server, String)>,
}

struct LiveState {
    mux: Mux,
    owner: Owner,
    kinds: Box<dyn Kinds>,
    /// The connected clients.
    clients: Clients,
    /// The statements in effect.
    record: Mutex<CallRecord>,
    pending: Mutex<Vec<PendingStatement>>,
    /// Whether a job retries them.
    retries: AtomicBool,
    /// Name spaces other than [`MAIN`], and their users.
    spaces: Mutex<BTreeMap<Arc<str>, Vec<String>>>,
    /// The result of the latest message to `ctl`.
    latest: Mutex<String>,
}

impl Live {
    /// Creates a controller without mounts. `clients` is the core that serves the mux to its clients.
    pub fn new(mux: Mux, owner: Owner, kinds: impl Kinds, clients: Clients) -> Self {
        let (record, pending, retries) = Default::default();
        let (spaces, latest, kinds) = (Mutex::default(), Mutex::default(), Box::new(kinds));
        Self(Arc::new(LiveState { mux, owner, kinds, clients, record, pending, retries, spaces, latest }))
    }

    /// Whether there is a name space of this name.
    fn has(&self, space: &str) -> bool {
        space == MAIN || lock(&self.0.spaces).contains_key(space)
    }

    /// Executes a statement in a name space.
    ///
    /// # Errors
    /// A server refuses, a path does not exist, or a server on a path does not answer.
    pub async fn apply(&self, space: &str, statement: &Statement) -> Result<(), Error> {
        self.done(space, statement).await.map(drop)
    }

    /// Like [`Live::apply`]. Returns the error of a mounted server that does not answer now.
    async fn done(&self, space: &str, statement: &Statement) -> Result<Option<Error>, Error> {
        self.done_on(self.0.mux.space(space, self.0.owner.clone()), space, statement).await
    }

    async fn done_on(
        &self,
        changed: Space,
        space: &str,
        statement: &Statement,
    ) -> Result<Option<Error>, Error> {
        let state = &*self.0;
        match statement {
            Statement::Mount(mount) => {
                let named = state.kinds.server(&mount.server).map_err(invalid)?;
                return self.mounted(&changed, space, mount, named).await;
            }
            Statement::Bind { flags, new, old } => {
                let (id, made) = bound(&changed, statement, new, old, *flags).await?;
                lock(&state.record).insert(space, &changed.by.named.space(), id, made);
            }
            Statement::Unmount { new, old } => {
                let forgotten = forget(&mut lock(&state.pending), space, new.as_deref(), old);
                let call = {
                    let mut record = lock(&state.record);
                    record.prune(space, &changed.by.named.space());
                    new.as_ref().and_then(|new| record.call(space, new, old))
                };
                unmount(&changed, forgotten, call, new.as_deref(), old).await?;
            }
            Statement::Hangup { server } => {
                let name = lock(&state.record).server(space, server);
                let name = name.unwrap_or_else(|| server.as_str().into());
                if !state.mux.hangup(&name, "hung up by the owner of the mux") {
                    return Err(invalid(format!("{server} is no server here; /mux/mounts names them")));
                }
            }
            Statement::Push { server, module } => {
                state.mux.push(&self.named(space, server)?, module).await?;
            }
            Statement::Pop { server } => state.mux.pop(&self.named(space, server)?.name).await?,
            Statement::Space { users } => {
                let is_new = lock(&state.spaces).insert(space.into(), users.clone()).is_none();
                if is_new && space != MAIN {
                    let root = state.kinds.backbone(space);
                    let user = As::User { name: Box::default(), uid: None };
                    changed.mount(root, "", &user, "/", Flags::REPLACE.with_create()).await?;
                }
                changed.for_users(&users.iter().map(String::as_str).collect::<Vec<_>>());
            }
            Statement::Listen { .. }
            | Statement::Web { .. }
            | Statement::Console { .. }
            | Statement::NoListen
            | Statement::NoMux => {
                return Err(invalid("it stands only in a name space file, and counts at the start".into()));
            }
        }
        Ok(None)
    }

    /// Mounts a server. Returns the error if it does not answer now.
    async fn mounted(
        &self,
        changed: &Space,
        space: &str,
        mount: &Mount,
        named: (Server, String),
    ) -> Result<Option<Error>, Error> {
        let (id, made, away) = self.0.mount(changed, mount, named).await?;
        lock(&self.0.record).insert(space, &changed.by.named.space(), id, made);
        Ok(away)
    }

    /// Executes a statement from a message to `/mux/ctl`. Refuses a statement that changes or hides `/mux`.
    async fn ordered(&self, space: &str, statement: &Statement) -> Result<Option<Error>, Error> {
        let (old, flags) = match statement {
            Statement::Mount(mount) => (&mount.old, Some(mount.flags)),
            Statement::Bind { old, flags, .. } => (old, Some(*flags)),
            Statement::Unmount { old, .. } => (old, None),
            _ => return self.done(space, statement).await,
        };
        if names_of(old).first() == Some(&&b"mux"[..]) {
            let text = format!("{old}: this is where the name space is changed, and stays as it is");
            return Err(refused(Errno::EBUSY, &text));
        }
        let on = self.0.mux.space(space, self.0.owner.clone());
        let before = on.by.named.space();
        let done = self.done(space, statement).await?;
        let hides = names_of(old).is_empty() && flags.is_some_and(|flags| flags.order == Order::Replace);
        if hides && let Err(error) = self.mount_files(space, self.0.mux.0.outside.wall().await).await {
            on.core.restore(&on.by, &before)?;
            let text =
                format!("there would be no /mux ({error}): make a directory `mux` there, or say -a or -b");
            return Err(refused(Errno::EBUSY, &text));
        }
        Ok(done)
    }

    /// Starts a draft of all name spaces.
    pub fn draft(&self) -> Draft {
        let named = self.0.mux.0.all_named();
        lock(&self.0.record).prune_all(named.iter().map(|named| (&*named.name, named.space())));
        let (named, spaces, record, claimed, pending, pushed) = Default::default();
        let contacts = DraftContacts::default();
        let mut draft =
            Draft { live: self.clone(), named, spaces, record, claimed, pending, contacts, pushed };
        draft.space(MAIN);
        draft
    }

    /// Returns the server that is mounted by this word, or the one that the word stands for.
    fn named(&self, space: &str, word: &str) -> Result<Server, Error> {
        let name = lock(&self.0.record).server(space, word);
        match name.and_then(|name| self.0.mux.server(&name)) {
            Some(server) => Ok(server),
            None => self.0.kinds.server(word).map(|(server, _)| server).map_err(invalid),
        }
    }

    /// Mounts the files on `/mux`. `wall` is the time since 1970, which becomes their time.
    pub async fn mount_files(&self, space: &str, wall: Duration) -> Result<(), Error> {
        self.mount_files_on(&self.0.mux.space(space, self.0.owner.clone()), space, wall).await
    }

    async fn mount_files_on(&self, on: &Space, space: &str, wall: Duration) -> Result<(), Error> {
        let tree = Arc::new(self.files(space, wall));
        let mut server = Local::told(&format!("{FILES}{space}"), tree, Clients::default());
        // .L cannot carry the error text, which explains the fault of a line.
        server.options.dialects = vec![Dialect::U];
        on.mount(server, "", &As::Client, "/mux", Flags::REPLACE).await.map(drop)
    }

    /// Creates the files of one name space.
    fn files(&self, space: &str, wall: Duration) -> Tree {
        let space: Arc<str> = space.into();
        let of = |f: fn(&Live, &str, &Visitor) -> String| {
            // The mux owns its files. A strong reference back would be a cycle.
            let (state, space) = (Arc::downgrade(&self.0), space.clone());
            File::text(move |visitor| live(&state).map_or(String::new(), |live| f(&live, &space, visitor)))
        };
        let (state, here) = (Arc::downgrade(&self.0), space.clone());
        let ctl = of(|live, _, _| format!("{USAGE}{}", lock(&live.0.latest).as_str())).on_write(move |ask| {
            match live(&state) {
                Some(live) => live.told(&here, ask),
                None => ask.fail(Errno::EIO.into()),
            }
        });
        let (state, here) = (Arc::downgrade(&self.0), space.clone());
        let servers = Dir::new()
            .live(move |visitor| live(&state).map_or(Vec::new(), |live| live.servers(&here, visitor)));
        let root = Dir::new()
            .file("ctl", ctl)
            .file("mounts", of(|live, space, visitor| live.mounts((!visitor.owner).then_some(space))))
            .file("pending", of(|live, space, visitor| live.pending((!visitor.owner).then_some(space))))
            .file("clients", of(|live, _, visitor| live.clients(visitor)))
            .file("load", of(|live, space, visitor| live.load(space, visitor)))
            .file("metrics", of(|live, space, visitor| live.metrics(space, visitor)))
            .dir("servers", servers);
        Tree::new(root, wall).owned_by(|_, aname| is_owner(aname))
    }

    /// Handles a write to `ctl`.
    fn told(&self, space: &Arc<str>, ask: Ask) {
        let (live, space) = (self.clone(), space.clone());
        self.0.mux.0.jobs.begin(
            None,
            Box::pin(async move {
                let result = match ask.text() {
                    Ok(text) => live.message(&space, text, &ask.visitor).await,
                    Err(error) => Err(error),
                };
                let latest = match &result {
                    Ok(None) => "# the latest message was understood\n".into(),
                    Ok(Some(away)) => format!("{AWAY}{away}\n"),
                    Err(error) => format!("# the latest message was refused: {error}\n"),
                };
                ask.leave(latest.clone());
                *lock(&live.0.latest) = latest;
                ask.done(result.map(drop));
            }),
        );
    }

    /// Executes the lines of a script in order, up to the first failure.
    async fn message(&self, space: &str, text: &str, visitor: &Visitor) -> nine_proto::Result<Option<Error>> {
        // The name space of a line is that of the last `space` line, or that of this `ctl`.
        let script = script::parse("line ", text, &mut Alone);
        if let Some(wrong) = script.wrong.first() {
            let error = nine_proto::Error::new(Errno::EINVAL, wrong.what.clone());
            tell(visitor, space, text, Some(&error));
            return Err(error);
        }
        let (mut named, mut away) = (false, None);
        for line in &script.lines {
            if let Statement::Space { users } = &line.statement {
                named = true;
                if !self.has(&line.space) || !users.is_empty() {
                    let text = "ctl only chooses among the name spaces of the file: space NAME";
                    return Err(nine_proto::Error::new(Errno::EINVAL, text));
                }
                continue;
            }
            let about = if named { &*line.space } else { space };
            let done = self.ordered(about, &line.statement).await.map_err(spoken);
            tell(visitor, about, &line.statement.to_string(), done.as_ref().err());
            away = done?.or(away);
        }
        Ok(away)
    }

    /// Formats the lines that recreate one name space, or all of them. Lines that wait for a server come last in each.
    pub fn mounts(&self, only: Option<&str>) -> String {
        let status = self.0.mux.status();
        let mut record = lock(&self.0.record);
        let named = self.0.mux.0.all_named();
        record.prune_all(named.iter().map(|named| (&*named.name, named.space())));
        // Modules are on a server's connections from their start. So these lines come first.
        let mut text = String::new();
        for (server, modules) in self.0.mux.pushed() {
            let of = |m: &MountStatus| only.is_none_or(|only| *m.space == *only) && m.server == server;
            let Some(mounted) = status.mounts.iter().find(|m| of(m)) else { continue };
            let word = record.calls(&mounted.space).find(|(id, _)| *id == mounted.id);
            let word = word.and_then(|(_, made)| match &made.statement {
                Statement::Mount(mount) => Some(mount.server.clone()),
                _ => None,
            });
            let server = word.unwrap_or_else(|| server.to_string());
            for module in modules {
                let line = Statement::Push { server: server.clone(), module };
                put(&mut text, format_args!("{line}\n"));
            }
        }
        let pending = lock(&self.0.pending);
        let mut spaces = lock(&self.0.spaces).clone();
        spaces.entry(MAIN.into()).or_default();
        // Lines before any `space` line apply to the main name space.
        let main_first = |space: &&Arc<str>| (&***space != MAIN, (*space).clone());
        let mut order: Vec<_> = spaces.keys().collect();
        order.sort_by_key(main_first);
        for space in order.into_iter().filter(|space| only.is_none_or(|only| *only == ***space)) {
            let users = &spaces[space];
            if &**space != MAIN || !users.is_empty() {
                let users: String = users.iter().map(|user| format!(" {}", quote(user))).collect();
                put(&mut text, format_args!("space {}{users}\n", quote(space)));
            }
            let value = named.iter().find(|named| *named.name == **space).map(|named| named.space());
            let lines = value.map_or(Vec::new(), |value| record.lines(space, &value));
            lines.iter().for_each(|line| put(&mut text, format_args!("{line}\n")));
            for line in pending.iter().filter(|line| *line.space == **space) {
                put(&mut text, format_args!("{}\n", line.shown));
            }
        }
        text
    }

    /// Formats the pending statements, each with its error as a comment.
    fn pending(&self, only: Option<&str>) -> String {
        let mut text = String::new();
        for PendingStatement { space, shown, why, .. } in lock(&self.0.pending).iter() {
            if only.is_none_or(|only| *only == **space) {
                put(&mut text, format_args!("{shown} # {}\n", show(why.as_bytes())));
            }
        }
        text
    }

    /// Retries pending statements until none are left.
    fn retry(&self) {
        if lock(&self.0.pending).is_empty() || self.0.retries.swap(true, Relaxed) {
            return;
        }
        let (state, outside) = (Arc::downgrade(&self.0), self.0.mux.0.outside.clone());
        let work = async move {
            let mut rest = RETRY;
            loop {
                outside.within(rest, std::future::pending::<()>()).await;
                rest = (rest * 2).min(RETRY_MAX);
                let Some(live) = live(&state) else { return };
                let lines = live.independent();
                join_all(lines.iter().map(|(space, line)| live.try_again(space, line))).await;
                let pending = lock(&live.0.pending);
                if pending.is_empty() {
                    live.0.retries.store(false, Relaxed);
                    return;
                }
            }
        };
        self.0.mux.0.jobs.begin(None, Box::pin(work));
    }

    /// Returns the pending statements that depend on no earlier one.
    fn independent(&self) -> Vec<(Box<str>, Statement)> {
        let record = lock(&self.0.record);
        let pending = lock(&self.0.pending);
        let waits =
            |at: usize| is_behind(&record, &pending[..at], &pending[at].space, &pending[at].statement);
        let free = (0..pending.len()).filter(|&at| waits(at).is_none()).map(|at| &pending[at]);
        free.map(|line| (line.space.clone(), line.statement.clone())).collect()
    }

    async fn try_again(&self, space: &str, statement: &Statement) {
        let is = |line: &PendingStatement| *line.space == *space && line.statement == *statement;
        let named = lock(&self.0.pending).iter().find(|line| is(line)).map(|line| line.named.clone());
        let Some(named) = named else { return };
        // It may be unmounted, or left out by a reload, while its server is asked.
        let (state, of, line) = (Arc::downgrade(&self.0), Box::<str>::from(space), statement.clone());
        let is_wanted = move || {
            let is = |other: &PendingStatement| other.space == of && other.statement == line;
            live(&state).is_some_and(|live| lock(&live.0.pending).iter().any(is))
        };
        let on = self.0.mux.space(space, self.0.owner.clone());
        let changed = Space { is_wanted: Some(Arc::new(is_wanted)), ..on };
        let done = match (statement, named) {
            (Statement::Mount(mount), Some(named)) => self.mounted(&changed, space, mount, named).await,
            _ => self.done_on(changed, space, statement).await,
        };
        let unwanted = {
            let mut pending = lock(&self.0.pending);
            match (pending.iter().position(is), &done) {
                (Some(at), Ok(_)) => {
                    tracing::info!("{}: done, its server answers", pending[at].shown);
                    pending.remove(at);
                    None
                }
                (Some(at), Err(error)) => {
                    pending[at].why = error.to_string();
                    None
                }
                (None, done) => done.is_ok().then(|| undo(statement)).flatten(),
            }
        };
        if let Some(undo) = unwanted
            && let Err(error) = self.apply(space, &undo).await
        {
            tracing::warn!("{undo}: {error}");
        }
    }

    fn clients(&self, visitor: &Visitor) -> String {
        clients_text(&self.seen(visitor))
    }

    /// Returns the clients that this visitor may see.
    fn seen(&self, visitor: &Visitor) -> Vec<ClientStatus> {
        let mut clients = self.0.clients.clients();
        clients.retain(|client| visitor.owner || client.user == visitor.who.name);
        clients
    }

    /// Formats the load and the latencies of the servers. Latencies are measured only for a while after each read of
    /// the file.
    fn load(&self, space: &str, visitor: &Visitor) -> String {
        let mut text = load_head();
        for server in self.upstreams(space, visitor) {
            let meter = self.0.mux.server(&server.name).and_then(|server| server.options.meter);
            let load = meter.map(|meter| meter.look());
            let counts = load.as_ref().map_or([0; 3], |load| [load.requests, load.sent, load.received]);
            let times: Vec<_> = load.iter().flat_map(|load| load.times).map(|n| n.to_string()).collect();
            text += &load_line(&server, counts, &times);
        }
        text
    }

    fn metrics(&self, space: &str, visitor: &Visitor) -> String {
        metrics::text(self.seen(visitor).len(), &self.upstreams(space, visitor))
    }

    /// Returns the servers that this visitor may see.
    fn upstreams(&self, space: &str, visitor: &Visitor) -> Vec<UpstreamStatus> {
        let mut status = self.0.mux.status();
        let has = |upstream: &UpstreamStatus| {
            let of = |m: &MountStatus| *m.space == *space && m.server == upstream.name;
            visitor.owner || status.mounts.iter().any(of)
        };
        status.upstreams.retain(|upstream| !upstream.name.starts_with(FILES) && has(upstream));
        status.upstreams
    }

    fn servers(&self, space: &str, visitor: &Visitor) -> Vec<(String, Node)> {
        let dir = |upstream: &UpstreamStatus| {
            let text = status_text(upstream);
            let trace = self.0.mux.server(&upstream.name).map(|server| server.trace).unwrap_or_default();
            let dir = Dir::new()
                .file("status", File::text(move |_| text.clone()))
                .file("trace", File::text(move |_| trace.text()).mode(0o400));
            (upstream.id.to_string(), dir.into())
        };
        self.upstreams(space, visitor).iter().map(dir).collect()
    }
}

impl LiveState {
    /// Mounts a server. `shown` is its word as it is displayed.
    async fn mount(
        &self,
        on: &Space,
        mount: &Mount,
        (server, shown): (Server, String),
    ) -> Result<(u64, StatementCall, Option<Error>), Error> {
        let (server, user) = self.configured(mount, server)?;
        let name = Some(server.name.clone());
        let (id, away) = on.mounted(server, &mount.aname, &user, &mount.old, mount.flags).await?;
        let word = mount.word.clone();
        let statement = Statement::Mount(Mount { server: shown, ..mount.clone() });
        Ok((id, StatementCall { statement, word, server: name, is_dir: true }, away))
    }

    /// Returns the server with the options of the line, and the user to attach with.
    fn configured(&self, mount: &Mount, mut server: Server) -> Result<(Server, As), Error> {
        (server.lanes, server.wait, server.ahead) = (mount.lanes, mount.wait, mount.ahead);
        if server.wait.is_none() && !server.others.is_empty() {
            return Err(invalid(format!("{}: equal servers are mounted with -r", server.name)));
        }
        let user = match &mount.user {
            None if server.dial.is_told() => As::Client,
            None => self.kinds.user(),
            Some(User::Client) => As::Client,
            Some(User::Name(name)) => As::User { name: name.as_str().into(), uid: name.parse().ok() },
        };
        Ok((server, user))
    }
}

impl Draft {
    /// Whether the draft has a name space of this name.
    pub fn has(&self, space: &str) -> bool {
        space == MAIN || self.spaces.contains_key(space)
    }

    /// Contacts the remote servers of mounts that will be executed, all at once. Statements then do not wait for those
    /// that do not answer in time. Modules that the servers need must have been pushed.
    pub async fn contact<'s>(&mut self, mounts: impl IntoIterator<Item = (&'s str, &'s Mount)>) {
        let core = self.live.0.mux.0.clone();
        let by = self.space(MAIN).by;
        for (space, mount) in mounts {
            // The statement itself reports an error.
            let Ok(named) = self.server(space, mount) else { continue };
            if let Ok((server, user)) = self.live.0.configured(mount, named.0.clone())
                && !server.local
            {
                let (wait, ahead) = (server.wait, server.ahead);
                self.contacts.trees.push(core.tree(&core.upstream(server), &mount.aname, &user, wait, ahead));
            }
            self.contacts.servers.push((space.into(), mount.clone(), named));
        }
        self.contacts.unreached = Arc::new(core.contact(&by, &self.contacts.trees, CONTACT).await);
    }

    /// Executes a statement in a name space of the draft, as [`Live::apply`] would. A SERVER word at the same place as
    /// before means the same server, so a tree in memory keeps its content.
    ///
    /// # Errors
    /// Those of [`Live::apply`]. A mount or bind that depends on one that [waits](Draft::keep) must wait, too.
    pub async fn apply(&mut self, space: &str, statement: &Statement) -> Result<(), Error> {
        let (live, changed) = (self.live.clone(), self.space(space));
        self.contacts.failed = None;
        let waits = is_behind(&self.record, &self.pending, space, statement);
        let waits = waits.map(|earlier| refused(Errno::ETIMEDOUT, &format!("it waits for: {earlier}")));
        match statement {
            Statement::Mount(mount) => {
                let named = self.server(space, mount)?;
                self.contacts.failed = Some(named.clone());
                if let Some(waits) = waits {
                    return Err(waits);
                }
                let (id, made, _) = live.0.mount(&changed, mount, named).await?;
                self.contacts.failed = None;
                self.record.insert(space, &changed.by.named.space(), id, made);
            }
            Statement::Bind { flags, new, old } => {
                if let Some(waits) = waits {
                    return Err(waits);
                }
                let (id, made) = bound(&changed, statement, new, old, *flags).await?;
                self.record.insert(space, &changed.by.named.space(), id, made);
            }
            Statement::Unmount { new, old } => {
                let forgotten = forget(&mut self.pending, space, new.as_deref(), old);
                self.record.prune(space, &changed.by.named.space());
                let call = new.as_ref().and_then(|new| self.record.call(space, new, old));
                unmount(&changed, forgotten, call, new.as_deref(), old).await?;
            }
            Statement::Push { server, module } => self.push(space, server, module).await?,
            Statement::Space { users } => {
                let is_new = self.spaces.insert(space.into(), users.clone()).is_none();
                if is_new && space != MAIN {
                    let user = As::User { name: Box::default(), uid: None };
                    let flags = Flags::REPLACE.with_create();
                    changed.mount(live.0.kinds.backbone(space), "", &user, "/", flags).await?;
                }
                changed.for_users(&users.iter().map(String::as_str).collect::<Vec<_>>());
            }
            other => return live.apply(space, other).await,
        }
        Ok(())
    }

    /// Stores a mount or bind that failed because a server did not answer. After [`Draft::replace`] it is retried until
    /// it succeeds or is unmounted. Returns false if it failed for another reason or is another kind of statement.
    pub fn keep(&mut self, space: &str, statement: &Statement, error: &Error) -> bool {
        let can_wait = matches!(statement, Statement::Mount(_) | Statement::Bind { .. }) && is_away(error);
        if can_wait {
            let mut shown = statement.clone();
            if let Statement::Mount(mount) = &mut shown
                && let Ok((_, server)) = self.live.0.kinds.server(&mount.server)
            {
                mount.server = server;
            }
            let (statement, why) = (statement.clone(), error.to_string());
            let named = self.contacts.failed.take();
            self.pending.push(PendingStatement { space: space.into(), statement, shown, named, why });
        }
        can_wait
    }

    /// Mounts the files on `/mux`, as [`Live::mount_files`] does.
    pub async fn mount_files(&mut self, space: &str, wall: Duration) -> Result<(), Error> {
        let on = self.space(space);
        self.live.mount_files_on(&on, space, wall).await
    }

    /// Puts the draft into effect, each name space as a whole: new walks see it. Open files stay open. A removed name
    /// space stays in use by its present clients.
    pub fn replace(mut self) {
        let state = self.live.0.clone();
        let gone: Vec<Arc<str>> = {
            let mut spaces = lock(&state.spaces);
            let gone = spaces.keys().filter(|name| !self.has(name)).cloned().collect();
            *spaces = std::mem::take(&mut self.spaces);
            gone
        };
        *lock(&state.record) = std::mem::take(&mut self.record);
        *lock(&state.pending) = std::mem::take(&mut self.pending);
        let named: Vec<_> = std::mem::take(&mut self.named).into_values().collect();
        state.mux.0.replace(&named, &gone);
        self.live.retry();
    }

    fn space(&mut self, name: &str) -> Space {
        let mux = &self.live.0.mux;
        let named = self.named.entry(name.into()).or_insert_with(|| mux.0.draft(name)).clone();
        let space = mux.space_of(named, &self.live.0.owner);
        let unreached = Some(self.contacts.unreached.clone());
        let by = Arc::new(AttachContext { unreached, ..AttachContext::clone(&space.by) });
        Space { limit: CONTACT, by, ..space }
    }

    /// Returns the server of a mount, and its displayed word.
    fn server(&mut self, space: &str, mount: &Mount) -> Result<(Server, String), Error> {
        let contacted = &mut self.contacts.servers;
        if let Some(at) = contacted.iter().position(|(of, line, _)| **of == *space && *line == *mount) {
            return Ok(contacted.remove(at).2);
        }
        match self.known(space, mount) {
            Some(known) => Ok(known),
            None => self.live.0.kinds.server(&mount.server).map_err(invalid),
        }
    }

    /// Returns the server that a line like this one has already mounted there, and its displayed word. Each line claims
    /// one mount.
    fn known(&mut self, space: &str, mount: &Mount) -> Option<(Server, String)> {
        let state = &self.live.0;
        let record = lock(&state.record);
        let claimed = self.claimed.entry(space.into()).or_default();
        let (id, made) = record.claim(space, mount, claimed)?;
        claimed.insert(id);
        let Statement::Mount(before) = &made.statement else { return None };
        Some((state.mux.server(made.server.as_ref()?)?, before.server.clone()))
    }

    /// Pushes a module, unless it is already pushed at this position. Connections in use are not changed: that is an
    /// error.
    async fn push(&mut self, space: &str, word: &str, module: &str) -> Result<(), Error> {
        let state = self.live.0.clone();
        let server = self.live.named(space, word)?;
        let at = self.pushed.entry(server.name.clone()).or_default();
        let now = state.mux.pushed().into_iter().find(|(name, _)| *name == server.name);
        let is_there = now.is_some_and(|(_, modules)| modules.get(*at).is_some_and(|now| now == module));
        *at += 1;
        if is_there {
            return Ok(());
        }
        if state.mux.server(&server.name).is_some() {
            return Err(invalid(format!(
                "{word} is in use without it: `ninefold mux push` changes connections, a new start reads the line"
            )));
        }
        state.mux.push(&server, module).await
    }
}

impl Drop for Draft {
    /// Releases the trees that only the draft has mounted.
    fn drop(&mut self) {
        self.named.clear();
        self.live.0.mux.0.release(std::mem::take(&mut self.contacts.trees));
    }
}

/// Returns the first of the earlier pending statements that a statement depends on.
fn is_behind<'p>(
    record: &CallRecord,
    earlier: &'p [PendingStatement],
    space: &str,
    statement: &Statement,
) -> Option<&'p Statement> {
    let mut earlier = earlier.iter().filter(|line| *line.space == *space).peekable();
    earlier.peek()?;
    let mut aliases = PathAliases::default();
    record.calls(space).for_each(|(_, call)| aliases.add(&call.statement, call.server.as_deref()));
    earlier.clone().for_each(|line| aliases.add(&line.statement, None));
    earlier.find(|line| aliases.depends(statement, &line.statement)).map(|line| &line.shown)
}

/// Executes a bind. Returns the number and the record of the call.
async fn bound(
    on: &Space,
    statement: &Statement,
    new: &str,
    old: &str,
    flags: Flags,
) -> Result<(u64, StatementCall), Error> {
    let (id, is_dir) = on.core.bind(on, new, old, flags).await?;
    Ok((id, StatementCall { statement: statement.clone(), word: String::new(), server: None, is_dir }))
}

/// Unmounts `call`; or `new` from `old`, if another text names it; or everything. If a pending statement was removed
/// (`forgotten`), that is enough.
async fn unmount(
    on: &Space,
    forgotten: bool,
    call: Option<u64>,
    new: Option<&str>,
    old: &str,
) -> Result<(), Error> {
    match (call, new) {
        (_, Some(_)) if forgotten => Ok(()),
        (Some(id), _) => on.core.unmount_call(&on.by, id),
        _ => on.unmount(new, old).await.or_else(|error| if forgotten { Ok(()) } else { Err(error) }),
    }
}

/// Writes a line for `ctl` and its result to the audit log.
fn tell(visitor: &Visitor, space: &str, line: &str, error: Option<&nine_proto::Error>) {
    let (user, text) = (audit::line(visitor.who.name.as_bytes()), audit::line(line.as_bytes()));
    let verbs = ["mount", "bind", "unmount", "hangup", "push", "pop"];
    let event = verbs.into_iter().find(|verb| text.split(' ').next() == Some(verb)).unwrap_or("ctl");
    let (allowed, owner) = (error.is_none(), visitor.owner);
    let why = error.map(|error| audit::line(error.to_string().as_bytes()));
    tracing::info!(
        target: audit::TARGET,
        event, allowed, user, owner, file = "mux/ctl", space, text, why,
        "ctl: {text}"
    );
}

fn live(state: &Weak<LiveState>) -> Option<Live> {
    state.upgrade().map(Live)
}

/// Formats the file `clients`.
pub(crate) fn clients_text(clients: &[ClientStatus]) -> String {
    let mut text = format!("{}\n", CLIENTS.join("\t"));
    for client in clients {
        let dialect = client.dialect.map_or("-", Dialect::name);
        let (peer, user) = (show(client.peer.as_bytes()), show(client.user.as_bytes()));
        let (id, since, sent) = (client.id, client.since.as_secs(), client.requests);
        let (waits, fids, came, gone) = (client.outstanding, client.fids, client.received, client.sent);
        let (who, carried) =
            (format_args!("{peer}\t{user}\t{dialect}\t{since}"), format_args!("{came}\t{gone}"));
        put(&mut text, format_args!("{id}\t{who}\t{sent}\t{waits}\t{fids}\t{carried}\n"));
    }
    text
}

/// Returns the line of column names of the file `load`.
pub(crate) fn load_head() -> String {
    format!("{}\n", LOAD.join("\t"))
}

/// Formats a server's line of the file `load`. `counts` are its requests, bytes sent to it, and bytes received.
pub(crate) fn load_line(server: &UpstreamStatus, counts: [u64; 3], times: &[String]) -> String {
    let columns = [
        server.id.to_string(),
        show(server.name.as_bytes()).to_string(),
        server.dialect().unwrap_or("-").into(),
        server.live().count().to_string(),
        server.live().map(|connection| connection.calls).sum::<usize>().to_string(),
        server.connections.iter().map(|connection| connection.waiting).sum::<usize>().to_string(),
        counts[0].to_string(),
        counts[1].to_string(),
        counts[2].to_string(),
        if times.is_empty() { "-".into() } else { times.join(",") },
        server.away().map_or("-".into(), |why| show(why.as_bytes()).to_string()),
    ];
    format!("{}\n", columns.join("\t"))
}

/// Formats the file `status` of a server.
pub(crate) fn status_text(upstream: &UpstreamStatus) -> String {
    let live = || upstream.live();
    let all = &upstream.connections;
    let mut text = String::new();
    for (key, value) in [
        ("name", upstream.name.to_string()),
        ("modules", if upstream.modules.is_empty() { "-".into() } else { upstream.modules.join(", ") }),
        ("dialect", upstream.dialect().unwrap_or("-").into()),
        ("connections", live().count().to_string()),
        ("dials", upstream.dials.to_string()),
        ("rtt-us", upstream.rtt_us().to_string()),
        ("in-flight", live().map(|connection| connection.calls).sum::<usize>().to_string()),
        ("orphans", live().map(|connection| connection.orphans).sum::<usize>().to_string()),
        ("fids", live().map(|connection| connection.fids).sum::<u32>().to_string()),
        ("kept", all.iter().map(|connection| connection.kept).sum::<usize>().to_string()),
        ("waiting", all.iter().map(|connection| connection.waiting).sum::<usize>().to_string()),
        ("away", upstream.away().unwrap_or("-").into()),
        ("ahead-served", upstream.ahead_served.to_string()),
        ("ahead-dropped", upstream.ahead_dropped.to_string()),
    ] {
        put(&mut text, format_args!("{key} {}\n", show(value.as_bytes())));
    }
    text
}

/// Converts an error to the reply for a client, with the path that it concerns.
fn spoken(error: Error) -> nine_proto::Error {
    nine_proto::Error::new(error.errno(), error.to_string())
}

fn invalid(text: String) -> Error {
    refused(Errno::EINVAL, &text)
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a String takes whatever is written to it");
}

/// Prefix of the reply to a message to `ctl` that mounted a server which does not answer. The error follows.
pub const AWAY: &str = "# mounted, but away: ";
/// The columns of `clients`.
pub const CLIENTS: [&str; 10] =
    ["id", "address", "user", "dialect", "since", "requests", "in-flight", "fids", "received", "sent"];
/// The columns of `load`.
pub const LOAD: [&str; 11] = [
    "id",
    "name",
    "dialect",
    "connections",
    "in-flight",
    "waiting",
    "requests",
    "sent",
    "received",
    "times",
    "away",
];
/// Time that a start or a reload waits for the remote servers, for all of them together, and for each line.
const CONTACT: Duration = Duration::from_secs(2);
/// Maximum pause between two retries of a pending statement.
const RETRY_MAX: Duration = Duration::from_secs(5);
/// Prefix of the names of the file servers for `/mux`.
const FILES: &str = "mux:";
const USAGE: &str = "\
# The owner writes lines like these:
# mount [-abcdrP] [-t SECONDS] [-n N] [-u USER] SERVER OLD [ANAME]
# bind [-abcd] NEW OLD
# unmount [NEW] OLD
# hangup SERVER
# push SERVER MODULE [ARGUMENTS]
# pop SERVER
# space NAME (the lines after it are about that name space)
";
