//! The interface of an object store: the seam between the device and the network.
//!
//! In: names below the prefix, bytes. Out: [`Answer`]s, which may be polled by any thread. An implementation makes each
//! request once; [`crate::again`] makes the retries.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::again::Patience;

/// The result of a request. If it is dropped, the request may still take effect.
pub type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// A delay.
pub type Rest = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The version of an object, as the store names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Etag(pub Arc<str>);

/// The condition of a put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    /// No object has this name.
    New,
    /// The object has this version.
    Is(Etag),
}

/// Why a request has failed, or may have failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// There is no such object.
    Missing,
    /// The condition of a put did not hold, or could not be evaluated because of a concurrent put.
    Refused,
    /// Authentication or authorization has failed; the text is for people.
    Denied(String),
    /// A temporary failure: throttling, silence, a truncated answer. The request may have taken effect.
    Later(String),
    /// A permanent failure.
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

/// The result of a read.
#[derive(Clone, Debug)]
pub struct Got {
    /// The requested bytes, or fewer.
    pub bytes: Bytes,
    /// Bytes of the whole object.
    pub size: u64,
    /// Its version; `None` if the store does not name it.
    pub etag: Option<Etag>,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name below the prefix.
    pub name: String,
    /// Its size in bytes.
    pub size: u64,
}

/// The objects below a prefix, and the clock for retries.
///
/// Concurrency: may be called by any thread, with many requests in flight.
pub trait Objects: Send + Sync + 'static {
    /// Puts an object. Its bytes are the concatenation of `parts`.
    fn put(&self, name: &str, parts: Vec<Bytes>, condition: Condition) -> Answer<Option<Etag>>;

    /// Gets an object, or a range of its bytes.
    fn get(&self, name: &str, range: Option<Range<u64>>) -> Answer<Got>;

    /// Lists names that begin with `under` and are greater than `after`, in order. Returns the first ones, and none
    /// only if there are none.
    fn list(&self, under: &str, after: &str) -> Answer<Vec<Listed>>;

    /// Returns the time since an arbitrary start.
    fn now(&self) -> Duration;

    /// Waits for this time.
    fn rest(&self, time: Duration) -> Rest;

    /// Returns a random number that never repeats.
    fn random(&self) -> u128;
}

/// The result of [`swap`].
#[derive(Clone, Debug)]
pub enum Swapped {
    /// The object has our bytes, and this version.
    Done(Option<Etag>),
    /// The object had another version. This is its present content, if it exists.
    Other(Option<Got>),
}

/// Compares and swaps a small object: it gets these bytes if its version is `expected`; `None` means that it must not
/// exist. The `lease` object uses this to decide which of two machines may write.
///
/// `bytes` must differ from all that were ever put there, for example by a counter or a random number. So after a lost
/// answer the content tells whether our put was done. A put that was given up may still arrive. As long as the store
/// can hold such a request, the absence of our bytes proves nothing.
///
/// # Errors
/// [`Fault::Denied`], [`Fault::Never`]; [`Fault::Later`] after `patience`: the swap may have been done.
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
            // A concurrent put caused the refusal. It has failed or is still in flight.
            return Err(Fault::Later(format!("{name} is refused, and is as it was")));
        }
        Ok(Swapped::Other(there))
    };
    patience.again(&**objects, ask).await
}
