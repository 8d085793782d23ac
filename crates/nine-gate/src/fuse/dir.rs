//! An open directory: places that the kernel counts, cookies that the server gives.
//!
//! In: the place at which to go on, and room. Out: entries. A place is how many entries come before it, "." and ".."
//! among them; the cookies behind them are kept, so that a program may go back (seekdir(3)), 8 bytes an entry.

use std::cell::RefCell;
use std::collections::VecDeque;

use nine_io::client::{Entry, File, Result};

/// The most directory data asked for at once, bytes.
const BLOCK: u32 = 256 * 1024;
/// "." and "..".
pub(super) const DOTS: u64 = 2;

/// See the module.
pub(super) struct Dir {
    file: File,
    read: RefCell<Read>,
}

/// What has been read of it.
#[derive(Default)]
struct Read {
    /// The cookie of each place, those of the dots left out.
    cookies: Vec<u64>,
    /// What comes at place `at` and behind it.
    entries: VecDeque<Entry>,
    at: usize,
    /// Nothing comes behind those.
    ended: bool,
}

impl Dir {
    pub(super) fn new(file: File) -> Self {
        Self { file, read: RefCell::new(Read::begin()) }
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// The next entries from this place on, [`DOTS`] or behind, with the place behind each; none: the end. As many as
    /// `room` says are wanted.
    pub(super) async fn entries(
        &self,
        place: u64,
        mut room: impl FnMut(&Entry) -> bool,
    ) -> Result<Vec<(Entry, u64)>> {
        let Some(at) = place.checked_sub(DOTS).and_then(|at| usize::try_from(at).ok()) else {
            return Ok(Vec::new());
        };
        if at == 0 {
            // From the beginning it is what the directory has now.
            *self.read.borrow_mut() = Read::begin();
        }
        loop {
            let cookie = match self.read.borrow().look(at) {
                Look::Here(first) => {
                    let read = self.read.borrow();
                    let rest = read.entries.iter().skip(first).take_while(|entry| room(entry));
                    return Ok(rest.zip(place + 1..).map(|(entry, next)| (entry.clone(), next)).collect());
                }
                Look::End => return Ok(Vec::new()),
                Look::Ask(cookie) => cookie,
            };
            let block = self.file.read_dir_block(cookie, BLOCK).await?;
            self.read.borrow_mut().take(at, block);
        }
    }
}

/// What is known of a place.
enum Look {
    /// Entries from this one on.
    Here(usize),
    /// Nothing is there.
    End,
    /// To be asked for.
    Ask(u64),
}

impl Read {
    fn begin() -> Self {
        Self { cookies: vec![0], ..Self::default() }
    }

    fn look(&self, at: usize) -> Look {
        let end = self.at + self.entries.len();
        if (self.at..end).contains(&at) {
            return Look::Here(at - self.at);
        }
        if at == end && self.ended {
            return Look::End;
        }
        // A place that nobody was told of is behind the end.
        self.cookies.get(at).map_or(Look::End, |&cookie| Look::Ask(cookie))
    }

    fn take(&mut self, at: usize, block: Option<(Vec<Entry>, u64)>) {
        self.cookies.truncate(at + 1);
        (self.at, self.ended) = (at, block.is_none());
        self.entries.clear();
        let Some((entries, next)) = block else { return };
        let last = entries.len();
        for (n, entry) in entries.into_iter().enumerate() {
            // Where the dialect has no cookies for entries, one goes on behind the whole block.
            let behind = if entry.cookie != 0 { entry.cookie } else { next };
            self.cookies.push(if n + 1 == last { next } else { behind });
            self.entries.push_back(entry);
        }
        if last == 0 {
            // Nothing but dots: it goes on behind them, at the same place.
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

    /// Where an entry is, what is to be asked for, or the end.
    fn look(read: &Read, at: usize) -> String {
        match read.look(at) {
            Look::Here(n) => format!("here {n}"),
            Look::Ask(cookie) => format!("ask {cookie}"),
            Look::End => "end".into(),
        }
    }

    #[test]
    fn places_are_where_the_server_has_said() {
        let mut read = Read::begin();
        assert_eq!(look(&read, 0), "ask 0");
        read.take(0, block(&[5, 9], 9));
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["here 0", "here 1", "ask 9", "end"]);
        // Nothing but dots.
        read.take(2, block(&[], 12));
        assert_eq!([2, 3].map(|at| look(&read, at)), ["ask 12", "end"]);
        read.take(2, None);
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["ask 0", "ask 5", "end", "end"]);
        // Back, where there is something else by now.
        read.take(1, block(&[7], 7));
        assert_eq!([0, 1, 2, 3].map(|at| look(&read, at)), ["ask 0", "here 0", "ask 7", "end"]);
    }

    #[test]
    fn cookies_that_say_nothing_or_lead_round_are_taken_as_they_are() {
        let mut read = Read::begin();
        read.take(0, block(&[0, 0], 77));
        read.take(2, block(&[77, 1, u64::MAX], u64::MAX));
        assert_eq!(
            [1, 2, 3, 4, 5].map(|at| look(&read, at)),
            ["ask 77", "here 0", "here 1", "here 2", format!("ask {}", u64::MAX).as_str()]
        );
        assert_eq!(look(&read, usize::MAX), "end");
    }
}
