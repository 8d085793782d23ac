//! A sleeping end is woken, whatever the other side does at any moment.

use std::cell::RefCell;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};
use std::task::{Wake, Waker};

use super::*;
use crate::rt::block_on;
use crate::transport::Proof;

/// When the guest acts, while the host goes to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    /// The host has found nothing, and has not announced yet that it sleeps.
    Before,
    /// It has announced that and checked again, but does not wait for the bell yet.
    Looked,
    /// It sleeps.
    After,
}

/// The guest's end of a channel, with its descriptors.
struct Other {
    end: End,
    bell: Bell,
    life: Option<OwnedFd>,
}

impl Other {
    fn put(&mut self) {
        assert!(self.end.put(b"x", Note::default()).expect("nothing is broken"), "there is room");
        self.settle();
    }

    fn take(&mut self) {
        let taken = self.end.take(&mut [0; MOST]).expect("nothing is broken");
        assert!(taken.is_some());
        self.settle();
    }

    fn settle(&self) {
        if self.end.must_ring() {
            self.bell.ring();
        }
    }
}

/// A host that never spins, and its guest, which has joined.
async fn joined() -> (Channel, Other) {
    let (ours, theirs) = UnixStream::pair().expect("a pair");
    let peer = Peer { addr: "test".into(), proof: Proof::None };
    let layout = Layout::new(Kind::Bytes, 64, 0, "");
    let (mut host, given) = Channel::open(layout, Waits::Interrupt, ours.into(), peer).expect("made");
    let guest = Guest::join(linux::map(&given.memory).expect("mapped")).expect("open");
    poll_fn(|cx| host.poll_join(cx)).await.expect("somebody has joined");
    (host, Other { end: guest.served().expect("by now"), bell: given.ring, life: Some(theirs.into()) })
}

/// The host sleeps once, and the guest runs `act` at that moment. Fails if the host would sleep on.
async fn sleeps(
    host: &mut Channel,
    other: &mut Other,
    at: At,
    act: fn(&mut Other),
    news: fn(&mut End) -> bool,
) {
    assert!(!news(&mut host.end), "there is something before the guest does anything");
    let other = RefCell::new(other);
    let now = |now| {
        if now == at {
            act(&mut other.borrow_mut());
        }
    };
    now(At::Before);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let slept = host.sleep(&mut Context::from_waker(&waker), |end| {
        let seen = news(end);
        now(At::Looked);
        seen
    });
    now(At::After);
    if slept.is_pending() {
        let woken = timeout(Duration::from_secs(10), poll_fn(|cx| woken.poll(cx))).await;
        woken.unwrap_or_else(|_| panic!("{at:?}: nobody wakes it"));
    }
    host.found();
}

/// Records whether it was woken: a test's own task is polled for other reasons too.
#[derive(Default)]
struct Woken(Mutex<(bool, Option<Waker>)>);

impl Woken {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.0.lock().expect("no holder panics");
        state.1 = Some(cx.waker().clone());
        if state.0 { Poll::Ready(()) } else { Poll::Pending }
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        let mut state = self.0.lock().expect("no holder panics");
        state.0 = true;
        state.1.take().inspect(Waker::wake_by_ref);
    }
}

const AT: [At; 3] = [At::Before, At::Looked, At::After];

#[test]
fn who_waits_for_a_piece_is_woken_whenever_it_comes() {
    block_on(async |_| {
        let (mut host, mut other) = joined().await;
        for at in AT.repeat(3) {
            sleeps(&mut host, &mut other, at, Other::put, |end| end.is_ready()).await;
            assert!(host.take(&mut [0; MOST]).expect("nothing is broken").is_some(), "{at:?}");
        }
    })
    .expect("a runtime");
}

#[test]
fn who_waits_for_room_is_woken_whenever_there_is() {
    block_on(async |_| {
        let (mut host, mut other) = joined().await;
        while host.end.put(&[7; MOST], Note::default()).expect("nothing is broken") {}
        for at in AT.repeat(3) {
            let room = |end: &mut End| end.has_room(MOST).expect("nothing is broken");
            sleeps(&mut host, &mut other, at, Other::take, room).await;
            assert!(host.end.put(&[7; MOST], Note::default()).expect("nothing is broken"), "{at:?}");
        }
    })
    .expect("a runtime");
}

#[test]
fn a_bell_without_news_is_heard_once_and_hides_none_that_come() {
    block_on(async |_| {
        let (mut host, mut other) = joined().await;
        for at in AT.repeat(3) {
            other.bell.ring();
            sleeps(&mut host, &mut other, at, Other::put, |end| end.is_ready()).await;
            assert!(host.take(&mut [0; MOST]).expect("nothing is broken").is_some(), "{at:?}");
        }
    })
    .expect("a runtime");
}

#[test]
fn the_end_of_the_guest_wakes_its_host_whenever_it_comes() {
    for at in AT {
        let ends: [fn(&mut Other); 2] = [
            |other| drop(other.life.take()),
            |other| {
                other.end.end();
                other.settle();
            },
        ];
        for end in ends {
            block_on(async |_| {
                let (mut host, mut other) = joined().await;
                sleeps(&mut host, &mut other, at, end, |end| end.life() != Life::Same).await;
                let taken = poll_fn(|cx| host.poll_take(cx, &mut [0; MOST])).await;
                assert!(taken.is_ok_and(|piece| piece.is_none()), "{at:?}");
            })
            .expect("a runtime");
        }
    }
}
