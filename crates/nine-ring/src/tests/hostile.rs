//! Peers that violate the protocol.

use super::rules::{joined, opened};
use super::std;
use super::std::vec::Vec;
use crate::layout::at;
use crate::*;

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
fn whatever_stands_in_a_line_is_a_piece_or_a_fault() {
    let mut chance = Chance(9);
    let mut seen = [0; 4];
    let (mut host, _, memory) = joined(64, 2);
    for _ in 0..30_000 {
        let knocking = Guest::join(memory.clone()).unwrap();
        host.serve();
        let mut guest = knocking.served().unwrap();
        assert!(guest.put(&[1; 500], Note::None).unwrap());
        let line = 4096 + 64 * chance.below(9) as usize;
        for _ in 0..=chance.below(2) {
            let at = line + 4 * chance.below(5) as usize;
            let value = [chance.below(1 << 32) as u32, chance.below(1 << 14) as u32, 1 << 17, 2 << 16, 3829]
                [chance.below(5) as usize];
            memory.write(at, &value.to_le_bytes());
        }
        let mut into = [0; MOST];
        match host.take(&mut into) {
            Ok(None) => seen[0] += 1,
            Ok(Some(piece)) => {
                seen[1] += 1;
                assert!(piece.len <= MOST);
                if let Note::Data(place) | Note::Room(place) = piece.note {
                    seen[2] += 1;
                    assert!(place.at as usize + place.count as usize <= 8192 && host.place(place).is_some());
                }
            }
            Err(_) => seen[3] += 1,
        }
    }
    assert!(seen.iter().all(|&n| n > 200), "{seen:?}");
}

#[test]
fn lines_that_were_never_written_are_not_taken() {
    for taken in [1, 10, 64, 65, u32::MAX, 1 << 31] {
        let (mut host, _, memory) = joined(64, 0);
        memory.write(at::DOWN_TAKEN, &taken.to_le_bytes());
        let put = (0..65).map(|_| host.put(b"x", Note::None)).find(Result::is_err);
        // An acknowledgement within the written lines harms only the guest.
        assert_eq!(put.is_some(), taken > 64, "{taken}");
        assert!(put.is_none_or(|fault| fault == Err(Fault::Taken)));
    }
    let (mut host, mut guest, memory) = joined(64, 0);
    for _ in 0..100 {
        assert!(host.put(b"x", Note::None).unwrap() && guest.take(&mut [0; MOST]).unwrap().is_some());
    }
    memory.write(at::DOWN_TAKEN, &5u32.to_le_bytes());
    let end = (0..65).map(|_| host.put(b"x", Note::None)).find(Result::is_err);
    assert_eq!(end, Some(Err(Fault::Taken)), "it goes back");
}

#[test]
fn however_full_a_ring_is_said_to_be_it_is_no_fuller_than_it_can_be() {
    let mut chance = Chance(5);
    let (_host, mut guest, memory) = joined(64, 0);
    let watch = guest.watch();
    for _ in 0..30_000 {
        let at =
            [at::UP_TAKEN, at::DOWN_TAKEN, 4096 + 64 * chance.below(128) as usize][chance.below(3) as usize];
        let near = [0, 1, 63, 64, 65, u32::MAX, 1 << 31, chance.below(1 << 32) as u32];
        memory.write(at, &near[chance.below(8) as usize].to_le_bytes());
        assert!(watch.used().iter().all(|&used| used <= 64));
    }
    let _ = guest.put(b"x", Note::None);
}

#[test]
fn a_guest_that_knocks_for_ever_is_served_once_a_look() {
    let (mut host, memory) = opened(64, 1);
    for n in 1..100u32 {
        memory.write(at::JOIN, &n.to_le_bytes());
        assert_eq!(host.life(), Life::Another);
        host.serve();
        assert_eq!(host.life(), Life::Same);
        assert!(host.put(b"x", Note::None).unwrap());
    }
}

#[test]
fn any_first_page_is_a_layout_within_the_memory_or_none() {
    let mut chance = Chance(3);
    let mut sound = 0;
    let (host, memory) = opened(64, 2);
    for _ in 0..30_000 {
        drop(End::open(memory.clone(), *host.layout()));
        memory.write(at::JOIN, &[0; 4]);
        for _ in 0..=chance.below(3) {
            let at = 4 * chance.below(24) as usize;
            let near = [0, 1, 64, 4096, 8192, 12_288, 16_384, 20_480, u32::MAX];
            let value = near[chance.below(9) as usize];
            memory.write(at, &value.to_le_bytes());
        }
        let Ok(layout) = Layout::read(&memory) else { continue };
        sound += 1;
        assert!(layout.size <= memory.len() && layout.arena_len() <= layout.size);
        let Ok(guest) = Guest::join(memory.clone()) else { continue };
        memory.write(at::SERVES, &1u32.to_le_bytes());
        let mut end = guest.served().unwrap();
        let _ = (end.put(&[7; MOST], Note::None), end.take(&mut [0; MOST]), end.life());
        let last = Place { at: layout.pages * 4096, count: 0 };
        assert!(end.place(last).is_some() && end.place(Place { count: 1, ..last }).is_none());
    }
    assert!(sound > 1000, "{sound}");
    let all: Vec<_> =
        [Bad::Magic, Bad::Newer(7), Bad::Layout, Bad::Closed].map(|bad| std::format!("{bad}")).into();
    assert!(all.iter().all(|text| text.len() > 10));
}
