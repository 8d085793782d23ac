//! Tauth and Tattach: users and trees.

use nine_proto::msg::{OnlyIds, Rmsg, Tmsg};
use nine_proto::{Fid, Qid};

use crate::case::{CaseResult, cases, hold};
use crate::scene::{A, B, CaseContext, MSIZE, ROOT};

cases! { "attach":
    the_root_is_a_directory, Any, Nothing,
        "attach(5): the fid stands for the root of the file tree; intro(5): the root is a directory";
    the_root_keeps_its_qid, Any, Nothing,
        "intro(5): two files are the same if and only if their qids are the same";
    several_on_one_connection, Any, Nothing,
        "attach(5): a client may attach several times, with different fids";
    a_fid_in_use_is_refused, Any, Nothing,
        "attach(5): an error is returned if fid is already in use";
    an_unknown_afid_is_refused, Any, Nothing,
        "attach(5): afid is NOFID, or has been established by an auth message";
    an_afid_that_is_a_file_is_refused, Any, Nothing,
        "attach(5): afid is NOFID, or has been established by an auth message";
    a_failure_makes_no_fid, Any, Nothing,
        "attach(5): the fid is made by a successful attach only";
    auth_is_refused_or_gives_an_auth_file, Any, Nothing,
        "attach(5): a server that needs no authentication answers Rerror; aqid is of type QTAUTH";
}

async fn the_root_is_a_directory(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    let qid = s.attach(&mut c, ROOT).await?;
    hold(qid.is_dir(), || format!("the root's qid is {qid}"))
}

async fn the_root_keeps_its_qid(s: &CaseContext) -> CaseResult {
    let mut paths = Vec::new();
    for _ in 0..2 {
        let mut c = s.version(MSIZE).await?;
        paths.push(s.attach(&mut c, ROOT).await?.path);
        paths.push(c.attr(ROOT).await?.qid.path);
    }
    hold(paths.iter().all(|path| *path == paths[0]), || format!("the root's qid paths are {paths:x?}"))
}

async fn several_on_one_connection(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    let first = s.attach(&mut c, A).await?;
    let second = s.attach(&mut c, B).await?;
    hold(first.path == second.path, || format!("two attaches gave {first} and {second}"))?;
    c.clunk(A).await?;
    c.attr(B).await.map(drop)
}

async fn a_fid_in_use_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    s.attach(&mut c, A).await?;
    c.refused(s.tattach(A), "its fid is in use").await?;
    c.attr(A).await.map(drop)
}

async fn an_unknown_afid_is_refused(s: &CaseContext) -> CaseResult {
    with_afid(s, A, Fid(77)).await
}

async fn an_afid_that_is_a_file_is_refused(s: &CaseContext) -> CaseResult {
    with_afid(s, A, ROOT).await
}

async fn with_afid(s: &CaseContext, fid: Fid, other: Fid) -> CaseResult {
    let mut c = s.session().await?;
    let mut asked = s.tattach(fid);
    if let Tmsg::Attach { afid, .. } = &mut asked {
        *afid = other;
    }
    c.refused(asked, "its afid is not from a Tauth").await.map(drop)
}

async fn a_failure_makes_no_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let mut asked = s.tattach(A);
    if let Tmsg::Attach { afid, .. } = &mut asked {
        *afid = Fid(77);
    }
    if !c.call(asked).await?.is_error() {
        return crate::case::skip("the attach that was to fail succeeded");
    }
    let asked = c.tattr(A);
    c.refused(asked, "the attach of this fid has failed").await?;
    s.attach(&mut c, A).await.map(drop)
}

async fn auth_is_refused_or_gives_an_auth_file(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    let options = &s.server.options;
    let asked = Tmsg::Auth {
        afid: A,
        uname: options.uname.as_bytes(),
        aname: options.aname.as_bytes(),
        n_uname: OnlyIds(options.uid),
    };
    let got = c.call(asked).await?;
    match got.msg() {
        Rmsg::Auth { aqid } => hold(aqid.ty & Qid::AUTH != 0, || format!("the aqid is {aqid}")),
        // A refused Tauth must not have created the fid.
        _ => s.attach(&mut c, A).await.map(drop),
    }
}
