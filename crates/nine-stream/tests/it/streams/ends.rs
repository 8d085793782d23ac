//! Hangups: every kind of end of a stream, in every state.
//!
//! A case is a state and an end. Tasks are polled only when they have been woken, and the clock advances only when a
//! module asks for it. So a task that does not end has missed a wake-up.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nine_stream::{
    Block, CLASSES, Chain, Control, Device, Fault, Halves, Make, Module, Modules, Next, Pass, Stream, pipe,
};

use super::hands::{Task, make, now};
use super::modules::Late;

#[derive(Clone)]
enum End {
    Stream(Stream),
    Device(Rc<Device>),
}

impl End {
    async fn put(&self, chain: Chain) -> Result<(), Fault> {
        match self {
            Self::Stream(stream) => stream.put(chain).await,
            Self::Device(device) => device.put(chain).await,
        }
    }

    async fn next(&self) -> Result<Option<Block>, Fault> {
        match self {
            Self::Stream(stream) => stream.read_block().await,
            Self::Device(device) => device.take().await,
        }
    }

    fn deadline(&self) -> Option<Duration> {
        match self {
            Self::Stream(stream) => stream.deadline(),
            Self::Device(device) => device.deadline(),
        }
    }

    fn tick(&self) {
        match self {
            Self::Stream(stream) => stream.tick(),
            Self::Device(device) => device.tick(),
        }
    }
}

/// The end of a direction, as its reader sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Nothing,
    End,
    Fault,
}

/// The result of a task.
enum Done {
    Read(Result<Option<Vec<u8>>, Fault>),
    Wrote(Result<Vec<u8>, Fault>),
}

struct World {
    make: Make,
    clock: Arc<AtomicU64>,
    ends: [Option<End>; 2],
    /// The end of each task, and whether it reads.
    tasks: Vec<((usize, bool), Task<'static, Done>)>,
    /// The data that each end has certainly sent, and the data it has read.
    sent: [Vec<u8>; 2],
    seen: [Vec<u8>; 2],
    found: [Found; 2],
    /// Memory that a state withholds from the others.
    kept: Vec<Block>,
    last: u8,
}

impl World {
    fn new(has_device: bool) -> Self {
        let late = |_: &str| {
            let half = || Box::new(Late::default());
            Ok(Halves { up: half(), down: half() })
        };
        let hold = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Hold::default()) });
        let pass = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Pass) });
        let modules = Modules::default().with("late", late).with("hold", hold).with("pass", pass);
        let clock = Arc::new(AtomicU64::new(0));
        let read_clock = clock.clone();
        let now = Arc::new(move || Duration::from_millis(read_clock.load(Ordering::Relaxed)));
        let make = Make { clock: now, ..make(100, 4, modules) };
        let ends = if has_device {
            let (stream, device) = Stream::new(&make);
            [End::Stream(stream), End::Device(Rc::new(device))]
        } else {
            let (a, b) = pipe(&make);
            [End::Stream(a), End::Stream(b)]
        };
        let ends = ends.map(Some);
        let (sent, seen) = Default::default();
        let found = [Found::Nothing; 2];
        Self { make, clock, ends, tasks: Vec::new(), sent, seen, found, kept: Vec::new(), last: 0 }
    }

    fn begin(&mut self, side: usize, reads: bool, future: impl Future<Output = Done> + 'static) {
        let mut task = Task::new(future);
        match task.step() {
            Some(done) => self.record(side, done),
            None => self.tasks.push(((side, reads), task)),
        }
    }

    fn waits(&self, side: usize, reads: bool) -> usize {
        self.tasks.iter().filter(|(who, _)| *who == (side, reads)).count()
    }

    fn end(&self, side: usize) -> End {
        self.ends[side].clone().expect("it is there")
    }

    /// Puts a message of this size at one end.
    fn put(&mut self, side: usize, n: usize) {
        let end = self.end(side);
        self.last += 1;
        let data = vec![self.last; n];
        self.begin(side, false, async move {
            let mut chain = Chain::from(Block::from(data.clone()));
            chain.end_message();
            Done::Wrote(end.put(chain).await.map(|()| data))
        });
    }

    /// Puts as many messages as are accepted, and two that wait.
    fn fill(&mut self, side: usize) {
        while self.waits(side, false) < 2 {
            self.put(side, 30);
        }
    }

    /// Writes one message by a stream.
    fn write(&mut self, side: usize, n: usize) {
        let Some(End::Stream(stream)) = self.ends[side].clone() else { panic!("a device does not write") };
        self.last += 1;
        let data = vec![self.last; n];
        self.begin(side, false, async move { Done::Wrote(stream.write(&data).await.map(|_| data)) });
    }

    /// Starts a reader of one block, or of this number of bytes.
    fn read(&mut self, side: usize, want: Option<usize>) {
        let end = self.end(side);
        self.begin(side, true, async move {
            Done::Read(match (want, end) {
                (Some(want), End::Stream(stream)) => {
                    let mut buf = vec![0; want];
                    let n = stream.read(&mut buf).await;
                    n.map(|n| (n > 0).then(|| buf[..n].to_vec()))
                }
                (_, end) => end.next().await.map(|block| block.map(|block| block.data().to_vec())),
            })
        });
    }

    fn push(&mut self, side: usize, words: &str) {
        if let Some(End::Stream(stream)) = &self.ends[side] {
            stream.push(words).expect("pushed");
        }
    }

    fn record(&mut self, side: usize, done: Done) {
        match done {
            Done::Wrote(Ok(data)) => self.sent[side].extend(data),
            Done::Wrote(Err(_)) => {}
            Done::Read(Ok(Some(data))) => {
                assert_eq!(self.found[side], Found::Nothing, "more comes behind the end");
                self.seen[side].extend(data);
            }
            Done::Read(Ok(None)) if self.found[side] != Found::Fault => self.found[side] = Found::End,
            // Three reads find the end, then the next is an error.
            Done::Read(Err(_)) if self.found[side] == Found::End => {}
            Done::Read(_) => self.found[side] = Found::Fault,
        }
    }

    /// Polls the woken tasks until none is left, and advances the clock to the modules' deadlines.
    fn run(&mut self) {
        for _ in 0..10_000 {
            if let Some(at) = self.tasks.iter().position(|(_, task)| task.is_woken()) {
                let (side, _) = self.tasks[at].0;
                if let Some(done) = self.tasks[at].1.step() {
                    self.tasks.remove(at);
                    self.record(side, done);
                }
                continue;
            }
            let ends = || self.ends.iter().flatten();
            let Some(due) = ends().filter_map(End::deadline).min() else { return };
            self.clock.fetch_max(due.as_millis() as u64, Ordering::Relaxed);
            ends().filter(|end| end.deadline().is_some_and(|at| at <= due)).for_each(End::tick);
        }
        panic!("it never comes to rest");
    }

    /// Reads at an end until no data is left, or to the end. Waiting readers there are cancelled.
    fn drain(&mut self, side: usize) {
        while self.ends[side].is_some() && self.found[side] == Found::Nothing {
            self.tasks.retain(|(who, _)| *who != (side, true));
            self.read(side, None);
            self.run();
            if self.waits(side, true) > 0 {
                self.tasks.retain(|(who, _)| *who != (side, true));
                return;
            }
        }
    }

    fn drop_end(&mut self, side: usize) {
        self.tasks.retain(|((of, _), _)| *of != side);
        self.ends[side] = None;
    }
}

/// Holds everything until it is closed or gets the text `go`.
#[derive(Default)]
struct Hold(VecDeque<Chain>);

impl Module for Hold {
    fn put(&mut self, chain: Chain, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.0.push_back(chain);
        Ok(())
    }

    fn holds(&self) -> bool {
        !self.0.is_empty()
    }

    fn control(&mut self, text: &str, next: &mut Next<'_, '_>) -> Control {
        if text != "go" {
            return Control::NotMine;
        }
        self.0.drain(..).for_each(|chain| next.put(chain));
        Control::Taken
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.0.drain(..).for_each(|chain| next.put(chain));
        Ok(())
    }
}

/// Its name, whether the first end is then in the middle of a message, and the way to reach it.
type State = (&'static str, bool, fn(&mut World));

const STATES: [State; 14] = [
    ("nothing has happened", false, |_| {}),
    ("data waits", false, |world| {
        world.put(0, 10);
        world.put(0, 0);
        world.put(0, 20);
    }),
    ("data waits both ways", false, |world| [0, 1].into_iter().for_each(|side| world.put(side, 50))),
    ("readers wait at both ends", false, |world| {
        [0, 1, 0, 1].into_iter().for_each(|side| world.read(side, Some(10)));
    }),
    ("writers wait at both ends", false, |world| (0..2).for_each(|side| world.fill(side))),
    ("readers wait and writers too", false, |world| {
        world.read(0, None);
        world.fill(0);
        world.read(0, Some(20));
    }),
    ("half a message is read, a reader waits for more and one for his turn", false, |world| {
        world.put(0, 10);
        world.read(1, Some(4));
        let end = world.end(0);
        // No message ends with it.
        let part = Task::new(async move { end.put(Block::from(vec![9; 5]).into()).await }).step();
        assert!(matches!(part, Some(Ok(()))));
        world.sent[0].extend([9; 5]);
        world.read(1, Some(6));
        world.read(1, Some(30));
        world.read(1, Some(30));
    }),
    ("modules are full", false, |world| {
        for side in [0, 1, 0] {
            world.push(side, "pass");
        }
        (0..2).for_each(|side| world.fill(side));
    }),
    ("a module holds", false, |world| {
        world.push(0, "hold");
        world.put(0, 10);
        world.read(1, None);
    }),
    ("a module between others holds more than there is room for", false, |world| {
        ["pass", "hold", "pass"].iter().for_each(|module| world.push(0, module));
        (0..20).for_each(|_| world.put(0, 30));
        world.read(1, Some(50));
    }),
    ("a module waits for its time", false, |world| {
        world.push(0, "late");
        world.put(0, 10);
        world.put(1, 10);
        world.read(1, Some(10));
    }),
    ("modules wait for their time, and are full", false, |world| {
        world.push(0, "late");
        world.push(1, "late");
        (0..2).for_each(|side| world.fill(side));
    }),
    ("a write is in the middle, and modules wait the other way", true, |world| {
        world.push(0, "pass");
        world.fill(1);
        world.write(0, 200_000);
        world.put(0, 10);
    }),
    ("a writer waits for memory, and another for his turn", false, |world| {
        let pool = world.make.pool.clone();
        world.kept = std::iter::from_fn(|| pool.try_alloc(CLASSES[6])).collect();
        world.kept.extend(std::iter::from_fn(|| pool.try_alloc(256)));
        world.write(0, 10);
        world.put(0, 10);
    }),
];

/// The side that ends the stream, and the kind of end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum By {
    Finish(usize),
    Hangup(usize),
    Drop(usize),
    /// The device hangs up with an error.
    Fault,
}

impl World {
    fn stop(&mut self, by: By) {
        match by {
            By::Finish(side) => match self.end(side) {
                End::Stream(stream) => stream.finish(),
                End::Device(device) => device.finish(),
            },
            By::Hangup(side) => match self.end(side) {
                End::Stream(stream) => stream.hangup(),
                End::Device(device) => device.hangup(None),
            },
            By::Drop(side) => self.drop_end(side),
            By::Fault => match self.end(1) {
                End::Stream(_) => panic!("only devices fail"),
                End::Device(device) => device.hangup(Some(Fault::new("it broke"))),
            },
        }
    }
}

fn case(has_device: bool, state: usize, by: By) {
    let (name, mid, prepare) = STATES[state];
    let what = format!("{name}, then {by:?}{}", if has_device { " with a device" } else { "" });
    let mut world = World::new(has_device);
    prepare(&mut world);
    world.stop(by);
    world.run();
    // For the direction from each end: whether it goes on, and whether all earlier data must arrive.
    let ways = [0, 1].map(|from| match by {
        By::Finish(side) => (side != from, true),
        By::Hangup(side) | By::Drop(side) => (false, side == from),
        By::Fault => (false, false),
    });
    for (from, (alive, _)) in ways.into_iter().enumerate() {
        let waits = (world.waits(from, false), world.waits(1 - from, true));
        assert!(alive || waits == (0, 0), "{what}: of {from}, {waits:?} writers and readers wait for ever");
    }
    world.kept.clear();
    if let Some(End::Stream(stream)) = &world.ends[0] {
        // Release the data that is held for good.
        let _ = stream.control(b"go");
    }
    [0, 1, 0].into_iter().for_each(|side| world.drain(side));
    for (from, (alive, whole)) in ways.into_iter().enumerate() {
        let (sent, seen) = (&world.sent[from], &world.seen[1 - from]);
        if world.ends[1 - from].is_none() {
            continue;
        }
        // Half a message must not look like a whole one.
        let broken = mid && from == 0 && !alive;
        let follows =
            if broken { seen.starts_with(sent) || sent.starts_with(seen) } else { sent.starts_with(seen) };
        assert!(follows, "{what}: from {from} came {seen:?} instead of {sent:?}");
        assert!(
            broken || !whole || seen == sent,
            "{what}: from {from} came {} of {}",
            seen.len(),
            sent.len()
        );
        let found: &[Found] = match (alive, by) {
            (true, _) => &[Found::Nothing],
            (_, By::Fault) => &[Found::Fault],
            // It may have ended before half of the message had arrived.
            (_, By::Hangup(1)) if broken => &[Found::End, Found::Fault],
            _ if broken => &[Found::Fault],
            _ => &[Found::End],
        };
        assert!(found.contains(&world.found[1 - from]), "{what}: from {from}: {:?}", world.found[1 - from]);
    }
    let waits = world.tasks.iter().map(|(who, _)| who);
    assert_eq!(waits.count(), 0, "{what}: there is room, and somebody waits");
    for side in 0..2 {
        let (alive, _) = ways[1 - side];
        if !alive || world.ends[1 - side].is_none() {
            continue;
        }
        // The other direction goes on as before.
        world.put(1 - side, 7);
        if let Some(End::Stream(stream)) = &world.ends[0] {
            let _ = stream.control(b"go");
        }
        world.drain(side);
        assert!(world.seen[side].ends_with(&[world.last; 7]), "{what}");
        assert_eq!(
            (world.found[side], world.seen[side].len()),
            (Found::Nothing, world.sent[1 - side].len()),
            "{what}"
        );
    }
    world.tasks.clear();
    world.ends = [None, None];
    let all: Vec<_> = std::iter::from_fn(|| world.make.pool.try_alloc(CLASSES[6])).collect();
    assert_eq!(all.len(), 4, "{what}: memory has not come back");
}

const ALL: [By; 6] = [By::Finish(0), By::Finish(1), By::Hangup(0), By::Hangup(1), By::Drop(0), By::Drop(1)];

#[test]
fn a_pipe_ends_well_in_every_state() {
    for state in 0..STATES.len() {
        for by in ALL {
            case(false, state, by);
        }
    }
}

#[test]
fn a_device_ends_well_in_every_state() {
    for state in 0..STATES.len() {
        for by in ALL.into_iter().chain([By::Fault]) {
            case(true, state, by);
        }
    }
}

#[test]
fn behind_the_end_no_module_says_anything() {
    let (a, b) = pipe(&World::new(false).make);
    a.push("hold").unwrap();
    now(a.write(b"held")).unwrap();
    a.hangup();
    assert_eq!(now(b.read_block()).unwrap().unwrap().data(), b"held");
    assert!(now(b.read_block()).unwrap().is_none());
    assert_eq!(a.control(b"go").unwrap_err().to_string(), "the stream is hung up");
    assert!(now(b.read_block()).unwrap().is_none());
    assert_eq!(a.deadline(), None);
    assert!(!a.is_holding());
}

/// Like a handshake, waits for data of the other end before it passes anything on. Or holds one block until then.
struct Shake {
    holds: bool,
    held: Option<Chain>,
}

impl Module for Shake {
    fn put(&mut self, chain: Chain, _: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.held = Some(chain);
        Ok(())
    }

    fn is_full(&self) -> bool {
        !self.holds || self.held.is_some()
    }

    fn holds(&self) -> bool {
        self.held.is_some()
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(Block::from(b"bye".to_vec()));
        Ok(())
    }
}

/// Sends a message when it is closed.
struct Says;

impl Module for Says {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(chain);
        Ok(())
    }

    fn close(&mut self, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        next.put(Block::from(b"last words".to_vec()));
        Ok(())
    }
}

#[test]
fn what_waits_before_who_never_takes_it_does_not_keep_the_end_from_anybody() {
    for has_device in [false, true] {
        for (by, puts) in [By::Hangup(0), By::Hangup(1), By::Drop(0), By::Drop(1)]
            .map(|by| [(by, 0), (by, 1), (by, 2)])
            .concat()
        {
            let what = format!("{by:?}, device: {has_device}, puts: {puts}");
            // It releases one block, and waits for the reply of the other end.
            let half = |_: &str| {
                Ok(Halves { up: Box::new(Pass), down: Box::new(Shake { holds: true, held: None }) })
            };
            let says = |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Says) });
            let mut world = World::new(has_device);
            world.make.modules = Modules::default().with("shake", half).with("says", says);
            world.ends = if has_device {
                let (stream, device) = Stream::new(&world.make);
                [End::Stream(stream), End::Device(Rc::new(device))].map(Some)
            } else {
                let (a, b) = pipe(&world.make);
                [End::Stream(a), End::Stream(b)].map(Some)
            };
            world.push(0, "shake");
            world.push(0, "says");
            (0..puts).for_each(|_| world.put(0, 10));
            world.read(1, None);
            world.stop(by);
            world.run();
            [0, 1].into_iter().for_each(|side| world.drain(side));
            assert!(world.tasks.is_empty(), "{what}: somebody waits for ever");
            if world.ends[1].is_some() && by != By::Hangup(1) {
                assert_eq!(world.found[1], Found::Fault, "{what}");
            }
        }
    }
}

#[test]
fn who_waits_for_what_never_comes_does_not_keep_the_end_from_anybody() {
    for (has_device, holds) in [(false, false), (false, true), (true, false), (true, true)] {
        for by in [By::Hangup(0), By::Hangup(1), By::Drop(0), By::Drop(1)] {
            let what = format!("{by:?}, device: {has_device}, holds: {holds}");
            let shake =
                move |_: &str| Ok(Halves { up: Box::new(Pass), down: Box::new(Shake { holds, held: None }) });
            let mut world = World::new(has_device);
            world.make.modules = Modules::default().with("shake", shake);
            world.ends = if has_device {
                let (stream, device) = Stream::new(&world.make);
                [End::Stream(stream), End::Device(Rc::new(device))].map(Some)
            } else {
                let (a, b) = pipe(&world.make);
                [End::Stream(a), End::Stream(b)].map(Some)
            };
            world.push(0, "shake");
            world.put(0, 10);
            world.put(0, 10);
            world.read(1, None);
            world.stop(by);
            world.run();
            [0, 1].into_iter().for_each(|side| world.drain(side));
            assert!(world.tasks.is_empty(), "{what}: somebody waits for ever");
            if world.ends[1].is_some() && by != By::Hangup(1) {
                let (found, seen): (_, &[u8]) =
                    if holds { (Found::Fault, b"bye") } else { (Found::End, b"bye") };
                assert_eq!((world.found[1], &world.seen[1][..]), (found, seen), "{what}");
            }
        }
    }
}
