//! Restores from dumps: makes a tree at another place the same as in the dump, without removing anything.
//!
//! In: a place in a dump, and the destination. Out: the numbers of restored and skipped files. The engine copies the
//! differences that the comparison finds.
//!
//! Always holds: without `force`, nothing changes before everything is compared. Of the existing files only the times
//! of directories that get new content change. Files that only the destination has stay. At most [`BATCH`] differences
//! are held at once.

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

/// Limit of differences that are collected and copied together.
const BATCH: usize = 512;
/// Number of differing files that a refusal lists.
const NAMED: usize = 10;

/// Restores with these options.
pub struct Restoring<'a> {
    pub sessions: &'a Sessions,
    /// Overwrite files that differ.
    pub force: bool,
    pub quiet: bool,
}

/// Numbers of restored and skipped files.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// Files and links that were copied.
    pub files: u64,
    /// Files with mode, owner or time set.
    pub dressed: u64,
    /// Files with a different mode, owner or time that was left as it is.
    pub kept: u64,
    /// Files created since the dump, which stay.
    pub newer: u64,
    /// Files that could not be restored.
    pub failed: usize,
}

/// The destination: a name in a directory.
struct Goal {
    dir: Rc<Dir>,
    name: Vec<u8>,
    /// A read-only directory may be made writable for its owner meanwhile.
    lifts: bool,
}

impl Restoring<'_> {
    /// Restores `from` to exactly this place of a server. Missing parent directories are created with their attributes
    /// in the dump.
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

    /// Restores to another place, with the rules of a copy.
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
        // In an existing directory the copy gets its own name, which messages must show.
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

    /// Opens the destination's parent directory. Also returns the missing directories that were created, which get
    /// their attributes after they are filled. And it returns the directory above them with its mode, if the mode was
    /// changed.
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
        // Also after a failure, directories that were made writable get their modes again.
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

    /// Fails if a file that differs would be overwritten.
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

    /// Records the work for one difference.
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
                // An attribute difference implies that both exist.
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

    /// Makes the directory that `new` goes to writable for its owner, and records the attributes to restore at the end.
    /// `old_dir` is that directory, if it is below the goal; `rest` is the path of `new` there.
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
        // The directory also gets its time again.
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

/// Differences that are copied together.
#[derive(Default)]
struct Batch {
    items: Vec<Item>,
    /// Existing directories, with the attributes to set at the end.
    dirs: HashMap<Vec<u8>, (Dir, Side)>,
    /// Directories among them that were made writable until then.
    lifted: HashSet<Vec<u8>>,
    /// The mode to restore on the goal's directory.
    top: Option<u32>,
}

/// A directory; the directories created on the way to it and it itself if it was created, with their attributes; and an
/// existing directory with the mode to restore.
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
