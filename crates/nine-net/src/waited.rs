//! Descriptors other than sockets on the runtime: the end of a pipe, or a process whose end is awaited.
//!
//! In: descriptors. Out: their bytes, and their readiness. A [`Waited`] lives on the runtime of the thread that created
//! it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::task::{Context, Poll, ready};

use rustix::event::epoll;
use socket2::Socket as Raw;

use crate::socket::{AsyncFd, Interest};
use crate::sys;

/// See the module. One task waits for it.
#[derive(Debug)]
pub struct Waited(AsyncFd<Raw>);

impl Waited {
    /// A descriptor to read, or to wait for until it is readable. A pidfd is readable when its process has ended.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn reading(fd: OwnedFd) -> io::Result<Self> {
        Self::new(fd, Interest::READABLE)
    }

    /// A descriptor to write.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn writing(fd: OwnedFd) -> io::Result<Self> {
        Self::new(fd, Interest::WRITABLE)
    }

    fn new(fd: OwnedFd, interest: Interest) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        Ok(Self(sys::register_for(fd.into(), interest)?))
    }

    /// Ready when there is something to read, or the end.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(cx).map_ok(drop)
    }

    /// Reads the available bytes; 0 at the end.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_read_ready(cx))?;
            match rustix::io::read(guard.get_inner(), &mut *buf) {
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                done => return Poll::Ready(Ok(done?)),
            }
        }
    }

    /// Writes as many bytes as fit.
    pub fn poll_write(&mut self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.0.poll_write_ready(cx))?;
            match rustix::io::write(guard.get_inner(), bytes) {
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                done => return Poll::Ready(Ok(done?)),
            }
        }
    }
}

impl AsFd for Waited {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

/// A device that signals its end only by an error (`EPOLLERR`), as /dev/fuse does when it is unmounted. For reading;
/// one task drives it.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    /// Another epoll(7) instance, which is readable on any event of the device. The runtime itself cannot wait for
    /// errors alone.
    ready: AsyncFd<Raw>,
}

impl Device {
    /// Takes a device and makes it non-blocking.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { fd, ready: sys::register_for(ready.into(), Interest::READABLE)? })
    }

    /// Reads the available bytes: one message, if the device has messages.
    pub fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        loop {
            let mut guard = ready!(self.ready.poll_read_ready(cx))?;
            match rustix::io::read(&self.fd, &mut *buf) {
                Err(rustix::io::Errno::AGAIN) => guard.clear_ready(),
                Err(rustix::io::Errno::INTR) => {}
                done => return Poll::Ready(Ok(done?)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;
    use crate::rt::block_on;

    #[test]
    fn a_pipe_is_read_to_its_end_and_a_full_one_is_waited_for() {
        block_on(async |_| {
            let (reads, writes) = crate::kernel_pipe().unwrap();
            let (mut reads, mut writes) = (Waited::reading(reads).unwrap(), Waited::writing(writes).unwrap());
            let (mut came, mut piece) = (0, [0; 5000]);
            let mut sent = poll_fn(|cx| writes.poll_write(cx, &[7; 1000])).await.unwrap();
            poll_fn(|cx| {
                while let Poll::Ready(n) = writes.poll_write(cx, &[7; 1000]) {
                    sent += n.unwrap();
                }
                Poll::Ready(())
            })
            .await;
            drop(writes);
            while let n @ 1.. = poll_fn(|cx| reads.poll_read(cx, &mut piece)).await.unwrap() {
                came += n;
            }
            assert_eq!(came, sent);
        })
        .unwrap();
    }
}
