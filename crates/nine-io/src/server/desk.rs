//! Connection control files: a client that attaches to [`ANAME`] finds `ctl`, `status` and `trace` of its own
//! connection, whatever tree the server serves.
//!
//! A text written to `ctl` (`push zstd`, `pop`) changes the modules of both ends, at a switch point that both know. The
//! client has no other request in flight and sends nothing until the Rwrite arrives. The server sends nothing after the
//! Rwrite until it has switched. So the Rwrite is the last message in the old form, in both directions.
//!
//! Always holds: at most one text waits. A text is refused while other requests are in flight, or if its module cannot
//! be opened; then nothing changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nine_net::modules::{self, TraceLog};
use nine_net::{Conversation, Pushed, Transport};
use nine_proto::{Errno, Error, Result, show};

use super::req::{Answer, FileServer, Req, ReqId};
use crate::sync::{Mutex, lock};
use crate::synth::{Ask, Dir, File, Tree};

/// The aname of this tree.
pub const ANAME: &[u8] = b"#conversation";

/// Checks whether a client may push the module of a `ctl` text, on its connection or on a conversation of /net.
///
/// # Errors
/// EPERM if only clients with a proven identity may push the module.
pub fn check_cost(text: &str, is_proven: bool) -> Result<()> {
    let module = text.trim().strip_prefix("push").unwrap_or_default();
    if is_proven || !modules::is_costly(module) {
        return Ok(());
    }
    let module = show(module.trim().as_bytes()).to_string();
    Err(Error::new(
        Errno::EPERM,
        format!("{module}: a client that has proven nothing pushes `zstd` up to level 3"),
    ))
}

/// Longest text for `ctl`, in bytes. The log shows the text.
const TEXT_MAX: usize = 256;

/// The control files of one connection.
pub(super) struct ControlFiles {
    tree: Tree,
    shared: Arc<ControlState>,
    /// A client has used them; until then there is nothing to check.
    pub(super) used: bool,
}

#[derive(Default)]
struct ControlState {
    /// The text written to `ctl` that is not answered yet.
    asked: Mutex<Option<(String, Ask)>>,
    /// The content of `status`.
    status: Mutex<String>,
    /// Whether the current request's client has proven its identity; in this tree every client is an owner.
    is_proven: AtomicBool,
}

impl ControlFiles {
    /// Returns the transport with support for modules, and its control files.
    pub(super) fn new(
        pushed: &Pushed,
        begins: &[String],
        transport: Box<dyn Transport>,
    ) -> (Box<dyn Transport>, Self) {
        let log = TraceLog::default();
        // Each connection has a trace of its own.
        let modules = pushed.modules.clone().with("trace", nine_net::modules::Trace(log.clone()));
        let mut transport = Conversation::new(transport, modules, pushed.clock.clone());
        for module in begins {
            let said = transport.control(&format!("push {module}"));
            said.expect("what every connection begins with is known to be right");
        }
        let shared = Arc::<ControlState>::default();
        let status = |shared: &Arc<ControlState>| {
            let shared = shared.clone();
            File::text(move |_| lock(&shared.status).clone())
        };
        let asked = shared.clone();
        let ctl = status(&shared).on_write(move |ask| {
            let line = match ask.lines().as_deref() {
                Ok(&[line]) if line.len() <= TEXT_MAX => line.trim().to_owned(),
                Ok(&[_]) => return ask.fail(Error::new(Errno::EINVAL, "a text has at most 256 bytes")),
                Ok(_) => return ask.fail(Error::new(Errno::EINVAL, "one text at a time")),
                Err(_) => return ask.fail(Error::new(Errno::EINVAL, "this is no text")),
            };
            if let Err(error) = check_cost(&line, asked.is_proven.load(Ordering::Relaxed)) {
                return ask.fail(error);
            }
            let mut waits = lock(&asked.asked);
            if waits.as_ref().is_some_and(|(_, other)| other.is_wanted()) {
                drop(waits);
                return ask.fail(Error::new(Errno::EBUSY, "another text is being looked at"));
            }
            let old = waits.replace((line, ask));
            drop(waits);
            drop(old);
        });
        let root = Dir::new()
            .file("ctl", ctl)
            .file("status", status(&shared))
            .file("trace", File::text(move |_| log.text()));
        // Every admitted client may change its own connection.
        let tree = Tree::new(root, Duration::ZERO).owned_by(|_, _| true);
        (Box::new(transport), Self { tree, shared, used: false })
    }

    pub(super) fn serve(&mut self, req: Req, transport: Option<&dyn Transport>) -> Answer {
        self.used = true;
        self.shared.is_proven.store(req.who().is_proven(), Ordering::Relaxed);
        *lock(&self.shared.status) = transport.map(Transport::status).unwrap_or_default();
        self.tree.serve(req)
    }

    pub(super) fn cancel(&self, id: ReqId) {
        self.tree.cancel(id, None);
    }

    /// Takes the text that waits for an answer, if its client still wants one.
    pub(super) fn asked(&self) -> Option<(String, Ask)> {
        let asked = lock(&self.shared.asked).take();
        asked.filter(|(_, ask)| ask.is_wanted())
    }
}
