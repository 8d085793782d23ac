//! The run of the suite, from the first contact with the server to the final cleanup.
//!
//! In: [`Options`], a way to dial, the time. Out: a [`Report`] as each case ends, and the [`Summary`].
//!
//! Always holds: every wait has a limit. A dead server ends the suite, instead of failing each further case. The
//! suite removes everything it has created.

use std::cell::Cell;
use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::ControlFlow;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use nine_net::{Env, Transport};
use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Dialect, NOTAG, Str, frame, show};

use crate::case::{Case, CaseResult, Needs, Outcome, StopReason, fail};
use crate::cases;
use crate::conn::ExchangeLog;
use crate::scene::{A, CaseContext, CheckedServer, MSIZE, ROOT};

/// Connects to the server.
pub trait Dial {
    /// Returns a new connection, before any message.
    fn dial(&self) -> Dialling<'_>;
}

/// A connection being made.
pub type Dialling<'a> = Pin<Box<dyn Future<Output = io::Result<Box<dyn Transport>>> + 'a>>;

/// The cases to run, and the user to run them as.
#[derive(Clone, Debug)]
pub struct Options {
    /// The dialects; empty: all that the server offers.
    pub dialects: Vec<Dialect>,
    /// Only cases with this text in their names.
    pub only: String,
    /// The time limit of one case.
    pub limit: Duration,
    /// The user name to attach as.
    pub uname: String,
    /// The user's number, or `NOUID`.
    pub uid: u32,
    /// Group of new files.
    pub gid: u32,
    /// The tree to attach to.
    pub aname: String,
    /// The directory for the scratch directory, from that tree's root.
    pub path: Vec<Vec<u8>>,
}

/// The result of one case in one dialect.
#[derive(Clone)]
pub struct Report {
    /// The case.
    pub case: &'static Case,
    /// The dialect.
    pub dialect: Dialect,
    /// The result.
    pub outcome: Outcome,
    /// The end of the exchange if the case failed, one message per line.
    pub exchange: Vec<String>,
}

/// The result of the suite.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The counts of each dialect.
    pub tallies: Vec<Tally>,
    /// The reason why the suite stopped early, and the number of cases that were not run.
    pub stopped: Option<(String, usize)>,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

/// The counts of one dialect.
#[derive(Clone, Copy, Debug)]
pub struct Tally {
    /// The dialect.
    pub dialect: Dialect,
    /// Cases that passed.
    pub passed: usize,
    /// Cases that failed.
    pub failed: usize,
    /// Cases that were skipped.
    pub skipped: usize,
}

impl Summary {
    /// Returns whether no case failed and the suite did not stop early.
    pub fn is_good(&self) -> bool {
        self.stopped.is_none() && self.tallies.iter().all(|tally| tally.failed == 0)
    }
}

/// The server cannot be tested, with the reason.
#[derive(Clone, Debug)]
pub struct Unusable(pub String);

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Unusable {}

/// Runs the suite. `each` gets the report of every case, and may end the suite by `Break`.
pub async fn check(
    env: Rc<dyn Env>,
    dial: Rc<dyn Dial>,
    options: Options,
    mut each: impl FnMut(&Report) -> ControlFlow<()>,
) -> Result<Summary, Unusable> {
    let server = Rc::new(CheckedServer { env, dial, options });
    let offered = offered(&server).await?;
    let mut summary = Summary::default();
    for (n, &dialect) in offered.iter().enumerate() {
        let mut round = DialectRun {
            server: server.clone(),
            dialect,
            offered: offered.clone(),
            scratch: Err(String::new()),
        };
        round.scratch = round.make_scratch().await?;
        if let Err(reason) = &round.scratch {
            summary.notes.push(format!("{}: {reason}: what needs a directory is skipped", dialect.name()));
        }
        let stopped = round.run(&mut summary, &mut each).await;
        if let Some(note) = round.sweep().await {
            summary.notes.push(note);
        }
        if let Some((reason, left)) = stopped {
            let more: usize =
                offered[n + 1..].iter().map(|&dialect| chosen(&server.options, dialect).count()).sum();
            summary.stopped = Some((reason, left + more));
            break;
        }
    }
    Ok(summary)
}

/// Returns the cases to run in a dialect.
pub fn chosen(options: &Options, dialect: Dialect) -> impl Iterator<Item = &'static Case> {
    let only = options.only.clone();
    cases::all().filter(move |case| case.speaks.has(dialect) && case.name.contains(&only))
}

/// Returns the dialects that are requested and offered. An error if there are none, or one is missing.
async fn offered(server: &Rc<CheckedServer>) -> Result<Vec<Dialect>, Unusable> {
    let wanted = &server.options.dialects;
    let all = [Dialect::P2000, Dialect::U, Dialect::L];
    let mut offered = Vec::new();
    let mut answers = Vec::new();
    for dialect in all.into_iter().filter(|dialect| wanted.is_empty() || wanted.contains(dialect)) {
        let scene = scene(server, dialect, &[]);
        let answer = within(server, greet(&scene)).await.ok_or_else(|| late(server, "to Tversion"))?;
        match answer {
            Ok(None) => offered.push(dialect),
            Ok(Some(other)) => answers.push(format!("{} to {}", other, dialect.name())),
            Err(StopReason::Fail(reason)) => {
                let heard = scene.log.take().pop().unwrap_or_default();
                return Err(Unusable(format!("it does not speak 9P: {reason}; {heard}")));
            }
            Err(StopReason::Gone(reason))
                if answers.is_empty() && offered.is_empty() && reason.starts_with(NO_CONNECTION) =>
            {
                return Err(Unusable(reason));
            }
            Err(StopReason::Gone(reason) | StopReason::Skip(reason)) => {
                answers.push(format!("{reason}, at {}", dialect.name()))
            }
        }
    }
    if offered.is_empty() {
        return Err(Unusable(format!("it offers no dialect of these; it answers {}", answers.join(", "))));
    }
    if let Some(missing) = wanted.iter().find(|dialect| !offered.contains(dialect)) {
        return Err(Unusable(format!(
            "it does not offer {}; it answers {}",
            missing.name(),
            answers.join(", ")
        )));
    }
    Ok(offered)
}

/// Sends Tversion. Returns the server's answer unless it agrees.
async fn greet(scene: &CaseContext) -> CaseResult<Option<String>> {
    let mut c = scene.dial().await?;
    let version = scene.dialect.name().as_bytes();
    c.send(NOTAG.0, &Tmsg::Version { msize: MSIZE, version }).await?;
    // An error is a wrong answer to Tversion, which a case of its own tests. Here it counts as an answer.
    let Some(frame) = c.frame().await? else { return Err(StopReason::Gone("it ends the connection".into())) };
    match Rmsg::decode(&frame, Dialect::P2000) {
        Ok((_, Rmsg::Version { version: answer, .. })) if answer == version => Ok(None),
        Ok((_, Rmsg::Version { version, .. })) => Ok(Some(show(version).to_string())),
        Ok((_, message @ (Rmsg::Lerror { .. } | Rmsg::Error { .. }))) => Ok(Some(message.label().into())),
        _ => fail(format!("Tversion was answered by a message of type {}", frame::type_of(&frame))),
    }
}

fn scene(server: &Rc<CheckedServer>, dialect: Dialect, offered: &[Dialect]) -> CaseContext {
    CaseContext {
        server: server.clone(),
        dialect,
        offered: offered.to_vec(),
        dir: Vec::new(),
        log: ExchangeLog::default(),
        dialled: Cell::new(0),
    }
}

/// The suite in one dialect.
struct DialectRun {
    server: Rc<CheckedServer>,
    dialect: Dialect,
    offered: Vec<Dialect>,
    /// The name of the suite's directory, or the reason why there is none.
    scratch: Result<Vec<u8>, String>,
}

impl DialectRun {
    /// Checks whether the server accepts the attach, and creates the scratch directory if it permits that.
    async fn make_scratch(&self) -> Result<Result<Vec<u8>, String>, Unusable> {
        let scene = scene(&self.server, self.dialect, &self.offered);
        let mut random = [0; 8];
        self.server.env.entropy(&mut random);
        let name = format!("nine-check-{:016x}", u64::from_le_bytes(random)).into_bytes();
        let session = within(&self.server, scene.session()).await;
        let session = session.ok_or_else(|| late(&self.server, "to Tattach"))?;
        let mut c = session.map_err(|stop| Unusable(format!("it does not let us in: {}", reason(stop))))?;
        match within(&self.server, c.mkdir(ROOT, &name)).await {
            Some(Ok(_)) => Ok(Ok(name)),
            Some(Err(stop)) => Ok(Err(format!("no directory can be made there: {}", reason(stop)))),
            None => Err(late(&self.server, "when a directory was to be made")),
        }
    }

    /// Runs the cases. If it stops early, it returns the reason and the number of cases left.
    async fn run(
        &self,
        summary: &mut Summary,
        each: &mut impl FnMut(&Report) -> ControlFlow<()>,
    ) -> Option<(String, usize)> {
        let mut tally = Tally { dialect: self.dialect, passed: 0, failed: 0, skipped: 0 };
        let mut stopped = None;
        let mut dead = 0;
        let cases: Vec<_> = chosen(&self.server.options, self.dialect).collect();
        for (n, &case) in cases.iter().enumerate() {
            let (report, lives) = self.one(case, n).await;
            match report.outcome {
                Outcome::Pass => tally.passed += 1,
                Outcome::Fail(_) => tally.failed += 1,
                Outcome::Skip(_) => tally.skipped += 1,
            }
            if each(&report).is_break() {
                stopped = Some(("interrupted".into(), cases.len() - n - 1));
                break;
            }
            dead = match lives {
                Some(true) => 0,
                Some(false) => dead + 1,
                None => dead,
            };
            if dead >= SILENT_CASES_MAX
                && let Some(reason) = self.lives().await
            {
                stopped = Some((reason, cases.len() - n - 1));
                break;
            }
        }
        summary.tallies.push(tally);
        stopped
    }

    /// Runs one case. Returns its report, and whether the server is alive, if that was tested.
    async fn one(&self, case: &'static Case, n: usize) -> (Report, Option<bool>) {
        let mut scene = scene(&self.server, self.dialect, &self.offered);
        if case.needs == Needs::Dir {
            match &self.scratch {
                Ok(scratch) => scene.dir = vec![scratch.clone(), format!("c{n}").into_bytes()],
                Err(reason) => {
                    let outcome = Outcome::Skip(reason.clone());
                    return (Report { case, dialect: self.dialect, outcome, exchange: Vec::new() }, None);
                }
            }
        }
        let run = async {
            make_dir(&scene).await?;
            (case.run)(&scene).await
        };
        let ended = within(&self.server, run).await;
        let exchange = scene.log.take();
        if let Some(Err(StopReason::Gone(_))) = &ended {
            // If the server is being restarted, the next case must not fail for that.
            self.lives().await;
        }
        if ended.is_some() && !scene.dir.is_empty() {
            // The final cleanup finds and reports files that stay.
            let _ = within(&self.server, sweep(&scene, &scene.dir)).await;
        }
        let (outcome, lives) = match ended {
            Some(Ok(())) => (Outcome::Pass, true),
            Some(Err(StopReason::Skip(reason))) => (Outcome::Skip(reason), true),
            Some(Err(StopReason::Fail(reason))) => (Outcome::Fail(reason), true),
            Some(Err(StopReason::Gone(reason))) => (Outcome::Fail(reason), false),
            None => (Outcome::Fail(late(&self.server, "").0), false),
        };
        (Report { case, dialect: self.dialect, outcome, exchange }, Some(lives))
    }

    /// Returns the reason why the server no longer answers; `None` if it does.
    async fn lives(&self) -> Option<String> {
        let scene = scene(&self.server, self.dialect, &self.offered);
        match within(&self.server, async { scene.session().await?.attr(ROOT).await }).await {
            Some(Ok(_)) => None,
            Some(Err(stop)) => Some(reason(stop)),
            None => Some(late(&self.server, "").0),
        }
    }

    /// Removes the suite's directory. Returns a note if that fails.
    async fn sweep(&self) -> Option<String> {
        let scratch = self.scratch.as_ref().ok()?;
        let scene = scene(&self.server, self.dialect, &self.offered);
        let swept = within(&self.server, sweep(&scene, std::slice::from_ref(scratch))).await;
        let why = match swept {
            Some(Ok(())) => return None,
            Some(Err(stop)) => reason(stop),
            None => late(&self.server, "").0,
        };
        Some(format!("{} could not be removed: {why}", show(scratch)))
    }
}

/// Creates the directory of a case, if it has one, on a connection of its own.
async fn make_dir(scene: &CaseContext) -> CaseResult {
    let [scratch, name] = &scene.dir[..] else { return Ok(()) };
    let mut c = scene.session().await?;
    c.walk_whole(ROOT, A, &[scratch]).await?;
    c.mkdir(A, name).await?;
    scene.log.take();
    Ok(())
}

/// Removes a directory tree, on a connection of its own.
async fn sweep(scene: &CaseContext, path: &[Vec<u8>]) -> CaseResult {
    let mut c = scene.session().await?;
    let mut todo = vec![path.to_vec()];
    let mut steps = 0;
    while let Some(path) = todo.last().cloned() {
        steps += 1;
        if steps > CLEANUP_STEPS_MAX {
            return fail("there is no end of it");
        }
        let names: Vec<Str<'_>> = path.iter().map(Vec::as_slice).collect();
        let Some((last, above)) = names.split_last() else { break };
        c.walk_whole(ROOT, A, above).await?;
        let kept = c.try_unlink(A, last).await?;
        c.clunk(A).await?;
        if kept.is_none() {
            todo.pop();
            continue;
        }
        c.walk_whole(ROOT, A, &names).await?;
        let entries = c.list(A).await?;
        for (entry, qid) in &entries {
            let below = [&path[..], std::slice::from_ref(entry)].concat();
            if qid.is_dir() {
                todo.push(below);
                continue;
            }
            c.unlink(A, entry).await?;
        }
        c.clunk(A).await?;
        if entries.is_empty() {
            return fail(format!("{} is empty and cannot be removed", show(&path.join(&b'/'))));
        }
    }
    Ok(())
}

/// Returns the future's result; `None` if the time limit of a case passes first.
async fn within<T>(server: &CheckedServer, future: impl Future<Output = T>) -> Option<T> {
    let env = &server.env;
    let mut late = env.sleep_until(env.now() + server.options.limit);
    let mut future = pin!(future);
    poll_fn(|cx| match future.as_mut().poll(cx) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => late.as_mut().poll(cx).map(|()| None),
    })
    .await
}

fn late(server: &CheckedServer, to: &str) -> Unusable {
    let limit = server.options.limit.as_secs_f32();
    let to = if to.is_empty() { String::new() } else { format!(" {to}") };
    Unusable(format!("no answer{to} within {limit} s"))
}

fn reason(stop: StopReason) -> String {
    match stop {
        StopReason::Fail(reason) | StopReason::Skip(reason) | StopReason::Gone(reason) => reason,
    }
}

/// The start of the error of a failed dial.
pub(crate) const NO_CONNECTION: &str = "no connection";
/// After this many cases in a row without an answer, the suite checks whether the server is alive.
const SILENT_CASES_MAX: usize = 3;
/// The maximum number of steps of a cleanup; more than all cases need.
const CLEANUP_STEPS_MAX: usize = 20_000;
