//! The integration tests of nine-gate as one program, one module for each subject.

mod fuse;
mod http;
