//! The 9P dialects and their negotiation (version(5)).

use crate::wire::Str;

/// A family of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Base {
    /// Plan 9's 9P2000.
    P2000,
    /// The Unix extension: numeric ids, an errno beside the error text, symlinks and devices by Tcreate.
    U,
    /// The Linux extension: messages of its own, shaped like system calls.
    L,
}

/// The dialect that Tversion and Rversion agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// The family.
    pub base: Base,
    /// Whether the peers may use the streaming messages (Tstream, Tsclose).
    pub streaming: bool,
}

impl Dialect {
    /// Plain 9P2000.
    pub const P2000: Self = Self { base: Base::P2000, streaming: false };
    /// 9P2000.u.
    pub const U: Self = Self { base: Base::U, streaming: false };
    /// 9P2000.L.
    pub const L: Self = Self { base: Base::L, streaming: false };
    /// 9P2000.s.
    pub const P2000S: Self = Self { streaming: true, ..Self::P2000 };
    /// 9P2000.u.s.
    pub const US: Self = Self { streaming: true, ..Self::U };
    /// 9P2000.L.s.
    pub const LS: Self = Self { streaming: true, ..Self::L };

    /// Returns the version string.
    pub fn name(self) -> &'static str {
        match (self.base, self.streaming) {
            (Base::P2000, false) => "9P2000",
            (Base::U, false) => "9P2000.u",
            (Base::L, false) => "9P2000.L",
            (Base::P2000, true) => "9P2000.s",
            (Base::U, true) => "9P2000.u.s",
            (Base::L, true) => "9P2000.L.s",
        }
    }

    /// Returns the dialect of exactly this version string.
    pub fn parse(version: Str<'_>) -> Option<Self> {
        let all = [Base::P2000, Base::U, Base::L]
            .into_iter()
            .flat_map(|base| [false, true].map(|streaming| Self { base, streaming }));
        all.into_iter().find(|d| d.name().as_bytes() == version)
    }

    /// Returns the dialect that a server with these `offered` dialects answers to a client's version string. Suffixes
    /// are removed from the right of the string until it names an offered dialect. The order of `offered` does not
    /// matter. `None` means that the server answers "unknown".
    pub fn negotiate(version: Str<'_>, offered: &[Self]) -> Option<Self> {
        let mut version = version;
        loop {
            if let Some(dialect) = Self::parse(version)
                && offered.contains(&dialect)
            {
                return Some(dialect);
            }
            let dot = version.iter().rposition(|&b| b == b'.')?;
            version = &version[..dot];
        }
    }

    /// Whether Tattach and Tauth carry a numeric user, and errors an errno (Rerror of .u, Rlerror).
    pub fn has_ids(self) -> bool {
        self.base != Base::P2000
    }

    /// Whether its name has no suffix that only Ninefold uses.
    pub fn is_plain(self) -> bool {
        !self.streaming
    }

    /// Whether this is a .L session.
    pub fn is_l(self) -> bool {
        self.base == Base::L
    }

    /// Whether this is a .u session.
    pub fn is_u(self) -> bool {
        self.base == Base::U
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_suffix_falls_back_to_the_base() {
        let offered = [Dialect::L, Dialect::U, Dialect::P2000];
        assert_eq!(Dialect::negotiate(b"9P2000.L", &offered), Some(Dialect::L));
        assert_eq!(Dialect::negotiate(b"9P2000.L.s", &offered), Some(Dialect::L));
        assert_eq!(Dialect::negotiate(b"9P2000.L.s", &[Dialect::L, Dialect::LS]), Some(Dialect::LS));
        assert_eq!(Dialect::negotiate(b"9P2000.L", &[Dialect::LS, Dialect::P2000]), Some(Dialect::P2000));
        assert_eq!(Dialect::negotiate(b"9P2000.e", &offered), Some(Dialect::P2000));
        assert_eq!(Dialect::negotiate(b"9P2000.u", &[Dialect::P2000]), Some(Dialect::P2000));
    }

    #[test]
    fn what_is_not_9p2000_is_unknown() {
        for version in [&b"9P1999"[..], b"", b"9P", b".", b"9P2000x", b"9p2000", b"unknown"] {
            assert_eq!(Dialect::negotiate(version, &[Dialect::L, Dialect::P2000]), None);
        }
    }
}
