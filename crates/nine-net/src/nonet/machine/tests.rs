//! Two ends and a link between them, or one end and packets written by hand, with a simulated clock.

use super::*;
use crate::nonet::packet::reset;

const MS: Duration = Duration::from_millis(1);
const MEDIUM: Medium = Medium::ETHER;

/// Two ends, and a link that takes 50 us. `bend` maps each packet to the packets that arrive: any number, changed or
/// not.
struct Pair {
    ends: [Nonet; 2],
    now: Duration,
    came: [Vec<Vec<u8>>; 2],
    /// The number of packets sent, by sender.
    sent: [usize; 2],
    reads: [bool; 2],
}

impl Pair {
    fn new() -> Self {
        let ends =
            [Nonet::call(MEDIUM, 4, b"echo glenda".to_vec()), Nonet::answer(MEDIUM, 5, Duration::ZERO)];
        Self { ends, now: Duration::ZERO, came: Default::default(), sent: [0; 2], reads: [true; 2] }
    }

    /// Runs until nothing is sent before `until`, or before the first deadline after it.
    fn run_until(&mut self, until: Duration, mut bend: impl FnMut(usize, Vec<u8>) -> Vec<Vec<u8>>) {
        loop {
            let mut moved = false;
            for from in 0..2 {
                let packets: Vec<_> = std::iter::from_fn(|| self.ends[from].poll_packet(self.now)).collect();
                self.sent[from] += packets.len();
                moved |= !packets.is_empty();
                for packet in packets.into_iter().flat_map(|packet| bend(from, packet)) {
                    self.ends[1 - from].handle(self.now + Duration::from_micros(50), &packet);
                }
                if self.reads[1 - from] {
                    let end = &mut self.ends[1 - from];
                    let new = std::iter::from_fn(|| end.poll_message()).map(|m| m.data().to_vec());
                    self.came[1 - from].extend(new);
                }
            }
            self.now += Duration::from_micros(50);
            if moved {
                continue;
            }
            match self.ends.iter().filter_map(Nonet::deadline).min() {
                Some(next) if next <= until => self.now = self.now.max(next),
                _ => return,
            }
        }
    }

    /// Runs until nothing is in flight, for less than the silence after which a probe is sent.
    fn run(&mut self) {
        self.run_until(self.now + SILENCE / 2, |_, packet| vec![packet]);
    }

    fn send(&mut self, from: usize, data: &[u8]) {
        assert!(self.ends[from].can_send());
        self.ends[from].send(data.to_vec().into());
    }
}

fn head(packet: &[u8]) -> NonetHeader {
    NonetHeader::decode(packet).expect("a packet").0
}

fn bytes(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n / 251 + n) as u8).collect()
}

#[test]
fn a_call_begins_with_the_service_and_newcall_stays_until_the_answer() {
    let mut call = Nonet::call(MEDIUM, 4, b"echo glenda".to_vec());
    let first = call.poll_packet(Duration::ZERO).expect("the call");
    assert_eq!(head(&first), NonetHeader { circuit: 4, flags: 13, mid: 1, ack: 0, remain: 11 });
    assert_eq!((first.len(), &first[10..21]), (46, &b"echo glenda"[..]));
    call.send(b"more".to_vec().into());
    assert_eq!(head(&call.poll_packet(MS).expect("sent")).flags, ACKME | NEWCALL);
    assert!(call.poll_packet(MS).is_none() && !call.is_answered());
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let said = answer.poll_packet(Duration::ZERO).expect("an answer");
    assert_eq!(head(&said), NonetHeader { circuit: 5, flags: 0, mid: 0, ack: 1, remain: 0 });
    call.handle(2 * MS, &said);
    assert!(call.is_answered());
    call.send(b"x".to_vec().into());
    assert_eq!(head(&call.poll_packet(2 * MS).expect("sent")).flags, ACKME);
}

#[test]
fn messages_of_all_lengths_keep_their_borders() {
    let mut pair = Pair::new();
    let sizes = [0, 1, 36, 37, 1489, 1490, 1491, 2980, 20_000, MESSAGE_MAX, 0];
    for from in [0, 1] {
        for size in sizes {
            while !pair.ends[from].can_send() {
                pair.run();
            }
            pair.send(from, &bytes(size));
        }
        pair.run();
    }
    for came in &pair.came {
        assert_eq!(came.iter().map(Vec::len).collect::<Vec<_>>(), sizes);
        assert!(came.iter().all(|message| *message == bytes(message.len())));
    }
    assert_eq!(pair.ends[0].counts().bad + pair.ends[1].counts().bad, 0);
}

#[test]
fn numbers_come_round_many_times() {
    let mut pair = Pair::new();
    for n in 0..1000u32 {
        pair.send(0, &n.to_le_bytes());
        if n % 90 == 0 {
            pair.run();
        }
    }
    pair.run();
    assert!(pair.came[1].iter().enumerate().all(|(n, m)| *m == (n as u32).to_le_bytes()));
    assert_eq!(pair.came[1].len(), 1000);
}

#[test]
fn no_more_than_128_messages_are_under_way() {
    let mut call = Nonet::call(MEDIUM, 4, b"echo glenda".to_vec());
    let mut n = 1;
    while call.can_send() {
        call.send(b"x".to_vec().into());
        n += 1;
    }
    assert_eq!(n, MESSAGES);
    assert_eq!(std::iter::from_fn(|| call.poll_packet(MS)).count(), MESSAGES);
}

#[test]
fn a_lost_message_alone_is_sent_again_and_the_others_wait_for_it() {
    let mut pair = Pair::new();
    pair.run();
    for n in 0..10u8 {
        pair.send(0, &[n]);
    }
    let mut lost = false;
    pair.run_until(5 * MS, |from, packet| {
        // Message 1 was the call.
        if from == 0 && head(&packet).mid == 4 && !lost {
            lost = true;
            return vec![];
        }
        vec![packet]
    });
    assert_eq!(pair.came[1], (0..10).map(|n| vec![n]).collect::<Vec<_>>());
    assert_eq!(pair.ends[0].counts().resent, 1);
    assert!(pair.now < 5 * MS, "three behind it are acknowledged: nothing is waited for");
}

#[test]
fn what_has_come_of_a_message_is_kept_when_it_is_sent_again() {
    let mut pair = Pair::new();
    pair.run();
    pair.send(0, &bytes(14_900));
    let mut n = 0;
    pair.run_until(pair.now + 500 * MS, |from, packet| {
        n += usize::from(from == 0);
        if n == 6 && from == 0 { vec![] } else { vec![packet] }
    });
    assert_eq!(pair.came[1], [bytes(14_900)]);
    // The call, five parts and the numbers of two probes had arrived already; the four parts after the lost one did not
    // fit.
    assert_eq!((pair.ends[1].counts().old, pair.ends[1].counts().bad), (8, 4));
}

#[test]
fn what_is_late_is_asked_after_and_sent_again_when_the_answer_comes_first() {
    let mut pair = Pair::new();
    pair.run();
    pair.send(0, &bytes(20_000));
    let call = &mut pair.ends[0];
    let packets = |now, call: &mut Nonet| {
        std::iter::from_fn(|| call.poll_packet(now)).map(|p| head(&p)).collect::<Vec<_>>()
    };
    assert_eq!(packets(pair.now, call).len(), 14);
    let question = NonetHeader { circuit: 4, flags: ACKME, mid: 0, ack: 0, remain: 0 };
    let answer = |ack| NonetHeader { circuit: 5, flags: 0, mid: 0, ack, remain: 0 }.encode(&[], 46);
    for _ in 0..3 {
        pair.now = call.deadline().expect("it will ask");
        assert_eq!(packets(pair.now, call), [question]);
        // The answer of an end without room gives no news.
        call.handle(pair.now, &answer(1));
        assert_eq!(packets(pair.now, call), []);
    }
    for _ in 0..FAST_RESENDS_MAX {
        call.handle(pair.now, &answer(0));
        let again = packets(pair.now, call);
        assert_eq!((again.len(), again[0].remain, again[14]), (15, 20_000, question));
    }
    call.handle(pair.now, &answer(0));
    assert_eq!(packets(pair.now, call).len(), 14, "from now on with pauses");
    call.handle(pair.now, &reset(&question.encode(&[], 46), 46).expect("an answer"));
    assert!(call.result().is_some());
}

#[test]
fn a_repeated_message_is_acknowledged_again_and_taken_once() {
    let mut pair = Pair::new();
    pair.send(0, b"once");
    let mut acks = 0;
    pair.run_until(Duration::from_secs(5), |from, packet| {
        acks += usize::from(from == 1);
        // The first five acknowledgements are lost.
        if from == 1 && acks <= 5 { vec![] } else { vec![packet.clone(), packet] }
    });
    assert_eq!(pair.came[1], [b"once"]);
    assert!(pair.ends[0].is_settled() && pair.ends[1].counts().old > 1);
}

#[test]
fn time_adapts_between_5_and_250_ms_and_doubles() {
    let mut call = Nonet::call(MEDIUM, 4, b"echo glenda".to_vec());
    assert!(call.poll_packet(Duration::ZERO).is_some());
    assert_eq!(call.deadline(), Some(RESEND_MAX), "250 ms where nothing is known");
    let mut pair = Pair::new();
    for _ in 0..50 {
        pair.send(0, b"x");
        pair.run();
    }
    pair.send(0, b"lost");
    let mut times = Vec::new();
    let start = pair.now;
    while times.len() < 10 {
        if pair.ends[0].poll_packet(pair.now).is_some() {
            times.push((pair.now - start).as_millis());
        }
        pair.now = pair.ends[0].deadline().expect("it is sent again");
    }
    assert_eq!(times, [0, 5, 15, 35, 75, 155, 315, 565, 815, 1065]);
}

#[test]
fn who_hears_nothing_gives_up_after_a_hundred_times() {
    let mut pair = Pair::new();
    pair.run();
    pair.send(0, b"into the dark");
    let mut n = 0;
    pair.run_until(Duration::from_secs(26), |from, _| {
        n += usize::from(from == 0);
        vec![]
    });
    assert_eq!(n, 101);
    assert!(matches!(pair.ends[0].result(), Some(Err(why)) if why.to_string().contains("says nothing")));
    assert!(pair.ends[0].deadline().is_none());
}

#[test]
fn who_has_nothing_to_say_and_hears_nothing_ends_after_35_s() {
    let mut accepted = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let mut pair = Pair::new();
    pair.run();
    let [dialled, other] = &mut pair.ends;
    for (end, mid, start) in
        [(&mut accepted, 0, Duration::ZERO), (dialled, 1, pair.now), (other, 0, pair.now)]
    {
        assert!(end.result().is_none());
        let mut times = Vec::new();
        while let Some(now) = end.deadline() {
            while let Some(packet) = end.poll_packet(now) {
                let probe = head(&packet);
                if probe.flags != 0 {
                    assert_eq!((probe.flags, probe.mid, probe.remain), (ACKME, mid, 0));
                    times.push((now - start).as_millis());
                }
            }
        }
        assert_eq!(times.len(), 100);
        // If data was sent, the silence started some 100 us earlier.
        assert!(
            times.iter().zip(0..).all(|(time, n)| (10_000 + 250 * n - 1..=10_000 + 250 * n).contains(time))
        );
        let why = end.result().expect("over").clone().expect_err("nobody is there");
        assert!(why.to_string().contains("says nothing"), "{why}");
    }
}

#[test]
fn an_idle_pair_stays_up_for_ever_on_a_wire_that_loses() {
    for lost in [0, 40] {
        let mut pair = Pair::new();
        pair.run();
        let before = pair.sent;
        let mut chance = 1u32;
        pair.run_until(Duration::from_secs(48 * 3600), |_, packet| {
            chance = chance.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (chance >> 16) % 100 < lost { vec![] } else { vec![packet] }
        });
        assert!(pair.ends.iter().all(|end| end.result().is_none()), "{lost} % are lost");
        if lost == 0 {
            let each = 48 * 360;
            let sent = pair.sent[0] + pair.sent[1] - before[0] - before[1];
            assert!((each..=4 * each).contains(&sent), "{sent} in 10 s times {each}");
        }
        pair.send(0, b"still here");
        pair.send(1, b"so am I");
        pair.run();
        assert_eq!(pair.came, [vec![b"so am I".to_vec()], vec![b"still here".to_vec()]]);
    }
}

#[test]
fn probes_are_answered_by_slow_readers_and_refused_by_who_has_forgotten() {
    let mut pair = Pair::new();
    pair.run();
    pair.reads[1] = false;
    for _ in 0..4 {
        pair.send(0, &bytes(4000));
    }
    pair.run();
    assert!(pair.ends[1].is_withholding());
    pair.run_until(Duration::from_secs(600), |_, packet| vec![packet]);
    assert!(pair.ends.iter().all(|end| end.result().is_none()));
    pair.reads[1] = true;
    pair.run();
    assert!(pair.ends[0].is_settled());
    let now = pair.ends[0].deadline().expect("it will ask");
    let probe = pair.ends[0].poll_packet(now).expect("a probe");
    pair.ends[0].handle(now, &reset(&probe, 46).expect("an answer"));
    assert!(matches!(pair.ends[0].result(), Some(Err(why)) if why.to_string().contains("knows nothing")));
}

#[test]
fn nothing_is_acknowledged_while_16_kib_wait_and_the_call_lives_on() {
    let mut pair = Pair::new();
    pair.run();
    pair.reads[1] = false;
    let message = bytes(4000);
    let mut sent = 0;
    // Two minutes: more than a hundred times 250 ms.
    for n in 1..=120 {
        while pair.ends[0].can_send() {
            pair.send(0, &message);
            sent += 1;
        }
        pair.run_until(Duration::from_secs(n), |_, packet| vec![packet]);
    }
    assert!(pair.ends[0].result().is_none(), "{:?}", pair.ends[0].result());
    let acked = (sent - pair.ends[0].out.len()) * (4000 + OVERHEAD);
    assert!(acked < WITHHELD + 4128 * ACKS, "{acked}");
    assert!(pair.ends[1].held() <= HELD, "{}", pair.ends[1].held());
    pair.reads[1] = true;
    pair.send(1, b"I read again");
    pair.run();
    assert_eq!(pair.came[1].len(), sent);
    assert!(pair.came[1].iter().all(|came| *came == message) && pair.ends[0].is_settled());
}

#[test]
fn who_asks_in_vain_is_told_once() {
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let part = |mid: u8, remain: i16, data: &[u8]| {
        NonetHeader { circuit: 4, flags: ACKME, mid, ack: 0, remain }.encode(data, 46)
    };
    answer.handle(MS, &part(2, 20_000, &bytes(1490)));
    for at in (1490..20_000).step_by(1490) {
        answer.handle(MS, &part(2, at as i16 - 20_000, &bytes(20_000)[at..20_000.min(at + 1490)]));
    }
    assert!(answer.is_withholding() && answer.poll_packet(2 * MS).is_none());
    for (n, speaks) in [(3, false), (4, true)] {
        answer.handle(n * MS, &part(1, 0, &[]));
        if speaks {
            answer.send(b"I am busy".to_vec().into());
        }
        let said = answer.poll_packet(n * MS).expect("an answer");
        assert_eq!((head(&said).ack, head(&said).remain), (0, if speaks { 9 } else { 0 }));
        assert!(answer.poll_packet(n * MS).is_none());
    }
    assert!(answer.poll_message().is_some());
    let acks: Vec<_> =
        std::iter::from_fn(|| answer.poll_packet(5 * MS)).map(|packet| head(&packet).ack).collect();
    assert_eq!(acks, [1, 2], "nothing was lost by it");
}

#[test]
fn whoever_sends_in_spite_of_everything_fills_no_memory() {
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let part = |mid: u8, remain: i16, data: &[u8]| {
        NonetHeader { circuit: 4, flags: ACKME, mid, ack: 0, remain }.encode(data, 46)
    };
    let mut most = 0;
    // Complete messages in order, parts of others, empty ones.
    for round in 0..300u32 {
        let mid = (round + 2) as u8;
        match round % 3 {
            0 => answer.handle(Duration::ZERO, &part(mid, 0, &[])),
            _ => answer.handle(Duration::ZERO, &part(mid, 1490, &[7; 1490])),
        }
        for ahead in 1..128 {
            answer.handle(Duration::ZERO, &part(mid.wrapping_add(ahead), 32767, &[1; 1490]));
        }
        most = most.max(answer.held());
        assert!(answer.acks.len() <= MESSAGES && answer.joins.len() <= MESSAGES);
    }
    assert!(most <= HELD + MESSAGE_MAX + OVERHEAD && most > HELD / 2, "{most}");
    assert!(answer.counts().full > 0);
}

#[test]
fn the_next_message_comes_through_when_others_have_taken_all_the_room() {
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let part = |mid: u8, remain: i16, data: &[u8]| {
        NonetHeader { circuit: 4, flags: ACKME, mid, ack: 0, remain }.encode(data, 46)
    };
    for n in 0..22 {
        for mid in 3..20 {
            let left = 32767 - n * 1490;
            let remain = if n == 0 { left } else { -left };
            if left > 0 {
                answer.handle(Duration::ZERO, &part(mid, remain, &bytes(1490)[..1490.min(left as usize)]));
            }
        }
    }
    assert!(answer.counts().full > 0);
    answer.handle(Duration::ZERO, &part(2, 4, b"next"));
    assert_eq!(answer.poll_message().expect("the next").data(), b"next");
}

#[test]
fn what_does_not_fit_is_counted_and_changes_nothing() {
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let good = NonetHeader { circuit: 4, flags: ACKME, mid: 2, ack: 0, remain: 5 };
    let long = &[0; 100];
    for (head, data) in [
        (NonetHeader { circuit: 6, ..good }, &b"hello"[..]),
        (NonetHeader { circuit: 5, ..good }, b"hello"),
        // Longer than announced, and not padding.
        (good, long),
        // A part of no message, a part without data, and the smallest number.
        (NonetHeader { remain: -5, ..good }, b"hello"),
        (NonetHeader { remain: i16::MIN, ..good }, b"hello"),
        // Not a message.
        (NonetHeader { flags: 0, ..good }, b"hello"),
    ] {
        let before = answer.counts().bad;
        answer.handle(MS, &head.encode(data, 46));
        assert_eq!(answer.counts().bad, before + 1, "{head:?}");
    }
    answer.handle(MS, &NonetHeader { remain: 9, ..good }.encode(&[], 0));
    answer.handle(MS, b"short");
    assert_eq!((answer.counts().bad, answer.held()), (8, 0));
    // However many arrive.
    (0..10_000).for_each(|_| answer.handle(MS, b"short"));
    // It acknowledges a message that was never sent.
    answer.handle(MS, &NonetHeader { ack: 77, ..good }.encode(b"hello", 46));
    assert_eq!(answer.poll_message().expect("the message").data(), b"hello");
    assert!(answer.result().is_none());
}

#[test]
fn a_message_that_is_whole_is_not_taken_for_another_one() {
    let mut answer = Nonet::answer(MEDIUM, 5, Duration::ZERO);
    let part = |mid: u8, remain: i16, data: &[u8]| {
        NonetHeader { circuit: 4, flags: ACKME, mid, ack: 0, remain }.encode(data, 46)
    };
    // In three parts; an earlier message is still missing.
    let parts = [
        part(3, 4000, &bytes(1490)),
        part(3, -2510, &bytes(2980)[1490..]),
        part(3, -1020, &bytes(4000)[2980..]),
    ];
    parts.iter().for_each(|part| answer.handle(MS, part));
    let said = head(&answer.poll_packet(MS).expect("an acknowledgement of the call")).ack;
    assert_eq!((said, head(&answer.poll_packet(2 * MS).expect("and of this")).ack), (1, 3));
    // Sent again: not an error, and acknowledged again.
    answer.handle(3 * MS, &parts[0]);
    assert_eq!(head(&answer.poll_packet(3 * MS).expect("acknowledged")).ack, 3);
    parts[1..].iter().for_each(|part| answer.handle(3 * MS, part));
    assert_eq!((answer.counts().old, answer.counts().bad), (3, 0));
    // A different message with its number is an error.
    answer.handle(4 * MS, &part(3, 3000, &[7; 1490]));
    assert_eq!((answer.counts().old, answer.counts().bad), (3, 1));
    assert!(answer.poll_packet(6 * MS).is_none());
    answer.handle(7 * MS, &part(2, 5, b"first"));
    let came: Vec<_> = std::iter::from_fn(|| answer.poll_message()).map(|m| m.data().to_vec()).collect();
    assert_eq!(came, [b"first".to_vec(), bytes(4000)]);
    assert_eq!(answer.held(), 0);
}

#[test]
fn an_end_waits_until_all_is_acknowledged_and_both_are_over() {
    let mut pair = Pair::new();
    pair.send(0, &bytes(20_000));
    pair.send(1, b"last words");
    pair.ends[0].close();
    assert!(!pair.ends[0].can_send());
    let mut hangups = [0; 2];
    pair.run_until(Duration::from_secs(60), |from, packet| {
        hangups[from] += usize::from(head(&packet).flags & HANGUP != 0);
        vec![packet]
    });
    assert_eq!(pair.came, [vec![b"last words".to_vec()], vec![bytes(20_000)]]);
    assert_eq!(hangups, [1, 1]);
    assert!(pair.ends.iter().all(|end| end.result() == Some(&Ok(()))));
    assert!(pair.now < 10 * MS);
}

#[test]
fn a_hangup_is_said_ten_times_and_then_it_is_over() {
    let mut pair = Pair::new();
    pair.run();
    pair.ends[0].close();
    let mut n = 0;
    pair.run_until(Duration::from_secs(3), |_, _| {
        n += 1;
        vec![]
    });
    assert_eq!(n, 10);
    assert!(matches!(pair.ends[0].result(), Some(Err(why)) if why.to_string() == SILENT));
    // An end that has received none of them ends too.
    pair.run_until(Duration::from_secs(60), |_, _| vec![]);
    assert!(matches!(pair.ends[1].result(), Some(Err(why)) if why.to_string() == SILENT));
}

#[test]
fn what_was_written_before_the_other_hung_up_still_goes() {
    let mut pair = Pair::new();
    pair.run();
    pair.ends[0].close();
    pair.send(1, &bytes(30_000));
    let mut n = 0;
    // The first batch loses a packet in the middle.
    pair.run_until(Duration::from_secs(60), |from, packet| {
        n += usize::from(from == 1);
        if from == 1 && n == 7 { vec![] } else { vec![packet] }
    });
    assert_eq!(pair.came[0], [bytes(30_000)]);
    assert!(pair.ends.iter().all(|end| end.result() == Some(&Ok(()))));
}

#[test]
fn a_hangup_before_all_has_come_is_an_error() {
    let mut pair = Pair::new();
    pair.run();
    pair.send(0, b"never comes");
    while pair.ends[0].poll_packet(pair.now).is_some() {}
    pair.ends[0].abort(Fault::new("given up"));
    pair.run();
    let why = pair.ends[1].result().expect("over").clone().expect_err("something is missing");
    assert!(why.to_string().contains("before all had come"), "{why}");
}

#[test]
fn who_is_not_known_is_told_so() {
    let mut call = Nonet::call(MEDIUM, 4, b"none glenda".to_vec());
    let first = call.poll_packet(Duration::ZERO).expect("the call");
    call.handle(MS, &reset(&first, 46).expect("an answer"));
    let why = call.result().expect("over").clone().expect_err("refused");
    assert!(why.to_string().contains("refused"), "{why}");
    // A reset within a call works too, but not for a packet that was never sent.
    let mut pair = Pair::new();
    pair.run();
    pair.send(0, b"x");
    let mut sent = pair.ends[0].poll_packet(pair.now).expect("sent");
    let mut wrong = NonetHeader { mid: 99, ..head(&sent) }.encode(b"x", 46);
    pair.ends[0].handle(pair.now, &reset(&wrong, 46).expect("an answer"));
    assert!(pair.ends[0].result().is_none());
    for packet in [&mut wrong, &mut sent] {
        pair.ends[0].handle(pair.now, &reset(packet, 46).expect("an answer"));
    }
    assert!(matches!(pair.ends[0].result(), Some(Err(why)) if why.to_string().contains("knows nothing")));
}

#[test]
fn what_a_process_that_has_gone_left_behind_has_a_minute() {
    let mut pair = Pair::new();
    pair.reads[1] = false;
    while pair.ends[0].can_send() {
        pair.send(0, &bytes(5000));
        pair.run();
    }
    let begun = pair.now;
    let run = |pair: &mut Pair, seconds| {
        pair.run_until(begun + Duration::from_secs(seconds), |_, packet| vec![packet]);
    };
    run(&mut pair, 100);
    assert!(pair.ends[0].result().is_none(), "who waits for it may wait long");
    pair.ends[0].orphan();
    run(&mut pair, 159);
    assert!(pair.ends[0].result().is_none());
    run(&mut pair, 200);
    assert!(matches!(pair.ends[0].result(), Some(Err(why)) if why.to_string().contains("not taken")));
    assert_eq!(pair.ends[0].deadline(), None);
}

#[test]
fn who_ignores_what_comes_still_acknowledges_it() {
    let mut pair = Pair::new();
    pair.reads[1] = false;
    pair.ends[1].orphan();
    for _ in 0..100 {
        pair.send(0, &bytes(5000));
        pair.run();
    }
    assert!(pair.ends[0].is_settled());
    assert_eq!(pair.ends[1].held(), 0);
}
