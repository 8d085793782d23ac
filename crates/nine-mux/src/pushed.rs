//! Modules on the connections to a server: what is pushed stays, also on those that are made later, and before
//! anything else is said on them.
//!
//! Always holds: every connection of a server has the same modules. Whoever changes them, or makes a connection, has
//! the list of that server meanwhile; nobody else waits for that.

use std::collections::HashMap;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;

use futures_util::future::{Either, select};
use futures_util::lock::{Mutex as AsyncMutex, OwnedMutexGuard};
use nine_io::client::{Client, Driver, Error};
use nine_net::lock::{Mutex, lock};
use nine_net::modules::is_alone;
use nine_proto::Errno;

use crate::core::{Core, refused};
use crate::outside::Outside;
use crate::upstream::{GREETING, Lane, Server, Upstream};

/// Modules of one server, the top one last; at most as many as a conversation can have.
pub(crate) type Words = Arc<AsyncMutex<Vec<String>>>;

/// Of all servers that have any, or are known.
#[derive(Default)]
pub(crate) struct Pushed(Mutex<HashMap<Arc<str>, Words>>);

impl Pushed {
    /// The list of a server.
    pub(crate) fn of(&self, server: &Arc<str>) -> Words {
        let mut all = lock(&self.0);
        if let Some(known) = all.get(server) {
            return known.clone();
        }
        let is_used = |words: &Words| {
            Arc::strong_count(words) > 1 || words.try_lock().is_none_or(|words| !words.is_empty())
        };
        all.retain(|_, words| is_used(words));
        all.entry(server.clone()).or_default().clone()
    }

    /// Servers with modules, by name. One whose modules are being changed is left out.
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

/// Gives a new connection the modules of its server. As long as the result is held, no others become those.
pub(crate) async fn begin(
    upstream: &Upstream,
    outside: &Arc<Outside>,
    client: &Client,
    driver: &mut Driver,
) -> Result<OwnedMutexGuard<Vec<String>>, Error> {
    let words = upstream.pushed.clone().lock_owned().await;
    for module in words.iter() {
        let text = format!("push {module}");
        let change = pin!(within(outside, &upstream.server, client, &text, is_alone(module)));
        // Nobody else drives it yet.
        let changed = match select(change, Pin::new(&mut *driver)).await {
            Either::Left((changed, _)) => changed,
            Either::Right((end, _)) => {
                Err(end.err().map_or("the server closed the connection".into(), |e| e.to_string()))
            }
        };
        changed.map_err(|why| Error::Transport {
            peer: upstream.server.name.clone(),
            error: Arc::new(io::Error::new(io::ErrorKind::Unsupported, format!("{text}: {why}"))),
        })?;
    }
    Ok(words)
}

impl Core {
    /// Pushes a module on every connection to a server, now and later.
    pub(crate) async fn push(&self, server: &Server, module: &str) -> Result<(), Error> {
        let known = server.options.pushed.as_ref();
        let known = known
            .ok_or_else(|| refused(Errno::EINVAL, "nothing can be pushed on what is in this process"))?;
        known.modules.open(module).map_err(|fault| refused(Errno::EINVAL, &fault.to_string()))?;
        let list = self.pushed.of(&server.name);
        let mut words = list.lock().await;
        if words.len() >= MOST {
            return Err(refused(Errno::EINVAL, &format!("{MOST} modules are pushed, and no more may be")));
        }
        self.change_modules(&server.name, &format!("push {module}"), "pop", is_alone(module)).await?;
        words.push(module.to_owned());
        Ok(())
    }

    /// Pops the top one again.
    pub(crate) async fn pop(&self, server: &Arc<str>) -> Result<(), Error> {
        let list = self.pushed.of(server);
        let mut words = list.lock().await;
        let Some(top) = words.last() else {
            return Err(refused(Errno::EINVAL, "there is no module to pop"));
        };
        self.change_modules(server, "pop", &format!("push {top}"), is_alone(top)).await?;
        words.pop();
        Ok(())
    }

    /// Changes all connections to a server, or none: what has been changed before one refuses is changed back, or ends.
    async fn change_modules(
        &self,
        server: &Arc<str>,
        text: &str,
        back: &str,
        alone: bool,
    ) -> Result<(), Error> {
        let Some(upstream) = self.upstreams().into_iter().find(|of| of.server.name == *server) else {
            return Ok(());
        };
        let mut changed: Vec<Arc<Client>> = Vec::new();
        for client in upstream.lanes().iter().filter_map(|lane| Lane::client(lane)) {
            match within(&self.outside, &upstream.server, &client, text, alone).await {
                Ok(()) => changed.push(client),
                // It has gone meanwhile; the next one begins with what holds then.
                Err(_) if client.dead().is_some() => {}
                Err(why) => {
                    for client in changed {
                        if within(&self.outside, &upstream.server, &client, back, alone).await.is_err() {
                            client
                                .abort(io::Error::other(format!("{text} was refused by another connection")));
                        }
                    }
                    return Err(refused(Errno::EINVAL, &format!("{text}: {why}")));
                }
            }
        }
        Ok(())
    }
}

/// Changes one connection; why it is not changed. What is under way must end soon.
async fn within(
    outside: &Arc<Outside>,
    server: &Server,
    client: &Client,
    text: &str,
    alone: bool,
) -> Result<(), String> {
    let changed = async {
        match alone {
            true => client.change_here(text).await,
            false => client.change(&server.user.0, server.user.1, text).await,
        }
    };
    match outside.within(GREETING, changed).await {
        None => Err(format!("what is under way has not ended within {} s", GREETING.as_secs())),
        Some(Err(Error::Remote(error))) => {
            Err(format!("{error}; does the server have modules for its clients?"))
        }
        Some(changed) => changed.map_err(|error| error.to_string()),
    }
}

/// Modules of one server.
const MOST: usize = nine_net::DEEPEST;
