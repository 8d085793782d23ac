//! No space: a worm that is full and grows, a full cache before one or without one, and devices without free storage
//! below, as sparse files on a disk that fills up.
//!
//! In: a seed. Out: violations. A client without space gets an error, and loses nothing. Removals work. When w has
//! space again, everything reaches it, and clients can write again.

use std::rc::Rc;
use std::time::Duration;

use nine_fs::Archive;
use nine_io::client::File;
use nine_net::Env;
use nine_proto::Errno;
use nine_sim::{Rng, World, seeds};

use crate::archive::client::{Allowed, Worker};
use crate::archive::cuts::{Says, comes_to_worm};
use crate::archive::oracle::Oracle;
use crate::archive::world::{Running, Site, Worm, reads_dumps};

/// Number of worlds in a usual run.
const WORLDS: u64 = 8;
/// Size of w in sectors after it has grown.
const GROWN: u64 = 64 << 11;
/// A failed copy is retried after at most this time.
const AGAIN: Duration = Duration::from_secs(11);

async fn judges(running: &Running, oracle: &Oracle) {
    let tree = running.tree().await.expect("it is read");
    oracle.judge(&tree, &running.archive.dumps()).unwrap_or_else(|wrong| panic!("{wrong}"));
    reads_dumps(&running.dump, oracle, |_| true, |error| panic!("a dump is not read: {error:?}")).await;
}

async fn dumps(running: &Running, oracle: &Oracle) {
    let begun = oracle.tick();
    let dumped = running.archive.dump().await.expect("a dump is made");
    oracle.dumped(begun, dumped);
}

fn goes(seed: u64) {
    let _says = Says(seed, "full");
    let world = World::new(seed);
    let (env, mut rng) = (world.env(), world.rng());
    world.run(async move {
        let worm = [Worm::Plain, Worm::InPlace, Worm::Once][rng.below(3)];
        let in_place = worm == Worm::InPlace;
        let mut site = Site::new(&env, &mut rng, worm, 8, if in_place { 8 } else { 2 });
        site.pace.set(50);
        let oracle = Rc::new(Oracle::new());
        let (c, w) = site.devices().await.expect("they are there");
        Archive::ream(c, w, &site.ream, &site.settings).await.expect("it is made");
        let running = site.opens(&mut rng).await.expect("it is opened");
        let tree = running.tree().await.expect("it is read");
        oracle.judge(&tree, &running.archive.dumps()).expect("it is right");
        let root = running.main.walk("").await.expect("it is there");
        let mut worker = worker(root, &oracle, &mut rng);

        // w accepts no more data, but c still does.
        let mut is_full = false;
        for _ in 0..100 {
            if worker.fills(4).await.expect("it is done, or there is no room") {
                break;
            }
            dumps(&running, &oracle).await;
            is_full = running.archive.copied().await.is_err();
            if is_full {
                break;
            }
        }
        assert!(is_full || in_place, "w is not full");
        // Then c is full, too.
        assert!(worker.fills(1000).await.expect("it is done, or there is no room"), "c is not full");
        worker.allowed.full = false;
        worker.clears(3).await.expect("removals go on");
        worker.allowed.full = true;
        let begun = oracle.tick();
        running.archive.sync().await.expect("what there is is durable");
        oracle.durable(begun);
        running.life.ends();
        site.mains.cut(&site.power);
        site.mains.lasts(None);
        site.checks().await.unwrap_or_else(|wrong| panic!("it is not whole: {wrong}"));
        let running = site.opens(&mut rng).await.expect("it is opened, though it is full");
        judges(&running, &oracle).await;
        worker.root = running.main.walk("").await.expect("it is there");
        worker.clears(2).await.expect("removals go on");
        worker.fills(1000).await.expect("it is done, or there is no room");

        // w grows: all data reaches it, and c has space again.
        site.w.grow(GROWN);
        site.env.sleep_until(site.env.now() + AGAIN).await;
        comes_to_worm(&site, &running).await;
        dumps(&running, &oracle).await;
        comes_to_worm(&site, &running).await;
        worker.allowed.full = false;
        assert!(!worker.fills(10).await.expect("there is room"), "c is full still");
        running.archive.close().await.expect("it is closed");
        running.life.ends();
        let running = site.opens(&mut rng).await.expect("it is opened");
        judges(&running, &oracle).await;
        running.life.ends();
        site.checks().await.unwrap_or_else(|wrong| panic!("it is not whole: {wrong}"));
    });
}

/// A client that writes in its own directory.
fn worker(root: File, oracle: &Rc<Oracle>, rng: &mut Rng) -> Worker {
    let (allowed, most, held) = (Allowed { full: true, failing: false }, 200_000, Vec::new());
    Worker {
        number: 0,
        root,
        oracle: oracle.clone(),
        rng: rng.fork(),
        allowed,
        most,
        held,
        full: 0,
        failed: false,
    }
}

/// The disks below become full, and get space again.
fn fills_below(seed: u64) {
    let _says = Says(seed, "full below");
    let world = World::new(seed);
    let (env, mut rng) = (world.env(), world.rng());
    world.run(async move {
        let worm = [Worm::Plain, Worm::InPlace, Worm::Once, Worm::Fake][rng.below(4)];
        let mut site = Site::new(&env, &mut rng, worm, 32, 32);
        site.pace.set(50);
        let oracle = Rc::new(Oracle::new());
        site.makes_worm().await;
        let (c, w) = site.devices().await.expect("they are there");
        Archive::ream(c, w, &site.ream, &site.settings).await.expect("it is made");
        let running = site.opens(&mut rng).await.expect("it is opened");
        oracle
            .judge(&running.tree().await.expect("it is read"), &running.archive.dumps())
            .expect("it is right");
        let mut worker = worker(running.main.walk("").await.expect("it is there"), &oracle, &mut rng);

        // Either the cache's disk fills up, or that of the worm while a dump is copied.
        let fills_worm = worm != Worm::InPlace && rng.one_in(2);
        let disk = if fills_worm || worm == Worm::InPlace { site.w.clone() } else { site.c.clone() };
        // Less than a block, or an amount that clients write soon.
        let sectors = if fills_worm { 16 } else { 512 };
        disk.storage(Some(disk.stored() + rng.below(sectors) as u64));
        let begun = oracle.tick();
        if fills_worm {
            worker.allowed.full = false;
            assert!(!worker.fills(30).await.expect("c has room"), "c is full");
            dumps(&running, &oracle).await;
            assert!(running.archive.copied().await.is_err(), "w has room");
            running.archive.sync().await.expect("c has room");
            oracle.durable(begun);
        } else {
            let free = running.main.statfs().await.expect("it is told").bavail;
            assert!(free * u64::from(site.ream.block) <= 2 << 20, "{free} blocks are free, with no storage");
            let mut is_full = false;
            for _ in 0..50 {
                is_full = worker.fills(20).await.expect("it is done, or there is no room");
                let synced = running.archive.sync().await;
                if is_full {
                    break;
                }
                if let Err(error) = synced {
                    assert_eq!(error.errno, Errno::ENOSPC);
                }
            }
            assert!(is_full, "there is room");
            worker.allowed.full = false;
            worker.clears(3).await.expect("removals go on");
            let error = running.archive.sync().await.expect_err("nothing of it has room");
            assert_eq!(error.errno, Errno::ENOSPC);
            worker.allowed.full = true;
        }
        let cut = rng.one_in(2);
        let running = if cut {
            // Durable changes are there, and work continues from them.
            site.mains.cut(&site.power);
            site.mains.lasts(None);
            running.life.ends();
            disk.storage(None);
            let running = site.opens(&mut rng).await.expect("it is opened");
            judges(&running, &oracle).await;
            worker.held.clear();
            worker.root = running.main.walk("").await.expect("it is there");
            running
        } else {
            disk.storage(None);
            site.env.sleep_until(site.env.now() + AGAIN).await;
            running
        };
        let begun = oracle.tick();
        worker.allowed.full = false;
        assert!(!worker.fills(3).await.expect("there is room"), "it is full still");
        running.archive.sync().await.expect("there is room");
        oracle.durable(begun);
        dumps(&running, &oracle).await;
        comes_to_worm(&site, &running).await;
        judges(&running, &oracle).await;
        running.archive.close().await.expect("it is closed");
        running.life.ends();
        site.checks().await.unwrap_or_else(|wrong| panic!("it is not whole: {wrong}"));
    });
}

#[test]
fn who_has_no_storage_below_goes_on_when_there_is_some() {
    seeds(WORLDS).for_each(fills_below);
}

#[test]
fn who_finds_no_room_loses_nothing_and_has_some_when_w_has_grown() {
    seeds(WORLDS).for_each(goes);
}
