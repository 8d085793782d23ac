//! Modules that do not depend on 9P and may be pushed on any connection.

mod fault;
mod held;
mod throttle;
mod tls;
mod trace;
mod zstd;

use std::time::Duration;

use nine_stream::{Fault, Modules};

use held::RuleModule;

pub use tls::{TlsClient, TlsServer, proof_in};
pub use trace::{Trace, TraceLog};

/// Returns `zstd`, `throttle` and `fault`. The caller adds `trace`, which needs a log, and `tls`, which has a client's
/// and a server's side.
pub fn modules() -> Modules {
    let (throttle, fault) =
        (RuleModule::<throttle::ThrottleRule>::default(), RuleModule::<fault::FaultRule>::default());
    Modules::default().with("zstd", zstd::ZstdModule).with("throttle", throttle).with("fault", fault)
}

/// The module's name in `NAME ARGUMENTS`.
pub fn name(words: &str) -> &str {
    words.split_whitespace().next().unwrap_or_default()
}

/// Whether the module leaves the bytes unchanged, so that one end may push it without the other.
pub fn is_alone(words: &str) -> bool {
    matches!(name(words), "throttle" | "fault" | "trace")
}

/// Whether the module needs more time and memory than an unauthenticated client may request.
pub fn is_costly(words: &str) -> bool {
    let mut words = words.split_whitespace();
    words.next() == Some("zstd") && words.next().is_some_and(zstd::is_costly)
}

fn size(text: &str) -> Result<u64, Fault> {
    nine_text::parse_size(text).map_err(|error| Fault::new(error.to_string()))
}

/// The time that `bytes` take at a rate in bytes per second.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanos.min(u64::MAX.into()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn high_levels_of_zstd_are_costly() {
        for (words, is) in
            [("zstd", false), ("zstd 3", false), ("zstd 4", true), (" zstd  9 ", true), ("tls 9", false)]
        {
            assert_eq!(is_costly(words), is, "{words}");
        }
    }

    #[test]
    fn a_rate_gives_a_time() {
        assert_eq!(size("1M").unwrap(), 1 << 20);
        assert_eq!(time_of(1 << 20, 1 << 20), Duration::from_secs(1));
    }
}
