//! Progress of a copy: a bar on a terminal, else a line every few seconds; nothing if the user wants quiet.
//!
//! Always holds: a copy that ends soon shows nothing.

use std::cell::Cell;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{HumanBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::fail;

/// Nothing is shown before this time.
const SOON: Duration = Duration::from_secs(1);
/// Interval of lines.
const EVERY: Duration = Duration::from_secs(5);

/// Progress of a copy.
pub struct Progress {
    shown: Shown,
    bytes: Cell<u64>,
    had: Cell<u64>,
    checked: Cell<u64>,
    files: Cell<u64>,
    resumed: Cell<u64>,
    skipped: Cell<u64>,
}

/// The form of the display, and its times.
struct Shown {
    look: Look,
    begin: Instant,
    /// Time of the last line.
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

    /// Removes the display.
    fn end(&self) {
        self.bar().inspect(|bar| bar.finish_and_clear());
    }

    /// Updates the bar, or prints a line if one is due. `line` gets the time since the start.
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
    /// `size`: the expected bytes, if known.
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

    /// Adds bytes that were moved.
    pub fn bytes(&self, n: usize) {
        add(&self.bytes, n as u64);
        self.show();
    }

    /// Adds bytes that were read for comparison.
    pub fn checked(&self, n: usize) {
        add(&self.checked, n as u64);
        self.show();
    }

    /// Adds bytes that existed before.
    pub fn had(&self, n: u64) {
        add(&self.had, n);
        if let (Some(bar), 1..) = (self.shown.bar(), n) {
            bar.set_position(self.had.get() + self.bytes.get());
            bar.reset_eta();
        }
    }

    /// Adds a file that is done.
    pub fn file(&self) {
        add(&self.files, 1);
        self.show();
    }

    /// Adds a file that was continued, if `yes`.
    pub fn resumed(&self, yes: bool) {
        add(&self.resumed, yes.into());
    }

    /// Adds a file that existed before.
    pub fn skipped(&self, size: u64) {
        add(&self.skipped, 1);
        self.had(size);
    }

    /// Returns the number of files that are done.
    pub fn files(&self) -> u64 {
        self.files.get()
    }

    /// Returns a summary with the number of failures; with `resume`, also the files that existed before.
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

    /// Removes the display.
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

/// A counter of items, displayed like a copy's progress if it takes long.
pub struct Steps {
    shown: Shown,
    what: &'static str,
    done: Cell<u64>,
    read: Cell<u64>,
}

impl Steps {
    /// Counts items with this plural name; `of` is their number, if known.
    pub fn new(quiet: bool, what: &'static str, of: Option<u64>) -> Self {
        let bar = || {
            let bar = of.map_or_else(ProgressBar::no_length, ProgressBar::new);
            let of = if of.is_some() { "{bar:30} {pos} of {len}" } else { "{spinner} {pos}" };
            bar.with_style(style(&format!("{of} {what}{{msg}}")))
        };
        Self { shown: Shown::new(quiet, bar), what, done: Cell::new(0), read: Cell::new(0) }
    }

    /// Counts one item.
    pub fn one(&self) {
        add(&self.done, 1);
        self.show();
    }

    /// Sets the position and the total.
    pub fn at(&self, done: u64, of: u64) {
        self.done.set(done);
        self.shown.bar().inspect(|bar| bar.set_length(of));
        self.show();
    }

    /// Adds bytes that were read.
    pub fn read(&self, n: usize) {
        add(&self.read, n as u64);
        self.show();
    }

    /// Removes the display.
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
    // Items that are not files are not counted.
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

/// Parses a template of this file.
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
