//! Fids: numbers that the client chooses for files.

use nine_proto::msg::{Data, OnlyUStr, OptionalU32, Tmsg};
use nine_proto::{Fid, NOFID, Stat};

use crate::case::{CaseResult, cases, fail, hold};
use crate::scene::{A, B, CaseContext, DIR, ROOT};
use crate::talk::walk;

cases! { "fids":
    an_unknown_one_is_refused_by_every_message, Any, Nothing,
        "intro(5): a fid is made by attach or walk; any other number is an error";
    any_number_will_do, Any, Nothing,
        "intro(5): a fid is a 32-bit number that the client chooses";
    nofid_is_never_known, Any, Nothing,
        "intro(5): NOFID is no fid";
    each_connection_has_its_own, Any, Nothing,
        "intro(5): fids belong to the connection on which they were made";
    two_hundred, Any, Nothing,
        "intro(5): the client manages the fids; the server keeps what is behind each";
    one_for_several_requests_at_once, Any, Dir,
        "intro(5): several requests may be outstanding, also of one fid";
    a_clunk_behind_other_requests, Any, Dir,
        "clunk(5): the fid is gone; the requests before it are answered";
    a_number_is_free_after_a_failure, Any, Nothing,
        "walk(5): a walk that fails leaves newfid as it was";
}

async fn an_unknown_one_is_refused_by_every_message(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let (fid, name, gid) = (Fid(777), &b"x"[..], c.gid);
    let mut all = vec![
        walk(fid, A, &[]),
        Tmsg::Read { fid, offset: 0, count: 10 },
        Tmsg::Write { fid, offset: 0, data: Data::Bytes(b"x") },
        Tmsg::Clunk { fid },
        Tmsg::Remove { fid },
    ];
    if c.dialect.is_l() {
        let (dfid, client_id) = (fid, &b"check"[..]);
        all.extend([
            Tmsg::Statfs { fid },
            Tmsg::Lopen { fid, flags: 0 },
            Tmsg::Lcreate { fid, name, flags: 2, mode: 0o644, gid },
            Tmsg::Symlink { dfid, name, target: b"t", gid },
            Tmsg::Mknod { dfid, name, mode: 0o010644, major: 0, minor: 0, gid },
            Tmsg::Rename { fid, dfid: ROOT, name },
            Tmsg::Readlink { fid },
            Tmsg::Getattr { fid, mask: 0x7ff },
            super::setattr(fid, 1, |_| {}),
            Tmsg::Xattrwalk { fid, newfid: A, name: b"user.x" },
            Tmsg::Xattrcreate { fid, name: b"user.x", size: 1, flags: 0 },
            Tmsg::Readdir { fid, offset: 0, count: 1000 },
            Tmsg::Fsync { fid, datasync: OptionalU32(0) },
            Tmsg::Lock { fid, ty: 0, flags: 0, start: 0, length: 0, proc_id: 1, client_id },
            Tmsg::Getlock { fid, ty: 0, start: 0, length: 0, proc_id: 1, client_id },
            Tmsg::Link { dfid, fid: ROOT, name },
            Tmsg::Mkdir { dfid, name, mode: 0o755, gid },
            Tmsg::Renameat { olddirfid: fid, oldname: name, newdirfid: ROOT, newname: b"y" },
            Tmsg::Unlinkat { dirfid: fid, name, flags: 0 },
        ]);
    } else {
        let extension = OnlyUStr(b"");
        all.extend([
            Tmsg::Open { fid, mode: 0 },
            Tmsg::Create { fid, name, perm: 0o644, mode: 0, extension },
            Tmsg::Stat { fid },
            Tmsg::Wstat { fid, stat: Stat::DONT_TOUCH },
        ]);
    }
    for asked in all {
        c.refused(asked, "its fid is unknown").await?;
    }
    c.attr(ROOT).await.map(drop)
}

async fn any_number_will_do(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for fid in [2, 0xffff, 0x1_0000, 0x7fff_ffff, 0x8000_0000, 0xffff_fffe] {
        c.walk(ROOT, Fid(fid), &[]).await?;
        c.attr(Fid(fid)).await?;
        c.clunk(Fid(fid)).await?;
    }
    Ok(())
}

async fn nofid_is_never_known(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(NOFID);
    c.refused(asked, "NOFID is no fid").await?;
    c.refused(Tmsg::Clunk { fid: NOFID }, "NOFID is no fid").await.map(drop)
}

async fn each_connection_has_its_own(s: &CaseContext) -> CaseResult {
    let mut one = s.session().await?;
    let mut two = s.session().await?;
    one.walk(ROOT, A, &[]).await?;
    let asked = two.tattr(A);
    two.refused(asked, "the fid is another connection's").await?;
    two.walk(ROOT, A, &[]).await?;
    two.clunk(A).await?;
    one.attr(A).await.map(drop)
}

async fn two_hundred(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for n in 0..200 {
        c.walk(ROOT, Fid(1000 + n), &[]).await?;
    }
    for n in [0, 99, 199] {
        c.attr(Fid(1000 + n)).await?;
    }
    for n in 0..200 {
        c.clunk(Fid(1000 + n)).await?;
    }
    Ok(())
}

async fn one_for_several_requests_at_once(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"0123456789abcdef").await?;
    let read = Tmsg::Read { fid: A, offset: 0, count: 16 };
    let attr = c.tattr(A);
    c.send_all(&[(1, read.clone()), (2, attr.clone()), (3, walk(A, B, &[])), (4, read), (5, attr)]).await?;
    for _ in 0..5 {
        let got = c.receive().await?;
        hold(!got.is_error(), || format!("one of five requests on one fid failed: {}", got.text()))?;
    }
    Ok(())
}

async fn a_clunk_behind_other_requests(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"0123456789abcdef").await?;
    let read = Tmsg::Read { fid: A, offset: 0, count: 16 };
    c.send_all(&[(1, read.clone()), (2, read.clone()), (3, read), (4, Tmsg::Clunk { fid: A })]).await?;
    let mut waiting = vec![1, 2, 3, 4];
    while !waiting.is_empty() {
        // A server that runs them in parallel may have freed the fid before a read.
        let got = c.receive().await?;
        let was = waiting.len();
        waiting.retain(|tag| *tag != got.tag().0);
        hold(waiting.len() < was, || format!("tag {} is not outstanding", got.tag()))?;
        if got.tag().0 == 4 && got.is_error() {
            return fail(format!("the clunk failed: {}", got.text()));
        }
    }
    let asked = c.tattr(A);
    c.refused(asked, "the fid has been clunked").await.map(drop)
}

async fn a_number_is_free_after_a_failure(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for _ in 0..3 {
        c.refused(walk(ROOT, A, &[b"no-such-file-4f1c"]), "the name does not exist").await?;
    }
    c.walk(ROOT, A, &[]).await?;
    c.clunk(A).await
}
