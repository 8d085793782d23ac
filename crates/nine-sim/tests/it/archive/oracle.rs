//! The oracle: it records requests and answers, and checks of which states a tree that was read may be.
//!
//! In: starts and ends of operations, trees. Out: violations. An operation takes effect at one moment between its start
//! and its answer. A tree is right if it is the state at one moment, for all clients together.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use nine_fs::Dumped;

use crate::archive::model::Tree;

/// The clients' directories.
pub const DIRS: [&str; 3] = ["c0", "c1", "c2"];
/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// One life of the archive, between two cuts.
pub struct Life {
    begun: u64,
    /// The durable state is at least this recent.
    least: Cell<u64>,
    /// For each client, its operations with the tree after each. The first entry is the initial tree.
    stories: Vec<RefCell<Vec<Moment>>>,
}

struct Moment {
    begun: u64,
    ended: u64,
    tree: Tree,
    what: String,
}

/// A dump with its requirements.
pub struct Kept {
    pub dumped: Dumped,
    /// The dump's moment is between these, in this life.
    window: (u64, u64),
    life: Rc<Life>,
    /// The first contents that were read from it.
    pinned: RefCell<Option<Tree>>,
    pub reads: Cell<u32>,
}

/// The state of the oracle.
pub struct Oracle {
    now: Cell<u64>,
    life: RefCell<Rc<Life>>,
    dumps: RefCell<BTreeMap<u32, Rc<Kept>>>,
}

impl Life {
    fn new(begun: u64, tree: &Tree) -> Self {
        let story = |dir: &&str| {
            let first = Moment { begun, ended: begun, tree: tree.below(dir), what: "as it was".into() };
            RefCell::new(vec![first])
        };
        Self { begun, least: Cell::new(begun), stories: DIRS.iter().map(story).collect() }
    }

    /// Returns, for each client, the times at which this tree may have been the state.
    fn times(&self, tree: &Tree, to: u64) -> Result<Vec<Vec<(u64, u64)>>, String> {
        let mut all = Vec::new();
        for (dir, story) in DIRS.iter().zip(&self.stories) {
            let (read, story) = (tree.below(dir), story.borrow());
            let mut times: Vec<(u64, u64)> = Vec::new();
            for (i, moment) in story.iter().enumerate() {
                if moment.tree.differs(&read).is_none() {
                    times.push((moment.begun, story.get(i + 1).map_or(NEVER, |next| next.ended)));
                }
            }
            if times.is_empty() {
                let last = story.partition_point(|moment| moment.begun <= to);
                let near = story[..last].iter().skip(last.saturating_sub(6)).map(|moment| {
                    format!(
                        "\n  {}..{} {}: {}",
                        moment.begun,
                        moment.ended as i64,
                        moment.what,
                        moment.tree.differs(&read).unwrap_or_default()
                    )
                });
                let nearest: Vec<String> = near.collect();
                return Err(format!(
                    "{dir} was never so ({} names: {:?}); of {} moments the last before {to}:{}",
                    read.names.len(),
                    read.names.keys().take(20).collect::<Vec<_>>(),
                    story.len(),
                    nearest.concat()
                ));
            }
            all.push(times);
        }
        Ok(all)
    }

    /// Checks whether the tree was the state at a moment between these.
    fn judge(&self, tree: &Tree, from: u64, to: u64) -> Result<u64, String> {
        if let Some(path) =
            tree.names.keys().find(|path| !DIRS.contains(&path.split('/').next().unwrap_or_default()))
        {
            return Err(format!("{path:?} is there, and nobody has made it"));
        }
        let all = self.times(tree, to)?;
        let starts = all.iter().flatten().map(|(start, _)| *start).chain([from]);
        let is_in = |at: u64| {
            at >= from
                && at <= to
                && all.iter().all(|times| times.iter().any(|time| time.0 <= at && at <= time.1))
        };
        let found = starts.filter(|at| is_in(*at)).min();
        found.ok_or_else(|| {
            format!("there was no one moment from {from} to {to} at which it was so for all: {all:?}")
        })
    }
}

impl Oracle {
    pub fn new() -> Self {
        let life = RefCell::new(Rc::new(Life::new(0, &Tree::default())));
        Self { now: Cell::new(1), life, dumps: RefCell::default() }
    }

    pub fn tick(&self) -> u64 {
        self.now.set(self.now.get() + 1);
        self.now.get()
    }

    fn life(&self) -> Rc<Life> {
        self.life.borrow().clone()
    }

    /// Returns a client's present tree.
    pub fn tree(&self, client: usize) -> Tree {
        self.life().stories[client].borrow().last().expect("there is one").tree.clone()
    }

    /// A client starts an operation that changes its tree to this one.
    pub fn begins(&self, client: usize, tree: Tree, what: String) {
        let begun = self.tick();
        self.life().stories[client].borrow_mut().push(Moment { begun, ended: NEVER, tree, what });
    }

    /// The operation was answered.
    pub fn ends(&self, client: usize) {
        let now = self.tick();
        self.life().stories[client].borrow_mut().last_mut().expect("there is one").ended = now;
    }

    /// The operation was refused, and has changed nothing.
    pub fn refused(&self, client: usize) {
        self.life().stories[client].borrow_mut().pop();
    }

    /// An operation that started then has made the earlier state durable.
    pub fn durable(&self, begun: u64) {
        let life = self.life();
        life.least.set(life.least.get().max(begun));
    }

    /// A dump requested then was acknowledged.
    pub fn dumped(&self, begun: u64, dumped: Dumped) {
        self.durable(begun);
        let window = (begun, self.tick());
        let kept =
            Kept { dumped, window, life: self.life(), pinned: RefCell::default(), reads: Cell::default() };
        let old = self.dumps.borrow_mut().insert(kept.dumped.generation, Rc::new(kept));
        assert!(old.is_none(), "a generation has two dumps");
    }

    /// Checks the dumps listed at the start of a life: all acknowledged ones must be there.
    fn lists(&self, listed: &[Dumped]) -> Result<(), String> {
        let now = self.tick();
        let mut dumps = self.dumps.borrow_mut();
        for dumped in listed {
            let life = self.life();
            let window = (life.begun, now);
            let kept = dumps.entry(dumped.generation).or_insert_with(|| {
                let (pinned, reads) = Default::default();
                Rc::new(Kept { dumped: dumped.clone(), window, life, pinned, reads })
            });
            if (&kept.dumped.name, kept.dumped.time) != (&dumped.name, dumped.time) {
                return Err(format!("a dump that was {:?} is {dumped:?}", kept.dumped));
            }
        }
        match dumps.keys().find(|generation| listed.iter().all(|dumped| dumped.generation != **generation)) {
            Some(lost) => Err(format!("dump {:?} is lost", dumps[lost].dumped)),
            None => Ok(()),
        }
    }

    pub fn dumps(&self) -> Vec<Rc<Kept>> {
        self.dumps.borrow().values().cloned().collect()
    }

    /// Checks the contents of a dump.
    pub fn judge_dump(&self, kept: &Kept, tree: &Tree) -> Result<(), String> {
        kept.reads.set(kept.reads.get() + 1);
        let mut pinned = kept.pinned.borrow_mut();
        let wrong = match &*pinned {
            Some(pinned) => pinned.differs(tree),
            None => {
                let (from, to) = kept.window;
                kept.life.judge(tree, from, to).err()
            }
        };
        if pinned.is_none() && tree.holes.is_empty() {
            *pinned = Some(tree.clone());
        }
        wrong.map_or(Ok(()), |wrong| {
            Err(format!(
                "dump {:?} of {:?}, in the life from {}: {wrong}",
                kept.dumped, kept.window, kept.life.begun
            ))
        })
    }

    /// After device failures: readable data is of one moment, at least as recent as the durable state. If devices have
    /// lied, nothing is durable except the state at the start of this life.
    pub fn judge_lied_to(&self, tree: &Tree, lied: bool) -> Result<(), String> {
        let life = self.life();
        let from = if lied { life.begun } else { life.least.get() };
        life.judge(tree, from, NEVER).map(drop)
    }

    /// Without active clients: readable data is the present state.
    pub fn judge_now(&self, tree: &Tree) -> Result<(), String> {
        self.life().judge(tree, self.tick(), NEVER).map(drop)
    }

    /// After a cut: checks what is found when the archive is opened again. If it is right, a new life starts with it.
    pub fn judge(&self, tree: &Tree, listed: &[Dumped]) -> Result<(), String> {
        // Unacknowledged dumps belong to the former life.
        let known: Vec<u32> = self.dumps.borrow().keys().copied().collect();
        self.lists(listed)?;
        let life = self.life();
        let mut least = life.least.get();
        for kept in self.dumps.borrow().values().filter(|kept| !known.contains(&kept.dumped.generation)) {
            least = least.max(kept.window.0);
        }
        life.judge(tree, least, NEVER)?;
        let begun = self.tick();
        *self.life.borrow_mut() = Rc::new(Life::new(begun, tree));
        Ok(())
    }
}
