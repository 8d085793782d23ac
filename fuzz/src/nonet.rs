//! nonet between two ends, one of which may send arbitrary packets.
//!
//! In: any bytes. Checks: no end stores more than its limits or waits for ever; on a wire that loses, repeats and
//! reorders packets, but creates none, messages arrive once and in order.

use std::time::Duration;

use nine_net::nonet::{HEADER, HELD, MESSAGE_MAX, Medium, Nonet, reset};

/// Input: actions of the ends, of the wire, or of an attacker.
pub fn nonet(data: &[u8]) {
    let Some((&kind, mut acts)) = data.split_first() else { return };
    // With an attacker, only the ends' own limits are checked.
    let hostile = kind % 2 == 1;
    let medium = Medium { mtu: Medium::LEAST + usize::from(kind), min: 46 };
    let mut ends =
        [Nonet::call(medium, 4, b"service user".to_vec()), Nonet::answer(medium, 5, Duration::ZERO)];
    let mut now = Duration::ZERO;
    let mut wires = [Vec::new(), Vec::new()];
    let (mut sent, mut came) = ([0u32; 2], [0u32; 2]);
    while let Some((&act, rest)) = acts.split_first() {
        acts = rest;
        let side = usize::from(act & 1);
        let arg = acts.first().copied().unwrap_or(act);
        match act >> 1 & 7 {
            0 | 1 => {
                if ends[side].can_send() {
                    ends[side].send(message(sent[side], arg).into());
                    sent[side] += 1;
                    // No packet may live for 128 messages.
                    if sent[side] % 64 == 0 {
                        wires.iter_mut().for_each(Vec::clear);
                    }
                }
            }
            2 | 3 => {
                for _ in 0..=arg % 8 {
                    let packet: Option<Vec<u8>> = ends[side].poll_packet(now);
                    wires[side].extend(packet);
                }
            }
            4 if !wires[side].is_empty() => {
                let at = usize::from(arg) % wires[side].len();
                // One in four is repeated, one in eight is lost.
                let packet = if arg % 4 == 0 { wires[side][at].clone() } else { wires[side].remove(at) };
                if arg % 8 != 1 {
                    ends[1 - side].handle(now, &packet);
                }
                if wires[side].len() > 64 {
                    wires[side].clear();
                }
            }
            5 => now = ends[side].deadline().map_or(now, |deadline| deadline.max(now)),
            6 if arg == 255 => ends[side].close(),
            6 if hostile => {
                let (packet, rest) = acts.split_at(acts.len().min(usize::from(arg)));
                acts = rest;
                let mut packet = packet.to_vec();
                // With the right circuit and no checksum. Otherwise nearly all packets would be dropped.
                if packet.len() >= HEADER {
                    packet[..3].copy_from_slice(&[4 ^ side as u8, 0, 0]);
                    packet[8..HEADER].fill(0);
                }
                ends[side].handle(now, &packet);
                let _ = reset(&packet, 46);
            }
            _ => take(&mut ends[side], hostile, &mut came[side]),
        }
        for end in &ends {
            assert!(end.held() <= HELD + MESSAGE_MAX + 4096, "{}", end.status());
        }
    }
    // From now on the wire is good. From any state the call ends.
    ends.iter_mut().for_each(Nonet::close);
    for _ in 0..100_000 {
        for side in 0..2 {
            while let Some(packet) = ends[side].poll_packet(now) {
                ends[1 - side].handle(now, &packet);
            }
            take(&mut ends[side], hostile, &mut came[side]);
        }
        match ends.iter().filter_map(Nonet::deadline).min() {
            Some(next) => now = now.max(next),
            None => break,
        }
    }
    assert!(ends.iter().all(|end| end.result().is_some()), "{}; {}", ends[0].status(), ends[1].status());
    if !hostile && ends.iter().all(|end| end.result() == Some(&Ok(()))) {
        assert_eq!(came, [sent[1], sent[0]], "a good end, and something is missing");
    }
}

fn take(end: &mut Nonet, hostile: bool, came: &mut u32) {
    while let Some(got) = end.poll_message() {
        let data = got.data();
        // The fifth byte of a message is the argument from which it was generated.
        assert!(hostile || data == message(*came, data[4]), "message {came} is another one");
        *came += 1;
    }
}

fn message(n: u32, arg: u8) -> Vec<u8> {
    let mut message = n.to_le_bytes().to_vec();
    message.push(arg);
    message.extend((0..usize::from(arg) * usize::from(arg) / 2).map(|at| at as u8 ^ arg));
    message
}
