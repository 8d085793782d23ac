//! Processing modules: what is between the two ends of a stream.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::time::Duration;

use crate::block::Chain;
use crate::queue::Queue;
use crate::way::{Link, Run, pass};

/// One half of an instance of a module: its put procedure for one direction, and what belongs to it. What the halves
/// share is theirs to lock, and never while they pass something on: the next one may come back by another way.
///
/// Concurrency: one put of a direction is under way at a time, in the order in which they were made; the other half may
/// run at the same time. A put neither waits nor blocks: what it cannot pass on now stays in its queue.
pub trait Module: Send {
    /// Takes a chain and passes on what comes of it. An error hangs up the stream.
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault>;

    /// Takes no more for now: it holds blocks until something happens (a handshake, a timer, an acknowledgement).
    /// Who is refused is woken after [`Module::resume`].
    fn is_full(&self) -> bool {
        false
    }

    /// There is room behind it again, its [`Module::deadline`] has come, or the other half has called [`Next::kick`].
    fn resume(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let _ = next;
        Ok(())
    }

    /// Whether it has a part of something that cannot be passed on yet: until the rest has come it is not popped.
    fn is_mid(&self) -> bool {
        false
    }

    /// When [`Module::resume`] is to be called at the latest, on the clock of the stream.
    fn deadline(&self) -> Option<Duration> {
        None
    }

    /// Looks at a text that somebody has written to the stream's `ctl`.
    fn control(&mut self, text: &str, next: &mut Next<'_, '_>) -> Control {
        let _ = (text, next);
        Control::NotMine
    }

    /// Whether something that was put has not been passed on: until it has, the module is not popped, and a stream that
    /// is closed lives on.
    fn holds(&self) -> bool {
        false
    }

    /// Whether what it holds waits for nothing but room behind it: who reads gets it, also when all else has gone.
    fn waits_for_room(&self) -> bool {
        false
    }

    /// Whether, closed, it still needs what comes the other way (acknowledgements): until it does not, that way lives
    /// on below the process that has gone. It has a [`Module::deadline`] then, so that it ends by itself.
    fn hears(&self) -> bool {
        false
    }

    /// Nothing more will be put: passes on what it still holds. An error where something is missing, and who reads is
    /// told.
    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        let _ = next;
        Ok(())
    }

    /// One line for `status`.
    fn status(&self) -> String {
        String::new()
    }
}

/// What a module says to a control text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Another module may know it.
    NotMine,
    /// It is done.
    Taken,
    /// It is meant for this module, and wrong.
    Refused(Fault),
}

/// Why a stream or a module cannot go on, or a control text is refused: text for people.
#[derive(Clone, PartialEq, Eq)]
pub struct Fault(pub Arc<str>);

impl Fault {
    /// With this text.
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

/// What is behind a module, as seen by its put procedure.
pub struct Next<'n, 'r> {
    pub(crate) queue: &'n mut Queue,
    pub(crate) rest: &'n mut [Link],
    pub(crate) run: &'n mut Run<'r>,
}

impl Next<'_, '_> {
    /// Passes a chain on. What is refused waits in this module's queue, and nothing is put to the module until it has
    /// gone.
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

    /// Passes a chain on if it is taken now; else it comes back, and [`Module::resume`] is called when there is room.
    /// For modules that must be put to also while nothing is taken behind them: one with a window, which hears
    /// acknowledgements.
    pub fn try_put(&mut self, chain: impl Into<Chain>) -> Result<(), Chain> {
        let chain = chain.into();
        match self.queue.is_empty() {
            true => pass(self.rest, self.run, chain),
            false => Err(chain),
        }
    }

    /// This direction ends here in good order: what has been passed on arrives, then the end.
    pub fn finish(&mut self) {
        self.run.after.finished = true;
    }

    /// Whether something waits in this module's queue: a module that makes much of little stops here, and goes on in
    /// [`Module::resume`].
    pub fn is_full(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The other half's [`Module::resume`] is called when this is over.
    pub fn kick(&mut self) {
        self.run.after.kicked = true;
    }

    /// The stream's clock.
    pub fn now(&self) -> Duration {
        (self.run.clock)()
    }
}

/// The two halves of an instance.
pub struct Halves {
    /// From the device to the process.
    pub up: Box<dyn Module>,
    /// From the process to the device.
    pub down: Box<dyn Module>,
}

/// A kind of module: what `push NAME` makes instances of.
pub trait ModuleKind: Send + Sync {
    /// An instance; `arguments` is what follows the name.
    fn open(&self, arguments: &str) -> Result<Halves, Fault>;

    /// Whether a stream may have one of it at most: what one makes of little another would make of that, without end.
    fn is_single(&self) -> bool {
        false
    }

    /// Bytes that an instance may hold for itself, beside the blocks that pass: 64 KiB.
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

/// Kinds of modules by their names.
#[derive(Clone, Default)]
pub struct Modules(BTreeMap<&'static str, Arc<dyn ModuleKind>>);

impl Modules {
    /// The same with one more, or another one of that name.
    #[must_use]
    pub fn with(mut self, name: &'static str, kind: impl ModuleKind + 'static) -> Self {
        self.0.insert(name, Arc::new(kind));
        self
    }

    /// An instance of `NAME ARGUMENTS`.
    pub fn open(&self, words: &str) -> Result<(&'static str, Halves), Fault> {
        let (name, kind, arguments) = self.find(words)?;
        Ok((name, kind.open(arguments)?))
    }

    /// Whether it may be pushed on a stream that has these modules.
    pub fn fits<'t>(&self, words: &str, mut there: impl Iterator<Item = &'t str>) -> Result<(), Fault> {
        let (name, kind, _) = self.find(words)?;
        match kind.is_single() && there.any(|other| other == name) {
            true => Err(Fault::new(format!("{name} is there already"))),
            false => Ok(()),
        }
    }

    /// Bytes that an instance may hold ([`ModuleKind::cost`]).
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

/// A half that passes on what it gets.
pub struct Pass;

impl Module for Pass {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(chain);
        Ok(())
    }
}
