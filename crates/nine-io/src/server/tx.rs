//! The sending half of a connection: replies in, one vectored write for all of a batch out.
//!
//! Encoded messages gather in one buffer; file data joins them as a segment and is not copied unless it is small. A
//! file range goes from the page cache to the socket by sendfile where the transport can, else through memory here.
//! Bounded by the connection's credit (see `conn`): what is queued was charged before it was asked for.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_net::Transport;
use nine_proto::frame::{self, Split};
use nine_proto::msg::Rmsg;
use nine_proto::session::server::Out;
use nine_proto::{Dialect, Tag};

use crate::payload::{Payload, Resident, read_exact, shrunk};

/// Data up to this size is copied behind its message: one segment less.
const INLINE: usize = 2048;
/// Segments of one vectored write.
const SEGMENTS: usize = 64;
/// Bytes of a file range that are sent at once when it has waited, and is therefore asked again whether it is resident.
const STALE: usize = 256 * 1024;
/// Turns that a range which has left the page cache is waited for; then the send itself waits for the disk, so that a
/// file system that never keeps pages is served too.
const MISSES: u32 = 10_000;
/// The buffer for encoded messages is kept between batches up to this capacity.
const KEEP: usize = 64 * 1024;

#[derive(Default)]
pub(crate) struct Tx {
    /// What goes before `tail`, in order.
    segments: VecDeque<Segment>,
    /// Encoded messages that have not become a segment.
    tail: Vec<u8>,
    /// Bytes of the front (of the first segment, or of `tail`) that are sent.
    sent: usize,
    /// The transport may hold back bytes.
    unflushed: bool,
    /// What waits has waited: a file range in it may have left the page cache.
    stale: bool,
    /// How often a range that has left was asked for again.
    missed: u32,
    /// Bytes that wait in segments.
    queued: usize,
    /// Those of them that are in memory.
    held: usize,
    /// Bytes that the transport has taken.
    pub(crate) total: u64,
}

enum Segment {
    Bytes(Bytes),
    File { file: Arc<OwnedFd>, offset: u64, len: usize, resident: Resident },
}

impl Out<Payload> for Tx {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    fn payload(&mut self, payload: Payload) {
        if payload.len() > INLINE || matches!(payload, Payload::File { .. }) {
            // Its head is on its way before `trace` could see it.
            match self.last_tag() {
                Some(tag) => tracing::trace!("-> {} bytes of data for tag {tag}", payload.len()),
                None => tracing::trace!("-> {} bytes of a stream", payload.len()),
            }
        }
        match payload {
            Payload::Bytes(bytes) => self.payload_bytes(bytes),
            Payload::Pieces(pieces) => pieces.into_iter().for_each(|piece| self.payload_bytes(piece)),
            Payload::Placed(placed) => self.payload_bytes(placed.to_vec(placed.len()).into()),
            Payload::File { file, offset, len, resident } => {
                self.push(Segment::File { file, offset, len: len as usize, resident });
            }
        }
    }
}

impl Tx {
    /// Whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.tail.is_empty() && !self.unflushed
    }

    /// Bytes that wait to be sent.
    pub(crate) fn queued(&self) -> usize {
        self.queued + self.tail.len()
    }

    /// Bytes that the transport has not taken.
    pub(crate) fn unsent(&self) -> usize {
        self.queued() - self.sent
    }

    /// Bytes of memory that wait to be sent.
    pub(crate) fn held(&self) -> usize {
        self.held + self.tail.len()
    }

    /// Encoded bytes that are not sealed yet: where the next message will begin.
    pub(crate) fn tail_len(&self) -> usize {
        self.tail.len()
    }

    /// Logs the messages encoded since `from`.
    pub(crate) fn trace(&self, from: usize, conn: u64, dialect: Option<Dialect>) {
        let mut rest = self.tail.get(from..).unwrap_or_default();
        while let (Ok(Split::Whole(n)), Some(dialect)) = (frame::split(rest, frame::MSIZE_MAX), dialect) {
            if let Ok((tag, message)) = Rmsg::decode(&rest[..n], dialect) {
                tracing::trace!(conn, "-> {}", message.with_tag(tag));
            }
            rest = &rest[n..];
        }
    }

    /// Sends until nothing waits or the transport takes no more.
    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut dyn Transport,
    ) -> Poll<io::Result<()>> {
        while !(self.segments.is_empty() && self.tail.is_empty()) {
            let sent = match self.segments.front() {
                Some(Segment::File { .. }) => self.send_file(cx, transport),
                _ => self.send_bytes(cx, transport),
            };
            self.stale |= sent.is_pending();
            ready!(sent)?;
        }
        self.stale = false;
        if self.tail.capacity() > KEEP {
            self.tail = Vec::new();
        }
        if self.unflushed {
            ready!(transport.poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// The connection is idle: gives its memory back, but for what one small message needs.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && (self.tail.capacity() > 1024 || self.segments.capacity() > 8) {
            *self = Self::default();
        }
    }

    /// The tag of the message whose head has just been encoded: `size[4] type[1] tag[2] count[4]`.
    fn last_tag(&self) -> Option<Tag> {
        Some(frame::tag_of(&self.tail[self.tail.len().checked_sub(11)?..]))
    }

    fn push(&mut self, segment: Segment) {
        self.seal();
        self.queued += segment.len();
        self.held += segment.held();
        self.segments.push_back(segment);
    }

    /// Little is copied: it may hold much more memory than it is.
    fn payload_bytes(&mut self, bytes: Bytes) {
        match bytes.len() <= INLINE {
            true => self.tail.extend_from_slice(&bytes),
            false => self.push(Segment::Bytes(bytes)),
        }
    }

    /// Turns `tail` into a segment.
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.queued += self.tail.len();
            self.held += self.tail.len();
            self.segments.push_back(Segment::Bytes(std::mem::take(&mut self.tail).into()));
        }
    }

    fn send_bytes(&mut self, cx: &mut Context<'_>, transport: &mut dyn Transport) -> Poll<io::Result<()>> {
        let taken = if self.segments.is_empty() {
            transport.poll_write(cx, &[IoSlice::new(&self.tail[self.sent..])])
        } else {
            self.send_segments(cx, transport)
        };
        let taken = ready!(taken)?;
        if taken == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unflushed = true;
        self.advance(taken);
        Poll::Ready(Ok(()))
    }

    fn send_segments(
        &mut self,
        cx: &mut Context<'_>,
        transport: &mut dyn Transport,
    ) -> Poll<io::Result<usize>> {
        let mut slices = [IoSlice::new(&[]); SEGMENTS];
        let mut n = 0;
        let mut skip = self.sent;
        let mut files = false;
        for segment in self.segments.iter().take(SEGMENTS - 1) {
            let Segment::Bytes(bytes) = segment else {
                files = true;
                break;
            };
            slices[n] = IoSlice::new(&bytes[skip..]);
            (n, skip) = (n + 1, 0);
        }
        if !files && self.segments.len() < SEGMENTS && !self.tail.is_empty() {
            slices[n] = IoSlice::new(&self.tail[skip..]);
            n += 1;
        }
        transport.poll_write(cx, &slices[..n])
    }

    fn send_file(&mut self, cx: &mut Context<'_>, transport: &mut dyn Transport) -> Poll<io::Result<()>> {
        let Some(Segment::File { file, offset, len, resident }) = self.segments.front() else {
            unreachable!("asked for the file at the front")
        };
        let (from, rest) = (offset + self.sent as u64, len - self.sent);
        let part = if self.stale { rest.min(STALE) } else { rest };
        if self.stale && !resident(file.as_fd(), from, part as u64) && self.missed < MISSES {
            // The kernel fetches it meanwhile, and we look again in our next turn.
            let many = NonZeroU64::new(part as u64);
            let _ = rustix::fs::fadvise(file, from, many, rustix::fs::Advice::WillNeed);
            self.missed += 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.missed = 0;
        if !transport.can_sendfile() {
            let mut bytes = vec![0; *len];
            read_exact(file, *offset, &mut bytes)?;
            self.held += bytes.len();
            self.segments[0] = Segment::Bytes(bytes.into());
            return Poll::Ready(Ok(()));
        }
        let taken = ready!(transport.poll_sendfile(cx, file.as_fd(), from, part))?;
        if taken == 0 {
            return Poll::Ready(Err(shrunk()));
        }
        self.advance(taken);
        Poll::Ready(Ok(()))
    }

    fn advance(&mut self, mut taken: usize) {
        self.total += taken as u64;
        while taken > 0 {
            let Some(front) = self.segments.front() else {
                self.sent += taken;
                if self.sent == self.tail.len() {
                    self.tail.clear();
                    self.sent = 0;
                }
                return;
            };
            let rest = front.len() - self.sent;
            if taken < rest {
                self.sent += taken;
                return;
            }
            taken -= rest;
            self.queued -= front.len();
            self.held -= front.held();
            self.sent = 0;
            self.segments.pop_front();
        }
    }
}

impl Segment {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File { len, .. } => *len,
        }
    }

    fn held(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_net::{Peer, Proof};
    use std::io::Write;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Waker;

    /// Takes `room` bytes, then no more until there is room again.
    struct Slow {
        taken: Vec<u8>,
        room: usize,
        files: bool,
        peer: Peer,
    }

    impl Slow {
        fn new(files: bool) -> Self {
            let peer = Peer { addr: "test".into(), proof: Proof::None };
            Self { taken: Vec::new(), room: 0, files, peer }
        }
        fn take(&mut self, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let n = bytes.len().min(self.room);
            if n == 0 {
                return Poll::Pending;
            }
            self.room -= n;
            self.taken.extend_from_slice(&bytes[..n]);
            Poll::Ready(Ok(n))
        }
    }

    impl Transport for Slow {
        fn poll_read(&mut self, _: &mut Context<'_>, _: &mut [u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }
        fn poll_write(&mut self, _: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            self.take(&bufs.iter().flat_map(|buf| buf.to_vec()).collect::<Vec<_>>())
        }
        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
        fn can_sendfile(&self) -> bool {
            self.files
        }
        fn poll_sendfile(
            &mut self,
            _: &mut Context<'_>,
            file: BorrowedFd<'_>,
            offset: u64,
            len: usize,
        ) -> Poll<io::Result<usize>> {
            let mut bytes = vec![0; len];
            let n = std::fs::File::from(file.try_clone_to_owned()?).read_at(&mut bytes, offset)?;
            if n == 0 {
                return Poll::Ready(Ok(0));
            }
            self.take(&bytes[..n])
        }
        fn peer(&self) -> &Peer {
            &self.peer
        }
    }

    fn file(content: &[u8]) -> Arc<OwnedFd> {
        let path = std::env::temp_dir().join(format!("nine-io-tx-{}-{:p}", std::process::id(), content));
        let mut file = std::fs::File::options().create_new(true).read(true).write(true).open(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        file.write_all(content).unwrap();
        Arc::new(file.into())
    }

    fn content() -> Vec<u8> {
        (0..600_000u32).map(|i| (i / 3) as u8).collect()
    }

    /// Sends in rooms of `step` bytes until all is out, at most `turns` times.
    fn drain(tx: &mut Tx, transport: &mut Slow, step: usize, turns: usize) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..turns {
            transport.room = step;
            if let done @ Poll::Ready(_) = tx.poll_flush(&mut cx, transport) {
                return done;
            }
        }
        Poll::Pending
    }

    #[test]
    fn a_range_that_left_the_page_cache_is_waited_for_and_comes_whole() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        for files in [true, false] {
            let (data, mut tx, mut transport) = (content(), Tx::default(), Slow::new(files));
            tx.bytes().extend_from_slice(b"head");
            let resident: Resident = |_, _, _| ASKED.fetch_add(1, Ordering::Relaxed) % 5 == 4;
            tx.payload(Payload::File { file: file(&data), offset: 0, len: data.len() as u32, resident });
            tx.bytes().extend_from_slice(b"tail");
            assert!(matches!(drain(&mut tx, &mut transport, 70_000, 1000), Poll::Ready(Ok(()))));
            assert!(transport.taken == [b"head", &data[..], b"tail"].concat());
            assert!(tx.is_empty() && tx.queued() == 0 && tx.held() == 0);
        }
        assert!(ASKED.load(Ordering::Relaxed) > 5);
    }

    #[test]
    fn what_is_never_resident_is_sent_all_the_same() {
        let (data, mut tx, mut transport) = (content(), Tx::default(), Slow::new(true));
        tx.payload(Payload::File { file: file(&data), offset: 100, len: 500_000, resident: |_, _, _| false });
        assert!(matches!(drain(&mut tx, &mut transport, 300_000, 5 * MISSES as usize), Poll::Ready(Ok(()))));
        assert!(transport.taken == data[100..500_100]);
    }

    #[test]
    fn a_file_that_became_shorter_ends_the_connection_and_is_never_padded() {
        for files in [true, false] {
            let (data, mut tx, mut transport) = (content(), Tx::default(), Slow::new(files));
            let file = file(&data);
            tx.payload(Payload::File {
                file: file.clone(),
                offset: 0,
                len: 600_000,
                resident: |_, _, _| true,
            });
            std::fs::File::from(file.try_clone().unwrap()).set_len(200_000).unwrap();
            assert!(matches!(drain(&mut tx, &mut transport, 1 << 20, 100), Poll::Ready(Err(_))));
            assert!(data.starts_with(&transport.taken));
        }
    }
}
