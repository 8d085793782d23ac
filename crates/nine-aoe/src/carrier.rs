//! One interface of a driver: receives and sends frames in batches.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use nine_net::ether::{Mac, Packet, Room};
use nine_net::nonet::Link;

use crate::frame::{Interface, Out};

/// Maximum number of frames received or sent in one call.
const BATCH: usize = 32;
/// Maximum number of frames that wait for a link. Further frames are dropped, as on any Ethernet. The queue is longer
/// than a window, so that only a stalled link drops frames.
const WAITING: usize = 512;
/// Minimum length of an Ethernet payload in bytes.
const SHORTEST: usize = 46;
/// After this many consecutive errors a link counts as gone: frames to it are dropped, and nothing is received.
const FAULTS: u32 = 64;

/// A link with its receive buffers and its queue of frames to send.
pub(crate) struct Carrier<L> {
    link: L,
    rooms: Vec<Vec<u8>>,
    told: Interface,
    out: VecDeque<Out>,
    faults: u32,
    /// The last error, if the link is gone.
    pub(crate) gone: Option<io::Error>,
}

impl<L: Link> Carrier<L> {
    pub(crate) fn new(link: L) -> Self {
        // Ethernet pads short frames, so a buffer needs at least this length.
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

    /// Passes received frames to `each`. Returns whether there may be more.
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

    /// Sends queued frames until the link would block. Returns whether any was sent.
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

    /// Checks whether the link is gone, has returned or has changed. Returns its address and MTU if they changed.
    pub(crate) fn check(&mut self) -> Option<Interface> {
        match self.link.check() {
            Ok(()) => {
                // The earlier errors may have had a cause that has passed.
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

    /// Queues a frame. Pads it to Ethernet's minimum: not every card does so, and some programs need it.
    pub(crate) fn put(&mut self, mut out: Out) {
        if out.data.is_empty() && out.head.len() < SHORTEST {
            out.head.resize(SHORTEST, 0);
        }
        if self.gone.is_none() && self.out.len() < WAITING {
            self.out.push_back(out);
        }
    }
}

/// Returns an error if all links are gone.
pub(crate) fn all_gone<L>(carriers: &mut [Carrier<L>]) -> Option<io::Error> {
    let all = carriers.iter().all(|carrier| carrier.gone.is_some());
    let error = carriers.first_mut().filter(|_| all)?.gone.take()?;
    Some(error)
}
