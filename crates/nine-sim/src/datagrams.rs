//! A simulated datagram network: it delays, loses, duplicates, reorders and corrupts datagrams, and has a bottleneck.
//!
//! Always holds: a delivered datagram has the bytes of a sent one, except for injected corruption.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_net::datagram::{Came, Link, Room};

use crate::rng::Rng;
use crate::world::{Clock, World};

/// Properties of the network. A number `n` of a fault means one in `n` datagrams; 0: none.
#[derive(Clone, Debug)]
pub struct Weather {
    /// One-way delay.
    pub delay: Duration,
    /// Maximum random addition to the delay. It reorders datagrams.
    pub jitter: Duration,
    /// Lost datagrams.
    pub lost: usize,
    /// Duplicated datagrams.
    pub doubled: usize,
    /// Datagrams with one flipped bit.
    pub changed: usize,
    /// Rate to each end in bytes per second; 0: no limit.
    pub rate: u64,
    /// Queue of the bottleneck in bytes. Datagrams beyond it are lost.
    pub queue: u64,
    /// Maximum length of a datagram in bytes.
    pub largest: usize,
    /// Announces that corrupt datagrams are dropped ([`Link::has_sums`]). With `changed` this is false, which a canary
    /// test uses.
    pub has_sums: bool,
}

impl Default for Weather {
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(1),
            jitter: Duration::ZERO,
            lost: 0,
            doubled: 0,
            changed: 0,
            rate: 0,
            queue: 1 << 20,
            largest: 1472,
            has_sums: false,
        }
    }
}

/// A network. Clones share it.
#[derive(Clone)]
pub struct Datagrams {
    shared: Arc<Mutex<Shared>>,
    clock: Arc<Clock>,
}

/// The socket of one end.
pub struct Wire {
    net: Datagrams,
    local: SocketAddr,
}

struct Shared {
    weather: Weather,
    rng: Rng,
    ends: HashMap<SocketAddr, End>,
    sent: u64,
}

#[derive(Default)]
struct End {
    /// In order of arrival.
    coming: BTreeMap<(Duration, u64), (SocketAddr, Vec<u8>)>,
    reader: Option<Waker>,
    /// When the bottleneck will have sent all queued bytes.
    free: Duration,
}

struct Arrival {
    shared: Weak<Mutex<Shared>>,
    at: SocketAddr,
}

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        let Some(shared) = self.shared.upgrade() else { return };
        let reader = locked(&shared).ends.get_mut(&self.at).and_then(|end| end.reader.take());
        reader.into_iter().for_each(Waker::wake);
    }
}

fn locked(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Datagrams {
    /// Creates a network in this world.
    pub fn new(world: &World, weather: Weather) -> Self {
        let shared = Shared { weather, rng: world.rng(), ends: HashMap::new(), sent: 0 };
        Self { shared: Arc::new(Mutex::new(shared)), clock: world.env().time() }
    }

    /// Creates a socket with this address.
    pub fn wire(&self, local: SocketAddr) -> Wire {
        locked(&self.shared).ends.insert(local, End::default());
        Wire { net: self.clone(), local }
    }

    /// Changes the properties of the network.
    pub fn change(&self, change: impl FnOnce(&mut Weather)) {
        change(&mut locked(&self.shared).weather);
    }

    /// Returns the number of sent datagrams.
    pub fn sent(&self) -> u64 {
        locked(&self.shared).sent
    }

    /// Sends `bytes` with the source address `from`, as an attacker may.
    pub fn send(&self, from: SocketAddr, to: SocketAddr, mut bytes: Vec<u8>) {
        let now = self.clock.now();
        let mut shared = locked(&self.shared);
        let Shared { weather, rng, ends, sent } = &mut *shared;
        *sent += 1;
        let mut meets = |one_in: usize| one_in > 0 && rng.one_in(one_in);
        let Some(end) = ends.get_mut(&to) else { return };
        if meets(weather.lost) || bytes.len() > weather.largest {
            return;
        }
        let (copies, changed) = (1 + usize::from(meets(weather.doubled)), meets(weather.changed));
        if changed && !bytes.is_empty() {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        let mut leaves = now;
        if weather.rate > 0 {
            let waits = end.free.saturating_sub(now).as_secs_f64() * weather.rate as f64;
            if waits > weather.queue as f64 {
                return;
            }
            let takes = Duration::from_secs_f64(bytes.len() as f64 / weather.rate as f64);
            end.free = end.free.max(now) + takes;
            leaves = end.free;
        }
        for copy in 0..copies {
            let jitter = weather.jitter.as_nanos() as usize;
            let more = if jitter == 0 { 0 } else { rng.below(jitter) };
            let at = leaves + weather.delay + Duration::from_nanos(more as u64);
            end.coming.insert((at, *sent * 2 + copy as u64), (from, bytes.clone()));
            let arrival = Arrival { shared: Arc::downgrade(&self.shared), at: to };
            self.clock.wake_at(at, &Waker::from(Arc::new(arrival)));
        }
    }
}

impl Link for Wire {
    fn poll_recv(&mut self, cx: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        let now = self.net.clock.now();
        let mut shared = locked(&self.net.shared);
        let end = shared.ends.entry(self.local).or_default();
        let mut n = 0;
        while n < rooms.len()
            && let Some(first) = end.coming.first_entry().filter(|entry| entry.key().0 <= now)
        {
            let ((from, bytes), room) = (first.remove(), &mut rooms[n]);
            let len = bytes.len().min(room.bytes.len());
            room.bytes[..len].copy_from_slice(&bytes[..len]);
            room.came = Some(Came { len, from, here: None });
            n += 1;
        }
        if n == 0 {
            end.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Ok(n))
    }

    fn poll_send(
        &mut self,
        _: &mut Context<'_>,
        parts: &[IoSlice<'_>],
        to: SocketAddr,
        _: Option<IpAddr>,
    ) -> Poll<io::Result<()>> {
        let bytes = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.net.send(self.local, to, bytes);
        Poll::Ready(Ok(()))
    }

    fn local(&self) -> SocketAddr {
        self.local
    }

    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync> {
        let largest = locked(&self.net.shared).weather.largest;
        Arc::new(move |_| largest)
    }

    fn has_sums(&self) -> bool {
        locked(&self.net.shared).weather.has_sums
    }
}
