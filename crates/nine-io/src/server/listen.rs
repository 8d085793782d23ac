//! Listening: connections in, a task for each out, until the listener breaks or its core drains.
//!
//! Always holds: a client that is slow at its TLS handshake holds up nobody else and has [`HANDSHAKE`] for it; above
//! [`Door::clients`] connections a new one is closed at once, and that is logged once per episode.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nine_net::{Env, Listener, ServerTls, Socket, Transport};

use super::Service;

/// Time for a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Where clients come in.
pub struct Door {
    /// The socket.
    pub listener: Listener,
    /// TLS on it, if any; its files are read again when they have changed.
    pub tls: Option<Rc<RefCell<ServerTls>>>,
    /// The most clients at a time.
    pub clients: usize,
}

/// Serves every client of a door on this core. Ends without error when the core drains: the clients' own tasks may then
/// still be sending what they owe.
pub async fn listen<E: Env + Clone>(env: E, mut door: Door, service: Service) -> io::Result<()> {
    let addr = door.listener.addr().to_string();
    let id = service.core.next_id();
    let mut full = false;
    loop {
        let accepted = poll_fn(|cx| {
            service.core.enter_listener(id, cx.waker());
            if service.core.draining() {
                return Poll::Ready(None);
            }
            door.listener.poll_accept(cx, &env).map(Some)
        });
        let Some(accepted) = accepted.await else {
            service.core.leave(id);
            return Ok(());
        };
        let socket = accepted?;
        if service.core.guests() >= door.clients {
            if !std::mem::replace(&mut full, true) {
                tracing::warn!(%addr, "{} clients are connected: new ones are turned away", door.clients);
            }
            continue;
        }
        full = false;
        let guest = service.core.guest();
        let welcome = welcome(env.clone(), socket, door.tls.clone(), service.clone());
        env.spawn(Box::pin(async move {
            welcome.await;
            drop(guest);
        }));
    }
}

async fn welcome<E: Env>(env: E, socket: Socket, tls: Option<Rc<RefCell<ServerTls>>>, service: Service) {
    let peer = socket.peer().addr.clone();
    let transport: Box<dyn Transport> = match tls {
        None => Box::new(socket),
        Some(tls) => {
            let deadline = env.sleep_until(env.now() + HANDSHAKE);
            let shake = tls.borrow_mut().accept(socket, env.now(), env.wall(), deadline);
            match shake.await {
                Ok(tls) => Box::new(tls),
                Err(error) => return tracing::warn!(%peer, "TLS handshake failed: {error}"),
            }
        }
    };
    tracing::info!(peer = %transport.peer().addr, "connected");
    service.connect(transport).await;
}
