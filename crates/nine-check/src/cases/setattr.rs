//! Tsetattr of 9P2000.L: each bit changes its attribute, and no other.

use nine_proto::msg::Tmsg;
use nine_proto::{Attr, OpenFlags, Time};

use super::attr::{TEXT, file};
use super::{errors, setattr};
use crate::case::{CaseResult, cases, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};

cases! { "setattr":
    nothing_valid_changes_nothing, L, Dir,
        "9P2000.L Tsetattr: valid says which fields count";
    mode, L, Dir,
        "9P2000.L Tsetattr: P9_SETATTR_MODE sets the permissions, and nothing else";
    size_shrinks_and_grows, L, Dir,
        "9P2000.L Tsetattr: P9_SETATTR_SIZE is truncate(2)";
    size_by_an_open_fid, L, Dir,
        "9P2000.L Tsetattr: P9_SETATTR_SIZE is truncate(2)";
    size_of_a_directory_is_refused, L, Dir,
        "truncate(2): EISDIR, the named file is a directory";
    times_to_a_value, L, Dir,
        "9P2000.L Tsetattr: with ATIME_SET and MTIME_SET the times are those of the message";
    nanoseconds, L, Dir,
        "9P2000.L Tsetattr: times have seconds and nanoseconds";
    times_to_now, L, Dir,
        "9P2000.L Tsetattr: without _SET the times are the server's current time";
    one_time_leaves_the_other, L, Dir,
        "9P2000.L Tsetattr: valid says which fields count";
    the_owner_to_what_it_is, L, Dir,
        "9P2000.L Tsetattr: P9_SETATTR_UID and GID are chown(2)";
    a_directory_too, L, Dir,
        "9P2000.L Tsetattr: fid is that of any file";
}

async fn nothing_valid_changes_nothing(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    changes(&mut c, setattr(A, 0, |_| {}), |_| {}).await
}

async fn mode(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for bits in [0o600, 0o751, 0o644] {
        let asked = setattr(A, MODE, |set| set.mode = bits);
        changes(&mut c, asked, |attr| attr.mode = attr.mode & !0o7777 | bits).await?;
    }
    Ok(())
}

async fn size_shrinks_and_grows(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.ok(setattr(A, SIZE, |set| set.size = 4)).await?;
    hold(c.content_of(DIR, b"f").await? == TEXT[..4], || "the content is not what was kept".into())?;
    c.ok(setattr(A, SIZE, |set| set.size = 8)).await?;
    hold(c.content_of(DIR, b"f").await? == b"some\0\0\0\0", || "it has not grown by zeros".into())
}

async fn size_by_an_open_fid(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.open(A, OpenFlags::RDWR).await?;
    c.ok(setattr(A, SIZE, |set| set.size = 4)).await?;
    hold(c.content(A).await? == TEXT[..4], || "the open fid reads something else".into())
}

async fn size_of_a_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.refused(setattr(DIR, SIZE, |set| set.size = 0), "it is a directory").await.map(drop)
}

async fn times_to_a_value(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let (atime, mtime) = (time(1_000_000_000), time(1_100_000_000));
    let asked =
        setattr(A, ATIME | ATIME_SET | MTIME | MTIME_SET, |set| (set.atime, set.mtime) = (atime, mtime));
    changes(&mut c, asked, |attr| (attr.atime, attr.mtime) = (atime, mtime)).await
}

async fn nanoseconds(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let fine = Time { sec: 1_000_000_000, nsec: 123_456_789 };
    c.ok(setattr(A, MTIME | MTIME_SET, |set| set.mtime = fine)).await?;
    let told = c.attr(A).await?.mtime;
    if told == time(fine.sec) {
        return skip("the server's file system keeps whole seconds");
    }
    // File systems have different time resolutions; none rounds up.
    hold(told.sec == fine.sec && told.nsec <= fine.nsec, || format!("{fine:?} was set, {told:?} is told"))
}

async fn times_to_now(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let old = time(1_000_000_000);
    c.ok(setattr(A, ATIME | ATIME_SET | MTIME | MTIME_SET, |set| (set.atime, set.mtime) = (old, old)))
        .await?;
    c.ok(setattr(A, ATIME | MTIME, |_| {})).await?;
    let attr = c.attr(A).await?;
    hold(attr.mtime.sec > 1_500_000_000 && attr.atime.sec > 1_500_000_000, || {
        format!("now is {:?} and {:?}", attr.atime, attr.mtime)
    })
}

async fn one_time_leaves_the_other(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let (old, new) = (time(1_000_000_000), time(1_200_000_000));
    c.ok(setattr(A, ATIME | ATIME_SET | MTIME | MTIME_SET, |set| (set.atime, set.mtime) = (old, old)))
        .await?;
    let asked = setattr(A, MTIME | MTIME_SET, |set| set.mtime = new);
    changes(&mut c, asked, |attr| attr.mtime = new).await?;
    let asked = setattr(A, ATIME | ATIME_SET, |set| set.atime = new);
    changes(&mut c, asked, |attr| attr.atime = new).await
}

async fn the_owner_to_what_it_is(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let Attr { uid, gid, .. } = c.attr(A).await?;
    let got = c.call(setattr(A, UID | GID, |set| (set.uid, set.gid) = (uid, gid))).await?;
    if errors::errno(&got) == EPERM {
        return skip("the server changes no owners");
    }
    let attr = c.attr(A).await?;
    hold(!got.is_error() && (attr.uid, attr.gid) == (uid, gid), || format!("{} and {} were set", uid, gid))
}

async fn a_directory_too(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    let mtime = time(1_000_000_000);
    c.ok(setattr(B, MODE | MTIME | MTIME_SET, |set| (set.mode, set.mtime) = (0o711, mtime))).await?;
    let attr = c.attr(B).await?;
    hold(attr.mode & 0o7777 == 0o711 && attr.mtime == mtime, || {
        format!("mode {:o}, time {:?}", attr.mode, attr.mtime)
    })
}

/// Checks that a Tsetattr of A makes the changes of `expected` and no others. The change time of attributes is
/// ignored.
async fn changes(c: &mut CheckedConnection, asked: Tmsg<'_>, expected: impl FnOnce(&mut Attr)) -> CaseResult {
    let mut before = c.attr(A).await?;
    c.ok(asked).await?;
    let after = c.attr(A).await?;
    expected(&mut before);
    let known = |attr: &Attr| {
        (attr.qid.path, attr.mode, attr.uid, attr.gid, attr.nlink, attr.size, attr.atime, attr.mtime)
    };
    hold(known(&before) == known(&after), || {
        format!("expected {:?}, got {:?}", known(&before), known(&after))
    })
}

fn time(sec: i64) -> Time {
    Time { sec, nsec: 0 }
}

const MODE: u32 = 1;
const UID: u32 = 2;
const GID: u32 = 4;
const SIZE: u32 = 8;
const ATIME: u32 = 0x10;
const MTIME: u32 = 0x20;
const ATIME_SET: u32 = 0x80;
const MTIME_SET: u32 = 0x100;
const EPERM: u32 = 1;
