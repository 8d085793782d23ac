//! Tests of the room; orders of threads by checkers in `orders`, everything else by hand.

extern crate std;

#[cfg(not(any(nine_loom, nine_shuttle)))]
mod hostile;
#[cfg(any(nine_loom, nine_shuttle))]
mod orders;
#[cfg(not(any(nine_loom, nine_shuttle)))]
mod rules;
