//! Blocks are read as they lie on their devices: a mirror heals what is rotten, of all else there is said which file it
//! hurts (docs/archive.md, "Bit rot").
//!
//! In: dumps, or all there is. Out: what is wrong, with paths.
//!
//! Each dump has on w what was new in it: a scrub reads of each dump the nodes and files of its generation, in the
//! order in which they were written, and so everything once. While clients are at work it gets [`SHARE`] for each tick.

use std::fmt::Write as _;
use std::future::poll_fn;
use std::task::Poll;

use bytes::Bytes;
use nine_block::{Error as Wrong, Kind};
use nine_proto::{Errno, Error, Result, Time};

use crate::archive::{Archive, errno};
use crate::cw::{TAG, Tag};
use crate::item::{Extent, Key, What};
use crate::jobs::yield_now;
use crate::ptr::Ptr;
use crate::rounds::DueRound;
use crate::tree::node::{self, Node};

/// Bytes that are read for each tick while clients are at work.
const SHARE: i64 = 256 << 10;
/// Blocks of an extent that are read at a time, bytes.
const READ: usize = 1 << 20;
/// Files that are remembered as hurt; of more there is only said how many.
const HURT_MOST: usize = 1000;

/// A file that cannot be read, or not all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hurt {
    /// In which dump; none: as it is now.
    dump: Option<u32>,
    ino: u64,
    path: String,
    what: String,
    time: Time,
}

/// What is read, and what has been found.
#[derive(Default)]
pub(crate) struct State {
    /// What there is to do; none: nothing is under way.
    what: Option<String>,
    stop: bool,
    credit: i64,
    /// Blocks that were read, and, if that is known, all.
    blocks: u64,
    of: u64,
    /// Blocks that are wrong.
    wrong: u64,
    /// How the last one has ended.
    last: Option<String>,
    /// The dump at which a scrub was stopped: the next goes on there.
    from: Option<u32>,
    /// When everything is read by itself.
    pub(crate) due: Option<DueRound>,
    /// Who is hurt, as far as was met since the last scrub began; and how many more.
    hurt: Vec<Hurt>,
    more: u64,
}

impl State {
    pub(crate) fn is_busy(&self) -> bool {
        self.what.is_some()
    }

    /// Blocks that were read.
    pub(crate) fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Files that are hurt.
    pub(crate) fn hurt(&self) -> u64 {
        self.hurt.len() as u64 + self.more
    }

    /// So many more were read.
    pub(crate) fn has_read(&mut self, blocks: u64) {
        self.blocks += blocks;
    }

    pub(crate) fn tick(&mut self) {
        // What was read at once, and was more, is made up for.
        self.credit = (self.credit + SHARE).min(SHARE);
    }

    /// It ends as soon as it can.
    pub(crate) fn stop(&mut self) {
        self.stop = true;
    }

    /// For people, a line or two.
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

/// What a walk through a tree is for.
#[derive(Clone, Copy)]
struct Walk {
    dump: u32,
    /// Only what is of the dump's own generation.
    own: bool,
}

impl Archive {
    /// All of a dump is read, and is right when this ends well.
    ///
    /// # Errors
    /// ENOENT: there is no such dump. EBUSY if another is under way. EIO: something is wrong, and is told in `hurt`.
    pub async fn verify(&self, name: &str) -> Result<()> {
        let found = self.dumps().into_iter().find(|dump| dump.name == name);
        let dump = found.ok_or_else(|| Error::new(Errno::ENOENT, format!("there is no dump {name}")))?;
        self.begin_scrub(format!("verify {name}"), 0)?;
        let done = self.read_dump(Walk { dump: dump.generation, own: false }).await;
        self.end_scrub(done)
    }

    /// Everything is read: all of w that a dump has, and what of c is not on w yet. What a mirror can heal is healed.
    /// One that was stopped is gone on with at the dump at which it was.
    ///
    /// # Errors
    /// As [`verify`](Self::verify).
    pub async fn scrub(&self) -> Result<()> {
        let (slots, worm) = (self.0.cw.slots().1, self.0.cw.written(self.state().next_worm));
        // In place what waits is among what is written.
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

    /// Somebody reads everything from now on.
    ///
    /// # Errors
    /// EBUSY if another does.
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

    /// He has ended, and this is how.
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
            self.read_dump(Walk { dump, own: true }).await?;
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

    /// Both copies of w's label, and the headers of c, from all members of mirrors.
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

    /// Both copies: what can be read of a dump does not depend on one.
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

    /// A block that is on c.
    async fn read_row(&self, row: u64) -> nine_block::Result<()> {
        let cw = &self.0.cw;
        let Some(slot) = cw.place_of(row).await? else { return Ok(()) };
        self.state().scrubber.blocks += 1;
        let Err(error) = cw.scrub_row(row).await else { return Ok(()) };
        // It may have been freed, or changed, since.
        if cw.place_of(row).await? == Some(slot) {
            let owner = cw.owner_by_tag(row).await.unwrap_or_default();
            self.wrong(None, owner, &error).await?;
        }
        Ok(())
    }

    /// Reads a dump's tree and files, those of its own generation or all.
    async fn read_dump(&self, walk: Walk) -> nine_block::Result<()> {
        let Some(root) = self.state().dumps.get(&walk.dump).map(|dump| dump.record.root) else {
            return Ok(());
        };
        // Nodes to come, each with its level and the inodes of its first key and of the one behind its last.
        let mut next: Vec<(Ptr, Option<u8>, (u64, u64))> = vec![(root, None, (0, u64::MAX))];
        while let Some((at, level, inos)) = next.pop() {
            if walk.own && at.made != walk.dump {
                continue;
            }
            if self.scrub_pause(self.0.cw.block() as u64).await {
                return Ok(());
            }
            let is_it = |block: Bytes| {
                let is_it = Tag::is_node(&block) && Tag::made(&block) == at.made;
                let is_it = is_it && level.is_none_or(|level| Node(&block).level() == level);
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
            if Node(content).level() > 0 {
                let below = Some(Node(content).level() - 1);
                // The first of all comes next.
                let mut end = inos.1;
                for (key, child) in node::children(content).collect::<Vec<_>>().into_iter().rev() {
                    let first = key.first_chunk().map_or(inos.0, |ino| u64::from_be_bytes(*ino));
                    next.push((child, below, (first, end)));
                    end = first;
                }
                continue;
            }
            for (key, value) in node::cells(content) {
                if let (Some(What::Extent(ino, block)), Some(extent)) =
                    (Key::parse(key), Extent::decode(value))
                    && (!walk.own || extent.at.made == walk.dump)
                    && self.read_extent(walk, (ino, block), extent).await?
                {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads blocks of a file. Whether it is to stop.
    async fn read_extent(
        &self,
        walk: Walk,
        (ino, block): (u64, u64),
        extent: Extent,
    ) -> nine_block::Result<bool> {
        let step = (READ / self.0.cw.block()) as u32;
        for first in (0..extent.count).step_by(step as usize) {
            let count = step.min(extent.count - first);
            if self.scrub_pause(u64::from(count) * self.0.cw.block() as u64).await {
                return Ok(true);
            }
            let part = extent.split(first, count);
            for (n, read) in (u64::from(first)..).zip(self.read_raw(part.at, count).await?) {
                let is_it = read.and_then(|bytes| match Tag::whose(&bytes) == (ino, block + n) {
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

    /// Blocks one behind the other: from w, if they have come there.
    async fn read_raw(&self, at: Ptr, count: u32) -> nine_block::Result<Vec<nine_block::Result<Bytes>>> {
        let cw = &self.0.cw;
        self.state().scrubber.blocks += u64::from(count);
        let last = Ptr { at: at.at + u64::from(count) - 1, ..at };
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

    /// Waits until so many bytes more may be read. Whether it is to stop.
    pub(crate) async fn scrub_pause(&self, bytes: u64) -> bool {
        poll_fn(|cx| {
            let state = &mut *self.state();
            if state.scrubber.stop || state.dumper.is_stopped() {
                state.scrubber.stop = true;
                return Poll::Ready(());
            }
            // What is read while nobody is at work is nobody's debt.
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

    /// What is read is wrong.
    ///
    /// # Errors
    /// It is not: a device does not answer, or is another's, and nobody knows what is there.
    async fn wrong(&self, dump: Option<u32>, ino: u64, error: &Wrong) -> nine_block::Result<()> {
        if !matches!(error.kind, Kind::Failed | Kind::Unwritten | Kind::Range) {
            return Err(error.clone());
        }
        self.state().scrubber.wrong += 1;
        self.hurt(dump, ino, error).await;
        Ok(())
    }

    /// Something of this file cannot be read: its path is said and remembered.
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
            HURT_MOST => state.scrubber.more += 1,
            _ => state.scrubber.hurt.push(Hurt { dump, ino, path, what, time: self.time() }),
        }
    }

    /// Where an inode is, in a dump or now, as far as that can be read.
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

    /// Who is hurt, a line for each.
    pub(crate) fn hurt_text(&self) -> String {
        let state = &*self.state();
        let line = |hurt: &Hurt| {
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

impl crate::archive::State {
    /// " of 2026/1121", or nothing.
    pub(crate) fn dump_name(&self, dump: Option<u32>) -> String {
        let Some(record) = dump.and_then(|dump| self.dumps.get(&dump)).map(|dump| dump.record) else {
            return String::new();
        };
        format!(" of {}/{}", record.day.year_name(), record.day.dump_name(record.number))
    }
}
