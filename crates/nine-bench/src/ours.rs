//! Our contestants, configured as by `ninefold serve`, each in a process of its own: a host directory, in-memory trees,
//! a mux; and a server that answers no reads. Modules may be pushed on their connections, except on those of `bare`
//! ones, which are for comparison.

use std::ffi::OsStr;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, try_join_all};
use nine_gate::http;
use nine_io::client;
use nine_io::server::{
    Anonymous, Answer, Core, Door, Entrance, FileServer, Gate, Later, Node, Req, ReqId, Seat, Service, listen,
};
use nine_mux::script::{Alone, parse};
use nine_mux::{As, Boxed, Dial, Flags, Kinds, Live, Local, MAIN, Mux, Owner, Server, Spawn};
use nine_net::modules::modules;
use nine_net::{Addr, Env, Listener, Peer, Proof, Pushed, Socket, Transport, rt};
use nine_proto::{Dialect, Errno, NOUID, Numeric, Op};
use nine_servers::cons::{Cons, Host};
use nine_servers::net::{Datagrams, Net, Network, Policy, Tcp};
use nine_servers::{Disk, DiskOptions, Ram};
use rustix::process::geteuid;

use crate::child;

/// More clients than any experiment has.
const CLIENTS: usize = 20_000;
/// Size of an in-memory tree, bytes.
const RAM: u64 = 1 << 30;
/// Age at which a request gets priority, in the schedule that sends the shortest answer first.
const AGE: Duration = Duration::from_secs(5);
/// Limit of conversations of `/net`.
const CONVERSATIONS: usize = 1000;
/// Limit for a connection to a server of this machine.
const CONNECT: Duration = Duration::from_secs(10);

/// Serves a directory.
pub fn serve(dir: &Path, socket: &Path, converses: bool) -> io::Result<()> {
    on_cores(async |env, seats| {
        let disk = Arc::new(Disk::open(dir, DiskOptions::default())?);
        doors(env, seats, Core::default(), converses, vec![(socket, disk)]).await
    })
}

/// Serves an in-memory tree at each of these sockets.
pub fn ram(sockets: &[&OsStr]) -> io::Result<()> {
    trees(sockets, || Arc::new(Ram::new(RAM)))
}

/// Like [`ram`], but reads of files are never answered.
pub fn mute(sockets: &[&OsStr]) -> io::Result<()> {
    trees(sockets, || Arc::new(SilentTree { ram: Ram::new(RAM), waiting: Mutex::default() }))
}

fn trees(sockets: &[&OsStr], tree: impl Fn() -> Arc<dyn FileServer> + Sync) -> io::Result<()> {
    on_cores(async |env, seats| {
        let servers = sockets.iter().map(|socket| (Path::new(socket), tree())).collect();
        doors(env, seats, Core::default(), true, servers).await
    })
}

/// Serves a directory to browsers, over a mux.
pub fn web(dir: &Path, addr: &OsStr, shortest: bool) -> io::Result<()> {
    let addr: SocketAddr =
        addr.to_str().and_then(|addr| addr.parse().ok()).ok_or(io::ErrorKind::InvalidInput)?;
    rt::raise_nofile()?;
    rt::block_on(async |env| {
        let core = Core::default();
        let root = Local::scratch("root", Arc::new(Ram::new(RAM)), core.clone());
        let mux = Mux::new(root, Arc::new(Numeric));
        env.spawn(Box::pin(mux.run(env, &[])));
        let disk = Local::server("disk", Arc::new(Disk::open(dir, DiskOptions::default())?), core.clone());
        let (net, driver) =
            Net::new(vec![Arc::new(Tcp)], Policy::loopback(), modules(), env.clock(), CLIENTS);
        env.spawn(Box::pin(driver));
        let net = Local::server("net", Arc::new(net), core.clone());
        for (space, server, old) in [(MAIN, disk, "/"), ("own", net, "/net")] {
            let space = mux.space(space, Owner::default());
            let user = As::User { name: Box::default(), uid: None };
            space.mount(server, "", &user, old, Flags::REPLACE).await.map_err(io::Error::other)?;
        }
        let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
        let service = Service { own: true, ..Service::new(Arc::new(mux), gate, core) };
        let peer = Peer { addr: "pipe".into(), proof: Proof::None };
        let options = client::Options { calls: CLIENTS, budget: CLIENTS << 16, ..client::Options::default() };
        let client = client::Client::within(&env, &service, peer, options).await?;
        let own = client.attach("", NOUID, "own").await?;
        let net = client::Net::new(own.walk("net").await?);
        let root = client.attach("", NOUID, "").await?;
        let mut options = http::Options { connections: CLIENTS, ..http::Options::default() };
        if shortest {
            options.schedule = http::Schedule::Shortest { age: AGE };
        }
        let at = format!("tcp!{}!{}", addr.ip(), addr.port());
        let server = http::Server::open(&net, &at, Some(root), options, env.clock()).await?;
        child::ready();
        server.run(&env, std::future::pending(), Duration::ZERO).await;
        Ok(())
    })?
}

/// Serves a name space file. Its servers are `ram:`, `net:` (TCP and il at any address), `cons:`, `disk:` with devices,
/// and addresses of this machine.
pub fn mux(script: &Path, socket: &Path, converses: bool) -> io::Result<()> {
    mounted(script, converses, async |env, seats, core, mux| {
        doors(env, seats, core, converses, vec![(socket, mux)]).await
    })
}

/// Like [`mux`], on one core; `open` opens the listeners.
pub fn space(
    script: &Path,
    open: impl AsyncFn(rt::Real, Core, Arc<dyn FileServer>) -> io::Result<()> + Sync,
) -> io::Result<()> {
    mounted(script, false, async |env, _, core, mux| open(env, core, mux).await)
}

fn mounted(
    script: &Path,
    converses: bool,
    open: impl AsyncFn(rt::Real, &[Arc<Seat>], Core, Arc<dyn FileServer>) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let text = std::fs::read_to_string(script)?;
    let script = parse(&script.display().to_string(), &text, &mut Alone);
    if let Some(wrong) = script.wrong.first() {
        return Err(io::Error::other(wrong.to_string()));
    }
    on_cores(async |env, seats| {
        let clients = Core::default();
        let servers = ServerFactory { env, pushed: converses.then(|| pushed(env)) };
        let mux = Mux::new(servers.backbone(MAIN), Arc::new(Numeric));
        env.spawn(Box::pin(mux.run(env, seats)));
        let owner = Owner { name: Box::default(), uid: Some(geteuid().as_raw()) };
        let live = Live::new(mux.clone(), owner, servers, clients.clone());
        live.mount_files(MAIN, env.wall()).await.map_err(io::Error::other)?;
        for line in &script.lines {
            live.apply(&line.space, &line.statement).await.map_err(io::Error::other)?;
        }
        open(env, seats, clients, Arc::new(mux)).await
    })
}

/// Runs the server on all cores; the first core listens for all.
pub fn on_cores(first: impl AsyncFn(rt::Real, &[Arc<Seat>]) -> io::Result<()> + Sync) -> io::Result<()> {
    rustix::process::umask(rustix::fs::Mode::empty());
    rt::raise_nofile()?;
    let cores = rt::default_cores();
    let seats: Vec<Arc<Seat>> = (1..cores).map(|_| Arc::default()).collect();
    let served = rt::run(cores, async |core: rt::Core, env: rt::Real| {
        if core.index > 0 {
            seats[core.index - 1].serve(env).await;
            return Ok(());
        }
        first(env, &seats).await
    })?;
    served.into_iter().collect()
}

/// Opens a socket for each server, reports that, and serves until the process ends.
pub async fn doors(
    env: rt::Real,
    seats: &[Arc<Seat>],
    core: Core,
    converses: bool,
    servers: Vec<(&Path, Arc<dyn FileServer>)>,
) -> io::Result<()> {
    let open = |(socket, server): (&Path, Arc<dyn FileServer>)| {
        let listener = Listener::bind(&Addr::Unix { path: socket.into() })?;
        let service = Service::new(server, Gate::default(), core.clone());
        let service = if converses { service.with_modules(pushed(env)) } else { service };
        Ok(listen(
            env,
            Door { listener: Entrance::Sockets(listener), tls: None, clients: CLIENTS },
            service,
            seats,
        ))
    };
    let open = servers.into_iter().map(open).collect::<io::Result<Vec<_>>>()?;
    join(try_join_all(open), async { child::ready() }).await.0.map(drop)
}

fn pushed(env: rt::Real) -> Pushed {
    Pushed { modules: modules(), clock: env.clock() }
}

/// Creates the servers that words of our name spaces stand for, with the modules for connections.
struct ServerFactory {
    env: rt::Real,
    pushed: Option<Pushed>,
}

impl Kinds for ServerFactory {
    fn server(&self, word: &str) -> Result<(Server, String), String> {
        let server = match word {
            "ram:" => self.backbone(word),
            "net:" => self.net(word)?,
            "cons:" => self.cons(word),
            word => match word.strip_prefix("disk:") {
                Some(dir) => self.disk(word, Path::new(dir))?,
                None => self.reach(word)?,
            },
        };
        Ok((server, word.into()))
    }

    fn user(&self) -> As {
        As::User { name: Box::default(), uid: Some(geteuid().as_raw()) }
    }

    fn backbone(&self, name: &str) -> Server {
        Local::scratch(name, Arc::new(Ram::new(RAM)), Core::default())
    }
}

impl ServerFactory {
    fn net(&self, word: &str) -> Result<Server, String> {
        let policy = "allow any *!*!*".parse()?;
        let clock = self.env.clock();
        let networks: Vec<Arc<dyn Network>> = vec![Arc::new(Tcp), Arc::new(Datagrams::il(clock.clone()))];
        let (net, driver) = Net::new(networks, policy, modules(), clock, CONVERSATIONS);
        self.env.spawn(Box::pin(driver));
        let mut server = Local::told(word, Arc::new(net), Core::default());
        server.options.dialects = vec![Dialect::U];
        Ok(server)
    }

    /// Creates a console without a terminal.
    fn cons(&self, word: &str) -> Server {
        let host = Host {
            pid: std::process::id(),
            ppid: 0,
            owner: String::new(),
            version: String::new(),
            sysname: Box::new(String::new),
            cputime: Box::new(|| [0; 6]),
        };
        let cons = Cons::new(host, self.env.clock(), |who, _| who.owner = true, false, || ());
        Local::server(word, Arc::new(cons), Core::default())
    }

    fn disk(&self, word: &str, dir: &Path) -> Result<Server, String> {
        let disk = Disk::open(dir, DiskOptions { devices: true, ..DiskOptions::default() })
            .map_err(|error| error.to_string())?;
        Ok(Local::server(word, Arc::new(disk), Core::default()))
    }

    fn reach(&self, address: &str) -> Result<Server, String> {
        let addr = address.parse().map_err(|error: nine_net::DialError| error.to_string())?;
        let mut server = Server::new(address, Arc::new(AddrDialler(addr)));
        server.options.pushed = self.pushed.clone();
        Ok(server)
    }
}

struct AddrDialler(Addr);

impl Dial for AddrDialler {
    fn dial(&self, _: &dyn Spawn) -> Boxed<io::Result<Box<dyn Transport>>> {
        let addr = self.0.clone();
        Box::pin(async move { Ok(Box::new(Socket::connect(&addr, CONNECT).await?) as Box<dyn Transport>) })
    }
}

/// An in-memory tree that answers no reads.
struct SilentTree {
    ram: Ram,
    /// Unanswered reads, limited by the clients' own limits.
    waiting: Mutex<Vec<Later>>,
}

impl FileServer for SilentTree {
    fn serve(&self, req: Req) -> Answer {
        let Op::Read { .. } = req.op() else { return self.ram.serve(req) };
        let (answer, later) = req.later();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(later);
        answer
    }

    fn cancel(&self, id: ReqId, _: Option<&Node>) {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        let found = waiting.iter().position(|later| later.id() == id);
        if let Some(found) = found {
            waiting.swap_remove(found).respond(Err(Errno::EINTR.into()));
        }
    }
}
