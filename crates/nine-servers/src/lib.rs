//! Resources as files: what a `FileServer` of nine-io can stand in front of.
//!
//! - [`Ram`]: a tree in memory, up to a limit. Small: the proof that the interface is right.
//! - [`Blocks`]: disks, each as a file.
//! - [`HostDisk`]: a disk that is a file of the host, for whoever wants sectors.
//! - [`Disk`]: a directory of the host.
//! - [`Cons`]: a keyboard, a screen, the time, and what the program has logged.
//! - [`Net`]: the network, on the sockets of this machine.
//! - [`Pipes`]: two streams joined at the device end, for programs that talk with each other.
//! - [`Posts`]: addresses of servers under names.
//! - [`Channels`]: channels of shared memory, and who is at their other ends.
//! - [`Parts`]: programs, each run in a session of files.
//!
//! In: requests, already checked by the session. Out: answers, at once where nothing has to be waited for.
//! No server here knows a dialect, a transport or a name space.
#![deny(unsafe_code)]

pub mod block;
pub mod cons;
pub mod disk;
pub mod machine;
pub mod net;
pub mod part;
pub mod pipe;
mod probe;
mod ram;
pub mod shm;
pub mod srv;
mod sync;

pub use block::{Blocks, HostDisk};
pub use cons::Cons;
pub use disk::{As, Disk, DiskOptions};
pub use net::Net;
pub use part::Parts;
pub use pipe::Pipes;
pub use ram::Ram;
pub use shm::Channels;
pub use srv::Posts;
