//! Data connections of streams: dialled where the 9P connection leads, by the same transport and with the same TLS.

use std::sync::Arc;
use std::time::Duration;

use nine_io::client::{Dial, Dialing, offered};
use nine_net::{ClientTls, Env, Socket, Transport, rt};

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
