//! How far a copy is: a bar on a terminal, a line every few seconds elsewhere, nothing if that is wanted.
//!
//! Always holds: a copy that is over soon shows nothing.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::fail;

/// Before it, nothing is shown.
const SOON: Duration = Duration::from_secs(1);
/// Between two lines.
const EVERY: Duration = Duration::from_secs(5);

/// See the module.
pub struct Progress {
    look: Look,
    begin: Instant,
    /// When something was shown last.
    shown: Cell<Option<Instant>>,
    bytes: Cell<u64>,
    files: Cell<u64>,
}

enum Look {
    Nothing,
    Lines,
    Bar(ProgressBar),
}

impl Progress {
    /// `size`: the bytes there will be, if that is known.
    pub fn new(quiet: bool, size: Option<u64>) -> Self {
        let look = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Look::Nothing,
            (false, false) => Look::Lines,
            (false, true) => {
                let bar = bar(size);
                fail::beside(bar.clone());
                Look::Bar(bar)
            }
        };
        let begin = Instant::now();
        Self { look, begin, shown: Cell::new(None), bytes: Cell::new(0), files: Cell::new(0) }
    }

    /// Bytes have been moved.
    pub fn bytes(&self, n: usize) {
        self.bytes.set(self.bytes.get() + n as u64);
        self.show(Instant::now());
    }

    /// A file is done.
    pub fn file(&self) {
        self.files.set(self.files.get() + 1);
        self.show(Instant::now());
    }

    /// Files done.
    pub fn files(&self) -> u64 {
        self.files.get()
    }

    /// Nothing more comes.
    pub fn end(&self) {
        if let Look::Bar(bar) = &self.look {
            bar.finish_and_clear();
        }
    }

    fn show(&self, now: Instant) {
        if now.duration_since(self.begin) < SOON {
            return;
        }
        match &self.look {
            Look::Nothing => {}
            Look::Bar(bar) => {
                if self.shown.replace(Some(now)).is_none() {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                bar.set_position(self.bytes.get());
                bar.set_message(format!("{} files", self.files.get()));
            }
            Look::Lines => {
                if is_due(self.shown.get().unwrap_or(self.begin), now) {
                    self.shown.set(Some(now));
                    fail::note(line(self.files.get(), self.bytes.get(), now.duration_since(self.begin)));
                }
            }
        }
    }
}

fn is_due(last: Instant, now: Instant) -> bool {
    now.duration_since(last) >= EVERY
}

fn line(files: u64, bytes: u64, time: Duration) -> String {
    let rate = (bytes as f64 / time.as_secs_f64().max(0.001)) as u64;
    format!("{files} files, {} so far, {}/s", HumanBytes(bytes), HumanBytes(rate))
}

fn bar(size: Option<u64>) -> ProgressBar {
    // The templates are constants, and these are right.
    let style = |template: &str| ProgressStyle::with_template(template).expect("a good template");
    let bar = match size {
        Some(size) => ProgressBar::new(size)
            .with_style(style("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go")),
        None => ProgressBar::no_length().with_style(style("{spinner} {msg}, {bytes}, {bytes_per_sec}")),
    };
    bar.set_draw_target(ProgressDrawTarget::hidden());
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_every_few_seconds() {
        let begin = Instant::now();
        assert!(!is_due(begin, begin + EVERY / 2) && is_due(begin, begin + EVERY));
        assert_eq!(line(3, 2048, Duration::from_secs(2)), "3 files, 2.00 KiB so far, 1.00 KiB/s");
    }
}
