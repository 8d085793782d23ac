//! Tversion: the start of a session, and its restart.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Fid, NOTAG, OpenFlags, show};

use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::conn::{CheckedConnection, ConnectionEvent};
use crate::scene::{A, CaseContext, DIR, MSIZE, ROOT};
use crate::talk::walk;

cases! { "version":
    the_dialect_is_agreed_on, Any, Nothing,
        "version(5): the server answers with the version string of the protocol it will speak";
    msize_is_not_raised, Any, Nothing,
        "version(5): the server's msize must be less than or equal to the client's";
    tag_is_echoed, Any, Nothing,
        "version(5): the tag should be NOTAG; intro(5): the response has the tag of its request";
    unknown_is_not_an_error, Any, Nothing,
        "version(5): a version string that is not understood is answered by Rversion 'unknown', not by Rerror";
    a_suffix_may_be_dropped_but_not_echoed, Any, Nothing,
        "version(5): after a period the server may ignore the rest of the client's string";
    a_request_before_it_does_not_hurt_the_server, Any, Nothing,
        "version(5): it must be the first message; a client that is wrong is answered or cut off";
    a_tiny_msize_is_refused_or_kept, Any, Nothing,
        "version(5): the server's msize must be less than or equal to the client's";
    again_clunks_all_fids, Any, Nothing,
        "version(5): it initializes the connection; all fids are freed ('clunked') automatically";
    again_aborts_what_is_outstanding, Any, Nothing,
        "version(5): all outstanding I/O on the connection is aborted";
    again_may_change_the_dialect, Any, Nothing,
        "version(5): a successful version request initializes the connection";
    again_removes_on_close, Stat, Dir,
        "version(5): fids are clunked; open(5): ORCLOSE removes the file when the fid is clunked";
}

async fn the_dialect_is_agreed_on(s: &CaseContext) -> CaseResult {
    let mut c = s.version(MSIZE).await?;
    s.attach(&mut c, ROOT).await.map(drop)
}

async fn msize_is_not_raised(s: &CaseContext) -> CaseResult {
    for msize in [4096, 12_345, 1 << 20, 1 << 30] {
        let mut c = s.dial().await?;
        let (agreed, _) = propose(&mut c, msize, s.dialect.name().as_bytes()).await?;
        hold(agreed <= msize, || format!("{msize} was proposed, and {agreed} came"))?;
    }
    Ok(())
}

async fn tag_is_echoed(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    let asked = Tmsg::Version { msize: MSIZE, version: s.dialect.name().as_bytes() };
    c.send(NOTAG.0, &asked).await?;
    let got = c.answer(NOTAG.0, &asked).await?;
    hold(!got.is_error(), || "a version that the server knows was refused".into())
}

async fn unknown_is_not_an_error(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    let (_, version) = propose(&mut c, MSIZE, b"8P1999").await?;
    hold(version == b"unknown", || format!("'{}' came", show(&version)))
}

async fn a_suffix_may_be_dropped_but_not_echoed(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    let asked = [s.dialect.name(), ".no-such-extension"].concat();
    // Another case tests that it is not an error.
    let got = c.call(Tmsg::Version { msize: MSIZE, version: asked.as_bytes() }).await?;
    let Rmsg::Version { version, .. } = got.msg() else { return Ok(()) };
    let other = version == b"unknown" || version.starts_with(b"9P") && version.len() < asked.len();
    hold(other, || format!("'{asked}' was answered by '{}'", show(version)))
}

async fn a_request_before_it_does_not_hurt_the_server(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    c.send(1, &s.tattach(ROOT)).await?;
    // Any answer is correct, since the client has made the error.
    c.event().await?;
    s.session().await?.attr(ROOT).await.map(drop)
}

async fn a_tiny_msize_is_refused_or_kept(s: &CaseContext) -> CaseResult {
    for msize in [0, 7, 23] {
        let mut c = s.dial().await?;
        c.send(NOTAG.0, &Tmsg::Version { msize, version: s.dialect.name().as_bytes() }).await?;
        if let ConnectionEvent::Got(got) = c.event().await?
            && let Rmsg::Version { msize: agreed, version } = got.msg()
        {
            hold(agreed <= msize || version == b"unknown", || {
                format!("{msize} was proposed, and {agreed} came")
            })?;
        }
    }
    Ok(())
}

async fn again_clunks_all_fids(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    c.version(MSIZE, s.dialect).await?;
    for fid in [ROOT, A] {
        let asked = c.tattr(fid);
        c.refused(asked, "a second Tversion has freed the fid").await?;
    }
    s.attach(&mut c, ROOT).await.map(drop)
}

async fn again_aborts_what_is_outstanding(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let version = Tmsg::Version { msize: MSIZE, version: s.dialect.name().as_bytes() };
    let clones: Vec<_> = (0..8).map(|n| (n + 1, walk(ROOT, Fid(100 + u32::from(n)), &[]))).collect();
    c.send_all(&[&clones[..], &[(NOTAG.0, version.clone())]].concat()).await?;
    // Answers may come until the Rversion, and none after it.
    for _ in 0..=clones.len() {
        let got = c.receive().await?;
        if got.tag() == NOTAG {
            hold(matches!(got.msg(), Rmsg::Version { .. }), || "Rversion was expected".into())?;
            s.attach(&mut c, A).await?;
            return c.attr(A).await.map(drop);
        }
    }
    fail("the second Tversion has no answer")
}

async fn again_may_change_the_dialect(s: &CaseContext) -> CaseResult {
    let Some(&other) = s.offered.iter().find(|&&other| other != s.dialect) else {
        return skip("the server offers one dialect only, or only one is checked");
    };
    let mut c = s.session().await?;
    c.version(MSIZE, other).await?;
    s.attach(&mut c, ROOT).await?;
    c.attr(ROOT).await.map(drop)
}

async fn again_removes_on_close(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR | OpenFlags::RCLOSE, 0o644);
    c.ok(asked).await?;
    c.version(MSIZE, s.dialect).await?;
    super::clunk::is_gone(s, b"f").await
}

/// Sends Tversion. Returns the agreed msize and version.
async fn propose(c: &mut CheckedConnection, msize: u32, version: &[u8]) -> CaseResult<(u32, Vec<u8>)> {
    match c.ok(Tmsg::Version { msize, version }).await?.msg() {
        Rmsg::Version { msize, version } => Ok((msize, version.to_vec())),
        _ => fail("an Rversion was expected"),
    }
}
