//! The program's log: its last part, and a live copy for each reader.
//!
//! In: log texts, requests. Out: answers, given while nothing is locked. No clock.
//!
//! Always holds: the buffers are limited, for the log and for each reader. A reader further behind loses whole texts.
//! In their place a line reports the number of lost bytes.

use std::collections::{BTreeMap, VecDeque};

use bytes::{Bytes, BytesMut};
use nine_io::server::ReqId;
use nine_io::synth::Ask;
use nine_proto::{Errno, Error, Result};

use super::ConsAnswers;

/// The bytes of the log that are retained.
pub(super) const KMESG_MAX: usize = 16 << 10;
/// The bytes that one reader may be behind.
pub(super) const BEHIND_MAX: usize = 64 << 10;
/// Readers at once; one more is refused with ENFILE.
const READERS_MAX: usize = 64;
/// Room for the line that reports lost bytes.
const NOTE_MAX: usize = 48;

/// See the module.
#[derive(Default)]
pub(super) struct ConsLog {
    end: VecDeque<u8>,
    readers: BTreeMap<u64, ConsLogReader>,
    /// The number of the next reader.
    next: u64,
}

#[derive(Default)]
struct ConsLogReader {
    behind: UnreadText,
    asks: VecDeque<Ask>,
}

/// The unread text of a reader.
#[derive(Default)]
struct UnreadText {
    held: BytesMut,
    /// Bytes dropped after those in `held`.
    lost: usize,
}

impl ConsLog {
    /// Appends a text to the log.
    pub(super) fn push(&mut self, text: &[u8], answers: &mut ConsAnswers) {
        self.end.extend(text);
        let over = self.end.len().saturating_sub(KMESG_MAX);
        if over > 0 {
            // Cuts at the start of a line, if there is one.
            let line = self.end.iter().skip(over - 1).position(|&byte| byte == b'\n');
            self.end.drain(..over + line.unwrap_or(0));
        }
        for reader in self.readers.values_mut() {
            reader.behind.push(text);
            reader.go_on(answers);
        }
    }

    /// Returns the retained end of the log.
    pub(super) fn end(&self) -> Bytes {
        let (a, b) = self.end.as_slices();
        [a, b].concat().into()
    }

    /// Registers a reader, which gets texts from now on. ENFILE if there are too many.
    pub(super) fn open(&mut self) -> Result<u64> {
        if self.readers.len() >= READERS_MAX {
            let text = format!("{READERS_MAX} read it already, and no more may");
            return Err(Error::new(Errno::ENFILE, text));
        }
        self.next += 1;
        self.readers.insert(self.next, ConsLogReader::default());
        Ok(self.next)
    }

    /// Removes a reader and returns its waiting requests.
    pub(super) fn close(&mut self, number: u64) -> Vec<Ask> {
        self.readers.remove(&number).map_or(Vec::new(), |reader| reader.asks.into())
    }

    /// Answers a read now, or when there is text for the reader.
    pub(super) fn read(&mut self, number: u64, ask: Ask, answers: &mut ConsAnswers) {
        match self.readers.get_mut(&number) {
            Some(reader) => {
                reader.asks.push_back(ask);
                reader.go_on(answers);
            }
            None => answers.push((ask, Err(Errno::EIO.into()))),
        }
    }

    /// Removes a waiting request, for a flush.
    pub(super) fn take(&mut self, number: u64, id: ReqId) -> Option<Ask> {
        let asks = &mut self.readers.get_mut(&number)?.asks;
        let at = asks.iter().position(|ask| ask.id() == id)?;
        asks.remove(at)
    }

    pub(super) fn waiting(&self) -> usize {
        self.readers.values().map(|reader| reader.asks.len()).sum()
    }
}

impl ConsLogReader {
    fn go_on(&mut self, answers: &mut ConsAnswers) {
        while let Some(ask) = self.asks.front() {
            let Some(bytes) = self.behind.take(ask.count as usize) else { return };
            answers.extend(self.asks.pop_front().map(|ask| (ask, Ok(Some(bytes)))));
        }
    }
}

impl UnreadText {
    fn push(&mut self, text: &[u8]) {
        let note = if self.lost > 0 { NOTE_MAX } else { 0 };
        if self.held.len() + note + text.len() > BEHIND_MAX {
            self.lost += text.len();
            return;
        }
        self.note();
        self.held.extend_from_slice(text);
    }

    /// Appends the line that reports lost bytes.
    fn note(&mut self) {
        if self.lost > 0 {
            let note = format!("... {} bytes lost\n", std::mem::take(&mut self.lost));
            self.held.extend_from_slice(note.as_bytes());
        }
    }

    fn take(&mut self, count: usize) -> Option<Bytes> {
        if self.held.is_empty() {
            self.note();
        }
        let n = count.min(self.held.len());
        (n > 0).then(|| self.held.split_to(n).freeze())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_from_the_beginning_of_a_line() {
        let mut log = ConsLog::default();
        for n in 0..3000 {
            log.push(format!("line {n:04}\n").as_bytes(), &mut ConsAnswers::new());
        }
        let end = String::from_utf8(log.end().to_vec()).unwrap();
        assert!(end.starts_with("line ") && end.ends_with("line 2999\n"), "{end}");
        assert_eq!(end.len(), KMESG_MAX / 10 * 10);
        log.push(&[b'x'; 2 * KMESG_MAX], &mut ConsAnswers::new());
        assert_eq!(log.end(), [b'x'; KMESG_MAX].as_slice());
    }

    #[test]
    fn who_is_behind_is_told_what_was_lost_where_it_was() {
        let mut behind = UnreadText::default();
        let line = [b'a'; 1 << 10];
        (0..64).for_each(|_| behind.push(&line));
        behind.push(b"lost\n");
        behind.push(b"and this\n");
        assert_eq!(behind.take(100).unwrap().len(), 100);
        // There is room again, and the line about lost bytes comes before the next text.
        behind.push(b"next\n");
        assert_eq!(behind.take(BEHIND_MAX - 100).unwrap(), [b'a'; BEHIND_MAX - 100].as_slice());
        assert_eq!(&*behind.take(1000).unwrap(), b"... 14 bytes lost\nnext\n");
        assert_eq!(behind.take(1000), None);
        // No text follows it.
        behind.push(&[b'b'; BEHIND_MAX]);
        behind.push(b"x");
        assert_eq!(behind.take(BEHIND_MAX).unwrap().len(), BEHIND_MAX);
        assert_eq!(&*behind.take(1000).unwrap(), b"... 1 bytes lost\n");
        assert_eq!(behind.take(1000), None);
    }

    #[test]
    fn readers_have_a_number() {
        let mut log = ConsLog::default();
        let first = log.open().unwrap();
        while log.open().is_ok() {}
        assert_eq!(log.readers.len(), READERS_MAX);
        assert!(log.close(first).is_empty());
        assert_ne!(log.open().unwrap(), first);
    }
}
