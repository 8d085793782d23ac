//! The client: files of a 9P server, in any dialect, with as many requests in flight as the link can use.
//!
//! In: a connected [`Transport`]. Out: a [`Client`], callable from any thread, and a [`Driver`], the one task that
//! moves its bytes. Nothing here depends on a runtime: the driver wakes futures, and the transport wakes the driver.
//! [`blocking`] runs the same code on the caller's thread.
//!
//! Always holds: dropping a future takes its request back without waiting: the request is flushed, and the fid that a
//! late success made is clunked. Other effects of a late success stay, such as written bytes. Dropping a [`File`]
//! clunks it. All waiting requests are bounded ([`Options`]). If the connection fails, every waiting call gets the
//! reason at once.
//!
//! ```no_run
//! use nine_io::client::{Client, Options, Result};
//! use nine_proto::{NOUID, OpenFlags};
//!
//! # async fn example(transport: impl nine_net::Transport, env: impl nine_net::Env) -> Result<()> {
//! let (client, driver) = Client::connect(transport, Options::default()).await?;
//! env.spawn(Box::pin(async { drop(driver.await) }));
//!
//! let root = client.attach("glenda", NOUID, "").await?;
//! let motd = root.open("etc/motd", OpenFlags::READ).await?;
//! let mut text = vec![0; 4096];
//! let n = motd.read_at(0, &mut text).await?;
//! text.truncate(n);
//! # Ok(())
//! # }
//! ```

mod answer;
mod attr;
pub mod blocking;
mod call;
mod cancel;
mod data_timer;
mod dial;
mod dir;
mod direct;
mod driver;
mod error;
mod file;
mod flow;
mod forward;
mod meter;
mod names;
mod out;
mod pace;
mod resolve;
mod share;
mod side;
mod state;
mod stream;
mod streamed;
mod truncate;
mod window;
mod xattr;

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use nine_net::{Clock, Conversation, Env, Fault, Peer, Proof, Pushed, Transport};
use nine_proto::msg::{Data, OnlyIds, Tmsg};
use nine_proto::session::client::SpokenDialect;
use nine_proto::{Dialect, Errno, Fid, NOFID, Names, Numeric, OpenFlags, Qid};

use call::ClientCall;
use state::ClientShared;

use crate::direct::DirectFiles;
use crate::server::Service;
use crate::sync::{Mutex, lock};

pub use answer::{Answer, Getlock};
pub use cancel::{Cancel, Scope, heed};
pub use dial::{Announced, Dialled, Incoming, Net};
pub use dir::{Entry, ReadDir, Stats};
pub use driver::Driver;
pub use error::{Error, Result};
pub use file::{File, Opening};
pub use flow::{Reader, WIDER, Writer, copy};
pub use forward::{FlushLimits, Forward};
pub use meter::{LOOKED, Load, Meter, TIMES};
pub use resolve::may_be_link;
pub use side::{Dial, Dialing, offered};
pub use stream::{Direction, HEAD, Stream, WORTH};

/// The parameters and limits of a client. The defaults suit a person's tools and a mux alike.
#[derive(Clone)]
pub struct Options {
    /// Dialects to try, best first; the default is all of them. Not empty.
    pub dialects: Vec<Dialect>,
    /// The longest message to propose, in bytes: 512 to 1 MiB, default 1 MiB. The server may answer with less.
    pub msize: u32,
    /// Maximum number of requests in flight, including flushed ones: at most 32,767, default 1,024. Further ones wait
    /// in order.
    pub calls: usize,
    /// Maximum number of bytes that requests in flight and their largest answers may need together: default 32 MiB.
    /// Further ones wait in order.
    pub budget: usize,
    /// Maximum number of bytes that one [`Reader`], [`Writer`], `read_at` or `write_at` has in flight: default 8 MiB.
    pub window: usize,
    /// The clock by which a [`Reader`] or [`Writer`] adapts its window, up to twice `window`. `None`: the window is
    /// `window`.
    pub clock: Option<Arc<dyn Clock>>,
    /// Dials data connections. `None`: there are no streams ([`Stream`]).
    pub streams: Option<Arc<dyn Dial>>,
    /// The client gives up a data connection that moves nothing for this time while bytes are wanted. The default is
    /// 10 s. Without `clock` the client waits for ever.
    pub data_timeout: Duration,
    /// The modules that can be pushed on the connection ([`Client::change`]), if any.
    pub pushed: Option<Pushed>,
    /// The token to show at [`Client::attach`], if the server asks for authentication.
    pub token: Option<String>,
    /// Counts the requests, if set.
    pub meter: Option<Arc<Meter>>,
    /// Maps 9P2000's names of users and groups to numbers and back; the default knows decimal numbers only.
    pub names: Arc<dyn Names>,
    /// The version that the server at this address accepted before, to begin with. Give all connections to one address,
    /// and no others, the same one. `None`: each connection begins with the best dialect.
    pub spoken: Option<Arc<ServerVersion>>,
}

/// The version that a server has accepted, for later connections to it.
#[derive(Debug, Default)]
pub struct ServerVersion(Mutex<Option<SpokenDialect>>);

impl ServerVersion {
    fn get(&self) -> Option<SpokenDialect> {
        *lock(&self.0)
    }

    fn set(&self, spoken: Option<SpokenDialect>) {
        *lock(&self.0) = spoken;
    }
}

/// Forgets the accepted version if a connection fails before it has agreed on one: another proposal may succeed.
struct VersionAttempt<'a>(&'a Option<Arc<ServerVersion>>);

impl VersionAttempt<'_> {
    fn agreed(self, spoken: Option<SpokenDialect>) {
        self.0.iter().for_each(|version| version.set(spoken));
        std::mem::forget(self);
    }
}

impl Drop for VersionAttempt<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|version| version.set(None));
    }
}

impl Default for Options {
    fn default() -> Self {
        Self {
            dialects: vec![Dialect::L, Dialect::U, Dialect::P2000],
            msize: 1 << 20,
            calls: 1024,
            budget: 32 << 20,
            window: 8 << 20,
            clock: None,
            streams: None,
            data_timeout: Duration::from_secs(10),
            pushed: None,
            token: None,
            meter: None,
            names: Arc::new(Numeric),
            spoken: None,
        }
    }
}

impl Options {
    /// Adds streams, in every dialect.
    #[must_use]
    pub fn with_streams(self, dial: Arc<dyn Dial>) -> Self {
        let dialects = self.dialects.iter().flat_map(|&plain| [Dialect { streaming: true, ..plain }, plain]);
        Self { dialects: dialects.collect(), streams: Some(dial), ..self }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("dialects", &self.dialects)
            .field("msize", &self.msize)
            .field("calls", &self.calls)
            .field("budget", &self.budget)
            .field("window", &self.window)
            .finish_non_exhaustive()
    }
}

/// The tree with the connection control files.
const CONVERSATION: &str = "#conversation";

/// A session with a server. Clones share it; it ends when the last clone and the last [`File`] are gone.
///
/// Concurrency: all calls may be made from any number of threads and tasks at once.
#[derive(Clone)]
pub struct Client(Arc<ClientHandle>);

struct ClientHandle {
    shared: Arc<ClientShared>,
    dialect: Dialect,
    /// Maximum data in one message, in bytes.
    iounit: u32,
    options: Options,
}

impl Drop for ClientHandle {
    fn drop(&mut self) {
        self.shared.with(|state| state.closing = true);
    }
}

impl Client {
    /// Agrees on a version with the server (version(5)): the best dialect that both support. Fails with
    /// [`Error::Version`] if there is none.
    pub async fn connect(transport: impl Transport, options: Options) -> Result<(Self, Driver)> {
        let shared =
            Arc::new(ClientShared::new(&transport.peer().addr, &options, DirectFiles::of(&transport)));
        let transport: Box<dyn Transport> = match &options.pushed {
            Some(pushed) => {
                Box::new(Conversation::new(transport, pushed.modules.clone(), pushed.clock.clone()))
            }
            None => Box::new(transport),
        };
        let mut driver = Driver::new(transport, shared.clone());
        let attempt = VersionAttempt(&options.spoken);
        let agreed = poll_fn(|cx| {
            if let Poll::Ready(_end) = pin!(&mut driver).poll(cx) {
                return Poll::Ready(
                    shared.with(|state| Err(state.dead().cloned().expect("the driver ended"))),
                );
            }
            shared.with(|state| {
                let session = &state.session;
                let ready =
                    state.agreed.then(|| Ok((session.dialect(), session.iounit_max(), session.spoken())));
                ready.map_or(Poll::Pending, Poll::Ready)
            })
        });
        let (dialect, iounit, spoken) = agreed.await?;
        attempt.agreed(spoken);
        Ok((Self(Arc::new(ClientHandle { shared, dialect, iounit, options })), driver))
    }

    /// Connects to a server in this process, which sees the client as `peer`. Both run as tasks of this core.
    pub async fn within(env: &impl Env, service: &Service, peer: Peer, options: Options) -> Result<Self> {
        let server = Peer { addr: peer.addr.clone(), proof: Proof::None };
        let (near, far) = nine_net::pipe(server, peer);
        env.spawn(Box::pin(service.connect(Box::new(far))));
        let (client, driver) = Self::connect(near, options).await?;
        env.spawn(Box::pin(async { drop(driver.await) }));
        Ok(client)
    }

    /// Returns a fid for the root of the tree `aname`, as the user `uname` or, in .u and .L, `uid` (`NOUID`: the name
    /// counts). If there is an [`Options::token`] and the server wants one, the client shows it before (attach(5)).
    pub async fn attach(&self, uname: &str, uid: u32, aname: &str) -> Result<File> {
        let afid = match &self.0.options.token {
            Some(token) => self.show(token, uname, uid, aname).await?,
            None => None,
        };
        self.attach_with(afid, uname, uid, aname).await
    }

    async fn attach_with(&self, afid: Option<File>, uname: &str, uid: u32, aname: &str) -> Result<File> {
        let (uname, aname) = (text(uname.as_bytes())?, text(aname.as_bytes())?);
        let fid = self.fid()?;
        let afid_number = afid.as_ref().map_or(NOFID, File::fid);
        let attach = Tmsg::Attach { fid, afid: afid_number, uname, aname, n_uname: OnlyIds(uid) };
        match self.call(attach).await? {
            Answer::Qid(qid) => Ok(File::new(self, fid, qid)),
            other => other.never(),
        }
    }

    /// [`Client::attach`], followed by `then` with the root, which may not exist yet. If the session orders dependent
    /// requests (`.s`) and shows no token, all is sent in one round trip. `then` must not keep the root.
    pub async fn attach_then<T>(
        &self,
        uname: &str,
        uid: u32,
        aname: &str,
        then: impl AsyncFnOnce(&File) -> T,
    ) -> Result<(File, T)> {
        if !self.0.dialect.streaming || self.0.options.token.is_some() {
            let root = self.attach(uname, uid, aname).await?;
            let done = then(&root).await;
            return Ok((root, done));
        }
        let (uname, aname) = (text(uname.as_bytes())?, text(aname.as_bytes())?);
        let fid = self.fid()?;
        let mut attach = self.call(Tmsg::Attach { fid, afid: NOFID, uname, aname, n_uname: OnlyIds(uid) });
        attach.send().await;
        // Until the root is known to exist, dropping it must not clunk its fid.
        let coming = File::new(self, fid, Qid::default());
        coming.leave();
        let mut then = pin!(then(&coming));
        let early = poll_fn(|cx| Poll::Ready(then.as_mut().poll(cx))).await;
        let root = match attach.await {
            Ok(Answer::Qid(qid)) => Ok(File::new(self, fid, qid)),
            Ok(other) => other.never(),
            Err(error) => Err(error),
        };
        let done = match early {
            Poll::Ready(done) => done,
            Poll::Pending => then.await,
        };
        Ok((root?, done))
    }

    /// Changes the modules of this connection, at both ends and at the same switch point: `push NAME ARGUMENTS` or
    /// `pop`. It waits until all requests in flight are answered. Calls made meanwhile are sent afterwards, in the new
    /// form. A first message in the new form must succeed before this returns. If the server admits the client by the
    /// token only, the token is shown if `may_show`, in the old form.
    ///
    /// # Errors
    /// If the server has no connection control files, or refuses the text, nothing has changed. If the future is
    /// dropped after the text was sent, the connection ends, because its form would be unknown.
    pub async fn change(&self, uname: &str, uid: u32, words: &str, may_show: bool) -> Result<()> {
        self.check(words)?;
        let shows = may_show && self.0.options.token.is_some();
        // Only a client with a proven identity may push these.
        let is_costly = words.strip_prefix("push ").is_some_and(nine_net::modules::is_costly);
        let root = match self.attach_with(None, uname, uid, CONVERSATION).await {
            Ok(_) if shows && is_costly => self.attach(uname, uid, CONVERSATION).await,
            Err(Error::Remote(_)) if shows => self.attach(uname, uid, CONVERSATION).await,
            attached => attached,
        };
        let ctl = match root {
            Ok(root) => root.open("ctl", OpenFlags::WRITE).await,
            Err(error) => Err(error),
        };
        let ctl = ctl.map_err(|error| match error.errno() {
            Errno::ENOENT | Errno::EINVAL | Errno::EOPNOTSUPP | Errno::ENOTDIR => {
                Error::refused(Errno::EOPNOTSUPP, "the server has no modules for its clients")
            }
            _ => error,
        })?;
        let message = Tmsg::Write { fid: ctl.fid(), offset: 0, data: Data::Bytes(words.as_bytes()) };
        let mut crossing = ModuleChangeGuard { client: self, near: false, crossed: false, over: false };
        let shared = &self.0.shared;
        shared.border.store(true, Ordering::Relaxed);
        let call = poll_fn(|cx| {
            shared.with(|state| state.poll_border(&message, words, cx.waker(), &mut crossing.near))
        });
        let call = call.await?;
        let answer = poll_fn(|cx| shared.with(|state| state.poll(call, cx.waker()))).await;
        crossing.crossed = answer.is_ok();
        crossing.over = !crossing.crossed;
        answer?;
        // If the two ends disagree on the new form, for example on a certificate, it shows now.
        let closed = ctl.close().await;
        crossing.over = true;
        match closed {
            Err(Error::Remote(_)) => Ok(()),
            closed => closed,
        }
    }

    /// Changes the modules at this end only: for modules that pass bytes on unchanged, so the server need not know.
    ///
    /// # Errors
    /// If the text is invalid, nothing has changed. If the future is dropped during the change, the connection ends.
    pub async fn change_here(&self, words: &str) -> Result<()> {
        self.check(words)?;
        let mut crossing = ModuleChangeGuard { client: self, near: false, crossed: false, over: false };
        let shared = &self.0.shared;
        shared.border.store(true, Ordering::Relaxed);
        let told = poll_fn(|cx| {
            let near = &mut crossing.near;
            shared.with(|state| state.poll_here(words, cx.waker(), near))
        });
        let told = told.await;
        crossing.over = true;
        told
    }

    /// Checks a text before it is sent.
    fn check(&self, words: &str) -> Result<()> {
        let refused = |fault: Fault| Error::from(nine_proto::Error::new(Errno::EINVAL, fault.to_string()));
        let pushed = self.0.options.pushed.as_ref();
        let pushed = pushed.ok_or_else(|| refused(Fault::new("nothing can be pushed here")))?;
        match words.trim().strip_prefix("push ") {
            Some(module) => pushed.modules.open(module).map(drop).map_err(refused),
            None => Ok(()),
        }
    }

    /// Writes the token to an afid, or returns `None` if the server wants none.
    async fn show(&self, token: &str, uname: &str, uid: u32, aname: &str) -> Result<Option<File>> {
        let (uname, aname) = (text(uname.as_bytes())?, text(aname.as_bytes())?);
        let afid = self.fid()?;
        let qid = match self.call(Tmsg::Auth { afid, uname, aname, n_uname: OnlyIds(uid) }).await {
            Ok(Answer::Qid(qid)) => qid,
            Ok(other) => other.never(),
            Err(Error::Remote(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let file = File::new(self, afid, qid);
        file.write_all_at(0, token.as_bytes()).await?;
        Ok(Some(file))
    }

    /// The dialect of the session.
    pub fn dialect(&self) -> Dialect {
        self.0.dialect
    }

    /// Whether data connections are available. They would bypass the modules pushed on the connection.
    pub fn has_streams(&self) -> bool {
        self.0.dialect.streaming
            && self.0.options.streams.is_some()
            && !self.0.shared.piped.load(Ordering::Relaxed)
            && self.now_ms() >= self.0.shared.no_streams.load(Ordering::Relaxed)
    }

    /// The time in ms; 0 without a clock.
    fn now_ms(&self) -> u64 {
        self.0.options.clock.as_ref().map_or(0, |clock| clock.now().as_millis() as u64)
    }

    /// Tries no data connections for a while, because one has failed. Returns whether this is new.
    fn without_streams(&self) -> bool {
        let until = match &self.0.options.clock {
            Some(_) => self.now_ms() + side::PAUSE_MS,
            None => u64::MAX,
        };
        self.0.shared.no_streams.swap(until, Ordering::Relaxed) == 0
    }

    /// Maximum data in one read or write, in bytes, of a file whose server asks for no less.
    pub fn iounit_max(&self) -> u32 {
        self.0.iounit
    }

    /// Whether both are the same session, so that a fid means the same in both.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The server's address: this client's own copy, as in its errors.
    pub fn peer(&self) -> &Arc<str> {
        &self.0.shared.peer
    }

    /// The reason why no further call can succeed, if the connection is gone.
    pub fn dead(&self) -> Option<Error> {
        self.0.shared.with(|state| state.dead().cloned())
    }

    /// The number of requests in flight, and how many of them were taken back and wait for their Rflush. If a server
    /// never answers a flush, the second number stays; the client's owner decides how long to wait.
    pub fn under_way(&self) -> (usize, usize) {
        self.0.shared.with(|state| (state.session.calls(), state.session.orphans()))
    }

    /// To be called periodically. Returns for how many calls in a row no byte has moved. If none has, it sends a Tflush
    /// of no request (one at a time), which a live server answers at once. The client's owner decides when to give up
    /// ([`Client::abort`]).
    pub fn beat(&self) -> u32 {
        let moved = self.0.shared.moved.swap(false, Ordering::Relaxed);
        self.0.shared.with(|state| state.beat(moved))
    }

    /// The number of fids that the server has for this client, or may have.
    pub fn fids(&self) -> u32 {
        self.0.shared.with(|state| state.session.fids())
    }

    /// Ends the connection at once: every current and later call fails with `reason`.
    pub fn abort(&self, reason: std::io::Error) {
        let peer = self.0.shared.peer.clone();
        self.0.shared.with(|state| state.die(Error::Transport { peer, error: Arc::new(reason) }));
    }

    /// Returns a handle that ends this client without waiting for answers ([`Ender::end`]).
    pub fn ender(&self) -> Ender {
        Ender(self.0.shared.clone())
    }

    fn fid(&self) -> Result<Fid> {
        self.0.shared.with(|state| state.fid())
    }

    fn call<'m>(&self, message: Tmsg<'m>) -> ClientCall<'m> {
        ClientCall::new(&self.0.shared, message)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Client {{ {} to {} }}", self.0.dialect.name(), self.peer())
    }
}

/// Ends an unused client without waiting for the remaining answers, which are those of clunks.
pub struct Ender(Arc<ClientShared>);

impl Ender {
    /// From now on the driver ends when the last handle is gone and all messages are sent.
    pub fn end(&self) {
        self.0.with(|state| state.hurry = true);
    }
}

/// Restores the state if a change of modules is abandoned, so that no call waits for it.
struct ModuleChangeGuard<'c> {
    client: &'c Client,
    near: bool,
    /// Both ends have switched.
    crossed: bool,
    over: bool,
}

impl Drop for ModuleChangeGuard<'_> {
    fn drop(&mut self) {
        if !self.near {
            return;
        }
        let shared = &self.client.0.shared;
        if !self.over && (self.crossed || !shared.with(|state| state.leave_border())) {
            let text = "given up while the conversation was being changed";
            self.client.abort(std::io::Error::new(std::io::ErrorKind::ConnectionAborted, text));
        }
    }
}

/// Checks that a string fits into a message.
fn text(s: &[u8]) -> Result<&[u8]> {
    if s.len() > usize::from(u16::MAX) || s.contains(&0) {
        return Err(Error::refused(nine_proto::Errno::EINVAL, "a text is too long or has a NUL in it"));
    }
    Ok(s)
}
