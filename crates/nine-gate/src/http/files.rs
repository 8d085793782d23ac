//! Files that have been asked for, kept open: what nginx calls its open file cache.
//!
//! In: the root of a tree, and paths. Out: open files with what an answer says about them. What is found is believed
//! for [`FRESH`]; then it is looked at again by its path, so that a file that another has taken the place of is
//! noticed.
//!
//! Always holds: at most [`Files::new`]'s number is kept; of those that have not been asked for lately one goes first.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use nine_io::client::{Error, File, Result};
use nine_proto::mode::{S_IFMT, S_IFREG};
use nine_proto::{Attr, Errno, GetMask, OpenFlags};

/// For so long nothing is asked about a file that was found.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// Links that lead from one to the next.
const LINKS: usize = 16;

/// See the module.
pub(super) struct Files {
    root: Rc<File>,
    most: usize,
    by_path: RefCell<HashMap<Box<[u8]>, usize>>,
    /// In a ring, which the hand goes round.
    kept: RefCell<Vec<Kept>>,
    hand: Cell<usize>,
}

/// A path and what is there.
type Kept = (Box<[u8]>, Rc<Entry>);

/// An open file.
pub(super) struct Entry {
    pub(super) file: File,
    pub(super) size: u64,
    /// Its tag, with the quotes.
    pub(super) tag: Box<str>,
    /// When it was changed last.
    pub(super) changed: SystemTime,
    /// Headers that every answer has: type, tag, time.
    pub(super) lines: Box<[u8]>,
    /// It is worth compressing.
    pub(super) is_text: bool,
    /// When it was looked at; `None`: something was wrong with it.
    looked: Cell<Option<Duration>>,
    lately: Cell<bool>,
}

/// What a path leads to.
pub(super) enum Found {
    File(Rc<Entry>),
    /// A directory, not open.
    Dir(File),
    /// Something that is not shown: an event-like file, a device.
    Other,
}

impl Files {
    /// None yet, of the tree below `root`.
    pub(super) fn new(root: Rc<File>, most: usize) -> Self {
        let (by_path, kept) = (RefCell::default(), RefCell::default());
        Self { root, most: most.max(1), by_path, kept, hand: Cell::new(0) }
    }

    /// What is there, by names with '/' between.
    pub(super) async fn find(&self, path: &[u8], now: Duration) -> Result<Found> {
        let known = self.known(path);
        if let Some(entry) = &known {
            if entry.looked.get().is_some_and(|looked| now < looked + FRESH) {
                return Ok(Found::File(entry.clone()));
            }
            // The others believe it as long as one looks.
            entry.looked.set(Some(now));
        }
        let found = self.look(path, known.as_ref(), now).await;
        if !matches!(&found, Ok(Found::File(_))) {
            self.forget(path);
        }
        found
    }

    async fn look(&self, path: &[u8], known: Option<&Rc<Entry>>, now: Duration) -> Result<Found> {
        let (file, attr) = self.resolve(path).await?;
        if attr.qid.is_dir() {
            return Ok(Found::Dir(file));
        }
        if attr.qid.is_event() || attr.mode & S_IFMT != S_IFREG {
            return Ok(Found::Other);
        }
        if let Some(entry) = known.filter(|entry| entry.is_still(&attr)) {
            return Ok(Found::File(entry.clone()));
        }
        let file = match file.open_here(OpenFlags::READ).await {
            // Perhaps one that is kept is in the way.
            Err(error) if matches!(error.errno(), Errno::EMFILE | Errno::ENFILE) && self.evict() => {
                let (file, _) = self.resolve(path).await?;
                file.open_here(OpenFlags::READ).await?
            }
            opened => opened?,
        };
        let entry = Rc::new(Entry::new(path, file, &attr, now));
        self.keep(path, entry.clone());
        Ok(Found::File(entry))
    }

    /// Walks there; links lead on, as long as they stay in the tree.
    async fn resolve(&self, path: &[u8]) -> Result<(File, Attr)> {
        match self.root.walk_attr(path, GetMask::BASIC).await {
            Ok((file, attr)) if !attr.qid.is_symlink() => return Ok((file, attr)),
            Err(error) if !matches!(error.errno(), Errno::ENOTDIR | Errno::ENOENT) => return Err(error),
            _ => {}
        }
        // One of the names on the way may be a link.
        let mut links = 0;
        let mut todo: Vec<Box<[u8]>> = path.split(|b| *b == b'/').rev().map(Box::from).collect();
        let mut way: Vec<Box<[u8]>> = Vec::new();
        while let Some(name) = todo.pop() {
            way.push(name);
            let (file, attr) = self.root.walk_attr(way.join(&b'/'), GetMask::BASIC).await?;
            if !attr.qid.is_symlink() {
                if todo.is_empty() {
                    return Ok((file, attr));
                }
                continue;
            }
            links += 1;
            if links > LINKS {
                return Err(Error::Remote(Errno::ELOOP.into()));
            }
            let target = file.readlink().await?;
            // Where an absolute one leads is another tree's matter.
            if target.starts_with(b"/") {
                return Err(Error::Remote(Errno::EACCES.into()));
            }
            way.pop();
            for name in target.split(|b| *b == b'/').rev() {
                todo.push(name.into());
            }
            // Names that lead nowhere new are taken off here, so that none leads out.
            while let Some(name) = todo.last() {
                match &**name {
                    b"" | b"." => {}
                    b".." => {
                        if way.pop().is_none() {
                            return Err(Error::Remote(Errno::EACCES.into()));
                        }
                    }
                    _ => break,
                }
                todo.pop();
            }
        }
        // A link to a directory above.
        self.root.walk_attr(way.join(&b'/'), GetMask::BASIC).await
    }

    fn known(&self, path: &[u8]) -> Option<Rc<Entry>> {
        let at = *self.by_path.borrow().get(path)?;
        let entry = self.kept.borrow()[at].1.clone();
        entry.lately.set(true);
        Some(entry)
    }

    fn keep(&self, path: &[u8], entry: Rc<Entry>) {
        self.forget(path);
        if self.kept.borrow().len() >= self.most {
            self.evict();
        }
        let mut kept = self.kept.borrow_mut();
        self.by_path.borrow_mut().insert(path.into(), kept.len());
        kept.push((path.into(), entry));
    }

    /// Lets go of one that has not been asked for lately; whether there was any.
    fn evict(&self) -> bool {
        let kept = self.kept.borrow();
        if kept.is_empty() {
            return false;
        }
        let mut hand = self.hand.get() % kept.len();
        while kept[hand].1.lately.replace(false) {
            hand = (hand + 1) % kept.len();
        }
        self.hand.set(hand);
        let path = kept[hand].0.clone();
        drop(kept);
        self.forget(&path);
        true
    }

    fn forget(&self, path: &[u8]) {
        let Some(at) = self.by_path.borrow_mut().remove(path) else { return };
        let mut kept = self.kept.borrow_mut();
        kept.swap_remove(at);
        if let Some((moved, _)) = kept.get(at)
            && let Some(place) = self.by_path.borrow_mut().get_mut(moved)
        {
            *place = at;
        }
    }

    /// How many are kept.
    pub(super) fn len(&self) -> usize {
        self.kept.borrow().len()
    }
}

impl Entry {
    fn new(path: &[u8], file: File, attr: &Attr, now: Duration) -> Self {
        let tag = tag(attr);
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(attr.mtime.sec.max(0) as u64);
        let (kind, is_text) = kind(path);
        let lines = format!(
            "Content-Type: {kind}\r\nETag: {tag}\r\nLast-Modified: {}\r\nAccept-Ranges: bytes\r\n",
            httpdate::fmt_http_date(changed)
        );
        let (looked, lately) = (Cell::new(Some(now)), Cell::new(true));
        let (tag, lines) = (tag.into(), lines.into_bytes().into());
        Self { file, size: attr.size, tag, changed, lines, is_text, looked, lately }
    }

    fn is_still(&self, attr: &Attr) -> bool {
        self.size == attr.size && *self.tag == *tag(attr)
    }

    /// What is known of it is wrong: it is looked at again by whoever asks next.
    pub(super) fn doubt(&self) {
        self.looked.set(None);
    }
}

/// Which file, in which state: by its qid, and its length and time for servers whose qids do not tell.
fn tag(attr: &Attr) -> String {
    let time = (attr.mtime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.mtime.nsec.into());
    format!("\"{:x}-{:x}-{:x}-{time:x}\"", attr.qid.path, attr.qid.vers, attr.size)
}

/// What a file is by its name, and whether it is worth compressing.
fn kind(path: &[u8]) -> (String, bool) {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let Some(kind) = mime_guess::from_path(&*name).first() else {
        // Names without an end are what people read: README, Makefile, LICENSE.
        let is_plain = !name.contains('.');
        let kind = if is_plain { "text/plain; charset=utf-8" } else { "application/octet-stream" };
        return (kind.into(), is_plain);
    };
    let is_text = kind.type_() == mime_guess::mime::TEXT
        || kind.suffix().is_some_and(|s| s == "xml" || s == "json")
        || matches!(kind.subtype().as_str(), "javascript" | "json" | "xml" | "wasm");
    let says = if kind.type_() == mime_guess::mime::TEXT { "; charset=utf-8" } else { "" };
    (format!("{}{says}", kind.essence_str()), is_text)
}
