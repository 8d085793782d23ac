//! Directories of .L: Treaddir returns entries with cookies.

use nine_proto::Entries;
use nine_proto::msg::Tmsg;

use super::dir::{self, FILES, all_there, name, opened};
use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};
use crate::talk::dir_data;

cases! { "readdir":
    each_file_is_listed_once, L, Dir,
        "9P2000.L Treaddir: offset is zero on the first call, then that of the last entry of the last call";
    small_reads_list_each_file_once, L, Dir,
        "9P2000.L Treaddir: offset is zero on the first call, then that of the last entry of the last call";
    it_resumes_at_any_cookie, L, Dir,
        "9P2000.L Treaddir: each entry's offset is where the next one is read, as by getdents(2) and lseek(2)";
    zero_rewinds, L, Dir,
        "9P2000.L Treaddir: offset zero is the beginning of the directory";
    cookies_are_unique, L, Dir,
        "9P2000.L Treaddir: an entry's offset says where to continue after this entry";
    the_end_is_empty, L, Dir,
        "9P2000.L Rreaddir: count zero means that the end is reached";
    types_are_those_of_the_files, L, Dir,
        "9P2000.L Rreaddir: type is the d_type of getdents(2), qid that of the file";
    dots_are_directories, L, Dir,
        "9P2000.L Rreaddir: type is the d_type of getdents(2)";
    entries_are_whole_and_bounded, L, Dir,
        "9P2000.L Rreaddir: count is the number of bytes of whole entries, at most what was asked for";
    a_count_too_small_gives_no_part_of_an_entry, L, Dir,
        "9P2000.L Rreaddir: count is the number of bytes of whole entries";
    deletion_while_listing_loses_no_other, L, Dir,
        "9P2000.L Treaddir: as readdir(3), entries that are not removed are returned once";
    an_unopened_directory_is_refused, L, Dir,
        "9P2000.L Treaddir: fid is that of a directory opened by Tlopen";
    a_file_is_refused, L, Dir,
        "9P2000.L Treaddir: fid is that of an open directory";
    tread_of_a_directory_is_refused, L, Dir,
        "9P2000.L: Tread is not used on directories; Treaddir is";
}

async fn each_file_is_listed_once(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    all_there(&c.entries(A, 8192).await?)
}

async fn small_reads_list_each_file_once(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    all_there(&c.entries(A, 120).await?)
}

async fn it_resumes_at_any_cookie(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let whole = listing(&mut c).await?;
    for at in [whole.len() / 2, 2, whole.len() - 2] {
        // The previous read must not matter.
        let got = c.ok(Tmsg::Readdir { fid: A, offset: whole[at].0, count: 8192 }).await?;
        let rest = parsed(&c, dir_data(&got)?)?;
        let names = |entries: &[ReaddirRecord]| entries.iter().map(|line| line.2.clone()).collect::<Vec<_>>();
        hold(names(&rest) == names(&whole[at + 1..]), || {
            format!(
                "after entry {at} of {} come {} entries, not {}",
                whole.len(),
                rest.len(),
                whole.len() - at - 1
            )
        })?;
    }
    Ok(())
}

async fn zero_rewinds(s: &CaseContext) -> CaseResult {
    dir::offset_zero_rewinds(s).await
}

async fn cookies_are_unique(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let mut cookies: Vec<u64> = listing(&mut c).await?.iter().map(|line| line.0).collect();
    let all = cookies.len();
    cookies.sort_unstable();
    cookies.dedup();
    hold(cookies.len() == all, || format!("{all} entries have {} cookies", cookies.len()))
}

async fn the_end_is_empty(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 2).await?;
    let last = listing(&mut c).await?.last().map_or(0, |line| line.0);
    for _ in 0..2 {
        let got = c.ok(Tmsg::Readdir { fid: A, offset: last, count: 8192 }).await?;
        hold(dir_data(&got)?.is_empty(), || "after the last entry came more".into())?;
    }
    Ok(())
}

async fn types_are_those_of_the_files(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 1).await?;
    c.mkdir(DIR, b"sub").await?;
    for (name, ty) in [(name(0), DT_REG), ("sub".into(), DT_DIR)] {
        let qid = c.walk_whole(DIR, B, &[name.as_bytes()]).await?;
        c.clunk(B).await?;
        let lines = listing(&mut c).await?;
        let Some(line) = lines.iter().find(|line| line.2 == name.as_bytes()) else {
            return fail(format!("{name} is not listed"));
        };
        // A server may return DT_UNKNOWN.
        hold(matches!(line.1, 0) || line.1 == ty, || format!("{name} has type {}, not {ty}", line.1))?;
        hold(line.3.path == qid.path && line.3.is_dir() == qid.is_dir(), || {
            format!("{name} is listed as {}, and walked to as {qid}", line.3)
        })?;
    }
    Ok(())
}

async fn dots_are_directories(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 1).await?;
    for line in listing(&mut c).await?.iter().filter(|line| matches!(&line.2[..], b"." | b"..")) {
        hold(matches!(line.1, 0 | DT_DIR), || format!("a dot entry has type {}", line.1))?;
    }
    Ok(())
}

async fn entries_are_whole_and_bounded(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let mut seen = 0;
    for count in [100, 101, 137, 1000] {
        // It fails if the data is not a whole number of entries, or too long.
        seen += c.some_entries(A, 0, count).await?.0.len();
    }
    hold(seen > 0, || "1000 bytes hold no entry".into())
}

async fn a_count_too_small_gives_no_part_of_an_entry(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    for count in [0, 1, 20] {
        // Servers differ: an error or no data.
        let got = c.call(Tmsg::Readdir { fid: A, offset: 0, count }).await?;
        hold(got.is_error() || dir_data(&got)?.is_empty(), || format!("{count} bytes hold no entry"))?;
    }
    Ok(())
}

async fn deletion_while_listing_loses_no_other(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let (first, next) = c.some_entries(A, 0, 200).await?;
    for (name, _) in &first {
        c.unlink(DIR, name).await?;
    }
    let mut rest = Vec::new();
    let mut offset = next;
    while let Some(at) = offset {
        hold(rest.len() <= FILES, || "the directory has no end".into())?;
        let (entries, next) = c.some_entries(A, at, 200).await?;
        rest.extend(entries);
        offset = next;
    }
    let gone: Vec<_> = first.iter().map(|(name, _)| name).collect();
    for n in (0..FILES).map(name).filter(|name| !gone.iter().any(|gone| **gone == name.as_bytes())) {
        let times = rest.iter().filter(|(name, _)| *name == n.as_bytes()).count();
        hold(times == 1, || format!("{n}, which nobody removed, is listed {times} times"))?;
    }
    Ok(())
}

async fn an_unopened_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.refused(Tmsg::Readdir { fid: DIR, offset: 0, count: 8192 }, "its fid is not open").await.map(drop)
}

async fn a_file_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, B, b"f", b"text").await?;
    c.refused(Tmsg::Readdir { fid: B, offset: 0, count: 8192 }, "it is a plain file").await.map(drop)
}

async fn tread_of_a_directory_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 1).await?;
    c.refused(Tmsg::Read { fid: A, offset: 0, count: 8192 }, "it is a directory").await.map(drop)
}

/// Cookie, type, name, qid.
type ReaddirRecord = (u64, u8, Vec<u8>, nine_proto::Qid);

/// Reads all entries of A, with "." and "..", one read after the other.
async fn listing(c: &mut CheckedConnection) -> CaseResult<Vec<ReaddirRecord>> {
    let mut all: Vec<ReaddirRecord> = Vec::new();
    loop {
        let offset = all.last().map_or(0, |line| line.0);
        let got = c.ok(Tmsg::Readdir { fid: A, offset, count: 8192 }).await?;
        let lines = parsed(c, dir_data(&got)?)?;
        if lines.is_empty() {
            return Ok(all);
        }
        hold(all.len() < 10 * FILES, || "the directory has no end".into())?;
        all.extend(lines);
    }
}

fn parsed(c: &CheckedConnection, data: &[u8]) -> CaseResult<Vec<ReaddirRecord>> {
    let entries = Entries::new(data, c.dialect);
    let line = |entry: Result<(nine_proto::Dirent<'_>, _), _>| match entry {
        Ok((entry, _)) => Ok((entry.cookie, entry.ty, entry.name.to_vec(), entry.qid)),
        Err(_) => fail("the directory data are no whole entries"),
    };
    entries.map(line).collect()
}

const DT_DIR: u8 = 4;
const DT_REG: u8 = 8;
