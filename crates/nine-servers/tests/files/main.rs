//! The servers of this crate as a client sees them.

mod both;
mod disk;
mod host;
mod hostile;
mod pipe;
mod users;
mod world;
