//! Formats sizes, and forecasts when a worm will be full.
//!
//! In: numbers of bytes and blocks, times and sizes of dumps. Out: text for the status of an archive.

/// The period of which the growth of a worm is measured, in seconds.
const GROWTH_WINDOW_SECS: i64 = 30 * DAY;
const DAY: i64 = 86_400;
/// Longer forecasts are not shown in days.
const DAYS_MAX: u64 = 3650;

/// A dump on the worm: its time in seconds since 1970, and its blocks.
pub(crate) type DumpSize = (i64, u64);

/// Returns the days until a worm with `left` free blocks is full, at its growth from the first to the last dump of the
/// last 30 days. `None`: there are fewer than two such dumps, or it has not grown.
pub(crate) fn days_left(dumps: impl IntoIterator<Item = DumpSize>, now: i64, left: u64) -> Option<u64> {
    let recent =
        dumps.into_iter().filter(|(time, _)| (now.saturating_sub(GROWTH_WINDOW_SECS)..=now).contains(time));
    let mut recent: Vec<DumpSize> = recent.collect();
    // If the clock was set back, later dumps have earlier times.
    recent.sort_unstable();
    let ((first, _), rest) = recent.split_first()?;
    let (last, _) = rest.last()?;
    let span = u64::try_from(last - first).ok().filter(|span| *span > 0)?;
    let grown: u128 = rest.iter().map(|(_, blocks)| u128::from(*blocks)).sum();
    let days =
        u128::from(left) * u128::from(span) / (grown.checked_mul(DAY as u128).filter(|all| *all > 0)?);
    Some(u64::try_from(days).unwrap_or(u64::MAX))
}

/// Formats a number of days: `84 days at this rate`.
pub(crate) fn at_this_rate(days: u64) -> String {
    match days {
        0 => "less than a day at this rate".into(),
        1 => "1 day at this rate".into(),
        days if days > DAYS_MAX => format!("more than {} years at this rate", DAYS_MAX / 365),
        days => format!("{days} days at this rate"),
    }
}

/// Formats a number of bytes: `149.0 MiB`.
pub(crate) fn bytes(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut size = bytes as f64 / 1024.0;
    let mut units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
    let mut unit = units.next().unwrap_or_default();
    // A size that would be shown as 1024.0 gets the next unit.
    while size >= 1023.95
        && let Some(next) = units.next()
    {
        (size, unit) = (size / 1024.0, next);
    }
    format!("{size:.1} {unit}")
}

/// Formats a percentage: `50 %`, or `-` if `all` is 0. A nonzero part is never `0 %`.
pub(crate) fn percent(part: u64, all: u64) -> String {
    match (u128::from(part) * 100).checked_div(all.into()) {
        None => "-".into(),
        Some(0) if part > 0 => "<1 %".into(),
        Some(percent) => format!("{percent} %"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: i64 = 1_795_000_000;

    /// Dumps by age in days and by blocks.
    fn of(dumps: &[(i64, u64)]) -> Vec<DumpSize> {
        dumps.iter().map(|(days, blocks)| (NOW - days * DAY, *blocks)).collect()
    }

    #[test]
    fn a_worm_is_full_when_what_is_left_has_grown_away() {
        // 10 blocks a day. The blocks of the first dump are older than the span.
        assert_eq!(days_left(of(&[(3, 999), (2, 10), (1, 10), (0, 10)]), NOW, 840), Some(84));
        assert_eq!(days_left(of(&[(20, 5), (10, 100)]), NOW, 95), Some(9));
        assert_eq!(days_left(of(&[(20, 5), (10, 100)]), NOW, 0), Some(0));
        // Only dumps of the last 30 days count, and none in the future.
        assert_eq!(days_left(of(&[(300, 1), (31, 100_000), (30, 7), (0, 60)]), NOW, 100), Some(50));
        assert_eq!(days_left(of(&[(10, 7), (5, 50), (-1, 100_000)]), NOW, 100), Some(10));
        // In any order.
        assert_eq!(days_left(of(&[(0, 10), (2, 10), (3, 999), (1, 10)]), NOW, 840), Some(84));
    }

    #[test]
    fn nothing_is_said_without_two_dumps_or_without_growth() {
        for dumps in [&[][..], &[(1, 100)], &[(40, 100), (1, 100)], &[(2, 100), (1, 0)], &[(1, 5), (1, 5)]] {
            assert_eq!(days_left(of(dumps), NOW, 100), None, "{dumps:?}");
        }
        let far = [(i64::MIN, u64::MAX), (i64::MAX, u64::MAX)];
        assert_eq!(days_left(far, NOW, u64::MAX), None);
        assert_eq!(days_left(far, i64::MIN, u64::MAX), None);
        let huge = [(NOW - 2, u64::MAX), (NOW - 1, u64::MAX), (NOW, u64::MAX)];
        assert_eq!(days_left(huge, NOW, u64::MAX), Some(0));
        assert!(days_left(of(&[(30, 1), (0, 1)]), NOW, u64::MAX).is_some_and(|days| days > DAYS_MAX));
    }

    #[test]
    fn an_archive_says_when_its_worm_is_full() {
        use std::sync::atomic::Ordering;
        let mut bench = crate::tests::Bench::new(1 << 15, 8192, true);
        let file = bench.make(crate::fs::ROOT, "f", nine_proto::mode::S_IFREG);
        for day in 0..4 {
            let status = bench.archive.status();
            assert_eq!(status.contains("at this rate"), day > 1, "{status}");
            bench.write(file, day * 1_600_000, &crate::tests::noise(day, 1_600_000));
            bench.dump();
            bench.copied();
            bench.clock.fetch_add(DAY, Ordering::Relaxed);
        }
        let status = bench.archive.status();
        for line in [
            "worm 6.3 MiB of 128.0 MiB written (4 %), full in 77 days at this rate",
            "cache 8.0 KiB of 14.9 MiB not on the worm (<1 %)",
            "files 6.2 MiB, next inode 5",
        ] {
            assert!(status.lines().any(|it| it == line), "{line}: {status}");
        }
        // A month later the rate is unknown.
        bench.clock.fetch_add(40 * DAY, Ordering::Relaxed);
        assert!(!bench.archive.status().contains("at this rate"));
    }

    #[test]
    fn people_read_it() {
        for (days, text) in [
            (0, "less than a day at this rate"),
            (1, "1 day at this rate"),
            (84, "84 days at this rate"),
            (3651, "more than 10 years at this rate"),
            (u64::MAX, "more than 10 years at this rate"),
        ] {
            assert_eq!(at_this_rate(days), text);
        }
        for (size, text) in [
            (0, "0 B"),
            (1023, "1023 B"),
            (1024, "1.0 KiB"),
            (16_384, "16.0 KiB"),
            ((1 << 20) - 1, "1.0 MiB"),
            (149 << 20, "149.0 MiB"),
            (u64::MAX, "16.0 EiB"),
        ] {
            assert_eq!(bytes(size), text);
        }
        for (part, all, text) in [
            (0, 0, "-"),
            (0, 9, "0 %"),
            (1, 1000, "<1 %"),
            (999, 1000, "99 %"),
            (u64::MAX, u64::MAX, "100 %"),
        ] {
            assert_eq!(percent(part, all), text);
        }
    }
}
