//! The AoE drivers in a simulated world: targets are discovered, a disk works as a device, and no operation is left
//! waiting when a driver, a card or a disk goes away.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_aoe::driver::{Disk, DiskDriver, ExportDriver, discover, disk, export};
use nine_aoe::frame::{Address, Reserve, command, config, error};
use nine_aoe::initiator::{Event, State};
use nine_aoe::target::Setup;
use nine_block::{Device, Kind, Ram};
use nine_net::Env;
use nine_sim::ether::{Faults, Plug, Wire, held, mac};
use nine_sim::{SimEnv, World, seeds};

const DISK: Address = Address { shelf: 1, slot: 0 };
const SECOND: Duration = Duration::from_secs(1);

fn wire(world: &World, lost: usize) -> Wire {
    nine_sim::ether::wire(world, Faults { lost, late: lost, ..Faults::default() }, 9000)
}

fn serves(env: &SimEnv, wire: &Wire, cards: &[u8], setup: Setup) -> ExportDriver<Plug> {
    let links = cards.iter().map(|n| Plug::new(env, wire, *n)).collect();
    export(links, setup, Arc::new(Ram::new(10_000))).1
}

fn opens(env: &SimEnv, wire: &Wire, cards: &[u8], patience: Duration) -> (Disk, DiskDriver<Plug>) {
    disk(cards.iter().map(|n| Plug::new(env, wire, *n)).collect(), DISK, patience, env.clock())
}

fn setup() -> Setup {
    Setup { config: b"lun0".to_vec(), ..Setup::new(DISK, "serial") }
}

#[test]
fn who_is_there_is_found_by_address_and_by_config_string() {
    let world = World::new(1);
    let (env, wire) = (world.env(), wire(&world, 0));
    world.run(async move {
        env.spawn(Box::pin({
            let driver = serves(&env, &wire, &[10, 11], setup());
            async move { drop(driver.await) }
        }));
        for (whom, test, n) in [
            (Address::ALL, (config::READ, &b""[..]), 2),
            (DISK, (config::BEGINS, b"lun"), 2),
            (DISK, (config::IS, b"lun"), 0),
            (Address { shelf: 2, slot: 0 }, (config::READ, b""), 0),
        ] {
            let found = discover(vec![Plug::new(&env, &wire, 1)], whom, test, SECOND, env.clock()).await;
            let found = found.expect("the card is there");
            assert_eq!(found.len(), n, "{found:?}");
            assert!(
                found.iter().all(|one| one.address == DISK && one.config == b"lun0" && one.sectors == 17)
            );
        }
    });
}

#[test]
fn a_disk_far_away_is_a_device() {
    for seed in seeds(20) {
        let world = World::new(seed);
        let (env, wire) = (world.env(), wire(&world, 20));
        world.run(async move {
            let driver = serves(&env, &wire, &[10, 11], setup());
            env.spawn(Box::pin(async move { drop(driver.await) }));
            let (far, driver) = opens(&env, &wire, &[1, 2], 10 * SECOND);
            env.spawn(Box::pin(async move { driver.await.expect("it ends when nobody needs it") }));
            let far = Rc::new(far);
            // Operations before the target is found wait.
            let device: &dyn Device = &*far;
            let data: Vec<u8> = (0..512 * 300).map(|at: usize| (at / 512 + at) as u8).collect();
            device.write(100, data.clone().into()).await.expect("written");
            assert!(matches!(far.event().await, Event::Up(_) | Event::PathUp(..) | Event::Started));
            let reads = (0..30).map(|n| device.read(100 + n * 10, 10));
            let reads = futures_util::future::join_all(reads).await;
            let read: Vec<u8> = reads.into_iter().flat_map(|read| read.expect("read")).collect();
            assert!(read == data, "seed {seed}");
            device.flush().await.expect("flushed");
            device.look().await.expect("looked");
            let shape = device.shape();
            assert_eq!((shape.sectors, shape.durable), (10_000, false));
            assert_eq!(device.read(9_999, 2).await.expect_err("not there").kind, Kind::Range);
            assert_eq!(device.discard(0, 1).await.expect_err("not there").kind, Kind::Unsupported);
            let body = |what| Reserve { what, macs: vec![mac(77)] }.bytes();
            assert_eq!(far.ask(command::RESERVE, body(2)).await.expect("answered").0, None);
            assert_eq!(far.ask(command::RESERVE, body(1)).await.expect("answered").0, Some(error::RESERVED));
            assert_eq!(device.read(0, 1).await.expect_err("reserved").kind, Kind::Reserved);
        });
    }
}

#[test]
fn a_disk_over_ethernet_keeps_the_rules_of_a_device() {
    let world = World::new(5);
    let (env, wire) = (world.env(), wire(&world, 20));
    world.run(async move {
        let driver = serves(&env, &wire, &[10], setup());
        env.spawn(Box::pin(async move { drop(driver.await) }));
        let (far, driver) = opens(&env, &wire, &[1], 10 * SECOND);
        env.spawn(Box::pin(async move { driver.await.expect("it ends when nobody needs it") }));
        let device: &dyn Device = &far;
        // The size is known from the first answer on.
        device.look().await.expect("it is there");
        assert_eq!(nine_block::conform::check(device, 96).await, Ok(()));
    });
}

#[test]
fn whoever_goes_leaves_nobody_waiting() {
    let world = World::new(2);
    let (env, wire) = (world.env(), wire(&world, 0));
    world.run(async move {
        // The driver is dropped.
        let (far, driver) = opens(&env, &wire, &[1], 10 * SECOND);
        let read = (&far as &dyn Device).read(0, 1);
        drop(driver);
        assert_eq!(read.await.expect_err("over").kind, Kind::Down);
        let read = (&far as &dyn Device).read(0, 1);
        assert_eq!(read.await.expect_err("over").kind, Kind::Down);
        // The card goes away.
        let (far, driver) = opens(&env, &wire, &[2], 10 * SECOND);
        let read = (&far as &dyn Device).read(0, 1);
        held(&wire).gone = Some(mac(2));
        let why = driver.await.expect_err("the card has gone");
        assert_eq!(why.kind(), io::ErrorKind::NotConnected);
        assert_eq!(read.await.expect_err("over").kind, Kind::Down);
        assert_eq!(far.state(), State::Down);
        // The disk is dropped.
        let (far, driver) = opens(&env, &wire, &[3], 10 * SECOND);
        let write = (&far as &dyn Device).write(0, Bytes::from_static(&[1; 512]));
        drop(far);
        driver.await.expect("nobody needs it");
        assert_eq!(write.await.expect_err("over").kind, Kind::Down);
    });
}

#[test]
fn a_card_that_goes_and_comes_back_carries_its_part_again() {
    let world = World::new(3);
    let (env, wire) = (world.env(), wire(&world, 0));
    world.run(async move {
        let driver = serves(&env, &wire, &[10], setup());
        env.spawn(Box::pin(async move { drop(driver.await) }));
        let (far, driver) = opens(&env, &wire, &[1, 2], 10 * SECOND);
        env.spawn(Box::pin(async move { driver.await.expect("it ends when nobody needs it") }));
        let device: &dyn Device = &far;
        let up = || device.status().lines().filter(|line| line.contains(" up sectors 17 ")).count();
        // Reads for this long. All reads must succeed.
        let reads = async |time: Duration| {
            let end = env.now() + time;
            while env.now() < end {
                device.read(0, 40).await.expect("one way is there");
                env.sleep_until(env.now() + SECOND / 50).await;
            }
        };
        reads(SECOND).await;
        assert_eq!(up(), 2, "{}", device.status());
        held(&wire).gone = Some(mac(1));
        held(&wire).out.push(mac(1));
        reads(3 * SECOND).await;
        assert_eq!(up(), 1, "{}", device.status());
        held(&wire).gone = None;
        held(&wire).out.clear();
        reads(5 * SECOND).await;
        assert_eq!(up(), 2, "{}", device.status());
    });
}
