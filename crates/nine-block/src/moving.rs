//! A device that moves to another one while it is in use.
//!
//! In: operations; another device, to which everything is copied ([`Moving::move_to`]). Out: operations of the present
//! device, and during a move also of the new one.
//!
//! Always holds: when the old device is left, all acknowledged writes are on the new one. If either device fails, the
//! old one stays in use. The first sectors are copied last, so an incomplete copy does not begin like a whole disk.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;

use crate::call::Call;
use crate::device::{Device, Io, Op, SECTOR, Shape};
use crate::error::{Error, Kind, Result};
use crate::locks::RangeLocks;
use crate::mirror::{Pause, Rest};
use crate::owner::SectorOwner;
use crate::plain::within;
use crate::sync::{Mutex, lock};
use crate::task::Tasks;

/// Sectors that are copied at once, and locked against writes meanwhile. The first piece is copied last.
const MOVE_SECTORS: u64 = 1024;

/// A device that can move. Clones share it.
#[derive(Clone)]
pub struct Moving(Arc<MovingShared>);

struct MovingShared {
    state: Mutex<MovingState>,
    /// Ranges of sectors that are written or copied during a move.
    ranges: RangeLocks,
    tasks: Tasks,
}

struct MovingState {
    now: Arc<dyn Device>,
    /// Number of changes in flight that began while no move was in progress.
    plain: usize,
    /// The move that waits for their end.
    waits: Option<Waker>,
    to: Option<MoveTarget>,
}

/// The destination of a move.
struct MoveTarget {
    device: Arc<dyn Device>,
    /// The end of the copied sectors, which begin at [`MOVE_SECTORS`].
    at: u64,
    failed: Option<Error>,
}

impl MoveTarget {
    fn has(&self, from: u64, end: u64) -> bool {
        from < self.at && end > MOVE_SECTORS
    }
}

/// A move in progress; dropping it ends the move.
struct MoveGuard<'a>(&'a MovingShared);

impl Drop for MoveGuard<'_> {
    fn drop(&mut self) {
        let to = lock(&self.0.state).to.take();
        drop(to);
    }
}

impl Moving {
    /// Creates one from a device.
    pub fn new(of: Arc<dyn Device>) -> Self {
        let state = Mutex::new(MovingState { now: of, plain: 0, waits: None, to: None });
        Self(Arc::new(MovingShared { state, ranges: RangeLocks::default(), tasks: Tasks::default() }))
    }

    /// Copies everything to another device of at least the same size, and then uses that one. Until the end reads go to
    /// the old device, and writes and flushes to both. Returns the old device, which is no longer in use. Calls `rest`
    /// after each piece, and while it waits for operations on the device it leaves. If the future is dropped, the old
    /// device stays in use.
    ///
    /// # Errors
    /// The new device is unsuitable, or either device has failed. The old device stays in use.
    pub async fn move_to(&self, new: Arc<dyn Device>, rest: Rest) -> Result<Arc<dyn Device>> {
        let inner = &*self.0;
        new.look().await?;
        let under = inner.begin(&new)?;
        inner.quiet().await;
        let carried = inner.carry(&*new, &rest).await;
        drop(under);
        let (left, result) = match carried {
            Ok(old) => (old.clone(), Ok(old)),
            Err(error) => (new, Err(error)),
        };
        // Wait until other holders release it, so that it is dropped by the caller and not on another thread.
        let ours = 1 + usize::from(result.is_ok());
        while Arc::strong_count(&left) > ours {
            rest(Pause::Idle).await;
        }
        result
    }
}

impl MovingShared {
    fn now(&self) -> Arc<dyn Device> {
        lock(&self.state).now.clone()
    }

    fn begin(&self, new: &Arc<dyn Device>) -> Result<MoveGuard<'_>> {
        let mut state = lock(&self.state);
        if state.to.is_some() {
            return Err(Error::new(Kind::Failed, "it moves already").of(state.now.name()));
        }
        fits(&state.now.shape(), &new.shape())?;
        state.to = Some(MoveTarget { device: new.clone(), at: 0, failed: None });
        Ok(MoveGuard(self))
    }

    /// Waits for changes that go to the old device alone.
    async fn quiet(&self) {
        poll_fn(|cx| {
            let mut state = lock(&self.state);
            state.waits = Some(cx.waker().clone());
            if state.plain == 0 { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    /// Copies everything. Returns the old device.
    async fn carry(&self, new: &dyn Device, rest: &Rest) -> Result<Arc<dyn Device>> {
        let old = self.now();
        let first = MOVE_SECTORS.min(old.shape().sectors);
        new.write(0, vec![0; (first * SECTOR) as usize].into()).await?;
        let mut at = first;
        loop {
            while at < old.shape().sectors {
                let count = MOVE_SECTORS.min(old.shape().sectors - at);
                let held = self.ranges.lock(at, at + count).await;
                self.well()?;
                new.write(at, old.read(at, count).await?).await?;
                at += count;
                self.state_of(|to| to.at = at);
                drop(held);
                rest(Pause::Moved(count)).await;
            }
            // Most of it, while writes continue.
            old.flush().await?;
            new.flush().await?;
            let _held = self.ranges.lock(0, u64::MAX).await;
            if at < old.shape().sectors {
                continue;
            }
            new.write(0, old.read(0, first).await?).await?;
            old.flush().await?;
            new.flush().await?;
            self.well()?;
            let mut state = lock(&self.state);
            fits(&old.shape(), &new.shape())?;
            let to = state.to.take().expect("it moves until here");
            state.now = to.device;
            return Ok(old);
        }
    }

    fn state_of(&self, does: impl FnOnce(&mut MoveTarget)) {
        if let Some(to) = &mut lock(&self.state).to {
            does(to);
        }
    }

    fn well(&self) -> Result<()> {
        let state = lock(&self.state);
        state.to.as_ref().and_then(|to| to.failed.clone()).map_or(Ok(()), Err)
    }

    /// Begins an operation on the present device, and, if it has these sectors, on the new one.
    fn both(&self, io: &Io) -> (Call, Option<Call>) {
        let (now, to) = {
            let state = lock(&self.state);
            let touches = |to: &&MoveTarget| {
                to.failed.is_none()
                    && match io.op {
                        Op::Write => to.has(io.at, io.end_at()),
                        _ => true,
                    }
            };
            (state.now.clone(), state.to.as_ref().filter(touches).map(|to| to.device.clone()))
        };
        let begin = |device: &dyn Device| match io.op {
            Op::Write => device.write(io.at, io.data.clone()),
            Op::Flush => device.flush(),
            _ => device.look(),
        };
        (begin(&*now), to.map(|to| begin(&*to)))
    }

    async fn change(self: Arc<Self>, io: Io) {
        let held = match io.op {
            Op::Write | Op::Discard => self.ranges.lock(io.at, io.end_at()).await,
            // One at a time, and none in flight when the old device is left.
            _ => self.ranges.lock(u64::MAX - 1, u64::MAX).await,
        };
        let result = match io.op {
            Op::Discard => self.discard(io.at, io.count).await,
            _ => {
                let (now, to) = self.both(&io);
                let result = now.await;
                if let Some(to) = to {
                    let other = to.await;
                    if let Some(error) = result.as_ref().err().or(other.as_ref().err()) {
                        self.state_of(|to| to.failed = to.failed.take().or(Some(error.clone())));
                    }
                }
                result
            }
        };
        drop(held);
        io.end(result);
    }

    /// Discarded sectors may read as anything, so the new device need not succeed.
    async fn discard(&self, at: u64, count: u64) -> Result<Bytes> {
        let call = self.now().discard(at, count);
        let done = call.await?;
        let to =
            lock(&self.state).to.as_ref().filter(|to| to.has(at, at + count)).map(|to| to.device.clone());
        let call = to.map(|to| to.discard(at, count));
        if let Some(call) = call {
            drop(call.await);
        }
        Ok(done)
    }

    /// Counts the end of a change that began without a move.
    fn left(&self) {
        let mut state = lock(&self.state);
        state.plain -= 1;
        let waker = if state.plain == 0 { state.waits.take() } else { None };
        drop(state);
        waker.into_iter().for_each(Waker::wake);
    }
}

/// Checks that the new device can replace the old one.
fn fits(old: &Shape, new: &Shape) -> Result<()> {
    let why = if new.sectors < old.sectors {
        format!("it has {} sectors, and {} are needed", new.sectors, old.sectors)
    } else if new.read_only {
        "it is not written".into()
    } else if new.atom > old.atom {
        format!("it writes {} sectors at once, and {} are needed", new.atom, old.atom)
    } else if old.durable && !new.durable {
        "its flush makes nothing durable".into()
    } else {
        return Ok(());
    };
    Err(Error::new(Kind::Failed, why))
}

impl Device for Moving {
    fn shape(&self) -> Shape {
        self.0.now().shape()
    }

    fn unbacked(&self) -> u64 {
        self.0.now().unbacked()
    }

    fn submit(&self, io: Io) {
        let (inner, mut state) = (&self.0, lock(&self.0.state));
        let now = state.now.clone();
        if io.op == Op::Read || io.judge(&now.shape()).is_err() {
            drop(state);
            return now.submit(io);
        }
        if state.to.is_some() {
            drop((state, now));
            return inner.tasks.spawn(inner.clone().change(io));
        }
        state.plain += 1;
        drop(state);
        let (op, at, count, data) = (io.op, io.at, io.count, io.data.clone());
        let inner = inner.clone();
        let done = move |result| {
            inner.left();
            io.end(result);
        };
        now.submit(match op {
            Op::Write => Io::write(at, data, done),
            op => Io::other(op, at, count, done),
        });
    }

    fn name(&self) -> String {
        self.0.now().name()
    }

    fn status(&self) -> String {
        let (now, at) = {
            let state = lock(&self.0.state);
            (state.now.clone(), state.to.as_ref().map(|to| (to.device.name(), to.at)))
        };
        let status = now.status();
        match at {
            Some((to, at)) => {
                let of = now.shape().sectors;
                format!("{} moves to {to}: {at} of {of} sectors\n{}", now.name(), within(&status))
            }
            None => status,
        }
    }

    fn owned_by(&self, owner: Arc<dyn SectorOwner>) {
        self.0.now().owned_by(owner);
    }

    fn trouble(&self) -> Vec<String> {
        self.0.now().trouble()
    }

    fn control(&self, words: &[&str]) -> Result<()> {
        self.0.now().control(words)
    }
}
