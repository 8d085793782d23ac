//! Listening: accepts connections and starts a task for each, until the listener fails or its core retires.
//!
//! The listening core distributes clients over the cores in turn, through the [`Seat`]s of the others.
//!
//! Always holds: a client with a slow TLS handshake delays no other client, and is dropped after [`HANDSHAKE`]. Above
//! [`Door::clients`] connections the oldest one that has not attached is evicted for a new one. If all have attached,
//! the new one is closed at once. The log gets one warning per episode.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::io;
use std::os::fd::OwnedFd;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::shm::{Channel, Kind, LINES, Layout, PAGES, Waits};
use nine_net::{Addr, Env, Listener, Peer, ServerTls, Socket, Transport, datagram};
use nine_proto::stream::{MAGIC, TOKEN};

use super::stream::{ServerStream, TOKEN_TIME};
use super::unattached::UnattachedConnection;
use super::{ConnectedClient, Service};
use crate::channel::Serving;
use crate::sync::{Mutex, lock};

/// Timeout of a TLS handshake.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Timeout until a client's Tversion, so that silent clients do not hold places that others need.
pub const GREETING: Duration = Duration::from_secs(30);

/// A listener and its settings.
pub struct Door {
    /// Accepts the connections.
    pub listener: Entrance,
    /// TLS on the listener, if any. Changed certificate files are read again.
    pub tls: Option<Tls>,
    /// Maximum number of clients at a time, over all listeners of the same `Core`. The last eighth is reserved for
    /// clients that the transport itself proves (peers of a unix socket). So strangers cannot lock out the owner.
    pub clients: usize,
}

/// A source of connections.
pub enum Entrance {
    /// Sockets, which any core may serve.
    Sockets(Listener),
    /// Shared-memory channels, one for each client of a unix socket. The listening core serves all of them.
    Channels(Listener, Waits),
    /// Conversations of il. The listening core serves all of them.
    Il(datagram::Listener),
}

/// An accepted connection.
enum AcceptedConnection {
    Socket(Socket),
    Channel(Socket, Waits),
    Il(Box<datagram::Talk>),
}

impl Entrance {
    /// Listens on an address.
    pub fn bind(addr: &Addr, env: &dyn Env) -> io::Result<Self> {
        match addr {
            Addr::Il { .. } => datagram::Listener::bind(addr, env).map(Self::Il),
            Addr::Shm { .. } => {
                Listener::bind(addr).map(|listener| Self::Channels(listener, Waits::default()))
            }
            _ => Listener::bind(addr).map(Self::Sockets),
        }
    }

    /// Sets how its channels wait, if it has any.
    pub fn waiting(self, waits: Waits) -> Self {
        match self {
            Self::Channels(listener, _) => Self::Channels(listener, waits),
            other => other,
        }
    }

    /// The actual address: a port 0 is replaced by the chosen one.
    pub fn addr(&self) -> &Addr {
        match self {
            Self::Sockets(listener) | Self::Channels(listener, _) => listener.addr(),
            Self::Il(listener) => listener.addr(),
        }
    }

    /// Whether only this machine can reach it.
    pub fn local_only(&self) -> bool {
        match self {
            Self::Sockets(listener) | Self::Channels(listener, _) => listener.local_only(),
            Self::Il(listener) => listener.local_only(),
        }
    }

    fn poll_accept(&mut self, cx: &mut Context<'_>, env: &dyn Env) -> Poll<io::Result<AcceptedConnection>> {
        match self {
            Self::Sockets(listener) => listener.poll_accept(cx, env).map_ok(AcceptedConnection::Socket),
            Self::Channels(listener, waits) => {
                listener.poll_accept(cx, env).map_ok(|socket| AcceptedConnection::Channel(socket, *waits))
            }
            Self::Il(listener) => {
                pin!(listener.accept()).poll(cx).map_ok(|talk| AcceptedConnection::Il(Box::new(talk)))
            }
        }
    }
}

/// TLS state shared by all handshakes of a listener; locked only to start one.
pub type Tls = Arc<std::sync::Mutex<ServerTls>>;

/// The places that connections without proof by their transport may take. The rest is for peers of unix sockets.
pub(super) fn unproven_places(clients: usize) -> usize {
    clients - clients / 8
}

/// Serves the clients of a listener on this core and on those of the seats, in turn. Returns without error when the
/// core retires. The clients' tasks may then still be sending answers ([`Core::drained`](super::Core::drained)).
pub async fn listen<E: Env + Clone>(
    env: E,
    mut door: Door,
    service: Service,
    seats: &[Arc<Seat>],
) -> io::Result<()> {
    let addr = door.listener.addr().to_string();
    let id = service.core.next_id();
    service.core.limit_places(door.clients);
    let (mut full, mut turn) = (false, 0);
    loop {
        let accepted = poll_fn(|cx| {
            service.core.enter_listener(id, cx.waker());
            if service.core.retiring() {
                return Poll::Ready(None);
            }
            door.listener.poll_accept(cx, &env).map(Some)
        });
        let Some(accepted) = accepted.await else {
            service.core.leave(id);
            return Ok(());
        };
        let came = accepted?;
        let proven = match &came {
            AcceptedConnection::Socket(socket) | AcceptedConnection::Channel(socket, _) => {
                socket.peer().proof.is_identity()
            }
            AcceptedConnection::Il(_) => false,
        };
        let places = if proven { door.clients } else { unproven_places(door.clients) };
        if service.core.guests() >= places {
            let has_room = service.core.unattached().evict(proven);
            if !std::mem::replace(&mut full, true) {
                let text =
                    "clients are connected: a new one takes the place of the oldest that has not attached";
                tracing::warn!(%addr, "{places} {text}");
            }
            if !has_room {
                continue;
            }
        } else {
            full = false;
        }
        let socket = match came {
            AcceptedConnection::Socket(socket) => socket,
            AcceptedConnection::Channel(socket, waits) => {
                let (env, guest) = (env.clone(), service.core.guest(proven));
                let (service, entry) = (service.clone(), guest.entry.clone());
                env.clone().spawn(Box::pin(guest.serve(async move {
                    service.join(env, socket, waits, entry).await;
                })));
                continue;
            }
            AcceptedConnection::Il(talk) => {
                let (env, guest) = (env.clone(), service.core.guest(proven));
                let (service, entry) = (service.clone(), guest.entry.clone());
                env.clone().spawn(Box::pin(guest.serve(async move {
                    service.welcome_guest(env, talk, Some(entry)).await;
                })));
                continue;
            }
        };
        let service = Service { seat: turn, ..service.clone() };
        let client = AcceptedClient { guest: service.core.guest(proven), tls: door.tls.clone(), service };
        match turn.checked_sub(1) {
            Some(n) => seats[usize::from(n)].give(socket, client),
            None => env.spawn(Box::pin(client.welcome(env.clone(), socket))),
        }
        turn = (turn + 1) % (seats.len() as u16 + 1);
    }
}

/// Another core's queue of new clients from the listening core, and of tasks from any core.
#[derive(Default)]
pub struct Seat {
    state: Mutex<WorkerQueue>,
}

#[derive(Default)]
struct WorkerQueue {
    /// Bounded by [`Door::clients`]: each is counted.
    clients: VecDeque<(OwnedFd, Peer, AcceptedClient)>,
    /// One for each connection to be started; the callers of [`Seat::spawn`] have counted these.
    tasks: Vec<Pin<Box<dyn Future<Output = ()> + Send>>>,
    waker: Option<Waker>,
    closed: bool,
}

impl Seat {
    /// Serves the queued clients and runs the tasks, on this core, until the seat is closed.
    pub async fn serve<E: Env + Clone>(&self, env: E) {
        let next = || {
            poll_fn(|cx| {
                let mut state = lock(&self.state);
                if state.closed {
                    return Poll::Ready(None);
                }
                state.tasks.drain(..).for_each(|task| env.spawn(task));
                let client = state.clients.pop_front();
                if client.is_none() {
                    state.waker = Some(cx.waker().clone());
                }
                client.map_or(Poll::Pending, |client| Poll::Ready(Some(client)))
            })
        };
        while let Some((fd, peer, client)) = next().await {
            match Socket::from_parts(fd, peer) {
                Ok(socket) => env.spawn(Box::pin(client.welcome(env.clone(), socket))),
                Err(error) => tracing::warn!("a client is lost on its way to its core: {error}"),
            }
        }
    }

    /// Ends [`Seat::serve`]; the core's clients end with it.
    pub fn close(&self) {
        self.change(|state| state.closed = true);
    }

    /// Runs a task on this core.
    pub fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send>>) {
        self.change(|state| state.tasks.push(task));
    }

    fn give(&self, socket: Socket, client: AcceptedClient) {
        let (fd, peer) = socket.into_parts();
        self.change(|state| state.clients.push_back((fd, peer, client)));
    }

    fn change(&self, f: impl FnOnce(&mut WorkerQueue)) {
        let mut state = lock(&self.state);
        f(&mut state);
        if let Some(waker) = state.waker.take() {
            drop(state);
            waker.wake();
        }
    }
}

impl Service {
    /// Gives the peer of a unix socket a shared-memory channel, and serves it through that.
    async fn join(&self, env: impl Env, socket: Socket, waits: Waits, entry: Arc<UnattachedConnection>) {
        let peer = socket.peer().addr.clone();
        let layout = Layout::new(Kind::GuestAsks, LINES, PAGES, "");
        let mut late = env.sleep_until(env.now() + HANDSHAKE);
        let joined = async {
            let mut channel = Channel::give(layout, waits, socket)?;
            let joined = poll_fn(|cx| match late.as_mut().poll(cx) {
                Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
                Poll::Pending => channel.poll_join(cx),
            });
            joined.await?;
            Ok::<_, io::Error>(channel)
        };
        match joined.await {
            Ok(channel) => self.welcome_guest(env, Box::new(Serving::new(channel)), Some(entry)).await,
            Err(error) => tracing::warn!(%peer, "nobody has joined the channel: {error}"),
        }
    }

    /// Serves a new connection: a client, which has [`GREETING`] to send its Tversion, or the data connection of a
    /// stream.
    pub async fn welcome(&self, env: impl Env, transport: Box<dyn Transport>) {
        self.welcome_guest(env, transport, None).await;
    }

    async fn welcome_guest(
        &self,
        env: impl Env,
        transport: Box<dyn Transport>,
        entry: Option<Arc<UnattachedConnection>>,
    ) {
        let begun = env.now();
        let come = match self.only_streams {
            true => Some((transport, Vec::new())),
            false => self.client(&env, transport, entry.clone()).await,
        };
        if let Some((data, begin)) = come {
            self.stream(env, data, begin, begun + TOKEN_TIME, entry).await;
        }
    }

    /// Serves a client. Returns the connection's transport and input if it turns out to carry a stream.
    async fn client(
        &self,
        env: &impl Env,
        transport: Box<dyn Transport>,
        entry: Option<Arc<UnattachedConnection>>,
    ) -> Option<(Box<dyn Transport>, Vec<u8>)> {
        let mut connection = pin!(self.connect(transport));
        connection.began(env.wall(), entry);
        let mut patience = Some(env.sleep_until(env.now() + GREETING));
        let mut offers = None;
        poll_fn(|cx| {
            if patience.as_mut().is_some_and(|timer| timer.as_mut().poll(cx).is_ready()) {
                patience = None;
                connection.expire();
            }
            connection.make_room(cx);
            let done = connection.as_mut().poll(cx);
            if connection.has_greeted() {
                // A live timer would make the runtime read the clock at each wake-up.
                patience = None;
            }
            while let Some(due) = connection.offer_due() {
                let kept = offers.take().filter(|(at, _)| *at == due);
                let (_, timer) = offers.insert(kept.unwrap_or_else(|| (due, env.sleep_until(due))));
                if timer.as_mut().poll(cx).is_pending() {
                    break;
                }
                offers = None;
                connection.expire_offers(env.now());
            }
            done
        })
        .await;
        connection.take_data()
    }

    /// Serves a data connection, whose first bytes are `begin`. Without a valid token in time it is closed.
    async fn stream(
        &self,
        env: impl Env,
        mut data: Box<dyn Transport>,
        mut begin: Vec<u8>,
        due: Duration,
        entry: Option<Arc<UnattachedConnection>>,
    ) {
        let mut late = env.sleep_until(due);
        let shown = poll_fn(|cx| {
            while begin.len() < MAGIC.len() + TOKEN {
                let mut rest = [0; MAGIC.len() + TOKEN];
                let missing = MAGIC.len() + TOKEN - begin.len();
                match data.poll_read(cx, &mut rest[..missing]) {
                    Poll::Ready(Ok(n)) if n > 0 => begin.extend_from_slice(&rest[..n]),
                    Poll::Ready(_) => return Poll::Ready(false),
                    Poll::Pending => return late.as_mut().poll(cx).map(|()| false),
                }
            }
            Poll::Ready(true)
        });
        let shown = shown.await;
        drop(late);
        let token = begin.strip_prefix(&MAGIC).and_then(<[u8]>::first_chunk).filter(|_| shown);
        let claimed = token.and_then(|token| ServerStream::claim(&self.core, token, data.peer(), env.now()));
        match claimed {
            Some(stream) => {
                // Its client has attached on another connection.
                entry.iter().for_each(|entry| self.core.unattached().attached(entry));
                stream.run(env, data, &begin[MAGIC.len() + TOKEN..]).await;
            }
            None => tracing::warn!(peer = %data.peer().addr, "a data connection showed no good token"),
        }
    }
}

/// An accepted client, and the configuration that it is served with.
struct AcceptedClient {
    tls: Option<Tls>,
    service: Service,
    guest: ConnectedClient,
}

impl AcceptedClient {
    async fn welcome(self, env: impl Env, socket: Socket) {
        let entry = self.guest.entry.clone();
        self.guest.serve(Self::greet(self.tls, self.service, env, socket, entry)).await;
    }

    async fn greet(
        tls: Option<Tls>,
        service: Service,
        env: impl Env,
        socket: Socket,
        entry: Arc<UnattachedConnection>,
    ) {
        let peer = socket.peer().addr.clone();
        let transport: Box<dyn Transport> = match tls {
            None => Box::new(socket),
            Some(tls) => {
                let deadline = env.sleep_until(env.now() + HANDSHAKE);
                let shake = {
                    let mut tls = tls.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    tls.accept(socket, env.now(), env.wall(), deadline)
                };
                match shake.await {
                    Ok(tls) => Box::new(tls),
                    Err(error) => return tracing::warn!(%peer, "TLS handshake failed: {error}"),
                }
            }
        };
        service.welcome_guest(env, transport, Some(entry)).await;
    }
}
