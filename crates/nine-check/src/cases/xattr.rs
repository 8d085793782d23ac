//! Txattrwalk and Txattrcreate of 9P2000.L: extended attributes.

use nine_proto::msg::{Data, Rmsg, Tmsg};
use nine_proto::{Fid, OpenFlags};

use super::attr::{TEXT, file};
use super::errors::errno;
use crate::case::{CaseResult, cases, fail, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, C, CaseContext, D};

cases! { "xattr":
    set_and_get, L, Dir,
        "9P2000.L Txattrcreate: write the value with Twrite, Tclunk stores it; Txattrwalk: read it with Tread";
    the_list_has_the_names, L, Dir,
        "9P2000.L Txattrwalk: with an empty name newfid has the list of names, each ended by NUL";
    a_missing_one_is_an_error, L, Dir,
        "getxattr(2): ENODATA, the named attribute does not exist";
    it_can_be_replaced, L, Dir,
        "setxattr(2): by default the attribute is created or its value replaced";
    it_can_be_removed, L, Dir,
        "9P2000.L Txattrcreate: attr_size zero with XATTR_REPLACE is Linux's removexattr(2)";
    what_is_not_whole_is_not_stored, L, Dir,
        "9P2000.L Txattrcreate: it is an error if the bytes written are not attr_size";
    more_than_was_said_is_refused, L, Dir,
        "9P2000.L Txattrcreate: it is an error if the bytes written are not attr_size";
    the_size_is_told, L, Dir,
        "9P2000.L Rxattrwalk: size is that of the value";
    the_file_is_not_touched, L, Dir,
        "9P2000.L Txattrwalk: fid stays where it is; attributes are beside the content";
    create_refuses_what_exists, L, Dir,
        "setxattr(2): XATTR_CREATE fails if the attribute exists";
}

async fn set_and_get(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for value in [&b"value"[..], &[0, 1, 2, 255], &[b'x'; 1000]] {
        set(&mut c, NAME, value, 0).await?;
        let got = get(&mut c, NAME).await?;
        hold(got == value, || format!("of a value of {} bytes came {}", value.len(), got.len()))?;
    }
    Ok(())
}

async fn the_list_has_the_names(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"1", 0).await?;
    set(&mut c, b"user.check.two", b"2", 0).await?;
    let list = get(&mut c, b"").await?;
    let names: Vec<&[u8]> = list.split(|b| *b == 0).collect();
    hold(list.ends_with(&[0]) && names.contains(&NAME) && names.contains(&&b"user.check.two"[..]), || {
        format!("the list is \"{}\"", list.escape_ascii())
    })
}

async fn a_missing_one_is_an_error(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"1", 0).await?;
    let asked = Tmsg::Xattrwalk { fid: A, newfid: C, name: b"user.no-such" };
    c.refused(asked, "the attribute does not exist").await?;
    let asked = c.tattr(C);
    c.refused(asked, "the Txattrwalk to this fid has failed").await.map(drop)
}

async fn it_can_be_replaced(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"a long first value", 0).await?;
    set(&mut c, NAME, b"short", 0).await?;
    let got = get(&mut c, NAME).await?;
    hold(got == b"short", || format!("it is \"{}\" now", got.escape_ascii()))
}

async fn it_can_be_removed(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"value", 0).await?;
    set(&mut c, NAME, b"", XATTR_REPLACE).await?;
    let asked = Tmsg::Xattrwalk { fid: A, newfid: C, name: NAME };
    c.refused(asked, "the attribute was removed").await.map(drop)
}

async fn what_is_not_whole_is_not_stored(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"old", 0).await?;
    c.walk(A, B, &[]).await?;
    c.ok(Tmsg::Xattrcreate { fid: B, name: NAME, size: 10, flags: 0 }).await?;
    c.write(B, 0, b"half").await?;
    c.refused(Tmsg::Clunk { fid: B }, "4 of 10 bytes have been written").await?;
    let got = get(&mut c, NAME).await?;
    hold(got == b"old", || format!("it is \"{}\" now", got.escape_ascii()))
}

async fn more_than_was_said_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"old", 0).await?;
    c.walk(A, B, &[]).await?;
    c.ok(Tmsg::Xattrcreate { fid: B, name: NAME, size: 3, flags: 0 }).await?;
    let asked = Tmsg::Write { fid: B, offset: 0, data: Data::Bytes(b"too long") };
    // The write may be refused or short, or the clunk may fail.
    let got = c.call(asked).await?;
    let short = got.is_error() || matches!(got.msg(), Rmsg::Write { count: 0..=3 });
    let clunked = c.call(Tmsg::Clunk { fid: B }).await?;
    hold(short || clunked.is_error(), || "8 bytes were stored where 3 had been said".into())
}

async fn the_size_is_told(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, &[7; 123], 0).await?;
    match c.ok(Tmsg::Xattrwalk { fid: A, newfid: C, name: NAME }).await?.msg() {
        Rmsg::Xattrwalk { size: 123 } => Ok(()),
        other => fail(format!("the value has 123 bytes: {other:?}")),
    }
}

async fn the_file_is_not_touched(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let before = c.attr(A).await?;
    set(&mut c, NAME, b"value", 0).await?;
    get(&mut c, NAME).await?;
    let after = c.attr(A).await?;
    hold((before.qid.path, before.size, before.mtime) == (after.qid.path, after.size, after.mtime), || {
        "the file's attributes have changed".into()
    })?;
    c.walk(A, D, &[]).await?;
    c.open(D, OpenFlags::READ).await?;
    hold(c.content(D).await? == TEXT, || "the file's content has changed".into())
}

async fn create_refuses_what_exists(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    set(&mut c, NAME, b"old", 0).await?;
    c.walk(A, B, &[]).await?;
    let asked = Tmsg::Xattrcreate { fid: B, name: NAME, size: 3, flags: XATTR_CREATE };
    if !c.call(asked).await?.is_error() {
        c.write(B, 0, b"new").await?;
        c.refused(Tmsg::Clunk { fid: B }, "the attribute exists").await?;
    }
    let got = get(&mut c, NAME).await?;
    hold(got == b"old", || format!("it is \"{}\" now", got.escape_ascii()))
}

/// Sets an attribute of A. Skips the case if the server lacks extended attributes.
async fn set(c: &mut CheckedConnection, name: &[u8], value: &[u8], flags: u32) -> CaseResult {
    c.walk(A, B, &[]).await?;
    c.supported(Tmsg::Xattrcreate { fid: B, name, size: value.len() as u64, flags }).await?;
    if !value.is_empty() {
        let n = c.write(B, 0, value).await?;
        hold(n as usize == value.len(), || format!("of {} bytes of the value {n} were taken", value.len()))?;
    }
    let got = c.call(Tmsg::Clunk { fid: B }).await?;
    match errno(&got) {
        0 => Ok(()),
        95 => skip("the server's file system has no such attributes"),
        _ => fail(format!("the attribute was not stored: {}", got.text())),
    }
}

/// Reads an attribute of A, or the list of names.
async fn get(c: &mut CheckedConnection, name: &[u8]) -> CaseResult<Vec<u8>> {
    c.ok(Tmsg::Xattrwalk { fid: A, newfid: GOT, name }).await?;
    let value = c.content(GOT).await?;
    c.clunk(GOT).await?;
    Ok(value)
}

const NAME: &[u8] = b"user.check";
const GOT: Fid = Fid(14);
const XATTR_CREATE: u32 = 1;
const XATTR_REPLACE: u32 = 2;
