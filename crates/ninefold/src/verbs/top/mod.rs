//! `top`: what goes on in a running server, looked at again and again.
//!
//! In: /mux/load and /mux/clients; keys. Out: a screen, or tables, or JSON objects. A server that goes away is said to
//! be away, and asked again.

mod draw;
mod seen;

use std::ffi::OsStr;
use std::io::IsTerminal;
use std::pin::pin;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use futures_util::future::{Either, select};
use nine_io::client::{Error, File};
use nine_net::{Env, rt};
use nine_proto::Errno;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::cli;
use crate::config::{Config, Remote};
use crate::dial::{self, Sessions};
use crate::fail::Tally;
use crate::operand::Place;
use crate::output::Output;
use draw::{Around, draw, tables};
use seen::Look;

/// Between two looks at the keyboard.
const KEYS: Duration = Duration::from_millis(50);
/// Between two tries to reach a server that has gone.
const AGAIN: Duration = Duration::from_secs(1);

pub fn run(args: cli::Top, config: &Config) -> Result<Tally> {
    let remote = config.remote(&args.remote)?;
    let place = Place::parse(args.addr.as_deref().unwrap_or(OsStr::new("/")), &remote)?.below(b"mux");
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

/// The server that is looked at.
struct Asked {
    env: rt::Real,
    remote: Remote,
    place: Place,
    /// The directory of its files, while it is there.
    mux: Option<(File, Sessions)>,
}

impl Asked {
    async fn look(&mut self, sessions: Option<Sessions>) -> Result<Look> {
        if self.mux.is_none() {
            let sessions = sessions.unwrap_or_else(|| Sessions::new(self.remote.clone(), self.env));
            let dir = match sessions.walk(&self.place, true).await {
                Err(error) if is(&error, Errno::ENOENT) => {
                    bail!("there is no {}: it serves no name space file, or that says nomux", self.place)
                }
                other => other?,
            };
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
    // Who was never there is not waited for.
    let mut before = asked.look(Some(sessions)).await?;
    let (env, address) = (asked.env, asked.place.addr.to_string());
    let mut terminal = Screen::begin()?;
    let mut seen = before.since(&before);
    let (mut away, mut is_paused) = (None, false);
    let mut next = env.now() + delay.min(AGAIN);
    loop {
        let around = Around { address: &address, away: away.as_deref(), is_paused };
        terminal.0.draw(|frame| draw(frame, &seen, &around)).context("the terminal")?;
        loop {
            match key()? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Pause) => is_paused = !is_paused,
                Some(Key::Other) => {}
                None if env.now() < next || is_paused => {
                    env.sleep_until(env.now() + KEYS).await;
                    continue;
                }
                None => {
                    let Some(looked) = or_quit(env, asked.look(None)).await? else { return Ok(()) };
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

/// What comes of it, unless somebody wants to quit first: a server may be silent.
async fn or_quit<T>(env: rt::Real, what: impl Future<Output = T>) -> Result<Option<T>> {
    let mut what = pin!(what);
    loop {
        match select(what.as_mut(), env.sleep_until(env.now() + KEYS)).await {
            Either::Left((done, _)) => return Ok(Some(done)),
            Either::Right(_) if matches!(key()?, Some(Key::Quit)) => return Ok(None),
            Either::Right(_) => {}
        }
    }
}

fn is(error: &anyhow::Error, errno: Errno) -> bool {
    error.downcast_ref().is_some_and(|error: &Error| error.errno() == errno)
}

/// The terminal while it is ours: whatever ends this, it is as it was.
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

/// What somebody wants.
enum Key {
    Quit,
    Pause,
    /// The window has another size, or nobody knows.
    Other,
}

/// What has been typed.
fn key() -> Result<Option<Key>> {
    let stdin = rustix::stdio::stdin();
    let mut terminal = [PollFd::new(&stdin, PollFlags::empty())];
    let looked = rustix::event::poll(&mut terminal, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
    if looked.is_ok() && terminal[0].revents().intersects(PollFlags::HUP | PollFlags::ERR) {
        return Ok(Some(Key::Quit));
    }
    if !event::poll(Duration::ZERO).context("the terminal")? {
        return Ok(None);
    }
    let Event::Key(key) = event::read().context("the terminal")? else { return Ok(Some(Key::Other)) };
    if key.kind == KeyEventKind::Release {
        return Ok(Some(Key::Other));
    }
    Ok(Some(match key.code {
        KeyCode::Char('q') | KeyCode::Esc => Key::Quit,
        KeyCode::Char('c' | 'd') if key.modifiers.contains(KeyModifiers::CONTROL) => Key::Quit,
        KeyCode::Char(' ' | 'p') => Key::Pause,
        _ => Key::Other,
    }))
}
