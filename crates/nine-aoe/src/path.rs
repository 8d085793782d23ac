//! A path to a target: a local interface and an Ethernet address of the target. It holds the frames in flight, the
//! path's measurements, and whether it is in use.

use std::collections::VecDeque;
use std::time::Duration;

use nine_net::ether::Mac;

use crate::rtt::Rtt;
use crate::window::Window;

/// A path is ejected after this many losses in a row and this long (at least four mean round trips) without an answer.
/// It is used again when it answers a probe.
const LOSSES: u32 = 4;
const SILENCE: Duration = Duration::from_millis(100);
/// After this many consecutive losses of large frames, while small ones are answered, only small frames are sent.
const LARGE_LOSSES: u32 = 8;
/// Number of sectors in a frame of standard MTU.
pub(crate) const STANDARD: u8 = 2;
/// Initial and maximum interval between probes of an ejected path.
const PROBE_FIRST: Duration = Duration::from_millis(50);
const PROBE_MOST: Duration = Duration::from_millis(500);
/// Interval between large probes of a path that is reduced to small frames.
const LARGE_PROBE: Duration = Duration::from_secs(1);

/// Consequence of a loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    GoesOn,
    /// The path is not used until it answers a probe.
    Ejected,
    /// Only small frames are sent on the path.
    Small,
}

/// A path to a target.
#[derive(Debug)]
pub(crate) struct Path {
    pub(crate) port: usize,
    pub(crate) mac: Mac,
    pub(crate) rtt: Rtt,
    pub(crate) window: Window,
    /// In-flight frames that carry operations, as (order, tag), oldest first.
    pub(crate) out: VecDeque<(u64, u32)>,
    pub(crate) order: u64,
    /// The path is in use.
    pub(crate) live: bool,
    /// Time of the next probe. `None` if no probe is needed or one is in flight.
    pub(crate) probe_at: Option<Duration>,
    pause: Duration,
    /// Maximum number of sectors in a frame (`most`), and the number that is used (`sectors`).
    most: u8,
    pub(crate) sectors: u8,
    /// Values that the target announced on this path: queue length in frames, sectors in a frame.
    pub(crate) says: (u16, u8),
    /// The path has led to the target before.
    pub(crate) was_live: bool,
    /// Number of flushes in `out`. Their time depends on the disk, not on the path.
    pub(crate) syncing: usize,
    pub(crate) heard: Duration,
    losses: u32,
    /// When the first of these losses was sent.
    silent_since: Duration,
    large_losses: u32,
    /// When the first of these large frames was sent.
    large_since: Duration,
}

impl Path {
    /// Creates an untested path, which is probed before use.
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

    /// Whether `sectors` is below the maximum, so that a large probe is useful.
    pub(crate) fn is_reduced(&self) -> bool {
        self.sectors < self.most
    }

    /// Sets the maximum number of sectors. A change also resets the number in use.
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

    /// Records the answer to a frame that was sent at `sent` and carried `sectors` sectors.
    pub(crate) fn answered(&mut self, now: Duration, sent: Duration, sectors: u8) {
        self.rtt.measured(now.saturating_sub(sent));
        (self.heard, self.losses) = (now, 0);
        if Self::is_large(sectors) {
            self.large_losses = 0;
        }
    }

    /// Records the answer to a frame that was considered lost. `large`: the request or the answer was a large frame.
    pub(crate) fn late(&mut self, now: Duration, sent: Duration, order: u64, large: bool) {
        self.rtt.measured(now.saturating_sub(sent));
        (self.heard, self.losses) = (now, 0);
        self.window.late(order);
        if large {
            self.takes_large();
        }
    }

    /// Records an answered probe. Returns whether the path was not in use before.
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

    /// Records that a large frame passed: the path uses its maximum again.
    pub(crate) fn takes_large(&mut self) {
        (self.sectors, self.large_losses) = (self.most, 0);
        if self.live {
            self.probe_at = None;
        }
    }

    /// Records the loss of a frame with this many sectors, and decides the consequence.
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
            // An answer that was in flight when the path was cut does not prove that small frames pass.
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

    /// Takes the path out of use until it answers a probe.
    pub(crate) fn eject(&mut self, now: Duration) {
        (self.live, self.probe_at, self.pause) = (false, Some(now), PROBE_FIRST);
    }

    /// Records the loss of a probe.
    pub(crate) fn probe_lost(&mut self, now: Duration) {
        match self.live {
            true => self.probe_at = self.is_reduced().then_some(now + LARGE_PROBE),
            false => {
                self.probe_at = Some(now + self.pause);
                self.pause = (2 * self.pause).min(PROBE_MOST);
            }
        }
    }

    /// When a frame that is sent now is considered lost, if it was sent in vain `tries` times before.
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
        // Small frames are answered all the time.
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
        // Large frames are lost after the return, too.
        let mut broken = path();
        let _ = (0..64u64).map(|n| broken.lost(140 * MS, 19 * MS, n, 17)).last();
        broken.answered(900 * MS, 899 * MS, 0);
        broken.returns(900 * MS);
        let small = (0..4u64).any(|n| broken.lost(950 * MS, 910 * MS, 64 + n, 17) == Verdict::Small);
        assert!(small);
    }
}
