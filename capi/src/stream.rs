//! Streams: `stream`, `sread`, `swrite` and `sclose` of the seed (Floren), with compatibility mode where the server has
//! none.

use std::sync::{Arc, Mutex, PoisonError};

use nine_io::client::{self, blocking};
use nine_proto::Errno;

use crate::fail::Fail;

/// A file in order. Threads take turns.
pub struct Stream {
    client: blocking::Client,
    /// `None`: ended.
    stream: Mutex<Option<client::Stream<Arc<client::File>>>>,
}

impl Stream {
    pub fn new(client: blocking::Client, stream: client::Stream<Arc<client::File>>) -> Self {
        Self { client, stream: Mutex::new(Some(stream)) }
    }

    /// The next bytes, as many as have come; 0 at the end.
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

    /// Ends it, when whoever uses it has had his turn; says how many bytes were moved.
    pub fn close(&self) -> Result<u64, Fail> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner).take();
        Ok(self.client.wait(stream.ok_or_else(ended)?.sclose())?)
    }
}

fn ended() -> Fail {
    Fail::new(Errno::EBADF, "the stream was closed")
}
