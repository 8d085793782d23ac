//! A clock for who has no patience: the processor's, which is measured once, when somebody asks, against one whose rate
//! is known. A machine that has no such one has no clock, and waits for ever.

use core::cell::OnceCell;
use core::time::Duration;

use super::apic;
use super::sys::{self, Registers};

/// The processor's clock, once it was asked.
#[derive(Default)]
pub(super) struct Clock(OnceCell<Option<Rates>>);

/// Ticks of a millisecond: of the processor's clock, and of the timer that rings.
struct Rates {
    begun: u64,
    clock: u64,
    timer: u64,
}

/// HPET: where it is, its registers, and the longest period that it may have, in femtoseconds.
const HPET: u64 = 0xfed0_0000;
const PERIOD: u64 = 4;
const CONFIG: u64 = 0x10;
const COUNTER: u64 = 0xf0;
const PERIOD_MOST: u32 = 100_000_000;
/// How long it is measured.
const MEASURED: u64 = 5;
const FEMTOSECONDS: u64 = 1_000_000_000_000;
/// A counter that stands still is looked at so often.
const LOOKS: u32 = 1 << 24;

impl Clock {
    /// Since it was asked first; 0 if there is none.
    pub(super) fn now(&self) -> Duration {
        let since = |rates: &Rates| {
            let ticks = u128::from(sys::ticks().wrapping_sub(rates.begun));
            Duration::from_nanos(
                u64::try_from(ticks * 1_000_000 / u128::from(rates.clock)).unwrap_or(u64::MAX),
            )
        };
        self.rates().map_or(Duration::ZERO, since)
    }

    /// Has the bell ring when it is then. `false`: it is already.
    pub(super) fn ring_at(&self, end: Duration) -> bool {
        let Some(rates) = self.rates() else { return true };
        let left = end.saturating_sub(self.now());
        let ticks = left.as_nanos() * u128::from(rates.timer) / 1_000_000;
        // Who sleeps longer than it can count is woken for nothing.
        apic::count(u32::try_from(ticks + 1).unwrap_or(u32::MAX));
        !left.is_zero()
    }

    fn rates(&self) -> Option<&Rates> {
        self.0.get_or_init(Rates::measure).as_ref()
    }
}

impl Rates {
    fn measure() -> Option<Self> {
        let hpet = Registers::new(HPET, 0x400)?;
        let period = hpet.read(PERIOD);
        if !(1..=PERIOD_MOST).contains(&period) {
            return None;
        }
        hpet.write(CONFIG, hpet.read(CONFIG) | 1);
        let due = (MEASURED * FEMTOSECONDS / u64::from(period)) as u32;
        apic::count(u32::MAX);
        let (first, begun) = (hpet.read(COUNTER), sys::ticks());
        let counted =
            (0..LOOKS).map(|_| hpet.read(COUNTER).wrapping_sub(first)).find(|counted| *counted >= due)?;
        let (clock, timer) = (sys::ticks().wrapping_sub(begun), u32::MAX - apic::left());
        apic::count(0);
        let each = |ticks: u64| {
            let each =
                u128::from(ticks) * u128::from(FEMTOSECONDS) / (u128::from(counted) * u128::from(period));
            u64::try_from(each).ok().filter(|each| *each > 0)
        };
        Some(Self { begun, clock: each(clock)?, timer: each(timer.into())? })
    }
}
