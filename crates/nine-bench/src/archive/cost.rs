//! What a client loses while a dump is copied: eight operations under way on one connection, at places by
//! chance, in the
//! time of the copy beside the time before and behind it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Contest;
use super::serve::Shape;
use super::stand::Stand;
use super::work::{self, Blocks};
use crate::place::Place;
use crate::report::{Report, Row};

const DEPTH: u16 = 8;
/// The file at which the client works, and what is dumped.
const WORK: &str = "work";
const WORK_SIZE: u64 = 32 << 20;
const TREE: &str = "tree";

pub(super) fn measure(contest: &Contest, report: &mut Report) -> io::Result<()> {
    Place::Free.arrange(&[])?;
    let mib = contest.pace.of(256, 64, 2);
    let stand = Stand::archive(Shape::of(mib * 4 + 256, mib * 40 + 1024))?;
    work::write(&stand.server(), WORK, 0, WORK_SIZE, 1)?;
    let kinds = [("read 64 KiB", 64, None), ("read 4 KiB", 4, None), ("write 4 KiB", 4, Some(1))];
    let mut worst = None;
    for (what, kib, writes) in kinds {
        let blocks = |tag| Blocks::new(tag, WORK_SIZE, kib << 10, writes);
        let mut load = work::load(&stand.server(), WORK, DEPTH, blocks)?;
        let mut row = Row {
            what: format!("{what}, depth {DEPTH}, {mib} MiB are copied / not"),
            unit: "k/s",
            ..Row::default()
        };
        for round in 0..contest.pace.of(7, 3, 1) {
            work::write(&stand.server(), TREE, 0, mib << 20, round)?;
            stand.sync()?;
            let idle = contest.pace.turn() * 4;
            let before = load.run(idle)?;
            let (done, mut during) = (AtomicBool::new(false), Vec::new());
            let tell = stand.teller("dump wait")?;
            std::thread::scope(|scope| {
                let dump = scope.spawn(|| {
                    let told = tell();
                    done.store(true, Ordering::Relaxed);
                    told
                });
                while !done.load(Ordering::Relaxed) {
                    during.push(load.run(contest.pace.turn())?);
                }
                dump.join().expect("it does not panic")
            })?;
            work::settled(&stand)?;
            let after = load.run(idle)?;
            row.ours.push(during.iter().sum::<f64>() / during.len() as f64 / 1e3);
            row.peer.push((before + after) / 2e3);
        }
        let lost = row.vs_peer().map(|share| 1.0 - share);
        worst = worst.into_iter().chain(lost).reduce(f64::max);
        report.push(row);
    }
    report.key("dump_cost", worst);
    Ok(())
}
