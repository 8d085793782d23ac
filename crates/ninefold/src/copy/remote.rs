//! The remote end of a copy.
//!
//! In 9P2000.L a file is written under a temporary name and renamed when it is complete. The older dialects cannot
//! rename onto an existing file. There a file is written in place, and a new one is removed if it is not completed. A
//! part, or a file that is verified first, has a temporary name there, too; the file that it replaces is removed before
//! the rename.
//!
//! Always holds: a part has no gaps except in its last [`WINDOW`] bytes: never more bytes are in flight, and writes are
//! issued in order.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use anyhow::Result;
use bytes::Bytes;
use futures_util::future::{join, join_all};
use futures_util::lock::Mutex as AsyncMutex;
use nine_io::client::{Entry, Error, File, Opening, WIDER};
use nine_io::server::acl;
use nine_net::{Env, rt};
use nine_proto::{Errno, GetMask, NOGID, OpenFlags, Qid, SetAttr, TimeSet};

use super::end::{Aside, Found, Kind, Meta, Xattr};
use super::{some_more, temp_name};
use crate::ancestors::DirectoryId;

/// The last bytes of a part, which are written again. At least `Options::window` of any client of ours.
const WINDOW: u64 = (WIDER as u64) * (8 << 20);
/// A file of at most this length is requested in one read, bytes.
const AT_ONE_GO: u64 = 128 * 1024;
/// Number of attempts to remove a temporary file, and the pause between them.
const TRIES: u32 = 100;
const PAUSE: Duration = Duration::from_millis(20);
/// Sizes of the first and of later directory reads, bytes: some hundred names. Their metadata is requested together.
const FIRST_NAMES: u32 = 8 * 1024;
const NAMES: u32 = 40 * 1024;

/// A directory that was walked to. Methods without a description are as in `end::Dir`.
#[derive(Clone)]
pub struct Dir(Rc<File>);

impl From<Rc<File>> for Dir {
    fn from(file: Rc<File>) -> Dir {
        Dir(file)
    }
}

impl Dir {
    pub fn new(file: File) -> Dir {
        Dir(Rc::new(file))
    }

    /// Returns the directory's identity.
    pub fn id(&self) -> DirectoryId {
        self.0.qid().into()
    }

    pub async fn listing(&self) -> Result<Listing> {
        let open = self.0.open("", OpenFlags::READ).await?;
        let ahead = open.read_dir_block(0, FIRST_NAMES).await;
        Ok(Listing { dir: self.clone(), open, ahead, unseen: Vec::new(), at_once: usize::MAX })
    }

    /// Returns all names in the directory.
    pub async fn names(&self) -> Result<Vec<Vec<u8>>> {
        let open = self.0.open("", OpenFlags::READ).await?;
        let (mut names, mut at) = (Vec::new(), 0);
        while let Some((entries, next)) = open.read_dir_block(at, u32::MAX).await? {
            names.extend(entries.into_iter().map(|entry| entry.name.into_vec()));
            at = next;
        }
        Ok(names)
    }

    /// Returns whether both come from one session.
    pub fn same_session(&self, other: &Dir) -> bool {
        // A session stores its peer's address once.
        std::ptr::eq(self.0.client().peer(), other.0.client().peer())
    }

    pub async fn stat(&self, name: &[u8]) -> Result<Meta> {
        Ok(Meta::from(&self.0.walk_attr(name, GetMask::BASIC).await?.1))
    }

    pub async fn dir(&self, name: &[u8]) -> Result<Dir> {
        let file = self.0.walk(name).await?;
        if !file.qid().is_dir() {
            anyhow::bail!("in its place stands something that is not a directory");
        }
        Ok(Dir::new(file))
    }

    /// Opens or creates a directory. Also returns whether it existed.
    pub async fn make_dir(&self, name: &[u8]) -> Result<(Dir, bool)> {
        let made = self.0.mkdir(name, 0o700, NOGID).await;
        match (made, self.dir(name).await) {
            // It exists; servers use different errors for that.
            (made, Ok(dir)) => Ok((dir, made.is_err())),
            // It may exist: with fewer open files the walk would find it.
            (Err(_), Err(e)) if is(&e, is_too_much) => Err(e),
            (Err(e), Err(_)) => Err(e.into()),
            (Ok(_), Err(e)) => Err(e),
        }
    }

    pub async fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.0.walk(name).await?.readlink().await?.into_vec())
    }

    pub async fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta, preserve: bool) -> Result<()> {
        match self.0.symlink(name, target, NOGID).await {
            Err(e) if e.errno() == Errno::EEXIST && self.0.client().dialect().is_l() => {
                let temp = temp_name();
                self.0.symlink(&temp, target, NOGID).await?;
                if let Err(e) = self.0.rename(&temp, &self.0, name).await {
                    let _ = self.0.unlink(&temp, false).await;
                    return Err(e.into());
                }
            }
            Err(e) if e.errno() == Errno::EEXIST => {
                self.0.unlink(name, false).await?;
                self.0.symlink(name, target, NOGID).await?;
            }
            made => drop(made?),
        }
        // Some servers store no times of links, or forbid to change their owner.
        let link = match self.0.walk(name).await {
            Ok(link) => link,
            Err(e) if is_too_much(&e) => return Err(e.into()),
            Err(_) => return Ok(()),
        };
        if preserve {
            let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
            let _ = link.setattr(&owner).await;
        }
        let time = SetAttr { mtime: Some(TimeSet::To(meta.mtime)), ..SetAttr::default() };
        let _ = link.setattr(&time).await;
        Ok(())
    }

    /// Opens a plain file and reads its first bytes from `at` on. For a small file these are all bytes; the read asks
    /// for one byte more, so that a short answer shows the end.
    pub async fn open(&self, name: &[u8], at: u64, meta: &Meta) -> Result<Opened> {
        let Meta { size, is_sparse, .. } = *meta;
        let asked = some_more(at, size);
        if at > 0 || asked > AT_ONE_GO {
            // The metadata shows that it is a plain file.
            let (file, opening) = self.0.open_early(name, OpenFlags::READ, Qid::default()).await?;
            let opening = AsyncMutex::new(opening);
            return Ok(Opened { file, opening, at, size, is_sparse, first: Bytes::new(), at_end: false });
        }
        let (file, first) = self.0.open_read(name, OpenFlags::READ, asked as u32).await?;
        let came = first.len() as u64;
        let at_end = came == 0 || came == size && came < asked;
        let opening = AsyncMutex::new(Opening::default());
        Ok(Opened { file, opening, at, size, is_sparse, first, at_end })
    }

    pub async fn create(&self, name: &[u8], aside: &Aside) -> Result<Temp> {
        let (dir, is_l) = (&self.0, self.0.client().dialect().is_l());
        let flags = if aside.read_back { OpenFlags::RDWR } else { OpenFlags::WRITE };
        let end = |file, fate| Temp::new((file, Opening::default()), dir, name, fate);
        if let Some(part) = &aside.part {
            return self.create_part(name, part, flags, aside.size).await;
        }
        if is_l || aside.read_back {
            let temp = temp_name().into_bytes();
            let dir_of_it = dir.clone();
            let (called, flags) = (temp.clone(), flags | OpenFlags::EXCL);
            let create = async move { dir_of_it.create_early(&called, flags, 0o600, NOGID).await };
            let making = Making::begin(dir.clone(), temp.clone(), create).await?;
            return Ok(Temp::new(making, dir, name, Fate::Renamed(temp)));
        }
        match dir.create(name, flags, 0o600, NOGID).await {
            Ok(file) => Ok(end(file, Fate::New)),
            // The file may exist; servers use different errors for that.
            Err(e) => match dir.open(name, flags | OpenFlags::TRUNC).await {
                Ok(file) => Ok(end(file, Fate::Old)),
                Err(_) => Err(e.into()),
            },
        }
    }

    /// Continues an existing part if possible, else creates it.
    async fn create_part(&self, name: &[u8], part: &[u8], flags: OpenFlags, size: u64) -> Result<Temp> {
        let dir = &self.0;
        let make = || {
            let (parent, called, flags) = (dir.clone(), part.to_vec(), flags | OpenFlags::EXCL);
            let create = async move {
                let made = parent.create(&called, flags, 0o600, NOGID).await;
                made.map(|file| (file, Opening::default()))
            };
            Making::begin(dir.clone(), part.to_vec(), create)
        };
        let end = |making, had| {
            let mut temp = Temp::new(making, dir, name, Fate::Renamed(part.to_vec()));
            (temp.had, temp.calm) = (had, true);
            temp
        };
        let refused = match make().await {
            Ok(made) => return Ok(end(made, 0)),
            Err(e) if e.is_disconnect() => return Err(e.into()),
            Err(e) => e,
        };
        // The part may exist; servers use different errors for that.
        let Ok((there, attr)) = dir.walk_attr(part, GetMask::BASIC).await else { return Err(refused.into()) };
        let meta = Meta::from(&attr);
        // A predictable name may be another user's link.
        if meta.kind != Kind::File || is_more(there.qid(), &meta) || attr.nlink > 1 || meta.size > size {
            dir.unlink(part, false).await?;
            return Ok(end(make().await?, 0));
        }
        let temp = end((there.open_here(flags).await?, Opening::default()), meta.size);
        temp.stays.set(true);
        Ok(temp)
    }

    pub async fn unlink(&self, name: &[u8]) -> Result<()> {
        Ok(self.0.unlink(name, false).await?)
    }

    pub async fn open_in_place(&self, name: &[u8]) -> Result<Temp> {
        let file = self.0.open(name, OpenFlags::WRITE).await?;
        Ok(Temp::new((file, Opening::default()), &self.0, name, Fate::AsItIs))
    }

    pub async fn link(&self, name: &[u8], dir: &Dir, other: &[u8]) -> Result<()> {
        let (file, temp) = (dir.0.walk(other).await?, temp_name());
        self.0.link(&temp, &file).await?;
        let renamed = self.0.rename(&temp, &self.0, name).await;
        // Where both were the same file already, rename(2) does nothing.
        let _ = self.0.unlink(&temp, false).await;
        Ok(renamed?)
    }

    pub async fn dress(&self, name: &[u8], meta: &Meta) -> Result<()> {
        dress(&self.0.walk(name).await?, meta, true).await
    }

    pub async fn xattrs(&self) -> Result<Vec<Xattr>> {
        xattrs(&self.0).await
    }

    pub async fn set_xattrs(&self, all: &[Xattr], inherited: bool) -> Result<usize> {
        set_xattrs(&self.0, all, inherited).await
    }

    pub async fn set_mode(&self, mode: u32) -> Result<()> {
        Ok(self.0.setattr(&SetAttr { mode: Some(mode), ..SetAttr::default() }).await?)
    }

    pub async fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        dress(&self.0, meta, preserve).await
    }
}

/// A listing of a directory with the metadata of each name. The next names are read while the current ones are
/// processed.
pub struct Listing {
    dir: Dir,
    open: File,
    /// The next entries, and the offset after them.
    ahead: Result<Option<(Vec<Entry>, u64)>, Error>,
    /// Names without metadata so far, because too many files were open.
    unseen: Vec<Entry>,
    /// Number of names from `unseen` to request metadata for at once.
    at_once: usize,
}

impl Listing {
    /// Returns the next entries; `None` at the end. An error of too many open files means that no metadata was read;
    /// the call may be repeated.
    pub async fn next(&mut self) -> Result<Option<Vec<Found>>> {
        let entries = if self.unseen.is_empty() {
            let Some((entries, next)) = std::mem::replace(&mut self.ahead, Ok(None))? else {
                return Ok(None);
            };
            let (looked, ahead) = join(self.look(entries), self.open.read_dir_block(next, NAMES)).await;
            self.ahead = ahead;
            looked
        } else {
            let some = self.unseen.len().saturating_sub(self.at_once);
            let entries = self.unseen.split_off(some);
            self.look(entries).await
        };
        let (mut found, mut refused) = (Vec::with_capacity(entries.len()), None);
        for (entry, meta) in entries {
            match meta {
                Err(e) if is_disconnect(&e) => return Err(e),
                Err(e) if is(&e, is_too_much) => {
                    self.unseen.push(entry);
                    refused = Some(e);
                }
                // The file was removed meanwhile.
                Err(e) if is(&e, |e| e.errno() == Errno::ENOENT) => {}
                meta => found.push(Found { name: entry.name.into_vec(), meta }),
            }
        }
        match refused {
            Some(error) => {
                self.at_once = (found.len() / 2).max(1);
                if found.is_empty() { Err(error) } else { Ok(Some(found)) }
            }
            None => Ok(Some(found)),
        }
    }

    async fn look(&self, entries: Vec<Entry>) -> Vec<(Entry, Result<Meta>)> {
        let look = async |entry: Entry| {
            let meta = match &entry.attr {
                Some(attr) => Ok(Meta::from(attr)),
                None => self.dir.stat(&entry.name).await,
            };
            (entry, meta)
        };
        join_all(entries.into_iter().map(look)).await
    }
}

fn is_disconnect(error: &anyhow::Error) -> bool {
    is(error, Error::is_disconnect)
}

fn is(error: &anyhow::Error, what: impl FnOnce(&Error) -> bool) -> bool {
    error.downcast_ref().is_some_and(what)
}

/// A file to read, and the data that came with the open.
pub struct Opened {
    pub file: File,
    /// Result of the open, if it has not arrived yet.
    opening: AsyncMutex<Opening>,
    /// Offset of the first bytes.
    pub at: u64,
    /// Expected length.
    pub size: u64,
    /// The file may have holes.
    pub is_sparse: bool,
    pub first: Bytes,
    /// The file ends after the first bytes.
    pub at_end: bool,
}

impl Opened {
    /// Waits for the result of the open. If it failed, all requests sent meanwhile fail, too.
    pub async fn ready(&self) -> Result<()> {
        Ok(self.opening.lock().await.wait(&self.file).await?)
    }
}

/// The creation of a temporary file, as a future. If it is dropped early, the creation still completes and the file is
/// then removed: a cancelled request may have been executed.
struct Making {
    /// `None` when the creation has completed or failed.
    create: Option<Pin<Box<Create>>>,
    dir: Rc<File>,
    name: Vec<u8>,
}

type Made = Result<(File, Opening), Error>;
type Create = dyn Future<Output = Made>;

impl Making {
    fn begin(dir: Rc<File>, name: Vec<u8>, create: impl Future<Output = Made> + 'static) -> Making {
        Making { create: Some(Box::pin(create)), dir, name }
    }
}

impl Future for Making {
    type Output = Made;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let create = self.create.as_mut().expect("it is not asked again");
        let made = ready!(create.as_mut().poll(cx));
        self.create = None;
        Poll::Ready(made)
    }
}

impl Drop for Making {
    fn drop(&mut self) {
        let Some(create) = self.create.take() else { return };
        let (dir, name) = (self.dir.clone(), std::mem::take(&mut self.name));
        clean_up(async move {
            if let Ok(made) = create.await {
                remove(&dir, &made.into(), &name).await;
            }
        });
    }
}

/// Returns the extended attributes of a file; empty if the server does not support them.
pub async fn xattrs(file: &File) -> Result<Vec<Xattr>> {
    let names = match file.xattrs().await {
        Err(e) if e.is_disconnect() => return Err(e.into()),
        names => names.unwrap_or_default(),
    };
    let mut all = Vec::with_capacity(names.len());
    for name in names {
        let value = file.xattr(&name).await?;
        all.push((name, value));
    }
    Ok(all)
}

/// Sets these attributes of a file. With `inherited`, removes access control lists that are not among them. Returns how
/// many attributes could not be set plus how many lists could not be removed.
pub async fn set_xattrs(file: &File, all: &[Xattr], inherited: bool) -> Result<usize> {
    let mut lost = 0;
    let lists = if inherited { lists_not_in(all, file.qid().is_dir()) } else { Vec::new() };
    for name in lists {
        match file.remove_xattr(name).await {
            Err(e) if e.is_disconnect() => return Err(e.into()),
            Err(e) => lost += usize::from(!matches!(e.errno(), Errno::ENODATA | Errno::EOPNOTSUPP)),
            Ok(()) => {}
        }
    }
    for (name, value) in all {
        match file.set_xattr(name, value, 0).await {
            Err(e) if e.is_disconnect() => return Err(e.into()),
            set => lost += usize::from(set.is_err()),
        }
    }
    Ok(lost)
}

/// Returns the access control lists that are not among these attributes.
pub fn lists_not_in(all: &[Xattr], is_dir: bool) -> Vec<&'static [u8]> {
    let lists = [acl::ACCESS, acl::DEFAULT].into_iter().take(if is_dir { 2 } else { 1 });
    lists.filter(|list| all.iter().all(|(name, _)| name != list)).collect()
}

/// Returns whether a file is more than its content, so that a new file cannot replace it.
pub fn is_more(qid: Qid, meta: &Meta) -> bool {
    qid.ty & (Qid::APPEND | Qid::EXCL) != 0 || meta.kind == Kind::Special
}

/// A file that is being written. Methods without a description are as in `end::Sink`.
pub struct Temp {
    file: Rc<Written>,
    dir: Rc<File>,
    name: Vec<u8>,
    fate: Fate,
    /// Bytes that existed before.
    pub had: u64,
    /// If it is dropped, it stays as a part.
    pub stays: Cell<bool>,
    /// Set mode and time before the rename, so that the file never has its name without its time.
    calm: bool,
}

/// A file that is open or being created.
struct Written {
    file: File,
    opening: AsyncMutex<Opening>,
}

impl From<(File, Opening)> for Written {
    fn from((file, opening): (File, Opening)) -> Written {
        Written { file, opening: AsyncMutex::new(opening) }
    }
}

impl Written {
    async fn ready(&self) -> Result<(), Error> {
        self.opening.lock().await.wait(&self.file).await
    }
}

/// Returns whether the error means too many open files on the server.
pub fn is_too_much(error: &Error) -> bool {
    matches!(error.errno(), Errno::EMFILE | Errno::ENFILE)
}

/// Removes a file if its creation succeeded. Retries while the server has too many open files.
async fn remove(dir: &File, file: &Written, name: &[u8]) {
    if file.ready().await.is_err() {
        return;
    }
    for _ in 0..TRIES {
        match dir.unlink(name, false).await {
            Err(e) if is_too_much(&e) => {
                rt::Real.sleep_until(rt::Real.now() + PAUSE).await;
            }
            _ => return,
        }
    }
}

/// How a temporary file has replaced another one.
#[derive(PartialEq)]
enum InPlace {
    Renamed,
    Copied,
}

/// Size of one read when a temporary file is copied, bytes.
const COPY: u32 = 1 << 20;

/// The handling of a file at the end.
enum Fate {
    /// It has this temporary name; it is renamed on success, else removed.
    Renamed(Vec<u8>),
    /// It is new under its own name, and is removed on failure.
    New,
    /// It existed before; it stays and gets mode and time.
    Old,
    /// It stays unchanged.
    AsItIs,
}

impl Temp {
    fn new(made: (File, Opening), dir: &Rc<File>, name: &[u8], fate: Fate) -> Temp {
        let (dir, name) = (dir.clone(), name.to_vec());
        Temp { file: Rc::new(made.into()), dir, name, fate, had: 0, stays: Cell::new(false), calm: false }
    }

    /// Returns its current name.
    pub fn name(&self) -> &[u8] {
        match &self.fate {
            Fate::Renamed(temp) => temp,
            _ => &self.name,
        }
    }

    /// Returns the offset at which writing begins.
    pub fn start(&self) -> u64 {
        self.had.saturating_sub(WINDOW)
    }

    pub async fn discard(mut self) {
        let gone = match self.fate {
            Fate::Renamed(_) | Fate::New => {
                self.file.ready().await.is_err() || self.dir.unlink(self.name(), false).await.is_ok()
            }
            Fate::Old | Fate::AsItIs => true,
        };
        if gone {
            self.fate = Fate::AsItIs;
        }
    }

    pub fn file(&self) -> &File {
        &self.file.file
    }

    /// Returns whether it contains only data that we wrote.
    pub fn is_new(&self) -> bool {
        matches!(self.fate, Fate::Renamed(_) | Fate::New)
    }

    /// Sets the length: zeros follow the last bytes written.
    pub async fn set_len(&self, len: u64) -> Result<()> {
        self.ready().await?;
        let size = SetAttr { size: Some(len), ..SetAttr::default() };
        match self.file().setattr(&size).await {
            // A server that cannot set lengths extends a file when a byte is written there.
            Err(e) if !e.is_disconnect() && len > 0 => {
                self.file().write_all_at(len - 1, &[0]).await?;
                Ok(())
            }
            set => Ok(set?),
        }
    }

    /// Waits for the result of the creation. If it failed, all requests sent meanwhile fail, too.
    pub async fn ready(&self) -> Result<()> {
        Ok(self.file.ready().await?)
    }

    pub async fn keep(mut self, meta: &Meta, preserve: bool) -> Result<()> {
        match &self.fate {
            Fate::Renamed(temp) if self.calm => {
                dress(self.file(), meta, preserve).await?;
                if self.rename(temp).await? == InPlace::Copied {
                    dress(&self.dir.walk(&self.name).await?, meta, preserve).await?;
                }
                self.fate = Fate::AsItIs;
                Ok(())
            }
            Fate::Renamed(temp) => {
                // The two requests are independent, so send them in one round trip.
                let renamed = self.rename(temp);
                let (dressed, renamed) = join(dress(self.file(), meta, preserve), renamed).await;
                let copied = renamed? == InPlace::Copied;
                self.fate = Fate::AsItIs;
                match copied {
                    true => dress(&self.dir.walk(&self.name).await?, meta, preserve).await,
                    false => dressed,
                }
            }
            Fate::New | Fate::Old => {
                dress(self.file(), meta, preserve).await?;
                self.fate = Fate::AsItIs;
                Ok(())
            }
            Fate::AsItIs => Ok(()),
        }
    }

    async fn rename(&self, temp: &[u8]) -> Result<InPlace, Error> {
        let rename = || self.dir.rename(temp, &self.dir, &self.name);
        match rename().await {
            // The older dialects do not replace files. The temporary file is complete, so keep it if the next step
            // fails.
            Err(e) if e.errno() == Errno::EOPNOTSUPP && !self.dir.client().dialect().is_l() => {
                let stays = self.stays.replace(true);
                if let Err(e) = self.dir.unlink(&self.name, false).await {
                    self.stays.set(stays);
                    return Err(e);
                }
                rename().await?;
            }
            // In a union the old file may be on another server, or on one with an older dialect.
            Err(e) if matches!(e.errno(), Errno::EXDEV | Errno::EOPNOTSUPP) => {
                self.copy(temp).await?;
                return Ok(InPlace::Copied);
            }
            // Another copy of the same source into the same part has completed it first.
            Err(e) if e.errno() == Errno::ENOENT && self.is_there().await => {}
            renamed => renamed?,
        }
        Ok(InPlace::Renamed)
    }

    /// Copies the content over the existing file, and removes the temporary file. On a failure in between, the
    /// temporary file stays: it is complete, and the other one may not be.
    async fn copy(&self, temp: &[u8]) -> Result<(), Error> {
        let from = self.dir.open(temp, OpenFlags::READ).await?;
        let to = self.dir.open(&self.name, OpenFlags::WRITE | OpenFlags::TRUNC).await?;
        let stays = self.stays.replace(true);
        let mut at = 0;
        loop {
            let data = from.read(at, COPY).await?;
            if data.is_empty() {
                break;
            }
            to.write_all_at(at, &data).await?;
            at += data.len() as u64;
        }
        // If the close fails, the temporary file stays, too.
        to.close().await?;
        self.stays.set(stays);
        self.dir.unlink(temp, false).await
    }

    async fn is_there(&self) -> bool {
        self.dir.walk(&self.name).await.is_ok_and(|there| there.qid().path == self.file().qid().path)
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        if self.stays.get() {
            return;
        }
        let name = match &mut self.fate {
            Fate::Renamed(temp) => std::mem::take(temp),
            Fate::New => std::mem::take(&mut self.name),
            Fate::Old | Fate::AsItIs => return,
        };
        let (dir, file) = (self.dir.clone(), self.file.clone());
        clean_up(async move { remove(&dir, &file, &name).await });
    }
}

async fn dress(file: &File, meta: &Meta, preserve: bool) -> Result<()> {
    let mut mode = meta.mode_for(preserve);
    if preserve {
        let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
        match file.setattr(&owner).await {
            // As on this machine: without a change of owner, set-id bits are dropped.
            Err(e) if matches!(e.errno(), Errno::EPERM | Errno::EOPNOTSUPP) => mode &= 0o1777,
            result => result?,
        }
    }
    let set = SetAttr { mode: Some(mode), mtime: Some(TimeSet::To(meta.mtime)), ..SetAttr::default() };
    Ok(file.setattr(&set).await?)
}

thread_local! {
    static CLEANING: Cell<usize> = const { Cell::new(0) };
}

/// Runs work in the background. The program waits for it, for a limited time, before it ends.
fn clean_up(work: impl Future<Output = ()> + 'static) {
    CLEANING.set(CLEANING.get() + 1);
    rt::Real.spawn(Box::pin(async {
        work.await;
        CLEANING.set(CLEANING.get() - 1);
    }));
}

/// Waits until no background removal is left.
pub async fn cleaned() {
    while CLEANING.get() > 0 {
        rt::Real.sleep_until(rt::Real.now() + PAUSE).await;
    }
}
