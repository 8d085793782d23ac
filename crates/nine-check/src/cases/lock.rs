//! Tlock and Tgetlock of 9P2000.L: record locks.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Fid, OpenFlags};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};

cases! { "lock":
    a_free_range_is_locked, L, Dir,
        "9P2000.L Tlock: status is P9_LOCK_SUCCESS";
    getlock_of_a_free_range_says_unlocked, L, Dir,
        "9P2000.L Tgetlock: if nothing is in the way, type is P9_LOCK_TYPE_UNLCK";
    two_owners_conflict, L, Dir,
        "9P2000.L Tlock: status is P9_LOCK_BLOCKED if a conflicting lock is held; it never waits";
    getlock_names_who_holds_it, L, Dir,
        "9P2000.L Tgetlock: the conflicting lock is returned";
    readers_share, L, Dir,
        "fcntl(2): any number of owners may hold a read lock on a range";
    a_writer_excludes_readers, L, Dir,
        "fcntl(2): a write lock excludes all others";
    other_ranges_are_free, L, Dir,
        "fcntl(2): a lock is of the bytes from start, length of them; 0: to the end of the file";
    unlock_frees, L, Dir,
        "9P2000.L Tlock: P9_LOCK_TYPE_UNLCK releases";
    the_clunk_frees, L, Dir,
        "9P2000.L Tlock: locks go with the fid they were taken by";
    the_end_of_the_connection_frees, L, Dir,
        "9P2000.L Tlock: locks go with the fid; intro(5): the end of the connection clunks all";
    an_unopened_fid_is_refused, L, Dir,
        "9P2000.L Tlock: fid is that of an open file";
}

async fn a_free_range_is_locked(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    lock(&mut c, "one", WRITE, 0, 10, SUCCESS).await?;
    lock(&mut c, "one", UNLOCK, 0, 10, SUCCESS).await
}

async fn getlock_of_a_free_range_says_unlocked(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    lock(&mut c, "one", READ, 0, 1, SUCCESS).await?;
    lock(&mut c, "one", UNLOCK, 0, 1, SUCCESS).await?;
    let (ty, ..) = getlock(&mut c, "one", WRITE, 0, 10).await?;
    hold(ty == UNLOCK, || format!("nothing is locked, and the type is {ty}"))
}

async fn two_owners_conflict(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 0, 10, SUCCESS).await?;
    lock(&mut two, "two", WRITE, 5, 10, BLOCKED).await
}

async fn getlock_names_who_holds_it(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 3, 7, SUCCESS).await?;
    let (ty, start, length) = getlock(&mut two, "two", READ, 0, 0).await?;
    hold((ty, start, length) == (WRITE, 3, 7), || {
        format!("a write lock of 7 bytes from 3 is told as type {ty}, {length} bytes from {start}")
    })
}

async fn readers_share(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", READ, 0, 10, SUCCESS).await?;
    lock(&mut two, "two", READ, 0, 10, SUCCESS).await
}

async fn a_writer_excludes_readers(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 0, 10, SUCCESS).await?;
    lock(&mut two, "two", READ, 9, 1, BLOCKED).await
}

async fn other_ranges_are_free(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 10, 10, SUCCESS).await?;
    lock(&mut two, "two", WRITE, 0, 10, SUCCESS).await?;
    lock(&mut two, "two", WRITE, 20, 0, SUCCESS).await?;
    lock(&mut one, "one", WRITE, 1000, 1, BLOCKED).await
}

async fn unlock_frees(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 0, 0, SUCCESS).await?;
    lock(&mut two, "two", WRITE, 0, 0, BLOCKED).await?;
    lock(&mut one, "one", UNLOCK, 0, 0, SUCCESS).await?;
    lock(&mut two, "two", WRITE, 0, 0, SUCCESS).await
}

async fn the_clunk_frees(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 0, 0, SUCCESS).await?;
    one.clunk(A).await?;
    lock(&mut two, "two", WRITE, 0, 0, SUCCESS).await
}

async fn the_end_of_the_connection_frees(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = both(s).await?;
    lock(&mut one, "one", WRITE, 0, 0, SUCCESS).await?;
    drop(one);
    while ask(&mut two, "two", WRITE, 0, 0).await? == BLOCKED {
        s.pause().await;
    }
    Ok(())
}

async fn an_unopened_fid_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    // A server without locks refuses this too, for another reason.
    lock(&mut c, "one", READ, 0, 1, SUCCESS).await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    let got = c.call(tlock(B, "one", READ, 5, 1)).await?;
    let refused = matches!(got.msg(), Rmsg::Lock { status: ERROR }) || got.is_error();
    hold(refused, || "a fid that is not open took a lock".into())
}

/// A file `f`, open as A.
async fn file(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", &[0; 100]).await?;
    Ok(c)
}

/// The same on two connections.
async fn both(s: &CaseContext) -> CaseResult<(CheckedConnection, CheckedConnection)> {
    let one = file(s).await?;
    let mut two = s.here().await?;
    two.walk_whole(DIR, A, &[b"f"]).await?;
    two.open(A, OpenFlags::RDWR).await?;
    Ok((one, two))
}

fn tlock(fid: Fid, owner: &str, ty: u8, start: u64, length: u64) -> Tmsg<'_> {
    let proc_id = owner.len() as u32 * 1000 + u32::from(owner.as_bytes()[0]);
    Tmsg::Lock { fid, ty, flags: 0, start, length, proc_id, client_id: owner.as_bytes() }
}

/// Requests a lock by A. Returns its status.
async fn ask(c: &mut CheckedConnection, owner: &str, ty: u8, start: u64, length: u64) -> CaseResult<u8> {
    match c.supported(tlock(A, owner, ty, start, length)).await?.msg() {
        Rmsg::Lock { status } => Ok(status),
        _ => fail("an Rlock was expected"),
    }
}

async fn lock(
    c: &mut CheckedConnection,
    owner: &str,
    ty: u8,
    start: u64,
    length: u64,
    expected: u8,
) -> CaseResult {
    let status = ask(c, owner, ty, start, length).await?;
    hold(status == expected, || format!("the status is {status}, not {expected}"))
}

/// Returns a conflicting lock: type, start, length.
async fn getlock(
    c: &mut CheckedConnection,
    owner: &str,
    ty: u8,
    start: u64,
    length: u64,
) -> CaseResult<(u8, u64, u64)> {
    let asked = Tmsg::Getlock { fid: A, ty, start, length, proc_id: 1, client_id: owner.as_bytes() };
    match c.supported(asked).await?.msg() {
        Rmsg::Getlock { ty, start, length, .. } => Ok((ty, start, length)),
        _ => fail("an Rgetlock was expected"),
    }
}

const READ: u8 = 0;
const WRITE: u8 = 1;
const UNLOCK: u8 = 2;
const SUCCESS: u8 = 0;
const BLOCKED: u8 = 1;
const ERROR: u8 = 2;
