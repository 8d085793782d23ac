//! Machines: partitions that are virtual machines (docs/guest.md).
//!
//! In: an image, the services of its channels, its arguments and its standard files. Out: QEMU, started and watched,
//! and the machine's exit status.
//!
//! Always holds: a dropped machine is killed. A machine that has written its exit status ends, if need be by a kill.
//! Nothing here blocks, except that threads of their own wait for QEMU and read its output.

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
use told::OnceSignal;

/// The channel of a partition's name space.
pub const ROOT: &str = "root";
/// The channel of its own files, and its size: the data it can read and write at once.
pub const SELF: &str = "self";
const SELF_LINES: u32 = 256;
const SELF_PAGES: u32 = 128;
/// How long a machine may run on after it has written its exit status.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long an image may take to join its channel before the next accelerator is tried, and how often that is
/// checked.
const GUEST_JOIN_TIMEOUT: Duration = Duration::from_secs(10);
const JOIN_CHECK_INTERVAL: Duration = Duration::from_millis(5);
/// QEMU's message when it has stopped a machine that cannot continue, and waits for a debugger.
const STOPPED: &[u8] = b"KVM internal error";
/// The bytes of QEMU's output that are buffered until it is known whether they matter.
const OUTPUT_BUFFER_MAX: usize = 16 << 10;

/// The configuration of a machine to be started.
pub struct Machine {
    /// The QEMU program.
    pub qemu: PathBuf,
    /// The computer and the image.
    pub computer: Computer,
    /// The channels besides `self`, with their services.
    pub shows: Vec<(String, Service)>,
    /// Its own files.
    pub own: Arc<Own>,
    /// Gets output that does not come through a channel: QEMU's, and the machine's debug output.
    pub words: OwnedFd,
    /// The machine's identity towards the servers.
    pub peer: Peer,
}

/// A started machine.
pub struct Running {
    /// How its instructions are executed.
    pub accel: Accel,
    pid: OwnedFd,
    own: Arc<Own>,
    ended: Arc<OnceSignal<ExitStatus>>,
    watches: Vec<Watch>,
    words: Arc<OutputFilter>,
}

impl Machine {
    /// Starts the machine with the first of `accels` that brings the image to one of its channels, or with the last.
    /// `why` gets the reason for each one that fails. `command` makes a command from QEMU's path and arguments; it
    /// must inherit open descriptors.
    ///
    /// # Errors
    /// The channels' memory cannot be created, or QEMU or a thread cannot be started.
    ///
    /// # Panics
    /// If `accels` is empty.
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
            while !running.has_joined()
                && running.ended.get().is_none()
                && env.now() < begun + GUEST_JOIN_TIMEOUT
            {
                env.sleep_until(env.now() + JOIN_CHECK_INTERVAL).await;
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
        // QEMU has its descriptors now. Ours are closed.
        drop((command, slot, last));
        let pid = pidfd_open(Pid::from_child(&child), PidfdFlags::empty())?;
        let ended = Arc::<OnceSignal<ExitStatus>>::default();
        let (words, heard) = OutputFilter::read(words, self.words.try_clone()?, pid.try_clone()?)?;
        let tell = ended.clone();
        thread::Builder::new().name("machine".into()).spawn(move || {
            let status = child.wait().unwrap_or_default();
            // All of QEMU's output is read before the end is reported.
            let _ = heard.join();
            tell.tell(status);
        })?;
        Ok(Running { accel, pid, own: self.own.clone(), ended, watches, words })
    }
}

impl Running {
    /// Returns whether it has joined one of its channels.
    pub fn has_joined(&self) -> bool {
        self.watches.iter().any(|watch| watch.lives()[1] != 0)
    }

    /// Waits until it has ended. Returns its exit status, if it has written one, and QEMU's. A machine that runs on
    /// after writing its status is killed.
    pub async fn ended(&self, env: &impl Env) -> (Option<u8>, ExitStatus) {
        let mut gone = pin!(self.ended.heard());
        let mut farewell = pin!(async {
            self.own.exited().await;
            env.sleep_until(env.now() + EXIT_TIMEOUT).await;
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

    /// Kills it.
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
    // It fails if the process has ended already.
    let _ = pidfd_send_signal(pid, Signal::KILL);
}

/// QEMU's output: buffered until it is known to matter, then passed on.
struct OutputFilter {
    state: Mutex<OutputFilterState>,
    out: File,
}

#[derive(Default)]
struct OutputFilterState {
    kept: Vec<u8>,
    matter: bool,
}

impl OutputFilter {
    /// Starts a thread that reads QEMU's output. It kills QEMU, `pid`, when the output reports that the machine has
    /// stopped.
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
                let room = OUTPUT_BUFFER_MAX - state.kept.len().min(OUTPUT_BUFFER_MAX);
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

    fn state(&self) -> MutexGuard<'_, OutputFilterState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Passes the output on, with the next output or at the end.
    fn pass(&self) {
        self.state().matter = true;
    }

    fn said(&self) -> String {
        String::from_utf8_lossy(&self.state().kept).trim().to_owned()
    }
}
