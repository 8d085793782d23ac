//! The integration tests of nine-servers as one program, one module for each subject.

mod files;
