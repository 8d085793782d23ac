//! The client's side of a session: which tags are under way, which fid numbers are taken, and what a late success
//! leaves behind.
//!
//! In: messages about to be sent ([`ClientSession::call`]), calls given up ([`ClientSession::cancel`]) and frames
//! received ([`ClientSession::receive`]). Out: tags, and [`Event`]s that say whose answer a frame is and which fid is
//! to be clunked because nobody wants it any more. Sending and waiting are somebody else's.
//!
//! Always holds: a tag is free only after its answer, or after its Rflush if it was flushed (flush(5)), whichever
//! answer came before; a fid number is free only when the server cannot have it; the peer decides nothing here by
//! panicking us.

use alloc::vec::Vec;

use crate::dialect::Dialect;
use crate::frame::{self, IOHDRSZ, MSIZE_MAX, MSIZE_MIN};
use crate::ids::{Fid, NOTAG, Tag};
use crate::msg::{Rmsg, Tmsg};
use crate::wire::WireError;

/// The most calls a session can have under way: each may need a second tag for its Tflush, and NOTAG is reserved.
pub const CALLS_MAX: usize = 0x7fff;
/// The most fids a session hands out. At the limit [`ClientSession::fid`] answers `None`: too many open files.
pub const FIDS_MAX: u32 = 1 << 20;
/// Before the version is agreed nothing longer than this can be an honest answer.
const RVERSION_MAX: u32 = 8192;

const RLERROR: u8 = 7;
const RVERSION: u8 = 101;
const RERROR: u8 = 107;
const RFLUSH: u8 = 109;
const RCLUNK: u8 = 121;

/// See the module.
#[derive(Debug)]
pub struct ClientSession {
    version: Version,
    /// By tag. Grows to the largest number of tags that were ever under way.
    slots: Vec<Slot>,
    free: Vec<u16>,
    calls: usize,
    orphans: usize,
    limit: usize,
    fids: Fids,
    /// A ping is under way.
    pinging: bool,
}

/// What a frame means.
#[derive(Debug, PartialEq)]
pub enum Event<'f> {
    /// The server does not speak what it was asked: send this Tversion, with [`NOTAG`].
    Ask(Tmsg<'static>),
    /// The version is agreed: [`ClientSession::dialect`] and [`ClientSession::msize`] hold from now on.
    Agreed,
    /// The server speaks none of the dialects that were offered.
    NoDialect,
    /// The answer of a call.
    Answer {
        /// Which call.
        tag: Tag,
        /// What the server says.
        reply: Rmsg<'f>,
        /// The fid that this success made. If nobody takes the answer, it is to be clunked.
        made: Option<Fid>,
        /// Whether the tag is free now; if not, its Rflush is still to come.
        ended: bool,
    },
    /// A call that was flushed has ended, and its tag is free.
    Flushed {
        /// Which call.
        tag: Tag,
        /// Whether its answer came before. If not, it has not happened.
        answered: bool,
        /// A fid that the server still has because the call did not happen: to be clunked.
        clunk: Option<Fid>,
    },
    /// Nothing to do.
    Nothing,
}

#[derive(Debug)]
enum Version {
    /// No Tversion was sent yet.
    Silent,
    Asked {
        msize: u32,
        offered: Vec<Dialect>,
        at: usize,
    },
    Agreed {
        msize: u32,
        dialect: Dialect,
    },
}

#[derive(Clone, Copy, Debug)]
enum Slot {
    Free,
    Call(Intent),
    /// A call nobody waits for, until its Rflush; a server that refuses the flush ends it by answering.
    Orphan {
        call: Intent,
        flushing: bool,
        answered: bool,
    },
    /// The Tflush of this call.
    Flush(Tag),
    /// A Tflush of no call.
    Ping,
}

/// What a message is about to do: all that the session has to know of it, for messages that are encoded before there
/// is a tag for them.
#[derive(Clone, Copy, Debug)]
pub struct Intent {
    /// The type of its reply.
    reply: u8,
    /// The fid it uses.
    fid: Option<Fid>,
    effect: Effect,
}

impl From<&Tmsg<'_>> for Intent {
    fn from(message: &Tmsg<'_>) -> Self {
        Self { reply: message.number() + 1, fid: used(message), effect: effect(message) }
    }
}

/// What a call does to fids when it succeeds.
#[derive(Clone, Copy, Debug)]
enum Effect {
    None,
    /// It makes this fid, a walk only if all its names were walked.
    Makes {
        fid: Fid,
        names: usize,
    },
    /// Any answer, also an error, means that the server has forgotten the fid.
    Ends(Fid),
}

impl ClientSession {
    /// A session with at most `limit` calls under way, orphans included, but not more than [`CALLS_MAX`].
    pub fn new(limit: usize) -> Self {
        Self {
            version: Version::Silent,
            slots: Vec::new(),
            free: Vec::new(),
            calls: 0,
            orphans: 0,
            limit: limit.clamp(1, CALLS_MAX),
            fids: Fids::default(),
            pinging: false,
        }
    }

    /// Begins, or begins anew: forgets every tag and fid, as the server will. The message goes out with [`NOTAG`].
    /// `offered` is sorted from best to least and not empty; `msize` is at least [`MSIZE_MIN`].
    pub fn version(&mut self, msize: u32, offered: &[Dialect]) -> Tmsg<'static> {
        assert!(!offered.is_empty(), "a client offers a dialect");
        let msize = msize.clamp(MSIZE_MIN, MSIZE_MAX);
        *self = Self::new(self.limit);
        self.version = Version::Asked { msize, offered: offered.to_vec(), at: 0 };
        Tmsg::Version { msize, version: offered[0].name().as_bytes() }
    }

    /// What is spoken; before the agreement, plain 9P2000.
    pub fn dialect(&self) -> Dialect {
        match self.version {
            Version::Agreed { dialect, .. } => dialect,
            _ => Dialect::P2000,
        }
    }

    /// The longest message, bytes, of either direction. Frames are split by it.
    pub fn msize(&self) -> u32 {
        match self.version {
            Version::Agreed { msize, .. } => msize,
            _ => RVERSION_MAX,
        }
    }

    /// The most data in one read or write, bytes.
    pub fn iounit_max(&self) -> u32 {
        self.msize() - IOHDRSZ
    }

    /// Calls under way, orphans included.
    pub fn calls(&self) -> usize {
        self.calls
    }

    /// The most calls under way.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Calls that were given up and have not ended.
    pub fn orphans(&self) -> usize {
        self.orphans
    }

    /// Fids that the server has, or may have.
    pub fn fids(&self) -> u32 {
        self.fids.taken
    }

    /// A fid number that the server does not know, or `None` at [`FIDS_MAX`].
    pub fn fid(&mut self) -> Option<Fid> {
        self.fids.take()
    }

    /// A tag for this message, or `None` while [`ClientSession::limit`] calls are under way. The version is agreed.
    /// A fid that the message makes comes from [`ClientSession::fid`]; from now on the session looks after it:
    /// if the call fails the number is free again.
    pub fn call(&mut self, message: impl Into<Intent>) -> Option<Tag> {
        assert!(matches!(self.version, Version::Agreed { .. }), "calls come after the version");
        if self.calls == self.limit {
            return None;
        }
        self.calls += 1;
        Some(self.tag(Slot::Call(message.into())))
    }

    /// Undoes what the preparation of a message did that is not sent after all. The fid that comes out is one that
    /// the message would have ended: to be clunked.
    pub fn unsent(&mut self, message: impl Into<Intent>) -> Option<Fid> {
        match message.into().effect {
            Effect::None => None,
            Effect::Makes { fid, .. } => {
                self.fids.give(fid);
                None
            }
            Effect::Ends(fid) => Some(fid),
        }
    }

    /// Nobody wants the answer any more. The tag of the Tflush to send, or `None` if the call has ended or was
    /// cancelled before: one Tflush is enough (flush(5)). A Tclunk is never taken back: its fid is unwanted either way.
    pub fn cancel(&mut self, tag: Tag) -> Option<Tag> {
        let slot = self.slots.get_mut(usize::from(tag.0))?;
        let Slot::Call(call) = *slot else {
            return None;
        };
        if call.reply == RCLUNK {
            return None;
        }
        *slot = Slot::Orphan { call, flushing: true, answered: false };
        self.orphans += 1;
        Some(self.tag(Slot::Flush(tag)))
    }

    /// The tag of a Tflush for [`NOTAG`], which is no call's: any server answers it at once (flush(5)), which shows
    /// that it lives. `None` while one is under way, or before the version is agreed.
    pub fn ping(&mut self) -> Option<Tag> {
        let may = matches!(self.version, Version::Agreed { .. }) && !self.pinging;
        self.pinging |= may;
        may.then(|| self.tag(Slot::Ping))
    }

    /// Whether a call that was given up may still touch this fid: its clunk waits until that one has ended.
    pub fn is_haunted(&self, fid: Fid) -> bool {
        let haunts = |slot: &Slot| matches!(slot, Slot::Orphan { call, .. } if call.fid == Some(fid));
        self.orphans > 0 && self.slots.iter().any(haunts)
    }

    /// What a whole frame means. An error ends the connection.
    pub fn receive<'f>(&mut self, frame: &'f [u8]) -> Result<Event<'f>, WireError> {
        let (tag, ty) = (frame::tag_of(frame), frame::type_of(frame));
        if let Version::Asked { .. } = self.version {
            return self.receive_version(tag, ty, frame);
        }
        let slot = self.slots.get(usize::from(tag.0)).copied().unwrap_or(Slot::Free);
        match slot {
            Slot::Call(call) => {
                let (reply, made) = self.answer(call, frame)?;
                self.release(tag);
                self.calls -= 1;
                Ok(Event::Answer { tag, reply, made, ended: true })
            }
            Slot::Orphan { call, flushing, answered: false } => {
                let (reply, made) = self.answer(call, frame)?;
                if flushing {
                    self.slots[usize::from(tag.0)] = Slot::Orphan { call, flushing, answered: true };
                } else {
                    self.bury(tag);
                }
                Ok(Event::Answer { tag, reply, made, ended: !flushing })
            }
            Slot::Flush(old) => {
                let (_, reply) = Rmsg::decode(frame, self.dialect())?;
                self.release(tag);
                match reply {
                    Rmsg::Flush {} => self.flushed(old, true),
                    Rmsg::Error { .. } | Rmsg::Lerror { .. } => self.flushed(old, false),
                    _ => Err(WireError::Reply(ty)),
                }
            }
            Slot::Ping => {
                self.release(tag);
                self.pinging = false;
                // A server that knows no such request may also refuse: it has spoken.
                match Rmsg::decode(frame, self.dialect())?.1 {
                    Rmsg::Flush {} | Rmsg::Error { .. } | Rmsg::Lerror { .. } => Ok(Event::Nothing),
                    _ => Err(WireError::Reply(ty)),
                }
            }
            Slot::Free | Slot::Orphan { .. } => Err(WireError::Reply(ty)),
        }
    }

    fn receive_version<'f>(&mut self, tag: Tag, ty: u8, frame: &'f [u8]) -> Result<Event<'f>, WireError> {
        let Version::Asked { msize: asked, offered, at } = &mut self.version else {
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
        match answer {
            // It chose one that we like better than what we asked for: it cannot have understood us.
            Some((index, _)) if index < *at => Err(WireError::Reply(ty)),
            Some((_, msize)) if !(MSIZE_MIN..=*asked).contains(&msize) => Err(WireError::Size(msize)),
            // What it falls back to is no worse than what we would ask next.
            Some((index, msize)) if index <= *at + 1 => {
                self.version = Version::Agreed { msize, dialect: offered[index] };
                Ok(Event::Agreed)
            }
            _ => {
                *at += 1;
                let Some(dialect) = offered.get(*at) else {
                    return Ok(Event::NoDialect);
                };
                Ok(Event::Ask(Tmsg::Version { msize: *asked, version: dialect.name().as_bytes() }))
            }
        }
    }

    /// Decodes the answer of a call and settles its fids.
    fn answer<'f>(&mut self, call: Intent, frame: &'f [u8]) -> Result<(Rmsg<'f>, Option<Fid>), WireError> {
        let ty = frame::type_of(frame);
        if ty != call.reply && ty != RERROR && ty != RLERROR {
            return Err(WireError::Reply(ty));
        }
        let (_, reply) = Rmsg::decode(frame, self.dialect())?;
        let made = match (call.effect, &reply) {
            (Effect::None, _) => None,
            (Effect::Ends(fid), _) => {
                self.fids.give(fid);
                None
            }
            (Effect::Makes { names, .. }, Rmsg::Walk { qids }) if qids.len() > names => {
                return Err(WireError::Count(ty));
            }
            (Effect::Makes { fid, names }, Rmsg::Walk { qids }) if qids.len() < names => {
                self.fids.give(fid);
                None
            }
            (Effect::Makes { fid, .. }, Rmsg::Error { .. } | Rmsg::Lerror { .. }) => {
                self.fids.give(fid);
                None
            }
            (Effect::Makes { fid, .. }, _) => Some(fid),
        };
        Ok((reply, made))
    }

    /// The Tflush of `old` was answered: by Rflush, or refused.
    fn flushed<'f>(&mut self, old: Tag, done: bool) -> Result<Event<'f>, WireError> {
        let slot = &mut self.slots[usize::from(old.0)];
        let Slot::Orphan { call, answered, .. } = *slot else {
            return Err(WireError::Reply(RFLUSH));
        };
        if !done && !answered {
            *slot = Slot::Orphan { call, flushing: false, answered };
            return Ok(Event::Nothing);
        }
        self.bury(old);
        let clunk = match call.effect {
            Effect::Makes { fid, .. } if !answered => {
                self.fids.give(fid);
                None
            }
            Effect::Ends(fid) if !answered => Some(fid),
            _ => None,
        };
        Ok(Event::Flushed { tag: old, answered, clunk })
    }

    fn bury(&mut self, tag: Tag) {
        self.release(tag);
        self.calls -= 1;
        self.orphans -= 1;
    }

    /// Puts the slot into a free place. There always is one: `limit` calls with a Tflush each, and a ping, stay below
    /// NOTAG.
    fn tag(&mut self, slot: Slot) -> Tag {
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
        self.slots[usize::from(tag.0)] = Slot::Free;
        self.free.push(tag.0);
    }
}

/// The fid a message works on.
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

fn effect(message: &Tmsg<'_>) -> Effect {
    match *message {
        Tmsg::Auth { afid, .. } => Effect::Makes { fid: afid, names: 0 },
        Tmsg::Attach { fid, .. } => Effect::Makes { fid, names: 0 },
        Tmsg::Walk { fid, newfid, names } if newfid != fid => {
            Effect::Makes { fid: newfid, names: names.len() }
        }
        Tmsg::Xattrwalk { fid, newfid, .. } if newfid != fid => Effect::Makes { fid: newfid, names: 0 },
        Tmsg::Clunk { fid } | Tmsg::Remove { fid } => Effect::Ends(fid),
        _ => Effect::None,
    }
}

/// Fid numbers: the free ones are used again, the last first, so that the numbers stay small.
#[derive(Debug, Default)]
struct Fids {
    free: Vec<u32>,
    next: u32,
    taken: u32,
}

impl Fids {
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
