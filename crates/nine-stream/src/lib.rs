//! Streams: a conversation between a process and a device, with processing modules between them (D. L. Presotto,
//! *Multiprocessor Streams for Plan 9*; `docs/streams.md`).
//!
//! In: blocks, put at either end; control text; wakers. Out: blocks, in order, and wake-ups. The crate has no runtime,
//! no clock and no 9P. A task takes the role of the paper's process.
//!
//! Always holds: data arrives at the other end in the order of the puts, unless a module changes that or the stream is
//! hung up. Every queue has a limit. At the limit it refuses puts until it is at or below half of it. Refused callers
//! are woken in the order of their arrival.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(any(feature = "std", nine_loom, test))]
extern crate std;

mod block;
mod lock;
mod many;
mod module;
mod pipe;
mod pool;
mod port;
mod queue;
mod stream;
mod wait;
mod way;

pub use block::{Block, Chain};
pub use many::{Driver, Limits, Many, Side, many};
pub use module::{Control, Fault, Halves, Module, ModuleKind, Modules, Next, Pass};
pub use pipe::pipe;
pub use pool::{Alloc, CLASSES, Pool};
pub use port::{Putting, Reading};
pub use queue::{Limit, Queue};
pub use stream::{DEEPEST, Device, Make, Stream};

#[cfg(all(test, nine_loom))]
mod orders;

/// Compiles and runs the program in the documentation.
#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../../../docs/streams.md")]
struct Documentation;
