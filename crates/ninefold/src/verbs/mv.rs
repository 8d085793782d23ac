//! `mv`: gives files of a server other names, in the same or in another of its directories.

use anyhow::{Result, bail};
use nine_io::client::File;

use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;

pub fn run(args: cli::Mv, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let mut sources = Place::all(&args.paths, &remote)?;
    // clap wants two paths at least.
    let to = sources.pop().expect("two paths");
    if let Some(other) = sources.iter().find(|source| !source.same_server(&to)) {
        bail!(
            "{other} and {to} are of different servers; `ninefold cp -rp` and `ninefold rm -r` move between them"
        );
    }
    dial::run(remote, async |sessions| {
        let dir = match sessions.walk(&to, true).await {
            Ok(file) if file.qid().is_dir() => Some(file),
            Ok(_) if sources.len() > 1 => bail!("{to}: Not a directory"),
            Err(error) if sources.len() > 1 => return Err(error.context(to.to_string())),
            _ => None,
        };
        let mut tally = Tally::default();
        for source in &sources {
            let moved = mv(&sessions, source, &to, dir.as_ref()).await;
            tally.check(source, moved)?;
        }
        Ok(tally)
    })
}

async fn mv(sessions: &Sessions, source: &Place, to: &Place, dir: Option<&File>) -> Result<()> {
    let (from, old) = sessions.parent(source).await?;
    match dir {
        Some(dir) => Ok(from.rename(old, dir, old).await?),
        None => {
            let (parent, new) = sessions.parent(to).await?;
            Ok(from.rename(old, &parent, new).await?)
        }
    }
}
