//! The guest's side against a host written by hand.

mod c;
mod files;
mod host;
mod hostile;
mod lives;
mod waiting;
