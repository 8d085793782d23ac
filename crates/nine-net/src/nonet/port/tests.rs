//! A driver that is polled by hand, on a link with controlled room.

use std::collections::HashMap;

use super::*;

/// A clock that the test controls.
#[derive(Clone, Default)]
struct Hand(Arc<Mutex<Duration>>);

impl Clock for Hand {
    fn now(&self) -> Duration {
        *lock(&self.0)
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let hand = self.clone();
        Box::pin(poll_fn(move |_| if hand.now() < deadline { Poll::Pending } else { Poll::Ready(()) }))
    }

    fn entropy(&self, buf: &mut [u8]) {
        buf.fill(0xff);
    }
}

fn poll<L: Link>(driver: &mut Driver<L>) -> Poll<io::Result<()>> {
    Pin::new(driver).poll(&mut Context::from_waker(Waker::noop()))
}

/// A link with room for a number of packets, which it counts by circuit.
#[derive(Clone, Default)]
struct Narrow(Arc<Mutex<(usize, HashMap<u32, usize>)>>);

impl Link for Narrow {
    fn poll_recv(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<(usize, Mac)>> {
        Poll::Pending
    }

    fn poll_send(&mut self, _: &mut Context<'_>, _: Mac, packet: &[u8]) -> Poll<io::Result<()>> {
        let (room, sent) = &mut *lock(&self.0);
        if *room == 0 {
            return Poll::Pending;
        }
        *room -= 1;
        *sent.entry(circuit(packet).expect("a packet")).or_default() += 1;
        Poll::Ready(Ok(()))
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn address(&self) -> Mac {
        Mac([2, 0, 0, 0, 0, 1])
    }
}

/// A port with `calls` calls that send a hundred messages each. Returns the packets sent by circuit, and in each of ten
/// polls with room for `room` packets.
fn sent_in_turns(calls: usize, room: usize) -> (HashMap<u32, usize>, Vec<usize>) {
    let link = Narrow::default();
    let (port, mut driver) =
        port(link.clone(), Limits::default(), Arc::new(Hand::default())).expect("a port");
    let mut streams = Vec::new();
    for _ in 0..calls {
        let (_, stream, call) = port.begin(Mac([2, 0, 0, 0, 0, 2]), b"s u".to_vec()).expect("a call");
        (0..99).for_each(|_| lock(&call).send(b"x".to_vec().into()));
        stream.tick();
        streams.push(stream);
    }
    let mut each = Vec::new();
    for _ in 0..10 {
        lock(&link.0).0 = room;
        assert!(poll(&mut driver).is_pending());
        each.push(room - lock(&link.0).0);
    }
    let sent = lock(&link.0).1.clone();
    (sent, each)
}

#[test]
fn a_link_that_takes_little_is_shared_by_all_calls() {
    let (sent, each) = sent_in_turns(10, 9);
    assert_eq!(each, [9; 10]);
    assert!(sent.len() == 10 && sent.values().all(|sent| *sent == 9), "{sent:?}");
}

#[test]
fn a_poll_ends_however_many_calls_have_something_to_send() {
    let (sent, each) = sent_in_turns(200, usize::MAX);
    assert!(
        each.iter().all(|sent| (PORT_PACKETS_PER_POLL - 1..=PORT_PACKETS_PER_POLL).contains(sent)),
        "{each:?}"
    );
    let (least, most) = (sent.values().min(), sent.values().max());
    assert!(sent.len() == 200 && most <= least.map(|least| least + 1).as_ref(), "{least:?} {most:?}");
}

#[test]
fn circuits_come_round_and_none_is_in_two_calls() {
    let (port, _driver) =
        port(Narrow::default(), Limits::default(), Arc::new(Hand::default())).expect("a port");
    let to = Mac([2, 0, 0, 0, 0, 2]);
    let begin = || port.begin(to, b"s u".to_vec()).expect("a call");
    // The random start is near the last circuit.
    let first: Vec<_> = (0..3).map(|_| begin()).collect();
    assert_eq!(first.iter().map(|(key, ..)| key.1).collect::<Vec<_>>(), [1, 3, 5]);
    lock(&port.0.0.state).circuit = 0xff_fffa;
    let next: Vec<_> = (0..3).map(|_| begin().0.1).collect();
    assert_eq!(next, [0xff_fffd, 0xff_ffff, 7]);
}

/// A link that fails to receive a number of times, and is present or not.
struct Deaf(Arc<Mutex<(u32, bool)>>);

impl Link for Deaf {
    fn poll_recv(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<(usize, Mac)>> {
        let faults = &mut lock(&self.0).0;
        if *faults == 0 {
            return Poll::Pending;
        }
        *faults -= 1;
        Poll::Ready(Err(io::ErrorKind::NetworkDown.into()))
    }

    fn poll_send(&mut self, _: &mut Context<'_>, _: Mac, _: &[u8]) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn check(&mut self) -> io::Result<()> {
        if lock(&self.0).1 { Ok(()) } else { Err(io::ErrorKind::NotConnected.into()) }
    }

    fn mtu(&self) -> usize {
        1500
    }

    fn address(&self) -> Mac {
        Mac([2, 0, 0, 0, 0, 1])
    }
}

#[test]
fn a_link_that_has_failed_is_looked_at_until_it_has_gone() {
    let (link, hand) = (Arc::new(Mutex::new((1, true))), Hand::default());
    let (_port, mut driver) =
        port(Deaf(link.clone()), Limits::default(), Arc::new(hand.clone())).expect("a port");
    for n in 0..10 {
        *lock(&hand.0) = n * LOOK;
        assert!(poll(&mut driver).is_pending());
    }
    lock(&link).1 = false;
    assert!(poll(&mut driver).is_pending(), "not before its time");
    *lock(&hand.0) = 10 * LOOK;
    assert!(matches!(poll(&mut driver), Poll::Ready(Err(error)) if is_gone(&error)));
}

#[test]
fn a_link_that_only_fails_to_receive_is_given_up() {
    let link = Arc::new(Mutex::new((FAULTS - 1, true)));
    let (_port, mut driver) =
        port(Deaf(link.clone()), Limits::default(), Arc::new(Hand::default())).expect("a port");
    assert!(poll(&mut driver).is_pending() && poll(&mut driver).is_pending());
    lock(&link).0 = FAULTS - 1;
    assert!(poll(&mut driver).is_pending(), "these are others");
    assert!(poll(&mut driver).is_pending());
    lock(&link).0 = FAULTS;
    let ended = (0..2).find_map(|_| match poll(&mut driver) {
        Poll::Ready(how) => Some(how),
        Poll::Pending => None,
    });
    assert!(ended.expect("given up").is_err());
}
