//! A mux that is run by statements, and shown as files: what a name space file says, and `/mux`.
//!
//! ```text
//! /mux/ctl               read: what may be written; written by the owner: lines of a script
//! /mux/mounts            lines that would make the name space again
//! /mux/clients           who is connected: a line of column names, then a line each, with tabs between
//! /mux/metrics           figures of the servers, for Prometheus
//! /mux/servers/N/status  a server: its address, connections, what is under way
//! /mux/servers/N/trace   what its module `trace` has seen, for the owner
//! ```
//!
//! In: [`Statement`]s, and [`Kinds`], which knows what SERVER words mean. Out: a changed name space; the files.
//!
//! Always holds: only the owner writes, and only the owner sees other name spaces and other users' connections.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use nine_io::audit;
use nine_io::client::Error;
use nine_io::server::{ClientStatus, Core as Clients};
use nine_io::synth::{Ask, Dir, File, Node, Tree, Visitor};
use nine_net::lock::{Mutex, lock};
use nine_proto::{Dialect, Errno, show};

use crate::core::refused;
use crate::named::Named;
use crate::script::{self, Alone, Mount, Statement, User, quote};
use crate::show::{MountStatus, UpstreamStatus};
use crate::space::{Flags, Order};
use crate::upstream::{As, Server, is_owner};
use crate::{Local, MAIN, Mux, Owner, Space, metrics};

/// What words mean, in the program that runs a mux.
pub trait Kinds: Send + Sync + 'static {
    /// The server that a word stands for, and how the word is shown: without secrets, and whole.
    fn server(&self, word: &str) -> Result<(Server, String), String>;

    /// As whom servers are attached when the line does not say.
    fn user(&self) -> As;

    /// A tree in memory for a name space other than [`MAIN`] to begin with.
    fn backbone(&self, space: &str) -> Server;
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub struct Live(Arc<State>);

/// All name spaces anew, beside those that are there, until [`Draft::replace`]. Dropped before that, it leaves
/// everything as it was.
pub struct Draft {
    live: Live,
    named: BTreeMap<Arc<str>, Arc<Named>>,
    spaces: BTreeMap<Arc<str>, Vec<String>>,
    made: HashMap<(Box<str>, u64), Made>,
    /// How many modules its lines have named, by server.
    pushed: HashMap<Arc<str>, usize>,
}

struct State {
    mux: Mux,
    owner: Owner,
    kinds: Box<dyn Kinds>,
    /// Who is connected.
    clients: Clients,
    /// What was mounted and bound, by name space and the number of the call.
    made: Mutex<HashMap<(Box<str>, u64), Made>>,
    /// Name spaces other than [`MAIN`], and their users.
    spaces: Mutex<BTreeMap<Arc<str>, Vec<String>>>,
    /// How the latest message to `ctl` ended.
    latest: Mutex<String>,
}

/// A statement that holds, its SERVER word as it is shown, and what the mux calls what it has mounted.
struct Made {
    statement: Statement,
    what: String,
    /// The SERVER word as it was written.
    word: String,
    /// The server, of a mount.
    server: Option<Arc<str>>,
}

impl Live {
    /// Nothing is mounted yet. `clients` is the core that serves the mux to others.
    pub fn new(mux: Mux, owner: Owner, kinds: impl Kinds, clients: Clients) -> Self {
        let (made, spaces, latest) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self(Arc::new(State { mux, owner, kinds: Box::new(kinds), clients, made, spaces, latest }))
    }

    /// Whether there is a name space of this name.
    fn has(&self, space: &str) -> bool {
        space == MAIN || lock(&self.0.spaces).contains_key(space)
    }

    /// Does what a statement says in a name space.
    pub async fn apply(&self, space: &str, statement: &Statement) -> Result<(), Error> {
        let state = &*self.0;
        let changed = state.mux.space(space, state.owner.clone());
        match statement {
            Statement::Mount(mount) => {
                let named = state.kinds.server(&mount.server).map_err(invalid)?;
                let (id, made) = state.mount(&changed, mount, named).await?;
                self.remember(space, id, made);
            }
            Statement::Bind { flags, new, old } => {
                let id = changed.bind(new, old, *flags).await?;
                self.remember(space, id, Made::bound(statement, new));
            }
            Statement::Unmount { new, old } => {
                let is = |mount: &Mount, new: &str| mount.server == new && mount.old == *old;
                let what = new.as_ref().map(|new| {
                    let made = self.find(space, |mount| is(mount, new), |made| made.what.clone());
                    made.unwrap_or_else(|| new.clone())
                });
                changed.unmount(what.as_deref(), old).await?;
            }
            Statement::Hangup { server } => {
                let name = self.find(space, |mount| mount.server == *server, |made| made.server.clone());
                let name = name.flatten().unwrap_or_else(|| server.as_str().into());
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
            | Statement::NoMux => {
                return Err(invalid("it stands only in a name space file, and counts at the start".into()));
            }
        }
        Ok(())
    }

    /// Begins to make all name spaces anew.
    pub fn draft(&self) -> Draft {
        let (named, spaces) = Default::default();
        let mut draft =
            Draft { live: self.clone(), named, spaces, made: HashMap::new(), pushed: HashMap::new() };
        draft.space(MAIN);
        draft
    }

    /// The server that is mounted by this word, or would be.
    fn named(&self, space: &str, word: &str) -> Result<Server, Error> {
        let name = self.find(space, |mount| mount.server == word, |made| made.server.clone());
        match name.flatten().and_then(|name| self.0.mux.server(&name)) {
            Some(server) => Ok(server),
            None => self.0.kinds.server(word).map(|(server, _)| server).map_err(invalid),
        }
    }

    /// Mounts the files on `/mux`. `wall`: the time since 1970, which is theirs.
    pub async fn mount_files(&self, space: &str, wall: Duration) -> Result<(), Error> {
        self.mount_files_on(&self.0.mux.space(space, self.0.owner.clone()), space, wall).await
    }

    async fn mount_files_on(&self, on: &Space, space: &str, wall: Duration) -> Result<(), Error> {
        let tree = Arc::new(self.files(space, wall));
        let mut server = Local::told(&format!("{FILES}{space}"), tree, Clients::default());
        // .L has no room for the text of an error, which says what is wrong with a line.
        server.options.dialects = vec![Dialect::U];
        on.mount(server, "", &As::Client, "/mux", Flags::REPLACE).await.map(drop)
    }

    /// The files of one name space.
    fn files(&self, space: &str, wall: Duration) -> Tree {
        let space: Arc<str> = space.into();
        let of = |f: fn(&Live, &str, &Visitor) -> String| {
            // The mux holds its files: they must not hold it.
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
            .file("clients", of(|live, _, visitor| live.clients(visitor)))
            .file("load", of(|live, space, visitor| live.load(space, visitor)))
            .file("metrics", of(|live, space, visitor| live.metrics(space, visitor)))
            .dir("servers", servers);
        Tree::new(root, wall).owned_by(|_, aname| is_owner(aname))
    }

    /// Somebody has written to ctl.
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
                    Ok(()) => "# the latest message was understood\n".into(),
                    Err(error) => format!("# the latest message was refused: {error}\n"),
                };
                *lock(&live.0.latest) = latest;
                ask.done(result);
            }),
        );
    }

    /// Lines of a script, one after the other; the first that fails ends them.
    async fn message(&self, space: &str, text: &str, visitor: &Visitor) -> nine_proto::Result<()> {
        // What a line is about stands before it: `space`, or where this ctl is.
        let script = script::parse("line ", text, &mut Alone);
        if let Some(wrong) = script.wrong.first() {
            let error = nine_proto::Error::new(Errno::EINVAL, wrong.what.clone());
            tell(visitor, space, text, Some(&error));
            return Err(error);
        }
        let mut named = false;
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
            let done = self.apply(about, &line.statement).await.map_err(spoken);
            tell(visitor, about, &line.statement.to_string(), done.as_ref().err());
            done?;
        }
        Ok(())
    }

    /// The lines that would make this name space again, or all of them.
    pub fn mounts(&self, only: Option<&str>) -> String {
        let status = self.0.mux.status();
        let mut lines: BTreeMap<&str, Vec<(u64, String)>> = BTreeMap::new();
        let mut made = lock(&self.0.made);
        made.retain(|(space, id), _| status.mounts.iter().any(|m| m.space == *space && m.id == *id));
        let mut rest = &*status.mounts;
        while let Some(first) = rest.first() {
            let same = |m: &&MountStatus| m.space == first.space && m.head == first.head;
            let (head, after) = rest.split_at(rest.iter().take_while(same).count());
            rest = after;
            for id in head.iter().map(|m| m.id).collect::<std::collections::BTreeSet<_>>() {
                if let Some(made) = made.get(&(first.space.clone(), id)) {
                    let line = again(&made.statement, head, id).to_string();
                    lines.entry(&first.space).or_default().push((id, line));
                }
            }
        }
        // What a server's connections have, they have from their beginning: these lines stand before the others.
        let mut text = String::new();
        for (server, modules) in self.0.mux.pushed() {
            let of = |m: &MountStatus| only.is_none_or(|only| *m.space == *only) && m.server == server;
            let Some(mounted) = status.mounts.iter().find(|m| of(m)) else { continue };
            let of = |m: &MountStatus| made.get(&(m.space.clone(), m.id));
            let word = of(mounted).and_then(|made| match &made.statement {
                Statement::Mount(mount) => Some(mount.server.clone()),
                _ => None,
            });
            let server = word.unwrap_or_else(|| server.to_string());
            for module in modules {
                let line = Statement::Push { server: server.clone(), module };
                put(&mut text, format_args!("{line}\n"));
            }
        }
        drop(made);
        let mut spaces = lock(&self.0.spaces).clone();
        spaces.entry(MAIN.into()).or_default();
        // Lines before any `space` are about the main one.
        let main_first = |space: &&Arc<str>| (&***space != MAIN, (*space).clone());
        let mut order: Vec<_> = spaces.keys().collect();
        order.sort_by_key(main_first);
        for space in order.into_iter().filter(|space| only.is_none_or(|only| *only == ***space)) {
            let users = &spaces[space];
            if &**space != MAIN || !users.is_empty() {
                let users: String = users.iter().map(|user| format!(" {}", quote(user))).collect();
                put(&mut text, format_args!("space {}{users}\n", quote(space)));
            }
            let mut lines = lines.remove(&**space).unwrap_or_default();
            lines.sort_unstable_by_key(|(id, _)| *id);
            lines.iter().for_each(|(_, line)| put(&mut text, format_args!("{line}\n")));
        }
        text
    }

    fn clients(&self, visitor: &Visitor) -> String {
        let mut text = format!("{}\n", CLIENTS.join("\t"));
        for client in self.seen(visitor) {
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

    /// The clients that this visitor is to see.
    fn seen(&self, visitor: &Visitor) -> Vec<ClientStatus> {
        let mut clients = self.0.clients.clients();
        clients.retain(|client| visitor.owner || client.user == visitor.who.name);
        clients
    }

    /// What is asked of the servers, and how long it takes: measured while somebody looks.
    fn load(&self, space: &str, visitor: &Visitor) -> String {
        let mut text = format!("{}\n", LOAD.join("\t"));
        for server in self.upstreams(space, visitor) {
            let meter = self.0.mux.server(&server.name).and_then(|server| server.options.meter);
            let load = meter.map(|meter| meter.look());
            let counts = load.as_ref().map_or([0; 3], |load| [load.requests, load.sent, load.received]);
            let times: Vec<_> = load.iter().flat_map(|load| load.times).map(|n| n.to_string()).collect();
            let away = server.away().map_or("-".into(), |why| show(why.as_bytes()).to_string());
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
                away,
            ];
            put(&mut text, format_args!("{}\n", columns.join("\t")));
        }
        text
    }

    fn metrics(&self, space: &str, visitor: &Visitor) -> String {
        metrics::text(self.seen(visitor).len(), &self.upstreams(space, visitor))
    }

    /// The servers that this visitor is to see.
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

    fn remember(&self, space: &str, id: u64, made: Made) {
        lock(&self.0.made).insert((space.into(), id), made);
    }

    /// Of a mount that a line has made.
    fn find<T>(&self, space: &str, is: impl Fn(&Mount) -> bool, f: impl Fn(&Made) -> T) -> Option<T> {
        let made = lock(&self.0.made);
        let mut of_space = made.iter().filter(|((of, _), _)| **of == *space).map(|(_, made)| made);
        of_space.find(|made| matches!(&made.statement, Statement::Mount(mount) if is(mount))).map(f)
    }
}

impl State {
    /// Mounts a server, which has its name for messages beside it.
    async fn mount(
        &self,
        on: &Space,
        mount: &Mount,
        (mut server, shown): (Server, String),
    ) -> Result<(u64, Made), Error> {
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
        let what = match &*mount.aname {
            "" => server.name.to_string(),
            aname => format!("{} {aname}", server.name),
        };
        let name = Some(server.name.clone());
        let id = on.mount(server, &mount.aname, &user, &mount.old, mount.flags).await?;
        let word = mount.server.clone();
        let statement = Statement::Mount(Mount { server: shown, ..mount.clone() });
        Ok((id, Made { statement, what, word, server: name }))
    }
}

impl Made {
    fn bound(statement: &Statement, new: &str) -> Self {
        Self { statement: statement.clone(), what: new.into(), word: String::new(), server: None }
    }
}

impl Draft {
    /// Whether there is a name space of this name, in the draft.
    pub fn has(&self, space: &str) -> bool {
        space == MAIN || self.spaces.contains_key(space)
    }

    /// Does what a statement says in a name space of the draft, as [`Live::apply`] would. A SERVER word that stands at
    /// the same place as before is the same server: a tree in memory keeps what is in it.
    pub async fn apply(&mut self, space: &str, statement: &Statement) -> Result<(), Error> {
        let (live, changed) = (self.live.clone(), self.space(space));
        match statement {
            Statement::Mount(mount) => {
                let named = match self.known(space, mount) {
                    Some(known) => known,
                    None => live.0.kinds.server(&mount.server).map_err(invalid)?,
                };
                let (id, made) = live.0.mount(&changed, mount, named).await?;
                self.made.insert((space.into(), id), made);
            }
            Statement::Bind { flags, new, old } => {
                let id = changed.bind(new, old, *flags).await?;
                self.made.insert((space.into(), id), Made::bound(statement, new));
            }
            Statement::Unmount { new, old } => {
                let is = |made: &&Made| match (&made.statement, new) {
                    (Statement::Mount(mount), Some(new)) => mount.server == *new && mount.old == *old,
                    _ => false,
                };
                let of_space = self.made.iter().filter(|((of, _), _)| **of == *space).map(|(_, made)| made);
                let what = of_space.clone().find(is).map(|made| made.what.clone()).or_else(|| new.clone());
                changed.unmount(what.as_deref(), old).await?;
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

    /// Mounts the files on `/mux`, as [`Live::mount_files`] does.
    pub async fn mount_files(&mut self, space: &str, wall: Duration) -> Result<(), Error> {
        let on = self.space(space);
        self.live.mount_files_on(&on, space, wall).await
    }

    /// The draft is there from now on, each name space as a whole: who walks next walks in it. What is open stays open,
    /// and a name space that is no longer there is left to who has it.
    pub fn replace(mut self) {
        let state = self.live.0.clone();
        let gone: Vec<Arc<str>> = {
            let mut spaces = lock(&state.spaces);
            let gone = spaces.keys().filter(|name| !self.has(name)).cloned().collect();
            *spaces = std::mem::take(&mut self.spaces);
            gone
        };
        *lock(&state.made) = std::mem::take(&mut self.made);
        let named: Vec<_> = std::mem::take(&mut self.named).into_values().collect();
        state.mux.0.replace(&named, &gone);
    }

    fn space(&mut self, name: &str) -> Space {
        let mux = &self.live.0.mux;
        let named = self.named.entry(name.into()).or_insert_with(|| mux.0.draft(name)).clone();
        mux.space_of(named, &self.live.0.owner)
    }

    /// The server that a line like this one has mounted there already, and how it is shown.
    fn known(&self, space: &str, mount: &Mount) -> Option<(Server, String)> {
        let state = &self.live.0;
        let made = lock(&state.made);
        let mut of_space = made.iter().filter(|((of, _), _)| **of == *space).map(|(_, made)| made);
        let (name, shown) = of_space.find_map(|made| match &made.statement {
            Statement::Mount(before)
                if (&made.word, &before.old, &before.aname) == (&mount.server, &mount.old, &mount.aname) =>
            {
                Some((made.server.clone()?, before.server.clone()))
            }
            _ => None,
        })?;
        drop(made);
        Some((state.mux.server(&name)?, shown))
    }

    /// Connections that are in use keep what they have.
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
    /// What it alone has mounted is let go of.
    fn drop(&mut self) {
        self.named.clear();
        self.live.0.mux.0.prune();
    }
}

/// Tells of a line for `ctl`, and whether it was done.
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

fn live(state: &Weak<State>) -> Option<Live> {
    state.upgrade().map(Live)
}

/// The statement that puts what call `id` has made where it is among the members of its mount point.
fn again(statement: &Statement, head: &[MountStatus], id: u64) -> Statement {
    let at = head.iter().position(|m| m.id == id).unwrap_or(0);
    let older = |m: &MountStatus| m.id < id;
    let order = match (head[..at].iter().any(older), head[at..].iter().any(older)) {
        (true, _) => Order::After,
        (_, true) => Order::Before,
        _ => Order::Replace,
    };
    let create = head.iter().any(|m| m.id == id && m.create);
    let again = Flags { order, create, duplicates: head[at].duplicates };
    match statement.clone() {
        Statement::Mount(mount) => Statement::Mount(Mount { flags: again, ..mount }),
        Statement::Bind { new, old, .. } => Statement::Bind { flags: again, new, old },
        other => other,
    }
}

fn status_text(upstream: &UpstreamStatus) -> String {
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

/// The answer that a client gets, with the path that it is about.
fn spoken(error: Error) -> nine_proto::Error {
    nine_proto::Error::new(error.errno(), error.to_string())
}

fn invalid(text: String) -> Error {
    refused(Errno::EINVAL, &text)
}

fn put(text: &mut String, line: std::fmt::Arguments<'_>) {
    text.write_fmt(line).expect("a String takes whatever is written to it");
}

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
/// How the servers of the files are called.
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
