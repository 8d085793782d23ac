//! The console, as clients see it.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use nine_io::client::{File, Result};
use nine_io::server::{FileServer, Who};
use nine_net::rt::Real;
use nine_net::{Clock, Timer};
use nine_proto::{Dialect, Errno, OpenFlags};
use nine_servers::cons::{Cons, Host};

use crate::files::world::{ALL, connect, errno, list};

const RDWR: OpenFlags = OpenFlags::RDWR;
const READ: OpenFlags = OpenFlags::READ;
const WRITE: OpenFlags = OpenFlags::WRITE;
/// Bytes buffered for the screen.
const OUTPUT: usize = 64 << 10;

/// A console with an owner that attaches as `owner`.
struct ConsFixture {
    env: Real,
    cons: Arc<Cons>,
    /// The number of calls of `changed`.
    changes: Arc<AtomicU64>,
}

fn world(echoes: bool, main: impl AsyncFnOnce(&ConsFixture)) {
    nine_net::rt::block_on(async |env| {
        let changes = Arc::new(AtomicU64::new(0));
        let seen = changes.clone();
        let changed = move || {
            seen.fetch_add(1, Ordering::Relaxed);
        };
        let told = |who: &mut Who, aname: &[u8]| {
            (who.owner, who.read_only) = (aname.starts_with(b"owner"), aname.ends_with(b"read-only"));
        };
        let cons = Arc::new(Cons::new(host(), Arc::new(CountingClock::default()), told, echoes, changed));
        let world = ConsFixture { env, cons, changes };
        main(&world).await;
        until(|| world.cons.waiting() == 0 && !world.cons.is_raw()).await;
    })
    .expect("a runtime");
}

fn host() -> Host {
    Host {
        pid: 4711,
        ppid: 1,
        owner: "glenda".into(),
        version: "ninefold 9".into(),
        sysname: Box::new(|| "gnot".into()),
        cputime: Box::new(|| [1, 20, 300, 4, 0, 123_456_789_012]),
    }
}

impl ConsFixture {
    async fn root(&self) -> File {
        self.root_in(Dialect::L, "owner").await
    }

    async fn root_in(&self, dialect: Dialect, aname: &str) -> File {
        let server: Arc<dyn FileServer> = self.cons.clone();
        let client = connect(&self.env, server, dialect).await;
        client.attach(if dialect.is_l() { "" } else { "rob" }, 7, aname).await.expect("attached")
    }

    fn screen(&self) -> String {
        String::from_utf8(self.cons.output(usize::MAX).to_vec()).unwrap()
    }

    fn waiting(&self) -> usize {
        self.cons.waiting()
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

type ConsCall<'f, T> = Pin<Box<dyn Future<Output = Result<T>> + 'f>>;

fn reading(file: &File, count: u32) -> ConsCall<'_, Bytes> {
    begun(Box::pin(file.read(0, count)))
}

fn writing<'f>(file: &'f File, data: &'f [u8]) -> ConsCall<'f, u32> {
    begun(Box::pin(file.write(0, data)))
}

/// Polls a call once. It must be sent and have no answer.
fn begun<T>(mut call: ConsCall<'_, T>) -> ConsCall<'_, T> {
    assert!(call.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    call
}

async fn text(root: &File, name: &str) -> String {
    let file = root.open(name, READ).await.unwrap();
    String::from_utf8(file.read(0, 8000).await.unwrap().to_vec()).unwrap()
}

/// Checks that a call was refused with this number, and with this text in dialects that have texts. 9P2000 has no
/// numbers.
#[track_caller]
pub fn refused<T>(dialect: Dialect, result: Result<T>, errno: Errno, words: &str) {
    let Err(error) = result else { panic!("it should have been refused: {words}") };
    assert!(dialect == Dialect::P2000 || error.errno() == errno, "{error}");
    assert!(dialect.is_l() || error.to_string().contains(words), "{error}");
}

#[test]
fn time_and_names_are_as_in_plan_9() {
    for dialect in ALL {
        world(false, async |world| {
            for aname in ["owner", ""] {
                let root = world.root_in(dialect, aname).await;
                for (name, content) in [
                    ("pid", "       4711 "),
                    ("ppid", "          1 "),
                    ("hostowner", "glenda"),
                    ("osversion", "ninefold 9"),
                    ("sysname", "gnot"),
                    ("null", ""),
                    ("user", if dialect.is_l() { "7" } else { "rob" }),
                    ("cputime", "          1          20         300           4           0 123456789012 "),
                ] {
                    assert_eq!(text(&root, name).await, content, "{name}");
                }
                let time = root.open("time", READ).await.unwrap();
                let now = |ns: u32| {
                    format!(
                        "{:>11} {:>21} {ns:>21} {:>21} ",
                        1_700_000_000, 1_700_000_000_000_000_005_u64, 1_000_000_000
                    )
                };
                let first = String::from_utf8(time.read(0, 100).await.unwrap().to_vec()).unwrap();
                let ticks: u32 = first[34..55].trim().parse().unwrap();
                assert_eq!(first, now(ticks));
                // Each read returns the present time.
                assert_eq!(time.read(0, 100).await.unwrap(), now(ticks + 1));
                assert_eq!(&*time.read(0, 12).await.unwrap(), b" 1700000000 ");
                let bintime = root.open("bintime", READ).await.unwrap().read(0, 100).await.unwrap();
                assert_eq!(bintime[..8], 1_700_000_000_000_000_005_u64.to_be_bytes());
                assert_eq!(bintime[16..], 1_000_000_000_u64.to_be_bytes());
                let random = root.open("random", READ).await.unwrap();
                let (a, b) = (random.read(0, 16).await.unwrap(), random.read(0, 16).await.unwrap());
                assert!(a.len() == 16 && b.len() == 16 && a != b);
                let zero = root.open("zero", READ).await.unwrap();
                assert_eq!(zero.read(1 << 40, 5000).await.unwrap(), [0; 5000].as_slice());
                let null = root.open("null", RDWR).await.unwrap();
                assert_eq!(null.write(0, b"nothing").await.unwrap(), 7);
            }
            assert_eq!(
                list(&world.root().await).await.join(" "),
                "bintime cons consctl cputime hostowner kmesg kprint null osversion pid ppid random sysname time \
                 user zero"
            );
        });
    }
}

#[test]
fn what_is_the_owners_is_for_the_owner() {
    for dialect in ALL {
        world(false, async |world| {
            let other = world.root_in(dialect, "").await;
            for (name, flags) in [
                ("cons", READ),
                ("cons", WRITE),
                ("consctl", WRITE),
                ("kmesg", READ),
                ("kprint", READ),
                ("time", WRITE),
                ("bintime", WRITE),
            ] {
                assert_eq!(errno(other.open(name, flags).await), Errno::EACCES, "{name}");
            }
            let owner = world.root_in(dialect, "owner").await;
            assert_eq!(errno(owner.open("sysname", WRITE).await), Errno::EACCES);
            for name in ["time", "bintime"] {
                let time = owner.open(name, WRITE).await.unwrap();
                refused(dialect, time.write(0, b"0").await, Errno::EPERM, "the clock is the host's");
            }
            // Event files, which a program that copies a tree should skip.
            for (name, is_event) in
                [("cons", true), ("kprint", true), ("zero", true), ("random", true), ("time", false)]
            {
                assert_eq!(owner.walk(name).await.unwrap().qid().is_event(), is_event, "{name}");
            }
        });
    }
}

#[test]
fn an_owner_who_may_only_read_takes_no_line() {
    for dialect in ALL {
        world(false, async |world| {
            let root = world.root_in(dialect, "owner read-only").await;
            assert_eq!(errno(root.open("cons", READ).await), Errno::EACCES);
            root.open("kmesg", READ).await.unwrap();
        });
    }
}

#[test]
fn a_line_goes_to_one_reader_in_their_order() {
    for dialect in ALL {
        world(true, async |world| {
            let (one, two) = (world.root_in(dialect, "owner").await, world.root_in(dialect, "owner").await);
            let (a, b) = (one.open("cons", RDWR).await.unwrap(), two.open("cons", RDWR).await.unwrap());
            assert!(!world.cons.is_wanted());
            let first = reading(&a, 100);
            until(|| world.waiting() == 1).await;
            assert!(world.cons.is_wanted());
            let second = reading(&b, 4);
            until(|| world.waiting() == 2).await;
            let third = reading(&a, 100);
            until(|| world.waiting() == 3).await;
            world.cons.input(b"half");
            // Other requests of this client proceed meanwhile.
            assert_eq!(text(&one, "sysname").await, "gnot");
            assert_eq!(world.waiting(), 3);
            world.cons.input(b" a line\nanother\nthree");
            assert_eq!(&*first.await.unwrap(), b"half a line\n");
            // The rest of a line that is too long for its reader goes to the next one.
            assert_eq!(&*second.await.unwrap(), b"anot");
            assert_eq!(&*third.await.unwrap(), b"her\n");
            // The terminal echoes.
            assert_eq!(world.screen(), "");
            world.cons.input(b"\x04\x04");
            assert_eq!(&*b.read(0, 0).await.unwrap(), b"");
            assert_eq!(&*b.read(0, 100).await.unwrap(), b"three");
            assert_eq!(&*b.read(0, 100).await.unwrap(), b"");
            let last = reading(&b, 100);
            until(|| world.waiting() == 1).await;
            world.cons.end();
            assert_eq!((&*last.await.unwrap(), &*a.read(9, 100).await.unwrap()), (&b""[..], &b""[..]));
        });
    }
}

#[test]
fn what_is_typed_is_shown_and_corrected() {
    world(false, async |world| {
        let root = world.root().await;
        let cons = root.open("cons", RDWR).await.unwrap();
        world.cons.input("wrong\x15gr\u{fc}\x7fold\n".as_bytes());
        assert_eq!(world.screen(), "wrong^U\ngr\u{fc}\x08 \x08old\n");
        assert_eq!(&*cons.read(0, 100).await.unwrap(), b"grold\n");
        // More than the buffer holds: the bell.
        world.cons.input(&[b'x'; 20_000]);
        assert!(world.screen().ends_with("x\x07"));
    });
}

#[test]
fn a_read_that_is_flushed_takes_no_line() {
    world(true, async |world| {
        let root = world.root().await;
        let cons = root.open("cons", RDWR).await.unwrap();
        let (first, second) = (reading(&cons, 100), reading(&cons, 100));
        until(|| world.waiting() == 2).await;
        drop(first);
        until(|| world.waiting() == 1).await;
        world.cons.input(b"for who still waits\n");
        assert_eq!(&*second.await.unwrap(), b"for who still waits\n");
        // So it is for a request lost with its connection.
        {
            let gone = world.root().await.open("cons", READ).await.unwrap();
            let _lost = reading(&gone, 100);
            until(|| world.waiting() == 1).await;
        }
        until(|| world.waiting() == 0).await;
        world.cons.input(b"here\n");
        assert_eq!(&*cons.read(0, 100).await.unwrap(), b"here\n");
    });
}

#[test]
fn raw_is_as_long_as_the_consctl_that_asked_for_it() {
    for dialect in ALL {
        world(false, async |world| {
            let root = world.root_in(dialect, "owner").await;
            let cons = root.open("cons", RDWR).await.unwrap();
            let (one, two) =
                (root.open("consctl", WRITE).await.unwrap(), root.open("consctl", WRITE).await.unwrap());
            refused(dialect, one.write(0, b"rawest").await, Errno::EINVAL, "write rawon or rawoff");
            refused(dialect, one.write(0, b"").await, Errno::EINVAL, "write rawon or rawoff");
            assert!(!world.cons.is_raw());
            let before = world.changes.load(Ordering::Relaxed);
            one.write(0, b"rawon\n").await.unwrap();
            assert!(world.cons.is_raw() && world.changes.load(Ordering::Relaxed) > before);
            world.cons.input(b"\x04\x7f");
            assert_eq!((&*cons.read(0, 100).await.unwrap(), &*world.screen()), (&b"\x04\x7f"[..], ""));
            // The close of a consctl that has requested nothing changes nothing.
            two.close().await.unwrap();
            assert!(world.cons.is_raw());
            let two = root.open("consctl", WRITE).await.unwrap();
            two.write(0, b"rawon").await.unwrap();
            one.close().await.unwrap();
            assert!(world.cons.is_raw());
            two.close().await.unwrap();
            until(|| !world.cons.is_raw()).await;
            world.cons.input(b"x\x7fline\n");
            assert_eq!(&*cons.read(0, 100).await.unwrap(), b"line\n");
            // Any rawoff ends it, for all.
            let (one, two) =
                (root.open("consctl", WRITE).await.unwrap(), root.open("consctl", WRITE).await.unwrap());
            one.write(0, b"rawon").await.unwrap();
            two.write(0, b"rawoff").await.unwrap();
            assert!(!world.cons.is_raw());
            // A lost connection closes its consctl.
            let gone = world.root_in(dialect, "owner").await.open("consctl", WRITE).await.unwrap();
            gone.write(0, b"rawon").await.unwrap();
            assert!(world.cons.is_raw());
            drop(gone);
            until(|| !world.cons.is_raw()).await;
        });
    }
}

#[test]
fn a_slow_screen_makes_writers_wait_and_nobody_else() {
    for dialect in ALL {
        world(true, async |world| {
            let (one, two) = (world.root_in(dialect, "owner").await, world.root_in(dialect, "owner").await);
            let (a, b) = (one.open("cons", RDWR).await.unwrap(), two.open("cons", RDWR).await.unwrap());
            let line = [b'a'; 1 << 10];
            for _ in 0..OUTPUT >> 10 {
                assert_eq!(a.write(0, &line).await.unwrap(), 1024);
            }
            let (first, second) = (writing(&a, b"first\n"), writing(&a, b"second\n"));
            until(|| world.waiting() == 2).await;
            let third = writing(&b, b"third\n");
            until(|| world.waiting() == 3).await;
            // Reads proceed, and so do other files.
            world.cons.input(b"typed\n");
            assert_eq!(&*a.read(0, 100).await.unwrap(), b"typed\n");
            assert_eq!(text(&two, "sysname").await, "gnot");
            // A flushed write has written nothing.
            drop(second);
            until(|| world.waiting() == 2).await;
            assert_eq!(world.cons.output(6), [b'a'; 6].as_slice());
            assert_eq!(first.await.unwrap(), 6);
            assert_eq!(world.waiting(), 1);
            assert_eq!(world.cons.output(OUTPUT).len(), OUTPUT);
            assert_eq!(third.await.unwrap(), 6);
            assert_eq!(world.screen(), "third\n");
            // A write larger than the buffer is shown whole.
            let large: Vec<u8> = (0..3 * OUTPUT).map(|n| (n % 251) as u8).collect();
            let n = a.write(0, &large).await.unwrap() as usize;
            assert_eq!(world.cons.output(usize::MAX), large[..n]);
            // The screen shows nothing any more.
            for _ in 0..OUTPUT >> 10 {
                a.write(0, &line).await.unwrap();
            }
            let last = writing(&b, b"last");
            until(|| world.waiting() == 1).await;
            world.cons.no_output();
            refused(dialect, last.await, Errno::EIO, "no screen");
            refused(dialect, a.write(0, b"x").await, Errno::EIO, "no screen");
            assert_eq!(world.screen(), "");
        });
    }
}

#[test]
fn many_write_at_once_and_every_write_is_whole() {
    const CLIENTS: usize = 8;
    const EACH: usize = 50;
    world(true, async |world| {
        let done = Rc::new(Cell::new(0));
        for client in 0..CLIENTS {
            let (root, done) = (world.root().await, done.clone());
            nine_net::Env::spawn(
                &world.env,
                Box::pin(async move {
                    let cons = root.open("cons", WRITE).await.unwrap();
                    for n in 0..EACH {
                        let line = format!("{client} {n} {}\n", "x".repeat(5000));
                        assert_eq!(cons.write(0, line.as_bytes()).await.unwrap() as usize, line.len());
                    }
                    done.set(done.get() + 1);
                }),
            );
        }
        let mut screen = String::new();
        until(|| {
            screen += std::str::from_utf8(&world.cons.output(1000)).unwrap();
            done.get() == CLIENTS
        })
        .await;
        screen += &world.screen();
        let mut next = [0; CLIENTS];
        for line in screen.lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let [client, n, rest] = words[..] else { panic!("{line}") };
            let client: usize = client.parse().unwrap();
            assert_eq!((n, rest.len()), (&*next[client].to_string(), 5000));
            next[client] += 1;
        }
        assert_eq!(next, [EACH; CLIENTS]);
    });
}

#[test]
fn what_is_logged_comes_to_all_who_read_it_from_their_open_on() {
    for dialect in ALL {
        world(true, async |world| {
            let (one, two) = (world.root_in(dialect, "owner").await, world.root_in(dialect, "owner").await);
            world.cons.log(b"before\n");
            let a = one.open("kprint", READ).await.unwrap();
            let waits = reading(&a, 100);
            until(|| world.waiting() == 1).await;
            world.cons.log(b"one\n");
            assert_eq!(&*waits.await.unwrap(), b"one\n");
            let b = two.open("kprint", READ).await.unwrap();
            world.cons.log(b"two\n");
            assert_eq!(&*a.read(0, 2).await.unwrap(), b"tw");
            assert_eq!(&*a.read(0, 100).await.unwrap(), b"o\n");
            assert_eq!(&*b.read(77, 100).await.unwrap(), b"two\n");
            assert_eq!(text(&one, "kmesg").await, "before\none\ntwo\n");
            // A waiting request that is flushed has taken nothing. A slow reader loses text and gets a note.
            let flushed = reading(&a, 100);
            until(|| world.waiting() == 1).await;
            drop(flushed);
            until(|| world.waiting() == 0).await;
            let line = format!("{}\n", "l".repeat(1023));
            for _ in 0..70 {
                world.cons.log(line.as_bytes());
                assert_eq!(b.read(0, 2000).await.unwrap(), line.as_bytes());
            }
            let mut seen = Vec::new();
            while seen.len() < 64 << 10 {
                seen.extend(a.read(0, 4000).await.unwrap());
            }
            assert!(seen == line.repeat(64).as_bytes());
            assert_eq!(&*a.read(0, 4000).await.unwrap(), b"... 6144 bytes lost\n");
            let waits = reading(&a, 100);
            until(|| world.waiting() == 1).await;
            world.cons.log(b"again\n");
            assert_eq!(&*waits.await.unwrap(), b"again\n");
            assert_eq!(text(&one, "kmesg").await.len(), 8000);
            // As many readers as allowed.
            let mut all = Vec::new();
            let error = loop {
                match one.open("kprint", READ).await {
                    Ok(file) => all.push(file),
                    Err(error) => break error,
                }
            };
            assert_eq!(all.len(), 62);
            refused(dialect, Err::<(), _>(error), Errno::ENFILE, "64 read it already");
            all.pop().unwrap().close().await.unwrap();
            one.open("kprint", READ).await.unwrap();
        });
    }
}

/// A wall clock that stands still. Its ticks count the calls.
#[derive(Default)]
struct CountingClock(AtomicU64);

impl Clock for CountingClock {
    fn now(&self) -> Duration {
        Duration::from_nanos(self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        Duration::new(1_700_000_000, 5)
    }

    fn sleep_until(&self, _: Duration) -> Timer {
        unreachable!("nobody sleeps here")
    }

    fn entropy(&self, buf: &mut [u8]) {
        for byte in buf {
            *byte = self.0.fetch_add(1, Ordering::Relaxed) as u8;
        }
    }
}
