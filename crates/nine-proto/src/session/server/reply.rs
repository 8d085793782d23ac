//! Encodes replies in the session's dialect, and sends the Rflushes that waited for them.

use alloc::vec::Vec;

use super::number::*;
use super::{Data, Out, ServerCall, Session};
use crate::dialect::{Base, Dialect};
use crate::error::{Errno, Error};
use crate::ids::Tag;
use crate::msg::{self, OnlyU, Qids, Rmsg};
use crate::op::Reply;
use crate::wire::Writer;

impl<N: Clone, F: AsRef<[u8]>> Session<N, F> {
    pub(super) fn encode<P: Data>(
        &self,
        tag: Tag,
        call: &ServerCall<N, F>,
        reply: Reply<N, P>,
        dialect: Dialect,
        out: &mut impl Out<P>,
    ) {
        let before = out.bytes().len();
        let buf = out.bytes();
        let mut put = |message: Rmsg<'_>| message.encode(tag, dialect, buf);
        match (call.number, reply) {
            (READ, Reply::Read(data)) => {
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
            (STREAM, Reply::Stream(offer)) => put(Rmsg::Stream { data: msg::Data::Bytes(&offer) }),
            (SCLOSE, Reply::Sclosed { count, errno, ename }) => {
                put(Rmsg::Sclose { count, errno, ename: cut(&ename) })
            }
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
            (GETATTR, Reply::Attr(attr)) => put(Rmsg::Getattr { attr: *attr }),
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
            (RENAMEAT2, Reply::Done) => put(Rmsg::Renameat2 {}),
            (UNLINKAT, Reply::Done) => put(Rmsg::Unlinkat {}),
            (CLUNK, Reply::Done) => put(Rmsg::Clunk {}),
            (REMOVE, Reply::Done) => put(Rmsg::Remove {}),
            (WSTAT, Reply::Done) => put(Rmsg::Wstat {}),
            (number, _) => unreachable!("a wrong answer to a message of type {number} has become an error"),
        }
        if out.bytes().len() - before > self.msize as usize {
            out.bytes().truncate(before);
            self.refuse(tag, &Error::new(Errno::EOVERFLOW, "the reply does not fit into msize"), out);
        }
    }

    pub(super) fn answer_flushes<P>(
        &mut self,
        mut flushes: Vec<Tag>,
        dialect: Dialect,
        out: &mut impl Out<P>,
    ) {
        while !flushes.is_empty() {
            for tag in core::mem::take(&mut flushes) {
                if let Some(call) = self.calls.remove(&tag) {
                    Rmsg::Flush {}.encode(tag, dialect, out.bytes());
                    flushes.extend(call.flushes);
                }
            }
        }
    }

    pub(super) fn refuse<P>(&self, tag: Tag, error: &Error, out: &mut impl Out<P>) {
        let dialect = self.dialect.unwrap_or(Dialect::P2000);
        let message = match dialect.base {
            Base::L => Rmsg::Lerror { ecode: error.errno.0 },
            _ => Rmsg::Error { ename: cut(error.ename()), errno: OnlyU(error.errno.0) },
        };
        message.encode(tag, dialect, out.bytes());
    }
}

impl<N, P> Reply<N, P> {
    /// Converts the node of the reply with `f`.
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
            Self::Stream(offer) => Reply::Stream(offer),
            Self::Sclosed { count, errno, ename } => Reply::Sclosed { count, errno, ename },
            Self::Lock(status) => Reply::Lock(status),
            Self::Getlock { ty, start, length, proc_id, client_id } => {
                Reply::Getlock { ty, start, length, proc_id, client_id }
            }
            Self::Xattr { size, node } => Reply::Xattr { size, node: f(node) },
            Self::Statfs(statfs) => Reply::Statfs(statfs),
        }
    }

    /// Returns the node that this success created, if any.
    pub(super) fn into_node(self) -> Option<N> {
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

/// Returns the reason why the reply is invalid for the request, or `None` if it is valid.
pub(super) fn wrong<N: Clone, F: AsRef<[u8]>, P: Data>(
    call: &ServerCall<N, F>,
    reply: &Reply<N, P>,
) -> Option<&'static str> {
    let count = call.count as usize;
    let (is_wrong, why) = match (call.number, reply) {
        (READ, Reply::Read(data)) => (data.len() > count, "more bytes than were asked for"),
        (READ | READDIR, Reply::Dir(dir)) => (dir.bytes().len() > count, "more bytes than were asked for"),
        (WRITE, Reply::Wrote(n)) => (*n as usize > count, "more bytes written than were given"),
        (WALK, Reply::Walk { qids, .. }) if qids.len() > count => (true, "more qids than names"),
        (WALK, Reply::Walk { qids, node }) => {
            ((qids.len() == count) != node.is_some(), "a node without all qids, or all qids without a node")
        }
        (READLINK, Reply::Target(target)) => (target.len() > STRING_MAX, "a target above 65,535 bytes"),
        (GETLOCK, Reply::Getlock { client_id, .. }) => {
            (client_id.len() > STRING_MAX, "a client id above 65,535 bytes")
        }
        (STAT, Reply::Attr(attr)) => {
            let texts = attr.texts.as_deref();
            let bytes = texts.map_or(0, |texts| texts.len());
            (bytes > STRING_MAX - STAT_FIXED, "a stat record above 65,535 bytes")
        }
        (STREAM, Reply::Stream(_))
        | (SCLOSE, Reply::Sclosed { .. })
        | (AUTH, Reply::Auth { .. })
        | (ATTACH, Reply::Attach { .. })
        | (OPEN | CREATE | LOPEN | LCREATE, Reply::Open { .. })
        | (SYMLINK | MKNOD | MKDIR | LINK, Reply::Made(_))
        | (GETATTR, Reply::Attr(_))
        | (STATFS, Reply::Statfs(_))
        | (LOCK, Reply::Lock(_))
        | (XATTRWALK, Reply::Xattr { .. })
        | (XATTRCREATE, Reply::Moved(_))
        | (
            RENAME | SETATTR | FSYNC | LINK | RENAMEAT | RENAMEAT2 | UNLINKAT | CLUNK | REMOVE | WSTAT,
            Reply::Done,
        ) => (false, ""),
        _ => (true, "a reply of another kind"),
    };
    is_wrong.then_some(why)
}

/// Maximum length of a string and of a stat record, in bytes.
const STRING_MAX: usize = u16::MAX as usize;
/// An upper bound for the numbers and lengths of a stat record, in bytes.
const STAT_FIXED: usize = 128;

fn cut(ename: &str) -> &[u8] {
    &ename.as_bytes()[..ename.floor_char_boundary(ERRMAX)]
}

/// Maximum length of an error text on the wire (`ERRMAX` of error(2)), in bytes.
const ERRMAX: usize = 128;
