//! Copies a worm to another device, dump by dump.
//!
//! In: a worm, which a server may be using; a device that is empty or has an older copy. Out: the same worm there,
//! block for block.
//!
//! Always holds: the copy is at any moment a worm with whole dumps, because the superblocks of a segment are copied
//! after its other blocks are durable. So an interrupted copy resumes after the last complete dump.

use std::sync::Arc;

use bytes::Bytes;
use nine_block::{Device, Error, Kind as Wrong};

use super::chain::LabeledWorm;
use super::layout::{LABELS, WormLabel};
use super::tag::BlockTag;
use super::{Cw, Result};

/// Bytes that are copied at a time.
const RUN: u64 = 1 << 20;

/// The result of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copied {
    /// Dumps that were there before, and new dumps.
    pub before: usize,
    /// See `before`.
    pub new: usize,
    /// Blocks copied.
    pub blocks: u64,
    /// Unreadable or invalid blocks: the copy lacks them.
    pub wrong: u64,
}

/// Copies the new dumps of one worm to another device. Calls `told` with the blocks done and their total.
///
/// # Errors
/// [`Wrong::Unsupported`]: `from` has no archive, `to` has another one, or `to` is too small. Errors of the devices.
pub(crate) async fn copy(
    from: &Arc<dyn Device>,
    to: &Arc<dyn Device>,
    mut told: impl FnMut(u64, u64),
) -> Result<Copied> {
    let bad = |text: String| Error::new(Wrong::Unsupported, text).of(to.name());
    let label = Cw::label(&**from).await?;
    if label.first() > LABELS {
        let text = "it has no cache device: its copy is one of the whole device";
        return Err(Error::new(Wrong::Unsupported, text).of(from.name()));
    }
    let source = LabeledWorm::new(&**from, &label);
    let all = source.chain(2, 0).await.map_err(|error| error.of(from.name()))?;
    let per = source.per;
    let needs = all.dumps.last().map_or(2, |(_, it)| it.next).max(64);
    if to.shape().sectors < needs * per {
        let text = format!("it has {} sectors, and {} are needed", to.shape().sectors, needs * per);
        return Err(bad(text));
    }
    let there = match Cw::label(&**to).await {
        Ok(there) if there == label => LabeledWorm::new(&**to, &label).chain(2, 0).await?,
        Ok(WormLabel { name, .. }) => {
            return Err(bad(format!("the archive `{name}` is there, which is another")));
        }
        Err(error) if !matches!(error.kind, Wrong::Failed | Wrong::Unwritten) => return Err(error),
        Err(_) => {
            for at in [0, 1] {
                let block = from.read(at * per, per).await?;
                to.write(at * per, block).await?;
            }
            to.flush().await?;
            Default::default()
        }
    };
    let is_same = there.dumps.iter().zip(&all.dumps).all(|(one, other)| one == other);
    if !is_same || there.dumps.len() > all.dumps.len() {
        return Err(bad("it has dumps that the other has not".into()));
    }
    let new = &all.dumps[there.dumps.len()..];
    let of: u64 = new.iter().map(|(_, it)| it.blocks).sum();
    let mut copied = Copied { before: there.dumps.len(), new: 0, blocks: 0, wrong: 0 };
    for (first, it) in new {
        let last = (first + it.blocks).saturating_sub(1).max(*first);
        let mut at = first + 1;
        while at < last {
            let count = (RUN / (per * 512)).min(last - at);
            copied.wrong += source.copy_run(at, count, &**to).await?;
            (at, copied.blocks) = (at + count, copied.blocks + count);
            told(copied.blocks, of);
        }
        to.flush().await?;
        // Superblocks last, in the order in which they were written. One of them is enough.
        let mut sealed = false;
        for at in [last, *first] {
            sealed |= source.copy_run(at, 1, &**to).await? == 0;
            copied.blocks += 1;
        }
        if !sealed {
            return Err(
                Error::new(Wrong::Failed, format!("superblock {first} cannot be read")).of(from.name())
            );
        }
        to.flush().await?;
        copied.new += 1;
        told(copied.blocks, of);
    }
    Ok(copied)
}

impl LabeledWorm<'_> {
    /// Copies blocks, and leaves out invalid ones. Returns the number left out.
    async fn copy_run(&self, at: u64, count: u64, to: &dyn Device) -> Result<u64> {
        let identity = self.identity;
        let is_right =
            move |at: u64, block: &[u8]| BlockTag::open(block, &identity).is_ok_and(|tag| tag.at == at);
        let proof = nine_block::Proof::new(self.per, move |n, block| is_right(at + n, block));
        let read = self.w.read_proven(at * self.per, count * self.per, Some(proof.clone())).await;
        match read {
            Ok(bytes) if proof.holds(&bytes) => {
                self.put(at, bytes, to).await?;
                return Ok(0);
            }
            Err(error) if !matches!(error.kind, Wrong::Failed | Wrong::Unwritten) => return Err(error),
            _ => {}
        }
        let mut wrong = 0;
        for n in 0..count {
            let one = proof.part(n * self.per, self.per).expect("a block");
            match self.w.read_proven((at + n) * self.per, self.per, Some(one.clone())).await {
                Ok(block) if one.holds(&block) => self.put(at + n, block, to).await?,
                Ok(_) => wrong += 1,
                Err(error) if matches!(error.kind, Wrong::Failed | Wrong::Unwritten) => wrong += 1,
                Err(error) => return Err(error),
            }
        }
        Ok(wrong)
    }

    /// Writes blocks. If the device is write-once and already has the same content, that is a success.
    async fn put(&self, at: u64, bytes: Bytes, to: &dyn Device) -> Result<()> {
        let sector = at * self.per;
        match to.write(sector, bytes.clone()).await {
            Err(error) if error.kind == Wrong::ReadOnly => {
                let there = to.read(sector, bytes.len() as u64 / 512).await;
                if there.is_ok_and(|there| there == bytes) { Ok(()) } else { Err(error) }
            }
            written => written.map(drop),
        }
    }
}
