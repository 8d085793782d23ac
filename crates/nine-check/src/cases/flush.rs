//! Tflush: every order of an answer and an Rflush that a client can see.

use nine_proto::msg::{Rmsg, Tmsg};
use nine_proto::{Fid, OpenFlags, Tag};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::{CheckedConnection, ReceivedReply, answers};
use crate::scene::{A, B, CaseContext, DIR, ROOT};
use crate::talk::walk;

cases! { "flush":
    an_unknown_tag_is_answered, Any, Nothing,
        "flush(5): if no request with oldtag is outstanding, the server answers Rflush at once";
    an_answered_tag_is_answered, Any, Nothing,
        "flush(5): the server should answer the flush message immediately; it is never an error";
    its_own_tag_is_answered, Any, Nothing,
        "flush(5): the server should answer the flush message immediately; it is never an error";
    a_flush_can_be_flushed, Any, Nothing,
        "flush(5): a flush is a request, too; the Rflush of the later one follows";
    no_answer_after_rflush, Any, Nothing,
        "flush(5): no response to the flushed request may come after the Rflush";
    of_many_each_is_answered, Any, Nothing,
        "flush(5): the server must answer every flush with Rflush";
    several_of_one_request, Any, Nothing,
        "flush(5): several flushes of one request are answered in order; an answer to a later one implies the \
         earlier";
    others_are_not_touched, Any, Nothing,
        "flush(5): the request with the tag oldtag is no longer wanted, and no other";
    the_tag_is_free_afterwards, Any, Nothing,
        "flush(5): after Rflush the client may reuse oldtag";
    an_answered_walk_has_made_its_fid, Any, Nothing,
        "flush(5): a response before the Rflush must be honoured, as if there had been no flush";
    an_answered_clunk_has_freed_its_fid, Any, Nothing,
        "flush(5): a response before the Rflush must be honoured, as if there had been no flush";
    an_answered_create_has_made_its_file, Any, Dir,
        "flush(5): without a response, the request must be as if it had never been sent";
    an_answered_write_is_written, Any, Dir,
        "flush(5): without a response, the request must be as if it had never been sent";
    an_answered_remove_has_removed, Any, Dir,
        "flush(5): a response before the Rflush must be honoured, as if there had been no flush";
}

async fn an_unknown_tag_is_answered(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for oldtag in [999, 0, 0xfffe] {
        c.ok(Tmsg::Flush { oldtag: Tag(oldtag) }).await?;
    }
    Ok(())
}

async fn an_answered_tag_is_answered(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    c.send(7, &asked).await?;
    c.answer(7, &asked).await?;
    c.ok(Tmsg::Flush { oldtag: Tag(7) }).await?;
    c.attr(ROOT).await.map(drop)
}

async fn its_own_tag_is_answered(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = Tmsg::Flush { oldtag: Tag(500) };
    c.send(500, &asked).await?;
    c.answer(500, &asked).await?;
    c.attr(ROOT).await.map(drop)
}

async fn a_flush_can_be_flushed(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    let (first, second) = (Tmsg::Flush { oldtag: Tag(500) }, Tmsg::Flush { oldtag: Tag(501) });
    c.send_all(&[(500, asked), (501, first), (502, second)]).await?;
    let got = until(&mut c, 502).await?;
    // The answer to the first flush may come before that of the second or be left out, but must not come after it.
    hold(got.iter().all(|got| [500, 501, 502].contains(&got.tag().0)), || {
        "an answer to nothing came".into()
    })?;
    nothing_more(&mut c).await
}

async fn no_answer_after_rflush(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for _ in 0..16 {
        let asked = c.tattr(ROOT);
        flushed(&mut c, asked).await?;
    }
    Ok(())
}

async fn of_many_each_is_answered(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    let requests = (0..32).map(|n| (1000 + n, asked.clone()));
    let flushes = (0..32).map(|n| (2000 + n, Tmsg::Flush { oldtag: Tag(1000 + n) }));
    c.send_all(&requests.chain(flushes).collect::<Vec<_>>()).await?;
    let mut rflushes = Vec::new();
    while rflushes.len() < 32 {
        let got = c.receive().await?;
        let tag = got.tag().0;
        match tag {
            1000..1032 => {
                answers(&asked, &got)?;
                hold(!rflushes.contains(&(tag + 1000)), || {
                    format!("tag {tag} was answered after its Rflush")
                })?;
            }
            2000..2032 => {
                answers(&Tmsg::Flush { oldtag: Tag(0) }, &got)?;
                hold(!rflushes.contains(&tag), || format!("tag {tag} was answered twice"))?;
                rflushes.push(tag);
            }
            _ => return fail(format!("an answer with tag {tag}, which nobody has")),
        }
    }
    nothing_more(&mut c).await
}

async fn several_of_one_request(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    let flush = Tmsg::Flush { oldtag: Tag(500) };
    c.send_all(&[(500, asked), (501, flush.clone()), (502, flush.clone()), (503, flush)]).await?;
    let got = until(&mut c, 503).await?;
    let tags: Vec<u16> = got.iter().map(|got| got.tag().0).collect();
    hold(tags.is_sorted(), || format!("the answers came in the order {tags:?}"))?;
    nothing_more(&mut c).await
}

async fn others_are_not_touched(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    let flush = Tmsg::Flush { oldtag: Tag(501) };
    c.send_all(&[(500, asked.clone()), (501, asked.clone()), (502, asked.clone()), (503, flush)]).await?;
    let mut left = vec![500, 502, 503];
    while !left.is_empty() {
        let got = c.receive().await?;
        let tag = got.tag().0;
        let was = left.len();
        left.retain(|waiting| *waiting != tag);
        hold(left.len() < was || tag == 501, || format!("an answer with tag {tag} was not owed"))?;
        hold(tag == 503 || !got.is_error(), || {
            format!("a request that nobody flushed failed: {}", got.text())
        })?;
    }
    Ok(())
}

async fn the_tag_is_free_afterwards(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for n in 0..8 {
        let asked = c.tattr(ROOT);
        c.send_all(&[(500, asked), (501, Tmsg::Flush { oldtag: Tag(500) })]).await?;
        until(&mut c, 501).await?;
        let again = walk(ROOT, Fid(200 + n), &[]);
        c.send(500, &again).await?;
        let got = c.answer(500, &again).await?;
        hold(!got.is_error(), || format!("the tag could not be used again: {}", got.text()))?;
    }
    Ok(())
}

async fn an_answered_walk_has_made_its_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for n in 0..8 {
        let fid = Fid(200 + n);
        if flushed(&mut c, walk(ROOT, fid, &[])).await? {
            c.attr(fid).await?;
        } else {
            c.walk(ROOT, fid, &[]).await?;
        }
    }
    Ok(())
}

async fn an_answered_clunk_has_freed_its_fid(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    c.walk(ROOT, A, &[]).await?;
    if flushed(&mut c, Tmsg::Clunk { fid: A }).await? {
        c.walk(ROOT, A, &[]).await.map(drop)
    } else {
        c.attr(A).await.map(drop)
    }
}

async fn an_answered_create_has_made_its_file(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    for n in 0..4u32 {
        let (fid, name) = (Fid(200 + n), format!("f{n}").into_bytes());
        c.walk(DIR, fid, &[]).await?;
        let asked = c.tcreate(fid, &name, OpenFlags::RDWR, 0o644);
        let made = flushed(&mut c, asked).await?;
        let exists = c.exists(DIR, &name).await?;
        hold(made == exists, || match made {
            true => "the create was answered, and there is no file".into(),
            false => "the create was flushed without an answer, and there is a file".into(),
        })?;
    }
    Ok(())
}

async fn an_answered_write_is_written(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"old").await?;
    let data = nine_proto::msg::Data::Bytes(b"new");
    let written = flushed(&mut c, Tmsg::Write { fid: A, offset: 0, data }).await?;
    let content = c.content(A).await?;
    hold(content == if written { b"new" } else { b"old" }, || match written {
        true => "the write was answered, and nothing is written".into(),
        false => "the write was flushed without an answer, and it is written".into(),
    })
}

async fn an_answered_remove_has_removed(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"").await?;
    c.walk_whole(DIR, B, &[b"f"]).await?;
    let removed = flushed(&mut c, Tmsg::Remove { fid: B }).await?;
    let exists = c.exists(DIR, b"f").await?;
    hold(removed != exists, || format!("answered: {removed}; the file exists: {exists}"))
}

/// Sends a request and a flush of it in one write. Returns whether the request succeeded.
async fn flushed(c: &mut CheckedConnection, asked: Tmsg<'_>) -> CaseResult<bool> {
    c.send_all(&[(500, asked.clone()), (501, Tmsg::Flush { oldtag: Tag(500) })]).await?;
    let got = until(c, 501).await?;
    let answered = got.iter().find(|got| got.tag().0 == 500);
    if let Some(got) = answered {
        answers(&asked, got)?;
    }
    let success = answered.is_some_and(|got| !got.is_error());
    nothing_more(c).await?;
    Ok(success)
}

/// Receives everything up to the Rflush with this tag. Other tags must not occur twice.
async fn until(c: &mut CheckedConnection, tag: u16) -> CaseResult<Vec<ReceivedReply>> {
    let mut all: Vec<ReceivedReply> = Vec::new();
    loop {
        let got = c.receive().await?;
        hold(all.iter().all(|before| before.tag() != got.tag()), || {
            format!("tag {} was answered twice", got.tag())
        })?;
        let last = got.tag().0 == tag;
        if last {
            hold(matches!(got.msg(), Rmsg::Flush {}), || format!("an Rflush was owed, {} came", got.text()))?;
        }
        all.push(got);
        if last {
            return Ok(all);
        }
        hold(all.len() < 16, || "answers without an end".into())?;
    }
}

/// Checks that the next message is the answer to a new request.
async fn nothing_more(c: &mut CheckedConnection) -> CaseResult {
    c.attr(ROOT).await.map(drop)
}
