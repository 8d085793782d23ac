//! The turns of readers and writers.

use nine_stream::{Block, Modules, Pool, Stream, pipe};

use super::hands::{Task, make, now, read};

#[test]
fn the_bytes_of_a_read_follow_each_other_and_readers_have_their_order() {
    let (a, b) = pipe(&make(1000, 100, Modules::default()));
    let (mut one, mut two) = ([0; 4], [0; 4]);
    let first = Task::waiting(b.read(&mut one));
    let mut second = Task::waiting(b.read(&mut two));
    now(a.write(b"abcdefgh")).unwrap();
    assert!(!second.is_woken());
    assert!(second.step().is_none(), "it is not its turn");
    assert_eq!(first.end().unwrap(), 4);
    assert_eq!(second.end().unwrap(), 4);
    assert_eq!((&one, &two), (b"abcd", b"efgh"));
}

#[test]
fn a_reader_that_gives_up_leaves_its_turn_to_the_next() {
    let (a, b) = pipe(&make(1000, 100, Modules::default()));
    let (mut one, mut two) = ([0; 4], [0; 4]);
    let first = Task::waiting(b.read(&mut one));
    let second = Task::waiting(b.read(&mut two));
    now(a.write(b"abcd")).unwrap();
    assert!(first.is_woken() && !second.is_woken());
    drop(first);
    assert_eq!(second.end().unwrap(), 4);
    assert_eq!(&two, b"abcd");
}

#[test]
fn writes_are_whole_and_in_order_also_when_they_have_to_wait() {
    let (a, b) = pipe(&make(64 << 10, 100, Modules::default()));
    let (one, two) = (vec![1; 200_000], vec![2; 100_000]);
    let mut first = Task::waiting(a.write(&one));
    let mut second = Task::waiting(a.write(&two));
    let mut seen = Vec::new();
    let mut done = [false; 2];
    while seen.len() < 300_000 {
        seen.extend(read(&b, 10_000));
        for (n, task) in [&mut first, &mut second].into_iter().enumerate() {
            done[n] |= !done[n] && task.is_woken() && task.step().is_some();
        }
    }
    assert_eq!(done, [true; 2]);
    assert!(seen == [&one[..], &two].concat());
}

#[test]
fn a_write_given_up_in_the_middle_hangs_up_and_one_that_waits_for_its_turn_does_not() {
    let (a, b) = pipe(&make(64 << 10, 100, Modules::default()));
    let data = vec![1; 200_000];
    let first = Task::waiting(a.write(&data));
    let second = Task::waiting(a.write(&data));
    drop(second);
    assert_eq!(read(&b, 10), [1; 10]);
    drop(first);
    let mut bytes = 0;
    let fault = loop {
        match now(b.read_block()) {
            Ok(Some(block)) => {
                assert!(!block.delim, "half a message does not look whole");
                bytes += block.len();
            }
            Ok(None) => panic!("half a message ends in good order"),
            Err(fault) => break fault,
        }
    };
    assert!(bytes < data.len());
    assert!(fault.to_string().contains("in the middle of a message"), "{fault}");
    assert!(now(a.write(b"x")).is_err());
}

#[test]
fn tasks_that_carry_messages_up_one_device_are_let_in_in_order() {
    let (stream, device) = Stream::new(&make(10, 10, Modules::default()));
    now(device.put(Block::from(vec![0; 10]))).unwrap();
    let mut tasks: Vec<_> = (1..=5u8).map(|n| Task::waiting(device.put(Block::from(vec![n; 4])))).collect();
    drop(tasks.remove(1));
    let mut seen: Vec<u8> = Vec::new();
    while seen.len() < 26 {
        seen.extend(now(stream.read_block()).unwrap().unwrap().data());
        tasks.retain_mut(|task| !(task.is_woken() && task.step().is_some()));
    }
    assert!(tasks.is_empty());
    seen.drain(..10);
    assert_eq!(seen, [1u8, 3, 4, 5].map(|n| [n; 4]).concat());
}

#[test]
fn nobody_comes_before_one_who_has_been_woken() {
    let (stream, device) = Stream::new(&make(10, 10, Modules::default()));
    now(device.put(Block::from(vec![0; 10]))).unwrap();
    let waits = Task::waiting(device.put(Block::from(vec![1; 4])));
    assert_eq!(read(&stream, 10), [0; 10]);
    // There is room for both, but the first one is next.
    let (late, fault) = device.try_put(Block::from(vec![2; 4])).unwrap_err();
    assert_eq!((late.len(), fault), (4, None));
    let mut later = Task::waiting(device.put(late));
    waits.end().unwrap();
    later.step().expect("it is its turn").unwrap();
    assert_eq!(read(&stream, 8), [1, 1, 1, 1, 2, 2, 2, 2]);
}

#[test]
fn a_write_waits_while_memory_is_short() {
    let mut make = make(64 << 20, 1000, Modules::default());
    make.pool = Pool::new(2 << 20);
    let (a, b) = pipe(&make);
    let data = vec![3; 16 << 20];
    let mut writer = Task::waiting(a.write(&data));
    let mut seen = 0;
    let mut done = false;
    while let Some(block) = Task::new(b.read_block()).step() {
        seen += block.unwrap().unwrap().len();
        assert!(make.pool.bytes() <= 2 << 20);
        done |= !done && writer.is_woken() && writer.step().is_some();
        if seen == data.len() {
            break;
        }
    }
    assert!(done && seen == data.len());
}
