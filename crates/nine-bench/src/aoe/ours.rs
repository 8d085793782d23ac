//! Our initiator on this thread, and our target, which is the command.
//!
//! In: interfaces, a job. Out: a figure, or the error of an operation.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_aoe::driver::{Disk, disk};
use nine_aoe::frame::{Address, ETHER_TYPE};
use nine_aoe::initiator::Event;
use nine_block::Device;
use nine_net::ether::Ether;
use nine_net::{Env, rt};
use nine_sim::delay::Side;

use super::cables::{EtherCable, EtherTestbed};
use super::job::{BlockJob, BlockOp, OperationMeter, SECTOR, check};
use crate::child::ChildProcess;
use crate::server::SILENCE;

/// Addresses of our targets, and of the peers' targets.
pub const OURS: &str = "1.0";
pub const THEIRS: &str = "2.0";
/// A disk without an answer for this long is an error.
const DISK_TIMEOUT: Duration = Duration::from_secs(5);

/// Starts `ninefold aoe target` on these cables.
pub fn target(
    ground: &EtherTestbed,
    program: &Path,
    file: &Path,
    cables: &[&EtherCable],
    run: &Path,
) -> io::Result<ChildProcess> {
    let mut words: Vec<OsString> = vec![program.into()];
    words.extend(["--config", "/dev/null", "aoe", "target", OURS].map(OsString::from));
    words.push(file.into());
    words.extend(cables.iter().map(|cable| OsString::from(&cable.name)));
    let log = run.join(format!("target-{}.log", cables[0].name));
    let mut child = ground.far.start(Side::There, &words, &log)?;
    said(&mut child, &log, "ready\n")?;
    Ok(child)
}

/// Waits until a program has reported that it is ready.
pub fn said(child: &mut ChildProcess, log: &Path, what: &str) -> io::Result<()> {
    let begun = Instant::now();
    while !std::fs::read_to_string(log)?.contains(what) {
        if child.has_ended()? || begun.elapsed() > SILENCE {
            let said = std::fs::read_to_string(log)?;
            return Err(io::Error::other(format!("{}: it did not start: {}", log.display(), said.trim())));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Runs a job with our initiator, on a target that is reached over all of these cables.
pub fn turn(ground: &EtherTestbed, cables: &[&EtherCable], target: &str, job: &BlockJob) -> io::Result<f64> {
    let mut meter = None;
    work(ground, cables, target, job, |_| meter.get_or_insert_with(|| OperationMeter::new(job)).done())?;
    meter.ok_or_else(|| io::Error::other("nothing was done"))?.figure()
}

/// Like [`turn`], until `go_on` returns false. It is called at the end of each operation.
pub fn work(
    ground: &EtherTestbed,
    cables: &[&EtherCable],
    target: &str,
    job: &BlockJob,
    mut go_on: impl FnMut(Instant) -> bool + Send,
) -> io::Result<()> {
    let target: Address = target.parse().map_err(|_| io::ErrorKind::InvalidInput)?;
    let main = async |env: rt::Real| {
        let open = |cable: &&EtherCable| Ok(Ether::open(&cable.name, ETHER_TYPE)?.hearing_all());
        let links = cables.iter().map(open).collect::<io::Result<Vec<_>>>()?;
        let (disk, driver) = disk(links, target, DISK_TIMEOUT, env.clock());
        // The driver's error also reaches the waiting operations.
        env.spawn(Box::pin(async move { drop(driver.await) }));
        let disk = Arc::new(disk);
        let device: Arc<dyn Device> = disk.clone();
        device.look().await.map_err(io::Error::other)?;
        found_everywhere(&disk, cables.len(), env).await?;
        run(&*device, job, &mut go_on).await
    };
    ground.far.run(Side::Here, || rt::block_on(main)?)?
}

/// Waits until the disk has a path over each of the interfaces.
async fn found_everywhere(disk: &Disk, cables: usize, env: rt::Real) -> io::Result<()> {
    let all = async {
        let mut ports = BTreeSet::new();
        while ports.len() < cables {
            if let Event::PathUp(_, port) = disk.event().await {
                ports.insert(port);
            }
        }
    };
    match select(pin!(all), env.sleep_until(env.now() + DISK_TIMEOUT)).await {
        Either::Left(_) => Ok(()),
        Either::Right(_) => Err(io::Error::other(format!("not all paths were found:\n{}", disk.status()))),
    }
}

async fn run(disk: &dyn Device, job: &BlockJob, go_on: &mut impl FnMut(Instant) -> bool) -> io::Result<()> {
    let data = Bytes::from(vec![0x5a; job.size as usize]);
    let begin = |at: u64| {
        let call = match job.op {
            BlockOp::Read => disk.read(at / SECTOR, job.size / SECTOR),
            BlockOp::Write => disk.write(at / SECTOR, data.clone()),
        };
        async move { (at, call.await) }
    };
    let mut places = job.places();
    let mut under_way: FuturesUnordered<_> = places.by_ref().take(job.depth).map(begin).collect();
    while let Some((at, ended)) = under_way.next().await {
        let data = ended.map_err(io::Error::other)?;
        if job.op == BlockOp::Read {
            check(at, &data)?;
        }
        if !go_on(Instant::now()) {
            break;
        }
        under_way.extend(places.next().map(begin));
    }
    Ok(())
}
