//! The sending half of a connection: replies in, one vectored write per batch out.
//!
//! Encoded messages collect in one buffer. File data joins them as a segment, and is not copied unless it is small. A
//! range of a file goes from the page cache to a socket without a copy: through a pipe if a message carries it, by
//! sendfile on the data connection of a stream. Other transports get it through memory. The queue is bounded by the
//! connection's credit (see `conn`): each answer was charged before it was requested.
//!
//! Always holds: the count in an Rread is the number of bytes that follow. A file may become shorter at any time. So
//! the head is sent only when the pages are in the pipe or the bytes in memory, where they cannot disappear.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use nine_net::{Transport, fill_pipe, kernel_pipe};
use nine_proto::frame::{self, Split};
use nine_proto::msg::{OnlyU, Rmsg};
use nine_proto::session::server::Out;
use nine_proto::{Base, Dialect, Errno, Error, Tag};

use crate::payload::{Payload, Resident, read_exact, read_until_eof, shrunk};

/// Data up to this size is copied behind its message, which saves a segment.
const INLINE: usize = 2048;
/// Maximum number of segments of one vectored write.
const SEGMENTS: usize = 64;
/// Bytes of a file range that are sent at once if it has waited, after checking residency again.
const STALE: usize = 256 * 1024;
/// How often a range that has left the page cache is checked again. Then the send itself waits for the disk, so that
/// file systems that never hold pages are served too.
const MISSES: u32 = 10_000;
/// Between batches, the buffer for encoded messages is freed if its capacity is larger.
const TAIL_CAPACITY_MAX: usize = 64 * 1024;
/// `size[4] type[1] tag[2] count[4]`: the bytes of an Rread before its data.
const READ_HEAD: usize = 11;
/// Empty pipes that a thread holds ready for its connections.
const FREE_PIPES: usize = 4;
/// Maximum number of pipes of the process, each with two descriptors and up to 1 MiB of pages. A client that reads
/// slowly may hold one for any time. Beyond the limit, file data goes through memory.
const PIPES: usize = 256;

static PIPE_COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static FREE: RefCell<Vec<KernelPipe>> = const { RefCell::new(Vec::new()) };
}

/// A kernel pipe, counted in `PIPE_COUNT`.
struct KernelPipe {
    out: OwnedFd,
    inlet: OwnedFd,
}

#[derive(Default)]
pub(crate) struct ReplyQueue {
    /// Segments to send before `tail`, in order.
    segments: VecDeque<ReplySegment>,
    /// Encoded messages that are not part of a segment yet.
    tail: Vec<u8>,
    /// Bytes of the front (the first segment, or `tail`) that are sent.
    sent: usize,
    /// The transport may hold bytes that need a flush.
    unflushed: bool,
    /// The queue has waited, so a file range in it may have left the page cache.
    stale: bool,
    /// How often the range at the front was checked again.
    missed: u32,
    /// Bytes of all segments.
    queued: usize,
    /// Those of them that are in memory.
    held: usize,
    /// Holds the bytes of [`ReplySegment::Piped`].
    pipe: Option<KernelPipe>,
    /// The dialect of error messages.
    pub(crate) dialect: Option<Dialect>,
    /// Bytes that the transport has taken.
    pub(crate) total: u64,
}

enum ReplySegment {
    Bytes(Bytes),
    /// A range of a file, and the head of the Rread that carries it; in a stream there is no head.
    File {
        head: Option<[u8; READ_HEAD]>,
        file: Arc<OwnedFd>,
        offset: u64,
        len: usize,
        resident: Resident,
    },
    /// Bytes in the pipe. There is at most one such segment.
    Piped(usize),
}

impl Out<Payload> for ReplyQueue {
    fn bytes(&mut self) -> &mut Vec<u8> {
        &mut self.tail
    }

    fn wrong_reply(&mut self, message: &'static str, why: &'static str) {
        tracing::error!("the file server answered a {message} wrongly (fix the server): {why}");
    }

    fn payload(&mut self, payload: Payload) {
        if payload.len() > INLINE || matches!(payload, Payload::File { .. }) {
            // `trace` will not see its head, which leaves `tail` now.
            let tag = frame::tag_of(&self.tail[self.tail.len() - READ_HEAD..]);
            tracing::trace!("-> {} bytes of data for tag {tag}", payload.len());
        }
        match payload {
            Payload::File { file, offset, len, resident } => {
                let head = self.tail.split_off(self.tail.len() - READ_HEAD);
                let head = Some(head.try_into().expect("as long as it was cut"));
                self.push(ReplySegment::File { head, file, offset, len: len as usize, resident });
            }
            other => self.data(other),
        }
    }
}

impl ReplyQueue {
    /// Queues bytes outside of any message.
    pub(crate) fn data(&mut self, payload: Payload) {
        match payload {
            Payload::Bytes(bytes) => self.payload_bytes(bytes),
            Payload::Pieces(pieces) => pieces.into_iter().for_each(|piece| self.payload_bytes(piece)),
            Payload::Placed(placed) => self.payload_bytes(placed.to_vec(placed.len()).into()),
            Payload::File { file, offset, len, resident } => {
                self.push(ReplySegment::File { head: None, file, offset, len: len as usize, resident });
            }
        }
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_empty(&self) -> bool {
        self.segments.is_empty() && self.tail.is_empty() && !self.unflushed
    }

    /// Bytes that wait to be sent, including the sent part of the front.
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

    /// Encoded bytes that are not in a segment yet: the offset of the next message.
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
                Some(ReplySegment::File { head: Some(_), .. }) => self.answer_file(cx, transport),
                Some(ReplySegment::File { head: None, .. }) => self.send_file(cx, transport),
                Some(ReplySegment::Piped(_)) => self.send_piped(cx, transport),
                _ => self.send_bytes(cx, transport),
            };
            self.stale |= sent.is_pending();
            ready!(sent)?;
        }
        self.stale = false;
        self.pipe.take().into_iter().for_each(KernelPipe::give);
        if self.tail.capacity() > TAIL_CAPACITY_MAX {
            self.tail = Vec::new();
        }
        if self.unflushed {
            ready!(transport.poll_flush(cx))?;
            self.unflushed = false;
        }
        Poll::Ready(Ok(()))
    }

    /// Frees the memory of an idle connection, except for one small message.
    pub(crate) fn shrink(&mut self) {
        if self.is_empty() && (self.tail.capacity() > 1024 || self.segments.capacity() > 8) {
            *self = Self { dialect: self.dialect, ..Self::default() };
        }
    }

    fn push(&mut self, segment: ReplySegment) {
        self.seal();
        self.queued += segment.len();
        self.held += segment.held();
        self.segments.push_back(segment);
    }

    /// Small data is copied: it may pin much more memory than its size.
    fn payload_bytes(&mut self, bytes: Bytes) {
        match bytes.len() <= INLINE {
            true => self.tail.extend_from_slice(&bytes),
            false => self.push(ReplySegment::Bytes(bytes)),
        }
    }

    /// Turns `tail` into a segment.
    fn seal(&mut self) {
        if !self.tail.is_empty() {
            self.queued += self.tail.len();
            self.held += self.tail.len();
            self.segments.push_back(ReplySegment::Bytes(std::mem::take(&mut self.tail).into()));
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
        let (mut files, mut piped) = (false, false);
        for segment in self.segments.iter().take(SEGMENTS - 1) {
            let ReplySegment::Bytes(bytes) = segment else {
                (files, piped) = (true, matches!(segment, ReplySegment::Piped(_)));
                break;
            };
            slices[n] = IoSlice::new(&bytes[skip..]);
            (n, skip) = (n + 1, 0);
        }
        if !files && self.segments.len() < SEGMENTS && !self.tail.is_empty() {
            slices[n] = IoSlice::new(&self.tail[skip..]);
            n += 1;
        }
        match piped {
            true => transport.poll_write_more(cx, &slices[..n]),
            false => transport.poll_write(cx, &slices[..n]),
        }
    }

    /// Fetches the file data of the Rread at the front, and puts the head with the actual count before it. A transport
    /// that reads the file to its place itself also sends both.
    fn answer_file(&mut self, cx: &mut Context<'_>, transport: &mut dyn Transport) -> Poll<io::Result<()>> {
        let Some(ReplySegment::File { head: Some(head), file, offset, len, resident }) =
            self.segments.front()
        else {
            unreachable!("asked for the file at the front")
        };
        let (mut head, file, offset, len) = (*head, file.clone(), *offset, *len);
        let (resident, part) = (*resident, len.min(STALE));
        ready!(self.poll_resident(cx, &file, offset, part, resident));
        if let Some(read) = ready!(transport.poll_read_placed(cx, &head, file.as_fd(), offset, len))? {
            self.unflushed = true;
            self.total += (READ_HEAD + read) as u64;
            self.replace_front([]);
            return Poll::Ready(Ok(()));
        }
        let mut piped = 0;
        if transport.can_splice()
            && let Some(pipe) = self.pipe.take().or_else(KernelPipe::take)
        {
            piped = fill_pipe(file.as_fd(), offset, &pipe.inlet, len);
            self.pipe = Some(pipe);
        }
        // Bytes that do not fit into the pipe, or all if there is none, are copied.
        let mut rest = vec![0; READ_HEAD + len - piped];
        let read = read_until_eof(&file, offset + piped as u64, &mut rest[READ_HEAD..]);
        let read = match read {
            Err(error) if piped == 0 => {
                let answer = self.refusal(frame::tag_of(&head), &error);
                self.replace_front([ReplySegment::Bytes(answer.into())]);
                return Poll::Ready(Ok(()));
            }
            // The next read gets the error.
            read => read.unwrap_or(0),
        };
        rest.truncate(READ_HEAD + read);
        head[..4].copy_from_slice(&((READ_HEAD + piped + read) as u32).to_le_bytes());
        head[7..].copy_from_slice(&((piped + read) as u32).to_le_bytes());
        if piped == 0 {
            rest[..READ_HEAD].copy_from_slice(&head);
            self.replace_front([ReplySegment::Bytes(rest.into())]);
        } else {
            let rest = Bytes::from(rest).split_off(READ_HEAD);
            let head = ReplySegment::Bytes(Bytes::copy_from_slice(&head));
            self.replace_front([head, ReplySegment::Piped(piped), ReplySegment::Bytes(rest)]);
        }
        Poll::Ready(Ok(()))
    }

    /// Encodes an error in place of the data of a read.
    fn refusal(&self, tag: Tag, error: &io::Error) -> Vec<u8> {
        let errno = Errno(error.raw_os_error().map_or(Errno::EIO.0, |number| number as u32));
        let dialect = self.dialect.unwrap_or(Dialect::P2000);
        let error = Error::from(errno);
        let mut answer = Vec::new();
        match dialect.base {
            Base::L => Rmsg::Lerror { ecode: errno.0 },
            _ => Rmsg::Error { ename: error.ename().as_bytes(), errno: OnlyU(errno.0) },
        }
        .encode(tag, dialect, &mut answer);
        answer
    }

    fn send_piped(&mut self, cx: &mut Context<'_>, transport: &mut dyn Transport) -> Poll<io::Result<()>> {
        let (Some(ReplySegment::Piped(len)), Some(pipe)) = (self.segments.front(), &self.pipe) else {
            unreachable!("the bytes at the front are in the pipe")
        };
        let taken = ready!(transport.poll_splice_out(cx, pipe.out.as_fd(), len - self.sent))?;
        if taken == 0 {
            return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
        }
        self.unflushed = true;
        self.advance(taken);
        Poll::Ready(Ok(()))
    }

    /// Waits until a range that has been queued for a while is in the page cache.
    fn poll_resident(
        &mut self,
        cx: &mut Context<'_>,
        file: &OwnedFd,
        from: u64,
        part: usize,
        resident: Resident,
    ) -> Poll<()> {
        if self.stale && !resident(file.as_fd(), from, part as u64) && self.missed < MISSES {
            // The kernel reads it meanwhile; the next turn checks again.
            let many = NonZeroU64::new(part as u64);
            let _ = rustix::fs::fadvise(file, from, many, rustix::fs::Advice::WillNeed);
            self.missed += 1;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.missed = 0;
        Poll::Ready(())
    }

    /// Replaces the first segment, of which nothing is sent. Empty segments are left out.
    fn replace_front<const N: usize>(&mut self, by: [ReplySegment; N]) {
        let old = self.segments.pop_front().expect("there is a first one");
        self.queued -= old.len();
        self.held -= old.held();
        for segment in by.into_iter().rev().filter(|segment| segment.len() > 0) {
            self.queued += segment.len();
            self.held += segment.held();
            self.segments.push_front(segment);
        }
    }

    fn send_file(&mut self, cx: &mut Context<'_>, transport: &mut dyn Transport) -> Poll<io::Result<()>> {
        let Some(ReplySegment::File { file, offset, len, resident, .. }) = self.segments.front() else {
            unreachable!("asked for the file at the front")
        };
        let (file, offset, len, resident) = (file.clone(), *offset, *len, *resident);
        let (from, rest) = (offset + self.sent as u64, len - self.sent);
        let part = if self.stale { rest.min(STALE) } else { rest };
        ready!(self.poll_resident(cx, &file, from, part, resident));
        if !transport.can_sendfile() {
            let mut bytes = vec![0; len];
            read_exact(&file, offset, &mut bytes)?;
            self.replace_front([ReplySegment::Bytes(bytes.into())]);
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

impl ReplySegment {
    fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File { head, len, .. } => head.map_or(0, |head| head.len()) + len,
            Self::Piped(len) => *len,
        }
    }

    /// Bytes in memory.
    fn held(&self) -> usize {
        match self {
            Self::Bytes(bytes) => bytes.len(),
            Self::File { .. } | Self::Piped(_) => 0,
        }
    }
}

impl KernelPipe {
    /// Returns a free pipe or, below the limit, a new one.
    fn take() -> Option<Self> {
        if let Some(free) = FREE.with_borrow_mut(Vec::pop) {
            return Some(free);
        }
        let one_more = |count| (count < PIPES).then_some(count + 1);
        PIPE_COUNT.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok()?;
        match kernel_pipe() {
            Ok((out, inlet)) => Some(Self { out, inlet }),
            Err(_) => {
                PIPE_COUNT.fetch_sub(1, Ordering::Relaxed);
                None
            }
        }
    }

    /// Keeps the empty pipe for another connection.
    fn give(self) {
        FREE.with_borrow_mut(|free| {
            if free.len() < FREE_PIPES {
                free.push(self);
            }
        });
    }
}

impl Drop for KernelPipe {
    fn drop(&mut self) {
        PIPE_COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nine_net::{Peer, Proof};
    use std::io::Write;
    use std::os::fd::BorrowedFd;
    use std::os::unix::fs::FileExt;
    use std::sync::atomic::AtomicU32;
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
        fn can_splice(&self) -> bool {
            self.files
        }
        fn poll_splice_out(
            &mut self,
            _: &mut Context<'_>,
            pipe: BorrowedFd<'_>,
            len: usize,
        ) -> Poll<io::Result<usize>> {
            let mut bytes = vec![0; len.min(self.room)];
            if bytes.is_empty() {
                return Poll::Pending;
            }
            let n = rustix::io::read(pipe, &mut bytes)?;
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

    /// Sends in rooms of `step` bytes until all is sent, at most `turns` times.
    fn drain(tx: &mut ReplyQueue, transport: &mut Slow, step: usize, turns: usize) -> Poll<io::Result<()>> {
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..turns {
            transport.room = step;
            if let done @ Poll::Ready(_) = tx.poll_flush(&mut cx, transport) {
                return done;
            }
        }
        Poll::Pending
    }

    /// Queues an Rread of a range, with bytes before and after it.
    fn queue(tx: &mut ReplyQueue, file: Arc<OwnedFd>, offset: u64, len: u32, resident: Resident) {
        tx.bytes().extend_from_slice(b"before");
        let head = Rmsg::Read { data: nine_proto::msg::Data::Count(len) };
        head.encode_before(len as usize, Tag(7), Dialect::L, tx.bytes());
        tx.payload(Payload::File { file, offset, len, resident });
        tx.bytes().extend_from_slice(b"behind");
    }

    /// The bytes that [`queue`] sends of a range with this content.
    fn rread(data: &[u8]) -> Vec<u8> {
        let mut bytes = b"before".to_vec();
        let head = Rmsg::Read { data: nine_proto::msg::Data::Bytes(data) };
        head.encode(Tag(7), Dialect::L, &mut bytes);
        [&bytes[..], b"behind"].concat()
    }

    #[test]
    fn a_range_that_left_the_page_cache_is_waited_for_and_comes_whole() {
        static ASKED: AtomicU32 = AtomicU32::new(0);
        for files in [true, false] {
            let (data, mut tx, mut transport) = (content(), ReplyQueue::default(), Slow::new(files));
            let resident: Resident = |_, _, _| ASKED.fetch_add(1, Ordering::Relaxed) % 5 == 4;
            queue(&mut tx, file(&data), 0, data.len() as u32, resident);
            tx.data(Payload::File { file: file(&data), offset: 5, len: 500_000, resident });
            assert!(matches!(drain(&mut tx, &mut transport, 70_000, 1000), Poll::Ready(Ok(()))));
            assert!(transport.taken == [&rread(&data), &data[5..500_005]].concat());
            assert!(tx.is_empty() && tx.queued() == 0 && tx.held() == 0);
            assert_eq!(tx.total, transport.taken.len() as u64);
        }
        assert!(ASKED.load(Ordering::Relaxed) > 5);
    }

    #[test]
    fn a_range_that_is_never_resident_is_sent() {
        let (data, mut tx, mut transport) = (content(), ReplyQueue::default(), Slow::new(true));
        tx.data(Payload::File { file: file(&data), offset: 100, len: 500_000, resident: |_, _, _| false });
        assert!(matches!(drain(&mut tx, &mut transport, 300_000, 5 * MISSES as usize), Poll::Ready(Ok(()))));
        assert!(transport.taken == data[100..500_100]);
    }

    #[test]
    fn an_rread_carries_what_is_left_of_a_file_that_becomes_shorter_at_any_time() {
        // The file becomes shorter when this many bytes have been sent.
        for (files, when) in
            [true, false].into_iter().flat_map(|files| [0, 3, 10, 50_000].map(|when| (files, when)))
        {
            for left in [0, 1, 4096, 200_001] {
                let (data, mut tx, mut transport) = (content(), ReplyQueue::default(), Slow::new(files));
                let file = file(&data);
                queue(&mut tx, file.clone(), 1, 500_000, |_, _, _| true);
                queue(&mut tx, file.clone(), 1, 500_000, |_, _, _| true);
                let _ = drain(&mut tx, &mut transport, when, 1);
                std::fs::File::from(file.try_clone().unwrap()).set_len(left).unwrap();
                assert!(matches!(drain(&mut tx, &mut transport, 70_000, 1000), Poll::Ready(Ok(()))));
                let short = rread(data[..left as usize].get(1..).unwrap_or_default());
                let whole = rread(&data[1..500_001]);
                let got = &transport.taken;
                // Pages in the pipe stay, but the last one is cut in place: zeros, as for mmap(2).
                let is_whole = got.len() == whole.len() + short.len() && got.ends_with(&short);
                assert!(
                    *got == [&short[..], &short].concat() || is_whole,
                    "{files} {when} {left}: {}",
                    got.len()
                );
                assert_eq!(tx.total, got.len() as u64);
            }
        }
    }

    #[test]
    fn clients_beyond_the_number_of_pipes_read_the_same() {
        let data = content();
        let file = file(&data);
        let mut all: Vec<_> = (0..PIPES + 20).map(|_| (ReplyQueue::default(), Slow::new(true))).collect();
        for (tx, transport) in &mut all {
            queue(tx, file.clone(), 1, 100_000, |_, _, _| true);
            assert!(drain(tx, transport, 50, 1).is_pending());
        }
        assert!(PIPE_COUNT.load(Ordering::Relaxed) <= PIPES);
        assert!(all.iter().any(|(tx, _)| tx.pipe.is_some()));
        assert!(all.iter().filter(|(tx, _)| tx.pipe.is_none()).count() >= 20);
        for (tx, transport) in &mut all {
            assert!(matches!(drain(tx, transport, 1 << 20, 100), Poll::Ready(Ok(()))));
            assert!(transport.taken == rread(&data[1..100_001]));
        }
    }

    #[test]
    fn an_error_of_the_disk_is_the_answer_to_one_read() {
        let file = std::fs::File::from(file(&content()).try_clone().unwrap());
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
        let writes: Arc<OwnedFd> = Arc::new(std::fs::File::options().write(true).open(path).unwrap().into());
        for files in [true, false] {
            let (mut tx, mut transport) =
                (ReplyQueue { dialect: Some(Dialect::L), ..ReplyQueue::default() }, Slow::new(files));
            queue(&mut tx, writes.clone(), 0, 100_000, |_, _, _| true);
            assert!(matches!(drain(&mut tx, &mut transport, 70_000, 100), Poll::Ready(Ok(()))));
            let mut error = Vec::new();
            Rmsg::Lerror { ecode: Errno::EBADF.0 }.encode(Tag(7), Dialect::L, &mut error);
            assert_eq!(transport.taken, [b"before", &error[..], b"behind"].concat());
        }
    }

    #[test]
    fn a_stream_of_a_file_that_became_shorter_ends_and_is_never_padded() {
        for files in [true, false] {
            let (data, mut tx, mut transport) = (content(), ReplyQueue::default(), Slow::new(files));
            let file = file(&data);
            tx.data(Payload::File { file: file.clone(), offset: 0, len: 600_000, resident: |_, _, _| true });
            std::fs::File::from(file.try_clone().unwrap()).set_len(200_000).unwrap();
            assert!(matches!(drain(&mut tx, &mut transport, 1 << 20, 100), Poll::Ready(Err(_))));
            assert!(data.starts_with(&transport.taken));
        }
    }
}
