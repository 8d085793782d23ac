//! The cases, by group. A group is a table of claims, each with the sentence it proves, followed by a function for
//! each.

mod attach;
mod attr;
mod clunk;
mod create;
mod dir;
mod errors;
mod fids;
mod flush;
mod frames;
mod io;
mod lock;
mod malformed;
mod msize;
mod names;
mod open;
mod readdir;
mod remove;
mod setattr;
mod share;
mod stat;
mod tags;
mod unix;
mod version;
mod walk;
mod wstat;
mod xattr;

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, NOGID, NOUID, SetMask, Time};

use crate::case::Case;

/// Returns every case, in the order of the run.
pub fn all() -> impl Iterator<Item = &'static Case> {
    let groups = [
        version::CASES,
        attach::CASES,
        walk::CASES,
        open::CASES,
        create::CASES,
        io::CASES,
        dir::CASES,
        readdir::CASES,
        clunk::CASES,
        remove::CASES,
        stat::CASES,
        wstat::CASES,
        flush::CASES,
        tags::CASES,
        fids::CASES,
        msize::CASES,
        frames::CASES,
        malformed::CASES,
        errors::CASES,
        unix::CASES,
        attr::CASES,
        setattr::CASES,
        names::CASES,
        lock::CASES,
        xattr::CASES,
        share::CASES,
    ];
    groups.into_iter().flatten()
}

/// The fields of a Tsetattr.
pub(crate) struct SetattrFields {
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
}

/// Returns a Tsetattr. Fields that `fill` does not set have values that would be noticed if `valid` were ignored.
pub(crate) fn setattr(fid: Fid, valid: u32, fill: impl FnOnce(&mut SetattrFields)) -> Tmsg<'static> {
    let odd = Time { sec: 12_345, nsec: 0 };
    let mut set = SetattrFields { mode: 0o7, uid: NOUID, gid: NOGID, size: 77_777, atime: odd, mtime: odd };
    fill(&mut set);
    let SetattrFields { mode, uid, gid, size, atime, mtime } = set;
    Tmsg::Setattr { fid, valid: SetMask(valid), mode, uid, gid, size, atime, mtime }
}
