//! Objects in memory, and what may go wrong with them: by a seed, and with a clock that a test moves.
//!
//! In: requests, and a [`Fate`] for each. Out: answers, faults; and at any moment all names, for an oracle. It is for
//! the tests of whoever stands on a store.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::ops::Range;
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;

use crate::objects::{Answer, Condition, Etag, Fault, Got, Listed, Objects, Rest};
use crate::turns::lock;

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is done, and answered.
    Good,
    /// It is done when it is let go ([`Memory::go`]), and then answered.
    Slow,
    /// It is not done: throttled.
    Busy,
    /// It is done, and the answer is lost.
    Unheard,
    /// Half of what was read comes.
    Short,
    /// It is not done, and nobody may.
    Denied,
    /// A put is answered, and what was put is gone.
    Gone,
    /// A put is not answered, and done only when it is let go.
    Late,
    /// The condition of a put is not looked at.
    Careless,
    /// Whatever the condition of a put is, it does not hold.
    Stubborn,
    /// The store has no name for the version.
    Nameless,
}

/// A request, for who decides its fate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Of an object of this name.
    Put(String),
    /// The same.
    Get(String),
    /// Under this.
    List(String),
}

type Decides = Box<dyn FnMut(&Request) -> Fate + Send>;

/// Objects in memory.
#[derive(Clone, Default)]
pub struct Memory(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    objects: BTreeMap<String, (Bytes, u64)>,
    versions: u64,
    fate: Option<Decides>,
    now: Duration,
    chance: u128,
    /// Puts that come late.
    late: Vec<(String, Bytes, Condition)>,
    /// Up to this number requests are let go.
    gone: u64,
    slow: u64,
    wakers: Vec<Waker>,
    asked: BTreeMap<&'static str, u64>,
}

impl Memory {
    /// From now on this decides.
    pub fn decided_by(&self, fate: impl FnMut(&Request) -> Fate + Send + 'static) {
        lock(&self.0).fate = Some(Box::new(fate));
    }

    /// Nothing goes wrong any more.
    pub fn heal(&self) {
        lock(&self.0).fate = None;
    }

    /// Slow requests go on, and late puts are done.
    pub fn go(&self) {
        let mut state = lock(&self.0);
        state.gone = state.slow;
        for (name, bytes, condition) in std::mem::take(&mut state.late) {
            // Nobody hears how it ended.
            let _ = state.put(&name, bytes, &condition);
        }
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// All names.
    pub fn names(&self) -> Vec<String> {
        lock(&self.0).objects.keys().cloned().collect()
    }

    /// Removes an object.
    pub fn remove(&self, name: &str) {
        lock(&self.0).objects.remove(name);
    }

    /// An object becomes these bytes.
    pub fn change(&self, name: &str, bytes: Bytes) {
        let mut state = lock(&self.0);
        state.versions += 1;
        let version = state.versions;
        state.objects.insert(name.into(), (bytes, version));
    }

    /// Requests of this kind: `put`, `get`, `list`.
    pub fn asked(&self, kind: &str) -> u64 {
        lock(&self.0).asked.get(kind).copied().unwrap_or(0)
    }

    fn fate(&self, kind: &'static str, request: &Request) -> Fate {
        let mut state = lock(&self.0);
        *state.asked.entry(kind).or_default() += 1;
        // Each request takes some time, so that patience ends.
        state.now += Duration::from_millis(1);
        let mut fate = state.fate.take();
        drop(state);
        let is = fate.as_mut().map_or(Fate::Good, |fate| fate(request));
        let mut state = lock(&self.0);
        state.fate = state.fate.take().or(fate);
        is
    }

    /// Waits until it is let go, if it is slow.
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

impl State {
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

/// Why a request with this fate fails before it is done.
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
            // Few at once, so that there are several pages.
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
