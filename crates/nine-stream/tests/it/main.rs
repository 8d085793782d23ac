//! The integration tests of nine-stream as one program, one module for each subject.

mod hogs;
mod streams;
