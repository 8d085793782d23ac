//! The user at the other end of a TCP connection within this machine, as the kernel reports it.
//!
//! In: the two addresses of a connection. Out: the user of the process that created the socket at the other end, from
//! one request to the kernel (sock_diag(7)).
//!
//! Always holds: no call blocks. An answer counts only if it describes exactly this connection, and a socket that a
//! process still holds. The kernel reports user 0 for a socket whose process has closed it. If there is no connection
//! it may report a listener of the same port. Both are rejected.

use std::io;
use std::net::{IpAddr, SocketAddr};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// Returns the user at the other end of a connection between two sockets of this machine. `None`: the kernel does not
/// report it, or `local` is not a loopback address.
pub fn loopback_user(local: SocketAddr, remote: SocketAddr) -> Option<u32> {
    let [local, remote] = [local, remote].map(|at| SocketAddr::new(at.ip().to_canonical(), at.port()));
    if !local.ip().is_loopback() {
        return None;
    }
    let mut answer = [0; ANSWER_MAX];
    let len = ask(&request(remote, local), &mut answer).ok()?;
    user_in(answer.get(..len)?, remote, local)
}

/// Sends a request and reads its answer, which is ready when the send returns.
fn ask(request: &[u8], answer: &mut [u8]) -> io::Result<usize> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kernel = Some(netlink::SOCK_DIAG);
    let socket = rustix::net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, kernel)?;
    rustix::net::send(&socket, request, SendFlags::empty())?;
    let (len, _) = rustix::net::recv(&socket, answer, RecvFlags::DONTWAIT)?;
    Ok(len)
}

/// A `struct nlmsghdr` and a `struct inet_diag_req_v2`: the TCP socket at `this`, connected to `other`.
fn request(this: SocketAddr, other: SocketAddr) -> [u8; REQUEST_LEN] {
    let mut request = [0; REQUEST_LEN];
    let mut put = |at: usize, bytes: &[u8]| request[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &(REQUEST_LEN as u32).to_ne_bytes());
    put(4, &SOCK_DIAG_BY_FAMILY.to_ne_bytes());
    put(6, &NLM_F_REQUEST.to_ne_bytes());
    let family = if this.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    put(HEADER_LEN, &[family as u8, libc::IPPROTO_TCP as u8]);
    // In any state: the state is checked in the answer.
    put(HEADER_LEN + 4, &u32::MAX.to_ne_bytes());
    put(REQUEST_ID, &this.port().to_be_bytes());
    put(REQUEST_ID + 2, &other.port().to_be_bytes());
    for (at, ip) in [(4, this.ip()), (20, other.ip())] {
        match ip {
            IpAddr::V4(ip) => put(REQUEST_ID + at, &ip.octets()),
            IpAddr::V6(ip) => put(REQUEST_ID + at, &ip.octets()),
        }
    }
    // INET_DIAG_NOCOOKIE
    put(REQUEST_ID + 40, &[0xff; 8]);
    request
}

/// Parses the user from an answer, a `struct nlmsghdr` and a `struct inet_diag_msg`.
fn user_in(answer: &[u8], this: SocketAddr, other: SocketAddr) -> Option<u32> {
    let word = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let port = |at: usize| Some(u16::from_be_bytes(*answer.get(at..)?.first_chunk()?));
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let (family, state) = (*answer.get(HEADER_LEN)?, *answer.get(HEADER_LEN + 1)?);
    let ip = |at: usize| -> Option<IpAddr> {
        let ip: IpAddr = match i32::from(family) {
            libc::AF_INET => (*answer.get(at..)?.first_chunk::<4>()?).into(),
            libc::AF_INET6 => (*answer.get(at..)?.first_chunk::<16>()?).into(),
            _ => return None,
        };
        Some(ip.to_canonical())
    };
    let is_it = kind == SOCK_DIAG_BY_FAMILY
        && (port(ANSWER_ID)?, port(ANSWER_ID + 2)?) == (this.port(), other.port())
        && (ip(ANSWER_ID + 4)?, ip(ANSWER_ID + 20)?) == (this.ip(), other.ip());
    let (user, inode) = (word(ANSWER_ID + 60)?, word(ANSWER_ID + 64)?);
    (is_it && CONNECTED.contains(&state) && inode != 0).then_some(user)
}

/// Size of `struct nlmsghdr`, in bytes.
const HEADER_LEN: usize = 16;
/// The same with a `struct inet_diag_req_v2`.
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// Offset of the `struct inet_diag_sockid` in a request and in an answer.
const REQUEST_ID: usize = HEADER_LEN + 8;
const ANSWER_ID: usize = HEADER_LEN + 4;
/// Maximum number of bytes in an answer that are read. Attributes after them are ignored.
const ANSWER_MAX: usize = 1024;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
/// States of a connection with two ends: established, both of FIN_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING.
const CONNECTED: [u8; 6] = [1, 4, 5, 8, 9, 11];

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// The address of the listener, and both ends of a connection to it.
    fn connected(at: &str) -> (TcpListener, TcpStream, TcpStream) {
        let listener = TcpListener::bind(at).expect("binds");
        let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
        let (far, _) = listener.accept().expect("accepts");
        (listener, near, far)
    }

    fn ends(of: &TcpStream) -> (SocketAddr, SocketAddr) {
        (of.local_addr().expect("bound"), of.peer_addr().expect("connected"))
    }

    #[test]
    fn the_kernel_tells_the_user_of_a_connection_within_this_machine() {
        let own = Some(rustix::process::geteuid().as_raw());
        for at in ["127.0.0.1:0", "127.7.7.7:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            let (_listener, near, far) = connected(at);
            let (local, remote) = ends(&far);
            assert_eq!(loopback_user(local, remote), own, "{at}");
            // A client that has sent everything waits for the answer.
            near.shutdown(Shutdown::Write).expect("shut down");
            assert_eq!(loopback_user(local, remote), own, "{at}");
        }
    }

    #[test]
    fn a_socket_that_nobody_holds_any_more_has_no_user() {
        let (listener, near, mut far) = connected("127.0.0.1:0");
        let (local, remote) = ends(&far);
        drop(near);
        assert_eq!(far.read(&mut [0]).expect("the end"), 0);
        assert_eq!(loopback_user(local, remote), None, "it is closed");
        drop(far);
        assert_eq!(loopback_user(local, remote), None, "both ends are");
        // The kernel answers with the listener.
        let here = listener.local_addr().expect("bound");
        assert_eq!(loopback_user(SocketAddr::from(([127, 0, 0, 1], 9)), here), None);
    }

    #[test]
    fn an_answer_about_another_connection_counts_for_nothing() {
        let (_listener, _near, far) = connected("127.0.0.1:0");
        let (local, remote) = ends(&far);
        let mut answer = [0; ANSWER_MAX];
        let len = ask(&request(remote, local), &mut answer).expect("an answer");
        let answer = &answer[..len];
        assert!(user_in(answer, remote, local).is_some());
        let other = SocketAddr::new(remote.ip(), remote.port() ^ 1);
        assert_eq!(user_in(answer, other, local), None);
        assert_eq!(user_in(answer, remote, other), None);
        for len in 0..ANSWER_ID + 68 {
            assert_eq!(user_in(&answer[..len], remote, local), None, "{len} bytes");
        }
        for at in 0..ANSWER_ID {
            // No answer of the kernel may cause a panic.
            let mut broken = answer.to_vec();
            broken[at] ^= 0xff;
            let _ = user_in(&broken, remote, local);
        }
        assert_eq!(loopback_user(SocketAddr::from(([192, 0, 2, 1], 1)), remote), None);
    }
}
