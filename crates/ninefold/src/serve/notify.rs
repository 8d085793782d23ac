//! Notifications to a service manager (sd_notify(3)), if there is one.
//!
//! In: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`. Out: datagrams of lines `NAME=value`. A failed datagram does
//! not stop the program.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use nine_net::{Env, rt};
use rustix::time::{ClockId, clock_gettime};

/// The connection to a service manager, if any.
#[derive(Clone)]
pub struct Manager {
    to: Option<Arc<(UnixDatagram, SocketAddr)>>,
    /// Interval of watchdog messages: half of the manager's timeout.
    beat: Option<Duration>,
}

impl Manager {
    /// Finds the service manager that started this program; there may be none.
    pub fn get() -> Self {
        let variable = |name| std::env::var(name).ok();
        let is_ours = variable("WATCHDOG_PID").is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let limit = variable("WATCHDOG_USEC").filter(|_| is_ours).and_then(|text| text.parse().ok());
        let to = socket().unwrap_or_else(|error| {
            tracing::warn!("NOTIFY_SOCKET: the service manager hears nothing: {error}");
            None
        });
        let beat = limit.filter(|limit| *limit > 1 && to.is_some());
        Self { beat: beat.map(|limit: u64| Duration::from_micros(limit / 2)), to: to.map(Arc::new) }
    }

    /// Reports that the program works, with its status line.
    pub fn ready(&self, status: &str) {
        self.say(&format!("READY=1\nSTATUS={}", line(status)));
    }

    /// Reports that files are being reloaded; [`Manager::ready`] ends that state.
    pub fn reloading(&self) {
        let now = clock_gettime(ClockId::Monotonic);
        let micros = now.tv_sec as u64 * 1_000_000 + now.tv_nsec as u64 / 1000;
        self.say(&format!("RELOADING=1\nMONOTONIC_USEC={micros}\nSTATUS=reading its files again"));
    }

    /// Reports that the program has begun to shut down.
    pub fn stopping(&self, status: &str) {
        self.say(&format!("STOPPING=1\nSTATUS={}", line(status)));
    }

    /// Sends watchdog messages from the core that runs this, at the required interval.
    pub async fn live(self, env: rt::Real) {
        while let Some(beat) = self.beat {
            self.say("WATCHDOG=1");
            env.sleep_until(env.now() + beat).await;
        }
    }

    fn say(&self, text: &str) {
        let Some((socket, to)) = self.to.as_deref() else { return };
        if let Err(error) = socket.send_to_addr(text.as_bytes(), to) {
            tracing::debug!("the service manager does not hear `{}`: {error}", line(text));
        }
    }
}

fn socket() -> io::Result<Option<(UnixDatagram, SocketAddr)>> {
    let Some(name) = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else {
        return Ok(None);
    };
    let to = match name.as_bytes() {
        [b'@', rest @ ..] => SocketAddr::from_abstract_name(rest)?,
        _ => SocketAddr::from_pathname(&name)?,
    };
    let socket = UnixDatagram::unbound()?;
    // A manager that does not read must not block this program.
    socket.set_nonblocking(true)?;
    Ok(Some((socket, to)))
}

/// Returns the first line: another line would be read as another assignment.
fn line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
