//! Fair shares of a connection that many clients use: the order of their calls, and the limit of each client.
//!
//! Waiting clients take turns, one call each. Clients with a small next call have separate turns, so that no search
//! goes past large calls. A client may have a quarter of the calls and bytes that the others leave. So a few clients
//! with requests that the server never answers do not take all of them. Client 0 is the connection's owner; it has no
//! limit except the connection's.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

/// Calls that every client may have, whatever the others do.
const FLOOR: usize = 4;
/// Bytes of each of these calls.
const LITTLE: usize = 8 * 1024;

/// Calls, and the bytes that they may need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CallTotals {
    pub(super) calls: usize,
    pub(super) bytes: usize,
}

/// Kinds of calls, by cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallSize {
    Small,
    Large,
}

impl CallSize {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Small => Self::Large,
            Self::Large => Self::Small,
        }
    }
}

/// See the module. It knows tickets, not calls. A client is known while it has calls.
#[derive(Default)]
pub(super) struct CallShares {
    clients: HashMap<u64, ShareQueue, BuildHasherDefault<ClientIdHasher>>,
    /// Waiting clients in the order of their turns, by the size of their next call.
    rings: [VecDeque<u64>; 2],
}

/// Hashes the numbers of clients. This process assigns them, so no attacker can choose them to collide.
#[derive(Default)]
struct ClientIdHasher(u64);

impl Hasher for ClientIdHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a client is a u64");
    }

    fn write_u64(&mut self, n: u64) {
        self.0 = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Default)]
struct ShareQueue {
    has: CallTotals,
    waiting: VecDeque<(u64, CallSize)>,
}

impl CallShares {
    /// Whether a client may begin a call of this cost. `all` is the use of all clients, `most` the connection's limit.
    pub(super) fn may(&self, client: u64, cost: usize, all: CallTotals, most: CallTotals) -> bool {
        if client == 0 {
            return true;
        }
        let has = self.clients.get(&client).map(|client| client.has).unwrap_or_default();
        // A quarter of the part that the others leave.
        let part = |all: usize, has: usize, most: usize| (most + has).saturating_sub(all) / 4;
        has.calls < part(all.calls, has.calls, most.calls).max(FLOOR)
            && (has.calls == 0
                || has.bytes + cost <= part(all.bytes, has.bytes, most.bytes).max(FLOOR * LITTLE))
    }

    pub(super) fn begun(&mut self, client: u64, cost: usize) {
        if client != 0 {
            let has = &mut self.clients.entry(client).or_default().has;
            has.calls += 1;
            has.bytes += cost;
        }
    }

    pub(super) fn ended(&mut self, client: u64, cost: usize) {
        if let Some(ShareQueue { has, waiting }) = self.clients.get_mut(&client)
            && client != 0
        {
            has.calls -= 1;
            has.bytes -= cost;
            if has.calls == 0 && waiting.is_empty() {
                self.clients.remove(&client);
            }
        }
    }

    pub(super) fn wait(&mut self, client: u64, ticket: u64, size: CallSize) {
        let waiting = &mut self.clients.entry(client).or_default().waiting;
        if waiting.is_empty() {
            self.rings[size as usize].push_back(client);
        }
        waiting.push_back((ticket, size));
    }

    /// Removes a waiting call.
    pub(super) fn take_back(&mut self, client: u64, ticket: u64) {
        let Some(of) = self.clients.get_mut(&client) else { return };
        let first = of.waiting.front().map(|(_, size)| *size);
        of.waiting.retain(|(waiting, _)| *waiting != ticket);
        let next = of.waiting.front().map(|(_, size)| *size);
        if first != next {
            first.into_iter().for_each(|size| self.rings[size as usize].retain(|waiting| *waiting != client));
            next.into_iter().for_each(|size| self.rings[size as usize].push_back(client));
        }
        if of.waiting.is_empty() && of.has.calls == 0 {
            self.clients.remove(&client);
        }
    }

    /// Whether a client has waiting calls.
    pub(super) fn waits(&self, client: u64) -> bool {
        self.clients.get(&client).is_some_and(|client| !client.waiting.is_empty())
    }

    /// The number of waiting clients with a next call of this size.
    pub(super) fn turns(&self, size: CallSize) -> usize {
        self.rings[size as usize].len()
    }

    /// The client with the next turn, and its first ticket.
    pub(super) fn next(&self, size: CallSize) -> Option<(u64, u64)> {
        let client = *self.rings[size as usize].front()?;
        Some((client, self.clients.get(&client)?.waiting.front()?.0))
    }

    /// Passes the turn to the next client, because the first one cannot use it.
    pub(super) fn pass(&mut self, size: CallSize) {
        self.rings[size as usize].rotate_left(1);
    }

    /// Removes the first ticket of the client with the turn: it was served, or taken back.
    pub(super) fn served(&mut self, size: CallSize) {
        let Some(client) = self.rings[size as usize].pop_front() else { return };
        let Some(of) = self.clients.get_mut(&client) else { return };
        of.waiting.pop_front();
        match of.waiting.front() {
            Some((_, next)) => self.rings[*next as usize].push_back(client),
            None if of.has.calls == 0 => drop(self.clients.remove(&client)),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::CallSize::{Large, Small};
    use super::*;

    #[test]
    fn large_calls_of_two_clients_leave_most_of_the_bytes() {
        let mut shares = CallShares::default();
        let (most, mut all) = (CallTotals { calls: 1024, bytes: 8 << 20 }, CallTotals::default());
        for client in [1, 2] {
            while shares.may(client, 1 << 20, all, most) {
                shares.begun(client, 1 << 20);
                all = CallTotals { calls: all.calls + 1, bytes: all.bytes + (1 << 20) };
            }
        }
        assert_eq!(all.bytes, 3 << 20);
    }

    #[test]
    fn what_is_taken_back_leaves_nothing() {
        let mut shares = CallShares::default();
        shares.wait(1, 0, Small);
        for ticket in 1..100 {
            shares.wait(1, ticket, if ticket % 2 == 0 { Small } else { Large });
            shares.take_back(1, ticket);
        }
        assert_eq!(shares.clients[&1].waiting.len(), 1);
        shares.take_back(1, 0);
        assert_eq!((shares.clients.len(), shares.turns(Small), shares.turns(Large)), (0, 0, 0));
    }

    #[test]
    fn clients_take_turns_and_each_keeps_its_order() {
        let mut shares = CallShares::default();
        for ticket in 0..100 {
            shares.wait(1, ticket, Small);
        }
        shares.wait(2, 100, Small);
        shares.wait(2, 101, Small);
        let mut order = Vec::new();
        while let Some((_, ticket)) = shares.next(Small) {
            order.push(ticket);
            shares.served(Small);
        }
        assert_eq!(order[..5], [0, 100, 1, 101, 2]);
        assert_eq!((order.len(), shares.clients.len()), (102, 0));
    }

    #[test]
    fn a_client_has_its_turn_among_those_with_calls_like_its_next() {
        let mut shares = CallShares::default();
        shares.wait(1, 10, Large);
        shares.wait(1, 11, Small);
        shares.wait(2, 20, Small);
        assert_eq!((shares.next(Large), shares.next(Small)), (Some((1, 10)), Some((2, 20))));
        shares.served(Large);
        assert_eq!((shares.next(Large), shares.turns(Small)), (None, 2));
        shares.wait(3, 30, Large);
        shares.wait(3, 31, Small);
        shares.take_back(3, 30);
        let mut order = Vec::new();
        while let Some((_, ticket)) = shares.next(Small) {
            order.push(ticket);
            shares.served(Small);
        }
        assert_eq!((order, shares.clients.len()), (vec![20, 11, 31], 0));
    }

    #[test]
    fn ten_clients_that_take_all_they_may_leave_enough_for_another() {
        let mut shares = CallShares::default();
        let (most, mut all) = (CallTotals { calls: 1024, bytes: 1 << 20 }, CallTotals::default());
        for client in 1..=10 {
            let mut n = 0;
            while shares.may(client, 1000, all, most) && n < 2000 {
                shares.begun(client, 1000);
                all = CallTotals { calls: all.calls + 1, bytes: all.bytes + 1000 };
                n += 1;
            }
            assert!(n >= FLOOR, "client {client} got {n}");
        }
        assert!(all.calls < 1024);
        assert!(shares.may(0, 1 << 30, all, most), "the owner has no share");
    }
}
