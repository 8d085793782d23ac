//! Shared by the tests: ways to dial servers in this process, and the results of a run.
#![allow(dead_code, reason = "each test file uses its part")]

use std::io;
use std::ops::ControlFlow;
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use nine_check::{Dial, Dialling, Options, Outcome, Report, Summary, Unusable, check};
use nine_io::server::{Anonymous, Core, FileServer, Gate, Service};
use nine_net::{Env, Peer, Proof, Socket, Transport, rt};
use nine_proto::Dialect;
use nine_sim::{End, Shape, World, link};

pub const ALL: [Dialect; 3] = [Dialect::P2000, Dialect::U, Dialect::L];

/// The result of a run of the suite.
pub struct Run {
    pub reports: Vec<Report>,
    pub summary: Result<Summary, Unusable>,
}

impl Run {
    /// Returns `DIALECT CASE` of each failed case.
    pub fn failed(&self) -> Vec<String> {
        self.names(|outcome| matches!(outcome, Outcome::Fail(_)))
    }

    pub fn skipped(&self) -> Vec<String> {
        self.names(|outcome| matches!(outcome, Outcome::Skip(_)))
    }

    fn names(&self, which: impl Fn(&Outcome) -> bool) -> Vec<String> {
        let which = self.reports.iter().filter(|report| which(&report.outcome));
        which.map(|report| format!("{} {}", report.dialect.name(), report.case.name)).collect()
    }

    /// Returns all details of the failures, for the message of a failing test.
    pub fn told(&self) -> String {
        let failures = self.reports.iter().filter_map(|report| match &report.outcome {
            Outcome::Fail(reason) => Some(format!(
                "{} {}: {reason}\n    {}\n    {}",
                report.dialect.name(),
                report.case.name,
                report.case.clause,
                report.exchange.join("\n    ")
            )),
            _ => None,
        });
        let notes = self.summary.as_ref().map(|summary| summary.notes.clone()).unwrap_or_default();
        failures.chain(notes).collect::<Vec<_>>().join("\n")
    }

    /// Checks that no case failed, and exactly these were skipped.
    #[track_caller]
    pub fn is_good_but_for(&self, skipped: &[&str]) {
        assert!(self.failed().is_empty(), "{}", self.told());
        let summary = self.summary.as_ref().expect("it ran");
        assert!(summary.is_good() && summary.notes.is_empty(), "{summary:?}");
        let said = self.skipped();
        let mut expected: Vec<String> = skipped.iter().map(|name| name.to_string()).collect();
        expected.sort_by_key(|name| said.iter().position(|s| s == name));
        assert_eq!(said, expected);
    }
}

pub fn options() -> Options {
    Options {
        dialects: Vec::new(),
        only: String::new(),
        // Only a hanging server reaches it; a busy machine under a sanitizer does not.
        limit: Duration::from_secs(60),
        uname: "root".into(),
        uid: 0,
        gid: 0,
        aname: String::new(),
        path: Vec::new(),
    }
}

/// A closure as a way to dial.
pub struct By<F>(pub F);

impl<F: Fn() -> io::Result<Box<dyn Transport>>> Dial for By<F> {
    fn dial(&self) -> Dialling<'_> {
        Box::pin(async { (self.0)() })
    }
}

/// Returns the properties of all connections in these tests: fast, in as few pieces as possible.
pub fn shape() -> Shape {
    Shape { piece: 8 << 20, window: 8 << 20, ..Shape::default() }
}

/// Runs the suite in a simulation of its own. `answer` gets the far end of every connection.
pub fn in_world(seed: u64, options: Options, answer: impl Fn(&World, End) + 'static) -> Run {
    let world = Rc::new(World::new(seed));
    let env = Rc::new(world.env());
    let within = world.clone();
    let dial = By(move || {
        let (ours, theirs) = link(&within, shape());
        answer(&within, theirs);
        Ok(Box::new(ours) as Box<dyn Transport>)
    });
    world.run(async move { run(env, Rc::new(dial), options).await })
}

/// The same with one of our servers at the far end.
pub fn simulated(server: impl FileServer, options: Options) -> Run {
    let service = service(server);
    in_world(1, options, move |world, end| world.env().spawn(Box::pin(service.connect(Box::new(end)))))
}

/// The same on the real runtime, for servers with threads of their own.
pub fn real(server: impl FileServer, options: Options) -> Run {
    let service = service(server);
    rt::block_on(async |env| {
        let dial = By(move || {
            let (near, far) = UnixStream::pair()?;
            env.spawn(Box::pin(service.connect(Box::new(socket(far)?))));
            Ok(Box::new(socket(near)?) as Box<dyn Transport>)
        });
        run(Rc::new(env), Rc::new(dial), options).await
    })
    .expect("a runtime")
}

pub fn service(server: impl FileServer) -> Service {
    let gate = Gate { anonymous: Anonymous::Trusted, ..Gate::default() };
    Service::new(Arc::new(server), gate, Core::default())
}

pub async fn run(env: Rc<dyn Env>, dial: Rc<dyn Dial>, options: Options) -> Run {
    let mut reports = Vec::new();
    let each = |report: &Report| {
        reports.push(report.clone());
        ControlFlow::Continue(())
    };
    let summary = check(env, dial, options, each).await;
    Run { reports, summary }
}

fn socket(end: UnixStream) -> io::Result<Socket> {
    end.set_nonblocking(true)?;
    let peer = Peer { addr: "pair".into(), proof: Proof::None };
    Socket::from_parts(end.into(), peer)
}

/// Writes to stderr directly, since the test runner hides the output of a passing test.
pub fn not_covered(what: &str) {
    io::Write::write_all(&mut io::stderr(), format!("NOT COVERED: {what}\n").as_bytes()).unwrap();
}
