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
    shown: Shown,
    bytes: Cell<u64>,
    had: Cell<u64>,
    checked: Cell<u64>,
    files: Cell<u64>,
    resumed: Cell<u64>,
    skipped: Cell<u64>,
}

/// How it is shown, and when.
struct Shown {
    look: Look,
    begin: Instant,
    /// When something was shown last.
    last: Cell<Option<Instant>>,
}

enum Look {
    Nothing,
    Lines,
    Bar(ProgressBar),
}

impl Shown {
    fn new(quiet: bool, bar: impl FnOnce() -> ProgressBar) -> Self {
        let look = match (quiet, std::io::stderr().is_terminal()) {
            (true, _) => Look::Nothing,
            (false, false) => Look::Lines,
            (false, true) => {
                let bar = bar();
                bar.set_draw_target(ProgressDrawTarget::hidden());
                fail::beside(bar.clone());
                Look::Bar(bar)
            }
        };
        Self { look, begin: Instant::now(), last: Cell::new(None) }
    }

    fn bar(&self) -> Option<&ProgressBar> {
        if let Look::Bar(bar) = &self.look { Some(bar) } else { None }
    }

    /// Nothing more comes.
    fn end(&self) {
        self.bar().inspect(|bar| bar.finish_and_clear());
    }

    /// Something has changed: on a bar, or for a line that says what there is after so long.
    fn show(&self, on: impl FnOnce(&ProgressBar), line: impl FnOnce(Duration) -> String) {
        let now = Instant::now();
        let begun = now.duration_since(self.begin);
        if begun < SOON {
            return;
        }
        match &self.look {
            Look::Nothing => {}
            Look::Bar(bar) => {
                if self.last.replace(Some(now)).is_none() {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                }
                on(bar);
            }
            Look::Lines => {
                if is_due(self.last.get().unwrap_or(self.begin), now) {
                    self.last.set(Some(now));
                    fail::note(line(begun));
                }
            }
        }
    }
}

impl Progress {
    /// `size`: the bytes there will be, if that is known.
    pub fn new(quiet: bool, size: Option<u64>) -> Self {
        let zero = || Cell::new(0);
        Self {
            shown: Shown::new(quiet, || bar(size)),
            bytes: zero(),
            had: zero(),
            checked: zero(),
            files: zero(),
            resumed: zero(),
            skipped: zero(),
        }
    }

    /// Bytes have been moved.
    pub fn bytes(&self, n: usize) {
        add(&self.bytes, n as u64);
        self.show();
    }

    /// Bytes have been read to compare them.
    pub fn checked(&self, n: usize) {
        add(&self.checked, n as u64);
        self.show();
    }

    /// Bytes were there already.
    pub fn had(&self, n: u64) {
        add(&self.had, n);
        if let (Some(bar), 1..) = (self.shown.bar(), n) {
            bar.set_position(self.had.get() + self.bytes.get());
            bar.reset_eta();
        }
    }

    /// A file is done.
    pub fn file(&self) {
        add(&self.files, 1);
        self.show();
    }

    /// One of them may have been continued.
    pub fn resumed(&self, yes: bool) {
        add(&self.resumed, yes.into());
    }

    /// A file was there already.
    pub fn skipped(&self, size: u64) {
        add(&self.skipped, 1);
        self.had(size);
    }

    /// Files that are done.
    pub fn files(&self) -> u64 {
        self.files.get()
    }

    /// What it came to, with so many failures; `resume`: also what was there before.
    pub fn summary(&self, resume: bool, failed: usize) -> String {
        let mut said = format!("{} files are copied", self.files.get());
        if resume {
            let (resumed, skipped) = (self.resumed.get(), self.skipped.get());
            said += &format!(", {resumed} of them resumed, {skipped} were there");
        }
        if failed > 0 {
            said += &format!(", {failed} failed");
        }
        said
    }

    /// Nothing more comes.
    pub fn end(&self) {
        self.shown.end();
    }

    fn show(&self) {
        let on = |bar: &ProgressBar| {
            bar.set_position(self.had.get() + self.bytes.get());
            bar.set_prefix(format!("{} files", self.files.get()));
            bar.set_message(self.compared());
        };
        self.shown.show(on, |time| line(self.files.get(), self.bytes.get(), time) + &self.compared());
    }

    fn compared(&self) -> String {
        match self.checked.get() {
            0 => String::new(),
            n => format!(", {} compared", HumanBytes(n)),
        }
    }
}

/// How many of something have been looked at, shown where that takes long, as a copy's progress is.
pub struct Steps {
    shown: Shown,
    what: &'static str,
    done: Cell<u64>,
    read: Cell<u64>,
}

impl Steps {
    /// So many, if that is known, of `what`.
    pub fn new(quiet: bool, what: &'static str, of: Option<u64>) -> Self {
        let bar = || {
            let bar = of.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let of = if of.is_some() { "{bar:30} {pos} of {len}" } else { "{spinner} {pos}" };
            bar.with_style(style(&format!("{of} {what}{{msg}}")))
        };
        Self { shown: Shown::new(quiet, bar), what, done: Cell::new(0), read: Cell::new(0) }
    }

    /// One more.
    pub fn one(&self) {
        add(&self.done, 1);
        self.show();
    }

    /// It is so far, of so many.
    pub fn at(&self, done: u64, of: u64) {
        self.done.set(done);
        self.shown.bar().inspect(|bar| bar.set_length(of));
        self.show();
    }

    /// Bytes have been read for it.
    pub fn read(&self, n: usize) {
        add(&self.read, n as u64);
        self.show();
    }

    /// Nothing more comes.
    pub fn end(&self) {
        self.shown.end();
    }

    fn show(&self) {
        let read = || match self.read.get() {
            0 => String::new(),
            n => format!(", {} read", HumanBytes(n)),
        };
        let on = |bar: &ProgressBar| {
            bar.set_position(self.done.get());
            bar.set_message(read());
        };
        self.shown.show(on, |_| format!("{} {} so far{}", self.done.get(), self.what, read()));
    }
}

fn add(to: &Cell<u64>, n: u64) {
    to.set(to.get() + n);
}

fn is_due(last: Instant, now: Instant) -> bool {
    now.duration_since(last) >= EVERY
}

fn line(files: u64, bytes: u64, time: Duration) -> String {
    let rate = (bytes as f64 / time.as_secs_f64().max(0.001)) as u64;
    // What is no file counts none.
    let files = if files > 0 { format!("{files} files, ") } else { String::new() };
    format!("{files}{} so far, {}/s", HumanBytes(bytes), HumanBytes(rate))
}

fn bar(size: Option<u64>) -> ProgressBar {
    match size {
        Some(size) => ProgressBar::new(size)
            .with_style(style("{bar:30} {bytes} of {total_bytes}, {bytes_per_sec}, {eta} to go{msg}")),
        None => {
            ProgressBar::no_length().with_style(style("{spinner} {prefix}, {bytes}, {bytes_per_sec}{msg}"))
        }
    }
}

/// Of what is written here.
fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("a good template")
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

    #[test]
    fn what_was_there_and_what_is_compared_shows() {
        let progress = Progress::new(true, None);
        assert_eq!(
            (progress.compared(), progress.summary(false, 2)),
            (String::new(), "0 files are copied, 2 failed".into())
        );
        progress.checked(2048);
        progress.skipped(7);
        progress.file();
        progress.resumed(true);
        assert_eq!(progress.compared(), ", 2.00 KiB compared");
        assert_eq!(progress.summary(true, 0), "1 files are copied, 1 of them resumed, 1 were there");
    }
}
