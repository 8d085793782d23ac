//! The guest against a host written by hand.

mod files;
mod host;
mod hostile;
mod lives;
mod named;
mod partition;
mod patience;
mod programs;
mod space;
mod waiting;
