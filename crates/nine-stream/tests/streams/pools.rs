//! Memory for blocks.

use nine_stream::{Block, CLASSES, Pool};

use super::hands::Task;

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
