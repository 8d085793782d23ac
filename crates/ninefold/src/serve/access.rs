//! The access log of browsers, and the audit log: lines to a file, written by a thread of its own.
//!
//! Always holds: no caller waits for the disk. If [`LINES`] lines or [`BYTES`] bytes are waiting, further lines are
//! dropped. The program's log, and the audit log itself, report how many. After SIGHUP the file is opened again by its
//! name, as log rotation expects. The program ends when all lines are written, but after [`PATIENCE`] at the latest.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, channel, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use nine_gate::http::Log;
use rustix::fs::OFlags;

use crate::log::{self, audit::Lines};

/// Limit of waiting lines.
const LINES: usize = 4096;
/// Limit of their bytes.
const BYTES: usize = 4 << 20;
/// Bytes that are collected for one write.
const AT_ONCE: usize = 64 << 10;
/// Longest time that a line waits for others, to be written together.
const GATHER: Duration = Duration::from_millis(200);
/// Longest wait at shutdown for a disk that does not respond.
const PATIENCE: Duration = Duration::from_secs(2);

/// A log file and its writer thread.
pub struct Access {
    lines: SyncSender<Line>,
    state: Arc<State>,
    /// Disconnected when the writer thread has ended.
    ended: Receiver<()>,
}

/// A line to write; `None` makes the writer check the state.
type Line = Option<String>;

#[derive(Default)]
struct State {
    /// Bytes that wait to be written.
    waiting: AtomicUsize,
    lost: AtomicU64,
    again: AtomicBool,
    over: AtomicBool,
}

impl Access {
    /// Logs to this file, which is created if it does not exist; `-` is the standard error.
    pub fn open(path: &Path) -> Result<Self> {
        Self::begin(path, |_| None)
    }

    /// Like [`Access::open`], for the audit log: all later audit events go to this file.
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

    /// Returns a log that adds lines to the file.
    pub fn log(&self) -> Log {
        let lines = self.lines();
        Arc::new(move |entry| lines(entry.text()))
    }

    fn lines(&self) -> Lines {
        let (lines, state) = (self.lines.clone(), self.state.clone());
        Arc::new(move |line| {
            let bytes = line.len();
            let fits = state.waiting.fetch_add(bytes, Ordering::Relaxed) + bytes <= BYTES;
            if !fits || lines.try_send(Some(line)).is_err() {
                state.waiting.fetch_sub(bytes, Ordering::Relaxed);
                state.lost.fetch_add(1, Ordering::Relaxed);
            }
        })
    }

    /// Opens the file again by its name, after a rename.
    pub fn reopen(&self) {
        self.state.again.store(true, Ordering::Release);
        let _ = self.lines.try_send(None);
    }
}

impl Drop for Access {
    /// Waits until the writer has written all lines, but at most [`PATIENCE`].
    fn drop(&mut self) {
        self.state.over.store(true, Ordering::Release);
        // If the channel is full, the writer has lines to take and sees the state after them.
        let _ = self.lines.try_send(None);
        if self.ended.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!("the disk of a log takes nothing: its last lines are left out");
        }
    }
}

/// Opens a log file. Nonblocking, so that neither the open nor a write can wait for the reader of a pipe.
fn opened(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    if path.to_str() == Some("-") {
        return Ok(Box::new(io::stderr()));
    }
    let mut options = File::options();
    options.create(true).append(true).mode(0o640).custom_flags(OFlags::NONBLOCK.bits() as i32);
    let file = options.open(path)?;
    let kind = file.metadata()?.file_type();
    if !kind.is_file() && !kind.is_char_device() {
        let due = "a regular file is due, or a terminal; `-` is the standard error";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, due));
    }
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    Ok(Box::new(file))
}

struct Writer {
    path: PathBuf,
    come: Receiver<Line>,
    /// Formats the line that reports lost lines in the file itself, if it has one.
    tell_lost: fn(u64) -> Option<String>,
    state: Arc<State>,
    _ends: std::sync::mpsc::Sender<()>,
}

impl Writer {
    fn run(self, file: Box<dyn Write + Send>) {
        let mut out = Out::new(file);
        let mut fails = false;
        while let Some(line) = self.next() {
            match self.gather(&mut out, line) {
                Ok(()) => fails = false,
                // Report an error once, until a write succeeds again.
                Err(error) if !std::mem::replace(&mut fails, true) => {
                    tracing::error!("{}: {error}", self.path.display());
                }
                Err(_) => {}
            }
            if self.state.again.swap(false, Ordering::Acquire) {
                match opened(&self.path) {
                    Ok(other) => out = Out::new(other),
                    Err(error) => tracing::error!("{}: the old file stays: {error}", self.path.display()),
                }
            }
            if !fails {
                self.tell_lost(&mut out);
            }
        }
        self.tell_lost(&mut out);
    }

    fn tell_lost(&self, out: &mut Out) {
        let lost = self.state.lost.swap(0, Ordering::Relaxed);
        if lost > 0 {
            if let Some(line) = (self.tell_lost)(lost) {
                out.text.extend(line.as_bytes());
                // If this write fails, the warning below still reports the loss.
                let _ = out.flush();
            }
            tracing::warn!(lost, "{}: lines were left out: the disk is slow or full", self.path.display());
        }
    }

    /// Returns the next line, or `None` when all lines are written and the log is closed.
    fn next(&self) -> Option<Line> {
        match self.come.try_recv() {
            Ok(line) => Some(line),
            Err(_) if self.state.over.load(Ordering::Acquire) => None,
            Err(_) => self.come.recv().ok(),
        }
    }

    /// Writes this line and those that arrive within [`GATHER`].
    fn gather(&self, out: &mut Out, line: Line) -> io::Result<()> {
        let until = Instant::now() + GATHER;
        let mut line = line;
        while let Some(text) = line {
            self.state.waiting.fetch_sub(text.len(), Ordering::Relaxed);
            out.text.extend(text.as_bytes());
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || out.text.len() >= AT_ONCE || self.state.again.load(Ordering::Acquire) {
                break;
            }
            line = self.come.recv_timeout(left).ok().flatten();
        }
        out.flush().map_err(|(error, lost)| {
            self.state.lost.fetch_add(lost, Ordering::Relaxed);
            error
        })
    }
}

/// A file, and the lines to write to it next.
struct Out {
    file: Box<dyn Write + Send>,
    text: Vec<u8>,
    /// The last write ended in the middle of a line.
    is_half: bool,
}

impl Out {
    fn new(file: Box<dyn Write + Send>) -> Self {
        Self { file, text: Vec::new(), is_half: false }
    }

    /// Writes the lines, beginning on a new line of the file. On an error, returns how many lines are missing or
    /// incomplete; they are dropped.
    fn flush(&mut self) -> Result<(), (io::Error, u64)> {
        let mut done = 0;
        let written = self.write(&mut done);
        if let Some(last) = self.text[..done].last() {
            self.is_half = *last != b'\n';
        }
        let lost = self.text[done..].iter().filter(|&&byte| byte == b'\n').count() as u64;
        self.text.clear();
        written.map_err(|error| (error, lost))
    }

    fn write(&mut self, done: &mut usize) -> io::Result<()> {
        if self.is_half {
            self.file.write_all(b"\n")?;
            self.is_half = false;
        }
        while *done < self.text.len() {
            match self.file.write(&self.text[*done..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => *done += n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Accepts as many bytes as it has room for.
    #[derive(Clone, Default)]
    struct Disk(Arc<Mutex<(Vec<u8>, usize)>>);

    impl Disk {
        fn has(&self, room: usize) -> String {
            let mut disk = self.0.lock().unwrap();
            disk.1 = room;
            String::from_utf8(std::mem::take(&mut disk.0)).unwrap()
        }
    }

    impl Write for Disk {
        fn write(&mut self, text: &[u8]) -> io::Result<usize> {
            let (there, room) = &mut *self.0.lock().unwrap();
            let n = text.len().min(*room);
            if n == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            there.extend(&text[..n]);
            *room -= n;
            Ok(n)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_that_a_full_disk_has_not_taken_counts_and_none_is_glued_to_half_of_another() {
        let disk = Disk::default();
        let mut out = Out::new(Box::new(disk.clone()));
        let mut lost = |room, text: &str| {
            disk.has(room);
            out.text.extend(text.as_bytes());
            let lost = out.flush().map_or_else(|(_, lost)| lost, |()| 0);
            (lost, disk.has(0))
        };
        assert_eq!(lost(100, "one\ntwo\n"), (0, "one\ntwo\n".into()));
        assert_eq!(lost(6, "one\ntwo\nthree\n"), (2, "one\ntw".into()));
        assert_eq!(lost(0, "four\nfive\n"), (2, String::new()));
        assert_eq!(lost(100, "six\n"), (0, "\nsix\n".into()));
        // No part of a line was written.
        assert_eq!(lost(4, "one\ntwo\n"), (1, "one\n".into()));
        assert_eq!(lost(100, "six\n"), (0, "six\n".into()));
    }

    #[test]
    fn what_waits_for_a_disk_has_as_many_bytes_as_may_wait_and_what_is_over_counts() {
        let (lines, come) = sync_channel(LINES);
        let (_ends, ended) = channel();
        let state = Arc::<State>::default();
        // A drop would wait for the writer's end.
        let access = std::mem::ManuallyDrop::new(Access { lines, state: state.clone(), ended });
        let (put, line) = (access.lines(), "x".repeat(1 << 20));
        (0..6).for_each(|_| put(line.clone()));
        assert_eq!((come.try_iter().count(), state.lost.load(Ordering::Relaxed)), (4, 2));
        assert_eq!(state.waiting.load(Ordering::Relaxed), BYTES);
    }

    #[test]
    fn a_pipe_is_no_log_and_nobody_waits_for_who_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let (at, mode) = (rustix::fs::CWD, rustix::fs::Mode::from(0o600));
        rustix::fs::mknodat(at, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert!(opened(&pipe).is_err());
        let _reader = File::options().read(true).write(true).open(&pipe).unwrap();
        let error = opened(&pipe).err().unwrap().to_string();
        assert!(error.contains("a regular file is due"), "{error}");
        assert!(opened(Path::new("/dev/null")).is_ok() && opened(&dir.path().join("new")).is_ok());
    }
}
