//! The server's side, for all connections on one Ethernet (`docs/cec.md`, The server's states).
//!
//! In: packets with their senders, answers to lines, the time. Out: packets, and [`Event`]s: logins, lines, ends.
//!
//! Always holds: a line comes from a client that has given the password. A connection has at most one unanswered line.
//! An [`Id`] is never reused. At most [`CONVERSATIONS`] connections exist, and at most that many wrong passwords are
//! checked in two seconds, from whatever cards.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use super::frame::{COOKIE, Frame, Kind, Offer};
use super::guard::LoginGuard;
pub use super::guard::Password;
use super::line::{ByteEffect, LineEditor};
use super::talk::{CecTalk, ResendTimer};
use crate::ether::Mac;

/// Maximum number of connections at a time. Further clients are refused.
pub const CONVERSATIONS: usize = 15;
/// Maximum number of connections of one card.
pub const PER_CARD: usize = 4;
/// Maximum number of bytes in an answer. The rest is cut off, with a note.
pub const ANSWER_MAX: usize = 256 << 10;
/// The password prompt, by which clients recognize it.
pub const PROMPT: &str = "password: ";

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its description of itself.
    pub offer: Offer,
    /// Its password.
    pub password: Password,
}

/// A connection with a logged-in client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Id(u64);

/// An event for the owner of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client at this card has logged in.
    Open(Id, Mac),
    /// The client sends this line, and waits for [`Server::answer`].
    Line(Id, String),
    /// The connection has ended. Its lines need no answer.
    End(Id, Why),
    /// This card gave a wrong password.
    Wrong(Mac),
}

/// Why a connection has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// We closed it.
    Closed,
    /// The client closed it.
    Reset,
    /// The client restarted it.
    Anew,
    /// The client does not answer.
    Silent,
    /// The client was idle for too long.
    Idle,
}

impl fmt::Display for Why {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Closed => "ended here",
            Self::Reset => "ended there",
            Self::Anew => "begun anew",
            Self::Silent => "no answer",
            Self::Idle => "nothing was said for long",
        })
    }
}

#[derive(Debug)]
enum LoginState {
    /// Initb was sent.
    Asked(ResendTimer),
    /// Waits for the password.
    Login {
        /// The login timeout.
        until: Duration,
        /// A password was wrong: when to report that. Input is not read before.
        wrong: Option<Duration>,
    },
    /// Logged in.
    Open {
        /// A line is being answered.
        busy: bool,
    },
    /// Queued data is still sent.
    Ending,
}

#[derive(Debug)]
struct CecConversation {
    id: Id,
    /// The cookie in the inita of a client of ours.
    cookie: Option<[u8; COOKIE]>,
    state: LoginState,
    talk: CecTalk,
    line: LineEditor,
    /// When the client's last packet arrived.
    heard: Duration,
    /// It was logged in, so its end is an event.
    known: bool,
}

/// A client's card, and its number for the connection.
type CecClientKey = (Mac, u8);

/// See the module.
#[derive(Debug)]
pub struct Server {
    offer: Offer,
    guard: LoginGuard,
    all: BTreeMap<CecClientKey, CecConversation>,
    /// The connection polled last, for rotation.
    turn: Option<CecClientKey>,
    /// Slots of connections that ended before a wrong password was answered, and until when they stay taken. With those
    /// of `all` at most [`CONVERSATIONS`].
    paying: Vec<Duration>,
    out: VecDeque<(Mac, Vec<u8>)>,
    events: VecDeque<Event>,
    next: u64,
    closed: bool,
}

impl Server {
    /// Creates a server, which announces itself to all cards.
    pub fn new(setup: Setup) -> Self {
        let Setup { offer, password } = setup;
        let mut server = Self {
            offer,
            guard: LoginGuard::new(password),
            all: BTreeMap::new(),
            turn: None,
            paying: Vec::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            next: 0,
            closed: false,
        };
        server.offers(EVERYBODY, 0);
        server
    }

    /// Handles a packet from this card.
    pub fn receive(&mut self, now: Duration, from: Mac, packet: &[u8]) {
        let Some(Frame { kind, conn, seq, data }) = Frame::parse(packet) else { return };
        // A group address is never a sender.
        if self.closed || from.0[0] & 1 != 0 {
            return;
        }
        let key = (from, conn);
        if let Some(conversation) = self.all.get_mut(&key) {
            conversation.heard = now;
        }
        match kind {
            Kind::Discover => self.offers(from, seq),
            Kind::Inita => self.asked(now, key, data.try_into().ok()),
            Kind::Initc => self.agreed(now, key),
            Kind::Data => {
                match self.all.get(&key) {
                    // The data has overtaken the initc, or that was lost. Our client sends the data again, and an initc
                    // for this initb.
                    Some(of @ CecConversation { state: LoginState::Asked(_), cookie: Some(_), .. }) => {
                        let initb = of.initb(key);
                        return self.push(initb);
                    }
                    _ => self.agreed(now, key),
                }
                if let Some(conversation) = self.all.get_mut(&key) {
                    let seq = conversation.talk.data(seq, data);
                    self.say(from, Frame { seq, ..Frame::bare(Kind::Ack, conn) });
                    self.read(now, key);
                }
            }
            Kind::Ack => {
                if let Some(conversation) = self.all.get_mut(&key) {
                    conversation.talk.ack(seq);
                    self.read(now, key);
                }
            }
            Kind::Reset => self.ends(key, Why::Reset),
            Kind::Initb | Kind::Offer => {}
        }
    }

    /// Answers a line. Does nothing if its connection has ended.
    pub fn answer(&mut self, now: Duration, id: Id, text: &str) {
        let prompt = self.prompt();
        let Some((key, conversation)) = self.find(id) else { return };
        if !matches!(conversation.state, LoginState::Open { busy: true }) {
            return;
        }
        conversation.state = LoginState::Open { busy: false };
        conversation.talk.put(&shown(text));
        conversation.talk.put(prompt.as_bytes());
        self.read(now, key);
    }

    /// Ends a connection, after all queued data is sent.
    pub fn hang_up(&mut self, id: Id) {
        if let Some((_, conversation)) = self.find(id) {
            conversation.state = LoginState::Ending;
        }
    }

    /// Ends all connections now, and ignores all further packets.
    pub fn close(&mut self) {
        self.closed = true;
        while let Some((&key, _)) = self.all.first_key_value() {
            self.refuse(key);
            self.ends(key, Why::Closed);
        }
    }

    /// Whether [`Server::close`] was called.
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// The next event.
    pub fn event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The number of connections, logged in or not.
    pub fn conversations(&self) -> usize {
        self.all.len()
    }

    /// The next packet, and its destination.
    pub fn poll_packet(&mut self, now: Duration) -> Option<(Mac, Vec<u8>)> {
        for _ in 0..=self.all.len() {
            if let Some(out) = self.out.pop_front() {
                return Some(out);
            }
            // Connections send in rotation, a packet each.
            let after = self.turn.and_then(|last| {
                let behind = (std::ops::Bound::Excluded(last), std::ops::Bound::Unbounded);
                self.all.range(behind).next().map(|(key, _)| *key)
            });
            let key = after.or_else(|| self.all.keys().next().copied())?;
            self.turn = Some(key);
            self.work(now, key);
        }
        self.out.pop_front()
    }

    /// When to call [`Server::poll_packet`], at the latest.
    pub fn deadline(&self) -> Option<Duration> {
        if !self.out.is_empty() {
            return Some(Duration::ZERO);
        }
        self.all.values().filter_map(CecConversation::deadline).min()
    }

    /// Handles a request for a connection.
    fn asked(&mut self, now: Duration, key: CecClientKey, cookie: Option<[u8; COOKIE]>) {
        let from = key.0;
        // Without a cookie only an unconfirmed connection is surely a repetition, not a new call.
        if let Some(of) = self.all.get(&key)
            && cookie == of.cookie
            && (cookie.is_some() || matches!(of.state, LoginState::Asked(_)))
        {
            let initb = of.initb(key);
            return self.push(initb);
        }
        self.ends(key, Why::Anew);
        let of_card = self.all.keys().filter(|(mac, _)| *mac == from).count();
        self.paying.retain(|until| now < *until);
        let is_free = self.all.len() + self.paying.len() < CONVERSATIONS;
        let has_room = is_free && of_card < PER_CARD && self.events.len() < EVENTS;
        if !has_room || !self.guard.hears(now, from) {
            return self.refuse(key);
        }
        self.next += 1;
        let conversation = CecConversation {
            id: Id(self.next),
            cookie,
            state: LoginState::Asked(ResendTimer::first(now)),
            talk: CecTalk::new(1, UNREAD_LEN_MAX),
            line: LineEditor::default(),
            heard: now,
            known: false,
        };
        let initb = conversation.initb(key);
        self.all.insert(key, conversation);
        self.push(initb);
    }

    /// Handles a client's confirmation, or data, which implies it.
    fn agreed(&mut self, now: Duration, key: CecClientKey) {
        match self.all.get_mut(&key) {
            None => self.refuse(key),
            Some(conversation @ CecConversation { state: LoginState::Asked(_), .. }) => {
                conversation.state = LoginState::Login { until: now + LOGIN, wrong: None };
                conversation.talk.put(PROMPT.as_bytes());
            }
            Some(_) => {}
        }
    }

    /// Processes typed input, as far as it may be processed now.
    fn read(&mut self, now: Duration, key: CecClientKey) {
        let prompt = self.prompt();
        let Some(conversation) = self.all.get_mut(&key) else { return };
        let CecConversation { id, state, talk, line, known, .. } = conversation;
        let mut echo = Vec::new();
        // Stops the echo for a peer that does not acknowledge.
        while talk.waiting() + echo.len() < UNREAD_LEN_MAX {
            let veiled = match state {
                LoginState::Login { wrong: None, .. } => true,
                LoginState::Open { busy: false } => false,
                _ => break,
            };
            let Some(byte) = talk.inbox().pop_front() else { break };
            match line.typed(byte, veiled, &mut echo) {
                ByteEffect::More => {}
                ByteEffect::Line(typed) if veiled => {
                    if self.guard.judge(now, key.0, &typed) {
                        *state = LoginState::Open { busy: false };
                        *known = true;
                        echo.extend(b"\r\n");
                        echo.extend(prompt.as_bytes());
                        self.events.push_back(Event::Open(*id, key.0));
                    } else if let LoginState::Login { wrong, .. } = state {
                        *wrong = Some(now + PENALTY);
                        if self.events.len() < EVENTS {
                            self.events.push_back(Event::Wrong(key.0));
                        }
                    }
                }
                ByteEffect::Line(typed) => match String::from_utf8_lossy(&typed).trim() {
                    "" => echo.extend(prompt.as_bytes()),
                    text => {
                        *state = LoginState::Open { busy: true };
                        self.events.push_back(Event::Line(*id, text.into()));
                    }
                },
                ByteEffect::End => {
                    echo.extend(b"\r\n");
                    *state = LoginState::Ending;
                }
            }
        }
        talk.put(&echo);
    }

    /// Does the due work of a connection.
    fn work(&mut self, now: Duration, key: CecClientKey) {
        let Some(conversation) = self.all.get_mut(&key) else { return };
        let CecConversation { state, talk, heard, .. } = conversation;
        match state {
            LoginState::Asked(again) => {
                return match again.poll(now, INITB_TIMES) {
                    Some(false) => {}
                    Some(true) => {
                        let initb = conversation.initb(key);
                        self.push(initb);
                    }
                    None => self.ends(key, Why::Silent),
                };
            }
            // Silently: Plan 9's client would call again after a reset.
            LoginState::Login { until, .. } if *until <= now => return self.ends(key, Why::Idle),
            LoginState::Login { wrong, .. } => {
                if wrong.is_some_and(|due| due <= now) {
                    *wrong = None;
                    if !self.guard.hears(now, key.0) {
                        self.refuse(key);
                        return self.ends(key, Why::Closed);
                    }
                    talk.put(BAD.as_bytes());
                    talk.put(PROMPT.as_bytes());
                    return self.read(now, key);
                }
            }
            LoginState::Open { busy: false } if *heard + IDLE_TIMEOUT <= now && talk.is_idle() => {
                self.refuse(key);
                return self.ends(key, Why::Idle);
            }
            LoginState::Open { .. } => {}
            LoginState::Ending if talk.is_idle() => {
                self.refuse(key);
                return self.ends(key, Why::Closed);
            }
            LoginState::Ending => {}
        }
        match talk.poll(now) {
            Ok(None) => {}
            Ok(Some((seq, data))) => {
                let packet = Frame { kind: Kind::Data, conn: key.1, seq, data }.bytes();
                self.out.push_back((key.0, packet));
            }
            Err(_) => {
                self.refuse(key);
                self.ends(key, Why::Silent);
            }
        }
    }

    fn ends(&mut self, key: CecClientKey, why: Why) {
        let Some(CecConversation { id, state, known, .. }) = self.all.remove(&key) else { return };
        // Else a client that hangs up could guess again at once, from any card address.
        if let LoginState::Login { wrong: Some(until), .. } = state {
            self.paying.push(until);
        }
        if known {
            self.events.push_back(Event::End(id, why));
        }
    }

    fn find(&mut self, id: Id) -> Option<(CecClientKey, &mut CecConversation)> {
        let mut all = self.all.iter_mut();
        all.find(|(_, conversation)| conversation.id == id).map(|(key, conversation)| (*key, conversation))
    }

    fn prompt(&self) -> String {
        format!("{}> ", self.offer.name)
    }

    fn offers(&mut self, to: Mac, seq: u8) {
        let text = self.offer.text();
        self.say(to, Frame { seq, data: text.as_bytes(), ..Frame::bare(Kind::Offer, 0) });
    }

    fn refuse(&mut self, (to, conn): CecClientKey) {
        self.say(to, Frame::bare(Kind::Reset, conn));
    }

    fn say(&mut self, to: Mac, frame: Frame<'_>) {
        self.push((to, frame.bytes()));
    }

    fn push(&mut self, packet: (Mac, Vec<u8>)) {
        if self.out.len() < ANSWERS {
            self.out.push_back(packet);
        }
    }
}

impl CecConversation {
    fn initb(&self, (to, conn): CecClientKey) -> (Mac, Vec<u8>) {
        let data = self.cookie.as_ref().map_or(&[][..], |cookie| cookie);
        (to, Frame { data, ..Frame::bare(Kind::Initb, conn) }.bytes())
    }

    fn deadline(&self) -> Option<Duration> {
        let own = match self.state {
            LoginState::Asked(again) => return Some(again.due()),
            LoginState::Login { until, wrong } => Some(wrong.unwrap_or(until).min(until)),
            LoginState::Open { busy: false } => self.talk.is_idle().then_some(self.heard + IDLE_TIMEOUT),
            LoginState::Open { busy: true } => None,
            LoginState::Ending => self.talk.is_idle().then_some(Duration::ZERO),
        };
        own.into_iter().chain(self.talk.deadline()).min()
    }
}

/// Formats an answer for a terminal: complete lines, no control characters.
fn shown(text: &str) -> Vec<u8> {
    let whole = text.len() <= ANSWER_MAX;
    let text = &text[..text.floor_char_boundary(ANSWER_MAX)];
    let mut bytes = Vec::with_capacity(text.len() + 2);
    for c in text.chars() {
        match c {
            '\n' => bytes.extend(b"\r\n"),
            '\t' => bytes.push(b'\t'),
            c if c.is_control() => bytes.push(b'?'),
            c => bytes.extend(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    if !whole {
        bytes.extend(b"\r\n... and more, which is cut off");
    }
    if !bytes.is_empty() && !bytes.ends_with(b"\n") {
        bytes.extend(b"\r\n");
    }
    bytes
}

/// The broadcast address.
const EVERYBODY: Mac = Mac([0xff; 6]);
/// The answer of Plan 9's servers to a wrong password.
const BAD: &str = "\r\nBad password\r\n";
/// Maximum number of bytes in unread input, and of queued echoes.
const UNREAD_LEN_MAX: usize = 4 << 10;
/// Maximum number of queued packets without data. Further ones are lost.
const ANSWERS: usize = 64;
/// Maximum number of unread events. Beyond that new clients are refused.
const EVENTS: usize = 256;
/// Maximum number of transmissions of an initb.
const INITB_TIMES: u32 = 4;
/// The timeout for the password.
const LOGIN: Duration = Duration::from_secs(60);
/// The delay before the answer to a wrong password.
const PENALTY: Duration = Duration::from_secs(2);
/// A client that sends nothing for this long is disconnected.
const IDLE_TIMEOUT: Duration = Duration::from_secs(600);
