//! A way to a target: an interface of ours and an address of its. What is on it, how it does, whether it is used.

use std::collections::VecDeque;
use std::time::Duration;

use nine_net::ether::Mac;

use crate::rtt::Rtt;
use crate::window::Window;

/// Losses in a row, and so long without a word (or four timeouts), after which a path is not used until it answers.
const LOSSES: u32 = 4;
const SILENCE: Duration = Duration::from_millis(100);
/// Large frames that are lost in a row, while small ones come through, before only small ones are sent.
const LARGE_LOSSES: u32 = 8;
/// Sectors of a standard frame.
pub(crate) const STANDARD: u8 = 2;
/// Between probes of a path that is not used: at first, and at most.
const PROBE_FIRST: Duration = Duration::from_millis(50);
const PROBE_MOST: Duration = Duration::from_millis(500);
/// How often a path of small frames is probed with a large one.
const LARGE_PROBE: Duration = Duration::from_secs(1);

/// What a path says about a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoesOn,
    /// It is not used any more.
    Ejected,
    /// Only small frames are sent on it.
    Small,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) port: usize,
    pub(crate) mac: Mac,
    pub(crate) rtt: Rtt,
    pub(crate) window: Window,
    /// Frames under way that carry operations: their order and tag, the oldest first.
    pub(crate) out: VecDeque<(u64, u32)>,
    pub(crate) order: u64,
    /// It is used.
    pub(crate) live: bool,
    /// When it is probed next; `None`: it is in no need, or a probe is under way.
    pub(crate) probe_at: Option<Duration>,
    pause: Duration,
    /// Sectors of its frames: what fits, and what is sent.
    most: u8,
    pub(crate) sectors: u8,
    /// What the target has said on it: frames that it queues, sectors of a frame that it takes.
    pub(crate) says: (u16, u8),
    /// It has led to the target.
    pub(crate) was_live: bool,
    /// Flushes among `out`, which wait for a disk and not for the way.
    pub(crate) syncing: usize,
    pub(crate) heard: Duration,
    losses: u32,
    /// When the first of them was sent.
    silent_since: Duration,
    large_losses: u32,
    /// When the first of them was sent.
    large_since: Duration,
}

impl Path {
    /// One that has not been tried: it is probed before it is used.
    pub(crate) fn new(now: Duration, port: usize, mac: Mac, most: u8) -> Self {
        Self {
            port,
            mac,
            rtt: Rtt::default(),
            window: Window::new(),
            out: VecDeque::new(),
            order: 0,
            live: false,
            probe_at: Some(now),
            pause: PROBE_FIRST,
            most,
            sectors: most,
            says: (1, most),
            was_live: false,
            syncing: 0,
            heard: now,
            losses: 0,
            silent_since: now,
            large_losses: 0,
            large_since: Duration::ZERO,
        }
    }

    pub(crate) fn is_large(sectors: u8) -> bool {
        sectors > STANDARD
    }

    /// Whether a large frame would be worth a try.
    pub(crate) fn is_reduced(&self) -> bool {
        self.sectors < self.most
    }

    /// The most that fits, by what the target says now.
    pub(crate) fn fits(&mut self, most: u8) {
        if most != self.most {
            (self.most, self.sectors, self.large_losses) = (most, most, 0);
        }
    }

    pub(crate) fn most(&self) -> u8 {
        self.most
    }

    pub(crate) fn has_room(&self) -> bool {
        self.live && self.out.len() - self.syncing < self.window.may()
    }

    /// What has been sent at `sent` has come back; `sectors` were in it.
    pub(crate) fn answered(&mut self, now: Duration, sent: Duration, sectors: u8) {
        self.rtt.measured(now.saturating_sub(sent));
        (self.heard, self.losses) = (now, 0);
        if Self::is_large(sectors) {
            self.large_losses = 0;
        }
    }

    /// What was taken for lost has come after all; `large`: there or back it was a large frame.
    pub(crate) fn late(&mut self, now: Duration, sent: Duration, order: u64, large: bool) {
        self.rtt.measured(now.saturating_sub(sent));
        (self.heard, self.losses) = (now, 0);
        self.window.late(order);
        if large {
            self.takes_large();
        }
    }

    /// A probe has come back. Whether it was not used before.
    pub(crate) fn returns(&mut self, now: Duration) -> bool {
        let was_dead = !std::mem::replace(&mut self.live, true);
        self.was_live = true;
        if was_dead {
            (self.window, self.losses, self.pause) = (Window::new(), 0, PROBE_FIRST);
            self.large_losses = self.large_losses.min(LARGE_LOSSES / 2);
        }
        self.probe_at = self.is_reduced().then_some(now + LARGE_PROBE);
        was_dead
    }

    /// A large probe has come back.
    pub(crate) fn takes_large(&mut self) {
        (self.sectors, self.large_losses) = (self.most, 0);
        if self.live {
            self.probe_at = None;
        }
    }

    /// A frame of so many sectors is lost.
    pub(crate) fn lost(&mut self, now: Duration, sent: Duration, order: u64, sectors: u8) -> Verdict {
        if self.heard > sent {
            self.window.lost(order, self.order);
        } else {
            self.window.silent(order, self.order);
        }
        if self.losses == 0 {
            self.silent_since = sent;
        }
        self.losses += 1;
        if Self::is_large(sectors) && self.sectors > STANDARD {
            if self.large_losses == 0 {
                self.large_since = sent;
            }
            self.large_losses += 1;
            // A word that was on its way when the path was cut is no sign of life.
            if self.large_losses >= LARGE_LOSSES && self.heard > self.large_since + self.rtt.timeout() {
                (self.sectors, self.large_losses) = (STANDARD, 0);
                self.probe_at = self.live.then_some(now + LARGE_PROBE);
                return Verdict::Small;
            }
        }
        let quiet = now.saturating_sub(self.heard.max(self.silent_since));
        if self.live && self.losses >= LOSSES && quiet >= SILENCE.max(4 * self.rtt.mean()) {
            self.eject(now);
            return Verdict::Ejected;
        }
        Verdict::GoesOn
    }

    /// It is not used before it has answered a probe.
    pub(crate) fn eject(&mut self, now: Duration) {
        (self.live, self.probe_at, self.pause) = (false, Some(now), PROBE_FIRST);
    }

    /// A probe is lost.
    pub(crate) fn probe_lost(&mut self, now: Duration) {
        match self.live {
            true => self.probe_at = self.is_reduced().then_some(now + LARGE_PROBE),
            false => {
                self.probe_at = Some(now + self.pause);
                self.pause = (2 * self.pause).min(PROBE_MOST);
            }
        }
    }

    /// When a frame that leaves now is taken for lost, after so many tries in vain.
    pub(crate) fn deadline(&self, now: Duration, tries: u32) -> Duration {
        let timeout = self.rtt.timeout();
        now + (timeout * (1 << tries.min(6))).min(PROBE_MOST.max(timeout))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn path() -> Path {
        let mut path = Path::new(Duration::ZERO, 0, Mac([1; 6]), 17);
        path.answered(MS, Duration::ZERO, 0);
        assert!(path.returns(MS));
        path
    }

    #[test]
    fn four_losses_in_a_row_and_silence_eject_it_and_a_probe_brings_it_back() {
        let mut path = path();
        for n in 0..10u32 {
            let verdict = path.lost(n * 10 * MS, (n * 10).saturating_sub(10) * MS, u64::from(n), 2);
            assert_eq!(verdict, Verdict::GoesOn, "{n}");
        }
        assert_eq!(path.lost(150 * MS, 100 * MS, 11, 2), Verdict::Ejected);
        assert!(!path.has_room() && path.probe_at == Some(150 * MS));
        let mut pauses = Vec::new();
        for _ in 0..5 {
            path.probe_lost(Duration::ZERO);
            pauses.extend(path.probe_at);
        }
        assert_eq!(pauses, [50, 100, 200, 400, 500].map(|n| n * MS));
        assert!(path.returns(900 * MS) && path.has_room() && !path.returns(901 * MS));
        assert_eq!((path.window.may(), path.probe_at), (16, None));
    }

    #[test]
    fn large_frames_that_never_come_through_become_small_ones_but_not_for_a_cut() {
        let mut broken = path();
        // Small ones come through all the time.
        let verdicts: Vec<_> = (1..9u32)
            .map(|n| {
                let now = n * 20 * MS;
                broken.answered(now, now - MS, 0);
                broken.lost(now, now - 10 * MS, u64::from(n), 17)
            })
            .collect();
        assert_eq!(verdicts.iter().position(|v| *v == Verdict::Small), Some(7));
        assert_eq!((broken.sectors, broken.is_reduced()), (2, true));
        broken.takes_large();
        assert_eq!(broken.sectors, 17);
        let mut cut = path();
        cut.answered(20 * MS, 19 * MS, 17);
        let ejected = (0..64u64).any(|n| cut.lost(140 * MS, 19 * MS, n, 17) == Verdict::Ejected);
        assert!(ejected && cut.sectors == 17);
        cut.returns(900 * MS);
        cut.answered(901 * MS, 900 * MS, 17);
        assert_eq!(cut.sectors, 17);
        // Nothing large comes through after the return either.
        let mut broken = path();
        let _ = (0..64u64).map(|n| broken.lost(140 * MS, 19 * MS, n, 17)).last();
        broken.answered(900 * MS, 899 * MS, 0);
        broken.returns(900 * MS);
        let small = (0..4u64).any(|n| broken.lost(950 * MS, 910 * MS, 64 + n, 17) == Verdict::Small);
        assert!(small);
    }
}
