//! A recording proxy between clients and a server: it passes the bytes on, and stores every 9P message with its
//! direction and order, as a capture for wireshark. It needs no privileges and loses no message.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

/// A recorded message.
pub struct Message {
    /// Number of the connection, from 0.
    pub connection: usize,
    pub from_client: bool,
    pub bytes: Vec<u8>,
}

/// A recorder of every connection to its port.
pub struct Recorder {
    pub port: u16,
    messages: Receiver<Message>,
}

impl Recorder {
    /// Listens on a free port of the loopback, and connects clients to the port `to`.
    pub fn start(to: u16) -> std::io::Result<Recorder> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            for (connection, client) in listener.incoming().enumerate() {
                let Ok(client) = client else { return };
                let sender = sender.clone();
                std::thread::spawn(move || {
                    if let Err(e) = pass(connection, &client, to, &sender) {
                        eprintln!("recorder: {e}");
                    }
                });
            }
        });
        Ok(Recorder { port, messages })
    }

    /// Returns the messages recorded since the last call. Call it after the clients have ended.
    pub fn take(&self) -> Vec<Message> {
        self.messages.try_iter().collect()
    }
}

/// Relays both directions of a connection until both have ended.
fn pass(connection: usize, client: &TcpStream, to: u16, messages: &Sender<Message>) -> std::io::Result<()> {
    let server = TcpStream::connect(("127.0.0.1", to))?;
    for stream in [client, &server] {
        stream.set_nodelay(true)?;
    }
    let one_way = |from: &TcpStream, to: &TcpStream, from_client| -> std::io::Result<JoinHandle<()>> {
        let (mut from, mut to, messages) = (from.try_clone()?, to.try_clone()?, messages.clone());
        Ok(std::thread::spawn(move || {
            // A message is recorded before it is passed on, so that no answer precedes its request.
            while let Some(bytes) = message(&mut from) {
                let sent = messages.send(Message { connection, from_client, bytes: bytes.clone() });
                if sent.is_err() || to.write_all(&bytes).is_err() {
                    break;
                }
            }
            // The other side may have closed its connection already.
            let _ = to.shutdown(Shutdown::Write);
        }))
    };
    let both = [one_way(client, &server, true)?, one_way(&server, client, false)?];
    for way in both {
        way.join().map_err(|_| std::io::Error::other("a recording thread has panicked"))?;
    }
    Ok(())
}

/// Reads one whole message: its size, which includes the size field, and the rest.
fn message(from: &mut TcpStream) -> Option<Vec<u8>> {
    let mut bytes = vec![0; 4];
    from.read_exact(&mut bytes).ok()?;
    let size = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
    bytes.resize(size.clamp(7, MOST), 0);
    from.read_exact(&mut bytes[4..]).ok()?;
    Some(bytes)
}

/// Returns a capture with one packet per message, to or from the 9P port, with minimal TCP headers.
pub fn capture(messages: &[Message]) -> Vec<u8> {
    let mut sent: Vec<[u32; 2]> = Vec::new();
    let packets = messages.iter().map(|message| {
        sent.resize(sent.len().max(message.connection + 1), [1, 1]);
        let sent = &mut sent[message.connection];
        let packet = packet(message, *sent);
        sent[usize::from(message.from_client)] += message.bytes.len() as u32;
        packet
    });
    pcap(RAW_IPV4, packets)
}

/// Returns a capture of packets, one per second. `link` is the link type, in libpcap's numbering.
pub fn pcap(link: u32, packets: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for field in [0xa1b2_c3d4_u32, 2 | 4 << 16, 0, 0, 65535, link] {
        out.extend(field.to_le_bytes());
    }
    for (at, packet) in packets.enumerate() {
        for field in [at as u32, 0, packet.len() as u32, packet.len() as u32] {
            out.extend(field.to_le_bytes());
        }
        out.extend(packet);
    }
    out
}

fn packet(message: &Message, sent: [u32; 2]) -> Vec<u8> {
    let (client, server) = (40_000 + message.connection as u16, PORT);
    let [from, to] = if message.from_client { [client, server] } else { [server, client] };
    let [sequence, seen] = if message.from_client { [sent[1], sent[0]] } else { sent };
    let mut packet = vec![0x45, 0];
    packet.extend(((HEADS + message.bytes.len()) as u16).to_be_bytes());
    packet.extend([0, 1, 0, 0, 64, 6, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1]);
    packet.extend(from.to_be_bytes().into_iter().chain(to.to_be_bytes()));
    packet.extend(sequence.to_be_bytes().into_iter().chain(seen.to_be_bytes()));
    packet.extend([0x50, 0x18, 0xff, 0xff, 0, 0, 0, 0]);
    packet.extend(&message.bytes);
    packet
}

/// Length of the IP and TCP headers.
pub const HEADS: usize = 40;
/// Maximum length of a message in one packet.
const MOST: usize = 65535 - HEADS;
/// The port that wireshark assigns to 9P.
const PORT: u16 = 564;
const RAW_IPV4: u32 = 228;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_kept_in_its_order() {
        let server = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let recorder = Recorder::start(server.local_addr().unwrap().port()).unwrap();
        let mut client = TcpStream::connect(("127.0.0.1", recorder.port)).unwrap();
        let (question, answer) = (b"\x08\0\0\0\x6c\x01\0x", b"\x07\0\0\0\x6d\x01\0");
        client.write_all(question).unwrap();
        let (mut served, _) = server.accept().unwrap();
        assert_eq!(message(&mut served).unwrap(), question);
        served.write_all(answer).unwrap();
        assert_eq!(message(&mut client).unwrap(), answer);
        let kept: Vec<_> = recorder.take().into_iter().map(|m| (m.from_client, m.bytes)).collect();
        assert_eq!(kept, [(true, question.to_vec()), (false, answer.to_vec())]);
    }

    #[test]
    fn a_capture_has_a_packet_for_each_message() {
        let message =
            |from_client| Message { connection: 0, from_client, bytes: vec![7, 0, 0, 0, 0x6d, 1, 0] };
        let capture = capture(&[message(true), message(false)]);
        assert_eq!(capture.len(), 24 + 2 * (16 + HEADS + 7));
        assert_eq!(capture[24 + 8..24 + 12], 47u32.to_le_bytes());
        // The answer acknowledges the request.
        let second = &capture[24 + 16 + 47 + 16 + 20..];
        assert_eq!(second[..12], [2, 52, 156, 64, 0, 0, 0, 1, 0, 0, 0, 8]);
    }
}
