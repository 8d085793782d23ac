//! An answer independent of its frame: typed, owned, with file data copied at most once.

use bytes::Bytes;
use nine_proto::msg::{Data, Rmsg};
use nine_proto::{Attr, Dialect, Errno, Error, LockStatus, LockType, Names, Qid, Statfs};

use super::error::Result;

/// Longest error text, in bytes; the rest is cut.
const ENAME_MAX: usize = 512;
/// Above the numbers of errors (Linux's `MAX_ERRNO`). Others, like .u's `ERRUNDEF`, mean nothing: the text counts.
const ERRNOS: u32 = 4096;

/// See the module. The session has checked that it is the kind of reply that the request needs.
#[derive(Debug)]
pub enum Answer {
    /// Success without data.
    Done,
    /// The answer to attach, auth, and messages that create a file without opening it.
    Qid(Qid),
    /// The answer to open and create.
    Open {
        /// The qid of the open file.
        qid: Qid,
        /// Maximum number of bytes of one read or write; 0 = unspecified.
        iounit: u32,
    },
    /// The answer to walk: the qids of the names that were walked.
    Walk(Vec<Qid>),
    /// The answer to getattr and stat.
    Attr(Box<Attr>),
    /// The answer to read and readdir.
    Data(Bytes),
    /// The answer to readlink.
    Text(Box<[u8]>),
    /// The answer to write: bytes taken.
    Wrote(u32),
    /// The answer to xattrwalk: bytes to read.
    Size(u64),
    /// The answer to lock: its status.
    Lock(u8),
    /// The answer to getlock.
    Getlock(Getlock),
    /// The answer to statfs.
    Statfs(Statfs),
    /// The answer to sclose.
    Sclosed {
        /// Bytes sent, or bytes stored.
        count: u64,
        /// The reason for the end, if it was not the end of the data.
        error: Option<Error>,
    },
}

/// The conflicting lock (Rgetlock).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Getlock {
    /// `Unlock`: there is none.
    pub ty: LockType,
    /// Offset of the first byte.
    pub start: u64,
    /// Length in bytes; 0 = to the end of the file.
    pub length: u64,
    /// The owner's process.
    pub proc_id: u32,
    /// The owner's host.
    pub client_id: Box<[u8]>,
}

impl Answer {
    /// The bytes that an answer carries or reports as taken, if it is of that kind.
    pub(crate) fn count(reply: &Rmsg<'_>) -> Option<u32> {
        match reply {
            Rmsg::Read { data: Data::Bytes(b) } | Rmsg::Readdir { data: Data::Bytes(b) } => {
                Some(b.len() as u32)
            }
            Rmsg::Write { count } => Some(*count),
            _ => None,
        }
    }

    pub(crate) fn of(
        reply: Rmsg<'_>,
        owner: Option<&Bytes>,
        dialect: Dialect,
        names: &dyn Names,
    ) -> Result<Self> {
        Ok(match reply {
            Rmsg::Error { ename, errno } => {
                let text = String::from_utf8_lossy(&ename[..ename.len().min(ENAME_MAX)]);
                return Err(match errno.0 {
                    errno @ 1..ERRNOS => Error::new(Errno(errno), text),
                    _ => Error::from_text(&text),
                }
                .into());
            }
            // Linux's client takes 0 for a success.
            Rmsg::Lerror { ecode: ecode @ 1..ERRNOS } => return Err(Error::from(Errno(ecode)).into()),
            Rmsg::Lerror { .. } => return Err(Error::from(Errno::EIO).into()),
            Rmsg::Symlink { qid } | Rmsg::Mknod { qid } | Rmsg::Mkdir { qid } | Rmsg::Attach { qid } => {
                Self::Qid(qid)
            }
            Rmsg::Auth { aqid } => Self::Qid(aqid),
            Rmsg::Lopen { qid, iounit }
            | Rmsg::Lcreate { qid, iounit }
            | Rmsg::Open { qid, iounit }
            | Rmsg::Create { qid, iounit } => Self::Open { qid, iounit },
            Rmsg::Walk { qids } => Self::Walk(qids.iter().collect()),
            Rmsg::Getattr { attr } => Self::Attr(Box::new(attr)),
            Rmsg::Stat { stat } => Self::Attr(Box::new(stat.to_attr(dialect, names))),
            Rmsg::Read { data } | Rmsg::Readdir { data } | Rmsg::Stream { data } => {
                let data = data.bytes();
                Self::Data(owner.map_or_else(|| Bytes::copy_from_slice(data), |owner| owner.slice_ref(data)))
            }
            Rmsg::Readlink { target } => Self::Text(target.into()),
            Rmsg::Write { count } => Self::Wrote(count),
            Rmsg::Xattrwalk { size } => Self::Size(size),
            Rmsg::Lock { status } => Self::Lock(status),
            Rmsg::Getlock { ty, start, length, proc_id, client_id } => Self::Getlock(Getlock {
                ty: lock_type(ty)?,
                start,
                length,
                proc_id,
                client_id: client_id.into(),
            }),
            Rmsg::Statfs { statfs } => Self::Statfs(statfs),
            Rmsg::Sclose { count, errno, ename } => {
                let text = String::from_utf8_lossy(&ename[..ename.len().min(ENAME_MAX)]);
                let error = match errno {
                    0 if text.is_empty() => None,
                    errno @ 1..ERRNOS => Some(Error::new(Errno(errno), text)),
                    _ => Some(Error::from_text(&text)),
                };
                Self::Sclosed { count, error }
            }
            _ => Self::Done,
        })
    }
}

pub(crate) fn lock_status(status: u8) -> Result<LockStatus> {
    Ok(match status {
        0 => LockStatus::Success,
        1 => LockStatus::Blocked,
        2 => LockStatus::Error,
        3 => LockStatus::Grace,
        _ => {
            return Err(Error::new(
                Errno::EPROTO,
                "the server answers with a lock status that does not exist",
            )
            .into());
        }
    })
}

fn lock_type(ty: u8) -> Result<LockType> {
    Ok(match ty {
        0 => LockType::Read,
        1 => LockType::Write,
        2 => LockType::Unlock,
        _ => {
            return Err(
                Error::new(Errno::EPROTO, "the server answers with a lock type that does not exist").into()
            );
        }
    })
}

impl Answer {
    /// Never reached: the session has checked that the answer's type fits its request.
    pub(crate) fn never(&self) -> ! {
        unreachable!("the session lets no answer of another type through: {self:?}")
    }
}
