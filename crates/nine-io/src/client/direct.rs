//! Calls of open files whose server is in this process ([`Direct`]); all other files get messages.

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
use super::call::ClientCall;
use super::error::{Error, Result};
use super::file::File;
use super::flow::{takes_nothing, wrote};
use crate::direct::{Called, Direct};
use crate::payload::Payload;

/// Bytes of a waiting file range that are checked for residency before they are sent.
const STALE: u32 = 64 << 10;
/// How often they are checked before the send itself waits for the disk.
const LOOKS: u32 = 10_000;

impl Client {
    /// Takes the open file behind a fid, if its server is in this process: available once after each open.
    pub fn direct(&self, fid: Fid) -> Option<Arc<dyn Direct>> {
        self.0.shared.directs.as_ref()?.take(fid)
    }
}

impl File {
    /// Whether it is open and can be called without messages.
    pub fn is_called(&self) -> bool {
        self.direct().is_some()
    }

    /// One read of at most `count` and [`File::iounit`] bytes from `offset`; none at the end. Data in the page cache of
    /// a server in this process is returned as a range of its file, and should be passed on soon.
    ///
    /// Concurrency: only one at a time if reads may wait (a connection, a console).
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

    /// Like [`File::read_payload`], if it need not wait. `None`: use [`File::read`].
    pub fn read_now(&self, offset: u64, count: u32) -> Option<Result<Payload>> {
        match self.direct()?.read(None, offset, count.min(self.iounit())) {
            Called::Done(read) => Some(read.map_err(Error::Remote)),
            Called::Waits | Called::Message => None,
        }
    }

    /// One write if it need not wait: returns the number of bytes taken. `None`: nothing was taken; use
    /// [`File::write_at`].
    pub fn write_now(&self, offset: u64, data: &Payload) -> Option<Result<usize>> {
        match self.direct()?.write_now(offset, data) {
            Called::Done(written) => Some(written.map_err(Error::Remote)),
            Called::Waits | Called::Message => None,
        }
    }

    /// Returns the host file behind it, if that can be read and written instead.
    pub fn backing(&self) -> Option<Arc<OwnedFd>> {
        self.direct()?.backing()
    }

    /// Writes all of `data` from `offset` on, in order, and removes the parts that were taken. After an error `data` is
    /// the rest.
    ///
    /// A file range that has become shorter is an error with the errno EIO; nothing replaces the missing bytes.
    ///
    /// Concurrency: one of these at a time.
    pub async fn write_payloads(&self, mut offset: u64, data: &mut Vec<Payload>) -> Result<()> {
        while !data.is_empty() {
            offset += self.write_some(offset, data).await?;
        }
        Ok(())
    }

    /// Writes until some bytes are taken, and returns their number.
    pub async fn write_some(&self, offset: u64, data: &mut Vec<Payload>) -> Result<u64> {
        data.retain(|part| !part.is_empty());
        if data.is_empty() {
            return Ok(0);
        }
        if let Some(direct) = self.direct() {
            // How often residency is checked again, because the range may have left the page cache while it waited.
            let mut looks = 0;
            let written = poll_fn(|cx| {
                if looks > 0 && !fetched(data) {
                    // The kernel reads it while other tasks run.
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
        let answer = ClientCall::with_payload(&self.client().0.shared, message, piece).await?;
        match wrote(answer)? {
            0 => Err(takes_nothing()),
            n => Ok(advance(data, n as usize)),
        }
    }
}

/// Converts the result of a call for a waiting caller. `None`: a message is needed.
fn called<T>(called: Called<T>) -> Poll<Option<Result<T>>> {
    match called {
        Called::Done(done) => Poll::Ready(Some(done.map_err(Error::Remote))),
        Called::Waits => Poll::Pending,
        Called::Message => Poll::Ready(None),
    }
}

/// Whether the next bytes of a file range can be sent without waiting for the disk; if not, starts reading them.
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

/// Removes the bytes that were taken.
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
