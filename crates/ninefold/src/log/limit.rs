//! How often one place in the code may speak: [`LINES`] times in a [`WINDOW`], each window beginning with its first
//! line. What is held back is counted and told once the window is over.
//!
//! Time is an argument. The places are as many as the code has, so the table needs no limit of its own.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Lines from one place in a window; the next ones are held back.
pub const LINES: u64 = 20;
/// See the module.
pub const WINDOW: Duration = Duration::from_secs(1);

/// What becomes of a line.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Show it, after saying that `before` others were held back.
    Pass { before: u64 },
    /// Count it only.
    Hold,
}

/// See the module; `K` names a place.
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
    /// Whether a line of `place` may be shown.
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

    /// The places that have held lines back in windows that are over, and how many; each is told once.
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
