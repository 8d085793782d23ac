//! `check-server`: runs the conformance suite against a server and reports like a test runner.
//!
//! In: a place, and the selected cases. Out: a line for each case that failed or was skipped; below a failure, the
//! manual's clause and the exchanged messages; and a summary for each dialect. Or the same as JSON. The suite itself is
//! in nine-check.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io::{self, IsTerminal};
use std::ops::ControlFlow;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use anyhow::{Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use nine_check::{Case, Dial, Dialling, Needs, Options, Outcome, Report, Speaks, Summary};
use nine_io::channel::Asking;
use nine_net::shm::Channel;
use nine_net::{Addr, Env, Socket, rt};
use nine_proto::Dialect;
use serde_json::json;

use crate::cli;
use crate::config::{Config, DialectChoice, Remote};
use crate::dial::{Sessions, trust};
use crate::fail::{self, Interrupted, Tally};
use crate::operand::{Place, ServerAddr};
use crate::output::Output;
use crate::serve::join_host;

pub fn run(args: cli::CheckServer, config: &Config) -> Result<Tally> {
    let mut out = Output::new();
    let Some(path) = args.path.as_ref().filter(|_| !args.list) else {
        for case in nine_check::all().filter(|case| case.name.contains(&args.only)) {
            listed(&mut out, case, args.json)?;
        }
        out.flush()?;
        return Ok(Tally::default());
    };
    let remote = config.remote(&args.remote)?;
    if !remote.push.is_empty() {
        bail!(
            "it judges a server by its own messages, with nothing pushed on the connection: leave out --push"
        );
    }
    let place = Place::parse(path, &remote)?;
    let ended: Result<Summary> = rt::block_on(async |env| {
        let options = options(&args, &place, &Sessions::new(remote.clone(), env))?;
        let total: usize = dialects(&args).iter().map(|d| nine_check::chosen(&options, *d).count()).sum();
        let dialler = Dialler { addr: place.addr.clone(), remote, limit: options.limit };
        let mut teller = Teller { out, json: args.json, verbose: args.verbose, bar: bar(total) };
        let mut failed = Ok(());
        let mut signals = rt::signals()?;
        let stop = Cell::new(None);
        let summary = {
            let each = |report: &Report| {
                failed = teller.case(report);
                if failed.is_err() || stop.get().is_some() {
                    ControlFlow::Break(())
                } else {
                    ControlFlow::Continue(())
                }
            };
            let mut suite = pin!(nine_check::check(Rc::new(env), Rc::new(dialler), options, each));
            let mut next = pin!(signals.next());
            poll_fn(|cx| {
                // Signal the suite instead of dropping it: the running case ends and the test directory is removed.
                if stop.get().is_none()
                    && let Poll::Ready(signal) = next.as_mut().poll(cx)
                {
                    stop.set(Some(signal));
                }
                suite.as_mut().poll(cx)
            })
            .await?
        };
        failed?;
        teller.summary(&summary)?;
        match stop.get() {
            Some(signal) => Err(Interrupted(signal).into()),
            None => Ok(summary),
        }
    })?;
    let mut tally = Tally::default();
    tally.add(usize::from(!ended?.is_good()));
    Ok(tally)
}

fn options(args: &cli::CheckServer, place: &Place, sessions: &Sessions) -> Result<Options> {
    let (uname, uid) = sessions.user();
    let aname = args.remote.aname.clone().unwrap_or_default();
    let aname = match sessions.token(place)? {
        Some(token) if aname.is_empty() => format!("token:{token}"),
        Some(token) => format!("token:{token}/{}", aname.trim_start_matches('/')),
        None => aname,
    };
    let names = place.path.split(|&b| b == b'/').filter(|name| !name.is_empty());
    Ok(Options {
        dialects: if args.remote.dialect.is_some() { dialects(args) } else { Vec::new() },
        only: args.only.clone(),
        limit: Duration::from_secs(args.remote.timeout.unwrap_or(LIMIT).into()),
        uname,
        uid,
        gid: rustix::process::getegid().as_raw(),
        aname,
        path: names.map(<[u8]>::to_vec).collect(),
    })
}

/// Returns the dialects to test.
fn dialects(args: &cli::CheckServer) -> Vec<Dialect> {
    let all = || vec![Dialect::P2000, Dialect::U, Dialect::L];
    let chosen = DialectChoice::list(args.remote.dialect).unwrap_or_else(all);
    // The cases are for the dialects without streams. There, requests do not wait for each other.
    chosen.into_iter().map(|dialect| Dialect { streaming: false, ..dialect }).collect()
}

/// Dials one server for each case.
struct Dialler {
    addr: ServerAddr,
    remote: Remote,
    limit: Duration,
}

impl Dial for Dialler {
    fn dial(&self) -> Dialling<'_> {
        Box::pin(async {
            let ServerAddr::Dialed(addr) = &self.addr else {
                return Ok(Box::new(Asking::new(join_host(self.remote.waits()).await?)) as _);
            };
            if let Addr::Shm { path } = addr {
                let channel = Channel::dial(path, self.remote.waits(), self.limit).await?;
                return Ok(Box::new(Asking::new(channel)) as _);
            }
            let socket = Socket::connect(addr, self.limit).await?;
            let Addr::Tls { host, .. } = addr else { return Ok(Box::new(socket) as _) };
            let tls = trust(&self.remote).map_err(|error| io::Error::other(format!("{error:#}")))?;
            let tls = tls.ok_or_else(|| io::Error::other("--ca or --pin says how the server is known"))?;
            let env = rt::Real;
            let late = env.sleep_until(env.now() + self.limit);
            Ok(Box::new(tls.connect(socket, host, late).await?) as _)
        })
    }
}

/// Reports the results.
struct Teller {
    out: Output,
    json: bool,
    verbose: bool,
    bar: Option<ProgressBar>,
}

impl Teller {
    fn case(&mut self, report: &Report) -> Result<()> {
        if let Some(bar) = &self.bar {
            bar.inc(1);
            bar.set_message(report.case.name);
        }
        let (word, reason) = match &report.outcome {
            Outcome::Pass => ("pass", ""),
            Outcome::Fail(reason) => ("fail", reason.as_str()),
            Outcome::Skip(reason) => ("skip", reason.as_str()),
        };
        let (name, clause, dialect) = (report.case.name, report.case.clause, report.dialect.name());
        if self.json {
            return self.out.json(&json!({
                "case": name, "dialect": dialect, "outcome": word, "reason": reason, "clause": clause,
                "exchange": report.exchange,
            }));
        }
        let text = match report.outcome {
            Outcome::Pass if !self.verbose => return Ok(()),
            Outcome::Pass => format!("{dialect:9} ok    {name}\n"),
            Outcome::Skip(_) => format!("{dialect:9} skip  {name}: {reason}\n"),
            Outcome::Fail(_) => {
                let exchange: String = report.exchange.iter().map(|line| format!("      {line}\n")).collect();
                format!("{dialect:9} FAIL  {name}: {reason}\n    {clause}\n{exchange}")
            }
        };
        self.lines(&text)
    }

    fn summary(&mut self, summary: &Summary) -> Result<()> {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        if self.json {
            let tallies = summary.tallies.iter().map(|tally| {
                let (passed, failed, skipped) = (tally.passed, tally.failed, tally.skipped);
                json!({ "dialect": tally.dialect.name(), "passed": passed, "failed": failed, "skipped": skipped })
            });
            let (stopped, not_run) = summary.stopped.clone().unzip();
            self.out.json(&json!({
                "good": summary.is_good(), "dialects": tallies.collect::<Vec<_>>(), "notes": summary.notes,
                "stopped": stopped, "not_run": not_run.unwrap_or(0),
            }))?;
            return self.out.flush();
        }
        for tally in &summary.tallies {
            let (passed, failed, skipped) = (tally.passed, tally.failed, tally.skipped);
            let dialect = tally.dialect.name();
            self.out
                .print(format_args!("{dialect:9} {passed} passed, {failed} failed, {skipped} skipped\n"))?;
        }
        self.out.flush()?;
        for note in &summary.notes {
            fail::note(note);
        }
        if let Some((reason, left)) = &summary.stopped {
            fail::note(format_args!("stopped: {reason}; {left} cases were not run"));
        }
        Ok(())
    }

    /// Prints text without damaging the progress bar.
    fn lines(&mut self, text: &str) -> Result<()> {
        match self.bar.clone() {
            Some(bar) => bar.suspend(|| self.out.print(text).and_then(|()| self.out.flush())),
            None => self.out.print(text).and_then(|()| self.out.flush()),
        }
    }
}

/// Creates a progress bar if the standard error is a terminal.
fn bar(total: usize) -> Option<ProgressBar> {
    let style = ProgressStyle::with_template("{pos}/{len} {msg}").expect("the template is right");
    io::stderr().is_terminal().then(|| ProgressBar::new(total as u64).with_style(style))
}

fn listed(out: &mut Output, case: &Case, as_json: bool) -> Result<()> {
    let speaks = match case.speaks {
        Speaks::Any => "all",
        Speaks::Stat => "9P2000 and .u",
        Speaks::P2000 => "9P2000",
        Speaks::U => "9P2000.u",
        Speaks::Errno => ".u and .L",
        Speaks::L => "9P2000.L",
    };
    let writes = case.needs == Needs::Dir;
    if as_json {
        return out.json(
            &json!({ "case": case.name, "dialects": speaks, "writes": writes, "clause": case.clause }),
        );
    }
    out.print(format_args!("{} ({speaks})\n    {}\n", case.name, case.clause))
}

/// Default limit of a case, seconds.
const LIMIT: u32 = 5;
