//! Files as answers: whole, in ranges, compressed, or of unknown length.
//!
//! In: a request and an open file. Out: output, of which about [`super::GATHER`] bytes and one read are pending at
//! most.

use std::pin::pin;
use std::rc::Rc;

use bytes::Bytes;
use nine_io::Payload;
use nine_io::client::Error;

use super::{CellCount, GATHER, HttpConnection, HttpEnd, LateUpstream, late};
use crate::http::answer::{self, AfterAnswer};
use crate::http::files::CachedEntry;
use crate::http::head::{Head, Method};
use crate::http::range::Wanted;
use crate::http::since::{Conditions, Verdict, is_same};
use crate::http::squeeze::{ChunkEncoder, ContentCoding};
use crate::http::status::Status;

/// Bytes of a file that are read and sent at once, before other connections run.
const SEND_CHUNK_LEN: u64 = 256 << 10;
/// The same for a file without a length. A read of it may wait forever, and its buffer is reserved meanwhile.
const UNKNOWN: u64 = 16 << 10;
/// Largest file whose complete answer is cached, from its second request within a second on. In bytes.
const WHOLE: u64 = 16 << 10;
/// Text shorter than this is not worth compressing.
const SQUEEZED: u64 = 256;
/// Maximum number of answers compressed at once, since each needs memory. Others are sent uncompressed.
const SQUEEZING: usize = 256;
/// Largest file that the serving core compresses itself. In bytes.
const INLINE: u64 = 16 << 10;
/// Bytes compressed before other connections run.
const PRESSED: u64 = 32 << 10;

/// A part of an answer.
enum AnswerPart {
    Text(Bytes),
    /// Offset and length, in bytes.
    File(u64, u64),
}

impl HttpConnection {
    pub(super) async fn file(
        &mut self,
        head: &Head,
        input: &[u8],
        entry: Rc<CachedEntry>,
    ) -> Result<(), HttpEnd> {
        let sent = self.send_file(head, input, &entry).await;
        if sent.is_err() {
            // The file may have changed.
            entry.doubt();
        }
        sent
    }

    async fn send_file(&mut self, head: &Head, input: &[u8], entry: &CachedEntry) -> Result<(), HttpEnd> {
        let is_get = head.method == Method::Get;
        let conditions = Conditions::of(head, input);
        let coding = ContentCoding::of(head.codings).filter(|_| {
            let room = self.site.squeezing.get() < SQUEEZING;
            entry.is_text && entry.size >= SQUEEZED && head.chunks && head.ranges.is_empty() && room
        });
        let plain = is_get && head.ranges.is_empty() && conditions.is_empty() && coding.is_none();
        let is_small = plain && entry.size <= WHOLE && self.after == AfterAnswer::Stays;
        let second = self.site.clock.wall().as_secs();
        if is_small && let Some(answer) = entry.answer(second) {
            self.says(Status::OK);
            self.out.push(Payload::Bytes(answer));
            return Ok(());
        }
        let (lines, tag) = (entry.lines(coding), entry.tag(coding));
        let (mut first, size) = (Payload::EMPTY, entry.size);
        if size == 0 {
            // A generated file has no length before it is read, and its content differs each time.
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
                // Only the headers that RFC 9110, 15.4.5 requires.
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
            first = match self.read_file(entry, 0, size.min(SEND_CHUNK_LEN)).await? {
                Ok(first) => first,
                Err(error) => return self.fails(head, &error),
            };
            let came = first.len() as u64;
            if came < size.min(SEND_CHUNK_LEN) && self.read_more(entry, came, 1).await?.is_empty() {
                // The file has become shorter, so its tag is wrong.
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
                        self.pieces(entry, &[AnswerPart::File(from, size - from)]).await
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

    /// Sends a file that reports no length but has content, such as a generated file, up to its end.
    async fn endless(&mut self, head: &Head, entry: &CachedEntry, first: Payload) -> Result<(), HttpEnd> {
        if !head.chunks {
            // The end of the connection marks the end of the file.
            self.after = AfterAnswer::Closed;
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

    async fn parts(&mut self, entry: &CachedEntry, parts: &[(u64, u64)]) -> Result<(), HttpEnd> {
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
            return self.pieces(entry, &[AnswerPart::File(part.0, part.1)]).await;
        }
        // The file may contain any boundary, so the boundary is random. Clients use the lengths.
        let border = self.site.word();
        let (mut pieces, mut length) = (Vec::new(), 0);
        let mut put = |pieces: &mut Vec<AnswerPart>, text: String| {
            length += text.len() as u64;
            pieces.push(AnswerPart::Text(text.into()));
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
            pieces.push(AnswerPart::File(part.0, part.1));
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

    /// Sends the pieces of an answer of announced length.
    async fn pieces(&mut self, entry: &CachedEntry, pieces: &[AnswerPart]) -> Result<(), HttpEnd> {
        let mut left: u64 = pieces
            .iter()
            .map(|piece| match piece {
                AnswerPart::Text(text) => text.len() as u64,
                AnswerPart::File(_, len) => *len,
            })
            .sum();
        // Bytes sent when other connections last ran.
        let mut begun = self.sent;
        for piece in pieces {
            match piece {
                AnswerPart::Text(text) => {
                    left -= text.len() as u64;
                    self.out.push(Payload::Bytes(text.clone()));
                }
                &AnswerPart::File(from, len) => {
                    let (mut at, end) = (from, from + len);
                    while at < end {
                        self.card.left.set(left);
                        // Send the gathered output.
                        if self.waits() >= GATHER {
                            self.flush().await?;
                        }
                        if self.sent - begun >= self.site.options.schedule.turn() {
                            begun = self.sent;
                            self.site.threads.pass(self.number).await;
                        }
                        let read = self.read_more(entry, at, (end - at).min(SEND_CHUNK_LEN)).await?;
                        if read.is_empty() {
                            entry.doubt();
                            return Err(HttpEnd::Cut("a file has become shorter while it was sent".into()));
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

    /// Reads a part of a file. If it is not available at once, waits for a local disk, in turn, or for an upstream.
    async fn read_file(
        &mut self,
        entry: &CachedEntry,
        at: u64,
        most: u64,
    ) -> Result<Result<Payload, Error>, HttpEnd> {
        let most = most as u32;
        if let Some(read) = entry.file.read_now(at, most) {
            return Ok(read);
        }
        let (site, card, number) = (self.site.clone(), self.card.clone(), self.number);
        let reading = pin!(async {
            // Only local disks are scarce. A wait for an upstream delays no other connection.
            let _slot = match entry.file.is_called() {
                true => Some(site.threads.slot(number).await),
                false => None,
            };
            card.due(site.now() + site.options.stall);
            entry.file.read(at, most).await
        });
        let read = self.wait(reading).await?;
        Ok(read.unwrap_or_else(|LateUpstream| Err(late())).map(Payload::Bytes))
    }

    /// The same after the answer's length was announced: an error cuts the connection.
    async fn read_more(&mut self, entry: &CachedEntry, at: u64, most: u64) -> Result<Payload, HttpEnd> {
        self.read_file(entry, at, most).await?.map_err(|error| HttpEnd::Cut(error.to_string()))
    }

    async fn squeezed(
        &mut self,
        entry: &CachedEntry,
        first: Payload,
        coding: ContentCoding,
    ) -> Result<(), HttpEnd> {
        let cut = |error: std::io::Error| HttpEnd::Cut(error.to_string());
        let _one = CellCount::more(&self.site, |site| &site.squeezing);
        // A small file is compressed faster than handed to a worker.
        let (size, is_little) = (entry.size, entry.size <= INLINE);
        let (mut at, mut part, mut squeeze) = (0, first, None);
        while at < size {
            self.card.left.set(size - at);
            if part.is_empty() {
                part = self.read_more(entry, at, PRESSED.min(size - at)).await?;
            }
            if part.is_empty() {
                return Err(HttpEnd::Cut("a file has become shorter while it was sent".into()));
            }
            let bytes = part.read(PRESSED as usize).map_err(cut)?;
            part.advance(bytes.len());
            at += bytes.len() as u64;
            let (begun, is_last) = (squeeze.take(), at >= size);
            let press = move || -> std::io::Result<_> {
                let mut squeeze = begun.map_or_else(|| ChunkEncoder::new(coding, size), Ok)?;
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
