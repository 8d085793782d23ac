//! An archive that several machines may serve. The primary holds a lease; the standbys serve the dumps on its worm.
//!
//! In: an arbiter, the archive's devices, commands of its console. Out: the archive that is served now: the whole
//! archive, or the dumps on the worm.
//!
//! ```text
//!            takeover (the primary is gone, or has handed over)
//! standby -----------------------------------------------------> primary
//!         <-----------------------------------------------------
//!            handover, or another machine has the lease
//! ```
//! Always holds: nothing is written to the archive's devices without the right to write that the lease gives
//! (docs/lease.md).

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail, ensure};
use futures_util::future::{Either, join, select};
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use nine_block::{Device, Error as Wrong, Kind, Right};
use nine_fs::lease::{self, Lease};
use nine_fs::{Archive, Recover, Recovered, Turns};
use nine_net::{Env, rt};

use super::open::{self, Opened, over, work};
use super::running::Coming;
use super::{Options, Spec};
use crate::blocks::Over;
use crate::dial::within;
use crate::disks::{Ends, Open, Parts};
use crate::output::date;

/// Longest wait for the arbiter, in addition to the time that the lease itself needs.
const PATIENCE: Duration = Duration::from_secs(10);
/// A request to the arbiter's disk is sent again after this time without an answer.
pub const SILENCE: Duration = Duration::from_secs(3);
/// Interval of checks of the lease's state.
const LOOK: Duration = Duration::from_millis(50);
/// Interval of checks for a lost right. Guards see the loss at once.
const BETWEEN: Duration = Duration::from_millis(500);
/// Interval of attempts to follow a worm that cannot be opened or has no dump yet.
const AGAIN: Duration = Duration::from_secs(2);

/// The work of the archives, each until it is closed.
type Works = FuturesUnordered<Pin<Box<dyn Future<Output = u64>>>>;

/// A console command, and where to put its answer.
struct Asked {
    line: String,
    answer: Arc<Answer>,
}

#[derive(Default)]
struct Answer(Mutex<Said>);

#[derive(Default)]
struct Said {
    result: Option<Result<(), String>>,
    waker: Option<Waker>,
}

/// State shared between consoles and the archive's thread.
#[derive(Default)]
struct Desk {
    state: Mutex<Waiting>,
}

#[derive(Default)]
struct Waiting {
    asked: VecDeque<Asked>,
    waker: Option<Waker>,
    /// For the status: this machine's state and its reason; then the lease, for trouble with the arbiter.
    said: String,
    lease: Option<Lease>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Answer {
    fn give(&self, said: Result<(), String>) {
        let waker = {
            let mut state = lock(&self.0);
            state.result = Some(said);
            state.waker.take()
        };
        waker.into_iter().for_each(Waker::wake);
    }

    async fn taken(&self) -> Result<(), String> {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.0);
            state.waker = Some(cx.waker().clone());
            state.result.take().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

impl Desk {
    async fn next(&self) -> Asked {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.state);
            state.waker = Some(cx.waker().clone());
            state.asked.pop_front().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    fn turns(self: &Arc<Self>) -> Turns {
        let (desk, shown) = (self.clone(), self.clone());
        Turns {
            does: Arc::new(move |line| {
                let answer = Arc::<Answer>::default();
                let waker = {
                    let mut state = lock(&desk.state);
                    state.asked.push_back(Asked { line: line.into(), answer: answer.clone() });
                    state.waker.take()
                };
                waker.into_iter().for_each(Waker::wake);
                Box::pin(async move { answer.taken().await })
            }),
            said: Arc::new(move || {
                let state = lock(&shown.state);
                let (main, trouble) = match &state.lease {
                    Some(lease) => (heard(&lease.state()), lease.trouble()),
                    None => (None, None),
                };
                let trouble = trouble.map(|why| format!("arbiter: {why}\n"));
                [Some(state.said.clone()), main, trouble].into_iter().flatten().collect()
            }),
        }
    }
}

/// Describes the other machine that is the primary, for the status.
fn heard(state: &lease::State) -> Option<String> {
    let lease::State::Watching { main: Some(lease::Main { name, epoch, silent, .. }) } = state else {
        return None;
    };
    Some(format!("main one {name}, epoch {epoch}, heard {silent:.0?} ago\n"))
}

/// A clock that also advances while the machine is suspended.
struct Clock(rt::Real);

impl lease::Clock for Clock {
    fn now(&self) -> Duration {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
    }

    fn sleep_until(&self, at: Duration) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        Box::pin(self.0.sleep_until(self.0.now() + at.saturating_sub(self.now())))
    }

    fn entropy(&self, bytes: &mut [u8]) {
        self.0.entropy(bytes);
    }
}

/// The archive that is served now, and the right to write to it.
struct Now {
    archive: Archive,
    number: u64,
    right: Option<Arc<Right>>,
    ends: Ends,
    /// The right does not come from the arbiter.
    alone: bool,
    /// Set if this machine should follow the worm (for this reason) but could not open it. The last archive is still
    /// served.
    stale: Option<String>,
}

struct Standby {
    spec: Spec,
    env: rt::Real,
    arbiter: Arc<dyn Device>,
    machine: String,
    lease: Lease,
    period: Duration,
    desk: Arc<Desk>,
    works: Works,
    begun: u64,
    /// The largest lease epoch seen on the worm.
    floor: u64,
}

/// Serves the archive as primary or standby until it is closed.
///
/// # Errors
/// The archive could not be opened at the start. Later errors go to the log and to callers of console commands.
pub async fn run(spec: &Spec, coming: &Coming, env: rt::Real) -> Result<()> {
    let mut it = Standby::open(spec, env).await?;
    let mut now = it.first(coming).await?;
    coming.come(Ok((now.archive.clone(), now.archive.name().to_owned())));
    loop {
        match it.event(&now, coming).await {
            Event::Ended => {
                now.ends.close(&env).await;
                if now.right.take().is_some() {
                    // Release the lease, so that another machine need not wait until it expires.
                    within(&env, PATIENCE, it.lease.release()).await;
                }
                it.lease.end();
                return Ok(());
            }
            Event::Lost(why) => {
                tracing::error!("{why}: this machine is not the main one any more, and follows");
                now.ends.end();
                now.archive.stops(Wrong::new(Kind::Reserved, &why));
                it.steps_down(&mut now, coming, &why).await;
            }
            Event::Again(why) => it.steps_down(&mut now, coming, &why).await,
            Event::Back => {
                if let Err(error) = it.comes_back(&mut now, coming).await {
                    tracing::error!(
                        "{error:#}: the archive is not opened by the lease, and its worm is followed"
                    );
                }
            }
            Event::Asked(Asked { line, answer }) => {
                let words: Vec<&str> = line.split_whitespace().collect();
                let done = match (&words[..], &now.right) {
                    (["takeover"], None) => it.takes_over(&mut now, coming, false).await,
                    (["takeover", "main-is-dead"], None) => it.takes_over(&mut now, coming, true).await,
                    (["takeover", ..], Some(_)) => Err(anyhow!("this machine is the main one already")),
                    (["handover"], Some(_)) => it.hands_over(&mut now, coming).await,
                    (["handover"], None) => Err(anyhow!("this machine is not the main one")),
                    _ => Err(anyhow!("write: takeover, takeover main-is-dead, or handover")),
                };
                answer.give(done.map_err(|error| format!("{error:#}")));
            }
        }
    }
}

/// The epoch in which a machine's cache was last changed.
#[derive(Clone, Copy)]
enum Cache {
    /// There is no cache, or it is incomplete.
    Nothing,
    /// The cache does not contain an epoch: this is the largest epoch that the machine has held.
    Held(u64),
    /// The epoch in the cache.
    Of(u64),
}

impl Cache {
    fn epoch(self) -> u64 {
        match self {
            Self::Nothing => 0,
            Self::Held(epoch) | Self::Of(epoch) => epoch,
        }
    }

    /// Returns whether the cache is newer than that of another machine, which has held this epoch.
    fn is_newer(self, held: u64) -> bool {
        self.epoch() > held
    }
}

enum Event {
    /// The archive was closed: the program ends.
    Ended,
    /// The right to write is lost, with the reason.
    Lost(String),
    /// The machine worked without the arbiter; now the arbiter is back and has granted the lease.
    Back,
    /// It is time to try to follow the worm again; with the reason for following.
    Again(String),
    Asked(Asked),
}

impl Standby {
    async fn open(spec: &Spec, env: rt::Real) -> Result<Self> {
        let Options { arbiter: Some(word), machine: Some(machine), .. } = &spec.options else {
            bail!("`arbiter=` and `machine=` belong together: which of its machines this one is");
        };
        let arbiter = arbiter(word, &spec.options, env).await?;
        let period = lease::Arbiter::read(&*arbiter).await.with_context(|| word.clone())?.period;
        let lease = Self::life(&arbiter, machine, env).await?;
        let desk = Arc::<Desk>::default();
        let works = Works::new();
        let (mut spec, machine) = (spec.clone(), machine.clone());
        // Retries to a disk must end before another machine may write there.
        spec.options.patience = Some(period / 4);
        Ok(Self { spec, env, arbiter, machine, lease, period, desk, works, begun: 0, floor: 0 })
    }

    /// Opens a new lease client if this one lost its lease: only a new client can get it again.
    async fn lives_again(&mut self) -> Result<()> {
        if let lease::State::Lost { .. } = self.lease.state() {
            self.lease = Self::life(&self.arbiter, &self.machine, self.env).await?;
        }
        Ok(())
    }

    /// Opens a lease client at the arbiter and starts its task.
    async fn life(arbiter: &Arc<dyn Device>, machine: &str, env: rt::Real) -> Result<Lease> {
        let lease = Lease::open(arbiter.clone(), machine, Arc::new(Clock(env))).await?;
        env.spawn(Box::pin(lease.clone().run()));
        Ok(lease)
    }

    /// Chooses the role at the start: primary, unless it must stand by, or another machine is the primary or was since.
    /// If the worm has no dump yet, a standby waits for the first one.
    async fn first(&mut self, coming: &Coming) -> Result<Now> {
        let (why, failed) = match self.may_begin().await {
            Ok(None) => match self.main(false, false, coming).await {
                Ok(now) => return Ok(now),
                Err(error) => match self.alive() {
                    // Of several machines that start together, one becomes the primary.
                    Some(main) => (format!("{} is the main one", main.name), None),
                    None => (format!("{error:#}"), Some(error)),
                },
            },
            Ok(Some(why)) => (why, None),
            Err(error) => (format!("{error:#}"), None),
        };
        let mut said = false;
        let opened = loop {
            match self.watched().await {
                Ok(opened) => break opened,
                Err(error) if failed.is_none() && is_without_dump(&error) && !coming.ends() => {
                    if !std::mem::replace(&mut said, true) {
                        tracing::warn!(
                            "{why}: this machine stands by, and waits for the first dump: {error:#}"
                        );
                    }
                }
                Err(error) => return Err(failed.unwrap_or(error)),
            }
            select(pin!(self.env.sleep_until(self.env.now() + AGAIN)), pin!(coming.ending())).await;
        };
        // A newly created arbiter may grant smaller epochs than the worm has seen. A takeover repairs that: it claims
        // an epoch above them. Every other error that prevents this machine from being primary is returned.
        if let Some(error) = failed
            && known_epoch(&self.spec, self.env).await <= self.lease.held_by(&self.machine)
        {
            return Err(error);
        }
        tracing::warn!(
            "{why}: this machine stands by, and follows; `ninefold fs takeover` makes it the main one"
        );
        Ok(self.follower(opened, &why))
    }

    /// Returns `None` if the machine may start as primary, else the reason why not.
    async fn may_begin(&self) -> Result<Option<String>> {
        if self.spec.options.standby {
            return Ok(Some("it is to stand by".into()));
        }
        if let Some(main) = self.main_one().await? {
            return Ok(Some(format!("{} is the main one", main.name)));
        }
        match self.lease.last_but(&self.machine) {
            Some((last, held)) if !self.is_shared() && !self.cache().await?.is_newer(held) => {
                let text = format!(
                    "{last} has been the main one since this machine was: its cache has what is newest"
                );
                Ok(Some(text))
            }
            _ => Ok(None),
        }
    }

    /// Returns the other machine that is a live primary. Watches the arbiter for as long as it takes to be sure.
    async fn main_one(&self) -> Result<Option<lease::Main>> {
        let begun = self.env.now();
        loop {
            let waited = self.env.now().saturating_sub(begun);
            match self.lease.state() {
                lease::State::Lost { why } => bail!("{why}"),
                _ if !self.lease.knows() => {}
                lease::State::Watching { main: None } => return Ok(None),
                lease::State::Watching { main: Some(main) } if main.is_gone => return Ok(None),
                // The first observation may be old: the arbiter's disk is read only every quarter of a period.
                lease::State::Watching { main: Some(main) } if main.silent + self.period / 2 < waited => {
                    return Ok(Some(main));
                }
                _ => {}
            }
            if waited > 2 * self.period + PATIENCE {
                let why = self.lease.trouble().unwrap_or_else(|| "it does not answer".into());
                bail!("{}: {why}", self.known());
            }
            self.env.sleep_until(self.env.now() + LOOK).await;
        }
    }

    /// Returns the other machine that seems to be the primary now.
    fn alive(&self) -> Option<lease::Main> {
        match self.lease.state() {
            lease::State::Watching { main: Some(main) } if !main.is_gone => Some(main),
            _ => None,
        }
    }

    /// Describes the known state while the arbiter does not answer, so that a person can decide whether the primary is
    /// dead. Short, because a 9P error has 127 bytes.
    fn known(&self) -> String {
        match self.lease.state() {
            lease::State::Watching { main: Some(lease::Main { name, epoch, silent, .. }) } => {
                format!("{name} was the main one (epoch {epoch}) {silent:.0?} ago, and may be still")
            }
            _ => format!("the arbiter {}", self.arbiter.name()),
        }
    }

    /// Becomes the primary; `takes` if a user ordered a takeover.
    async fn main(&mut self, takes: bool, is_dead: bool, coming: &Coming) -> Result<Now> {
        // Only this machine changes its own cache, so it is read now. A shared cache may still be in use. The other
        // machines' epochs are read after the claim, when they cannot change their caches any more.
        let cache = match self.spec.place.has_cache() {
            true if self.is_shared() => self.cache().await.unwrap_or(Cache::Nothing),
            true => self.cache().await?,
            false => Cache::Nothing,
        };
        let own = if self.is_shared() { Cache::Held(self.lease.held_by(&self.machine)) } else { cache };
        let worm = self.floor;
        // If the arbiter knows no machine, it is new. Then only an ordered takeover may claim above the known epochs.
        if takes || self.lease.last().is_some() {
            self.floor = worm.max(cache.epoch());
        }
        let right = {
            let (right, ends) = (pin!(self.right(is_dead)), pin!(coming.ending()));
            match select(right, ends).await {
                Either::Left((right, _)) => right?,
                Either::Right(_) => bail!("the program ends"),
            }
        };
        let other = self.lease.last_but(&self.machine);
        // Dumps of other machines may be newer than the arbiter knows.
        let is_newest = own.epoch() >= worm && other.as_ref().is_none_or(|(_, held)| own.is_newer(*held));
        let last = match (is_newest, own.epoch()) {
            (true, 0) => None,
            (true, _) => Some(self.machine.clone()),
            (false, _) => other.map(|(name, _)| name),
        };
        let opened = self.open_main(&right, last, is_newest).await;
        match opened {
            Ok((opened, said)) => {
                tracing::info!("this machine is the main one: {said}");
                let alone = !matches!(self.lease.state(), lease::State::Ours { .. });
                Ok(Now { alone, ..self.serves(opened, Some(right), said) })
            }
            Err(error) => {
                right.give_up().await;
                let lets_go = async {
                    match self.is_shared() {
                        true => self.lease.release().await,
                        // Only our own cache was opened; the newest data is still on the other machine.
                        false => self.lease.forgo().await,
                    }
                };
                within(&self.env, PATIENCE, lets_go).await;
                Err(error)
            }
        }
    }

    /// Reads the epoch from this machine's own cache.
    async fn cache(&self) -> Result<Cache> {
        Ok(match open::cache_epoch(&self.spec, self.env).await? {
            Some(0) => Cache::Held(self.lease.held_by(&self.machine)),
            Some(epoch) => Cache::Of(epoch),
            None => Cache::Nothing,
        })
    }

    async fn right(&self, is_dead: bool) -> Result<Arc<Right>> {
        let patience = 3 * self.period + PATIENCE;
        let claimed = match is_dead {
            true => within(&self.env, patience, self.lease.force(self.floor)).await,
            false => within(&self.env, patience, self.lease.claim(self.floor)).await,
        };
        match (claimed, self.lease.trouble()) {
            (Some(claimed), _) => Ok(claimed?),
            (None, Some(why)) if is_dead => Ok(self.alone(&why)),
            (None, Some(why)) => bail!("the arbiter {} does not give the lease: {why}", self.arbiter.name()),
            (None, None) => match self.alive() {
                Some(main) => bail!(lives(&main)),
                None => bail!(
                    "the arbiter {} does not give the lease: has another machine the name {}, or is it too slow for \
                     its period of {:?}?",
                    self.arbiter.name(),
                    self.machine,
                    self.period
                ),
            },
        }
    }

    /// Creates a right without the arbiter, for which the administrator is responsible. When the arbiter returns, the
    /// task claims the lease. If another machine turns out to be the primary, the right is lost.
    fn alone(&self, why: &str) -> Arc<Right> {
        tracing::warn!("{why}: this machine goes on without the arbiter, as it was told to");
        let clock = Clock(self.env);
        let epoch = self.lease.next_epoch(self.floor);
        let right = Right::new(epoch, Arc::new(move || lease::Clock::now(&clock)));
        right.extend(Duration::MAX);
        let (lease, env, right) = (self.lease.clone(), self.env, Arc::new(right));
        let alone = right.clone();
        env.spawn(Box::pin(async move {
            // Time at which the arbiter came back.
            let mut back = None;
            loop {
                env.sleep_until(env.now() + LOOK).await;
                match lease.state() {
                    _ if right.lost().is_some() => return,
                    _ if !lease.knows() => back = None,
                    lease::State::Lost { why } => return right.lose(why),
                    lease::State::Watching { main: Some(main) } if !main.is_gone => {
                        // Only now we see records from before the arbiter's failure. A live machine writes new ones.
                        let now = env.now();
                        if main.silent + 2 * LOOK < now - *back.get_or_insert(now) {
                            return right.lose(both_live(&main.name));
                        }
                    }
                    // Claim the lease like any other, unless the silent machine is heard again.
                    _ => {
                        let heard = async {
                            loop {
                                env.sleep_until(env.now() + LOOK).await;
                                match lease.state() {
                                    lease::State::Watching { main: Some(main) } if !main.is_gone => {
                                        return main.name;
                                    }
                                    _ => {}
                                }
                            }
                        };
                        match select(pin!(lease.claim(right.epoch())), pin!(heard)).await {
                            Either::Left((Ok(_), _)) => return,
                            Either::Left((Err(error), _)) => return right.lose(error),
                            Either::Right((name, _)) => return right.lose(both_live(&name)),
                        }
                    }
                }
            }
        }));
        alone
    }

    /// Opens the archive itself. Also returns text that says which data it continues from.
    async fn open_main(
        &self,
        right: &Arc<Right>,
        last: Option<String>,
        is_newest: bool,
    ) -> Result<(Opened, String)> {
        let epoch = right.epoch();
        let of = match &last {
            Some(name) => format!("after {name}, "),
            None => String::new(),
        };
        let mut said = format!("{of}epoch {epoch}, all that was answered as durable is there");
        if !is_newest && !self.is_shared() {
            let mut random = [0; 8];
            self.env.entropy(&mut random);
            let how = Recover { dump: None, fastworm: None, random: u64::from_ne_bytes(random) };
            let recovered = open::recover(&self.spec, &how, Some(right), self.env).await?;
            let Recovered { dump, time, .. } = recovered;
            said = format!(
                "{of}epoch {epoch}, from dump {dump} of {}: what was changed later is not here",
                date(time)
            );
        }
        let opened = open::open_by(&self.spec, Some(right), self.env).await?;
        opened.schedule(&self.spec)?;
        Ok((opened, said))
    }

    /// Returns whether a new primary continues with the same devices: a shared cache, or no cache device at all.
    fn is_shared(&self) -> bool {
        self.spec.options.shared || !self.spec.place.has_cache()
    }

    /// Opens the dumps on the worm.
    async fn watched(&self) -> Result<Opened> {
        open::follow(&self.spec.place.worm()?, &self.spec.options, self.env).await
    }

    /// Starts to serve the worm's dumps.
    fn follower(&mut self, opened: Opened, why: &str) -> Now {
        self.serves(opened, None, format!("it follows: {why}"))
    }

    fn serves(&mut self, opened: Opened, right: Option<Arc<Right>>, said: String) -> Now {
        self.begun += 1;
        let (number, Opened { archive, driver, ends, .. }) = (self.begun, opened);
        archive.takes_turns(self.desk.turns());
        self.says(if right.is_some() { "the main one" } else { "standby" }, &said);
        let working = work(archive.clone(), driver, self.env);
        self.works.push(Box::pin(async move {
            working.await;
            number
        }));
        Now { archive, number, right, ends, alone: false, stale: None }
    }

    /// Sets the text for the status.
    fn says(&self, part: &str, said: &str) {
        let mut state = lock(&self.desk.state);
        state.said = format!("machine {}, {part}: {said}\n", self.machine);
        state.lease = Some(self.lease.clone());
    }

    async fn event(&mut self, now: &Now, coming: &Coming) -> Event {
        let desk = self.desk.clone();
        let (env, lease) = (self.env, self.lease.clone());
        let lost = async move {
            let Some(right) = &now.right else {
                let Some(why) = &now.stale else { return std::future::pending().await };
                env.sleep_until(env.now() + AGAIN).await;
                return Event::Again(why.clone());
            };
            loop {
                if let Some(why) = right.lost() {
                    return Event::Lost(why.to_string());
                }
                if now.alone && matches!(lease.state(), lease::State::Ours { .. }) {
                    return Event::Back;
                }
                env.sleep_until(env.now() + BETWEEN).await;
            }
        };
        let (lost, asked) = (pin!(lost), pin!(desk.next()));
        let other = select(lost, asked);
        let works = &mut self.works;
        let closed = async {
            // Earlier archives may end at any time, when they have given their answers.
            while works.next().await.is_some_and(|number| number != now.number) {}
        };
        // An archive that was closed to be opened again, but could not, is not the end of the program.
        let ended = pin!(join(closed, coming.ending()));
        match select(ended, other).await {
            Either::Left(_) => Event::Ended,
            Either::Right((Either::Left((lost, _)), _)) => lost,
            Either::Right((Either::Right((asked, _)), _)) => Event::Asked(asked),
        }
    }

    /// Awaits a future while the archives' work goes on.
    async fn beside<T>(works: &mut Works, what: impl Future<Output = T>) -> T {
        let mut what = pin!(what);
        loop {
            if works.is_empty() {
                return what.await;
            }
            match select(what, works.next()).await {
                Either::Left((done, _)) => return done,
                Either::Right((_, rest)) => what = rest,
            }
        }
    }

    async fn takes_over(&mut self, now: &mut Now, coming: &Coming, is_dead: bool) -> Result<()> {
        self.floor = now.archive.newest_epoch();
        self.lives_again().await?;
        let before = lock(&self.desk.state).said.clone();
        self.says("standby", "it takes over");
        let mut works = std::mem::take(&mut self.works);
        let new = Self::beside(&mut works, async {
            if !is_dead {
                let main = match select(pin!(self.main_one()), pin!(coming.ending())).await {
                    Either::Left((main, _)) => main?,
                    Either::Right(_) => bail!("the program ends"),
                };
                if let Some(main) = main {
                    bail!(lives(&main));
                }
            }
            self.main(true, is_dead, coming).await
        });
        let new = new.await;
        self.works.extend(works);
        match new {
            Ok(new) => {
                self.becomes(now, new, coming).await;
                Ok(())
            }
            Err(error) => {
                lock(&self.desk.state).said = before;
                Err(error)
            }
        }
    }

    /// Hands over to another machine. The worm is opened before anything is given up; if that fails, this machine stays
    /// the primary.
    async fn hands_over(&mut self, now: &mut Now, coming: &Coming) -> Result<()> {
        let right = now.right.clone().context("this machine is not the main one")?;
        let mut works = std::mem::take(&mut self.works);
        let archive = now.archive.clone();
        let done = Self::beside(&mut works, async {
            // The other machine continues from the worm's dumps, and a follower needs at least one.
            if !self.is_shared() || !archive.dumps().iter().any(|dump| dump.copied) {
                archive.dump().await.context("it stays the main one")?;
                archive.copied().await.context("it stays the main one")?;
            }
            let opened =
                self.watched().await.context("it stays the main one: its worm cannot be followed")?;
            anyhow::Ok((opened, archive.close().await))
        });
        let done = done.await;
        self.works.extend(works);
        let (opened, closed) = done?;
        now.ends.close(&self.env).await;
        right.give_up().await;
        within(&self.env, PATIENCE, self.lease.release()).await;
        let new = self.follower(opened, "it has been handed over");
        self.becomes(now, new, coming).await;
        closed.context("what was changed last may not be durable")
    }

    /// Opens the archive again under the lease, after the arbiter has come back and granted it.
    async fn comes_back(&mut self, now: &mut Now, coming: &Coming) -> Result<()> {
        let mut works = std::mem::take(&mut self.works);
        let (archive, ends) = (now.archive.clone(), now.ends.clone());
        let new = Self::beside(&mut works, async {
            archive.close().await?;
            ends.end();
            self.main(true, false, coming).await
        });
        let new = new.await;
        self.works.extend(works);
        if let Some(right) = &now.right {
            right.lose("the arbiter is there again, and the lease counts");
        }
        match new {
            Ok(new) => {
                self.becomes(now, new, coming).await;
                Ok(())
            }
            Err(error) => {
                self.steps_down(now, coming, &format!("{error:#}")).await;
                Err(error)
            }
        }
    }

    /// Releases the lease and follows the worm; a failure is retried later.
    async fn steps_down(&mut self, now: &mut Now, coming: &Coming, why: &str) {
        (now.right, now.stale) = (None, Some(why.into()));
        let mut works = std::mem::take(&mut self.works);
        let opened = Self::beside(&mut works, async {
            if let Err(error) = self.lives_again().await {
                tracing::warn!("{error:#}: it is tried again by who takes over");
            }
            within(&self.env, PATIENCE, self.lease.release()).await;
            self.watched().await
        });
        let opened = opened.await;
        self.works.extend(works);
        match opened {
            Ok(opened) => {
                let new = self.follower(opened, why);
                self.becomes(now, new, coming).await;
            }
            Err(error) => {
                let said =
                    format!("{error:#}: the worm cannot be followed, and what was there last is served");
                tracing::error!("{said}; it is tried again");
                self.says("standby", &said);
            }
        }
    }

    /// Switches the service to the new archive and closes the old one.
    async fn becomes(&mut self, now: &mut Now, new: Now, coming: &Coming) {
        coming.changes(new.archive.clone());
        let old = std::mem::replace(now, new);
        if let Err(error) = Self::beside(&mut self.works, old.archive.close()).await {
            tracing::debug!("{error}: of what was served before");
        }
        // At shutdown only the old archive was closed, so close the new one here.
        if coming.ends()
            && let Err(error) = Self::beside(&mut self.works, now.archive.close()).await
        {
            tracing::error!("{error}: of what was just opened");
        }
    }
}

/// Returns whether the error means a worm without a dump.
fn is_without_dump(error: &anyhow::Error) -> bool {
    let mut all = error.chain().filter_map(|cause| cause.downcast_ref::<Wrong>());
    all.any(|error| error.kind == Kind::Unwritten)
}

fn lives(lease::Main { name, epoch, .. }: &lease::Main) -> String {
    format!(
        "{name} is the main one (epoch {epoch}), and alive: `ninefold fs handover` there; or, if that cannot be, end \
         it, and take over then"
    )
}

fn both_live(name: &str) -> String {
    format!(
        "{name} is the main one, too, and alive: what each has written since is on its own devices alone, and one of \
         them is to be given up"
    )
}

/// Runs `works` on an archive that is not being served. If machines share it, takes the lease meanwhile, so that no
/// other machine may write. With `newest`, the devices hold the newest data afterwards, and the others' data counts as
/// older.
///
/// # Errors
/// Another machine is the primary; the archive needs an arbiter and none was named; or an error of `works`.
pub async fn by_turn<T>(
    spec: &Spec,
    is_dead: bool,
    newest: bool,
    env: rt::Real,
    works: impl AsyncFnOnce(Option<&Arc<Right>>) -> Result<T>,
) -> Result<T> {
    let known = known_epoch(spec, env).await;
    if spec.options.arbiter.is_none() {
        ensure!(
            known == 0 || is_dead,
            "machines take turns with it (epoch {known}): name their arbiter, `,arbiter=DISK,machine=NAME`; or, if \
             that is lost and no other machine is at work, --main-is-dead"
        );
        return works(None).await;
    }
    let mut it = Standby::open(spec, env).await?;
    it.floor = known;
    if !is_dead && let Some(main) = it.main_one().await? {
        bail!(lives(&main));
    }
    let right = it.right(is_dead).await?;
    let done = works(Some(&right)).await;
    right.give_up().await;
    let lets_go = async {
        match newest && done.is_ok() || it.is_shared() {
            true => it.lease.release().await,
            false => it.lease.forgo().await,
        }
    };
    within(&env, PATIENCE, lets_go).await;
    it.lease.end();
    done
}

/// Returns the largest lease epoch on the archive's readable devices; 0 if there is none.
async fn known_epoch(spec: &Spec, env: rt::Real) -> u64 {
    let cache = match spec.place.has_cache() {
        true => open::cache_epoch(spec, env).await.ok().flatten().unwrap_or_default(),
        false => 0,
    };
    let worm = async {
        let Opened { archive, driver, ends, .. } =
            open::follow(&spec.place.worm()?, &spec.options, env).await?;
        let epoch = archive.newest_epoch();
        let (closed, ()) = join(archive.close(), work(archive.clone(), driver, env)).await;
        ends.end();
        closed?;
        anyhow::Ok(epoch)
    };
    cache.max(worm.await.unwrap_or_default())
}

/// Opens the arbiter's disk.
pub async fn arbiter(word: &str, options: &Options, env: rt::Real) -> Result<Arc<dyn Device>> {
    let over = Over { patience: SILENCE, ..over(options, env) };
    let parts = Parts::open(OsStr::new(word), Open::Share, &over)?;
    ensure!(!parts.has_ram(), "an arbiter in memory is nobody else's");
    Ok(parts.build(env, None).await.with_context(|| format!("the arbiter {word}"))?.device)
}
