//! One pipe: its two ends and their waiting requests.

use std::collections::VecDeque;
use std::fmt::Write;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_io::server::ReqId;
use nine_io::synth::Ask;
use nine_net::lock::{Mutex, lock};
use nine_proto::{Errno, Error, Result};
use nine_stream::{Block, Chain, Fault, Limit, Stream, pipe};

use super::{MODULES_MAX, PipeShared};

/// One of the two ends.
#[derive(Clone, Copy)]
pub(super) enum PipeSide {
    /// `data` and `ctl`.
    Data,
    /// `data1` and `ctl1`.
    Data1,
}

/// See the module.
pub(super) struct PipePair {
    number: u64,
    shared: Arc<PipeShared>,
    state: Mutex<PipePairState>,
}

struct PipePairState {
    ends: [PipeEnd; 2],
    /// The deadline last given to the driver.
    due: Option<Duration>,
}

struct PipeEnd {
    stream: Stream,
    /// The number of opens of its data file; `None` after the last close.
    opens: Option<u32>,
    reads: VecDeque<Ask>,
    writes: VecDeque<Ask>,
    /// The bytes reserved for its modules.
    modules: Vec<ModuleCharge>,
}

/// Bytes reserved for a module, out of the server's total.
struct ModuleCharge(Arc<PipeShared>, usize);

impl ModuleCharge {
    fn new(shared: &Arc<PipeShared>, bytes: usize) -> Result<Self> {
        let charge = Self(shared.clone(), bytes);
        if shared.modules.fetch_add(bytes, Ordering::Relaxed) + bytes > MODULES_MAX {
            return Err(Error::new(Errno::ENOMEM, "the modules of all pipes hold what they may"));
        }
        Ok(charge)
    }
}

impl Drop for ModuleCharge {
    fn drop(&mut self) {
        self.0.modules.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// Answers to be given while nothing is locked: bytes for a read, none for a write.
type PipeAnswers = Vec<(Ask, Result<Option<Bytes>>)>;

impl PipePair {
    pub(super) fn new(shared: &Arc<PipeShared>, number: u64) -> Arc<Self> {
        let (a, b) = pipe(&shared.make);
        let state = Mutex::new(PipePairState { ends: [PipeEnd::new(a), PipeEnd::new(b)], due: None });
        Arc::new(Self { number, shared: shared.clone(), state })
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Opens a data file.
    pub(super) fn open(&self, which: PipeSide) -> Result<()> {
        match &mut lock(&self.state).ends[which as usize].opens {
            Some(opens) => *opens += 1,
            None => return Err(Error::new(Errno::EPIPE, "this end of the pipe has been closed")),
        }
        Ok(())
    }

    /// Closes a data file. The last close hangs up.
    pub(super) fn close(&self, which: PipeSide) {
        self.with(|state, _| {
            let end = &mut state.ends[which as usize];
            end.opens = end.opens.map(|opens| opens - 1).filter(|&opens| opens > 0);
            if end.opens.is_none() {
                end.stream.hangup();
            }
        });
    }

    pub(super) fn read(&self, which: PipeSide, ask: Ask) {
        self.with(|state, _| state.ends[which as usize].reads.push_back(ask));
    }

    pub(super) fn write(&self, which: PipeSide, ask: Ask) {
        self.with(|state, _| state.ends[which as usize].writes.push_back(ask));
    }

    /// Returns the number of waiting requests.
    pub(super) fn waiting(&self) -> usize {
        lock(&self.state).ends.iter().map(|end| end.reads.len() + end.writes.len()).sum()
    }

    /// Cancels a request. If it is waiting, it has had no effect, and requests behind it may proceed. If it is being
    /// answered, that continues.
    pub(super) fn cancel(&self, id: ReqId) {
        self.with(|state, answers| {
            for queue in state.ends.iter_mut().flat_map(|end| [&mut end.reads, &mut end.writes]) {
                let at = queue.iter().position(|ask| ask.id() == id);
                let gone = at.and_then(|at| queue.remove(at));
                answers.extend(gone.map(|ask| (ask, Err(Errno::EINTR.into()))));
            }
        });
    }

    /// Executes a control message.
    pub(super) fn control(&self, which: PipeSide, text: &str) -> Result<()> {
        self.with(|state, _| {
            let changes = matches!(text.split(' ').next(), Some("push" | "pop"));
            if changes && state.ends.iter().any(|end| !end.writes.is_empty()) {
                return Err(Error::new(Errno::EBUSY, "a message is under way"));
            }
            let PipeEnd { stream, modules, .. } = &mut state.ends[which as usize];
            let cost =
                text.strip_prefix("push ").and_then(|module| self.shared.make.modules.cost(module).ok());
            let charge = cost.map(|cost| ModuleCharge::new(&self.shared, cost)).transpose()?;
            stream.control(text.as_bytes()).map_err(|fault| {
                said(if stream.is_ending() { Errno::EPIPE } else { Errno::EINVAL }, &fault)
            })?;
            modules.extend(charge);
            modules.truncate(stream.modules().len());
            Ok(())
        })
    }

    /// Runs the timers of the modules.
    pub(super) fn tick(&self) {
        self.with(|state, _| {
            for end in &state.ends {
                end.stream.tick();
            }
        });
    }

    /// Returns the contents of `status`.
    pub(super) fn status(&self) -> String {
        let (state, mut text) = (lock(&self.state), String::new());
        for (name, end) in ["data", "data1"].into_iter().zip(&state.ends) {
            let ((bytes, blocks), limit) = (end.stream.waiting(), Limit::CONVERSATION);
            let (reads, writes) = (end.reads.len(), end.writes.len());
            let opens = end.opens.map_or("closed".into(), |opens| format!("open {opens}"));
            let hungup = if end.stream.is_ending() { ", hung up" } else { "" };
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{name}: {opens}{hungup}, {bytes} of {} bytes, {blocks} of {} blocks, {reads} reads and {writes} \
                 writes wait",
                limit.bytes, limit.blocks,
            );
            for (module, says) in end.stream.modules() {
                let _ = writeln!(text, "{name} {}", format!("{module} {says}").trim_end());
            }
        }
        text
    }

    /// Applies a change to the pipe, then answers the requests that can proceed.
    fn with<T>(&self, act: impl FnOnce(&mut PipePairState, &mut PipeAnswers) -> T) -> T {
        let mut answers = PipeAnswers::new();
        let mut state = lock(&self.state);
        let done = act(&mut state, &mut answers);
        state.go_on(&mut answers);
        let due = state.ends.iter().filter_map(|end| end.stream.deadline()).min();
        self.shared.due.change(self.number, state.due, due);
        state.due = due;
        drop(state);
        for (ask, answer) in answers {
            match answer {
                Ok(Some(bytes)) => ask.give(bytes),
                Ok(None) => ask.done(Ok(())),
                Err(error) => ask.fail(error),
            }
        }
        done
    }
}

impl Drop for PipePair {
    fn drop(&mut self) {
        let due = lock(&self.state).due;
        self.shared.forget(self.number, due);
    }
}

impl PipePairState {
    /// Answers all requests that can be answered.
    fn go_on(&mut self, answers: &mut PipeAnswers) {
        loop {
            let before = answers.len();
            for end in &mut self.ends {
                end.put(answers);
                end.take(answers);
            }
            if answers.len() == before {
                return;
            }
        }
    }
}

impl PipeEnd {
    fn new(stream: Stream) -> Self {
        let (reads, writes) = (VecDeque::new(), VecDeque::new());
        Self { stream, opens: Some(0), reads, writes, modules: Vec::new() }
    }

    /// Performs queued writes while there is room.
    fn put(&mut self, answers: &mut PipeAnswers) {
        while let Some(ask) = self.writes.front() {
            let mut message = Chain::from(Block::from(ask.data.clone()));
            message.end_message();
            let written = match self.stream.try_put(message) {
                Ok(()) => Ok(None),
                Err((_, Some(fault))) => Err(said(Errno::EPIPE, &fault)),
                Err((_, None)) => return,
            };
            answers.extend(self.writes.pop_front().map(|ask| (ask, written)));
        }
    }

    /// Performs queued reads while there is data. Each ends at the end of a message.
    fn take(&mut self, answers: &mut PipeAnswers) {
        while let Some(ask) = self.reads.front() {
            let (bytes, blocks) = self.stream.waiting();
            if blocks == 0 && !self.stream.is_ending() {
                return;
            }
            let mut buf = vec![0; bytes.min(ask.count as usize)];
            let read = pin!(self.stream.read(&mut buf)).poll(&mut Context::from_waker(Waker::noop()));
            let read = match read {
                Poll::Ready(Ok(n)) => {
                    buf.truncate(n);
                    Ok(Some(buf.into()))
                }
                Poll::Ready(Err(fault)) => Err(said(Errno::EIO, &fault)),
                Poll::Pending => return,
            };
            answers.extend(self.reads.pop_front().map(|ask| (ask, read)));
        }
    }
}

fn said(errno: Errno, fault: &Fault) -> Error {
    Error::new(errno, fault.to_string())
}
