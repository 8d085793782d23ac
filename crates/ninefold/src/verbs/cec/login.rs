//! Who logs in where nobody types: when the password is asked for, whether it was right.
//!
//! In: what the console says. Out: the password, when it is due; that lines may be sent. A console of Plan 9's says
//! nothing to a right password, so silence means that it was.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use nine_net::cec::PROMPT;

use super::terminal;
use crate::serve::token;

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The conversation is not open.
    Before,
    /// The password may be asked for until then.
    Waits(Duration),
    /// It was said, and would be wrong until then.
    Said(Duration),
    /// Lines are sent.
    In,
}

/// See the module.
pub struct Login {
    stage: Stage,
    /// The one of a file.
    password: Option<String>,
    /// What it is for.
    name: String,
    /// What was said last, in the present stage.
    last: String,
}

impl Login {
    /// `types`: a person sits at the terminal, who logs in unless there is a file.
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

    /// The conversation is open: from now on the console may ask.
    pub fn begin(&mut self, now: Duration) {
        if self.stage == Stage::Before {
            self.stage = Stage::Waits(now + ASKS);
        }
    }

    pub fn stage(&self) -> Stage {
        self.stage
    }

    /// When silence means something.
    pub fn deadline(&self) -> Option<Duration> {
        match self.stage {
            Stage::Waits(until) | Stage::Said(until) => Some(until),
            Stage::Before | Stage::In => None,
        }
    }

    /// It has come: nothing was asked for, or nothing was said against it.
    pub fn late(&mut self) {
        self.stage = Stage::In;
    }

    /// The last that was said is about the password.
    pub fn has_failed(&self) -> bool {
        self.last.contains(PROMPT) || matches!(self.stage, Stage::Said(_))
    }

    /// The console has said something: the password, if it is to be sent now.
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
        // A prompt is short.
        let from = self.last.len().saturating_sub(64);
        self.last = self.last.split_off(self.last.ceil_char_boundary(from));
        if self.last.ends_with("> ") {
            self.last.clear();
        }
        Ok(None)
    }
}

/// How long a console may take to ask.
const ASKS: Duration = Duration::from_secs(2);
/// How long one may take to say that a password is wrong.
const RIGHT: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that agrees after many questions has asked for nothing before.
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
