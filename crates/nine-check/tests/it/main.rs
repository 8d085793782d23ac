//! The integration tests of nine-check as one program, one module for each subject.

mod bad;
mod broken;
mod common;
mod diod;
mod ours;
