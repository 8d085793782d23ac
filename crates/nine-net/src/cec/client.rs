//! The client's side of one connection (`docs/cec.md`, The client's states).
//!
//! In: packets of the server, typed bytes, the time. Out: packets for it, bytes to show, the reason of the end.

use std::collections::VecDeque;
use std::fmt;
use std::time::Duration;

use super::frame::{COOKIE, Frame, Kind};
use super::talk::{CecTalk, ResendTimer, TIMES};

/// Maximum number of bytes in unread input. A frame beyond that is not accepted, and is sent again.
pub const INBOX: usize = 64 << 10;
/// Maximum number of bytes queued to send. Beyond that the caller waits.
pub const WAITING: usize = 4 << 10;
/// Maximum number of queued frames without data. Further ones are lost, and repeated if needed.
const ANSWERS: usize = 16;

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// We closed it.
    Closed,
    /// The server closed it.
    Reset,
    /// The server refused it.
    Refused,
    /// The server no longer knows it.
    Forgotten,
    /// The server restarted it, and earlier data is lost.
    Anew,
    /// The server does not answer.
    Silent,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "the conversation is closed",
            Self::Reset => "the server has ended the conversation",
            Self::Refused => {
                "the server refuses: it has too many conversations, or has heard too many wrong passwords of this \
                 card; try in a minute"
            }
            Self::Forgotten => "the server has forgotten the conversation",
            Self::Anew => "the server has begun the conversation anew",
            Self::Silent => "the server does not answer",
        })
    }
}

#[derive(Debug)]
enum CecClientState {
    Calling(ResendTimer),
    Open,
    /// Queued data is still sent.
    Closing,
    Ended(End),
}

/// See the module. The caller passes only packets of one server.
#[derive(Debug)]
pub struct Client {
    conn: u8,
    /// Lets our servers tell a repetition from a new call.
    cookie: [u8; COOKIE],
    state: CecClientState,
    /// The server supports cookies.
    is_ours: bool,
    talk: CecTalk,
    /// We have sent data.
    has_sent: bool,
    out: VecDeque<Vec<u8>>,
}

impl Client {
    /// Calls with the connection number `conn`. `chance`: random, so that the call differs from all earlier ones.
    pub fn new(now: Duration, conn: u8, chance: u32) -> Self {
        let mut client = Self {
            conn,
            cookie: chance.to_be_bytes(),
            state: CecClientState::Calling(ResendTimer::first(now)),
            is_ours: false,
            talk: CecTalk::new(chance as u8, INBOX),
            has_sent: false,
            out: VecDeque::new(),
        };
        client.asks();
        client
    }

    /// Handles a packet from the server.
    pub fn receive(&mut self, packet: &[u8]) {
        let Some(Frame { kind, conn, seq, data }) = Frame::parse(packet) else { return };
        if conn != self.conn && kind != Kind::Offer {
            return;
        }
        match (&self.state, kind) {
            (CecClientState::Ended(_), _) => {}
            (CecClientState::Calling(_), Kind::Initb) => {
                self.is_ours = data == self.cookie;
                self.state = CecClientState::Open;
                self.say(Kind::Initc, 0);
            }
            (CecClientState::Calling(_), Kind::Reset) => self.state = CecClientState::Ended(End::Refused),
            (CecClientState::Calling(_), _) => {}
            // From a server without cookies this may not be a repetition.
            (_, Kind::Initb) if data != self.cookie && self.talk.has_begun() => self.hang_up(End::Anew),
            (_, Kind::Initb) => self.say(Kind::Initc, 0),
            (_, Kind::Data) => {
                let seq = self.talk.data(seq, data);
                self.say(Kind::Ack, seq);
            }
            (_, Kind::Ack) => self.talk.ack(seq),
            (_, Kind::Reset) => self.state = CecClientState::Ended(End::Reset),
            // Plan 9's servers send this for an unknown connection. Ours send a reset, and a late offer of theirs means
            // nothing.
            (_, Kind::Offer) if seq == 0 && self.has_sent && !self.is_ours => {
                self.state = CecClientState::Ended(End::Forgotten)
            }
            (_, Kind::Offer | Kind::Inita | Kind::Initc | Kind::Discover) => {}
        }
        self.close_idle();
    }

    /// Queues bytes to send. Returns how many fitted.
    pub fn send(&mut self, bytes: &[u8]) -> usize {
        let room = match self.state {
            CecClientState::Calling(_) | CecClientState::Open => WAITING.saturating_sub(self.talk.waiting()),
            CecClientState::Closing | CecClientState::Ended(_) => 0,
        };
        let bytes = &bytes[..bytes.len().min(room)];
        self.talk.put(bytes);
        bytes.len()
    }

    /// Whether all data was acknowledged.
    pub fn is_idle(&self) -> bool {
        self.talk.is_idle()
    }

    /// Whether the server has agreed.
    pub fn is_open(&self) -> bool {
        !matches!(self.state, CecClientState::Calling(_) | CecClientState::Ended(_))
    }

    /// Takes all received bytes.
    pub fn take(&mut self) -> Vec<u8> {
        self.talk.inbox().drain(..).collect()
    }

    /// Closes the connection once all queued data is acknowledged.
    pub fn close(&mut self) {
        match self.state {
            CecClientState::Calling(_) => self.hang_up(End::Closed),
            CecClientState::Open => self.state = CecClientState::Closing,
            CecClientState::Closing | CecClientState::Ended(_) => {}
        }
        self.close_idle();
    }

    /// Closes the connection at once.
    pub fn quit(&mut self) {
        if self.end().is_none() {
            self.hang_up(End::Closed);
        }
    }

    /// How the connection ended, if it has. Earlier input may still be taken.
    pub fn end(&self) -> Option<End> {
        match self.state {
            CecClientState::Ended(end) => Some(end),
            _ => None,
        }
    }

    /// The next packet for the server.
    pub fn poll_packet(&mut self, now: Duration) -> Option<Vec<u8>> {
        if self.out.is_empty() {
            self.turn(now);
        }
        self.out.pop_front()
    }

    fn turn(&mut self, now: Duration) {
        match &mut self.state {
            CecClientState::Calling(again) => match again.poll(now, TIMES) {
                Some(false) => {}
                Some(true) => self.asks(),
                None => self.hang_up(End::Silent),
            },
            CecClientState::Open | CecClientState::Closing => match self.talk.poll(now) {
                Ok(None) => {}
                Ok(Some((seq, data))) => {
                    self.has_sent = true;
                    self.out.push_back(Frame { kind: Kind::Data, conn: self.conn, seq, data }.bytes());
                }
                Err(_) => self.hang_up(End::Silent),
            },
            CecClientState::Ended(_) => {}
        }
    }

    /// When to call [`Client::poll_packet`], at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if !self.out.is_empty() {
            return Some(Duration::ZERO);
        }
        match &self.state {
            CecClientState::Calling(again) => Some(again.due()),
            CecClientState::Open | CecClientState::Closing => self.talk.deadline(),
            CecClientState::Ended(_) => None,
        }
    }

    fn close_idle(&mut self) {
        if matches!(self.state, CecClientState::Closing) && self.talk.is_idle() {
            self.hang_up(End::Closed);
        }
    }

    fn hang_up(&mut self, end: End) {
        self.say(Kind::Reset, 0);
        self.state = CecClientState::Ended(end);
    }

    fn asks(&mut self) {
        let frame = Frame { data: &self.cookie, ..Frame::bare(Kind::Inita, self.conn) };
        self.out.push_back(frame.bytes());
    }

    fn say(&mut self, kind: Kind, seq: u8) {
        if self.out.len() < ANSWERS || kind == Kind::Reset {
            self.out.push_back(Frame { seq, ..Frame::bare(kind, self.conn) }.bytes());
        }
    }
}
