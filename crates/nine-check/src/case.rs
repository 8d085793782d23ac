//! What a case is, and how it ends.

use std::future::Future;
use std::pin::Pin;

use nine_proto::{Base, Dialect};

use crate::scene::Scene;

/// One claim about a server.
pub struct Case {
    /// The claim, after its group: `walk/partial_makes_no_fid`.
    pub name: &'static str,
    /// The manual page, and what it says.
    pub clause: &'static str,
    /// The dialects that can say it.
    pub speaks: Speaks,
    /// What it needs of the server.
    pub needs: Needs,
    pub(crate) run: for<'a> fn(&'a Scene) -> Running<'a>,
}

pub(crate) type Running<'a> = Pin<Box<dyn Future<Output = Verdict> + 'a>>;

/// Which dialects a case is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Speaks {
    /// All.
    Any,
    /// Those with stat records: 9P2000 and .u.
    Stat,
    /// 9P2000 alone.
    P2000,
    /// 9P2000.u alone.
    U,
    /// Those with error numbers: .u and .L.
    Errno,
    /// 9P2000.L alone.
    L,
}

impl Speaks {
    /// Whether the case is for this dialect.
    pub fn has(self, dialect: Dialect) -> bool {
        match self {
            Self::Any => true,
            Self::Stat => dialect.base != Base::L,
            Self::P2000 => dialect.base == Base::P2000,
            Self::U => dialect.base == Base::U,
            Self::Errno => dialect.base != Base::P2000,
            Self::L => dialect.base == Base::L,
        }
    }
}

/// What a case needs of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A root to attach to.
    Nothing,
    /// An empty directory of its own, in which it may do everything.
    Dir,
}

/// How a case ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server does what the clause says.
    Pass,
    /// It does not: what was expected, and what came.
    Fail(String),
    /// It was not tried, or the server has not what it is about.
    Skip(String),
}

/// Why a case goes no further.
#[derive(Debug)]
pub(crate) enum Stop {
    Fail(String),
    Skip(String),
    /// The connection cannot be made, or has ended where an answer was owed.
    Gone(String),
}

pub(crate) type Verdict<T = ()> = Result<T, Stop>;

/// The case fails.
pub(crate) fn fail<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Stop::Fail(reason.into()))
}

/// The server has not what the case is about.
pub(crate) fn skip<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Stop::Skip(reason.into()))
}

/// The case fails unless `held`.
pub(crate) fn hold(held: bool, otherwise: impl FnOnce() -> String) -> Verdict {
    if held { Ok(()) } else { fail(otherwise()) }
}

/// The table of a group: each claim is the name of a function below it.
macro_rules! cases {
    ($group:literal: $($name:ident, $speaks:ident, $needs:ident, $clause:literal;)*) => {
        pub(super) const CASES: &[$crate::case::Case] = &[$($crate::case::Case {
            name: concat!($group, "/", stringify!($name)),
            clause: $clause,
            speaks: $crate::case::Speaks::$speaks,
            needs: $crate::case::Needs::$needs,
            run: |scene| Box::pin($name(scene)),
        }),*];
    };
}
pub(crate) use cases;
