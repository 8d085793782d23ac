//! Text that people read and write, with one function for each notion: sizes, and names of files.
//!
//! In: text of a command line, a policy or an address; bytes of a name. Out: numbers; text that is safe to print.
//! Always holds: whatever one program of ours prints as a size, every other accepts; a printed name is one line and
//! cannot move a cursor, hide text or turn it around.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod name;
mod size;

pub use name::{escape_char, is_deceptive, name_line, show_name};
pub use size::{SIZE_UNITS, SizeError, parse_size, show_size, size_unit};
