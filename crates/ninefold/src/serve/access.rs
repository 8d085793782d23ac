//! The access log of browsers: lines to a file, by a thread of its own.
//!
//! Always holds: nobody waits for the disk; if it is so slow that [`LINES`] lines wait, what comes then is left out,
//! and the log of the program says how much. After SIGHUP the file is opened again by its name, as programs expect
//! that rename logs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use anyhow::{Context, Result};
use nine_gate::http::Log;

/// Lines that wait.
const LINES: usize = 10_000;
/// So long a line waits for others before it is written.
const GATHER: Duration = Duration::from_millis(200);

/// See the module.
pub struct Access {
    lines: SyncSender<String>,
    lost: Arc<AtomicU64>,
    again: Arc<AtomicBool>,
}

impl Access {
    /// Into this file, which is made if it is not there; `-`: the standard error.
    pub fn open(path: &Path) -> Result<Arc<Self>> {
        let file = opened(path).with_context(|| path.display().to_string())?;
        let (lines, come) = sync_channel(LINES);
        let (lost, again) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let writer = Writer { path: path.into(), come, lost: lost.clone(), again: again.clone() };
        std::thread::Builder::new().name("access log".into()).spawn(move || writer.run(file))?;
        Ok(Arc::new(Self { lines, lost, again }))
    }

    /// What takes the lines.
    pub fn log(self: &Arc<Self>) -> Log {
        let access = self.clone();
        Arc::new(move |entry| {
            if access.lines.try_send(entry.text()).is_err() {
                access.lost.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// The file has another name by now.
    pub fn reopen(&self) {
        self.again.store(true, Ordering::Relaxed);
    }
}

fn opened(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    Ok(match path.to_str() {
        Some("-") => Box::new(io::stderr()),
        _ => Box::new(File::options().create(true).append(true).open(path)?),
    })
}

struct Writer {
    path: PathBuf,
    come: Receiver<String>,
    lost: Arc<AtomicU64>,
    again: Arc<AtomicBool>,
}

impl Writer {
    fn run(self, file: Box<dyn Write + Send>) {
        let mut file = BufWriter::new(file);
        // Ends with the program.
        while let Ok(line) = self.come.recv() {
            if self.again.swap(false, Ordering::Relaxed) {
                match opened(&self.path) {
                    Ok(other) => file = BufWriter::new(other),
                    Err(error) => tracing::error!("{}: the old file stays: {error}", self.path.display()),
                }
            }
            let mut written = file.write_all(line.as_bytes());
            while let Ok(line) = self.come.recv_timeout(GATHER) {
                written = written.and_then(|()| file.write_all(line.as_bytes()));
            }
            if let Err(error) = written.and_then(|()| file.flush()) {
                tracing::error!("{}: {error}", self.path.display());
            }
            let lost = self.lost.swap(0, Ordering::Relaxed);
            if lost > 0 {
                tracing::warn!(lost, "{}: lines were left out, the disk is too slow", self.path.display());
            }
        }
    }
}
