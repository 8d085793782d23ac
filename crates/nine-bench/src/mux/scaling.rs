//! Figures 8 to 10: the time of the message suite by the number of clients, of servers, and of both. All processes
//! share one processor, so that the figures show work, not waiting.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::Instant;

use super::suite::MessageSuite;
use super::{CostGrowth, MuxContest};
use crate::limit::LimitServer;
use crate::place::CpuPlacement;
use crate::plot::PlotLabels;
use crate::report::{BenchRace, BenchReport, BenchTurn};
use crate::server::MeasuredServer;
use crate::wire::{CycleLoad, LeanConnection};

/// Many clients on the mux's own tree, without other servers.
pub(super) fn clients(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let sizes = powers(contest.pace.of(4096, 4096, 4));
    let echo = LimitServer::start("echo", contest.sockets.path(), &[])?;
    let root: Rc<[String]> = [String::new()].into();
    let muxes =
        sizes.iter().map(|n| contest.mux(&format!("clients{n}"), "")).collect::<io::Result<Vec<_>>>()?;
    let pids: Vec<_> = muxes.iter().map(MeasuredServer::pid).chain([echo.child.pid()]).collect();
    CpuPlacement::Same.arrange(&pids)?;
    let race = |(&n, mux): (&usize, &MeasuredServer)| {
        let dial = |socket: &dyn Fn() -> io::Result<LeanConnection>| together(contest, n, socket, &root);
        Ok(BenchRace {
            what: format!("suite, {n} clients, tree of the mux, same core"),
            unit: "us",
            turns: [Some(dial(&|| mux.bare())?), None, Some(dial(&|| LeanConnection::bare(&echo.socket))?)],
        })
    };
    let races = sizes.iter().zip(&muxes).map(race).collect::<io::Result<Vec<_>>>()?;
    let rows = contest.interleave(races)?;
    let plot = PlotLabels {
        file: "figure-8",
        title: "Client scalability (Figure 8)",
        x: "clients, all at once",
        y: "a message suite, us",
    };
    let curves = ["through the mux", "", "echo of the same bytes"];
    CostGrowth { key: "clients_growth", plot, curves, sizes: &sizes }.tell(report, rows);
    Ok(())
}

/// One client that uses one server after the other.
pub(super) fn servers(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let upstreams = ScalingUpstreams::start(contest)?;
    let direct = upstreams.servers.iter().map(MeasuredServer::bare).collect::<io::Result<Vec<_>>>()?;
    let direct = Rc::new(RefCell::new(direct));
    let turn = contest.pace.turn();
    let race = |(&n, mux): (&usize, &MeasuredServer)| -> io::Result<BenchRace<'_>> {
        let (mut conn, mut suite) = (mux.bare()?, MessageSuite::new(0, &places(n)));
        let mut alone = MessageSuite::new(1, &[String::new()].into());
        let direct = direct.clone();
        let through = move |_: usize| conn.perform(&mut suite);
        let direct = move |at: usize| direct.borrow_mut()[at].perform(&mut alone);
        fn round(
            n: usize,
            turn: std::time::Duration,
            mut one: impl FnMut(usize) -> io::Result<()>,
        ) -> io::Result<f64> {
            let (begun, mut done) = (Instant::now(), 0);
            while done == 0 || begun.elapsed() < turn {
                (0..n).try_for_each(&mut one)?;
                done += n;
            }
            Ok(begun.elapsed().as_secs_f64() * 1e6 / done as f64)
        }
        let (mut through, mut direct) = (through, direct);
        Ok(BenchRace {
            what: format!("suite, a client round {n} servers, same core"),
            unit: "us",
            turns: [
                Some(Box::new(move || round(n, turn, &mut through))),
                Some(Box::new(move || round(n, turn, &mut direct))),
                None,
            ],
        })
    };
    let rows = contest.interleave(upstreams.races(race)?)?;
    let plot = PlotLabels {
        file: "figure-9",
        title: "Server scalability (Figure 9)",
        x: "servers, asked in turn by one client",
        y: "a message suite, us",
    };
    let curves = ["through the mux", "direct", ""];
    CostGrowth { key: "servers_growth", plot, curves, sizes: &upstreams.sizes }.tell(report, rows);
    Ok(())
}

/// As many clients as servers. Each client uses one server after the other; all begin at the first.
pub(super) fn both(contest: &MuxContest, report: &mut BenchReport) -> io::Result<()> {
    let upstreams = ScalingUpstreams::start(contest)?;
    let race = |(&n, mux): (&usize, &MeasuredServer)| {
        Ok(BenchRace {
            what: format!("suite, {n} clients round as many servers, same core"),
            unit: "us",
            turns: [Some(together(contest, n, &|| mux.bare(), &places(n))?), None, None],
        })
    };
    let rows = contest.interleave(upstreams.races(race)?)?;
    let plot = PlotLabels {
        file: "figure-10",
        title: "Combined scalability (Figure 10)",
        x: "clients, and as many servers",
        y: "a message suite, us",
    };
    CostGrowth { key: "both_growth", plot, curves: ["through the mux", "", ""], sizes: &upstreams.sizes }
        .tell(report, rows);
    Ok(())
}

/// In-memory trees, each a process of its own; and for each number of them a mux that has them mounted.
struct ScalingUpstreams {
    sizes: Vec<usize>,
    servers: Vec<MeasuredServer>,
    muxes: Vec<MeasuredServer>,
}

impl ScalingUpstreams {
    fn start(contest: &MuxContest) -> io::Result<Self> {
        let most = contest.pace.of(512, 512, 4);
        let sizes = powers(most);
        let servers: Vec<MeasuredServer> =
            (0..most).map(|n| contest.ram(&place(n))).collect::<io::Result<_>>()?;
        let mux = |&n: &usize| {
            let lines = servers[..n].iter().enumerate().map(|(n, server)| server.mount_line(&place(n)));
            contest.mux(&format!("mux{n}"), &lines.collect::<String>())
        };
        let muxes: Vec<MeasuredServer> = sizes.iter().map(mux).collect::<io::Result<_>>()?;
        let pids: Vec<_> = servers.iter().chain(&muxes).map(MeasuredServer::pid).collect();
        CpuPlacement::Same.arrange(&pids)?;
        eprintln!("  {most} servers, a process each, are mounted");
        Ok(Self { sizes, servers, muxes })
    }

    fn races<'a>(
        &'a self,
        race: impl Fn((&'a usize, &'a MeasuredServer)) -> io::Result<BenchRace<'a>>,
    ) -> io::Result<Vec<BenchRace<'a>>> {
        self.sizes.iter().zip(&self.muxes).map(race).collect()
    }
}

/// Measures the mean time of a suite while `clients` clients repeat it concurrently, microseconds: their number divided
/// by all suites per second.
fn together(
    contest: &MuxContest,
    clients: usize,
    dial: &dyn Fn() -> io::Result<LeanConnection>,
    servers: &Rc<[String]>,
) -> io::Result<BenchTurn<'static>> {
    let conns = (0..clients).map(|_| dial()).collect::<io::Result<_>>()?;
    let mut load = CycleLoad::new(conns, 1, |client, _| MessageSuite::new(client, servers))?;
    let turn = contest.pace.turn();
    Ok(Box::new(move || Ok(1e6 * clients as f64 / load.run(turn)?)))
}

/// Returns 1, 2, 4 and so on up to `most`.
fn powers(most: usize) -> Vec<usize> {
    std::iter::successors(Some(1), |n| Some(n * 2)).take_while(|&n| n <= most).collect()
}

fn places(n: usize) -> Rc<[String]> {
    (0..n).map(place).collect()
}

/// Returns the mount point of a server; its socket has the same name.
fn place(n: usize) -> String {
    format!("s{n:03}")
}
