//! Two machines, or one and packets written by hand, with a simulated clock.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use nine_stream::{Block, Chain};

use super::machine::{Il, Setup, State};
use super::packet::{HEADER, Header, Kind};

const MS: Duration = Duration::from_millis(1);

/// The initial id of a port.
fn start(port: u16) -> u32 {
    u32::from(port).wrapping_mul(0x0123_4567)
}

fn setup(local: u16, remote: u16) -> Setup {
    let start = start(local);
    Setup { local, remote, start, largest: 1000, window: 64 << 10, kept: 4 << 20, sums: true, old: false }
}

fn bytes(chain: Chain) -> Vec<u8> {
    chain.iter().flat_map(Block::data).copied().collect()
}

fn packet(il: &mut Il, now: Duration) -> Option<Vec<u8>> {
    il.transmit(now).map(bytes)
}

fn kind(packet: &[u8]) -> Kind {
    Header::parse(packet).expect("a packet").0.kind
}

/// The types of all packets sent now.
fn kinds(il: &mut Il, now: Duration) -> Vec<Kind> {
    std::iter::from_fn(|| packet(il, now)).map(|packet| kind(&packet)).collect()
}

/// Two ends and the path between them.
struct Net {
    now: Duration,
    ends: [Il; 2],
    /// By arrival time; with the receiver.
    way: BTreeMap<(Duration, u64), (usize, Vec<u8>)>,
    sent: u64,
    delay: Duration,
    /// One in this many packets is lost, at random; 0: none.
    lost: u64,
    /// Packets longer than this are lost; 0: none.
    narrow: usize,
    got: [Vec<Vec<u8>>; 2],
    kinds: Vec<(usize, Kind)>,
    /// The processes read their input.
    reads: bool,
}

impl Net {
    fn new(a: Setup, b: Setup) -> Self {
        let mut caller = Il::call(Duration::ZERO, a);
        let sync = packet(&mut caller, Duration::ZERO).expect("a sync");
        let callee = Il::answer(Duration::ZERO, b, &sync).expect("it is one");
        Self {
            now: Duration::ZERO,
            ends: [caller, callee],
            way: BTreeMap::new(),
            sent: 0,
            delay: MS,
            lost: 0,
            narrow: 0,
            got: [Vec::new(), Vec::new()],
            kinds: Vec::new(),
            reads: true,
        }
    }

    fn open(old: [bool; 2]) -> Self {
        let mut net = Self::new(
            Setup { old: old[0], ..setup(5000, 17008) },
            Setup { old: old[1], ..setup(17008, 5000) },
        );
        net.run(10 * MS);
        assert_eq!([net.ends[0].state(), net.ends[1].state()], [State::Established; 2]);
        net.kinds.clear();
        net
    }

    /// Moves packets to the path, and received messages to `got`.
    fn turn(&mut self) {
        for side in 0..2 {
            while let Some(packet) = packet(&mut self.ends[side], self.now) {
                self.sent += 1;
                self.kinds.push((side, kind(&packet)));
                let chance = self.sent.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                let fits = self.narrow == 0 || packet.len() <= self.narrow;
                if fits && (self.lost == 0 || !chance.is_multiple_of(self.lost)) {
                    self.way.insert((self.now + self.delay, self.sent), (1 - side, packet));
                }
            }
            while self.reads
                && let Some(message) = self.ends[side].deliver()
            {
                self.got[side].push(message.data().to_vec());
            }
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            self.turn();
            let arrives = self.way.first_key_value().map(|((at, _), _)| *at);
            let due = self.ends.iter().filter_map(Il::deadline).chain(arrives).min();
            let Some(next) = due.filter(|at| *at <= end) else { break };
            assert!(next > self.now || arrives == Some(next), "a timer that is due does nothing");
            self.now = next.max(self.now);
            while let Some(entry) = self.way.first_entry().filter(|entry| entry.key().0 <= self.now) {
                let (to, packet) = entry.remove();
                self.ends[to].receive(self.now, Block::from(packet));
                self.turn();
            }
        }
        self.now = end;
    }

    fn send(&mut self, side: usize, n: u32) {
        for n in 0..n {
            self.ends[side].send(Block::from(n.to_be_bytes().to_vec())).expect("sent");
        }
    }

    fn count(&self, side: usize, kind: Kind) -> usize {
        self.kinds.iter().filter(|seen| **seen == (side, kind)).count()
    }

    fn states(&self) -> [State; 2] {
        [self.ends[0].state(), self.ends[1].state()]
    }
}

fn numbers(n: u32) -> Vec<Vec<u8>> {
    (0..n).map(|n| n.to_be_bytes().to_vec()).collect()
}

#[test]
fn packets_are_the_bytes_of_the_document() {
    let header = Header { kind: Kind::DataQuery, spec: 3, src: 17008, dst: 5000, id: 1, ack: 0x0102_0304 };
    let bytes = bytes(header.packet(Some(Block::from(b"abc".to_vec())), true));
    assert_eq!(bytes[2..HEADER], [0, 21, 2, 3, 0x42, 0x70, 0x13, 0x88, 0, 0, 0, 1, 1, 2, 3, 4]);
    assert_eq!(&bytes[HEADER..], b"abc");
    assert_eq!(Header::parse(&bytes), Some((header, 3)));
    let mut sum: u32 =
        bytes.chunks(2).map(|two| u32::from(two[0]) << 8 | two.get(1).map_or(0, |b| u32::from(*b))).sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    assert_eq!(sum, 0xffff);
    for at in 0..bytes.len() {
        let mut broken = bytes.clone();
        broken[at] ^= 0x40;
        assert_eq!(Header::parse(&broken), None, "byte {at}");
    }
    let mut off = bytes.clone();
    (off[0], off[1], off[20]) = (0, 0, 0);
    assert!(Header::parse(&off).is_some(), "no sum is no error");
    assert_eq!(Header::parse(&bytes[..20]), None);
    assert_eq!(Header::parse(&bytes[..17]), None);
}

#[test]
fn a_call_is_answered_and_both_are_established() {
    for old in [[false, false], [true, false], [false, true], [true, true]] {
        let mut net = Net::open(old);
        net.send(0, 3);
        net.send(1, 2);
        net.run(MS * 200);
        assert_eq!(net.got, [numbers(2), numbers(3)]);
        let told = if old == [false, false] { "new" } else { "old" };
        assert!(net.ends[1].status().ends_with(told), "{}", net.ends[1].status());
    }
}

#[test]
fn a_call_that_is_lost_is_repeated_and_one_that_nobody_answers_fails() {
    let mut il = Il::call(Duration::ZERO, setup(1, 2));
    let mut now = Duration::ZERO;
    let mut calls = 0;
    while il.state() == State::Syncer {
        calls += kinds(&mut il, now).len();
        now = il.deadline().unwrap_or(now);
    }
    assert!((5..40).contains(&calls), "{calls}");
    assert_eq!(il.fault().expect("it failed").to_string(), "the call is not answered");
    assert!(now < Duration::from_secs(40));
}

#[test]
fn a_refused_call_fails_at_once_and_only_with_its_own_number() {
    let mut il = Il::call(Duration::ZERO, setup(1, 2));
    let close = |ack| Header { kind: Kind::Close, spec: 0, src: 2, dst: 1, id: 0, ack }.packet(None, true);
    il.receive(MS, Block::from(bytes(close(7))));
    assert_eq!((il.state(), il.dropped()), (State::Syncer, 1));
    il.receive(MS, Block::from(bytes(close(start(1)))));
    assert_eq!(il.fault().expect("it failed").to_string(), "the call is refused");
}

#[test]
fn many_messages_come_once_in_order_whatever_is_lost() {
    for (old, lost) in [(false, 0), (false, 3), (false, 10), (true, 0), (true, 5), (true, 11)] {
        let mut net = Net::open([old, false]);
        net.lost = lost;
        let rounds = if old { 5 } else { 20 };
        let mut all = Vec::new();
        for _ in 0..rounds {
            net.send(0, 100);
            net.send(1, 100);
            all.extend(numbers(100));
            net.run(Duration::from_secs(if old { 120 } else { 10 }));
        }
        assert!(net.got[0] == all && net.got[1] == all, "old {old}, lost {lost}: {:?}", net.ends[0].status());
        assert!(net.ends[0].fault().is_none() && (lost > 0 || net.ends[0].resent() == 0));
    }
}

#[test]
fn every_second_message_is_acknowledged_at_once_and_a_lone_one_soon() {
    let mut net = Net::open([false, false]);
    net.send(0, 1);
    net.run(MS);
    assert_eq!(net.count(1, Kind::Ack), 0);
    net.run(MS * 2);
    assert_eq!(net.count(1, Kind::Ack), 1);
    net.send(0, 8);
    net.run(MS);
    assert_eq!(net.count(1, Kind::Ack), 5);
    assert_eq!(net.count(0, Kind::Query), 0);
}

#[test]
fn an_answer_is_the_acknowledgement() {
    let mut net = Net::open([false, false]);
    for _ in 0..10 {
        net.send(0, 1);
        net.run(MS);
        net.send(1, 1);
        net.run(MS);
    }
    assert_eq!(net.kinds.len(), 20, "{:?}", net.kinds);
}

#[test]
fn a_reader_that_stops_closes_the_window_and_one_that_goes_on_opens_it() {
    for old in [false, true] {
        let mut net = Net::open([old, old]);
        net.reads = false;
        let mut sent = 0;
        for _ in 0..200 {
            while !net.ends[0].is_full() {
                net.ends[0].send(Block::from(vec![sent as u8; 1000])).expect("there is room");
                sent += 1;
            }
            net.run(MS * 10);
        }
        // The queues of both sides are limited.
        assert!(sent < 500, "{sent}");
        net.run(Duration::from_secs(60));
        assert_eq!(net.states(), [State::Established; 2]);
        net.reads = true;
        net.run(Duration::from_secs(200));
        assert_eq!(net.got[1].len(), sent);
        assert!(net.got[1].iter().enumerate().all(|(n, message)| message[0] == n as u8));
    }
}

#[test]
fn what_was_sent_before_a_close_arrives_and_both_ends_end_well() {
    for (old, lost) in [([false, false], 0), ([false, false], 3), ([true, true], 0), ([true, false], 4)] {
        let mut net = Net::open(old);
        net.lost = lost;
        net.send(0, 50);
        if old == [false, false] {
            net.send(1, 50);
        }
        net.ends[0].close();
        net.run(Duration::from_secs(100));
        assert_eq!(net.states(), [State::Closed; 2], "{old:?} {lost}");
        assert_eq!(net.got[1], numbers(50), "{old:?} {lost}");
        if old == [false, false] {
            assert_eq!(net.got[0], numbers(50));
            assert!(net.ends.iter().all(|il| il.fault().is_none()), "{old:?} {lost}");
        }
        assert!(net.ends[1].is_at_end() && net.ends[1].send(Block::from(vec![1])).is_err());
    }
}

#[test]
fn both_may_close_at_once() {
    let mut net = Net::open([false, false]);
    net.send(0, 5);
    net.send(1, 5);
    net.ends.iter_mut().for_each(Il::close);
    net.run(Duration::from_secs(10));
    assert_eq!(net.states(), [State::Closed; 2]);
    assert_eq!(net.got, [numbers(5), numbers(5)]);
    assert!(net.ends.iter().all(|il| il.fault().is_none()));
}

#[test]
fn a_close_while_a_call_is_open_ends_it() {
    let mut caller = Il::call(Duration::ZERO, setup(1, 2));
    caller.close();
    assert_eq!(caller.state(), State::Closed);
    let mut net = Net::new(setup(5000, 17008), setup(17008, 5000));
    net.send(1, 3);
    net.ends[1].close();
    net.run(Duration::from_secs(10));
    assert_eq!(net.states(), [State::Closed; 2]);
    assert_eq!(net.got[0], numbers(3));
}

#[test]
fn an_idle_conversation_is_asked_after_and_a_dead_peer_is_noticed() {
    let mut net = Net::open([false, false]);
    net.run(Duration::from_secs(900));
    assert_eq!(net.states(), [State::Established; 2]);
    assert!((80..=200).contains(&net.kinds.len()), "{}", net.kinds.len());
    net.lost = 1;
    net.run(Duration::from_secs(285));
    assert_eq!(net.states(), [State::Established; 2]);
    net.run(Duration::from_secs(30));
    assert_eq!(net.states(), [State::Closed; 2]);
    assert!(
        net.ends.iter().all(|il| il.fault().is_some_and(|f| f.to_string() == "the peer does not answer"))
    );
}

#[test]
fn packets_that_are_not_of_the_conversation_change_nothing_and_are_counted() {
    let mut net = Net::open([false, false]);
    net.send(0, 3);
    net.run(MS * 10);
    let (id, ack) = (start(5000).wrapping_add(4), start(17008));
    let right = Header { kind: Kind::Ack, spec: 0, src: 5000, dst: 17008, id, ack };
    let all = [Kind::Data, Kind::DataQuery, Kind::Ack, Kind::Query, Kind::State, Kind::Close, Kind::Sync];
    let far = 1 << 20;
    for kind in all {
        for wrong in [
            Header { kind, src: 1, ..right },
            Header { kind, dst: 1, ..right },
            Header { kind, id: right.id.wrapping_add(far), ..right },
            Header { kind, id: right.id.wrapping_sub(far), ..right },
            Header { kind, ack: right.ack.wrapping_add(far), ..right },
            Header { kind, ack: right.ack.wrapping_sub(far), ..right },
        ] {
            let is_sync = kind == Kind::Sync && wrong.src == 5000 && wrong.dst == 17008;
            let before = net.ends[1].dropped();
            net.ends[1]
                .receive(net.now, Block::from(bytes(wrong.packet(Some(Block::from(vec![9; 9])), true))));
            assert_eq!(net.ends[1].dropped(), before + 1, "{wrong:?}");
            let answers = kinds(&mut net.ends[1], net.now);
            assert!(answers.is_empty() || (is_sync && answers == [Kind::Ack]), "{wrong:?}: {answers:?}");
        }
    }
    net.send(0, 3);
    net.run(MS * 10);
    assert_eq!((net.states(), net.got[1].len()), ([State::Established; 2], 6));
}

#[test]
fn who_was_started_anew_ends_what_was_left_open() {
    let mut net = Net::open([false, false]);
    // The caller has lost its state, and calls again from the same port.
    net.ends[0] = Il::call(net.now, Setup { start: 99, ..setup(5000, 17008) });
    net.run(MS * 10);
    assert_eq!(net.states(), [State::Syncer, State::Closed]);
    assert!(net.ends[1].fault().is_some());
}

#[test]
fn a_message_that_is_too_large_is_refused() {
    let mut il = Il::call(Duration::ZERO, setup(1, 2));
    let why = il.send(Block::from(vec![0; 1001])).expect_err("refused").to_string();
    assert_eq!(why, "a message has 1001 bytes, and may have 1000");
    il.send(Block::from(vec![0; 1000])).expect("it is not larger");
}

#[test]
fn what_an_attacker_sends_takes_no_more_memory_than_the_window() {
    let mut net = Net::open([false, false]);
    net.reads = false;
    let (theirs, mine) = (start(5000), start(17008));
    let mut held = VecDeque::new();
    for n in 2..6000u32 {
        let header = Header {
            kind: Kind::Data,
            spec: 0,
            src: 5000,
            dst: 17008,
            id: theirs.wrapping_add(n),
            ack: mine,
        };
        net.ends[1]
            .receive(net.now, Block::from(bytes(header.packet(Some(Block::from(vec![0; 900])), true))));
    }
    let header =
        Header { kind: Kind::Data, spec: 0, src: 5000, dst: 17008, id: theirs.wrapping_add(1), ack: mine };
    net.ends[1].receive(net.now, Block::from(bytes(header.packet(None, true))));
    while let Some(block) = net.ends[1].deliver() {
        held.push_back(block);
    }
    let bytes: usize = held.iter().map(|block| block.len() + 128).sum();
    assert!((60 << 10..=64 << 10).contains(&bytes), "{bytes}");
}

#[test]
fn a_way_that_never_takes_large_messages_ends_the_conversation_with_these_words() {
    let mut net = Net::open([false, false]);
    net.narrow = 500;
    net.ends[0].send(Block::from(vec![1; 900])).expect("it fits");
    net.run(Duration::from_secs(20));
    assert_eq!(net.states(), [State::Established; 2], "it may only be that the way takes none now");
    let tried = net.ends[0].resent();
    assert!((12..40).contains(&tried), "pauses grow: {tried} in 20 s");
    net.run(Duration::from_secs(180));
    assert_eq!(
        net.ends[0].fault().map(|fault| fault.to_string()).as_deref(),
        Some("a message does not get through")
    );
}

#[test]
fn what_a_process_that_has_gone_left_behind_has_a_minute() {
    let mut net = Net::open([false, false]);
    net.reads = false;
    net.send(0, 1000);
    net.ends[0].close();
    net.run(Duration::from_secs(100));
    assert_eq!(net.ends[0].state(), State::Established, "who waits for it may wait long");
    net.ends[0].orphan();
    net.run(Duration::from_secs(59));
    assert_eq!(net.ends[0].state(), State::Established);
    net.run(Duration::from_secs(12));
    assert_eq!((net.ends[0].state(), net.ends[0].deadline()), (State::Closed, None));
    assert!(!net.ends[0].holds());
}

#[test]
fn an_answer_to_a_call_is_repeated_a_few_times_and_forgotten_soon() {
    let sync = packet(&mut Il::call(Duration::ZERO, setup(5000, 17008)), Duration::ZERO).expect("a sync");
    let mut callee = Il::answer(Duration::ZERO, setup(17008, 5000), &sync).expect("it is one");
    let (mut now, mut answers) = (Duration::ZERO, 0);
    while callee.state() == State::Syncee {
        answers += kinds(&mut callee, now).len();
        now += MS;
    }
    assert!((3..=5).contains(&answers) && now <= Duration::from_millis(5010), "{answers} in {now:?}");
}

#[test]
fn a_new_peer_that_knows_nothing_of_a_close_has_not_ended_in_good_order() {
    let mut net = Net::open([false, false]);
    net.ends[0].close();
    let close = packet(&mut net.ends[0], net.now).expect("a close");
    let (header, _) = Header::parse(&close).expect("a packet");
    let reject = bytes(header.reject().packet(None, true));
    net.ends[0].receive(net.now, Block::from(reject));
    let why = net.ends[0].fault().map(|fault| fault.to_string());
    assert_eq!(why.as_deref(), Some("the peer has forgotten the conversation"));
}
