//! A server's end of a copy.
//!
//! In .L a file is written under a name of its own and renamed when it is whole. The older dialects cannot rename onto
//! a file that exists, so there it is written in place; one that is new is removed if it does not become whole.

use std::cell::Cell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use anyhow::Result;
use futures_util::future::join;
use nine_io::client::{Error, File};
use nine_net::{Env, rt};
use nine_proto::{Errno, GetMask, NOGID, OpenFlags, Qid, SetAttr, TimeSet};

use super::end::{Found, Meta};
use super::temp_name;

/// A directory, walked to.
#[derive(Clone)]
pub struct Dir(Rc<File>);

impl Dir {
    pub fn new(file: File) -> Dir {
        Dir(Rc::new(file))
    }

    pub async fn list(&self) -> Result<Vec<Found>> {
        let mut found = Vec::new();
        let mut reading = self.0.read_dir().await?;
        while let Some(block) = reading.next_with_attrs(GetMask::BASIC).await {
            for entry in block? {
                let name = entry.name.into_vec();
                let meta = match entry.attr {
                    Some(attr) => Ok(Meta::from(&attr)),
                    // The listing swallowed the reason; asking again tells it.
                    None => self.stat(&name).await,
                };
                found.push(Found { name, meta });
            }
        }
        Ok(found)
    }

    /// Whether both were walked to from one root.
    pub fn same_session(&self, other: &Dir) -> bool {
        // The address is kept once for each session.
        std::ptr::eq(self.0.client().peer(), other.0.client().peer())
    }

    pub async fn stat(&self, name: &[u8]) -> Result<Meta> {
        Ok(Meta::from(&self.0.walk(name).await?.getattr(GetMask::BASIC).await?))
    }

    pub async fn dir(&self, name: &[u8]) -> Result<Dir> {
        let file = self.0.walk(name).await?;
        if !file.qid().is_dir() {
            anyhow::bail!("in its place stands something that is not a directory");
        }
        Ok(Dir::new(file))
    }

    pub async fn make_dir(&self, name: &[u8]) -> Result<Dir> {
        let made = self.0.mkdir(name, 0o700, NOGID).await;
        match (made, self.dir(name).await) {
            // It exists, whatever this server's word for that is.
            (_, Ok(dir)) => Ok(dir),
            (Err(e), Err(_)) => Err(e.into()),
            (Ok(_), Err(e)) => Err(e),
        }
    }

    pub async fn readlink(&self, name: &[u8]) -> Result<Vec<u8>> {
        Ok(self.0.walk(name).await?.readlink().await?.into_vec())
    }

    pub async fn symlink(&self, name: &[u8], target: &[u8], meta: &Meta) -> Result<()> {
        match self.0.symlink(name, target, NOGID).await {
            Err(e) if e.errno() == Errno::EEXIST => {
                self.0.unlink(name, false).await?;
                self.0.symlink(name, target, NOGID).await?;
            }
            made => drop(made?),
        }
        // A server that keeps no times of links is good enough.
        let set = SetAttr { mtime: Some(TimeSet::To(meta.mtime)), ..SetAttr::default() };
        if let Ok(link) = self.0.walk(name).await {
            let _ = link.setattr(&set).await;
        }
        Ok(())
    }

    pub async fn open(&self, name: &[u8]) -> Result<File> {
        Ok(self.0.open(name, OpenFlags::READ).await?)
    }

    pub async fn create(&self, name: &[u8]) -> Result<Temp> {
        let (dir, flags) = (&self.0, OpenFlags::WRITE);
        let end = |file, fate| Temp { file, dir: dir.clone(), name: name.to_vec(), fate };
        if dir.client().dialect().is_l() {
            let temp = temp_name();
            let file = Making::begin(dir.clone(), temp.clone(), flags | OpenFlags::EXCL).await?;
            return Ok(end(file, Fate::Renamed(temp)));
        }
        match dir.create(name, flags, 0o600, NOGID).await {
            Ok(file) => Ok(end(file, Fate::New)),
            // It may exist, in whatever words the server says so.
            Err(e) => match dir.open(name, flags | OpenFlags::TRUNC).await {
                Ok(file) => Ok(end(file, Fate::Old)),
                Err(_) => Err(e.into()),
            },
        }
    }

    pub async fn open_in_place(&self, name: &[u8]) -> Result<Temp> {
        let file = self.0.open(name, OpenFlags::WRITE).await?;
        Ok(Temp { file, dir: self.0.clone(), name: name.to_vec(), fate: Fate::AsItIs })
    }

    pub async fn finish(&self, meta: &Meta, preserve: bool) -> Result<()> {
        dress(&self.0, meta, preserve).await
    }
}

/// A file with a name of its own that is being made. Dropped on the way, it is made nevertheless and then removed: a
/// request that is taken back may have been done.
struct Making {
    /// `None`: it is made, or could not be.
    create: Option<Pin<Box<Create>>>,
    dir: Rc<File>,
    name: String,
}

type Create = dyn Future<Output = Result<File, Error>>;

impl Making {
    fn begin(dir: Rc<File>, name: String, flags: OpenFlags) -> Making {
        let (parent, temp) = (dir.clone(), name.clone());
        let create = async move { parent.create(&temp, flags, 0o600, NOGID).await };
        Making { create: Some(Box::pin(create)), dir, name }
    }
}

impl Future for Making {
    type Output = Result<File, Error>;

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
            if create.await.is_ok() {
                drop(dir.unlink(&name, false).await);
            }
        });
    }
}

/// Whether a file is more than its content, so that another one in its place would not do.
pub fn is_more(qid: Qid, meta: &Meta) -> bool {
    qid.ty & (Qid::APPEND | Qid::EXCL) != 0 || meta.kind == super::end::Kind::Special
}

/// A file that is being written.
pub struct Temp {
    file: File,
    dir: Rc<File>,
    name: Vec<u8>,
    fate: Fate,
}

/// What becomes of a file.
enum Fate {
    /// It gets its name at the end, or is removed under this one.
    Renamed(String),
    /// It has its name, and loses it unless all goes well.
    New,
    /// It was there before and stays, gets mode and time.
    Old,
    /// It stays as it is.
    AsItIs,
}

impl Temp {
    /// What it is called for now.
    pub fn name(&self) -> &[u8] {
        match &self.fate {
            Fate::Renamed(temp) => temp.as_bytes(),
            _ => &self.name,
        }
    }

    pub async fn discard(mut self) {
        let gone = match self.fate {
            Fate::Renamed(_) | Fate::New => self.dir.unlink(self.name(), false).await.is_ok(),
            Fate::Old | Fate::AsItIs => true,
        };
        if gone {
            self.fate = Fate::AsItIs;
        }
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    pub async fn keep(mut self, meta: &Meta, preserve: bool) -> Result<()> {
        match &self.fate {
            Fate::Renamed(temp) => {
                // Neither needs the other, and both are one round trip.
                let renamed = self.dir.rename(temp, &self.dir, &self.name);
                let (dressed, renamed) = join(dress(&self.file, meta, preserve), renamed).await;
                renamed?;
                self.fate = Fate::AsItIs;
                dressed
            }
            Fate::New | Fate::Old => {
                dress(&self.file, meta, preserve).await?;
                self.fate = Fate::AsItIs;
                Ok(())
            }
            Fate::AsItIs => Ok(()),
        }
    }
}

impl Drop for Temp {
    fn drop(&mut self) {
        let name = match &mut self.fate {
            Fate::Renamed(temp) => std::mem::take(temp).into_bytes(),
            Fate::New => std::mem::take(&mut self.name),
            Fate::Old | Fate::AsItIs => return,
        };
        let dir = self.dir.clone();
        clean_up(async move { drop(dir.unlink(&name, false).await) });
    }
}

async fn dress(file: &File, meta: &Meta, preserve: bool) -> Result<()> {
    let mut mode = meta.mode_for(preserve);
    if preserve {
        let owner = SetAttr { uid: Some(meta.uid), gid: Some(meta.gid), ..SetAttr::default() };
        match file.setattr(&owner).await {
            // As on this machine: who may not give files away makes no set-id programs of others.
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

/// Goes on beside what runs now; the program waits for it, for a while, before it ends.
fn clean_up(work: impl Future<Output = ()> + 'static) {
    CLEANING.set(CLEANING.get() + 1);
    rt::Real.spawn(Box::pin(async {
        work.await;
        CLEANING.set(CLEANING.get() - 1);
    }));
}

/// Whether something is still being removed.
pub fn is_cleaning() -> bool {
    CLEANING.get() > 0
}
