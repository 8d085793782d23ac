//! The reactor's election and wake-ups in all interleavings of the threads, by loom.

use super::*;
use crate::transport::testing::read;
use crate::{Peer, Proof};
use loom::thread::spawn;
use std::future::poll_fn;
use std::io::Write;
use std::os::unix::net::UnixStream;

/// An event that happens once, and the task that waits for it.
#[derive(Clone, Default)]
struct Event(Arc<Mutex<(bool, Option<Waker>)>>);

impl Event {
    fn happen(&self) {
        let mut event = lock(&self.0);
        event.0 = true;
        let waker = event.1.take();
        drop(event);
        waker.into_iter().for_each(Waker::wake);
    }

    fn wait(&self) -> impl Future<Output = ()> + use<> {
        let event = self.clone();
        poll_fn(move |cx| {
            let mut event = lock(&event.0);
            if event.0 {
                return Poll::Ready(());
            }
            event.1 = Some(cx.waker().clone());
            Poll::Pending
        })
    }
}

fn pair(reactor: &Reactor) -> (PollSocket, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair");
    let peer = Peer { addr: "unix!".into(), proof: Proof::None };
    (reactor.from_parts(near.into(), peer).expect("adopted"), far)
}

fn at_rest(reactor: &Reactor) {
    let state = reactor.0.0.lock();
    assert!(state.leader.is_none() && state.parked.is_empty() && !state.polling);
}

#[test]
fn a_wake_from_another_thread_ends_the_wait_in_any_order() {
    loom::model(|| {
        let (reactor, event) = (Reactor::new().expect("a reactor"), Event::default());
        let happens = event.clone();
        let other = spawn(move || happens.happen());
        reactor.block_on(event.wait());
        other.join().expect("no panic");
        at_rest(&reactor);
    });
}

#[test]
fn a_future_spawned_during_a_wait_runs_in_any_order() {
    loom::model(|| {
        let (reactor, event) = (Reactor::new().expect("a reactor"), Event::default());
        let (spawner, happens) = (reactor.clone(), event.clone());
        let other = spawn(move || spawner.spawn(async move { happens.happen() }));
        reactor.block_on(event.wait());
        other.join().expect("no panic");
        at_rest(&reactor);
    });
}

#[test]
fn a_socket_that_gets_bytes_ends_the_wait_in_any_order() {
    loom::model(|| {
        let reactor = Reactor::new().expect("a reactor");
        let (mut near, mut far) = pair(&reactor);
        let core = reactor.0.0.clone();
        let peer = spawn(move || core.bell.peer(|| far.write_all(b"x").expect("written")));
        assert_eq!(reactor.block_on(read(&mut near)).expect("read"), b"x");
        peer.join().expect("no panic");
        at_rest(&reactor);
    });
}

/// Two threads call over one connection, whose driver is a spawned future. The thread that gets its answer first
/// leaves, and the other one must continue to drive.
#[test]
fn the_driver_goes_on_when_the_leader_leaves_in_any_order() {
    loom::model(|| {
        let reactor = Reactor::new().expect("a reactor");
        let calls = [(); 2].map(|()| (Event::default(), Event::default()));
        let driven = calls.clone();
        reactor.spawn(async move {
            let mut answered = [false; 2];
            poll_fn(|cx| {
                for ((asked, answer), done) in driven.iter().zip(&mut answered) {
                    if !*done && pin!(asked.wait()).poll(cx).is_ready() {
                        *done = true;
                        answer.happen();
                    }
                }
                if answered == [true; 2] { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
        });
        let [first, second] = calls;
        let call = |reactor: &Reactor, (asked, answer): (Event, Event)| {
            asked.happen();
            reactor.block_on(answer.wait());
        };
        let clone = reactor.clone();
        let other = spawn(move || call(&clone, first));
        call(&reactor, second);
        other.join().expect("no panic");
        at_rest(&reactor);
        assert!(reactor.0.0.lock().jobs.is_empty());
    });
}

/// The parked thread waits for a socket that only a leader polls.
#[test]
fn a_parked_thread_takes_the_lead_when_the_leader_leaves_in_any_order() {
    loom::model(|| {
        let (reactor, event) = (Reactor::new().expect("a reactor"), Event::default());
        let (mut near, mut far) = pair(&reactor);
        let (reader, happens) = (reactor.clone(), event.clone());
        let other = spawn(move || {
            happens.happen();
            assert_eq!(reader.block_on(read(&mut near)).expect("read"), b"x");
        });
        reactor.block_on(event.wait());
        reactor.0.0.bell.peer(|| far.write_all(b"x").expect("written"));
        other.join().expect("no panic");
        at_rest(&reactor);
    });
}

/// The second wake may find the future queued already. Then its next run must see everything done before that wake.
#[test]
fn what_was_done_before_a_wake_is_seen_by_the_run_after_it_in_any_order() {
    loom::model(|| {
        let reactor = Reactor::new().expect("a reactor");
        let (told, seen) = (Event::default(), Event::default());
        let done = Arc::new(AtomicBool::new(false));
        let waker = Arc::new(Mutex::new(None));
        let (tell, see, look, give) = (told.clone(), seen.clone(), done.clone(), waker.clone());
        reactor.spawn(poll_fn(move |cx| {
            *lock(&give) = Some(cx.waker().clone());
            tell.happen();
            if !look.load(std::sync::atomic::Ordering::Acquire) {
                return Poll::Pending;
            }
            see.happen();
            Poll::Ready(())
        }));
        reactor.block_on(told.wait());
        let waker = lock(&waker).clone().expect("told");
        let again = waker.clone();
        let other = spawn(move || {
            done.store(true, std::sync::atomic::Ordering::Release);
            waker.wake();
        });
        again.wake();
        reactor.block_on(seen.wait());
        other.join().expect("no panic");
        at_rest(&reactor);
    });
}
