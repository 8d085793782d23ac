//! An open directory: maps the positions that the kernel counts to the server's cookies.
//!
//! In: the position to continue at, and room. Out: entries. A position is the number of entries before it, "." and ".."
//! included. The cookies are stored, 8 bytes per entry, so that a program may seek back (seekdir(3)).

use std::cell::RefCell;
use std::collections::VecDeque;

use nine_io::client::{Entry, File, Result};

/// Maximum amount of directory data requested at once, in bytes.
const DIR_READ_LEN: u32 = 256 * 1024;
/// No directory has more entries. A program may seek anywhere, and a faulty server may list without end.
const POSITION_MAX: usize = 1 << 24;
/// "." and "..".
pub(super) const DOTS: u64 = 2;

/// See the module.
pub(super) struct DirHandle {
    file: File,
    read: RefCell<DirCursor>,
}

/// The part of a directory that has been read.
#[derive(Default)]
struct DirCursor {
    /// The cookie of each position, without the two dots.
    cookies: Vec<u64>,
    /// The entries from position `at` on.
    entries: VecDeque<Entry>,
    at: usize,
    /// No entries follow.
    ended: bool,
}

impl DirHandle {
    pub(super) fn new(file: File) -> Self {
        Self { file, read: RefCell::new(DirCursor::begin()) }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Returns the entries from this position on, [`DOTS`] or later, each with the position after it. Takes entries
    /// while `room` accepts them. None at the end of the directory.
    pub(super) async fn entries(
        &self,
        place: u64,
        mut room: impl FnMut(&Entry) -> bool,
    ) -> Result<Vec<(Entry, u64)>> {
        let Some(at) = place.checked_sub(DOTS).and_then(|at| usize::try_from(at).ok()) else {
            return Ok(Vec::new());
        };
        if at == 0 {
            // A read from the beginning shows the directory's present contents.
            *self.read.borrow_mut() = DirCursor::begin();
        }
        loop {
            let (from, cookie) = match self.read.borrow().look(at) {
                PositionLookup::Here(first) => {
                    let read = self.read.borrow();
                    let rest = read.entries.iter().skip(first).take_while(|entry| room(entry));
                    return Ok(rest.zip(place + 1..).map(|(entry, next)| (entry.clone(), next)).collect());
                }
                PositionLookup::End => return Ok(Vec::new()),
                PositionLookup::Ask(from, cookie) => (from, cookie),
            };
            let block = self.file.read_dir_block(cookie, DIR_READ_LEN).await?;
            self.read.borrow_mut().take(from, block);
        }
    }
}

/// The knowledge of a position.
enum PositionLookup {
    /// The entries from this index on.
    Here(usize),
    /// The end of the directory.
    End,
    /// Unread: to be requested from this position on, whose cookie is known.
    Ask(usize, u64),
}

impl DirCursor {
    fn begin() -> Self {
        Self { cookies: vec![0], ..Self::default() }
    }

    fn look(&self, at: usize) -> PositionLookup {
        let end = self.at + self.entries.len();
        if (self.at..end).contains(&at) {
            return PositionLookup::Here(at - self.at);
        }
        if at >= end && self.ended || at > POSITION_MAX {
            return PositionLookup::End;
        }
        // The kernel may continue a listing that it has cached, at a position that this handle has not given out.
        let from = at.min(self.cookies.len() - 1);
        PositionLookup::Ask(from, self.cookies[from])
    }

    fn take(&mut self, at: usize, block: Option<(Vec<Entry>, u64)>) {
        self.cookies.truncate(at + 1);
        (self.at, self.ended) = (at, block.is_none());
        self.entries.clear();
        let Some((entries, next)) = block else { return };
        let last = entries.len();
        for (n, entry) in entries.into_iter().enumerate() {
            // If the dialect has no cookies for entries, reading continues behind the whole block.
            let behind = if entry.cookie != 0 { entry.cookie } else { next };
            self.cookies.push(if n + 1 == last { next } else { behind });
            self.entries.push_back(entry);
        }
        if last == 0 {
            // The block had only dots. Reading continues behind them, at the same position.
            self.cookies[at] = next;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(cookies: &[u64], next: u64) -> Option<(Vec<Entry>, u64)> {
        let entry = |&cookie| Entry {
            name: b"name"[..].into(),
            qid: nine_proto::Qid::default(),
            ty: 8,
            attr: None,
            cookie,
        };
        Some((cookies.iter().map(entry).collect(), next))
    }

    /// The state of a position, as text.
    fn look(read: &DirCursor, at: usize) -> String {
        match read.look(at) {
            PositionLookup::Here(n) => format!("here {n}"),
            PositionLookup::Ask(from, cookie) if from == at => format!("ask {cookie}"),
            PositionLookup::Ask(from, cookie) => format!("ask {cookie} at {from}"),
            PositionLookup::End => "end".into(),
        }
    }

    #[test]
    fn places_are_where_the_server_has_said() {
        let mut read = DirCursor::begin();
        assert_eq!(look(&read, 0), "ask 0");
        read.take(0, block(&[5, 9], 9));
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["here 0", "here 1", "ask 9", "ask 9 at 2"]);
        // Only dots.
        read.take(2, block(&[], 12));
        assert_eq!([2, 3].map(|at| look(&read, at)), ["ask 12", "ask 12 at 2"]);
        read.take(2, None);
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["ask 0", "ask 5", "end", "end"]);
        // Back, where the directory has changed meanwhile.
        read.take(1, block(&[7], 7));
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["ask 0", "here 0", "ask 7", "ask 7 at 2"]);
    }

    #[test]
    fn a_listing_that_the_kernel_has_cached_is_continued_from_the_start() {
        let mut read = DirCursor::begin();
        assert_eq!(look(&read, 3), "ask 0 at 0");
        read.take(0, block(&[5, 9], 9));
        assert_eq!(look(&read, 3), "ask 9 at 2");
        read.take(2, block(&[11, 13], 13));
        assert_eq!(look(&read, 3), "here 1");
    }

    #[test]
    fn cookies_that_say_nothing_or_lead_round_are_taken_as_they_are() {
        let mut read = DirCursor::begin();
        read.take(0, block(&[0, 0], 77));
        read.take(2, block(&[77, 1, u64::MAX], u64::MAX));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|at| look(&read, at)),
            ["ask 77", "here 0", "here 1", "here 2", format!("ask {}", u64::MAX).as_str()]
        );
        assert_eq!(look(&read, 1000), "ask 18446744073709551615 at 5");
        assert_eq!(look(&read, usize::MAX), "end");
        read.take(5, None);
        assert_eq!(look(&read, 1000), "end");
    }
}
