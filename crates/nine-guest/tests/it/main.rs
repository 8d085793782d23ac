//! The integration tests of nine-guest as one program, one module for each subject.

mod guest;
