//! The task that owns a client's transport: writes the queued messages, reads answers and delivers them.
//!
//! In: [`ClientState::out`](super::state::ClientState) and the transport. Out: vectored writes, one for all messages of
//! a batch, and frames.
//!
//! Always holds: reading never waits for writing. An idle connection owns no buffer, because reads use a buffer of the
//! thread. A frame that is too large for it is read into its own memory. The caller of the Tread gets that memory
//! without another copy, and it is reused when dropped. A turn ends after [`READS_PER_SLICE`] reads, so that other
//! tasks run.

use std::cell::Cell;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bytes::Bytes;
use nine_net::Transport;
use nine_net::shm::MAGIC;
use nine_proto::frame::{Split, split};

use super::error::Error;
use super::out::{OutgoingMessages, VECTORED_PIECES_MAX};
use super::state::ClientShared;
use crate::buf::{FrameBuffer, FramePool, MessageFrame};

/// Reads in one turn (time slice).
const READS_PER_SLICE: usize = 16;
/// Bytes that one read can take.
const READ: usize = 64 * 1024;
/// Bytes of the first read of a frame that is probably large again: its head, and little data that must be copied.
const LARGE_HEAD_LEN: usize = 4 * 1024;

thread_local! {
    static SCRATCH: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// Moves the bytes of one [`Client`](super::Client). Spawn it, or poll it yourself: without it no call proceeds.
///
/// Completes with `Ok` when the client has no handle left and all requests are answered. Completes with an error when
/// the connection fails or the server violates 9P; every call gets the same error. Dropping it earlier cuts the
/// connection.
#[must_use = "a client does nothing without its driver"]
pub struct Driver {
    transport: Box<dyn Transport>,
    shared: Arc<ClientShared>,
    out: OutgoingMessages,
    /// The transport may hold bytes that need a flush.
    unflushed: bool,
    /// The last write was pending.
    stuck: bool,
    /// The first bytes of a frame.
    partial: Vec<u8>,
    /// Memory for all of a frame that is larger than [`READ`], and its size.
    large: Option<(Arc<FrameBuffer>, usize)>,
    /// Bytes that are in `partial` or `large`.
    filled: usize,
    /// The last frame was a large one.
    was_large: bool,
    /// Memory of dropped large frames, while there are calls.
    pool: Option<FramePool>,
}

impl Driver {
    pub(crate) fn new(transport: Box<dyn Transport>, shared: Arc<ClientShared>) -> Self {
        Self {
            transport,
            shared,
            out: OutgoingMessages::default(),
            unflushed: false,
            stuck: false,
            partial: Vec::new(),
            large: None,
            filled: 0,
            was_large: false,
            pool: None,
        }
    }
}

impl Future for Driver {
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let mut scratch = SCRATCH.take();
        if scratch.is_empty() {
            scratch = vec![0; READ];
        }
        let turn = this.turn(cx, &mut scratch);
        SCRATCH.set(scratch);
        turn.map_err(|error| {
            this.shared.with(|state| {
                state.die(error);
                // The first reason counts: this error may only be a consequence.
                state.dead().cloned().expect("just died").into()
            })
        })
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let error =
            io::Error::new(io::ErrorKind::ConnectionAborted, "the connection was closed on this side");
        let error = self.transport_error(error);
        self.shared.with(|state| state.die(error));
    }
}

impl Driver {
    fn turn(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Poll<Result<(), Error>> {
        loop {
            if self.shared.border.load(Ordering::Relaxed) {
                self.change_here();
            }
            self.write(cx)?;
            if self.read(cx, scratch)?.is_ready() {
                // The turn is over, and there is more to read.
                self.write(cx)?;
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            let idle = self.out.is_empty();
            let parked = self.shared.with(|state| {
                if let Some(dead) = state.dead() {
                    return Err(dead.clone());
                }
                if idle && state.is_finished() {
                    return Ok(ParkOutcome::Finished);
                }
                if idle && (!state.out.is_empty() || state.is_here()) {
                    return Ok(ParkOutcome::No);
                }
                state.driver = Some(cx.waker().clone());
                state.blocked = !idle;
                Ok(ParkOutcome::Yes { calls: state.session.calls() })
            })?;
            match parked {
                ParkOutcome::No => {}
                ParkOutcome::Yes { calls } => {
                    if calls == 0 {
                        self.pool = None;
                    }
                    return Poll::Pending;
                }
                ParkOutcome::Finished => {
                    // A peer that is gone needs no orderly close.
                    return self.transport.poll_close(cx).map(|_| Ok(()));
                }
            }
        }
    }

    /// Writes all queued messages, until the transport takes no more.
    fn write(&mut self, cx: &mut Context<'_>) -> Result<(), Error> {
        loop {
            if self.out.is_empty() {
                self.shared.with(|state| {
                    state.driver = None;
                    std::mem::swap(&mut self.out, &mut state.out);
                });
            }
            if self.out.is_empty() {
                break;
            }
            let mut pieces = [IoSlice::new(&[]); VECTORED_PIECES_MAX];
            let count = self.out.pieces(&mut pieces);
            match self.transport.poll_write(cx, &pieces[..count]) {
                Poll::Ready(Ok(0)) => return Err(self.transport_error(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(n)) => {
                    // Bytes taken by the system at once prove nothing about the peer.
                    if std::mem::take(&mut self.stuck) {
                        self.shared.moved.store(true, Ordering::Relaxed);
                    }
                    if let Some(meter) = &self.shared.meter {
                        meter.sent(n);
                    }
                    self.out.advance(n);
                }
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => {
                    self.stuck = true;
                    break;
                }
            }
            self.unflushed = true;
        }
        if self.unflushed {
            match self.transport.poll_flush(cx) {
                Poll::Ready(Ok(())) => self.unflushed = false,
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => {}
            }
        }
        Ok(())
    }

    /// Reads until nothing more is available (`Pending`) or the turn is over (`Ready`).
    fn read(&mut self, cx: &mut Context<'_>, scratch: &mut [u8]) -> Result<Poll<()>, Error> {
        for _ in 0..READS_PER_SLICE {
            let buf = match &mut self.large {
                Some((buf, size)) => {
                    let own = Arc::get_mut(buf).expect("nobody has it before it is whole");
                    &mut own.bytes[self.filled..*size]
                }
                None => {
                    scratch[..self.filled].copy_from_slice(&self.partial);
                    let end = if self.was_large && self.filled == 0 { LARGE_HEAD_LEN } else { READ };
                    &mut scratch[self.filled..end]
                }
            };
            let n = match self.transport.poll_read(cx, buf) {
                Poll::Ready(Ok(0)) => {
                    let text = "the server closed the connection";
                    return Err(self.transport_error(io::Error::new(io::ErrorKind::UnexpectedEof, text)));
                }
                Poll::Ready(Ok(n)) => n,
                Poll::Ready(Err(error)) => return Err(self.transport_error(error)),
                Poll::Pending => return Ok(Poll::Pending),
            };
            self.shared.moved.store(true, Ordering::Relaxed);
            if let Some(meter) = &self.shared.meter {
                meter.received(n);
            }
            self.filled += n;
            match self.large.take() {
                None => self.frames(&scratch[..self.filled])?,
                Some((buf, size)) if self.filled == size => {
                    self.filled = 0;
                    self.was_large = true;
                    let frame = Bytes::from_owner(MessageFrame::new(buf, 0, size));
                    let received = self.shared.with(|state| state.receive(&frame, Some(&frame)));
                    received.map_err(|error| self.wire_error(error))?;
                }
                partly => self.large = partly,
            }
            if self.shared.border.load(Ordering::Relaxed) && self.cross()? {
                // The new module's own bytes must be sent first.
                return Ok(Poll::Ready(()));
            }
        }
        Ok(Poll::Ready(()))
    }

    /// Switches the modules at this end only, if nothing is in flight. A refused text has changed nothing.
    fn change_here(&mut self) {
        let Some(words) = self.shared.with(|state| state.take_here()) else { return };
        let told = self.transport.control(&words).map_err(|fault| {
            Error::from(nine_proto::Error::new(nine_proto::Errno::EINVAL, fault.to_string()))
        });
        self.changed();
        self.shared.with(|state| state.told_here(told));
    }

    fn changed(&mut self) {
        self.unflushed = true;
        self.shared.piped.store(!self.transport.status().is_empty(), Ordering::Relaxed);
    }

    /// Switches the modules, if the last message in the old form has been answered.
    fn cross(&mut self) -> Result<bool, Error> {
        let Some(words) = self.shared.with(|state| state.crossing()) else { return Ok(false) };
        let failed = |text: String| io::Error::new(io::ErrorKind::InvalidData, text);
        if self.filled > 0 {
            let text = "the server goes on in the old form after it has agreed to another".to_owned();
            return Err(self.transport_error(failed(text)));
        }
        if let Err(fault) = self.transport.control(&words) {
            return Err(self.transport_error(failed(format!("{words}: {fault}"))));
        }
        self.changed();
        self.shared.with(|state| state.crossed());
        Ok(true)
    }

    /// Delivers the whole frames at the start of `bytes`, and stores the rest.
    fn frames(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let mut at = 0;
        let need = self.shared.with(|state| {
            loop {
                match split(&bytes[at..], state.session.msize())? {
                    Split::Partial(need) => return Ok(need),
                    Split::Whole(size) => {
                        state.receive(&bytes[at..at + size], None)?;
                        at += size;
                    }
                }
            }
        });
        let need = need.map_err(|error| {
            if !bytes.starts_with(&MAGIC) {
                return self.wire_error(error);
            }
            let why = "this socket gives channels of shared memory and speaks no 9P itself: dial it as shm!";
            self.transport_error(io::Error::new(io::ErrorKind::InvalidData, why))
        })?;
        let rest = &bytes[at..];
        self.was_large &= at == 0;
        self.filled = rest.len();
        self.partial.clear();
        if need > READ {
            let mut buf = self.pool.get_or_insert_default().take(need);
            let own = Arc::get_mut(&mut buf).expect("a fresh buffer is ours alone");
            own.bytes[..rest.len()].copy_from_slice(rest);
            self.large = Some((buf, need));
        } else {
            self.partial = rest.to_vec();
        }
        Ok(())
    }

    fn transport_error(&self, error: io::Error) -> Error {
        Error::Transport { peer: self.shared.peer.clone(), error: Arc::new(error) }
    }

    fn wire_error(&self, error: nine_proto::WireError) -> Error {
        Error::Protocol { peer: self.shared.peer.clone(), error }
    }
}

enum ParkOutcome {
    Yes {
        /// Calls in flight.
        calls: usize,
    },
    /// There are new messages to write.
    No,
    Finished,
}

#[cfg(all(test, nine_loom))]
mod orders {
    use super::super::{Client, Options};
    use crate::sync::{Mutex, lock};
    use loom::future::block_on;
    use loom::thread::spawn;
    use nine_net::{Peer, Proof, Transport};
    use std::io::{self, IoSlice};
    use std::sync::Arc;
    use std::task::{Context, Poll, Waker};

    /// Answers each message when it is complete. Only the driver uses it, apart from the gate.
    struct Server {
        came: Vec<u8>,
        answers: Vec<u8>,
        gate: Arc<Gate>,
        peer: Peer,
    }

    /// While it is shut, the transport takes nothing.
    #[derive(Default)]
    struct Gate(Mutex<(bool, Option<Waker>)>);

    impl Gate {
        fn shut(&self) {
            lock(&self.0).0 = true;
        }

        fn open(&self) {
            let mut gate = lock(&self.0);
            gate.0 = false;
            let waker = gate.1.take();
            drop(gate);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    impl Server {
        /// Rversion repeats Tversion, Rattach and Rclunk follow.
        fn answer(&mut self) {
            while let Some(size) = self.came.first_chunk().map(|size| u32::from_le_bytes(*size) as usize)
                && size <= self.came.len()
            {
                let message: Vec<u8> = self.came.drain(..size).collect();
                let body = match message[4] {
                    100 => message[7..].to_vec(),
                    104 => [&[0x80][..], &[0; 12]].concat(),
                    _ => Vec::new(),
                };
                self.answers.extend_from_slice(&(7 + body.len() as u32).to_le_bytes());
                self.answers.push(message[4] + 1);
                self.answers.extend_from_slice(&message[5..7]);
                self.answers.extend_from_slice(&body);
            }
        }
    }

    impl Transport for Server {
        /// Answers appear only after a write, and after that the driver reads again.
        fn poll_read(&mut self, _: &mut Context<'_>, buf: &mut [u8]) -> Poll<io::Result<usize>> {
            if self.answers.is_empty() {
                return Poll::Pending;
            }
            let n = buf.len().min(self.answers.len());
            buf[..n].copy_from_slice(&self.answers[..n]);
            self.answers.drain(..n);
            Poll::Ready(Ok(n))
        }

        fn poll_write(&mut self, cx: &mut Context<'_>, bufs: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
            let mut gate = lock(&self.gate.0);
            if gate.0 {
                gate.1 = Some(cx.waker().clone());
                return Poll::Pending;
            }
            drop(gate);
            bufs.iter().for_each(|buf| self.came.extend_from_slice(buf));
            self.answer();
            Poll::Ready(Ok(bufs.iter().map(|buf| buf.len()).sum()))
        }

        fn poll_close(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn peer(&self) -> &Peer {
            &self.peer
        }
    }

    fn connected() -> (Client, super::Driver, Arc<Gate>) {
        let gate = Arc::new(Gate::default());
        let peer = Peer { addr: "test".into(), proof: Proof::None };
        let server = Server { came: Vec::new(), answers: Vec::new(), gate: gate.clone(), peer };
        let options = Options { dialects: vec![nine_proto::Dialect::P2000], ..Options::default() };
        let (client, driver) = block_on(Client::connect(server, options)).expect("connected");
        (client, driver, gate)
    }

    fn attach(client: &Client) {
        drop(block_on(client.attach("u", nine_proto::NOUID, "")).expect("attached"));
    }

    fn check(test: impl Fn() + Send + Sync + 'static) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(test);
    }

    /// The clunk of the dropped file and the end of the client are two more events that the driver must not miss.
    #[test]
    fn a_call_made_at_any_moment_of_the_turn_is_sent_in_any_order() {
        check(|| {
            let (client, driver, _) = connected();
            let caller = spawn(move || attach(&client));
            block_on(driver).expect("a good end");
            caller.join().unwrap();
        });
    }

    #[test]
    fn a_call_made_while_the_transport_is_full_is_sent_in_any_order() {
        check(|| {
            let (client, driver, gate) = connected();
            gate.shut();
            let caller = spawn(move || attach(&client));
            let opener = spawn(move || gate.open());
            block_on(driver).expect("a good end");
            caller.join().unwrap();
            opener.join().unwrap();
        });
    }

    #[test]
    fn an_abort_ends_the_driver_and_every_call_in_any_order() {
        check(|| {
            let (client, driver, gate) = connected();
            gate.shut();
            let clone = client.clone();
            let caller =
                spawn(move || block_on(clone.attach("u", nine_proto::NOUID, "")).expect_err("cut off"));
            let aborter = spawn(move || client.abort(io::ErrorKind::TimedOut.into()));
            block_on(driver).expect_err("cut off");
            caller.join().unwrap();
            aborter.join().unwrap();
        });
    }
}
