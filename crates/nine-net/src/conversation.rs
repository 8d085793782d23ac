//! A transport with stream modules pushed on it: the device end of a connection.
//!
//! Without modules the transport is used directly, at the cost of a branch. From the first module on bytes go through a
//! [`Stream`], whose device this is.
//!
//! Always holds: one task drives it, so the stream itself wakes no task. While it waits for the transport, or for a
//! module's timer, both directions make progress. It buffers no more than the queues of the stream and one read.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use nine_stream::{Block, Chain, DEEPEST, Device, Fault, Limit, Make, Modules, Pool, Stream};

use crate::env::{Clock, Timer};
use crate::transport::{Beside, Peer, Transport};

/// Maximum number of bytes read from the transport at once.
const READ: usize = 64 << 10;
/// Maximum number of bytes in a write that become a chain at once.
const WRITE: usize = 256 << 10;
/// Queues that a stream may fill: input, one at either end, and pending output.
const PIPELINE: usize = 8;
/// Maximum number of blocks in one write to the transport.
const GATHER: usize = 16;
/// Reads from the transport without a result before other tasks run.
const EMPTY_READS_MAX: usize = 64;

/// The modules that can be pushed on a connection.
#[derive(Clone)]
pub struct Pushed {
    /// By name.
    pub modules: Modules,
    /// The clock for modules with timers.
    pub clock: Arc<dyn Clock>,
}

/// See the module.
pub struct Conversation<T> {
    end: T,
    modules: Modules,
    clock: Arc<dyn Clock>,
    /// Size of a stream's queues, in bytes.
    queue: usize,
    piped: Option<Box<ModuleState>>,
}

/// The state of a connection with modules.
struct ModuleState {
    stream: Stream,
    device: Device,
    /// Memory for input, which output must not use up.
    inbound: Pool,
    /// Data that has passed the modules and is being read.
    reading: Option<Block>,
    /// Input that the stream has not accepted yet.
    coming: Option<Chain>,
    /// The transport has no more input.
    ended: bool,
    /// The end was reported to the reader.
    at_end: bool,
    /// Blocks that are being written to the transport.
    going: VecDeque<Block>,
    /// The stream has no more output.
    closed: bool,
    sleep: Option<(Duration, Timer)>,
}

impl<T: Transport> Conversation<T> {
    /// Starts without modules. `modules` may be pushed later.
    pub fn new(end: T, modules: Modules, clock: Arc<dyn Clock>) -> Self {
        Self { end, modules, clock, queue: Limit::CONVERSATION.bytes, piped: None }
    }

    /// Sets the size of the queues in bytes, for transports that buffer data in flight themselves.
    #[must_use]
    pub fn with_queue(self, queue: usize) -> Self {
        Self { queue, ..self }
    }

    /// Whether no module has been pushed.
    pub fn is_bare(&self) -> bool {
        self.piped.is_none()
    }

    /// The transport below the modules, for operations that do not concern bytes.
    pub fn device(&mut self) -> &mut T {
        &mut self.end
    }

    fn push(&mut self, text: &str) -> Result<(), Fault> {
        let piped = match self.piped.take() {
            Some(piped) => piped,
            None => {
                let clock = self.clock.clone();
                let make = Make {
                    modules: self.modules.clone(),
                    clock: Arc::new(move || clock.now()),
                    limit: Limit { bytes: self.queue, ..Limit::CONVERSATION },
                    ..Make::new(Pool::new(0))
                };
                Box::new(ModuleState::new(&make))
            }
        };
        // Unread input was sent for the modules as they were. It must not pass through different ones.
        let said = match piped.has_more() {
            true => Err(Fault::new("more has come than what was agreed on")),
            false => piped.stream.control(text.as_bytes()),
        };
        if !piped.is_idle() {
            self.piped = Some(piped);
        }
        said
    }
}

impl ModuleState {
    fn new(make: &Make) -> Self {
        let (stream, device) = Stream::new(make);
        Self {
            stream,
            device,
            inbound: Pool::new(0),
            reading: None,
            coming: None,
            ended: false,
            at_end: false,
            going: VecDeque::new(),
            closed: false,
            sleep: None,
        }
    }

    /// Whether some input is unread.
    fn has_more(&self) -> bool {
        self.reading.is_some() || self.coming.is_some() || self.stream.waiting() != (0, 0)
    }

    /// Whether there are no modules and no data in flight.
    fn is_idle(&self) -> bool {
        let nothing_goes = self.going.is_empty() && self.device.waiting() == (0, 0);
        let lives = !self.ended && !self.closed && !self.stream.is_ending();
        lives && nothing_goes && !self.has_more() && self.stream.modules().is_empty()
    }

    /// Runs modules whose timer has expired, and waits for the next timer. Returns whether one expired.
    fn poll_timers(&mut self, cx: &mut Context<'_>, clock: &dyn Clock) -> bool {
        let Some(deadline) = self.device.deadline() else {
            self.sleep = None;
            return false;
        };
        let sleep = match &mut self.sleep {
            Some((until, sleep)) if *until == deadline => sleep,
            other => &mut other.insert((deadline, clock.sleep_until(deadline))).1,
        };
        if sleep.as_mut().poll(cx).is_pending() {
            return false;
        }
        self.sleep = None;
        self.device.tick();
        true
    }

    /// Moves input from the transport to the stream, once. Pending: there is none, or the stream does not accept it.
    fn poll_in(&mut self, cx: &mut Context<'_>, end: &mut impl Transport) -> Poll<io::Result<()>> {
        let chain = match self.coming.take() {
            Some(chain) => chain,
            None if self.ended => return Poll::Pending,
            None => {
                // Without free memory, the input is in modules that wait for a timer, or in unread blocks.
                let Some(mut block) = self.inbound.try_alloc(READ) else { return Poll::Pending };
                let Some(room) = block.room() else { return Poll::Pending };
                let n = ready!(end.poll_read(cx, room))?;
                if n == 0 {
                    self.ended = true;
                    self.device.finish();
                    return Poll::Ready(Ok(()));
                }
                block.filled(n);
                block.delim = true;
                block.into()
            }
        };
        match self.device.try_put(chain) {
            Ok(()) => Poll::Ready(Ok(())),
            Err((chain, None)) => {
                self.coming = Some(chain);
                Poll::Pending
            }
            Err((_, Some(_))) => {
                // The reader gets the error from the stream.
                self.ended = true;
                Poll::Ready(Ok(()))
            }
        }
    }

    /// Moves output from the stream to the transport until there is no more. Pending: the transport accepts no more.
    fn poll_out(&mut self, cx: &mut Context<'_>, end: &mut impl Transport) -> Poll<io::Result<()>> {
        loop {
            while self.going.len() < GATHER && !self.closed {
                match self.device.try_take() {
                    Poll::Ready(Ok(Some(block))) => self.going.push_back(block),
                    // The next write reports an error.
                    Poll::Ready(_) => self.closed = true,
                    Poll::Pending => break,
                }
            }
            self.going.retain(|block| !block.is_empty());
            if self.going.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let mut slices = [IoSlice::new(&[]); GATHER];
            for (slice, block) in slices.iter_mut().zip(&self.going) {
                *slice = IoSlice::new(block.data());
            }
            let mut n = ready!(end.poll_write(cx, &slices[..self.going.len()]))?;
            while let Some(block) = self.going.front_mut() {
                let part = block.len().min(n);
                block.advance(part);
                n -= part;
                if !block.is_empty() {
                    break;
                }
                self.going.pop_front();
            }
        }
    }

    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        end: &mut impl Transport,
        clock: &dyn Clock,
        buf: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if self.at_end {
            return Poll::Ready(Ok(0));
        }
        let mut rounds = 0;
        loop {
            if let Some(block) = &mut self.reading {
                let n = block.len().min(buf.len());
                buf[..n].copy_from_slice(&block.data()[..n]);
                block.advance(n);
                if block.is_empty() {
                    self.reading = None;
                }
                if n > 0 {
                    return Poll::Ready(Ok(n));
                }
            }
            match self.stream.try_read_block() {
                Poll::Ready(Ok(Some(block))) => self.reading = Some(block),
                Poll::Ready(Ok(None)) => {
                    self.at_end = true;
                    return Poll::Ready(Ok(0));
                }
                Poll::Ready(Err(fault)) => {
                    // A module may have a last message to the peer about the error. It is sent if the peer reads.
                    let _ = self.poll_out(cx, end);
                    return Poll::Ready(Err(broken(fault)));
                }
                Poll::Pending => {
                    let ticked = self.poll_timers(cx, clock);
                    let came = self.poll_in(cx, end)?;
                    // The input may have made a module respond. If that fails, the next write reports it: the input is
                    // read first.
                    let _ = self.poll_out(cx, end);
                    if came.is_pending() && !ticked {
                        return Poll::Pending;
                    }
                    rounds += 1;
                    if rounds == EMPTY_READS_MAX {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                }
            }
        }
    }

    fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        end: &mut impl Transport,
        clock: &dyn Clock,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        while self.stream.is_full() {
            let ticked = self.poll_timers(cx, clock);
            let left = self.poll_out(cx, end)?;
            if !self.stream.is_full() {
                break;
            }
            // A module may wait for the peer's response.
            let came = self.poll_in(cx, end)?;
            if came.is_pending() && !ticked && (left.is_pending() || self.stream.is_full()) {
                return Poll::Pending;
            }
        }
        let (mut chain, mut taken) = (Chain::default(), 0);
        for buf in bufs {
            let mut rest = &buf[..buf.len().min(WRITE - taken)];
            while !rest.is_empty() {
                let pool = self.stream.pool();
                let mut block = pool.try_alloc(rest.len()).unwrap_or_else(|| Block::from(rest.to_vec()));
                let n = if block.is_empty() { block.fill(rest) } else { block.len() };
                (taken, rest) = (taken + n, &rest[n..]);
                chain.push(block);
            }
        }
        chain.end_message();
        match self.stream.try_put(chain) {
            Ok(()) => {
                // The rest is sent by the next write or by a flush.
                let _ = self.poll_out(cx, end)?;
                Poll::Ready(Ok(taken))
            }
            Err((_, Some(fault))) => {
                // A module may have a last message to the peer about the error. It is sent if the peer reads.
                let _ = self.poll_out(cx, end);
                Poll::Ready(Err(broken(fault)))
            }
            // The stream was not full, and only this task uses it. But a queue may refuse data that does not fit beside
            // its content.
            Err((_, None)) => {
                ready!(self.poll_out(cx, end))?;
                cx.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }
}

fn broken(fault: Fault) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, fault)
}

impl<T: Transport> Transport for Conversation<T> {
    fn poll_read(&mut self, cx: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
        match &mut self.piped {
            None => self.end.poll_read(cx, buf),
            Some(piped) => piped.poll_read(cx, &mut self.end, &*self.clock, buf),
        }
    }

    fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match &mut self.piped {
            None => self.end.poll_write(cx, bufs),
            Some(piped) => piped.poll_write(cx, &mut self.end, &*self.clock, bufs),
        }
    }

    fn poll_write_more(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        match self.piped {
            Some(_) => self.poll_write(cx, bufs),
            None => self.end.poll_write_more(cx, bufs),
        }
    }

    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(piped) = &mut self.piped {
            loop {
                let ticked = piped.poll_timers(cx, &*self.clock);
                ready!(piped.poll_out(cx, &mut self.end))?;
                if !piped.stream.is_holding() {
                    break;
                }
                // The held data may wait for the peer's response.
                let came = piped.poll_in(cx, &mut self.end)?;
                if came.is_pending() && !ticked {
                    return Poll::Pending;
                }
            }
        }
        self.end.poll_flush(cx)
    }

    fn poll_close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if let Some(piped) = &mut self.piped {
            piped.stream.finish();
            while !piped.closed || !piped.going.is_empty() {
                let ticked = piped.poll_timers(cx, &*self.clock);
                ready!(piped.poll_out(cx, &mut self.end))?;
                if !piped.closed && !ticked && piped.poll_in(cx, &mut self.end)?.is_pending() {
                    return Poll::Pending;
                }
            }
        }
        ready!(self.end.poll_flush(cx))?;
        self.end.poll_close(cx)
    }

    fn poll_hangup(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        self.end.poll_hangup(cx)
    }

    fn can_sendfile(&self) -> bool {
        self.piped.is_none() && self.end.can_sendfile()
    }

    fn poll_sendfile(
        &mut self,
        cx: &mut Context<'_>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.end.poll_sendfile(cx, file, offset, len)
    }

    fn poll_read_placed(
        &mut self,
        cx: &mut Context<'_>,
        head: &[u8; 11],
        file: BorrowedFd<'_>,
        offset: u64,
        len: usize,
    ) -> Poll<io::Result<Option<usize>>> {
        if self.piped.is_some() {
            return Poll::Ready(Ok(None));
        }
        self.end.poll_read_placed(cx, head, file, offset, len)
    }

    fn cork(&mut self, more: bool) {
        self.end.cork(more);
    }

    fn can_splice(&self) -> bool {
        self.piped.is_none() && self.end.can_splice()
    }

    fn beside(&self) -> Option<&OnceLock<Beside>> {
        self.end.beside().filter(|_| self.piped.is_none())
    }

    fn poll_splice_in(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.end.poll_splice_in(cx, pipe, len)
    }

    fn poll_splice_out(
        &mut self,
        cx: &mut Context<'_>,
        pipe: BorrowedFd<'_>,
        len: usize,
    ) -> Poll<io::Result<usize>> {
        self.end.poll_splice_out(cx, pipe, len)
    }

    fn control(&mut self, text: &str) -> Result<(), Fault> {
        self.push(text)
    }

    fn check(&self, text: &str) -> Result<usize, Fault> {
        let names = self.piped.as_ref().map(|piped| piped.stream.modules()).unwrap_or_default();
        let there = names.len();
        match text.trim().split_once(' ').unwrap_or((text.trim(), "")) {
            ("push", _) if there >= DEEPEST => {
                Err(Fault::new(format!("there are {DEEPEST} modules, and no more may be")))
            }
            // A module that can be opened now can be opened then.
            ("push", module) => {
                self.modules.fits(module, names.iter().map(|(name, _)| *name))?;
                self.modules.open(module)?;
                let pipeline = if self.piped.is_none() { PIPELINE * self.queue } else { 0 };
                Ok(self.modules.cost(module)? + pipeline)
            }
            ("pop", "") if there == 0 => Err(Fault::new("there is no module to pop")),
            ("pop", "") => Ok(0),
            _ => Err(Fault::new("push NAME ARGUMENTS, or pop")),
        }
    }

    fn status(&self) -> String {
        self.piped.as_ref().map(|piped| piped.stream.status()).unwrap_or_default()
    }

    fn certificates(&self) -> Vec<&[u8]> {
        self.end.certificates()
    }

    fn peer(&self) -> &Peer {
        self.end.peer()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::modules::{Trace, TraceLog, modules};
    use crate::pipe::{Pipe, pipe};
    use crate::transport::Proof;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::task::Waker;

    /// A clock that the test controls: sleeps end when it is advanced.
    #[derive(Default)]
    struct Hand(AtomicU64);

    impl Clock for Arc<Hand> {
        fn now(&self) -> Duration {
            Duration::from_millis(self.0.load(Ordering::Relaxed))
        }

        fn wall(&self) -> Duration {
            self.now()
        }

        fn entropy(&self, _: &mut [u8]) {}

        fn sleep_until(&self, deadline: Duration) -> Timer {
            let hand = self.clone();
            let due = move || if hand.now() >= deadline { Poll::Ready(()) } else { Poll::Pending };
            Box::pin(std::future::poll_fn(move |_| due()))
        }
    }

    struct Pair {
        a: Conversation<Pipe>,
        b: Conversation<Pipe>,
        hand: Arc<Hand>,
    }

    impl Pair {
        fn new(modules: &Modules) -> Self {
            let peer = || Peer { addr: "test".into(), proof: Proof::None };
            let (a, b) = pipe(peer(), peer());
            let hand = Arc::<Hand>::default();
            let end = |pipe| Conversation::new(pipe, modules.clone(), Arc::new(hand.clone()));
            Self { a: end(a), b: end(b), hand }
        }

        fn push(&mut self, text: &str) {
            self.a.control(text).expect("pushed");
            self.b.control(text).expect("pushed");
        }
    }

    fn write(t: &mut impl Transport, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut cx = Context::from_waker(Waker::noop());
        let written = t.poll_write(&mut cx, &[IoSlice::new(bytes)]);
        let _ = t.poll_flush(&mut cx)?;
        written
    }

    /// Writes all of `data`, which must be accepted.
    fn sent(t: &mut impl Transport, bytes: &[u8]) {
        assert!(matches!(write(t, bytes), Poll::Ready(Ok(n)) if n == bytes.len()));
    }

    fn read(t: &mut impl Transport, n: usize) -> Poll<io::Result<Vec<u8>>> {
        let mut buf = vec![0; n];
        t.poll_read(&mut Context::from_waker(Waker::noop()), &mut buf).map_ok(|n| buf[..n].to_vec())
    }

    /// Returns everything that can be read now.
    fn drain(t: &mut impl Transport) -> Vec<u8> {
        let mut all = Vec::new();
        while let Poll::Ready(Ok(part)) = read(t, 1000) {
            if part.is_empty() {
                break;
            }
            all.extend(part);
        }
        all
    }

    #[test]
    fn an_empty_conversation_is_its_transport_and_becomes_it_again() {
        let mut pair = Pair::new(&modules());
        for _ in 0..2 {
            assert!(pair.a.piped.is_none() && pair.b.piped.is_none());
            assert!(matches!(write(&mut pair.a, b"bare"), Poll::Ready(Ok(4))));
            assert_eq!(drain(&mut pair.b), b"bare");
            pair.push("push throttle 1G");
            assert!(matches!(write(&mut pair.a, b"piped"), Poll::Ready(Ok(5))));
            pair.hand.0.fetch_add(1000, Ordering::Relaxed);
            let _ = pair.a.poll_flush(&mut Context::from_waker(Waker::noop()));
            let mut seen = drain(&mut pair.b);
            pair.hand.0.fetch_add(1000, Ordering::Relaxed);
            seen.extend(drain(&mut pair.b));
            assert_eq!(seen, b"piped");
            pair.push("pop");
        }
        let said = pair.a.control("pop").unwrap_err().to_string();
        assert_eq!(said, "there is no module to pop");
        assert_eq!(
            pair.a.control("push nothing").unwrap_err().to_string(),
            "no module is called \"nothing\": there are fault throttle zstd"
        );
        assert!(pair.a.piped.is_none());
    }

    #[test]
    fn a_throttle_lets_out_what_its_rate_allows_and_loses_nothing() {
        let mut pair = Pair::new(&modules());
        pair.a.control("push throttle 1K").unwrap();
        let data: Vec<u8> = (0..10_000u32).map(|n| n as u8).collect();
        let (mut sent, mut seen) = (0, Vec::new());
        for second in 0..20 {
            let mut put = 0;
            while sent < data.len()
                && let Poll::Ready(n) = write(&mut pair.a, &data[sent..data.len().min(sent + 512)])
            {
                sent += n.unwrap();
                put += 1;
            }
            assert!(put <= 1, "one put is on its way at once");
            seen.extend(drain(&mut pair.b));
            assert!(seen.len() <= 512 * second, "{} bytes after {second} half seconds", seen.len());
            pair.hand.0.fetch_add(500, Ordering::Relaxed);
        }
        for _ in 0..2 {
            let _ = pair.a.poll_flush(&mut Context::from_waker(Waker::noop()));
            pair.hand.0.fetch_add(500, Ordering::Relaxed);
        }
        seen.extend(drain(&mut pair.b));
        assert!(seen == data);
    }

    #[test]
    fn a_throttle_gives_its_rate_where_timers_are_late() {
        let mut pair = Pair::new(&modules());
        pair.a.control("push throttle 16M").unwrap();
        // 64 KiB are due after 3.9 ms, and timers are looked at every 5 ms.
        let mut seen = 0;
        for _ in 0..200 {
            while write(&mut pair.a, &[7; 64 << 10]).is_ready() {}
            seen += drain(&mut pair.b).len();
            pair.hand.0.fetch_add(5, Ordering::Relaxed);
        }
        let wanted = 16 << 20;
        assert!(seen > wanted * 95 / 100 && seen < wanted * 105 / 100, "{seen} bytes in a second");
    }

    #[test]
    fn faults_delay_lose_and_cut() {
        let mut pair = Pair::new(&modules());
        pair.b.control("push fault delay 70").unwrap();
        sent(&mut pair.a, b"late");
        assert!(drain(&mut pair.b).is_empty());
        pair.hand.0.store(69, Ordering::Relaxed);
        assert!(drain(&mut pair.b).is_empty());
        pair.hand.0.store(70, Ordering::Relaxed);
        assert_eq!(drain(&mut pair.b), b"late");

        let mut pair = Pair::new(&modules());
        pair.a.control("push fault loss 3").unwrap();
        for n in 1..=7 {
            sent(&mut pair.a, &[n]);
        }
        assert_eq!(drain(&mut pair.b), [1, 2, 4, 5, 7]);

        let mut pair = Pair::new(&modules());
        pair.a.control("push fault cut 10").unwrap();
        sent(&mut pair.a, b"0123456789");
        let _ = write(&mut pair.a, b"x");
        assert!(matches!(write(&mut pair.a, b"y"), Poll::Ready(Err(_))));
        assert!(matches!(read(&mut pair.a, 1), Poll::Ready(Err(_))));
        assert_eq!(drain(&mut pair.b), b"0123456789");

        for wrong in ["fault delay", "fault delay x", "fault rain 3", "throttle", "throttle 0", "throttle x"]
        {
            assert!(pair.b.control(&format!("push {wrong}")).is_err(), "{wrong}");
        }
    }

    fn noise(n: usize) -> Vec<u8> {
        let mut x = 1u64;
        let mut step = || {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (x >> 56) as u8
        };
        (0..n).map(|_| step()).collect()
    }

    /// Sends all of `data` from a to b, or from b to a, and compares the result.
    fn carry(pair: &mut Pair, back: bool, data: &[u8]) {
        let (from, to) = if back { (&mut pair.b, &mut pair.a) } else { (&mut pair.a, &mut pair.b) };
        let (mut at, mut seen) = (0, Vec::new());
        while seen.len() < data.len() {
            let before = at;
            if at < data.len()
                && let Poll::Ready(n) = write(from, &data[at..data.len().min(at + 70_000)])
            {
                at += n.expect("written");
            }
            let _ = from.poll_flush(&mut Context::from_waker(Waker::noop()));
            let came = drain(to);
            assert!(!came.is_empty() || at > before, "it is stuck");
            seen.extend(came);
        }
        assert!(seen == data);
    }

    #[test]
    fn what_is_compressed_comes_out_at_once_and_as_it_was() {
        let mut pair = Pair::new(&modules());
        carry(&mut pair, false, b"plain");
        pair.push("push zstd");
        for data in [&b"x"[..], b"little", &noise(100_000), &vec![7; 3_000_000], &noise(5)] {
            carry(&mut pair, false, data);
            carry(&mut pair, true, data);
        }
        let piped = pair.a.piped.as_ref().unwrap();
        let status = piped.stream.modules()[0].1.clone();
        let [plain, packed] = [0, 3].map(|n| status.split(' ').nth(n).unwrap().parse::<u64>().unwrap());
        assert!(plain > 3_000_000 && packed < 110_000, "{status}");
        // Both switch at the same byte.
        pair.push("pop");
        carry(&mut pair, false, b"plain again");
        carry(&mut pair, true, b"and back");
        assert!(pair.a.piped.is_none() && pair.b.piped.is_none());
        pair.a.control("push zstd 9").unwrap();
        pair.a.control("pop").unwrap();
        assert!(pair.a.control("push zstd 10").is_err() && pair.a.control("push zstd x").is_err());
    }

    #[test]
    fn a_small_bomb_makes_no_more_than_there_is_room_for() {
        let mut pair = Pair::new(&modules());
        let mut plain = Pair::new(&modules());
        plain.a.control("push zstd").unwrap();
        // 64 MiB of zeros become some kilobytes.
        let mut bomb = Vec::new();
        for _ in 0..256 {
            let Poll::Ready(Ok(n)) = write(&mut plain.a, &[0; 256 << 10]) else { panic!("taken") };
            assert_eq!(n, 256 << 10);
            bomb.extend(drain(&mut plain.b));
        }
        assert!(bomb.len() < 64 << 10);
        pair.b.control("push zstd").unwrap();
        sent(&mut pair.a, &bomb);
        assert_eq!(read(&mut pair.b, 1).map(|read| read.unwrap()), Poll::Ready(vec![0]));
        let held = pair.b.piped.as_ref().unwrap().stream.waiting().0;
        assert!(held <= 512 << 10, "{held}");
        assert_eq!(drain(&mut pair.b).len(), (64 << 20) - 1);
    }

    #[test]
    fn a_conversation_closed_while_modules_hold_something_ends_well() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut pair = Pair::new(&modules());
        pair.b.control("push zstd").unwrap();
        pair.a.control("push throttle 1K").unwrap();
        pair.a.control("push zstd").unwrap();
        let _ = write(&mut pair.a, &noise(1000));
        assert!(pair.a.poll_close(&mut cx).is_pending());
        let mut seen = Vec::new();
        for _ in 0..10 {
            pair.hand.0.fetch_add(500, Ordering::Relaxed);
            let _ = pair.a.poll_close(&mut cx);
            seen.extend(drain(&mut pair.b));
        }
        assert!(seen == noise(1000));
        assert!(matches!(pair.a.poll_close(&mut cx), Poll::Ready(Ok(()))));
        assert!(matches!(read(&mut pair.b, 9), Poll::Ready(Ok(end)) if end.is_empty()));

        // Much data is packed into few bytes, and the reader is slow.
        let mut pair = Pair::new(&modules());
        pair.push("push zstd");
        for _ in 0..20 {
            sent(&mut pair.a, &[0; 150_000]);
        }
        assert!(matches!(pair.a.poll_close(&mut cx), Poll::Ready(Ok(()))));
        sent(&mut pair.b, b"has seen its end by now");
        assert_eq!(drain(&mut pair.b).len(), 3_000_000);
        assert!(matches!(read(&mut pair.b, 9), Poll::Ready(Ok(end)) if end.is_empty()));
    }

    #[test]
    fn what_is_due_and_blocked_makes_nobody_spin() {
        let mut pair = Pair::new(&modules());
        pair.a.control("push fault delay 1").unwrap();
        for _ in 0..200 {
            let _ = write(&mut pair.a, &[7; 10_000]);
        }
        pair.hand.0.store(10_000, Ordering::Relaxed);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(pair.a.poll_flush(&mut cx).is_pending(), "nobody reads");
        while write(&mut pair.a, &[7; 10_000]).is_ready() {}
        assert!(read(&mut pair.a, 10).is_pending());
        assert!(pair.a.poll_close(&mut cx).is_pending());
    }

    #[test]
    fn nothing_that_came_before_a_module_is_read_as_if_it_had_come_through_it() {
        let mut pair = Pair::new(&modules().with("trace", Trace(TraceLog::default())));
        pair.push("push trace");
        sent(&mut pair.a, b"agreed, and slipped in");
        assert_eq!(read(&mut pair.b, 6).map(|read| read.unwrap()), Poll::Ready(b"agreed".to_vec()));
        let said = pair.b.control("push zstd").unwrap_err().to_string();
        assert_eq!(said, "more has come than what was agreed on");
    }

    #[test]
    fn what_is_not_compressed_or_cut_off_is_an_error() {
        let mut pair = Pair::new(&modules());
        pair.b.control("push zstd").unwrap();
        sent(&mut pair.a, b"this is no frame of zstd at all");
        let Poll::Ready(Err(error)) = read(&mut pair.b, 10) else { panic!("it was taken") };
        assert!(error.to_string().starts_with("zstd: "), "{error}");

        let mut pair = Pair::new(&modules());
        pair.push("push zstd");
        sent(&mut pair.a, b"the beginning");
        pair.a.piped = None;
        let _ = pair.a.poll_close(&mut Context::from_waker(Waker::noop()));
        assert_eq!(read(&mut pair.b, 99).map(|read| read.unwrap()), Poll::Ready(b"the beginning".to_vec()));
        let Poll::Ready(Err(error)) = read(&mut pair.b, 10) else { panic!("half a frame looks whole") };
        assert_eq!(error.to_string(), "zstd: it ends in the middle: something is missing");
    }

    #[test]
    fn a_trace_has_a_line_for_each_message() {
        let log = TraceLog::default();
        let mut pair = Pair::new(&modules().with("trace", Trace(log.clone())));
        pair.a.control("push trace").unwrap();
        sent(&mut pair.a, b"abc");
        sent(&mut pair.b, b"defg");
        assert_eq!(drain(&mut pair.a), b"defg");
        assert_eq!(log.text(), "0.000000 -> 3 bytes: 616263\n0.000000 <- 4 bytes: 64656667\n");
        for _ in 0..1000 {
            sent(&mut pair.a, b"x");
            drain(&mut pair.b);
        }
        assert!(log.text().starts_with("752 lines before these have gone\n"));
        assert_eq!(log.text().lines().count(), 251);
    }

    #[test]
    fn the_end_comes_after_what_was_written_before_it() {
        let mut cx = Context::from_waker(Waker::noop());
        let mut pair = Pair::new(&modules());
        pair.push("push fault delay 10");
        sent(&mut pair.a, b"last words");
        assert!(matches!(pair.a.poll_close(&mut cx), Poll::Ready(Ok(()))));
        assert!(matches!(write(&mut pair.a, b"more"), Poll::Ready(Err(_))));
        assert_eq!(drain(&mut pair.b), b"last words");
        assert!(matches!(read(&mut pair.b, 9), Poll::Ready(Ok(end)) if end.is_empty()));
        // The other direction continues.
        sent(&mut pair.b, b"answer");
        pair.hand.0.store(100, Ordering::Relaxed);
        let _ = pair.b.poll_flush(&mut cx);
        assert!(drain(&mut pair.a).is_empty());
        pair.hand.0.store(200, Ordering::Relaxed);
        assert_eq!(drain(&mut pair.a), b"answer");
    }

    #[test]
    fn a_peer_that_does_not_read_makes_the_writer_wait() {
        let mut pair = Pair::new(&modules());
        pair.a.control("push fault loss 0").unwrap();
        let mut sent = 0;
        while let Poll::Ready(n) = write(&mut pair.a, &[7; 10_000]) {
            sent += n.unwrap();
            assert!(sent < 4 << 20, "nobody reads");
        }
        let mut seen = 0;
        while seen < sent {
            seen += drain(&mut pair.b).len();
            let _ = pair.a.poll_flush(&mut Context::from_waker(Waker::noop()));
        }
        assert!(matches!(write(&mut pair.a, b"more"), Poll::Ready(Ok(4))));
    }
}
