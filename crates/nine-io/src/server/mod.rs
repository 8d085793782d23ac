//! The server framework: connections on one side, a [`FileServer`] on the other.
//!
//! ```text
//! Transport -> rx -> Session -> gate -> FileServer::serve(Req) -> Answer -> Session -> tx -> Transport
//! ```
//! A [`Service`] is what a listener hands out: which server, through which [`Gate`], within which limits. Its
//! [`Core`] is shared by all connections of a core: buffers, the memory budget, who is connected.

mod conn;
mod gate;
mod listen;
mod req;
mod rx;
mod tx;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use nine_net::Transport;
use nine_proto::Dialect;
use nine_proto::session::server::Limits;

pub use conn::{CEILING, Connection, FID_COST, FLOOR, OUTSTANDING, SHORT, TURN_BYTES, TURN_MESSAGES};
pub use gate::{Anonymous, Gate};
pub use listen::{Door, listen};
pub use req::{Answer, FileServer, Later, Node, Reply, Req, ReqId, Request, Who};

use crate::buf::Pool;

/// The dialects we speak, best first.
pub const DIALECTS: &[Dialect] = &[Dialect::L, Dialect::U, Dialect::P2000];

/// Bytes that the connections of a core may hold above their floors, unless told otherwise. Each may have a quarter of
/// what is left (see [`Connection`]).
pub const BUDGET: usize = 256 * 1024 * 1024;

/// What a connection is served with. Cheap to clone.
#[derive(Clone)]
pub struct Service {
    /// Who answers.
    pub server: Arc<dyn FileServer>,
    /// Who may ask.
    pub gate: Arc<Gate>,
    /// What one client may hold.
    pub limits: Limits,
    /// Which dialects are offered.
    pub dialects: &'static [Dialect],
    /// What the connections of this core share.
    pub core: Core,
}

impl Service {
    /// All dialects and the default limits.
    pub fn new(server: Arc<dyn FileServer>, gate: Gate, core: Core) -> Self {
        Self { server, gate: Arc::new(gate), limits: Limits::default(), dialects: DIALECTS, core }
    }

    /// The task that serves one client.
    pub fn connect(&self, transport: Box<dyn Transport>) -> Connection {
        Connection::new(self, transport)
    }
}

/// What the connections of a core share. Clones are the same core.
#[derive(Clone)]
pub struct Core {
    pub(crate) pool: Pool,
    shared: Arc<Shared>,
}

struct Shared {
    budget: usize,
    borrowed: AtomicUsize,
    draining: AtomicBool,
    /// Live connections, to be woken when the core drains.
    connections: Mutex<HashMap<u64, Waker>>,
    /// Listeners, likewise.
    listeners: Mutex<HashMap<u64, Waker>>,
    /// Connections that wait until others give memory back.
    starved: Mutex<HashMap<u64, Waker>>,
    /// Whether there are any.
    any_starved: AtomicBool,
    /// Clients from accept to the last clunk.
    guests: AtomicUsize,
}

impl Default for Core {
    fn default() -> Self {
        Self::with_budget(BUDGET)
    }
}

impl Core {
    /// A core whose connections may hold `budget` bytes above their floors.
    pub fn with_budget(budget: usize) -> Self {
        Self {
            pool: Pool::default(),
            shared: Arc::new(Shared {
                budget,
                borrowed: AtomicUsize::new(0),
                draining: AtomicBool::new(false),
                connections: Mutex::default(),
                listeners: Mutex::default(),
                starved: Mutex::default(),
                any_starved: AtomicBool::new(false),
                guests: AtomicUsize::new(0),
            }),
        }
    }

    /// Has every connection finish what it has been asked, read nothing more, and end.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::SeqCst);
        for waker in lock(&self.shared.connections).values().chain(lock(&self.shared.listeners).values()) {
            waker.wake_by_ref();
        }
    }

    /// How many clients are connected.
    pub fn connected(&self) -> usize {
        lock(&self.shared.connections).len()
    }

    /// Bytes that connections hold above their floors.
    pub fn borrowed(&self) -> usize {
        self.shared.borrowed.load(Ordering::Relaxed)
    }

    fn draining(&self) -> bool {
        self.shared.draining.load(Ordering::SeqCst)
    }

    /// Bytes that nobody has borrowed.
    fn free(&self) -> usize {
        self.shared.budget.saturating_sub(self.borrowed())
    }

    fn borrow(&self, old: usize, new: usize) {
        if new > old {
            self.shared.borrowed.fetch_add(new - old, Ordering::Relaxed);
        } else if old > new {
            self.shared.borrowed.fetch_sub(old - new, Ordering::SeqCst);
            if self.shared.any_starved.swap(false, Ordering::SeqCst) {
                std::mem::take(&mut *lock(&self.shared.starved)).into_values().for_each(Waker::wake);
            }
        }
    }

    /// Wakes when memory is given back. Look again after this: it may have been just before.
    fn wait_for_memory(&self, id: u64, waker: &Waker) {
        lock(&self.shared.starved).insert(id, waker.clone());
        self.shared.any_starved.store(true, Ordering::SeqCst);
    }

    /// Counts a client until the guard is dropped.
    fn guest(&self) -> Guest {
        self.shared.guests.fetch_add(1, Ordering::Relaxed);
        Guest(self.clone())
    }

    fn guests(&self) -> usize {
        self.shared.guests.load(Ordering::Relaxed)
    }

    fn enter(&self, id: u64, waker: &Waker) {
        lock(&self.shared.connections).insert(id, waker.clone());
    }

    fn enter_listener(&self, id: u64, waker: &Waker) {
        lock(&self.shared.listeners).insert(id, waker.clone());
    }

    fn leave(&self, id: u64) {
        for table in [&self.shared.connections, &self.shared.listeners, &self.shared.starved] {
            lock(table).remove(&id);
        }
    }

    /// Numbers connections through the whole process, so that a log line names one.
    fn next_id(&self) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }
}

/// One client, from accept to its last clunk.
struct Guest(Core);

impl Drop for Guest {
    fn drop(&mut self) {
        self.0.shared.guests.fetch_sub(1, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
