//! What is asked of an object store: the seam between the device and the world.
//!
//! In: names below the prefix, bytes. Out: [`Answer`]s, which may be polled by any thread. Who implements it asks once;
//! what is to be asked again is [`crate::again`]'s affair.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::again::Patience;

/// What a request comes to. Dropped, it may have been done.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// Some time passes.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A version of an object, as the store calls it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etag(pub Arc<str>);

/// When an object is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// There is none of this name.
    New,
    /// It is this version.
    Is(Etag),
}

/// Why a request was not done, or may not have been.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such object.
    Missing,
    /// The condition of a put did not hold; or it could not be judged, because somebody else puts there now.
    Refused,
    /// Who we are, or what we may: words for people.
    Denied(String),
    /// It may go well another time: throttled, silent, cut short. Whether it was done is not known.
    Later(String),
    /// It never goes well.
    Never(String),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no such object"),
            Self::Refused => f.write_str("another object is there"),
            Self::Denied(text) | Self::Later(text) | Self::Never(text) => f.write_str(text),
        }
    }
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Got {
    /// The bytes that were asked for, or fewer.
    pub bytes: Bytes,
    /// Bytes of the whole object.
    pub size: u64,
    /// Which version it is; none where the store has no name for it.
    pub etag: Option<Etag>,
}

/// A name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Below the prefix.
    pub name: String,
    /// Bytes.
    pub size: u64,
}

/// Objects below a prefix, and the clock by which they are asked for again.
///
/// Concurrency: from any thread, many requests at once.
pub trait Objects: Send + Sync + 'static {
    /// Puts an object, whose bytes are these parts one behind the other.
    fn put(&self, name: &str, parts: Vec<Bytes>, condition: Condition) -> Answer<Option<Etag>>;

    /// Reads an object, or these bytes of it.
    fn get(&self, name: &str, range: Option<Range<u64>>) -> Answer<Got>;

    /// The names that begin with `under` and lie behind `after`, in order: some of the first ones; none if there are
    /// none.
    fn list(&self, under: &str, after: &str) -> Answer<Vec<Listed>>;

    /// Since any moment.
    fn now(&self) -> Duration;

    /// So much time.
    fn rest(&self, time: Duration) -> Rest;

    /// By chance, and no other time the same.
    fn random(&self) -> u128;
}

/// What became of [`swap`].
#[derive(Clone, Debug)]
pub enum Swapped {
    /// The object has our bytes, and this is its version.
    Done(Option<Etag>),
    /// It was another version; this is what is there, if anything is.
    Other(Option<Got>),
}

/// Compare and swap of a small object: it becomes these bytes if it is the version that is `expected`, none meaning
/// that it is not there. For those who decide who of two machines may write (`lease`).
///
/// `bytes` have to differ from all that were ever put there (a number that grows, a random one): so an answer that was
/// lost is known by what is there. A put that was given up may still arrive: before the time is over for which the
/// store keeps requests, nothing can be concluded from its absence.
///
/// # Errors
/// [`Fault::Denied`], [`Fault::Never`]; [`Fault::Later`] after `patience`: whether it was done is not known.
pub async fn swap(
    objects: &Arc<dyn Objects>,
    patience: Patience,
    name: &str,
    expected: Option<Etag>,
    bytes: Bytes,
) -> Result<Swapped, Fault> {
    let condition = &expected.map_or(Condition::New, Condition::Is);
    let ask = || async {
        match objects.put(name, vec![bytes.clone()], condition.clone()).await {
            Err(Fault::Refused | Fault::Missing) => {}
            put => return put.map(Swapped::Done),
        }
        let there = match objects.get(name, None).await {
            Ok(got) if got.bytes == bytes => return Ok(Swapped::Done(got.etag)),
            Err(Fault::Missing) => None,
            got => Some(got?),
        };
        let is_as_expected = match (&there, condition) {
            (None, Condition::New) => true,
            (Some(got), Condition::Is(etag)) => got.etag.as_ref() == Some(etag),
            _ => false,
        };
        if is_as_expected {
            // Somebody was about to put there, and has not.
            return Err(Fault::Later(format!("{name} is refused, and is as it was")));
        }
        Ok(Swapped::Other(there))
    };
    patience.again(&**objects, ask).await
}
