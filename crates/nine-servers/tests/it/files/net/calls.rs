//! Calls and their data.

use super::*;

#[test]
fn a_call_is_made_taken_used_and_ended_in_every_dialect() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            assert_eq!(list(&root).await, ["cs", "dns", "held", "il", "tcp", "udp", "unix"]);
            let (served, serving, connect) = announced(&root).await;
            assert!(shown(&serving, "status").await.starts_with("Listen "));
            let (ctl, dir) = made(&root, "tcp").await;
            assert!(shown(&dir, "status").await.starts_with("Closed "));
            assert_eq!(
                list(&dir).await,
                ["ctl", "data", "err", "listen", "local", "remote", "status"],
                "the files of a conversation"
            );
            say(&ctl, &format!("{connect}\n")).await.unwrap();
            assert!(shown(&dir, "status").await.starts_with("Established "));
            let taken = serving.open("listen", RDWR).await.unwrap();
            let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
            assert_eq!(taken.qid(), other.walk("ctl").await.unwrap().qid(), "it is the ctl of the call");
            assert_eq!(shown(&dir, "local").await, shown(&other, "remote").await);
            assert_eq!(shown(&dir, "remote").await, shown(&serving, "local").await);
            say(&taken, &format!("accept {}", text(&taken).await)).await.unwrap();

            let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
            a.write(0, b"hello").await.unwrap();
            assert_eq!(b.read(0, 100).await.unwrap(), "hello");
            b.write(77, b"hello yourself").await.unwrap();
            assert_eq!(a.read(99, 5).await.unwrap(), "hello", "an offset means nothing");
            assert_eq!(a.read(0, 100).await.unwrap(), " yourself");
            let status = shown(&dir, "status").await;
            assert!(status.contains(" in 14 out 5"), "{status}");
            say(&taken, "hangup").await.unwrap();
            assert_eq!(a.read(0, 100).await.unwrap(), "", "the end");
            assert!(shown(&dir, "status").await.starts_with("Close_wait "));
            assert_eq!(b.read(0, 100).await.unwrap(), "");
            assert!(b.write(0, b"x").await.is_err(), "hung up");
            say(&served, "hangup").await.unwrap();
            for words in ["connect 127.0.0.1!1", "bind 0", "announce 0"] {
                let error = say(&served, words).await.unwrap_err();
                let said = match dialect.is_l() {
                    true => error.errno() == Errno::EPIPE,
                    false => error.to_string().contains("hung up"),
                };
                assert!(said, "{words}: {error}");
            }
            assert!(serving.open("listen", RDWR).await.is_err(), "nobody listens any more");
        }
    });
}

#[test]
fn what_is_refused_is_told_and_the_conversation_can_be_used_again() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (served, _, connect) = announced(&root).await;
        drop(served);
        until_gone(&root, "tcp").await;
        let (ctl, dir) = made(&root, "tcp").await;
        let error = say(&ctl, &connect).await.unwrap_err();
        assert_eq!(
            (error.errno(), error.to_string().contains("connection refused")),
            (Errno::ECONNREFUSED, true)
        );
        let err = dir.open("err", READ).await.unwrap();
        assert_eq!(text(&err).await, "connection refused");
        let data = dir.open("data", RDWR).await.unwrap();
        assert_eq!(errno(data.read(0, 1).await), Errno::ENOTCONN);
        let error = say(&ctl, "connect 127.0.0.1").await.unwrap_err();
        assert!(error.to_string().contains("ADDRESS!PORT"), "{error}");
        let error = say(&ctl, "connect 127.0.0.1!no-such-service").await.unwrap_err();
        assert!(error.to_string().contains("unknown service no-such-service"), "{error}");
        let (_keeps, _, connect) = announced(&root).await;
        say(&ctl, &connect).await.unwrap();
        let error = say(&ctl, &connect).await.unwrap_err();
        assert!(error.to_string().contains("connection in use"), "{error}");
        assert_eq!(text(&err).await, "");
        for (words, says) in [
            ("", "short control request"),
            ("\n", "short control request"),
            ("dance", "unknown control request"),
            ("connect", "an address is due"),
            ("connect 1.2.3.4!1 5000 6000", "the local ADDRESS!PORT"),
            ("connect '1.2.3.4!1", "a quote is not closed"),
            ("bind 5000", "connection in use"),
            ("ttl many", "a number from 1 to 255"),
            ("ttl 0", "a number from 1 to 255"),
            ("keepalive 32767001", "a number from 0 to 32767000"),
            ("a\nb", "one control request"),
            ("push nothing", "no module is called"),
            ("pop", "no module to pop"),
        ] {
            let error = say(&ctl, words).await.unwrap_err();
            assert!(error.to_string().contains(says), "{words:?}: {error}");
        }
        for words in ["keepalive", "keepalive 5000", "keepalive 32767000", "ttl 1", "tos 16"] {
            say(&ctl, words).await.unwrap();
        }
        // Arbitrary bytes.
        for seed in 0..500_u32 {
            let bytes: Vec<u8> =
                (0..seed % 40).map(|i| (seed.wrapping_mul(2_654_435_761) >> (i % 24)) as u8).collect();
            let _ = ctl.write(0, &bytes).await;
        }
        assert!(ctl.write(0, &[b'a'; 5000]).await.is_err());
        assert!(shown(&dir, "status").await.starts_with("Established "));
    });
}

#[test]
fn a_blocked_connect_read_or_listen_is_flushed_at_once() {
    world(async |world| {
        for dialect in ALL {
            let root = world.root_in(dialect).await;
            let (ctl, dir) = made(&root, "held").await;
            let (dialled, dropped) = (world.held.dialled.load(Ordering::Relaxed), &world.held.dropped);
            let before = dropped.load(Ordering::Relaxed);
            let arrived = || world.held.dialled.load(Ordering::Relaxed) > dialled;
            assert_eq!(flushed(world, arrived, say(&ctl, "connect 127.0.0.1:2")).await, Errno::EINTR);
            assert_eq!(dropped.load(Ordering::Relaxed), before + 1, "the dial is given up");
            assert!(shown(&dir, "status").await.starts_with("Closed "));
            // During the connect, ctl and status can be read.
            let mut connect = pin!(say(&ctl, "connect 127.0.0.1:2"));
            let mut status = String::new();
            while !status.starts_with("Syn_sent ") {
                let mut shown = pin!(shown(&dir, "status"));
                status = poll_fn(|cx| {
                    assert!(connect.as_mut().poll(cx).is_pending());
                    shown.as_mut().poll(cx)
                })
                .await;
            }
            say(&ctl, "hangup").await.unwrap();
            assert!(connect.await.is_err());

            let (ctl, dir) = made(&root, "held").await;
            say(&ctl, "connect 127.0.0.1:1").await.unwrap();
            let data = dir.open("data", RDWR).await.unwrap();
            let polls = AtomicUsize::new(0);
            let some = || polls.fetch_add(1, Ordering::Relaxed) > 50;
            assert_eq!(flushed(world, some, data.read(0, 10)).await, Errno::EINTR);
            let mut other = world.held.others.lock().unwrap().pop().unwrap();
            sent(&mut other, b"for the next").await;
            assert_eq!(data.read(0, 100).await.unwrap(), "for the next", "the flushed one has taken nothing");

            let (ctl, dir) = made(&root, "held").await;
            say(&ctl, "announce 127.0.0.1:7").await.unwrap();
            let polls = AtomicUsize::new(0);
            let some = || polls.fetch_add(1, Ordering::Relaxed) > 50;
            assert_eq!(flushed(world, some, dir.open("listen", RDWR)).await, Errno::EINTR);
            let (near, _far) = two();
            world.held.calls.lock().unwrap().push(near);
            let taken = dir.open("listen", RDWR).await.unwrap();
            assert!(text(&taken).await.parse::<u64>().is_ok());
            // An open waiting for a call fails when the announcement ends.
            let mut listen = pin!(dir.open("listen", RDWR));
            let mut status = String::new();
            while !status.contains(" listen 1 ") {
                let mut shown = pin!(shown(&dir, "status"));
                status = poll_fn(|cx| {
                    assert!(listen.as_mut().poll(cx).is_pending());
                    shown.as_mut().poll(cx)
                })
                .await;
            }
            drop(ctl);
            assert!(listen.await.is_err());
        }
    });
}

#[test]
fn a_write_that_is_flushed_says_how_much_of_it_has_gone() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root, "held").await;
        say(&ctl, "connect 127.0.0.1:1").await.unwrap();
        let data = dir.open("data", RDWR).await.unwrap();
        let mut other = world.held.others.lock().unwrap().pop().unwrap();
        // More than the pipe buffers: the rest waits.
        let whole: Vec<u8> = (0..700_000_u32).map(|n| n as u8).collect();
        let mut gone = 0;
        loop {
            let cancel = Cancel::default();
            let piece = &whole[gone..];
            let mut write = pin!(cancel.clone().scope(Box::pin(data.write(0, piece))));
            let mut polls = 0;
            let wrote = poll_fn(|cx| {
                cx.waker().wake_by_ref();
                polls += 1;
                if polls > 200 {
                    cancel.cancel();
                }
                write.as_mut().poll(cx)
            })
            .await;
            match wrote {
                Ok(n) => gone += n as usize,
                Err(error) => {
                    assert_eq!(error.errno(), Errno::EINTR);
                    break;
                }
            }
        }
        assert!((256 << 10..whole.len()).contains(&gone), "{gone}");
        let mut write = pin!(data.write(0, &whole[gone..gone + 10]));
        let got = {
            let mut received = pin!(received(&mut other, gone + 10));
            let mut wrote = false;
            poll_fn(|cx| {
                wrote = wrote || write.as_mut().poll(cx).is_ready();
                received.as_mut().poll(cx)
            })
            .await
        };
        assert_eq!(got, &whole[..gone + 10]);
    });
}

#[test]
fn modules_are_pushed_by_ctl() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (_served, serving, connect) = announced(&root).await;
        let call = called(&root, &serving, &connect).await;
        let (a, b) = call.data().await;
        let AcceptedCall { ctl, dir, taken, .. } = call;
        for end in [&ctl, &taken] {
            say(end, "push zstd 3").await.unwrap();
        }
        assert!(shown(&dir, "status").await.lines().nth(1).is_some_and(|line| line.starts_with("zstd")));
        a.write(0, &[7; 100_000]).await.unwrap();
        let mut had = 0;
        while had < 100_000 {
            let bytes = b.read(0, 100_000).await.unwrap();
            assert!(!bytes.is_empty() && bytes.iter().all(|&byte| byte == 7));
            had += bytes.len();
        }
        for end in [&ctl, &taken] {
            say(end, "pop").await.unwrap();
        }
        b.write(0, b"plain").await.unwrap();
        assert_eq!(a.read(0, 100).await.unwrap(), "plain");
        // Written data arrives, no matter which end closes first.
        for end in [&ctl, &taken] {
            say(end, "push zstd").await.unwrap();
        }
        a.write(0, b"last words").await.unwrap();
        drop((a, ctl, dir));
        assert_eq!(b.read(0, 100).await.unwrap(), "last words");
        assert_eq!(b.read(0, 100).await.unwrap(), "");
    });
}

#[test]
fn programs_dial_announce_listen_accept_and_reject_over_any_client() {
    world(async |world| {
        for dialect in ALL {
            let net = client::Net::new(world.root_in(dialect).await);
            let served = net.announce("tcp!127.0.0.1!0").await.unwrap();
            let at = served.local().await.unwrap();
            let here = net.dial(&format!("tcp!{at}")).await.unwrap();
            let there = served.listen().await.unwrap().accept().await.unwrap();
            assert_eq!(here.remote().await.unwrap(), at);
            assert_eq!(here.local().await.unwrap(), there.remote().await.unwrap());
            here.data.write(0, b"hi").await.unwrap();
            assert_eq!(there.data.read(0, 9).await.unwrap(), "hi");
            here.hangup().await.unwrap();
            assert_eq!(there.data.read(0, 9).await.unwrap(), "");

            let here = net.dial(&format!("net!{at}")).await.unwrap();
            served.listen().await.unwrap().reject("it can't be").await.unwrap();
            assert_eq!(here.data.read(0, 9).await.unwrap(), "");
            drop(served);
            let refused = async || net.dial(&format!("tcp!{at}")).await.map(drop);
            while refused().await.is_ok() {}
            assert_eq!(errno(refused().await), Errno::ECONNREFUSED);
            assert!(net.dial("snail!host!1").await.is_err());
        }
    });
}

#[test]
fn what_was_written_arrives_though_the_writer_has_left_something_unread() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        for _ in 0..20 {
            let call = called(&root, &serving, &connect).await;
            let (a, b) = call.data().await;
            a.write(0, b"a question, and more").await.unwrap();
            assert_eq!(b.read(0, 10).await.unwrap(), "a question");
            b.write(0, &[7; 200_000]).await.unwrap();
            drop((b, call.taken, call.other));
            let mut had = 0;
            loop {
                let bytes = a.read(0, 50_000).await.unwrap();
                if bytes.is_empty() {
                    break;
                }
                had += bytes.len();
            }
            assert_eq!(had, 200_000);
        }
    });
}

#[test]
fn who_calls_and_resets_ends_nothing() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let to: SocketAddr = connect["connect ".len()..].replace('!', ":").parse().unwrap();
        let over = Arc::new(std::sync::atomic::AtomicBool::new(false));
        let callers: Vec<_> = (0..3)
            .map(|_| {
                let over = over.clone();
                std::thread::spawn(move || {
                    while !over.load(Ordering::Relaxed) {
                        let Ok(call) = std::net::TcpStream::connect(to) else { continue };
                        // Closed at once, with a reset.
                        let _ = rustix::net::sockopt::set_socket_linger(&call, Some(Duration::ZERO));
                    }
                })
            })
            .collect();
        for _ in 0..300 {
            drop(serving.open("listen", RDWR).await.expect("it listens on"));
        }
        over.store(true, Ordering::Relaxed);
        callers.into_iter().for_each(|caller| caller.join().unwrap());
        assert!(shown(&serving, "status").await.starts_with("Listen "));
    });
}

#[test]
fn a_connection_that_is_reset_is_closed() {
    world(async |world| {
        let root = world.root().await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let (ctl, dir) = made(&root, "tcp").await;
        say(&ctl, &format!("connect 127.0.0.1!{}", listener.local_addr().unwrap().port())).await.unwrap();
        let (there, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&there, Some(Duration::ZERO)).unwrap();
        drop(there);
        let data = dir.open("data", RDWR).await.unwrap();
        assert_eq!(errno(data.read(0, 10).await), Errno::ECONNRESET);
        for _ in 0..2 {
            assert!(shown(&dir, "status").await.starts_with("Closed "));
            assert_eq!(data.read(0, 10).await.unwrap(), "", "nothing comes any more");
        }
        assert_eq!(shown(&dir, "err").await, "connection reset");
    });
}

#[test]
fn hangup_sends_what_modules_hold() {
    world(async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let call = called(&root, &serving, &connect).await;
        say(&call.ctl, "push throttle 400K").await.unwrap();
        let (a, b) = call.data().await;
        for _ in 0..3 {
            a.write(0, &[7; 30_000]).await.unwrap();
        }
        say(&call.ctl, "hangup").await.unwrap();
        assert!(a.write(0, b"more").await.is_err());
        assert_eq!(a.read(0, 10).await.unwrap(), "");
        drop((a, call.dir, call.ctl));
        let mut had = 0;
        loop {
            match b.read(0, 50_000).await.unwrap().len() {
                0 => break,
                n => had += n,
            }
        }
        assert_eq!(had, 90_000);
    });
}

#[test]
fn the_address_of_this_end_can_be_chosen_by_who_may_be_called_there() {
    world(async |world| {
        let root = world.root_in(Dialect::U).await;
        let (_served, serving, connect) = announced(&root).await;
        for (bind, from, local) in [
            ("", " 127.0.0.2!0", "127.0.0.2!"),
            ("", " *!0", "127.0.0.1!"),
            ("bind 127.0.0.3!0", "", "127.0.0.3!"),
            ("bind 0", "", "127.0.0.1!"),
        ] {
            let (ctl, dir) = made(&root, "tcp").await;
            if !bind.is_empty() {
                say(&ctl, bind).await.unwrap();
            }
            say(&ctl, &format!("{connect}{from}")).await.unwrap();
            let taken = serving.open("listen", RDWR).await.unwrap();
            let other = root.walk(format!("tcp/{}", text(&taken).await).as_str()).await.unwrap();
            let at = shown(&dir, "local").await;
            assert!(at.starts_with(local), "{bind}{from}: {at}");
            assert_eq!(shown(&other, "remote").await, at);
            let (a, b) = (dir.open("data", RDWR).await.unwrap(), other.open("data", RDWR).await.unwrap());
            a.write(0, b"hi").await.unwrap();
            assert_eq!(b.read(0, 9).await.unwrap(), "hi");
        }
        let udp = made(&root, "udp").await;
        say(&udp.0, "connect 127.0.0.1!9 127.0.0.4!0").await.unwrap();
        assert!(shown(&udp.1, "local").await.starts_with("127.0.0.4!"));
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        for (network, words, says) in [
            ("tcp", format!("connect 127.0.0.1!{closed} 0"), "connection refused"),
            ("tcp", format!("{connect} ::1!0"), "family"),
            ("tcp", format!("{connect} http"), "bad local address"),
            ("tcp", format!("{connect} 5000!r"), "bad local address"),
            ("tcp", format!("{connect} 10.1.2.3!5000"), "does not allow to announce tcp!10.1.2.3!5000"),
            ("il", "connect 127.0.0.1!9 5000".into(), "il chooses the port"),
        ] {
            let (ctl, _) = made(&root, network).await;
            let error = say(&ctl, &words).await.unwrap_err();
            assert!(error.to_string().contains(says), "{words}: {error}");
        }
    });
    // A user that may only dial cannot choose a local address.
    limited(10, "allow dial tcp!loopback!*".parse().unwrap(), async |world| {
        let root = world.root().await;
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (ctl, _) = made(&root, "tcp").await;
        assert_eq!(errno(say(&ctl, &format!("connect 127.0.0.1!{port} 0")).await), Errno::EACCES);
        say(&ctl, "bind 0").await.unwrap();
        assert_eq!(errno(say(&ctl, &format!("connect 127.0.0.1!{port}")).await), Errno::EACCES);
        let (ctl, _) = made(&root, "tcp").await;
        say(&ctl, &format!("connect 127.0.0.1!{port}")).await.unwrap();
    });
}

#[test]
fn an_address_that_is_silent_leaves_the_others_their_time() {
    let clock = SteppedClockState::new();
    timed(10, Policy::loopback(), Some(clock.clone()), async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root, "held").await;
        let mut connect = pin!(say(&ctl, "connect silent"));
        for n in 1..=2 {
            // It is being dialled.
            poll_fn(|cx| {
                cx.waker().wake_by_ref();
                assert!(connect.as_mut().poll(cx).is_pending());
                let dialled = world.held.dialled.load(Ordering::Relaxed);
                assert!(dialled <= n);
                if dialled == n { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            // A third of a minute, then half of the rest.
            clock.jump(Duration::from_secs(20));
        }
        connect.await.unwrap();
        assert_eq!(shown(&dir, "remote").await, "there!2\n");
        assert_eq!(world.held.dropped.load(Ordering::Relaxed), 3);
    });
}
