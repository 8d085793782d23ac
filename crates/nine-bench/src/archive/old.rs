//! A file from twenty dumps ago beside the same file today: a walk, an open, a read of its first block, a clunk.

use std::io;

use nine_proto::{Fid, Tag};

use super::ArchiveContest;
use super::serve::ArchiveShape;
use super::stand::ArchiveTestbed;
use super::work::{self, FileVisits, SeededRandom};
use crate::place::CpuPlacement;
use crate::report::{BenchRace, BenchReport, BenchTurn, interleave};
use crate::wire::{CycleLoad, LeanConnection};

const DUMPS: u64 = 20;
const SIZE: u64 = 16 << 10;
const DIR: Fid = Fid(1);

pub(super) fn measure(contest: &ArchiveContest, report: &mut BenchReport) -> io::Result<()> {
    let files = contest.pace.of(10_000, 2_000, 50);
    let stand = ArchiveTestbed::archive(ArchiveShape::of(512, 2048))?;
    for dump in 0..=DUMPS {
        // One file in twenty changes.
        let changed = (0..files).filter(|n| dump == 0 || u64::from(*n) % DUMPS == dump - 1);
        work::write_files(&stand.server(), changed, SIZE, dump)?;
        if dump < DUMPS {
            stand.tell("dump wait")?;
        }
    }
    work::settled(&stand)?;
    let dumps = stand.ask("dumps")?;
    let oldest = dumps.split(' ').next().unwrap_or_default().to_string();
    let visit = |conn: LeanConnection| -> io::Result<BenchTurn<'static>> {
        let visits = |_, tag: Tag| FileVisits {
            tag,
            chance: SeededRandom::new(9),
            dir: DIR,
            files,
            read: Some(16 << 10),
        };
        let (mut load, turn) = (CycleLoad::new(vec![conn], 1, visits)?, contest.pace.turn());
        Ok(Box::new(move || Ok(1e6 / load.run(turn)?)))
    };
    let there = |aname: &str, path: &[&str]| -> io::Result<LeanConnection> {
        let mut conn = stand.server().dial_to(aname)?;
        conn.walk_path(DIR, path)?;
        Ok(conn)
    };
    let path: Vec<&str> = oldest.split('/').collect();
    let race = |place: CpuPlacement| -> io::Result<_> {
        place.arrange(&[stand.server().pid()])?;
        let race = BenchRace {
            what: format!("walk, open, read: {DUMPS} dumps ago / today, {}", place.label()),
            unit: "us",
            turns: [Some(visit(there("dump", &path)?)?), Some(visit(there("", &[])?)?), None],
        };
        Ok(interleave(contest.pace.rounds(), contest.pace.patience(), vec![race])?.remove(0))
    };
    let row = race(CpuPlacement::Same)?;
    report.key("open_old_vs_today", row.vs_peer());
    report.push(row);
    Ok(())
}
