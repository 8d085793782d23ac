//! Extensions of 9P2000.u: numeric ids beside names, symbolic links and special files by Tcreate.

use nine_proto::msg::{OnlyIds, OnlyUStr, Tmsg};
use nine_proto::{NOFID, NOUID, Qid, mode, show};

use super::errors::errno;
use super::stat::stat;
use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, C, CaseContext, DIR, MSIZE, ROOT};

cases! { "unix":
    numbers_stand_beside_names, U, Dir,
        "9P2000.u: stat has n_uid, n_gid, n_muid, the numeric ids";
    the_number_alone_attaches, U, Nothing,
        "9P2000.u: n_uname is preferred over uname";
    a_symlink, U, Dir,
        "9P2000.u: Tcreate with DMSYMLINK makes a symbolic link; extension is its target";
    a_symlink_is_not_followed, U, Dir,
        "9P2000.u: the server does not follow links; the qid has QTSYMLINK";
    a_hard_link, U, Dir,
        "9P2000.u: Tcreate with DMLINK makes another name for the fid that extension names";
    a_pipe, U, Dir,
        "9P2000.u: Tcreate with DMNAMEDPIPE makes a named pipe";
    a_bad_extension_is_refused, U, Dir,
        "9P2000.u: of a device, extension is 'b major minor' or 'c major minor'";
    plain_files_have_no_extension, U, Dir,
        "9P2000.u: extension describes special files";
    set_id_bits, U, Dir,
        "9P2000.u: mode has DMSETUID and DMSETGID";
}

async fn numbers_stand_beside_names(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"").await?;
    let ids = stat(&mut c, A, |stat| (stat.ids.uid, stat.ids.gid)).await?;
    hold(ids.0 != NOUID && ids.1 != NOUID, || "the owner or the group has no number".into())
}

async fn the_number_alone_attaches(s: &CaseContext) -> CaseResult {
    if s.server.options.uid == NOUID {
        return skip("the user is known by name only");
    }
    let mut c = s.version(MSIZE).await?;
    let options = &s.server.options;
    let (aname, n_uname) = (options.aname.as_bytes(), OnlyIds(options.uid));
    c.ok(Tmsg::Attach { fid: ROOT, afid: NOFID, uname: b"", aname, n_uname }).await.map(drop)
}

async fn a_symlink(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    special(&mut c, mode::DMSYMLINK, b"where/it/leads").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    let (bits, target) = stat(&mut c, B, |stat| (stat.mode, stat.ids.extension.to_vec())).await?;
    hold(bits & mode::DMSYMLINK != 0, || format!("its mode is {bits:#x}"))?;
    hold(target == b"where/it/leads", || format!("it leads to '{}'", show(&target)))
}

async fn a_symlink_is_not_followed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    special(&mut c, mode::DMSYMLINK, b"d").await?;
    let qid = c.walk_whole(DIR, B, &[b"f"]).await?;
    hold(!qid.is_dir() && qid.ty & Qid::SYMLINK != 0, || format!("the link's qid is {qid}"))
}

async fn a_hard_link(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let old = c.put(DIR, b"old", b"text").await?;
    c.walk_whole(DIR, C, &[b"old"]).await?;
    special(&mut c, mode::DMLINK, C.0.to_string().as_bytes()).await?;
    let new = c.walk_whole(DIR, B, &[b"f"]).await?;
    hold(new.path == old.path, || format!("one file, two qids: {old} and {new}"))?;
    c.unlink(DIR, b"old").await?;
    hold(c.content_of(DIR, b"f").await? == b"text", || "the second name lost the content".into())
}

async fn a_pipe(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    special(&mut c, mode::DMNAMEDPIPE, b"").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    let bits = stat(&mut c, B, |stat| stat.mode).await?;
    hold(bits & mode::DMNAMEDPIPE != 0, || format!("its mode is {bits:#x}"))
}

async fn a_bad_extension_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for extension in [&b"x 1 2"[..], b"c one two", b""] {
        c.walk(DIR, A, &[]).await?;
        let (perm, extension) = (mode::DMDEVICE | 0o644, OnlyUStr(extension));
        let asked = Tmsg::Create { fid: A, name: b"f", perm, mode: 0, extension };
        c.refused(asked, "its extension names no device").await?;
        c.clunk(A).await?;
    }
    hold(!c.exists(DIR, b"f").await?, || "something was made nevertheless".into())
}

async fn plain_files_have_no_extension(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"text").await?;
    let extension = stat(&mut c, A, |stat| stat.ids.extension.to_vec()).await?;
    hold(extension.is_empty(), || format!("a plain file has the extension '{}'", show(&extension)))
}

async fn set_id_bits(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"").await?;
    let set = nine_proto::Stat { mode: 0o755 | mode::DMSETUID, ..nine_proto::Stat::DONT_TOUCH };
    if c.call(Tmsg::Wstat { fid: A, stat: set }).await?.is_error() {
        return skip("the server sets no set-id bits");
    }
    let bits = stat(&mut c, A, |stat| stat.mode).await?;
    hold(bits == 0o755 | mode::DMSETUID, || format!("its mode is {bits:#x}"))
}

/// Creates `f`, of a kind that the server may lack.
async fn special(c: &mut CheckedConnection, kind: u32, extension: &[u8]) -> CaseResult {
    c.walk(DIR, A, &[]).await?;
    let (perm, extension) = (kind | 0o644, OnlyUStr(extension));
    let got = c.call(Tmsg::Create { fid: A, name: b"f", perm, mode: 0, extension }).await?;
    match errno(&got) {
        _ if !got.is_error() => c.call(Tmsg::Clunk { fid: A }).await.map(drop),
        1 | 38 | 95 => skip(format!("the server does not make such files: {}", got.text())),
        _ => fail(format!("it was refused: {}", got.text())),
    }
}
