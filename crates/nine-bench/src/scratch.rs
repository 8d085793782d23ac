//! Scratch files and sockets of a run, beside the build. They are removed at the end, also after a signal.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use nine_net::rt;
use tempfile::{Builder, TempDir};

/// A scratch directory, removed on drop.
pub struct ScratchDir(TempDir);

static ALL: Mutex<Vec<PathBuf>> = Mutex::new(Vec::new());

impl ScratchDir {
    /// Creates a directory beside the program, on the disk of the build.
    pub fn new() -> io::Result<Self> {
        let program = std::env::current_exe()?;
        let beside = program.parent().ok_or_else(|| io::Error::other("the program is nowhere"))?;
        Self::made(|builder| builder.tempdir_in(beside))
    }

    /// Creates a directory for sockets, which need short paths.
    pub fn for_sockets() -> io::Result<Self> {
        Self::made(|builder| builder.tempdir())
    }

    fn made(make: impl FnOnce(&Builder<'_, '_>) -> io::Result<TempDir>) -> io::Result<Self> {
        // Hold the lock during the creation, so that a signal's cleanup cannot miss the directory.
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = make(Builder::new().prefix(&format!("nine-bench-{}-", std::process::id())))?;
        all.push(dir.path().into());
        Ok(Self(dir))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for ScratchDir {
    /// Blocks while a signal ends the program, so that errors from removed files are not reported.
    fn drop(&mut self) {
        ALL.lock().unwrap_or_else(PoisonError::into_inner).retain(|dir| dir != self.0.path());
    }
}

/// Makes SIGINT, SIGTERM and SIGHUP remove all scratch directories and end the program. The kernel kills its children
/// (`child`).
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
                // Repeat if files were created meanwhile.
                while std::fs::remove_dir_all(dir)
                    .is_err_and(|e| e.kind() == io::ErrorKind::DirectoryNotEmpty)
                {}
            }
            std::process::exit(130);
        })
    });
    watched.recv().map_err(io::Error::other)?.map_err(io::Error::from)
}
