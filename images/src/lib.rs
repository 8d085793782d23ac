//! What several images do: files of the network, and HTTP over them; and the peer of measurements.

#![no_std]

extern crate alloc;

pub mod http;
pub mod sys;

use nine_guest::{Errno, Error};

/// How a program is to be called.
pub fn usage(words: &str) -> Error {
    Error::new(Errno::EINVAL, alloc::format!("usage: {words}"))
}
