//! A file of the server: one fid, and the client's knowledge about it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use nine_proto::msg::{MAXWELEM, Names, Tmsg};
use nine_proto::{Errno, Fid, OpenFlags, Qid, show};

use super::answer::Answer;
use super::call::ClientCall;
use super::error::{Error, Result};
use super::{Client, text};
use crate::direct::Direct;

/// A file or directory of the server. Dropping it clunks its fid in the background; [`File::close`] clunks it and
/// returns the result.
///
/// Concurrency: every operation may run any number of times at once, and the server may answer in any order. If an
/// operation must happen after another, start it after the other's answer.
pub struct File {
    client: Client,
    fid: Fid,
    qid: Qid,
    /// The flags with which it is open, and the server's `iounit`.
    open: Option<(OpenFlags, u32)>,
    /// Dropping it must not clunk the fid.
    gone: AtomicBool,
    /// The open file itself, if its server is in this process.
    direct: Option<Arc<dyn Direct>>,
}

impl File {
    pub(crate) fn new(client: &Client, fid: Fid, qid: Qid) -> Self {
        Self { client: client.clone(), fid, qid, open: None, gone: AtomicBool::new(false), direct: None }
    }

    /// The session it belongs to.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Its number in the session.
    pub fn fid(&self) -> Fid {
        self.fid
    }

    /// Its identity, as of the walk or the open that led here.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// The flags with which it is open, if it is.
    pub fn flags(&self) -> Option<OpenFlags> {
        self.open.map(|(flags, _)| flags)
    }

    /// Maximum data in one read or write, in bytes: the server's value, or else the room in a message.
    pub fn iounit(&self) -> u32 {
        let max = self.client.iounit_max();
        match self.open {
            Some((_, iounit)) if iounit > 0 => iounit.min(max),
            _ => max,
        }
    }

    /// Walks to the file at `path` below this one: names separated by '/'; empty names and "." are skipped, ".." leads
    /// up. An empty path returns another fid for the same file. This file must not be open (walk(5)).
    ///
    /// # Errors
    /// [`Error::Walk`] names the element at which the walk stopped. No fid remains.
    pub async fn walk(&self, path: impl AsRef<[u8]>) -> Result<Self> {
        let names = names(path.as_ref())?;
        let (first, rest) = names.split_at(names.len().min(MAXWELEM));
        let newfid = self.client.fid()?;
        let qids = match walked(self.twalk(newfid, self.fid, first).await, first.len()) {
            Ok(qids) => qids,
            Err(stop) => return Err(self.reason(stop, first).await.within(&names, 0)),
        };
        let mut file = Self::new(&self.client, newfid, qids.last().copied().unwrap_or(self.qid));
        for (i, run) in rest.chunks(MAXWELEM).enumerate() {
            let begin = (i + 1) * MAXWELEM;
            let qids = match walked(file.twalk(newfid, newfid, run).await, run.len()) {
                Ok(qids) => qids,
                Err(stop) => return Err(file.reason(stop, run).await.within(&names, begin)),
            };
            file.qid = qids.last().copied().unwrap_or(file.qid);
        }
        Ok(file)
    }

    /// One Twalk.
    fn twalk<'m>(&self, newfid: Fid, fid: Fid, names: &'m [&'m [u8]]) -> ClientCall<'m> {
        self.call(Tmsg::Walk { fid, newfid, names: Names::Slice(names) })
    }

    /// Finds out why a walk from here stopped. A server gives the reason only for the first name of a Twalk (walk(5));
    /// for a later name its answer is just short. So each further step is requested separately: mostly two more round
    /// trips, and only for failed walks.
    async fn reason(&self, stop: WalkStop, names: &[&[u8]]) -> WalkStop {
        let WalkStop { walked: before, error } = stop;
        if !matches!(&error, Error::Remote(error) if error.errno == Errno::ENOENT) || before == 0 {
            return WalkStop { walked: before, error };
        }
        let Ok(fid) = self.client.fid() else { return WalkStop { walked: before, error } };
        // A different step may stop this walk: then that step's error is the reason.
        if let Err(stop) = walked(self.twalk(fid, self.fid, &names[..before]).await, before) {
            return stop;
        }
        let there = Self::new(&self.client, fid, self.qid);
        for (walked, name) in names.iter().enumerate().skip(before) {
            // A server that stopped early may walk further this time.
            if let Err(reason) = there.twalk(fid, fid, &[name]).await {
                return WalkStop { walked, error: reason };
            }
        }
        // The name has appeared meanwhile. It did not exist at the time of the walk.
        WalkStop { walked: before, error }
    }

    /// [`File::walk`], followed by the message `then` for the resulting fid. If the session orders dependent requests
    /// (`.s`), both are sent in one round trip, else one after the other.
    pub(super) async fn walk_then<'m>(
        &self,
        path: &[u8],
        then: impl FnOnce(Fid) -> Tmsg<'m>,
    ) -> Result<(Self, Result<Answer>)> {
        let names = names(path)?;
        if !self.client.dialect().streaming || names.len() > MAXWELEM {
            let file = self.walk(path).await?;
            let answer = self.call(then(file.fid)).await;
            return Ok((file, answer));
        }
        let newfid = self.client.fid()?;
        let (mut walk, mut then) = (self.twalk(newfid, self.fid, &names), self.call(then(newfid)));
        walk.send().await;
        then.send().await;
        let qids = walked(walk.await, names.len());
        let file = qids.map(|qids| Self::new(&self.client, newfid, qids.last().copied().unwrap_or(self.qid)));
        // Without a file this has failed too, so it needs no Tflush.
        let answer = then.await;
        match file {
            Ok(file) => Ok((file, answer)),
            Err(stop) => Err(self.reason(stop, &names).await.within(&names, 0)),
        }
    }

    /// Opens the file at `path` below this one.
    pub async fn open(&self, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<Self> {
        self.refuse_flags(flags)?;
        let before = self.before_truncation(path.as_ref(), flags).await;
        let (mut file, answer) = self.walk_then(path.as_ref(), |fid| self.topen(fid, flags)).await?;
        file.opened(answer?, flags);
        file.truncated(before).await?;
        Ok(file)
    }

    /// Starts to open the file at `path` below this one. If the session orders dependent requests (`.s`), the file may
    /// be read at once, and [`Opening::wait`] reports later whether it exists. Otherwise it is open on return. `qid` is
    /// the caller's knowledge about the file.
    pub async fn open_early(
        &self,
        path: impl AsRef<[u8]>,
        flags: OpenFlags,
        qid: Qid,
    ) -> Result<(Self, Opening)> {
        let names = names(path.as_ref())?;
        if !self.client.dialect().streaming || names.len() > MAXWELEM {
            return Ok((self.open(path, flags).await?, Opening(None)));
        }
        self.refuse_flags(flags)?;
        let file = self.early(&names, qid, flags, |fid| self.topen(fid, flags)).await?;
        Ok(file)
    }

    /// Returns a fid for the file at these names, opened by `then`, before it is known to exist.
    pub(super) async fn early<'m>(
        &self,
        names: &[&[u8]],
        qid: Qid,
        flags: OpenFlags,
        then: impl FnOnce(Fid) -> Tmsg<'m>,
    ) -> Result<(Self, Opening)> {
        let newfid = self.client.fid()?;
        let (mut walk, mut open) = (self.twalk(newfid, self.fid, names), self.call(then(newfid)));
        // A walk of several names may stop without a reason; finding it needs a fid for this directory
        // (`File::reason`).
        let mut here = match names.len() {
            0 | 1 => None,
            _ => self.client.fid().ok().map(|fid| (fid, self.twalk(fid, self.fid, &[]))),
        };
        walk.send().await;
        open.send().await;
        if let Some((_, here)) = &mut here {
            here.send().await;
        }
        let mut file = Self::new(&self.client, newfid, qid);
        file.open = Some((flags, 0));
        // Until the file is known to exist, dropping it must not clunk its fid.
        file.leave();
        let names = names.iter().map(|&name| name.into()).collect();
        let here = here.map(|(fid, here)| (fid, here.begun()));
        Ok((
            file,
            Opening(Some(Box::new(EarlyOpenCalls { walk: walk.begun(), open: open.begun(), names, here }))),
        ))
    }

    fn topen(&self, fid: Fid, flags: OpenFlags) -> Tmsg<'static> {
        if self.client.dialect().is_l() {
            Tmsg::Lopen { fid, flags: flags.to_wire() }
        } else {
            Tmsg::Open { fid, mode: flags.to_mode(self.client.dialect().is_u()) }
        }
    }

    fn refuse_flags(&self, flags: OpenFlags) -> Result<()> {
        if self.client.dialect().is_l() && flags.has(OpenFlags::RCLOSE) {
            return Err(Error::refused(Errno::EOPNOTSUPP, "9P2000.L cannot remove a file at its close"));
        }
        Ok(())
    }

    /// Opens the file at `path` below this one, and reads its first bytes, at most `count` and [`File::iounit`]; none
    /// if it is empty. One round trip if the session orders dependent requests (`.s`).
    pub async fn open_read(
        &self,
        path: impl AsRef<[u8]>,
        flags: OpenFlags,
        count: u32,
    ) -> Result<(Self, Bytes)> {
        let names = names(path.as_ref())?;
        self.refuse_flags(flags)?;
        let count = count.min(self.client.iounit_max());
        if !self.client.dialect().streaming || names.len() > MAXWELEM {
            let file = self.open(path, flags).await?;
            let data = file.read(0, count).await?;
            return Ok((file, data));
        }
        let newfid = self.client.fid()?;
        let mut walk = self.twalk(newfid, self.fid, &names);
        let mut open = self.call(self.topen(newfid, flags));
        let mut read = self.call(Tmsg::Read { fid: newfid, offset: 0, count });
        walk.send().await;
        open.send().await;
        read.send().await;
        let qids = walked(walk.await, names.len());
        let file = qids.map(|qids| Self::new(&self.client, newfid, qids.last().copied().unwrap_or(self.qid)));
        let (open, read) = (open.await, read.await);
        let mut file = match file {
            Ok(file) => file,
            Err(stop) => return Err(self.reason(stop, &names).await.within(&names, 0)),
        };
        file.opened(open?, flags);
        match read? {
            Answer::Data(data) => Ok((file, data)),
            other => other.never(),
        }
    }

    /// Opens this file; after an error its fid is gone.
    ///
    /// The open file may be another one than before (a `clone` file): see [`File::qid`].
    pub async fn open_here(mut self, flags: OpenFlags) -> Result<Self> {
        self.refuse_flags(flags)?;
        let before = self.before_truncation(b"", flags).await;
        let open = self.topen(self.fid, flags);
        let answer = self.call(open).await?;
        self.opened(answer, flags);
        self.truncated(before).await?;
        Ok(self)
    }

    /// Records an open, which may have moved the fid to another file.
    pub(crate) fn opened(&mut self, answer: Answer, flags: OpenFlags) {
        let Answer::Open { qid, iounit } = answer else { answer.never() };
        self.qid = qid;
        self.open = Some((flags, iounit));
        self.direct = self.client.direct(self.fid);
    }

    pub(crate) fn direct(&self) -> Option<&Arc<dyn Direct>> {
        self.direct.as_ref()
    }

    pub(crate) fn becomes(&mut self, qid: Qid) {
        self.qid = qid;
    }

    /// The fid can be written to now, though no Topen opened it.
    pub(crate) fn becomes_writable(&mut self) {
        self.open = Some((OpenFlags::WRITE, 0));
    }

    /// Clunks the fid and waits for the answer (clunk(5)). The fid is gone in any case, but an error may mean that
    /// written data was lost. If the future is dropped, the clunk continues in the background.
    pub async fn close(self) -> Result<()> {
        self.leave();
        self.call(Tmsg::Clunk { fid: self.fid }).await.map(drop)
    }

    /// Removes the file (remove(5)). The fid is gone in any case.
    pub async fn remove(self) -> Result<()> {
        self.leave();
        self.call(Tmsg::Remove { fid: self.fid }).await.map(drop)
    }

    /// Dropping this must not clunk the fid, because a forwarded message ends it.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn call<'m>(&self, message: Tmsg<'m>) -> ClientCall<'m> {
        self.client.call(message)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        if !*self.gone.get_mut() {
            self.client.0.shared.with(|state| state.clunk([self.fid]));
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "File {{ fid {} {} of {} }}", self.fid, self.qid, self.client.peer())
    }
}

/// The outstanding answers for a file of [`File::open_early`] or [`File::create_early`].
#[derive(Default)]
pub struct Opening(Option<Box<EarlyOpenCalls>>);

struct EarlyOpenCalls {
    walk: ClientCall<'static>,
    open: ClientCall<'static>,
    names: Vec<Box<[u8]>>,
    /// Another fid for the start of the walk, if it may be needed.
    here: Option<(Fid, ClientCall<'static>)>,
}

impl Opening {
    /// Waits until it is known whether the file exists and is open. If not, no operation on it has had an effect. Must
    /// be awaited to its end; a second call returns `Ok`.
    pub async fn wait(&mut self, file: &File) -> Result<()> {
        let Some(unsaid) = &mut self.0 else { return Ok(()) };
        let EarlyOpenCalls { walk, open, names, here } = &mut **unsaid;
        let qids = walked(walk.await, names.len());
        let here = match here {
            Some((fid, call)) => call.await.ok().map(|_| File::new(&file.client, *fid, file.qid)),
            None => None,
        };
        let result = match qids {
            Ok(_) => {
                file.gone.store(false, Ordering::Relaxed);
                open.await.map(drop)
            }
            Err(stop) => {
                let _ = open.await;
                let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
                Err(match here {
                    Some(here) => here.reason(stop, &names).await,
                    None => stop,
                }
                .within(&names, 0))
            }
        };
        self.0 = None;
        result
    }
}

/// Splits a path into its names.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names = path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(text).collect()
}

/// Checks the result of a Twalk of this many names: all of them were walked, or it failed.
fn walked(answer: Result<Answer>, names: usize) -> Result<Vec<Qid>, WalkStop> {
    match answer {
        Ok(Answer::Walk(qids)) if qids.len() == names => Ok(qids),
        Ok(Answer::Walk(qids)) => {
            let past_a_file = qids.last().is_some_and(|qid| !qid.is_dir());
            let errno = if past_a_file { Errno::ENOTDIR } else { Errno::ENOENT };
            Err(WalkStop { walked: qids.len(), error: Error::Remote(errno.into()) })
        }
        Ok(other) => other.never(),
        Err(error) => Err(WalkStop { walked: 0, error }),
    }
}

/// The reason and the position of a walk's stop.
struct WalkStop {
    walked: usize,
    error: Error,
}

impl WalkStop {
    /// Adds the path to the failed element; `begin` is the index of the run's first name.
    fn within(self, names: &[&[u8]], begin: usize) -> Error {
        match self.error {
            Error::Remote(error) if !names.is_empty() => {
                let end = (begin + self.walked + 1).min(names.len());
                Error::Walk { path: show(&names[..end].join(&b'/')).to_string().into(), error }
            }
            other => other,
        }
    }
}
