//! The integration tests of nine-block as one program, with a module for each subject.

mod cache;
mod common;
mod conform;
mod devices;
mod expr;
mod members;
mod mirror;
mod mirror_faults;
mod moving;
mod owner;
