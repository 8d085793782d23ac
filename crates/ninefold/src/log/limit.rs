//! Rate limit for log lines: each call site may log [`LINES`] lines in a [`WINDOW`]. A window begins with its first
//! line. Suppressed lines are counted and reported after the window.
//!
//! Time is an argument. The number of call sites is fixed by the code, so the table needs no limit.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Lines that one call site may log in a window.
pub const LINES: u64 = 20;
/// Length of a window.
pub const WINDOW: Duration = Duration::from_secs(1);

/// The decision about a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Show it, after a report of the `before` lines suppressed so far.
    Pass { before: u64 },
    /// Suppress and count it.
    Hold,
}

/// A rate limit for many call sites; `K` identifies a call site.
pub struct Limit<K> {
    windows: HashMap<K, Window>,
}

struct Window {
    begin: Instant,
    lines: u64,
}

impl<K> Default for Limit<K> {
    fn default() -> Self {
        Self { windows: HashMap::new() }
    }
}

impl<K: Copy + Eq + Hash> Limit<K> {
    /// Decides if a line of `place` may be shown at `now`.
    pub fn admit(&mut self, place: K, now: Instant) -> Verdict {
        let window = self.windows.entry(place).or_insert(Window { begin: now, lines: 0 });
        let before = window.held_back();
        if window.is_over(now) {
            *window = Window { begin: now, lines: 1 };
            return Verdict::Pass { before };
        }
        window.lines += 1;
        if window.lines <= LINES { Verdict::Pass { before: 0 } } else { Verdict::Hold }
    }

    /// Returns the call sites whose windows ended with suppressed lines, and how many lines. Each is returned once.
    pub fn due(&mut self, now: Instant) -> Vec<(K, u64)> {
        let over = self.windows.iter_mut().filter(|(_, w)| w.is_over(now) && w.held_back() > 0);
        over.map(|(place, window)| {
            let more = window.held_back();
            window.lines = LINES;
            (*place, more)
        })
        .collect()
    }
}

impl Window {
    fn is_over(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.begin) >= WINDOW
    }

    fn held_back(&self) -> u64 {
        self.lines.saturating_sub(LINES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_cut_and_its_rest_is_counted() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let shown = (0..1000).filter(|_| limit.admit("a", start) != Verdict::Hold).count();
        assert_eq!(shown as u64, LINES);
        assert_eq!(limit.admit("b", start), Verdict::Pass { before: 0 }, "another place is not concerned");
        let later = start + WINDOW;
        assert_eq!(limit.admit("a", later), Verdict::Pass { before: 1000 - LINES });
        assert_eq!(limit.admit("a", later), Verdict::Pass { before: 0 });
    }

    #[test]
    fn what_was_held_back_is_told_once() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        for _ in 0..LINES + 3 {
            limit.admit("a", start);
        }
        assert_eq!(limit.due(start), [], "the window is not over");
        assert_eq!(limit.due(start + WINDOW), [("a", 3)]);
        assert_eq!(limit.due(start + WINDOW), []);
        assert_eq!(limit.admit("a", start + WINDOW), Verdict::Pass { before: 0 });
    }
}
