//! Bytes both ways in one conversation: one frame under way in each direction, acknowledged by its number.
//!
//! In: bytes, data and acknowledgements that have come, the time. Out: data to be sent, again where it was lost; bytes
//! in order; that the other end says nothing any more.
//!
//! Always holds: what was taken is taken once; bytes that have come and were not read are at most as many as was said.

use std::collections::VecDeque;
use std::time::Duration;

use super::frame::DATA_MAX;

/// When something is said again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Again {
    /// So often it has been said.
    times: u32,
    due: Duration,
    gap: Duration,
}

impl Again {
    /// It was said for the first time.
    pub(crate) fn first(now: Duration) -> Self {
        Self { times: 1, due: now + FIRST, gap: FIRST }
    }

    /// Whether it is said again now. `None`: it has been said often enough.
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
pub(crate) struct Talk {
    /// The number of our latest data.
    seq: u8,
    waiting: VecDeque<u8>,
    flight: Option<(Vec<u8>, Again)>,
    /// Something was acknowledged.
    acknowledged: bool,
    /// The number of what was taken last.
    taken: Option<u8>,
    inbox: VecDeque<u8>,
    /// Bytes of it.
    room: usize,
}

/// The other end says nothing any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Silent;

impl Talk {
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

    /// To be sent, behind what waits.
    pub(crate) fn put(&mut self, bytes: &[u8]) {
        self.waiting.extend(bytes);
    }

    /// Bytes that wait to be sent, without those under way.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// All was acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.flight.is_none() && self.waiting.is_empty()
    }

    /// Data has come: the number to be acknowledged.
    pub(crate) fn data(&mut self, seq: u8, data: &[u8]) -> u8 {
        let is_new = self.taken.is_none_or(|last| (1..128).contains(&seq.wrapping_sub(last)));
        if !is_new {
            return seq;
        }
        if self.inbox.len() + data.len() > self.room {
            // It comes again. This says that we live.
            return self.taken.unwrap_or(seq.wrapping_sub(1));
        }
        self.inbox.extend(data);
        self.taken = Some(seq);
        seq
    }

    /// Whether anything was taken, by either side.
    pub(crate) fn has_begun(&self) -> bool {
        self.taken.is_some() || self.acknowledged
    }

    /// An acknowledgement has come. Of another number it is a sign of life.
    pub(crate) fn ack(&mut self, seq: u8) {
        let Some((_, again)) = &mut self.flight else { return };
        if seq == self.seq {
            (self.flight, self.acknowledged) = (None, true);
        } else {
            again.times = 1;
        }
    }

    /// Bytes that have come, in order, to be taken out.
    pub(crate) fn inbox(&mut self) -> &mut VecDeque<u8> {
        &mut self.inbox
    }

    /// Data that is to be sent now, with its number.
    pub(crate) fn poll(&mut self, now: Duration) -> Result<Option<(u8, &[u8])>, Silent> {
        let is_due = match &mut self.flight {
            Some((_, again)) => again.poll(now, TIMES).ok_or(Silent)?,
            None if self.waiting.is_empty() => false,
            None => {
                let data = self.waiting.drain(..self.waiting.len().min(DATA_MAX)).collect();
                self.seq = self.seq.wrapping_add(1);
                self.flight = Some((data, Again::first(now)));
                true
            }
        };
        Ok(self.flight.as_ref().filter(|_| is_due).map(|(data, _)| (self.seq, data.as_slice())))
    }

    /// When it is to be polled again, at the latest.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        match &self.flight {
            Some((_, again)) => Some(again.due),
            None => (!self.waiting.is_empty()).then_some(Duration::ZERO),
        }
    }
}

/// Before something is said again: at first, and at last.
const FIRST: Duration = Duration::from_millis(250);
const LAST: Duration = Duration::from_secs(1);
/// So often data is sent.
pub(crate) const TIMES: u32 = 10;

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn read(talk: &mut Talk) -> Vec<u8> {
        talk.inbox().drain(..).collect()
    }

    #[test]
    fn one_frame_is_under_way_and_the_next_waits_for_its_acknowledgement() {
        let mut talk = Talk::new(255, 100);
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
        let mut talk = Talk::new(1, 100);
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
        // Somebody who has no room, and says so, is waited for.
        talk.ack(0);
        assert!(matches!(talk.poll(talk.deadline().unwrap()), Ok(Some(_))));
    }

    #[test]
    fn what_comes_again_or_late_is_acknowledged_and_taken_once() {
        let mut talk = Talk::new(1, 100);
        assert_eq!((talk.data(9, b"a"), talk.data(9, b"a"), talk.data(10, b"b")), (9, 9, 10));
        assert_eq!((talk.data(9, b"a"), talk.data(12, b"c")), (9, 12), "late; behind a gap");
        assert_eq!(read(&mut talk), b"abc");
        assert_eq!((talk.data(12u8.wrapping_add(127), b"d"), talk.data(12, b"c")), (139, 12));
        assert_eq!((talk.data(140, b""), read(&mut talk)), (140, b"d".to_vec()));
    }

    #[test]
    fn what_has_no_room_is_not_taken_and_the_last_one_is_acknowledged() {
        let mut talk = Talk::new(1, 3);
        assert_eq!((talk.data(1, b"abcd"), talk.has_begun()), (0, false));
        assert_eq!((talk.data(1, b"ab"), talk.data(2, b"cd")), (1, 1));
        assert_eq!(read(&mut talk), b"ab");
        assert_eq!((talk.data(2, b"cd"), read(&mut talk)), (2, b"cd".to_vec()));
    }
}
