//! Data connections of streams: dialled to the server of the 9P connection, over the same transport and TLS.

use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Dial, Dialing, offered};
use nine_net::{ClientTls, Env, Socket, Transport, rt};

use super::silence::{Moved, Watched};

/// Limit for the connection and for its TLS handshake. After that, file data goes over the 9P connection.
const LIMIT: Duration = Duration::from_secs(1);

/// Dials data connections.
pub struct Data {
    env: rt::Real,
    /// How to verify the server, and its name; `None` without TLS.
    tls: Option<Arc<(ClientTls, String)>>,
    /// Counts bytes as signs of life of the session.
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
        let at = offered(peer, addr);
        Box::pin(async move {
            let socket = Socket::connect(&at?, LIMIT).await?;
            let Some(tls) = tls else { return Ok(Box::new(Watched(socket, moved)) as Box<dyn Transport>) };
            let late = env.sleep_until(env.now() + LIMIT);
            let tls = tls.0.connect(socket, &tls.1, late).await?;
            Ok(Box::new(Watched(tls, moved)) as Box<dyn Transport>)
        })
    }
}
