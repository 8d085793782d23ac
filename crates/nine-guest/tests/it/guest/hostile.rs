//! Hosts with invalid answers.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use nine_guest::{Client, Errno, File, OpenFlags, Options, Process, Wait};
use nine_ring::{Life, MOST, Note, Place};

use crate::guest::host::{MILD, TestChannel, TestHost};

struct TestRandom(u64);

impl TestRandom {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// The pieces of an answer to a request with this tag and room.
type ForgedReply = fn(tag: u16, room: Place) -> Vec<(Vec<u8>, Note)>;

fn message(ty: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    let size = 7 + body.len() as u32;
    [&size.to_le_bytes()[..], &[ty], &tag.to_le_bytes(), body].concat()
}

/// Returns a valid Rread of `count` bytes in the arena, to be modified.
fn placed(tag: u16, room: Place, count: u32) -> (Vec<u8>, Note) {
    let mut head = message(117, tag, &count.to_le_bytes());
    head[..4].copy_from_slice(&(11 + count).to_le_bytes());
    (head, Note::Data(Place { at: room.at, count }))
}

/// Returns a guest with an open file, and its host, which does nothing more.
fn opened() -> (Client<Process>, File, TestHost) {
    let channel = TestChannel::new(64, 8);
    let (passed, life) = channel.pass();
    let mut host = channel.host(MILD, life);
    let thread = std::thread::spawn(move || {
        host.serve_until(|host| host.session.opens == 1);
        host
    });
    let mut client = Process::new(passed)
        .unwrap()
        .client_with(Options { wait: Wait::Interrupt, ..Options::default() })
        .unwrap();
    let root = client.attach("glenda", "").unwrap();
    let file = client.open(&root, "data", OpenFlags::RDWR).unwrap();
    keep(root);
    (client, file, thread.join().unwrap())
}

/// Lets the host answer the next request with this.
fn lie(host: &mut TestHost, lie: ForgedReply) {
    let mut bytes = [0; MOST];
    let piece = loop {
        match host.end.take(&mut bytes).unwrap() {
            Some(piece) => break piece,
            None => std::hint::spin_loop(),
        }
    };
    let tag = u16::from_le_bytes([bytes[5], bytes[6]]);
    let room = match piece.note {
        Note::Room(place) | Note::Data(place) => place,
        Note::None => Place::default(),
    };
    for (bytes, note) in lie(tag, room) {
        host.put(&bytes, note);
    }
}

#[test]
fn an_answer_that_is_none_ends_the_channel() {
    let none: &[(&str, ForgedReply)] = &[
        ("another tag", |tag, _| vec![(message(117, tag + 1, &[0; 4]), Note::None)]),
        ("no tag", |_, room| vec![placed(u16::MAX, room, 3)]),
        ("the answer to something else", |tag, _| vec![(message(119, tag, &[0; 4]), Note::None)]),
        ("a request", |tag, _| vec![(message(116, tag, &[0; 4]), Note::None)]),
        ("an answer that is too short", |tag, _| vec![(message(117, tag, &[0; 3]), Note::None)]),
        ("an error that is too short", |tag, _| vec![(message(7, tag, &[1; 3]), Note::None)]),
        ("an error of another dialect", |tag, _| vec![(message(107, tag, &[9; 3]), Note::None)]),
        ("an error with data", |tag, room| {
            let (mut head, note) = placed(tag, room, 3);
            head[4] = 7;
            vec![(head, note)]
        }),
        ("a count beyond the bytes", |tag, _| {
            vec![(message(117, tag, &[5, 0, 0, 0, 1, 2, 3, 4]), Note::None)]
        }),
        ("bytes beyond the count", |tag, _| vec![(message(117, tag, &[3, 0, 0, 0, 1, 2, 3, 4]), Note::None)]),
        ("more than asked", |tag, room| vec![placed(tag, room, 4001)]),
        ("more than asked, in the ring", |tag, _| {
            let answer = message(117, tag, &[&4001u32.to_le_bytes()[..], &[0; 4001]].concat());
            answer.chunks(MOST).map(|part| (part.to_vec(), Note::None)).collect()
        }),
        ("another place", |tag, room| vec![placed(tag, Place { at: room.at + 1, ..room }, 3)]),
        ("the place of nothing", |tag, room| vec![placed(tag, Place { at: 7 * 4096, ..room }, 3)]),
        ("another count of the place", |tag, room| {
            let (head, _) = placed(tag, room, 3);
            vec![(head, Note::Data(Place { at: room.at, count: 4 }))]
        }),
        ("a place for part of a message", |tag, room| {
            let (head, note) = placed(tag, room, 3);
            vec![(head[..5].to_vec(), Note::None), (head[5..].to_vec(), note)]
        }),
        ("bytes and a place", |tag, room| {
            let (mut head, note) = placed(tag, room, 3);
            head.push(1);
            vec![(head, note)]
        }),
        ("room", |tag, room| vec![(placed(tag, room, 3).0, Note::Room(room))]),
        ("no size", |_, _| vec![(vec![0; 20], Note::None)]),
        ("a size below a head", |_, _| vec![(vec![6, 0, 0, 0, 117, 0, 0], Note::None)]),
        ("a size beyond all", |_, _| vec![(vec![0xff; 20], Note::None)]),
        ("a size beyond what was agreed", |_, _| vec![(vec![1, 0, 16, 0, 117, 0, 0], Note::None)]),
    ];
    for (what, tell) in none {
        let (mut client, file, mut host) = opened();
        let error = std::thread::scope(|scope| {
            scope.spawn(|| lie(&mut host, *tell));
            client.read(&file, 0, &mut [0; 4000]).expect_err(what)
        });
        assert_eq!(error.errno, Errno::EPROTO, "{what}: {error}");
        assert_eq!(client.stat(&file).unwrap_err(), error, "{what}");
        // Then the guest joins again.
        let thread = std::thread::spawn(move || host.serve());
        client.reconnect().unwrap();
        client.attach("glenda", "").unwrap();
        drop(client);
        thread.join().unwrap();
    }
}

#[test]
fn an_answer_to_a_write_is_as_short_as_it_is() {
    let none: &[(&str, ForgedReply)] = &[
        ("more than was written", |tag, _| vec![(message(119, tag, &4001u32.to_le_bytes()), Note::None)]),
        ("bytes behind it", |tag, _| vec![(message(119, tag, &[1, 0, 0, 0, 0]), Note::None)]),
        ("a place", |tag, room| {
            let (mut head, note) = placed(tag, room, 3);
            head[4] = 119;
            vec![(head, note)]
        }),
        ("an Rread", |tag, room| vec![placed(tag, room, 3)]),
    ];
    for (what, tell) in none {
        for len in [4000, 10] {
            let (mut client, file, mut host) = opened();
            let error = std::thread::scope(|scope| {
                scope.spawn(|| lie(&mut host, *tell));
                client.write(&file, 0, &vec![1; len]).expect_err(what)
            });
            assert_eq!(error.errno, Errno::EPROTO, "{what}: {error}");
        }
    }
    // The second copy of an answer is not an answer to the next request.
    let (mut client, file, mut host) = opened();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            lie(&mut host, |tag, _| vec![(message(119, tag, &[0; 4]), Note::None); 2]);
        });
        assert_eq!(client.write(&file, 0, b"").unwrap(), 0);
    });
    assert_eq!(client.write(&file, 0, b"").unwrap_err().errno, Errno::EPROTO);
}

#[test]
fn whatever_a_host_says_a_call_ends() {
    let mut chance = TestRandom(13);
    let (mut errors, mut fine) = (0, 0);
    for _ in 0..300 {
        let (mut client, file, mut host) = opened();
        let mut chance_there = TestRandom(chance.below(u64::MAX) | 1);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for _ in 0..3 {
                    if !answer_by_chance(&mut host, &mut chance_there) {
                        break;
                    }
                }
                // Then the host ends, and a waiting guest gets an error.
                drop(host);
            });
            for _ in 0..3 {
                let mut into = [0; 3000];
                let done = match chance.below(4) {
                    0 => client.read(&file, 0, &mut into).map(|n| assert!(n <= 3000)),
                    1 => client.write(&file, 0, &into).map(|n| assert!(n <= 3000)),
                    2 => client.stat(&file).map(|_| ()),
                    _ => client.walk(&file, "a/b").map(keep),
                };
                *if done.is_ok() { &mut fine } else { &mut errors } += 1;
            }
        });
    }
    assert!(errors > 400 && fine > 5, "{errors} errors, {fine} fine");
}

/// Answers the next request with a valid, slightly wrong or random answer. `false` if there was no request.
fn answer_by_chance(host: &mut TestHost, chance: &mut TestRandom) -> bool {
    let mut bytes = [0; MOST];
    let mut looks = 0;
    let piece = loop {
        match host.end.take(&mut bytes).unwrap() {
            Some(piece) => break piece,
            // The guest may also wait for the rest of a longer answer.
            None if host.end.life() != Life::Same || looks > 300_000 => return false,
            None => looks += 1,
        }
    };
    let room = match piece.note {
        Note::Room(place) | Note::Data(place) => place,
        Note::None => Place::default(),
    };
    let count = chance.below(u64::from(room.count) + 2) as u32;
    let body: Vec<u8> =
        (0..[4, 9, 30, 153, 300][chance.below(5) as usize]).map(|_| chance.below(256) as u8).collect();
    let mut answer = message(bytes[4] + 1, u16::from_le_bytes([bytes[5], bytes[6]]), &body);
    let mut note = Note::None;
    match chance.below(6) {
        0 => (answer, note) = placed(u16::from_le_bytes([bytes[5], bytes[6]]), room, count),
        1 => answer[7..11].copy_from_slice(&0u32.to_le_bytes()),
        2 => {
            answer.truncate(11);
            answer[0] = 11;
            answer[1] = 0;
            answer[7..11].copy_from_slice(&count.to_le_bytes());
        }
        3 => note = Note::Data(Place { at: room.at, count: answer.len() as u32 }),
        _ => {}
    }
    for _ in 0..chance.below(4).saturating_sub(1) {
        let at = chance.below(answer.len() as u64) as usize;
        answer[at] = chance.below(256) as u8;
    }
    let cut = 1 + chance.below(answer.len() as u64) as usize;
    if note != Note::None {
        host.put(&answer, note);
    } else {
        answer.chunks(cut).for_each(|part| host.put(part, note));
    }
    true
}

#[test]
fn what_is_changed_under_its_eyes_hurts_nobody_else() {
    let mut chance = TestRandom(5);
    for round in 0..40 {
        let channel = TestChannel::new(64, 8);
        let (passed, life) = channel.pass();
        let mut host = channel.host(MILD, life);
        let memory = channel.memory.clone();
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let mut scribbler = TestRandom(chance.below(u64::MAX) | 1);
            let stop = &stop;
            scope.spawn(move || {
                // Answers, and meanwhile overwrites both rings, the arena, and the words of the first page.
                let mut serves = 0;
                while !stop.load(Ordering::Relaxed) && serves < 200_000 {
                    serves += 1;
                    match host.end.life() {
                        Life::Another => host.end.serve(),
                        _ => {
                            let served =
                                std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| host.turn()));
                            if served.is_err() {
                                break;
                            }
                        }
                    }
                    if serves > 100 && round % 2 == 0 || serves > 1000 {
                        let down = 4096 + 64 * 64;
                        let at = match scribbler.below(4) {
                            0 => down + 4 * scribbler.below(64 * 16),
                            1 => down + 64 * 64 + 4 * scribbler.below(8 * 1024),
                            2 => [128, 132, 136, 256, 320, 384, 448][scribbler.below(7) as usize],
                            _ => down + 64 * scribbler.below(64) + 4,
                        };
                        memory.write(at as usize, &(scribbler.below(1 << 32) as u32).to_le_bytes());
                    }
                }
            });
            let options = Options { wait: Wait::Adaptive, msize: 4096, ..Options::default() };
            let Ok(mut client) = Process::new(passed).unwrap().client_with(options) else { return };
            let mut bytes = [7; 20_000];
            let done: nine_guest::Result<()> = (0..50).try_for_each(|_| {
                let root = client.attach("glenda", "")?;
                let file = client.open(&root, "data", OpenFlags::RDWR)?;
                client.write(&file, 0, &bytes)?;
                assert!(client.read(&file, 0, &mut bytes)? <= 20_000);
                client.clunk(file)
            });
            stop.store(true, Ordering::Relaxed);
            // Any result is accepted.
            drop(done);
            assert!(matches!(client.is_alive().map_err(|error| error.errno), Ok(()) | Err(_)));
        });
    }
}

/// Keeps a file, so that it is not dropped and clunked.
fn keep(file: File) {
    static KEPT: Mutex<Vec<File>> = Mutex::new(Vec::new());
    KEPT.lock().unwrap().push(file);
}
