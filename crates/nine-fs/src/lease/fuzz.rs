//! Fuzzing: an arbiter with any content and valid sums, on a disk that does anything.
//!
//! In: bytes from a fuzzer. Out: nothing. A panic, or a machine that makes endless requests, is a finding.

use std::time::Duration;

use bytes::Bytes;
use nine_block::{Error, Kind};

use super::State;
use super::arbiter::{ArbiterHeader, SlotCopy, seal};
use super::machine::{LeaseAction, LeaseMachine, LeaseWish};

const IDENTITY: [u8; 16] = [7; 16];
const PLACE: usize = 4096;

/// Decodes any bytes as a header and as slots. Then runs a script of events for a machine: each byte is one.
pub fn lease(data: &[u8]) {
    let mut header = vec![0; PLACE];
    fill(&mut header, 8, data, b"9foldA\0\0");
    seal(&mut header);
    if let Ok(it) = ArbiterHeader::decode(&header) {
        assert_eq!(ArbiterHeader::decode(&it.encode()), Ok(it));
    }
    let _ = slot(data, data.first().copied().unwrap_or(0), true);
    let names = vec!["mars".to_owned(), "venus".to_owned()];
    let header = ArbiterHeader { identity: IDENTITY, period: Duration::from_secs(4), floor: 3, names };
    let mut machine = LeaseMachine::new(header.clone(), 1, [1; 16], 5);
    let (mut now, mut acts) = (Duration::ZERO, data);
    let mut places = [[header.encode(), header.encode()], fresh(1), fresh(2)];
    while let Some((&act, rest)) = acts.split_first() {
        acts = rest;
        let arg = rest.first().copied().unwrap_or(act);
        let copy = usize::from(arg & 1);
        match act % 8 {
            0 => now += Duration::from_millis(u64::from(arg) * 20),
            1 => machine
                .wish(now, if arg & 1 == 0 { LeaseWish::Watch } else { LeaseWish::Main(u64::from(arg)) }),
            2 => machine.force(),
            // The slot of the other machine, or a change of our own: any record, or invalid bytes.
            3 => places[2][copy] = slot(rest, 2, arg & 2 == 0),
            4 if arg > 200 => places[1][copy] = slot(rest, 1, arg & 2 == 0),
            5 if arg > 250 => places[0][copy] = slot(rest, 0, false),
            _ => {}
        }
        for _ in 0..8 {
            match machine.next(now) {
                LeaseAction::Look => {
                    let read = |bytes: &Bytes| match act {
                        240..245 => Err(Error::new(Kind::Down, "away")),
                        245.. => Err(Error::new(Kind::Failed, "torn")),
                        _ => Ok(bytes.clone()),
                    };
                    let reads = places.iter().map(|[one, two]| [read(one), read(two)]).collect();
                    machine.looked(now, reads);
                }
                LeaseAction::Write(at, bytes) => {
                    let place = (at / super::arbiter::PER) as usize;
                    assert!(place % 16 == 1, "it writes another's place");
                    if act & 64 == 0 {
                        places[1][place / 16] = bytes;
                    }
                    machine
                        .wrote(now, if act & 32 == 0 { Ok(()) } else { Err(Error::new(Kind::Down, "away")) });
                }
                LeaseAction::Wait(until) => assert!(until > now, "it would ask without an end"),
                LeaseAction::Over => assert!(matches!(machine.state(now), State::Lost { .. })),
            }
        }
    }
}

fn fresh(machine: u8) -> [Bytes; 2] {
    [0, 1].map(|copy| super::arbiter::MachineRecord::fresh(machine, copy).encode(&IDENTITY))
}

/// Returns a copy of a slot with any bytes; mostly with the right machine.
fn slot(data: &[u8], machine: u8, sealed: bool) -> Bytes {
    let mut place = vec![0; PLACE];
    fill(&mut place, 12, data, b"9foldM\0\0");
    if sealed {
        place[8..12].copy_from_slice(&[1, 0, 0, 0]);
        place[56..72].copy_from_slice(&IDENTITY);
        (place[12], place[13]) = (machine, place[13] % 5);
        // Small numbers.
        for at in [16, 24, 32] {
            place[at + 2..at + 8].fill(0);
        }
        seal(&mut place[..512]);
    }
    let place = Bytes::from(place);
    for copy in 0..2 {
        if let Ok(SlotCopy::Right(record)) = SlotCopy::of(Ok(place.clone()), machine, copy, &IDENTITY) {
            let again = record.encode(&IDENTITY);
            assert_eq!(SlotCopy::of(Ok(again), machine, copy, &IDENTITY), Ok(SlotCopy::Right(record)));
        }
    }
    place
}

fn fill(bytes: &mut [u8], from: usize, data: &[u8], magic: &[u8; 8]) {
    let len = data.len().min(bytes.len() - from);
    bytes[from..from + len].copy_from_slice(&data[..len]);
    bytes[..8].copy_from_slice(magic);
}

#[cfg(test)]
mod tests {
    /// The same with random bytes.
    #[test]
    fn a_machine_bears_whatever_an_arbiter_says() {
        let mut x = 9u64;
        for _ in 0..3000 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (x >> 56) as u8
            })
            .take(300)
            .collect();
            super::lease(&bytes);
        }
    }
}
