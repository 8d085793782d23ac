//! Outgoing messages: heads in one buffer, large payloads beside it without a copy.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::Bytes;

/// A shorter payload is copied into the buffer, which costs less than a piece of its own.
pub(crate) const COPY: usize = 4 * 1024;
/// Pieces in one vectored write.
pub(crate) const VECTORED_PIECES_MAX: usize = 64;
/// An empty buffer with a larger capacity is freed.
const OUT_CAPACITY_KEPT_MAX: usize = 16 * 1024;

/// See the module. Bounded by the budget of the calls that put messages into it.
#[derive(Default)]
pub(crate) struct OutgoingMessages {
    /// Messages, without the payloads below.
    pub(crate) heads: Vec<u8>,
    /// `(at, payload)`: the payload belongs after `heads[..at]`. Sorted by `at`.
    payloads: VecDeque<(usize, Bytes)>,
    /// Bytes of `heads` that are written.
    done: usize,
}

impl OutgoingMessages {
    pub(crate) fn is_empty(&self) -> bool {
        self.done == self.heads.len() && self.payloads.is_empty()
    }

    /// Adds a payload after the present content of `heads`.
    pub(crate) fn payload(&mut self, payload: Bytes) {
        if payload.len() < COPY {
            self.heads.extend_from_slice(&payload);
        } else {
            self.payloads.push_back((self.heads.len(), payload));
        }
    }

    /// Fills `pieces` with the next bytes, and returns how many pieces it used.
    pub(crate) fn pieces<'a>(&'a self, pieces: &mut [IoSlice<'a>; VECTORED_PIECES_MAX]) -> usize {
        let (mut count, mut at) = (0, self.done);
        for (cut, payload) in &self.payloads {
            if count + 2 > VECTORED_PIECES_MAX {
                return count;
            }
            for piece in [&self.heads[at..*cut], payload] {
                if !piece.is_empty() {
                    pieces[count] = IoSlice::new(piece);
                    count += 1;
                }
            }
            at = *cut;
        }
        if at < self.heads.len() && count < VECTORED_PIECES_MAX {
            pieces[count] = IoSlice::new(&self.heads[at..]);
            count += 1;
        }
        count
    }

    /// Records that `n` more bytes are written.
    pub(crate) fn advance(&mut self, mut n: usize) {
        while let Some((cut, payload)) = self.payloads.front_mut() {
            let head = n.min(*cut - self.done);
            self.done += head;
            n -= head;
            let body = n.min(payload.len());
            drop(payload.split_to(body));
            n -= body;
            if !payload.is_empty() || self.done < *cut {
                break;
            }
            self.payloads.pop_front();
        }
        self.done += n;
        if self.is_empty() {
            self.done = 0;
            self.heads.clear();
            if self.heads.capacity() > OUT_CAPACITY_KEPT_MAX {
                self.heads = Vec::new();
                self.payloads = VecDeque::new();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(out: &OutgoingMessages) -> Vec<u8> {
        let mut pieces = [IoSlice::new(&[]); VECTORED_PIECES_MAX];
        let n = out.pieces(&mut pieces);
        pieces[..n].iter().flat_map(|piece| piece.iter().copied()).collect()
    }

    #[test]
    fn payloads_stand_where_they_belong_however_the_writes_are_cut() {
        for step in [1, 3, 4096, 5000, 100_000] {
            let mut out = OutgoingMessages::default();
            let mut expected = Vec::new();
            for (head, len) in [(&b"one"[..], 5000), (b"two", 10), (b"", 4096), (b"three", 0)] {
                out.heads.extend_from_slice(head);
                out.payload(vec![b'x'; len].into());
                expected.extend_from_slice(head);
                expected.resize(expected.len() + len, b'x');
            }
            let mut got = Vec::new();
            while !out.is_empty() {
                let next = written(&out);
                let n = step.min(next.len());
                got.extend_from_slice(&next[..n]);
                out.advance(n);
            }
            assert_eq!(got, expected, "step {step}");
        }
    }

    #[test]
    fn more_payloads_than_pieces_go_out_in_several_writes() {
        let mut out = OutgoingMessages::default();
        for i in 0..100u8 {
            out.heads.push(i);
            out.payload(vec![i; COPY].into());
        }
        let mut got = Vec::new();
        while !out.is_empty() {
            let next = written(&out);
            assert!(!next.is_empty());
            got.extend_from_slice(&next);
            out.advance(next.len());
        }
        assert_eq!(got.len(), 100 * (COPY + 1));
        assert!(got.chunks(COPY + 1).enumerate().all(|(i, c)| c.iter().all(|&b| usize::from(b) == i)));
    }
}
