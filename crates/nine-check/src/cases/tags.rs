//! Tags: the assignment of answers to requests.

use nine_proto::msg::Tmsg;
use nine_proto::{Fid, NOTAG};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::{ConnectionEvent, answers};
use crate::scene::{A, CaseContext, DIR, ROOT};
use crate::talk::walk;

cases! { "tags":
    any_tag_is_echoed, Any, Nothing,
        "intro(5): the tag identifies the message; the response carries the same tag";
    many_requests_at_once, Any, Nothing,
        "intro(5): a client may send several requests without waiting for the responses";
    many_reads_at_once, Any, Dir,
        "intro(5): a client may send several requests without waiting for the responses";
    a_tag_is_free_after_its_answer, Any, Nothing,
        "intro(5): no two outstanding messages may have the same tag; an answered one is not outstanding";
    the_answers_are_to_their_requests, Any, Nothing,
        "intro(5): responses may come in any order; the tag says which is which";
    a_duplicate_does_not_hurt_the_server, Any, Nothing,
        "intro(5): no two outstanding messages may have the same tag; the server goes on serving";
    notag_does_not_hurt_the_server, Any, Nothing,
        "intro(5): NOTAG is for version messages; the server goes on serving";
}

async fn any_tag_is_echoed(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for tag in [0, 1, 255, 256, 0x7fff, 0x8000, 0xfffe] {
        let asked = c.tattr(ROOT);
        c.send(tag, &asked).await?;
        c.answer(tag, &asked).await?;
    }
    Ok(())
}

async fn many_requests_at_once(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    let mut waiting: Vec<u16> = (100..164).collect();
    c.send_all(&waiting.iter().map(|&tag| (tag, asked.clone())).collect::<Vec<_>>()).await?;
    while !waiting.is_empty() {
        let got = c.receive().await?;
        answers(&asked, &got)?;
        hold(!got.is_error(), || format!("one of 64 requests failed: {}", got.text()))?;
        let was = waiting.len();
        waiting.retain(|tag| *tag != got.tag().0);
        hold(waiting.len() < was, || format!("tag {} is not outstanding", got.tag()))?;
    }
    Ok(())
}

async fn many_reads_at_once(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    let data: Vec<u8> = (0..32_000u32).map(|i| (i / 1000) as u8).collect();
    c.make(DIR, A, b"f", &data).await?;
    let read = |n: u16| (n, Tmsg::Read { fid: A, offset: u64::from(n) * 1000, count: 1000 });
    c.send_all(&(0..32).map(read).collect::<Vec<_>>()).await?;
    let mut seen = [false; 32];
    for _ in 0..32 {
        let got = c.receive().await?;
        let n = got.tag().0;
        let Some(seen) = seen.get_mut(usize::from(n)) else {
            return fail(format!("tag {n} is not outstanding"));
        };
        hold(!std::mem::replace(seen, true), || format!("tag {n} was answered twice"))?;
        hold(!got.is_error(), || format!("one of 32 reads failed: {}", got.text()))?;
        let bytes = crate::talk::dir_data(&got)?;
        hold(!bytes.is_empty() && bytes.iter().all(|b| u16::from(*b) == n), || {
            format!("the answer with tag {n} has the data of another read")
        })?;
    }
    Ok(())
}

async fn a_tag_is_free_after_its_answer(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    for _ in 0..20 {
        let asked = c.tattr(ROOT);
        c.send(7, &asked).await?;
        let got = c.answer(7, &asked).await?;
        hold(!got.is_error(), || format!("the tag could not be used again: {}", got.text()))?;
    }
    Ok(())
}

async fn the_answers_are_to_their_requests(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let attr = c.tattr(ROOT);
    let asked = [
        (10, walk(ROOT, Fid(200), &[])),
        (11, attr.clone()),
        (12, walk(ROOT, Fid(201), &[b"no-such-file-4f1c"])),
        (13, attr),
        (14, walk(ROOT, Fid(202), &[])),
    ];
    c.send_all(&asked).await?;
    for _ in &asked {
        let got = c.receive().await?;
        let Some((tag, message)) = asked.iter().find(|(tag, _)| *tag == got.tag().0) else {
            return fail(format!("tag {} is not outstanding", got.tag()));
        };
        answers(message, &got)?;
        hold(got.is_error() == (*tag == 12), || {
            format!("of five requests just tag 12 fails; {}", got.text())
        })?;
    }
    Ok(())
}

async fn a_duplicate_does_not_hurt_the_server(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    // Any answers are correct, since the client has made the error.
    c.send_all(&[(7, asked.clone()), (7, asked)]).await?;
    c.event().await?;
    s.session().await?.attr(ROOT).await.map(drop)
}

async fn notag_does_not_hurt_the_server(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let asked = c.tattr(ROOT);
    c.send(NOTAG.0, &asked).await?;
    if let ConnectionEvent::Got(got) = c.event().await? {
        hold(got.tag() == NOTAG, || format!("the answer has tag {}", got.tag()))?;
    }
    s.session().await?.attr(ROOT).await.map(drop)
}
