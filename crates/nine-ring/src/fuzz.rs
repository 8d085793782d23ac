//! Memory that changes during reads, for the fuzz targets. Before each access of a thread to shared memory, a hook runs
//! that can change the memory.

extern crate std;

use std::boxed::Box;
use std::cell::RefCell;

use crate::Memory;

/// The hook: it gets the memory, and the offset and number of the bytes that are about to be accessed.
pub type Other = Box<dyn FnMut(&Memory, usize, usize)>;

std::thread_local!(static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) });

/// Sets the hook for this thread's accesses, or removes it. The hook's own accesses do not call it.
pub fn beside(other: Option<Other>) {
    OTHER.with(|place| *place.borrow_mut() = other);
}

pub(crate) fn looks(memory: &Memory, at: usize, len: usize) {
    let other = OTHER.with(|place| place.borrow_mut().take());
    let Some(mut other) = other else { return };
    other(memory, at, len);
    OTHER.with(|place| *place.borrow_mut() = Some(other));
}
