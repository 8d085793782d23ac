//! Copies trees: many small files at once, to fill a long link, and few large ones. A directory is created before its
//! content, and gets its mode and time after it.
//!
//! In: items, each a name in a source directory and its name in a target. Out: the number of failures. Each failure is
//! reported when it happens, and the others continue unless a server is gone.
//!
//! Always holds: at most [`AT_ONCE`] files of [`BYTES`] in total are in flight, and [`LARGE_AT_ONCE`] large ones beside
//! them. [`LISTINGS`] listings run ahead until [`AHEAD`] small files or [`PARKED`] large ones wait; each brings some
//! hundred names at a time. If too many files are open, fewer are in flight from then on. A copy into a part of its own
//! source ends: directories created for the operands are recognised ([`Engine::refuse_own`]). A file arrives as the
//! source had it, or there is an error ([`Engine::agree`]).

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::time::Duration;

use anyhow::{Result, bail};
use futures_util::future::{join, try_join};
use futures_util::lock::Mutex;
use futures_util::stream::{FuturesUnordered, StreamExt};
use nine_io::client::Error;
use nine_net::{Env, rt};
use nine_text::show_name;

use super::end::{Aside, Dir, Found, Kind, Listing, Meta, Sink, Source};
use super::part::{self, There};
use super::progress::Progress;
use super::pump::{Pumped, pump};
use super::remote;
use super::sum::Sum;
use crate::ancestors::Ancestors;
use crate::fail;

/// Limit of small files in flight, if so many may be open: at three round trips of 50 ms each, 3,400 a second.
const AT_ONCE: usize = 512;
/// Limit of their bytes: more than a link of 800 Mbit/s carries in these round trips.
const BYTES: u64 = 16 << 20;
/// Limit of large files in flight: each may fill its window.
const LARGE_AT_ONCE: usize = 4;
/// A file of this length or more is large, bytes.
const LARGE: u64 = 1 << 20;
/// Limit of directories that are listed at once.
const LISTINGS: usize = 256;
/// Limit of small files that wait or are expected soon; then no more directories are listed.
const AHEAD: usize = 4096;
/// Expected number of files in a directory. The requests of listings must not delay the files in flight.
const BRINGS: usize = 16;
/// Limit of waiting large files.
const PARKED: usize = 256;
/// Descriptors that a local file in flight may need, including its share of the directories.
const DESCRIPTORS: usize = 4;

/// First pause before a retry if too many files are open while nothing else is in flight. The pause doubles each time;
/// eight pauses are five seconds.
const PAUSE: Duration = Duration::from_millis(20);
const TRIES_ALONE: u32 = 8;

/// Limit of remembered files with several hard links; further ones are copied once for each name.
const LINKS: usize = 100_000;

/// Limit of nested directories. Only a copy that meets its own output, unrecognised, gets so deep.
const DEEPEST: usize = 1000;

/// A file to copy.
pub struct Item {
    pub from: Rc<Dir>,
    /// Empty for `from` itself.
    pub name: Vec<u8>,
    pub meta: Meta,
    pub to: Rc<Target>,
    /// Its name in `to`; empty for `to` itself; `None` for the same name as in the source.
    pub new: Option<Vec<u8>>,
    /// Overwrite the existing file in place.
    pub in_place: bool,
    /// The path as the user writes it; `None`: derived from the directory's path and the name.
    pub path: Option<Vec<u8>>,
    /// Number of directories above it in this copy; 0 for an operand.
    pub depth: usize,
    /// Name of a marker beside an operand's directory, which exists until the directory is complete.
    pub mark: Option<Vec<u8>>,
}

/// The context of an error at the destination: the path of its file or directory, as the user writes it.
#[derive(Debug)]
pub struct SinkPath(pub String);

impl fmt::Display for SinkPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A directory that is being filled. When its last item is done, it gets its mode and time.
pub struct Target {
    dir: Dir,
    parent: Option<Rc<Target>>,
    /// The chain of source directories down to the one it is filled from.
    above: Ancestors,
    /// `None`: the directory existed before and keeps its attributes.
    meta: Option<Meta>,
    /// The path of its source, as the user writes it.
    path: Vec<u8>,
    /// Its own path, as the user writes it.
    shown: Vec<u8>,
    /// The previous content, if it is needed.
    there: Option<There>,
}

impl Target {
    /// Creates a target for a directory that the user named; `shown` is its path.
    pub fn named(dir: Dir, shown: impl Into<Vec<u8>>) -> Rc<Target> {
        let (above, shown) = (Ancestors::default(), shown.into());
        Rc::new(Target { dir, parent: None, above, meta: None, path: Vec::new(), shown, there: None })
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Dir {
        &self.dir
    }

    /// Returns whether the file with this name is the very file `meta` that was found in `from`.
    pub async fn has(&self, from: &Dir, name: &[u8], meta: &Meta) -> bool {
        let of = |meta: &Meta| (meta.id, meta.kind, meta.size, meta.mtime);
        self.dir.same_world(from) && self.dir.stat(name).await.is_ok_and(|there| of(&there) == of(meta))
    }
}

/// Copies trees with these options.
pub struct Engine<'a> {
    pub recursive: bool,
    pub preserve: bool,
    /// Copy extended attributes, too: some more round trips for each file.
    pub xattrs: bool,
    /// Preserve hard links.
    pub links: Option<&'a Links>,
    /// The destination was empty: a file that has appeared meanwhile stays, and is an error.
    pub fresh: bool,
    /// Keep incomplete files as parts and continue them; skip files that have arrived.
    pub resume: bool,
    /// Compare each file with its source before it gets its name.
    pub verify: bool,
    /// Limit of descriptors of this process.
    pub descriptors: usize,
    pub progress: &'a Progress,
    /// Directories that were created for operands.
    pub tops: RefCell<Vec<Top>>,
    /// Markers of incomplete directories.
    pub marks: RefCell<Vec<(Dir, Vec<u8>)>>,
}

/// Files with several hard links: by their id in the source, one name of the copy. Only one of these files is copied at
/// a time.
#[derive(Default)]
pub struct Links(Mutex<HashMap<u64, (Dir, Vec<u8>)>>);

/// The directory that holds everything created for one operand.
#[derive(Clone)]
pub struct Top {
    dir: Dir,
    name: Vec<u8>,
    meta: Meta,
}

enum Work {
    Copy(Item),
    List(Filling),
    Finish(Target),
}

/// A directory that is being listed.
struct Filling {
    listing: Listing,
    from: Rc<Dir>,
    to: Rc<Target>,
    /// Depth of its content.
    depth: usize,
    /// Expected number of names in the next piece.
    brings: usize,
}

/// The result of a piece of work.
struct Done {
    share: Share,
    /// Failed names.
    failed: Vec<(Vec<u8>, anyhow::Error)>,
    then: Then,
}

enum Then {
    /// Done. The last item that leaves a directory triggers its completion.
    Left(Option<Rc<Target>>),
    /// Items found in a directory, which may have more.
    Found(Vec<Item>, Filling),
    /// Not done because of this error; may be retried.
    Refused(Work, anyhow::Error),
}

impl Engine<'_> {
    /// Copies all `items`. Returns the number of failed names.
    pub async fn run(&self, items: Vec<Item>) -> Result<usize> {
        let mut queue = Queue::new(AT_ONCE.min(self.descriptors / DESCRIPTORS).max(1));
        queue.extend(items);
        let mut running: FuturesUnordered<Pin<Box<dyn Future<Output = Done> + '_>>> = FuturesUnordered::new();
        let (mut count, mut alone) = (0, 0);
        loop {
            while let Some((work, share)) = queue.next() {
                running.push(Box::pin(self.step(work, share)));
            }
            let Some(Done { share, mut failed, then }) = running.next().await else { break };
            queue.ended(share);
            match then {
                Then::Refused(work, error)
                    if is_too_much(&error) && (!running.is_empty() || alone < TRIES_ALONE) =>
                {
                    queue.squeeze(running.len() / 2, work);
                    if running.is_empty() {
                        remote::cleaned().await;
                        // Our own files may not be closed yet, or another program may free descriptors.
                        rt::Real.sleep_until(rt::Real.now() + PAUSE * (1 << alone)).await;
                        alone += 1;
                        queue.try_again();
                    }
                    continue;
                }
                Then::Refused(work, error) => {
                    let (path, target) = work.given_up();
                    failed.push((path, error));
                    target.into_iter().for_each(|target| queue.leave(target));
                }
                Then::Found(items, filling) => {
                    queue.extend(items);
                    queue.listings.push(filling);
                }
                Then::Left(target) => target.into_iter().for_each(|target| queue.leave(target)),
            }
            alone = 0;
            queue.try_again();
            for (path, error) in failed {
                if error.downcast_ref().is_some_and(Error::is_disconnect) {
                    return Err(error);
                }
                count += 1;
                match error.is::<SinkPath>() {
                    true => fail::Tally::default().fail_there(error),
                    false => fail::Tally::default().fail(show_name(&path), error),
                }
            }
        }
        if count == 0 {
            for (dir, mark) in self.marks.take() {
                // A concurrent copy of the same tree may have removed it.
                let _ = dir.unlink(&mark).await;
            }
        }
        Ok(count)
    }

    async fn step(&self, work: Work, share: Share) -> Done {
        let (failed, then) = match work {
            Work::Finish(target) => {
                // The removal of a temporary file changes the directory's time, so wait for it.
                remote::cleaned().await;
                let finished = match &target.meta {
                    Some(meta) => target.dir.finish(meta, self.preserve).await,
                    None => Ok(()),
                };
                match finished {
                    Ok(()) => (Vec::new(), Then::Left(target.parent)),
                    Err(error) => (Vec::new(), Then::Refused(Work::Finish(target), error)),
                }
            }
            Work::List(filling) => self.list(filling).await,
            Work::Copy(item) if item.meta.kind == Kind::Dir => match self.dir(&item).await {
                Ok(filling) => (Vec::new(), Then::Found(Vec::new(), filling)),
                Err(error) => (Vec::new(), Then::Refused(Work::Copy(item), error)),
            },
            Work::Copy(item) => match self.one(&item).await {
                Ok(()) => (Vec::new(), Then::Left(Some(item.to))),
                Err(error) => (Vec::new(), Then::Refused(Work::Copy(item), error)),
            },
        };
        Done { share, failed, then }
    }

    /// Creates a directory and starts to list its source.
    async fn dir(&self, item: &Item) -> Result<Filling> {
        let Item { name, meta, to, depth, .. } = item;
        let new = item.as_new();
        if !self.recursive {
            bail!("Is a directory; -r copies it with everything in it");
        }
        if *depth > DEEPEST {
            bail!("it is more than {DEEPEST} directories deep");
        }
        let from = item.from.dir(name).await?;
        let above = to.above.with(from.id()?)?;
        self.refuse_own(&from, name, meta).await?;
        // The destination that the user named keeps its mode; other directories get theirs when they are filled.
        let lifts = |was_there: bool| was_there && !new.is_empty();
        let (listing, (dir, was_there)) = if *depth == 0 {
            if let Some(mark) = &item.mark {
                let aside = Aside { part: Some(mark.clone()), ..Aside::default() };
                to.dir.create(mark, &aside).await?.stays(true);
                self.marks.borrow_mut().push((to.dir.clone(), mark.clone()));
            }
            let made = to.dir.make_dir(new).await;
            let (dir, was_there) = made.map_err(|error| item.at_sink(error))?;
            // Everything created from now on is inside it, and a listing reaches that only through it.
            let top = Top { dir: dir.clone(), name: new.to_vec(), meta: dir.stat(b"").await? };
            self.tops.borrow_mut().push(top);
            // The check whether it is the source creates a file in it.
            let lifted = if lifts(was_there) { dir.lift().await } else { None };
            if let Err(error) = self.refuse_own(&from, name, meta).await {
                if let Some(mode) = lifted {
                    let _ = dir.set_mode(mode).await;
                }
                return Err(error);
            }
            (from.listing().await?, (dir, was_there))
        } else {
            let make = async { to.dir.make_dir(new).await.map_err(|error| item.at_sink(error)) };
            try_join(from.listing(), make).await?
        };
        if *depth > 0 && lifts(was_there) {
            dir.lift().await;
        }
        if self.xattrs {
            self.lacks(&item.path(), dir.set_xattrs(&from.xattrs().await?, !was_there).await?);
        }
        let mut there = self.resume.then(There::default);
        if let (Some(there), true) = (&mut there, was_there) {
            let mut listing = dir.listing().await?;
            while let Some(found) = listing.next().await? {
                there.extend(found);
            }
        }
        // The destination that the user named keeps its attributes.
        let meta = (!new.is_empty()).then_some(*meta);
        let (parent, path, shown) = (Some(to.clone()), item.path(), item.sink_path());
        let to = Rc::new(Target { dir, parent, above, meta, path, shown, there });
        Ok(Filling { listing, from: Rc::new(from), to, depth: depth + 1, brings: BRINGS })
    }

    /// Reports extended attributes that could not be set.
    fn lacks(&self, path: &[u8], attributes: usize) {
        if attributes > 0 {
            fail::note(format_args!(
                "{}: {attributes} extended attributes are not kept there",
                show_name(path)
            ));
        }
    }

    async fn list(&self, mut filling: Filling) -> (Vec<(Vec<u8>, anyhow::Error)>, Then) {
        let found = match filling.listing.next().await {
            Ok(Some(found)) => found,
            Ok(None) => return (Vec::new(), Then::Left(Some(filling.to))),
            Err(error) => return (Vec::new(), Then::Refused(Work::List(filling), error)),
        };
        filling.brings = found.len();
        let Filling { from, to, depth, .. } = &filling;
        let (mut items, mut failed) = (Vec::with_capacity(found.len()), Vec::new());
        for Found { name, meta } in found {
            match meta {
                Ok(meta) => items.push(Item {
                    from: from.clone(),
                    name,
                    meta,
                    to: to.clone(),
                    new: None,
                    in_place: false,
                    path: None,
                    depth: *depth,
                    mark: None,
                }),
                Err(error) => failed.push(([&to.path[..], b"/", &name].concat(), error)),
            }
        }
        (failed, Then::Found(items, filling))
    }

    /// Fails if this source directory is one that the copy fills. Within a session an equal id is the sign. Across
    /// sessions, or with this machine, ids may differ; then the name and the permissions at creation are the sign.
    /// Either sign only triggers the real check.
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

    /// Fails if a file has appeared where none was: a rename would replace it.
    async fn refuse_there(&self, item: &Item) -> Result<()> {
        if self.fresh && item.to.dir.stat(item.as_new()).await.is_ok() {
            bail!("something has come there meanwhile, and stays");
        }
        Ok(())
    }

    /// Copies a file that is not a directory.
    async fn one(&self, item: &Item) -> Result<()> {
        let Item { from, name, meta, to, .. } = item;
        match meta.kind {
            Kind::Special => {
                let path = item.path();
                fail::note(format_args!("{}: a pipe, socket or device is not copied", show_name(&path)));
                return Ok(());
            }
            Kind::File if meta.is_event && item.depth > 0 => {
                let path = item.path();
                fail::note(format_args!("{}: an event is not copied: name it to read it", show_name(&path)));
                return Ok(());
            }
            _ if self.resume && !item.in_place && self.has_arrived(item).await? => {
                self.progress.skipped(meta.size);
                return Ok(());
            }
            Kind::Link => {
                let target = from.readlink(name).await?;
                self.refuse_there(item).await?;
                let made = to.dir.symlink(item.as_new(), &target, meta, self.preserve).await;
                made.map_err(|error| item.at_sink(error))?;
            }
            _ => match self.links.filter(|_| meta.links > 1) {
                Some(links) => self.linked(item, links).await?,
                None => self.file(item).await?,
            },
        }
        self.progress.file();
        Ok(())
    }

    /// Copies a file with several hard links, or links to its copy if there is one.
    async fn linked(&self, item: &Item, links: &Links) -> Result<()> {
        let (dir, new) = (&item.to.dir, item.as_new());
        let mut made = links.0.lock().await;
        self.refuse_there(item).await?;
        // If the link fails, copy the file instead.
        if let Some((other, name)) = made.get(&item.meta.id)
            && dir.link(new, other, name).await.is_ok()
        {
            return Ok(());
        }
        self.file(item).await?;
        if made.len() < LINKS {
            made.insert(item.meta.id, (dir.clone(), new.to_vec()));
        }
        Ok(())
    }

    async fn file(&self, item: &Item) -> Result<()> {
        let Item { from, name, meta, to, .. } = item;
        let new = item.as_new();
        let part = self.resume.then(|| part::name(new, meta));
        let aside = Aside { part, size: meta.size, read_back: self.verify };
        let (source, sink) = if item.in_place {
            if self.verify {
                bail!("what is there is more than its content: it cannot be compared");
            }
            let open = async { to.dir.open_in_place(new).await.map_err(|error| item.at_sink(error)) };
            try_join(from.open(name, meta, 0), open).await?
        } else if self.resume {
            let sink = to.dir.create(new, &aside).await.map_err(|error| item.at_sink(error))?;
            (from.open(name, meta, sink.start()).await?, sink)
        } else {
            let create = async { to.dir.create(new, &aside).await.map_err(|error| item.at_sink(error)) };
            try_join(from.open(name, meta, 0), create).await?
        };
        let checked = |n| self.progress.checked(n);
        let mut sum = self.verify.then(Sum::new);
        if let Some(sum) = &mut sum {
            source.ready().await?;
            sum.read(source.before(), checked).await?;
        }
        self.progress.had(sink.start());
        let also =
            Pumped { progress: |n| self.progress.bytes(n), sum: sum.as_mut(), part: self.resume, seen: 0 };
        let (end, ()) = join(pump(&source, &sink, also), self.sweep(item, &aside, &sink)).await;
        let end = end.map_err(|failed| match failed.at_sink {
            true => item.at_sink(failed.error),
            false => failed.error,
        })?;
        self.agree(&source, &sink, meta, end).await?;
        if let Some(sum) = sum {
            let mut there = Sum::new();
            there.read(sink.reading(end), checked).await?;
            if !sum.is(there) {
                sink.stays(false);
                bail!("what has arrived differs from its source, and is removed");
            }
        }
        if self.xattrs {
            sink.ready().await?;
            self.lacks(&item.path(), sink.set_xattrs(&source.xattrs().await?).await?);
        }
        let resumed = sink.start() > 0;
        self.refuse_there(item).await?;
        sink.keep(meta, self.preserve).await.map_err(|error| item.at_sink(error))?;
        self.progress.resumed(resumed);
        Ok(())
    }

    /// Returns whether the file has arrived already, judged by its length and time, and with `verify` by its content.
    async fn has_arrived(&self, item: &Item) -> Result<bool> {
        let Item { from, name, meta, to, .. } = item;
        let new = item.as_new();
        let is_like = match &to.there {
            Some(there) => there.has(new, meta),
            None => {
                let like = |there: Meta| meta.is_like(there.kind, there.size, there.mtime);
                to.dir.stat(new).await.is_ok_and(like)
            }
        };
        if !is_like || !self.verify || meta.kind == Kind::Link {
            return Ok(is_like);
        }
        let (source, there) = try_join(from.open(name, meta, 0), to.dir.open(new, meta, 0)).await?;
        let (mut a, mut b) = (Sum::new(), Sum::new());
        let checked = |n| self.progress.checked(n);
        try_join(a.read(source.reading(), checked), b.read(there.reading(), |_| ())).await?;
        Ok(a.is(b))
    }

    /// Removes parts that belong to earlier versions of the source.
    async fn sweep(&self, item: &Item, aside: &Aside, sink: &Sink) {
        let (to, new) = (&item.to, item.as_new());
        let Some(part) = &aside.part else { return };
        if sink.is_continued() {
            // The copy that began this part has removed them.
            return;
        }
        let mut here = There::default();
        let there = match &to.there {
            Some(there) => there,
            // If the names cannot be listed, no part is removed.
            None => {
                to.dir.names().await.unwrap_or_default().iter().for_each(|name| here.part(name));
                &here
            }
        };
        for old in there.parts_of(new) {
            // The source may itself have files with such names.
            if old != part && item.from.stat(old).await.is_err() {
                let _ = to.dir.unlink(old).await;
            }
        }
    }

    /// Fails if the bytes read, up to `end`, are not those of the intended file. A file that grows or shrinks meanwhile
    /// is copied with its length at the time its end was read. A file that was continued or is to be verified must not
    /// change.
    async fn agree(&self, source: &Source, sink: &Sink, meant: &Meta, end: u64) -> Result<()> {
        let strict = sink.is_continued() || self.verify;
        if !strict && end >= meant.size {
            return Ok(());
        }
        let now = source.stat().await?;
        if strict && (now.size, now.mtime) != (meant.size, meant.mtime) {
            sink.stays(false);
            bail!("it has changed while it was copied");
        }
        if end < meant.size && end != now.size {
            bail!("it ends after {end} of {} bytes", now.size);
        }
        Ok(())
    }
}

impl Work {
    /// Returns the path as the user writes it, and the directory that no longer waits for this work.
    fn given_up(self) -> (Vec<u8>, Option<Rc<Target>>) {
        match self {
            Work::Copy(item) => (item.path(), Some(item.to)),
            Work::List(filling) => (filling.to.path.clone(), Some(filling.to)),
            Work::Finish(target) => (target.path, target.parent),
        }
    }
}

impl Item {
    /// Returns its name in the target.
    fn as_new(&self) -> &[u8] {
        self.new.as_deref().unwrap_or(&self.name)
    }

    /// Marks an error as one of the destination, not of the source.
    fn at_sink(&self, error: anyhow::Error) -> anyhow::Error {
        error.context(SinkPath(show_name(&self.sink_path()).to_string()))
    }

    /// Its path at the destination, as the user writes it.
    fn sink_path(&self) -> Vec<u8> {
        let new = self.as_new();
        let slash = if new.is_empty() || self.to.shown.ends_with(b"/") { "" } else { "/" };
        [&self.to.shown[..], slash.as_bytes(), new].concat()
    }

    fn path(&self) -> Vec<u8> {
        let found = || [&self.to.path[..], b"/", &self.name].concat();
        self.path.clone().unwrap_or_else(found)
    }

    fn is_large(&self) -> bool {
        self.meta.kind == Kind::File && self.meta.size >= LARGE
    }
}

/// Returns whether the error means too many open files, on this machine or on a server.
fn is_too_much(error: &anyhow::Error) -> bool {
    let here = error.downcast_ref().copied();
    error.downcast_ref().is_some_and(remote::is_too_much)
        || here.is_some_and(|e| matches!(e, rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// Pending work, deepest first to keep few directories open; and counts of the work in flight.
struct Queue {
    finish: Vec<Target>,
    small: Vec<Item>,
    large: Vec<Item>,
    dirs: Vec<Item>,
    listings: Vec<Filling>,
    /// Work to retry when something else has ended.
    again: Vec<Work>,
    /// Limit of files in flight, large ones not counted.
    at_once: usize,
    files: usize,
    bytes: u64,
    larges: usize,
    lists: usize,
    /// Number of names that running listings are expected to bring.
    coming: usize,
}

/// The share of the limits that a piece of work takes.
#[derive(Clone, Copy)]
enum Share {
    File(u64),
    Large,
    Listing(usize),
}

impl Queue {
    fn new(at_once: usize) -> Queue {
        Queue {
            finish: Vec::new(),
            small: Vec::new(),
            large: Vec::new(),
            dirs: Vec::new(),
            listings: Vec::new(),
            again: Vec::new(),
            at_once,
            files: 0,
            bytes: 0,
            larges: 0,
            lists: 0,
            coming: 0,
        }
    }

    fn extend(&mut self, items: impl IntoIterator<Item = Item>) {
        for item in items {
            let queue = match item.meta.kind {
                Kind::Dir => &mut self.dirs,
                _ if item.is_large() => &mut self.large,
                _ => &mut self.small,
            };
            queue.push(item);
        }
    }

    /// Returns the next work that fits in the limits.
    fn next(&mut self) -> Option<(Work, Share)> {
        let next = self.next_file().or_else(|| self.next_listing());
        match next {
            Some((_, Share::File(bytes))) => {
                self.files += 1;
                self.bytes += bytes;
            }
            Some((_, Share::Large)) => self.larges += 1,
            Some((_, Share::Listing(brings))) => {
                self.lists += 1;
                self.coming += brings;
            }
            None => {}
        }
        next
    }

    fn next_file(&mut self) -> Option<(Work, Share)> {
        if self.larges < LARGE_AT_ONCE.min(self.at_once)
            && let Some(item) = self.large.pop()
        {
            return Some((Work::Copy(item), Share::Large));
        }
        if self.files >= self.at_once {
            return None;
        }
        if let Some(target) = self.finish.pop() {
            return Some((Work::Finish(target), Share::File(0)));
        }
        let bytes = self.small.last()?.meta.size;
        if self.files > 0 && self.bytes + bytes > BYTES {
            return None;
        }
        self.small.pop().map(|item| (Work::Copy(item), Share::File(bytes)))
    }

    fn next_listing(&mut self) -> Option<(Work, Share)> {
        let enough = self.small.len() + self.coming >= AHEAD || self.large.len() >= PARKED;
        if enough || self.lists >= LISTINGS.min(self.at_once) {
            return None;
        }
        if let Some(filling) = self.listings.pop() {
            let brings = filling.brings;
            return Some((Work::List(filling), Share::Listing(brings)));
        }
        self.dirs.pop().map(|item| (Work::Copy(item), Share::Listing(BRINGS)))
    }

    /// Returns a share when its work has ended.
    fn ended(&mut self, share: Share) {
        match share {
            Share::File(bytes) => {
                self.files -= 1;
                self.bytes -= bytes;
            }
            Share::Large => self.larges -= 1,
            Share::Listing(brings) => {
                self.lists -= 1;
                self.coming -= brings;
            }
        }
    }

    /// Removes one reference to a directory; the last one schedules its completion.
    fn leave(&mut self, target: Rc<Target>) {
        self.finish.extend(Rc::into_inner(target));
    }

    /// Lowers the limit of files in flight. `work` is retried when something in flight has ended.
    fn squeeze(&mut self, at_once: usize, work: Work) {
        self.at_once = at_once.clamp(1, self.at_once);
        self.again.push(work);
    }

    fn try_again(&mut self) {
        for work in std::mem::take(&mut self.again) {
            match work {
                Work::Copy(item) => self.extend([item]),
                Work::List(filling) => self.listings.push(filling),
                Work::Finish(target) => self.finish.push(target),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::local;
    use super::*;

    #[test]
    fn what_has_come_meanwhile_stays_where_nothing_was() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("from"), dir.path().join("to"));
        for top in [&from, &to] {
            fs::create_dir_all(top.join("d")).unwrap();
        }
        for name in ["d/f", "d/new"] {
            fs::write(from.join(name), "old").unwrap();
        }
        std::os::unix::fs::symlink("old", from.join("d/link")).unwrap();
        fs::hard_link(from.join("d/f"), from.join("d/other")).unwrap();
        for name in ["d/f", "d/link", "d/other"] {
            fs::write(to.join(name), "of today").unwrap();
        }
        let named = |path| Dir::Local(local::Dir::named(path).unwrap());
        let (progress, links) = (Progress::new(true, None), Links::default());
        let engine = Engine {
            recursive: true,
            preserve: false,
            xattrs: false,
            links: Some(&links),
            fresh: true,
            resume: false,
            verify: false,
            descriptors: 64,
            progress: &progress,
            tops: RefCell::default(),
            marks: RefCell::default(),
        };
        let failed = rt::block_on(async |_| {
            let (source, target) = (Rc::new(named(&from)), Target::named(named(&to), "to"));
            let (name, path) = (b"d".to_vec(), Some(b"d".to_vec()));
            let meta = source.stat(&name).await.unwrap();
            let (new, in_place, depth, mark) = (None, false, 0, None);
            engine
                .run(vec![Item { from: source, name, meta, to: target, new, in_place, path, depth, mark }])
                .await
        });
        assert_eq!(failed.unwrap().unwrap(), 3);
        for (name, text) in [("f", "of today"), ("link", "of today"), ("other", "of today"), ("new", "old")] {
            assert_eq!(fs::read_to_string(to.join("d").join(name)).unwrap(), text, "{name}");
        }
        assert_eq!(fs::read_dir(to.join("d")).unwrap().count(), 4, "nothing is left of what was on its way");
    }
}
