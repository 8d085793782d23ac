//! il between ports of a network that loses, duplicates, reorders and corrupts datagrams, with an attacker on it.
//!
//! The oracle: a message contains its number and bytes that depend on it. Each arrives once, in order, or both ends
//! fail in bounded time.

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use nine_net::Env;
use nine_net::datagram::{Announced, Kind, Limits, Line, Port};
use nine_net::il::{Header, Kind as Packet};
use nine_sim::{Datagrams, Rng, SimEnv, Weather, World, seeds};
use nine_stream::Block;

const PORT: u16 = 17008;

fn at(n: u8) -> SocketAddr {
    ([10, 0, 0, n], 999).into()
}

fn port(env: &SimEnv, net: &Datagrams, n: u8, limits: Limits) -> Port {
    let (port, driver) = Port::new(net.wire(at(n)), Kind::Il, limits, env.clock());
    env.spawn(Box::pin(async move {
        drop(driver.await);
    }));
    port
}

fn message(n: u32, salt: u32) -> Vec<u8> {
    let len = (n.wrapping_mul(2_654_435_761) >> 20) % 1300;
    let fill = n.wrapping_mul(31).wrapping_add(salt) as u8;
    n.to_be_bytes().into_iter().chain((0..len).map(|at| fill.wrapping_add(at as u8))).collect()
}

async fn send(line: &Line, n: u32, salt: u32) -> Result<(), nine_stream::Fault> {
    let mut block = Block::from(message(n, salt));
    block.delim = true;
    line.stream.put(block).await
}

/// Reads to the end. Returns the number of messages, and whether the end was orderly.
async fn judge(seed: u64, line: &Line, salt: u32) -> (u32, bool) {
    let mut buf = vec![0; 2000];
    let mut seen = 0;
    loop {
        match line.stream.read(&mut buf).await {
            Ok(0) => return (seen, true),
            Ok(n) => {
                assert!(buf[..n] == message(seen, salt), "seed {seed}: message {seen} is another one");
                seen += 1;
            }
            Err(_) => return (seen, false),
        }
    }
}

/// A conversation between two ports, and the objects that keep it alive.
struct Pair {
    ports: [Port; 2],
    _announced: Announced,
    here: Line,
    there: Line,
}

impl Pair {
    async fn new(env: &SimEnv, net: &Datagrams) -> Self {
        let ports = [1, 2].map(|n| port(env, net, n, Limits::default()));
        Self::between(ports).await
    }

    async fn between(ports: [Port; 2]) -> Self {
        let announced = ports[1].announce(PORT).expect("free");
        let here = ports[0].dial(at(2), PORT).await.expect("answered");
        here.stream.write(b"hello").await.expect("written");
        let there = announced.accept().await.expect("a call");
        assert!(matches!(there.stream.read(&mut [0; 8]).await, Ok(5)));
        Self { ports, _announced: announced, here, there }
    }
}

/// Sends `count` messages while it reads, then closes.
async fn converse(env: SimEnv, seed: u64, line: Line, count: u32, salts: (u32, u32)) -> (u32, u32, bool) {
    let line = Rc::new(line);
    let sent = Rc::new(Cell::new(0));
    let (writer, counter) = (line.clone(), sent.clone());
    env.spawn(Box::pin(async move {
        for n in 0..count {
            if send(&writer, n, salts.0).await.is_err() {
                return;
            }
            counter.set(n + 1);
        }
        writer.stream.finish();
    }));
    let (seen, well) = judge(seed, &line, salts.1).await;
    (sent.get(), seen, well)
}

fn bad(rng: &mut Rng) -> Weather {
    Weather {
        delay: Duration::from_micros(1 + rng.below(20_000) as u64),
        jitter: Duration::from_micros(1 + rng.below(5000) as u64),
        lost: 3 + rng.below(30),
        doubled: 2 + rng.below(20),
        changed: 2 + rng.below(20),
        rate: [0, 200_000, 5_000_000][rng.below(3)],
        queue: 10_000 + rng.below(100_000) as u64,
        ..Weather::default()
    }
}

/// Sends packets with the right addresses and ports and guessed numbers, until `stop` is set.
async fn attack(env: SimEnv, net: Datagrams, mut rng: Rng, stop: Rc<Cell<bool>>) {
    let kinds = [
        Packet::Sync,
        Packet::Data,
        Packet::DataQuery,
        Packet::Ack,
        Packet::Query,
        Packet::State,
        Packet::Close,
    ];
    while !stop.get() {
        env.sleep_until(env.now() + Duration::from_micros(1 + rng.below(20_000) as u64)).await;
        let (caller, callee) = (5000 + rng.below(3) as u16, PORT);
        let (from, to, src, dst) =
            if rng.one_in(2) { (at(1), at(2), caller, callee) } else { (at(2), at(1), callee, caller) };
        let header = Header {
            kind: kinds[rng.below(kinds.len())],
            spec: rng.below(12) as u8,
            src,
            dst,
            id: rng.bits() as u32,
            ack: if rng.one_in(3) { 0 } else { rng.bits() as u32 },
        };
        let payload = vec![rng.bits() as u8; rng.below(40)];
        let packet = header.packet(Some(Block::from(payload)), rng.one_in(2));
        net.send(from, to, packet.flat_map(|block| block.data().to_vec()).collect());
    }
}

#[test]
fn every_message_comes_once_in_order_whatever_the_network_does() {
    for seed in seeds(12) {
        let world = World::new(seed);
        let (env, mut rng) = (world.env(), world.rng());
        let net = Datagrams::new(&world, bad(&mut rng));
        world.run(async move {
            let (a, b) = (port(&env, &net, 1, Limits::default()), port(&env, &net, 2, Limits::default()));
            let announced = b.announce(PORT).expect("free");
            let stop = Rc::new(Cell::new(false));
            env.spawn(Box::pin(attack(env.clone(), net.clone(), rng.fork(), stop.clone())));
            let counts = [rng.below(800) as u32, rng.below(800) as u32];
            let there: Rc<RefCell<Option<(u32, u32, bool)>>> = Rc::default();
            let (task, result) = (env.clone(), there.clone());
            env.spawn(Box::pin(async move {
                let line = announced.accept().await.expect("a call");
                let over = converse(task.clone(), seed, line, counts[1], (2, 1)).await;
                *result.borrow_mut() = Some(over);
                drop(announced);
            }));
            let line = a.dial(at(2), PORT).await.expect("answered");
            let here = converse(env.clone(), seed, line, counts[0], (1, 2)).await;
            while there.borrow().is_none() {
                env.sleep_until(env.now() + Duration::from_secs(1)).await;
            }
            let there = there.borrow_mut().take().expect("it is there");
            stop.set(true);
            // The first end to close ends both directions after the data written by then.
            assert!(here.2 && there.2, "seed {seed}: {here:?} {there:?}");
            assert!(here.1 <= there.0 && there.1 <= here.0, "seed {seed}: {here:?} {there:?}");
            assert!(here.0 == counts[0] || there.0 == counts[1], "seed {seed}: one of them was done");
            assert!(
                (here.0 == counts[0] && there.1 == counts[0])
                    || (there.0 == counts[1] && here.1 == counts[1]),
                "seed {seed}: {here:?} {there:?} of {counts:?}"
            );
            assert!(env.now() < Duration::from_secs(600), "seed {seed}: {:?}", env.now());
        });
    }
}

#[test]
#[should_panic(expected = "is another one")]
fn a_canary_that_changes_a_message_is_caught() {
    let world = World::new(1);
    let env = world.env();
    let weather = Weather { changed: 20, has_sums: true, ..Weather::default() };
    let net = Datagrams::new(&world, weather);
    world.run(async move {
        let (a, b) = (port(&env, &net, 1, Limits::default()), port(&env, &net, 2, Limits::default()));
        let announced = b.announce(PORT).expect("free");
        let task = env.clone();
        env.spawn(Box::pin(async move {
            let line = announced.accept().await.expect("a call");
            converse(task, 1, line, 100, (2, 1)).await;
        }));
        let line = a.dial(at(2), PORT).await.expect("answered");
        converse(env.clone(), 1, line, 100, (1, 2)).await;
    });
}

#[test]
fn ten_thousand_conversations_share_a_port_and_each_has_its_own_messages() {
    const COUNT: u32 = 10_000;
    let world = World::new(3);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let limits = Limits { calls: COUNT as usize, half: COUNT as usize, ..Limits::default() };
        let (a, b) = (port(&env, &net, 1, limits), port(&env, &net, 2, limits));
        let announced = b.announce(PORT).expect("free");
        env.spawn(Box::pin(async move {
            let mut lines = Vec::new();
            let mut buf = [0; 8];
            for _ in 0..COUNT {
                let line = announced.accept().await.expect("a call");
                let n = line.stream.read(&mut buf).await.expect("read");
                line.stream.write(&buf[..n]).await.expect("written");
                lines.push(line);
            }
        }));
        let mut lines = Vec::new();
        for n in 0..COUNT {
            let line = a.dial(at(2), PORT).await.expect("answered");
            line.stream.write(&n.to_be_bytes()).await.expect("written");
            lines.push(line);
        }
        let mut buf = [0; 8];
        for (n, line) in lines.iter().enumerate() {
            assert!(matches!(line.stream.read(&mut buf).await, Ok(4)), "conversation {n}");
            assert_eq!(buf[..4], (n as u32).to_be_bytes());
        }
        drop(lines);
        assert!(a.dial(at(2), 1).await.is_err_and(|e| e.kind() == std::io::ErrorKind::ConnectionRefused));
    });
    // Closed conversations leave nothing behind: all tasks end.
    world.settle();
    assert_eq!(world.tasks(), 0);
}

#[test]
fn a_full_queue_of_calls_refuses_and_what_waits_in_it_is_accepted_later() {
    let world = World::new(4);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let limits = Limits { calls: 3, ..Limits::default() };
        let (a, b) = (port(&env, &net, 1, limits), port(&env, &net, 2, limits));
        let announced = b.announce(PORT).expect("free");
        assert!(b.announce(PORT).is_err(), "it is announced already");
        let mut lines = Vec::new();
        for n in 0..5u8 {
            match a.dial(at(2), PORT).await {
                Ok(line) => {
                    line.stream.write(&[n]).await.expect("written");
                    lines.push(line);
                }
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused),
            }
            // The acknowledgement completes the call.
            env.sleep_until(env.now() + Duration::from_millis(10)).await;
        }
        assert_eq!(lines.len(), 3);
        for n in 0..3 {
            let line = announced.accept().await.expect("a call");
            let mut buf = [9; 4];
            assert!(matches!(line.stream.read(&mut buf).await, Ok(1)));
            assert_eq!(buf[0], n);
        }
        let line = a.dial(at(2), PORT).await.expect("there is room again");
        drop((line, announced));
        assert!(a.dial(at(2), PORT).await.is_err(), "nobody listens");
    });
}

#[test]
fn a_reader_that_stops_holds_up_nobody_else_and_loses_nothing() {
    let world = World::new(5);
    let env = world.env();
    let net = Datagrams::new(&world, Weather { lost: 50, ..Weather::default() });
    world.run(async move {
        let limits = Limits { window: 64 << 10, ..Limits::default() };
        let (a, b) = (port(&env, &net, 1, limits), port(&env, &net, 2, limits));
        let announced = b.announce(PORT).expect("free");
        let slow = a.dial(at(2), PORT).await.expect("answered");
        slow.stream.write(b"slow").await.expect("written");
        let slow_there = announced.accept().await.expect("a call");
        let sent = Rc::new(Cell::new(0));
        let counter = sent.clone();
        env.spawn(Box::pin(async move {
            for n in 0..2000 {
                send(&slow, n, 7).await.expect("sent");
                counter.set(n + 1);
            }
        }));
        env.sleep_until(env.now() + Duration::from_secs(100)).await;
        assert!((100..2000).contains(&sent.get()), "{}", sent.get());
        let quick = a.dial(at(2), PORT).await.expect("answered");
        quick.stream.write(b"quick").await.expect("written");
        let quick_there = announced.accept().await.expect("a call");
        let mut buf = vec![0; 2000];
        assert!(matches!(quick_there.stream.read(&mut buf).await, Ok(5)));
        assert!(matches!(slow_there.stream.read(&mut buf).await, Ok(4)));
        let (seen, well) = judge(5, &slow_there, 7).await;
        assert!(well && seen == 2000, "{seen}");
    });
}

#[test]
fn where_nothing_comes_through_any_more_both_ends_are_told_in_time() {
    let world = World::new(6);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let Pair { ports: [a, _b], here, there, .. } = &Pair::new(&env, &net).await;
        let mut buf = [0; 8];
        net.change(|weather| weather.lost = 1);
        for line in [here, there] {
            let why = line.stream.read(&mut buf).await.expect_err("it is over");
            assert_eq!(why.to_string(), "il: the peer does not answer");
        }
        assert!(env.now() < Duration::from_secs(320), "{:?}", env.now());
        assert!(a.dial(at(2), PORT).await.is_err_and(|e| e.kind() == std::io::ErrorKind::TimedOut));
    });
}

#[test]
fn plain_datagrams_have_lines_for_their_senders_or_headers() {
    let world = World::new(8);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let plain = |n| {
            let (port, driver) = Port::new(net.wire(at(n)), Kind::Plain, Limits::default(), env.clock());
            env.spawn(Box::pin(async move {
                drop(driver.await);
            }));
            port
        };
        let (a, b, c) = (plain(1), plain(2), plain(3));
        let (to_b, to_c) = (a.connect(at(2)).expect("new"), a.connect(at(3)).expect("new"));
        assert!(a.connect(at(2)).is_err(), "there is one");
        assert_eq!((&*to_b.local, &*to_b.remote), ("10.0.0.1!999", "10.0.0.2!999"));
        let announced = b.announce(0).expect("free");
        to_b.stream.write(b"a call").await.expect("written");
        let call = announced.accept().await.expect("a call");
        let mut buf = [0; 100];
        assert!(matches!(call.stream.read(&mut buf).await, Ok(6)));
        call.stream.write(b"yes").await.expect("written");
        assert!(matches!(to_b.stream.read(&mut buf).await, Ok(3)));

        let headers = c.headers().expect("new");
        to_c.stream.write(b"hello").await.expect("written");
        assert!(matches!(headers.stream.read(&mut buf).await, Ok(57)));
        assert_eq!(buf[..16], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 0, 0, 1]);
        assert_eq!(buf[28..32], [10, 0, 0, 3]);
        assert_eq!(buf[48..57], *b"\x03\xe7\x03\xe7hello");
        // Data written with the received headers goes back.
        headers.stream.write(&buf[..57]).await.expect("written");
        assert!(matches!(to_c.stream.read(&mut buf).await, Ok(5)));
    });
}

/// Runs a port until its link is gone.
fn port_that_goes(env: &SimEnv, net: &Datagrams, n: u8) -> (Port, Rc<Cell<bool>>) {
    let (port, mut driver) = Port::new(net.wire(at(n)), Kind::Il, Limits::default(), env.clock());
    let gone = Rc::new(Cell::new(false));
    let asked = gone.clone();
    env.spawn(Box::pin(async move {
        let driver = std::future::poll_fn(|cx| match asked.get() {
            true => std::task::Poll::Ready(Ok(())),
            false => std::pin::Pin::new(&mut driver).poll(cx),
        });
        drop(driver.await);
    }));
    (port, gone)
}

#[test]
fn a_link_that_goes_ends_every_line_for_an_error() {
    let world = World::new(9);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let ((a, gone), b) = (port_that_goes(&env, &net, 1), port(&env, &net, 2, Limits::default()));
        let Pair { ports: [a, _b], here, there, .. } = &Pair::between([a, b]).await;
        let mut buf = [0; 8];
        gone.set(true);
        there.stream.write(b"wakes").await.expect("written");
        let why = here.stream.read(&mut buf).await.expect_err("no good end");
        assert_eq!(why.to_string(), "il: the link has gone");
        assert!(a.dial(at(2), PORT).await.is_err_and(|e| e.to_string() == "the port is closed"));
    });
}

#[test]
fn what_came_before_the_end_is_read_after_it_however_late() {
    for dies in [false, true] {
        let world = World::new(10);
        let env = world.env();
        let net = Datagrams::new(&world, Weather::default());
        world.run(async move {
            let Pair { ports: _ports, _announced, here, there } = Pair::new(&env, &net).await;
            // More than a queue holds, less than the window.
            for n in 0..1000 {
                send(&here, n, 3).await.expect("sent");
            }
            env.sleep_until(env.now() + Duration::from_secs(5)).await;
            if dies {
                net.change(|weather| weather.lost = 1);
            } else {
                drop(here);
            }
            env.sleep_until(env.now() + Duration::from_secs(400)).await;
            let (seen, well) = judge(10, &there, 3).await;
            assert_eq!((seen, well), (1000, !dies));
        });
    }
}

#[test]
fn a_close_for_nothing_is_not_answered() {
    let world = World::new(11);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    let counted = net.clone();
    world.run(async move {
        let _ports = [port(&env, &net, 1, Limits::default()), port(&env, &net, 2, Limits::default())];
        let header = Header { kind: Packet::Close, spec: 0, src: 5000, dst: PORT, id: 7, ack: 9 };
        let packet: Vec<u8> = header.packet(None, true).flat_map(|block| block.data().to_vec()).collect();
        net.send(at(1), at(2), packet);
        env.sleep_until(env.now() + Duration::from_secs(5)).await;
    });
    assert_eq!(counted.sent(), 1);
}

#[test]
fn who_has_finished_and_reads_slowly_gets_all_that_came() {
    let world = World::new(12);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let Pair { ports: _ports, _announced, here, there } = Pair::new(&env, &net).await;
        let task = env.clone();
        env.spawn(Box::pin(async move {
            for n in 0..1000 {
                send(&there, n, 4).await.expect("sent");
            }
            task.sleep_until(task.now() + Duration::from_secs(3)).await;
        }));
        env.sleep_until(env.now() + Duration::from_secs(1)).await;
        here.stream.finish();
        env.sleep_until(env.now() + Duration::from_secs(60)).await;
        assert_eq!(judge(12, &here, 4).await, (1000, true));
    });
}

#[test]
fn what_came_before_a_fault_is_read_though_somebody_writes() {
    let world = World::new(13);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let Pair { ports: _ports, _announced, here, there } = Pair::new(&env, &net).await;
        for n in 0..1000 {
            send(&here, n, 3).await.expect("sent");
        }
        let there = Rc::new(there);
        env.sleep_until(env.now() + Duration::from_secs(5)).await;
        net.change(|weather| weather.lost = 1);
        let writer = there.clone();
        env.spawn(Box::pin(async move { while send(&writer, 7, 4).await.is_ok() {} }));
        env.sleep_until(env.now() + Duration::from_secs(400)).await;
        assert_eq!(judge(13, &there, 3).await, (1000, false));
    });
}

#[test]
fn what_is_sent_after_a_quiet_time_and_lost_is_sent_again_at_once() {
    let world = World::new(14);
    let env = world.env();
    let net = Datagrams::new(&world, Weather::default());
    world.run(async move {
        let Pair { ports: _ports, _announced, here, there } = Pair::new(&env, &net).await;
        env.sleep_until(env.now() + Duration::from_secs(3)).await;
        net.change(|weather| weather.lost = 1);
        send(&here, 1, 3).await.expect("sent");
        env.sleep_until(env.now() + Duration::from_millis(1)).await;
        net.change(|weather| weather.lost = 0);
        let begun = env.now();
        there.stream.read(&mut [0; 2000]).await.expect("it comes");
        let took = env.now() - begun;
        assert!(took < Duration::from_millis(500), "{took:?}");
    });
}
