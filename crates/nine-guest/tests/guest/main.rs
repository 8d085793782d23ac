//! The guest's side against a host written by hand.

mod files;
mod host;
