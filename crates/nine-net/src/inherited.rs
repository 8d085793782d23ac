//! Listening sockets that a service manager has opened for this program (sd_listen_fds(3)). A client that dials while
//! the program starts, or restarts, waits and is not refused.
//!
//! In: `LISTEN_PID`, `LISTEN_FDS` and `LISTEN_FDNAMES`, and descriptors from 3 on. Out: their addresses. Each socket is
//! used by the [`Listener`](crate::Listener) that binds its address.
//!
//! Always holds: no socket is used twice. Names in the file system belong to the manager, and are not removed.

use std::fmt::Display;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use socket2::{SockAddr, Socket as Raw, Type};

use crate::dial::Addr;
use crate::sys;

/// An inherited socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inherited {
    /// Its `FileDescriptorName=`.
    pub name: String,
    /// The address on which it listens.
    pub addr: Addr,
}

/// Inherited sockets that no listener has bound yet.
static WAITING: Mutex<Vec<(SockAddr, Raw)>> = Mutex::new(Vec::new());

/// Returns the inherited sockets of this process; the same on each call.
///
/// # Errors
/// A descriptor is missing, or is not a listening socket of a known kind; the text names it.
pub fn inherited() -> io::Result<Vec<Inherited>> {
    static ALL: OnceLock<Result<Vec<Inherited>, String>> = OnceLock::new();
    ALL.get_or_init(take).clone().map_err(io::Error::other)
}

fn take() -> Result<Vec<Inherited>, String> {
    let variable = |name| std::env::var(name).unwrap_or_default();
    // Child processes of the intended one have the same environment.
    if variable("LISTEN_PID").parse() != Ok(std::process::id()) {
        return Ok(Vec::new());
    }
    let count = variable("LISTEN_FDS");
    let count = count.parse().ok().filter(|count| *count <= MAX);
    let count: usize = count.ok_or_else(|| format!("LISTEN_FDS: it is no number up to {MAX}"))?;
    let names = variable("LISTEN_FDNAMES");
    let mut names = names.split(':').map(str::to_owned);
    let mut all = Vec::new();
    for (n, raw) in sys::inherit(count).map_err(|e| format!("LISTEN_FDS: {e}"))?.into_iter().enumerate() {
        let wrong = |why: &dyn Display| format!("socket {n} of LISTEN_FDS: {why}; {FORM}");
        let is_listening = || Ok::<_, io::Error>(raw.r#type()? == Type::STREAM && raw.is_listener()?);
        if !is_listening().map_err(|e| wrong(&e))? {
            return Err(wrong(&"it does not listen for connections"));
        }
        raw.set_nonblocking(true).map_err(|e| wrong(&e))?;
        let at = raw.local_addr().map_err(|e| wrong(&e))?;
        let addr = addr(&at).ok_or_else(|| wrong(&"it has no address that clients could dial"))?;
        all.push(Inherited { name: names.next().unwrap_or_default(), addr });
        waiting().push((at, raw));
    }
    Ok(all)
}

/// Takes the inherited socket with this address.
pub(crate) fn bound(at: &SockAddr) -> Option<Raw> {
    let mut waiting = waiting();
    let is_it = |of: &SockAddr| match (of.as_socket(), of.as_pathname()) {
        (Some(ip), _) => at.as_socket() == Some(ip),
        (_, Some(path)) => at.as_pathname() == Some(path),
        _ => of == at,
    };
    let found = waiting.iter().position(|(of, _)| is_it(of))?;
    Some(waiting.swap_remove(found).1)
}

fn waiting() -> MutexGuard<'static, Vec<(SockAddr, Raw)>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address for clients.
fn addr(at: &SockAddr) -> Option<Addr> {
    if let Some(ip) = at.as_socket() {
        let is_every = ip.is_ipv6() && ip.ip().is_unspecified();
        let host = if is_every { "*".into() } else { ip.ip().to_string() };
        return Some(Addr::Tcp { host, port: ip.port() });
    }
    if let Some((cid, port)) = at.as_vsock_address() {
        return Some(Addr::Vsock { cid, port });
    }
    at.as_pathname().map(|path| Addr::Unix { path: path.into() })
}

/// Maximum number of sockets of one program.
const MAX: usize = 64;
const FORM: &str =
    "a .socket unit for ninefold has ListenStream= alone, with paths, ports, addresses or vsock:";
