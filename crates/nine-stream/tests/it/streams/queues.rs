//! The limits of queues, and the order of wake-ups.

use nine_stream::{Block, Chain, Limit, Modules, Queue, Stream, pipe};

use super::hands::{Task, make, now, read};

fn block(n: usize) -> Block {
    vec![7; n].into()
}

fn message(text: &str) -> Block {
    let mut block = Block::from(text.as_bytes().to_vec());
    block.delim = true;
    block
}

#[test]
fn a_queue_takes_up_to_its_limit_and_refuses_until_it_is_half_empty() {
    let mut queue = Queue::new(Limit { bytes: 100, blocks: 10 });
    for _ in 0..4 {
        queue.put(block(25).into()).unwrap();
    }
    assert_eq!((queue.bytes(), queue.blocks()), (100, 4));
    assert!(queue.put(block(1).into()).is_err());
    queue.pop();
    assert!(queue.put(block(1).into()).is_err(), "more than half of it is there");
    assert!(!queue.relieved());
    queue.pop();
    assert!(queue.relieved(), "half of it is there");
    assert!(!queue.relieved(), "that is said once");
    queue.put(block(50).into()).unwrap();
    assert!(queue.put(block(1).into()).is_err());
}

#[test]
fn blocks_count_as_well_as_bytes() {
    let mut queue = Queue::new(Limit { bytes: 100, blocks: 2 });
    queue.put(block(0).into()).unwrap();
    queue.put(block(0).into()).unwrap();
    assert!(queue.put(block(0).into()).is_err());
}

#[test]
fn a_chain_is_taken_whole_or_not_at_all_and_one_that_is_too_large_alone() {
    let chain = |sizes: &[usize]| {
        let mut chain = Chain::default();
        chain.extend(sizes.iter().map(|&n| block(n)));
        chain
    };
    let mut queue = Queue::new(Limit { bytes: 100, blocks: 4 });
    queue.put(chain(&[60, 30])).unwrap();
    let refused = queue.put(chain(&[5, 6])).unwrap_err();
    assert_eq!((refused.len(), refused.blocks()), (11, 2));
    assert_eq!((queue.bytes(), queue.blocks()), (90, 2));
    let mut queue = Queue::new(Limit { bytes: 100, blocks: 4 });
    queue.put(chain(&[500, 500])).unwrap();
    assert_eq!(queue.bytes(), 1000);
    assert!(queue.put(block(0).into()).is_err());
}

#[test]
fn what_is_written_on_one_end_of_a_pipe_is_read_on_the_other_message_by_message() {
    let (a, b) = pipe(&make(1000, 100, Modules::default()));
    for text in ["one", "", "three"] {
        now(a.write(text.as_bytes())).unwrap();
    }
    assert_eq!(read(&b, 100), b"one");
    assert_eq!(read(&b, 100), b"");
    assert_eq!(read(&b, 2), b"th");
    assert_eq!(read(&b, 100), b"ree");
    now(b.write(b"back")).unwrap();
    assert_eq!(read(&a, 100), b"back");
    assert_eq!(a.waiting(), (0, 0));
}

#[test]
fn a_read_waits_for_a_message_or_what_it_wants_or_a_full_queue() {
    let (a, b) = pipe(&make(100, 100, Modules::default()));
    let mut buf = [0; 50];
    let reader = Task::waiting(b.read(&mut buf));
    now(a.put(block(20))).unwrap();
    assert!(!reader.is_woken(), "neither a message nor enough");
    now(a.put(block(29))).unwrap();
    assert!(!reader.is_woken());
    now(a.put(block(1))).unwrap();
    assert_eq!(reader.end().unwrap(), 50);

    let mut buf = [0; 500];
    let reader = Task::waiting(b.read(&mut buf));
    now(a.put(block(80))).unwrap();
    let writer = Task::waiting(a.put(block(80)));
    assert_eq!(reader.end().unwrap(), 80, "there is no room for what it waits for");
    assert!(writer.end().is_ok());
}

#[test]
fn writers_wait_while_the_reader_does_not_read_and_go_on_at_half_in_their_order() {
    let (a, b) = pipe(&make(100, 100, Modules::default()));
    now(a.write(&[0; 100])).unwrap();
    let mut puts: Vec<_> = (1..=3).map(|n| Task::waiting(a.put(block(30 + n)))).collect();
    assert_eq!(read(&b, 49).len(), 49);
    assert!(puts.iter().all(|put| !put.is_woken()), "51 bytes are more than half");
    assert_eq!(read(&b, 1).len(), 1);
    assert!(puts[0].is_woken() && !puts[1].is_woken() && !puts[2].is_woken());
    assert!(puts[0].step().is_some());
    // A put is a turn of its own: its end wakes the next one.
    assert!(puts[1].is_woken());
    assert!(puts[1].step().is_none(), "50 + 31 + 32 bytes are too many");
    assert_eq!(read(&b, 50).len(), 50);
    assert!(puts[1].step().is_some());
    assert!(puts[2].step().is_some());
    assert_eq!([31, 32, 33].map(|n| now(b.read_block()).unwrap().unwrap().len() == n), [true; 3]);
}

#[test]
fn a_pipe_is_full_as_long_as_it_is() {
    let (a, b) = pipe(&make(10, 10, Modules::default()));
    assert!(!a.is_full());
    a.try_put(block(10)).unwrap();
    assert!(a.try_put(block(10)).is_err());
    assert!(a.is_full());
    read(&b, 10);
    assert!(!a.is_full());
    let waits = Task::new(a.put(block(10)));
    drop(waits);
    a.hangup();
    assert!(!a.is_full(), "who asks shall be told");
}

#[test]
fn a_stalled_reader_holds_no_more_than_its_queue() {
    for blocks in [1, 4, 1000] {
        let (a, b) = pipe(&make(64 << 10, blocks, Modules::default()));
        let mut taken = 0;
        while a.try_put(block(1000)).is_ok() {
            taken += 1;
        }
        assert_eq!(taken, blocks.min(65));
        assert_eq!(b.waiting(), (taken * 1000, taken));
    }
}

#[test]
fn a_device_carries_both_ways() {
    let (stream, device) = Stream::new(&make(100, 100, Modules::default()));
    now(device.put(message("in"))).unwrap();
    assert_eq!(read(&stream, 100), b"in");
    let taker = Task::waiting(device.take());
    now(stream.write(b"out")).unwrap();
    assert_eq!(taker.end().unwrap().unwrap().data(), b"out");
    device.hangup(None);
    assert_eq!(read(&stream, 100), b"");
    assert!(now(stream.write(b"more")).is_err());
}

#[test]
fn after_a_hangup_what_has_come_is_read_then_the_end_and_at_last_an_error() {
    let (a, b) = pipe(&make(100, 100, Modules::default()));
    now(a.write(b"last")).unwrap();
    a.hangup();
    assert_eq!(read(&b, 2), b"la");
    assert_eq!(read(&b, 9), b"st");
    for _ in 0..3 {
        assert_eq!(read(&b, 9), b"");
    }
    assert!(now(b.read(&mut [0; 9])).is_err());
    assert!(now(b.write(b"x")).is_err());
    assert!(now(a.write(b"x")).is_err());
}

#[test]
fn a_hangup_ends_every_wait() {
    for by in ["a", "b", "drop b"] {
        let (a, b) = pipe(&make(10, 10, Modules::default()));
        let (mut one, mut two) = ([0; 4], [0; 4]);
        let readers = [Task::waiting(a.read(&mut one)), Task::waiting(a.read(&mut two))];
        now(a.put(block(10))).unwrap();
        let writers = [Task::waiting(a.put(block(10))), Task::waiting(a.put(block(10)))];
        match by {
            "a" => a.hangup(),
            "b" => b.hangup(),
            _ => drop(b),
        }
        let [first, second] = readers;
        assert_eq!(first.end().unwrap(), 0, "{by}");
        assert_eq!(second.end().unwrap(), 0, "{by}");
        let [first, second] = writers;
        assert!(first.end().is_err(), "{by}");
        assert!(second.end().is_err(), "{by}");
    }
}

#[test]
fn the_last_close_ends_the_stream_and_gives_all_memory_back() {
    let make = make(1 << 20, 100, Modules::default());
    let (a, b) = pipe(&make);
    now(a.write(&[1; 300_000])).unwrap();
    let again = a.clone();
    drop(a);
    let reader = Task::new(b.read_block());
    drop(reader);
    now(again.write(b"it is still open")).unwrap();
    drop(again);
    let mut bytes = 0;
    while let Some(block) = now(b.read_block()).unwrap() {
        bytes += block.len();
    }
    assert_eq!(bytes, 300_016);
    now(b.write(b"nobody")).unwrap_err();
    drop(b);
    // All memory is available again.
    let all: Vec<_> = std::iter::from_fn(|| make.pool.try_alloc(1 << 20)).collect();
    assert_eq!(all.len(), 4);
}
