//! il: arbitrary packets for a state machine and for a port.
//!
//! In: operations and packets; some packets have valid numbers and are then changed. Checks: delivered data never
//! exceeds the window; a state machine whose deadline has passed has a later one.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use nine_net::datagram::{Came, Kind as Spoken, Limits, Link, Port, Room};
use nine_net::il::{Header, Il, Kind, Setup};
use nine_net::{Clock, Timer};
use nine_stream::{Block, Chain};

const KINDS: [Kind; 7] =
    [Kind::Sync, Kind::Data, Kind::DataQuery, Kind::Ack, Kind::Query, Kind::State, Kind::Close];
const WINDOW: usize = 16 << 10;
/// The start number of both ends.
const START: u32 = 1000;

/// Input: operations of five bytes each. A payload is taken from the bytes that follow.
pub fn il(data: &[u8]) {
    let Some((&how, rest)) = data.split_first() else { return };
    match how % 2 {
        0 => machine(how, rest),
        _ => port(rest),
    }
}

/// Returns a packet with nearly valid numbers, or arbitrary bytes.
fn packet(op: [u8; 5], rest: &[u8], (src, dst): (u16, u16)) -> Vec<u8> {
    let [kind, id, ack, spec, len] = op;
    let payload = &rest[..rest.len().min(usize::from(len))];
    if kind >= 250 {
        return payload.to_vec();
    }
    // The byte is a small step to either side of the current number.
    let near = |byte: u8| START.wrapping_add_signed(i32::from(byte as i8));
    let kind = KINDS[usize::from(kind) % KINDS.len()];
    let header = Header { kind, spec, src, dst, id: near(id), ack: if ack == 128 { 0 } else { near(ack) } };
    let payload = Block::from(payload.to_vec());
    bytes(header.packet(Some(payload), spec % 2 == 0))
}

fn bytes(chain: Chain) -> Vec<u8> {
    chain.iter().flat_map(Block::data).copied().collect()
}

fn machine(how: u8, mut rest: &[u8]) {
    let setup = Setup {
        local: 1,
        remote: 2,
        start: START,
        largest: 1000,
        kept: WINDOW,
        window: WINDOW,
        sums: how & 2 == 0,
        old: how & 4 == 0,
    };
    let mut now = Duration::ZERO;
    let sync = bytes(
        Header { kind: Kind::Sync, spec: 0, src: 2, dst: 1, id: START, ack: 0 }
            .packet((how & 16 == 0).then(|| Block::from(b"9il\x01\0\0\x80\0\0\0\x02\0".to_vec())), true),
    );
    let mut il = match how & 8 {
        0 => Il::call(now, setup),
        _ => Il::answer(now, setup, &sync).expect("it is a sync"),
    };
    let mut unread = 0;
    while let Some((op, more)) = rest.split_first_chunk::<5>() {
        rest = more;
        match op[0] {
            0..16 => {
                if !il.is_full() {
                    let _ = il.send(Block::from(vec![op[1]; usize::from(op[2]) * 4]));
                }
            }
            16..24 => il.close(),
            24..40 => now += Duration::from_micros(1 << (op[1] % 32)),
            40..56 => {
                while let Some(block) = il.deliver() {
                    unread += block.len() + 128;
                }
                assert!(unread <= WINDOW + 64 * 1024 + 1200 * 20, "{unread} bytes waited");
                unread = 0;
            }
            _ => {
                let packet = packet(*op, rest, (2, 1));
                rest = &rest[rest.len().min(usize::from(op[4]))..];
                il.receive(now, Block::from(packet));
            }
        }
        let mut left = 0;
        while il.transmit(now).is_some() {
            left += 1;
            assert!(left < 10_000, "it says more and more");
        }
        assert!(il.deadline().is_none_or(|at| at > now), "what is due is not done");
    }
    let _ = il.status();
}

#[derive(Default)]
struct Hand(AtomicU64);

impl Clock for Hand {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }

    fn wall(&self) -> Duration {
        self.now()
    }

    fn sleep_until(&self, _: Duration) -> Timer {
        Box::pin(std::future::pending())
    }

    fn entropy(&self, buf: &mut [u8]) {
        buf.fill(0);
        if let [.., a, b] = buf {
            (*a, *b) = ((START >> 8) as u8, START as u8);
        }
    }
}

/// Packets to receive. Sent packets are dropped.
struct Wire(Arc<Mutex<VecDeque<Vec<u8>>>>);

impl Link for Wire {
    fn poll_recv(&mut self, _: &mut Context<'_>, rooms: &mut [Room<'_>]) -> Poll<io::Result<usize>> {
        let mut coming = self.0.lock().expect("no panic");
        let mut n = 0;
        for (room, packet) in rooms.iter_mut().zip(std::iter::from_fn(|| coming.pop_front())) {
            room.bytes[..packet.len()].copy_from_slice(&packet);
            room.came = Some(Came { len: packet.len(), from: ([10, 0, 0, 2], 7).into(), here: None });
            n += 1;
        }
        if n == 0 { Poll::Pending } else { Poll::Ready(Ok(n)) }
    }

    fn poll_send(
        &mut self,
        _: &mut Context<'_>,
        _: &[IoSlice<'_>],
        _: SocketAddr,
        _: Option<IpAddr>,
    ) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn local(&self) -> SocketAddr {
        ([10, 0, 0, 1], 7).into()
    }

    fn largest(&self) -> Arc<dyn Fn(SocketAddr) -> usize + Send + Sync> {
        Arc::new(|_| 1400)
    }

    fn has_sums(&self) -> bool {
        false
    }
}

fn port(mut rest: &[u8]) {
    let (coming, clock) = (Arc::<Mutex<VecDeque<Vec<u8>>>>::default(), Arc::<Hand>::default());
    let limits = Limits { lines: 8, calls: 4, half: 4, window: WINDOW, memory: 64 * WINDOW };
    let (port, driver) = Port::new(Wire(coming.clone()), Spoken::Il, limits, clock.clone());
    let announced = port.announce(17008).expect("free");
    let mut driver = Box::pin(driver);
    let mut cx = Context::from_waker(Waker::noop());
    let mut lines = Vec::new();
    while let Some((op, more)) = rest.split_first_chunk::<5>() {
        rest = more;
        match op[0] {
            0..24 => drop(clock.0.fetch_add(1 << (op[1] % 32), Ordering::Relaxed)),
            24..48 => {
                if let Poll::Ready(Ok(line)) = Pin::new(&mut Box::pin(announced.accept())).poll(&mut cx) {
                    lines.push(line);
                }
            }
            48..56 => drop(lines.pop()),
            56..64 => drop(lines.iter().map(|line| line.stream.try_read_block()).collect::<Vec<_>>()),
            64..72 => {
                for line in &lines {
                    let mut block = Block::from(vec![op[1]; 10]);
                    block.delim = true;
                    let _ = line.stream.try_put(block);
                }
            }
            _ => {
                let packet = packet(*op, rest, (u16::from(op[1] % 4), 17008));
                rest = &rest[rest.len().min(usize::from(op[4]))..];
                coming.lock().expect("no panic").push_back(packet);
            }
        }
        assert!(driver.as_mut().poll(&mut cx).is_pending(), "the port is still there");
        assert!(lines.len() <= 8, "more lines than may be");
    }
    drop((lines, announced, port));
    // Given time, everything ends.
    for _ in 0..2000 {
        clock.0.fetch_add(400_000, Ordering::Relaxed);
        if driver.as_mut().poll(&mut cx).is_ready() {
            return;
        }
    }
    panic!("a port does not come to its end");
}
