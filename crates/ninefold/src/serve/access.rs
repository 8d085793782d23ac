//! The access log of browsers, and the audit: lines to a file, by a thread of its own.
//!
//! Always holds: nobody waits for the disk; if it is so slow that [`LINES`] lines wait, what comes then is left out,
//! and the log of the program, and an audit itself, says how much. After SIGHUP the file is opened again by its name,
//! as programs expect that rename logs. The program ends when all lines are written, or [`PATIENCE`] later.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nine_gate::http::Log;

use crate::log::{self, audit::Lines};

/// Lines that wait.
const LINES: usize = 4096;
/// So long a line waits for others before it is written.
const GATHER: Duration = Duration::from_millis(200);
/// For a disk that takes nothing, at the end.
const PATIENCE: Duration = Duration::from_secs(2);

/// See the module.
pub struct Access {
    lines: SyncSender<Line>,
    state: Arc<State>,
    /// Closed when the writer has ended.
    ended: Receiver<()>,
}

/// What is to be written; `None`: look at the state.
type Line = Option<String>;

#[derive(Default)]
struct State {
    lost: AtomicU64,
    again: AtomicBool,
    over: AtomicBool,
}

impl Access {
    /// Into this file, which is made if it is not there; `-`: the standard error.
    pub fn open(path: &Path) -> Result<Self> {
        Self::begin(path, |_| None)
    }

    /// The same for the audit, which goes there from now on.
    pub fn audit(path: &Path) -> Result<Self> {
        let audit = Self::begin(path, |lost| Some(log::audit::line("lost", "lines", lost)))?;
        log::audit::to(audit.lines());
        Ok(audit)
    }

    fn begin(path: &Path, tell_lost: fn(u64) -> Option<String>) -> Result<Self> {
        let file = opened(path).with_context(|| path.display().to_string())?;
        let (lines, come) = sync_channel(LINES);
        let (ends, ended) = channel();
        let state = Arc::<State>::default();
        let writer = Writer { path: path.into(), come, tell_lost, state: state.clone(), _ends: ends };
        std::thread::Builder::new().name("lines".into()).spawn(move || writer.run(file))?;
        Ok(Self { lines, state, ended })
    }

    /// What takes the lines.
    pub fn log(&self) -> Log {
        let lines = self.lines();
        Arc::new(move |entry| lines(entry.text()))
    }

    fn lines(&self) -> Lines {
        let (lines, state) = (self.lines.clone(), self.state.clone());
        Arc::new(move |line| {
            if lines.try_send(Some(line)).is_err() {
                state.lost.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// The file has another name by now.
    pub fn reopen(&self) {
        self.state.again.store(true, Ordering::Release);
        let _ = self.lines.try_send(None);
    }
}

impl Drop for Access {
    /// Nothing more comes: waits until what has come is written.
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Release);
        // Where there is no room for it the writer has lines to come by.
        let _ = self.lines.try_send(None);
        if self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk of a log takes nothing: its last lines are left out");
        }
    }
}

fn opened(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    Ok(match path.to_str() {
        Some("-") => Box::new(io::stderr()),
        _ => Box::new(File::options().create(true).append(true).mode(0o640).open(path)?),
    })
}

struct Writer {
    path: PathBuf,
    come: Receiver<Line>,
    /// What is said there of lines that were left out.
    tell_lost: fn(u64) -> Option<String>,
    state: Arc<State>,
    _ends: std::sync::mpsc::Sender<()>,
}

impl Writer {
    fn run(self, file: Box<dyn Write + Send>) {
        let mut file = BufWriter::new(file);
        let mut fails = false;
        while let Some(line) = self.next() {
            match self.gather(&mut file, line) {
                Ok(()) => fails = false,
                // Once, until it goes well again.
                Err(error) => {
                    self.state.lost.fetch_add(1, Ordering::Relaxed);
                    if !std::mem::replace(&mut fails, true) {
                        tracing::error!("{}: {error}", self.path.display());
                    }
                    // What it has not taken is not tried again.
                    file = BufWriter::new(file.into_parts().0);
                }
            }
            if self.state.again.swap(false, Ordering::Acquire) {
                match opened(&self.path) {
                    Ok(other) => file = BufWriter::new(other),
                    Err(error) => tracing::error!("{}: the old file stays: {error}", self.path.display()),
                }
            }
            if !fails {
                self.tell_lost(&mut file);
            }
        }
        self.tell_lost(&mut file);
    }

    fn tell_lost(&self, file: &mut impl Write) {
        let lost = self.state.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            if let Some(line) = (self.tell_lost)(lost) {
                // Where it cannot be said there, it is said here.
                let _ = file.write_all(line.as_bytes()).and_then(|()| file.flush());
            }
            tracing::warn!(lost, "{}: lines were left out: the disk is slow or full", self.path.display());
        }
    }

    /// `None`: all is written, and nothing more comes.
    fn next(&self) -> Option<Line> {
        match self.come.try_recv() {
            Ok(line) => Some(line),
            Err(_) if self.state.over.load(Ordering::Acquire) => None,
            Err(_) => self.come.recv().ok(),
        }
    }

    /// Writes it and what comes in the time.
    fn gather(&self, file: &mut impl Write, line: Line) -> io::Result<()> {
        let until = Instant::now() + GATHER;
        let mut line = line;
        while let Some(text) = line {
            file.write_all(text.as_bytes())?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.state.again.load(Ordering::Acquire) {
                break;
            }
            line = self.come.recv_timeout(left).ok().flatten();
        }
        file.flush()
    }
}
