//! Errors: their texts and numbers.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{OpenFlags, show};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::ReceivedReply;
use crate::scene::{A, B, CaseContext, DIR, ROOT};
use crate::talk::walk;

cases! { "errors":
    they_have_a_text, Stat, Nothing,
        "error(5): ename is a string that describes the error";
    they_have_a_number, Errno, Nothing,
        "9P2000.u: Rerror carries errno; 9P2000.L: Rlerror carries a Linux errno";
    a_missing_file_is_enoent, Errno, Nothing,
        "errno(3): ENOENT, no such file or directory: what clients take for 'it can be created'";
    an_existing_file_is_eexist, Errno, Dir,
        "errno(3): EEXIST, the file exists";
    a_full_directory_is_enotempty, Errno, Dir,
        "errno(3): ENOTEMPTY, the directory is not empty (or EEXIST, as POSIX allows)";
    a_file_as_a_directory_is_enotdir, Errno, Dir,
        "errno(3): ENOTDIR, not a directory";
}

async fn they_have_a_text(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let got = c.refused(walk(ROOT, A, &[b"no-such-file-4f1c"]), "the name does not exist").await?;
    let Rmsg::Error { ename, .. } = got.msg() else { return fail("an Rerror was expected") };
    let text = std::str::from_utf8(ename);
    hold(text.is_ok_and(|text| !text.is_empty() && !text.contains('\0')), || {
        format!("the text is '{}'", show(ename))
    })
}

async fn they_have_a_number(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let got = c.refused(walk(ROOT, A, &[b"no-such-file-4f1c"]), "the name does not exist").await?;
    let errno = errno(&got);
    hold((1..4096).contains(&errno), || format!("the number is {errno}"))
}

async fn a_missing_file_is_enoent(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let got = c.refused(walk(ROOT, A, &[b"no-such-file-4f1c"]), "the name does not exist").await?;
    one_of(&got, &[2])
}

async fn an_existing_file_is_eexist(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk(DIR, A, &[]).await?;
    let asked = c.tcreate(A, b"f", OpenFlags::RDWR, 0o644);
    let got = c.refused(asked, "the name exists").await?;
    one_of(&got, &[17])
}

async fn a_full_directory_is_enotempty(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.mkdir(DIR, b"d").await?;
    c.walk_whole(DIR, A, &[b"d"]).await?;
    c.put(A, b"f", b"").await?;
    let got = c.supported_but_refused(Tmsg::Remove { fid: A }, "the directory is not empty").await?;
    one_of(&got, &[39, 17])
}

async fn a_file_as_a_directory_is_enotdir(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    let got = c.refused(walk(A, B, &[b"x"]), "it is a plain file").await?;
    one_of(&got, &[20])
}

pub(super) fn errno(got: &ReceivedReply) -> u32 {
    match got.msg() {
        Rmsg::Lerror { ecode } => ecode,
        Rmsg::Error { errno, .. } => errno.0,
        _ => 0,
    }
}

pub(super) fn one_of(got: &ReceivedReply, allowed: &[u32]) -> CaseResult {
    let errno = errno(got);
    hold(allowed.contains(&errno), || format!("the error is {errno}, not {}", allowed[0]))
}
