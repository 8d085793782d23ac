//! Disks that fail, and disks that lie: each answer must be an error or right.
//!
//! In: a seed, which determines the faults. Out: violations. Failed writes and flushes must not lose acknowledged data.
//! Failed reads and silent faults may only lose data that is unreadable now.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use nine_fs::Archive;
use nine_io::client::File;
use nine_net::Env;
use nine_sim::disk::{Counts, Disk, Fault};
use nine_sim::{Rng, World, seeds, tries_all};

use crate::archive::client::{Allowed, Worker, reads};
use crate::archive::cuts::Says;
use crate::archive::devices::DeviceExpression;
use crate::archive::oracle::{DIRS, Oracle};
use crate::archive::world::{MS, Running, Site, Worm};

/// Number of worlds in a usual run.
const WORLDS: u64 = 40;
/// Faults that a disk reports, without and with read errors; and faults that it does not report.
const HONEST: [Fault; 2] = [Fault::Write, Fault::Flush];
const SAID: [Fault; 3] = [Fault::Read, Fault::Write, Fault::Flush];
const LIES: [Fault; 3] = [Fault::Flip, Fault::Misdirect, Fault::Lose];

/// Statistics of the worlds.
#[derive(Debug, Default)]
struct Seen {
    worlds: u64,
    /// Failures reported to clients; syncs and dumps likewise.
    failed: u64,
    synced: u64,
    dumped: u64,
    /// Failed dumps (true) and syncs, by reason.
    unsynced: BTreeMap<(bool, String), u64>,
    /// Refused starts, by reason.
    refused: BTreeMap<String, u64>,
    /// Mirrors that only started by force, because a member has lost its labels.
    starts_anyway: u64,
    /// Files and directories that were unreadable in the end, and those that were readable.
    holes: u64,
    files: u64,
    dumps_read: u64,
    dumps_not_read: u64,
    disks: Counts,
}

/// The faults of a world.
#[derive(Clone, Copy, Debug)]
struct Plan {
    faults: &'static [Fault],
    /// Reads succeed, and reported operations are executed.
    is_strict: bool,
    /// The faults are not reported.
    lies: bool,
    /// Whether c and w may have faults.
    on: [bool; 2],
    /// On each of them, only one part has faults.
    is_part: bool,
}

impl Plan {
    fn new(rng: &mut Rng) -> Self {
        let on = [true; 2];
        match rng.below(4) {
            0 => Self { faults: &HONEST, is_strict: true, lies: false, on, is_part: false },
            1 => Self { faults: &SAID, is_strict: false, lies: false, on, is_part: false },
            _ => Self { faults: &LIES, is_strict: false, lies: true, on, is_part: false },
        }
    }

    fn begins(self, disks: &[&Disk], rng: &mut Rng) {
        let is_part = self.is_part;
        let which = if is_part { disks.len() } else { rng.below(disks.len() + 1) };
        for (n, disk) in disks.iter().enumerate().filter(|(n, _)| self.on[*n]) {
            for fault in self.faults {
                // A part of a disk has fewer operations.
                let one_in = if is_part { 2 << rng.below(5) } else { 4 << rng.below(6) };
                let of_all = if self.faults.len() > 1 && rng.one_in(3) { 0 } else { one_in };
                disk.chance(*fault, if which == n { 0 } else { of_all });
            }
        }
    }
}

fn worker(number: usize, root: File, oracle: &Rc<Oracle>, rng: Rng) -> Worker {
    let (allowed, most, held) = (Allowed { full: true, failing: true }, 60_000, Vec::new());
    Worker { number, root, oracle: oracle.clone(), rng, allowed, most, held, full: 0, failed: false }
}

/// Runs clients and the console until the clients are done or get an error.
async fn work(
    site: &Site,
    running: &Running,
    rng: &mut Rng,
    oracle: &Rc<Oracle>,
    plan: Plan,
    seen: &Rc<RefCell<Seen>>,
) {
    let env = running.life.clone();
    let left = Rc::new(Cell::new(0));
    for number in 0..DIRS.len() {
        let Ok(root) = running.main.walk("").await else { continue };
        let worker = worker(number, root, oracle, rng.fork());
        let (count, pause) = (20 + rng.below(80), MS * [0, 5, 50][rng.below(3)]);
        left.set(left.get() + 1);
        let (task, left, seen) = (env.clone(), left.clone(), seen.clone());
        env.spawn(Box::pin(async move {
            let worker = worker.works(&task, count, pause).await;
            seen.borrow_mut().failed += u64::from(worker.failed);
            left.set(left.get() - 1);
        }));
    }
    let (archive, judge, own, seen, mut chance) =
        (running.archive.clone(), oracle.clone(), env.clone(), seen.clone(), rng.fork());
    env.spawn(Box::pin(async move {
        loop {
            own.sleep_until(own.now() + MS * chance.below(500) as u32).await;
            let begun = judge.tick();
            let is_dump = chance.one_in(2);
            let done = match is_dump {
                true => archive.dump().await.map(|dumped| judge.dumped(begun, dumped)),
                false => archive.sync().await.map(|()| {
                    if !plan.lies {
                        judge.durable(begun)
                    }
                }),
            };
            let seen = &mut *seen.borrow_mut();
            match done {
                Ok(()) if is_dump => seen.dumped += 1,
                Ok(()) => seen.synced += 1,
                Err(error) => *seen.unsynced.entry((is_dump, format!("{error:?}"))).or_default() += 1,
            }
        }
    }));
    while left.get() > 0 {
        site.env.sleep_until(site.env.now() + 5 * MS).await;
    }
    let rest = MS * (1 << rng.below(12));
    site.env.sleep_until(site.env.now() + rest).await;
}

/// Checks that all readable data is right.
async fn judges(running: &Running, oracle: &Oracle, plan: Plan, seen: &RefCell<Seen>, log: &str) {
    let tree = reads(&running.main, true).await.expect("what cannot be read is a hole");
    {
        let seen = &mut *seen.borrow_mut();
        (seen.holes, seen.files) =
            (seen.holes + tree.holes.len() as u64, seen.files + tree.names.len() as u64);
    }
    let listed = running.archive.dumps();
    if plan.is_strict {
        assert!(tree.holes.is_empty(), "not all can be read: {:?}\n{log}", tree.holes);
        oracle.judge(&tree, &listed).unwrap_or_else(|wrong| panic!("{wrong}\n{log}"));
    } else {
        oracle.judge_lied_to(&tree, plan.lies).unwrap_or_else(|wrong| panic!("{wrong}\n{log}"));
    }
    for kept in oracle.dumps() {
        if !listed
            .iter()
            .any(|one| (one.generation, &one.name) == (kept.dumped.generation, &kept.dumped.name))
        {
            assert!(plan.lies, "dump {:?} is lost\n{log}", kept.dumped);
            continue;
        }
        let read = match running.dump.walk(&kept.dumped.name).await {
            Ok(root) => reads(&root, true).await.expect("what cannot be read is a hole"),
            Err(_) => {
                seen.borrow_mut().dumps_not_read += 1;
                continue;
            }
        };
        assert!(!plan.is_strict || read.holes.is_empty(), "dump {:?} is not read\n{log}", kept.dumped);
        oracle.judge_dump(&kept, &read).unwrap_or_else(|wrong| panic!("{wrong}\n{log}"));
        seen.borrow_mut().dumps_read += 1;
    }
}

fn goes(
    seed: u64,
    seen: &Rc<RefCell<Seen>>,
    prepare: impl FnOnce(&mut Site, &mut Rng, Plan) -> Plan + 'static,
) {
    let _says = Says(seed, "fault");
    let world = World::new(seed);
    let (env, mut rng, seen) = (world.env(), world.rng(), seen.clone());
    world.run(async move {
        let plan = Plan::new(&mut rng);
        let worm = [Worm::Plain, Worm::InPlace, Worm::Once][rng.below(3)];
        let mut site = Site::new(&env, &mut rng, worm, 16, 64);
        let plan = prepare(&mut site, &mut rng, plan);
        println!("{seed}: {plan:?}");
        let oracle = Rc::new(Oracle::new());
        site.pace.set(50);
        let (c, w) = site.devices().await.expect("they are there");
        Archive::ream(c, w, &site.ream, &site.settings).await.expect("it is made");
        // First without faults, then with them.
        for is_well in [true, false] {
            let running = site.opens(&mut rng).await.expect("it is opened");
            let tree = running.tree().await.expect("it is read");
            oracle.judge(&tree, &running.archive.dumps()).expect("it is right");
            if !is_well {
                plan.begins(&[&site.c, &site.w], &mut rng);
            }
            work(&site, &running, &mut rng, &oracle, plan, &seen).await;
            if is_well {
                running.archive.close().await.expect("it is closed");
            } else {
                judges_alive(&running, &oracle, &seen, &site.power.log()).await;
            }
            running.life.ends();
        }
        // After a failed flush a disk shows data until the power is cut that it will never store. A program that
        // restarts without a cut, and takes it for durable, loses it later. This case is not checked here.
        if plan.is_strict || rng.one_in(2) {
            site.mains.cut(&site.power);
            site.mains.lasts(None);
        }
        site.c.heal();
        site.w.heal();
        let mut opened = site.opens(&mut rng).await;
        if plan.is_part && plan.is_strict && opened.is_err() {
            // A member that has lost both labels might be newer. A person decides that it is not.
            seen.borrow_mut().starts_anyway += 1;
            site.made.iter_mut().flatten().for_each(DeviceExpression::starts_anyway);
            opened = site.opens(&mut rng).await;
        }
        match opened {
            Ok(running) => {
                judges(&running, &oracle, plan, &seen, &site.power.log()).await;
                running.life.ends();
                if plan.is_strict {
                    site.checks().await.unwrap_or_else(|wrong| panic!("it is not whole: {wrong}"));
                }
            }
            Err(error) => {
                assert!(!plan.is_strict, "it is not opened: {error}\n{}", site.power.log());
                *seen.borrow_mut().refused.entry(error.to_string()).or_default() += 1;
            }
        }
        let seen = &mut *seen.borrow_mut();
        seen.worlds += 1;
        seen.disks += &site.c.counts();
        seen.disks += &site.w.counts();
    });
}

/// While it runs, the archive has the acknowledged data, and does not make up unreadable data.
async fn judges_alive(running: &Running, oracle: &Oracle, seen: &RefCell<Seen>, log: &str) {
    let tree = reads(&running.main, true).await.expect("what cannot be read is a hole");
    seen.borrow_mut().holes += tree.holes.len() as u64;
    oracle.judge_now(&tree).unwrap_or_else(|wrong| panic!("{wrong}\n{log}"));
}

#[test]
fn a_fault_is_an_error_and_never_other_data() {
    let seen = Rc::new(RefCell::new(Seen::default()));
    for seed in seeds(WORLDS) {
        goes(seed, &seen, |_, _, plan| plan);
    }
    let seen = seen.borrow();
    println!("{seen:#?}");
    if !tries_all(WORLDS) {
        return;
    }
    for fault in SAID.iter().chain(&LIES) {
        assert!(seen.disks.faults.contains_key(fault), "{fault:?} never happened");
    }
    let numbers = [
        (seen.failed, "client was told of a failure"),
        (seen.unsynced.values().sum(), "sync or dump failed"),
        (seen.synced.min(seen.dumped), "sync or dump went well"),
        (seen.holes, "file could not be read"),
        (seen.files.min(seen.dumps_read), "file or dump could be read"),
    ];
    numbers.iter().for_each(|(number, what)| assert!(*number > 0, "no {what}"));
}

/// Device expressions for c and w, each with faults of one part: any part, or a member of a mirror.
fn with_parts(site: &mut Site, rng: &mut Rng, plan: Plan, of_mirror: bool) -> Plan {
    let may = [site.worm != Worm::InPlace, matches!(site.worm, Worm::Plain | Worm::InPlace)];
    // Each of their parts is an eighth.
    let all = [(site.c.clone(), 256 << 11), (site.w.clone(), 1024 << 11)];
    for (n, (disk, sectors)) in all.into_iter().enumerate() {
        disk.grow(sectors);
        if may[n] {
            let (made, part) = DeviceExpression::with_part(rng, of_mirror);
            println!("{} {part}", made.text);
            disk.confine(DeviceExpression::part(part, sectors));
            site.made[n] = Some(made);
        }
    }
    Plan { on: may, is_part: true, ..plan }
}

#[test]
fn a_fault_below_a_device_expression_is_an_error_and_never_other_data() {
    let seen = Rc::new(RefCell::new(Seen::default()));
    for seed in seeds(WORLDS) {
        goes(seed, &seen, |site, rng, plan| {
            // A member of a bare mirror stays wrong after a missed write.
            Plan { is_strict: false, ..with_parts(site, rng, plan, false) }
        });
    }
    let seen = seen.borrow();
    println!("{seen:#?}");
    if tries_all(WORLDS) {
        let faults = [Fault::Read, Fault::Write, Fault::Flip, Fault::Misdirect, Fault::Lose];
        assert!(faults.iter().all(|fault| seen.disks.faults.contains_key(fault)), "not each fault happened");
        assert!(seen.holes > 0 && seen.failed > 0, "no fault was seen above");
    }
}

#[test]
fn faults_of_one_member_of_a_mirror_lose_nothing() {
    let seen = Rc::new(RefCell::new(Seen::default()));
    for seed in seeds(WORLDS) {
        goes(seed, &seen, |site, rng, plan| Plan {
            is_strict: true,
            lies: false,
            ..with_parts(site, rng, plan, true)
        });
    }
    let seen = seen.borrow();
    println!("{seen:#?}");
    assert_eq!((seen.failed, seen.holes), (0, 0), "a fault was seen above the mirror");
    if tries_all(WORLDS) {
        let faults = [Fault::Read, Fault::Write, Fault::Flip, Fault::Misdirect, Fault::Lose];
        assert!(faults.iter().all(|fault| seen.disks.faults.contains_key(fault)), "not each fault happened");
    }
}
