//! Guests and a server's channels when processors are scarce: sleeping threads are woken for each answer and each
//! request.
//!
//! This file is a program of its own because its threads would take the processors from concurrent tests.

#[path = "it/common/mod.rs"]
mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::Server;
use nine_guest::{Dialect, OpenFlags, Options, Process, Wait};

/// Far longer than it can take: after a lost wake-up it never ends.
const DEADLINE: Duration = Duration::from_secs(300);
const GUESTS: usize = 3;
/// More than there are processors, or nearly as many.
const HOGS: usize = 3;

#[test]
fn every_request_is_answered_beside_threads_that_never_sleep() {
    beside_hogs(150);
}

#[test]
#[ignore = "minutes"]
fn every_request_is_answered_beside_threads_that_never_sleep_for_long() {
    beside_hogs(15_000);
}

fn beside_hogs(rounds: usize) {
    for (way, wait) in [("interrupt", Wait::Interrupt), ("adaptive", Wait::Adaptive)] {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("home.ns"), "mount ram: /\n").unwrap();
        let socket = dir.path().join("s");
        let server = Server::in_dir(
            dir,
            &["serve", "home.ns", "--listen", &format!("shm!{} -{way}", socket.display())],
        );
        let hogs = Hogs::start();
        let done: Vec<_> = (0..GUESTS).map(|_| Arc::new(AtomicUsize::new(0))).collect();
        let (ended, ends) = mpsc::channel();
        for (n, done) in done.iter().cloned().enumerate() {
            let (socket, ended) = (socket.clone(), ended.clone());
            thread::spawn(move || {
                let options = Options { wait, dialect: Dialect::L, msize: 8192, ..Options::default() };
                let mut client = Process::dial(socket).unwrap().client_with(options).unwrap();
                let root = client.attach("", "").unwrap();
                let file = client.create(&root, format!("f{n}"), OpenFlags::RDWR, 0o644).unwrap();
                let bytes: Vec<u8> = (0..40_000).map(|i| (i * 7 + i / 251 + n) as u8).collect();
                let mut again = vec![0; bytes.len()];
                for round in 0..rounds {
                    let len = if round % 50 == 0 { bytes.len() } else { 1 + round % 700 };
                    assert_eq!(client.write(&file, 0, &bytes[..len]).unwrap(), len);
                    done.fetch_add(1, Ordering::Relaxed);
                    assert_eq!(client.read(&file, 0, &mut again[..len]).unwrap(), len);
                    assert!(again[..len] == bytes[..len], "guest {n}, round {round}");
                    done.fetch_add(1, Ordering::Relaxed);
                }
                ended.send(()).unwrap();
            });
        }
        drop(ended);
        for _ in 0..GUESTS {
            let waited = ends.recv_timeout(DEADLINE);
            let answered: Vec<_> = done.iter().map(|done| done.load(Ordering::Relaxed)).collect();
            assert!(
                waited.is_ok(),
                "{way}: {waited:?}; of {} writes and reads in turn were answered, by guest: {answered:?}\n{}",
                2 * rounds,
                server.log()
            );
        }
        drop(hogs);
    }
}

struct Hogs(Arc<AtomicBool>);

impl Hogs {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..HOGS {
            let stop = stop.clone();
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Hogs {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
