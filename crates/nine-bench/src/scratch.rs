//! Files and sockets of a run, beside the build's own; they go when the run ends, by a signal too.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nine_net::rt;
use tempfile::{Builder, TempDir};

/// A directory that goes with it.
pub struct Scratch(TempDir);

static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl Scratch {
    /// Beside the program, which is on the disk that is built on.
    pub fn new() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let beside = program.parent().ok_or_else(|| io::Error::other("the program is nowhere"))?;
        Self::made(|builder| builder.tempdir_in(beside))
    }

    /// For sockets, whose names must be short.
    pub fn for_sockets() -> io::Result<Self> {
        Self::made(|builder| builder.tempdir())
    }

    fn made(make: impl FnOnce(&Builder<'_, '_>) -> io::Result<TempDir>) -> io::Result<Self> {
        // Held while it is made: a signal must not find it missing here.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = make(Builder::new().prefix(&format!("nine-bench-{}-", std::process::id())))?;
        all.push(dir.path().into());
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Scratch {
    /// Does not return while a signal is ending the program: what fails for want of its files shall not be told.
    fn drop(&mut self) {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).retain(|dir| dir != self.0.path());
    }
}

/// From now on SIGINT, SIGTERM and SIGHUP remove every scratch directory and end the program; the kernel ends its
/// children (`child`).
pub fn sweep_on_signals() -> io::Result<()> {
    let (ready, watched) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        rt::block_on(async |_| {
            let signals = rt::signals();
            let _ = ready.send(signals.as_ref().map(drop).map_err(|error| error.kind()));
            let Ok(mut signals) = signals else { return };
            signals.next().await;
            let all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
            for dir in &*all {
                // Again, if something was made in it meanwhile.
                while std::fs::remove_dir_all(dir)
                    .is_err_and(|e| e.kind() == io::ErrorKind::DirectoryNotEmpty)
                {}
            }
            std::process::exit(130);
        })
    });
    watched.recv().map_err(io::Error::other)?.map_err(io::Error::from)
}
