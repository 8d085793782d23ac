//! Malicious guests of a server's channels, and guests that are killed, stop, or come by thousands. The server and its
//! other guests continue, and no resources are left.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use nine_guest::{Client, Dialect, File, OpenFlags, Options, Process};
use nine_ring::linux::Passed;
use rustix::fs::{FallocateFlags, OFlags, SealFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::{Server, ended_within};

const LIMIT: Duration = Duration::from_secs(60);
/// Size of the file that all guests read, bytes.
const LEN: usize = 300_000;

/// Starts a server with channels and one file.
fn served() -> Server {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("home.ns"), "mount ram: /\nmount disk:files /files\n").unwrap();
    std::fs::create_dir(dir.path().join("files")).unwrap();
    std::fs::write(dir.path().join("files/data"), bytes()).unwrap();
    let listen = format!("shm!{}", dir.path().join("s").display());
    Server::in_dir(dir, &["serve", "home.ns", "--listen", &listen])
}

fn bytes() -> Vec<u8> {
    (0..LEN).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn socket(server: &Server) -> PathBuf {
    server.dir.path().join("s")
}

/// Receives the descriptors of a new channel, which no guest has joined.
fn given(server: &Server) -> Passed {
    let socket = UnixStream::connect(socket(server)).unwrap();
    Passed::receive(OwnedFd::from(socket)).map_err(|(error, _)| error).unwrap()
}

fn joined(passed: Passed) -> (Client<Process>, File) {
    let mut client = Process::new(passed).unwrap().client().unwrap();
    let root = client.attach("", "").unwrap();
    (client, root)
}

/// Checks that another guest can read the whole file.
#[track_caller]
fn is_well(server: &Server) {
    let (mut client, root) = joined(given(server));
    client.set_patience(Some(LIMIT));
    let file = client.open(&root, "files/data", OpenFlags::READ).unwrap();
    let mut all = vec![0; LEN + 1];
    assert_eq!(client.read(&file, 0, &mut all).unwrap(), LEN);
    assert!(all[..LEN] == bytes());
}

/// Returns the server's number of descriptors, and of mappings of memory files.
fn held(server: &Server) -> (usize, usize) {
    let there = format!("/proc/{}", server.child.id());
    let maps = std::fs::read_to_string(format!("{there}/maps")).unwrap();
    (std::fs::read_dir(format!("{there}/fd")).unwrap().count(), maps.matches("memfd:").count())
}

#[track_caller]
fn nothing_is_left(server: &Server, before: (usize, usize)) {
    while held(server).1 > before.1 || held(server).0 > before.0 {
        thread::yield_now();
    }
    is_well(server);
}

struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn memory_is_neither_cut_nor_sealed_by_a_guest_and_its_holes_are_its_own() {
    let server = served();
    let whole = given(&server);
    let len = rustix::fs::fstat(&whole.memory).unwrap().st_size as u64;
    for size in [0, len - 4096, len + 4096] {
        assert_eq!(rustix::fs::ftruncate(&whole.memory, size), Err(Errno::PERM));
    }
    for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE] {
        assert_eq!(rustix::fs::fcntl_add_seals(&whole.memory, seal), Err(Errno::PERM));
    }
    drop(whole);
    // A punched range becomes zeros: the first page, the rings behind it, the arena, and everything; idle and in use.
    for (at, len) in [(0, 4096), (4096, 64 << 10), (4096 + (128 << 10), len - 4096 - (128 << 10)), (0, len)] {
        let passed = given(&server);
        let memory = passed.memory.try_clone().unwrap();
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let (mut client, root) = joined(passed);
        // It need not fail, but it must end.
        client.set_patience(Some(Duration::from_millis(100)));
        let file = client.open(&root, "files/data", OpenFlags::READ).unwrap();
        let mut all = vec![0; LEN];
        let stop = AtomicUsize::new(0);
        thread::scope(|scope| {
            scope.spawn(|| {
                while stop.load(Ordering::Relaxed) == 0 {
                    rustix::fs::fallocate(&memory, punch, at, len).unwrap();
                }
            });
            for _ in 0..20 {
                if client.read(&file, 0, &mut all).is_err() {
                    break;
                }
            }
            stop.store(1, Ordering::Relaxed);
        });
        is_well(&server);
    }
}

#[test]
fn a_guest_that_makes_bells_wait_holds_up_nobody() {
    let server = served();
    let passed = given(&server);
    let bells = [passed.wait.as_fd(), passed.ring.as_fd()].map(|bell| bell.try_clone_to_owned().unwrap());
    let (mut client, root) = joined(passed);
    for round in 0..100 {
        for bell in &bells {
            rustix::fs::fcntl_setfl(bell, OFlags::NONBLOCK).unwrap();
            let _ = rustix::io::write(bell, &(u64::MAX - 1).to_ne_bytes());
            rustix::fs::fcntl_setfl(bell, OFlags::empty()).unwrap();
        }
        client.walk(&root, "files").unwrap_or_else(|error| panic!("round {round}: {error}"));
    }
    is_well(&server);
}

/// Starts a program that repeatedly reads the file through a channel and prints it.
fn reader(server: &Server) -> Child {
    let address = format!("shm:{}/files/data", socket(server).display());
    let mut command: Command = server.client();
    command.arg("cat").args(std::iter::repeat_n(&address, 20));
    command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap()
}

#[test]
fn guests_are_killed_at_any_moment_and_nothing_is_left() {
    let server = served();
    is_well(&server);
    let before = held(&server);
    let mut chance = Chance(88172645463325252);
    for _ in 0..60 {
        let mut guest = reader(&server);
        let mut out = guest.stdout.take().unwrap();
        // Kill it before its start, or at a random point of its output.
        let mut left = (chance.below(4) * chance.below(5 * LEN as u64)) as usize;
        let mut buf = [0; 8192];
        while left > 0 {
            left = left.saturating_sub(out.read(&mut buf).unwrap().max(1));
        }
        for _ in 0..chance.below(3000) {
            thread::yield_now();
        }
        guest.kill().unwrap();
        guest.wait().unwrap();
    }
    nothing_is_left(&server, before);
}

#[test]
fn a_server_is_killed_at_any_moment_and_its_guests_learn_of_it() {
    let mut chance = Chance(362436069362436069);
    for _ in 0..12 {
        let mut server = served();
        let done = Arc::new(AtomicUsize::new(0));
        let guests: Vec<_> = (0..3)
            .map(|n| {
                let (socket, done) = (socket(&server), done.clone());
                thread::spawn(move || {
                    let options = Options { dialect: Dialect::L, ..Options::default() };
                    let mut client =
                        Process::dial(socket)?.client_with(options).map_err(std::io::Error::other)?;
                    let mut all = vec![n; 20_000];
                    let mut turn = || {
                        let root = client.attach("", "")?;
                        let file = client.create(&root, format!("f{n}"), OpenFlags::RDWR, 0o644)?;
                        for _ in 0..1_000_000 {
                            client.write(&file, 0, &all)?;
                            client.read(&file, 0, &mut all)?;
                            done.fetch_add(1, Ordering::Relaxed);
                        }
                        Ok::<_, nine_guest::Error>(())
                    };
                    turn().map_err(std::io::Error::other)
                })
            })
            .collect();
        let enough = chance.below(2000) as usize;
        while done.load(Ordering::Relaxed) < enough {
            thread::yield_now();
        }
        server.signal(Signal::KILL);
        server.child.wait().unwrap();
        for guest in guests {
            guest.join().unwrap().unwrap_err();
        }
    }
}

#[test]
fn a_guest_that_is_stopped_holds_up_nobody_and_goes_on() {
    let server = served();
    let mut guest = reader(&server);
    let mut out = guest.stdout.take().unwrap();
    let pid = Pid::from_child(&guest);
    let mut all = vec![0; 1000];
    out.read_exact(&mut all).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    (0..20).for_each(|_| is_well(&server));
    kill_process(pid, Signal::CONT).unwrap();
    out.read_to_end(&mut all).unwrap();
    assert!(all == bytes().repeat(20));
    assert!(ended_within(&mut guest, LIMIT).is_some_and(|status| status.success()));
}

#[test]
fn thousands_of_channels_leave_nothing() {
    let server = served();
    is_well(&server);
    let before = held(&server);
    for n in 0..3000 {
        match n % 5 {
            // Connects, and ignores the descriptors.
            0 => drop(UnixStream::connect(socket(&server)).unwrap()),
            // Receives the memory, and does not join.
            1 => drop(given(&server)),
            // Sends data that is not 9P.
            2 => {
                let passed = given(&server);
                let mut life = UnixStream::from(passed.life.try_clone().unwrap());
                life.write_all(b"nothing is said here").unwrap();
                passed.ring.ring();
            }
            _ => drop(joined(given(&server))),
        }
    }
    nothing_is_left(&server, before);
}
