//! The open files of a session. Each keeps it.

use std::fs::File;
use std::sync::Arc;

use bytes::Bytes;
use nine_io::server::ReqId;
use nine_io::synth::{Ask, Handle, Opening};
use nine_proto::{Errno, Error, Result};

use super::session::{self, Session, Words};

/// A session that has been opened for this.
pub(super) struct Opened(Arc<Session>);

impl Opened {
    /// Of a session that counts it already.
    pub(super) fn of(session: Arc<Session>) -> Self {
        Self(session)
    }
}

impl Drop for Opened {
    fn drop(&mut self) {
        self.0.closed();
    }
}

/// An open `ctl`, or `clone`.
pub(super) struct Ctl {
    number: Bytes,
    session: Opened,
}

impl Ctl {
    pub(super) fn new(session: Opened) -> Self {
        Self { number: format!("{}\n", session.0.number).into(), session }
    }
}

impl Handle for Ctl {
    fn read(&self, ask: Ask) {
        ask.give_from(&self.number);
    }

    fn write(&self, ask: Ask) {
        self.session.0.control(ask);
    }
}

/// An open `argv` or `env`.
pub(super) struct Text(pub(super) Opened, pub(super) Words);

impl Handle for Text {
    fn read(&self, ask: Ask) {
        let words = self.0.0.words(self.1);
        ask.give_from(&words);
    }

    fn write(&self, ask: Ask) {
        self.0.0.write(self.1, ask);
    }
}

/// An open `exec`.
pub(super) struct Exec {
    session: Opened,
    /// `None`: it is being closed.
    file: Option<Arc<File>>,
}

impl Exec {
    /// Opens it, beside: the first who does writes the program.
    pub(super) fn open(session: Opened, opening: Opening) {
        if !opening.flags.writes() || opening.flags.reads() {
            return opening.fail(Error::new(Errno::EACCES, "exec is opened for writing"));
        }
        if let Err(error) = session.0.begin_program() {
            return opening.fail(error);
        }
        let (shared, number) = (session.0.shared.clone(), session.0.number);
        shared.clone().aside(number, move || match shared.program(number) {
            // Who does not want it any more has dropped it.
            Ok(file) => drop(opening.opened(Arc::new(Self { session, file: Some(Arc::new(file)) }))),
            Err(error) => {
                session.0.end_program(false);
                opening.fail(session::error_of(&error));
            }
        });
    }
}

impl Handle for Exec {
    fn write(&self, ask: Ask) {
        let Some(file) = self.file.clone() else { return ask.fail(Errno::EBADF.into()) };
        self.session.0.shared.aside(self.session.0.number, move || {
            let done = session::store(&file, ask.offset, &ask.data);
            // Closed before it is answered: what comes then may be to run it.
            drop(file);
            ask.done(done);
        });
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        self.file = None;
        self.session.0.end_program(true);
    }
}

/// An open `stdin`.
pub(super) struct Input(Opened);

impl Input {
    pub(super) fn open(session: Opened) -> Result<Box<dyn Handle>> {
        session.0.open_input()?;
        Ok(Box::new(Self(session)))
    }
}

impl Handle for Input {
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

impl Drop for Input {
    fn drop(&mut self) {
        self.0.0.close_input();
    }
}

/// An open `stdout` or `stderr`.
pub(super) struct Output(pub(super) Opened, pub(super) usize);

impl Handle for Output {
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
pub(super) struct Wait(pub(super) Opened);

impl Handle for Wait {
    fn read(&self, ask: Ask) {
        self.0.0.wait(ask);
    }

    fn cancel(&self, id: ReqId) -> bool {
        self.0.0.cancel(id);
        true
    }
}
