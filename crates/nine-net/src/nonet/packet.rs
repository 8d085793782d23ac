//! The packets of nonet: ten bytes and data (`docs/nonet.md`, Packet).
//!
//! In: the bytes of a packet. Out: its header and its data. Always holds: a decoded packet has the right sum, or none.

/// Bytes before the data: `circuit[3] flag[1] mid[1] ack[1] remain[2] sum[2]`.
pub const HEADER: usize = 10;
/// The longest message, in bytes: `remain` is a signed number of 16 bits.
pub const MESSAGE_MAX: usize = i16::MAX as usize;

/// The caller has received nothing from the callee yet.
pub(crate) const NEWCALL: u8 = 1;
/// The sender hangs up.
pub(crate) const HANGUP: u8 = 2;
/// The packet must be acknowledged.
pub(crate) const ACKME: u8 = 4;
/// The data is `SERVICE USER`.
pub(crate) const SERVICE: u8 = 8;
/// The sender does not know the circuit.
pub(crate) const RESET: u8 = 16;

/// Packet sizes of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Medium {
    /// The longest packet, in bytes, header included; at least [`Medium::LEAST`].
    pub mtu: usize,
    /// Shorter packets are padded to this size.
    pub min: usize,
}

impl Medium {
    /// An Ethernet of the usual size.
    pub const ETHER: Self = Self { mtu: 1500, min: 46 };
    /// The smallest possible MTU: the first message of a call must fit in one packet.
    pub const LEAST: usize = 128;

    /// The number of packets of a message.
    pub(crate) fn packets(self, len: usize) -> usize {
        len.div_ceil(self.mtu - HEADER).max(1)
    }
}

/// The header of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NonetHeader {
    pub(crate) circuit: u32,
    pub(crate) flags: u8,
    pub(crate) mid: u8,
    pub(crate) ack: u8,
    pub(crate) remain: i16,
}

impl NonetHeader {
    /// Parses the header. Returns the data after it with its padding. `None`: it is not a packet, or was corrupted.
    pub(crate) fn decode(packet: &[u8]) -> Option<(Self, &[u8])> {
        let (head, data) = packet.split_first_chunk::<HEADER>()?;
        let [a, b, c, flags, mid, ack, d, e, f, g] = *head;
        let sum = u16::from_le_bytes([f, g]);
        if sum != 0 && sum != checksum(packet) {
            return None;
        }
        let (circuit, remain) = (u32::from_le_bytes([a, b, c, 0]), i16::from_le_bytes([d, e]));
        Some((Self { circuit, flags, mid, ack, remain }, data))
    }

    /// Writes the packet, padded to `min`, with its sum.
    pub(crate) fn encode(&self, data: &[u8], min: usize) -> Vec<u8> {
        let mut packet = Vec::with_capacity((HEADER + data.len()).max(min));
        packet.extend_from_slice(&self.circuit.to_le_bytes()[..3]);
        packet.extend_from_slice(&[self.flags, self.mid, self.ack]);
        packet.extend_from_slice(&self.remain.to_le_bytes());
        packet.extend_from_slice(&[0; 2]);
        packet.extend_from_slice(data);
        packet.resize(packet.len().max(min), 0);
        let sum = checksum(&packet);
        packet[8..HEADER].copy_from_slice(&sum.to_le_bytes());
        packet
    }
}

/// The circuit of a packet, which may be invalid otherwise.
pub(crate) fn circuit(packet: &[u8]) -> Option<u32> {
    packet.first_chunk::<3>().map(|&[a, b, c]| u32::from_le_bytes([a, b, c, 0]))
}

/// The answer to a packet of an unknown circuit, if any. Resets, and packets that may arrive many times, get none.
pub fn reset(packet: &[u8], min: usize) -> Option<Vec<u8>> {
    let (head, _) = NonetHeader::decode(packet)?;
    let asks = head.flags & (ACKME | HANGUP) != 0 && head.remain >= 0;
    let answer = NonetHeader {
        circuit: head.circuit ^ 1,
        flags: HANGUP | RESET,
        mid: head.ack,
        ack: head.mid,
        remain: 0,
    };
    (asks && head.flags & RESET == 0).then(|| answer.encode(&[], min))
}

/// The sum of a packet, computed without its own field: 1 to 65535, or 0 if all bytes are 0.
fn checksum(packet: &[u8]) -> u16 {
    let mut sum = 0u64;
    let mut add = |bytes: &[u8]| {
        let (chunks, rest) = bytes.as_chunks::<8>();
        for &[a, b, c, d, e, f, g, h] in chunks {
            let halves = [[a, b, c, d], [e, f, g, h]]
                .map(|[a, b, c, d]| u64::from(a) * 8 + u64::from(b) * 4 + u64::from(c) * 2 + u64::from(d));
            sum = (sum << 8) + (halves[0] << 4) + halves[1];
            sum = (sum & 0xffff) + (sum >> 16);
        }
        for byte in rest {
            sum = (sum << 1) + u64::from(*byte);
        }
        sum = (sum & 0xffff) + (sum >> 16);
    };
    add(&packet[..8]);
    add(&[0; 2]);
    add(&packet[HEADER..]);
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in the manual: one byte after the other.
    fn slow(packet: &[u8]) -> u16 {
        let byte = |(at, byte): (usize, &u8)| if (8..10).contains(&at) { 0 } else { u32::from(*byte) };
        let sum = packet.iter().enumerate().map(byte).fold(0, |sum, byte| (2 * sum + byte) % 65535);
        if sum == 0 && packet.iter().any(|byte| *byte != 0) { 65535 } else { sum as u16 }
    }

    #[test]
    fn a_packet_is_laid_out_as_the_table_says() {
        let head = NonetHeader { circuit: 0x030201, flags: 5, mid: 7, ack: 9, remain: -2 };
        let packet = head.encode(b"ab", 0);
        assert_eq!(packet[..8], [1, 2, 3, 5, 7, 9, 0xfe, 0xff]);
        assert_eq!(packet[10..], *b"ab");
        assert_eq!(NonetHeader::decode(&packet), Some((head, &b"ab"[..])));
        assert_eq!(head.encode(b"ab", 46).len(), 46);
    }

    #[test]
    fn the_sum_is_that_of_one_byte_after_the_other() {
        for len in 0..100 {
            let data: Vec<u8> = (0..len).map(|n| (n * 37 + 250) as u8).collect();
            let head =
                NonetHeader { circuit: 0xffffff, flags: 4, mid: len as u8, ack: 255, remain: len as i16 };
            let packet = head.encode(&data, 46);
            assert_eq!(checksum(&packet), slow(&packet), "{len}");
            assert_ne!(checksum(&packet), 0);
        }
    }

    #[test]
    fn one_flipped_bit_is_always_seen_but_in_a_sum_that_becomes_none() {
        let head = NonetHeader { circuit: 2, flags: 4, mid: 1, ack: 0, remain: 5 };
        let packet = head.encode(b"hello", 46);
        for bit in 0..packet.len() * 8 {
            let mut bent = packet.clone();
            bent[bit / 8] ^= 1 << (bit % 8);
            assert!(NonetHeader::decode(&bent).is_none() || bent[8..10] == [0, 0], "bit {bit}");
        }
        let mut none = packet;
        none[8..10].fill(0);
        assert!(NonetHeader::decode(&none).is_some(), "0 means that there is none");
    }

    #[test]
    fn what_is_too_short_is_no_packet() {
        for len in 0..HEADER {
            assert!(NonetHeader::decode(&[0; HEADER][..len]).is_none());
        }
        assert!(NonetHeader::decode(&[0; HEADER]).is_some());
    }

    #[test]
    fn a_reset_is_not_answered_by_a_reset() {
        let head = NonetHeader { circuit: 8, flags: ACKME, mid: 3, ack: 1, remain: 0 };
        let answer = reset(&head.encode(&[], 46), 46).expect("a message is answered");
        let (said, _) = NonetHeader::decode(&answer).expect("a packet");
        let expected = NonetHeader { circuit: 9, flags: HANGUP | RESET, mid: 1, ack: 3, remain: 0 };
        assert_eq!(said, expected);
        assert!(reset(&answer, 46).is_none());
        let control = NonetHeader { flags: 0, ..head };
        assert!(reset(&control.encode(&[], 46), 46).is_none());
    }
}
