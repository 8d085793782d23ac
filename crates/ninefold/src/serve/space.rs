//! A name space file, and the mux built from it.
//!
//! In: the path of the file. Out: a [`Space`] with all lines parsed, or all errors in the file; then a running [`Mux`].
//! A server that cannot be reached is mounted all the same, with a warning. A server that refuses us ends the start.

use std::collections::HashMap;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use nine_io::server::{Core, FileServer, Seat};
use nine_mux::script::{self, Line, Mount, Script, Statement, WRONG_MAX, World, Wrong};
use nine_mux::{Draft, Live, MAIN, Mux, Order, Owner};
use nine_net::modules::{Trace, TraceLog};
use nine_net::shm::Waits;
use nine_net::{Addr, Env, rt};
use rustix::fs::OFlags;

use super::cec::Console;
use super::kinds::{Kind, Servers};
use super::listen::Listen;
use super::web::Web;
use crate::archive::{Archives, Spec};
use crate::config::{Remote, Serving};
use crate::dial::{self, within};
use crate::fail;

/// A parsed name space file.
#[derive(Clone, Debug)]
pub struct Space {
    /// Name of the file, for messages.
    name: Arc<str>,
    /// Path of the file, if it is a file.
    path: Option<PathBuf>,
    lines: Vec<Line>,
    /// Listeners from its lines.
    pub listen: Vec<Listen>,
    /// Listeners for browsers.
    pub webs: Vec<Web>,
    /// Consoles on Ethernets.
    pub consoles: Vec<Console>,
    /// Do not open the owner's socket in addition to the listeners.
    pub no_socket: bool,
}

impl Space {
    /// Reads and parses the whole file. Opens and dials nothing.
    pub fn read(path: &Path, remote: &Remote) -> Result<Self> {
        let name = shown(path);
        let text = text(path).with_context(|| name.to_string())?;
        let path = Some(std::path::absolute(path)?);
        Ok(Self { path, ..Self::parse(name, &text, remote)? })
    }

    /// Returns a name space with one archive: its files, its dumps and its console.
    pub fn of_archive(spec: &Spec, remote: &Remote) -> Result<Self> {
        let place = spec.place.within(Path::new(""))?;
        let word = Kind::Fs(Spec { place, options: spec.options.clone() }).to_string();
        let quoted = script::quote(&word);
        let text = format!("mount {quoted} /archive\nmount {quoted} /dump dump\nmount fsctl: /fs\n");
        Self::parse(word.as_str().into(), &text, remote)
    }

    fn parse(name: Arc<str>, text: &str, remote: &Remote) -> Result<Self> {
        let Script { lines, mut wrong } = script::parse(&name, text, &mut Files);
        let (listen, webs, consoles) = (Vec::new(), Vec::new(), Vec::new());
        let (path, no_socket) = (None, false);
        let mut space =
            Self { name: name.clone(), path, lines: Vec::new(), listen, webs, consoles, no_socket };
        // Modules must be on a server's connections from their start, so handle the other lines first.
        let is_push = |line: &Line| matches!(line.statement, Statement::Push { .. });
        let (pushes, others): (Vec<_>, Vec<_>) = lines.into_iter().partition(is_push);
        for line in others {
            let understood = space.understand(line.clone(), remote);
            wrong.extend(understood.err().map(|what| line.wrong(what)));
        }
        let mut pushed = Vec::new();
        for line in pushes {
            match space.pushed(&line, remote) {
                Ok(statement) => pushed.extend(statement.map(|statement| Line { statement, ..line })),
                Err(what) => wrong.push(line.wrong(what)),
            }
        }
        space.lines.splice(..0, pushed);
        if wrong.is_empty() {
            space.warn();
            return Ok(space);
        }
        // Sort the errors by line; those in included files come last.
        wrong.sort_by_key(|wrong| (wrong.at.file != name, wrong.at.file.clone(), wrong.at.line));
        wrong.truncate(WRONG_MAX);
        bail!("{}", wrong.iter().map(Wrong::to_string).collect::<Vec<_>>().join("\n"))
    }

    /// Parses the SERVER and ADDR words of a line.
    fn understand(&mut self, mut line: Line, remote: &Remote) -> Result<(), String> {
        let dir = Path::new(&*line.at.file).parent().unwrap_or(Path::new(""));
        match &mut line.statement {
            Statement::Mount(mount) => {
                let kind = mount.server.parse::<Kind>()?.within(dir);
                match kind {
                    Kind::Remote(all) => {
                        if all.len() > 1 && mount.wait.is_none() {
                            return Err(format!("{}: equal servers are mounted with -r", mount.server));
                        }
                        // Check now: at the dial, a missing setting would be retried forever.
                        if all.iter().any(|one| matches!(one.addr, Addr::Tls { .. })) {
                            dial::trust(remote)
                                .map_err(|error| format!("{error:#}"))?
                                .ok_or(dial::UNKNOWN)?;
                        }
                    }
                    Kind::Net(Some(path)) => {
                        let whole = std::path::absolute(&path).map_err(|error| error.to_string())?;
                        mount.server = Kind::Net(Some(whole)).to_string();
                    }
                    Kind::Part(Some(path)) => {
                        let whole = std::path::absolute(&path).map_err(|error| error.to_string())?;
                        mount.server = Kind::Part(Some(whole)).to_string();
                    }
                    Kind::Posted(_) => {
                        let server = &mount.server;
                        return Err(format!(
                            "`{server}`: nothing is posted at the start; write the address itself"
                        ));
                    }
                    Kind::Disk(path) => {
                        let whole = std::path::absolute(&path).map_err(|error| error.to_string())?;
                        mount.server = Kind::Disk(whole).to_string();
                    }
                    Kind::Fs(spec) => {
                        let place = spec.place.within(dir).map_err(|error| error.to_string())?;
                        mount.server = Kind::Fs(Spec { place, ..spec }).to_string();
                    }
                    _ => {}
                }
            }
            Statement::NoListen => self.no_socket = true,
            Statement::Web { listener } => self.webs.push(listener.parse()?),
            Statement::Console { listener } => self.consoles.push(listener.parse::<Console>()?.within(dir)),
            Statement::Listen { addr, insecure, waits } => {
                let addr = addr.parse().map_err(|error: nine_net::DialError| error.to_string())?;
                let listen = Listen { insecure: *insecure, ..Listen::at(addr) };
                self.listen.push(listen.waiting(waits.as_deref().and_then(Waits::of))?);
            }
            Statement::Pop { .. } => {
                return Err("`pop` is for a mux that runs; leave out the `push` line".into());
            }
            Statement::Hangup { .. } => {
                return Err("`hangup` is for a mux that runs; write: ninefold mux hangup SERVER".into());
            }
            _ => {}
        }
        self.lines.push(line);
        Ok(())
    }

    /// Applies a `push` line to a listener, or to the mounted server with this word.
    fn pushed(&mut self, line: &Line, remote: &Remote) -> Result<Option<Statement>, String> {
        let Statement::Push { server, module } = &line.statement else { return Ok(None) };
        let addr = server.parse::<Addr>().ok();
        if let Some(listen) = self.listen.iter_mut().find(|listen| Some(&listen.addr) == addr.as_ref()) {
            listen.with_module(module)?;
            return Ok(None);
        }
        let kind = server.parse::<Kind>()?;
        let Kind::Remote(all) = &kind else {
            return Err(format!("{kind} is in this process: modules are for connections"));
        };
        let addrs: Vec<&Addr> = all.iter().map(|one| &one.addr).collect();
        let known = dial::modules(&addrs, remote).with("trace", Trace(TraceLog::default()));
        known.open(module).map_err(|fault| fault.to_string())?;
        let mounted = self.lines.iter().find_map(|line| match &line.statement {
            Statement::Mount(mount) => {
                // Compare without tokens; the result is the mounted word, with its token.
                let is_same = mount.server.parse::<Kind>().is_ok_and(|of| of.to_string() == kind.to_string());
                is_same.then(|| mount.server.clone())
            }
            _ => None,
        });
        let server = mounted.ok_or_else(|| format!("`{server}`: no line mounts or listens there"))?;
        Ok(Some(Statement::Push { server, module: module.clone() }))
    }

    /// Returns the name of the file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the directories of this host that the lines mount.
    pub fn disks(&self) -> Vec<PathBuf> {
        let kind = |line: &Line| match &line.statement {
            Statement::Mount(mount) => mount.server.parse().ok(),
            _ => None,
        };
        let disk = |kind| if let Kind::Disk(path) = kind { Some(path) } else { None };
        let mut disks: Vec<PathBuf> = self.lines.iter().filter_map(kind).filter_map(disk).collect();
        disks.sort();
        disks.dedup();
        disks
    }

    /// Returns the mount points of the main name space, as absolute paths.
    pub fn points(&self) -> Vec<PathBuf> {
        let mut points = Vec::new();
        for line in self.lines.iter().filter(|line| *line.space == *MAIN) {
            match &line.statement {
                Statement::Mount(Mount { old, .. }) | Statement::Bind { old, .. } => points.push(whole(old)),
                Statement::Unmount { new: None, old } => points.retain(|point| *point != whole(old)),
                _ => {}
            }
        }
        points
    }

    /// Warns about lines that are allowed but are often mistakes.
    fn warn(&self) {
        let mut first: HashMap<(&str, &str), &Line> = HashMap::new();
        let mut any = false;
        for line in &self.lines {
            let (flags, old) = match &line.statement {
                Statement::Mount(mount) => (mount.flags, &mount.old),
                Statement::Bind { flags, old, .. } => (*flags, old),
                Statement::Unmount { old, .. } => {
                    first.remove(&(&*line.space, trimmed(old)));
                    continue;
                }
                _ => continue,
            };
            any = true;
            let before = first.insert((&line.space, trimmed(old)), line);
            if let Some(before) = before.filter(|_| flags.order == Order::Replace) {
                fail::note(format_args!(
                    "{}: {old} again, without -a or -b: what line {} has put there is hidden",
                    line.at, before.at.line
                ));
            }
        }
        if !any {
            fail::note(format_args!("{}: nothing is mounted; an empty tree is served", self.name));
        }
    }

    /// Creates the mux and executes the lines. The returned values must live as long as it serves.
    pub async fn open(
        &self,
        env: rt::Real,
        serving: &Serving,
        remote: &Remote,
        clients: Core,
        seats: &[Arc<Seat>],
        archives: &Arc<Archives>,
    ) -> Result<(Arc<dyn FileServer>, Mux, Live)> {
        let is_disk =
            |line: &&Line| matches!(&line.statement, Statement::Mount(m) if m.server.starts_with("disk:"));
        let disks = self.lines.iter().filter(is_disk).count();
        let servers = Servers::new(serving, remote.clone(), env, disks, archives.clone());
        let mux = Mux::new(servers.root("the root"), nine_servers::disk::names());
        env.spawn(Box::pin(mux.run(env, seats)));
        let server: Arc<dyn FileServer> = Arc::new(mux.clone());
        servers.serve_guests(&server, clients.clone());
        let (name, uid) = dial::user(remote);
        let live = Live::new(mux.clone(), Owner { name: name.into(), uid: Some(uid) }, servers, clients);
        self.lay(&live, env, archives, serving.strict.unwrap_or(false)).await?;
        Ok((server, mux, live))
    }

    /// Replaces the name spaces by those of the lines, as a whole. On an error they stay unchanged. With `strict`, a
    /// server that does not answer is an error, too.
    pub async fn lay(
        &self,
        live: &Live,
        env: rt::Real,
        archives: &Arc<Archives>,
        strict: bool,
    ) -> Result<()> {
        let mut draft = live.draft();
        self.mount_files(&mut draft, MAIN, env).await?;
        let is_push = |line: &Line| matches!(line.statement, Statement::Push { .. });
        let mut contacts = self.lines.iter().position(|line| !is_push(line));
        for (n, line) in self.lines.iter().enumerate() {
            if contacts.take_if(|first| *first == n).is_some() {
                draft.contact(self.lines.iter().filter_map(far)).await;
            }
            if is_listener(&line.statement)
                || matches!(line.statement, Statement::NoMux | Statement::NoListen)
            {
                continue;
            }
            if let Statement::Mount(mount) = &line.statement
                && let Ok(Kind::Fs(spec)) = mount.server.parse()
            {
                let opened = archives.open(&spec).await;
                opened.map_err(|error| anyhow!("{}: {}: {error}", line.at, hidden(line)))?;
            }
            let is_new = !draft.has(&line.space);
            let done = within(&env, PATIENCE, draft.apply(&line.space, &line.statement)).await;
            let done = done.ok_or_else(|| anyhow!("no answer within {} s", PATIENCE.as_secs()))?;
            match done {
                Err(error) if !strict && draft.keep(&line.space, &line.statement, &error) => {
                    fail::note(format_args!(
                        "{}: {}: not yet: {error}; it is done when its server answers",
                        line.at,
                        hidden(line)
                    ));
                }
                done => done.map_err(|error| anyhow!("{}: {}: {error}", line.at, hidden(line)))?,
            }
            // Mounted first, so that lines can bind the files elsewhere; and again after a line covers the root.
            if is_new || covers_root(&line.statement) {
                self.mount_files(&mut draft, &line.space, env).await?;
            }
        }
        draft.replace();
        Ok(())
    }

    /// Reads the file again and replaces the name spaces. An invalid file changes nothing.
    pub async fn again(
        &self,
        live: &Live,
        env: rt::Real,
        remote: &Remote,
        archives: &Arc<Archives>,
        strict: bool,
    ) -> Result<()> {
        let Some(path) = &self.path else { return Ok(()) };
        let space = Self::read(path, remote)?;
        space.lay(live, env, archives, strict).await?;
        if (&space.listen, &space.webs, &space.consoles) != (&self.listen, &self.webs, &self.consoles) {
            tracing::warn!("{}: its `listen` lines have changed: they need a new start", space.name);
        }
        tracing::info!("the name space is what {} says now", space.name);
        Ok(())
    }

    async fn mount_files(&self, draft: &mut Draft, space: &str, env: rt::Real) -> Result<()> {
        let at_mux = |line: &Line| match &line.statement {
            Statement::Mount(mount) => *line.space == *space && trimmed(&mount.old) == "/mux",
            Statement::Bind { old, .. } => *line.space == *space && trimmed(old) == "/mux",
            _ => false,
        };
        if self.lines.iter().any(|line| line.statement == Statement::NoMux || at_mux(line)) {
            return Ok(());
        }
        match draft.mount_files(space, env.wall()).await {
            Err(error) if error.errno() == nine_proto::Errno::ENOENT => {
                let name = &self.name;
                fail::note(format_args!("{name}: no /mux in {space}: {error}; or say nomux"));
                Ok(())
            }
            other => other.context("/mux"),
        }
    }
}

impl fmt::Display for Space {
    /// Writes the file's name and its mount lines.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)?;
        let mut space: Arc<str> = MAIN.into();
        for line in &self.lines {
            if line.space != space {
                space = line.space.clone();
                write!(f, "\n    space {}", script::quote(&space))?;
            }
            let is_other =
                matches!(line.statement, Statement::NoMux | Statement::NoListen | Statement::Space { .. });
            if !is_other && !is_listener(&line.statement) {
                write!(f, "\n    {}", hidden(line))?;
            }
        }
        Ok(())
    }
}

/// Returns the name space and the mount of a line that mounts a remote server.
fn far(line: &Line) -> Option<(&str, &Mount)> {
    let Statement::Mount(mount) = &line.statement else { return None };
    matches!(mount.server.parse(), Ok(Kind::Remote(_))).then_some((&*line.space, mount))
}

/// Returns a line without the token that its address may contain.
fn hidden(line: &Line) -> Statement {
    let mut statement = line.statement.clone();
    if let Statement::Mount(Mount { server, .. }) | Statement::Push { server, .. } = &mut statement
        && let Ok(kind @ Kind::Remote(_)) = server.parse::<Kind>()
        && kind.has_token()
    {
        *server = kind.to_string();
    }
    statement
}

/// Returns whether the line adds a listener.
fn is_listener(statement: &Statement) -> bool {
    matches!(statement, Statement::Listen { .. } | Statement::Web { .. } | Statement::Console { .. })
}

/// Returns whether the line covers the root.
fn covers_root(statement: &Statement) -> bool {
    match statement {
        Statement::Mount(mount) => trimmed(&mount.old).is_empty() && mount.flags.order == Order::Replace,
        Statement::Bind { flags, old, .. } => trimmed(old).is_empty() && flags.order == Order::Replace,
        _ => false,
    }
}

/// Normalizes a path to an absolute one, as a walk from the root would.
fn whole(path: &str) -> PathBuf {
    let mut whole = PathBuf::from("/");
    for name in path.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(whole.pop()),
            name => whole.push(name),
        }
    }
    whole
}

fn trimmed(path: &str) -> &str {
    path.trim_end_matches('/')
}

/// Gives scripts access to included files and the environment.
struct Files;

impl World for Files {
    fn include(&mut self, name: &str, from: &str) -> io::Result<(Arc<str>, String)> {
        let path = Path::new(from).parent().unwrap_or(Path::new("")).join(name);
        Ok((shown(&path), text(&path)?))
    }

    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok()
    }
}

/// Returns a unique name of a file: relative to the current directory if it is below it.
fn shown(path: &Path) -> Arc<str> {
    let whole = path.canonicalize().unwrap_or(path.into());
    let here = std::env::current_dir().and_then(|dir| dir.canonicalize()).unwrap_or_default();
    whole.strip_prefix(here).unwrap_or(&whole).display().to_string().into()
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    // Nonblocking, so that the open does not wait for the writer of a pipe.
    let file = File::options().read(true).custom_flags(OFlags::NONBLOCK.bits() as i32).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let n = file.take(FILE_MAX + 1).read_to_string(&mut text)?;
    if n as u64 > FILE_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a name space file has at most 1 MiB"));
    }
    Ok(text)
}

/// Limit of one file, bytes.
const FILE_MAX: u64 = 1 << 20;
/// Limit for one line at the start. Unreachable servers are detected earlier.
const PATIENCE: Duration = Duration::from_secs(30);
