//! No wake-up is lost, even if processors are scarce.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use nine_guest::{Dialect, OpenFlags, Options, Wait};

use crate::guest::host::{HostBehaviour, MILD, some, started};

/// Far longer than it can take; a lost wake-up blocks for ever.
const DEADLINE: Duration = Duration::from_secs(300);

const ROUNDS: usize = 4000;

/// Runs `f` beside threads that never sleep, and fails if it does not end.
fn beside_hogs(hogs: usize, f: impl FnOnce() + Send + 'static) {
    static STOP: AtomicBool = AtomicBool::new(false);
    for _ in 0..hogs {
        std::thread::spawn(|| {
            while !STOP.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
    }
    let (done, is_done) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        f();
        done.send(()).unwrap();
    });
    let waited = is_done.recv_timeout(DEADLINE);
    STOP.store(true, Ordering::Relaxed);
    assert_ne!(waited, Err(mpsc::RecvTimeoutError::Timeout), "somebody sleeps through what he waits for");
    thread.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_beside_threads_that_never_sleep() {
    // A polling host answers just when the guest is about to sleep.
    let ways =
        [(Wait::Interrupt, false), (Wait::Adaptive, false), (Wait::Interrupt, true), (Wait::Adaptive, true)];
    beside_hogs(3, move || {
        for (wait, poll) in ways {
            let options = Options { wait, dialect: Dialect::L, msize: 8192, ..Options::default() };
            // Few lines and a small arena: both sides wait for room, too.
            let (mut client, host) = started(64, 8, HostBehaviour { inline: true, poll, ..MILD }, options);
            let root = client.attach("glenda", "").unwrap();
            let file = client.open(&root, "data", OpenFlags::RDWR).unwrap();
            let bytes = some(40_000);
            let mut again = vec![0; bytes.len()];
            for round in 0..ROUNDS {
                assert_eq!(client.write(&file, 0, &bytes[..round % 3]).unwrap(), round % 3);
                if round % 50 == 0 {
                    assert_eq!(client.write(&file, 0, &bytes).unwrap(), bytes.len());
                    assert_eq!(client.read(&file, 0, &mut again).unwrap(), bytes.len());
                    assert!(again == bytes);
                }
            }
            drop(client);
            host.join();
        }
    });
}
