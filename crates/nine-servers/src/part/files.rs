//! The open files of a session. Each holds a reference to it.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use bytes::Bytes;
use nine_io::server::ReqId;
use nine_io::synth::{Ask, Handle, Opening};
use nine_proto::{Errno, Error, Result};

use super::session::{self, PartSession, WordListKind};

/// A counted open of a session.
pub(super) struct SessionOpen(Arc<PartSession>);

impl SessionOpen {
    /// Wraps a session; this open is counted already.
    pub(super) fn of(session: Arc<PartSession>) -> Self {
        Self(session)
    }
}

impl Drop for SessionOpen {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// An open `ctl` or `clone`.
pub(super) struct SessionCtlFile {
    number: Bytes,
    session: SessionOpen,
    /// It was opened by the session's key.
    has_key: bool,
}

impl SessionCtlFile {
    pub(super) fn new(session: SessionOpen, has_key: bool) -> Self {
        Self { number: format!("{}\n", session.0.number).into(), session, has_key }
    }
}

impl Handle for SessionCtlFile {
    fn read(&self, ask: Ask) {
        ask.give_from(&self.number);
    }

    fn write(&self, ask: Ask) {
        self.session.0.control(ask, self.has_key);
    }
}

/// An open `argv` or `env`.
pub(super) struct WordListFile(pub(super) SessionOpen, pub(super) WordListKind);

impl Handle for WordListFile {
    fn read(&self, ask: Ask) {
        let words = self.0.0.words(self.1);
        ask.give_from(&words);
    }

    fn write(&self, ask: Ask) {
        self.0.0.write(self.1, ask);
    }
}

/// An open `exec`.
pub(super) struct ExecFile {
    session: SessionOpen,
    /// `None` while it is being closed.
    written: Option<Arc<ProgramUpload>>,
}

/// A program being written.
struct ProgramUpload {
    file: File,
    /// The announced length, if any.
    length: Option<u64>,
    /// The sum of all writes.
    bytes: AtomicU64,
    has_failed: AtomicBool,
}

impl ProgramUpload {
    fn write(&self, ask: &Ask) -> Result<()> {
        let done = session::store(&self.file, self.length, ask.offset, &ask.data);
        match done {
            Ok(()) => drop(self.bytes.fetch_add(ask.data.len() as u64, Ordering::Relaxed)),
            Err(_) => self.has_failed.store(true, Ordering::Relaxed),
        }
        done
    }

    /// Returns whether the program is complete, as far as that is known.
    fn is_whole(&self) -> bool {
        let bytes = self.bytes.load(Ordering::Relaxed);
        let len = |length| self.file.metadata().is_ok_and(|file| file.len() == length);
        // Without an announced length, it is complete if it was written and no write has failed.
        let is_all = self.length.map_or(bytes > 0, |length| bytes == length && len(length));
        is_all && !self.has_failed.load(Ordering::Relaxed)
    }
}

impl ExecFile {
    /// Opens it, on another thread. The first client to open it writes the program.
    pub(super) fn open(session: SessionOpen, opening: Opening) {
        if !opening.flags.writes() || opening.flags.reads() {
            return opening.fail(Error::new(Errno::EACCES, "exec is opened for writing"));
        }
        let length = match session.0.begin_program() {
            Ok(length) => length,
            Err(error) => return opening.fail(error),
        };
        let (shared, number) = (session.0.shared.clone(), session.0.number);
        shared.clone().aside(number, move || match shared.program(number) {
            // If the open was flushed, the handle is dropped here.
            Ok(file) => {
                let (bytes, has_failed) = Default::default();
                let written = Some(Arc::new(ProgramUpload { file, length, bytes, has_failed }));
                drop(opening.opened(Arc::new(Self { session, written })));
            }
            Err(error) => {
                session.0.end_program(false);
                opening.fail(session::error_of(&error));
            }
        });
    }
}

impl Handle for ExecFile {
    fn write(&self, ask: Ask) {
        let Some(written) = self.written.clone() else { return ask.fail(Errno::EBADF.into()) };
        self.session.0.shared.aside(self.session.0.number, move || {
            let done = written.write(&ask);
            // Closed before the answer, since the client may run the program next.
            drop(written);
            ask.done(done);
        });
    }
}

impl Drop for ExecFile {
    fn drop(&mut self) {
        let is_whole = self.written.take().is_some_and(|written| written.is_whole());
        self.session.0.end_program(is_whole);
    }
}

/// An open `stdin`.
pub(super) struct StdinFile(SessionOpen);

impl StdinFile {
    pub(super) fn open(session: SessionOpen) -> Result<Box<dyn Handle>> {
        session.0.open_input()?;
        Ok(Box::new(Self(session)))
    }
}

impl Handle for StdinFile {
    fn write(&self, ask: Ask) {
        match ask.data.is_empty() {
            true => ask.done(Ok(())),
            false => self.0.0.input(ask),
        }
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.0.cancel(id);
        true
    }
}

impl Drop for StdinFile {
    fn drop(&mut self) {
        self.0.0.close_input();
    }
}

/// An open `stdout` or `stderr`.
pub(super) struct OutputFile(pub(super) SessionOpen, pub(super) usize);

impl Handle for OutputFile {
    fn read(&self, ask: Ask) {
        match ask.count {
            0 => ask.give(Bytes::new()),
            _ => self.0.0.output(self.1, ask),
        }
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.0.cancel(id);
        true
    }
}

/// An open `wait`.
pub(super) struct WaitFile(pub(super) SessionOpen);

impl Handle for WaitFile {
    fn read(&self, ask: Ask) {
        self.0.0.wait(ask);
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.0.cancel(id);
        true
    }
}
