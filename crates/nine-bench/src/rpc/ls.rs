//! `ls -l` of a large directory: the number of times that the client must wait for the server. It is counted, not
//! timed, in a simulated world with a link of one second as the only delay. The elapsed seconds there are twice the
//! number of waits, on every machine.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Client, Options};
use nine_io::server::{Core, Gate, Service};
use nine_net::Env;
use nine_proto::{GetMask, NOGID, OpenFlags};
use nine_servers::Ram;
use nine_sim::{Shape, World, link};

use super::RpcContest;
use crate::report::{BenchReport, ReportRow};

/// Delay in one direction.
const DELAY: Duration = Duration::from_secs(1);

pub(super) fn measure(contest: &RpcContest, report: &mut BenchReport) -> io::Result<()> {
    for &files in contest.pace.of(&[1_000, 2_500, 10_000, 40_000][..], &[1_000, 10_000, 40_000], &[100, 400])
    {
        let waits = waits(files)?;
        let each = waits as f64 / f64::from(files);
        report.push(ReportRow::counted(format!("ls -l of {files}: waits"), "waits", waits as f64, None));
        report.push(ReportRow::counted(format!("ls -l of {files}: waits per entry"), "waits", each, None));
    }
    Ok(())
}

/// Counts the waits of a client that lists a directory of `files` files with their attributes.
fn waits(files: u32) -> io::Result<u64> {
    let world = World::new(1);
    let service = Service::new(Arc::new(Ram::new(1 << 30)), Gate::default(), Core::default());
    let shape = || Shape { delay: DELAY, window: usize::MAX, piece: usize::MAX / 4, ..Shape::default() };
    let (ours, theirs) = link(&world, shape());
    let env = world.env();
    env.spawn(Box::pin(service.connect(Box::new(theirs))));
    world.run(async move {
        let (client, driver) = Client::connect(ours, Options::default()).await?;
        env.spawn(Box::pin(async { drop(driver.await) }));
        let root = client.attach("", 0, "").await?;
        for n in 0..files {
            drop(root.create(n.to_string(), OpenFlags::WRITE, 0o644, NOGID).await?);
        }
        let before = env.now();
        let mut dir = root.read_dir().await?;
        let mut listed = 0;
        while let Some(block) = dir.next_with_attrs(GetMask::BASIC).await {
            listed += block?.iter().filter(|entry| entry.attr.is_some()).count();
        }
        if listed != files as usize {
            return Err(io::Error::other(format!("{listed} entries of {files} were listed")));
        }
        Ok((env.now() - before).as_secs() / (2 * DELAY.as_secs()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_waits_for_a_fifth_of_its_entries_at_most_and_grows_in_proportion() {
        let (few, many) = (waits(1_000).unwrap(), waits(10_000).unwrap());
        assert!(few <= 1_000 / 5, "{few} waits for 1,000 files");
        assert!(many <= 10_000 / 5, "{many} waits for 10,000 files");
        assert!(many <= 11 * few, "{few} waits for 1,000 files, {many} for ten times as many");
    }
}
