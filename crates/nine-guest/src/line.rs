//! How one waits for the other side (docs/channels.md, "Waiting"): looks, then sleep.
//!
//! Always holds: nobody sleeps without having looked once more after having said so.

use core::time::Duration;

/// The way to a host beside the memory: two bells, and whether it is still there.
///
/// Concurrency: one thread has it.
pub trait Line {
    /// Rings the bell of the other side.
    fn ring(&self);

    /// Sleeps until the own bell is rung, or was since it was last heard; may come back for nothing. `false`: the
    /// other side has gone.
    fn sleep(&self) -> bool;

    /// Whether the other side has gone; asked now and then while one looks.
    fn is_gone(&self) -> bool;

    /// Time since some moment, which never goes back: by it one's patience ends. Asked only of who has one that does; a
    /// line without a clock stays at 0.
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    /// As [`Line::sleep`], but no longer than until [`Line::now`] is `end`. A line without a clock sleeps on.
    fn sleep_until(&self, end: Duration) -> bool {
        let _ = end;
        self.sleep()
    }

    /// How many looks take about as long as it takes to be woken; 0: to look is in vain, there is one processor.
    fn looks(&self) -> u32;
}

/// What a side does until something comes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It looks, always: the quickest, if it has a processor of its own.
    Poll,
    /// It sleeps at once.
    Interrupt,
    /// It looks for about as long as it takes to be woken, then it sleeps; seldom where that was in vain.
    #[default]
    Adaptive,
}

/// A line and how it is waited on.
pub(crate) struct Waiting<L> {
    pub(crate) line: L,
    how: Wait,
    /// How long; `None`: for ever.
    pub(crate) patience: Option<Duration>,
    /// How many waits go without looks, and how many of those there were before.
    blind: (u32, u32),
}

/// Why it has not come.
pub(crate) enum Missed {
    /// The other side has gone.
    Gone,
    /// One's patience has ended.
    Late,
}

/// Looks between two questions whether the other side has gone: each is a system call.
const GLANCES: u32 = 4096;
/// After looks in vain, at most so many waits go without.
const BLIND_MAX: u32 = 256;

impl<L: Line> Waiting<L> {
    pub(crate) fn new(line: L, how: Wait, patience: Option<Duration>) -> Self {
        Self { line, how, patience, blind: (0, 0) }
    }

    /// Looks and sleeps until something is `there`. `may_sleep` tells the other side whether it has to ring.
    /// `since` is when it began to sleep or to look for long, for whoever waits for one thing in several steps.
    pub(crate) fn until<E, T>(
        &mut self,
        end: &mut E,
        since: &mut Option<Duration>,
        mut there: impl FnMut(&mut E) -> Option<T>,
        may_sleep: impl Fn(&E, bool),
    ) -> Result<T, Missed> {
        if let Some(it) = self.look(end, since, &mut there) {
            return it;
        }
        let late = self.late(since);
        loop {
            may_sleep(end, true);
            let it = there(end);
            let is_here =
                it.is_some() || late.map_or_else(|| self.line.sleep(), |at| self.line.sleep_until(at));
            may_sleep(end, false);
            if let Some(it) = it.or_else(|| there(end)) {
                return Ok(it);
            }
            if !is_here {
                return Err(Missed::Gone);
            }
            if late.is_some_and(|at| self.line.now() >= at) {
                return Err(Missed::Late);
            }
        }
    }

    /// When one's patience ends.
    fn late(&self, since: &mut Option<Duration>) -> Option<Duration> {
        let patience = self.patience?;
        Some(since.get_or_insert_with(|| self.line.now()).saturating_add(patience))
    }

    /// Looks as long as is worth while; then `None`. What it returns is what `until` does.
    fn look<E, T>(
        &mut self,
        end: &mut E,
        since: &mut Option<Duration>,
        there: &mut impl FnMut(&mut E) -> Option<T>,
    ) -> Option<Result<T, Missed>> {
        let looks = match self.how {
            Wait::Poll => u32::MAX,
            Wait::Interrupt => 0,
            Wait::Adaptive if self.blind.0 > 0 => {
                self.blind.0 -= 1;
                0
            }
            Wait::Adaptive => self.line.looks(),
        };
        let mut n = 0;
        while n < looks || self.how == Wait::Poll {
            if let Some(it) = there(end) {
                self.blind = (0, 0);
                return Some(Ok(it));
            }
            n += 1;
            if n == GLANCES && self.line.is_gone() {
                return Some(there(end).ok_or(Missed::Gone));
            }
            if n == GLANCES && self.how == Wait::Poll {
                if self.late(since).is_some_and(|at| self.line.now() >= at) {
                    return Some(there(end).ok_or(Missed::Late));
                }
                n = 0;
            }
            core::hint::spin_loop();
        }
        if looks > 0 {
            let more = (2 * self.blind.1 + 1).min(BLIND_MAX);
            self.blind = (more, more);
        }
        None
    }
}
