//! The CEC drivers in a simulated world: machines are discovered, a console is used over a faulty wire, and a card goes
//! away and returns.

use std::rc::Rc;
use std::time::Duration;

use nine_net::Env;
use nine_net::cec::{Call, End, Event, Host, Offer, Password, Setup, call, discover, host};
use nine_sim::ether::{Faults, Plug, Wire, held, mac};
use nine_sim::{SimEnv, World, seeds};

const SECOND: Duration = Duration::from_secs(1);
const SECRET: &str = "open sesame";

/// Serves a console at card 10 that echoes each line twice.
fn serves(env: &SimEnv, wire: &Wire) -> Host {
    let offer = Offer { shelf: 3, name: "fs".into() };
    let setup = Setup { offer, password: Password::new(SECRET).expect("it is one") };
    let (host, driver) =
        host(Plug::new(env, wire, 10), setup, env.clock()).expect("the packets are long enough");
    env.spawn(Box::pin(driver));
    let serving = host.clone();
    env.spawn(Box::pin(async move {
        loop {
            match serving.event().await {
                Event::Line(id, line) if line == "exit" => serving.hang_up(id),
                Event::Line(id, line) => serving.answer(id, &line.repeat(2)),
                _ => {}
            }
        }
    }));
    host
}

fn calls(env: &SimEnv, wire: &Wire) -> Rc<Call> {
    let (call, driver) =
        call(Plug::new(env, wire, 1), mac(10), env.clock()).expect("the packets are long enough");
    env.spawn(Box::pin(async move { drop(driver.await) }));
    Rc::new(call)
}

/// Sends `says`, and reads until the conversation ends.
async fn converse(env: &SimEnv, call: Rc<Call>, says: Vec<u8>) -> (String, End) {
    let (sends, clock) = (call.clone(), env.clone());
    env.spawn(Box::pin(async move {
        let mut rest = &says[..];
        while !rest.is_empty()
            && let Ok(n) = sends.send(rest).await
        {
            rest = &rest[n..];
        }
        // A reset may be lost. Further data triggers another one.
        while sends.sent().await.is_ok() && sends.send(b" ").await.is_ok() {
            clock.sleep_until(clock.now() + SECOND).await;
        }
    }));
    let mut heard = Vec::new();
    loop {
        match call.recv().await {
            Ok(bytes) => heard.extend(bytes),
            Err(end) => return (String::from_utf8(heard).expect("text"), end),
        }
    }
}

#[test]
fn who_is_there_is_found_and_nobody_where_nobody_is() {
    let world = World::new(1);
    let (env, wire) = (world.env(), nine_sim::ether::wire(&world, Faults::default(), 1500));
    world.run(async move {
        let nobody = discover(vec![Plug::new(&env, &wire, 1)], SECOND, |_| false, env.clock()).await;
        assert_eq!(nobody.expect("the card is there"), []);
        let _host = serves(&env, &wire);
        let before = env.now();
        let found = discover(vec![Plug::new(&env, &wire, 1)], SECOND, |_| true, env.clock()).await;
        let found = found.expect("the card is there");
        assert_eq!((found.len(), found[0].mac, found[0].offer.shelf), (1, mac(10), 3));
        assert!(env.now() - before < SECOND / 10, "one that is wanted is not waited for");
    });
}

#[test]
fn a_console_is_asked_over_a_bad_wire() {
    for seed in seeds(20) {
        let world = World::new(seed);
        let faults = Faults { lost: 8, twice: 8, late: 8, ..Faults::default() };
        let (env, wire) = (world.env(), nine_sim::ether::wire(&world, faults, 1500));
        world.run(async move {
            let _host = serves(&env, &wire);
            let lines: Vec<String> = (0..30).map(|n| format!("line {n} {}", "y".repeat(1 + n * 9))).collect();
            let says = format!("{SECRET}\r{}\rexit\r", lines.join("\r"));
            let (heard, end) = converse(&env, calls(&env, &wire), says.into()).await;
            let mut due = String::from("password: ###########\r\nfs> ");
            lines.iter().for_each(|line| due += &format!("{line}\r\n{}\r\nfs> ", line.repeat(2)));
            assert_eq!((heard, end), (due + "exit\r\n", End::Reset), "seed {seed}");
        });
    }
}

#[test]
fn a_card_goes_and_comes_back_and_a_server_that_is_closed_says_so() {
    let world = World::new(1);
    let (env, wire) = (world.env(), nine_sim::ether::wire(&world, Faults::default(), 1500));
    world.run(async move {
        let host = serves(&env, &wire);
        held(&wire).gone = Some(mac(10));
        let call = calls(&env, &wire);
        assert_eq!(call.opened().await, Err(End::Silent));
        held(&wire).gone = None;
        env.sleep_until(env.now() + 3 * SECOND).await;
        let call = calls(&env, &wire);
        assert_eq!(call.opened().await, Ok(()));
        let says = converse(&env, call, format!("{SECRET}\r").into());
        let close = async {
            env.sleep_until(env.now() + 3 * SECOND).await;
            host.close();
        };
        let ((heard, end), ()) = futures_util::future::join(says, close).await;
        assert!(heard.starts_with("password: ###########\r\nfs> ") && end == End::Reset, "{heard:?} {end:?}");
    });
}
