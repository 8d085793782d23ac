//! The multiplexer: connects N clients and M servers through one name space (seed: Hickey, chapters 3 and 4).
//!
//! A [`Mux`] is a [`FileServer`](nine_io::server::FileServer). Each fid of a client refers to a fid of an upstream's
//! [`Client`](nine_io::client::Client). The two sessions on either side translate tags and fids. The mux itself handles
//! only qids and the name space.
//!
//! ```text
//! client -> server session -> Mux -> Client session -> upstream
//! ```
//!
//! In: [`Server`]s, [`Mux::mount`], [`Mux::bind`], [`Mux::unmount`], and requests. Out: requests to upstreams.
//!
//! Always holds: a slow, silent or lost upstream delays only the requests for its own files. The name space is an
//! immutable value that is replaced as a whole, so that a running request sees the value it started with. The mux
//! flushes and clunks all requests and fids that a client abandons at every upstream, also when the client disconnects.
#![forbid(unsafe_code)]

mod ahead;
mod attach;
mod auth;
mod cfid;
mod core;
mod fids;
mod herald;
mod jobs;
mod keep;
mod live;
mod made;
mod message;
mod metrics;
mod named;
mod one;
mod outside;
mod pending;
mod pushed;
mod qid;
pub mod script;
mod serve;
mod show;
mod space;
mod stream;
mod translate;
mod union;
mod unsynced;
mod upstream;
mod views;
mod walk;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use nine_io::client::Error;
use nine_io::limits::ClientPrincipal;
use nine_io::server::Seat;
use nine_net::Env;
use nine_net::lock::lock;
use nine_proto::{Errno, Names};

pub use ahead::TOTAL as AHEAD_MAX;
pub use attach::{Con, Local, Received, UNSENT_MAX};
pub use fids::UPSTREAM_FIDS_MAX;
pub use keep::{BEAT, REPLAY, Wait};
pub use live::{AWAY, CLIENTS, Draft, Kinds, Live};
pub use one::{HIDDEN_FILES, files_of_one};
pub use qid::SLOTS_EACH;
pub use show::{ConnectionStatus, MountStatus, Status, UpstreamStatus};
pub use space::{Flags, MEMBERS_MAX, Order};
pub use union::SEEN_MAX;
pub use upstream::{
    As, BUDGET, Boxed, Dial, GREETING, HOPS_MAX, OTHERS_MAX, RETRY, Server, Spawn, is_owner, told,
};

use crate::cfid::AttachContext;
use crate::core::{MuxCore, refused};

/// The name space for clients that do not name one.
pub const MAIN: &str = "main";

/// A multiplexer. Clones share their state.
#[derive(Clone)]
pub struct Mux(Arc<MuxCore>);

/// The user that mounts and binds: the one that runs the mux.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// Its name; empty if upstreams know the user by other means.
    pub name: Box<str>,
    /// Its number.
    pub uid: Option<u32>,
}

impl Mux {
    /// Creates a mux (muxalloc of the seed). Its name spaces are based on the tree of `backbone`, which must be in
    /// memory. Missing mount points are created there. The mux makes no progress unless [`Mux::run`] is polled.
    pub fn new(backbone: Server, names: Arc<dyn Names>) -> Self {
        let core = MuxCore::new(names);
        let upstream = core.upstream(backbone);
        let owner = As::User { name: Box::default(), uid: None };
        core.set_backbone(core.tree(&upstream, "", &owner, None, false));
        core.named_or_new(MAIN);
        Self(core)
    }

    /// Runs the mux's jobs, timers and tasks on one core. Never returns. `seats` are the other cores. If a mount has as
    /// many connections as there are cores, each core serves the connection of its own clients.
    pub fn run<E: Env>(&self, env: E, seats: &[Arc<Seat>]) -> impl Future<Output = ()> + use<E> {
        let core = self.0.clone();
        core.outside.sit(seats.to_vec());
        async move { core.run(env).await }
    }

    /// Returns a name space to change, and creates it if the name is new. The default one is [`MAIN`].
    pub fn space(&self, name: &str, owner: Owner) -> Space {
        self.space_of(self.0.named_or_new(name), &owner)
    }

    fn space_of(&self, named: Arc<named::NamedSpace>, owner: &Owner) -> Space {
        let ident = self.0.ident(&owner.name, owner.uid, upstream::UserStanding::Proven, false);
        let (principal, base) = (ClientPrincipal::Owner, b"/"[..].into());
        let unreached = None;
        let by = Arc::new(AttachContext { named, ident, hops: 0, client: 0, principal, base, unreached });
        Space { core: self.0.clone(), by, limit: 2 * GREETING, is_wanted: None }
    }
}

/// A handle to change a name space of a mux.
///
/// Concurrency: changes are serialized, and possible while requests are running. Each takes effect as a whole or not at
/// all.
#[derive(Clone)]
pub struct Space {
    core: Arc<MuxCore>,
    by: Arc<AttachContext>,
    /// Timeout of a call for each server on its path.
    limit: Duration,
    /// Whether a mount or bind is still wanted when its walks are done. If not, it fails and changes nothing.
    is_wanted: Option<Arc<dyn Fn() -> bool + Send + Sync>>,
}

impl Space {
    /// Mounts the tree `aname` of a server on `old` (muxmount of the seed, mount(2)). Returns the number of the mount.
    /// A server that cannot be reached now is mounted all the same; a later walk tries it again.
    ///
    /// # Errors
    /// `old` does not exist: missing names are created only in trees in memory. One is a file and the other a
    /// directory. The server refuses the attach.
    pub async fn mount(
        &self,
        server: Server,
        aname: &str,
        user: &As,
        old: &str,
        flags: Flags,
    ) -> Result<u64, Error> {
        Ok(self.mounted(server, aname, user, old, flags).await?.0)
    }

    /// Like [`Space::mount`]. Also returns the error if the server does not answer now.
    pub(crate) async fn mounted(
        &self,
        server: Server,
        aname: &str,
        user: &As,
        old: &str,
        flags: Flags,
    ) -> Result<(u64, Option<Error>), Error> {
        let what: Arc<str> = match aname {
            "" => server.name.clone(),
            aname => format!("{} {aname}", server.name).into(),
        };
        let (wait, ahead) = (server.wait, server.ahead);
        let upstream = self.core.upstream(server);
        let tree = self.core.tree(&upstream, aname, user, wait, ahead);
        self.core.mount(self, tree, &what, old, flags).await
    }

    /// Makes the file at `new` visible at `old`, too (muxbind of the seed, bind(2)). `new` is resolved now: later
    /// changes of that name have no effect.
    pub async fn bind(&self, new: &str, old: &str, flags: Flags) -> Result<u64, Error> {
        Ok(self.core.bind(self, new, old, flags).await?.0)
    }

    /// Removes a mount or bind from `old`. `new` is the argument of that call or a path to the mounted file; if several
    /// calls match, the latest is removed. Without `new`, everything is removed.
    pub async fn unmount(&self, new: Option<&str>, old: &str) -> Result<(), Error> {
        self.core.unmount(&self.by, new, old).await
    }

    fn check_wanted(&self) -> Result<(), Error> {
        match self.is_wanted.as_ref().is_none_or(|is_wanted| is_wanted()) {
            true => Ok(()),
            false => Err(refused(Errno::ECANCELED, "it was withdrawn")),
        }
    }

    /// Restricts this name space to the owner ([`Who::owner`](nine_io::server::Who::owner)). A user name proves nothing
    /// if a listener accepts all names.
    pub fn for_owner(&self) {
        self.by.named.for_owner.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Restricts this name space to these users. They get it by default. If `users` is empty, any user may attach to it
    /// by its name.
    pub fn for_users(&self, users: &[&str]) {
        *lock(&self.by.named.users) = users.iter().map(|&user| user.into()).collect();
    }
}
