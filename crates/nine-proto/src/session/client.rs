//! The client's side of a session: tags in use, fid numbers in use, and the cleanup after late successes.
//!
//! In: messages to be sent ([`ClientSession::call`]), abandoned calls ([`ClientSession::cancel`]) and received frames
//! ([`ClientSession::receive`]). Out: tags, and [`Event`]s that assign a frame to its call and name fids to clunk
//! because no caller wants them any more. The caller sends messages and waits for replies.
//!
//! The version takes one Tversion if the server has the best dialect with or without its suffixes, and two if it
//! follows version(5) otherwise: a server answers with a part of the proposal, so `9P2000` to `9P2000.L` leaves only
//! `.u` to be asked for. Servers that answer "unknown" to what they do not know are asked for each dialect without a
//! suffix.
//!
//! Always holds: a tag is free only after its reply or, if it was flushed, after its Rflush (flush(5)), even if the
//! reply came before. A fid number is free only when the server cannot have the fid. No input from the peer causes a
//! panic.

use alloc::vec::Vec;

use crate::dialect::Dialect;
use crate::frame::{self, IOHDRSZ, MSIZE_MAX, MSIZE_MIN};
use crate::ids::{Fid, NOTAG, Tag};
use crate::msg::{Rmsg, Tmsg};
use crate::wire::WireError;

/// The maximum number of in-flight calls. Each call may need a second tag for its Tflush, and NOTAG is reserved.
pub const CALLS_MAX: usize = 0x7fff;
/// The maximum number of fids in a session. At the limit [`ClientSession::fid`] returns `None`: too many open files.
pub const FIDS_MAX: u32 = 1 << 20;
/// The maximum size of a reply before the version is agreed, in bytes.
const RVERSION_MAX: u32 = 8192;

const RLERROR: u8 = 7;
const RVERSION: u8 = 101;
const RERROR: u8 = 107;
const RFLUSH: u8 = 109;
const RCLUNK: u8 = 121;

/// The client's state of a session. See the module documentation.
#[derive(Debug)]
pub struct ClientSession {
    version: VersionProgress,
    /// Indexed by tag. Its length is the largest number of tags that were ever in use at once.
    slots: Vec<TagSlot>,
    free: Vec<u16>,
    calls: usize,
    orphans: usize,
    limit: usize,
    fids: FidNumbers,
    /// Whether a ping is in flight.
    pinging: bool,
}

/// The meaning of a received frame.
#[derive(Debug, PartialEq)]
pub enum Event<'f> {
    /// The server rejected the proposed dialect. Send this Tversion with [`NOTAG`].
    Ask(Tmsg<'static>),
    /// The version is agreed. [`ClientSession::dialect`] and [`ClientSession::msize`] hold from now on.
    Agreed,
    /// The server speaks none of the offered dialects.
    NoDialect,
    /// The reply to a call.
    Answer {
        /// The tag of the call.
        tag: Tag,
        /// The server's reply.
        reply: Rmsg<'f>,
        /// The fid that this success created. Clunk it if no caller takes the reply.
        made: Option<Fid>,
        /// Whether the tag is free now. If not, its Rflush is still to come.
        ended: bool,
    },
    /// A flushed call has ended, and its tag is free.
    Flushed {
        /// The tag of the call.
        tag: Tag,
        /// Whether its reply came before the Rflush. If not, the call was not executed.
        answered: bool,
        /// A fid that the server still has because the call was not executed. Clunk it.
        clunk: Option<Fid>,
    },
    /// The caller need not act.
    Nothing,
}

#[derive(Debug)]
enum VersionProgress {
    /// No Tversion was sent yet.
    Silent,
    Asked {
        msize: u32,
        offered: Vec<Dialect>,
        /// The index of the present proposal.
        at: usize,
        /// The index of a dialect that the server has answered with, while a better one is proposed.
        named: Option<usize>,
        /// The answer of an earlier connection to the present proposal.
        before: Option<Dialect>,
    },
    Agreed {
        msize: u32,
        spoken: SpokenDialect,
    },
}

/// A proposal that a server has accepted, and the dialect that it answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpokenDialect {
    /// The dialect in the Tversion.
    pub asked: Dialect,
    /// The agreed dialect.
    pub answered: Dialect,
}

#[derive(Clone, Copy, Debug)]
enum TagSlot {
    Free,
    Call(Intent),
    /// An abandoned call, until its Rflush. If the server refuses the flush, the call's reply ends it.
    Orphan {
        call: Intent,
        flushing: bool,
        answered: bool,
    },
    /// The Tflush of the call with this tag.
    Flush(Tag),
    /// The Tflush of a ping.
    Ping,
}

/// Returns the index of a dialect that is better than the answer and that the answer to proposal `at` does not exclude.
/// The server has none of the dialects between the proposal and the answer that are parts of the proposal.
fn better(offered: &[Dialect], at: usize, answer: usize) -> Option<usize> {
    // A server with streams or error texts has them in its best dialect.
    let is_open = |base| base != offered[at].base && base != offered[answer].base;
    (at + 1..answer).find(|&index| is_open(offered[index].base))
}

/// Returns the index of the next proposal if the server refused proposal `at`. Such a server knows whole names only, so
/// names without suffixes of ours come first.
fn after_refusal(offered: &[Dialect], at: usize) -> Option<usize> {
    let mut rest = at + 1..offered.len();
    rest.clone().find(|&index| offered[index].is_plain()).or_else(|| rest.next())
}

/// The effect of a message on the session. It stands for a message that is encoded before it gets a tag.
#[derive(Clone, Copy, Debug)]
pub struct Intent {
    /// The type of the reply.
    reply: u8,
    /// The fid that the message uses.
    fid: Option<Fid>,
    effect: FidEffect,
}

impl From<&Tmsg<'_>> for Intent {
    fn from(message: &Tmsg<'_>) -> Self {
        Self { reply: message.number() + 1, fid: used(message), effect: effect(message) }
    }
}

/// The effect of a call on fids.
#[derive(Clone, Copy, Debug)]
enum FidEffect {
    None,
    /// A success creates this fid. A walk creates it only if the server walked all the names.
    Makes {
        fid: Fid,
        names: usize,
    },
    /// The server drops the fid, whatever it replies (clunk(5), remove(5)).
    Ends(Fid),
}

impl ClientSession {
    /// Creates a session with at most `limit` calls in flight, including abandoned ones. The limit is clamped to
    /// between 1 and [`CALLS_MAX`].
    pub fn new(limit: usize) -> Self {
        Self {
            version: VersionProgress::Silent,
            slots: Vec::new(),
            free: Vec::new(),
            calls: 0,
            orphans: 0,
            limit: limit.clamp(1, CALLS_MAX),
            fids: FidNumbers::default(),
            pinging: false,
        }
    }

    /// Starts or restarts the session: forgets all tags and fids, as the server does on a Tversion. Send the returned
    /// message with [`NOTAG`]. `offered` is sorted from best to worst. `msize` is clamped to the range from
    /// [`MSIZE_MIN`] to [`MSIZE_MAX`].
    ///
    /// Panics if `offered` is empty.
    pub fn version(&mut self, msize: u32, offered: &[Dialect]) -> Tmsg<'static> {
        self.version_as_before(msize, offered, None)
    }

    /// Like [`ClientSession::version`], but begins with the proposal that this server accepted on an earlier
    /// connection. If it does not answer as it did then, it is asked for the best dialect again.
    pub fn version_as_before(
        &mut self,
        msize: u32,
        offered: &[Dialect],
        before: Option<SpokenDialect>,
    ) -> Tmsg<'static> {
        assert!(!offered.is_empty(), "a client offers a dialect");
        let msize = msize.clamp(MSIZE_MIN, MSIZE_MAX);
        *self = Self::new(self.limit);
        let index = |before: &SpokenDialect| offered.iter().position(|dialect| *dialect == before.asked);
        let at = before.as_ref().and_then(index).filter(|at| *at > 0);
        let before = before.filter(|_| at.is_some()).map(|before| before.answered);
        let at = at.unwrap_or(0);
        let named = None;
        self.version = VersionProgress::Asked { msize, offered: offered.to_vec(), at, named, before };
        Tmsg::Version { msize, version: offered[at].name().as_bytes() }
    }

    /// Returns the dialect; plain 9P2000 before the agreement.
    pub fn dialect(&self) -> Dialect {
        self.spoken().map_or(Dialect::P2000, |spoken| spoken.answered)
    }

    /// Returns the accepted proposal, for later connections to the same server.
    pub fn spoken(&self) -> Option<SpokenDialect> {
        match self.version {
            VersionProgress::Agreed { spoken, .. } => Some(spoken),
            _ => None,
        }
    }

    /// Returns the maximum size of a message in both directions, in bytes. Split received data with it.
    pub fn msize(&self) -> u32 {
        match self.version {
            VersionProgress::Agreed { msize, .. } => msize,
            _ => RVERSION_MAX,
        }
    }

    /// Returns the maximum number of data bytes in one read or write.
    pub fn iounit_max(&self) -> u32 {
        self.msize() - IOHDRSZ
    }

    /// Returns the number of in-flight calls, including abandoned ones.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// Returns the maximum number of in-flight calls.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Returns the number of abandoned calls that have not ended.
    pub fn orphans(&self) -> usize {
        self.orphans
    }

    /// Returns the number of fids that the server has or may have.
    pub fn fids(&self) -> u32 {
        self.fids.taken
    }

    /// Reserves a fid number that the server does not know. Returns `None` if [`FIDS_MAX`] are in use.
    pub fn fid(&mut self) -> Option<Fid> {
        self.fids.take()
    }

    /// Reserves a tag for this message. Returns `None` if [`ClientSession::limit`] calls are in flight. The fid that a
    /// message creates must come from [`ClientSession::fid`]. The session owns that number now and frees it if the call
    /// fails.
    ///
    /// Panics if the version is not agreed.
    pub fn call(&mut self, message: impl Into<Intent>) -> Option<Tag> {
        assert!(matches!(self.version, VersionProgress::Agreed { .. }), "calls come after the version");
        if self.calls == self.limit {
            return None;
        }
        self.calls += 1;
        Some(self.tag(TagSlot::Call(message.into())))
    }

    /// Undoes the preparation of a message that is not sent after all. Returns the fid that the message would have
    /// ended. The caller must clunk it.
    pub fn unsent(&mut self, message: impl Into<Intent>) -> Option<Fid> {
        match message.into().effect {
            FidEffect::None => None,
            FidEffect::Makes { fid, .. } => {
                self.fids.give(fid);
                None
            }
            FidEffect::Ends(fid) => Some(fid),
        }
    }

    /// Abandons a call. Returns the tag of the Tflush to send, or `None` if the call has ended or was cancelled before:
    /// one Tflush is enough (flush(5)). A Tclunk is never flushed: its fid is unwanted either way.
    pub fn cancel(&mut self, tag: Tag) -> Option<Tag> {
        let slot = self.slots.get_mut(usize::from(tag.0))?;
        let TagSlot::Call(call) = *slot else {
            return None;
        };
        if call.reply == RCLUNK {
            return None;
        }
        *slot = TagSlot::Orphan { call, flushing: true, answered: false };
        self.orphans += 1;
        Some(self.tag(TagSlot::Flush(tag)))
    }

    /// Reserves a tag for a Tflush of [`NOTAG`], which belongs to no call. Any server answers it at once (flush(5)), so
    /// the reply proves that the server is alive. Returns `None` if a ping is in flight or the version is not agreed.
    pub fn ping(&mut self) -> Option<Tag> {
        let may = matches!(self.version, VersionProgress::Agreed { .. }) && !self.pinging;
        self.pinging |= may;
        may.then(|| self.tag(TagSlot::Ping))
    }

    /// Whether an abandoned call may still use this fid. Its clunk must wait until that call has ended.
    pub fn is_haunted(&self, fid: Fid) -> bool {
        let haunts = |slot: &TagSlot| matches!(slot, TagSlot::Orphan { call, .. } if call.fid == Some(fid));
        self.orphans > 0 && self.slots.iter().any(haunts)
    }

    /// Interprets a whole frame. The caller must close the connection on an error.
    pub fn receive<'f>(&mut self, frame: &'f [u8]) -> Result<Event<'f>, WireError> {
        let (tag, ty) = (frame::tag_of(frame), frame::type_of(frame));
        if let VersionProgress::Asked { .. } = self.version {
            return self.receive_version(tag, ty, frame);
        }
        let slot = self.slots.get(usize::from(tag.0)).copied().unwrap_or(TagSlot::Free);
        match slot {
            TagSlot::Call(call) => {
                let (reply, made) = self.answer(call, frame)?;
                self.release(tag);
                self.calls -= 1;
                Ok(Event::Answer { tag, reply, made, ended: true })
            }
            TagSlot::Orphan { call, flushing, answered: false } => {
                let (reply, made) = self.answer(call, frame)?;
                if flushing {
                    self.slots[usize::from(tag.0)] = TagSlot::Orphan { call, flushing, answered: true };
                } else {
                    self.bury(tag);
                }
                Ok(Event::Answer { tag, reply, made, ended: !flushing })
            }
            TagSlot::Flush(old) => {
                let (_, reply) = Rmsg::decode(frame, self.dialect())?;
                self.release(tag);
                match reply {
                    Rmsg::Flush {} => self.flushed(old, true),
                    Rmsg::Error { .. } | Rmsg::Lerror { .. } => self.flushed(old, false),
                    _ => Err(WireError::Reply(ty)),
                }
            }
            TagSlot::Ping => {
                self.release(tag);
                self.pinging = false;
                // A server that does not know this request may refuse it. It is alive nevertheless.
                match Rmsg::decode(frame, self.dialect())?.1 {
                    Rmsg::Flush {} | Rmsg::Error { .. } | Rmsg::Lerror { .. } => Ok(Event::Nothing),
                    _ => Err(WireError::Reply(ty)),
                }
            }
            TagSlot::Free | TagSlot::Orphan { .. } => Err(WireError::Reply(ty)),
        }
    }

    fn receive_version<'f>(&mut self, tag: Tag, ty: u8, frame: &'f [u8]) -> Result<Event<'f>, WireError> {
        let VersionProgress::Asked { msize: asked, offered, at, named, before } = &mut self.version else {
            return Err(WireError::Reply(ty));
        };
        if tag != NOTAG {
            return Err(WireError::Reply(ty));
        }
        let answer = match ty {
            RVERSION => match Rmsg::decode(frame, Dialect::P2000)?.1 {
                Rmsg::Version { msize, version } => {
                    let index = Dialect::parse(version).and_then(|d| offered.iter().position(|&o| o == d));
                    index.map(|index| (index, msize))
                }
                _ => None,
            },
            RERROR | RLERROR => None,
            _ => return Err(WireError::Reply(ty)),
        };
        let is_changed =
            before.take().is_some_and(|before| answer.is_none_or(|(index, _)| offered[index] != before));
        let next = match answer {
            _ if is_changed => Some(0),
            // The server chose a dialect that we prefer to the proposed one. It cannot have understood the Tversion.
            Some((index, _)) if index < *at => return Err(WireError::Reply(ty)),
            Some((_, msize)) if !(MSIZE_MIN..=*asked).contains(&msize) => return Err(WireError::Size(msize)),
            Some((index, msize)) => match better(offered, *at, index) {
                Some(next) => {
                    *named = Some(index);
                    Some(next)
                }
                None => {
                    let spoken = SpokenDialect { asked: offered[*at], answered: offered[index] };
                    self.version = VersionProgress::Agreed { msize, spoken };
                    return Ok(Event::Agreed);
                }
            },
            None => named.take().or_else(|| after_refusal(offered, *at)),
        };
        let Some(next) = next else { return Ok(Event::NoDialect) };
        *at = next;
        Ok(Event::Ask(Tmsg::Version { msize: *asked, version: offered[next].name().as_bytes() }))
    }

    /// Decodes the reply to a call and updates its fids.
    fn answer<'f>(&mut self, call: Intent, frame: &'f [u8]) -> Result<(Rmsg<'f>, Option<Fid>), WireError> {
        let ty = frame::type_of(frame);
        if ty != call.reply && ty != RERROR && ty != RLERROR {
            return Err(WireError::Reply(ty));
        }
        let (_, reply) = Rmsg::decode(frame, self.dialect())?;
        let made = match (call.effect, &reply) {
            (FidEffect::None, _) => None,
            (FidEffect::Ends(fid), _) => {
                self.fids.give(fid);
                None
            }
            (FidEffect::Makes { names, .. }, Rmsg::Walk { qids }) if qids.len() > names => {
                return Err(WireError::Count(ty));
            }
            (FidEffect::Makes { fid, names }, Rmsg::Walk { qids }) if qids.len() < names => {
                self.fids.give(fid);
                None
            }
            (FidEffect::Makes { fid, .. }, Rmsg::Error { .. } | Rmsg::Lerror { .. }) => {
                self.fids.give(fid);
                None
            }
            (FidEffect::Makes { fid, .. }, _) => Some(fid),
        };
        Ok((reply, made))
    }

    /// Handles the reply to the Tflush of `old`. `done` is false if the server refused it.
    fn flushed<'f>(&mut self, old: Tag, done: bool) -> Result<Event<'f>, WireError> {
        let slot = &mut self.slots[usize::from(old.0)];
        let TagSlot::Orphan { call, answered, .. } = *slot else {
            return Err(WireError::Reply(RFLUSH));
        };
        if !done && !answered {
            *slot = TagSlot::Orphan { call, flushing: false, answered };
            return Ok(Event::Nothing);
        }
        self.bury(old);
        let clunk = match call.effect {
            FidEffect::Makes { fid, .. } if !answered => {
                self.fids.give(fid);
                None
            }
            FidEffect::Ends(fid) if !answered => Some(fid),
            _ => None,
        };
        Ok(Event::Flushed { tag: old, answered, clunk })
    }

    fn bury(&mut self, tag: Tag) {
        self.release(tag);
        self.calls -= 1;
        self.orphans -= 1;
    }

    /// Stores the slot at a free tag. A free tag always exists: `limit` calls, a Tflush for each and one ping stay
    /// below NOTAG.
    fn tag(&mut self, slot: TagSlot) -> Tag {
        if let Some(tag) = self.free.pop() {
            self.slots[usize::from(tag)] = slot;
            return Tag(tag);
        }
        let tag = Tag(u16::try_from(self.slots.len()).expect("twice CALLS_MAX tags and one fit"));
        assert!(tag != NOTAG, "twice CALLS_MAX tags and one stay below NOTAG");
        self.slots.push(slot);
        tag
    }

    fn release(&mut self, tag: Tag) {
        self.slots[usize::from(tag.0)] = TagSlot::Free;
        self.free.push(tag.0);
    }
}

/// Returns the fid that a message uses.
pub(super) fn used(message: &Tmsg<'_>) -> Option<Fid> {
    match *message {
        Tmsg::Version { .. } | Tmsg::Flush { .. } | Tmsg::Auth { .. } => None,
        Tmsg::Attach { afid, .. } => Some(afid),
        Tmsg::Symlink { dfid, .. }
        | Tmsg::Mknod { dfid, .. }
        | Tmsg::Link { dfid, .. }
        | Tmsg::Mkdir { dfid, .. } => Some(dfid),
        Tmsg::Renameat { olddirfid, .. } | Tmsg::Renameat2 { olddirfid, .. } => Some(olddirfid),
        Tmsg::Unlinkat { dirfid, .. } => Some(dirfid),
        Tmsg::Statfs { fid }
        | Tmsg::Lopen { fid, .. }
        | Tmsg::Lcreate { fid, .. }
        | Tmsg::Rename { fid, .. }
        | Tmsg::Readlink { fid }
        | Tmsg::Getattr { fid, .. }
        | Tmsg::Setattr { fid, .. }
        | Tmsg::Xattrwalk { fid, .. }
        | Tmsg::Xattrcreate { fid, .. }
        | Tmsg::Readdir { fid, .. }
        | Tmsg::Fsync { fid, .. }
        | Tmsg::Lock { fid, .. }
        | Tmsg::Getlock { fid, .. }
        | Tmsg::Walk { fid, .. }
        | Tmsg::Open { fid, .. }
        | Tmsg::Create { fid, .. }
        | Tmsg::Read { fid, .. }
        | Tmsg::Write { fid, .. }
        | Tmsg::Clunk { fid }
        | Tmsg::Remove { fid }
        | Tmsg::Stat { fid }
        | Tmsg::Wstat { fid, .. }
        | Tmsg::Stream { fid, .. }
        | Tmsg::Sclose { fid, .. } => Some(fid),
    }
}

fn effect(message: &Tmsg<'_>) -> FidEffect {
    match *message {
        Tmsg::Auth { afid, .. } => FidEffect::Makes { fid: afid, names: 0 },
        Tmsg::Attach { fid, .. } => FidEffect::Makes { fid, names: 0 },
        Tmsg::Walk { fid, newfid, names } if newfid != fid => {
            FidEffect::Makes { fid: newfid, names: names.len() }
        }
        Tmsg::Xattrwalk { fid, newfid, .. } if newfid != fid => FidEffect::Makes { fid: newfid, names: 0 },
        Tmsg::Clunk { fid } | Tmsg::Remove { fid } => FidEffect::Ends(fid),
        _ => FidEffect::None,
    }
}

/// Fid numbers. The one that was freed last is reused first, so that the numbers stay small.
#[derive(Debug, Default)]
struct FidNumbers {
    free: Vec<u32>,
    next: u32,
    taken: u32,
}

impl FidNumbers {
    fn take(&mut self) -> Option<Fid> {
        if self.taken == FIDS_MAX {
            return None;
        }
        self.taken += 1;
        let number = self.free.pop().unwrap_or_else(|| {
            self.next += 1;
            self.next - 1
        });
        Some(Fid(number))
    }

    fn give(&mut self, fid: Fid) {
        self.taken -= 1;
        self.free.push(fid.0);
    }
}

#[cfg(test)]
mod tests;
