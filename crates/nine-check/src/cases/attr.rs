//! Tgetattr, Tsetattr and Tstatfs of 9P2000.L.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Attr, GetMask, OpenFlags, Time, mode};

use super::setattr;
use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, CaseContext, DIR, ROOT};

cases! { "getattr":
    the_basic_ones_are_valid, L, Nothing,
        "9P2000.L Tgetattr: valid says which fields are known; P9_GETATTR_BASIC is what stat(2) gives";
    the_mode_has_its_type, L, Dir,
        "9P2000.L Rgetattr: mode is st_mode of stat(2), and agrees with the qid";
    the_size_is_that_of_the_content, L, Dir,
        "9P2000.L Rgetattr: size is st_size of stat(2)";
    names_are_counted, L, Dir,
        "9P2000.L Rgetattr: nlink is st_nlink of stat(2)";
    an_open_fid_has_them_too, L, Dir,
        "9P2000.L Tgetattr: fid may be open or not";
    a_part_may_be_asked_for, L, Dir,
        "9P2000.L Tgetattr: request_mask says which fields are wanted; valid has them";
    a_write_moves_the_time, L, Dir,
        "9P2000.L Rgetattr: mtime is st_mtime of stat(2), the last change of content";
    truncation_moves_the_time_of_an_empty_file, L, Dir,
        "open(2): O_TRUNC marks the times of the file for update, also if it is empty already";
    the_file_system, L, Nothing,
        "9P2000.L Tstatfs: what statfs(2) tells about the file system of fid";
}

async fn the_basic_ones_are_valid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let attr = c.attr(ROOT).await?;
    let missing = GetMask::BASIC.0 & !attr.valid.0;
    hold(attr.valid.has(KNOWN), || format!("valid is {:#x}, without all of 0x7ff", attr.valid.0))?;
    if missing == 0 {
        Ok(())
    } else {
        skip(format!("the server does not know {missing:#x} of 0x7ff, and says so"))
    }
}

async fn the_mode_has_its_type(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let (file, dir) = (c.attr(A).await?, c.attr(DIR).await?);
    for (attr, ty) in [(file, mode::S_IFREG), (dir, mode::S_IFDIR)] {
        hold(attr.mode & mode::S_IFMT == ty && attr.qid.is_dir() == (ty == mode::S_IFDIR), || {
            format!("the mode is {:o}, the qid {}", attr.mode, attr.qid)
        })?;
    }
    Ok(())
}

async fn the_size_is_that_of_the_content(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let size = c.attr(A).await?.size;
    hold(size == TEXT.len() as u64, || format!("a file of {} bytes has size {size}", TEXT.len()))
}

async fn names_are_counted(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let before = c.attr(A).await?;
    c.supported(Tmsg::Link { dfid: DIR, fid: A, name: b"g" }).await?;
    if !before.valid.has(GetMask::NLINK) {
        return skip("the server does not count names, and says so");
    }
    let (one, two) = (before.nlink, c.attr(A).await?.nlink);
    hold((one, two) == (1, 2), || format!("with one name nlink is {one}, with two {two}"))
}

async fn an_open_fid_has_them_too(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let closed = c.attr(A).await?;
    c.open(A, OpenFlags::READ).await?;
    let open = c.attr(A).await?;
    let known = |attr: &Attr| (attr.qid.path, attr.mode, attr.size, attr.mtime);
    hold(known(&closed) == known(&open), || {
        format!("{:?} before the open, {:?} after", known(&closed), known(&open))
    })
}

async fn a_part_may_be_asked_for(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let all = c.attr(A).await?.valid;
    for mask in [GetMask::MODE, GetMask::SIZE, GetMask::MTIME, GetMask::BASIC, GetMask::ALL] {
        let got = c.ok(Tmsg::Getattr { fid: A, mask: mask.0 }).await?;
        let Rmsg::Getattr { attr } = got.msg() else { return fail("an Rgetattr was expected") };
        let wanted = GetMask(mask.0 & GetMask::BASIC.0 & (all | KNOWN).0);
        hold(attr.valid.has(wanted), || {
            format!("{:#x} was asked for, {:#x} is valid", mask.0, attr.valid.0)
        })?;
        hold(!attr.valid.has(GetMask::SIZE) || attr.size == TEXT.len() as u64, || {
            "the size is another".into()
        })?;
    }
    Ok(())
}

async fn a_write_moves_the_time(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let old = Time { sec: 1_000_000_000, nsec: 0 };
    c.ok(setattr(A, MTIME | MTIME_SET, |set| set.mtime = old)).await?;
    c.open(A, OpenFlags::WRITE).await?;
    c.write_all(A, 0, b"more").await?;
    let mtime = c.attr(A).await?.mtime;
    hold(mtime > old, || "a write has left the time of change as it was".into())
}

async fn truncation_moves_the_time_of_an_empty_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    let old = Time { sec: 1_000_000_000, nsec: 0 };
    c.ok(setattr(A, MTIME | MTIME_SET, |set| set.mtime = old)).await?;
    c.open(A, OpenFlags::WRITE | OpenFlags::TRUNC).await?;
    let mtime = c.attr(A).await?.mtime;
    hold(mtime > old, || "an open with O_TRUNC has left the time of change as it was".into())
}

async fn the_file_system(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let got = c.supported(Tmsg::Statfs { fid: ROOT }).await?;
    let Rmsg::Statfs { statfs } = got.msg() else { return fail("an Rstatfs was expected") };
    hold(statfs.bsize > 0 && statfs.bfree <= statfs.blocks && statfs.namelen > 0, || format!("{statfs:?}"))
}

/// A file `f` with TEXT at A.
pub(super) async fn file(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.put(DIR, b"f", TEXT).await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    Ok(c)
}

/// Attributes that every file has. A server that gets files from another one may not know all the others.
const KNOWN: GetMask =
    GetMask(GetMask::MODE.0 | GetMask::ATIME.0 | GetMask::MTIME.0 | GetMask::INO.0 | GetMask::SIZE.0);
pub(super) const TEXT: &[u8] = b"some text";
const MTIME: u32 = 0x20;
const MTIME_SET: u32 = 0x100;
