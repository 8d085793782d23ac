//! Sizes: a number of bytes, or a number with a unit of powers of 1024.

use alloc::string::String;
use core::fmt;

/// The units of a size, each 1024 times the one before it, with their powers of two.
pub const SIZE_UNITS: [(char, u32); 5] = [('K', 10), ('M', 20), ('G', 30), ('T', 40), ('P', 50)];

/// A text that is no size.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SizeError {
    text: String,
}

impl fmt::Display for SizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = show_text(&self.text);
        write!(f, "invalid size `{text}`: expected bytes, or a number with K, M, G, T or P")
    }
}

impl core::error::Error for SizeError {}

fn show_text(text: &str) -> impl fmt::Display + '_ {
    crate::show_name(text.as_bytes())
}

/// The power of two that a unit stands for, in either case.
pub fn size_unit(unit: char) -> Option<u32> {
    let unit = unit.to_ascii_uppercase();
    SIZE_UNITS.iter().find(|(known, _)| *known == unit).map(|(_, power)| *power)
}

/// The bytes that `4096`, `64K`, `64m` or `2T` stand for.
///
/// # Errors
///
/// A text that is not digits with at most one unit behind them, and a number that 64 bits do not hold.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let wrong = || SizeError { text: text.into() };
    let unit = text.chars().next_back().and_then(|unit| Some((text.strip_suffix(unit)?, size_unit(unit)?)));
    let (digits, power) = unit.unwrap_or((text, 0));
    // The standard parser takes a sign, too.
    if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(wrong());
    }
    digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << power)).ok_or_else(wrong)
}

/// A size with the largest unit that loses nothing: `64M`, `4097`.
pub fn show_size(bytes: u64) -> impl fmt::Display {
    struct ShownSize(u64);
    impl fmt::Display for ShownSize {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            let fits = |(_, power): &&(char, u32)| self.0 > 0 && self.0.trailing_zeros() >= *power;
            match SIZE_UNITS.iter().rev().find(fits) {
                Some((unit, power)) => write!(f, "{}{unit}", self.0 >> power),
                None => write!(f, "{}", self.0),
            }
        }
    }
    ShownSize(bytes)
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn a_size_is_a_number_with_a_unit_in_either_case() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("2k", 2048),
            ("64M", 64 << 20),
            ("64m", 64 << 20),
            ("1g", 1 << 30),
            ("2T", 2 << 40),
            ("12t", 12 << 40),
            ("1P", 1 << 50),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused_by_name() {
        for text in
            ["", "K", "-1", "+1", "1.5M", "1KB", "1 K", "4P5", "16384P", "99999999999999999999", "1K\u{e9}"]
        {
            let error = parse_size(text).unwrap_err().to_string();
            assert!(error.starts_with(&alloc::format!("invalid size `{text}`: ")), "{error}");
        }
        assert!(parse_size("1\n").unwrap_err().to_string().contains("`1\\n`"));
    }

    #[test]
    fn a_shown_size_is_read_again() {
        for (bytes, text) in
            [(0, "0"), (1, "1"), (4097, "4097"), (1 << 20, "1M"), (3 << 30, "3G"), (1 << 60, "1024P")]
        {
            assert_eq!(show_size(bytes).to_string(), text);
            assert_eq!(parse_size(text), Ok(bytes));
        }
    }
}
