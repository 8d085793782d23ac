//! Writes: the claim, gathering, and flushes (docs/store.md, "Writing").
//!
//! In: writes and flushes. Out: objects, put once; answers to flushes.
//!
//! Always holds: a number of our epoch stands for the same sectors and bytes for ever, also after retries.

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use nine_block::{Error, Kind, Result, SECTOR};

use crate::format::{ObjectId, STORE, StoreHeader, claim, claim_name, claimant};
use crate::gather::{PendingObject, sectors_of};
use crate::objects::{Condition, Fault, Got};
use crate::store::{SECTORS_MAX, StoreShared, StoreState, WriterClaim, error};

/// Maximum bytes gathered; further writes wait.
const GATHERED: u64 = 64 << 20;
/// Maximum number of puts in flight.
const PUTS: usize = 8;

/// The first sector of a range, and its expected data.
type ExpectedData = (u64, Bytes);

impl StoreShared {
    /// Gathers sectors until they are put. Sectors that are already written must have the same data.
    pub async fn write(self: &Arc<Self>, at: u64, data: Bytes) -> Result<()> {
        let _: ObjectId = self.claimed().await?;
        loop {
            let (free, there) = self.free(at, &data)?;
            let is_known = there.is_empty();
            for (start, mine) in there {
                let sectors = start..start + sectors_of(&mine);
                // Only objects are read here, because gathered data was compared already.
                if self.read(sectors).await? != mine {
                    return Err(written(start));
                }
            }
            let bytes = free.iter().map(sectors).sum::<u64>() * SECTOR;
            self.room(bytes).await?;
            let mut state = self.state();
            // Another write may have changed the state meanwhile.
            if unwritten(&state, at..at + sectors_of(&data)) != free || !state.has_room(bytes) {
                continue;
            }
            if !is_known {
                // These sectors now count as ours, so the next flush must check the claim.
                state.puts += 1;
            }
            for part in free {
                state.gather.add(part.start, slice(&data, at, &part));
                let ripe = state.gather.ripe(part);
                ripe.into_iter().for_each(|run| state.cut(run));
            }
            if state.gather.loose_bytes() > GATHERED / 2 {
                state.cut_all();
            }
            drop(state);
            self.kick();
            return Ok(());
        }
    }

    /// Returns which of these sectors are not written, and the expected data of those that objects have.
    fn free(&self, at: u64, data: &Bytes) -> Result<(Vec<Range<u64>>, Vec<ExpectedData>)> {
        let (state, sectors) = (self.state(), at..at + sectors_of(data));
        for (start, gathered) in state.gather.find(sectors.clone()) {
            if gathered != slice(data, at, &(start..start + sectors_of(&gathered))) {
                return Err(written(start));
            }
        }
        let there = state.map.find(sectors.clone()).into_iter().filter(|span| span.of.is_some());
        let there = there.map(|span| (span.sectors.start, slice(data, at, &span.sectors))).collect();
        Ok((unwritten(&state, sectors), there))
    }

    /// Waits until `bytes` more can be gathered.
    async fn room(self: &Arc<Self>, bytes: u64) -> Result<()> {
        let troubles = {
            let mut state = self.state();
            if state.has_room(bytes) {
                return Ok(());
            }
            state.cut_all();
            state.resume()
        };
        self.kick();
        self.until(|state| {
            let has_room = state.has_room(bytes).then_some(Ok(()));
            has_room.or_else(|| state.failed(troubles).map(Err))
        })
        .await
    }

    /// Makes all writes durable, and checks that no other writer has claimed.
    pub async fn flush(self: &Arc<Self>) -> Result<()> {
        let (last, troubles) = {
            let mut state = self.state();
            state.cut_all();
            let number = match &state.right {
                WriterClaim::Ours { number, .. } => *number,
                WriterClaim::Lost(error) => return Err(error.clone()),
                WriterClaim::None => return Ok(()),
            };
            (number, state.resume())
        };
        self.kick();
        let puts = self
            .until(|state| {
                let is_done = state.gather.oldest().is_none_or(|oldest| oldest >= last);
                state.failed(troubles).map(Err).or_else(|| is_done.then_some(Ok(state.puts)))
            })
            .await?;
        self.is_still_ours(puts).await
    }

    /// Fails if another writer had claimed when `puts` objects had been put.
    async fn is_still_ours(&self, puts: u64) -> Result<()> {
        let epoch = match &self.state().right {
            WriterClaim::Lost(error) => return Err(error.clone()),
            WriterClaim::Ours { epoch, .. } => *epoch,
            WriterClaim::None => return Ok(()),
        };
        if self.state().sure >= puts {
            return Ok(());
        }
        match self.get(&claim_name(epoch + 1), None).await {
            Err(Fault::Missing) => {
                let mut state = self.state();
                state.sure = state.sure.max(puts);
                Ok(())
            }
            Err(fault) => Err(error(&fault)),
            Ok(got) => {
                let text = format!("{} writes here now (claim {})", claimant(&got.bytes), epoch + 1);
                Err(self.lost(&text))
            }
        }
    }

    /// Ends our claim for ever.
    fn lost(&self, text: &str) -> Error {
        let lost = Error::new(Kind::Reserved, format!("{text}: what was not flushed is not there for him"));
        self.state().right = WriterClaim::Lost(lost.clone());
        self.changed();
        lost
    }

    /// Starts puts of the objects in the queue.
    fn kick(self: &Arc<Self>) {
        loop {
            let cut = {
                let mut state = self.state();
                let is_ours = matches!(state.right, WriterClaim::Ours { .. });
                if state.putting >= PUTS || state.trouble.is_some() || !is_ours {
                    return;
                }
                let Some(first) = state.queue.pop_front() else { return };
                let cut = state.gather.object(first).expect("what waits is not durable").clone();
                state.putting += 1;
                cut
            };
            let inner = self.clone();
            self.spawn(async move {
                inner.put(cut).await;
                inner.changed();
                inner.kick();
            });
        }
    }

    /// Puts an object, with retries.
    async fn put(&self, cut: PendingObject) {
        let (first, name) = (cut.object.first, cut.object.name());
        let put = self.put_new(&name, &cut.parts, |got| is_same(got, &cut.parts)).await;
        let mut state = self.state();
        state.putting -= 1;
        match put {
            Ok(true) => {
                state.gather.forget(first);
                state.map.insert(cut.object);
                state.puts += 1;
            }
            Ok(false) => {
                drop(state);
                self.lost(&format!("another has put {name}, as if it were we: a copy of this machine"));
            }
            Err(fault) => {
                state.queue.push_back(first);
                state.trouble = Some(error(&fault));
                state.troubles += 1;
            }
        }
    }

    /// Puts an object under a free name. Returns true also if the object there is ours by `is_ours`; false if it is
    /// not.
    async fn put_new(
        &self,
        name: &str,
        parts: &[Bytes],
        is_ours: impl Fn(&Got) -> bool + Sync,
    ) -> std::result::Result<bool, Fault> {
        let ask = || async {
            match self.objects.put(name, parts.to_vec(), Condition::New).await {
                Err(Fault::Refused) => {}
                Err(Fault::Missing) => return Err(Fault::Never("the store takes no objects here".into())),
                put => return put.map(|_| true),
            }
            match self.objects.get(name, None).await {
                // A concurrent put caused the refusal. It has failed or is still in flight: try again a moment later.
                Err(Fault::Missing) => Err(Fault::Later(format!("{name} is refused, and is not there"))),
                got => got.map(|got| is_ours(&got)),
            }
        };
        self.options.patience.again(&*self.objects, ask).await
    }

    /// Returns our epoch and the next number. Claims an epoch first, if we have none.
    async fn claimed(&self) -> Result<ObjectId> {
        let ours = |state: &StoreState| match &state.right {
            WriterClaim::Ours { epoch, number } => Some(Ok(ObjectId { epoch: *epoch, number: *number })),
            WriterClaim::Lost(error) => Some(Err(error.clone())),
            WriterClaim::None => None,
        };
        if let Some(ours) = ours(&self.state()) {
            return ours;
        }
        let _turn = self.listing.turn().await;
        if let Some(ours) = ours(&self.state()) {
            return ours;
        }
        self.make().await?;
        // Leave an epoch for the next writer.
        let epoch = self.newest_claim().await?.checked_add(1).filter(|epoch| *epoch < u32::MAX);
        let none = || Error::new(Kind::Unsupported, "all claims are made, as the names below `claim` say");
        let epoch = epoch.ok_or_else(none)?;
        let bytes = Bytes::from(claim(epoch, self.objects.random(), &self.options.who));
        let put =
            self.put_new(&claim_name(epoch), std::slice::from_ref(&bytes), |got| got.bytes == bytes).await;
        if !put.map_err(|fault| error(&fault))? {
            return Err(Error::new(Kind::Reserved, "another begins to write here at the same time"));
        }
        self.list(epoch).await?;
        self.state().right = WriterClaim::Ours { epoch, number: 0 };
        Ok(ObjectId { epoch, number: 0 })
    }

    /// Creates the store if it does not exist, or makes it larger if that was requested.
    async fn make(&self) -> Result<()> {
        let Some(bytes) = self.about().await? else {
            if self.state().about.is_some() {
                let text = "its object `store` is gone: somebody has removed it";
                return Err(Error::new(Kind::Failed, text));
            }
            let identity = self.objects.random().to_le_bytes();
            let about = StoreHeader { identity, sectors: self.wanted() };
            let bytes = Bytes::from(about.encode());
            let parts = [bytes.clone()];
            let failed = |fault| error(&fault);
            if !self.put_new(STORE, &parts, |got| got.bytes == bytes).await.map_err(failed)? {
                return self.about().await.map(drop);
            }
            // A store that ignores the condition cannot be a worm.
            let again = || self.objects.put(STORE, parts.to_vec(), Condition::New);
            return match self.options.patience.again(&*self.objects, again).await {
                Err(Fault::Refused) => self.about().await.map(drop),
                Ok(_) => {
                    let text =
                        "the store does not know `If-None-Match`, without which objects could be replaced";
                    Err(Error::new(Kind::Unsupported, text))
                }
                Err(fault) => Err(error(&fault)),
            };
        };
        if !StoreHeader::may_write(&bytes) {
            return Err(Error::new(Kind::ReadOnly, "a newer program is needed to write to it"));
        }
        self.grow().await
    }

    async fn grow(&self) -> Result<()> {
        let wanted = self.options.sectors.unwrap_or(0).min(SECTORS_MAX);
        let ask = || async {
            let got = self.objects.get(STORE, None).await?;
            let about = StoreHeader::decode(&got.bytes).map_err(Fault::Never)?;
            if about.sectors >= wanted {
                return Ok(());
            }
            let larger = Bytes::from(StoreHeader { sectors: wanted, ..about }.encode());
            let none =
                || Fault::Never("the store has no names for versions (ETag), so it cannot grow".into());
            let condition = Condition::Is(got.etag.ok_or_else(none)?);
            match self.objects.put(STORE, vec![larger], condition).await {
                // Another machine is making it larger, or the answer to our put was lost.
                Err(Fault::Refused) => Err(Fault::Later("`store` is not replaced (`If-Match`)".into())),
                put => put.map(drop),
            }
        };
        self.options.patience.again(&*self.objects, ask).await.map_err(|fault| error(&fault))?;
        self.about().await.map(drop)
    }
}

impl StoreState {
    /// Makes an object of the run that begins at `run`.
    fn cut(&mut self, run: u64) {
        let WriterClaim::Ours { epoch, number } = &mut self.right else { return };
        let id = ObjectId { epoch: *epoch, number: *number };
        let Some(next) = number.checked_add(1) else {
            let text = "this claim has no more numbers for objects; a program that opens anew has another";
            self.right = WriterClaim::Lost(Error::new(Kind::Reserved, text));
            return;
        };
        *number = next;
        self.gather.cut(run, id);
        self.queue.push_back(run);
    }

    fn cut_all(&mut self) {
        self.gather.runs().into_iter().for_each(|run| self.cut(run));
    }

    /// Returns whether `bytes` more can be gathered. A write larger than the limit must be the only one.
    fn has_room(&self, bytes: u64) -> bool {
        self.gather.bytes() == 0 || self.gather.bytes() + bytes <= GATHERED
    }

    /// Lets failed puts be retried. Returns the number of failures so far.
    fn resume(&mut self) -> u64 {
        self.trouble = None;
        self.troubles
    }

    /// Returns the error of a put that has failed since there were `troubles` failures.
    fn failed(&self, troubles: u64) -> Option<Error> {
        if let WriterClaim::Lost(error) = &self.right {
            return Some(error.clone());
        }
        self.trouble.clone().filter(|_| self.troubles > troubles)
    }
}

/// Returns which of these sectors are neither in an object nor gathered.
fn unwritten(state: &StoreState, sectors: Range<u64>) -> Vec<Range<u64>> {
    let spans = state.map.find(sectors).into_iter().filter(|span| span.of.is_none());
    let mut free = Vec::new();
    for span in spans {
        let mut at = span.sectors.start;
        for (start, data) in state.gather.find(span.sectors.clone()) {
            free.push(at..start);
            at = start + sectors_of(&data);
        }
        free.push(at..span.sectors.end);
    }
    free.retain(|part| part.start < part.end);
    free
}

fn sectors(part: &Range<u64>) -> u64 {
    part.end - part.start
}

/// Returns the data of these sectors, from a write at `at`.
fn slice(data: &Bytes, at: u64, part: &Range<u64>) -> Bytes {
    data.slice(((part.start - at) * SECTOR) as usize..((part.end - at) * SECTOR) as usize)
}

fn is_same(got: &Got, parts: &[Bytes]) -> bool {
    let mut rest = &got.bytes[..];
    parts.iter().all(|part| {
        let Some((begin, end)) = rest.split_at_checked(part.len()) else { return false };
        rest = end;
        begin == part
    }) && rest.is_empty()
}

fn written(sector: u64) -> Error {
    Error::new(Kind::ReadOnly, format!("sector {sector} is written already, with other content"))
}
