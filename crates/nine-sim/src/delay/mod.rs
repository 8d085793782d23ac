//! The delay box: two network name spaces of this machine, joined by a link of any delay, rate, loss and order.
//!
//! In: a [`Shape`], which may change during use. Out: two network name spaces with one TUN device each. Programs and
//! sockets in them behave as on two distant machines. A thread is the link: it carries packets between the devices. The
//! machine's own network is not changed.
//!
//! Of this crate, only this module uses real time and the real network stack. It needs CAP_SYS_ADMIN, CAP_NET_ADMIN and
//! /dev/net/tun. Without these, use [`Relay`].
//!
//! Always holds: no packet arrives earlier or faster than the shape allows, but on a busy machine it may be late; only
//! IPv4 passes; when the box is dropped or its process is killed, its devices and name spaces disappear with the last
//! program that runs in them.

mod relay;
mod sys;
mod way;

use std::io;
use std::net::Ipv4Addr;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space, set_current_timer_slack};

use crate::rng::Rng;
use way::{Line, Pipe};

pub use relay::Relay;
pub use way::{Counts, Way};

/// Properties of a link.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shape {
    /// From [`Side::Here`] to [`Side::There`].
    pub there: Way,
    /// From [`Side::There`] to [`Side::Here`].
    pub back: Way,
    /// Seed of random losses and delays. The same packets have the same fate.
    pub seed: u64,
}

impl Shape {
    /// Returns a link with this round-trip time, half of it in each direction, and this rate in each direction, in bits
    /// per second.
    pub fn symmetric(rtt: Duration, rate: impl Into<Option<u64>>) -> Self {
        let way = Way { delay: rtt / 2, rate: rate.into(), ..Way::default() };
        Self { there: way, back: way, seed: 0 }
    }
}

/// An end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The local side, usually the client's.
    Here,
    /// The distant side, usually the server's.
    There,
}

/// Two networks and the link between them.
pub struct DelayBox {
    nets: [OwnedFd; 2],
    link: Arc<Link>,
    pump: Option<JoinHandle<()>>,
}

/// State shared by the box and its thread.
struct Link {
    begun: Instant,
    state: Mutex<State>,
    /// Eventfd that ends the thread's wait.
    wake: OwnedFd,
}

struct State {
    /// By sending side.
    pipes: [Pipe; 2],
    ended: bool,
}

/// By side.
const ADDRESSES: [Ipv4Addr; 2] = [Ipv4Addr::new(10, 9, 0, 1), Ipv4Addr::new(10, 9, 0, 2)];
const DEVICE: &str = "far";
/// Maximum length of an IP packet in bytes, as on Ethernet.
const MTU: i32 = 1500;
/// Queue of a device, in packets: more than a sender hands over at once.
const DEVICE_QUEUE: i32 = 10_000;
/// Maximum number of packets read from one device before the other is served.
const BATCH: usize = 64;

impl DelayBox {
    /// Creates both networks and joins them.
    ///
    /// # Errors
    /// PermissionDenied or Unsupported, with an explanation, if the process or the kernel cannot create them.
    pub fn new(shape: Shape) -> io::Result<Self> {
        let [here, there] = ADDRESSES.map(|address| {
            let made = thread::spawn(move || Net::new(address)).join();
            made.unwrap_or_else(|_| Err(io::Error::other("the thread that makes a network has panicked")))
        });
        let (here, there) = (here?, there?);
        let pipes = lines(shape).map(Pipe::new);
        let state = Mutex::new(State { pipes, ended: false });
        let wake = eventfd(0, EventfdFlags::CLOEXEC)?;
        let link = Arc::new(Link { begun: Instant::now(), state, wake });
        let (pump, tuns) = (link.clone(), [here.tun, there.tun]);
        let pump = thread::Builder::new().name("delay box".into()).spawn(move || pump.carry(&tuns))?;
        Ok(Self { nets: [here.name_space, there.name_space], link, pump: Some(pump) })
    }

    /// Returns the address of a side.
    pub fn address(&self, side: Side) -> Ipv4Addr {
        ADDRESSES[side as usize]
    }

    /// Runs `f` on a new thread in this side's network name space, and waits for it. Sockets that `f` creates belong to
    /// this side.
    pub fn run<T: Send>(&self, side: Side, f: impl FnOnce() -> T + Send) -> io::Result<T> {
        let net = &self.nets[side as usize];
        let inside = || {
            move_into_link_name_space(net.as_fd(), Some(LinkNameSpaceType::Network))?;
            Ok(f())
        };
        let ended = thread::scope(|scope| scope.spawn(inside).join());
        ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// Configures `command` to start in this side's network name space.
    pub fn command(&self, side: Side, command: &mut Command) -> io::Result<()> {
        sys::start_in(command, self.nets[side as usize].try_clone()?);
        Ok(())
    }

    /// Changes the shape of the link for packets sent from now on. The random stream restarts from the seed.
    pub fn set(&self, shape: Shape) {
        let mut state = self.link.state();
        for (pipe, line) in state.pipes.iter_mut().zip(lines(shape)) {
            pipe.line.reshape(line);
        }
    }

    /// Returns the counters of packets sent from this side.
    pub fn counts(&self, from: Side) -> Counts {
        self.link.state().pipes[from as usize].line.counts
    }
}

impl Drop for DelayBox {
    fn drop(&mut self) {
        self.link.state().ended = true;
        let woken = rustix::io::write(&self.link.wake, &1u64.to_ne_bytes());
        assert!(woken.is_ok(), "a counter of one writer is never full: {woken:?}");
        if let Some(pump) = self.pump.take() {
            // The thread panics only on broken invariants, and has printed the panic then.
            let _ = pump.join();
        }
    }
}

/// By sending side.
fn lines(shape: Shape) -> [Line; 2] {
    let mut rng = Rng::new(shape.seed);
    [shape.there, shape.back].map(|way| Line::new(way, rng.fork()))
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries packets between the devices until the box is dropped.
    fn carry(&self, tuns: &[OwnedFd; 2]) {
        // Both calls make the link more punctual. Without permission the link works with the machine's usual timing.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
        let _ = sys::run_first();
        let mut packet = [0; MTU as usize];
        loop {
            let next = {
                let mut state = self.state();
                if state.ended {
                    return;
                }
                for (pipe, (from, to)) in state.pipes.iter_mut().zip([(0, 1), (1, 0)]) {
                    self.deliver(pipe, &tuns[to]);
                    self.collect(pipe, &tuns[from], &mut packet);
                }
                state.pipes.iter().filter_map(Pipe::next).min()
            };
            let left = next.map(|next| next.saturating_sub(self.begun.elapsed()));
            let mut fds = [&tuns[0], &tuns[1], &self.wake].map(|fd| PollFd::new(fd, PollFlags::IN));
            wait(&mut fds, left);
        }
    }

    fn deliver(&self, pipe: &mut Pipe, to: &OwnedFd) {
        while let Some(packet) = pipe.take(self.begun.elapsed()) {
            // A TUN device never blocks a writer. A refused packet was not valid, and is lost as on any link.
            let _ = rustix::io::write(to, &packet);
        }
    }

    fn collect(&self, pipe: &mut Pipe, from: &OwnedFd, packet: &mut [u8]) {
        for _ in 0..BATCH {
            let Ok(len @ 1..) = rustix::io::read(from, &mut *packet) else { return };
            if packet[0] >> 4 == 4 {
                pipe.put(self.begun.elapsed(), &packet[..len]);
            }
        }
    }
}

/// Waits until one of `fds` is ready or the time `left` has passed.
fn wait(fds: &mut [PollFd<'_>], left: Option<Duration>) {
    let left = left.map(|left| Timespec {
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    });
    // The caller checks everything again, whatever ended the wait.
    let _ = poll(fds, left.as_ref());
}

/// One side: its name space, and the file descriptor of its TUN device.
struct Net {
    name_space: OwnedFd,
    tun: OwnedFd,
}

impl Net {
    /// Moves the calling thread into a new network, and returns it.
    fn new(address: Ipv4Addr) -> io::Result<Self> {
        let refused = |what: &str, error: io::Error| {
            let kind = match error.raw_os_error() {
                Some(libc::EPERM | libc::EACCES) => io::ErrorKind::PermissionDenied,
                // No device, no system call, or no name spaces allowed (user.max_net_namespaces).
                Some(libc::ENOENT | libc::ENODEV | libc::ENOSYS | libc::EINVAL | libc::ENOSPC) => {
                    io::ErrorKind::Unsupported
                }
                _ => error.kind(),
            };
            io::Error::new(kind, format!("no delay box: {what}: {error}"))
        };
        sys::leave_network().map_err(|e| refused("a network name space (needs CAP_SYS_ADMIN)", e))?;
        let read = OFlags::RDONLY | OFlags::CLOEXEC;
        let name_space = rustix::fs::open("/proc/thread-self/ns/net", read, Mode::empty())
            .map_err(|e| refused("/proc/thread-self/ns/net", e.into()))?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let tun = rustix::fs::open("/dev/net/tun", flags, Mode::empty())
            .map_err(|e| refused("/dev/net/tun (needs the module tun)", e.into()))?;
        sys::make_tun(tun.as_fd(), DEVICE).map_err(|e| refused("a TUN device (needs CAP_NET_ADMIN)", e))?;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        let socket = socket.as_fd();
        sys::set_up(socket, "lo")?;
        sys::set_mtu(socket, DEVICE, MTU)?;
        sys::set_queue(socket, DEVICE, DEVICE_QUEUE)?;
        sys::set_address(socket, DEVICE, address)?;
        sys::set_up(socket, DEVICE)?;
        // Each connection starts without metrics of earlier ones, which may be of another shape. If /proc is not
        // writable, later connections start with the kernel's cached metrics.
        let _ = std::fs::write("/proc/sys/net/ipv4/tcp_no_metrics_save", "1");
        Ok(Self { name_space, tun })
    }
}
