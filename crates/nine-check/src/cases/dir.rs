//! Directories of 9P2000 and .u: Tread returns stat records.

use nine_proto::msg::Tmsg;
use nine_proto::{Entries, OpenFlags};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR, ROOT};
use crate::talk::dir_data;

cases! { "dir":
    a_new_directory_is_empty, Stat, Dir,
        "read(5): a read of a directory returns an integral number of directory entries";
    each_file_is_listed_once, Stat, Dir,
        "read(5): the directory's entries are returned, exactly as by stat(5)";
    small_reads_list_each_file_once, Stat, Dir,
        "read(5): successive reads, each from where the last one ended, give all entries";
    records_are_whole, Stat, Dir,
        "read(5): a read of a directory returns an integral number of directory entries";
    a_count_too_small_gives_no_part_of_a_record, Stat, Dir,
        "read(5): a read of a directory returns an integral number of directory entries";
    offset_zero_rewinds, Stat, Dir,
        "read(5): the offset is zero, or the last offset plus the number of bytes returned";
    another_offset_is_refused, Stat, Dir,
        "read(5): the offset is zero, or the last offset plus the number of bytes returned";
    dots_are_not_listed, Stat, Dir,
        "intro(5): all directories must support walks to '..'; by convention it is no entry";
    a_record_is_what_stat_says, Stat, Dir,
        "read(5): entries are machine-independent directory entries as in stat(5)";
    the_end_stays_the_end, Stat, Dir,
        "read(5): at the end of the directory a count of zero is returned";
    each_fid_has_its_place, Stat, Dir,
        "read(5): the offset is that of the fid's own last read";
    the_root_can_be_listed, Any, Nothing,
        "read(5): directories can be read; the root is one";
}

async fn a_new_directory_is_empty(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 0).await?;
    hold(c.read(A, 0, 4096).await?.is_empty(), || "an empty directory has entries".into())
}

async fn each_file_is_listed_once(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let entries = c.entries(A, 8192).await?;
    all_there(&entries)
}

async fn small_reads_list_each_file_once(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let entries = c.entries(A, 400).await?;
    all_there(&entries)
}

async fn records_are_whole(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let mut seen = 0;
    for count in [300, 333, 401, 1024] {
        // It fails if the data is not a whole number of records.
        seen += c.some_entries(A, 0, count).await?.0.len();
    }
    hold(seen > 0, || "1024 bytes hold no record".into())
}

async fn a_count_too_small_gives_no_part_of_a_record(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    for count in [0, 1, 2, 20, 48] {
        // Servers differ: an error or no data.
        let got = c.call(Tmsg::Read { fid: A, offset: 0, count }).await?;
        hold(got.is_error() || dir_data(&got)?.is_empty(), || format!("{count} bytes hold no record"))?;
    }
    Ok(())
}

pub(super) async fn offset_zero_rewinds(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let first = c.entries(A, 8192).await?;
    c.put(DIR, b"later", b"").await?;
    let second = c.entries(A, 8192).await?;
    hold(first.len() == FILES && second.len() == FILES + 1, || {
        format!("{FILES} files were listed as {}, one more as {}", first.len(), second.len())
    })
}

async fn another_offset_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    let (_, next) = c.some_entries(A, 0, 400).await?;
    let Some(next) = next else { return fail("a directory of some files has no entries") };
    for offset in [1, next - 1, next + 1] {
        let asked = Tmsg::Read { fid: A, offset, count: 400 };
        c.refused(asked, "its offset is neither 0 nor where the last read ended").await?;
    }
    Ok(())
}

async fn dots_are_not_listed(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 3).await?;
    let data = c.read(A, 0, 8192).await?;
    for entry in Entries::new(&data, c.dialect) {
        let (entry, _) = entry.or_else(|_| fail("the directory data are no whole entries"))?;
        hold(!matches!(entry.name, b"." | b".."), || "a dot name is listed".into())?;
    }
    Ok(())
}

async fn a_record_is_what_stat_says(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 1).await?;
    c.mkdir(DIR, b"sub").await?;
    let data = c.read(A, 0, 8192).await?;
    for entry in Entries::new(&data, c.dialect) {
        let Ok((_, Some(listed))) = entry else { return fail("the directory data are no whole entries") };
        c.walk_whole(DIR, B, &[listed.name]).await?;
        let got = c.ok(Tmsg::Stat { fid: B }).await?;
        let nine_proto::msg::Rmsg::Stat { stat } = got.msg() else { return fail("an Rstat was expected") };
        // Reading may have changed the access time.
        let listed = nine_proto::Stat { atime: stat.atime, ..listed };
        hold(listed == stat, || format!("the directory says {listed}, Rstat {stat}"))?;
        c.clunk(B).await?;
    }
    Ok(())
}

async fn the_end_stays_the_end(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, 2).await?;
    let (mut offset, mut reads) = (0, 0);
    while let (_, Some(next)) = c.some_entries(A, offset, 8192).await? {
        (offset, reads) = (next, reads + 1);
        hold(reads < 10, || "a directory of two files has no end".into())?;
    }
    let again = c.read(A, offset, 8192).await?;
    hold(again.is_empty(), || "after the end came more".into())
}

async fn each_fid_has_its_place(s: &CaseContext) -> CaseResult {
    let mut c = opened(s, FILES).await?;
    c.walk(DIR, B, &[]).await?;
    c.open(B, OpenFlags::READ).await?;
    let (first, next) = c.some_entries(A, 0, 400).await?;
    let other = c.entries(B, 8192).await?;
    let (second, _) = c.some_entries(A, next.unwrap_or(0), 400).await?;
    hold(other.len() == FILES, || format!("the second fid lists {} of {FILES} files", other.len()))?;
    let apart = second.iter().all(|(name, _)| first.iter().all(|(before, _)| before != name));
    hold(apart, || "another fid's reads have moved this one's place".into())
}

async fn the_root_can_be_listed(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    c.some_entries(A, 0, 16_384).await.map(drop)
}

/// Returns a session with this many files in the case's directory, which is open as A.
pub(super) async fn opened(s: &CaseContext, files: usize) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    fill(&mut c, files).await?;
    c.walk(DIR, A, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    Ok(c)
}

/// Creates this many files in the case's directory.
pub(super) async fn fill(c: &mut CheckedConnection, files: usize) -> CaseResult {
    for n in 0..files {
        c.put(DIR, name(n).as_bytes(), b"x").await?;
    }
    Ok(())
}

/// Checks that the entries are those of [`FILES`] files.
pub(super) fn all_there(entries: &[(Vec<u8>, nine_proto::Qid)]) -> CaseResult {
    for n in 0..FILES {
        let times = entries.iter().filter(|(listed, _)| *listed == name(n).as_bytes()).count();
        hold(times == 1, || format!("{} is listed {times} times", name(n)))?;
    }
    hold(entries.len() == FILES, || format!("{FILES} files, {} entries", entries.len()))
}

pub(super) fn name(n: usize) -> String {
    format!("file{n:02}")
}

/// More than fit into the small reads.
pub(super) const FILES: usize = 20;
