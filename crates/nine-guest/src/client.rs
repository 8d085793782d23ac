//! The file operations of a client.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::time::Duration;

use nine_proto::msg::{MAXWELEM, Names, OnlyIds, OnlyUStr, OptionalU32, Rmsg, Tmsg};
use nine_proto::{Base, Dialect, Dirent, Entries, Errno, Error, Fid, GetMask, NOFID, NOGID, NOTAG, NOUID};
use nine_proto::{OpenFlags, Qid, Result, Stat, Tag, Time, frame, mode};
use nine_ring::{Arena, Bad, Layout, Memory, Place};

use crate::conn::MessageChannel;
use crate::flush::{InFlightRequests, RequestOutcome, late};
use crate::line::{Line, Wait, WaitingLine};
use crate::lot::{NumberAllocator, OwnedNumber};

/// The options of a client.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// How to wait for the host.
    pub wait: Wait,
    /// The dialect to request. A host that does not support it may answer with 9P2000.
    pub dialect: Dialect,
    /// The largest message to request, in bytes.
    pub msize: u32,
    /// The timeout of an answer; `None`: no timeout. A request without an answer by then is flushed. Its call returns
    /// the host's first reply: the answer, or `ETIMEDOUT` for an Rflush. If the flush is not answered within the same
    /// time either, or the host accepts no request or no guest, the channel ends (`ETIMEDOUT`). In large reads and
    /// writes, the timeout applies to each request. The line must have a clock ([`Line::now`]).
    pub patience: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self { wait: Wait::Adaptive, dialect: Dialect::L, msize: frame::MSIZE_MAX, patience: None }
    }
}

/// The guest's side of a conversation: it sends requests, the host answers.
///
/// Concurrency: one thread uses it, with one request in flight; a large read or write has several. An error of a file
/// leaves the client usable. After an error of the channel every call fails ([`Client::is_alive`]).
pub struct Client<L: Line> {
    pub(crate) conn: MessageChannel<L>,
    options: Options,
    dialect: Dialect,
    /// At most 4,096; then `EMFILE`.
    fids: NumberAllocator,
    pub(crate) arena: Arena,
    /// Parts of the arena lent to buffers, by their numbers: at most 4,096, then `ENOBUFS`.
    pub(crate) lent: Vec<Place>,
    pub(crate) buffers: NumberAllocator,
    pub(crate) under_way: InFlightRequests,
    /// The message being sent.
    pub(crate) out: Vec<u8>,
}

/// A file of the host, with its fid. After it is dropped, the fid is clunked with the next walk or attach.
#[derive(Debug)]
pub struct File {
    fid: OwnedNumber,
    qid: Qid,
    iounit: u32,
    /// Writes append to the file, so their order matters.
    appends: bool,
}

/// The attributes of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Metadata {
    /// The qid.
    pub qid: Qid,
    /// Type and permissions, as `st_mode` of Linux.
    pub mode: u32,
    /// The length in bytes.
    pub size: u64,
    /// The time of the last modification.
    pub mtime: Time,
    /// The name, in dialects that return it (9P2000 and .u); else empty.
    pub name: Box<[u8]>,
}

/// Bytes of a directory requested at a time.
const DIR_READ_LEN: usize = 64 << 10;
/// The maximum number of `.` and `..` entries; more than any union has.
const DOT_ENTRIES_MAX: usize = 1 << 12;

impl<L: Line> Client<L> {
    /// Joins the channel at the start of the memory, waits until the host serves it, and negotiates the version.
    /// `EINVAL`: it is not a channel on which the guest requests files.
    pub fn join(memory: Memory, line: L, options: Options) -> Result<Self> {
        let conn = MessageChannel::join(memory, WaitingLine::new(line, options.wait, options.patience))?;
        let mut client = Self {
            arena: Arena::new(conn.end().layout().pages),
            conn,
            options,
            dialect: options.dialect,
            fids: NumberAllocator::new(),
            lent: Vec::new(),
            buffers: NumberAllocator::new(),
            under_way: InFlightRequests::default(),
            out: Vec::new(),
        };
        client.version()?;
        Ok(client)
    }

    /// Joins the channel of this name, if the memory holds several. `ENOENT`: there is none; `EINVAL`: the memory is
    /// damaged, or has a newer format. Other errors as for [`Client::join`].
    pub fn join_named(memory: &Memory, name: &str, line: L, options: Options) -> Result<Self> {
        let (_, found) = named(memory, name)?;
        Self::join(found, line, options)
    }

    /// Joins again, after the host was restarted or the channel has ended. Files opened before are invalid
    /// (`ESTALE`). Buffers stay valid if the channel's layout is the same.
    pub fn reconnect(&mut self) -> Result<()> {
        let before = *self.conn.end().layout();
        (self.fids, self.under_way) = (NumberAllocator::new(), InFlightRequests::default());
        self.conn.rejoin()?;
        let now = *self.conn.end().layout();
        if now != before {
            (self.arena, self.buffers, self.lent) =
                (Arena::new(now.pages), NumberAllocator::new(), Vec::new());
        }
        self.version()
    }

    /// Returns an error with the reason if the channel has ended.
    pub fn is_alive(&self) -> Result<()> {
        self.conn.is_alive()
    }

    /// Returns the bytes of memory used for messages. A host cannot make it exceed four of the largest messages and
    /// two pieces.
    pub fn held(&self) -> usize {
        self.out.capacity() + self.conn.held()
    }

    /// Sets the timeout, instead of that in [`Options::patience`].
    pub fn set_patience(&mut self, patience: Option<Duration>) {
        self.conn.waiting.patience = patience;
    }

    /// Returns the negotiated dialect and the largest message in bytes.
    pub fn spoken(&self) -> (Dialect, u32) {
        (self.dialect, self.conn.msize)
    }

    fn version(&mut self) -> Result<()> {
        let asked = self.options.dialect;
        self.dialect = asked;
        let msize = self.options.msize.clamp(frame::MSIZE_MIN, frame::MSIZE_MAX);
        let version = Tmsg::Version { msize, version: asked.name().as_bytes() };
        let (msize, dialect) = self.call(&version, |answer| match answer {
            Rmsg::Version { msize: theirs, version } if (frame::MSIZE_MIN..=msize).contains(&theirs) => {
                Some((theirs, Dialect::parse(version)))
            }
            _ => None,
        })?;
        match dialect {
            Some(dialect) if dialect == asked || dialect == Dialect::P2000 => {
                (self.dialect, self.conn.msize) = (dialect, msize);
                Ok(())
            }
            _ => {
                let why = alloc::format!("the host speaks no {}", asked.name());
                Err(self.conn.fail(Error::new(Errno::EPROTO, why)))
            }
        }
    }

    /// Attaches to a tree of the host as a user, and returns its root.
    pub fn attach(&mut self, uname: &str, aname: &str) -> Result<File> {
        let (uname, aname) = (uname.as_bytes(), aname.as_bytes());
        if uname.len().max(aname.len()) > usize::from(u16::MAX) {
            return Err(Errno::ENAMETOOLONG.into());
        }
        let fid = self.fid()?;
        let attach = Tmsg::Attach { fid: Fid(fid.get()), afid: NOFID, uname, aname, n_uname: OnlyIds(NOUID) };
        let qid = self.call(&attach, |answer| match answer {
            Rmsg::Attach { qid } => Some(qid),
            _ => None,
        });
        self.made(fid, qid)
    }

    /// Walks to the file of this path below another one. The path has any number of names, separated by slashes.
    /// Without names it refers to the same file.
    pub fn walk(&mut self, from: &File, path: impl AsRef<[u8]>) -> Result<File> {
        let mut begin = Fid(self.number(from)?);
        let fid = self.fid()?;
        let newfid = Fid(fid.get());
        let mut qid = from.qid;
        let mut names =
            path.as_ref().split(|&byte| byte == b'/').filter(|name| !matches!(name, &b"" | &b"."));
        if names.clone().any(|name| name.len() > usize::from(u16::MAX)) {
            return Err(Errno::ENAMETOOLONG.into());
        }
        loop {
            let mut few = [&b""[..]; MAXWELEM];
            let mut count = 0;
            for (place, name) in few.iter_mut().zip(&mut names) {
                *place = name;
                count += 1;
            }
            // From the second step on, the new fid itself is walked.
            if count == 0 && begin == newfid {
                return Ok(File { fid, qid, iounit: 0, appends: false });
            }
            match self.twalk(begin, newfid, &few[..count]) {
                Ok((n, last)) if n == count => qid = last.unwrap_or(qid),
                walked => {
                    let mut is_there = begin == newfid;
                    let mut reason = walked.as_ref().err().cloned();
                    // A partial walk gives no reason (walk(5)), so the failed step is requested alone.
                    if let Ok((n, _)) = walked
                        && let Ok((again, _)) = self.twalk(begin, newfid, &few[..n])
                        && again == n
                    {
                        is_there = true;
                        let mut steps = few[n..count].iter();
                        reason = steps.find_map(|name| self.twalk(newfid, newfid, &[name]).err());
                    }
                    match is_there {
                        // The result is the error of the walk, not of this clunk.
                        true => drop(self.clunk(File { fid, qid, iounit: 0, appends: false })),
                        false => self.forget(fid),
                    }
                    return Err(reason.unwrap_or(Errno::ENOENT.into()));
                }
            }
            begin = newfid;
        }
    }

    /// Sends one Twalk. Returns the number of names walked, and the last qid.
    fn twalk(&mut self, fid: Fid, newfid: Fid, names: &[&[u8]]) -> Result<(usize, Option<Qid>)> {
        let walk = Tmsg::Walk { fid, newfid, names: Names::Slice(names) };
        self.call(&walk, |answer| match answer {
            Rmsg::Walk { qids } if qids.len() <= names.len() => Some((qids.len(), qids.iter().last())),
            _ => None,
        })
    }

    /// Opens the file of this path below another one.
    pub fn open(&mut self, from: &File, path: impl AsRef<[u8]>, flags: OpenFlags) -> Result<File> {
        let file = self.walk(from, path)?;
        let fid = Fid(file.fid.get());
        let open = match self.dialect.base {
            Base::L => Tmsg::Lopen { fid, flags: flags.to_wire() },
            base => Tmsg::Open { fid, mode: flags.to_mode(base == Base::U) },
        };
        self.opened(file, flags, &open)
    }

    /// Creates a file and opens it. The last name of the path is created in the directory of the others.
    /// `permissions` are those of its mode. An existing file is opened, except with [`OpenFlags::EXCL`]; then
    /// `EEXIST`.
    pub fn create(
        &mut self,
        from: &File,
        path: impl AsRef<[u8]>,
        flags: OpenFlags,
        permissions: u32,
    ) -> Result<File> {
        let path = path.as_ref();
        let at = path.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        let (dir, name) = path.split_at(at);
        nine_proto::check_name(name)?;
        if self.dialect.is_l() || flags.has(OpenFlags::EXCL) {
            return self.make(from, dir, name, flags, permissions);
        }
        // Tcreate fails for existing files.
        match self.open(from, path, flags) {
            Err(error) if error.errno == Errno::ENOENT => {}
            there => return there,
        }
        match self.make(from, dir, name, flags, permissions) {
            // Another client was faster.
            Err(error) if error.errno == Errno::EEXIST => self.open(from, path, flags),
            made => made,
        }
    }

    fn make(
        &mut self,
        from: &File,
        dir: &[u8],
        name: &[u8],
        flags: OpenFlags,
        permissions: u32,
    ) -> Result<File> {
        let file = self.walk(from, dir)?;
        let fid = Fid(file.fid.get());
        let create = match self.dialect.base {
            Base::L => {
                let flags = (flags | OpenFlags::CREAT).to_wire();
                Tmsg::Lcreate { fid, name, flags, mode: permissions, gid: NOGID }
            }
            base => {
                let mode = flags.to_mode(base == Base::U);
                Tmsg::Create { fid, name, perm: permissions & 0o777, mode, extension: OnlyUStr(b"") }
            }
        };
        self.opened(file, flags, &create)
    }

    fn opened(&mut self, mut file: File, flags: OpenFlags, ask: &Tmsg<'_>) -> Result<File> {
        file.appends = flags.has(OpenFlags::APPEND);
        (file.qid, file.iounit) = self.call(ask, |answer| match answer {
            Rmsg::Lopen { qid, iounit } | Rmsg::Lcreate { qid, iounit } => Some((qid, iounit)),
            Rmsg::Open { qid, iounit } | Rmsg::Create { qid, iounit } => Some((qid, iounit)),
            _ => None,
        })?;
        Ok(file)
    }

    /// Clunks the file. Returns the host's error, for example of a delayed write.
    pub fn clunk(&mut self, file: File) -> Result<()> {
        let fid = Fid(self.number(&file)?);
        self.ended(file, &Tmsg::Clunk { fid })
    }

    /// Removes the file. The fid is clunked in any case.
    pub fn remove(&mut self, file: File) -> Result<()> {
        let fid = Fid(self.number(&file)?);
        self.ended(file, &Tmsg::Remove { fid })
    }

    /// Sends a request that ends a fid. If it times out, the fid still exists and is clunked later, since `file` is
    /// dropped.
    fn ended(&mut self, file: File, ask: &Tmsg<'_>) -> Result<()> {
        let done = self.asked(ask, |_| Some(())).transpose().ok_or_else(late)?;
        self.forget(file.fid);
        done
    }

    /// Returns the attributes of the file.
    pub fn stat(&mut self, file: &File) -> Result<Metadata> {
        let fid = Fid(self.number(file)?);
        if self.dialect.is_l() {
            let ask = Tmsg::Getattr { fid, mask: GetMask::BASIC.0 };
            return self.call(&ask, |answer| match answer {
                Rmsg::Getattr { attr } => Some(Metadata {
                    qid: attr.qid,
                    mode: attr.mode,
                    size: attr.size,
                    mtime: attr.mtime,
                    name: Box::default(),
                }),
                _ => None,
            });
        }
        self.call(&Tmsg::Stat { fid }, |answer| match answer {
            Rmsg::Stat { stat } => Some(Metadata {
                qid: stat.qid,
                mode: mode::from_dm(stat.mode),
                size: stat.length,
                mtime: Time { sec: stat.mtime.into(), nsec: 0 },
                name: stat.name.into(),
            }),
            _ => None,
        })
    }

    /// Calls `each` for each entry of an open directory, until it returns `false`. The directory may change
    /// meanwhile.
    pub fn read_dir(&mut self, dir: &File, mut each: impl FnMut(&Dirent<'_>) -> bool) -> Result<()> {
        let mut data = alloc::vec![0; DIR_READ_LEN.min(self.unit(dir))];
        let (mut offset, mut dots) = (0, 0);
        loop {
            let len = self.read_entries(dir, offset, &mut data)?;
            if len == 0 {
                return Ok(());
            }
            let before = offset;
            for entry in Entries::new(&data[..len], self.dialect) {
                let (entry, _) = entry.map_err(|_| self.conn.broken("Treaddir"))?;
                offset = entry.cookie;
                if matches!(entry.name, b"." | b"..") {
                    dots += 1;
                } else if !each(&entry) {
                    return Ok(());
                }
            }
            if !self.dialect.is_l() {
                offset = before + len as u64;
            }
            if offset == before || dots > DOT_ENTRIES_MAX {
                return Err(self.conn.broken("Treaddir"));
            }
        }
    }

    /// Returns when the content is on stable storage.
    pub fn fsync(&mut self, file: &File) -> Result<()> {
        let fid = Fid(self.number(file)?);
        self.done(&match self.dialect.base {
            Base::L => Tmsg::Fsync { fid, datasync: OptionalU32(0) },
            _ => Tmsg::Wstat { fid, stat: Stat::DONT_TOUCH },
        })
    }

    /// Returns the fid, if it belongs to this conversation.
    #[inline]
    pub(crate) fn number(&self, file: &File) -> Result<u32> {
        self.conn.is_alive()?;
        if self.fids.has(&file.fid) {
            return Ok(file.fid.get());
        }
        Err(Error::new(
            Errno::ESTALE,
            "the file was opened before the channel was joined again: open it again",
        ))
    }

    /// Returns the maximum data of a message for this file, in bytes.
    #[inline]
    pub(crate) fn unit(&self, file: &File) -> usize {
        let most = self.conn.msize - frame::IOHDRSZ;
        (if file.iounit == 0 { most } else { most.min(file.iounit) }) as usize
    }

    pub(crate) fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Returns a free fid, after dropped ones were clunked.
    fn fid(&mut self) -> Result<OwnedNumber> {
        while let Some(fid) = self.fids.dropped() {
            match self.asked(&Tmsg::Clunk { fid: Fid(fid) }, |_| Some(())) {
                // It is tried again with the next one.
                Ok(None) => {
                    self.fids.drop_again(fid);
                    break;
                }
                Err(error) if self.conn.is_alive().is_err() => return Err(error),
                // The fid is free after any answer.
                Ok(Some(())) | Err(_) => self.fids.give(fid),
            }
        }
        self.fids.take().ok_or_else(|| Errno::EMFILE.into())
    }

    fn made(&mut self, fid: OwnedNumber, qid: Result<Qid>) -> Result<File> {
        match qid {
            Ok(qid) => Ok(File { fid, qid, iounit: 0, appends: false }),
            Err(error) => {
                self.forget(fid);
                Err(error)
            }
        }
    }

    /// Frees a fid that the host does not know any more, or never knew.
    fn forget(&mut self, fid: OwnedNumber) {
        self.fids.forget(fid);
    }

    fn done(&mut self, ask: &Tmsg<'_>) -> Result<()> {
        // `call` checks the type of the answer.
        self.call(ask, |_| Some(()))
    }

    /// Sends a request and reads its answer. If `read` returns `None`, the answer is invalid and the channel ends.
    fn call<T>(&mut self, ask: &Tmsg<'_>, read: impl FnOnce(Rmsg<'_>) -> Option<T>) -> Result<T> {
        self.asked(ask, read)?.ok_or_else(late)
    }

    /// The same. `None`: the request timed out and was flushed.
    fn asked<T>(&mut self, ask: &Tmsg<'_>, read: impl FnOnce(Rmsg<'_>) -> Option<T>) -> Result<Option<T>> {
        self.conn.is_alive()?;
        let tag = if matches!(ask, Tmsg::Version { .. }) { NOTAG } else { Tag(self.tag()?) };
        self.out.clear();
        ask.encode(tag, self.dialect, &mut self.out);
        if self.out.len() > self.conn.msize as usize {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.conn.send_long(&self.out)?;
        self.under_way.insert(tag.0);
        let RequestOutcome::Answer(answer) = self.answer()? else { return Ok(None) };
        let read = match Rmsg::decode(self.conn.bytes(&answer), self.dialect) {
            Ok((theirs, message)) if theirs == tag && answer.data.is_none() => match error_of(&message) {
                Some(error) => Some(Err(error)),
                None if message.number() == ask.number() + 1 => read(message).map(Ok),
                None => None,
            },
            _ => None,
        };
        read.unwrap_or_else(|| Err(self.conn.broken(ask.label()))).map(Some)
    }
}

/// Returns the channel of this name, and the number of channels before it.
pub(crate) fn named(memory: &Memory, name: &str) -> Result<(u32, Memory)> {
    Layout::find(memory, name).map_err(|bad| {
        let errno = if bad == Bad::Name { Errno::ENOENT } else { Errno::EINVAL };
        Error::new(errno, alloc::format!("the channel {name}: {bad}"))
    })
}

/// Returns the error of an error answer.
pub(crate) fn error_of(answer: &Rmsg<'_>) -> Option<Error> {
    match *answer {
        Rmsg::Lerror { ecode: 0 } => Some(Errno::EIO.into()),
        Rmsg::Lerror { ecode } => Some(Errno(ecode).into()),
        Rmsg::Error { ename, errno } => {
            let text = alloc::string::String::from_utf8_lossy(ename);
            let known = Error::from_text(&text);
            Some(if errno.0 == 0 { known } else { Error::new(Errno(errno.0), text) })
        }
        _ => None,
    }
}

impl File {
    /// Returns the qid.
    pub fn qid(&self) -> Qid {
        self.qid
    }

    /// Returns whether writes append, at any offset.
    pub(crate) fn appends(&self) -> bool {
        self.appends || self.qid.ty & Qid::APPEND != 0
    }
}

impl<L: Line> Drop for Client<L> {
    fn drop(&mut self) {
        self.conn.leave();
    }
}
