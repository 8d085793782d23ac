//! Tstat: the attributes of a file, in 9P2000 and .u.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{OpenFlags, mode, show};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR, MSIZE, ROOT};

cases! { "stat":
    the_root_is_named_slash, Stat, Nothing,
        "stat(5): name must be / if the file is the root directory of the server";
    a_file_has_its_name, Stat, Dir,
        "stat(5): name is the last element of the file's path";
    the_mode_is_in_the_qid, Stat, Dir,
        "stat(5): the qid's type is the top byte of the mode";
    the_mode_is_that_of_the_create, Stat, Dir,
        "stat(5): mode holds permissions and flags";
    a_directory_has_no_length, Stat, Dir,
        "stat(5): by convention, directories have a length of 0";
    the_length_is_that_of_the_content, Stat, Dir,
        "stat(5): length is the length of the file in bytes";
    an_open_fid_has_it_too, Stat, Dir,
        "stat(5): stat requires no special permissions, and nothing of the fid";
    no_permission_is_needed, Stat, Dir,
        "stat(5): stat requires no special permissions";
    the_times_are_of_this_century, Stat, Dir,
        "stat(5): mtime and atime are seconds since the epoch";
    a_write_moves_the_time, Stat, Dir,
        "stat(5): mtime is the time of the last change of content";
    owners_are_named, Stat, Dir,
        "stat(5): uid and gid are the names of the owner and the group";
}

async fn the_root_is_named_slash(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    s.attach(&mut c, A).await?;
    let name = stat(&mut c, A, |stat| stat.name.to_vec()).await?;
    hold(name == b"/", || format!("the root is named '{}'", show(&name)))
}

async fn a_file_has_its_name(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    for (fid, name) in [(A, &b"f"[..]), (B, b"d")] {
        let told = stat(&mut c, fid, |stat| stat.name.to_vec()).await?;
        hold(told == name, || format!("{} is named '{}'", show(name), show(&told)))?;
    }
    Ok(())
}

async fn the_mode_is_in_the_qid(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    for fid in [A, B] {
        let (qid, bits) = stat(&mut c, fid, |stat| (stat.qid, stat.mode)).await?;
        // Bits 0x02 and 0x01 of the byte are defined by .u, and servers differ in them.
        let (ty, top) = (qid.ty & 0xfc, (bits >> 24) as u8 & 0xfc);
        hold(ty == top, || format!("the qid is {qid}, the mode {bits:#x}"))?;
    }
    Ok(())
}

async fn the_mode_is_that_of_the_create(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let file = stat(&mut c, A, |stat| stat.mode).await?;
    let dir = stat(&mut c, B, |stat| stat.mode).await?;
    hold(file & (mode::DMDIR | 0o700) == 0o600, || format!("a file made with 644 has mode {file:#o}"))?;
    hold(dir & (mode::DMDIR | 0o700) == mode::DMDIR | 0o700, || {
        format!("a directory made with 755 has mode {dir:#o}")
    })
}

async fn a_directory_has_no_length(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let length = stat(&mut c, B, |stat| stat.length).await?;
    hold(length == 0, || format!("a directory has length {length}"))
}

async fn the_length_is_that_of_the_content(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let length = stat(&mut c, A, |stat| stat.length).await?;
    hold(length == 4, || format!("a file of 4 bytes has length {length}"))
}

async fn an_open_fid_has_it_too(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let closed = stat(&mut c, A, |stat| (stat.qid.path, stat.mode, stat.length)).await?;
    c.open(A, OpenFlags::READ).await?;
    let open = stat(&mut c, A, |stat| (stat.qid.path, stat.mode, stat.length)).await?;
    hold(closed == open, || format!("{closed:?} before the open, {open:?} after"))
}

async fn no_permission_is_needed(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    c.chmod(A, 0).await?;
    let bits = stat(&mut c, A, |stat| stat.mode).await?;
    hold(bits & 0o777 == 0, || format!("the mode of a file without permissions is {bits:o}"))
}

async fn the_times_are_of_this_century(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let (mtime, atime) = stat(&mut c, A, |stat| (stat.mtime, stat.atime)).await?;
    hold(mtime > Y2000 && atime > Y2000, || format!("a new file has mtime {mtime} and atime {atime}"))
}

async fn a_write_moves_the_time(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let old = nine_proto::Stat { mtime: Y2000, ..nine_proto::Stat::DONT_TOUCH };
    c.ok(Tmsg::Wstat { fid: A, stat: old }).await?;
    c.open(A, OpenFlags::WRITE).await?;
    c.write_all(A, 0, b"more").await?;
    let mtime = stat(&mut c, A, |stat| stat.mtime).await?;
    hold(mtime > Y2000, || "a write has left the time of change as it was".into())
}

async fn owners_are_named(s: &CaseContext) -> CaseResult {
    let mut c = files(s).await?;
    let owned = stat(&mut c, A, |stat| !stat.uid.is_empty() && !stat.gid.is_empty()).await?;
    let root = stat(&mut c, ROOT, |stat| !stat.uid.is_empty() && !stat.gid.is_empty()).await?;
    hold(owned && root, || "an owner or a group has no name".into())
}

/// A file `f` of four bytes at A, a directory `d` at B.
async fn files(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"text").await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    Ok(c)
}

/// Returns a value of an Rstat.
pub(super) async fn stat<T>(
    c: &mut CheckedConnection,
    fid: nine_proto::Fid,
    what: impl FnOnce(&nine_proto::Stat<'_>) -> T,
) -> CaseResult<T> {
    match c.ok(Tmsg::Stat { fid }).await?.msg() {
        Rmsg::Stat { stat } => Ok(what(&stat)),
        _ => fail("an Rstat was expected"),
    }
}

/// The first second of 2000.
const Y2000: u32 = 946_684_800;
