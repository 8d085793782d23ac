//! The recent changes and their readers: no clock, no requests.
//!
//! In: changes, opens, reads. Out: whole lines for each reader, in order. `W` stands for a waiting read.
//!
//! Always holds:
//! - The stored changes are bounded by [`BYTES_MAX`], whatever the readers do. A reader has a position and no queue of
//!   its own. If it falls further behind, it gets a `lost` line.
//! - A change that a reader may have received is never merged. Among the others, equal neighbouring changes of content
//!   are merged.
//! - Without readers nothing is stored, except as long as a former reader can still continue at its position.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};
use std::sync::Arc;

use bytes::Bytes;
use nine_proto::{Errno, Error, Result};

use super::line::{Change, Cursor, Line, Path, below, join};
use crate::limits::{ClientPrincipal, FairLimit, FairShare};

/// Bytes of stored changes, each counted as its paths and [`OVERHEAD`]: 64 Ki changes without paths.
pub const BYTES_MAX: usize = 4 << 20;
/// Bytes that a change costs beside its paths.
pub const OVERHEAD: usize = 64;
/// Longest paths of one change, in bytes. A change with longer ones is reported as lost.
pub const PATHS_MAX: usize = 16 << 10;
/// Maximum number of readers at once, shared fairly ([`FairLimit`]); one more is refused with ENFILE.
pub const READERS_MAX: usize = 256;
/// Maximum number of separately stored blind directories; if there are more, the whole tree counts as blind.
pub const BLIND_MAX: usize = 1024;
/// Maximum number of earlier changes that a new one is compared with for merging.
const ALIKE: usize = 8;

/// Answers to waiting reads.
pub(super) type ReadAnswers<W> = Vec<(W, Result<Bytes>)>;

/// See the module.
pub(super) struct ReaderLog<W> {
    epoch: Box<str>,
    /// The newest last; the number of the newest is `next - 1`.
    changes: VecDeque<Change>,
    bytes: usize,
    next: u64,
    /// No reader has received the changes from this number on.
    untold: u64,
    blind: BTreeSet<Path>,
    readers: BTreeMap<u64, LogReader<W>>,
    places: Arc<FairLimit>,
    /// The number of the next reader.
    next_reader: u64,
    /// The value of `next` when the last reader left.
    left: u64,
    on: bool,
    /// The source of changes reports them by now.
    ready: bool,
    /// Publishing has ended for good.
    over: bool,
}

struct LogReader<W> {
    /// The root of its tree.
    base: Path,
    at: ReaderPosition,
    _place: FairShare,
    /// Waiting reads with their counts, the oldest first.
    waits: VecDeque<(u32, W)>,
}

/// The position of a reader.
#[derive(Clone)]
struct ReaderPosition {
    greeting: GreetingProgress,
    /// The first change that it has not received; 0 for a position of another epoch.
    next: u64,
}

#[derive(Clone)]
enum GreetingProgress {
    /// The `here` line comes next. `None`: its number is unknown until the log is ready.
    Here(Option<u64>),
    /// The `blind` lines of the directories after this one come next.
    Blind(Option<Path>),
    Over,
}

impl<W> ReaderLog<W> {
    /// A log with this [`Cursor::epoch`].
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

    /// Whether changes must be reported.
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    pub(super) fn readers(&self) -> usize {
        self.readers.len()
    }

    /// Adds a reader, from now on or from a position. Returns its number, and whether recording begins with it.
    ///
    /// # Errors
    /// ENFILE if the principal has used up its share of [`READERS_MAX`]. EINVAL if the position is in the future.
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
            // Changes while nothing was recorded are unknown.
            self.forget();
            self.ready = false;
        }
        let place = place.or(self.ready.then_some(self.next));
        self.untold = self.next;
        self.next_reader += 1;
        let at = ReaderPosition { greeting: GreetingProgress::Here(place), next: 0 };
        self.readers.insert(self.next_reader, LogReader { base, at, _place: share, waits: VecDeque::new() });
        Ok((self.next_reader, begins))
    }

    /// Removes a reader, and returns its waiting reads.
    pub(super) fn close(&mut self, reader: u64) -> Vec<W> {
        let waits = self.readers.remove(&reader).map_or(VecDeque::new(), |reader| reader.waits);
        if self.readers.is_empty() {
            self.left = self.next;
        }
        waits.into_iter().map(|(_, wait)| wait).collect()
    }

    /// Stops recording if there are no readers. Returns whether it has stopped.
    pub(super) fn end(&mut self) -> bool {
        if self.readers.is_empty() {
            self.forget();
            self.blind.clear();
            self.on = false;
        }
        !self.on
    }

    /// Ends publishing for good.
    pub(super) fn over(&mut self) {
        self.over = true;
    }

    /// Changes are reported from now on, so readers get their `here` line.
    pub(super) fn ready(&mut self) {
        self.ready = true;
        self.untold = self.next;
        for reader in self.readers.values_mut() {
            if let GreetingProgress::Here(place) = &mut reader.at.greeting {
                place.get_or_insert(self.next);
            }
        }
    }

    /// Records a change.
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

    /// Applies a move or a removal to the paths of blind directories.
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
            // No former reader could find its position any more.
            self.end();
        }
    }

    /// Forgets all changes until now. One more number is used, for unknown changes.
    fn forget(&mut self) {
        self.changes.clear();
        self.bytes = 0;
        self.next += 1;
    }

    /// The number of the oldest stored change.
    fn first(&self) -> u64 {
        self.next - self.changes.len() as u64
    }

    /// Returns the next lines of a reader, as many as fit into `count` bytes; `None` if there are none yet.
    pub(super) fn read(&mut self, reader: u64, count: u32) -> Option<Result<Bytes>> {
        if self.over {
            return Some(Err(Errno::ESTALE.into()));
        }
        let Some(LogReader { base, at, .. }) = self.readers.get(&reader).filter(|_| self.ready) else {
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
            // Changes outside of the reader's tree need not be checked again.
            at.next = self.next.max(at.next);
        }
        self.untold = self.untold.max(at.next);
        self.readers.get_mut(&reader).expect("just seen").at = at;
        (!text.is_empty()).then(|| Ok(text.into()))
    }

    /// Returns the next line of a reader, and the reader's position after it.
    fn line(&self, base: &[u8], at: &ReaderPosition) -> Option<(Line, ReaderPosition)> {
        let mut at = at.clone();
        if let GreetingProgress::Here(place) = at.greeting {
            let next = place?;
            let here = Line::Here(Cursor { epoch: self.epoch.clone(), next });
            return Some((here, ReaderPosition { greeting: GreetingProgress::Blind(None), next }));
        }
        while let GreetingProgress::Blind(told) = &at.greeting {
            let from = told.as_ref().map_or(Unbounded, Excluded);
            let Some(path) = self.blind.range::<Path, _>((from, Unbounded)).next() else {
                at.greeting = GreetingProgress::Over;
                break;
            };
            at.greeting = GreetingProgress::Blind(Some(path.clone()));
            if let Some(change) = Change::Blind(path.clone()).seen_from(base) {
                return Some((Line::Change(at.next, change.into_owned()), at));
            }
        }
        let first = self.first();
        if at.next < first {
            let lost = Line::Change(first, Change::Lost(at.next));
            return Some((lost, ReaderPosition { next: first, ..at }));
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

    /// Queues a read for which there are no lines yet.
    pub(super) fn wait(&mut self, reader: u64, count: u32, wait: W) {
        if let Some(reader) = self.readers.get_mut(&reader) {
            reader.waits.push_back((count, wait));
        }
    }

    /// Removes a waiting read that is cancelled.
    pub(super) fn take(&mut self, reader: u64, is: impl Fn(&W) -> bool) -> Option<W> {
        let waits = &mut self.readers.get_mut(&reader)?.waits;
        let at = waits.iter().position(|(_, wait)| is(wait))?;
        waits.remove(at).map(|(_, wait)| wait)
    }

    /// Takes the waiting reads for which there is an answer now.
    pub(super) fn answers(&mut self) -> ReadAnswers<W> {
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
