//! What has changed lately: an answer that was asked for before a change of its subject says nothing about it.
//!
//! In: changes, made from here or told by the server. Out: whether one of a subject came after a question.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;

/// Changes that are remembered. What was asked for before them counts as changed.
const KEPT: usize = 256;

/// What a change is about.
pub(super) enum Subject {
    /// There may be another file under this name of a directory.
    Name(u64, Box<[u8]>),
    /// Likewise; and what had the name before has it no more.
    Moved(u64, Box<[u8]>),
    /// A file's attributes.
    File(u64),
    All,
}

/// See the module.
#[derive(Default)]
pub(super) struct Recent {
    /// So many changes have been.
    count: Cell<u64>,
    last: RefCell<VecDeque<Subject>>,
}

impl Recent {
    /// How many changes there have been: to be kept with a question.
    pub(super) fn count(&self) -> u64 {
        self.count.get()
    }

    pub(super) fn add(&self, subject: Subject) {
        let mut last = self.last.borrow_mut();
        if last.len() == KEPT {
            last.pop_front();
        }
        last.push_back(subject);
        self.count.set(self.count.get() + 1);
    }

    /// Whether a name may be another file's than it was `then`.
    pub(super) fn has_name_changed(&self, then: u64, dir: u64, name: &[u8]) -> bool {
        self.has_changed(then, |subject| match subject {
            Subject::Name(d, n) | Subject::Moved(d, n) => *d == dir && **n == *name,
            Subject::File(_) => false,
            Subject::All => true,
        })
    }

    /// Whether what had a name `then` has it no more.
    pub(super) fn has_moved(&self, then: u64, dir: u64, name: &[u8]) -> bool {
        self.has_changed(then, |subject| matches!(subject, Subject::Moved(d, n) if *d == dir && **n == *name))
    }

    /// Whether a file has other attributes than `then`; a directory has with its names.
    pub(super) fn has_file_changed(&self, then: u64, node: u64) -> bool {
        self.has_changed(then, |subject| match subject {
            Subject::File(of) | Subject::Name(of, _) | Subject::Moved(of, _) => *of == node,
            Subject::All => true,
        })
    }

    fn has_changed(&self, then: u64, is_it: impl Fn(&Subject) -> bool) -> bool {
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
        let recent = Recent::default();
        let name = || Box::from(&b"a"[..]);
        recent.add(Subject::Moved(1, name()));
        let then = recent.count();
        assert!(!recent.has_name_changed(then, 1, b"a") && !recent.has_file_changed(then, 1));
        recent.add(Subject::Name(1, name()));
        assert!(recent.has_name_changed(then, 1, b"a") && recent.has_file_changed(then, 1));
        assert!(!recent.has_name_changed(then, 1, b"b") && !recent.has_name_changed(then, 2, b"a"));
        assert!(!recent.has_moved(then, 1, b"a"), "that was before");
        recent.add(Subject::Moved(2, name()));
        assert!(recent.has_moved(then, 2, b"a") && !recent.has_moved(then, 1, b"a"));
        recent.add(Subject::File(7));
        assert!(recent.has_file_changed(then, 7) && !recent.has_file_changed(recent.count(), 7));
        // More than is remembered.
        for _ in 0..KEPT {
            recent.add(Subject::File(8));
        }
        assert!(recent.has_moved(then, 3, b"c") && recent.has_file_changed(then, 9));
        recent.add(Subject::All);
        let last = recent.count() - 1;
        assert!(recent.has_file_changed(last, 9) && recent.has_name_changed(last, 9, b"x"));
    }
}
