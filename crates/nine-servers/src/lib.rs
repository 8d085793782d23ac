//! File servers for local resources: each implements `FileServer` of nine-io.
//!
//! - [`Ram`]: a tree in memory, up to a limit in bytes. It is small, as a proof of the server interface.
//! - [`Blocks`]: disks as files.
//! - [`HostDisk`]: a file of the host as a block device.
//! - [`Disk`]: a directory of the host.
//! - [`Cons`]: a keyboard, a screen, the time, and the program's log.
//! - [`Net`]: the network, on the sockets of this machine.
//! - [`Pipes`]: pairs of streams joined at the device end, for programs that talk to each other.
//! - [`Posts`]: named addresses of servers (srv(3)).
//! - [`Channels`]: shared-memory channels and the connections to their guests.
//! - [`Parts`]: programs, each run in a session of files.
//!
//! In: requests that the session has checked. Out: answers, immediate where no wait is needed. No server here depends
//! on a dialect, a transport or a name space.
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
