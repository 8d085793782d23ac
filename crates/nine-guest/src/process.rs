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

/// A process' end of a channel: its memory, its bells, and the descriptor by which it sees that the host has gone.
#[derive(Debug)]
pub struct Process {
    memory: Memory,
    wait: Bell,
    ring: Bell,
    life: OwnedFd,
    looks: u32,
    begun: Instant,
}

/// About as long as it takes to wake a thread on another processor.
const WOKEN: Duration = Duration::from_micros(50);
/// How long a socket may take to give a channel.
const PATIENCE: Duration = Duration::from_secs(10);

impl Process {
    /// The channel that this program was started with; its first caller gets it, and programs that this one starts
    /// do not. An error of the kind `NotFound`: there is none. No other thread may read the environment by other
    /// means than Rust's meanwhile.
    pub fn inherited() -> io::Result<Self> {
        let variable = env::var(VARIABLE).ok();
        let passed = Passed::inherited(variable.as_deref())?;
        sys::forget_variable(VARIABLE);
        let why = || format!("this program was not started with a channel: {VARIABLE} is not set");
        Self::new(passed.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, why()))?)
    }

    /// A channel of a host that gives one to everybody who connects to its unix socket.
    pub fn dial(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let socket = UnixStream::connect(path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        socket.set_read_timeout(Some(PATIENCE))?;
        let passed = Passed::receive(socket.into()).map_err(|(error, _)| match error.kind() {
            io::ErrorKind::WouldBlock => io::Error::new(
                io::ErrorKind::TimedOut,
                format!("who listens there has given no channel in {PATIENCE:?}"),
            ),
            _ => error,
        })?;
        Self::new(passed)
    }

    /// One whose descriptors are here already.
    pub fn new(passed: Passed) -> io::Result<Self> {
        let Passed { memory, wait, ring, life } = passed;
        Ok(Self { memory: linux::map(&memory)?, wait, ring, life, looks: looks(), begun: Instant::now() })
    }

    /// The client of the files that the host has.
    pub fn client(self) -> Result<Client<Self>> {
        self.client_with(Options::default())
    }

    /// The same, with another way of waiting or another dialect.
    pub fn client_with(self, options: Options) -> Result<Client<Self>> {
        Client::join(self.memory.clone(), self, options)
    }

    /// The client of the channel of this name, where the memory holds several.
    pub fn client_named(self, name: &str, options: Options) -> Result<Client<Self>> {
        Client::join_named(&self.memory.clone(), name, self, options)
    }

    /// All of the memory, which is one channel or several.
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

/// Looks that take [`WOKEN`] here: a processor pauses between two of them for as long as it likes.
fn looks() -> u32 {
    /// Plus 1, once it is known.
    static KNOWN: AtomicU32 = AtomicU32::new(0);
    const TRIED: u32 = 512;
    // Of the machine: whoever is kept to one processor may have a host on another.
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
        let looks = WOKEN.as_nanos() * u128::from(TRIED) / shortest;
        KNOWN.store(looks.clamp(100, 1 << 20) as u32, Ordering::Relaxed);
    }
    KNOWN.load(Ordering::Relaxed)
}
