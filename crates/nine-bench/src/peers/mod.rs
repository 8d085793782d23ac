//! Other people's servers, as Debian packages them.

pub mod diod;
