//! Sessions with servers: one for each server that the operands name, dialled when it is first needed.
//!
//! In: a [`Place`], and the settings for connections ([`Remote`]). Out: the root of the server's tree, and files in it.
//! The client follows links itself, as every 9P client must. Absolute links begin at the server's root, and no link
//! leads out of the tree.

mod data;
mod silence;

use std::cell::{Cell, RefCell};
use std::future::{Future, pending};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::{Either, join, select};
use nine_io::channel::Asking;
use nine_io::client::{Client, Ender, Error, File, Options, ServerVersion, may_be_link};
use nine_net::datagram;
use nine_net::modules::{self, TlsClient};
use nine_net::shm::Channel;
use nine_net::{
    Addr, Certificate, ClientTls, Env, Fault, ModuleKind, Modules, Pushed, Socket, Transport, Trust, rt,
};
use nine_proto::{Attr, Errno, GetMask, NOUID};

use crate::config::{DialectChoice, Remote};
use crate::copy;
use crate::fail::{self, Attach, Dial, Interrupted, Step};
use crate::operand::{Place, ServerAddr};
use crate::serve::{join_host, token};
use silence::{Watched, watch};

pub use data::Data;
pub use silence::Moved;

/// The error text if no option selects how to verify the server's certificate.
pub const UNKNOWN: &str = "how shall the server be known? --ca FILE names the authority of its certificate, \
                       --pin FINGERPRINT the certificate itself";
/// Limit of in-flight requests: over a long link, this many small files are read or written at once.
const CALLS: usize = 4096;
/// Default limit for the connection, its handshakes and the attach together, seconds.
const TIMEOUT: u32 = 30;

/// The open sessions of a verb.
pub struct Sessions {
    remote: Remote,
    env: rt::Real,
    open: Rc<RefCell<Vec<Session>>>,
    /// The versions that the servers have accepted.
    versions: Rc<RefCell<ServerVersions>>,
}

type ServerVersions = Vec<(ServerAddr, Arc<ServerVersion>)>;

struct Session {
    addr: ServerAddr,
    /// The token presented to the server.
    token: Option<String>,
    root: Rc<File>,
    moved: Moved,
}

/// A file that was found: its tree's root, the names that lead to it (no links and no `..`), and its attributes.
pub struct Found {
    pub root: Rc<File>,
    pub file: File,
    pub names: Vec<Vec<u8>>,
    pub attr: Attr,
}

/// The result of a search for a place.
pub struct Sought {
    pub found: Result<Found>,
    /// The parent directory, also if the file does not exist. `None` if the place has no name of its own or is reached
    /// through a link.
    pub parent: Option<Rc<File>>,
}

/// The results of concurrent walks to a place and to its parent directory.
type Walked = (Result<(File, Attr), Error>, Option<File>);

/// Dials an address of the il protocol.
pub async fn il(addr: &Addr, limit: Duration, env: &rt::Real) -> io::Result<datagram::Talk> {
    let mut addr = addr.clone();
    if let Addr::Il { host, .. } = &mut addr
        && host.parse::<IpAddr>().is_err()
        && let Some(ip) = rt::resolve(host).await?.first()
    {
        *host = ip.to_string();
    }
    datagram::dial(&addr, limit, env).await
}

impl Sessions {
    pub fn new(remote: Remote, env: rt::Real) -> Self {
        Self { remote, env, open: Rc::default(), versions: Rc::default() }
    }

    /// Returns the runtime environment of the sessions.
    pub fn env(&self) -> rt::Real {
        self.env
    }

    /// Returns the root of the tree that holds a place.
    pub async fn root(&self, place: &Place) -> Result<Rc<File>> {
        self.root_and(place, None).await.map(|(root, _)| root)
    }

    /// Finds the file at a place and its attributes. Follows links on the path, and a link at its end if `follow` is
    /// set. If the server has streams, a new session needs one round trip for the attach and the walk.
    pub async fn find(&self, place: &Place, follow: bool, mask: GetMask) -> Result<Found> {
        self.seek(place, follow, mask).await?.found
    }

    /// Like [`Sessions::find`], but also walks to the parent directory at the same time. An error means that there is
    /// no session.
    pub async fn seek(&self, place: &Place, follow: bool, mask: GetMask) -> Result<Sought> {
        // The target of ".." after a link is known only after the link was read.
        let plain = !names(&place.path).any(|name| name == b"..");
        let (root, walked) = self.root_and(place, plain.then_some(mask)).await?;
        let walked = match walked {
            None if plain => Some(walk(&root, place, mask).await),
            walked => walked,
        };
        let resolved = async || {
            let (file, names) = root.resolve(&place.path, follow).await?;
            let attr = file.getattr(mask).await?;
            Ok(Found { root: root.clone(), file, names, attr })
        };
        let Some((found, dir)) = walked else {
            return Ok(Sought { found: resolved().await, parent: None });
        };
        let found = match found {
            Ok((file, attr)) if !(follow && file.qid().is_symlink()) => {
                let names = names(&place.path).map(<[u8]>::to_vec).collect();
                Ok(Found { root: root.clone(), file, names, attr })
            }
            Err(error) if !may_be_link(&error, &place.path) => Err(error.into()),
            _ => return Ok(Sought { found: resolved().await, parent: None }),
        };
        let is_below_root = names(&place.path).count() == 1;
        let parent =
            if is_below_root { Some(root) } else { dir.filter(|dir| dir.qid().is_dir()).map(Rc::new) };
        Ok(Sought { found, parent })
    }

    /// Returns the root of the tree that holds a place. With a `mask`, a new session also walks to the place and
    /// returns the result.
    async fn root_and(&self, place: &Place, mask: Option<GetMask>) -> Result<(Rc<File>, Option<Walked>)> {
        let token = self.token(place)?;
        let known = |session: &&Session| session.addr == place.addr && session.token == token;
        if let Some(session) = self.open.borrow().iter().find(known) {
            return Ok((session.root.clone(), None));
        }
        let limit = Duration::from_secs(self.remote.timeout.unwrap_or(TIMEOUT).into());
        let moved = Moved::default();
        let want = mask.map(|mask| (place, mask));
        let dial = || self.dial(&place.addr, token.clone(), moved.clone(), want);
        let dial = async {
            match dial().await {
                // A server that shuts down closes new connections. Nothing was done yet, so dial once more: its
                // successor may be up.
                Err(error) if is_cut(&error) => dial().await,
                dialled => dialled,
            }
        };
        let late = || format!("{} does not answer within {} s", place.addr, limit.as_secs());
        let dialled = within(&self.env, limit, dial).await;
        let dialled =
            dialled.ok_or_else(|| failed(Step::Connect)(io::Error::new(io::ErrorKind::TimedOut, late())))?;
        let (root, walked) = match dialled {
            Err(error) if self.may_say_more(&error) => {
                let words = within(&self.env, limit, self.in_words(&place.addr, token.clone())).await;
                return Err(words.flatten().unwrap_or(error));
            }
            dialled => dialled?,
        };
        let root = Rc::new(root);
        let (addr, copy) = (place.addr.clone(), root.clone());
        self.open.borrow_mut().push(Session { addr, token, root: copy, moved });
        Ok((root, walked))
    }

    /// Walks to the file at a place. Follows links on the path, and a link at its end if `follow` is set.
    pub async fn walk(&self, place: &Place, follow: bool) -> Result<File> {
        let root = self.root(place).await?;
        Ok(root.resolve(&place.path, follow).await?.0)
    }

    /// Returns the parent directory of a place and the name in it, to create, rename or remove a file.
    pub async fn parent<'p>(&self, place: &'p Place) -> Result<(Rc<File>, &'p [u8])> {
        let (dir, name) = place.split().context("it must have a name of its own, not `/`, `.` or `..`")?;
        let root = self.root(place).await?;
        if names(dir).next().is_none() {
            return Ok((root, name));
        }
        Ok((Rc::new(root.resolve(dir, true).await?.0), name))
    }

    /// Returns whether the attach was refused in 9P2000.L, which carries an error number but no text.
    fn may_say_more(&self, error: &anyhow::Error) -> bool {
        let is_number = matches!(self.remote.dialect, None | Some(DialectChoice::Auto));
        let attach = error.downcast_ref::<Attach>().filter(|_| is_number);
        attach.is_some_and(|attach| matches!(attach.error.errno(), Errno::EACCES | Errno::EPERM))
    }

    /// Attaches again in 9P2000.u to get the text of the refusal.
    async fn in_words(&self, addr: &ServerAddr, token: Option<String>) -> Option<anyhow::Error> {
        let remote = Remote { dialect: Some(DialectChoice::U), ..self.remote.clone() };
        let asks = Sessions::new(remote, self.env);
        let refused = Box::pin(asks.dial(addr, token, Moved::default(), None)).await.err()?;
        refused.is::<Attach>().then_some(refused)
    }

    async fn dial(
        &self,
        server: &ServerAddr,
        token: Option<String>,
        moved: Moved,
        want: Option<(&Place, GetMask)>,
    ) -> Result<(File, Option<Walked>)> {
        let ServerAddr::Dialed(addr) = server else {
            let channel = join_host(self.remote.waits()).await.map_err(failed(Step::Connect))?;
            let options = self.options(&[], token);
            return self.attach(server, Watched(Asking::new(channel), moved), options, want).await;
        };
        if let Addr::Il { .. } = addr {
            let talk = il(addr, HOUR, &self.env).await.map_err(failed(Step::Connect))?;
            return self.attach(server, Watched(talk, moved), self.options(&[addr], token), want).await;
        }
        if let Addr::Shm { path } = addr {
            let channel =
                Channel::dial(path, self.remote.waits(), HOUR).await.map_err(failed(Step::Connect))?;
            let options = self.options(&[addr], token);
            return self.attach(server, Watched(Asking::new(channel), moved), options, want).await;
        }
        // The caller enforces the timeout. This limit is only for a connect that the caller cannot interrupt.
        let socket = Socket::connect(addr, HOUR)
            .await
            .map_err(|error| Dial { addr: Some(addr.clone()), ..failed(Step::Connect)(error) })?;
        let mut options = self.options(&[addr], token);
        let streams = |options: Options, tls| {
            let dial = Arc::new(Data::new(self.env, tls, moved.clone()));
            with_streams(options, dial, self.remote.dialect)
        };
        match addr {
            Addr::Tls { host, .. } => {
                let tls = trust(&self.remote)?.context(UNKNOWN)?;
                options = streams(options, Some((tls.clone(), host.clone())));
                let forever = self.env.sleep_until(self.env.now() + HOUR);
                let tls = tls.connect(socket, host, forever).await;
                let tls = tls.map_err(|e| failed(Step::Tls)(naming(addr, e)))?;
                self.attach(server, Watched(tls, moved), options, want).await
            }
            Addr::Tcp { .. } => {
                options = streams(options, None);
                self.attach(server, Watched(socket, moved), options, want).await
            }
            _ => self.attach(server, Watched(socket, moved), options, want).await,
        }
    }

    async fn attach(
        &self,
        addr: &ServerAddr,
        transport: impl Transport,
        options: Options,
        want: Option<(&Place, GetMask)>,
    ) -> Result<(File, Option<Walked>)> {
        let token = options.token.is_some();
        if !token && !addr.is_local() && self.remote.cert.is_none() {
            fail::without_proof();
        }
        let options = Options { spoken: Some(self.version(addr)), ..options };
        let (client, driver) = Client::connect(transport, options).await?;
        let open = OPEN.get() + 1;
        OPEN.set(open);
        ENDERS.with_borrow_mut(|enders| enders.push(client.ender()));
        self.env.spawn(Box::pin(async {
            drop(driver.await);
            OPEN.set(OPEN.get() - 1);
        }));
        let (uname, uid) = self.user();
        for (n, module) in self.remote.push.iter().enumerate() {
            let text = format!("push {}", module.trim());
            // If tls is still to be pushed, the token must not be sent in plain before it.
            let may_show = !self.remote.push[n..].iter().any(|module| modules::name(module) == "tls");
            let pushed = match modules::is_alone(module) {
                true => client.change_here(&text).await,
                false => client.change(&uname, uid, &text, may_show).await,
            };
            pushed.with_context(|| format!("{addr}: {text}"))?;
        }
        let aname = self.remote.aname.as_deref().unwrap_or_default();
        let attached = match want {
            None => client.attach(&uname, uid, aname).await.map(|root| (root, None)),
            Some((place, mask)) => {
                let then = async |root: &File| Some(walk(root, place, mask).await);
                client.attach_then(&uname, uid, aname, then).await
            }
        };
        Ok(attached.map_err(|error| Attach { peer: client.peer().to_string(), token, error })?)
    }

    /// Returns the version that this server has accepted.
    fn version(&self, addr: &ServerAddr) -> Arc<ServerVersion> {
        let mut versions = self.versions.borrow_mut();
        if let Some((_, version)) = versions.iter().find(|(of, _)| of == addr) {
            return version.clone();
        }
        versions.push((addr.clone(), Arc::default()));
        versions.last().expect("just pushed").1.clone()
    }

    fn options(&self, addrs: &[&Addr], token: Option<String>) -> Options {
        let mut options =
            Options { token, calls: CALLS, clock: Some(self.env.clock()), ..Options::default() };
        if !self.remote.push.is_empty() {
            let modules = modules(addrs, &self.remote);
            options.pushed = Some(Pushed { modules, clock: self.env.clock() });
        }
        options.dialects = DialectChoice::list(self.remote.dialect).unwrap_or(options.dialects);
        options.msize = self.remote.msize.unwrap_or(options.msize);
        if let Some(seconds) = self.remote.patience {
            options.data_timeout = options.data_timeout.min(Duration::from_secs(seconds.into()));
        }
        options
    }

    /// Returns the token for a place: from its address, else from the options.
    pub fn token(&self, place: &Place) -> Result<Option<String>> {
        if let Some(token) = place.token.as_ref().or(self.remote.token.as_ref()) {
            token::check(token)?;
            return Ok(Some(token.clone()));
        }
        let Some(path) = &self.remote.token_file else { return Ok(None) };
        let name = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(name)?;
        let token = text.trim();
        token::check(token).with_context(name)?;
        Ok(Some(token.to_owned()))
    }

    /// Returns the user name and uid for attaches. With a client certificate, the certificate names the user.
    pub fn user(&self) -> (String, u32) {
        user(&self.remote)
    }
}

/// Returns the user name and uid for attaches with these settings.
pub fn user(remote: &Remote) -> (String, u32) {
    match &remote.user {
        Some(user) => (user.clone(), user.parse().unwrap_or(NOUID)),
        None if remote.cert.is_some() => (String::new(), NOUID),
        None => {
            let uid = rustix::process::geteuid().as_raw();
            (own_name(uid).unwrap_or_default(), uid)
        }
    }
}

/// Loads how servers are verified over TLS, and our certificate, from the files as they are now. Returns `None` if no
/// option selects how to verify servers.
pub fn trust(remote: &Remote) -> Result<Option<ClientTls>> {
    let trust = match (&remote.ca, &remote.pin) {
        (_, Some(pin)) => Trust::Pin(pin.bytes()),
        (Some(ca), None) => Trust::Ca(ca.clone()),
        (None, None) => return Ok(None),
    };
    let identity = remote.cert.as_deref().zip(remote.key.as_deref());
    if let Some((cert, _)) = identity
        && let Some(own) = Certificate::read(cert)?.first().filter(|own| own.until < rt::Real.wall())
    {
        let days = (rt::Real.wall() - own.until).as_secs() / 86_400;
        bail!("{}: our certificate expired {days} days ago; renew it", cert.display());
    }
    Ok(Some(ClientTls::new(&trust, identity)?))
}

/// Returns the modules that can be pushed on connections to these addresses.
pub fn modules(addrs: &[&Addr], remote: &Remote) -> Modules {
    let remote = remote.clone();
    let host = match addrs {
        [Addr::Tcp { host, .. } | Addr::Tls { host, .. }] => Some(host.clone()),
        _ => None,
    };
    let tls = move |arguments: &str| {
        let host = match &host {
            None if arguments.is_empty() => {
                return Err(Fault::new("nothing says which name the certificate has; write: tls NAME"));
            }
            host => host.clone().unwrap_or_default(),
        };
        let tls = trust(&remote).map_err(|error| Fault::new(format!("{error:#}")))?;
        TlsClient { tls: tls.ok_or_else(|| Fault::new(UNKNOWN))?, host }.open(arguments)
    };
    modules::modules().with("tls", tls)
}

/// Adds streams to the options. If the user chose a dialect, the choice stays as it is.
pub fn with_streams(options: Options, dial: Arc<Data>, choice: Option<DialectChoice>) -> Options {
    match DialectChoice::list(choice) {
        None => options.with_streams(dial),
        Some(_) => Options { streams: Some(dial), ..options },
    }
}

/// Returns whether the server closed the connection before the attach was complete.
fn is_cut(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<Attach>().map(|attach| &attach.error).or(error.downcast_ref::<Error>());
    matches!(error, Some(Error::Transport { .. } | Error::Unsent { .. }))
}

/// Adds the address to an error, unless the error names it already.
fn naming(addr: &Addr, error: io::Error) -> io::Error {
    let text = error.to_string();
    if text.starts_with("tls!") { error } else { io::Error::new(error.kind(), format!("{addr}: {text}")) }
}

fn failed(step: Step) -> impl Fn(io::Error) -> Dial {
    move |error| Dial { step, addr: None, error }
}

/// Walks to a place and, concurrently, to its parent directory unless that is the root.
async fn walk(root: &File, place: &Place, mask: GetMask) -> Walked {
    let parent = async {
        let (dir, _) = place.split().filter(|(dir, _)| names(dir).next().is_some())?;
        root.walk(dir).await.ok()
    };
    join(root.walk_attr(&place.path, mask), parent).await
}

/// Returns why there is no file at `path`. A server that fails after the first name only stops the walk (walk(5)). So
/// the missing name is walked alone, and the server reports whether it does not exist or may not be read.
pub async fn why_absent(root: &File, path: &[u8], error: Error) -> Error {
    if error.errno() != Errno::ENOENT {
        return error;
    }
    let all: Vec<&[u8]> = names(path).collect();
    for at in (1..all.len()).rev() {
        if let Ok(dir) = root.walk(all[..at].join(&b'/')).await {
            return dir.walk(all[at]).await.err().unwrap_or(error);
        }
    }
    error
}

fn names(path: &[u8]) -> impl DoubleEndedIterator<Item = &[u8]> {
    path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."))
}

/// Looks up a user's name in this machine's /etc/passwd.
fn own_name(uid: u32) -> Option<String> {
    let users = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut lines = users.lines().map(|line| line.split(':'));
    lines.find_map(|mut fields| {
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    })
}

/// Waits for `future` for at most `limit`. Returns `None` on timeout.
pub async fn within<T>(env: &impl Env, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let late = env.sleep_until(env.now() + limit);
    match select(pin!(future), late).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

/// Runs a verb that is a client until it ends. A signal ends the program at once.
pub fn run<T>(remote: Remote, main: impl AsyncFnOnce(Sessions) -> Result<T>) -> Result<T> {
    rt::block_on(async |env| until(env, remote, false, pending(), main).await)?
}

/// Like [`run`], for a verb that waits for programs on servers and handles signals itself. It does not report silent
/// servers.
pub fn run_waiting<T>(remote: Remote, main: impl AsyncFnOnce(Sessions) -> Result<T>) -> Result<T> {
    rt::block_on(async |env| until(env, remote, true, pending(), main).await)?
}

/// Like [`run`], for a verb that must clean up after a signal.
pub fn run_tidy<T>(remote: Remote, quiet: bool, main: impl AsyncFnOnce(Sessions) -> Result<T>) -> Result<T> {
    rt::block_on(async |env| {
        let mut signals = rt::signals()?;
        insist();
        until(env, remote, quiet, signals.next(), main).await
    })?
}

/// Runs `main` until it ends or a signal arrives, then waits for cleanup and for the end of the sessions.
async fn until<T>(
    env: rt::Real,
    remote: Remote,
    quiet: bool,
    signal: impl Future<Output = rt::Signal>,
    main: impl AsyncFnOnce(Sessions) -> Result<T>,
) -> Result<T> {
    let patience = remote.patience;
    let sessions = Sessions::new(remote, env);
    let result = {
        let (watch, signal) = (pin!(watch(sessions.open.clone(), env, quiet, patience)), pin!(signal));
        match select(pin!(main(sessions)), select(signal, watch)).await {
            Either::Left((result, _)) => result,
            Either::Right((Either::Left((signal, _)), _)) => Err(Interrupted(signal).into()),
            Either::Right((Either::Right(((), _)), _)) => unreachable!("it watches for ever"),
        }
    };
    // In-flight work was dropped, and its incomplete files are being removed.
    let give_up = env.sleep_until(env.now() + CLEAN);
    select(pin!(copy::cleaned()), give_up).await;
    // Close sessions in order, so that TLS reports no truncation. All answers still due are those of clunks.
    let hurry = env.now() + LAST_ANSWERS;
    let give_up = env.now() + FAREWELL;
    while OPEN.get() > 0 && env.now() < give_up {
        if env.now() >= hurry {
            ENDERS.take().iter().for_each(Ender::end);
        }
        env.sleep_until(env.now() + LOOK).await;
    }
    result
}

/// Ends the program after a signal if its only thread hangs in a blocking system call: on the second signal, or
/// [`INSIST`] after the first.
fn insist() {
    std::thread::spawn(|| {
        rt::block_on(async |env| {
            let Ok(mut signals) = rt::signals() else { return };
            let signal = signals.next().await;
            let late = env.sleep_until(env.now() + INSIST);
            select(pin!(signals.next()), late).await;
            std::process::exit(Interrupted(signal).status().into());
        })
    });
}

/// Longest wait for cleanup, and the interval of its checks.
const CLEAN: Duration = Duration::from_secs(3);
const LOOK: Duration = Duration::from_millis(1);
/// Servers may answer outstanding clunks for this long before the sessions are ended.
const LAST_ANSWERS: Duration = Duration::from_millis(20);
/// Longest wait for the connections to close.
const FAREWELL: Duration = Duration::from_millis(500);
/// Longer than `CLEAN` and `FAREWELL` together.
const INSIST: Duration = Duration::from_secs(5);

thread_local! {
    /// Number of connections whose driver is still running.
    static OPEN: Cell<usize> = const { Cell::new(0) };
    /// Handles that end these connections.
    static ENDERS: RefCell<Vec<Ender>> = const { RefCell::new(Vec::new()) };
}

const HOUR: Duration = Duration::from_secs(3600);
