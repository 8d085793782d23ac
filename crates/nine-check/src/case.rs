//! A case, and its results.

use std::future::Future;
use std::pin::Pin;

use nine_proto::{Base, Dialect};

use crate::scene::CaseContext;

/// One claim about a server.
pub struct Case {
    /// The group and the claim: `walk/partial_makes_no_fid`.
    pub name: &'static str,
    /// The manual page and the sentence.
    pub clause: &'static str,
    /// The dialects it applies to.
    pub speaks: Speaks,
    /// Its requirements.
    pub needs: Needs,
    pub(crate) run: for<'a> fn(&'a CaseContext) -> CaseFuture<'a>,
}

pub(crate) type CaseFuture<'a> = Pin<Box<dyn Future<Output = CaseResult> + 'a>>;

/// The dialects that a case applies to.
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
    /// Returns whether the case applies to this dialect.
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

/// The requirements of a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A root to attach to.
    Nothing,
    /// An empty directory of its own, with all permissions.
    Dir,
}

/// The result of a case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server meets the clause.
    Pass,
    /// It does not. The text has the expectation and the answer.
    Fail(String),
    /// The case was not run, or the server lacks the feature.
    Skip(String),
}

/// The reason why a case ends early.
#[derive(Debug)]
pub(crate) enum StopReason {
    Fail(String),
    Skip(String),
    /// The connection cannot be made, or has ended where an answer was due.
    Gone(String),
}

pub(crate) type CaseResult<T = ()> = Result<T, StopReason>;

/// Fails the case.
pub(crate) fn fail<T>(reason: impl Into<String>) -> CaseResult<T> {
    Err(StopReason::Fail(reason.into()))
}

/// Skips the case, since the server lacks the feature.
pub(crate) fn skip<T>(reason: impl Into<String>) -> CaseResult<T> {
    Err(StopReason::Skip(reason.into()))
}

/// Fails the case unless `held`.
pub(crate) fn hold(held: bool, otherwise: impl FnOnce() -> String) -> CaseResult {
    if held { Ok(()) } else { fail(otherwise()) }
}

/// Defines the table of a group. Each claim is the name of a function below it.
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
