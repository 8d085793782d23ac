//! The servers of this crate, as clients see them.

mod attach;
mod block;
mod both;
mod changes;
mod cons;
mod disk;
mod host;
mod hostile;
mod net;
mod pipe;
mod shm;
mod srv;
mod users;
mod world;
