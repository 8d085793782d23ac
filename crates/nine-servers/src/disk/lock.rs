//! Record locks, held on the host for the clients.
//!
//! In: a lock request on an open file. Out: whether the lock was granted. The table of [`nine_io::server::locks`]
//! decides among clients. Towards other programs on the host, the server has one open file description for each
//! locked file. It holds, for each byte, the strongest lock that any client holds (fcntl(2), OFD locks). So two fids
//! of one lock owner never conflict, and those of two owners do.
//!
//! Always holds: a lock is released with the fid it was last set through. Nothing here waits for a lock.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

use nine_io::limits::FairLimit;
use nine_io::server::{Reply, Request};
use nine_proto::{Errno, LockRequest, LockStatus, LockType};
use rustix::fs::OFlags;

use super::file::OpenHostFile;
use super::host::{self, HostFs, HostLock};
use super::{
    DiskFidKind, DiskFidState, DiskShared, ExecutionMode, OperationFailure, OperationResult, locked,
};
use nine_io::server::locks::{LOCKS_MAX, Ranges, Wanted, length};

/// All locked files; at most as many as open files. One mutex for all, since work under it is short and in memory.
pub(super) struct RecordLockTable {
    files: Mutex<HashMap<(u64, u64), FileRecordLocks>>,
    /// Limits the number of locked ranges on all files.
    limit: Arc<FairLimit>,
}

impl Default for RecordLockTable {
    fn default() -> Self {
        Self { files: Mutex::default(), limit: FairLimit::new(LOCKS_MAX) }
    }
}

#[derive(Default)]
struct FileRecordLocks {
    /// The description that holds the locks on the host; `None` if the server may not open the file.
    host: Option<OwnedFd>,
    held: Ranges,
}

impl<H: HostFs> DiskShared<H> {
    pub(super) fn lock(
        &self,
        node: &DiskFidState,
        req: &Request,
        asked: LockRequest<'_>,
    ) -> OperationResult<Reply> {
        let (file, want) = wanted(node, req, &asked)?;
        let allowed = match asked.ty {
            LockType::Read => file.reads,
            LockType::Write => file.writes,
            LockType::Unlock => true,
        };
        if !allowed {
            return Err(Errno::EBADF.into());
        }
        let mut files = locked(&self.locks.files);
        let key = (file.dent.id.dev, file.dent.id.ino);
        if asked.ty == LockType::Unlock && !files.contains_key(&key) {
            return Ok(Reply::Lock(LockStatus::Success));
        }
        file.locked.store(true, Ordering::Release);
        let locks = files.entry(key).or_default();
        if locks.host.is_none() {
            locks.host = self.open_for_locks(file)?;
        }
        let result = locks.set(&self.host, want, &self.locks.limit);
        if locks.held.is_empty() {
            files.remove(&key);
        }
        result.map(Reply::Lock)
    }

    pub(super) fn getlock(
        &self,
        node: &DiskFidState,
        req: &Request,
        asked: LockRequest<'_>,
    ) -> OperationResult<Reply> {
        let (file, want) = wanted(node, req, &asked)?;
        let free = Reply::Getlock {
            ty: LockType::Unlock,
            start: asked.start,
            length: asked.length,
            proc_id: asked.proc_id,
            client_id: asked.client_id.into(),
        };
        if asked.ty == LockType::Unlock {
            return Ok(free);
        }
        let mut files = locked(&self.locks.files);
        let locks = files.get_mut(&(file.dent.id.dev, file.dent.id.ino));
        if let Some(held) = locks.as_ref().and_then(|locks| locks.held.conflict(&want)) {
            return Ok(Reply::Getlock {
                ty: held.ty,
                start: held.start,
                length: held.length(),
                proc_id: held.owner.proc_id,
                client_id: held.owner.client_id.clone(),
            });
        }
        let own = file.fd()?;
        // Locks of the server's own description do not conflict with it. Without one, the server holds no lock on the
        // file.
        let fd = locks.as_ref().and_then(|locks| locks.host.as_ref()).unwrap_or(&own);
        Ok(match self.host.getlock(fd.as_fd(), host_lock(asked.ty, want.start, want.last))? {
            None => free,
            Some(HostLock { ty, start, length }) => {
                Reply::Getlock { ty, start, length, proc_id: 0, client_id: b"host"[..].into() }
            }
        })
    }

    /// Opens with the server's rights, as many as it can get. The client's rights were checked when it opened its
    /// fid.
    fn open_for_locks(&self, file: &OpenHostFile) -> OperationResult<Option<OwnedFd>> {
        let fd = file.fd()?;
        for access in [OFlags::RDWR, OFlags::WRONLY, OFlags::RDONLY] {
            let open = || self.host.reopen(fd.as_fd(), access | OFlags::NONBLOCK);
            match self.tree.with_room(ExecutionMode::Pool, open) {
                Ok(fd) => return Ok(Some(fd)),
                Err(host::Errno::MFILE | host::Errno::NFILE) => return Err(Errno::ENOLCK.into()),
                Err(_) => {}
            }
        }
        Ok(None)
    }
}

impl RecordLockTable {
    /// Releases locks that were set through this open file.
    pub(super) fn release(&self, host: &impl HostFs, file: &OpenHostFile) {
        let mut files = locked(&self.files);
        let key = (file.dent.id.dev, file.dent.id.ino);
        let Some(locks) = files.get_mut(&key) else { return };
        for (start, last) in locks.held.release(file.number) {
            // The kernel has no reason to refuse an unlock. If it fails, the bytes are unlocked when the description
            // closes.
            let _ = locks.mirror(host, start, last);
        }
        if locks.held.is_empty() {
            files.remove(&key);
        }
    }
}

impl FileRecordLocks {
    /// Locks the whole range, or nothing.
    fn set(
        &mut self,
        host: &impl HostFs,
        want: Wanted,
        limit: &Arc<FairLimit>,
    ) -> OperationResult<LockStatus> {
        if self.held.conflict(&want).is_some() {
            return Ok(LockStatus::Blocked);
        }
        let before = self.held.clone();
        let (start, last) = (want.start, want.last);
        self.held.replace(want, limit)?;
        let Err(error) = self.mirror(host, start, last) else { return Ok(LockStatus::Success) };
        self.held = before;
        let _ = self.mirror(host, start, last);
        match error {
            host::Errno::AGAIN | host::Errno::ACCESS => Ok(LockStatus::Blocked),
            error => Err(OperationFailure::from(error)),
        }
    }

    /// Sets the host's locks on a range to those of the table.
    fn mirror(&self, host: &impl HostFs, start: u64, last: u64) -> host::Result<()> {
        let Some(fd) = &self.host else { return Ok(()) };
        for (start, last, ty) in self.held.strongest(start, last) {
            match host.lock(fd.as_fd(), host_lock(ty, start, last)) {
                // The server may not open the file with the access this lock needs. The lock holds among clients
                // only.
                Ok(()) | Err(host::Errno::BADF) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn wanted<'a>(
    node: &'a DiskFidState,
    req: &Request,
    asked: &LockRequest<'_>,
) -> OperationResult<(&'a OpenHostFile, Wanted)> {
    let DiskFidKind::File(file) = &node.kind else { return Err(Errno::EBADF.into()) };
    Ok((file, Wanted::of(req, file.number, asked)?))
}

/// A range beyond the host's largest offset is taken to reach to the end of the file.
fn host_lock(ty: LockType, start: u64, last: u64) -> HostLock {
    HostLock { ty, start, length: if last >= i64::MAX as u64 { 0 } else { length(start, last) } }
}

#[cfg(test)]
mod tests {
    use super::super::host::Linux;
    use super::*;
    use LockType::{Unlock, Write};
    use nine_io::limits::ClientPrincipal;

    fn want(who: u32, ty: LockType, start: u64, last: u64) -> Wanted {
        let length = length(start, last);
        let asked = LockRequest { ty, flags: 0, start, length, proc_id: who, client_id: b"here" };
        Wanted::new(1, ClientPrincipal::Owner, who.into(), &asked).unwrap()
    }

    #[test]
    fn the_host_sees_our_locks_and_we_see_its() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let open = || OwnedFd::from(file.reopen().unwrap());
        let other = open();
        let mut locks = FileRecordLocks { host: Some(open()), held: Ranges::default() };
        let limit = FairLimit::new(10);
        let mut set = |who, ty, start, last| locks.set(&Linux, want(who, ty, start, last), &limit).unwrap();
        assert_eq!(set(1, Write, 0, 9), LockStatus::Success);
        let tail = HostLock { ty: Write, start: 5, length: 10 };
        assert_eq!(Linux.lock(other.as_fd(), tail), Err(host::Errno::AGAIN));
        Linux.lock(other.as_fd(), HostLock { ty: Write, start: 100, length: 10 }).unwrap();
        // Blocked by the host: the table keeps none of it.
        assert_eq!(set(2, Write, 50, 200), LockStatus::Blocked);
        assert_eq!(set(3, Write, 50, 60), LockStatus::Success);
        assert_eq!(set(1, Unlock, 0, u64::MAX), LockStatus::Success);
        Linux.lock(other.as_fd(), tail).unwrap();
    }
}
