//! A simulated Ethernet: packets of chance between cards, whoever reads them.
//!
//! In: packets. Out: the same, or fewer, or more, later, bent. The same seed is the same wire.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use nine_net::ether::Mac;
use nine_net::nonet::Link;
use nine_net::{Clock, Env, Timer};

use crate::{Rng, SimEnv, World};

/// The address of all cards.
const EVERYBODY: Mac = Mac([0xff; 6]);

/// What happens to packets: one in so many, 0 is never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// It does not arrive.
    pub lost: usize,
    /// It arrives two times.
    pub twice: usize,
    /// Up to 3 ms later, behind others.
    pub late: usize,
    /// With another bit.
    pub bent: usize,
    /// As a bug would: changed data that claims to have no sum.
    pub forged: usize,
    /// Nothing arrives.
    pub cut: bool,
    /// Bytes a second to each card; 0: no limit.
    pub rate: u64,
    /// Added to the 50 us that a packet takes.
    pub delay: Duration,
}

/// Packets that wait before a slow wire.
const QUEUE: u32 = 1000;
/// Bytes of the header of a frame.
pub const FRAME: usize = 14;

/// The wire that all cards are on.
pub struct Ether {
    rng: Rng,
    /// What happens now.
    pub faults: Faults,
    cards: BTreeMap<Mac, Card>,
    /// Bytes of the longest packet.
    pub mtu: usize,
    /// What every card says of every packet that it is to send.
    pub refuses: Option<io::ErrorKind>,
    /// A card that says that it has gone.
    pub gone: Option<Mac>,
    /// Cards whose cables are out.
    pub out: Vec<Mac>,
    next: u64,
}

#[derive(Default)]
struct Card {
    /// Bytes that it has sent.
    sent: usize,
    /// When the wire to it has carried all that waits.
    free: Duration,
    coming: BTreeMap<(Duration, u64), (Mac, Vec<u8>)>,
    waker: Option<Waker>,
}

/// The wire, for all who look at it.
pub type Wire = Arc<Mutex<Ether>>;

/// Looks at it, or changes it. Not to be held while anything is waited for.
pub fn held(wire: &Wire) -> MutexGuard<'_, Ether> {
    wire.lock().expect("no panic while it is held")
}

impl Ether {
    /// A wire with this chance, of packets up to `mtu` bytes.
    pub fn wire(rng: Rng, faults: Faults, mtu: usize) -> Wire {
        let (cards, out) = (BTreeMap::new(), Vec::new());
        Arc::new(Mutex::new(Self { rng, faults, cards, mtu, refuses: None, gone: None, out, next: 0 }))
    }

    fn one_in(&mut self, n: usize) -> bool {
        n > 0 && self.rng.one_in(n)
    }

    /// What a card has sent so far, bytes.
    pub fn sent(&self, card: Mac) -> usize {
        self.cards.get(&card).map_or(0, |card| card.sent)
    }

    /// A packet leaves a card; to ff..ff, for all others.
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
    /// Wakes whoever waits for the next packet.
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

/// A wire of packets up to `mtu` bytes.
pub fn wire(world: &World, faults: Faults, mtu: usize) -> Wire {
    Ether::wire(world.rng(), faults, mtu)
}

/// The address of card `n`.
pub fn mac(n: u8) -> Mac {
    Mac([2, 0, 0, 0, 0, n])
}

impl Plug {
    /// Puts card `n` on the wire.
    pub fn new(env: &SimEnv, wire: &Wire, n: u8) -> Self {
        held(wire).cards.insert(mac(n), Card::default());
        let arrival = Arc::new(Arrival(wire.clone(), mac(n))).into();
        Self { wire: wire.clone(), address: mac(n), clock: env.clock(), sleep: None, arrival }
    }
}
