//! Power cuts, also while an archive is created or opened again.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use nine_fs::{Archive, Depth, Dumped};
use nine_net::Env;
use nine_proto::Errno;
use nine_sim::disk::{Counts, Fate};
use nine_sim::{Rng, World, seeds, tries_all};

use crate::archive::client::{Allowed, Worker};
use crate::archive::devices::DeviceExpression;
use crate::archive::oracle::{DIRS, Oracle};
use crate::archive::said::Said;
use crate::archive::world::{MS, Mains, Running, Site, Worm, reads_dumps};

/// Number of worlds in a usual run.
const WORLDS: u64 = 40;
/// A client that works this long hangs.
const HANGS: Duration = Duration::from_secs(3600);

/// Statistics of the worlds.
#[derive(Debug, Default)]
pub struct Seen {
    pub worlds: u64,
    /// Cuts, by activity.
    pub cuts: BTreeMap<&'static str, u64>,
    pub fates: BTreeMap<Fate, u64>,
    pub worms: BTreeMap<Worm, u64>,
    pub syncs: u64,
    pub dumps: u64,
    /// Dumps that were read; dumps that exist but were never acknowledged.
    pub dump_reads: u64,
    pub unanswered: u64,
    /// Operations completed before a cut; those of them that were missing afterwards.
    pub operations: u64,
    pub full: u64,
    pub closed: u64,
    /// Cuts while a dump was being written to w.
    pub copying: u64,
    /// Starts that rejected the last commit because it was incomplete.
    pub not_whole: u64,
    /// Number of successful complete checks.
    pub checks: u64,
    pub disks: Counts,
}

impl Seen {
    pub fn cut(&mut self, when: &'static str, mains: &Mains) {
        *self.cuts.entry(when).or_default() += 1;
        *self.fates.entry(mains.gone.get().expect("the power went")).or_default() += 1;
    }

    pub fn all_cuts(&self) -> u64 {
        self.cuts.values().sum()
    }
}

/// On a panic, prints how to replay the world.
pub struct Says<'a>(pub u64, pub &'a str);

impl Drop for Says<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("replay: NINE_SEED={} cargo test -p nine-sim --test it archive::{}", self.0, self.1);
        }
    }
}

/// Returns a random number of steps. Small numbers are more likely.
fn some_steps(rng: &mut Rng) -> u64 {
    let bits = 2 + rng.below(11);
    rng.below(1 << bits) as u64
}

pub fn goes(seed: u64, seen: Rc<RefCell<Seen>>, prepare: impl FnOnce(&mut Site, &mut Rng) + 'static) {
    let _says = Says(seed, "cut");
    let world = World::new(seed);
    let (env, mut rng) = (world.env(), world.rng());
    world.run(async move {
        let worms =
            [Worm::Plain, Worm::Plain, Worm::InPlace, Worm::InPlace, Worm::Once, Worm::Fake, Worm::Store];
        let worm = worms[rng.below(worms.len())];
        let (c_mib, w_mib) = ([8, 16, 32][rng.below(3)], [64, 128][rng.below(2)]);
        let mut site = Site::new(&env, &mut rng, worm, c_mib, w_mib);
        prepare(&mut site, &mut rng);
        let oracle = Rc::new(Oracle::new());
        makes(&mut site, &mut rng, &seen).await;
        for _ in 0..3 + rng.below(5) {
            lives(&mut site, &mut rng, &oracle, &seen).await;
        }
        settles(&mut site, &mut rng, &oracle, &seen).await;
        let seen = &mut *seen.borrow_mut();
        seen.worlds += 1;
        *seen.worms.entry(worm).or_default() += 1;
        seen.disks += &site.c.counts();
        seen.disks += &site.w.counts();
        seen.dump_reads += oracle.dumps().iter().map(|kept| u64::from(kept.reads.get())).sum::<u64>();
    });
}

/// Creates an archive. In some worlds the power is cut meanwhile, and it is created again.
async fn makes(site: &mut Site, rng: &mut Rng, seen: &RefCell<Seen>) {
    site.makes_worm().await;
    if matches!(site.worm, Worm::Plain | Worm::InPlace) && rng.one_in(3) {
        let mains = site.mains.clone();
        let (c, w) = site.devices().await.expect("they are there");
        mains.lasts(Some(rng.below(30) as u64));
        let made = mains.with(Archive::ream(c, w, &site.ream, &site.settings)).await;
        match made {
            Some(made) => made.expect("it is made"),
            None => {
                seen.borrow_mut().cut("ream", &mains);
                mains.lasts(None);
                if let Ok(running) = site.opens(rng).await {
                    let tree = running.tree().await.expect("what can be opened is whole");
                    assert!(tree.names.is_empty(), "something is in an archive that was not made yet");
                    running.life.ends();
                }
            }
        }
    }
    site.mains.lasts(None);
    // As in `ninefold`: a new identity, so that the first one's journal is not replayed.
    site.ream.identity = std::array::from_fn(|_| rng.below(256) as u8);
    let (c, w) = site.devices().await.expect("they are there");
    Archive::ream(c, w, &site.ream, &site.settings).await.expect("it is made");
}

/// Opens and checks the archive. Then clients work until the power is cut.
async fn lives(site: &mut Site, rng: &mut Rng, oracle: &Rc<Oracle>, seen: &Rc<RefCell<Seen>>) {
    let mains = site.mains.clone();
    looks(site, seen).await;
    let steps = some_steps(rng);
    site.pace.set([0, 50, 1000, 10_000][rng.below(4)]);
    mains.lasts(Some(steps));
    let Some(opened) = mains.with(site.opens(rng)).await else {
        return seen.borrow_mut().cut("open", &mains);
    };
    let running = opened.unwrap_or_else(|error| panic!("it is not opened: {error}\n{}", site.power.log()));
    let Some(tree) = mains.with(running.tree()).await else {
        running.life.ends();
        return seen.borrow_mut().cut("judge", &mains);
    };
    let tree = tree.unwrap_or_else(|error| panic!("it is not read: {error}\n{}", site.power.log()));
    let known = oracle.dumps().len();
    oracle
        .judge(&tree, &running.archive.dumps())
        .unwrap_or_else(|wrong| panic!("{wrong}\n{}", site.power.log()));
    seen.borrow_mut().unanswered += (oracle.dumps().len() - known) as u64;
    let worked = mains.with(work(site, &running, rng, oracle, seen)).await;
    let mut was_open = true;
    match worked {
        None => seen.borrow_mut().cut("work", &mains),
        Some(()) if rng.one_in(3) => match mains.with(running.archive.close()).await {
            None => seen.borrow_mut().cut("close", &mains),
            Some(closed) => {
                closed.expect("it is closed");
                was_open = false;
                seen.borrow_mut().closed += 1;
                if rng.one_in(2) {
                    mains.cut(&site.power);
                    seen.borrow_mut().cut("closed", &mains);
                }
            }
        },
        Some(()) => {
            // Background work continues for a while.
            let rest = MS * (1 << rng.below(15));
            let rested = mains.with(site.env.sleep_until(site.env.now() + rest)).await;
            if rested.is_some() {
                mains.cut(&site.power);
            }
            seen.borrow_mut().cut("idle", &mains);
        }
    }
    let waits = running.archive.dumps().iter().any(|dump| !dump.copied);
    seen.borrow_mut().copying += u64::from(was_open && waits && mains.copying.get());
    running.life.ends();
}

/// Checks that the present contents are complete and consistent.
async fn looks(site: &Site, seen: &RefCell<Seen>) {
    let checked = site.checks().await;
    checked.unwrap_or_else(|wrong| panic!("it is not whole: {wrong}\n{}", site.power.log()));
    seen.borrow_mut().checks += 1;
}

/// The same for a running archive.
async fn is_whole(site: &Site, running: &Running, seen: &RefCell<Seen>) {
    for _ in 0..20 {
        match running.archive.check(Depth::Dumps).await {
            Ok(checked) => {
                assert_eq!(checked.faults, Vec::<String>::new());
                seen.borrow_mut().checks += 1;
                return;
            }
            // A scrub is running, or the state could not be held still.
            Err(error) => assert_eq!(error.errno, Errno::EBUSY, "{error:?}"),
        }
        site.env.sleep_until(site.env.now() + Duration::from_secs(1)).await;
    }
    panic!("it could never be checked");
}

/// Runs clients, a user of the console, and a reader of dumps.
async fn work(site: &Site, running: &Running, rng: &mut Rng, oracle: &Rc<Oracle>, seen: &Rc<RefCell<Seen>>) {
    let clients = 1 + rng.below(DIRS.len());
    let left = Rc::new(std::cell::Cell::new(clients));
    let env = running.life.clone();
    for number in 0..clients {
        let worker = Worker {
            number,
            root: running.main.walk("").await.expect("it is there"),
            oracle: oracle.clone(),
            rng: rng.fork(),
            allowed: Allowed { full: true, failing: false },
            most: [3000, 60_000, 200_000][rng.below(3)],
            held: Vec::new(),
            full: 0,
            failed: false,
        };
        let (count, pause) = (10 + rng.below(120), MS * [0, 5, 50, 300][rng.below(4)]);
        let (task, left, seen) = (env.clone(), left.clone(), seen.clone());
        env.spawn(Box::pin(async move {
            let worker = worker.works(&task, count, pause).await;
            left.set(left.get() - 1);
            seen.borrow_mut().operations += count as u64;
            seen.borrow_mut().full += worker.full;
        }));
    }
    let (archive, judge, own, seen, mut chance) =
        (running.archive.clone(), oracle.clone(), env.clone(), seen.clone(), rng.fork());
    let clock = site.clock.clone();
    env.spawn(Box::pin(async move {
        let pause = [5, 50, 500, 3000][chance.below(4)];
        loop {
            own.sleep_until(own.now() + MS * chance.below(pause) as u32).await;
            clock.fetch_add(chance.below(20_000) as i64, Ordering::Relaxed);
            let begun = judge.tick();
            match chance.below(3) {
                0 => {
                    match archive.sync().await {
                        Ok(()) => judge.durable(begun),
                        Err(error) => assert_eq!(error.errno, Errno::EROFS, "it is being closed"),
                    }
                    seen.borrow_mut().syncs += 1;
                }
                1 => match archive.dump().await {
                    Ok(dumped) => {
                        judge.dumped(begun, dumped);
                        seen.borrow_mut().dumps += 1;
                    }
                    Err(error) => {
                        assert!(
                            matches!(error.errno, Errno::EBUSY | Errno::ENOSPC | Errno::EROFS),
                            "a dump: {error:?}"
                        );
                    }
                },
                _ => {}
            }
        }
    }));
    let (dump, judge, own, mut chance) =
        (running.dump.walk("").await.expect("there"), oracle.clone(), env, rng.fork());
    running.life.spawn(Box::pin(async move {
        loop {
            own.sleep_until(own.now() + MS * (1 + chance.below(500) as u32)).await;
            let mut pick = chance.fork();
            let which = |reads| reads == 0 || pick.one_in(6);
            reads_dumps(&dump, &judge, which, |error| panic!("a dump is not read: {error:?}")).await;
        }
    }));
    let ends = site.env.now() + HANGS;
    while left.get() > 0 {
        site.env.sleep_until(site.env.now() + 5 * MS).await;
        assert!(site.env.now() < ends, "an operation does not end\n{}\n{}", site.status(), site.power.log());
    }
}

/// In the end, without faults: everything reaches w, and stays unchanged.
async fn settles(site: &mut Site, rng: &mut Rng, oracle: &Rc<Oracle>, seen: &RefCell<Seen>) {
    site.mains.lasts(None);
    site.pace.set(50);
    let mut last = None;
    for turn in 0..3 {
        let running = site.opens(rng).await.unwrap_or_else(|error| panic!("it is not opened: {error}"));
        let tree = running.tree().await.expect("it is read");
        oracle.judge(&tree, &running.archive.dumps()).unwrap_or_else(|wrong| panic!("{wrong}"));
        let differs = last.as_ref().and_then(|last: &crate::archive::model::Tree| last.differs(&tree));
        assert_eq!(differs, None, "it has changed while nobody did anything");
        last = Some(tree);
        comes_to_worm(site, &running).await;
        if turn == 0 {
            let begun = oracle.tick();
            let dumped = running.archive.dump().await.expect("there is room for a dump");
            oracle.dumped(begun, dumped);
        }
        comes_to_worm(site, &running).await;
        let all = running.archive.dumps();
        let well = |dump: &Dumped| dump.copied && dump.blocks > 0;
        assert!(all.iter().all(well), "{all:?}");
        if rng.one_in(2) {
            site.env.sleep_until(site.env.now() + Duration::from_secs(1)).await;
        }
        reads_dumps(&running.dump, oracle, |_| true, |error| panic!("a dump is not read: {error:?}")).await;
        if turn == 2 {
            is_whole(site, &running, seen).await;
        }
        running.archive.close().await.expect("it is closed");
        running.life.ends();
        if turn == 2 {
            looks(site, seen).await;
        }
        if rng.one_in(2) {
            site.mains.cut(&site.power);
            site.mains.lasts(None);
        }
    }
    seen.borrow_mut().closed += 3;
}

/// Waits until all dumps are on w. Some worms need several attempts.
pub async fn comes_to_worm(site: &Site, running: &Running) {
    for _ in 0..20 {
        match running.archive.copied().await {
            Ok(()) => return,
            Err(error) if !matches!(site.worm, Worm::Plain | Worm::InPlace) => drop(error),
            Err(error) => panic!("a dump does not come to w: {error}"),
        }
        site.env.sleep_until(site.env.now() + Duration::from_secs(11)).await;
    }
    panic!("dumps do not come to w: {:?}", running.archive.copied().await);
}

impl Seen {
    /// Checks that every event that the worlds are meant to cover has occurred.
    fn has_all(&self) {
        for when in ["ream", "open", "judge", "work", "close", "closed", "idle"] {
            assert!(self.cuts.contains_key(when), "no cut came at {when:?}");
        }
        for fate in Fate::ALL {
            assert!(self.fates.contains_key(&fate), "no cut was {fate:?}");
        }
        for worm in [Worm::Plain, Worm::InPlace, Worm::Once, Worm::Fake, Worm::Store] {
            assert!(self.worms.contains_key(&worm), "no worm was {worm:?}");
        }
        let Counts { kept, dropped, torn, .. } = self.disks;
        let numbers = [
            (kept, "write was kept"),
            (dropped, "write was dropped"),
            (torn, "write was torn"),
            (self.copying, "cut came while a dump was copied"),
            (self.not_whole, "last commit was not whole"),
            (self.syncs, "sync was asked for"),
            (self.dump_reads, "dump was read"),
            (self.unanswered, "dump was there that nobody had answered"),
            (self.closed, "archive was closed"),
        ];
        for (number, what) in numbers {
            assert!(number > 0, "no {what}");
        }
    }
}

/// The same on composed devices whose members leave and return.
#[test]
fn a_cut_leaves_one_moment_on_every_device_expression() {
    let (seen, all) = (Rc::new(RefCell::new(Seen::default())), Rc::new(RefCell::new(Vec::new())));
    for seed in seeds(WORLDS) {
        let all = all.clone();
        goes(seed, seen.clone(), move |site, rng| {
            let may = [site.worm != Worm::InPlace, matches!(site.worm, Worm::Plain | Worm::InPlace)];
            // Each of their parts is an eighth.
            site.c.grow(256 << 11);
            site.w.grow(1024 << 11);
            site.made = may.map(|may| may.then(|| DeviceExpression::new(rng)));
            all.borrow_mut().extend(site.made.iter().flatten().map(DeviceExpression::copy));
        });
    }
    let all = all.borrow();
    let losses: u64 = all.iter().map(|made| made.losses.load(Ordering::Relaxed)).sum();
    let texts: Vec<&str> = all.iter().map(|made| made.text.as_str()).collect();
    println!("{} cuts, {losses} members went: {texts:#?}", seen.borrow().all_cuts());
    if tries_all(WORLDS) {
        for operator in ["{", "[", "(", "p(", "buffer", "bare{", "e0", "e1"] {
            assert!(texts.iter().any(|text| text.contains(operator)), "no expression has `{operator}`");
        }
        assert!(losses > 0, "no member went");
    }
}

#[test]
fn a_cut_leaves_one_moment_and_loses_nothing_that_was_answered() {
    let (seen, said) = (Rc::new(RefCell::new(Seen::default())), Said::listen());
    for seed in seeds(WORLDS) {
        goes(seed, seen.clone(), |_, _| ());
    }
    let seen = &mut *seen.borrow_mut();
    seen.not_whole = said.not_whole();
    println!("{} cuts: {seen:#?}", seen.all_cuts());
    // Rare events occur only in a large number of worlds.
    if seen.worlds >= 5 * WORLDS.max(40) {
        seen.has_all();
    }
}
