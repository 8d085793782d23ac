//! The meaning of a SERVER word in a name space: `disk:/path`, `ram:` or `ram:SIZE`, `pipe:`, `cons:`, `srv:`, `net:`
//! or `net:POLICY`, `shm:`, `part:` or `part:POLICY`, `aoe:` or `aoe:IFACE,IFACE`, `fs:` or `fs:ARCHIVE`, `fsctl:`, an
//! address, `/srv/NAME` (a posted address), or `/shm/NAME` (the guest of a channel).
//!
//! In: words, and the settings for connections and directories. Out: [`Server`]s of nine-mux, dialled when they are
//! needed. The same word for a disk, an archive or an address is the same server each time, and so are `cons:`, `srv:`,
//! `net:`, `shm:`, `part:`, `aoe:` and `fsctl:`. Every `ram:` and every `pipe:` is a new server.

use std::collections::HashMap;
use std::fmt;
use std::future::ready;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use nine_io::channel::Asking;
use nine_io::client::Options;
use nine_io::server::{Core, FileServer, Gate, Service, Who};
use nine_mux::{As, Boxed, Dial, Kinds, Local, Server, Spawn, is_owner, told};
use nine_net::modules::{Trace, TraceLog, modules};
use nine_net::shm::{Channel, Passed, VARIABLE, Waits};
use nine_net::{Addr, Env, Peer, Proof, Pushed, Socket, Target, Transport, rt};
use nine_proto::{Dialect, NOUID};
use nine_servers::net::{Datagrams, Network, Policy, Tcp, Unix};
use nine_servers::shm::GUEST;
use nine_servers::{Channels, Disk, Net, Parts, Pipes, Posts, Ram, part};

use super::aoe;
use super::console;
use super::export::{self, disk_options};
use crate::archive::{self, Archives, Spec};
use crate::config::{DialectChoice, Identity, Remote, Serving};
use crate::dial::Sessions;
use crate::operand::{Place, ServerAddr};
use crate::{dial, fail};

/// The meaning of a word, before anything is opened.
#[derive(Clone, PartialEq, Eq)]
pub enum Kind {
    Disk(PathBuf),
    Ram(u64),
    Pipe,
    Cons,
    Srv,
    /// The network, with the policy in this file.
    Net(Option<PathBuf>),
    /// Channels of shared memory.
    Shm,
    /// Programs in sessions of files, with the policy in this file.
    Part(Option<PathBuf>),
    /// The guest of the channel of this name.
    Guest(String),
    /// The host of the channel that this program was started with.
    Host,
    /// Disks on these Ethernets, or on all of them if empty.
    Aoe(Vec<String>),
    /// An archive.
    Fs(Spec),
    /// The consoles of all archives.
    FsCtl,
    /// The server posted under this name.
    Posted(String),
    /// Equal servers, in the order of dialling. Not empty.
    Remote(Vec<Reached>),
}

/// An address, and the token to present there.
#[derive(Clone, PartialEq, Eq)]
pub struct Reached {
    pub addr: Addr,
    pub token: Option<String>,
}

impl Kind {
    /// Returns whether it contains a secret.
    pub fn has_token(&self) -> bool {
        matches!(self, Kind::Remote(all) if all.iter().any(|one| one.token.is_some()))
    }

    /// Makes a relative path relative to `dir`.
    pub fn within(self, dir: &Path) -> Self {
        match self {
            Kind::Disk(path) => Kind::Disk(dir.join(path)),
            Kind::Net(Some(path)) => Kind::Net(Some(dir.join(path))),
            Kind::Part(Some(path)) => Kind::Part(Some(dir.join(path))),
            other => other,
        }
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(word: &str) -> Result<Kind, String> {
        const KNOWN: &str = "write disk:/PATH, ram:[SIZE], pipe:, cons:, srv:, net:[POLICY], shm:, host:, \
             part:[POLICY], aoe:[IFACE], fs:[ARCHIVE], fsctl:, an address like unix!/PATH, tcp!HOST!PORT, \
             9p://HOST, /srv/NAME for one that was posted, or /shm/NAME for the guest of a channel";
        if let Some(name) = word.strip_prefix(POSTED) {
            nine_proto::check_name(name.as_bytes())
                .map_err(|_| format!("`{word}` is no post; write /srv/NAME"))?;
            return Ok(Kind::Posted(name.into()));
        }
        if let Some(name) = word.strip_prefix(GUEST) {
            nine_proto::check_name(name.as_bytes())
                .map_err(|_| format!("`{word}` is no channel; write /shm/NAME"))?;
            return Ok(Kind::Guest(name.into()));
        }
        match word.split_once(':') {
            Some(("disk", "")) => Err("`disk:` without a path; write disk:/PATH".into()),
            Some(("disk", path)) => Ok(Kind::Disk(path.into())),
            Some(("ram", "")) => Ok(Kind::Ram(export::default_ram_size())),
            Some(("ram", size)) => export::ram_size(size).map(Kind::Ram),
            Some(("pipe", "")) => Ok(Kind::Pipe),
            Some(("cons", "")) => Ok(Kind::Cons),
            Some(("srv", "")) => Ok(Kind::Srv),
            Some(("net", "")) => Ok(Kind::Net(None)),
            Some(("net", path)) => Ok(Kind::Net(Some(path.into()))),
            Some(("shm", "")) => Ok(Kind::Shm),
            Some(("host", "")) => Ok(Kind::Host),
            Some(("part", "")) => Ok(Kind::Part(None)),
            Some(("part", path)) => Ok(Kind::Part(Some(path.into()))),
            Some(("aoe", "")) => Ok(Kind::Aoe(Vec::new())),
            Some(("aoe", names)) => Ok(Kind::Aoe(names.split(',').map(String::from).collect())),
            Some(("fs", archive)) => archive.parse().map(Kind::Fs).map_err(|why| format!("`fs:`: {why}")),
            Some(("fsctl", "")) => Ok(Kind::FsCtl),
            Some((kind @ ("pipe" | "cons" | "srv" | "fsctl" | "host"), rest)) => {
                Err(format!("`{kind}:` takes nothing behind it: leave `{rest}` out"))
            }
            Some((kind, rest))
                if !matches!(kind, "unix" | "shm")
                    && !kind.contains(['!', '/'])
                    && !rest.starts_with("//") =>
            {
                Err(format!("`{kind}:` is no kind of server; {KNOWN}"))
            }
            None if !word.contains('!') => Err(format!("`{word}` is no server; {KNOWN}")),
            _ => {
                // A path may contain commas. A comma separates servers only if an address follows it.
                let equal = word.match_indices(',').find_map(|(at, _)| match word[at + 1..].parse() {
                    Ok(Kind::Remote(rest)) => Some((&word[..at], rest)),
                    _ => None,
                });
                let (first, rest) = equal.unwrap_or((word, Vec::new()));
                let mut all = vec![Reached::parse(first)?];
                all.extend(rest);
                if all.len() > 1 + nine_mux::OTHERS_MAX as usize {
                    return Err(format!("equal servers are at most {}", 1 + nine_mux::OTHERS_MAX));
                }
                // A token must not be sent to a server that it is not for.
                if all.iter().any(|one| one.token != all[0].token) {
                    return Err("equal servers are shown the same token: write it before each".into());
                }
                Ok(Kind::Remote(all))
            }
        }
    }
}

impl Reached {
    fn parse(word: &str) -> Result<Self, String> {
        // No path may follow the address: all of `unix:/PATH` is the socket.
        let Target { addr, path, token } =
            Target::parse(word, |_| false).map_err(|error| error.to_string())?;
        if path != "/" {
            return Err(format!("{addr}{path}: a server is mounted whole; bind what is below {path} then"));
        }
        Ok(Self { addr, token })
    }
}

impl fmt::Display for Kind {
    /// Writes the word without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Disk(path) => write!(f, "disk:{}", path.display()),
            Kind::Ram(size) if *size == export::default_ram_size() => f.write_str("ram:"),
            Kind::Ram(size) => write!(f, "ram:{}", nine_text::show_size(*size)),
            Kind::Pipe => f.write_str("pipe:"),
            Kind::Cons => f.write_str("cons:"),
            Kind::Srv => f.write_str("srv:"),
            Kind::Net(None) => f.write_str("net:"),
            Kind::Net(Some(path)) => write!(f, "net:{}", path.display()),
            Kind::Shm => f.write_str("shm:"),
            Kind::Host => f.write_str(HOST),
            Kind::Part(None) => f.write_str("part:"),
            Kind::Part(Some(path)) => write!(f, "part:{}", path.display()),
            Kind::Guest(name) => write!(f, "{GUEST}{name}"),
            Kind::Aoe(names) => write!(f, "aoe:{}", names.join(",")),
            Kind::Fs(spec) => write!(f, "fs:{spec}"),
            Kind::FsCtl => f.write_str("fsctl:"),
            Kind::Posted(name) => write!(f, "{POSTED}{name}"),
            Kind::Remote(all) => f.write_str(&shown(all)),
        }
    }
}

/// Lists the addresses without their secrets.
fn shown(all: &[Reached]) -> String {
    let all: Vec<String> = all.iter().map(|one| one.addr.to_string()).collect();
    all.join(",")
}

/// The text of a post: a line with addresses, and one `push MODULE` line for each module.
struct Post {
    all: Vec<Reached>,
    modules: Vec<String>,
}

impl Post {
    fn parse(text: &str, remote: &Remote) -> Result<Self, String> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let first = lines.next().unwrap_or_default();
        let Kind::Remote(all) = first.parse()? else {
            return Err(format!("`{first}` is no address; write one like tcp!HOST!PORT, unix!/PATH"));
        };
        let addrs: Vec<&Addr> = all.iter().map(|one| &one.addr).collect();
        let known = dial::modules(&addrs, remote).with("trace", Trace(TraceLog::default()));
        let modules = lines.map(|line| {
            let module = line.strip_prefix("push ").map(str::trim);
            let module = module.ok_or_else(|| format!("`{line}` behind an address; write: push MODULE"))?;
            known.open(module).map_err(|fault| fault.to_string())?;
            Ok(module.to_owned())
        });
        let modules = modules.collect::<Result<Vec<_>, String>>()?;
        Ok(Self { all, modules })
    }
}

impl fmt::Display for Post {
    /// Writes the text without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(&self.all))?;
        self.modules.iter().try_for_each(|module| write!(f, "\npush {module}"))
    }
}

/// Creates and shares the servers that words stand for.
pub struct Servers {
    serving: Serving,
    remote: Remote,
    env: rt::Real,
    /// Buffers of this process's own servers, apart from those of the clients, so that each can be drained alone.
    core: Core,
    /// Number of served directories, which share the limit of descriptors.
    disks: usize,
    posts: Arc<Posts>,
    channels: OnceLock<Arc<Channels>>,
    /// Program sessions by word, one for each word.
    parts: Mutex<HashMap<String, Arc<Parts>>>,
    served: Arc<OnceLock<Guests>>,
    archives: Arc<Archives>,
    state: Mutex<State>,
}

/// The server for the guests of channels, while it exists, and the core of its clients.
type Guests = (Weak<dyn FileServer>, Core);

#[derive(Default)]
struct State {
    rams: usize,
    pipes: usize,
    /// Tokens used so far for each address: each set of tokens is a connection of its own.
    shown: HashMap<String, Vec<Vec<Reached>>>,
}

impl Servers {
    /// Creates the servers of a name space that mounts `disks` directories of this host.
    pub fn new(
        serving: &Serving,
        remote: Remote,
        env: rt::Real,
        disks: usize,
        archives: Arc<Archives>,
    ) -> Self {
        let (serving, core, state) = (serving.clone(), Core::default(), Mutex::default());
        let known = remote.clone();
        let judge = move |text: &str| Post::parse(text, &known).map(|post| post.to_string());
        let posts = Arc::new(Posts::new(env.clock(), owns, judge));
        let (channels, parts, served) = (OnceLock::new(), Mutex::default(), Arc::default());
        let disks = disks.max(1);
        Self { serving, remote, env, core, disks, posts, channels, parts, served, archives, state }
    }

    /// Sets the server that guests of channels get.
    pub fn serve_guests(&self, server: &Arc<dyn FileServer>, clients: Core) {
        // Weak, because the server itself owns the channels.
        let _ = self.served.set((Arc::downgrade(server), clients));
    }

    /// Creates a tree in memory for mount points.
    pub fn root(&self, name: &str) -> Server {
        Local::scratch(name, Arc::new(Ram::new(ROOT)), self.core.clone())
    }

    fn disk(&self, path: &Path) -> Result<Server> {
        let whole = path.canonicalize().with_context(|| path.display().to_string())?;
        let mut options = disk_options(&self.serving);
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let share = limit.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX)) / 4 / self.disks;
        options.handles = share.max(16);
        let disk = Disk::open(&whole, options).with_context(|| path.display().to_string())?;
        Ok(Local::server(&format!("disk:{}", whole.display()), Arc::new(disk), self.core.clone()))
    }

    fn ram(&self, kind: &Kind, size: u64) -> Server {
        let n = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.rams += 1;
            state.rams
        };
        Local::scratch(&numbered(&kind.to_string(), n), Arc::new(Ram::new(size)), self.core.clone())
    }

    fn pipe(&self, kind: &Kind) -> Server {
        let n = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.pipes += 1;
            state.pipes
        };
        let (pipes, driver) = Pipes::new(modules(), self.env.clock(), PIPES);
        self.env.spawn(Box::pin(driver));
        Local::told(&numbered(&kind.to_string(), n), Arc::new(pipes.told_by(told)), self.core.clone())
    }

    fn net(&self, kind: &Kind, policy: Option<&Path>) -> Result<Server> {
        let policy = match policy {
            None => Policy::default(),
            Some(path) => Policy::read(path).map_err(|why| anyhow!("{}: {why}", path.display()))?,
        };
        let networks: Vec<Arc<dyn Network>> = vec![
            Arc::new(Tcp),
            Arc::new(Datagrams::udp(self.env.clock())),
            Arc::new(Datagrams::il(self.env.clock())),
            Arc::new(Unix),
        ];
        let (net, driver) = Net::new(networks, policy, modules(), self.env.clock(), CONVERSATIONS);
        self.env.spawn(Box::pin(driver));
        Ok(self.owned(kind, Arc::new(net.told_by(told))))
    }

    /// Returns the channels of this server, the same ones each time.
    fn channels(&self) -> Arc<Channels> {
        let make = || {
            let (channels, driver) = Channels::new(self.env.wall(), self.posts.clone(), self.serves());
            self.env.spawn(Box::pin(driver.run(self.env)));
            Arc::new(channels.told_by(told))
        };
        self.channels.get_or_init(make).clone()
    }

    /// Returns the service for guests of channels, once a server is set.
    fn serves(&self) -> impl Fn() -> Option<Service> + Send + Sync + 'static {
        let served = self.served.clone();
        let gate = Gate { read_only: self.serving.read_only.unwrap_or(false), ..Gate::default() };
        move || {
            let (server, clients) = served.get()?;
            Some(Service::new(server.upgrade()?, gate.clone(), clients.clone()))
        }
    }

    /// Returns the sessions of a policy, the same ones each time.
    fn parts(&self, kind: &Kind, policy: Option<&Path>) -> Result<Arc<Parts>> {
        let mut all = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(parts) = all.get(&kind.to_string()) {
            return Ok(parts.clone());
        }
        let wrong = |path: &Path, why| anyhow!("{}: {why}", path.display());
        let policy = match policy {
            None => part::Policy::default(),
            Some(path) => part::Policy::read(path).map_err(|why| wrong(path, why))?,
        };
        let dir = std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty());
        // Programs may run as other users, which cannot enter root's runtime directory.
        let dir = dir.filter(|_| !rustix::process::geteuid().is_root());
        let dir = dir.map_or_else(std::env::temp_dir, PathBuf::from);
        let spread = super::part::spread(self.remote.clone(), self.env);
        let outside = part::Outside {
            serves: Box::new(self.serves()),
            machines: Some(Box::new(super::part::Images)),
            spread: Some(spread),
        };
        let made = Parts::new(policy, self.env.wall(), &dir, outside);
        let (parts, driver) = made.map_err(|why| anyhow!("{kind}: {why}"))?;
        self.env.spawn(Box::pin(driver.run(self.env)));
        let parts = Arc::new(parts.told_by(told));
        all.insert(kind.to_string(), parts.clone());
        Ok(parts)
    }

    /// Returns the server of the guest of a channel.
    fn guest(&self, kind: &Kind, name: &str) -> Server {
        let dial = Guest { channels: self.channels(), name: name.into() };
        let (user, uid) = dial::user(&self.remote);
        let mut server = Server::new(&kind.to_string(), Arc::new(dial));
        server.options.clock = Some(self.env.clock());
        Server { user: (user.into(), uid), ..server }
    }

    /// Returns the server of these equal places: at their addresses, or at the other end of our channel.
    pub fn of(&self, places: &[Place], sessions: &Sessions) -> anyhow::Result<Server> {
        let mut all = Vec::new();
        for place in places {
            match &place.addr {
                ServerAddr::Dialed(addr) => {
                    all.push(Reached { addr: addr.clone(), token: sessions.token(place)? });
                }
                ServerAddr::Inherited => return Ok(self.host()),
            }
        }
        Ok(self.reach(&all))
    }

    /// Returns the server of the host of the channel that this program was started with.
    pub fn host(&self) -> Server {
        let mut server = Server::new(HOST, Arc::new(Inherited { waits: self.remote.waits() }));
        server.options.clock = Some(self.env.clock());
        let (user, uid) = dial::user(&self.remote);
        Server { user: (user.into(), uid), ..server }
    }

    /// Returns a server with files that have an owner. The mux tells it which client is the owner.
    fn owned(&self, kind: &Kind, server: Arc<dyn FileServer>) -> Server {
        let mut server = Local::told(&kind.to_string(), server, self.core.clone());
        // 9P2000.L cannot carry the text of an error.
        server.options.dialects = vec![Dialect::U];
        // Reads that wait forever hold no resources here, and must not block other requests.
        (server.options.calls, server.options.budget) = (WAITING, WAITING << 16);
        server
    }

    /// Returns the server that was posted under this name.
    fn posted(&self, name: &str) -> Result<Server, String> {
        let text = self.posts.get(name).ok_or_else(|| {
            let posted = self.posts.posted().join(", ");
            let known = if posted.is_empty() { "nothing is".into() } else { format!("posted are: {posted}") };
            format!("`{POSTED}{name}`: nothing is posted by this name; {known}")
        })?;
        if let Some(name) = text.strip_prefix(GUEST) {
            return Ok(self.guest(&Kind::Guest(name.into()), name));
        }
        let Post { all, modules } = Post::parse(&text, &self.remote)?;
        let server = self.reach(&all);
        Ok(if modules.is_empty() { server } else { Server { pushed: modules, ..server } })
    }

    /// Returns the server for equal addresses.
    pub fn reach(&self, all: &[Reached]) -> Server {
        let name = shown(all);
        let n = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let shown = state.shown.entry(name.clone()).or_default();
            let at = shown.iter().position(|of| of == all).unwrap_or_else(|| {
                shown.push(all.to_vec());
                shown.len() - 1
            });
            at + 1
        };
        let mut options = Options { token: all[0].token.clone(), ..Server::options() };
        options.msize = self.remote.msize.unwrap_or(options.msize);
        options.dialects = DialectChoice::list(self.remote.dialect).unwrap_or(options.dialects);
        options.clock = Some(self.env.clock());
        if let Some(data) = self.data(all) {
            options = dial::with_streams(options, Arc::new(data), self.remote.dialect);
        }
        let mut dials = all.iter().map(|one| -> Arc<dyn Dial> {
            Arc::new(Reach { addr: one.addr.clone(), remote: self.remote.clone(), env: self.env })
        });
        let first = dials.next().expect("a remote server has an address");
        let server = Server::new(&numbered(&name, n), first);
        let addrs: Vec<&Addr> = all.iter().map(|one| &one.addr).collect();
        let modules = dial::modules(&addrs, &self.remote).with("trace", Trace(server.trace.clone()));
        options.pushed = Some(Pushed { modules, clock: self.env.clock() });
        let (user, uid) = dial::user(&self.remote);
        let pushed = self.remote.push.iter().map(|module| module.trim().to_owned()).collect();
        Server { others: dials.collect(), options, user: (user.into(), uid), pushed, ..server }
    }

    /// Returns how to dial data connections of these equal servers, or `None` if that is impossible. Over TLS there
    /// must be only one server, because a certificate is verified against one name.
    fn data(&self, all: &[Reached]) -> Option<dial::Data> {
        let plain = all.iter().all(|one| matches!(one.addr, Addr::Tcp { .. }));
        let tls = match all {
            _ if plain => None,
            [Reached { addr: Addr::Tls { host, .. }, .. }] => {
                Some((dial::trust(&self.remote).ok()??, host.clone()))
            }
            _ => return None,
        };
        Some(dial::Data::new(self.env, tls, dial::Moved::default()))
    }
}

impl Kinds for Servers {
    fn server(&self, word: &str) -> Result<(Server, String), String> {
        let kind: Kind = word.parse()?;
        let server = match &kind {
            Kind::Disk(path) if path.is_relative() => {
                return Err(format!("{kind}: a path that begins with `/` is due"));
            }
            Kind::Disk(path) => self.disk(path).map_err(|error| format!("{error:#}"))?,
            Kind::Ram(size) => self.ram(&kind, *size),
            Kind::Pipe => self.pipe(&kind),
            Kind::Cons => self.owned(&kind, console::get(self.env, &dial::user(&self.remote).0)),
            Kind::Srv => self.owned(&kind, self.posts.clone()),
            Kind::Shm => self.owned(&kind, self.channels()),
            Kind::Guest(name) => self.guest(&kind, name),
            Kind::Host => self.host(),
            Kind::Net(Some(path)) | Kind::Part(Some(path)) if path.is_relative() => {
                return Err(format!("{kind}: a path that begins with `/` is due"));
            }
            Kind::Part(policy) => {
                let parts = self.parts(&kind, policy.as_deref()).map_err(|error| format!("{error:#}"))?;
                self.owned(&kind, parts)
            }
            Kind::Net(policy) => self.net(&kind, policy.as_deref()).map_err(|error| format!("{error:#}"))?,
            Kind::Aoe(names) => {
                let disks = aoe::serve(names, self.env).map_err(|error| format!("{error:#}"))?;
                self.owned(&kind, Arc::new(disks))
            }
            Kind::Fs(spec) if !spec.place.is_absolute() => {
                return Err(format!("{kind}: paths that begin with `/` are due"));
            }
            Kind::Fs(spec) => {
                let coming = self.archives.begin(spec).map_err(|why| format!("{kind}: {why:#}"))?;
                // The options do not change which archive it is, so they are not part of the name.
                let name =
                    Kind::Fs(Spec { options: archive::Options::default(), ..spec.clone() }).to_string();
                let open = move || {
                    let coming = coming.clone();
                    Box::pin(async move {
                        coming.opened().await.map_err(std::io::Error::other)?;
                        Ok(coming as Arc<dyn FileServer>)
                    }) as nine_mux::Boxed<_>
                };
                Local::soon(&name, open, self.core.clone())
            }
            Kind::FsCtl => self.owned(&kind, Arc::new(self.archives.consoles(self.env))),
            Kind::Posted(name) => self.posted(name)?,
            Kind::Remote(all) => self.reach(all),
        };
        let shown = match kind {
            Kind::Ram(_) | Kind::Pipe | Kind::Posted(_) | Kind::Fs(_) => kind.to_string(),
            // The server's name may have a number, which tells it from one that is mounted with another token.
            Kind::Remote(all) => shown(&all),
            _ => server.name.to_string(),
        };
        Ok((server, shown))
    }

    fn user(&self) -> As {
        if self.serving.identity == Some(Identity::Client) {
            return As::Client;
        }
        let (name, uid) = dial::user(&self.remote);
        As::User { name: name.into(), uid: (uid != NOUID).then_some(uid) }
    }

    fn backbone(&self, space: &str) -> Server {
        self.root(&format!("the root of {space}"))
    }
}

/// Returns whether a client that attaches with this aname is the owner.
pub fn owns(_: &Who, aname: &[u8]) -> bool {
    is_owner(aname)
}

fn numbered(name: &str, n: usize) -> String {
    if n == 1 { name.into() } else { format!("{name} ({n})") }
}

/// Dials the guest of a channel. The guest is there already, or cannot be reached.
struct Guest {
    channels: Arc<Channels>,
    name: String,
}

impl Dial for Guest {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        Box::pin(ready(self.channels.dial(&self.name)))
    }
}

/// Joins the channel that this program was started with, anew for each dial, one dial at a time.
struct Inherited {
    waits: Waits,
}

impl Inherited {
    /// Returns the channel's descriptors, which are taken over once. They are not inherited by child programs.
    fn passed() -> io::Result<Passed> {
        static PASSED: OnceLock<Option<Passed>> = OnceLock::new();
        let variable = std::env::var(VARIABLE).ok();
        let passed = PASSED.get_or_init(|| Passed::inherited(variable.as_deref()).ok().flatten());
        let Passed { memory, wait, ring, life } = passed.as_ref().ok_or_else(|| {
            let why = format!("this program was not started with a channel (docs/channels.md): {VARIABLE}");
            io::Error::new(io::ErrorKind::NotFound, why)
        })?;
        Ok(Passed {
            memory: memory.try_clone()?,
            wait: wait.try_clone()?,
            ring: ring.try_clone()?,
            life: life.try_clone()?,
        })
    }
}

impl Dial for Inherited {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let waits = self.waits;
        Box::pin(async move { Ok(Box::new(Asking::new(join_host(waits).await?)) as Box<dyn Transport>) })
    }
}

/// Joins the channel that this program was started with. One caller at a time.
pub async fn join_host(waits: Waits) -> io::Result<Channel> {
    let peer = Peer { addr: HOST.into(), proof: Proof::None };
    Channel::join(Inherited::passed()?, waits, peer).await
}

/// Returns whether this program was started with a channel.
pub fn has_host() -> bool {
    std::env::var_os(VARIABLE).is_some()
}

/// Dials a server, like the client verbs.
struct Reach {
    addr: Addr,
    remote: Remote,
    env: rt::Real,
}

impl Dial for Reach {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let (addr, remote, env) = (self.addr.clone(), self.remote.clone(), self.env);
        Box::pin(async move {
            if let Addr::Il { .. } = addr {
                let talk = dial::il(&addr, CONNECT, &env).await.map_err(|error| bare(&addr, error))?;
                return Ok(Box::new(talk) as Box<dyn Transport>);
            }
            if let Addr::Shm { path } = &addr {
                let channel = Channel::dial(path, remote.waits(), CONNECT).await;
                let channel = channel.map_err(|error| bare(&addr, error))?;
                return Ok(Box::new(Asking::new(channel)) as Box<dyn Transport>);
            }
            let socket = Socket::connect(&addr, CONNECT).await.map_err(|error| bare(&addr, error))?;
            let Addr::Tls { host, .. } = &addr else {
                return Ok(Box::new(socket) as Box<dyn Transport>);
            };
            // Report this like a refusal by the server: to wait would not repair the files.
            let own =
                |error| io::Error::new(io::ErrorKind::PermissionDenied, format!("our certificates: {error}"));
            let tls = dial::trust(&remote).map_err(own)?;
            let tls = tls.ok_or_else(|| io::Error::new(io::ErrorKind::PermissionDenied, dial::UNKNOWN))?;
            let late = env.sleep_until(env.now() + CONNECT);
            let tls = tls.connect(socket, host, late).await.map_err(|error| bare(&addr, error))?;
            Ok(Box::new(tls) as Box<dyn Transport>)
        })
    }
}

/// Strips the address from an error: the caller adds it.
fn bare(addr: &Addr, error: io::Error) -> io::Error {
    let text = error.to_string();
    let text = text.strip_prefix(&format!("{addr}: ")).unwrap_or(&text);
    io::Error::new(error.kind(), fail::plain(text))
}

/// Size of a tree for mount points, and for files that clients create beside them, bytes.
const ROOT: u64 = 64 << 20;
/// The host of the channel that this program was started with, as a server.
const HOST: &str = "host:";
/// Prefix of the name of a posted server.
const POSTED: &str = "/srv/";
/// Limit of waiting requests at a server that lets reads wait.
const WAITING: usize = 16 << 10;
/// Limit of conversations of one network.
const CONVERSATIONS: usize = 20_000;
/// Limit of pipes of one server.
const PIPES: usize = 1000;
/// Limit for a connection, and for its TLS handshake.
const CONNECT: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_a_server_or_the_known_ones_are_told() {
        let shown = |word: &str| word.parse::<Kind>().map(|kind| kind.to_string());
        for (word, kind) in [
            ("disk:/srv", "disk:/srv"),
            ("disk:srv", "disk:srv"),
            ("ram:", "ram:"),
            ("ram:64M", "ram:64M"),
            ("ram:65537", "ram:65537"),
            ("ram:1024K", "ram:1M"),
            ("pipe:", "pipe:"),
            ("cons:", "cons:"),
            ("srv:", "srv:"),
            ("net:", "net:"),
            ("net:/etc/policy", "net:/etc/policy"),
            ("shm:", "shm:"),
            ("shm:/run/x", "shm!/run/x"),
            ("/shm/lab", "/shm/lab"),
            ("host:", "host:"),
            ("part:", "part:"),
            ("part:/etc/part", "part:/etc/part"),
            ("aoe:", "aoe:"),
            ("aoe:eth0,eth1", "aoe:eth0,eth1"),
            ("fs:", "fs:"),
            ("fs:/srv/archive,schedule=off", "fs:/srv/archive,schedule=off"),
            ("fsctl:", "fsctl:"),
            ("/srv/lab", "/srv/lab"),
            ("/srv/a!b", "/srv/a!b"),
            ("unix:/run/x/y", "unix!/run/x/y"),
            ("unix!/run/x", "unix!/run/x"),
            ("9p://secret@h:5", "tcp!h!5"),
            ("9p+tls://h", "tls!h!5640"),
            ("tcp!h", "tcp!h!564"),
            ("tcp!h,9p://h2", "tcp!h!564,tcp!h2!564"),
            ("unix!/run/a,b", "unix!/run/a,b"),
            ("unix!/run/a,b,unix!/run/c", "unix!/run/a,b,unix!/run/c"),
        ] {
            assert_eq!(shown(word), Ok(kind.into()), "{word}");
        }
        for (word, said) in [
            ("fish:", "`fish:` is no kind of server; write disk:/PATH, ram:"),
            ("pipe:x", "leave `x` out"),
            ("fs:c x", "an archive is the path of a file"),
            ("fsctl:x", "leave `x` out"),
            ("cons:x", "`cons:` takes nothing behind it"),
            ("/srv/", "write /srv/NAME"),
            ("/srv/a/b", "write /srv/NAME"),
            ("/shm/", "write /shm/NAME"),
            ("/srv", "`/srv` is no server; write disk:/PATH"),
            ("disk:", "without a path"),
            ("ram:x", "invalid size `x`"),
            ("tcp!h!x", "not a number"),
            ("tcp!h!5/dir", "tcp!h!5/dir: a server is mounted whole"),
            ("9p://a@h,9p://b@h2", "the same token"),
        ] {
            let error = shown(word).unwrap_err();
            assert!(error.contains(said), "{word}: {error}");
        }
    }
}
