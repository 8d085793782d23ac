//! Front ends for programs that do not speak 9P.
//!
//! [`fuse`]: mounts a 9P tree as a file system of this kernel.
//! [`http`]: serves a 9P tree to browsers and other HTTP/1.1 clients.
#![deny(unsafe_code)]

pub mod fuse;
pub mod http;
