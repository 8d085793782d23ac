//! Twstat: changes of attributes, in 9P2000 and .u.

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, OpenFlags, Qid, Stat, mode};

use super::stat::stat;
use crate::case::{CaseResult, cases, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};

cases! { "wstat":
    nothing_to_change_is_a_sync, Stat, Dir,
        "stat(5): if all are 'don't touch' values, the server may see it as a request to guarantee stable storage";
    dont_touch_is_not_touched, Stat, Dir,
        "stat(5): zero-length strings and maximum unsigned values avoid modifying the field";
    the_mode_changes, Stat, Dir,
        "stat(5): the mode can be changed by the owner of the file";
    the_mtime_changes, Stat, Dir,
        "stat(5): the mtime can be changed by the owner of the file";
    the_length_shrinks, Stat, Dir,
        "stat(5): the length can be changed by anyone with write permission on the file";
    the_length_grows_with_zeros, Stat, Dir,
        "stat(5): the length can be changed; what was never written reads as zero";
    the_name_changes, Stat, Dir,
        "stat(5): the name can be changed by anyone with write permission in the parent directory";
    a_renamed_fid_stays_valid, Stat, Dir,
        "stat(5): wstat changes what is known about the file that fid represents";
    an_open_fid_survives_a_rename, Stat, Dir,
        "stat(5): wstat changes what is known about the file that fid represents";
    a_directory_can_be_renamed, Stat, Dir,
        "stat(5): the name can be changed by anyone with write permission in the parent directory";
    an_existing_name_is_refused, Stat, Dir,
        "stat(5): it is an error to change the name to that of an existing file";
    a_bad_name_is_refused, Stat, Dir,
        "intro(5): names do not contain slashes; the names . and .. are special";
    all_or_nothing, Stat, Dir,
        "stat(5): either all the changes in a wstat request happen, or none of them does";
    a_file_stays_a_file, Stat, Dir,
        "stat(5): the directory bit cannot be changed by a wstat";
    a_directory_has_no_length, Stat, Dir,
        "stat(5): the length of a directory can be set to zero only";
    the_qid_cannot_be_changed, Stat, Dir,
        "stat(5): none of the other data can be altered by a wstat";
    type_and_dev_cannot_be_changed, Stat, Dir,
        "stat(5): none of the other data can be altered by a wstat";
    the_owner_cannot_be_changed, P2000, Dir,
        "stat(5): none of the other data can be altered; there is no way to change the owner";
    the_last_modifier_cannot_be_changed, Stat, Dir,
        "stat(5): none of the other data can be altered by a wstat";
}

async fn nothing_to_change_is_a_sync(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let before = known(&mut c, A).await?;
    c.ok(Tmsg::Wstat { fid: A, stat: Stat::DONT_TOUCH }).await?;
    let after = known(&mut c, A).await?;
    hold(before == after, || format!("{before:?} before, {after:?} after"))
}

async fn dont_touch_is_not_touched(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    change(&mut c, A, |stat| stat.mtime = 1_000_000_000).await?;
    let before = known(&mut c, A).await?;
    change(&mut c, A, |stat| stat.mode = 0o604).await?;
    let after = known(&mut c, A).await?;
    hold(after == WstatAttributes { mode: 0o604, ..before.clone() }, || {
        format!("only the mode was to change; {before:?} became {after:?}")
    })
}

async fn the_mode_changes(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for bits in [0o600, 0o444, 0o755] {
        change(&mut c, A, |stat| stat.mode = bits).await?;
        let got = stat(&mut c, A, |stat| stat.mode).await?;
        hold(got == bits, || format!("{bits:o} was set, {got:o} is told"))?;
    }
    Ok(())
}

async fn the_mtime_changes(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for mtime in [0, 1_000_000_000, 0x7fff_ffff] {
        change(&mut c, A, |stat| stat.mtime = mtime).await?;
        let got = stat(&mut c, A, |stat| stat.mtime).await?;
        hold(got == mtime, || format!("{mtime} was set, {got} is told"))?;
    }
    Ok(())
}

async fn the_length_shrinks(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    change(&mut c, A, |stat| stat.length = 4).await?;
    hold(c.content_of(DIR, b"f").await? == b"some", || "the content is not what was kept".into())
}

async fn the_length_grows_with_zeros(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    change(&mut c, A, |stat| stat.length = 12).await?;
    hold(c.content_of(DIR, b"f").await? == b"some text\0\0\0", || "the content is not grown by zeros".into())
}

async fn the_name_changes(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    change(&mut c, A, |stat| stat.name = b"g").await?;
    hold(!c.exists(DIR, b"f").await?, || "the old name is still there".into())?;
    hold(c.content_of(DIR, b"g").await? == b"some text", || "the content is another one".into())
}

async fn a_renamed_fid_stays_valid(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let before = c.attr(A).await?.qid.path;
    change(&mut c, A, |stat| stat.name = b"g").await?;
    let (path, name) = stat(&mut c, A, |stat| (stat.qid.path, stat.name.to_vec())).await?;
    hold(path == before && name == b"g", || format!("the fid is of '{}' now", nine_proto::show(&name)))?;
    c.open(A, OpenFlags::READ).await?;
    hold(c.content(A).await? == b"some text", || "the renamed fid does not read the file".into())
}

async fn an_open_fid_survives_a_rename(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.walk(A, B, &[]).await?;
    c.open(B, OpenFlags::RDWR).await?;
    change(&mut c, A, |stat| stat.name = b"g").await?;
    c.write_all(B, 0, b"SOME").await?;
    hold(c.content_of(DIR, b"g").await? == b"SOME text", || "what the open fid wrote is not there".into())
}

async fn a_directory_can_be_renamed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.put(A, b"f", b"below").await?;
    change(&mut c, A, |stat| stat.name = b"e").await?;
    c.walk_whole(DIR, B, &[b"e"]).await?;
    hold(c.content_of(B, b"f").await? == b"below", || "what was below is not there".into())
}

async fn an_existing_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.put(DIR, b"g", b"other").await?;
    refused(&mut c, A, |stat| stat.name = b"g", "the name exists").await?;
    let contents = (c.content_of(DIR, b"f").await?, c.content_of(DIR, b"g").await?);
    hold(contents == (b"some text".to_vec(), b"other".to_vec()), || {
        "the refused rename has changed a file".into()
    })
}

async fn a_bad_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for name in [&b"."[..], b"..", b"a/b", b"../f"] {
        refused(&mut c, A, |stat| stat.name = name, "no file can have this name").await?;
    }
    hold(c.exists(DIR, b"f").await?, || "a refused rename has moved the file".into())
}

async fn all_or_nothing(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.put(DIR, b"g", b"other").await?;
    let before = known(&mut c, A).await?;
    let many = |stat: &mut Stat<'static>| {
        (stat.mode, stat.length, stat.mtime, stat.name) = (0o600, 2, 1_000_000_000, b"g");
    };
    refused(&mut c, A, many, "the name exists").await?;
    let after = known(&mut c, A).await?;
    hold(before == after, || format!("it was refused, and {before:?} became {after:?}"))
}

async fn a_file_stays_a_file(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    refused(&mut c, A, |stat| stat.mode = mode::DMDIR | 0o755, "a file does not become a directory").await?;
    c.walk(DIR, B, &[]).await?;
    refused(&mut c, B, |stat| stat.mode = 0o755, "a directory does not become a file").await
}

async fn a_directory_has_no_length(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    refused(&mut c, DIR, |stat| stat.length = 5, "a directory has no length").await
}

async fn the_qid_cannot_be_changed(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    refused(&mut c, A, |stat| stat.qid = Qid { ty: 0, vers: 1, path: 4711 }, "nobody changes a qid").await
}

async fn type_and_dev_cannot_be_changed(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    refused(&mut c, A, |stat| stat.ty = 0x4d4d, "nobody changes the type").await?;
    refused(&mut c, A, |stat| stat.dev = 4711, "nobody changes the dev").await
}

async fn the_owner_cannot_be_changed(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    refused(&mut c, A, |stat| stat.uid = b"glenda", "nobody changes the owner").await
}

async fn the_last_modifier_cannot_be_changed(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    refused(&mut c, A, |stat| stat.muid = b"glenda", "nobody changes the last modifier").await
}

/// A file `f` with some text at A.
async fn file(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"some text").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    Ok(c)
}

async fn change(c: &mut CheckedConnection, fid: Fid, set: impl FnOnce(&mut Stat<'static>)) -> CaseResult {
    let mut stat = Stat::DONT_TOUCH;
    set(&mut stat);
    c.ok(Tmsg::Wstat { fid, stat }).await.map(drop)
}

async fn refused<'a>(
    c: &mut CheckedConnection,
    fid: Fid,
    set: impl FnOnce(&mut Stat<'a>),
    why: &str,
) -> CaseResult {
    let mut stat = Stat::DONT_TOUCH;
    set(&mut stat);
    c.refused(Tmsg::Wstat { fid, stat }, why).await.map(drop)
}

/// The attributes that a wstat can change.
#[derive(Clone, Debug, PartialEq)]
struct WstatAttributes {
    name: Vec<u8>,
    mode: u32,
    mtime: u32,
    length: u64,
    gid: Vec<u8>,
    uid: Vec<u8>,
}

async fn known(c: &mut CheckedConnection, fid: Fid) -> CaseResult<WstatAttributes> {
    let of = |stat: &Stat<'_>| WstatAttributes {
        name: stat.name.to_vec(),
        mode: stat.mode,
        mtime: stat.mtime,
        length: stat.length,
        gid: stat.gid.to_vec(),
        uid: stat.uid.to_vec(),
    };
    stat(c, fid, of).await
}
