//! The end of a verb: its exit status, and the error lines it prints.
//!
//! In: the verb's result. Out: lines on the standard error, `ninefold: VERB: WHAT: WHY`, with a hint where there is
//! one. The exit status is 0, 1, or 128 plus the signal's number as in a shell. If the reader of the standard output is
//! gone, the status is 141 (as with SIGPIPE) and nothing is printed.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use indicatif::ProgressBar;
use nine_io::client::Error as ClientError;
use nine_net::rt::Signal;
use nine_net::{Addr, PORT};
use nine_proto::{Errno, WireError};

use tracing::Level;

use crate::log;
use crate::output::calm;
use crate::serve::url_host;

/// The outcome of a verb that did not fail as a whole: the number of operands that failed.
#[derive(Debug, Default)]
pub struct Tally {
    failed: usize,
}

impl Tally {
    /// Prints the error of one operand and counts it, so that the verb can continue.
    pub fn fail(&mut self, what: impl fmt::Display, error: impl Into<anyhow::Error>) {
        say(&error.into().context(what.to_string()));
        self.failed += 1;
    }

    /// Like [`Tally::fail`], for an error that already names its operand.
    pub fn fail_there(&mut self, error: anyhow::Error) {
        say(&error);
        self.failed += 1;
    }

    /// Returns the number of failed operands so far.
    pub fn failed(&self) -> usize {
        self.failed
    }

    /// Adds failures that were printed elsewhere.
    pub fn add(&mut self, failed: usize) {
        self.failed += failed;
    }

    /// Counts a failure of one operand and continues, unless all other operands would fail the same way.
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

/// Prints the failure, if any, and returns the program's exit status.
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

/// The first bytes of a TLS alert, read as the size of a message: type 21, version 3.
const TLS_ALERT: u32 = 0x0315;

/// Sets the verb's name for all lines of this module.
pub fn verb(name: &'static str) {
    let _ = VERB.set(name);
}

/// Prints one line that is not a failure.
pub fn note(text: impl fmt::Display) {
    tell(Level::WARN, text);
}

fn tell(level: Level, text: impl fmt::Display) {
    let verb = VERB.get().copied().unwrap_or_default();
    // Text from a server may hold any characters.
    let text = calm(&text.to_string());
    let line = || eprint!("{}", log::lines(level, &format!("ninefold: {verb}: {text}\n")));
    match &*BAR.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(bar) => bar.suspend(line),
        None => line(),
    }
}

/// Registers a progress bar that must be suspended while a line is printed. It replaces the previous one, which has
/// finished.
pub fn beside(bar: ProgressBar) {
    *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar);
}

fn say(error: &anyhow::Error) {
    // A reason with several lines (from a configuration file) keeps them.
    let reasons: Vec<String> = error.chain().map(reason).collect();
    let text = without_echo(&reasons).join(": ");
    match hint(error) {
        Some(hint) => tell(Level::ERROR, format_args!("{}\n  {hint}", text.trim_end())),
        None => tell(Level::ERROR, text.trim_end()),
    }
}

/// Removes repeated text from a chain of reasons. A cause is left out if the reason before it ends with the cause's
/// text. A reason is left out if the next one begins with it.
fn without_echo(reasons: &[String]) -> Vec<&str> {
    let mut said: Vec<&str> = Vec::new();
    for reason in reasons {
        // This reason begins with the previous one, so it replaces that one.
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
        // The operand is named already; `ls` shows which of its path elements is missing.
        return error.to_string();
    }
    let text = plain(&error.to_string()).to_owned();
    match error.downcast_ref().map(ClientError::errno) {
        // A copy writes to this machine, too.
        Some(Errno::ENOSPC | Errno::EDQUOT) => text + " (at the server)",
        _ => text,
    }
}

/// Strips the error number that Rust appends to the text of a system error.
pub fn plain(text: &str) -> &str {
    match text.rsplit_once(" (os error ") {
        Some((said, number)) if number.ends_with(')') => said,
        _ => text,
    }
}

/// Returns a hint for the user, if there is one.
fn hint(error: &anyhow::Error) -> Option<Cow<'static, str>> {
    for cause in error.chain() {
        if let Some(dial) = cause.downcast_ref::<Dial>() {
            return dial.hint();
        }
        if let Some(attach) = cause.downcast_ref::<Attach>() {
            return attach.hint().map(Cow::Borrowed);
        }
        if let Some(ClientError::Protocol { error: WireError::Size(size), .. }) = cause.downcast_ref()
            && size & 0xffff == TLS_ALERT
        {
            return Some("It answers with TLS: try 9p+tls://HOST:PORT/ or tls!HOST!PORT.".into());
        }
        let refused = cause.downcast_ref::<ClientError>().is_some_and(|e| e.errno() == Errno::EROFS);
        if refused && NO_PROOF.load(Ordering::Relaxed) {
            return Some(
                "Over TCP only clients with the token may change files: --token HEX, or 9p://HEX@HOST:PORT/. \
                 `ninefold serve` prints it when it starts."
                    .into(),
            );
        }
    }
    None
}

/// Notes that a server got no proof of our identity, for the hint.
pub fn without_proof() {
    NO_PROOF.store(true, Ordering::Relaxed);
}

/// Returns whether every other operand would fail the same way.
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
    /// The dialled address, if it is one of a network.
    pub addr: Option<Addr>,
    pub error: io::Error,
}

/// The step at which a connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Connect,
    Tls,
}

impl Dial {
    fn hint(&self) -> Option<Cow<'static, str>> {
        let kind = self.error.kind();
        if let (Some(Addr::Tcp { host, port: PORT }), io::ErrorKind::ConnectionRefused) = (&self.addr, kind) {
            let hint = format!(
                "Port {PORT} is dialled if the address names none. `ninefold serve` listens at 5640: try \
                 9p://{}:5640/.",
                url_host(host)
            );
            return Some(hint.into());
        }
        let hint = match (self.step, kind) {
            (Step::Connect, io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) => {
                "Is a server running there? `ninefold serve` starts one."
            }
            (Step::Connect, io::ErrorKind::PermissionDenied) => {
                "The socket belongs to another user; `--server ADDR` names another server."
            }
            (Step::Tls, io::ErrorKind::PermissionDenied) => {
                "--ca FILE names the authority of a server's certificate, --pin FINGERPRINT the certificate itself; \
                 --cert and --key are ours."
            }
            _ => return None,
        };
        Some(hint.into())
    }
}

impl fmt::Display for Dial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(plain(&self.error.to_string()))
    }
}

impl std::error::Error for Dial {}

/// A server refused the attach.
#[derive(Debug)]
pub struct Attach {
    pub peer: String,
    /// Whether we presented a token.
    pub token: bool,
    pub error: ClientError,
}

impl Attach {
    fn hint(&self) -> Option<&'static str> {
        match (self.error.errno(), self.token) {
            // The server's own text already gives the reason.
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

/// A signal ended the verb.
#[derive(Debug)]
pub struct Interrupted(pub Signal);

impl Interrupted {
    /// Returns the exit status that shells use for a program ended by this signal.
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

/// The end of a child program: its exit status becomes ours.
#[derive(Debug)]
pub struct Program {
    pub status: u8,
    /// The reason why it could not be started; then this is printed and nothing else.
    pub error: Option<String>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.error.as_deref().unwrap_or("the program has ended"))
    }
}

impl std::error::Error for Program {}

/// Our standard output takes no more data.
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

/// Texts by which a server says that its exports do not allow our attach. Then only another tree may help.
const EXPORTS: [&str; 3] = ["the exports of this server", " may not attach to ", "an aname with `.`"];

static VERB: OnceLock<&'static str> = OnceLock::new();
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);
static NO_PROOF: AtomicBool = AtomicBool::new(false);
