//! Files as answers: whole, in parts, compressed, or of a length that nobody knows before.
//!
//! In: a request and an open file. Out: what is to be sent, of which so much waits as [`super::GATHER`] and one read.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use nine_io::Payload;
use nine_io::client::Error;

use super::{Conn, End, GATHER, Late, One, late};
use crate::http::answer::{self, After};
use crate::http::files::Entry;
use crate::http::head::{Head, Method};
use crate::http::range::Wanted;
use crate::http::since::{Conditions, Verdict, is_same};
use crate::http::squeeze::{Coding, Squeeze};
use crate::http::status::Status;

/// Bytes of a file that are read and sent at once, before others have their turn.
const CHUNK: u64 = 256 << 10;
/// The same of a file that says no length: it may wait for ever, and what it is asked for is room that others want.
const UNKNOWN: u64 = 16 << 10;
/// Bytes of a file that is answered at once, head and all, from the second request of a second on.
const WHOLE: u64 = 16 << 10;
/// Text shorter than this is not worth compressing.
const SQUEEZED: u64 = 256;
/// Answers that are compressed at once: each needs memory of its own. The others are sent as they are.
const SQUEEZING: usize = 256;
/// Bytes of a file that is compressed by the core that serves.
const INLINE: u64 = 16 << 10;
/// Bytes that are compressed before others have their turn.
const PRESSED: u64 = 32 << 10;

/// Of an answer, a part.
enum Piece {
    Text(Bytes),
    /// First byte, bytes.
    File(u64, u64),
}

impl Conn {
    pub(super) async fn file(&mut self, head: &Head, input: &[u8], entry: Rc<Entry>) -> Result<(), End> {
        let sent = self.send_file(head, input, &entry).await;
        if sent.is_err() {
            // Perhaps it is not what it was.
            entry.doubt();
        }
        sent
    }

    async fn send_file(&mut self, head: &Head, input: &[u8], entry: &Entry) -> Result<(), End> {
        let is_get = head.method == Method::Get;
        let conditions = Conditions::of(head, input);
        let coding = Coding::of(head.codings).filter(|_| {
            let room = self.site.squeezing.get() < SQUEEZING;
            entry.is_text && entry.size >= SQUEEZED && head.chunks && head.ranges.is_empty() && room
        });
        let plain = is_get && head.ranges.is_empty() && conditions.is_empty() && coding.is_none();
        let is_small = plain && entry.size <= WHOLE && self.after == After::Stays;
        let second = self.site.clock.wall().as_secs();
        if is_small && let Some(answer) = entry.answer(second) {
            self.says(Status::OK);
            self.out.push(Payload::Bytes(answer));
            return Ok(());
        }
        let (lines, tag) = (entry.lines(coding), entry.tag(coding));
        let (mut first, size) = (Payload::EMPTY, entry.size);
        if size == 0 {
            // What a program makes has no length before it is read, and is never the same.
            first = match self.read_file(entry, 0, UNKNOWN).await? {
                Ok(first) => first,
                Err(error) => return self.fails(head, &error),
            };
            if !first.is_empty() {
                return self.endless(head, entry, first).await;
            }
        }
        match conditions.judge(&tag, entry.changed) {
            Verdict::Go => {}
            Verdict::Known => {
                let mut text = self.begin(Status::NOT_MODIFIED);
                // Of the rest the client knows the same (RFC 9110, 15.4.5).
                answer::line(&mut text, "ETag", tag.as_bytes());
                if entry.is_text {
                    answer::line(&mut text, "Vary", b"Accept-Encoding");
                }
                return self.send_head(text);
            }
            Verdict::Failed => {
                self.say(head, Status::PRECONDITION, "the file is another one by now", &[]);
                return Ok(());
            }
        }
        if is_get && head.ranges.is_empty() && size > 0 {
            first = match self.read_file(entry, 0, size.min(CHUNK)).await? {
                Ok(first) => first,
                Err(error) => return self.fails(head, &error),
            };
            let came = first.len() as u64;
            if came < size.min(CHUNK) && self.read_more(entry, came, 1).await?.is_empty() {
                // It has become shorter, and is none of those that the client may know.
                entry.doubt();
                let mut text = self.begin(Status::OK);
                answer::line(&mut text, "Content-Type", entry.kind().as_bytes());
                answer::length(&mut text, came);
                answer::end(&mut text);
                self.out.extend([Payload::from(text), first]);
                return Ok(());
            }
        }
        let if_range = &input[head.if_range.clone()];
        let wanted = match is_get && !head.ranges.is_empty() && is_same(if_range, &tag) {
            true => head.ranges.of(size),
            false => Wanted::All,
        };
        match wanted {
            Wanted::All => {
                let mut text = self.begin(Status::OK);
                text.extend_from_slice(&lines);
                text.extend_from_slice(entry.modified(self.site.clock.wall()).as_bytes());
                match coding {
                    Some(coding) => {
                        answer::line(&mut text, "Content-Encoding", coding.name().as_bytes());
                        answer::line(&mut text, "Transfer-Encoding", b"chunked");
                    }
                    None => answer::length(&mut text, size),
                }
                answer::end(&mut text);
                if is_small
                    && first.len() as u64 == size
                    && let Some(content) = first.pieces()
                    && entry.again(second)
                {
                    content.for_each(|piece| text.extend_from_slice(piece));
                    let answer = Bytes::from(text);
                    entry.keep(answer.clone());
                    self.out.push(Payload::Bytes(answer));
                    return Ok(());
                }
                self.out.push(Payload::from(text));
                match coding {
                    _ if !is_get => Ok(()),
                    Some(coding) => self.squeezed(entry, first, coding).await,
                    None => {
                        let from = first.len() as u64;
                        self.out.push(first);
                        self.pieces(entry, &[Piece::File(from, size - from)]).await
                    }
                }
            }
            Wanted::Nothing => {
                let range = format!("bytes */{size}");
                self.say(head, Status::RANGE, "the file is shorter", &[("Content-Range", range.as_bytes())]);
                Ok(())
            }
            Wanted::Parts(parts) => self.parts(entry, &parts).await,
        }
    }

    /// A file that says no length and has content, as those of programs have: as much as there is.
    async fn endless(&mut self, head: &Head, entry: &Entry, first: Payload) -> Result<(), End> {
        if !head.chunks {
            // Its end is that of the connection.
            self.after = After::Closed;
        }
        let mut text = self.begin(Status::OK);
        answer::line(&mut text, "Content-Type", entry.kind().as_bytes());
        answer::line(&mut text, "Cache-Control", b"no-store");
        if head.chunks {
            answer::line(&mut text, "Transfer-Encoding", b"chunked");
        }
        answer::end(&mut text);
        self.out.push(Payload::from(text));
        if head.method != Method::Get {
            return Ok(());
        }
        let (mut at, mut part) = (0, first);
        while !part.is_empty() {
            at += part.len() as u64;
            if head.chunks {
                let size = format!("{:x}\r\n", part.len()).into_bytes();
                self.out.extend([Payload::from(size), part, Payload::from(b"\r\n".to_vec())]);
            } else {
                self.out.push(part);
            }
            self.flush().await?;
            self.site.threads.pass(self.number).await;
            part = self.read_more(entry, at, UNKNOWN).await?;
        }
        if head.chunks {
            self.out.push(Payload::from(b"0\r\n\r\n".to_vec()));
        }
        Ok(())
    }

    async fn parts(&mut self, entry: &Entry, parts: &[(u64, u64)]) -> Result<(), End> {
        let size = entry.size;
        let range = |(from, len): (u64, u64)| format!("bytes {from}-{}/{size}", from + len - 1);
        let mut text = self.begin(Status::PARTIAL);
        let lines = entry.lines(None);
        let modified = entry.modified(self.site.clock.wall());
        if let [part] = *parts {
            text.extend_from_slice(&lines);
            text.extend_from_slice(modified.as_bytes());
            answer::line(&mut text, "Content-Range", range(part).as_bytes());
            answer::length(&mut text, part.1);
            answer::end(&mut text);
            self.out.push(Payload::Bytes(text.into()));
            return self.pieces(entry, &[Piece::File(part.0, part.1)]).await;
        }
        // Nothing in the file can be known to be none of these; a client does not search, it counts.
        let border = self.site.word();
        let (mut pieces, mut length) = (Vec::new(), 0);
        let mut put = |pieces: &mut Vec<Piece>, text: String| {
            length += text.len() as u64;
            pieces.push(Piece::Text(text.into()));
        };
        let (lines, kind) = (String::from_utf8_lossy(&lines), entry.kind());
        for (at, &part) in parts.iter().enumerate() {
            let begin = if at == 0 { "" } else { "\r\n" };
            put(
                &mut pieces,
                format!(
                    "{begin}--{border}\r\nContent-Type: {kind}\r\nContent-Range: {}\r\n\r\n",
                    range(part)
                ),
            );
            pieces.push(Piece::File(part.0, part.1));
        }
        put(&mut pieces, format!("\r\n--{border}--\r\n"));
        length += parts.iter().map(|(_, len)| len).sum::<u64>();
        for line in lines.lines().skip(1) {
            text.extend_from_slice(line.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(modified.as_bytes());
        let kind = format!("multipart/byteranges; boundary={border}");
        answer::line(&mut text, "Content-Type", kind.as_bytes());
        answer::length(&mut text, length);
        answer::end(&mut text);
        self.out.push(Payload::Bytes(text.into()));
        self.pieces(entry, &pieces).await
    }

    /// Sends what an announced length consists of.
    async fn pieces(&mut self, entry: &Entry, pieces: &[Piece]) -> Result<(), End> {
        let mut left: u64 = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Text(text) => text.len() as u64,
                Piece::File(_, len) => *len,
            })
            .sum();
        // Since others had their turn.
        let mut begun = self.sent;
        for piece in pieces {
            match piece {
                Piece::Text(text) => {
                    left -= text.len() as u64;
                    self.out.push(Payload::Bytes(text.clone()));
                }
                &Piece::File(from, len) => {
                    let (mut at, end) = (from, from + len);
                    while at < end {
                        self.card.left.set(left);
                        // What is ready goes.
                        if self.waits() >= GATHER {
                            self.flush().await?;
                        }
                        if self.sent - begun >= self.site.options.schedule.turn() {
                            begun = self.sent;
                            self.site.threads.pass(self.number).await;
                        }
                        let read = self.read_more(entry, at, (end - at).min(CHUNK)).await?;
                        if read.is_empty() {
                            entry.doubt();
                            return Err(End::Cut("a file has become shorter while it was sent".into()));
                        }
                        at += read.len() as u64;
                        left -= read.len() as u64;
                        self.out.push(read);
                    }
                }
            }
        }
        Ok(())
    }

    /// What can be read now, or comes from a disk, in turn, or from an upstream.
    async fn read_file(&mut self, entry: &Entry, at: u64, most: u64) -> Result<Result<Payload, Error>, End> {
        let most = most as u32;
        if let Some(read) = entry.file.read_now(at, most) {
            return Ok(read);
        }
        let (site, card, number) = (self.site.clone(), self.card.clone(), self.number);
        let reading = pin!(async {
            // The disks of this machine are what is scarce: who waits for an upstream is in nobody's way.
            let _slot = match entry.file.is_called() {
                true => Some(site.threads.slot(number).await),
                false => None,
            };
            card.due(site.now() + site.options.stall);
            entry.file.read(at, most).await
        });
        let read = self.wait(reading).await?;
        Ok(read.unwrap_or_else(|Late| Err(late())).map(Payload::Bytes))
    }

    /// The same of what an answer has announced.
    async fn read_more(&mut self, entry: &Entry, at: u64, most: u64) -> Result<Payload, End> {
        self.read_file(entry, at, most).await?.map_err(|error| End::Cut(error.to_string()))
    }

    async fn squeezed(&mut self, entry: &Entry, first: Payload, coding: Coding) -> Result<(), End> {
        let cut = |error: std::io::Error| End::Cut(error.to_string());
        let _one = One::more(&self.site, |site| &site.squeezing);
        // Little is done sooner than handed over.
        let (size, is_little) = (entry.size, entry.size <= INLINE);
        let (mut at, mut part, mut squeeze) = (0, first, None);
        while at < size {
            self.card.left.set(size - at);
            if part.is_empty() {
                part = self.read_more(entry, at, PRESSED.min(size - at)).await?;
            }
            if part.is_empty() {
                return Err(End::Cut("a file has become shorter while it was sent".into()));
            }
            let bytes = part.read(PRESSED as usize).map_err(cut)?;
            part.advance(bytes.len());
            at += bytes.len() as u64;
            let (begun, is_last) = (squeeze.take(), at >= size);
            let press = move || -> std::io::Result<_> {
                let mut squeeze = begun.map_or_else(|| Squeeze::new(coding, size), Ok)?;
                let mut made = squeeze.put(&bytes)?;
                if is_last {
                    made.extend(squeeze.end()?);
                    return Ok((None, made));
                }
                Ok((Some(squeeze), made))
            };
            let pressed = if is_little { press() } else { self.work(press).await? };
            let (rest, made) = pressed.map_err(cut)?;
            squeeze = rest;
            self.out.push(Payload::from(made));
            self.flush().await?;
            self.site.threads.pass(self.number).await;
        }
        Ok(())
    }
}
