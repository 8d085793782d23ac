//! A descriptor that is no socket, on the runtime: the end of a pipe, or a process that shall end.
//!
//! In: descriptors. Out: their bytes, and when they are ready. A [`Waited`] lives on the runtime whose thread made it.

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
    /// To be read, or waited for until it is readable: a descriptor of a process is when that has ended.
    ///
    /// # Panics
    /// Outside a runtime.
    pub fn reading(fd: OwnedFd) -> io::Result<Self> {
        Self::new(fd, Interest::READABLE)
    }

    /// To be written.
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

    /// When there is something to read, or the end.
    pub fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_read_ready(cx).map_ok(drop)
    }

    /// Reads what there is; 0: the end.
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

    /// Writes as much as there is room for.
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

/// A device that says that it has ended by an error alone (`EPOLLERR`), as /dev/fuse does when it is unmounted. To be
/// read; one task waits for it.
#[derive(Debug)]
pub struct Device {
    fd: OwnedFd,
    /// Another epoll(7) instance, which is readable when anything at all is to be said of the device: the runtime waits
    /// for errors alone with nobody.
    ready: AsyncFd<Raw>,
}

impl Device {
    /// # Panics
    /// Outside a runtime.
    pub fn new(fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&ready, &fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Self { fd, ready: sys::register_for(ready.into(), Interest::READABLE)? })
    }

    /// Reads what there is: one message of a device that has messages.
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
