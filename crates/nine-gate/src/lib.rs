//! Doors for programs that speak no 9P.
//!
//! [`http`]: the files of a name space, for browsers and whoever else speaks HTTP/1.1.
#![forbid(unsafe_code)]

pub mod http;
