//! The latest changes of names and files. A reply to a request from before a change may be older than the change.
//!
//! In: changes, made by this mount or published by the server. Out: whether a subject changed after a request was sent.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Changes in the log. For an older request, every subject counts as changed.
const LOG_CAPACITY: usize = 256;

/// The subject of a change.
pub(super) enum ChangeSubject {
    /// The name in this directory may lead to another file.
    Name(u64, Box<[u8]>),
    /// The same, and the file that had the name has lost it.
    Moved(u64, Box<[u8]>),
    /// A file's attributes.
    File(u64),
    All,
}

/// See the module.
#[derive(Default)]
pub(super) struct ChangeLog {
    /// Changes so far.
    count: Cell<u64>,
    last: RefCell<VecDeque<ChangeSubject>>,
}

impl ChangeLog {
    /// The number of changes so far. Store it with a request.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(super) fn add(&self, subject: ChangeSubject) {
        let mut last = self.last.borrow_mut();
        if last.len() == LOG_CAPACITY {
            last.pop_front();
        }
        last.push_back(subject);
        self.count.set(self.count.get() + 1);
    }

    /// Whether the name may lead to another file than at count `then`.
    pub(super) fn has_name_changed(&self, then: u64, dir: u64, name: &[u8]) -> bool {
        self.has_changed(then, |subject| match subject {
            ChangeSubject::Name(d, n) | ChangeSubject::Moved(d, n) => *d == dir && **n == *name,
            ChangeSubject::File(_) => false,
            ChangeSubject::All => true,
        })
    }

    /// Whether the file that had the name at count `then` has lost it.
    pub(super) fn has_moved(&self, then: u64, dir: u64, name: &[u8]) -> bool {
        self.has_changed(
            then,
            |subject| matches!(subject, ChangeSubject::Moved(d, n) if *d == dir && **n == *name),
        )
    }

    /// Whether a file's attributes changed after count `then`. A change of a name changes its directory.
    pub(super) fn has_file_changed(&self, then: u64, node: u64) -> bool {
        self.has_changed(then, |subject| match subject {
            ChangeSubject::File(of) | ChangeSubject::Name(of, _) | ChangeSubject::Moved(of, _) => *of == node,
            ChangeSubject::All => true,
        })
    }

    fn has_changed(&self, then: u64, is_it: impl Fn(&ChangeSubject) -> bool) -> bool {
        let since = self.count.get() - then;
        let last = self.last.borrow();
        since > last.len() as u64 || last.iter().rev().take(since as usize).any(is_it)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_before_a_change_of_its_subject_has_changed() {
        let recent = ChangeLog::default();
        let name = || Box::from(&b"a"[..]);
        recent.add(ChangeSubject::Moved(1, name()));
        let then = recent.count();
        assert!(!recent.has_name_changed(then, 1, b"a") && !recent.has_file_changed(then, 1));
        recent.add(ChangeSubject::Name(1, name()));
        assert!(recent.has_name_changed(then, 1, b"a") && recent.has_file_changed(then, 1));
        assert!(!recent.has_name_changed(then, 1, b"b") && !recent.has_name_changed(then, 2, b"a"));
        assert!(!recent.has_moved(then, 1, b"a"), "that was before");
        recent.add(ChangeSubject::Moved(2, name()));
        assert!(recent.has_moved(then, 2, b"a") && !recent.has_moved(then, 1, b"a"));
        recent.add(ChangeSubject::File(7));
        assert!(recent.has_file_changed(then, 7) && !recent.has_file_changed(recent.count(), 7));
        // More changes than the log holds.
        for _ in 0..LOG_CAPACITY {
            recent.add(ChangeSubject::File(8));
        }
        assert!(recent.has_moved(then, 3, b"c") && recent.has_file_changed(then, 9));
        recent.add(ChangeSubject::All);
        let last = recent.count() - 1;
        assert!(recent.has_file_changed(last, 9) && recent.has_name_changed(last, 9, b"x"));
    }
}
