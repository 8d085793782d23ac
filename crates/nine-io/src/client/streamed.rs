//! Whole files over [`Stream`]s, and streams as futures-io knows them.
//!
//! In: an open file, and bytes or another open file. Out: a stream; or all bytes moved, whatever becomes of data
//! connections. Always holds: only a broken data connection is replaced. Any other error ends the call.

use std::io;
use std::ops::Deref;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures_io::{AsyncRead, AsyncWrite};
use nine_proto::GetMask;

use super::error::{Error, Result};
use super::file::File;
use super::stream::{DATA_PIECE_MAX, Direction, Stream, StreamTransfer, other_way};

impl File {
    /// Reads or writes the file in order from `offset` on. For a read it asks for the length first. If you know the
    /// length, or the length to be written, use [`Stream::begin`], which saves a round trip.
    pub async fn stream(&self, offset: u64, direction: Direction) -> Result<Stream<&Self>> {
        let end = match direction {
            // A file without a known length is read piece by piece.
            Direction::Read => self.getattr(GetMask::SIZE).await.map_or(0, |attr| attr.size),
            Direction::Write => u64::MAX,
        };
        Ok(Stream::begin(self, offset, end, direction))
    }

    /// Writes all of `data` from `offset` on. If its data connection breaks, it continues behind the stored bytes.
    ///
    /// Cancellation: the number of written bytes is unknown.
    pub async fn write_streamed(&self, offset: u64, data: Bytes) -> Result<()> {
        let (mut done, end) = (0, offset.saturating_add(data.len() as u64));
        loop {
            let mut stream = Stream::begin(self, offset + done, end, Direction::Write);
            let written = match stream.push(data.slice(done as usize..)).await {
                Ok(()) => stream.finish().await,
                failed => failed,
            };
            match written {
                Err(Error::Stream { .. }) => done += stream.moved(),
                written => return written,
            }
        }
    }

    /// Copies all of this file to the same offsets of `to`, and returns the number of bytes. `size` is its length as
    /// far as it is known, else 0. If a data connection breaks, it continues behind the stored bytes.
    ///
    /// Cancellation: the number of copied bytes is unknown.
    pub async fn copy_streamed(&self, to: &Self, size: u64) -> Result<u64> {
        let mut done = 0;
        loop {
            let mut reader = Stream::begin(self, done, size, Direction::Read);
            let mut writer = Stream::begin(to, done, size, Direction::Write);
            let copied = async {
                while let Some(piece) = reader.next().await {
                    writer.push(piece?).await?;
                }
                writer.finish().await
            };
            let copied = copied.await;
            done += writer.moved();
            match copied {
                Err(Error::Stream { .. }) => {}
                copied => return copied.map(|()| done),
            }
        }
    }
}

impl<F: Deref<Target = File> + Clone + Unpin> AsyncRead for Stream<F> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        self.get_mut().poll_sread(cx, buf).map_err(io::Error::from)
    }
}

impl<F: Deref<Target = File> + Clone + Unpin> AsyncWrite for Stream<F> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        let n = buf.len().min(DATA_PIECE_MAX);
        this.rest = Bytes::copy_from_slice(&buf[..n]);
        // Bytes that are not passed on now stay here, and go first next time.
        match this.poll_drain(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error.into())),
            _ => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        ready!(this.poll_drain(cx))?;
        match &mut this.way {
            StreamTransfer::Write(writing) => writing.poll_flush(cx).map(Ok),
            StreamTransfer::Read(_) => Poll::Ready(Err(other_way().into())),
        }
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_finish(cx).map_err(io::Error::from)
    }
}
