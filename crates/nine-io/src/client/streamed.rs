//! Whole files over [`Stream`]s.
//!
//! In: an open file, and bytes or another open file. Out: a stream; or all bytes moved, whatever becomes of data
//! connections. Always holds: only a broken data connection is replaced. Any other error ends the call.

use bytes::Bytes;
use nine_proto::GetMask;

use super::error::{Error, Result};
use super::file::File;
use super::stream::{Direction, Stream};

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
