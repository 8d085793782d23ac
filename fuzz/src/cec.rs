//! CEC: its decoder, its client and its server. Each side gets arbitrary packets of the other.
//!
//! In: any bytes. Checks: neither side stores more than its limits; a console line comes only from a client that has
//! presented the password; from any state both come to an end.

use std::time::Duration;

use nine_net::cec::{
    CONVERSATIONS, Client, Event, Frame, HEADER, INBOX, Kind, Offer, PER_CARD, Password, Server, Setup,
};
use nine_net::ether::Mac;

/// Packets of all lengths. A decoded frame, encoded again, is the same.
pub fn cec_frame(data: &[u8]) {
    let Some(frame) = Frame::parse(data) else { return };
    let again = frame.bytes();
    assert_eq!(Frame::parse(&again), Some(frame));
    assert!(again.len() >= HEADER + frame.data.len());
    if let Some(offer) = Offer::parse(frame.data) {
        assert!(!offer.name.contains(char::is_control));
        let text = offer.text();
        assert!(text.len() <= 250 && Offer::parse(text.as_bytes()).is_some());
    }
}

/// Input: actions of a server, a client, the network, or time.
pub fn cec(data: &[u8]) {
    let Some((&kind, mut acts)) = data.split_first() else { return };
    let offer = Offer { shelf: 1, name: "fs".into() };
    let password = Password::new(SECRET).expect("it is one");
    let mut server = Server::new(Setup { offer, password });
    let mut client = Client::new(Duration::ZERO, kind, u32::from(kind));
    let mut now = Duration::ZERO;
    let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
    // Whether the client was given the password.
    let mut told = false;
    while let Some((&act, rest)) = acts.split_first() {
        acts = rest;
        let arg = acts.first().copied().unwrap_or(act);
        let from = Mac([2, 0, 0, 0, 0, arg % 8]);
        match act % 16 {
            0 => drop(client.send(&[arg; 300][..usize::from(arg)])),
            1 => {
                told = true;
                client.send(format!("{SECRET}\r").as_bytes());
            }
            2 => drop(client.send(b"line\r")),
            3 => drop(client.take()),
            4 => now += Duration::from_millis(u64::from(arg) * 10),
            5 => now += Duration::from_secs(u64::from(arg) * 3),
            6 if arg == 255 => client.close(),
            7 if !to_client.is_empty() => {
                let packet: Vec<u8> = to_client.remove(usize::from(arg) % to_client.len());
                client.receive(&packet);
            }
            8 if !to_server.is_empty() => {
                let packet: Vec<u8> = to_server.remove(usize::from(arg) % to_server.len());
                server.receive(now, HER, &packet);
            }
            // Arbitrary bytes, and nearly valid packets.
            9 => client.receive(acts),
            10 => server.receive(now, from, acts),
            act @ 11..=13 => {
                let (said, rest) = acts.split_at(acts.len().min(usize::from(arg % 32)));
                acts = rest;
                let kind = Kind::ALL[usize::from(arg >> 5)];
                let frame = Frame { kind, conn: client_or(kind, arg), seq: arg, data: said };
                match act {
                    11 => client.receive(&Frame { conn: data[0], ..frame }.bytes()),
                    12 => server.receive(now, from, &frame.bytes()),
                    _ => server.receive(now, HER, &Frame { conn: data[0], ..frame }.bytes()),
                }
            }
            _ => {
                to_server.extend(client.poll_packet(now));
                to_client
                    .extend(server.poll_packet(now).filter(|(to, _)| *to == HER).map(|(_, packet)| packet));
                to_server.truncate(64);
                to_client.truncate(64);
            }
        }
        while let Some(event) = server.event() {
            match event {
                Event::Open(..) => {
                    assert!(told || data.windows(SECRET.len()).any(|is| is == SECRET.as_bytes()))
                }
                Event::Line(id, line) => match arg % 4 {
                    0 => {}
                    1 => server.hang_up(id),
                    _ => server.answer(now, id, &line.repeat(usize::from(arg))),
                },
                Event::End(..) | Event::Wrong(_) => {}
            }
        }
        assert!(server.conversations() <= CONVERSATIONS);
    }
    assert!(client.take().len() <= INBOX + 255);
    // From now on there is no input: conversations end, and the client ends.
    client.close();
    for _ in 0..100_000 {
        while client.poll_packet(now).is_some() {}
        while server.poll_packet(now).is_some() {}
        while let Some(event) = server.event() {
            if let Event::Line(id, _) = event {
                server.answer(now, id, "");
            }
        }
        match [client.deadline(), server.deadline()].into_iter().flatten().min() {
            Some(next) => now = now.max(next),
            None => break,
        }
    }
    assert!(client.end().is_some(), "{client:?}");
    // A conversation with an unacknowledged line still counts.
    assert!(server.conversations() <= PER_CARD, "{server:?}");
}

/// Returns a connection number: 0 for an offer, else one of four.
fn client_or(kind: Kind, arg: u8) -> u8 {
    if kind == Kind::Offer { 0 } else { arg % 4 }
}

const SECRET: &str = "open sesame";
const HER: Mac = Mac([2, 0, 0, 0, 1, 1]);
