//! The sending side: new data, lost data, and packets due by timers or requested by the peer.

use std::time::Duration;

use nine_stream::{Block, Chain};

use super::super::packet::{AckPayload, Header, Kind, RANGES, REJECT, SyncPayload};
use super::super::path::{PathModel, PathStamp};
use super::{
    ACK_DELAY, ANSWERS, DEAD, Il, IlTimers, MessageFate, OLD_ACK_DELAY, OLD_PAUSE, ORPHAN, QUERY_IDLE,
    RESEND_PAUSE_MAX, SLACK, SentMessageState, Setup, State, TRIES, cost,
};

impl Il {
    /// The present timeout for an answer.
    fn patience(&self) -> Duration {
        let PathModel { rtt, deviation, .. } = self.path;
        let base = match self.new || self.state == State::Syncer {
            true => rtt + deviation * 4 + ACK_DELAY + SLACK,
            false => {
                let bytes = self.on_way as f64 / (self.path.rate().max(1000) as f64);
                rtt + deviation * 2 + OLD_ACK_DELAY + Duration::from_secs_f64(bytes)
            }
        };
        let most = if self.new { RESEND_PAUSE_MAX } else { OLD_PAUSE };
        // Grows by 1.5 with each try.
        let times = 1.5f64.powi(self.timers.tries.min(30) as i32);
        Duration::from_secs_f64((base.as_secs_f64() * times).min(most.as_secs_f64()))
    }

    /// Handles expired timers.
    fn tick(&mut self, now: Duration) {
        let IlTimers { ack, again, heard, asked, began, tries, .. } = self.timers;
        if now >= heard + DEAD {
            return self.fails("the peer does not answer");
        }
        if self.orphaned && now >= *self.timers.orphan.get_or_insert(now + ORPHAN) {
            return self.fails("the peer has not taken what was sent");
        }
        let opening = self.is_opening();
        if self.is_unanswered() && now >= began + self.answer_within() {
            let why = if opening { "the call is not answered" } else { "the close is not answered" };
            return self.fails(why);
        }
        if ack.is_some_and(|at| now >= at) {
            self.timers.ack = None;
            self.due.ack = true;
        }
        if now >= heard.max(asked) + QUERY_IDLE && !opening {
            self.due.query = true;
        }
        if again.is_some_and(|at| now >= at) {
            self.timers.again = None;
            self.timers.tries += 1;
            if opening {
                self.due.sync = self.state == State::Syncer || tries < ANSWERS;
            } else if self.has_closed() && !self.close_acked {
                self.due.close = true;
            } else {
                self.due.query = true;
                if tries >= 2 && !self.flight.is_empty() {
                    self.path.is_silent();
                }
            }
        }
    }

    /// Returns the next packet to send now.
    pub fn transmit(&mut self, now: Duration) -> Option<Chain> {
        if self.state != State::Closed {
            self.tick(now);
        }
        let packet = self.next_packet(now);
        let repeats = match self.state {
            State::Syncer | State::Syncee => true,
            State::Established => !self.flight.is_empty() || !self.unsent.is_empty(),
            State::Closing => !self.close_acked,
            State::Closed => false,
        };
        match self.timers.again {
            None if repeats => self.timers.again = Some(now + self.patience()),
            Some(_) if !repeats => self.timers.again = None,
            _ => {}
        }
        packet
    }

    fn next_packet(&mut self, now: Duration) -> Option<Chain> {
        if let Some(reject) = self.due.reject.take() {
            return Some(self.packet(reject, None));
        }
        if self.state == State::Closed {
            let close = std::mem::take(&mut self.due.close);
            return close.then(|| self.control(Kind::Close, 0, None));
        }
        if std::mem::take(&mut self.due.sync) {
            let hello = SyncPayload { window: self.setup.window as u32, largest: self.setup.largest as u32 };
            let payload = (!self.setup.old).then(|| hello.block());
            let ack = if self.state == State::Syncer { 0 } else { self.peer_start as u32 };
            let header = Header { id: self.setup.start, ack, ..self.header(Kind::Sync, 0) };
            return Some(self.packet(header, payload));
        }
        if matches!(self.state, State::Syncer | State::Syncee) {
            return None;
        }
        if self.closing
            && self.state == State::Established
            && self.unsent.is_empty()
            && self.flight.is_empty()
        {
            self.state = State::Closing;
            self.timers.began = now;
            (self.timers.again, self.timers.tries) = (None, 0);
            self.due.close = true;
        }
        if std::mem::take(&mut self.due.close) {
            self.has_acked(false);
            return Some(self.control(Kind::Close, 0, None));
        }
        if let Some(spec) = self.due.state.take() {
            let report = self.report(now);
            return Some(self.control(Kind::State, spec, report));
        }
        if let Some(data) = self.next_data(now) {
            return Some(data);
        }
        if self.state == State::Closed {
            return Some(self.control(Kind::Close, REJECT, None));
        }
        if std::mem::take(&mut self.due.query) {
            self.query = self.query % 8 + 1;
            self.order += 1;
            self.queries[usize::from(self.query)] = self.order;
            self.timers.asked = now;
            return Some(self.control(Kind::Query, self.query, None));
        }
        // Advertises the window after the process has read a quarter of it.
        if self.due.ack || (self.new && self.window() >= self.told + self.setup.window / 4) {
            let report = self.report(now);
            return Some(self.control(Kind::Ack, 0, report));
        }
        None
    }

    /// Returns lost or new data, if the window and the path have room for it.
    fn next_data(&mut self, now: Duration) -> Option<Chain> {
        let ask = std::mem::take(&mut self.due.ask);
        let on_way = self.on_way;
        let has_room = |cost: usize| on_way == 0 || on_way + cost <= self.path.may();
        let (at, times) = if self.lost > 0 {
            let at = self.flight.iter().position(|sent| sent.fate == MessageFate::Lost)?;
            let sent = &mut self.flight[at];
            // An old peer drops data for which its reader has no room.
            if sent.times == TRIES && self.new {
                self.fails("a message does not get through");
                return None;
            }
            if !has_room(sent.cost) {
                return None;
            }
            self.lost -= 1;
            self.counts.resent += 1;
            sent.times = sent.times.saturating_add(1);
            (at, sent.times)
        } else {
            let Some(block) = self.unsent.front() else {
                if has_room(0) {
                    self.path.starves(on_way);
                }
                return None;
            };
            let cost = cost(block);
            let fits = self.flight_cost + cost <= self.peer_window;
            if !has_room(cost) || !fits || self.flight.len() as u64 >= self.ids() {
                // With nothing in flight, no ack will report that the window opens.
                self.due.query |= !fits && self.flight.is_empty() && self.timers.again.is_none();
                return None;
            }
            self.unsent_cost -= cost;
            self.flight_cost += cost;
            let block = self.unsent.pop_front()?;
            let stamp = PathStamp::default();
            self.flight.push_back(SentMessageState {
                block,
                cost,
                order: 0,
                stamp,
                times: 0,
                fate: MessageFate::OnWay,
            });
            self.next += 1;
            self.counts.sent += 1;
            (self.flight.len() - 1, 0)
        };
        self.order += 1;
        let stamp = self.path.sends(now, on_way);
        let id = self.first() + at as u64;
        let sent = &mut self.flight[at];
        (sent.order, sent.stamp, sent.fate) = (self.order, stamp, MessageFate::OnWay);
        let block = sent.block.share();
        self.on_way += sent.cost;
        self.has_acked(true);
        let (kind, spec) = if ask { self.asks() } else { (Kind::Data, times) };
        Some(self.packet(Header { id: id as u32, ..self.header(kind, spec) }, Some(block)))
    }

    /// A query combined with data.
    fn asks(&mut self) -> (Kind, u8) {
        self.query = self.query % 8 + 1;
        self.queries[usize::from(self.query)] = self.order;
        (Kind::DataQuery, self.query)
    }

    /// A sent packet acknowledges received data. Ranges and the window are only in a report.
    fn has_acked(&mut self, by_data: bool) {
        if !by_data || self.early.is_empty() {
            self.due.ack &= by_data && self.new && self.unacked >= 4;
            self.timers.ack = None;
            self.unacked = 0;
        }
    }

    fn report(&mut self, now: Duration) -> Option<Block> {
        self.due.ack = false;
        self.timers.ack = None;
        self.unacked = 0;
        if !self.new {
            return None;
        }
        self.told = self.window();
        let (newest, times, at) = self.newest.unwrap_or((self.recvd, 0, now));
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for id in self.early.keys().map(|id| *id as u32) {
            let full = ranges.len() == RANGES;
            match ranges.last_mut() {
                Some((_, last)) if last.wrapping_add(1) == id => *last = id,
                _ if full => break,
                _ => ranges.push((id, id)),
            }
        }
        let delay = now.saturating_sub(at).as_micros().min(u32::MAX.into()) as u32;
        let window = self.told as u32;
        Some(AckPayload { window, newest: newest as u32, times, delay, ranges }.block())
    }

    fn header(&self, kind: Kind, spec: u8) -> Header {
        let Setup { local, remote, .. } = self.setup;
        Header { kind, spec, src: local, dst: remote, id: self.next as u32, ack: self.recvd as u32 }
    }

    fn control(&self, kind: Kind, spec: u8, payload: Option<Block>) -> Chain {
        self.packet(self.header(kind, spec), payload)
    }

    fn packet(&self, header: Header, payload: Option<Block>) -> Chain {
        header.packet(payload, self.setup.sums)
    }
}
