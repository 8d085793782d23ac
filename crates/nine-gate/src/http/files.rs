//! Requested files that are kept open, like nginx's open file cache.
//!
//! In: the root of a tree, and paths. Out: open files with the headers of their answers. A found file is not checked
//! again for [`FRESH`]. Then it is looked up again by its path, which detects that another file has replaced it.
//!
//! Always holds: all `OpenFiles` that share a count keep at most [`OpenFiles::new`]'s `most` files. A file not
//! requested recently is evicted first.

use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use nine_io::client::{Error, File, Result};
use nine_proto::mode::{S_IFMT, S_IFREG};
use nine_proto::{Attr, Errno, GetMask, OpenFlags, Qid};

use super::civil::CivilTime;
use super::squeeze::ContentCoding;

/// How long a found file is used without a new check.
pub(super) const FRESH: Duration = Duration::from_secs(1);
/// How long a file stays open after its last request.
const FILE_KEEP_TIMEOUT: Duration = Duration::from_secs(20);
/// Maximum number of symbolic links followed for one path.
const LINKS: usize = 16;

/// See the module.
pub(super) struct OpenFiles {
    root: Arc<File>,
    /// Whether a path is hidden from all clients.
    hidden: HiddenRule,
    most: usize,
    /// The number of files kept by all that share this cell.
    all: Rc<Cell<usize>>,
    by_path: RefCell<HashMap<Box<[u8]>, usize>>,
    /// A ring for the clock algorithm; `hand` is its hand.
    kept: RefCell<Vec<CachedFile>>,
    hand: Cell<usize>,
}

/// Whether a path is hidden.
type HiddenRule = Box<dyn Fn(&[u8]) -> bool>;
/// A path and its file.
type CachedFile = (Box<[u8]>, Rc<CachedEntry>);

/// An open file.
pub(super) struct CachedEntry {
    pub(super) file: File,
    pub(super) size: u64,
    mode: u32,
    /// Entity tag, with the quotes.
    tag: Box<str>,
    /// Last change, in seconds since 1970.
    pub(super) changed: i64,
    /// The Last-Modified header; empty if HTTP cannot express the time.
    modified: Box<str>,
    /// Media type, by the name.
    kind: Box<str>,
    /// Headers of every answer: type and tag.
    lines: Box<[u8]>,
    /// Worth compressing.
    pub(super) is_text: bool,
    /// When its attributes were last checked. `None`: a read of it has failed.
    looked: Cell<Option<Duration>>,
    lately: Cell<bool>,
    asked: Cell<Duration>,
    /// The second since 1970 of the last request for the whole file as it is, without conditions or ranges.
    sent: Cell<u64>,
    /// The answer to such a request, head and content; empty until the second one within a second.
    answer: RefCell<Bytes>,
}

/// The result of a lookup.
pub(super) enum FileLookup {
    File(Rc<CachedEntry>),
    /// A directory, not open.
    Dir(File),
    /// A file that is not served: an event-like file, a device.
    Other,
}

impl OpenFiles {
    /// Starts empty, for the tree below `root` without hidden paths. All with the same `all` keep at most `most` files.
    pub(super) fn new(
        root: Arc<File>,
        most: usize,
        all: Rc<Cell<usize>>,
        hidden: impl Fn(&[u8]) -> bool + 'static,
    ) -> Self {
        Self {
            root,
            hidden: Box::new(hidden),
            most: most.max(1),
            all,
            by_path: RefCell::default(),
            kept: RefCell::default(),
            hand: Cell::new(0),
        }
    }

    /// The root of the tree.
    pub(super) fn root(&self) -> &File {
        &self.root
    }

    /// The file or directory at `path`, a list of names separated by '/'. `anew`: asks the server even within
    /// [`FRESH`].
    pub(super) async fn find(&self, path: &[u8], now: Duration, anew: bool) -> Result<FileLookup> {
        let known = self.known(path);
        if let Some(entry) = &known {
            entry.asked.set(now);
            if !anew && entry.looked.get().is_some_and(|looked| now < looked + FRESH) {
                return Ok(FileLookup::File(entry.clone()));
            }
            // Other requests use the entry while this one checks it.
            entry.looked.set(Some(now));
        }
        let found = self.look(path, known.as_ref(), now).await;
        if !matches!(&found, Ok(FileLookup::File(_))) {
            self.forget(path);
        }
        found
    }

    async fn look(&self, path: &[u8], known: Option<&Rc<CachedEntry>>, now: Duration) -> Result<FileLookup> {
        let (file, attr) = self.resolve(path).await?;
        if attr.qid.is_dir() {
            return Ok(FileLookup::Dir(file));
        }
        if attr.qid.is_event() || attr.mode & S_IFMT != S_IFREG {
            return Ok(FileLookup::Other);
        }
        if let Some(entry) = known.filter(|entry| entry.is_still(&attr)) {
            return Ok(FileLookup::File(entry.clone()));
        }
        let file = match file.open_here(OpenFlags::READ).await {
            // An open file of ours may use up the limit.
            Err(error) if matches!(error.errno(), Errno::EMFILE | Errno::ENFILE) && self.evict() => {
                let (file, _) = self.resolve(path).await?;
                file.open_here(OpenFlags::READ).await?
            }
            opened => opened?,
        };
        let entry = Rc::new(CachedEntry::new(path, file, &attr, now));
        // Generated files are generated at each open, and a file that only one client can open must not stay open.
        if attr.size > 0 && attr.qid.ty & Qid::EXCL == 0 {
            self.keep(path, entry.clone());
        }
        Ok(FileLookup::File(entry))
    }

    /// Walks to a path. Follows links, as long as they stay within the tree.
    async fn resolve(&self, path: &[u8]) -> Result<(File, Attr)> {
        match self.root.walk_attr(path, GetMask::BASIC).await {
            Ok((file, attr)) if !attr.qid.is_symlink() => return Ok((file, attr)),
            Err(error) if !matches!(error.errno(), Errno::ENOTDIR | Errno::ENOENT) => return Err(error),
            _ => {}
        }
        // One of the names may be a link.
        let mut links = 0;
        let mut todo: Vec<Box<[u8]>> = path.split(|b| *b == b'/').rev().map(Box::from).collect();
        let mut way: Vec<Box<[u8]>> = Vec::new();
        while let Some(name) = todo.pop() {
            // ".." is resolved here, so that no link leads out of the tree or to a hidden path.
            match &*name {
                b"" | b"." => continue,
                b".." if way.pop().is_some() => continue,
                b".." => return Err(Error::Remote(Errno::EACCES.into())),
                _ => way.push(name),
            }
            let (file, attr) = self.step(&way).await?;
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
            // An absolute link leads out of the tree.
            if target.starts_with(b"/") {
                return Err(Error::Remote(Errno::EACCES.into()));
            }
            way.pop();
            todo.extend(target.split(|b| *b == b'/').rev().map(Box::from));
        }
        // A link to a directory above.
        self.step(&way).await
    }

    /// One step of a walk through links, which must not lead to a hidden path.
    async fn step(&self, way: &[Box<[u8]>]) -> Result<(File, Attr)> {
        let path = way.join(&b'/');
        if (self.hidden)(&path) {
            return Err(Error::Remote(Errno::ENOENT.into()));
        }
        self.root.walk_attr(path, GetMask::BASIC).await
    }

    fn known(&self, path: &[u8]) -> Option<Rc<CachedEntry>> {
        let at = *self.by_path.borrow().get(path)?;
        let entry = self.kept.borrow()[at].1.clone();
        entry.lately.set(true);
        Some(entry)
    }

    fn keep(&self, path: &[u8], entry: Rc<CachedEntry>) {
        self.forget(path);
        if self.all.get() >= self.most && !self.evict() {
            // Other trees hold all of the files.
            return;
        }
        self.all.set(self.all.get() + 1);
        let mut kept = self.kept.borrow_mut();
        self.by_path.borrow_mut().insert(path.into(), kept.len());
        kept.push((path.into(), entry));
    }

    /// Closes one of the files kept here, preferably one without a recent request. Returns `false` if none is kept.
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
        self.all.set(self.all.get() - 1);
        kept.swap_remove(at);
        if let Some((moved, _)) = kept.get(at)
            && let Some(place) = self.by_path.borrow_mut().get_mut(moved)
        {
            *place = at;
        }
    }

    /// Closes files without a recent request.
    pub(super) fn sweep(&self, now: Duration) {
        let kept = self.kept.borrow();
        kept.iter().filter(|(_, entry)| entry.asked.get() + FRESH < now).for_each(|(_, entry)| {
            entry.answer.take();
        });
        let old: Vec<_> = kept
            .iter()
            .filter(|(_, entry)| entry.asked.get() + FILE_KEEP_TIMEOUT < now)
            .map(|(path, _)| path.clone())
            .collect();
        drop(kept);
        old.iter().for_each(|path| self.forget(path));
    }

    /// The number of files kept here.
    pub(super) fn len(&self) -> usize {
        self.kept.borrow().len()
    }
}

impl Drop for OpenFiles {
    fn drop(&mut self) {
        self.all.set(self.all.get() - self.len());
    }
}

impl CachedEntry {
    fn new(path: &[u8], file: File, attr: &Attr, now: Duration) -> Self {
        let tag = tag(attr);
        let changed = attr.mtime.sec;
        let modified = modified(changed);
        let (kind, is_text) = kind(path);
        let vary = if is_text { "Vary: Accept-Encoding\r\n" } else { "" };
        let lines = format!(
            "Content-Type: {kind}\r\nETag: {tag}\r\nAccept-Ranges: bytes\r\n\
             X-Content-Type-Options: nosniff\r\n{vary}"
        );
        let (looked, lately, asked) = (Cell::new(Some(now)), Cell::new(true), Cell::new(now));
        let (sent, answer) = (Cell::new(0), RefCell::default());
        let (tag, kind, lines) = (tag.into(), kind.into(), lines.into_bytes().into());
        let modified = modified.into();
        Self {
            file,
            size: attr.size,
            mode: attr.mode,
            kind,
            tag,
            changed,
            modified,
            lines,
            is_text,
            looked,
            lately,
            asked,
            sent,
            answer,
        }
    }

    /// Compares the mode too: a lost read permission must not be bypassed by an open file.
    fn is_still(&self, attr: &Attr) -> bool {
        self.size == attr.size && self.mode == attr.mode && *self.tag == *tag(attr)
    }

    /// Media type, by the name.
    pub(super) fn kind(&self) -> &str {
        &self.kind
    }

    /// The Last-Modified header. A time in the future is replaced by the time of the answer (RFC 9110, 8.8.2.1).
    pub(super) fn modified(&self, wall: Duration) -> Cow<'_, str> {
        match i64::try_from(wall.as_secs()) {
            Ok(now) if now < self.changed => Cow::Owned(modified(now)),
            _ => Cow::Borrowed(&self.modified),
        }
    }

    /// Headers of every answer: type and tag. A compressed answer is another sequence of bytes: it has a tag of its own
    /// and no ranges.
    pub(super) fn lines(&self, coding: Option<ContentCoding>) -> Cow<'_, [u8]> {
        if coding.is_none() {
            return Cow::Borrowed(&self.lines);
        }
        let lines = String::from_utf8_lossy(&self.lines);
        let mut coded = String::with_capacity(lines.len() + 8);
        for line in lines.lines().filter(|line| !line.starts_with("Accept-Ranges")) {
            match line.starts_with("ETag") {
                true => coded.push_str(&format!("ETag: {}", self.tag(coding))),
                false => coded.push_str(line),
            }
            coded.push_str("\r\n");
        }
        Cow::Owned(coded.into_bytes())
    }

    /// Entity tag, with the quotes.
    pub(super) fn tag(&self, coding: Option<ContentCoding>) -> Cow<'_, str> {
        match coding {
            None => Cow::Borrowed(&self.tag),
            Some(coding) => Cow::Owned(format!("{}-{}\"", self.tag.trim_end_matches('"'), coding.name())),
        }
    }

    /// The cached answer for plain requests within this second.
    pub(super) fn answer(&self, second: u64) -> Option<Bytes> {
        let answer = self.answer.borrow();
        (self.sent.get() == second && !answer.is_empty()).then(|| answer.clone())
    }

    /// Records a plain request. Returns whether there was one within this second, so that caching the answer is
    /// worthwhile.
    pub(super) fn again(&self, second: u64) -> bool {
        let again = self.sent.replace(second) == second;
        if !again {
            self.answer.take();
        }
        again
    }

    /// Caches the answer for the rest of the second.
    pub(super) fn keep(&self, answer: Bytes) {
        *self.answer.borrow_mut() = answer;
    }

    /// Marks the entry as wrong: the next request checks it again.
    pub(super) fn doubt(&self) {
        self.looked.set(None);
    }
}

/// The Last-Modified header; empty if HTTP cannot express the time.
fn modified(seconds: i64) -> String {
    CivilTime::of(seconds).map_or(String::new(), |time| format!("Last-Modified: {}\r\n", time.http()))
}

/// Makes an entity tag from the qid, and from length and time for servers without versions.
fn tag(attr: &Attr) -> String {
    let time = (attr.mtime.sec as u64).wrapping_mul(1_000_000_000).wrapping_add(attr.mtime.nsec.into());
    format!("\"{:x}-{:x}-{:x}-{time:x}\"", attr.qid.path, attr.qid.vers, attr.size)
}

/// The media type by the name, and whether compression is worthwhile.
fn kind(path: &[u8]) -> (String, bool) {
    let name = path.rsplit(|b| *b == b'/').next().unwrap_or_default();
    let name = String::from_utf8_lossy(name);
    let Some(kind) = mime_guess::from_path(&*name).first() else {
        // Files without a suffix are usually text: README, Makefile, LICENSE.
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
