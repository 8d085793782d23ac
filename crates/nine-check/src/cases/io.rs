//! Tread and Twrite of plain files.

use nine_proto::OpenFlags;
use nine_proto::msg::{Data, OptionalU32, Tmsg};

use crate::case::{CaseResult, cases, hold, skip};
use crate::conn::CheckedConnection;
use crate::scene::{A, B, CaseContext, DIR};
use crate::talk::IOHDRSZ;

cases! { "io":
    what_is_written_is_read, Any, Dir,
        "write(5): the count bytes are written at offset; read(5): count bytes are read from offset";
    large_files, Any, Dir,
        "read(5), write(5): successive messages with growing offsets transfer a file";
    from_any_offset, Any, Dir,
        "read(5): data begin at offset bytes after the beginning of the file";
    never_more_than_asked, Any, Dir,
        "read(5): the count returned may be less than the count requested, never more";
    short_at_the_end, Any, Dir,
        "read(5): fewer bytes are returned where the file ends";
    nothing_beyond_the_end, Any, Dir,
        "read(5): at or beyond the end of the file a count of zero is returned";
    a_huge_offset_is_beyond_the_end, Any, Dir,
        "read(5): at or beyond the end of the file a count of zero is returned";
    a_read_of_nothing, Any, Dir,
        "read(5): the count returned is never more than the count requested";
    a_write_in_the_middle, Any, Dir,
        "write(5): bytes from offset on are replaced, the others stay";
    a_write_beyond_the_end_leaves_zeros, Any, Dir,
        "write(5): the bytes are written at offset; what was never written reads as zero";
    a_write_of_nothing, Any, Dir,
        "write(5): a write of zero bytes to a plain file changes nothing";
    a_write_grows_the_length, Any, Dir,
        "stat(5): length is the length of the file in bytes";
    a_full_write_is_taken_whole, Any, Dir,
        "open(5): a message that fits into msize is transferred; iounit bytes in one piece";
    a_directory_is_not_written, Any, Dir,
        "write(5): it is an error to write a directory";
    an_unopened_fid_is_refused, Any, Dir,
        "read(5), write(5): the fid must have been opened";
    a_removed_file_can_still_be_read, L, Dir,
        "9P2000.L Tunlinkat: as unlinkat(2), the file stays as long as it is open";
    datasync_and_fsync, L, Dir,
        "9P2000.L Tfsync: flush cached data of the open file to stable storage";
}

async fn what_is_written_is_read(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"").await?;
    let n = c.write(A, 0, TEXT).await?;
    hold(n as usize == TEXT.len(), || format!("of {} bytes, {n} were written", TEXT.len()))?;
    hold(c.content(A).await? == TEXT, || "what is read is not what was written".into())
}

async fn large_files(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let data: Vec<u8> = (0..300_000u32).map(|i| (i ^ (i >> 8)) as u8).collect();
    c.put(DIR, b"f", &data).await?;
    hold(c.content_of(DIR, b"f").await? == data, || "300,000 bytes came back changed".into())
}

async fn from_any_offset(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for offset in [1, 7, 20, 25] {
        let data = c.read(A, offset as u64, 100).await?;
        hold(data == TEXT[offset..], || format!("from offset {offset} came {} bytes: {data:?}", data.len()))?;
    }
    Ok(())
}

async fn never_more_than_asked(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for count in [1, 2, 3, 5] {
        let data = c.read(A, 0, count).await?;
        hold(TEXT.starts_with(&data) && !data.is_empty(), || format!("{count} bytes from 0 are {data:?}"))?;
    }
    Ok(())
}

async fn short_at_the_end(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let from = TEXT.len() - 4;
    let data = c.read(A, from as u64, 1000).await?;
    hold(data == TEXT[from..], || format!("the last 4 bytes are {data:?}"))
}

async fn nothing_beyond_the_end(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for offset in [TEXT.len() as u64, TEXT.len() as u64 + 1, 100_000] {
        let data = c.read(A, offset, 100).await?;
        hold(data.is_empty(), || format!("at offset {offset} of {} came {} bytes", TEXT.len(), data.len()))?;
    }
    Ok(())
}

async fn a_huge_offset_is_beyond_the_end(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for offset in [1 << 40, (1 << 63) - 1, 1 << 63, u64::MAX - 50, u64::MAX] {
        // A server may also refuse an offset that it cannot represent.
        let got = c.call(Tmsg::Read { fid: A, offset, count: 100 }).await?;
        hold(got.is_error() || crate::talk::dir_data(&got)?.is_empty(), || {
            format!("there are data at {offset}")
        })?;
    }
    hold(c.content(A).await? == TEXT, || "the file has changed".into())
}

async fn a_read_of_nothing(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let data = c.read(A, 0, 0).await?;
    hold(data.is_empty(), || format!("no bytes were asked for, {} came", data.len()))
}

async fn a_write_in_the_middle(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.write_all(A, 4, b"QUICK").await?;
    let mut expected = TEXT.to_vec();
    expected[4..9].copy_from_slice(b"QUICK");
    hold(c.content(A).await? == expected, || "it is not just bytes 4 to 8 that have changed".into())
}

async fn a_write_beyond_the_end_leaves_zeros(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    let asked = Tmsg::Write { fid: A, offset: 1000, data: Data::Bytes(b"far") };
    if c.call(asked).await?.is_error() {
        return skip("the server does not write beyond the end of a file");
    }
    let expected = [TEXT, &vec![0; 1000 - TEXT.len()], b"far"].concat();
    hold(c.content(A).await? == expected, || "between the old end and the new bytes are not zeros".into())
}

async fn a_write_of_nothing(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for offset in [0, 5, 1000] {
        let n = c.write(A, offset, b"").await?;
        hold(n == 0, || format!("of no bytes, {n} were written"))?;
    }
    hold(c.content(A).await? == TEXT, || "the file has changed".into())
}

async fn a_write_grows_the_length(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.write_all(A, TEXT.len() as u64, b"1234567").await?;
    let size = c.attr(A).await?.size;
    hold(size == TEXT.len() as u64 + 7, || {
        format!("{} bytes were written, the length is {size}", TEXT.len() + 7)
    })
}

async fn a_full_write_is_taken_whole(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"").await?;
    let data: Vec<u8> = (0..c.msize - IOHDRSZ).map(|i| i as u8).collect();
    let n = c.write(A, 0, &data).await?;
    hold(n as usize == data.len(), || {
        format!("of {} bytes, which fit into msize, {n} were taken", data.len())
    })?;
    hold(c.content(A).await? == data, || "what is read is not what was written".into())
}

async fn a_directory_is_not_written(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.walk(DIR, A, &[]).await?;
    c.open(A, OpenFlags::READ).await?;
    let asked = Tmsg::Write { fid: A, offset: 0, data: Data::Bytes(b"no") };
    c.refused(asked, "it is a directory").await.map(drop)
}

async fn an_unopened_fid_is_refused(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    c.refused(Tmsg::Read { fid: B, offset: 0, count: 100 }, "its fid is not open").await?;
    let asked = Tmsg::Write { fid: B, offset: 0, data: Data::Bytes(b"no") };
    c.refused(asked, "its fid is not open").await.map(drop)
}

async fn a_removed_file_can_still_be_read(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    c.supported(Tmsg::Unlinkat { dirfid: DIR, name: b"f", flags: 0 }).await?;
    hold(!c.exists(DIR, b"f").await?, || "the name is still there".into())?;
    hold(c.content(A).await? == TEXT, || "the content is gone".into())?;
    c.write_all(A, 0, b"THE").await?;
    hold(c.content(A).await?.starts_with(b"THE"), || "what is written afterwards is lost".into())
}

async fn datasync_and_fsync(s: &CaseContext) -> CaseResult {
    let mut c = file(s).await?;
    for datasync in [0, 1] {
        c.supported(Tmsg::Fsync { fid: A, datasync: OptionalU32(datasync) }).await?;
    }
    Ok(())
}

/// A file `f` with TEXT, open as A.
async fn file(s: &CaseContext) -> CaseResult<CheckedConnection> {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", TEXT).await?;
    Ok(c)
}

const TEXT: &[u8] = b"the slow red fox walks round the dog";
