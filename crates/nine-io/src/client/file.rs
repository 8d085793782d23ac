//! A file of the server: one fid, and what is known about it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use nine_proto::msg::{MAXWELEM, Names, Tmsg};
use nine_proto::{Errno, Fid, OpenFlags, Qid, show};

use super::answer::Answer;
use super::call::Call;
use super::error::{Error, Result};
use super::{Client, text};
use crate::direct::Direct;

/// A file of the server, or a directory. Dropping it clunks its fid in the background; [`File::close`] does it and
/// says how that went.
///
/// Concurrency: every operation may be under way any number of times at once. The server may answer in any order;
/// what must happen after something else is begun after its answer.
pub struct File {
    client: Client,
    fid: Fid,
    qid: Qid,
    /// How it is open, and the `iounit` the server gave it.
    open: Option<(OpenFlags, u32)>,
    /// The fid is another's to clunk.
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

    /// Which file it is, as of the walk or the open that led here.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// How it is open, if it is.
    pub fn flags(&self) -> Option<OpenFlags> {
        self.open.map(|(flags, _)| flags)
    }

    /// The most data in one read or write, bytes: as the server says, else as much as a message holds.
    pub fn iounit(&self) -> u32 {
        let max = self.client.iounit_max();
        match self.open {
            Some((_, iounit)) if iounit > 0 => iounit.min(max),
            _ => max,
        }
    }

    /// The file at `path` below this one: names with '/' between, of which empty ones and "." are left out; ".."
    /// leads up. An empty path is another fid for the same file. This file is not open (walk(5)).
    ///
    /// # Errors
    /// [`Error::Walk`] names the element that stopped it. No fid is left.
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
    fn twalk<'m>(&self, newfid: Fid, fid: Fid, names: &'m [&'m [u8]]) -> Call<'m> {
        self.call(Tmsg::Walk { fid, newfid, names: Names::Slice(names) })
    }

    /// Why a walk from here stopped where it did. A server gives the reason only for the first name of a Twalk
    /// (walk(5)); for a later one its answer is merely short. So from where the walk stopped each further step is asked
    /// for by itself: mostly two round trips more, for a failed walk alone.
    async fn reason(&self, stop: Stop, names: &[&[u8]]) -> Stop {
        let Stop { walked: before, error } = stop;
        if !matches!(&error, Error::Remote(error) if error.errno == Errno::ENOENT) || before == 0 {
            return Stop { walked: before, error };
        }
        let Ok(fid) = self.client.fid() else { return Stop { walked: before, error } };
        // Another step may stop it by now: then that one's error is the reason.
        if let Err(stop) = walked(self.twalk(fid, self.fid, &names[..before]).await, before) {
            return stop;
        }
        let there = Self::new(&self.client, fid, self.qid);
        for (walked, name) in names.iter().enumerate().skip(before) {
            // A server that stopped early may walk a few more.
            if let Err(reason) = there.twalk(fid, fid, &[name]).await {
                return Stop { walked, error: reason };
            }
        }
        // The name has come meanwhile: it was not there when it was asked for.
        Stop { walked: before, error }
    }

    /// [`File::walk`], and with the file that it leads to the answer to `then`: in one flight where the session orders
    /// what depends on each other (`.s`), else one after the other.
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
        // Where there is no file, this has failed, too, and is not worth a Tflush.
        let answer = then.await;
        match file {
            Ok(file) => Ok((file, answer)),
            Err(stop) => Err(self.reason(stop, &names).await.within(&names, 0)),
        }
    }

    /// The file at `path` below this one, open.
    pub async fn open(&self, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<Self> {
        self.refuse_flags(flags)?;
        let before = self.before_truncation(path.as_ref(), flags).await;
        let (mut file, answer) = self.walk_then(path.as_ref(), |fid| self.topen(fid, flags)).await?;
        file.opened(answer?, flags);
        file.truncated(before).await?;
        Ok(file)
    }

    /// The file at `path` below this one, which is being opened: where the session orders what depends on each other
    /// (`.s`) it may be read at once, and [`Opening::wait`] says later whether it is there. Elsewhere it is open. `qid`
    /// is what is known about it.
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

    /// A fid for the file of these names that is opened by `then`, before it is known to be there.
    pub(super) async fn early<'m>(
        &self,
        names: &[&[u8]],
        qid: Qid,
        flags: OpenFlags,
        then: impl FnOnce(Fid) -> Tmsg<'m>,
    ) -> Result<(Self, Opening)> {
        let newfid = self.client.fid()?;
        let (mut walk, mut open) = (self.twalk(newfid, self.fid, names), self.call(then(newfid)));
        // A walk of several names may stop without a reason, for which one must come back here (`File::reason`).
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
        // Until it is known to be there, the walk's end looks after its fid.
        file.leave();
        let names = names.iter().map(|&name| name.into()).collect();
        let here = here.map(|(fid, here)| (fid, here.begun()));
        Ok((file, Opening(Some(Box::new(Unsaid { walk: walk.begun(), open: open.begun(), names, here })))))
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

    /// The file at `path` below this one, open, and its first bytes, at most `count` and [`File::iounit`]: none if it
    /// is empty. One round trip where the session orders what depends on each other (`.s`).
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

    /// This file, open; on error it is gone.
    ///
    /// The file that is open may be another one than before (a `clone` file): see [`File::qid`].
    pub async fn open_here(mut self, flags: OpenFlags) -> Result<Self> {
        self.refuse_flags(flags)?;
        let before = self.before_truncation(b"", flags).await;
        let open = self.topen(self.fid, flags);
        let answer = self.call(open).await?;
        self.opened(answer, flags);
        self.truncated(before).await?;
        Ok(self)
    }

    /// The fid was opened, and may have moved.
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

    /// The fid has become a place to write to that no Topen made.
    pub(crate) fn becomes_writable(&mut self) {
        self.open = Some((OpenFlags::WRITE, 0));
    }

    /// Clunks the fid and waits for the answer (clunk(5)): the file is gone in any case, but an error may mean that
    /// something written was not kept. Dropping the future leaves the clunk to the background.
    pub async fn close(self) -> Result<()> {
        self.leave();
        self.call(Tmsg::Clunk { fid: self.fid }).await.map(drop)
    }

    /// Removes the file (remove(5)). The fid is gone in any case.
    pub async fn remove(self) -> Result<()> {
        self.leave();
        self.call(Tmsg::Remove { fid: self.fid }).await.map(drop)
    }

    /// A message that was passed on ends the fid: dropping this must not.
    pub fn leave(&self) {
        self.gone.store(true, Ordering::Relaxed);
    }

    pub(crate) fn call<'m>(&self, message: Tmsg<'m>) -> Call<'m> {
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

/// What has not been said yet about a file of [`File::open_early`] or [`File::create_early`]: the walk, the open or
/// create, the names.
#[derive(Default)]
pub struct Opening(Option<Box<Unsaid>>);

struct Unsaid {
    walk: Call<'static>,
    open: Call<'static>,
    names: Vec<Box<[u8]>>,
    /// Another fid for where the walk began, if it may be needed.
    here: Option<(Fid, Call<'static>)>,
}

impl Opening {
    /// Whether the file is there and open; if not, nothing that was asked of it has happened. To be waited for to its
    /// end; asked again, it says yes.
    pub async fn wait(&mut self, file: &File) -> Result<()> {
        let Some(unsaid) = &mut self.0 else { return Ok(()) };
        let Unsaid { walk, open, names, here } = &mut **unsaid;
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

/// The names of a path.
fn names(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names = path.split(|&b| b == b'/').filter(|name| !matches!(*name, b"" | b"."));
    names.map(text).collect()
}

/// What came of a Twalk of so many names: all of them, or nothing.
fn walked(answer: Result<Answer>, names: usize) -> Result<Vec<Qid>, Stop> {
    match answer {
        Ok(Answer::Walk(qids)) if qids.len() == names => Ok(qids),
        Ok(Answer::Walk(qids)) => {
            let past_a_file = qids.last().is_some_and(|qid| !qid.is_dir());
            let errno = if past_a_file { Errno::ENOTDIR } else { Errno::ENOENT };
            Err(Stop { walked: qids.len(), error: Error::Remote(errno.into()) })
        }
        Ok(other) => other.never(),
        Err(error) => Err(Stop { walked: 0, error }),
    }
}

/// Why and where a walk stopped.
struct Stop {
    walked: usize,
    error: Error,
}

impl Stop {
    /// Names the element that failed; `begin` is the index of the first name of the run.
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
