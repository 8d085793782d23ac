//! Data connections of streams: dialled where the 9P connection leads, by the same transport and with the same TLS.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Dial, Dialing};
use nine_net::{Addr, ClientTls, Env, Socket, Transport, rt};

use super::silence::{Moved, Watched};

/// For a connection, and for its TLS handshake: then files go over the 9P connection.
const LIMIT: Duration = Duration::from_secs(1);

/// See the module.
pub struct Data {
    env: rt::Real,
    /// How the server is known, and by which name. `None`: without TLS.
    tls: Option<Arc<(ClientTls, String)>>,
    /// What counts as a sign of life of the session.
    moved: Moved,
}

impl Data {
    pub fn new(env: rt::Real, tls: Option<(ClientTls, String)>, moved: Moved) -> Self {
        Self { env, tls: tls.map(Arc::new), moved }
    }
}

impl Dial for Data {
    fn dial(&self, peer: &str, addr: &str) -> Dialing {
        let (env, tls, moved) = (self.env, self.tls.clone(), self.moved.clone());
        let at = place(peer, addr);
        Box::pin(async move {
            let socket = Socket::connect(&at?, LIMIT).await?;
            let Some(tls) = tls else { return Ok(Box::new(Watched(socket, moved)) as Box<dyn Transport>) };
            let late = env.sleep_until(env.now() + LIMIT);
            let tls = tls.0.connect(socket, &tls.1, late).await?;
            Ok(Box::new(Watched(tls, moved)) as Box<dyn Transport>)
        })
    }
}

/// Where the server of `peer` means with `addr`. A server sends nobody elsewhere.
fn place(peer: &str, addr: &str) -> io::Result<Addr> {
    let parse = |text: &str| text.parse::<Addr>().map_err(|error| io::Error::other(error.to_string()));
    match (parse(peer)?, parse(addr)?) {
        (
            Addr::Tcp { host, .. } | Addr::Tls { host, .. },
            Addr::Tcp { host: meant, port } | Addr::Tls { host: meant, port },
        ) if meant == "*" || meant == host => Ok(Addr::Tcp { host, port }),
        _ => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the server offers {addr}, which is not where it is itself"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_the_host_of_the_session_and_other_hosts_are_refused() {
        let place = |peer, addr| place(peer, addr).map(|addr| addr.to_string());
        assert_eq!(place("tcp!10.0.0.1!564", "tcp!*!5641").unwrap(), "tcp!10.0.0.1!5641");
        assert_eq!(place("tls!::1!564", "tcp!*!564").unwrap(), "tcp!::1!564");
        assert_eq!(place("tcp!10.0.0.1!564", "tcp!10.0.0.1!22").unwrap(), "tcp!10.0.0.1!22");
        for addr in ["tcp!10.0.0.2!564", "tcp!localhost!22", "unix!/run/x", "x", ""] {
            assert!(place("tcp!10.0.0.1!564", addr).is_err(), "{addr}");
        }
        assert!(place("unix!/run/x", "tcp!*!564").is_err());
    }
}
