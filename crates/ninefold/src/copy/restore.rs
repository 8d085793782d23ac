//! Brings back what was: a tree of a server made what it is in another place, as far as that takes nothing away.
//!
//! In: a place of a dump, and where it shall go. Out: what was done. The engine copies what the comparison finds.
//!
//! Always holds: without force nothing is changed before everything has been looked at, and of what is there only the
//! times of directories that get something. What only the destination has stays. [`BATCH`] differences are held at
//! once, whatever there is to do.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::rc::Rc;

use anyhow::{Context as _, Result, anyhow, bail};
use nine_net::rt;
use nine_text::show_name;

use super::compare::{Change, Comparison, Side, What, is_nowhere};
use super::end::{Dir, Kind, Meta};
use super::engine::{Engine, Item, Links, Target};
use super::progress::{Progress, Steps};
use super::{Destination, FEW, local_destination, remote, remote_destination};
use crate::archive::places::names;
use crate::dial::Sessions;
use crate::fail::{self, Tally};
use crate::operand::{Operand, Place};

/// Differences that are held, and done away with together.
const BATCH: usize = 512;
/// Files that are named when nothing is done because of them.
const NAMED: usize = 10;

/// How it is done.
pub struct Restoring<'a> {
    pub sessions: &'a Sessions,
    /// What differs is overwritten.
    pub force: bool,
    pub quiet: bool,
}

/// What was done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Files and links that were copied.
    pub files: u64,
    /// Those whose mode, owner or time was set.
    pub dressed: u64,
    /// Those whose mode, owner or time is another one, and stays.
    pub kept: u64,
    /// What has come since, and stays.
    pub newer: u64,
    /// What could not be brought back.
    pub failed: usize,
}

/// Where it goes: a name in a directory.
struct Goal {
    dir: Rc<Dir>,
    name: Vec<u8>,
    /// Its owner may write in the directory for the time, whatever its mode is.
    lifts: bool,
}

impl Restoring<'_> {
    /// Brings back what is at `from`: to just this place of a server, whose directories are made as they were if they
    /// are not there any more.
    pub async fn back(&self, from: &Place, to: &Place, tally: &mut Tally) -> Result<Restored> {
        let source = self.source(from).await?;
        let Some((_, name)) = to.split() else {
            let dir = Rc::new(Dir::Remote(self.sessions.root(to).await?.into()));
            return self
                .restore(source, Goal { dir, name: Vec::new(), lifts: true }, &to.to_string(), tally)
                .await;
        };
        let (dir, made, lifted) = self.parents(from, to).await?;
        let goal = Goal { dir: Rc::new(dir), name: name.to_vec(), lifts: true };
        let restored = self.restore(source, goal, &to.to_string(), tally).await;
        for (dir, meta) in made.iter().rev() {
            dir.finish(meta, true).await?;
        }
        if let Some((dir, mode)) = lifted {
            dir.set_mode(mode).await?;
        }
        restored
    }

    /// Brings it somewhere else, as a copy would.
    pub async fn elsewhere(&self, from: &Place, to: &Operand, tally: &mut Tally) -> Result<Restored> {
        let source = self.source(from).await?;
        let unmarked = |_: &[u8]| None;
        let destination = match to {
            Operand::Local(path) => local_destination(path, false, unmarked),
            Operand::Remote(place) => remote_destination(self.sessions, place, false, unmarked).await,
        };
        let Destination { target, new, in_place } = destination.with_context(|| to.to_string())?;
        if in_place {
            bail!("{to}: what is there is more than its content");
        }
        // Into a directory that is there it goes by its own name, which messages must show.
        let shown = match &new {
            Some(_) => to.to_string(),
            None => below(&to.to_string(), &source.name),
        };
        let name = new.unwrap_or_else(|| source.name.clone());
        let goal = Goal { dir: Rc::new(target.dir().clone()), name, lifts: self.force };
        self.restore(source, goal, &shown, tally).await
    }

    async fn source(&self, from: &Place) -> Result<Side> {
        Side::at(self.sessions, from).await?.ok_or_else(|| anyhow!("{from}: it is not in this dump"))
    }

    /// The directory that something is to go to; and those on the way that were not there and have been made, which get
    /// their modes and times when they are filled; and the one that they are in with its mode, if that has changed.
    async fn parents(&self, from: &Place, to: &Place) -> Result<Parents> {
        let root = self.sessions.root(to).await?;
        let all = names(&to.path);
        let (_, above) = all.split_last().context("it has no directory")?;
        let was = names(&from.path);
        let mut at = above.len();
        let dir = loop {
            match root.walk(above[..at].join(&b'/')).await {
                Ok(dir) => break dir,
                Err(error) => {
                    let error = anyhow::Error::from(error);
                    if at == 0 || !is_nowhere(&error) {
                        return Err(error);
                    }
                    at -= 1;
                }
            }
        };
        let (mut dir, mut all_made) = (Dir::Remote(remote::Dir::new(dir)), Vec::new());
        let mode = if at < above.len() { dir.lift().await } else { None };
        let lifted = mode.map(|mode| (dir.clone(), mode));
        for (n, name) in above.iter().enumerate().skip(at) {
            let like = from.at(&was[..was.len().saturating_sub(all.len() - n - 1)]);
            let meta = self.source(&like).await?.meta;
            let (made, _) = dir.make_dir(name).await.with_context(|| to.at(&all[..=n]).to_string())?;
            all_made.push((made.clone(), meta));
            dir = made;
        }
        Ok((dir, all_made, lifted))
    }

    async fn restore(&self, source: Side, goal: Goal, to: &str, tally: &mut Tally) -> Result<Restored> {
        let there = match goal.dir.stat(&goal.name).await {
            Ok(meta) => Some(Side { dir: goal.dir.clone(), name: goal.name.clone(), meta }),
            Err(error) if is_nowhere(&error) => None,
            Err(error) => return Err(error.context(to.to_owned())),
        };
        if !self.force {
            self.refuse(&there, &source, to).await?;
        }
        let steps = Steps::new(true, "", None);
        let mut comparison = Comparison::new(there, Some(source), false, &steps);
        let progress = Progress::new(self.quiet, None);
        let (mut restored, mut batch, before) = (Restored::default(), Batch::default(), tally.failed());
        let fill = self.fill(&mut comparison, &goal, to, &mut batch, &mut restored, &progress, tally);
        let filled = fill.await;
        progress.end();
        // Done or failed: directories that were made writable for it get their modes again.
        for (dir, like) in batch.dirs.into_values() {
            let _ = dir.finish(&like.meta, true).await;
        }
        if let Some(mode) = batch.top {
            goal.dir.set_mode(mode).await?;
        }
        filled?;
        restored.files = progress.files();
        restored.failed = tally.failed() - before;
        Ok(restored)
    }

    /// Restores the differences that the comparison finds.
    #[expect(clippy::too_many_arguments, reason = "one half of one function")]
    async fn fill(
        &self,
        comparison: &mut Comparison<'_>,
        goal: &Goal,
        to: &str,
        batch: &mut Batch,
        restored: &mut Restored,
        progress: &Progress,
        tally: &mut Tally,
    ) -> Result<()> {
        let links = Links::default();
        loop {
            let change = comparison.next().await?;
            let is_last = change.is_none();
            if let Some(change) = change {
                let path = below(to, &change.path);
                let added = self.add(change, goal, &path, batch, restored).await;
                tally.check(show_name(path.as_bytes()), added)?;
            }
            if is_last || batch.items.len() >= BATCH || batch.dirs.len() >= BATCH {
                self.copy(batch, to, progress, &links, tally).await?;
            }
            if is_last {
                return Ok(());
            }
        }
    }

    /// An error if something would be overwritten that differs.
    async fn refuse(&self, there: &Option<Side>, source: &Side, to: &str) -> Result<()> {
        let steps = Steps::new(self.quiet, "files compared", None);
        let mut comparison = Comparison::new(there.clone(), Some(source.clone()), false, &steps);
        let mut differ = 0;
        while let Some(Change { path, what, .. }) = comparison.next().await? {
            if !matches!(what, What::Content | What::Kind) {
                continue;
            }
            differ += 1;
            if differ <= NAMED {
                fail::note(format_args!("{}: it differs", show_name(below(to, &path).as_bytes())));
            }
        }
        steps.end();
        match differ {
            0 => Ok(()),
            n => {
                let differ = if n == 1 { "1 file differs".into() } else { format!("{n} files differ") };
                bail!(
                    "{differ}, and nothing is restored: --to PLACE brings all of it elsewhere; --force overwrites what \
                     differs, and after `ninefold fs dump` that is not lost, either"
                )
            }
        }
    }

    /// Notes what is to be done about a difference.
    async fn add(
        &self,
        change: Change,
        goal: &Goal,
        path: &str,
        batch: &mut Batch,
        restored: &mut Restored,
    ) -> Result<()> {
        let Change { path: rest, what, old, new, old_dir } = change;
        let new = match (what, new) {
            (What::Unknown(error), _) => return Err(error),
            (What::Removed, _) | (_, None) => {
                restored.newer += 1;
                return Ok(());
            }
            (What::Content | What::Kind, _) if !self.force => bail!("it has come to differ meanwhile"),
            (What::Attributes, Some(new)) if new.meta.kind == Kind::Special => return Ok(()),
            (What::Attributes, Some(_)) if !self.force => {
                restored.kept += 1;
                return Ok(());
            }
            (What::Attributes, Some(new)) if new.meta.kind == Kind::Link => new,
            (What::Attributes, Some(new)) => {
                // Attributes differ of what both have.
                let old = old.context("it is there")?;
                match new.meta.kind {
                    Kind::Dir => drop(batch.dirs.insert(rest, (old.dir.dir(&old.name).await?, new))),
                    _ => old.dir.dress(&old.name, &new.meta).await?,
                }
                restored.dressed += 1;
                return Ok(());
            }
            (What::Kind, Some(new)) => {
                let old = old.context("it is there")?;
                self.lift(old_dir.as_deref(), &rest, goal, &new, batch).await?;
                if old.meta.kind == Kind::Dir {
                    bail!("a directory is there now: rename or remove it first");
                }
                if new.meta.kind == Kind::Dir {
                    old.dir.unlink(&old.name).await?;
                }
                new
            }
            (What::Added | What::Content, Some(new)) => new,
        };
        self.lift(old_dir.as_deref(), &rest, goal, &new, batch).await?;
        let (dir, name) = match old_dir {
            Some(dir) => (dir, new.name.clone()),
            None => (goal.dir.clone(), goal.name.clone()),
        };
        batch.items.push(item(dir, &name, new, path));
        Ok(())
    }

    /// Makes the directory that `new` goes to writable for its owner, and records the attributes that it gets again at
    /// the end. `old_dir`: that directory, if it is below the goal; `rest` is the path of `new` there.
    async fn lift(
        &self,
        old_dir: Option<&Dir>,
        rest: &[u8],
        goal: &Goal,
        new: &Side,
        batch: &mut Batch,
    ) -> Result<()> {
        let Some(dir) = old_dir else {
            if goal.lifts && batch.top.is_none() {
                batch.top = goal.dir.lift().await;
            }
            return Ok(());
        };
        let above = rest.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |at| &rest[..at]);
        // It gets its time again, too.
        if !batch.dirs.contains_key(above) {
            let mut meta = new.dir.stat(b"").await?;
            if !self.force {
                let Meta { mode, uid, gid, .. } = dir.stat(b"").await?;
                meta = Meta { mode, uid, gid, ..meta };
            }
            let like = Side { dir: new.dir.clone(), name: Vec::new(), meta };
            batch.dirs.insert(above.to_vec(), (dir.clone(), like));
        }
        if batch.lifted.insert(above.to_vec()) {
            dir.lift().await;
        }
        Ok(())
    }

    async fn copy(
        &self,
        batch: &mut Batch,
        to: &str,
        progress: &Progress,
        links: &Links,
        tally: &mut Tally,
    ) -> Result<()> {
        let descriptors = rt::raise_nofile().map_or(FEW, |most| usize::try_from(most).unwrap_or(usize::MAX));
        let engine = Engine {
            recursive: true,
            preserve: true,
            xattrs: true,
            links: Some(links),
            fresh: !self.force,
            resume: false,
            verify: false,
            descriptors,
            progress,
            tops: RefCell::default(),
            marks: RefCell::default(),
        };
        tally.add(engine.run(std::mem::take(&mut batch.items)).await?);
        batch.lifted.clear();
        for (path, (dir, like)) in std::mem::take(&mut batch.dirs) {
            tally.check(below(to, &path), dir.finish(&like.meta, true).await)?;
        }
        Ok(())
    }
}

/// What is done together.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    /// Directories that are there, which get mode, owner and time of others.
    dirs: HashMap<Vec<u8>, (Dir, Side)>,
    /// Of these, those in which their owners may write until then.
    lifted: HashSet<Vec<u8>>,
    /// The mode that the goal's directory is to have again in the end.
    top: Option<u32>,
}

/// A directory, those that were made below it, and the mode that it is to have again.
type Parents = (Dir, Vec<(Dir, Meta)>, Option<(Dir, u32)>);

fn item(dir: Rc<Dir>, name: &[u8], from: Side, path: &str) -> Item {
    Item {
        from: from.dir,
        name: from.name,
        meta: from.meta,
        to: Target::named((*dir).clone(), path.rsplit_once('/').map_or("", |(dir, _)| dir)),
        new: Some(name.to_vec()),
        in_place: false,
        path: Some(path.as_bytes().to_vec()),
        depth: 0,
        mark: None,
    }
}

fn below(top: &str, path: &[u8]) -> String {
    let path = show_name(path).to_string();
    if path.is_empty() { top.into() } else { format!("{}/{path}", top.trim_end_matches('/')) }
}
