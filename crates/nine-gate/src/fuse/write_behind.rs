//! Write-behind: sequential writes to servers far away are answered before the server has answered them, so that a
//! program does not wait a round trip for each.
//!
//! In: the writes of open files; requests that depend on them. Out: a *run* of Twrites in flight for a file, as many as
//! its link needs; the first error of a run, which close(2), and the next write or fsync(2), of its open file report,
//! as with NFS.
//!
//! A run begins after a write that took [`FAR`] or longer, and continues with writes that each begin where the last one
//! ended. Any other write, and any request that depends on the contents, the length or the times of the file, waits for
//! the end of the run. Attributes that the server reports meanwhile are shown with the length that the file will have.
//!
//! Always holds: a file has one run, so its writes in flight never overlap. A close waits for the run. An interrupted
//! request takes back no write that has been answered.

use std::cell::{Cell, RefCell};
use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::rc::Rc;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, select};
use futures_util::lock::Mutex as AsyncMutex;
use nine_io::client::{self, Cancel, File, Writer};
use nine_proto::{Errno, OpenFlags, Qid};

use super::nodes::{KernelNode, RequestEpoch};
use super::ops::errno;
use super::{Cache, FileHandle, GRACE, MountState, OpenHandle};

/// A server is far away if a request takes this long.
pub(super) const FAR: Duration = Duration::from_millis(1);
/// Maximum number of bytes in flight of all files of a mount. Above it, writes wait for the end of their run.
const IN_FLIGHT_MAX: usize = 64 << 20;
/// How often the answers to writes are processed if no request of the file does that.
const SWEEP: Duration = Duration::from_secs(1);

/// The runs of a mount.
#[derive(Default)]
pub(super) struct WriteBehind {
    /// Bytes in flight.
    bytes: Cell<usize>,
    /// The files with runs.
    nodes: RefCell<Vec<Rc<KernelNode>>>,
    /// The sweep, while there are none.
    sweeper: RefCell<Option<Waker>>,
}

/// The writes in flight of one open file.
pub(super) struct WriteRun {
    /// Locked by the request that waits for answers, because a writer wakes only the last task that waited.
    writer: AsyncMutex<Writer<Rc<File>>>,
    /// Its part of [`WriteBehind::bytes`].
    bytes: Cell<usize>,
    /// The error that ended it, until a write or an fsync(2) has reported it.
    failed: Cell<Option<Errno>>,
}

/// The end of a file after its run. The server may report a shorter length until it has executed all writes.
#[derive(Clone, Copy, Default)]
pub(super) struct WriteTail {
    end: u64,
    /// The number of ended runs when this one had ended.
    ended: Option<u64>,
}

impl KernelNode {
    /// The length that the file has at least, if attributes requested at `asked` may lack writes that were answered
    /// early.
    pub(super) fn tail_at(&self, asked: RequestEpoch) -> Option<u64> {
        let tail = self.tail.get();
        (tail.end > 0 && tail.ended.is_none_or(|ended| asked.runs < ended)).then_some(tail.end)
    }

    fn has_run(&self, run: &Rc<WriteRun>) -> bool {
        self.run.borrow().as_ref().is_some_and(|current| Rc::ptr_eq(current, run))
    }
}

impl FileHandle {
    /// Takes the error of its last run.
    pub(super) fn take_error(&self) -> Result<(), Errno> {
        self.run.borrow().as_ref().and_then(|run| run.failed.take()).map_or(Ok(()), Err)
    }

    /// Returns the error of its last run, and keeps it.
    fn error(&self) -> Result<(), Errno> {
        self.run.borrow().as_ref().and_then(|run| run.failed.get()).map_or(Ok(()), Err)
    }
}

impl MountState {
    /// Whether a write to this file may be answered early.
    pub(super) fn may_write_behind(&self, open: &FileHandle, open_flags: u32) -> bool {
        let waits = OpenFlags::SYNC.0 | OpenFlags::DSYNC.0 | OpenFlags::DIRECT.0 | OpenFlags::APPEND.0;
        let opened = open.file.flags().map_or(0, |flags| flags.0);
        self.options.write_behind
            && !self.options.write_back
            && self.options.cache != Cache::Never
            && !open.is_event
            && open.node.is_plain()
            && open.file.qid().ty & (Qid::APPEND | Qid::EXCL) == 0
            && (open_flags | opened) & waits == 0
            && open.node.locks.borrow().is_empty()
    }

    /// Adds a write to the run of this open file. Returns `false` if it has none that ends at `offset`; then no write
    /// to the file is in flight.
    ///
    /// # Errors
    /// EINTR, or the error of an earlier write.
    pub(super) async fn write_behind(
        &self,
        open: &FileHandle,
        offset: u64,
        data: &Bytes,
    ) -> Result<bool, Errno> {
        let run = open.run.borrow().clone();
        if let Some(run) = run.filter(|run| open.node.has_run(run)) {
            let mut writer = wait(run.writer.lock()).await?;
            let has_room = self.behind.bytes.get() + data.len() <= IN_FLIGHT_MAX;
            if open.node.has_run(&run) && writer.edge() == offset && has_room {
                let pushed = wait(writer.push(data.clone())).await;
                // An interrupted write may be in flight in part.
                open.node.tail.set(WriteTail { end: writer.edge(), ended: None });
                self.count(&run, writer.under_way());
                match pushed? {
                    Ok(()) => return Ok(true),
                    Err(error) => self.fail(&open.node, &run, errno(error)),
                }
            }
        }
        self.settle(&open.node).await?;
        open.take_error().map(|()| false)
    }

    /// To be called after a write that was answered late, with its time. Begins a run at `edge` if the server is far
    /// away.
    pub(super) fn written_alone(&self, open: &FileHandle, edge: u64, time: Duration) {
        if time < FAR || open.node.run.borrow().is_some() {
            return;
        }
        let writer = AsyncMutex::new(Writer::new(open.file.clone(), edge));
        let run = Rc::new(WriteRun { writer, bytes: Cell::new(0), failed: Cell::new(None) });
        open.run.replace(Some(run.clone()));
        open.node.run.replace(Some(run));
        self.behind.nodes.borrow_mut().push(open.node.clone());
        if let Some(sweeper) = self.behind.sweeper.take() {
            sweeper.wake();
        }
    }

    /// Waits until no write to this file is in flight. An error of the run is left to its open file.
    ///
    /// # Errors
    /// EINTR.
    pub(super) async fn settle(&self, node: &Rc<KernelNode>) -> Result<(), Errno> {
        let run = node.run.borrow().clone();
        let Some(run) = run else { return Ok(()) };
        let mut writer = wait(run.writer.lock()).await?;
        if node.has_run(&run) {
            let finished = wait(writer.finish()).await;
            self.count(&run, writer.under_way());
            match finished? {
                Ok(()) => self.end(node, &run),
                Err(error) => self.fail(node, &run, errno(error)),
            }
        }
        Ok(())
    }

    /// The same for fsync(2), which reports an error of the run, whichever open file has written.
    pub(super) async fn settle_for_sync(&self, open: &FileHandle) -> Result<(), Errno> {
        let run = open.node.run.borrow().clone();
        self.settle(&open.node).await?;
        open.take_error()?;
        run.and_then(|run| run.failed.get()).map_or(Ok(()), Err)
    }

    /// The same for close(2) by this process, which reports the error of the open file. The error stays, because the
    /// kernel closes files of processes that exit or call execve(2), and then nobody sees it. A process that exits
    /// cannot be interrupted, so it waits no longer than others that are. Its writes stay in flight.
    pub(super) async fn settle_for_close(&self, handle: u64, pid: u32) -> Result<(), Errno> {
        let Ok(handle) = self.handle(handle) else { return Ok(()) };
        let OpenHandle::File(open) = &*handle else { return Ok(()) };
        let mut settled = pin!(self.settle(&open.node));
        loop {
            let limit = self.clock.sleep_until(self.clock.now() + GRACE + self.options.patience);
            match select(settled.as_mut(), limit).await {
                Either::Left((settled, _)) => {
                    settled?;
                    return open.error();
                }
                Either::Right(_) if is_exiting(pid) => return Err(Errno::EIO),
                Either::Right(_) => {}
            }
        }
    }

    /// The same before a handle is released. Nobody waits for it.
    pub(super) async fn settle_for_release(&self, handle: u64) {
        let Ok(handle) = self.handle(handle) else { return };
        let OpenHandle::File(open) = &*handle else { return };
        if let Err(error) = self.settle(&open.node).await.and_then(|()| open.take_error()) {
            tracing::warn!(
                "writes to a file failed, and only its close could report it: {}",
                nine_proto::Error::from(error)
            );
        }
    }

    /// Processes the answers to writes of files that no request uses.
    pub(super) async fn sweep_runs(&self) -> Infallible {
        loop {
            poll_fn(|cx| match self.behind.nodes.borrow().is_empty() {
                true => {
                    self.behind.sweeper.replace(Some(cx.waker().clone()));
                    Poll::Pending
                }
                false => Poll::Ready(()),
            })
            .await;
            self.clock.sleep_until(self.clock.now() + SWEEP).await;
            let nodes = self.behind.nodes.borrow().clone();
            for node in nodes {
                let run = node.run.borrow().clone();
                let Some(run) = run else { continue };
                let Some(mut writer) = run.writer.try_lock() else { continue };
                let progress = writer.progress().await;
                self.count(&run, writer.under_way());
                match progress {
                    Ok(()) if writer.under_way() == 0 => self.end(&node, &run),
                    Ok(()) => {}
                    Err(error) => self.fail(&node, &run, errno(error)),
                }
            }
        }
    }

    fn count(&self, run: &WriteRun, bytes: usize) {
        self.behind.bytes.set(self.behind.bytes.get() - run.bytes.replace(bytes) + bytes);
    }

    fn end(&self, node: &Rc<KernelNode>, run: &WriteRun) {
        self.count(run, 0);
        node.run.take();
        self.behind.nodes.borrow_mut().retain(|other| !Rc::ptr_eq(other, node));
        let mut nodes = self.nodes.borrow_mut();
        nodes.runs += 1;
        node.tail.set(WriteTail { ended: Some(nodes.runs), ..node.tail.get() });
    }

    fn fail(&self, node: &Rc<KernelNode>, run: &WriteRun, errno: Errno) {
        run.failed.set(Some(errno));
        self.end(node, run);
        // The kernel has a length and pages that the server does not have.
        node.tail.take();
        node.stale.set(true);
        self.forget_attr(node);
        // A write that waits for our answer may have locked pages, so nobody may wait for this.
        if let Ok(notifier) = self.notifier() {
            notifier.inode(node.id, true);
        }
    }
}

/// Completes with `future`, or with EINTR when the current request is interrupted. The calls of `future` are not
/// flushed then: other requests wait for them.
async fn wait<T>(future: impl Future<Output = T>) -> Result<T, Errno> {
    client::heed(Cancel::default().scope(pin!(future))).await.map_err(errno)
}

/// Whether a process of this machine exits: PF_EXITING among the flags, the 9th field of proc_pid_stat(5).
fn is_exiting(pid: u32) -> bool {
    const PF_EXITING: u32 = 4;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The second field may contain any characters.
    let flags =
        stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(6)?.parse::<u32>().ok());
    flags.is_some_and(|flags| flags & PF_EXITING != 0)
}
