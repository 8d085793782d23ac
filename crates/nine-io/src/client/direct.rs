//! Files that are called where their server is in this process ([`Direct`]), and asked by message everywhere else.

use std::future::poll_fn;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::Poll;

use nine_proto::msg::{Data, Tmsg};
use nine_proto::{Errno, Fid};
use rustix::fs::{Advice, fadvise};

use super::Client;
use super::call::Call;
use super::error::{Error, Result};
use super::file::File;
use super::flow::{takes_nothing, wrote};
use crate::direct::{Called, Direct};
use crate::payload::Payload;

/// Bytes of a file that has been waiting to be sent, looked at before they are.
const STALE: u32 = 64 << 10;
/// How often, before the kernel is made to wait for them.
const LOOKS: u32 = 10_000;

impl Client {
    /// The open file behind a fid, if its server is in this process: told once after each open.
    pub fn direct(&self, fid: Fid) -> Option<Arc<dyn Direct>> {
        self.0.shared.directs.as_ref()?.take(fid)
    }
}

impl File {
    /// Whether it is open, and called: its server is in this process and lets it.
    pub fn is_called(&self) -> bool {
        self.direct().is_some()
    }

    /// One read: bytes from `offset`, at most `count` and [`File::iounit`]; none: the end. What a server of this
    /// process has in the page cache comes as a range of its file, and is to be passed on soon.
    ///
    /// Concurrency: one of these at a time where reads wait (a connection, a console).
    pub async fn read_payload(&self, offset: u64, count: u32) -> Result<Payload> {
        let count = count.min(self.iounit());
        if let Some(direct) = self.direct() {
            let called = poll_fn(|cx| called(direct.read(Some(cx), offset, count))).await;
            if let Some(answer) = called {
                return answer;
            }
        }
        self.read(offset, count).await.map(Payload::Bytes)
    }

    /// The same where nothing has to be waited for. `None`: [`File::read`] finds out.
    pub fn read_now(&self, offset: u64, count: u32) -> Option<Result<Payload>> {
        match self.direct()?.read(None, offset, count.min(self.iounit())) {
            Called::Done(read) => Some(read.map_err(Error::Remote)),
            Called::Waits | Called::Message => None,
        }
    }

    /// One write where nothing has to be waited for: how many bytes have been taken. `None`: nothing has, and
    /// [`File::write_at`] finds out.
    pub fn write_now(&self, offset: u64, data: &Payload) -> Option<Result<usize>> {
        match self.direct()?.write_now(offset, data) {
            Called::Done(written) => Some(written.map_err(Error::Remote)),
            Called::Waits | Called::Message => None,
        }
    }

    /// The file of the host behind it, where that can be read and written instead.
    pub fn backing(&self) -> Option<Arc<OwnedFd>> {
        self.direct()?.backing()
    }

    /// Writes all of this from `offset` on, in order, and lets go of what has been taken. On an error `data` is what
    /// has not been.
    ///
    /// A range of a file that has become shorter is an error of the errno EIO: nothing stands for what is missing.
    ///
    /// Concurrency: one of these at a time.
    pub async fn write_payloads(&self, mut offset: u64, data: &mut Vec<Payload>) -> Result<()> {
        while !data.is_empty() {
            offset += self.write_some(offset, data).await?;
        }
        Ok(())
    }

    /// The same until something has been taken: how many bytes.
    pub async fn write_some(&self, offset: u64, data: &mut Vec<Payload>) -> Result<u64> {
        data.retain(|part| !part.is_empty());
        if data.is_empty() {
            return Ok(0);
        }
        if let Some(direct) = self.direct() {
            // How often it is looked whether the kernel has what was resident before a wait.
            let mut looks = 0;
            let written = poll_fn(|cx| {
                if looks > 0 && !fetched(data) {
                    // The kernel fetches it while others have their turns.
                    looks -= 1;
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                let polled = called(direct.write(cx, offset, data));
                looks = if polled.is_pending() { LOOKS } else { 0 };
                polled
            });
            match written.await {
                Some(Ok(0)) => return Err(takes_nothing()),
                Some(Ok(n)) => return Ok(advance(data, n)),
                Some(Err(error)) => return Err(error),
                None => {}
            }
        }
        self.write_message(offset, data).await
    }

    async fn write_message(&self, offset: u64, data: &mut Vec<Payload>) -> Result<u64> {
        let piece = data[0].read(self.iounit().min(STALE) as usize).map_err(lost)?;
        let message = Tmsg::Write { fid: self.fid(), offset, data: Data::Count(piece.len() as u32) };
        let answer = Call::with_payload(&self.client().0.shared, message, piece).await?;
        match wrote(answer)? {
            0 => Err(takes_nothing()),
            n => Ok(advance(data, n as usize)),
        }
    }
}

/// What a call comes to, for whoever waits. `None`: by message.
fn called<T>(called: Called<T>) -> Poll<Option<Result<T>>> {
    match called {
        Called::Done(done) => Poll::Ready(Some(done.map_err(Error::Remote))),
        Called::Waits => Poll::Pending,
        Called::Message => Poll::Ready(None),
    }
}

/// Whether the next bytes of a file can be sent without waiting for the disk; else they are being fetched.
fn fetched(data: &[Payload]) -> bool {
    let of_file = data.iter().find(|part| matches!(part, Payload::File { .. }));
    let Some(Payload::File { file, offset, len, resident }) = of_file else { return true };
    let next = u64::from((*len).min(STALE));
    if resident(file.as_fd(), *offset, next) {
        return true;
    }
    let _ = fadvise(file, *offset, NonZeroU64::new(next), Advice::WillNeed);
    false
}

/// So many bytes have been taken.
fn advance(data: &mut Vec<Payload>, taken: usize) -> u64 {
    let mut left = taken;
    let mut whole = 0;
    for part in data.iter_mut() {
        let n = left.min(part.len());
        part.advance(n);
        left -= n;
        if !part.is_empty() {
            break;
        }
        whole += 1;
    }
    data.drain(..whole);
    taken as u64
}

fn lost(error: io::Error) -> Error {
    Error::refused(Errno::EIO, &error.to_string())
}
