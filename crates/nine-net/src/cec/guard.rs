//! Checks the password, and locks out cards after wrong ones.
//!
//! In: the typed text, its card, the time. Out: whether it is the password; whether a card is locked out.
//!
//! Always holds: a comparison takes the same time wherever two passwords differ. At most [`CARDS`] cards are
//! remembered.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use ring::digest::{SHA256, digest};

use crate::ether::Mac;

/// Maximum number of cards remembered. A new one replaces the oldest.
const CARDS: usize = 64;
/// Consecutive wrong passwords before a card is locked out.
const WRONG_MAX: u32 = 3;
/// The duration of a lockout, from the last wrong password.
const LOCKED: Duration = Duration::from_secs(60);

/// The password of a console, stored as its hash.
#[derive(Clone, PartialEq, Eq)]
pub struct Password([u8; 32]);

impl Password {
    /// Minimum number of bytes.
    pub const MIN: usize = 8;
    /// Maximum number of bytes, as in Plan 9's servers.
    pub const MAX: usize = 31;

    /// Hashes a password. The error is the reason to reject it.
    pub fn new(text: &str) -> Result<Self, String> {
        if !(Self::MIN..=Self::MAX).contains(&text.len()) {
            return Err(format!(
                "a password has {} to {} bytes, this one {}",
                Self::MIN,
                Self::MAX,
                text.len()
            ));
        }
        if text.trim() != text || text.contains(char::is_control) {
            return Err("a password has no control characters in it, and no blanks at its ends".into());
        }
        Ok(Self(hash(text.as_bytes())))
    }

    fn is(&self, typed: &[u8]) -> bool {
        let both = self.0.iter().zip(hash(typed));
        both.fold(0, |differs, (a, b)| differs | (a ^ b)) == 0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(..)")
    }
}

fn hash(bytes: &[u8]) -> [u8; 32] {
    let mut hash = [0; 32];
    hash.copy_from_slice(digest(&SHA256, bytes).as_ref());
    hash
}

/// See the module.
#[derive(Debug)]
pub(crate) struct LoginGuard {
    password: Password,
    /// Wrong passwords by card: their number, and the time of the last.
    wrong: VecDeque<(Mac, u32, Duration)>,
}

impl LoginGuard {
    pub(crate) fn new(password: Password) -> Self {
        Self { password, wrong: VecDeque::new() }
    }

    /// Whether this card may try a password. If it is locked out, every password is wrong.
    pub(crate) fn hears(&mut self, now: Duration, mac: Mac) -> bool {
        self.wrong.retain(|(_, _, last)| now < *last + LOCKED);
        !self.wrong.iter().any(|(of, times, _)| *of == mac && *times >= WRONG_MAX)
    }

    /// Checks the password and counts a wrong one.
    pub(crate) fn judge(&mut self, now: Duration, mac: Mac, typed: &[u8]) -> bool {
        let is_right = self.hears(now, mac) & self.password.is(typed);
        let before = self.wrong.iter().position(|(of, ..)| *of == mac);
        let before = before.and_then(|at| self.wrong.remove(at)).map_or(0, |(_, times, _)| times);
        if !is_right {
            if self.wrong.len() == CARDS {
                self.wrong.pop_front();
            }
            self.wrong.push_back((mac, before + 1, now));
        }
        is_right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn guard() -> LoginGuard {
        LoginGuard::new(Password::new("open sesame").unwrap())
    }

    #[test]
    fn a_password_is_neither_short_nor_long_nor_strange() {
        for bad in ["", "seven77", " 12345678", "12345678\n", "1234\x01678", &"x".repeat(32)] {
            assert!(Password::new(bad).is_err(), "{bad:?}");
        }
        let password = Password::new(&"x".repeat(31)).unwrap();
        assert!(password.is(&[b'x'; 31]) && !password.is(&[b'x'; 32]) && !password.is(b""));
        assert_eq!(format!("{password:?}"), "Password(..)");
    }

    #[test]
    fn three_wrong_ones_shut_a_card_out_for_a_minute_and_no_other_card() {
        let (mut guard, [a, b]) = (guard(), [1, 2].map(|n| Mac([n; 6])));
        for n in 0..3 {
            assert!(guard.hears(SECOND * n, a));
            assert!(!guard.judge(SECOND * n, a, b"wrong"));
        }
        assert!(!guard.hears(SECOND * 61, a) && !guard.judge(SECOND * 61, a, b"open sesame"));
        assert!(guard.judge(SECOND * 61, b, b"open sesame"));
        assert!(guard.hears(SECOND * 121, a) && guard.judge(SECOND * 121, a, b"open sesame"));
        // A right password resets the count.
        for _ in 0..2 {
            guard.judge(SECOND * 200, a, b"wrong");
        }
        assert!(guard.judge(SECOND * 200, a, b"open sesame"));
        assert!(!guard.judge(SECOND * 200, a, b"wrong") && guard.hears(SECOND * 200, a));
    }

    #[test]
    fn of_many_cards_the_oldest_is_forgotten() {
        let mut guard = guard();
        for n in 0..200 {
            guard.judge(SECOND, Mac([n; 6]), b"wrong");
            assert!(guard.wrong.len() <= CARDS);
        }
        let of = |at: Option<&(Mac, u32, Duration)>| at.unwrap().0;
        assert_eq!((of(guard.wrong.front()), of(guard.wrong.back())), (Mac([136; 6]), Mac([199; 6])));
    }
}
