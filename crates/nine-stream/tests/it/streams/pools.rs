//! Tests of the memory for blocks.

use nine_stream::{Block, CLASSES, Modules, Pool, pipe};

use super::hands::{Task, make};

const LARGEST: usize = CLASSES[CLASSES.len() - 1];

#[test]
fn a_block_has_the_smallest_size_that_holds_what_is_asked_for() {
    let pool = Pool::new(8 << 20);
    for (asked, got) in [(0, 256), (256, 256), (257, 1024), (65_536, 65_536), (10 << 20, LARGEST)] {
        assert_eq!(pool.try_alloc(asked).unwrap().room().unwrap().len(), got);
    }
}

#[test]
fn memory_goes_back_with_the_last_block_in_it() {
    let pool = Pool::new(0);
    let mut block = pool.try_alloc(LARGEST).unwrap();
    block.fill(b"headbody");
    let head = block.split_to(4);
    assert_eq!((head.data(), block.data()), (&b"head"[..], &b"body"[..]));
    assert!(block.room().is_none(), "another block lies in its memory");
    let all = || {
        let more: Vec<Block> = std::iter::from_fn(|| pool.try_alloc(LARGEST)).collect();
        more.len()
    };
    assert_eq!(all(), 0);
    drop(head);
    assert_eq!(all(), 0);
    assert_eq!(block.data_mut().unwrap(), b"body");
    let bytes = bytes::Bytes::from(block);
    let part = bytes.slice(1..);
    drop(bytes);
    assert_eq!((all(), &part[..]), (0, &b"ody"[..]));
    drop(part);
    assert_eq!(all(), 1);
}

#[test]
fn who_waits_for_memory_is_served_in_order_and_lists_of_other_sizes_give_way() {
    let pool = Pool::new(0);
    let limit: usize = CLASSES.iter().sum();
    let mut small: Vec<Block> = std::iter::from_fn(|| pool.try_alloc(256)).collect();
    assert_eq!(small.len(), limit / 256);
    assert_eq!(pool.bytes(), limit / 256 * 256);
    let mut large = Task::waiting(pool.alloc(LARGEST));
    let little = Task::waiting(pool.alloc(1));
    small.pop();
    assert!(large.is_woken() && large.step().is_none());
    assert!(!little.is_woken(), "what comes free is for who came first");
    assert!(pool.try_alloc(1).is_none(), "and for nobody who comes later");
    drop(small);
    let large = large.end();
    assert!(pool.bytes() <= limit);
    let little = little.end();
    drop((large, little));
    assert!(pool.bytes() <= limit);
}

#[test]
fn who_gives_up_waiting_leaves_the_next_one_its_turn() {
    let pool = Pool::new(0);
    let held = pool.try_alloc(LARGEST).unwrap();
    let first = Task::waiting(pool.alloc(LARGEST));
    let second = Task::waiting(pool.alloc(LARGEST));
    drop(held);
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    second.end();
}

#[test]
fn a_block_outlives_its_pool() {
    let pool = Pool::new(0);
    let mut block = pool.try_alloc(10).unwrap();
    drop(pool);
    assert_eq!(block.fill(b"still here"), 10);
    assert_eq!(block.data(), b"still here");
}

#[test]
fn many_wait_for_memory_and_are_served_in_order_also_when_some_give_up() {
    let pool = Pool::new(0);
    let mut held = pool.try_alloc(LARGEST);
    let mut waiting: Vec<_> = (0..60).map(|n| (n, Task::waiting(pool.alloc(LARGEST)))).collect();
    // Some leave before their turn.
    waiting.retain(|(n, _)| n % 5 != 1);
    let mut served = Vec::new();
    while !waiting.is_empty() {
        for (_, task) in &mut waiting {
            assert!(!task.is_woken() || task.step().is_none(), "there is nothing to have");
        }
        assert!(pool.try_alloc(LARGEST).is_none());
        held = None;
        assert!(held.is_none() && pool.try_alloc(1).is_none(), "it is not for who comes now");
        let (n, first) = waiting.remove(0);
        assert!(first.is_woken() && waiting.iter().all(|(_, task)| !task.is_woken()), "one at a time");
        if n % 3 == 0 {
            // It is dropped right after its wake-up, and so is the next one.
            drop(first);
            let (n, next) = waiting.remove(0);
            served.push(n);
            held = Some(next.end());
        } else {
            served.push(n);
            held = Some(first.end());
        }
    }
    let mut expected = Vec::new();
    let mut rest = (0..60).filter(|n| n % 5 != 1);
    while let Some(n) = rest.next() {
        expected.extend(if n % 3 == 0 { rest.next() } else { Some(n) });
    }
    assert_eq!(served, expected);
    drop(held);
    assert!(pool.try_alloc(LARGEST).is_some());
}

#[test]
fn a_stream_goes_on_when_the_blocks_of_another_leave() {
    let mut make = make(64 << 20, 1000, Modules::default());
    make.pool = Pool::new(2 << 20);
    let (a, b) = pipe(&make);
    let (c, d) = pipe(&make);
    let data = vec![1; 16 << 20];
    let mut greedy = Task::waiting(a.write(&data));
    // The first pipe has no reader. The second one gets no memory, and loses no data.
    let numbers: Vec<[u8; 1]> = (0..10).map(|n| [n]).collect();
    let mut waiting: Vec<_> = numbers.iter().map(|n| Task::waiting(c.write(n))).collect();
    drop(waiting.remove(4));
    assert!(Task::new(d.read_block()).step().is_none());
    let mut seen: Vec<u8> = Vec::new();
    let mut read = 0;
    while seen.len() < 9 {
        assert!(make.pool.bytes() <= 2 << 20);
        let block = Task::new(b.read_block()).step().expect("there is more").unwrap().unwrap();
        read += block.len();
        drop(block);
        waiting.retain_mut(|task| !(task.is_woken() && task.step().is_some()));
        while let Some(block) = Task::new(d.read_block()).step() {
            seen.extend(block.unwrap().unwrap().data());
        }
        assert!(!greedy.is_woken() || greedy.step().is_none());
    }
    assert!(read < data.len(), "it did not have to wait for the end of the other one");
    assert!(waiting.is_empty());
    assert_eq!(seen, [0, 1, 2, 3, 5, 6, 7, 8, 9]);
    drop((greedy, waiting));
    drop((a, b, c, d));
    let all: Vec<Block> = std::iter::from_fn(|| make.pool.try_alloc(LARGEST)).collect();
    assert_eq!(all.len(), 2, "memory has not come back");
}
