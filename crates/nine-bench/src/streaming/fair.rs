//! Several downloads at once: the share of the link that each gets while all of them run.
//!
//! Every client is a process with a file of its own; the files' sizes are sampled as they grow.

use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use nine_sim::delay::Side;

use super::copies::CopyTool;
use super::{MB, MIDDLE, StreamingContest};
use crate::child::{ChildProcess, first_end};
use crate::plot::{PlotFigure, PlotLabels};
use crate::report::{BenchReport, ReportRow};

/// Interval of the samples.
const LOOK: Duration = Duration::from_millis(10);

/// The result of several concurrent downloads.
struct SharingResult {
    /// Largest relative deviation from an equal share: 0 if all shares are equal.
    worst: f64,
    /// Total rate, MB/s.
    rate: f64,
}

pub(super) fn measure(contest: &StreamingContest, report: &mut BenchReport) -> io::Result<()> {
    contest.link(MIDDLE);
    let size = contest.pace.of(50, 20, 1);
    let counts: &[usize] = contest.pace.of(&[2, 4, 8], &[8], &[8]);
    let mut curves = [Vec::new(), Vec::new()];
    for &count in counts {
        let (mine, theirs) =
            (share(contest, CopyTool::Streams, count, size)?, share(contest, CopyTool::Http, count, size)?);
        let Some(mine) = mine else { continue };
        let what = format!("{count} reads of {size} MB at once, 50 ms");
        let of = |figure: fn(&SharingResult) -> f64| {
            let peer = theirs.as_ref().map(figure).into_iter().collect();
            (vec![figure(&mine)], peer)
        };
        for (suffix, unit, (ours, peer)) in
            [("worst share", "off", of(|all| all.worst)), ("all together", "MB/s", of(|all| all.rate))]
        {
            report.push(ReportRow { what: format!("{what}: {suffix}"), unit, ours, peer, limit: Vec::new() });
        }
        curves[0].push((count as f64, mine.worst * 100.0));
        curves[1].extend(theirs.map(|theirs| (count as f64, theirs.worst * 100.0)));
        if count == 8 {
            report.key("fair8_worst", Some(mine.worst));
        }
    }
    let plot = PlotLabels {
        file: "streaming-fair",
        title: "The download that is furthest from its share, 100 Mbit/s, 50 ms",
        x: "downloads",
        y: "% off",
    };
    let curves: Vec<_> =
        ["ours", "HTTP"].into_iter().zip(curves).filter(|(_, points)| !points.is_empty()).collect();
    report.figures.push(PlotFigure { plot, curves });
    Ok(())
}

fn share(
    contest: &StreamingContest,
    tool: CopyTool,
    count: usize,
    size: u64,
) -> io::Result<Option<SharingResult>> {
    let places: Vec<_> = (0..count).map(|n| contest.local.path().join(format!("at-once-{n}"))).collect();
    for (n, place) in places.iter().enumerate() {
        fs::create_dir(place)?;
        // A file for each client.
        let name = contest.served.path().join(format!("at-once-{n}"));
        super::fill(&name, size * MB)?;
    }
    let mut children = Vec::new();
    for (n, place) in places.iter().enumerate() {
        let Some(words) = contest.get(tool, &format!("at-once-{n}"), &place.join("copy"))? else { break };
        let log = contest.run.path().join(format!("at-once-{n}.log"));
        children.push(contest.far.start(Side::Here, &words, &log)?);
    }
    let shared = if children.is_empty() { None } else { Some(watch(&mut children, &places, contest, size)?) };
    drop(children);
    for (n, place) in places.iter().enumerate() {
        fs::remove_dir_all(place)?;
        fs::remove_file(contest.served.path().join(format!("at-once-{n}")))?;
    }
    Ok(shared)
}

/// Measures the progress of each client from when all have begun until the first is done.
fn watch<P: AsRef<Path>>(
    children: &mut [ChildProcess],
    places: &[P],
    contest: &StreamingContest,
    size: u64,
) -> io::Result<SharingResult> {
    let look = || places.iter().map(|place| bytes_in(place.as_ref())).collect::<io::Result<Vec<u64>>>();
    let (start, mut begun) = (Instant::now(), None);
    let ended = loop {
        let ended = match first_end(children, LOOK) {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::TimedOut => false,
            Err(error) => return Err(error),
        };
        let (have, now) = (look()?, Instant::now());
        if ended || have.iter().any(|have| *have >= size * MB) {
            break (have, now);
        }
        if begun.is_none() && have.iter().all(|have| *have > 0) {
            begun = Some((have, now));
        }
    };
    for child in children.iter_mut() {
        if !child.wait(contest.limit(size * places.len() as u64))?.success() {
            return Err(io::Error::other("a client that was not alone has failed"));
        }
    }
    // If they were never seen running together, measure from their start.
    let (before, from) = begun.unwrap_or((vec![0; places.len()], start));
    let moved: Vec<f64> =
        ended.0.iter().zip(&before).map(|(after, before)| after.saturating_sub(*before) as f64).collect();
    let all: f64 = moved.iter().sum();
    let off = |moved: &f64| (moved * places.len() as f64 / all - 1.0).abs();
    Ok(SharingResult {
        worst: moved.iter().map(off).fold(0.0, f64::max),
        rate: all / 1e6 / (ended.1 - from).as_secs_f64(),
    })
}

/// Sums the sizes of all files in a directory, also under temporary names.
fn bytes_in(dir: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(dir)? {
        match entry?.metadata() {
            Ok(meta) => bytes += meta.len(),
            // The file was renamed meanwhile; the next sample counts it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}
