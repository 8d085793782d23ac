//! Machines: partitions that are virtual machines (docs/guest.md).
//!
//! In: an image, what its channels show, its words and its standard files. Out: QEMU, started and watched, and the
//! status that the machine has ended with.
//!
//! Always holds: a machine that is dropped is killed; one that has said its status ends, by itself or not; nothing here
//! blocks, but that QEMU is waited for, and its words are read, by threads of their own.

pub mod image;
mod own;
mod qemu;
mod told;

use std::ffi::OsString;
use std::fs::File;
use std::future::{pending, poll_fn};
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::{Command, ExitStatus, Stdio as Files};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nine_io::channel::serve_all;
use nine_io::server::{Core, Gate, Service};
use nine_net::shm::{Board, Kind, LINES, Layout, PAGES, Watch};
use nine_net::{Env, Peer};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

pub use image::image_end;
pub use own::{Own, Stdio};
pub use qemu::{Accel, Computer, MEMORY, QEMU, found};
use told::Told;

/// The channel of the name space that a partition has.
pub const ROOT: &str = "root";
/// The channel of its own files; and its size: what it reads and writes at once.
pub const SELF: &str = "self";
const SELF_LINES: u32 = 256;
const SELF_PAGES: u32 = 128;
/// How long a machine that has said its status may take to end.
const FAREWELL: Duration = Duration::from_secs(2);
/// How long an image may take to its channel where something else is left to try; and how often that is looked at.
const ARRIVAL: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// How QEMU says that it has stopped a machine with which it cannot go on, and waits for somebody to look at it.
const STOPPED: &[u8] = b"KVM internal error";
/// Bytes of QEMU's words that are kept while it is not known whether they matter.
const KEPT: usize = 16 << 10;

/// What a machine is started with.
pub struct Machine {
    /// QEMU.
    pub qemu: PathBuf,
    /// The computer and the image.
    pub computer: Computer,
    /// What its channels show, beside `self`.
    pub shows: Vec<(String, Service)>,
    /// Its own files.
    pub own: Arc<Own>,
    /// Where words go that do not come through a channel: QEMU's, and the last ones of the machine.
    pub words: OwnedFd,
    /// Who it is for its servers.
    pub peer: Peer,
}

/// A machine that was started.
pub struct Running {
    /// Who executes it.
    pub accel: Accel,
    pid: OwnedFd,
    own: Arc<Own>,
    ended: Arc<Told<ExitStatus>>,
    watches: Vec<Watch>,
    words: Arc<Words>,
}

impl Machine {
    /// Starts it, where one of `accels` gets the image to its channels: with the last one in any case. `why` is told of
    /// each that does not; `command` makes a command of QEMU and its words, which inherits what is open.
    pub async fn start(
        &mut self,
        env: &(impl Env + Clone),
        accels: &[Accel],
        command: impl Fn(&Path, &[OsString]) -> io::Result<Command>,
        mut why: impl FnMut(Accel, &str),
    ) -> io::Result<Running> {
        let (last, first) = accels.split_last().expect("something to try");
        for &accel in first {
            if let Err(error) = accel.may() {
                why(accel, &error);
                continue;
            }
            let running = self.begin(env, accel, &command)?;
            let begun = env.now();
            while !running.has_joined() && running.ended.get().is_none() && env.now() < begun + ARRIVAL {
                env.sleep_until(env.now() + LOOK).await;
            }
            if running.has_joined() || self.own.status().is_some() {
                running.words.pass();
                return Ok(running);
            }
            let said = running.words.said();
            let said = said.lines().next().unwrap_or("the image does not get to its channel");
            why(accel, said.trim_start_matches("qemu-system-x86_64: "));
        }
        let running = self.begin(env, *last, &command)?;
        running.words.pass();
        Ok(running)
    }

    fn begin(
        &mut self,
        env: &(impl Env + Clone),
        accel: Accel,
        command: &impl Fn(&Path, &[OsString]) -> io::Result<Command>,
    ) -> io::Result<Running> {
        let layouts: Vec<Layout> = (self.shows.iter())
            .map(|(name, _)| Layout::new(Kind::GuestAsks, LINES, PAGES, name))
            .chain([Layout::new(Kind::GuestAsks, SELF_LINES, SELF_PAGES, SELF)])
            .collect();
        let (channels, board) = Board::open(&layouts, self.computer.wait, &self.peer)?;
        let watches = channels.iter().map(|channel| channel.watch()).collect();
        let own = Service::new(self.own.clone(), Gate::default(), Core::default());
        for (channel, service) in channels
            .into_iter()
            .zip(self.shows.iter().map(|(_, service)| service).chain([&own]).cloned().collect::<Vec<_>>())
        {
            env.spawn(Box::pin(async move {
                serve_all(&service, channel).await;
            }));
        }
        let slot = board.for_child()?;
        self.computer.accel = accel;
        let (words, theirs) = io::pipe()?;
        let last = rustix::io::dup(&theirs)?;
        let mut command = command(&self.qemu, &self.computer.words(&slot, last.as_raw_fd()))?;
        let mut child = command.stdin(Files::null()).stdout(Files::null()).stderr(theirs).spawn()?;
        // QEMU has what is its, and nobody else.
        drop((command, slot, last));
        let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let ended = Arc::<Told<ExitStatus>>::default();
        let (words, heard) = Words::read(words, self.words.try_clone()?, pid.try_clone()?)?;
        let tell = ended.clone();
        thread::Builder::new().name("machine".into()).spawn(move || {
            let status = child.wait().unwrap_or_default();
            // All that it has said is there first.
            let _ = heard.join();
            tell.tell(status);
        })?;
        Ok(Running { accel, pid, own: self.own.clone(), ended, watches, words })
    }
}

impl Running {
    /// Whether it has come to one of its channels.
    pub fn has_joined(&self) -> bool {
        self.watches.iter().any(|watch| watch.lives()[1] != 0)
    }

    /// Returns when it has ended: its status, if it has said one. One that has said it and goes on is killed.
    pub async fn ended(&self, env: &impl Env) -> (Option<u8>, ExitStatus) {
        let mut gone = pin!(self.ended.heard());
        let mut farewell = pin!(async {
            self.own.exited().await;
            env.sleep_until(env.now() + FAREWELL).await;
            self.kill();
            pending::<()>().await;
        });
        let status = poll_fn(|cx| {
            let _ = farewell.as_mut().poll(cx);
            gone.as_mut().poll(cx)
        })
        .await;
        (self.own.status(), status)
    }

    /// Ends it at once.
    pub fn kill(&self) {
        kill(&self.pid);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if self.ended.get().is_none() {
            self.kill();
        }
    }
}

fn kill(pid: &OwnedFd) {
    // One that has ended needs none.
    let _ = pidfd_send_signal(pid, Signal::KILL);
}

/// What QEMU says: kept until it is known that it matters, then passed on.
struct Words {
    state: Mutex<Said>,
    out: File,
}

#[derive(Default)]
struct Said {
    kept: Vec<u8>,
    matter: bool,
}

impl Words {
    /// QEMU, `pid`, is ended when it says that the machine has stopped for ever.
    fn read(
        mut from: PipeReader,
        out: OwnedFd,
        pid: OwnedFd,
    ) -> io::Result<(Arc<Self>, thread::JoinHandle<()>)> {
        let words = Arc::new(Self { state: Mutex::default(), out: out.into() });
        let of = words.clone();
        let thread = thread::Builder::new().name("words".into()).spawn(move || {
            let mut buf = [0; 4096];
            loop {
                let came = from.read(&mut buf).unwrap_or(0);
                let mut state = of.state();
                let room = KEPT - state.kept.len().min(KEPT);
                state.kept.extend_from_slice(&buf[..came.min(room)]);
                let kept = if state.matter { std::mem::take(&mut state.kept) } else { Vec::new() };
                drop(state);
                if buf[..came].windows(STOPPED.len()).any(|said| said == STOPPED) {
                    kill(&pid);
                }
                let _ = (&of.out).write_all(&kept);
                if came == 0 {
                    return;
                }
            }
        })?;
        Ok((words, thread))
    }

    fn state(&self) -> MutexGuard<'_, Said> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// They are passed on with the next that come, or at the end.
    fn pass(&self) {
        self.state().matter = true;
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.state().kept).trim().to_owned()
    }
}
