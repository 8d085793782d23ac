//! Names in 9P2000.L: links, renames, removals.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Fid, OpenFlags, Qid, mode, show};

use super::attr::{TEXT, file};
use super::errors::{errno, one_of};
use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::conn::{CheckedConnection, ReceivedReply};
use crate::scene::{A, B, C, CaseContext, D, DIR, ROOT};
use crate::talk::{REMOVEDIR, walk};

cases! { "names":
    symlink_and_readlink, L, Dir,
        "9P2000.L Tsymlink: make a symbolic link name in the directory dfid; Treadlink: its target";
    a_symlink_is_not_followed, L, Dir,
        "9P2000.L: links are resolved by the client; the qid has QTSYMLINK";
    a_link_that_leads_nowhere, L, Dir,
        "symlink(2): the target need not exist";
    readlink_of_a_file_is_refused, L, Dir,
        "9P2000.L Treadlink: fid is that of a symbolic link";
    symlink_onto_an_existing_name_is_refused, L, Dir,
        "symlink(2): EEXIST, the new name exists already";
    link_gives_a_second_name, L, Dir,
        "9P2000.L Tlink: create a hard link name in the directory dfid to the file fid";
    link_onto_an_existing_name_is_refused, L, Dir,
        "link(2): EEXIST, the new name exists already";
    mknod_makes_a_pipe, L, Dir,
        "9P2000.L Tmknod: create a device node (or pipe, or file) name in the directory dfid";
    rename_moves_the_file, L, Dir,
        "9P2000.L Trename: rename the file fid to name in the directory dfid";
    rename_keeps_the_fid, L, Dir,
        "9P2000.L Trename: fid stays valid, and represents the file at its new place";
    renameat_moves_the_file, L, Dir,
        "9P2000.L Trenameat: change oldname in olddirfid to newname in newdirfid";
    renameat_replaces_a_file, L, Dir,
        "rename(2): if newpath exists, it is atomically replaced";
    renameat_keeps_fids, L, Dir,
        "rename(2): open descriptors of the file are unaffected";
    renameat_of_a_directory, L, Dir,
        "9P2000.L Trenameat: change oldname in olddirfid to newname in newdirfid";
    renameat_onto_a_full_directory_is_refused, L, Dir,
        "rename(2): ENOTEMPTY or EEXIST, the new name is a directory that is not empty";
    renameat_into_itself_is_refused, L, Dir,
        "rename(2): EINVAL, the new name is below the old one";
    renameat_of_nothing_is_refused, L, Dir,
        "rename(2): ENOENT, the old name does not exist";
    renameat_by_a_bad_name_is_refused, L, Dir,
        "intro(5): names do not contain slashes; the names . and .. are special";
    renameat2_replaces_nothing_when_told, L, Dir,
        "renameat2(2): RENAME_NOREPLACE, EEXIST if the new name exists";
    renameat2_exchanges_two_files, L, Dir,
        "renameat2(2): RENAME_EXCHANGE, the two files are exchanged; both must exist";
    renameat2_exchanges_a_file_and_a_directory, L, Dir,
        "renameat2(2): RENAME_EXCHANGE, the two may be of different types";
    renameat2_of_a_directory_and_one_above_it_is_refused, L, Dir,
        "rename(2): EINVAL, a directory cannot move below itself";
    renameat2_with_other_flags_is_refused, L, Dir,
        "renameat2(2): EINVAL, flags that are not known, or both at once";
    unlinkat_takes_the_name, L, Dir,
        "9P2000.L Tunlinkat: unlink name from the directory dirfd";
    unlinkat_clunks_no_fid, L, Dir,
        "9P2000.L Tunlinkat: unlike Tremove it does not clunk a fid";
    unlinkat_removes_a_directory_when_told, L, Dir,
        "9P2000.L Tunlinkat: flags is AT_REMOVEDIR for a directory";
    unlinkat_of_a_directory_needs_the_flag, L, Dir,
        "unlinkat(2): without AT_REMOVEDIR a directory is refused";
    unlinkat_of_a_file_refuses_the_flag, L, Dir,
        "unlinkat(2): with AT_REMOVEDIR a file is refused: ENOTDIR";
    unlinkat_of_a_full_directory_is_refused, L, Dir,
        "unlinkat(2): ENOTEMPTY, the directory is not empty";
    unlinkat_of_nothing_is_refused, L, Dir,
        "unlinkat(2): ENOENT, the name does not exist";
    unlinkat_of_a_link_leaves_its_target, L, Dir,
        "unlink(2): if the name refers to a symbolic link, the link is removed";
    mkdir_leaves_the_fid, L, Dir,
        "9P2000.L Tmkdir: create a directory name in the directory dfid, which stays where it is";
}

async fn symlink_and_readlink(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for (n, target) in [&b"where/it/leads"[..], b"/absolute", b"..", &[b'x'; 300]].iter().enumerate() {
        let name = format!("l{n}").into_bytes();
        symlink(&mut c, &name, target).await?;
        c.walk_whole(DIR, A, &[&name]).await?;
        let got = c.ok(Tmsg::Readlink { fid: A }).await?;
        let Rmsg::Readlink { target: told } = got.msg() else { return fail("an Rreadlink was expected") };
        hold(told == *target, || format!("it leads to '{}', not to '{}'", show(told), show(target)))?;
        let st_mode = c.attr(A).await?.mode;
        hold(st_mode & mode::S_IFMT == mode::S_IFLNK, || format!("its mode is {st_mode:o}"))?;
        c.clunk(A).await?;
    }
    Ok(())
}

async fn a_symlink_is_not_followed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    symlink(&mut c, b"l", b"d").await?;
    let qid = c.walk_whole(DIR, A, &[b"l"]).await?;
    hold(!qid.is_dir() && qid.ty & Qid::SYMLINK != 0, || format!("the link's qid is {qid}"))
}

async fn a_link_that_leads_nowhere(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    symlink(&mut c, b"l", b"no-such-file-4f1c").await?;
    c.walk_whole(DIR, A, &[b"l"]).await?;
    c.clunk(A).await?;
    c.unlink(DIR, b"l").await
}

async fn readlink_of_a_file_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.supported_but_refused(Tmsg::Readlink { fid: A }, "it is a plain file").await.map(drop)
}

async fn symlink_onto_an_existing_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let asked = Tmsg::Symlink { dfid: DIR, name: b"f", target: b"t", gid: c.gid };
    c.supported_but_refused(asked, "the name exists").await?;
    hold(c.content_of(DIR, b"f").await? == TEXT, || "the refused link has changed the file".into())
}

async fn link_gives_a_second_name(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.supported(Tmsg::Link { dfid: DIR, fid: A, name: b"g" }).await?;
    let (old, new) = (c.attr(A).await?.qid, c.walk_whole(DIR, B, &[b"g"]).await?);
    hold(old.path == new.path, || format!("one file, two qids: {old} and {new}"))?;
    c.open(B, OpenFlags::RDWR).await?;
    c.write_all(B, 0, b"SOME").await?;
    hold(c.content_of(DIR, b"f").await? == b"SOME text", || "the two names have two contents".into())
}

async fn link_onto_an_existing_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.put(DIR, b"g", b"other").await?;
    c.supported_but_refused(Tmsg::Link { dfid: DIR, fid: A, name: b"g" }, "the name exists").await?;
    hold(c.content_of(DIR, b"g").await? == b"other", || "the refused link has changed the file".into())
}

async fn mknod_makes_a_pipe(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let asked =
        Tmsg::Mknod { dfid: DIR, name: b"p", mode: mode::S_IFIFO | 0o644, major: 0, minor: 0, gid: c.gid };
    let got = c.call(asked).await?;
    match errno(&got) {
        0 => {}
        1 | 38 | 95 => return skip(format!("the server makes no pipes: {}", got.text())),
        _ => return fail(format!("it was refused: {}", got.text())),
    }
    c.walk_whole(DIR, A, &[b"p"]).await?;
    let st_mode = c.attr(A).await?.mode;
    hold(st_mode & mode::S_IFMT == mode::S_IFIFO, || format!("its mode is {st_mode:o}"))
}

async fn rename_moves_the_file(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    moved(&mut c, Tmsg::Rename { fid: A, dfid: B, name: b"g" }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the old name is still there".into())?;
    hold(c.content_of(B, b"g").await? == TEXT, || "the content is another one".into())
}

async fn rename_keeps_the_fid(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let before = c.attr(A).await?.qid;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    moved(&mut c, Tmsg::Rename { fid: A, dfid: B, name: b"g" }).await?;
    let after = c.attr(A).await?.qid;
    hold(before.path == after.path, || format!("the fid was of {before}, now of {after}"))?;
    c.walk(A, C, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    hold(c.content(A).await? == TEXT, || "the renamed fid does not read the file".into())
}

async fn renameat_moves_the_file(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    moved(&mut c, Tmsg::Renameat { olddirfid: DIR, oldname: b"f", newdirfid: B, newname: b"g" }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the old name is still there".into())?;
    hold(c.content_of(B, b"g").await? == TEXT, || "the content is another one".into())
}

async fn renameat_replaces_a_file(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.put(DIR, b"g", b"replaced").await?;
    renameat(&mut c, b"f", b"g").await?;
    hold(!c.exists(DIR, b"f").await?, || "the old name is still there".into())?;
    hold(c.content_of(DIR, b"g").await? == TEXT, || "the content is another one".into())
}

async fn renameat_keeps_fids(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.walk(A, B, &[]).await?;
    c.open(B, OpenFlags::RDWR).await?;
    renameat(&mut c, b"f", b"g").await?;
    c.write_all(B, 0, b"SOME").await?;
    hold(c.content(B).await? == b"SOME text", || "the open fid does not read the file any more".into())?;
    hold(c.content_of(DIR, b"g").await? == b"SOME text", || "what the open fid wrote is not there".into())
}

async fn renameat_of_a_directory(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    c.put(B, b"f", TEXT).await?;
    renameat(&mut c, b"d", b"e").await?;
    c.walk_whole(DIR, C, &[b"e"]).await?;
    hold(c.content_of(C, b"f").await? == TEXT, || "what was below is not there".into())
}

async fn renameat_onto_a_full_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.mkdir(DIR, b"e").await?;
    c.walk_whole(DIR, B, &[b"e"]).await?;
    c.put(B, b"f", TEXT).await?;
    refused(&mut c, b"d", b"e", "the directory is not empty").await?;
    hold(c.content_of(B, b"f").await? == TEXT, || "the refused rename has changed what is below".into())
}

async fn renameat_into_itself_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    let asked = Tmsg::Renameat { olddirfid: DIR, oldname: b"d", newdirfid: B, newname: b"e" };
    c.supported_but_refused(asked, "a directory cannot move below itself").await?;
    hold(c.exists(DIR, b"d").await?, || "the directory is gone".into())
}

async fn renameat_of_nothing_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    refused(&mut c, b"no-such-file-4f1c", b"g", "the name does not exist").await
}

async fn renameat_by_a_bad_name_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.mkdir(DIR, b"d").await?;
    for bad in [&b"."[..], b"..", b"d/g", b"../g"] {
        refused(&mut c, b"f", bad, "no file can have this name").await?;
    }
    hold(c.content_of(DIR, b"f").await? == TEXT, || "a refused rename has moved the file".into())
}

async fn renameat2_replaces_nothing_when_told(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.put(DIR, b"g", b"there").await?;
    one_of(&renameat2_refused(&mut c, (DIR, b"f"), (DIR, b"g"), 1, "the name exists").await?, &[17, 22])?;
    hold(c.content_of(DIR, b"g").await? == b"there", || "the refused rename has replaced the file".into())?;
    hold(c.content_of(DIR, b"f").await? == TEXT, || "the refused rename has moved the file".into())?;
    renameat2(&mut c, b"f", b"h", 1).await?;
    hold(!c.exists(DIR, b"f").await?, || "the old name is still there".into())?;
    hold(c.content_of(DIR, b"h").await? == TEXT, || "the content is another one".into())
}

async fn renameat2_exchanges_two_files(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    one_of(
        &renameat2_refused(&mut c, (DIR, b"f"), (DIR, b"g"), 2, "one name does not exist").await?,
        &[2, 22],
    )?;
    c.put(DIR, b"g", b"there").await?;
    c.walk(A, B, &[]).await?;
    c.open(B, OpenFlags::RDWR).await?;
    renameat2(&mut c, b"f", b"g", 2).await?;
    hold(c.content_of(DIR, b"f").await? == b"there", || "the first name leads to another file".into())?;
    hold(c.content_of(DIR, b"g").await? == TEXT, || "the second name leads to another file".into())?;
    c.write_all(B, 0, b"SOME").await?;
    hold(c.content_of(DIR, b"g").await? == b"SOME text", || "what an open fid wrote is not there".into())
}

async fn renameat2_exchanges_a_file_and_a_directory(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.mkdir(DIR, b"d").await?;
    c.mkdir(DIR, b"e").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    c.put(B, b"below", b"there").await?;
    c.walk_whole(DIR, C, &[b"e"]).await?;
    knows_renameat2(&mut c).await?;
    // Without flags it is equivalent to Trenameat.
    for (oldname, flags) in [(&b"d"[..], 0), (b"f", 2)] {
        renamed(&mut c, Tmsg::Renameat2 { olddirfid: DIR, oldname, newdirfid: C, newname: b"x", flags })
            .await?;
    }
    c.walk_whole(DIR, D, &[b"f"]).await?;
    hold(c.content_of(D, b"below").await? == b"there", || "what is below the directory has gone".into())?;
    hold(c.content_of(C, b"x").await? == TEXT, || "the file is not in the directory's place".into())?;
    hold(c.content_of(B, b"below").await? == b"there", || "the directory's fid leads elsewhere".into())
}

async fn renameat2_of_a_directory_and_one_above_it_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    c.mkdir(B, b"e").await?;
    for (old, new) in [((DIR, &b"d"[..]), (B, &b"e"[..])), ((B, b"e"), (DIR, b"d"))] {
        let why = "a directory cannot move below itself";
        one_of(&renameat2_refused(&mut c, old, new, 2, why).await?, &[22])?;
    }
    hold(c.exists(B, b"e").await?, || "the refused rename has moved the directory".into())
}

async fn renameat2_with_other_flags_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for flags in [3, 4, 1 << 31] {
        let got =
            renameat2_refused(&mut c, (DIR, b"f"), (DIR, b"g"), flags, "the flags are not known").await?;
        one_of(&got, &[22])?;
    }
    hold(c.exists(DIR, b"f").await?, || "a refused rename has moved the file".into())
}

/// Skips the case unless the server has the changes file. Such a server knows the message or refuses it; others might
/// end the connection.
async fn knows_renameat2(c: &mut CheckedConnection) -> CaseResult {
    match c.exists(ROOT, b"#changes").await? {
        true => Ok(()),
        false => skip("the server tells no changes, and is not asked for Trenameat2"),
    }
}

async fn renameat2(c: &mut CheckedConnection, oldname: &[u8], newname: &[u8], flags: u32) -> CaseResult {
    knows_renameat2(c).await?;
    renamed(c, Tmsg::Renameat2 { olddirfid: DIR, oldname, newdirfid: DIR, newname, flags }).await
}

/// A multiplexer answers EINVAL if its upstream can only rename without flags, like rename(2).
async fn renamed(c: &mut CheckedConnection, asked: Tmsg<'_>) -> CaseResult {
    let got = c.call(asked).await?;
    match errno(&got) {
        _ if !got.is_error() => Ok(()),
        22 | EXDEV | 38 | 95 => skip(format!("the server cannot rename so: {}", got.text())),
        _ => fail(format!("Trenameat2 was refused: {}", got.text())),
    }
}

async fn renameat2_refused(
    c: &mut CheckedConnection,
    (olddirfid, oldname): (Fid, &[u8]),
    (newdirfid, newname): (Fid, &[u8]),
    flags: u32,
    why: &str,
) -> CaseResult<ReceivedReply> {
    knows_renameat2(c).await?;
    c.supported_but_refused(Tmsg::Renameat2 { olddirfid, oldname, newdirfid, newname, flags }, why).await
}

async fn unlinkat_takes_the_name(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    unlinkat(&mut c, b"f", 0).await?;
    hold(!c.exists(DIR, b"f").await?, || "the name is still there".into())
}

async fn unlinkat_clunks_no_fid(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    unlinkat(&mut c, b"f", 0).await?;
    c.attr(DIR).await?;
    // The file is removed, but the fid stays in use until its clunk.
    c.refused(walk(DIR, A, &[b".."]), "the fid is still in use").await?;
    c.clunk(A).await
}

async fn unlinkat_removes_a_directory_when_told(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    unlinkat(&mut c, b"d", REMOVEDIR).await?;
    hold(!c.exists(DIR, b"d").await?, || "the directory is still there".into())
}

async fn unlinkat_of_a_directory_needs_the_flag(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.supported_but_refused(Tmsg::Unlinkat { dirfid: DIR, name: b"d", flags: 0 }, "it is a directory")
        .await?;
    hold(c.exists(DIR, b"d").await?, || "the directory is gone".into())
}

async fn unlinkat_of_a_file_refuses_the_flag(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.supported_but_refused(
        Tmsg::Unlinkat { dirfid: DIR, name: b"f", flags: REMOVEDIR },
        "it is no directory",
    )
    .await?;
    hold(c.exists(DIR, b"f").await?, || "the file is gone".into())
}

async fn unlinkat_of_a_full_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, B, &[b"d"]).await?;
    c.put(B, b"f", TEXT).await?;
    let asked = Tmsg::Unlinkat { dirfid: DIR, name: b"d", flags: REMOVEDIR };
    c.supported_but_refused(asked, "the directory is not empty").await?;
    hold(c.content_of(B, b"f").await? == TEXT, || "what was below is gone".into())
}

async fn unlinkat_of_nothing_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let asked = Tmsg::Unlinkat { dirfid: DIR, name: b"no-such-file-4f1c", flags: 0 };
    one_of(&c.supported_but_refused(asked, "the name does not exist").await?, &[2])
}

async fn unlinkat_of_a_link_leaves_its_target(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    symlink(&mut c, b"l", b"f").await?;
    unlinkat(&mut c, b"l", 0).await?;
    hold(!c.exists(DIR, b"l").await?, || "the link is still there".into())?;
    hold(c.content_of(DIR, b"f").await? == TEXT, || "its target is gone".into())
}

async fn mkdir_leaves_the_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let before = c.attr(DIR).await?.qid;
    let made = c.mkdir(DIR, b"d").await?;
    let after = c.attr(DIR).await?.qid;
    hold(before.path == after.path && made.path != after.path, || format!("the fid is of {after} now"))?;
    c.walk_whole(DIR, D, &[b"d"]).await.map(drop)
}

async fn symlink(c: &mut CheckedConnection, name: &[u8], target: &[u8]) -> CaseResult {
    let asked = Tmsg::Symlink { dfid: DIR, name, target, gid: c.gid };
    c.supported(asked).await.map(drop)
}

/// Moves a file to another directory. A server may treat each directory as another file system (rename(2): EXDEV).
async fn moved(c: &mut CheckedConnection, asked: Tmsg<'_>) -> CaseResult {
    let label = asked.label();
    let got = c.call(asked).await?;
    match errno(&got) {
        _ if !got.is_error() => Ok(()),
        EXDEV | 38 | 95 => skip(format!("the server moves no file to another directory: {}", got.text())),
        _ => fail(format!("{label} was refused: {}", got.text())),
    }
}

async fn renameat(c: &mut CheckedConnection, oldname: &[u8], newname: &[u8]) -> CaseResult {
    c.supported(Tmsg::Renameat { olddirfid: DIR, oldname, newdirfid: DIR, newname }).await.map(drop)
}

async fn refused(c: &mut CheckedConnection, oldname: &[u8], newname: &[u8], why: &str) -> CaseResult {
    c.supported_but_refused(Tmsg::Renameat { olddirfid: DIR, oldname, newdirfid: DIR, newname }, why)
        .await
        .map(drop)
}

async fn unlinkat(c: &mut CheckedConnection, name: &[u8], flags: u32) -> CaseResult {
    c.supported(Tmsg::Unlinkat { dirfid: DIR, name, flags }).await.map(drop)
}

const EXDEV: u32 = 18;
