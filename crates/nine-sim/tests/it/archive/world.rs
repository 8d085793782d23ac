//! The environment of an archive: its disks and their power, its lives, and the clients.
//!
//! In: a seed. Out: events, or a panic that describes the violation. After a power cut no task of the life is polled
//! again: a dead program does nothing.

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Poll, Waker};
use std::time::Duration;

use nine_block::{Ahead, Device, FakeWorm, Nothing};
use nine_fs::{Archive, Checked, Depth, Ream, Settings};
use nine_io::client::{Client, File, Options};
use nine_io::server::{Core, Gate, Service};
use nine_net::{Clock, Env, Peer, Proof, Task, Timer};
use nine_proto::{NOUID, Time};
use nine_sim::disk::{Disk, Fate, Power};
use nine_sim::{Rng, SimEnv};
use nine_store::memory::{self as store, Memory, Request};
use nine_store::{Patience, Store};

use crate::archive::client::reads;
use crate::archive::devices::DeviceExpression;
use crate::archive::model::Tree;
use crate::archive::oracle::Oracle;

pub const MS: Duration = Duration::from_millis(1);

/// The kind of worm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Worm {
    /// An ordinary disk.
    Plain,
    /// A disk that accepts each sector once.
    Once,
    Fake,
    /// There is no cache device: new data is written to w in place.
    InPlace,
    /// Objects, which survive a power cut. A request in flight at the cut may still be executed.
    Store,
}

/// The power: the remaining steps, and whether it was cut.
#[derive(Default)]
pub struct Mains {
    left: Cell<Option<u64>>,
    pub steps: Cell<u64>,
    pub gone: Cell<Option<Fate>>,
    /// Data was being written to w at the cut.
    pub copying: Cell<bool>,
    waker: RefCell<Option<Waker>>,
    /// Tells the tasks of the life that it is over.
    over: RefCell<Rc<Cell<bool>>>,
}

impl Mains {
    /// Schedules a cut after this many steps of the disks.
    pub fn lasts(&self, steps: Option<u64>) {
        self.left.set(steps);
        self.gone.set(None);
        self.steps.set(0);
    }

    /// Cuts the power now.
    pub fn cut(&self, power: &Power) {
        self.left.set(None);
        self.over.borrow().set(true);
        self.copying.set(power.disks().last().is_some_and(|w| w.writing() > 0));
        self.gone.set(Some(power.cut()));
        self.waker.take().into_iter().for_each(Waker::wake);
    }

    /// Returns the output of the future, or `None` if the power is cut first.
    pub async fn with<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut future = pin!(future);
        poll_fn(|cx| {
            if self.gone.get().is_some() {
                return Poll::Ready(None);
            }
            *self.waker.borrow_mut() = Some(cx.waker().clone());
            future.as_mut().poll(cx).map(Some)
        })
        .await
    }
}

/// One life. Its tasks end when the power is cut.
#[derive(Clone)]
pub struct Life {
    env: SimEnv,
    over: Rc<Cell<bool>>,
}

impl Life {
    pub fn ends(&self) {
        self.over.set(true);
    }

    pub fn world(&self) -> &SimEnv {
        &self.env
    }
}

impl Env for Life {
    fn now(&self) -> Duration {
        self.env.now()
    }

    fn wall(&self) -> Duration {
        self.env.wall()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        self.env.sleep_until(deadline)
    }

    fn entropy(&self, buf: &mut [u8]) {
        self.env.entropy(buf);
    }

    fn spawn(&self, task: Task) {
        let (over, mut task) = (self.over.clone(), Some(task));
        self.env.spawn(Box::pin(poll_fn(move |cx| {
            if over.get() {
                task = None;
            }
            task.as_mut().map_or(Poll::Ready(()), |task| task.as_mut().poll(cx))
        })));
    }

    fn clock(&self) -> Arc<dyn Clock> {
        self.env.clock()
    }
}

/// Inserts a device between the archive and a disk.
pub type Wrap = Rc<dyn Fn(Arc<dyn Device>, bool) -> Arc<dyn Device>>;

/// The disks, and the parameters of the archive on them.
pub struct Site {
    pub env: SimEnv,
    pub power: Power,
    pub mains: Rc<Mains>,
    pub c: Disk,
    pub w: Disk,
    pub worm: Worm,
    pub store: Memory,
    pub ream: Ream,
    pub settings: Settings,
    pub clock: Arc<AtomicI64>,
    /// Maximum duration of a disk step in microseconds.
    pub pace: Rc<Cell<usize>>,
    pub wrap: Wrap,
    /// The expressions of c and w, unless they are plain disks.
    pub made: [Option<DeviceExpression>; 2],
    /// The life of their drivers.
    beside: Option<Life>,
}

/// Ends all tasks with the world. Otherwise they would hold the archive, and it the disks.
impl Drop for Site {
    fn drop(&mut self) {
        self.mains.cut(&self.power);
        self.store.decided_by(|_| store::Fate::Denied);
        self.store.go();
    }
}

/// A running archive.
pub struct Running {
    pub life: Life,
    pub archive: Archive,
    pub main: File,
    pub dump: File,
}

impl Site {
    pub fn new(env: &SimEnv, rng: &mut Rng, worm: Worm, c_mib: u64, w_mib: u64) -> Self {
        let power = Power::new(rng.bits());
        let c = power.disk(c_mib << 11);
        let w = if worm == Worm::Once { power.worm(w_mib << 11) } else { power.disk(w_mib << 11) };
        let clock = Arc::new(AtomicI64::new(1_795_000_000));
        let wall = clock.clone();
        let settings = Settings {
            memory: [1 << 20, 4 << 20][rng.below(2)],
            dirty: [1 << 20, 4 << 20, 16 << 20][rng.below(3)],
            ahead: [Ahead::Never, Ahead::Grow, Ahead::Seed][rng.below(3)],
            zone: Some("UTC".into()),
            wall: Arc::new(move || Time { sec: wall.load(Ordering::Relaxed), nsec: 0 }),
            epoch: 0,
        };
        let ream = Ream {
            name: "simulated".into(),
            block: [8192, 16384][rng.below(2)],
            fastworm: rng.one_in(2),
            row_order: rng.one_in(8),
            identity: [rng.below(256) as u8; 16],
            owner: (0, 0),
        };
        let (mains, pace) = (Rc::<Mains>::default(), Rc::new(Cell::new(1000)));
        let store = Memory::default();
        if worm == Worm::Store {
            store.decided_by(fates(rng.fork()));
            env.spawn(Box::pin(answers(env.clone(), store.clone(), rng.fork())));
        }
        let site = Self {
            env: env.clone(),
            power,
            mains,
            c,
            w,
            worm,
            store,
            ream,
            settings,
            clock,
            pace,
            wrap: Rc::new(|device, _| device),
            made: [None, None],
            beside: None,
        };
        env.spawn(Box::pin(steps(
            env.clone(),
            site.power.clone(),
            site.mains.clone(),
            site.pace.clone(),
            rng.fork(),
        )));
        site
    }

    /// Opens the devices for the next life.
    pub async fn devices(&mut self) -> nine_block::Result<(Arc<dyn Device>, Arc<dyn Device>)> {
        (self.c, self.w) = (self.c.reopen(), self.w.reopen());
        let beside = Life { env: self.env.clone(), over: Rc::default() };
        self.beside.replace(beside.clone()).iter().for_each(Life::ends);
        let c: Arc<dyn Device> = match self.worm {
            Worm::InPlace => Arc::new(Nothing),
            _ => Arc::new(self.c.clone()),
        };
        let w: Arc<dyn Device> = match self.worm {
            Worm::Store => self.in_store(self.w.shape().sectors, false).await?,
            _ => Arc::new(self.w.clone()),
        };
        let [of_c, of_w] = &mut self.made;
        let c = match of_c {
            Some(made) => made.over(c, Some(&beside)).await?,
            None => c,
        };
        let w = match of_w {
            Some(made) => made.over(w, Some(&beside)).await?,
            None => w,
        };
        let c = if self.worm == Worm::InPlace { c } else { (self.wrap)(c, true) };
        let w = (self.wrap)(w, false);
        let w = if self.worm == Worm::Fake { Arc::new(FakeWorm::open(w).await?) } else { w };
        Ok((c, w))
    }

    async fn in_store(&self, sectors: u64, read_only: bool) -> nine_block::Result<Arc<dyn Device>> {
        let options = nine_store::Options {
            name: "store".into(),
            sectors: Some(sectors),
            read_only,
            patience: Patience::default(),
            who: "simulated".into(),
        };
        Ok(Arc::new(Store::open(Arc::new(self.store.clone()), options).await?))
    }

    /// Checks the present contents on a copy of the disks. No background work runs there.
    pub async fn checks(&self) -> Result<Checked, String> {
        let power = self.power.after(Fate::All);
        let [c, w] = <[Disk; 2]>::try_from(power.disks()).ok().expect("c and w");
        c.at_once(true);
        w.at_once(true);
        let mut w: Arc<dyn Device> = Arc::new(w);
        if self.worm == Worm::Fake {
            w = Arc::new(FakeWorm::open(w).await.map_err(|error| error.to_string())?);
        }
        if self.worm == Worm::Store {
            w = self.in_store(w.shape().sectors, true).await.map_err(|error| error.to_string())?;
        }
        // Unfinished work stays unfinished.
        let c: Arc<dyn Device> = if self.worm == Worm::InPlace { Arc::new(Nothing) } else { Arc::new(c) };
        let said = |error: nine_block::Error| error.to_string();
        let c = match &self.made[0] {
            Some(made) => made.copy().over(c, None).await.map_err(said)?,
            None => c,
        };
        let w = match &self.made[1] {
            Some(made) => made.copy().over(w, None).await.map_err(said)?,
            None => w,
        };
        let opened = Archive::look(c, w, &self.settings).await;
        let (archive, _driver) = opened.map_err(|error| error.to_string())?;
        let checked = archive.check(Depth::Dumps).await.map_err(|error| error.to_string())?;
        match checked.faults.is_empty() {
            true => Ok(checked),
            false => Err(checked.faults.join("\n")),
        }
    }

    /// Returns the state of the devices, for messages.
    pub fn status(&self) -> String {
        self.made.iter().flatten().map(DeviceExpression::status).collect()
    }

    /// Formats the worm, without power cuts.
    pub async fn makes_worm(&mut self) {
        if self.worm == Worm::Fake {
            let of: Arc<dyn Device> = Arc::new(self.w.clone());
            FakeWorm::make(of, self.ream.block / 512).await.expect("it is made");
        }
    }

    /// Starts a life, and opens the archive.
    pub async fn opens(&mut self, rng: &mut Rng) -> nine_block::Result<Running> {
        let life = Life { env: self.env.clone(), over: Rc::default() };
        *self.mains.over.borrow_mut() = life.over.clone();
        let mut opened = self.opens_once().await;
        if opened.is_err() && self.made.iter().flatten().any(DeviceExpression::is_away) {
            // The mirror cannot know whether the absent member is newer.
            self.made.iter().flatten().for_each(DeviceExpression::comes);
            opened = self.opens_once().await;
        }
        let (archive, driver) = opened?;
        self.members_go(&life, rng);
        life.spawn(Box::pin(driver));
        let (ticked, env, mut rng) = (archive.clone(), life.clone(), rng.fork());
        life.spawn(Box::pin(async move {
            let start = env.now();
            loop {
                let pause = ticked.pause();
                env.sleep_until(env.now() + pause + MS * rng.below(10) as u32).await;
                ticked.tick(env.now() - start);
            }
        }));
        let service = Service::new(Arc::new(archive.clone()), Gate::default(), Core::default());
        let peer = Peer { addr: "sim".into(), proof: Proof::Unix { uid: 0, gid: 0 } };
        let client = Client::within(&life, &service, peer, Options::default()).await.expect("it answers");
        let main = client.attach("root", NOUID, "").await.expect("main is there");
        let dump = client.attach("root", NOUID, "dump").await.expect("dump is there");
        Ok(Running { life, archive, main, dump })
    }

    async fn opens_once(&mut self) -> nine_block::Result<(Archive, nine_fs::Driver)> {
        let (c, w) = self.devices().await?;
        Archive::open(c, w, &self.settings).await
    }

    /// From time to time a member of a mirror goes away and returns.
    fn members_go(&self, life: &Life, rng: &mut Rng) {
        for made in self.made.iter().flatten() {
            let (made, env, mut rng) = (made.copy(), life.clone(), rng.fork());
            life.spawn(Box::pin(async move {
                loop {
                    env.sleep_until(env.now() + MS * rng.below(2000) as u32).await;
                    match rng.below(3) {
                        0 => made.goes(),
                        1 => made.comes(),
                        _ if made.is_away() => {}
                        _ => made.returns(),
                    }
                }
            }));
        }
    }
}

impl Running {
    /// Reads all of `main`.
    pub async fn tree(&self) -> Result<Tree, nine_io::client::Error> {
        reads(&self.main, false).await
    }
}

/// Reads some dumps, which the oracle checks.
pub async fn reads_dumps(
    dump: &File,
    oracle: &Oracle,
    mut which: impl FnMut(u32) -> bool,
    mut failed: impl FnMut(nine_io::client::Error),
) {
    for kept in oracle.dumps() {
        if !which(kept.reads.get()) {
            continue;
        }
        let read = async { reads(&dump.walk(&kept.dumped.name).await?, false).await };
        match read.await {
            Ok(tree) => {
                if let Err(wrong) = oracle.judge_dump(&kept, &tree) {
                    panic!("{wrong}");
                }
            }
            Err(error) => failed(error),
        }
    }
}

/// Outcomes of requests: most succeed, at once or later. Some must be repeated, and some of these were executed.
fn fates(mut rng: Rng) -> impl FnMut(&Request) -> store::Fate + Send {
    move |request| match (rng.below(40), request) {
        (0, _) => store::Fate::Busy,
        (1, _) => store::Fate::Unheard,
        (2, Request::Get(_)) => store::Fate::Short,
        (2, Request::Put(_)) => store::Fate::Late,
        (3..20, _) => store::Fate::Slow,
        _ => store::Fate::Good,
    }
}

/// Releases slow requests, also those of a past life.
async fn answers(env: SimEnv, store: Memory, mut rng: Rng) {
    loop {
        env.sleep_until(env.now() + MS * (1 + rng.below(20)) as u32).await;
        store.go();
    }
}

/// Steps the disks while they have work, and cuts the power when it is time.
async fn steps(env: SimEnv, power: Power, mains: Rc<Mains>, pace: Rc<Cell<usize>>, mut rng: Rng) {
    loop {
        power.busy().await;
        if pace.get() > 0 {
            let rest = Duration::from_micros(rng.below(pace.get()) as u64);
            env.sleep_until(env.now() + rest).await;
        }
        power.step();
        mains.steps.set(mains.steps.get() + 1);
        match mains.left.get() {
            Some(0) => mains.cut(&power),
            left => mains.left.set(left.map(|left| left - 1)),
        }
    }
}
