//! A call that is up: a stream of messages, and a transport of bytes.

use std::io::{self, IoSlice};
use std::task::{Context, Poll, ready};

use nine_stream::{Block, Chain, Fault, Putting, Reading, Stream};

use crate::ether::Mac;
use crate::transport::{Peer, Proof, Transport};

/// Bytes of a write that become a chain at once. Messages as long as may be: their numbers have 8 bits, and a packet
/// that comes when its number is another message's is taken for that one's, so the numbers shall last.
const WRITE: usize = 64 << 10;

/// One end of a call. Its [`Stream`] has messages, with their borders, of at most
/// [`MESSAGE_MAX`](super::MESSAGE_MAX) bytes: longer ones are cut. As a [`Transport`] it carries bytes. Dropped, it
/// hangs up when all that was written is acknowledged.
pub struct Call {
    stream: Stream,
    reading: Reading,
    putting: Putting,
    /// The other end has hung up in good order, and all was read.
    ended: bool,
    /// What was taken and not put.
    writing: Option<Chain>,
    peer: Peer,
    address: Mac,
    user: String,
}

impl Call {
    pub(super) fn new(stream: Stream, address: Mac, service: &str, user: &str) -> Self {
        let peer = Peer { addr: format!("nonet!{address}!{service}"), proof: Proof::None };
        let (reading, putting) = (stream.reading(), stream.putting());
        Self { stream, reading, putting, ended: false, writing: None, peer, address, user: user.into() }
    }

    /// Its messages.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// The other end's card.
    pub fn address(&self) -> Mac {
        self.address
    }

    /// Who calls. Nothing proves it.
    pub fn user(&self) -> &str {
        &self.user
    }

    fn poll_put(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &self.writing {
            Some(_) => self.putting.poll(cx, &mut self.writing).map_err(broken),
            None => Poll::Ready(Ok(())),
        }
    }
}

fn broken(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, fault)
}

impl Transport for Call {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        // The stream says a good end a few times, and then it is an error; here it stays one.
        while !self.ended && !buf.is_empty() {
            let Some(chain) = ready!(self.reading.poll(cx, Some(buf.len()))).map_err(broken)? else {
                self.ended = true;
                break;
            };
            let mut n = 0;
            for block in chain {
                buf[n..n + block.len()].copy_from_slice(block.data());
                n += block.len();
            }
            // An empty message is nothing in a stream of bytes.
            if n > 0 {
                return Poll::Ready(Ok(n));
            }
        }
        Poll::Ready(Ok(0))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        ready!(self.poll_put(cx))?;
        let mut data = Vec::with_capacity(bufs.iter().map(|buf| buf.len()).sum::<usize>().min(WRITE));
        for buf in bufs {
            data.extend_from_slice(&buf[..buf.len().min(WRITE - data.len())]);
        }
        let n = data.len();
        let mut block = Block::from(data);
        block.delim = true;
        self.writing = Some(block.into());
        match self.poll_put(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(n)),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_put(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_put(cx))?;
        self.stream.finish();
        Poll::Ready(Ok(()))
    }

    fn status(&self) -> String {
        self.stream.modules().iter().map(|(name, says)| format!("{name} {says}\n")).collect()
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use nine_stream::{Device, Make, Pool};

    use super::*;

    fn call() -> (Call, Device) {
        let (stream, device) = Stream::new(&Make::new(Pool::new(1 << 20)));
        (Call::new(stream, Mac([2, 0, 0, 0, 0, 1]), "echo", "glenda"), device)
    }

    fn read(call: &mut Call, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        call.poll_read(&mut Context::from_waker(Waker::noop()), buf)
    }

    #[test]
    fn a_good_end_stays_a_good_end_and_a_bad_one_a_bad_one() {
        let (mut good, device) = call();
        device.hangup(None);
        let (mut bad, device) = call();
        device.hangup(Some(Fault::new("the link has gone")));
        for _ in 0..1000 {
            assert!(matches!(read(&mut good, &mut [0; 9]), Poll::Ready(Ok(0))));
            assert!(matches!(read(&mut bad, &mut [0; 9]), Poll::Ready(Err(_))));
        }
    }

    #[test]
    fn a_read_of_nothing_takes_nothing() {
        let (mut call, device) = call();
        assert!(matches!(read(&mut call, &mut []), Poll::Ready(Ok(0))));
        let mut message = Block::from(b"message".to_vec());
        message.delim = true;
        assert!(device.try_put(message).is_ok());
        assert!(matches!(read(&mut call, &mut []), Poll::Ready(Ok(0))));
        let mut buf = [0; 9];
        assert!(matches!(read(&mut call, &mut buf), Poll::Ready(Ok(7))));
        assert_eq!(&buf[..7], b"message");
    }
}
