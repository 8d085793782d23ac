//! Attributes, locks, and file system statistics, in any dialect.

use nine_proto::msg::{OptionalU32, Tmsg};
use nine_proto::{
    Attr, Errno, GetMask, LockRequest, LockStatus, NOGID, NOUID, Qid, SetAttr, SetMask, Stat, StatIds,
    Statfs, Time, TimeSet, mode,
};

use super::answer::{Answer, Getlock, lock_status};
use super::error::{Error, Result};
use super::file::File;
use super::text;

impl File {
    /// Returns the file's attributes. `mask` selects them, [`Attr::valid`] shows the present ones. 9P2000 and .u
    /// return all that they have in any case, with texts.
    pub async fn getattr(&self, mask: GetMask) -> Result<Attr> {
        if !self.client().dialect().is_l() {
            return self.stat().await;
        }
        self.attr(Tmsg::Getattr { fid: self.fid(), mask: mask.0 & GetMask::ALL.0 }).await
    }

    /// Returns the file at `path` below this one ([`File::walk`]) and its attributes. One round trip if the session
    /// orders dependent requests (`.s`).
    pub async fn walk_attr(&self, path: impl AsRef<[u8]>, mask: GetMask) -> Result<(File, Attr)> {
        let is_l = self.client().dialect().is_l();
        let ask = |fid| match is_l {
            true => Tmsg::Getattr { fid, mask: mask.0 & GetMask::ALL.0 },
            false => Tmsg::Stat { fid },
        };
        let (mut file, answer) = self.walk_then(path.as_ref(), ask).await?;
        match answer? {
            Answer::Attr(attr) => {
                // An empty path yields this file's qid, which may not be known yet.
                file.becomes(attr.qid);
                Ok((file, *attr))
            }
            other => other.never(),
        }
    }

    pub(crate) async fn stat(&self) -> Result<Attr> {
        self.attr(Tmsg::Stat { fid: self.fid() }).await
    }

    async fn attr(&self, message: Tmsg<'_>) -> Result<Attr> {
        match self.call(message).await? {
            Answer::Attr(attr) => Ok(*attr),
            other => other.never(),
        }
    }

    /// Changes attributes. 9P2000 and .u change all of them or none (stat(5)), and have no "now". 9P2000 can change
    /// neither owners nor set-id and sticky bits. .L renames only by [`File::rename`].
    pub async fn setattr(&self, set: &SetAttr<'_>) -> Result<()> {
        self.setattr_of(self.qid(), set).await
    }

    /// Like [`File::setattr`], for a fid that a forwarded message has moved to the file with this qid.
    pub async fn setattr_of(&self, qid: Qid, set: &SetAttr<'_>) -> Result<()> {
        if !self.client().dialect().is_l() {
            return self.setattr_by_wstat(qid, set).await;
        }
        if set.name.is_some() {
            return Err(Error::refused(Errno::EINVAL, "9P2000.L changes names by rename only"));
        }
        let mut set = *set;
        if let Some(bits) = set.special {
            // A server without the bits that only 9P2000 has does not get them.
            let has = self.getattr(GetMask::MODE).await?.qid.ty & Qid::SPECIAL;
            set.special = (bits != has).then_some(bits);
        }
        self.call(self.tsetattr(&set)).await.map(drop)
    }

    /// Returns the Tsetattr for this change, except for a name.
    pub fn tsetattr(&self, set: &SetAttr<'_>) -> Tmsg<'static> {
        let mut valid = SetMask(0);
        for (wanted, bit) in [
            (set.mode.is_some(), SetMask::MODE),
            (set.uid.is_some(), SetMask::UID),
            (set.gid.is_some(), SetMask::GID),
            (set.size.is_some(), SetMask::SIZE),
            (set.atime.is_some(), SetMask::ATIME),
            (set.mtime.is_some(), SetMask::MTIME),
            (matches!(set.atime, Some(TimeSet::To(_))), SetMask::ATIME_SET),
            (matches!(set.mtime, Some(TimeSet::To(_))), SetMask::MTIME_SET),
        ] {
            if wanted {
                valid |= bit;
            }
        }
        let time = |t| if let Some(TimeSet::To(time)) = t { time } else { Time::default() };
        Tmsg::Setattr {
            fid: self.fid(),
            valid,
            mode: set.mode.unwrap_or(0) | set.special.map_or(0, |bits| mode::DMAUTH | u32::from(bits) << 24),
            uid: set.uid.unwrap_or(NOUID),
            gid: set.gid.unwrap_or(NOGID),
            size: set.size.unwrap_or(0),
            atime: time(set.atime),
            mtime: time(set.mtime),
        }
    }

    async fn setattr_by_wstat(&self, qid: Qid, set: &SetAttr<'_>) -> Result<()> {
        let dialect = self.client().dialect();
        if !dialect.is_u() && set.uid.is_some() {
            return Err(Error::refused(Errno::EPERM, "9P2000 cannot change the owner of a file"));
        }
        if !dialect.is_u() && set.mode.is_some_and(|bits| bits & 0o7000 != 0) {
            return Err(Error::refused(Errno::EOPNOTSUPP, "9P2000 has no set-id and sticky bits"));
        }
        let names = &self.client().0.options.names;
        let gid = set.gid.filter(|_| !dialect.is_u()).map(|gid| names.group(gid));
        let ty = set.special.map_or(qid.ty, |bits| qid.ty & !Qid::SPECIAL | bits);
        let stat = Stat {
            mode: set.mode.map_or(u32::MAX, |bits| mode::to_dm(bits & 0o7777, ty, dialect.is_u())),
            length: set.size.unwrap_or(u64::MAX),
            atime: seconds(set.atime)?,
            mtime: seconds(set.mtime)?,
            name: text(set.name.unwrap_or_default())?,
            gid: gid.as_deref().unwrap_or_default().as_bytes(),
            ids: StatIds { uid: set.uid.unwrap_or(NOUID), gid: set.gid.unwrap_or(NOGID), ..StatIds::UNSET },
            ..Stat::DONT_TOUCH
        };
        self.wstat(stat).await
    }

    pub(crate) async fn wstat(&self, stat: Stat<'_>) -> Result<()> {
        self.call(Tmsg::Wstat { fid: self.fid(), stat }).await.map(drop)
    }

    /// Returns when the file is on stable storage; `datasync`: only its content, if the dialect distinguishes that.
    pub async fn fsync(&self, datasync: bool) -> Result<()> {
        if self.client().dialect().is_l() {
            let message = Tmsg::Fsync { fid: self.fid(), datasync: OptionalU32(datasync.into()) };
            return self.call(message).await.map(drop);
        }
        // A Twstat that changes nothing (stat(5)).
        self.wstat(Stat::DONT_TOUCH).await
    }

    /// Returns statistics of the file system (.L).
    pub async fn statfs(&self) -> Result<Statfs> {
        self.only_l()?;
        match self.call(Tmsg::Statfs { fid: self.fid() }).await? {
            Answer::Statfs(statfs) => Ok(statfs),
            other => other.never(),
        }
    }

    /// Takes or releases a record lock (.L). It never waits: `Blocked` means try again.
    pub async fn lock(&self, lock: &LockRequest<'_>) -> Result<LockStatus> {
        self.only_l()?;
        let LockRequest { ty, flags, start, length, proc_id, client_id } = *lock;
        let client_id = text(client_id)?;
        let message = Tmsg::Lock { fid: self.fid(), ty: ty as u8, flags, start, length, proc_id, client_id };
        match self.call(message).await? {
            Answer::Lock(status) => lock_status(status),
            other => other.never(),
        }
    }

    /// Returns the lock that would conflict with a record lock (.L).
    pub async fn getlock(&self, lock: &LockRequest<'_>) -> Result<Getlock> {
        self.only_l()?;
        let LockRequest { ty, start, length, proc_id, client_id, .. } = *lock;
        let client_id = text(client_id)?;
        let message = Tmsg::Getlock { fid: self.fid(), ty: ty as u8, start, length, proc_id, client_id };
        match self.call(message).await? {
            Answer::Getlock(lock) => Ok(lock),
            other => other.never(),
        }
    }

    pub(crate) fn only_l(&self) -> Result<()> {
        if self.client().dialect().is_l() {
            return Ok(());
        }
        Err(Error::refused(Errno::EOPNOTSUPP, "only 9P2000.L has this, and the server does not speak it"))
    }
}

/// A time of a Twstat: 32 bits, of which all ones mean "don't touch".
fn seconds(time: Option<TimeSet>) -> Result<u32> {
    match time {
        None => Ok(u32::MAX),
        Some(TimeSet::To(time)) => Ok(time.sec.clamp(0, i64::from(u32::MAX - 1)) as u32),
        Some(TimeSet::Now) => {
            Err(Error::refused(Errno::EOPNOTSUPP, "this server's dialect needs the time itself, not \"now\""))
        }
    }
}
