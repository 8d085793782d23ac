//! Limits of one user, and errors at the limits.

use super::*;

#[test]
fn who_opens_clone_and_never_closes_takes_half_and_no_more() {
    limited(100, Policy::loopback(), async |world| {
        let as_user = async |uid| world.client(Dialect::L).await.attach("", uid, "").await.unwrap();
        let (greedy, other) = (as_user(1000).await, as_user(1001).await);
        // Another name does not make another user.
        let again = world.client(Dialect::L).await.attach("another", 1000, "").await.unwrap();
        let mut had = Vec::new();
        loop {
            match greedy.open("tcp/clone", RDWR).await {
                Ok(ctl) => had.push(ctl),
                Err(error) => {
                    assert_eq!(error.errno(), Errno::ENFILE);
                    break;
                }
            }
        }
        assert_eq!(had.len(), 50);
        for _ in 0..10_000 - had.len() {
            assert!(again.open("tcp/clone", RDWR).await.is_err());
        }
        assert_eq!(errno(other.open("tcp/clone", READ).await), Errno::EACCES, "who may only read");
        let (_ctl, dir) = made(&other, "tcp").await;
        assert_eq!(shown(&other, "tcp/stats").await, "conversations 51 of 100\nmade 51\n");
        drop(dir);
        had.clear();
        drop((greedy, again));
        until_one(&other).await;
    });
}

async fn until_one(root: &File) {
    while !shown(root, "tcp/stats").await.starts_with("conversations 1 of") {}
}

#[test]
fn a_thousand_conversations_are_open_at_once() {
    nine_net::rt::raise_nofile().unwrap();
    limited(4000, Policy::loopback(), async |world| {
        let root = world.root().await;
        let (_served, serving, connect) = announced(&root).await;
        let mut ends = Vec::new();
        for _ in 0..900 {
            ends.push(called(&root, &serving, &connect).await.data().await);
        }
        for (n, (a, _)) in ends.iter().enumerate() {
            a.write(0, n.to_string().as_bytes()).await.unwrap();
        }
        for (n, (_, b)) in ends.iter().enumerate().rev() {
            assert_eq!(b.read(0, 10).await.unwrap(), n.to_string());
        }
    });
}

#[test]
fn modules_are_counted_for_their_owner_who_may_have_half_of_them() {
    world(async |world| {
        let client = world.client(Dialect::U).await;
        let (mine, yours) =
            (client.attach("", 1000, "").await.unwrap(), client.attach("", 1001, "").await.unwrap());
        let connected = async |root: &File| {
            let (ctl, _) = made(root, "held").await;
            say(&ctl, "connect 127.0.0.1:1").await.unwrap();
            ctl
        };
        let mut had = Vec::new();
        let error = loop {
            had.push(connected(&mine).await);
            if let Err(error) = say(had.last().unwrap(), "push zstd").await {
                break error;
            }
        };
        assert!(error.to_string().contains("your conversations may hold 128 MiB"), "{error}");
        // 4 MiB for zstd, 2 for the stream of the first module.
        assert_eq!(had.len(), 128 / 6 + 1);
        say(&connected(&yours).await, "push zstd").await.unwrap();
        // A pop or a close makes room; the stream of the first module stays.
        let last = had.pop().unwrap();
        say(&had[0], "pop").await.unwrap();
        say(&last, "push zstd").await.unwrap();
        assert!(say(&had[0], "push zstd").await.is_err());
        let more = connected(&mine).await;
        assert!(say(&more, "push zstd").await.is_err());
        drop(had.pop());
        world.held.others.lock().unwrap().clear();
        poll_until(async || say(&more, "push zstd").await.is_ok()).await;
    });
}

async fn poll_until(mut is_so: impl AsyncFnMut() -> bool) {
    while !is_so().await {}
}

/// Returns whether the server's end of a pipe still exists.
fn is_there(far: &mut Pipe) -> bool {
    let wrote = far.poll_write(&mut Context::from_waker(std::task::Waker::noop()), &[io::IoSlice::new(b"x")]);
    !matches!(wrote, Poll::Ready(Err(_)))
}

#[test]
fn closed_conversations_that_wait_are_counted_for_their_owner_and_given_up_in_the_end() {
    let clock = SteppedClockState::new();
    timed(2000, Policy::loopback(), Some(clock.clone()), async |world| {
        let client = world.client(Dialect::L).await;
        let (mine, yours) =
            (client.attach("", 1000, "").await.unwrap(), client.attach("", 1001, "").await.unwrap());
        // The other end neither reads nor closes.
        let closed = async |root: &File| {
            let (ctl, dir) = made(root, "held").await;
            say(&ctl, "connect 127.0.0.1:1").await.unwrap();
            dir.open("data", RDWR).await.unwrap().write(0, &[7; 1000]).await.unwrap();
            drop((ctl, dir));
            until_gone(root, "held").await;
            world.held.others.lock().unwrap().pop().unwrap()
        };
        let mut kept = Vec::new();
        for n in 0..500 {
            kept.push(closed(&mine).await);
            assert!(is_there(kept.last_mut().unwrap()), "{n}");
        }
        let mut cut = closed(&mine).await;
        assert_eq!(received(&mut cut, 2000).await.len(), 1000, "what was written has left");
        assert!(!is_there(&mut cut), "one user has had half");
        kept.push(closed(&yours).await);
        // Each conversation has had a turn, since the driver takes them in order.
        say(&made(&mine, "held").await.0, "connect 127.0.0.1:1").await.unwrap();
        clock.jump(Duration::from_secs(9));
        say(&made(&mine, "held").await.0, "connect 127.0.0.1:1").await.unwrap();
        assert!(kept.iter_mut().all(is_there));
        clock.jump(Duration::from_secs(2));
        until(|| kept.iter_mut().all(|far| !is_there(far))).await;
        kept = vec![closed(&mine).await];
        assert!(is_there(&mut kept[0]), "there is room again");
    });
}

#[test]
fn a_call_for_which_there_is_no_room_is_left_where_it_is() {
    limited(5, Policy::loopback(), async |world| {
        let root = world.root_in(Dialect::U).await;
        let (_served, dir) = made(&root, "held").await;
        say(&_served, "announce 127.0.0.1:7").await.unwrap();
        let fars: Vec<Pipe> = (0..3)
            .map(|_| {
                let (near, far) = two();
                world.held.calls.lock().unwrap().push(near);
                far
            })
            .collect();
        let _one = dir.open("listen", RDWR).await.unwrap();
        let two = dir.open("listen", RDWR).await.unwrap();
        let error = dir.open("listen", RDWR).await.map(drop).unwrap_err();
        assert!(error.to_string().contains("you have 3 conversations of held"), "{error}");
        assert_eq!(world.held.calls.lock().unwrap().len(), 1);
        drop(two);
        poll_until(async || dir.open("listen", RDWR).await.is_ok()).await;
        drop(fars);
    });
}

#[test]
fn who_finds_no_descriptor_left_is_told() {
    world(async |world| {
        for dialect in [Dialect::U, Dialect::L] {
            let root = world.root_in(dialect).await;
            for words in ["connect", "announce"] {
                let (ctl, dir) = made(&root, "held").await;
                for (port, errno, says) in [
                    (24, Errno::EMFILE, "too many open files: this server has no descriptor left"),
                    (23, Errno::ENFILE, "too many open files: this machine has no descriptor left"),
                ] {
                    let error = say(&ctl, &format!("{words} 127.0.0.1:{port}")).await.unwrap_err();
                    assert_eq!(error.errno(), errno, "{error}");
                    assert_eq!(shown(&dir, "err").await, says);
                }
                // It can be tried again.
                say(&ctl, &format!("{words} 127.0.0.1:1")).await.unwrap();
            }
        }
    });
}
