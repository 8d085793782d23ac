//! Modules that need nothing of 9P: what may be pushed on any conversation.

mod fault;
mod held;
mod throttle;
mod tls;
mod trace;
mod zstd;

use std::time::Duration;

use nine_stream::{Fault, Modules};

use held::Held;

pub use tls::{TlsClient, TlsServer, proof_in};
pub use trace::{Trace, TraceLog};

/// `zstd`, `throttle` and `fault`; `trace`, where somebody keeps its lines, and `tls`, which has two sides, are added
/// by those who know.
pub fn modules() -> Modules {
    let (throttle, fault) = (Held::<throttle::Throttle>::default(), Held::<fault::Faulty>::default());
    Modules::default().with("zstd", zstd::Zstd).with("throttle", throttle).with("fault", fault)
}

/// Which module `NAME ARGUMENTS` is of.
pub fn name(words: &str) -> &str {
    words.split_whitespace().next().unwrap_or_default()
}

/// Whether `NAME ARGUMENTS` leaves the bytes as they are, so that one end may have it without the other.
pub fn is_alone(words: &str) -> bool {
    matches!(name(words), "throttle" | "fault" | "trace")
}

/// A number with an optional `K`, `M` or `G` behind it, of 1024 each.
fn size(text: &str) -> Result<u64, Fault> {
    let (digits, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number = digits.parse::<u64>().ok().and_then(|n| n.checked_shl(unit).filter(|m| m >> unit == n));
    number.ok_or_else(|| Fault::new(format!("{text:?} is no number of bytes")))
}

/// How long so many bytes take at a rate, bytes a second.
fn time_of(bytes: u64, rate: u64) -> Duration {
    let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(nanos.min(u64::MAX.into()) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units_and_limits() {
        for (text, bytes) in [("0", 0), ("7", 7), ("2k", 2048), ("3M", 3 << 20), ("1G", 1 << 30)] {
            assert_eq!(size(text).unwrap(), bytes);
        }
        for text in ["", "k", "-1", "1.5M", "99999999999999999999", "99999999999G", "1T"] {
            assert!(size(text).is_err(), "{text}");
        }
        assert_eq!(time_of(1 << 20, 1 << 20), Duration::from_secs(1));
    }
}
