//! What it costs a server to send: processor time per gigabyte, over the loopback of its side, where nothing waits.

use std::io;
use std::path::Path;
use std::time::Duration;

use nine_sim::delay::Side;

use super::copies::Tool;
use super::{Contest, MB};
use crate::report::{Report, Row};

/// A large file.
const FILES: [u64; 2] = [200, 1];

pub(super) fn measure(contest: &Contest, report: &mut Report) -> io::Result<()> {
    let served = |size: &u64| contest.served.path().join(size.to_string()).exists();
    let size = FILES.into_iter().find(served).ok_or_else(|| io::Error::other("there is no file to send"))?;
    contest.far.set(Duration::ZERO, None);
    let (rounds, turns) = contest.pace.of((4, 20), (3, 10), (1, 1));
    let (mut mine, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        mine.extend(seconds(contest, Tool::Streams, size, turns)?);
        theirs.extend(seconds(contest, Tool::Http, size, turns)?);
    }
    let what = format!("server's CPU, loopback, {size} MB files: streams / nginx");
    let row = Row { what, unit: "s/GB", ours: mine, peer: theirs, limit: Vec::new() };
    report.key("cpu_vs_nginx", row.vs_peer());
    report.push(row);
    Ok(())
}

/// Processor time of the server for each GB, when a client has fetched the file so often. `None`: the tool is not here.
fn seconds(contest: &Contest, tool: Tool, size: u64, turns: u32) -> io::Result<Option<f64>> {
    let server = match (tool, &contest.nginx) {
        (Tool::Http, Some(nginx)) => nginx,
        (Tool::Http, None) => return Ok(None),
        _ => &contest.ours,
    };
    let Some(words) = contest.get(tool, &size.to_string(), Path::new("/dev/null"))? else { return Ok(None) };
    let before = server.child.cpu()?;
    for _ in 0..turns {
        contest.time(Side::There, &words, contest.limit(size))?;
    }
    let spent = server.child.cpu()?.saturating_sub(before);
    Ok(Some(spent.as_secs_f64() / (f64::from(turns) * (size * MB) as f64 / 1e9)))
}
