//! Our contestant: a host directory behind a unix socket, as `ninefold serve` sets it up, in a process of its own.

use std::io;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::join;
use nine_io::server::{Core, Door, Gate, Seat, Service, listen};
use nine_net::{Addr, Listener, rt};
use nine_servers::{Disk, DiskOptions};

use crate::child;

/// More than any experiment brings.
const CLIENTS: usize = 20_000;

/// Serves until the process ends.
pub fn serve(dir: &Path, socket: &Path) -> io::Result<()> {
    rustix::process::umask(rustix::fs::Mode::empty());
    rt::raise_nofile()?;
    let cores = rt::default_cores();
    let seats: Vec<Arc<Seat>> = (1..cores).map(|_| Arc::default()).collect();
    let served = rt::run(cores, async |core: rt::Core, env: rt::Real| {
        if core.index > 0 {
            seats[core.index - 1].serve(env).await;
            return Ok(());
        }
        let disk = Arc::new(Disk::open(dir, DiskOptions::default())?);
        let listener = Listener::bind(&Addr::Unix { path: socket.into() })?;
        let door = Door { listener, tls: None, clients: CLIENTS };
        let service = Service::new(disk, Gate::default(), Core::default());
        let says = async { child::ready() };
        join(listen(env, door, service, &seats), says).await.0
    })?;
    served.into_iter().collect()
}
