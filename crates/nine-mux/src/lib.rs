//! The multiplexer: N clients and M servers, one name space, and nobody waits for anybody (seed: Hickey, chapters 3
//! and 4).
//!
//! A [`Mux`] is a [`FileServer`](nine_io::server::FileServer): what stands behind a client's fid is a fid of an
//! upstream's [`Client`](nine_io::client::Client). So tags and fids are translated by the two sessions on either side,
//! and only qids and the name space are the mux's own work.
//!
//! ```text
//! client -> server session -> Mux -> Client session -> upstream
//! ```
//!
//! In: [`Server`]s, [`Mux::mount`], [`Mux::bind`], [`Mux::unmount`], and requests. Out: requests to upstreams.
//!
//! Always holds: an upstream that is slow, silent or gone holds up nobody but those who ask for its files; the name
//! space is a value that is swapped, so that requests under way see the one they began with; what a client leaves
//! behind, also by going away, is flushed and clunked at every upstream.
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
mod outside;
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
use nine_proto::Names;

pub use ahead::TOTAL as AHEAD_MAX;
pub use attach::{Con, Local, Received, UNSENT_MAX};
pub use fids::UPSTREAM_FIDS_MAX;
pub use keep::{BEAT, REPLAY, Wait};
pub use live::{AWAY, CLIENTS, Draft, Kinds, Live};
pub use qid::SLOTS_EACH;
pub use show::{ConnectionStatus, MountStatus, Status, UpstreamStatus};
pub use space::{Flags, MEMBERS_MAX, Order};
pub use union::SEEN_MAX;
pub use upstream::{
    As, BUDGET, Boxed, Dial, GREETING, HOPS_MAX, OTHERS_MAX, RETRY, Server, Spawn, is_owner, told,
};

use crate::cfid::Walker;
use crate::core::Core;

/// The name space that clients get who ask for none.
pub const MAIN: &str = "main";

/// A multiplexer. Clones are the same.
#[derive(Clone)]
pub struct Mux(Arc<Core>);

/// The user that mounts and binds: whoever runs the mux.
#[derive(Clone, Debug, Default)]
pub struct Owner {
    /// Its name; empty: upstreams know from elsewhere.
    pub name: Box<str>,
    /// Its number.
    pub uid: Option<u32>,
}

impl Mux {
    /// A mux (muxalloc of the seed) whose name spaces begin with the tree of `backbone`: a tree in memory, in which
    /// missing mount points are made. [`Mux::run`] must be polled for anything to happen.
    pub fn new(backbone: Server, names: Arc<dyn Names>) -> Self {
        let core = Core::new(names);
        let upstream = core.upstream(backbone);
        let owner = As::User { name: Box::default(), uid: None };
        core.set_backbone(core.tree(&upstream, "", &owner, None, false));
        core.named_or_new(MAIN);
        Self(core)
    }

    /// Does what needs the time and tasks of a core; does not end. To be polled on one core, for all; the others are
    /// `seats`, and have the connections of their clients if a mount has as many as there are cores.
    pub fn run<E: Env>(&self, env: E, seats: &[Arc<Seat>]) -> impl Future<Output = ()> + use<E> {
        let core = self.0.clone();
        core.outside.sit(seats.to_vec());
        async move { core.run(env).await }
    }

    /// A name space to change, made if there is none of this name. The first one is [`MAIN`].
    pub fn space(&self, name: &str, owner: Owner) -> Space {
        self.space_of(self.0.named_or_new(name), &owner)
    }

    fn space_of(&self, named: Arc<named::Named>, owner: &Owner) -> Space {
        let ident = self.0.ident(&owner.name, owner.uid, upstream::Standing::Proven, false);
        let (principal, base) = (ClientPrincipal::Owner, b"/"[..].into());
        let by = Arc::new(Walker { named, ident, hops: 0, client: 0, principal, base });
        Space { core: self.0.clone(), by, limit: 2 * GREETING }
    }
}

/// A name space of a mux, in the hands of somebody who may change it.
///
/// Concurrency: changes are made one after the other, also while requests are under way; each is there as a whole or
/// not at all.
#[derive(Clone)]
pub struct Space {
    core: Arc<Core>,
    by: Arc<Walker>,
    /// How long a call waits for each server on its way.
    limit: Duration,
}

impl Space {
    /// Mounts the tree `aname` of a server on `old` (muxmount of the seed, mount(2)). A server that cannot be reached
    /// now is mounted all the same, and tried again when somebody walks there. What comes out numbers the mount.
    ///
    /// # Errors
    /// `old` does not exist (directories that are missing in the backbone are made), or one is a file and the other a
    /// directory; the server refuses the attach.
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

    /// The same; beside the number of the call, why the server does not answer now.
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
        self.core.mount(&self.by, tree, &what, old, flags, self.limit).await
    }

    /// Makes what is at `new` be seen at `old`, too (muxbind of the seed, bind(2)): early, what becomes of the name
    /// `new` later does not matter.
    pub async fn bind(&self, new: &str, old: &str, flags: Flags) -> Result<u64, Error> {
        Ok(self.core.bind(&self.by, new, old, flags, self.limit).await?.0)
    }

    /// Takes away what was mounted or bound on `old`: `new`, in the words of that call or by a path that leads
    /// there, the latest one of several; or everything.
    pub async fn unmount(&self, new: Option<&str>, old: &str) -> Result<(), Error> {
        self.core.unmount(&self.by, new, old).await
    }

    /// Only the owner may have this name space ([`Who::owner`](nine_io::server::Who::owner)): a name proves nothing
    /// where a listener takes everybody's word.
    pub fn for_owner(&self) {
        self.by.named.for_owner.store(true, std::sync::atomic::Ordering::Relaxed);
    }

    /// Only these users may have this name space, and they have it when they ask for none. Without any: everybody
    /// may have it who asks for it by its name.
    pub fn for_users(&self, users: &[&str]) {
        *lock(&self.by.named.users) = users.iter().map(|&user| user.into()).collect();
    }
}
