//! The receiving half of a connection: bytes in, whole frames out.
//!
//! In: reads of a [`Transport`]. Out: [`MessageFrame`]s. Always holds: a buffer is held only while part of a frame is
//! in it. A large frame gets a buffer of its size only once half of an ordinary one is full. A small partial frame
//! waits in memory of its own size.

use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};

use nine_net::{Placed, Transport};
use nine_proto::WireError;
use nine_proto::frame::{self, Split};

use crate::buf::{FrameBuffer, FramePool, MessageFrame, PARTIAL_EXACT_MAX, READ_SIZE, WRITE_HEAD};

#[derive(Default)]
pub(crate) struct FrameReceiver {
    buf: Option<Arc<FrameBuffer>>,
    /// The unparsed input: `buf[start..end]`.
    start: usize,
    end: usize,
    /// The unparsed input while there is no `buf`: part of a small frame.
    parked: Vec<u8>,
    /// Size of the partial frame in bytes, if it is known.
    need: usize,
    /// The data of a write, if only its head is in the buffer.
    placed: Option<Placed>,
    /// Bytes received.
    pub(crate) total: u64,
}

impl FrameReceiver {
    /// Returns the next whole frame, if there is one.
    pub(crate) fn frame(&mut self, msize: u32) -> Result<Option<MessageFrame>, WireError> {
        let Some(buf) = &self.buf else { return Ok(None) };
        if let Some(data) = self.placed.take() {
            let head = buf.bytes[self.start..self.end].try_into().expect("the head of a write");
            (self.start, self.need) = (self.end, 0);
            return Ok(Some(MessageFrame::placed(head, data)));
        }
        match frame::split(&buf.bytes[self.start..self.end], msize)? {
            Split::Whole(len) => {
                let frame = MessageFrame::new(buf.clone(), self.start, self.start + len);
                self.start += len;
                self.need = 0;
                Ok(Some(frame))
            }
            Split::Partial(need) => {
                self.need = need;
                Ok(None)
            }
        }
    }

    /// Reads once. Ready(0): the peer has closed its side. Call it only when [`FrameReceiver::frame`] returns no frame.
    pub(crate) fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut dyn Transport,
        pool: impl FnOnce() -> FramePool,
    ) -> Poll<io::Result<usize>> {
        if let Some(data) = self.take_placed(transport) {
            let len = data.len();
            self.total += len as u64;
            self.placed = Some(data);
            return Poll::Ready(Ok(len));
        }
        self.make_room(pool);
        let buf = self.buf.as_mut().and_then(Arc::get_mut).expect("room was made in a buffer of our own");
        match transport.poll_read(cx, &mut buf.bytes[self.end..]) {
            Poll::Ready(Ok(n)) => {
                self.end += n;
                self.total += n as u64;
                Poll::Ready(Ok(n))
            }
            other => {
                self.park();
                other
            }
        }
    }

    /// Takes the data of a write after its head has arrived, if it lies where the client has placed it.
    fn take_placed(&mut self, transport: &mut dyn Transport) -> Option<Placed> {
        let head = &self.buf.as_ref()?.bytes[self.start..self.end];
        let is_head = head.len() == WRITE_HEAD && self.need > WRITE_HEAD && frame::type_of(head) == TWRITE;
        is_head.then(|| transport.take_placed(self.need - WRITE_HEAD)).flatten()
    }

    /// Bytes of memory that the unparsed input occupies.
    pub(crate) fn held(&self) -> usize {
        self.buf.as_ref().map_or(self.parked.capacity(), |buf| buf.bytes.len())
    }

    /// The unparsed input.
    pub(crate) fn rest(&self) -> &[u8] {
        match &self.buf {
            Some(buf) => &buf.bytes[self.start..self.end],
            None => &self.parked,
        }
    }

    /// The type of the first message, if all of it has arrived; 0 if it is malformed.
    pub(crate) fn front_type(&self, msize: u32) -> Option<u8> {
        let bytes = &self.buf.as_ref()?.bytes[self.start..self.end];
        match frame::split(bytes, msize) {
            Ok(Split::Whole(_)) => Some(frame::type_of(bytes)),
            Ok(Split::Partial(_)) => None,
            Err(_) => Some(0),
        }
    }

    /// Makes sure that `buf` is unshared and has free space after `end`.
    fn make_room(&mut self, pool: impl FnOnce() -> FramePool) {
        let have = self.end - self.start;
        if let Some(buf) = &mut self.buf {
            // A buffer whose earlier frames are all dropped is used again, unless it is too small for the partial
            // frame in it. Otherwise a fresh one is taken.
            let fits = self.need <= buf.bytes.len() - self.start && self.end < buf.bytes.len();
            if let Some(own) = Arc::get_mut(buf) {
                if have == 0 {
                    (self.start, self.end) = (0, 0);
                    return;
                }
                if fits {
                    return;
                }
                if self.need <= own.bytes.len() {
                    own.bytes.copy_within(self.start..self.end, 0);
                    (self.start, self.end) = (0, have);
                    return;
                }
            }
        }
        // A large frame gets its own buffer once its first part has filled half of an ordinary one.
        let len = if have >= READ_SIZE / 2 { self.need } else { READ_SIZE };
        let mut fresh = pool().take(len);
        let into = Arc::get_mut(&mut fresh).expect("a fresh buffer is ours alone");
        let old: &[u8] = match &self.buf {
            Some(buf) => &buf.bytes[self.start..self.end],
            None => &self.parked,
        };
        let have = old.len();
        into.bytes[..have].copy_from_slice(old);
        self.parked = Vec::new();
        self.buf = Some(fresh);
        (self.start, self.end) = (0, have);
    }

    /// Returns the buffer if it holds little or nothing, because no more input is available now.
    fn park(&mut self) {
        let have = self.end - self.start;
        if have <= PARTIAL_EXACT_MAX {
            if let Some(buf) = self.buf.take() {
                self.parked = buf.bytes[self.start..self.end].to_vec();
            }
            (self.start, self.end) = (0, 0);
        }
    }
}

const TWRITE: u8 = 118;

#[cfg(test)]
mod tests {
    use super::*;
    use nine_net::{Peer, Proof};
    use std::io::IoSlice;
    use std::task::Waker;

    /// Returns its bytes in pieces of the given sizes, then is pending.
    struct Pieces(Vec<Vec<u8>>, Peer);

    impl Pieces {
        fn new(mut pieces: Vec<Vec<u8>>) -> Self {
            pieces.reverse();
            Self(pieces, Peer { addr: "test".into(), proof: Proof::None })
        }
    }

    impl Transport for Pieces {
        fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            let Some(mut piece) = self.0.pop() else { return Poll::Pending };
            let n = piece.len().min(buf.len());
            buf[..n].copy_from_slice(&piece[..n]);
            if n < piece.len() {
                self.0.push(piece.split_off(n));
            }
            Poll::Ready(Ok(n))
        }
        fn poll_write(&mut self, _: &mut Context<'_>, _: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn peer(&self) -> &Peer {
            &self.1
        }
    }

    fn message(len: usize, fill: u8) -> Vec<u8> {
        let mut bytes = vec![fill; len];
        bytes[..4].copy_from_slice(&(len as u32).to_le_bytes());
        bytes
    }

    /// Reads until pending and checks that exactly these frames arrive; meanwhile it holds every `keep`-th frame.
    fn check(pieces: Vec<Vec<u8>>, expected: &[Vec<u8>], keep: usize) -> FrameReceiver {
        let (mut rx, pool, mut transport) =
            (FrameReceiver::default(), FramePool::default(), Pieces::new(pieces));
        let mut cx = Context::from_waker(Waker::noop());
        let (mut kept, mut seen) = (Vec::new(), 0);
        loop {
            while let Some(frame) = rx.frame(frame::MSIZE_MAX).unwrap() {
                assert_eq!(frame.as_ref(), expected[seen], "frame {seen}");
                seen += 1;
                if seen % keep == 0 {
                    kept.push((seen - 1, frame));
                }
            }
            if rx.poll_fill(&mut cx, &mut transport, || pool.clone()).is_pending() {
                break;
            }
        }
        assert_eq!(seen, expected.len());
        for (i, frame) in kept {
            assert_eq!(frame.as_ref(), expected[i], "kept frame {i}");
        }
        rx
    }

    #[test]
    fn frames_come_out_whole_however_they_are_cut() {
        let sizes = [7, 30, 4096, 70_000, 8, 65_536, 65_537, 300_000, 23, 131_072];
        let frames: Vec<_> = sizes.iter().enumerate().map(|(i, &n)| message(n, i as u8)).collect();
        let all = frames.concat();
        for cut in [1, 3, 6, 7, 100, 4096, 65_535, 65_536, 1 << 20] {
            for keep in [1, 2, 100] {
                check(all.chunks(cut).map(<[u8]>::to_vec).collect(), &frames, keep);
            }
        }
    }

    #[test]
    fn an_idle_connection_owns_no_buffer_and_a_slow_one_a_small_one() {
        let rx = check(vec![message(30, 1)], &[message(30, 1)], 1);
        assert!(rx.buf.is_none() && rx.parked.capacity() == 0);
        let rx = check(vec![message(900_000, 1)[..1000].to_vec()], &[], 1);
        assert!(rx.buf.is_none() && rx.parked.len() == 1000);
    }

    #[test]
    fn an_announced_size_takes_no_memory_before_its_bytes_come() {
        let rx = check(vec![message(900_000, 1)[..20_000].to_vec()], &[], 1);
        assert_eq!(rx.buf.unwrap().bytes.len(), READ_SIZE);
    }
}
