//! Device ends and the modules pushed on them: sockets, TLS, dial strings, and the runtime.
//!
//! In: dial strings and file descriptors. Out: [`Transport`]s, which carry bytes and identify the peer. This crate does
//! not know 9P.
#![deny(unsafe_code)]

pub mod cec;
mod conversation;
pub mod datagram;
mod dial;
mod end;
mod env;
pub mod ether;
pub mod il;
mod inherited;
pub mod lock;
mod loopback;
mod messages;
pub mod modules;
pub mod nonet;
mod pipe;
mod poll;
mod rights;
pub mod rt;
pub mod shm;
mod socket;
mod sync;
mod sys;
mod tls;
mod transport;
mod wait;
mod waited;

pub use conversation::{Conversation, Pushed};
pub use dial::{Addr, DialError, IL_PORT, PORT, TLS_PORT, Target, UNIX_PATH_MAX, VSOCK_ANY, is_socket};
pub use end::{PIPE_SIZE, fill_pipe, kernel_pipe};
pub use env::{Clock, Env, Task, Timer};
pub use inherited::{Inherited, inherited};
pub use loopback::loopback_user;
pub use nine_stream::{DEEPEST, Fault, ModuleKind, Modules};
pub use pipe::{Pipe, pipe};
pub use poll::{PollSocket, Reactor, Sleep};
pub use rights::{FileStamp, open_rights, read_rights, read_rights_of};
pub use shm::Placed;
pub use socket::{Listener, Socket};
pub use tls::{
    Certificate, ClientAuth, ClientJudge, ClientTls, Revocations, ServerTls, Tls, TlsFiles, Trust,
    fingerprint,
};
pub use transport::{Beside, Peer, Proof, Transport};
#[cfg(not(nine_loom))]
pub use wait::wait;
pub use waited::{Device, Waited};

/// The user and group that this process acts as.
pub fn own_ids() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}
