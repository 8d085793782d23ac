//! Two ends of a pipe in memory: a connection of this process with itself.
//!
//! Always holds: at most [`ROOM`] bytes are buffered in each direction, beyond that a writer waits. An idle pipe owns
//! no buffer.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use crate::sync::{Mutex, lock};
use crate::transport::{Beside, Peer, Transport};

/// Maximum number of bytes buffered in one direction.
pub const ROOM: usize = 256 * 1024;

/// One end. Dropping it closes both directions.
pub struct Pipe {
    ways: Arc<[Mutex<PipeDirection>; 2]>,
    beside: Arc<OnceLock<Beside>>,
    /// The index of the direction that is read here. The other one is written.
    side: usize,
    peer: Peer,
}

#[derive(Default)]
struct PipeDirection {
    bytes: VecDeque<u8>,
    closed: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
    /// The waker of a task that waits only for the close.
    watcher: Option<Waker>,
}

/// Creates two ends. The arguments are the peers that each end reports.
pub fn pipe(first_sees: Peer, second_sees: Peer) -> (Pipe, Pipe) {
    let ways = Arc::new([Mutex::new(PipeDirection::default()), Mutex::new(PipeDirection::default())]);
    let beside = Arc::new(OnceLock::new());
    let first = Pipe { ways: ways.clone(), beside: beside.clone(), side: 0, peer: first_sees };
    (first, Pipe { ways, beside, side: 1, peer: second_sees })
}

impl PipeDirection {
    fn close(&mut self) -> [Option<Waker>; 3] {
        self.closed = true;
        [self.reader.take(), self.writer.take(), self.watcher.take()]
    }
}

impl Pipe {
    fn incoming(&self) -> &Mutex<PipeDirection> {
        &self.ways[self.side]
    }

    fn outgoing(&self) -> &Mutex<PipeDirection> {
        &self.ways[1 - self.side]
    }
}

impl Transport for Pipe {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        let mut way = lock(self.incoming());
        if way.bytes.is_empty() {
            if way.closed {
                return Poll::Ready(Ok(0));
            }
            way.reader = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let n = io::Read::read(&mut way.bytes, buf)?;
        if way.bytes.is_empty() {
            way.bytes = VecDeque::new();
        }
        let writer = way.writer.take();
        drop(way);
        writer.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(n))
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let mut way = lock(self.outgoing());
        if way.closed {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = ROOM - way.bytes.len();
        if room == 0 {
            way.writer = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let mut n = 0;
        for buf in bufs {
            let part = &buf[..buf.len().min(room - n)];
            way.bytes.extend(part);
            n += part.len();
        }
        let reader = way.reader.take();
        drop(way);
        reader.into_iter().for_each(Waker::wake);
        Poll::Ready(Ok(n))
    }

    fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        let wakers = lock(self.outgoing()).close();
        wakers.into_iter().flatten().for_each(Waker::wake);
        Poll::Ready(Ok(()))
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut way = lock(self.incoming());
        if way.closed {
            return Poll::Ready(());
        }
        way.watcher = Some(cx.waker().clone());
        Poll::Pending
    }

    fn beside(&self) -> Option<&OnceLock<Beside>> {
        Some(&self.beside)
    }

    fn peer(&self) -> &Peer {
        &self.peer
    }
}

impl Drop for Pipe {
    fn drop(&mut self) {
        for way in &*self.ways {
            let wakers = lock(way).close();
            wakers.into_iter().flatten().for_each(Waker::wake);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::Proof;
    use crate::transport::testing::{close, join, read, write};

    fn ends() -> (Pipe, Pipe) {
        let peer = |addr: &str| Peer { addr: addr.into(), proof: Proof::None };
        pipe(peer("second"), peer("first"))
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_many() {
        let (mut a, mut b) = ends();
        let sent: Vec<u8> = (0..3 * ROOM).map(|i| (i % 251) as u8).collect();
        let sending = async {
            write(&mut a, &sent).await.unwrap();
            close(&mut a).await.unwrap();
        };
        let receiving = async {
            let mut came = Vec::new();
            loop {
                match read(&mut b).await.unwrap() {
                    end if end.is_empty() => return came,
                    part => came.extend(part),
                }
            }
        };
        let ((), came) = crate::rt::block_on(async |_| join(sending, receiving).await).unwrap();
        assert!(came == sent);
    }

    #[test]
    fn an_end_that_goes_is_noticed_by_the_other_and_what_it_sent_is_not_lost() {
        crate::rt::block_on(async |_| {
            let (mut a, mut b) = ends();
            assert_eq!(b.peer().addr, "first");
            write(&mut a, b"last").await.unwrap();
            drop(a);
            std::future::poll_fn(|cx| b.poll_hangup(cx)).await;
            assert_eq!(read(&mut b).await.unwrap(), b"last");
            assert_eq!(read(&mut b).await.unwrap(), b"");
            assert!(write(&mut b, b"x").await.is_err());
        })
        .unwrap();
    }
}
