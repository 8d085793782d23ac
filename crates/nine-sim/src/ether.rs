//! A simulated Ethernet: cards on one wire, with random faults.
//!
//! In: packets. Out: the same packets, some of them lost, duplicated, late or corrupt. The same seed gives the same
//! wire.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_net::ether::Mac;
use nine_net::nonet::Link;
use nine_net::{Clock, Env, Timer};

use crate::{Rng, SimEnv, World};

/// The broadcast address.
const EVERYBODY: Mac = Mac([0xff; 6]);

/// Faults: one in so many packets; 0: never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// The packet is lost.
    pub lost: usize,
    /// The packet arrives twice.
    pub twice: usize,
    /// The packet is up to 3 ms late, so others overtake it.
    pub late: usize,
    /// One bit of the packet is flipped.
    pub bent: usize,
    /// As a bug would do it: data is changed, and the checksum field says that there is no checksum.
    pub forged: usize,
    /// No packet arrives.
    pub cut: bool,
    /// Rate to each card in bytes per second; 0: no limit.
    pub rate: u64,
    /// Added to the basic delay of 50 us.
    pub delay: Duration,
}

/// Length of the queue before a wire with a rate, in packets.
const QUEUE: u32 = 1000;
/// Length of an Ethernet header in bytes.
pub const FRAME: usize = 14;

/// A wire with its cards.
pub struct Ether {
    rng: Rng,
    /// Present faults. They may be changed at any time.
    pub faults: Faults,
    cards: BTreeMap<Mac, Card>,
    /// Maximum length of a packet in bytes.
    pub mtu: usize,
    /// Error that every card returns for every packet it should send.
    pub refuses: Option<io::ErrorKind>,
    /// A card that fails with `NotConnected`.
    pub gone: Option<Mac>,
    /// Cards with unplugged cables.
    pub out: Vec<Mac>,
    next: u64,
}

#[derive(Default)]
struct Card {
    /// Number of sent bytes.
    sent: usize,
    /// When the wire to this card will have carried all queued packets.
    free: Duration,
    coming: BTreeMap<(Duration, u64), (Mac, Vec<u8>)>,
    waker: Option<Waker>,
}

/// A shared handle of the wire.
pub type Wire = Arc<Mutex<Ether>>;

/// Locks the wire. Do not hold the guard across an `.await`.
pub fn held(wire: &Wire) -> MutexGuard<'_, Ether> {
    wire.lock().expect("no panic while it is held")
}

impl Ether {
    /// Creates a wire with this random stream, for packets up to `mtu` bytes.
    pub fn wire(rng: Rng, faults: Faults, mtu: usize) -> Wire {
        let (cards, out) = (BTreeMap::new(), Vec::new());
        Arc::new(Mutex::new(Self { rng, faults, cards, mtu, refuses: None, gone: None, out, next: 0 }))
    }

    fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.rng.one_in(n)
    }

    /// Returns the number of bytes that a card has sent, headers included.
    pub fn sent(&self, card: Mac) -> usize {
        self.cards.get(&card).map_or(0, |card| card.sent)
    }

    /// Carries a packet from one card to another, or to all others if `to` is the broadcast address.
    pub fn carry(&mut self, now: Duration, from: Mac, to: Mac, packet: &[u8]) {
        self.cards.get_mut(&from).into_iter().for_each(|card| card.sent += packet.len() + FRAME);
        if to != EVERYBODY {
            return self.reaches(now, from, to, packet);
        }
        let others: Vec<Mac> = self.cards.keys().copied().filter(|card| *card != from).collect();
        others.into_iter().for_each(|card| self.reaches(now, from, card, packet));
    }

    fn reaches(&mut self, now: Duration, from: Mac, to: Mac, packet: &[u8]) {
        let faults = self.faults;
        if faults.cut || self.out.contains(&from) || self.out.contains(&to) || self.one_in(faults.lost) {
            return;
        }
        for _ in 0..1 + usize::from(self.one_in(faults.twice)) {
            let mut packet = packet.to_vec();
            if self.one_in(faults.bent) {
                let bit = self.rng.below(packet.len() * 8);
                packet[bit / 8] ^= 1 << (bit % 8);
            }
            if packet.len() > 60 && self.one_in(faults.forged) {
                packet[8..10].fill(0);
                packet[40] ^= 1;
            }
            let late = if self.one_in(faults.late) { self.rng.below(3000) } else { 0 };
            let Some(card) = self.cards.get_mut(&to) else { return };
            let takes = |len: usize| {
                Duration::from_nanos((len as u64 * 1_000_000_000).checked_div(faults.rate).unwrap_or(0))
            };
            let leaves = now.max(card.free) + takes(packet.len() + FRAME);
            if leaves > now + takes(1500 + FRAME) * QUEUE && faults.rate > 0 {
                return;
            }
            card.free = leaves;
            let arrives = leaves + faults.delay + Duration::from_micros(50 + late as u64);
            card.coming.insert((arrives, self.next), (from, packet));
            self.next += 1;
            card.waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

/// A card on the wire.
pub struct Plug {
    wire: Wire,
    address: Mac,
    clock: Arc<dyn Clock>,
    sleep: Option<(Duration, Timer)>,
    /// Wakes the task that waits for the next packet.
    arrival: Waker,
}

struct Arrival(Wire, Mac);

impl Wake for Arrival {
    fn wake(self: Arc<Self>) {
        let waker = held(&self.0).cards.get_mut(&self.1).and_then(|card| card.waker.take());
        waker.into_iter().for_each(Waker::wake);
    }
}

fn has_gone() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the card has gone")
}

impl Link for Plug {
    fn poll_recv(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<(usize, Mac)>> {
        let mut wire = held(&self.wire);
        if wire.gone == Some(self.address) {
            return Poll::Ready(Err(has_gone()));
        }
        let card = wire.cards.get_mut(&self.address).expect("plugged in");
        let now = self.clock.now();
        let Some(first) = card.coming.first_entry() else {
            card.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        let arrives = first.key().0;
        if arrives <= now {
            let (from, packet) = first.remove();
            buf[..packet.len()].copy_from_slice(&packet);
            return Poll::Ready(Ok((packet.len(), from)));
        }
        card.waker = Some(cx.waker().clone());
        drop(wire);
        if self.sleep.as_ref().is_none_or(|(until, _)| *until != arrives) {
            self.sleep = Some((arrives, self.clock.sleep_until(arrives)));
        }
        let (_, sleep) = self.sleep.as_mut().expect("just made");
        if sleep.as_mut().poll(&mut Context::from_waker(&self.arrival)).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    fn poll_send(&mut self, _: &mut Context<'_>, to: Mac, packet: &[u8]) -> Poll<io::Result<()>> {
        let mut wire = held(&self.wire);
        if let Some(kind) = wire.refuses {
            return Poll::Ready(Err(io::Error::new(kind, "the card has melted")));
        }
        wire.carry(self.clock.now(), self.address, to, packet);
        Poll::Ready(Ok(()))
    }

    fn check(&mut self) -> io::Result<()> {
        if held(&self.wire).gone == Some(self.address) { Err(has_gone()) } else { Ok(()) }
    }

    fn mtu(&self) -> usize {
        held(&self.wire).mtu
    }

    fn address(&self) -> Mac {
        self.address
    }
}

/// Creates a wire for packets up to `mtu` bytes.
pub fn wire(world: &World, faults: Faults, mtu: usize) -> Wire {
    Ether::wire(world.rng(), faults, mtu)
}

/// Returns the address of card `n`.
pub fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

impl Plug {
    /// Connects card `n` to the wire.
    pub fn new(env: &SimEnv, wire: &Wire, n: u8) -> Self {
        held(wire).cards.insert(mac(n), Card::default());
        let arrival = Arc::new(Arrival(wire.clone(), mac(n))).into();
        Self { wire: wire.clone(), address: mac(n), clock: env.clock(), sleep: None, arrival }
    }
}
