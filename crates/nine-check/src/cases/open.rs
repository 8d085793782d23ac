//! Topen and Tlopen: opening a fid for reading and writing.

use nine_proto::msg::{OnlyUStr, Tmsg};
use nine_proto::{OpenFlags, Qid, Stat, mode};

use super::stat::stat;
use crate::case::{CaseResult, cases, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, C, CaseContext, DIR, ROOT};
use crate::talk::opened;

cases! { "open":
    a_directory_can_be_read, Any, Nothing,
        "open(5): directories may be opened for reading";
    a_directory_cannot_be_written, Any, Dir,
        "open(5): it is illegal to write a directory";
    a_directory_cannot_be_truncated, Stat, Dir,
        "open(5): it is illegal to truncate a directory";
    twice_is_refused, Any, Dir,
        "open(5): the fid must not have been opened already";
    two_fids_of_one_file, Any, Dir,
        "open(5): only exclusive-use files are limited to one open at a time";
    the_qid_is_that_of_the_file, Any, Dir,
        "open(5): qid is the server's idea of the accessed file";
    for_reading_refuses_writes, Any, Dir,
        "write(5): the fid must be open for writing";
    for_writing_refuses_reads, Any, Dir,
        "read(5): the fid must be open for reading";
    truncates, Any, Dir,
        "open(5): OTRUNC says that the file is to be truncated; 9P2000.L: O_TRUNC";
    without_truncation_keeps_the_content, Any, Dir,
        "open(5): the file is truncated only if OTRUNC is set";
    exclusive_use_opens_once, Stat, Dir,
        "open(5): an exclusive-use file (DMEXCL) may be open by one fid at a time";
    append_only_appends, Stat, Dir,
        "write(5): if the file is append-only, the offset is ignored and the data are put at its end";
    append_only_is_not_truncated, Stat, Dir,
        "open(5): truncating an append-only file succeeds without truncating";
    append_only_comes_and_goes, Stat, Dir,
        "stat(5): the mode can be changed by the owner of the file; all its bits but the directory's";
    o_append_appends, L, Dir,
        "9P2000.L Tlopen: flags are those of open(2); O_APPEND: each write is at the end of the file";
    o_directory_refuses_files, L, Dir,
        "9P2000.L Tlopen: flags are those of open(2); O_DIRECTORY: fail if it is no directory";
}

async fn a_directory_can_be_read(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    let qid = c.open(A, OpenFlags::READ).await?;
    hold(qid.is_dir(), || format!("the qid of the open directory is {qid}"))?;
    c.some_entries(A, 0, 8192).await.map(drop)
}

async fn a_directory_cannot_be_written(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for flags in [OpenFlags::WRITE, OpenFlags::RDWR] {
        c.walk(DIR, A, &[]).await?;
        let asked = c.topen(A, flags);
        c.refused(asked, "nobody writes a directory").await?;
        c.clunk(A).await?;
    }
    Ok(())
}

async fn a_directory_cannot_be_truncated(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.topen(A, OpenFlags::TRUNC);
    c.refused(asked, "nobody truncates a directory").await.map(drop)
}

async fn twice_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.open(A, OpenFlags::READ).await?;
    let asked = c.topen(A, OpenFlags::READ);
    c.refused(asked, "the fid is open").await?;
    hold(c.content(A).await? == TEXT, || "the refused open has harmed the fid".into())
}

async fn two_fids_of_one_file(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.walk(A, B, &[]).await?;
    c.open(A, OpenFlags::RDWR).await?;
    c.open(B, OpenFlags::READ).await?;
    c.write_all(A, 0, b"TEXT").await?;
    hold(c.content(B).await?.starts_with(b"TEXT"), || {
        "one fid does not see what the other has written".into()
    })
}

async fn the_qid_is_that_of_the_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", TEXT).await?;
    let walked = c.walk_whole(DIR, A, &[b"f"]).await?;
    let open = c.open(A, OpenFlags::READ).await?;
    hold(walked.path == open.path, || format!("the walk says {walked}, the open {open}"))
}

async fn for_reading_refuses_writes(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.open(A, OpenFlags::READ).await?;
    let data = nine_proto::msg::Data::Bytes(b"no");
    c.refused(Tmsg::Write { fid: A, offset: 0, data }, "the fid is open for reading").await?;
    hold(c.content(A).await? == TEXT, || "the refused write has changed the file".into())
}

async fn for_writing_refuses_reads(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.open(A, OpenFlags::WRITE).await?;
    c.refused(Tmsg::Read { fid: A, offset: 0, count: 64 }, "the fid is open for writing").await.map(drop)
}

async fn truncates(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    let before = c.attr(A).await?.qid;
    let after = c.open(A, OpenFlags::RDWR | OpenFlags::TRUNC).await?;
    hold(before.path == after.path, || "truncation has made another file".into())?;
    let size = c.attr(A).await?.size;
    hold(size == 0, || format!("the truncated file has {size} bytes"))
}

async fn without_truncation_keeps_the_content(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.open(A, OpenFlags::RDWR).await?;
    hold(c.content(A).await? == TEXT, || "the open has changed the file".into())
}

async fn exclusive_use_opens_once(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    special(&mut c, mode::DMEXCL, Qid::EXCL, "exclusive-use files").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    let asked = c.topen(B, OpenFlags::READ);
    c.refused(asked, "somebody has the exclusive-use file open").await?;
    c.clunk(A).await?;
    c.open(B, OpenFlags::READ).await.map(drop)
}

async fn append_only_appends(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    special(&mut c, mode::DMAPPEND, Qid::APPEND, "append-only files").await?;
    c.write_all(A, 0, b"one").await?;
    c.write_all(A, 0, b"two").await?;
    hold(c.content_of(DIR, b"f").await? == b"onetwo", || "the second write was not at the end".into())
}

async fn append_only_is_not_truncated(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    special(&mut c, mode::DMAPPEND, Qid::APPEND, "append-only files").await?;
    c.write_all(A, 0, b"kept").await?;
    c.clunk(A).await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    c.open(B, OpenFlags::WRITE | OpenFlags::TRUNC).await?;
    hold(c.content_of(DIR, b"f").await? == b"kept", || "the append-only file was truncated".into())
}

async fn append_only_comes_and_goes(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    let set = |mode| Tmsg::Wstat { fid: A, stat: Stat { mode, ..Stat::DONT_TOUCH } };
    let got = c.call(set(mode::DMAPPEND | 0o644)).await?;
    if got.is_error() || stat(&mut c, A, |stat| stat.mode).await? & mode::DMAPPEND == 0 {
        return skip("the server has no append-only files");
    }
    c.walk(A, B, &[]).await?;
    c.open(B, OpenFlags::WRITE).await?;
    c.write_all(B, 0, b" and more").await?;
    let content = c.content_of(DIR, b"f").await?;
    hold(content == [TEXT, b" and more"].concat(), || "the write was not at the end".into())?;
    let cut = Tmsg::Wstat { fid: A, stat: Stat { length: 1, ..Stat::DONT_TOUCH } };
    c.refused(cut, "an append-only file is not cut").await?;
    c.ok(set(0o644)).await?;
    c.write_all(B, 0, b"S").await?;
    let content = c.content_of(DIR, b"f").await?;
    hold(content.starts_with(b"Some"), || "the write was not where it belongs".into())
}

async fn o_append_appends(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    c.open(A, OpenFlags::WRITE | OpenFlags::APPEND).await?;
    c.write_all(A, 0, b" and more").await?;
    let content = c.content_of(DIR, b"f").await?;
    hold(content == [TEXT, b" and more"].concat(), || "the write was not at the end".into())
}

async fn o_directory_refuses_files(s: &CaseContext) -> CaseResult {
    let mut c = with_file(s).await?;
    let asked = c.topen(A, OpenFlags::READ | OpenFlags::DIRECTORY);
    c.refused(asked, "it is no directory").await?;
    c.walk(DIR, C, &[]).await?;
    c.open(C, OpenFlags::READ | OpenFlags::DIRECTORY).await.map(drop)
}

/// Creates a file `f` and walks fid A to it.
async fn with_file(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.put(DIR, b"f", TEXT).await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    Ok(c)
}

/// Creates a file `f` of a special kind, open as A for writing. Skips the case if the server lacks the kind.
async fn special(c: &mut CheckedConnection, bit: u32, ty: u8, what: &str) -> CaseResult {
    c.walk(DIR, A, &[]).await?;
    let (perm, extension) = (bit | 0o644, OnlyUStr(b""));
    let got = c.call(Tmsg::Create { fid: A, name: b"f", perm, mode: 1, extension }).await?;
    if got.is_error() || opened(&got)?.ty & ty == 0 {
        return skip(format!("the server has no {what}"));
    }
    Ok(())
}

const TEXT: &[u8] = b"some text";
