//! Operations on directories, in any dialect: create, link, rename, remove.
//!
//! .L has a message for each. 9P2000 and .u use Tcreate on a second fid, Twstat and Tremove. An operation that a
//! dialect does not have is refused with EOPNOTSUPP, or with EXDEV for a move between directories.

use nine_proto::msg::{OnlyUStr, Tmsg};
use nine_proto::{Errno, NOGID, OpenFlags, Qid, RenameMode, Stat, check_name, mode};

use super::answer::Answer;
use super::error::{Error, Result};
use super::file::{File, Opening};
use super::text;

/// `AT_REMOVEDIR`.
const REMOVEDIR: u32 = 0x200;

impl File {
    /// Creates a file in this directory and opens it. `perm` is within 07777, `gid` may be `NOGID`. In 9P2000 and .u
    /// the file must not exist, and the directory's permissions act as the umask (open(5)). In .L, `OpenFlags::EXCL`
    /// decides.
    pub async fn create(
        &self,
        name: impl AsRef<[u8]>,
        flags: OpenFlags,
        perm: u32,
        gid: u32,
    ) -> Result<File> {
        let name = checked(name.as_ref())?;
        if !self.client().dialect().is_l() {
            return self.tcreate(name, self.perm(perm), flags, b"").await;
        }
        let flags = flags | OpenFlags::CREAT;
        let create = |fid| Tmsg::Lcreate { fid, name, flags: flags.to_wire(), mode: perm, gid };
        let (mut file, answer) = self.walk_then(b"", create).await?;
        file.opened(answer?, flags);
        Ok(file)
    }

    /// [`File::create`] that returns early: if the session orders dependent requests (`.s`), the file may be written at
    /// once, and [`Opening::wait`] reports later whether it was created. Otherwise it is created on return.
    pub async fn create_early(
        &self,
        name: impl AsRef<[u8]>,
        flags: OpenFlags,
        perm: u32,
        gid: u32,
    ) -> Result<(File, Opening)> {
        let dialect = self.client().dialect();
        if !(dialect.streaming && dialect.is_l()) {
            return Ok((self.create(name, flags, perm, gid).await?, Opening::default()));
        }
        let name = checked(name.as_ref())?;
        let flags = flags | OpenFlags::CREAT;
        let create = |fid| Tmsg::Lcreate { fid, name, flags: flags.to_wire(), mode: perm, gid };
        self.early(&[], Qid::default(), flags, create).await
    }

    /// Opens the file of this name in this directory, and creates it first if it does not exist (the algorithm of
    /// create(2)). With `OpenFlags::EXCL` it must not exist.
    pub async fn open_or_create(&self, name: impl AsRef<[u8]>, flags: OpenFlags, perm: u32) -> Result<File> {
        let name = checked(name.as_ref())?;
        let excl = flags | OpenFlags::EXCL;
        if flags.has(OpenFlags::EXCL) {
            return self.create(name, flags, perm, NOGID).await;
        }
        match self.open(name, flags).await {
            Err(error) if error.errno() == Errno::ENOENT => {}
            other => return other,
        }
        match self.create(name, excl, perm, NOGID).await {
            // Another client has created it meanwhile.
            Err(error) if error.errno() == Errno::EEXIST => self.open(name, flags).await,
            other => other,
        }
    }

    /// Creates a directory.
    pub async fn mkdir(&self, name: impl AsRef<[u8]>, perm: u32, gid: u32) -> Result<Qid> {
        let name = checked(name.as_ref())?;
        if self.client().dialect().is_l() {
            return self.made(Tmsg::Mkdir { dfid: self.fid(), name, mode: perm, gid }).await;
        }
        let file = self.tcreate(name, mode::DMDIR | self.perm(perm), OpenFlags::READ, b"").await?;
        Ok(file.qid())
    }

    /// Creates a symbolic link to `target` (.u, .L).
    pub async fn symlink(&self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>, gid: u32) -> Result<Qid> {
        let (name, target) = (checked(name.as_ref())?, text(target.as_ref())?);
        if self.client().dialect().is_l() {
            return self.made(Tmsg::Symlink { dfid: self.fid(), name, target, gid }).await;
        }
        let file = self.tcreate(name, mode::DMSYMLINK | 0o777, OpenFlags::READ, target).await?;
        Ok(file.qid())
    }

    /// Gives `target` another name in this directory (.u, .L).
    pub async fn link(&self, name: impl AsRef<[u8]>, target: &File) -> Result<()> {
        let name = checked(name.as_ref())?;
        if self.client().dialect().is_l() {
            return self.call(Tmsg::Link { dfid: self.fid(), fid: target.fid(), name }).await.map(drop);
        }
        let number = target.fid().to_string();
        self.tcreate(name, mode::DMLINK, OpenFlags::READ, number.as_bytes()).await.map(drop)
    }

    /// Creates a device, pipe or socket (.u, .L); `st_mode` holds its type and permissions.
    pub async fn mknod(
        &self,
        name: impl AsRef<[u8]>,
        st_mode: u32,
        (major, minor): (u32, u32),
        gid: u32,
    ) -> Result<Qid> {
        let name = checked(name.as_ref())?;
        if self.client().dialect().is_l() {
            return self.made(Tmsg::Mknod { dfid: self.fid(), name, mode: st_mode, major, minor, gid }).await;
        }
        let extension = match st_mode & mode::S_IFMT {
            mode::S_IFBLK => format!("b {major} {minor}"),
            mode::S_IFCHR => format!("c {major} {minor}"),
            _ => String::new(),
        };
        let perm = mode::to_dm(st_mode, 0, true);
        let file = self.tcreate(name, perm, OpenFlags::READ, extension.as_bytes()).await?;
        Ok(file.qid())
    }

    /// Returns the target of this symbolic link (.u, .L).
    pub async fn readlink(&self) -> Result<Box<[u8]>> {
        match self.client().dialect() {
            dialect if dialect.is_l() => match self.call(Tmsg::Readlink { fid: self.fid() }).await? {
                Answer::Text(target) => Ok(target),
                other => other.never(),
            },
            dialect if dialect.is_u() => {
                let attr = self.stat().await?;
                if attr.mode & mode::S_IFMT != mode::S_IFLNK {
                    return Err(Error::refused(Errno::EINVAL, "not a symbolic link"));
                }
                Ok(attr.texts.map(|texts| texts.target).unwrap_or_default())
            }
            _ => Err(Error::refused(Errno::EOPNOTSUPP, "9P2000 has no symbolic links")),
        }
    }

    /// Moves `old` in this directory to `new` in the directory `to`. In .L an existing file there is replaced. In
    /// 9P2000 and .u the directories must be the same (EXDEV), and `new` must not exist (EOPNOTSUPP).
    pub async fn rename(&self, old: impl AsRef<[u8]>, to: &File, new: impl AsRef<[u8]>) -> Result<()> {
        let (oldname, newname) = (checked(old.as_ref())?, checked(new.as_ref())?);
        if self.client().dialect().is_l() {
            let (olddirfid, newdirfid) = (self.fid(), to.fid());
            match self.call(Tmsg::Renameat { olddirfid, oldname, newdirfid, newname }).await {
                Err(error) if is_unknown(&error) => {
                    let file = self.walk(oldname).await?;
                    return self
                        .call(Tmsg::Rename { fid: file.fid(), dfid: to.fid(), name: newname })
                        .await
                        .map(drop);
                }
                other => return other.map(drop),
            }
        }
        if self.qid().path != to.qid().path {
            let text = "this server's dialect cannot move a file to another directory";
            return Err(Error::refused(Errno::EXDEV, text));
        }
        self.walk(oldname).await?.rename_here(newname).await
    }

    /// Like [`File::rename`], in one of the modes of renameat2(2), by Trenameat2. Call [`File::has_renameat2`] first if
    /// the server may not know that message.
    ///
    /// # Errors
    /// EINVAL if it is not possible, as in rename(2); EEXIST and ENOENT by the mode.
    pub async fn rename_with(
        &self,
        old: impl AsRef<[u8]>,
        to: &File,
        new: impl AsRef<[u8]>,
        how: RenameMode,
    ) -> Result<()> {
        if how == RenameMode::Replace {
            return self.rename(old, to, new).await;
        }
        let (oldname, newname) = (checked(old.as_ref())?, checked(new.as_ref())?);
        let cannot = || Error::refused(Errno::EINVAL, "this server only renames without flags");
        if !self.client().dialect().is_l() {
            return Err(cannot());
        }
        let (olddirfid, newdirfid, flags) = (self.fid(), to.fid(), how.flags());
        let asked = self.call(Tmsg::Renameat2 { olddirfid, oldname, newdirfid, newname, flags }).await;
        asked.map(drop).map_err(|error| if is_unknown(&error) { cannot() } else { error })
    }

    /// Whether the server of this root understands Trenameat2 (docs/protocol.md): it is in this process, has streams,
    /// or publishes changes. Another server might cut the connection. The first call may walk to a file.
    pub async fn has_renameat2(&self) -> bool {
        let client = self.client();
        if client.0.shared.directs.is_some() || !client.dialect().is_l() || client.dialect().streaming {
            return client.dialect().is_l();
        }
        let known = &client.0.shared.has_renameat2;
        if let Some(&has) = known.get() {
            return has;
        }
        match self.walk(crate::changes::NAME).await {
            Ok(changes) => *known.get_or_init(|| changes.qid().is_event()),
            Err(Error::Remote(_) | Error::Walk { .. }) => *known.get_or_init(|| false),
            Err(_) => false,
        }
    }

    /// Gives this file another name in its directory (9P2000 and .u), without replacing a file.
    pub async fn rename_here(&self, name: &[u8]) -> Result<()> {
        match self.wstat(Stat { name: checked(name)?, ..Stat::DONT_TOUCH }).await {
            Err(error) if error.errno() == Errno::EEXIST => {
                let text = "the name exists, and this server's dialect cannot replace a file";
                Err(Error::refused(Errno::EOPNOTSUPP, text))
            }
            other => other,
        }
    }

    /// Removes a name from this directory; `dir`: whether it must be a directory or must not be one.
    pub async fn unlink(&self, name: impl AsRef<[u8]>, dir: bool) -> Result<()> {
        let name = checked(name.as_ref())?;
        if self.client().dialect().is_l() {
            let flags = if dir { REMOVEDIR } else { 0 };
            match self.call(Tmsg::Unlinkat { dirfid: self.fid(), name, flags }).await {
                Err(error) if is_unknown(&error) => {}
                other => return other.map(drop),
            }
        }
        let file = self.walk(name).await?;
        match (file.qid().is_dir(), dir) {
            (true, false) => Err(Error::refused(Errno::EISDIR, "is a directory")),
            (false, true) => Err(Error::refused(Errno::ENOTDIR, "not a directory")),
            _ => file.remove().await,
        }
    }

    /// The permissions of a Tcreate, including DM's special bits. 9P2000 drops the set-id and sticky bits, which a
    /// system may do at a creation (mkdir(2)).
    fn perm(&self, bits: u32) -> u32 {
        mode::to_dm(bits & 0o7777, (bits >> 24) as u8 & Qid::SPECIAL, self.client().dialect().is_u())
    }

    /// Sends a Tcreate on another fid for this directory. The fid moves to the new file and is open there.
    async fn tcreate(&self, name: &[u8], perm: u32, flags: OpenFlags, extension: &[u8]) -> Result<File> {
        if perm & (mode::DMSYMLINK | mode::DMLINK | mode::DMDEVICE | mode::DMNAMEDPIPE | mode::DMSOCKET) != 0
            && !self.client().dialect().is_u()
        {
            return Err(Error::refused(Errno::EOPNOTSUPP, "9P2000 has only files and directories"));
        }
        let mut file = self.walk("").await?;
        let create = Tmsg::Create {
            fid: file.fid(),
            name,
            perm,
            mode: flags.to_mode(self.client().dialect().is_u()),
            extension: OnlyUStr(extension),
        };
        let answer = self.call(create).await?;
        file.opened(answer, flags);
        Ok(file)
    }

    async fn made(&self, message: Tmsg<'_>) -> Result<Qid> {
        match self.call(message).await? {
            Answer::Qid(qid) => Ok(qid),
            other => other.never(),
        }
    }
}

/// Whether the server does not know the message, though it may know an older one (v9fs checks in the same way).
fn is_unknown(error: &Error) -> bool {
    matches!(error.errno(), Errno::EOPNOTSUPP | Errno::ENOSYS)
}

fn checked(name: &[u8]) -> Result<&[u8]> {
    check_name(name).map_err(Error::Refused)?;
    Ok(name)
}
