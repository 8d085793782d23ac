//! Pipes, as clients see them.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_io::client::{Cancel, File, Result};
use nine_io::server::{Anonymous, Gate};
use nine_net::rt::Real;
use nine_net::{Clock, Env, Timer};
use nine_proto::{Dialect, Errno, OpenFlags};
use nine_servers::Pipes;
use nine_stream::{Chain, Fault, Halves, Module, Next, Pass};

use crate::files::world::{ALL, connect, connect_by, errno, list};

const RDWR: OpenFlags = OpenFlags::RDWR;
const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
/// Bytes that a direction buffers.
const ROOM: usize = 256 << 10;
const SECOND: Duration = Duration::from_secs(1);

/// A server of pipes, with a clock set by the test.
struct PipeFixture {
    env: Real,
    hand: ManualClock,
    server: Arc<Pipes>,
    /// The number of polls of the driver; -1 after its end.
    driven: Rc<Cell<i64>>,
}

fn world(main: impl AsyncFnOnce(&PipeFixture)) {
    limited(100, main);
}

fn limited(most: usize, main: impl AsyncFnOnce(&PipeFixture)) {
    nine_net::rt::block_on(async |env| {
        let hand = ManualClock::default();
        let (server, driver) = Pipes::new(nine_net::modules::modules(), Arc::new(hand.clone()), most);
        let driven = Rc::new(Cell::new(0));
        let (counted, mut driver) = (driven.clone(), Box::pin(driver));
        env.spawn(Box::pin(async move {
            poll_fn(|cx| {
                counted.set(counted.get() + 1);
                driver.as_mut().poll(cx)
            })
            .await;
            counted.set(-1);
        }));
        let world = PipeFixture { env, hand, server: Arc::new(server), driven };
        main(&world).await;
        // No pipe is left, and no waiting request.
        until(|| world.server.count() == 0).await;
        assert_eq!(world.server.waiting(), 0);
        let PipeFixture { server, driven, .. } = world;
        let weak = Arc::downgrade(&server);
        drop(server);
        until(|| weak.strong_count() == 0 && driven.get() == -1).await;
    })
    .expect("a runtime");
}

impl PipeFixture {
    /// Returns the root, on a new connection.
    async fn root(&self) -> File {
        self.root_in(Dialect::L).await
    }

    async fn root_in(&self, dialect: Dialect) -> File {
        // As the owner.
        let gate = Gate { token: Some("00ff".into()), ..Gate::default() };
        let client = connect_by(&self.env, self.server.clone(), dialect, gate).await;
        client.attach("", 0, "token:00ff").await.expect("attached")
    }
}

/// Lets other tasks run until this is true.
async fn until(mut is_so: impl FnMut() -> bool) {
    poll_fn(|cx| {
        cx.waker().wake_by_ref();
        if is_so() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// Creates a pipe. Returns its ctl from `clone`, and the directory.
async fn made(root: &File) -> (File, File) {
    let ctl = root.open("clone", RDWR).await.unwrap();
    let number = text(&ctl).await;
    let dir = root.walk(number.trim()).await.unwrap();
    (ctl, dir)
}

/// Opens both ends.
async fn ends(dir: &File) -> (File, File) {
    (dir.open("data", RDWR).await.unwrap(), dir.open("data1", RDWR).await.unwrap())
}

async fn text(file: &File) -> String {
    String::from_utf8(file.read(0, 8000).await.unwrap().to_vec()).unwrap()
}

async fn status(dir: &File) -> String {
    text(&dir.open("status", READ).await.unwrap()).await
}

/// Waits until the line of an end contains these words.
async fn until_status(dir: &File, end: &str, words: &str) {
    loop {
        let status = status(dir).await;
        if status.lines().any(|line| line.starts_with(&format!("{end}:")) && line.contains(words)) {
            return;
        }
    }
}

type PipeFileCall<'f, T> = Pin<Box<dyn Future<Output = Result<T>> + 'f>>;

fn reading(file: &File, count: u32) -> PipeFileCall<'_, Bytes> {
    Box::pin(file.read(0, count))
}

fn writing<'f>(file: &'f File, data: &'f [u8]) -> PipeFileCall<'f, u32> {
    Box::pin(file.write(0, data))
}

/// Polls a call once. It must be sent and have no answer.
fn begin<T>(call: &mut PipeFileCall<'_, T>) {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
}

/// Fills a direction with messages of 1 KiB, each with its number at the start.
async fn fill(from: &File) {
    for n in 0..ROOM >> 10 {
        assert_eq!(from.write(0, &message(n)).await.unwrap(), 1024);
    }
}

fn message(n: usize) -> Vec<u8> {
    let mut message = vec![0; 1024];
    message[..8].copy_from_slice(&n.to_le_bytes());
    message
}

/// Reads everything that `fill` has written.
async fn drain(to: &File) {
    for n in 0..ROOM >> 10 {
        assert_eq!(to.read(0, 8000).await.unwrap(), message(n));
    }
}

#[test]
fn clone_makes_a_pipe_whose_ends_carry_messages() {
    for dialect in ALL {
        world(async |world| {
            let root = world.root_in(dialect).await;
            assert_eq!(list(&root).await, ["clone"]);
            let (ctl, dir) = made(&root).await;
            let (other, _) = made(&root).await;
            assert_eq!((text(&ctl).await, text(&other).await), ("0\n".into(), "1\n".into()));
            assert_eq!(list(&root).await, ["0", "1", "clone"]);
            assert_eq!(list(&dir).await, ["ctl", "ctl1", "data", "data1", "status"]);
            let (a, b) = ends(&dir).await;
            // Message boundaries are kept, and offsets ignored.
            for words in [&b"one"[..], b"", b"another"] {
                assert_eq!(a.write(77, words).await.unwrap() as usize, words.len());
            }
            assert_eq!(&*b.read(5, 100).await.unwrap(), b"one");
            assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
            assert_eq!(&*b.read(1, 0).await.unwrap(), b"");
            assert_eq!(&*b.read(1, 2).await.unwrap(), b"an");
            assert_eq!(&*b.read(1, 100).await.unwrap(), b"other");
            b.write(0, b"back").await.unwrap();
            assert_eq!(&*a.read(0, 100).await.unwrap(), b"back");
            // One message larger than a queue.
            let large: Vec<u8> = (0..ROOM + 1000).map(|n| (n % 251) as u8).collect();
            let n = a.write(0, &large).await.unwrap() as usize;
            let mut seen = Vec::new();
            while seen.len() < n {
                seen.extend(b.read(0, 1 << 20).await.unwrap());
            }
            assert!(n > 4000 && seen == large[..n]);
            // Numbers are not reused.
            drop((ctl, other, a, b));
            until(|| world.server.count() == 0).await;
            assert_eq!(errno(dir.open("data", READ).await), Errno::ENOENT);
            assert_eq!(list(&root).await, ["clone"]);
            assert_eq!(text(&made(&root).await.0).await, "2\n");
        });
    }
}

#[test]
fn a_read_waits_for_a_later_write_and_blocks_nobody() {
    world(async |world| {
        let (one, two) = (world.root().await, world.root().await);
        let (_ctl, dir) = made(&one).await;
        let (a, b) = ends(&dir).await;
        let (mut first, mut second) = (reading(&b, 100), reading(&b, 3));
        begin(&mut first);
        begin(&mut second);
        until_status(&dir, "data1", "2 reads and 0 writes wait").await;
        // Other requests of this client and of this pipe.
        b.write(0, b"the other way").await.unwrap();
        assert_eq!(&*a.read(0, 100).await.unwrap(), b"the other way");
        // Both in order, from another client.
        let far = two.open("0/data", WRITE).await.unwrap();
        far.write(0, b"one").await.unwrap();
        assert_eq!(&*first.await.unwrap(), b"one");
        far.write(0, b"two, three").await.unwrap();
        assert_eq!(&*second.await.unwrap(), b"two");
        assert_eq!(&*b.read(0, 100).await.unwrap(), b", three");
    });
}

#[test]
fn a_write_waits_at_the_full_queue_and_goes_on_when_there_is_room() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        fill(&a).await;
        let (mut first, mut second) = (writing(&a, b"first"), writing(&a, b"second"));
        begin(&mut first);
        begin(&mut second);
        until_status(&dir, "data", "0 reads and 2 writes wait").await;
        until_status(&dir, "data1", "262144 of 262144 bytes, 256 of 256 blocks").await;
        // The other direction has its own buffer.
        b.write(0, b"back").await.unwrap();
        assert_eq!(&*a.read(0, 100).await.unwrap(), b"back");
        // Half of it makes room.
        for n in 0..127 {
            assert_eq!(b.read(0, 8000).await.unwrap(), message(n));
        }
        until_status(&dir, "data", "2 writes wait").await;
        assert_eq!(b.read(0, 8000).await.unwrap(), message(127));
        assert_eq!((first.await.unwrap(), second.await.unwrap()), (5, 6));
        for n in 128..256 {
            assert_eq!(b.read(0, 8000).await.unwrap(), message(n));
        }
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"first");
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"second");
    });
}

#[test]
fn a_read_that_is_flushed_takes_nothing() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        let (mut first, mut second) = (reading(&b, 100), reading(&b, 100));
        begin(&mut first);
        begin(&mut second);
        until_status(&dir, "data1", "2 reads").await;
        drop(first);
        until_status(&dir, "data1", "1 reads").await;
        a.write(0, b"for who still waits").await.unwrap();
        assert_eq!(&*second.await.unwrap(), b"for who still waits");
    });
}

#[test]
fn a_write_that_is_flushed_writes_nothing_and_lets_the_next_one_on() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        // A queue that has refused a large message, and accepts a small one.
        let half = vec![1; 100 << 10];
        a.write(0, &half).await.unwrap();
        let large = vec![2; 200 << 10];
        let (mut first, mut second) = (writing(&a, &large), writing(&a, b"second"));
        begin(&mut first);
        begin(&mut second);
        until_status(&dir, "data", "2 writes").await;
        drop(first);
        until_status(&dir, "data", "1 writes").await;
        assert_eq!(b.read(0, 1 << 20).await.unwrap(), half);
        assert_eq!(second.await.unwrap(), 6);
        assert_eq!(&*b.read(0, 1 << 20).await.unwrap(), b"second");
    });
}

/// Passes the first put message on only when the request waiting beside it was cancelled.
struct CancelGate {
    /// A put has started.
    begun: Arc<AtomicBool>,
    /// The other request was cancelled, and its flush sent.
    flushed: Arc<AtomicBool>,
}

impl Module for CancelGate {
    fn put(&mut self, chain: Chain, next: &mut Next<'_, '_>) -> std::result::Result<(), Fault> {
        let first = !self.begun.swap(true, Ordering::AcqRel);
        while first && !self.flushed.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        next.put(chain);
        Ok(())
    }
}

#[test]
fn a_read_that_is_flushed_while_another_core_writes_has_the_message_or_leaves_it() {
    let (begun, flushed) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    let (in_module, of_reader) = (begun.clone(), flushed.clone());
    let kind = move |_: &str| {
        let down = CancelGate { begun: in_module.clone(), flushed: of_reader.clone() };
        Ok(Halves { up: Box::new(Pass), down: Box::new(down) })
    };
    let modules = nine_stream::Modules::default().with("meanwhile", kind);
    let (server, driver) = Pipes::new(modules, Arc::new(ManualClock::default()), 1);
    drop(driver);
    let server = Arc::new(server);
    let (tell, told) = std::sync::mpsc::channel();
    let (go, goes) = std::sync::mpsc::channel();
    let writers = server.clone();
    let writer = std::thread::spawn(move || {
        nine_net::rt::block_on(async |env| {
            let root = connect(&env, writers, Dialect::L).await.attach("", 0, "").await.unwrap();
            let (ctl, dir) = made(&root).await;
            ctl.write(0, b"push meanwhile").await.unwrap();
            let a = dir.open("data", WRITE).await.unwrap();
            tell.send(()).unwrap();
            goes.recv().unwrap();
            for words in [b"one", b"two"] {
                assert_eq!(a.write(0, words).await.unwrap(), 3);
            }
            goes.recv().unwrap();
        })
        .unwrap();
    });
    nine_net::rt::block_on(async |env| {
        let root = connect(&env, server.clone(), Dialect::L).await.attach("", 0, "").await.unwrap();
        told.recv().unwrap();
        let b = root.open("0/data1", READ).await.unwrap();
        let cancel = Cancel::default();
        let mut read = pin!(cancel.clone().scope(Box::pin(b.read(0, 100))));
        let mut going = false;
        let first = poll_fn(|cx| {
            cx.waker().wake_by_ref();
            if !going && server.waiting() == 1 {
                going = true;
                go.send(()).unwrap();
            }
            if begun.load(Ordering::Acquire) {
                cancel.cancel();
            }
            let read = read.as_mut().poll(cx);
            // The previous poll has sent the flush.
            flushed.store(cancel.is_cancelled(), Ordering::Release);
            read
        })
        .await;
        // It was written before the flush was handled.
        let second = b.read(0, 100).await.unwrap();
        assert_eq!((&*first.unwrap(), &*second), (&b"one"[..], &b"two"[..]));
        go.send(()).unwrap();
    })
    .unwrap();
    writer.join().unwrap();
    assert_eq!(server.waiting(), 0);
}

#[test]
fn the_last_close_of_an_end_hangs_up() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        let again = dir.open("data", WRITE).await.unwrap();
        a.close().await.unwrap();
        again.write(0, b"last words").await.unwrap();
        // An open ctl keeps the pipe, but not the end.
        again.close().await.unwrap();
        until_status(&dir, "data", "closed, hung up").await;
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"last words");
        for _ in 0..3 {
            assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
        }
        assert_eq!(errno(b.read(0, 100).await), Errno::EIO);
        assert_eq!(errno(b.write(0, b"x").await), Errno::EPIPE);
        assert_eq!(errno(dir.open("data", READ).await), Errno::EPIPE);
        assert_eq!(errno(ctl.write(0, b"push zstd").await), Errno::EPIPE);
        assert_eq!(text(&ctl).await, "0\n");

        // Waiting requests are answered.
        let (_ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        let mut read = reading(&b, 100);
        begin(&mut read);
        fill(&b).await;
        let mut write = writing(&b, b"too much");
        begin(&mut write);
        until_status(&dir, "data1", "1 reads and 1 writes").await;
        drop(a);
        assert_eq!(&*read.await.unwrap(), b"");
        assert_eq!(errno(write.await), Errno::EPIPE);
        // Data written before the other end is open stays for it.
        let (_ctl, dir) = made(&root).await;
        dir.open("data", WRITE).await.unwrap().write(0, b"early").await.unwrap();
        until_status(&dir, "data", "closed").await;
        let b = dir.open("data1", READ).await.unwrap();
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"early");
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
    });
}

#[test]
fn hangup_ends_both_directions_in_good_order() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        a.write(0, b"there").await.unwrap();
        b.write(0, b"back").await.unwrap();
        ctl.write(0, b"hangup\n").await.unwrap();
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"there");
        assert_eq!(&*a.read(0, 100).await.unwrap(), b"back");
        for end in [&a, &b] {
            assert_eq!(&*end.read(0, 100).await.unwrap(), b"");
            assert_eq!(errno(end.write(0, b"x").await), Errno::EPIPE);
        }
        until_status(&dir, "data", "open 1, hung up").await;
    });
}

#[test]
fn modules_are_pushed_and_popped_on_both_ends_between_messages() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let ctl1 = dir.open("ctl1", RDWR).await.unwrap();
        let (a, b) = ends(&dir).await;
        let carry = async || {
            for words in [&b"x"[..], b"some words", &vec![9; 100_000]] {
                for (from, to) in [(&a, &b), (&b, &a)] {
                    from.write(0, words).await.unwrap();
                    assert_eq!(to.read(0, 1 << 20).await.unwrap(), words);
                }
            }
        };
        carry().await;
        for ctl in [&ctl, &ctl1] {
            ctl.write(0, b"push zstd 5").await.unwrap();
        }
        carry().await;
        let shown = status(&dir).await;
        let lines: Vec<_> = shown.lines().collect();
        assert!(lines[0].starts_with("data: open 1, 0 of 262144 bytes"), "{shown}");
        assert!(lines[1].starts_with("data zstd 100011 bytes became "), "{shown}");
        assert!(lines[2].starts_with("data1: open 1") && lines[3].starts_with("data1 zstd "), "{shown}");
        // On one end only: the reader gets the compressed data.
        ctl1.write(0, b"pop").await.unwrap();
        a.write(0, &vec![7; 100_000]).await.unwrap();
        let packed = b.read(0, 1 << 20).await.unwrap();
        assert!(packed.len() < 1000, "{}", packed.len());
        ctl.write(0, b"pop").await.unwrap();
        carry().await;
        assert_eq!(status(&dir).await.lines().count(), 2);
    });
}

#[test]
fn what_a_module_cannot_read_is_an_error_at_both_ends() {
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        dir.open("ctl1", WRITE).await.unwrap().write(0, b"push zstd").await.unwrap();
        let mut read = reading(&b, 100);
        begin(&mut read);
        until_status(&dir, "data1", "1 reads").await;
        assert_eq!(errno(a.write(0, b"this is no frame of zstd").await), Errno::EPIPE);
        assert_eq!(errno(read.await), Errno::EIO);
        assert_eq!(errno(a.read(0, 100).await), Errno::EIO);
    });
}

#[test]
fn a_text_that_is_wrong_says_so_and_changes_nothing() {
    world(async |world| {
        let root = world.root_in(Dialect::P2000).await;
        let (ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        let dot_l = world.root().await.open("0/ctl", WRITE).await.unwrap();
        let many = "push fault loss 0\npop".to_string();
        let long = "x".repeat(1025);
        for (text, said) in [
            ("push nothing", "no module is called \"nothing\": there are fault throttle zstd"),
            ("push", "no module"),
            ("push zstd 20", "\"20\" is no level"),
            ("push throttle", "invalid size ``"),
            ("pop", "there is no module to pop"),
            ("pop it", "no module knows \"pop it\""),
            ("jump", "no module knows \"jump\""),
            ("", "one text at a time"),
            ("\n", "one text at a time"),
            (&many, "one text at a time"),
            (&long, "at most 1024 bytes"),
            (&"\0\x01\x7f".repeat(300), "no module knows"),
        ] {
            let error = ctl.write(0, text.as_bytes()).await.unwrap_err();
            assert!(error.to_string().contains(said), "{text}: {error}");
            assert_eq!(errno(dot_l.write(0, text.as_bytes()).await), Errno::EINVAL, "{text}");
        }
        for garbage in [&b"\xff\xfe push zstd"[..], b"push zstd \x80", &[0xc3; 1000]] {
            let error = ctl.write(0, garbage).await.unwrap_err();
            assert!(error.to_string().contains("this is no text"), "{error}");
        }
        for _ in 0..16 {
            ctl.write(0, b"push fault loss 0").await.unwrap();
        }
        let error = ctl.write(0, b"push fault loss 0").await.unwrap_err();
        assert!(error.to_string().contains("there are 16 modules, and no more may be"), "{error}");
        for _ in 0..16 {
            ctl.write(0, b"pop").await.unwrap();
        }
        // A message of one of the ends is waiting.
        fill(&b).await;
        let mut write = writing(&b, b"more");
        begin(&mut write);
        until_status(&dir, "data1", "1 writes").await;
        for text in [&b"push zstd"[..], b"pop"] {
            let error = ctl.write(0, text).await.unwrap_err();
            assert!(error.to_string().contains("a message is under way"), "{error}");
            assert_eq!(errno(dot_l.write(0, text).await), Errno::EBUSY);
        }
        drain(&a).await;
        assert_eq!(&*a.read(0, 100).await.unwrap(), b"more");
        assert_eq!(write.await.unwrap(), 4);
        assert_eq!(status(&dir).await.lines().count(), 2);
    });
}

#[test]
fn pipes_are_limited_and_closed_ones_make_room() {
    limited(3, async |world| {
        let root = world.root().await;
        let mut ctls = Vec::new();
        for _ in 0..3 {
            ctls.push(root.open("clone", RDWR).await.unwrap());
        }
        assert_eq!(errno(root.open("clone", RDWR).await), Errno::ENFILE);
        let old = world.root_in(Dialect::P2000).await;
        let error = old.open("clone", RDWR).await.unwrap_err();
        assert!(error.to_string().contains("there are 3 pipes, and no more may be"), "{error}");
        // Any open file keeps the pipe.
        let data = root.open("1/data1", READ).await.unwrap();
        ctls.remove(1).close().await.unwrap();
        assert_eq!(errno(root.open("clone", RDWR).await), Errno::ENFILE);
        data.close().await.unwrap();
        until(|| world.server.count() == 2).await;
        ctls.push(root.open("clone", RDWR).await.unwrap());
        assert_eq!(list(&root).await, ["0", "2", "3", "clone"]);
    });
}

#[test]
fn a_client_that_has_proven_nothing_pushes_no_costly_module() {
    world(async |world| {
        let client = connect(&world.env, world.server.clone(), Dialect::L).await;
        let (ctl, _) = made(&client.attach("root", 0, "").await.unwrap()).await;
        for words in [&b"push zstd 4"[..], b"push  zstd 9"] {
            assert_eq!(errno(ctl.write(0, words).await), Errno::EPERM);
        }
        ctl.write(0, b"push zstd 3").await.unwrap();
        ctl.write(0, b"pop").await.unwrap();
        ctl.write(0, b"push zstd").await.unwrap();
    });
}

#[test]
fn what_modules_may_hold_is_limited_for_all_pipes_together() {
    world(async |world| {
        let root = world.root().await;
        // 14 MiB each.
        let (mut pipes, mut pushed) = (Vec::new(), 0);
        let refused = loop {
            let (ctl, _) = made(&root).await;
            let said = ctl.write(0, b"push zstd 9").await;
            pipes.push(ctl);
            if let Err(error) = said {
                break error;
            }
            pushed += 1;
        };
        assert_eq!((refused.errno(), pushed), (Errno::ENOMEM, 18));
        // A pop, a refused push, or the end of a pipe makes room.
        pipes[0].write(0, b"pop").await.unwrap();
        assert!(pipes[0].write(0, b"push zstd 99").await.is_err());
        pipes[0].write(0, b"push zstd 9").await.unwrap();
        assert_eq!(errno(pipes[18].write(0, b"push zstd 9").await), Errno::ENOMEM);
        let ctl = pipes.pop().unwrap();
        drop(pipes);
        until(|| world.server.count() == 1).await;
        ctl.write(0, b"push zstd 9").await.unwrap();
    });
}

#[test]
fn many_clients_share_one_pipe_and_every_message_comes_once() {
    const CLIENTS: usize = 12;
    const EACH: usize = 100;
    world(async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let seen = Rc::new(Cell::new(0));
        let all = Rc::new(std::cell::RefCell::new(vec![Vec::new(); CLIENTS]));
        // Keeps the ends open, so that a client that is done early does not hang up.
        let _open = ends(&dir).await;
        for client in 0..CLIENTS {
            let (near, far) = (world.root().await, world.root().await);
            let (seen, all) = (seen.clone(), all.clone());
            world.env.spawn(Box::pin(async move {
                let data = near.open("0/data", WRITE).await.unwrap();
                for n in 0..EACH {
                    let mut words = vec![n as u8; 5000];
                    words[0] = client as u8;
                    assert_eq!(data.write(0, &words).await.unwrap(), 5000);
                }
            }));
            world.env.spawn(Box::pin(async move {
                let data = far.open("0/data1", READ).await.unwrap();
                for _ in 0..EACH {
                    let words = data.read(0, 8000).await.unwrap();
                    assert!(words.len() == 5000 && words[1..].iter().all(|&n| n == words[1]));
                    all.borrow_mut()[words[0] as usize].push(words[1]);
                    seen.set(seen.get() + 1);
                }
            }));
        }
        until(|| seen.get() == CLIENTS * EACH).await;
        for mut of_one in all.take() {
            of_one.sort_unstable();
            assert!(of_one == (0..EACH as u8).collect::<Vec<_>>());
        }
        until_status(&dir, "data1", "0 of 262144 bytes, 0 of 256 blocks, 0 reads and 0 writes wait").await;
    });
}

#[test]
fn a_connection_that_is_lost_leaves_nothing_behind() {
    world(async |world| {
        let keeper = world.root().await;
        let (_ctl, dir) = made(&keeper).await;
        let b = dir.open("data1", RDWR).await.unwrap();
        {
            let root = world.root().await;
            let a = root.open("0/data", RDWR).await.unwrap();
            let (mut read, mut write) = (reading(&a, 100), writing(&a, b"never written"));
            begin(&mut read);
            fill(&a).await;
            begin(&mut write);
            until_status(&dir, "data", "1 reads and 1 writes wait").await;
            // More pipes, without other clients.
            let (_ctl, dir) = made(&root).await;
            let (c, _d) = ends(&dir).await;
            let mut read = reading(&c, 100);
            begin(&mut read);
            until_status(&dir, "data", "1 reads").await;
        }
        until(|| world.server.count() == 1).await;
        until_status(&dir, "data", "closed, hung up").await;
        until_status(&dir, "data", "0 reads and 0 writes wait").await;
        drain(&b).await;
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
    });
}

#[test]
fn modules_that_have_a_time_go_on_when_it_has_come() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        ctl.write(0, b"push throttle 1K").await.unwrap();
        a.write(0, &[1; 2048]).await.unwrap();
        let mut read = reading(&b, 8000);
        begin(&mut read);
        // The throttle holds one; the next one waits.
        let second = [2; 1024];
        let mut write = writing(&a, &second);
        begin(&mut write);
        until_status(&dir, "data", "1 writes").await;
        until_status(&dir, "data1", "1 reads").await;
        world.hand.advance(SECOND);
        until_status(&dir, "data1", "1 reads").await;
        world.hand.advance(SECOND);
        assert_eq!(&*read.await.unwrap(), &[1; 2048]);
        assert_eq!(write.await.unwrap(), 1024);
        let mut read = reading(&b, 8000);
        begin(&mut read);
        until_status(&dir, "data1", "1 reads").await;
        world.hand.advance(SECOND);
        assert_eq!(&*read.await.unwrap(), &[2; 1024]);

        // An end closed while the modules hold messages still delivers them, in time.
        ctl.write(0, b"push throttle 1K").await.unwrap();
        for words in [&[3; 1024], &[4; 1024]] {
            a.write(0, words).await.unwrap();
            world.hand.advance(SECOND);
        }
        drop(a);
        until_status(&dir, "data", "closed").await;
        for words in [&[3; 1024], &[4; 1024]] {
            let mut read = reading(&b, 8000);
            begin(&mut read);
            until_status(&dir, "data1", "0 writes").await;
            world.hand.advance(SECOND);
            assert_eq!(&*read.await.unwrap(), words);
        }
        assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
    });
}

#[test]
fn a_time_that_has_come_for_nothing_makes_nobody_spin() {
    world(async |world| {
        let root = world.root().await;
        let (ctl, dir) = made(&root).await;
        let (a, b) = ends(&dir).await;
        // After the pipe has ended by an error, the throttle's messages are not delivered.
        ctl.write(0, b"push throttle 1K").await.unwrap();
        ctl.write(0, b"push fault cut 10").await.unwrap();
        a.write(0, b"0123456789").await.unwrap();
        while a.write(0, b"x").await.is_ok() {}
        until_status(&dir, "data1", "hung up").await;
        let before = world.driven.get();
        for _ in 0..10 {
            world.hand.advance(SECOND);
            until_status(&dir, "data1", "hung up").await;
        }
        assert!(world.driven.get() - before < 40, "{}", world.driven.get() - before);
        drop((a, b));
        // Deadlines of two pipes: the earlier one comes first, in either order of requests.
        let (late, dir) = made(&root).await;
        let (early, dir1) = made(&root).await;
        let ((a, b), (a1, b1)) = (ends(&dir).await, ends(&dir1).await);
        late.write(0, b"push fault delay 5000").await.unwrap();
        early.write(0, b"push fault delay 1000").await.unwrap();
        a.write(0, b"late").await.unwrap();
        a1.write(0, b"early").await.unwrap();
        let (mut read, mut read1) = (reading(&b, 100), reading(&b1, 100));
        begin(&mut read);
        begin(&mut read1);
        until_status(&dir1, "data1", "1 reads").await;
        world.hand.advance(SECOND);
        assert_eq!(&*read1.await.unwrap(), b"early");
        until_status(&dir, "data1", "1 reads").await;
        world.hand.advance(4 * SECOND);
        assert_eq!(&*read.await.unwrap(), b"late");
    });
}

/// A clock that stands still until the test sets it.
#[derive(Clone, Default)]
struct ManualClock(Arc<Mutex<(Duration, Vec<Waker>)>>);

impl ManualClock {
    fn advance(&self, by: Duration) {
        let wakers = {
            let mut state = self.0.lock().unwrap();
            state.0 += by;
            std::mem::take(&mut state.1)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Duration {
        self.0.lock().unwrap().0
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn sleep_until(&self, deadline: Duration) -> Timer {
        let hand = self.clone();
        Box::pin(poll_fn(move |cx| {
            let mut state = hand.0.lock().unwrap();
            if state.0 >= deadline {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        }))
    }

    fn entropy(&self, _: &mut [u8]) {
        unreachable!("nothing here is left to chance")
    }
}

#[test]
fn a_client_that_may_only_read_takes_no_message_and_makes_no_pipe() {
    limited(2, async |world| {
        let root = world.root().await;
        let (_ctl, dir) = made(&root).await;
        let (data, data1) = ends(&dir).await;
        data.write(0, b"a message").await.unwrap();
        let gate = Gate { anonymous: Anonymous::Trusted, read_only: true, ..Gate::default() };
        let reader = connect_by(&world.env, world.server.clone(), Dialect::L, gate).await;
        let reader = reader.attach("", 0, "").await.unwrap();
        for file in ["clone", "0/ctl", "0/ctl1", "0/data", "0/data1"] {
            assert_eq!(errno(reader.open(file, READ).await), Errno::EACCES, "{file}");
        }
        assert!(text(&reader.open("0/status", READ).await.unwrap()).await.starts_with("data: open 1"));
        assert_eq!(world.server.count(), 1);
        assert_eq!(&*data1.read(0, 100).await.unwrap(), b"a message");
    });
}
