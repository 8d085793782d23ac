//! The device: the state of the store, and reads.
//!
//! In: operations. Out: requests for objects, several at once. Writes are in [`crate::write`].

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Poll, Waker};

use bytes::{Bytes, BytesMut};
use nine_block::{Device, Error, Io, Kind, Op, Result, SECTOR, Shape, Tasks};

use crate::again::Patience;
use crate::format::{CLAIM, DATA, ObjectId, STORE, SectorObject, StoreHeader, claim_epoch};
use crate::gather::{CELL, GatheredSectors, sectors_of};
use crate::map::{ObjectMap, SectorSpan};
use crate::objects::{Fault, Objects};
use crate::turns::{PermitPool, lock};

/// Sectors of a new store: 64 TiB.
const SECTORS: u64 = 1 << 37;
/// Maximum number of sectors.
pub(crate) const SECTORS_MAX: u64 = 1 << 48;
/// Maximum number of reads of objects in flight.
const READS: usize = 16;
/// Maximum sectors of one read request. A larger read is split into several, on several connections.
const READ_SECTORS_MAX: u64 = 2048;
/// A write of new sectors inside an aligned run of this number of sectors gets into one object, so it is atomic.
const ATOM: u32 = 128;

/// The options with which a store is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the device, as in an expression.
    pub name: String,
    /// Size in sectors. An existing store grows to it with the first write, but never shrinks.
    pub sectors: Option<u64>,
    /// Refuses all writes.
    pub read_only: bool,
    /// The timeout of a request, including retries.
    pub patience: Patience,
    /// A description of this writer for its claim, for people; at most 64 bytes of it are stored.
    pub who: String,
}

/// A worm on an object store.
#[derive(Clone)]
pub struct Store(Arc<StoreShared>);

pub(crate) struct StoreShared {
    pub objects: Arc<dyn Objects>,
    pub options: Options,
    state: Mutex<StoreState>,
    tasks: Tasks,
    reads: PermitPool,
    /// At most one task lists or claims at a time.
    pub listing: PermitPool,
}

/// The known state of the store, and the operations in progress.
pub(crate) struct StoreState {
    /// `None`: the store does not exist yet.
    pub about: Option<StoreHeader>,
    pub map: ObjectMap,
    /// The newest claim when the last listing began; 0: none.
    pub epoch: u32,
    pub right: WriterClaim,
    pub gather: GatheredSectors,
    /// First sectors of objects that wait to be put.
    pub queue: VecDeque<u64>,
    pub putting: usize,
    /// The error of a failed put, until the put is retried.
    pub trouble: Option<Error>,
    /// Number of failed puts so far.
    pub troubles: u64,
    /// Number of objects put so far, and of writes of which objects had sectors already.
    pub puts: u64,
    /// The value of `puts` at the last check that found no other claim.
    pub sure: u64,
    /// Tasks that wait for any change.
    wakers: Vec<Waker>,
}

/// The claim to write.
pub(crate) enum WriterClaim {
    /// Not claimed yet.
    None,
    /// Claimed by this client; `number` is that of its next object.
    Ours { epoch: u32, number: u32 },
    /// Lost for ever: to another writer, or because the claim has no more numbers.
    Lost(Error),
}

impl Store {
    /// Opens a store without changing it.
    ///
    /// # Errors
    /// The store does not answer, denies access, or has other data under this prefix.
    pub async fn open(objects: Arc<dyn Objects>, options: Options) -> Result<Self> {
        let state = StoreState {
            about: None,
            map: ObjectMap::default(),
            epoch: 0,
            right: WriterClaim::None,
            gather: GatheredSectors::default(),
            queue: VecDeque::new(),
            putting: 0,
            trouble: None,
            troubles: 0,
            puts: 0,
            sure: 0,
            wakers: Vec::new(),
        };
        let inner = Arc::new(StoreShared {
            objects,
            options,
            state: Mutex::new(state),
            tasks: Tasks::default(),
            reads: PermitPool::new(READS),
            listing: PermitPool::new(1),
        });
        inner.look().await.map_err(|error| error.of(&inner.options.name))?;
        Ok(Self(inner))
    }

    /// Returns the identity of this store; `None` before the first write.
    pub fn identity(&self) -> Option<[u8; 16]> {
        self.0.state().about.map(|about| about.identity)
    }

    /// Sets the number of the next object.
    #[cfg(test)]
    pub(crate) fn number(&self, next: u32) {
        if let WriterClaim::Ours { number, .. } = &mut self.0.state().right {
            *number = next;
        }
    }
}

impl StoreShared {
    pub fn state(&self) -> MutexGuard<'_, StoreState> {
        lock(&self.state)
    }

    /// Runs a task in the background.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(task);
    }

    /// Gets an object, with retries.
    pub async fn get(&self, name: &str, range: Option<Range<u64>>) -> std::result::Result<crate::Got, Fault> {
        self.options.patience.again(&*self.objects, || self.objects.get(name, range.clone())).await
    }

    /// Waits until `is` returns a value. It is called again after each change.
    pub async fn until<T>(&self, mut is: impl FnMut(&mut StoreState) -> Option<T>) -> T {
        poll_fn(|cx| {
            let mut state = self.state();
            match is(&mut state) {
                Some(it) => Poll::Ready(it),
                None => {
                    // Their number is bounded by that of the operations in flight.
                    if !state.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                        state.wakers.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Wakes the waiting tasks.
    pub fn changed(&self) {
        let wakers = std::mem::take(&mut self.state().wakers);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Refreshes the state from the store.
    async fn look(&self) -> Result<()> {
        let _turn = self.listing.turn().await;
        self.about().await?;
        let epoch = self.newest_claim().await?;
        self.list(epoch).await?;
        let state = self.state();
        if state.about.is_none() && (state.map.len() > 0 || epoch > 0) {
            let text = "there are objects of a store, but not the one that says what it is: `store`";
            return Err(Error::new(Kind::Failed, text));
        }
        Ok(())
    }

    /// Reads the object `store`.
    pub async fn about(&self) -> Result<Option<Bytes>> {
        let got = match self.get(STORE, None).await {
            Ok(got) => got,
            Err(Fault::Missing) => return Ok(None),
            Err(fault) => return Err(error(&fault)),
        };
        let about = StoreHeader::decode(&got.bytes).map_err(|text| Error::new(Kind::Failed, text))?;
        let mut state = self.state();
        if state.about.is_some_and(|before| before.identity != about.identity) {
            return Err(Error::new(Kind::Failed, "another store is there now: it was removed and made anew"));
        }
        state.about = Some(about);
        Ok(Some(got.bytes))
    }

    /// Returns the epoch of the newest claim; 0 if there is none.
    pub async fn newest_claim(&self) -> Result<u32> {
        let mut epoch = self.state().epoch;
        let mut after = if epoch == 0 { CLAIM.to_string() } else { crate::format::claim_name(epoch) };
        loop {
            let page = self.page(CLAIM, &after).await?;
            let Some(last) = page.last() else { return Ok(epoch) };
            after.clone_from(last);
            epoch = page.iter().filter_map(|name| claim_epoch(name)).fold(epoch, u32::max);
        }
    }

    /// Adds new objects to the map. `epoch` is that of the newest claim, which must have been read before.
    pub async fn list(&self, epoch: u32) -> Result<()> {
        let mut after = {
            let state = self.state();
            let number = state.map.next(state.epoch);
            if state.epoch == 0 { DATA.to_string() } else { ObjectId { epoch: state.epoch, number }.before() }
        };
        loop {
            let page = self.page(DATA, &after).await?;
            let Some(last) = page.last() else { break };
            after.clone_from(last);
            let mut state = self.state();
            // Skip names that are not ours.
            page.iter()
                .filter_map(|name| SectorObject::parse(name))
                .for_each(|object| state.map.insert(object));
        }
        self.state().epoch = epoch;
        Ok(())
    }

    /// Lists a number of names after `after`.
    async fn page(&self, under: &str, after: &str) -> Result<Vec<String>> {
        let ask = || self.objects.list(under, after);
        let page = self.options.patience.again(&*self.objects, ask).await.map_err(|fault| error(&fault))?;
        let names: Vec<String> = page.into_iter().map(|listed| listed.name).collect();
        // Otherwise a listing might never end.
        if !names.is_sorted() || names.first().is_some_and(|first| first.as_str() <= after) {
            let text = "the store lists names in another order than that of their bytes, or not from where it is told";
            return Err(Error::new(Kind::Unsupported, text));
        }
        Ok(names)
    }

    /// Reads sectors from memory and from objects.
    pub async fn read(self: &Arc<Self>, sectors: Range<u64>) -> Result<Bytes> {
        let (gathered, spans) = {
            let state = self.state();
            (state.gather.find(sectors.clone()), state.map.find(sectors.clone()))
        };
        let mut pieces: Vec<PartFetch> = Vec::new();
        let mut at = sectors.start;
        for (start, data) in gathered {
            self.fetch(&spans, at..start, &mut pieces)?;
            at = start + sectors_of(&data);
            pieces.push(Box::pin(async move { Ok(data) }));
        }
        self.fetch(&spans, at..sectors.end, &mut pieces)?;
        let mut read = all(pieces).await?;
        if read.len() == 1 {
            return Ok(read.remove(0));
        }
        let mut whole = BytesMut::with_capacity(((sectors.end - sectors.start) * SECTOR) as usize);
        read.iter().for_each(|part| whole.extend_from_slice(part));
        Ok(whole.freeze())
    }

    /// Adds requests for these sectors, each of at most [`READ_SECTORS_MAX`] sectors.
    fn fetch(
        self: &Arc<Self>,
        spans: &[SectorSpan],
        sectors: Range<u64>,
        pieces: &mut Vec<PartFetch>,
    ) -> Result<()> {
        for span in spans {
            let (mut from, to) = (span.sectors.start.max(sectors.start), span.sectors.end.min(sectors.end));
            while from < to {
                let Some(object) = span.of else {
                    return Err(Error::new(Kind::Unwritten, format!("sector {from} was never written")));
                };
                let end = to.min(from + READ_SECTORS_MAX);
                pieces.push(Box::pin(self.clone().part(object, from..end)));
                from = end;
            }
        }
        Ok(())
    }

    /// Reads sectors of an object.
    async fn part(self: Arc<Self>, object: SectorObject, sectors: Range<u64>) -> Result<Bytes> {
        let _turn = self.reads.turn().await;
        let (name, size) = (object.name(), u64::from(object.count) * SECTOR);
        let bytes = (sectors.start - object.first) * SECTOR..(sectors.end - object.first) * SECTOR;
        let got = match self.get(&name, Some(bytes)).await {
            Ok(got) => got,
            Err(Fault::Missing) => {
                let text = format!("the object {name} is gone: somebody has removed it");
                return Err(Error::new(Kind::Failed, text));
            }
            Err(fault) => return Err(error(&fault)),
        };
        if got.size != size {
            let text =
                format!("the object {name} has {} bytes, not {size}: somebody has changed it", got.size);
            return Err(Error::new(Kind::Failed, text));
        }
        if got.bytes.len() as u64 != (sectors.end - sectors.start) * SECTOR {
            return Err(Error::new(Kind::Failed, format!("{} bytes of {name} came", got.bytes.len())));
        }
        Ok(got.bytes)
    }

    fn shape(&self) -> Shape {
        let there = self.state().about.map(|about| about.sectors);
        let sectors = there.or(self.options.sectors).unwrap_or(SECTORS);
        let read_only = self.options.read_only;
        Shape { sectors, atom: ATOM, most: CELL as u32, read_only, durable: true }
    }

    /// Returns the sectors of a new store.
    pub fn wanted(&self) -> u64 {
        self.options.sectors.unwrap_or(SECTORS).min(SECTORS_MAX)
    }
}

/// A part of a read.
type PartFetch = Pin<Box<dyn Future<Output = Result<Bytes>> + Send>>;

/// Waits for all fetches. Returns their results in order, or the first error.
async fn all(mut fetches: Vec<PartFetch>) -> Result<Vec<Bytes>> {
    let mut done: Vec<Option<Bytes>> = vec![None; fetches.len()];
    poll_fn(move |cx| {
        let mut is_whole = true;
        for (fetch, done) in fetches.iter_mut().zip(&mut done) {
            if done.is_some() {
                continue;
            }
            match fetch.as_mut().poll(cx) {
                Poll::Ready(Ok(data)) => *done = Some(data),
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => is_whole = false,
            }
        }
        if is_whole {
            Poll::Ready(Ok(done.iter_mut().filter_map(Option::take).collect()))
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Converts a fault into a device error.
pub(crate) fn error(fault: &Fault) -> Error {
    let kind = match fault {
        Fault::Missing | Fault::Refused => Kind::Failed,
        Fault::Denied(_) | Fault::Later(_) => Kind::Down,
        Fault::Never(_) => Kind::Unsupported,
    };
    Error::new(kind, fault)
}

impl Device for Store {
    fn shape(&self) -> Shape {
        self.0.shape()
    }

    fn name(&self) -> String {
        self.0.options.name.clone()
    }

    fn submit(&self, io: Io) {
        if let Err(error) = io.judge(&self.shape()) {
            return io.end(Err(error.of(self.name())));
        }
        let inner = self.0.clone();
        self.0.spawn(async move {
            let result = match io.op {
                Op::Read => inner.read(io.at..io.end_at()).await,
                Op::Write => inner.write(io.at, io.data.clone()).await.map(|()| Bytes::new()),
                Op::Flush => inner.flush().await.map(|()| Bytes::new()),
                Op::Look => inner.look().await.map(|()| Bytes::new()),
                Op::Discard => Err(Error::new(Kind::ReadOnly, "what is written stays")),
            };
            io.end(result.map_err(|error| error.of(&inner.options.name)));
        });
    }

    fn status(&self) -> String {
        let Shape { sectors, read_only, .. } = self.shape();
        let only = if read_only { ", read only" } else { "" };
        let mut text = format!("{} {sectors} sectors{only}\n", self.name());
        let state = self.0.state();
        let (objects, missing, bytes) = (state.map.len(), state.map.missing(), state.gather.bytes());
        text += &match &state.right {
            WriterClaim::None => format!("  {objects} objects, {} claims, none of them ours\n", state.epoch),
            WriterClaim::Ours { epoch, .. } => {
                format!("  {objects} objects, claim {epoch} is ours, {bytes} bytes are not flushed\n")
            }
            WriterClaim::Lost(error) => format!("  {objects} objects, NOT WRITTEN ANY MORE: {error}\n"),
        };
        if missing > 0 {
            text += &format!("  {missing} objects are not there, though later ones are\n");
        }
        if let Some(trouble) = &state.trouble {
            text += &format!("  {bytes} bytes are not durable: {trouble}\n");
        }
        text
    }
}
