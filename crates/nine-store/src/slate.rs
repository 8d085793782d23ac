//! A small disk that several machines write, in one object (docs/store.md, "The slate").
//!
//! In: operations of a [`Device`]. Out: gets of the object, and puts on the condition that it has not changed since.
//!
//! Always holds: each write takes effect at one moment, on top of all writes before it. A write that was given up takes
//! effect before any write that is answered later, or never.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use nine_block::{Device, Error, Io, Kind, Op, Result, SECTOR, Shape, Tasks};

use crate::Patience;
use crate::format::{LEASE, sectors, slate};
use crate::objects::{Condition, Etag, Fault, Got, Objects, Swapped, swap};
use crate::store::error;
use crate::turns::{PermitPool, lock};

/// The size of an arbiter.
const SECTORS: u64 = 256;
/// Attempts of a write. An attempt fails only if another machine has put since our last look.
const FOREIGN_PUTS_MAX: u32 = 32;
/// Reads that arrive within this time share one get.
const GATHER: Duration = Duration::from_millis(1);

/// A disk in one object that is replaced by compare and swap.
pub struct Slate(Arc<SlateShared>);

struct SlateShared {
    objects: Arc<dyn Objects>,
    name: String,
    patience: Patience,
    tasks: Tasks,
    /// At most one write at a time, in order of arrival.
    writes: PermitPool,
    state: Mutex<SlateState>,
}

#[derive(Default)]
struct SlateState {
    /// The object as last seen. It may be outdated: then a put is refused.
    seen: Option<SlateVersion>,
    /// The store honours conditions, as this process has verified.
    is_kept: bool,
    /// Reads that the next get answers; their number is bounded by that of the operations in flight.
    reads: Vec<Io>,
    /// A task is getting the object, and continues until there are no reads.
    gets: bool,
}

#[derive(Clone)]
struct SlateVersion {
    /// `None`: there is no object.
    etag: Option<Etag>,
    sectors: Bytes,
}

impl Slate {
    /// Creates the device without any request. `name` is for messages; `patience` is the timeout of a request,
    /// including retries.
    pub fn new(objects: Arc<dyn Objects>, name: String, patience: Patience) -> Self {
        let (tasks, writes, state) = (Tasks::default(), PermitPool::new(1), Mutex::default());
        Self(Arc::new(SlateShared { objects, name, patience, tasks, writes, state }))
    }
}

impl SlateShared {
    /// Answers reads until there are none.
    async fn answer(self: Arc<Self>) {
        loop {
            self.objects.rest(GATHER).await;
            let reads = {
                let mut state = lock(&self.state);
                state.gets = !state.reads.is_empty();
                std::mem::take(&mut state.reads)
            };
            if reads.is_empty() {
                return;
            }
            let got = self.get().await;
            for io in reads {
                let part = |seen: &SlateVersion| {
                    seen.sectors.slice((io.at * SECTOR) as usize..(io.end_at() * SECTOR) as usize)
                };
                let result = got.as_ref().map(part).map_err(|error| error.clone().of(&self.name));
                io.end(result);
            }
        }
    }

    async fn get(&self) -> Result<SlateVersion> {
        let ask = || self.objects.get(LEASE, None);
        match self.patience.again(&*self.objects, ask).await {
            Ok(got) => self.saw(Some(got)),
            Err(Fault::Missing) => self.saw(None),
            Err(fault) => Err(error(&fault)),
        }
    }

    /// Records the present content of the object.
    fn saw(&self, there: Option<Got>) -> Result<SlateVersion> {
        let seen = match there {
            Some(Got { bytes, etag: Some(etag), .. }) => {
                let all = sectors(&bytes, SECTORS as usize).map_err(|text| Error::new(Kind::Failed, text))?;
                SlateVersion { etag: Some(etag), sectors: all.into() }
            }
            Some(_) => return Err(careless("it has no ETag for `lease`")),
            None => SlateVersion { etag: None, sectors: vec![0; (SECTORS * SECTOR) as usize].into() },
        };
        let mut state = lock(&self.state);
        if seen.etag.is_none() && state.seen.as_ref().is_some_and(|before| before.etag.is_some()) {
            return Err(Error::new(Kind::Failed, "the object `lease` is gone: somebody has removed it"));
        }
        state.seen = Some(seen.clone());
        Ok(seen)
    }

    async fn write(&self, at: u64, data: &[u8]) -> Result<()> {
        let _turn = self.writes.turn().await;
        for _ in 0..FOREIGN_PUTS_MAX {
            let known = lock(&self.state).seen.clone();
            let SlateVersion { etag, sectors } = match known {
                Some(seen) => seen,
                None => self.get().await?,
            };
            let mut sectors = sectors.to_vec();
            sectors[(at * SECTOR) as usize..][..data.len()].copy_from_slice(data);
            match swap(&self.objects, self.patience, LEASE, etag.clone(), self.object(&sectors)).await {
                Ok(Swapped::Done(Some(now))) => {
                    let is_kept = {
                        let mut state = lock(&self.state);
                        state.seen = Some(SlateVersion { etag: Some(now), sectors: sectors.clone().into() });
                        state.is_kept
                    };
                    match (is_kept, etag) {
                        (true, _) => return Ok(()),
                        (false, Some(before)) => return self.is_kept(before, &sectors).await,
                        // Write the new object once more, so that it has an earlier version for the check.
                        (false, None) => {}
                    }
                }
                Ok(Swapped::Done(None)) => return Err(careless("it has no ETag for `lease`")),
                Ok(Swapped::Other(there)) => drop(self.saw(there)?),
                Err(fault) => return Err(error(&fault)),
            }
        }
        Err(Error::new(Kind::Down, "others write all the time"))
    }

    fn object(&self, sectors: &[u8]) -> Bytes {
        slate(sectors, self.objects.random()).into()
    }

    /// Checks that the store honours conditions, by puts that must fail: the object exists, and had another version
    /// before.
    async fn is_kept(&self, before: Etag, sectors: &[u8]) -> Result<()> {
        self.is_refused(Condition::New, sectors).await?;
        self.is_refused(Condition::Is(before), sectors).await?;
        lock(&self.state).is_kept = true;
        Ok(())
    }

    async fn is_refused(&self, condition: Condition, sectors: &[u8]) -> Result<()> {
        let ask = || self.objects.put(LEASE, vec![self.object(sectors)], condition.clone());
        match self.patience.again(&*self.objects, ask).await {
            Err(Fault::Refused) => Ok(()),
            Ok(_) => Err(careless("it replaces `lease` whatever the condition")),
            Err(fault) => Err(error(&fault)),
        }
    }

    async fn does(&self, op: Op, at: u64, data: &[u8]) -> Result<Bytes> {
        match op {
            Op::Write => self.write(at, data).await?,
            Op::Look => drop(self.get().await?),
            Op::Discard => return Err(Error::new(Kind::Unsupported, "what is on a slate stays")),
            // A put that was answered is durable.
            Op::Flush | Op::Read => {}
        }
        Ok(Bytes::new())
    }
}

fn careless(text: &str) -> Error {
    Error::new(Kind::Unsupported, format!("no arbiter can be in this store: {text}"))
}

impl Device for Slate {
    fn shape(&self) -> Shape {
        let all = SECTORS as u32;
        Shape { sectors: SECTORS, atom: all, most: all, read_only: false, durable: true }
    }

    fn name(&self) -> String {
        self.0.name.clone()
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        let inner = self.0.clone();
        if io.op != Op::Read {
            return self.0.tasks.spawn(async move {
                let result = inner.does(io.op, io.at, &io.data).await;
                io.end(result.map_err(|error| error.of(&inner.name)));
            });
        }
        let gets = {
            let mut state = lock(&inner.state);
            state.reads.push(io);
            std::mem::replace(&mut state.gets, true)
        };
        if !gets {
            self.0.tasks.spawn(inner.answer());
        }
    }
}
