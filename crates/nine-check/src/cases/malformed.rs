//! Malformed messages: the server answers an error or ends the connection, and continues to serve others.

use nine_proto::msg::{Data, Rmsg, Tmsg};
use nine_proto::{Dialect, NOTAG, Stat, Tag};

use crate::case::{CaseResult, cases, fail, hold};
use crate::conn::{CheckedConnection, ConnectionEvent};
use crate::scene::{A, CaseContext, DIR, MSIZE, ROOT};
use crate::talk::walk;

cases! { "malformed":
    a_size_below_seven, Any, Nothing,
        "intro(5): size counts the whole message, itself included: size[4] type[1] tag[2] at least";
    a_size_above_msize, Any, Nothing,
        "version(5): no message is longer than msize";
    a_size_above_all_bounds, Any, Nothing,
        "version(5): no message is longer than msize";
    a_message_cut_short, Any, Nothing,
        "intro(5): each message has all its fields";
    bytes_after_the_last_field, Any, Nothing,
        "intro(5): size is the length of the message and its fields fill it";
    a_string_beyond_the_message, Any, Nothing,
        "intro(5): a string is a count[2] and as many bytes of the message";
    a_version_string_beyond_the_message, Any, Nothing,
        "intro(5): a string is a count[2] and as many bytes of the message";
    data_beyond_the_message, Any, Dir,
        "write(5): count bytes of data follow in the message";
    more_names_than_there_are, Any, Nothing,
        "walk(5): nwname names follow in the message";
    seventeen_names, Any, Nothing,
        "walk(5): a maximum of sixteen elements may be in one message";
    a_nul_in_a_name, Any, Nothing,
        "intro(5): the NUL character is illegal in all text strings in 9P";
    a_stat_that_contradicts_itself, Stat, Dir,
        "stat(5): the length stands twice, and both must agree";
    an_answer_from_the_client, Any, Nothing,
        "intro(5): the client sends T-messages, the server R-messages";
    terror, Any, Nothing,
        "intro(5): an error is an answer only; there is no Terror";
    an_unknown_type, Any, Nothing,
        "intro(5): the type says which message it is";
    a_message_of_another_dialect, Any, Nothing,
        "version(5): both sides speak the protocol that has been agreed on";
    another_protocol, Any, Nothing,
        "intro(5): each message begins with size[4] type[1] tag[2]";
    half_a_message_and_the_end, Any, Nothing,
        "intro(5): a message that is not whole is no request";
    an_end_before_the_answer, Any, Nothing,
        "intro(5): when the connection ends, its requests are aborted";
}

async fn a_size_below_seven(s: &CaseContext) -> CaseResult {
    for size in [0, 1, 4, 6] {
        let mut bytes = vec![0; 16];
        bytes[..4].copy_from_slice(&u32::to_le_bytes(size));
        bytes[4] = 120;
        not_served(s, &bytes).await?;
    }
    Ok(())
}

async fn a_size_above_msize(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let mut bytes = encoded(&c, &Tmsg::Clunk { fid: A });
    bytes[..4].copy_from_slice(&(c.msize + 1).to_le_bytes());
    // The server may end the connection before the rest arrives, or after it.
    bytes.resize(c.msize as usize + 1, 0);
    drop(c);
    not_served(s, &bytes).await
}

async fn a_size_above_all_bounds(s: &CaseContext) -> CaseResult {
    let mut c = s.session().await?;
    let mut bytes = encoded(&c, &Tmsg::Clunk { fid: A });
    bytes[..4].copy_from_slice(&[0xff; 4]);
    c.send_bytes(&bytes).await?;
    ended_or_refused(&mut c).await?;
    still_serves(s).await
}

async fn a_message_cut_short(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let all = [
        c.tattr(ROOT),
        Tmsg::Clunk { fid: A },
        walk(ROOT, A, &[b"name"]),
        Tmsg::Read { fid: A, offset: 0, count: 9 },
    ];
    for message in all {
        let mut bytes = encoded(&c, &message);
        bytes.pop();
        resize(&mut bytes);
        not_served(s, &bytes).await?;
    }
    Ok(())
}

async fn bytes_after_the_last_field(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let mut bytes = encoded(&c, &walk(ROOT, A, &[]));
    bytes.extend([1, 2, 3, 4]);
    resize(&mut bytes);
    not_served(s, &bytes).await
}

async fn a_string_beyond_the_message(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let mut bytes = encoded(&c, &walk(ROOT, A, &[b"name"]));
    let count = bytes.len() - 6;
    bytes[count..count + 2].copy_from_slice(&60_000u16.to_le_bytes());
    not_served(s, &bytes).await
}

async fn a_version_string_beyond_the_message(s: &CaseContext) -> CaseResult {
    let mut c = s.dial().await?;
    let mut bytes = Vec::new();
    Tmsg::Version { msize: MSIZE, version: b"9P2000" }.encode(NOTAG, Dialect::P2000, &mut bytes);
    bytes[11..13].copy_from_slice(&60_000u16.to_le_bytes());
    c.send_bytes(&bytes).await?;
    match c.frame().await? {
        Some(frame) if frame[4] == 101 && !frame.ends_with(b"unknown") => {
            fail("a Tversion without its string was agreed to")
        }
        _ => still_serves(s).await,
    }
}

async fn data_beyond_the_message(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.make(DIR, A, b"f", b"old").await?;
    let mut bytes = encoded(&c, &Tmsg::Write { fid: A, offset: 0, data: Data::Bytes(b"new") });
    bytes[19..23].copy_from_slice(&1000u32.to_le_bytes());
    c.send_bytes(&bytes).await?;
    ended_or_refused(&mut c).await?;
    let mut c = s.here().await?;
    let content = c.content_of(DIR, b"f").await?;
    hold(content == b"old", || format!("the file has {} bytes now", content.len()))
}

async fn more_names_than_there_are(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let mut bytes = encoded(&c, &walk(ROOT, A, &[b"name"]));
    bytes[15..17].copy_from_slice(&3u16.to_le_bytes());
    not_served(s, &bytes).await
}

async fn seventeen_names(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let mut bytes = encoded(&c, &walk(ROOT, A, &[]));
    bytes[15..17].copy_from_slice(&17u16.to_le_bytes());
    bytes.extend([2, 0, b'.', b'.'].repeat(17));
    resize(&mut bytes);
    not_served(s, &bytes).await
}

async fn a_nul_in_a_name(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let bytes = encoded(&c, &walk(ROOT, A, &[b"..\0x"]));
    not_served(s, &bytes).await
}

async fn a_stat_that_contradicts_itself(s: &CaseContext) -> CaseResult {
    let mut c = s.here().await?;
    c.put(DIR, b"f", b"old").await?;
    c.walk_whole(DIR, A, &[b"f"]).await?;
    let stat = Stat { length: 1, ..Stat::DONT_TOUCH };
    let mut bytes = encoded(&c, &Tmsg::Wstat { fid: A, stat });
    // `size[4] type[1] tag[2] fid[4] n[2] size[2]`
    bytes[13] = bytes[13].wrapping_sub(9);
    c.send_bytes(&bytes).await?;
    ended_or_refused(&mut c).await?;
    let mut c = s.here().await?;
    hold(c.content_of(DIR, b"f").await? == b"old", || "the file has changed".into())
}

async fn an_answer_from_the_client(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    for message in [Rmsg::Clunk {}, Rmsg::Flush {}, Rmsg::Write { count: 1 }] {
        let mut bytes = Vec::new();
        message.encode(Tag(TAG), c.dialect, &mut bytes);
        // It is not a request, so no answer is correct too.
        ignores(s, &bytes).await?;
    }
    Ok(())
}

async fn terror(s: &CaseContext) -> CaseResult {
    for ty in [106, 6] {
        not_served(s, &[9, 0, 0, 0, ty, 7, 0, 0, 0]).await?;
    }
    Ok(())
}

async fn an_unknown_type(s: &CaseContext) -> CaseResult {
    for ty in [0, 200, 254, 255] {
        not_served(s, &[7, 0, 0, 0, ty, 7, 0]).await?;
    }
    Ok(())
}

async fn a_message_of_another_dialect(s: &CaseContext) -> CaseResult {
    let c = s.session().await?;
    let other = if c.dialect.is_l() {
        [Tmsg::Stat { fid: ROOT }, Tmsg::Open { fid: ROOT, mode: 0 }]
    } else {
        [Tmsg::Getattr { fid: ROOT, mask: 0x7ff }, Tmsg::Lopen { fid: ROOT, flags: 0 }]
    };
    for message in other {
        not_served(s, &encoded(&c, &message)).await?;
    }
    Ok(())
}

async fn another_protocol(s: &CaseContext) -> CaseResult {
    for text in [
        &b"GET / HTTP/1.0\r\n\r\n"[..],
        b"SSH-2.0-OpenSSH_9.2p1\r\n",
        &[0xff; 64],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    ] {
        let mut c = s.dial().await?;
        // The server may end the connection before everything is sent. Its answer need not be 9P, since no version
        // was agreed.
        if c.send_bytes(text).await.is_ok() {
            drop(c);
        }
        still_serves(s).await?;
    }
    Ok(())
}

async fn half_a_message_and_the_end(s: &CaseContext) -> CaseResult {
    for cut in [1, 4, 6, 9] {
        let mut c = s.session().await?;
        let bytes = encoded(&c, &walk(ROOT, A, &[]));
        c.send_bytes(&bytes[..cut]).await?;
        drop(c);
        still_serves(s).await?;
    }
    Ok(())
}

async fn an_end_before_the_answer(s: &CaseContext) -> CaseResult {
    for _ in 0..4 {
        let mut c = s.session().await?;
        let asked = c.tattr(ROOT);
        c.send_all(&(1..20).map(|tag| (tag, asked.clone())).collect::<Vec<_>>()).await?;
        drop(c);
    }
    still_serves(s).await
}

/// Sends bytes in a session. Expects an error or the end of the connection, and that the server still serves others.
async fn not_served(s: &CaseContext, bytes: &[u8]) -> CaseResult {
    if ignores(s, bytes).await? {
        fail("it was passed over in silence: a client would wait for ever")
    } else {
        Ok(())
    }
}

/// The same. Returns whether there was an answer only to a later request.
async fn ignores(s: &CaseContext, bytes: &[u8]) -> CaseResult<bool> {
    let mut c = s.session().await?;
    let mut ignored = false;
    // The connection may end before everything is sent.
    if c.send_bytes(bytes).await.is_ok() {
        // A server that waits for the rest of the message gets a request instead.
        let asked = c.tattr(ROOT);
        if c.send(BEHIND, &asked).await.is_ok() {
            ignored = ended_or_refused(&mut c).await? && !answers_late(s, &mut c).await?;
        }
    }
    drop(c);
    still_serves(s).await.map(|()| ignored)
}

/// Returns whether an error arrives after all, since a server may answer in another order. Checks a few times.
async fn answers_late(s: &CaseContext, c: &mut CheckedConnection) -> CaseResult<bool> {
    for look in 1..=LOOKS {
        s.pause().await;
        let asked = c.tattr(ROOT);
        c.send(BEHIND + look, &asked).await?;
        match c.event().await? {
            ConnectionEvent::Got(got) if got.tag() == Tag(BEHIND + look) => {}
            ConnectionEvent::Got(got) if !got.is_error() => {
                return fail(format!("what is no message was answered by {}", got.text()));
            }
            _ => return Ok(true),
        }
    }
    Ok(false)
}

/// Returns whether the answer was to the later request.
async fn ended_or_refused(c: &mut CheckedConnection) -> CaseResult<bool> {
    match c.event().await {
        Ok(ConnectionEvent::Ended) => Ok(false),
        Ok(ConnectionEvent::Got(got)) if got.tag() == Tag(BEHIND) && !got.is_error() => Ok(true),
        Ok(ConnectionEvent::Got(got)) if got.is_error() => Ok(false),
        Ok(ConnectionEvent::Got(got)) => fail(format!("what is no message was answered by {}", got.text())),
        Err(stop) => Err(stop),
    }
}

async fn still_serves(s: &CaseContext) -> CaseResult {
    s.session().await?.attr(ROOT).await.map(drop)
}

pub(super) fn encoded(c: &CheckedConnection, message: &Tmsg<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(Tag(TAG), c.dialect, &mut bytes);
    bytes
}

/// Sets `size[4]` to the actual length.
fn resize(bytes: &mut [u8]) {
    let size = bytes.len() as u32;
    bytes[..4].copy_from_slice(&size.to_le_bytes());
}

pub(super) const TAG: u16 = 600;
const BEHIND: u16 = 601;
const LOOKS: u16 = 5;
