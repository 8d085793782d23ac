//! Several connections: changes by one are visible to the others.

use nine_proto::OpenFlags;
use nine_proto::msg::Tmsg;

use crate::case::{CaseResult, cases, hold};
use crate::conn::answers;
use crate::scene::{A, B, CaseContext, DIR, ROOT};

cases! { "share":
    writes_are_seen, Any, Dir,
        "intro(5): a server serves files, not connections: what is written is what is read";
    creates_and_removes_are_seen, Any, Dir,
        "intro(5): a server serves files, not connections";
    a_removed_file_does_not_hurt_the_other, Any, Dir,
        "remove(5): what other fids of the file do then is the server's choice, but an answer it is";
    a_silent_connection_holds_up_nobody, Any, Nothing,
        "intro(5): requests are answered in any order, each on its own";
    eight_at_once, Any, Dir,
        "intro(5): a server serves any number of connections";
    appends_of_two_do_not_overwrite, L, Dir,
        "open(2): O_APPEND: the move to the end and the write are one step";
    one_rename_keeps_the_others_fid, Any, Dir,
        "intro(5): a fid stands for a file, whatever its name becomes";
}

async fn writes_are_seen(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = (s.here().await?, s.here().await?);
    one.make(DIR, A, b"f", b"first").await?;
    two.walk_whole(DIR, A, &[b"f"]).await?;
    two.open(A, OpenFlags::RDWR).await?;
    hold(two.content(A).await? == b"first", || "the other connection does not see the write".into())?;
    two.write_all(A, 0, b"FIRST and more").await?;
    hold(one.content(A).await? == b"FIRST and more", || "the first one does not see the other's".into())?;
    let size = one.attr(A).await?.size;
    hold(size == 14, || format!("the length is told as {size}"))
}

async fn creates_and_removes_are_seen(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = (s.here().await?, s.here().await?);
    hold(!two.exists(DIR, b"f").await?, || "a file that nobody has made".into())?;
    one.put(DIR, b"f", b"").await?;
    hold(two.exists(DIR, b"f").await?, || "the other connection does not see the file".into())?;
    two.unlink(DIR, b"f").await?;
    hold(!one.exists(DIR, b"f").await? && one.list(DIR).await?.is_empty(), || {
        "the first connection still sees the removed file".into()
    })
}

async fn a_removed_file_does_not_hurt_the_other(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = (s.here().await?, s.here().await?);
    one.make(DIR, A, b"f", b"text").await?;
    two.unlink(DIR, b"f").await?;
    let attr = one.tattr(A);
    for asked in [Tmsg::Read { fid: A, offset: 0, count: 10 }, attr] {
        let tag = one.tag();
        one.send(tag, &asked).await?;
        let got = one.receive().await?;
        answers(&asked, &got)?;
    }
    one.ok(Tmsg::Clunk { fid: A }).await.map(drop)
}

async fn a_silent_connection_holds_up_nobody(s: &CaseContext) -> CaseResult {
    let mut silent = s.session().await?;
    let asked = silent.tattr(ROOT);
    // Half a message, and a hundred answers that are not read.
    silent.send_all(&(1..100).map(|tag| (tag, asked.clone())).collect::<Vec<_>>()).await?;
    silent.send_bytes(&[19, 0, 0]).await?;
    for _ in 0..3 {
        s.session().await?.attr(ROOT).await?;
    }
    Ok(())
}

async fn eight_at_once(s: &CaseContext) -> CaseResult {
    let mut all = Vec::new();
    for n in 0..8u8 {
        let mut c = s.here().await?;
        c.make(DIR, A, &[b'a' + n], &[n; 100]).await?;
        all.push(c);
    }
    for (n, c) in all.iter_mut().enumerate() {
        let asked = Tmsg::Read { fid: A, offset: 0, count: 100 };
        c.send(1, &asked).await?;
        let other = [b'a' + (n as u8 + 1) % 8];
        let got = c.answer(1, &asked).await?;
        hold(crate::talk::dir_data(&got)? == [n as u8; 100], || "the data are another connection's".into())?;
        hold(c.content_of(DIR, &other).await?.len() == 100, || "another's file is not seen".into())?;
    }
    Ok(())
}

async fn appends_of_two_do_not_overwrite(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = (s.here().await?, s.here().await?);
    one.put(DIR, b"f", b"").await?;
    for c in [&mut one, &mut two] {
        c.walk_whole(DIR, A, &[b"f"]).await?;
        c.open(A, OpenFlags::WRITE | OpenFlags::APPEND).await?;
    }
    for (c, text) in [(&mut one, b"1"), (&mut two, b"2")] {
        c.write_all(A, 0, text).await?;
    }
    one.write_all(A, 0, b"3").await?;
    let content = one.content_of(DIR, b"f").await?;
    hold(content == b"123", || format!("the file is \"{}\"", content.escape_ascii()))
}

async fn one_rename_keeps_the_others_fid(s: &CaseContext) -> CaseResult {
    let (mut one, mut two) = (s.here().await?, s.here().await?);
    one.make(DIR, A, b"f", b"text").await?;
    two.walk_whole(DIR, B, &[b"f"]).await?;
    let asked = if two.dialect.is_l() {
        Tmsg::Renameat { olddirfid: DIR, oldname: b"f", newdirfid: DIR, newname: b"g" }
    } else {
        Tmsg::Wstat { fid: B, stat: nine_proto::Stat { name: b"g", ..nine_proto::Stat::DONT_TOUCH } }
    };
    two.supported(asked).await?;
    one.write_all(A, 0, b"TEXT").await?;
    hold(one.content(A).await? == b"TEXT", || "the other's open fid does not read the file".into())?;
    hold(two.content_of(DIR, b"g").await? == b"TEXT", || "what it wrote is not in the file".into())
}
