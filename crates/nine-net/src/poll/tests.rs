//! The reactor with real sockets: leaders, waiters, time limits.

use super::*;
use crate::transport::testing::{close, read, write};
use crate::{ClientAuth, Proof, is_socket};
use std::future::{pending, poll_fn};
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};

const LIMIT: Duration = Duration::from_secs(10);

fn reactor() -> Reactor {
    Reactor::new().expect("a reactor")
}

/// One end for the reactor, the other for a plain blocking thread.
fn pair(reactor: &Reactor) -> (PollSocket, UnixStream) {
    let (near, far) = UnixStream::pair().expect("a pair");
    let peer = Peer { addr: "unix!".into(), proof: Proof::None };
    (reactor.from_parts(near.into(), peer).expect("adopted"), far)
}

/// Echoes its input until the end.
fn echo(mut far: UnixStream) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut buf = [0; 8192];
        while let Ok(n @ 1..) = far.read(&mut buf) {
            far.write_all(&buf[..n]).expect("written");
        }
    })
}

#[test]
fn a_thread_drives_its_own_connection() {
    let reactor = reactor();
    let (mut near, far) = pair(&reactor);
    let echo = echo(far);
    reactor.block_on(async {
        for n in 0..100u8 {
            write(&mut near, &[n]).await.expect("written");
            assert_eq!(read(&mut near).await.expect("read"), [n]);
        }
        close(&mut near).await.expect("closed");
        assert_eq!(read(&mut near).await.expect("the end"), b"");
    });
    echo.join().expect("no panic");
}

#[test]
fn much_goes_both_ways_at_once() {
    let reactor = reactor();
    let (mut near, far) = pair(&reactor);
    let echo = echo(far);
    let data: Vec<u8> = (0..4_000_000u32).map(|n| (n % 251) as u8).collect();
    let (mut sent, mut got) = (0, Vec::new());
    reactor.block_on(poll_fn(|cx| {
        while sent < data.len() {
            match near.poll_write(cx, &[IoSlice::new(&data[sent..])]) {
                Poll::Ready(n) => sent += n.expect("written"),
                Poll::Pending => break,
            }
        }
        let mut buf = [0; 10_000];
        while got.len() < data.len() {
            match near.poll_read(cx, &mut buf) {
                Poll::Ready(n) => got.extend_from_slice(&buf[..n.expect("read")]),
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(())
    }));
    assert!(got == data);
    drop(near);
    echo.join().expect("no panic");
}

/// Calls of one byte, which the peer answers in order. The driver is a spawned future.
#[derive(Default)]
struct Calls {
    out: VecDeque<u8>,
    driver: Option<Waker>,
    callers: BTreeMap<u8, Option<Waker>>,
}

fn call(calls: &Mutex<Calls>, id: u8) -> impl Future<Output = ()> {
    let mut sent = false;
    poll_fn(move |cx| {
        let mut calls = lock(calls);
        if !std::mem::replace(&mut sent, true) {
            calls.out.push_back(id);
            calls.driver.take().into_iter().for_each(Waker::wake);
        } else if !calls.callers.contains_key(&id) {
            return Poll::Ready(());
        }
        calls.callers.insert(id, Some(cx.waker().clone()));
        Poll::Pending
    })
}

async fn drive(calls: Arc<Mutex<Calls>>, mut near: PollSocket) {
    poll_fn(|cx| {
        let mut buf = [0; 64];
        while let Poll::Ready(n) = near.poll_read(cx, &mut buf) {
            for id in &buf[..n.expect("read")] {
                lock(&calls).callers.remove(id).flatten().into_iter().for_each(Waker::wake);
            }
        }
        let mut calls = lock(&calls);
        calls.driver = Some(cx.waker().clone());
        while let Some(&id) = calls.out.front() {
            match near.poll_write(cx, &[IoSlice::new(&[id])]) {
                Poll::Ready(n) => drop((n.expect("written"), calls.out.pop_front())),
                Poll::Pending => break,
            }
        }
        Poll::<()>::Pending
    })
    .await;
}

#[test]
fn many_threads_share_one_connection_and_none_is_forgotten() {
    let reactor = reactor();
    let (near, far) = pair(&reactor);
    let echo = echo(far);
    let calls = Arc::new(Mutex::new(Calls::default()));
    reactor.spawn(drive(calls.clone(), near));
    thread::scope(|scope| {
        for id in 0..8 {
            let (reactor, calls) = (reactor.clone(), &calls);
            scope.spawn(move || (0..500).for_each(|_| reactor.block_on(call(calls, id))));
        }
    });
    assert!(lock(&calls).callers.is_empty());
    // Dropping the last clone drops the driver, and with it the socket.
    drop(reactor);
    echo.join().expect("no panic");
}

#[test]
fn the_lead_goes_over_when_the_leader_leaves() {
    let reactor = reactor();
    let (mut near, mut far) = pair(&reactor);
    let (tell, told) = mpsc::channel();
    thread::scope(|scope| {
        let first = reactor.clone();
        scope.spawn(move || {
            first.block_on_for(
                LIMIT,
                poll_fn(|cx| {
                    tell.send(cx.waker().clone()).expect("listening");
                    if first.0.0.lock().parked.is_empty() { Poll::Pending } else { Poll::Ready(()) }
                }),
            )
        });
        let leader = told.recv().expect("the leader's waker");
        let second = scope.spawn(|| reactor.block_on_for(LIMIT, read(&mut near)));
        while reactor.0.0.lock().parked.is_empty() {
            thread::yield_now();
        }
        leader.wake();
        far.write_all(b"for the second").expect("written");
        let got = second.join().expect("no panic").expect("in time");
        assert_eq!(got.expect("read"), b"for the second");
    });
    let state = reactor.0.0.lock();
    assert!(state.leader.is_none() && state.parked.is_empty());
}

#[test]
fn a_wake_from_elsewhere_reaches_the_thread_in_poll() {
    let reactor = reactor();
    let (tell, told) = mpsc::channel::<Waker>();
    let core = reactor.0.0.clone();
    let waker = thread::spawn(move || {
        let waker = told.recv().expect("a waker");
        while !core.lock().polling {
            thread::yield_now();
        }
        waker.wake();
    });
    let mut first = true;
    reactor.block_on(poll_fn(|cx| {
        if std::mem::take(&mut first) {
            tell.send(cx.waker().clone()).expect("listening");
            return Poll::Pending;
        }
        Poll::Ready(())
    }));
    waker.join().expect("no panic");
}

#[test]
fn waits_end_at_their_time_in_order() {
    let reactor = reactor();
    assert!(reactor.block_on_for(Duration::from_millis(1), pending::<()>()).is_none());
    let order = Arc::new(Mutex::new(Vec::new()));
    for ms in [2, 1] {
        let (order, sleep) = (order.clone(), reactor.sleep(Duration::from_millis(ms)));
        reactor.spawn(async move {
            sleep.await;
            lock(&order).push(ms);
        });
    }
    // However late this thread starts.
    reactor.block_on(async {
        while lock(&order).len() < 2 {
            reactor.sleep(Duration::from_millis(1)).await;
        }
    });
    assert_eq!(*lock(&order), [1, 2]);
    drop(reactor.sleep(Duration::MAX));
    let state = reactor.0.0.lock();
    assert!(state.timers.is_empty() && state.jobs.is_empty());
}

#[test]
fn a_panic_of_one_future_leaves_the_reactor_usable() {
    let reactor = reactor();
    let (mut near, far) = pair(&reactor);
    let echo = echo(far);
    reactor.spawn(async { panic!("of the test") });
    let ran = Arc::new(AtomicBool::new(false));
    let flag = ran.clone();
    reactor.spawn(async move { flag.store(true, SeqCst) });
    let wait = std::panic::AssertUnwindSafe(|| reactor.block_on(pending::<()>()));
    assert!(std::panic::catch_unwind(wait).is_err());
    reactor.block_on(async {
        write(&mut near, b"on").await.expect("written");
        assert_eq!(read(&mut near).await.expect("read"), b"on");
    });
    assert!(ran.load(SeqCst));
    drop(near);
    echo.join().expect("no panic");
}

#[test]
#[should_panic(expected = "block_on inside")]
fn waiting_inside_a_wait_is_refused() {
    let reactor = reactor();
    let inner = reactor.clone();
    reactor.spawn(async move { inner.block_on(async {}) });
    reactor.block_on_for(LIMIT, pending::<()>());
}

#[test]
fn dials_tcp_and_unix_and_names_what_failed() {
    let reactor = reactor();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
    let port = listener.local_addr().expect("known").port();
    for host in ["127.0.0.1", "localhost"] {
        let addr: Addr = format!("tcp!{host}!{port}").parse().expect("valid");
        let near = reactor.connect(&addr, LIMIT).expect("connected");
        assert_eq!(near.peer().addr, format!("tcp!127.0.0.1!{port}"));
    }
    drop(listener);
    let e = reactor.connect(&format!("tcp!127.0.0.1!{port}").parse().expect("valid"), LIMIT);
    assert_eq!(e.expect_err("nobody listens").kind(), io::ErrorKind::ConnectionRefused);

    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("s");
    let raw = end::open(&SockAddr::unix(&path).expect("short")).expect("opened");
    raw.bind(&SockAddr::unix(&path).expect("short")).expect("bound");
    raw.listen(0).expect("listening");
    let _listener = UnixListener::from(OwnedFd::from(raw));
    assert!(is_socket(&path));
    let addr = Addr::Unix { path };
    let near = reactor.connect(&addr, LIMIT).expect("connected");
    assert!(matches!(near.peer().proof, Proof::Unix { .. }));
    let e = reactor.connect(&addr, Duration::from_millis(30)).expect_err("the queue is full");
    assert!(e.kind() == io::ErrorKind::TimedOut && e.to_string().starts_with("unix!"), "{e}");
}

#[test]
fn tls_needs_no_runtime() {
    let made = rcgen::generate_simple_self_signed(["fs.lab".to_owned()]).expect("a certificate");
    let dir = tempfile::tempdir().expect("a directory");
    let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(&key, mode).expect("set");
    let pin = ring::digest::digest(&ring::digest::SHA256, made.cert.der());
    let pin = crate::Trust::Pin(pin.as_ref().try_into().expect("32 bytes"));

    let reactor = reactor();
    let (near, far) = pair(&reactor);
    let far = reactor.from_parts(far.into(), near.peer().clone()).expect("adopted");
    let files = crate::TlsFiles { cert, key, client_ca: None, crl: None };
    let zero = Duration::ZERO;
    let mut server = crate::ServerTls::new(files, ClientAuth::None, zero, zero).expect("good");
    let accept = server.accept(far, zero, zero, reactor.sleep(LIMIT));
    reactor.spawn(async move {
        let mut far = accept.await.expect("shaken");
        let got = read(&mut far).await.expect("read");
        write(&mut far, &got).await.expect("written");
    });
    let client = crate::ClientTls::new(&pin, None).expect("good");
    let got = reactor.block_on(async {
        let mut near = client.connect(near, "anything", reactor.sleep(LIMIT)).await?;
        write(&mut near, b"sealed").await?;
        read(&mut near).await
    });
    assert_eq!(got.expect("an answer"), b"sealed");
}

#[test]
fn a_connection_that_is_a_future_comes_about_or_says_why_not() {
    let reactor = reactor();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("its address").port();
    let addr = Addr::Tcp { host: "127.0.0.1".into(), port };
    let mut socket = reactor.block_on(reactor.connecting(&addr, LIMIT)).expect("connected");
    assert_eq!(socket.peer().addr, addr.to_string());
    let echo = thread::spawn(move || {
        let (mut far, _) = listener.accept().expect("accepted");
        let mut byte = [0];
        far.read_exact(&mut byte).expect("read");
        far.write_all(&byte).expect("written");
    });
    reactor.block_on(async {
        write(&mut socket, b"x").await.expect("written");
        assert_eq!(read(&mut socket).await.expect("read"), b"x");
    });
    echo.join().expect("no panic");
    // Its listener is gone.
    let refused = reactor.block_on(reactor.connecting(&addr, LIMIT)).expect_err("refused");
    assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused, "{refused}");
    let named = Addr::Tcp { host: "localhost".into(), port };
    let unresolved = reactor.block_on(reactor.connecting(&named, LIMIT)).expect_err("a name");
    assert_eq!(unresolved.kind(), io::ErrorKind::InvalidInput, "{unresolved}");
}
