//! The terminal or its substitute: keyboard and screen, each with a thread that may block.
//!
//! Always holds: dropping a [`Terminal`] restores the terminal's mode.

use std::fs::OpenOptions;
use std::future::poll_fn;
use std::io::{BufRead, BufReader, IoSlice, Read, Write, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};
use std::thread::Builder;

use anyhow::{Context, Result};
use nine_net::{Peer, Pipe, Proof, Transport, pipe, wait};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

/// A terminal in a changed mode, restored on drop.
pub struct Terminal {
    fd: OwnedFd,
    before: Termios,
}

impl Terminal {
    /// Sets the terminal of the standard input to raw: keys arrive one by one without echo. Returns `None` if it is not
    /// a terminal.
    pub fn raw() -> Option<Self> {
        Self::changed(stdin().as_fd().try_clone_to_owned().ok()?, |raw| {
            raw.input_modes -= InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR | InputModes::IXON;
            raw.input_modes -= InputModes::ISTRIP | InputModes::BRKINT;
            raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ECHONL;
            raw.local_modes -= LocalModes::ISIG | LocalModes::IEXTEN;
            raw.special_codes[SpecialCodeIndex::VMIN] = 1;
            raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        })
    }

    fn changed(fd: OwnedFd, change: impl FnOnce(&mut Termios)) -> Option<Self> {
        let before = termios::tcgetattr(&fd).ok()?;
        let mut after = before.clone();
        change(&mut after);
        termios::tcsetattr(&fd, OptionalActions::Now, &after).ok()?;
        Some(Self { fd, before })
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // This fails if the terminal is gone; then there is no mode to restore.
        let _ = termios::tcsetattr(&self.fd, OptionalActions::Now, &self.before);
    }
}

/// Asks the user at the controlling terminal, without echo.
pub async fn ask(prompt: &str) -> Result<String> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty");
    let mut terminal = terminal.context("there is no terminal to ask at")?;
    let hidden = Terminal::changed(terminal.as_fd().try_clone_to_owned()?, |hidden| {
        hidden.local_modes -= LocalModes::ECHO;
        hidden.local_modes |= LocalModes::ECHONL | LocalModes::ICANON;
    });
    let hidden = hidden.context("the terminal shows what is typed")?;
    terminal.write_all(prompt.as_bytes())?;
    let mut typed = thread("password", move |end| {
        let mut line = String::new();
        // A read error counts as empty input.
        let _ = BufReader::new(terminal).read_line(&mut line);
        let _ = write_all(end, line.trim_end_matches('\n').as_bytes());
    })?;
    let mut password = Vec::new();
    let mut piece = [0; 256];
    while let n @ 1.. = poll_fn(|cx| typed.poll_read(cx, &mut piece)).await? {
        password.extend(&piece[..n]);
    }
    drop(hidden);
    Ok(String::from_utf8_lossy(&password).into_owned())
}

/// Starts a thread that reads the standard input.
pub fn keyboard() -> Result<Pipe> {
    thread("keyboard", |end| {
        let mut bytes = [0; PIECE];
        while let Ok(n @ 1..) = stdin().read(&mut bytes) {
            if write_all(end, &bytes[..n]).is_err() {
                return;
            }
        }
    })
}

/// Starts a thread that writes to the standard output.
pub fn screen() -> Result<Pipe> {
    thread("screen", |end| {
        let mut bytes = [0; PIECE];
        while let Ok(n @ 1..) = wait(poll_fn(|cx| end.poll_read(cx, &mut bytes))) {
            let mut out = stdout().lock();
            if out.write_all(&bytes[..n]).and_then(|()| out.flush()).is_err() {
                return;
            }
        }
    })
}

/// Waits until all output was shown, or the output is closed.
pub async fn shown(screen: &mut Pipe) {
    // The thread closes its end after it has read everything from ours.
    let _ = poll_fn(|cx| screen.poll_close(cx)).await;
    let _ = poll_fn(|cx| screen.poll_read(cx, &mut [0])).await;
}

fn thread(name: &str, run: impl FnOnce(&mut Pipe) + Send + 'static) -> Result<Pipe> {
    let peer = || Peer { addr: name.into(), proof: Proof::None };
    let (ours, mut its) = pipe(peer(), peer());
    Builder::new().name(name.into()).spawn(move || run(&mut its)).with_context(|| format!("the {name}"))?;
    Ok(ours)
}

fn write_all(end: &mut Pipe, mut bytes: &[u8]) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let n = wait(poll_fn(|cx| end.poll_write(cx, &[IoSlice::new(bytes)])))?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Size of one read, bytes.
const PIECE: usize = 4 << 10;
