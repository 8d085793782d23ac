//! A stream: two directions between a process and a device, and the modules pushed between them.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Poll;
use core::time::Duration;

use crate::block::{Block, Chain};
use crate::module::{Control, Fault, Halves, Modules};
use crate::pool::Pool;
use crate::port::{Port, Putting, Reading, Store, ToStore};
use crate::queue::Limit;
use crate::way::{After, Clock, Link, Way, hungup};

/// Modules of one stream: puts go through all of them on one stack.
pub const DEEPEST: usize = 16;

/// What a stream is made of.
#[derive(Clone)]
pub struct Make {
    /// Where the memory of writes comes from.
    pub pool: Pool,
    /// Of the queue at either end.
    pub limit: Limit,
    /// What may be pushed.
    pub modules: Modules,
    /// The time, for modules that have any.
    pub clock: Clock,
}

impl Make {
    /// Streams of this memory, with the usual limit, without modules and without a clock.
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            limit: Limit::CONVERSATION,
            modules: Modules::default(),
            clock: Arc::new(|| Duration::ZERO),
        }
    }
}

/// The process' end of a stream. Clones are the same end; the last one that is dropped closes the stream.
///
/// Concurrency: any number of tasks read and write; each read and each write is one piece, in the order in which they
/// were begun.
#[derive(Clone)]
pub struct Stream(Arc<Opened>);

struct Opened {
    port: Port,
    modules: Modules,
}

/// The device's end: whoever carries messages between the stream and something outside of it. Dropping it hangs up.
///
/// Concurrency: several tasks may carry messages up at once; they come in the order in which their puts were let in.
pub struct Device(Port);

impl Stream {
    /// A stream and its device's end.
    pub fn new(make: &Make) -> (Self, Device) {
        let (read, taken) = (Store::new(make.limit), Store::new(make.limit));
        let up = Way::new(&make.clock, |_| ToStore(read.clone()));
        let down = Way::new(&make.clock, |_| ToStore(taken.clone()));
        Way::pair(&up, &down);
        let device = Port::new(taken, down.clone(), up.clone(), make.pool.clone());
        (Self::of(make, Port::new(read, up, down, make.pool.clone())), Device(device))
    }

    pub(crate) fn of(make: &Make, port: Port) -> Self {
        Self(Arc::new(Opened { port, modules: make.modules.clone() }))
    }

    /// Reads into `buf`: as much as it holds, or up to where a message ends. 0 is an empty message, or the end; after
    /// some of these the end is an error, and at once if the stream was hung up for one.
    pub async fn read(&self, buf: &mut [u8]) -> Result<usize, Fault> {
        self.0.port.read(buf).await
    }

    /// The next block, without a copy; it may be a part of a message. `None`: the end.
    pub async fn read_block(&self) -> Result<Option<Block>, Fault> {
        self.0.port.read_block().await
    }

    /// Writes `data` as one message. Given up in the middle, it hangs the stream up.
    pub async fn write(&self, data: &[u8]) -> Result<usize, Fault> {
        self.0.port.write(data).await
    }

    /// Puts blocks at once, without a copy. An error: the stream is hung up, and they are gone.
    pub async fn put(&self, chain: impl Into<Chain>) -> Result<(), Fault> {
        self.0.port.put(chain.into()).await
    }

    /// Puts blocks if there is room now; else they come back, with a fault if there never will be.
    pub fn try_put(&self, chain: impl Into<Chain>) -> Result<(), (Chain, Option<Fault>)> {
        self.0.port.try_put(chain.into())
    }

    /// Who reads, poll by poll.
    pub fn reading(&self) -> Reading {
        self.0.port.reading()
    }

    /// Who writes, poll by poll, in turns with all others.
    pub fn putting(&self) -> Putting {
        self.0.port.putting(true)
    }

    /// Memory for blocks.
    pub fn pool(&self) -> &Pool {
        &self.0.port.pool
    }

    /// Does what a text written to `ctl` says: `push NAME ARGUMENTS`, `pop`, `hangup`; anything else is for the
    /// modules, from the first on, until one takes it. An error: it is wrong, or nobody's.
    pub fn control(&self, text: &[u8]) -> Result<(), Fault> {
        let text = core::str::from_utf8(text).map_err(|_| Fault::new("a control text is text"))?.trim();
        match text.split_once(' ').unwrap_or((text, "")) {
            ("push", module) => self.push(module),
            ("pop", "") => self.pop(),
            ("hangup", "") => {
                self.hangup();
                Ok(())
            }
            _ => self.ask_modules(text),
        }
    }

    /// Puts a module on top. Refused while a message is under way, or blocks wait in a module, and beyond [`DEEPEST`].
    pub fn push(&self, words: &str) -> Result<(), Fault> {
        let (name, halves) = self.0.modules.open(words)?;
        self.put_on_top(name, halves, |names| self.0.modules.fits(words, names))
    }

    /// [`Stream::push`] of an instance that somebody has made.
    pub fn push_halves(&self, name: &'static str, halves: Halves) -> Result<(), Fault> {
        self.put_on_top(name, halves, |_| Ok(()))
    }

    fn put_on_top(
        &self,
        name: &'static str,
        halves: Halves,
        fits: impl FnOnce(&mut dyn Iterator<Item = &'static str>) -> Result<(), Fault>,
    ) -> Result<(), Fault> {
        let mut down = self.0.port.to.lock();
        let mut up = self.0.port.from.lock();
        if down.is_ending() || up.is_ending() {
            return Err(hungup(None));
        }
        if down.links().len() >= DEEPEST {
            return Err(Fault::new(format!("there are {DEEPEST} modules, and no more may be")));
        }
        fits(&mut down.names().map(|(name, _)| name))?;
        if down.is_busy() || up.is_busy() {
            return Err(Fault::new("a message is under way"));
        }
        down.links().insert(0, Link::new(name, halves.down));
        up.links().push(Link::new(name, halves.up));
        drop((down, up));
        // It may have something to say first.
        self.pump();
        Ok(())
    }

    /// Takes the top module away. Refused while a message is under way, or a module holds something.
    pub fn pop(&self) -> Result<(), Fault> {
        let mut down = self.0.port.to.lock();
        let mut up = self.0.port.from.lock();
        if down.is_ending() || up.is_ending() {
            return Err(hungup(None));
        }
        if down.links().is_empty() {
            return Err(Fault::new("there is no module to pop"));
        }
        if down.is_busy() || up.is_busy() {
            return Err(Fault::new("a message is under way"));
        }
        let gone = (down.links().remove(0), up.links().pop());
        drop((down, up));
        // A module may have anything to do when it goes.
        drop(gone);
        Ok(())
    }

    /// Ends the stream at both ends: what has come is read to its end, nothing more goes in.
    pub fn hangup(&self) {
        let mut after = After::default();
        self.0.port.to.hangup(None, &mut after);
        if !self.0.port.from.listen_on(&mut after) {
            self.0.port.from.stop(&mut after);
        }
        after.wake();
    }

    /// Nothing more is written: every module passes on what it holds, then the device finds the end. Reading goes on.
    pub fn finish(&self) {
        let mut after = After::default();
        self.0.port.to.hangup(None, &mut after);
        after.wake();
    }

    /// The next block if there is one now, or the end.
    pub fn try_read_block(&self) -> Poll<Result<Option<Block>, Fault>> {
        self.0.port.try_read_block()
    }

    /// Whether it has ended in either direction, or is about to.
    pub fn is_ending(&self) -> bool {
        self.0.port.to.is_ending() || self.0.port.from.is_ending()
    }

    /// When a module wants [`Stream::tick`] to be called: for streams that have no device, as those of a pipe.
    pub fn deadline(&self) -> Option<Duration> {
        self.0.port.deadline()
    }

    /// The time has come: modules go on.
    pub fn tick(&self) {
        self.0.port.to.pump();
        self.0.port.from.tick();
    }

    /// Whether something that was put waits in a module.
    pub fn is_holding(&self) -> bool {
        self.0.port.to.lock().is_holding()
    }

    /// Whether a put would have to wait.
    pub fn is_full(&self) -> bool {
        self.0.port.is_full()
    }

    /// Names of the modules from the top on, with what each says of itself.
    pub fn modules(&self) -> Vec<(&'static str, String)> {
        self.0.port.to.lock().names().collect()
    }

    /// A line for each module, from the top on: its name, and what it says.
    pub fn status(&self) -> String {
        let line = |(name, says): (&str, String)| match &*says {
            "" => format!("{name}\n"),
            says => format!("{name} {says}\n"),
        };
        self.modules().into_iter().map(line).collect()
    }

    /// Bytes and blocks that wait to be read here.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.port.store.counts()
    }

    fn ask_modules(&self, text: &str) -> Result<(), Fault> {
        let (way, mut after) = (&self.0.port.to, After::default());
        let mut state = way.lock();
        if state.is_ending() {
            return Err(hungup(None));
        }
        let said = way.run(&mut state, &mut after, |links, run| {
            for at in 0..links.len() {
                let [link, rest @ ..] = &mut links[at..] else { continue };
                match link.control(rest, run, text) {
                    Control::NotMine => {}
                    said => return said,
                }
            }
            Control::NotMine
        });
        drop(state);
        after.wake();
        match said {
            Control::Taken => {
                // It may take what it has refused.
                self.pump();
                Ok(())
            }
            Control::Refused(fault) => Err(fault),
            Control::NotMine => Err(Fault::new(format!("no module knows {text:?}"))),
        }
    }

    fn pump(&self) {
        self.0.port.to.pump();
        self.0.port.from.pump();
    }
}

impl Drop for Opened {
    /// The last close: every module passes on what it holds, from the process' end to the device's, then both
    /// directions end.
    fn drop(&mut self) {
        let mut after = After::default();
        self.port.to.hangup(None, &mut after);
        if !self.port.from.listen_on(&mut after) {
            self.port.from.abandon(&mut after);
        }
        after.wake();
        self.port.store.clear();
    }
}

impl Device {
    /// Carries a chain up. Waits while the process does not read.
    pub async fn put(&self, chain: impl Into<Chain>) -> Result<(), Fault> {
        self.0.to.put(chain.into()).await
    }

    /// Carries a chain up if there is room now; else it comes back, with a fault if there never will be.
    pub fn try_put(&self, chain: impl Into<Chain>) -> Result<(), (Chain, Option<Fault>)> {
        self.0.to.try_put(chain.into())
    }

    /// The next block that the process has put; `None`: it has closed.
    pub async fn take(&self) -> Result<Option<Block>, Fault> {
        self.0.read_block().await
    }

    /// The next block that the process has put if there is one now, or the end.
    pub fn try_take(&self) -> Poll<Result<Option<Block>, Fault>> {
        self.0.try_read_block()
    }

    /// The device has gone: `hangup` of the seed. An error is what readers and writers get.
    pub fn hangup(&self, why: Option<Fault>) {
        self.0.hangup(&why);
    }

    /// Nothing more will be carried up: every module passes on what it holds, then the process finds the end. What the
    /// process has put is still taken.
    pub fn finish(&self) {
        let mut after = After::default();
        self.0.to.hangup(None, &mut after);
        after.wake();
    }

    /// Bytes and blocks that wait to be taken.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.store.counts()
    }

    /// Who takes what the process puts, poll by poll.
    pub fn reading(&self) -> Reading {
        self.0.reading()
    }

    /// Who carries up, poll by poll.
    pub fn putting(&self) -> Putting {
        self.0.putting(false)
    }

    /// When a module wants [`Device::tick`] to be called.
    pub fn deadline(&self) -> Option<Duration> {
        self.0.deadline()
    }

    /// The time has come, or something has happened outside: modules go on.
    pub fn tick(&self) {
        self.0.from.pump();
        self.0.to.pump();
    }

    /// Memory for blocks.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.0.hangup(&None);
    }
}
