//! `mv`: renames files of a server, in the same or to another of its directories.

use anyhow::{Result, bail};
use nine_io::client::File;
use nine_proto::Errno;

use crate::cli;
use crate::config::Config;
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;

pub fn run(args: cli::Mv, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let mut sources = Place::all(&args.paths, &remote)?;
    // clap requires at least two paths.
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
            if let Err((what, error)) = mv(&sessions, source, &to, dir.as_ref()).await {
                tally.check(what, Err::<(), _>(error))?;
            }
        }
        Ok(tally)
    })
}

/// Renames a file. An error comes with the path that it concerns.
async fn mv(
    sessions: &Sessions,
    source: &Place,
    to: &Place,
    dir: Option<&File>,
) -> Result<(), (String, anyhow::Error)> {
    let (from, old) = sessions.parent(source).await.map_err(|error| (source.to_string(), error))?;
    let (renamed, to) = match dir {
        Some(dir) => (from.rename(old, dir, old).await, to.below(old)),
        None => {
            let (parent, new) = sessions.parent(to).await.map_err(|error| (to.to_string(), error))?;
            (from.rename(old, &parent, new).await, to.clone())
        }
    };
    renamed.map_err(|error| {
        let what = match error.errno() {
            // Both directories exist, so the source does not.
            Errno::ENOENT => source.to_string(),
            Errno::EEXIST | Errno::ENOTEMPTY | Errno::EISDIR | Errno::ENOTDIR => to.to_string(),
            _ => format!("{source} to {to}"),
        };
        (what, error.into())
    })
}
