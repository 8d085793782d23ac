//! A host with faults: it wraps the real calls of the disk server and makes some of them fail.
//!
//! A fault replaces the call, so a failed call has no effect. The exception is a full disk: it accepts a part of a
//! write first, as real disks do.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nine_servers::disk::Block;
use nine_servers::disk::host::{Errno, HostFs, HostLock, Linux, Resident, Result, Stat};
use rustix::fs::{Mode, OFlags, RenameFlags, Timestamps};

use crate::rng::Rng;

/// The host behind a disk server. Clones share it.
#[derive(Clone)]
pub struct Faulty {
    plan: Arc<Mutex<Plan>>,
}

/// Injected faults.
pub struct Plan {
    /// Decides which calls fail.
    pub rng: Rng,
    /// One in so many calls fails with one of `errnos`; 0: none.
    pub one_in: usize,
    /// The possible errors of such a call.
    pub errnos: &'static [Errno],
    /// Number of bytes that can be written before the disk is full.
    pub room: u64,
    /// Changes fail with `EROFS`.
    pub read_only: bool,
    /// Number of failed calls.
    pub failed: u64,
}

impl Faulty {
    /// Creates a host without faults. Change them with [`Faulty::plan`].
    pub fn new(rng: Rng) -> Self {
        let plan = Plan { rng, one_in: 0, errnos: &[Errno::IO], room: u64::MAX, read_only: false, failed: 0 };
        Self { plan: Arc::new(Mutex::new(plan)) }
    }

    /// Locks the plan, to read or change it.
    pub fn plan(&self) -> MutexGuard<'_, Plan> {
        self.plan.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn chance(&self) -> Result<()> {
        let mut plan = self.plan();
        if plan.one_in == 0 {
            return Ok(());
        }
        let (one_in, errnos) = (plan.one_in, plan.errnos);
        if plan.rng.one_in(one_in) {
            plan.failed += 1;
            return Err(errnos[plan.rng.below(errnos.len())]);
        }
        Ok(())
    }

    fn change(&self) -> Result<()> {
        if self.plan().read_only {
            return Err(Errno::ROFS);
        }
        self.chance()
    }
}

macro_rules! pass {
    ($($guard:ident $name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {$(
        fn $name(&self, $($arg: $ty),*) -> $ret {
            self.$guard()?;
            Linux.$name($($arg),*)
        }
    )*};
}

impl HostFs for Faulty {
    fn open(
        &self,
        dir: BorrowedFd<'_>,
        name: &[u8],
        flags: OFlags,
        mode: Mode,
        cached: bool,
    ) -> Result<OwnedFd> {
        match flags.intersects(OFlags::CREATE | OFlags::WRONLY | OFlags::RDWR | OFlags::TRUNC) {
            true => self.change()?,
            false => self.chance()?,
        }
        Linux.open(dir, name, flags, mode, cached)
    }

    fn pwrite(&self, file: BorrowedFd<'_>, data: &[u8], offset: u64, nowait: bool) -> Result<usize> {
        self.change()?;
        let mut plan = self.plan();
        let room = usize::try_from(plan.room).unwrap_or(usize::MAX);
        if room == 0 && !data.is_empty() {
            return Err(Errno::NOSPC);
        }
        let written = Linux.pwrite(file, &data[..data.len().min(room)], offset, nowait)?;
        plan.room -= if plan.room == u64::MAX { 0 } else { written as u64 };
        Ok(written)
    }

    fn fill(&self, file: BorrowedFd<'_>, pipe: BorrowedFd<'_>, offset: u64, len: usize) -> Result<usize> {
        self.change()?;
        let mut plan = self.plan();
        let room = usize::try_from(plan.room).unwrap_or(usize::MAX);
        if room == 0 {
            return Err(Errno::NOSPC);
        }
        let moved = Linux.fill(file, pipe, offset, len.min(room))?;
        plan.room -= if plan.room == u64::MAX { 0 } else { moved as u64 };
        Ok(moved)
    }

    fn resident(&self, file: BorrowedFd<'_>, offset: u64, len: u64) -> Resident {
        if self.plan().one_in == 0 { Linux.resident(file, offset, len) } else { Resident::Unknown }
    }

    pass! {
        chance reopen(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd>;
        chance stat(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat>;
        chance access(file: BorrowedFd<'_>, rights: u32) -> Result<()>;
        chance readlink(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Vec<u8>>;
        change mkdir(dir: BorrowedFd<'_>, name: &[u8], mode: u32) -> Result<()>;
        change mknod(dir: BorrowedFd<'_>, name: &[u8], mode: u32, major: u32, minor: u32) -> Result<()>;
        change symlink(target: &[u8], dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
        change link(file: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
        change rename(from: (BorrowedFd<'_>, &[u8]), to: (BorrowedFd<'_>, &[u8]), flags: RenameFlags) -> Result<()>;
        change unlink(dir: BorrowedFd<'_>, name: &[u8], is_dir: bool) -> Result<()>;
        change chmod(file: BorrowedFd<'_>, mode: u32) -> Result<()>;
        change chown(file: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()>;
        change utimens(file: BorrowedFd<'_>, times: &Timestamps) -> Result<()>;
        change truncate(file: BorrowedFd<'_>, size: u64) -> Result<()>;
        chance getdents(dir: BorrowedFd<'_>, block: &mut Block) -> Result<()>;
        chance seek(dir: BorrowedFd<'_>, cookie: u64) -> Result<()>;
        chance pread(file: BorrowedFd<'_>, buf: &mut Vec<u8>, offset: u64, nowait: bool) -> Result<usize>;
        chance fsync(file: BorrowedFd<'_>, data_only: bool) -> Result<()>;
        chance statfs(file: BorrowedFd<'_>) -> Result<nine_proto::Statfs>;
        chance getxattr(file: BorrowedFd<'_>, name: &[u8], buf: &mut [u8]) -> Result<usize>;
        chance listxattr(file: BorrowedFd<'_>, buf: &mut [u8]) -> Result<usize>;
        change setxattr(file: BorrowedFd<'_>, name: &[u8], value: &[u8], flags: u32) -> Result<()>;
        change removexattr(file: BorrowedFd<'_>, name: &[u8]) -> Result<()>;
        chance lock(file: BorrowedFd<'_>, lock: HostLock) -> Result<()>;
        chance getlock(file: BorrowedFd<'_>, lock: HostLock) -> Result<Option<HostLock>>;
    }
}
