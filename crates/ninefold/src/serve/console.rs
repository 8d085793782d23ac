//! The console of this process: `cons:` and the terminal from which the program was started.
//!
//! In: keyboard input, read once a client reads `cons`; the program's log. Out: data written to `cons`, on the standard
//! output. The terminal is raw while a client wants it so, and is restored at the end.
//!
//! Three threads may block in a system call: one for the screen, one for the log, and, once a client reads, one for the
//! keyboard. The end of the process waits for none of them, but up to [`PATIENCE`] for output that is still to be
//! shown.
//!
//! Always holds: a process without a terminal, or in the background (where terminal access would stop it), neither
//! reads nor changes the terminal. Readers of the console then get EOF.

use std::io::{stdin, stdout};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use nine_net::{Env, rt};
use nine_servers::cons::{Cons, Host};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::termios::{self, InputModes, LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::log;

/// Longest wait at the end for a terminal that takes no output.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes in one read or write of the terminal.
const PIECE: usize = 16 << 10;

static CONSOLE: OnceLock<(Arc<Cons>, Arc<Terminal>)> = OnceLock::new();

#[derive(Default)]
struct Terminal {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// A change of the console is not handled yet.
    due: bool,
    /// All output has been shown.
    idle: bool,
    /// The keyboard thread runs or has ended, or could not start.
    reads: bool,
    /// The terminal's mode before it was made raw.
    before: Option<Termios>,
    ended: bool,
}

/// Returns the console, the same one each time. `owner` is the name of the program's user, perhaps empty.
pub fn get(env: rt::Real, owner: &str) -> Arc<Cons> {
    let (cons, _) = CONSOLE.get_or_init(|| {
        let terminal = Arc::new(Terminal::default());
        let changed = terminal.clone();
        // The terminal itself echoes input.
        let cons = Cons::new(host(env, owner), env.clock(), nine_mux::told, true, move || changed.look());
        let cons = Arc::new(cons);
        let (shown, logged, screen) = (cons.clone(), cons.clone(), terminal.clone());
        let threads = thread("screen", move || screen.show(&shown)).and_then(|()| {
            thread("messages", move || {
                loop {
                    logged.log(&log::next());
                }
            })
        });
        if let Err(error) = threads {
            tracing::error!("the console has no screen: {error}");
            cons.no_output();
        }
        if !may_read() {
            terminal.state().reads = true;
            cons.end();
        }
        (cons, terminal)
    });
    cons.clone()
}

/// Shows the remaining output and restores the terminal. Called when the process ends.
pub fn end() {
    let Some((_, terminal)) = CONSOLE.get() else { return };
    let mut state = terminal.state();
    state.ended = true;
    state.cook();
    (state.due, state.idle) = (true, false);
    terminal.changed.notify_all();
    let waited = terminal.changed.wait_timeout_while(state, PATIENCE, |state| !state.idle);
    drop(waited);
}

impl Terminal {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Handles a change of the console. The console may still be under construction.
    fn look(&self) {
        let mut state = self.state();
        (state.due, state.idle) = (true, false);
        self.changed.notify_all();
        let Some((cons, _)) = CONSOLE.get().filter(|_| !state.ended) else { return };
        match (cons.is_raw(), &state.before) {
            (true, None) => state.raw(),
            (false, Some(_)) => state.cook(),
            _ => {}
        }
        if cons.is_wanted() && !state.reads {
            state.reads = true;
            let keys = cons.clone();
            if let Err(error) = thread("keyboard", move || read(&keys)) {
                tracing::error!("the console has no keyboard: {error}");
                drop(state);
                cons.end();
            }
        }
    }

    /// Shows output, forever.
    fn show(&self, cons: &Cons) {
        loop {
            let bytes = cons.output(PIECE);
            if !bytes.is_empty() {
                if show(&bytes).is_err() {
                    cons.no_output();
                }
                continue;
            }
            let mut state = self.state();
            if !state.due {
                state.idle = true;
                self.changed.notify_all();
                state = self
                    .changed
                    .wait_while(state, |state| !state.due)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            state.due = false;
        }
    }
}

impl State {
    /// Sets the terminal to raw: keys arrive one by one, unprocessed and without echo. Output is processed as before,
    /// because the log is on the same screen.
    fn raw(&mut self) {
        let Some(before) = may_read().then(|| termios::tcgetattr(stdin()).ok()).flatten() else { return };
        let mut raw = before.clone();
        raw.input_modes -= InputModes::ICRNL | InputModes::INLCR | InputModes::IGNCR | InputModes::IXON;
        raw.input_modes -= InputModes::ISTRIP | InputModes::BRKINT;
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO | LocalModes::ECHONL;
        raw.local_modes -= LocalModes::ISIG | LocalModes::IEXTEN;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        if let Err(error) = termios::tcsetattr(stdin(), OptionalActions::Now, &raw) {
            tracing::warn!("the terminal does not become raw: {error}");
        }
        self.before = Some(before);
    }

    fn cook(&mut self) {
        // In the background the terminal belongs to another process.
        if let Some(before) = self.before.take().filter(|_| may_read()) {
            // This fails if the terminal is gone; then there is no mode to restore.
            let _ = termios::tcsetattr(stdin(), OptionalActions::Now, &before);
        }
    }
}

/// Reads the keyboard until EOF.
fn read(cons: &Cons) {
    let (mut keys, stdin) = ([0; PIECE], stdin());
    loop {
        let mut due = [PollFd::new(&stdin, PollFlags::IN)];
        let is_there = retry_on_intr(|| poll(&mut due, None)).is_ok() && may_read();
        let is_gone = due[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL);
        match is_there.then(|| rustix::io::read(&stdin, &mut keys)) {
            // A terminal returns 0 bytes when its user has typed ^D.
            Some(Ok(0)) if !is_gone => cons.input(b"\x04"),
            Some(Ok(n @ 1..)) => cons.input(&keys[..n]),
            Some(Err(Errno::INTR | Errno::AGAIN)) => {}
            _ => return cons.end(),
        }
    }
}

/// Returns whether there is a terminal and a read of it does not stop this process.
fn may_read() -> bool {
    if !termios::isatty(stdin()) {
        return false;
    }
    match termios::tcgetpgrp(stdin()) {
        Ok(group) => group == rustix::process::getpgrp(),
        // It is a terminal, but not the controlling one.
        Err(error) => error == Errno::NOTTY,
    }
}

fn show(mut bytes: &[u8]) -> rustix::io::Result<()> {
    while !bytes.is_empty() {
        // Bypass the standard library's buffer: the end of the process would wait for its lock.
        match rustix::io::write(stdout(), bytes) {
            Ok(n) => bytes = &bytes[n..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let stdout = stdout();
                let mut room = [PollFd::new(&stdout, PollFlags::OUT)];
                retry_on_intr(|| poll(&mut room, None))?;
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn thread(name: &str, run: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(run).map(drop)
}

fn host(env: rt::Real, owner: &str) -> Host {
    let owner = match owner {
        "" => rustix::process::geteuid().as_raw().to_string(),
        name => name.into(),
    };
    let clock = env.clock();
    Host {
        pid: std::process::id(),
        ppid: std::os::unix::process::parent_id(),
        owner,
        version: concat!("ninefold ", env!("CARGO_PKG_VERSION")).into(),
        sysname: Box::new(|| rustix::system::uname().nodename().to_string_lossy().into_owned()),
        cputime: Box::new(move || {
            let real = u64::try_from(clock.now().as_millis()).unwrap_or(u64::MAX);
            let [user, system, children_user, children_system] = cputime();
            [user, system, real, children_user, children_system, 0]
        }),
    }
}

/// Returns the processor time in milliseconds: user and system; then both for the children that were waited for
/// (proc(5)).
fn cputime() -> [u64; 4] {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The program's name may contain blanks, so skip past its closing parenthesis.
    let mut numbers = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11);
    let second = rustix::param::clock_ticks_per_second().max(1);
    std::array::from_fn(|_| numbers.next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) * 1000 / second)
}
