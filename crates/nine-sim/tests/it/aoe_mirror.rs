//! A mirror of two disks on a faulty Ethernet. Cables are unplugged, and a disk may return with old contents. Every
//! acknowledged write must be there, and in the end on both disks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_aoe::driver::{disk, export};
use nine_aoe::frame::Address;
use nine_aoe::target::Setup;
use nine_block::{Device, Kind, Mirror, Ram, Rest, SECTOR, Start};
use nine_net::Env;
use nine_sim::ether::{Faults, Plug, Wire, held, mac, wire};
use nine_sim::{Rng, SimEnv, World, seeds, tries_all};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Number of mirrored sectors, and of sectors before them.
const SECTORS: u64 = 240;
const HEAD: u64 = 128;
const REGION: u32 = 8;
/// Number of clients, each of which uses its own part.
const WORKERS: u64 = 3;
const PART: u64 = SECTORS / WORKERS;

/// Allowed contents of each sector: the number of the last acknowledged write, and of those that failed since.
struct Model {
    may: Vec<Vec<u64>>,
    next: u64,
    acked: u64,
    failed: u64,
}

fn sector(at: u64, write: u64) -> Vec<u8> {
    let unit = [at.to_le_bytes(), write.to_le_bytes()].concat();
    unit.repeat(SECTOR as usize / unit.len())
}

impl Model {
    fn begins(&mut self, at: u64, count: u64) -> (u64, Bytes) {
        self.next += 1;
        (at..at + count).for_each(|at| self.may[at as usize].push(self.next));
        (self.next, (at..at + count).flat_map(|at| sector(at, self.next)).collect())
    }

    fn acked(&mut self, write: u64, at: u64, count: u64) {
        self.acked += 1;
        (at..at + count).for_each(|at| self.may[at as usize] = vec![write]);
    }

    /// Returns an error if these sectors have a disallowed content.
    fn judge(&self, first: u64, data: &[u8]) -> Option<String> {
        let wrong = |(at, bytes): (u64, &[u8])| {
            let may = &self.may[at as usize];
            let is = |write: &u64| {
                if *write == 0 { bytes.iter().all(|b| *b == 0) } else { bytes == sector(at, *write) }
            };
            (!may.iter().any(is))
                .then(|| format!("sector {at} has {:02x?}, and may have writes {may:?}", &bytes[..16]))
        };
        (first..).zip(data.chunks(SECTOR as usize)).find_map(wrong)
    }
}

fn is_in(mirror: &Mirror) -> Vec<bool> {
    let status = mirror.status();
    let lines = status.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    lines.take(2).map(|line| line.contains(" in;")).collect()
}

async fn pause(env: &SimEnv, time: Duration) {
    env.sleep_until(env.now() + time).await;
}

/// Waits until the condition holds, for at most a minute.
async fn until(env: &SimEnv, is: impl Fn() -> bool) -> bool {
    for _ in 0..6000 {
        if is() {
            return true;
        }
        pause(env, 10 * MS).await;
    }
    false
}

async fn works(
    env: SimEnv,
    disk: Arc<dyn Device>,
    model: Rc<RefCell<Model>>,
    mut rng: Rng,
    part: u64,
    stop: Rc<Cell<u64>>,
) {
    while stop.get() == 0 {
        let most = if rng.one_in(4) { 40 } else { 4 };
        let count = 1 + rng.below(most) as u64;
        let at = part * PART + rng.below((PART - count) as usize) as u64;
        match rng.below(20) {
            0 => drop(disk.flush().await),
            1..=8 => {
                if let Ok(data) = disk.read(at, count).await {
                    assert_eq!(model.borrow().judge(at, &data), None);
                }
            }
            _ => {
                let (write, data) = model.borrow_mut().begins(at, count);
                match disk.write(at, data).await {
                    Ok(_) => model.borrow_mut().acked(write, at, count),
                    Err(_) => model.borrow_mut().failed += 1,
                }
            }
        }
        let rest = MS * rng.below(20) as u32;
        pause(&env, rest).await;
    }
    stop.set(stop.get() + 1);
}

/// Brings back absent members until both are in.
async fn heals(env: &SimEnv, mirror: &Mirror) {
    for _ in 0..600 {
        for (member, is_in) in is_in(mirror).into_iter().enumerate() {
            if !is_in {
                drop(mirror.bring_back(member, false).await);
            }
        }
        if is_in(mirror) == [true, true] {
            return;
        }
        pause(env, 100 * MS).await;
    }
    panic!("it does not heal: {}", mirror.status());
}

async fn copy(from: &Arc<dyn Device>, to: &Arc<dyn Device>) {
    for at in (0..HEAD + SECTORS).step_by(16) {
        to.write(at, from.read(at, 16).await.expect("memory")).await.expect("memory");
    }
}

fn weather(rng: &mut Rng) -> Faults {
    let mut one_in = |from: usize| if rng.one_in(3) { 0 } else { from + rng.below(60) };
    Faults { lost: one_in(5), twice: one_in(5), late: one_in(5), ..Faults::default() }
}

struct Site {
    env: SimEnv,
    wire: Wire,
    rams: [Arc<dyn Device>; 2],
    mirror: Mirror,
    /// How often a cable was pulled while both were in; how often a member returned with old contents.
    pulled: u32,
    stale: u32,
}

impl Site {
    /// Injects one fault for a while.
    async fn goes_wrong(&mut self, rng: &mut Rng) {
        let (env, wire) = (self.env.clone(), self.wire.clone());
        let member = rng.below(2);
        let time = MS * (50 + rng.below(4000)) as u32;
        match rng.below(4) {
            0 => {
                held(&wire).faults = weather(rng);
                pause(&env, time).await;
                held(&wire).faults = Faults::default();
            }
            1 => {
                held(&wire).faults.cut = true;
                pause(&env, time / 10).await;
                held(&wire).faults.cut = false;
            }
            2 => {
                held(&wire).out.push(mac(10 + member as u8));
                self.pulled += 1;
                pause(&env, time).await;
                held(&wire).out.clear();
            }
            _ => {
                heals(&env, &self.mirror).await;
                let old: Arc<dyn Device> = Arc::new(Ram::new(HEAD + SECTORS));
                copy(&self.rams[member], &old).await;
                pause(&env, time).await;
                if is_in(&self.mirror) != [true, true] {
                    return;
                }
                held(&wire).out.push(mac(10 + member as u8));
                if until(&env, || !is_in(&self.mirror)[member]).await {
                    copy(&old, &self.rams[member]).await;
                    self.stale += 1;
                }
                held(&wire).out.clear();
            }
        }
        if rng.one_in(2) {
            heals(&env, &self.mirror).await;
        }
    }
}

fn goes(seed: u64, spoils: bool) -> (u64, u64, u32, u32) {
    let world = World::new(seed);
    let (env, wire, mut rng) = (world.env(), wire(&world, Faults::default(), 9000), world.rng());
    world.run(async move {
        let rams = [0, 1].map(|_| Arc::new(Ram::new(HEAD + SECTORS)) as Arc<dyn Device>);
        let far = [0u8, 1].map(|n| {
            let address = Address { shelf: 1, slot: n };
            let setup = Setup::new(address, format!("disk {n}"));
            let link = vec![Plug::new(&env, &wire, 10 + n)];
            let driver = export(link, setup, rams[usize::from(n)].clone()).1;
            env.spawn(Box::pin(async move { drop(driver.await) }));
            let (far, driver) = disk(vec![Plug::new(&env, &wire, n)], address, SECOND, env.clock());
            env.spawn(Box::pin(async move { drop(driver.await) }));
            Arc::new(far) as Arc<dyn Device>
        });
        for far in &far {
            far.look().await.expect("it is there");
        }
        Mirror::make_with(&far, *b"a set of two far", REGION).await.expect("made");
        let mirror = Mirror::open(far.to_vec(), Start::Careful, Arc::new(|_| {})).await.expect("opened");
        let rest: Rest = {
            let clock = env.clock();
            Arc::new(move |_| clock.sleep_until(clock.now() + 5 * MS))
        };
        env.spawn(Box::pin(mirror.clone().keep(rest)));
        let may = vec![vec![0]; SECTORS as usize];
        let model = Rc::new(RefCell::new(Model { may, next: 0, acked: 0, failed: 0 }));
        let stop = Rc::new(Cell::new(0));
        let disk: Arc<dyn Device> = Arc::new(mirror.clone());
        for part in 0..WORKERS {
            let rng = Rng::new(seed ^ part << 32);
            env.spawn(Box::pin(works(env.clone(), disk.clone(), model.clone(), rng, part, stop.clone())));
        }
        let mut site = Site { env: env.clone(), wire, rams, mirror, pulled: 0, stale: 0 };
        for _ in 0..8 {
            site.goes_wrong(&mut rng).await;
        }
        stop.set(1);
        assert!(until(&env, || stop.get() == 1 + WORKERS).await, "seed {seed}: an operation does not end");
        heals(&env, &site.mirror).await;
        if let Err(error) = disk.flush().await {
            // The flushes of both members have failed, so earlier writes must be repeated.
            assert_eq!(error.kind, Kind::Poisoned, "seed {seed}");
            for at in (0..SECTORS).step_by(40) {
                let (write, data) = model.borrow_mut().begins(at, 40);
                disk.write(at, data).await.expect("both are well");
                model.borrow_mut().acked(write, at, 40);
            }
            disk.flush().await.expect("both are well");
        }
        if spoils {
            let old = Bytes::from(sector(7, model.borrow().next + 1));
            for ram in &site.rams {
                ram.write(HEAD + 7, old.clone()).await.expect("memory");
            }
        }
        for at in 0..SECTORS {
            let [a, b] = &site.rams;
            let (a, b) = (a.read(HEAD + at, 1).await, b.read(HEAD + at, 1).await);
            let (a, b) = (a.expect("memory"), b.expect("memory"));
            assert!(a == b, "seed {seed}: sector {at} differs:\n{}", site.mirror.status());
            assert_eq!(model.borrow().judge(at, &a), None, "seed {seed}");
        }
        let model = model.borrow();
        (model.acked, model.failed, site.pulled, site.stale)
    })
}

#[test]
fn every_acknowledged_write_is_on_both_in_the_end_whatever_happens_to_either() {
    let ends = seeds(20)
        .map(|seed| goes(seed, false))
        .fold((0, 0, 0, 0), |all, one| (all.0 + one.0, all.1 + one.1, all.2 + one.2, all.3 + one.3));
    println!("writes acknowledged and failed, cables pulled, disks come back old: {ends:?}");
    let all = ends.0 > 0 && ends.1 > 0 && ends.2 > 0 && ends.3 > 0;
    assert!(all || !tries_all(20), "no world had one of these: {ends:?}");
}

#[test]
#[should_panic(expected = "sector 7 has")]
fn a_canary_that_writes_what_nobody_asked_for_is_caught() {
    goes(0, true);
}
