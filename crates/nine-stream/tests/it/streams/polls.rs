//! Readers and writers that keep their place between polls, and modules that need data after the process has gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_stream::{Block, Chain, Fault, Halves, Limit, Make, Module, Next, Pool, Putting, Reading, Stream};

use crate::streams::hands::{Task, Woken};

fn message(bytes: &[u8]) -> Chain {
    let mut block = Block::from(bytes.to_vec());
    block.delim = true;
    block.into()
}

fn narrow() -> (Stream, nine_stream::Device) {
    Stream::new(&Make { limit: Limit { bytes: 4, blocks: 4 }, ..Make::new(Pool::new(0)) })
}

fn read(reading: &mut Reading, waker: &Waker, want: Option<usize>) -> Poll<Option<Vec<u8>>> {
    let polled = reading.poll(&mut Context::from_waker(waker), want);
    polled.map(|taken| {
        taken.expect("no fault").map(|chain| chain.flat_map(|block| block.data().to_vec()).collect())
    })
}

fn put(putting: &mut Putting, waker: &Waker, chain: &mut Option<Chain>) -> Poll<Result<(), Fault>> {
    putting.poll(&mut Context::from_waker(waker), chain)
}

#[test]
fn a_reader_keeps_its_place_between_polls_and_leaves_it_when_it_goes() {
    let (stream, device) = narrow();
    let (first, second) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    let (mut a, mut b) = (stream.reading(), stream.reading());
    assert!(read(&mut a, &first.clone().into(), Some(9)).is_pending());
    assert!(read(&mut b, &second.clone().into(), Some(9)).is_pending());
    device.try_put(message(b"one")).expect("room");
    assert_eq!((first.wakes(), second.wakes()), (1, 0));
    assert!(read(&mut b, &second.clone().into(), Some(9)).is_pending(), "it is the turn of the first");
    // The first is dropped after its wake-up. The next one does not lose it.
    drop(a);
    assert_eq!(second.wakes(), 1);
    assert_eq!(read(&mut b, &second.clone().into(), Some(2)), Poll::Ready(Some(b"on".to_vec())));
    assert_eq!(read(&mut b, &second.clone().into(), None), Poll::Ready(Some(b"e".to_vec())));
    assert!(read(&mut b, &second.clone().into(), None).is_pending());
    drop(device);
    assert_eq!(read(&mut b, &second.clone().into(), None), Poll::Ready(None));
}

#[test]
fn a_writer_keeps_its_turn_and_gives_it_up_when_it_goes() {
    let (stream, device) = narrow();
    let (first, second) = (Arc::<Woken>::default(), Arc::<Woken>::default());
    let (mut a, mut b) = (stream.putting(), stream.putting());
    let (mut one, mut two) = (Some(message(b"1111")), Some(message(b"2")));
    assert!(matches!(put(&mut a, &first.clone().into(), &mut one), Poll::Ready(Ok(()))));
    assert!(one.is_none());
    one = Some(message(b"1"));
    assert!(put(&mut a, &first.clone().into(), &mut one).is_pending() && one.is_some());
    assert!(put(&mut b, &second.clone().into(), &mut two).is_pending());
    let mut task = Task::waiting(stream.write(b"3"));
    drop(a);
    assert_eq!(second.wakes(), 1, "the turn goes to the next one");
    assert!(put(&mut b, &second.clone().into(), &mut two).is_pending(), "there is still no room");
    assert!(matches!(device.try_take(), Poll::Ready(Ok(Some(block))) if block.data() == b"1111"));
    assert_eq!(second.wakes(), 2);
    assert!(matches!(put(&mut b, &second.clone().into(), &mut two), Poll::Ready(Ok(()))));
    assert!(task.is_woken());
    assert!(matches!(task.step(), Some(Ok(1))));
    for seen in [b"2", b"3"] {
        assert!(matches!(device.try_take(), Poll::Ready(Ok(Some(block))) if block.data() == seen));
    }
}

#[test]
fn the_device_reads_and_puts_by_polls() {
    let (stream, device) = narrow();
    let woken = Arc::<Woken>::default();
    let (mut taking, mut putting) = (device.reading(), device.putting());
    assert!(read(&mut taking, &woken.clone().into(), Some(usize::MAX)).is_pending());
    stream.try_put(message(b"down")).expect("room");
    assert_eq!(woken.wakes(), 1);
    assert_eq!(
        read(&mut taking, &woken.clone().into(), Some(usize::MAX)),
        Poll::Ready(Some(b"down".to_vec()))
    );
    let mut up = Some(message(b"four"));
    assert!(matches!(put(&mut putting, &woken.clone().into(), &mut up), Poll::Ready(Ok(()))));
    up = Some(message(b"five"));
    assert!(put(&mut putting, &woken.clone().into(), &mut up).is_pending());
    let mut reading = stream.reading();
    assert_eq!(read(&mut reading, Waker::noop(), None), Poll::Ready(Some(b"four".to_vec())));
    assert_eq!(woken.wakes(), 2);
    stream.hangup();
    assert!(matches!(put(&mut putting, &woken.clone().into(), &mut up), Poll::Ready(Err(_))));
}

/// Holds its data until an "ack" comes up.
#[derive(Clone, Default)]
struct Asks(Arc<AtomicBool>);

struct AskUp(Asks);
struct AskDown(Asks);

impl Module for AskUp {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if chain.iter().any(|block| block.data() == b"ack") {
            self.0.0.store(false, Ordering::Relaxed);
            next.kick();
            return Ok(());
        }
        // Whether it is accepted or not: acknowledgements still arrive.
        let _ = next.try_put(chain);
        Ok(())
    }
}

impl Module for AskDown {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        self.0.0.store(true, Ordering::Relaxed);
        next.put(chain);
        Ok(())
    }

    fn holds(&self) -> bool {
        self.0.0.load(Ordering::Relaxed)
    }

    fn hears(&self) -> bool {
        self.holds()
    }

    fn deadline(&self) -> Option<Duration> {
        self.holds().then_some(Duration::from_secs(1))
    }
}

#[test]
fn a_module_that_hears_is_heard_when_the_process_has_gone() {
    for hangs_up in [false, true] {
        let (stream, device) = narrow();
        let asks = Asks::default();
        stream
            .push_halves("asks", Halves { up: Box::new(AskUp(asks.clone())), down: Box::new(AskDown(asks)) })
            .expect("pushed");
        stream.try_put(message(b"data")).expect("room");
        if hangs_up {
            stream.hangup();
        }
        drop(stream);
        assert!(matches!(device.try_take(), Poll::Ready(Ok(Some(_)))));
        assert!(device.try_take().is_pending(), "it waits for its acknowledgement");
        for _ in 0..9 {
            device.try_put(message(b"unread")).expect("nobody reads, so it is swallowed");
        }
        device.try_put(message(b"ack")).expect("heard");
        assert!(matches!(device.try_take(), Poll::Ready(Ok(None))));
        assert!(device.try_put(message(b"late")).is_err());
    }
}

#[test]
fn what_is_not_taken_comes_back_and_does_not_dam_the_module() {
    let (stream, device) = narrow();
    let asks = Asks::default();
    let halves = Halves { up: Box::new(AskUp(asks.clone())), down: Box::new(AskDown(asks.clone())) };
    stream.push_halves("asks", halves).expect("pushed");
    stream.try_put(message(b"data")).expect("room");
    for _ in 0..9 {
        device.try_put(message(b"more")).expect("the module takes it always");
    }
    assert_eq!(stream.waiting(), (4, 1));
    device.try_put(message(b"ack")).expect("heard, though nobody reads");
    assert!(!asks.0.load(Ordering::Relaxed));
}

/// Ends its direction when it receives "end".
struct Ends;

impl Module for Ends {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> Result<(), Fault> {
        if chain.iter().any(|block| block.data() == b"end") {
            next.finish();
            return Ok(());
        }
        next.put(chain);
        Ok(())
    }
}

#[test]
fn a_module_ends_its_direction_behind_what_it_has_passed_on() {
    let (stream, device) = narrow();
    stream
        .push_halves("ends", Halves { up: Box::new(Ends), down: Box::new(nine_stream::Pass) })
        .expect("pushed");
    device.try_put(message(b"last")).expect("room");
    device.try_put(message(b"word")).expect("it waits in the module");
    assert!(device.try_put(message(b"end")).is_err(), "not before that has gone");
    let mut reading = stream.reading();
    assert_eq!(read(&mut reading, Waker::noop(), None), Poll::Ready(Some(b"last".to_vec())));
    assert!(device.try_put(message(b"end")).is_err(), "it is heard, and the end of this direction");
    assert_eq!(read(&mut reading, Waker::noop(), None), Poll::Ready(Some(b"word".to_vec())));
    assert_eq!(read(&mut reading, Waker::noop(), None), Poll::Ready(None));
    stream.try_put(message(b"down")).expect("the other direction goes on");
}
