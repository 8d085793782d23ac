//! Picks a page of a directory from all its entries, in memory of one page.
//!
//! In: entries in any order, and the last entry of the page before. Out: the entries that follow it, in order. Pure.
//!
//! Always holds: consecutive pages contain each entry once that exists throughout.

use std::collections::BinaryHeap;

use super::path::{Wrong, decode, encode};

/// The sort key of an entry: directories first, then by the bytes of the names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EntryKey {
    is_file: bool,
    /// As the server reports it.
    pub name: Box<[u8]>,
}

impl EntryKey {
    /// The key of an entry.
    pub fn new(name: Box<[u8]>, is_dir: bool) -> Self {
        Self { is_file: !is_dir, name }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        !self.is_file
    }

    /// Parses its form in a query: the name, escaped, with a `/` after a directory's.
    pub fn parse(text: &[u8]) -> Result<Self, Wrong> {
        let path = decode(&[b"/", text].concat())?;
        match path.names.contains(&b'/') || path.names.is_empty() {
            true => Err(Wrong::Nowhere),
            false => Ok(Self { is_file: !path.is_dir, name: path.names }),
        }
    }

    /// Writes that form.
    pub fn text(&self) -> String {
        encode(&self.name) + if self.is_file { "" } else { "/" }
    }
}

/// See the module. `T` is the data of an entry.
pub struct EntryPicker<T> {
    after: Option<EntryKey>,
    most: usize,
    /// The first entries so far, the last of them on top.
    first: BinaryHeap<(EntryKey, T)>,
    total: u64,
    before: u64,
}

/// The picked page.
#[derive(Debug, PartialEq, Eq)]
pub struct PickedPage<T> {
    /// In order.
    pub entries: Vec<(EntryKey, T)>,
    /// Entries of the whole directory.
    pub total: u64,
    /// Entries before this page.
    pub before: u64,
    /// The last entry, if more follow.
    pub last: Option<EntryKey>,
}

impl<T: Ord> EntryPicker<T> {
    /// Picks the first `most` entries after this one.
    pub fn new(after: Option<EntryKey>, most: usize) -> Self {
        Self { after, most: most.max(1), first: BinaryHeap::new(), total: 0, before: 0 }
    }

    /// Adds an entry.
    pub fn put(&mut self, key: EntryKey, with: T) {
        self.total += 1;
        if self.after.as_ref().is_some_and(|after| key <= *after) {
            self.before += 1;
        } else if self.first.len() < self.most {
            self.first.push((key, with));
        } else if let Some(mut last) = self.first.peek_mut()
            && key < last.0
        {
            *last = (key, with);
        }
    }

    /// Returns the page, after all entries were added.
    pub fn end(self) -> PickedPage<T> {
        let Self { total, before, .. } = self;
        let entries = self.first.into_sorted_vec();
        let is_cut = total - before > entries.len() as u64;
        let last = entries.last().filter(|_| is_cut).map(|(key, _)| key.clone());
        PickedPage { entries, total, before, last }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_have_every_entry_once_directories_first() {
        let keys = |n: u32| {
            EntryKey::new(format!("{:04}", n * 7919 % 1000).into_bytes().into(), n.is_multiple_of(3))
        };
        let mut sorted: Vec<_> = (0..1000).map(keys).collect();
        sorted.sort();
        let (mut all, mut after) = (Vec::new(), None);
        loop {
            let mut picker = EntryPicker::new(after.take(), 64);
            (0..1000).map(keys).for_each(|key| picker.put(key, ()));
            let page = picker.end();
            assert_eq!((page.total, page.before), (1000, all.len() as u64));
            assert!(page.entries.len() <= 64);
            all.extend(page.entries.into_iter().map(|(key, ())| key));
            match page.last {
                Some(last) => after = Some(EntryKey::parse(last.text().as_bytes()).unwrap()),
                None => break,
            }
        }
        assert_eq!(all, sorted);
        assert!(all[0].is_dir() && !all[999].is_dir());
    }

    #[test]
    fn the_last_page_is_not_followed_by_an_empty_one() {
        for (n, most, more) in [(0, 3, false), (3, 3, false), (4, 3, true)] {
            let mut picker = EntryPicker::new(None, most);
            (0..n).for_each(|n: u8| picker.put(EntryKey::new([n].into(), false), ()));
            assert_eq!(picker.end().last.is_some(), more, "{n} of {most}");
        }
    }

    #[test]
    fn a_key_is_a_name_and_nothing_else() {
        for name in [&b"a"[..], b"a b&c", b"\xff%", b"...", b"%2F"] {
            for is_dir in [false, true] {
                let key = EntryKey::new(name.into(), is_dir);
                assert_eq!(EntryKey::parse(key.text().as_bytes()), Ok(key));
            }
        }
        for text in ["", "/", "a/b", "..", "%2F", "%00", "%", "."] {
            assert!(EntryKey::parse(text.as_bytes()).is_err(), "{text}");
        }
    }
}
