//! Tremove: removes a file, and clunks its fid in any case.

use nine_proto::msg::Tmsg;

use crate::case::{CaseResult, cases, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};

cases! { "remove":
    the_file_is_gone, Any, Dir,
        "remove(5): the remove request asks the file server to remove the file represented by fid";
    an_empty_directory_is_gone, Any, Dir,
        "remove(5): the file represented by fid is removed; it may be a directory";
    the_fid_is_clunked, Any, Dir,
        "remove(5): remove is a clunk with the side effect of removing the file";
    clunks_on_failure, Any, Dir,
        "remove(5): and to clunk the fid, even if the remove fails";
    a_directory_with_files_is_refused, Any, Dir,
        "remove(5): a directory that is not empty is not removed";
    an_open_file_can_be_removed, Any, Dir,
        "remove(5): the fid may be open";
    others_keep_their_files, Any, Dir,
        "remove(5): the file represented by fid is removed, and no other";
    the_name_is_free_again, Any, Dir,
        "intro(5): a file that is removed and made again is another file";
}

async fn the_file_is_gone(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    tremove(&mut c, b"f").await?;
    hold(!c.exists(DIR, b"f").await? && c.list(DIR).await?.is_empty(), || "the file is still there".into())
}

async fn an_empty_directory_is_gone(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    tremove(&mut c, b"d").await?;
    hold(!c.exists(DIR, b"d").await?, || "the directory is still there".into())
}

async fn the_fid_is_clunked(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    c.supported(Tmsg::Remove { fid: A }).await?;
    let asked = c.tattr(A);
    c.refused(asked, "Tremove has clunked the fid").await?;
    c.walk(DIR, A, &[]).await.map(drop)
}

async fn clunks_on_failure(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.put(A, b"f", b"").await?;
    c.supported_but_refused(Tmsg::Remove { fid: A }, "the directory is not empty").await?;
    let asked = c.tattr(A);
    c.refused(asked, "the Tremove that failed has clunked the fid").await.map(drop)
}

async fn a_directory_with_files_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.put(A, b"f", b"text").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    c.supported_but_refused(Tmsg::Remove { fid: B }, "the directory is not empty").await?;
    hold(c.content_of(A, b"f").await? == b"text", || "the refused remove has changed what is below".into())
}

async fn an_open_file_can_be_removed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"text").await?;
    c.supported(Tmsg::Remove { fid: A }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the file is still there".into())
}

async fn others_keep_their_files(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for name in [b"f", b"g", b"h"] {
        c.put(DIR, name, name).await?;
    }
    tremove(&mut c, b"g").await?;
    for name in [b"f", b"h"] {
        hold(c.content_of(DIR, name).await? == name, || "another file has changed".into())?;
    }
    Ok(())
}

async fn the_name_is_free_again(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"old").await?;
    tremove(&mut c, b"f").await?;
    c.put(DIR, b"f", b"").await?;
    hold(c.content_of(DIR, b"f").await?.is_empty(), || "the new file has the old content".into())
}

/// Removes the file of a name in the case's directory.
async fn tremove(c: &mut CheckedConnection, name: &[u8]) -> CaseResult {
    c.walk_whole(DIR, B, &[name]).await?;
    c.supported(Tmsg::Remove { fid: B }).await.map(drop)
}
