//! Client and server, step by step, and over a wire that loses, repeats and reorders.

use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::ether::Mac;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HER: Mac = Mac([2, 0, 0, 0, 0, 1]);
const EVERYBODY: Mac = Mac([0xff; 6]);
const CONN: u8 = 77;
const SECRET: &str = "open sesame";

fn server() -> Server {
    let offer = Offer { shelf: 3, name: "fs".into() };
    Server::new(Setup { offer, password: Password::new(SECRET).unwrap() })
}

/// A server that has announced itself.
fn quiet_server() -> Server {
    let mut server = server();
    assert_eq!(server.poll_packet(MS).expect("it says that it is there").0, EVERYBODY);
    server
}

fn data(seq: u8, data: &[u8]) -> Vec<u8> {
    Frame { kind: Kind::Data, conn: CONN, seq, data }.bytes()
}

fn bare(kind: Kind, seq: u8) -> Vec<u8> {
    Frame { seq, ..Frame::bare(kind, CONN) }.bytes()
}

/// Describes a packet in a few words.
fn word(packet: &[u8]) -> String {
    let Frame { kind, seq, data, .. } = Frame::parse(packet).expect("a frame");
    let text = String::from_utf8_lossy(data);
    match kind {
        Kind::Data => format!("data {seq} {text}"),
        Kind::Ack => format!("ack {seq}"),
        Kind::Offer => format!("offer {seq} {text}"),
        kind => format!("{kind:?}").to_lowercase(),
    }
}

fn hers(client: &mut Client, now: Duration) -> Vec<String> {
    std::iter::from_fn(|| client.poll_packet(now)).map(|packet| word(&packet)).collect()
}

fn its(server: &mut Server, now: Duration) -> Vec<String> {
    std::iter::from_fn(|| server.poll_packet(now)).map(|(_, packet)| word(&packet)).collect()
}

fn logged_in(now: Duration) -> (Server, Id) {
    let mut server = quiet_server();
    let typed = format!("{SECRET}\r");
    for packet in [bare(Kind::Inita, 0), bare(Kind::Initc, 0), bare(Kind::Ack, 1), data(9, typed.as_bytes())]
    {
        server.receive(now, HER, &packet);
        its(&mut server, now);
    }
    server.receive(now, HER, &bare(Kind::Ack, 1));
    server.receive(now, HER, &bare(Kind::Ack, 2));
    let Some(Event::Open(id, HER)) = server.event() else { panic!("not logged in") };
    assert_eq!(its(&mut server, now), [""; 0]);
    (server, id)
}

#[test]
fn a_conversation_from_its_beginning_to_its_end() {
    let mut server = server();
    assert_eq!(its(&mut server, MS), ["offer 0 3 fs"]);
    let mut client = Client::new(MS, CONN, 200);
    let mut said = Vec::new();
    let mut both = |server: &mut Server, client: &mut Client| {
        said.clear();
        loop {
            let before = said.len();
            while let Some(packet) = client.poll_packet(MS) {
                said.push(format!("> {}", word(&packet)));
                server.receive(MS, HER, &packet);
            }
            while let Some((to, packet)) = server.poll_packet(MS) {
                assert_eq!(to, HER);
                said.push(format!("< {}", word(&packet)));
                client.receive(&packet);
            }
            if said.len() == before {
                return said.clone();
            }
        }
    };
    let opening = ["> inita", "< initb", "> initc", "< data 1 password: ", "> ack 1"];
    assert_eq!(both(&mut server, &mut client), opening);
    assert_eq!(client.take(), PROMPT.as_bytes());
    client.send(format!("{SECRET}\r").as_bytes());
    let login = ["> data 200 open sesame\r", "< ack 200", "< data 2 ###########\r\nfs> ", "> ack 2"];
    assert_eq!(both(&mut server, &mut client), login);
    let Some(Event::Open(id, HER)) = server.event() else { panic!("not logged in") };
    client.send(b" status \rnext\r");
    let asks = ["> data 201  status \rnext\r", "< ack 201", "< data 3  status \r\n", "> ack 3"];
    assert_eq!(both(&mut server, &mut client), asks);
    assert_eq!(server.event(), Some(Event::Line(id, "status".into())));
    assert_eq!(server.event(), None, "one line at a time");
    server.answer(MS, id, "good\x1b\nday");
    assert_eq!(both(&mut server, &mut client), ["< data 4 good?\r\nday\r\nfs> next\r\n", "> ack 4"]);
    assert_eq!(server.event(), Some(Event::Line(id, "next".into())));
    server.answer(MS, id, "");
    server.answer(MS, id, "a line is answered once");
    server.hang_up(id);
    assert_eq!(both(&mut server, &mut client), ["< data 5 fs> ", "> ack 5", "< reset"]);
    assert_eq!((client.end(), server.event()), (Some(End::Reset), Some(Event::End(id, Why::Closed))));
    assert_eq!((server.conversations(), server.deadline(), client.deadline()), (0, None, None));
}

#[test]
fn every_frame_in_every_state_of_a_client() {
    type Make = fn() -> Client;
    fn open() -> Client {
        let mut client = Client::new(MS, CONN, 5);
        client.receive(&bare(Kind::Initb, 0));
        hers(&mut client, MS);
        client
    }
    fn sending() -> Client {
        let mut client = open();
        client.send(b"x");
        assert_eq!(hers(&mut client, MS), ["data 5 x"]);
        client
    }
    fn begun() -> Client {
        let mut client = sending();
        client.receive(&bare(Kind::Ack, 5));
        client
    }
    fn calling() -> Client {
        let mut client = Client::new(MS, CONN, 5);
        hers(&mut client, MS);
        client
    }
    fn closing() -> Client {
        let mut client = sending();
        client.close();
        client
    }
    fn ended() -> Client {
        let mut client = sending();
        client.quit();
        hers(&mut client, MS);
        client
    }
    // The answers to each frame, by its type; and how it has ended then.
    let same = ("", None);
    type Answers = [(&'static str, Option<End>); 8];
    let cases: [(&str, Make, Answers); 6] = [
        (
            "begun",
            begun,
            [
                same,
                ("reset", Some(End::Anew)),
                same,
                ("ack 5", None),
                same,
                same,
                ("", Some(End::Forgotten)),
                ("", Some(End::Reset)),
            ],
        ),
        ("calling", calling, [same, ("initc", None), same, same, same, same, same, ("", Some(End::Refused))]),
        (
            "open",
            open,
            [same, ("initc", None), same, ("ack 5", None), same, same, same, ("", Some(End::Reset))],
        ),
        (
            "sending",
            sending,
            [
                same,
                ("initc", None),
                same,
                ("ack 5", None),
                same,
                same,
                ("", Some(End::Forgotten)),
                ("", Some(End::Reset)),
            ],
        ),
        (
            "closing",
            closing,
            [
                same,
                ("initc", None),
                same,
                ("ack 5", None),
                ("reset", Some(End::Closed)),
                same,
                ("", Some(End::Forgotten)),
                ("", Some(End::Reset)),
            ],
        ),
        ("ended", ended, [("", Some(End::Closed)); 8]),
    ];
    for (name, make, answers) in cases {
        for (kind, (says, end)) in Kind::ALL.into_iter().zip(answers) {
            let mut client = make();
            let seq = if matches!(kind, Kind::Data | Kind::Ack) { 5 } else { 0 };
            client.receive(&bare(kind, seq));
            assert_eq!(
                (hers(&mut client, MS).join(" "), client.end()),
                (says.into(), end),
                "{name} {kind:?}"
            );
            // A frame of another connection has no effect. An offer has no connection.
            let mut client = make();
            let before = client.end();
            client.receive(&Frame { conn: CONN + 1, seq: 1, ..Frame::bare(kind, 0) }.bytes());
            assert_eq!((hers(&mut client, MS), client.end()), (vec![], before), "{name} {kind:?} of another");
        }
    }
}

#[test]
fn every_frame_in_every_state_of_a_server() {
    type Make = fn() -> Server;
    fn asked() -> Server {
        let mut server = quiet_server();
        server.receive(MS, HER, &bare(Kind::Inita, 0));
        its(&mut server, MS);
        server
    }
    fn login() -> Server {
        let mut server = asked();
        server.receive(MS, HER, &bare(Kind::Initc, 0));
        its(&mut server, MS);
        server
    }
    fn open() -> Server {
        logged_in(MS).0
    }
    fn ending() -> Server {
        let (mut server, id) = logged_in(MS);
        server.receive(MS, HER, &data(10, b"a\r"));
        server.answer(MS, id, "b");
        server.hang_up(id);
        assert_eq!(its(&mut server, MS), ["ack 10", "data 3 a\r\nb\r\nfs> "]);
        server
    }
    let offer = "offer 0 3 fs";
    // The answers to inita, initb, initc, data 20, ack 3, discover, offer, reset; and the connections left.
    type Answers = [(&'static str, usize); 8];
    let cases: [(&str, Make, Answers); 5] = [
        (
            "none",
            quiet_server,
            [("initb", 1), ("", 0), ("reset", 0), ("reset", 0), ("", 0), (offer, 0), ("", 0), ("", 0)],
        ),
        (
            "asked",
            asked,
            [
                ("initb", 1),
                ("", 1),
                ("data 1 password: ", 1),
                ("ack 20 data 1 password: #", 1),
                ("", 1),
                (offer, 1),
                ("", 1),
                ("", 0),
            ],
        ),
        (
            "login",
            login,
            [("initb", 1), ("", 1), ("", 1), ("ack 20", 1), ("", 1), (offer, 1), ("", 1), ("", 0)],
        ),
        (
            "open",
            open,
            [("initb", 1), ("", 1), ("", 1), ("ack 20 data 3 x", 1), ("", 1), (offer, 1), ("", 1), ("", 0)],
        ),
        (
            "ending",
            ending,
            [("initb", 1), ("", 1), ("", 1), ("ack 20", 1), ("reset", 0), (offer, 1), ("", 1), ("", 0)],
        ),
    ];
    for (name, make, answers) in cases {
        for (kind, (says, left)) in Kind::ALL.into_iter().zip(answers) {
            let mut server = make();
            let packet = match kind {
                Kind::Data => data(20, b"x"),
                Kind::Ack => bare(kind, 3),
                _ => bare(kind, 0),
            };
            server.receive(MS, HER, &packet);
            let is = (its(&mut server, MS).join(" "), server.conversations());
            assert_eq!(is, (says.into(), left), "{name} {kind:?}");
        }
    }
}

#[test]
fn what_plan_9_does_is_understood() {
    // Its initc was lost, and is not repeated: the typed data implies it.
    let mut server = quiet_server();
    server.receive(MS, HER, &bare(Kind::Inita, 0));
    let typed: Vec<u8> = format!("{SECRET}\n").into();
    for (n, byte) in typed.iter().enumerate() {
        server.receive(MS, HER, &data(1 + n as u8, &[*byte]));
    }
    assert!(matches!(server.event(), Some(Event::Open(..))), "one byte in a frame, none waited for");
    // A reused connection number continues its data numbers, so the first number may be any, ours too.
    let mut client = Client::new(MS, CONN, 1);
    client.receive(&bare(Kind::Initb, 0));
    client.receive(&data(254, b"a"));
    client.receive(&data(255, b"b"));
    client.receive(&data(0, b"c"));
    assert_eq!(client.take(), b"abc");
    // It does not support cookies: an initb is a repetition as long as no data was accepted.
    client.receive(&bare(Kind::Initb, 0));
    assert_eq!(client.end(), Some(End::Anew));
    // It echoes the discovery's number, or 0. An answer to our own discovery does not mean an unknown connection.
    let mut server = quiet_server();
    server.receive(MS, HER, &Frame { seq: 1, ..Frame::bare(Kind::Discover, 0) }.bytes());
    assert_eq!(its(&mut server, MS), ["offer 1 3 fs"]);
}

#[test]
fn frames_of_the_opening_that_come_late_change_nothing() {
    let inita = |cookie: &[u8]| Frame { data: cookie, ..Frame::bare(Kind::Inita, CONN) }.bytes();
    let mut server = quiet_server();
    server.receive(MS, HER, &inita(b"abcd"));
    // Data that has overtaken the initc is sent again.
    server.receive(MS, HER, &data(9, b"x"));
    server.receive(MS, HER, &bare(Kind::Initc, 0));
    server.receive(MS, HER, &data(9, format!("{SECRET}\r").as_bytes()));
    let Some(Event::Open(id, _)) = server.event() else { panic!("not logged in") };
    its(&mut server, MS);
    server.receive(MS, HER, &inita(b"abcd"));
    server.receive(MS, HER, &bare(Kind::Initc, 0));
    assert_eq!((its(&mut server, MS), server.event()), (vec!["initb".into()], None));
    for another in [&b"abce"[..], b"", b"ab"] {
        let mut client = Client::new(MS, CONN, u32::from_be_bytes(*b"abcd"));
        client.receive(&bare(Kind::Initb, 0));
        client.receive(&data(1, b"x"));
        client.receive(&Frame { data: b"abcd", ..Frame::bare(Kind::Initb, CONN) }.bytes());
        assert_eq!(client.end(), None);
        client.receive(&Frame { data: another, ..Frame::bare(Kind::Initb, CONN) }.bytes());
        assert_eq!(client.end(), Some(End::Anew));
    }
    server.receive(MS, HER, &inita(b"abce"));
    assert_eq!(server.event(), Some(Event::End(id, Why::Anew)));
}

#[test]
fn an_offer_that_is_late_ends_nothing_where_the_server_says_so_by_a_reset() {
    let mut client = Client::new(MS, CONN, u32::from_be_bytes(*b"abcd"));
    client.receive(&Frame { data: b"abcd", ..Frame::bare(Kind::Initb, CONN) }.bytes());
    client.send(b"x");
    hers(&mut client, MS);
    client.receive(&Frame { data: b"3 fs", ..Frame::bare(Kind::Offer, 0) }.bytes());
    assert_eq!(client.end(), None);
}

#[test]
fn a_call_that_nobody_answers_ends() {
    let mut client = Client::new(MS, CONN, 5);
    let mut said = Vec::new();
    while client.end().is_none() {
        let now = client.deadline().expect("it is not over");
        said.extend(hers(&mut client, now.max(MS)));
    }
    assert_eq!(said, [&["inita"; 10][..], &["reset"]].concat());
    assert_eq!(client.end(), Some(End::Silent));
}

#[test]
fn who_vanishes_leaves_no_place_taken() {
    // After the initb: 250 ms, 500 ms, 1 s, 1 s.
    let mut server = quiet_server();
    server.receive(MS, HER, &bare(Kind::Inita, 0));
    let mut said = Vec::new();
    let mut now = MS;
    while server.conversations() > 0 {
        now = server.deadline().expect("a place is taken").max(now);
        said.extend(its(&mut server, now));
    }
    assert_eq!((said, now), (vec!["initb".to_string(); 4], 2751 * MS));
    // After a line that is not acknowledged.
    let (mut server, id) = logged_in(MS);
    server.receive(MS, HER, &data(10, b"a"));
    while server.conversations() > 0 {
        now = server.deadline().expect("a place is taken").max(now);
        its(&mut server, now);
    }
    assert_eq!(server.event(), Some(Event::End(id, Why::Silent)));
    // A client that is idle for ten minutes gets a reset; one that does not log in gets none.
    let (mut server, id) = logged_in(MS);
    assert_eq!(server.deadline(), Some(600 * SECOND + MS));
    assert_eq!(its(&mut server, 600 * SECOND + MS), ["reset"]);
    assert_eq!(server.event(), Some(Event::End(id, Why::Idle)));
    let mut server = quiet_server();
    for packet in [bare(Kind::Inita, 0), bare(Kind::Initc, 0), bare(Kind::Ack, 1)] {
        server.receive(MS, HER, &packet);
        its(&mut server, MS);
    }
    server.receive(MS, HER, &bare(Kind::Ack, 1));
    assert_eq!(server.deadline(), Some(60 * SECOND + MS));
    assert_eq!((its(&mut server, 60 * SECOND + MS).len(), server.conversations()), (0, 0));
}

#[test]
fn a_busy_conversation_is_not_idle() {
    let (mut server, id) = logged_in(MS);
    server.receive(MS, HER, &data(10, b"dump wait\r"));
    its(&mut server, MS);
    server.receive(MS, HER, &bare(Kind::Ack, 3));
    assert_eq!(server.deadline(), None);
    server.answer(3600 * SECOND, id, "done");
    assert_eq!(its(&mut server, 3600 * SECOND), ["data 4 done\r\nfs> "]);
}

#[test]
fn what_is_typed_while_a_line_is_answered_waits_and_beyond_its_room_comes_again() {
    let (mut server, id) = logged_in(MS);
    server.receive(MS, HER, &data(10, b"a\r"));
    its(&mut server, MS);
    server.receive(MS, HER, &bare(Kind::Ack, 3));
    for n in 0..16 {
        server.receive(MS, HER, &data(11 + n, &[b'y'; 250]));
        assert_eq!(its(&mut server, MS), [format!("ack {}", 11 + n)]);
    }
    server.receive(MS, HER, &data(27, &[b'y'; 250]));
    assert_eq!(its(&mut server, MS), ["ack 26"], "alive, and full");
    server.answer(MS, id, "");
    its(&mut server, MS);
    server.receive(MS, HER, &data(27, b"\r"));
    assert_eq!(its(&mut server, MS)[0], "ack 27");
}

#[test]
fn the_sixteenth_is_refused_and_so_is_the_fifth_of_a_card() {
    let mut server = quiet_server();
    let mut says = |from: u8, conn: u8| {
        server.receive(MS, Mac([2, 0, 0, 0, 0, from]), &Frame::bare(Kind::Inita, conn).bytes());
        its(&mut server, MS).join(" ")
    };
    assert_eq!([0, 1, 2, 3, 4].map(|conn| says(1, conn)), ["initb", "initb", "initb", "initb", "reset"]);
    for card in 2..13 {
        assert_eq!(says(card, 0), "initb");
    }
    assert_eq!((says(99, 0), says(1, 0)), ("reset".into(), "initb".into()));
    // A number may be reused as soon as its connection is over.
    server.receive(MS, Mac([2, 0, 0, 0, 0, 5]), &Frame::bare(Kind::Reset, 0).bytes());
    server.receive(MS, Mac([2, 0, 0, 0, 0, 99]), &Frame::bare(Kind::Inita, 0).bytes());
    assert_eq!((its(&mut server, MS), server.conversations()), (vec!["initb".into()], CONVERSATIONS));
    let mut client = Client::new(MS, CONN, 1);
    client.receive(&bare(Kind::Reset, 0));
    assert_eq!(client.end(), Some(End::Refused));
}

#[test]
fn a_flood_takes_places_and_nothing_else() {
    let (mut server, id) = logged_in(MS);
    for n in 0..100_000u32 {
        let [a, b, c, _] = n.to_le_bytes();
        server.receive(MS, Mac([2, 9, 9, a, b, c]), &Frame::bare(Kind::Inita, a).bytes());
        server.receive(MS, Mac([3, 9, 9, a, b, c]), &Frame::bare(Kind::Inita, a).bytes());
    }
    assert_eq!(server.conversations(), CONVERSATIONS);
    assert!(its(&mut server, MS).len() < 100);
    server.receive(4 * SECOND, HER, &data(10, b"a\r"));
    assert!(its(&mut server, 4 * SECOND).contains(&"ack 10".into()));
    assert_eq!(server.event(), Some(Event::Line(id, "a".into())));
    while server.conversations() > 1 {
        let now = server.deadline().expect("places are taken");
        its(&mut server, now.max(4 * SECOND));
        server.receive(4 * SECOND, HER, &bare(Kind::Ack, 3));
    }
}

#[test]
fn a_wrong_password_waits_and_the_third_shuts_its_card_out() {
    let mut server = quiet_server();
    for packet in [bare(Kind::Inita, 0), bare(Kind::Initc, 0)] {
        server.receive(MS, HER, &packet);
    }
    its(&mut server, MS);
    let mut now = MS;
    let mut seq = 0;
    for n in 1..=3 {
        seq += 1;
        server.receive(now, HER, &bare(Kind::Ack, 2 * n - 1));
        server.receive(now, HER, &data(seq, b"123456789\r"));
        assert_eq!(server.event(), Some(Event::Wrong(HER)));
        assert_eq!(its(&mut server, now), [format!("ack {seq}"), format!("data {} #########", 2 * n)]);
        server.receive(now, HER, &bare(Kind::Ack, 2 * n));
        assert_eq!(server.deadline(), Some(now + 2 * SECOND));
        // Input is not checked meanwhile.
        seq += 1;
        server.receive(now, HER, &data(seq, b""));
        its(&mut server, now);
        now += 2 * SECOND;
        match n {
            3 => assert_eq!(its(&mut server, now), ["reset"]),
            _ => assert_eq!(
                its(&mut server, now),
                [format!("data {} \r\nBad password\r\npassword: ", 2 * n + 1)]
            ),
        }
    }
    server.receive(now, HER, &bare(Kind::Inita, 0));
    assert_eq!((its(&mut server, now), server.conversations()), (vec!["reset".to_string()], 0));
    now += 58 * SECOND;
    server.receive(now, HER, &bare(Kind::Inita, 0));
    assert_eq!(its(&mut server, now), ["initb"]);
}

#[test]
fn who_hangs_up_behind_a_wrong_password_guesses_no_faster() {
    let mut server = quiet_server();
    let hang_up = bare(Kind::Reset, 0);
    // One attacker uses a thousand card addresses, and closes or restarts each connection before it gets an answer.
    let anew = Frame { data: b"anew", ..Frame::bare(Kind::Inita, CONN) }.bytes();
    let mut guesses = |now: Duration| {
        let mut wrong = 0;
        for n in 0..1000u16 {
            let [a, b] = n.to_le_bytes();
            let from = Mac([2, 7, 7, 7, a, b]);
            let guess = data(9, format!("guess {n}\r").as_bytes());
            for packet in [&bare(Kind::Inita, 0), &bare(Kind::Initc, 0), &guess, &anew, &hang_up] {
                server.receive(now, from, packet);
                its(&mut server, now);
            }
            wrong += std::iter::from_fn(|| server.event()).count();
        }
        assert_eq!(server.conversations(), 0);
        wrong
    };
    let times = [MS, SECOND, 2 * SECOND, 2 * SECOND + MS, 3 * SECOND, 9 * SECOND];
    assert_eq!(times.map(&mut guesses), [CONVERSATIONS, 0, 0, CONVERSATIONS, 0, CONVERSATIONS]);
}

#[test]
fn an_answer_that_is_too_long_is_cut() {
    let (mut server, id) = logged_in(MS);
    server.receive(MS, HER, &data(10, b"a\r"));
    its(&mut server, MS);
    server.answer(MS, id, &"\u{20ac}".repeat(ANSWER_MAX));
    let (mut seq, mut all) = (3, String::new());
    loop {
        server.receive(MS, HER, &bare(Kind::Ack, seq));
        seq = seq.wrapping_add(1);
        let Some((_, packet)) = server.poll_packet(MS) else { break };
        all.push_str(&String::from_utf8_lossy(Frame::parse(&packet).unwrap().data));
    }
    assert!(all.ends_with("\r\n... and more, which is cut off\r\nfs> "));
    assert!((ANSWER_MAX..ANSWER_MAX + 4000).contains(&all.len()), "{}", all.len());
}

#[test]
fn a_server_that_is_closed_tells_everybody_and_hears_nobody() {
    let (mut server, id) = logged_in(MS);
    server.close();
    assert_eq!(
        (its(&mut server, MS), server.event()),
        (vec!["reset".into()], Some(Event::End(id, Why::Closed)))
    );
    server.receive(MS, HER, &bare(Kind::Inita, 0));
    assert_eq!((its(&mut server, MS).len(), server.deadline(), server.is_closed()), (0, None, true));
}

/// A random number generator with a seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) % n
    }
}

/// Packets in flight, by arrival time.
#[derive(Default)]
struct Wire(BTreeMap<(Duration, u64), Vec<u8>>);

impl Wire {
    fn carry(&mut self, now: Duration, packet: Vec<u8>, faults: u64, rng: &mut Rng) {
        let hits = |rng: &mut Rng| faults > 0 && rng.below(faults) == 0;
        if hits(rng) {
            return;
        }
        for _ in 0..1 + u64::from(hits(rng)) {
            let late = if hits(rng) { rng.below(400_000) } else { 0 };
            let at = now + Duration::from_micros(50 + rng.below(20) + late);
            self.0.insert((at, rng.below(u64::MAX)), packet.clone());
        }
    }

    fn first(&self) -> Option<Duration> {
        self.0.first_key_value().map(|((at, _), _)| *at)
    }

    fn arrives(&mut self, now: Duration) -> Option<Vec<u8>> {
        let first = self.0.first_entry().filter(|first| first.key().0 <= now)?;
        Some(first.remove())
    }
}

/// A client types its lines and closes, over a wire with these faults. Returns whether all arrived, and how both ended.
fn session(seed: u64, faults: u64) -> (bool, End, Option<Why>) {
    let mut rng = Rng(seed);
    let lines: Vec<String> =
        (0..rng.below(20)).map(|n| format!("line {n} {}", "x".repeat(1 + rng.below(400) as usize))).collect();
    let answer = |line: &str| format!("it was {line}\n").repeat(line.len() % 40);
    let mut due = format!("{PROMPT}###########\r\nfs> ");
    for line in &lines {
        due += &format!("{line}\r\n{}fs> ", answer(line).replace('\n', "\r\n"));
    }
    due += "\r\n";
    let mut typed: Vec<u8> = format!("{SECRET}\r{}\r\x04", lines.join("\r")).into();
    if lines.is_empty() {
        typed = format!("{SECRET}\r\x04").into();
    }

    let (mut server, mut now) = (server(), MS);
    let mut client = Client::new(now, CONN, rng.below(1 << 32) as u32);
    let (mut to_server, mut to_client) = (Wire::default(), Wire::default());
    let (mut came, mut asked, mut why, mut lives) = (Vec::new(), 0, None, None);
    // An unrelated client.
    let her = Mac([2, 0, 0, 0, 0, 9]);
    server.receive(now, her, &bare(Kind::Inita, 0));
    loop {
        while let Some(packet) = to_server.arrives(now) {
            server.receive(now, HER, &packet);
        }
        while let Some(packet) = to_client.arrives(now) {
            client.receive(&packet);
        }
        // Its process reads now and then.
        if rng.below(3) == 0 || client.end().is_some() {
            came.extend(client.take());
        }
        let n = client.send(&typed[..typed.len().min(rng.below(600) as usize)]);
        typed.drain(..n);
        while let Some(event) = server.event() {
            match event {
                Event::Open(id, _) => lives = Some(id),
                Event::Line(id, line) => {
                    assert_eq!((Some(id), &line), (lives, &lines[asked]), "seed {seed}");
                    asked += 1;
                    server.answer(now, id, &answer(&line));
                }
                Event::End(_, how) => (lives, why) = (None, Some(how)),
                // After a lost connection, input for it may reach the login of the next one.
                Event::Wrong(_) => {}
            }
        }
        while let Some(packet) = client.poll_packet(now) {
            to_server.carry(now, packet, faults, &mut rng);
        }
        while let Some((to, packet)) = server.poll_packet(now) {
            if to == HER {
                to_client.carry(now, packet, faults, &mut rng);
            }
        }
        if client.end().is_some() && server.conversations() == 0 {
            break;
        }
        let next = [client.deadline(), server.deadline(), to_server.first(), to_client.first()];
        match next.into_iter().flatten().min() {
            Some(next) => now = now.max(next) + Duration::from_micros(rng.below(100)),
            // A reset was lost. A client that sends something gets another one.
            None => assert_eq!(client.send(b"?"), 1, "seed {seed}"),
        }
        assert!(now < 1000 * SECOND, "seed {seed}: it does not end");
    }
    came.extend(client.take());
    let end = client.end().expect("the loop is over");
    assert!(due.as_bytes().starts_with(&came), "seed {seed}: {:?}", String::from_utf8_lossy(&came));
    (came == due.as_bytes() && asked == lines.len(), end, why)
}

#[test]
fn over_a_good_wire_all_comes() {
    for seed in 0..200 {
        assert_eq!(session(seed, 0), (true, End::Reset, Some(Why::Closed)), "seed {seed}");
    }
}

#[test]
fn over_a_bad_wire_all_comes_too() {
    for seed in 0..400 {
        let ends = session(seed, 5 + seed % 20);
        assert_eq!(ends, (true, End::Reset, Some(Why::Closed)), "seed {seed}");
    }
}

#[test]
fn over_a_wire_that_loses_half_bytes_come_once_and_in_order_or_it_ends() {
    let mut whole = 0;
    for seed in 0..100 {
        let (all, end, why) = session(seed, 2);
        // After a regular end everything has arrived.
        assert!(all || why != Some(Why::Closed), "seed {seed}: {end:?} {why:?}");
        whole += u32::from(all);
    }
    assert!((1..100).contains(&whole), "{whole}");
}
