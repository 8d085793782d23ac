//! How a verb ends: its exit status, and what it says when something failed: what, on what, and what to try.
//!
//! In: the verb's result. Out: lines on the standard error, `ninefold: VERB: WHAT: WHY`; status 0, 1, what a shell sees
//! when a signal has ended a program (128 and its number), or 141 when the reader of our standard output has gone (as
//! with SIGPIPE), which is said to nobody.

use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use nine_io::client::Error as ClientError;
use nine_net::rt::Signal;
use nine_proto::{Errno, WireError};

use tracing::Level;

use crate::log;
use crate::output::calm;

/// What a verb comes to when it has not failed as a whole: how many of its operands did.
#[derive(Debug, Default)]
pub struct Tally {
    failed: usize,
}

impl Tally {
    /// One operand failed: says so and goes on.
    pub fn fail(&mut self, what: impl fmt::Display, error: impl Into<anyhow::Error>) {
        say(&error.into().context(what.to_string()));
        self.failed += 1;
    }

    /// The same of an error that names its operand already.
    pub fn fail_there(&mut self, error: anyhow::Error) {
        say(&error);
        self.failed += 1;
    }

    /// How many have failed so far.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Failures that have been told already.
    pub fn add(&mut self, failed: usize) {
        self.failed += failed;
    }

    /// Goes on after a failure of one operand, but not after one that all others would share.
    pub fn check<T>(
        &mut self,
        what: impl fmt::Display,
        result: anyhow::Result<T>,
    ) -> anyhow::Result<Option<T>> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error) if is_final(&error) => Err(error),
            Err(error) => {
                self.fail(what, error);
                Ok(None)
            }
        }
    }
}

/// The program's exit status, once the failure is told.
pub fn status(verb: &'static str, result: anyhow::Result<Tally>) -> ExitCode {
    let _ = VERB.set(verb);
    match result {
        Ok(Tally { failed: 0 }) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) if error.downcast_ref::<Stdout>().is_some_and(Stdout::is_gone) => ExitCode::from(141),
        Err(error) if error.is::<nine_check::Unusable>() => {
            say(&error);
            ExitCode::from(2)
        }
        Err(error) => {
            let program = error.downcast_ref::<Program>();
            if program.is_none_or(|program| program.error.is_some()) {
                say(&error);
            }
            let status = program.map(|program| program.status);
            let status = status.or(error.downcast_ref::<Interrupted>().map(Interrupted::status));
            status.map_or(ExitCode::FAILURE, ExitCode::from)
        }
    }
}

/// How an alert of TLS begins, read as the size of a message: type 21, version 3.
const TLS_ALERT: u32 = 0x0315;

/// Names the verb for the lines of [`say`].
pub fn verb(name: &'static str) {
    let _ = VERB.set(name);
}

/// One line that is no failure.
pub fn note(text: impl fmt::Display) {
    tell(Level::WARN, text);
}

fn tell(level: Level, text: impl fmt::Display) {
    let verb = VERB.get().copied().unwrap_or_default();
    // A server's words may be anything.
    let text = calm(&text.to_string());
    let line = || eprint!("{}", log::lines(level, &format!("ninefold: {verb}: {text}\n")));
    match &*BAR.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(bar) => bar.suspend(line),
        None => line(),
    }
}

/// A bar that lines must not tear; the one before is over.
pub fn beside(bar: ProgressBar) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

fn say(error: &anyhow::Error) {
    // A reason of several lines (a configuration file's) stays as it is.
    let reasons: Vec<String> = error.chain().map(reason).collect();
    let text = without_echo(&reasons).join(": ");
    match hint(error) {
        Some(hint) => tell(Level::ERROR, format_args!("{}\n  {hint}", text.trim_end())),
        None => tell(Level::ERROR, text.trim_end()),
    }
}

/// Each name once: causes whose text the one before has already said are left out, and so is a name with which its
/// cause begins.
fn without_echo(reasons: &[String]) -> Vec<&str> {
    let mut said: Vec<&str> = Vec::new();
    for reason in reasons {
        // This one begins with the one before, and so says both.
        if let Some(last) = said.last()
            && reason.strip_prefix(last).is_some_and(|rest| rest.starts_with(": "))
        {
            said.pop();
        }
        if !said.last().is_some_and(|last| last.ends_with(reason.as_str())) {
            said.push(reason);
        }
    }
    said
}

fn reason(error: &(dyn std::error::Error + 'static)) -> String {
    if let Some(ClientError::Walk { error, .. }) = error.downcast_ref() {
        // The operand has been named; which of its elements is missing says ls.
        return error.to_string();
    }
    plain(&error.to_string()).into()
}

/// Without the number that Rust puts behind errors of the system.
pub fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((said, number)) if number.ends_with(')') => said,
        _ => text,
    }
}

/// What to try.
fn hint(error: &anyhow::Error) -> Option<&'static str> {
    for cause in error.chain() {
        if let Some(dial) = cause.downcast_ref::<Dial>() {
            return dial.hint();
        }
        if let Some(attach) = cause.downcast_ref::<Attach>() {
            return attach.hint();
        }
        if let Some(ClientError::Protocol { error: WireError::Size(size), .. }) = cause.downcast_ref()
            && size & 0xffff == TLS_ALERT
        {
            return Some("It answers with TLS: try 9p+tls://HOST:PORT/ or tls!HOST!PORT.");
        }
        let refused = cause.downcast_ref::<ClientError>().is_some_and(|e| e.errno() == Errno::EROFS);
        if refused && NO_PROOF.load(Ordering::Relaxed) {
            return Some(
                "Over TCP only who shows the token may change files: --token HEX, or 9p://HEX@HOST:PORT/. \
                 `ninefold serve` prints it when it starts.",
            );
        }
    }
    None
}

/// Notes that a server knows nothing of us.
pub fn without_proof() {
    NO_PROOF.store(true, Ordering::Relaxed);
}

/// Whether every other operand would fail the same way.
pub fn is_final(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.is::<Stdout>()
            || cause.is::<Dial>()
            || cause.is::<Attach>()
            || cause.downcast_ref::<ClientError>().is_some_and(ClientError::is_disconnect)
    })
}

/// A server could not be reached.
#[derive(Debug)]
pub struct Dial {
    pub step: Step,
    pub error: io::Error,
}

/// How far we came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Connect,
    Tls,
}

impl Dial {
    fn hint(&self) -> Option<&'static str> {
        match (self.step, self.error.kind()) {
            (Step::Connect, io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
                Some("Is a server running there? `ninefold serve` starts one.")
            }
            (Step::Connect, io::ErrorKind::PermissionDenied) => {
                Some("The socket belongs to another user; `--server ADDR` names another server.")
            }
            (Step::Tls, io::ErrorKind::PermissionDenied) => Some(
                "--ca FILE names the authority of a server's certificate, --pin FINGERPRINT the certificate itself; \
                 --cert and --key are ours.",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(plain(&self.error.to_string()))
    }
}

impl std::error::Error for Dial {}

/// A server does not let us in.
#[derive(Debug)]
pub struct Attach {
    pub peer: String,
    /// We have shown a token.
    pub token: bool,
    pub error: ClientError,
}

impl Attach {
    fn hint(&self) -> Option<&'static str> {
        match (self.error.errno(), self.token) {
            // The server has said what there is to be said.
            (Errno::EACCES, _) if EXPORTS.iter().any(|words| self.error.to_string().contains(words)) => None,
            (Errno::EACCES, true) => {
                Some("The token may be an old one: `ninefold serve` prints it when it starts.")
            }
            (Errno::EACCES, false) => Some(
                "`ninefold serve` prints the token when it starts: --token HEX, or 9p://HEX@HOST:PORT/. Over TLS a \
                 certificate may do: --cert FILE --key FILE.",
            ),
            (Errno::EPERM, _) => Some(
                "The server knows who we are, from the kernel or a certificate; --user can name nobody else.",
            ),
            _ => None,
        }
    }
}

impl fmt::Display for Attach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} does not let us in: {}", self.peer, self.error)
    }
}

impl std::error::Error for Attach {}

/// A signal has ended the verb.
#[derive(Debug)]
pub struct Interrupted(pub Signal);

impl Interrupted {
    /// What shells call a program that a signal ended.
    pub fn status(&self) -> u8 {
        128 + match self.0 {
            Signal::Hangup => 1,
            Signal::Interrupt => 2,
            Signal::Terminate => 15,
        }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// How a program ended that ran here: its status is ours.
#[derive(Debug)]
pub struct Program {
    pub status: u8,
    /// Why it could not be started, which is all that is to be said.
    pub error: Option<String>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.error.as_deref().unwrap_or("the program has ended"))
    }
}

impl std::error::Error for Program {}

/// Our standard output takes no more.
#[derive(Debug)]
pub struct Stdout(pub io::Error);

impl Stdout {
    fn is_gone(&self) -> bool {
        self.0.kind() == io::ErrorKind::BrokenPipe
    }
}

impl fmt::Display for Stdout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "standard output: {}", plain(&self.0.to_string()))
    }
}

impl std::error::Error for Stdout {}

/// How a server says that its exports do not let us attach: another tree would do, or nothing.
const EXPORTS: [&str; 3] = ["the exports of this server", " may not attach to ", "an aname with `.`"];

static VERB: OnceLock<&'static str> = OnceLock::new();
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);
static NO_PROOF: AtomicBool = AtomicBool::new(false);
