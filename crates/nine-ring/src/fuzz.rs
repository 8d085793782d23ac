//! Memory that changes under the eyes of who looks, for the fuzz targets: before each look of a thread at memory that
//! is shared, somebody else has his turn there.

extern crate std;

use std::boxed::Box;
use std::cell::RefCell;

use crate::Memory;

/// Who has his turn before each look: the memory, and the first of how many bytes of it are looked at, or written.
pub type Other = Box<dyn FnMut(&Memory, usize, usize)>;

std::thread_local!(static OTHER: RefCell<Option<Other>> = const { RefCell::new(None) });

/// From now on this one has his turn before each look of this thread; what he does there himself is none. `None`:
/// nobody.
pub fn beside(other: Option<Other>) {
    OTHER.with(|place| *place.borrow_mut() = other);
}

pub(crate) fn looks(memory: &Memory, at: usize, len: usize) {
    let other = OTHER.with(|place| place.borrow_mut().take());
    let Some(mut other) = other else { return };
    other(memory, at, len);
    OTHER.with(|place| *place.borrow_mut() = Some(other));
}
