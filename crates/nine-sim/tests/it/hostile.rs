//! Hostile clients beside honest ones, which must not be affected.

use std::sync::Arc;
use std::time::Duration;

use nine_io::server::{Anonymous, Core, FIDS_FLOOR, FLOOR, Gate, LEAVE, QUIET, Service};
use nine_net::{Env, Proof};
use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Fid, Tag};
use nine_sim::{Shape, World, seeds};

use crate::common::{Raw, STUCK, UNCANCELLED, Zeros, read};

fn service(budget: usize) -> (Arc<Zeros>, Service) {
    let zeros = Arc::new(Zeros::default());
    (zeros.clone(), Service::new(zeros, Gate::default(), Core::with_budget(budget)))
}

/// A thousand hostile clients of each kind, and one honest client that works beside them.
#[test]
fn a_thousand_bad_clients_leave_the_others_served_and_memory_bounded() {
    const BAD: usize = 1000;
    const BUDGET: usize = 8 << 20;
    for seed in seeds(2) {
        let world = World::new(seed);
        let (_, service) = service(BUDGET);
        for i in 0..BAD {
            let env = world.env();
            let shape = Shape { window: 16 * 1024, ..Shape::default() };
            let mut raw = Raw::dial(&world, &service, shape);
            world.env().spawn(Box::pin(async move {
                match i % 3 {
                    // Sends nothing.
                    0 => std::future::pending::<()>().await,
                    // Sends a byte a second.
                    1 => loop {
                        if raw.send_bytes(&[0]).await.is_err() {
                            return;
                        }
                        env.sleep_until(env.now() + Duration::from_secs(1)).await;
                    },
                    // Requests as much as it can and never reads an answer.
                    _ => {
                        raw.hello(1 << 20).await;
                        raw.open().await;
                        for tag in 0.. {
                            if raw.send(tag % 60_000, read(1 << 20)).await.is_err() {
                                return;
                            }
                        }
                    }
                }
            }));
        }
        let mut good = Raw::dial(&world, &service, Shape::default());
        let core = service.core.clone();
        let env = world.env();
        world.run(async move {
            good.hello(1 << 20).await;
            good.open().await;
            for i in 0..50 {
                assert!(good.call(1, read(4096)).await.starts_with("Rread tag 1 data 4096"));
                let data = Data::Bytes(&[7; 10_000]);
                let write = Tmsg::Write { fid: Fid(2), offset: 0, data };
                assert_eq!(good.call(1, write).await, "Rwrite tag 1 count 10000");
                env.sleep_until(Duration::from_secs(i)).await;
                assert!(core.borrowed() <= BUDGET + BAD * 2 * FLOOR, "{} bytes borrowed", core.borrowed());
            }
        });
    }
}

#[test]
fn malformed_bytes_end_their_connection_and_no_other() {
    let floods: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[6, 0, 0, 0, 100, 0, 0],
        &[255; 64],
        &[7, 0, 0, 0, 106, 0, 0],
        &[0; 64],
    ];
    for (seed, flood) in floods.into_iter().enumerate() {
        let world = World::new(seed as u64);
        let (zeros, service) = service(1 << 20);
        let mut bad = Raw::dial(&world, &service, Shape::default());
        let mut good = Raw::dial(&world, &service, Shape::default());
        world.run(async move {
            bad.hello(8192).await;
            good.hello(8192).await;
            good.open().await;
            bad.send_bytes(flood).await.unwrap();
            assert_eq!(bad.reply().await, "UnexpectedEof");
            assert!(good.call(1, read(10)).await.starts_with("Rread"));
            assert_eq!(*zeros.clunks.lock().unwrap(), 1, "the bad client's root was clunked");
        });
    }
}

#[test]
fn a_request_with_a_malformed_body_is_an_error_and_its_connection_goes_on() {
    let world = World::new(1);
    let (_zeros, service) = service(1 << 20);
    let mut raw = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        raw.hello(8192).await;
        raw.open().await;
        // A Tclunk with a quarter of a fid; a Tread with one byte too many; a Twalk of 17 names.
        let mut long = vec![24, 0, 0, 0, 116, 1, 0, 2, 0, 0, 0];
        long.resize(24, 0);
        let mut names = vec![17 + 17 * 3, 0, 0, 0, 110, 1, 0, 0, 0, 0, 0, 9, 0, 0, 0, 17, 0];
        names.extend([1, 0, b'n'].repeat(17));
        for bad in [&[8, 0, 0, 0, 120, 1, 0, 9][..], &long, &names] {
            raw.send_bytes(bad).await.unwrap();
            assert_eq!(raw.reply().await, "Rlerror tag 1 ecode 22");
        }
        assert!(raw.call(1, read(10)).await.starts_with("Rread"));
    });
}

#[test]
fn a_request_that_waits_for_ever_ends_with_its_flush_and_with_its_client() {
    for seed in seeds(20) {
        let world = World::new(seed);
        let (zeros, service) = service(1 << 20);
        let mut raw = Raw::dial(&world, &service, Shape::default());
        let held = zeros.clone();
        world.run(async move {
            raw.hello(8192).await;
            raw.open().await;
            let stuck = || Tmsg::Read { fid: Fid(2), offset: STUCK, count: 10 };
            raw.send(5, stuck()).await.unwrap();
            raw.send(6, stuck()).await.unwrap();
            assert_eq!(raw.call(7, Tmsg::Flush { oldtag: Tag(5) }).await, "Rflush tag 7");
            assert_eq!(held.stuck(), 1);
            // The clunk waits for the other read, and ends with it.
            raw.send(8, Tmsg::Clunk { fid: Fid(2) }).await.unwrap();
            assert!(raw.call(9, read(1)).await.contains("tag 9 ecode 9"));
            raw.hang_up();
        });
        world.settle();
        assert_eq!(zeros.stuck(), 0);
        assert_eq!(*zeros.clunks.lock().unwrap(), 2);
        assert_eq!((world.tasks(), service.core.connected(), service.core.borrowed()), (0, 0, 0));
    }
}

/// Reads that never end, as many and as large as possible. A flush behind them gets through, and so does the end of the
/// connection.
#[test]
fn a_client_full_of_endless_reads_can_still_flush_and_leave() {
    for (seed, (reads, count)) in [(20, 1 << 20), (1024, 4096), (1020, 1 << 20)].into_iter().enumerate() {
        let world = World::new(seed as u64);
        let (zeros, service) = service(64 << 20);
        let mut raw = Raw::dial(&world, &service, Shape::default());
        let held = zeros.clone();
        world.run(async move {
            raw.hello(1 << 20).await;
            raw.open().await;
            for tag in 0..reads {
                raw.send(tag, Tmsg::Read { fid: Fid(2), offset: STUCK, count }).await.unwrap();
            }
            assert_eq!(raw.call(5000, Tmsg::Flush { oldtag: Tag(3) }).await, "Rflush tag 5000");
            assert_eq!(held.stuck(), usize::from(reads) - 1);
            // More than the server reads now; then the client disconnects.
            for tag in 0..200 {
                raw.send(6000 + tag, Tmsg::Read { fid: Fid(2), offset: STUCK, count }).await.unwrap();
            }
            raw.hang_up();
        });
        world.settle();
        assert_eq!((zeros.stuck(), *zeros.clunks.lock().unwrap()), (0, 2));
        assert_eq!((world.tasks(), service.core.connected(), service.core.borrowed()), (0, 0, 0));
    }
}

/// A new session does not release the cost of the old session's requests.
#[test]
fn a_new_session_does_not_forget_what_the_old_one_owes() {
    let world = World::new(0);
    let (zeros, service) = service(64 << 20);
    let mut raw = Raw::dial(&world, &service, Shape::default());
    let core = service.core.clone();
    let held = zeros.clone();
    world.run(async move {
        raw.hello(1 << 20).await;
        raw.open().await;
        for tag in 0..10 {
            raw.send(tag, Tmsg::Read { fid: Fid(2), offset: UNCANCELLED, count: 1 << 20 }).await.unwrap();
        }
        raw.hello(1 << 20).await;
        assert!(core.borrowed() > 5 << 20, "{} bytes borrowed", core.borrowed());
        // The old session's file is clunked after the answer to its last read, its root at once.
        assert_eq!(*held.clunks.lock().unwrap(), 1);
        held.answer_all();
        assert!(raw.call(1, Tmsg::Clunk { fid: Fid(1) }).await.starts_with("Rclunk"));
        assert_eq!((core.borrowed(), *held.clunks.lock().unwrap()), (0, 3));
    });
}

/// Greedy clients take as much as they can. A modest writer of large messages is not starved.
#[test]
fn hogs_do_not_take_the_memory_of_the_others() {
    for seed in seeds(3) {
        let world = World::new(seed);
        let (_, service) = service(32 << 20);
        for _ in 0..40 {
            let mut raw = Raw::dial(&world, &service, Shape::default());
            world.env().spawn(Box::pin(async move {
                raw.hello(1 << 20).await;
                raw.open().await;
                for tag in 0..200 {
                    raw.send(tag, Tmsg::Read { fid: Fid(2), offset: STUCK, count: 1 << 20 }).await.unwrap();
                }
                std::future::pending::<()>().await;
            }));
        }
        let mut good = Raw::dial(&world, &service, Shape::default());
        let env = world.env();
        world.run(async move {
            env.sleep_until(Duration::from_secs(10)).await;
            good.hello(1 << 20).await;
            good.open().await;
            for _ in 0..20 {
                let data = Data::Bytes(&[7; 128 * 1024]);
                let write = Tmsg::Write { fid: Fid(2), offset: 0, data };
                assert_eq!(good.call(1, write).await, "Rwrite tag 1 count 131072");
            }
        });
    }
}

#[test]
fn a_read_only_client_that_removes_loses_its_fid_and_nothing_else() {
    let world = World::new(0);
    let zeros = Arc::new(Zeros::default());
    let gate = Gate { read_only: true, ..Gate::default() };
    let service = Service::new(zeros.clone(), gate, Core::default());
    let mut raw = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        raw.hello(8192).await;
        assert_eq!(raw.call(1, Tmsg::Remove { fid: Fid(1) }).await, "Rlerror tag 1 ecode 30");
        assert_eq!(raw.call(1, Tmsg::Clunk { fid: Fid(1) }).await, "Rlerror tag 1 ecode 9");
        assert_eq!(*zeros.clunks.lock().unwrap(), 1);
    });
}

#[test]
fn a_drain_answers_what_was_asked_and_ends() {
    for seed in seeds(20) {
        let world = World::new(seed);
        let (_, service) = service(1 << 20);
        let mut raw = Raw::dial(&world, &service, Shape::default());
        let core = service.core.clone();
        world.run(async move {
            raw.hello(1 << 20).await;
            raw.open().await;
            for tag in 0..20 {
                raw.send(tag, read(100_000)).await.unwrap();
            }
            // One answer has arrived, so all requests were received or are in flight.
            assert!(raw.reply().await.starts_with("Rread"));
            core.drain();
            while raw.receive().await.is_ok() {}
        });
        world.settle();
        assert_eq!((world.tasks(), service.core.connected(), service.core.borrowed()), (0, 0, 0));
    }
}

/// A client with ongoing work can finish it. A client that sends requests forever, or none, does not delay the
/// shutdown.
#[test]
fn a_server_that_retires_serves_on_for_a_moment() {
    let step = QUIET / 8;
    for (pause, asks, least) in
        [(QUIET / 2, 5, 5 * QUIET / 2 + QUIET), (QUIET, 0, QUIET), (step, usize::MAX, LEAVE)]
    {
        let world = World::new(0);
        let (_, service) = service(1 << 20);
        let [mut busy, mut idle] = [(); 2].map(|()| Raw::dial(&world, &service, Shape::default()));
        let (core, env) = (service.core.clone(), world.env());
        let taken = world.run(async move {
            for client in [&mut busy, &mut idle] {
                client.hello(1 << 20).await;
                client.open().await;
            }
            let clock = env.clone();
            env.spawn(Box::pin(async move {
                for _ in 0..asks {
                    clock.sleep_until(clock.now() + pause).await;
                    let answer = busy.call(1, read(100)).await;
                    if asks == usize::MAX && !answer.starts_with("Rread") {
                        break;
                    }
                    assert!(answer.starts_with("Rread"), "{answer}");
                }
                // Connected but silent.
                while busy.receive().await.is_ok() {}
            }));
            let begun = env.now();
            core.retire(&env).await;
            let taken = env.now() - begun;
            core.drain();
            assert!(idle.receive().await.is_err());
            taken
        });
        assert!((least..least + 2 * step).contains(&taken), "{taken:?}, not {least:?}");
    }
}

#[test]
fn a_link_that_breaks_anywhere_leaves_nothing_behind() {
    for seed in seeds(60) {
        let world = World::new(seed);
        let (zeros, service) = service(1 << 20);
        let shape = Shape { breaks_after: Some(20 + 40 * seed), ..Shape::default() };
        let mut raw = Raw::dial(&world, &service, shape);
        world.run(async move {
            let version = Tmsg::Version { msize: 8192, version: b"9P2000.L" };
            if !raw.call(!0, version).await.starts_with("Rversion") {
                return;
            }
            for tag in 0..200 {
                let fid = Fid(10 + u32::from(tag));
                let attach = nine_proto::msg::OnlyIds(0);
                let attach =
                    Tmsg::Attach { fid, afid: nine_proto::NOFID, uname: b"", aname: b"", n_uname: attach };
                if raw.send(tag, attach).await.is_err() {
                    return;
                }
            }
        });
        world.settle();
        assert_eq!((world.tasks(), zeros.stuck(), service.core.borrowed()), (0, 0, 0));
    }
}

/// One client opens as many files as it can. Other clients can still open theirs.
#[test]
fn who_opens_everything_leaves_files_for_the_others() {
    let world = World::new(0);
    let (_, service) = service(64 << 20);
    let mut greedy = Raw::dial(&world, &service, Shape::default());
    let mut good = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        greedy.hello(8192).await;
        good.hello(8192).await;
        let mut opened = 0;
        loop {
            let names = nine_proto::msg::Names::Slice(&[b"zero"]);
            let walk = Tmsg::Walk { fid: Fid(1), newfid: Fid(100 + opened), names };
            assert!(greedy.call(1, walk).await.starts_with("Rwalk"));
            let open = greedy.call(1, Tmsg::Lopen { fid: Fid(100 + opened), flags: 0 }).await;
            if !open.starts_with("Rlopen") {
                assert_eq!(open, "Rlerror tag 1 ecode 23");
                break;
            }
            opened += 1;
        }
        assert!(opened > 16, "only {opened}");
        good.open().await;
    });
}

/// Walks to new fids from this one on until it is refused. Returns the number of successful walks.
async fn walk_all(raw: &mut Raw, from: u32) -> u32 {
    for n in 0.. {
        let names = nine_proto::msg::Names::Slice(&[b"zero"]);
        let walked = raw.call(1, Tmsg::Walk { fid: Fid(1), newfid: Fid(from + n), names }).await;
        if !walked.starts_with("Rwalk") {
            assert_eq!(walked, "Rlerror tag 1 ecode 23");
            return n;
        }
    }
    unreachable!("there are fewer fids than numbers")
}

/// An unauthenticated client walks without end on many connections. The total of its fids is bounded, other users and
/// the owner still get theirs, and clunked fids are available again.
#[test]
fn fids_of_one_client_on_many_connections_leave_the_others_theirs() {
    const FIDS: usize = 1024;
    let world = World::new(0);
    let gate = Gate { anonymous: Anonymous::ReadOnly, ..Gate::default() };
    let service = Service::new(Arc::new(Zeros::default()), gate, Core::with_limits(8 << 20, FIDS));
    let of = |proof: Proof| Raw::dial(&world, &service, Shape { proof, ..Shape::default() });
    let mut greedy: Vec<Raw> = (0..8).map(|_| of(Proof::None)).collect();
    let (mut user, mut owner) = (of(Proof::Unix { uid: 4711, gid: 0 }), of(Proof::Unix { uid: 0, gid: 0 }));
    let floor = FIDS_FLOOR as u32 - 1;
    world.run(async move {
        let mut walked = Vec::new();
        for raw in &mut greedy {
            raw.hello(8192).await;
            walked.push(walk_all(raw, 100).await);
        }
        // Half of three quarters, and the minimum of each connection, of which the root takes one.
        assert_eq!(walked.iter().sum::<u32>(), 384 + 8 * floor, "{walked:?}");
        user.hello(8192).await;
        assert_eq!(walk_all(&mut user, 100).await, (896 - 384) / 2 + floor);
        owner.hello(8192).await;
        assert_eq!(walk_all(&mut owner, 100).await, 1024 - 384 - 256 + floor);
        for n in 0..300 {
            let clunked = greedy[0].call(1, Tmsg::Clunk { fid: Fid(100 + n) }).await;
            assert!(clunked.starts_with("Rclunk"), "{clunked}");
        }
        assert!(walk_all(&mut greedy[7], 1000).await > 0);
    });
}

#[test]
fn who_does_not_speak_9p_is_found_out_by_its_first_bytes() {
    // A small TLS hello reads as a message of 66,326 bytes.
    for (seed, hello) in [&b"\x16\x03\x01\x00\xf8\x01\x00"[..], b"GET / HTTP/1.0\r\n"].into_iter().enumerate()
    {
        let world = World::new(seed as u64);
        let (_, service) = service(1 << 20);
        let mut raw = Raw::dial(&world, &service, Shape::default());
        world.run(async move {
            raw.send_bytes(hello).await.unwrap();
            assert_eq!(raw.reply().await, "UnexpectedEof");
        });
    }
}

#[test]
fn a_server_that_authenticates_by_itself_gets_what_is_written_to_its_afid() {
    let world = World::new(0);
    let zeros = Arc::new(Zeros::default());
    let gate = Gate { read_only: true, ..Gate::default() };
    let service = Service::new(zeros, gate, Core::default());
    let mut raw = Raw::dial(&world, &service, Shape::default());
    world.run(async move {
        raw.hello(8192).await;
        let n_uname = nine_proto::msg::OnlyIds(nine_proto::NOUID);
        let auth = Tmsg::Auth { afid: Fid(9), uname: b"u", aname: b"", n_uname };
        assert!(raw.call(1, auth).await.starts_with("Rauth"));
        let write = Tmsg::Write { fid: Fid(9), offset: 0, data: Data::Bytes(b"proof") };
        assert_eq!(raw.call(1, write).await, "Rwrite tag 1 count 5");
    });
}

#[test]
fn a_new_session_clunks_the_fids_of_the_old_one_though_nothing_more_comes() {
    let world = World::new(0);
    let (zeros, service) = service(1 << 20);
    let mut raw = Raw::dial(&world, &service, Shape::default());
    let env = world.env();
    world.run(async move {
        raw.hello(8192).await;
        raw.open().await;
        let version = Tmsg::Version { msize: 8192, version: b"9P2000.L" };
        assert!(raw.call(0xffff, version).await.starts_with("Rversion"));
        env.sleep_until(env.now() + Duration::from_secs(60)).await;
        assert_eq!(*zeros.clunks.lock().unwrap(), 2);
        raw.hang_up();
    });
}
