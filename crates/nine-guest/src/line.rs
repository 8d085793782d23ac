//! How a side waits for the other one (docs/channels.md, "Waiting"): it polls, then it sleeps.
//!
//! Always holds: before a side sleeps, it announces that and then polls once more.

use core::time::Duration;

/// The connection to a host besides the memory: two doorbells, and whether the host is still there.
///
/// Concurrency: one thread uses it.
pub trait Line {
    /// Rings the doorbell of the other side.
    fn ring(&self);

    /// Sleeps until this side's doorbell is rung, or returns if it was rung since the last sleep. May return
    /// spuriously. `false`: the other side has gone.
    fn sleep(&self) -> bool;

    /// Returns whether the other side has gone. Called now and then while polling.
    fn is_gone(&self) -> bool;

    /// Returns the time since an arbitrary moment, from a clock that never goes back. It is used for timeouts only. A
    /// line without a clock returns 0.
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    /// Like [`Line::sleep`], but at most until [`Line::now`] is `end`. A line without a clock has no such limit.
    fn sleep_until(&self, end: Duration) -> bool {
        let _ = end;
        self.sleep()
    }

    /// Returns how many polls take about as long as a wake-up; 0 if polling is useless, on a single processor.
    fn looks(&self) -> u32;
}

/// How a side waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Wait {
    /// It always polls: the fastest, if it has a processor of its own.
    Poll,
    /// It sleeps at once.
    Interrupt,
    /// It polls for about as long as a wake-up takes, then it sleeps. It polls less often after polling was in vain.
    #[default]
    Adaptive,
}

/// A line and its way of waiting.
pub(crate) struct WaitingLine<L> {
    pub(crate) line: L,
    how: Wait,
    /// The timeout; `None`: none.
    pub(crate) patience: Option<Duration>,
    /// The number of waits still to go without polling, and the number that were last chosen.
    blind: (u32, u32),
}

/// The reason why a wait has ended without result.
pub(crate) enum WaitFailure {
    /// The other side has gone.
    Gone,
    /// The timeout has passed.
    Late,
}

/// The number of polls between two checks whether the other side has gone. Each check is a system call.
const GONE_CHECK_POLLS: u32 = 4096;
/// The maximum number of waits without polling, after polling was in vain.
const BLIND_MAX: u32 = 256;

impl<L: Line> WaitingLine<L> {
    pub(crate) fn new(line: L, how: Wait, patience: Option<Duration>) -> Self {
        Self { line, how, patience, blind: (0, 0) }
    }

    /// Polls and sleeps until `there` returns something. `may_sleep` tells the other side whether it must ring.
    /// `since` is the start of the timeout; a caller that waits in several steps passes the same one.
    pub(crate) fn until<E, T>(
        &mut self,
        end: &mut E,
        since: &mut Option<Duration>,
        mut there: impl FnMut(&mut E) -> Option<T>,
        may_sleep: impl Fn(&E, bool),
    ) -> Result<T, WaitFailure> {
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
                return Err(WaitFailure::Gone);
            }
            if late.is_some_and(|at| self.line.now() >= at) {
                return Err(WaitFailure::Late);
            }
        }
    }

    /// Returns when the timeout ends.
    fn late(&self, since: &mut Option<Duration>) -> Option<Duration> {
        let patience = self.patience?;
        Some(since.get_or_insert_with(|| self.line.now()).saturating_add(patience))
    }

    /// Polls as long as it is worthwhile, then returns `None`. Other results are those of `until`.
    fn look<E, T>(
        &mut self,
        end: &mut E,
        since: &mut Option<Duration>,
        there: &mut impl FnMut(&mut E) -> Option<T>,
    ) -> Option<Result<T, WaitFailure>> {
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
            if n == GONE_CHECK_POLLS && self.line.is_gone() {
                return Some(there(end).ok_or(WaitFailure::Gone));
            }
            if n == GONE_CHECK_POLLS && self.how == Wait::Poll {
                if self.late(since).is_some_and(|at| self.line.now() >= at) {
                    return Some(there(end).ok_or(WaitFailure::Late));
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
