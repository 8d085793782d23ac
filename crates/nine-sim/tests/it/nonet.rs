//! nonet on a faulty Ethernet: packets are lost, repeated, late, corrupt and forged, and processes are slow, give up
//! and exit. Every message arrives once and in order, or both ends learn that the call is over.

use std::cell::{Cell, RefCell};
use std::io::{self, Write};
use std::pin::pin;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use nine_io::client::{Client, Options};
use nine_io::server::{Anonymous, Core, Gate, Service};
use nine_net::Env;
use nine_net::ether;
use nine_net::nonet::{Announced, Call, HELD, Limits, Link, MESSAGE_MAX, Port, port};
use nine_net::rt::block_on;
use nine_proto::{NOGID, NOUID, OpenFlags};
use nine_servers::Ram;
use nine_sim::delay::{DelayBox, Shape, Side};
use nine_sim::ether::{FRAME, Faults, Plug, Wire, held, mac};
use nine_sim::{Rng, SimEnv, World, seeds};
use nine_stream::{Fault, Stream};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const BAD: Faults =
    Faults { lost: 12, twice: 12, late: 12, bent: 12, forged: 0, cut: false, rate: 0, delay: Duration::ZERO };
fn wire(world: &World, faults: Faults) -> Wire {
    nine_sim::ether::wire(world, faults, 1500)
}

fn plug(env: &SimEnv, wire: &Wire, n: u8, limits: Limits) -> Port {
    let (port, driver) = port(Plug::new(env, wire, n), limits, env.clock()).expect("a port");
    env.spawn(Box::pin(async { drop(driver.await) }));
    port
}

/// Returns a message that contains its number.
fn message(n: u32, rng: &mut Rng) -> Vec<u8> {
    let len = match rng.below(4) {
        0 => 0,
        1 => rng.below(100),
        2 => rng.below(5000),
        _ => rng.below(MESSAGE_MAX - 4),
    };
    let mut message = n.to_le_bytes().to_vec();
    message.extend((0..len).map(|at| (at as u32 * 7 + n) as u8));
    message
}

/// Returns the next message. Fails if the call did not end in an orderly way.
async fn next(stream: &Stream) -> Result<Option<Vec<u8>>, Fault> {
    let Some(block) = stream.read_block().await? else { return Ok(None) };
    assert!(block.delim, "a message is one block");
    Ok(Some(block.data().to_vec()))
}

async fn write_all(call: &Call, count: u32, rng: &mut Rng) -> Result<(), Fault> {
    for n in 0..count {
        call.stream().write(&message(n, rng)).await?;
    }
    Ok(())
}

/// Reads to the end. Every message must be the written one. Returns their number.
async fn read_all(
    env: &SimEnv,
    call: &Call,
    slow: usize,
    mut rng: Rng,
    mut expected: Rng,
) -> (u32, Option<Fault>) {
    let mut n = 0;
    loop {
        if slow > 0 && rng.one_in(slow) {
            env.sleep_until(env.now() + Duration::from_millis(rng.below(3000) as u64)).await;
        }
        match next(call.stream()).await {
            Ok(Some(came)) => assert!(came == message(n, &mut expected), "message {n} is another one"),
            Ok(None) => return (n, None),
            Err(fault) => return (n, Some(fault)),
        }
        n += 1;
    }
}

async fn within<T>(env: &SimEnv, limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    match select(pin!(future), env.sleep_until(env.now() + limit)).await {
        Either::Left((value, _)) => Some(value),
        Either::Right(_) => None,
    }
}

/// Sends `count` messages in both directions at once, until both ends have read the other's end.
fn talk(
    seed: u64,
    faults: Faults,
    slow: usize,
    count: u32,
    cut: Option<Duration>,
) -> [(u32, Option<Fault>); 2] {
    let world = World::new(seed);
    let (env, wire) = (world.env(), wire(&world, Faults { lost: 0, bent: 0, ..faults }));
    world.run(async move {
        let mut rng = Rng::new(seed);
        let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
        let mut service = callee.announce("talk").expect("free");
        let (call, answer) =
            futures_util::future::join(caller.dial(mac(2), "talk", "glenda"), service.accept()).await;
        let ends = [Rc::new(call.expect("answered")), Rc::new(answer.expect("called"))];
        assert_eq!((ends[1].user(), ends[1].address()), ("glenda", mac(1)));
        held(&wire).faults = faults;
        let seeds = [rng.fork(), rng.fork()];
        for (end, seed) in ends.iter().zip(&seeds) {
            let (end, mut seed) = (end.clone(), seed.clone());
            env.spawn(Box::pin(async move {
                // The reader gets the same error.
                let _ = write_all(&end, count, &mut seed).await;
                end.stream().finish();
            }));
        }
        if let Some(cut) = cut {
            let (env2, wire) = (env.clone(), wire.clone());
            env.spawn(Box::pin(async move {
                env2.sleep_until(cut).await;
                held(&wire).faults.cut = true;
            }));
        }
        // Each in its own task, so that only its own wake-ups poll it.
        let came = Rc::new(RefCell::new([None, None]));
        for n in [0, 1] {
            let (env2, end, came) = (env.clone(), ends[n].clone(), came.clone());
            let (rng, expected) = (rng.fork(), seeds[1 - n].clone());
            env.spawn(Box::pin(async move {
                let read = read_all(&env2, &end, slow, rng, expected).await;
                came.borrow_mut()[n] = Some(read);
            }));
        }
        while came.borrow().iter().any(Option::is_none) {
            assert!(env.now() < 3600 * SECOND, "it does not end");
            env.sleep_until(env.now() + SECOND).await;
        }
        drop(ends);
        let gone = async {
            while !(caller.status() + &callee.status()).is_empty() {
                env.sleep_until(env.now() + SECOND).await;
            }
        };
        within(&env, 60 * SECOND, gone).await.expect("both ports forget the call");
        came.take().map(|end| end.expect("both have ended"))
    })
}

#[test]
fn every_message_comes_once_and_in_order_whatever_the_wire_does() {
    for seed in seeds(20) {
        // The last data of one end may be behind the hang-up of the other. Only the direction that ends first is
        // checked completely.
        let came = talk(seed, BAD, 0, 60, None);
        assert!(came.contains(&(60, None)), "seed {seed}: {came:?}");
    }
}

#[test]
fn each_fault_alone_is_mended_too() {
    let none = Faults::default();
    for (n, faults) in [
        none,
        Faults { lost: 3, ..none },
        Faults { twice: 2, ..none },
        Faults { late: 2, ..none },
        Faults { bent: 3, ..none },
    ]
    .into_iter()
    .enumerate()
    {
        for seed in seeds(3) {
            let came = talk(seed, faults, 0, 40, None);
            assert!(came.contains(&(40, None)), "fault {n}, seed {seed}: {came:?}");
        }
    }
}

#[test]
fn a_reader_that_stops_and_starts_loses_nothing() {
    for seed in seeds(6) {
        for faults in [Faults::default(), BAD] {
            let came = talk(seed, faults, 4, 60, None);
            assert!(came.contains(&(60, None)), "seed {seed}: {came:?}");
        }
    }
}

#[test]
fn a_wire_that_is_cut_ends_both_ends_in_time() {
    for seed in seeds(12) {
        let cut = Duration::from_millis(1 + seed % 4);
        for (n, fault) in talk(seed, Faults::default(), 0, 5000, Some(cut)) {
            let fault = fault.unwrap_or_else(|| panic!("seed {seed}: a good end after {n}")).to_string();
            assert!(n < 5000 && fault.contains("says nothing"), "{fault}");
        }
    }
}

#[test]
#[should_panic(expected = "is another one")]
fn a_canary_that_changes_a_message_is_caught() {
    for seed in 0..20 {
        talk(seed, Faults { forged: 50, ..Faults::default() }, 0, 60, None);
    }
}

/// Returns how long `len` bytes take over a wire, and how many bytes the sender's card has sent.
fn transfer(seed: u64, faults: Faults, len: usize) -> (Duration, usize) {
    let world = World::new(seed);
    let (env, wire) = (world.env(), wire(&world, faults));
    world.run(async move {
        let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
        let mut service = callee.announce("s").expect("free");
        let (call, answer) =
            futures_util::future::join(caller.dial(mac(2), "s", "u"), service.accept()).await;
        let [call, answer] = [call.expect("answered"), answer.expect("called")];
        let (begun, before) = (env.now(), held(&wire).sent(mac(1)));
        let writes = async {
            for _ in 0..len >> 16 {
                // As a transport writes.
                call.stream().write(&[7; 64 << 10]).await.expect("written");
            }
        };
        let reads = async {
            let mut left = len;
            while left > 0 {
                left -= next(answer.stream()).await.expect("no fault").expect("more").len();
            }
        };
        futures_util::future::join(writes, reads).await;
        (env.now() - begun, held(&wire).sent(mac(1)) - before)
    })
}

#[test]
fn what_is_only_late_is_not_sent_again() {
    let len: usize = 3 << 20;
    let needed = (len + len.div_ceil(1490) * (10 + FRAME)) as f64;
    // 2.6, 10 and 100 Mbit/s and 1 Gbit/s. On fast links 3 MiB are short, so the start matters.
    for (rate, delay, lost, most_time, most_bytes) in [
        (325_000, 50, 0, 1.05, 1.02),
        (1_250_000, 50, 0, 1.05, 1.02),
        (12_500_000, 950, 0, 1.05, 1.02),
        (125_000_000, 950, 0, 1.4, 1.02),
        (325_000, 50, 100, 1.5, 1.5),
        (1_250_000, 50, 100, 1.5, 1.5),
        (12_500_000, 950, 100, 1.6, 1.5),
    ] {
        let faults = Faults { rate, lost, delay: Duration::from_micros(delay), ..Faults::default() };
        for seed in seeds(if lost > 0 { 5 } else { 1 }) {
            let (took, sent) = transfer(seed, faults, len);
            let (time, bytes) = (took.as_secs_f64() * rate as f64 / needed, sent as f64 / needed);
            let said = format!(
                "{rate} B/s, 1 in {lost} lost, seed {seed}: {time:.2} of the time, {bytes:.2} of the bytes"
            );
            assert!(time <= most_time && bytes <= most_bytes, "{said}");
        }
    }
}

/// Echoes every message.
fn echo(env: &SimEnv, mut service: Announced) {
    let spawner = env.clone();
    env.spawn(Box::pin(async move {
        while let Ok(call) = service.accept().await {
            spawner.spawn(Box::pin(async move {
                while let Ok(Some(came)) = next(call.stream()).await {
                    if call.stream().write(&came).await.is_err() {
                        return;
                    }
                }
            }));
        }
    }));
}

#[test]
fn many_calls_at_once_do_not_touch_each_other() {
    for seed in seeds(4) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, BAD));
        world.run(async move {
            let mut rng = Rng::new(seed);
            let ports: Vec<_> = (0..3).map(|n| plug(&env, &wire, n, Limits::default())).collect();
            ports.iter().for_each(|port| echo(&env, port.announce("echo").expect("free")));
            let done = Rc::new(Cell::new(0));
            for n in 0..60 {
                let (port, mut rng, done) = (ports[n % 3].clone(), rng.fork(), done.clone());
                env.spawn(Box::pin(async move {
                    // Also calls to itself.
                    let call = port.dial(mac((n / 3 % 3) as u8), "echo", "u").await.expect("answered");
                    for n in 0..10 {
                        let sent = message(n, &mut rng);
                        call.stream().write(&sent).await.expect("written");
                        assert!(next(call.stream()).await.expect("no fault").expect("an answer") == sent);
                    }
                    done.set(done.get() + 1);
                }));
            }
            let all = async {
                while done.get() < 60 || ports.iter().any(|port| !port.status().is_empty()) {
                    env.sleep_until(env.now() + MS).await;
                }
            };
            within(&env, 600 * SECOND, all).await.expect("all calls end");
        });
    }
}

#[test]
fn a_full_queue_of_calls_lets_nobody_in_and_nobody_out() {
    let world = World::new(1);
    let (env, wire) = (world.env(), wire(&world, Faults::default()));
    world.run(async move {
        let callee = plug(&env, &wire, 2, Limits { waiting: 2, ..Limits::default() });
        let caller = plug(&env, &wire, 1, Limits { calls: 6, ..Limits::default() });
        let mut service = callee.announce("s").expect("free");
        assert!(callee.announce("s").is_err());
        let answered = Rc::new(RefCell::new(Vec::new()));
        for n in 0..6 {
            let (caller, answered) = (caller.clone(), answered.clone());
            env.spawn(Box::pin(async move {
                let call = caller.dial(mac(2), "s", &format!("u{n}")).await.expect("in the end");
                answered.borrow_mut().push(call);
            }));
        }
        env.sleep_until(2 * SECOND).await;
        assert!(answered.borrow().is_empty() && callee.status().is_empty());
        let seventh = caller.dial(mac(2), "s", "u").await.err().expect("six calls are the limit");
        assert!(seventh.to_string().contains("6 calls"), "{seventh}");
        let mut users = Vec::new();
        for _ in 0..6 {
            let call = within(&env, SECOND, service.accept()).await.expect("it asks again").expect("a call");
            users.push(call.user().to_owned());
            env.sleep_until(env.now() + MS).await;
        }
        users.sort();
        assert_eq!(users, ["u0", "u1", "u2", "u3", "u4", "u5"]);
        env.sleep_until(env.now() + SECOND).await;
        assert_eq!(answered.borrow().len(), 6);
    });
}

#[test]
fn an_idle_call_stays_up_for_hours_and_ends_soon_when_the_other_end_dies() {
    for seed in seeds(2) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, Faults { lost: 3, ..BAD }));
        world.run(async move {
            let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            let mut service = callee.announce("s").expect("free");
            let (call, answer) =
                futures_util::future::join(caller.dial(mac(2), "s", "u"), service.accept()).await;
            let [call, answer] = [call.expect("answered"), answer.expect("called")];
            env.sleep_until(5 * 3600 * SECOND).await;
            call.stream().write(b"still here").await.expect("written");
            assert_eq!(next(answer.stream()).await, Ok(Some(b"still here".to_vec())));
            env.sleep_until(env.now() + SECOND).await;
            held(&wire).faults.cut = true;
            for end in [call, answer] {
                let read = within(&env, 60 * SECOND, next(end.stream())).await.expect("it ends");
                let why = read.expect_err("nobody is there").to_string();
                assert!(why.contains("says nothing"), "{why}");
            }
            assert_eq!(caller.status() + &callee.status(), "");
        });
    }
}

#[test]
fn who_gave_up_unheard_does_not_wait_to_be_accepted() {
    let world = World::new(1);
    let (env, wire) = (world.env(), wire(&world, Faults::default()));
    world.run(async move {
        let callee = plug(&env, &wire, 2, Limits { waiting: 2, ..Limits::default() });
        let caller = plug(&env, &wire, 1, Limits::default());
        let mut service = callee.announce("s").expect("free");
        for user in ["a", "b"] {
            assert!(within(&env, SECOND, caller.dial(mac(2), "s", user)).await.is_none());
            // The hang-up is lost.
            held(&wire).faults.cut = true;
            env.sleep_until(env.now() + MS).await;
            held(&wire).faults.cut = false;
        }
        env.sleep_until(env.now() + 25 * SECOND).await;
        let (call, answer) =
            futures_util::future::join(caller.dial(mac(2), "s", "d"), service.accept()).await;
        assert_eq!((answer.expect("called").user(), call.is_ok()), ("d", true));
    });
}

#[test]
fn who_is_not_there_is_told_apart_from_who_refuses() {
    let world = World::new(1);
    let (env, wire) = (world.env(), wire(&world, Faults::default()));
    world.run(async move {
        let [caller, _callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
        let refused = within(&env, MS, caller.dial(mac(2), "none", "u")).await.expect("at once");
        assert!(refused.err().expect("no such service").to_string().contains("refused"));
        let silent = within(&env, 26 * SECOND, caller.dial(mac(9), "none", "u")).await.expect("25 s");
        assert!(silent.err().expect("nobody is there").to_string().contains("nobody answers"));
        for name in ["", "two words", "far-too-long-a-name-for-a-service"] {
            assert!(caller.dial(mac(2), name, "u").await.is_err() && caller.announce(name).is_err());
        }
        env.sleep_until(env.now() + SECOND).await;
        assert_eq!(caller.status(), "");
    });
}

#[test]
fn whoever_gives_up_at_any_moment_leaves_nothing_behind() {
    for seed in seeds(150) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, if seed % 2 == 0 { BAD } else { Faults::default() }));
        world.run(async move {
            let mut rng = Rng::new(seed);
            let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            let mut service = callee.announce("s").expect("free");
            let mut moment = |most: usize| Duration::from_micros(rng.below(most) as u64);
            let (patience, accepts, lives, stays) = (moment(3000), moment(2000), moment(9000), moment(9000));
            let server = {
                let env2 = env.clone();
                async move {
                    env2.sleep_until(accepts).await;
                    let Some(Ok(call)) = within(&env2, SECOND, service.accept()).await else { return };
                    let mut seed = Rng::new(seed);
                    within(&env2, stays, write_all(&call, 20, &mut seed)).await;
                    drop(call);
                }
            };
            env.spawn(Box::pin(server));
            if let Some(Ok(call)) = within(&env, patience, caller.dial(mac(2), "s", "u")).await {
                let mut seed = Rng::new(seed);
                within(&env, lives, write_all(&call, 20, &mut seed)).await;
            }
            let gone = async {
                while !(caller.status() + &callee.status()).is_empty() {
                    env.sleep_until(env.now() + SECOND).await;
                }
            };
            within(&env, 120 * SECOND, gone).await.unwrap_or_else(|| {
                panic!("seed {seed}: left behind: {} and {}", caller.status(), callee.status())
            });
        });
    }
}

/// An attacker on the wire: packets with forged senders and valid checksums.
async fn attack(env: SimEnv, wire: Wire, mut rng: Rng, circuits: Vec<u32>, stop: Rc<Cell<bool>>) {
    while !stop.get() {
        for _ in 0..20 {
            let (from, to) = if rng.one_in(2) { (1, 2) } else { (2, 1) };
            let circuit = match circuits.is_empty() {
                true => rng.bits() as u32,
                false => circuits[rng.below(circuits.len())] ^ (rng.bits() as u32 & 1),
            };
            let mut packet = circuit.to_le_bytes()[..3].to_vec();
            packet.extend((0..7).map(|_| rng.bits() as u8));
            // No checksum is required.
            packet[8..10].fill(0);
            // A hang-up would end the call at once.
            packet[3] &= if circuits.is_empty() { 0xff } else { 0b1101 };
            packet.extend((0..rng.below(1490)).map(|n| n as u8));
            held(&wire).carry(env.now(), mac(from), mac(to), &packet);
        }
        env.sleep_until(env.now() + MS).await;
    }
}

#[test]
fn who_does_not_know_the_circuit_changes_nothing() {
    for seed in seeds(5) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, Faults::default()));
        world.run(async move {
            let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            echo(&env, callee.announce("echo").expect("free"));
            let stop = Rc::new(Cell::new(false));
            let attack = attack(env.clone(), wire.clone(), Rng::new(seed), Vec::new(), stop.clone());
            env.spawn(Box::pin(attack));
            let mut rng = Rng::new(seed);
            let call = caller.dial(mac(2), "echo", "u").await.expect("answered");
            for n in 0..100 {
                let sent = message(n, &mut rng);
                call.stream().write(&sent).await.expect("written");
                assert!(next(call.stream()).await.expect("no fault").expect("an answer") == sent);
            }
            stop.set(true);
        });
    }
}

#[test]
fn who_knows_the_circuit_can_spoil_the_call_and_no_more() {
    for seed in seeds(10) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, Faults::default()));
        world.run(async move {
            let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            echo(&env, callee.announce("echo").expect("free"));
            let call = caller.dial(mac(2), "echo", "u").await.expect("answered");
            let circuit = caller.status().split(' ').nth(1).expect("a circuit").parse().expect("a number");
            let stop = Rc::new(Cell::new(false));
            let attack = attack(env.clone(), wire.clone(), Rng::new(seed), vec![circuit], stop.clone());
            env.spawn(Box::pin(attack));
            let mut rng = Rng::new(seed);
            let talk = write_all(&call, 100, &mut rng);
            within(&env, 20 * SECOND, talk).await;
            for line in (caller.status() + &callee.status()).lines() {
                let held = line.split(' ').skip_while(|word| *word != "held").nth(1).expect("said");
                let held: usize = held.parse().expect("a number");
                assert!(held <= HELD + MESSAGE_MAX + 128, "{line}");
            }
            stop.set(true);
            // Another call is not affected, and the spoiled one ends.
            let other = caller.dial(mac(2), "echo", "u").await.expect("answered");
            other.stream().write(b"well").await.expect("written");
            assert_eq!(next(other.stream()).await.expect("no fault").expect("an answer"), b"well");
            drop((call, other));
            let gone = async {
                while !(caller.status() + &callee.status()).is_empty() {
                    env.sleep_until(env.now() + SECOND).await;
                }
            };
            within(&env, 120 * SECOND, gone).await.unwrap_or_else(|| {
                panic!("seed {seed}: left behind: {} and {}", caller.status(), callee.status())
            });
        });
    }
}

/// Runs a file server behind a service with a client of it, which must read what it wrote.
async fn nine(env: &impl Env, near: &Port, far: &Port, service: &str) {
    let mut announced = far.announce(service).expect("free");
    let (call, answer) =
        futures_util::future::join(near.dial(far.address(), service, "glenda"), announced.accept()).await;
    let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
    let server = Service::new(Arc::new(Ram::new(16 << 20)), gate, Core::default());
    env.spawn(Box::pin(server.connect(Box::new(answer.expect("called")))));
    let (client, driver) =
        Client::connect(call.expect("answered"), Options::default()).await.expect("connected");
    env.spawn(Box::pin(async { drop(driver.await) }));
    let root = client.attach("u", NOUID, "").await.expect("attached");
    let file = root.create("file", OpenFlags::RDWR, 0o644, NOGID).await.expect("created");
    let data: Vec<u8> = (0..3 << 20).map(|n: u32| (n / 251 + n) as u8).collect();
    file.write_all_at(0, &data).await.expect("written");
    let mut seen = vec![0; data.len()];
    assert_eq!(file.read_at(0, &mut seen).await.expect("read"), data.len());
    assert!(seen == data);
}

#[test]
fn nine_p_runs_over_it() {
    for seed in seeds(4) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, Faults { late: 40, lost: 40, bent: 40, ..BAD }));
        world.run(async move {
            let [near, far] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            nine(&env, &near, &far, "9fs").await;
        });
    }
}

/// Creates two kernel network cards joined by a cable. If this host cannot create them, reports that and returns
/// `None`.
fn cable() -> Option<DelayBox> {
    let made = DelayBox::new(Shape::default()).and_then(|made| {
        for words in ["link add e0 type veth peer name e1", "link set e0 up", "link set e1 up"] {
            let mut ip = Command::new("ip");
            made.command(Side::Here, ip.args(words.split(' ')))?;
            let done = ip.output()?;
            if !done.status.success() {
                let why = format!("ip {words}: {}", String::from_utf8_lossy(&done.stderr).trim());
                return Err(io::Error::new(io::ErrorKind::Unsupported, why));
            }
        }
        Ok(made)
    });
    match made {
        Ok(made) => Some(made),
        Err(error) => {
            use io::ErrorKind::{NotFound, PermissionDenied, Unsupported};
            assert!(matches!(error.kind(), NotFound | PermissionDenied | Unsupported), "{error}");
            let said = format!("NOT COVERED: nonet on a real Ethernet: {error}\n");
            io::stderr().write_all(said.as_bytes()).expect("a standard error");
            None
        }
    }
}

#[test]
fn it_runs_on_a_real_ethernet() {
    let Some(cable) = cable() else { return };
    let inside = || {
        block_on(async |real| {
            let plug = |name| {
                let card = ether::Ether::open(name, ether::ETHER_TYPE).expect("opened");
                assert_eq!(card.mtu(), 1500);
                let (port, driver) = port(card, Limits::default(), real.clock()).expect("a port");
                real.spawn(Box::pin(async { driver.await.expect("no error of the card") }));
                port
            };
            let [near, far] = ["e0", "e1"].map(plug);
            assert!(near.address() != far.address());
            nine(&real, &near, &far, "9fs").await;
            let refused = near.dial(far.address(), "none", "u").await.err().expect("refused");
            assert!(refused.to_string().contains("refused"));
            for (name, kind) in [("lo", io::ErrorKind::InvalidInput), ("e9", io::ErrorKind::NotFound)] {
                let error = ether::Ether::open(name, ether::ETHER_TYPE).expect_err(name);
                assert!(error.kind() == kind && error.to_string().contains(name), "{error}");
            }
        })
        .expect("a runtime");
    };
    cable.run(Side::Here, inside).expect("inside");
}

#[test]
fn an_interface_that_is_taken_away_is_told_to_everybody() {
    let Some(cable) = cable() else { return };
    let ip = |words: &str| {
        let done = Command::new("ip").args(words.split(' ')).status().expect("it runs");
        assert!(done.success(), "ip {words}");
    };
    let inside = || {
        block_on(async |real| {
            let plug = |name| {
                let card = ether::Ether::open(name, ether::ETHER_TYPE).expect("opened");
                let (port, driver) = port(card, Limits::default(), real.clock()).expect("a port");
                real.spawn(Box::pin(async { drop(driver.await) }));
                port
            };
            let [near, far] = ["e0", "e1"].map(plug);
            let mut service = far.announce("s").expect("free");
            let dial = near.dial(far.address(), "s", "u");
            let (call, answer) = futures_util::future::join(dial, service.accept()).await;
            let [call, answer] = [call.expect("answered"), answer.expect("called")];
            // The cable is down for a moment, and packets are lost.
            ip("link set e0 down");
            call.stream().write(b"across").await.expect("written");
            ip("link set e0 up");
            assert_eq!(next(answer.stream()).await, Ok(Some(b"across".to_vec())));
            // Nothing is sent on the far card. It goes down before it is removed, and no socket is notified of that.
            ip("link set e1 down");
            drop(answer);
            let waits = async {
                ip("link delete e0");
                service.accept().await.err()
            };
            for why in [waits.await, next(call.stream()).await.err(), near.announce("s").err()] {
                let why = why.map_or_else(String::new, |why| why.to_string());
                assert!(why.contains("the interface has gone"), "{why}");
            }
        })
        .expect("a runtime");
    };
    cable.run(Side::Here, inside).expect("inside");
}

#[test]
fn a_link_that_fails_for_a_moment_has_lost_packets_and_one_that_fails_for_long_has_gone() {
    use io::ErrorKind::{NotConnected, PermissionDenied};
    for kind in [PermissionDenied, NotConnected] {
        let world = World::new(1);
        let (env, wire) = (world.env(), wire(&world, Faults::default()));
        world.run(async move {
            let [caller, callee] = [1, 2].map(|n| plug(&env, &wire, n, Limits::default()));
            echo(&env, callee.announce("echo").expect("free"));
            let mut calls = Vec::new();
            for _ in 0..5 {
                calls.push(caller.dial(mac(2), "echo", "u").await.expect("answered"));
            }
            let mut service = caller.announce("other").expect("free");
            if kind == PermissionDenied {
                held(&wire).refuses = Some(kind);
                for call in &calls {
                    call.stream().write(b"across").await.expect("written");
                }
                env.sleep_until(env.now() + 5 * SECOND).await;
                held(&wire).refuses = None;
                for call in &calls {
                    assert_eq!(next(call.stream()).await, Ok(Some(b"across".to_vec())));
                }
            }
            held(&wire).refuses = Some(kind);
            for call in &calls {
                call.stream().write(b"never").await.expect("written");
            }
            for call in &calls {
                let read = within(&env, 20 * SECOND, next(call.stream())).await.expect("it ends");
                let why = read.expect_err("the card").to_string();
                assert!(why.contains("the card has melted"), "{why}");
            }
            for why in [service.accept().await.err(), caller.dial(mac(2), "echo", "u").await.err()] {
                assert!(why.expect("the card").to_string().contains("the card has melted"));
            }
        });
    }
}

#[test]
fn a_link_that_goes_is_told_to_everybody() {
    let world = World::new(1);
    let (env, wire) = (world.env(), wire(&world, Faults::default()));
    world.run(async move {
        let callee = plug(&env, &wire, 2, Limits::default());
        echo(&env, callee.announce("echo").expect("free"));
        let (caller, driver) =
            port(Plug::new(&env, &wire, 1), Limits::default(), env.clock()).expect("a port");
        let mut driver = Some(Box::pin(driver));
        let (dial, drives) = (pin!(caller.dial(mac(2), "echo", "u")), driver.as_mut().expect("there"));
        let call = match select(dial, drives).await {
            Either::Left((call, _)) => call.expect("answered"),
            Either::Right(_) => panic!("the driver has ended"),
        };
        let mut service = caller.announce("other").expect("free");
        drop(driver.take());
        for why in [
            next(call.stream()).await.err(),
            service.accept().await.err(),
            caller.dial(mac(2), "echo", "u").await.err(),
        ] {
            assert!(why.expect("it has gone").to_string().contains("the link has gone"));
        }
    });
}
