//! `get`, `put` and `cp`: copy files and trees from, to and between servers, with their contents, modes, times and
//! links.
//!
//! In: operands of the command line. Out: an [`Item`] for each source, which the engine copies. This module decides
//! whether the last operand is a directory to copy into, or a new name.

mod compare;
mod end;
mod engine;
mod local;
mod part;
mod progress;
mod pump;
mod remote;
mod restore;
mod sum;

use std::cell::RefCell;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::rc::Rc;

use anyhow::{Context, Result, bail};
use nine_net::{Env, rt};
use nine_proto::{Errno, GetMask};

use crate::cli::{self, Copying};
use crate::config::{Config, Remote};
use crate::dial::{self, Sessions};
use crate::fail::{self, Tally};
use crate::operand::{Operand, Place};
pub use compare::{Change, Comparison, Side, What};
pub use end::Kind;
use end::{Dir, Meta};
use engine::{Engine, Item, SinkPath, Target};
pub use progress::{Progress, Steps};
pub use restore::{Restored, Restoring};

pub use remote::cleaned;

pub fn get(args: cli::Get, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let from = Place::parse(&args.from, &remote)?;
    let to = args.to.unwrap_or_else(|| ".".into());
    copy(vec![Operand::Remote(from)], Operand::Local(to), &args.copying, remote)
}

pub fn put(args: cli::Put, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let to = Place::parse(&args.to, &remote)?;
    copy(vec![Operand::Local(args.from)], Operand::Remote(to), &args.copying, remote)
}

pub fn cp(args: cli::Cp, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let parse = |word: &OsString| Operand::parse(word, &remote);
    let mut sources = args.paths.iter().map(parse).collect::<Result<Vec<_>>>()?;
    // clap requires at least two paths.
    let to = sources.pop().expect("two paths");
    if let (Operand::Local(_), Some(_)) = (&to, sources.iter().find(|from| matches!(from, Operand::Local(_))))
    {
        bail!("{to}: both ends are of this machine: cp(1) copies there; `:/path` is at the default server");
    }
    copy(sources, to, &args.copying, remote)
}

fn copy(sources: Vec<Operand>, to: Operand, copying: &Copying, remote: Remote) -> Result<Tally> {
    let descriptors = rt::raise_nofile().map_or(FEW, |most| usize::try_from(most).unwrap_or(usize::MAX));
    dial::run_tidy(remote, copying.quiet, async |sessions| {
        let mut tally = Tally::default();
        let several = sources.len() > 1;
        let mut items = Vec::new();
        for operand in &sources {
            let item = item(&sessions, operand, &to, several, copying).await;
            match item {
                Err(error) if error.is::<SinkPath>() && !fail::is_final(&error) => tally.fail_there(error),
                item => items.extend(tally.check(operand, item)?),
            }
        }
        let size = match &*items {
            [item] if item.meta.kind == Kind::File => Some(item.meta.size),
            _ => None,
        };
        let progress = Progress::new(copying.quiet, size);
        let engine = Engine {
            recursive: copying.recursive,
            preserve: copying.preserve,
            xattrs: false,
            links: None,
            fresh: false,
            resume: copying.resume,
            verify: copying.verify,
            descriptors,
            progress: &progress,
            tops: RefCell::default(),
            marks: RefCell::default(),
        };
        let failed = engine.run(items).await;
        progress.end();
        if failed.is_err() && copying.resume {
            fail::note("what has come is kept; the same line goes on from there");
        }
        let failed = failed?;
        if failed > 0 && copying.recursive || copying.resume && !copying.quiet {
            fail::note(progress.summary(copying.resume, failed));
        }
        tally.add(failed);
        Ok(tally)
    })
}

/// Resolves a source and its destination.
async fn item(
    sessions: &Sessions,
    operand: &Operand,
    to: &Operand,
    several: bool,
    copying: &Copying,
) -> Result<Item> {
    let (from, name, meta) = match operand {
        Operand::Local(path) => local_source(path, !copying.recursive)?,
        Operand::Remote(place) => remote_source(sessions, place, !copying.recursive).await?,
    };
    let path = operand.to_string().trim_end_matches('/').as_bytes().to_vec();
    // A directory that the interrupted copy has created is the copy itself, not a directory to copy into.
    let is_tree = copying.resume && copying.recursive && meta.kind == Kind::Dir;
    let mark = |new: &[u8]| is_tree.then(|| part::mark(new, &path));
    let destination = match to {
        Operand::Local(path) => local_destination(path, several, mark),
        Operand::Remote(place) => remote_destination(sessions, place, several, mark).await,
    };
    let Destination { target, new, in_place } = destination.with_context(|| SinkPath(to.to_string()))?;
    if new.is_none() && name.is_empty() && !copying.recursive {
        bail!("Is a directory; -r copies it with everything in it");
    }
    if meta.kind != Kind::Dir && target.has(&from, new.as_ref().unwrap_or(&name), &meta).await {
        bail!("{to}: it is the same file");
    }
    let mark = new.as_deref().and_then(mark);
    Ok(Item { from: Rc::new(from), name, meta, to: target, new, in_place, path: Some(path), depth: 0, mark })
}

type Source = (Dir, Vec<u8>, Meta);

fn local_source(path: &Path, follow: bool) -> Result<Source> {
    let real = if follow { Some(path.canonicalize()?) } else { None };
    let path = real.as_deref().unwrap_or(path);
    let (dir, name) = match path.file_name() {
        Some(name) if !is_inside(path.as_os_str().as_bytes()) => {
            (local::Dir::named(path.parent().unwrap_or(path))?, name.as_bytes().to_vec())
        }
        _ => (local::Dir::named(path)?, Vec::new()),
    };
    let meta = dir.stat(&name)?;
    Ok((Dir::Local(dir), name, meta))
}

async fn remote_source(sessions: &Sessions, place: &Place, follow: bool) -> Result<Source> {
    let dial::Sought { found, parent } = sessions.seek(place, follow, GetMask::BASIC).await?;
    let dial::Found { root, file, names, attr } = found?;
    let meta = Meta::from(&attr);
    let (dir, name) = match names.split_last() {
        Some((name, parents)) if !is_inside(&place.path) => {
            let dir = match parent {
                Some(dir) => dir,
                None if parents.is_empty() => root,
                None => Rc::new(root.walk(parents.join(&b'/')).await?),
            };
            (remote::Dir::from(dir), name.clone())
        }
        _ => (remote::Dir::new(file), Vec::new()),
    };
    Ok((Dir::Remote(dir), name, meta))
}

/// Returns whether a path names the content of a directory, not the directory with its name.
fn is_inside(path: &[u8]) -> bool {
    path == b"." || path.ends_with(b"/.")
}

struct Destination {
    target: Rc<Target>,
    /// `None` for the source's own name.
    new: Option<Vec<u8>>,
    in_place: bool,
}

fn local_destination(
    path: &Path,
    several: bool,
    mark: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Destination> {
    let typed = path;
    let into = |dir: &Path, new: Option<&OsStr>, in_place| {
        let shown = if new.is_some() { dir } else { typed };
        let target = Target::named(Dir::Local(local::Dir::named(dir)?), shown.as_os_str().as_bytes());
        Ok(Destination { target, new: new.map(|new| new.as_bytes().to_vec()), in_place })
    };
    let real = match path.canonicalize() {
        Ok(real) if real.is_dir() => {
            if let (Some(parent), Some(name)) = (real.parent(), real.file_name())
                && let Some(mark) = mark(name.as_bytes())
                && parent.join(OsStr::from_bytes(&mark)).is_file()
            {
                return into(parent, Some(name), false);
            }
            return into(&real, None, false);
        }
        Ok(real) => Some(real),
        Err(_) => None,
    };
    if several {
        bail!("Not a directory");
    }
    // A link to a pipe of a process (as in /proc) has no other path than itself.
    let special = path.metadata().is_ok_and(|meta| !meta.is_file());
    let path = real.as_deref().unwrap_or(path);
    let name = path.file_name().context("No such file or directory")?;
    into(path.parent().unwrap_or(path), Some(name), special)
}

async fn remote_destination(
    sessions: &Sessions,
    place: &Place,
    several: bool,
    mark: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Destination> {
    let dial::Sought { found, parent } = sessions.seek(place, true, GetMask::BASIC).await?;
    let known = match found {
        Ok(dial::Found { file, .. }) if file.qid().is_dir() => {
            if let Some((_, name)) = place.split()
                && let Some(mark) = mark(name)
                && let (dir, _) = sessions.parent(place).await?
                && dir.walk(&mark).await.is_ok()
            {
                let target = Target::named(Dir::Remote(dir.into()), place.written_dir());
                return Ok(Destination { target, new: Some(name.to_vec()), in_place: false });
            }
            let target = Target::named(Dir::Remote(remote::Dir::new(file)), place.written());
            return Ok(Destination { target, new: None, in_place: false });
        }
        Ok(found) => Some(found),
        Err(e) if is_absent(&e) => None,
        Err(e) => return Err(e),
    };
    if several {
        bail!("Not a directory");
    }
    let in_place = match known {
        Some(dial::Found { file, attr, .. }) => remote::is_more(file.qid(), &Meta::from(&attr)),
        None => false,
    };
    let (dir, name) = match (parent, place.split()) {
        (Some(dir), Some((_, name))) => (dir, name),
        _ => sessions.parent(place).await?,
    };
    let target = Target::named(Dir::Remote(dir.into()), place.written_dir());
    Ok(Destination { target, new: Some(name.to_vec()), in_place })
}

fn is_absent(error: &anyhow::Error) -> bool {
    error.downcast_ref::<nine_io::client::Error>().is_some_and(|e| e.errno() == Errno::ENOENT)
}

/// Returns how many bytes to request at offset `at` of a file of about `size` bytes. One byte more shows that the file
/// ends there; at least [`SOME`], in case the file does not report its length.
fn some_more(at: u64, size: u64) -> u64 {
    (size.saturating_sub(at) + 1).max(SOME)
}

/// Bytes to request of a file that may not report its length.
const SOME: u64 = 4096;
/// Number of descriptors that every process may have.
const FEW: usize = 256;

/// Returns a random name for a file that is not complete yet.
fn temp_name() -> String {
    let mut bits = [0; 8];
    rt::Real.entropy(&mut bits);
    format!(".ninefold-{:016x}", u64::from_ne_bytes(bits))
}
