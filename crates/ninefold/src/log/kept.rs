//! A buffer of recent log lines for the console: lines logged before the console asked, and all later ones.
//!
//! In: lines from any thread that logs, so nothing here blocks or logs. Out: [`next`], for one thread.
//!
//! Always holds: at most [`KEPT_MAX`] bytes are buffered. Beyond that the oldest are dropped. The reader is told how
//! many were dropped since its first read.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Limit of buffered bytes.
const KEPT_MAX: usize = 64 << 10;

static KEPT: Mutex<Kept> = Mutex::new(Kept { bytes: VecDeque::new(), lost: 0, read: false });
static CAME: Condvar = Condvar::new();

struct Kept {
    bytes: VecDeque<u8>,
    lost: usize,
    /// A reader has asked at least once.
    read: bool,
}

/// Adds logged text to the buffer.
pub fn keep(text: &[u8]) {
    kept().push(text);
    CAME.notify_one();
}

/// Returns all text buffered since the previous call. Blocks until there is some.
pub fn next() -> Vec<u8> {
    let mut kept =
        CAME.wait_while(kept(), |kept| kept.bytes.is_empty()).unwrap_or_else(PoisonError::into_inner);
    kept.take()
}

fn kept() -> MutexGuard<'static, Kept> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Kept {
    /// Adds text without its colour escapes.
    fn push(&mut self, text: &[u8]) {
        let mut rest = text;
        while let Some(at) = rest.windows(2).position(|two| two == b"\x1b[") {
            self.bytes.extend(&rest[..at]);
            let end = rest[at..].iter().position(|&byte| byte == b'm');
            rest = end.map_or(&[], |end| &rest[at + end + 1..]);
        }
        self.bytes.extend(rest);
        let over = self.bytes.len().saturating_sub(KEPT_MAX);
        if over > 0 {
            let line = self.bytes.iter().skip(over - 1).position(|&byte| byte == b'\n');
            let gone = over + line.unwrap_or(0);
            self.bytes.drain(..gone);
            self.lost += gone;
        }
    }

    fn take(&mut self) -> Vec<u8> {
        let lost = std::mem::take(&mut self.lost);
        let note = if self.read && lost > 0 { format!("... {lost} bytes lost\n") } else { String::new() };
        self.read = true;
        note.into_bytes().into_iter().chain(self.bytes.drain(..)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_kept_and_what_was_lost_is_told_to_who_reads() {
        let mut kept = Kept { bytes: VecDeque::new(), lost: 0, read: false };
        let line = [b"\x1b[2m".as_slice(), &[b'x'; 1023], b"\x1b[0m\n"].concat();
        (0..100).for_each(|_| kept.push(&line));
        let plain = [[b'x'; 1023].as_slice(), b"\n"].concat();
        assert!(kept.take() == plain.repeat(64));
        (0..65).for_each(|_| kept.push(&plain));
        assert!(kept.take() == [b"... 1024 bytes lost\n".as_slice(), &plain.repeat(64)].concat());
        kept.push(b"plain\n");
        assert_eq!(kept.take(), b"plain\n");
    }
}
