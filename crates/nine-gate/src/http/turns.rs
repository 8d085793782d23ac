//! Permits for scarce resources, shared by clients.
//!
//! In: clients that want a permit. Out: permits, which are returned when they are dropped. It all runs on one core.
//!
//! Always holds: at most `all` permits are out, and at most `each` to one client. Waiting clients get permits in
//! rotation, so a client with many requests delays another by one of them, not by all. A cancelled request costs no
//! permit.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

/// A client's name for sharing: its address.
pub(super) type ClientName = Rc<str>;

/// See the module.
pub(super) struct ClientTurns(Rc<TurnTable>);

struct TurnTable {
    all: usize,
    each: usize,
    shares: RefCell<ClientShares>,
}

#[derive(Default)]
struct ClientShares {
    /// Permits that are out.
    out: usize,
    clients: HashMap<ClientName, ClientShare>,
    /// Clients with waiting requests, the next one first.
    order: VecDeque<ClientName>,
}

#[derive(Default)]
struct ClientShare {
    out: usize,
    waiting: VecDeque<Rc<TurnWaiter>>,
}

#[derive(Default)]
struct TurnWaiter {
    given: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

/// A permit, or a request for one.
pub(super) struct TurnPermit {
    table: Rc<TurnTable>,
    client: ClientName,
    waiter: Rc<TurnWaiter>,
}

impl ClientTurns {
    /// Creates `all` permits, of which each client gets at most `each`.
    pub(super) fn new(all: usize, each: usize) -> Self {
        Self(Rc::new(TurnTable { all: all.max(1), each: each.max(1), shares: RefCell::default() }))
    }

    /// Waits for a permit. Cancelling the wait gives up the request.
    pub(super) async fn turn(&self, client: &ClientName) -> TurnPermit {
        let permit = TurnPermit { table: self.0.clone(), client: client.clone(), waiter: Rc::default() };
        self.0.push(&permit);
        poll_fn(|cx| {
            if permit.waiter.given.get() {
                return Poll::Ready(());
            }
            *permit.waiter.waker.borrow_mut() = Some(cx.waker().clone());
            Poll::Pending
        })
        .await;
        permit
    }
}

impl TurnTable {
    fn push(&self, permit: &TurnPermit) {
        let mut shares = self.shares.borrow_mut();
        let share = shares.clients.entry(permit.client.clone()).or_default();
        let is_first = share.waiting.is_empty();
        share.waiting.push_back(permit.waiter.clone());
        if is_first {
            shares.order.push_back(permit.client.clone());
        }
        self.give(&mut shares);
    }

    /// Grants the free permits, in rotation, to waiting clients below their share.
    fn give(&self, shares: &mut ClientShares) {
        let ClientShares { out, clients, order } = shares;
        while *out < self.all {
            let may = |client: &ClientName| clients.get(client).is_some_and(|share| share.out < self.each);
            let Some(client) = order.iter().position(may).and_then(|at| order.remove(at)) else { return };
            let Some(share) = clients.get_mut(&client) else { continue };
            let Some(waiter) = share.waiting.pop_front() else { continue };
            share.out += 1;
            *out += 1;
            if !share.waiting.is_empty() {
                order.push_back(client);
            }
            waiter.given.set(true);
            waiter.waker.take().into_iter().for_each(Waker::wake);
        }
    }
}

impl Drop for TurnPermit {
    fn drop(&mut self) {
        let mut shares = self.table.shares.borrow_mut();
        let ClientShares { out, clients, order } = &mut *shares;
        let Some(share) = clients.get_mut(&self.client) else { return };
        if self.waiter.given.get() {
            share.out -= 1;
            *out -= 1;
        } else {
            share.waiting.retain(|waiter| !Rc::ptr_eq(waiter, &self.waiter));
        }
        if share.waiting.is_empty() {
            order.retain(|client| *client != self.client);
            if share.out == 0 {
                clients.remove(&self.client);
            }
        }
        self.table.give(&mut shares);
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::Context;

    use super::*;

    /// Whether a permit has been granted by now.
    fn given<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(permit) => Some(permit),
            Poll::Pending => None,
        }
    }

    #[test]
    fn clients_take_turns_whatever_number_of_requests_each_has() {
        let turns = ClientTurns::new(1, 1);
        let names: [ClientName; 3] = ["many".into(), "few".into(), "one".into()];
        let mut out = given(pin!(turns.turn(&names[0]))).expect("nobody waits");
        let mut waiting: Vec<_> =
            [0, 0, 0, 1, 1, 2].iter().map(|at| (*at, Box::pin(turns.turn(&names[*at])))).collect();
        assert!(waiting.iter_mut().all(|(_, turn)| given(turn.as_mut()).is_none()));
        let mut order = Vec::new();
        while !waiting.is_empty() {
            drop(out);
            let next =
                waiting.iter_mut().enumerate().find_map(|(at, (_, turn))| Some((at, given(turn.as_mut())?)));
            let (at, permit) = next.expect("somebody has the permit");
            order.push(waiting.remove(at).0);
            out = permit;
        }
        assert_eq!(order, [0, 1, 2, 0, 1, 0]);
        drop(out);
        assert!(turns.0.shares.borrow().clients.is_empty() && turns.0.shares.borrow().order.is_empty());
    }

    #[test]
    fn no_client_has_more_than_its_share() {
        let turns = ClientTurns::new(4, 2);
        let (many, other): (ClientName, ClientName) = ("many".into(), "other".into());
        let mut asked: Vec<_> = (0..4).map(|_| Box::pin(turns.turn(&many))).collect();
        let mut permits: Vec<_> = asked.iter_mut().filter_map(|turn| given(turn.as_mut())).collect();
        assert_eq!(permits.len(), 2);
        let mut late = Box::pin(turns.turn(&other));
        assert!(given(late.as_mut()).is_some(), "it does not wait behind who has his share");
        permits.pop();
        assert!(given(asked[2].as_mut()).is_some() && given(asked[3].as_mut()).is_some());
    }

    #[test]
    fn a_request_that_stops_waiting_costs_no_permit() {
        let turns = ClientTurns::new(1, 1);
        let client: ClientName = "c".into();
        let permit = given(pin!(turns.turn(&client))).expect("nobody waits");
        let mut gone = Box::pin(turns.turn(&client));
        let mut had = Box::pin(turns.turn(&client));
        assert!(given(gone.as_mut()).is_none() && given(had.as_mut()).is_none());
        drop(gone);
        drop(permit);
        // It was granted the permit but does not poll.
        drop(had);
        assert!(given(pin!(turns.turn(&client))).is_some());
    }
}
