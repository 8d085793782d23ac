//! Modules on the connections to a server. They stay pushed, and later connections get them before any other message.
//!
//! In: pushes, pops and new connections. Out: changed connections. Always holds: all connections of a server have the
//! same modules. A task that changes them or sets up a connection locks the list of that server; no other task waits
//! for it.

use std::collections::HashMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::future::{Either, join_all, select};
use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use nine_io::client::{Client, Driver, Error};
use nine_net::lock::{Mutex, lock};
use nine_net::modules::{is_alone, name};
use nine_proto::Errno;

use crate::core::{MuxCore, refused};
use crate::outside::OutsideTasks;
use crate::upstream::{GREETING, Server, UpstreamServer};

/// The modules of one server, the top one last. Their number is limited to that of one conversation.
pub(crate) type ModuleList = Arc<AsyncMutex<Vec<String>>>;

/// The lists of all known servers.
#[derive(Default)]
pub(crate) struct PushedModules(Mutex<HashMap<Arc<str>, ModuleList>>);

impl PushedModules {
    /// Returns the list of a server.
    pub(crate) fn of(&self, server: &Arc<str>) -> ModuleList {
        let mut all = lock(&self.0);
        if let Some(known) = all.get(server) {
            return known.clone();
        }
        let is_used = |words: &ModuleList| {
            Arc::strong_count(words) > 1 || words.try_lock().is_none_or(|words| !words.is_empty())
        };
        all.retain(|_, words| is_used(words));
        all.entry(server.clone()).or_default().clone()
    }

    /// Returns the servers with modules, sorted by name. Servers with a change in progress are left out.
    pub(crate) fn all(&self) -> Vec<(Arc<str>, Vec<String>)> {
        let all = lock(&self.0);
        let mut seen: Vec<_> = all
            .iter()
            .filter_map(|(name, words)| Some((name.clone(), words.try_lock()?.clone())))
            .filter(|(_, words)| !words.is_empty())
            .collect();
        seen.sort();
        seen
    }
}

/// Pushes the modules of its server on a new connection. The list cannot change while the caller holds the result.
pub(crate) async fn begin(
    upstream: &UpstreamServer,
    outside: &Arc<OutsideTasks>,
    client: &Client,
    driver: &mut Driver,
) -> Result<OwnedMutexGuard<Vec<String>>, Error> {
    let failed = |text: String| Error::Transport {
        peer: upstream.server.name.clone(),
        error: Arc::new(io::Error::new(io::ErrorKind::Unsupported, text)),
    };
    let words = outside.within(GREETING, upstream.pushed.clone().lock_owned()).await;
    let words = words.ok_or_else(|| failed("its modules are being changed".into()))?;
    for (n, module) in words.iter().enumerate() {
        let change = ModuleChange {
            text: format!("push {module}"),
            alone: is_alone(module),
            // Do not send a token in plain text if tls is to be pushed.
            may_show: !words[n..].iter().any(|module| name(module) == "tls"),
        };
        let changed = pin!(change.on(outside, &upstream.server, client));
        // No other task drives the connection yet.
        let changed = match select(changed, Pin::new(&mut *driver)).await {
            Either::Left((changed, _)) => changed,
            Either::Right((end, _)) => {
                Err(end.err().map_or("the server closed the connection".into(), |error| error.to_string()))
            }
        };
        changed.map_err(failed)?;
    }
    Ok(words)
}

impl MuxCore {
    /// Pushes a module on all connections to a server, present and future.
    pub(crate) async fn push(&self, server: &Server, module: &str) -> Result<(), Error> {
        let known = server.options.pushed.as_ref();
        let known = known
            .ok_or_else(|| refused(Errno::EINVAL, "nothing can be pushed on what is in this process"))?;
        known.modules.open(module).map_err(|fault| refused(Errno::EINVAL, &fault.to_string()))?;
        let list = self.pushed.of(&server.name);
        let mut words = list.lock().await;
        if words.len() >= SERVER_MODULES_MAX {
            return Err(refused(
                Errno::EINVAL,
                &format!("{SERVER_MODULES_MAX} modules are pushed, and no more may be"),
            ));
        }
        let taken = words.iter().map(|module| name(module));
        known.modules.fits(module, taken).map_err(|fault| refused(Errno::EINVAL, &fault.to_string()))?;
        let (text, may_show) = (format!("push {module}"), name(module) != "tls");
        let change = ModuleChange { text, alone: is_alone(module), may_show };
        self.change_modules(&server.name, &change, "pop").await?;
        words.push(module.to_owned());
        Ok(())
    }

    /// Pops the top module.
    pub(crate) async fn pop(&self, server: &Arc<str>) -> Result<(), Error> {
        let list = self.pushed.of(server);
        let mut words = list.lock().await;
        let Some(top) = words.last() else {
            return Err(refused(Errno::EINVAL, "there is no module to pop"));
        };
        let change = ModuleChange { text: "pop".into(), alone: is_alone(top), may_show: true };
        self.change_modules(server, &change, &format!("push {top}")).await?;
        words.pop();
        Ok(())
    }

    /// Changes all connections to a server or none. If one refuses, the others are changed back or closed.
    async fn change_modules(
        &self,
        server: &Arc<str>,
        change: &ModuleChange,
        back: &str,
    ) -> Result<(), Error> {
        let Some(upstream) = self.upstreams().into_iter().find(|of| of.server.name == *server) else {
            return Ok(());
        };
        let clients: Vec<_> = upstream.lanes().iter().filter_map(|lane| lane.client()).collect();
        let on = async |client: &Client, change: &ModuleChange| {
            change.on(&self.outside, &upstream.server, client).await
        };
        let changed = join_all(clients.iter().map(|client| on(client, change))).await;
        let Some(why) = changed.iter().find_map(|changed| changed.as_ref().err()) else { return Ok(()) };
        let back = ModuleChange { text: back.into(), alone: change.alone, may_show: false };
        let others = clients.iter().zip(&changed).filter(|(_, changed)| changed.is_ok());
        join_all(others.map(async |(client, _)| {
            if on(client, &back).await.is_err() {
                client.abort(io::Error::other(format!("{} was refused by another connection", change.text)));
            }
        }))
        .await;
        Err(refused(Errno::EINVAL, why))
    }
}

/// A change of a connection's modules.
struct ModuleChange {
    text: String,
    /// Whether only this end changes.
    alone: bool,
    /// Whether a token may be sent, if nothing else authorizes us.
    may_show: bool,
}

impl ModuleChange {
    /// Changes one connection. In-flight requests must end soon. Returns the reason of a failure.
    async fn on(&self, outside: &Arc<OutsideTasks>, server: &Server, client: &Client) -> Result<(), String> {
        // Boxed: this is rare and large, and would make every dial larger.
        let changed = Box::pin(async {
            match self.alone {
                true => client.change_here(&self.text).await,
                false => client.change(&server.user.0, server.user.1, &self.text, self.may_show).await,
            }
        });
        match outside.within(GREETING, changed).await {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) => Err(format!("{}: {error}", self.text)),
            None => {
                Err(format!("{}: what is under way has not ended within {} s", self.text, GREETING.as_secs()))
            }
        }
    }
}

/// Maximum number of modules of one server.
const SERVER_MODULES_MAX: usize = nine_net::DEEPEST;
