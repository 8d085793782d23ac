//! The rules of docs/channels.md, step by step.

use std::collections::HashMap;
use std::vec;
use std::vec::Vec;

use super::std;
use crate::layout::at;
use crate::*;

pub(super) fn opened(lines: u32, pages: u32) -> (End, Memory) {
    let layout = Layout::new(Kind::GuestAsks, lines, pages, "fs");
    let memory = Memory::zeros(layout.size);
    (End::open(memory.clone(), layout), memory)
}

pub(super) fn joined(lines: u32, pages: u32) -> (End, End, Memory) {
    let (mut host, memory) = opened(lines, pages);
    let guest = Guest::join(memory.clone()).unwrap();
    assert_eq!(host.life(), Life::Another);
    host.serve();
    (host, guest.served().expect("served"), memory)
}

fn take(end: &mut End) -> Option<(Vec<u8>, Note)> {
    let mut bytes = [0; MOST];
    let piece = end.take(&mut bytes).unwrap()?;
    Some((bytes[..piece.len].to_vec(), piece.note))
}

fn some(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + seed * 7) as u8).collect()
}

fn bytes(memory: &Memory, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    memory.read(at, &mut bytes);
    bytes
}

#[test]
fn the_first_page_and_a_line_lie_as_the_document_says() {
    let (mut host, mut guest, memory) = joined(64, 3);
    let page = bytes(&memory, 0, 4096);
    assert_eq!(&page[..12], b"9P chan\n\x01\0\0\0");
    let long = |at: usize| u64::from_le_bytes(page[at..at + 8].try_into().unwrap());
    let word = |at: usize| u32::from_le_bytes(page[at..at + 4].try_into().unwrap());
    assert_eq!((word(12), long(16), word(24), word(28)), (0, 4096 * 6, 1, 64));
    assert_eq!((long(32), long(40), long(48), word(56)), (4096, 8192, 12288, 3));
    assert_eq!(&page[64..96], b"fs\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
    assert_eq!((word(128), word(132), word(136), word(192), word(196)), (1, 1, 0, 1, 0));
    assert_eq!(Layout::read(&memory).unwrap(), *host.layout());

    let room = Note::Room(Place { at: 0x1000, count: 0x234 });
    assert!(guest.put(&some(50, 1), room).unwrap());
    let lines = bytes(&memory, 4096, 128);
    assert_eq!(lines[..16], [1, 0, 0, 0, 50, 0, 2, 0, 0, 0x10, 0, 0, 0x34, 2, 0, 0]);
    assert_eq!(lines[16..64], some(50, 1)[..48]);
    assert_eq!((&lines[64..68], &lines[68..70]), (&[2, 0, 0, 0][..], &some(50, 1)[48..]));
    assert_eq!(take(&mut host), Some((some(50, 1), room)));
    assert_eq!(bytes(&memory, 384, 4), [2, 0, 0, 0]);
    assert!(host.put(b"", Note::None).unwrap());
    assert_eq!(bytes(&memory, 8192, 16), [1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);

    host.may_sleep();
    assert_eq!(bytes(&memory, 256, 4), [1, 0, 0, 0]);
    guest.may_sleep();
    assert_eq!(bytes(&memory, 320, 4), [1, 0, 0, 0]);
    assert!(guest.must_ring() && !guest.must_ring() && host.must_ring());
    guest.end();
    host.end();
    assert_eq!((bytes(&memory, 196, 4), bytes(&memory, 136, 4)), (vec![1, 0, 0, 0], vec![1, 0, 0, 0]));
}

#[test]
fn pieces_of_every_length_come_out_as_they_went_in_round_and_round() {
    let (mut host, mut guest, _) = joined(64, 1);
    let mut waiting = std::collections::VecDeque::new();
    let (mut refused, mut len) = (0, 0);
    for n in 0..12_000 {
        let piece = (some(len, n), Note::None);
        if guest.put(&piece.0, piece.1).unwrap() {
            waiting.push_back(piece);
            len = (len + 1 + n % 3) % (MOST + 1);
        } else {
            refused += 1;
            assert_eq!(take(&mut host), Some(waiting.pop_front().unwrap()));
        }
        assert_eq!(guest.is_drained(), waiting.is_empty());
    }
    while let Some(piece) = waiting.pop_front() {
        assert_eq!(take(&mut host), Some(piece));
    }
    assert!(refused > 1000 && take(&mut host).is_none() && guest.is_drained());
}

#[test]
fn the_longest_piece_fits_into_the_smallest_ring_and_nothing_beside_it() {
    let (mut host, mut guest, _) = joined(64, 0);
    assert!(guest.put(&some(MOST, 1), Note::None).unwrap());
    assert!(!guest.has_room(0).unwrap() && !guest.put(b"", Note::None).unwrap());
    assert_eq!(take(&mut host).unwrap().0, some(MOST, 1));
    assert!(guest.has_room(MOST).unwrap());
}

#[test]
fn numbers_of_lines_go_round() {
    let (mut host, mut guest, _) = joined(64, 0);
    guest.begin_at(u32::MAX - 70);
    host.begin_at(u32::MAX - 70);
    for n in 0..300 {
        let piece = some(n * 5 % 200, n);
        assert!(guest.put(&piece, Note::None).unwrap());
        assert_eq!(take(&mut host).unwrap().0, piece);
    }
}

#[test]
fn a_guest_that_comes_again_begins_with_empty_rings() {
    let (mut host, mut guest, memory) = joined(64, 1);
    for n in 0..40 {
        assert!(guest.put(&some(n, n), Note::None).unwrap() && host.put(&some(n, 1), Note::None).unwrap());
        assert!(n < 20 || (take(&mut host).is_some() && take(&mut guest).is_some()));
    }
    let again = Guest::join(memory.clone()).unwrap();
    assert_eq!((host.life(), guest.life()), (Life::Another, Life::Same));
    assert!(again.served().is_none());
    host.serve();
    assert_eq!(guest.life(), Life::Another, "the one before is told");
    let mut again = again.served().unwrap();
    assert_eq!((host.life(), again.life()), (Life::Same, Life::Same));
    assert!(take(&mut host).is_none() && take(&mut again).is_none());
    assert!(again.put(b"new", Note::None).unwrap());
    assert_eq!(take(&mut host).unwrap().0, b"new");
    again.end();
    assert_eq!(host.life(), Life::Ended);
    let _third = Guest::join(memory).unwrap();
    assert_eq!(host.life(), Life::Another);
}

#[test]
fn a_host_that_comes_again_serves_whoever_knocks() {
    let (host, guest, memory) = joined(64, 1);
    drop(host);
    let knocks = Guest::join(memory.clone()).unwrap();
    let mut host = End::open(memory.clone(), *guest.layout());
    assert_eq!((guest.life(), host.life()), (Life::Another, Life::Another));
    host.serve();
    let mut guest = knocks.served().expect("served by the new one");
    assert_eq!((guest.life(), host.life()), (Life::Same, Life::Same));
    assert!(host.put(b"hello", Note::None).unwrap());
    host.end();
    assert_eq!(guest.life(), Life::Ended);
    assert_eq!(take(&mut guest).unwrap().0, b"hello", "what came before the end");
    assert_eq!(bytes(&memory, at::EPOCH, 4), [2, 0, 0, 0]);
}

#[test]
fn a_host_serves_the_next_guest_in_another_life() {
    let (mut host, mut guest, memory) = joined(64, 0);
    assert!(guest.put(b"unread", Note::None).unwrap());
    host.end();
    guest.end();
    assert_eq!(host.life(), Life::Ended);
    host.begin_again();
    assert_eq!((host.life(), guest.life()), (Life::Same, Life::Another), "who has left is not served again");
    let next = Guest::join(memory.clone()).unwrap();
    assert_eq!(host.life(), Life::Another);
    host.serve();
    let mut next = next.served().unwrap();
    assert_eq!((host.life(), next.life(), take(&mut host)), (Life::Same, Life::Same, None));
    assert!(next.put(b"hello", Note::None).unwrap());
    assert_eq!(take(&mut host).unwrap().0, b"hello");
    assert_eq!(guest.life(), Life::Another);
    // A guest that has asked before is served, too.
    let third = Guest::join(memory).unwrap();
    host.begin_again();
    assert_eq!((host.life(), third.served().is_none()), (Life::Another, true));
    host.serve();
    assert_eq!(third.served().unwrap().life(), Life::Same);
}

#[test]
fn lives_are_never_0() {
    let (_, memory) = opened(64, 0);
    memory.write(at::JOIN, &u32::MAX.to_le_bytes());
    memory.write(at::EPOCH, &u32::MAX.to_le_bytes());
    let mut host = End::open(memory.clone(), Layout::read(&memory).unwrap());
    let guest = Guest::join(memory.clone()).unwrap();
    assert_eq!(
        (bytes(&memory, at::EPOCH, 4), bytes(&memory, at::JOIN, 4)),
        (vec![1, 0, 0, 0], vec![1, 0, 0, 0])
    );
    assert_eq!(host.life(), Life::Another);
    host.serve();
    assert_eq!(guest.served().unwrap().life(), Life::Same);
}

#[test]
fn memory_without_a_channel_is_not_joined() {
    let empty = Memory::zeros(4096);
    assert_eq!(Guest::join(empty).unwrap_err(), Bad::Magic);
    let (_, memory) = opened(64, 2);
    let cut = memory.part(0, memory.len() - 4096).unwrap();
    assert_eq!(Guest::join(cut).unwrap_err(), Bad::Layout);
    assert!(memory.part(4096, memory.len()).is_none() && memory.part(1, 1).is_none());
    let wrong = [
        (8, 2, Bad::Newer(2)),
        (12, 1, Bad::Newer(1)),
        (16, 0, Bad::Layout),
        (24, 3, Bad::Layout),
        (28, 0, Bad::Layout),
        (28, 65, Bad::Layout),
        (28, 1 << 17, Bad::Layout),
        (32, 1, Bad::Layout),
        (36, u32::MAX, Bad::Layout),
        (40, 4096 * 4 + 64, Bad::Layout),
        (48, 0, Bad::Layout),
        (56, 3, Bad::Layout),
        (56, u32::MAX, Bad::Layout),
        (128, 0, Bad::Closed),
    ];
    for (at, value, bad) in wrong {
        let (_, memory) = opened(64, 2);
        memory.write(at, &u32::to_le_bytes(value));
        assert_eq!(Guest::join(memory).unwrap_err(), bad, "{value} at {at}");
    }
}

#[test]
fn a_name_is_what_is_text_of_it() {
    let (_, memory) = opened(64, 0);
    memory.write(at::NAME + 2, b"\xC3\xA4\xFF\xFF");
    assert_eq!(Layout::read(&memory).unwrap().name(), "fsä");
}

#[test]
fn how_full_the_rings_are_is_seen_by_whoever_looks() {
    // Also for line numbers that wrap around.
    for begin in [0, 5, u32::MAX - 104] {
        let (mut host, mut guest, _memory) = joined(64, 0);
        [&mut host, &mut guest].into_iter().for_each(|end| end.begin_at(begin));
        // One round first: initially the marks are 0, which may be a valid mark.
        for _ in 0..64 {
            assert!(guest.put(b"", Note::None).unwrap() && take(&mut host).is_some());
        }
        let watch = host.watch();
        let mut used = 0;
        for len in [0, 48, 49, 108, 109, 1000, 400] {
            assert!(guest.put(&some(len, 3), Note::None).unwrap());
            used += 1 + len.saturating_sub(48).div_ceil(60) as u32;
            assert_eq!(watch.used(), [used, 0], "{begin}");
        }
        while guest.put(b"x", Note::None).unwrap() {}
        assert_eq!(watch.used(), [64, 0], "full");
        assert!(host.put(&some(100, 4), Note::None).unwrap());
        assert_eq!(watch.used(), [64, 2]);
        assert_eq!(take(&mut host), Some((some(0, 3), Note::None)));
        assert_eq!(watch.used(), [63, 2]);
        while take(&mut host).is_some() {}
        assert!(take(&mut guest).is_some());
        assert_eq!(watch.used(), [0, 0]);
    }
}

#[test]
fn an_arena_gives_everything_once() {
    for pages in [0, 1, 2, 63, 64, 65, 200, 4096, 5000, 20_000] {
        let mut arena = Arena::new(pages);
        let mut taken: HashMap<u32, Place> = HashMap::new();
        let mut seed = u64::from(pages) + 1;
        let mut chance = |below: u64| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (seed >> 33) % below
        };
        for _ in 0..3000 {
            if chance(5) < 3 {
                let len = [1, 4096, 4097, 70_000, 1 << 20][chance(5) as usize];
                if let Some(place) = arena.take(len) {
                    let end = place.at + len;
                    assert!(place.count == len && end <= pages * 4096 && place.at.is_multiple_of(4096));
                    for other in taken.values() {
                        assert!(end <= other.at || place.at >= other.at + other.count, "{place:?} {other:?}");
                    }
                    taken.insert(place.at, place);
                    assert!(arena.gauge().pages() <= pages);
                }
            } else if let Some(&at) = taken.keys().min() {
                arena.give(taken.remove(&at).unwrap());
            }
        }
        taken.into_values().for_each(|place| arena.give(place));
        assert_eq!(arena.gauge().pages(), 0);
        let all = (pages > 0).then(|| arena.take(pages * 4096));
        let unit = (pages as usize).div_ceil(4096).max(1) as u32;
        assert!(all.is_none_or(|all| all.is_some() == pages.is_multiple_of(unit)), "whole again: {pages}");
    }
}

#[test]
fn an_arena_that_is_in_use_at_its_ends_is_searched_over_them() {
    let mut arena = Arena::new(100);
    let places: Vec<_> = (0..100).map(|_| arena.take(4096).unwrap()).collect();
    assert!(arena.take(1).is_none() && arena.gauge().pages() == 100);
    places[60..70].iter().for_each(|&place| arena.give(place));
    assert!(arena.take(11 * 4096).is_none());
    assert_eq!(arena.take(10 * 4096).unwrap().at, 60 * 4096);
}

#[test]
fn a_channel_is_found_by_its_name_among_those_before_it() {
    let layouts = ["a", "files", "filesystem"].map(|name| Layout::new(Kind::Bytes, 64, 1, name));
    let memory = Memory::zeros(layouts.iter().map(|layout| layout.size).sum::<usize>() + PAGE);
    let mut at = 0;
    for layout in layouts {
        End::open(memory.part(at, layout.size).unwrap(), layout);
        at += layout.size;
    }
    for (layout, n) in layouts.iter().zip(0..) {
        let (before, found) = Layout::find(&memory, layout.name()).unwrap();
        assert_eq!((found.len(), Layout::read(&found)), (layout.size, Ok(*layout)));
        assert_eq!(found.address(0, 1), memory.address(n * layout.size, 1));
        assert_eq!(before as usize, n);
    }
    for name in ["", "file", "filesystems", "a name that is longer than there is room for"] {
        assert_eq!(Layout::find(&memory, name).unwrap_err(), Bad::Name, "{name}");
    }
    // A damaged channel hides those after it. A size of zero, or beyond the memory, does not cause an endless loop.
    for size in [0u64, 4096, 1 << 20, 1 << 40, u64::MAX] {
        memory.write(layouts[0].size + at::SIZE, &size.to_le_bytes());
        assert!(Layout::find(&memory, "a").is_ok());
        assert_eq!(Layout::find(&memory, "filesystem").unwrap_err(), Bad::Layout);
    }
    memory.write(layouts[0].size, b"x");
    assert_eq!(Layout::find(&memory, "filesystem").unwrap_err(), Bad::Name);
    assert_eq!(Layout::find(&Memory::zeros(0), "a").unwrap_err(), Bad::Name);
}
