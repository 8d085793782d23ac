//! A listener outlives a shortage of descriptors. Alone in its process, since the limit is the process's.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_net::{Env, Listener, Socket, Task, rt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// An environment whose timer fires when the test says so.
#[derive(Default)]
struct Hand(RefCell<Vec<Duration>>, std::sync::Arc<std::sync::Mutex<(bool, Option<Waker>)>>);

impl Env for Hand {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn wall(&self) -> Duration {
        Duration::ZERO
    }

    fn sleep_until(&self, deadline: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        self.0.borrow_mut().push(deadline);
        let timer = self.1.clone();
        Box::pin(poll_fn(move |cx| {
            let mut timer = timer.lock().expect("no panic");
            timer.1 = Some(cx.waker().clone());
            if timer.0 { Poll::Ready(()) } else { Poll::Pending }
        }))
    }

    fn entropy(&self, _: &mut [u8]) {}

    fn clock(&self) -> std::sync::Arc<dyn nine_net::Clock> {
        unreachable!("a listener asks no other core")
    }

    fn spawn(&self, _: Task) {}
}

#[test]
fn accept_survives_emfile() {
    rt::block_on(async |_| {
        let env = Rc::new(Hand::default());
        let mut listener = Listener::bind(&"tcp!127.0.0.1!0".parse().expect("valid")).expect("binds");
        let _client =
            Socket::connect(&listener.addr().clone(), Duration::from_secs(10)).await.expect("connects");

        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("lowered");
        let mut accept = pin!(listener.accept(&*env));
        let seen = env.clone();
        poll_fn(|cx| {
            assert!(accept.as_mut().poll(cx).is_pending(), "there is no descriptor to accept with");
            if seen.0.borrow().is_empty() { Poll::Pending } else { Poll::Ready(()) }
        })
        .await;
        assert_eq!(*env.0.borrow(), [Duration::from_millis(100)], "it waits instead of spinning");

        setrlimit(Resource::Nofile, limit).expect("raised again");
        env.1.lock().expect("no panic").0 = true;
        accept.await.expect("the connection that waited is accepted");
    })
    .expect("a runtime");
}
