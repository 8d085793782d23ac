//! A dump beside a backup: until it can be browsed and until it is copied, and `restic backup` of the same tree to a
//! repository of the same file system.

use std::fs::File;
use std::io;
use std::time::Instant;

use super::Contest;
use super::serve::Shape;
use super::stand::Stand;
use super::{pattern, work};
use crate::files::file_name;
use crate::peers::restic::Repository;
use crate::place::Place;
use crate::report::{Report, Row};
use crate::scratch::Scratch;
use crate::stats::median;

const SIZE: u64 = 64 << 10;

pub(super) fn measure(contest: &Contest, report: &mut Report) -> io::Result<()> {
    Place::Free.arrange(&[])?;
    let files: u32 = contest.pace.of(16_384, 2_048, 32);
    let mib = (u64::from(files) * SIZE) >> 20;
    let stand = Stand::archive(Shape::of(mib * 2 + 256, mib * 4 + 256))?;
    let (tree, run) = (Scratch::new()?, Scratch::new()?);
    let restic = Repository::new(run.path())?;
    let row = |what: String| Row { what, unit: "s", ..Row::default() };
    let mut rows = ["", ", a hundredth changed"].map(|changed| {
        ["browse", "copied"]
            .map(|to| row(format!("dump of {mib} MiB in {files} files{changed}, {to} / restic")))
    });
    for round in 0..=contest.pace.of(5, 3, 1) {
        let changed = (0..files).filter(|n| round == 0 || n % 100 == round);
        for n in changed.clone() {
            std::fs::write(
                tree.path().join(file_name(n)),
                pattern(SIZE as usize, u64::from(n) << 8 | u64::from(round)),
            )?;
        }
        work::write_files(&stand.server(), changed, SIZE, round.into())?;
        stand.sync()?;
        rustix::fs::syncfs(File::open(tree.path())?)?;
        let begun = Instant::now();
        stand.tell("dump")?;
        let browse = begun.elapsed().as_secs_f64();
        work::copied(&stand)?;
        let copied = begun.elapsed().as_secs_f64();
        work::settled(&stand)?;
        let theirs = restic.as_ref().map(|restic| restic.backup(tree.path())).transpose()?;
        let rows = &mut rows[usize::from(round > 0)];
        for (row, ours) in rows.iter_mut().zip([browse, copied]) {
            row.ours.push(ours);
            row.peer.extend(theirs);
        }
    }
    let speedup = |row: &Row| {
        median(&row.ours.iter().zip(&row.peer).map(|(ours, theirs)| theirs / ours).collect::<Vec<_>>())
    };
    report.key("dump_restic_speedup", speedup(&rows[1][0]));
    report.key("dump_copied_restic_speedup", speedup(&rows[1][1]));
    report.extend(rows.into_iter().flatten().collect());
    Ok(())
}
