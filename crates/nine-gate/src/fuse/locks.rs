//! Locks of fcntl(2) and flock(2).
//!
//! In: GETLK, SETLK, SETLKW, and the close of handles. Out: record locks at the server, one owner per lock owner of the
//! kernel.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use nine_io::client::File;
use nine_proto::{LockRequest, LockStatus, LockType, OpenFlags};

use super::ops::{done, errno};
use super::*;

/// The longest wait between two attempts to get a lock. The first wait is a hundredth of it.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// The last byte that a lock can name (`OFFSET_MAX`): the lock ends where the file ends, however that grows.
const TO_THE_END: u64 = i64::MAX as u64;

/// Whether the server of this file has record locks.
pub(super) async fn has_locks(file: &File) -> bool {
    let free = LockRequest { ty: LockType::Write, flags: 0, start: 0, length: 0, proc_id: 0, client_id: b"" };
    match file.getlock(&free).await {
        Ok(_) => true,
        Err(error) => !matches!(error.errno(), Errno::EOPNOTSUPP | Errno::ENOSYS),
    }
}

impl MountState {
    pub(super) async fn getlock(&self, lock: LockInput) -> FuseResult {
        let handle = self.handle(lock.handle)?;
        let OpenHandle::File(open) = &*handle else { return Err(Errno::EBADF) };
        let owner = lock.owner(&self.name);
        let held = open.file.getlock(&lock.request(&owner)).await.map_err(errno)?;
        let end =
            held.start.checked_add(held.length).filter(|_| held.length > 0).map_or(TO_THE_END, |end| end - 1);
        done(AnswerBuffer::default().u64(held.start).u64(end).u32(held.ty as u32).u32(held.proc_id))
    }

    pub(super) async fn lock(&self, mut lock: LockInput, waits: bool) -> FuseResult {
        let handle = self.handle(lock.handle)?;
        let OpenHandle::File(open) = &*handle else { return Err(Errno::EBADF) };
        self.settle(&open.node).await?;
        let owner = lock.owner(&self.name);
        let whose = (lock.owner, lock.is_flock);
        match lock.ty {
            // The kernel does not name the process here.
            LockType::Unlock => {
                self.unlocks(&open.node).await?;
                lock.pid = open.node.locks.borrow().get(&whose).copied().unwrap_or(lock.pid);
            }
            // Recorded before the outcome is known: a close then releases the lock in any case.
            _ => drop(open.node.locks.borrow_mut().insert(whose, lock.pid)),
        }
        let locker = open.locker(self, &lock).await?;
        let file = locker.as_deref().unwrap_or(&open.file);
        let mut wait = LOCK_WAIT / 100;
        loop {
            match file.lock(&lock.request(&owner)).await.map_err(errno)? {
                LockStatus::Success if lock.ty == LockType::Unlock => return Ok(FuseReply::default()),
                LockStatus::Success => {
                    self.locked(&open.node, &open.file).await?;
                    return Ok(FuseReply::default());
                }
                LockStatus::Blocked | LockStatus::Grace if waits => {
                    let pause = self.clock.sleep_until(self.clock.now() + wait);
                    nine_io::client::heed(pause).await.map_err(errno)?;
                    wait = (2 * wait).min(LOCK_WAIT);
                }
                LockStatus::Blocked | LockStatus::Grace => return Err(Errno::EAGAIN),
                LockStatus::Error => return Err(Errno::ENOLCK),
            }
        }
    }

    /// Releases an owner's locks: with any of its handles (fcntl(2)), or with the last one (flock(2)).
    pub(super) async fn unlock(&self, handle: u64, owner: u64, is_flock: bool) {
        let Ok(handle) = self.handle(handle) else { return };
        let OpenHandle::File(open) = &*handle else { return };
        let held = open.node.locks.borrow_mut().remove(&(owner, is_flock));
        let Some(pid) = held else { return };
        let lock = LockInput { handle: 0, owner, start: 0, length: 0, ty: LockType::Unlock, pid, is_flock };
        let owner = lock.owner(&self.name);
        let request = lock.request(&owner);
        let asked = pin!(open.file.lock(&request));
        // An exiting process cannot be interrupted, so this wait has a limit.
        let limit = self.clock.sleep_until(self.clock.now() + GRACE + self.options.patience);
        let why = match select(asked, limit).await {
            Either::Left((Ok(_), _)) => return,
            Either::Left((Err(error), _)) => error.to_string(),
            Either::Right(_) => "the server does not answer".into(),
        };
        tracing::warn!("locks of a closed file may be held still: {why}");
    }
}

impl FileHandle {
    /// Returns the file opened for writing if the handle is not. An exclusive flock(2) does not need that, but the
    /// server's locks do.
    async fn locker(&self, gate: &MountState, lock: &LockInput) -> Result<Option<Rc<File>>, Errno> {
        let writes = self.file.flags().is_some_and(OpenFlags::writes);
        if writes || !lock.is_flock || lock.ty != LockType::Write {
            return Ok(None);
        }
        if self.locker.borrow().is_none() {
            let file = gate.file_of(&self.node).await?;
            let locker = file.open("", OpenFlags::RDWR).await.map_err(|_| Errno::EBADF)?;
            self.locker.replace(Some(Rc::new(locker)));
        }
        Ok(self.locker.borrow().clone())
    }
}

/// `struct fuse_lk_in`.
pub(super) struct LockInput {
    handle: u64,
    owner: u64,
    start: u64,
    length: u64,
    ty: LockType,
    pid: u32,
    is_flock: bool,
}

impl LockInput {
    pub(super) fn of(f: &mut FuseFields<'_>) -> Option<Self> {
        let (handle, owner, start, end) = (f.u64()?, f.u64()?, f.u64()?, f.u64()?);
        let (ty, pid, flags) = (f.u32()?, f.u32()?, f.u32()?);
        let ty = match ty {
            0 => LockType::Read,
            1 => LockType::Write,
            _ => LockType::Unlock,
        };
        let length = if end >= TO_THE_END { 0 } else { (end + 1).checked_sub(start)? };
        Some(Self { handle, owner, start, length, ty, pid, is_flock: flags & abi::LK_FLOCK != 0 })
    }

    /// The lock's owner, as the server knows it: the open file for flock(2), the process for fcntl(2).
    fn owner(&self, mount: &str) -> String {
        format!("{mount}-{}{:016x}", if self.is_flock { "f" } else { "" }, self.owner)
    }

    fn request<'o>(&self, owner: &'o str) -> LockRequest<'o> {
        let Self { ty, start, length, .. } = *self;
        // A flock(2) lock belongs to the open file, which other processes may inherit.
        let proc_id = if self.is_flock { 0 } else { self.pid };
        LockRequest { ty, flags: 0, start, length, proc_id, client_id: owner.as_bytes() }
    }
}
