//! One interface of a driver: frames from its link, frames to it, many at once.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use nine_net::ether::{Mac, Packet, Room};
use nine_net::nonet::Link;

use crate::frame::{Interface, Out};

/// Frames that are received or sent at once.
const BATCH: usize = 32;
/// Frames that wait for a link; one more is lost, as on any Ethernet. More than a window has, so that only what stands
/// still loses any.
const WAITING: usize = 512;
/// Bytes of the shortest frame, behind its header.
const SHORTEST: usize = 46;
/// Errors in a row after which a link counts as gone: what it sends is lost, and nothing is received.
const FAULTS: u32 = 64;

/// See the module.
pub(crate) struct Carrier<L> {
    link: L,
    rooms: Vec<Vec<u8>>,
    told: Interface,
    out: VecDeque<Out>,
    faults: u32,
    /// Why it is not used any more.
    pub(crate) gone: Option<io::Error>,
}

impl<L: Link> Carrier<L> {
    pub(crate) fn new(link: L) -> Self {
        // A frame is at least as long as Ethernet pads it.
        let room = vec![0; link.mtu().max(64)];
        let told = Interface { mac: link.address(), mtu: link.mtu() };
        Self { link, told, rooms: vec![room; BATCH], out: VecDeque::new(), faults: 0, gone: None }
    }

    pub(crate) fn interface(&self) -> Interface {
        self.told
    }

    fn fails(&mut self, error: io::Error) {
        self.faults += 1;
        if error.kind() == io::ErrorKind::NotConnected || self.faults >= FAULTS {
            self.out.clear();
            self.gone = Some(error);
        }
    }

    /// Gives what has come to `each`. Whether there may be more.
    pub(crate) fn receive(&mut self, cx: &mut Context<'_>, mut each: impl FnMut(Mac, &[u8])) -> bool {
        if self.gone.is_some() {
            return false;
        }
        let mut rooms: [Room<'_>; BATCH] = {
            let mut all = self.rooms.iter_mut();
            std::array::from_fn(|_| Room::new(all.next().map_or(&mut [], Vec::as_mut_slice)))
        };
        match self.link.poll_recv_many(cx, &mut rooms) {
            Poll::Pending => false,
            Poll::Ready(Ok(n)) => {
                for room in &rooms[..n.min(BATCH)] {
                    if let Some((len, from)) = room.came {
                        each(from, &room.bytes[..len]);
                    }
                }
                self.faults = 0;
                true
            }
            Poll::Ready(Err(error)) => {
                self.fails(error);
                true
            }
        }
    }

    /// Sends what waits, as far as there is room. Whether anything went.
    pub(crate) fn send(&mut self, cx: &mut Context<'_>) -> bool {
        let before = self.out.len();
        while self.gone.is_none() && !self.out.is_empty() {
            let count = self.out.len().min(BATCH);
            let packets: [Packet<'_>; BATCH] = std::array::from_fn(|at| match self.out.get(at) {
                Some(out) => Packet { to: out.to, parts: [&out.head, &out.data] },
                None => Packet { to: Mac([0; 6]), parts: [&[], &[]] },
            });
            match self.link.poll_send_many(cx, &packets[..count]) {
                Poll::Pending => break,
                Poll::Ready(Ok(n)) => {
                    self.faults = 0;
                    self.out.drain(..n.clamp(1, count));
                }
                Poll::Ready(Err(error)) => {
                    self.out.pop_front();
                    self.fails(error);
                }
            }
        }
        before > self.out.len()
    }

    /// Looks whether the link has gone, has come back, or is another by now: what it is, if it is.
    pub(crate) fn check(&mut self) -> Option<Interface> {
        match self.link.check() {
            Ok(()) => {
                // So many faults may have been of what has passed.
                (self.gone, self.faults) = (None, 0);
            }
            Err(error) if self.gone.is_none() => self.fails(error),
            Err(_) => return None,
        }
        let now = Interface { mac: self.link.address(), mtu: self.link.mtu() };
        let room = now.mtu.max(64);
        self.rooms.iter_mut().filter(|bytes| bytes.len() != room).for_each(|bytes| bytes.resize(room, 0));
        (std::mem::replace(&mut self.told, now) != now).then_some(now)
    }

    /// A frame that leaves: a short one as Ethernet pads it, which not every card does, nor every program does without.
    pub(crate) fn put(&mut self, mut out: Out) {
        if out.data.is_empty() && out.head.len() < SHORTEST {
            out.head.resize(SHORTEST, 0);
        }
        if self.gone.is_none() && self.out.len() < WAITING {
            self.out.push_back(out);
        }
    }
}

/// Why all have gone, if they have.
pub(crate) fn all_gone<L>(carriers: &mut [Carrier<L>]) -> Option<io::Error> {
    let all = carriers.iter().all(|carrier| carrier.gone.is_some());
    let error = carriers.first_mut().filter(|_| all)?.gone.take()?;
    Some(error)
}
