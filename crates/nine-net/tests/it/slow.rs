//! A slow reader and a fast writer, with modules between them that delay, compress and wait; and the state after one of
//! them has failed.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::modules::modules;
use nine_net::{Clock, Conversation, Peer, Pipe, Proof, Timer, Transport};
use nine_stream::{Block, CLASSES, Limit, Make, Pool, Stream};

const BYTES: usize = 64 << 10;
const BLOCKS: usize = 32;
/// Bytes of a put.
const LONGEST: usize = 4096;
/// Bytes that zstd passes on at once.
const PIECE: usize = 64 << 10;

/// A clock in microseconds that the test controls.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn entropy(&self, _: &mut [u8]) {}

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let hand = self.clone();
        Box::pin(std::future::poll_fn(
            move |_| if hand.now() >= deadline { Poll::Ready(()) } else { Poll::Pending },
        ))
    }
}

/// Writes whenever possible, and reads one block in ten steps. Returns how many writes were accepted and refused.
fn fast_against_slow(push: &[&str], steps: usize) -> (usize, usize) {
    let hand = Hand::default();
    let clock = hand.clone();
    let pool = Pool::new(4 << 20);
    let make = Make {
        pool: pool.clone(),
        limit: Limit { bytes: BYTES, blocks: BLOCKS },
        modules: modules(),
        clock: Arc::new(move || clock.now()),
    };
    let (a, b) = nine_stream::pipe(&make);
    for words in push {
        a.push(words).expect("pushed");
        b.push(words).expect("pushed");
    }
    let mut random = 1u64;
    let mut below = move |n: usize| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 33) as usize % n
    };
    // Half of it compresses well, and half does not.
    let content: Vec<u8> = (0..1 << 20)
        .map(|at: usize| if at & 1 << 12 == 0 { below(256) as u8 } else { (at >> 14) as u8 })
        .collect();
    let mut places = (0, 0);
    let (mut taken, mut refused) = (0, 0);
    for step in 0..steps {
        hand.0.fetch_add(below(100) as u64, Ordering::Relaxed);
        for end in [&a, &b] {
            if end.deadline().is_some_and(|due| due <= hand.now()) {
                end.tick();
            }
        }
        if below(10) > 0 {
            let n = below(LONGEST).min(content.len() - places.0);
            let mut block = pool.try_alloc(n).expect("there is memory for all that may be held");
            block.fill(&content[places.0..places.0 + n]);
            block.delim = below(4) > 0;
            match a.try_put(block) {
                Ok(()) => {
                    places.0 = (places.0 + n) % content.len();
                    taken += 1;
                }
                Err((_, fault)) => {
                    assert_eq!(fault, None);
                    refused += 1;
                }
            }
        } else {
            read(&b, &content, &mut places.1, step);
        }
        let (bytes, blocks) = b.waiting();
        assert!(
            bytes <= BYTES.max(PIECE) && blocks <= BLOCKS,
            "{bytes} bytes, {blocks} blocks in step {step}"
        );
        // The pool holds uncompressed data that waits, and free blocks: of each size as many as were in use at once.
        assert!(pool.bytes() <= 2 << 20, "{} bytes in step {step}", pool.bytes());
    }
    let mut rounds = 0;
    while places.1 != places.0 || a.is_holding() || b.deadline().is_some() || b.waiting().1 > 0 {
        hand.0.fetch_add(100, Ordering::Relaxed);
        a.tick();
        b.tick();
        read(&b, &content, &mut places.1, usize::MAX);
        rounds += 1;
        assert!(rounds < 10_000_000, "it never comes: {places:?}");
    }
    drop((a, b));
    let all: Vec<Block> = std::iter::from_fn(|| pool.try_alloc(CLASSES[6])).collect();
    assert_eq!(all.len(), 4, "memory has not come back");
    (taken, refused)
}

fn read(end: &Stream, content: &[u8], place: &mut usize, step: usize) {
    let Poll::Ready(block) = end.try_read_block() else { return };
    let block = block.expect("read").expect("nobody has ended it");
    let mut data = block.data();
    while !data.is_empty() {
        let n = data.len().min(content.len() - *place);
        assert!(data[..n] == content[*place..*place + n], "in step {step}");
        *place = (*place + n) % content.len();
        data = &data[n..];
    }
}

const STACKS: [&[&str]; 4] =
    [&["zstd"], &["throttle 16M"], &["zstd", "throttle 4M"], &["throttle 64M", "zstd 1", "fault delay 1"]];

#[test]
fn a_slow_reader_keeps_everything_small_with_modules_between() {
    for push in STACKS {
        let (taken, refused) = fast_against_slow(push, 20_000);
        assert!(taken > 500 && refused > 500, "{push:?}: {taken} taken, {refused} refused");
    }
}

#[test]
#[ignore = "a million steps: `--include-ignored` runs it"]
fn a_slow_reader_keeps_everything_small_with_modules_between_for_long() {
    for push in STACKS {
        fast_against_slow(push, 200_000);
    }
}

fn ends(hand: &Hand) -> [Conversation<Pipe>; 2] {
    let peer = || Peer { addr: "test".into(), proof: Proof::None };
    let (a, b) = nine_net::pipe(peer(), peer());
    [a, b].map(|pipe| Conversation::new(pipe, modules(), Arc::new(hand.clone())))
}

#[test]
fn a_module_that_holds_something_when_another_fails_keeps_nobody_busy() {
    let mut cx = Context::from_waker(Waker::noop());
    let hand = Hand::default();
    let [mut a, mut b] = ends(&hand);
    b.control("push fault delay 10").expect("pushed");
    b.control("push zstd").expect("pushed");
    assert!(a.poll_write(&mut cx, &[IoSlice::new(b"this is no zstd")]).is_ready());
    let mut buf = [0; 99];
    assert!(b.poll_read(&mut cx, &mut buf).is_pending());
    hand.0.store(9_000, Ordering::Relaxed);
    assert!(b.poll_write(&mut cx, &[IoSlice::new(b"answer")]).is_ready());
    assert!(b.poll_flush(&mut cx).is_pending(), "it is held");
    hand.0.store(10_000, Ordering::Relaxed);
    assert!(matches!(b.poll_read(&mut cx, &mut buf), Poll::Ready(Err(_))));
    hand.0.store(90_000, Ordering::Relaxed);
    // Nothing is buffered any more: these calls return.
    assert!(matches!(b.poll_flush(&mut cx), Poll::Ready(Ok(()))));
    assert!(matches!(b.poll_close(&mut cx), Poll::Ready(Ok(()))));
    assert!(matches!(b.poll_write(&mut cx, &[IoSlice::new(b"more")]), Poll::Ready(Err(_))));
}
