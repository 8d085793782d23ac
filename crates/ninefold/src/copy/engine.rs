//! Copies a tree: many small files at once, few large ones, directories before what is in them, their mode and time
//! after it.
//!
//! In: items, each a name in a source directory and the name it shall have in a target. Out: how many failed; each is
//! told when it happens and the others go on, unless a server is gone.
//!
//! Always holds: at most [`AT_ONCE`] items are under way, of them [`LARGE_AT_ONCE`] large ones; listings run ahead of
//! the copying by what one path of directories holds, and [`PARKED`] large files. A copy into a part of its own source
//! ends: the directories that are made for what a person named are known again ([`Engine::refuse_own`]).

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use anyhow::{Result, bail};
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::client::Error;
use nine_proto::show;

use super::end::{Dir, Kind, Meta, pump};
use super::progress::Progress;
use crate::fail;

/// Items under way.
const AT_ONCE: usize = 64;
/// Large files under way: each may fill its window.
const LARGE_AT_ONCE: usize = 4;
/// From here on a file is large, bytes.
const LARGE: u64 = 1 << 20;
/// Large files that wait while smaller ones go on; then nothing new is begun.
const PARKED: usize = 256;

/// Directories within each other. Nobody has so many; a copy that meets itself unrecognised has.
const DEEPEST: usize = 1000;

/// A name to copy.
pub struct Item {
    pub from: Rc<Dir>,
    /// Empty: `from` itself.
    pub name: Vec<u8>,
    pub meta: Meta,
    pub to: Rc<Target>,
    /// Empty: `to` itself.
    pub new: Vec<u8>,
    /// What is there already shall be written as it stands.
    pub in_place: bool,
    /// What a person calls it.
    pub path: Vec<u8>,
    /// Directories above it in this copy; 0: a person named it.
    pub depth: usize,
}

/// A directory that is being filled; with its last item it gets its mode and time.
pub struct Target {
    dir: Dir,
    parent: Option<Rc<Target>>,
    /// `None`: it was there before us and stays as it is.
    meta: Option<Meta>,
    path: Vec<u8>,
}

impl Target {
    /// One that a person named.
    pub fn named(dir: Dir) -> Rc<Target> {
        Rc::new(Target { dir, parent: None, meta: None, path: Vec::new() })
    }

    /// Whether the file that has this name here is the one of `meta` that was found in `from`.
    pub async fn has(&self, from: &Dir, name: &[u8], meta: &Meta) -> bool {
        let of = |meta: &Meta| (meta.id, meta.kind, meta.size, meta.mtime);
        self.dir.same_world(from) && self.dir.stat(name).await.is_ok_and(|there| of(&there) == of(meta))
    }
}

/// How trees are copied.
pub struct Engine<'a> {
    pub recursive: bool,
    pub preserve: bool,
    pub progress: &'a Progress,
    /// What has been made for what a person named.
    pub tops: RefCell<Vec<Top>>,
}

/// A directory that holds everything that is made for one operand.
#[derive(Clone)]
pub struct Top {
    dir: Dir,
    name: Vec<u8>,
    meta: Meta,
}

enum Work {
    Copy(Item),
    Finish(Target),
}

/// What came of a piece of work.
struct Done {
    path: Vec<u8>,
    result: Result<()>,
    /// What was found in a directory.
    children: Vec<Item>,
    /// Where it went; the last one finishes it.
    to: Option<Rc<Target>>,
    large: bool,
}

impl Engine<'_> {
    /// Copies all of `items`; says how many names failed.
    pub async fn run(&self, items: Vec<Item>) -> Result<usize> {
        let mut queue = Queue::default();
        queue.extend(items);
        let mut running: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + '_>>> = FuturesUnordered::new();
        let mut failed = 0;
        loop {
            while running.len() < AT_ONCE
                && let Some(work) = queue.next()
            {
                running.push(Box::pin(self.step(work)));
            }
            let Some(done) = running.next().await else { return Ok(failed) };
            if let Err(error) = done.result {
                if error.downcast_ref::<Error>().is_some_and(Error::is_disconnect) {
                    return Err(error);
                }
                failed += 1;
                fail::Tally::default().fail(show(&done.path), error);
            }
            queue.large_running -= usize::from(done.large);
            queue.extend(done.children);
            if let Some(target) = done.to.and_then(Rc::into_inner) {
                queue.finish.push(target);
            }
        }
    }

    async fn step(&self, work: Work) -> Done {
        match work {
            Work::Finish(target) => {
                let Target { dir, parent, meta, path } = target;
                let result = match meta {
                    Some(meta) => dir.finish(&meta, self.preserve).await,
                    None => Ok(()),
                };
                Done { path, result, children: Vec::new(), to: parent, large: false }
            }
            Work::Copy(item) if item.meta.kind == Kind::Dir => self.dir(item).await,
            Work::Copy(item) => {
                let large = item.is_large();
                let result = self.one(&item).await;
                Done { path: item.path, result, children: Vec::new(), to: Some(item.to), large }
            }
        }
    }

    /// Makes a directory and finds what belongs into it.
    async fn dir(&self, item: Item) -> Done {
        let Item { from, name, meta, to, new, path, depth, .. } = item;
        let open = async {
            if !self.recursive {
                bail!("Is a directory; -r copies it with everything in it");
            }
            if depth > DEEPEST {
                bail!("it is more than {DEEPEST} directories deep");
            }
            let from = from.dir(&name).await?;
            self.refuse_own(&from, &name, &meta).await?;
            let found = from.list().await?;
            let dir = to.dir.make_dir(&new).await?;
            if depth == 0 {
                // What is made from now on lies in it, and whatever finds that comes through it.
                let top = Top { dir: dir.clone(), name: new.clone(), meta: dir.stat(b"").await? };
                self.tops.borrow_mut().push(top);
                self.refuse_own(&from, &name, &meta).await?;
            }
            Ok((from, found, dir))
        };
        let (from, found, dir) = match open.await {
            Ok(open) => open,
            Err(error) => {
                return Done { path, result: Err(error), children: Vec::new(), to: Some(to), large: false };
            }
        };
        let from = Rc::new(from);
        // A directory that was named as the destination itself keeps what it is.
        let meta = (!new.is_empty()).then_some(meta);
        let target = Rc::new(Target { dir, parent: Some(to), meta, path: path.clone() });
        let mut children = Vec::with_capacity(found.len());
        let mut failed = Ok(());
        for found in found {
            let path = [&path[..], b"/", &found.name].concat();
            match found.meta {
                Ok(meta) => children.push(Item {
                    from: from.clone(),
                    new: found.name.clone(),
                    name: found.name,
                    meta,
                    to: target.clone(),
                    in_place: false,
                    path,
                    depth: depth + 1,
                }),
                Err(error) => failed = Err(error.context(show(&path).to_string())),
            }
        }
        Done { path, result: failed, children, to: Some(target), large: false }
    }

    /// An error if this directory of the source is one that the copy fills. Within a session an id says which may be
    /// one; between two, or with this machine, the same directory may have another id, and then its name and the
    /// permissions it was made with say so. Either is only a reason to look.
    async fn refuse_own(&self, from: &Dir, name: &[u8], meta: &Meta) -> Result<()> {
        let alike = |top: &&Top| {
            let foreign = !name.is_empty() && !top.dir.same_world(from);
            top.meta.id == meta.id
                || foreign && top.name == name && top.meta.mode & 0o777 == meta.mode & 0o777
        };
        let tops: Vec<Top> = self.tops.borrow().iter().filter(alike).cloned().collect();
        for top in tops {
            if top.dir.is(from).await? {
                bail!("cannot copy a directory into itself");
            }
        }
        Ok(())
    }

    /// Copies what is no directory.
    async fn one(&self, item: &Item) -> Result<()> {
        let Item { from, name, meta, to, new, .. } = item;
        match meta.kind {
            Kind::Special => {
                let path = show(&item.path);
                fail::note(format_args!("{path}: a pipe, socket or device is not copied"));
                return Ok(());
            }
            Kind::Link => {
                let target = from.readlink(name).await?;
                to.dir.symlink(new, &target, meta).await?;
            }
            _ => {
                let source = from.open(name, meta).await?;
                let sink =
                    if item.in_place { to.dir.open_in_place(new).await? } else { to.dir.create(new).await? };
                pump(&source, &sink, |n| self.progress.bytes(n)).await?;
                sink.keep(meta, self.preserve).await?;
            }
        }
        self.progress.file();
        Ok(())
    }
}

impl Item {
    fn is_large(&self) -> bool {
        self.meta.kind == Kind::File && self.meta.size >= LARGE
    }
}

/// What is to be done, the deepest first, so that little is open at a time.
#[derive(Default)]
struct Queue {
    finish: Vec<Target>,
    small: Vec<Item>,
    large: Vec<Item>,
    large_running: usize,
}

impl Queue {
    fn extend(&mut self, items: Vec<Item>) {
        let (large, mut small): (Vec<_>, Vec<_>) = items.into_iter().partition(Item::is_large);
        self.large.extend(large);
        // Files before directories: what is listed is copied before more is listed.
        small.sort_by_key(|item| item.meta.kind != Kind::Dir);
        self.small.extend(small);
    }

    fn next(&mut self) -> Option<Work> {
        if let Some(target) = self.finish.pop() {
            return Some(Work::Finish(target));
        }
        if self.large_running < LARGE_AT_ONCE
            && let Some(item) = self.large.pop()
        {
            self.large_running += 1;
            return Some(Work::Copy(item));
        }
        if self.large.len() >= PARKED {
            return None;
        }
        self.small.pop().map(Work::Copy)
    }
}
