//! The messages of an archive: the end of them is its console's `log`, and readers of `news` wait for new ones.
//!
//! In: lines from any thread, also with locks held. Out: text; answers to waiting readers, given by a job that holds no
//! lock.
//!
//! Always holds: at most [`LOG_LEN_MAX`] bytes of whole lines are stored, and the oldest are dropped. A reader of
//! `news` that falls behind reads how many bytes it has lost.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use nine_io::server::ReqId;
use nine_io::synth::{Ask, Handle};
use nine_proto::{Errno, Error};

use crate::archive::Archive;
use crate::jobs::JobQueue;

/// Maximum bytes stored: about a thousand lines.
const LOG_LEN_MAX: usize = 64 << 10;
/// Maximum bytes of a line; a longer one is cut.
const LINE: usize = 2 << 10;
/// Maximum number of waiting reads of `news`. One more fails with EBUSY.
const WAITING: usize = 256;

/// The log of an archive. Cheap to clone; of the archive it holds only the jobs.
#[derive(Clone)]
pub struct Log(Arc<Mutex<LogBuffer>>, JobQueue);

#[derive(Default)]
struct LogBuffer {
    text: VecDeque<u8>,
    /// The number of bytes dropped before `text`.
    gone: u64,
    waiting: Vec<(LogPosition, Ask)>,
    /// A job that answers readers is running.
    answers: bool,
}

/// The position of a reader, in bytes since the start.
type LogPosition = Arc<Mutex<u64>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LogBuffer {
    fn push(&mut self, time: i64, text: &str) {
        let mut line = format!("{time} ");
        for char in text.chars() {
            // File names come from clients, and the reader may be a terminal.
            match nine_text::is_deceptive(char) {
                true => line.extend(char.escape_default()),
                false => line.push(char),
            }
        }
        let end = (0..=LINE.min(line.len())).rev().find(|at| line.is_char_boundary(*at));
        line.truncate(end.unwrap_or(0));
        self.text.extend(line.as_bytes());
        self.text.push_back(b'\n');
        while self.text.len() > LOG_LEN_MAX {
            let end = self.text.iter().position(|byte| *byte == b'\n').map_or(self.text.len(), |at| at + 1);
            self.text.drain(..end);
            self.gone += end as u64;
        }
    }

    fn end(&self) -> u64 {
        self.gone + self.text.len() as u64
    }

    /// Takes at most `count` bytes from a position on. `None`: there is nothing new.
    fn take(&self, place: &mut u64, count: usize) -> Option<Bytes> {
        let lost = self.gone.saturating_sub(*place);
        if lost > 0 {
            *place = self.gone;
            let mut note = Bytes::from(format!("... {lost} bytes lost\n"));
            note.truncate(count);
            return Some(note);
        }
        let from = (*place - self.gone) as usize;
        let bytes: Bytes = self.text.iter().skip(from).take(count).copied().collect();
        *place += bytes.len() as u64;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Takes the waiting reads for which there is text, with their answers.
    fn answers(&mut self) -> Vec<(Ask, Bytes)> {
        let mut answers = Vec::new();
        for (place, ask) in std::mem::take(&mut self.waiting) {
            let taken = self.take(&mut lock(&place), ask.count as usize);
            match taken {
                Some(bytes) => answers.push((ask, bytes)),
                None => self.waiting.push((place, ask)),
            }
        }
        answers
    }
}

impl Log {
    pub(crate) fn new(jobs: JobQueue) -> Self {
        Self(Arc::default(), jobs)
    }

    /// Adds a message with its time in seconds since 1970, and answers waiting readers.
    pub fn push(&self, time: i64, text: impl Display) {
        let begins = {
            let kept = &mut *lock(&self.0);
            kept.push(time, &text.to_string());
            !kept.waiting.is_empty() && !std::mem::replace(&mut kept.answers, true)
        };
        if begins {
            let log = self.clone();
            self.1.begin(async move {
                let answers = {
                    let kept = &mut *lock(&log.0);
                    kept.answers = false;
                    kept.answers()
                };
                answers.into_iter().for_each(|(ask, bytes)| ask.give(bytes));
            });
        }
    }

    /// Returns the stored text.
    pub(crate) fn text(&self) -> String {
        let kept = lock(&self.0);
        let bytes: Vec<u8> = kept.text.iter().copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Returns a reader of future messages.
    pub(crate) fn news(&self) -> NewsHandle {
        let end = lock(&self.0).end();
        NewsHandle { log: self.clone(), place: Arc::new(Mutex::new(end)) }
    }
}

/// An open `news` file.
pub(crate) struct NewsHandle {
    log: Log,
    place: LogPosition,
}

impl Handle for NewsHandle {
    fn read(&self, ask: Ask) {
        if ask.count == 0 {
            return ask.give(Bytes::new());
        }
        let (taken, ask) = {
            let kept = &mut *lock(&self.log.0);
            let taken = kept.take(&mut lock(&self.place), ask.count as usize);
            if taken.is_none() && kept.waiting.len() < WAITING {
                return kept.waiting.push((self.place.clone(), ask));
            }
            (taken, ask)
        };
        match taken {
            Some(bytes) => ask.give(bytes),
            None => ask.fail(Error::new(Errno::EBUSY, format!("{WAITING} wait for news already"))),
        }
    }

    fn cancel(&self, id: ReqId) -> bool {
        let taken = {
            let kept = &mut *lock(&self.log.0);
            let at = kept.waiting.iter().position(|(_, ask)| ask.id() == id);
            at.map(|at| kept.waiting.remove(at))
        };
        let is_mine = taken.is_some();
        taken.into_iter().for_each(|(_, ask)| ask.fail(Errno::EINTR.into()));
        is_mine
    }
}

impl Drop for NewsHandle {
    fn drop(&mut self) {
        // Waiting requests are dropped, and so answered, after the lock is released.
        let gone: Vec<(LogPosition, Ask)> = {
            let kept = &mut *lock(&self.log.0);
            let (gone, stay) = std::mem::take(&mut kept.waiting)
                .into_iter()
                .partition(|(place, _)| Arc::ptr_eq(place, &self.place));
            kept.waiting = stay;
            gone
        };
        drop(gone);
    }
}

impl Archive {
    /// Returns the log of the archive.
    pub fn log(&self) -> Log {
        self.0.log.clone()
    }

    /// Logs a message of level info.
    pub(crate) fn info(&self, text: impl Display) {
        tracing::info!("{text}");
        self.note(text);
    }

    /// Logs a warning.
    pub(crate) fn warn(&self, text: impl Display) {
        tracing::warn!("{text}");
        self.note(text);
    }

    /// Logs an error.
    pub(crate) fn error(&self, text: impl Display) {
        tracing::error!("{text}");
        self.note(text);
    }

    /// Adds a message to the archive's log only.
    pub(crate) fn note(&self, text: impl Display) {
        self.0.log.push(self.time().sec, text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Bench;

    #[test]
    fn the_oldest_lines_go_and_who_is_behind_is_told() {
        let mut kept = LogBuffer::default();
        let (mut place, mut behind) = (0, 0);
        kept.push(5, "one\n\x1bline");
        assert_eq!(kept.take(&mut place, 4).unwrap(), "5 on");
        assert_eq!(kept.take(&mut place, 100).unwrap(), "e\\n\\u{1b}line\n");
        assert_eq!(kept.take(&mut place, 100), None);
        for _ in 0..2 * LOG_LEN_MAX / LINE {
            kept.push(6, &"ä".repeat(LINE));
        }
        let text: Vec<u8> = kept.text.iter().copied().collect();
        assert!(text.len() <= LOG_LEN_MAX && text.len() > LOG_LEN_MAX - 2 * LINE && text.starts_with(b"6 "));
        let lost = format!("... {} bytes lost\n", kept.gone);
        assert_eq!(kept.take(&mut behind, 100).unwrap(), lost);
        assert_eq!(kept.take(&mut behind, LOG_LEN_MAX).unwrap(), text);
        assert_eq!(kept.take(&mut behind, LOG_LEN_MAX), None);
        assert_eq!(behind, kept.end());
    }

    #[test]
    fn an_archive_tells_what_becomes_of_it() {
        let mut bench = Bench::new(1 << 15, 8192, true);
        let archive = bench.archive.clone();
        let (log, mut place) = (archive.log(), 0);
        bench.run(archive.command("dump wait")).unwrap();
        bench.run(archive.command("newuser glenda")).unwrap();
        bench.run(archive.command("check wait")).unwrap();
        let text = log.text();
        for line in ["dump 2026/1118", "dump 2026/1118 is on the worm", "newuser: ", " is whole"] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(text.lines().all(|line| line.starts_with("1795")), "{text}");
        let read = lock(&log.0).take(&mut place, LOG_LEN_MAX).unwrap();
        assert_eq!(read, text.as_bytes());
        log.push(7, "a member has gone");
        assert_eq!(lock(&log.0).take(&mut place, LOG_LEN_MAX).unwrap(), "7 a member has gone\n");
    }
}
