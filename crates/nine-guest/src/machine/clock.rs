//! A clock for timeouts: the processor's time-stamp counter. It is calibrated at its first use, against the HPET. A
//! machine without an HPET has no clock, and its waits have no timeout.

use core::cell::OnceCell;
use core::time::Duration;

use super::apic;
use super::sys::{self, DeviceRegisters};

/// The processor's clock, calibrated at its first use.
#[derive(Default)]
pub(super) struct ProcessorClock(OnceCell<Option<ClockRates>>);

/// Ticks per millisecond of the processor's clock and of the APIC timer.
struct ClockRates {
    begun: u64,
    clock: u64,
    timer: u64,
}

/// The HPET: its address, its registers, and its longest legal period in femtoseconds.
const HPET: u64 = 0xfed0_0000;
const PERIOD: u64 = 4;
const CONFIG: u64 = 0x10;
const COUNTER: u64 = 0xf0;
const PERIOD_MAX_FS: u32 = 100_000_000;
/// The duration of the calibration, in milliseconds.
const CALIBRATION_MS: u64 = 5;
const FEMTOSECONDS: u64 = 1_000_000_000_000;
/// The number of reads after which the counter is taken to stand still.
const COUNTER_READS_MAX: u32 = 1 << 24;

impl ProcessorClock {
    /// Returns the time since the first use; 0 if there is no clock.
    pub(super) fn now(&self) -> Duration {
        let since = |rates: &ClockRates| {
            let ticks = u128::from(sys::ticks().wrapping_sub(rates.begun));
            Duration::from_nanos(
                u64::try_from(ticks * 1_000_000 / u128::from(rates.clock)).unwrap_or(u64::MAX),
            )
        };
        self.rates().map_or(Duration::ZERO, since)
    }

    /// Sets the timer to ring at this time. Returns `false` if the time has passed.
    pub(super) fn ring_at(&self, end: Duration) -> bool {
        let Some(rates) = self.rates() else { return true };
        let left = end.saturating_sub(self.now());
        let ticks = left.as_nanos() * u128::from(rates.timer) / 1_000_000;
        // A longer sleep than the timer can count ends early.
        apic::count(u32::try_from(ticks + 1).unwrap_or(u32::MAX));
        !left.is_zero()
    }

    fn rates(&self) -> Option<&ClockRates> {
        self.0.get_or_init(ClockRates::measure).as_ref()
    }
}

impl ClockRates {
    fn measure() -> Option<Self> {
        let hpet = DeviceRegisters::new(HPET, 0x400)?;
        let period = hpet.read(PERIOD);
        if !(1..=PERIOD_MAX_FS).contains(&period) {
            return None;
        }
        hpet.write(CONFIG, hpet.read(CONFIG) | 1);
        let due = (CALIBRATION_MS * FEMTOSECONDS / u64::from(period)) as u32;
        apic::count(u32::MAX);
        let (first, begun) = (hpet.read(COUNTER), sys::ticks());
        let counted = (0..COUNTER_READS_MAX)
            .map(|_| hpet.read(COUNTER).wrapping_sub(first))
            .find(|counted| *counted >= due)?;
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
