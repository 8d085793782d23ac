//! Requests with timeouts. The host takes a step when the guest sleeps, and time advances when the host has nothing
//! to do.

use std::cell::{RefCell, RefMut};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use nine_guest::{Client, Errno, Error, File, Line, OpenFlags, Options, Process, Wait};
use nine_proto::msg::Tmsg;
use nine_ring::Life;
use nine_ring::linux::Passed;

use crate::guest::host::{FlushReply, HostBehaviour, MILD, TestChannel, TestHost, some};
use crate::guest::programs::{PLAIN, SANITIZED, compiled};

const PATIENCE: Duration = Duration::from_secs(7);

/// A host written by hand, and its guest's clock.
#[derive(Clone)]
struct ManualHost(Rc<RefCell<ManualHostState>>);

struct ManualHostState {
    host: TestHost,
    now: Duration,
    /// It does nothing at all.
    is_deaf: bool,
}

impl ManualHost {
    fn new(channel: &TestChannel, temper: HostBehaviour) -> Self {
        let host = channel.host(temper, channel.pass().1);
        Self(Rc::new(RefCell::new(ManualHostState { host, now: Duration::from_secs(1000), is_deaf: false })))
    }

    fn host(&self) -> RefMut<'_, TestHost> {
        RefMut::map(self.0.borrow_mut(), |state| &mut state.host)
    }

    /// Makes the host hold back the messages that `holds` selects, and reply to flushes like this.
    fn holds(&self, holds: impl FnMut(&Tmsg<'_>) -> bool + Send + 'static, flushed: FlushReply) {
        let mut host = self.host();
        (host.holds, host.flushed) = (Box::new(holds), flushed);
    }

    fn is_deaf(&self, is_deaf: bool) {
        self.0.borrow_mut().is_deaf = is_deaf;
    }

    /// The host takes a step, or time advances to `end`.
    fn step(&self, end: Duration) {
        let mut state = self.0.borrow_mut();
        let ManualHostState { host, now, is_deaf } = &mut *state;
        if !*is_deaf && host.end.life() == Life::Another {
            host.end.serve();
        } else if *is_deaf || !host.turn() {
            *now = end;
        }
    }
}

impl Line for ManualHost {
    fn ring(&self) {}

    fn sleep(&self) -> bool {
        panic!("nobody sleeps for ever")
    }

    fn is_gone(&self) -> bool {
        // A polling guest calls this; meanwhile the host and the clock proceed.
        self.step(self.now() + Duration::from_secs(1));
        false
    }

    fn now(&self) -> Duration {
        self.0.borrow().now
    }

    fn sleep_until(&self, end: Duration) -> bool {
        self.step(end);
        true
    }

    fn looks(&self) -> u32 {
        100
    }
}

fn options(wait: Wait) -> Options {
    Options { wait, patience: Some(PATIENCE), ..Options::default() }
}

/// Returns a guest with an open file of 100,000 bytes, and its host.
fn opened(pages: u32, wait: Wait) -> (Client<ManualHost>, File, ManualHost, TestChannel) {
    let channel = TestChannel::new(64, pages);
    let hand = ManualHost::new(&channel, HostBehaviour { msize: 8192, ..MILD });
    hand.host().files.0[2].bytes = some(100_000);
    let mut client = Client::join(channel.memory.clone(), hand.clone(), options(wait)).unwrap();
    let root = client.attach("glenda", "").unwrap();
    let file = client.open(&root, "data", OpenFlags::RDWR).unwrap();
    client.clunk(root).unwrap();
    (client, file, hand, channel)
}

const WAYS: [Wait; 3] = [Wait::Interrupt, Wait::Adaptive, Wait::Poll];

fn holds_all(_: &Tmsg<'_>) -> bool {
    true
}

fn late(error: &Error) -> bool {
    error.errno == Errno::ETIMEDOUT && error.ename().contains("given up")
}

#[test]
fn what_is_not_answered_in_time_is_as_if_it_had_not_been_asked() {
    for wait in WAYS {
        let (mut client, file, hand, _channel) = opened(4, wait);
        let bytes = hand.host().files.0[2].bytes.clone();
        for round in 0..100 {
            hand.holds(holds_all, FlushReply::Rflush);
            let before = hand.now();
            let mut into = [0; 8000];
            let error = match round % 7 {
                0 => client.read(&file, 0, &mut into).unwrap_err(),
                1 => client.read(&file, 0, &mut into[..10]).unwrap_err(),
                2 => client.write(&file, 0, &[0; 8000]).unwrap_err(),
                3 => client.stat(&file).map(drop).unwrap_err(),
                4 => client.walk(&file, "").map(drop).unwrap_err(),
                5 => client.attach("glenda", "").map(drop).unwrap_err(),
                _ => client.fsync(&file).unwrap_err(),
            };
            assert!(late(&error), "{error}");
            let waited = hand.now() - before;
            assert!((PATIENCE..PATIENCE + Duration::from_secs(2)).contains(&waited), "{waited:?}");
            // No room and no fid was lost; nothing was written.
            hand.holds(|_| false, FlushReply::Rflush);
            drop(client.buffer(4 * 4096).unwrap());
            assert_eq!(client.read(&file, 0, &mut into).unwrap(), 8000);
            assert!(into == bytes[..8000]);
            let walked = client.walk(&file, "").unwrap();
            client.clunk(walked).unwrap();
        }
        client.clunk(file).unwrap();
        drop(client.attach("glenda", "").unwrap());
        drop(client.attach("glenda", "").unwrap());
        assert_eq!(hand.host().session.fids.len(), 1, "and one that was dropped");
    }
}

#[test]
fn an_answer_that_comes_before_the_rflush_counts() {
    for wait in WAYS {
        let (mut client, file, hand, _channel) = opened(4, wait);
        let bytes = hand.host().files.0[2].bytes.clone();
        for len in [10, 8000] {
            let mut into = vec![0; len];
            hand.holds(holds_all, FlushReply::Answer);
            assert_eq!(client.read(&file, 0, &mut into).unwrap(), len);
            assert!(into == bytes[..len]);
            assert_eq!(client.write(&file, 50_000, &into).unwrap(), len);
            assert_eq!(client.stat(&file).unwrap().size, 100_000);
            hand.holds(holds_all, FlushReply::Interrupted);
            assert_eq!(client.read(&file, 0, &mut into).unwrap_err().errno, Errno::EINTR);
            assert_eq!(client.stat(&file).unwrap_err().errno, Errno::EINTR);
        }
        client.is_alive().unwrap();
    }
}

#[test]
fn fids_are_what_the_host_says_they_are() {
    let (mut client, file, hand, _channel) = opened(4, Wait::Interrupt);
    let root = client.attach("glenda", "").unwrap();
    let fids = || hand.host().session.fids.len();
    assert_eq!(fids(), 2);
    // A clunk that timed out: the fid still exists, and is clunked with the next walk.
    hand.holds(holds_all, FlushReply::Rflush);
    assert!(late(&client.clunk(file).unwrap_err()));
    assert!(late(&client.attach("glenda", "").unwrap_err()), "the clunk first, then this");
    assert_eq!(fids(), 2);
    hand.holds(|_| false, FlushReply::Rflush);
    let file = client.walk(&root, "data").unwrap();
    assert_eq!(fids(), 2);
    // A clunk that is answered in spite of the flush has succeeded.
    hand.holds(holds_all, FlushReply::Answer);
    client.clunk(file).unwrap();
    assert_eq!(fids(), 1);
    // The same for removed files, and for files that were only walked to.
    hand.holds(|_| false, FlushReply::Rflush);
    let new = client.create(&root, "new", OpenFlags::RDWR, 0o600).unwrap();
    hand.holds(|ask| matches!(ask, Tmsg::Remove { .. } | Tmsg::Lopen { .. }), FlushReply::Rflush);
    assert!(late(&client.remove(new).unwrap_err()));
    assert!(late(&client.open(&root, "data", OpenFlags::READ).unwrap_err()));
    drop(client.walk(&root, "").unwrap());
    drop(client.walk(&root, "new").unwrap());
    assert_eq!(fids(), 2);
}

#[test]
fn of_a_large_transfer_comes_what_was_answered_in_a_row() {
    for (wait, flushed) in WAYS
        .into_iter()
        .flat_map(|wait| [FlushReply::Rflush, FlushReply::Answer].map(|flushed| (wait, flushed)))
    {
        let (mut client, file, hand, _channel) = opened(64, wait);
        let bytes = hand.host().files.0[2].bytes.clone();
        for held in [0, 20_000, 90_000] {
            let here = move |ask: &Tmsg<'_>| match ask {
                Tmsg::Read { offset, count, .. } => *offset <= held && held < offset + u64::from(*count),
                _ => false,
            };
            hand.holds(here, flushed);
            let mut into = vec![0; 100_000];
            match client.read(&file, 0, &mut into) {
                Ok(len) if flushed == FlushReply::Answer => assert_eq!(len, 100_000),
                Ok(len) => assert!(held - 8192 < len as u64 && len as u64 <= held, "{len} before {held}"),
                Err(error) => assert!(held == 0 && late(&error), "{error}"),
            }
            assert!(
                into.iter().zip(&bytes).take_while(|(a, b)| a == b).count() >= held as usize / 8192 * 8192
            );
            hand.holds(|_| false, flushed);
            assert_eq!(client.read(&file, 0, &mut into).unwrap(), 100_000);
            assert!(into == bytes);
            drop(client.buffer(64 * 4096).unwrap());
        }
    }
}

#[test]
fn a_host_that_does_not_answer_the_flush_is_given_up() {
    for wait in WAYS {
        let (mut client, file, hand, _channel) = opened(4, wait);
        hand.holds(holds_all, FlushReply::Nothing);
        let before = hand.now();
        let error = client.read(&file, 0, &mut [0; 8000]).unwrap_err();
        assert!(error.errno == Errno::ETIMEDOUT && error.ename().contains("channel ends"), "{error}");
        let waited = hand.now() - before;
        assert!((2 * PATIENCE..2 * PATIENCE + Duration::from_secs(2)).contains(&waited), "{waited:?}");
        assert_eq!(client.is_alive().unwrap_err(), error);
        assert_eq!(client.stat(&file).unwrap_err(), error);
        // Then the guest joins again.
        hand.holds(|_| false, FlushReply::Nothing);
        client.reconnect().unwrap();
        let root = client.attach("glenda", "").unwrap();
        drop(client.buffer(4 * 4096).unwrap());
        client.open(&root, "data", OpenFlags::READ).unwrap();
    }
}

#[test]
fn a_host_that_takes_nothing_or_serves_nobody_is_given_up() {
    for wait in WAYS {
        // The data goes through the ring, which has no room for all of it.
        let (mut client, file, hand, _channel) = opened(0, wait);
        hand.is_deaf(true);
        assert_eq!(client.write(&file, 0, &[1; 8000]).unwrap_err().errno, Errno::ETIMEDOUT);
        assert_eq!(client.is_alive().unwrap_err().errno, Errno::ETIMEDOUT);
        assert_eq!(client.reconnect().unwrap_err().errno, Errno::ETIMEDOUT);
        assert!(client.is_alive().is_err());
        hand.is_deaf(false);
        client.reconnect().unwrap();
        let channel = TestChannel::new(64, 4);
        let hand = ManualHost::new(&channel, MILD);
        hand.is_deaf(true);
        let error = Client::join(channel.memory.clone(), hand, options(wait)).err().unwrap();
        assert_eq!(
            (error.errno, error.ename()),
            (Errno::ETIMEDOUT, "the host serves nobody who joins its channel")
        );
    }
}

#[test]
fn a_process_has_a_clock_and_a_host_that_is_woken() {
    for wait in WAYS {
        let channel = TestChannel::new(64, 4);
        let (passed, life) = channel.pass();
        let mut host = channel.host(MILD, life);
        host.holds = Box::new(|ask| matches!(ask, Tmsg::Getattr { .. }));
        let host = std::thread::spawn(move || host.serve());
        let mut client =
            Process::new(passed).unwrap().client_with(Options { wait, ..Options::default() }).unwrap();
        let root = client.attach("glenda", "").unwrap();
        // If the host does not answer the flush in time either, the channel ends.
        client.set_patience(Some(Duration::from_millis(500)));
        assert!(late(&client.stat(&root).unwrap_err()));
        client.set_patience(None);
        client.walk(&root, "data").unwrap();
        drop(client);
        host.join().unwrap();
    }
}

#[test]
fn so_has_a_program_in_c() {
    let given_up = "-1 110 0\n";
    let ended = "-1 110 1\n";
    let held = |ask: &Tmsg<'_>| {
        matches!(ask, Tmsg::Getattr { .. } | Tmsg::Clunk { .. } | Tmsg::Read { offset: 7, .. })
    };
    for (flags, name) in [(PLAIN, "patience"), (SANITIZED, "patience-sanitized")] {
        let program = compiled("tests/patience.c", flags, name);
        for (flushed, said) in [
            (FlushReply::Rflush, [given_up, given_up, given_up, "3000 0 0\n", ""].concat()),
            (FlushReply::Answer, ["0 0 0\n", "3000 0 0\n", "0 0 0\n", "-1 9 0\n"].concat()),
            (FlushReply::Interrupted, ["-1 4 0\n", "-1 4 0\n", "-1 4 0\n", "-1 9 0\n"].concat()),
            (FlushReply::Nothing, [ended, ended, ended, ended, "0 0 0\n"].concat()),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("socket");
            let listener = UnixListener::bind(&path).unwrap();
            let host = std::thread::spawn(move || {
                let (socket, _) = listener.accept().unwrap();
                let channel = TestChannel::new(64, 2);
                let mut host = channel.host(MILD, socket.into());
                host.files.0[2].bytes = b"what is in the file\n".repeat(200);
                (host.holds, host.flushed) = (Box::new(held), flushed);
                Passed::send(&channel.file, &channel.bells[1], &channel.bells[0], &host.life).unwrap();
                host.serve();
            });
            // Far longer than it takes, unless it waits for ever.
            let output = Command::new("timeout").arg("300").arg(&program).arg(&path).output().unwrap();
            host.join().unwrap();
            assert!(output.status.success(), "{flushed:?}: {output:?}");
            assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{flushed:?}");
        }
    }
}
