//! Objects in memory with injected faults, for tests of code that uses a store: deterministic by a seed, with a clock
//! that the test moves.
//!
//! In: requests, and a [`Fate`] for each. Out: answers, faults; and at any time all names, for an oracle.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::objects::{Answer, Condition, Etag, Fault, Got, Listed, Objects, Rest};
use crate::turns::lock;

/// The fate of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done and answered.
    Good,
    /// It is done and answered after [`Memory::go`].
    Slow,
    /// It is not done: throttled.
    Busy,
    /// It is done, and the answer is lost.
    Unheard,
    /// The answer is cut short, which is a fault. Puts are not affected.
    Short,
    /// It is not done: access denied.
    Denied,
    /// A put is answered, but the object is lost.
    Gone,
    /// A put is not answered, and done only after [`Memory::go`].
    Late,
    /// The condition of a put is ignored.
    Careless,
    /// The condition of a put never holds.
    Stubborn,
    /// The store does not name the version.
    Nameless,
}

/// A request, for the function that decides its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Of the object with this name.
    Put(String),
    /// Of the object with this name.
    Get(String),
    /// Of names with this prefix.
    List(String),
}

type FateRule = Box<dyn FnMut(&Request) -> Fate + Send>;

/// Objects in memory.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<MemoryState>>);

#[derive(Default)]
struct MemoryState {
    objects: BTreeMap<String, (Bytes, u64)>,
    versions: u64,
    fate: Option<FateRule>,
    now: Duration,
    chance: u128,
    /// Puts that are done late.
    late: Vec<(String, Bytes, Condition)>,
    /// Slow requests up to this number may continue.
    gone: u64,
    slow: u64,
    wakers: Vec<Waker>,
    asked: BTreeMap<&'static str, u64>,
}

impl Memory {
    /// Sets the function that decides the fate of each request.
    pub fn decided_by(&self, fate: impl FnMut(&Request) -> Fate + Send + 'static) {
        lock(&self.0).fate = Some(Box::new(fate));
    }

    /// Ends all faults.
    pub fn heal(&self) {
        lock(&self.0).fate = None;
    }

    /// Continues slow requests, and does late puts.
    pub fn go(&self) {
        let mut state = lock(&self.0);
        state.gone = state.slow;
        for (name, bytes, condition) in std::mem::take(&mut state.late) {
            // Their results are lost.
            let _ = state.put(&name, bytes, &condition);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Returns all names.
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).objects.keys().cloned().collect()
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        lock(&self.0).objects.remove(name);
    }

    /// Replaces the content of an object.
    pub fn change(&self, name: &str, bytes: Bytes) {
        let mut state = lock(&self.0);
        state.versions += 1;
        let version = state.versions;
        state.objects.insert(name.into(), (bytes, version));
    }

    /// Returns the number of requests of a kind: `put`, `get` or `list`.
    pub fn asked(&self, kind: &str) -> u64 {
        lock(&self.0).asked.get(kind).copied().unwrap_or(0)
    }

    fn fate(&self, kind: &'static str, request: &Request) -> Fate {
        let mut state = lock(&self.0);
        *state.asked.entry(kind).or_default() += 1;
        // Each request takes some time, so that timeouts expire.
        state.now += Duration::from_millis(1);
        let mut fate = state.fate.take();
        drop(state);
        let is = fate.as_mut().map_or(Fate::Good, |fate| fate(request));
        let mut state = lock(&self.0);
        state.fate = state.fate.take().or(fate);
        is
    }

    /// Waits until a slow request may continue.
    async fn wait(self, fate: Fate) {
        if fate != Fate::Slow {
            return;
        }
        let number = {
            let mut state = lock(&self.0);
            state.slow += 1;
            state.slow
        };
        poll_fn(|cx| {
            let mut state = lock(&self.0);
            if state.gone >= number {
                return Poll::Ready(());
            }
            state.wakers.push(cx.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

impl MemoryState {
    fn put(&mut self, name: &str, bytes: Bytes, condition: &Condition) -> Result<Option<Etag>, Fault> {
        let there = self.objects.get(name).map(|(_, version)| etag(*version));
        let holds = match condition {
            Condition::New => there.is_none(),
            Condition::Is(_) if there.is_none() => return Err(Fault::Missing),
            Condition::Is(etag) => there.as_ref() == Some(etag),
        };
        if !holds {
            return Err(Fault::Refused);
        }
        self.versions += 1;
        self.objects.insert(name.into(), (bytes, self.versions));
        Ok(Some(etag(self.versions)))
    }
}

fn etag(version: u64) -> Etag {
    Etag(format!("\"{version}\"").into())
}

/// Returns the fault of a request that fails before it is done.
fn before(fate: Fate) -> Result<(), Fault> {
    match fate {
        Fate::Busy => Err(Fault::Later("SlowDown: reduce your request rate".into())),
        Fate::Denied => Err(Fault::Denied("AccessDenied".into())),
        _ => Ok(()),
    }
}

impl Objects for Memory {
    fn put(&self, name: &str, parts: Vec<Bytes>, condition: Condition) -> Answer<Option<Etag>> {
        let (this, name, bytes) = (self.clone(), name.to_string(), Bytes::from(parts.concat()));
        Box::pin(async move {
            let fate = this.fate("put", &Request::Put(name.clone()));
            this.clone().wait(fate).await;
            before(fate)?;
            if fate == Fate::Stubborn {
                return Err(Fault::Refused);
            }
            let mut state = lock(&this.0);
            if fate == Fate::Late {
                state.late.push((name, bytes, condition));
                return Err(Fault::Later("no answer".into()));
            }
            let condition = if fate == Fate::Careless {
                state.objects.remove(&name);
                Condition::New
            } else {
                condition
            };
            let put = state.put(&name, bytes, &condition);
            match fate {
                Fate::Unheard => Err(Fault::Later("no answer".into())),
                Fate::Gone if put.is_ok() => {
                    state.objects.remove(&name);
                    put
                }
                _ => put,
            }
        })
    }

    fn get(&self, name: &str, range: Option<Range<u64>>) -> Answer<Got> {
        let (this, name) = (self.clone(), name.to_string());
        Box::pin(async move {
            let fate = this.fate("get", &Request::Get(name.clone()));
            this.clone().wait(fate).await;
            before(fate)?;
            if matches!(fate, Fate::Unheard | Fate::Short | Fate::Late) {
                return Err(Fault::Later("12 bytes came of 24".into()));
            }
            let state = lock(&this.0);
            let (bytes, version) = state.objects.get(&name).ok_or(Fault::Missing)?;
            let size = bytes.len() as u64;
            let range = range.unwrap_or(0..size);
            if range.start >= size && size > 0 {
                return Err(Fault::Never("an object is shorter than its name says".into()));
            }
            let part = bytes.slice(range.start as usize..range.end.min(size) as usize);
            let etag = Some(etag(*version)).filter(|_| fate != Fate::Nameless);
            Ok(Got { bytes: part, size, etag })
        })
    }

    fn list(&self, under: &str, after: &str) -> Answer<Vec<Listed>> {
        let (this, under, after) = (self.clone(), under.to_string(), after.to_string());
        Box::pin(async move {
            let fate = this.fate("list", &Request::List(under.clone()));
            this.clone().wait(fate).await;
            before(fate)?;
            if matches!(fate, Fate::Unheard | Fate::Short | Fate::Late) {
                return Err(Fault::Later("no answer".into()));
            }
            let state = lock(&this.0);
            let names = state.objects.iter().filter(|(name, _)| name.starts_with(&under) && **name > after);
            // Return few names, so that listings have several pages.
            Ok(names
                .take(3)
                .map(|(name, (bytes, _))| Listed { name: name.clone(), size: bytes.len() as u64 })
                .collect())
        })
    }

    fn now(&self) -> Duration {
        lock(&self.0).now
    }

    fn rest(&self, time: Duration) -> Rest {
        lock(&self.0).now += time;
        Box::pin(async {})
    }

    fn random(&self) -> u128 {
        let mut state = lock(&self.0);
        state.chance =
            state.chance.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(0x5851_f42d);
        state.chance
    }
}
