//! `top`: the activity of a running server, sampled repeatedly.
//!
//! In: /mux/load and /mux/clients; keys. Out: a screen, or tables, or JSON objects. If the server goes away, the screen
//! shows that, and the server is tried again.

mod draw;
mod seen;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result};
use futures_util::future::{Either, select};
use nine_io::client::{Error, File};
use nine_net::{Env, rt};
use nine_proto::Errno;
use ratatui::DefaultTerminal;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cli;
use crate::config::{Config, Remote};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::Output;
use draw::{Around, draw, tables};
use seen::Look;

/// Interval of checks for keys.
const KEYS: Duration = Duration::from_millis(50);
/// Interval of attempts to reach a lost server.
const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: cli::Top, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let place = Place::parse(args.addr.as_deref().unwrap_or(OsStr::new("/")), &remote)?;
    let delay = Duration::from_secs_f64(args.delay);
    let is_screen = !args.once && !args.json && std::io::stdout().is_terminal();
    dial::run_tidy(remote.clone(), true, async |sessions| {
        let asked = Asked { env: sessions.env(), remote, place, mux: None };
        match is_screen {
            true => screen(asked, sessions, delay).await?,
            false => lines(asked, sessions, delay, &args).await?,
        }
        Ok(Tally::default())
    })
}

/// The observed server.
struct Asked {
    env: rt::Real,
    remote: Remote,
    place: Place,
    /// The directory of its files, while it is connected.
    mux: Option<(File, Sessions)>,
}

impl Asked {
    async fn look(&mut self, sessions: Option<Sessions>) -> Result<Look> {
        if self.mux.is_none() {
            let sessions = sessions.unwrap_or_else(|| Sessions::new(self.remote.clone(), self.env));
            let dir = super::mux_files(&sessions, &self.place).await?;
            self.mux = Some((dir, sessions));
        }
        let (mux, _) = self.mux.as_ref().expect("it is there now");
        let looked = Look::at(mux, self.env.now()).await;
        if looked.is_err() {
            self.mux = None;
        }
        looked.map_err(|error| match is(&error, Errno::ENOENT) {
            true => error.context("this server tells no load"),
            false => error,
        })
    }
}

async fn lines(mut asked: Asked, sessions: Sessions, delay: Duration, args: &cli::Top) -> Result<()> {
    let env = asked.env;
    let mut out = Output::new();
    let mut before = asked.look(Some(sessions)).await?;
    loop {
        env.sleep_until(env.now() + delay).await;
        let now = asked.look(None).await?;
        let seen = now.since(&before);
        match args.json {
            true => out.json(&seen.json())?,
            false => out.print(tables(&seen))?,
        }
        out.flush()?;
        if args.once {
            return Ok(());
        }
        out.print(if args.json { "" } else { "\n" })?;
        before = now;
    }
}

async fn screen(mut asked: Asked, sessions: Sessions, delay: Duration) -> Result<()> {
    // The first look must succeed; only a server that was there before is retried.
    let mut before = asked.look(Some(sessions)).await?;
    let (env, address) = (asked.env, asked.place.addr.to_string());
    let mut terminal = Screen::begin()?;
    let mut seen = before.since(&before);
    let (mut away, mut is_paused) = (None, false);
    let mut next = env.now() + delay.min(AGAIN);
    loop {
        let around = Around { address: &address, away: away.as_deref(), is_paused };
        terminal.0.draw(|frame| draw(frame, &seen, &around)).context("the terminal")?;
        let drawn = terminal.0.size().context("the terminal")?;
        loop {
            match key()? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Pause) => is_paused = !is_paused,
                Some(Key::Other) => {}
                None if terminal.0.size().context("the terminal")? != drawn => {}
                None if env.now() < next || is_paused => {
                    env.sleep_until(env.now() + KEYS).await;
                    continue;
                }
                None => {
                    let looked = or_quit(env, asked.look(None), &mut is_paused).await?;
                    let Some(looked) = looked else { return Ok(()) };
                    away = looked.as_ref().err().map(|error| format!("{error:#}"));
                    if let Ok(now) = looked {
                        seen = now.since(&before);
                        before = now;
                    }
                    next = env.now() + if away.is_some() { AGAIN } else { delay };
                }
            }
            break;
        }
    }
}

/// Awaits a future, unless the user quits first: the server may be silent.
async fn or_quit<T>(env: rt::Real, what: impl Future<Output = T>, is_paused: &mut bool) -> Result<Option<T>> {
    let mut what = pin!(what);
    loop {
        match select(what.as_mut(), env.sleep_until(env.now() + KEYS)).await {
            Either::Left((done, _)) => return Ok(Some(done)),
            Either::Right(_) => match key()? {
                Some(Key::Quit) => return Ok(None),
                Some(Key::Pause) => *is_paused = !*is_paused,
                _ => {}
            },
        }
    }
}

fn is(error: &anyhow::Error, errno: Errno) -> bool {
    error.downcast_ref().is_some_and(|error: &Error| error.errno() == errno)
}

/// The terminal in screen mode; restored on drop.
struct Screen(DefaultTerminal);

impl Screen {
    fn begin() -> Result<Self> {
        Ok(Self(ratatui::try_init().context("the terminal")?))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = ratatui::try_restore();
    }
}

/// A user's key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Key {
    Quit,
    Pause,
    Other,
}

/// Returns the next key, if any. Reads the bytes itself, because crossterm loses a key that arrives together with a
/// signal.
fn key() -> Result<Option<Key>> {
    let stdin = rustix::stdio::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::IN)];
    match rustix::event::poll(&mut terminal, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
        other => other.context("the terminal")?,
    };
    let mut bytes = [0; 64];
    match rustix::io::read(stdin, &mut bytes) {
        Ok(n) => Ok(Some(meant(&bytes[..n]))),
        // The terminal is gone.
        Err(_) => Ok(Some(Key::Quit)),
    }
}

/// Interprets bytes from a terminal; no bytes mean that the terminal is gone.
fn meant(bytes: &[u8]) -> Key {
    const CTRL_C: u8 = 3;
    const CTRL_D: u8 = 4;
    const ESC: u8 = 0x1b;
    match bytes {
        [] | [ESC] => Key::Quit,
        // An escape sequence, of an arrow key for instance.
        [ESC, ..] => Key::Other,
        _ if bytes.iter().any(|byte| matches!(*byte, b'q' | CTRL_C | CTRL_D)) => Key::Quit,
        _ if bytes.iter().filter(|byte| matches!(**byte, b' ' | b'p')).count() % 2 == 1 => Key::Pause,
        _ => Key::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_mean_what_the_screen_says() {
        for (bytes, key) in [
            (&b"q"[..], Key::Quit),
            (b"\x03", Key::Quit),
            (b"\x1b", Key::Quit),
            (b"", Key::Quit),
            (b" ", Key::Pause),
            (b"  ", Key::Other),
            (b" q", Key::Quit),
            (b"\x1b[A", Key::Other),
            (b"x\xff", Key::Other),
        ] {
            assert_eq!(meant(bytes), key, "{bytes:?}");
        }
    }
}
