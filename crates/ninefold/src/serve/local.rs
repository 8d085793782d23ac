//! Clients of this machine that connect over loopback: their read rights, and how the server announces that.
//!
//! The kernel knows the user at the other end of a TCP connection within this machine ([`nine_net::loopback_user`]).
//! The server's own user and root read everything. For other users, and clients of unknown users, `--local-users`
//! decides.

use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nine_gate::http::IsOwner;
use nine_io::server::{Anonymous, Gate, is_ours};
use nine_net::loopback_user;

use crate::config::{LocalReaders, Serving};
use crate::fail;

/// Returns the rights of a loopback client that has proven nothing and is not the server's own user.
pub fn anonymous(serving: &Serving) -> Anonymous {
    match serving.local_users.unwrap_or_default() {
        LocalReaders::Public => Anonymous::AsOther,
        LocalReaders::None => Anonymous::Refused,
        LocalReaders::All => Anonymous::ReadOnly,
    }
}

/// Describes in a line the readers that this gate admits. Returns `None` if the gate does not depend on users of this
/// machine.
pub fn readers(gate: &Gate) -> Option<String> {
    let others = match gate.anonymous {
        Anonymous::ReadOnly => "this machine reads",
        Anonymous::AsOther => {
            "this user and root read everything, other users of this machine what file modes let others read"
        }
        Anonymous::Refused if gate.owner_reads => {
            "this user and root read, other users of this machine do not"
        }
        Anonymous::Refused | Anonymous::Trusted => return None,
    };
    let token = match (&gate.token, gate.read_only, gate.anonymous) {
        (None, ..) | (_, true, Anonymous::ReadOnly) => "",
        (Some(_), true, _) => "; clients with the token read everything",
        (Some(_), false, _) => "; clients with the token also write",
    };
    Some(format!("{others}{token}"))
}

/// Returns a check whether a client is the server's own user or root, from both addresses in the network's notation.
pub fn is_owner() -> IsOwner {
    std::sync::Arc::new(|local, remote| {
        let user =
            address(local).zip(address(remote)).and_then(|(local, remote)| loopback_user(local, remote));
        user.is_some_and(is_ours)
    })
}

/// Parses `127.0.0.1!8080` or `::1!8080`.
fn address(text: &str) -> Option<SocketAddr> {
    let (ip, port) = text.trim().rsplit_once('!')?;
    Some(SocketAddr::new(ip.parse().ok()?, port.parse().ok()?))
}

/// Warns if the mode of a served directory keeps other users of this machine out.
pub fn warn(dir: &Path, serving: &Serving) {
    const ALL: u32 = 0o005;
    let dir = dir.canonicalize().unwrap_or(dir.into());
    let Ok(mode) = dir.metadata().map(|meta| meta.mode() & 0o7777) else { return };
    if mode & ALL == ALL {
        return;
    }
    let dir = dir.display();
    match serving.local_users.unwrap_or_default() {
        LocalReaders::Public => fail::note(format_args!(
            "disk:{dir}: its mode is {mode:04o}, so over loopback only this user, root and clients with the token \
             read it; --local-users all lets every user of this machine read it"
        )),
        LocalReaders::All => fail::note(format_args!(
            "disk:{dir}: its mode is {mode:04o}, and over loopback every user of this machine reads it all the same; \
             without --local-users all, others do not"
        )),
        LocalReaders::None => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_says_who_reads_over_loopback() {
        let gate = |anonymous| Gate { anonymous, owner_reads: true, ..Gate::default() };
        let with_token =
            |anonymous, read_only| Gate { token: Some("00".into()), read_only, ..gate(anonymous) };
        let said = |gate: Gate| readers(&gate).unwrap_or_default();
        assert_eq!(said(gate(Anonymous::ReadOnly)), "this machine reads");
        assert_eq!(said(with_token(Anonymous::ReadOnly, true)), "this machine reads");
        assert!(
            said(with_token(Anonymous::ReadOnly, false)).ends_with("; clients with the token also write")
        );
        assert!(
            said(with_token(Anonymous::AsOther, true)).ends_with("; clients with the token read everything")
        );
        assert!(said(gate(Anonymous::Refused)).ends_with("other users of this machine do not"));
        assert_eq!(readers(&Gate::default()), None);
    }

    #[test]
    fn an_address_of_a_network_is_read() {
        assert_eq!(address("127.0.0.1!80\n"), Some(SocketAddr::from(([127, 0, 0, 1], 80))));
        assert_eq!(address("::1!80").map(|at| at.is_ipv6()), Some(true));
        assert!(["", "!", "x!1", "127.0.0.1!x", "127.0.0.1"].iter().all(|text| address(text).is_none()));
    }
}
