//! The integration tests of nine-io as one program, one module for each subject.

mod client;
mod synth;
