//! Reads and writes a stream of messages as bytes, for protocols that run over one.
//!
//! Always holds: at most one message is buffered here. A regular end is reported as such on every further read.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use nine_stream::{Block, Chain, Fault, Putting, Reading, Stream};

pub(crate) struct MessageStream {
    reading: Reading,
    putting: Putting,
    /// A written message that the stream has not accepted yet.
    going: Option<Chain>,
    ended: bool,
}

impl MessageStream {
    pub(crate) fn of(stream: &Stream) -> Self {
        Self { reading: stream.reading(), putting: stream.putting(), going: None, ended: false }
    }

    pub(crate) fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        while !self.ended && !buf.is_empty() {
            let Some(chain) = ready!(self.reading.poll(cx, Some(buf.len())))
                .map_err(|fault| io::Error::new(io::ErrorKind::ConnectionReset, fault))?
            else {
                self.ended = true;
                break;
            };
            let mut n = 0;
            for block in chain {
                buf[n..n + block.len()].copy_from_slice(block.data());
                n += block.len();
            }
            // An empty message contributes no bytes.
            if n > 0 {
                return Poll::Ready(Ok(n));
            }
        }
        Poll::Ready(Ok(0))
    }

    /// Takes a message of at most `most` bytes. Returns its length. If the stream does not accept it, it is buffered
    /// here, and the next write waits.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
        most: usize,
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_flush(cx))?;
        let total: usize = bufs.iter().map(|buf| buf.len()).sum();
        if total == 0 {
            return Poll::Ready(Ok(0));
        }
        let mut message = Vec::with_capacity(total.min(most));
        for buf in bufs {
            message.extend_from_slice(&buf[..buf.len().min(most - message.len())]);
        }
        let n = message.len();
        let mut block = Block::from(message);
        block.delim = true;
        self.going = Some(block.into());
        match self.poll_flush(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(n)),
        }
    }

    pub(crate) fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let broken = |fault: Fault| io::Error::new(io::ErrorKind::BrokenPipe, fault);
        match self.going {
            Some(_) => self.putting.poll(cx, &mut self.going).map_err(broken),
            None => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(all(test, not(nine_loom)))]
mod tests {
    use std::task::Waker;

    use nine_stream::{Device, Make, Pool};

    use super::*;

    fn messages() -> (MessageStream, Stream, Device) {
        let (stream, device) = Stream::new(&Make::new(Pool::new(1 << 20)));
        (MessageStream::of(&stream), stream, device)
    }

    fn read(messages: &mut MessageStream, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        messages.poll_read(&mut Context::from_waker(Waker::noop()), buf)
    }

    #[test]
    fn a_good_end_stays_a_good_end_and_a_bad_one_a_bad_one() {
        let (mut good, _stream, device) = messages();
        device.hangup(None);
        let (mut bad, _other, device) = messages();
        device.hangup(Some(Fault::new("the link has gone")));
        for _ in 0..1000 {
            assert!(matches!(read(&mut good, &mut [0; 9]), Poll::Ready(Ok(0))));
            assert!(matches!(read(&mut bad, &mut [0; 9]), Poll::Ready(Err(_))));
        }
    }

    #[test]
    fn a_read_of_nothing_takes_nothing() {
        let (mut messages, _stream, device) = messages();
        assert!(matches!(read(&mut messages, &mut []), Poll::Ready(Ok(0))));
        let mut message = Block::from(b"message".to_vec());
        message.delim = true;
        assert!(device.try_put(message).is_ok());
        assert!(matches!(read(&mut messages, &mut []), Poll::Ready(Ok(0))));
        let mut buf = [0; 9];
        assert!(matches!(read(&mut messages, &mut buf), Poll::Ready(Ok(7))));
        assert_eq!(&buf[..7], b"message");
    }
}
