//! `rm`: removes files; with -r first the content of directories, many files at a time. Links are removed, never
//! followed.

use std::pin::Pin;

use anyhow::{Result, bail};
use futures_util::stream::{self, StreamExt};
use nine_io::client::{Error, File};
use nine_proto::Errno;

use crate::ancestors::Ancestors;
use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;

/// Limit of files that are removed at once.
const AT_ONCE: usize = 64;

pub fn run(args: cli::Rm, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        for place in &places {
            match rm(&sessions, place, &args, &mut tally).await {
                Err(e) if args.force && is_absent(&e) => {}
                result => drop(tally.check(place, result)?),
            }
        }
        Ok(tally)
    })
}

async fn rm(sessions: &Sessions, place: &Place, args: &cli::Rm, tally: &mut Tally) -> Result<()> {
    let (parent, name) = sessions.parent(place).await?;
    let file = parent.walk(name).await?;
    if !file.qid().is_dir() {
        return Ok(parent.unlink(name, false).await?);
    }
    if !args.recursive {
        bail!("Is a directory; -r removes it with everything in it");
    }
    empty(place.clone(), file, Ancestors::default(), tally).await?;
    Ok(parent.unlink(name, true).await?)
}

/// Removes everything in a directory. Errors are reported, and the rest is still removed.
fn empty<'t>(
    place: Place,
    dir: File,
    above: Ancestors,
    tally: &'t mut Tally,
) -> Pin<Box<dyn Future<Output = Result<()>> + 't>> {
    Box::pin(async move {
        let above = above.with(dir.qid())?;
        let mut entries = Vec::new();
        let mut reading = dir.read_dir().await?;
        while let Some(entry) = reading.next().await {
            entries.push(entry?);
        }
        drop(reading);
        let (dirs, files): (Vec<_>, Vec<_>) = entries.into_iter().partition(|entry| entry.is_dir());
        let unlink = async |name: Box<[u8]>| (dir.unlink(&name, false).await, name);
        let mut removed =
            stream::iter(files.into_iter().map(|entry| entry.name)).map(unlink).buffer_unordered(AT_ONCE);
        while let Some((result, name)) = removed.next().await {
            check(tally, &place.below(&name), result)?;
        }
        drop(removed);
        for entry in dirs {
            let below = place.below(&entry.name);
            let emptied = match dir.walk(&entry.name).await {
                Ok(child) => empty(below.clone(), child, above.clone(), tally).await,
                Err(e) => Err(e.into()),
            };
            if tally.check(&below, emptied)?.is_some() {
                check(tally, &below, dir.unlink(&entry.name, true).await)?;
            }
        }
        Ok(())
    })
}

/// Counts a result. A file that is already gone is a success.
fn check(tally: &mut Tally, place: &Place, result: Result<(), Error>) -> Result<()> {
    match result {
        Err(e) if e.errno() == Errno::ENOENT => Ok(()),
        result => tally.check(place, result.map_err(Into::into)).map(drop),
    }
}

fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<Error>().is_some_and(|e| e.errno() == Errno::ENOENT)
}
