//! Passes a request on: builds the upstream's message with the same meaning, if its dialect has one.

use bytes::Bytes;
use nine_io::client::{Answer, Client};
use nine_io::server::Request;
use nine_proto::msg::{Data, OnlyUStr, OptionalU32, Tmsg};
use nine_proto::{Fid, Make, Op, OpenFlags, RenameMode, mode};

use crate::cfid::UpstreamFid;

/// Returns the message with the same meaning. `None` if it takes several messages or the dialect has none.
pub(crate) fn message<'r>(
    request: &'r Request,
    live: &UpstreamFid,
    other: Option<Fid>,
    newfid: Fid,
) -> Option<(Tmsg<'r>, Option<Bytes>)> {
    let (fid, client) = (live.file.fid(), &live.root.client);
    let (is_l, is_u) = (client.dialect().is_l(), client.dialect().is_u());
    let most = client.iounit_max();
    Some(match request.op() {
        Op::Walk { names } => (Tmsg::Walk { fid, newfid, names }, None),
        Op::Read { offset, count } => (Tmsg::Read { fid, offset, count: count.min(most) }, None),
        Op::Write { offset, .. } => {
            // A write is shortened, never split. The client sends the rest.
            let mut data = request.data()?;
            data.truncate(most as usize);
            (Tmsg::Write { fid, offset, data: Data::Count(data.len() as u32) }, Some(data))
        }
        Op::Readdir { cookie } if is_l => {
            (Tmsg::Readdir { fid, offset: cookie, count: request.count().min(most) }, None)
        }
        Op::Getattr { mask } if is_l => (Tmsg::Getattr { fid, mask: mask.0 & ON_THE_WIRE }, None),
        Op::Getattr { .. } => (Tmsg::Stat { fid }, None),
        // The client's session handles ORCLOSE itself.
        Op::Open { flags } if is_l => (Tmsg::Lopen { fid, flags: flags.to_wire() }, None),
        Op::Open { flags } => (Tmsg::Open { fid, mode: flags.to_mode(is_u) & !ORCLOSE }, None),
        Op::Create { name, make: Make::File, flags, perm, gid } if is_l && !perm.inherit => {
            let excl = if may_exist(flags) { 0 } else { OpenFlags::EXCL.0 };
            let flags = flags.to_wire() | OpenFlags::CREAT.0 | excl;
            (Tmsg::Lcreate { fid, name, flags, mode: perm.on_the_wire(), gid }, None)
        }
        // In 9P2000 the server masks the permissions with those of the directory; in .u it does not.
        Op::Create { name, make: Make::File, flags, perm, .. }
            if !is_l && perm.inherit != is_u && !may_exist(flags) =>
        {
            let perm = mode::to_dm(perm.bits, perm.special, is_u);
            let (mode, extension) = (flags.to_mode(is_u) & !ORCLOSE, OnlyUStr(b""));
            (Tmsg::Create { fid, name, perm, mode, extension }, None)
        }
        Op::Make { name, make, perm, gid } if is_l => {
            let message = match make {
                Make::File => {
                    let mode = mode::S_IFREG | perm.bits;
                    Tmsg::Mknod { dfid: fid, name, mode, major: 0, minor: 0, gid }
                }
                Make::Dir => Tmsg::Mkdir { dfid: fid, name, mode: perm.bits, gid },
                Make::Symlink(target) => Tmsg::Symlink { dfid: fid, name, target, gid },
                Make::Link => Tmsg::Link { dfid: fid, fid: other?, name },
                Make::Node { ty, major, minor } => {
                    Tmsg::Mknod { dfid: fid, name, mode: ty | perm.bits, major, minor, gid }
                }
            };
            (message, None)
        }
        Op::Rename { name } if is_l => (Tmsg::Rename { fid, dfid: other?, name }, None),
        Op::RenameAt { old, new, how: RenameMode::Replace } if is_l => {
            (Tmsg::Renameat { olddirfid: fid, oldname: old, newdirfid: other?, newname: new }, None)
        }
        Op::Unlink { name, dir } if is_l => {
            (Tmsg::Unlinkat { dirfid: fid, name, flags: if dir { REMOVEDIR } else { 0 } }, None)
        }
        Op::Remove => (Tmsg::Remove { fid }, None),
        Op::Clunk => (Tmsg::Clunk { fid }, None),
        Op::Readlink if is_l => (Tmsg::Readlink { fid }, None),
        Op::Setattr { set } if is_l && set.name.is_none() && set.special.is_none() => {
            (live.file.tsetattr(&set), None)
        }
        Op::Fsync { datasync } if is_l => (Tmsg::Fsync { fid, datasync: OptionalU32(datasync.into()) }, None),
        Op::Lock(lock) if is_l => {
            let nine_proto::LockRequest { ty, flags, start, length, proc_id, client_id } = lock;
            (Tmsg::Lock { fid, ty: ty as u8, flags, start, length, proc_id, client_id }, None)
        }
        Op::Getlock(lock) if is_l => {
            let nine_proto::LockRequest { ty, start, length, proc_id, client_id, .. } = lock;
            (Tmsg::Getlock { fid, ty: ty as u8, start, length, proc_id, client_id }, None)
        }
        Op::XattrWalk { name } if is_l => (Tmsg::Xattrwalk { fid, newfid, name }, None),
        Op::XattrCreate { name, size, flags } if is_l => (Tmsg::Xattrcreate { fid, name, size, flags }, None),
        Op::Statfs if is_l => (Tmsg::Statfs { fid }, None),
        _ => return None,
    })
}

/// Whether the create may open an existing file: Tlcreate can ask for that, Tcreate only creates new files.
pub(crate) fn may_exist(flags: OpenFlags) -> bool {
    flags.has(OpenFlags::CREAT) && !flags.has(OpenFlags::EXCL)
}

/// Reserves the fid number for the fid that a message creates, if it creates one.
pub(crate) fn newfid(op: &Op<'_>, client: &Client) -> nine_io::client::Result<Fid> {
    match op {
        Op::Walk { .. } | Op::XattrWalk { .. } => client.new_fid(),
        _ => Ok(nine_proto::NOFID),
    }
}

/// Returns the data of an answer, if it has data.
pub(crate) fn data(answer: Answer) -> Option<Bytes> {
    match answer {
        Answer::Data(data) => Some(data),
        _ => None,
    }
}

/// `AT_REMOVEDIR`.
const REMOVEDIR: u32 = 0x200;
/// A bit of the mode byte (open(5)).
const ORCLOSE: u8 = 0x40;
const ON_THE_WIRE: u64 = nine_proto::GetMask::ALL.0;
