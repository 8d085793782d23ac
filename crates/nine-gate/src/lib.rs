//! Doors for programs that speak no 9P.
//!
//! [`fuse`]: the files of a name space as a file system of this kernel.
//! [`http`]: the same, for browsers and whoever else speaks HTTP/1.1.
#![deny(unsafe_code)]

pub mod fuse;
pub mod http;
