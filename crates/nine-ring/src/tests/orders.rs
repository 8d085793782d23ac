//! The waits and wake-ups of a channel under all orders of its two threads with loom, and many thousands with shuttle.

use super::std;
use std::boxed::Box;
use std::vec;

use crate::*;

#[cfg(nine_loom)]
use loom::{
    sync::{Arc, Condvar, Mutex},
    thread,
};
#[cfg(nine_shuttle)]
use shuttle::{
    sync::{Arc, Condvar, Mutex},
    thread,
};

/// A doorbell that stays rung until it is read.
#[derive(Clone)]
struct Bell(Arc<(Mutex<bool>, Condvar)>);

impl Bell {
    fn new() -> Self {
        Self(Arc::new((Mutex::new(false), Condvar::new())))
    }

    fn ring(&self) {
        *self.0.0.lock().unwrap() = true;
        self.0.1.notify_one();
    }

    fn hear(&self) {
        let mut rung = self.0.0.lock().unwrap();
        while !*rung {
            rung = self.0.1.wait(rung).unwrap();
        }
        *rung = false;
    }
}

/// Creates memory for `lines`, after the words of a small first page.
fn memory(lines: u32) -> Memory {
    Memory::new(SMALL_PAGE + lines as usize * 64)
}

const SMALL_PAGE: usize = 512;

fn tried(f: impl Fn() + Send + Sync + 'static) {
    #[cfg(nine_loom)]
    {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(f);
    }
    #[cfg(nine_shuttle)]
    shuttle::check_random(f, 100_000);
}

/// Creates an end without a first page: these tests need only the rings and the sleep flags.
fn end(side_is_host: bool, lines: u32, memory: &Memory) -> End {
    End::bare(memory.clone(), SMALL_PAGE, lines, side_is_host)
}

#[test]
fn nobody_sleeps_through_a_piece_or_through_room_in_any_order() {
    // Three pieces pass through a ring of one line. The writer waits for room, the reader for pieces.
    tried(|| {
        let memory = memory(1);
        let bells = [Bell::new(), Bell::new()];
        let (mut reader, mut writer) = (end(true, 1, &memory), end(false, 1, &memory));
        let [up, down] = bells.clone();
        let writing = thread::spawn(move || {
            for n in 0..PIECES {
                while !writer.put(&[n], Note::None).unwrap() {
                    writer.may_sleep();
                    if !writer.has_room(1).unwrap() {
                        down.hear();
                    }
                    writer.is_awake();
                }
                if writer.must_ring() {
                    up.ring();
                }
            }
        });
        let [up, down] = bells;
        let mut into: Box<[u8]> = vec![0; MOST].into();
        for n in 0..PIECES {
            let piece = loop {
                if let Some(piece) = reader.take(&mut into).unwrap() {
                    break piece;
                }
                reader.may_sleep();
                if !reader.is_ready() {
                    up.hear();
                }
                reader.is_awake();
            };
            assert_eq!((piece.len, into[0]), (1, n));
            if reader.must_ring() {
                down.ring();
            }
        }
        writing.join().unwrap();
    });
}

const PIECES: u8 = if cfg!(nine_loom) { 2 } else { 6 };

#[test]
fn who_asks_gets_his_answer_in_any_order() {
    tried(|| {
        let memory = Memory::new(SMALL_PAGE + 2 * 64);
        let bells = [Bell::new(), Bell::new()];
        let (mut host, mut guest) = (end(true, 1, &memory), end(false, 1, &memory));
        let [up, down] = bells.clone();
        let serving = thread::spawn(move || {
            let mut into: Box<[u8]> = vec![0; MOST].into();
            for _ in 0..ROUNDS {
                wait(&host, &up);
                let piece = host.take(&mut into).unwrap().unwrap();
                assert!(host.put(&into[..piece.len], Note::None).unwrap());
                if host.must_ring() {
                    down.ring();
                }
            }
        });
        let [up, down] = bells;
        let mut into: Box<[u8]> = vec![0; MOST].into();
        for n in 0..ROUNDS {
            assert!(guest.put(&[n, 7], Note::None).unwrap());
            if guest.must_ring() {
                up.ring();
            }
            wait(&guest, &down);
            let piece = guest.take(&mut into).unwrap().unwrap();
            assert_eq!(into[..piece.len], [n, 7]);
        }
        serving.join().unwrap();
    });
}

const ROUNDS: u8 = if cfg!(nine_loom) { 1 } else { 4 };

fn wait(end: &End, bell: &Bell) {
    while !end.is_ready() {
        end.may_sleep();
        if !end.is_ready() {
            bell.hear();
        }
        end.is_awake();
    }
}

#[test]
#[cfg(nine_shuttle)]
fn whoever_knocks_is_served_in_any_order_and_the_end_is_seen_behind_the_last_piece() {
    shuttle::check_random(
        || {
            let layout = Layout::new(Kind::Bytes, 64, 0, "");
            let memory = Memory::new(layout.size);
            let bells = [Bell::new(), Bell::new()];
            let mut host = End::open(memory.clone(), layout);
            let [up, down] = bells.clone();
            let serving = thread::spawn(move || {
                let mut into: Box<[u8]> = vec![0; MOST].into();
                let (mut come, mut lives) = (0, 0);
                loop {
                    match host.life() {
                        Life::Another => {
                            (lives, come) = (lives + 1, 0);
                            host.serve();
                        }
                        life => {
                            let piece = host.take(&mut into).unwrap();
                            come += u32::from(piece.is_some());
                            if life == Life::Ended && piece.is_none() {
                                return (lives, come);
                            }
                        }
                    }
                    if host.must_ring() {
                        down.ring();
                    }
                    host.may_sleep();
                    if host.life() == Life::Same && !host.is_ready() {
                        up.hear();
                    }
                    host.is_awake();
                }
            });
            let [up, down] = bells;
            for pieces in [1, 2] {
                let knocking = Guest::join(memory.clone()).unwrap();
                if knocking.must_ring() {
                    up.ring();
                }
                let mut guest = loop {
                    knocking.may_sleep();
                    if let Some(end) = knocking.served() {
                        break end;
                    }
                    down.hear();
                };
                guest.is_awake();
                for _ in 0..pieces {
                    assert!(guest.put(b"x", Note::None).unwrap());
                    if guest.must_ring() {
                        up.ring();
                    }
                }
                if pieces == 2 {
                    guest.end();
                    if guest.must_ring() {
                        up.ring();
                    }
                }
            }
            assert_eq!(serving.join().unwrap(), (2, 2));
        },
        20_000,
    );
}

#[test]
#[cfg(nine_shuttle)]
fn a_sleeper_who_does_not_look_again_is_found_in_any_order() {
    // A planted fault shows that the checker detects a lost wake-up. (loom detects it, and ends the process.)
    let lost = std::panic::catch_unwind(|| {
        tried(|| {
            let memory = memory(1);
            let bell = Bell::new();
            let (mut reader, mut writer) = (end(true, 1, &memory), end(false, 1, &memory));
            let up = bell.clone();
            let writing = thread::spawn(move || {
                assert!(writer.put(b"x", Note::None).unwrap());
                if writer.must_ring() {
                    up.ring();
                }
            });
            if !reader.is_ready() {
                reader.may_sleep();
                bell.hear();
            }
            let mut into: Box<[u8]> = vec![0; MOST].into();
            assert!(reader.take(&mut into).unwrap().is_some());
            writing.join().unwrap();
        });
    });
    assert!(lost.is_err(), "the lost wake-up was not found");
}
