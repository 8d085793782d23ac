//! Msize: the maximum length of a message.

use nine_proto::msg::{Data, Tmsg};
use nine_proto::{NOTAG, OpenFlags};

use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::scene::{A, CaseContext, DIR, MSIZE, ROOT};
use crate::talk::IOHDRSZ;

cases! { "msize":
    no_rread_is_longer, Any, Dir,
        "version(5): after the agreement no message is longer than msize, whatever count is asked for";
    no_directory_read_is_longer, Any, Dir,
        "version(5): after the agreement no message is longer than msize, whatever count is asked for";
    a_full_twrite_is_taken, Any, Dir,
        "open(5): if iounit is zero, it is msize less the room of a header (IOHDRSZ, 24)";
    a_smaller_one_is_agreed_to, Any, Nothing,
        "version(5): the client proposes msize; the server answers with the smaller of both wishes";
    again_it_may_be_lowered, Any, Dir,
        "version(5): a successful version request initializes the connection";
    a_full_walk_fits_into_the_least, Any, Dir,
        "version(5): msize includes the whole message; walk(5): sixteen qids in one";
}

async fn no_rread_is_longer(s: &CaseContext) -> CaseResult {
    let mut c = s.here_with(COMMON_MSIZE_MIN).await?;
    c.make(DIR, A, b"f", &vec![7; 50_000]).await?;
    for count in [c.msize, 20_000, 0x7fff_ffff, u32::MAX] {
        // A server may refuse it. A longer answer fails when it is received.
        let got = c.call(Tmsg::Read { fid: A, offset: 0, count }).await?;
        hold(got.len() <= c.msize as usize, || format!("an answer of {} bytes", got.len()))?;
    }
    let data = c.read(A, 0, c.msize - IOHDRSZ).await?;
    hold(!data.is_empty(), || "a read that fits into msize brings nothing".into())
}

async fn no_directory_read_is_longer(s: &CaseContext) -> CaseResult {
    let mut c = s.here_with(COMMON_MSIZE_MIN).await?;
    for n in 0..100 {
        c.put(DIR, format!("a-name-that-takes-some-room-{n:03}").as_bytes(), b"").await?;
    }
    c.walk(DIR, A, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    let (fid, offset) = (A, 0);
    for count in [30_000, u32::MAX] {
        let l = c.dialect.is_l();
        let asked = if l { Tmsg::Readdir { fid, offset, count } } else { Tmsg::Read { fid, offset, count } };
        c.call(asked).await?;
    }
    let entries = c.entries(A, c.msize - IOHDRSZ).await?;
    hold(entries.len() == 100, || format!("100 files, {} entries", entries.len()))
}

async fn a_full_twrite_is_taken(s: &CaseContext) -> CaseResult {
    let mut c = s.here_with(COMMON_MSIZE_MIN).await?;
    c.make(DIR, A, b"f", b"").await?;
    let data = vec![9; (c.msize - IOHDRSZ) as usize];
    let n = c.write(A, 0, &data).await?;
    hold(n > 0, || "a Twrite that fits into msize wrote nothing".into())
}

async fn a_smaller_one_is_agreed_to(s: &CaseContext) -> CaseResult {
    let c = s.session_with(COMMON_MSIZE_MIN).await?;
    hold(c.msize <= COMMON_MSIZE_MIN, || format!("{COMMON_MSIZE_MIN} was proposed, {} agreed", c.msize))
}

async fn again_it_may_be_lowered(s: &CaseContext) -> CaseResult {
    let mut c = s.here_with(MSIZE).await?;
    c.put(DIR, b"f", &vec![7; 50_000]).await?;
    c.version(COMMON_MSIZE_MIN, s.dialect).await?;
    s.attach(&mut c, ROOT).await?;
    let path: Vec<&[u8]> = s.server.options.path.iter().chain(&s.dir).map(Vec::as_slice).collect();
    c.walk_whole(ROOT, A, &[&path[..], &[b"f"]].concat()).await?;
    c.open(A, OpenFlags::READ).await?;
    let got = c.call(Tmsg::Read { fid: A, offset: 0, count: 50_000 }).await?;
    hold(got.len() <= COMMON_MSIZE_MIN as usize, || format!("an answer of {} bytes", got.len()))
}

async fn a_full_walk_fits_into_the_least(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    let asked = Tmsg::Version { msize: 512, version: s.dialect.name().as_bytes() };
    c.send(NOTAG.0, &asked).await?;
    if !matches!(c.frame().await?, Some(frame) if frame[4] == 101) {
        return skip("the server does not agree to an msize of 512");
    }
    let mut c = s.here_with(512).await?;
    c.mkdir(DIR, b"d").await?;
    let names: Vec<&[u8]> = [&b"d"[..], b".."].repeat(8);
    let qids = c.walk(DIR, A, &names).await?;
    hold(qids.len() == 16, || format!("16 names that exist, {} qids", qids.len()))?;
    match c.call(Tmsg::Write { fid: A, offset: 0, data: Data::Bytes(&[0; 400]) }).await? {
        got if got.is_error() => Ok(()),
        _ => fail("a directory that is not open was written"),
    }
}

/// The minimum for Linux clients and some servers, in bytes.
const COMMON_MSIZE_MIN: u32 = 4096;
