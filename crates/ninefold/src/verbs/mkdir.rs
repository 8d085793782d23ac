//! `mkdir`: creates directories; with -p also their parents.

use anyhow::Result;
use nine_io::client::{Error, File};
use nine_proto::{Errno, NOGID, SetAttr};

use super::own_umask;
use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;

pub fn run(args: cli::Mkdir, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let places = Place::all(&args.paths, &remote)?;
    dial::run(remote, async |sessions| {
        let mut tally = Tally::default();
        for place in &places {
            let mode = args.mode.unwrap_or(0o777 & !own_umask());
            let made = match args.parents {
                true => mkdir_p(&sessions, place, mode).await,
                false => mkdir(&sessions, place, mode).await,
            };
            tally.check(place, made)?;
        }
        Ok(tally)
    })
}

async fn mkdir(sessions: &Sessions, place: &Place, mode: u32) -> Result<()> {
    let (parent, name) = sessions.parent(place).await?;
    Ok(make(&parent, name, mode).await?)
}

async fn make(parent: &File, name: &[u8], mode: u32) -> Result<(), Error> {
    parent.mkdir(name, mode & 0o777, NOGID).await?;
    if mode & !0o777 != 0 {
        parent.walk(name).await?.setattr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).await?;
    }
    Ok(())
}

/// Creates a directory and its missing parents. The parents get the server's default mode.
async fn mkdir_p(sessions: &Sessions, place: &Place, mode: u32) -> Result<()> {
    let root = sessions.root(place).await?;
    let ends = place.path.iter().enumerate().filter(|&(at, &b)| at > 0 && b == b'/').map(|(at, _)| at);
    let ends: Vec<usize> = ends.chain([place.path.len()]).collect();
    let mut parent = root.resolve(b"/", true).await?.0;
    let mut begin = 0;
    for end in ends {
        let name = place.path[begin..end].strip_prefix(b"/").unwrap_or(&place.path[begin..end]);
        begin = end;
        if name.is_empty() || name == b"." {
            continue;
        }
        let is_last = place.path[end..].iter().all(|&b| b == b'/');
        match make(&parent, name, if is_last { mode } else { 0o777 & !own_umask() }).await {
            Err(e) if !matches!(e.errno(), Errno::EEXIST) => return Err(e.into()),
            _ => {}
        }
        parent = root.resolve(&place.path[..end], true).await?.0;
        if !parent.qid().is_dir() {
            return Err(nine_proto::Error::from(Errno::ENOTDIR).into());
        }
    }
    Ok(())
}
