//! Tclunk and ORCLOSE: the end of fids, and of files with them.

use nine_proto::OpenFlags;
use nine_proto::msg::Tmsg;

use crate::case::{CaseResult, cases, hold};
use crate::scene::{A, B, CaseContext, DIR, ROOT};

cases! { "clunk":
    frees_the_fid, Any, Nothing,
        "clunk(5): the fid is no longer a valid name of a file; its number may be used again";
    twice_is_refused, Any, Nothing,
        "clunk(5): the request informs the server that fid is no longer needed; intro(5): an unknown fid is an error";
    leaves_other_fids, Any, Dir,
        "clunk(5): the current file represented by this fid is no longer needed, by this fid";
    frees_the_fid_of_an_open_file, Any, Dir,
        "clunk(5): even if it returns an error, the fid is no longer valid";
    removes_what_was_opened_to_be_removed, Stat, Dir,
        "clunk(5): if the file was opened with ORCLOSE, it is removed";
    removes_what_was_created_to_be_removed, Stat, Dir,
        "open(5): with ORCLOSE the file is removed when the fid is clunked; create takes the same mode";
    removes_only_then, Stat, Dir,
        "open(5): with ORCLOSE the file is removed when the fid is clunked";
    the_end_of_the_connection_removes, Stat, Dir,
        "intro(5): when the connection ends, all fids are clunked; open(5): ORCLOSE";
}

async fn frees_the_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    c.clunk(A).await?;
    let asked = c.tattr(A);
    c.refused(asked, "the fid has been clunked").await?;
    c.walk(ROOT, A, &[]).await?;
    c.attr(A).await.map(drop)
}

async fn twice_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    c.clunk(A).await?;
    c.refused(Tmsg::Clunk { fid: A }, "the fid has been clunked").await.map(drop)
}

async fn leaves_other_fids(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"text").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    c.open(B, OpenFlags::READ).await?;
    c.clunk(B).await?;
    hold(c.content(A).await? == b"text", || "another fid of the file does not read it any more".into())
}

async fn frees_the_fid_of_an_open_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"text").await?;
    c.clunk(A).await?;
    c.refused(Tmsg::Read { fid: A, offset: 0, count: 100 }, "the fid has been clunked").await?;
    hold(c.content_of(DIR, b"f").await? == b"text", || "the clunk has changed the file".into())
}

async fn removes_what_was_opened_to_be_removed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"text").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    c.open(A, OpenFlags::READ | OpenFlags::RCLOSE).await?;
    c.call(Tmsg::Clunk { fid: A }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the file is still there".into())
}

async fn removes_what_was_created_to_be_removed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR | OpenFlags::RCLOSE, 0o644);
    c.ok(asked).await?;
    c.call(Tmsg::Clunk { fid: A }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the file is still there".into())
}

async fn removes_only_then(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR | OpenFlags::RCLOSE, 0o644);
    c.ok(asked).await?;
    c.write_all(A, 0, b"text").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    c.open(B, OpenFlags::READ).await?;
    hold(c.content(B).await? == b"text", || "the file is not whole while it is open".into())?;
    c.clunk(B).await?;
    hold(c.exists(DIR, b"f").await?, || "the clunk of another fid has removed the file".into())
}

async fn the_end_of_the_connection_removes(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR | OpenFlags::RCLOSE, 0o644);
    c.ok(asked).await?;
    drop(c);
    is_gone(s, b"f").await
}

/// Waits until another connection no longer finds the file.
pub(super) async fn is_gone(s: &CaseContext, name: &[u8]) -> CaseResult {
    let mut c = s.here().await?;
    while c.exists(DIR, name).await? {
        s.pause().await;
    }
    Ok(())
}
