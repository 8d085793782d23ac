//! Automatic login at a console: recognises the password prompt and whether the password was accepted.
//!
//! In: output of the console. Out: the password, when the console asks for it; then permission to send lines. A Plan 9
//! console does not confirm a correct password, so silence means success.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nine_net::cec::PROMPT;

use super::terminal;
use crate::serve::token;

/// Progress of a login.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The conversation is not open yet.
    Before,
    /// The console may ask for the password until this time.
    Waits(Duration),
    /// The password was sent; the console may reject it until this time.
    Said(Duration),
    /// Lines may be sent.
    In,
}

/// The state of a login.
pub struct Login {
    stage: Stage,
    /// The password from a file.
    password: Option<String>,
    /// Name of the console, for the prompt.
    name: String,
    /// Recent output in the present stage.
    last: String,
}

impl Login {
    /// `types`: a user at the terminal logs in by hand, unless there is a password file.
    pub fn new(file: Option<&Path>, types: bool, name: &str) -> Result<Self> {
        let first = |file: &Path| -> Result<String> {
            let text = token::private(file, "the password")?;
            let line = text.lines().next().unwrap_or_default();
            ensure!(!line.is_empty(), "{}: there is no password in it", file.display());
            Ok(line.into())
        };
        let password = file.map(first).transpose()?;
        let stage = if types && password.is_none() { Stage::In } else { Stage::Before };
        Ok(Self { stage, password, name: name.into(), last: String::new() })
    }

    /// Starts the login: from now on the console may ask for the password.
    pub fn begin(&mut self, now: Duration) {
        if self.stage == Stage::Before {
            self.stage = Stage::Waits(now + ASKS);
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// Returns the time at which silence completes the present stage.
    pub fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Waits(until) | Stage::Said(until) => Some(until),
            Stage::Before | Stage::In => None,
        }
    }

    /// Completes the login at the deadline: the console did not ask, or did not reject the password.
    pub fn late(&mut self) {
        self.stage = Stage::In;
    }

    /// Returns whether the recent output concerns the password.
    pub fn has_failed(&self) -> bool {
        self.last.contains(PROMPT) || matches!(self.stage, Stage::Said(_))
    }

    /// Processes output of the console. Returns the password if it must be sent now.
    pub async fn heard(&mut self, now: Duration, bytes: &[u8]) -> Result<Option<Vec<u8>>> {
        self.last += &String::from_utf8_lossy(bytes);
        match self.stage {
            Stage::Waits(_) if self.last.ends_with(PROMPT) => {
                let password = match self.password.take() {
                    Some(password) => password,
                    None => {
                        let asked = terminal::ask(&format!("password of {}: ", self.name)).await;
                        asked.context("it wants a password; try --password-file FILE")?
                    }
                };
                self.last.clear();
                self.stage = Stage::Said(now + RIGHT);
                return Ok(Some(format!("{password}\r").into()));
            }
            Stage::Said(_) if self.last.contains("Bad password") => bail!(anyhow!("the password is wrong")),
            Stage::Said(_) if self.last.contains(|c| !matches!(c, '#' | '\r' | '\n')) => {
                self.stage = Stage::In;
                self.last.clear();
            }
            _ => {}
        }
        // A prompt is short, so only the end of the output is needed.
        let from = self.last.len().saturating_sub(64);
        self.last = self.last.split_off(self.last.ceil_char_boundary(from));
        if self.last.ends_with("> ") {
            self.last.clear();
        }
        Ok(None)
    }
}

/// Time that a console has to ask for the password.
const ASKS: Duration = Duration::from_secs(2);
/// Time that a console has to reject a password.
const RIGHT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that accepts late cannot ask before it has accepted.
    #[test]
    fn a_console_has_time_to_ask_from_when_it_is_open() {
        let opened = Duration::from_secs(9);
        let mut login = Login::new(None, false, "fs").unwrap();
        assert_eq!((login.stage(), login.deadline()), (Stage::Before, None));
        login.begin(opened);
        assert_eq!(login.deadline(), Some(opened + ASKS));
        login.late();
        login.begin(opened);
        assert_eq!(login.stage(), Stage::In);
        let mut person = Login::new(None, true, "fs").unwrap();
        person.begin(opened);
        assert_eq!(person.stage(), Stage::In);
    }
}
