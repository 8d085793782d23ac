//! What has changed, as far as it is remembered, and who reads it: no clock, no request.
//!
//! In: changes, opens, reads. Out: lines for each reader, whole ones, in order. `W` is what stands for a read that
//! waits.
//!
//! Always holds:
//! - What is remembered has a limit, [`BYTES_MAX`], whoever reads; a reader has a number and no lines of its own. One
//!   that is behind by more is told from where on.
//! - A change that somebody may have been told is not changed any more; of the others one says as much as many.
//! - While nobody reads nothing is remembered, but what a reader may come back for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use bytes::Bytes;
use nine_proto::{Errno, Error, Result};

use super::line::{Change, Cursor, Line, Path, below, join};
use crate::limits::{ClientPrincipal, FairLimit, FairShare};

/// Bytes of changes that are remembered, each as its paths and [`OVERHEAD`]: 64 Ki changes of no paths at all.
pub const BYTES_MAX: usize = 4 << 20;
/// What a change costs beside its paths, bytes.
pub const OVERHEAD: usize = 64;
/// Bytes of the paths of one change; what has longer ones is forgotten at once.
pub const PATHS_MAX: usize = 16 << 10;
/// Readers at once, shared fairly ([`FairLimit`]); one more is refused with ENFILE.
pub const READERS_MAX: usize = 256;
/// Directories of which it is known one by one that nothing is heard of them; if there are more, it is all of them.
pub const BLIND_MAX: usize = 1024;
/// Changes that are looked at for one that says the same.
const ALIKE: usize = 8;

/// An answer to a read that has waited.
pub(super) type Answers<W> = Vec<(W, Result<Bytes>)>;

/// See the module.
pub(super) struct Log<W> {
    epoch: Box<str>,
    /// The newest last; the number of the newest is `next - 1`.
    changes: VecDeque<Change>,
    bytes: usize,
    next: u64,
    /// The first number that nobody has been told.
    untold: u64,
    blind: BTreeSet<Path>,
    readers: BTreeMap<u64, Reader<W>>,
    places: Arc<FairLimit>,
    /// The number of the reader that comes next.
    next_reader: u64,
    /// What `next` was when the last reader left.
    left: u64,
    on: bool,
    /// Who knows of changes hears of them by now.
    ready: bool,
    /// There will be no more.
    over: bool,
}

struct Reader<W> {
    /// Its root.
    base: Path,
    at: Stand,
    _place: FairShare,
    /// Reads with their counts, the oldest first.
    waits: VecDeque<(u32, W)>,
}

/// How far a reader is.
#[derive(Clone)]
struct Stand {
    greeting: Greeting,
    /// The first change that it has not been told; of another life: 0.
    next: u64,
}

#[derive(Clone)]
enum Greeting {
    /// Nothing was said: not even where it begins, until changes are told.
    Here(Option<u64>),
    /// Of those that are blind the ones behind this.
    Blind(Option<Path>),
    Over,
}

impl<W> Log<W> {
    /// A log of a life that is called so ([`Cursor::epoch`]).
    pub(super) fn new(epoch: Box<str>) -> Self {
        Self {
            epoch,
            changes: VecDeque::new(),
            bytes: 0,
            next: 1,
            untold: 1,
            blind: BTreeSet::new(),
            readers: BTreeMap::new(),
            places: FairLimit::new(READERS_MAX),
            next_reader: 0,
            left: 0,
            on: false,
            ready: false,
            over: false,
        }
    }

    /// Whether changes shall be told.
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Somebody reads from now on, or from a place where he was. Out: his number, and whether he is the first.
    ///
    /// # Errors
    /// ENFILE: the principal has its share of [`READERS_MAX`] already. EINVAL: there has been no such place.
    pub(super) fn open(
        &mut self,
        base: Path,
        from: Option<&Cursor>,
        principal: &ClientPrincipal,
    ) -> Result<(u64, bool)> {
        let refused = || Error::new(Errno::ENFILE, "too many read the changes: this client has its share");
        let share = self.places.take(principal, 1).ok_or_else(refused)?;
        let place = match from {
            Some(cursor) if cursor.epoch != self.epoch => Some(0),
            Some(cursor) if cursor.next > self.next => {
                let text = format!("there is no change {} yet: the next one is {}", cursor.next, self.next);
                return Err(Error::new(Errno::EINVAL, text));
            }
            Some(cursor) => Some(cursor.next),
            None => None,
        };
        let begins = !std::mem::replace(&mut self.on, true);
        if begins {
            // What happened while nobody looked is forgotten.
            self.forget();
            self.ready = false;
        }
        let place = place.or(self.ready.then_some(self.next));
        self.untold = self.next;
        self.next_reader += 1;
        let at = Stand { greeting: Greeting::Here(place), next: 0 };
        self.readers.insert(self.next_reader, Reader { base, at, _place: share, waits: VecDeque::new() });
        Ok((self.next_reader, begins))
    }

    /// A reader has gone. What he still waited for comes back.
    pub(super) fn close(&mut self, reader: u64) -> Vec<W> {
        let waits = self.readers.remove(&reader).map_or(VecDeque::new(), |reader| reader.waits);
        if self.readers.is_empty() {
            self.left = self.next;
        }
        waits.into_iter().map(|(_, wait)| wait).collect()
    }

    /// Nobody tells changes from now on, if nobody reads. Whether it is so.
    pub(super) fn end(&mut self) -> bool {
        if self.readers.is_empty() {
            self.forget();
            self.blind.clear();
            self.on = false;
        }
        !self.on
    }

    /// There will be no more.
    pub(super) fn over(&mut self) {
        self.over = true;
    }

    /// From now on changes are told: readers are greeted.
    pub(super) fn ready(&mut self) {
        self.ready = true;
        self.untold = self.next;
        for reader in self.readers.values_mut() {
            if let Greeting::Here(place) = &mut reader.at.greeting {
                place.get_or_insert(self.next);
            }
        }
    }

    /// Something has changed.
    pub(super) fn push(&mut self, change: Change) {
        if !self.on {
            return;
        }
        let is_new = match &change {
            Change::Lost(_) => return self.forget(),
            change if change.len() > PATHS_MAX => return self.forget(),
            Change::Blind(_) if self.blind.len() >= BLIND_MAX => {
                self.blind = [b"/"[..].into()].into();
                return self.append(Change::Blind(b"/"[..].into()));
            }
            Change::Blind(path) => self.blind.insert(path.clone()),
            Change::Sees(path) => self.blind.remove(path),
            change => {
                self.follow(change);
                true
            }
        };
        if is_new {
            self.append(change);
        }
    }

    /// What is blind has another name, or none.
    fn follow(&mut self, change: &Change) {
        let (Change::Remove(old) | Change::Move(old, _)) = change else { return };
        let concerned: Vec<Path> =
            self.blind.iter().filter(|path| below(path, old).is_some()).cloned().collect();
        for path in concerned {
            self.blind.remove(&path);
            if let (Change::Move(_, new), Some(rest)) = (change, below(&path, old)) {
                self.blind.insert(join(new, rest));
            }
        }
    }

    fn append(&mut self, change: Change) {
        let untold = usize::try_from(self.next - self.untold).unwrap_or(usize::MAX);
        let alike = self.changes.iter().rev().take(untold.min(ALIKE)).take_while(|old| old.is_of_content());
        if change.is_of_content() && { alike }.any(|old| *old == change) {
            return;
        }
        self.bytes += OVERHEAD + change.len();
        self.changes.push_back(change);
        self.next += 1;
        while self.bytes > BYTES_MAX {
            let oldest = self.changes.pop_front().expect("what has bytes has changes");
            self.bytes -= OVERHEAD + oldest.len();
        }
        if self.readers.is_empty() && self.first() > self.left {
            // Nobody who comes back would find where he was.
            self.end();
        }
    }

    /// All changes until now are forgotten, and one more, which nobody knows.
    fn forget(&mut self) {
        self.changes.clear();
        self.bytes = 0;
        self.next += 1;
    }

    /// The number of the oldest that is remembered.
    fn first(&self) -> u64 {
        self.next - self.changes.len() as u64
    }

    /// The next lines of a reader, so many as fit into `count` bytes; `None`: there is none yet.
    pub(super) fn read(&mut self, reader: u64, count: u32) -> Option<Result<Bytes>> {
        if self.over {
            return Some(Err(Errno::ESTALE.into()));
        }
        let Some(Reader { base, at, .. }) = self.readers.get(&reader).filter(|_| self.ready) else {
            return if self.readers.contains_key(&reader) { None } else { Some(Err(Errno::EIO.into())) };
        };
        let (mut at, count, mut text) = (at.clone(), count as usize, Vec::new());
        while let Some((line, then)) = self.line(base, &at) {
            let before = text.len();
            line.encode(&mut text);
            if text.len() > count {
                let size = text.len() - before;
                text.truncate(before);
                if text.is_empty() {
                    let text = format!("the next line has {size} bytes: read more at once");
                    return Some(Err(Error::new(Errno::EINVAL, text)));
                }
                break;
            }
            at = then;
        }
        if text.is_empty() {
            // What is no concern of his is not looked at again.
            at.next = self.next.max(at.next);
        }
        self.untold = self.untold.max(at.next);
        self.readers.get_mut(&reader).expect("just seen").at = at;
        (!text.is_empty()).then(|| Ok(text.into()))
    }

    /// The next line of a reader, and how far he is then.
    fn line(&self, base: &[u8], at: &Stand) -> Option<(Line, Stand)> {
        let mut at = at.clone();
        if let Greeting::Here(place) = at.greeting {
            let next = place?;
            let here = Line::Here(Cursor { epoch: self.epoch.clone(), next });
            return Some((here, Stand { greeting: Greeting::Blind(None), next }));
        }
        while let Greeting::Blind(told) = &at.greeting {
            let from = told.as_ref().map_or(Unbounded, Excluded);
            let Some(path) = self.blind.range::<Path, _>((from, Unbounded)).next() else {
                at.greeting = Greeting::Over;
                break;
            };
            at.greeting = Greeting::Blind(Some(path.clone()));
            if let Some(change) = Change::Blind(path.clone()).seen_from(base) {
                return Some((Line::Change(at.next, change.into_owned()), at));
            }
        }
        let first = self.first();
        if at.next < first {
            let lost = Line::Change(first, Change::Lost(at.next));
            return Some((lost, Stand { next: first, ..at }));
        }
        while at.next < self.next {
            let change = &self.changes[usize::try_from(at.next - first).expect("as many as are in memory")];
            let number = at.next;
            at.next += 1;
            if let Some(change) = change.seen_from(base) {
                return Some((Line::Change(number, change.into_owned()), at));
            }
        }
        None
    }

    /// A read for which there is nothing yet.
    pub(super) fn wait(&mut self, reader: u64, count: u32, wait: W) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.waits.push_back((count, wait));
        }
    }

    /// A read that waits and is not wanted any more.
    pub(super) fn take(&mut self, reader: u64, is: impl Fn(&W) -> bool) -> Option<W> {
        let waits = &mut self.readers.get_mut(&reader)?.waits;
        let at = waits.iter().position(|(_, wait)| is(wait))?;
        waits.remove(at).map(|(_, wait)| wait)
    }

    /// The reads that have waited and for which there is something now.
    pub(super) fn answers(&mut self) -> Answers<W> {
        let waiting = self.readers.iter().filter(|(_, reader)| !reader.waits.is_empty());
        let waiting: Vec<u64> = waiting.map(|(&number, _)| number).collect();
        let mut answers = Vec::new();
        for number in waiting {
            while let Some(&(count, _)) = self.readers[&number].waits.front()
                && let Some(result) = self.read(number, count)
            {
                let wait = self.readers.get_mut(&number).and_then(|reader| reader.waits.pop_front());
                answers.extend(wait.map(|(_, wait)| (wait, result)));
            }
        }
        answers
    }
}

#[cfg(test)]
#[path = "log/tests.rs"]
mod tests;
