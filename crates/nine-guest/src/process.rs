//! A channel of a Linux process: inherited, or dialled (docs/channels.md, "How a program gets a channel").

extern crate std;

use std::env;
use std::format;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use nine_proto::Result;
use nine_ring::Memory;
use nine_ring::linux::{self, Bell, Passed, VARIABLE};

use crate::client::{Client, Options};
use crate::line::Line;
use crate::sys;

/// A process' end of a channel: its memory, its doorbells, and the descriptor that shows that the host has gone.
#[derive(Debug)]
pub struct Process {
    memory: Memory,
    wait: Bell,
    ring: Bell,
    life: OwnedFd,
    looks: u32,
    begun: Instant,
}

/// About the time to wake a thread on another processor.
const WAKE_TIME: Duration = Duration::from_micros(50);
/// How long a socket may take to send a channel.
const CHANNEL_TIMEOUT: Duration = Duration::from_secs(10);

impl Process {
    /// Returns the channel that this program was started with. Only the first call gets it, and child processes do
    /// not. An error of kind `NotFound` if there is none. No other thread may read the environment meanwhile, except
    /// through Rust's std.
    pub fn inherited() -> io::Result<Self> {
        let variable = env::var(VARIABLE).ok();
        let passed = Passed::inherited(variable.as_deref())?;
        sys::forget_variable(VARIABLE);
        let why = || format!("this program was not started with a channel: {VARIABLE} is not set");
        Self::new(passed.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, why()))?)
    }

    /// Connects to the unix socket of a host that gives a channel to every client.
    pub fn dial(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let socket = UnixStream::connect(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        socket.set_read_timeout(Some(CHANNEL_TIMEOUT))?;
        let passed = Passed::receive(socket.into()).map_err(|(error, _)| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("who listens there has given no channel in {CHANNEL_TIMEOUT:?}"),
            ),
            _ => error,
        })?;
        Self::new(passed)
    }

    /// Wraps descriptors of a channel.
    pub fn new(passed: Passed) -> io::Result<Self> {
        let Passed { memory, wait, ring, life } = passed;
        Ok(Self { memory: linux::map(&memory)?, wait, ring, life, looks: looks(), begun: Instant::now() })
    }

    /// Returns a client of the host's files.
    pub fn client(self) -> Result<Client<Self>> {
        self.client_with(Options::default())
    }

    /// The same with other options.
    pub fn client_with(self, options: Options) -> Result<Client<Self>> {
        Client::join(self.memory.clone(), self, options)
    }

    /// Returns a client of the channel of this name, if the memory holds several.
    pub fn client_named(self, name: &str, options: Options) -> Result<Client<Self>> {
        Client::join_named(&self.memory.clone(), name, self, options)
    }

    /// Returns the whole memory, of one channel or of several.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }
}

impl Line for Process {
    fn ring(&self) {
        self.ring.ring();
    }

    fn sleep(&self) -> bool {
        linux::wait(&self.wait, &self.life, None).unwrap_or(false)
    }

    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn sleep_until(&self, end: Duration) -> bool {
        let limit = end.saturating_sub(self.now());
        linux::wait(&self.wait, &self.life, Some(limit))
            .unwrap_or_else(|error| error.kind() == io::ErrorKind::TimedOut)
    }

    fn is_gone(&self) -> bool {
        matches!(linux::wait(&self.wait, &self.life, Some(Duration::ZERO)), Ok(false))
    }

    fn looks(&self) -> u32 {
        self.looks
    }
}

/// Returns how many polls take [`WAKE_TIME`] on this machine. The duration of a processor's spin hint differs by model.
fn looks() -> u32 {
    /// The result; 0 if not measured yet.
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    const TRIED: u32 = 512;
    // Counts the machine's processors: a process bound to one may have its host on another.
    if std::fs::read_to_string("/sys/devices/system/cpu/online").is_ok_and(|list| list.trim() == "0") {
        return 0;
    }
    if KNOWN.load(Ordering::Relaxed) == 0 {
        let try_once = |_| {
            let begun = Instant::now();
            (0..TRIED).for_each(|_| core::hint::spin_loop());
            begun.elapsed().as_nanos().max(1)
        };
        let shortest = (0..3).map(try_once).min().expect("three");
        let looks = WAKE_TIME.as_nanos() * u128::from(TRIED) / shortest;
        KNOWN.store(looks.clamp(100, 1 << 20) as u32, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed)
}
