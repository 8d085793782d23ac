//! The server's side of a session: fids, tags, and which answer may leave when.
//!
//! In: whole frames ([`Session::receive`]) and answers ([`Session::respond`]). Out: requests to serve, and encoded
//! replies in an [`Out`]. `N` is what the file server keeps behind a fid, `F` an owned frame.
//!
//! Always holds:
//! - A fid is *coming* (its attach or walk is not answered), *here*, or *going*. Coming or going, other uses are
//!   refused. A clunk, a remove and a walk onto its own fid hold the fid alone: they wait until the requests before
//!   them are answered, and what comes after them is refused.
//! - A partial result changes nothing: no fid after half a walk.
//! - A request is answered once; after an Rflush no answer to what was flushed leaves (flush(5)). An answer that is
//!   stale, because a Tversion has begun a new session, is dropped and what it made is handed back to be undone.

mod request;
#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use hashbrown::HashMap;

use crate::attr::Names;
use crate::dialect::{Base, Dialect};
use crate::error::{Errno, Error, Result};
use crate::frame::{self, IOHDRSZ, MSIZE_MAX, MSIZE_MIN};
use crate::ids::{Fid, NOFID, NOTAG, Qid, Tag};
use crate::msg::{self, OnlyU, Qids, Rmsg, Tmsg};
use crate::op::{OpenFlags, Reply, check_name};
use crate::stat::parse_device;
use crate::wire::{WireError, Writer};

pub use request::Request;

/// File data that a reply carries and that is put on the wire elsewhere.
pub trait Data {
    /// Bytes.
    fn len(&self) -> usize;
    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Data for Vec<u8> {
    fn len(&self) -> usize {
        self.len()
    }
}

/// Where replies go, in order.
pub trait Out<P> {
    /// Encoded messages are appended here.
    fn bytes(&mut self) -> &mut Vec<u8>;
    /// The end of the message whose beginning is in `bytes`.
    fn payload(&mut self, payload: P);
}

/// Names a request among all of the session: a tag, and which use of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId {
    /// Its tag.
    pub tag: Tag,
    generation: u32,
}

/// What one client may hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest message we agree to, bytes; between `MSIZE_MIN` and `MSIZE_MAX`.
    pub msize: u32,
    /// Fids; one more is refused with ENFILE.
    pub fids: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { msize: MSIZE_MAX, fids: 1 << 18 }
    }
}

/// What came of a frame.
pub enum Step<N, F> {
    /// It was answered: the reply is in the [`Out`].
    Answered,
    /// Serve this and tell [`Session::respond`].
    Serve(Request<N, F>),
    /// It waits until its fid is free: [`Session::next_ready`] will yield it.
    Waits,
    /// Nobody wants the answer to this request any more; its Rflush follows its answer.
    Cancel(CallId),
    /// A new session has begun (Tversion, answered): serve these clunks; nobody waits for their answers.
    Reset(Vec<Request<N, F>>),
}

/// See the module.
pub struct Session<N, F> {
    offered: &'static [Dialect],
    limits: Limits,
    names: Arc<dyn Names>,
    dialect: Option<Dialect>,
    msize: u32,
    fids: HashMap<Fid, Entry<N>>,
    calls: HashMap<Tag, Call<N, F>>,
    generation: u32,
    ready: VecDeque<Request<N, F>>,
}

struct Entry<N> {
    node: Option<N>,
    qid: Qid,
    state: State,
    kind: Kind,
    open: Option<OpenFlags>,
    /// Served requests that use it.
    users: u32,
    /// An open, create or xattrcreate is being served: another one is refused.
    moving: bool,
    /// The request that waits to have it alone.
    waiting: Option<Tag>,
    /// Where the last directory read of 9P2000 ended: (offset, cookie).
    dir: (u64, u64),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Coming,
    Here,
    /// A walk onto itself waits or runs.
    Alone,
    Going,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    File,
    Auth,
    Xattr,
}

struct Call<N, F> {
    generation: u32,
    /// The number of the T-message.
    number: u8,
    fid: Fid,
    fid2: Fid,
    newfid: Fid,
    flags: OpenFlags,
    offset: u64,
    /// Bytes (read) or names (walk) asked for.
    count: u32,
    /// Tflushes to answer after it.
    flushes: Vec<Tag>,
    parked: Option<Request<N, F>>,
}

/// How a request uses its fid.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    /// Beside others.
    Shared,
    /// Beside others, but only one such at a time: on success the fid moves.
    Moves,
    /// Alone, then it stays.
    Alone,
    /// Alone, then it is gone.
    Ends,
}

/// What a T-message asks of the tables: filled by `plan`, executed by `receive`.
struct Plan {
    fid: Fid,
    fid2: Fid,
    newfid: Fid,
    usage: Use,
    flags: OpenFlags,
    offset: u64,
    count: u32,
    /// For the request's view: the directory cookie of a 9P2000 read, or the group of a Twstat.
    extra: u64,
}

impl<N: Clone, F: AsRef<[u8]>> Session<N, F> {
    /// A session before its Tversion. `names` answers what 9P2000 wants as text.
    pub fn new(offered: &'static [Dialect], limits: Limits, names: Arc<dyn Names>) -> Self {
        Self {
            offered,
            limits,
            names,
            dialect: None,
            msize: limits.msize,
            fids: HashMap::new(),
            calls: HashMap::new(),
            generation: 0,
            ready: VecDeque::new(),
        }
    }

    /// The largest message, bytes: frames above it end the connection.
    pub fn msize(&self) -> u32 {
        self.msize
    }

    /// What was agreed, after Tversion.
    pub fn dialect(&self) -> Option<Dialect> {
        self.dialect
    }

    /// Requests that are not answered yet.
    pub fn outstanding(&self) -> usize {
        self.calls.len()
    }

    /// What an outstanding request may cost in memory, bytes: its data or its largest possible answer.
    pub fn cost(&self, id: CallId) -> Option<usize> {
        let call = self.calls.get(&id.tag).filter(|call| call.generation == id.generation)?;
        Some(CALL_COST + call.count as usize)
    }

    /// The requests that are being served: told to be cancelled when the connection goes.
    pub fn served(&self) -> impl Iterator<Item = CallId> {
        let served = self.calls.iter().filter(|(_, call)| call.number != FLUSH && call.parked.is_none());
        served.map(|(&tag, call)| CallId { tag, generation: call.generation })
    }

    /// The connection is idle: gives back what the tables hold beyond their content.
    pub fn shrink(&mut self) {
        if self.calls.is_empty() && self.calls.capacity() > 16 {
            self.calls = HashMap::new();
        }
    }

    /// Fids in use.
    pub fn fid_count(&self) -> usize {
        self.fids.len()
    }

    /// Takes a whole frame. An error ends the connection.
    pub fn receive<P: Data>(&mut self, frame: F, out: &mut impl Out<P>) -> Result<Step<N, F>, WireError> {
        let dialect = self.dialect.unwrap_or(Dialect::P2000);
        let tag = frame::tag_of(frame.as_ref());
        let message = match Tmsg::decode(frame.as_ref(), dialect) {
            Ok((_, message)) => message,
            // An even number we do not know, correctly framed: a later extension asks whether we have it.
            Err(WireError::Type(ty)) if ty % 2 == 0 && !matches!(ty, 6 | 106) && self.dialect.is_some() => {
                self.refuse(tag, &Error::new(Errno::EOPNOTSUPP, "unknown message"), out);
                return Ok(Step::Answered);
            }
            Err(error) => return Err(error),
        };
        match message {
            Tmsg::Version { msize, version } => return Ok(self.version(tag, msize, version, out)),
            Tmsg::Flush { oldtag } if self.dialect.is_some() => return Ok(self.flush(tag, oldtag, out)),
            _ => {}
        }
        let planned = self.plan(tag, &message, dialect).and_then(|plan| {
            self.take_fids(&plan)?;
            Ok(plan)
        });
        let plan = match planned {
            Ok(plan) => plan,
            Err(error) => {
                self.refuse(tag, &error, out);
                return Ok(Step::Answered);
            }
        };
        let number = message.number();
        Ok(self.admit(tag, number, plan, dialect, frame))
    }

    /// The next request that had to wait and need not any more. Ask after every `respond`, until `None`.
    pub fn next_ready(&mut self) -> Option<Request<N, F>> {
        self.ready.pop_front()
    }

    /// The connection is gone: the clunks to serve. Answers that still come are handed back by `respond`.
    pub fn close(&mut self) -> Vec<Request<N, F>> {
        self.dialect = None;
        self.calls.clear();
        self.ready.clear();
        let entries = self.fids.drain();
        entries.filter_map(|(_, e)| Some(Request::silent(e.node?, e.open.is_some_and(rclose)))).collect()
    }

    fn version<P>(&mut self, tag: Tag, msize: u32, version: &[u8], out: &mut impl Out<P>) -> Step<N, F> {
        let clunks = self.close();
        if msize < MSIZE_MIN {
            self.msize = self.limits.msize;
            self.refuse(tag, &Error::new(Errno::EINVAL, "msize is too small: 512 at least"), out);
            return Step::Reset(clunks);
        }
        self.dialect = Dialect::negotiate(version, self.offered);
        self.msize = msize.min(self.limits.msize);
        let version = self.dialect.map_or("unknown", Dialect::name).as_bytes();
        Rmsg::Version { msize: self.msize, version }.encode(tag, Dialect::P2000, out.bytes());
        Step::Reset(clunks)
    }

    fn flush<P>(&mut self, tag: Tag, oldtag: Tag, out: &mut impl Out<P>) -> Step<N, F> {
        if self.calls.contains_key(&tag) || tag == NOTAG {
            self.refuse(tag, &duplicate_tag(), out);
            return Step::Answered;
        }
        let dialect = self.dialect.expect("checked by the caller");
        let Some(old) = self.calls.get_mut(&oldtag) else {
            Rmsg::Flush {}.encode(tag, dialect, out.bytes());
            return Step::Answered;
        };
        if old.parked.take().is_some() {
            let (fid, flushes) = (old.fid, core::mem::take(&mut old.flushes));
            self.calls.remove(&oldtag);
            if let Some(entry) = self.fids.get_mut(&fid) {
                entry.waiting = None;
                entry.state = State::Here;
            }
            self.answer_flushes(flushes, dialect, out);
            Rmsg::Flush {}.encode(tag, dialect, out.bytes());
            return Step::Answered;
        }
        let first = old.flushes.is_empty();
        old.flushes.push(tag);
        let (number, id) = (old.number, CallId { tag: oldtag, generation: old.generation });
        let generation = self.next_generation();
        self.calls.insert(tag, Call::new(generation, FLUSH));
        if first && number != FLUSH { Step::Cancel(id) } else { Step::Waits }
    }

    /// Checks what can be checked without the file server, and says which fids are needed how.
    fn plan(&self, tag: Tag, message: &Tmsg<'_>, dialect: Dialect) -> Result<Plan> {
        if self.dialect.is_none() {
            return Err(Error::new(Errno::EPROTO, "no version agreed: Tversion comes first"));
        }
        if self.calls.contains_key(&tag) || tag == NOTAG {
            return Err(duplicate_tag());
        }
        let l_only = message.number() < 100;
        let not_l = matches!(
            message,
            Tmsg::Open { .. } | Tmsg::Create { .. } | Tmsg::Stat { .. } | Tmsg::Wstat { .. }
        );
        let streaming = matches!(message, Tmsg::Stream { .. } | Tmsg::Sclose { .. });
        if l_only != dialect.is_l() && (l_only || not_l) || streaming {
            let text = alloc::format!("{} is not a message of {}", message.label(), dialect.name());
            return Err(Error::new(Errno::EOPNOTSUPP, text));
        }
        let mut plan = Plan {
            fid: NOFID,
            fid2: NOFID,
            newfid: NOFID,
            usage: Use::Shared,
            flags: OpenFlags(0),
            offset: 0,
            count: 0,
            extra: 0,
        };
        match *message {
            Tmsg::Auth { afid, .. } => plan.newfid = new(afid)?,
            Tmsg::Attach { fid, afid, .. } => {
                plan.newfid = new(fid)?;
                plan.fid2 = afid;
                if afid != NOFID && self.here(afid)?.kind != Kind::Auth {
                    return Err(Error::new(Errno::EINVAL, "afid is not from Tauth"));
                }
            }
            Tmsg::Walk { fid, newfid, names } => {
                let entry = self.file(fid)?;
                if !names.is_empty() {
                    directory(entry)?;
                    // A clone of an open fid is let through: the Linux client makes them.
                    if entry.open.is_some() && !dialect.is_l() {
                        return Err(already_open());
                    }
                }
                for name in names.iter().filter(|&name| name != b"..") {
                    check_name(name)?;
                }
                plan.fid = fid;
                plan.count = names.len() as u32;
                if newfid == fid { plan.usage = Use::Alone } else { plan.newfid = new(newfid)? }
            }
            Tmsg::Open { fid, mode } => plan.open(self.file(fid)?, fid, OpenFlags::from_mode(mode))?,
            Tmsg::Lopen { fid, flags } => {
                let flags = OpenFlags(flags & !(OpenFlags::CREAT | OpenFlags::EXCL | OPEN_IGNORED).0);
                plan.open(self.file(fid)?, fid, flags)?;
            }
            Tmsg::Create { fid, name, perm, mode, extension } => {
                plan.create(self.file(fid)?, fid, name, OpenFlags::from_mode(mode))?;
                plan.fid2 = self.check_special(perm, extension.0, dialect)?;
            }
            Tmsg::Lcreate { fid, name, flags, .. } => {
                plan.create(self.file(fid)?, fid, name, OpenFlags(flags & !OPEN_IGNORED.0))?;
            }
            Tmsg::Symlink { dfid, name, .. }
            | Tmsg::Mknod { dfid, name, .. }
            | Tmsg::Mkdir { dfid, name, .. }
            | Tmsg::Unlinkat { dirfid: dfid, name, .. } => {
                directory(self.file(dfid)?)?;
                check_name(name)?;
                plan.fid = dfid;
            }
            Tmsg::Link { dfid, fid, name } | Tmsg::Rename { fid: dfid, dfid: fid, name } => {
                // Tlink: dfid is the directory; Trename: its dfid is.
                let dir = if matches!(message, Tmsg::Link { .. }) { dfid } else { fid };
                directory(self.file(dir)?)?;
                check_name(name)?;
                (plan.fid, plan.fid2) = (dfid, fid);
            }
            Tmsg::Renameat { olddirfid, oldname, newdirfid, newname } => {
                directory(self.file(olddirfid)?)?;
                directory(self.file(newdirfid)?)?;
                check_name(oldname)?;
                check_name(newname)?;
                (plan.fid, plan.fid2) = (olddirfid, newdirfid);
            }
            Tmsg::Read { fid, offset, count } => {
                let entry = self.here(fid)?;
                if !entry.open.is_some_and(OpenFlags::reads) {
                    return Err(Error::new(Errno::EBADF, "fid is not open for reading"));
                }
                plan.count = count.min(self.msize - IOHDRSZ);
                plan.offset = offset;
                plan.fid = fid;
                if entry.qid.is_dir() && entry.kind == Kind::File {
                    plan.extra = match offset {
                        _ if dialect.is_l() => return Err(Errno::EISDIR.into()),
                        0 => 0,
                        _ if offset == entry.dir.0 => entry.dir.1,
                        _ => return Err(Error::new(Errno::EINVAL, "bad offset in directory read")),
                    };
                }
            }
            Tmsg::Readdir { fid, count, .. } => {
                let entry = self.file(fid)?;
                directory(entry)?;
                if entry.open.is_none() {
                    return Err(Error::new(Errno::EBADF, "directory is not open"));
                }
                plan.count = count.min(self.msize - IOHDRSZ);
                plan.fid = fid;
            }
            Tmsg::Write { fid, data, .. } => {
                if !self.here(fid)?.open.is_some_and(OpenFlags::writes) {
                    return Err(Error::new(Errno::EBADF, "fid is not open for writing"));
                }
                plan.count = data.bytes().len() as u32;
                plan.fid = fid;
            }
            Tmsg::Clunk { fid } | Tmsg::Remove { fid } => {
                self.here(fid)?;
                (plan.fid, plan.usage) = (fid, Use::Ends);
            }
            Tmsg::Wstat { fid, ref stat } => {
                plan.extra = request::check_wstat(stat, self.file(fid)?.qid, dialect, &*self.names)?.into();
                plan.fid = fid;
            }
            Tmsg::Lock { fid, ty, .. } | Tmsg::Getlock { fid, ty, .. } => {
                if ty > 2 {
                    return Err(Error::new(Errno::EINVAL, "no such lock type"));
                }
                if self.file(fid)?.open.is_none() {
                    return Err(Error::new(Errno::EBADF, "fid is not open"));
                }
                plan.fid = fid;
            }
            Tmsg::Xattrwalk { fid, newfid, .. } => {
                self.file(fid)?;
                (plan.fid, plan.newfid) = (fid, new(newfid)?);
            }
            Tmsg::Xattrcreate { fid, .. } => {
                if self.file(fid)?.open.is_some() {
                    return Err(already_open());
                }
                (plan.fid, plan.usage) = (fid, Use::Moves);
            }
            Tmsg::Statfs { fid }
            | Tmsg::Readlink { fid }
            | Tmsg::Getattr { fid, .. }
            | Tmsg::Setattr { fid, .. }
            | Tmsg::Fsync { fid, .. }
            | Tmsg::Stat { fid } => {
                self.file(fid)?;
                plan.fid = fid;
            }
            Tmsg::Version { .. } | Tmsg::Flush { .. } | Tmsg::Stream { .. } | Tmsg::Sclose { .. } => {
                unreachable!("handled before")
            }
        }
        Ok(plan)
    }

    /// What a Tcreate of something special (.u) needs: the fid to link to, or a device that can be read.
    fn check_special(&self, perm: u32, extension: &[u8], dialect: Dialect) -> Result<Fid> {
        use crate::stat::mode::{DMDEVICE, DMLINK};
        if !dialect.is_u() {
            return Ok(NOFID);
        }
        if perm & DMDEVICE != 0 {
            parse_device(extension).ok_or_else(|| Error::new(Errno::EINVAL, "bad device extension"))?;
        }
        if perm & DMLINK == 0 {
            return Ok(NOFID);
        }
        let number = core::str::from_utf8(extension).ok().and_then(|text| text.trim().parse().ok());
        let fid = Fid(number.ok_or_else(|| Error::new(Errno::EINVAL, "bad link extension: a fid"))?);
        self.file(fid)?;
        Ok(fid)
    }

    /// The entry of a fid that may be used now.
    fn here(&self, fid: Fid) -> Result<&Entry<N>> {
        match self.fids.get(&fid) {
            Some(entry) if entry.state == State::Here => Ok(entry),
            Some(entry) if entry.state == State::Alone => {
                Err(Error::new(Errno::EBUSY, "fid is being walked"))
            }
            _ => Err(unknown_fid()),
        }
    }

    /// The entry of a fid that stands for a file, not for authentication or an attribute.
    fn file(&self, fid: Fid) -> Result<&Entry<N>> {
        let entry = self.here(fid)?;
        if entry.kind == Kind::File { Ok(entry) } else { Err(Error::new(Errno::EBADF, "fid is not a file")) }
    }

    /// Makes the new fid. Everything before has been checked; this is the last that can be refused.
    fn take_fids(&mut self, plan: &Plan) -> Result<()> {
        for fid in [plan.fid, plan.fid2] {
            if fid != NOFID {
                self.here(fid)?;
            }
        }
        if plan.usage == Use::Moves && self.here(plan.fid)?.moving {
            return Err(Error::new(Errno::EBUSY, "fid is being opened"));
        }
        if plan.newfid == NOFID {
            return Ok(());
        }
        if self.fids.len() >= self.limits.fids {
            return Err(Error::new(Errno::ENFILE, "too many fids"));
        }
        if self.fids.contains_key(&plan.newfid) {
            return Err(Error::new(Errno::EBUSY, "fid in use"));
        }
        self.fids.insert(plan.newfid, Entry::coming());
        Ok(())
    }

    /// Enters the call, and its request into service or behind others.
    fn admit(&mut self, tag: Tag, number: u8, plan: Plan, dialect: Dialect, frame: F) -> Step<N, F> {
        let generation = self.next_generation();
        let node =
            |fids: &HashMap<Fid, Entry<N>>, fid| fids.get(&fid).and_then(|e: &Entry<N>| e.node.clone());
        let ends_open = self.fids.get(&plan.fid).and_then(|e| e.open).filter(|_| plan.usage == Use::Ends);
        let is_dir = self.fids.get(&plan.fid).is_some_and(|e| e.qid.is_dir() && e.kind == Kind::File);
        let request = Request {
            id: CallId { tag, generation },
            frame: Some(frame),
            dialect,
            fid: node(&self.fids, plan.fid),
            fid2: node(&self.fids, plan.fid2),
            extra: plan.extra,
            count: plan.count,
            is_dir,
            changes: changes(number, plan.flags),
            remove: ends_open.is_some_and(rclose),
        };
        let mut call = Call {
            fid: plan.fid,
            fid2: plan.fid2,
            newfid: plan.newfid,
            flags: plan.flags,
            offset: plan.offset,
            count: plan.count,
            ..Call::new(generation, number)
        };
        if let Some(entry) = self.fids.get_mut(&plan.fid) {
            match plan.usage {
                Use::Shared => {}
                Use::Moves => entry.moving = true,
                Use::Alone => entry.state = State::Alone,
                Use::Ends => entry.state = State::Going,
            }
            if matches!(plan.usage, Use::Alone | Use::Ends) && entry.users > 0 {
                entry.waiting = Some(tag);
                call.parked = Some(request);
                self.calls.insert(tag, call);
                return Step::Waits;
            }
            entry.users += 1;
        }
        if let Some(entry) = self.fids.get_mut(&plan.fid2) {
            entry.users += 1;
        }
        self.calls.insert(tag, call);
        Step::Serve(request)
    }

    /// Takes the answer to a request. What is returned is a node that nobody will ever clunk, because its session
    /// has ended: undo it ([`Request::silent`]).
    #[must_use = "a node that is returned must be clunked"]
    pub fn respond<P: Data>(
        &mut self,
        id: CallId,
        result: Result<Reply<N, P>>,
        out: &mut impl Out<P>,
    ) -> Option<N> {
        let live = self.calls.get(&id.tag).is_some_and(|call| call.generation == id.generation);
        let Some(dialect) = self.dialect.filter(|_| live) else {
            return result.ok().and_then(|reply| reply.into_node());
        };
        let call = self.calls.remove(&id.tag).expect("looked up just now");
        self.release(call.fid2);
        self.release(call.fid);
        let ends = matches!(call.number, CLUNK | REMOVE);
        let result = match result {
            Ok(reply) => self.apply(&call, reply, dialect),
            Err(error) => Err(error),
        };
        if result.is_err() {
            self.fids.remove(&call.newfid);
        }
        if let Some(entry) = self.fids.get_mut(&call.fid) {
            match call.number {
                _ if ends => drop(self.fids.remove(&call.fid)),
                OPEN | LOPEN | CREATE | LCREATE | XATTRCREATE => entry.moving = false,
                WALK if call.newfid == NOFID => entry.state = State::Here,
                _ => {}
            }
        }
        match result {
            Ok(reply) => self.encode(id.tag, &call, reply, dialect, out),
            // A failure that was flushed never happened; a clunk has freed its fid and must say so.
            Err(_) if !call.flushes.is_empty() && !ends => {}
            Err(error) => self.refuse(id.tag, &error, out),
        }
        self.answer_flushes(call.flushes, dialect, out);
        None
    }

    /// Enters into the tables what a success means.
    fn apply<P>(&mut self, call: &Call<N, F>, reply: Reply<N, P>, dialect: Dialect) -> Result<Reply<N, P>> {
        let from = self.fids.get(&call.fid).map(|entry| entry.qid);
        let mut install = |fid: Fid, node: &N, qid: Qid, kind: Kind, open: Option<OpenFlags>| {
            let entry = self.fids.get_mut(&fid).expect("a fid stays while a request holds it");
            entry.node = Some(node.clone());
            entry.qid = qid;
            entry.kind = kind;
            entry.open = open;
            if entry.state == State::Coming {
                entry.state = State::Here;
            }
        };
        match &reply {
            Reply::Auth { qid, node } => install(call.newfid, node, *qid, Kind::Auth, Some(OpenFlags::RDWR)),
            Reply::Attach { qid, node } => install(call.newfid, node, *qid, Kind::File, None),
            Reply::Walk { qids, node } => {
                let whole = qids.len() == call.count as usize;
                assert_eq!(whole, node.is_some(), "a walk makes a node exactly if it is whole");
                let to = if call.newfid == NOFID { call.fid } else { call.newfid };
                match (node, qids.last().copied().or(from)) {
                    (Some(node), Some(qid)) => install(to, node, qid, Kind::File, None),
                    _ => {
                        if qids.is_empty() {
                            return Err(Errno::ENOENT.into());
                        }
                        self.fids.remove(&call.newfid);
                    }
                }
            }
            Reply::Open { qid, node, .. } => install(call.fid, node, *qid, Kind::File, Some(call.flags)),
            Reply::Moved(node) => {
                let qid = from.unwrap_or_default();
                install(call.fid, node, qid, Kind::Xattr, Some(OpenFlags::WRITE));
            }
            Reply::Xattr { node, .. } => {
                install(call.newfid, node, Qid::default(), Kind::Xattr, Some(OpenFlags::READ));
            }
            Reply::Dir(dir) if dir.too_small() => {
                return Err(Error::new(Errno::EINVAL, "i/o count too small for a directory entry"));
            }
            Reply::Dir(dir) if !dialect.is_l() && !dir.bytes().is_empty() => {
                let entry = self.fids.get_mut(&call.fid).expect("a fid stays while a request holds it");
                entry.dir = (call.offset + dir.bytes().len() as u64, dir.last());
            }
            _ => {}
        }
        Ok(reply)
    }

    fn encode<P: Data>(
        &self,
        tag: Tag,
        call: &Call<N, F>,
        reply: Reply<N, P>,
        dialect: Dialect,
        out: &mut impl Out<P>,
    ) {
        let before = out.bytes().len();
        let buf = out.bytes();
        let mut put = |message: Rmsg<'_>| message.encode(tag, dialect, buf);
        match (call.number, reply) {
            (READ, Reply::Read(data)) => {
                assert!(data.len() <= call.count as usize, "a read gives no more than was asked");
                Rmsg::Read { data: msg::Data::Count(data.len() as u32) }.encode_before(
                    data.len(),
                    tag,
                    dialect,
                    buf,
                );
                return out.payload(data);
            }
            (READ, Reply::Dir(dir)) => put(Rmsg::Read { data: msg::Data::Bytes(dir.bytes()) }),
            (READDIR, Reply::Dir(dir)) => put(Rmsg::Readdir { data: msg::Data::Bytes(dir.bytes()) }),
            (WRITE, Reply::Wrote(count)) => put(Rmsg::Write { count }),
            (WALK, Reply::Walk { qids, .. }) => put(Rmsg::Walk { qids: Qids::Slice(&qids) }),
            (AUTH, Reply::Auth { qid, .. }) => put(Rmsg::Auth { aqid: qid }),
            (ATTACH, Reply::Attach { qid, .. }) => put(Rmsg::Attach { qid }),
            (OPEN, Reply::Open { qid, iounit, .. }) => put(Rmsg::Open { qid, iounit }),
            (CREATE, Reply::Open { qid, iounit, .. }) => put(Rmsg::Create { qid, iounit }),
            (LOPEN, Reply::Open { qid, iounit, .. }) => put(Rmsg::Lopen { qid, iounit }),
            (LCREATE, Reply::Open { qid, iounit, .. }) => put(Rmsg::Lcreate { qid, iounit }),
            (SYMLINK, Reply::Made(qid)) => put(Rmsg::Symlink { qid }),
            (MKNOD, Reply::Made(qid)) => put(Rmsg::Mknod { qid }),
            (MKDIR, Reply::Made(qid)) => put(Rmsg::Mkdir { qid }),
            (READLINK, Reply::Target(target)) => put(Rmsg::Readlink { target: &target }),
            (GETATTR, Reply::Attr(attr)) => put(Rmsg::Getattr { attr }),
            (STAT, Reply::Attr(attr)) => {
                let mut w = Writer::message(buf, STAT + 1, tag, dialect);
                let mut outer = w.nested();
                outer.u16(0);
                let name = attr.texts.as_deref().map_or(&b"/"[..], |texts| &texts.name);
                attr.encode_stat(name, &*self.names, outer.nested());
                outer.finish_record();
                w.finish(0);
            }
            (STATFS, Reply::Statfs(statfs)) => put(Rmsg::Statfs { statfs }),
            (LOCK, Reply::Lock(status)) => put(Rmsg::Lock { status: status as u8 }),
            (GETLOCK, Reply::Getlock { ty, start, length, proc_id, client_id }) => {
                put(Rmsg::Getlock { ty: ty as u8, start, length, proc_id, client_id: &client_id });
            }
            (XATTRWALK, Reply::Xattr { size, .. }) => put(Rmsg::Xattrwalk { size }),
            (XATTRCREATE, Reply::Moved(_)) => put(Rmsg::Xattrcreate {}),
            (RENAME, Reply::Done) => put(Rmsg::Rename {}),
            (SETATTR, Reply::Done) => put(Rmsg::Setattr {}),
            (FSYNC, Reply::Done) => put(Rmsg::Fsync {}),
            (LINK, Reply::Done | Reply::Made(_)) => put(Rmsg::Link {}),
            (RENAMEAT, Reply::Done) => put(Rmsg::Renameat {}),
            (UNLINKAT, Reply::Done) => put(Rmsg::Unlinkat {}),
            (CLUNK, Reply::Done) => put(Rmsg::Clunk {}),
            (REMOVE, Reply::Done) => put(Rmsg::Remove {}),
            (WSTAT, Reply::Done) => put(Rmsg::Wstat {}),
            (number, _) => {
                panic!("the file server gave an answer of another kind to a message of type {number}")
            }
        }
        if out.bytes().len() - before > self.msize as usize {
            out.bytes().truncate(before);
            self.refuse(tag, &Error::new(Errno::EOVERFLOW, "the reply does not fit into msize"), out);
        }
    }

    /// A request on this fid is answered; perhaps somebody waits to have it alone.
    fn release(&mut self, fid: Fid) {
        let Some(entry) = self.fids.get_mut(&fid) else { return };
        entry.users -= 1;
        if entry.users > 0 {
            return;
        }
        let Some(tag) = entry.waiting.take() else { return };
        entry.users = 1;
        let call = self.calls.get_mut(&tag).expect("a waiting request is outstanding");
        let mut request = call.parked.take().expect("a waiting request is parked");
        request.fid.clone_from(&entry.node);
        request.remove = matches!(call.number, CLUNK) && entry.open.is_some_and(rclose);
        self.ready.push_back(request);
    }

    fn answer_flushes<P>(&mut self, mut flushes: Vec<Tag>, dialect: Dialect, out: &mut impl Out<P>) {
        while !flushes.is_empty() {
            for tag in core::mem::take(&mut flushes) {
                if let Some(call) = self.calls.remove(&tag) {
                    Rmsg::Flush {}.encode(tag, dialect, out.bytes());
                    flushes.extend(call.flushes);
                }
            }
        }
    }

    fn refuse<P>(&self, tag: Tag, error: &Error, out: &mut impl Out<P>) {
        let dialect = self.dialect.unwrap_or(Dialect::P2000);
        let message = match dialect.base {
            Base::L => Rmsg::Lerror { ecode: error.errno.0 },
            _ => {
                let text = error.ename();
                Rmsg::Error {
                    ename: &text.as_bytes()[..text.floor_char_boundary(ERRMAX)],
                    errno: OnlyU(error.errno.0),
                }
            }
        };
        message.encode(tag, dialect, out.bytes());
    }

    fn next_generation(&mut self) -> u32 {
        // 0 belongs to silent clunks.
        self.generation = self.generation.checked_add(1).unwrap_or(1);
        self.generation
    }
}

impl Plan {
    fn open<N>(&mut self, entry: &Entry<N>, fid: Fid, flags: OpenFlags) -> Result<()> {
        if entry.open.is_some() {
            return Err(already_open());
        }
        if entry.qid.is_dir() && flags.changes() {
            return Err(Errno::EISDIR.into());
        }
        (self.fid, self.flags, self.usage) = (fid, flags, Use::Moves);
        Ok(())
    }

    fn create<N>(&mut self, entry: &Entry<N>, fid: Fid, name: &[u8], flags: OpenFlags) -> Result<()> {
        directory(entry)?;
        if entry.open.is_some() {
            return Err(already_open());
        }
        check_name(name)?;
        (self.fid, self.flags, self.usage) = (fid, flags, Use::Moves);
        Ok(())
    }
}

impl<N> Entry<N> {
    fn coming() -> Self {
        Self {
            node: None,
            qid: Qid::default(),
            state: State::Coming,
            kind: Kind::File,
            open: None,
            users: 0,
            moving: false,
            waiting: None,
            dir: (0, 0),
        }
    }
}

impl<N, F> Call<N, F> {
    fn new(generation: u32, number: u8) -> Self {
        Self {
            generation,
            number,
            fid: NOFID,
            fid2: NOFID,
            newfid: NOFID,
            flags: OpenFlags(0),
            offset: 0,
            count: 0,
            flushes: Vec::new(),
            parked: None,
        }
    }
}

impl<N, P> Reply<N, P> {
    /// The same answer with another kind of node.
    pub fn map_node<M>(self, f: impl FnOnce(N) -> M) -> Reply<M, P> {
        match self {
            Self::Done => Reply::Done,
            Self::Auth { qid, node } => Reply::Auth { qid, node: f(node) },
            Self::Attach { qid, node } => Reply::Attach { qid, node: f(node) },
            Self::Walk { qids, node } => Reply::Walk { qids, node: node.map(f) },
            Self::Open { qid, iounit, node } => Reply::Open { qid, iounit, node: f(node) },
            Self::Made(qid) => Reply::Made(qid),
            Self::Moved(node) => Reply::Moved(f(node)),
            Self::Target(target) => Reply::Target(target),
            Self::Attr(attr) => Reply::Attr(attr),
            Self::Dir(dir) => Reply::Dir(dir),
            Self::Read(data) => Reply::Read(data),
            Self::Wrote(count) => Reply::Wrote(count),
            Self::Lock(status) => Reply::Lock(status),
            Self::Getlock { ty, start, length, proc_id, client_id } => {
                Reply::Getlock { ty, start, length, proc_id, client_id }
            }
            Self::Xattr { size, node } => Reply::Xattr { size, node: f(node) },
            Self::Statfs(statfs) => Reply::Statfs(statfs),
        }
    }

    /// The node that this success has made, if it has made one.
    fn into_node(self) -> Option<N> {
        match self {
            Self::Auth { node, .. }
            | Self::Attach { node, .. }
            | Self::Open { node, .. }
            | Self::Xattr { node, .. }
            | Self::Moved(node) => Some(node),
            Self::Walk { node, .. } => node,
            _ => None,
        }
    }
}

/// Whether a request of this kind changes a file, or prepares to.
fn changes(number: u8, flags: OpenFlags) -> bool {
    match number {
        OPEN | LOPEN => flags.changes(),
        LCREATE | SYMLINK | MKNOD | RENAME | SETATTR | XATTRCREATE | LINK | MKDIR | RENAMEAT | UNLINKAT | CREATE
        | WRITE | REMOVE | WSTAT => true,
        _ => false,
    }
}

fn rclose(flags: OpenFlags) -> bool {
    flags.has(OpenFlags::RCLOSE)
}

fn directory<N>(entry: &Entry<N>) -> Result<()> {
    if entry.qid.is_dir() { Ok(()) } else { Err(Errno::ENOTDIR.into()) }
}

fn new(fid: Fid) -> Result<Fid> {
    if fid == NOFID { Err(Error::new(Errno::EINVAL, "nofid cannot be made")) } else { Ok(fid) }
}

fn unknown_fid() -> Error {
    Error::new(Errno::EBADF, "unknown fid")
}

fn already_open() -> Error {
    Error::new(Errno::EBUSY, "fid is already open")
}

fn duplicate_tag() -> Error {
    Error::new(Errno::EINVAL, "duplicate tag")
}

/// What an outstanding request is charged beside its data: its entries in tables, a small frame. Bytes.
pub const CALL_COST: usize = 512;
/// Longest error text sent (`ERRMAX` of error(2)), bytes.
const ERRMAX: usize = 128;
/// What Linux sends in Tlopen and means for itself: NOCTTY, FASYNC, LARGEFILE, CLOEXEC.
const OPEN_IGNORED: OpenFlags = OpenFlags(0o400 | 0o20000 | 0o100000 | 0o2000000);

const STATFS: u8 = 8;
const LOPEN: u8 = 12;
const LCREATE: u8 = 14;
const SYMLINK: u8 = 16;
const MKNOD: u8 = 18;
const RENAME: u8 = 20;
const READLINK: u8 = 22;
const GETATTR: u8 = 24;
const SETATTR: u8 = 26;
const XATTRWALK: u8 = 30;
const XATTRCREATE: u8 = 32;
const READDIR: u8 = 40;
const FSYNC: u8 = 50;
const LOCK: u8 = 52;
const GETLOCK: u8 = 54;
const LINK: u8 = 70;
const MKDIR: u8 = 72;
const RENAMEAT: u8 = 74;
const UNLINKAT: u8 = 76;
const AUTH: u8 = 102;
const ATTACH: u8 = 104;
const FLUSH: u8 = 108;
const WALK: u8 = 110;
const OPEN: u8 = 112;
const CREATE: u8 = 114;
const READ: u8 = 116;
const WRITE: u8 = 118;
const CLUNK: u8 = 120;
const REMOVE: u8 = 122;
const STAT: u8 = 124;
const WSTAT: u8 = 126;
