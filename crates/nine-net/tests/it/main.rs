//! The integration tests of nine-net as one program, one module for each subject.

mod slow;
