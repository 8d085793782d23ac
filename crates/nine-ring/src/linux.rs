//! Channels between Linux processes: memory files, doorbells, and their transfer (docs/channels.md, "How a program gets
//! a channel").
//!
//! In: descriptors. Out: mapped memory and doorbells. Always holds: no memory is mapped if its file could shrink. A
//! doorbell that was rung stays rung until it is read.

extern crate std;

use alloc::format;
use alloc::string::String;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::{Errno, FdFlags, ReadWriteFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};

use crate::layout::MAGIC;
use crate::sys::{self, Memory};

/// The environment variable through which a program inherits a channel.
pub const VARIABLE: &str = "NINEFOLD_CHANNEL";

/// Creates a memory file of `len` zero bytes with a fixed size. Returns its memory and the file.
pub fn create(len: usize) -> io::Result<(Memory, OwnedFd)> {
    let file = rustix::fs::memfd_create("channel", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&file, len as u64)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok((sys::map(file.as_fd(), len)?, file))
}

/// Maps a memory file of another process. Fails with `InvalidData` if the file could shrink: an access beyond its end
/// would kill the process.
pub fn map(file: impl AsFd) -> io::Result<Memory> {
    let seals = rustix::fs::fcntl_get_seals(&file).unwrap_or(SealFlags::empty());
    let stat = rustix::fs::fstat(&file)?;
    let len = usize::try_from(stat.st_size).unwrap_or(0);
    let bad = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    if !seals.contains(SealFlags::SHRINK) {
        return Err(bad("the channel's memory is no file that is sealed against becoming shorter"));
    }
    if seals.intersects(SealFlags::WRITE | SealFlags::FUTURE_WRITE) {
        return Err(bad("the channel's memory is sealed against writing"));
    }
    if len == 0 {
        return Err(bad("the channel's memory is empty"));
    }
    Ok(sys::map(file.as_fd(), len)?)
}

impl Memory {
    /// Writes `len` bytes from offset `at` to a file at `offset`, without a copy in this process. Returns the number of
    /// bytes written. With `nowait` it fails with EAGAIN if it would wait for a disk.
    ///
    /// # Panics
    /// If the bytes are not in the memory.
    pub fn write_at(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: u64,
        nowait: bool,
    ) -> rustix::io::Result<usize> {
        sys::calls::write_at(self, (at, len), file.as_fd(), in_file(offset)?, flags(nowait))
    }

    /// Reads at most `len` bytes of a file from `offset`, without a copy in this process. Returns the number of bytes
    /// read. With `nowait` it fails with EAGAIN if it would wait for a disk.
    ///
    /// # Panics
    /// If the bytes do not fit into the memory.
    pub fn read_at(
        &self,
        at: usize,
        len: usize,
        file: impl AsFd,
        offset: u64,
        nowait: bool,
    ) -> rustix::io::Result<usize> {
        sys::calls::read_at(self, (at, len), file.as_fd(), in_file(offset)?, flags(nowait))
    }
}

/// Checks an offset: the kernel takes all ones for the current position of the file.
fn in_file(offset: u64) -> rustix::io::Result<u64> {
    i64::try_from(offset).map(|_| offset).map_err(|_| Errno::INVAL)
}

fn flags(nowait: bool) -> ReadWriteFlags {
    if nowait { ReadWriteFlags::NOWAIT } else { ReadWriteFlags::empty() }
}

/// A doorbell: an eventfd(2) whose file description both sides share. The other side can make it blocking or fill it.
#[derive(Debug)]
pub struct Bell(OwnedFd);

impl Bell {
    /// Creates a doorbell.
    pub fn new() -> io::Result<Self> {
        Ok(Self(rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?))
    }

    /// Rings the doorbell. A full counter counts as rung. If a host has made the descriptor blocking, this waits; so
    /// only a guest may use it, which depends on its host anyway.
    pub fn ring(&self) {
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Rings the doorbell without waiting, whatever the other side has done to it. For callers that also serve others.
    /// If the kernel does not support this, it is [`Bell::ring`].
    pub fn ring_at_once(&self) {
        if !sys::signal::signal(self.0.as_fd()) {
            self.ring();
        }
    }

    /// Resets the doorbell without waiting. Returns whether it was rung.
    pub fn hear(&self) -> bool {
        hear(self.0.as_fd())
    }

    /// Duplicates the descriptor.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

/// Resets a doorbell like [`Bell::hear`], for callers that wait for the descriptor by other means.
pub fn hear(bell: BorrowedFd<'_>) -> bool {
    let mut count = [0; 8];
    let mut parts = [IoSliceMut::new(&mut count)];
    match rustix::io::preadv2(bell, &mut parts, u64::MAX, ReadWriteFlags::NOWAIT) {
        // Kernels before 5.8 do not support `preadv2` here.
        Err(Errno::OPNOTSUPP) => rustix::io::read(bell, &mut [0; 8]).is_ok(),
        heard => heard.is_ok(),
    }
}

impl From<OwnedFd> for Bell {
    fn from(fd: OwnedFd) -> Self {
        Self(fd)
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> Self {
        bell.0
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptors of one side of a channel.
#[derive(Debug)]
pub struct Passed {
    /// The memory file.
    pub memory: OwnedFd,
    /// The doorbell that is rung for this side.
    pub wait: Bell,
    /// The doorbell of the other side.
    pub ring: Bell,
    /// A socket that is closed when the other side ends.
    pub life: OwnedFd,
}

impl Passed {
    /// Takes the descriptors of the channel that this program has inherited, if the variable is set. Child processes do
    /// not inherit them. The caller must remove the variable. Fails with `InvalidData` if the variable is malformed or
    /// a descriptor does not exist.
    pub fn inherited(variable: Option<&str>) -> io::Result<Option<Self>> {
        let Some(text) = variable else { return Ok(None) };
        let bad = || {
            let why = format!("{VARIABLE}={text}: four descriptors are expected, MEMORY:WAIT:RING:LIFE");
            io::Error::new(io::ErrorKind::InvalidData, why)
        };
        let mut numbers = [-1; 4];
        let mut parts = text.split(':');
        for number in &mut numbers {
            *number = parts.next().and_then(|part| part.parse::<RawFd>().ok()).ok_or_else(bad)?;
        }
        let twice = (1..4).any(|n| numbers[..n].contains(&numbers[n]));
        if parts.next().is_some() || twice || numbers.iter().any(|&fd| fd < 0) {
            return Err(bad());
        }
        let mut ours = [const { None }; 4];
        for (fd, number) in ours.iter_mut().zip(numbers) {
            *fd = Some(sys::take_inherited(number).ok_or_else(bad)?);
        }
        let [memory, wait, ring, life] = ours.map(|fd| fd.expect("each was taken"));
        Ok(Some(Self { memory, wait: wait.into(), ring: ring.into(), life }))
    }

    /// Formats the variable for a program that inherits the descriptors under these numbers.
    pub fn variable(numbers: [RawFd; 4]) -> String {
        let [memory, wait, ring, life] = numbers;
        format!("{memory}:{wait}:{ring}:{life}")
    }

    /// Returns the descriptors' numbers in this process.
    pub fn numbers(&self) -> [RawFd; 4] {
        [self.memory.as_raw_fd(), self.wait.0.as_raw_fd(), self.ring.0.as_raw_fd(), self.life.as_raw_fd()]
    }

    /// Sends the first three descriptors over a socket, which is the fourth. They stay open here. Fails with
    /// `WouldBlock` if the socket accepts no data now, which does not happen on a new one.
    pub fn send(memory: impl AsFd, wait: &Bell, ring: &Bell, socket: impl AsFd) -> io::Result<()> {
        let fds = [memory.as_fd(), wait.as_fd(), ring.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        assert!(beside.push(SendAncillaryMessage::ScmRights(&fds)), "room for three");
        let sent = rustix::net::sendmsg(socket, &[IoSlice::new(&MAGIC)], &mut beside, SendFlags::NOSIGNAL)?;
        if sent == MAGIC.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }

    /// Receives descriptors from a socket. Fails with `WouldBlock` if none are available, and with `InvalidData` if the
    /// peer does not serve channels. The socket is returned with the error.
    pub fn receive(socket: OwnedFd) -> Result<Self, (io::Error, OwnedFd)> {
        match Self::take(&socket) {
            Ok([memory, wait, ring]) => {
                Ok(Self { memory, wait: wait.into(), ring: ring.into(), life: socket })
            }
            Err(error) => Err((error, socket)),
        }
    }

    fn take(socket: &OwnedFd) -> io::Result<[OwnedFd; 3]> {
        let mut bytes = [0; MAGIC.len()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let came = rustix::net::recvmsg(socket, &mut parts, &mut beside, RecvFlags::CMSG_CLOEXEC)?;
        let mut fds = beside.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(fds) => Some(fds),
            _ => None,
        });
        let mut fds = fds.by_ref().flatten();
        let ours = (fds.next(), fds.next(), fds.next(), fds.next());
        match ours {
            (Some(memory), Some(wait), Some(ring), None)
                if bytes == MAGIC && !came.flags.contains(ReturnFlags::CTRUNC) =>
            {
                Ok([memory, wait, ring])
            }
            // For example, too many clients are connected.
            _ if came.bytes == 0 => {
                let why = "who listens there has hung up without giving a channel";
                Err(io::Error::new(io::ErrorKind::UnexpectedEof, why))
            }
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "who listens there gives no channels")),
        }
    }
}

/// Blocks this thread until the doorbell is rung (`true`) or the other side ends (`false`). Fails with `TimedOut` after
/// `limit`.
pub fn wait(bell: &Bell, life: &OwnedFd, limit: Option<std::time::Duration>) -> io::Result<bool> {
    let limit =
        limit.map(|limit| Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: limit.subsec_nanos().into() });
    loop {
        let mut fds = [
            PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN),
            PollFd::from_borrowed_fd(life.as_fd(), PollFlags::RDHUP),
        ];
        match rustix::event::poll(&mut fds, limit.as_ref()) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) if !fds[0].revents().is_empty() => {
                bell.hear();
                return Ok(true);
            }
            Ok(_) => return Ok(false),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sets whether a descriptor stays open across exec(2).
pub fn keep_through_exec(fd: impl AsFd, keep: bool) -> io::Result<()> {
    Ok(rustix::io::fcntl_setfd(fd, if keep { FdFlags::empty() } else { FdFlags::CLOEXEC })?)
}

/// Closes all present descriptors except the standard files on exec(2), including those that this program has
/// inherited.
pub fn close_all_on_exec() -> io::Result<()> {
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        // One entry is the descriptor of this directory itself.
        number.filter(|&number: &RawFd| number > 2).map(sys::close_on_exec);
    }
    Ok(())
}

#[cfg(all(test, not(any(nine_loom, nine_shuttle))))]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn a_bell_waits_for_nobody_who_has_made_it_wait() {
        let (bell, other) = (Bell::new().unwrap(), Bell::new().unwrap());
        bell.ring_at_once();
        assert!(bell.hear() && !bell.hear());
        for bell in [&bell, &other] {
            rustix::fs::fcntl_setfl(bell, OFlags::empty()).unwrap();
            rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes()).unwrap();
        }
        // More rings than the kernel stores answers for.
        let threads: std::vec::Vec<_> = (0..4)
            .map(|_| {
                let bell = bell.try_clone().unwrap();
                std::thread::spawn(move || (0..10_000).for_each(|_| bell.ring_at_once()))
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(bell.hear() && !bell.hear());
        bell.ring_at_once();
        assert!(bell.hear() && other.hear() && !other.hear());
    }
}
