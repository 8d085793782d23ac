//! Streams: `stream`, `sread`, `swrite` and `sclose` of Floren, with a compatibility mode for servers without
//! streams.

use std::sync::{Arc, Mutex, PoisonError};

use nine_io::client::{self, blocking};
use nine_proto::Errno;

use crate::fail::Fail;

/// A file read or written in order, by one thread at a time.
pub struct Stream {
    client: blocking::Client,
    /// `None` after the end.
    stream: Mutex<Option<client::Stream<Arc<client::File>>>>,
}

impl Stream {
    pub fn new(client: blocking::Client, stream: client::Stream<Arc<client::File>>) -> Self {
        Self { client, stream: Mutex::new(Some(stream)) }
    }

    /// Reads the next available bytes; 0 at the end.
    pub fn read(&self, buf: &mut [u8]) -> Result<usize, Fail> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = stream.as_mut().ok_or_else(ended)?;
        Ok(self.client.wait(stream.sread(buf))?)
    }

    pub fn write(&self, data: &[u8]) -> Result<usize, Fail> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let stream = stream.as_mut().ok_or_else(ended)?;
        Ok(self.client.wait(stream.swrite(data))?)
    }

    pub fn has_connection(&self) -> bool {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        stream.as_ref().is_some_and(client::Stream::has_connection)
    }

    /// Ends the stream after a running call of another thread. Returns the number of bytes moved.
    pub fn close(&self) -> Result<u64, Fail> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(self.client.wait(stream.ok_or_else(ended)?.sclose())?)
    }
}

fn ended() -> Fail {
    Fail::new(Errno::EBADF, "the stream was closed")
}
