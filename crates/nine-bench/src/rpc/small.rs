//! Small operations, 32 in flight on each connection: getattr, and a walk with its clunk. The lean client sends them.
//! One row shows the cost for a program that uses our client.

use std::io;
use std::time::Instant;

use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_proto::msg::{Names, Tmsg};
use nine_proto::{Fid, GetMask, Tag};

use super::RpcContest;
use crate::files::SMALL;
use crate::place::CpuPlacement;
use crate::report::{BenchReport, BenchTurn, ReportRow, alternate};
use crate::server::MeasuredServer;
use crate::wire::{CycleLoad, LeanConnection, encoded};

const DEPTH: u16 = 32;
/// The fid of the file.
const FILE: Fid = Fid(1);
/// First of the temporary fids, one for each tag.
const NEWFIDS: u32 = 100;

#[derive(Clone, Copy)]
enum SmallOp {
    Getattr,
    WalkClunk,
}

pub(super) fn measure(contest: &RpcContest, report: &mut BenchReport) -> io::Result<()> {
    let conns: &[usize] = contest.pace.of(&[1, 16, 128, 1024], &[1, 16, 128, 1024], &[1, 4]);
    // A key is the worse of both operations with each side on a core of its own. If the kernel places the threads, the
    // peer's threads also use the client's core; such rows are shown, but count for no key.
    let mut worst = [None::<f64>; 2];
    for place in [CpuPlacement::Cross, CpuPlacement::Free] {
        for op in [SmallOp::Getattr, SmallOp::WalkClunk] {
            for (i, &n) in conns.iter().enumerate() {
                let row = many(contest, op, n, place)?;
                // The keys are for one connection, and for the largest number that still allows a thread for each.
                let key = if i == 0 { Some(0) } else { (n == 128 || conns.len() == 2).then_some(1) };
                if let (CpuPlacement::Cross, Some(key), Some(ratio)) = (place, key, row.vs_peer()) {
                    worst[key] = Some(worst[key].map_or(ratio, |worst| worst.min(ratio)));
                }
                report.push(row);
            }
        }
    }
    report.key("small32_vs_diod", worst[0]);
    report.key("small32_128conn_vs_diod", worst[1]);
    report.push(through_client(contest)?);
    Ok(())
}

fn many(contest: &RpcContest, op: SmallOp, conns: usize, place: CpuPlacement) -> io::Result<ReportRow> {
    place.arrange(&contest.servers())?;
    let turn = contest.pace.turn();
    let load = |dial: &dyn Fn() -> io::Result<LeanConnection>| -> io::Result<BenchTurn<'static>> {
        let conns = (0..conns).map(|_| dial()).collect::<io::Result<_>>()?;
        let mut load = CycleLoad::new(conns, DEPTH, |_, tag| op.cycle(tag))?;
        Ok(Box::new(move || Ok(load.run(turn)? / 1000.0)))
    };
    let server = |server: &MeasuredServer| {
        load(&|| {
            let mut conn = server.dial()?;
            conn.walk(Fid(0), FILE, SMALL.as_bytes())?;
            Ok(conn)
        })
    };
    alternate(
        format!("{}, depth {DEPTH} on {conns} conn, {}", op.label(), place.label()),
        "k/s",
        contest.pace.rounds(),
        [
            Some(server(&contest.ours)?),
            contest.diod.as_ref().map(server).transpose()?,
            Some(load(&|| LeanConnection::bare(&contest.echo.socket))?),
        ],
    )
}

fn through_client(contest: &RpcContest) -> io::Result<ReportRow> {
    CpuPlacement::Cross.arrange(&contest.servers())?;
    let turn = contest.pace.turn();
    let client = |server: &MeasuredServer| -> io::Result<BenchTurn<'static>> {
        let (client, root) = server.client()?;
        Ok(Box::new(move || {
            client.wait(async {
                let file = root.file().walk(SMALL).await?;
                let ask = || file.getattr(GetMask::BASIC);
                let mut under_way: FuturesUnordered<_> = (0..DEPTH).map(|_| ask()).collect();
                let (begun, mut done) = (Instant::now(), 0);
                while let Some(attr) = under_way.next().await {
                    attr?;
                    done += 1;
                    if begun.elapsed() < turn {
                        under_way.push(ask());
                    }
                }
                Ok(f64::from(done) / begun.elapsed().as_secs_f64() / 1000.0)
            })
        }))
    };
    alternate(
        format!("getattr, depth {DEPTH} on 1 conn, our client, cross"),
        "k/s",
        contest.pace.rounds(),
        [Some(client(&contest.ours)?), contest.diod.as_ref().map(client).transpose()?, None],
    )
}

impl SmallOp {
    fn label(self) -> &'static str {
        match self {
            Self::Getattr => "getattr",
            Self::WalkClunk => "walk+clunk",
        }
    }

    fn cycle(self, tag: Tag) -> Vec<Vec<u8>> {
        let newfid = Fid(NEWFIDS + u32::from(tag.0));
        let name = [SMALL.as_bytes()];
        let messages = match self {
            Self::Getattr => vec![Tmsg::Getattr { fid: FILE, mask: GetMask::BASIC.0 }],
            Self::WalkClunk => vec![
                Tmsg::Walk { fid: Fid(0), newfid, names: Names::Slice(&name) },
                Tmsg::Clunk { fid: newfid },
            ],
        };
        messages.iter().map(|message| encoded(message, tag)).collect()
    }
}
