//! A stream: two directions between a process and a device, and the modules pushed on it.

use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::task::Poll;
use core::time::Duration;

use crate::block::{Block, Chain};
use crate::module::{Control, Fault, Halves, Modules};
use crate::pool::Pool;
use crate::port::{Putting, ReadStore, Reading, StoreEnd, StreamPort};
use crate::queue::Limit;
use crate::way::{ModuleClock, ModuleLink, RunActions, StreamDirection, hungup};

/// Maximum number of modules on one stream. All of them run on one call stack.
pub const DEEPEST: usize = 16;

/// The parameters of new streams.
#[derive(Clone)]
pub struct Make {
    /// The memory for writes.
    pub pool: Pool,
    /// The limit of the queue at each end.
    pub limit: Limit,
    /// The modules that can be pushed.
    pub modules: Modules,
    /// The clock for modules with deadlines.
    pub clock: ModuleClock,
}

impl Make {
    /// Creates parameters with this memory and the usual limit, without modules and without a clock.
    pub fn new(pool: Pool) -> Self {
        Self {
            pool,
            limit: Limit::CONVERSATION,
            modules: Modules::default(),
            clock: Arc::new(|| Duration::ZERO),
        }
    }
}

/// The process's end of a stream. Clones share the end. Dropping the last one closes the stream.
///
/// Concurrency: any number of tasks may read and write. Each read and each write is one piece, in the order in which
/// they started.
#[derive(Clone)]
pub struct Stream(Arc<OpenedStream>);

struct OpenedStream {
    port: StreamPort,
    modules: Modules,
}

/// The device's end. Its owner carries messages between the stream and the outside. Dropping it hangs up.
///
/// Concurrency: several tasks may carry messages up at once. They arrive in the order in which their puts were
/// accepted.
pub struct Device(StreamPort);

impl Stream {
    /// Creates a stream and its device's end.
    pub fn new(make: &Make) -> (Self, Device) {
        let (read, taken) = (ReadStore::new(make.limit), ReadStore::new(make.limit));
        let up = StreamDirection::new(&make.clock, |_| StoreEnd(read.clone()));
        let down = StreamDirection::new(&make.clock, |_| StoreEnd(taken.clone()));
        StreamDirection::pair(&up, &down);
        let device = StreamPort::new(taken, down.clone(), up.clone(), make.pool.clone());
        (Self::of(make, StreamPort::new(read, up, down, make.pool.clone())), Device(device))
    }

    pub(crate) fn of(make: &Make, port: StreamPort) -> Self {
        Self(Arc::new(OpenedStream { port, modules: make.modules.clone() }))
    }

    /// Reads into `buf` until it is full or a message ends. 0 means an empty message or the end. After several reads at
    /// the end, the next is an error. If the stream was hung up with an error, the first read returns it.
    pub async fn read(&self, buf: &mut [u8]) -> Result<usize, Fault> {
        self.0.port.read(buf).await
    }

    /// Reads the next block, without a copy. It may be a part of a message. `None` is the end.
    pub async fn read_block(&self) -> Result<Option<Block>, Fault> {
        self.0.port.read_block().await
    }

    /// Writes `data` as one message. If the write is cancelled halfway, the stream is hung up.
    pub async fn write(&self, data: &[u8]) -> Result<usize, Fault> {
        self.0.port.write(data).await
    }

    /// Puts blocks in one step, without a copy. After an error the stream is hung up and the blocks are gone.
    pub async fn put(&self, chain: impl Into<Chain>) -> Result<(), Fault> {
        self.0.port.put(chain.into()).await
    }

    /// Puts blocks if there is room now. Otherwise returns them, with an error if there will never be room.
    pub fn try_put(&self, chain: impl Into<Chain>) -> Result<(), (Chain, Option<Fault>)> {
        self.0.port.try_put(chain.into())
    }

    /// Creates a reader that is polled.
    pub fn reading(&self) -> Reading {
        self.0.port.reading()
    }

    /// Creates a writer that is polled. It takes turns with all other writers.
    pub fn putting(&self) -> Putting {
        self.0.port.putting(true)
    }

    /// Returns the pool for blocks.
    pub fn pool(&self) -> &Pool {
        &self.0.port.pool
    }

    /// Executes a text written to `ctl`: `push NAME ARGUMENTS`, `pop` or `hangup`. Any other text goes to the modules,
    /// from the top on, until one takes it. Fails if the text is invalid or no module takes it.
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

    /// Pushes a module. Fails while a message is incomplete or a module holds blocks, and beyond [`DEEPEST`] modules.
    pub fn push(&self, words: &str) -> Result<(), Fault> {
        let (name, halves) = self.0.modules.open(words)?;
        self.put_on_top(name, halves, |names| self.0.modules.fits(words, names))
    }

    /// Pushes an existing instance like [`Stream::push`].
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
        down.links().insert(0, ModuleLink::new(name, halves.down));
        up.links().push(ModuleLink::new(name, halves.up));
        drop((down, up));
        // The module may have something to send first.
        self.pump();
        Ok(())
    }

    /// Pops the top module. Fails while a message is incomplete or a module holds data.
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
        // Dropping a module may run any code, so do it without the locks.
        drop(gone);
        Ok(())
    }

    /// Ends the stream at both ends. Received data can be read to its end. No more data is accepted.
    pub fn hangup(&self) {
        let mut after = RunActions::default();
        self.0.port.to.hangup(None, &mut after);
        if !self.0.port.from.listen_on(&mut after) {
            self.0.port.from.stop(&mut after);
        }
        after.wake();
    }

    /// Ends writing: every module passes on its data, then the device reads the end. Reading continues.
    pub fn finish(&self) {
        let mut after = RunActions::default();
        self.0.port.to.hangup(None, &mut after);
        after.wake();
    }

    /// Returns the next block or the end, if available now.
    pub fn try_read_block(&self) -> Poll<Result<Option<Block>, Fault>> {
        self.0.port.try_read_block()
    }

    /// Whether either direction has ended or is closing.
    pub fn is_ending(&self) -> bool {
        self.0.port.to.is_ending() || self.0.port.from.is_ending()
    }

    /// Returns the time by which a module needs a call of [`Stream::tick`]. For streams without a device, such as
    /// pipes.
    pub fn deadline(&self) -> Option<Duration> {
        self.0.port.deadline()
    }

    /// Lets the modules continue after a deadline has passed.
    pub fn tick(&self) {
        self.0.port.to.pump();
        self.0.port.from.tick();
    }

    /// Whether a module holds written data.
    pub fn is_holding(&self) -> bool {
        self.0.port.to.lock().is_holding()
    }

    /// Whether a put would have to wait.
    pub fn is_full(&self) -> bool {
        self.0.port.is_full()
    }

    /// Returns the names of the modules from the top on, with their status.
    pub fn modules(&self) -> Vec<(&'static str, String)> {
        self.0.port.to.lock().names().collect()
    }

    /// Formats a line for each module, from the top on: its name and status.
    pub fn status(&self) -> String {
        let line = |(name, says): (&str, String)| match &*says {
            "" => format!("{name}\n"),
            says => format!("{name} {says}\n"),
        };
        self.modules().into_iter().map(line).collect()
    }

    /// Returns the numbers of bytes and blocks that can be read here.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.port.store.counts()
    }

    fn ask_modules(&self, text: &str) -> Result<(), Fault> {
        let (way, mut after) = (&self.0.port.to, RunActions::default());
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
                // The module may now accept data that it has refused.
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

impl Drop for OpenedStream {
    /// Handles the last close. Every module passes on its data, from the process's end to the device's, then both
    /// directions end.
    fn drop(&mut self) {
        let mut after = RunActions::default();
        self.port.to.hangup(None, &mut after);
        if !self.port.from.listen_on(&mut after) {
            self.port.from.abandon(&mut after);
        }
        after.wake();
        self.port.store.clear();
    }
}

impl Device {
    /// Puts a chain up to the process. Waits while the process does not read.
    pub async fn put(&self, chain: impl Into<Chain>) -> Result<(), Fault> {
        self.0.to.put(chain.into()).await
    }

    /// Puts a chain up if there is room now. Otherwise returns it, with an error if there will never be room.
    pub fn try_put(&self, chain: impl Into<Chain>) -> Result<(), (Chain, Option<Fault>)> {
        self.0.to.try_put(chain.into())
    }

    /// Takes the next block from the process. `None` if the process has closed the stream.
    pub async fn take(&self) -> Result<Option<Block>, Fault> {
        self.0.read_block().await
    }

    /// Takes the next block from the process or the end, if available now.
    pub fn try_take(&self) -> Poll<Result<Option<Block>, Fault>> {
        self.0.try_read_block()
    }

    /// Hangs up because the device is gone (`hangup` of the seed). Readers and writers get the error, if there is one.
    pub fn hangup(&self, why: Option<Fault>) {
        self.0.hangup(&why);
    }

    /// Ends the data to the process: every module passes on its data, then the process reads the end. Data from the
    /// process is still taken.
    pub fn finish(&self) {
        let mut after = RunActions::default();
        self.0.to.hangup(None, &mut after);
        after.wake();
    }

    /// Returns the numbers of bytes and blocks that can be taken.
    pub fn waiting(&self) -> (usize, usize) {
        self.0.store.counts()
    }

    /// Creates a polled reader of the process's data.
    pub fn reading(&self) -> Reading {
        self.0.reading()
    }

    /// Creates a polled writer to the process.
    pub fn putting(&self) -> Putting {
        self.0.putting(false)
    }

    /// Returns the time by which a module needs a call of [`Device::tick`].
    pub fn deadline(&self) -> Option<Duration> {
        self.0.deadline()
    }

    /// Lets the modules continue after a deadline has passed, or after an event outside.
    pub fn tick(&self) {
        self.0.from.pump();
        self.0.to.pump();
    }

    /// Returns the pool for blocks.
    pub fn pool(&self) -> &Pool {
        &self.0.pool
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.0.hangup(&None);
    }
}
