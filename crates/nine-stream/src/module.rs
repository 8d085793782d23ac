//! Processing modules between the two ends of a stream.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::block::Chain;
use crate::queue::Queue;
use crate::way::{ModuleLink, ModuleRun, pass};

/// One half of a module instance: the put procedure of one direction, and its state. The halves must lock the state
/// that they share. They must release the lock before they pass data on: the next module may call back through the
/// other direction.
///
/// Concurrency: a direction runs one put at a time, in the order of the calls. The other half may run at the same time.
/// A put must not wait or block: data that cannot be passed on stays in its queue.
pub trait Module: Send {
    /// Processes a chain and passes on the result. An error hangs up the stream.
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault>;

    /// Whether the module refuses data until an event (a handshake, a timer, an acknowledgement). Refused callers are
    /// woken after [`Module::resume`].
    fn is_full(&self) -> bool {
        false
    }

    /// Continues when there is room behind the module, its [`Module::deadline`] has passed, or the other half has
    /// called [`Next::kick`].
    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let _ = next;
        Ok(())
    }

    /// Whether the module holds a part that it cannot pass on yet. It is not popped until the rest has come.
    fn is_mid(&self) -> bool {
        false
    }

    /// Returns the time by which [`Module::resume`] must be called, on the clock of the stream.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Handles a text written to the stream's `ctl`.
    fn control(&mut self, text: &str, next: &mut Next<'_, '_>) -> Control {
        let _ = (text, next);
        Control::NotMine
    }

    /// Whether the module holds data that it has not passed on. Until it has, the module is not popped, and a closed
    /// stream stays alive.
    fn holds(&self) -> bool {
        false
    }

    /// Whether the data waits only for room behind the module. A reader then gets it, even if everything else is gone.
    fn waits_for_room(&self) -> bool {
        false
    }

    /// Whether the closed module still needs data of the other direction (acknowledgements). That direction then stays
    /// alive after the process has gone. The module must have a [`Module::deadline`], so that it ends by itself.
    fn hears(&self) -> bool {
        false
    }

    /// Passes on the remaining data, because no more will be put. An error means that data is missing; the reader gets
    /// the error.
    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let _ = next;
        Ok(())
    }

    /// Returns one line for `status`.
    fn status(&self) -> String {
        String::new()
    }
}

/// A module's answer to a control text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// The text is not for this module. Another one may know it.
    NotMine,
    /// The text was executed.
    Taken,
    /// The text is for this module and is invalid.
    Refused(Fault),
}

/// The reason why a stream or module failed, or why a control text is refused: a text for people.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault(pub Arc<str>);

impl Fault {
    /// Creates an error with this text.
    pub fn new(text: impl AsRef<str>) -> Self {
        Self(text.as_ref().into())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", &*self.0)
    }
}

impl core::error::Error for Fault {}

/// The modules and the end behind a module, for its put procedure.
pub struct Next<'n, 'r> {
    pub(crate) queue: &'n mut Queue,
    pub(crate) rest: &'n mut [ModuleLink],
    pub(crate) run: &'n mut ModuleRun<'r>,
}

impl Next<'_, '_> {
    /// Passes a chain on. If it is refused, it waits in this module's queue. The module gets no more data until it has
    /// left.
    pub fn put(&mut self, chain: impl Into<Chain>) {
        let chain = chain.into();
        let refused = match self.queue.is_empty() {
            true => pass(self.rest, self.run, chain).err(),
            false => Some(chain),
        };
        if let Some(chain) = refused {
            self.queue.force(chain);
        }
    }

    /// Passes a chain on if it is accepted now. Otherwise returns it, and [`Module::resume`] is called when there is
    /// room. This is for modules that must receive data even while nothing is accepted behind them, such as
    /// acknowledgements for a window.
    pub fn try_put(&mut self, chain: impl Into<Chain>) -> Result<(), Chain> {
        let chain = chain.into();
        match self.queue.is_empty() {
            true => pass(self.rest, self.run, chain),
            false => Err(chain),
        }
    }

    /// Ends this direction in good order: the passed data arrives, then the end.
    pub fn finish(&mut self) {
        self.run.after.finished = true;
    }

    /// Whether data waits in this module's queue. A module that expands data must then stop, and continue in
    /// [`Module::resume`].
    pub fn is_full(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Requests a call of the other half's [`Module::resume`] after this run.
    pub fn kick(&mut self) {
        self.run.after.kicked = true;
    }

    /// Returns the time of the stream's clock.
    pub fn now(&self) -> Duration {
        (self.run.clock)()
    }
}

/// The two halves of a module instance.
pub struct Halves {
    /// From the device to the process.
    pub up: Box<dyn Module>,
    /// From the process to the device.
    pub down: Box<dyn Module>,
}

/// A kind of module, which `push NAME` instantiates.
pub trait ModuleKind: Send + Sync {
    /// Creates an instance. `arguments` is the text after the name.
    fn open(&self, arguments: &str) -> Result<Halves, Fault>;

    /// Whether a stream may have at most one instance. For modules that expand data: several would multiply the
    /// expansion.
    fn is_single(&self) -> bool {
        false
    }

    /// Returns the maximum number of bytes that an instance holds beside the blocks that pass: 64 KiB by default.
    fn cost(&self, arguments: &str) -> usize {
        let _ = arguments;
        64 << 10
    }
}

impl<F: Fn(&str) -> Result<Halves, Fault> + Send + Sync> ModuleKind for F {
    fn open(&self, arguments: &str) -> Result<Halves, Fault> {
        self(arguments)
    }
}

/// Kinds of modules, by name.
#[derive(Clone, Default)]
pub struct Modules(BTreeMap<&'static str, Arc<dyn ModuleKind>>);

impl Modules {
    /// Adds a kind, or replaces the one of that name.
    #[must_use]
    pub fn with(mut self, name: &'static str, kind: impl ModuleKind + 'static) -> Self {
        self.0.insert(name, Arc::new(kind));
        self
    }

    /// Creates an instance from `NAME ARGUMENTS`.
    pub fn open(&self, words: &str) -> Result<(&'static str, Halves), Fault> {
        let (name, kind, arguments) = self.find(words)?;
        Ok((name, kind.open(arguments)?))
    }

    /// Checks whether it may be pushed on a stream with these modules.
    pub fn fits<'t>(&self, words: &str, mut there: impl Iterator<Item = &'t str>) -> Result<(), Fault> {
        let (name, kind, _) = self.find(words)?;
        match kind.is_single() && there.any(|other| other == name) {
            true => Err(Fault::new(format!("{name} is there already"))),
            false => Ok(()),
        }
    }

    /// Returns the maximum memory of an instance, in bytes ([`ModuleKind::cost`]).
    pub fn cost(&self, words: &str) -> Result<usize, Fault> {
        let (_, kind, arguments) = self.find(words)?;
        Ok(kind.cost(arguments))
    }

    fn find<'a>(&self, words: &'a str) -> Result<(&'static str, &dyn ModuleKind, &'a str), Fault> {
        let words = words.trim();
        let (name, arguments) = words.split_once(' ').unwrap_or((words, ""));
        let Some((name, kind)) = self.0.get_key_value(name) else {
            let known = self.0.keys().fold(String::new(), |known, name| known + " " + name);
            return Err(Fault::new(format!("no module is called {name:?}: there are{known}")));
        };
        Ok((name, &**kind, arguments.trim()))
    }
}

/// A half that passes all data on unchanged.
pub struct Pass;

impl Module for Pass {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(chain);
        Ok(())
    }
}
