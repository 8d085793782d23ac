//! Bytes in both directions of one connection: one frame in flight per direction, acknowledged by its number.
//!
//! In: bytes, received data and acknowledgements, the time. Out: data to send, and to send again if it was lost; bytes
//! in order; the silence of the other end.
//!
//! Always holds: each frame is accepted once. Unread input has at most the given size.

use std::collections::VecDeque;
use std::time::Duration;

use super::frame::DATA_MAX;

/// A retransmission timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ResendTimer {
    /// Transmissions so far.
    times: u32,
    due: Duration,
    gap: Duration,
}

impl ResendTimer {
    /// Starts after the first transmission.
    pub(crate) fn first(now: Duration) -> Self {
        Self { times: 1, due: now + FIRST, gap: FIRST }
    }

    /// Whether to send again now. `None`: the limit of transmissions is reached.
    pub(crate) fn poll(&mut self, now: Duration, most: u32) -> Option<bool> {
        if now < self.due {
            return Some(false);
        }
        if self.times >= most {
            return None;
        }
        self.times += 1;
        self.gap = (self.gap * 2).min(LAST);
        self.due = now + self.gap;
        Some(true)
    }

    pub(crate) fn due(&self) -> Duration {
        self.due
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct CecTalk {
    /// The number of our latest data.
    seq: u8,
    waiting: VecDeque<u8>,
    flight: Option<(Vec<u8>, ResendTimer)>,
    /// Some of our data was acknowledged.
    acknowledged: bool,
    /// The number of the last accepted data.
    taken: Option<u8>,
    inbox: VecDeque<u8>,
    /// Maximum size of `inbox`, in bytes.
    room: usize,
}

/// The other end no longer answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerSilent;

impl CecTalk {
    /// `first`: the number of our first data.
    pub(crate) fn new(first: u8, room: usize) -> Self {
        Self {
            seq: first.wrapping_sub(1),
            waiting: VecDeque::new(),
            flight: None,
            acknowledged: false,
            taken: None,
            inbox: VecDeque::new(),
            room,
        }
    }

    /// Queues bytes to send.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
    }

    /// Bytes queued, without those in flight.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Whether everything was acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.is_none() && self.waiting.is_empty()
    }

    /// Handles received data. Returns the number to acknowledge.
    pub(crate) fn data(&mut self, seq: u8, data: &[u8]) -> u8 {
        let is_new = self.taken.is_none_or(|last| (1..128).contains(&seq.wrapping_sub(last)));
        if !is_new {
            return seq;
        }
        if self.inbox.len() + data.len() > self.room {
            // The data will be sent again. This answer shows that we are alive.
            return self.taken.unwrap_or(seq.wrapping_sub(1));
        }
        self.inbox.extend(data);
        self.taken = Some(seq);
        seq
    }

    /// Whether either side has accepted data.
    pub(crate) fn has_begun(&self) -> bool {
        self.taken.is_some() || self.acknowledged
    }

    /// Handles an acknowledgement. One of another number shows that the peer is alive.
    pub(crate) fn ack(&mut self, seq: u8) {
        let Some((_, again)) = &mut self.flight else { return };
        if seq == self.seq {
            (self.flight, self.acknowledged) = (None, true);
        } else {
            again.times = 1;
        }
    }

    /// Received bytes, in order. The caller removes them.
    pub(crate) fn inbox(&mut self) -> &mut VecDeque<u8> {
        &mut self.inbox
    }

    /// Returns data to send now, with its number.
    pub(crate) fn poll(&mut self, now: Duration) -> Result<Option<(u8, &[u8])>, PeerSilent> {
        let is_due = match &mut self.flight {
            Some((_, again)) => again.poll(now, TIMES).ok_or(PeerSilent)?,
            None if self.waiting.is_empty() => false,
            None => {
                let data = self.waiting.drain(..self.waiting.len().min(DATA_MAX)).collect();
                self.seq = self.seq.wrapping_add(1);
                self.flight = Some((data, ResendTimer::first(now)));
                true
            }
        };
        Ok(self.flight.as_ref().filter(|_| is_due).map(|(data, _)| (self.seq, data.as_slice())))
    }

    /// When to poll again, at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.flight {
            Some((_, again)) => Some(again.due),
            None => (!self.waiting.is_empty()).then_some(Duration::ZERO),
        }
    }
}

/// The first and the longest interval between transmissions.
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(1);
/// Maximum number of transmissions of the same data.
pub(crate) const TIMES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn read(talk: &mut CecTalk) -> Vec<u8> {
        talk.inbox().drain(..).collect()
    }

    #[test]
    fn one_frame_is_under_way_and_the_next_waits_for_its_acknowledgement() {
        let mut talk = CecTalk::new(255, 100);
        talk.put(&[7; 300]);
        assert_eq!(talk.poll(MS), Ok(Some((255, &[7; 250][..]))));
        assert_eq!(talk.poll(MS), Ok(None));
        talk.ack(254);
        assert_eq!(talk.poll(MS), Ok(None), "of another number");
        talk.ack(255);
        assert_eq!(talk.deadline(), Some(Duration::ZERO));
        assert_eq!(talk.poll(MS), Ok(Some((0, &[7; 50][..]))), "the numbers come round");
        talk.ack(0);
        assert!(talk.is_idle() && talk.deadline().is_none());
    }

    #[test]
    fn what_is_lost_is_sent_again_with_pauses_and_not_for_ever() {
        let mut talk = CecTalk::new(1, 100);
        talk.put(b"a");
        let mut now = MS;
        assert_eq!(talk.poll(now), Ok(Some((1, &b"a"[..]))));
        let mut times = 1;
        let gaps: Vec<u128> = std::iter::from_fn(|| {
            let before = now;
            now = talk.deadline()?;
            assert_eq!(talk.poll(now - MS), Ok(None));
            talk.poll(now).ok()?.expect("it is due");
            times += 1;
            Some((now - before).as_millis())
        })
        .collect();
        assert_eq!((times, &gaps[..4]), (10, &[250, 500, 1000, 1000][..]));
        // A peer that is alive but has no room is waited for.
        talk.ack(0);
        assert!(matches!(talk.poll(talk.deadline().unwrap()), Ok(Some(_))));
    }

    #[test]
    fn what_comes_again_or_late_is_acknowledged_and_taken_once() {
        let mut talk = CecTalk::new(1, 100);
        assert_eq!((talk.data(9, b"a"), talk.data(9, b"a"), talk.data(10, b"b")), (9, 9, 10));
        assert_eq!((talk.data(9, b"a"), talk.data(12, b"c")), (9, 12), "late; behind a gap");
        assert_eq!(read(&mut talk), b"abc");
        assert_eq!((talk.data(12u8.wrapping_add(127), b"d"), talk.data(12, b"c")), (139, 12));
        assert_eq!((talk.data(140, b""), read(&mut talk)), (140, b"d".to_vec()));
    }

    #[test]
    fn what_has_no_room_is_not_taken_and_the_last_one_is_acknowledged() {
        let mut talk = CecTalk::new(1, 3);
        assert_eq!((talk.data(1, b"abcd"), talk.has_begun()), (0, false));
        assert_eq!((talk.data(1, b"ab"), talk.data(2, b"cd")), (1, 1));
        assert_eq!(read(&mut talk), b"ab");
        assert_eq!((talk.data(2, b"cd"), read(&mut talk)), (2, b"cd".to_vec()));
    }
}
