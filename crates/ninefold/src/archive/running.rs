//! Running archives of this process: each on a thread of its own, which also opens its devices.
//!
//! In: [`Spec`]s; the same location is the same archive. Out: archives; their consoles, as directories by name. At
//! shutdown all archives are closed.
//!
//! Always holds: while an archive is open, a panic in any thread ends the process, so half a change is never committed.

use std::collections::{BTreeMap, BTreeSet};
use std::panic;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::task::{Poll, Waker};
use std::thread::Builder;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use arc_swap::ArcSwapOption;
use nine_fs::{Archive, Figure};
use nine_io::changes::Tap;
use nine_io::server::{Answer, FileServer, Req, Request};
use nine_io::synth::{Dir, File, Node, Tree};
use nine_mux::told;
use nine_net::{Env, rt};
use nine_proto::Names;

use super::make::{Making, ream};
use super::open::{self, Opened};
use super::places::word;
use super::{Options, Place, Spec, standby};
use crate::dial::within;

/// Longest wait for an archive to close.
const PATIENCE: Duration = Duration::from_secs(60);

/// The running archives, by location.
#[derive(Default)]
pub struct Archives(Mutex<BTreeMap<String, Running>>);

struct Running {
    options: Options,
    /// The words it is mounted by, without options: at most two, `fs:` and its path.
    words: BTreeSet<String>,
    coming: Arc<Coming>,
}

/// An open archive, with its unique name and the words it is mounted by.
struct Open {
    archive: Archive,
    name: String,
    words: String,
}

/// An archive that another thread opens, and the server for it once it is open.
#[derive(Default)]
pub struct Coming {
    state: Mutex<State>,
    now: Now,
}

/// The archive that is served now; empty until one is open.
#[derive(Clone, Default)]
struct Now(Arc<ArcSwapOption<Archive>>);

#[derive(Default)]
struct State {
    /// The archive's name once it is open, or why opening failed.
    come: Option<Result<String, String>>,
    /// Shutdown: the served archive is closed, and any later one must be closed by its opener.
    ends: bool,
    /// The archive's thread has finished.
    over: bool,
    waiting: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Coming {
    /// Reports the result of opening.
    pub fn come(&self, what: Result<(Archive, String), String>) {
        let what = what.map(|(archive, name)| {
            self.changes(archive);
            name
        });
        self.tells(|state| state.come = Some(what));
    }

    /// Replaces the served archive.
    pub fn changes(&self, to: Archive) {
        let old = self.now.0.swap(Some(Arc::new(to)));
        old.inspect(|old| old.ends_changes());
    }

    /// Waits until the archive is open, or cannot be opened.
    pub async fn opened(&self) -> Result<(), String> {
        self.until(|state| Some(state.come.as_ref()?.as_ref().map(drop).map_err(Clone::clone))).await
    }

    /// Waits until the program shuts down.
    pub async fn ending(&self) {
        self.until(|state| state.ends.then_some(())).await;
    }

    /// Returns whether the program is shutting down.
    pub fn ends(&self) -> bool {
        lock(&self.state).ends
    }

    /// Waits until the archive's thread has finished its work after the close.
    async fn over(&self) {
        self.until(|state| state.over.then_some(())).await;
    }

    fn tells(&self, what: impl FnOnce(&mut State)) {
        let mut state = lock(&self.state);
        what(&mut state);
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn until<T>(&self, is_so: impl Fn(&State) -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            let mut state = lock(&self.state);
            if let Some(is) = is_so(&state) {
                return Poll::Ready(is);
            }
            if !state.waiting.iter().any(|waker| waker.will_wake(cx.waker())) {
                state.waiting.push(cx.waker().clone());
            }
            Poll::Pending
        })
        .await
    }

    fn is_open(&self) -> Option<(Archive, String)> {
        let name = lock(&self.state).come.clone()?.ok()?;
        Some((self.now.archive(), name))
    }

    fn has_failed(&self) -> bool {
        matches!(lock(&self.state).come, Some(Err(_)))
    }
}

/// Forwards to the archive that is open now. Its nodes stay valid for the archive that replaces it.
impl FileServer for Coming {
    fn serve(&self, req: Req) -> Answer {
        self.now.with(|archive| archive.serve(req))
    }

    fn changes(&self, walk: &Request) -> Option<nine_proto::Result<Tap>> {
        self.now.with(|archive| FileServer::changes(archive, walk))
    }

    fn names(&self) -> Arc<dyn Names> {
        Arc::new(self.now.clone())
    }
}

/// Looks names up in the current archive: connections hold this for a long time.
impl Names for Now {
    fn user(&self, uid: u32) -> String {
        self.with(|archive| archive.user(uid))
    }

    fn group(&self, gid: u32) -> String {
        self.with(|archive| archive.group(gid))
    }

    fn uid(&self, name: &[u8]) -> Option<u32> {
        self.with(|archive| archive.uid(name))
    }

    fn gid(&self, name: &[u8]) -> Option<u32> {
        self.with(|archive| archive.gid(name))
    }
}

impl Now {
    fn with<T>(&self, does: impl FnOnce(&Archive) -> T) -> T {
        does(self.0.load().as_ref().expect("it is served when it is open"))
    }

    fn archive(&self) -> Archive {
        self.with(Archive::clone)
    }
}

impl Archives {
    /// Opens an archive and waits until it is open.
    pub async fn open(&self, spec: &Spec) -> Result<(), String> {
        let coming = self.begin(spec).map_err(|error| format!("{error:#}"))?;
        coming.opened().await
    }

    /// Starts to open an archive, unless that was done before.
    pub fn begin(&self, spec: &Spec) -> Result<Arc<Coming>> {
        let key = match &spec.place {
            Place::Own => Place::own()?.display().to_string(),
            place => place.to_string(),
        };
        let mut all = lock(&self.0);
        let word = word(spec);
        if let Some(running) = all.get_mut(&key).filter(|running| !running.coming.has_failed()) {
            ensure!(
                spec.options == Options::default() || spec.options == running.options,
                "it is open with other options: write them where it is mounted first, or everywhere"
            );
            running.words.insert(word);
            return Ok(running.coming.clone());
        }
        fall_together();
        let coming = Arc::new(Coming::default());
        let (of, spec, options) = (coming.clone(), spec.clone(), spec.options.clone());
        let begun = Builder::new().name("archive".into()).spawn(move || {
            let ended = rt::block_on(async |env| run(&spec, &of, env).await);
            if let Err(error) = ended {
                of.come(Err(error.to_string()));
            }
            of.tells(|state| state.over = true);
        });
        begun.context("a thread for an archive")?;
        all.insert(key, Running { options, words: [word].into(), coming: coming.clone() });
        Ok(coming)
    }

    fn running(&self) -> Vec<Open> {
        let all = lock(&self.0);
        let mut named: Vec<Open> = Vec::new();
        for running in all.values() {
            let Some((archive, name)) = running.coming.is_open() else { continue };
            let words = running.words.iter().map(|word| format!("{word}\n")).collect();
            let is_taken = |name: &str| named.iter().any(|other| other.name == name);
            let plain = nine_proto::check_name(name.as_bytes()).map_or("archive".into(), |_| name);
            let mut own = plain.clone();
            let mut n = 1;
            while is_taken(&own) {
                n += 1;
                own = format!("{plain}.{n}");
            }
            named.push(Open { archive, name: own, words });
        }
        named
    }

    /// Returns the figures of each archive, by name.
    pub fn figures(&self) -> Vec<(String, Vec<Figure>)> {
        self.running().into_iter().map(|open| (open.name, open.archive.figures())).collect()
    }

    /// Returns the consoles of all archives as directories by name. Each has a file `server` with the words it is
    /// mounted by. A mux says which clients are the owner.
    pub fn consoles(self: &Arc<Self>, env: rt::Real) -> Tree {
        let mut tree = self.tree(env);
        tree.set_told(told);
        tree
    }

    /// Like [`Archives::consoles`], but without an owner.
    pub fn tree(self: &Arc<Self>, env: rt::Real) -> Tree {
        let all = self.clone();
        let list = move |_: &_| {
            let console = |Open { archive, name, words }| {
                let server = File::text(move |_| words.clone()).mode(0o444);
                (name, Node::from(archive.console().file("server", server)))
            };
            all.running().into_iter().map(console).collect()
        };
        Tree::new(Dir::new().live(list), env.wall()).audited("fs")
    }

    /// Closes all archives: all changes become durable and are put in place.
    ///
    /// # Errors
    /// The error of the first archive that failed to close. Synced data is durable nevertheless.
    pub async fn close(&self, env: &rt::Real) -> Result<()> {
        let all: Vec<Running> = std::mem::take(&mut *lock(&self.0)).into_values().collect();
        let mut result = Ok(());
        for Running { coming, .. } in all {
            // Set this first: an archive that opens later is then closed by its opener.
            coming.tells(|state| state.ends = true);
            let Some((archive, name)) = coming.is_open() else { continue };
            let closed = match within(env, PATIENCE, archive.close()).await {
                Some(closed) => closed.map_err(anyhow::Error::from),
                None => Err(anyhow::anyhow!("its devices do not answer")),
            };
            match closed {
                Ok(()) => {
                    tracing::info!("archive {name}: all is in its place");
                    // The lease is released at the end, so that another machine need not wait until it expires.
                    within(env, PATIENCE, coming.over()).await;
                }
                Err(error) => {
                    let text =
                        format!("archive {name}: what was changed last, and not synced, is not durable");
                    tracing::error!("{text}: {error:#}");
                    result = result.and(Err(error.context(text)));
                }
            }
        }
        result
    }
}

/// Opens an archive, reports that, and does its work until it is closed.
async fn run(spec: &Spec, coming: &Coming, env: rt::Real) {
    let opened = async {
        if spec.place == Place::Own {
            make_own(env).await?;
        }
        let opened = open::open(spec, env).await?;
        opened.schedule(spec)?;
        anyhow::Ok(opened)
    };
    if spec.options.arbiter.is_some() || spec.options.machine.is_some() {
        if let Err(error) = standby::run(spec, coming, env).await {
            coming.come(Err(format!("{error:#}")));
        }
        return;
    }
    match opened.await {
        Ok(Opened { archive, driver, name, ends }) => {
            coming.come(Ok((archive.clone(), name)));
            open::work(archive, driver, env).await;
            ends.close(&env).await;
        }
        Err(error) => coming.come(Err(format!("{error:#}"))),
    }
}

/// Creates the default archive if it does not exist.
async fn make_own(env: rt::Real) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    let path = Place::own()?;
    if path.exists() {
        return Ok(());
    }
    if let Some(dir) = path.parent() {
        let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
        made.with_context(|| dir.display().to_string())?;
    }
    let spec = Spec { place: Place::File(path.clone()), options: Options::default() };
    ream(&spec, &Making::usual(), env).await?;
    let bytes = std::fs::metadata(&path).map_or(0, |meta| meta.len());
    tracing::info!(
        "a new archive: {}, up to {}; it takes room as it fills",
        path.display(),
        indicatif::HumanBytes(bytes)
    );
    Ok(())
}

/// Makes every later panic end the process, also one that a runtime would catch.
fn fall_together() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let told = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            told(info);
            std::process::abort();
        }));
    });
}
