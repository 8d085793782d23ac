//! Scrubs: reading all blocks on their devices. A mirror repairs rotten copies; for any other rot the damaged file is
//! reported (docs/archive.md, "Bit rot").
//!
//! In: one dump, or the whole archive. Out: errors, with paths.
//!
//! Each dump has on w the blocks that were new in it. A scrub reads of each dump the nodes and files of its generation,
//! in the order in which they were written, and so reads everything once. While clients are active it may read
//! [`SHARE`] bytes per tick.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use nine_block::{Error as Wrong, Kind};
use nine_proto::{Errno, Error, Result, Time};

use crate::archive::{Archive, errno};
use crate::cw::{BlockTag, TAG};
use crate::item::{DecodedKey, FileExtent, ItemKey};
use crate::jobs::yield_now;
use crate::ptr::BlockPtr;
use crate::rounds::DueRound;
use crate::tree::node::{self, NodeRef};

/// Bytes that are read per tick while clients are active.
const SHARE: i64 = 256 << 10;
/// Bytes of an extent that are read at a time.
const READ: usize = 1 << 20;
/// Maximum number of damaged files that are listed; others are only counted.
const DAMAGED_FILES_MAX: usize = 1000;

/// A file that cannot be read completely.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DamagedFile {
    /// The dump with the file; `None`: the present tree.
    dump: Option<u32>,
    ino: u64,
    path: String,
    what: String,
    time: Time,
}

/// The state of scrubs and checks.
#[derive(Default)]
pub(crate) struct ScrubState {
    /// A description of the running operation; `None`: nothing is running.
    what: Option<String>,
    stop: bool,
    credit: i64,
    /// Blocks read, and the total, if that is known.
    blocks: u64,
    of: u64,
    /// Wrong blocks.
    wrong: u64,
    /// The result of the last operation.
    last: Option<String>,
    /// The dump at which a scrub was stopped. The next one continues there.
    from: Option<u32>,
    /// The schedule of automatic scrubs.
    pub(crate) due: Option<DueRound>,
    /// Damaged files found since the last scrub began, and the number of those not listed.
    hurt: Vec<DamagedFile>,
    more: u64,
}

impl ScrubState {
    pub(crate) fn is_busy(&self) -> bool {
        self.what.is_some()
    }

    /// Returns the number of blocks read.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Returns the number of damaged files.
    pub(crate) fn hurt(&self) -> u64 {
        self.hurt.len() as u64 + self.more
    }

    /// Counts blocks as read.
    pub(crate) fn has_read(&mut self, blocks: u64) {
        self.blocks += blocks;
    }

    pub(crate) fn tick(&mut self) {
        // A negative credit, from a large read, is made up over several ticks.
        self.credit = (self.credit + SHARE).min(SHARE);
    }

    /// Stops the operation soon.
    pub(crate) fn stop(&mut self) {
        self.stop = true;
    }

    /// Appends the lines for the status.
    pub(crate) fn said(&self, text: &mut String) {
        if let Some(what) = &self.what {
            let _ = write!(text, "{what}: {} blocks", self.blocks);
            if self.of > 0 {
                let _ = write!(text, " of {}", self.of);
            }
            let _ = writeln!(text, " read, {} wrong", self.wrong);
        } else if let Some(last) = &self.last {
            let _ = writeln!(text, "{last}");
        }
    }
}

/// The extent of a walk through a tree.
#[derive(Clone, Copy)]
struct ScrubWalk {
    dump: u32,
    /// Read only blocks of the dump's own generation.
    own: bool,
}

impl Archive {
    /// Reads and verifies a whole dump.
    ///
    /// # Errors
    /// ENOENT: there is no such dump. EBUSY: a scrub or check is running. EIO: a part is wrong, and is listed in
    /// `hurt`.
    pub async fn verify(&self, name: &str) -> Result<()> {
        let found = self.dumps().into_iter().find(|dump| dump.name == name);
        let dump = found.ok_or_else(|| Error::new(Errno::ENOENT, format!("there is no dump {name}")))?;
        self.begin_scrub(format!("verify {name}"), 0)?;
        let done = self.read_dump(ScrubWalk { dump: dump.generation, own: false }).await;
        self.end_scrub(done)
    }

    /// Reads everything: all blocks of w that belong to a dump, and the blocks of c that are not on w yet. A mirror
    /// repairs what it can. A stopped scrub continues at the dump where it was stopped.
    ///
    /// # Errors
    /// As for [`verify`](Self::verify).
    pub async fn scrub(&self) -> Result<()> {
        let (slots, worm) = (self.0.cw.slots().1, self.0.cw.written(self.state().next_worm));
        // In place, waiting blocks are among the written ones.
        let of = if self.0.cw.in_place() { worm } else { slots + worm };
        self.begin_scrub("scrub".into(), of)?;
        {
            let scrubber = &mut self.state().scrubber;
            if scrubber.from.is_none() {
                (scrubber.hurt, scrubber.more) = (Vec::new(), 0);
            }
        }
        let done = self.read_everything().await;
        self.end_scrub(done)
    }

    /// Begins a scrub or a check.
    ///
    /// # Errors
    /// EBUSY if one is running.
    pub(crate) fn begin_scrub(&self, what: String, of: u64) -> Result<()> {
        let state = &mut *self.state();
        if let Some(what) = &state.scrubber.what {
            let text = format!("{what} is under way: `scrub stop` ends it");
            return Err(Error::new(Errno::EBUSY, text));
        }
        let scrubber = &mut state.scrubber;
        (scrubber.blocks, scrubber.of, scrubber.wrong, scrubber.stop) = (0, of, 0, false);
        scrubber.what = Some(what);
        state.waiters.wake();
        Ok(())
    }

    fn end_scrub(&self, done: nine_block::Result<()>) -> Result<()> {
        let (what, blocks, wrong, stop) = {
            let scrubber = &self.state().scrubber;
            (scrubber.what.clone().unwrap_or_default(), scrubber.blocks, scrubber.wrong, scrubber.stop)
        };
        let result = match done {
            Err(error) => Err(errno(&error)),
            Ok(()) if stop => Err(Error::new(Errno::EINTR, format!("{what} was stopped"))),
            Ok(()) if wrong > 0 => {
                Err(Error::new(Errno::EIO, format!("{wrong} of {blocks} blocks are wrong: see `hurt`")))
            }
            Ok(()) => Ok(()),
        };
        self.end_reading(&match &result {
            Ok(()) => format!("{blocks} blocks, all right"),
            Err(error) => error.to_string(),
        });
        result
    }

    /// Ends the running operation, with its result.
    pub(crate) fn end_reading(&self, how: &str) {
        let state = &mut *self.state();
        let what = state.scrubber.what.take().unwrap_or_default();
        self.info(format_args!("{what}: {how}"));
        state.scrubber.last = Some(format!("last {what}: {how}"));
        state.waiters.wake();
    }

    async fn read_everything(&self) -> nine_block::Result<()> {
        let dumps: Vec<u32> = {
            let state = &*self.state();
            let waits = |dump: &u32| state.waiting.iter().any(|waiting| waiting.generation == *dump);
            let from = state.scrubber.from.unwrap_or(0);
            state.dumps.range(from..).map(|(dump, _)| *dump).filter(|dump| !waits(dump)).collect()
        };
        self.read_labels().await;
        for dump in dumps {
            self.state().scrubber.from = Some(dump);
            self.read_superblocks(dump).await;
            self.read_dump(ScrubWalk { dump, own: true }).await?;
            if self.state().scrubber.stop {
                return Ok(());
            }
        }
        for row in self.0.cw.used_rows() {
            if self.scrub_pause(self.0.cw.block() as u64).await {
                return Ok(());
            }
            self.read_row(row).await?;
        }
        self.state().scrubber.from = None;
        Ok(())
    }

    /// Reads both copies of w's label, and the headers of c, from all members of mirrors.
    async fn read_labels(&self) {
        let cw = &self.0.cw;
        for error in cw.scrub(0, 2).await.into_iter().filter_map(nine_block::Result::err) {
            self.warn(format_args!("{error}: a copy of the label of w is missing; there are two"));
        }
        for error in cw.scrub_headers().await {
            self.warn(format_args!(
                "{error}: a copy of a header of c is missing; there are four, and the next commits write it"
            ));
        }
        self.state().scrubber.blocks += 2;
    }

    /// Reads both copies of a superblock. One is enough to read the dump.
    async fn read_superblocks(&self, dump: u32) {
        let (at, blocks, name) = {
            let state = &*self.state();
            let Some(dump) = state.dumps.get(&dump) else { return };
            let crate::item::DumpRecord { segment, blocks, day, number, .. } = dump.record;
            (segment, blocks, format!("{}/{}", day.year_name(), day.dump_name(number)))
        };
        for at in [at, self.0.cw.second(at, blocks)] {
            self.state().scrubber.blocks += u64::from(at > 0);
            if at > 0
                && let Some(Err(error)) = self.0.cw.scrub(at, 1).await.pop()
            {
                self.warn(format_args!(
                    "{error}: a copy of the superblock of {name} is missing; there are two"
                ));
            }
        }
    }

    /// Reads a block that is on c.
    async fn read_row(&self, row: u64) -> nine_block::Result<()> {
        let cw = &self.0.cw;
        let Some(slot) = cw.place_of(row).await? else { return Ok(()) };
        self.state().scrubber.blocks += 1;
        let Err(error) = cw.scrub_row(row).await else { return Ok(()) };
        // The row may have been freed or changed since.
        if cw.place_of(row).await? == Some(slot) {
            let owner = cw.owner_by_tag(row).await.unwrap_or_default();
            self.wrong(None, owner, &error).await?;
        }
        Ok(())
    }

    /// Reads the tree and the files of a dump: those of its own generation, or all.
    async fn read_dump(&self, walk: ScrubWalk) -> nine_block::Result<()> {
        let Some(root) = self.state().dumps.get(&walk.dump).map(|dump| dump.record.root) else {
            return Ok(());
        };
        // The nodes to read, each with its level and the inodes of its first key and of the first key after it.
        let mut next: Vec<(BlockPtr, Option<u8>, (u64, u64))> = vec![(root, None, (0, u64::MAX))];
        while let Some((at, level, inos)) = next.pop() {
            if walk.own && at.made != walk.dump {
                continue;
            }
            if self.scrub_pause(self.0.cw.block() as u64).await {
                return Ok(());
            }
            let is_it = |block: Bytes| {
                let is_it = BlockTag::is_node(&block) && BlockTag::made(&block) == at.made;
                let is_it = is_it && level.is_none_or(|level| NodeRef(&block).level() == level);
                let text = format!("block {:#x} is another node than what points to it says", at.at);
                if is_it { Ok(block) } else { Err(Wrong::new(Kind::Failed, text)) }
            };
            let read = self.read_raw(at, 1).await?.pop().expect("one block");
            let block = match read.and_then(is_it) {
                Ok(block) => block,
                Err(error) => {
                    let text = format!("what is of inodes {} to {}: {error}", inos.0, inos.1);
                    self.wrong(Some(walk.dump), inos.0, &Wrong::new(error.kind, text)).await?;
                    continue;
                }
            };
            let content = &block[..block.len() - TAG];
            if NodeRef(content).level() > 0 {
                let below = Some(NodeRef(content).level() - 1);
                // The stack returns the first child first.
                let mut end = inos.1;
                for (key, child) in node::children(content).collect::<Vec<_>>().into_iter().rev() {
                    let first = key.first_chunk().map_or(inos.0, |ino| u64::from_be_bytes(*ino));
                    next.push((child, below, (first, end)));
                    end = first;
                }
                continue;
            }
            for (key, value) in node::cells(content) {
                if let (Some(DecodedKey::Extent(ino, block)), Some(extent)) =
                    (ItemKey::parse(key), FileExtent::decode(value))
                    && (!walk.own || extent.at.made == walk.dump)
                    && self.read_extent(walk, (ino, block), extent).await?
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads blocks of a file. Returns whether to stop.
    async fn read_extent(
        &self,
        walk: ScrubWalk,
        (ino, block): (u64, u64),
        extent: FileExtent,
    ) -> nine_block::Result<bool> {
        let step = (READ / self.0.cw.block()) as u32;
        for first in (0..extent.count).step_by(step as usize) {
            let count = step.min(extent.count - first);
            if self.scrub_pause(u64::from(count) * self.0.cw.block() as u64).await {
                return Ok(true);
            }
            let part = extent.split(first, count);
            for (n, read) in (u64::from(first)..).zip(self.read_raw(part.at, count).await?) {
                let is_it = read.and_then(|bytes| match BlockTag::whose(&bytes) == (ino, block + n) {
                    true => Ok(()),
                    false => {
                        let text = format!("block {n} of it is another one's");
                        Err(Wrong::new(Kind::Failed, text))
                    }
                });
                if let Err(error) = is_it {
                    self.wrong(Some(walk.dump), ino, &error).await?;
                }
            }
        }
        Ok(false)
    }

    /// Reads blocks at consecutive addresses: from w if they are there.
    async fn read_raw(&self, at: BlockPtr, count: u32) -> nine_block::Result<Vec<nine_block::Result<Bytes>>> {
        let cw = &self.0.cw;
        self.state().scrubber.blocks += u64::from(count);
        let last = BlockPtr { at: at.at + u64::from(count) - 1, ..at };
        if let (Some(first), Some(last)) = (self.on_worm(at).await?, self.on_worm(last).await?)
            && last.at - first.at == u64::from(count) - 1
        {
            return Ok(cw.scrub(first.at, count.into()).await);
        }
        let mut blocks = Vec::new();
        for at in at.at..at.at + u64::from(count) {
            blocks.push(cw.blocks(at, 1).await);
        }
        Ok(blocks)
    }

    /// Waits until `bytes` more may be read. Returns whether to stop.
    pub(crate) async fn scrub_pause(&self, bytes: u64) -> bool {
        poll_fn(|cx| {
            let state = &mut *self.state();
            if state.scrubber.stop || state.dumper.is_stopped() {
                state.scrubber.stop = true;
                return Poll::Ready(());
            }
            // Reading while no client is active needs no credit.
            if state.dumper.is_idle(state.now) {
                return Poll::Ready(());
            }
            if state.scrubber.credit > 0 {
                state.scrubber.credit -= bytes as i64;
                return Poll::Ready(());
            }
            state.waiters.add(cx.waker());
            Poll::Pending
        })
        .await;
        yield_now().await;
        self.state().scrubber.stop
    }

    /// Counts a wrong block.
    ///
    /// # Errors
    /// The error says nothing about the block: the device does not answer, or is reserved for another owner.
    async fn wrong(&self, dump: Option<u32>, ino: u64, error: &Wrong) -> nine_block::Result<()> {
        if !matches!(error.kind, Kind::Failed | Kind::Unwritten | Kind::Range) {
            return Err(error.clone());
        }
        self.state().scrubber.wrong += 1;
        self.hurt(dump, ino, error).await;
        Ok(())
    }

    /// Logs and lists a damaged file.
    pub(crate) async fn hurt(&self, dump: Option<u32>, ino: u64, error: impl std::fmt::Display) {
        let what = error.to_string();
        if self.state().scrubber.hurt.iter().any(|hurt| (hurt.dump, hurt.ino) == (dump, ino)) {
            return;
        }
        let path = self.path_of(dump, ino).await;
        let state = &mut *self.state();
        let of = state.dump_name(dump);
        self.error(format_args!("{path}{of}: {what}"));
        match state.scrubber.hurt.len() {
            DAMAGED_FILES_MAX => state.scrubber.more += 1,
            _ => state.scrubber.hurt.push(DamagedFile { dump, ino, path, what, time: self.time() }),
        }
    }

    /// Returns the path of an inode, in a dump or in the present tree, as far as it can be read.
    pub(crate) async fn path_of(&self, dump: Option<u32>, ino: u64) -> String {
        let path = self.attempt(|state| {
            let root = match dump {
                None => state.fs.mem.root,
                Some(dump) => state.dumps.get(&dump).ok_or(Errno::ENOENT)?.record.root,
            };
            state.fs.path(root, ino)
        });
        path.await.unwrap_or_else(|_| format!("inode {ino}"))
    }

    /// Returns the list of damaged files, one per line.
    pub(crate) fn hurt_text(&self) -> String {
        let state = &*self.state();
        let line = |hurt: &DamagedFile| {
            let path: String = hurt.path.chars().flat_map(char::escape_debug).collect();
            format!("{} {path}{}: {}\n", hurt.time.sec, state.dump_name(hurt.dump), hurt.what)
        };
        let mut text: String = state.scrubber.hurt.iter().map(line).collect();
        if state.scrubber.more > 0 {
            let _ = writeln!(text, "... and {} more", state.scrubber.more);
        }
        text
    }
}

impl crate::archive::ArchiveState {
    /// Returns " of 2026/1121" for a dump, or nothing.
    pub(crate) fn dump_name(&self, dump: Option<u32>) -> String {
        let Some(record) = dump.and_then(|dump| self.dumps.get(&dump)).map(|dump| dump.record) else {
            return String::new();
        };
        format!(" of {}/{}", record.day.year_name(), record.day.dump_name(record.number))
    }
}
