//! A client's own conversation as files: who attaches to [`ANAME`] finds `ctl`, `status` and `trace` of the connection
//! it attaches by, whatever is served there.
//!
//! A text written to `ctl` (`push zstd`, `pop`) changes the modules of both ends at a border that both know: the
//! client has nothing else under way and sends nothing until it has the Rwrite; the server sends nothing after the
//! Rwrite. So that answer is the last message in the old form, in either direction.
//!
//! Always holds: one text waits at most; it is refused while other requests are under way, and when its module cannot
//! be opened; then nothing has changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nine_net::modules::{self, TraceLog};
use nine_net::{Conversation, Pushed, Transport};
use nine_proto::{Errno, Error, Result, show};

use super::req::{Answer, FileServer, Req, ReqId};
use crate::sync::{Mutex, lock};
use crate::synth::{Ask, Dir, File, Tree};

/// The tree that is asked for.
pub const ANAME: &[u8] = b"#conversation";

/// Whether a client may ask for so much by a text for `ctl`, that of its connection or of a conversation of /net.
///
/// # Errors
/// EPERM: it is a module that only clients may push that have proven who they are.
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

/// Bytes of a text for `ctl`, which the log shows.
const TEXT_MAX: usize = 256;

/// The files of one connection.
pub(super) struct Desk {
    tree: Tree,
    shared: Arc<Shared>,
    /// Somebody has come; until then there is nothing to look at.
    pub(super) used: bool,
}

#[derive(Default)]
struct Shared {
    /// What has been written to `ctl` and is not answered.
    asked: Mutex<Option<(String, Ask)>>,
    /// What `status` shows.
    status: Mutex<String>,
    /// Whether the client of the request at hand has proven who it is: in this tree all are owners.
    is_proven: AtomicBool,
}

impl Desk {
    /// The transport with its desk.
    pub(super) fn new(
        pushed: &Pushed,
        begins: &[String],
        transport: Box<dyn Transport>,
    ) -> (Box<dyn Transport>, Self) {
        let log = TraceLog::default();
        // A trace is this connection's own.
        let modules = pushed.modules.clone().with("trace", nine_net::modules::Trace(log.clone()));
        let mut transport = Conversation::new(transport, modules, pushed.clock.clone());
        for module in begins {
            let said = transport.control(&format!("push {module}"));
            said.expect("what every connection begins with is known to be right");
        }
        let shared = Arc::<Shared>::default();
        let status = |shared: &Arc<Shared>| {
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
        // Whoever was let in may change his own conversation.
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

    /// A text that waits for its answer.
    pub(super) fn asked(&self) -> Option<(String, Ask)> {
        let asked = lock(&self.shared.asked).take();
        asked.filter(|(_, ask)| ask.is_wanted())
    }
}
