//! The crate's tests: `orders` runs threads under checkers, the others are deterministic.

extern crate std;

#[cfg(not(any(nine_loom, nine_shuttle)))]
mod hostile;
#[cfg(any(nine_loom, nine_shuttle))]
mod orders;
#[cfg(not(any(nine_loom, nine_shuttle)))]
mod rules;
